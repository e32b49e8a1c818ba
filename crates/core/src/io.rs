//! The data calls: bytes onto and off the path that each direction is on.
//!
//! Budget of the fast path, both ways: one table load, one compare-and-swap for the end's lock, the copy, one release
//! store, one fence; no system call. Everything else is in functions marked cold.

use crate::api::{PASS, RESTART, Ret};
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry};
use crate::lock::{EndGuard, bump, lock_end};
use crate::log::debug_log;
use crate::socket::{self, ATTACHED, ATTACHING, CANDIDATE, PLAIN, RxEnd, Socket, TxEnd, flag};
use crate::wait::{self, Side, Woke};
use crate::{lifecycle, numbers, service, stats, sys};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*, fence};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use netacc_control::stats::{Counter, Path, Reason};
use netacc_proto::switchover::{Ack, Announce, EofVerdict, Link, Path as Way, Plan, Rx, RxState, Tx, TxState};
use netacc_ring::{Consumer, PeerCorrupt, Producer, RingWords};

const EAGAIN: Ret = -(libc::EAGAIN as Ret);
const ECONNRESET: Ret = -(libc::ECONNRESET as Ret);
/// Flags under which bytes may take the ring. MSG_MORE only asks to save packets.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
/// A call that finds the ring empty asks the carrier at most so often.
const ASK_CARRIER_NS: u64 = 100_000;
/// Pages below are never mapped: the usual bad pointer.
const LOWEST_ADDRESS: usize = 4096;

// ---- shared words --------------------------------------------------------------------------------------------

fn load_announce(w: &RingWords) -> Announce {
    let epoch = w.producer_user[announce::EPOCH].load(Acquire) as u32;
    Announce {
        epoch,
        fast_from: w.producer_user[announce::FAST_FROM].load(Relaxed),
        carrier_from: w.producer_user[announce::CARRIER_FROM].load(Relaxed),
        resend_to: w.producer_user[announce::RESEND_TO].load(Relaxed),
    }
}

fn publish_announce(w: &RingWords, a: Announce) {
    w.producer_user[announce::FAST_FROM].store(a.fast_from, Relaxed);
    w.producer_user[announce::CARRIER_FROM].store(a.carrier_from, Relaxed);
    w.producer_user[announce::RESEND_TO].store(a.resend_to, Relaxed);
    w.producer_user[announce::EPOCH].store(a.epoch as u64, Release);
}

fn load_ack(w: &RingWords) -> Ack {
    let control = w.quiet[quiet::ACK].load(Acquire);
    Ack::from_words(control, w.quiet[quiet::CONSUMED].load(Relaxed))
}

fn store_ack(w: &RingWords, rx: &Rx) {
    let ack = rx.ack();
    w.quiet[quiet::CONSUMED].store(ack.consumed, Relaxed);
    w.quiet[quiet::ACK].store(ack.control(), Release);
}

// ---- access to a socket's ends ---------------------------------------------------------------------------------

/// The sending half, held.
struct TxHeld<'a> {
    end: &'a mut TxEnd,
    words: &'a RingWords,
    channel: &'a Channel,
    slot: usize,
    _guard: EndGuard<'a>,
}

/// The receiving half, held.
struct RxHeld<'a> {
    end: &'a mut RxEnd,
    words: &'a RingWords,
    channel: &'a Channel,
    slot: usize,
    _guard: EndGuard<'a>,
}

/// Why a half could not be had.
enum NotHeld {
    /// The socket changed under the call: ask the table again.
    Changed,
    /// A signal handler interrupted the holder: this very thread.
    Reentrant,
}

#[inline]
fn hold_tx(s: &'static Socket, g: u16) -> Result<TxHeld<'static>, NotHeld> {
    let (guard, owner_died) = lock_end(&s.tx_lock).ok_or(NotHeld::Reentrant)?;
    if s.generation16() != g || !s.is(ATTACHED) {
        return Err(NotHeld::Changed);
    }
    // SAFETY: an attached socket's pointers were set by `attach` to words and a channel that live while it is attached.
    let (words, channel) = unsafe { (s.tx_words.load(Relaxed).as_ref(), s.channel()) };
    let (Some(words), Some(channel)) = (words, channel) else { return Err(NotHeld::Changed) };
    // SAFETY: `tx` belongs to the holder of `tx_lock`, which `guard` proves.
    let end = unsafe { &mut *s.tx.get() };
    if owner_died {
        repair_tx(s, end);
    }
    Ok(TxHeld { end, words, channel, slot: s.slot.load(Relaxed) as usize, _guard: guard })
}

#[inline]
fn hold_rx(s: &'static Socket, g: u16) -> Result<RxHeld<'static>, NotHeld> {
    let (guard, owner_died) = lock_end(&s.rx_lock).ok_or(NotHeld::Reentrant)?;
    if s.generation16() != g || !s.is(ATTACHED) {
        return Err(NotHeld::Changed);
    }
    // SAFETY: as in `hold_tx`.
    let (words, channel) = unsafe { (s.rx_words.load(Relaxed).as_ref(), s.channel()) };
    let (Some(words), Some(channel)) = (words, channel) else { return Err(NotHeld::Changed) };
    // SAFETY: `rx` belongs to the holder of `rx_lock`, which `guard` proves.
    let end = unsafe { &mut *s.rx.get() };
    if owner_died && end.switch.path() == Way::Fast {
        // Killed between taking bytes and counting them.
        end.ring.publish();
        let _ = end.switch.on_delivered(end.ring.head().wrapping_sub(end.switch.offset()));
    }
    Ok(RxHeld { end, words, channel, slot: s.slot.load(Relaxed) as usize, _guard: guard })
}

/// A process of the family was killed while it held the sending end: what it wrote and did not publish or count is made whole
/// (`docs/design/switchover.md`); a promotion is not tried again.
#[cold]
fn repair_tx(s: &Socket, end: &mut TxEnd) {
    end.never = true;
    end.switch.pin();
    if end.switch.state() == TxState::Fast {
        end.ring.publish();
        let _ = end.switch.on_accepted(end.ring.tail().wrapping_sub(end.switch.offset()));
    }
    if let Some(before) = end.resend_mark.take() {
        let resend = end.switch.resend();
        let now = socket::carrier_sent(s.fd.load(Acquire)).unwrap_or(before);
        let _ = end.switch.on_resent(now.wrapping_sub(before).min(resend.end - resend.start));
    }
}

impl TxHeld<'_> {
    /// Wakes whoever waits for what was just published.
    #[inline]
    fn notify(&self) {
        fence(SeqCst);
        self.channel.notify(self.slot, self.words.quiet[quiet::NOTIFY].load(Relaxed));
    }
}

impl RxHeld<'_> {
    #[inline]
    fn notify_space(&self) {
        fence(SeqCst);
        self.channel.notify(self.slot, self.words.producer_quiet[producer_quiet::NOTIFY].load(Relaxed));
    }

    /// Passes over bytes that have come by the carrier instead (fewer, if the ring has fewer).
    fn skip(&mut self, n: u64) -> Result<(), PeerCorrupt> {
        let n = n.min(self.end.ring.refresh()? as u64) as usize;
        self.end.ring.skip(n)?;
        self.end.ring.publish();
        Ok(())
    }

    /// The plan may have changed.
    fn follow(&mut self, s: &Socket, changed: bool) -> Look {
        if changed {
            self.settled(s);
        }
        Look::Again
    }

    /// The receiver may stand on another path than before.
    fn settled(&mut self, s: &Socket) {
        store_ack(self.words, &self.end.switch);
        show_path(s, false, self.end.switch.path());
    }
}

/// Shows a direction's path in the statistics.
#[cold]
fn show_path(s: &Socket, tx: bool, way: Way) {
    let Some(r) = s.record() else { return };
    let new = if way == Way::Fast { Path::Shm } else { Path::Tcp };
    let (mine, other) = if tx { (&r.tx_path, &r.rx_path) } else { (&r.rx_path, &r.tx_path) };
    let old = mine.swap(new as u32, Relaxed);
    if old == new as u32 {
        return;
    }
    let before = old.max(other.load(Relaxed));
    let after = (new as u32).max(other.load(Relaxed));
    if new == Path::Shm {
        r.promotions.fetch_add(1, Relaxed);
        stats::count(if tx { Counter::PromotedTx } else { Counter::PromotedRx });
        s.set_reason(Reason::None);
    } else {
        r.demotions.fetch_add(1, Relaxed);
        stats::count(Counter::Demoted);
    }
    if before != after {
        let first = r.promotions.load(Relaxed) == 1 && new == Path::Shm;
        let code = |c| Path::from_code(c).unwrap_or(Path::Tcp);
        stats::moved(code(before), code(after), first.then_some((Path::Tcp, Path::Shm)));
    }
}

/// Size of the ring that an attached socket produces into.
pub(crate) fn tx_ring_bytes(s: &Socket) -> u64 {
    // SAFETY: written before the socket was attached, read-only afterwards.
    unsafe { (*s.offer.get()).tx_bytes as u64 }
}

/// The peer broke the rules: nothing of what it says is believed any more, the connection is reset.
#[cold]
#[inline(never)]
fn corrupt(s: &Socket, fd: c_int) -> Ret {
    stats::count(Counter::PeerCorrupt);
    s.set_reason(Reason::PeerCorrupt);
    s.raise(flag::CORRUPT);
    let _ = sys::shutdown(fd, libc::SHUT_RDWR);
    ECONNRESET
}

// ---- entry points: receive -------------------------------------------------------------------------------------

