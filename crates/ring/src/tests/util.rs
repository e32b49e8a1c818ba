//! A ring to test with, and its ends by slices.

use std::vec;
use std::vec::Vec;

use crate::{Consumer, CopyError, Producer};

#[cfg(not(loom))]
pub(super) use ring::Ring;

#[cfg(not(loom))]
mod ring {
    use core::ptr::NonNull;
    use core::sync::atomic::Ordering::Relaxed;
    use std::boxed::Box;
    use std::vec;

    use crate::{Consumer, Producer, RingWords};

    /// A ring in memory of its own.
    pub(in crate::tests) struct Ring {
        words: NonNull<RingWords>,
        data: NonNull<[u8]>,
    }

    // SAFETY: the words are atomics; the bytes are reached through the ends only.
    unsafe impl Sync for Ring {}
    // SAFETY: it owns its memory.
    unsafe impl Send for Ring {}

    impl Ring {
        pub(in crate::tests) fn new(size: usize) -> Self {
            let words = NonNull::from(Box::leak(Box::default()));
            let data = NonNull::from(Box::leak(vec![0u8; size].into_boxed_slice()));
            Self { words, data }
        }

        pub(in crate::tests) fn words(&self) -> &RingWords {
            // SAFETY: leaked in new, freed in drop.
            unsafe { self.words.as_ref() }
        }

        /// For an end that is not made here.
        pub(in crate::tests) fn memory(&self) -> (NonNull<RingWords>, NonNull<u8>, usize) {
            (self.words, self.data.cast(), self.data.len())
        }

        /// The two ends; to be made once.
        pub(in crate::tests) fn ends(&self, start: u64) -> (Producer, Consumer) {
            self.ends_after(start, 0)
        }

        /// The two ends, as if `past` bytes had gone through.
        pub(in crate::tests) fn ends_after(&self, start: u64, past: u64) -> (Producer, Consumer) {
            let (words, data, size) = (self.words, self.data.cast(), self.data.len());
            for word in [&self.words().tail, &self.words().base, &self.words().head] {
                word.store(past, Relaxed);
            }
            let start = start.wrapping_sub(past);
            // SAFETY: the memory lives as long as the ring, which the tests keep longer than the
            // ends.
            let ends = unsafe {
                (Producer::new(words, data, size, start), Consumer::new(words, data, size, start))
            };
            (ends.0.in_state([past; 4]), ends.1.in_state([past; 5]))
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            // SAFETY: both come from Box::leak in new.
            unsafe {
                drop(Box::from_raw(self.words.as_ptr()));
                drop(Box::from_raw(self.data.as_ptr()));
            }
        }
    }
}

pub(super) fn write(p: &mut Producer, bytes: &[u8]) -> Result<usize, CopyError> {
    // SAFETY: a slice is readable for its length and is not the ring.
    unsafe { p.write(bytes.as_ptr(), bytes.len()) }
}

pub(super) fn read(c: &mut Consumer, len: usize) -> Result<Vec<u8>, CopyError> {
    let mut bytes = vec![0; len];
    // SAFETY: a slice is writable for its length and is not the ring.
    let n = unsafe { c.read(bytes.as_mut_ptr(), len) }?;
    bytes.truncate(n);
    Ok(bytes)
}

pub(super) fn peek(c: &mut Consumer, offset: usize, len: usize) -> Result<Vec<u8>, CopyError> {
    let mut bytes = vec![0; len];
    // SAFETY: a slice is writable for its length and is not the ring.
    let n = unsafe { c.peek(offset, bytes.as_mut_ptr(), len) }?;
    bytes.truncate(n);
    Ok(bytes)
}

#[cfg(not(loom))]
pub(super) fn copy_out(p: &Producer, from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: a slice is writable for its length and is not the ring.
    let n = unsafe { p.copy_out(from, bytes.as_mut_ptr(), len) };
    bytes.truncate(n);
    bytes
}
