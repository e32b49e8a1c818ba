//! Random numbers that a seed says (xorshift64*, Vigna, 2014).

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Less than that; 0 for 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { (self.next() >> 11) % end }
    }

    /// Less than two to a power that is below that: small and large ones alike.
    pub(crate) fn scaled(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits);
        self.below(1 << bits)
    }

    /// In so many of a thousand cases.
    pub(crate) fn of_thousand(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }
}
