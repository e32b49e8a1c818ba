//! Ports on which nobody with the library was found, for a while: a look without a lock, because
//! every connect begins with it.

use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// By port, ports that share a place forget each other. Each: the port in 16 bits, and in 24 bits
/// each, in milliseconds of the monotonic clock, until when a look at connect, and one after the
/// first bytes, need not be repeated.
pub(crate) struct Absent([AtomicU64; PLACES]);

const PLACES: usize = 4096;
const ABSENT_MS: u64 = 50;
const MASK: u64 = (1 << 24) - 1;
const NEVER: u64 = 0;

impl Absent {
    #[allow(clippy::large_stack_arrays, reason = "the value of a static")]
    pub(crate) const fn new() -> Absent {
        Absent([const { AtomicU64::new(0) }; PLACES])
    }

    /// Nobody was there lately. `later`: as a look after the first bytes would find.
    pub(crate) fn is_known(&self, port: u16, later: bool) -> bool {
        self.is_known_at(port, later, sys::now_ns() / 1_000_000)
    }

    fn is_known_at(&self, port: u16, later: bool, now_ms: u64) -> bool {
        let word = self.0.get(port as usize % PLACES).map_or(0, |w| w.load(Relaxed));
        let until = if later { word >> 24 } else { word };
        // (After four and a half hours an old word looks like a new one for a moment.)
        let left = until.wrapping_sub(now_ms) & MASK;
        word >> 48 == u64::from(port) && until & MASK != NEVER && left.wrapping_sub(1) < ABSENT_MS
    }

    /// Nobody is there. What is found after the first bytes would have been found at connect too.
    pub(crate) fn note(&self, port: u16, later: bool) {
        self.note_at(port, later, sys::now_ns() / 1_000_000)
    }

    fn note_at(&self, port: u16, later: bool, now_ms: u64) {
        let Some(w) = self.0.get(port as usize % PLACES) else { return };
        let until = (now_ms.wrapping_add(ABSENT_MS) & MASK).max(1);
        let old = w.load(Relaxed);
        let kept = if old >> 48 == u64::from(port) { old >> 24 & MASK } else { NEVER };
        w.store(u64::from(port) << 48 | (if later { until } else { kept }) << 24 | until, Relaxed);
    }

    pub(crate) fn forget_all(&self) {
        self.0.iter().for_each(|w| w.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_for_a_while_and_by_kind() {
        let a = Absent::new();
        for now in [0, 12_345, MASK - 100, MASK + 5] {
            a.forget_all();
            assert!(!a.is_known_at(80, false, now), "at {now}");
            a.note_at(80, false, now);
            assert!(a.is_known_at(80, false, now) && a.is_known_at(80, false, now + ABSENT_MS - 1));
            assert!(!a.is_known_at(80, false, now + ABSENT_MS), "at {now}");
            assert!(
                !a.is_known_at(80, true, now),
                "a listener that has accepted nothing yet may appear"
            );
            assert!(!a.is_known_at(80 + PLACES as u16, false, now), "another port");
            a.note_at(80, true, now);
            a.note_at(80, false, now + 10);
            assert!(a.is_known_at(80, true, now + 10) && !a.is_known_at(80, true, now + ABSENT_MS));
            assert!(a.is_known_at(80, false, now + ABSENT_MS + 5));
        }
    }
}
