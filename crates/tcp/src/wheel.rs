//! The timers of many connections: a hierarchical timing wheel (Varghese and Lauck, 1987).
//!
//! Each connection has one timer, by its number. Setting, changing and cancelling one take the
//! same time however many there are, and allocate nothing. A timer never goes off too early, and
//! at most a tick too late, if the wheel is asked in time.

use crate::Nanos;
use crate::seq::low32;
use alloc::vec::Vec;

/// A tick is 2^16 ns, 66 µs: what a retransmission may be late. RACK's window on a fast link is
/// shorter; who polls asks the connection itself.
const TICK_BITS: u32 = 16;
/// A level has 64 slots, each as long as a whole turn of the level below.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// With so many levels every time of 64 bits has its slot.
const LEVELS: usize = 8;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The neighbours in the slot's list, which is circular.
    next: u32,
    before: u32,
    /// When it is due, and in which slot it is: `NONE` where it is not set.
    tick: u64,
    slot: u32,
}

/// Timers, one for each number below the capacity.
#[derive(Debug)]
pub struct Wheel {
    nodes: Vec<Node>,
    /// The first node of each slot, level by level.
    slots: Vec<u32>,
    /// Which slots of each level are not empty.
    used: [u64; LEVELS],
    /// Everything before is done.
    now: u64,
}

impl Wheel {
    /// For so many timers; nothing where there is no memory.
    #[must_use]
    pub fn new(capacity: usize, now: Nanos) -> Option<Self> {
        let capacity = capacity.min(NONE as usize - 1);
        let (mut nodes, mut slots) = (Vec::new(), Vec::new());
        nodes.try_reserve_exact(capacity).ok()?;
        nodes.resize(capacity, Node { next: NONE, before: NONE, tick: 0, slot: NONE });
        slots.try_reserve_exact(LEVELS * SLOTS).ok()?;
        slots.resize(LEVELS * SLOTS, NONE);
        Some(Self { nodes, slots, used: [0; LEVELS], now: now >> TICK_BITS })
    }

    /// Sets the timer of that number, or changes it; `None` cancels it. A number beyond the
    /// capacity has none.
    pub fn set(&mut self, index: u32, at: Option<Nanos>) {
        self.unlink(index);
        if let Some(at) = at {
            self.link(index, tick_of(at).max(self.now));
        }
    }

    /// The timer of that number goes off by this time, or before it, and then for nothing: one that
    /// is set stays if it is early enough, also where none is needed any more. Timers that are put
    /// off all the time cost next to nothing so.
    pub fn set_at_most(&mut self, index: u32, at: Option<Nanos>) {
        let Some(at) = at else { return };
        let early = |node: &Node| node.slot != NONE && node.tick <= tick_of(at);
        if !self.nodes.get(index as usize).is_some_and(early) {
            self.set(index, Some(at));
        }
    }

    /// When [`expire`](Self::expire) may have something: not too late, and often earlier, when
    /// timers have to be put in order.
    #[must_use]
    pub fn next(&self) -> Option<Nanos> {
        self.next_slot().map(|(tick, _, _)| tick << TICK_BITS)
    }

    /// The number of a timer that is due; it is not set any more. Called until there is none.
    pub fn expire(&mut self, now: Nanos) -> Option<u32> {
        let until = now >> TICK_BITS;
        // A timer comes down a level each time, so this ends.
        while let Some((tick, level, slot)) = self.next_slot().filter(|next| next.0 <= until) {
            self.now = self.now.max(tick);
            let first = *self.slots.get(level * SLOTS + slot)?;
            if level == 0 {
                self.unlink(first);
                return Some(first);
            }
            while let Some(&index) = self.slots.get(level * SLOTS + slot).filter(|&&i| i != NONE) {
                let tick = self.nodes.get(index as usize)?.tick;
                self.unlink(index);
                self.link(index, tick);
            }
        }
        self.now = self.now.max(until);
        None
    }

    /// The first slot that is not empty: when it begins, its level, its place there.
    fn next_slot(&self) -> Option<(u64, usize, usize)> {
        // Lower levels come before all of higher ones.
        let (level, used) = self.used.iter().enumerate().find(|(_, used)| **used != 0)?;
        let shift = SLOT_BITS * low32(level as u64);
        let slot = used.trailing_zeros();
        // Above the slots of its level a timer's tick is the wheel's.
        let above = (self.now >> shift >> SLOT_BITS) << SLOT_BITS;
        let tick = (above | u64::from(slot)) << shift;
        Some((tick.max(self.now), level, slot as usize))
    }

