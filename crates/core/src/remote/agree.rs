//! Which connections are accelerated: candidates, offers, and the slots of a channel.

use super::links::{Conn, ConnState, Fault, Link};
use super::pairs::{PairState, unlink};
use super::{LINKS, Mine, Remote, Theirs, apart, net};
use crate::channel::Channel;
use crate::channel::{BY_KERNEL, ChannelMem};
use crate::lock::lock_end;
use crate::log::debug_log;
use crate::rendezvous::table::Key;
use crate::socket::{ATTACHED, ATTACHING, Offer};
use crate::socket::{CANDIDATE, Socket, flag, offer};
use crate::stats;
use crate::syn::Said;
use crate::wire::Wire;
use crate::{rdma_thread, sys};
use core::net::{IpAddr, SocketAddr};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Counter;
use netacc_control::stats::Reason;
use netacc_proto::remote::Proof;
use netacc_proto::remote::{self as proto, Frame, refuse};
use netacc_proto::rendezvous::Role;
use netacc_proto::rendezvous::Tuple;
use netacc_rdma::arena::Rings;
use netacc_ring::RingWords;

/// An accepted connection whose peer's library has not spoken for so long has none.
const SILENT_NS: u64 = 30_000_000_000;
/// Candidates whose connections are over are withdrawn after so long.
const SWEEP_NS: u64 = 10_000_000_000;
/// A connection that was offered a place which is not free at the peer is offered another one after
/// so long.
const BUSY_NS: u64 = 5_000_000;
/// Candidates of one link that wait here.
const CANDIDATES_PER_LINK: u32 = 4096;

/// There will be no agreement on a connection, for that reason.
fn verdict(s: &'static Socket, generation: u32, why: Reason) {
    let _tx = lock_end(&s.tx_lock);
    if s.generation.load(Acquire) == generation && s.is(CANDIDATE) && s.has(flag::REMOTE) {
        s.set_reason(why);
        s.verdict.store(why as u32, Relaxed);
        let _ = s.offered.compare_exchange(0, offer::NEVER, SeqCst, Relaxed);
    }
}

/// Nothing has come of an agreement: the connection's next calls ask for another one.
fn ask_again(m: &Mine) {
    let _tx = lock_end(&m.socket.tx_lock);
    if m.is_current() && m.socket.offered.load(SeqCst) == 0 {
        m.socket.calls.store(0, Relaxed);
        m.socket.lower(flag::NOTED);
    }
}

impl Remote {
    /// A connection of ours is used.
    pub(super) fn on_note(&mut self, s: &'static Socket, generation: u32) {
        let mine =
            Mine { socket: s, generation, announced: 0, offered: None, since: sys::now_ns() };
        if !mine.is_current() {
            return;
        }
        let tuple = s.tuple();
        if !mine.is_current() {
            return;
        }
        let local = tuple.local().ip();
        let connector = s.has(flag::CONNECTOR);
        let found = if connector && s.has(flag::RDMA_FIRST) {
            // Both addresses are this host's: nobody needs to be asked whether RDMA serves them.
            let devices = self.device_at(local).and_then(|_| self.device_at(tuple.peer().ip()));
            devices.and_then(|_| self.seek(local, tuple.peer()))
        } else if connector {
            self.seek(local, tuple.peer())
        } else if self.is_down(local) {
            Ok(())
        } else {
            self.device_at(local).map(|_| ())
        };
        if let Err(why) = found {
            return verdict(s, generation, why);
        }
        let table = if connector { &mut self.connected } else { &mut self.accepted };
        if let Some(old) = table.find(&tuple, |_| true) {
            table.remove(old);
        }
        if table.is_full() {
            let evicted = table.oldest().and_then(|k| table.remove(k));
            if let Some((_, m)) = evicted {
                verdict(m.socket, m.generation, Reason::PeerWithoutLibrary);
            }
        }
        let table = if connector { &mut self.connected } else { &mut self.accepted };
        let Some(key) = table.insert(tuple, 0, mine) else { return };
        if !connector {
            self.at(sys::now_ns() + SILENT_NS);
            return self.agree(tuple);
        }
        if self.sweep_at == 0 {
            self.sweep_at = sys::now_ns() + SWEEP_NS;
            let at = self.sweep_at;
            self.at(at);
        }
        for i in 0..LINKS {
            self.announce(i, key);
        }
    }

