//! Words over the link, and the way of a connection back to its carrier.
//!
//! A connection leaves the fast path in one way, whatever the cause: both receivers freeze and say
//! how far their applications have come, both senders announce that they go on from there on the
//! carrier, and do so when the peer has seen that (`docs/design/switchover.md`, "Between hosts").
//! It is driven by what comes over the link: [`Remote::step`] looks at both halves and does what
//! can be done, as often as it is called.

use super::links::{self, ConnState};
use super::pairs::PairState;
use super::{LINKS, Remote};
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::io::{self, Apart};
use crate::log::debug_log;
use crate::rdma_thread::{self, RUNNING};
use crate::socket::{Socket, State, flag, offer};
use crate::wire::parting;
use crate::{process, stats, sys, wait};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::rendezvous::{Message, Words, request};
use netacc_proto::switchover::{Ack, Announce};

/// Bytes that go again over the carrier are tried again after so long, at first and at most.
const RESEND_NS: u64 = 1_000_000;
const RESEND_MAX_NS: u64 = 50_000_000;
/// A peer whose link has broken and whose carrier has ended has so long to come back.
const BACK_NS: u64 = 2_000_000_000;

/// An offer that nobody has taken up, and now it is too late for that. (State::Plain: by a forked
/// child, which cannot give it back.)
fn was_not_taken_up(s: &Socket) -> bool {
    let is_there = s.is(State::Candidate) || s.is(State::Plain);
    if !is_there || s.offered.compare_exchange(offer::MADE, offer::TAKEN, SeqCst, Relaxed).is_err()
    {
        return false;
    }
    if s.is(State::Candidate) {
        s.calls.store(0, Relaxed);
        s.lower(flag::NOTED);
        s.offered.store(0, SeqCst);
    }
    true
}

/// A slot serves no connection any more.
pub(super) fn forget_leave(channel: &Channel, slot: usize) {
    if let Some(w) = channel.wire()
        && w.slot(slot).leave.swap(0, SeqCst) & parting::COUNTED != 0
    {
        rdma_thread::uncount_leaving();
    }
}

/// Waits, at most `limit_ns`, until the connections that are on their way back to their carriers
/// have arrived. True: they have.
pub(super) fn finish(limit_ns: u64) -> bool {
    if RUNNING.load(Acquire) != process::id() {
        return true;
    }
    let until = sys::now_ns().saturating_add(limit_ns);
    loop {
        let left = until.saturating_sub(sys::now_ns());
        let count = rdma_thread::LEAVING.load(SeqCst);
        if count == 0 || left == 0 {
            return count == 0;
        }
        sys::futex_wait(&rdma_thread::LEAVING, count, left as i64, true);
    }
}

/// Before a channel serves another link. (Its doorbells stay: sets that have joined it go on
/// hearing them.)
pub(super) fn clear_channel(c: &'static Channel) {
    for s in &c.sockets {
        s.store(core::ptr::null_mut(), Release);
    }
}

/// A connection on its way back.
pub(super) struct Leaving {
    link: usize,
    serial: u32,
    slot: usize,
    apart: Apart,
    /// Bytes wait for room on the carrier: when they are tried again, and the pause after that.
    again_at: u64,
    pause: u64,
}

impl Remote {
    // ---- words ----------------------------------------------------------------------------------

    /// Tells the peers what has changed, and goes on with what that moves.
    pub(super) fn serve_words(&mut self) {
        for i in 0..LINKS {
            let Some(wire) = self.link(i).and_then(|l| l.wire()) else { continue };
            if !wire.dirty.swap(false, SeqCst) {
                continue;
            }
            for (w, word) in wire.dirty_slots.iter().enumerate() {
                let mut bits = word.swap(0, SeqCst);
                while bits != 0 {
                    let slot = w * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    self.say(i, slot, false);
                    self.step(i, slot);
                }
            }
        }
        self.flush_all();
    }

