//! Where the rings of a connection are, for `netacc capture`, which looks on from outside.

use crate::socket::{Socket, flag};
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{ACCEPTED, BY_DEVICE, CONNECTED, ConnRecord, Rings};

/// Shows where the rings are, to who looks on from outside. `life`: 0, or [`LATER_LIFE`]. While it
/// is attached, or is being.
///
/// [`LATER_LIFE`]: netacc_control::stats::LATER_LIFE
pub(super) fn show_rings(s: &Socket, r: &ConnRecord, life: u64) {
    // SAFETY: written before the socket was attached, read-only afterwards.
    let offer = unsafe { *s.offer.get() };
    let made = match s.flags.load(Relaxed) {
        // Its beginning was another process's, or program's.
        f if f & (flag::HEIR | flag::PASSED | flag::EXECED) != 0 => 0,
        f if f & flag::CONNECTOR != 0 => CONNECTED,
        _ => ACCEPTED,
    };
    r.set_rings(&Rings {
        sizes: [offer.tx_bytes, offer.rx_bytes],
        words_at: [&s.tx_words, &s.rx_words].map(|words| words.load(Relaxed) as u64),
        bytes_at: [offer.tx_ring as u64, offer.rx_ring as u64],
        lock_at: core::ptr::from_ref(&s.tx_lock) as u64,
        origin: made | life | if s.path().is_shared() { 0 } else { BY_DEVICE },
    });
}