    /// Tells a link of a candidate.
    fn announce(&mut self, i: usize, key: Key) {
        let Some((tuple, m)) = self.connected.get(key) else { return };
        let tuple = *tuple;
        let fits = |l: &Link| {
            l.role == Role::Connector
                && l.is_up()
                && l.local == tuple.local().ip()
                && l.peer == tuple.peer().ip()
                && l.port == tuple.peer_port()
        };
        if m.announced & 1 << i != 0 || !self.link(i).is_some_and(fits) || self.is_busy(i) {
            return;
        }
        let proof = m.socket.syn.proof();
        if let Some(m) = self.connected.get_mut(key) {
            m.announced |= 1 << i;
        }
        self.send(i, Frame::Candidate(proto::Candidate { tuple, token: key.0, proof }));
    }

    pub(super) fn announce_all(&mut self, i: usize) {
        let mut at = self.connected.oldest();
        while let Some(key) = at {
            at = self.connected.after(key);
            self.announce(i, key);
        }
    }

    /// Nobody is at that place: what waits for it stays where it is.
    pub(super) fn give_up_on(&mut self, local: IpAddr, peer: SocketAddr, why: Reason) {
        let mut at = self.connected.oldest();
        while let Some(key) = at {
            at = self.connected.after(key);
            if self
                .connected
                .get(key)
                .is_some_and(|(t, _)| t.local().ip() == local && t.peer() == peer)
                && let Some((_, m)) = self.connected.remove(key)
            {
                verdict(m.socket, m.generation, why);
            }
        }
    }

    /// Accepted connections that nobody asks for.
    pub(super) fn time_waiting(&mut self) {
        let now = sys::now_ns();
        while let Some(key) = self.accepted.oldest() {
            let Some((_, m)) = self.accepted.get(key) else { return };
            if now < m.since + SILENT_NS {
                let at = m.since + SILENT_NS;
                return self.at(at);
            }
            let Some((tuple, m)) = self.accepted.remove(key) else { continue };
            if !m.is_current() {
                continue;
            }
            let is_asked_for =
                m.offered.is_some() || self.candidates.find(&tuple, |_| true).is_some();
            let known = self
                .links
                .iter()
                .flatten()
                .any(|l| l.role == Role::Acceptor && l.is_up() && l.peer == tuple.peer().ip());
            if is_asked_for || known {
                // It is being seen to, or its process may be one of those that are known, and has
                // not used it enough. (It gets a new key: who has offered it knows it by that.)
                let offered = m.offered;
                if !is_asked_for {
                    m.socket.set_reason(Reason::PeerRefused);
                }
                let new = self.accepted.insert(tuple, 0, Mine { since: now, ..m });
                if let (Some(l), Some(new)) = (offered.and_then(|i| self.link_mut(i)), new) {
                    l.conns
                        .iter_mut()
                        .filter(|c| c.state == ConnState::Offered && c.waiting == key)
                        .for_each(|c| c.waiting = new);
                }
                continue;
            }
            verdict(m.socket, m.generation, Reason::PeerWithoutLibrary);
        }
    }

    /// Withdraws candidates whose connections are over: another process may have one between the
    /// same ports after them.
    pub(super) fn sweep(&mut self) {
        let now = sys::now_ns();
        if self.sweep_at == 0 || now < self.sweep_at {
            let at = self.sweep_at;
            return if at != 0 {
                self.at(at)
            };
        }
        let mut at = self.connected.oldest();
        let mut any = false;
        while let Some(key) = at {
            at = self.connected.after(key);
            if self.connected.get(key).is_none_or(|(_, m)| m.is_current()) {
                any = true;
                continue;
            }
            let told = self.connected.remove(key).map_or(0, |(_, m)| m.announced);
            for i in (0..LINKS).filter(|i| told & 1 << i != 0) {
                self.send(i, Frame::Withdraw { token: key.0 });
            }
        }
        self.sweep_at = if any { now + SWEEP_NS } else { 0 };
        let at = self.sweep_at;
        if at != 0 {
            self.at(at);
        }
    }

    /// Why connections that wait for a pair of this link are where they are.
    pub(super) fn explain_waiting(&mut self, i: usize, why: Reason) {
        let Some(l) = self.link(i) else { return };
        for tuple in &l.waiting {
            if let Some((_, m)) = self
                .accepted
                .find(tuple, |_| true)
                .and_then(|k| self.accepted.get(k))
                .filter(|(_, m)| m.is_current())
            {
                m.socket.set_reason(why);
            }
        }
    }

    // ---- the acceptor ---------------------------------------------------------------------------

