//! The data calls: bytes onto and off the path that each direction is on.
//!
//! Budget of the fast path, both ways: one table load, one compare-and-swap for the end's lock, the
//! copy, one release store, one fence; no system call. Everything else is in functions that are
//! cold, or not inlined.

use crate::channel::Side;
use crate::fd_table::{self, Entry};
use crate::outcome::{ANEW, PASS, RESTART, Ret};
use crate::signals::Section;
/// A call that has begun on the fast way has this result when it did nothing: `dispatch` does it.
use crate::sleep::NOT_BEGUN;
use crate::socket::{Named, Socket, State};
use crate::{candidates, process, signals, sleep, sys, user};
use core::ffi::{c_int, c_void};
use libc::{iovec, msghdr, sockaddr, socklen_t};

const EAGAIN: Ret = -(libc::EAGAIN as Ret);
const ECONNRESET: Ret = -(libc::ECONNRESET as Ret);
/// Flags under which bytes may take the ring.
const SEND_FLAGS: c_int = PLAIN_FLAGS | libc::MSG_MORE;
/// Of these, those under which they are published at once.
const PLAIN_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR;
/// The shortest time between two questions to the carrier by calls that find the ring empty. Each
/// question is a system call, and on a busy machine other threads wait for it. (No question is
/// needed for an end that the peer's process has said in shared memory.)
const ASK_CARRIER_NS: u64 = 1_000_000;
/// The same where the socket is in an epoll set: waits for the set bring the carrier's news.
const ASK_CARRIER_IN_SET_NS: u64 = 10_000_000;
/// The same for sends that find no room, in ticks: some 40 µs.
const ASK_CARRIER_TICKS: u64 = 100_000;
const EFAULT: Ret = -(libc::EFAULT as Ret);
const EINVAL: Ret = -(libc::EINVAL as Ret);

mod arm_receiver;
mod attach;
mod buffers;
mod candidate;
mod close;
mod disconnect;
mod end_in_reset;
mod ends;
mod file;
mod followed;
mod held_back;
mod kept;
mod kernel_exit;
mod last_close;
mod leave;
mod linger;
mod look_ahead;
mod message;
mod need_kernel;
mod off;
mod outlive;
mod park;
mod probe;
mod promote;
mod put;
mod receive;
mod receive_once;
mod receiving;
mod reset;
mod ring_full;
mod rings_shown;
mod say_end;
mod send;
mod send_again;
mod sending;
mod shutdown;
mod take;
mod under_way;
mod waits;
mod waits_seen;
mod watch;

pub(crate) use attach::attach;
use buffers::{AnyBuffers, Buffers, Few};
pub(crate) use candidate::{candidate, on_poller_gone, shutdown_candidate};
pub(crate) use close::{at_exit, close, close_of, shutdown_of};
pub(crate) use disconnect::disconnect;
pub(crate) use end_in_reset::{hear_left, never_linger};
pub(crate) use ends::{carrier_is_drained, reads_ring_first};
pub(crate) use file::{sendfile, splice};
pub(crate) use followed::follow_trace;
pub(crate) use held_back::{send_held, send_held_in_time};
pub(crate) use kept::{
    end_listener, find_taken, give_up_listener, hear_taken, is_taken, on_ring, serves,
    share_listener, sweep_in_time, waits_elsewhere,
};
pub(crate) use kernel_exit::{Came, Went, give_back_to_kernel, take_out_of_kernel};
#[cfg(test)]
pub(crate) use leave::between_hosts::is_pinned_to_kernel;
pub(crate) use leave::between_hosts::wake_leavers;
#[cfg(test)]
pub(crate) use leave::between_hosts::{Patience, await_way_back};
#[cfg(test)]
pub(crate) use leave::pause::{pause, resume};
#[cfg(test)]
pub(crate) use leave::serve::freeze_of;
pub(crate) use leave::serve::{
    PullBack, hear_carrier, leave_dead_channel, may_close, may_end, serve_pull_back, watch_carrier,
};
pub(crate) use leave::step::{Departure, Moved};
pub(crate) use leave::to_kernel;
use leave::without_memory;
pub(crate) use linger::{application_linger, on_linger, set_linger};
pub(crate) use message::{before_passing, for_each_passed, recvmmsg, recvmsg, sendmmsg, sendmsg};
pub(crate) use need_kernel::{
    hand_on, is_here, is_left_in_ring, lose_sight, need_kernel, need_kernel_both_ways,
    need_kernel_to_send, off_stdio,
};
pub(crate) use off::{follow_switch, forget as forget_off};
pub(crate) use outlive::begin_exit;
pub(crate) use park::{Fresh, connect, give_out};
pub(crate) use probe::{begin_probe, end_probe, probed_by, set_probed};
pub(crate) use promote::{may_send_on_carrier, on_more_room, on_nodelay};
pub(crate) use receive::unread;
#[cfg(test)]
pub(crate) use receive::{receive_behind, receive_broken, within_receive};
use receive::{recv_attached, recv_one};
pub(crate) use reset::{
    carrier_is_over, carrier_is_reset, is_reset_now, on_error_taken, owes_reset, settled,
    with_carrier, with_error_owed,
};
pub(crate) use say_end::serve_before_fin;
use send::{send_attached, send_one};
pub(crate) use shutdown::shutdown;
#[cfg(test)]
pub(crate) use shutdown::shutdown_of_parents;
pub(crate) use waits::{carrier_is_due, carrier_was_asked, interrupted};
pub(crate) use waits_seen::{CLOCK_CALLS, on_waited_for};
pub(crate) use watch::{
    forget as forget_watch, has_fired, hear_unread, look_at_unread, look_at_unread_here,
};

