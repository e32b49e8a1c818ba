//! What the thread "netacc-rdma" does to a connection's ends: both directions go back to the
//! carrier, at exact offsets.
//!
//! `docs/design/switchover.md`, "Between hosts", has the rules; [`crate::remote`] says when.

use super::EAGAIN;
use super::ends::{
    RxHeld, TxHeld, corrupt, hold_rx, hold_tx, load_ack, load_announce, publish_announce,
    show_path, store_ack,
};
use super::leave::{
    PULL_BACK_NS, PULL_BACK_STRICT_NS, RESET_ON_CLOSE, pull_back_patience_ns, send_again,
};
use super::waits::{Blocking, interrupted};
use crate::channel::Channel;
use crate::log::debug_log;
use crate::outcome::{PASS, Ret};
use crate::sets::sets;
use crate::socket::{self, Event, Socket, State, flag};
use crate::wait::{self, Woke};
use crate::wire::{WireSlot, parting};
use crate::{candidates, carrier, numbers, sleep, stats, sys};
use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicU64, fence};
use netacc_control::stats::{Counter, Reason};
use netacc_proto::switchover::{Path as Way, TxState};

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
pub(crate) struct Apart {
    held: Blocking,
    /// A call, or a wait, of before the attachment was under way on the receiving side when it
    /// froze: it has never been armed.
    never_armed: Cell<bool>,
    /// Since when bytes that come again are waited for.
    waits_since: Cell<u64>,
}

/// For so long where some are there; a receive buffer may be too small for them.
const COME_NS: u64 = 30_000_000;

impl Apart {
    pub(crate) fn new(s: &'static Socket) -> Apart {
        let held = Blocking::new(s, s.generation16());
        // A close that could not be a close yet has counted for us.
        if s.flags.fetch_and(!flag::CLOSE_LATER, AcqRel) & flag::CLOSE_LATER != 0 {
            s.waiters.fetch_sub(1, SeqCst);
        }
        Apart { held, never_armed: Cell::new(false), waits_since: Cell::new(0) }
    }

    fn has_come(&self, fd: c_int, outstanding: u64) -> bool {
        let mut unread: c_int = 0;
        if outstanding == 0
            || sys::ioctl(fd, libc::FIONREAD as usize, &mut unread as *mut c_int as usize) < 0
            || unread as u64 >= outstanding
        {
            return true;
        }
        let now = sys::now_ns();
        if self.waits_since.get() == 0 {
            self.waits_since.set(now);
        }
        // (Behind shutdown(SHUT_RD) the kernel would call the stream ended that has bytes to come.)
        let limit = if unread == 0 || self.held.0.has(flag::SHUT_RD) {
            PULL_BACK_STRICT_NS
        } else {
            COME_NS
        };
        now.saturating_sub(self.waits_since.get()) > limit
    }

