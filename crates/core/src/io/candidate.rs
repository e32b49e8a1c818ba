//! Before the agreement: calls go through the kernel and are counted. Then the connection attaches.

use super::arm_receiver::settle_rx;
use super::attach::attach;
use super::ends::{TxHeld, held, hold_rx};
use super::reset::kept_error;
use super::say_end::{announce_end, say_fin};
use super::waits::interrupted;
use super::{EAGAIN, waits_seen};
use crate::adoption::share::{Shared, regain};
use crate::agent::{Noted, Used};
use crate::candidates::Settled;
use crate::channel::{self, Side};
use crate::lock::{EndGuard, bump, lock_end, try_lock_end};
use crate::outcome::{PASS, RESTART, Ret};
use crate::sets::sets;
use crate::socket::{self, Named, OfferState, RxEnd, Socket, State, TxEnd, flag};
use crate::wait::looks::{self, Habit, Looked};
use crate::{
    adoption, agent, candidates, config, fast_connect, fd_table, inject, process, signals, sleep,
    sys, trace,
};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicU32, AtomicU64};
use netacc_control::stats::{Path, Reason};

/// Flags under which a candidate's bytes cannot be counted as part of the plain stream.
pub(super) const ODD_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Carries out a kernel call on a candidate, and counts what it moved. `None`: it is no candidate
/// any more: start again.
#[inline(never)]
pub(crate) fn candidate(
    on: Named,
    side: Side,
    flags: c_int,
    mut call: impl FnMut(c_int) -> isize,
) -> Option<Ret> {
    let Named { s, g, fd } = on;
    if s.generation16() != g {
        return Some(PASS);
    }
    if s.is_inherited() {
        // Its maker may be attaching it at this moment.
        return loop {
            match s.state.now() {
                _ if s.generation16() != g => break Some(PASS),
                State::Candidate | State::Left if adoption::adopt(s, g, fd) => break None,
                State::Changing if socket::await_change(s) => {}
                State::Changing => break Some(EAGAIN),
                State::Attached => break None,
                State::Candidate | State::Left => {}
                State::Closing => socket::await_close(s),
                // Another thread has adopted it since this call looked: the heir counts the call.
                State::Adopted if !fd_table::is_named(fd, s, g) => break None,
                _ => break Some(PASS),
            }
        };
    }
    if flags & ODD_FLAGS != 0 {
        let odd =
            if flags & libc::MSG_OOB != 0 { Reason::UrgentData } else { Reason::SocketOption };
        return match candidates::settle(s, g, odd) {
            Settled::Attached => None,
            Settled::Plain => Some(PASS),
            // (No byte goes past the count.)
            Settled::Changing => Some(EAGAIN),
        };
    }
    if side == Side::Receive
        && s.kept_error.load(Relaxed) != 0
        && let Some(r) = kept_error(s, fd)
    {
        return Some(r);
    }
    loop {
        begin_call(s, side);
        match s.state.now() {
            State::Candidate => break,
            _ => drop(end_call(s, g, side, 0)),
        }
        if !s.is(State::Changing) {
            socket::recycle(s);
            return None;
        }
        if !socket::await_change(s) {
            return Some(EAGAIN);
        }
    }
    let r = match side {
        _ if config::follows_calls() => followed(Named { s, g, fd }, side, flags, &mut call),
        Side::Receive => receive(s, fd, flags, &mut call),
        Side::Send => call(0),
    };
    let moved = if r > 0 && flags & libc::MSG_PEEK == 0 { r as u64 } else { 0 };
    if !end_call(s, g, side, moved) {
        // Closed by another thread meanwhile.
        socket::recycle(s);
        return Some(r);
    }
    if r > 0 {
        if s.is(State::Candidate) {
            if !leaves_nothing_to_do(s, side) {
                after_candidate_call(s, g, fd, side, flags);
            }
        } else if side == Side::Send {
            // Another thread's call has attached it meanwhile.
            channel::sent_by_kernel();
        }
        return Some(r);
    }
    if r == sleep::NOT_BEGUN {
        return Some(RESTART);
    }
    if r == -(libc::EINTR as Ret)
        && signals::pending().is_none()
        && process::threads_are_cancelled()
    {
        // Perhaps by libc's signal for that, from which the kernel does not restart.
        return Some(interrupted(0).unwrap_or(r));
    }
    if r == EAGAIN && side == Side::Receive {
        waits_seen::on_nothing(s);
    }
    Some(r)
}

