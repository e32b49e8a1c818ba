//! Sending on an attached connection.

use super::buffers::{self, Buffers, MAX_RW_COUNT};
use super::ends::{NotHeld, TxHeld, copy_failed, hold_tx, try_hold};
use super::followed;
use super::leave::between_hosts::await_carrier;
use super::leave::to_kernel;
use super::put::{fill, put, sent_fast};
use super::reset::{is_broken, send_broken};
use super::send_again::is_resending;
use super::sending::Sending;
use super::waits::{Patience, never_waits};
use super::{EAGAIN, EFAULT, PLAIN_FLAGS};
use crate::channel::Side;
use crate::outcome::{ANEW, PASS, Ret};
use crate::socket::{Named, Socket, State, TxEnd, flag};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::iovec;
use netacc_control::stats::Reason;
use netacc_proto::switchover::TxState;

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
        let on = Named { s, g, fd };
        return match await_carrier(on, why, s.send_timeout_ns.load(Relaxed), nonblocking) {
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
        Ok(held) => unsafe {
            followed::send(Sending { s, g, fd, iov, total, done: 0, flags }, held)
        },
        Err(NotHeld::Reentrant) => EAGAIN,
        Err(NotHeld::Changed) => ANEW,
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]
mod tests;