    /// What stands in our words of a slot.
    fn words_of(&self, i: usize, slot: usize) -> Option<Words> {
        let l = self.link(i)?;
        let (channel, wire) = (l.channel?, l.wire()?);
        let c = l.conns.get(slot).filter(|c| c.state == ConnState::Live)?;
        let (out, inb) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
        let epoch = out.producer_user[announce::EPOCH].load(Acquire) as u32;
        let announce = Announce {
            epoch,
            fast_from: out.producer_user[announce::FAST_FROM].load(Relaxed),
            carrier_from: out.producer_user[announce::CARRIER_FROM].load(Relaxed),
            resend_to: out.producer_user[announce::RESEND_TO].load(Relaxed),
        };
        let control = inb.quiet[quiet::ACK].load(Acquire);
        let ack = Ack::from_words(control, inb.quiet[quiet::CONSUMED].load(Relaxed));
        let leaves = wire.slot(slot).leave.load(SeqCst);
        let bits = [
            (parting::WANTED, request::LEAVE),
            (parting::WANTED | parting::AGAIN, request::AGAIN),
            (parting::LEFT, request::LEFT),
        ];
        let request =
            bits.iter().filter(|(all, _)| leaves & all == *all).fold(0, |r, (_, bit)| r | bit);
        Some(Words {
            slot: slot as u16,
            token: c.token,
            announce,
            ack,
            request,
            seen_epoch: inb.producer_user[announce::EPOCH].load(Relaxed) as u32,
            seen_ack: out.quiet[quiet::ACK].load(Relaxed),
        })
    }

    /// Tells the peer, if it does not know.
    fn say(&mut self, i: usize, slot: usize, at_once: bool) {
        let Some(words) = self.words_of(i, slot) else { return };
        if self.is_busy(i) && !at_once {
            // Later: only the last state counts.
            if let Some(w) = self.link(i).and_then(|l| l.wire()) {
                w.mark(slot);
            }
            return self.at(sys::now_ns() + RESEND_MAX_NS);
        }
        let Some(c) = self.link_mut(i).and_then(|l| l.conns.get_mut(slot)) else { return };
        if c.published == Some(words) {
            return;
        }
        c.published = Some(words);
        self.send(i, Message::Words(words));
    }

    /// Our end of a slot is about to be forgotten: the peer need not wait for any answer.
    pub(super) fn say_last(&mut self, i: usize, slot: usize) {
        if let Some(w) = self.link(i).filter(|l| l.is_up()).and_then(|l| l.wire()) {
            w.slot(slot).leave.fetch_or(parting::LEFT, SeqCst);
            self.say(i, slot, true);
        }
    }

