//! Who answers at a link port is on the host that connections go to. Whether it is a process that
//! accepts them there, or another user's that took the port first, it shows once for each link: it
//! knows the time stamp in a connection's SYN, which the kernel tells nobody but who listens.
//!
//! ```text
//! C: Candidate{later} ─▶ A: Commit{digest} ─▶ C: Candidate{proof} ─▶ A: fits? Open{stamp} ─▶ C: fits? proven
//! ```
//!
//! Neither says first what the other has to know: A binds itself to the stamp before it hears what
//! C knows, and opens that only to who knew it. It binds itself on that very link, named by its two
//! ports: who passes it on from another link is seen. From then on claims on that link say their
//! proofs at once.
//!
//! C tells a stamp once to who has shown nothing: whoever heard it could bind himself to it
//! afterwards. Where it was told, and not opened, another connection's has to do.

use super::Remote;
use super::agree::unshown;
use super::link::{Fault, Link, Trust};
use super::shares::Source;
use super::vain::Vain;
use crate::log::{debug_log, warn_of_peer};
use crate::syn::{Said, Syn};
use crate::tuple_table::Key;
use crate::{stats, sys};
use core::net::SocketAddr;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::Event;
use netacc_proto::rendezvous::{self as proto, Message, Proof, Role};

impl Link {
    pub(super) fn is_proven(&self) -> bool {
        self.trust == Trust::Proven
    }

    /// What is said of a candidate of which that is known.
    pub(super) fn says(&self, syn: &Syn) -> Proof {
        match syn.proof() {
            proof if self.is_proven() || syn.is_bare() || !proof.knows() => proof,
            _ if syn.was_told() => Proof::TOLD,
            _ => Proof::LATER,
        }
    }

    /// The ports of its TCP connection, the connector's first.
    fn ports(&self) -> Option<[u16; 2]> {
        let names = crate::carrier::tuple_of(self.fd)?;
        let [ours, theirs] = [names.local().port(), names.peer().port()];
        Some(if self.role == Role::Connector { [ours, theirs] } else { [theirs, ours] })
    }

    /// The link is broken: what was begun is begun again.
    fn forget_commitment(&mut self) {
        if !self.is_proven() {
            self.trust = Trust::None;
        }
    }
}

impl Remote {
    // ---- the acceptor ---------------------------------------------------------------------------

    /// The connector says its proof when this end has committed itself, to that connection's time
    /// stamp if it is known: otherwise another connection's must do.
    pub(super) fn commit(&mut self, i: usize, waiting: Key, token: u64) {
        let Some((tuple, m)) = self.accepted.get(waiting) else { return };
        let Said::Stamp(stamp) = m.socket.syn.said() else {
            debug_log!("nothing is known of the SYN of the connection from {}", tuple.peer());
            m.socket.set_reason(Reason::NotAuthenticated);
            return;
        };
        self.commit_to(i, token, stamp);
    }

    fn commit_to(&mut self, i: usize, token: u64, stamp: u32) {
        let process = self.process;
        let Some(l) = self.link_mut(i).filter(|l| l.trust == Trust::None) else { return };
        let Some(ports) = l.ports() else { return };
        let mut nonce = [0; 16];
        sys::random(&mut nonce);
        l.trust = Trust::Committed { token, nonce, stamp };
        let digest = proto::commitment(&nonce, stamp, token, &process, ports);
        self.send(i, Message::Commit { token, digest });
    }

    /// A claim to a connection that another process has, which knew the stamp in its SYN, by one
    /// that does not say it, or not yet: if it says it then, two have claimed the connection.
    pub(super) fn hear_of_anothers(&mut self, i: usize, claim: &proto::Candidate, stamp: u32) {
        match claim.proof {
            Proof::LATER => {
                self.keep_until_shown(i, claim);
                return self.commit_to(i, claim.token, stamp);
            }
            // It says it as soon as this end has shown another one's.
            Proof::TOLD => return,
            _ => {}
        }
        let from = claim.tuple.local();
        stats::count(Counter::AuthFailures);
        warn_of_peer!(
            "who claims the connection from {from} of another process does not know its SYN"
        );
        if claim.proof.knows() {
            self.shares.is_wrong(Source::of(from.ip()));
        }
        if let Some(key) = self.candidates.find_number(claim.token, |x| x.link == i) {
            self.drop_candidate(key);
        }
        self.send(i, Message::Withdraw { token: claim.token });
    }

