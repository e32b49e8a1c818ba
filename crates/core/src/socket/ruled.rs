//! What a rule of the operator's says of a connection beside its paths: for how long waits for it
//! poll, and whether it is traced.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// A bound that rules set to the polling of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Limit {
    /// None does: as it is configured.
    #[default]
    Configured,
    /// So many microseconds, whatever is configured.
    Us(u32),
    /// As it is configured, but not longer.
    AtMostUs(u32),
}

impl Limit {
    /// Of a wait for connections with either: the shorter one.
    pub(crate) fn or(self, other: Limit) -> Limit {
        use Limit::*;
        match (self, other) {
            (Configured, Configured) => Configured,
            (Us(a), Us(b)) => Us(a.min(b)),
            (Configured, Us(us) | AtMostUs(us)) | (Us(us) | AtMostUs(us), Configured) => {
                AtMostUs(us)
            }
            (Us(a) | AtMostUs(a), Us(b) | AtMostUs(b)) => AtMostUs(a.min(b)),
        }
    }

    /// What a wait may poll, of which the configuration says so, in nanoseconds. `None`: nothing.
    #[inline(always)]
    pub(crate) fn ns_of(self, configured: Option<u32>) -> Option<u32> {
        match (self, configured) {
            (Limit::Configured, _) => configured,
            (Limit::AtMostUs(us), Some(ns)) => Some(ns.min(us.saturating_mul(1_000))),
            (Limit::AtMostUs(us) | Limit::Us(us), _) => Some(us.saturating_mul(1_000)),
        }
    }
}

/// The words of a rule for a connection. Set before it is looked up or begins.
#[derive(Debug)]
pub(crate) struct Ruled(AtomicU32);

const TRACED: u32 = 1 << 31;
const UNTRACED: u32 = 1 << 30;
const LIMIT: u32 = UNTRACED - 1;

impl Ruled {
    pub(crate) fn set(&self, poll_us: Option<u32>, trace: Option<bool>) {
        let trace = trace.map_or(0, |on| if on { TRACED } else { UNTRACED });
        let limit = poll_us.map_or(0, |us| us.saturating_add(1).min(LIMIT));
        self.0.store(trace | limit, Relaxed);
    }

    /// Of waits for it.
    #[inline(always)]
    pub(crate) fn limit(&self) -> Limit {
        match (self.0.load(Relaxed) & LIMIT).checked_sub(1) {
            None => Limit::Configured,
            Some(us) => Limit::Us(us),
        }
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
    use super::Limit::*;
    use super::*;

    #[test]
    fn the_shorter_one_counts() {
        for (a, b, both) in [
            (Configured, Configured, Configured),
            (Configured, Us(0), AtMostUs(0)),
            (Us(5), Us(3), Us(3)),
            (Us(5), AtMostUs(9), AtMostUs(5)),
            (AtMostUs(5), Configured, AtMostUs(5)),
            (AtMostUs(5), AtMostUs(3), AtMostUs(3)),
        ] {
            assert_eq!((a.or(b), b.or(a)), (both, both), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_rule_counts_in_the_place_of_the_configuration() {
        for (limit, configured, ns) in [
            (Configured, None, None),
            (Configured, Some(7), Some(7)),
            (Us(2), None, Some(2_000)),
            (Us(2), Some(0), Some(2_000)),
            (Us(0), Some(7_000), Some(0)),
            (AtMostUs(2), Some(7_000), Some(2_000)),
            (AtMostUs(2), Some(1_000), Some(1_000)),
            (AtMostUs(0), None, Some(0)),
        ] {
            assert_eq!(limit.ns_of(configured), ns, "{limit:?} {configured:?}");
        }
    }

    #[test]
    fn what_is_set_is_said() {
        let ruled = Ruled(AtomicU32::new(0));
        let said = || (ruled.limit(), ruled.is_traced(|| true), ruled.is_traced(|| false));
        assert_eq!(said(), (Configured, true, false));
        for (poll_us, limit) in [(None, Configured), (Some(0), Us(0)), (Some(10_000), Us(10_000))] {
            ruled.set(poll_us, None);
            assert_eq!(said(), (limit, true, false));
            ruled.set(poll_us, Some(true));
            assert_eq!(said(), (limit, true, true));
            ruled.set(poll_us, Some(false));
            assert_eq!(said(), (limit, false, false));
        }
    }
}