    /// The highest group of bits in which a tick differs from now says its level, and the group
    /// itself its slot there.
    fn link(&mut self, index: u32, tick: u64) {
        let differing = u64::BITS - ((tick ^ self.now) | 1).leading_zeros() - 1;
        let level = differing / SLOT_BITS;
        let place = low32(tick >> (level * SLOT_BITS)) % (1 << SLOT_BITS);
        let slot = (level << SLOT_BITS) + place;
        let Some(head) = self.slots.get(slot as usize).copied() else { return };
        // Behind all others of the slot: in the order in which they were set.
        let (next, before) = match self.nodes.get(head as usize) {
            Some(first) => (head, first.before),
            None => (index, index),
        };
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        *node = Node { next, before, tick, slot };
        if head == NONE {
            if let Some(head) = self.slots.get_mut(slot as usize) {
                *head = index;
            }
            if let Some(used) = self.used.get_mut(level as usize) {
                *used |= 1 << place;
            }
        } else {
            self.join(before, index);
            self.join(index, next);
        }
    }

    fn join(&mut self, before: u32, next: u32) {
        if let Some(node) = self.nodes.get_mut(before as usize) {
            node.next = next;
        }
        if let Some(node) = self.nodes.get_mut(next as usize) {
            node.before = before;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        let Node { next, before, slot, .. } = *node;
        if slot == NONE {
            return;
        }
        node.slot = NONE;
        self.join(before, next);
        let Some(head) = self.slots.get_mut(slot as usize) else { return };
        if *head == index {
            *head = if next == index { NONE } else { next };
            if *head == NONE
                && let Some(used) = self.used.get_mut(slot as usize / SLOTS)
            {
                *used &= !(1 << (slot % (1 << SLOT_BITS)));
            }
        }
    }
}

/// Never too early: up to the next tick.
fn tick_of(at: Nanos) -> u64 {
    at.div_ceil(1 << TICK_BITS).min(u64::MAX >> TICK_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::random::Random;
    use std::collections::BTreeMap;

    const TICK: Nanos = 1 << TICK_BITS;

    #[test]
    fn it_agrees_with_a_sorted_map() {
        for seed in 1..60 {
            let mut random = Random::new(seed);
            let mut now = random.scaled(60);
            let mut wheel = Wheel::new(50, now).unwrap();
            let mut map: BTreeMap<u32, Nanos> = BTreeMap::new();
            for _ in 0..500 {
                let index = random.below(50) as u32;
                match random.below(4) {
                    0 => {
                        wheel.set(index, None);
                        map.remove(&index);
                    }
                    1 | 2 => {
                        // From now, and before, to years.
                        let at = now.saturating_sub(5) + random.scaled(58);
                        wheel.set(index, Some(at));
                        map.insert(index, at);
                    }
                    _ => {
                        now = match wheel.next() {
                            Some(next) if random.below(2) == 0 => now.max(next),
                            _ => now + random.scaled(50),
                        };
                        while let Some(index) = wheel.expire(now) {
                            let at = map.remove(&index).expect("it was set");
                            assert!(at <= now, "too early");
                        }
                        for &at in map.values() {
                            assert!(at + TICK > now, "too late");
                            assert!(wheel.next().unwrap() <= at.next_multiple_of(TICK));
                        }
                    }
                }
                assert_eq!(wheel.next().is_some(), !map.is_empty());
            }
        }
    }

    #[test]
    fn a_number_beyond_the_capacity_has_no_timer() {
        let mut wheel = Wheel::new(1, 0).unwrap();
        wheel.set(1, Some(1));
        wheel.set(NONE, Some(1));
        assert_eq!((wheel.next(), wheel.expire(u64::MAX)), (None, None));
    }

    #[test]
    fn a_timer_that_is_put_off_stays_where_it_is_and_an_earlier_time_moves_it() {
        let mut wheel = Wheel::new(2, 0).unwrap();
        wheel.set_at_most(0, Some(70 * TICK));
        for at in [Some(80 * TICK), Some(70 * TICK), None] {
            wheel.set_at_most(0, at);
            assert_eq!(wheel.nodes[0].tick, 70);
        }
        wheel.set_at_most(0, Some(50 * TICK));
        assert_eq!((wheel.expire(50 * TICK), wheel.expire(u64::MAX)), (Some(0), None));
        wheel.set_at_most(0, None);
        assert_eq!(wheel.next(), None, "nothing comes of nothing");
    }

    #[test]
    fn timers_of_one_time_go_off_in_order() {
        let mut wheel = Wheel::new(10, 0).unwrap();
        for index in [3, 1, 4, 5, 9] {
            wheel.set(index, Some(70 * TICK));
        }
        wheel.set(4, None);
        for index in [3, 1, 5, 9] {
            assert_eq!(wheel.expire(70 * TICK), Some(index));
        }
        assert_eq!(wheel.expire(u64::MAX), None);
    }
}
