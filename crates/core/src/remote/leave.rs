//! The way of a connection back to its carrier (`docs/design/leave.md`).
//!
//! It is driven by what comes over the link: [`Remote::step`] looks at both halves and does what
//! can be done, as often as it is called.
//!
//! What happens when a peer process of another host dies, in order:
//!
//! 1. Before the first byte went over RDMA the peer has set SO_LINGER to 0 (`io/promote.rs`,
//!    `io/end_in_reset.rs`). So its kernel ends the carrier by a reset, not a FIN.
//! 2. The queue pair is gone: its connections leave it (`pair_ends.rs` `lose_pair`,
//!    [`Remote::leave_pair`]).
//! 3. The link ends without a word (`links.rs`). That alone says nothing of the peer, and the link
//!    is taken up again if it can be (`broken_links.rs`, `break_link`).
//! 4. Behind a link that is broken each carrier is looked at. Where it has ended, too, the peer is
//!    gone ([`has_lost_its_peer`] decides).
//! 5. The application reads what had arrived, then gets ECONNRESET (`io/leave/step.rs`,
//!    `break_off`). If the carrier lives, the stream goes on there.

use super::Remote;
use super::link::{Conn, Link};
use super::pair::PairState;
use super::probes::Probes;
use crate::channel::Channel;
use crate::io::{self, Departure};
use crate::log::debug_log;
use crate::rdma_thread::{self, RUNNING};
use crate::slots::parting;
use crate::socket::{Socket, State, flag};
use crate::{process, stats, sys, wait};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::SlotState;
use netacc_proto::rendezvous::request;
use netacc_proto::switchover::Peer;

/// Bytes that go again over the carrier are tried again after so long, at first and at most.
const RESEND_NS: u64 = 1_000_000;

pub(super) const RESEND_MAX_NS: u64 = 50_000_000;

/// A peer whose link has broken and whose carrier has ended has so long to come back.
const BACK_NS: u64 = 2_000_000_000;
/// As that, where the pair is lost, too: all three at once is what a process's death looks like.
pub(super) const BACK_LOST_NS: u64 = 200_000_000;

/// An application has so long for what it may have been told is there; and how often that is looked
/// at.
const READ_NS: u64 = 20_000_000;
const READ_LOOK_NS: u64 = 1_000_000;

/// A slot serves no connection any more.
pub(super) fn forget_leave(channel: &Channel, slot: usize) {
    if let Some(w) = channel.far.mirror()
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
    pub(super) link: usize,
    pub(super) serial: u32,
    pub(super) slot: usize,
    pub(super) departure: Departure,
    /// Since when the peer is waited for, found while its link was broken; 0: it is not.
    pub(super) unheard_since: u64,
    pub(super) probes: Probes,
    /// Bytes wait for room on the carrier: when they are tried again, and the pause after that.
    again_at: u64,
    pause: u64,
}

impl Leaving {
    fn new(link: usize, serial: u32, slot: usize, s: &'static Socket) -> Leaving {
        Leaving {
            link,
            serial,
            slot,
            departure: Departure::new(s),
            unheard_since: 0,
            probes: Probes::default(),
            again_at: 0,
            pause: RESEND_NS,
        }
    }

    /// Nothing is waited for any more.
    fn over(self) -> Departure {
        drop(self.probes);
        self.departure
    }
}

impl Remote {
    /// A pair is lost: what is on it goes on over the carriers, and is tried again.
    pub(super) fn leave_pair(&mut self, i: usize, number: u32) {
        let Some(l) = self.link(i) else { return };
        let Some(channel) = l.channel else { return };
        let Some(p) = l.pair(number) else { return };
        let (slots, is_closed): (Vec<usize>, bool) =
            (p.places.slots().collect(), p.engine.is_none());
        for slot in slots {
            let state = self.link(i).and_then(|l| l.conns.get(slot)).map(|c| c.slot);
            if state.is_some_and(|s| s.is_live()) {
                channel.far.demote(slot, Reason::RdmaLost, true);
            } else if is_closed && state.is_some_and(|s| s.state == SlotState::Left) {
                // Its end is gone, and the peer will say no more of it.
                self.memory_is_back(i, slot);
            }
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
            .filter(|(_, c)| c.slot.is_live())
            .map(|(slot, _)| slot)
            .collect();
        for slot in live {
            channel.far.demote(slot, Reason::RdmaLost, false);
            wire.slot(slot).leave.fetch_or(parting::GONE, SeqCst);
        }
    }

    /// Forked children use connections of this process's: those go back to the carrier.
    pub(super) fn serve_children(&mut self) {
        for i in 0..self.links.len() {
            let Some(l) = self.link(i) else { continue };
            let Some(channel) = l.channel else { continue };
            let called = |c: &Conn| {
                c.slot.is_live()
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
                channel.far.demote(slot, Reason::InheritedByFork, false);
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
            .filter(|(_, c)| c.slot.is_live())
            .map(|(slot, _)| slot)
            .collect();
        for slot in live {
            self.step(i, slot);
        }
    }

    /// Goes on with a connection that leaves, as far as that is possible now.
    pub(super) fn step(&mut self, i: usize, slot: usize) {
        let Some(l) = self.link(i) else { return };
        let serial = l.serial;
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return };
        let Some(c) = l.conns.get(slot).filter(|c| c.slot.is_live()) else { return };
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
            if s.generation.load(Acquire) == generation && s.take_offer_back() {
                self.left(i, slot);
            }
            return;
        }
        // Before its pair is closed a receiver does not know what it has got.
        if l.pair(number).is_some_and(|p| p.state == PairState::Lost && (p.engine.is_some())) {
            return;
        }
        let is_ready = l.pair(number).is_some_and(|p| p.state == PairState::Ready);
        let gone = leaves & parting::GONE != 0 || has_lost_its_peer(l, s, is_ready);
        let known =
            self.leaving.iter().position(|x| x.link == i && x.serial == serial && x.slot == slot);
        let waits = known.is_none() && !gone && is_ready && leaves & parting::AGAIN != 0;
        if waits && (self.awaits_peer(i, slot, leaves) || self.awaits_reader(i, slot, s, leaves)) {
            return;
        }
        let index = match known {
            Some(index) => index,
            None => {
                if leaves & parting::AGAIN != 0 {
                    stats::add(Counter::FailOvers, 2);
                }
                self.leaving.push(Leaving::new(i, serial, slot, s));
                self.leaving.len() - 1
            }
        };
        let seen = (at.seen_epoch.load(SeqCst), at.seen_ack.load(SeqCst));
        let peer = match () {
            _ if gone => Peer::Gone,
            _ if peer_left => Peer::Left,
            _ => Peer::Lives,
        };
        let Some(x) = self.leaving.get_mut(index) else { return };
        match x.departure.step(seen, peer) {
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
                x.over().give_up();
            }
            io::Moved::Done => {
                let x = self.leaving.swap_remove(index);
                let why = Reason::ALL
                    .get((leaves >> parting::REASON) as usize)
                    .copied()
                    .unwrap_or(Reason::RdmaLost);
                let again =
                    leaves & parting::AGAIN != 0 && !s.has(flag::SHUT_WR | flag::SHUT_RD) && !gone;
                // It was to come back with larger rings.
                let over = why == Reason::Negotiating && !again;
                let why = if over { Reason::ShuttingDown } else { why };
                debug_log!(
                    "slot {slot}: back on the carrier ({}){}",
                    why.name(),
                    if again { ", for now" } else { "" }
                );
                if x.over().conclude(channel, slot, why, again) {
                    self.left(i, slot);
                }
                forget_leave(channel, slot);
            }
        }
    }

