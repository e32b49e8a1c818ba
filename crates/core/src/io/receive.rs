//! Receiving on an attached connection.

use super::buffers::{self, Buffers, MAX_RW_COUNT};
use super::ends::{NotHeld, RxHeld, carrier_unread, copy_failed, hold_rx, load_announce};
use super::followed;
use super::leave::between_hosts::await_carrier;
use super::leave::{leave_if_due, to_kernel};
use super::receiving::Receiving;
use super::reset::{is_broken, peer_has_ended, why_broken};
use super::take::{get, ready, received_fast, rx_for_ring, scatter};
use super::waits::{Patience, never_waits};
use super::{EAGAIN, EFAULT};
use crate::channel::Side;
use crate::outcome::{ANEW, PASS, Ret};
use crate::socket::{Named, Socket, State, flag};
use crate::{sleep, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::{iovec, msghdr};
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::Plan;
use netacc_ring::CopyError;

/// [`recv_attached`] into one buffer.
#[inline(always)]
pub(super) unsafe fn recv_one(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    part: iovec,
    flags: c_int,
) -> Ret {
    let (buf, len) = (part.iov_base.cast::<u8>(), part.iov_len);
    if !buffers::is_user(buf as usize, len) {
        return EFAULT;
    }
    let total = len.min(MAX_RW_COUNT);
    let Some(mut held) = rx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffer.
        return unsafe {
            recv_otherwise(Named { s, g, fd }, &[sys::iov(buf, total)], total, flags)
        };
    };
    let n = match ready(&mut held, total) {
        // SAFETY: as above.
        Ok(n) if n > 0 => unsafe { get(&mut held.end.ring, buf, n) },
        Ok(_) => {
            // SAFETY: as above.
            return unsafe {
                Receiving { s, g, fd, iov: &[sys::iov(buf, total)], total, flags }.run(held)
            };
        }
        Err(e) => Err(e.into()),
    };
    match n {
        Ok(n) if received_fast(s, &mut held, n) => n as Ret,
        n => copy_failed(s, fd, n.err().unwrap_or(CopyError::PeerCorrupt)),
    }
}

/// A receive on an attached connection.
#[inline(always)]
pub(super) unsafe fn recv_attached(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    buffers: Buffers<'_>,
    flags: c_int,
) -> Ret {
    let Buffers { list: iov, total } = buffers;
    let Some(mut held) = rx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffers.
        return unsafe { recv_otherwise(Named { s, g, fd }, iov, total, flags) };
    };
    let n = match ready(&mut held, total) {
        // SAFETY: as above.
        Ok(n) if n > 0 => unsafe { scatter(&mut held.end.ring, iov, n) },
        // SAFETY: as above.
        Ok(_) => return unsafe { Receiving { s, g, fd, iov, total, flags }.run(held) },
        Err(e) => Err(e.into()),
    };
    match n {
        Ok(n) if received_fast(s, &mut held, n) => n as Ret,
        n => copy_failed(s, fd, n.err().unwrap_or(CopyError::PeerCorrupt)),
    }
}

