//! A send that does not end at once: it promotes, goes through the kernel, or waits for room.

use super::candidate::candidate;
use super::ends::{NotHeld, TxHeld, corrupt, demote_tx, hold_tx, publish_held};
use super::held_back::hold_back;
use super::leave::between_hosts::{await_carrier, await_departure};
use super::leave::step::note_where_it_receives;
use super::park::answer_for_closed;
use super::promote::{may_use_carrier, peer_is_going, promote, switch_if_ordered};
use super::put::{fill, kernel_send, sent_fast};
use super::reset::{
    is_broken, is_reset, is_reset_by, lies_unread, peer_has_ended, send_broken, take_owed,
};
use super::ring_full;
use super::send_again::send_again;
use super::under_way::UnderWay;
use super::waits::{Patience, block, carrier_is_due, interrupted, never_waits};
use super::{ASK_CARRIER_TICKS, EAGAIN, ECONNRESET, EFAULT, SEND_FLAGS};
use crate::channel::Side;
use crate::life_word::has_closed;
use crate::outcome::{ANEW, PASS, Ret};
use crate::socket::{Named, Socket, State, flag};
use crate::trace::Event;
use crate::wait::Woke;
use crate::{carrier, channel, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::iovec;
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::TxState;
use netacc_ring::CopyError;

const EPIPE: Ret = -(libc::EPIPE as Ret);

/// What the call was asked for, and how far it has come.
pub(super) struct Sending<'a> {
    pub(super) s: &'static Socket,
    pub(super) g: u16,
    pub(super) fd: c_int,
    /// The caller's buffers, `total` bytes together.
    pub(super) iov: &'a [iovec],
    pub(super) total: usize,
    /// Bytes that are sent.
    pub(super) done: usize,
    pub(super) flags: c_int,
}

/// What the call does next.
enum Next {
    /// It ends: with what is sent or, where that is nothing, with this.
    Done(Ret),
    /// It looks again, and keeps the sending half.
    Again,
    /// It looks again, when others have had the sending half.
    Anew,
    /// It waits for room, in the ring or on the carrier.
    Room { on_carrier: bool },
    /// It waits until the connection has gone back to its carrier, which the peer hears of first.
    Departure,
    /// It takes the connection back to its carrier: its flags are for the kernel alone.
    TakeBack,
    /// The peer is gone without a word, and the kernel says how.
    Gone,
    /// The carrier is over, between hosts: EPIPE, unless an error is still to be told.
    Over,
}

