//! Receiving on an attached connection.

use super::apart::{await_carrier, peer_has_ended};
use super::candidate::{candidate, settle_rx};
use super::ends::{NotHeld, RxHeld, carrier_unread, corrupt, hold_rx, load_announce, try_rx};
use super::leave::{leave_if_due, to_kernel};
use super::message::kept_error;
use super::parts::MAX_RW_COUNT;
use super::reset::is_reset;
use super::send::is_broken;
use super::waits::{Patience, block, interrupted, never_waits};
use super::{ASK_CARRIER_IN_SET_NS, ASK_CARRIER_NS, EAGAIN, ECONNRESET, EFAULT, header_of, parts};
use crate::carrier;
use crate::channel::{Side, announce};
use crate::heap::Scratch;
use crate::lock::bump;
use crate::outcome::{PASS, Ret};
use crate::socket::{ATTACHED, ATTACHING, CANDIDATE, Socket, flag};
use crate::user::LOWEST_ADDRESS;
use crate::wait::Woke;
use crate::wire::parting;
use crate::{sleep, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::{iovec, msghdr};
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::{EofVerdict, Plan, RxState};
use netacc_ring::{Consumer, CopyError, PeerCorrupt};

/// Takes `n` bytes, which are there, out of the ring.
#[inline(always)]
unsafe fn get(ring: &mut Consumer, at: *mut u8, n: usize) -> Result<usize, CopyError> {
    if (at as usize) < LOWEST_ADDRESS {
        return Err(CopyError::BadAddress);
    }
    // SAFETY: the caller's buffer.
    unsafe { ring.read(at, n) }
}

/// Takes `n` bytes, which are there, out of the ring into `iov`. Where a buffer is bad all of them
/// stay there.
#[inline(always)]
unsafe fn scatter(ring: &mut Consumer, iov: &[iovec], n: usize) -> Result<usize, CopyError> {
    let mut left = n;
    for v in iov {
        let len = v.iov_len.min(left);
        if len == 0 {
            continue;
        }
        // SAFETY: the caller's buffer.
        if let Err(e) = unsafe { get(ring, v.iov_base.cast(), len) } {
            ring.put_back(n - left);
            return Err(e);
        }
        left -= len;
        if left == 0 {
            break;
        }
    }
    Ok(n - left)
}

/// Copies up to `limit` bytes from the ring into `iov`, of which `done` bytes are filled. `peek`
/// leaves them there; `drop_bytes` (MSG_TRUNC) copies nothing. Where a buffer is bad all of them
/// stay there.
pub(super) unsafe fn drain(
    ring: &mut Consumer,
    iov: &[iovec],
    done: usize,
    limit: usize,
    peek: bool,
    drop_bytes: bool,
) -> Result<usize, CopyError> {
    let mut skip = done;
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = (v.iov_len - skip).min(limit - n);
        let at = v.iov_base.cast::<u8>().wrapping_add(skip);
        // SAFETY: within the caller's buffer.
        let got = unsafe {
            match (peek, drop_bytes) {
                (false, true) => ring.skip(len).map_err(CopyError::from),
                (true, true) => ring
                    .available()
                    .map(|available| len.min(available.saturating_sub(n)))
                    .map_err(CopyError::from),
                _ if (at as usize) < LOWEST_ADDRESS => Err(CopyError::BadAddress),
                (false, false) => ring.read(at, len),
                (true, false) => ring.peek(n, at, len),
            }
        };
        let got = match got {
            Ok(got) => got,
            Err(e) => {
                if !peek {
                    ring.put_back(n);
                }
                return Err(e);
            }
        };
        n += got;
        if got < len || n == limit {
            break;
        }
        skip = 0;
    }
    Ok(n)
}

/// [`recv_attached`] into one buffer.
#[inline(always)]
pub(super) unsafe fn recv_one(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    buf: *mut u8,
    len: usize,
    flags: c_int,
) -> Ret {
    if !parts::is_user(buf as usize, len) {
        return EFAULT;
    }
    let total = len.min(MAX_RW_COUNT);
    let Some(mut held) = rx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffer.
        return unsafe { recv_otherwise(s, g, fd, &[sys::iov(buf, total)], total, flags) };
    };
    let n = match ready(&mut held, total) {
        // SAFETY: as above.
        Ok(n) if n > 0 => unsafe { get(&mut held.end.ring, buf, n) },
        Ok(_) => {
            // SAFETY: as above.
            return unsafe { recv_slow(s, g, fd, &[sys::iov(buf, total)], total, flags, held) };
        }
        Err(e) => Err(e.into()),
    };
    match n {
        Ok(n) if received_fast(s, &mut held, n) => n as Ret,
        n => copy_failed(s, fd, n.err().unwrap_or(CopyError::PeerCorrupt)),
    }
}

