//! A lock without an operating system.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Held for microseconds, by test programs: whoever waits turns.
pub(super) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `taken` hands the value to one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

pub(super) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        while self.taken.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Guard(self)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the proof that nobody else has the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed uniquely.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
