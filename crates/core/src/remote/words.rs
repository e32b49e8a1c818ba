//! Words over the link: what each end of a connection says of its switch, and has seen of the
//! peer's (`docs/design/switchover.md`, "Between hosts").

use super::Remote;
use super::leave::RESEND_MAX_NS;
use super::link::Fault;
use crate::channel::{announce, producer_quiet, quiet};
use crate::slots::parting;
use crate::sys;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::agreement::SlotState;
use netacc_proto::rendezvous::{Message, Words, request};
use netacc_proto::switchover::{Ack, Announce};

impl Remote {
    /// Tells the peers what has changed, and goes on with what that moves.
    pub(super) fn serve_words(&mut self) {
        for i in 0..self.links.len() {
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
        let c = l.conns.get(slot).filter(|c| c.slot.is_live())?;
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
            token: c.slot.token,
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
    pub(super) fn on_words(&mut self, i: usize, w: Words) -> Result<(), Fault> {
        let slot = usize::from(w.slot);
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return Ok(()) };
        let Some(c) = l.conns.get_mut(slot).filter(|c| c.slot.is_live() && c.slot.token == w.token)
        else {
            // Words of a connection whose end is gone here: they wait for no answer.
            let coming = l
                .conns
                .get(slot)
                .is_some_and(|c| c.slot.state == SlotState::Offered && c.slot.token == w.token);
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
        let asks = w.request & !c.asked & request::LEAVE != 0;
        c.asked = w.request;
        if w.request & request::FORGOTTEN != 0 {
            c.asked |= request::LEFT;
            // (For good, unless it is on its way back for another reason: the peer's words may have
            // crossed ours.)
            if wire.slot(slot).leave.load(SeqCst) & parting::WANTED == 0 {
                channel.far.demote(slot, Reason::PeerAskedForTcp, false);
            }
            channel.far.words_changed(slot);
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
        changed |= asks || w.request & request::LEFT != 0;
        // (What one end wants for good is for good at the other, too.)
        let (leaves, again) = (at.leave.load(SeqCst), w.request & request::AGAIN != 0);
        if w.request & (request::LEAVE | request::LEFT) != 0
            && (leaves & parting::WANTED == 0 || (!again && leaves & parting::AGAIN != 0))
        {
            channel.far.demote(slot, Reason::PeerAskedForTcp, w.request & request::AGAIN != 0);
        }
        if changed {
            channel.announce_here(slot, &inb.quiet[quiet::NOTIFY]);
            channel.announce_here(slot, &out.producer_quiet[producer_quiet::NOTIFY]);
            // It waits for the echo.
            channel.far.words_changed(slot);
        }
        Ok(())
    }
}
