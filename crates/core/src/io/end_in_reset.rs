//! When the end of this process must not look like the end of the stream: the library's own
//! SO_LINGER, which has the kernel reset the connection. (The application's: `linger.rs`.)

use super::ends::{RxHeld, TxHeld, carrier_unread, hold_rx, hold_tx, load_announce};
use crate::channel::{Channel, quiet};
use crate::socket::{Linger, Socket, flag};
use crate::{carrier, socket, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_proto::switchover::RxState;

/// The kernel resets a connection that is closed with this (tcp(7), RFC 9293 ABORT).
pub(super) const RESET_ON_CLOSE: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

/// What the library's own is for.
#[derive(Clone, Copy)]
pub(super) enum For {
    /// Bytes that were sent, and that the peer may lack.
    Sending,
    /// Bytes that the peer has left in a ring, and that nobody has read ([`hear_left`]).
    Unread,
}

pub(super) fn get(fd: c_int) -> Option<libc::linger> {
    let mut linger = RESET_ON_CLOSE;
    (sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0).then_some(linger)
}

/// The application wants its close to be a reset.
pub(super) fn resets_on_close(h: &TxHeld<'_>, fd: c_int) -> bool {
    let theirs = h.end.linger.as_ref().map(|kept| kept.theirs).or_else(|| get(fd));
    theirs.is_some_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0)
}

pub(super) fn set(fd: c_int, linger: &libc::linger) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger);
}

/// Before a close that nobody waits for: with a time in SO_LINGER it would hold up the helper that
/// makes it.
pub(crate) fn never_linger(fd: c_int) {
    if get(fd).is_some_and(|linger| linger.l_onoff != 0 && linger.l_linger > 0) {
        set(fd, &libc::linger { l_onoff: 0, l_linger: 0 });
    }
}

/// From here on the end of this process must not look like the end of the stream: before a
/// promotion over a path that loses bytes, until everything is the carrier's again (a FIN of the
/// kernel's would overtake what the peer does not have yet); while bytes are sent again; while
/// bytes are unread of which the kernel does not know.
pub(super) fn end_in_reset(h: &mut TxHeld<'_>, fd: c_int, why: For) {
    if h.end.linger.is_none()
        && let Some(theirs) = get(fd)
    {
        set(fd, &RESET_ON_CLOSE);
        h.end.linger = Some(Linger { theirs, sending: false, unread: false });
    }
    if let Some(kept) = h.end.linger.as_mut() {
        *part(kept, why) = true;
    }
}

/// It may, for all that this was for.
pub(super) fn end_as_ever(h: &mut TxHeld<'_>, fd: c_int, why: For) {
    let Some(kept) = h.end.linger.as_mut() else { return };
    *part(kept, why) = false;
    if !kept.sending && !kept.unread {
        set(fd, &kept.theirs);
        h.end.linger = None;
    }
}

fn part(kept: &mut Linger, why: For) -> &mut bool {
    match why {
        For::Sending => &mut kept.sending,
        For::Unread => &mut kept.unread,
    }
}

// ---- bytes unread in a ring that the peer has left ----------------------------------------------

/// The peer of the socket on a slot has left the ring for good, and asks the kernel alone from now
/// on. What this process leaves unread in the ring its kernel has to answer with a reset, whatever
/// ends the process; and the peer is told that it will.
pub(crate) fn hear_left(channel: &Channel, slot: usize) {
    let Some(s) = Socket::on(channel, slot) else { return };
    let g = s.generation16();
    {
        let Ok(mut h) = hold_rx(s, g) else { return };
        if !core::ptr::eq(h.channel, channel) || h.slot != slot {
            return;
        }
        // (What is wrong with it the next receive finds.)
        if h.end.switch.on_announce(load_announce(h.words)) == Ok(true) {
            h.settled(s);
        }
    }
    reset_while_unread(s, g, -1);
    if let Ok(h) = hold_rx(s, g)
        && core::ptr::eq(h.channel, channel)
        && h.slot == slot
    {
        h.words.quiet[quiet::REQUEST].fetch_or(quiet::RESETS, SeqCst);
    }
}

/// Where the sender has left the ring, and bytes are unread there: should this process end like
/// that, its kernel resets the connection, as TCP does, and as the library does in a close. `fd`
/// counts in a forked child.
pub(super) fn reset_while_unread(s: &'static Socket, g: u16, fd: c_int) {
    let (Ok(mut tx), Ok(mut rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return };
    let has_left = matches!(rx.end.switch.state(), RxState::ToCarrier | RxState::ToFastAndBack);
    let fd = if s.is_inherited() { fd } else { s.fd.load(Acquire) };
    if has_left && !rx.end.resets && fd >= 0 && rx.unread().is_ok_and(|n| n > 0) {
        end_in_reset(&mut tx, fd, For::Unread);
        rx.end.resets = true;
    }
}

/// This process closes its last name, and a forked child has the connection, too, of which the
/// peer's word does not find the carrier: for what is unread, whatever the peer does.
pub(super) fn leaves_unread(s: &'static Socket, tx: &mut TxHeld<'_>, fd: c_int) {
    if let Ok(mut rx) = hold_rx(s, s.generation16())
        && !rx.end.resets
        && rx.unread().is_ok_and(|n| n > 0)
    {
        end_in_reset(tx, fd, For::Unread);
        rx.end.resets = true;
    }
}

/// The application has received: if nothing is left of that, the process may end as ever. `fd`
/// counts in a forked child.
#[cold]
pub(super) fn all_is_read(s: &'static Socket, g: u16, fd: c_int) {
    let (Ok(mut tx), Ok(mut rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return };
    if rx.end.resets && !rx.unread().is_ok_and(|n| n > 0) {
        rx.end.resets = false;
        // (In a close, which gives the number away, it sees to that itself.)
        let own = if s.is_inherited() { fd } else { s.fd.load(Acquire) };
        if own >= 0 {
            end_as_ever(&mut tx, own, For::Unread);
        }
    }
}

/// The connection is about to be the kernel's, and perhaps not all has come again over the carrier
/// that was there to be read: notes what the carrier has received when it has.
pub(super) fn note_what_comes(s: &Socket, rx: &RxHeld<'_>, fd: c_int) {
    let due = rx.end.switch.outstanding();
    let there = due == 0 || carrier_unread(fd).is_none_or(|there| there as u64 >= due);
    let until = if there { None } else { socket::carrier_counts(s, fd) };
    s.comes_until.store(until.map_or(0, |(_, read)| read.saturating_add(due)), Relaxed);
}

/// The last name of a connection that is the kernel's is about to be closed. If that has not come
/// yet, the kernel may find nothing unread, and would send a FIN.
#[inline]
pub(super) fn reset_if_more_comes(s: &Socket, fd: c_int) {
    let until = s.comes_until.load(Relaxed);
    if until != 0 {
        reset_before(s, fd, until);
    }
}

#[cold]
#[inline(never)]
fn reset_before(s: &Socket, fd: c_int, until: u64) {
    let connector = s.has(flag::CONNECTOR);
    if carrier::counts(fd, connector).is_some_and(|c| c.received < until) {
        set(fd, &RESET_ON_CLOSE);
    }
}

/// The last name of a connection is about to be closed, by this thread, with nothing unread.
pub(super) fn closes_as_ever(s: &'static Socket, g: u16, fd: c_int) {
    if let Ok(mut tx) = hold_tx(s, g) {
        end_as_ever(&mut tx, fd, For::Unread);
    }
}
