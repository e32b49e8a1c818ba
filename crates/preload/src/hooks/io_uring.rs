//! io_uring, as far as it can be seen: a program that makes a ring through `syscall`.
//!
//! What the ring is told to do is written to shared memory and cannot be followed: reads, writes, even epoll_ctl (libuv). So
//! from the first ring on, all sockets of the process are the kernel's. Rings that liburing makes are not seen.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::c_int;
use netacc_control::stats::Reason;
use netacc_core::api;

static IN_USE: AtomicBool = AtomicBool::new(false);

/// The process has made a ring.
#[cold]
pub(super) fn on_ring() {
    IN_USE.store(true, Relaxed);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is written only.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    for fd in 0..c_int::try_from(limit.rlim_max).unwrap_or(c_int::MAX).min(1 << 20) {
        api::need_kernel(fd, Reason::IoUring);
    }
}

/// A new socket.
#[inline(always)]
pub(super) fn on_socket(fd: c_int) {
    if IN_USE.load(Relaxed) {
        api::need_kernel(fd, Reason::IoUring);
    }
}
