//! A send finds no room in the ring.
//!
//! It has asked the receiver for room (`sending.rs` `next_on_ring`). A call that may wait polls,
//! then sleeps until half of the ring is free (`Next::Room`, `waits.rs` `block`). Any other ends
//! with EAGAIN, and readiness asks again (`wait::send_room_or_ask`). The receiver sees the request
//! when it has taken bytes (`take.rs` `received_fast`), and answers it (`ends.rs` `notify_space`).
//! Over RDMA there is no request: the receiver sends its head (`Channel::consumed`), and whoever
//! polls at the sender tells it (`queues.rs` `tell`). A small ring, which only RDMA has, is left
//! for a whole one.

use super::ends::TxHeld;
use crate::channel::Side;
use crate::socket::Socket;
use crate::trace::Event;
use crate::wait;
use core::sync::atomic::Ordering::Relaxed;
use netacc_control::stats::Reason;

/// Makes the next room news for edge-triggered items, and traces that there was none.
pub(super) fn note(s: &Socket) {
    wait::on_full(s);
    s.trace_once(Event::Full, Side::Send as u64);
}

/// A small ring is full. It holds no stream up: the connection goes back to its carrier, and
/// its calls ask for whole rings (`docs/design/rings.md`). What is sent before it is there goes
/// into memory of its own, as much as into a whole ring. False: there is none.
#[cold]
pub(super) fn outgrow(s: &Socket, h: &mut TxHeld<'_>) -> bool {
    s.fills.store(true, Relaxed);
    let spills = s.spill.take_over(&mut h.end.ring, s.whole_ring_bytes());
    s.room.store(h.end.ring.size() as u32, Relaxed);
    h.channel.far.demote(h.slot, Reason::Negotiating, true);
    // Who has just looked for room may have found none.
    wait::prod(s);
    spills
}
