//! How the machine of `proto::switchover::Leave` sees the two halves of a connection, and has a
//! step of theirs carried out.

use super::super::EAGAIN;
use super::super::end_in_reset::{For, end_in_reset};
use super::super::ends::{
    RxHeld, TxHeld, carrier_unread, demote_tx, load_announce, publish_announce, publish_held,
    show_path, store_ack,
};
use super::super::send_again::send_again;
use crate::channel::announce;
use crate::log::debug_log;
use crate::socket::Socket;
use crate::{stats, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicU32, fence};
use netacc_control::stats::Counter;
use netacc_proto::switchover::{
    Ack, Arrival, Coming, Corrupt, Delivery, Path as Way, Peer, RxView, TxDue, TxState, TxView,
};

/// What has come again is looked at with these limits ([`Arrival::look`]).
pub(super) struct Limits {
    pub(super) patience_ns: u64,
    pub(super) stall_ns: u64,
    /// Nothing more comes when the carrier has ended. (Between hosts its end is looked at
    /// elsewhere.)
    pub(super) hears_end: bool,
}

/// What has come of a way back so far. Nothing of it counts twice: the peer's words can say this
/// and then that, for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Headway {
    /// One bit for each state that a half was in, and for what was true of it.
    seen: u32,
    /// How far bytes have gone again, at most.
    again_from: u64,
}

impl Headway {
    /// Whether this look has found something new.
    pub(super) fn is_made(&mut self, tx: &TxView, rx: &RxView, again_from: u64) -> bool {
        let facts = [tx.open, tx.asked, rx.unread, !rx.unread];
        let facts = facts.iter().fold(0, |bits, fact| bits << 1 | u32::from(*fact));
        let now = 1 << rx.state as u32
            | 1 << (11 + tx.state as u32)
            | 1 << (16 + rx.coming as u32)
            | facts << 19;
        // (Before and behind that it says nothing of what goes again.)
        let again_from = if tx.state == TxState::Resending { again_from } else { 0 };
        let is_new = now & !self.seen != 0 || again_from > self.again_from;
        self.seen |= now;
        self.again_from = self.again_from.max(again_from);
        is_new
    }
}

/// Nobody sends on the carrier any more.
pub(super) fn has_hung_up(fd: c_int) -> bool {
    sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// The receiving half behind all that its peer has said so far.
pub(super) fn look_at_rx(
    s: &Socket,
    h: &mut RxHeld<'_>,
    fd: c_int,
    arrival: &mut Arrival,
    limits: &Limits,
) -> Result<RxView, Corrupt> {
    if h.end.switch.on_announce(load_announce(h.words))? {
        h.settled(s);
    }
    store_ack(h);
    let due = h.end.switch.outstanding();
    // Before the look at what has come.
    let ended = due > 0 && limits.hears_end && has_hung_up(fd);
    let there = if due > 0 { carrier_unread(fd) } else { None };
    let coming = there.map_or(Coming::All, |there| {
        let counts = (there as u64, due);
        match arrival.look(sys::now_ns(), counts, limits.patience_ns, limits.stall_ns) {
            Coming::Waiting if ended => Coming::Short,
            coming => coming,
        }
    });
    let unread = h.unread().is_ok_and(|n| n > 0);
    Ok(RxView { state: h.end.switch.state(), coming, unread, peer: Peer::Lives })
}

/// `Action::Freeze`.
pub(in crate::io) fn freeze(h: &mut RxHeld<'_>) {
    // (Who asks again whether a leave is due freezes again: that is no new beginning.)
    if h.end.switch.ack().armed {
        h.end.frozen_at = sys::now_ns();
    }
    h.end.switch.freeze();
    store_ack(h);
    fence(SeqCst);
}

/// The sending half is never promoted any more.
pub(super) fn pin(h: &mut TxHeld<'_>) {
    h.end.never = true;
    h.end.switch.pin();
}

/// The sending half. `seen_epoch`: between hosts, our last announcement that the peer has.
pub(super) fn look_at_tx(h: &TxHeld<'_>, seen_epoch: Option<u32>) -> TxView {
    match seen_epoch {
        Some(seen) => TxView::of(&h.end.switch, Delivery::Lossy, seen),
        None => TxView::of(&h.end.switch, Delivery::Reliable, h.end.switch.epoch()),
    }
}

/// Carries out what is due on the sending half. Whether the carrier has room; `Err`: the connection
/// is over.
pub(super) fn carry_out(
    s: &Socket,
    h: &mut TxHeld<'_>,
    fd: c_int,
    due: TxDue,
    ack: Ack,
) -> Result<bool, ()> {
    match due {
        TxDue::Demote => demote_tx(s, h, false),
        TxDue::PullBack => pull_back(s, h, fd, ack),
        TxDue::SendAgain => match send_again(s, h, fd) {
            0 => {}
            EAGAIN => return Ok(false),
            _ => return Err(()),
        },
        TxDue::Await(_) | TxDue::Done | TxDue::Broken => {}
    }
    Ok(true)
}

fn pull_back(s: &Socket, h: &mut TxHeld<'_>, fd: c_int, ack: Ack) {
    publish_held(h);
    let Ok(Some(over)) = h.end.switch.pull_back(ack) else { return };
    debug_log!("fd {fd}: bytes {:?} go again over the carrier", over.resend);
    if !over.resend.is_empty() {
        // Until all is sent again the end of this process must not look like the end of the stream.
        end_in_reset(h, fd, For::Sending);
    }
    let within_the_host = h.channel.far.is_shared();
    if within_the_host {
        // What comes again is the kernel's: nothing lies in the ring. (The head is that of the last
        // bytes that were taken there.)
        s.published.tail.store(h.words.head.load(Acquire), Relaxed);
    } else if !over.resend.is_empty() {
        stats::count(Counter::PulledBack);
    }
    publish_announce(h, over.announce);
    show_path(s, true, Way::Carrier, h.end.switch.offset());
    if within_the_host {
        sys::futex_wake(low_epoch(h.words), i32::MAX, false);
        h.notify();
    }
}

/// What a receiver within the host waits on for its sender's announcement.
pub(super) fn low_epoch(words: &netacc_ring::RingWords) -> &AtomicU32 {
    // SAFETY: the low half of the epoch word, which lives in the mapping as `words` does; futexes
    // on it are shared with the peer.
    unsafe { AtomicU32::from_ptr(words.producer_user[announce::EPOCH].as_ptr().cast()) }
}
