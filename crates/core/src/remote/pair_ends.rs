//! How queue pairs end: in order, when nobody needs them any more, or because they are lost.

use super::devices::until_free;
use super::link::{Conn, Fault, Link};
use super::pair::{Pair, PairState};
use super::pairs::unlink;
use super::probes::Quiet;
use super::{Remote, memory};
use crate::log::debug_log;
use crate::queues::Queue;
use crate::{process, rdma_thread, stats, sys};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering::*;
use netacc_control::config::Config;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::{Malformed, SlotAction, SlotEvent, SlotState};
use netacc_proto::rendezvous::{Message, Peers, Role};
use netacc_rdma::Kicked;
use netacc_verbs::fabric::Fabric as _;

/// How long an empty pair waits for the peer's answer before it is closed.
const END_NS: u64 = 1_000_000_000;

/// The pause after a failure, in which no pair is tried. It doubles with each failure.
const PAUSE_NS: u64 = 1_000_000_000;
/// The longest pause. A pair that has lived for as long as this has shown that pairs work, and the
/// next pause is the shortest again. How much the pair has carried shows nothing: small packets may
/// come through where large ones are dropped.
const PAUSE_MAX_NS: u64 = 60_000_000_000;

/// How many pairs without connections are kept, and for how long.
#[derive(Clone, Copy)]
pub(super) struct EmptyPairs {
    /// `None`: for ever.
    pub(super) expire_ms: Option<u32>,
    pub(super) all: usize,
    pub(super) of_peer: usize,
}

impl EmptyPairs {
    pub(super) fn new(config: &Config) -> EmptyPairs {
        EmptyPairs {
            expire_ms: config.empty_channel_expire_ms,
            all: config.empty_channels_max as usize,
            of_peer: config.empty_channels_max_per_peer as usize,
        }
    }
}

/// Since when a pair has been empty, its link, and its number.
pub(super) type Age = (u64, u32, u32);

fn age(l: &Link, p: &Pair) -> Age {
    (p.idle_since, l.serial, p.number)
}

/// The thread has posted something itself. If that shows that the pair is lost, the thread looks at
/// its pairs in its next turn.
pub(super) fn heed(posted: Kicked) {
    if matches!(posted, Kicked::Lost(_)) {
        rdma_thread::tell_of_pairs();
    }
}

impl Remote {
    pub(super) fn on_pair_end(&mut self, i: usize, number: u32) {
        // An empty pair ends in order, and the peer waits for our answer.
        let in_order = self
            .link(i)
            .and_then(|l| l.pair(number))
            .is_some_and(|p| p.state == PairState::Ready && p.is_empty());
        let why = if in_order { Reason::None } else { Reason::RdmaLost };
        self.lose_pair(i, number, why, in_order);
    }

    // ---- the end --------------------------------------------------------------------------------

    /// A pair that no connection is on is closed when the peer has said that it knows, so that no
    /// end takes it for a failure.
    pub(super) fn end_pair(&mut self, i: usize, number: u32) {
        let at = sys::now_ns() + END_NS;
        let Some(l) = self.link_mut(i) else { return };
        let up = l.is_up();
        let Some(p) = l.pair_mut(number) else { return };
        p.state = PairState::Ending;
        if !up {
            return self.lose_pair(i, number, Reason::None, true);
        }
        p.deadline = at;
        self.send(i, Message::PairEnd { pair: number });
        self.at(at);
    }

