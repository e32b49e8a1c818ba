//! What a connection's trace is told of losses, timeouts and probes: few events that count many. A
//! network that loses all the time must not push everything else out of the trace.

use crate::trace::Event;
use netacc_utcp::{Counters, Figures};

/// The next event may come so much later; the one behind that twice as much later.
const FIRST_NS: u64 = 100_000_000;
/// That is the most. Behind as long without an event it begins anew.
const MOST_NS: u64 = 10_000_000_000;

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    told: Counters,
    not_before: u64,
    pause: u64,
}

impl Troubles {
    /// Whether there is something that may be told now; `last`: there is no later.
    #[inline]
    pub(super) const fn is_due(&self, counters: &Counters, now: u64, last: bool) -> bool {
        counters.troubles() != self.told.troubles() && (last || now >= self.not_before)
    }

    /// Tells what has happened since.
    #[cold]
    pub(super) fn tell(&mut self, figures: &Figures, now: u64, mut say: impl FnMut(Event, u64)) {
        let (new, old) = (&figures.counters, &self.told);
        let more = |new: u64, old: u64, most: u64| new.wrapping_sub(old).min(most);
        let recoveries = more(new.recoveries, old.recoveries, (1 << 24) - 1);
        let again = more(new.bytes_again, old.bytes_again, (1 << 40) - 1);
        let timeouts = more(new.timeouts, old.timeouts, 0xffff);
        let probes = more(new.probes, old.probes, 0xffff);
        if recoveries > 0 {
            say(Event::Retransmitted, recoveries | again << 24);
        }
        if timeouts > 0 {
            let in_a_row = u64::from(figures.timeouts).min(0xffff);
            let rto_ms = (figures.rto / 1_000_000).min(u64::from(u32::MAX));
            say(Event::Rto, timeouts | in_a_row << 16 | rto_ms << 32);
        }
        if probes > 0 {
            say(Event::Probed, probes | figures.send_window.min((1 << 48) - 1) << 16);
        }
        let was_quiet = now.saturating_sub(self.not_before) >= MOST_NS;
        self.pause = if was_quiet { FIRST_NS } else { (2 * self.pause).clamp(FIRST_NS, MOST_NS) };
        self.not_before = now.saturating_add(self.pause);
        self.told = *new;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn figures(counters: Counters) -> Figures {
        Figures {
            cwnd: 0,
            ssthresh: 0,
            srtt: None,
            rttvar: 0,
            rto: 400_000_000,
            outstanding: 0,
            in_flight: 0,
            lost: 0,
            sacked: 0,
            unsent: 0,
            send_window: 0,
            receive_window: 0,
            mss: 1448,
            congestion: netacc_utcp::Congestion::Loss,
            timeouts: 3,
            counters,
        }
    }

    /// What is told of these counters, if it is time.
    fn told(of: &mut Troubles, counters: Counters, now: u64, last: bool) -> Vec<(Event, u64)> {
        let mut all = Vec::new();
        if of.is_due(&counters, now, last) {
            of.tell(&figures(counters), now, |event, what| all.push((event, what)));
        }
        all
    }

    #[test]
    fn each_kind_is_told_with_its_count() {
        let mut of = Troubles::default();
        let none = Counters::default();
        assert_eq!(told(&mut of, none, 1 << 40, true), []);
        let some = Counters { recoveries: 2, bytes_again: 5000, timeouts: 3, probes: 1, ..none };
        let said = [
            (Event::Retransmitted, 2 | 5000 << 24),
            (Event::Rto, 3 | 3 << 16 | 400 << 32),
            (Event::Probed, 1),
        ];
        assert_eq!(told(&mut of, some, 1 << 40, false), said);
        assert_eq!(told(&mut of, some, 1 << 41, true), [], "it was told");
    }

    #[test]
    fn a_network_that_loses_all_the_time_is_told_of_in_few_events() {
        let (mut of, mut counters) = (Troubles::default(), Counters::default());
        let (mut events, mut sum, mut now) = (0, 0, 1 << 40);
        // A loss each millisecond, for ten minutes.
        for _ in 0..600_000 {
            now += 1_000_000;
            counters.recoveries += 1;
            for (_, what) in told(&mut of, counters, now, false) {
                (events, sum) = (events + 1, sum + (what & 0xff_ffff));
            }
        }
        assert!((60..=70).contains(&events), "{events}");
        counters.timeouts += 1;
        // Nothing is lost of it, at the latest when it ends.
        for (event, what) in told(&mut of, counters, now, true) {
            sum += if event == Event::Retransmitted { what & 0xff_ffff } else { 0 };
        }
        assert_eq!(sum, 600_000);
    }

    #[test]
    fn behind_a_quiet_time_the_first_one_is_told_at_once() {
        let (mut of, mut counters) = (Troubles::default(), Counters::default());
        let mut one_more = |now| {
            counters.timeouts += 1;
            told(&mut of, counters, now, false).len()
        };
        let began = 1 << 40;
        assert_eq!(one_more(began), 1);
        assert_eq!(one_more(began + FIRST_NS - 1), 0);
        assert_eq!(one_more(began + FIRST_NS), 1);
        assert_eq!(one_more(began + 2 * FIRST_NS), 0, "twice as much later");
        let later = began + 4 * MOST_NS;
        assert_eq!((one_more(later), one_more(later + FIRST_NS)), (1, 1));
    }
}