    /// A claim, which may be the answer to a commitment. (One that does not fit ends it as well,
    /// when the claim has been heard.)
    pub(super) fn open_commitment(&mut self, i: usize, claim: &proto::Candidate) {
        let Some(l) = self.link_mut(i) else { return };
        let Trust::Committed { token, nonce, stamp } = l.trust else { return };
        if token != claim.token || [Proof::LATER, Proof::TOLD].contains(&claim.proof) {
            return;
        }
        if claim.proof.fits(stamp) {
            l.trust = Trust::None;
            self.send(i, Message::Open { token, nonce, stamp });
        } else {
            self.send(i, Message::Withdraw { token });
        }
    }

    /// A claim that shows nothing, and by which this end cannot either: it waits until another
    /// connection's has been shown.
    pub(super) fn wait_for_another(&mut self, waiting: Key) {
        if let Some((tuple, m)) = self.accepted.get(waiting) {
            debug_log!("the SYN of the connection from {} shows nothing any more", tuple.peer());
            m.socket.set_reason(Reason::NotAuthenticated);
        }
    }

    /// A candidate is no more, or shows nothing, or what does not fit. If this end had committed
    /// itself to it, another one must do.
    pub(super) fn commit_to_another(&mut self, i: usize, gone: u64) {
        let Some(l) = self.link_mut(i) else { return };
        if !matches!(l.trust, Trust::Committed { token, .. } if token == gone) {
            return;
        }
        l.trust = Trust::None;
        let mut at = self.candidates.oldest();
        while let Some(key) = at {
            at = self.candidates.after(key);
            let Some((tuple, theirs)) = self.candidates.get(key) else { continue };
            let tuple = *tuple;
            if theirs.link != i || theirs.proof != Proof::LATER {
                continue;
            }
            let token = theirs.token;
            let stamp =
                self.earlier_offer(i, &tuple).and_then(|_| self.stamp_of_anothers(i, &tuple));
            match stamp {
                Some(stamp) => self.commit_to(i, token, stamp),
                None => self.agree(tuple),
            }
            if self.link(i).is_none_or(|l| l.trust != Trust::None) {
                return;
            }
        }
    }

    /// That claim says its proof when this end has shown itself, which it cannot yet: a commitment
    /// of this end's is not answered.
    pub(super) fn waits_for_proof(&self, claim: Option<Key>) -> bool {
        let claim = claim.and_then(|key| self.candidates.get(key));
        let Some((_, theirs)) = claim.filter(|(_, t)| t.proof == Proof::LATER) else {
            return false;
        };
        self.link(theirs.link).is_some_and(|l| matches!(l.trust, Trust::Committed { .. }))
    }

    /// Whether a claim to a connection says of its SYN what the kernel has kept of it. (Where
    /// nothing is kept, it is believed by its addresses.)
    pub(super) fn is_believed(&mut self, waiting: Key, proof: Proof) -> bool {
        if self.is_locked_out(waiting) {
            return false;
        }
        let Some((tuple, m)) = self.accepted.get(waiting) else { return false };
        let source = Source::of(tuple.peer().ip());
        let Said::Stamp(stamp) = m.socket.syn.said() else { return true };
        if !proof.knows() {
            debug_log!("the peer of the connection from {} knows nothing of its SYN", tuple.peer());
        } else if !proof.fits(stamp) {
            stats::count(Counter::AuthFailures);
            warn_of_peer!(
                "a claim to the connection from {} knows another SYN than its: it stays on TCP",
                tuple.peer()
            );
            self.shares.is_wrong(source);
        }
        proof.fits(stamp)
    }

