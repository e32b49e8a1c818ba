//! The lanes of a pair that have a connection, and whose; and which one is free. Both are found
//! without a look at each lane, of which there may be 4096.

use alloc::vec::Vec;

/// Lanes of a word.
const WORD: usize = u64::BITS as usize;

pub(super) struct Places {
    /// The slot of each lane that has a connection.
    slots: Vec<Option<usize>>,
    /// The others, a bit for each.
    free: Vec<u64>,
    taken: usize,
}

impl Places {
    pub(super) fn new(lanes: u16) -> Places {
        let lanes = usize::from(lanes);
        let word = |first: usize| match lanes.saturating_sub(first) {
            rest if rest < WORD => (1 << rest) - 1,
            _ => u64::MAX,
        };
        Places {
            slots: alloc::vec![None; lanes],
            free: (0..lanes).step_by(WORD).map(word).collect(),
            taken: 0,
        }
    }

    /// How many have connections.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    pub(super) fn is_full(&self) -> bool {
        self.taken == self.slots.len()
    }

    pub(super) fn take(&mut self, lane: u16, slot: usize) {
        if let Some(place) = self.slots.get_mut(usize::from(lane)) {
            self.taken += usize::from(place.replace(slot).is_none());
            self.mark(lane, false);
        }
    }

    pub(super) fn give_back(&mut self, lane: u16) {
        if let Some(place) = self.slots.get_mut(usize::from(lane)) {
            self.taken -= usize::from(place.take().is_some());
            self.mark(lane, true);
        }
    }

    fn mark(&mut self, lane: u16, free: bool) {
        let lane = usize::from(lane);
        if let Some(word) = self.free.get_mut(lane / WORD) {
            let bit = 1 << (lane % WORD);
            *word = if free { *word | bit } else { *word & !bit };
        }
    }

    /// The first that is free.
    pub(super) fn first_free(&self) -> Option<u16> {
        let at = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free.get(at)?.trailing_zeros() as usize;
        u16::try_from(at * WORD + bit).ok()
    }

    pub(super) fn is_free(&self, lane: u16) -> bool {
        self.slots.get(usize::from(lane)) == Some(&None)
    }

    /// The slot of that lane's connection.
    pub(super) fn slot_of(&self, lane: u16) -> Option<usize> {
        *self.slots.get(usize::from(lane))?
    }

    /// The slots of all.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().filter_map(|slot| *slot)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_lane_is_found_whatever_was_given_back() {
        for lanes in [1u16, 63, 64, 65, 130, 4096] {
            let mut places = Places::new(lanes);
            let mut x = u64::from(lanes);
            for step in 0..20_000usize {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let lane = (x >> 33) as u16 % lanes;
                let first = (0..lanes).find(|lane| places.is_free(*lane));
                assert_eq!(places.first_free(), first);
                assert_eq!(places.is_full(), first.is_none());
                assert_eq!(places.slots().count(), places.taken());
                match first {
                    Some(first) if x >> 60 != 0 => {
                        places.take(first, step);
                        assert_eq!(places.slot_of(first), Some(step));
                    }
                    _ => {
                        places.give_back(lane);
                        assert!(places.is_free(lane) && places.slot_of(lane).is_none());
                    }
                }
                if lanes > 1000 && step > 5000 {
                    break;
                }
            }
        }
        let mut places = Places::new(65);
        (0..65).for_each(|lane| places.take(lane, 7));
        assert_eq!((places.first_free(), places.taken()), (None, 65));
        places.give_back(64);
        assert_eq!(places.first_free(), Some(64));
        // What is beyond is nobody's.
        places.give_back(65);
        places.take(65, 1);
        assert_eq!((places.first_free(), places.taken()), (Some(64), 64));
        assert!(!places.is_free(65));
    }
}
