//! Where a connector announces that it takes a carrier, and whether it may: words of listeners.

use super::{Channel, LISTENERS, PLACES};
use core::sync::atomic::AtomicU64;

/// How the word of a carrier's lives says where to announce that it is taken: the waiting place + 1
/// (0: nowhere), and which of its process's listeners it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedAt(pub(crate) u16);

impl AnnouncedAt {
    const LISTENER: u32 = 9;
    const PLACE: u16 = (1 << Self::LISTENER) - 1;

    pub(crate) fn new(place: usize, listener: usize) -> Self {
        Self((place as u16 + 1) & Self::PLACE | (listener as u16) << Self::LISTENER)
    }
    fn place(self) -> Option<usize> {
        usize::from(self.0 & Self::PLACE).checked_sub(1)
    }
    pub(crate) fn listener(self) -> usize {
        usize::from(self.0 >> Self::LISTENER)
    }
}

const _: () = assert!(PLACES < 1 << AnnouncedAt::LISTENER && LISTENERS <= 1 << 7);

impl Channel {
    /// What this side, or the peer, says of a listener.
    #[expect(clippy::indexing_slicing, reason = "masked: LISTENERS is a power of two")]
    pub(crate) fn awaits(&self, listener: usize, peer: bool) -> &AtomicU64 {
        &self.side_mem(self.side ^ usize::from(peer)).awaits[listener & (LISTENERS - 1)]
    }

    /// Tells the peer's listener that the carrier of `slot` is taken.
    pub(crate) fn announce_taken(&self, at: AnnouncedAt, slot: usize) {
        if let Some(place) = at.place().filter(|p| *p < PLACES)
            && self.peer_place(place).announce(slot as u16)
        {
            self.wake_peer(place);
        }
    }
}
