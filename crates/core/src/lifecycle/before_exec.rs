//! Before exec: what the new program goes on with, and the way back for the rest, because
//! the new program cannot read a ring.

use super::exit::{begin_to_leave_hosts, finish};
use crate::adoption::exec::{Heir, hand_over};
use crate::fd_table::{self, Entry};
use crate::socket::harmless;
use crate::{adoption, epoll, fast_connect, io, keeper, process, socket, sys, trace};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use netacc_control::stats::Reason;

/// This very process becomes the new program, which `heir` says, if it is known.
pub(crate) fn before_exec(heir: impl FnOnce() -> Option<Heir>) {
    let ends = !process::in_vfork_child();
    prepare(|| if ends { heir() } else { None }, false);
    if ends {
        trace::before_exec();
        adoption::before_leaving(true);
        // The new program has no thread that goes on with them.
        let shared = begin_to_leave_hosts(false);
        finish(shared, false);
    }
}

/// Another process starts it, and this one goes on. `by_actions`: libc does there what file actions
/// say, which nobody here can read.
pub(crate) fn before_spawn(by_actions: bool) {
    fast_connect::give_away_all();
    prepare(|| None, by_actions);
}

/// The numbers that file actions of posix_spawn's have ever duplicated: the new program may have
/// what stands there by the time that it starts, also where that is close-on-exec here. (A number
/// beyond has the bit of another one, whose connection goes back for nothing, if there is one.)
static DUPLICATED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn bit_of(fd: c_int) -> (&'static AtomicU64, u64) {
    let n = fd as u32 as usize;
    let [first, ..] = &DUPLICATED;
    (DUPLICATED.get(n / 64 % DUPLICATED.len()).unwrap_or(first), 1 << (n % 64))
}

/// `fd` is added to file actions of posix_spawn's.
pub(crate) fn in_file_actions(fd: c_int) {
    let (word, bit) = bit_of(fd);
    word.fetch_or(bit, Relaxed);
}

fn may_be_in_actions(fd: c_int) -> bool {
    let (word, bit) = bit_of(fd);
    word.load(Relaxed) & bit != 0
}

/// A child that shares this memory has numbers of its own, of which the table knows nothing: a
/// program that it becomes finds the connection under one that nobody looks at then.
#[cold]
pub(super) fn before_dup_by_vfork_child(old: c_int) {
    if let Entry::Socket(..) = fd_table::get(old) {
        io::need_kernel(old, Reason::InheritedByExec);
    }
}

fn prepare(heir: impl FnOnce() -> Option<Heir>, by_actions: bool) {
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
            let closed = sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0
                && !(by_actions && may_be_in_actions(fd));
            if closed || !io::is_here(fd, s) {
                return;
            }
            if !live {
                // Nothing of it is this library's, but others may go by the marks.
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
