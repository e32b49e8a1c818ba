//! The socket API's own data calls.

use crate::errno;
use libc::{
    c_int, c_uint, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use netacc_core::api::{self, PASS};

hook! {
    /// `recv(2)`.
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t => api::recv(fd, buf, len, flags);
}
hook! {
    /// `recv` with `_FORTIFY_SOURCE`; the next symbol aborts a program that would overflow its
    /// buffer.
    unchecked fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t
        => if len > room { PASS } else { api::recv(fd, buf, len, flags) };
}
hook! {
    /// `recvfrom(2)`.
    fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t
        => recv_from(fd, buf, len, flags, addr, addr_len);
}
hook! {
    /// `recvfrom` with `_FORTIFY_SOURCE`.
    unchecked fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t
        => if len > room { PASS } else { recv_from(fd, buf, len, flags, addr, addr_len) };
}
hook! {
    /// `recvmsg(2)`; it may bring descriptors.
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t |next| {
        let answer = api::recvmsg(fd, msg, flags);
        if answer != PASS {
            return errno::ret_at_point(answer);
        }
        let result = next(fd, msg, flags);
        if result >= 0 && (*msg).msg_controllen != 0 {
            api::on_recvmsg(fd, msg, flags);
        }
        result
    }
}
hook! {
    /// `recvmmsg(2)`.
    unchecked fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int |next| {
        let answer = api::recvmmsg(fd, msgs, count, flags, timeout);
        if answer != PASS {
            return errno::ret_at_point(answer) as c_int;
        }
        let result = next(fd, msgs, count, flags, timeout);
        received(fd, msgs, result as isize, flags);
        result
    }
}

hook! {
    /// `send(2)`.
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t => api::send(fd, buf, len, flags);
}
hook! {
    /// libc's older public name of `send`.
    unchecked fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t => api::send(fd, buf, len, flags);
}
hook! {
    /// `sendto(2)`.
    fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t
        => send_to(fd, buf, len, flags, addr, addr_len);
}
hook! {
    /// `sendmsg(2)`; it may carry descriptors of ours on any socket.
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t => api::sendmsg(fd, msg, flags);
}
hook! {
    /// `sendmmsg(2)`.
    unchecked fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int => api::sendmmsg(fd, msgs, count, flags);
}

/// # Safety
/// As for recvfrom(2).
#[inline(always)]
pub(super) unsafe fn recv_from(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> api::Ret {
    if addr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { api::recv(fd, buf, len, flags) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { api::recvfrom(fd, buf, len, flags, addr, addr_len) }
    }
}

/// # Safety
/// As for sendto(2).
#[inline(always)]
pub(super) unsafe fn send_to(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> api::Ret {
    if addr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { api::send(fd, buf, len, flags) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { api::sendto(fd, buf, len, flags, addr, addr_len) }
    }
}

/// Tells the core of the descriptors in `count` received messages.
///
/// # Safety
/// recvmmsg(2) has just filled them.
pub(super) unsafe fn received(fd: c_int, msgs: *const mmsghdr, count: isize, flags: c_int) {
    for index in 0..count.max(0) {
        // SAFETY: within the messages that were filled.
        let msg = unsafe { &(*msgs.offset(index)).msg_hdr };
        if msg.msg_controllen != 0 {
            // SAFETY: the caller's promise.
            unsafe { api::on_recvmsg(fd, msg, flags) };
        }
    }
}
