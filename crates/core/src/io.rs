//! The data calls: bytes onto and off the path that each direction is on.
//!
//! Budget of the fast path, both ways: one table load, one compare-and-swap for the end's lock, the
//! copy, one release store, one fence; no system call. Everything else is in functions marked cold.

use crate::channel::{self, Channel, Side, announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry};
use crate::heap::{PART_FEW, Part, Scratch};
use crate::inject::Switches;
use crate::lock::{EndGuard, bump, lock_end};
use crate::log::debug_log;
use crate::outcome::{PASS, RESTART, Ret};
use crate::said::Said;
use crate::signals::Section;
use crate::socket::{
    self, ATTACHED, ATTACHING, CANDIDATE, CLOSING, LEFT, LastName, PLAIN, RxEnd, Socket, TxEnd,
    UNCONNECTED, flag, offer,
};
use crate::user::LOWEST_ADDRESS;
use crate::wait::{self, Woke};
use crate::wire::{WireSlot, parting};
use crate::{
    adoption, agent, candidates, carrier, control, faults, lifecycle, numbers, process, signals,
    sleep, stats, sys, thread, user,
};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*, fence};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use netacc_control::stats::{Counter, Path, Reason};
use netacc_proto::switchover::{
    Ack, Announce, Corrupt, EofVerdict, Link, Path as Way, Plan, Rx, RxState, Tx, TxState,
};
use netacc_ring::{Consumer, CopyError, PeerCorrupt, Producer, RingWords};

/// Of a call that has begun: nothing was done, it is to be dispatched.
const AGAIN: Ret = sleep::NOT_BEGUN;
const EAGAIN: Ret = -(libc::EAGAIN as Ret);
const ECONNRESET: Ret = -(libc::ECONNRESET as Ret);
/// Flags under which bytes may take the ring.
const SEND_FLAGS: c_int = PLAIN_FLAGS | libc::MSG_MORE;
/// Of these, those under which they are published at once.
const PLAIN_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR;
/// A call that finds the ring empty asks the carrier at most so often: a system call, for which
/// others wait on a busy machine. (An end that the peer's process has said in shared memory needs
/// no question.)
const ASK_CARRIER_NS: u64 = 1_000_000;
/// As above, where the socket is in an epoll set, whose waits bring the carrier's news.
const ASK_CARRIER_IN_SET_NS: u64 = 10_000_000;
/// A send that finds no room asks it at most so often (ticks: some 40 µs).
const ASK_CARRIER_TICKS: u64 = 100_000;
const EFAULT: Ret = -(libc::EFAULT as Ret);
const EINVAL: Ret = -(libc::EINVAL as Ret);

mod apart;
mod candidate;
mod close;
mod ends;
mod leave;
mod parts;
mod receive;
mod reset;
mod search;
mod send;
mod waits;
mod watch;

pub(crate) use apart::{
    Apart, Moved, await_peer, begin_exit, carrier_is_over, carrier_is_reset, may_send_on_carrier,
    wake_leavers,
};
use apart::{
    await_carrier, await_departure, end_in_reset, outlives_close, outlives_for_child,
    peer_has_ended, shutdown_between_hosts, shutdown_of_parents, to_kernel_between_hosts,
};
pub(crate) use candidate::{attach, on_poller_gone, shutdown_candidate};
use candidate::{candidate, settle_rx};
pub(crate) use close::{bury_orphan, close, shutdown_of};
pub(crate) use ends::unread;
use ends::*;
use leave::*;
pub(crate) use leave::{
    PullBack, after_close, application_linger, at_exit, before_close, carrier_is_drained,
    hear_carrier, last_name, leave_dead_channel, may_end, need_kernel, never_linger,
    on_error_taken, on_linger, serve_pull_back, shutdown, to_kernel, watch_carrier,
};
use parts::{Buffers, Few, MAX_RW_COUNT, Parts, without_memory};
use receive::*;
use reset::{is_reset, is_reset_by, lies_unread};
pub(crate) use reset::{is_reset_now, owes_reset, settled};
pub(crate) use search::on_polled;
use send::*;
pub(crate) use send::{on_more_room, on_nodelay, send_held, send_held_in_time};
use waits::*;
pub(crate) use waits::{carrier_is_due, carrier_was_asked};
pub(crate) use watch::{forget as forget_watch, hear_unread, look_at_unread, look_at_unread_here};

// ---- entry points: receive ----------------------------------------------------------------------

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
            CANDIDATE | ATTACHING | LEFT | CLOSING => Who::Candidate(s, g),
            UNCONNECTED => who_by_now(fd),
            _ => Who::NotOurs,
        },
        Entry::Fresh(_) => who_by_now(fd),
        _ => Who::NotOurs,
    }
}

