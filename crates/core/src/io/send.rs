//! Sending on an attached connection.

use super::buffers::{self, Buffers, MAX_RW_COUNT};
use super::ends::{NotHeld, TxHeld, hold_tx, try_hold};
use super::leave::between_hosts::await_carrier;
use super::leave::to_kernel;
use super::receive::copy_failed;
use super::send_again::is_resending;
use super::sending::Sending;
use super::waits::{Patience, never_waits};
use super::{EAGAIN, ECONNRESET, EFAULT, PLAIN_FLAGS, watch};
use crate::channel::Side;
use crate::lock::bump;
use crate::outcome::{PASS, Ret};
use crate::socket::{Named, Socket, State, TxEnd, flag};
use crate::user::LOWEST_ADDRESS;
use crate::{sleep, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::{iovec, msghdr};
use netacc_control::stats::Reason;
use netacc_proto::switchover::TxState;
use netacc_ring::{CopyError, Producer};

/// Copies what fits of a buffer into the ring. Returns how much.
#[inline(always)]
unsafe fn put(ring: &mut Producer, at: *const u8, len: usize) -> Result<usize, CopyError> {
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

/// The connection was broken off between hosts, or reset within one: what the carrier says of
/// itself does not count any more.
pub(super) fn is_broken(s: &Socket) -> bool {
    s.has(flag::RESET) || (s.has(flag::BROKEN_OFF | flag::CORRUPT) && s.path().is_lossy())
}

/// What such a connection fails with.
pub(super) fn why_broken(s: &Socket) -> Ret {
    if s.has(flag::TIMED_OUT) { -(libc::ETIMEDOUT as Ret) } else { ECONNRESET }
}

/// A send on such a connection: the error once, if nobody was told, then as on any that is over
/// (send(2)).
#[cold]
pub(super) fn send_broken(s: &Socket, flags: c_int) -> Ret {
    if s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD == 0 {
        return why_broken(s);
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise(libc::SIGPIPE);
    }
    -(libc::EPIPE as Ret)
}

/// A send that only the kernel can carry out, by a forked child or of something that a ring cannot
/// take: once nothing waits to go before it. [`PASS`], or the call's result.
#[cold]
pub(super) fn leave_to_send(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    flags: c_int,
    why: Reason,
) -> Ret {
    let nonblocking = never_waits(s, Side::Send, flags);
    if s.path().leaves_by_agent() {
        return match await_carrier(s, g, fd, why, s.send_timeout_ns.load(Relaxed), nonblocking) {
            Ok(()) if s.generation16() == g && s.is(State::Attached) && is_broken(s) => {
                send_broken(s, flags)
            }
            Ok(()) => PASS,
            Err(r) => r,
        };
    }
    let mut patience = Patience::of(&s.send_timeout_ns);
    loop {
        let _ = to_kernel(s, g, fd, why, false);
        if s.generation16() == g && s.has(flag::RESET) {
            return send_broken(s, flags);
        }
        if !is_resending(s, g) {
            return PASS;
        }
        if nonblocking {
            return EAGAIN;
        }
        if let Some(r) = patience.wait(fd, libc::POLLOUT, -1) {
            return r;
        }
    }
}

/// [`send_attached`] of one buffer.
#[inline(always)]
pub(super) unsafe fn send_one(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    part: iovec,
    flags: c_int,
) -> Ret {
    let (buf, len) = (part.iov_base.cast::<u8>().cast_const(), part.iov_len);
    if !buffers::is_user(buf as usize, len) {
        return EFAULT;
    }
    let total = len.min(MAX_RW_COUNT);
    let Some(mut held) = tx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffer.
        return unsafe {
            send_otherwise(Named { s, g, fd }, &[sys::iov(buf, total)], total, flags)
        };
    };
    // SAFETY: as above.
    let n = match unsafe { put(&mut held.end.ring, buf, total) } {
        Ok(n) if n > 0 && sent_fast(s, &mut held, n) => n,
        Ok(_) => 0,
        Err(e) => return copy_failed(s, fd, e),
    };
    if n == total {
        return n as Ret;
    }
    // SAFETY: as above.
    unsafe { Sending { s, g, fd, iov: &[sys::iov(buf, total)], total, done: n, flags }.run(held) }
}

/// A send on an attached connection.
#[inline(always)]
pub(super) unsafe fn send_attached(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    buffers: Buffers<'_>,
    flags: c_int,
) -> Ret {
    let Buffers { list: iov, total } = buffers;
    let Some(mut held) = tx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffers.
        return unsafe { send_otherwise(Named { s, g, fd }, iov, total, flags) };
    };
    // SAFETY: as above.
    let n = match unsafe { fill(&mut held.end.ring, iov, 0) } {
        Ok(n) if n > 0 && sent_fast(s, &mut held, n) => n,
        Ok(_) => 0,
        Err(e) => return copy_failed(s, fd, e),
    };
    if n == total {
        return n as Ret;
    }
    // SAFETY: as above.
    unsafe { Sending { s, g, fd, iov, total, done: n, flags }.run(held) }
}

/// The sending half for a send that can go into the ring as it is. `None`: for [`send_otherwise`].
#[inline(always)]
fn tx_for_ring(s: &'static Socket, g: u16, total: usize, flags: c_int) -> Option<TxHeld<'static>> {
    const NOT_PLAIN: u32 = flag::SHUT_WR
        | flag::CARRIER_SPOKE
        | flag::CORRUPT
        | flag::BROKEN_OFF
        | flag::RESET
        | flag::CORKED;
    if s.is_inherited() || flags & !PLAIN_FLAGS != 0 || total == 0 {
        return None;
    }
    let held = try_hold::<TxEnd>(s, g)?;
    (!s.has(NOT_PLAIN)
        && held.end.switch.state() == TxState::Fast
        && !held.end.switches.are_ordered())
    .then_some(held)
}

/// A send that cannot go into the ring as it is, or only when another thread is done with it.
#[cold]
#[inline(never)]
unsafe fn send_otherwise(on: Named, iov: &[iovec], total: usize, flags: c_int) -> Ret {
    let Named { s, g, fd } = on;
    if s.is_inherited() {
        // The sending direction is the carrier's from here on, whatever becomes of the other.
        return leave_to_send(s, g, fd, flags, Reason::InheritedByFork);
    }
    match hold_tx(s, g) {
        // SAFETY: the caller's buffers.
        Ok(held) => unsafe { Sending { s, g, fd, iov, total, done: 0, flags }.run(held) },
        Err(NotHeld::Reentrant) => EAGAIN,
        Err(NotHeld::Changed) => PASS,
    }
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
