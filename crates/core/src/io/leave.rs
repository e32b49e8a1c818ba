//! The way back to the carrier (`docs/design/leave.md`), and who wants it.

use super::buffers::NO_MEMORY;
use super::end_in_reset::{all_is_read, reset_while_unread};
use super::ends::{NotHeld, RxHeld, TxHeld, corrupt, hold_rx, hold_tx};
use super::reset::{is_reset_now, owes_reset, would_end_in_order};
use super::waits::renew;
use crate::channel::{announce, quiet};
use crate::life_word::step;
use crate::log::debug_log;
use crate::outcome::{PASS, Ret};
use crate::path::PathId;
use crate::sets::sets;
use crate::socket::{Event, Socket, State, flag, harmless};
use crate::trace::Event as Trace;
use crate::wait::looks;
use crate::{
    agent, candidates, carrier, control, fd_table, host, process, sleep, socket, stats, sys, wait,
};
use between_hosts::to_kernel_between_hosts;
pub(super) use between_hosts::to_kernel_to_send;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use halves::{
    Headway, Limits, carry_out, freeze, has_hung_up, look_at_rx, look_at_tx, low_epoch, pin,
};
use netacc_control::stats::{Counter, Reason};
use netacc_proto::lives::{Event as Happens, State as Life};
use netacc_proto::switchover::{
    Ack, Action, Arrival, Await, Leave, Receiving, RxView, Sending, TxState, TxView,
};
use send_buffer::SendBuffer;

pub(crate) mod between_hosts;
mod halves;
pub(crate) mod pause;
mod send_buffer;
pub(crate) mod serve;
pub(crate) mod step;

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

/// How often it is looked whether the peer's process is stopped.
const ASK_NS: u64 = 100_000_000;

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
/// child might go on reading a ring that serves another one.
pub(super) fn throws_away(s: &Socket) -> bool {
    let is_own = !s.is_inherited() && s.forks.load(Relaxed) == process::forks();
    is_own && s.path() != PathId::Utcp
}

/// An error that is seen, never a gap in the stream: by this process, by the peer, and by whoever
/// has the descriptor next. (First what is said of it: nobody makes another end of it any more.)
pub(super) fn break_off(s: &Socket, fd: c_int) {
    s.raise(flag::BROKEN_OFF | flag::RESET | flag::CARRIER_SPOKE);
    s.trace(Trace::BrokenOff, 0);
    carrier::dissolve(fd);
}

/// A connection within the host on its way, in the thread that wants it.
pub(super) struct LeaveCall {
    s: &'static Socket,
    g: u16,
    fd: c_int,
    leave: Leave,
    /// Until when it waits for the peer, and for how long for what comes again.
    until: u64,
    /// It is over then, whatever comes.
    ends: u64,
    coming_ns: u64,
    strict: bool,
    /// When it is looked again whether the peer's process is stopped.
    asks_at: u64,
    headway: Headway,
    arrival: Arrival,
    room: bool,
    /// The peer's announcement that was looked into last.
    heard: u32,
    /// It stays attached ([`pause`]).
    pauses: bool,
    /// Nobody may be reading what goes again.
    grown: Option<SendBuffer>,
}

impl LeaveCall {
    pub(super) fn new(
        s: &'static Socket,
        g: u16,
        fd: c_int,
        patience_ns: u64,
        strict: bool,
    ) -> LeaveCall {
        let coming_ns = match () {
            // (The calls of a child ask again and again: the first has waited.)
            _ if s.has(flag::LEAVING) => 0,
            _ if strict => PULL_BACK_NS,
            _ => patience_ns,
        };
        LeaveCall {
            s,
            g,
            fd,
            leave: Leave::new(strict),
            until: sys::now_ns().saturating_add(patience_ns),
            ends: sys::now_ns().saturating_add(LONGEST_NS),
            coming_ns,
            strict,
            asks_at: 0,
            headway: Headway::default(),
            arrival: Arrival::default(),
            room: true,
            heard: 0,
            pauses: false,
            grown: None,
        }
    }

    /// Takes it as far as it gets. `None`: it is none of the rings' any more.
    pub(super) fn go(&mut self) -> Option<Action> {
        loop {
            renew(self.s, &mut self.fd);
            let late = self.is_late();
            match self.step(late) {
                Ok(Action::Wait(sending, receiving)) => self.wait(sending, receiving),
                Ok(Action::Freeze | Action::Sender(_)) => {}
                Ok(end) => return Some(end),
                Err(NotHeld::Changed) => return None,
                // A handler that has interrupted this very thread in a call on the same half
                // (`docs/design/signals.md`): nothing can be waited for.
                Err(NotHeld::Reentrant) => return Some(self.leave.give_up(true)),
            }
        }
    }

    /// Its time is up. Who would break the connection off waits longer for a peer that is not
    /// stopped: nothing is lost yet.
    fn is_late(&mut self) -> bool {
        let now = sys::now_ns();
        let over_ns = now.saturating_sub(self.until);
        let pid = self.s.channel().map_or(0, |c| c.peer_pid);
        let waits = self.strict && over_ns < NOTHING_COMES_NS - PULL_BACK_STRICT_NS;
        now >= self.ends || over_ns > 0 && (!waits || self.is_stopped(now, pid))
    }

    /// It is seldom looked: that costs three calls.
    fn is_stopped(&mut self, now: u64, pid: u32) -> bool {
        if now < self.asks_at || !looks::may_make_more_calls() {
            return false;
        }
        self.asks_at = now.saturating_add(ASK_NS);
        host::is_stopped(pid)
    }

