//! What the thread "netacc-utcp" does to a connection's ends when its carrier leaves the kernel,
//! and when it comes back (`docs/design/utcp.md`). Both ends are here, and so is the far end:
//! nobody has to be asked, and both directions change paths at one moment, under both locks.

use super::end_in_reset::{For, end_in_reset};
use super::ends::{
    RxHeld, TxHeld, hold_rx, hold_tx, load_announce, publish_announce, publish_held, show_path,
};
use super::reset::peer_has_ended;
use crate::channel::{announce, quiet};
use crate::socket::{Socket, flag};
use crate::trace::Event;
use crate::utcp_device::{Seat, UtcpDevice};
use crate::{process, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::{Ack, Announce, Delivery, Path as Way, Rx, RxState, Tx, TxState};

/// What came of the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    Out,
    /// Not at this moment: later.
    NotNow,
    Never(Reason),
}

/// What came of the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The kernel has it, and all that it needs but these bytes, the last of those that were sent.
    Back { left: u64 },
    /// The kernel has no way to the peer: it is out as before.
    NoWay,
    /// The kernel would not have it; the peer was reset.
    Lost,
    /// Somebody else has taken it apart.
    Gone,
}

const ODD: u32 = flag::SHUT_WR
    | flag::SHUT_RD
    | flag::FIN_DUE
    | flag::FIN_LATER
    | flag::CORKED
    | flag::CORRUPT
    | flag::BROKEN_OFF
    | flag::RESET
    | flag::ORPHAN
    | flag::STDIO
    | flag::CONTESTED;