/// An unconnected socket is used for data.
#[cold]
fn who_by_now(fd: c_int) -> Who {
    candidates::look_again(fd);
    match fd_table::get(fd) {
        Entry::Socket(s, g) if s.is(CANDIDATE) => Who::Candidate(s, g),
        _ => Who::NotOurs,
    }
}

/// How a data call begins.
enum Begun {
    NotOurs,
    /// On an attached connection: [`end`] follows.
    On(&'static Socket, u16, Section),
    /// On a candidate, or in another call: [`dispatch`]ed.
    Otherwise,
}

/// The usual call is straight code between this and [`end`], in registers: no closure, which would
/// have it all in memory.
#[inline(always)]
fn begin(fd: c_int) -> Begun {
    let raw = fd_table::raw(fd);
    if raw == 0 {
        return Begun::NotOurs;
    }
    match fd_table::decode(raw) {
        Entry::Socket(s, g) if s.is(ATTACHED) => match signals::enter_first() {
            Some(section) => Begun::On(s, g, section),
            None => Begun::Otherwise,
        },
        _ => Begun::Otherwise,
    }
}

/// A call that has begun has this result. `None`: it is to be dispatched all the same.
#[inline(always)]
fn end(s: &Socket, g: u16, section: Section, r: Ret) -> Option<Ret> {
    let nested = signals::leave(section);
    if r > sleep::NOT_BEGUN || !goes_on(s, g, r, nested) { Some(r) } else { None }
}

/// One data call: `ring` on an attached connection, `kernel` on a candidate, whose bytes are
/// counted. [`PASS`]: it is neither.
fn dispatch(
    fd: c_int,
    side: Side,
    flags: c_int,
    ring: impl Fn(&'static Socket, u16) -> Ret,
    kernel: impl Fn() -> isize,
) -> Ret {
    loop {
        let (s, g, attached) = match who(fd) {
            Who::NotOurs => return PASS,
            Who::Attached(s, g) => (s, g, true),
            Who::Candidate(s, g) => (s, g, false),
        };
        let section = signals::enter();
        let r = if attached { Some(ring(s, g)) } else { candidate(s, g, fd, side, flags, &kernel) };
        let nested = signals::leave(section);
        if let Some(r) = r
            && (r > sleep::NOT_BEGUN || !goes_on(s, g, r, nested))
        {
            return r;
        }
    }
}

/// A call's result is none yet: the connection is a candidate again (between hosts), or a handler
/// has run behind which the kernel would have begun the call again. (Inside of another call,
/// `nested`, that one ends first. Where threads are cancelled the hook looks at that.)
#[cold]
#[inline(never)]
fn goes_on(s: &Socket, g: u16, r: Ret, nested: bool) -> bool {
    match r {
        PASS => s.is(CANDIDATE) && s.generation16() == g,
        _ => {
            !nested
                && (r == sleep::NOT_BEGUN || (r == RESTART && !process::threads_are_cancelled()))
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Ret {
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            // SAFETY: the caller's buffer.
            let r = unsafe { recv_one(s, g, fd, buf, len, flags) };
            if let Some(r) = end(s, g, section, r) {
                return r;
            }
        }
        Begun::Otherwise => {}
    }
    // SAFETY: as above.
    unsafe { recv_any(fd, buf, len, flags) }
}

#[inline(never)]
unsafe fn recv_any(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's buffer.
    let ring = |s, g| unsafe { recv_one(s, g, fd, buf, len, flags) };
    // SAFETY: as above.
    let kernel = || unsafe {
        sleep::recvfrom(fd, buf, len, flags, core::ptr::null_mut(), core::ptr::null_mut())
    };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

/// The buffers of a vector call. `Err`: the call's result; [`PASS`] where nothing is asked, or what
/// the kernel refuses.
#[inline]
fn import(parts: &mut Parts, iov: *const iovec, count: c_int) -> Result<Buffers<'_>, Ret> {
    if !(1..=libc::UIO_MAXIOV).contains(&count) {
        return Err(PASS);
    }
    let v = parts.import(iov, count as usize, libc::EINVAL)?;
    if v.total == 0 { Err(PASS) } else { Ok(v) }
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
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            let mut few = Few::new();
            let r = match few.import(iov, count as usize) {
                // SAFETY: the caller's buffers.
                Some(v) => unsafe { recv_attached(s, g, fd, v.list, v.total, flags) },
                None => AGAIN,
            };
            if let Some(r) = end(s, g, section, r) {
                return r;
            }
        }
        Begun::Otherwise => {}
    }
    // SAFETY: the caller's buffers.
    unsafe { recvv_any(fd, iov, count, flags) }
}

#[inline(never)]
unsafe fn recvv_any(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    let mut parts = Parts::new();
    let v = match import(&mut parts, iov, count) {
        Ok(v) => v,
        Err(r) => return without_memory(fd, r),
    };
    // SAFETY: the caller's buffers.
    let ring = |s, g| unsafe { recv_attached(s, g, fd, v.list, v.total, flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sleep::recvmsg(fd, &mut header_of(v.list), flags) };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

pub(crate) unsafe fn recvfrom(
    fd: c_int,
    buf: *mut u8,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> Ret {
    let ring = |s, g| {
        // SAFETY: the caller's buffer; a connected TCP socket reports no address (tcp_recvmsg
        // leaves msg_namelen 0).
        let r = unsafe { recv_one(s, g, fd, buf, len, flags) };
        if r >= 0 && !addr.is_null() {
            // SAFETY: the caller's length of the address.
            return unsafe { report_no_address(addr_len) }.err().unwrap_or(r);
        }
        r
    };
    // SAFETY: the caller's buffers.
    let kernel = || unsafe { sleep::recvfrom(fd, buf, len, flags, addr.cast(), addr_len) };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

/// A receive has an address to fill and none to report (move_addr_to_user). `Err`: the call's
/// result, although its bytes are taken.
unsafe fn report_no_address(len: *mut socklen_t) -> Result<(), Ret> {
    // SAFETY: the caller's length of the address.
    unsafe {
        match user::read(len) {
            None => Err(EFAULT),
            Some(room) if (room as c_int) < 0 => Err(EINVAL),
            Some(_) if user::write(len, 0) => Ok(()),
            Some(_) => Err(EFAULT),
        }
    }
}

pub(crate) unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Ret {
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            // SAFETY: the caller's msghdr and its buffers.
            let r = unsafe { recv_plain_message(s, g, fd, msg, flags) };
            if let Some(r) = end(s, g, section, r) {
                return r;
            }
        }
        Begun::Otherwise => {}
    }
    // SAFETY: as above.
    unsafe { recvmsg_any(fd, msg, flags) }
}

/// A message into a few buffers and no more. [`AGAIN`]: it is none.
#[inline(always)]
unsafe fn recv_plain_message(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> Ret {
    // SAFETY: the caller's msghdr.
    let Some(m) = (unsafe { user::read(msg.cast::<MessageStart>()) }) else { return EFAULT };
    let mut few = Few::new();
    match few.import(m.iov, m.iov_len) {
        Some(v)
            if m.name.is_null()
                && flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0
                && !s.has(flag::LEAVING) =>
        {
            // SAFETY: the caller's buffers.
            let r = unsafe { recv_attached(s, g, fd, v.list, v.total, flags) };
            // SAFETY: the caller's msghdr.
            unsafe { told(msg, flags, r) }
        }
        _ => AGAIN,
    }
}

/// A received message's flags and control data: none.
#[inline(always)]
unsafe fn told(msg: *mut msghdr, flags: c_int, r: Ret) -> Ret {
    let flags = (flags & libc::MSG_CMSG_CLOEXEC) as u32;
    // SAFETY: the caller's msghdr.
    let told = r < 0
        || unsafe {
            user::write_both(
                (&raw mut (*msg).msg_flags).cast(),
                flags,
                (&raw mut (*msg).msg_controllen).cast(),
                0,
            )
        };
    if told { r } else { EFAULT }
}

#[inline(never)]
unsafe fn recvmsg_any(fd: c_int, msg: *mut msghdr, flags: c_int) -> Ret {
    let ring = |s: &'static Socket, g| {
        // SAFETY: the caller's msghdr.
        let Some(m) = (unsafe { user::read(msg) }) else { return EFAULT };
        let mut parts = Parts::new();
        let v = match parts.import(m.msg_iov, m.msg_iovlen, libc::EMSGSIZE) {
            Ok(v) => v,
            Err(r) => match without_memory(fd, r) {
                // SAFETY: the caller's msghdr.
                PASS => return unsafe { sys::recvmsg(fd, msg, flags) },
                r => return r,
            },
        };
        if !m.msg_name.is_null() && (m.msg_namelen as c_int) < 0 {
            return EINVAL;
        }
        // SAFETY: the caller's msghdr and its buffers.
        unsafe {
            if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
                // They never leave the carrier.
                return sleep::recvmsg(fd, msg, flags);
            }
            if s.has(flag::LEAVING)
                && flags & libc::MSG_WAITALL == 0
                && let Some(r) = recvmsg_leaving(s, g, fd, msg, flags)
            {
                return r;
            }
            let r = recv_attached(s, g, fd, v.list, v.total, flags);
            if r >= 0 && !m.msg_name.is_null() && !user::write(&raw mut (*msg).msg_namelen, 0) {
                EFAULT
            } else {
                told(msg, flags, r)
            }
        }
    };
    // SAFETY: the caller's msghdr.
    dispatch(fd, Side::Receive, flags, ring, || unsafe { sleep::recvmsg(fd, msg, flags) })
}

/// As the kernel's do_recvmmsg: the time-out is looked at after each message, so it ends no wait
/// for one.
pub(crate) unsafe fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    // SAFETY: the caller's time-out.
    let mut budget = match unsafe { Budget::read(timeout) } {
        Ok(b) => b,
        Err(r) => return r,
    };
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(r) = signals::held(|| pending_error(fd))
    {
        return r;
    }
    let mut flags = flags;
    let mut received = 0;
    while received < count as usize {
        // (What is named here may be bad: it is not looked at.)
        let m = msgs.wrapping_add(received);
        // SAFETY: the caller's array of `count` elements.
        let header = unsafe { &raw mut (*m).msg_hdr };
        // SAFETY: the caller's msghdr.
        let mut r = unsafe { recvmsg(fd, header, flags & !libc::MSG_WAITFORONE) };
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sys::recvmsg(fd, header, flags & !libc::MSG_WAITFORONE) };
        }
        // SAFETY: as above.
        if r >= 0 && !unsafe { user::write(&raw mut (*m).msg_len, r as u32) } {
            r = EFAULT;
        }
        if r < 0 && received == 0 {
            return r;
        }
        if r < 0 {
            signals::held(|| keep_error(fd, r));
            break;
        }
        received += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let has_urgent_byte = |header: *mut msghdr| {
            // SAFETY: as above.
            unsafe { user::read(&raw const (*header).msg_flags) }
                .is_some_and(|flags| flags & libc::MSG_OOB != 0)
        };
        if budget.as_mut().is_some_and(Budget::is_spent) || has_urgent_byte(header) {
            break;
        }
    }
    if let Some(b) = budget.filter(|_| received > 0) {
        // SAFETY: the caller's time-out.
        if !unsafe { user::write(timeout, b.left) } {
            return EFAULT;
        }
    }
    received as Ret
}

