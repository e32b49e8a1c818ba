//! The bytes that every test stream is made of, and a seeded generator.
//!
//! Byte `o` of a stream depends on the seed and on `o` alone, so both ends can write and check from
//! any offset. The period is a prime, so no power-of-two ring size can hide a repeated or skipped
//! lap.

const PERIOD: usize = 1_000_003;

/// xorshift64*: deterministic, good enough for sizes and choices.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A value in `low..=high`.
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 11) as usize % (high - low + 1)
    }

    /// A size that is often small, sometimes large: uniform in its logarithm.
    pub fn size(&mut self, max: usize) -> usize {
        let bits = self.range(0, max.ilog2() as usize);
        self.range(1, (1 << (bits + 1)).min(max))
    }
}

/// One direction's bytes.
#[derive(Clone)]
pub struct Pattern(std::sync::Arc<Vec<u8>>);

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        let mut rng = Rng::new(seed);
        let mut table = Vec::with_capacity(PERIOD + 8);
        while table.len() < PERIOD {
            table.extend_from_slice(&rng.next().to_ne_bytes());
        }
        table.truncate(PERIOD);
        Pattern(std::sync::Arc::new(table))
    }

    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut at = (offset % PERIOD as u64) as usize;
        let mut done = 0;
        while done < out.len() {
            let n = (out.len() - done).min(PERIOD - at);
            out[done..done + n].copy_from_slice(&self.0[at..at + n]);
            done += n;
            at = 0;
        }
    }

    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(offset, &mut out);
        out
    }

    /// The first stream offset at which `got` is wrong.
    pub fn first_error(&self, offset: u64, got: &[u8]) -> Option<u64> {
        let mut at = (offset % PERIOD as u64) as usize;
        let mut done = 0;
        while done < got.len() {
            let n = (got.len() - done).min(PERIOD - at);
            let (mine, theirs) = (&self.0[at..at + n], &got[done..done + n]);
            if mine != theirs {
                let bad = mine.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(0);
                return Some(offset + (done + bad) as u64);
            }
            done += n;
            at = 0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_checks_what_it_filled_across_its_period() {
        let pattern = Pattern::new(7);
        let offset = PERIOD as u64 * 3 - 100;
        let mut bytes = pattern.bytes(offset, 4096);
        assert_eq!(pattern.first_error(offset, &bytes), None);
        bytes[200] ^= 1;
        assert_eq!(pattern.first_error(offset, &bytes), Some(offset + 200));
    }

    #[test]
    fn sizes_stay_in_range() {
        let mut rng = Rng::new(3);
        for _ in 0..10_000 {
            assert!((1..=70_000).contains(&rng.size(70_000)));
        }
    }
}
