//! A connection within the host goes back to its carrier in the thread that wants it.

use super::super::end_in_reset::reset_while_unread;
use super::super::ends::{NotHeld, RxHeld, TxHeld, corrupt, hold_rx, hold_tx};
use super::super::reset::would_end_in_order;
use super::super::waits::renew;
use super::halves::{
    Headway, Limits, carry_out, freeze, has_hung_up, look_at_rx, look_at_tx, low_epoch, pin,
};
use super::send_buffer::SendBuffer;
use super::{LONGEST_NS, NOTHING_COMES_NS, PULL_BACK_NS, PULL_BACK_STRICT_NS};
use crate::channel::announce;
use crate::socket::{Socket, flag};
use crate::wait::looks;
use crate::{carrier, control, host, sleep, stats, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Counter;
use netacc_proto::switchover::{
    Ack, Action, Arrival, Await, Leave, RxDue, RxView, TxDue, TxState, TxView,
};

/// How often it is looked whether the peer's process is stopped.
pub(super) const ASK_NS: u64 = 100_000_000;

/// How long is waited for more of what comes again when there is some: the kernel may have no room
/// for all.
const STALLED_NS: u64 = 10_000_000;

/// A connection within the host on its way, in the thread that wants it.
pub(in crate::io) struct LeaveCall {
    s: &'static Socket,
    g: u16,
    pub(super) fd: c_int,
    leave: Leave,
    /// Until when it waits for the peer.
    pub(super) until: u64,
    /// It is over then, whatever comes.
    ends: u64,
    /// For how long it waits for what comes again.
    pub(super) coming_ns: u64,
    strict: bool,
    /// When it is looked again whether the peer's process is stopped.
    asks_at: u64,
    pub(super) headway: Headway,
    arrival: Arrival,
    room: bool,
    /// The peer's announcement that was looked into last.
    heard: u32,
    /// It stays attached ([`super::pause`]).
    pub(super) pauses: bool,
    /// The carrier's send buffer, grown for what goes again: nobody may be reading that.
    grown: Option<SendBuffer>,
}

impl LeaveCall {
    pub(in crate::io) fn new(
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
    pub(in crate::io) fn go(&mut self) -> Option<Action> {
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
    pub(super) fn is_late(&mut self) -> bool {
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
    pub(super) fn step(&mut self, late: bool) -> Result<Action, NotHeld> {
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
    pub(super) fn await_heard(&mut self) -> bool {
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

    pub(super) fn wait(&mut self, sending: TxDue, receiving: RxDue) {
        let s = self.s;
        self.room = true;
        match receiving {
            RxDue::Await(Await::Answer) => {
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
            _ if sending == TxDue::Await(Await::Room) => {
                let mut p = libc::pollfd { fd: self.fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one valid pollfd.
                unsafe { sleep::ppoll(&mut p, 1, 5_000_000, core::ptr::null()) };
            }
            _ => sys::pause_ns(20_000),
        }
    }
}

impl Drop for LeaveCall {
    fn drop(&mut self) {
        if let Some(grown) = self.grown.take() {
            grown.put_back([self.fd, self.s.fd.load(Acquire)]);
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