/// The time that a recvmmsg may take.
struct Budget {
    until: u64,
    /// After the last message.
    left: timespec,
}

impl Budget {
    /// `None`: there is none. EINVAL as of poll_select_set_timeout.
    unsafe fn read(timeout: *const timespec) -> Result<Option<Budget>, Ret> {
        if timeout.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let Some(left) = (unsafe { user::read(timeout) }) else { return Err(EFAULT) };
        if left.tv_sec < 0 || !(0..1_000_000_000).contains(&left.tv_nsec) {
            return Err(-(libc::EINVAL as Ret));
        }
        let ns =
            (left.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(left.tv_nsec as u64);
        Ok(Some(Budget { until: sys::now_ns().saturating_add(ns), left }))
    }

    fn is_spent(&mut self) -> bool {
        let left = self.until.saturating_sub(sys::now_ns());
        self.left.tv_sec = (left / 1_000_000_000) as _;
        self.left.tv_nsec = (left % 1_000_000_000) as _;
        left == 0
    }
}

/// A recvmmsg tells an error of the connection before what is to be read (do_recvmmsg: sock_error).
fn pending_error(fd: c_int) -> Option<Ret> {
    let (Who::Attached(s, g) | Who::Candidate(s, g)) = who(fd) else { return None };
    let kept = s.kept_error.swap(0, Relaxed);
    if kept != 0 {
        return Some(kept as Ret);
    }
    let mut error: c_int = 0;
    let asks = s.has(flag::CARRIER_SPOKE) || !s.is(ATTACHED);
    if !asks || sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) < 0 {
        return None;
    }
    if s.is(ATTACHED) && (error != 0 || !s.has(flag::REMOTE)) {
        error = on_error_taken(s, g, fd, error).unwrap_or(error);
    }
    (error != 0).then_some(-(error as Ret))
}