/// The kernel call, where each is recorded (`trace/calls.rs`).
#[cold]
#[inline(never)]
fn followed(on: Named, side: Side, flags: c_int, call: &mut impl FnMut(c_int) -> isize) -> isize {
    let Named { s, g, fd } = on;
    let offset = in_kernel(s, side).1.load(Relaxed);
    let (begun, r) = match side {
        Side::Receive => {
            s.receive_begins();
            (None, receive(s, fd, flags, call))
        }
        Side::Send => (s.send_begins(), call(0)),
    };
    if s.generation16() == g {
        match side {
            Side::Receive if r > 0 && flags & libc::MSG_PEEK == 0 => {
                s.trace_received(offset, r as u64);
            }
            Side::Receive => {}
            Side::Send => s.trace_sent(begun, offset, r),
        }
    }
    r
}

/// Flags of receives that do not wait, or not for what a look would find.
const UNLIKE: c_int = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_ERRQUEUE;

/// A receive's kernel call (`call`, with flags besides its own). Where its thread has shown that
/// this pays, it looks before it sleeps.
#[inline(always)]
fn receive(s: &Socket, fd: c_int, flags: c_int, call: &mut impl FnMut(c_int) -> isize) -> isize {
    if flags & UNLIKE != 0 || s.has(flag::NONBLOCK) {
        return call(0);
    }
    let habit = looks::habit(fd);
    if habit.looks(-1)
        && let Some(r) = look_first(s, fd, habit, call)
    {
        return r;
    }
    let sleep = habit.sleep();
    let r = call(0);
    sleep.over_of(r > 0, s.ruled.limit());
    r
}

/// `None`: it is to sleep.
#[cold]
#[inline(never)]
fn look_first(
    s: &Socket,
    fd: c_int,
    habit: &'static Habit,
    call: &mut impl FnMut(c_int) -> isize,
) -> Option<isize> {
    let mut r = EAGAIN;
    let looked = habit.look(s.ruled.limit(), &[fd], || {
        r = call(libc::MSG_DONTWAIT);
        r != EAGAIN
    });
    match looked {
        Looked::Signal => interrupted(s.receive_timeout_ns.load(Relaxed)),
        Looked::Nothing => None,
        _ => Some(r),
    }
}

/// `shutdown(2)` of a candidate, which the kernel carries out: a call of the sending direction, as
/// far as an attachment is concerned. `None`: it is none any more.
pub(crate) fn shutdown_candidate(s: &'static Socket, g: u16, fd: c_int, how: c_int) -> Option<Ret> {
    begin_call(s, Side::Send);
    let r = s.is(State::Candidate).then(|| sys::shutdown(fd, how));
    if how != libc::SHUT_RD && r.is_some_and(|r| r >= 0) {
        channel::sent_by_kernel();
        s.raise(flag::SHUT_WR);
        // Attached in the middle of this.
        say_fin(s, g, how);
    }
    let _ = end_call(s, g, Side::Send, 0);
    socket::recycle(s);
    r
}

/// The calls of a direction that are in the kernel, and what those that are over have moved.
fn in_kernel(s: &Socket, side: Side) -> (&AtomicU32, &AtomicU64) {
    match side {
        Side::Receive => (&s.rx_inflight, &s.rx_bytes),
        Side::Send => (&s.tx_inflight, &s.tx_bytes),
    }
}

/// A kernel call on a candidate begins, if it still is one behind this.
fn begin_call(s: &Socket, side: Side) {
    in_kernel(s, side).0.fetch_add(1, SeqCst);
}

