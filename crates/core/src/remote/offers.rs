//! What has been agreed on: the acceptor's offer, what becomes of it at both ends, and what a
//! connection leaves when it is gone.

use super::agree::{BUSY_NS, verdict};
use super::link::{Conn, Fault, Waiting};
use super::pair::PairState;
use super::pair_ends::heed;
use super::pairs::unlink;
use super::{Mine, Remote, leave, net};
use crate::channel::{BY_KERNEL, Channel};
use crate::lock::lock_end;
use crate::log::debug_log;
use crate::socket::{Offer, State, flag, offered};
use crate::syn::Said;
use crate::tuple_table::Key;
use crate::{packet_policy, rdma_thread, stats, sys, trace};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::{Action, Event, SlotAction, SlotEvent};
use netacc_proto::rendezvous::{self as proto, Message, refuse};
use netacc_rdma::arena::Rings;

impl Remote {
    pub(super) fn on_accept(&mut self, i: usize, token: u64, slot: u16) -> Result<(), Fault> {
        let slot = usize::from(slot);
        if self.slot_is(i, slot, SlotEvent::Accept, token)? != SlotAction::Open {
            // Said again after the link had broken.
            return Ok(());
        }
        let Some(c) = self.link_mut(i).and_then(|l| l.conns.get_mut(slot)) else { return Ok(()) };
        let (waiting, rings) = (c.waiting, c.rings.take());
        let taken = self
            .accepted
            .get_mut(waiting)
            .is_some_and(|m| m.agreement.step(Event::Accepted(i)) == Action::HandOver);
        let mine = if taken { self.accepted.remove(waiting).map(|(_, m)| m) } else { None };
        let Some(rings) = rings else { return Err(Fault::Malformed) };
        let at = place_of(&rings);
        let fits = mine.as_ref().is_none_or(|m| self.fits(i, slot, m));
        if !self.open(i, slot, token, rings) || !fits {
            self.left_for_now(i, slot);
            mine.iter().for_each(ask_again);
            return Ok(());
        }
        match mine {
            Some(m) => {
                let proven = matches!(m.socket.syn.said(), Said::Stamp(_));
                stats::count(if proven {
                    Counter::RdmaClaimsProven
                } else {
                    Counter::RdmaClaimsUnproven
                });
                self.hand_over(i, slot, &m, at);
            }
            None => self.left(i, slot),
        }
        Ok(())
    }

    /// Acceptor: the pair that was offered is of the traffic class that is asked for by now.
    fn fits(&self, i: usize, slot: usize, m: &Mine) -> bool {
        let Some(l) = self.link(i) else { return false };
        l.conns.get(slot).is_some_and(|c| {
            let theirs = c.theirs.map_or(0, |t| t.class);
            l.pair(c.pair).map(|p| p.class) == packet_policy::common_class(m.asked.class, theirs)
        })
    }