    /// Does what can be done. `first`: nothing was done before. `seen`: the epoch of our
    /// announcement, and the control word of our acknowledgement, that the peer is known to have.
    /// `peer_left`: its end has said its last words. `gone`: there is no peer any more.
    pub(crate) fn step(&self, first: bool, seen: (u32, u64), peer_left: bool, gone: bool) -> Moved {
        let Blocking(s, g) = self.held;
        let fd = s.fd.load(Acquire);
        let Ok(mut rx) = hold_rx(s, g) else { return Moved::Waits };
        if rx.end.unsettled {
            // A call of before the attachment that ends later arms nothing any more.
            rx.end.unsettled = false;
            self.never_armed.set(true);
        }
        if first && !gone {
            rx.end.switch.freeze();
            store_ack(&rx);
        }
        rx.end.switch.ack_seen(seen.1);
        if peer_left {
            rx.end.switch.peer_left();
        }
        match rx.end.switch.on_announce(load_announce(rx.words)) {
            Ok(true) => rx.settled(s),
            Ok(false) => {}
            Err(_) => {
                drop(rx);
                self.on_carrier(|fd| {
                    let _ = corrupt(s, fd);
                });
                return Moved::Broken;
            }
        }
        store_ack(&rx);
        if peer_left && rx.end.switch.wants_pull_back() {
            // It left without a word about where its stream goes on.
            drop(rx);
            self.break_off();
            return Moved::Broken;
        }
        let received = if gone {
            rx.end.switch.path() == Way::Carrier && !rx.end.switch.wants_pull_back()
        } else {
            rx.end.switch.is_released()
        };
        // What was readable stays so: the kernel has the connection when it has what comes again.
        let here = gone || self.has_come(fd, rx.end.switch.outstanding());
        drop(rx);
        let Ok(mut tx) = hold_tx(s, g) else { return Moved::Waits };
        tx.end.never = true;
        tx.end.switch.pin();
        if peer_left {
            tx.end.switch.peer_left();
        }
        let open = tx.end.switch.carrier_is_open(seen.0);
        let sent = match tx.end.switch.state() {
            TxState::Fast | TxState::Promoting => {
                match tx.end.switch.pull_back(load_ack(tx.words)) {
                    Ok(Some(over)) => {
                        debug_log!("fd {fd}: bytes {:?} go again over the carrier", over.resend);
                        if !over.resend.is_empty() {
                            stats::count(Counter::PulledBack);
                        }
                        publish_announce(&tx, over.announce);
                        show_path(s, true, Way::Carrier);
                    }
                    // It was closed without a word about what it had read, as one is whose unread
                    // data resets the connection.
                    Ok(None) if peer_left => {
                        drop(tx);
                        self.break_off();
                        return Moved::Broken;
                    }
                    Ok(None) | Err(netacc_proto::switchover::Refused::State(_)) => {}
                    Err(_) => {
                        let _ = corrupt(s, s.fd.load(Acquire));
                        return Moved::Broken;
                    }
                }
                false
            }
            TxState::Resending if open => {
                if send_again(s, &mut tx, fd) == EAGAIN {
                    return Moved::NoRoom;
                }
                true
            }
            TxState::Resending => false,
            // Without a peer nobody needs to know.
            TxState::Carrier | TxState::Shut => open || gone,
        };
        drop(tx);
        if sent && received {
            return if here { Moved::Done } else { Moved::NoRoom };
        }
        if gone {
            // The carrier must not go on where bytes are missing. What was received, or has come
            // over the carrier, is still read.
            if received {
                self.break_sending()
            } else {
                self.break_off()
            }
            return Moved::Broken;
        }
        Moved::Waits
    }

    /// A call on the carrier. A close takes the lock before it gives the number away, and leaves
    /// another name here (`io::last_name`).
    fn on_carrier(&self, call: impl FnOnce(c_int)) {
        let Blocking(s, g) = self.held;
        if let Ok(_held) = hold_tx(s, g) {
            call(s.fd.load(Acquire));
        }
    }

    /// Nothing is sent any more, and the close resets the connection.
    fn break_sending(&self) {
        self.held.0.raise(flag::CARRIER_SPOKE | flag::BROKEN_OFF);
        self.on_carrier(|fd| {
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        });
    }

    fn break_off(&self) {
        self.break_sending();
        self.on_carrier(|fd| {
            let _ = sys::shutdown(fd, libc::SHUT_RDWR);
        });
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
        let Blocking(s, g) = self.held;
        let fd;
        let own = {
            let (Ok(tx), Ok(rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return false };
            // What is called on the carrier is called before the state changes: after that a close
            // gives the number away.
            fd = s.fd.load(Acquire);
            // First: a close that finds another state than State::Attached finds nothing to give
            // back.
            let own = !s.channel.swap(core::ptr::null_mut(), AcqRel).is_null();
            if let Some(linger) = tx.end.linger.take() {
                let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
            }
            let counts = if again && s.names() > 0 && !s.has(flag::ORPHAN | flag::FIN_LATER) {
                self.offsets(&tx, &rx, fd)
            } else {
                None
            };
            if s.has(flag::FIN_LATER) {
                let _ = sys::shutdown(fd, libc::SHUT_WR);
                s.lower(flag::FIN_LATER);
            }
            if s.has(flag::CALLED_BACK) && s.has(flag::SHUT_RD) {
                let _ = sys::shutdown(fd, libc::SHUT_RD);
            }
            s.set_reason(why);
            if let Some((sent, received)) = counts {
                s.tx_bytes.store(sent, Relaxed);
                s.rx_bytes.store(received, Relaxed);
                s.calls.store(0, Relaxed);
                s.look_at.store(0, Relaxed);
                s.looks.store(0, Relaxed);
                s.lower(flag::NOTED);
                s.offered.store(0, SeqCst);
                s.state.happens(Event::Begun);
            } else {
                s.state.happens(Event::Refused);
            }
            // A child that has shut it down meanwhile looks at the state behind that
            // (`shutdown_of_parents`).
            fence(SeqCst);
            if s.has(flag::CALLED_BACK)
                && s.flags.fetch_and(!flag::FIN_LATER, AcqRel) & flag::FIN_LATER != 0
            {
                let _ = sys::shutdown(fd, libc::SHUT_WR);
            }
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
            if self.never_armed.get() { rx.end.switch.offset() } else { received },
        ))
    }

