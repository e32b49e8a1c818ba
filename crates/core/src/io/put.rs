//! Bytes of the caller's buffers go into the ring, or to the kernel.

use super::ends::TxHeld;
use super::watch;
use crate::lock::bump;
use crate::outcome::Ret;
use crate::sleep;
use crate::socket::Socket;
use crate::user::LOWEST_ADDRESS;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::{iovec, msghdr};
use netacc_ring::{CopyError, Producer};

/// Copies what fits of a buffer into the ring. Returns how much.
#[inline(always)]
pub(super) unsafe fn put(
    ring: &mut Producer,
    at: *const u8,
    len: usize,
) -> Result<usize, CopyError> {
    if (at as usize) < LOWEST_ADDRESS {
        return Err(CopyError::BadAddress);
    }
    // SAFETY: the caller's buffer.
    unsafe { ring.write(at, len) }
}

/// Copies what fits of `iov`, of which `done` bytes are already sent, into the ring. Returns how
/// many. Where a buffer is bad nothing is written.
#[inline(always)]
pub(super) unsafe fn fill(
    ring: &mut Producer,
    iov: &[iovec],
    done: usize,
) -> Result<usize, CopyError> {
    let mut skip = done;
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = v.iov_len - skip;
        // SAFETY: within the caller's buffer.
        let put = match unsafe { put(ring, v.iov_base.cast::<u8>().wrapping_add(skip), len) } {
            Ok(put) => put,
            Err(e) => {
                ring.take_back(n);
                return Err(e);
            }
        };
        n += put;
        if put < len {
            break;
        }
        skip = 0;
    }
    Ok(n)
}

/// Bytes were put into the ring: tells the consumer, and the switch. False: the peer is closing,
/// and whether it has seen them nobody knows. They do not count as sent, and the kernel says what
/// becomes of them (`peer_is_going`). A close says that it ends before it looks for unread bytes;
/// so either it has found these, or this finds that.
#[inline(always)]
pub(super) fn sent_fast(s: &Socket, held: &mut TxHeld<'_>, n: usize) -> bool {
    s.published.tail.store(held.end.ring.publish(), Relaxed);
    if !held.notify() {
        return false;
    }
    watch::watch(held.channel);
    let _ = held.end.switch.on_accepted(n as u64);
    if let Some(r) = s.record()
        && let Some(w) = r.tx_bytes.get(held.channel.path() as usize)
    {
        bump(w, n as u64);
        bump(&r.tx_messages, 1);
    }
    true
}

/// One kernel send of what comes after byte `done`.
pub(super) unsafe fn kernel_send(fd: c_int, iov: &[iovec], done: usize, flags: c_int) -> Ret {
    let mut skip = done;
    for (i, v) in iov.iter().enumerate() {
        if skip >= v.iov_len && !(skip == 0 && iov.len() == 1) {
            skip -= v.iov_len;
            continue;
        }
        if skip == 0 {
            // SAFETY: all zero is a valid msghdr; the buffers are the caller's.
            return unsafe {
                let mut m: msghdr = core::mem::zeroed();
                m.msg_iov = iov.as_ptr().add(i).cast_mut();
                m.msg_iovlen = iov.len() - i;
                sleep::sendmsg(fd, &m, flags)
            };
        }
        // SAFETY: within the caller's buffer.
        return unsafe {
            sleep::sendto(fd, v.iov_base.cast::<u8>().add(skip), v.iov_len - skip, flags)
        };
    }
    // SAFETY: nothing to send: the kernel checks the socket's state.
    unsafe { sleep::sendto(fd, core::ptr::null(), 0, flags) }
}