/// Takes the carrier of an attached connection out of the kernel, by `take`, and puts both
/// directions on the rings.
pub(crate) fn take_out_of_kernel(
    s: &'static Socket,
    g: u16,
    device: &UtcpDevice,
    take: impl FnOnce(c_int) -> Result<(), Went>,
) -> Went {
    let (Ok(tx), Ok(mut rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return Went::NotNow };
    let fd = s.fd.load(Acquire);
    if tx.end.unsettled || rx.end.unsettled || rx.end.switch.state() != RxState::Armed {
        return Went::NotNow;
    }
    if let Some(why) = unfit(s, &tx, &rx, fd) {
        return Went::Never(why);
    }
    // Both ways, on copies: what follows cannot fail.
    let Some((sends, says)) = promoted(tx.end.switch) else { return Went::Never(Reason::Internal) };
    let Some((receives, hears)) = followed(rx.end.switch) else {
        return Went::Never(Reason::Internal);
    };
    let seat = device.seat(tx.slot);
    // (From here on nobody heeds what the kernel says of the socket.)
    seat.moves.fetch_add(1, SeqCst);
    if let Err(why) = take(fd) {
        seat.moves.fetch_add(1, SeqCst);
        return why;
    }
    tx.end.switch = sends;
    tx.end.ring.continue_at(sends.offset());
    store_far_ack(&tx, Ack { epoch: sends.epoch(), armed: true, ..Ack::default() });
    seat.seen_epoch.store(sends.epoch(), SeqCst);
    publish_announce(&tx, says);
    show_path(s, true, Way::Fast, sends.offset());
    store_far_announce(&rx, hears);
    rx.end.switch = receives;
    rx.end.ring.continue_at(receives.offset());
    rx.settled(s);
    // What was unread in the kernel is in the ring before anybody looks there: a wait may have said
    // that it is to be read.
    device.kick(tx.slot);
    drop((tx, rx));
    wait::prod(s);
    Went::Out
}

/// Why a connection may not leave the kernel, as far as its ends know.
fn unfit(s: &Socket, tx: &TxHeld<'_>, rx: &RxHeld<'_>, fd: c_int) -> Option<Reason> {
    let odd = fd < 0
        || s.has(ODD)
        || tx.end.never
        || tx.end.switch.state() != TxState::Carrier
        || tx.end.linger.is_some()
        || rx.end.pending_error != 0
        || s.kept_error.load(Relaxed) != 0;
    match () {
        _ if !s.path().every_child_can_go_on(s.forks.load(Relaxed)) => {
            Some(Reason::InheritedByFork)
        }
        _ if process::is_ending() || (fd >= 0 && peer_has_ended(s, fd)) => {
            Some(Reason::Disconnected)
        }
        _ if odd => Some(Reason::UtcpUnfit),
        _ => None,
    }
}

/// The sender on the ring from here on.
fn promoted(mut switch: Tx) -> Option<(Tx, Announce)> {
    let ack = Ack { epoch: switch.epoch(), armed: true, frozen: false, consumed: switch.offset() };
    let says = switch.promote(ack, Delivery::Lossy).ok()?;
    (switch.confirm(ack) == Ok(None)).then_some((switch, says))
}

/// The receiver on the ring from here on: the far end sends there from where it has come to.
fn followed(mut switch: Rx) -> Option<(Rx, Announce)> {
    let at = switch.offset();
    let epoch = switch.epoch().wrapping_add(1);
    let says = Announce { epoch, fast_from: at, carrier_from: 0, resend_to: 0 };
    let heard = switch.on_announce(says) == Ok(true);
    (heard && switch.state() == RxState::Fast).then_some((switch, says))
}

/// What the far end has seen of what we send.
fn store_far_ack(h: &TxHeld<'_>, ack: Ack) {
    h.words.quiet[quiet::CONSUMED].store(ack.consumed, Relaxed);
    h.words.quiet[quiet::ACK].store(ack.control(), Release);
}

/// What the far end says of what we receive.
fn store_far_announce(h: &RxHeld<'_>, a: Announce) {
    let w = h.words;
    w.producer_user[announce::FAST_FROM].store(a.fast_from, Relaxed);
    w.producer_user[announce::CARRIER_FROM].store(a.carrier_from, Relaxed);
    w.producer_user[announce::RESEND_TO].store(a.resend_to, Relaxed);
    w.producer_user[announce::EPOCH].store(u64::from(a.epoch), Release);
}

/// Gives the carrier back to the kernel, by `give`, and puts both directions there: what is unread
/// in the ring is unread there, and what of the other ring the kernel does not have goes there
/// again. [`super::Departure`] does the rest.
pub(crate) fn give_back_to_kernel(
    s: &'static Socket,
    g: u16,
    (seat, why): (&Seat, Reason),
    give: impl FnOnce() -> Came,
) -> Came {
    let (Ok(mut tx), Ok(mut rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return Came::Gone };
    publish_held(&mut tx);
    let came = give();
    let fd = s.fd.load(Acquire);
    match came {
        Came::Back { left } => {
            receive_there(s, &mut rx);
            if !send_there(s, &mut tx, fd, left) {
                s.raise(flag::BROKEN_OFF | flag::CARRIER_SPOKE);
                s.trace_once(Event::BrokenOff, 0);
            }
            seat.seen_epoch.store(tx.end.switch.epoch(), SeqCst);
            s.set_reason(why);
            if s.has(flag::SHUT_RD) && fd >= 0 {
                // What the socket had of that went with its old connection.
                let _ = sys::shutdown(fd, libc::SHUT_RD);
            }
        }
        // (Its socket is closed; should it have been so before, it has no error to tell.)
        Came::Lost => {
            s.raise(flag::BROKEN_OFF | flag::RESET | flag::CARRIER_SPOKE);
            s.trace_once(Event::BrokenOff, 0);
        }
        Came::NoWay | Came::Gone => return came,
    }
    seat.moves.fetch_add(1, SeqCst);
    drop((tx, rx));
    wait::prod(s);
    came
}

/// The receiver goes on on the carrier, exactly where it is.
fn receive_there(s: &Socket, rx: &mut RxHeld<'_>) {
    rx.end.switch.freeze();
    let at = rx.end.switch.offset();
    let before = load_announce(rx.words);
    let epoch = rx.end.switch.epoch().wrapping_add(1);
    store_far_announce(rx, Announce { epoch, carrier_from: at, resend_to: at, ..before });
    // (A receiver on the ring knows this event.)
    let _ = rx.end.switch.on_announce(load_announce(rx.words));
    // With this the ring is empty.
    rx.settled(s);
}

/// The sender does, but for the last `left` bytes of the ring, which come first. False: these are
/// more than it has.
fn send_there(s: &Socket, tx: &mut TxHeld<'_>, fd: c_int, left: u64) -> bool {
    let switch = &mut tx.end.switch;
    let consumed = switch.offset().wrapping_sub(left);
    let ack = Ack { epoch: switch.epoch(), armed: false, frozen: true, consumed };
    let Ok(Some(over)) = switch.pull_back(ack) else { return false };
    if !over.resend.is_empty() {
        // Until all is sent again the end of this process must not look like the end of the stream.
        end_in_reset(tx, fd, For::Sending);
    }
    let heard = Ack { epoch: over.announce.epoch, armed: false, frozen: false, consumed };
    store_far_ack(tx, heard);
    publish_announce(tx, over.announce);
    show_path(s, true, Way::Carrier, tx.end.switch.offset());
    true
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::path::tests::{A, C, promoted};
    use crate::testing;

    /// The kernel would not have it, or wants more again than there is to be sent again.
    #[test]
    fn what_is_broken_off_on_its_way_back_says_so_in_its_trace() {
        for came in [Came::Lost, Came::Back { left: u64::MAX / 2 }] {
            let mut ends = promoted();
            let s = ends[C].socket;
            let breaks_off = testing::traced(s, Event::BrokenOff, || {
                let (seat, why) = (Seat::default(), Reason::UtcpGivenBack);
                assert_eq!(give_back_to_kernel(s, s.generation16(), (&seat, why), || came), came);
            });
            assert!(s.has(flag::BROKEN_OFF), "{came:?}");
            assert_eq!(breaks_off, 1, "{came:?}");
            [C, A].into_iter().for_each(|side| ends[side].close());
        }
    }
}
