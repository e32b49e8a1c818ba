//! The way back before exec: the new program cannot read a ring.

use super::exit::{EXIT_NS, begin_to_leave_hosts, finish_leaving_hosts};
use crate::fd_table::{self, Entry};
use crate::{adoption, io, keeper, process, service, socket, sys};
use netacc_control::stats::Reason;

/// `ends`: this very process becomes the new program.
pub(crate) fn before_exec(ends: bool) {
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, _) = entry {
            let live = matches!(
                s.state.now(),
                socket::State::Unconnected
                    | socket::State::Candidate
                    | socket::State::Attached
                    | socket::State::Changing
                    | socket::State::Left
                    | socket::State::Closing
            );
            if live && sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize == 0 {
                io::need_kernel(fd, Reason::InheritedByExec);
            }
        }
    });
    if ends && !process::in_vfork_child() {
        adoption::before_leaving(true);
        // The new program has no thread that goes on with them.
        let shared = begin_to_leave_hosts(false);
        service::finish_pull_backs(EXIT_NS);
        finish_leaving_hosts(shared, false);
    }
}

/// The exec has failed: what stood still for it goes on.
pub(crate) fn exec_failed() {
    if process::started() && !process::in_vfork_child() {
        process::goes_on();
        keeper::goes_on();
    }
}