/// What the table says, for a data call.
enum Who {
    NotOurs,
    Attached(&'static Socket, u16),
    Candidate(&'static Socket, u16),
}

#[inline(always)]
fn who(fd: c_int) -> Who {
    let raw = fd_table::raw(fd);
    if raw == 0 {
        return Who::NotOurs;
    }
    match fd_table::decode(raw) {
        Entry::Socket(s, g) => match s.state.load(Acquire) {
            ATTACHED => Who::Attached(s, g),
            CANDIDATE | ATTACHING => Who::Candidate(s, g),
            _ => Who::NotOurs,
        },
        Entry::Fresh(_) => {
            socket::look_again(fd);
            match fd_table::get(fd) {
                Entry::Socket(s, g) if s.is(CANDIDATE) => Who::Candidate(s, g),
                _ => Who::NotOurs,
            }
        }
        _ => Who::NotOurs,
    }
}

#[inline]
pub(crate) unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Ret {
    match who(fd) {
        Who::NotOurs => PASS,
        Who::Attached(s, g) => {
            let iov = [sys::iov(buf, len)];
            // SAFETY: the caller's buffer.
            unsafe { recv_attached(s, g, fd, &iov, flags) }
        }
        Who::Candidate(s, g) => {
            // SAFETY: the caller's buffer.
            let call = || unsafe { sys::recvfrom(fd, buf, len, flags, core::ptr::null_mut(), core::ptr::null_mut()) };
            // SAFETY: as this call.
            candidate(s, g, fd, Side::Receive, flags, call).unwrap_or_else(|| unsafe { recv(fd, buf, len, flags) })
        }
    }
}

fn iovs<'a>(iov: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count > libc::UIO_MAXIOV as usize || (count != 0 && (iov as usize) < LOWEST_ADDRESS) {
        return None;
    }
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: the application's array, of the length that it says, as readv(2) and friends demand.
    Some(unsafe { core::slice::from_raw_parts(iov, count) })
}

pub(crate) unsafe fn recvv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    match who(fd) {
        Who::NotOurs => PASS,
        Who::Attached(s, g) => match iovs(iov, count.max(0) as usize) {
            // SAFETY: the caller's buffers.
            Some(v) if v.iter().any(|part| part.iov_len != 0) => unsafe { recv_attached(s, g, fd, v, flags) },
            // Nothing asked, or not askable: the kernel knows the answers.
            _ => PASS,
        },
        Who::Candidate(..) if iovs(iov, count.max(0) as usize).is_none_or(|v| v.iter().all(|part| part.iov_len == 0)) => PASS,
        // SAFETY: the retry is this very call.
        Who::Candidate(s, g) => candidate(s, g, fd, Side::Receive, flags, || {
            // SAFETY: all zero is a valid msghdr; the buffers are the caller's.
            unsafe {
                let mut m: msghdr = core::mem::zeroed();
                m.msg_iov = iov.cast_mut();
                m.msg_iovlen = count.max(0) as usize;
                sys::recvmsg(fd, &mut m, flags)
            }
        })
        .unwrap_or_else(|| unsafe { recvv(fd, iov, count, flags) }),
    }
}

pub(crate) unsafe fn recvfrom(fd: c_int, buf: *mut u8, len: usize, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> Ret {
    match who(fd) {
        Who::NotOurs => PASS,
        Who::Attached(s, g) => {
            let iov = [sys::iov(buf, len)];
            // SAFETY: the caller's buffer; a connected TCP socket reports no address (tcp_recvmsg leaves msg_namelen 0).
            unsafe {
                let r = recv_attached(s, g, fd, &iov, flags);
                if r >= 0 && !addr.is_null() && !addr_len.is_null() {
                    *addr_len = 0;
                }
                r
            }
        }
        // SAFETY: the retry is this very call.
        Who::Candidate(s, g) => candidate(s, g, fd, Side::Receive, flags, || {
            // SAFETY: the caller's buffers.
            unsafe { sys::recvfrom(fd, buf, len, flags, addr.cast(), addr_len) }
        })
        .unwrap_or_else(|| unsafe { recvfrom(fd, buf, len, flags, addr, addr_len) }),
    }
}

pub(crate) unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Ret {
    match who(fd) {
        Who::NotOurs => PASS,
        Who::Attached(s, g) => {
            if (msg as usize) < LOWEST_ADDRESS {
                return -(libc::EFAULT as Ret);
            }
            // SAFETY: the caller's msghdr.
            unsafe {
                let Some(v) = iovs((*msg).msg_iov, (*msg).msg_iovlen) else { return -(libc::EMSGSIZE as Ret) };
                if flags & libc::MSG_ERRQUEUE != 0 {
                    return sys::recvmsg(fd, msg, flags);
                }
                let r = recv_attached(s, g, fd, v, flags);
                if r >= 0 {
                    (*msg).msg_namelen = 0;
                    (*msg).msg_controllen = 0;
                    (*msg).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
                }
                r
            }
        }
        // SAFETY: the retry is this very call.
        Who::Candidate(s, g) => candidate(s, g, fd, Side::Receive, flags, || {
            // SAFETY: the caller's msghdr.
            unsafe { sys::recvmsg(fd, msg, flags) }
        })
        .unwrap_or_else(|| unsafe { recvmsg(fd, msg, flags) }),
    }
}

pub(crate) unsafe fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int, _timeout: *const timespec) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    let mut flags = flags;
    for i in 0..count.min(1024) as usize {
        // SAFETY: the caller's array of `count` elements.
        let m = unsafe { &mut *msgs.add(i) };
        // SAFETY: the caller's msghdr.
        let mut r = unsafe { recvmsg(fd, &mut m.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sys::recvmsg(fd, &mut m.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        }
        if r < 0 {
            return if i > 0 { i as Ret } else { r };
        }
        m.msg_len = r as u32;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if r == 0 {
            return i as Ret + 1;
        }
    }
    count.min(1024) as Ret
}

/// Descriptors that came by SCM_RIGHTS are new, whatever the table remembers of their numbers.
pub(crate) unsafe fn on_recvmsg(msg: *const msghdr) {
    // SAFETY: the caller's promise: a msghdr just filled by the kernel.
    unsafe { for_each_passed(msg, fd_table::forget_stale) }
}

/// Calls `f` for every descriptor in the control data of `msg`.
unsafe fn for_each_passed(msg: *const msghdr, mut f: impl FnMut(c_int)) {
    if (msg as usize) < LOWEST_ADDRESS {
        return;
    }
    // SAFETY: the caller's msghdr; the CMSG macros check each header against msg_controllen.
    unsafe {
        if (*msg).msg_control.is_null() || (*msg).msg_controllen == 0 {
            return;
        }
        let mut c = libc::CMSG_FIRSTHDR(msg);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(c).cast::<c_int>();
                let n = ((*c).cmsg_len).saturating_sub(libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                for i in 0..n.min(253) {
                    f(data.add(i).read_unaligned());
                }
            }
            c = libc::CMSG_NXTHDR(msg, c);
        }
    }
}

// ---- entry points: send ----------------------------------------------------------------------------------------

#[inline]
pub(crate) unsafe fn send(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> Ret {
    match who(fd) {
        Who::NotOurs => PASS,
        Who::Attached(s, g) => {
            let iov = [sys::iov(buf, len)];
            // SAFETY: the caller's buffer.
            unsafe { send_attached(s, g, fd, &iov, flags) }
        }
        // SAFETY: the retry is this very call.
        Who::Candidate(s, g) => candidate(s, g, fd, Side::Send, flags, || {
            // SAFETY: the caller's buffer.
            unsafe { sys::sendto(fd, buf, len, flags) }
        })
        .unwrap_or_else(|| unsafe { send(fd, buf, len, flags) }),
    }
}

pub(crate) unsafe fn sendto(fd: c_int, buf: *const c_void, len: usize, flags: c_int, _addr: *const sockaddr, _addr_len: socklen_t) -> Ret {
    // SAFETY: the caller's buffer. A connected TCP socket ignores the address, unless it opens with it (MSG_FASTOPEN, which
    // `send` leaves to the kernel).
    match who(fd) {
        Who::NotOurs => PASS,
        // SAFETY: as above.
        _ => unsafe { send(fd, buf.cast(), len, flags) },
    }
}

pub(crate) unsafe fn sendv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    match who(fd) {
        Who::NotOurs => PASS,
        Who::Attached(s, g) => match iovs(iov, count.max(0) as usize) {
            // SAFETY: the caller's buffers.
            Some(v) if v.iter().any(|part| part.iov_len != 0) => unsafe { send_attached(s, g, fd, v, flags) },
            _ => PASS,
        },
        Who::Candidate(..) if iovs(iov, count.max(0) as usize).is_none_or(|v| v.iter().all(|part| part.iov_len == 0)) => PASS,
        // SAFETY: the retry is this very call.
        Who::Candidate(s, g) => candidate(s, g, fd, Side::Send, flags, || {
            // SAFETY: all zero is a valid msghdr; the buffers are the caller's.
            unsafe {
                let mut m: msghdr = core::mem::zeroed();
                m.msg_iov = iov.cast_mut();
                m.msg_iovlen = count.max(0) as usize;
                sys::sendmsg(fd, &m, flags)
            }
        })
        .unwrap_or_else(|| unsafe { sendv(fd, iov, count, flags) }),
    }
}

pub(crate) unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Ret {
    match who(fd) {
        Who::NotOurs => {
            // SAFETY: the caller's msghdr.
            unsafe {
                for_each_passed(msg, |passed| {
                    if fd_table::raw(passed) != 0 {
                        lifecycle::need_kernel(passed, Reason::PassedByScmRights);
                    }
                });
            }
            PASS
        }
        Who::Attached(s, g) => {
            if (msg as usize) < LOWEST_ADDRESS {
                return -(libc::EFAULT as Ret);
            }
            // SAFETY: the caller's msghdr.
            unsafe {
                match iovs((*msg).msg_iov, (*msg).msg_iovlen) {
                    // Control data (timestamps, zero copy...) is the kernel's.
                    Some(v) if (*msg).msg_controllen == 0 => send_attached(s, g, fd, v, flags),
                    Some(_) => {
                        to_kernel(s, g, fd, Reason::SocketOption, false);
                        PASS
                    }
                    None => -(libc::EMSGSIZE as Ret),
                }
            }
        }
        // SAFETY: the retry is this very call.
        Who::Candidate(s, g) => candidate(s, g, fd, Side::Send, flags, || {
            // SAFETY: the caller's msghdr.
            unsafe { sys::sendmsg(fd, msg, flags) }
        })
        .unwrap_or_else(|| unsafe { sendmsg(fd, msg, flags) }),
    }
}

