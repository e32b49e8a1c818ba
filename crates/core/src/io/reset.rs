//! A peer that is gone with bytes unread.
//!
//! TCP resets a connection that is closed with bytes unread, whoever closes it: a program, or the
//! kernel when the program was killed. Of bytes in a ring the peer's kernel knows nothing, and
//! sends a FIN. Its library says so when a program closes in order (`before_close`); when nobody
//! could, this end finds out. A FIN that is not announced ([`quiet::FIN`]) is that of the last
//! close, after which nobody takes anything from the ring: what lies there is unread for good, and
//! the connection counts as reset.
//!
//! The kernel's socket cannot be given an error. So it is shut down, which wakes all who wait and
//! ends both directions, and the error is the library's ([`flag::RESET`]): told once, as any
//! (tcp(7)), behind all that the peer has sent.
//!
//! What happens when a peer process of this host is killed, in order:
//!
//! 1. Its kernel closes its descriptors, in any order. A carrier ends by a FIN, or by a reset if
//!    bytes were unread in the kernel. The control link ends, too.
//! 2. The thread "netacc" sees the end of the link (`rendezvous/control_link.rs`, `end_link`). It
//!    marks the channel as dead, and wakes whoever waits on it (`wait::channel_died`).
//! 3. For each connection of the channel (`service.rs`, `watch_carriers`) the thread has the
//!    carrier's end reported to it (`leave/serve.rs`, `watch_carrier`), and lets the connection
//!    leave its ring at once (`leave_dead_channel`). Only where bytes of ours are unread it waits
//!    before that for the carrier to end (`may_end`): as long as the peer's process dies, or 100 ms
//!    (`may_close`).
//! 4. When a carrier ends (`hear_carrier`), [`is_reset`] looks whether bytes of ours lie unread in
//!    the ring: then the connection counts as reset. Calls, waits and epoll sets ask the same for
//!    themselves, as soon as they see the carrier's end.
//! 5. A carrier that lives on is that of a forked child of the peer's, or of a peer that has lost
//!    only its link. What is sent from here on goes over it.
//! 6. A receiver reads what the peer had put into the ring, then the end or the error
//!    (`receive_once.rs`, `carrier_ended`). A sender gets the error once ([`send_broken`]).
//! 7. The application closes the connection. When the last one has left it, the dead link's place
//!    serves another peer (`control_link.rs`, `recycle`).

use super::ECONNRESET;
use super::ends::{RxHeld, hold_rx, hold_tx};
use crate::channel::quiet;
use crate::log::debug_log;
use crate::outcome::Ret;
use crate::socket::{Socket, State, flag};
use crate::{carrier, sys, trace};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_ring::RingWords;

/// The peer's end was closed with bytes unread in the ring. Finds that out, if the carrier has
/// ended; the caller holds one of the ends.
pub(crate) fn is_reset(s: &Socket, fd: c_int) -> bool {
    s.has(flag::RESET) || (lies_unread(s) && find(s, fd))
}

/// As [`is_reset`], for who holds neither.
pub(crate) fn is_reset_now(s: &'static Socket, g: u16, fd: c_int) -> bool {
    // With the lock it stays the connection that it is.
    s.has(flag::RESET) || (lies_unread(s) && hold_tx(s, g).is_ok_and(|_held| is_reset(s, fd)))
}

/// It was reset so, and the application has not heard of that.
pub(crate) fn owes_reset(s: &Socket) -> bool {
    s.flags.load(Acquire) & (flag::RESET | flag::TOLD) == flag::RESET
}

/// Of what poll has `said` of a carrier that is over, between hosts: an error that the library has
/// taken from it, or knows of by itself, is still to be told, and one that it has told is not.
#[cold]
pub(crate) fn with_error_owed(s: &'static Socket, g: u16, said: i16) -> i16 {
    if said & libc::POLLHUP == 0 || !s.path().is_lossy() {
        return said;
    }
    let is_owed = |h: RxHeld<'_>| h.end.pending_error != 0 || is_broken(s);
    match s.has(flag::TOLD) {
        true => said & !libc::POLLERR,
        false if hold_rx(s, g).is_ok_and(is_owed) => said | libc::POLLERR,
        false => said,
    }
}

