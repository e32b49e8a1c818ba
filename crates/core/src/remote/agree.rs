//! Which connections are accelerated: candidates, offers, and the slots of a channel.

use super::link::{Conn, Fault, Link, Trust, Waiting};
use super::pair::Pair;
use super::{Mine, Remote, Theirs};
use crate::agent::reason_of;
use crate::channel::{BY_KERNEL, Channel, ChannelMem};
use crate::lock::lock_end;
use crate::packet_policy::{self, Asked};
use crate::path::{Far, PathId};
use crate::socket::{Socket, flag, offered};
use crate::tuple_table::Key;
use crate::wire::Wire;
use crate::{carrier, stats, sys};
use core::net::{IpAddr, SocketAddr};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::{Action, Agreement, Event, Links, SlotEvent, SlotState, Why, bit};
use netacc_proto::rendezvous::{self as proto, Message, Peers, Proof, Role, Tuple};

/// Candidates whose connections are over are withdrawn after so long.
const SWEEP_NS: u64 = 10_000_000_000;
/// What waits is looked at in such steps; where there is so much of it that to walk it takes a part
/// of a millisecond, in longer ones: a verdict is to come within a second all the same.
const WAITING_NS: u64 = 20_000_000;
const WAITING_MANY_NS: u64 = 4 * WAITING_NS;
const MANY: u32 = 1024;
/// A connection that was offered a place which is not free at the peer is offered another one after
/// so long.
pub(super) const BUSY_NS: u64 = 5_000_000;

/// There will be no agreement on a connection, for that reason.
pub(super) fn verdict(s: &'static Socket, generation: u32, why: Reason) {
    let _tx = lock_end(&s.tx_lock);
    if s.generation.load(Acquire) == generation
        && s.may_be_candidate()
        && s.offered.is_none()
        && s.path() == PathId::Rdma
    {
        let why = by_now(s, why);
        s.set_reason(why);
        s.verdict.store(why as u32, Relaxed);
        let _ = s.offered.happens(offered::Event::Refused(PathId::Rdma));
    }
}

/// Why there is no agreement with a peer of whom that is known. Between hosts one that has shut
/// down its half of the connection seeks none, or has ended its search: that is why.
fn by_now(s: &Socket, why: Reason) -> Reason {
    use Reason::{ListenerWithoutLibrary, NotClaimed, PeerRefused, PeerWithoutLibrary};
    let of_peer = [ListenerWithoutLibrary, NotClaimed, PeerRefused, PeerWithoutLibrary];
    let fd = s.fd.load(Relaxed);
    match why {
        why if !of_peer.contains(&why) => why,
        _ if carrier::is_closed(fd) => Reason::Disconnected,
        _ if carrier::has_ended(fd) => Reason::ShuttingDown,
        _ if s.syn.was_told() => Reason::NotAuthenticated,
        why => why,
    }
}

/// What is said of a connection whose acceptor has to wait before it can show that it is that.
pub(super) fn unshown(s: &Socket) -> Reason {
    match by_now(s, Reason::NotClaimed) {
        Reason::NotClaimed => Reason::NotAuthenticated,
        why => why,
    }
}

