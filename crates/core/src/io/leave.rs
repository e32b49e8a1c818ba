//! The way back to the carrier (`docs/design/leave.md`), and who wants it.

use super::buffers::NO_MEMORY;
use super::end_in_reset::{all_is_read, note_what_comes};
use super::ends::hold_rx;
use super::reset::{is_reset_now, owes_reset};
use crate::channel::quiet;
use crate::life_word::step;
use crate::log::debug_log;
use crate::outcome::{PASS, Ret};
use crate::sets::sets;
use crate::socket::{Event, Named, Socket, State, flag, harmless};
use crate::trace::Event as Trace;
use crate::{agent, candidates, carrier, fd_table, process, socket, wait};
use between_hosts::to_kernel_between_hosts;
pub(super) use between_hosts::{begin_way_back, to_kernel_to_send};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
pub(super) use halves::freeze;
use netacc_control::stats::Reason;
use netacc_proto::lives::{Event as Happens, State as Life};
use netacc_proto::switchover::Action;
pub(super) use send_buffer::SendBuffer;
use within_host::LeaveCall;

pub(crate) mod between_hosts;
mod halves;
pub(crate) mod pause;
mod send_buffer;
pub(crate) mod serve;
pub(crate) mod step;
pub(super) mod within_host;

/// How long a receiver waits for the peer's library to give back what the application has not read:
/// where the call can go on without, and where it cannot.
pub(super) const PULL_BACK_NS: u64 = 50_000_000;

pub(super) const PULL_BACK_STRICT_NS: u64 = 2_000_000_000;

/// Where the call would break the connection off, nothing at all may come of it for so long: what
/// is waited for is another process's, whose host may be busy, and its program's, which may be slow
/// to read. (Within the host for 2 s, if the peer's process is stopped.)
pub(super) const NOTHING_COMES_NS: u64 = 10_000_000_000;

/// However much comes of it, no longer than this is waited: it is read from words of the peer's,
/// which it may change for ever.
pub(super) const LONGEST_NS: u64 = 60_000_000_000;

/// Whose time began before it was looked at has so long from then on.
pub(super) const AT_LEAST_NS: u64 = 100_000_000;

/// Which of them it is: without an answer unread bytes could not be read for a while, or the call
/// would fail.
pub(super) fn pull_back_patience_ns(s: &'static Socket, g: u16, why: Reason, strict: bool) -> u64 {
    let has_unread = || hold_rx(s, g).is_ok_and(|mut h| h.unread().is_ok_and(|n| n > 0));
    match why {
        _ if strict => PULL_BACK_STRICT_NS,
        Reason::NoMemory => PULL_BACK_STRICT_NS,
        Reason::SocketOption if has_unread() => PULL_BACK_STRICT_NS,
        _ => PULL_BACK_NS,
    }
}

/// Both directions back onto the carrier for good. True: the application may use the kernel's
/// socket as it likes.
///
/// False: the sending direction is the carrier's, but bytes of the receiving one are in the ring
/// and cannot be had over the carrier (the peer has left the ring by itself, or does not answer);
/// they are served from the ring as before. Or a reset is still to be told, of which the kernel
/// does not know. Where the caller is about to hand the descriptor to somebody who cannot do that
/// (`strict`), the connection is broken instead: an error that is seen, never a gap in the stream.
#[cold]
#[inline(never)]
pub(crate) fn to_kernel(s: &'static Socket, g: u16, fd: c_int, why: Reason, strict: bool) -> bool {
    to_kernel_unless(Named { s, g, fd }, why, strict, &|| false)
}

/// As [`to_kernel`], for who `can_read` the ring all the same: within the host nothing is broken
/// off for that.
pub(super) fn to_kernel_unless(
    Named { s, g, fd }: Named,
    why: Reason,
    strict: bool,
    can_read: &dyn Fn() -> bool,
) -> bool {
    loop {
        if s.generation16() != g {
            return true;
        }
        match s.state.now() {
            State::Candidate => candidates::make_plain(s, why),
            State::Unconnected => {
                s.refuse(why);
                return true;
            }
            State::Changing if socket::await_change(s) => {}
            State::Changing => return false,
            State::Closing if s.is_inherited() => socket::await_close(s),
            // Nobody adopts it any more.
            State::Left => drop(s.state.change(State::Left, Event::Refused)),
            State::Attached => break,
            _ => return true,
        }
    }
    if !s.has(flag::LEAVING) {
        s.trace_once(Trace::Leaves, u64::from(why as u32) | u64::from(strict) << 16);
    }
    harmless::write_back(s, fd);
    if s.path().leaves_by_agent() {
        return to_kernel_between_hosts(s, g, fd, why, strict);
    }
    if why != Reason::Disconnected && is_reset_untold(s, g, fd, strict) {
        return false;
    }
    let patience_ns = pull_back_patience_ns(s, g, why, strict);
    let mut way = LeaveCall::new(s, g, fd, patience_ns, strict);
    match way.go() {
        None => true,
        Some(Action::Become) => {
            let _ = way.await_heard();
            if why != Reason::Disconnected && is_reset_untold(s, g, way.fd, strict) {
                return false;
            }
            become_plain(s, way.fd, why)
        }
        // (Its maker throws it away.)
        Some(Action::BreakOff) if why == Reason::Disconnected && throws_away(s) => false,
        Some(Action::BreakOff) if can_read() => leaves_later(s, why),
        Some(Action::BreakOff) => {
            crate::log::warn_of_peer!(
                "fd {fd}: unread or unsent bytes cannot follow the descriptor ({}): the connection is broken off",
                why.name()
            );
            break_off(s, way.fd);
            leaves_later(s, why)
        }
        _ => leaves_later(s, why),
    }
}