    pub(super) fn on_candidate(&mut self, i: usize, c: proto::Candidate) -> Result<(), Fault> {
        let tuple = c.tuple.mirrored();
        let Some(l) = self.link(i) else { return Ok(()) };
        // It can only speak for connections between its address and ours: its own address took
        // TCP's handshake to prove. (Where addresses are translated in between, an honest peer
        // claims others.)
        if tuple.local().ip() != l.local
            || tuple.peer().ip() != l.peer
            || tuple.local_port() != l.port
        {
            stats::count(Counter::AuthFailures);
            self.send(i, Frame::Withdraw { token: c.token });
            return Ok(());
        }
        if self.candidates.is_full() {
            let oldest = self.candidates.oldest();
            if let Some(k) = oldest {
                self.drop_candidate(k);
            }
        }
        // Two claims to one connection: neither is believed, now or later (users of one host could
        // claim each other's).
        if self.has_rival(i, &tuple) {
            self.contest(&tuple);
            return Ok(());
        }
        self.add_candidate(i, tuple, c.token, c.proof);
        self.agree(tuple);
        Ok(())
    }

    fn add_candidate(&mut self, i: usize, tuple: Tuple, token: u64, proof: Proof) {
        if let Some(old) = self.candidates.find_number(token, |x| x.link == i) {
            self.drop_candidate(old);
        }
        // One peer's must not push out the others'.
        if self.link(i).is_some_and(|l| l.candidates >= CANDIDATES_PER_LINK) {
            return;
        }
        let added =
            self.candidates.insert(tuple, token, Theirs { link: i, token, proof }).is_some();
        if let Some(l) = self.link_mut(i).filter(|_| added) {
            l.candidates += 1;
        }
    }

    fn drop_candidate(&mut self, key: Key) {
        if let Some((_, theirs)) = self.candidates.remove(key)
            && let Some(l) = self.link_mut(theirs.link)
        {
            l.candidates = l.candidates.saturating_sub(1);
        }
    }

    /// Another process than that of link `i` claims the connection, or has it.
    fn has_rival(&self, i: usize, tuple: &Tuple) -> bool {
        let has = |c: &Conn| {
            c.socket
                .is_some_and(|s| s.generation.load(Acquire) == c.generation && s.tuple() == *tuple)
        };
        let offered = self.accepted.find(tuple, |m| m.offered.is_some_and(|o| o != i)).is_some();
        offered
            || self.candidates.find(tuple, |x| x.link != i).is_some()
            || self.links.iter().enumerate().any(|(o, l)| {
                o != i
                    && l.as_ref().is_some_and(|l| {
                        l.role == Role::Acceptor
                            && l.peer == tuple.peer().ip()
                            && l.conns.iter().any(has)
                    })
            })
    }

    /// A connection that two processes claim stays on TCP, or goes back there, for good.
    fn contest(&mut self, tuple: &Tuple) {
        stats::count(Counter::AuthFailures);
        if may_warn() {
            crate::log::warn_log!(
                "two processes claim the connection from {}: it stays on TCP",
                tuple.peer()
            );
        }
        while let Some(key) = self.candidates.find(tuple, |_| true) {
            self.drop_candidate(key);
        }
        if let Some((_, m)) =
            self.accepted.find(tuple, |_| true).and_then(|k| self.accepted.remove(k))
        {
            verdict(m.socket, m.generation, Reason::NotAuthenticated);
        }
        for l in self.links.iter().flatten() {
            for (slot, c) in l.conns.iter().enumerate().filter(|(_, c)| c.state == ConnState::Live)
            {
                if let (Some(channel), true) =
                    (l.channel, c.socket.is_some_and(|s| s.tuple() == *tuple))
                {
                    channel.ask_to_leave(slot, Reason::NotAuthenticated, false);
                }
            }
        }
    }

    pub(super) fn on_withdraw(&mut self, i: usize, token: u64) -> Result<(), Fault> {
        if self.link(i).is_some_and(|l| l.role == Role::Connector) {
            let key = Key(token);
            if self.connected.get(key).is_some_and(|(_, m)| m.announced & 1 << i != 0)
                && let Some((_, m)) = self.connected.remove(key)
            {
                verdict(m.socket, m.generation, Reason::PeerRefused);
            }
            return Ok(());
        }
        if let Some(key) = self.candidates.find_number(token, |x| x.link == i) {
            self.drop_candidate(key);
        }
        Ok(())
    }

