//! A receive that does not end at once: it looks, follows the sender to another path, or waits.

use super::arm_receiver::settle_rx;
use super::buffers::Buffers;
use super::candidate::candidate;
use super::end_in_reset::all_is_read;
use super::ends::{NotHeld, RxHeld, carrier_unread, corrupt, hold_rx, load_announce};
use super::leave::pause::resume_if_on;
use super::leave::{PULL_BACK_NS, leave_if_due};
use super::look_ahead::{is_at_mark, look_ahead};
use super::receive_once::{Look, ask_carrier, kernel_recv, look_carrier, look_fast};
use super::reset::{kept_error, peer_has_ended};
use super::take::{Target, take_at_once};
use super::under_way::UnderWay;
use super::waits::{Patience, block, interrupted, never_waits};
use super::{EAGAIN, ECONNRESET};
use crate::channel::{Side, announce};
use crate::outcome::{ANEW, PASS, Ret};
use crate::socket::{Named, Socket, State, flag};
use crate::trace::Event;
use crate::wait::{self, Woke};
use crate::{sleep, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::iovec;
use netacc_proto::switchover::{Plan, RxState};

/// What the call was asked for, and how far it has come.
pub(super) struct Receiving<'a> {
    pub(super) s: &'static Socket,
    pub(super) g: u16,
    pub(super) fd: c_int,
    /// The caller's buffers, `total` bytes together.
    pub(super) iov: &'a [iovec],
    pub(super) total: usize,
    pub(super) flags: c_int,
}

/// How far it has come.
struct SoFar {
    /// Bytes that are received, or peeked at.
    done: usize,
    /// What [`is_doubtful`] has seen.
    doubtful: Option<(u32, u64)>,
    patience: Patience,
    nonblocking: bool,
    waits_for_all: bool,
}

/// What the call does next.
enum Next {
    /// It ends: with what is received or, where that is nothing, with this.
    Done(Ret),
    /// It looks again, and keeps the receiving half.
    Again,
    /// It looks again, when others have had the receiving half.
    Anew,
    /// It does not wait for more, but what was readable comes again: it looks in some microseconds.
    Soon,
    /// It waits for news of its path.
    Wait { on_carrier: bool },
    /// More than what can be peeked at is wanted: it looks once a millisecond, until the stream
    /// ends.
    PeekLater,
}