/// An error that a recvmmsg has met behind a message belongs to the next call (sk_err of the
/// kernel's socket).
fn keep_error(fd: c_int, r: Ret) {
    let (Who::Attached(s, g) | Who::Candidate(s, g)) = who(fd) else { return };
    match -r as c_int {
        libc::EAGAIN | libc::EINTR => {}
        _ if r == RESTART => {}
        // Of the connection: behind all that is still to be read.
        libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT | libc::ENOTCONN if s.is(ATTACHED) => {
            if let Ok(h) = hold_rx(s, g) {
                h.end.pending_error = r as i32;
                s.lower(flag::TOLD);
            }
        }
        _ => s.kept_error.store(r as i32, Relaxed),
    }
}

/// What [`keep_error`] has kept, when there is nothing to read.
#[cold]
fn kept_error(s: &Socket, fd: c_int) -> Option<Ret> {
    let nothing = s.is(ATTACHED)
        || sys::poll_now(fd, libc::POLLIN) & libc::POLLIN == 0
        || carrier::is_closed(fd);
    let kept = if nothing { s.kept_error.swap(0, Relaxed) } else { 0 };
    (kept != 0).then_some(kept as Ret)
}

/// Descriptors that came by SCM_RIGHTS are new, whatever the table remembers of their numbers.
pub(crate) unsafe fn on_recvmsg(over: c_int, msg: *const msghdr, flags: c_int) {
    // SAFETY: the caller's promise: a msghdr just filled by the kernel.
    unsafe {
        for_each_passed(msg, |fd| {
            fd_table::forget_stale(fd);
            if process::started() && !process::in_vfork_child() {
                adoption::passed::receive(over, fd, flags & libc::MSG_PEEK != 0);
            }
        });
    }
}