// ---- entry points -------------------------------------------------------------------------------

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
        Entry::Socket(s, g) => match s.state.now() {
            State::Attached => Who::Attached(s, g),
            State::Candidate | State::Changing | State::Left | State::Closing => {
                Who::Candidate(s, g)
            }
            // (A forked child has adopted it.)
            State::Adopted if s.is_inherited() => Who::Candidate(s, g),
            State::Unconnected => who_by_now(fd),
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
        Entry::Socket(s, g) if s.is(State::Candidate) => Who::Candidate(s, g),
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
        Entry::Socket(s, g) if s.is(State::Attached) => match signals::enter_first() {
            Some(section) => Begun::On(s, g, section),
            None => Begun::Otherwise,
        },
        _ => Begun::Otherwise,
    }
}

/// A call that has begun ends with the result `r`. `None`: [`dispatch`] makes the call once more.
#[inline(always)]
fn end(s: &Socket, g: u16, section: Section, r: Ret) -> Option<Ret> {
    let nested = signals::leave(section);
    if r > sleep::NOT_BEGUN || !goes_on(s, g, r, nested) { Some(r) } else { None }
}

/// One data call: `ring` on an attached connection, `kernel` (with flags besides its own) on a
/// candidate, whose bytes are counted. [`PASS`]: it is neither.
fn dispatch(
    fd: c_int,
    side: Side,
    flags: c_int,
    ring: impl Fn(&'static Socket, u16) -> Ret,
    kernel: impl Fn(c_int) -> isize,
) -> Ret {
    loop {
        let (s, g, attached) = match who(fd) {
            Who::NotOurs => return PASS,
            Who::Attached(s, g) => (s, g, true),
            Who::Candidate(s, g) => (s, g, false),
        };
        let section = signals::enter();
        let r = if attached {
            Some(ring(s, g))
        } else {
            candidate(Named { s, g, fd }, side, flags, &kernel)
        };
        let nested = signals::leave(section);
        match r {
            Some(r) if r > sleep::NOT_BEGUN => return r,
            Some(r) => {
                if let Some(r) = ends_with(s, g, r, nested) {
                    return r;
                }
            }
            None => {}
        }
    }
}

/// Whether [`dispatch`] makes a call that came to `r` once more, or says what it ends with.
#[cold]
#[inline(never)]
fn goes_on(s: &Socket, g: u16, r: Ret, nested: bool) -> bool {
    r == ANEW || ends_with(s, g, r, nested).is_none()
}

/// What a call that came to `r` ends with. `None`: it begins anew. It does where the connection has
/// become a candidate again (between hosts), whoever looks at that at this moment, and where a
/// handler has run after which the kernel restarts a call. A call inside of another one (`nested`)
/// is not begun anew for a handler, so that the outer one can end. Where threads may be cancelled,
/// the hook decides.
#[cold]
#[inline(never)]
fn ends_with(s: &Socket, g: u16, r: Ret, nested: bool) -> Option<Ret> {
    let again = match r {
        ANEW | PASS if s.generation16() != g => false,
        ANEW if s.is(State::Attached) => !s.is_inherited() || s.channel().is_some(),
        ANEW | PASS => s.may_be_candidate(),
        _ if nested => false,
        RESTART => !process::threads_are_cancelled(),
        _ => r == sleep::NOT_BEGUN,
    };
    // (Otherwise it is the kernel's, or over, of which the kernel tells.)
    (!again).then_some(if r == ANEW { PASS } else { r })
}

#[inline(always)]
pub(crate) unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Ret {
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            // SAFETY: the caller's buffer.
            let r = unsafe { recv_one(s, g, fd, sys::iov(buf, len), flags) };
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
    let ring = |s, g| unsafe { recv_one(s, g, fd, sys::iov(buf, len), flags) };
    // SAFETY: as above.
    let kernel = |more| unsafe {
        sleep::recvfrom(fd, buf, len, flags | more, core::ptr::null_mut(), core::ptr::null_mut())
    };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

/// The buffers of a vector call. `Err`: the call's result; [`PASS`] where nothing is asked, or what
/// the kernel refuses.
#[inline]
fn import(parts: &mut AnyBuffers, iov: *const iovec, count: c_int) -> Result<Buffers<'_>, Ret> {
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
                Some(v) => unsafe { recv_attached(s, g, fd, v, flags) },
                None => NOT_BEGUN,
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
    let mut parts = AnyBuffers::new();
    let v = match import(&mut parts, iov, count) {
        Ok(v) => v,
        Err(r) => return without_memory(fd, r),
    };
    // SAFETY: the caller's buffers.
    let ring = |s, g| unsafe { recv_attached(s, g, fd, v, flags) };
    // SAFETY: as above.
    let kernel = |more| unsafe { sleep::recvmsg(fd, &mut header_of(v.list), flags | more) };
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
        let r = unsafe { recv_one(s, g, fd, sys::iov(buf, len), flags) };
        if r >= 0 && !addr.is_null() {
            // SAFETY: the caller's length of the address.
            return unsafe { report_no_address(addr_len) }.err().unwrap_or(r);
        }
        r
    };
    // SAFETY: the caller's buffers.
    let kernel =
        |more| unsafe { sleep::recvfrom(fd, buf, len, flags | more, addr.cast(), addr_len) };
    dispatch(fd, Side::Receive, flags, ring, kernel)
}