/// A kernel call that began on a candidate is over, and has moved so much. False: it is another
/// connection by now. (Who has ended this one has said so before he looked for calls on it.)
#[inline(always)]
fn end_call(s: &'static Socket, g: u16, side: Side, moved: u64) -> bool {
    let (calls, bytes) = in_kernel(s, side);
    // Under the lock, as an attachment counts.
    let Some(lock) = try_lock_end(if side == Side::Send { &s.tx_lock } else { &s.rx_lock }) else {
        return end_call_slow(s, g, side, moved);
    };
    calls.fetch_sub(1, SeqCst);
    if s.generation16() != g {
        return false;
    }
    count(s, side, moved, true);
    if s.is(State::Attached) {
        settle_after(s, g, side, moved, (lock, false));
    } else {
        add(bytes, moved, true);
    }
    true
}

/// As [`end_call`]: another thread holds the lock. (Or this one itself, below a signal handler, and
/// nobody attaches meanwhile.)
#[cold]
#[inline(never)]
fn end_call_slow(s: &'static Socket, g: u16, side: Side, moved: u64) -> bool {
    let (calls, bytes) = in_kernel(s, side);
    let locked = lock_end(if side == Side::Send { &s.tx_lock } else { &s.rx_lock });
    calls.fetch_sub(1, SeqCst);
    if s.generation16() != g {
        return false;
    }
    count(s, side, moved, locked.is_some());
    if !s.is(State::Attached) {
        add(bytes, moved, locked.is_some());
    } else if let Some(lock) = locked {
        settle_after(s, g, side, moved, lock);
    }
    true
}

