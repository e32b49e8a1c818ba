//! Before exec: what the new program goes on with, and the way back for the rest, because
//! the new program cannot read a ring.

use super::exit::{begin_to_leave_hosts, finish};
use crate::adoption::exec::{Heir, hand_over};
use crate::fd_table::{self, Entry};
use crate::socket::harmless;
use crate::{adoption, epoll, fast_connect, io, keeper, process, socket, sys, trace};
use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
use netacc_control::stats::Reason;

/// This very process becomes the new program, which `heir` says, if it is known.
pub(crate) fn before_exec(heir: impl FnOnce() -> Option<Heir>) {
    let ends = !process::in_vfork_child();
    prepare(|| if ends { heir() } else { None });
    if ends {
        trace::before_exec();
        adoption::before_leaving(true);
        // The new program has no thread that goes on with them.
        let shared = begin_to_leave_hosts(false);
        finish(shared, false);
    }
}

/// Another process starts it, and this one goes on.
pub(crate) fn before_spawn() {
    fast_connect::give_away_all();
    prepare(|| None);
}

/// A child that shares this memory has numbers of its own, of which the table knows nothing: a
/// program that it becomes finds the connection under one that nobody looks at then.
#[cold]
pub(super) fn before_dup_by_vfork_child(old: c_int) {
    if let Entry::Socket(..) = fd_table::get(old) {
        io::need_kernel(old, Reason::InheritedByExec);
    }
}

fn prepare(heir: impl FnOnce() -> Option<Heir>) {
    epoll::before_exec();
    let (mut ask, mut known) = (Some(heir), None);
    fd_table::for_each(|fd, entry| {
        if let Entry::Marked(_) = entry {
            io::need_kernel(fd, Reason::InheritedByExec);
        } else if let Entry::Socket(s, _) = entry {
            let live = matches!(
                s.state.now(),
                socket::State::Unconnected
                    | socket::State::Candidate
                    | socket::State::Attached
                    | socket::State::Changing
                    | socket::State::Left
                    | socket::State::Closing
            );
            if sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0
                || !io::is_here(fd, s)
            {
                return;
            }
            if !live {
                // Nothing of it is this library's, but others may go by the marks, and what still
                // comes is theirs.
                s.comes_until.store(0, Relaxed);
                return adoption::passed::lose_track(s, fd);
            }
            if let Some(ask) = ask.take() {
                known = ask();
            }
            harmless::write_back(s, fd);
            if !known.is_some_and(|heir| hand_over(fd, heir)) {
                io::need_kernel(fd, Reason::InheritedByExec);
            }
        } else if let Entry::Listener(_) = entry
            && fast_connect::has_listeners()
            && sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize == 0
        {
            io::share_listener(fd);
        }
    });
}

/// The exec has failed: what stood still for it goes on.
pub(crate) fn exec_failed() {
    if process::started() && !process::in_vfork_child() {
        trace::exec_failed();
        process::goes_on();
        keeper::goes_on();
        adoption::exec::failed();
    }
}
