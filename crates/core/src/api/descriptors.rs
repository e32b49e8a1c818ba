//! Descriptors: made, connected, closed, duplicated, set up.

use crate::outcome::{RESTART, Ret};
use crate::signals::{self, held};
use core::ffi::{c_int, c_void};
use libc::{sockaddr, socklen_t};

/// A call that takes the lowest free number, or a number of the caller's choice, is about to be
/// made: the library's own descriptors, which are on such a number for a moment when they are made,
/// are out of the way until [`after_number`]. Async-signal-safe.
#[inline]
pub fn before_number() -> u32 {
    crate::numbers::enter()
}
/// The call has returned; `ticket` is what [`before_number`] gave. A thread that never comes here
/// costs the library a millisecond, once.
#[inline]
pub fn after_number(ticket: u32) {
    crate::numbers::leave(ticket)
}
/// As [`before_number`], of the kernel's `accept`: for [`after_accept`]. It may block for ever.
#[inline]
pub fn before_accept() -> u32 {
    crate::numbers::enter_accept()
}
/// As [`after_number`], of the kernel's `accept`.
#[inline]
pub fn after_accept(ticket: u32) {
    crate::numbers::leave_accept(ticket)
}

/// Any call that returned a new descriptor which is not a socket of ours (open, pipe, eventfd,
/// memfd_create, signalfd, timerfd, inotify, socketpair, recvmsg's SCM_RIGHTS...):
/// drops what the table may still hold for that number.
#[inline]
pub fn on_new_fd(fd: c_int) {
    crate::lifecycle::forget_stale(fd)
}
/// pidfd_getfd returned `fd`, which may be one more name of a socket of this process's.
pub fn on_taken_fd(fd: c_int) {
    held(|| crate::lifecycle::on_taken_fd(fd))
}
/// libc is about to close this number by a private call: as [`on_new_fd`], before it.
pub fn before_private_close(fd: c_int) {
    held(|| crate::lifecycle::before_private_close(fd))
}
/// `socket` succeeded.
pub fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::establish::on_socket(fd, domain, ty, protocol)
    })
}
/// Whether a socket may be there that serves once more: [`prepared_socket`] is asked then.
#[inline]
pub fn has_prepared_sockets() -> bool {
    crate::fast_connect::has_prepared()
}
/// `socket`, of one that was made before. `None`: the hook calls the next symbol, and then
/// [`on_socket`].
pub fn prepared_socket(domain: c_int, ty: c_int, protocol: c_int) -> Option<c_int> {
    held(|| {
        let fd = crate::establish::prepared(domain, ty, protocol)?;
        crate::lifecycle::forget_stale(fd);
        crate::establish::on_socket(fd, domain, ty, protocol);
        Some(fd)
    })
}
/// `listen` is about to be called.
pub fn before_listen(fd: c_int) {
    held(|| crate::establish::before_listen(fd))
}
/// `listen` succeeded.
pub fn on_listen(fd: c_int) {
    held(|| crate::establish::on_listen(fd))
}
/// `accept`/`accept4` with these flags on `listener` returned `fd`, and wrote the peer's address.
///
/// # Safety
/// `addr` and `len` are the caller's, as for accept(2).
pub unsafe fn on_accept(
    listener: c_int,
    fd: c_int,
    addr: *const sockaddr,
    len: *const socklen_t,
    flags: c_int,
) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        // SAFETY: the caller's promise.
        unsafe { crate::establish::on_accept(listener, fd, (addr, len), flags) }
    })
}
/// Whether any listener gives out more than the kernel's connections: [`accept`] is asked then.
#[inline]
pub fn gives_out_more() -> bool {
    crate::fast_connect::may_have_listeners()
}
/// `accept4`, or `accept` with no flags. `PASS` lets the hook call the next symbol and then
/// [`on_accept`].
///
/// # Safety
/// As for accept4(2).
pub unsafe fn accept(
    listener: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Ret {
    let peer = crate::establish::Peer { addr, len };
    loop {
        let section = signals::enter();
        // SAFETY: the caller's promise.
        let r = unsafe {
            crate::establish::accept(listener, peer, flags, crate::lifecycle::forget_stale)
        };
        // (Behind a handler that the kernel restarts a call of.)
        let nested = signals::leave(section);
        if r != RESTART || nested || crate::process::threads_are_cancelled() {
            return r;
        }
    }
}
/// `connect`. `PASS` lets the hook call the next symbol and then [`on_connect`].
///
/// # Safety
/// `addr` is the caller's, as for connect(2).
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::establish::before_connect(fd, addr, len) })
}
/// The next symbol's `connect` returned `result` (0 or `-errno`; EINPROGRESS and EISCONN included).
///
/// # Safety
/// As [`connect`].
pub unsafe fn on_connect(fd: c_int, addr: *const sockaddr, len: socklen_t, result: c_int) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::establish::on_connect(fd, addr, len, result) })
}
/// `close`.
#[inline]
pub fn close(fd: c_int) -> Ret {
    crate::lifecycle::close(fd)
}
/// `close`, where no next symbol is asked. Never passes.
#[inline]
pub fn close_by_syscall(fd: c_int) -> Ret {
    crate::lifecycle::close_by_syscall(fd)
}
/// Whether one of the library's own descriptors stands on that number. Behind [`before_number`] it
/// stays so: who waited there may have been answered before it was made.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    crate::lifecycle::is_own(fd)
}
/// `close_range` (all flags). Never passes: our own descriptors are left out by splitting the
/// range.
pub fn close_range(first: u32, last: u32, flags: u32) -> Ret {
    held(|| crate::lifecycle::close_range(first, last, flags))
}
/// `closefrom`.
pub fn closefrom(low: c_int) {
    let _ = held(|| crate::lifecycle::close_range(low.max(0) as u32, u32::MAX, 0));
}
/// `dup`.
pub fn dup(fd: c_int) -> Ret {
    held(|| crate::lifecycle::dup(fd))
}
/// `dup2` (`flags` = -1) and `dup3`.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> Ret {
    held(|| crate::lifecycle::dup3(old, new, flags))
}
/// `fcntl`/`fcntl64`.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> Ret {
    held(|| crate::lifecycle::fcntl(fd, cmd, arg))
}
/// A command of `fcntl` about record locks that goes beyond the program's part of a descriptor: the
/// lock to ask the kernel for instead.
///
/// # Safety
/// `arg` is the caller's, as for fcntl(2).
pub unsafe fn own_lock(fd: c_int, cmd: c_int, arg: usize) -> Option<libc::flock> {
    if !crate::adoption::locks::are_meant(cmd) {
        return None;
    }
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::adoption::locks::own_part(fd, arg) })
}
/// What the kernel has said of that. 0, or EFAULT.
///
/// # Safety
/// As for [`own_lock`].
pub unsafe fn on_own_lock(arg: usize, said: libc::flock) -> Ret {
    // SAFETY: the caller's promise.
    let told = held(|| unsafe { crate::adoption::locks::tell(arg, said) });
    if told { 0 } else { -(libc::EFAULT as Ret) }
}
/// `ioctl`.
///
/// # Safety
/// `arg` is the caller's, as for ioctl(2).
pub unsafe fn ioctl(fd: c_int, request: usize, arg: usize) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::ioctl(fd, request, arg) })
}
/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Ret {
    held(|| crate::io::shutdown_of(fd, how))
}
/// `setsockopt`: looked at before it is passed on (the hook calls the next symbol, then
/// [`on_setsockopt`] if that succeeded).
///
/// # Safety
/// `value` is the caller's, as for setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::setsockopt(fd, level, name, value, len) })
}
/// The next symbol's `setsockopt` succeeded.
///
/// # Safety
/// As [`setsockopt`].
pub unsafe fn on_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::on_setsockopt(fd, level, name, value, len) })
}
/// `getsockopt` is about to be called: what only the library has had the kernel keep is not there
/// for the application. `PASS`: it is called. Otherwise the library has answered.
///
/// # Safety
/// `value` and `len` are the caller's, as for getsockopt(2).
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::getsockopt(fd, level, name, value, len) })
}
/// The next symbol's `getsockopt` succeeded: what the library itself has set is taken out of the
/// answer.
///
/// # Safety
/// `value` and `len` are the caller's, as for getsockopt(2).
pub unsafe fn on_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *const socklen_t,
) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::on_getsockopt(fd, level, name, value, len) })
}
/// The socket behind `fd` is about to be used in a way that only the kernel can carry: `fdopen`,
/// `io_uring`...: back to the kernel's path, for good, before this returns.
pub fn need_kernel(fd: c_int, why: netacc_control::stats::Reason) {
    held(|| crate::io::need_kernel(fd, why))
}
/// The same, and where bytes are left that the kernel could not read the connection is broken off.
pub fn need_kernel_whole(fd: c_int, why: netacc_control::stats::Reason) {
    held(|| {
        crate::io::need_kernel(fd, why);
        crate::io::hand_on(fd, why, || false);
    })
}
/// The same where libc only writes to it.
pub fn need_kernel_to_send(fd: c_int, why: netacc_control::stats::Reason) {
    held(|| crate::io::need_kernel_to_send(fd, why))
}

