//! The acceptor's part: it owns all memory, and offers it.

use super::possession::PeerVerified;
use super::{
    CANDIDATES_PER_FOREIGN_LINK, CANDIDATES_PER_LINK, CHANNEL_BYTES, Mine, PUT_OFF, Phase, SWEEP,
    Slot, State, Theirs, Then, Violation, hand_over, record, strangers,
};
use crate::arena::{MemoryError, Pool};
use crate::channel::{Channel, PLACES, SLOTS};
use crate::path::PathId;
use crate::socket::offered;
use crate::tuple_table::Key;
use crate::{arena, config, fd_table, socket, stats, sys};
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicU64, fence};
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::{Action, Event, SlotAction, SlotEvent, bit};
use netacc_proto::rendezvous::{self as proto, Message, Role, Tuple, refuse};

impl State {
    /// A waiting accepted socket and a candidate for it.
    pub(crate) fn pair_for(&mut self, tuple: &Tuple) -> Option<(Key, Key)> {
        loop {
            let t = self.tables.as_mut()?;
            let waiting = t.accepted.find(tuple, Mine::waits)?;
            let m = t.accepted.get_mut(waiting)?;
            if !m.is_current() {
                t.accepted.remove(waiting);
                continue;
            }
            let mut claims = 0;
            t.candidates.find(tuple, |x| {
                claims |= bit(x.link);
                false
            });
            let Action::Prove(link) = m.agreement.step(Event::Claims(claims)) else { return None };
            let candidate = t.candidates.find(tuple, |x| x.link == link)?;
            let Some(l) = self.links.get_mut(link).filter(|l| l.phase == Phase::Open) else {
                t.candidates.remove(candidate);
                continue;
            };
            if l.queue.len() >= PUT_OFF {
                l.put_off = true;
                return None;
            }
            return Some((waiting, candidate));
        }
    }

    #[cfg(test)]
    pub(crate) fn is_offered(&self, socket: &crate::socket::Socket) -> bool {
        let t = self.tables.as_ref();
        t.is_some_and(|t| {
            t.accepted
                .find(&socket.tuple(), |m| m.is(socket) && m.agreement.offered().is_some())
                .is_some()
        })
    }

    /// Makes the offer, if the pair still is there. `proof`: the candidate's process holds the
    /// other end.
    pub(super) fn offer(&mut self, waiting: Key, candidate: Key, proof: Option<PeerVerified>) {
        let Some(t) = self.tables.as_mut() else { return };
        if let Some((_, m)) = t
            .accepted
            .get(waiting)
            .filter(|(_, m)| m.is_current() && m.socket.path() != PathId::Shm && proof.is_some())
        {
            // It tries another path first, and its connector does so no more: its next call makes
            // it wait for this candidate.
            let _ = m.socket.offered.happens(offered::Event::Refused(m.socket.path()));
            return;
        }
        let Some((tuple, theirs)) = t.candidates.remove(candidate) else { return };
        let i = theirs.link;
        if let Some(l) = self.links.get_mut(i) {
            l.candidates = l.candidates.saturating_sub(1);
        }
        let waits = t.accepted.get_mut(waiting).filter(|m| m.is_current() && m.waits());
        let Some(m) = waits else { return };
        let socket = m.socket;
        let Some(proof) = proof else {
            m.agreement.step(Event::Unproven(i));
            m.is_unproven();
            return;
        };
        match self.try_offer(i, waiting, theirs.token, tuple, &proof) {
            Ok(()) => {
                if let Some(m) = self.tables.as_mut().and_then(|t| t.accepted.get_mut(waiting)) {
                    m.agreement.step(Event::Offered(i));
                }
                stats::count(Counter::OffersSent);
            }
            Err(why) => {
                socket.set_reason(match why {
                    OfferError::Memory(MemoryError::NoDescriptor) => Reason::NoDescriptor,
                    OfferError::Memory(MemoryError::Full) | OfferError::NoSlot => {
                        Reason::ChannelFull
                    }
                    OfferError::Memory(_) => Reason::NoMemory,
                    OfferError::Link(_) => Reason::ChannelFailed,
                });
                // It need not wait, and show what it shows.
                let told = match why {
                    OfferError::Link(why) => Err(why),
                    _ => self.post(i, Message::Unproven { token: theirs.token }, -1),
                };
                if let Err(why) = told {
                    self.end_link(i, why);
                }
            }
        }
    }

