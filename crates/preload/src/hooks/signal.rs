//! The dispositions of signals, whose handlers the library shares with the application
//! (`docs/adr/0012-bad-addresses.md`, `docs/design/signals.md`).
//!
//! libc sets what the application asks for; then the core puts its handler in front again. Where
//! libc tells the handler of before, and that is the core's, the application sees its own.

use libc::{c_int, sigaction as Action, sighandler_t};
use netacc_core::api;

/// x86's: a function to return by stands in the structure.
const SA_RESTORER: usize = 0x0400_0000;

/// The one body of `sigaction` and its alias.
macro_rules! sigaction {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(signal: c_int, new: *const Action, old: *mut Action) -> c_int |next| {
                let counted = !new.is_null() && api::before_disposition(signal);
                let result = next(signal, new, old);
                if result == 0 && !old.is_null() {
                    show(signal, old);
                }
                if !new.is_null() {
                    api::after_disposition(signal, counted);
                }
                result
            }
        }
    };
}

sigaction! {
    /// `sigaction(2)`.
    fn sigaction
}
sigaction! {
    /// libc's older public name of `sigaction`.
    unchecked fn __sigaction
}

/// # Safety
/// libc has just filled `old`.
unsafe fn show(signal: c_int, old: *mut Action) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(theirs) = api::disposition(signal, (*old).sa_sigaction) {
            (*old).sa_sigaction = theirs.handler;
            (*old).sa_flags = theirs.flags as c_int;
            if !theirs.has_restorer {
                (*old).sa_restorer = None;
            }
        }
    }
}

/// After a raw rt_sigaction; `old` is the kernel's structure, or null.
///
/// # Safety
/// The kernel has just filled `old`.
pub(super) unsafe fn changed_raw(signal: c_int, old: *mut usize) {
    if !old.is_null() {
        // The kernel's structure: handler, flags, restorer, mask.
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(theirs) = api::disposition(signal, *old) {
                *old = theirs.handler;
                *old.wrapping_add(1) = theirs.flags;
                if theirs.flags & SA_RESTORER == 0 {
                    *old.wrapping_add(2) = 0;
                }
            }
        }
    }
}

/// Calls that set a handler and return the one before.
macro_rules! sets_handler {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t |next| {
                let counted = api::before_disposition(signal);
                let before = next(signal, handler);
                let shown = api::disposition(signal, before).map_or(before, |theirs| theirs.handler);
                api::after_disposition(signal, counted);
                shown
            }
        }
    )*};
}

sets_handler! {
    /// `signal(2)`.
    signal;
    /// BSD's `signal`.
    bsd_signal;
    /// libc's own name of `signal`.
    ssignal;
    /// System V's `signal`.
    sysv_signal;
    /// libc's older public name of `sysv_signal`.
    __sysv_signal;
    /// System V's `sigset`.
    sigset;
}

hook! {
    /// System V's `sigignore`.
    unchecked fn sigignore(signal: c_int) -> c_int |next| {
        let counted = api::before_disposition(signal);
        let result = next(signal);
        api::after_disposition(signal, counted);
        result
    }
}
