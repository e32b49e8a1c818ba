//! What has arrived behind a gap: a bounded, sorted list of ranges (RFC 2018, 3 and 4).
//!
//! The bytes themselves are where they belong, in the receive buffer. A range that there is no
//! place for is not remembered: the peer sends it again.

use crate::seq::Position;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug)]
struct Range {
    from: Position,
    to: Position,
    /// Grows with every change: the latest is reported first.
    changed: u64,
}

/// What became of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// It is known now.
    Kept,
    /// All of it was.
    Known,
    /// There is no place for it.
    NoPlace,
}

#[derive(Debug)]
pub(super) struct Ranges {
    ranges: Vec<Range>,
    capacity: usize,
    changes: u64,
}

impl Ranges {
    /// Room for so many; none where there is no memory.
    pub(super) fn new(capacity: usize) -> Option<Self> {
        let capacity = capacity.max(1);
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(capacity).ok()?;
        Some(Self { ranges, capacity, changes: 0 })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.ranges.len()
    }

    /// `from < to`; touches and overlaps become one.
    pub(super) fn insert(&mut self, from: Position, to: Position) -> Inserted {
        self.changes += 1;
        let changed = self.changes;
        let first = self.ranges.partition_point(|range| range.to < from);
        let behind = self.ranges.partition_point(|range| range.from <= to);
        if first == behind {
            if self.ranges.len() >= self.capacity {
                return Inserted::NoPlace;
            }
            self.ranges.insert(first, Range { from, to, changed });
            return Inserted::Kept;
        }
        let end = self.ranges.get(behind - 1).map_or(to, |range| range.to.max(to));
        let Some(merged) = self.ranges.get_mut(first) else { return Inserted::NoPlace };
        let known = merged.from <= from && to <= merged.to;
        *merged = Range { from: merged.from.min(from), to: end, changed };
        self.ranges.drain(first + 1..behind);
        if known { Inserted::Known } else { Inserted::Kept }
    }

    /// Everything below `nxt` is there. Says up to where it is without a gap.
    pub(super) fn join(&mut self, mut nxt: Position) -> Position {
        let joined = self
            .ranges
            .iter()
            .take_while(|range| {
                let joins = range.from <= nxt;
                if joins {
                    nxt = nxt.max(range.to);
                }
                joins
            })
            .count();
        self.ranges.drain(..joined);
        nxt
    }

    /// Those that changed last, latest first: RFC 2018, 4.
    pub(super) fn latest(&self) -> impl Iterator<Item = (Position, Position)> + '_ {
        let mut before = u64::MAX;
        core::iter::from_fn(move || {
            let older = self.ranges.iter().filter(|range| range.changed < before);
            let next = older.max_by_key(|range| range.changed)?;
            before = next.changed;
            Some((next.from, next.to))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::random::Random;
    use std::collections::BTreeSet;
    use std::vec::Vec as List;

    #[test]
    fn the_latest_is_first() {
        let mut ranges = Ranges::new(8).unwrap();
        for at in [10, 30, 50, 70] {
            assert_eq!(ranges.insert(at, at + 5), Inserted::Kept);
        }
        assert_eq!(ranges.insert(31, 33), Inserted::Known);
        let latest: List<_> = ranges.latest().collect();
        assert_eq!(latest, [(30, 35), (70, 75), (50, 55), (10, 15)]);
        assert_eq!(ranges.insert(35, 50), Inserted::Kept);
        assert_eq!(ranges.latest().next(), Some((30, 55)));
        assert_eq!(ranges.len(), 3);
    }

    #[test]
    fn it_agrees_with_a_set_of_bytes() {
        for seed in 1..500 {
            let mut random = Random::new(seed);
            let capacity = if seed % 2 == 0 { 3 } else { 100 };
            let mut ranges = Ranges::new(capacity).unwrap();
            let mut bytes = BTreeSet::new();
            let mut nxt = 0;
            for _ in 0..100 {
                if random.below(8) == 0 {
                    nxt += random.below(20);
                    bytes.extend(0..nxt);
                    let mut to = nxt;
                    while bytes.contains(&to) {
                        to += 1;
                    }
                    nxt = ranges.join(nxt);
                    assert_eq!(nxt, to);
                } else {
                    let from = nxt + 1 + random.below(100);
                    let to = from + 1 + random.below(20);
                    let known = (from..to).all(|at| bytes.contains(&at));
                    match ranges.insert(from, to) {
                        Inserted::NoPlace => {
                            assert!(!known && ranges.len() == capacity);
                            continue;
                        }
                        Inserted::Known => assert!(known),
                        Inserted::Kept => assert!(!known),
                    }
                    bytes.extend(from..to);
                }
                assert!(ranges.len() <= capacity);
                let listed: BTreeSet<_> = ranges.latest().flat_map(|(a, b)| a..b).collect();
                assert!(listed.iter().eq(bytes.range(nxt..)));
            }
        }
    }
}
