//! Sending on an attached connection.

use super::buffers::{self, MAX_RW_COUNT};
use super::ends::{NotHeld, TxHeld, hold_tx, load_ack, publish_announce, show_path, try_tx};
use super::leave::between_hosts::await_carrier;
use super::leave::to_kernel;
use super::linger::end_in_reset;
use super::receive::copy_failed;
use super::reset::{is_reset, peer_has_ended};
use super::send_again::is_resending;
use super::sending::Sending;
use super::waits::{Patience, never_waits};
use super::{EAGAIN, ECONNRESET, EFAULT, PLAIN_FLAGS, SEND_FLAGS, watch};
use crate::channel::{Channel, Side, quiet};
use crate::fd_table::Entry;
use crate::lock::bump;
use crate::outcome::{PASS, Ret};
use crate::socket::{Socket, State, flag};
use crate::user::LOWEST_ADDRESS;
use crate::{agent, fd_table, sleep, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use libc::{iovec, msghdr};
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::{Delivery, Path as Way, TxState};
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
    s.has(flag::RESET) || (s.has(flag::BROKEN_OFF | flag::CORRUPT) && s.has(flag::REMOTE))
}

/// A send on such a connection: the error once, if nobody was told, then as on any that is over
/// (send(2)).
#[cold]
pub(super) fn send_broken(s: &Socket, flags: c_int) -> Ret {
    if s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD == 0 {
        return ECONNRESET;
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
    if s.has(flag::REMOTE) {
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
    buf: *const u8,
    len: usize,
    flags: c_int,
) -> Ret {
    if !buffers::is_user(buf as usize, len) {
        return EFAULT;
    }
    let total = len.min(MAX_RW_COUNT);
    let Some(mut held) = tx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffer.
        return unsafe { send_otherwise(s, g, fd, &[sys::iov(buf, total)], total, flags) };
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

/// `iov`: as `parts` makes them, `total` bytes together.
#[inline(always)]
pub(super) unsafe fn send_attached(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    iov: &[iovec],
    total: usize,
    flags: c_int,
) -> Ret {
    let Some(mut held) = tx_for_ring(s, g, total, flags) else {
        // SAFETY: the caller's buffers.
        return unsafe { send_otherwise(s, g, fd, iov, total, flags) };
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
    let held = try_tx(s, g)?;
    (!s.has(NOT_PLAIN)
        && held.end.switch.state() == TxState::Fast
        && !held.end.switches.are_ordered())
    .then_some(held)
}

/// A send that cannot go into the ring as it is, or only when another thread is done with it.
#[cold]
#[inline(never)]
unsafe fn send_otherwise(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    iov: &[iovec],
    total: usize,
    flags: c_int,
) -> Ret {
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
    watch::watch();
    let _ = held.end.switch.on_accepted(n as u64);
    if let Some(r) = s.record()
        && let Some(w) = r.tx_bytes.get(held.channel.path() as usize)
    {
        bump(w, n as u64);
    }
    true
}

/// Bytes are held back for at most so long (tcp(7): TCP_CORK).
const HOLD_NS: u64 = 200_000_000;
/// A full segment of the loopback device is sent, whatever is to follow.
const HOLD_BYTES: usize = 65_483;

/// The application says that more is to follow.
fn waits_for_more(s: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_MORE != 0 || s.has(flag::CORKED)
}

/// As [`sent_fast`], but the peer is not told before more has come, or a time has passed. False: it
/// is to be told now. (Between hosts always: what this process has not handed to the device goes
/// with it. Nor without the thread that would do it in time.)
#[cold]
pub(super) fn hold_back(s: &Socket, h: &mut TxHeld<'_>, n: usize, flags: c_int) -> bool {
    let held = h.end.ring.unpublished();
    let is_full = held >= HOLD_BYTES.min(h.end.ring.size() / 4);
    if !waits_for_more(s, flags)
        || is_full
        || h.channel.wire().is_some()
        || s.is_inherited()
        || !agent::here().is_running()
    {
        return false;
    }
    h.end.ring.hold();
    let _ = h.end.switch.on_accepted(n as u64);
    if let Some(r) = s.record() {
        r.add_tx(Path::Shm, n as u64);
    }
    if held == n {
        h.end.held_since = sys::now_ns();
        s.raise(flag::HOLDS);
        agent::here().held_until(h.end.held_since.saturating_add(HOLD_NS));
    }
    true
}

/// Shows the peer what the ring holds back.
pub(super) fn publish_held(h: &mut TxHeld<'_>) {
    if h.end.switch.state() == TxState::Fast && h.end.ring.unpublished() != 0 {
        h.published.tail.store(h.end.ring.publish(), Relaxed);
        h.notify();
    }
}

/// The connection is not corked any more, or what waits is to be pushed.
pub(crate) fn send_held(s: &'static Socket, g: u16) {
    let Ok(mut h) = hold_tx(s, g) else { return };
    if s.is_inherited() && h.end.ring.unpublished() != 0 {
        // As with all that a child sends.
        demote_tx(s, &mut h, true);
    }
    publish_held(&mut h);
}

/// What has been held back for long enough is sent. When the next is due; 0: nothing is held back.
/// Service thread.
pub(crate) fn send_held_in_time() -> u64 {
    let now = sys::now_ns();
    let mut next = 0;
    fd_table::for_each(|_, entry| {
        let Entry::Socket(s, g) = entry else { return };
        if !s.has(flag::HOLDS) || s.is_inherited() {
            return;
        }
        let Ok(mut h) = hold_tx(s, g) else { return };
        let due = h.end.held_since.saturating_add(HOLD_NS);
        if h.end.ring.unpublished() != 0 && due > now {
            next = if next == 0 { due } else { due.min(next) };
            return;
        }
        publish_held(&mut h);
        s.lower(flag::HOLDS);
    });
    next
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

/// The peer closed or is closing: from here on the kernel knows best what a send means (EPIPE,
/// ECONNRESET, or bytes to a peer without a word that only closed its sending half). One that has
/// said that is not going.
pub(super) fn peer_is_going(s: &Socket, h: &TxHeld<'_>, fd: c_int) -> bool {
    if h.channel.peer_ends(h.slot)
        || h.words.quiet[quiet::REQUEST].load(Relaxed) & quiet::CLOSED != 0
    {
        return true;
    }
    if !s.has(flag::CARRIER_SPOKE) {
        return false;
    }
    if is_reset(s, fd) {
        return true;
    }
    if h.channel.peer_half_closed(h.slot) {
        return sys::poll_now(fd, 0) & (libc::POLLHUP | libc::POLLERR) != 0;
    }
    if peer_has_ended(s, fd) {
        return true;
    }
    // It said something else: the receiving side's business, who asks again when its ring is empty.
    if sys::poll_now(fd, libc::POLLIN | libc::POLLPRI) == 0 {
        s.lower(flag::CARRIER_SPOKE);
    }
    false
}

pub(super) fn demote_tx(s: &Socket, h: &mut TxHeld<'_>, for_good: bool) {
    if for_good {
        h.end.never = true;
    }
    publish_held(h);
    if let Ok(a) = h.end.switch.demote() {
        publish_announce(h, a);
        show_path(s, true, Way::Carrier);
        h.notify();
    }
}

/// The carrier's send buffer has grown: who waits for room in a ring finds it there. (Not between
/// hosts, where the peer is asked first.)
pub(crate) fn on_more_room(s: &'static Socket, g: u16) {
    if s.is_inherited() {
        return;
    }
    if let Ok(mut h) = hold_tx(s, g)
        && h.channel.wire().is_none()
        && h.end.switch.state() == TxState::Fast
        && !wait::send_room(s, h.channel, h.slot, s.tx_ring_bytes())
    {
        demote_tx(s, &mut h, false);
    }
    wait::prod(s);
}

/// Whether a send finds the carrier open: not while the peer has not heard yet that the stream goes
/// on there. (Looks without the lock: what it sees is the last that was announced.)
pub(crate) fn may_send_on_carrier(s: &Socket) -> bool {
    let Some(wire) = s.channel().and_then(Channel::wire) else { return true };
    let slot = s.slot.load(Relaxed) as usize;
    let epoch = s.published.epoch.load(Relaxed);
    epoch == 0 || wire.slot(slot).seen_epoch.load(SeqCst) == epoch
}

/// Between hosts: whether the peer knows that the stream goes on on the carrier.
pub(super) fn may_use_carrier(h: &TxHeld<'_>) -> bool {
    h.channel
        .wire()
        .is_none_or(|w| h.end.switch.carrier_is_open(w.slot(h.slot).seen_epoch.load(SeqCst)))
}

/// Moves the sending direction onto the ring if the peer is ready for it.
pub(super) fn promote(s: &Socket, h: &mut TxHeld<'_>, fd: c_int, flags: c_int) -> bool {
    // First: what the peer says of itself it says before it arms.
    let ack = load_ack(h.words);
    if h.end.never
        || h.end.unsettled
        || !ack.armed
        || ack.frozen
        || flags & !SEND_FLAGS != 0
        || s.has(flag::SHUT_WR)
    {
        return false;
    }
    if waits_for_more(s, flags) && unsent(fd) > 0 {
        // What the carrier holds back has to wait, too.
        return false;
    }
    if peer_is_going(s, h, fd) {
        h.end.never = true;
        return false;
    }
    let delivery = if h.channel.wire().is_some() { Delivery::Lossy } else { Delivery::Reliable };
    if delivery == Delivery::Lossy {
        end_in_reset(h, s.fd.load(Acquire));
    }
    let Ok(a) = h.end.switch.promote(ack, delivery) else { return false };
    publish_announce(h, a);
    fence(SeqCst);
    h.end.ring.continue_at(h.end.switch.offset());
    match h.end.switch.confirm(load_ack(h.words)) {
        Ok(None) => {
            show_path(s, true, Way::Fast);
            push_carrier(fd);
            true
        }
        Ok(Some(back)) => {
            publish_announce(h, back);
            false
        }
        Err(_) => false,
    }
}

/// `SIOCOUTQNSD` (linux/sockios.h): what the kernel was given to send and has not sent yet.
const SIOCOUTQNSD: usize = 0x894b;

fn unsent(fd: c_int) -> c_int {
    let mut bytes: c_int = 0;
    if sys::ioctl(fd, SIOCOUTQNSD, &mut bytes as *mut c_int as usize) < 0 { 0 } else { bytes }
}

/// The next byte goes another way, and the kernel must not wait for it with what it holds back: a
/// part of a packet, by Nagle's algorithm, by MSG_MORE, by TCP_CORK. (For want of window, or of
/// congestion window, it waits as ever.)
fn push_carrier(fd: c_int) {
    if unsent(fd) <= 0 {
        return;
    }
    let mut nodelay: c_int = 1;
    let _ = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut nodelay);
    // To set it overrides all three, a cork too, for what is queued, also for what the window does
    // not admit yet, and also when it is taken back (net/ipv4/tcp.c: TCP_NAGLE_PUSH).
    let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
    if nodelay == 0 {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0);
    }
}

/// The application has set TCP_NODELAY, perhaps in the middle of [`push_carrier`] by another
/// thread: once more, behind that.
pub(crate) fn on_nodelay(s: &'static Socket, g: u16, fd: c_int, value: c_int) {
    if let Ok(_held) = hold_tx(s, g) {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &value);
    }
}

/// Changes the path now and then, where the tests have ordered that.
pub(super) fn switch_if_ordered(s: &Socket, h: &mut TxHeld<'_>) {
    let Some(x) = h.end.switches.next() else { return };
    let between_hosts = h.channel.wire().is_some();
    if h.end.switch.state() == TxState::Fast && x.is_multiple_of(16) {
        if between_hosts {
            if x.is_multiple_of(1024) {
                h.channel.ask_to_leave(h.slot, Reason::RdmaLost, true);
            }
        } else {
            demote_tx(s, h, false);
        }
    }
}