/// A message is about to be sent that nobody here hears the end of: what it passes is the kernel's.
pub(crate) unsafe fn before_passing(msg: *const msghdr) {
    if fd_table::high_water() != 0 {
        // SAFETY: the caller's msghdr.
        unsafe { for_each_passed(msg, |fd| lifecycle::need_kernel(fd, Reason::PassedByScmRights)) };
    }
}

/// Calls `f` for every descriptor in the control data of `msg`. It needs no memory: what it passes
/// over would go out as it is.
unsafe fn for_each_passed(msg: *const msghdr, mut f: impl FnMut(c_int)) {
    /// More is none that the kernel takes (net.core.optmem_max is some 128 KiB at most; 253
    /// descriptors need 1 KiB).
    const LONGEST: usize = 1 << 17;
    // SAFETY: the caller's msghdr.
    let Some(m) = (unsafe { user::read(msg) }) else { return };
    if m.msg_control.is_null() || m.msg_controllen == 0 || m.msg_controllen > LONGEST {
        return;
    }
    let end = m.msg_control as usize + m.msg_controllen;
    let header = size_of::<libc::cmsghdr>();
    let mut at = m.msg_control as usize;
    // As the kernel walks through it (CMSG_OK, CMSG_NXTHDR).
    while end.saturating_sub(at) >= header {
        // SAFETY: the caller's control data.
        let Some(c) = (unsafe { user::read(at as *const libc::cmsghdr) }) else { return };
        if c.cmsg_len < header || c.cmsg_len > end - at {
            return;
        }
        if c.cmsg_level == libc::SOL_SOCKET && c.cmsg_type == libc::SCM_RIGHTS {
            for i in 0..((c.cmsg_len - header) / size_of::<c_int>()).min(253) {
                // SAFETY: as above.
                let Some(fd) =
                    (unsafe { user::read((at + header + i * size_of::<c_int>()) as *const c_int) })
                else {
                    return;
                };
                f(fd);
            }
        }
        at += c.cmsg_len.next_multiple_of(size_of::<usize>());
    }
}

// ---- entry points: send -------------------------------------------------------------------------

#[inline(always)]
pub(crate) unsafe fn send(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> Ret {
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            // SAFETY: the caller's buffer.
            let r = unsafe { send_one(s, g, fd, buf, len, flags) };
            if let Some(r) = end(s, g, section, r) {
                return r;
            }
        }
        Begun::Otherwise => {}
    }
    // SAFETY: as above.
    unsafe { send_any(fd, buf, len, flags) }
}

#[inline(never)]
unsafe fn send_any(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's buffer.
    let ring = |s, g| unsafe { send_one(s, g, fd, buf, len, flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sleep::sendto(fd, buf, len, flags) };
    dispatch(fd, Side::Send, flags, ring, kernel)
}

pub(crate) unsafe fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    // A connected TCP socket ignores the address, unless it opens with it (MSG_FASTOPEN, which
    // `send` leaves to the kernel); but it is read first (move_addr_to_kernel).
    if addr_len as usize > size_of::<libc::sockaddr_storage>() {
        return EINVAL;
    }
    // SAFETY: the caller's address.
    if !unsafe { is_readable(addr.cast(), addr_len as usize) } {
        return EFAULT;
    }
    // SAFETY: the caller's buffer.
    unsafe { send(fd, buf.cast(), len, flags) }
}

