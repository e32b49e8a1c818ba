//! The round-trip time and the retransmission timeout (RFC 6298).

use crate::Nanos;

/// K of RFC 6298 (2.2).
const K: u64 = 4;
/// RFC 6298 (2.5): at least 60 s. Linux's TCP_RTO_MAX.
const RTO_MAX: Nanos = 120_000_000_000;
/// RFC 6298 (2.1): before there is a measure.
const RTO_INITIAL: Nanos = 1_000_000_000;
/// For how long the smallest round trip counts: half of this, at least (RFC 8985, 6.2, step 1).
const WINDOW: Nanos = 300_000_000_000;

#[derive(Debug)]
pub(crate) struct Rtt {
    srtt: Option<Nanos>,
    rttvar: Nanos,
    /// RFC 6298 (2.4) has 1 s, Linux 200 ms; the socket's is used.
    rto_min: Nanos,
    /// How often the timeout has doubled (RFC 6298 (5.5)).
    backoff: u32,
    smallest: Smallest,
}

impl Rtt {
    pub(crate) fn new(srtt: Nanos, rttvar: Nanos, rto_min: Nanos, now: Nanos) -> Self {
        let srtt = (srtt > 0).then_some(srtt);
        let smallest = Smallest { turned: now, ..Smallest::default() };
        Self { srtt, rttvar, rto_min, backoff: 0, smallest }
    }

    /// A round trip was measured, of bytes that were sent once.
    pub(crate) fn sample(&mut self, rtt: Nanos) {
        match self.srtt {
            // (2.2)
            None => {
                self.srtt = Some(rtt);
                self.rttvar = rtt / 2;
            }
            // (2.3), beta = 1/4, alpha = 1/8
            Some(srtt) => {
                self.rttvar = self.rttvar - self.rttvar / 4 + srtt.abs_diff(rtt) / 4;
                self.srtt = Some(srtt - srtt / 8 + rtt / 8);
            }
        }
    }

    /// New data was acknowledged: the timeout is that of the measures again (RFC 6298 (5.7), as
    /// Linux does it: at the first progress).
    pub(crate) const fn progress(&mut self) {
        self.backoff = 0;
    }

    /// (5.5)
    pub(crate) const fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    pub(crate) const fn srtt(&self) -> Option<Nanos> {
        self.srtt
    }

    pub(crate) const fn rttvar(&self) -> Nanos {
        self.rttvar
    }

    /// RTO.
    pub(crate) fn rto(&self) -> Nanos {
        self.backed_off(self.backoff)
    }

    /// The timeout after it has doubled so often.
    pub(crate) fn backed_off(&self, times: u32) -> Nanos {
        let base = match self.srtt {
            None => RTO_INITIAL,
            // (2.3). As in Linux the minimum is one of the variance, so that a timeout is never
            // near a round trip that is longer than it.
            Some(srtt) => srtt.saturating_add(K.saturating_mul(self.rttvar).max(self.rto_min)),
        };
        base.saturating_mul(1 << times.min(32)).min(RTO_MAX)
    }

    pub(crate) fn note_smallest(&mut self, now: Nanos, rtt: Nanos) {
        self.smallest.note(now, rtt);
    }

    /// RACK.min_RTT.
    pub(crate) fn smallest(&self) -> Option<Nanos> {
        self.smallest.value().or(self.srtt)
    }
}

/// The smallest of what was noted lately, in two halves of the window.
#[derive(Debug, Default)]
struct Smallest {
    turned: Nanos,
    before: Option<Nanos>,
    since: Option<Nanos>,
}

impl Smallest {
    fn note(&mut self, now: Nanos, rtt: Nanos) {
        if now.saturating_sub(self.turned) > WINDOW / 2 {
            self.turned = now;
            self.before = self.since.take();
        }
        self.since = Some(self.since.map_or(rtt, |known| known.min(rtt)));
    }

    fn value(&self) -> Option<Nanos> {
        match (self.before, self.since) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_rfcs_formulas() {
        let mut rtt = Rtt::new(0, 0, 0, 0);
        assert_eq!(rtt.rto(), 1000 * MS, "(2.1)");
        rtt.sample(100 * MS);
        assert_eq!((rtt.srtt, rtt.rttvar), (Some(100 * MS), 50 * MS), "(2.2)");
        assert_eq!(rtt.rto(), 300 * MS);
        rtt.sample(60 * MS);
        // (2.3): 3/4 * 50 + 1/4 * |100 - 60|; 7/8 * 100 + 1/8 * 60.
        assert_eq!((rtt.srtt, rtt.rttvar), (Some(95 * MS), 47_500_000));
        assert_eq!(rtt.rto(), 285 * MS);
    }

    #[test]
    fn it_doubles_up_to_its_maximum_and_begins_again_with_progress() {
        let mut rtt = Rtt::new(100 * MS, 0, 200 * MS, 0);
        let mut expected = 300 * MS;
        for _ in 0..40 {
            assert_eq!(rtt.rto(), expected.min(RTO_MAX));
            rtt.back_off();
            expected = (expected * 2).min(RTO_MAX);
        }
        rtt.progress();
        assert_eq!(rtt.rto(), 300 * MS);
    }

    #[test]
    fn the_smallest_is_forgotten_after_the_window() {
        let mut rtt = Rtt::new(0, 0, 0, 0);
        rtt.note_smallest(0, 5);
        rtt.note_smallest(WINDOW / 2 - 1, 9);
        assert_eq!(rtt.smallest(), Some(5));
        rtt.note_smallest(WINDOW / 2 + 1, 9);
        assert_eq!(rtt.smallest(), Some(5));
        rtt.note_smallest(WINDOW + 2, 9);
        assert_eq!(rtt.smallest(), Some(9));
    }
}
