//! What becomes ready: epoll, poll and select.

use crate::outcome::{Mask, Ret};
use crate::signals::held;
use crate::sys;
use core::ffi::c_int;
use libc::{epoll_event, pollfd};

/// `epoll_create*` returned `fd`.
pub fn on_epoll_create(fd: c_int) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::epoll::on_create(fd)
    })
}
/// `epoll_ctl`.
///
/// # Safety
/// As for epoll_ctl(2).
#[inline]
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::epoll::ctl(epfd, op, fd, event) }
}
pub use crate::epoll::Counted;
/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`. `timeout_ns` < 0 waits for ever. `PASS`: the set
/// holds nothing of ours: the hook calls the next symbol and then [`on_epoll_wait`] with its
/// result.
///
/// # Safety
/// As for epoll_wait(2).
#[inline]
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: Mask,
    counted: &mut Counted,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::epoll::wait(epfd, events, max, timeout_ns, mask, counted) }
}
/// The next symbol's `epoll_wait` returned `n` > 0 events: the set may have come to hold sockets of
/// ours while the thread slept. Returns the number of events that are the application's; when it is
/// 0 the hook calls [`epoll_wait`] again with what is left of the timeout.
///
/// # Safety
/// `events` holds `n` events, and has room for `max`.
#[inline]
pub unsafe fn on_epoll_wait(epfd: c_int, events: *mut epoll_event, n: c_int, max: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { crate::epoll::on_wait(epfd, events, n, max) }
}
/// `poll`, `ppoll`, `__poll_chk`, `__ppoll_chk`. `timeout_ns` < 0 waits for ever.
///
/// # Safety
/// As for poll(2).
pub unsafe fn poll(fds: *mut pollfd, count: u64, timeout_ns: i64, mask: Mask) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::poll::poll(fds, count, timeout_ns, mask) }
}
/// `select`, `pselect`. The sets are the caller's and are rewritten as select(2) does; the hook of
/// `select` updates the caller's timeval from the elapsed time that `elapsed_ns` receives.
///
/// # Safety
/// As for select(2).
pub unsafe fn select(
    nfds: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout_ns: i64,
    mask: Mask,
    elapsed_ns: &mut i64,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::poll::select(nfds, read, write, except, timeout_ns, mask, elapsed_ns) }
}

/// Monotonic nanoseconds, for hooks that must compute what is left of a timeout.
pub fn now_ns() -> u64 {
    sys::now_ns()
}
