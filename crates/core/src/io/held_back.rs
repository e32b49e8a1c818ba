//! Bytes that wait for more (MSG_MORE, TCP_CORK): written to the ring, and published later.

use super::ends::{TxHeld, demote_tx, hold_tx, publish_held};
use crate::fd_table::{self, Entry};
use crate::socket::{Socket, flag};
use crate::{agent, sys};
use core::ffi::c_int;

/// Bytes are held back for at most so long (tcp(7): TCP_CORK).
const HOLD_NS: u64 = 200_000_000;
/// A full segment of the loopback device is sent, whatever is to follow.
const HOLD_BYTES: usize = 65_483;

/// The application says that more is to follow.
pub(super) fn waits_for_more(s: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_MORE != 0 || s.has(flag::CORKED)
}

/// As `put::sent_fast`, but the peer is not told before more has come, or a time has passed.
/// False: it is to be told now. (That is always so between hosts, where what this process has not
/// handed to the device is lost with it, and without the thread that would tell in time.)
#[cold]
pub(super) fn hold_back(s: &Socket, h: &mut TxHeld<'_>, n: usize, flags: c_int) -> bool {
    let held = h.end.ring.unpublished();
    let is_full = held >= HOLD_BYTES.min(h.end.ring.size() / 4);
    if !waits_for_more(s, flags)
        || is_full
        || !h.channel.far.is_shared()
        || s.is_inherited()
        || !agent::of(s.path()).is_running()
    {
        return false;
    }
    h.end.ring.hold();
    let _ = h.end.switch.on_accepted(n as u64);
    if let Some(r) = s.record() {
        r.add_tx(h.channel.path(), n as u64);
    }
    if held == n {
        h.end.held_since = sys::now_ns();
        s.raise(flag::HOLDS);
        agent::of(s.path()).hold_until(h.end.held_since.saturating_add(HOLD_NS));
    }
    true
}

/// The connection is not corked any more, or what waits is to be pushed.
pub(crate) fn send_held(s: &'static Socket, g: u16) {
    let Ok(mut h) = hold_tx(s, g) else { return };
    if s.is_inherited() && h.end.ring.unpublished() != 0 {
        // As with all that a child sends.
        demote_tx(s, &mut h, true);
    }
    publish_held(&mut h);
}

/// What has been held back for long enough is sent. When the next is due; 0: nothing is held back.
/// Service thread.
pub(crate) fn send_held_in_time() -> u64 {
    let now = sys::now_ns();
    let mut next = 0;
    fd_table::for_each(|_, entry| {
        let Entry::Socket(s, g) = entry else { return };
        if !s.has(flag::HOLDS) || s.is_inherited() {
            return;
        }
        let Ok(mut h) = hold_tx(s, g) else { return };
        let due = h.end.held_since.saturating_add(HOLD_NS);
        if h.end.ring.unpublished() != 0 && due > now {
            next = if next == 0 { due } else { due.min(next) };
            return;
        }
        publish_held(&mut h);
        s.lower(flag::HOLDS);
    });
    next
}