/// A receive that wants more than what the ring has, or other things, or that has to wait for
/// another thread.
#[cold]
#[inline(never)]
unsafe fn recv_otherwise(on: Named, iov: &[iovec], total: usize, flags: c_int) -> Ret {
    let Named { s, g, fd } = on;
    if s.is_inherited() {
        // SAFETY: the caller's buffers.
        return unsafe { recv_inherited(on, iov, total, flags) };
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Urgent data and the error queue never leave the carrier.
        return match iov.first() {
            // SAFETY: the caller's buffer.
            Some(v) => unsafe {
                sleep::recvfrom(
                    fd,
                    v.iov_base.cast(),
                    v.iov_len,
                    flags,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            },
            None => 0,
        };
    }
    let held = match hold_rx(s, g) {
        Ok(h) => h,
        Err(NotHeld::Reentrant) => return EAGAIN,
        Err(NotHeld::Changed) => return ANEW,
    };
    if total == 0 {
        return recv_nothing(s, g, fd, flags, held);
    }
    // SAFETY: the caller's buffers.
    unsafe { followed::receive(Receiving { s, g, fd, iov, total, flags }, held) }
}

/// A forked child receives: from the kernel, as soon as nothing of the stream is left in the ring
/// that only the ring can give (the peer has closed, died, or left the ring by itself).
#[cold]
pub(super) unsafe fn recv_inherited(on: Named, iov: &[iovec], total: usize, flags: c_int) -> Ret {
    let Named { s, g, fd } = on;
    let nonblocking = never_waits(s, Side::Receive, flags);
    if total == 0 {
        return PASS;
    }
    if s.needs_maker() {
        return match await_carrier(
            on,
            Reason::InheritedByFork,
            s.receive_timeout_ns.load(Relaxed),
            nonblocking,
        ) {
            Ok(()) if s.generation16() == g && s.is(State::Attached) && is_broken(s) => {
                receive_broken(s, fd, flags)
            }
            Ok(()) => PASS,
            Err(r) => r,
        };
    }
    let mut patience = Patience::of(&s.receive_timeout_ns);
    loop {
        if to_kernel(s, g, fd, Reason::InheritedByFork, false) {
            return PASS;
        }
        let r = match hold_rx(s, g) {
            // SAFETY: the caller's buffers. Never blocks: the child has no waiting place in its
            // parent's channel.
            Ok(h) => unsafe {
                Receiving { s, g, fd, iov, total, flags: flags | libc::MSG_DONTWAIT }.run(h)
            },
            Err(NotHeld::Changed) => return ANEW,
            Err(NotHeld::Reentrant) => return EAGAIN,
        };
        if r != EAGAIN || nonblocking {
            return r;
        }
        // The ring's news does not reach the kernel's socket: looked for once a millisecond.
        if let Some(r) = patience.wait(fd, libc::POLLIN, 1_000_000) {
            return r;
        }
    }
}

/// A forked child receives on a connection that is broken, and that its maker still has: the error,
/// behind what the kernel has, or gets until the carrier has ended.
pub(crate) fn receive_broken(s: &Socket, fd: c_int, flags: c_int) -> Ret {
    let there = carrier_unread(fd).is_some_and(|n| n > 0);
    // (A peer of which nothing was heard for too long ends nothing.)
    let comes = s.receives_there.load(Acquire)
        && !s.has(flag::CORRUPT)
        && (there || !(s.has(flag::TIMED_OUT) || peer_has_ended(s, fd)));
    if comes {
        return PASS;
    }
    let told = if flags & libc::MSG_PEEK == 0 { flag::TOLD } else { 0 };
    if s.flags.fetch_or(told, AcqRel) & flag::TOLD == 0 { why_broken(s) } else { 0 }
}

/// A handler of the program's that the library did not install, and could not hold back, has
/// interrupted a receive.
#[cfg(test)]
pub(crate) fn within_receive(s: &'static Socket, handler: impl FnOnce()) {
    let held = hold_rx(s, s.generation16());
    assert!(held.is_ok());
    handler();
}

/// A receive, and what another thread does when it has looked which path it goes.
#[cfg(test)]
pub(crate) fn receive_behind(fd: c_int, to: &mut [u8], other: impl Fn()) -> Ret {
    let part = sys::iov(to.as_mut_ptr(), to.len());
    let ring = |s, g| {
        other();
        // SAFETY: a buffer of the test's.
        unsafe { recv_one(s, g, fd, part, libc::MSG_DONTWAIT) }
    };
    let (at, n, none) = (part.iov_base.cast(), part.iov_len, core::ptr::null_mut());
    // SAFETY: as above.
    let kernel =
        |more| unsafe { sleep::recvfrom(fd, at, n, libc::MSG_DONTWAIT | more, none, none.cast()) };
    super::dispatch(fd, Side::Receive, libc::MSG_DONTWAIT, ring, kernel)
}

/// A receive that takes no byte, because none is asked for: waits as any other (tcp_recvmsg).
#[cold]
pub(super) fn recv_nothing(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    flags: c_int,
    held: RxHeld<'static>,
) -> Ret {
    drop(held);
    let mut byte = 0u8;
    let iov = [sys::iov(&raw const byte, 1)];
    let peek = (flags | libc::MSG_PEEK) & !(libc::MSG_WAITALL | libc::MSG_TRUNC);
    let r = match hold_rx(s, g) {
        // SAFETY: one byte of ours, which a peek fills.
        Ok(h) => unsafe { Receiving { s, g, fd, iov: &iov, total: 1, flags: peek }.run(h) },
        Err(NotHeld::Changed) => return ANEW,
        Err(NotHeld::Reentrant) => return EAGAIN,
    };
    let _ = &mut byte;
    r.min(0)
}

/// A connection that is leaving stands on the carrier, and what it receives comes with the kernel's
/// control data. `None`: it does not stand there yet, or it is over.
#[cold]
pub(super) unsafe fn recvmsg_leaving(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> Option<Ret> {
    loop {
        leave_if_due(s, g, fd);
        {
            let mut h = match hold_rx(s, g) {
                Ok(h) => h,
                Err(NotHeld::Changed) => return Some(ANEW),
                Err(NotHeld::Reentrant) => return Some(EAGAIN),
            };
            if !h.end.switch.is_released() || h.end.pending_error != 0 {
                return None;
            }
            // The end, and errors, are the usual way's: nothing is taken by this.
            if carrier_unread(fd).unwrap_or(0) > 0 {
                // SAFETY: the caller's msghdr.
                let r = unsafe { sys::recvmsg(fd, msg, flags | libc::MSG_DONTWAIT) };
                if r > 0 && flags & libc::MSG_PEEK == 0 {
                    if let Some(rec) = s.record() {
                        rec.add_rx(Path::Tcp, r as u64);
                    }
                    if h.end.switch.on_delivered(r as u64).is_ok() {
                        h.settled(s);
                    }
                }
                return Some(r);
            }
        }
        if never_waits(s, Side::Receive, flags) {
            return None;
        }
        // Until there is a byte. (Nothing is taken, an end or error neither.)
        let mut byte = 0u8;
        // SAFETY: one byte of ours, which a peek fills.
        match unsafe { recv_one(s, g, fd, sys::iov(&raw mut byte, 1), libc::MSG_PEEK) } {
            r if r > 0 => {}
            // (An error that a look has taken is the call's.)
            r if r != 0 => return Some(r),
            _ => return None,
        }
    }
}

/// What FIONREAD says: how much can be read at once, on both paths. `None`: ask the kernel.
pub(crate) fn unread(s: &'static Socket, g: u16, fd: c_int) -> Option<usize> {
    if s.needs_maker() {
        let _ = to_kernel(s, g, fd, Reason::InheritedByFork, false);
    }
    // Under the lock: bytes that change paths meanwhile would be counted twice or not at all.
    let mut h = hold_rx(s, g).ok()?;
    let on_carrier = carrier_unread(fd)?;
    if h.end.switch.on_announce(load_announce(h.words)).ok()? {
        h.settled(s);
    }
    match h.end.switch.plan() {
        // What comes before the ring's bytes has not all come.
        Plan::Carrier { limit, .. } if limit > on_carrier as u64 => Some(on_carrier),
        _ => Some(on_carrier.saturating_add(h.unread().ok()?)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
