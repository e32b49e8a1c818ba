//! `pthread_cancel`, for threads that wait inside the core.
//!
//! libc acts on a deferred cancellation around its own system calls. The core's are not libc's: a
//! thread that sleeps there would sleep on, and one that always finds data would never notice. So
//! once a program has cancelled a thread, each hook that is a cancellation point looks for a
//! request when it has the core's answer, and whoever cancels a thread interrupts its system call.
//! Programs that cancel nothing pay one load, on accelerated sockets only.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::{c_int, clockid_t, pthread_t};

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
        // SAFETY: no frame between here and the application holds anything that needs dropping.
        unsafe { pthread_testcancel() };
    }
}

hook! {
    /// `pthread_cancel(3)`.
    fn pthread_cancel(thread: pthread_t) -> c_int |next| {
        REQUESTED.store(true, Relaxed);
        netacc_core::api::threads_are_cancelled();
        let result = next(thread);
        if result == 0 && thread != libc::pthread_self() {
            interrupt(thread);
        }
        result
    }
}

/// Makes a system call that the thread sleeps in return EINTR, by libc's own cancellation signal,
/// whose handler does nothing in a thread that is to be cancelled later.
fn interrupt(thread: pthread_t) {
    /// libc's SIGCANCEL, which its public interface hides.
    const SIGCANCEL: usize = 32;
    let mut clock: clockid_t = 0;
    // SAFETY: the thread exists, for it has just been cancelled; `clock` is written only.
    if unsafe { libc::pthread_getcpuclockid(thread, &mut clock) } != 0 {
        return;
    }
    // A thread's clock is its id, negated, above three bits of kind (clock_getcpuclockid in the
    // kernel's posix-timers.h).
    let thread_id = !(clock >> 3);
    let mut action = [0usize; 4];
    // SAFETY: a rt_sigaction that only reads, into room for the kernel's struct; without libc's
    // handler the signal would kill.
    let read = unsafe {
        crate::raw::call(
            libc::SYS_rt_sigaction,
            [SIGCANCEL, 0, action.as_mut_ptr() as usize, 8, 0, 0],
        )
    };
    // libc installs it once, with SA_RESTART: a receive would be restarted by the kernel.
    if let [handler, flags, ..] = &mut action
        && read == 0
        && *handler > 1
        && *flags & libc::SA_RESTART as usize != 0
    {
        *flags &= !(libc::SA_RESTART as usize);
        // SAFETY: the action that was just read, but for one flag.
        unsafe {
            crate::raw::call(
                libc::SYS_rt_sigaction,
                [SIGCANCEL, action.as_ptr() as usize, 0, 8, 0, 0],
            )
        };
    }
    if read == 0 && action.first().is_some_and(|handler| *handler > 1) {
        // SAFETY: a signal with a handler that expects it.
        unsafe {
            let process = crate::raw::call(libc::SYS_getpid, [0; 6]);
            crate::raw::call(
                libc::SYS_tgkill,
                [process as usize, thread_id as usize, SIGCANCEL, 0, 0, 0],
            );
        }
    }
}
