//! A link that ends, or whose TCP connection is gone, the peer perhaps not: then data goes on, and
//! the link is resumed or given up.

use super::leave::BACK_LOST_NS;
use super::link::{ANSWER_NS, Fault, Link, Phase, bind, event, set_up, tcp_socket};
use super::pair::PairState;
use super::shares::Source;
use super::unheard::Unheard;
use super::{Remote, close_own, destinations, watch};
use crate::carrier::sockaddr;
use crate::log::{debug_log, warn_of_peer};
use crate::{stats, sys};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::agreement::SlotState;
use netacc_proto::rendezvous::{MAX_MESSAGE, Message, OfferLane, Role};

/// One that has had connections is kept for so long, at both ends.
const KEPT_NS: u64 = 3_000_000_000;

/// Whether the carriers of its connections are over is looked at every so long. As long as one is
/// not, it may be resumed.
const LOOK_NS: u64 = 1_000_000_000;
/// And where the peer's process is gone, until theirs have been told as well.
const LOOK_SOON_NS: u64 = 5_000_000;

/// To resume a link that broke the connector tries after so long, then again, and at last every so
/// long. (A try that the peer's host takes is not given up: `Link::is_at_its_door`.)
const RETRY_NS: [u64; 6] =
    [1_000_000, 100_000_000, 500_000_000, 1_500_000_000, 3_000_000_000, 5_000_000_000];

impl Remote {
    /// A link has failed. One that was of use is broken, and may be resumed; any other ends: what
    /// was on its pairs has nobody to agree with any more.
    pub(super) fn on_link_fault(&mut self, i: usize, why: Fault) {
        let Some(l) = self.link_mut(i).filter(|l| l.phase != Phase::Gone) else { return };
        let of_use = l.in_use() || !l.pairs.is_empty() || l.connections > 0;
        if matches!(why, Fault::Ended | Fault::Closed | Fault::NotFound | Fault::Stuck)
            && (l.is_up() || l.broken_at != 0)
            && of_use
        {
            let deserted = why == Fault::Closed && l.is_up();
            return self.break_link(i, deserted);
        }
        let was_up = l.is_up() || l.broken_at != 0;
        let was_of_use = was_up && l.connections > 0;
        let (role, local, peer) = (l.role, l.local, SocketAddr::new(l.peer, l.port));
        if why == Fault::Malformed {
            stats::count(Counter::PeerCorrupt);
            warn_of_peer!(
                "the library at {peer} broke the rules of the link: what was agreed with it is given up"
            );
        } else if why == Fault::Impostor {
            stats::count(Counter::AuthFailures);
            warn_of_peer!(
                "who answers for {peer} does not know what who accepts there does: it is left alone"
            );
        } else if was_up {
            debug_log!("link to {peer} ended: {why:?}");
        }
        let Some(l) = self.link_mut(i) else { return };
        l.phase = Phase::Gone;
        // In the middle of another frame it would be none.
        let is_over = matches!(why, Fault::Over | Fault::Ended | Fault::Closed);
        let bye = was_up && !is_over && l.output.is_empty();
        l.output = VecDeque::new();
        let fd = core::mem::replace(&mut l.fd, -1);
        if fd >= 0 {
            if bye {
                let mut bytes = [0u8; MAX_MESSAGE];
                let n = Message::Bye.encode(&mut bytes);
                // SAFETY: a live buffer. Whether it can be sent does not matter any more.
                let _ = unsafe {
                    sys::sendto(
                        fd,
                        bytes.as_ptr(),
                        n.min(bytes.len()),
                        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                    )
                };
            }
            close_own(fd);
        }
        if was_up {
            self.stop_probes(i);
            self.forget_link(i);
            self.free_done(i);
            self.end_all_pairs(i);
            self.abandon(i);
        }
        if self.link(i).is_some_and(|l| !l.in_use()) {
            self.drop_link(i);
        }
        if role == Role::Connector {
            self.destination_is_lost(local, peer, was_of_use, why == Fault::OtherVersion);
        }
    }