impl Remote {
    /// A connection of ours is used.
    pub(super) fn on_note(&mut self, s: &'static Socket, generation: u32, asked: Asked) {
        let now = sys::now_ns();
        let connector = s.has(flag::CONNECTOR);
        let role = if connector { Role::Connector } else { Role::Acceptor };
        let agreement = Agreement::new(Peers::TwoHosts, role, now);
        let mut mine = Mine { socket: s, generation, agreement, asked, looked: connector };
        if !mine.is_current() {
            return;
        }
        let tuple = s.tuple();
        if !mine.is_current() {
            return;
        }
        let local = tuple.local().ip();
        let found = if connector && s.paths().rest().iter().any(PathId::is_shared) {
            // Both addresses are this host's: nobody needs to be asked whether RDMA serves them.
            let devices = self.device_at(local).and_then(|_| self.device_at(tuple.peer().ip()));
            devices.and_then(|_| self.seek(local, tuple.peer(), s, asked))
        } else if connector {
            self.seek(local, tuple.peer(), s, asked)
        } else if self.is_down(local) {
            Ok(())
        } else {
            self.device_at(local).map(|_| ())
        };
        if let Err(why) = found {
            return verdict(s, generation, why);
        }
        if !connector && self.is_peer(tuple.peer().ip()) {
            mine.looked = true;
            if let Some(why) = self.policy_against(local, tuple.peer().ip(), s, asked) {
                return verdict(s, generation, why);
            }
        }
        let table = if connector { &mut self.connected } else { &mut self.accepted };
        if let Some(old) = table.find(&tuple, |_| true) {
            // (It asks for something else while the peer has an offer: the answer is seen to.)
            if let Some(m) = table.get_mut(old)
                && m.agreement.offered().is_some()
                && m.is_current()
                && core::ptr::eq(m.socket, s)
            {
                m.asked = asked;
                return;
            }
            table.remove(old);
        }
        if table.is_full() {
            let evicted = table.oldest().and_then(|k| table.remove(k));
            if let Some((_, m)) = evicted {
                verdict(m.socket, m.generation, Reason::PeerWithoutLibrary);
            }
        }
        let table = if connector { &mut self.connected } else { &mut self.accepted };
        let due = mine.agreement.due();
        let Some(key) = table.insert(tuple, 0, mine) else { return };
        self.wait_until(due);
        if !connector {
            if self.refused.iter().all(|place| place.local != tuple.local())
                && !self.is_peer(tuple.peer().ip())
            {
                // As far as is known now: it waits all the same.
                s.judge(by_now(s, Reason::PeerWithoutLibrary));
            }
            return self.agree(tuple);
        }
        if self.sweep_at == 0 {
            self.sweep_at = now + SWEEP_NS;
            self.at(now + SWEEP_NS);
        }
        for i in 0..self.links.len() {
            self.announce(i, key);
        }
    }

    /// Writes what waits, if it is much, and if the peer is not known to have no room for it.
    fn make_room(&mut self, i: usize) {
        if self.is_busy(i) && self.link(i).is_some_and(|l| !l.blocked) {
            self.flush(i);
        }
    }

    /// Tells a link of a candidate.
    fn announce(&mut self, i: usize, key: Key) {
        // (What there is no room for is told of when the peer has read: `flush` sees to it.)
        self.make_room(i);
        let Some((tuple, m)) = self.connected.get(key) else { return };
        let tuple = *tuple;
        let fits = |l: &&Link| l.is_up() && l.leads_to(tuple.local().ip(), tuple.peer());
        let Some(number) = self.link(i).filter(fits).map(Link::number) else { return };
        if m.agreement.is_told(number) || self.is_busy(i) {
            return;
        }
        let (class, fills) = (m.asked.class, m.fills());
        let Some(proof) = self.link(i).map(|l| l.says(&m.socket.syn)) else { return };
        let hears = |l: &Link| matches!(l.trust, Trust::Heard { token, .. } if token == key.0);
        let is_heard = proof == Proof::TOLD && self.links.iter().flatten().any(|l| hears(l));
        if let Some(m) = self.connected.get_mut(key) {
            m.agreement.step(Event::Told { link: number, now: sys::now_ns() });
            if m.is_current() {
                match proof {
                    // (Who was told it may be about to show that.)
                    Proof::TOLD if !is_heard => m.socket.set_reason(Reason::NotAuthenticated),
                    _ => m.socket.start(Reason::Negotiating),
                }
            }
            let due = m.agreement.due();
            self.wait_until(due);
        }
        let said = proto::Candidate { tuple, token: key.0, proof, class, fills };
        self.send(i, Message::Candidate(said));
    }

    /// Whether link `i` was told of a candidate.
    pub(super) fn was_told(&self, i: usize, key: Key) -> bool {
        let (Some(l), Some((tuple, m))) = (self.link(i), self.connected.get(key)) else {
            return false;
        };
        l.leads_to(tuple.local().ip(), tuple.peer()) && m.agreement.is_told(l.number())
    }

