//! What waits for its counterpart: bounded, found by the connection's addresses, evicted oldest
//! first.

use alloc::vec::Vec;
use netacc_proto::rendezvous::{Family, Tuple};

const NONE: u32 = u32::MAX;

/// Entries by [`Tuple`] (several may have the same) and by a secondary number of the caller's.
///
/// All memory is taken when it is made: nothing else allocates.
pub(crate) struct Table<T> {
    entries: Vec<Entry<T>>,
    /// Heads of the hash chains: by tuple, by secondary number.
    by_tuple: Vec<u32>,
    by_number: Vec<u32>,
    seed: u64,
    free: u32,
    oldest: u32,
    newest: u32,
    len: u32,
    serial: u32,
}

struct Entry<T> {
    used: Option<(Tuple, u64, T)>,
    serial: u32,
    /// Chain of the free list while not used.
    next_tuple: u32,
    next_number: u32,
    older: u32,
    newer: u32,
}

/// Names an entry for its life; never names another one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    fn index(self) -> u32 {
        self.0 as u32
    }
    fn serial(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

fn mix(seed: u64, words: &[u64]) -> u64 {
    words.iter().fold(seed, |h, w| {
        let m = u128::from(h ^ w) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        (m as u64) ^ ((m >> 64) as u64).rotate_left(23) ^ seed
    })
}

fn words(t: &Tuple) -> [u64; 5] {
    let half = |a: [u8; 16], high: bool| {
        let n = u128::from_ne_bytes(a);
        if high { (n >> 64) as u64 } else { n as u64 }
    };
    let family = u64::from(t.family() == Family::V6);
    [
        u64::from(t.local_port()) | u64::from(t.peer_port()) << 16 | family << 32,
        half(t.local_addr(), false),
        half(t.local_addr(), true),
        half(t.peer_addr(), false),
        half(t.peer_addr(), true),
    ]
}

impl<T> Table<T> {
    /// A table for `capacity` entries; `None` when there is no memory.
    pub(crate) fn new(capacity: u32, seed: u64) -> Option<Self> {
        let buckets = capacity.next_power_of_two() as usize;
        let mut t = Self {
            entries: Vec::new(),
            by_tuple: Vec::new(),
            by_number: Vec::new(),
            seed: seed | 1,
            free: NONE,
            oldest: NONE,
            newest: NONE,
            len: 0,
            serial: 0,
        };
        t.entries.try_reserve_exact(capacity as usize).ok()?;
        t.by_tuple.try_reserve_exact(buckets).ok()?;
        t.by_number.try_reserve_exact(buckets).ok()?;
        t.by_tuple.resize(buckets, NONE);
        t.by_number.resize(buckets, NONE);
        Some(t)
    }

    fn tuple_bucket(&mut self, tuple: &Tuple) -> Option<&mut u32> {
        let mask = self.by_tuple.len().wrapping_sub(1);
        let at = mix(self.seed, &words(tuple)) as usize & mask;
        self.by_tuple.get_mut(at)
    }

    fn number_bucket(&mut self, number: u64) -> Option<&mut u32> {
        let mask = self.by_number.len().wrapping_sub(1);
        let at = mix(self.seed, &[number]) as usize & mask;
        self.by_number.get_mut(at)
    }

    fn entry(&self, i: u32) -> Option<&Entry<T>> {
        self.entries.get(i as usize)
    }

    fn entry_mut(&mut self, i: u32) -> Option<&mut Entry<T>> {
        self.entries.get_mut(i as usize)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == NONE && self.entries.len() == self.entries.capacity()
    }

    /// Adds an entry; `None` when the table is full.
    pub(crate) fn insert(&mut self, tuple: Tuple, number: u64, value: T) -> Option<Key> {
        if self.is_full() {
            return None;
        }
        let i = if self.free == NONE {
            // Within the capacity reserved at the start.
            self.entries.push(Entry {
                used: None,
                serial: 0,
                next_tuple: NONE,
                next_number: NONE,
                older: NONE,
                newer: NONE,
            });
            self.entries.len() as u32 - 1
        } else {
            let i = self.free;
            self.free = self.entry(i)?.next_tuple;
            i
        };
        self.serial = self.serial.wrapping_add(1);
        let (serial, newest) = (self.serial, self.newest);
        let next_tuple = core::mem::replace(self.tuple_bucket(&tuple)?, i);
        let next_number = core::mem::replace(self.number_bucket(number)?, i);
        let e = self.entry_mut(i)?;
        *e = Entry {
            used: Some((tuple, number, value)),
            serial,
            next_tuple,
            next_number,
            older: newest,
            newer: NONE,
        };
        match self.entry_mut(newest) {
            Some(n) => n.newer = i,
            None => self.oldest = i,
        }
        self.newest = i;
        self.len += 1;
        Some(Key(u64::from(serial) << 32 | u64::from(i)))
    }

    fn key_of(&self, i: u32) -> Option<Key> {
        let e = self.entry(i)?;
        e.used.as_ref()?;
        Some(Key(u64::from(e.serial) << 32 | u64::from(i)))
    }

    fn live(&self, key: Key) -> Option<&Entry<T>> {
        self.entry(key.index()).filter(|e| e.serial == key.serial() && e.used.is_some())
    }

    pub(crate) fn get(&self, key: Key) -> Option<(&Tuple, &T)> {
        self.live(key)?.used.as_ref().map(|(t, _, v)| (t, v))
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.live(key)?;
        self.entry_mut(key.index())?.used.as_mut().map(|(_, _, v)| v)
    }

    /// The newest entry with these addresses that `wanted` accepts.
    pub(crate) fn find(&self, tuple: &Tuple, mut wanted: impl FnMut(&T) -> bool) -> Option<Key> {
        let mask = self.by_tuple.len().wrapping_sub(1);
        let mut i = *self.by_tuple.get(mix(self.seed, &words(tuple)) as usize & mask)?;
        while let Some(e) = self.entry(i) {
            if e.used.as_ref().is_some_and(|(t, _, v)| t == tuple && wanted(v)) {
                return self.key_of(i);
            }
            i = e.next_tuple;
        }
        None
    }

    /// The newest entry with this number that `wanted` accepts.
    pub(crate) fn find_number(
        &self,
        number: u64,
        mut wanted: impl FnMut(&T) -> bool,
    ) -> Option<Key> {
        let mask = self.by_number.len().wrapping_sub(1);
        let mut i = *self.by_number.get(mix(self.seed, &[number]) as usize & mask)?;
        while let Some(e) = self.entry(i) {
            if e.used.as_ref().is_some_and(|(_, n, v)| *n == number && wanted(v)) {
                return self.key_of(i);
            }
            i = e.next_number;
        }
        None
    }

    pub(crate) fn oldest(&self) -> Option<Key> {
        self.key_of(self.oldest)
    }

    /// The next younger entry.
    pub(crate) fn after(&self, key: Key) -> Option<Key> {
        self.key_of(self.live(key)?.newer)
    }

    /// All entries, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Tuple, &T)> {
        let keys = core::iter::successors(self.oldest(), |key| self.after(*key));
        keys.filter_map(|key| self.get(key).map(|(tuple, value)| (key, tuple, value)))
    }

    /// The same, to be changed.
    pub(crate) fn each_mut(&mut self, mut f: impl FnMut(&mut T)) {
        let mut at = self.oldest();
        while let Some(key) = at {
            at = self.after(key);
            self.get_mut(key).map(&mut f);
        }
    }

    pub(crate) fn newest(&self) -> Option<Key> {
        self.key_of(self.newest)
    }

    /// The next older entry.
    pub(crate) fn before(&self, key: Key) -> Option<Key> {
        self.key_of(self.live(key)?.older)
    }

    /// Takes an entry out of the order of ages.
    fn unlink(&mut self, older: u32, newer: u32) {
        match self.entry_mut(older) {
            Some(e) => e.newer = newer,
            None => self.oldest = newer,
        }
        match self.entry_mut(newer) {
            Some(e) => e.older = older,
            None => self.newest = older,
        }
    }

    pub(crate) fn make_oldest(&mut self, key: Key) {
        let Some((older, newer)) = self.live(key).map(|e| (e.older, e.newer)) else { return };
        self.unlink(older, newer);
        let (i, next) = (key.index(), self.oldest);
        if let Some(e) = self.entry_mut(i) {
            (e.older, e.newer) = (NONE, next);
        }
        match self.entry_mut(next) {
            Some(e) => e.older = i,
            None => self.newest = i,
        }
        self.oldest = i;
    }

    pub(crate) fn make_newest(&mut self, key: Key) {
        let Some((older, newer)) = self.live(key).map(|e| (e.older, e.newer)) else { return };
        self.unlink(older, newer);
        let (i, next) = (key.index(), self.newest);
        if let Some(e) = self.entry_mut(i) {
            (e.older, e.newer) = (next, NONE);
        }
        match self.entry_mut(next) {
            Some(e) => e.newer = i,
            None => self.oldest = i,
        }
        self.newest = i;
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<(Tuple, T)> {
        self.live(key)?;
        let i = key.index();
        let (tuple, number, value) = self.entry_mut(i)?.used.take()?;
        let (next_tuple, next_number, older, newer) = {
            let e = self.entry(i)?;
            (e.next_tuple, e.next_number, e.older, e.newer)
        };
        let head = self.tuple_bucket(&tuple)?;
        if *head == i {
            *head = next_tuple;
        } else {
            let mut at = *head;
            while let Some(e) = self.entry_mut(at) {
                if e.next_tuple == i {
                    e.next_tuple = next_tuple;
                    break;
                }
                at = e.next_tuple;
            }
        }
        let head = self.number_bucket(number)?;
        if *head == i {
            *head = next_number;
        } else {
            let mut at = *head;
            while let Some(e) = self.entry_mut(at) {
                if e.next_number == i {
                    e.next_number = next_number;
                    break;
                }
                at = e.next_number;
            }
        }
        self.unlink(older, newer);
        let free = self.free;
        self.entry_mut(i)?.next_tuple = free;
        self.free = i;
        self.len -= 1;
        Some((tuple, value))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn tuple(n: u16) -> Tuple {
        Tuple::new(([127, 0, 0, 1], n).into(), ([127, 0, 0, 2], 80).into()).unwrap()
    }

    #[test]
    fn finds_what_was_put_in_newest_first() {
        let mut t = Table::new(8, 5).unwrap();
        let a = t.insert(tuple(1), 70, 'a').unwrap();
        let b = t.insert(tuple(1), 71, 'b').unwrap();
        let c = t.insert(tuple(2), 71, 'c').unwrap();
        assert_eq!(t.find(&tuple(1), |_| true), Some(b));
        assert_eq!(t.find(&tuple(1), |v| *v == 'a'), Some(a));
        assert_eq!(t.find(&tuple(3), |_| true), None);
        assert_eq!(t.find_number(71, |_| true), Some(c));
        assert_eq!(t.remove(b), Some((tuple(1), 'b')));
        assert_eq!(t.remove(b), None);
        assert_eq!(t.find(&tuple(1), |_| true), Some(a));
        assert_eq!(t.find_number(71, |_| true), Some(c));
        assert_eq!(t.oldest(), Some(a));
        assert_eq!(t.after(a), Some(c));
        assert_eq!(t.after(c), None);
    }

    #[test]
    fn a_key_never_names_a_later_entry() {
        let mut t = Table::new(1, 5).unwrap();
        let a = t.insert(tuple(1), 0, 1).unwrap();
        assert!(t.is_full());
        assert_eq!(t.insert(tuple(2), 0, 2), None);
        t.remove(a);
        let b = t.insert(tuple(2), 0, 2).unwrap();
        assert_ne!(a, b);
        assert_eq!(t.get(a), None);
        assert_eq!(t.get_mut(Key(u64::MAX)), None);
        assert_eq!(t.get(b), Some((&tuple(2), &2)));
    }

    #[test]
    fn agrees_with_a_plain_list() {
        let mut t = Table::new(64, 99).unwrap();
        let mut list: Vec<(Key, u16, u64)> = Vec::new();
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let r = (x >> 33) as u16;
            if r.is_multiple_of(5) && !list.is_empty() {
                let at = usize::from(r / 5) % list.len();
                let moved = list.remove(at);
                if r.is_multiple_of(2) {
                    t.make_oldest(moved.0);
                    list.insert(0, moved);
                } else {
                    t.make_newest(moved.0);
                    list.push(moved);
                }
            } else if !r.is_multiple_of(3) {
                let (port, number) = (r / 3 % 16, u64::from(r / 48 % 16));
                match t.insert(tuple(port), number, number) {
                    Some(k) => list.push((k, port, number)),
                    None => assert_eq!(list.len(), 64),
                }
            } else if !list.is_empty() {
                let (k, port, number) = list.remove(usize::from(r / 3) % list.len());
                assert_eq!(t.remove(k), Some((tuple(port), number)));
            }
            assert_eq!(t.len() as usize, list.len());
            assert_eq!(t.oldest(), list.first().map(|e| e.0));
            let port = r % 16;
            // (Which of several is found depends on when they came, not on their order.)
            let found = t.find(&tuple(port), |_| true);
            assert_eq!(found.is_some(), list.iter().any(|e| e.1 == port));
            assert!(found.is_none_or(|key| list.iter().any(|e| e.0 == key && e.1 == port)));
            let found = t.find_number(u64::from(port), |_| true);
            assert_eq!(found.is_some(), list.iter().any(|e| e.2 == u64::from(port)));
            assert!(
                found.is_none_or(|key| list.iter().any(|e| e.0 == key && e.2 == u64::from(port)))
            );
        }
        let mut walked = Vec::new();
        let mut at = t.oldest();
        while let Some(k) = at {
            walked.push(k);
            at = t.after(k);
        }
        assert_eq!(walked, list.iter().map(|e| e.0).collect::<Vec<_>>());
        walked.clear();
        let mut at = t.newest();
        while let Some(k) = at {
            walked.push(k);
            at = t.before(k);
        }
        assert_eq!(walked, list.iter().rev().map(|e| e.0).collect::<Vec<_>>());
    }
}
