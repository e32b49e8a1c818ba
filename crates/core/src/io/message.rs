//! `recvmsg`, `sendmsg` and their plural forms: buffers, an address that is ignored, control data
//! that is the kernel's, and descriptors that are passed on.

use super::buffers::{AnyBuffers, Few};
use super::ends::hold_rx;
use super::leave::without_memory;
use super::need_kernel::need_kernel;
use super::receive::{recv_attached, recvmsg_leaving};
use super::receiving::await_bytes;
use super::reset::on_error_taken;
use super::send::{leave_to_send, send_attached};
use super::{Begun, EFAULT, EINVAL, NOT_BEGUN, Who, begin, dispatch, end, is_readable, who};
use crate::channel::Side;
use crate::outcome::{PASS, RESTART, Ret};
use crate::socket::{Socket, State, flag};
use crate::{adoption, fd_table, signals, sleep, sys, user};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use libc::{iovec, mmsghdr, msghdr, timespec};
use netacc_control::stats::Reason;

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

/// A message into a few buffers and no more. [`NOT_BEGUN`]: it is none.
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
            let r = unsafe { recv_attached(s, g, fd, v, flags) };
            // SAFETY: the caller's msghdr.
            unsafe { told(msg, flags, r) }
        }
        _ => NOT_BEGUN,
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
        let mut parts = AnyBuffers::new();
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
            let r = recv_attached(s, g, fd, v, flags);
            if r >= 0 && !m.msg_name.is_null() && !user::write(&raw mut (*msg).msg_namelen, 0) {
                EFAULT
            } else {
                told(msg, flags, r)
            }
        }
    };
    // SAFETY: the caller's msghdr.
    dispatch(fd, Side::Receive, flags, ring, |more| unsafe {
        sleep::recvmsg(fd, msg, flags | more)
    })
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
        if r == PASS && received > 0 && flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0 {
            // It is the kernel's by now, which would tell an error that is the next call's.
            r = match await_bytes(fd, deadline_of(fd, flags)) {
                0 => PASS,
                r => r,
            };
        }
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

/// When a receive of the kernel's on it, which begins now, would end; 0: never.
#[cold]
fn deadline_of(fd: c_int, flags: c_int) -> u64 {
    let is_set = |flags: isize| flags >= 0 && flags as c_int & libc::O_NONBLOCK != 0;
    let now = sys::now_ns();
    if flags & libc::MSG_DONTWAIT != 0 || is_set(sys::fcntl(fd, libc::F_GETFL, 0)) {
        return now;
    }
    match sys::timeout_of(fd, libc::SO_RCVTIMEO) {
        ns @ 1.. => now.saturating_add(ns as u64),
        _ => 0,
    }
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
    let asks = s.has(flag::CARRIER_SPOKE) || !s.is(State::Attached);
    if !asks || sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) < 0 {
        return None;
    }
    if s.is(State::Attached) && (error != 0 || s.path().is_shared()) {
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
        libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT | libc::ENOTCONN
            if s.is(State::Attached) =>
        {
            if let Ok(h) = hold_rx(s, g) {
                h.end.pending_error = r as i32;
                s.lower(flag::TOLD);
            }
        }
        _ => s.kept_error.store(r as i32, Relaxed),
    }
}

/// A message is about to be sent that nobody here hears the end of: what it passes is the kernel's.
pub(crate) unsafe fn before_passing(msg: *const msghdr) {
    if fd_table::high_water() != 0 {
        // SAFETY: the caller's msghdr.
        unsafe { for_each_passed(msg, |fd| need_kernel(fd, Reason::PassedByScmRights)) };
    }
}

/// Calls `f` for every descriptor in the control data of `msg`. It needs no memory: what it passes
/// over would go out as it is.
pub(crate) unsafe fn for_each_passed(msg: *const msghdr, mut f: impl FnMut(c_int)) {
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

/// A message of a few buffers and no more. [`NOT_BEGUN`]: it is none.
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
            send_attached(s, g, fd, v, flags)
        },
        _ => NOT_BEGUN,
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
                    need_kernel(passed, Reason::PassedByScmRights);
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
    let mut parts = AnyBuffers::new();
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
        unsafe { send_attached(s, g, fd, v, flags) }
    };
    // SAFETY: the caller's msghdr.
    dispatch(fd, Side::Send, flags, ring, |_| unsafe { sleep::sendmsg(fd, msg, flags) })
}

/// How much the kernel was asked to send: a call of several messages ends behind one that is cut
/// short, also where the connection became the kernel's in the middle of it.
///
/// # Safety
/// `msg` is what the application gave as the place of a msghdr.
#[cold]
unsafe fn length_of(msg: *const msghdr) -> usize {
    // SAFETY: the caller's promise.
    let Some(m) = (unsafe { user::read(msg) }) else { return 0 };
    let mut parts = AnyBuffers::new();
    parts.import(m.msg_iov, m.msg_iovlen, libc::EMSGSIZE).map_or(0, |v| v.total)
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
            (r, total) = unsafe { (sys::sendmsg(fd, header, flags), length_of(header)) };
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
