//! Locks of this process: a small futex mutex that survives fork, and the holder of a connection
//! end's lock.

use crate::{process, sys};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_ring::{EndLock, Waited};

/// A mutex between the threads of one process.
///
/// A child forked while another thread held it finds its parent in a word that nobody will free,
/// and takes it over: the data may be half changed then, so whoever owns such data rebuilds it in
/// the child (`after_fork_in_child`).
pub(crate) struct Mutex<T> {
    /// 0 free; otherwise the holder's thread id and [`WAITERS`] below (the futex), its process
    /// above.
    word: AtomicU64,
    value: UnsafeCell<T>,
}

const WAITERS: u64 = 1 << 31;

// SAFETY: the word hands `value` to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

pub(crate) struct Guard<'a, T>(&'a Mutex<T>);

impl<T> Guard<'_, T> {
    /// Others may have the mutex while `f` runs.
    pub(crate) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.0.unlock();
        let r = f();
        // (This guard frees it.)
        core::mem::forget(self.0.lock());
        r
    }
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { word: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the mutex, sleeping on a futex while another thread of this process holds it. Not for
    /// code that may run in a signal handler: that uses [`Mutex::lock_unless_mine`].
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.lock_unless_mine() {
                return guard;
            }
            // A signal handler has come back into a call that POSIX does not allow it: the thread
            // it interrupted cannot go on.
            sys::sched_yield();
        }
    }

    /// As [`Mutex::lock`]; `None` when this very thread holds it already: a signal handler
    /// interrupted it.
    #[inline]
    pub(crate) fn lock_unless_mine(&self) -> Option<Guard<'_, T>> {
        let me = Self::me();
        if self.word.compare_exchange(0, me, Acquire, Relaxed).is_err() && !self.lock_slow(me) {
            return None;
        }
        Some(Guard(self))
    }

    /// Takes the mutex if nobody holds it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.compare_exchange(0, Self::me(), Acquire, Relaxed).ok()?;
        Some(Guard(self))
    }

    #[inline]
    fn unlock(&self) {
        if self.word.swap(0, Release) & WAITERS != 0 {
            sys::futex_wake(self.futex(), 1, true);
        }
    }

    #[inline]
    fn me() -> u64 {
        u64::from(process::id()) << 32 | u64::from(process::tid())
    }

    fn futex(&self) -> &AtomicU32 {
        const { assert!(cfg!(target_endian = "little"), "the futex is the lower half") };
        // SAFETY: the lower half of the word, which lives as long; the kernel only compares it.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr().cast()) }
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, me: u64) -> bool {
        let mut tries = 0u32;
        loop {
            tries += 1;
            let word = self.word.load(Relaxed);
            let forked_away = word != 0 && word >> 32 != me >> 32;
            if word == 0 || forked_away {
                let mine = if tries > 100 || forked_away { me | WAITERS } else { me };
                if self.word.compare_exchange(word, mine, Acquire, Relaxed).is_ok() {
                    return true;
                }
                continue;
            }
            if word & !WAITERS == me {
                return false;
            }
            if tries < 100 {
                core::hint::spin_loop();
                continue;
            }
            if word & WAITERS == 0
                && self.word.compare_exchange(word, word | WAITERS, Relaxed, Relaxed).is_err()
            {
                continue;
            }
            sys::futex_wait(self.futex(), (word | WAITERS) as u32, -1, true);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the proof that this thread holds the word.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the proof that this thread holds the word, and is borrowed uniquely.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// A held [`EndLock`]; frees it when dropped.
pub(crate) struct EndGuard<'a>(&'a EndLock);

/// Takes the lock of a connection's end, which threads of this process and of its forked children
/// contend for. `None`: a signal handler interrupted this very thread while it held the lock. True
/// beside the guard: the last holder was killed.
#[inline]
pub(crate) fn lock_end(lock: &EndLock) -> Option<(EndGuard<'_>, bool)> {
    let tid = process::tid();
    if lock.try_lock(tid).is_ok() {
        return Some((EndGuard(lock), false));
    }
    lock_end_slow(lock, tid)
}

/// As [`lock_end`], if it is free.
#[inline(always)]
pub(crate) fn try_lock_end(lock: &EndLock) -> Option<EndGuard<'_>> {
    lock.try_lock(process::tid()).ok().map(|()| EndGuard(lock))
}

/// How long a lock is left to a thread of which nobody can tell whether it lives.
const FOREIGN_NS: u64 = 1_000_000_000;

#[cold]
#[inline(never)]
fn lock_end_slow(lock: &EndLock, tid: u32) -> Option<(EndGuard<'_>, bool)> {
    let mut tries = 0u32;
    let mut foreign = (0, 0);
    lock.lock(tid, |owner| {
        tries += 1;
        if tries < 50 {
            core::hint::spin_loop();
            return Waited::Retry;
        }
        // SAFETY: `as_ptr` is the lock's own word, which lives as long as the lock.
        let word = unsafe { AtomicU32::from_ptr(lock.as_ptr()) };
        if sys::futex_wait(word, owner | netacc_ring::WAITERS, 20_000_000, false)
            != -(libc::ETIMEDOUT as isize)
        {
            return Waited::Retry;
        }
        let lives = process::thread_is_alive(owner).unwrap_or_else(|| {
            // A thread in another PID namespace holds it for the microseconds in which its process
            // gives it up, or was killed.
            let now = sys::now_ns();
            if foreign.0 != owner {
                foreign = (owner, now);
            }
            now.saturating_sub(foreign.1) < FOREIGN_NS
        });
        if lives { Waited::Retry } else { Waited::OwnerDead }
    })
    .ok()
    .map(|owner_died| (EndGuard(lock), owner_died))
}

impl Drop for EndGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.unlock() {
            wake_waiter(self.0);
        }
    }
}

#[cold]
#[inline(never)]
fn wake_waiter(lock: &EndLock) {
    // SAFETY: as in `lock_end_slow`.
    let word = unsafe { AtomicU32::from_ptr(lock.as_ptr()) };
    sys::futex_wake(word, 1, false);
}

/// Adds to a statistics word that only the holder of a lock writes: no locked instruction.
#[inline(always)]
pub(crate) fn bump(word: &AtomicU64, by: u64) {
    word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
}