    fn try_offer(
        &mut self,
        i: usize,
        waiting: Key,
        token: u64,
        tuple: Tuple,
        _proof: &PeerVerified,
    ) -> Result<(), OfferError> {
        if self.link(i).is_none_or(|l| l.channel.is_none()) {
            self.create_channel(i)?;
        }
        self.sweep(i, SWEEP);
        let slot = self.link_mut(i).and_then(|l| l.free.pop()).ok_or(OfferError::NoSlot)?;
        let offer = self.fill_slot(i, slot, waiting, token, tuple);
        let sent = offer
            .and_then(|offer| self.post(i, Message::Offer(offer), -1).map_err(OfferError::Link));
        match sent {
            Ok(()) => Ok(()),
            Err(e) => {
                if let Some(s) = self.link_mut(i).and_then(|l| l.slots.get_mut(slot as usize))
                    && let Ok(SlotAction::Release) = s.step(SlotEvent::TakeBack, 0, Role::Acceptor)
                {
                    self.free_slot(i, slot as usize);
                } else if let Some(l) =
                    self.link_mut(i).filter(|l| l.free.len() < l.free.capacity())
                {
                    l.free.push(slot);
                }
                Err(e)
            }
        }
    }

    /// Rings and fresh words for a slot of the link's channel.
    fn fill_slot(
        &mut self,
        i: usize,
        slot: u16,
        waiting: Key,
        token: u64,
        tuple: Tuple,
    ) -> Result<proto::Offer, OfferError> {
        let taken = self.link_mut(i).and_then(|l| l.pool.as_mut()?.take());
        let pair = match taken {
            Some(p) => p,
            None => {
                self.add_arena(i)?;
                self.link_mut(i)
                    .and_then(|l| l.pool.as_mut()?.take())
                    .ok_or(OfferError::Memory(MemoryError::NoMemory))?
            }
        };
        let Some(l) = self.link_mut(i) else { return Err(OfferError::NoSlot) };
        let Some(channel) = l.channel else { return Err(OfferError::NoSlot) };
        zero_slot(channel, slot as usize);
        let ring = l.pool.as_ref().map_or(0, |p| p.ring_bytes());
        l.high_water = l.high_water.max(slot as usize + 1);
        l.slots_used += 1;
        if let Some(s) = l.slots.get_mut(slot as usize) {
            *s = Slot { waiting, pair, ..Slot::FREE };
            let _ = s.step(SlotEvent::Offer, token, Role::Acceptor);
        }
        let used = l.slots_used;
        record(i, |r| {
            r.slots_used.store(used, Relaxed);
            r.connections_total.fetch_add(1, Relaxed);
        });
        Ok(proto::Offer {
            token,
            tuple,
            slot,
            arena: pair.arena,
            ring_offset: [pair.offset, pair.offset + ring as u64],
            ring_bytes: [ring as u32; 2],
        })
    }

    fn create_channel(&mut self, i: usize) -> Result<(), OfferError> {
        let memfd =
            arena::create_sealed(b"netacc-channel\0", CHANNEL_BYTES).map_err(OfferError::Memory)?;
        let made = self.make_channel(i, memfd).map_err(OfferError::Memory);
        let told = made.and_then(|_| {
            // The peer is verified. From here on it passes doorbells.
            if let Some(l) = self.link(i) {
                strangers::take_descriptors(l.fd);
            }
            let m = proto::Channel {
                channel_bytes: CHANNEL_BYTES as u64,
                slots: SLOTS as u32,
                places: PLACES as u32,
            };
            self.post(i, Message::Channel(m), memfd).map_err(OfferError::Link)
        });
        fd_table::close_internal(memfd);
        if let Some(l) = self.link_mut(i).filter(|_| told.is_ok()) {
            l.pool = Some(Pool::new(config::get()));
        }
        told
    }

    fn add_arena(&mut self, i: usize) -> Result<(), OfferError> {
        let Some(pool) = self.link_mut(i).and_then(|l| l.pool.as_mut()) else {
            return Err(OfferError::Memory(MemoryError::NoMemory));
        };
        let (memfd, number, bytes) = pool.grow().map_err(OfferError::Memory)?;
        let total = pool.total_bytes();
        let told = self.post(
            i,
            Message::Arena(proto::Arena { arena: number, bytes: bytes as u64 }),
            memfd,
        );
        fd_table::close_internal(memfd);
        record(i, |r| r.arena_bytes.store(total as u64, Relaxed));
        told.map_err(OfferError::Link)
    }

    /// Looks at `count` slots, or at all when none is free, for such that both ends have left.
    pub(super) fn sweep(&mut self, i: usize, count: usize) {
        let Some(l) = self.link(i).filter(|l| l.role == Role::Acceptor) else { return };
        let count = if l.free.is_empty() { l.high_water } else { count.min(l.high_water) };
        for _ in 0..count {
            let Some(l) = self.link_mut(i) else { return };
            let at = l.sweep_at;
            l.sweep_at = if at + 1 < l.high_water { at + 1 } else { 0 };
            self.reclaim(i, at);
        }
    }

