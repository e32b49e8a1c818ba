//! Who does the work: one thread at a time, and nobody waits to be that one. And the set of lanes
//! that have some.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Somebody came meanwhile: the holder looks again before it leaves.
const AGAIN: u32 = 2;

/// The right to do a piece of work that others may add to.
///
/// Who adds something and then cannot [`enter`](Self::enter) is done all the same: whoever is
/// inside looks again. So this is no lock, nobody waits, and a signal handler that interrupts the
/// holder loses nothing.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU32);

impl Turn {
    /// True: the turn is ours. False: who has it will see everything that was stored before this
    /// call.
    pub(crate) fn enter(&self) -> bool {
        let mut seen = FREE;
        loop {
            let next = if seen == FREE { TAKEN } else { AGAIN };
            match self.0.compare_exchange_weak(seen, next, AcqRel, Acquire) {
                Ok(_) => return seen == FREE,
                Err(now) => seen = now,
            }
        }
    }

    /// True: the turn is ours, and nothing was added. False: somebody has it, and need not look
    /// again.
    pub(crate) fn try_enter(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()
    }

    /// Gives the turn up. False: something was added, so it is still ours: look again.
    pub(crate) fn leave(&self) -> bool {
        if self.0.compare_exchange(TAKEN, FREE, Release, Relaxed).is_ok() {
            return true;
        }
        // Only `enter` changes the word while it is taken, and only to AGAIN. A swap, to see what
        // was stored before that.
        self.0.swap(TAKEN, AcqRel);
        false
    }
}

const WORDS: usize = crate::LANES_MAX / 64;

/// A set of lanes.
#[derive(Debug)]
pub(crate) struct Bits {
    /// Bit `i`: `words[i]` may be not 0.
    summary: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Bits {
    pub(crate) const fn new() -> Self {
        Self { summary: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// Adds a lane; what was stored before is seen by whoever removes it.
    pub(crate) fn set(&self, lane: u16) {
        let lane = usize::from(lane);
        if let Some(word) = self.words.get(lane / 64) {
            word.fetch_or(1 << (lane % 64), AcqRel);
            self.summary.fetch_or(1 << (lane / 64), AcqRel);
        }
    }

    /// Removes a lane.
    pub(crate) fn clear(&self, lane: u16) {
        let lane = usize::from(lane);
        if let Some(word) = self.words.get(lane / 64)
            && word.fetch_and(!(1 << (lane % 64)), AcqRel) == 1 << (lane % 64)
        {
            self.summary.fetch_and(!(1 << (lane / 64)), AcqRel);
            // A lane that came in between has set the summary before, or will after.
            if word.load(Acquire) != 0 {
                self.summary.fetch_or(1 << (lane / 64), AcqRel);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.summary.load(Acquire) == 0
    }

    /// The first lane at or after `from`, else the first one.
    pub(crate) fn next(&self, from: u16) -> Option<u16> {
        self.first(from).or_else(|| self.first(0))
    }

    fn first(&self, from: u16) -> Option<u16> {
        let (start, bit) = (u32::from(from) / 64, u32::from(from) % 64);
        let mut left = self.summary.load(Acquire) & u64::MAX.checked_shl(start).unwrap_or(0);
        while left != 0 {
            let i = left.trailing_zeros();
            let mask = if i == start { u64::MAX << bit } else { u64::MAX };
            let found = self.words.get(i as usize).map_or(0, |word| word.load(Acquire)) & mask;
            if found != 0 {
                return u16::try_from(i * 64 + found.trailing_zeros()).ok();
            }
            left &= left - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests;
