//! `pthread_cancel`, for threads that wait inside the core.
//!
//! libc acts on a deferred cancellation around its own system calls. The core's are not libc's: a
//! thread that sleeps there would sleep on, and one that always finds data would never notice. So
//! once a program has cancelled a thread, each hook that is a cancellation point looks for a
//! request when it has the core's answer, and whoever cancels a thread interrupts its system call.
//! Programs that cancel nothing pay one load, on accelerated sockets only.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::{c_int, clockid_t, pthread_t};
use netacc_core::api;

/// True once any thread has been cancelled.
static REQUESTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    // Declared without unwinding on purpose: see the hook! macro.
    fn pthread_testcancel();
}

/// Ends the thread if it has been cancelled. Also where the core answers RESTART: a call that the
/// kernel would have restarted.
#[inline(always)]
pub(crate) fn point() {
    if REQUESTED.load(Relaxed) {
        api::hears_of_cancellation();
        // SAFETY: no frame between here and the application holds anything that needs dropping.
        unsafe { pthread_testcancel() };
    }
}

hook! {
    /// `pthread_cancel(3)`.
    fn pthread_cancel(thread: pthread_t) -> c_int |next| {
        REQUESTED.store(true, Relaxed);
        api::threads_are_cancelled();
        api::before_cancel(&mut |other| _ = next(other));
        let result = next(thread);
        if result == 0 && thread != libc::pthread_self() {
            interrupt(thread);
        }
        result
    }
}

/// `bits/pthread.h`; not in the libc crate.
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

hook! {
    /// `pthread_setcancelstate(3)`.
    unchecked fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int |next| {
        if state != PTHREAD_CANCEL_DISABLE && old.is_null() && api::puts_off_cancellation(next) {
            return 0;
        }
        let result = next(state, old);
        if result == 0 {
            api::may_be_cancelled(state != PTHREAD_CANCEL_DISABLE);
        }
        result
    }
}
hook! {
    /// `pthread_setcanceltype(3)`.
    unchecked fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int |next| {
        let anywhere = kind == PTHREAD_CANCEL_ASYNCHRONOUS;
        if anywhere {
            // Before: it may be cancelled already.
            api::ends_anywhere(true);
        }
        let result = next(kind, old);
        if result == 0 && !anywhere {
            api::ends_anywhere(false);
        }
        result
    }
}

/// Makes a system call that the thread sleeps in, or is about to, return EINTR, by libc's own
/// cancellation signal, whose handler does nothing in a thread that is to be cancelled later.
fn interrupt(thread: pthread_t) {
    let mut clock: clockid_t = 0;
    // SAFETY: the thread exists, for it has just been cancelled; `clock` is written only.
    if unsafe { libc::pthread_getcpuclockid(thread, &mut clock) } != 0 {
        return;
    }
    // A thread's clock is its id, negated, above three bits of kind (clock_getcpuclockid in the
    // kernel's posix-timers.h).
    let thread_id = !(clock >> 3);
    if let Some(signal) = api::interrupts_cancelled() {
        // SAFETY: a signal with a handler that expects it.
        unsafe {
            let process = crate::raw::call(libc::SYS_getpid, [0; 6]);
            crate::raw::call(
                libc::SYS_tgkill,
                [process as usize, thread_id as usize, signal as usize, 0, 0, 0],
            );
        }
    }
}
