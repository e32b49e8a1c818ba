//! The data calls: bytes onto and off the path that each direction is on.
//!
//! Budget of the fast path, both ways: one table load, one compare-and-swap for the end's lock, the copy, one release
//! store, one fence; no system call. Everything else is in functions marked cold.

use crate::api::{PASS, RESTART, Ret};
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry};
use crate::lock::{EndGuard, bump, lock_end};
use crate::log::debug_log;
use crate::remote::wire::{WireSlot, parting};
use crate::socket::{self, ATTACHED, ATTACHING, CANDIDATE, LastName, PLAIN, RxEnd, Socket, TxEnd, flag};
use crate::wait::{self, Side, Woke};
use crate::{lifecycle, numbers, remote, service, stats, syn, sys};
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

mod apart;
mod candidate;
mod ends;
mod leave;
mod receive;
mod send;
mod waits;

pub(crate) use apart::{Apart, Moved, await_peer, begin_exit, carrier_is_over, carrier_is_reset, may_send_on_carrier, wake_leavers};
use apart::{
    await_carrier, await_departure, end_in_reset, outlives_close, outlives_for_child, peer_has_ended, shutdown_between_hosts, shutdown_of_parents,
    to_kernel_between_hosts,
};
pub(crate) use candidate::attach;
use candidate::candidate;
use ends::*;
pub(crate) use ends::{receives_fast, sends_fast, tx_ring_bytes, unread};
use leave::*;
pub(crate) use leave::{
    PullBack, after_close, application_linger, at_exit, before_close, carrier_is_drained, last_name, never_linger, on_error_taken, on_linger, serve_pull_back,
    shutdown, to_kernel,
};
use receive::*;
use send::*;
use waits::*;

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

