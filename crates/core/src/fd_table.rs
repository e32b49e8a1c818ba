//! What each descriptor number means to us: one word per number, lock-free.
//!
//! An entry is 0 (not ours: the answer costs one load), or a kind and what belongs to it. It is
//! *not* the truth about the descriptor, only about what we saw through the hooks; every call that
//! yields a new number drops what is left over from a close that we did not see.

use crate::epoll::Epoll;
use crate::io_uring::Ring;
use crate::socket::{Socket, UNCONNECTED};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use netacc_control::stats::Reason;

/// Numbers beyond this are never ours (the kernel's default ceiling, `fs.nr_open`).
pub(crate) const CAPACITY: usize = 1 << 20;

// 8 MiB of zero pages, touched only where numbers are used.
static TABLE: [AtomicU64; CAPACITY] = [const { AtomicU64::new(0) }; CAPACITY];

/// The entries that the last fork counted. Private memory: a child has it as it was when it was
/// made.
static COUNTED: [AtomicU64; CAPACITY] = [const { AtomicU64::new(0) }; CAPACITY];

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

const KIND: u64 = 0b111;
const FRESH: u64 = 1;
const SOCKET: u64 = 2;
const EPOLL: u64 = 3;
const INTERNAL: u64 = 4;
const LISTENER: u64 = 5;
const RING: u64 = 6;
/// User addresses fit into 47 bits; bits 48-63 carry the object's generation.
const ADDRESS: u64 = (1 << 48) - 8;

/// Of a fresh socket's entry, above the kind: the reason, and the millisecond at which it began to
/// connect.
const REASON: u32 = 0xffff;
const BEGAN: u32 = 24;

