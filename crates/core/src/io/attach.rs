//! A candidate is attached: both ends have agreed, and it gets its place on the ring.

use super::arm_receiver::{arm, settle_rx};
use super::ends::hold_rx;
use super::park;
use super::rings_shown::show_rings;
use super::say_end::say_shut;
use crate::channel::{Channel, quiet};
use crate::inject::Switches;
use crate::lock::lock_end;
use crate::log::debug_log;
use crate::sets::sets;
use crate::socket::{self, Event, Offer, RxEnd, Socket, State, TxEnd, flag, offered};
use crate::trace::Event as Trace;
use crate::{agent, carrier, config, packet_policy, process};
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::{Delivery, Rx, Tx};
use netacc_ring::{Consumer, Producer, RingWords};

/// Both ends have agreed: from now on the rings may be used. Runs in an application thread, at the
/// end of its call, or in `epoll_ctl`, `connect` or `accept`. A direction in which another thread
/// is in the kernel meanwhile, with an unknown number of bytes, stays on the carrier until that
/// call ends (`candidate::end_call`); calls that begin from now on know both paths.
#[cold]
#[inline(never)]
pub(crate) fn attach(s: &'static Socket, g: u16, fd: c_int) {
    if !s.state.change(State::Candidate, Event::Claimed) {
        return;
    }
    let me = process::tid();
    if s.tx_lock.owner() == me || s.rx_lock.owner() == me {
        // This is a signal handler that has interrupted its own thread while that counts. Some
        // later call attaches the connection.
        s.state.happens(Event::Begun);
        return;
    }
    // An agent may take it back as long as nobody has taken it.
    let offered = match s.path().leaves_by_agent() {
        true => s.offered.happens(offered::Event::Taken),
        false => s.offered.is_made(),
    };
    if !offered {
        s.state.happens(Event::Begun);
        return;
    }
    s.paths().rest().iter().for_each(|path| agent::of(path).forget(s));
    // SAFETY: `offered` was made, or taken by this thread (acquire). No agent writes the offer
    // again before the next life of the socket.
    let offer = unsafe { *s.offer.get() };
    let locks = (lock_end(&s.tx_lock), lock_end(&s.rx_lock));
    let moved = Counted::by(s);
    let why = why_not(s, g, fd, &moved, offer.asked);
    // SAFETY: the agent's channel lives while `users` counts this socket.
    let channel: &'static Channel = unsafe { &*offer.channel };
    let rings = (NonNull::new(offer.tx_ring), NonNull::new(offer.rx_ring));
    let ((Some(tx_ring), Some(rx_ring)), None) = (rings, why) else {
        drop(locks);
        match why {
            Some(Not::Now(why)) => put_off_offer(s, channel, why),
            // The offer stays: it is taken up when acceleration is on again.
            Some(Not::Off) => drop(s.state.happens(Event::Begun)),
            Some(Not::Ever(why)) => refuse_offer(s, channel, why),
            None => refuse_offer(s, channel, Reason::NoMemory),
        }
        return;
    };
    s.asked.store(offer.asked, Relaxed);
    socket::comes(channel, offer.slot as usize);
    socket::look_at_options(s, fd);
    put_ends(s, &offer, (tx_ring, rx_ring), &moved, s.path().traits().delivery);
    if let Some(r) = s.record() {
        r.peer_pid.store(channel.peer_pid, Relaxed);
        show_rings(s, r, 0);
    }
    s.lower(flag::TOLD | flag::BROKEN_OFF | flag::RESET | flag::TIMED_OUT);
    s.state.happens(Event::Attached);
    trace_attached(s, channel.peer_pid, offer.slot);
    // (Behind this its thread finds it, and says so.)
    let [.., request] = &channel.words(offer.slot as usize, channel.side).quiet;
    s.heeds(request.load(SeqCst));
    drop(locks);
    if moved.tx_idle && s.has(flag::SHUT_WR) {
        say_shut(s, fd, libc::SHUT_WR);
    }
    agent::of(s.path()).attached(channel);
    sets().on_attached(s, fd);
    // Last: the peer may send into the ring from here on. (Unless the set had no place for it, and
    // it went back to the kernel.)
    if let Ok(mut h) = hold_rx(s, g) {
        if moved.rx_idle && h.end.unsettled && !h.end.paused {
            h.end.unsettled = false;
            arm(&mut h);
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

#[cold]
fn trace_attached(s: &Socket, peer_pid: u32, slot: u32) {
    let path = s.channel().map_or(0, |channel| channel.path() as u64);
    s.show_peer_in_trace(peer_pid);
    s.trace(Trace::Attached, path | u64::from(slot & 0xff_ffff) << 8 | u64::from(peer_pid) << 32);
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

/// Why an offer is not taken up after all.
#[derive(Clone, Copy)]
enum Not {
    /// Another offer can be taken up: what the program has asked for meanwhile is another pair's,
    /// or acceleration is off.
    Now(Reason),
    /// Acceleration is off, and this offer can be taken up when it is on again.
    Off,
    Ever(Reason),
}

/// `asked`: what was asked of the connection's packets when the offer was sought.
fn why_not(s: &'static Socket, g: u16, fd: c_int, moved: &Counted, asked: u32) -> Option<Not> {
    let counts = || {
        let (sent, received) = (moved.sent, moved.received);
        socket::counts_agree(
            s,
            fd,
            moved.tx_idle.then_some(sent),
            moved.rx_idle.then_some(received),
        )
    };
    let for_good = if s.generation16() != g {
        Some(Reason::Negotiating)
    } else if process::is_ending() {
        // Whoever takes the connections back has begun, and may have passed it.
        Some(Reason::Disconnected)
    } else if !children_can_follow(s) || s.flags.load(SeqCst) & flag::CONTESTED != 0 {
        Some(Reason::InheritedByFork)
    } else if s.has(flag::STDIO) {
        Some(Reason::StdioStream)
    } else if !counts() {
        Some(Reason::UncountedBytes)
    } else if !s.path().is_shared() && carrier::peer_ended(fd) {
        // As in `shutdown_of`.
        Some(Reason::ShuttingDown)
    } else {
        None
    };
    if let Some(why) = for_good {
        return Some(Not::Ever(why));
    }
    if !config::get().accelerate_by_default {
        // Whoever takes all connections back may have passed this one.
        let waits = !s.path().leaves_by_agent();
        return Some(if waits { Not::Off } else { Not::Now(Reason::DisabledByConfig) });
    }
    if s.path().is_shared() {
        return None;
    }
    match packet_policy::of(fd, s.tuple().local().ip()) {
        Ok(now) => (now.key() != asked).then_some(Not::Now(Reason::KernelPolicy)),
        Err(why) => Some(Not::Ever(why)),
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
    s.receives_there.store(false, Relaxed);
    s.published.begin(s.generation.load(Acquire));
    // In a small ring there is always room: who fills it leaves it for the carrier.
    let small = offer.tx_bytes < offer.whole;
    s.room.store(offer.tx_bytes << u32::from(small), Relaxed);
    // SAFETY: this thread holds both ends' locks. The words and rings live in mappings that outlive
    // the attachment; their sizes were checked by the agent; both start at 0.
    unsafe {
        s.tx.get().write(TxEnd {
            switch: tx,
            ring: Producer::new(NonNull::from(tx_words), tx_ring, offer.tx_bytes as usize, 0),
            never: false,
            held_since: 0,
            unsettled: !moved.tx_idle,
            resend_mark: None,
            linger: None,
            probed: None,
            told_left: false,
            paused: false,
            switches: Switches::new(),
        });
        s.rx.get().write(RxEnd {
            switch: rx,
            ring: Consumer::new(NonNull::from(rx_words), rx_ring, offer.rx_bytes as usize, 0),
            unsettled: true,
            carrier_asked: 0,
            pending_error: 0,
            read_until: 0,
            shut_at: None,
            asked_back: false,
            resets: false,
            paused: false,
            never: false,
            frozen_at: 0,
        });
    }
    s.tx_words.store((tx_words as *const RingWords).cast_mut(), Release);
    s.rx_words.store((rx_words as *const RingWords).cast_mut(), Release);
    socket::lead_calls(&s.tx_fast, &s.tx_words);
    socket::lead_calls(&s.rx_fast, &s.rx_words);
    // (In this order: who has found the channel has its slot.)
    s.slot.store(offer.slot, Release);
    s.channel.store(offer.channel.cast_mut(), Release);
    park::begin(s, channel, slot);
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
    s.path().every_child_can_go_on(s.forks.load(Relaxed)) && !s.has(flag::CALLED_BACK)
}

/// It is a candidate as it was at first, here and at the peer.
#[cold]
fn put_off_offer(s: &'static Socket, channel: &'static Channel, why: Reason) {
    // SAFETY: as in `attach`.
    let slot = unsafe { (*s.offer.get()).slot } as usize;
    channel.far.demote(slot, why, true);
    // Before its calls can ask for another offer.
    agent::of(s.path()).released(channel, slot);
    s.set_reason(if why == Reason::KernelPolicy { Reason::Negotiating } else { why });
    s.calls.store(0, Relaxed);
    s.lower(flag::NOTED);
    s.offered.begin();
    s.state.happens(Event::Begun);
}

#[cold]
fn refuse_offer(s: &'static Socket, channel: &'static Channel, why: Reason) {
    // SAFETY: as in `attach`.
    let slot = unsafe { (*s.offer.get()).slot } as usize;
    s.set_reason(why);
    s.count_no_more();
    s.state.happens(Event::Refused);
    if channel.far.is_shared() {
        socket::say_stays(channel, slot);
        channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    }
    agent::of(s.path()).released(channel, slot);
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
