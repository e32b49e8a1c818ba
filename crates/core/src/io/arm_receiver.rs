//! A receiver on the carrier is armed: from here on its peer may send into the ring.

use super::ends::{RxHeld, store_ack};
use crate::config;
use crate::socket::{self, Socket};
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// False: it waits for the peer's answer, or for bytes that come again, or is never armed again.
pub(super) fn arm(h: &mut RxHeld<'_>) -> bool {
    let armed = !h.end.never && h.end.switch.arm();
    if armed {
        store_ack(h);
    }
    armed
}

/// As `candidate::settle_tx`: arms it, if no call of before the attachment is in the kernel, and if
/// what was counted is what the kernel has. Not while a thread waits for the carrier's bytes alone,
/// either, in poll or select.
pub(super) fn settle_rx(s: &Socket, h: &mut RxHeld<'_>) {
    let under_way = || s.rx_inflight.load(SeqCst) != 0 || s.pollers.load(SeqCst) as u32 != 0;
    if !h.end.unsettled || h.end.paused || under_way() {
        return;
    }
    h.end.unsettled = false;
    if !socket::counts_agree(s, s.fd.load(Acquire), None, Some(h.end.switch.offset())) {
        h.end.never = true;
        s.set_reason(Reason::UncountedBytes);
        return;
    }
    arm(h);
}

/// Whether the acceleration of a connection that has paused is on again. (A forked child has a
/// switch of its own.)
pub(super) fn is_on(s: &Socket) -> bool {
    config::get().accelerate_by_default && !s.is_inherited()
}
