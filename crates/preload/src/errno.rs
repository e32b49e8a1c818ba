//! The way from the core's results to libc's: a value, or -1 and `errno`.

use libc::c_int;

/// The core's result as libc reports it. `errno` is written on failure only.
#[inline(always)]
pub(crate) fn ret(result: isize) -> isize {
    if result < 0 { fail(result) } else { result }
}

/// As [`ret`], in a hook that is a cancellation point.
#[inline(always)]
pub(crate) fn ret_at_point(result: isize) -> isize {
    crate::hooks::cancel::point();
    ret(result)
}

#[cold]
#[inline(never)]
fn fail(result: isize) -> isize {
    // A hook that cannot call again tells the program of the signal.
    let restart = result == netacc_core::api::RESTART;
    set(if restart { libc::EINTR } else { result.wrapping_neg() as c_int });
    -1
}

/// The calling thread's `errno`.
pub(crate) fn get() -> c_int {
    // SAFETY: libc returns the address of the calling thread's errno, which is always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set(value: c_int) {
    // SAFETY: as in `get`.
    unsafe { *libc::__errno_location() = value }
}
