//! A descriptor is used in a way that only the kernel can serve.

use super::ends::{hold_rx, reads_ring_first};
use super::kept::give_up_listener;
use super::leave::{to_kernel, to_kernel_to_send};
use crate::fd_table::Entry;
use crate::sets::sets;
use crate::socket::{Socket, State, flag};
use crate::{adoption, fast_connect, fd_table};
use core::ffi::c_int;
use netacc_control::stats::Reason;

/// A descriptor is used in a way that only the kernel can serve, for good: see
/// [`crate::api::need_kernel`].
pub(crate) fn need_kernel(fd: c_int, why: Reason) {
    // Where somebody is about to read who cannot read a ring.
    let strict = leaves_sight(why) && why != Reason::IoUring;
    give_to_kernel(fd, why, |s, g| _ = to_kernel(s, g, fd, why, strict));
}

/// The same where somebody may send past us, too: a byte of theirs on the carrier, before the peer
/// knows that the stream goes on there, would be taken for a broken rule. That is waited for.
pub(crate) fn need_kernel_both_ways(fd: c_int, why: Reason) {
    give_to_kernel(fd, why, |s, g| {
        let is_there = to_kernel(s, g, fd, why, false);
        if !is_there && s.is(State::Attached) && s.path().leaves_by_agent() {
            to_kernel_to_send(s, g, fd, why);
        }
    });
}

/// The same where somebody only sends past us: what is unread in a ring is received by ordinary
/// calls.
pub(crate) fn need_kernel_to_send(fd: c_int, why: Reason) {
    give_to_kernel(fd, why, |s, g| {
        if s.is(State::Attached) && s.path().leaves_by_agent() {
            to_kernel_to_send(s, g, fd, why);
        } else {
            _ = to_kernel(s, g, fd, why, false);
        }
    });
}

fn give_to_kernel(fd: c_int, why: Reason, go: impl FnOnce(&'static Socket, u16)) {
    let (s, g) = match fd_table::get(fd) {
        Entry::Socket(s, g) => (s, g),
        Entry::Fresh(_) | Entry::Listener(_) => {
            fast_connect::listener(fd).into_iter().for_each(give_up_listener);
            fast_connect::give_away(fd);
            return fd_table::refuse(fd, why);
        }
        Entry::Ring(_) => return lose_sight(),
        // Whoever gets it asks the kernel alone.
        Entry::Epoll(set) => return sets().bar(set),
        Entry::Marked(_) if leaves_sight(why) => return adoption::share::lose(fd),
        Entry::None | Entry::Internal | Entry::Marked(_) => return,
    };
    if s.has(flag::TRACKED) {
        adoption::passed::lose_track(s, fd);
    }
    go(s, g);
}

/// Of a descriptor that the kernel is to serve for good ([`need_kernel`]) the next bytes are in a
/// ring all the same, and will not come by the kernel.
pub(crate) fn is_left_in_ring(fd: c_int) -> bool {
    fd_table::socket(fd).is_some_and(|(s, g)| s.is(State::Attached) && reads_ring_first(s, g))
}

/// Somebody is about to read from it past us: where that would miss bytes, or find them twice, the
/// connection is broken off.
pub(crate) fn hand_on(fd: c_int, why: Reason) {
    let has_bytes = |s: &'static Socket, g| {
        hold_rx(s, g).is_ok_and(|mut h| {
            h.end.switch.outstanding() > 0 || h.unread().is_ok_and(|unread| unread > 0)
        })
    };
    if let Some((s, g)) = fd_table::socket(fd)
        && s.is(State::Attached)
        && has_bytes(s, g)
    {
        let _ = to_kernel(s, g, fd, why, true);
    }
}

/// A ring of the program's may do anything with any socket from now on: all are the kernel's.
#[cold]
pub(crate) fn lose_sight() {
    if crate::unconnected::refuse_all() {
        return;
    }
    fd_table::for_each(|fd, entry| {
        let theirs = |entry| {
            matches!(
                entry,
                Entry::Socket(..) | Entry::Fresh(_) | Entry::Listener(_) | Entry::Marked(_)
            )
        };
        if theirs(entry) {
            need_kernel_both_ways(fd, Reason::IoUring);
        }
    });
}

/// The descriptor, or another one of the same file, is used from here on by whom nobody sees.
fn leaves_sight(why: Reason) -> bool {
    matches!(
        why,
        Reason::InheritedByExec | Reason::PassedByScmRights | Reason::StdioStream | Reason::IoUring
    )
}
