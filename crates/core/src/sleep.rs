//! System calls that may sleep, in the application's place: a signal whose handler is to run ends
//! them, also in the moment before they begin ([`crate::signals::waiting`]).
//!
//! The calls for data return [`NOT_BEGUN`] where they are to begin (again) behind a handler; with
//! MSG_DONTWAIT they do not sleep. The waits return EINTR.

pub(crate) use crate::signals::NOT_BEGUN;
use crate::{signals, sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;
use libc::{epoll_event, msghdr, pollfd, sigset_t, timespec};

/// One system call: NOT_BEGUN where a handler is to run first.
macro_rules! wait {
    ($n:ident $(, $a:expr)*) => { wait!(@ libc::$n as i64; $($a as usize,)* 0, 0, 0, 0, 0, 0) };
    (@ $n:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(, $rest:expr)*) => {{
        #[cfg(test)]
        crate::testing::count_sleep($n);
        // SAFETY: each function below states or owns the validity of the pointers that it passes.
        unsafe { signals::waiting($n, $a, $b, $c, $d, $e, $f) }
    }};
}

/// Of a wait that is this library's own.
fn or_interrupted(r: isize) -> isize {
    if r == signals::NOT_BEGUN { -(libc::EINTR as isize) } else { r }
}

pub(crate) unsafe fn recvfrom(
    fd: c_int,
    buf: *mut u8,
    len: usize,
    flags: c_int,
    addr: *mut c_void,
    addr_len: *mut u32,
) -> isize {
    if flags & libc::MSG_DONTWAIT != 0 {
        // SAFETY: the caller's promise.
        return unsafe { sys::recvfrom(fd, buf, len, flags, addr, addr_len) };
    }
    wait!(SYS_recvfrom, fd, buf, len, flags, addr, addr_len)
}
pub(crate) unsafe fn sendto(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> isize {
    if flags & libc::MSG_DONTWAIT != 0 {
        // SAFETY: the caller's promise.
        return unsafe { sys::sendto(fd, buf, len, flags) };
    }
    wait!(SYS_sendto, fd, buf, len, flags, 0, 0)
}
pub(crate) unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> isize {
    if flags & libc::MSG_DONTWAIT != 0 {
        // SAFETY: the caller's promise.
        return unsafe { sys::recvmsg(fd, msg, flags) };
    }
    wait!(SYS_recvmsg, fd, msg, flags)
}
pub(crate) unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> isize {
    if flags & libc::MSG_DONTWAIT != 0 {
        // SAFETY: the caller's promise.
        return unsafe { sys::sendmsg(fd, msg, flags) };
    }
    wait!(SYS_sendmsg, fd, msg, flags)
}
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> isize {
    wait!(SYS_write, fd, bytes.as_ptr(), bytes.len())
}
pub(crate) fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> isize {
    wait!(SYS_sendfile, out, input, offset, count)
}
pub(crate) fn splice(
    input: c_int,
    input_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    len: usize,
    flags: u32,
) -> isize {
    wait!(SYS_splice, input, input_offset, out, out_offset, len, flags)
}

/// `epoll_pwait2` with nanoseconds (`< 0`: for ever); falls back to milliseconds, rounded up, where
/// the kernel lacks it.
pub(crate) unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: *const sigset_t,
) -> isize {
    if timeout_ns == 0 {
        // SAFETY: the caller's promise.
        return unsafe { sys::epoll_look(epfd, events, max, mask) };
    }
    if timeout_ns < 0 || timeout_ns % 1_000_000 == 0 {
        let ms =
            if timeout_ns < 0 { -1 } else { (timeout_ns / 1_000_000).min(i32::MAX as i64) as i32 };
        return or_interrupted(wait!(SYS_epoll_pwait, epfd, events, max, ms, mask, 8));
    }
    let ts = sys::to_timespec(timeout_ns);
    let r = wait!(SYS_epoll_pwait2, epfd, events, max, &ts as *const timespec, mask, 8);
    if r != -(libc::ENOSYS as isize) {
        return or_interrupted(r);
    }
    let ms = (timeout_ns.saturating_add(999_999) / 1_000_000).min(i32::MAX as i64) as i32;
    or_interrupted(wait!(SYS_epoll_pwait, epfd, events, max, ms, mask, 8))
}
pub(crate) unsafe fn ppoll(
    fds: *mut pollfd,
    count: usize,
    timeout_ns: i64,
    mask: *const sigset_t,
) -> isize {
    if timeout_ns == 0 {
        // SAFETY: the caller's promise.
        return unsafe { sys::poll_look(fds, count, mask) };
    }
    let mut ts = sys::to_timespec(timeout_ns.max(0));
    let ts_ptr = if timeout_ns < 0 { core::ptr::null_mut() } else { &mut ts as *mut timespec };
    or_interrupted(wait!(SYS_ppoll, fds, count, ts_ptr, mask, 8))
}
/// As [`sys::futex_wait`], of a call that ends where a handler is to run: EINTR.
pub(crate) fn futex_await(word: &AtomicU32, expect: u32, timeout_ns: i64) -> isize {
    let ts = sys::to_timespec(timeout_ns.max(0));
    let ts_ptr = if timeout_ns < 0 { core::ptr::null() } else { &ts as *const timespec };
    or_interrupted(wait!(SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expect, ts_ptr))
}
