//! One look of a receive at the path that its direction is on.

use super::ends::{RxHeld, load_announce};
use super::reset::{is_broken, is_reset, peer_has_ended, why_broken};
use super::take::{Target, drain, received_fast};
use super::{ASK_CARRIER_IN_SET_NS, ASK_CARRIER_NS, EAGAIN, ECONNRESET, EFAULT, header_of};
use crate::channel::quiet;
use crate::heap::Scratch;
use crate::life_word::has_closed;
use crate::outcome::Ret;
use crate::socket::{Socket, flag};
use crate::{carrier, engines, sleep, sys};
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use libc::iovec;
use netacc_control::stats::Path;
use netacc_proto::switchover::{EofVerdict, Plan, RxState};
use netacc_ring::CopyError;

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

impl RxHeld<'_> {
    /// The plan may have changed.
    pub(super) fn follow(&mut self, s: &Socket, changed: bool) -> Look {
        if changed {
            self.settled(s);
        }
        Look::Again
    }
}

/// The receiver stands on the ring.
pub(super) unsafe fn look_fast(
    s: &Socket,
    h: &mut RxHeld<'_>,
    to: &Target<'_>,
    limit: u64,
    nonblocking: bool,
) -> Look {
    let Target { fd, flags, .. } = *to;
    let peek = flags & libc::MSG_PEEK != 0;
    let Ok(mut avail) = h.end.ring.refresh() else { return Look::Corrupt };
    if avail == 0 && h.channel.far.id().traits().polled {
        engines::poll_for(h.channel, h.slot);
        let Ok(now) = h.end.ring.refresh() else { return Look::Corrupt };
        avail = now;
    }
    if avail > 0 {
        let limit = limit.min(avail as u64) as usize;
        // SAFETY: the caller's buffers.
        return match unsafe { drain(&mut h.end.ring, to, limit) } {
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
    let pause = if s.registrations.load(Relaxed) == 0 || s.is_inherited() {
        ASK_CARRIER_NS
    } else {
        ASK_CARRIER_IN_SET_NS
    };
    let ends = h.channel.peer_ends(h.slot);
    let due = ends || (nonblocking && now.wrapping_sub(h.end.carrier_asked) > pause);
    if !due && !s.has(flag::CARRIER_SPOKE) {
        return Look::Empty;
    }
    if ends && let Some(end) = end_of_life(s, h) {
        return end;
    }
    h.end.carrier_asked = now;
    ask_carrier(s, h, fd)
}

/// The peer has closed in good order: the end, if the ring has nothing more. (In this order: what
/// it has published it has published before it closed.)
#[cold]
fn end_of_life(s: &Socket, h: &mut RxHeld<'_>) -> Option<Look> {
    if !has_closed(s) {
        return None;
    }
    Some(match (h.end.ring.refresh(), h.end.switch.on_announce(load_announce(h.words))) {
        (Ok(0), Ok(false)) => Look::Kernel(0),
        (Ok(_), Ok(changed)) => h.follow(s, changed),
        _ => Look::Corrupt,
    })
}

/// The ring is empty: has the carrier ended, or is the stream to go on there?
#[cold]
pub(super) fn ask_carrier(s: &Socket, h: &mut RxHeld<'_>, fd: c_int) -> Look {
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
                if h.channel.far.is_shared() {
                    Look::Corrupt
                } else {
                    Look::Empty
                }
            }
            Ok(changed) => h.follow(s, changed),
            Err(_) => Look::Corrupt,
        };
    }
    carrier_ended(s, h, fd, r)
}

/// The carrier said that it ended (0) or failed (`-errno`). What lies in the ring comes before
/// that. Behind it one error is told, once: that the library ended the connection, or that a look
/// for a reset found one ([`why_broken`]); else the carrier's own (`pending_error`); else what a
/// look at the carrier has taken from it (`kept_error`).
#[cold]
pub(super) fn carrier_ended(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, r: Ret) -> Look {
    if r == 0 && s.has(flag::SHUT_RD) && !peer_has_ended(s, s.fd.load(Acquire)) {
        // Our own doing: nothing is there now, and nothing new is waited for.
        return if h.has_what_was_there() { Look::Kernel(0) } else { Look::Empty };
    }
    let latest = load_announce(h.words);
    if r == ECONNRESET && h.channel.far.is_shared() {
        // The kernel reports it once; it belongs behind the ring's bytes, and is to be seen until
        // then.
        s.raise(flag::RESET);
    } else if r != 0 {
        h.end.pending_error = r as i32;
    }
    // (Behind our own shutdown for receiving the sender lives, and what it holds back is its own.)
    let is_over = h.channel.far.is_shared() && carrier::peer_ended(s.fd.load(Acquire));
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
                r = if s.has(flag::TOLD) { 0 } else { why_broken(s) };
            } else if r == 0 {
                // What the look for a reset has found instead.
                r = s.kept_error.swap(0, Relaxed) as Ret;
            }
            h.end.pending_error = 0;
            if ours || (r < 0 && carrier::is_closed(fd)) {
                s.raise(flag::TOLD);
            }
            Look::Kernel(r)
        }
        Ok(EofVerdict::Truncated)
            if s.has(flag::TOLD)
                || (s.has(flag::SHUT_RD) && !s.has(flag::RESET))
                || (r == 0 && h.end.pending_error == 0 && error_was_taken(s, h)) =>
        {
            Look::Kernel(0)
        }
        Ok(EofVerdict::Truncated) => {
            h.end.pending_error = 0;
            s.raise(flag::TOLD);
            Look::Kernel(why_broken(s))
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
    !h.channel.far.is_gone(h.slot)
        && !s.has(flag::SHUT_WR | flag::BROKEN_OFF)
        && carrier::is_closed(s.fd.load(Acquire))
}

