//! What a rule of the operator's says of a connection beside its paths: for how long waits for it
//! poll, and whether it is traced.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// A bound that rules set to the polling of a wait: one word, as every wait carries it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Limit(u32);

/// Microseconds + 1; 0: as it is configured.
const LIMIT: u32 = (1 << 28) - 1;
/// It only shortens what is configured.
const AT_MOST: u32 = 1 << 28;

impl Limit {
    /// No rule says anything.
    pub(crate) const CONFIGURED: Limit = Limit(0);

    /// So many microseconds, whatever is configured.
    pub(crate) const fn us(us: u32) -> Limit {
        Limit(if us < LIMIT { us + 1 } else { LIMIT })
    }

    /// As it is configured, but not longer.
    pub(crate) const fn at_most_us(us: u32) -> Limit {
        Limit(Limit::us(us).0 | AT_MOST)
    }

    /// Its microseconds, if it has any.
    fn bound(self) -> Option<u32> {
        (self.0 & LIMIT).checked_sub(1)
    }

    /// How strict it is: less is stricter.
    pub(crate) fn rank(self) -> u32 {
        self.bound().unwrap_or(u32::MAX)
    }

    pub(crate) const fn only_shortens(self) -> bool {
        self.0 & AT_MOST != 0
    }

    /// Of a wait for connections with either: the shorter one.
    pub(crate) fn or(self, other: Limit) -> Limit {
        match (self.bound(), other.bound()) {
            (None, None) => Limit::CONFIGURED,
            (Some(a), Some(b)) if !self.only_shortens() && !other.only_shortens() => {
                Limit::us(a.min(b))
            }
            (a, b) => Limit::at_most_us(a.unwrap_or(u32::MAX).min(b.unwrap_or(u32::MAX))),
        }
    }

    /// What a wait may poll, of which the configuration says so, in nanoseconds. `None`: nothing.
    #[inline(always)]
    pub(crate) fn ns_of(self, configured: Option<u32>) -> Option<u32> {
        if self == Limit::CONFIGURED {
            return configured;
        }
        let ns = self.rank().saturating_mul(1_000);
        Some(
            configured.filter(|_| self.only_shortens()).map_or(ns, |configured| configured.min(ns)),
        )
    }
}

/// The words of a rule for a connection. Set before it is looked up or begins.
#[derive(Debug)]
pub(crate) struct Ruled(AtomicU32);

const TRACED: u32 = 1 << 31;
const UNTRACED: u32 = 1 << 30;
impl Ruled {
    pub(crate) fn set(&self, poll_us: Option<u32>, trace: Option<bool>) {
        let trace = trace.map_or(0, |on| if on { TRACED } else { UNTRACED });
        self.0.store(trace | poll_us.map_or(Limit::CONFIGURED, Limit::us).0, Relaxed);
    }

    /// Nothing is said.
    #[inline(always)]
    pub(crate) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// Of waits for it.
    #[inline(always)]
    pub(crate) fn limit(&self) -> Limit {
        Limit(self.0.load(Relaxed) & LIMIT)
    }

    /// Whether it is traced, where others are or are not.
    #[inline(always)]
    pub(crate) fn is_traced(&self, others: impl FnOnce() -> bool) -> bool {
        match self.0.load(Relaxed) & (TRACED | UNTRACED) {
            0 => others(),
            word => word == TRACED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: Limit = Limit::CONFIGURED;

    #[test]
    fn the_shorter_one_counts() {
        for (a, b, both) in [
            (CONFIGURED, CONFIGURED, CONFIGURED),
            (CONFIGURED, Limit::us(0), Limit::at_most_us(0)),
            (Limit::us(5), Limit::us(3), Limit::us(3)),
            (Limit::us(5), Limit::at_most_us(9), Limit::at_most_us(5)),
            (Limit::at_most_us(5), CONFIGURED, Limit::at_most_us(5)),
            (Limit::at_most_us(5), Limit::at_most_us(3), Limit::at_most_us(3)),
        ] {
            assert_eq!((a.or(b), b.or(a)), (both, both), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_rule_counts_in_the_place_of_the_configuration() {
        for (limit, configured, ns) in [
            (CONFIGURED, None, None),
            (CONFIGURED, Some(7), Some(7)),
            (Limit::us(2), None, Some(2_000)),
            (Limit::us(2), Some(0), Some(2_000)),
            (Limit::us(0), Some(7_000), Some(0)),
            (Limit::at_most_us(2), Some(7_000), Some(2_000)),
            (Limit::at_most_us(2), Some(1_000), Some(1_000)),
            (Limit::at_most_us(0), None, Some(0)),
        ] {
            assert_eq!(limit.ns_of(configured), ns, "{limit:?} {configured:?}");
        }
    }

    #[test]
    fn what_is_set_is_said() {
        let ruled = Ruled(AtomicU32::new(0));
        let said = || (ruled.limit(), ruled.is_traced(|| true), ruled.is_traced(|| false));
        assert_eq!(said(), (CONFIGURED, true, false));
        for (poll_us, limit) in
            [(None, CONFIGURED), (Some(0), Limit::us(0)), (Some(10_000), Limit::us(10_000))]
        {
            ruled.set(poll_us, None);
            assert_eq!(said(), (limit, true, false));
            ruled.set(poll_us, Some(true));
            assert_eq!(said(), (limit, true, true));
            ruled.set(poll_us, Some(false));
            assert_eq!(said(), (limit, false, false));
        }
    }
}