    /// Tells the links that were told of a candidate that there is none.
    pub(super) fn withdraw(&mut self, tuple: &Tuple, told: Links, token: u64) {
        for i in 0..self.links.len() {
            let leads = |l: &Link| l.leads_to(tuple.local().ip(), tuple.peer());
            if told != 0 && self.link(i).is_some_and(|l| leads(l) && told & bit(l.number()) != 0) {
                self.send(i, Message::Withdraw { token });
            }
        }
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

    /// Nobody was found at that place yet: what waits for it says so.
    pub(super) fn say_of_waiting(&self, local: IpAddr, peer: SocketAddr, why: Reason) {
        for (_, t, m) in self.connected.iter() {
            if t.local().ip() == local && t.peer() == peer && m.is_current() {
                m.socket.judge(by_now(m.socket, why));
            }
        }
    }

    /// A process of that host has a link to us.
    fn is_peer(&self, host: IpAddr) -> bool {
        let is_its = |l: &Link| l.role == Role::Acceptor && l.is_up() && l.peer == host;
        self.links.iter().flatten().any(|l| is_its(l))
    }

    /// What waits for an agreement is to be looked at then, or a moment later: all that is due in
    /// such a moment is looked at in one go.
    pub(super) fn wait_until(&mut self, due: u64) {
        if due == 0 {
            return;
        }
        let many = self.connected.len().max(self.accepted.len()) > MANY;
        let at = due.next_multiple_of(if many { WAITING_MANY_NS } else { WAITING_NS });
        if self.waiting_at == 0 || at < self.waiting_at {
            self.waiting_at = at;
        }
        self.at(at);
    }

    /// Connections that nobody asks for: says so, and gives up who has waited for too long.
    pub(super) fn time_waiting(&mut self) {
        let now = sys::now_ns();
        if self.waiting_at == 0 || now < self.waiting_at {
            return self.wait_until(self.waiting_at);
        }
        self.waiting_at = 0;
        self.time_connected(now);
        self.time_accepted(now);
    }

    fn time_connected(&mut self, now: u64) {
        let mut at = self.connected.oldest();
        while let Some(key) = at {
            at = self.connected.after(key);
            let Some(m) = self.connected.get_mut(key) else { continue };
            let due = m.agreement.due();
            if due == 0 || now < due {
                self.wait_until(due);
                continue;
            }
            if !m.is_current() {
                continue;
            }
            let action = m.agreement.step(Event::Tick { now, claimed: false, known: false });
            let waits = action == Action::Judge(Why::NotClaimed) && self.waits_to_be_shown(key);
            let Some(m) = self.connected.get_mut(key) else { continue };
            if let Action::Judge(why) = action {
                let why = match why {
                    Why::NoLibrary => by_now(m.socket, Reason::ListenerWithoutLibrary),
                    _ if waits => unshown(m.socket),
                    why => by_now(m.socket, reason_of(why)),
                };
                m.socket.judge(why);
            }
            let due = m.agreement.due();
            self.wait_until(due);
        }
    }

    fn time_accepted(&mut self, now: u64) {
        let mut at = self.accepted.oldest();
        while let Some(key) = at {
            at = self.accepted.after(key);
            let Some((tuple, m)) = self.accepted.get(key) else { continue };
            let due = m.agreement.due();
            if now < due {
                self.wait_until(due);
                continue;
            }
            let claim = self.candidates.find(tuple, |_| true);
            let (claimed, is_to_be_proven) = (claim.is_some(), self.waits_for_proof(claim));
            // (It may be asked for when there is a port.)
            let refused = self.refused.iter().find(|place| place.local == tuple.local());
            let refused = refused.map(|place| place.why);
            let known = refused.is_some() || self.is_peer(tuple.peer().ip());
            let Some(m) = self.accepted.get_mut(key) else { continue };
            let action = m.agreement.step(Event::Tick { now, claimed, known });
            if let (Action::Judge(why), true) = (action, m.is_current()) {
                m.socket.judge(by_now(m.socket, refused.unwrap_or(reason_of(why))));
            } else if is_to_be_proven && m.is_current() {
                m.socket.judge(Reason::NotAuthenticated);
            }
            let (due, stays) = (m.agreement.due(), m.is_current() && !m.agreement.is_over());
            if matches!(action, Action::End(_)) || !stays {
                self.end(key, action);
            } else {
                self.wait_until(due);
            }
        }
    }

    /// An accepted connection waits no more, for the reason that its agreement gives, if it gives
    /// one.
    pub(super) fn end(&mut self, key: Key, action: Action) {
        if let (Some((_, m)), Action::End(why)) = (self.accepted.remove(key), action) {
            verdict(m.socket, m.generation, reason_of(why));
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
            if let Some((tuple, mut m)) = self.connected.remove(key)
                && let Action::Withdraw(told) = m.agreement.step(Event::Closed)
            {
                self.withdraw(&tuple, told, key.0);
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
        for w in &l.waiting {
            if let Some((_, m)) = self
                .accepted
                .find(&w.tuple, |_| true)
                .and_then(|k| self.accepted.get(k))
                .filter(|(_, m)| m.is_current())
            {
                m.socket.set_reason(why);
            }
        }
    }

    // ---- the acceptor ---------------------------------------------------------------------------

    pub(super) fn on_withdraw(&mut self, i: usize, token: u64) -> Result<(), Fault> {
        if self.link(i).is_some_and(|l| l.role == Role::Connector) {
            let key = Key(token);
            self.end_commitment(i, Some(token));
            if self.was_told(i, key)
                && let Some(number) = self.link(i).map(Link::number)
                && let Some(m) = self.connected.get_mut(key)
                && let Action::End(why) = m.agreement.step(Event::NoOffer(number))
                && let Some((_, m)) = self.connected.remove(key)
            {
                verdict(m.socket, m.generation, reason_of(why));
            }
            return Ok(());
        }
        if let Some(key) = self.candidates.find_number(token, |x| x.link == i) {
            self.drop_candidate(key);
        }
        self.commit_to_another(i, token);
        Ok(())
    }

    /// Makes an offer for a connection of which both parts are known, if there is a place for it.
    pub(super) fn agree(&mut self, tuple: Tuple) {
        let Some(waiting) = self.accepted.find(&tuple, |m| m.agreement.waits()) else { return };
        if !self.accepted.get(waiting).is_some_and(|(_, m)| m.is_current()) {
            self.accepted.remove(waiting);
            return;
        }
        let Some(candidate) = self.candidates.find(&tuple, |_| true) else { return };
        let Some(mut theirs) = self.candidates.get(candidate).map(|(_, t)| *t) else { return };
        if theirs.again_at > sys::now_ns() {
            return self.at(theirs.again_at);
        }
        if let Some(m) = self.accepted.get_mut(waiting) {
            m.socket.start(Reason::Negotiating);
            m.agreement.step(Event::ClaimsChanged { now: sys::now_ns() });
            let due = m.agreement.due();
            self.wait_until(due);
        }
        let Theirs { link: i, token, proof, .. } = theirs;
        if !self.link(i).is_some_and(Link::is_up) {
            self.drop_candidate(candidate);
            return;
        }
        if let Some(why) = self.policy_against_accepted(waiting) {
            return self.decline(waiting, candidate, why);
        }
        match proof {
            _ if self.is_locked_out(waiting) => {}
            Proof::LATER => return self.commit(i, waiting, token),
            Proof::TOLD => return self.wait_for_another(waiting),
            _ => {}
        }
        if !self.is_believed(waiting, proof) {
            if let Some(m) = self.accepted.get_mut(waiting)
                && let Action::End(why) = m.agreement.step(Event::Unproven(i))
            {
                self.decline(waiting, candidate, reason_of(why));
            }
            return;
        }
        let mine = self.accepted.get(waiting).map_or(0, |(_, m)| m.asked.class);
        let Some(class) = packet_policy::common_class(mine, theirs.class) else {
            return self.decline(waiting, candidate, Reason::KernelPolicy);
        };
        let lane = if self.is_busy(i) { None } else { self.free_lane(i, class) };
        let Some((pair, lane)) = lane else {
            if let Some(l) = self.link_mut(i)
                && !l.waiting.iter().any(|w| w.tuple == tuple)
            {
                l.waiting.push_back(Waiting { tuple, class });
            }
            self.at(sys::now_ns() + BUSY_NS * 20);
            return self.want_pairs(i);
        };
        theirs.fills |= self.accepted.get(waiting).is_some_and(|(_, m)| m.fills());
        let (slot, rings) = match self.room_for(i, &theirs) {
            Ok(room) => room,
            // It was on RDMA, and comes back.
            Err(why) if theirs.fills => {
                if let Some((_, m)) = self.accepted.get(waiting).filter(|(_, m)| m.is_current()) {
                    m.socket.set_reason(why);
                }
                return self.wait_for_whole(candidate);
            }
            Err(why) => return self.decline(waiting, candidate, why),
        };
        let ring_log2 = rings.ring_bytes().trailing_zeros() as u8;
        self.drop_candidate(candidate);
        if let Some(m) = self.accepted.get_mut(waiting) {
            m.agreement.step(Event::Offered(i));
        }
        let Some(l) = self.link_mut(i) else { return };
        if let Some(p) = l.pair_mut(pair) {
            if p.was_used {
                stats::count(Counter::RdmaPairsReused);
            }
            p.take(lane, slot);
        }
        if let Some(c) = l.conns.get_mut(slot) {
            *c = Conn {
                theirs: Some(theirs),
                rings: Some(rings),
                waiting,
                pair,
                lane,
                ..Conn::FREE
            };
        }
        let _ = self.slot_is(i, slot, SlotEvent::Offer, token);
        stats::count(Counter::OffersSent);
        let fills = theirs.fills;
        let offer = proto::OfferLane { token, slot: slot as u16, pair, lane, ring_log2, fills };
        self.send(i, Message::OfferLane(offer));
    }

    /// There will be no offer, and the peer need not wait for one.
    fn decline(&mut self, waiting: Key, candidate: Key, why: Reason) {
        if let Some((_, m)) = self.accepted.remove(waiting) {
            verdict(m.socket, m.generation, why);
        }
        let theirs = self.candidates.get(candidate).map(|(_, t)| (t.link, t.token));
        self.drop_candidate(candidate);
        if let Some((i, token)) = theirs {
            self.send(i, Message::Withdraw { token });
            self.commit_to_another(i, token);
        }
    }

    /// A free place on a pair of that traffic class.
    fn free_lane(&self, i: usize, class: u8) -> Option<(u32, u16)> {
        let l = self.link(i)?;
        // The fullest first, so that the others may become empty.
        let p = l.pairs.iter().filter(|p| p.class == class && p.has_room());
        let p = p.max_by_key(|p| p.places.taken())?;
        Some((p.number, p.places.first_free()?))
    }

    pub(super) fn free_slot(&mut self, i: usize) -> Option<usize> {
        let l = self.link_mut(i)?;
        let free = |c: &Conn| c.slot.is_free();
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
        waiting.retain(|w| {
            self.accepted.find(&w.tuple, |m| m.agreement.waits() && m.is_current()).is_some()
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
            if !self.link(i).is_some_and(|l| l.pairs.iter().any(Pair::has_room)) {
                return;
            }
            let Some(w) = self.link_mut(i).and_then(|l| l.waiting.pop_front()) else { return };
            self.agree(w.tuple);
        }
    }

    /// What candidates were told on a link that broke is told again.
    pub(super) fn forget_candidates(&mut self, i: usize) {
        self.end_commitment(i, None);
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
            if self.was_told(i, key)
                && let Some(link) = self.link(i).map(Link::number)
                && let Some(m) = self.connected.get_mut(key)
            {
                m.agreement.step(Event::LinkGone { link, now: 0 });
            }
        }
    }

    /// A dead link takes what waits for it out of the tables.
    pub(super) fn forget_link(&mut self, i: usize) {
        self.forget_candidates(i);
        let (now, mut next) = (sys::now_ns(), u64::MAX);
        self.accepted.each_mut(|m| {
            m.agreement.step(Event::LinkGone { link: i, now });
            let due = m.agreement.due();
            next = if due == 0 { next } else { next.min(due) };
        });
        if next != u64::MAX {
            self.wait_until(next);
        }
        // Nobody will answer.
        for slot in 0..self.link(i).map_or(0, |l| l.conns.len()) {
            let _ = self.slot_is(i, slot, SlotEvent::TakeBack, 0);
        }
    }

    /// Without a link no peer says that a slot is free at its end; and should the slot not be, it
    /// refuses the next offer for it.
    pub(super) fn free_done(&mut self, i: usize) {
        if self.link(i).is_some_and(Link::is_up) {
            return;
        }
        for slot in 0..self.link(i).map_or(0, |l| l.conns.len()) {
            let _ = self.slot_is(i, slot, SlotEvent::LinkGone, 0);
        }
    }

    /// While a link is broken: offers whose connections are over need no answer any more.
    pub(super) fn forget_offers_to_nobody(&mut self, i: usize) {
        for slot in 0..self.link(i).map_or(0, |l| l.conns.len()) {
            let Some(waiting) = self
                .link(i)
                .and_then(|l| l.conns.get(slot))
                .filter(|c| c.slot.state == SlotState::Offered)
                .map(|c| c.waiting)
            else {
                continue;
            };
            if self.accepted.get(waiting).is_some_and(|(_, m)| m.is_current()) {
                continue;
            }
            self.accepted.remove(waiting);
            let _ = self.slot_is(i, slot, SlotEvent::TakeBack, 0);
        }
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

/// A channel that nobody shares (`map_own`: no forked child has it, and the kernel need not copy
/// it). Its memory stays where it is for ever.
fn new_channel(side: usize) -> Option<&'static Channel> {
    let mem = NonNull::new(sys::map_own(size_of::<ChannelMem>()))?;
    let wire = NonNull::new(sys::map_own(size_of::<Wire>()))?;
    // SAFETY: zeroed atomics, in a mapping that is never taken away.
    let wire: &'static Wire = unsafe { &*wire.cast().as_ptr() };
    // SAFETY: as above; the channel is never freed.
    unsafe { Channel::make(mem.cast().as_ptr(), side, Far::Mirror(wire))?.as_ref() }
}