    /// A pair is lost, or will not come to be, or has come to its end. `tell`: the peer does not
    /// know.
    pub(super) fn lose_pair(&mut self, i: usize, number: u32, why: Reason, tell: bool) {
        let now = sys::now_ns();
        let Some(l) = self.link_mut(i) else { return };
        let Some(p) = l.pair_mut(number).filter(|p| p.state != PairState::Lost) else { return };
        let (was, connecting, seat, empty) = (p.state, p.connecting, p.seat, p.is_empty());
        let (why, tell) =
            if was == PairState::Ending { (Reason::None, false) } else { (why, tell) };
        if let (PairState::Ready | PairState::Ending, Some((queue, _))) = (was, seat) {
            // What has arrived already is taken.
            queue.drain();
            if why != Reason::None {
                stats::count(Counter::RdmaPairsLost);
            }
        }
        p.state = PairState::Lost;
        // (With it ends a probe that is under way.)
        p.quiet = Quiet::default();
        let lived = if p.ready_since == 0 { 0 } else { now.saturating_sub(p.ready_since) };
        if let Some(engine) = p.engine.as_ref() {
            debug_log!("pair {number} is lost: {:?} ({})", engine.lost(), why.name());
            engine.end();
        }
        if lived >= PAUSE_MAX_NS {
            l.pair_pause = 0;
        }
        let was_ready = matches!(was, PairState::Ready | PairState::Ending);
        let asked_at = SocketAddr::new(l.local, l.port);
        // Pairs that were lost, or asked for, at the same time count as one failure.
        if now >= l.pair_after && !(was_ready && why == Reason::None) {
            l.pair_pause = (l.pair_pause * 2).clamp(PAUSE_NS, PAUSE_MAX_NS);
            l.pair_after = now + l.pair_pause;
        }
        if !was_ready {
            self.explain_waiting(i, why);
        }
        if was == PairState::Requested {
            self.doubt_listener(asked_at);
        }
        if tell {
            self.send(i, Message::PairEnd { pair: number });
        }
        if !connecting {
            self.dismantle(i, number);
        }
        if let Some(at) = self.link(i).map(|l| l.pair_after) {
            self.at(at);
        }
        if !empty {
            self.leave_pair(i, number);
        }
    }

    /// Closes a lost pair. From here on nothing arrives in the rings of its connections.
    pub(super) fn dismantle(&mut self, i: usize, number: u32) {
        let me = process::tid();
        let Some(verbs) = self.devices.verbs() else { return };
        let Some(l) = self.link_mut(i) else { return };
        for slot in l.pair(number).into_iter().flat_map(|p| p.places.slots()) {
            unlink(l.channel, slot, l.conns.get(slot).and_then(|c| c.socket));
        }
        let Some(p) = l.pair_mut(number) else { return };
        let Some(engine) = p.engine.take() else {
            if let Some(pair) = p.pair.take() {
                let _ = verbs.close_pair(pair);
            }
            if let Some((queue, tag)) = p.seat.take() {
                let _ = until_free(|| queue.hub.release(me, tag));
            }
            return self.forget_lost(i, number);
        };
        if let Some((queue, tag)) = p.seat.take() {
            // Only the hub and this function hold the engine.
            drop(until_free(|| queue.hub.remove(me, tag)));
            let mut engine = engine;
            let whole = loop {
                match Arc::try_unwrap(engine) {
                    Ok(whole) => break whole,
                    Err(shared) => engine = shared,
                }
                sys::sched_yield();
            };
            // SAFETY: made by `make_on`, and given up below.
            if let Some(context) = unsafe { p.context.as_ref() } {
                context.flush(&whole);
            }
            let parts = whole.dismantle(p.pair.take());
            // If something could not be closed the device may still write into that memory: it is
            // never used again.
            if parts.error.is_none() {
                p.rings = parts.rings;
            } else {
                core::mem::forget(parts.rings);
            }
            if let (None, Some((memory, bytes))) = (parts.error, p.receives.take()) {
                // SAFETY: handed back by `dismantle`: no device writes there.
                unsafe { sys::unmap(memory.as_ptr(), bytes) };
            }
            let _ = until_free(|| queue.hub.release(me, tag));
            if !p.context.is_null() {
                // SAFETY: made by `make_on`; the hub has let go of the engine, so nobody looks at
                // it any more.
                drop(unsafe {
                    Box::from_raw(core::mem::replace(&mut p.context, core::ptr::null_mut()))
                });
            }
        }
        self.forget_lost(i, number);
    }

    /// Forgets a lost pair that no connection names any more; its rings serve again.
    pub(super) fn forget_lost(&mut self, i: usize, number: u32) {
        let Some(l) = self.link_mut(i) else { return };
        let is_over = |p: &&Pair| p.state == PairState::Lost && !p.connecting && p.engine.is_none();
        let Some(p) = l.pair(number).filter(is_over) else { return };
        let is_over = |c: &Conn| matches!(c.slot.state, SlotState::Free | SlotState::Done);
        if p.places.slots().filter_map(|slot| l.conns.get(slot)).any(|c| !is_over(c)) {
            return;
        }
        let Some(p) = l.pairs.remove(number) else { return };
        if let Some(channel) = l.channel {
            p.places.slots().for_each(|slot| channel.rings_are_free(slot));
        }
        if let Some(a) = l.arenas.as_mut() {
            p.rings.into_iter().for_each(|r| a.give_back(r));
        }
    }

