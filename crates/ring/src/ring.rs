//! The words and the bytes that the two ends of a ring share, and why the ends may trust each
//! other's timing but not each other's values.
//!
//! What this module is not: the moves of the two ends; they are in `producer` and `consumer`.
//!
//! # Positions
//!
//! A word in shared memory counts the bytes since the ring began, from 0 and wrapping, so that
//! zeroed memory is an empty ring. Stream positions differ from these by a constant that is private
//! to each end. Between the ends always `head <= tail <= head + size`; the bytes of `head..tail`
//! belong to the consumer, the others to the producer. `tail` is stored with release after the
//! bytes, `head` with release after they were copied out.
//!
//! # The base
//!
//! The byte at position `pos` lives at index `(pos - base) & (size - 1)`. When the producer finds
//! the ring empty it moves the base to its tail: traffic that is answered message by message stays
//! at the start of the buffer and touches little memory. It looks for that only once per page of
//! small messages, because a look costs the transfer of the consumer's cache line (measured: at
//! each message, a 64-byte round trip takes 590 ns instead of 450 ns).
//!
//! The consumer needs the base that the producer had when it published a tail, no older and no
//! newer one. It loads `base` after an acquire load of a `tail` that it has not seen before, and
//! keeps it until the next such tail.
//!
//! - *No older one*: the producer stores `base` before it stores `tail` with release.
//! - *No newer one*: the producer moves its base, at position T, only after an acquire load of
//!   `head` that gave T. The consumer stores T into `head` with release, when it has consumed
//!   everything before T and therefore after it loaded the base for every byte before T. So each of
//!   these loads happens before the move.
//! - *Bytes at hand do not move*: consumer bytes that are peeked at, or read but not given back,
//!   keep `head` below the tail, and the base where it is.
//!
//! A base from a hostile producer is only ever used masked: the consumer reads wrong bytes, of the
//! same ring.
//!
//! Who is neither end, and follows a ring from outside (`netacc capture`), may see one base and
//! then another, and has to know whether there was a third one between them: so the producer says
//! which base it has left (`base_before`), when it leaves it.
//!
//! # Room
//!
//! A producer without room sets `space_wanted`, fences, and looks at `head` once more; it sleeps
//! only while more than half of the ring is used. The consumer, to be symmetric, would have to
//! fence between each store of `head` and a test of `space_wanted`. It need not, because it
//! remembers F, the last `head` that it has published *with* a fence and a test (`fenced`), and the
//! tail T that it knows:
//!
//! - The test at F did not see a request that was made later, so the fences order the producer's
//!   look after F: it found a head of F or more. If it sleeps with the tail T, more than half was
//!   used: T - F > size / 2.
//! - So a test is needed only at a head where T - F > size / 2 (somebody may sleep) and T - head <=
//!   size / 2 (it is worth waking): a fence per half a ring of bytes, none for short messages most
//!   of the time.
//! - T may be old. But a sleeping producer has stopped: the consumer learns its tail when it reads
//!   on, with at least one byte left to consume, and then the rule holds for it. A consumer that
//!   reads everything wakes every sleeper.
//!
//! # Bytes that are held back
//!
//! A producer that has more to come need not publish at each write. What is written and not
//! published is lost with a process that is killed; the kernel would have sent it. So the producer
//! says in `held` how far it has come, after `base`, which the consumer does not load before it
//! sees a new tail. When the consumer knows that its producer is gone it takes the one for the
//! other, with the check that every tail gets.
//!
//! # Killed processes
//!
//! The ends are plain data (`repr(C)`), so that a process and its forked children can keep one end
//! in memory that they share, under an [`EndLock`](crate::EndLock). An owner that is killed at any
//! instruction leaves the end as after one of its whole steps: fields are changed in an order that
//! makes the last store count, with compiler fences where it matters. What a call was about to hand
//! over is lost with its caller, as in a killed system call.

use core::ptr::NonNull;

use crate::copy::BadAddress;
use crate::sync::{self, AtomicU32, AtomicU64};

/// A word that the peer writes held a value that no honest peer writes. The ring is of no further
/// use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCorrupt;

/// Why no bytes were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyError {
    /// See [`PeerCorrupt`].
    PeerCorrupt,
    /// The buffer that the caller gave is bad. The ring is as before.
    BadAddress,
}

impl From<PeerCorrupt> for CopyError {
    fn from(_: PeerCorrupt) -> Self {
        Self::PeerCorrupt
    }
}

impl From<BadAddress> for CopyError {
    fn from(_: BadAddress) -> Self {
        Self::BadAddress
    }
}

