//! The words and the bytes that the two ends of a ring share.

use core::ptr::NonNull;

use crate::sync::{self, AtomicU32, AtomicU64};

/// A word that the peer writes held a value that no honest peer writes. The ring is of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCorrupt;

/// The words of one direction of a connection that both processes share.
///
/// All zero is the valid initial state. The peer may write anything at any time. The `*_user` and `*quiet` words
/// are the caller's; the ring does not look at them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RingWords {
    // Line 0: the producer writes it at each send.
    /// Bytes published since the ring began.
    pub tail: AtomicU64,
    /// The position (counted as `tail`) that lives at index 0 of the buffer.
    pub base: AtomicU64,
    /// The caller's, written by the producer's side.
    pub producer_user: [AtomicU64; 4],
    _line0: [AtomicU64; 2],

    // Line 1: the consumer writes it at each read.
    /// Bytes consumed and given back since the ring began.
    pub head: AtomicU64,
    /// The caller's, written by the consumer's side.
    pub consumer_user: [AtomicU64; 4],
    _line1: [AtomicU64; 3],

    // Line 2: the consumer writes it rarely, the producer reads it at each send: it stays shared in both caches.
    /// The caller's, written rarely by the consumer's side.
    pub quiet: [AtomicU64; 4],
    _line2: [AtomicU64; 4],

    // Line 3: the producer writes it rarely.
    /// Not 0: the producer waits for room.
    pub space_wanted: AtomicU32,
    _line3a: AtomicU32,
    /// The caller's, written rarely by the producer's side.
    pub producer_quiet: [AtomicU64; 4],
    _line3b: [AtomicU64; 3],
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
    /// `data` is valid for `size` bytes for as long as the buffer is used; `size` is a power of two.
    pub(crate) const unsafe fn new(data: NonNull<u8>, size: usize) -> Self {
        debug_assert!(size.is_power_of_two());
        Self {
            data,
            size: size as u64,
        }
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
    /// `len <= size`, `src` is readable for `len` bytes and lies outside the ring.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, pos: u64, base: u64, src: *const u8, len: usize) {
        let (index, to_end) = self.place(pos, base);
        let first = len.min(to_end);
        // SAFETY: index < size (masked) and index + first <= size.
        unsafe { sync::copy_in(self.data.as_ptr(), index, src, first) };
        if first < len {
            let rest = len.wrapping_sub(first);
            // SAFETY: rest < len <= size.
            unsafe { sync::copy_in(self.data.as_ptr(), 0, src.add(first), rest) };
        }
    }

    /// Copies the bytes from position `pos` on to `dst`.
    ///
    /// # Safety
    /// `len <= size`, `dst` is writable for `len` bytes and lies outside the ring.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, pos: u64, base: u64, dst: *mut u8, len: usize) {
        let (index, to_end) = self.place(pos, base);
        let first = len.min(to_end);
        // SAFETY: index < size (masked) and index + first <= size.
        unsafe { sync::copy_out(self.data.as_ptr(), index, dst, first) };
        if first < len {
            let rest = len.wrapping_sub(first);
            // SAFETY: rest < len <= size.
            unsafe { sync::copy_out(self.data.as_ptr(), 0, dst.add(first), rest) };
        }
    }
}