pub(crate) unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    for i in 0..count.min(1024) as usize {
        // SAFETY: the caller's array of `count` elements.
        let m = unsafe { &mut *msgs.add(i) };
        // SAFETY: the caller's msghdr.
        let mut r = unsafe { sendmsg(fd, &m.msg_hdr, flags) };
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sys::sendmsg(fd, &m.msg_hdr, flags) };
        }
        if r < 0 {
            return if i > 0 { i as Ret } else { r };
        }
        m.msg_len = r as u32;
        let total: usize = iovs(m.msg_hdr.msg_iov, m.msg_hdr.msg_iovlen).unwrap_or(&[]).iter().map(|v| v.iov_len).sum();
        if (r as usize) < total {
            return i as Ret + 1;
        }
    }
    count.min(1024) as Ret
}

/// The kernel moves at most so much in one call (MAX_RW_COUNT).
const SENDFILE_MAX: usize = 0x7fff_f000;

/// From a file that can be read at an offset: read here, sent as any other bytes. Everything else is the kernel's.
pub(crate) unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Ret {
    let (s, g) = match who(out) {
        Who::NotOurs => return PASS,
        Who::Candidate(s, g) => {
            let r = candidate(s, g, out, Side::Send, 0, || sys::sendfile(out, input, offset, count));
            // SAFETY: the retry is this very call.
            return r.unwrap_or_else(|| unsafe { sendfile(out, input, offset, count) });
        }
        Who::Attached(s, g) => (s, g),
    };
    // The file's own position is used where the caller gives none, and stays where the sent bytes end.
    let start = if offset.is_null() {
        sys::lseek(input, 0, libc::SEEK_CUR) as i64
    } else if (offset as usize) < LOWEST_ADDRESS {
        return -(libc::EFAULT as Ret);
    } else {
        // SAFETY: the caller's offset.
        unsafe { offset.read_unaligned() }
    };
    let mut part = [0u8; 16384];
    let count = count.min(SENDFILE_MAX);
    let mut sent = 0usize;
    let mut result = 0;
    if start < 0 || sys::pread(input, part.get_mut(..count.min(1)).unwrap_or(&mut []), start) < 0 {
        // A pipe, a bad descriptor...
        return in_carrier(s, g, out, input, false, || sys::sendfile(out, input, offset, count));
    }
    while sent < count {
        let want = part.len().min(count - sent);
        let n = sys::pread(input, part.get_mut(..want).unwrap_or(&mut []), start + sent as i64);
        if n <= 0 {
            result = n;
            break;
        }
        let iov = [sys::iov(part.as_ptr(), n as usize)];
        // SAFETY: `n` bytes of `part`.
        let mut r = unsafe { send_attached(s, g, out, &iov, 0) };
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sys::sendto(out, part.as_ptr(), n as usize, 0) };
        }
        if r < 0 {
            result = r;
            break;
        }
        sent += r as usize;
        if r < n {
            break;
        }
    }
    if offset.is_null() {
        let _ = sys::lseek(input, start + sent as i64, libc::SEEK_SET);
    } else {
        // SAFETY: as above.
        unsafe { offset.write_unaligned(start + sent as i64) };
    }
    if sent > 0 { sent as Ret } else { result }
}

/// Out of a socket: the pipe is filled with what a peek shows, and so much is then taken. Into a socket: the kernel does it, on the
/// carrier.
pub(crate) unsafe fn splice(input: c_int, input_offset: *mut i64, out: c_int, out_offset: *mut i64, len: usize, flags: u32) -> Ret {
    match who(input) {
        Who::NotOurs => {}
        Who::Candidate(s, g) => {
            let call = || sys::splice(input, input_offset, out, out_offset, len, flags);
            let r = candidate(s, g, input, Side::Receive, 0, call);
            // SAFETY: the retry is this very call.
            return r.unwrap_or_else(|| unsafe { splice(input, input_offset, out, out_offset, len, flags) });
        }
        Who::Attached(s, g) => {
            if len == 0 {
                return 0;
            }
            if !input_offset.is_null() || !out_offset.is_null() {
                return -(libc::ESPIPE as Ret);
            }
            return splice_from(s, g, input, out, len, flags);
        }
    }
    match who(out) {
        Who::NotOurs => PASS,
        Who::Candidate(s, g) => {
            let call = || sys::splice(input, input_offset, out, out_offset, len, flags);
            let r = candidate(s, g, out, Side::Send, 0, call);
            // SAFETY: the retry is this very call.
            r.unwrap_or_else(|| unsafe { splice(input, input_offset, out, out_offset, len, flags) })
        }
        Who::Attached(s, g) => in_carrier(s, g, out, input, flags & libc::SPLICE_F_NONBLOCK != 0, || {
            sys::splice(input, input_offset, out, out_offset, len, flags | libc::SPLICE_F_NONBLOCK)
        }),
    }
}

