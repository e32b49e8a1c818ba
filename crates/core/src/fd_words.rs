//! One word for each descriptor number, lock-free: 0 (not ours: the answer costs one load), or what
//! [`crate::fd_table`] makes of it; and which numbers are the library's own.

use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Numbers beyond this are never ours (the kernel's default ceiling, `fs.nr_open`).
pub(crate) const CAPACITY: usize = 1 << 20;

// 8 MiB of zero pages, touched only where numbers are used.
static TABLE: [AtomicU64; CAPACITY] = [const { AtomicU64::new(0) }; CAPACITY];

/// The entries that the last fork counted. Private memory: a child has it as it was when it was
/// made.
static COUNTED: [AtomicU64; CAPACITY] = [const { AtomicU64::new(0) }; CAPACITY];

/// The bits of a word that say what it is.
pub(crate) const KIND: u64 = 0b111;
/// The library's own: the application must not see it. Nothing else stands in the word.
pub(crate) const INTERNAL: u64 = 4;
/// A listening stream socket.
pub(crate) const LISTENER: u64 = 5;

/// The present entry of `fd` is counted for the child that is about to be made.
pub(crate) fn note_counted(fd: c_int, raw: u64) {
    if let Some(w) = COUNTED.get(fd as usize) {
        w.store(raw, Release);
    }
}

/// In a child: whether the entry of `fd` was counted for it.
pub(crate) fn was_counted(fd: c_int) -> bool {
    COUNTED.get(fd as usize).is_some_and(|w| w.load(Acquire) == raw(fd))
}

#[inline(always)]
fn word(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(fd as u32 as usize)
}

/// The word: 0 = not ours.
#[inline(always)]
pub(crate) fn raw(fd: c_int) -> u64 {
    match word(fd) {
        Some(w) => w.load(Acquire),
        None => 0,
    }
}

/// Sets the word and returns what was there.
pub(crate) fn set(fd: c_int, raw: u64) -> u64 {
    let Some(w) = word(fd) else { return 0 };
    let above = (fd as usize).saturating_add(1);
    let mark = if raw == INTERNAL { &INTERNAL_HIGH_WATER } else { &HIGH_WATER };
    if raw != 0 && mark.load(Relaxed) < above {
        mark.fetch_max(above, Relaxed);
    }
    w.swap(raw, AcqRel)
}

/// Takes the word away if it still is `raw`; true for the one caller that did.
pub(crate) fn take(fd: c_int, raw: u64) -> bool {
    replace(fd, raw, 0)
}

/// Puts `new` in the place of `raw`; false if something else stands there.
pub(crate) fn replace(fd: c_int, raw: u64, new: u64) -> bool {
    word(fd).is_some_and(|w| w.compare_exchange(raw, new, AcqRel, Acquire).is_ok())
}

/// Closes one of the library's own.
pub(crate) fn close_internal(fd: c_int) {
    set(fd, 0);
    let _ = sys::close(fd);
}

/// One above the highest number that ever had an entry, the library's own (which stand high) left
/// out.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
static INTERNAL_HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// Where walks over the application's entries end.
pub(crate) fn high_water() -> usize {
    HIGH_WATER.load(Relaxed).min(CAPACITY)
}

/// Where walks over the library's own end.
pub(crate) fn internal_high_water() -> usize {
    INTERNAL_HIGH_WATER.load(Relaxed).min(CAPACITY)
}

/// Calls `f` for every number of the library's own.
pub(crate) fn for_each_internal(mut f: impl FnMut(c_int)) {
    walk(0, internal_high_water(), |fd, raw| {
        if raw == INTERNAL {
            f(fd);
        }
    });
}

/// Calls `f` for every listening stream socket.
pub(crate) fn for_each_listener(mut f: impl FnMut(c_int)) {
    walk(0, high_water(), |fd, raw| {
        if raw & KIND == LISTENER {
            f(fd);
        }
    });
}

/// Calls `f` for every word from the number `from` to before `to`, lowest number first.
pub(crate) fn walk(from: usize, to: usize, mut f: impl FnMut(c_int, u64)) {
    for (fd, w) in TABLE.iter().enumerate().take(to).skip(from) {
        let raw = w.load(Acquire);
        if raw != 0 {
            f(fd as c_int, raw);
        }
    }
}
