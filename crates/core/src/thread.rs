//! Threads of the library's own: how one is started. Which there are, who starts each and what it
//! does is a table in ARCHITECTURE.md.

use crate::{inject, process, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Starts a detached thread with every signal blocked, from its first instruction on.
pub(crate) fn spawn(
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> bool {
    make(body, argument).is_some()
}

fn make(
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Option<libc::pthread_t> {
    let next = process::next_symbols()?;
    let (create, detach) = (next.pthread_create?, next.pthread_detach?);
    if inject::call().is_some() {
        return None;
    }
    let mut thread: libc::pthread_t = 0;
    let signals = sys::hold_signals();
    // SAFETY: pthread_create(3) with default attributes; `body` takes the argument as it is.
    let made = unsafe { create(&mut thread, core::ptr::null(), body, argument) } == 0;
    if made {
        // SAFETY: the thread was just made and is joined by nobody.
        let _ = unsafe { detach(thread) };
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
    extern "C" fn run(state: *mut c_void) -> *mut c_void {
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