    /// Makes an offer for a connection of which both parts are known, if there is a place for it.
    fn agree(&mut self, tuple: Tuple) {
        let Some(waiting) = self.accepted.find(&tuple, |m| m.offered.is_none()) else { return };
        if !self.accepted.get(waiting).is_some_and(|(_, m)| m.is_current()) {
            self.accepted.remove(waiting);
            return;
        }
        let Some(candidate) = self.candidates.find(&tuple, |_| true) else { return };
        let Some((i, token, proof)) =
            self.candidates.get(candidate).map(|(_, t)| (t.link, t.token, t.proof))
        else {
            return;
        };
        if !self.link(i).is_some_and(Link::is_up) {
            self.drop_candidate(candidate);
            return;
        }
        if !self.is_believed(waiting, proof) {
            // For good: a claim is a guess at most once.
            return self.decline(waiting, candidate, Reason::NotAuthenticated);
        }
        let lane = if self.is_busy(i) { None } else { self.free_lane(i) };
        let Some((pair, lane)) = lane else {
            if let Some(l) = self.link_mut(i)
                && !l.waiting.contains(&tuple)
            {
                l.waiting.push_back(tuple);
            }
            self.at(sys::now_ns() + BUSY_NS * 20);
            return self.want_pairs(i);
        };
        let Some(slot) = self.free_slot(i) else {
            return self.decline(waiting, candidate, Reason::ChannelFull);
        };
        let rings = match self.take_rings(i) {
            Ok(rings) => rings,
            Err(why) => return self.decline(waiting, candidate, why),
        };
        self.drop_candidate(candidate);
        if let Some(m) = self.accepted.get_mut(waiting) {
            m.offered = Some(i);
        }
        let Some(l) = self.link_mut(i) else { return };
        if let Some(p) = l.pair_mut(pair) {
            if p.reused() {
                stats::count(Counter::RdmaPairsReused);
            }
            p.take(lane);
        }
        if let Some(c) = l.conns.get_mut(slot) {
            *c = Conn {
                state: ConnState::Offered,
                token,
                proof,
                waiting,
                pair,
                lane,
                rings: Some(rings),
                ..Conn::FREE
            };
        }
        stats::count(Counter::OffersSent);
        self.send(i, Frame::Offer(proto::Offer { token, slot: slot as u16, pair, lane }));
    }

    /// Whether a claim to a connection says of its SYN what the kernel has kept of it. (Where
    /// nothing is kept, it is believed by its addresses.)
    fn is_believed(&self, waiting: Key, proof: Proof) -> bool {
        let Some((tuple, m)) = self.accepted.get(waiting) else { return false };
        let Said::Stamp(stamp) = m.socket.syn.said() else { return true };
        if !proof.knows() {
            debug_log!("the peer of the connection from {} knows nothing of its SYN", tuple.peer());
        } else if !proof.fits(stamp) {
            stats::count(Counter::AuthFailures);
            if may_warn() {
                crate::log::warn_log!(
                    "a claim to the connection from {} knows another SYN than its: it stays on TCP",
                    tuple.peer()
                );
            }
        }
        proof.fits(stamp)
    }

    /// There will be no offer, and the peer need not wait for one.
    fn decline(&mut self, waiting: Key, candidate: Key, why: Reason) {
        if let Some((_, m)) = self.accepted.remove(waiting) {
            verdict(m.socket, m.generation, why);
        }
        let theirs = self.candidates.get(candidate).map(|(_, t)| (t.link, t.token));
        self.drop_candidate(candidate);
        if let Some((i, token)) = theirs {
            self.send(i, Frame::Withdraw { token });
        }
    }

    /// A free place on a pair.
    fn free_lane(&self, i: usize) -> Option<(u32, u16)> {
        let l = self.link(i)?;
        // The fullest first, so that the others may become empty.
        let usable =
            l.pairs.iter().filter(|p| p.state == PairState::Ready && p.used.iter().any(|u| !*u));
        let p = usable.max_by_key(|p| p.used.iter().filter(|u| **u).count())?;
        let lane = p.used.iter().position(|u| !*u)?;
        Some((p.number, lane as u16))
    }

    fn free_slot(&mut self, i: usize) -> Option<usize> {
        let l = self.link_mut(i)?;
        let free = |c: &Conn| c.state == ConnState::Free;
        if let Some(at) = l.conns.iter().skip(l.refused).position(free) {
            return Some(l.refused + at);
        }
        if l.conns.len() >= BY_KERNEL || l.conns.try_reserve(1).is_err() {
            return l.conns.iter().position(free);
        }
        l.conns.push(Conn::FREE);
        Some(l.conns.len() - 1)
    }

