//! Each call that moves bytes is recorded (`NACC_TRACE=2`, `docs/design/trace.md`).
//!
//! While none is, that must cost a call nothing. So calls that are recorded take another way: the
//! fast one finds no words of the ring (`tx_fast`, `rx_fast`), as it may of a connection that is
//! being changed. Anybody may take these away; who gives them back holds the end's lock.

use super::Socket;
use crate::config;
use crate::trace::{self, Begun};
use core::sync::atomic::{AtomicPtr, Ordering::*, fence};
use netacc_ring::RingWords;

impl Socket {
    /// From here on its calls do not take the fast way. (Those that have begun may end it.)
    pub(crate) fn divert_calls(&self) {
        for fast in [&self.tx_fast, &self.rx_fast] {
            fast.store(core::ptr::null_mut(), Relaxed);
        }
    }
    /// A call begins that sends on it, if that is recorded.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_begins(&self) -> Option<Begun> {
        self.ring().map(|ring| trace::send_begins(ring, self.record()))
    }
    /// That call has sent so much, from that byte of the stream on; or nothing, or it has failed.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_sent(&self, begun: Option<Begun>, offset: u64, sent: isize) {
        let (Some(ring), Some(begun)) = (self.known_ring(), begun) else { return };
        if sent > 0 {
            trace::sent(ring, self.record(), &begun, (offset, sent as u64));
        } else {
            trace::sent_nothing(ring, &begun);
        }
    }
    /// A call begins that receives on it, if that is recorded.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_begins(&self) {
        if let (Some(ring), Some(moved)) = (self.known_ring(), self.record()) {
            trace::receive_begins(ring, moved);
        }
    }
    /// A call has received so much, from that byte of the stream on.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_received(&self, offset: u64, bytes: u64) {
        if let Some(ring) = self.ring() {
            trace::received(ring, self.record(), offset, bytes);
        }
    }
}

/// Calls of one end take the fast way by these words, unless each is recorded. The caller holds its
/// lock.
pub(crate) fn lead_calls(fast: &AtomicPtr<RingWords>, words: &AtomicPtr<RingWords>) {
    if config::follows_calls() {
        return fast.store(core::ptr::null_mut(), Relaxed);
    }
    fast.store(words.load(Relaxed), Release);
    // Who turns it on says so, and takes them away then: one of the two sees the other.
    fence(SeqCst);
    if config::follows_calls() {
        fast.store(core::ptr::null_mut(), Relaxed);
    }
}
