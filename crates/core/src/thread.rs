//! Threads of the library's own: how one is started. Which there are, who starts each and what it
//! does is a table in ARCHITECTURE.md.

use crate::{inject, process, sys};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// How many are being made, and have not begun.
static STARTING: AtomicU32 = AtomicU32::new(0);
/// A child is put off for them so long at most: the machine may be that busy.
const AWAITED_NS: i64 = 1_000_000_000;

/// Starts a detached thread with every signal blocked, from its first instruction on. `body` is the
/// name of a function.
pub(crate) fn spawn<B: Fn(*mut c_void) -> *mut c_void + Copy>(
    body: B,
    argument: *mut c_void,
) -> bool {
    make(body, argument).is_some()
}

/// Waits until each thread that was started runs. A child that the program makes by a system call
/// of its own has libc's list of threads as it stood. If one of them has not begun there, it never
/// does, and setuid(3) or setgroups(3) in that child waits for it for ever. (fork(3) clears the
/// list, _Fork does not.)
pub(crate) fn await_begun() {
    let (mut left, mut since) = (AWAITED_NS, None);
    loop {
        let starting = STARTING.load(Acquire);
        if starting == 0 {
            return;
        }
        if left <= 0 {
            // Given up. (A child of a raw clone may have the count, and not the thread.)
            let _ = STARTING.compare_exchange(starting, 0, Relaxed, Relaxed);
            return;
        }
        let since = *since.get_or_insert_with(sys::now_ns);
        sys::futex_wait(&STARTING, starting, left, true);
        left = AWAITED_NS - sys::now_ns().saturating_sub(since) as i64;
    }
}

/// In a forked child, which has none of them.
pub(crate) fn forget_starting() {
    STARTING.store(0, Relaxed);
}

fn has_begun() {
    // (It may have been given up meanwhile.)
    let before = STARTING.fetch_update(Release, Relaxed, |starting| starting.checked_sub(1));
    if before == Ok(1) {
        sys::futex_wake(&STARTING, i32::MAX, true);
    }
}

extern "C" fn begin<B: Fn(*mut c_void) -> *mut c_void + Copy>(
    argument: *mut c_void,
) -> *mut c_void {
    const { assert!(size_of::<B>() == 0, "the name of a function") };
    has_begun();
    // SAFETY: a `B` has no bytes: it is at any address that is aligned for it.
    let body = unsafe { NonNull::<B>::dangling().as_ref() };
    body(argument)
}

fn make<B: Fn(*mut c_void) -> *mut c_void + Copy>(
    _body: B,
    argument: *mut c_void,
) -> Option<libc::pthread_t> {
    let next = process::next_symbols()?;
    let (create, detach) = (next.pthread_create?, next.pthread_detach?);
    if inject::call().is_some() {
        return None;
    }
    let mut thread: libc::pthread_t = 0;
    let signals = sys::hold_signals();
    // (No handler of this thread's can come to wait for what it is about to make.)
    STARTING.fetch_add(1, Relaxed);
    // SAFETY: pthread_create(3) with default attributes; `B` takes the argument as it is.
    let made = unsafe { create(&mut thread, core::ptr::null(), begin::<B>, argument) } == 0;
    if made {
        // SAFETY: the thread was just made and is joined by nobody.
        let _ = unsafe { detach(thread) };
    } else {
        has_begun();
    }
    sys::restore_signals(signals);
    made.then_some(thread)
}

/// Calls `f` with a thread that does nothing, and ends when `f` has returned. Without one, not at
/// all.
pub(crate) fn with_thread(f: &mut dyn FnMut(libc::pthread_t)) {
    const WAITS: u32 = 0;
    const ENDS: u32 = 1;
    const IS_OVER: u32 = 2;
    fn run(state: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's, who waits until this is over.
        let state = unsafe { &*state.cast::<AtomicU32>() };
        while state.load(Acquire) == WAITS {
            sys::futex_wait(state, WAITS, 1_000_000_000, true);
        }
        state.store(IS_OVER, Release);
        core::ptr::null_mut()
    }
    let state = AtomicU32::new(WAITS);
    let signals = sys::hold_signals();
    if let Some(thread) = make(run, (&raw const state).cast_mut().cast()) {
        f(thread);
        state.store(ENDS, Release);
        sys::futex_wake(&state, 1, true);
        while state.load(Acquire) != IS_OVER {
            sys::sched_yield();
        }
    }
    sys::restore_signals(signals);
}
