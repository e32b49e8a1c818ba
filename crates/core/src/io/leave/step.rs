//! What the thread "netacc-rdma" does to a connection's ends: both directions go back to the
//! carrier, at exact offsets.
//!
//! `docs/design/switchover.md`, "Between hosts", has the rules; [`crate::remote`] says when.

use super::super::end_in_reset::{
    For, RESET_ON_CLOSE, end_as_ever, note_what_comes, resets_on_close,
};
use super::super::ends::{
    RxHeld, TxHeld, carrier_unread, corrupt, hold_rx, hold_tx, load_ack, load_announce,
};
use super::super::probe::{put_back, user_timeout_ms};
use super::super::say_end::say_late_fin;
use super::super::under_way::UnderWay;
use super::PULL_BACK_STRICT_NS;
use super::between_hosts::wake_leavers;
use super::halves::{Headway, Limits, carry_out, freeze, look_at_rx, look_at_tx, pin};
use crate::channel::Channel;
use crate::log::debug_log;
use crate::sets::sets;
use crate::socket::{Event, Socket, flag};
use crate::{carrier, fd_table, numbers, socket, sys, trace, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use netacc_control::stats::Reason;
use netacc_proto::switchover::{
    Action, Arrival, Await, Coming, Corrupt, Leave, Peer, RxDue, RxView, TxDue, TxView,
};

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is the peer's turn.
    Waits,
    /// Bytes go again over the carrier, which has no room for more of them.
    NoRoom,
    /// The peer is gone with what it had, or has broken the rules: the connection is broken.
    Broken,
    /// Both directions are the carrier's.
    Done,
}

/// A connection on its way. While there is one a close leaves the carrier to it.
pub(crate) struct Departure {
    held: UnderWay,
    leave: Leave,
    arrival: Arrival,
    /// A call, or a wait, of before the attachment was under way on the receiving side when it
    /// froze: it has never been armed.
    never_armed: bool,
    /// Bytes have come since both halves were shut down.
    came_late: bool,
    headway: Headway,
}

/// For so long bytes that come again are waited for when no more come; a receive buffer may be too
/// small for them.
const STALLED_NS: u64 = 30_000_000;

/// A close that could not be a close yet has counted for a departure.
fn count_for_close(s: &Socket) {
    if s.flags.fetch_and(!flag::CLOSE_LATER, AcqRel) & flag::CLOSE_LATER != 0 {
        s.waiters.fetch_sub(1, SeqCst);
    }
}

/// The receiver stands on the carrier, which has the next bytes, if there are any.
fn is_there(rx: &RxView) -> bool {
    matches!(rx.next(true), RxDue::Done | RxDue::Short | RxDue::Await(Await::Bytes))
}

const NOT_CONNECTED: c_int = -libc::ENOTCONN;

/// Nothing is sent any more, as the peer is gone, and the connection is about to say so. A forked
/// child does not see the receiving half, and is to have what the kernel has before the error.
pub(crate) fn note_where_it_receives(s: &'static Socket) {
    let Ok(mut h) = hold_rx(s, s.generation16()) else { return };
    if h.end.switch.on_announce(load_announce(h.words)).is_ok_and(|moved| moved) {
        h.settled(s);
    }
    let state = h.end.switch.state();
    let view = RxView { state, coming: Coming::All, unread: false, peer: Peer::Gone };
    s.receives_there.store(is_there(&view), Release);
}

/// Tells the kernel of a forked child's shutdown for receiving, if there was one.
fn shut_for_child(s: &Socket, fd: c_int) -> bool {
    let is_due = s.has(flag::CALLED_BACK) && s.has(flag::SHUT_RD);
    // (Of a carrier that was reset the kernel knows.)
    is_due && matches!(sys::shutdown(fd, libc::SHUT_RD) as c_int, 0 | NOT_CONNECTED)
}

/// A carrier under a name of the library's own, where there is need of one, and there can be one.
struct OwnName(c_int, c_int);