    pub(super) fn on_refuse(
        &mut self,
        i: usize,
        token: u64,
        slot: u16,
        reason: u16,
    ) -> Result<(), Fault> {
        let slot = usize::from(slot);
        let Some(c) = self.link(i).and_then(|l| l.conns.get(slot)) else {
            return Err(Fault::Malformed);
        };
        let (waiting, theirs, number) = (c.waiting, c.theirs, c.pair);
        self.slot_is(i, slot, SlotEvent::Refuse, token)?;
        stats::count(Counter::OffersRefused);
        let refused = Event::Refused { link: i, reason };
        let Some(action) = self.accepted.get_mut(waiting).map(|m| m.agreement.step(refused)) else {
            return Ok(());
        };
        self.claims_changed(waiting);
        let Some((tuple, current)) = self.accepted.get(waiting).map(|(t, m)| (*t, m.is_current()))
        else {
            return Ok(());
        };
        match action {
            Action::End(_) => self.end(waiting, action),
            // It has no memory for whole rings.
            _ if reason == refuse::LESS_MEMORY && current => {
                let Some(theirs) = theirs else { return Ok(()) };
                self.offer_less(tuple, theirs);
            }
            // What it was offered is not free there yet: again in a moment.
            Action::SeeClaimsSoon if current => {
                let Some(theirs) = theirs else { return Ok(()) };
                self.add_candidate(tuple, theirs);
                let class = self.link(i).and_then(|l| l.pair(number)).map_or(0, |p| p.class);
                if let Some(l) = self.link_mut(i) {
                    // (It may be in use there for long: by a connection that was broken off, and
                    // that nobody closes.)
                    l.refused = slot + 1;
                    l.waiting.push_back(Waiting { tuple, class });
                }
                self.at(sys::now_ns() + BUSY_NS);
            }
            // It may have been told of under another name since.
            _ if current => self.agree(tuple),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn on_freed(&mut self, i: usize, slot: u16) -> Result<(), Fault> {
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        l.refused = 0;
        self.slot_is(i, usize::from(slot), SlotEvent::Freed, 0).map(|_| ())
    }

    // ---- the connector --------------------------------------------------------------------------

    pub(super) fn on_offer(&mut self, i: usize, o: proto::OfferLane) -> Result<(), Fault> {
        stats::count(Counter::OffersReceived);
        let slot = usize::from(o.slot);
        let sizes = self.ring_sizes(i);
        let ring = 1usize.checked_shl(o.ring_log2.into()).unwrap_or(0);
        if slot >= BY_KERNEL || ![sizes.small, sizes.whole].contains(&ring) {
            return Err(Fault::Malformed);
        }
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        while l.conns.len() <= slot {
            if l.conns.try_reserve(1).is_err() {
                return Err(Fault::NoMemory);
            }
            l.conns.push(Conn::FREE);
        }
        if l.conns.get(slot).is_some_and(|c| !c.slot.is_free() && c.slot.token == o.token) {
            // Our answer was lost with an earlier link.
            self.send(i, Message::Accept { token: o.token, slot: o.slot });
            return Ok(());
        }
        let free = l.conns.get(slot).is_some_and(|c| c.slot.is_free());
        let number = l.number();
        let lane_free =
            l.pair(o.pair).is_some_and(|p| p.state == PairState::Ready && p.places.is_free(o.lane));
        let key = Key(o.token);
        let known =
            self.was_told(i, key) && self.connected.get(key).is_some_and(|(_, m)| m.is_current());
        // Another process has offered for this connection before.
        let rival = (0..self.links.len()).filter(|other| *other != i).find_map(|other| {
            let l = self.link(other)?;
            let is_it = |c: &Conn| c.slot.is_live() && c.slot.token == o.token;
            let slot = l.conns.iter().position(is_it)?;
            Some((l.channel?, slot))
        });
        if let Some((channel, slot)) = rival {
            stats::count(Counter::AuthFailures);
            channel.far.demote(slot, Reason::NotAuthenticated, false);
        }
        let refuse = |r: &mut Remote, reason| {
            stats::count(Counter::OffersRefused);
            r.send(i, Message::Refuse { token: o.token, slot: o.slot, reason });
            Ok(())
        };
        if !known {
            return refuse(self, refuse::WITHDRAWN);
        }
        let (mut rings, mut why) = (None, Reason::None);
        let flaw = if !free || !lane_free {
            Some(refuse::BUSY)
        } else if !self.is_believed_offer(i, key) {
            Some(refuse::WITHDRAWN)
        } else {
            let fills = o.fills || self.connected.get(key).is_some_and(|(_, m)| m.fills());
            let small = ring == sizes.small;
            if small || fills || self.may_be_whole(i) {
                match self.take_rings_of(i, ring) {
                    Ok(taken) => rings = Some(taken),
                    Err(reason) => why = reason,
                }
            }
            let flaw = if small { refuse::NO_MEMORY } else { refuse::LESS_MEMORY };
            rings.is_none().then_some(flaw)
        };
        let Some(m) = self.connected.get_mut(key) else { return Ok(()) };
        if flaw == Some(refuse::LESS_MEMORY) && why != Reason::None {
            m.socket.set_reason(why);
        }
        let action = m.agreement.step(Event::Offer { link: number, flaw });
        if m.agreement.is_over()
            && let Some((tuple, m)) = self.connected.remove(key)
        {
            // Nothing is left to agree on.
            if let (Action::TakeUp(others), Some(rings)) = (action, rings) {
                self.take_up(i, o, &m, rings);
                self.withdraw(&tuple, others, o.token);
            } else {
                verdict(m.socket, m.generation, why);
            }
        }
        match action {
            Action::Refuse(reason) => refuse(self, reason),
            _ => Ok(()),
        }
    }

    /// Connector: the offer's slot is the connection's.
    fn take_up(&mut self, i: usize, o: proto::OfferLane, m: &Mine, rings: Rings<net::Net>) {
        let slot = usize::from(o.slot);
        let Some(l) = self.link_mut(i) else { return };
        if let Some(p) = l.pair_mut(o.pair) {
            if p.was_used {
                stats::count(Counter::RdmaPairsReused);
            }
            p.take(o.lane, slot);
        }
        if let Some(c) = l.conns.get_mut(slot) {
            *c = Conn { pair: o.pair, lane: o.lane, ..Conn::FREE };
        }
        let _ = self.slot_is(i, slot, SlotEvent::TakeUp, o.token);
        let at = place_of(&rings);
        let opened = self.open(i, slot, o.token, rings);
        self.send(i, Message::Accept { token: o.token, slot: o.slot });
        if opened {
            self.hand_over(i, slot, m, at);
        } else {
            self.left_for_now(i, slot);
            ask_again(m);
        }
    }

    // ---- both -----------------------------------------------------------------------------------

    /// Opens a lane for a slot. The words are fresh. False: the pair is lost meanwhile.
    pub(super) fn open(
        &mut self,
        i: usize,
        slot: usize,
        token: u64,
        rings: Rings<net::Net>,
    ) -> bool {
        self.watch_policy();
        let Some(l) = self.link_mut(i) else { return false };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return false };
        l.connections += 1;
        let Some(c) = l.conns.get_mut(slot) else { return false };
        (c.published, c.asked) = (None, 0);
        let (number, lane) = (c.pair, c.lane);
        channel.zero_words(slot);
        let at = wire.slot(slot);
        at.seen_epoch.store(0, Relaxed);
        at.seen_ack.store(0, Relaxed);
        leave::forget_leave(channel, slot);
        at.lane.store(u32::from(lane), Relaxed);
        let engine = l.pair(number).filter(|p| p.state == PairState::Ready).and_then(|p| {
            // SAFETY: alive while the pair is ready.
            let context = unsafe { p.context.as_ref() }?;
            context.slots.get(usize::from(lane))?.store(slot as u32 + 1, Release);
            let queue = p.seat.map_or(0, |(queue, _)| queue.number as u32 + 1);
            at.queue.store(queue, Relaxed);
            p.engine.clone()
        });
        let Some(engine) = engine else {
            self.give_rings_back(i, rings);
            return false;
        };
        let (out, inb) = (
            NonNull::from(channel.words(slot, channel.side)),
            NonNull::from(channel.words(slot, channel.side ^ 1)),
        );
        // SAFETY: the words lie in a mapping that lives for ever, were zeroed just now, and serve
        // no other connection before the slot is taken back; producer and consumer are those of the
        // socket that this is handed to.
        match unsafe { engine.open(lane, out, inb, rings, token) } {
            Ok(kicked) => {
                heed(kicked);
                at.lanes.store(alloc::sync::Arc::as_ptr(&engine).cast_mut(), Release);
                true
            }
            Err((why, rings)) => {
                debug_log!("lane {lane} of pair {number} cannot be opened: {why:?}");
                self.give_rings_back(i, rings);
                false
            }
        }
    }

    /// Leaves the agreement for the application's threads.
    pub(super) fn hand_over(
        &mut self,
        i: usize,
        slot: usize,
        m: &Mine,
        (tx_ring, rx_ring, bytes): (*mut u8, *mut u8, usize),
    ) {
        let whole = self.ring_sizes(i).whole as u32;
        let Some(l) = self.link_mut(i) else { return };
        let Some(channel) = l.channel else { return };
        let Some(c) = l.conns.get_mut(slot) else { return };
        let s = m.socket;
        (c.socket, c.generation) = (Some(s), m.generation);
        let shared = !rdma_thread::can_be_called(s.forks.load(Relaxed));
        {
            // Who takes a connection apart holds both.
            let _tx = lock_end(&s.tx_lock);
            let _rx = lock_end(&s.rx_lock);
            if m.is_current() && s.offered.is_none() && !shared {
                let offer = Offer {
                    channel,
                    slot: slot as u32,
                    tx_ring,
                    tx_bytes: bytes as u32,
                    rx_ring,
                    rx_bytes: bytes as u32,
                    asked: m.asked.key(),
                    whole,
                };
                // SAFETY: `offered` is 0: nobody reads it yet, and only this thread writes the
                // offers of such a socket.
                unsafe { *s.offer.get() = offer };
                s.put_on(channel, slot);
                // (Within a host its connector may have turned to shared memory.)
                let what = (slot as u64) << 8 | netacc_control::stats::Path::Rdma as u64;
                s.trace(trace::Event::Offered, what);
                s.start(Reason::Agreed);
                if !s.offered.happens(offered::Event::Made) {
                    c.socket = None;
                }
            } else {
                c.socket = None;
            }
        }
        let taken = c.socket.is_some();
        if taken {
            s.is_offered();
        }
        if shared {
            verdict(s, m.generation, Reason::InheritedByFork);
        }
        // Closed in that moment: whoever closed it found no offer to give back.
        let over = s.generation.load(SeqCst) != m.generation
            || !matches!(s.state.now(), State::Candidate | State::Changing | State::Attached);
        if !taken || (over && s.offered.happens(offered::Event::Taken)) {
            self.left(i, slot);
        }
    }

    /// The pair is lost before anything was done with it: the peer, which may have taken the
    /// connection up, is to try again.
    pub(super) fn left_for_now(&mut self, i: usize, slot: usize) {
        if let Some(channel) = self.link(i).and_then(|l| l.channel) {
            channel.far.demote(slot, Reason::RdmaLost, true);
        }
        self.left(i, slot);
    }

    pub(super) fn on_released(&mut self, channel: &'static Channel, slot: usize) {
        if let Some(i) = self.links.iter().position(|l| {
            l.as_ref().and_then(|l| l.channel).is_some_and(|c| core::ptr::eq(c, channel))
        }) {
            self.departs_no_more(i, slot);
            self.left(i, slot);
        }
    }

    /// Our end of a slot is gone.
    pub(super) fn left(&mut self, i: usize, slot: usize) {
        if !self.link(i).and_then(|l| l.conns.get(slot)).is_some_and(|c| c.slot.is_live()) {
            return;
        }
        // With the last echo; and at once, should this process be about to end.
        self.say_last(i, slot);
        self.flush(i);
        let Some(l) = self.link_mut(i) else { return };
        let channel = l.channel;
        let Some(c) = l.conns.get_mut(slot).filter(|c| c.slot.is_live()) else { return };
        let (number, lane, socket) = (c.pair, c.lane, c.socket.take());
        let _ = self.slot_is(i, slot, SlotEvent::Left, 0);
        unlink(channel, slot, socket);
        if let Some(ch) = channel {
            if let Some(at) = ch.sockets.get(slot) {
                at.store(core::ptr::null_mut(), Release);
            }
            leave::forget_leave(ch, slot);
        }
        let Some(l) = self.link_mut(i) else { return };
        let open =
            l.pair(number).filter(|p| p.state == PairState::Ready).and_then(|p| p.engine.clone());
        match open {
            // Its memory is ours again when the peer has closed it, too.
            Some(engine) if engine.close(lane).map(heed).is_ok() => {}
            _ => self.memory_is_back(i, slot),
        }
    }
}

/// Nothing has come of an agreement: the connection's next calls ask for another one.
fn ask_again(m: &Mine) {
    let _tx = lock_end(&m.socket.tx_lock);
    if m.is_current() && m.socket.offered.is_none() {
        m.socket.calls.store(0, Relaxed);
        m.socket.lower(flag::NOTED);
    }
}

/// Both rings, and the bytes of each.
fn place_of(rings: &Rings<net::Net>) -> (*mut u8, *mut u8, usize) {
    (rings.outbound().as_ptr(), rings.inbound().as_ptr(), rings.ring_bytes())
}