/// # Safety
/// `at` is what the application gave for `len` bytes, at most as many as an address has.
unsafe fn is_readable(at: *const u8, len: usize) -> bool {
    let mut address = [0u8; size_of::<libc::sockaddr_storage>()];
    // SAFETY: the caller's promise.
    address.get_mut(..len).is_some_and(|to| unsafe { user::read_into(at, to) })
}

pub(crate) unsafe fn sendv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            let mut few = Few::new();
            let r = match few.import(iov, count as usize) {
                // SAFETY: the caller's buffers.
                Some(v) => unsafe { send_attached(s, g, fd, v.list, v.total, flags) },
                None => AGAIN,
            };
            if let Some(r) = end(s, g, section, r) {
                return r;
            }
        }
        Begun::Otherwise => {}
    }
    // SAFETY: the caller's buffers.
    unsafe { sendv_any(fd, iov, count, flags) }
}

#[inline(never)]
unsafe fn sendv_any(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        return PASS;
    }
    let mut parts = Parts::new();
    let v = match import(&mut parts, iov, count) {
        Ok(v) => v,
        Err(r) => return without_memory(fd, r),
    };
    // SAFETY: the caller's buffers.
    let ring = |s, g| unsafe { send_attached(s, g, fd, v.list, v.total, flags) };
    // SAFETY: as above.
    let kernel = || unsafe { sleep::sendmsg(fd, &header_of(v.list), flags) };
    dispatch(fd, Side::Send, flags, ring, kernel)
}

pub(crate) unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Ret {
    if let Begun::On(s, g, section) = begin(fd) {
        // SAFETY: the caller's msghdr and its buffers.
        let r = unsafe { send_plain_message(s, g, fd, msg, flags) };
        if let Some(r) = end(s, g, section, r) {
            return r;
        }
    }
    // SAFETY: as above.
    unsafe { send_message(fd, msg, flags, &mut 0) }
}

/// A message of a few buffers and no more. [`AGAIN`]: it is none.
#[inline(always)]
unsafe fn send_plain_message(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> Ret {
    // SAFETY: the caller's msghdr.
    let Some(m) = (unsafe { user::read(msg.cast::<MessageStart>()) }) else { return EFAULT };
    let mut few = Few::new();
    match few.import(m.iov, m.iov_len) {
        // SAFETY: the caller's buffers.
        Some(v) if m.name.is_null() && m.control_len == 0 => unsafe {
            send_attached(s, g, fd, v.list, v.total, flags)
        },
        _ => AGAIN,
    }
}

/// How a `msghdr` begins.
#[repr(C)]
#[derive(Clone, Copy)]
struct MessageStart {
    name: *mut c_void,
    name_len: u64,
    iov: *mut iovec,
    iov_len: usize,
    control: *mut c_void,
    control_len: usize,
}

const _: () = {
    use core::mem::offset_of;
    assert!(
        offset_of!(MessageStart, iov) == offset_of!(msghdr, msg_iov)
            && offset_of!(MessageStart, iov_len) == offset_of!(msghdr, msg_iovlen)
    );
    assert!(
        offset_of!(MessageStart, control_len) == offset_of!(msghdr, msg_controllen)
            && size_of::<MessageStart>() <= size_of::<msghdr>()
    );
};

/// `sendmsg`. `total`: how much an accelerated connection was asked to send.
unsafe fn send_message(fd: c_int, msg: *const msghdr, flags: c_int, total: &mut usize) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        if fd_table::high_water() == 0 {
            // There is nothing that could be passed away.
            return PASS;
        }
        // SAFETY: the caller's msghdr.
        unsafe {
            let mut marked = false;
            for_each_passed(msg, |passed| {
                if fd_table::raw(passed) == 0 {
                } else if adoption::passed::pass(fd, passed) {
                    marked = true;
                } else {
                    lifecycle::need_kernel(passed, Reason::PassedByScmRights);
                }
            });
            if marked {
                let r = sys::sendmsg(fd, msg, flags);
                if r < 0 {
                    for_each_passed(msg, |passed| adoption::passed::take_back(fd, passed));
                }
                return r;
            }
        }
        return PASS;
    }
    // SAFETY: the caller's msghdr.
    let Some(m) = (unsafe { user::read(msg) }) else { return EFAULT };
    let mut parts = Parts::new();
    let v = match parts.import(m.msg_iov, m.msg_iovlen, libc::EMSGSIZE) {
        Ok(v) => v,
        Err(r) => return without_memory(fd, r),
    };
    *total = v.total;
    let ring = |s, g| {
        if !m.msg_name.is_null() && m.msg_namelen != 0 {
            let len = (m.msg_namelen as usize).min(size_of::<libc::sockaddr_storage>());
            if (m.msg_namelen as c_int) < 0 {
                return EINVAL;
            }
            // SAFETY: the caller's address.
            if !unsafe { is_readable(m.msg_name.cast(), len) } {
                return EFAULT;
            }
        }
        if m.msg_controllen != 0 {
            // Control data (timestamps, zero copy...) is the kernel's.
            return leave_to_send(s, g, fd, flags, Reason::SocketOption);
        }
        // SAFETY: the caller's buffers.
        unsafe { send_attached(s, g, fd, v.list, v.total, flags) }
    };
    // SAFETY: the caller's msghdr.
    dispatch(fd, Side::Send, flags, ring, || unsafe { sleep::sendmsg(fd, msg, flags) })
}