/// The connection was attached while the call was in the kernel: it counts there, and the last such
/// call settles the end.
#[cold]
#[inline(never)]
fn settle_after(
    s: &'static Socket,
    g: u16,
    side: Side,
    moved: u64,
    lock: (EndGuard<'static>, bool),
) {
    match side {
        Side::Send => {
            if let Ok(mut h) = held::<TxEnd>(s, g, lock) {
                let _ = h.end.switch.on_accepted(moved);
                settle_tx(s, &mut h);
            }
        }
        Side::Receive => {
            if let Ok(mut h) = held::<RxEnd>(s, g, lock) {
                let _ = h.end.switch.on_delivered(moved);
                s.rx_offset.store(h.end.switch.offset(), Relaxed);
                settle_rx(s, &mut h);
            }
        }
    }
}

/// Counts for the operator what went over the carrier.
fn count(s: &Socket, side: Side, moved: u64, alone: bool) {
    if let Some(r) = s.record().filter(|_| moved != 0) {
        let (all, messages) = match side {
            Side::Send => (&r.tx_bytes, &r.tx_messages),
            Side::Receive => (&r.rx_bytes, &r.rx_messages),
        };
        if let Some(bytes) = all.get(Path::Tcp as usize) {
            if alone {
                bump(bytes, moved);
                bump(messages, 1);
            } else {
                bytes.fetch_add(moved, Relaxed);
                messages.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Under the end's lock nobody else writes, and a connection whose peer has no library comes here
/// for life: no locked instruction then. (A handler in between that ends a call of its own could
/// make the count too small: then the connection stays on TCP.)
fn add(to: &AtomicU64, moved: u64, alone: bool) {
    match (moved, alone) {
        (0, _) => {}
        (_, true) => bump(to, moved),
        (_, false) => drop(to.fetch_add(moved, Relaxed)),
    }
}

/// The sending direction may be promoted as soon as no call of before the attachment is in the
/// kernel: if what was counted is what the kernel has.
fn settle_tx(s: &Socket, h: &mut TxHeld<'_>) {
    if !h.end.unsettled || s.tx_inflight.load(SeqCst) != 0 {
        return;
    }
    h.end.unsettled = false;
    if !socket::counts_agree(s, s.fd.load(Acquire), Some(h.end.switch.offset()), None) {
        h.end.never = true;
        s.set_reason(Reason::UncountedBytes);
    }
    if s.has(flag::SHUT_WR) {
        announce_end(s, h);
    }
}

/// A thread has ceased to wait, in poll or select, for a connection that was attached meanwhile.
pub(crate) fn on_poller_gone(s: &'static Socket, g: u16) {
    if let Ok(mut h) = hold_rx(s, g) {
        settle_rx(s, &mut h);
    }
}

/// Whether a call that has moved bytes is counted by this, and nothing else comes of it: its peer
/// has no library, as far as is known, and nobody looks again yet. So nearly all calls of such a
/// connection are.
#[inline(always)]
fn leaves_nothing_to_do(s: &Socket, side: Side) -> bool {
    const ODD: u32 = flag::UNSETTLED | flag::CONTESTED | flag::LATE | flag::STDIO;
    // A connector that has found nobody at the peer's port, or an acceptor of which the service
    // knows.
    const CONNECTOR: u32 = flag::CONNECTOR | flag::ASKED | flag::WAITS_SEEN;
    let flags = s.flags.load(SeqCst);
    let usual = flags & (ODD | CONNECTOR | flag::ACCEPTOR_KNOWN) == CONNECTOR
        || flags & (ODD | flag::CONNECTOR | flag::NOTED) == flag::NOTED;
    if !usual || !s.offered.is_none() {
        return false;
    }
    if side == Side::Receive && (s.in_vain.load(Relaxed) != 0 || s.looks.load(Relaxed) == 0) {
        return false;
    }
    let calls = s.calls.load(Relaxed).wrapping_add(1);
    if calls <= waits_seen::EARLY_CALLS || calls.is_multiple_of(waits_seen::CLOCK_CALLS) {
        return false;
    }
    s.calls.store(calls, Relaxed);
    true
}

/// Calls of a connection that others may want to use, too, or that stdio may use, before it is
/// taken for this process's own.
const LATE_CALLS: u32 = 64;

/// Whether an agreement may be sought by now for one that is on stdio's numbers, or late.
fn is_due(s: &'static Socket, flags: u32) -> bool {
    let calls = s.calls.fetch_add(1, Relaxed).wrapping_add(1);
    if calls < LATE_CALLS {
        return false;
    }
    if flags & flag::STDIO != 0 {
        candidates::make_plain(s, Reason::StdioStream);
        return false;
    }
    s.lower(flag::LATE);
    true
}

/// A call on a candidate has moved bytes. What comes of that, in this order, and each only when the
/// one before has let it pass: it is this process's alone (adoption); it is due; both ends have
/// agreed, or there is no path: attached, or on to the next; it is in use, and is looked up; it is
/// waited for where the library sees it; its agent hears that it is used.
#[cold]
#[inline(never)]
pub(super) fn after_candidate_call(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    side: Side,
    call_flags: c_int,
) {
    if side == Side::Receive {
        if fast_connect::is_on() {
            waits_seen::note_once(fd, call_flags);
        }
        if s.in_vain.load(Relaxed) != 0 {
            s.in_vain.store(0, Relaxed);
        }
    } else if s.path().is_shared() {
        channel::sent_by_kernel();
    }
    let flags = s.flags.load(SeqCst);
    if flags & flag::UNSETTLED != 0 && !adoption::go_alone(s, fd) {
        return;
    }
    if flags & flag::CONTESTED != 0 {
        let shared = if flags & flag::SHARED != 0 { regain(s, g, fd) } else { Shared::TooLong };
        if shared == Shared::TooLong {
            // Two processes use it.
            candidates::make_plain(s, adoption::why(s));
        }
        return;
    }
    if flags & (flag::LATE | flag::STDIO) != 0 && !is_due(s, flags) {
        return;
    }
    if !config::get().accelerate_by_default {
        // Until it is on again.
        return;
    }
    let offer = s.offered.now();
    if matches!(offer, OfferState::Never(_)) {
        let why = Reason::ALL.get(s.verdict.load(Relaxed) as usize).copied();
        return candidates::next_path(s, g, why.unwrap_or(Reason::PeerRefused));
    }
    if offer != OfferState::None {
        // A registration with ONESHOT may have fired: attached when it is armed again (epoll::ctl).
        if sets().may_attach(s) {
            attach(s, g, fd);
        }
        return;
    }
    // Not exact where several threads are in calls on it, and cheap: a connection whose peer has no
    // library comes here for life.
    let mut calls = s.calls.load(Relaxed).wrapping_add(1);
    if s.is_new() {
        s.calls.store(calls, Relaxed);
        if !candidates::is_in_use(s, side == Side::Send, calls) || !candidates::look_up(s, g, fd) {
            return;
        }
        // However many there were: from here on it is known.
        calls = candidates::NOTED_AFTER;
    }
    s.calls.store(calls, Relaxed);
    if calls >= candidates::NOTED_AFTER
        && !s.has(flag::NOTED)
        && !waits_seen::waits_seen(s, fd, call_flags, calls)
    {
        return;
    }
    if inject::looks_ns().is_some() {
        return;
    }
    let paths = s.paths();
    let noted = agent::of(paths.first()).used(s, &Used { generation: g, fd, side, calls });
    if noted == Noted::Now {
        s.trace(trace::Event::Noted, paths.first().traits().shown as u64);
    }
    match noted {
        Noted::No => {}
        // It is the connector that goes on to another path, and this end is found there.
        Noted::Now if !s.has(flag::CONNECTOR) => {
            paths.rest().iter().for_each(|path| agent::of(path).expect(s, g));
        }
        Noted::Now => {}
        Noted::Never(why) => candidates::next_path(s, g, why),
    }
    if let Some(ns) = inject::at_once_ns()
        && calls < candidates::NOTED_AFTER + CALLS_THAT_WAIT
    {
        attach_at_once(s, g, fd, ns);
    }
}

/// Of the tests: so many calls wait for the agreement.
const CALLS_THAT_WAIT: u32 = 4;

/// Of the tests: waits for the agreement, and comes to it.
#[cold]
#[inline(never)]
fn attach_at_once(s: &'static Socket, g: u16, fd: c_int, ns: u64) {
    let until = sys::now_ns().saturating_add(ns);
    let waits = || s.generation16() == g && s.is(State::Candidate) && s.offered.is_none();
    while waits() && sys::now_ns() < until {
        sys::pause_ns(50_000);
    }
    if s.generation16() == g && s.offered.is_made() && sets().may_attach(s) {
        attach(s, g, fd);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::path::tests::{A, C, candidate_within_the_host, close_both, talk};
    use std::time::Duration;

    /// Both ends have agreed, and no call comes for long.
    #[test]
    fn a_connection_that_falls_silent_says_that_both_ends_have_agreed() {
        let mut ends = candidate_within_the_host();
        let agreed = |s: &Socket| {
            (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                !s.offered.is_none()
            })
        };
        while !agreed(ends[C].socket) {
            assert!(ends[C].socket.is(State::Candidate));
            talk(&mut ends, 64);
        }
        let s = ends[C].socket;
        let why = s.record().and_then(|r| Reason::from_code(r.reason.load(Relaxed)));
        assert_eq!((why, s.is(State::Candidate)), (Some(Reason::Agreed), true));
        close_both(ends);
    }

    /// What the kernel takes while a connection comes to its ring was sent before what the process
    /// then sends into others: their peer is to look at the kernel first.
    #[test]
    fn what_is_sent_while_a_connection_is_attached_is_noted() {
        let mut ends = candidate_within_the_host();
        let (s, g, fd) = (ends[C].socket, ends[C].socket.generation16(), ends[C].fd);
        let agreed = || {
            (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                !s.offered.is_none()
            })
        };
        while !agreed() {
            assert!(s.is(State::Candidate));
            talk(&mut ends, 64);
        }
        let mut began = 0;
        let sent = candidate(Named { s, g, fd }, Side::Send, 0, |_| {
            // Another thread's call.
            std::thread::scope(|scope| _ = scope.spawn(|| attach(s, g, fd)));
            assert!(s.is(State::Attached));
            began = sys::ticks();
            // SAFETY: one byte.
            unsafe { sys::sendto(fd, b"x".as_ptr(), 1, 0) }
        });
        assert_eq!(sent, Some(1));
        assert!(channel::last_sent_by_kernel() > began);
        let mut byte = 0u8;
        // SAFETY: one byte.
        assert_eq!(unsafe { crate::io::recv(ends[A].fd, &mut byte, 1, 0) }, 1);
        assert_eq!(byte, b'x');
        close_both(ends);
    }
}
