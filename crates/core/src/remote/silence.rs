//! A host that has vanished, seen by connections that need it: they are on their way back to their
//! carriers, and cannot get there without a word of the peer's, while its link is broken.
//!
//! The kernel does not end them. What the application has sent is in a ring, so its carrier is
//! idle, and an idle TCP connection waits for ever. So this end has TCP's patience for it: the
//! carrier's TCP_USER_TIMEOUT, or as long as the kernel sends again by default. Then the connection
//! fails as TCP's would, with ETIMEDOUT.

use super::Remote;
use crate::channel::{Channel, announce};
use crate::log::debug_log;
use crate::socket::{Socket, State, flag};
use crate::wire::{Wire, parting};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

/// What `tcp_retries2` comes to as the kernel has it (15).
pub(super) const PATIENCE_NS: u64 = 925_000_000_000;

/// And the least: a host that is there has answered by then (the link is tried every five seconds).
const LEAST_NS: u64 = 10_000_000_000;

/// Something is to reach the peer that may not have: bytes, an end, or where the stream goes on.
fn awaits_peer(channel: &Channel, wire: &Wire, slot: usize, s: &Socket) -> bool {
    let words = channel.words(slot, channel.side);
    let said = words.producer_user[announce::EPOCH].load(Acquire) as u32;
    s.is(State::Attached)
        && (words.tail.load(Acquire) != words.head.load(Acquire)
            || said != wire.slot(slot).seen_epoch.load(Acquire)
            || s.has(flag::SHUT_WR | flag::ORPHAN))
}

impl Remote {
    /// While a link is broken: those that have waited long enough are given up.
    pub(super) fn time_out_unheard(&mut self, i: usize, now: u64) {
        let Some(l) = self.link(i) else { return };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return };
        // (A host that answers is there; its process may be stopped. TCP would wait.)
        let heard_at = if l.is_at_its_door() { now } else { l.answered_at };
        let (serial, silent_since) = (l.serial, l.broken_at.max(heard_at));
        let mut late = Vec::new();
        for x in self.leaving.iter_mut().filter(|x| x.link == i && x.serial == serial) {
            if !awaits_peer(channel, wire, x.slot, x.departure.socket()) {
                x.unheard_since = 0;
                continue;
            }
            if x.unheard_since == 0 {
                x.unheard_since = now;
            }
            let patience = x.departure.user_timeout_ns().unwrap_or(PATIENCE_NS).max(LEAST_NS);
            if now.saturating_sub(x.unheard_since.max(silent_since)) > patience {
                x.departure.times_out();
                late.push(x.slot);
            }
        }
        for slot in late {
            debug_log!("slot {slot}: nothing is heard of the peer's host");
            wire.slot(slot).leave.fetch_or(parting::GONE, SeqCst);
            self.step(i, slot);
        }
    }
}
