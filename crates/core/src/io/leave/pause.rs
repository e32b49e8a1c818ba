//! Acceleration is off while the program runs (`docs/design/cfg.md`): a connection goes back to its
//! carrier, and comes from there when it is on again.
//!
//! Within the host it stays attached. Its receiver freezes and its sender demotes, as in any leave;
//! then neither is promoted, until [`resume`] has the receiver armed again. Between hosts its slot
//! is given back, and it becomes a candidate.

use super::super::arm_receiver::{arm, is_on, settle_rx};
use super::super::ends::{RxHeld, demote_tx, hold_rx, hold_tx, load_ack};
use super::halves::has_hung_up;
use super::leave_if_due;
use super::within_host::LeaveCall;
use crate::socket::{Event, Socket, State, flag, harmless};
use crate::{socket, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::RxState;

/// Both directions of a connection go to the carrier, as far as they get in that time. The calls
/// that receive do the rest: they hear the peer's answer, and read what lies in the ring.
pub(crate) fn pause(s: &'static Socket, g: u16, fd: c_int, patience_ns: u64) {
    loop {
        match s.state.now() {
            _ if s.generation16() != g => return,
            State::Attached => break,
            State::Candidate if with_candidate(s, Socket::waits_while_off) => return,
            State::Candidate => {}
            State::Changing if socket::await_change(s) => {}
            _ => return,
        }
    }
    if s.has(flag::LEAVING) {
        // For good, and for a reason of its own.
        return leave_if_due(s, g, fd);
    }
    harmless::write_back(s, fd);
    // (Of a direction that is on TCP for life the reason is another one.)
    let never =
        hold_rx(s, g).is_ok_and(|rx| rx.end.never) || hold_tx(s, g).is_ok_and(|tx| tx.end.never);
    if !never {
        s.set_reason(Reason::DisabledByConfig);
    }
    if s.path().leaves_by_agent() {
        return leave_for_now(s, patience_ns);
    }
    if has_hung_up(fd) {
        // Nothing more comes, and the kernel would answer what comes again with a reset where this
        // end has shut its receiving side down: what is in the ring is read there.
        pause_sender(s, g);
    } else {
        let mut way = LeaveCall::new(s, g, fd, patience_ns, false);
        (way.coming_ns, way.pauses) = (patience_ns, true);
        let _ = way.go();
    }
    tell_peer(s, g);
    wait::prod(s);
}

fn pause_sender(s: &'static Socket, g: u16) {
    if let Ok(mut tx) = hold_tx(s, g) {
        tx.end.paused = true;
        demote_tx(s, &mut tx, false);
    }
}

/// With a candidate that nobody attaches, closes or gives up meanwhile. False: it is none by now.
fn with_candidate(s: &Socket, f: impl FnOnce(&Socket)) -> bool {
    let is_one = s.state.change(State::Candidate, Event::Claimed);
    if is_one {
        f(s);
        s.state.happens(Event::Begun);
    }
    is_one
}

/// Its peer may wait for it with nothing in a ring, and is told then, too.
fn tell_peer(s: &'static Socket, g: u16) {
    // (Unless it is on again, and a call of the program's has armed the end.)
    if let Ok(h) = hold_rx(s, g)
        && h.end.paused
    {
        socket::say_stays(h.channel, h.slot);
    }
}

/// Any other reason than `from` is as true as it was.
fn change_reason(s: &Socket, from: &[Reason], to: Reason) {
    let now = s.record().map(|r| r.reason.load(Relaxed));
    if now.is_some_and(|now| from.iter().any(|from| *from as u32 == now)) {
        s.set_reason(to);
    }
}

/// The agent's thread does it.
fn leave_for_now(s: &'static Socket, patience_ns: u64) {
    let Some(channel) = s.channel() else { return };
    channel.far.demote(s.slot.load(Relaxed) as usize, Reason::DisabledByConfig, true);
    let until = sys::now_ns().saturating_add(patience_ns);
    let (word, attached) = s.state.word(State::Attached);
    loop {
        let left = until.saturating_sub(sys::now_ns());
        if left == 0 || !s.is(State::Attached) {
            return;
        }
        sys::futex_wait(word, attached, left.min(10_000_000) as i64, false);
    }
}

/// Acceleration is on again: both directions may be promoted, as soon as they can.
pub(crate) fn resume(s: &'static Socket, g: u16) {
    let was_off = [Reason::DisabledByConfig];
    if s.generation16() == g && with_candidate(s, Socket::waits_no_more) {
        return;
    }
    let mut peer_wants = true;
    if let Ok(tx) = hold_tx(s, g) {
        tx.end.paused = false;
        peer_wants = load_ack(tx.words).armed;
    }
    if let Ok(mut rx) = hold_rx(s, g)
        && rx.end.paused
        && !rx.end.never
    {
        // (The peer's may be off as well.)
        let to_come = if peer_wants { Reason::Agreed } else { Reason::PeerAskedForTcp };
        change_reason(s, &was_off, to_come);
        resume_receiver(s, &mut rx);
    }
}

/// A receiver that was not on the carrier yet when acceleration was turned on again.
#[cold]
#[inline(never)]
pub(in crate::io) fn resume_if_on(s: &Socket, h: &mut RxHeld<'_>) {
    if is_on(s) {
        resume_receiver(s, h);
    }
}

/// One that waits for the peer's answer, or for what comes again, is armed behind that.
fn resume_receiver(s: &Socket, h: &mut RxHeld<'_>) {
    if h.end.unsettled || h.end.never {
        h.end.paused = false;
        return settle_rx(s, h);
    }
    if h.end.switch.state() == RxState::Open && h.skip(u64::MAX).is_err() {
        return;
    }
    socket::comes(h.channel, h.slot);
    if arm(h) {
        (h.end.paused, h.end.asked_back) = (false, false);
    }
}
