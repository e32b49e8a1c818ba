//! Failures and changes of path to order, in builds with the feature `inject` alone: those of the
//! tests (`tests/inject`). Otherwise nothing here is anything.
//!
//! `NETACC_TEST_FAIL` is two words: what fails, and from which one on.
//! - `memory N`: the Nth allocation of the library's finds that the kernel has no memory, and so do
//!   all that come behind it;
//! - `memory-once N`: that one alone;
//! - `call N`: the Nth system call that makes a mapping, a descriptor or a thread for the library
//!   fails, and all that come behind it;
//! - `call-once N`: that one alone.
//!
//! `NETACC_TEST_SWITCH=SEED` has each sending direction change its path by itself, now and then, in
//! an order that the seed decides.
//!
//! `NETACC_TEST_LOOKS=N` has each wait for a connection on TCP look for N microseconds before it
//! sleeps, and no connection leave TCP.
//!
//! `NETACC_TEST_AT_ONCE=N` has a connection seek its agreement at the first call that moves bytes,
//! and its first calls wait for it, N ms at most each: for programs whose connections are over
//! after few calls.
//!
//! `NETACC_TEST_COUNTS` is a file to which a process that ends appends how many allocations and
//! system calls there were.

/// What is ordered for an allocation.
#[cfg_attr(not(feature = "inject"), allow(dead_code, reason = "nothing is ordered"))]
pub(crate) enum Fails {
    No,
    This,
    /// All from here on that what is given back does not serve; nothing may be left of what was
    /// mapped before.
    AllBehind,
}

#[cfg(not(feature = "inject"))]
mod off {
    use super::Fails;
    use core::ffi::c_int;

    #[inline(always)]
    pub(crate) const fn allocation() -> Fails {
        Fails::No
    }
    #[inline(always)]
    pub(crate) const fn is_starved() -> bool {
        false
    }
    #[inline(always)]
    pub(crate) const fn call() -> Option<c_int> {
        None
    }
    #[inline(always)]
    pub(crate) fn init(_: &dyn Fn(&str) -> Option<&'static str>) {}
    #[inline(always)]
    pub(crate) const fn looks_ns() -> Option<u64> {
        None
    }
    #[inline(always)]
    pub(crate) const fn at_once_ns() -> Option<u64> {
        None
    }
    #[derive(Debug)]
    pub(crate) struct Switches;

    impl Switches {
        pub(crate) const fn new() -> Switches {
            Switches
        }
        #[inline(always)]
        pub(crate) const fn are_ordered(&self) -> bool {
            false
        }
        #[inline(always)]
        pub(crate) const fn next(&mut self) -> Option<u32> {
            None
        }
    }
}
#[cfg(not(feature = "inject"))]
pub(crate) use off::*;

#[cfg(feature = "inject")]
mod on {
    use super::Fails;
    use core::ffi::c_int;
    use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

    struct Kind {
        seen: AtomicU64,
        /// 0: none fails.
        at: AtomicU64,
        once: AtomicBool,
    }

    static MEMORY: Kind = Kind::new();
    static CALLS: Kind = Kind::new();
    static STARVED: AtomicBool = AtomicBool::new(false);
    static STARTED: AtomicBool = AtomicBool::new(false);
    static SEED: AtomicU32 = AtomicU32::new(0);
    static LOOKS_US: AtomicU64 = AtomicU64::new(0);
    static AT_ONCE_MS: AtomicU64 = AtomicU64::new(0);
    static COUNTS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

    impl Kind {
        const fn new() -> Kind {
            Kind { seen: AtomicU64::new(0), at: AtomicU64::new(0), once: AtomicBool::new(false) }
        }
        /// Whether this one fails.
        fn next(&self) -> bool {
            if !STARTED.load(Relaxed) {
                return false;
            }
            let (n, at) = (self.seen.fetch_add(1, Relaxed) + 1, self.at.load(Relaxed));
            at != 0 && if self.once.load(Relaxed) { n == at } else { n >= at }
        }
    }

    pub(crate) fn allocation() -> Fails {
        if !MEMORY.next() {
            return Fails::No;
        }
        if MEMORY.once.load(Relaxed) {
            return Fails::This;
        }
        if STARVED.swap(true, Relaxed) { Fails::No } else { Fails::AllBehind }
    }

    pub(crate) fn is_starved() -> bool {
        STARVED.load(Relaxed)
    }

    pub(crate) fn call() -> Option<c_int> {
        CALLS.next().then_some(-libc::EMFILE)
    }

    pub(crate) fn init(env: &dyn Fn(&str) -> Option<&'static str>) {
        if let Some((what, n)) = env("NETACC_TEST_FAIL").and_then(|v| v.split_once(' ')) {
            let kind = if what.starts_with("memory") { &MEMORY } else { &CALLS };
            kind.once.store(what.ends_with("-once"), Relaxed);
            kind.at.store(n.parse().unwrap_or(0), Relaxed);
        }
        SEED.store(env("NETACC_TEST_SWITCH").and_then(|v| v.parse().ok()).unwrap_or(0), Relaxed);
        let looks_us = env("NETACC_TEST_LOOKS").and_then(|v| v.parse().ok());
        LOOKS_US.store(looks_us.unwrap_or(0), Relaxed);
        let at_once_ms = env("NETACC_TEST_AT_ONCE").and_then(|v| v.parse().ok());
        AT_ONCE_MS.store(at_once_ms.unwrap_or(0), Relaxed);
        if let Some(path) = env("NETACC_TEST_COUNTS") {
            let [at, len] = &COUNTS;
            len.store(path.len(), Relaxed);
            at.store(path.as_ptr() as usize, Relaxed);
        }
        STARTED.store(true, Relaxed);
    }

    /// For how long each wait looks, where that is ordered.
    pub(crate) fn looks_ns() -> Option<u64> {
        Some(LOOKS_US.load(Relaxed) * 1_000).filter(|ns| *ns != 0)
    }

    /// For how long a call waits for its connection's agreement, where that is ordered.
    pub(crate) fn at_once_ns() -> Option<u64> {
        Some(AT_ONCE_MS.load(Relaxed) * 1_000_000).filter(|ns| *ns != 0)
    }

    /// The changes of path of one direction.
    #[derive(Debug)]
    pub(crate) struct Switches(u32);

    impl Switches {
        pub(crate) fn new() -> Switches {
            Switches(SEED.load(Relaxed))
        }
        pub(crate) fn are_ordered(&self) -> bool {
            self.0 != 0
        }
        /// A random number for this call, where they are ordered: the same ones for one sequence of
        /// calls (xorshift32).
        pub(crate) fn next(&mut self) -> Option<u32> {
            if !self.are_ordered() {
                return None;
            }
            let mut x = self.0;
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            self.0 = x | 1;
            Some(x)
        }
    }

    /// Where the counts are asked for: the file, and how many allocations and calls there were.
    pub(crate) fn counts() -> Option<(&'static [u8], u64, u64)> {
        let [at, len] = COUNTS.each_ref().map(|w| w.load(Relaxed));
        if at == 0 {
            return None;
        }
        // SAFETY: the variable's value, which is leaked.
        let path = unsafe { core::slice::from_raw_parts(at as *const u8, len) };
        Some((path, MEMORY.seen.load(Relaxed), CALLS.seen.load(Relaxed)))
    }
}
#[cfg(feature = "inject")]
pub(crate) use on::*;
