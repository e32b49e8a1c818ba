//! A ring receives on a socket of ours whose next bytes the kernel does not have, and will not get:
//! their sender has left our ring by itself, or has ended. They are received here, and the entry
//! becomes one that the kernel completes with their number.

use super::abi::{
    BUFFER_SELECT, OP_POLL_ADD, OP_READ, OP_READ_FIXED, OP_READV, OP_RECV, OP_RECVMSG, Sqe,
};
use super::{completes_with, uses};
use crate::outcome::Ret;
use crate::{io, sys};
use core::ffi::c_int;
use libc::{iovec, msghdr};
use netacc_control::stats::Reason;

/// That takes bytes of `entry.fd`, or waits for them, for its number and not for its place in a
/// table of the ring's. `depends`: others come before it, and it may not be carried out.
///
/// Where bytes are in our ring alone, and cannot be received here, the connection is broken off: an
/// error that is seen, never a gap in the stream.
pub(super) fn receive(entry: Sqe, depends: bool) -> Option<Sqe> {
    uses(entry.fd);
    if !io::is_left_in_ring(entry.fd) {
        return None;
    }
    let done = match entry.opcode {
        OP_POLL_ADD => is_readable(entry),
        _ if depends || entry.flags & BUFFER_SELECT != 0 => None,
        // SAFETY: the buffers that the application gives the kernel.
        _ => unsafe { received(entry) }.filter(|n| *n > 0),
    };
    if done.is_none() && entry.opcode != OP_POLL_ADD {
        io::hand_on(entry.fd, Reason::IoUring);
    }
    completes_with(entry, done?)
}

/// What poll says of it, if it was asked for that, and the kernel does not say so by itself (of an
/// end, or of what comes behind the ring's bytes).
fn is_readable(entry: Sqe) -> Option<Ret> {
    let readable = c_int::from(libc::POLLIN | libc::POLLRDNORM) & entry.op_flags as c_int;
    let is_told = sys::poll_now(entry.fd, libc::POLLIN) != 0;
    (readable != 0 && !is_told).then_some(readable as Ret)
}

/// How many bytes are received, of those that are there.
///
/// # Safety
/// The entry's buffers are the caller's.
unsafe fn received(entry: Sqe) -> Option<Ret> {
    let (fd, at, len) = (entry.fd, entry.addr, entry.len);
    let now = libc::MSG_DONTWAIT;
    let flags = entry.op_flags as c_int | now;
    Some(match entry.opcode {
        // SAFETY: the caller's promise.
        OP_READ | OP_READ_FIXED => unsafe { io::recv(fd, at as *mut u8, len as usize, now) },
        // SAFETY: as above.
        OP_RECV => unsafe { io::recv(fd, at as *mut u8, len as usize, flags) },
        // SAFETY: as above.
        OP_READV => unsafe { io::recvv(fd, at as *const iovec, len as c_int, now) },
        // SAFETY: as above.
        OP_RECVMSG => unsafe { io::recvmsg(fd, at as *mut msghdr, flags) },
        _ => return None,
    })
}
