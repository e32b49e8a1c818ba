//! An end that has an offer, and stays on its carrier: for a while (acceleration is off) or for
//! good. Its peer may be attached alone by then, and would say that both have agreed for as long as
//! it lives: it is told.

use super::{OfferState, Socket, State};
use crate::channel::{Channel, quiet};
use crate::{config, control};
use core::sync::atomic::{Ordering::*, fence};
use netacc_control::stats::Reason;

/// What a connection says that is to be accelerated, and is not yet.
const WAITS: [Reason; 3] = [Reason::NotStarted, Reason::Negotiating, Reason::Agreed];

/// Within the host: says so to the peer, unless that was said. A peer that is not attached yet
/// looks at the word when it is; one that is has a thread that hears of it.
pub(crate) fn say_stays(channel: &Channel, slot: usize) {
    let [.., request] = &channel.words(slot, channel.side ^ 1).quiet;
    if request.fetch_or(quiet::STAYS, SeqCst) & quiet::STAYS == 0 {
        let _ = control::send_pull_back(channel, slot);
    }
}

/// Takes that back.
pub(crate) fn comes(channel: &Channel, slot: usize) {
    let [.., request] = &channel.words(slot, channel.side ^ 1).quiet;
    if request.load(Relaxed) & quiet::STAYS != 0 {
        request.fetch_and(!quiet::STAYS, SeqCst);
    }
}

impl Socket {
    /// The channel and slot of an offer that nobody gives back meanwhile.
    fn offered_on(&self) -> Option<(&'static Channel, usize)> {
        if self.is_inherited() || self.offered.now() != OfferState::Made {
            return None;
        }
        // SAFETY: written before it was made.
        let offer = unsafe { *self.offer.get() };
        // SAFETY: the agent's channel lives while `users` counts this socket.
        Some((unsafe { &*offer.channel }, offer.slot as usize))
    }

    /// It has become plain, with an offer that it has not given back yet.
    pub(crate) fn leaves_offer(&self) {
        if let Some((channel, slot)) = self.offered_on().filter(|on| on.0.far.is_shared()) {
            say_stays(channel, slot);
        }
    }

    /// Acceleration is off: of a candidate.
    pub(crate) fn waits_while_off(&self) {
        self.change_reason(&WAITS, Reason::DisabledByConfig);
        match self.offered_on() {
            None => {}
            Some((channel, slot)) if channel.far.is_shared() => say_stays(channel, slot),
            // The agent's thread takes it back, at both ends.
            Some((channel, slot)) => channel.far.demote(slot, Reason::DisabledByConfig, true),
        }
    }

    /// An agent has made an offer. Whoever turns acceleration off has it off first, and looks for
    /// offers then: one of both sees the other.
    pub(crate) fn is_offered(&self) {
        fence(SeqCst);
        if !config::get().accelerate_by_default {
            self.waits_while_off();
        }
    }

    /// Acceleration is on again: of a candidate.
    pub(crate) fn waits_no_more(&self) {
        let why = match self.offered_on() {
            Some((channel, slot)) => {
                comes(channel, slot);
                Reason::Agreed
            }
            None if self.is_new() => Reason::NotStarted,
            None => Reason::Negotiating,
        };
        self.change_reason(&[Reason::DisabledByConfig], why);
    }

    /// The peer's end stays on its carrier, by that word of its: nothing comes of what both have
    /// agreed on, for as long as that is so.
    pub(crate) fn heeds(&self, request: u64) {
        if request & (quiet::STAYS | quiet::CLOSED) != 0 && self.is(State::Attached) {
            self.change_reason(&[Reason::Agreed], Reason::PeerAskedForTcp);
        }
    }
}
