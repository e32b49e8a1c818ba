//! What a hook is given and what it gets: see [`crate::api`].

use core::ffi::{c_int, c_void};
use libc::sigset_t;

/// Result, `-errno`, or [`PASS`].
pub type Ret = isize;
/// "Not ours: call the next symbol."
pub const PASS: Ret = isize::MIN;
/// "A signal came: look whether the thread has been cancelled, then call again." Only after
/// [`crate::api::threads_are_cancelled`].
pub const RESTART: Ret = isize::MIN + 1;
/// "It has left its path since the call looked, and may be on another: begin anew." A hook never
/// gets it: [`crate::io`] looks at the state again.
pub(crate) const ANEW: Ret = isize::MIN + 2;

/// A signal mask to hold during a wait, as the `p` variants take it.
pub type Mask = *const sigset_t;

/// The few libc functions that the core must call as libc's (thread creation has no raw system call
/// twin).
#[derive(Clone, Copy, Debug)]
pub struct NextSymbols {
    /// `pthread_create(3)`.
    pub pthread_create: Option<
        unsafe extern "C" fn(
            *mut libc::pthread_t,
            *const libc::pthread_attr_t,
            extern "C" fn(*mut c_void) -> *mut c_void,
            *mut c_void,
        ) -> c_int,
    >,
    /// `pthread_attr_init(3)`, `pthread_attr_setdetachstate(3)` and friends are not needed: the
    /// thread detaches itself.
    pub pthread_detach: Option<unsafe extern "C" fn(libc::pthread_t) -> c_int>,
}