    /// The TCP connection is gone, the peer perhaps not. Data goes on; what needs the link waits.
    /// `deserted`: or so is the peer.
    pub(super) fn break_link(&mut self, i: usize, deserted: bool) {
        let now = sys::now_ns();
        let Some(l) = self.link_mut(i) else { return };
        debug_log!("the link to {} broke", l.peer);
        let fd = core::mem::replace(&mut l.fd, -1);
        if l.is_at_its_door() {
            // Until now it was there.
            l.answered_at = now;
        }
        (l.phase, l.blocked, l.deserted) = (Phase::Broken, false, l.deserted | deserted);
        (l.input, l.output) = (Vec::new(), VecDeque::new());
        l.unheard = Unheard::default();
        if l.broken_at == 0 {
            (l.broken_at, l.retries, l.since) = (now, 0, now);
        }
        let coming: Vec<u32> = l
            .pairs
            .iter()
            .filter(|p| p.is_coming() || p.state == PairState::Ending)
            .map(|p| p.number)
            .collect();
        if fd >= 0 {
            // The peer is not to take this process for one that is gone (Fault::Closed).
            let reset = libc::linger { l_onoff: 1, l_linger: 0 };
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &reset);
            close_own(fd);
        }
        self.forget_candidates(i);
        self.free_done(i);
        for n in coming {
            self.lose_pair(i, n, Reason::RdmaLost, false);
        }
        self.time_broken(i, now);
    }

    /// One that broke, and is not up again.
    pub(super) fn time_broken(&mut self, i: usize, now: u64) {
        self.forget_offers_to_nobody(i);
        let Some(l) = self.link(i) else { return };
        // With connections it is kept for them; without, for the peer's sake: the last words of one
        // may have been lost.
        if !l.in_use() && (l.connections == 0 || now.saturating_sub(l.broken_at) > KEPT_NS) {
            return self.on_link_fault(i, Fault::Over);
        }
        let (since, role, deserted, waits) = (l.broken_at, l.role, l.deserted, l.is_at_its_door());
        let [.., last] = RETRY_NS;
        let next = l.since.saturating_add(RETRY_NS.get(l.retries).copied().unwrap_or(last));
        self.time_out_unheard(i, now);
        self.lose_silent_pairs(i, now);
        self.look_at_carriers(i);
        let soon = since + BACK_LOST_NS + 1;
        self.at(match now < soon {
            true if deserted => now + LOOK_SOON_NS,
            true => soon,
            false => now + LOOK_NS,
        });
        if waits || role == Role::Acceptor {
            return;
        }
        if now < next {
            return self.at(next);
        }
        let Some(l) = self.link_mut(i) else { return };
        (l.retries, l.since) = (l.retries + 1, now);
        let (local, peer, port, k, serial) = (l.local, l.peer, l.port, l.k, l.serial);
        let fd = tcp_socket(local);
        let (raw, len) = sockaddr(SocketAddr::new(peer, destinations::link_port(port, k)));
        let ok = fd >= 0
            && bind(fd, SocketAddr::new(local, 0)) >= 0
            && [0, -(libc::EINPROGRESS as isize)]
                .contains(&sys::connect(fd, raw.get(..len).unwrap_or(&[])))
            && watch(self.epoll, fd, (libc::EPOLLIN | libc::EPOLLOUT) as u32, event(serial, i));
        if !ok {
            if fd >= 0 {
                close_own(fd);
            }
            return self.at(now + RETRY_NS[1]);
        }
        set_up(fd);
        if let Some(l) = self.link_mut(i) {
            (l.fd, l.phase, l.blocked) = (fd, Phase::Connecting, true);
        }
        self.at(now + ANSWER_NS);
    }

    /// Acceptor: the peer comes back on the TCP connection of link `new`.
    pub(super) fn take_over(&mut self, earlier: usize, new: usize) -> Result<(), Fault> {
        if self.link(earlier).is_some_and(Link::is_up) {
            // It has noticed before we did.
            self.break_link(earlier, false);
        }
        let Some(fd) = self.link_mut(new).map(|l| core::mem::replace(&mut l.fd, -1)) else {
            return Ok(());
        };
        if let Some(link) = self.links.get_mut(new).and_then(Option::take) {
            self.shares.drop_link(Source::of(link.peer), link.hello.is_some());
        }
        let Some(l) = self.link_mut(earlier) else {
            close_own(fd);
            return Ok(());
        };
        l.fd = fd;
        let (serial, key) = (l.serial, l.hello.map_or([0; 16], |h| h.key));
        l.phase = Phase::Resuming;
        let _ = watch(self.epoll, fd, libc::EPOLLIN as u32, event(serial, earlier));
        self.send(earlier, Message::Resume { known: true, key });
        self.resume(earlier);
        Ok(())
    }

    /// The link is up again: both ends say everything that the other may not know.
    pub(super) fn resume(&mut self, i: usize) {
        // (It may have broken once more, with the word that says so.)
        if self.link(i).is_none_or(|l| l.phase != Phase::Resuming) {
            return;
        }
        self.stop_probes(i);
        let Some(l) = self.link_mut(i) else { return };
        debug_log!("the link to {} is resumed", l.peer);
        (l.phase, l.broken_at, l.blocked, l.deserted) = (Phase::Up, 0, false, false);
        let mut frames = Vec::new();
        for p in l.pairs.iter_mut().filter(|p| p.state == PairState::Ready) {
            // What the peer said before does not count.
            p.peer_ready = false;
            p.progress.forget_question();
            frames.push(Message::PairReady { pair: p.number });
        }
        for (slot, c) in l.conns.iter_mut().enumerate() {
            c.published = None;
            let offer = OfferLane {
                token: c.slot.token,
                slot: slot as u16,
                pair: c.pair,
                lane: c.lane,
                ring_log2: c.rings.as_ref().map_or(0, |r| r.ring_bytes().trailing_zeros()) as u8,
                fills: c.theirs.is_some_and(|t| t.fills),
            };
            match (l.role, c.slot.state) {
                (Role::Acceptor, SlotState::Offered) => frames.push(Message::OfferLane(offer)),
                (Role::Connector, SlotState::Free) => {
                    frames.push(Message::Freed { slot: slot as u16 })
                }
                (_, SlotState::Live) => {
                    if let Some(c) = l.channel {
                        c.far.words_changed(slot);
                    }
                }
                _ => {}
            }
        }
        frames.push(Message::Synced);
        let connector = l.role == Role::Connector;
        for f in frames {
            self.send(i, f);
        }
        self.watch_progress(sys::now_ns());
        if connector {
            self.announce_all(i);
        } else {
            self.serve_waiting(i);
        }
    }

    /// The peer has named every pair that it has.
    pub(super) fn on_synced(&mut self, i: usize) {
        let Some(l) = self.link(i) else { return };
        let lost: Vec<u32> = l
            .pairs
            .iter()
            .filter(|p| p.state == PairState::Ready && !p.peer_ready)
            .map(|p| p.number)
            .collect();
        for n in lost {
            self.lose_pair(i, n, Reason::RdmaLost, false);
        }
    }
}