/// What the kernel says of a carrier in the middle of a reset is the error, and not yet all that
/// comes with it: asked again, behind that.
pub(crate) fn settled(fd: c_int, asked: i16, said: i16) -> i16 {
    if said & (libc::POLLERR | libc::POLLHUP) != libc::POLLERR {
        return said;
    }
    // This waits for whoever is at the socket (tcp_get_info: lock_sock_fast).
    let _ = carrier::is_closed(fd);
    sys::poll_now(fd, asked)
}

/// Bytes of ours lie in the ring, and the peer has announced neither a shutdown nor its end: if it
/// is gone, they are unread for good.
///
/// The head is the peer's word, and may be anything: that costs its own connection. (It may be
/// ahead of what is said here, for a moment.)
pub(super) fn lies_unread(s: &Socket) -> bool {
    unread_words(s).is_some_and(|words| {
        words.quiet[quiet::REQUEST].load(Acquire) & quiet::FIN == 0
            && words.quiet[quiet::NOTIFY].load(Acquire) & quiet::ENDS == 0
    })
}

/// The words of the direction that we produce, if the peer has not taken all of it from the ring.
fn unread_words(s: &Socket) -> Option<&RingWords> {
    let channel = s.channel().filter(|c| c.far.is_shared())?;
    let words = channel.words(s.slot.load(Relaxed) as usize, channel.side);
    let unread = s.published.tail.load(Relaxed).wrapping_sub(words.head.load(Acquire));
    (unread.cast_signed() > 0).then_some(words)
}

/// Bytes of ours are unread in the ring, and should the peer's process end like that its kernel
/// would not know: the peer has not heard that we have left it, nor is closing it.
pub(super) fn would_end_in_order(s: &Socket) -> bool {
    unread_words(s).is_some_and(|words| {
        words.quiet[quiet::REQUEST].load(Acquire) & (quiet::CLOSED | quiet::RESETS) == 0
            && words.quiet[quiet::NOTIFY].load(Acquire) & quiet::ENDS == 0
    })
}

#[cold]
#[inline(never)]
fn find(s: &Socket, fd: c_int) -> bool {
    // In this order: what the peer has taken, or said, it has taken and said before its end.
    if !carrier::has_ended(fd) || !lies_unread(s) || (carrier::is_closed(fd) && !take_error(s, fd))
    {
        return false;
    }
    declare(s, fd);
    true
}

/// The kernel's socket is closed, behind the FINs of both ends, or by a reset that something has
/// brought about which we sent behind the peer's FIN: that is EPIPE, and takes the place of the
/// reset that would have come before. False: by something else, or it is known.
fn take_error(s: &Socket, fd: c_int) -> bool {
    let mut error: c_int = 0;
    if s.has(flag::TOLD) || sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) < 0 {
        return false;
    }
    match error {
        0 => s.has(flag::SHUT_WR) && s.kept_error.load(Relaxed) == 0,
        libc::EPIPE | libc::ECONNRESET => true,
        _ => {
            s.kept_error.store(-error, Relaxed);
            false
        }
    }
}

/// As [`is_reset`], where the kernel has just reported an error, which it does once.
pub(super) fn is_reset_by(s: &Socket, fd: c_int, error: c_int) -> bool {
    if s.has(flag::RESET) {
        return true;
    }
    let found =
        matches!(error, libc::EPIPE | libc::ECONNRESET) && lies_unread(s) && carrier::is_closed(fd);
    if found {
        declare(s, fd);
    }
    found
}

fn declare(s: &Socket, fd: c_int) {
    if s.flags.fetch_or(flag::RESET | flag::CARRIER_SPOKE, AcqRel) & flag::RESET == 0 {
        s.trace(trace::Event::PeerGone, 0);
        debug_log!("fd {fd}: the peer is gone with bytes unread: reset");
        // (Of a carrier that was dissolved a shutdown would make a clean end, to whoever has it
        // without the library.)
        if !s.has(flag::BROKEN_OFF | flag::CORRUPT) {
            let _ = sys::shutdown(fd, libc::SHUT_RDWR);
        }
    }
}