impl OwnName {
    fn of(fd: c_int, is_needed: bool) -> OwnName {
        OwnName(fd, if is_needed { numbers::copy(fd) } else { -1 })
    }

    fn fd(&self) -> c_int {
        if self.1 >= 0 { self.1 } else { self.0 }
    }
}

impl Drop for OwnName {
    fn drop(&mut self) {
        if self.1 >= 0 {
            fd_table::close_internal(self.1);
        }
    }
}

impl Drop for Departure {
    /// Such a close may have looked for one just before this one began.
    fn drop(&mut self) {
        count_for_close(self.held.0);
    }
}

impl Departure {
    pub(crate) fn new(s: &'static Socket) -> Departure {
        let held = UnderWay::new(s, s.generation16());
        count_for_close(s);
        Departure {
            held,
            leave: Leave::new(false),
            arrival: Arrival::default(),
            never_armed: false,
            came_late: false,
            headway: Headway::default(),
        }
    }

    /// Does what can be done. `seen`: the epoch of our announcement, and the control word of our
    /// acknowledgement, that the peer is known to have.
    pub(crate) fn step(&mut self, seen: (u32, u64), peer: Peer) -> Moved {
        let UnderWay(s, g) = self.held;
        count_for_close(s);
        let mut room = true;
        loop {
            let Ok(rx) = hold_rx(s, g) else { return Moved::Waits };
            let Ok(rx) = self.look_at_rx(rx, seen.1, peer) else {
                self.on_carrier(|fd| {
                    let _ = corrupt(s, fd);
                });
                return Moved::Broken;
            };
            s.receives_there.store(is_there(&rx), Release);
            let Ok(mut tx) = hold_tx(s, g) else { return Moved::Waits };
            let fd = s.fd.load(Acquire);
            if peer == Peer::Left {
                tx.end.switch.peer_left();
            }
            let ack = load_ack(tx.words);
            pin(&mut tx);
            let view = look_at_tx(&tx, Some(seen.0));
            let Ok(view) = view.asked_by(ack, &tx.end.switch) else {
                let _ = corrupt(s, fd);
                return Moved::Broken;
            };
            if self.headway.is_made(&view, &rx, tx.end.switch.resend().start) {
                s.came_on.fetch_add(1, Release);
            }
            let view = TxView { room, peer, ..view };
            // (TCP does not wait for room for what it has not sent, either.)
            let due = view.next();
            let is_told = due == TxDue::Done || due == TxDue::Await(Await::Room);
            let resets = self.came_late && is_told && peer != Peer::Gone;
            match self.leave.step(view, rx, false) {
                // As the kernel does behind its FIN (tcp_rcv_state_process). It might never get to
                // that: nobody reads here, and without room nothing more comes.
                _ if resets => {
                    if due == TxDue::Done {
                        say_late_fin(s, fd);
                    }
                    super::break_off(s, fd);
                    return Moved::Broken;
                }
                Action::Freeze => {
                    drop(tx);
                    let Ok(mut rx) = hold_rx(s, g) else { return Moved::Waits };
                    freeze(&mut rx);
                }
                Action::Sender(due) => match carry_out(s, &mut tx, fd, due, ack) {
                    // The carrier takes no byte any more: the calls that follow say so, as on TCP.
                    Ok(_) if s.has(flag::BROKEN_OFF) => {
                        s.raise(flag::CARRIER_SPOKE);
                        return Moved::Broken;
                    }
                    Ok(has_room) => room = has_room,
                    Err(()) => return Moved::Broken,
                },
                // TCP's close in reset throws away what has not been sent.
                Action::Wait(TxDue::Await(Await::Room), _) if self.is_discarded(&tx, rx, fd) => {
                    super::break_off(s, fd);
                    return Moved::Broken;
                }
                Action::Wait(TxDue::Await(Await::Room), _)
                | Action::Wait(_, RxDue::Await(Await::Bytes)) => return Moved::NoRoom,
                Action::Wait(..) | Action::Later => return Moved::Waits,
                Action::Become => {
                    drop(tx);
                    return if self.owes_error() { Moved::Broken } else { Moved::Done };
                }
                end @ (Action::BreakSending | Action::BreakOff) => {
                    drop(tx);
                    self.break_off(end, peer);
                    return Moved::Broken;
                }
            }
        }
    }