    /// It comes on: the time begins anew.
    fn comes_on(&mut self, tx: &TxView, rx: &RxView, again_from: u64) {
        if self.headway.is_made(tx, rx, again_from) && self.strict && self.until != 0 {
            self.until = self.until.max(sys::now_ns().saturating_add(PULL_BACK_STRICT_NS));
        }
    }

    /// Looks, and does what is due.
    fn step(&mut self, late: bool) -> Result<Action, NotHeld> {
        let (s, fd) = (self.s, self.fd);
        let limits = Limits { patience_ns: self.coming_ns, stall_ns: STALLED_NS, hears_end: true };
        let mut rx = hold_rx(s, self.g)?;
        self.heard = rx.words.producer_user[announce::EPOCH].load(Relaxed) as u32;
        if self.pauses {
            rx.end.paused = true;
        } else {
            // (Neither a call of before the attachment that ends later arms it, nor acceleration
            // that is turned on again.)
            (rx.end.unsettled, rx.end.never) = (false, true);
        }
        let looked = look_at_rx(s, &mut rx, fd, &mut self.arrival, &limits);
        pull_back(&mut rx);
        let resets = rx.end.resets;
        drop(rx);
        let Ok(rx) = looked else {
            let _ = corrupt(s, fd);
            return Ok(Action::Later);
        };
        if rx.unread && !resets && !self.pauses {
            // Who has left it asks the kernel alone.
            reset_while_unread(s, self.g, fd);
        }
        let mut tx = hold_tx(s, self.g)?;
        if self.pauses {
            tx.end.paused = true;
        } else {
            pin(&mut tx);
            tell_left(s, &mut tx);
        }
        // (What the peer wants back the thread "netacc" gives it: nobody asks here.)
        let view = look_at_tx(&tx, None);
        let resend = tx.end.switch.resend();
        self.comes_on(&view, &rx, resend.start);
        if self.strict && !self.room && self.grown.is_none() {
            self.grown = SendBuffer::grown(fd, resend.end.saturating_sub(resend.start));
        }
        let view = TxView { room: self.room, ..view };
        let action = self.leave.step(view, rx, late);
        match action {
            Action::Freeze => {
                drop(tx);
                freeze(&mut hold_rx(s, self.g)?);
            }
            Action::Sender(due) => {
                let Ok(room) = carry_out(s, &mut tx, fd, due, Ack::default()) else {
                    return Ok(Action::Later);
                };
                self.room = room;
                drop(tx);
                // A thread that waits for room in the ring goes on in the kernel.
                wait::prod(s);
            }
            _ => {}
        }
        Ok(action)
    }

    /// Both directions are the carrier's, and bytes of ours may be unread in the ring: waits until
    /// the peer's library has heard that, or they are read. False: it has not answered.
    fn await_heard(&mut self) -> bool {
        let (s, g) = (self.s, self.g);
        let until = self.until.min(sys::now_ns().saturating_add(PULL_BACK_NS));
        while would_end_in_order(s) {
            {
                let Ok(mut h) = hold_tx(s, g) else { break };
                tell_left(s, &mut h);
                let nobody_hears = h.channel.control.load(Acquire) < 0;
                if nobody_hears && !h.end.told_left {
                    break;
                }
            }
            renew(s, &mut self.fd);
            if carrier::has_ended(self.fd) {
                break;
            }
            if sys::now_ns() >= until {
                return false;
            }
            sys::pause_ns(20_000);
        }
        true
    }

    fn wait(&mut self, sending: Sending, receiving: Receiving) {
        let s = self.s;
        self.room = true;
        match receiving {
            Receiving::Await(Await::Answer) => {
                let Some(channel) = s.channel() else { return };
                let slot = s.slot.load(Relaxed) as usize;
                // The peer answers by an announcement; its death is heard on the carrier, and its
                // last announcement came before its end.
                if has_hung_up(self.fd) {
                    self.until = 0;
                    return;
                }
                // (For another announcement than the one that was looked into, whether that was
                // what it should be or not.)
                let words = channel.words(slot, channel.side ^ 1);
                sys::futex_wait(low_epoch(words), self.heard, 1_000_000, false);
            }
            // (What waits for room needs more time than bytes that are on their way.)
            _ if sending == Sending::Await(Await::Room) => {
                let mut p = libc::pollfd { fd: self.fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one valid pollfd.
                unsafe { sleep::ppoll(&mut p, 1, 5_000_000, core::ptr::null()) };
            }
            _ => sys::pause_ns(20_000),
        }
    }
}

/// What the peer leaves unread in a ring this end does not see when it has left that: the peer's
/// kernel has to tell. (That may fail for want of room in the control connection: again at the next
/// look.)
fn tell_left(s: &Socket, h: &mut TxHeld<'_>) {
    let on_carrier = matches!(h.end.switch.state(), TxState::Carrier | TxState::Shut);
    if on_carrier && !h.end.told_left && would_end_in_order(s) {
        h.end.told_left = control::send_left(h.channel, h.slot);
    }
}

/// A receiver that waits for the peer's answer has asked for it, however late it is: nobody else
/// ever does. (That may fail for want of room in the control connection: again at the next look.)
fn pull_back(h: &mut RxHeld<'_>) {
    if h.end.switch.wants_pull_back() && !h.end.asked_back {
        h.end.asked_back = control::send_pull_back(h.channel, h.slot);
        if h.end.asked_back {
            stats::count(Counter::PulledBack);
        }
    }
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

/// How long is waited for more of what comes again when there is some: the kernel may have no room
/// for all.
const STALLED_NS: u64 = 10_000_000;

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
    let mut way = LeaveCall { until: 0, ..LeaveCall::new(s, g, fd, 0, false) };
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
