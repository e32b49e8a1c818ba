//! Before the agreement: calls go through the kernel and are counted; then the connection is
//! attached.

use super::ends::{RxHeld, TxHeld, hold_rx, rx_of, store_ack, tx_of};
use super::message::kept_error;
use super::shutdown::{announce_end, say_fin, say_shut};
use super::waits::interrupted;
use super::{EAGAIN, search};
use crate::channel::{Channel, Side, quiet};
use crate::inject::Switches;
use crate::lock::{EndGuard, bump, lock_end, try_lock_end};
use crate::log::debug_log;
use crate::outcome::{PASS, RESTART, Ret};
use crate::sets::sets;
use crate::socket::{self, Event, Offer, RxEnd, Socket, State, TxEnd, flag, offer};
use crate::{adoption, agent, candidates, carrier, channel, process, signals, sleep, sys};
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicU32, AtomicU64};
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::{Delivery, Rx, Tx};
use netacc_ring::{Consumer, Producer, RingWords};

/// Flags under which a candidate's bytes cannot be counted as part of the plain stream.
pub(super) const ODD_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Carries out a kernel call on a candidate, and counts what it moved. `None`: it is no candidate
/// any more: start again.
#[inline(never)]
pub(crate) fn candidate(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    side: Side,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> Option<Ret> {
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
                State::Attached => break None,
                State::Candidate | State::Left => {}
                State::Closing => socket::await_close(s),
                _ => break Some(PASS),
            }
        };
    }
    if flags & ODD_FLAGS != 0 {
        candidates::make_plain(
            s,
            if flags & libc::MSG_OOB != 0 { Reason::UrgentData } else { Reason::SocketOption },
        );
        return Some(PASS);
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
            _ => end_call(s, g, side, 0),
        }
        if !s.is(State::Changing) {
            socket::recycle(s);
            return None;
        }
        if !socket::await_change(s) {
            return Some(EAGAIN);
        }
    }
    let r = call();
    let moved = if r > 0 && flags & libc::MSG_PEEK == 0 { r as u64 } else { 0 };
    end_call(s, g, side, moved);
    if s.generation16() != g {
        // Closed by another thread meanwhile.
        socket::recycle(s);
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
    if r > 0 && s.is(State::Candidate) {
        if !leaves_nothing_to_do(s, side) {
            after_candidate_call(s, g, fd, side, flags);
        }
    } else if r == EAGAIN && side == Side::Receive {
        search::on_nothing(s);
    }
    Some(r)
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
    end_call(s, g, Side::Send, 0);
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

/// A kernel call that began on a candidate is over, and has moved so much.
#[inline(always)]
fn end_call(s: &'static Socket, g: u16, side: Side, moved: u64) {
    let (calls, bytes) = in_kernel(s, side);
    // Under the lock, as an attachment counts.
    let Some(lock) = try_lock_end(if side == Side::Send { &s.tx_lock } else { &s.rx_lock }) else {
        return end_call_slow(s, g, side, moved);
    };
    calls.fetch_sub(1, SeqCst);
    if s.generation16() != g {
        return;
    }
    count(s, side, moved, true);
    if s.is(State::Attached) {
        return settle_after(s, g, side, moved, (lock, false));
    }
    add(bytes, moved, true);
}

/// As [`end_call`]: another thread holds the lock. (Or this one itself, below a signal handler, and
/// nobody attaches meanwhile.)
#[cold]
#[inline(never)]
fn end_call_slow(s: &'static Socket, g: u16, side: Side, moved: u64) {
    let (calls, bytes) = in_kernel(s, side);
    let locked = lock_end(if side == Side::Send { &s.tx_lock } else { &s.rx_lock });
    calls.fetch_sub(1, SeqCst);
    if s.generation16() != g {
        return;
    }
    count(s, side, moved, locked.is_some());
    if !s.is(State::Attached) {
        return add(bytes, moved, locked.is_some());
    }
    if let Some(lock) = locked {
        settle_after(s, g, side, moved, lock);
    }
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
            if let Ok(mut h) = tx_of(s, g, lock) {
                let _ = h.end.switch.on_accepted(moved);
                settle_tx(s, &mut h);
            }
        }
        Side::Receive => {
            if let Ok(mut h) = rx_of(s, g, lock) {
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
        let all = if side == Side::Send { &r.tx_bytes } else { &r.rx_bytes };
        if let Some(w) = all.get(Path::Tcp as usize) {
            add(w, moved, alone);
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

/// As [`settle_tx`]: from here on the peer may send into the ring. Not while a thread waits for the
/// carrier's bytes alone, either, in poll or select.
pub(super) fn settle_rx(s: &Socket, h: &mut RxHeld<'_>) {
    if !h.end.unsettled || s.rx_inflight.load(SeqCst) != 0 || s.pollers.load(SeqCst) as u32 != 0 {
        return;
    }
    h.end.unsettled = false;
    if !socket::counts_agree(s, s.fd.load(Acquire), None, Some(h.end.switch.offset())) {
        s.set_reason(Reason::UncountedBytes);
        return;
    }
    h.end.switch.arm();
    store_ack(h);
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
    const ODD: u32 = flag::UNSETTLED | flag::CONTESTED | flag::REMOTE;
    // A connector that has found nobody at the peer's port, or an acceptor of which the service
    // knows.
    const CONNECTOR: u32 = flag::CONNECTOR | flag::ASKED | flag::WAITS_SEEN;
    let flags = s.flags.load(SeqCst);
    let usual = flags & (ODD | CONNECTOR | flag::ACCEPTOR_KNOWN) == CONNECTOR
        || flags & (ODD | flag::CONNECTOR | flag::NOTED) == flag::NOTED;
    if !usual || s.offered.load(Acquire) != 0 {
        return false;
    }
    if side == Side::Receive && (s.in_vain.load(Relaxed) != 0 || s.looks.load(Relaxed) == 0) {
        return false;
    }
    let calls = s.calls.load(Relaxed).wrapping_add(1);
    if calls <= search::EARLY_CALLS || calls.is_multiple_of(search::CLOCK_CALLS) {
        return false;
    }
    s.calls.store(calls, Relaxed);
    true
}

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
        if s.in_vain.load(Relaxed) != 0 {
            s.in_vain.store(0, Relaxed);
        }
    } else if !s.has(flag::REMOTE) {
        channel::sent_by_kernel();
    }
    let flags = s.flags.load(SeqCst);
    if flags & flag::UNSETTLED != 0 && !adoption::settle(s, fd) {
        return;
    }
    if flags & flag::CONTESTED != 0 {
        // Two processes use it.
        candidates::make_plain(s, adoption::why(s));
        return;
    }
    let offered = s.offered.load(Acquire);
    if offered == offer::NEVER {
        if !candidates::make_local(s, g) {
            let why = Reason::ALL
                .get(s.verdict.load(Relaxed) as usize)
                .copied()
                .unwrap_or(Reason::PeerRefused);
            candidates::make_plain(s, why);
        }
        return;
    }
    if offered != 0 {
        // A registration with ONESHOT may have fired: attached when it is armed again (epoll::ctl).
        if sets().may_attach(s) {
            attach(s, g, fd);
        }
        return;
    }
    // Not exact where several threads are in calls on it, and cheap: a connection whose peer has no
    // library comes here for life.
    let calls = s.calls.load(Relaxed).wrapping_add(1);
    s.calls.store(calls, Relaxed);
    if s.has(flag::REMOTE) {
        if calls >= crate::candidates::NOTED_AFTER
            && !s.has(flag::NOTED)
            && search::waits_seen(s, fd, call_flags, calls)
            && s.syn.learn(s.has(flag::CONNECTOR), fd)
        {
            s.raise(flag::NOTED);
            s.start(Reason::Negotiating);
            if !agent::between_hosts().note(s, g) && !candidates::make_local(s, g) {
                candidates::make_plain(s, Reason::RdmaRefused);
            } else if s.has(flag::RDMA_FIRST) && !s.has(flag::CONNECTOR) {
                // It is the connector that turns to shared memory.
                agent::here().note(s, g);
            }
        }
        return;
    }
    search::on_call(s, g, fd, side, call_flags, calls);
}

/// Both ends have agreed: from now on the rings may be used. Runs in an application thread, between
/// two calls of its own. A direction in which another thread is in the kernel meanwhile, with an
/// unknown number of bytes, stays on the carrier until that call ends ([`end_call`]); calls that
/// begin from now on know both paths.
#[cold]
#[inline(never)]
pub(crate) fn attach(s: &'static Socket, g: u16, fd: c_int) {
    if !s.state.change(State::Candidate, Event::Claimed) {
        return;
    }
    let me = process::tid();
    let is_remote = s.has(flag::REMOTE);
    if s.tx_lock.owner() == me || s.rx_lock.owner() == me {
        // This is a signal handler that interrupted the thread where it counts: at the end of some
        // later call.
        s.state.happens(Event::Begun);
        return;
    }
    // Between hosts it may be taken back as long as nobody has taken it.
    let offered = match is_remote {
        true => s.offered.compare_exchange(offer::MADE, offer::TAKEN, SeqCst, Relaxed).is_ok(),
        false => s.offered.load(SeqCst) == offer::MADE,
    };
    if !offered {
        s.state.happens(Event::Begun);
        return;
    }
    if is_remote && s.has(flag::RDMA_FIRST) {
        agent::here().forget(s);
    }
    // SAFETY: `offered` was seen set (acquire) by the caller; the service thread does not write it
    // again.
    let offer = unsafe { *s.offer.get() };
    let locks = (lock_end(&s.tx_lock), lock_end(&s.rx_lock));
    let moved = Counted::by(s);
    let why = why_not(s, g, fd, &moved);
    // SAFETY: the service thread's channel lives while `users` counts this socket.
    let channel: &'static Channel = unsafe { &*offer.channel };
    let rings = (NonNull::new(offer.tx_ring), NonNull::new(offer.rx_ring));
    let ((Some(tx_ring), Some(rx_ring)), None) = (rings, why) else {
        drop(locks);
        refuse_offer(s, channel, why.unwrap_or(Reason::NoMemory));
        return;
    };
    socket::look_at_options(s, fd);
    let delivery = if is_remote { Delivery::Lossy } else { Delivery::Reliable };
    put_ends(s, &offer, (tx_ring, rx_ring), &moved, delivery);
    if let Some(r) = s.record() {
        r.peer_pid.store(channel.peer_pid, Relaxed);
    }
    s.lower(flag::TOLD | flag::BROKEN_OFF | flag::RESET);
    s.state.happens(Event::Attached);
    drop(locks);
    if moved.tx_idle && s.has(flag::SHUT_WR) {
        say_shut(s, fd, libc::SHUT_WR);
    }
    agent::attached(channel);
    sets().on_attached(s, fd);
    // Last: the peer may send into the ring from here on. (Unless the set had no place for it, and
    // it went back to the kernel.)
    if let Ok(mut h) = hold_rx(s, g) {
        if moved.rx_idle && h.end.unsettled {
            h.end.unsettled = false;
            h.end.switch.arm();
            store_ack(&h);
        } else {
            settle_rx(s, &mut h);
        }
    }
    debug_log!(
        "fd {fd}: attached to slot {}, sent {}{} received {}{}",
        offer.slot,
        moved.sent,
        open(moved.tx_idle),
        moved.received,
        open(moved.rx_idle)
    );
}

/// What has gone over the carrier, and whether a call is under way that may add to it.
struct Counted {
    sent: u64,
    received: u64,
    tx_idle: bool,
    rx_idle: bool,
}

impl Counted {
    /// Under the locks of both ends.
    fn by(s: &Socket) -> Counted {
        let (sent, received) = (s.tx_bytes.load(Relaxed), s.rx_bytes.load(Relaxed));
        let tx_idle = s.tx_inflight.load(SeqCst) == 0;
        let rx_idle = s.rx_inflight.load(SeqCst) == 0 && s.pollers.load(SeqCst) as u32 == 0;
        Counted { sent, received, tx_idle, rx_idle }
    }
}

/// Why an offer cannot be taken up after all.
fn why_not(s: &'static Socket, g: u16, fd: c_int, moved: &Counted) -> Option<Reason> {
    let counts = || {
        let (sent, received) = (moved.sent, moved.received);
        socket::counts_agree(
            s,
            fd,
            moved.tx_idle.then_some(sent),
            moved.rx_idle.then_some(received),
        )
    };
    if s.generation16() != g {
        Some(Reason::Negotiating)
    } else if !children_can_follow(s) || s.flags.load(SeqCst) & flag::CONTESTED != 0 {
        Some(Reason::InheritedByFork)
    } else if s.registrations.load(Acquire) > 1 {
        Some(Reason::SeveralEpollSets)
    } else if !counts() {
        Some(Reason::UncountedBytes)
    } else if s.has(flag::REMOTE) && carrier::peer_ended(fd) {
        // As in `shutdown_of`.
        Some(Reason::Disconnected)
    } else {
        None
    }
}

/// Gives the socket its ends on the slot that was agreed on. Under the locks of both.
fn put_ends(
    s: &'static Socket,
    offer: &Offer,
    (tx_ring, rx_ring): (NonNull<u8>, NonNull<u8>),
    moved: &Counted,
    delivery: Delivery,
) {
    // SAFETY: as in `attach`.
    let channel: &'static Channel = unsafe { &*offer.channel };
    let slot = offer.slot as usize;
    let (tx_words, rx_words) =
        (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let (mut tx, rx) = halves(moved.sent, moved.received, delivery);
    if moved.tx_idle && s.has(flag::SHUT_WR) {
        let _ = tx.shutdown();
    }
    s.rx_offset.store(rx.offset(), Relaxed);
    s.published.begin(s.generation.load(Acquire));
    // SAFETY: this thread holds both ends' locks. The words and rings live in mappings that outlive
    // the attachment; their sizes were checked by the service thread; both start at 0.
    unsafe {
        s.tx.get().write(TxEnd {
            switch: tx,
            ring: Producer::new(NonNull::from(tx_words), tx_ring, offer.tx_bytes as usize, 0),
            never: false,
            held_since: 0,
            unsettled: !moved.tx_idle,
            resend_mark: None,
            linger: None,
            switches: Switches::new(),
        });
        s.rx.get().write(RxEnd {
            switch: rx,
            ring: Consumer::new(NonNull::from(rx_words), rx_ring, offer.rx_bytes as usize, 0),
            unsettled: true,
            carrier_asked: 0,
            pending_error: 0,
            read_until: 0,
        });
    }
    s.tx_words.store((tx_words as *const RingWords).cast_mut(), Release);
    s.rx_words.store((rx_words as *const RingWords).cast_mut(), Release);
    s.channel.store(offer.channel.cast_mut(), Release);
    s.slot.store(offer.slot, Release);
}

/// In the log: whether a count is final.
fn open(idle: bool) -> &'static str {
    if idle { "" } else { " or more" }
}

/// Both halves, at these offsets of the stream, on the carrier.
fn halves(sent: u64, received: u64, delivery: Delivery) -> (Tx, Rx) {
    (Tx::starting_at(0, sent), Rx::starting_at_over(delivery, 0, received))
}

/// Whether a forked child that has the connection too could still use it: within the host by the
/// memory that it inherited, which must be all that the connection uses; between hosts by calling
/// its parent.
fn children_can_follow(s: &Socket) -> bool {
    if s.has(flag::REMOTE) {
        return crate::rdma_thread::can_be_called(s.forks.load(Relaxed))
            && !s.has(flag::CALLED_BACK);
    }
    s.forks.load(Relaxed) == process::forks()
}

#[cold]
pub(super) fn refuse_offer(s: &'static Socket, channel: &'static Channel, why: Reason) {
    // SAFETY: as in `attach`.
    let slot = unsafe { (*s.offer.get()).slot } as usize;
    s.set_reason(why);
    s.state.happens(Event::Refused);
    if channel.wire().is_none() {
        channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    }
    agent::released(channel, slot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_proto::switchover::Ack;

    #[test]
    fn offsets_of_long_connections_are_whole() {
        let (sent, received) = (5 << 32 | 7, u64::from(u32::MAX) + 1);
        for delivery in [Delivery::Reliable, Delivery::Lossy] {
            let (mut tx, mut rx) = halves(sent, received, delivery);
            assert_eq!((tx.offset(), rx.offset()), (sent, received));
            assert!(rx.arm());
            let ack = Ack { epoch: 0, armed: true, frozen: false, consumed: 0 };
            assert_eq!(tx.promote(ack, delivery).map(|a| a.fast_from), Ok(sent));
            assert_eq!(rx.ack().consumed, received);
        }
    }
}