    /// How long pairs have been empty that count as kept, the longest first: all, or those of a
    /// peer's links.
    fn ages(&self, now: u64, peer: Option<IpAddr>) -> Vec<Age> {
        let links = self.links.iter().flatten().filter(|l| peer.is_none_or(|peer| peer == l.peer));
        let mut ages: Vec<Age> = links
            .flat_map(|l| l.pairs.iter().map(move |p| (&**l, p)))
            .filter(|(_, p)| p.is_spare() && now >= p.counts_at())
            .map(|(l, p)| age(l, p))
            .collect();
        ages.sort_unstable();
        ages
    }

    /// Ends pairs that have been empty for as long as the configuration says, or that are too many.
    pub(super) fn settle_empty(&mut self, i: usize) {
        let (kept, now) = (self.kept, sys::now_ns());
        let Some(l) = self.link(i) else { return };
        let spare = l.pairs.iter().filter(|p| p.is_spare());
        let mut spare: Vec<(Age, u64, bool)> =
            spare.map(|p| (age(l, p), p.counts_at(), p.was_used)).collect();
        spare.sort_unstable();
        let [all, of_peer] = match spare.is_empty() {
            true => [Vec::new(), Vec::new()],
            false => [None, Some(l.peer)].map(|peer| self.ages(now, peer)),
        };
        let newer = |of: &[Age], age: &Age| of.len() - of.partition_point(|a| a <= age);
        for (age, counts_at, was_used) in &spare {
            // It is one too many if as many as may be kept, on whatever link, have been empty for
            // less long.
            let too_many = now >= *counts_at
                && (newer(&all, age) >= kept.all || newer(&of_peer, age) >= kept.of_peer);
            let expired = kept.expire_ms.map(|ms| age.0.saturating_add(u64::from(ms) * 1_000_000));
            // One that has never had a connection is on its way to its first.
            let expired = expired.map(|at| if *was_used { at } else { at.max(*counts_at) });
            if !too_many && expired.is_none_or(|at| now < at) {
                let fresh = spare.iter().map(|s| s.1).filter(|at| now < *at);
                if let Some(at) = fresh.chain(expired).min() {
                    self.at(at);
                }
                return;
            }
            // Both ends have closed every connection on it: nothing is lost with it.
            self.end_pair(i, age.2);
        }
        // With its last pair a link gives its memory back.
        let verbs = self.devices.verbs();
        let Some(l) = self.link_mut(i) else { return };
        if l.pairs.is_empty() && !l.in_use() && l.waiting.is_empty() {
            memory::close_memory(verbs, l.arenas.take(), l.domain.take());
        }
    }

    pub(super) fn end_all_pairs(&mut self, i: usize) {
        let Some(l) = self.link(i) else { return };
        for number in l.pairs.iter().map(|p| p.number).collect::<Vec<u32>>() {
            self.lose_pair(i, number, Reason::RdmaLost, false);
        }
    }

    pub(super) fn end_pairs_on(&mut self, device: usize) {
        self.end_pairs_that(&|l, _| l.device == device);
    }

    pub(super) fn end_pairs_of(&mut self, queue: &Queue) {
        self.end_pairs_that(&|_, p| p.seat.is_some_and(|(q, _)| core::ptr::eq(q, queue)));
    }

    fn end_pairs_that(&mut self, which: &dyn Fn(&Link, &Pair) -> bool) {
        for i in 0..self.links.len() {
            let Some(l) = self.link(i) else { continue };
            let on = l.pairs.iter().filter(|p| p.state != PairState::Lost && which(l, p));
            for n in on.map(|p| p.number).collect::<Vec<u32>>() {
                self.lose_pair(i, n, Reason::RdmaLost, true);
            }
        }
    }

    pub(super) fn forget_pair_failures(&mut self) {
        for i in 0..self.links.len() {
            if let Some(l) = self.link_mut(i) {
                (l.pair_after, l.pair_pause) = (0, 0);
                self.want_pairs(i);
            }
        }
    }