    /// It has outgrown its rings, and its peer has not said yet that it leaves, too. Until then
    /// nothing freezes: should the peer stand still, what has come is read, and what is sent
    /// spills.
    fn awaits_peer(&self, i: usize, slot: usize, leaves: u32) -> bool {
        const HEARD: u32 = request::LEAVE | request::LEFT;
        let asked = self.link(i).and_then(|l| Some(l.conns.get(slot)?.asked));
        leaves >> parting::REASON == Reason::Negotiating as u32
            && asked.is_some_and(|asked| asked & HEARD == 0)
    }

    /// One of the two ends has outgrown its rings, and the application here may have been told that
    /// there are bytes for it. It has a moment for them, before they are taken back and come again.
    fn awaits_reader(&mut self, i: usize, slot: usize, s: &Socket, leaves: u32) -> bool {
        let why = leaves >> parting::REASON;
        let grows = why == Reason::Negotiating as u32 || why == Reason::PeerAskedForTcp as u32;
        let now = sys::now_ns();
        let room = self.readers.try_reserve(1).is_ok();
        let Some(l) = self.link_mut(i).filter(|_| grows && room) else { return false };
        let (serial, Some(channel)) = (l.serial, l.channel) else { return false };
        let Some(c) = l.conns.get_mut(slot) else { return false };
        let inbound = channel.words(slot, channel.side ^ 1);
        if c.leaves_since == 0 {
            c.leaves_since = now;
        }
        let late = now.saturating_sub(c.leaves_since) > READ_NS;
        if late || !s.published.ring_says(inbound, &s.rx_offset).0 {
            return false;
        }
        if !core::mem::replace(&mut c.awaits_reader, true) {
            self.readers.push((i, serial, slot));
        }
        self.at(now + READ_LOOK_NS);
        true
    }

    /// Looks again at those whose readers are waited for.
    pub(super) fn time_readers(&mut self) {
        for (i, serial, slot) in core::mem::take(&mut self.readers) {
            let link = self.link_mut(i).filter(|l| l.serial == serial);
            if let Some(c) = link.and_then(|l| l.conns.get_mut(slot)) {
                c.awaits_reader = false;
                self.step(i, slot);
            }
        }
    }

    /// Nobody wants what a connection on its way still owes: its socket has given the slot up,
    /// which may serve another one.
    pub(super) fn departs_no_more(&mut self, i: usize, slot: usize) {
        let serial = self.link(i).map(|l| l.serial);
        let on_slot = |x: &Leaving| x.link == i && Some(x.serial) == serial && x.slot == slot;
        if let Some(at) = self.leaving.iter().position(on_slot) {
            self.leaving.swap_remove(at).over().give_up();
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
                .is_some_and(|c| c.slot.is_live());
            if live {
                at += 1;
            } else {
                self.leaving.swap_remove(at).over().give_up();
            }
        }
        self.flush_all();
    }
}

/// A carrier that ends while the link is broken: the peer's process is gone. (Where nothing else
/// says so, not at once: it may have shut down, and be back soon.)
fn has_lost_its_peer(l: &Link, s: &Socket, is_ready: bool) -> bool {
    let patience = if is_ready { BACK_NS } else { BACK_LOST_NS };
    let late = l.broken_at != 0 && sys::now_ns().saturating_sub(l.broken_at) > patience;
    !l.is_up() && (l.deserted || late || io::carrier_is_reset(s)) && io::carrier_is_over(s)
}

/// Whoever waits for it need not any more, although the slot stays as it is.
fn uncount_leaving_of(channel: &Channel, slot: usize) {
    if let Some(w) = channel.far.mirror() {
        let old = w.slot(slot).leave.fetch_and(!(parting::WANTED | parting::COUNTED), SeqCst);
        if old & parting::COUNTED != 0 {
            rdma_thread::uncount_leaving();
        }
    }
}