pub(crate) unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> Ret {
    if matches!(who(fd), Who::NotOurs) {
        for i in 0..count.min(1024) as usize {
            // SAFETY: the caller's array of `count` elements.
            unsafe { before_passing(&raw const (*msgs.wrapping_add(i)).msg_hdr) };
        }
        return PASS;
    }
    for i in 0..count.min(1024) as usize {
        let m = msgs.wrapping_add(i);
        // SAFETY: the caller's array of `count` elements.
        let header = unsafe { &raw const (*m).msg_hdr };
        let mut total = 0;
        // SAFETY: the caller's msghdr.
        let mut r = unsafe { send_message(fd, header, flags, &mut total) };
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sys::sendmsg(fd, header, flags) };
        }
        // SAFETY: as above.
        if r >= 0 && !unsafe { user::write(&raw mut (*m).msg_len, r as u32) } {
            r = EFAULT;
        }
        if r < 0 {
            return if i > 0 { i as Ret } else { r };
        }
        if (r as usize) < total {
            return i as Ret + 1;
        }
    }
    count.min(1024) as Ret
}

/// From a file that can be read at an offset: read here, sent as any other bytes. Everything else
/// is the kernel's.
pub(crate) unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Ret {
    // SAFETY: the caller's offset.
    let ring = |s, g| unsafe { sendfile_attached(s, g, out, input, offset, count) };
    dispatch(out, Side::Send, 0, ring, || sleep::sendfile(out, input, offset, count))
}

unsafe fn sendfile_attached(
    s: &'static Socket,
    g: u16,
    out: c_int,
    input: c_int,
    offset: *mut i64,
    count: usize,
) -> Ret {
    // The file's own position is used where the caller gives none, and stays where the sent bytes
    // end.
    let start = if offset.is_null() {
        sys::lseek(input, 0, libc::SEEK_CUR) as i64
    } else {
        // SAFETY: the caller's offset.
        match unsafe { user::read(offset) } {
            Some(start) => start,
            None => return EFAULT,
        }
    };
    let mut few = [0u8; PART_FEW];
    let mut part = Part::new(&mut few);
    let part = part.bytes();
    let count = count.min(MAX_RW_COUNT);
    let mut sent = 0usize;
    let mut result = 0;
    if start < 0 || sys::pread(input, part.get_mut(..count.min(1)).unwrap_or(&mut []), start) < 0 {
        // A pipe, a bad descriptor...
        return in_carrier(s, g, out, input, false, |out| {
            sleep::sendfile(out, input, offset, count)
        });
    }
    while sent < count {
        let want = part.len().min(count - sent);
        let n = sys::pread(input, part.get_mut(..want).unwrap_or(&mut []), start + sent as i64);
        if n <= 0 {
            result = n;
            break;
        }
        // SAFETY: `n` bytes of `part`.
        let mut r = unsafe { send_one(s, g, out, part.as_ptr(), n as usize, 0) };
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { send(out, part.as_ptr(), n as usize, 0) };
        }
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sleep::sendto(out, part.as_ptr(), n as usize, 0) };
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
    let end = start + sent as i64;
    if offset.is_null() {
        let _ = sys::lseek(input, end, libc::SEEK_SET);
        return if sent > 0 { sent as Ret } else { result };
    }
    // SAFETY: the caller's offset.
    if !unsafe { user::write(offset, end) } {
        return EFAULT;
    }
    if sent > 0 { sent as Ret } else { result }
}