    fn look_at_rx(
        &mut self,
        mut h: RxHeld<'_>,
        seen_ack: u64,
        peer: Peer,
    ) -> Result<RxView, Corrupt> {
        let s = self.held.0;
        // (A call of before the attachment that ends later arms nothing any more.)
        self.never_armed |= core::mem::take(&mut h.end.unsettled);
        h.end.switch.ack_seen(seen_ack);
        if peer == Peer::Left {
            h.end.switch.peer_left();
        }
        // (Behind shutdown(SHUT_RD) the kernel would call the stream ended that has bytes to come.)
        let stall_ns = if s.has(flag::SHUT_RD) { u64::MAX } else { STALLED_NS };
        let limits = Limits { patience_ns: PULL_BACK_STRICT_NS, stall_ns, hears_end: false };
        let fd = s.fd.load(Acquire);
        self.came_late = h.comes_behind_both(s, fd);
        let mut arrival = self.arrival;
        let mut view = look_at_rx(s, &mut h, fd, &mut arrival, &limits)?;
        if s.fd.load(Acquire) == fd {
            self.arrival = arrival;
        } else {
            // A close has taken that name meanwhile, and left another: it was asked for nothing.
            view.coming = Coming::Waiting;
        }
        Ok(RxView { peer, ..view })
    }

    /// Everybody has closed it, with bytes unread or an SO_LINGER of no time, and no call is under
    /// way on it but this.
    fn is_discarded(&self, tx: &TxHeld<'_>, rx: RxView, fd: c_int) -> bool {
        let s = self.held.0;
        s.has(flag::ORPHAN)
            && s.names() == 0
            && s.waiters.load(SeqCst) <= 1
            && (rx.unread || carrier_unread(fd).is_some_and(|n| n > 0) || resets_on_close(tx, fd))
    }

    /// A call on the carrier. A close takes the lock before it gives the number away, and leaves
    /// another name here (`io::last_close::last_name`).
    fn on_carrier(&self, call: impl FnOnce(c_int)) {
        let UnderWay(s, g) = self.held;
        if let Ok(_held) = hold_tx(s, g) {
            call(s.fd.load(Acquire));
        }
    }