    /// Nothing more can be done.
    pub(crate) fn give_up(self) {}
}

/// Before a promotion: from here on, until everything is the carrier's again, the end of this
/// process must not look like the end of the stream. A FIN of the kernel's would overtake what the
/// peer does not have yet.
pub(super) fn end_in_reset(s: &Socket, h: &mut TxHeld<'_>) {
    let fd = s.fd.load(Acquire);
    let mut linger = RESET_ON_CLOSE;
    if h.end.linger.is_none()
        && sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0
    {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        h.end.linger = Some(linger);
    }
}

/// The last descriptor is closed, but bytes are in the ring that the peer does not have, or nobody
/// knows whether it does: true, and the carrier lives on until they have gone over it.
pub(super) fn outlives_close(s: &'static Socket, h: &mut TxHeld<'_>, fd: c_int) -> bool {
    let Some(at) = h.channel.wire().map(|w| w.slot(h.slot)) else { return false };
    if at.leave.load(SeqCst) & parting::GONE != 0 {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        return false;
    }
    if is_clean(h, at) {
        if let Some(linger) = h.end.linger.take() {
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        }
        return false;
    }
    if carrier_is_over(s) {
        // The peer's end without a word: its process is gone, and takes nothing any more.
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        return false;
    }
    leaves_behind(s, h, fd, Reason::Disconnected)
}

/// How long a close waits for a peer on another host, which answers in some microseconds: TCP keeps
/// the promise of a close also when the process is killed right after it, and so does this if the
/// peer has answered.
const CLOSE_NS: u64 = 3_000_000;
/// A peer that did not answer is not waited for again so soon.
const SLOW_NS: u64 = 1_000_000_000;
/// And all closes together wait for no more than [`CLOSE_NS`] in so long: an event loop may close
/// many.
const WINDOW_NS: u64 = 100_000_000;

/// The last descriptor is closed, and bytes go over the carrier: gives that a moment.
pub(crate) fn await_peer(s: &'static Socket, g: u16) {
    static SLOW_AT: AtomicU64 = AtomicU64::new(0);
    /// When the present window began, and the waiting in it. (Threads that race here wait once
    /// more, at most.)
    static WINDOW: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));
    let now = sys::now_ns();
    if now.saturating_sub(WINDOW.0.load(Relaxed)) > WINDOW_NS {
        WINDOW.0.store(now, Relaxed);
        WINDOW.1.store(0, Relaxed);
    }
    let budget = CLOSE_NS.saturating_sub(WINDOW.1.load(Relaxed));
    let wanted = budget > 0 && now.saturating_sub(SLOW_AT.load(Relaxed)) > SLOW_NS;
    if !wanted || !s.has(flag::REMOTE) {
        return;
    }
    loop {
        if s.generation16() != g || !s.is(State::Attached) {
            break;
        }
        let left = (now + budget).saturating_sub(sys::now_ns());
        if left == 0 {
            if budget == CLOSE_NS {
                SLOW_AT.store(now, Relaxed);
            }
            break;
        }
        let (word, attached) = s.state.word(State::Attached);
        sys::futex_wait(word, attached, left as i64, false);
    }
    WINDOW.1.fetch_add(sys::now_ns().saturating_sub(now), Relaxed);
}

/// This process's last descriptor is closed, and a forked child goes on: what is in the rings it
/// gets over the carrier, from here.
pub(super) fn outlives_for_child(s: &'static Socket, h: &TxHeld<'_>, fd: c_int) -> bool {
    let Some(at) = h.channel.wire().map(|w| w.slot(h.slot)) else { return false };
    at.leave.load(SeqCst) & parting::GONE == 0 && leaves_behind(s, h, fd, Reason::InheritedByFork)
}

/// The carrier lives on under a name of the library's own until both directions are back on it.
/// False: there is no descriptor for that.
fn leaves_behind(s: &'static Socket, h: &TxHeld<'_>, fd: c_int, why: Reason) -> bool {
    let own = numbers::copy(fd);
    if own < 0 {
        return false;
    }
    s.waiters.fetch_add(1, SeqCst);
    socket::orphan(s, own, flag::CLOSE_LATER);
    h.channel.ask_to_leave(h.slot, why, false);
    true
}

