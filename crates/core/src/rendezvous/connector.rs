//! The connector's part: it checks what it is offered, and maps it.

use super::possession::PeerVerified;
use super::{CHANNEL_BYTES, Slot, State, Then, Violation, hand_over, record};
use crate::arena::{ARENAS_MAX, MAPPED_BYTES_MAX, MemoryError, RING_MAX, RING_MIN};
use crate::channel::{BY_KERNEL, PLACES, SLOTS};
use crate::tuple_table::Key;
use crate::{arena, socket, stats};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Counter;
use netacc_proto::agreement::{Action, Event, SlotEvent};
use netacc_proto::rendezvous::{self as proto, Direction, Message, Role, refuse};

impl State {
    /// An offer: taken up, if it holds water and its maker has shown that it holds the other end,
    /// or refused.
    pub(super) fn on_offer(&mut self, i: usize, offer: &proto::Offer) -> Result<(), Violation> {
        stats::count(Counter::OffersReceived);
        self.free_if_left(i, offer.slot as usize);
        let key = Key(offer.token);
        let (flaw, proof) = match self.check_offer(i, offer) {
            Ok(()) => (None, self.take_proof(i, offer.token)),
            Err(reason) => (Some(reason), None),
        };
        if let Some(proof) = proof {
            return self.take_up(i, offer, &proof);
        }
        if flaw.is_none()
            && let Some((_, m)) = self.tables.as_ref().and_then(|t| t.connected.get(key))
        {
            m.is_unproven();
        }
        let flaw = flaw.unwrap_or(refuse::NOT_AUTHENTICATED);
        let m = self.tables.as_mut().and_then(|t| t.connected.get_mut(key));
        let action = m.map(|m| m.agreement.step(Event::Offer { link: i, flaw: Some(flaw) }));
        let reason = match action {
            Some(Action::Refuse(reason)) => reason,
            _ => flaw,
        };
        stats::count(Counter::OffersRefused);
        self.post(i, Message::Refuse { token: offer.token, slot: offer.slot, reason }, -1)
    }

    /// A forked child of ours may have said the last word of our end of a slot, and could not say
    /// it here.
    fn free_if_left(&mut self, i: usize, slot: usize) {
        let Some(s) = self.link(i).and_then(|l| l.slots.get(slot)) else { return };
        // SAFETY: null or a socket, which is type-stable memory.
        let socket = unsafe { s.socket.as_ref() };
        let is_over = socket.is_none_or(|k| k.generation.load(Acquire) != s.generation);
        if s.life.is_live() && is_over {
            self.release(i, slot);
        }
    }

