//! A ring receives on a socket of ours whose next bytes the kernel does not have, and will not get:
//! their sender has left our ring by itself, or has ended. They are received here, and the entry
//! becomes one that the kernel completes with their number.

use super::abi::{
    BUFFER_SELECT, DEPENDS, DRAIN, OP_POLL_ADD, OP_READ, OP_READ_FIXED, OP_READV, OP_RECV,
    OP_RECVMSG, Sqe,
};
use super::{completes_with, null_device, receives};
use crate::outcome::{PASS, Ret};
use crate::{io, sys};
use core::ffi::c_int;
use libc::{iovec, msghdr};
use netacc_control::stats::Reason;

/// That takes bytes of `entry.fd`, or waits for them, for its number and not for its place in a
/// table of the ring's. `waits`: others come before it.
///
/// Where bytes are in our ring alone, and cannot be received here, the connection is broken off: an
/// error that is seen, never a gap in the stream.
pub(super) fn receive(entry: Sqe, waits: bool) -> Option<Sqe> {
    receives(entry.fd);
    let is_left = io::is_left_in_ring(entry.fd);
    if entry.opcode == OP_POLL_ADD {
        return completes_with(entry, is_readable(entry).filter(|_| is_left)?);
    }
    let is_here = || !waits && may_be_received(entry) && null_device().is_some();
    // (Before the kernel takes what comes again, it has to have all of that.)
    let reads_here = (is_left && is_here()) || io::hand_on(entry.fd, Reason::IoUring, is_here);
    if !reads_here {
        return None;
    }
    // SAFETY: the buffers that the application gives the kernel.
    match unsafe { received(entry) } {
        EAGAIN => {
            io::hand_on(entry.fd, Reason::IoUring, || false);
            None
        }
        // The kernel says what is wrong with it.
        result => completes_with(entry, result),
    }
}

/// Not where others come behind it that a short one would stop, nor where it would be short though
/// more may come.
fn may_be_received(entry: Sqe) -> bool {
    let is_message = matches!(entry.opcode, OP_RECV | OP_RECVMSG);
    let of_all = is_message && entry.op_flags as c_int & libc::MSG_WAITALL != 0;
    let is_linked = entry.flags & DEPENDS != 0;
    let more_may_come = || sys::poll_now(entry.fd, libc::POLLRDHUP) & libc::POLLRDHUP == 0;
    entry.flags & (BUFFER_SELECT | DRAIN) == 0
        && !(is_linked && (of_all || !is_message))
        && !(of_all && more_may_come())
}

const EAGAIN: Ret = -(libc::EAGAIN as Ret);

/// What poll says of it, if it was asked for that, and the kernel does not say so by itself (of an
/// end, or of what comes behind the ring's bytes).
fn is_readable(entry: Sqe) -> Option<Ret> {
    let readable = c_int::from(libc::POLLIN | libc::POLLRDNORM) & entry.op_flags as c_int;
    let is_told = sys::poll_now(entry.fd, libc::POLLIN) != 0;
    (readable != 0 && !is_told).then_some(readable as Ret)
}

/// How many bytes are received, of those that are there; none are asked for where it is 0.
/// [`PASS`]: nothing is received.
///
/// # Safety
/// The entry's buffers are the caller's.
unsafe fn received(entry: Sqe) -> Ret {
    let (fd, at, len) = (entry.fd, entry.addr, entry.len);
    let now = libc::MSG_DONTWAIT;
    let flags = entry.op_flags as c_int | now;
    // A socket has no offsets.
    let is_read = matches!(entry.opcode, OP_READ | OP_READ_FIXED | OP_READV);
    if is_read && entry.off != 0 && entry.off != u64::MAX {
        return PASS;
    }
    match entry.opcode {
        OP_READ | OP_READ_FIXED | OP_READV | OP_RECV if len == 0 => 0,
        // SAFETY: the caller's promise.
        OP_READ | OP_READ_FIXED => unsafe { io::recv(fd, at as *mut u8, len as usize, now) },
        // SAFETY: as above.
        OP_RECV => unsafe { io::recv(fd, at as *mut u8, len as usize, flags) },
        // SAFETY: as above.
        OP_READV => unsafe { io::recvv(fd, at as *const iovec, len as c_int, now) },
        // SAFETY: as above.
        OP_RECVMSG => unsafe { io::recvmsg(fd, at as *mut msghdr, flags) },
        _ => EAGAIN,
    }
}