/// The peer was killed with bytes unread in the ring, and the application has not heard of that.
/// The kernel could not tell it: its socket is shut down, and its error was taken.
fn is_reset_untold(s: &'static Socket, g: u16, fd: c_int, strict: bool) -> bool {
    let untold = is_reset_now(s, g, fd) && owes_reset(s);
    if untold && strict {
        break_off(s, fd);
    }
    untold
}

/// A connection of this process's alone needs nothing of what does not come back to the kernel: who
/// dissolves it wants neither what is unread nor what has not arrived (tcp_disconnect). A forked
/// child might go on reading a ring that serves another one; and a connection that may be out of
/// the kernel does not end with the kernel's socket.
pub(super) fn throws_away(s: &Socket) -> bool {
    let is_own = !s.is_inherited() && s.forks.load(Relaxed) == process::forks();
    is_own && !s.path().hides_carrier()
}

/// An error that is seen, never a gap in the stream: by this process, by the peer, and by whoever
/// has the descriptor next. (First what is said of it: nobody makes another end of it any more.)
pub(super) fn break_off(s: &Socket, fd: c_int) {
    s.raise(flag::BROKEN_OFF | flag::RESET | flag::CARRIER_SPOKE);
    s.trace(Trace::BrokenOff, 0);
    carrier::dissolve(fd);
}

/// Calls that find it so complete the move ([`leave_if_due`]).
fn leaves_later(s: &Socket, why: Reason) -> bool {
    if !s.has(flag::CORRUPT) {
        s.set_reason(why);
    }
    s.raise(flag::LEAVING);
    false
}

/// The socket is plain.
fn become_plain(s: &'static Socket, fd: c_int, why: Reason) -> bool {
    // (The call that has read the last byte of the ring may not have come to that.)
    all_is_read(s, s.generation16(), fd);
    debug_log!("fd {}: back to the kernel for good ({})", s.fd.load(Relaxed), why.name());
    harmless::write_back(s, fd);
    if let Ok(rx) = hold_rx(s, s.generation16()) {
        note_what_comes(s, &rx, fd);
        if rx.channel.far.is_shared() && !rx.end.asked_back {
            socket::say_stays(rx.channel, rx.slot);
        }
    }
    if s.state.change(State::Attached, Event::Refused) {
        s.set_reason(why);
        s.count_no_more();
        s.trace(Trace::Plain, u64::from(why as u32));
        wait::prod(s);
        if !s.is_inherited() {
            sets().on_plain(s);
            if s.life.load(Relaxed) != 0 {
                // (Its peer's FIN is the application's to say from here on, by its own name.)
                close_spare(s);
            }
            detach(s);
        }
    }
    true
}

/// What the caller's call answers, in place of [`NO_MEMORY`]: the connection goes back to the
/// kernel, which has memory of its own, and the call with it. If it cannot go at once (its peer
/// does not answer), that is the error which the kernel knows of this call, too.
#[cold]
#[inline(never)]
pub(super) fn without_memory(fd: c_int, error: Ret) -> Ret {
    match fd_table::socket(fd) {
        _ if error != NO_MEMORY => error,
        Some((s, g)) if !to_kernel(s, g, fd, Reason::NoMemory, false) => error,
        _ => PASS,
    }
}

/// Completes what [`to_kernel`] could not, if the kernel has by now all that the application has
/// not received.
#[cold]
pub(super) fn leave_if_due(s: &'static Socket, g: u16, fd: c_int) {
    if is_reset_now(s, g, fd) && owes_reset(s) {
        return;
    }
    // From the beginning: where a handler wanted it, not even the receiver has been told to freeze.
    // (To be told twice changes nothing.)
    let mut way = LeaveCall::new(s, g, fd, 0, false);
    way.until = 0;
    if let Some(Action::Become) = way.go()
        && way.await_heard()
        && !is_reset_untold(s, g, way.fd, false)
    {
        let why = s
            .record()
            .and_then(|r| Reason::ALL.get(r.reason.load(Relaxed) as usize))
            .copied()
            .unwrap_or(Reason::SocketOption);
        become_plain(s, way.fd, why);
    }
}

/// The other name of a carrier goes as its last one of the application's does.
pub(super) fn close_spare(s: &Socket) {
    if let Some(c) = s.channel() {
        // (A hint to a peer that has closed: it looks at no carrier of those that it keeps.)
        let _ = step(s, c, Life::Open, Happens::End);
    }
    if s.is_inherited() {
        // (A forked child has closed its copy at once: the number may be another file's there.)
        return;
    }
    let own = s.spare.swap(0, Relaxed) - 1;
    if own >= 0 {
        fd_table::close_internal(own);
        socket::forget_orphan();
    }
}

/// Gives the slot back; the socket is plain.
pub(crate) fn detach(s: &'static Socket) {
    // SAFETY: as in `Socket::channel`; the swap gives it to one caller.
    if let Some(channel) = unsafe { s.channel.swap(core::ptr::null_mut(), AcqRel).as_ref() } {
        let slot = s.slot.load(Relaxed) as usize;
        if channel.far.is_shared() {
            channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST]
                .fetch_or(quiet::CLOSED, SeqCst);
            s.published.leave();
        }
        agent::of(s.path()).released(channel, slot);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