fn splice_from(s: &'static Socket, g: u16, input: c_int, out: c_int, len: usize, flags: u32) -> Ret {
    let mut part = [0u8; 16384];
    let iov = [sys::iov(part.as_mut_ptr(), len.min(part.len()))];
    let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: within `part`.
    let n = unsafe { recv_attached(s, g, input, &iov, libc::MSG_PEEK | wait) };
    if n == PASS {
        return sys::splice(input, core::ptr::null_mut(), out, core::ptr::null_mut(), len, flags);
    }
    if n <= 0 {
        return n;
    }
    // One write: a pipe takes all of up to PIPE_BUF or blocks (or answers EAGAIN), of more perhaps a part.
    let mut p = libc::pollfd { fd: out, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    if wait != 0 && unsafe { sys::ppoll(&mut p, 1, 0, core::ptr::null()) } == 0 {
        return EAGAIN;
    }
    // A page at a time while the pipe says that it has room: only the first may wait.
    let mut w: isize = 0;
    while w < n {
        let end = (n as usize).min(w as usize + 4096);
        // SAFETY: one valid pollfd.
        if w > 0 && unsafe { sys::ppoll(&mut p, 1, 0, core::ptr::null()) } == 0 {
            break;
        }
        let r = sys::write(out, part.get(w as usize..end).unwrap_or(&[]));
        if r <= 0 {
            if w == 0 {
                return r;
            }
            break;
        }
        w += r;
    }
    let taken = [sys::iov(part.as_mut_ptr(), w as usize)];
    // SAFETY: within `part`; these bytes were just peeked, so this does not wait.
    match unsafe { recv_attached(s, g, input, &taken, libc::MSG_WAITALL | libc::MSG_TRUNC) } {
        // SAFETY: as above.
        PASS => unsafe { sys::recvfrom(input, part.as_mut_ptr(), w as usize, libc::MSG_TRUNC, core::ptr::null_mut(), core::ptr::null_mut()) },
        r => r,
    }
}

/// A kernel call that sends: on the carrier, with its bytes counted; later sends may take the ring again. `call` must not wait.
fn in_carrier(s: &'static Socket, g: u16, fd: c_int, source: c_int, nonblocking: bool, call: impl Fn() -> isize) -> Ret {
    let nonblocking = nonblocking || s.has(flag::NONBLOCK);
    let mut patience = Patience::of(&s.send_timeout_ns);
    loop {
        if s.is_inherited() {
            return inherited_send(s, g, fd, nonblocking);
        }
        {
            let mut h = match hold_tx(s, g) {
                Ok(h) => h,
                Err(NotHeld::Reentrant) => return EAGAIN,
                Err(NotHeld::Changed) => return PASS,
            };
            if h.end.switch.state() == TxState::Fast {
                demote_tx(s, &mut h, false);
            }
            if h.end.switch.state() != TxState::Resending {
                let r = call();
                if r > 0 {
                    let _ = h.end.switch.on_accepted(r as u64);
                    if let Some(rec) = s.record() {
                        rec.add_tx(Path::Tcp, r as u64);
                    }
                }
                if r != EAGAIN || nonblocking {
                    return r;
                }
            } else if nonblocking {
                return EAGAIN;
            }
        }
        // The socket has no room, or the source has nothing yet: waits for the one, then for the other.
        // (The source, a pipe or a file, knows no time-out.)
        if let Some(r) = patience.wait(fd, libc::POLLOUT, -1) {
            return r;
        }
        if let Some(r) = Patience::endless().wait(source, libc::POLLIN, -1) {
            return r;
        }
    }
}

// ---- candidates ------------------------------------------------------------------------------------------------

/// Flags under which a candidate's bytes cannot be counted as part of the plain stream.
const ODD_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Carries out a kernel call on a candidate, and counts what it moved. `None`: it is no candidate any more: start again.
#[inline(never)]
fn candidate(s: &'static Socket, g: u16, fd: c_int, side: Side, flags: c_int, call: impl FnOnce() -> isize) -> Option<Ret> {
    if s.generation16() != g {
        return Some(PASS);
    }
    if s.is_inherited() {
        socket::make_plain(s, Reason::InheritedByFork);
        return Some(PASS);
    }
    if flags & ODD_FLAGS != 0 {
        socket::make_plain(s, if flags & libc::MSG_OOB != 0 { Reason::UrgentData } else { Reason::SocketOption });
        return Some(PASS);
    }
    let (inflight, bytes): (&AtomicU32, &AtomicU64) = match side {
        Side::Receive => (&s.rx_inflight, &s.rx_bytes),
        Side::Send => (&s.tx_inflight, &s.tx_bytes),
    };
    inflight.fetch_add(1, SeqCst);
    while s.state.load(SeqCst) == ATTACHING {
        inflight.fetch_sub(1, SeqCst);
        core::hint::spin_loop();
        inflight.fetch_add(1, SeqCst);
    }
    if !s.is(CANDIDATE) {
        inflight.fetch_sub(1, SeqCst);
        return None;
    }
    let r = call();
    if r > 0 && flags & libc::MSG_PEEK == 0 {
        bytes.fetch_add(r as u64, Relaxed);
        if let Some(rec) = s.record() {
            if side == Side::Send { rec.add_tx(Path::Tcp, r as u64) } else { rec.add_rx(Path::Tcp, r as u64) }
        }
    }
    inflight.fetch_sub(1, SeqCst);
    if r > 0 {
        after_candidate_call(s, g, fd, side);
    }
    Some(r)
}

/// A candidate's calls that move bytes before its peer is told of it. An agreement costs both processes some ten microseconds,
/// which a connection of one request and one reply never gets back.
const NOTED_AFTER: u32 = 3;

fn after_candidate_call(s: &'static Socket, g: u16, fd: c_int, side: Side) {
    if s.offered.load(Acquire) != 0 {
        // A registration with ONESHOT may have fired: attached when it is armed again (epoll::ctl).
        if crate::epoll::may_attach(s) {
            attach(s, g, fd);
        }
        return;
    }
    let calls = s.calls.fetch_add(1, Relaxed).wrapping_add(1);
    let mut found = !s.has(flag::CONNECTOR) || s.has(flag::PROBED);
    let mut worth_it = calls == NOTED_AFTER;
    if !found && side == Side::Receive {
        s.raise(flag::PROBED);
        if !service::probe_again(s) {
            socket::make_plain(s, Reason::ListenerWithoutLibrary);
            return;
        }
        found = true;
        worth_it = calls >= NOTED_AFTER;
    }
    // A program that only sends gets no answer to look after: it looks after some calls.
    if !found && matches!(calls, 4 | 16 | 64) && service::probe_again(s) {
        s.raise(flag::PROBED);
    }
    if found && worth_it && !service::note(s) {
        socket::make_plain(s, Reason::PeerRefused);
        return;
    }
    if calls.is_multiple_of(64)
        && calls >= 128
        && let Some(r) = s.record()
        && sys::unix_ns().wrapping_sub(r.opened_unix_ns.load(Relaxed)) > 1_000_000_000
    {
        let why = match (s.has(flag::CONNECTOR), found) {
            (false, _) => Reason::PeerWithoutLibrary,
            (true, true) => Reason::PeerRefused,
            (true, false) => Reason::ListenerWithoutLibrary,
        };
        socket::make_plain(s, why);
    }
}

/// Both ends have agreed: from now on the rings may be used. Runs in an application thread, between two calls.
#[cold]
#[inline(never)]
pub(crate) fn attach(s: &'static Socket, g: u16, fd: c_int) {
    if s.state.compare_exchange(CANDIDATE, ATTACHING, SeqCst, Relaxed).is_err() {
        return;
    }
    if s.tx_inflight.load(SeqCst) != 0 || s.rx_inflight.load(SeqCst) != 0 {
        // Another thread is inside the kernel with an unknown number of bytes: at the end of some later call.
        s.state.store(CANDIDATE, SeqCst);
        return;
    }
    // SAFETY: `offered` was seen set (acquire) by the caller; the service thread does not write it again.
    let offer = unsafe { *s.offer.get() };
    let why = if s.generation16() != g {
        Some(Reason::Negotiating)
    } else if s.forks.load(Relaxed) != lifecycle::forks() {
        // A child has it too, and may not have the memory that this process has mapped since.
        Some(Reason::InheritedByFork)
    } else if s.registrations.load(Acquire) > 1 {
        Some(Reason::SeveralEpollSets)
    } else if !socket::counts_agree(s, fd) {
        Some(Reason::UncountedBytes)
    } else {
        None
    };
    // SAFETY: the service thread's channel lives while `users` counts this socket.
    let channel = unsafe { &*offer.channel };
    let slot = offer.slot as usize;
    let (tx_words, rx_words) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let (Some(tx_ring), Some(rx_ring)) = (NonNull::new(offer.tx_ring), NonNull::new(offer.rx_ring)) else {
        refuse_offer(s, channel, Reason::NoMemory);
        return;
    };
    if let Some(why) = why {
        refuse_offer(s, channel, why);
        return;
    }
    let fl = sys::fcntl(fd, libc::F_GETFL, 0);
    socket::set_nonblock(s, fl >= 0 && fl as c_int & libc::O_NONBLOCK != 0);
    s.receive_timeout_ns.store(crate::options::timeout_of(fd, libc::SO_RCVTIMEO), Relaxed);
    s.send_timeout_ns.store(crate::options::timeout_of(fd, libc::SO_SNDTIMEO), Relaxed);
    let mut tx = Tx::new();
    let mut rx = Rx::new();
    let _ = tx.on_accepted(s.tx_bytes.load(Relaxed));
    let _ = rx.on_delivered(s.rx_bytes.load(Relaxed));
    rx.arm();
    // SAFETY: nobody holds the ends: the state is ATTACHING and no call is in flight. The words and rings live in
    // mappings that outlive the attachment; their sizes were checked by the service thread; both start at 0.
    unsafe {
        s.tx.get().write(TxEnd {
            switch: tx,
            ring: Producer::new(NonNull::from(tx_words), tx_ring, offer.tx_bytes as usize, 0),
            never: false,
            resend_mark: None,
            linger: None,
            test_switch: lifecycle::test_switch(),
        });
        s.rx.get().write(RxEnd {
            switch: rx,
            ring: Consumer::new(NonNull::from(rx_words), rx_ring, offer.rx_bytes as usize, 0),
            carrier_asked: 0,
            pending_error: 0,
        });
    }
    s.tx_words.store((tx_words as *const RingWords).cast_mut(), Release);
    s.rx_words.store((rx_words as *const RingWords).cast_mut(), Release);
    s.channel.store(offer.channel.cast_mut(), Release);
    s.slot.store(offer.slot, Release);
    if let Some(r) = s.record() {
        r.peer_pid.store(channel.peer_pid, Relaxed);
    }
    s.state.store(ATTACHED, SeqCst);
    crate::epoll::on_attached(s, fd);
    // Last: the peer may send into the ring from here on.
    store_ack(rx_words, &rx);
    debug_log!("fd {fd}: attached to slot {slot}, sent {} received {}", s.tx_bytes.load(Relaxed), s.rx_bytes.load(Relaxed));
}

#[cold]
fn refuse_offer(s: &'static Socket, channel: &Channel, why: Reason) {
    // SAFETY: as in `attach`.
    let slot = unsafe { (*s.offer.get()).slot } as usize;
    s.set_reason(why);
    s.state.store(PLAIN, SeqCst);
    channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    service::released(channel, slot);
}

// ---- attached: send --------------------------------------------------------------------------------------------

/// Copies what fits of `iov`, of which `done` bytes are already sent, into the ring. Returns how many.
#[inline]
unsafe fn fill(ring: &mut Producer, iov: &[iovec], done: usize) -> Result<usize, PeerCorrupt> {
    let mut skip = done;
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = v.iov_len - skip;
        // SAFETY: within the caller's buffer.
        let put = unsafe { ring.write(v.iov_base.cast::<u8>().add(skip), len)? };
        n += put;
        if put < len {
            break;
        }
        skip = 0;
    }
    Ok(n)
}

fn total_len(iov: &[iovec]) -> Option<usize> {
    let mut total = 0usize;
    for v in iov {
        total = total.checked_add(v.iov_len).filter(|t| *t <= isize::MAX as usize)?;
        if v.iov_len != 0 && (v.iov_base as usize) < LOWEST_ADDRESS {
            return None;
        }
    }
    Some(total)
}

/// A forked child sends: through the kernel, once nothing waits to go before it. [`PASS`], or `-errno`.
#[cold]
fn inherited_send(s: &'static Socket, g: u16, fd: c_int, nonblocking: bool) -> Ret {
    let mut patience = Patience::of(&s.send_timeout_ns);
    loop {
        to_kernel(s, g, fd, Reason::InheritedByFork, false);
        if !is_resending(s, g) {
            return PASS;
        }
        if nonblocking || s.has(flag::NONBLOCK) {
            return EAGAIN;
        }
        if let Some(r) = patience.wait(fd, libc::POLLOUT, -1) {
            return r;
        }
    }
}

#[inline]
unsafe fn send_attached(s: &'static Socket, g: u16, fd: c_int, iov: &[iovec], flags: c_int) -> Ret {
    let total = match iov {
        [one] if one.iov_base as usize >= LOWEST_ADDRESS && one.iov_len <= isize::MAX as usize => one.iov_len,
        _ => match total_len(iov) {
            Some(t) => t,
            None => return -(libc::EFAULT as Ret),
        },
    };
    if s.is_inherited() {
        // The sending direction is the carrier's from here on, whatever becomes of the other.
        return inherited_send(s, g, fd, flags & libc::MSG_DONTWAIT != 0);
    }
    let mut held = match hold_tx(s, g) {
        Ok(h) => h,
        Err(NotHeld::Reentrant) => return EAGAIN,
        Err(NotHeld::Changed) => return PASS,
    };
    let plain = flags & !SEND_FLAGS == 0 && s.flags.load(Acquire) & (flag::SHUT_WR | flag::CARRIER_SPOKE | flag::CORRUPT) == 0;
    if plain && held.end.switch.state() == TxState::Fast && held.end.test_switch == 0 && total > 0 {
        // SAFETY: the caller's buffers.
        let n = match unsafe { fill(&mut held.end.ring, iov, 0) } {
            Ok(n) => n,
            Err(_) => return corrupt(s, fd),
        };
        if n > 0 {
            sent_fast(s, &mut held, n);
            if n == total {
                return n as Ret;
            }
        }
        // SAFETY: the caller's buffers.
        return unsafe { send_slow(s, g, fd, iov, total, n, flags, held) };
    }
    // SAFETY: the caller's buffers.
    unsafe { send_slow(s, g, fd, iov, total, 0, flags, held) }
}

#[inline]
fn sent_fast(s: &Socket, held: &mut TxHeld<'_>, n: usize) {
    held.end.ring.publish();
    let _ = held.end.switch.on_accepted(n as u64);
    held.notify();
    if let Some(r) = s.record()
        && let Some(w) = r.tx_bytes.get(Path::Shm as usize)
    {
        bump(w, n as u64);
    }
}

