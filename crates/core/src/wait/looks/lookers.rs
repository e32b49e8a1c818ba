//! Threads that look at this moment, and at which numbers: whoever closes one of these, or puts
//! something else on it, has them go to sleep first.
//!
//! A call that sleeps in the kernel keeps the file that it was made on, whatever becomes of the
//! number meanwhile. One that looks is in no call for half of the time, and would find the number
//! closed, or another file under it. So the closer tells it ([`Lookers::call_off`]), and waits
//! until it has gone to make the call that sleeps. That is for some microseconds, unless the thread
//! that looks has lost its CPU: after [`AT_MOST_NS`] it is not waited for any more.

use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// More threads than that do not look at once.
pub(super) const SEATS: usize = 32;
/// So many numbers a thread looks at.
pub(crate) const NUMBERS: usize = 8;

/// How long a closer waits for one thread.
const AT_MOST_NS: u64 = 10_000_000;
/// How long a thread needs from its last look into the kernel, and more.
const INTO_KERNEL_NS: i64 = 50_000;

/// What a thread that looks does.
const NOTHING: u32 = 0;
const SITS_DOWN: u32 = 1;
const LOOKS: u32 = 2;
const CALLED_OFF: u32 = 3;

struct Looker {
    state: AtomicU32,
    /// What is looked at; the rest is -1.
    numbers: [AtomicI32; NUMBERS],
}

pub(super) struct Lookers {
    looking: AtomicU32,
    seats: [Looker; SEATS],
}

impl Lookers {
    pub(super) const fn new() -> Lookers {
        Lookers { looking: AtomicU32::new(0), seats: [const { Looker::new() }; SEATS] }
    }

    /// A thread begins to look at these numbers. `None`: `most` do already, or it is too many
    /// numbers.
    pub(super) fn take(&'static self, numbers: &[c_int], most: u32) -> Option<Turn> {
        if numbers.len() > NUMBERS {
            return None;
        }
        if self.looking.fetch_add(1, SeqCst) >= most {
            self.looking.fetch_sub(1, Relaxed);
            return None;
        }
        let sits = |seat: &&Looker| {
            seat.state.compare_exchange(NOTHING, SITS_DOWN, Acquire, Relaxed).is_ok()
        };
        let Some(seat) = self.seats.iter().find(sits) else {
            self.looking.fetch_sub(1, Relaxed);
            return None;
        };
        let padded = numbers.iter().chain(core::iter::repeat(&-1));
        seat.numbers.iter().zip(padded).for_each(|(at, number)| at.store(*number, Relaxed));
        seat.state.store(LOOKS, SeqCst);
        Some(Turn { lookers: self, seat })
    }

    /// A number from `first` to `last` is about to be closed, or to become another file's.
    /// Async-signal-safe.
    #[inline]
    pub(super) fn call_off(&self, first: u32, last: u32) {
        if self.looking.load(SeqCst) != 0 {
            self.call_off_slow(first, last);
        }
    }

    #[cold]
    #[inline(never)]
    fn call_off_slow(&self, first: u32, last: u32) {
        let mut off = false;
        for seat in &self.seats {
            let named = || {
                let all = seat.numbers.iter().map(|n| n.load(Relaxed));
                all.filter(|n| *n >= 0).any(|n| (first..=last).contains(&(n as u32)))
            };
            if seat.state.load(SeqCst) == LOOKS
                && named()
                && seat.state.compare_exchange(LOOKS, CALLED_OFF, SeqCst, Relaxed).is_ok()
            {
                off = true;
                seat.await_end();
            }
        }
        if off {
            sys::pause_ns(INTO_KERNEL_NS);
        }
    }

    /// Nobody looks in a forked child.
    pub(super) fn after_fork_in_child(&self) {
        self.looking.store(0, Relaxed);
        self.seats.iter().for_each(|seat| seat.state.store(NOTHING, Relaxed));
    }
}

impl Looker {
    const fn new() -> Looker {
        Looker { state: AtomicU32::new(NOTHING), numbers: [const { AtomicI32::new(-1) }; NUMBERS] }
    }

    fn await_end(&self) {
        let until = sys::now_ns().saturating_add(AT_MOST_NS);
        while self.state.load(SeqCst) == CALLED_OFF && sys::now_ns() < until {
            sys::futex_wait(&self.state, CALLED_OFF, AT_MOST_NS as i64, true);
        }
    }
}

/// A thread's time to look.
pub(super) struct Turn {
    lookers: &'static Lookers,
    seat: &'static Looker,
}

impl Turn {
    /// What it looks at is about to go: it must not look again.
    #[inline]
    pub(super) fn is_called_off(&self) -> bool {
        self.seat.state.load(SeqCst) != LOOKS
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lookers.looking.fetch_sub(1, Relaxed);
        if self.seat.state.swap(NOTHING, SeqCst) == CALLED_OFF {
            sys::futex_wake(&self.seat.state, i32::MAX, true);
        }
    }
}