/// `iov`: as `parts` makes them, `total` bytes together.
#[inline(always)]
pub(super) unsafe fn recv_attached(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    iov: &[iovec],
    total: usize,
    flags: c_int,
) -> Ret {
    let Some(mut held) = rx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffers.
        return unsafe { recv_otherwise(s, g, fd, iov, total, flags) };
    };
    let n = match ready(&mut held, total) {
        // SAFETY: as above.
        Ok(n) if n > 0 => unsafe { scatter(&mut held.end.ring, iov, n) },
        // SAFETY: as above.
        Ok(_) => return unsafe { recv_slow(s, g, fd, iov, total, flags, held) },
        Err(e) => Err(e.into()),
    };
    match n {
        Ok(n) if received_fast(s, &mut held, n) => n as Ret,
        n => copy_failed(s, fd, n.err().unwrap_or(CopyError::PeerCorrupt)),
    }
}

/// The receiving half, which stands on the ring, for a receive that wants what is there. `None`:
/// for [`recv_otherwise`].
#[inline(always)]
fn rx_for_ring(s: &'static Socket, g: u16, total: usize, flags: c_int) -> Option<RxHeld<'static>> {
    if s.is_inherited() || flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 || total == 0 {
        return None;
    }
    try_rx(s, g).filter(|held| matches!(held.end.switch.plan(), Plan::Fast { .. }))
}

/// How many bytes of the ring the receive gets; 0: it needs a closer look.
#[inline(always)]
fn ready(held: &mut RxHeld<'_>, total: usize) -> Result<usize, PeerCorrupt> {
    let Plan::Fast { limit } = held.end.switch.plan() else { return Ok(0) };
    // A read that falls short says that nothing is left, and an edge for the rest may have been
    // reported (epoll(7)).
    let mut there = held.end.ring.available()?;
    if there < total {
        there = held.end.ring.refresh()?;
        if there < total && held.is_left() {
            // The rest is on the carrier.
            return Ok(0);
        }
    }
    Ok((limit.min(there as u64) as usize).min(total))
}

/// A receive that wants more than what the ring has, or other things, or that has to wait for
/// another thread.
#[cold]
#[inline(never)]
unsafe fn recv_otherwise(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    iov: &[iovec],
    total: usize,
    flags: c_int,
) -> Ret {
    if s.is_inherited() {
        // SAFETY: the caller's buffers.
        return unsafe { recv_inherited(s, g, fd, iov, total, flags) };
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
        Err(NotHeld::Changed) => return PASS,
    };
    if total == 0 {
        return recv_nothing(s, g, fd, flags, held);
    }
    // SAFETY: the caller's buffers.
    unsafe { recv_slow(s, g, fd, iov, total, flags, held) }
}

/// What a call says of bytes that could not be copied out of or into the ring.
#[cold]
#[inline(never)]
pub(super) fn copy_failed(s: &Socket, fd: c_int, e: CopyError) -> Ret {
    match e {
        CopyError::BadAddress => EFAULT,
        CopyError::PeerCorrupt => corrupt(s, fd),
    }
}

/// Bytes were taken from the ring: tells the producer, and the switch. False: the peer broke the
/// rules.
#[inline(always)]
pub(super) fn received_fast(s: &Socket, held: &mut RxHeld<'_>, n: usize) -> bool {
    s.said.head.store(held.end.ring.publish(), Relaxed);
    match held.end.switch.on_delivered(n as u64) {
        Ok(false) => {}
        Ok(true) => held.settled(s),
        Err(_) => return false,
    }
    if held.channel.wire().is_some() {
        held.channel.consumed(held.slot);
    } else if held.end.ring.take_space_request() {
        held.notify_space();
    }
    if let Some(r) = s.record()
        && let Some(w) = r.rx_bytes.get(held.channel.path() as usize)
    {
        bump(w, n as u64);
    }
    true
}

/// A forked child receives: from the kernel, as soon as nothing of the stream is left in the ring
/// that only the ring can give (the peer has closed, died, or left the ring by itself).
#[cold]
pub(super) unsafe fn recv_inherited(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    iov: &[iovec],
    total: usize,
    flags: c_int,
) -> Ret {
    let nonblocking = never_waits(s, Side::Receive, flags);
    if total == 0 {
        return PASS;
    }
    if s.has(flag::REMOTE) {
        return match await_carrier(
            s,
            g,
            fd,
            Reason::InheritedByFork,
            s.receive_timeout_ns.load(Relaxed),
            nonblocking,
        ) {
            Ok(()) if s.generation16() == g && s.is(ATTACHED) && is_broken(s) => {
                let told = if flags & libc::MSG_PEEK == 0 { flag::TOLD } else { 0 };
                if s.flags.fetch_or(told, AcqRel) & flag::TOLD == 0 { ECONNRESET } else { 0 }
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
            Ok(h) => unsafe { recv_slow(s, g, fd, iov, total, flags | libc::MSG_DONTWAIT, h) },
            Err(NotHeld::Changed) => return PASS,
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
        Ok(h) => unsafe { recv_slow(s, g, fd, &iov, 1, peek, h) },
        Err(_) => return EAGAIN,
    };
    let _ = &mut byte;
    if r == PASS { PASS } else { r.min(0) }
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
                Err(NotHeld::Changed) => return Some(PASS),
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
        match unsafe { recv_one(s, g, fd, &raw mut byte, 1, libc::MSG_PEEK) } {
            r if r > 0 => {}
            // (An error that a look has taken is the call's.)
            r if r != 0 => return Some(r),
            _ => return None,
        }
    }
}

/// What one look at a path brought.
pub(super) enum Look {
    /// Bytes, or the end: the call's result so far is complete.
    Got(usize),
    /// Nothing there now.
    Empty,
    /// The plan changed: look again.
    Again,
    /// The kernel's answer, to be handed to the application.
    Kernel(Ret),
    /// The call's own error (EFAULT...): the next call does not meet it.
    Failed(Ret),
    Corrupt,
}

#[cold]
#[inline(never)]
pub(super) unsafe fn recv_slow(
    s: &'static Socket,
    g: u16,
    mut fd: c_int,
    iov: &[iovec],
    total: usize,
    flags: c_int,
    held: RxHeld<'static>,
) -> Ret {
    let nonblocking = never_waits(s, Side::Receive, flags);
    let peek = flags & libc::MSG_PEEK != 0;
    let wait_all = flags & libc::MSG_WAITALL != 0 && !nonblocking;
    let timeout = s.receive_timeout_ns.load(Relaxed);
    let mut deadline = 0;
    let mut done = 0usize;
    let mut doubtful = None;
    // Dropped after `held`.
    let mut blocking = None;
    let mut held = Some(held);
    let finish = |done: usize, r: Ret| if done > 0 { done as Ret } else { r };
    loop {
        // (Not in the middle of a call: what comes behind would be the kernel's, and might wait.)
        if done == 0 && s.has(flag::LEAVING) {
            held = None;
            leave_if_due(s, g, fd);
        }
        let h = match held.as_mut() {
            Some(h) => h,
            None => match hold_rx(s, g) {
                Ok(h) => held.insert(h),
                Err(NotHeld::Reentrant) => return finish(done, EAGAIN),
                Err(NotHeld::Changed) => {
                    if done == 0 {
                        return PASS;
                    }
                    // Only MSG_WAITALL gets here.
                    if matches!(s.state.load(Acquire), CANDIDATE | ATTACHING) {
                        // As in `send_slow`.
                        // SAFETY: the caller's buffers.
                        match candidate(s, g, fd, Side::Receive, flags, || unsafe {
                            kernel_recv(fd, iov, done, usize::MAX, flags)
                        }) {
                            Some(r) if r != PASS => return done as Ret + r.max(0),
                            _ => continue,
                        }
                    }
                    // SAFETY: the caller's buffers.
                    return done as Ret
                        + unsafe { kernel_recv(fd, iov, done, usize::MAX, flags) }.max(0);
                }
            },
        };
        if s.has(flag::CORRUPT) {
            return finish(done, ECONNRESET);
        }
        if h.end.unsettled {
            settle_rx(s, h);
        }
        let on_carrier;
        // SAFETY: the caller's buffers.
        let look = unsafe {
            match h.end.switch.plan() {
                Plan::Fast { limit } => {
                    on_carrier = false;
                    look_fast(s, h, fd, iov, if peek { 0 } else { done }, limit, flags, nonblocking)
                }
                Plan::Carrier { limit, peek_first } => {
                    on_carrier = true;
                    look_carrier(
                        s,
                        h,
                        fd,
                        iov,
                        if peek { 0 } else { done },
                        limit,
                        peek_first,
                        flags,
                    )
                }
                Plan::Wait => {
                    on_carrier = true;
                    match h.end.switch.on_announce(load_announce(h.words)) {
                        // No answer will come from a peer that is gone.
                        Ok(false) if peer_has_ended(s, fd) => ask_carrier(s, h, fd, flags),
                        // Nor is anything there before the answer.
                        Ok(false)
                            if h.channel.wire().is_none()
                                && carrier_unread(fd).is_some_and(|n| n > 0) =>
                        {
                            match h.end.switch.on_carrier_readable(load_announce(h.words)) {
                                Ok(changed) => h.follow(s, changed),
                                Err(_) => Look::Corrupt,
                            }
                        }
                        Ok(false) => Look::Empty,
                        Ok(true) => h.follow(s, true),
                        Err(_) => Look::Corrupt,
                    }
                }
            }
        };
        match look {
            Look::Again => continue,
            Look::Corrupt => return finish(done, corrupt(s, fd)),
            Look::Failed(r) => return finish(done, r),
            Look::Kernel(r) => {
                if done > 0 && r < 0 {
                    // It belongs to the next call.
                    h.end.pending_error = r as i32;
                    if h.channel.wire().is_none() {
                        s.lower(flag::TOLD);
                    }
                }
                return finish(done, r);
            }
            Look::Got(n) => {
                done = if peek { n } else { done + n };
                if done >= total {
                    return done as Ret;
                }
                if !wait_all {
                    if !peek && !on_carrier {
                        match h.end.switch.on_announce(load_announce(h.words)) {
                            Ok(changed) if changed => h.settled(s),
                            Ok(_) => {}
                            Err(_) => return finish(done, corrupt(s, fd)),
                        }
                        // As TCP does.
                        if !matches!(h.end.switch.plan(), Plan::Fast { .. }) && is_at_mark(fd) {
                            return done as Ret;
                        }
                    }
                    // Nor may it stop where the path changes.
                    if !peek && on_carrier == matches!(h.end.switch.plan(), Plan::Fast { .. }) {
                        continue;
                    }
                    return done as Ret;
                }
                if !peek {
                    continue;
                }
                // More than what can be peeked is wanted: looked for once a millisecond, until the
                // stream ends.
                held = None;
                if deadline == 0 && timeout > 0 {
                    deadline = sys::now_ns().saturating_add(timeout as u64);
                }
                let mut p = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
                // SAFETY: one valid pollfd.
                let r = unsafe { sleep::ppoll(&mut p, 1, 1_000_000, core::ptr::null()) };
                if r != 0 || (deadline != 0 && sys::now_ns() >= deadline) {
                    return done as Ret;
                }
                continue;
            }
            // Nothing new is waited for; what was there before, and comes again by way of the
            // carrier, is.
            Look::Empty if s.has(flag::SHUT_RD) && h.end.switch.offset() >= h.end.read_until => {
                return done as Ret;
            }
            Look::Empty if s.kept_error.load(Relaxed) != 0 && done == 0 => {
                if let Some(r) = kept_error(s, fd) {
                    return r;
                }
            }
            Look::Empty => {}
        }
        // (One that stands on the ring and has followed has nothing in store but bytes: a look
        // finds them, or an error.)
        if h.end.switch.state() != RxState::Fast && is_doubtful(s, h, &mut doubtful) {
            continue;
        }
        if nonblocking || done > 0 && !wait_all {
            return finish(done, EAGAIN);
        }
        held = None;
        // (Words that change all the time are news each time.)
        if deadline != 0 && sys::now_ns() >= deadline {
            return finish(done, EAGAIN);
        }
        if deadline == 0 && timeout > 0 {
            deadline = sys::now_ns().saturating_add(timeout as u64);
        }
        if s.has(flag::SHUT_RD) {
            // Of a socket that is shut down poll says at all times that there is something.
            sys::pause_ns(1_000_000);
        }
        match block(s, &mut blocking, &mut fd, Side::Receive, on_carrier, deadline) {
            Woke::News => {}
            Woke::Timeout => return finish(done, EAGAIN),
            Woke::Signal => {
                if let Some(r) = interrupted(timeout) {
                    return finish(done, r);
                }
            }
        }
    }
}

/// A look under the lock has found nothing, while the receiver is about to change paths, and a look
/// without it would say that there is something (`before`: it said so before this look already, of
/// these words). True: look again, which is due once.
///
/// With an honest peer the news has come in between, and is found then. Where it is not, the words
/// contradict each other: nobody is blamed, but what was looked into is no news until something
/// changes, so that a program that waits sleeps.
#[cold]
#[inline(never)]
fn is_doubtful(s: &Socket, h: &RxHeld<'_>, before: &mut Option<(u32, u64)>) -> bool {
    if h.channel.wire().is_some() || !wait::receive_news(s, h.channel, h.slot) {
        return false;
    }
    let now =
        (h.words.producer_user[announce::EPOCH].load(Acquire) as u32, h.words.tail.load(Acquire));
    match before.replace(now) {
        Some(then) => {
            if then == now {
                s.said.doubt(now);
            }
            false
        }
        None => true,
    }
}

/// The next byte on the carrier is behind the urgent one: a receive stops before it.
fn is_at_mark(fd: c_int) -> bool {
    const SIOCATMARK: usize = 0x8905;
    let mut mark: c_int = 0;
    sys::ioctl(fd, SIOCATMARK, &mut mark as *mut c_int as usize) >= 0 && mark != 0
}

/// The receiver stands on the ring.
#[allow(clippy::too_many_arguments, reason = "the state of one call")]
pub(super) unsafe fn look_fast(
    s: &Socket,
    h: &mut RxHeld<'_>,
    fd: c_int,
    iov: &[iovec],
    done: usize,
    limit: u64,
    flags: c_int,
    nonblocking: bool,
) -> Look {
    let peek = flags & libc::MSG_PEEK != 0;
    let Ok(mut avail) = h.end.ring.refresh() else { return Look::Corrupt };
    if avail == 0 && h.channel.wire().is_some() {
        crate::queues::progress();
        let Ok(now) = h.end.ring.refresh() else { return Look::Corrupt };
        avail = now;
    }
    if avail > 0 {
        let limit = limit.min(avail as u64) as usize;
        // SAFETY: the caller's buffers.
        return match unsafe {
            drain(&mut h.end.ring, iov, done, limit, peek, flags & libc::MSG_TRUNC != 0)
        } {
            Ok(n) if peek => Look::Got(n),
            Ok(n) => {
                if received_fast(s, h, n) {
                    Look::Got(n)
                } else {
                    Look::Corrupt
                }
            }
            Err(CopyError::BadAddress) => Look::Failed(EFAULT),
            Err(CopyError::PeerCorrupt) => Look::Corrupt,
        };
    }
    match h.end.switch.on_announce(load_announce(h.words)) {
        Ok(false) => {}
        Ok(true) => return h.follow(s, true),
        Err(_) => return Look::Corrupt,
    }
    let now = sys::now_ns();
    let pause = if s.epoll.load(Relaxed).is_null() || s.is_inherited() {
        ASK_CARRIER_NS
    } else {
        ASK_CARRIER_IN_SET_NS
    };
    let due = h.channel.peer_ends(h.slot)
        || (nonblocking && now.wrapping_sub(h.end.carrier_asked) > pause);
    if !due && !s.has(flag::CARRIER_SPOKE) {
        return Look::Empty;
    }
    h.end.carrier_asked = now;
    ask_carrier(s, h, fd, flags)
}

/// The ring is empty: has the carrier ended, or is the stream to go on there?
#[cold]
pub(super) fn ask_carrier(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, flags: c_int) -> Look {
    // Lowered before the question, so that what is said after it raises the flag again.
    s.lower(flag::CARRIER_SPOKE);
    let ev = sys::poll_now(fd, libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI);
    if ev & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0 {
        return Look::Empty;
    }
    s.raise(flag::CARRIER_SPOKE);
    let mut byte = 0u8;
    // SAFETY: one byte of ours. A pending error is reported, and so taken, by this.
    let r = unsafe {
        sys::recvfrom(
            fd,
            &mut byte,
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
        )
    };
    if r == EAGAIN {
        return Look::Empty;
    }
    if r > 0 {
        return match h.end.switch.on_carrier_readable(load_announce(h.words)) {
            // It has left the ring, whose last bytes it published before it said so, and that
            // before it wrote to the carrier. (Between hosts they may still be on their way.)
            Ok(false)
                if h.end.switch.state() == RxState::ToCarrier
                    && !matches!(h.end.ring.refresh(), Ok(1..)) =>
            {
                if h.channel.wire().is_none() {
                    Look::Corrupt
                } else {
                    Look::Empty
                }
            }
            Ok(changed) => h.follow(s, changed),
            Err(_) => Look::Corrupt,
        };
    }
    carrier_ended(s, h, fd, r, flags)
}

/// The carrier said that it ended (0) or failed (`-errno`).
#[cold]
pub(super) fn carrier_ended(
    s: &Socket,
    h: &mut RxHeld<'_>,
    fd: c_int,
    r: Ret,
    flags: c_int,
) -> Look {
    if r == 0 && s.has(flag::SHUT_RD) && !peer_has_ended(s, s.fd.load(Acquire)) {
        // Our own doing: nothing is there now, and nothing new is waited for.
        return if h.end.switch.offset() < h.end.read_until {
            Look::Empty
        } else {
            Look::Kernel(0)
        };
    }
    let latest = load_announce(h.words);
    if r == ECONNRESET && h.channel.wire().is_none() {
        // The kernel reports it once; it belongs behind the ring's bytes, and is to be seen until
        // then.
        s.raise(flag::RESET);
    } else if r != 0 {
        h.end.pending_error = r as i32;
    }
    // (Behind our own shutdown for receiving the sender lives, and what it holds back is its own.)
    let is_over = h.channel.wire().is_none() && carrier::peer_ended(s.fd.load(Acquire));
    let left = if is_over { h.end.ring.take_held() } else { h.end.ring.refresh() };
    let Ok(left) = left else { return Look::Corrupt };
    match h.end.switch.on_carrier_eof(latest, left == 0) {
        Ok(EofVerdict::Eof) => {
            let mut r = h.end.pending_error as Ret;
            // Our own doing, or a reset of which the carrier does not know.
            let may_be = matches!(-r as c_int, 0 | libc::ENOTCONN | libc::EPIPE | libc::ECONNRESET);
            let ours =
                (r == -(libc::ENOTCONN as Ret) && is_broken(s)) || (may_be && is_reset(s, fd));
            if ours {
                r = if s.has(flag::TOLD) { 0 } else { ECONNRESET };
            } else if r == 0 {
                // What the look for a reset has found instead.
                r = s.kept_error.swap(0, Relaxed) as Ret;
            }
            // (Between hosts a look takes none.)
            let local = h.channel.wire().is_none();
            if local || flags & libc::MSG_PEEK == 0 {
                h.end.pending_error = 0;
                if ours || (local && r < 0 && carrier::is_closed(fd)) {
                    s.raise(flag::TOLD);
                }
            }
            Look::Kernel(r)
        }
        Ok(EofVerdict::Truncated)
            if s.has(flag::TOLD | flag::SHUT_RD)
                || (r == 0 && h.end.pending_error == 0 && error_was_taken(s, h)) =>
        {
            Look::Kernel(0)
        }
        Ok(EofVerdict::Truncated) => {
            if flags & libc::MSG_PEEK == 0 {
                h.end.pending_error = 0;
                s.raise(flag::TOLD);
            }
            Look::Kernel(ECONNRESET)
        }
        Ok(EofVerdict::DrainFastFirst) => Look::Again,
        Ok(EofVerdict::SkipThenDrain { skip }) => {
            if h.skip(skip).is_ok() {
                Look::Again
            } else {
                Look::Corrupt
            }
        }
        Ok(EofVerdict::FollowAnnounce) => h.follow(s, true),
        Err(_) => Look::Corrupt,
    }
}

/// The carrier was reset, and the application has heard of that elsewhere (SO_ERROR).
fn error_was_taken(s: &Socket, h: &RxHeld<'_>) -> bool {
    let gone =
        h.channel.wire().is_some_and(|w| w.slot(h.slot).leave.load(SeqCst) & parting::GONE != 0);
    !gone && !s.has(flag::SHUT_WR | flag::BROKEN_OFF) && carrier::is_closed(s.fd.load(Acquire))
}

/// The receiver stands on the carrier.
#[allow(clippy::too_many_arguments, reason = "the state of one call")]
pub(super) unsafe fn look_carrier(
    s: &Socket,
    h: &mut RxHeld<'_>,
    fd: c_int,
    iov: &[iovec],
    done: usize,
    limit: u64,
    peek_first: bool,
    flags: c_int,
) -> Look {
    if h.end.pending_error != 0 {
        return carrier_ended(s, h, fd, 0, flags);
    }
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    let mut max = limit.min(isize::MAX as u64) as usize;
    if peek_first {
        // SAFETY: the caller's buffers: peeked bytes are overwritten by the same bytes when they
        // are taken.
        let r = unsafe { kernel_recv(fd, iov, done, max, flags | libc::MSG_PEEK) };
        if r <= 0 {
            return carrier_end(s, h, fd, r, flags);
        }
        match h.end.switch.after_peek(r as u64, load_announce(h.words)) {
            Ok(0) => {
                h.settled(s);
                return Look::Again;
            }
            Ok(n) => {
                if h.end.switch.epoch() != h.said.ack.load(Relaxed) as u32 {
                    h.settled(s);
                }
                max = n as usize;
            }
            Err(_) => return Look::Corrupt,
        }
        if flags & libc::MSG_PEEK != 0 {
            return Look::Got(max);
        }
    }
    // SAFETY: the caller's buffers.
    let r = unsafe { kernel_recv(fd, iov, done, max, flags) };
    if r <= 0 {
        return carrier_end(s, h, fd, r, flags);
    }
    if flags & libc::MSG_PEEK != 0 {
        return Look::Got(r as usize);
    }
    if let Some(rec) = s.record() {
        rec.add_rx(Path::Tcp, r as u64);
    }
    match h.end.switch.on_delivered(r as u64) {
        Ok(true) => h.settled(s),
        Ok(false) => {
            if h.came_to(s).is_err() {
                return Look::Corrupt;
            }
        }
        Err(_) => return Look::Corrupt,
    }
    Look::Got(r as usize)
}

/// The carrier had no byte: nothing yet (`r` is EAGAIN), its end (0), or an error.
pub(super) fn carrier_end(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, r: Ret, flags: c_int) -> Look {
    if matches!(-r as i32, libc::EFAULT | libc::EINTR | libc::ENOMEM | libc::EINVAL) {
        return Look::Failed(r);
    }
    if r != EAGAIN {
        return carrier_ended(s, h, fd, r, flags);
    }
    match h.end.switch.on_announce(load_announce(h.words)) {
        Ok(false) => Look::Empty,
        Ok(true) => h.follow(s, true),
        Err(_) => Look::Corrupt,
    }
}

/// One kernel receive of at most `max` bytes into what comes after byte `done` of `iov`: into all
/// of these buffers, because a read that falls short says that nothing is left (epoll(7)).
pub(super) unsafe fn kernel_recv(
    fd: c_int,
    iov: &[iovec],
    done: usize,
    max: usize,
    flags: c_int,
) -> Ret {
    const FEW: usize = 16;
    let mut few = [sys::iov(core::ptr::null(), 0); FEW];
    let mut many = None;
    let (mut skip, mut room, mut count) = (done, max, 0);
    // (Where there is no memory for more the first ones do.)
    if iov.len() > FEW {
        many = Scratch::filled(iov.len(), few[0]);
    }
    let list = many.as_deref_mut().unwrap_or(&mut few);
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let Some(part) = list.get_mut(count).filter(|_| room > 0) else { break };
        let len = (v.iov_len - skip).min(room);
        *part = sys::iov(v.iov_base.cast::<u8>().wrapping_add(skip), len);
        (skip, room, count) = (0, room - len, count + 1);
    }
    match list.get(..count).unwrap_or(&[]) {
        [] => 0,
        // SAFETY: within the caller's buffer.
        [one] => unsafe {
            sleep::recvfrom(
                fd,
                one.iov_base.cast(),
                one.iov_len,
                flags,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        },
        // SAFETY: as above.
        parts => unsafe { sleep::recvmsg(fd, &mut header_of(parts), flags) },
    }
}
