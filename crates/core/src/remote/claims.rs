//! Acceptor: what peers claim of the connections that this process has accepted, or will: who is
//! heard, and what becomes of a connection that two of them claim.

use super::link::{Conn, Fault, Link};
use super::shares::{PART, Source};
use super::{PENDING, Remote, Theirs};
use crate::log::warn_of_peer;
use crate::socket::Socket;
use crate::syn::Said;
use crate::tuple_table::Key;
use crate::{stats, sys};
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::{Agreement, Event, SlotState};
use netacc_proto::rendezvous::{self as proto, Message, Peers, Proof, Role, Tuple};

impl Remote {
    pub(super) fn on_candidate(&mut self, i: usize, c: proto::Candidate) -> Result<(), Fault> {
        self.on_claim(i, &c);
        if c.proof != Proof::LATER {
            // If this end had committed itself to it, that was the answer, whatever came of it.
            self.commit_to_another(i, c.token);
        }
        Ok(())
    }

    fn on_claim(&mut self, i: usize, c: &proto::Candidate) {
        let tuple = c.tuple.mirrored();
        let Some(l) = self.link(i) else { return };
        let source = Source::of(l.peer);
        // It can only speak for connections between its address and ours: its own address took
        // TCP's handshake to prove. (Where addresses are translated in between, an honest peer
        // claims others.)
        if tuple.local().ip() != l.local
            || tuple.peer().ip() != l.peer
            || tuple.local_port() != l.port
        {
            stats::count(Counter::AuthFailures);
            return self.send(i, Message::Withdraw { token: c.token });
        }
        let anothers = self.stamp_of_anothers(i, &tuple);
        // (One that fits is heard all the same, and one that is said later: its owner may have to
        // share his host with who guesses.)
        let is_wrong = anothers.is_some_and(|stamp| c.proof.knows() && !c.proof.fits(stamp));
        if is_wrong && self.shares.is_locked(source) {
            return self.send(i, Message::Withdraw { token: c.token });
        }
        self.open_commitment(i, c);
        self.forget_earlier_claim(i, &tuple);
        if let Some(stamp) = anothers.filter(|s| !c.proof.fits(*s)) {
            return self.hear_of_anothers(i, c, stamp);
        }
        if anothers.is_some() {
            self.forget_earlier_offer(i, &tuple);
        }
        // Two claims to one connection, and no more is known: neither is believed, now or later
        // (users of one host could claim each other's).
        if Agreement::is_contested(Peers::TwoHosts, 1 + usize::from(self.has_rival(i, &tuple))) {
            self.send(i, Message::Withdraw { token: c.token });
            return self.contest(&tuple);
        }
        self.add_candidate(tuple, Theirs::of(i, c));
        self.agree(tuple);
    }

    /// Of a claim that says its proof later: whether it is kept until then, though the connection
    /// has been offered.
    pub(super) fn keep_until_shown(&mut self, i: usize, c: &proto::Candidate) {
        let tuple = c.tuple.mirrored();
        if self.earlier_offer(i, &tuple).is_some() {
            self.add_candidate(tuple, Theirs::of(i, c));
        }
    }

    pub(super) fn add_candidate(&mut self, tuple: Tuple, theirs: Theirs) {
        let Theirs { link: i, token, .. } = theirs;
        if let Some(old) = self.candidates.find_number(token, |x| x.link == i) {
            self.drop_candidate(old);
        }
        let Some(source) = self.link(i).map(|l| Source::of(l.peer)) else { return };
        if self.candidates.is_full() {
            // One host's must not push out the others'.
            let has = self.shares.of(source).map_or(0, |s| s.candidates) as usize;
            if has >= PENDING as usize / PART / self.shares.count().max(1) {
                return;
            }
            self.drop_candidate_of_most();
        }
        if self.candidates.insert(tuple, token, theirs).is_some() {
            self.shares.add_candidate(source);
        }
    }

    /// The oldest candidate of the host that has most.
    fn drop_candidate_of_most(&mut self) {
        let of = |theirs: &Theirs| self.link(theirs.link).map(|l| Source::of(l.peer));
        let most = self.shares.most_candidates();
        let found = self.candidates.iter().find(|(_, _, theirs)| of(theirs) == most);
        if let Some((key, ..)) = found {
            self.drop_candidate(key);
        }
    }

    pub(super) fn drop_candidate(&mut self, key: Key) {
        let Some((tuple, theirs)) = self.candidates.remove(key) else { return };
        if let Some(source) = self.link(theirs.link).map(|l| Source::of(l.peer)) {
            self.shares.drop_candidate(source);
        }
        if self.candidates.find(&tuple, |_| true).is_none()
            && let Some(waiting) = self.accepted.find(&tuple, |m| m.agreement.waits())
        {
            if let Some((_, m)) = self.accepted.get(waiting).filter(|(_, m)| m.is_current()) {
                // (It may have said that nobody has shown that it is theirs.)
                m.socket.start(Reason::Negotiating);
            }
            self.claims_changed(waiting);
        }
    }