    fn check_offer(&self, i: usize, offer: &proto::Offer) -> Result<(), u16> {
        let (l, t) = self.link(i).zip(self.tables.as_ref()).ok_or(refuse::UNKNOWN_TOKEN)?;
        let (tuple, m) = t.connected.get(Key(offer.token)).ok_or(refuse::WITHDRAWN)?;
        m.agreement.wants(i)?;
        if offer.tuple.mirrored() != *tuple {
            return Err(refuse::WRONG_TUPLE);
        }
        if !m.is_current() || !m.socket.may_be_offered() {
            return Err(refuse::WITHDRAWN);
        }
        let arena = l.arenas.get(offer.arena as usize).ok_or(refuse::BAD_MEMORY)?;
        let slot = l
            .slots
            .get(offer.slot as usize)
            .filter(|_| (offer.slot as usize) < BY_KERNEL)
            .ok_or(refuse::BAD_MEMORY)?;
        let sizes = offer
            .ring_bytes
            .iter()
            .all(|b| b.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&(*b as usize)));
        let places = offer.ring_offset.iter().all(|o| o % 64 == 0);
        if !slot.life.is_free() || !sizes || !places || !offer.fits(arena.bytes as u64) {
            return Err(refuse::BAD_MEMORY);
        }
        Ok(())
    }

    /// Takes an offer up.
    fn take_up(
        &mut self,
        i: usize,
        offer: &proto::Offer,
        _proof: &PeerVerified,
    ) -> Result<(), Violation> {
        self.post(i, Message::Accept { token: offer.token, slot: offer.slot }, -1)?;
        let key = Key(offer.token);
        let Some((_, mut m)) = self.tables.as_mut().and_then(|t| t.connected.remove(key)) else {
            return Ok(());
        };
        let action = m.agreement.step(Event::Offer { link: i, flaw: None });
        let Action::TakeUp(others) = action else { return Ok(()) };
        let Some(l) = self.links.get_mut(i) else { return Ok(()) };
        let (Some(c), Some(arena), Some(s)) =
            (l.channel, l.arenas.get(offer.arena as usize), l.slots.get_mut(offer.slot as usize))
        else {
            return Ok(());
        };
        let [tx_at, rx_at] = offer.ring_offset.map(|o| usize::try_from(o).unwrap_or(usize::MAX));
        let [tx_bytes, rx_bytes] = offer.ring_bytes;
        const {
            assert!(
                Direction::ConnectorToAcceptor as usize == 0
                    && Direction::AcceptorToConnector as usize == 1
            )
        };
        // SAFETY: `check_offer` found both rings inside of this arena, which is mapped whole.
        let (tx, rx) = unsafe { (arena.at.add(tx_at), arena.at.add(rx_at)) };
        *s = Slot { socket: m.socket, generation: m.generation, ..Slot::FREE };
        s.step(SlotEvent::TakeUp, offer.token, Role::Connector)?;
        c.users.fetch_add(1, AcqRel);
        l.slots_used += 1;
        let used = l.slots_used;
        record(i, |r| {
            r.slots_used.store(used, Relaxed);
            r.connections_total.fetch_add(1, Relaxed);
        });
        let rings = socket::Offer {
            channel: c,
            slot: u32::from(offer.slot),
            tx_ring: tx,
            tx_bytes,
            rx_ring: rx,
            rx_bytes,
            asked: 0,
            whole: tx_bytes,
        };
        hand_over(m.socket, c, rings);
        self.withdraw(others, offer.token);
        Ok(())
    }

    pub(super) fn on_channel(
        &mut self,
        i: usize,
        m: proto::Channel,
        fd: c_int,
    ) -> Result<Then, Violation> {
        let ours = proto::Channel {
            channel_bytes: CHANNEL_BYTES as u64,
            slots: SLOTS as u32,
            places: PLACES as u32,
        };
        let fresh = self.link(i).is_some_and(|l| l.channel.is_none());
        if !fresh || m != ours || !arena::is_sealed(fd, CHANNEL_BYTES) {
            return Err(Violation::Malformed);
        }
        match self.make_channel(i, fd) {
            Ok(_) => Ok(Then::Nothing),
            Err(_) => Err(Violation::NoMemory),
        }
    }

    pub(super) fn on_arena(
        &mut self,
        i: usize,
        m: proto::Arena,
        fd: c_int,
    ) -> Result<Then, Violation> {
        let Some(l) = self.link_mut(i).filter(|l| l.channel.is_some()) else {
            return Err(Violation::Malformed);
        };
        let mapped: usize = l.arenas.iter().map(|a| a.bytes).sum();
        let after = usize::try_from(m.bytes).ok().and_then(|b| b.checked_add(mapped));
        if m.arena as usize != l.arenas.len()
            || l.arenas.len() >= ARENAS_MAX
            || after.is_none_or(|b| b > MAPPED_BYTES_MAX)
        {
            return Err(Violation::Malformed);
        }
        if l.arenas.try_reserve(1).is_err() {
            return Err(Violation::NoMemory);
        }
        match arena::map_received(fd, m.bytes) {
            Ok(mapping) => l.arenas.push(mapping),
            Err(MemoryError::NotSealed) => return Err(Violation::Malformed),
            Err(_) => return Err(Violation::NoMemory),
        }
        record(i, |r| r.arena_bytes.store(after.unwrap_or(0) as u64, Relaxed));
        Ok(Then::Nothing)
    }
}