/// Sends on, from byte `done`: promotes, waits for room, or goes through the kernel.
#[cold]
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "the state of one call, handed on once")]
unsafe fn send_slow(s: &'static Socket, g: u16, mut fd: c_int, iov: &[iovec], total: usize, mut done: usize, flags: c_int, held: TxHeld<'static>) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    let timeout = s.send_timeout_ns.load(Relaxed);
    let mut deadline = 0;
    // Dropped after `held`.
    let mut blocking = None;
    let mut held = Some(held);
    let finish = |done: usize, r: Ret| if done > 0 { done as Ret } else { r };
    loop {
        let h = match held.as_mut() {
            Some(h) => h,
            None => match hold_tx(s, g) {
                Ok(h) => held.insert(h),
                Err(NotHeld::Reentrant) => return finish(done, EAGAIN),
                Err(NotHeld::Changed) => {
                    // Plain meanwhile: the kernel takes the rest.
                    if done == 0 {
                        return PASS;
                    }
                    // SAFETY: the caller's buffers.
                    let r = if nonblocking { 0 } else { unsafe { kernel_send(fd, iov, done, flags) } };
                    return done as Ret + r.max(0);
                }
            },
        };
        if s.has(flag::CORRUPT) {
            return finish(done, ECONNRESET);
        }
        test_switch_tx(s, h);
        if flags & libc::MSG_OOB != 0 && !h.end.never {
            // The receiver's urgent byte stands outside of the bytes that it reads: offsets would no longer agree.
            h.end.never = true;
            s.set_reason(Reason::UrgentData);
        }
        if h.end.switch.state() == TxState::Fast {
            let odd = flags & !SEND_FLAGS != 0 || s.has(flag::SHUT_WR);
            if odd || peer_is_going(s, h, fd) {
                demote_tx(s, h, !odd);
                continue;
            }
            if total == 0 {
                return 0;
            }
            // SAFETY: the caller's buffers.
            match unsafe { fill(&mut h.end.ring, iov, done) } {
                Ok(0) => {}
                Ok(n) => {
                    sent_fast(s, h, n);
                    done += n;
                    if done == total {
                        return done as Ret;
                    }
                    if !nonblocking {
                        continue;
                    }
                }
                Err(_) => return finish(done, corrupt(s, fd)),
            }
            match h.end.ring.want_space(1) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => return finish(done, corrupt(s, fd)),
            }
            if nonblocking {
                return finish(done, EAGAIN);
            }
        } else if h.end.switch.state() == TxState::Carrier {
            if promote(s, h, fd, flags) {
                continue;
            }
            // SAFETY: the caller's buffers.
            let r = unsafe { kernel_send(fd, iov, done, flags | libc::MSG_DONTWAIT) };
            if r >= 0 {
                let _ = h.end.switch.on_accepted(r as u64);
                if let Some(rec) = s.record() {
                    rec.add_tx(Path::Tcp, r as u64);
                }
                done += r as usize;
                if done >= total || nonblocking {
                    return done as Ret;
                }
                continue;
            }
            if r != EAGAIN || nonblocking {
                return finish(done, r);
            }
        } else if h.end.switch.state() == TxState::Shut {
            if done > 0 {
                return done as Ret;
            }
            // SAFETY: the caller's buffers; the kernel answers EPIPE and sends SIGPIPE as it must.
            return unsafe { kernel_send(fd, iov, done, flags) };
        } else if s.has(flag::SHUT_WR) {
            // Shut down, but bytes still go before the FIN: the kernel cannot say it yet.
            if done == 0 && flags & libc::MSG_NOSIGNAL == 0 {
                sys::raise(libc::SIGPIPE);
            }
            return finish(done, -(libc::EPIPE as Ret));
        } else if nonblocking {
            return finish(done, EAGAIN);
        }
        // Wait for room.
        let on_carrier = h.end.switch.state() != TxState::Fast;
        held = None;
        if deadline == 0 && timeout > 0 {
            deadline = sys::now_ns().saturating_add(timeout as u64);
        }
        match block(s, &mut blocking, &mut fd, Side::Send, on_carrier, deadline) {
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

/// Blocks, and survives that another thread closes the descriptor meanwhile: as in the kernel, the call goes on with what it was
/// made on. `fd` becomes the carrier's other name then.
fn block(s: &'static Socket, blocking: &mut Option<Blocking>, fd: &mut c_int, side: Side, on_carrier: bool, deadline: u64) -> Woke {
    if blocking.is_none() {
        *blocking = Some(Blocking::new(s));
    }
    renew(s, fd);
    let woke = wait::block(s, *fd, side, on_carrier, deadline);
    renew(s, fd);
    woke
}

/// Where `fd` was closed meanwhile, another name of the carrier: a duplicate, or the library's own.
fn renew(s: &Socket, fd: &mut c_int) {
    if !matches!(fd_table::get(*fd), Entry::Socket(now, _) if core::ptr::eq(now, s)) {
        let other = s.fd.load(Acquire);
        if other >= 0 {
            *fd = other;
        }
    }
}

/// Something that is under way, a call that blocks or a pull-back: keeps the connection from being taken apart by a close meanwhile.
struct Blocking(&'static Socket);

impl Blocking {
    fn new(s: &'static Socket) -> Blocking {
        s.waiters.fetch_add(1, SeqCst);
        Blocking(s)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        if self.0.waiters.fetch_sub(1, SeqCst) == 1 && self.0.has(flag::ORPHAN) {
            socket::bury_orphan(self.0);
        }
    }
}

/// One kernel send of what comes after byte `done`.
unsafe fn kernel_send(fd: c_int, iov: &[iovec], done: usize, flags: c_int) -> Ret {
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
                sys::sendmsg(fd, &m, flags)
            };
        }
        // SAFETY: within the caller's buffer.
        return unsafe { sys::sendto(fd, v.iov_base.cast::<u8>().add(skip), v.iov_len - skip, flags) };
    }
    // SAFETY: nothing to send: the kernel checks the socket's state.
    unsafe { sys::sendto(fd, core::ptr::null(), 0, flags) }
}

/// The peer closed or is closing: from here on the kernel knows best what a send means (EPIPE, ECONNRESET, or bytes to a peer that
/// only closed its sending half).
fn peer_is_going(s: &Socket, h: &TxHeld<'_>, fd: c_int) -> bool {
    if h.words.quiet[quiet::REQUEST].load(Relaxed) & quiet::CLOSED != 0 {
        return true;
    }
    if !s.has(flag::CARRIER_SPOKE) {
        return false;
    }
    if sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
        return true;
    }
    // It said something else: the receiving side's business, who asks again when its ring is empty.
    if sys::poll_now(fd, libc::POLLIN | libc::POLLPRI) == 0 {
        s.lower(flag::CARRIER_SPOKE);
    }
    false
}

fn demote_tx(s: &Socket, h: &mut TxHeld<'_>, for_good: bool) {
    if for_good {
        h.end.never = true;
    }
    if let Ok(a) = h.end.switch.demote() {
        publish_announce(h.words, a);
        show_path(s, true, Way::Carrier);
        h.notify();
    }
}

/// Moves the sending direction onto the ring if the peer is ready for it.
fn promote(s: &Socket, h: &mut TxHeld<'_>, fd: c_int, flags: c_int) -> bool {
    if h.end.never || flags & !SEND_FLAGS != 0 || s.has(flag::SHUT_WR) {
        return false;
    }
    if peer_is_going(s, h, fd) {
        h.end.never = true;
        return false;
    }
    let Ok(a) = h.end.switch.promote(load_ack(h.words), Link::Reliable) else { return false };
    publish_announce(h.words, a);
    fence(SeqCst);
    h.end.ring.continue_at(h.end.switch.offset());
    match h.end.switch.confirm(load_ack(h.words)) {
        Ok(None) => {
            show_path(s, true, Way::Fast);
            true
        }
        Ok(Some(back)) => {
            publish_announce(h.words, back);
            false
        }
        Err(_) => false,
    }
}

/// Test aid: changes the path now and then.
fn test_switch_tx(s: &Socket, h: &mut TxHeld<'_>) {
    if h.end.test_switch == 0 {
        return;
    }
    // xorshift32, seeded by the variable's value: reproducible for one sequence of calls.
    let mut x = h.end.test_switch;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    h.end.test_switch = x | 1;
    if h.end.switch.state() == TxState::Fast && x.is_multiple_of(16) {
        demote_tx(s, h, false);
    }
}

// ---- attached: receive -----------------------------------------------------------------------------------------

