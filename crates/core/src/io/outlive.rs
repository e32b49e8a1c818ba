//! A connection between hosts that outlives its last descriptor, or its process's wish to end:
//! bytes are in the ring that the peer does not have, or nobody knows whether it does.

use super::end_in_reset::{For, RESET_ON_CLOSE, end_as_ever};
use super::ends::{TxHeld, hold_rx, hold_tx};
use super::promote::may_use_carrier;
use super::reset::carrier_is_reset;
use crate::socket::{Socket, State, flag};
use crate::{numbers, socket, sys};
use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::TxState;

/// The last descriptor is closed, but bytes are in the ring that the peer does not have, or nobody
/// knows whether it does: true, and the carrier lives on until they have gone over it.
pub(super) fn outlives_close(s: &'static Socket, h: &mut TxHeld<'_>, fd: c_int) -> bool {
    if h.channel.far.is_gone(h.slot) {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        return false;
    }
    if is_clean(h) {
        end_as_ever(h, fd, For::Sending);
        return false;
    }
    // (A FIN alone is a shutdown's: its peer goes on receiving. Of one whose process is gone the
    // link tells.)
    if carrier_is_reset(s) {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        return false;
    }
    leaves_behind(s, h, fd, Reason::Disconnected)
}

/// How long a close waits for a peer on another host, which answers in some microseconds: TCP keeps
/// the promise of a close also when the process is killed right after it. This does the same if the
/// peer has answered.
const CLOSE_NS: u64 = 3_000_000;

/// A peer that did not answer is not waited for again so soon.
const SLOW_NS: u64 = 1_000_000_000;

/// And all closes together wait for no more than [`CLOSE_NS`] in so long: an event loop may close
/// many.
const WINDOW_NS: u64 = 100_000_000;

/// The last descriptor is closed, and bytes go over the carrier: gives that a moment.
pub(crate) fn await_peer(s: &'static Socket, g: u16) {
    static SLOW_AT: AtomicU64 = AtomicU64::new(0);
    /// When the present window began, and the waiting in it. (Threads that race here wait once
    /// more, at most.)
    static WINDOW: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));
    let now = sys::now_ns();
    if now.saturating_sub(WINDOW.0.load(Relaxed)) > WINDOW_NS {
        WINDOW.0.store(now, Relaxed);
        WINDOW.1.store(0, Relaxed);
    }
    let budget = CLOSE_NS.saturating_sub(WINDOW.1.load(Relaxed));
    let wanted = budget > 0 && now.saturating_sub(SLOW_AT.load(Relaxed)) > SLOW_NS;
    if !wanted || !s.path().leaves_by_agent() {
        return;
    }
    loop {
        if s.generation16() != g || !s.is(State::Attached) {
            break;
        }
        let left = (now + budget).saturating_sub(sys::now_ns());
        if left == 0 {
            if budget == CLOSE_NS {
                SLOW_AT.store(now, Relaxed);
            }
            break;
        }
        let (word, attached) = s.state.word(State::Attached);
        sys::futex_wait(word, attached, left as i64, false);
    }
    WINDOW.1.fetch_add(sys::now_ns().saturating_sub(now), Relaxed);
}

/// This process's last descriptor is closed, and a forked child goes on: what is in the rings it
/// gets over the carrier, from here.
pub(super) fn outlives_for_child(s: &'static Socket, h: &TxHeld<'_>, fd: c_int) -> bool {
    s.path().leaves_by_agent()
        && !h.channel.far.is_gone(h.slot)
        && leaves_behind(s, h, fd, Reason::InheritedByFork)
}

/// The carrier lives on under a name of the library's own until both directions are back on it.
/// False: there is no descriptor for that.
fn leaves_behind(s: &'static Socket, h: &TxHeld<'_>, fd: c_int, why: Reason) -> bool {
    let own = numbers::copy(fd);
    if own < 0 {
        return false;
    }
    s.waiters.fetch_add(1, SeqCst);
    socket::orphan(s, own, flag::CLOSE_LATER);
    h.channel.far.demote(h.slot, why, false);
    true
}

/// The sender stands on the carrier, and the peer knows.
pub(super) fn is_clean(h: &TxHeld<'_>) -> bool {
    matches!(h.end.switch.state(), TxState::Carrier | TxState::Shut) && may_use_carrier(h)
}

/// The process ends, or becomes another program: what the peer does not have goes over the carrier.
/// True: there is something.
pub(crate) fn begin_exit(s: &'static Socket) -> bool {
    let attaches = s.is(State::Candidate) || s.is(State::Changing);
    if !(s.is(State::Attached) || attaches) || s.is_inherited() || !s.path().leaves_by_agent() {
        return false;
    }
    // Never for long: another thread may hold an end for ever. (It may be about to attach the
    // connection; none begins to any more.)
    for _ in 0..200 {
        if s.rx_lock.owner() == 0 && s.tx_lock.owner() == 0 {
            break;
        }
        sys::sched_yield();
    }
    if !s.is(State::Attached) {
        return false;
    }
    if s.rx_lock.owner() != 0 || s.tx_lock.owner() != 0 {
        // What it has sent before the call that it is in has to arrive as well.
        let Some(channel) = s.channel() else { return false };
        channel.far.demote(s.slot.load(Relaxed) as usize, Reason::Disconnected, false);
        return true;
    }
    // A forked child may go on with it, and only this process can give it what is in the ring. And
    // a peer whose sender is on the ring is to hear that all of it has been read. (With bytes
    // unread the end is a reset, and waits for nobody; of a carrier that was reset nobody hears.)
    let shared = s.names() > 1;
    let tells = !carrier_is_reset(s);
    let on_ring = hold_rx(s, s.generation16()).is_ok_and(|mut h| {
        !h.end.switch.is_released() && (shared || (tells && h.unread().is_ok_and(|n| n == 0)))
    });
    if let Ok(h) = hold_tx(s, s.generation16())
        && (on_ring || !is_clean(&h))
    {
        h.channel.far.demote(h.slot, Reason::Disconnected, false);
        return true;
    }
    false
}
