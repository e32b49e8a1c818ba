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

use super::Remote;
use super::link::{Fault, Link, Trust};
use crate::log::{debug_log, warn_of_peer};
use crate::syn::{Said, Syn};
use crate::tuple_table::Key;
use crate::{stats, sys};
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::Event;
use netacc_proto::rendezvous::{self as proto, Message, Proof, Role};

impl Link {
    pub(super) fn is_proven(&self) -> bool {
        self.trust == Trust::Proven
    }

    /// What is said of a candidate of which that is known.
    pub(super) fn says(&self, syn: &Syn) -> Proof {
        if syn.can_be_shown() && !self.is_proven() { Proof::LATER } else { syn.proof() }
    }

    /// The ports of its TCP connection, the connector's first.
    fn ports(&self) -> Option<[u16; 2]> {
        let names = crate::carrier::tuple_of(self.fd)?;
        let [ours, theirs] = [names.local().port(), names.peer().port()];
        Some(if self.role == Role::Connector { [ours, theirs] } else { [theirs, ours] })
    }

    /// The link is broken: what was begun is begun again.
    pub(super) fn forget_commitment(&mut self) {
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
        let process = self.process;
        let Some(l) = self.link_mut(i).filter(|l| l.trust == Trust::None) else { return };
        let Some(ports) = l.ports() else { return };
        let mut nonce = [0; 16];
        sys::random(&mut nonce);
        l.trust = Trust::Committed { token, nonce, stamp };
        let digest = proto::commitment(&nonce, stamp, token, &process, ports);
        self.send(i, Message::Commit { token, digest });
    }

    /// A claim, which may be the answer to a commitment.
    pub(super) fn open_commitment(&mut self, i: usize, claim: &proto::Candidate) {
        let Some(l) = self.link_mut(i) else { return };
        let Trust::Committed { token, nonce, stamp } = l.trust else { return };
        if token != claim.token || claim.proof == Proof::LATER {
            return;
        }
        l.trust = Trust::None;
        if claim.proof.fits(stamp) {
            self.send(i, Message::Open { token, nonce, stamp });
        }
    }

    /// A candidate is no more. If this end had committed itself to it, another one must do.
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
            self.agree(tuple);
            if self.link(i).is_none_or(|l| l.trust != Trust::None) {
                return;
            }
        }
    }

    // ---- the connector --------------------------------------------------------------------------

    pub(super) fn on_commit(&mut self, i: usize, token: u64, digest: [u8; 16]) {
        let key = Key(token);
        let known = self.connected.get(key).filter(|(_, m)| m.is_current());
        let Some((tuple, proof, class, fills)) = known
            .filter(|_| self.was_told(i, key))
            .map(|(t, m)| (*t, m.socket.syn.proof(), m.asked.class, m.fills()))
        else {
            return self.send(i, Message::Withdraw { token });
        };
        let Some(l) = self.link_mut(i) else { return };
        if l.is_proven() || !proof.knows() {
            return;
        }
        l.trust = Trust::Heard { token, digest, proof };
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
        let Trust::Heard { token: heard, digest, proof } = l.trust else {
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
        // The others' proofs can be said, and offers for those without are believed.
        let gone = Event::LinkGone { link: l.number(), now: 0 };
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
