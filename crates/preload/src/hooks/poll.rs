//! poll, select and their variants.
//!
//! A timeout that the kernel would refuse is left to the kernel to refuse.

use super::time;
use crate::errno;
use core::ptr::null;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use netacc_core::api::{self, PASS};

hook! {
    /// `poll(2)`.
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int => api::poll(fds, count, time::from_ms(timeout), null());
}
hook! {
    /// libc's older public name of `poll`.
    unchecked fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int => api::poll(fds, count, time::from_ms(timeout), null());
}
hook! {
    /// `poll` with `_FORTIFY_SOURCE`; the next symbol aborts a program that would overflow its
    /// array.
    unchecked fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int
        => if fits(count, room) { api::poll(fds, count, time::from_ms(timeout), null()) } else { PASS };
}
hook! {
    /// `ppoll(2)`.
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
        => match time::from_timespec(timeout) {
            Some(timeout_ns) => api::poll(fds, count, timeout_ns, mask),
            None => PASS,
        };
}
hook! {
    /// `ppoll` with `_FORTIFY_SOURCE`.
    unchecked fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int
        => match time::from_timespec(timeout) {
            Some(timeout_ns) if fits(count, room) => api::poll(fds, count, timeout_ns, mask),
            _ => PASS,
        };
}

/// The one body of `select` and its alias.
macro_rules! select {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int |next| {
                let answer = select_or_pass(nfds, read, write, except, timeout);
                if answer == PASS {
                    return next(nfds, read, write, except, timeout);
                }
                errno::ret_at_point(answer) as c_int
            }
        }
    };
}

select! {
    /// `select(2)`.
    fn select
}
select! {
    /// libc's older public name of `select`.
    unchecked fn __select
}

hook! {
    /// `pselect(2)`; it leaves its timeout as it was.
    fn pselect(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int
        => match time::from_timespec(timeout) {
            Some(timeout_ns) => api::select(nfds, read, write, except, timeout_ns, mask, &mut 0),
            None => PASS,
        };
}

/// `select`, which writes what is left of the timeout back, as Linux does whatever the result.
///
/// # Safety
/// As for select(2).
pub(super) unsafe fn select_or_pass(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> api::Ret {
    // SAFETY: the caller's promise.
    let Some(timeout_ns) = (unsafe { time::from_timeval(timeout) }) else {
        return PASS;
    };
    let mut elapsed_ns = 0;
    // SAFETY: the caller's promise.
    let answer =
        unsafe { api::select(nfds, read, write, except, timeout_ns, null(), &mut elapsed_ns) };
    if answer != PASS && !timeout.is_null() {
        // The kernel does not mind one that cannot be written either.
        // SAFETY: the caller's promise.
        unsafe { api::put_at(timeout, time::to_timeval(timeout_ns, elapsed_ns)) };
    }
    answer
}

fn fits(count: nfds_t, room: size_t) -> bool {
    (count as usize).checked_mul(size_of::<pollfd>()).is_some_and(|size| size <= room)
}
