//! Timeouts: libc's three forms in nanoseconds, as the core takes them.

use libc::{c_int, timespec, timeval};
use netacc_core::api;

/// "For ever."
pub(super) const FOREVER: i64 = -1;

/// Milliseconds, negative for ever (poll, epoll_wait).
#[inline(always)]
pub(super) fn from_ms(timeout: c_int) -> i64 {
    if timeout < 0 { FOREVER } else { i64::from(timeout).wrapping_mul(1_000_000) }
}

/// A timespec, null for ever. `None`: the kernel refuses it, or nothing of ours is open, so that it
/// need not be looked at.
///
/// # Safety
/// `timeout` is the application's.
pub(super) unsafe fn from_timespec(timeout: *const timespec) -> Option<i64> {
    if timeout.is_null() {
        return Some(FOREVER);
    }
    // SAFETY: the application's, whatever it is.
    let timespec { tv_sec, tv_nsec, .. } = unsafe { api::peek_at(timeout) }?;
    match tv_sec >= 0 && (0..1_000_000_000).contains(&tv_nsec) {
        true => Some(tv_sec.saturating_mul(1_000_000_000).saturating_add(tv_nsec)),
        false => None,
    }
}

/// A timeval, null for ever; more than a million microseconds are allowed. `None`: as in
/// [`from_timespec`].
///
/// # Safety
/// `timeout` is the application's.
pub(super) unsafe fn from_timeval(timeout: *const timeval) -> Option<i64> {
    if timeout.is_null() {
        return Some(FOREVER);
    }
    // SAFETY: the application's, whatever it is.
    let timeval { tv_sec, tv_usec } = unsafe { api::peek_at(timeout) }?;
    match tv_sec >= 0 && tv_usec >= 0 {
        true => {
            Some(tv_sec.saturating_mul(1_000_000_000).saturating_add(tv_usec.saturating_mul(1000)))
        }
        false => None,
    }
}

/// What is left of a timeout after `elapsed_ns`.
pub(super) fn to_timeval(timeout_ns: i64, elapsed_ns: i64) -> timeval {
    let left = timeout_ns.saturating_sub(elapsed_ns).max(0);
    timeval { tv_sec: left / 1_000_000_000, tv_usec: left % 1_000_000_000 / 1000 }
}

/// A time that is not negative, as a timespec.
pub(super) fn to_timespec(time_ns: i64) -> timespec {
    timespec { tv_sec: time_ns / 1_000_000_000, tv_nsec: time_ns % 1_000_000_000 }
}
