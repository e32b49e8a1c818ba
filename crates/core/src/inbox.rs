//! A thread of the library's own that does what others leave for it, and is started when it is
//! first needed.

use crate::lock::Mutex;
use crate::{process, signals};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What other threads leave for it.
pub(crate) struct Inbox<T>(Mutex<Vec<T>>);

impl<T> Inbox<T> {
    pub(crate) const fn new() -> Inbox<T> {
        Inbox(Mutex::new(Vec::new()))
    }

    /// False: there is no memory, or this very thread has been interrupted in here
    /// ([`signals::hold_back`]).
    pub(crate) fn put(&self, what: T) -> bool {
        let held = signals::hold_back();
        let mut left = self.0.lock_unless_mine();
        let has_room = left.as_mut().is_some_and(|left| {
            let room = left.try_reserve(1).is_ok();
            if room {
                left.push(what);
            }
            room
        });
        drop(left);
        signals::go_on(held);
        has_room
    }

    /// All that was left.
    pub(crate) fn take(&self) -> Vec<T> {
        core::mem::take(&mut *self.0.lock())
    }

    /// In a forked child, where it is the parent's (and half changed, perhaps).
    pub(crate) fn forget(&self) {
        core::mem::forget(self.take());
    }
}

/// Starts it, in each process.
pub(crate) struct Starter {
    one: Mutex<()>,
    /// The process in which it could not be started.
    failed: AtomicU32,
}

impl Starter {
    pub(crate) const fn new() -> Starter {
        Starter { one: Mutex::new(()), failed: AtomicU32::new(0) }
    }

    /// Whether it runs, or `start` has made it: by one thread at a time, and not where that has
    /// failed before.
    pub(crate) fn start(&self, is_running: fn() -> bool, start: fn() -> bool) -> bool {
        let held = signals::hold_back();
        let one = self.one.lock_unless_mine();
        let may_start = one.is_some() && self.failed.load(Relaxed) != process::id();
        let started = is_running() || (may_start && start());
        drop(one);
        signals::go_on(held);
        started
    }

    /// It cannot be started in this process, or has ended.
    pub(crate) fn has_failed(&self) {
        self.failed.store(process::id(), Relaxed);
    }

    /// It is about to run.
    pub(crate) fn has_not_failed(&self) {
        self.failed.store(0, Relaxed);
    }

    /// In a forked child.
    pub(crate) fn forget(&self) {
        drop(self.one.lock());
        self.has_not_failed();
    }
}
