//! Which connections have news, and whether their receiver sleeps.
//!
//! What this is not: a doorbell. The caller rings and sleeps, and it looks at what it is told
//! about: a set bit is a reason to look, nothing more. One thread at a time drains a set and sleeps
//! on it.
//!
//! # Why no news is lost
//!
//! Bits are cleared by [`ReadySet::drain`] alone. "Fence" is a full (`SeqCst`) fence; of two fences
//! one comes first, and what stands before it is seen by what stands after the other.
//!
//! 1. *A sender that finds its word bit set* sets nothing, and a drain that has already begun may
//!    have taken the bit. Sender: publish, fence, test the bit. Receiver: take the bit, fence, look
//!    at the slot. If the test did not see the taking, the look sees the publication. Without the
//!    sender's fence, the store of the tail is still in its store buffer when the bit is tested,
//!    and the look comes too early: wake-ups get lost under load.
//! 2. *Word bit first, summary bit second* for the sender, the other way round for the receiver,
//!    with acquire and release at each step: who takes a summary bit sees the word bit that it
//!    stands for. Who sets or sees a word bit after it was last taken also sees that the summary
//!    bit was taken before, and sets it again. Therefore the summary is tested even when the word
//!    bit was set: its setter may have been killed in between.
//! 3. *Sleeping*: receiver: set `sleeping`, fence, look at the summary (or at the ring). Sender:
//!    set the bits (or publish), fence, test `sleeping`. One of them sees the other. The fence of
//!    step 1 comes before the bits and does not do; but a locked instruction is one on x86-64, so
//!    the second fence costs nothing there.
//!
//! Only death defeats this: a process that is killed between publishing and announcing, or between
//! being told to wake somebody and doing so, leaves news (or room, see
//! [`Consumer::take_space_request`](crate::Consumer::take_space_request)) that nobody was told of.
//! Who notices the death of a process of the peer's looks at all their rings once.
//!
//! # In which order
//!
//! Bits have no order. A sender that finds news in the set leaves a *stamp* with its slot before it
//! sets the bit, and the receiver sorts what one drain brings. News that comes to an empty set
//! needs none: its old stamp is older than all that are made while it stands there. So a connection
//! alone, with its request and its reply, pays two loads and no stamp. Where one receiver has
//! several sets it asks for all stamps, and for such as can be compared. They are hints: whatever
//! stands there changes the order alone.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_rmw};

/// The number of slots of a [`ReadySet`].
pub const SLOTS_MAX: usize = 4096;
const WORDS: usize = SLOTS_MAX / 64;

/// Which slots have news, for one waiting place of the receiver, in memory that is shared with one
/// peer.
///
/// All zero is the valid initial state: nothing ready, receiver awake. The peer may write anything
/// at any time; the worst it gets is a look at slots that have no news.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ReadySet {
    /// Bit `w`: word `w` may have bits.
    summary: AtomicU64,
    /// Not 0: the receiver sleeps or is about to.
    sleeping: AtomicU32,
    /// Of no use; kept for the layout that both ends have.
    _free: AtomicU32,
    /// Not 0: the receiver wants every stamp.
    stamps: AtomicU64,
    /// A bit per slot; the first 5 words (320 slots) are on the line of `summary`.
    words: [AtomicU64; WORDS],
    /// When the receiver last looked for news elsewhere, by its clock.
    looked: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(
    core::mem::offset_of!(ReadySet, words) == 24
        && core::mem::offset_of!(ReadySet, looked) == 536
        && size_of::<ReadySet>() == 576
);

impl Default for ReadySet {
    fn default() -> Self {
        Self {
            summary: AtomicU64::new(0),
            sleeping: AtomicU32::new(0),
            _free: AtomicU32::new(0),
            stamps: AtomicU64::new(0),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
            looked: AtomicU64::new(0),
        }
    }
}

impl ReadySet {
    /// Sender, after publishing: `slot` has news. True: the receiver sleeps, and this caller must
    /// ring its doorbell.
    #[inline]
    #[must_use = "true: ring the doorbell"]
    pub fn announce(&self, slot: u16) -> bool {
        fence(Ordering::SeqCst);
        self.announce_fenced(slot)
    }

    /// [`announce`](Self::announce) for a sender that has put a `SeqCst` fence after its
    /// publication itself (because it had to look somewhere for the set to announce to).
    #[inline]
    #[must_use = "true: ring the doorbell"]
    pub fn announce_fenced(&self, slot: u16) -> bool {
        self.announce_in_order(slot, |_| ())
    }

    /// [`announce_fenced`](Self::announce_fenced), with the news' place in time: `stamp` is called
    /// before the bit is set if the order may matter, and what it stores is seen by whoever takes
    /// the bit. Its argument: the receiver has asked for all stamps, and so compares them with
    /// those of other sets.
    #[inline]
    #[must_use = "true: ring the doorbell"]
    pub fn announce_in_order(&self, slot: u16, stamp: impl FnOnce(bool)) -> bool {
        if self.mark(slot, stamp) {
            fence_after_rmw();
        }
        self.elect()
    }