/// Copies up to `limit` bytes from the ring into `iov`, of which `done` bytes are filled. `peek` leaves them there; `drop_bytes`
/// (MSG_TRUNC) copies nothing.
#[inline]
unsafe fn drain(ring: &mut Consumer, iov: &[iovec], done: usize, limit: usize, peek: bool, drop_bytes: bool) -> Result<usize, PeerCorrupt> {
    let mut skip = done;
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = (v.iov_len - skip).min(limit - n);
        // SAFETY: within the caller's buffer.
        let got = unsafe {
            let at = v.iov_base.cast::<u8>().add(skip);
            match (peek, drop_bytes) {
                (false, false) => ring.read(at, len)?,
                (true, false) => ring.peek(n, at, len)?,
                (false, true) => ring.skip(len)?,
                (true, true) => len.min(ring.available()?.saturating_sub(n)),
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

#[inline]
unsafe fn recv_attached(s: &'static Socket, g: u16, fd: c_int, iov: &[iovec], flags: c_int) -> Ret {
    let drop_bytes = flags & libc::MSG_TRUNC != 0;
    let (total, valid) = match iov {
        [one] if one.iov_base as usize >= LOWEST_ADDRESS && one.iov_len <= isize::MAX as usize => (one.iov_len, true),
        _ => (iov.iter().map(|v| v.iov_len).fold(0, usize::saturating_add), drop_bytes || total_len(iov).is_some()),
    };
    if s.is_inherited() {
        // SAFETY: the caller's buffers.
        return unsafe { recv_inherited(s, g, fd, iov, total, flags) };
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Urgent data and the error queue never leave the carrier.
        return match iov.first() {
            // SAFETY: the caller's buffer.
            Some(v) => unsafe { sys::recvfrom(fd, v.iov_base.cast(), v.iov_len, flags, core::ptr::null_mut(), core::ptr::null_mut()) },
            None => 0,
        };
    }
    let mut held = match hold_rx(s, g) {
        Ok(h) => h,
        Err(NotHeld::Reentrant) => return EAGAIN,
        Err(NotHeld::Changed) => return PASS,
    };
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == 0
        && total > 0
        && valid
        && let Plan::Fast { limit } = held.end.switch.plan()
    {
        match held.end.ring.available() {
            Ok(0) => {}
            Ok(avail) => {
                let limit = (limit.min(avail as u64)) as usize;
                // SAFETY: the caller's buffers.
                return match unsafe { drain(&mut held.end.ring, iov, 0, limit, false, false) } {
                    Ok(n) => {
                        if received_fast(s, &mut held, n) {
                            n as Ret
                        } else {
                            corrupt(s, fd)
                        }
                    }
                    Err(_) => corrupt(s, fd),
                };
            }
            Err(_) => return corrupt(s, fd),
        }
    }
    if total == 0 || !valid {
        return recv_nothing(s, g, fd, total, flags, held);
    }
    // SAFETY: the caller's buffers.
    unsafe { recv_slow(s, g, fd, iov, total, flags, held) }
}

/// Bytes were taken from the ring: tells the producer, and the switch. False: the peer broke the rules.
#[inline]
fn received_fast(s: &Socket, held: &mut RxHeld<'_>, n: usize) -> bool {
    held.end.ring.publish();
    match held.end.switch.on_delivered(n as u64) {
        Ok(false) => {}
        Ok(true) => held.settled(s),
        Err(_) => return false,
    }
    if held.end.ring.take_space_request() {
        held.notify_space();
    }
    if let Some(r) = s.record()
        && let Some(w) = r.rx_bytes.get(Path::Shm as usize)
    {
        bump(w, n as u64);
    }
    true
}

/// A forked child receives: from the kernel, as soon as nothing of the stream is left in the ring that only the ring can give
/// (the peer has closed, died, or left the ring by itself).
#[cold]
unsafe fn recv_inherited(s: &'static Socket, g: u16, fd: c_int, iov: &[iovec], total: usize, flags: c_int) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    let mut patience = Patience::of(&s.receive_timeout_ns);
    loop {
        if to_kernel(s, g, fd, Reason::InheritedByFork, false) || total == 0 {
            return PASS;
        }
        let r = match hold_rx(s, g) {
            // SAFETY: the caller's buffers. Never blocks: the child has no waiting place in its parent's channel.
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

/// A receive that takes no byte, because none is asked for or the buffer is no buffer: waits as any other
/// (tcp_recvmsg), then says so.
#[cold]
fn recv_nothing(s: &'static Socket, g: u16, fd: c_int, total: usize, flags: c_int, held: RxHeld<'static>) -> Ret {
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
    match r {
        PASS => PASS,
        r if r > 0 && total > 0 => -(libc::EFAULT as Ret),
        r => r.min(0),
    }
}

/// What one look at a path brought.
enum Look {
    /// Bytes, or the end: the call's result so far is complete.
    Got(usize),
    /// Nothing there now.
    Empty,
    /// The plan changed: look again.
    Again,
    /// The kernel's answer, to be handed to the application.
    Kernel(Ret),
    Corrupt,
}

#[cold]
#[inline(never)]
unsafe fn recv_slow(s: &'static Socket, g: u16, mut fd: c_int, iov: &[iovec], total: usize, flags: c_int, held: RxHeld<'static>) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let wait_all = flags & libc::MSG_WAITALL != 0 && !nonblocking;
    let timeout = s.receive_timeout_ns.load(Relaxed);
    let mut deadline = 0;
    let mut done = 0usize;
    // Dropped after `held`.
    let mut blocking = None;
    let mut held = Some(held);
    let finish = |done: usize, r: Ret| if done > 0 { done as Ret } else { r };
    loop {
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
                    // SAFETY: the caller's buffers.
                    return done as Ret + unsafe { kernel_recv(fd, iov, done, usize::MAX, flags) }.max(0);
                }
            },
        };
        if s.has(flag::CORRUPT) {
            return finish(done, ECONNRESET);
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
                    look_carrier(s, h, fd, iov, if peek { 0 } else { done }, limit, peek_first, flags)
                }
                Plan::Wait => {
                    on_carrier = true;
                    match h.end.switch.on_announce(load_announce(h.words)) {
                        // No answer will come from a peer that is gone.
                        Ok(false) if sys::poll_now(fd, libc::POLLRDHUP) != 0 => ask_carrier(s, h, fd, flags),
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
            Look::Kernel(r) => {
                if done > 0 && r < 0 {
                    // It belongs to the next call.
                    h.end.pending_error = r as i32;
                }
                return finish(done, r);
            }
            Look::Got(n) => {
                done = if peek { n } else { done + n };
                if done >= total || !wait_all {
                    return done as Ret;
                }
                if !peek {
                    continue;
                }
                // More than what can be peeked is wanted: looked for once a millisecond, until the stream ends.
                held = None;
                if deadline == 0 && timeout > 0 {
                    deadline = sys::now_ns().saturating_add(timeout as u64);
                }
                let mut p = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
                // SAFETY: one valid pollfd.
                let r = unsafe { sys::ppoll(&mut p, 1, 1_000_000, core::ptr::null()) };
                if r != 0 || (deadline != 0 && sys::now_ns() >= deadline) {
                    return done as Ret;
                }
                continue;
            }
            Look::Empty => {}
        }
        if nonblocking {
            return finish(done, EAGAIN);
        }
        held = None;
        if deadline == 0 && timeout > 0 {
            deadline = sys::now_ns().saturating_add(timeout as u64);
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

/// The receiver stands on the ring.
#[allow(clippy::too_many_arguments, reason = "the state of one call")]
unsafe fn look_fast(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, iov: &[iovec], done: usize, limit: u64, flags: c_int, nonblocking: bool) -> Look {
    let peek = flags & libc::MSG_PEEK != 0;
    let Ok(avail) = h.end.ring.available() else { return Look::Corrupt };
    if avail > 0 {
        let limit = limit.min(avail as u64) as usize;
        // SAFETY: the caller's buffers.
        return match unsafe { drain(&mut h.end.ring, iov, done, limit, peek, flags & libc::MSG_TRUNC != 0) } {
            Ok(n) if peek => Look::Got(n),
            Ok(n) => {
                if received_fast(s, h, n) {
                    Look::Got(n)
                } else {
                    Look::Corrupt
                }
            }
            Err(_) => Look::Corrupt,
        };
    }
    match h.end.switch.on_announce(load_announce(h.words)) {
        Ok(false) => {}
        Ok(true) => return h.follow(s, true),
        Err(_) => return Look::Corrupt,
    }
    let now = sys::now_ns();
    let due = nonblocking && now.wrapping_sub(h.end.carrier_asked) > ASK_CARRIER_NS;
    if !due && !s.has(flag::CARRIER_SPOKE) {
        return Look::Empty;
    }
    h.end.carrier_asked = now;
    ask_carrier(s, h, fd, flags)
}

/// The ring is empty: has the carrier ended, or is the stream to go on there?
#[cold]
fn ask_carrier(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, flags: c_int) -> Look {
    // Lowered before the question, so that what is said after it raises the flag again.
    s.lower(flag::CARRIER_SPOKE);
    let ev = sys::poll_now(fd, libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI);
    if ev & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0 {
        return Look::Empty;
    }
    s.raise(flag::CARRIER_SPOKE);
    let mut byte = 0u8;
    // SAFETY: one byte of ours. A pending error is reported, and so taken, by this.
    let r = unsafe { sys::recvfrom(fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT, core::ptr::null_mut(), core::ptr::null_mut()) };
    if r == EAGAIN {
        return Look::Empty;
    }
    if r > 0 {
        return match h.end.switch.on_carrier_readable(load_announce(h.words)) {
            Ok(changed) => h.follow(s, changed),
            Err(_) => Look::Corrupt,
        };
    }
    carrier_ended(s, h, r, flags)
}

/// The carrier said that it ended (0) or failed (`-errno`).
#[cold]
fn carrier_ended(s: &Socket, h: &mut RxHeld<'_>, r: Ret, flags: c_int) -> Look {
    let latest = load_announce(h.words);
    if r != 0 {
        // The kernel reports an error once; it belongs behind the ring's bytes.
        h.end.pending_error = r as i32;
    }
    let Ok(left) = h.end.ring.refresh() else { return Look::Corrupt };
    match h.end.switch.on_carrier_eof(latest, left == 0) {
        Ok(EofVerdict::Eof) => {
            let r = h.end.pending_error as Ret;
            if flags & libc::MSG_PEEK == 0 {
                h.end.pending_error = 0;
            }
            Look::Kernel(r)
        }
        Ok(EofVerdict::Truncated) => Look::Kernel(ECONNRESET),
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

/// The receiver stands on the carrier.
#[allow(clippy::too_many_arguments, reason = "the state of one call")]
unsafe fn look_carrier(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, iov: &[iovec], done: usize, limit: u64, peek_first: bool, flags: c_int) -> Look {
    if h.end.pending_error != 0 {
        return carrier_ended(s, h, 0, flags);
    }
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    let mut max = limit.min(isize::MAX as u64) as usize;
    if peek_first {
        // SAFETY: the caller's buffers: peeked bytes are overwritten by the same bytes when they are taken.
        let r = unsafe { kernel_recv(fd, iov, done, max, flags | libc::MSG_PEEK) };
        if r <= 0 {
            return carrier_end(s, h, r, flags);
        }
        match h.end.switch.after_peek(r as u64, load_announce(h.words)) {
            Ok(0) => {
                h.settled(s);
                return Look::Again;
            }
            Ok(n) => {
                if h.end.switch.epoch() as u64 != h.words.quiet[quiet::ACK].load(Relaxed) & 0xffff_ffff {
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
        return carrier_end(s, h, r, flags);
    }
    if flags & libc::MSG_PEEK != 0 {
        return Look::Got(r as usize);
    }
    if let Some(rec) = s.record() {
        rec.add_rx(Path::Tcp, r as u64);
    }
    match h.end.switch.on_delivered(r as u64) {
        Ok(changed) => {
            if changed {
                h.settled(s);
            }
            Look::Got(r as usize)
        }
        Err(_) => Look::Corrupt,
    }
}

/// The carrier had no byte: nothing yet (`r` is EAGAIN), its end (0), or an error.
fn carrier_end(s: &Socket, h: &mut RxHeld<'_>, r: Ret, flags: c_int) -> Look {
    if matches!(-r as i32, libc::EFAULT | libc::EINTR | libc::ENOMEM | libc::EINVAL) {
        return Look::Kernel(r);
    }
    if r != EAGAIN {
        return carrier_ended(s, h, r, flags);
    }
    match h.end.switch.on_announce(load_announce(h.words)) {
        Ok(false) => Look::Empty,
        Ok(true) => h.follow(s, true),
        Err(_) => Look::Corrupt,
    }
}

/// One kernel receive of at most `max` bytes into what comes after byte `done` of `iov`.
unsafe fn kernel_recv(fd: c_int, iov: &[iovec], done: usize, max: usize, flags: c_int) -> Ret {
    let mut skip = done;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = (v.iov_len - skip).min(max);
        // SAFETY: within the caller's buffer. Filling one buffer of several is a short read, which a stream allows.
        return unsafe { sys::recvfrom(fd, v.iov_base.cast::<u8>().add(skip), len, flags, core::ptr::null_mut(), core::ptr::null_mut()) };
    }
    0
}

/// A signal handler ran during a wait. `None`: the call goes on, as the kernel would have restarted it; otherwise the call's result.
///
/// The kernel restarts a call that has no time-out (signal(7)) when the handler was installed with SA_RESTART. Which handler ran cannot
/// be known; so it is done only if all of the process's handlers have it.
#[cold]
fn interrupted(timeout_ns: i64) -> Option<Ret> {
    if timeout_ns > 0 || !(1..=64).all(sys::handler_restarts) {
        return Some(-(libc::EINTR as Ret));
    }
    // The thread may have been cancelled, which only the hook can see to.
    lifecycle::threads_are_cancelled().then_some(RESTART)
}

/// How long one call may wait: SO_RCVTIMEO or SO_SNDTIMEO, counted from its first wait.
struct Patience {
    timeout_ns: i64,
    until: u64,
}

impl Patience {
    fn endless() -> Patience {
        Patience { timeout_ns: 0, until: 0 }
    }

    fn of(timeout_ns: &AtomicI64) -> Patience {
        Patience { timeout_ns: timeout_ns.load(Relaxed), until: 0 }
    }

    /// Waits until the kernel says one of `events` of `fd`, or `look_ns` have passed (< 0: no such limit). `Some`: the call ends with that.
    fn wait(&mut self, fd: c_int, events: i16, look_ns: i64) -> Option<Ret> {
        let mut limit = look_ns;
        if self.timeout_ns > 0 {
            let now = sys::now_ns();
            if self.until == 0 {
                self.until = now.saturating_add(self.timeout_ns as u64);
            }
            let left = self.until.saturating_sub(now) as i64;
            if left == 0 {
                return Some(EAGAIN);
            }
            limit = if look_ns < 0 { left } else { left.min(look_ns) };
        }
        let mut p = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one valid pollfd.
        let r = unsafe { sys::ppoll(&mut p, 1, limit, core::ptr::null()) };
        if r == -(libc::EINTR as isize) { interrupted(self.timeout_ns) } else { None }
    }
}

// ---- shutdown and close ----------------------------------------------------------------------------------------

pub(crate) fn shutdown(s: &'static Socket, g: u16, fd: c_int, how: c_int) -> Ret {
    if s.is_inherited() {
        to_kernel(s, g, fd, Reason::InheritedByFork, false);
        return PASS;
    }
    if (how == libc::SHUT_WR || how == libc::SHUT_RDWR)
        && let Ok(mut h) = hold_tx(s, g)
    {
        s.raise(flag::SHUT_WR);
        if h.end.switch.state() == TxState::Resending {
            // Bytes that go out again over the carrier go before its FIN: who sends the last of them shuts it down.
            s.raise(flag::FIN_LATER);
        } else {
            announce_end(s, &mut h);
        }
    }
    let r = match how {
        libc::SHUT_WR if s.has(flag::FIN_LATER) => 0,
        libc::SHUT_RDWR if s.has(flag::FIN_LATER) => sys::shutdown(fd, libc::SHUT_RD),
        _ => sys::shutdown(fd, how),
    };
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        s.raise(flag::CARRIER_SPOKE);
    }
    wait::prod(s);
    r
}

/// Tells the peer where the ring's part of the stream ends, before the carrier's FIN.
fn announce_end(s: &Socket, h: &mut TxHeld<'_>) {
    if let Ok(Some(a)) = h.end.switch.shutdown() {
        publish_announce(h.words, a);
        show_path(s, true, Way::Carrier);
        h.notify();
    }
}

/// The last descriptor is about to be closed.
pub(crate) fn before_close(s: &'static Socket, fd: c_int) {
    if s.is_inherited() {
        return;
    }
    let g = s.generation16();
    if let Ok(mut h) = hold_tx(s, g) {
        announce_end(s, &mut h);
    }
    if let Ok(h) = hold_rx(s, g) {
        let unread = h.end.ring.refresh().unwrap_or(0);
        if unread > 0 && fd >= 0 {
            // Closing with unread data resets the connection (RFC 9293 3.6.1; Linux: tcp_close); the kernel cannot see the ring's.
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        }
    }
}

/// The last descriptor is about to be closed, and something is under way that needs the carrier: `fd`'s other name becomes the
/// library's own. True: the socket lives on as an orphan. False: nothing new can get under way any more.
pub(crate) fn outlives_close(s: &'static Socket, fd: c_int) -> bool {
    let g = s.generation16();
    let Ok(mut h) = hold_tx(s, g) else { return false };
    if s.waiters.load(SeqCst) > 0 {
        // The kernel's calls hold the file; ours hold a name of it.
        let own = numbers::make(|| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0));
        if own >= 0 {
            s.fd.store(own, Release);
            s.raise(flag::ORPHAN);
            return true;
        }
    }
    announce_end(s, &mut h);
    false
}

/// The process ends in order: what the kernel will close with bytes unread in a ring is to be reset, and what goes out again over
/// the carrier gets until `until`.
pub(crate) fn at_exit(s: &'static Socket, fd: c_int, until: u64) {
    // Never waits for a lock: another thread may hold the end for ever.
    let is_free = || s.is(ATTACHED) && s.rx_lock.owner() == 0 && s.tx_lock.owner() == 0;
    while is_free() && !s.is_inherited() {
        let Ok(mut h) = hold_tx(s, s.generation16()) else { return };
        if send_again(s, &mut h, fd) != EAGAIN {
            break;
        }
        drop(h);
        let now = sys::now_ns();
        if now >= until {
            // The carrier will be reset.
            return;
        }
        let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { sys::ppoll(&mut p, 1, (until - now) as i64, core::ptr::null()) };
    }
    if is_free() && s.refs.load(Acquire) == 1 {
        before_close(s, fd);
    }
}

/// What the peer's receiver has followed is all that went over the carrier; nothing of it is unacknowledged.
pub(crate) fn carrier_is_drained(s: &Socket) -> bool {
    let Some(channel) = s.channel() else { return false };
    let w = channel.words(s.slot.load(Relaxed) as usize, channel.side);
    let epoch = w.producer_user[announce::EPOCH].load(Relaxed) as u32;
    epoch & 1 != 0 && w.quiet[quiet::ACK].load(Acquire) as u32 == epoch
}

/// The kernel has closed it and no thread can find it any more: the slot is given back.
pub(crate) fn after_close(s: &'static Socket) {
    // SAFETY: as in `Socket::channel`; the swap gives it to one caller.
    let Some(channel) = (unsafe { s.channel.swap(core::ptr::null_mut(), AcqRel).as_ref() }) else { return };
    let slot = s.slot.load(Relaxed) as usize;
    let (tx, rx) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let (readers, writers) = (tx.quiet[quiet::NOTIFY].load(Relaxed), rx.producer_quiet[producer_quiet::NOTIFY].load(Relaxed));
    fence(SeqCst);
    channel.notify(slot, readers);
    channel.notify(slot, writers);
    // Last: the slot may serve another connection from here on.
    rx.quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    if !s.is_inherited() {
        service::released(channel, slot);
    }
}

// ---- back to the kernel ----------------------------------------------------------------------------------------

/// How long a receiver waits for the peer's library to give back what the application has not read: where the call can go on
/// without, and where it cannot.
const PULL_BACK_NS: u64 = 50_000_000;
const PULL_BACK_STRICT_NS: u64 = 2_000_000_000;

/// Both directions back onto the carrier for good. True: the application may use the kernel's socket as it likes.
///
/// False: the sending direction is the carrier's, but bytes of the receiving one are in the ring and cannot be had over the carrier (the
/// peer has left the ring by itself, or does not answer). They are served from the ring as before. Where
/// the caller is about to hand the descriptor to somebody who cannot do that (`strict`), the connection is broken instead: an error that
/// is seen, never a gap in the stream.
#[cold]
#[inline(never)]
pub(crate) fn to_kernel(s: &'static Socket, g: u16, fd: c_int, why: Reason, strict: bool) -> bool {
    loop {
        if s.generation16() != g {
            return true;
        }
        match s.state.load(Acquire) {
            CANDIDATE => socket::make_plain(s, why),
            ATTACHING => core::hint::spin_loop(),
            ATTACHED => break,
            _ => return true,
        }
    }
    let patience_ns = if strict { PULL_BACK_STRICT_NS } else { PULL_BACK_NS };
    let until = sys::now_ns().saturating_add(patience_ns);
    // Bytes that go out again go before all that the kernel is asked to send.
    let resending = loop {
        let Ok(mut h) = hold_tx(s, g) else { break false };
        demote_tx(s, &mut h, true);
        h.end.switch.pin();
        if h.end.switch.state() != TxState::Resending || send_again(s, &mut h, fd) != EAGAIN {
            break false;
        }
        drop(h);
        if sys::now_ns() > until {
            break true;
        }
        let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { sys::ppoll(&mut p, 1, 5_000_000, core::ptr::null()) };
    };
    // A thread that waits for room in the ring goes on in the kernel.
    wait::prod(s);
    if !release_rx(s, g, fd, patience_ns) {
        debug_log!("fd {fd}: unread bytes stay in the ring ({})", why.name());
        let unread = hold_rx(s, g).map_or(0, |h| h.end.ring.refresh().unwrap_or(0));
        if strict && unread > 0 {
            crate::log::warn_log!("fd {fd}: {unread} unread bytes cannot follow the descriptor ({}): the connection is broken off", why.name());
            let _ = sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
        }
        return false;
    }
    if resending {
        if strict {
            crate::log::warn_log!("fd {fd}: the peer takes no bytes that go before the descriptor ({}): the connection is broken off", why.name());
            let _ = sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
        }
        return false;
    }
    // What comes again over the carrier is in the ring too, should the sender die on the way: the ring is kept until all has come.
    if !strict && hold_rx(s, g).is_ok_and(|h| h.end.switch.state() != RxState::Open) {
        return false;
    }
    if s.state.compare_exchange(ATTACHED, PLAIN, AcqRel, Relaxed).is_ok() {
        debug_log!("fd {fd}: back to the kernel for good ({})", why.name());
        s.set_reason(why);
        wait::prod(s);
        if !s.is_inherited() {
            crate::epoll::on_plain(s);
            detach(s);
        }
    }
    true
}

/// Gives the slot back; the socket is plain.
pub(crate) fn detach(s: &'static Socket) {
    // SAFETY: as in `Socket::channel`; the swap gives it to one caller.
    if let Some(channel) = unsafe { s.channel.swap(core::ptr::null_mut(), AcqRel).as_ref() } {
        let slot = s.slot.load(Relaxed) as usize;
        channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
        service::released(channel, slot);
    }
}

/// Gets the receiving direction onto the carrier; true when nothing of the stream can come by the ring any more.
fn release_rx(s: &'static Socket, g: u16, fd: c_int, patience_ns: u64) -> bool {
    let deadline = sys::now_ns().saturating_add(patience_ns);
    let mut frozen = false;
    let mut asked = false;
    loop {
        {
            let mut h = match hold_rx(s, g) {
                Ok(h) => h,
                Err(NotHeld::Changed) => return true,
                Err(NotHeld::Reentrant) => return false,
            };
            if !frozen {
                frozen = true;
                h.end.switch.freeze();
                store_ack(h.words, &h.end.switch);
                fence(SeqCst);
            }
            match h.end.switch.on_announce(load_announce(h.words)) {
                Ok(true) => h.settled(s),
                Ok(false) => {}
                Err(_) => return false,
            }
            store_ack(h.words, &h.end.switch);
            if h.end.switch.is_released() {
                return true;
            }
            if !h.end.switch.wants_pull_back() {
                // The peer has left the ring by itself: what is in it can only be read there.
                return false;
            }
            if !asked {
                // May fail for want of room in the control connection: again in a moment.
                asked = service::send_pull_back(h.channel, h.slot);
                if asked {
                    stats::count(Counter::PulledBack);
                }
            }
        }
        // The peer answers by an announcement; its death is heard on the carrier.
        if sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
            // Its last announcement came before its end.
            return hold_rx(s, g).is_ok_and(|mut h| {
                let followed = h.end.switch.on_announce(load_announce(h.words)).is_ok();
                h.settled(s);
                followed && h.end.switch.is_released()
            });
        }
        if sys::now_ns() > deadline {
            return false;
        }
        let Some(channel) = s.channel() else { return true };
        let words = channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1);
        // SAFETY: the low half of the epoch word, which lives in the mapping; futexes on it are shared with the peer.
        let low = unsafe { AtomicU32::from_ptr(words.producer_user[announce::EPOCH].as_ptr().cast()) };
        let seen = low.load(Acquire);
        if seen == words.quiet[quiet::ACK].load(Relaxed) as u32 {
            sys::futex_wait(low, seen, 1_000_000, false);
        }
    }
}

/// Sends on the carrier what a pull-back has to send again, as far as there is room: 0 when nothing of it is left, or EAGAIN.
fn send_again(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) -> Ret {
    let mut part = [0u8; 16384];
    while h.end.switch.state() == TxState::Resending {
        let resend = h.end.switch.resend();
        let left = resend.end - resend.start;
        let want = part.len().min(left as usize);
        // SAFETY: `part` is ours and outside the ring.
        let n = unsafe { h.end.ring.copy_out(resend.start, part.as_mut_ptr(), want) };
        if n == 0 {
            return corrupt(s, fd);
        }
        // Should this process be killed between the next two steps, a child that has the connection too knows how far it came.
        h.end.resend_mark = socket::carrier_sent(fd);
        // SAFETY: `n` bytes of `part`.
        let r = unsafe { sys::sendto(fd, part.as_ptr(), n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        // A carrier that fails takes no byte any more: the application's next call hears it from the kernel.
        let gone = if r > 0 { r as u64 } else { left };
        if r > 0 || !matches!(-r as c_int, 0 | libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) {
            let _ = h.end.switch.on_resent(gone);
        }
        h.end.resend_mark = None;
        if h.end.switch.state() != TxState::Resending {
            all_is_sent_again(s, h, fd);
        } else if r <= 0 {
            return EAGAIN;
        }
    }
    0
}

/// The carrier goes on as usual: what was put off is done.
fn all_is_sent_again(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) {
    if let Some(linger) = h.end.linger.take() {
        let mut now = RESET_ON_CLOSE;
        // Another one was set by the application meanwhile.
        if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut now) >= 0 && (now.l_onoff, now.l_linger) == (1, 0) {
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        }
    }
    if s.has(flag::FIN_LATER) {
        announce_end(s, h);
        let _ = sys::shutdown(fd, libc::SHUT_WR);
        s.lower(flag::FIN_LATER);
    }
}

/// The kernel resets a connection that is closed with this (tcp(7), RFC 9293 ABORT).
const RESET_ON_CLOSE: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

/// Whether bytes wait to be sent again, before all that the kernel is asked to send.
fn is_resending(s: &'static Socket, g: u16) -> bool {
    hold_tx(s, g).is_ok_and(|h| h.end.switch.state() == TxState::Resending)
}

/// A pull-back of which not all has found room on the carrier. While there is one a close leaves the carrier to it.
pub(crate) struct PullBack {
    blocking: Blocking,
    generation: u16,
}

/// The receiver that the peer has frozen gets what it has not consumed over the carrier. Sends what there is room for, and never waits;
/// `Some`: the rest is for [`PullBack::go_on`].
pub(crate) fn serve_pull_back(channel: &Channel, slot: usize) -> Option<PullBack> {
    // SAFETY: null or a socket of a type-stable slab.
    let s = unsafe { channel.sockets.get(slot)?.load(Acquire).as_ref() }?;
    let g = s.generation16();
    let mut h = hold_tx(s, g).ok()?;
    let fd = s.fd.load(Acquire);
    if !core::ptr::eq(h.channel, channel) || h.slot != slot || fd < 0 {
        return None;
    }
    h.end.never = true;
    let moved = h.end.switch.pull_back(load_ack(h.words));
    h.end.switch.pin();
    s.set_reason(Reason::PeerAskedForTcp);
    let Ok(Some(over)) = moved else { return None };
    // Until all is sent again the end of this process must not look like the end of the stream.
    let mut linger = RESET_ON_CLOSE;
    if h.end.switch.state() == TxState::Resending && sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0 {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        h.end.linger = Some(linger);
    }
    publish_announce(h.words, over.announce);
    // SAFETY: as in `release_rx`.
    let low = unsafe { AtomicU32::from_ptr(h.words.producer_user[announce::EPOCH].as_ptr().cast()) };
    sys::futex_wake(low, i32::MAX, false);
    h.notify();
    show_path(s, true, Way::Carrier);
    let done = send_again(s, &mut h, fd) != EAGAIN;
    // Counted under the lock, under which a close looks.
    let rest = (!done).then(|| PullBack { blocking: Blocking::new(s), generation: g });
    drop(h);
    if done {
        wait::prod(s);
    }
    rest
}

impl PullBack {
    /// Sends on. `Some`: there is more; the descriptor that has no room now.
    pub(crate) fn go_on(&self) -> Option<c_int> {
        let s = self.blocking.0;
        {
            // Held only while it sends: the application's own sends answer EAGAIN meanwhile.
            let mut h = hold_tx(s, self.generation).ok()?;
            let fd = s.fd.load(Acquire);
            if fd >= 0 && send_again(s, &mut h, fd) == EAGAIN {
                return Some(fd);
            }
        }
        wait::prod(s);
        None
    }
}

/// Bytes that a FIONREAD would count on the ring (0 when the receiver stands on the carrier), for [`crate::options`].
pub(crate) fn unread(s: &'static Socket, g: u16) -> Option<usize> {
    let h = hold_rx(s, g).ok()?;
    h.end.ring.refresh().ok()
}

/// True when the receiver stands on the ring, by the shared word that only this end writes.
pub(crate) fn receives_fast(channel: &Channel, slot: usize) -> bool {
    channel.words(slot, channel.side ^ 1).quiet[quiet::ACK].load(Relaxed) & 1 != 0
}

/// True when the sender stands on the ring.
pub(crate) fn sends_fast(channel: &Channel, slot: usize) -> bool {
    channel.words(slot, channel.side).producer_user[announce::EPOCH].load(Relaxed) & 1 != 0
}
