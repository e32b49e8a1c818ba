//! How long a connection's answers took: two histograms, in the place of a ring.
//!
//! A *turn* is what moves in one direction until something moves in the other. `answer` is from the
//! begin of the first send of a turn to the end of the first receive behind it: what a client sees.
//! `serve` is from there to the begin of the next send: what a server takes. Several threads on one
//! connection can lose a count; a word is never torn.

use super::{EVENTS, RING_BYTES};
use alloc::vec::Vec;
use core::mem::size_of;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Which times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// From a send to the first bytes behind it.
    Answer = 0,
    /// From these to the next send.
    Serve = 1,
}

impl Latency {
    /// Both.
    pub const ALL: [Latency; 2] = [Latency::Answer, Latency::Serve];
    /// `answer` or `serve`.
    pub const fn name(self) -> &'static str {
        match self {
            Latency::Answer => "answer",
            Latency::Serve => "serve",
        }
    }
}

/// The first bucket is of times below so many nanoseconds, and a power of two.
const UNIT_BITS: u32 = 5;
/// Each power of two has 1 << so many buckets.
const SUB_BITS: u32 = 2;
/// So many: up to 137 seconds; what took longer is in the last one.
pub const BUCKETS: usize = EVENTS;
/// Says that a ring is no ring: "NETACCLT", little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"NETACCLT");

/// In the place of a [`super::Ring`], whose first words it has.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Latencies {
    /// Zero: it has no events.
    pub head: AtomicU64,
    /// [`super::State::Claimed`], which readers of rings pass over.
    pub state: AtomicU32,
    /// Zero.
    pub reserved_half: AtomicU32,
    /// The connection's number; 0: the process's own, of all connections that there ever were.
    pub number: AtomicU64,
    /// Says what this is; stored last.
    pub magic: AtomicU64,
    /// Zero.
    pub reserved_long: AtomicU64,
    /// The longest, by [`Latency`].
    pub max_ns: [AtomicU64; 2],
    /// All together.
    pub sum_ns: [AtomicU64; 2],
    /// Zero.
    pub reserved: [AtomicU64; 23],
    /// How many there were.
    pub counts: [[AtomicU64; BUCKETS]; 2],
}

const _: () = {
    assert!(size_of::<Latencies>() == RING_BYTES);
    assert!(core::mem::offset_of!(Latencies, state) == core::mem::offset_of!(super::Ring, state));
    assert!(core::mem::offset_of!(Latencies, number) == core::mem::offset_of!(super::Ring, number));
};

/// The bucket of a time.
const fn bucket(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    let Some(power) = units.checked_ilog2() else { return 0 };
    let index = match power.checked_sub(SUB_BITS) {
        None => units,
        Some(shift) => {
            let sub = (units >> shift) & ((1 << SUB_BITS) - 1);
            ((shift as u64 + 1) << SUB_BITS) | sub
        }
    };
    if index < BUCKETS as u64 { index as usize } else { BUCKETS - 1 }
}

/// The times of a bucket are below so many nanoseconds.
pub const fn bucket_end(index: usize) -> u64 {
    let next = index as u64 + 1;
    let units = match (next >> SUB_BITS).checked_sub(1) {
        None | Some(0) => next,
        Some(shift) => {
            let sub = (next & ((1 << SUB_BITS) - 1)) | (1 << SUB_BITS);
            if shift < 64 - UNIT_BITS as u64 - SUB_BITS as u64 - 1 {
                sub << shift
            } else {
                u64::MAX
            }
        }
    };
    units.saturating_mul(1 << UNIT_BITS)
}

impl Latencies {
    /// Begins anew, for the connection of that number.
    pub fn open(&self, number: u64) {
        self.magic.store(0, Relaxed);
        let words = self.max_ns.iter().chain(&self.sum_ns);
        words.chain(self.counts.iter().flatten()).for_each(|word| word.store(0, Relaxed));
        self.number.store(number, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Counts a time. Any thread.
    pub fn count(&self, which: Latency, ns: u64) {
        let at = which as usize;
        let (Some(counts), Some(max), Some(sum)) =
            (self.counts.get(at), self.max_ns.get(at), self.sum_ns.get(at))
        else {
            return;
        };
        if max.load(Relaxed) < ns {
            max.fetch_max(ns, Relaxed);
        }
        sum.fetch_add(ns, Relaxed);
        if let Some(count) = counts.get(bucket(ns)) {
            count.fetch_add(1, Relaxed);
        }
    }
}

/// One histogram, as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// The longest.
    pub max_ns: u64,
    /// All together.
    pub sum_ns: u64,
    /// By [`bucket_end`].
    pub counts: Vec<u64>,
}

impl Times {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |all, count| all.saturating_add(*count))
    }

    /// How many took less than `ns`, which is the end of a bucket.
    pub fn below(&self, ns: u64) -> u64 {
        let counts = self.counts.iter().enumerate();
        let below = counts.take_while(|(index, _)| bucket_end(*index) <= ns);
        below.fold(0, |all, (_, count)| all.saturating_add(*count))
    }

    /// What so many of a thousand do not exceed: the end of a bucket, which is at most a quarter
    /// more than the least that is in it. `None`: there were none.
    pub fn quantile(&self, of_thousand: u64) -> Option<u64> {
        let all = self.count();
        let rank = (u128::from(all) * u128::from(of_thousand)).div_ceil(1000).max(1) as u64;
        let mut seen = 0u64;
        for (index, count) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if all != 0 && seen >= rank {
                let is_last = index.saturating_add(1) == self.counts.len();
                return Some(if is_last {
                    self.max_ns
                } else {
                    bucket_end(index).min(self.max_ns)
                });
            }
        }
        None
    }
}

