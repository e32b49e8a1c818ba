//! The thread "netacc-rdma" (`remote`), as data calls and waits know it: whether it runs, its bell,
//! and what it is to look at when it has been rung for.

use crate::{process, sys};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// The process that the thread runs in; 0: none.
pub(crate) static RUNNING: AtomicU32 = AtomicU32::new(0);
pub(crate) static BELL: AtomicI32 = AtomicI32::new(-1);
/// The thread has not heard the bell yet.
pub(crate) static RUNG: AtomicBool = AtomicBool::new(false);

/// This process has, or had, connections to other hosts that can be accelerated.
pub(crate) fn is_running() -> bool {
    RUNNING.load(Acquire) == process::id()
}

/// Wakes the thread.
pub(crate) fn ring() {
    if is_running() && !RUNG.swap(true, SeqCst) {
        let _ = sys::write(BELL.load(Acquire), &1u64.to_ne_bytes());
    }
}

// ---- pairs --------------------------------------------------------------------------------------

/// A pair has something to tell the thread.
pub(crate) static PAIR_NEWS: AtomicBool = AtomicBool::new(false);

/// The thread is to look at the pairs.
pub(crate) fn tell_of_pairs() {
    PAIR_NEWS.store(true, SeqCst);
    ring();
}

/// Whether any pair has had news since the last question.
pub(crate) fn take_pair_news() -> bool {
    PAIR_NEWS.swap(false, SeqCst)
}

// ---- connections that leave ---------------------------------------------------------------------

/// Connections that are to go back to their carriers; a futex.
pub(crate) static LEAVING: AtomicU32 = AtomicU32::new(0);

/// One more is to leave.
pub(crate) fn count_leaving() {
    LEAVING.fetch_add(1, SeqCst);
}

/// One that was asked to has left, or needs not any more.
pub(crate) fn uncount_leaving() {
    LEAVING.fetch_sub(1, SeqCst);
    sys::futex_wake(&LEAVING, i32::MAX, true);
}

// ---- what nobody reads --------------------------------------------------------------------------

/// How long bytes lie before the thread looks whether they are read.
const LOOK_NS: u64 = 1_000_000_000;
/// The thread looks within that time.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// When it is to look, as long as it does not know; 0: it does.
static WATCH_AT: AtomicU64 = AtomicU64::new(0);

/// Bytes have come from another host: one load, nearly always.
#[inline]
pub(crate) fn watch_unread() {
    if !WATCHED.load(Relaxed) {
        begin_to_watch();
    }
}

#[cold]
#[inline(never)]
fn begin_to_watch() {
    if !WATCHED.swap(true, SeqCst) {
        WATCH_AT.store(sys::now_ns().saturating_add(LOOK_NS), SeqCst);
        ring();
    }
}

/// The thread: when to look, if it does not know that yet; 0: it does.
pub(crate) fn take_watch_at() -> u64 {
    WATCH_AT.swap(0, SeqCst)
}

/// The thread begins to look; what comes from here on is looked at again.
pub(crate) fn begin_look() {
    WATCHED.store(false, SeqCst);
}

/// The thread has found what is worth another look. Returns when; 0: it will be told.
pub(crate) fn look_again() -> u64 {
    if WATCHED.swap(true, SeqCst) { 0 } else { sys::now_ns().saturating_add(LOOK_NS) }
}

// ---- fork ---------------------------------------------------------------------------------------

/// In a forked child there is no such thread, and nothing for one to do. Returns the parent's bell,
/// if there is one.
pub(crate) fn forget() -> Option<i32> {
    WATCHED.store(false, Relaxed);
    WATCH_AT.store(0, Relaxed);
    LEAVING.store(0, Relaxed);
    RUNNING.store(0, Release);
    let bell = BELL.swap(-1, AcqRel);
    (bell >= 0).then_some(bell)
}