/// The carrier has ended, or failed.
pub(crate) fn carrier_is_over(s: &Socket) -> bool {
    peer_has_ended(s, s.fd.load(Acquire))
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

/// Whether a send finds the carrier open: not while the peer has not heard yet that the stream goes
/// on there. (Looks without the lock: what it sees is the last that was announced.)
pub(crate) fn may_send_on_carrier(s: &Socket) -> bool {
    let Some(wire) = s.channel().and_then(Channel::wire) else { return true };
    let slot = s.slot.load(Relaxed) as usize;
    let epoch = s.published.epoch.load(Relaxed);
    epoch == 0 || wire.slot(slot).seen_epoch.load(SeqCst) == epoch
}

/// The sender stands on the carrier, and the peer knows.
fn is_clean(h: &TxHeld<'_>, at: &WireSlot) -> bool {
    matches!(h.end.switch.state(), TxState::Carrier | TxState::Shut)
        && h.end.switch.carrier_is_open(at.seen_epoch.load(SeqCst))
}

/// The process ends, or becomes another program: what the peer does not have goes over the carrier.
/// True: there is something.
pub(crate) fn begin_exit(s: &'static Socket) -> bool {
    if !s.is(State::Attached) || s.is_inherited() || !s.has(flag::REMOTE) {
        return false;
    }
    // Never for long: another thread may hold an end for ever.
    for _ in 0..200 {
        if s.rx_lock.owner() == 0 && s.tx_lock.owner() == 0 {
            break;
        }
        sys::sched_yield();
    }
    if s.rx_lock.owner() != 0 || s.tx_lock.owner() != 0 {
        return false;
    }
    // A forked child may go on with it, and only this process can give it what is in the ring.
    let shared =
        s.names() > 1 && hold_rx(s, s.generation16()).is_ok_and(|h| !h.end.switch.is_released());
    if let Ok(h) = hold_tx(s, s.generation16())
        && let Some(at) = h.channel.wire().map(|w| w.slot(h.slot))
        && (shared || !is_clean(&h, at))
    {
        h.channel.ask_to_leave(h.slot, Reason::Disconnected, false);
        return true;
    }
    false
}

/// `shutdown(2)` of a connection between hosts. Waits for nothing: what the peer does not have goes
/// over the carrier before its FIN.
pub(super) fn shutdown_between_hosts(s: &'static Socket, g: u16, fd: c_int, how: c_int) -> Ret {
    if how != libc::SHUT_RD && how != libc::SHUT_WR && how != libc::SHUT_RDWR {
        return -(libc::EINVAL as Ret);
    }
    let Ok(h) = hold_tx(s, g) else { return PASS };
    let (channel, slot) = (h.channel, h.slot);
    if how != libc::SHUT_RD {
        s.raise(flag::FIN_DUE);
    }
    drop(h);
    if how != libc::SHUT_WR {
        if let Ok(rx) = hold_rx(s, g) {
            let there = rx.end.ring.available().unwrap_or(0) as u64;
            rx.end.read_until =
                rx.end.switch.offset().saturating_add(there.max(rx.end.switch.outstanding()));
        }
        s.raise(flag::SHUT_RD | flag::CARRIER_SPOKE);
        let r = sys::shutdown(fd, libc::SHUT_RD);
        if r < 0 {
            return r;
        }
    }
    channel.ask_to_leave(slot, Reason::Disconnected, false);
    wait::prod(s);
    0
}

/// Whoever waits for a connection to have left looks again, in a forked child, too. (Its state says
/// so; nobody relies on being woken.)
pub(crate) fn wake_leavers(s: &Socket) {
    sys::futex_wake(s.state.word(State::Attached).0, i32::MAX, false);
}

/// Waits a while for a connection that is on its way back to the carrier to have left.
pub(super) fn await_departure(s: &'static Socket, g: u16) -> Woke {
    if s.generation16() != g || !s.is(State::Attached) {
        return Woke::News;
    }
    let (word, attached) = s.state.word(State::Attached);
    let r = sleep::futex_await(word, attached, 10_000_000);
    if r == -(libc::EINTR as isize) { Woke::Signal } else { Woke::News }
}

/// `shutdown(2)` in a forked child whose parent has not taken the connection to the carrier yet,
/// and tells the kernel then.
pub(super) fn shutdown_of_parents(s: &Socket, fd: c_int, how: c_int) -> Ret {
    match how {
        libc::SHUT_WR => s.raise(flag::FIN_DUE),
        libc::SHUT_RD => s.raise(flag::SHUT_RD),
        libc::SHUT_RDWR => s.raise(flag::FIN_DUE | flag::SHUT_RD),
        _ => return -(libc::EINVAL as Ret),
    }
    // It may have been there already, and have seen nothing of this.
    fence(SeqCst);
    if s.is(State::Attached) { 0 } else { sys::shutdown(fd, how) }
}

/// A call that needs the carrier of a connection between hosts: waits, as it would wait for the
/// peer, until both directions are there, or the connection is broken. In a forked child it is the
/// maker who takes it there. `Err`: the call's result.
#[cold]
pub(super) fn await_carrier(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    why: Reason,
    timeout_ns: i64,
    nonblocking: bool,
) -> Result<(), Ret> {
    let limit = if nonblocking { PULL_BACK_NS } else { timeout_ns.max(0) as u64 };
    let until = if limit == 0 { u64::MAX } else { sys::now_ns().saturating_add(limit) };
    let inherited = s.is_inherited();
    ask_back(s, g, why);
    loop {
        if s.generation16() != g || s.has(flag::BROKEN_OFF | flag::CORRUPT) {
            return Ok(());
        }
        match s.state.now() {
            // It may have been on its way back for another reason.
            State::Candidate => candidates::make_plain(s, why),
            State::Changing if socket::await_change(s) => {}
            // (What it did before it ended is seen then.)
            State::Attached
                if inherited
                    && !crate::rdma_thread::lives(s.owner.load(Relaxed))
                    && s.is(State::Attached)
                    && s.generation16() == g =>
            {
                break_off_abandoned(s, fd, why)
            }
            State::Attached if sys::now_ns() >= until => return Err(EAGAIN),
            State::Attached => {
                if await_departure(s, g) == Woke::Signal
                    && !nonblocking
                    && let Some(r) = interrupted(timeout_ns)
                {
                    return Err(r);
                }
            }
            _ => {
                has_left(s, g);
                return Ok(());
            }
        }
    }
}

/// Both directions are to be the carrier's, for good.
fn ask_back(s: &'static Socket, g: u16, why: Reason) {
    match s.channel() {
        Some(channel) => channel.ask_to_leave(s.slot.load(Relaxed) as usize, why, false),
        None if s.is_inherited() && s.generation16() == g => {
            s.raise(flag::CALLED_BACK);
            crate::rdma_thread::call_back(s.owner.load(Relaxed));
        }
        None => {}
    }
}

/// It has left: its registrations are the kernel's. (The thread may not have come to that yet.)
fn has_left(s: &'static Socket, g: u16) {
    if !s.is_inherited() && s.generation16() == g {
        sets().on_plain(s);
    }
}

/// Nobody brings what is in the rings back: an error that is seen, never a gap in the stream.
fn break_off_abandoned(s: &Socket, fd: c_int, why: Reason) {
    if s.flags.fetch_or(flag::BROKEN_OFF, AcqRel) & flag::BROKEN_OFF == 0 {
        crate::log::warn_log!(
            "fd {fd}: the peer does not take the connection back to TCP ({}): it is broken off",
            why.name()
        );
        let _ = sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
    }
}

/// [`super::to_kernel`] of a connection between hosts: the thread does it, and is waited for. In a
/// forked child it is its maker's.
pub(super) fn to_kernel_between_hosts(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    why: Reason,
    strict: bool,
) -> bool {
    let inherited = s.is_inherited();
    let at = s.channel().and_then(|c| Some(c.wire()?.slot(s.slot.load(Relaxed) as usize)));
    let patience_ns = pull_back_patience_ns(s, g, why, strict);
    ask_back(s, g, why);
    let until = sys::now_ns().saturating_add(patience_ns);
    let abandoned = loop {
        if s.generation16() != g || !s.is(State::Attached) {
            if s.is(State::Candidate) {
                candidates::make_plain(s, why);
            }
            has_left(s, g);
            return true;
        }
        // As soon as the peer's reader lets it, which may take as long as with TCP; but its maker
        // has to live.
        let abandoned = inherited
            && !crate::rdma_thread::lives(s.owner.load(Relaxed))
            && s.is(State::Attached)
            && s.generation16() == g;
        let left = until.saturating_sub(sys::now_ns());
        if left == 0
            || abandoned
            || s.has(flag::BROKEN_OFF | flag::CORRUPT)
            || at.is_some_and(|at| at.leave.load(SeqCst) & parting::GONE != 0)
        {
            break abandoned;
        }
        let (word, attached) = s.state.word(State::Attached);
        sys::futex_wait(word, attached, left.min(10_000_000) as i64, false);
    };
    if strict || abandoned {
        break_off_abandoned(s, fd, why);
    }
    false
}