/// The receiver stands on the carrier.
pub(super) unsafe fn look_carrier(
    s: &Socket,
    h: &mut RxHeld<'_>,
    to: &Target<'_>,
    limit: u64,
    peek_first: bool,
) -> Look {
    let Target { fd, iov, done, flags } = *to;
    if h.end.pending_error != 0 {
        return carrier_ended(s, h, fd, 0);
    }
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    let mut max = limit.min(isize::MAX as u64) as usize;
    if peek_first {
        // SAFETY: the caller's buffers: peeked bytes are overwritten by the same bytes when they
        // are taken.
        let r = unsafe { kernel_recv(fd, iov, done, max, flags | libc::MSG_PEEK) };
        if r <= 0 {
            return on_no_byte(s, h, fd, r);
        }
        match h.end.switch.after_peek(r as u64, load_announce(h.words)) {
            Ok(0) => {
                h.settled(s);
                return Look::Again;
            }
            Ok(n) => {
                if h.end.switch.epoch() != h.published.ack.load(Relaxed) as u32 {
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
        return on_no_byte(s, h, fd, r);
    }
    if is_behind_the_end(h, r as u64) {
        return Look::Corrupt;
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

/// The `n` bytes that the carrier has given reach behind the end of what was sent, which was in the
/// ring: somebody has written to it past the library, and nobody knows between which bytes these
/// belong.
#[cold]
#[inline(never)]
fn is_behind_the_end(h: &RxHeld<'_>, n: u64) -> bool {
    let (latest, switch) = (load_announce(h.words), &h.end.switch);
    let said = h.channel.words(h.slot, h.channel.side).quiet[quiet::REQUEST].load(Acquire);
    said & quiet::LAST != 0
        && h.channel.far.is_shared()
        && switch.outstanding() == 0
        && matches!(switch.plan(), Plan::Carrier { limit: u64::MAX, .. })
        && switch.epoch() == latest.epoch
        && switch.offset().saturating_add(n) > latest.carrier_from
}

/// The carrier had no byte: nothing yet (`r` is EAGAIN), its end (0), or an error.
pub(super) fn on_no_byte(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, r: Ret) -> Look {
    if matches!(-r as i32, libc::EFAULT | libc::EINTR | libc::ENOMEM | libc::EINVAL) {
        return Look::Failed(r);
    }
    if r != EAGAIN {
        return carrier_ended(s, h, fd, r);
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
    // SAFETY: the caller's promise.
    unsafe { kernel_recv_around(fd, iov, 0..done, max, flags) }
}

/// As [`kernel_recv`], into all bytes of `iov` but those of `hole`.
pub(super) unsafe fn kernel_recv_around(
    fd: c_int,
    iov: &[iovec],
    hole: Range<usize>,
    max: usize,
    flags: c_int,
) -> Ret {
    // (The hole may be within one.)
    const FEW: usize = 16 + 1;
    let mut few = [sys::iov(core::ptr::null(), 0); FEW];
    let mut many = None;
    let (mut at, mut room, mut count) = (0, max, 0);
    // (Where there is no memory for more the first ones do.)
    if iov.len() >= FEW {
        many = Scratch::filled(iov.len() + 1, few[0]);
    }
    let list = many.as_deref_mut().unwrap_or(&mut few);
    for v in iov {
        let end = at + v.iov_len;
        for part in [at..end.min(hole.start), at.max(hole.end)..end] {
            let len = part.len().min(room);
            let Some(place) = list.get_mut(count).filter(|_| len > 0) else { continue };
            *place = sys::iov(v.iov_base.cast::<u8>().wrapping_add(part.start - at), len);
            (room, count) = (room - len, count + 1);
        }
        at = end;
        if room == 0 {
            break;
        }
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