/// The application has taken the carrier's error (SO_ERROR), which counts as told if the carrier is
/// over (it may be a soft error, of an attempt that failed). `Some`: one that the carrier does not
/// know.
pub(crate) fn on_error_taken(s: &'static Socket, g: u16, fd: c_int, error: c_int) -> Option<c_int> {
    // (Broken off, it is told by the library, whatever else the carrier knows.)
    if matches!(error, libc::EPIPE | libc::ECONNRESET)
        && hold_tx(s, g).is_ok_and(|_held| is_broken(s) || is_reset_by(s, fd, error))
    {
        let told = s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD != 0;
        return Some(if told { 0 } else { -why_broken(s) as c_int });
    }
    if error != 0 {
        if carrier::is_closed(fd) {
            s.raise(flag::TOLD);
        }
        return None;
    }
    if !(is_broken(s) || is_reset_now(s, g, fd)) {
        return take_owed(s, g).map(|r| -r as c_int);
    }
    (s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD == 0).then(|| -why_broken(s) as c_int)
}

/// An error that a call has taken from the carrier, and had bytes to tell first: told here, whoever
/// asks, as of `sk_err`. The caller holds neither end.
#[cold]
pub(super) fn take_owed(s: &'static Socket, g: u16) -> Option<Ret> {
    let h = hold_rx(s, g).ok()?;
    let error = core::mem::take(&mut h.end.pending_error);
    if error == 0 {
        return None;
    }
    s.raise(flag::TOLD);
    Some(error as Ret)
}

/// The carrier has ended, or failed.
pub(crate) fn carrier_is_over(s: &Socket) -> bool {
    peer_has_ended(s, s.fd.load(Acquire))
}

/// Calls `f` with the number of the carrier, which nobody gives away meanwhile. Not of a connection
/// that is no longer on a faster path.
pub(crate) fn with_carrier(s: &'static Socket, f: impl FnOnce(c_int)) {
    if let Ok(_held) = hold_tx(s, s.generation16()) {
        f(s.fd.load(Acquire));
    }
}

/// It has failed: nobody is at its other end.
pub(crate) fn carrier_is_reset(s: &Socket) -> bool {
    carrier::is_closed(s.fd.load(Acquire))
}

/// The peer's FIN, or a reset, has come. (Of a socket that is shut down for reading poll says so in
/// any case.)
pub(super) fn peer_has_ended(s: &Socket, fd: c_int) -> bool {
    let said =
        sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0;
    said && (!s.has(flag::SHUT_RD) || carrier::peer_ended(fd))
}

/// The connection was broken off between hosts, or reset within one: what the carrier says of
/// itself does not count any more.
pub(super) fn is_broken(s: &Socket) -> bool {
    s.has(flag::RESET) || (s.has(flag::BROKEN_OFF | flag::CORRUPT) && s.path().is_lossy())
}

/// What such a connection fails with.
pub(super) fn why_broken(s: &Socket) -> Ret {
    if s.has(flag::TIMED_OUT) { -(libc::ETIMEDOUT as Ret) } else { ECONNRESET }
}

/// A send on such a connection: the error once, if nobody was told, then as on any that is over
/// (send(2)).
#[cold]
pub(super) fn send_broken(s: &Socket, flags: c_int) -> Ret {
    if s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD == 0 {
        return why_broken(s);
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise(libc::SIGPIPE);
    }
    -(libc::EPIPE as Ret)
}

/// What `recvmmsg` has kept, when there is nothing to read.
#[cold]
pub(super) fn kept_error(s: &Socket, fd: c_int) -> Option<Ret> {
    let nothing = s.is(State::Attached)
        || sys::poll_now(fd, libc::POLLIN) & libc::POLLIN == 0
        || carrier::is_closed(fd);
    let kept = if nothing { s.kept_error.swap(0, Relaxed) } else { 0 };
    (kept != 0).then_some(kept as Ret)
}