/// One data call: `ring` on an attached connection, `kernel` on a candidate, whose bytes are counted. [`PASS`]: it is neither.
#[inline(always)]
fn dispatch(fd: c_int, side: Side, flags: c_int, ring: impl Fn(&'static Socket, u16) -> Ret, kernel: impl Fn() -> isize) -> Ret {
    loop {
        match who(fd) {
            Who::NotOurs => return PASS,
            Who::Attached(s, g) => match ring(s, g) {
                // Between hosts a connection may become a candidate again.
                PASS if s.is(CANDIDATE) && s.generation16() == g => {}
                r => return r,
            },
            Who::Candidate(s, g) => {
                if let Some(r) = candidate(s, g, fd, side, flags, &kernel) {
                    return r;
                }
            }
        }
    }
}

#[inline]
pub(crate) unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's buffer.
    let ring = |s, g| unsafe { recv_attached(s, g, fd, &[sys::iov(buf, len)], flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sys::recvfrom(fd, buf, len, flags, core::ptr::null_mut(), core::ptr::null_mut()) };
    dispatch(fd, Side::Receive, flags, ring, kernel)
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

/// The parts of a vector call. `None`: nothing asked, or not askable: the kernel knows the answers.
fn parts<'a>(iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    iovs(iov, count.max(0) as usize).filter(|v| v.iter().any(|part| part.iov_len != 0))
}

/// A `msghdr` with nothing but these buffers.
fn header_of(parts: &[iovec]) -> msghdr {
    // SAFETY: all zero is a valid msghdr.
    let mut m: msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = parts.as_ptr().cast_mut();
    m.msg_iovlen = parts.len();
    m
}

pub(crate) unsafe fn recvv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    let Some(v) = parts(iov, count) else { return PASS };
    // SAFETY: the caller's buffers.
    let ring = |s, g| unsafe { recv_attached(s, g, fd, v, flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sys::recvmsg(fd, &mut header_of(v), flags) };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

pub(crate) unsafe fn recvfrom(fd: c_int, buf: *mut u8, len: usize, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> Ret {
    let ring = |s, g| {
        // SAFETY: the caller's buffer; a connected TCP socket reports no address (tcp_recvmsg leaves msg_namelen 0).
        unsafe {
            let r = recv_attached(s, g, fd, &[sys::iov(buf, len)], flags);
            if r >= 0 && !addr.is_null() && !addr_len.is_null() {
                *addr_len = 0;
            }
            r
        }
    };
    // SAFETY: the caller's buffers.
    let kernel = || unsafe { sys::recvfrom(fd, buf, len, flags, addr.cast(), addr_len) };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

pub(crate) unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Ret {
    let ring = |s, g| {
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
    };
    // SAFETY: the caller's msghdr.
    dispatch(fd, Side::Receive, flags, ring, || unsafe { sys::recvmsg(fd, msg, flags) })
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
        if r < 0 && i > 0 {
            keep_error(fd, r);
            return i as Ret;
        }
        if r < 0 {
            return r;
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

/// An error that a call has met after it had something to return belongs to the next call (recvmmsg(2)).
fn keep_error(fd: c_int, r: Ret) {
    if let Who::Attached(s, g) = who(fd)
        && !matches!(-r as c_int, libc::EAGAIN | libc::EINTR)
        && let Ok(h) = hold_rx(s, g)
    {
        h.end.pending_error = r as i32;
    }
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
    // SAFETY: the caller's buffer.
    let ring = |s, g| unsafe { send_attached(s, g, fd, &[sys::iov(buf, len)], flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sys::sendto(fd, buf, len, flags) };
    dispatch(fd, Side::Send, flags, ring, kernel)
}

pub(crate) unsafe fn sendto(fd: c_int, buf: *const c_void, len: usize, flags: c_int, _addr: *const sockaddr, _addr_len: socklen_t) -> Ret {
    // SAFETY: the caller's buffer. A connected TCP socket ignores the address, unless it opens with it (MSG_FASTOPEN, which
    // `send` leaves to the kernel).
    unsafe { send(fd, buf.cast(), len, flags) }
}

pub(crate) unsafe fn sendv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    let Some(v) = parts(iov, count) else { return PASS };
    // SAFETY: the caller's buffers.
    let ring = |s, g| unsafe { send_attached(s, g, fd, v, flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sys::sendmsg(fd, &header_of(v), flags) };
    dispatch(fd, Side::Send, flags, ring, kernel)
}

pub(crate) unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        // SAFETY: the caller's msghdr.
        unsafe {
            for_each_passed(msg, |passed| {
                if fd_table::raw(passed) != 0 {
                    lifecycle::need_kernel(passed, Reason::PassedByScmRights);
                }
            });
        }
        return PASS;
    }
    let ring = |s, g| {
        if (msg as usize) < LOWEST_ADDRESS {
            return -(libc::EFAULT as Ret);
        }
        // SAFETY: the caller's msghdr.
        unsafe {
            match iovs((*msg).msg_iov, (*msg).msg_iovlen) {
                // Control data (timestamps, zero copy...) is the kernel's.
                Some(v) if (*msg).msg_controllen == 0 => send_attached(s, g, fd, v, flags),
                Some(_) => leave_to_send(s, g, fd, flags, Reason::SocketOption),
                None => -(libc::EMSGSIZE as Ret),
            }
        }
    };
    // SAFETY: the caller's msghdr.
    dispatch(fd, Side::Send, flags, ring, || unsafe { sys::sendmsg(fd, msg, flags) })
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
    // SAFETY: the caller's offset.
    let ring = |s, g| unsafe { sendfile_attached(s, g, out, input, offset, count) };
    dispatch(out, Side::Send, 0, ring, || sys::sendfile(out, input, offset, count))
}

unsafe fn sendfile_attached(s: &'static Socket, g: u16, out: c_int, input: c_int, offset: *mut i64, count: usize) -> Ret {
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
        return in_carrier(s, g, out, input, false, |out| sys::sendfile(out, input, offset, count));
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
            r = unsafe { send(out, part.as_ptr(), n as usize, 0) };
        }
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
    let by_kernel = |out, flags| sys::splice(input, input_offset, out, out_offset, len, flags);
    let from_ring = |s, g| match len {
        0 => 0,
        _ if !input_offset.is_null() || !out_offset.is_null() => -(libc::ESPIPE as Ret),
        _ => splice_from(s, g, input, out, len, flags),
    };
    let r = dispatch(input, Side::Receive, 0, from_ring, || by_kernel(out, flags));
    if r != PASS {
        return r;
    }
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let into_carrier = |s, g| in_carrier(s, g, out, input, nonblocking, |out| by_kernel(out, flags | libc::SPLICE_F_NONBLOCK));
    dispatch(out, Side::Send, 0, into_carrier, || by_kernel(out, flags))
}

fn splice_from(s: &'static Socket, g: u16, input: c_int, out: c_int, len: usize, flags: u32) -> Ret {
    let mut part = [0u8; 16384];
    let iov = [sys::iov(part.as_mut_ptr(), len.min(part.len()))];
    let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: within `part`.
    let n = unsafe { recv_attached(s, g, input, &iov, libc::MSG_PEEK | wait) };
    if n == PASS && s.is(CANDIDATE) {
        return PASS;
    }
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
        PASS => match unsafe { recv(input, part.as_mut_ptr(), w as usize, libc::MSG_TRUNC) } {
            // SAFETY: as above.
            PASS => unsafe { sys::recvfrom(input, part.as_mut_ptr(), w as usize, libc::MSG_TRUNC, core::ptr::null_mut(), core::ptr::null_mut()) },
            r => r,
        },
        r => r,
    }
}

/// A kernel call that sends: on the carrier, with its bytes counted; later sends may take the ring again. `call` must not wait.
fn in_carrier(s: &'static Socket, g: u16, mut fd: c_int, source: c_int, nonblocking: bool, call: impl Fn(c_int) -> isize) -> Ret {
    let nonblocking = nonblocking || s.has(flag::NONBLOCK);
    let mut patience = Patience::of(&s.send_timeout_ns);
    loop {
        if s.is_inherited() || s.has(flag::REMOTE) {
            let why = if s.is_inherited() { Reason::InheritedByFork } else { Reason::Splice };
            return leave_to_send(s, g, fd, if nonblocking { libc::MSG_DONTWAIT } else { 0 }, why);
        }
        {
            let mut h = match hold_tx(s, g) {
                Ok(h) => h,
                Err(NotHeld::Reentrant) => return EAGAIN,
                Err(NotHeld::Changed) => return PASS,
            };
            renew(s, &mut fd);
            if h.end.switch.state() == TxState::Fast {
                demote_tx(s, &mut h, false);
            }
            if send_again(s, &mut h, fd) != EAGAIN {
                let r = call(fd);
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