impl Receiving<'_> {
    /// The whole life of the call from here on. `held`: the receiving half.
    ///
    /// # Safety
    /// The buffers are the caller's.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn run(mut self, held: RxHeld<'static>) -> Ret {
        let s = self.s;
        let patience = Patience::of(&s.receive_timeout_ns);
        let nonblocking = never_waits(s, Side::Receive, self.flags);
        let waits_for_all = self.flags & libc::MSG_WAITALL != 0 && !nonblocking;
        let mut now = SoFar { done: 0, doubtful: None, patience, nonblocking, waits_for_all };
        // Dropped after `held`.
        let mut under_way = None;
        let mut held = Some(held);
        let mut again = false;
        loop {
            // (Not in the middle of a call: what comes behind would be the kernel's, and might
            // wait. Nor behind a look that has changed the plan, which it would change back: what a
            // peer that is gone has left in the ring is taken first.)
            if now.done == 0 && !again && s.has(flag::LEAVING) {
                held = None;
                leave_if_due(s, self.g, self.fd);
            }
            let mut refused = None;
            if held.is_none() {
                match hold_rx(s, self.g) {
                    Ok(h) => held = Some(h),
                    Err(why) => refused = Some(why),
                }
            }
            let next = match (held.as_mut(), refused) {
                // SAFETY: the caller's buffers.
                (Some(h), _) => unsafe { self.next(&mut now, h) },
                (None, Some(NotHeld::Reentrant)) => Next::Done(EAGAIN),
                // SAFETY: as above.
                (None, _) => unsafe { self.elsewhere(&mut now) },
            };
            again = matches!(next, Next::Again);
            if !again {
                let read = held.as_mut().is_some_and(has_read);
                held = None;
                if read {
                    all_is_read(s, self.g, self.fd);
                }
            }
            let end = match next {
                Next::Done(r) => Some(r),
                Next::Again | Next::Anew => None,
                Next::Wait { on_carrier } => {
                    let end = self.wait(&mut now, &mut under_way, on_carrier);
                    // SAFETY: the caller's buffers.
                    end.or_else(|| unsafe { self.begin_anew(&now) })
                }
                Next::PeekLater => self.peek_later(&mut now),
                Next::Soon => {
                    sys::pause_ns(20_000);
                    None
                }
            };
            if let Some(r) = end {
                return if now.done > 0 { now.done as Ret } else { r };
            }
        }
    }

    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// One step, with the receiving half.
    unsafe fn next(&self, now: &mut SoFar, h: &mut RxHeld<'static>) -> Next {
        let (s, fd) = (self.s, self.fd);
        if s.has(flag::CORRUPT) {
            return Next::Done(ECONNRESET);
        }
        if h.end.paused | h.end.unsettled {
            may_arm(s, h);
        }
        let plan = h.end.switch.plan();
        let on_carrier = !matches!(plan, Plan::Fast { .. });
        // SAFETY: the caller's buffers.
        match unsafe { self.look(now, h, plan) } {
            Look::Again => return Next::Again,
            Look::Corrupt => return Next::Done(corrupt(s, fd)),
            Look::Failed(r) => return Next::Done(r),
            Look::Kernel(r) => {
                trace_end(s, r);
                if now.done > 0 && r < 0 {
                    // It belongs to the next call.
                    h.end.pending_error = r as i32;
                    s.lower(flag::TOLD);
                }
                return Next::Done(r);
            }
            Look::Got(n) if self.peeks() => {
                let to = Target { fd, iov: self.iov, done: 0, flags: self.flags };
                // SAFETY: the caller's buffers.
                match unsafe { look_ahead(h, &to, n, self.total) } {
                    Ok(n) => now.done = n,
                    Err(_) => return Next::Done(corrupt(s, fd)),
                }
                return self.got_some(now, h, on_carrier);
            }
            Look::Got(n) => {
                now.done += n;
                return self.got_some(now, h, on_carrier);
            }
            // Nothing new is waited for; what was there before, and comes again by way of the
            // carrier, is.
            Look::Empty if s.has(flag::SHUT_RD) && h.has_what_was_there() => return Next::Done(0),
            Look::Empty if s.kept_error.load(Relaxed) != 0 && now.done == 0 => {
                if let Some(r) = kept_error(s, fd) {
                    return Next::Done(r);
                }
            }
            Look::Empty => {}
        }
        // (One that stands on the ring and has followed has nothing in store but bytes: a look
        // finds them, or an error.)
        if h.end.switch.state() != RxState::Fast {
            if is_doubtful(s, h, &mut now.doubtful) {
                return Next::Again;
            }
            if now.done == 0 && now.nonblocking && comes_again(h) {
                return Next::Soon;
            }
        }
        if now.nonblocking || now.done > 0 && !now.waits_for_all {
            return Next::Done(EAGAIN);
        }
        Next::Wait { on_carrier }
    }

    /// Looks at the path that the direction is on.
    unsafe fn look(&self, now: &SoFar, h: &mut RxHeld<'static>, plan: Plan) -> Look {
        let (s, fd) = (self.s, self.fd);
        let done = if self.peeks() { 0 } else { now.done };
        let to = Target { fd, iov: self.iov, done, flags: self.flags };
        match plan {
            // SAFETY: the caller's buffers.
            Plan::Fast { limit } => unsafe { look_fast(s, h, &to, limit, now.nonblocking) },
            // SAFETY: as above.
            Plan::Carrier { limit, peek_first } => unsafe {
                look_carrier(s, h, &to, limit, peek_first)
            },
            Plan::Wait => match h.end.switch.on_announce(load_announce(h.words)) {
                // No answer will come from a peer that is gone.
                Ok(false) if peer_has_ended(s, fd) => ask_carrier(s, h, fd),
                // Nothing is there before the answer.
                Ok(false)
                    if h.channel.far.is_shared() && carrier_unread(fd).is_some_and(|n| n > 0) =>
                {
                    match h.end.switch.on_carrier_readable(load_announce(h.words)) {
                        Ok(changed) => h.follow(s, changed),
                        Err(_) => Look::Corrupt,
                    }
                }
                Ok(false) => Look::Empty,
                Ok(true) => h.follow(s, true),
                Err(_) => Look::Corrupt,
            },
        }
    }

    /// Bytes have come, by the path that the look was at.
    fn got_some(&self, now: &SoFar, h: &mut RxHeld<'static>, on_carrier: bool) -> Next {
        if now.done >= self.total {
            return Next::Done(0);
        }
        if now.waits_for_all {
            return if self.peeks() { Next::PeekLater } else { Next::Again };
        }
        if self.peeks() {
            return Next::Done(0);
        }
        if !on_carrier {
            match h.end.switch.on_announce(load_announce(h.words)) {
                Ok(true) => h.settled(self.s),
                Ok(false) => {}
                Err(_) => return Next::Done(corrupt(self.s, self.fd)),
            }
            // As TCP does.
            if !matches!(h.end.switch.plan(), Plan::Fast { .. }) && is_at_mark(self.fd) {
                return Next::Done(0);
            }
        }
        // It may not stop where the path changes either.
        if on_carrier == matches!(h.end.switch.plan(), Plan::Fast { .. }) {
            Next::Again
        } else {
            Next::Done(0)
        }
    }

    /// The connection is none of the rings' any more: the kernel has the rest. (Only MSG_WAITALL
    /// gets here with bytes.)
    #[cold]
    #[inline(never)]
    unsafe fn elsewhere(&self, now: &mut SoFar) -> Next {
        let (s, fd, done) = (self.s, self.fd, now.done);
        if done == 0 || self.peeks() {
            // (What was looked at is there once more.)
            now.done = 0;
            return Next::Done(ANEW);
        }
        if s.generation16() != self.g {
            // Closed by another thread meanwhile: the number may be another connection's.
            return Next::Done(0);
        }
        let deadline = now.patience.deadline();
        let receive = |_| {
            // With bytes in hand an error is the next call's: the kernel is not to tell it now.
            match await_bytes(fd, deadline) {
                // SAFETY: the caller's buffers.
                0 => unsafe { kernel_recv(fd, self.iov, done, usize::MAX, self.flags) },
                r => r,
            }
        };
        let r = if s.may_be_candidate() {
            // As in `Sending`.
            match candidate(Named { s, g: self.g, fd }, Side::Receive, self.flags, receive) {
                Some(r) if r != PASS => r,
                _ => return Next::Anew,
            }
        } else if s.is(State::Attached) && !s.is_inherited() {
            return Next::Anew;
        } else {
            receive(0)
        };
        now.done += r.max(0) as usize;
        Next::Done(0)
    }

    /// Behind a wait, as a new call begins: mostly all that was waited for is in the ring, and the
    /// way to it is a part of each round trip. `None`: the call goes on.
    ///
    /// # Safety
    /// The buffers are the caller's.
    unsafe fn begin_anew(&self, now: &SoFar) -> Option<Ret> {
        let &Receiving { s, g, fd, iov, total, flags } = self;
        if now.done > 0 {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { take_at_once(Named { s, g, fd }, Buffers { list: iov, total }, flags) }
    }

    /// `Some`: the call ends with that.
    #[cold]
    #[inline(never)]
    fn wait(
        &mut self,
        now: &mut SoFar,
        under_way: &mut Option<UnderWay>,
        on_carrier: bool,
    ) -> Option<Ret> {
        let patience = &mut now.patience;
        // (Words that change all the time are news each time.)
        if patience.until != 0 && sys::now_ns() >= patience.until {
            return Some(EAGAIN);
        }
        let deadline = patience.deadline();
        if self.s.has(flag::SHUT_RD) {
            // Of a socket that is shut down poll says at all times that there is something.
            sys::pause_ns(1_000_000);
        }
        under_way.get_or_insert_with(|| UnderWay::new(self.s, self.s.generation16()));
        match block(self.s, &mut self.fd, Side::Receive, on_carrier, deadline) {
            Woke::News => None,
            Woke::Timeout => Some(EAGAIN),
            Woke::Signal => interrupted(patience.timeout_ns),
        }
    }

    /// `Some`: the call ends with what there is.
    #[cold]
    #[inline(never)]
    fn peek_later(&self, now: &mut SoFar) -> Option<Ret> {
        let deadline = now.patience.deadline();
        let mut p = libc::pollfd { fd: self.fd, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one valid pollfd.
        let r = unsafe { sleep::ppoll(&mut p, 1, 1_000_000, core::ptr::null()) };
        (r != 0 || (deadline != 0 && sys::now_ns() >= deadline)).then_some(0)
    }
}

/// Waits until the kernel has bytes, or the end of the stream: 0. Otherwise what the call ends with
/// that has bytes from elsewhere.
pub(super) fn await_bytes(fd: c_int, deadline: u64) -> Ret {
    let limit = if deadline == 0 { -1 } else { deadline.saturating_sub(sys::now_ns()) as i64 };
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    match unsafe { sleep::ppoll(&mut p, 1, limit, core::ptr::null()) } {
        0 => EAGAIN,
        1 if p.revents & libc::POLLERR != 0 && carrier_unread(fd).unwrap_or(0) == 0 => EAGAIN,
        r => r.min(0),
    }
}

/// Its peer may not promote yet: what kept it from that may be over.
#[cold]
#[inline(never)]
fn may_arm(s: &Socket, h: &mut RxHeld<'_>) {
    if h.end.paused {
        resume_if_on(s, h);
    }
    settle_rx(s, h);
}

/// Bytes that were readable are on their way from the ring to the carrier, because another thread
/// has had the receiver freeze: the caller may have been told of them before that. The peer's
/// library answers within some microseconds, and is waited for as long as by who freezes.
#[cold]
#[inline(never)]
fn comes_again(h: &mut RxHeld<'_>) -> bool {
    let some = match h.end.switch.state() {
        RxState::Frozen | RxState::FrozenToFast => h.unread().is_ok_and(|n| n > 0),
        RxState::Replaying => h.end.switch.outstanding() > 0,
        _ => false,
    };
    some && h.channel.far.is_shared()
        && sys::now_ns().saturating_sub(h.end.frozen_at) < PULL_BACK_NS
}

/// The program is told of the end of the stream, or of an error.
#[cold]
fn trace_end(s: &Socket, r: Ret) {
    if r == 0 {
        s.trace_once(Event::Eof, 0);
    } else {
        s.trace_once(Event::Error, r.unsigned_abs() as u64);
    }
}

/// Nothing is unread any more of what the peer has left in the ring, for good.
fn has_read(h: &mut RxHeld<'static>) -> bool {
    h.end.resets && !h.unread().is_ok_and(|n| n > 0)
}

/// A look under the lock has found nothing, while the receiver is about to change paths, and a look
/// without it would say that there is something (`before`: it said so before this look already, of
/// these words). True: look again, which is due once.
///
/// With an honest peer the news has come in between, and is found then. Where it is not, the words
/// contradict each other: nobody is blamed, but what was looked into is no news until something
/// changes, so that a program that waits sleeps.
#[cold]
#[inline(never)]
fn is_doubtful(s: &Socket, h: &RxHeld<'_>, before: &mut Option<(u32, u64)>) -> bool {
    if !h.channel.far.is_shared() || !wait::receive_news(s, h.channel, h.slot) {
        return false;
    }
    let now =
        (h.words.producer_user[announce::EPOCH].load(Acquire) as u32, h.words.tail.load(Acquire));
    match before.replace(now) {
        Some(then) => {
            if then == now {
                s.published.doubt(now);
            }
            false
        }
        None => true,
    }
}