/// Writes the length 0 where the caller of a receive has room for an address: a connected TCP
/// socket reports none (move_addr_to_user). `Err`: the result of the call, whose bytes are taken
/// all the same.
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

// ---- entry points: send -------------------------------------------------------------------------

#[inline(always)]
pub(crate) unsafe fn send(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> Ret {
    match begin(fd) {
        Begun::NotOurs => return PASS,
        Begun::On(s, g, section) => {
            // SAFETY: the caller's buffer.
            let r = unsafe { send_one(s, g, fd, sys::iov(buf, len), flags) };
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
    let ring = |s, g| unsafe { send_one(s, g, fd, sys::iov(buf, len), flags) };
    // SAFETY: as above.
    let kernel = |_| unsafe { sleep::sendto(fd, buf, len, flags) };
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
                Some(v) => unsafe { send_attached(s, g, fd, v, flags) },
                None => NOT_BEGUN,
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
    let mut parts = AnyBuffers::new();
    let v = match import(&mut parts, iov, count) {
        Ok(v) => v,
        Err(r) => return without_memory(fd, r),
    };
    // SAFETY: the caller's buffers.
    let ring = |s, g| unsafe { send_attached(s, g, fd, v, flags) };
    // SAFETY: as above.
    let kernel = |_| unsafe { sleep::sendmsg(fd, &header_of(v.list), flags) };
    dispatch(fd, Side::Send, flags, ring, kernel)
}
