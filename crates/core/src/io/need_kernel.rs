//! A descriptor is used in a way that only the kernel can serve.

use super::ends::{hold_rx, hold_tx, reads_ring_first};
use super::kept::give_up_listener;
use super::leave::{
    LONGEST_NS, NOTHING_COMES_NS, begin_way_back, break_off, to_kernel, to_kernel_to_send,
};
use crate::fd_table::Entry;
use crate::sets::sets;
use crate::socket::{Named, Socket, State, flag};
use crate::{adoption, carrier, fast_connect, fd_table, process, sys};
use core::ffi::c_int;
use netacc_control::stats::Reason;
use netacc_proto::switchover::{Tx, TxState};

/// A descriptor is used in a way that only the kernel can serve, for good: see
/// [`crate::api::need_kernel`].
pub(crate) fn need_kernel(fd: c_int, why: Reason) {
    // Where somebody is about to read who cannot read a ring.
    let strict = leaves_sight(why) && why != Reason::IoUring;
    give_to_kernel(fd, why, |s, g| {
        if strict {
            to_kernel_to_receive(s, g, fd, why);
        } else {
            let _ = to_kernel(s, g, fd, why, false);
        }
    });
}

/// The same where somebody may send past us, too.
pub(crate) fn need_kernel_both_ways(fd: c_int, why: Reason) {
    let since = sys::now_ns();
    give_to_kernel(fd, why, |s, g| both_ways(Named { s, g, fd }, why, since));
}

/// `since`: when its way back began, or will have.
fn both_ways(Named { s, g, fd }: Named, why: Reason, since: u64) {
    if to_kernel(s, g, fd, why, false) || !s.is(State::Attached) {
        return;
    }
    if s.path().leaves_by_agent() {
        to_kernel_to_send(Named { s, g, fd }, why, since);
    } else {
        await_sent_again(Named { s, g, fd }, why);
    }
}

/// The same where somebody only sends past us: what is unread in a ring is received by ordinary
/// calls.
pub(crate) fn need_kernel_to_send(fd: c_int, why: Reason) {
    give_to_kernel(fd, why, |s, g| {
        if s.is(State::Attached) && s.path().leaves_by_agent() {
            to_kernel_to_send(Named { s, g, fd }, why, sys::now_ns());
        } else if !to_kernel(s, g, fd, why, false) {
            await_sent_again(Named { s, g, fd }, why);
        }
    });
}

/// Within the host: what goes again over the carrier comes before any byte that somebody sends past
/// us.
fn await_sent_again(on: Named, why: Reason) {
    let is_resending = |tx: &Tx| tx.state() == TxState::Resending;
    let left = |s, g| hold_tx(s, g).ok().map(|h| h.end.switch).filter(is_resending);
    until(on, why, |s, g| left(s, g).map(|tx| tx.resend().start));
}

/// Who reads past us finds nothing that comes by a ring. Within the host a receiver that has
/// frozen, and has no answer, may still get bytes there.
fn to_kernel_to_receive(s: &'static Socket, g: u16, fd: c_int, why: Reason) {
    if to_kernel(s, g, fd, why, true) || s.path().leaves_by_agent() {
        return;
    }
    let waits = |s, g| hold_rx(s, g).ok().filter(|h| h.end.switch.wants_pull_back()).map(|_| 0);
    until(Named { s, g, fd }, why, waits);
}

/// Takes a connection back until nothing is missing any more: `missing` says how far that has come.
/// Where nothing comes of it for as long as a strict way back waits, it is broken off.
fn until(
    Named { s, g, fd }: Named,
    why: Reason,
    missing: impl Fn(&'static Socket, u16) -> Option<u64>,
) {
    let began = sys::now_ns();
    let (mut at, mut since) = (None, began);
    while s.is(State::Attached)
        && s.generation16() == g
        && !s.has(flag::BROKEN_OFF | flag::CORRUPT | flag::RESET)
    {
        let Some(left) = missing(s, g) else { return };
        let now = sys::now_ns();
        if at.replace(left) != Some(left) {
            since = now;
        }
        if now.saturating_sub(since) > NOTHING_COMES_NS || now.saturating_sub(began) > LONGEST_NS {
            return break_off(s, fd);
        }
        let _ = to_kernel(s, g, fd, why, false);
        sys::pause_ns(20_000);
    }
}

/// A connection has got the number `fd`. It may be 0, 1 or 2, which libc's streams read and write
/// past us.
pub(crate) fn off_stdio(fd: c_int) {
    let is_stdio = (0..=2).contains(&fd);
    if is_stdio && fd_table::socket(fd).is_some() && !adoption::stdio::onto(fd) {
        need_kernel(fd, Reason::StdioStream);
    }
}

/// Whether that connection, which the table has under `fd`, is there in this process: a child that
/// shares this memory has numbers of its own, and may have put another file there. (Of one that was
/// not looked up nothing is done to the descriptor.)
pub(crate) fn is_here(fd: c_int, s: &Socket) -> bool {
    let Some(tuple) = s.known_tuple().filter(|_| process::in_vfork_child()) else { return true };
    match carrier::tuple_of(fd) {
        Some(there) => there == tuple,
        // (A connection that was reset has no addresses.)
        None => carrier::is_closed(fd),
    }
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
    if !is_here(fd, s) {
        return;
    }
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
        hold_rx(s, g).is_ok_and(|mut h| h.end.switch.wants_pull_back() || h.leaves_unread())
    };
    if let Some((s, g)) = fd_table::socket(fd)
        && s.is(State::Attached)
        && has_bytes(s, g)
    {
        to_kernel_to_receive(s, g, fd, why);
    }
}

/// A ring of the program's may do anything with any socket from now on: all are the kernel's. (They
/// are asked for together, and one clock runs for all whose peers do not answer.)
#[cold]
pub(crate) fn lose_sight() {
    if crate::unconnected::refuse_all() {
        return;
    }
    let since = sys::now_ns();
    fd_table::for_each(|_, entry| {
        if let Entry::Socket(s, g) = entry {
            begin_way_back(s, g, Reason::IoUring);
        }
    });
    fd_table::for_each(|fd, entry| {
        let theirs = |entry| {
            matches!(
                entry,
                Entry::Socket(..) | Entry::Fresh(_) | Entry::Listener(_) | Entry::Marked(_)
            )
        };
        if theirs(entry) {
            let why = Reason::IoUring;
            give_to_kernel(fd, why, |s, g| both_ways(Named { s, g, fd }, why, since));
        }
    });
}

/// The descriptor, or another one of the same file, is used from here on by whom nobody sees.
fn leaves_sight(why: Reason) -> bool {
    matches!(
        why,
        Reason::InheritedByExec
            | Reason::PassedByScmRights
            | Reason::StdioStream
            | Reason::IoUring
            | Reason::NoRecord
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