/// The socket behind `fd` is about to become standard input or output, which stdio reads and writes
/// by private calls.
pub fn onto_stdio(fd: c_int) {
    held(|| {
        if !crate::adoption::stdio::onto(fd) {
            crate::io::need_kernel(fd, netacc_control::stats::Reason::StdioStream)
        }
    })
}

/// `io_uring_setup`: an error, or `PASS` to call it, and then [`on_io_uring_setup`].
pub fn before_io_uring_setup() -> Ret {
    held(crate::io_uring::before_setup)
}
/// `io_uring_setup` has made the ring `fd`, and said in `params` where it is.
pub fn on_io_uring_setup(fd: c_int, params: &crate::io_uring::Params) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::io_uring::on_setup(fd, params)
    })
}
/// `io_uring_enter` is about to be called.
pub fn before_io_uring_enter(fd: c_int, to_submit: u32) {
    held(|| crate::io_uring::before_enter(fd, to_submit))
}
/// `io_uring_register` is about to be called.
pub fn before_io_uring_register(opcode: u32) {
    held(|| crate::io_uring::before_register(opcode))
}
/// One of liburing's functions is about to hand new entries of a ring to the kernel.
///
/// # Safety
/// `ring` is what the application gave that function.
pub unsafe fn before_liburing_submit(ring: *const crate::io_uring::Liburing) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::io_uring::before_liburing_submit(ring) })
}
/// One of liburing's functions is about to register descriptors with a ring.
///
/// # Safety
/// `fds` and `count` are what the application gave that function.
pub unsafe fn before_liburing_files(fds: *const c_int, count: u32) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::io_uring::before_liburing_files(fds, count) })
}
pub use crate::io_uring::{Liburing, Params as IoUringParams};