    /// The peer's words of a slot.
    pub(super) fn on_words(&mut self, i: usize, w: Words) -> Result<(), links::Fault> {
        let slot = usize::from(w.slot);
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return Ok(()) };
        let Some(c) =
            l.conns.get_mut(slot).filter(|c| c.state == ConnState::Live && c.token == w.token)
        else {
            // Words of a connection whose end is gone here: they wait for no answer.
            let coming = l
                .conns
                .get(slot)
                .is_some_and(|c| c.state == ConnState::Offered && c.token == w.token);
            if !coming && w.request & (request::FORGOTTEN | request::LEFT) == 0 {
                self.send(
                    i,
                    Message::Words(Words {
                        slot: w.slot,
                        token: w.token,
                        request: request::FORGOTTEN,
                        ..Words::default()
                    }),
                );
            }
            return Ok(());
        };
        c.asked = w.request;
        if w.request & request::FORGOTTEN != 0 {
            c.asked |= request::LEFT;
            // (For good, unless it is on its way back for another reason: the peer's words may have
            // crossed ours.)
            if wire.slot(slot).leave.load(SeqCst) & parting::WANTED == 0 {
                channel.ask_to_leave(slot, Reason::PeerAskedForTcp, false);
            }
            channel.words_changed(slot);
            return Ok(());
        }
        let (out, inb) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
        let mut changed = false;
        if inb.producer_user[announce::EPOCH].load(Relaxed) as u32 != w.announce.epoch {
            inb.producer_user[announce::FAST_FROM].store(w.announce.fast_from, Relaxed);
            inb.producer_user[announce::CARRIER_FROM].store(w.announce.carrier_from, Relaxed);
            inb.producer_user[announce::RESEND_TO].store(w.announce.resend_to, Relaxed);
            inb.producer_user[announce::EPOCH].store(u64::from(w.announce.epoch), Release);
            changed = true;
        }
        if out.quiet[quiet::ACK].load(Relaxed) != w.ack.control()
            || out.quiet[quiet::CONSUMED].load(Relaxed) != w.ack.consumed
        {
            out.quiet[quiet::CONSUMED].store(w.ack.consumed, Relaxed);
            out.quiet[quiet::ACK].store(w.ack.control(), Release);
            changed = true;
        }
        let at = wire.slot(slot);
        changed |= at.seen_epoch.swap(w.seen_epoch, SeqCst) != w.seen_epoch;
        changed |= at.seen_ack.swap(w.seen_ack, SeqCst) != w.seen_ack;
        changed |= w.request & request::LEFT != 0;
        // (What one end wants for good is for good at the other, too.)
        let (leaves, again) = (at.leave.load(SeqCst), w.request & request::AGAIN != 0);
        if w.request & (request::LEAVE | request::LEFT) != 0
            && (leaves & parting::WANTED == 0 || (!again && leaves & parting::AGAIN != 0))
        {
            channel.ask_to_leave(slot, Reason::PeerAskedForTcp, w.request & request::AGAIN != 0);
        }
        if changed {
            fence(SeqCst);
            channel.announce_here(slot, inb.quiet[quiet::NOTIFY].load(Relaxed));
            channel.announce_here(slot, out.producer_quiet[producer_quiet::NOTIFY].load(Relaxed));
            // It waits for the echo.
            channel.words_changed(slot);
        }
        Ok(())
    }

    // ---- leaving --------------------------------------------------------------------------------

    /// A pair is lost: what is on it goes on over the carriers, and is tried again.
    pub(super) fn leave_pair(&mut self, i: usize, number: u32) {
        let Some(l) = self.link(i) else { return };
        let Some(channel) = l.channel else { return };
        let slots: Vec<usize> = l
            .conns
            .iter()
            .enumerate()
            .filter(|(_, c)| c.pair == number && c.state == ConnState::Live)
            .map(|(slot, _)| slot)
            .collect();
        for slot in slots {
            channel.ask_to_leave(slot, Reason::RdmaLost, true);
        }
        // Of those whose end is gone the peer will say no more.
        let left = |c: &links::Conn| c.pair == number && c.state == ConnState::Left;
        while let Some(slot) = self
            .link(i)
            .filter(|l| l.pair(number).is_none_or(|p| p.engine.is_none()))
            .and_then(|l| l.conns.iter().position(left))
        {
            self.conn_is_done(i, slot);
        }
    }

    /// The peer is gone with what it had.
    pub(super) fn abandon(&mut self, i: usize) {
        let Some(l) = self.link(i) else { return };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return };
        let live: Vec<usize> = l
            .conns
            .iter()
            .enumerate()
            .filter(|(_, c)| c.state == ConnState::Live)
            .map(|(slot, _)| slot)
            .collect();
        for slot in live {
            channel.ask_to_leave(slot, Reason::RdmaLost, false);
            wire.slot(slot).leave.fetch_or(parting::GONE, SeqCst);
        }
    }

    /// Forked children use connections of this process's: those go back to the carrier.
    pub(super) fn serve_children(&mut self) {
        for i in 0..LINKS {
            let Some(l) = self.link(i) else { continue };
            let Some(channel) = l.channel else { continue };
            let called = |c: &links::Conn| {
                c.state == ConnState::Live
                    && c.socket.is_some_and(|s| {
                        s.generation.load(Acquire) == c.generation && s.has(flag::CALLED_BACK)
                    })
            };
            let slots: Vec<usize> = l
                .conns
                .iter()
                .enumerate()
                .filter(|(_, c)| called(c))
                .map(|(slot, _)| slot)
                .collect();
            for slot in slots {
                channel.ask_to_leave(slot, Reason::InheritedByFork, false);
            }
        }
    }

    /// While a link is broken: connections whose carriers are over have lost their peer.
    pub(super) fn look_at_carriers(&mut self, i: usize) {
        let Some(l) = self.link(i) else { return };
        let live: Vec<usize> = l
            .conns
            .iter()
            .enumerate()
            .filter(|(_, c)| c.state == ConnState::Live)
            .map(|(slot, _)| slot)
            .collect();
        for slot in live {
            self.step(i, slot);
        }
    }

    /// Goes on with a connection that leaves, as far as that is possible now.
    fn step(&mut self, i: usize, slot: usize) {
        let Some(l) = self.link(i) else { return };
        let (serial, up, broken_at) = (l.serial, l.is_up(), l.broken_at);
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return };
        let Some(c) = l.conns.get(slot).filter(|c| c.state == ConnState::Live) else { return };
        let (Some(s), generation, number, peer_left) =
            (c.socket, c.generation, c.pair, c.asked & request::LEFT != 0)
        else {
            return;
        };
        let at = wire.slot(slot);
        let leaves = at.leave.load(SeqCst);
        if leaves & parting::WANTED == 0 {
            return;
        }
        if s.generation.load(Acquire) != generation || !s.is(State::Attached) {
            if s.generation.load(Acquire) == generation && was_not_taken_up(s) {
                self.left(i, slot);
            }
            return;
        }
        // Before its pair is closed a receiver does not know what it has got.
        if l.pair(number).is_some_and(|p| p.state == PairState::Lost && (p.engine.is_some())) {
            return;
        }
        let known =
            self.leaving.iter().position(|x| x.link == i && x.serial == serial && x.slot == slot);
        let index = match known {
            Some(index) => index,
            None => {
                if leaves & parting::AGAIN != 0 {
                    stats::add(Counter::FailOvers, 2);
                }
                self.leaving.push(Leaving {
                    link: i,
                    serial,
                    slot,
                    apart: Apart::new(s),
                    again_at: 0,
                    pause: RESEND_NS,
                });
                self.leaving.len() - 1
            }
        };
        // A carrier that ends while the link is broken: the peer's process is gone. (Not at once:
        // it may have shut down, and be back soon.)
        let late = broken_at != 0 && sys::now_ns().saturating_sub(broken_at) > BACK_NS;
        let gone = leaves & parting::GONE != 0
            || (!up && (late || io::carrier_is_reset(s)) && io::carrier_is_over(s));
        let first = at.leave.fetch_or(parting::FROZEN, SeqCst) & parting::FROZEN == 0;
        let seen = (at.seen_epoch.load(SeqCst), at.seen_ack.load(SeqCst));
        let Some(x) = self.leaving.get_mut(index) else { return };
        let moved = x.apart.step(first, seen, peer_left, gone);
        match moved {
            io::Moved::Waits => x.again_at = 0,
            io::Moved::NoRoom => {
                if x.again_at == 0 {
                    x.again_at = sys::now_ns() + x.pause;
                    x.pause = (x.pause * 2).min(RESEND_MAX_NS);
                }
                let again_at = x.again_at;
                self.at(again_at);
            }
            io::Moved::Broken => {
                at.leave.fetch_or(parting::GONE, SeqCst);
                debug_log!("slot {slot}: the peer is gone with what it had");
                wait::prod(s);
                io::wake_leavers(s);
                let x = self.leaving.swap_remove(index);
                uncount_leaving_of(channel, slot);
                x.apart.give_up();
            }
            io::Moved::Done => {
                let x = self.leaving.swap_remove(index);
                let why = Reason::ALL
                    .get((leaves >> parting::REASON) as usize)
                    .copied()
                    .unwrap_or(Reason::RdmaLost);
                let again =
                    leaves & parting::AGAIN != 0 && !s.has(flag::SHUT_WR | flag::SHUT_RD) && !gone;
                debug_log!(
                    "slot {slot}: back on the carrier ({}){}",
                    why.name(),
                    if again { ", for now" } else { "" }
                );
                if x.apart.conclude(channel, slot, why, again) {
                    self.left(i, slot);
                }
                forget_leave(channel, slot);
            }
        }
    }

    /// Sends on what waited for room.
    pub(super) fn go_on_leaving(&mut self) {
        let now = sys::now_ns();
        let due: Vec<(usize, u32, usize)> = self
            .leaving
            .iter()
            .filter(|x| x.again_at != 0 && x.again_at <= now)
            .map(|x| (x.link, x.serial, x.slot))
            .collect();
        for (i, serial, slot) in due {
            if let Some(x) =
                self.leaving.iter_mut().find(|x| (x.link, x.serial, x.slot) == (i, serial, slot))
            {
                x.again_at = 0;
            }
            if self.link(i).is_some_and(|l| l.serial == serial) {
                self.step(i, slot);
            }
        }
        let next = self.leaving.iter().map(|x| x.again_at).filter(|t| *t != 0).min();
        if let Some(at) = next {
            self.at(at);
        }
        // A link or a slot that is gone needs nothing of this any more.
        let mut at = 0;
        while let Some(x) = self.leaving.get(at) {
            let live = self
                .link(x.link)
                .filter(|l| l.serial == x.serial)
                .and_then(|l| l.conns.get(x.slot))
                .is_some_and(|c| c.state == ConnState::Live);
            if live {
                at += 1;
            } else {
                self.leaving.swap_remove(at).apart.give_up();
            }
        }
        self.flush_all();
    }
}

/// Whoever waits for it need not any more, although the slot stays as it is.
fn uncount_leaving_of(channel: &Channel, slot: usize) {
    if let Some(w) = channel.wire() {
        let old = w.slot(slot).leave.fetch_and(!(parting::WANTED | parting::COUNTED), SeqCst);
        if old & parting::COUNTED != 0 {
            rdma_thread::uncount_leaving();
        }
    }
}
