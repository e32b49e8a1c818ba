//! For how long a wait for a set may poll, by the rules for the accelerated connections in it: as
//! the one that may be polled for least.

use crate::socket::Limit;
use core::num::NonZeroU8;

/// So many bounds are told apart; where there are more, connections share the strictest one's
/// place, which has the least of theirs until all of them have gone.
const KNOWN: usize = 8;

/// The bounds of a set's accelerated connections, and how many have each.
pub(super) struct Limits {
    known: [(Limit, u32); KNOWN],
    /// What is in force.
    least: Limit,
}

/// Where a connection is counted: an index + 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LimitIndex(NonZeroU8);

impl Limits {
    pub(super) const fn new() -> Limits {
        Limits { known: [(Limit::CONFIGURED, 0); KNOWN], least: Limit::CONFIGURED }
    }

    /// One comes.
    pub(super) fn join(&mut self, limit: Limit) -> LimitIndex {
        let of = |known: &[(Limit, u32); KNOWN], is: &dyn Fn(&(Limit, u32)) -> bool| {
            known.iter().position(is)
        };
        let at = of(&self.known, &|(known, count)| *known == limit && *count != 0)
            .or_else(|| of(&self.known, &|(_, count)| *count == 0))
            .unwrap_or_else(|| self.strictest());
        if let Some((known, count)) = self.known.get_mut(at) {
            if *count == 0 {
                *known = limit;
            } else if *known != limit {
                *known = known.or(limit);
            }
            *count = count.saturating_add(1);
        }
        self.look();
        LimitIndex(NonZeroU8::MIN.saturating_add(at as u8))
    }

    /// It goes.
    pub(super) fn leave(&mut self, at: LimitIndex) {
        if let Some((_, count)) = self.known.get_mut(usize::from(at.0.get() - 1)) {
            *count = count.saturating_sub(1);
        }
        self.look();
    }

    /// Of a wait for all of them.
    pub(super) fn least(&self) -> Limit {
        self.least
    }

    fn look(&mut self) {
        let those = self.known.iter().filter(|(_, count)| *count != 0).map(|(limit, _)| *limit);
        self.least = those.reduce(Limit::or).unwrap_or_default();
    }

    /// Where those stand that may be polled for least.
    fn strictest(&self) -> usize {
        let least = self.known.iter().enumerate().min_by_key(|(_, (limit, _))| limit.rank());
        least.map_or(0, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_may_be_polled_for_least_counts_while_it_is_there() {
        let mut limits = Limits::new();
        assert_eq!(limits.least(), Limit::CONFIGURED);
        let long = limits.join(Limit::us(500));
        assert_eq!(limits.least(), Limit::us(500));
        let any = limits.join(Limit::CONFIGURED);
        assert_eq!(limits.least(), Limit::at_most_us(500));
        let none = [limits.join(Limit::us(0)), limits.join(Limit::us(0))];
        assert_eq!(limits.least(), Limit::at_most_us(0));
        limits.leave(none[0]);
        assert_eq!(limits.least(), Limit::at_most_us(0));
        limits.leave(none[1]);
        limits.leave(any);
        assert_eq!(limits.least(), Limit::us(500));
        limits.leave(long);
        assert_eq!(limits.least(), Limit::CONFIGURED);
    }

    #[test]
    fn more_bounds_than_are_told_apart_count_as_the_least() {
        let mut limits = Limits::new();
        let all: [_; KNOWN] = core::array::from_fn(|n| limits.join(Limit::us(100 + n as u32)));
        let longer = limits.join(Limit::us(500));
        assert_eq!((limits.least(), longer), (Limit::us(100), all[0]));
        let none = limits.join(Limit::us(0));
        assert_eq!((limits.least(), none), (Limit::us(0), all[0]));
        limits.leave(all[0]);
        limits.leave(longer);
        assert_eq!(limits.least(), Limit::us(0));
        limits.leave(none);
        assert_eq!(limits.least(), Limit::us(101));
    }
}
