//! Acceleration is off while the program runs (`docs/design/cfg.md`): a connection goes back to its
//! carrier, and comes from there when it is on again.
//!
//! Within the host it stays attached. Its receiver freezes and its sender demotes, as in any leave;
//! then neither is promoted, until [`resume`] has the receiver armed again. Between hosts its slot
//! is given back, and it becomes a candidate.

use super::super::arm::{arm, settle_rx};
use super::super::ends::{RxHeld, hold_rx, hold_tx};
use super::LeaveCall;
use crate::socket::{Socket, State, harmless};
use crate::{config, socket, sys, wait};
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
            State::Candidate => return s.set_reason(Reason::DisabledByConfig),
            State::Changing if socket::await_change(s) => {}
            _ => return,
        }
    }
    harmless::settle(s, fd);
    s.set_reason(Reason::DisabledByConfig);
    if s.path().leaves_by_agent() {
        return leave_for_now(s, patience_ns);
    }
    let mut way = LeaveCall::new(s, g, fd, patience_ns, false);
    (way.coming_ns, way.pauses) = (patience_ns, true);
    let _ = way.go();
    wait::prod(s);
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
    if s.generation16() == g && s.is(State::Candidate) {
        return s.set_reason(if s.is_new() { Reason::NotStarted } else { Reason::Negotiating });
    }
    if let Ok(tx) = hold_tx(s, g) {
        tx.end.paused = false;
    }
    if let Ok(mut rx) = hold_rx(s, g)
        && rx.end.paused
    {
        s.set_reason(Reason::Negotiating);
        resume_receiver(s, &mut rx);
    }
}

/// A receiver that was not on the carrier yet when acceleration was turned on again.
#[cold]
#[inline(never)]
pub(in crate::io) fn resume_if_on(s: &Socket, h: &mut RxHeld<'_>) {
    // (A forked child has a switch of its own.)
    if config::get().accelerate_by_default && !s.is_inherited() {
        resume_receiver(s, h);
    }
}

/// One that waits for the peer's answer, or for what comes again, is armed behind that.
fn resume_receiver(s: &Socket, h: &mut RxHeld<'_>) {
    if h.end.unsettled {
        h.end.paused = false;
        return settle_rx(s, h);
    }
    if h.end.switch.state() == RxState::Open && h.skip(u64::MAX).is_err() {
        return;
    }
    if arm(h) {
        (h.end.paused, h.end.asked_back) = (false, false);
    }
}
