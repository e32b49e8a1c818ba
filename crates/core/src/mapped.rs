//! Which memory is the library's own: a list of all that it has mapped, for a process that outlives
//! the program and has to tell its own memory from the program's (`keeper.rs`).
//!
//! Lock-free: whoever maps may be a signal handler, and may be killed at any instruction.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

struct Range {
    /// 0: none.
    at: AtomicUsize,
    bytes: AtomicUsize,
}

const CAPACITY: usize = 16384;
/// (Zero pages, touched as far as they are used.)
static LIST: [Range; CAPACITY] =
    [const { Range { at: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; CAPACITY];
/// No entry from here on was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// No entry before here is free, probably.
static FREE: AtomicUsize = AtomicUsize::new(0);
/// Something was mapped that is not on the list.
static FULL: AtomicBool = AtomicBool::new(false);

/// `bytes` at `at` were mapped.
pub(crate) fn add(at: usize, bytes: usize) {
    let from = FREE.load(Relaxed);
    for (i, r) in LIST.iter().enumerate().skip(from) {
        if r.at.load(Relaxed) == 0 && r.at.compare_exchange(0, at, AcqRel, Relaxed).is_ok() {
            r.bytes.store(bytes, Release);
            USED.fetch_max(i + 1, AcqRel);
            let _ = FREE.compare_exchange(from, i + 1, Relaxed, Relaxed);
            return;
        }
    }
    FULL.store(true, Relaxed);
}

/// What was mapped at `at` is about to go.
pub(crate) fn remove(at: usize) {
    for (i, r) in LIST.iter().enumerate().take(USED.load(Acquire)) {
        if r.at.load(Relaxed) == at {
            r.bytes.store(0, Relaxed);
            r.at.store(0, Release);
            FREE.fetch_min(i, Relaxed);
            return;
        }
    }
}

/// Calls `f` with each part of `from..to` that is not the library's own. False: nobody knows which
/// those are.
pub(crate) fn for_each_foreign(from: usize, to: usize, mut f: impl FnMut(usize, usize)) -> bool {
    if FULL.load(Relaxed) {
        return false;
    }
    let mut at = from;
    while at < to {
        // The first own range that ends behind `at`, and begins before all others that do.
        let mut next = (to, to);
        for r in LIST.iter().take(USED.load(Acquire)) {
            let (start, bytes) = (r.at.load(Acquire), r.bytes.load(Acquire));
            let end = start.saturating_add(bytes).next_multiple_of(4096);
            if start != 0 && end > at && start < next.0 {
                next = (start.max(at), end);
            }
        }
        if next.0 > at {
            f(at, next.0);
        }
        at = next.1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_is_not_on_the_list_is_foreign() {
        // Addresses that no mapping has.
        const BASE: usize = 1 << 60;
        let foreign = |from: usize, to: usize| {
            let mut found = Vec::new();
            assert!(for_each_foreign(BASE + from, BASE + to, |a, b| {
                found.push((a - BASE, b - BASE));
            }));
            found
        };
        assert_eq!(foreign(0x1000, 0x9000), [(0x1000, 0x9000)]);
        add(BASE + 0x5000, 0x1000);
        add(BASE + 0x3000, 0x800);
        add(BASE + 0x4000, 0x1000);
        assert_eq!(foreign(0x1000, 0x9000), [(0x1000, 0x3000), (0x6000, 0x9000)]);
        assert_eq!(foreign(0x3000, 0x6000), []);
        assert_eq!(foreign(0x5000, 0x7000), [(0x6000, 0x7000)]);
        remove(BASE + 0x4000);
        assert_eq!(foreign(0x3000, 0x6000), [(0x4000, 0x5000)]);
        remove(BASE + 0x5000);
        remove(BASE + 0x3000);
        assert_eq!(foreign(0x1000, 0x9000), [(0x1000, 0x9000)]);
    }
}