    /// The part of [`announce_in_order`](Self::announce_in_order) that wakes nobody, for what only
    /// matters together with news that is announced behind it. True: it was not there before.
    #[inline]
    pub fn mark(&self, slot: u16, stamp: impl FnOnce(bool)) -> bool {
        debug_assert!((slot as usize) < SLOTS_MAX);
        let bit = 1u64 << (slot & 63);
        let w = usize::from(slot >> 6) % WORDS;
        let Some(word) = self.words.get(w) else {
            return false;
        };
        // Budget: 3 loads when the bits are set, 2 loads and 2 locked instructions more when they
        // are not.
        let mut news = false;
        let others = word.load(Ordering::Acquire);
        if others & bit == 0 {
            let all = self.stamps.load(Ordering::Relaxed);
            if others | self.summary.load(Ordering::Relaxed) | all != 0 {
                stamp(all != 0);
            }
            word.fetch_or(bit, Ordering::AcqRel);
            news = true;
        }
        let summary_bit = 1u64 << w;
        if self.summary.load(Ordering::Relaxed) & summary_bit == 0 {
            self.summary.fetch_or(summary_bit, Ordering::AcqRel);
            news = true;
        }
        news
    }

    /// Sender, after publishing, when the receiver watches the ring itself. True: as for
    /// [`announce`](Self::announce).
    #[inline]
    #[must_use = "true: ring the doorbell"]
    pub fn wake_only(&self) -> bool {
        fence(Ordering::SeqCst);
        self.elect()
    }

    /// [`wake_only`](Self::wake_only) for a sender that has put a `SeqCst` fence after its
    /// publication itself.
    #[inline]
    #[must_use = "true: ring the doorbell"]
    pub fn wake_fenced(&self) -> bool {
        self.elect()
    }

    /// Does the receiver sleep, and is this caller the one to wake it?
    #[inline]
    fn elect(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0 && self.sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// Receiver: takes every set bit and calls `f` with its slot; `f` (or what comes after) must
    /// look at the slot. Returns the number of calls, at most [`SLOTS_MAX`].
    #[inline]
    pub fn drain(&self, mut f: impl FnMut(u16)) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut summary = self.summary.swap(0, Ordering::AcqRel);
        let mut count = 0usize;
        while summary != 0 {
            let w = summary.trailing_zeros();
            summary &= summary.wrapping_sub(1);
            let Some(word) = self.words.get(w as usize) else {
                break;
            };
            let mut bits = word.swap(0, Ordering::AcqRel);
            fence_after_rmw();
            while bits != 0 {
                let slot = (w << 6) | bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                count = count.wrapping_add(1);
                f(slot as u16);
            }
        }
        count
    }

    /// Receiver: from now on every announcement is stamped, or only those that find news in the
    /// set.
    pub fn want_stamps(&self, all: bool) {
        self.stamps.store(u64::from(all), Ordering::Relaxed);
    }

    /// Nothing to drain? 1 load.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.summary.load(Ordering::Relaxed) == 0
    }

    /// Receiver: from here on a sender signals the doorbell. The caller looks at everything once
    /// more, then sleeps, or calls [`cancel_sleep`](Self::cancel_sleep).
    #[inline]
    pub fn prepare_sleep(&self) {
        self.sleeping.swap(1, Ordering::Relaxed);
        fence_after_rmw();
    }

    /// Receiver: awake again. True: a sender has been told to wake this one; the signal comes, or
    /// has come.
    #[inline]
    pub fn cancel_sleep(&self) -> bool {
        self.sleeping.swap(0, Ordering::Relaxed) == 0
    }

    /// Receiver: it begins to look for news that does not come by this set, and takes all of it.
    #[inline]
    pub fn set_looked(&self, now: u64) {
        self.looked.store(now, Ordering::Relaxed);
    }

    /// The last [`set_looked`](Self::set_looked): a hint.
    #[inline]
    #[must_use]
    pub fn looked(&self) -> u64 {
        self.looked.load(Ordering::Relaxed)
    }

    /// What a sender has done that is killed half-way through [`announce`](Self::announce).
    #[cfg(all(test, loom))]
    pub(crate) fn set_word_bit_only(&self, slot: usize) {
        self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
    }

    /// A hostile peer: writes `value` to any of the words.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble(&self, word: usize, value: u64) {
        match word % (WORDS + 2) {
            0 => self.summary.store(value, Ordering::Relaxed),
            1 => self.sleeping.store(value as u32, Ordering::Relaxed),
            w => self.words[w - 2].store(value, Ordering::Relaxed),
        }
    }
}
