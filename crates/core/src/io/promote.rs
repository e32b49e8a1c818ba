//! From which byte on a direction is sent over the ring, and from which over the carrier again.

use super::SEND_FLAGS;
use super::arm_receiver::is_on;
use super::end_in_reset::{For, end_as_ever, end_in_reset};
use super::ends::{TxHeld, demote_tx, hold_tx, load_ack, publish_announce, show_path};
use super::held_back::waits_for_more;
use super::reset::is_reset;
use super::reset::peer_has_ended;
use crate::channel::quiet;
use crate::socket::{Socket, flag};
use crate::{sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use netacc_proto::switchover::{Delivery, Path as Way, TxState};

/// Whether the peer has closed, or is about to. Then the kernel has to answer the send: with EPIPE,
/// with ECONNRESET, or by carrying the bytes to a peer that has closed its sending half alone, and
/// could not say so. A peer that has said so ([`quiet::HALF`]) is not going.
pub(super) fn peer_is_going(s: &Socket, h: &TxHeld<'_>, fd: c_int) -> bool {
    if h.channel.peer_ends(h.slot)
        || h.words.quiet[quiet::REQUEST].load(Relaxed) & quiet::CLOSED != 0
    {
        return true;
    }
    if !s.has(flag::CARRIER_SPOKE) {
        return false;
    }
    if is_reset(s, fd) {
        return true;
    }
    if h.channel.peer_half_closed(h.slot) {
        return sys::poll_now(fd, 0) & (libc::POLLHUP | libc::POLLERR) != 0;
    }
    if peer_has_ended(s, fd) {
        return true;
    }
    // It said something else: the receiving side's business, who asks again when its ring is empty.
    if sys::poll_now(fd, libc::POLLIN | libc::POLLPRI) == 0 {
        s.lower(flag::CARRIER_SPOKE);
    }
    false
}

/// The carrier's send buffer has grown: who waits for room in a ring finds it there. (Not between
/// hosts, where the peer is asked first.)
pub(crate) fn on_more_room(s: &'static Socket, g: u16) {
    if s.is_inherited() {
        return;
    }
    if let Ok(mut h) = hold_tx(s, g)
        && h.channel.far.is_shared()
        && h.end.switch.state() == TxState::Fast
        && !wait::send_room(s, h.channel, h.slot, s.tx_ring_bytes())
    {
        demote_tx(s, &mut h, false);
    }
    wait::prod(s);
}

/// Whether a send finds the carrier open: not while the peer has not heard yet that the stream goes
/// on there, unless the connection is over: then the send says so. (Looks without the lock: what it
/// sees is the last that was announced.) `over`: the kernel says that the carrier has hung up.
pub(crate) fn may_send_on_carrier(s: &Socket, over: bool) -> bool {
    let epoch = s.published.epoch.load(Relaxed);
    if over || s.has(flag::BROKEN_OFF) {
        return true;
    }
    let seen = s.channel().and_then(|c| c.far.seen_epoch(s.slot.load(Relaxed) as usize));
    epoch == 0 || seen.is_none_or(|seen| seen == epoch)
}

/// Whether the peer knows that the stream goes on on the carrier.
pub(super) fn may_use_carrier(h: &TxHeld<'_>) -> bool {
    h.channel.far.seen_epoch(h.slot).is_none_or(|seen| h.end.switch.carrier_is_open(seen))
}

/// Ends the pause of the sending direction if acceleration is on again. Whether there is none now.
fn end_pause_if_on(s: &Socket, h: &mut TxHeld<'_>) -> bool {
    if h.end.paused && is_on(s) {
        h.end.paused = false;
    }
    !h.end.paused
}

/// Moves the sending direction onto the ring if the peer is ready for it.
pub(super) fn promote(s: &Socket, h: &mut TxHeld<'_>, fd: c_int, flags: c_int) -> bool {
    // First: what the peer says of itself it says before it arms.
    let ack = load_ack(h.words);
    if h.end.never || !end_pause_if_on(s, h) || h.end.unsettled {
        return false;
    }
    if !ack.armed {
        s.heeds(h.words.quiet[quiet::REQUEST].load(Relaxed));
        return false;
    }
    if ack.frozen || flags & !SEND_FLAGS != 0 || s.has(flag::SHUT_WR) {
        return false;
    }
    if waits_for_more(s, flags) && unsent(fd) > 0 {
        // What the carrier holds back has to wait, too.
        return false;
    }
    if peer_is_going(s, h, fd) {
        h.end.never = true;
        return false;
    }
    let delivery = h.channel.far.id().traits().delivery;
    let Ok(a) = h.end.switch.promote(ack, delivery) else { return false };
    if delivery == Delivery::Lossy {
        end_in_reset(h, s.fd.load(Acquire), For::Sending);
    }
    publish_announce(h, a);
    fence(SeqCst);
    h.end.ring.continue_at(h.end.switch.offset());
    match h.end.switch.confirm(load_ack(h.words)) {
        Ok(None) => {
            show_path(s, true, Way::Fast, h.end.switch.offset());
            push_carrier(fd);
            true
        }
        Ok(Some(back)) => {
            publish_announce(h, back);
            // (No byte was on the ring.)
            end_as_ever(h, s.fd.load(Acquire), For::Sending);
            false
        }
        Err(_) => false,
    }
}

/// `SIOCOUTQNSD` (linux/sockios.h): what the kernel was given to send and has not sent yet.
const SIOCOUTQNSD: usize = 0x894b;

fn unsent(fd: c_int) -> c_int {
    let mut bytes: c_int = 0;
    if sys::ioctl(fd, SIOCOUTQNSD, &mut bytes as *mut c_int as usize) < 0 { 0 } else { bytes }
}

/// The next byte goes another way, and the kernel must not wait for it with what it holds back: a
/// part of a packet, by Nagle's algorithm, by MSG_MORE, by TCP_CORK. (For want of window, or of
/// congestion window, it waits as ever.)
fn push_carrier(fd: c_int) {
    if unsent(fd) <= 0 {
        return;
    }
    let mut nodelay: c_int = 1;
    let _ = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut nodelay);
    // To set it overrides all three, a cork too, for what is queued, also for what the window does
    // not admit yet, and also when it is taken back (net/ipv4/tcp.c: TCP_NAGLE_PUSH).
    let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
    if nodelay == 0 {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0);
    }
}

/// The application has set TCP_NODELAY, perhaps in the middle of [`push_carrier`] by another
/// thread: once more, behind that.
pub(crate) fn on_nodelay(s: &'static Socket, g: u16, fd: c_int, value: c_int) {
    if let Ok(_held) = hold_tx(s, g) {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &value);
    }
}

/// Changes the path now and then, where the tests have ordered that.
pub(super) fn switch_if_ordered(s: &Socket, h: &mut TxHeld<'_>) {
    let Some(x) = h.end.switches.next() else { return };
    if h.end.switch.state() == TxState::Fast && x.is_multiple_of(16) {
        if s.path().leaves_by_agent() {
            if x.is_multiple_of(1024) {
                h.channel.far.demote(h.slot, s.path().traits().lost, true);
            }
        } else {
            demote_tx(s, h, false);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