/// Out of a socket: the pipe is filled with what a peek shows, and so much is then taken. Into a
/// socket: the kernel does it, on the carrier. One of the two is a pipe, or the kernel refuses.
pub(crate) unsafe fn splice(
    input: c_int,
    input_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    len: usize,
    flags: u32,
) -> Ret {
    /// SPLICE_F_ALL
    const FLAGS: u32 =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let by_kernel = |out, flags| sleep::splice(input, input_offset, out, out_offset, len, flags);
    let is_pipe = |fd, other: c_int| {
        sys::fcntl(fd, libc::F_GETPIPE_SZ, 0) >= 0
            && sys::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_ACCMODE != other
    };
    let from_ring = |s, g| match len {
        // Nothing moves: the kernel says what is wrong.
        _ if len == 0
            || flags & !FLAGS != 0
            || !out_offset.is_null()
            || !is_pipe(out, libc::O_RDONLY) =>
        {
            by_kernel(out, flags)
        }
        // (Old kernels take a socket's position for one.)
        _ if !input_offset.is_null() => -(libc::EINVAL as Ret),
        _ => splice_from(s, g, input, out, len, flags),
    };
    let r = dispatch(input, Side::Receive, 0, from_ring, || by_kernel(out, flags));
    if r != PASS {
        return r;
    }
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let into_carrier = |s, g| match len {
        _ if len == 0
            || flags & !FLAGS != 0
            || !input_offset.is_null()
            || !is_pipe(input, libc::O_WRONLY) =>
        {
            by_kernel(out, flags)
        }
        _ if !out_offset.is_null() => -(libc::EINVAL as Ret),
        _ => in_carrier(s, g, out, input, nonblocking, |out| {
            by_kernel(out, flags | libc::SPLICE_F_NONBLOCK)
        }),
    };
    dispatch(out, Side::Send, 0, into_carrier, || by_kernel(out, flags))
}

fn splice_from(
    s: &'static Socket,
    g: u16,
    input: c_int,
    out: c_int,
    len: usize,
    flags: u32,
) -> Ret {
    let mut few = [0u8; PART_FEW];
    let mut part = Part::new(&mut few);
    let part = part.bytes();
    let room = len.min(part.len());
    let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: within `part`.
    let n = unsafe { recv_one(s, g, input, part.as_mut_ptr(), room, libc::MSG_PEEK | wait) };
    if n == PASS && s.is(CANDIDATE) {
        return PASS;
    }
    if n == PASS {
        return sleep::splice(input, core::ptr::null_mut(), out, core::ptr::null_mut(), len, flags);
    }
    if n <= 0 {
        return n;
    }
    // One write: a pipe takes all of up to PIPE_BUF or blocks (or answers EAGAIN), of more perhaps
    // a part.
    let mut p = libc::pollfd { fd: out, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    if wait != 0 && unsafe { sleep::ppoll(&mut p, 1, 0, core::ptr::null()) } == 0 {
        return EAGAIN;
    }
    // A page at a time while the pipe says that it has room: only the first may wait.
    let mut w: isize = 0;
    while w < n {
        let end = (n as usize).min(w as usize + 4096);
        // SAFETY: one valid pollfd.
        if w > 0 && unsafe { sleep::ppoll(&mut p, 1, 0, core::ptr::null()) } == 0 {
            break;
        }
        let r = sleep::write(out, part.get(w as usize..end).unwrap_or(&[]));
        if r <= 0 {
            if w == 0 {
                return r;
            }
            break;
        }
        w += r;
    }
    // SAFETY: within `part`; these bytes were just peeked, so this does not wait.
    match unsafe {
        recv_one(s, g, input, part.as_mut_ptr(), w as usize, libc::MSG_WAITALL | libc::MSG_TRUNC)
    } {
        // SAFETY: as above.
        PASS => match unsafe { recv(input, part.as_mut_ptr(), w as usize, libc::MSG_TRUNC) } {
            // SAFETY: as above.
            PASS => unsafe {
                sys::recvfrom(
                    input,
                    part.as_mut_ptr(),
                    w as usize,
                    libc::MSG_TRUNC,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            },
            r => r,
        },
        r => r,
    }
}

/// A kernel call that sends: on the carrier, with its bytes counted; later sends may take the ring
/// again. `call` must not wait.
fn in_carrier(
    s: &'static Socket,
    g: u16,
    mut fd: c_int,
    source: c_int,
    nonblocking: bool,
    call: impl Fn(c_int) -> isize,
) -> Ret {
    let nonblocking = nonblocking || never_waits(s, Side::Send, 0);
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
            if is_reset(s, fd) {
                return send_broken(s, 0);
            }
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
        // The socket has no room, or the source has nothing yet: waits for the one, then for the
        // other. (The source, a pipe or a file, knows no time-out.)
        if let Some(r) = patience.wait(fd, libc::POLLOUT, -1) {
            return r;
        }
        if let Some(r) = Patience::endless().wait(source, libc::POLLIN, -1) {
            return r;
        }
    }
}
