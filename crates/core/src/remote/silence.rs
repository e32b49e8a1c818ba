//! A host that has vanished.
//!
//! First, seen by a link on which something is under way. The kernel would send it again for a
//! quarter of an hour; TCP_USER_TIMEOUT would also end a link whose peer has no room for it,
//! because its process is stopped. So this end looks whether the peer's kernel has acknowledged
//! anything, old or new.
//!
//! Then by connections that need it: they are on their way back to their carriers, and cannot get
//! there without a word of the peer's, while its link is broken.
//!
//! The kernel does not end them. What the application has sent is in a ring, so its carrier is
//! idle, and an idle TCP connection waits for ever. So this end has TCP's patience for it: the
//! carrier's TCP_USER_TIMEOUT, or as long as the kernel sends again by default. Then the connection
//! fails as TCP's would, with ETIMEDOUT.

use super::Remote;
use super::link::{Fault, Link};
use super::pair::PairState;
use super::probes::{Probes, Quiet};
use crate::channel::{Channel, announce};
use crate::log::debug_log;
use crate::slots::parting;
use crate::socket::{Socket, State, flag};
use crate::wire::Wire;
use crate::{carrier, io, sys};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

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
    /// Something was written to a link.
    pub(super) fn listen_for_answer(&mut self, i: usize) {
        let Some(l) = self.link_mut(i).filter(|l| l.is_up()) else { return };
        if l.unheard.look_at == 0 && l.unheard.begin(sys::now_ns()) {
            let at = l.unheard.look_at;
            self.at(at);
        }
    }

    /// A link that is up: whether its peer's kernel still hears what is said.
    pub(super) fn time_unheard(&mut self, i: usize, now: u64) {
        let Some(l) = self.link_mut(i) else { return };
        if l.unheard.look_at != 0 && l.unheard.look_at <= now {
            let is_under_way = !l.output.is_empty() || carrier::is_under_way(l.fd);
            let heard_at = now.saturating_sub(carrier::unanswered_ns(l.fd));
            if l.unheard.is_silent(now, is_under_way, heard_at) {
                return self.on_link_fault(i, Fault::Ended);
            }
        }
        let at = l.unheard.look_at;
        if at != 0 {
            self.at(at);
        }
    }

    /// While a link is broken: those that have waited long enough are given up.
    pub(super) fn time_out_unheard(&mut self, i: usize, now: u64) {
        let Some(l) = self.link(i) else { return };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return };
        // (A host that answers is there; its process may be stopped. TCP would wait.)
        let heard_at = if l.is_at_its_door() { now } else { l.answered_at };
        let (serial, silent_since) = (l.serial, l.broken_at.max(heard_at));
        let answers = l.is_at_its_door();
        let mut late = Vec::new();
        for x in self.leaving.iter_mut().filter(|x| x.link == i && x.serial == serial) {
            if !awaits_peer(channel, wire, x.slot, x.departure.socket()) {
                x.unheard_since = 0;
                x.probes = Probes::default();
                continue;
            }
            if !answers {
                x.probes.ask(now, x.departure.socket());
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

    /// While a link is broken, and nobody answers where it led: pairs on which nothing arrives, of
    /// hosts that do not answer on a carrier either, are lost.
    pub(super) fn lose_silent_pairs(&mut self, i: usize, now: u64) {
        if self.link(i).is_some_and(Link::is_at_its_door) {
            return self.stop_probes(i);
        }
        let Some(l) = self.link_mut(i) else { return };
        let mut lost = Vec::new();
        for p in l.pairs.iter_mut().filter(|p| p.state == PairState::Ready) {
            let Some(engine) = p.engine.as_ref() else { continue };
            let since = p.quiet.since(now, engine.sent(), engine.granted());
            let first =
                p.places.slots().find(|slot| l.conns.get(*slot).is_some_and(|c| c.is_carried()));
            let of = |slot: Option<usize>| l.conns.get(slot?).filter(|c| c.is_carried())?.socket;
            let asked = of(p.quiet.slot);
            if since == 0 {
                continue;
            }
            if asked.is_none() {
                (p.quiet.probes, p.quiet.slot) = (Probes::default(), first);
            }
            let Some(s) = of(p.quiet.slot) else { continue };
            p.quiet.probes.ask(now, s);
            if p.quiet.probes.are_in_vain() || io::carrier_is_reset(s) {
                lost.push(p.number);
            }
        }
        for number in lost {
            debug_log!("pair {number}: nothing arrives, and nobody answers on TCP");
            self.lose_pair(i, number, Reason::RdmaLost, false);
        }
    }

    /// While the link is tried to resume, which may take longer than a probe.
    pub(super) fn end_probes_in_time(&mut self, i: usize, now: u64) {
        let Some(l) = self.link_mut(i) else { return };
        let serial = l.serial;
        let of_pairs = l.pairs.iter_mut().filter_map(|p| p.quiet.probes.end_in_time(now)).min();
        let leaving = self.leaving.iter_mut().filter(|x| x.link == i && x.serial == serial);
        let next = leaving.filter_map(|x| x.probes.end_in_time(now)).chain(of_pairs).min();
        if let Some(at) = next {
            self.at(at);
        }
    }

    /// The link is up again, or over, or its host answers.
    pub(super) fn stop_probes(&mut self, i: usize) {
        let Some(l) = self.link_mut(i) else { return };
        for p in l.pairs.iter_mut() {
            p.quiet = Quiet::default();
        }
        let serial = l.serial;
        for x in self.leaving.iter_mut().filter(|x| x.link == i && x.serial == serial) {
            x.probes = Probes::default();
        }
    }
}
