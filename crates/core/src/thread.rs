//! Threads of the library's own.

use crate::{inject, process, sys};
use core::ffi::c_void;

/// Starts a detached thread with every signal blocked, from its first instruction on.
pub(crate) fn spawn(
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> bool {
    let Some(next) = process::next_symbols() else { return false };
    let (Some(create), Some(detach)) = (next.pthread_create, next.pthread_detach) else {
        return false;
    };
    if inject::call().is_some() {
        return false;
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
    made
}
