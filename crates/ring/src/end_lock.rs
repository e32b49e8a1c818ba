//! The lock of one end of a connection, in memory that a process shares with its forked children.
//!
//! What this is not: hardened against the peer (it must be out of the peer's reach), nor able to
//! sleep or to tell whether an owner lives: the caller does both, in the closure of
//! [`EndLock::lock`].
//!
//! Invariants:
//! - The word is 0 when free, else the owner's thread id, with [`WAITERS`] when somebody may sleep
//!   until it changes. Who has slept takes the lock with the mark, since others may sleep still.
//! - A thread never waits for itself: a signal handler that comes in between gets [`Reentrant`].
//!
//! Thread ids must be unique among those who share the lock: across pid namespaces the caller has
//! to mark them. The id of a dead owner can be given to a new thread, which then passes for a
//! living owner: the caller's test has to tell them apart.

use crate::sync::{AtomicU32, Ordering};

/// Bit of the lock word: somebody may wait for the lock.
pub const WAITERS: u32 = 1 << 31;

/// The lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryLockError {
    /// By another thread.
    Busy {
        /// Its thread id.
        owner_tid: u32,
    },
    /// By this very thread: a signal handler came in between.
    Reentrant,
}

/// The lock is held by this very thread: a signal handler came in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reentrant;

/// What a waiter found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Try again.
    Retry,
    /// The owner is dead: take the lock over.
    OwnerDead,
}

/// A lock in memory that a process shares with its forked children. All zero is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EndLock(AtomicU32);

impl EndLock {
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self, tid: u32) -> Result<(), TryLockError> {
        match self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(word) if word & !WAITERS == tid => Err(TryLockError::Reentrant),
            Err(word) => Err(TryLockError::Busy { owner_tid: word & !WAITERS }),
        }
    }

    /// Takes the lock, calling `wait` with the owner each time it is found taken. `Ok(true)`: it
    /// was taken over from a dead owner, who may have left work half done.
    ///
    /// `wait` sleeps while the word at [`as_ptr`](Self::as_ptr) is `owner | WAITERS` (a futex wait,
    /// with a timeout: an owner can die between unlocking and waking), or finds out that the owner
    /// is dead.
    pub fn lock(&self, tid: u32, mut wait: impl FnMut(u32) -> Waited) -> Result<bool, Reentrant> {
        // Who has waited does not know whether others still do.
        let mut mine = tid;
        loop {
            let word = match self.0.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Ok(false),
                Err(word) => word,
            };
            let owner = word & !WAITERS;
            if owner == tid {
                return Err(Reentrant);
            }
            let marked = owner | WAITERS;
            if word != marked
                && self
                    .0
                    .compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            mine = tid | WAITERS;
            if wait(owner) == Waited::OwnerDead && self.steal(owner, tid) {
                return Ok(true);
            }
        }
    }

    /// Frees the lock. True: somebody waits, wake one.
    #[inline]
    #[must_use = "true: wake a waiter"]
    pub fn unlock(&self) -> bool {
        self.0.swap(0, Ordering::Release) & WAITERS != 0
    }

    /// Takes the lock from `from_tid`, which is dead. False: it is no longer the owner.
    pub fn steal(&self, from_tid: u32, tid: u32) -> bool {
        [from_tid | WAITERS, from_tid].iter().any(|&word| {
            self.0
                .compare_exchange(word, tid | WAITERS, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// The owner's thread id, 0 when free.
    #[inline]
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !WAITERS
    }

    /// The lock word, for a futex.
    #[cfg(not(loom))]
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u32 {
        self.0.as_ptr()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