/// The words of one direction of a connection that both processes share.
///
/// All zero is the valid initial state. The peer may write anything at any time. The `*_user` and
/// `*quiet` words are the caller's; the ring does not look at them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RingWords {
    // Line 0: the producer writes it at each send.
    /// Bytes published since the ring began.
    pub tail: AtomicU64,
    /// The position (counted as `tail`) that lives at index 0 of the buffer.
    pub base: AtomicU64,
    /// The caller's, written by the producer's side.
    pub producer_user: [AtomicU64; 5],
    /// The base before the one that the producer goes by, which is `base` or, where it has moved it
    /// and published nothing since, none yet. For who looks on from outside: no end reads it.
    pub base_before: AtomicU64,

    // Line 1: the consumer writes it at each read.
    /// Bytes consumed and given back since the ring began.
    pub head: AtomicU64,
    /// Not used; kept for the layout.
    pub consumer_user: [AtomicU64; 4],
    _line1: [AtomicU64; 3],

    // Line 2: the consumer writes it rarely, the producer reads it at each send: it stays shared in
    // both caches.
    /// The caller's, written rarely by the consumer's side.
    pub quiet: [AtomicU64; 4],
    _line2: [AtomicU64; 4],

    // Line 3: the producer writes it rarely.
    /// Not 0: the producer waits for room.
    pub space_wanted: AtomicU32,
    _line3a: AtomicU32,
    /// The caller's, written rarely by the producer's side.
    pub producer_quiet: [AtomicU64; 4],
    /// What `tail` would be if nothing were held back; stale where something was published since.
    pub held: AtomicU64,
    /// The caller's, of what comes behind this connection.
    pub lives: [AtomicU64; 2],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<RingWords>() == 256);
    assert!(core::mem::offset_of!(RingWords, head) == 64);
    assert!(core::mem::offset_of!(RingWords, quiet) == 128);
    assert!(core::mem::offset_of!(RingWords, space_wanted) == 192);
};

/// The bytes of a ring.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Buffer {
    data: NonNull<u8>,
    /// A power of two.
    size: u64,
}

impl Buffer {
    /// # Safety
    /// `data` is valid for `size` bytes for as long as the buffer is used; `size` is a power of
    /// two.
    pub(crate) const unsafe fn new(data: NonNull<u8>, size: usize) -> Self {
        debug_assert!(size.is_power_of_two());
        Self { data, size: size as u64 }
    }

    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The index of a position, and how many bytes come before the end of the buffer.
    #[inline]
    fn place(&self, pos: u64, base: u64) -> (usize, usize) {
        let index = pos.wrapping_sub(base) & self.size.wrapping_sub(1);
        (index as usize, self.size.wrapping_sub(index) as usize)
    }

    /// Copies `src` to position `pos`.
    ///
    /// # Safety
    /// `len <= size`; `src` is as [`copy`](crate::copy::copy) wants it and lies outside the ring.
    #[inline]
    pub(crate) unsafe fn copy_in(
        &self,
        pos: u64,
        base: u64,
        src: *const u8,
        len: usize,
    ) -> Result<(), BadAddress> {
        let (index, to_end) = self.place(pos, base);
        let first = len.min(to_end);
        // SAFETY: index < size (masked) and index + first <= size.
        unsafe { sync::copy_in(self.data.as_ptr(), index, src, first)? };
        if first < len {
            let rest = len.wrapping_sub(first);
            // SAFETY: rest < len <= size.
            unsafe { sync::copy_in(self.data.as_ptr(), 0, src.wrapping_add(first), rest)? };
        }
        Ok(())
    }

    /// Copies the bytes from position `pos` on to `dst`.
    ///
    /// # Safety
    /// `len <= size`; `dst` is as [`copy`](crate::copy::copy) wants it and lies outside the ring.
    #[inline]
    pub(crate) unsafe fn copy_out(
        &self,
        pos: u64,
        base: u64,
        dst: *mut u8,
        len: usize,
    ) -> Result<(), BadAddress> {
        let (index, to_end) = self.place(pos, base);
        let first = len.min(to_end);
        // SAFETY: index < size (masked) and index + first <= size.
        unsafe { sync::copy_out(self.data.as_ptr(), index, dst, first)? };
        if first < len {
            let rest = len.wrapping_sub(first);
            // SAFETY: rest < len <= size.
            unsafe { sync::copy_out(self.data.as_ptr(), 0, dst.wrapping_add(first), rest)? };
        }
        Ok(())
    }
}
