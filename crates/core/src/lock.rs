//! Locks of this process: a small futex mutex that survives fork, and the holder of a connection end's lock.

use crate::{lifecycle, sys};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_ring::{EndLock, Waited};

/// A mutex between the threads of one process.
///
/// A child forked while another thread held it finds a word of the parent's process serial and takes it over: the
/// data may be half changed then, so whoever owns such data rebuilds it in the child (`after_fork_in_child`).
pub(crate) struct Mutex<T> {
    /// 0 free; otherwise the holder's process serial << 1 | "somebody waits".
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word hands `value` to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

pub(crate) struct Guard<'a, T>(&'a Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the mutex, sleeping on a futex while another thread of this process holds it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let me = lifecycle::process() << 1;
        if self.word.compare_exchange(0, me, Acquire, Relaxed).is_err() {
            self.lock_slow(me);
        }
        Guard(self)
    }

    /// Takes the mutex if no other thread holds it: the way for code that may run in a signal handler.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let me = lifecycle::process() << 1;
        self.word.compare_exchange(0, me, Acquire, Relaxed).ok().map(|_| Guard(self))
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, me: u32) {
        for _ in 0..100 {
            if self.word.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        loop {
            let word = self.word.load(Relaxed);
            if word == 0 {
                if self.word.compare_exchange(0, me | 1, Acquire, Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            if word & !1 != me {
                // Held at the moment of a fork by a thread that does not exist in this process.
                if self.word.compare_exchange(word, me | 1, Acquire, Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            if word & 1 == 0 && self.word.compare_exchange(word, word | 1, Relaxed, Relaxed).is_err() {
                continue;
            }
            sys::futex_wait(&self.word, word | 1, -1, true);
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
        if self.0.word.swap(0, Release) & 1 != 0 {
            sys::futex_wake(&self.0.word, 1, true);
        }
    }
}

/// A held [`EndLock`]; frees it when dropped.
pub(crate) struct EndGuard<'a>(&'a EndLock);

/// Takes the lock of a connection's end, which threads of this process and of its forked children contend for. `None`: a signal
/// handler interrupted this very thread while it held the lock.
#[inline]
pub(crate) fn lock_end(lock: &EndLock) -> Option<EndGuard<'_>> {
    let tid = lifecycle::tid();
    if lock.try_lock(tid).is_ok() {
        return Some(EndGuard(lock));
    }
    lock_end_slow(lock, tid)
}

#[cold]
#[inline(never)]
fn lock_end_slow(lock: &EndLock, tid: u32) -> Option<EndGuard<'_>> {
    let mut tries = 0u32;
    lock.lock(tid, |owner| {
        tries += 1;
        if tries < 50 {
            core::hint::spin_loop();
            return Waited::Retry;
        }
        // SAFETY: `as_ptr` is the lock's own word, which lives as long as the lock.
        let word = unsafe { AtomicU32::from_ptr(lock.as_ptr()) };
        if sys::futex_wait(word, owner | netacc_ring::WAITERS, 20_000_000, false) == -(libc::ETIMEDOUT as isize) && !sys::alive(owner) {
            return Waited::OwnerDead;
        }
        Waited::Retry
    })
    .ok()
    .map(|_| EndGuard(lock))
}

impl Drop for EndGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.unlock() {
            // SAFETY: as in `lock_end_slow`.
            let word = unsafe { AtomicU32::from_ptr(self.0.as_ptr()) };
            sys::futex_wake(word, 1, false);
        }
    }
}

/// Adds to a statistics word that only the holder of a lock writes: no locked instruction.
#[inline(always)]
pub(crate) fn bump(word: &AtomicU64, by: u64) {
    word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
}