    /// Connections that are over wait for no place any more.
    pub(super) fn forget_waiting(&mut self, i: usize) {
        let Some(mut waiting) = self.link_mut(i).map(|l| core::mem::take(&mut l.waiting)) else {
            return;
        };
        waiting.retain(|tuple| {
            self.accepted.find(tuple, |m| m.offered.is_none() && m.is_current()).is_some()
        });
        if let Some(l) = self.link_mut(i) {
            l.waiting = waiting;
        }
    }

    /// Connections that waited for a place: there may be one.
    pub(super) fn serve_waiting(&mut self, i: usize) {
        // Each at most once: `agree` may put one back.
        let count = self.link(i).map_or(0, |l| l.waiting.len());
        for _ in 0..count {
            if self.free_lane(i).is_none() {
                return;
            }
            let Some(tuple) = self.link_mut(i).and_then(|l| l.waiting.pop_front()) else { return };
            self.agree(tuple);
        }
    }

    pub(super) fn on_accept(&mut self, i: usize, token: u64, slot: u16) -> Result<(), Fault> {
        let slot = usize::from(slot);
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        if l.conns.get(slot).is_some_and(|c| {
            !matches!(c.state, ConnState::Free | ConnState::Offered) && c.token == token
        }) {
            // Said again after the link had broken.
            return Ok(());
        }
        let Some(c) =
            l.conns.get_mut(slot).filter(|c| c.state == ConnState::Offered && c.token == token)
        else {
            return Err(Fault::Malformed);
        };
        let (waiting, rings) = (c.waiting, c.rings.take());
        let mine = self.accepted.remove(waiting).map(|(_, m)| m);
        let Some(rings) = rings else { return Err(Fault::Malformed) };
        let at = place_of(&rings);
        if !self.open(i, slot, token, rings) {
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

    pub(super) fn on_refuse(
        &mut self,
        i: usize,
        token: u64,
        slot: u16,
        reason: u16,
    ) -> Result<(), Fault> {
        let slot = usize::from(slot);
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        let Some(c) =
            l.conns.get_mut(slot).filter(|c| c.state == ConnState::Offered && c.token == token)
        else {
            return Err(Fault::Malformed);
        };
        let (waiting, proof, rings) = (c.waiting, c.proof, c.rings.take());
        c.freed = true;
        stats::count(Counter::OffersRefused);
        if let Some(rings) = rings {
            self.give_rings_back(i, rings);
        }
        self.conn_is_done(i, slot);
        if reason == refuse::NO_MEMORY
            && let Some((_, m)) = self.accepted.remove(waiting)
        {
            verdict(m.socket, m.generation, Reason::PeerRefused);
        } else if let Some((tuple, m)) =
            self.accepted.get(waiting).map(|(t, m)| (*t, m.is_current()))
        {
            if let Some(m) = self.accepted.get_mut(waiting) {
                m.offered = None;
            }
            if reason == refuse::BUSY && m {
                if let Some(l) = self.link_mut(i) {
                    // (It may be in use there for long: by a connection that was broken off, and
                    // that nobody closes.)
                    l.refused = slot + 1;
                }
                // What it was offered is not free there yet: again in a moment.
                self.add_candidate(i, tuple, token, proof);
                if let Some(l) = self.link_mut(i) {
                    l.waiting.push_back(tuple);
                }
                self.at(sys::now_ns() + BUSY_NS);
            } else if m {
                // It may have been told of under another name since.
                self.agree(tuple);
            }
        }
        Ok(())
    }

    pub(super) fn on_freed(&mut self, i: usize, slot: u16) -> Result<(), Fault> {
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        let Some(c) = l.conns.get_mut(usize::from(slot)) else { return Err(Fault::Malformed) };
        l.refused = 0;
        match c.state {
            // Said again after the link had broken.
            ConnState::Free | ConnState::Offered => return Ok(()),
            _ => c.freed = true,
        }
        if c.state == ConnState::Done {
            self.conn_is_done(i, usize::from(slot));
        }
        Ok(())
    }

    // ---- the connector --------------------------------------------------------------------------

    pub(super) fn on_offer(&mut self, i: usize, o: proto::Offer) -> Result<(), Fault> {
        stats::count(Counter::OffersReceived);
        let slot = usize::from(o.slot);
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        if slot >= BY_KERNEL {
            return Err(Fault::Malformed);
        }
        while l.conns.len() <= slot {
            if l.conns.try_reserve(1).is_err() {
                return Err(Fault::NoMemory);
            }
            l.conns.push(Conn::FREE);
        }
        if l.conns.get(slot).is_some_and(|c| c.state != ConnState::Free && c.token == o.token) {
            // Our answer was lost with an earlier link.
            self.send(i, Frame::Accept { token: o.token, slot: o.slot });
            return Ok(());
        }
        let free = l.conns.get(slot).is_some_and(|c| c.state == ConnState::Free);
        let lane_free = l.pair(o.pair).is_some_and(|p| {
            p.state == PairState::Ready && p.used.get(usize::from(o.lane)) == Some(&false)
        });
        let key = Key(o.token);
        let known = self
            .connected
            .get(key)
            .is_some_and(|(_, m)| m.announced & 1 << i != 0 && m.is_current());
        // Another process has offered for this connection before.
        let rival = (0..LINKS).filter(|other| *other != i).find_map(|other| {
            let l = self.link(other)?;
            let slot =
                l.conns.iter().position(|c| c.state == ConnState::Live && c.token == o.token)?;
            Some((l.channel?, slot))
        });
        if let Some((channel, slot)) = rival {
            stats::count(Counter::AuthFailures);
            channel.ask_to_leave(slot, Reason::NotAuthenticated, false);
        }
        let reason = if !known {
            Some(refuse::WITHDRAWN)
        } else if !free || !lane_free {
            Some(refuse::BUSY)
        } else {
            None
        };
        let refused = |r: &mut Remote, reason| {
            stats::count(Counter::OffersRefused);
            r.send(i, Frame::Refuse { token: o.token, slot: o.slot, reason });
            Ok(())
        };
        if let Some(reason) = reason {
            return refused(self, reason);
        }
        let rings = match self.take_rings(i) {
            Ok(rings) => rings,
            Err(why) => {
                if let Some((_, m)) = self.connected.remove(key) {
                    verdict(m.socket, m.generation, why);
                }
                return refused(self, refuse::NO_MEMORY);
            }
        };
        let Some((_, m)) = self.connected.remove(key) else {
            return refused(self, refuse::WITHDRAWN);
        };
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        if let Some(p) = l.pair_mut(o.pair) {
            if p.reused() {
                stats::count(Counter::RdmaPairsReused);
            }
            p.take(o.lane);
        }
        if let Some(c) = l.conns.get_mut(slot) {
            *c = Conn { token: o.token, pair: o.pair, lane: o.lane, ..Conn::FREE };
        }
        let at = place_of(&rings);
        let opened = self.open(i, slot, o.token, rings);
        self.send(i, Frame::Accept { token: o.token, slot: o.slot });
        if opened {
            self.hand_over(i, slot, &m, at);
        } else {
            self.left_for_now(i, slot);
            ask_again(&m);
        }
        for other in (0..LINKS).filter(|other| *other != i && m.announced & 1 << other != 0) {
            self.send(other, Frame::Withdraw { token: o.token });
        }
        Ok(())
    }

    // ---- both -----------------------------------------------------------------------------------

    /// Opens a lane for a slot. The words are fresh. False: the pair is lost meanwhile.
    fn open(&mut self, i: usize, slot: usize, token: u64, rings: Rings<net::Net>) -> bool {
        let Some(l) = self.link_mut(i) else { return false };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return false };
        let Some(c) = l.conns.get_mut(slot) else { return false };
        c.state = ConnState::Live;
        l.connections += 1;
        let Some(c) = l.conns.get_mut(slot) else { return false };
        (c.said, c.asked, c.freed) = (None, 0, false);
        let (number, lane) = (c.pair, c.lane);
        for d in 0..2 {
            zero(channel.words(slot, d));
        }
        let at = wire.slot(slot);
        at.seen_epoch.store(0, Relaxed);
        at.seen_ack.store(0, Relaxed);
        apart::forget_leave(channel, slot);
        at.lane.store(u32::from(lane), Relaxed);
        let link = l.pair(number).filter(|p| p.state == PairState::Ready).and_then(|p| {
            // SAFETY: alive while the pair is ready.
            let context = unsafe { p.context().as_ref() }?;
            context.slots.get(usize::from(lane))?.store(slot as u32 + 1, Release);
            p.link.clone()
        });
        let Some(link) = link else {
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
        match unsafe { link.open(lane, out, inb, rings, token) } {
            Ok(_) => {
                at.link.store(alloc::sync::Arc::as_ptr(&link).cast_mut(), Release);
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
    fn hand_over(
        &mut self,
        i: usize,
        slot: usize,
        m: &Mine,
        (tx_ring, rx_ring, bytes): (*mut u8, *mut u8, usize),
    ) {
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
            if m.is_current() && s.offered.load(SeqCst) == 0 && !shared {
                let offer = Offer {
                    channel,
                    slot: slot as u32,
                    tx_ring,
                    tx_bytes: bytes as u32,
                    rx_ring,
                    rx_bytes: bytes as u32,
                };
                // SAFETY: `offered` is 0: nobody reads it yet, and only this thread writes the
                // offers of such a socket.
                unsafe { *s.offer.get() = offer };
                s.put_on(channel, slot);
                // (Within a host its connector may have turned to shared memory.)
                if s.offered.compare_exchange(0, offer::MADE, SeqCst, Relaxed).is_err() {
                    c.socket = None;
                }
            } else {
                c.socket = None;
            }
        }
        let taken = c.socket.is_some();
        if shared {
            verdict(s, m.generation, Reason::InheritedByFork);
        }
        // Closed in that moment: whoever closed it found no offer to give back.
        let over = s.generation.load(SeqCst) != m.generation
            || !matches!(s.state.load(SeqCst), CANDIDATE | ATTACHING | ATTACHED);
        if !taken
            || (over
                && s.offered.compare_exchange(offer::MADE, offer::TAKEN, SeqCst, Relaxed).is_ok())
        {
            self.left(i, slot);
        }
    }

    /// The pair is lost before anything was done with it: the peer, which may have taken the
    /// connection up, is to try again.
    fn left_for_now(&mut self, i: usize, slot: usize) {
        if let Some(channel) = self.link(i).and_then(|l| l.channel) {
            channel.ask_to_leave(slot, Reason::RdmaLost, true);
        }
        self.left(i, slot);
    }

    pub(super) fn on_released(&mut self, channel: &'static Channel, slot: usize) {
        if let Some(i) = self.links.iter().position(|l| {
            l.as_ref().and_then(|l| l.channel).is_some_and(|c| core::ptr::eq(c, channel))
        }) {
            self.left(i, slot);
        }
    }

    /// Our end of a slot is gone.
    pub(super) fn left(&mut self, i: usize, slot: usize) {
        if !self.link(i).and_then(|l| l.conns.get(slot)).is_some_and(|c| c.state == ConnState::Live)
        {
            return;
        }
        // With the last echo; and at once, should this process be about to end.
        self.say_last(i, slot);
        self.flush(i);
        let Some(l) = self.link_mut(i) else { return };
        let channel = l.channel;
        let Some(c) = l.conns.get_mut(slot).filter(|c| c.state == ConnState::Live) else { return };
        c.state = ConnState::Left;
        let (number, lane, socket) = (c.pair, c.lane, c.socket.take());
        unlink(channel, slot, socket);
        if let Some(ch) = channel {
            if let Some(at) = ch.sockets.get(slot) {
                at.store(core::ptr::null_mut(), Release);
            }
            apart::forget_leave(ch, slot);
        }
        let Some(l) = self.link_mut(i) else { return };
        let open =
            l.pair(number).filter(|p| p.state == PairState::Ready).and_then(|p| p.link.clone());
        match open {
            // Its memory is ours again when the peer has closed it, too.
            Some(link) if link.close(lane).is_ok() => {}
            _ => self.conn_is_done(i, slot),
        }
    }

    /// What candidates were told on a link that broke is told again.
    pub(super) fn forget_candidates(&mut self, i: usize) {
        let mut at = self.candidates.oldest();
        while let Some(key) = at {
            at = self.candidates.after(key);
            if self.candidates.get(key).is_some_and(|(_, c)| c.link == i) {
                self.drop_candidate(key);
            }
        }
        let mut at = self.connected.oldest();
        while let Some(key) = at {
            at = self.connected.after(key);
            if let Some(m) = self.connected.get_mut(key) {
                m.announced &= !(1 << i);
            }
        }
    }

    /// A dead link takes what waits for it out of the tables.
    pub(super) fn forget_link(&mut self, i: usize) {
        self.forget_candidates(i);
        let mut at = self.accepted.oldest();
        while let Some(key) = at {
            at = self.accepted.after(key);
            if let Some(m) = self.accepted.get_mut(key).filter(|m| m.offered == Some(i)) {
                m.offered = None;
            }
        }
        // Nobody will answer.
        let offered = |c: &Conn| c.state == ConnState::Offered;
        while let Some(slot) = self.link(i).and_then(|l| l.conns.iter().position(offered)) {
            self.take_offer_back(i, slot);
        }
    }

    /// Without a link no peer says that a slot is free at its end; and should the slot not be, it
    /// refuses the next offer for it.
    pub(super) fn free_done(&mut self, i: usize) {
        let done = |c: &Conn| c.state == ConnState::Done;
        while let Some(slot) =
            self.link(i).filter(|l| !l.is_up()).and_then(|l| l.conns.iter().position(done))
        {
            self.conn_is_done(i, slot);
        }
    }

    /// While a link is broken: offers whose connections are over need no answer any more.
    pub(super) fn forget_offers_to_nobody(&mut self, i: usize) {
        for slot in 0..self.link(i).map_or(0, |l| l.conns.len()) {
            let Some(waiting) = self
                .link(i)
                .and_then(|l| l.conns.get(slot))
                .filter(|c| c.state == ConnState::Offered)
                .map(|c| c.waiting)
            else {
                continue;
            };
            if self.accepted.get(waiting).is_some_and(|(_, m)| m.is_current()) {
                continue;
            }
            self.accepted.remove(waiting);
            self.take_offer_back(i, slot);
        }
    }

    fn take_offer_back(&mut self, i: usize, slot: usize) {
        let rings = self.link_mut(i).and_then(|l| l.conns.get_mut(slot)).and_then(|c| {
            c.freed = true;
            c.rings.take()
        });
        if let Some(rings) = rings {
            self.give_rings_back(i, rings);
        }
        self.conn_is_done(i, slot);
    }

    /// The channel of a link.
    pub(super) fn ensure_channel(&mut self, i: usize) -> Option<&'static Channel> {
        if let Some(c) = self.link(i)?.channel {
            return Some(c);
        }
        let side = usize::from(self.link(i)?.role == Role::Connector);
        let found = self.channels.iter().position(|c| c.side == side);
        let channel = match found {
            Some(at) => self.channels.swap_remove(at),
            None => new_channel(side)?,
        };
        self.link_mut(i)?.channel = Some(channel);
        Some(channel)
    }
}

/// What peers do wrong is said once a second at most, however many do; all of it is counted.
fn may_warn() -> bool {
    static WARNED_AT: AtomicU64 = AtomicU64::new(0);
    let (now, at) = (sys::now_ns(), WARNED_AT.load(Relaxed));
    let may = at == 0 || now.saturating_sub(at) > 1_000_000_000;
    if may {
        WARNED_AT.store(now, Relaxed);
    }
    may
}

/// Both rings, and the bytes of each.
fn place_of(rings: &Rings<net::Net>) -> (*mut u8, *mut u8, usize) {
    (rings.outbound().as_ptr(), rings.inbound().as_ptr(), rings.ring_bytes())
}

fn zero(w: &RingWords) {
    let at = core::ptr::from_ref(w).cast::<AtomicU64>();
    for i in 0..size_of::<RingWords>() / 8 {
        // SAFETY: inside of the words, which are atomics of 8 or (in pairs) 4 bytes.
        unsafe { &*at.add(i) }.store(0, Relaxed);
    }
}

/// A channel that nobody shares (`map_own`: no forked child has it, and the kernel need not copy
/// it). Its memory stays where it is for ever.
fn new_channel(side: usize) -> Option<&'static Channel> {
    let mem = NonNull::new(sys::map_own(size_of::<ChannelMem>()))?;
    let wire = NonNull::new(sys::map_own(size_of::<Wire>()))?;
    let at = NonNull::new(sys::map_private(size_of::<Channel>()))?.cast::<Channel>().as_ptr();
    // SAFETY: fresh zeroed memory of a Channel's size and alignment (pages); these fields never
    // change again.
    unsafe {
        (&raw mut (*at).mem).write(mem.cast().as_ptr());
        (&raw mut (*at).wire).write(wire.cast().as_ptr());
        (&raw mut (*at).side).write(side);
    }
    // SAFETY: valid from here on for ever: zeroed atomics, and the fields just written.
    let c: &'static Channel = unsafe { &*at };
    c.doorbells.iter().chain(&c.own_doorbells).for_each(|d| d.store(-1, Relaxed));
    c.control.store(-1, Relaxed);
    Some(c)
}
