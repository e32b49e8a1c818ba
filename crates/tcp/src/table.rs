//! Which connection a packet is for: a hash table of flows.
//!
//! Looking one up takes the same time however many there are. The hash is keyed (SipHash, Aumasson
//! and Bernstein, 2012): who chooses ports and addresses cannot make flows meet. The table has its
//! size from the beginning.

use crate::wire::Flow;
use alloc::vec::Vec;
use core::net::IpAddr;

/// A table of flows, each with a number.
#[derive(Debug)]
pub struct Table {
    /// A power of two; at most half of them are used.
    places: Vec<Option<(Flow, u32)>>,
    capacity: usize,
    len: usize,
    key: [u64; 2],
}

/// Why a flow was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdded {
    /// It is there.
    Known,
    /// The table has as many as it may.
    Full,
}

impl Table {
    /// For so many flows; nothing where there is no memory. The key is random and stays secret.
    #[must_use]
    pub fn new(capacity: usize, key: [u64; 2]) -> Option<Self> {
        let size = capacity.max(1).checked_mul(2)?.checked_next_power_of_two()?;
        let mut places = Vec::new();
        places.try_reserve_exact(size).ok()?;
        places.resize(size, None);
        Some(Self { places, capacity, len: 0, key })
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of a flow, as the packets come: the peer is its source.
    #[must_use]
    pub fn find(&self, flow: &Flow) -> Option<u32> {
        let at = self.place_of(flow);
        self.get(at).map(|(_, number)| *number)
    }

    /// Adds one.
    ///
    /// # Errors
    ///
    /// [`NotAdded`].
    pub fn add(&mut self, flow: Flow, number: u32) -> Result<(), NotAdded> {
        let at = self.place_of(&flow);
        if self.get(at).is_some() {
            return Err(NotAdded::Known);
        }
        if self.len >= self.capacity {
            return Err(NotAdded::Full);
        }
        self.put(at, Some((flow, number)));
        self.len += 1;
        Ok(())
    }

    /// Takes one out, and says its number.
    pub fn remove(&mut self, flow: &Flow) -> Option<u32> {
        let mut hole = self.place_of(flow);
        let (_, number) = *self.get(hole)?;
        self.len -= 1;
        // What stands behind and would not be found any more moves into the hole.
        let mut at = hole;
        loop {
            at = self.behind(at);
            let Some(other) = self.get(at).copied() else { break };
            let home = self.home_of(&other.0);
            if self.distance(home, at) >= self.distance(hole, at) {
                self.put(hole, Some(other));
                hole = at;
            }
        }
        self.put(hole, None);
        Some(number)
    }

    fn get(&self, at: usize) -> Option<&(Flow, u32)> {
        self.places.get(at)?.as_ref()
    }

    fn put(&mut self, at: usize, entry: Option<(Flow, u32)>) {
        if let Some(place) = self.places.get_mut(at) {
            *place = entry;
        }
    }

    const fn behind(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    const fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.places.len() - 1)
    }

    /// Where the flow is, or would be: half of the places are free, so there is an end.
    fn place_of(&self, flow: &Flow) -> usize {
        let mut at = self.home_of(flow);
        while self.get(at).is_some_and(|(other, _)| other != flow) {
            at = self.behind(at);
        }
        at
    }

    fn home_of(&self, flow: &Flow) -> usize {
        let mut hash = SipHash::new(self.key);
        for end in [flow.source, flow.destination] {
            let (high, low) = match end.address {
                IpAddr::V4(address) => (u64::from(end.port) << 32, u64::from(address.to_bits())),
                IpAddr::V6(address) => {
                    hash.word(1 << 63 | u64::from(end.port));
                    let [a, b, c, d, e, f, g, h] = address.segments().map(u64::from);
                    (a << 48 | b << 32 | c << 16 | d, e << 48 | f << 32 | g << 16 | h)
                }
            };
            hash.word(high);
            hash.word(low);
        }
        let mask = self.places.len() as u64 - 1;
        usize::try_from(hash.finish() & mask).unwrap_or(0)
    }
}

/// SipHash-1-3 of whole words; their number is the caller's to make unambiguous.
struct SipHash {
    v: [u64; 4],
    words: u64,
}

