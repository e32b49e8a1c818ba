//! What is known of a socket before it connects: what was set on it, and that no other process has
//! it.

use crate::fd_words::CAPACITY;
use crate::socket::{Socket, harmless};
use crate::{process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// An option besides [`harmless::HARMLESS`] was set: this carrier serves no other connection, and
/// such a socket takes none.
pub(crate) const ODD: u32 = 1 << 31;

/// Not an option: a connect that did not wait has not been answered by another one yet, which says
/// 0 once, as the kernel's does.
const CONNECTING: u32 = 1 << 29;

/// Such a connect was made on a connection.
pub(crate) fn mark_connecting(s: &Socket) {
    s.marks.fetch_or(CONNECTING, AcqRel);
}

/// Whether this is the other one.
pub(crate) fn take_connecting(s: &Socket) -> bool {
    s.marks.load(Relaxed) & CONNECTING != 0
        && s.marks.fetch_and(!CONNECTING, AcqRel) & CONNECTING != 0
}

/// The mark of an option that was set.
pub(crate) fn mark_of(level: c_int, name: c_int) -> u32 {
    if level == libc::SOL_SOCKET && name == libc::SO_REUSEADDR {
        return TOUCHED;
    }
    harmless::index(level, name).map_or(ODD, |i| 1 << i)
}

/// Of each fresh socket: how often the process had forked when it was made, and the marks of the
/// options that were set. Made when it is first needed.
static FRESH: AtomicPtr<[AtomicU64; CAPACITY]> = AtomicPtr::new(core::ptr::null_mut());

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    // SAFETY: null, or memory of such an array, which is never freed.
    unsafe { FRESH.load(Acquire).as_ref() }?.get(fd as u32 as usize)
}

#[cold]
#[inline(never)]
fn make_words() {
    let bytes = size_of::<[AtomicU64; CAPACITY]>();
    let at = sys::map_private(bytes).cast::<[AtomicU64; CAPACITY]>();
    if !at.is_null() && FRESH.compare_exchange(core::ptr::null_mut(), at, AcqRel, Relaxed).is_err()
    {
        // SAFETY: mapped here, and nobody else knows it.
        unsafe { sys::unmap(at.cast(), bytes) };
    }
}

/// A socket has been made, with these flags.
#[cold]
#[inline(never)]
pub(crate) fn on_socket(fd: c_int, flags: c_int) {
    if FRESH.load(Acquire).is_null() {
        make_words();
    }
    let nonblock = if flags & libc::SOCK_NONBLOCK != 0 { NONBLOCK } else { 0 };
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 { CLOEXEC } else { 0 };
    if let Some(word) = word(fd) {
        let marks = SEEN | nonblock | cloexec;
        word.store(u64::from(process::forks()) << 32 | u64::from(marks), Relaxed);
    }
}

/// An option of a fresh socket was set.
pub(crate) fn mark_fresh(fd: c_int, mark: u32) {
    if let Some(word) = word(fd) {
        word.fetch_or(u64::from(mark), Relaxed);
    }
}

/// A flag of a fresh socket's was set, or taken away.
#[cold]
#[inline(never)]
pub(crate) fn note_flag(fd: c_int, flag: u32, is_set: bool) {
    if let Some(word) = word(fd) {
        let flag = u64::from(flag);
        let _ = if is_set { word.fetch_or(flag, Relaxed) } else { word.fetch_and(!flag, Relaxed) };
    }
}

/// Not an option: its connection is to be agreed on, and its connect waits for that.
pub(crate) const WAITS_FOR: u32 = 1 << 30;
/// The same, and it does not wait.
pub(crate) const SEEKS: u32 = 1 << 28;

/// Nor this: the socket was made when it was known that all this is on, and what was set since is
/// marked. (Of one that is older nothing is known.)
const SEEN: u32 = 1 << 27;

/// Nor this: something was done to it that its connection does not have, but the socket does.
pub(crate) const TOUCHED: u32 = 1 << 24;

/// Nor these: how its descriptor is.
pub(crate) const NONBLOCK: u32 = 1 << 26;
pub(crate) const CLOEXEC: u32 = 1 << 25;

/// What is no option.
const OTHERS: u32 = WAITS_FOR | SEEKS | SEEN | TOUCHED | NONBLOCK | CLOEXEC;

/// Which of both is so of a socket that has been connected: once.
pub(crate) fn take_seeks(fd: c_int) -> u32 {
    const BOTH: u32 = WAITS_FOR | SEEKS;
    let Some(word) = word(fd) else { return 0 };
    if word.load(Relaxed) as u32 & BOTH == 0 {
        return 0;
    }
    word.fetch_and(!u64::from(BOTH), Relaxed) as u32 & BOTH
}

/// What is marked of a socket that connects, for its connection; that and [`ODD`] where not all is
/// known.
pub(crate) fn marks_of_connecting(fd: c_int) -> u32 {
    let Some(word) = word(fd).map(|w| w.load(Relaxed)) else { return ODD };
    let odd = if is_own(word) { 0 } else { ODD };
    word as u32 & !OTHERS | odd
}

/// All is known of it, and no other process has it.
fn is_own(word: u64) -> bool {
    word as u32 & SEEN != 0 && (word >> 32) as u32 == process::forks()
}

/// The marks of a fresh socket that this process has alone, with those of its descriptor. `None`:
/// of any other.
pub(crate) fn fresh(fd: c_int) -> Option<u32> {
    let word = word(fd)?.load(Relaxed);
    (is_own(word) && word as u32 & ODD == 0).then_some(word as u32)
}

/// Whether the socket is as it was made.
pub(crate) fn is_untouched(marks: u32) -> bool {
    options_of(marks) | marks & TOUCHED == 0
}

/// Which of those are options.
pub(crate) fn options_of(marks: u32) -> u32 {
    marks & !OTHERS
}
