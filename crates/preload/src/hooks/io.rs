//! read, write and their vector, positioned and in-kernel relatives.

use libc::{MSG_DONTWAIT, c_int, c_uint, c_void, iovec, loff_t, off_t, off64_t, size_t, ssize_t};
use netacc_control::stats::Reason;
use netacc_core::api::{self, PASS};

hook! {
    /// `read(2)`.
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t => api::read(fd, buf, len);
}
hook! {
    /// libc's older public name of `read`.
    unchecked fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t => api::read(fd, buf, len);
}
hook! {
    /// `read` with `_FORTIFY_SOURCE`; the next symbol aborts a program that would overflow its
    /// buffer.
    unchecked fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t
        => if len > room { PASS } else { api::read(fd, buf, len) };
}
hook! {
    /// `readv(2)`.
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t => api::recvv(fd, iov, count, 0);
}
hook! {
    /// `preadv2(2)`; with offset -1 it is a `readv` with flags.
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        => match message_flags(Side::Reads(fd), offset, flags) {
            Some(flags) => api::recvv(fd, iov, count, flags),
            None => PASS,
        };
}
hook! {
    /// `preadv2` with a 64-bit offset.
    unchecked fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t
        => match message_flags(Side::Reads(fd), offset, flags) {
            Some(flags) => api::recvv(fd, iov, count, flags),
            None => PASS,
        };
}

hook! {
    /// `write(2)`.
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t => api::send(fd, buf, len, 0);
}
hook! {
    /// libc's older public name of `write`.
    unchecked fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t => api::send(fd, buf, len, 0);
}
hook! {
    /// `writev(2)`.
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t => api::sendv(fd, iov, count, 0);
}
hook! {
    /// `pwritev2(2)`; with offset -1 it is a `writev` with flags.
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        => match message_flags(Side::Writes(fd), offset, flags) {
            Some(flags) => api::sendv(fd, iov, count, flags),
            None => PASS,
        };
}
hook! {
    /// `pwritev2` with a 64-bit offset.
    unchecked fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t
        => match message_flags(Side::Writes(fd), offset, flags) {
            Some(flags) => api::sendv(fd, iov, count, flags),
            None => PASS,
        };
}

hook! {
    /// `sendfile(2)`.
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        => api::sendfile(out, input, offset, count);
}
hook! {
    /// `sendfile` with a 64-bit offset.
    fn sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t
        => api::sendfile(out, input, offset, count);
}
hook! {
    /// `splice(2)`.
    fn splice(input: c_int, input_offset: *mut loff_t, out: c_int, out_offset: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t
        => api::splice(input, input_offset, out, out_offset, len, flags);
}

/// What a preadv2/pwritev2 does to a descriptor.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Reads(c_int),
    Writes(c_int),
}

/// The MSG_ flags of a preadv2/pwritev2. `None` leaves the call to the kernel: a socket has no
/// offsets, and what an unknown flag means it knows itself, of a socket that is its own.
#[inline]
pub(super) fn message_flags(side: Side, offset: off64_t, flags: c_int) -> Option<c_int> {
    // Without meaning for a socket, and accepted: HIPRI, DSYNC, SYNC, APPEND.
    const IGNORED: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;
    match offset {
        -1 if flags & !(IGNORED | libc::RWF_NOWAIT) != 0 => {
            match side {
                Side::Reads(fd) => api::need_kernel_whole(fd, Reason::SocketOption),
                Side::Writes(fd) => api::need_kernel_to_send(fd, Reason::SocketOption),
            }
            None
        }
        -1 if flags & libc::RWF_NOWAIT != 0 => Some(MSG_DONTWAIT),
        -1 => Some(0),
        _ => None,
    }
}