    /// Too many claims of that connection's host were wrong.
    pub(super) fn is_locked_out(&self, waiting: Key) -> bool {
        let Some((tuple, _)) = self.accepted.get(waiting) else { return false };
        let locked = self.shares.is_locked(Source::of(tuple.peer().ip()));
        if locked {
            debug_log!("too many claims of {} were wrong", tuple.peer().ip());
        }
        locked
    }

    // ---- the connector --------------------------------------------------------------------------

    /// What is known of who was told stamps in vain where that link leads.
    fn vain(&mut self, i: usize) -> Option<(&mut Vain, u8)> {
        let l = self.link(i).filter(|l| l.role == Role::Connector)?;
        let (local, peer, k) = (l.local, SocketAddr::new(l.peer, l.port), l.k);
        self.vain_at(local, peer).map(|vain| (vain, k))
    }

    /// The peer shows nothing more of what it was told, or has bound itself to: of that token, or
    /// of any, as the link is broken.
    pub(super) fn end_commitment(&mut self, i: usize, of: Option<u64>) {
        let Some(l) = self.link_mut(i) else { return };
        match l.trust {
            Trust::Heard { token, .. } if of.is_none_or(|of| of == token) => {
                l.forget_commitment();
                if let Some((vain, k)) = self.vain(i) {
                    vain.add(k, sys::now_ns());
                }
            }
            _ if of.is_none() => l.forget_commitment(),
            _ => {}
        }
    }

    /// A link that was told of this candidate has to wait before it is told what would show that
    /// it accepts there, and none that was told of it has shown that. (Without time stamps there is
    /// nothing to show.)
    pub(super) fn waits_to_be_shown(&self, key: Key) -> bool {
        let is_bare = self.connected.get(key).is_none_or(|(_, m)| m.socket.syn.is_bare());
        let mut waits = false;
        for (i, l) in self.links.iter().enumerate() {
            match l.as_ref().map(|l| l.trust) {
                Some(Trust::Waits { .. }) => waits |= self.was_told(i, key),
                Some(Trust::Proven) if self.was_told(i, key) => return false,
                _ => {}
            }
        }
        waits && !is_bare
    }

    /// What that link waits for, all that it was told of waits for, where no other link that leads
    /// there has shown it.
    fn judge_waiting(&self, i: usize) {
        let Some(place) = self.link(i).map(|l| (l.local, SocketAddr::new(l.peer, l.port))) else {
            return;
        };
        if self.links.iter().flatten().any(|l| l.is_proven() && l.leads_to(place.0, place.1)) {
            return;
        }
        for (key, _, m) in self.connected.iter() {
            if m.is_current() && self.was_told(i, key) && !m.socket.syn.is_bare() {
                m.socket.judge(unshown(m.socket));
            }
        }
    }

    /// A commitment that waits to be answered.
    pub(super) fn time_commitment(&mut self, i: usize) {
        let Some(Trust::Waits { token, digest }) = self.link(i).map(|l| l.trust) else { return };
        let later = self.vain(i).and_then(|(vain, k)| vain.later(k, sys::now_ns()));
        match later {
            Some(later) => self.at(later),
            None => self.answer_commitment(i, token, digest),
        }
    }

    pub(super) fn on_commit(
        &mut self,
        i: usize,
        token: u64,
        digest: [u8; 16],
    ) -> Result<(), Fault> {
        match self.link(i).map(|l| l.trust) {
            // It was told one, and has to open that first.
            Some(Trust::Heard { .. }) => Err(Fault::Impostor),
            Some(Trust::Proven) => Ok(()),
            // Instead of that one, and when that would have been answered.
            Some(Trust::Waits { .. }) => {
                if let Some(l) = self.link_mut(i) {
                    l.trust = Trust::Waits { token, digest };
                }
                Ok(())
            }
            _ => {
                self.answer_commitment(i, token, digest);
                Ok(())
            }
        }
    }