    pub(super) fn on_accept(&mut self, i: usize, token: u64, slot: u16) -> Result<Then, Violation> {
        let Some(l) = self.links.get_mut(i) else { return Err(Violation::Ended) };
        let (Some(c), Some(pool)) = (l.channel, l.pool.as_ref()) else {
            return Err(Violation::Malformed);
        };
        let Some(s) = l.slots.get_mut(slot as usize) else { return Err(Violation::Malformed) };
        s.step(SlotEvent::Accept, token, Role::Acceptor)?;
        let Some([to_us, from_us]) = pool.rings(s.pair) else { return Err(Violation::Malformed) };
        let ring = pool.ring_bytes() as u32;
        // It may have been announced once more meanwhile.
        if let Some(t) = self.tables.as_mut()
            && let Some(again) = t.candidates.find_number(token, |x| x.link == i)
        {
            t.candidates.remove(again);
            l.candidates = l.candidates.saturating_sub(1);
        }
        let waiting = self.tables.as_mut().and_then(|t| t.accepted.remove(s.waiting));
        let live = waiting.map(|(_, m)| m).and_then(|mut m| {
            let waits = m.is_current() && m.socket.may_be_offered();
            (m.agreement.step(Event::Accepted(i)) == Action::HandOver && waits).then_some(m)
        });
        c.users.fetch_add(1, AcqRel);
        match live {
            Some(m) => {
                s.socket = m.socket;
                s.generation = m.generation;
                let offer = socket::Offer {
                    channel: c,
                    slot: u32::from(slot),
                    tx_ring: from_us,
                    tx_bytes: ring,
                    rx_ring: to_us,
                    rx_bytes: ring,
                    asked: 0,
                    whole: ring,
                };
                hand_over(m.socket, c, offer);
            }
            None => {
                // Closed in the meantime, or plain.
                socket::say_stays(c, slot as usize);
                self.leave(i, slot as usize);
                self.release(i, slot as usize);
            }
        }
        Ok(Then::Nothing)
    }

    pub(super) fn on_refuse(
        &mut self,
        i: usize,
        token: u64,
        slot: u16,
        reason: u16,
    ) -> Result<Then, Violation> {
        let Some(s) = self.link_mut(i).and_then(|l| l.slots.get_mut(slot as usize)) else {
            return Err(Violation::Malformed);
        };
        s.step(SlotEvent::Refuse, token, Role::Acceptor)?;
        let waiting = s.waiting;
        stats::count(Counter::OffersRefused);
        self.free_slot(i, slot as usize);
        let Some(t) = self.tables.as_mut() else { return Ok(Then::Nothing) };
        let Some(tuple) = t.accepted.get(waiting).map(|(t, _)| *t) else {
            return Ok(Then::Nothing);
        };
        if let Some(m) = t.accepted.get_mut(waiting) {
            m.agreement.step(Event::Refused { link: i, reason });
            if m.goes_on() {
                m.socket.set_reason(match reason {
                    refuse::NOT_AUTHENTICATED => Reason::NotAuthenticated,
                    _ => Reason::PeerRefused,
                });
            }
        }
        // Another process may have a claim to it, too.
        Ok(Then::Agree(tuple))
    }

    pub(super) fn on_candidate(&mut self, i: usize, c: proto::Candidate) -> Then {
        let me = sys::geteuid();
        let Some(t) = self.tables.as_mut() else { return Then::Nothing };
        let Some(l) = self.links.get_mut(i) else { return Then::Nothing };
        let quota =
            if l.peer.uid == me { CANDIDATES_PER_LINK } else { CANDIDATES_PER_FOREIGN_LINK };
        if let Some(old) = t.candidates.find_number(c.token, |x| x.link == i) {
            t.candidates.remove(old);
            l.candidates = l.candidates.saturating_sub(1);
        }
        if l.candidates >= quota || t.candidates.is_full() {
            // Its own oldest makes room, if it is among the oldest of all.
            let mut at = t.candidates.oldest();
            for _ in 0..64 {
                let Some(key) = at else { break };
                if t.candidates.get(key).is_some_and(|(_, x)| x.link == i) {
                    t.candidates.remove(key);
                    l.candidates = l.candidates.saturating_sub(1);
                    break;
                }
                at = t.candidates.after(key);
            }
            if l.candidates >= quota {
                return Then::Nothing;
            }
        }
        let tuple = c.tuple.mirrored();
        if t.candidates.insert(tuple, c.token, Theirs { link: i, token: c.token }).is_none() {
            return Then::Nothing;
        }
        l.candidates += 1;
        Then::Agree(tuple)
    }
}

/// Why an offer could not be made.
enum OfferError {
    NoSlot,
    Memory(MemoryError),
    Link(Violation),
}

/// Brings a slot's words to their first state.
fn zero_slot(c: &Channel, slot: usize) {
    for d in 0..2 {
        let at = core::ptr::from_ref(c.words(slot, d)).cast::<AtomicU64>();
        for w in 0..size_of::<netacc_ring::RingWords>() / 8 {
            // SAFETY: inside of the words of this direction, which are atomics of 8 or (in pairs) 4
            // bytes.
            unsafe { &*at.add(w) }.store(0, Relaxed);
        }
    }
    fence(Release);
}