    pub(crate) fn socket(&self) -> &'static Socket {
        self.held.0
    }

    /// TCP's patience with a peer that does not answer, if the application has set it
    /// (TCP_USER_TIMEOUT).
    pub(crate) fn user_timeout_ns(&self) -> Option<u64> {
        let UnderWay(s, g) = self.held;
        let h = hold_tx(s, g).ok()?;
        let ms = user_timeout_ms(&h, s.fd.load(Acquire));
        (ms > 0).then(|| u64::from(ms.unsigned_abs()) * 1_000_000)
    }

    /// The connection is about to be given up, because nothing is heard of the peer.
    pub(crate) fn times_out(&self) {
        self.held.0.raise(flag::TIMED_OUT);
    }

    /// Nothing is sent any more, and the close resets the connection; where bytes are missing that
    /// were to come, it is reset now. What was received is still read, and what has come over the
    /// carrier if nothing is missing before it.
    fn break_off(&self, end: Action, peer: Peer) {
        let s = self.held.0;
        self.on_carrier(|fd| {
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
            // (What came before a reset can still be read. A peer that has said its last words has
            // reset the carrier, though the words may be here first.)
            if end == Action::BreakOff && peer == Peer::Gone && !carrier::is_closed(fd) {
                super::break_off(s, fd);
            }
        });
        s.raise(flag::CARRIER_SPOKE | flag::BROKEN_OFF);
        s.trace_once(trace::Event::BrokenOff, 0);
    }

    /// The carrier has failed, and has said why to a call that had bytes to tell first: the error
    /// is the next call's, and the kernel does not know it any more.
    fn owes_error(&self) -> bool {
        let UnderWay(s, g) = self.held;
        let owes = hold_rx(s, g)
            .is_ok_and(|rx| rx.end.pending_error != 0 && carrier::is_closed(s.fd.load(Acquire)));
        if owes {
            s.raise(flag::CARRIER_SPOKE | flag::BROKEN_OFF);
        }
        owes
    }

    /// Both directions are the carrier's: the connection is the kernel's, or (`again`) a candidate
    /// as it was at first. True: the slot is the caller's to give back; false: somebody who closed
    /// it does that.
    pub(crate) fn conclude(
        self,
        channel: &'static Channel,
        slot: usize,
        why: Reason,
        again: bool,
    ) -> bool {
        let UnderWay(s, g) = self.held;
        let fd;
        let own = {
            let (Ok(mut tx), Ok(rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return false };
            // What is called on the carrier is called before the state changes: after that a close
            // gives the number away.
            fd = s.fd.load(Acquire);
            // First: a close that finds another state than State::Attached finds nothing to give
            // back.
            let own = !s.channel.swap(core::ptr::null_mut(), AcqRel).is_null();
            end_as_ever(&mut tx, fd, For::Sending);
            put_back(&mut tx, fd);
            let counts = if again && s.names() > 0 && !s.has(flag::ORPHAN | flag::FIN_LATER) {
                self.offsets(&tx, &rx, fd)
            } else {
                None
            };
            note_what_comes(s, &rx, fd);
            say_late_fin(s, fd);
            let told = shut_for_child(s, fd);
            // What a child asks for from here on needs a name that no close gives away.
            let name = OwnName::of(fd, s.has(flag::CALLED_BACK));
            s.set_reason(why);
            if let Some((sent, received)) = counts {
                s.tx_bytes.store(sent, Relaxed);
                s.rx_bytes.store(received, Relaxed);
                s.calls.store(0, Relaxed);
                s.look_at.store(0, Relaxed);
                s.looks.store(0, Relaxed);
                s.lower(flag::NOTED);
                s.offered.begin();
                s.state.happens(Event::Begun);
            } else {
                s.state.happens(Event::Refused);
                s.count_no_more();
                s.trace(trace::Event::Plain, u64::from(why as u32));
            }
            // A child that has shut it down meanwhile looks at the state behind that
            // (`shutdown_of_parents`).
            fence(SeqCst);
            let _ = told || shut_for_child(s, name.fd());
            if s.has(flag::CALLED_BACK)
                && s.flags.fetch_and(!flag::FIN_LATER, AcqRel) & flag::FIN_LATER != 0
            {
                let _ = sys::shutdown(name.fd(), libc::SHUT_WR);
            }
            // (Nobody finds the end any more.)
            s.spill.free();
            drop(tx);
            own
        };
        wait::prod_on(s, channel, slot);
        sets().on_plain(s);
        wake_leavers(s);
        debug_log!("fd {fd}: slot {slot} of {:p} is left", channel);
        own
    }

    /// What was sent and received of the stream that the next attachment counts: the carrier's own
    /// counts, from here on, at both ends. Where a call of before this attachment may still be in
    /// the kernel nobody knows what it has moved; but then that direction has never left the
    /// carrier, what was counted stands, and the call adds its own when it ends.
    fn offsets(&self, tx: &TxHeld<'_>, rx: &RxHeld<'_>, fd: c_int) -> Option<(u64, u64)> {
        let (sent, received) = socket::carrier_counts(self.held.0, fd)?;
        Some((
            if tx.end.unsettled { tx.end.switch.offset() } else { sent },
            if self.never_armed { rx.end.switch.offset() } else { received },
        ))
    }

    /// Nothing more can be done.
    pub(crate) fn give_up(self) {}
}