    /// Who claims an accepted connection has gone, or wants no offer: what is said of it then is
    /// said in time.
    pub(super) fn claims_changed(&mut self, waiting: Key) {
        let Some(m) = self.accepted.get_mut(waiting) else { return };
        m.agreement.step(Event::ClaimsChanged { now: sys::now_ns() });
        let due = m.agreement.due();
        self.wait_until(due);
    }

    /// Another process than that of link `i` claims the connection, or has it.
    fn has_rival(&self, i: usize, tuple: &Tuple) -> bool {
        self.candidates.find(tuple, |x| x.link != i).is_some() || self.other_has(i, tuple).is_some()
    }

    /// The connection, if another process than that of link `i` has it, or an offer for it.
    fn other_has(&self, i: usize, tuple: &Tuple) -> Option<&'static Socket> {
        let has = |c: &Conn| {
            let socket = c.socket.filter(|s| s.generation.load(Acquire) == c.generation);
            socket.filter(|s| s.tuple() == *tuple)
        };
        let offered = self.accepted.find(tuple, |m| m.agreement.offered().is_some_and(|o| o != i));
        if let Some((_, m)) = offered.and_then(|key| self.accepted.get(key)) {
            return Some(m.socket);
        }
        let others = self.links.iter().enumerate().filter(|(o, _)| *o != i);
        others.filter_map(|(_, l)| l.as_deref()).find_map(|l| {
            let fits = l.role == Role::Acceptor && l.peer == tuple.peer().ip();
            l.conns.iter().filter(|_| fits).find_map(has)
        })
    }

    /// What the SYN of a connection said that another process has: it has shown that it knows that,
    /// and who claims it now and knows less costs the connection nothing.
    pub(super) fn stamp_of_anothers(&self, i: usize, tuple: &Tuple) -> Option<u32> {
        match self.other_has(i, tuple).map(|s| s.syn.said()) {
            Some(Said::Stamp(stamp)) => Some(stamp),
            _ => None,
        }
    }

    /// A process that claims a connection on another link than before has lost that one, even if
    /// this end does not know yet.
    fn forget_earlier_claim(&mut self, i: usize, tuple: &Tuple) {
        let process = |r: &Remote, i| r.link(i).and_then(|l| l.hello).map(|h| h.process);
        let is_its = |x: &Theirs| x.link != i && process(self, x.link) == process(self, i);
        if let Some(old) = self.candidates.find(tuple, is_its) {
            self.drop_candidate(old);
        }
    }

    /// The link of an offer for the connection, if it is broken, and a link of the process of link
    /// `i`: who has taken the offer up does not claim the connection, so nobody will answer it.
    pub(super) fn earlier_offer(&self, i: usize, tuple: &Tuple) -> Option<(Key, usize)> {
        let process = |i| self.link(i).and_then(|l| l.hello).map(|h| h.process);
        let key = self.accepted.find(tuple, |m| m.agreement.offered().is_some_and(|o| o != i))?;
        let earlier = self.accepted.get(key)?.1.agreement.offered()?;
        let is_its = process(earlier).is_some() && process(earlier) == process(i);
        (is_its && !self.link(earlier).is_some_and(Link::is_up)).then_some((key, earlier))
    }

    /// It claims the connection, and knows its SYN (processes of one host could give each other's
    /// names): the connection waits for another offer.
    fn forget_earlier_offer(&mut self, i: usize, tuple: &Tuple) {
        let Some((key, earlier)) = self.earlier_offer(i, tuple) else { return };
        let conns = self.link_mut(earlier).into_iter().flat_map(|l| &mut l.conns);
        for c in conns.filter(|c| c.slot.state == SlotState::Offered && c.waiting == key) {
            // (The slot is taken back where the link is looked at.)
            c.waiting = Key(u64::MAX);
        }
        let Some(m) = self.accepted.get_mut(key) else { return };
        m.agreement.step(Event::LinkGone { link: earlier, now: sys::now_ns() });
        let due = m.agreement.due();
        self.wait_until(due);
    }

    /// A connection that two processes claim stays on TCP, or goes back there, for good.
    fn contest(&mut self, tuple: &Tuple) {
        stats::count(Counter::AuthFailures);
        warn_of_peer!("two processes claim the connection from {}: it stays on TCP", tuple.peer());
        while let Some(key) = self.candidates.find(tuple, |_| true) {
            let theirs = self.candidates.get(key).map(|(_, t)| (t.link, t.token));
            self.drop_candidate(key);
            if let Some((o, token)) = theirs {
                self.send(o, Message::Withdraw { token });
                self.commit_to_another(o, token);
            }
        }
        if let Some(key) = self.accepted.find(tuple, |_| true)
            && let Some(m) = self.accepted.get_mut(key)
        {
            let action = m.agreement.step(Event::Contested);
            self.end(key, action);
        }
        for l in self.links.iter().flatten() {
            for (slot, c) in l.conns.iter().enumerate().filter(|(_, c)| c.slot.is_live()) {
                if let (Some(channel), true) =
                    (l.channel, c.socket.is_some_and(|s| s.tuple() == *tuple))
                {
                    channel.far.demote(slot, Reason::NotAuthenticated, false);
                }
            }
        }
    }
}
