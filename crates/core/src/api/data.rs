//! Bytes: receives, sends, files.

use crate::outcome::{PASS, Ret};
use crate::signals::held;
use core::ffi::{c_int, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};

/// `recv` (with `flags`), `__recv_chk`.
///
/// # Safety
/// `buf` is valid for `len` bytes, as for recv(2).
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recv(fd, buf.cast(), len, flags) }
}
/// `read`, `__read_chk`: as [`recv`], but reading nothing never waits (read(2)).
///
/// # Safety
/// As for read(2).
#[inline]
pub unsafe fn read(fd: c_int, buf: *mut c_void, len: usize) -> Ret {
    if len == 0 {
        return PASS;
    }
    // SAFETY: the caller's promise.
    unsafe { crate::io::recv(fd, buf.cast(), len, 0) }
}
/// `readv`, `preadv2` with offset -1 (RWF_NOWAIT = MSG_DONTWAIT).
///
/// # Safety
/// As for readv(2).
pub unsafe fn recvv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvv(fd, iov, count, flags) }
}
/// `recvfrom` with an address to fill (without: [`recv`]).
///
/// # Safety
/// As for recvfrom(2).
pub unsafe fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvfrom(fd, buf.cast(), len, flags, addr, addr_len) }
}
/// `recvmsg`. Where this answers `PASS` the hook calls the next symbol, and then [`on_recvmsg`].
///
/// # Safety
/// As for recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvmsg(fd, msg, flags) }
}
/// The next symbol's `recvmsg` returned data: descriptors in its control data are new.
///
/// # Safety
/// `msg` was just filled by recvmsg(2).
pub unsafe fn on_recvmsg(fd: c_int, msg: *const msghdr, flags: c_int) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::lifecycle::on_recvmsg(fd, msg, flags) })
}
/// `recvmmsg`.
///
/// # Safety
/// As for recvmmsg(2).
pub unsafe fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvmmsg(fd, msgs, count, flags, timeout) }
}
/// `write`, `send` (with `flags`), `sendto` without an address.
///
/// # Safety
/// `buf` is valid for `len` bytes, as for send(2).
#[inline]
pub unsafe fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::send(fd, buf.cast(), len, flags) }
}
/// `sendto` with an address (a connected TCP socket ignores it).
///
/// # Safety
/// As for sendto(2).
pub unsafe fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendto(fd, buf.cast(), len, flags, addr, addr_len) }
}
/// `writev`, `pwritev2` with offset -1.
///
/// # Safety
/// As for writev(2).
pub unsafe fn sendv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendv(fd, iov, count, flags) }
}
/// `sendmsg` on any socket: on one that is not ours, SCM_RIGHTS control data is looked through for
/// descriptors that are, before it is passed on.
///
/// # Safety
/// As for sendmsg(2).
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendmsg(fd, msg, flags) }
}
/// `sendmmsg`.
///
/// # Safety
/// As for sendmmsg(2).
pub unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendmmsg(fd, msgs, count, flags) }
}

/// `sendfile`, `sendfile64`: from a file to an accelerated socket the bytes are read here and take
/// the socket's path.
///
/// # Safety
/// As for sendfile(2).
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendfile(out, input, offset, count) }
}

/// `splice`, with an accelerated socket at either end.
///
/// # Safety
/// As for splice(2).
pub unsafe fn splice(
    input: c_int,
    input_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    len: usize,
    flags: u32,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::splice(input, input_offset, out, out_offset, len, flags) }
}
