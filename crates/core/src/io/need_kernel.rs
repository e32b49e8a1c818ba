//! A descriptor is used in a way that only the kernel can serve.

use super::ends::{hold_rx, hold_tx, reads_ring_first};
use super::kept::give_up_listener;
use super::leave::{
    AT_LEAST_NS, LONGEST_NS, NOTHING_COMES_NS, SendBuffer, begin_way_back, break_off, to_kernel,
    to_kernel_to_send, to_kernel_unless,
};
use super::waits::renew;
use crate::fd_table::Entry;
use crate::sets::sets;
use crate::socket::{Named, Socket, State, flag};
use crate::{adoption, carrier, fast_connect, fd_table, process, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::TxState;

/// A descriptor is used in a way that only the kernel can serve, for good: see
/// [`crate::api::need_kernel`].
pub(crate) fn need_kernel(fd: c_int, why: Reason) {
    // Where somebody is about to read who cannot read a ring.
    let strict = leaves_sight(why) && why != Reason::IoUring;
    give_to_kernel(fd, why, |s, g| _ = to_kernel(s, g, fd, why, strict));
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
        await_sent_again(Named { s, g, fd }, why, since);
    }
}

/// The same where somebody only sends past us: what is unread in a ring is received by ordinary
/// calls.
pub(crate) fn need_kernel_to_send(fd: c_int, why: Reason) {
    let since = sys::now_ns();
    give_to_kernel(fd, why, |s, g| {
        if s.is(State::Attached) && s.path().leaves_by_agent() {
            to_kernel_to_send(Named { s, g, fd }, why, since);
        } else if !to_kernel(s, g, fd, why, false) {
            await_sent_again(Named { s, g, fd }, why, since);
        }
    });
}

/// Within the host: what goes again over the carrier comes before any byte that somebody sends past
/// us. Nobody may be reading meanwhile, so it gets room; and where nothing comes of it for as long
/// as a strict way back waits, the connection is broken off.
fn await_sent_again(Named { s, g, mut fd }: Named, why: Reason, since: u64) {
    let patience = sys::now_ns().saturating_add(AT_LEAST_NS);
    let (mut at, mut changed) = (u64::MAX, since);
    let mut grown: Option<SendBuffer> = None;
    while s.is(State::Attached) && s.generation16() == g {
        {
            let Ok(tx) = hold_tx(s, g) else { break };
            renew(s, &mut fd);
            let is_over = s.has(flag::BROKEN_OFF | flag::CORRUPT | flag::RESET);
            if is_over || tx.end.switch.state() != TxState::Resending {
                break;
            }
            let now = sys::now_ns();
            let left = tx.end.switch.resend();
            let before = core::mem::replace(&mut at, left.start);
            if before != left.start && before != u64::MAX {
                changed = now;
            }
            let late = now.saturating_sub(changed) > NOTHING_COMES_NS
                || now.saturating_sub(since) > LONGEST_NS;
            if late && now > patience {
                // (Under the lock: who closes takes it before it gives the number away.)
                break_off(s, fd);
                break;
            }
            if grown.is_none() {
                grown = SendBuffer::grown(fd, left.end.saturating_sub(left.start));
            }
        }
        let _ = to_kernel(s, g, fd, why, false);
        sys::pause_ns(20_000);
    }
    if let Some(grown) = grown {
        grown.put_back([fd, s.fd.load(Acquire)]);
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
    if leaves_sight(why) {
        // A close here may not be the last one: what still comes is somebody else's to read.
        s.comes_until.store(0, Relaxed);
    }
}

/// Of a descriptor that the kernel is to serve for good ([`need_kernel`]) the next bytes are in a
/// ring all the same, and will not come by the kernel.
pub(crate) fn is_left_in_ring(fd: c_int) -> bool {
    fd_table::socket(fd).is_some_and(|(s, g)| s.is(State::Attached) && reads_ring_first(s, g))
}

/// Somebody is about to read from it past us: where that would miss bytes, or find them twice, the
/// connection is broken off. True: they are in a ring, their sender has left it or ended meanwhile,
/// and the caller `can_read` them there.
pub(crate) fn hand_on(fd: c_int, why: Reason, can_read: impl Fn() -> bool) -> bool {
    let has_bytes = |s: &'static Socket, g| {
        hold_rx(s, g).is_ok_and(|mut h| h.end.switch.wants_pull_back() || h.leaves_unread())
    };
    let Some((s, g)) = fd_table::socket(fd) else { return false };
    if !s.is(State::Attached) || !has_bytes(s, g) {
        return false;
    }
    let can_read = || reads_ring_first(s, g) && can_read();
    let is_kernels = to_kernel_unless(Named { s, g, fd }, why, true, &can_read);
    !is_kernels && !s.has(flag::BROKEN_OFF) && s.is(State::Attached) && can_read()
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
