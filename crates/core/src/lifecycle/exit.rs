//! The end of the process: what its peers do not have yet goes to them over the carriers.

use crate::agent::{self, Ending};
use crate::fd_table::{self, Entry};
use crate::socket::Socket;
use crate::{adoption, engines, io, process, sys, trace};
use netacc_control::stats::Reason;

/// How long the end of a process, or its exec, may be held up by peers that are slow to read what
/// goes out again over the carrier.
const EXIT_NS: u64 = 2_000_000_000;

pub(crate) fn at_exit() {
    write_counts();
    let shared = begin_to_leave_hosts(true);
    adoption::before_leaving(false);
    finish(shared, true);
    leave_local_peers();
    trace::at_exit();
}

/// For tests that count what can fail (`inject`).
fn write_counts() {
    #[cfg(feature = "inject")]
    if let Some((path, allocations, calls)) = crate::inject::counts() {
        use crate::sys;
        use core::ffi::c_int;
        use core::fmt::Write;
        let mut name = [0u8; 512];
        let Some(to) = name.get_mut(..path.len()) else { return };
        to.copy_from_slice(path);
        let mut line = alloc::string::String::new();
        let _ = writeln!(line, "{allocations} {calls} {}", crate::heap::reserve_used());
        let Some(name) = name.get(..path.len() + 1) else { return };
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        let fd = sys::open(name, flags, 0o644) as c_int;
        if fd >= 0 {
            let _ = sys::write(fd, line.as_bytes());
            let _ = sys::close(fd);
        }
    }
}

/// What the kernel would close with bytes unread in a ring is reset.
fn leave_local_peers() {
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, _) = entry {
            io::at_exit(s, fd);
            if !s.is_inherited() {
                s.say_at_end();
            }
        }
    });
}

/// The process forks and ends, and its child goes on with its connections: those that only it can
/// serve go back to the kernel.
pub(crate) fn before_daemon() {
    if !process::started() || !engines::are_running() {
        return;
    }
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, g) = entry
            && !s.path().children_follow()
        {
            let _ = io::to_kernel(s, g, fd, Reason::InheritedByFork, false);
        }
    });
}

/// The process ends without its exit handlers. What it has sent is in memory that it shares with a
/// peer, and stays there; what a peer on another host does not have yet would be lost.
pub(crate) fn before_end() {
    if process::started() && !process::in_vfork_child() {
        at_exit();
    }
}

/// Bytes that a peer on another host may not have yet go over the carriers. True: of connections
/// that forked children have, too. `for_good`: as in [`Ending`].
pub(super) fn begin_to_leave_hosts(for_good: bool) -> bool {
    let mut shared = false;
    if engines::are_running() {
        // First: what is a candidate now stays one.
        process::is_about_to_end((!for_good).then_some(2 * EXIT_NS));
        fd_table::for_each(|_, entry| {
            if let Entry::Socket(s, _) = entry {
                shared |= io::begin_exit(s) && s.names() > 1;
            }
        });
    }
    shared
}

/// What goes out over the carriers gets there.
pub(super) fn finish(shared: bool, for_good: bool) {
    serve_who_asks();
    let ending = Ending { limit_ns: EXIT_NS, shared, for_good };
    agent::each(|agent| agent.finish(ending));
}

/// What peers within the host have asked back goes before the FINs.
fn serve_who_asks() {
    fd_table::for_each(|_, entry| {
        // (Never for long: another thread may hold the end for ever.)
        let is_free = |s: &Socket| {
            let free = s.tx_lock.owner() == 0;
            if !free {
                sys::sched_yield();
            }
            free
        };
        if let Entry::Socket(s, _) = entry
            && (0..200).any(|_| is_free(s))
        {
            io::serve_before_fin(s);
        }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use crate::path::tests::{A, C, promoted_within_the_host};
    use std::vec;

    #[test]
    fn what_a_frozen_peer_wants_goes_before_the_end_of_the_process() {
        let mut ends = promoted_within_the_host();
        io::freeze_of(ends[A].socket);
        ends[C].send(C, 5_000);
        serve_who_asks();
        io::at_exit(ends[C].socket, ends[C].fd);
        assert_eq!(sys::shutdown(ends[C].fd, libc::SHUT_WR), 0);
        let (mut all, mut part) = (0, vec![0u8; 8_000]);
        loop {
            // SAFETY: a buffer of ours.
            let n = unsafe {
                let none = core::ptr::null_mut();
                sys::recvfrom(ends[A].fd, part.as_mut_ptr(), part.len(), 0, none, none.cast())
            };
            match n {
                0 => break,
                n => all += usize::try_from(n).unwrap(),
            }
        }
        assert_eq!(all, 5_000, "the kernel has all of it, then the end");
        ends.iter_mut().for_each(|end| end.close());
    }
}
