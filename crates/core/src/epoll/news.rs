//! What a drain of the rings brings: which items have news, in the order in which it came.

use crate::channel::announce;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// The news of one drain: pairs of a [`place_in_time`] and the index of an item.
pub(super) struct News {
    list: Vec<(u64, u32)>,
    near: [u32; NEAR],
}

/// Stamps that count lie close together. If all are less than this apart, each is put in its place
/// by its number, which is faster than sorting.
const NEAR: usize = 256;

/// The place in time of news with that stamp. A set orders its news by the clock, or by the count
/// of its only channel. News that was stamped in the other way came before the set changed, and is
/// older than all other. (The stamps come from peers: a wrong one changes the order, and nothing
/// else.)
#[inline]
pub(super) fn place_in_time(stamp: u64, by_clock: bool) -> u64 {
    if (stamp & announce::BY_CLOCK != 0) == by_clock { stamp } else { 0 }
}

impl News {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), near: [0; NEAR] }
    }

    /// Room for `all` altogether.
    pub(super) fn reserve(&mut self, all: usize) -> Result<(), TryReserveError> {
        self.list.try_reserve(all.saturating_sub(self.list.len()))
    }

    /// False: there is no room.
    #[inline(always)]
    pub(super) fn push(&mut self, at: u64, index: u32) -> bool {
        let room = self.list.len() < self.list.capacity();
        if room {
            self.list.push((at, index));
        }
        room
    }

    /// Calls `f` with the index of each news, the oldest first, and is empty then.
    #[inline(always)]
    pub(super) fn take(&mut self, mut f: impl FnMut(u32)) {
        if !self.list.is_sorted_by_key(|(at, _)| *at) && !self.put_in_place() {
            self.list.sort_unstable_by_key(|(at, _)| *at);
        }
        self.list.iter().for_each(|(_, index)| f(*index));
        self.list.clear();
    }

    /// Puts the indices in order; the places in time stay where they are. False, with nothing
    /// changed: two news have the same place in time, or more than one is far from the newest. (A
    /// single one may be far: the first news in an empty set gets no stamp.)
    #[inline(never)]
    fn put_in_place(&mut self) -> bool {
        let newest = self.list.iter().fold(0, |newest, (at, _)| newest.max(*at));
        let mut taken = [0u64; NEAR / 64];
        let mut oldest = None;
        for (at, index) in &self.list {
            let back = (newest - at) as usize;
            let (Some(place), Some(word)) = (self.near.get_mut(back), taken.get_mut(back / 64))
            else {
                if oldest.replace(*index).is_some() {
                    return false;
                }
                continue;
            };
            if *word & 1 << (back % 64) != 0 {
                return false;
            }
            *word |= 1 << (back % 64);
            *place = *index;
        }
        let mut list = self.list.iter_mut();
        let mut put = |index| list.next().into_iter().for_each(|news| news.1 = index);
        oldest.into_iter().for_each(&mut put);
        for (places, word) in self.near.chunks_exact(64).zip(taken).rev() {
            let mut bits = word;
            while bits != 0 {
                let back = bits.ilog2();
                bits ^= 1 << back;
                places.get(back as usize).copied().into_iter().for_each(&mut put);
            }
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use announce::BY_CLOCK;
    use proptest::prelude::*;

    #[test]
    fn news_stamped_in_the_other_way_is_the_oldest() {
        // A count that no clock has reached, clocks of which one is ahead, and whatever a peer may
        // write.
        assert!(place_in_time(8, false) < place_in_time(9, false));
        assert!(place_in_time(BY_CLOCK | 5, true) < place_in_time(BY_CLOCK | 1 << 62, true));
        assert_eq!(
            (place_in_time(BY_CLOCK | 1 << 50, false), place_in_time(u64::MAX, false)),
            (0, 0)
        );
        assert_eq!(place_in_time(u64::MAX >> 1, true), 0);
    }

    fn in_order(list: &[(u64, u32)]) -> Vec<u32> {
        let mut news = News::new();
        news.reserve(list.len()).unwrap();
        for (at, index) in list {
            assert!(news.push(*at, *index));
        }
        let mut order = Vec::new();
        news.take(|index| order.push(index));
        news.take(|_| panic!("taken twice"));
        order
    }

    /// Counts close together, far apart, the first without one, clocks, and all alike.
    fn stamps() -> impl Strategy<Value = Vec<u64>> {
        let near = proptest::collection::vec(1000u64..1300, 0..80);
        let mixed =
            proptest::collection::vec(prop_oneof![Just(0), 1000u64..1200, any::<u64>()], 0..40);
        let first = (0..900u64, proptest::collection::hash_set(1000u64..1250, 0..60))
            .prop_map(|(first, rest)| core::iter::once(first).chain(rest).collect());
        prop_oneof![near, mixed, first]
    }

    proptest! {
        #[test]
        fn the_oldest_comes_first(stamps in stamps()) {
            let list: Vec<_> = stamps.iter().copied().zip(0..).collect();
            let order = in_order(&list);
            let times: Vec<u64> = order.iter().map(|i| stamps[*i as usize]).collect();
            prop_assert!(times.is_sorted());
            let mut all = order;
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..stamps.len() as u32));
        }
    }

    #[test]
    fn what_is_near_is_not_sorted() {
        let place = |list: &[(u64, u32)]| {
            let mut news = News::new();
            news.list.extend_from_slice(list);
            news.put_in_place()
        };
        assert!(place(&[(7, 0), (1003, 1), (1001, 2)]));
        assert!(place(&[(1255, 0), (1000, 1)]));
        assert!(!place(&[(7, 0), (8, 1), (1001, 2)]));
        assert!(!place(&[(1003, 0), (1003, 1), (1001, 2)]));
    }
}