    /// Pairs have told something: lost ones are given up, memory that is free is taken back.
    pub(super) fn look_at_pairs(&mut self) {
        self.retire_lost();
        for i in 0..self.links.len() {
            let Some(l) = self.link(i) else { continue };
            let mut lost = Vec::new();
            let mut released = Vec::new();
            for p in l.pairs.iter().filter(|p| p.state != PairState::Lost) {
                // SAFETY: set by `make_on`, and alive until the pair is dismantled, by this thread.
                let Some(context) = (unsafe { p.context.as_ref() }) else { continue };
                if context.lost.load(Acquire)
                    || p.engine.as_ref().is_some_and(|l| l.lost().is_some())
                {
                    lost.push(p.number);
                    continue;
                }
                for (w, word) in context.released.iter().enumerate() {
                    let mut bits = word.swap(0, AcqRel);
                    while bits != 0 {
                        released.push((p.number, (w * 64) as u16 + bits.trailing_zeros() as u16));
                        bits &= bits - 1;
                    }
                }
            }
            for (number, lane) in released {
                self.take_back(i, number, lane);
            }
            for number in lost {
                self.lose_pair(i, number, Reason::RdmaLost, true);
            }
        }
    }

    /// Both ends have closed a lane: takes its rings back.
    pub(super) fn take_back(&mut self, i: usize, number: u32, lane: u16) {
        let me = process::tid();
        let Some(l) = self.link_mut(i) else { return };
        let Some(p) = l.pair_mut(number) else { return };
        let (Some(engine), Some((queue, _))) = (p.engine.as_ref(), p.seat) else { return };
        let Ok(taken) = until_free(|| queue.hub.take_back(me, engine, lane)) else { return };
        if let Some(why) = engine.lost() {
            heed(Kicked::Lost(why));
        }
        let slot = l.pair(number).and_then(|p| p.places.slot_of(lane));
        if let Some((channel, slot)) = l.channel.zip(slot) {
            channel.rings_are_free(slot);
        }
        if let (Some(rings), Some(a)) = (taken.rings, l.arenas.as_mut()) {
            a.give_back(rings);
        }
        let has_left =
            |slot: &usize| l.conns.get(*slot).is_some_and(|c| c.slot.state == SlotState::Left);
        if let Some(slot) = slot.filter(has_left) {
            self.memory_is_back(i, slot);
        }
    }

    /// Applies an event to a slot. `token` says which connection the peer means.
    pub(super) fn slot_is(
        &mut self,
        i: usize,
        slot: usize,
        event: SlotEvent,
        token: u64,
    ) -> Result<SlotAction, Fault> {
        let Some(l) = self.link_mut(i) else { return Ok(SlotAction::None) };
        let role = l.role;
        let Some(c) = l.conns.get_mut(slot) else { return Err(Fault::Malformed) };
        let action = c.slot.step(event, token, Peers::TwoHosts, role);
        let action = action.map_err(|Malformed| Fault::Malformed)?;
        if action == SlotAction::Release {
            self.release(i, slot);
        }
        Ok(action)
    }

    /// A slot's memory is ours again.
    pub(super) fn memory_is_back(&mut self, i: usize, slot: usize) {
        let Some(number) = self.link(i).and_then(|l| l.conns.get(slot)).map(|c| c.pair) else {
            return;
        };
        let _ = self.slot_is(i, slot, SlotEvent::Back, 0);
        if !self.link(i).is_some_and(Link::is_up) {
            let _ = self.slot_is(i, slot, SlotEvent::LinkGone, 0);
        }
        self.forget_lost(i, number);
    }

    /// A slot, and its lane, may serve another connection.
    fn release(&mut self, i: usize, slot: usize) {
        let now = sys::now_ns();
        let Some(l) = self.link_mut(i) else { return };
        let acceptor = l.role == Role::Acceptor;
        let Some(c) = l.conns.get_mut(slot) else { return };
        let was = core::mem::replace(c, Conn::FREE);
        let number = was.pair;
        if let Some(p) = l.pair_mut(number) {
            p.places.give_back(was.lane);
            if p.is_empty() {
                p.idle_since = now;
            }
        }
        if let Some(rings) = was.rings {
            self.give_rings_back(i, rings);
        }
        if !acceptor {
            self.send(i, Message::Freed { slot: slot as u16 });
        }
        self.forget_lost(i, number);
        if acceptor {
            self.serve_waiting(i);
            self.want_pairs(i);
        }
        // Empty pairs and links that are gone are looked at once, for all that end now.
        self.at(now);
    }
}