/// A decoded entry.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Not ours.
    None,
    /// A stream socket that is neither connected nor listening; the reason why it must never be
    /// accelerated, or `Reason::None`.
    Fresh(u32),
    /// A connection.
    Socket(&'static Socket, u16),
    /// An epoll instance.
    Epoll(&'static Epoll),
    /// The library's own: the application must not see it.
    Internal,
    /// An io_uring that can be followed.
    Ring(&'static Ring),
    /// A listening stream socket; the reason as in `Fresh`, inherited by what it accepts.
    Listener(u32),
}

#[inline(always)]
fn word(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(fd as u32 as usize)
}

/// The raw word: 0 = not ours.
#[inline(always)]
pub(crate) fn raw(fd: c_int) -> u64 {
    match word(fd) {
        Some(w) => w.load(Acquire),
        None => 0,
    }
}

#[inline(always)]
pub(crate) fn decode(raw: u64) -> Entry {
    match raw & KIND {
        // SAFETY: entries of these kinds are only made from references to objects in type-stable
        // slabs, which are never unmapped; the generation is checked under the object's lock.
        SOCKET => Entry::Socket(unsafe { &*((raw & ADDRESS) as *const Socket) }, (raw >> 48) as _),
        // SAFETY: as above.
        EPOLL => Entry::Epoll(unsafe { &*((raw & ADDRESS) as *const Epoll) }),
        // SAFETY: as above.
        RING => Entry::Ring(unsafe { &*((raw & ADDRESS) as *const Ring) }),
        FRESH => Entry::Fresh((raw >> 8) as u32 & REASON),
        LISTENER => Entry::Listener((raw >> 8) as u32),
        INTERNAL => Entry::Internal,
        _ => Entry::None,
    }
}

/// What the table knows of `fd`. (A connection that its maker has closed since a fork is none of
/// the child's: its memory may serve another.)
#[inline(always)]
pub(crate) fn get(fd: c_int) -> Entry {
    let raw = raw(fd);
    if raw == 0 { Entry::None } else { current(decode(raw)) }
}

#[inline(always)]
fn current(entry: Entry) -> Entry {
    match entry {
        Entry::Socket(s, g) if s.generation16() != g => Entry::None,
        entry => entry,
    }
}

/// The socket behind `fd`, if it is one of ours.
#[inline(always)]
pub(crate) fn socket(fd: c_int) -> Option<(&'static Socket, u16)> {
    match get(fd) {
        Entry::Socket(s, g) => Some((s, g)),
        _ => None,
    }
}

pub(crate) fn encode(entry: Entry) -> u64 {
    match entry {
        Entry::None => 0,
        Entry::Fresh(reason) => FRESH | ((reason & REASON) as u64) << 8,
        Entry::Listener(reason) => LISTENER | (reason as u64) << 8,
        Entry::Socket(s, g) => SOCKET | (s as *const Socket as u64 & ADDRESS) | (g as u64) << 48,
        Entry::Epoll(e) => EPOLL | (e as *const Epoll as u64 & ADDRESS),
        Entry::Ring(r) => RING | (r as *const Ring as u64 & ADDRESS),
        Entry::Internal => INTERNAL,
    }
}

/// Sets the entry and returns what was there.
pub(crate) fn set(fd: c_int, entry: Entry) -> Entry {
    let Some(w) = word(fd) else { return Entry::None };
    let above = (fd as usize).saturating_add(1);
    let mark = if matches!(entry, Entry::Internal) { &INTERNAL_HIGH_WATER } else { &HIGH_WATER };
    if !matches!(entry, Entry::None | Entry::Internal) {
        crate::faults::arm();
    }
    if !matches!(entry, Entry::None) && mark.load(Relaxed) < above {
        mark.fetch_max(above, Relaxed);
    }
    decode(w.swap(encode(entry), AcqRel))
}

/// Takes the entry away if it still is `raw`; true for the one caller that did.
pub(crate) fn take(fd: c_int, raw: u64) -> bool {
    word(fd).is_some_and(|w| w.compare_exchange(raw, 0, AcqRel, Acquire).is_ok())
}

/// Puts `entry` in the place of `raw`; false if something else stands there.
pub(crate) fn replace(fd: c_int, raw: u64, entry: Entry) -> bool {
    word(fd).is_some_and(|w| w.compare_exchange(raw, encode(entry), AcqRel, Acquire).is_ok())
}

/// The kernel has just handed out this number for something else: whatever we knew of it is
/// history.
#[inline]
pub(crate) fn forget_stale(fd: c_int) {
    let raw = raw(fd);
    if raw != 0 {
        forget_stale_slow(fd, raw);
    }
}

#[cold]
#[inline(never)]
fn forget_stale_slow(fd: c_int, raw: u64) {
    if take(fd, raw) {
        match decode(raw) {
            Entry::Socket(s, g) => crate::lifecycle::closed_unseen(s, g),
            Entry::Epoll(e) => crate::epoll::on_close(e),
            Entry::Ring(ring) => crate::io_uring::on_close(ring),
            _ => {}
        }
    }
}

/// Marks a Fresh or Listener socket as never to be accelerated.
pub(crate) fn refuse(fd: c_int, why: Reason) {
    match get(fd) {
        Entry::Fresh(_) => drop(set(fd, Entry::Fresh(why as u32))),
        Entry::Listener(_) => drop(set(fd, Entry::Listener(why as u32))),
        Entry::Socket(s, _) if s.is(UNCONNECTED) => crate::socket::refuse(s, why),
        _ => {}
    }
}

/// A fresh socket may begin to connect at that moment (0: has not, after all). Another thread may
/// change its entry meanwhile: then not.
pub(crate) fn set_began(fd: c_int, ns: u64) {
    let (Some(w), old) = (word(fd), raw(fd)) else { return };
    match current(decode(old)) {
        entry @ Entry::Fresh(_) => drop(w.compare_exchange(
            old,
            encode(entry) | (ns / 1_000_000) << BEGAN,
            AcqRel,
            Relaxed,
        )),
        Entry::Socket(s, _) if s.is(UNCONNECTED) => s.syn.set_began(ns),
        _ => {}
    }
}

/// When a fresh socket began to connect, to the millisecond before; 0: not seen.
pub(crate) fn began(fd: c_int) -> u64 {
    let raw = raw(fd);
    match current(decode(raw)) {
        Entry::Fresh(_) => (raw >> BEGAN) * 1_000_000,
        Entry::Socket(s, _) if s.is(UNCONNECTED) => s.syn.began(),
        _ => 0,
    }
}

/// Closes one of the library's own.
pub(crate) fn close_internal(fd: c_int) {
    set(fd, Entry::None);
    let _ = sys::close(fd);
}

/// One above the highest number that ever had an entry, the library's own (which stand high) left
/// out.
static HIGH_WATER: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Where walks over the application's entries end.
pub(crate) fn high_water() -> usize {
    HIGH_WATER.load(Relaxed).min(CAPACITY)
}

/// Calls `f` for every entry of the application's, lowest number first.
pub(crate) fn for_each(f: impl FnMut(c_int, Entry)) {
    walk(0, high_water(), f)
}

/// As [`for_each`], then for the library's own.
pub(crate) fn for_each_all(mut f: impl FnMut(c_int, Entry)) {
    walk(0, high_water(), &mut f);
    walk(high_water(), INTERNAL_HIGH_WATER.load(Relaxed).min(CAPACITY), &mut f);
}

/// Calls `f` for every number of the library's own.
pub(crate) fn for_each_internal(mut f: impl FnMut(c_int)) {
    walk(0, INTERNAL_HIGH_WATER.load(Relaxed).min(CAPACITY), |fd, entry| {
        if matches!(entry, Entry::Internal) {
            f(fd);
        }
    });
}

static INTERNAL_HIGH_WATER: core::sync::atomic::AtomicUsize =
    core::sync::atomic::AtomicUsize::new(0);

fn walk(from: usize, to: usize, mut f: impl FnMut(c_int, Entry)) {
    for (fd, w) in TABLE.iter().enumerate().take(to).skip(from) {
        let raw = w.load(Acquire);
        if raw != 0 {
            f(fd as c_int, current(decode(raw)));
        }
    }
}