impl SipHash {
    const fn new([k0, k1]: [u64; 2]) -> Self {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { v, words: 0 }
    }

    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.v;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.v = [a, b, c, d];
    }

    const fn word(&mut self, word: u64) {
        self.words = self.words.wrapping_add(1);
        self.mix(word);
    }

    const fn mix(&mut self, word: u64) {
        let [a, b, c, d] = self.v;
        self.v = [a, b, c, d ^ word];
        self.round();
        let [a, b, c, d] = self.v;
        self.v = [a ^ word, b, c, d];
    }

    const fn finish(mut self) -> u64 {
        // The length in bytes is in the last word.
        self.mix(self.words << 59);
        let [a, b, c, d] = self.v;
        self.v = [a, b, c ^ 0xff, d];
        self.round();
        self.round();
        self.round();
        let [a, b, c, d] = self.v;
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::random::Random;
    use crate::wire::Endpoint;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::collections::{HashMap, HashSet};

    fn flow(random: &mut Random) -> Flow {
        let mut end = |v6: bool| {
            let (address, port) = (random.below(4), random.below(8) as u16);
            let address = if v6 {
                IpAddr::V6(Ipv6Addr::from(u128::from(address)))
            } else {
                IpAddr::V4(Ipv4Addr::from(address as u32))
            };
            Endpoint { address, port }
        };
        let v6 = end(false).port % 2 == 0;
        Flow { source: end(v6), destination: end(v6) }
    }

    #[test]
    fn it_agrees_with_a_map() {
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let mut table = Table::new(100, [seed, 7]).unwrap();
            let mut map = HashMap::new();
            let key = |flow: &Flow| format!("{flow:?}");
            for number in 0..3000 {
                let flow = flow(&mut random);
                match random.below(3) {
                    0 => assert_eq!(table.remove(&flow), map.remove(&key(&flow))),
                    1 => assert_eq!(table.find(&flow), map.get(&key(&flow)).copied()),
                    _ => match table.add(flow, number) {
                        Ok(()) => assert_eq!(map.insert(key(&flow), number), None),
                        Err(NotAdded::Known) => assert!(map.contains_key(&key(&flow))),
                        Err(NotAdded::Full) => assert_eq!(map.len(), 100),
                    },
                }
                assert_eq!(table.len(), map.len());
            }
        }
    }

    /// The reference's vectors are of 2-4; std's hasher is 1-3, with keys of 0.
    #[test]
    fn the_hash_is_siphash() {
        use core::hash::Hasher;
        for count in 0..5 {
            let (mut ours, mut theirs) =
                (SipHash::new([0, 0]), std::collections::hash_map::DefaultHasher::new());
            for word in 0..count {
                ours.word(word * 0x0123_4567_89ab_cdef);
                theirs.write(&(word * 0x0123_4567_89ab_cdef).to_le_bytes());
            }
            assert_eq!(ours.finish(), theirs.finish());
        }
    }

    /// Each bit of both ends has a part in a flow's home, whatever flows differ in.
    #[test]
    fn every_bit_of_a_flow_counts() {
        let table = Table::new(1 << 15, [11, 13]).unwrap();
        for (v6, bits) in [(false, 32), (true, 128)] {
            let end = |address: u128, port| {
                let v4 = IpAddr::V4(Ipv4Addr::from(address as u32));
                let address = if v6 { IpAddr::V6(Ipv6Addr::from(address)) } else { v4 };
                Endpoint { address, port }
            };
            let none = end(0, 0);
            let ends = (0..bits).map(|bit| end(1 << bit, 0));
            let ends: Vec<_> = ends.chain((0..16).map(|bit| end(0, 1 << bit))).collect();
            let there = ends.iter().map(|&source| Flow { source, destination: none });
            let back = ends.iter().map(|&destination| Flow { source: none, destination });
            let homes: HashSet<_> = there.chain(back).map(|flow| table.home_of(&flow)).collect();
            // Of some hundred in 65536 places hardly two meet by chance.
            assert!(homes.len() >= 2 * ends.len() - 3, "{} of {}", homes.len(), 2 * ends.len());
            assert!(homes.iter().all(|&home| home < table.places.len()));
        }
    }

    #[test]
    fn flows_of_both_families_differ() {
        let end = |address| Endpoint { address, port: 1 };
        let v4 = end(IpAddr::V4(Ipv4Addr::from(5)));
        let v6 = end(IpAddr::V6(Ipv6Addr::from(5_u128)));
        let mut table = Table::new(4, [1, 2]).unwrap();
        table.add(Flow { source: v4, destination: v4 }, 4).unwrap();
        table.add(Flow { source: v6, destination: v6 }, 6).unwrap();
        assert_eq!(table.find(&Flow { source: v6, destination: v6 }), Some(6));
        assert_eq!(table.find(&Flow { source: v4, destination: v4 }), Some(4));
        assert_eq!(table.find(&Flow { source: v4, destination: v6 }), None);
    }
}