    /// The acceptor has bound itself to a stamp. It is told that if nobody was told it before:
    /// otherwise it could have bound itself to what it has heard, here or on another link.
    fn answer_commitment(&mut self, i: usize, token: u64, digest: [u8; 16]) {
        let key = Key(token);
        let known = self.connected.get(key).filter(|(_, m)| m.is_current());
        let Some((tuple, m)) = known.filter(|_| self.was_told(i, key)) else {
            if let Some(l) = self.link_mut(i) {
                l.trust = Trust::None;
            }
            return self.send(i, Message::Withdraw { token });
        };
        let (tuple, socket, class, fills) = (*tuple, m.socket, m.asked.class, m.fills());
        let now = sys::now_ns();
        let later = self.vain(i).and_then(|(vain, k)| vain.later(k, now));
        let told = if later.is_none() { socket.syn.tell() } else { None };
        let from = tuple.local_port();
        let told = told.filter(|_| self.vain(i).is_none_or(|(vain, _)| vain.tells(from)));
        let trust = match (later, told) {
            (Some(_), _) => Trust::Waits { token, digest },
            (None, Some(proof)) => Trust::Heard { token, digest, proof, from },
            (None, None) => Trust::None,
        };
        if told.is_none() {
            socket.set_reason(Reason::NotAuthenticated);
        }
        if let Some(l) = self.link_mut(i) {
            l.trust = trust;
        }
        if let Some(later) = later {
            self.judge_waiting(i);
            return self.at(later);
        }
        // (None: it was told to another, as an earlier one's from that port was, or there is
        // nothing to show.)
        let proof = told.unwrap_or(Proof::TOLD);
        self.send(i, Message::Candidate(proto::Candidate { tuple, token, proof, class, fills }));
    }

    pub(super) fn on_open(
        &mut self,
        i: usize,
        token: u64,
        nonce: [u8; 16],
        stamp: u32,
    ) -> Result<(), Fault> {
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        let Trust::Heard { token: heard, digest, proof, from } = l.trust else {
            // Of one that was forgotten when the link broke.
            return Ok(());
        };
        let process = l.hello.map_or([0; 16], |h| h.process);
        let Some(ports) = l.ports() else { return Ok(()) };
        if heard != token
            || digest != proto::commitment(&nonce, stamp, token, &process, ports)
            || !proof.fits(stamp)
        {
            return Err(Fault::Impostor);
        }
        l.trust = Trust::Proven;
        debug_log!("the process at {} is one that accepts there", l.peer);
        let gone = Event::LinkGone { link: l.number(), now: 0 };
        let known = self.connected.get(Key(token));
        if let Some((_, m)) = known.filter(|(_, m)| m.is_current()) {
            m.socket.syn.was_known();
        }
        if let Some((vain, k)) = self.vain(i) {
            vain.shown(k, from);
        }
        // The others' proofs can be said, and offers for those without are believed.
        let mut at = self.connected.oldest();
        while let Some(key) = at {
            at = self.connected.after(key);
            if key != Key(token)
                && self.was_told(i, key)
                && let Some(m) = self.connected.get_mut(key)
                && !m.socket.syn.is_bare()
            {
                m.agreement.step(gone);
            }
        }
        self.announce_all(i);
        Ok(())
    }

    /// Whether an offer for a candidate comes from a process that accepts there. (Of a connection
    /// without time stamps nobody can show anything. One of which this end alone knows nothing has
    /// to wait until another one has shown it.)
    pub(super) fn is_believed_offer(&self, i: usize, key: Key) -> bool {
        let is_bare = self.connected.get(key).is_some_and(|(_, m)| m.socket.syn.is_bare());
        let believed = is_bare || self.link(i).is_some_and(Link::is_proven);
        if !believed {
            stats::count(Counter::AuthFailures);
            warn_of_peer!("an offer of a process that has not shown that it accepts there");
        }
        believed
    }
}
