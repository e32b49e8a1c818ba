//! What the host at the other end of a carrier says, where its library says nothing.
//!
//! A carrier is idle while its connection is on RDMA, so nothing comes of a host that has rebooted,
//! which would answer any packet by a reset. So while a link is broken, and nobody answers where it
//! led, the kernel has to send a packet on the carriers of connections that wait: a keep-alive
//! probe, for which the options of keep-alive are others for a moment ([`Probe`]). A reset is
//! TCP's own, and ends the connection as ever. And where a carrier's probes are not answered
//! either, a queue pair on which something does not arrive is lost, whatever its device says: some
//! never say that nobody is there, and TCP below iWARP says so after a quarter of an hour.

use crate::socket::Socket;
use crate::{carrier, io};

/// The first probe comes when nothing was heard for so long, the others after twice as long each
/// time. (TCP's packets would be sent again in the same way.)
const FIRST_NS: u64 = 2_000_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;
/// An answer is waited for so long; and then the options are the application's again.
const ANSWER_NS: u64 = 1_000_000_000;
/// So many probes without an answer, of a minute in all: nobody is there.
const UNANSWERED: u32 = 5;

/// A probe on its way: it ends with this, whatever becomes of what waited for it, and the options
/// are the application's again.
struct Probe {
    s: &'static Socket,
    g: u16,
}

impl Probe {
    fn begin(s: &'static Socket) -> Probe {
        let g = s.generation16();
        io::begin_probe(s, g);
        Probe { s, g }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        io::end_probe(self.s, self.g);
    }
}

/// The probes of one carrier.
#[derive(Default)]
pub(super) struct Probes {
    under_way: Option<Probe>,
    /// When the next one begins, or this one ends; 0: it has not been thought of.
    at: u64,
    pause: u64,
    /// So many in a row were not answered.
    unanswered: u32,
}

impl Probes {
    /// What is due by now, of that connection's carrier.
    pub(super) fn ask(&mut self, now: u64, s: &'static Socket) {
        if self.at == 0 {
            (self.at, self.pause) = (now + FIRST_NS, FIRST_NS);
        }
        if now < self.at {
            return;
        }
        if self.end_in_time(now).is_none() && now >= self.at {
            self.under_way = Some(Probe::begin(s));
            self.at = now + ANSWER_NS;
        }
    }

    /// Ends one that has had its time. When that is, if one is under way still.
    pub(super) fn end_in_time(&mut self, now: u64) -> Option<u64> {
        let probe = self.under_way.take()?;
        if now < self.at {
            self.under_way = Some(probe);
            return Some(self.at);
        }
        let s = probe.s;
        drop(probe);
        let mut answered = true;
        io::with_carrier(s, |fd| answered = carrier::unanswered_ns(fd) == 0);
        self.ended(now, answered);
        None
    }

    fn ended(&mut self, now: u64, answered: bool) {
        self.unanswered = if answered { 0 } else { self.unanswered + 1 };
        self.pause = (self.pause * 2).min(PAUSE_MAX_NS);
        self.at = now + self.pause;
    }

    /// Nobody is there.
    pub(super) fn are_in_vain(&self) -> bool {
        self.unanswered >= UNANSWERED
    }
}

/// Of a pair whose link is broken: whether anything arrives.
#[derive(Default)]
pub(super) struct Quiet {
    /// So many messages had arrived when it was first seen that others had not; since then.
    granted: u32,
    since: u64,
    pub(super) probes: Probes,
    /// The slot whose carrier is probed.
    pub(super) slot: Option<usize>,
}

impl Quiet {
    /// Since when something has not arrived. 0: all has. Where anything has, probes are thought of
    /// anew.
    pub(super) fn since(&mut self, now: u64, sent: u32, granted: u32) -> u64 {
        if sent == granted {
            *self = Quiet::default();
        } else if self.since == 0 || self.granted != granted {
            (self.granted, self.since) = (granted, now);
            self.probes = Probes::default();
        }
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn probes_become_rarer_and_some_in_vain_are_enough() {
        let mut p = Probes { at: 2 * S, pause: FIRST_NS, ..Probes::default() };
        let mut began = alloc::vec::Vec::new();
        while !p.are_in_vain() {
            began.push(p.at / S);
            p.ended(p.at + ANSWER_NS, false);
        }
        assert_eq!(began, [2, 7, 16, 33, 66]);
        p.ended(200 * S, true);
        assert!(!p.are_in_vain(), "one answer is enough, too");
        (0..10).for_each(|_| p.ended(300 * S, true));
        assert_eq!((p.at, p.are_in_vain()), (360 * S, false));
    }

    #[test]
    fn a_pair_is_quiet_while_something_does_not_arrive_and_nothing_else_does() {
        let mut q = Quiet::default();
        assert_eq!(q.since(1, 5, 5), 0);
        assert_eq!(q.since(2, 6, 5), 2);
        assert_eq!(q.since(9, 7, 5), 2);
        assert_eq!(q.since(10, 8, 6), 10, "one has");
        assert_eq!(q.since(11, 8, 8), 0);
        assert_eq!(q.since(12, 0, u32::MAX), 12, "numbers go round");
    }
}