/// What a place of latencies says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatenciesText {
    /// As [`Latencies::number`].
    pub number: u64,
    /// By [`Latency`].
    pub times: [Times; 2],
}

impl LatenciesText {
    /// Reads a ring's place. `None`: it is none of latencies, or of a version that has others.
    pub fn read(bytes: &[u8]) -> Option<LatenciesText> {
        use core::mem::offset_of;
        let long = |at: usize| -> Option<u64> {
            let word = bytes.get(at..at.checked_add(8)?)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        if bytes.len() != RING_BYTES || long(offset_of!(Latencies, magic))? != MAGIC {
            return None;
        }
        let times = |at: usize| -> Option<Times> {
            let counts = offset_of!(Latencies, counts) + at * BUCKETS * 8;
            Some(Times {
                max_ns: long(offset_of!(Latencies, max_ns) + at * 8)?,
                sum_ns: long(offset_of!(Latencies, sum_ns) + at * 8)?,
                counts: (0..BUCKETS).map(|i| long(counts + i * 8)).collect::<Option<_>>()?,
            })
        };
        let number = long(offset_of!(Latencies, number))?;
        Some(LatenciesText { number, times: [times(0)?, times(1)?] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Latencies> {
        let long = || AtomicU64::new(0);
        Box::new(Latencies {
            head: long(),
            state: AtomicU32::new(0),
            reserved_half: AtomicU32::new(0),
            number: long(),
            magic: long(),
            reserved_long: long(),
            max_ns: [long(), long()],
            sum_ns: [long(), long()],
            reserved: [const { AtomicU64::new(0) }; 23],
            counts: [const { [const { AtomicU64::new(0) }; BUCKETS] }; 2],
        })
    }

    fn bytes(l: &Latencies) -> Vec<u8> {
        let mut words = vec![l.head.load(Relaxed), l.state.load(Relaxed).into()];
        let rest =
            [&l.number, &l.magic, &l.reserved_long].into_iter().chain(&l.max_ns).chain(&l.sum_ns);
        let rest = rest.chain(&l.reserved).chain(l.counts.iter().flatten());
        words.extend(rest.map(|word| word.load(Relaxed)));
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        assert_eq!((bucket(0), bucket(31), bucket(32), bucket(127)), (0, 0, 1, 3));
        for index in 0..BUCKETS - 1 {
            let end = bucket_end(index);
            assert_eq!(bucket(end - 1), index, "{index} ends at {end}");
            assert_eq!(bucket(end), index + 1, "{index} ends at {end}");
            let begin = if index == 0 { 0 } else { bucket_end(index - 1) };
            assert!(end - begin <= (begin / 4).max(32), "{begin}..{end}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(bucket_end(BUCKETS - 1) > 100_000_000_000);
    }

    #[test]
    fn what_is_counted_is_read() {
        let l = empty();
        assert!(LatenciesText::read(&bytes(&l)).is_none(), "it was not opened");
        l.open(7);
        for ns in [10, 1000, 1001, 50_000_000] {
            l.count(Latency::Answer, ns);
        }
        let read = LatenciesText::read(&bytes(&l)).unwrap();
        assert_eq!(read.number, 7);
        let [answer, serve] = &read.times;
        assert_eq!((answer.count(), answer.max_ns, answer.sum_ns), (4, 50_000_000, 50_002_011));
        assert_eq!(serve.count(), 0);
        assert_eq!(serve.quantile(500), None);
        let [p25, p50, p99] = [250, 500, 990].map(|of| answer.quantile(of).unwrap());
        assert!(p25 == 32 && (1001..1250).contains(&p50) && p99 == 50_000_000, "{p25} {p50} {p99}");
        assert_eq!((answer.below(32), answer.below(1 << 20), answer.below(1 << 30)), (1, 3, 4));
        assert!(LatenciesText::read(&bytes(&l)[8..]).is_none());
    }

    #[test]
    fn threads_lose_no_time_that_they_count() {
        let l = empty();
        l.open(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|ns| l.count(Latency::Serve, ns)));
            }
        });
        let [answer, serve] = LatenciesText::read(&bytes(&l)).unwrap().times;
        assert_eq!((answer.count(), serve.count(), serve.max_ns), (0, 4000, 999));
        l.open(2);
        let [_, serve] = LatenciesText::read(&bytes(&l)).unwrap().times;
        assert_eq!((serve.count(), serve.sum_ns, serve.max_ns), (0, 0, 0));
    }
}
