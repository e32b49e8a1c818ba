//! How the other end of a channel between hosts is reached: for each slot, on which queue pair the
//! connection is, and what of its words the peer has seen.
//!
//! Between hosts a channel is this process's alone: nobody else maps it. Its words are the mirror
//! that `docs/design/rdma.md` speaks of: the engine (`netacc_rdma`) writes `tail` and `head` of the
//! other end, the thread "netacc-rdma" writes its announcements and acknowledgements.
//!
//! The [`Lanes`] of a slot is used under the lock of one of the connection's ends, and taken away
//! under both.

use crate::rdma_thread;
use crate::slots::{SLOTS, parting};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use netacc_control::stats::Reason;
use netacc_rdma::Kicked;

/// The fabric: verbs. In this crate's own tests it is the one in memory (`remote/tests.rs`).
#[cfg(not(test))]
pub(crate) type Net = netacc_verbs::Verbs;
#[cfg(test)]
pub(crate) type Net = netacc_verbs::memory::Memory;

pub(crate) type Lanes = netacc_rdma::Lanes<Net>;

/// One connection.
#[repr(C, align(64))]
pub(crate) struct WireSlot {
    /// Null: no pair, or none any more.
    pub(crate) lanes: AtomicPtr<Lanes>,
    /// Its place on the pair.
    pub(crate) lane: AtomicU32,
    /// The number of the completion queue that tells of it, plus one; 0: it has had none.
    pub(crate) queue: AtomicU32,
    /// The epoch of our announcement that stands in the peer's mirror.
    pub(crate) seen_epoch: AtomicU32,
    /// The control word of our acknowledgement that stands there.
    pub(crate) seen_ack: AtomicU64,
    /// [`parting`]: both directions are to go back to the carrier, or have gone.
    pub(crate) leave: AtomicU32,
}

/// Something was posted, or is found lost: then the owner of the pair ends it. False: something has
/// to wait for room.
#[inline]
fn posted(what: Kicked) -> bool {
    if matches!(what, Kicked::Lost(_)) {
        rdma_thread::tell_of_pairs();
    }
    rdma_thread::watch_posted();
    what != Kicked::Full
}

/// What is said of a channel's slots.
#[repr(C)]
pub(crate) struct Wire {
    /// Some slot's words have changed.
    pub(crate) dirty: AtomicBool,
    pub(crate) dirty_slots: [AtomicU64; SLOTS / 64],
    slots: [WireSlot; SLOTS],
}

impl Wire {
    #[expect(clippy::indexing_slicing, reason = "masked: SLOTS is a power of two")]
    pub(crate) fn slot(&self, slot: usize) -> &WireSlot {
        &self.slots[slot & (SLOTS - 1)]
    }

    /// The words of a slot have changed. True: somebody has to be told.
    pub(crate) fn mark(&self, slot: usize) -> bool {
        if let Some(word) = self.dirty_slots.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), SeqCst);
        }
        !self.dirty.swap(true, SeqCst)
    }

    /// Posts what was published on a slot. The caller holds an end of the connection. False: some
    /// of it waits until somebody polls.
    pub(crate) fn kick(&self, slot: usize) -> bool {
        let at = self.slot(slot);
        // SAFETY: null, or a `Lanes` that is not taken away while an end of the connection is held.
        let lanes = unsafe { at.lanes.load(Acquire).as_ref() };
        lanes.is_none_or(|lanes| posted(lanes.kick(at.lane.load(Relaxed) as u16)))
    }

    /// Gives back the room of what was consumed, up to `head`, when it is time for that. The caller
    /// holds the receiving end.
    #[inline]
    pub(crate) fn consumed(&self, slot: usize, head: u64) {
        let at = self.slot(slot);
        // SAFETY: as in `kick`.
        if let Some(lanes) = unsafe { at.lanes.load(Acquire).as_ref() } {
            let _ = posted(lanes.consumed(at.lane.load(Relaxed) as u16, head));
        }
    }

    /// An announcement, an acknowledgement or a request of ours has changed: the peer is told.
    #[inline]
    pub(crate) fn words_changed(&self, slot: usize) {
        if self.mark(slot) {
            rdma_thread::wake();
        }
    }

    /// The peer of a slot is gone with what it had.
    pub(crate) fn is_gone(&self, slot: usize) -> bool {
        self.slot(slot).leave.load(SeqCst) & parting::GONE != 0
    }

    /// Both directions of a slot are to go back to the carrier. `again`: until a better path is
    /// there.
    pub(crate) fn demote(&self, slot: usize, why: Reason, again: bool) {
        let at = self.slot(slot);
        rdma_thread::count_leaving();
        let wanted = (why as u32) << parting::REASON
            | parting::WANTED
            | parting::COUNTED
            | if again { parting::AGAIN } else { 0 };
        // Who asks first says why; who wants it for good has the last word.
        let first = at.leave.compare_exchange(0, wanted, SeqCst, Relaxed).is_ok();
        if !first {
            rdma_thread::uncount_leaving();
        }
        if !first && !again {
            let for_good = |old: u32| {
                (old & parting::AGAIN != 0).then_some(
                    (old & 0xffff & !parting::AGAIN)
                        | parting::WANTED
                        | (why as u32) << parting::REASON,
                )
            };
            let _ = at.leave.fetch_update(SeqCst, Relaxed, for_good);
        }
        self.words_changed(slot);
        rdma_thread::wake();
    }
}