impl Sending<'_> {
    /// The whole life of the call from here on. `held`: the sending half.
    ///
    /// # Safety
    /// The buffers are the caller's.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn run(mut self, held: TxHeld<'static>) -> Ret {
        let s = self.s;
        let nonblocking = never_waits(s, Side::Send, self.flags);
        let mut patience = Patience::of(&s.send_timeout_ns);
        // Dropped after `held`.
        let mut under_way = None;
        let mut held = Some(held);
        loop {
            let mut refused = None;
            if held.is_none() {
                match hold_tx(s, self.g) {
                    Ok(h) => held = Some(h),
                    Err(why) => refused = Some(why),
                }
            }
            let next = match (held.as_mut(), refused) {
                // SAFETY: the caller's buffers.
                (Some(h), _) => unsafe { self.next(h, nonblocking) },
                (None, Some(NotHeld::Reentrant)) => Next::Done(EAGAIN),
                // SAFETY: as above.
                (None, _) => unsafe { self.elsewhere(nonblocking) },
            };
            if !matches!(next, Next::Again) {
                held = None;
            }
            let end = match next {
                Next::Done(r) => Some(r),
                Next::Again | Next::Anew => None,
                Next::Room { on_carrier } => self.wait(&mut under_way, &mut patience, on_carrier),
                Next::Departure if nonblocking => {
                    wait::on_full(s);
                    Some(EAGAIN)
                }
                Next::Departure => self.await_departure(&mut patience),
                Next::TakeBack => {
                    let timeout = s.send_timeout_ns.load(Relaxed);
                    let on = Named { s, g: self.g, fd: self.fd };
                    let is_urgent = self.flags & libc::MSG_OOB != 0;
                    let why = if is_urgent { Reason::UrgentData } else { Reason::SocketOption };
                    await_carrier(on, why, timeout, nonblocking).err()
                }
                // What the kernel says is told once: the next call is told.
                Next::Gone if self.done > 0 => Some(0),
                // SAFETY: as above.
                Next::Gone if carrier::is_closed(self.fd) => Some(unsafe { self.gone() }),
                Next::Over if self.done > 0 => Some(0),
                Next::Over => Some(take_owed(s, self.g).unwrap_or_else(|| self.pipe())),
                // No byte may follow where some are missing, and no FIN: the close resets it.
                Next::Gone => {
                    note_where_it_receives(s);
                    s.raise(flag::BROKEN_OFF);
                    s.trace_once(Event::BrokenOff, 0);
                    None
                }
            };
            if let Some(r) = end {
                return if self.done > 0 { self.done as Ret } else { r };
            }
        }
    }

    /// One step, with the sending half.
    unsafe fn next(&mut self, h: &mut TxHeld<'static>, nonblocking: bool) -> Next {
        let s = self.s;
        if s.has(flag::CORRUPT) {
            return Next::Done(ECONNRESET);
        }
        // (On the ring `peer_is_going` looks.)
        if is_broken(s) || (h.end.switch.state() != TxState::Fast && is_reset(s, self.fd)) {
            return Next::Done(if self.done > 0 { 0 } else { send_broken(s, self.flags) });
        }
        if h.channel.peer_ends(h.slot) && !s.has(flag::SHUT_WR) && has_closed(s) {
            answer_for_closed(s, h, self.fd);
            self.done = self.total;
            return Next::Done(0);
        }
        switch_if_ordered(s, h);
        if self.flags & libc::MSG_OOB != 0 && !h.end.never {
            // The receiver's urgent byte stands outside of the bytes that it reads: offsets would
            // no longer agree.
            h.end.never = true;
            s.set_reason(Reason::UrgentData);
        }
        match h.end.switch.state() {
            // SAFETY: the caller's buffers.
            TxState::Fast => unsafe { self.next_on_ring(h, nonblocking) },
            // (The kernel is told of a shutdown when it has all that was sent before.)
            TxState::Carrier if s.has(flag::FIN_LATER) => self.broken_pipe(),
            // SAFETY: as above.
            TxState::Carrier => unsafe { self.next_on_carrier(h, nonblocking) },
            // SAFETY: as above.
            TxState::Shut => unsafe { self.next_behind_shutdown() },
            // Shut down, but bytes still go before the FIN: the kernel cannot say it yet.
            _ if s.has(flag::SHUT_WR) => self.broken_pipe(),
            _ if may_use_carrier(h) && send_again(s, h, self.fd) != EAGAIN => Next::Again,
            _ if self.never_opens(h) => Next::Gone,
            _ => self.no_room(h, nonblocking),
        }
    }

    unsafe fn next_on_ring(&mut self, h: &mut TxHeld<'static>, nonblocking: bool) -> Next {
        let s = self.s;
        let by_agent = s.path().leaves_by_agent();
        if s.has(flag::SHUT_WR) && by_agent {
            return self.broken_pipe();
        }
        let odd = self.flags & !SEND_FLAGS != 0 || s.has(flag::SHUT_WR);
        let going = peer_is_going(s, h, self.fd);
        if odd || going {
            if by_agent {
                // (A peer that has not left in order is gone.)
                return if going { Next::Gone } else { Next::TakeBack };
            }
            demote_tx(s, h, !odd);
            return Next::Again;
        }
        if self.total == 0 {
            return Next::Done(0);
        }
        // SAFETY: the caller's buffers.
        match unsafe { fill(&mut h.end.ring, self.iov, self.done) } {
            Ok(0) => {}
            Ok(n) => {
                if !hold_back(s, h, n, self.flags) && !sent_fast(s, h, n) {
                    return Next::Again;
                }
                self.done += n;
                if self.done == self.total {
                    return Next::Done(0);
                }
                if !nonblocking {
                    return Next::Again;
                }
            }
            Err(CopyError::BadAddress) => return Next::Done(EFAULT),
            Err(CopyError::PeerCorrupt) => return Next::Done(corrupt(s, self.fd)),
        }
        publish_held(h);
        if h.end.ring.size() < s.whole_ring_bytes() && ring_full::outgrow(self.s, h) {
            return Next::Again;
        }
        wait::on_full(s);
        match h.end.ring.want_space(1) {
            Ok(true) => return Next::Again,
            Ok(false) => {}
            Err(_) => return Next::Done(corrupt(s, self.fd)),
        }
        if nonblocking && carrier_is_due(s, ASK_CARRIER_TICKS) && peer_has_ended(s, self.fd) {
            s.raise(flag::CARRIER_SPOKE);
            return Next::Again;
        }
        self.no_room(h, nonblocking)
    }

    /// The peer has not heard yet that the stream goes on on the carrier, and that is over: there
    /// is nobody to wait for, as poll says, too ([`super::may_send_on_carrier`]).
    fn never_opens(&self, h: &TxHeld<'_>) -> bool {
        !may_use_carrier(h) && carrier::is_closed(self.fd)
    }

    unsafe fn next_on_carrier(&mut self, h: &mut TxHeld<'static>, nonblocking: bool) -> Next {
        let (s, flags) = (self.s, self.flags);
        if promote(s, h, self.fd, flags) {
            return Next::Again;
        }
        if !may_use_carrier(h) && (self.total > 0 || flags & libc::MSG_OOB != 0) {
            if self.never_opens(h) {
                return Next::Gone;
            }
            h.channel.far.demote(h.slot, s.path().traits().lost, true);
            return Next::Departure;
        }
        // What it says of a peer that was reset is not what the application is told: no signal
        // either.
        let lossy = s.path().is_lossy();
        let doubt = if lossy || lies_unread(s) { libc::MSG_NOSIGNAL } else { 0 };
        let kernel_flags = flags | libc::MSG_DONTWAIT | doubt;
        // SAFETY: the caller's buffers.
        let r = unsafe { kernel_send(self.fd, self.iov, self.done, kernel_flags) };
        if r < 0 && is_reset_by(s, self.fd, -r as c_int) {
            return Next::Again;
        }
        if r == ECONNRESET {
            self.hear_reset(h.channel.far.is_shared());
        }
        if r == EPIPE && lossy {
            return Next::Over;
        }
        if r == EPIPE && doubt & !flags != 0 {
            sys::raise(libc::SIGPIPE);
        }
        if r < 0 {
            return if r == EAGAIN { self.no_room(h, nonblocking) } else { Next::Done(r) };
        }
        let _ = h.end.switch.on_accepted(r as u64);
        if h.channel.far.is_shared() {
            channel::sent_by_kernel();
        }
        if let Some(rec) = s.record() {
            rec.add_tx(Path::Tcp, r as u64);
        }
        self.done += r as usize;
        if self.done >= self.total || nonblocking { Next::Done(0) } else { Next::Again }
    }

    /// The kernel's word, if it has not given that to a call which had bytes to tell first.
    unsafe fn gone(&self) -> Ret {
        if let Some(r) = take_owed(self.s, self.g) {
            return r;
        }
        // SAFETY: the caller's buffers.
        let r = unsafe { kernel_send(self.fd, self.iov, self.done, self.flags) };
        if r == ECONNRESET {
            self.s.raise(flag::TOLD);
        }
        r
    }

    /// The kernel has just said so, which it does once: it is told, or belongs to the next call.
    fn hear_reset(&self, is_shared: bool) {
        match (self.done > 0, is_shared) {
            (false, _) => self.s.raise(flag::TOLD),
            (true, true) => self.s.raise(flag::RESET),
            // (No byte follows: as of a peer that is gone without a word.)
            (true, false) if self.s.path().is_lossy() => {
                note_where_it_receives(self.s);
                self.s.raise(flag::BROKEN_OFF);
            }
            (true, false) => {}
        }
    }

    unsafe fn next_behind_shutdown(&mut self) -> Next {
        if self.done > 0 {
            return Next::Done(0);
        }
        // (It may have given an error to another call that is still to tell it: that comes first.)
        let lossy = self.s.path().is_lossy();
        let flags = if lossy { self.flags | libc::MSG_NOSIGNAL } else { self.flags };
        // SAFETY: the caller's buffers; the kernel answers EPIPE and sends SIGPIPE as it must.
        let r = unsafe { kernel_send(self.fd, self.iov, self.done, flags) };
        if r == ECONNRESET {
            self.s.raise(flag::TOLD);
        }
        if r == EPIPE && lossy { Next::Over } else { Next::Done(r) }
    }

    /// The connection is none of the rings' any more: the kernel takes the rest.
    unsafe fn elsewhere(&mut self, nonblocking: bool) -> Next {
        let (s, fd, done) = (self.s, self.fd, self.done);
        if done == 0 {
            return Next::Done(ANEW);
        }
        // (What went before stands, whatever becomes of the rest: tcp_sendmsg.)
        let flags = self.flags | libc::MSG_NOSIGNAL;
        // SAFETY: the caller's buffers.
        let send = |_| unsafe { kernel_send(fd, self.iov, done, flags) };
        let r = if nonblocking || s.generation16() != self.g {
            // (Closed by another thread meanwhile: the number may be another connection's.)
            0
        } else if s.may_be_candidate() {
            // Between hosts: on TCP for a while, where its bytes are counted.
            match candidate(Named { s, g: self.g, fd }, Side::Send, flags, send) {
                Some(r) if r != PASS => r,
                _ => return Next::Anew,
            }
        } else if s.is(State::Attached) && !s.is_inherited() {
            return Next::Anew;
        } else {
            send(0)
        };
        // Where the ring has taken part of a buffer, the kernel is given the rest of that one.
        let rest = rest_of_buffer(self.iov, done);
        self.done += r.max(0) as usize;
        let goes_on = rest > 0 && r == rest as Ret && self.done < self.total;
        if goes_on { Next::Anew } else { Next::Done(0) }
    }

    /// Shut down, of which the kernel does not know yet: it knows of an error that comes first.
    fn broken_pipe(&self) -> Next {
        let failed = self.done == 0 && carrier::is_closed(self.fd);
        if failed { Next::Gone } else { Next::Done(self.pipe()) }
    }

    fn pipe(&self) -> Ret {
        if self.done == 0 && self.flags & libc::MSG_NOSIGNAL == 0 {
            sys::raise(libc::SIGPIPE);
        }
        EPIPE
    }

    fn no_room(&self, h: &TxHeld<'static>, nonblocking: bool) -> Next {
        ring_full::note(self.s);
        if nonblocking {
            Next::Done(EAGAIN)
        } else {
            Next::Room { on_carrier: h.end.switch.state() != TxState::Fast }
        }
    }

    /// `Some`: the call ends with that.
    fn wait(
        &mut self,
        under_way: &mut Option<UnderWay>,
        patience: &mut Patience,
        on_carrier: bool,
    ) -> Option<Ret> {
        let deadline = patience.deadline();
        under_way.get_or_insert_with(|| UnderWay::new(self.s, self.s.generation16()));
        match block(self.s, &mut self.fd, Side::Send, on_carrier, deadline) {
            Woke::News => None,
            Woke::Timeout => Some(EAGAIN),
            Woke::Signal => interrupted(patience.timeout_ns),
        }
    }

    /// `Some`: the call ends with that.
    fn await_departure(&self, patience: &mut Patience) -> Option<Ret> {
        let deadline = patience.deadline();
        if deadline != 0 && sys::now_ns() >= deadline {
            return Some(EAGAIN);
        }
        match await_departure(self.s, self.g) {
            Woke::Signal => interrupted(patience.timeout_ns),
            _ => None,
        }
    }
}

/// Bytes after byte `done` in the buffer that this is within; 0: a buffer begins there.
fn rest_of_buffer(iov: &[iovec], done: usize) -> usize {
    let mut ends = 0;
    for v in iov {
        let begins = ends;
        ends += v.iov_len;
        if done < ends {
            return if done > begins { ends - done } else { 0 };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_rest_of_a_buffer_is_sent_alone() {
        let of = |iov_len| iovec { iov_base: core::ptr::null_mut(), iov_len };
        let iov = [of(3), of(0), of(5), of(2)];
        let rests: Vec<usize> = (0..=10).map(|done| rest_of_buffer(&iov, done)).collect();
        assert_eq!(rests, [0, 2, 1, 0, 4, 3, 2, 1, 0, 1, 0]);
    }
}
