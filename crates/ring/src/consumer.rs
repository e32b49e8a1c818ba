//! The receiving end of a ring: what is there, copying out, giving room back. The protocol and its
//! proofs are in [`ring`](crate::ring).
//!
//! Invariants: `published <= head <= tail_seen <= published + size`, in numbers that wrap.
//! `tail_seen` never goes back and never passes what the producer has room for, whatever the
//! producer writes.

use core::ptr::NonNull;
use core::sync::atomic::compiler_fence;

use crate::ring::{Buffer, CopyError, PeerCorrupt, RingWords};
use crate::sync::Ordering;

/// The receiving end of a ring.
///
/// Read (once or several times), [`publish`](Self::publish), then ask
/// [`take_space_request`](Self::take_space_request) whether the producer wants a call. Its fields
/// are the truth; its words in shared memory are only ever written from them.
#[derive(Debug)]
#[repr(C)]
pub struct Consumer {
    words: NonNull<RingWords>,
    buffer: Buffer,
    /// Stream position of the ring's position 0.
    start: u64,
    /// Ring position of the next byte to read.
    head: u64,
    /// `head` as the producer may know it. `published <= head`.
    published: u64,
    /// The producer's tail when last loaded. `head <= tail_seen`, `tail_seen - published <= size`.
    tail_seen: u64,
    /// The producer's base that belongs to `tail_seen`; any value.
    base: u64,
    /// The last published head that a fence has separated from a test of `space_wanted`.
    fenced: u64,
}

// SAFETY: the shared words are atomics, and the bytes of the ring that a consumer reads belong to
// it alone until it publishes its head.
unsafe impl Send for Consumer {}

impl Consumer {
    /// The receiving end of a new ring. The ring's first byte is stream position `start`.
    ///
    /// # Safety
    /// - `words` points to a [`RingWords`], `data` to `size` bytes, both valid for as long as this
    ///   is used; `size` is a power of two.
    /// - Nobody else reads the ring at this end, and the process makes no reference to its bytes.
    #[must_use]
    pub const unsafe fn new(
        words: NonNull<RingWords>,
        data: NonNull<u8>,
        size: usize,
        start: u64,
    ) -> Self {
        // SAFETY: the caller's promise is the buffer's.
        let buffer = unsafe { Buffer::new(data, size) };
        Self { words, buffer, start, head: 0, published: 0, tail_seen: 0, base: 0, fenced: 0 }
    }

    #[inline]
    fn words(&self) -> &RingWords {
        // SAFETY: valid while self is used (new); all fields are atomics, so the peer may write
        // them.
        unsafe { self.words.as_ref() }
    }

    #[inline]
    fn available_seen(&self) -> u64 {
        self.tail_seen.wrapping_sub(self.head)
    }

    /// Loads the producer's tail, and the base when the tail has moved: 1 or 2 loads of one cache
    /// line.
    #[inline]
    fn look(&mut self) -> Result<(), PeerCorrupt> {
        let words = self.words();
        let tail = words.tail.load(Ordering::Acquire);
        if tail == self.tail_seen {
            return Ok(());
        }
        let base = words.base.load(Ordering::Relaxed);
        // An honest tail lies in tail_seen..=published + size; both bounds in one comparison that
        // wraps.
        let room = self.buffer.size().wrapping_sub(self.tail_seen.wrapping_sub(self.published));
        if tail.wrapping_sub(self.tail_seen) > room {
            return Err(PeerCorrupt);
        }
        self.base = base;
        // Killed here, the next look repeats all this; the other way round it would find a tail
        // without its base.
        compiler_fence(Ordering::SeqCst);
        self.tail_seen = tail;
        Ok(())
    }

    /// How many bytes can be read. Loads the producer's tail only when the last one left none.
    #[inline]
    pub fn available(&mut self) -> Result<usize, PeerCorrupt> {
        if self.available_seen() == 0 {
            self.look()?;
        }
        Ok(self.available_seen() as usize)
    }

    /// How many bytes can be read, by a fresh look.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, PeerCorrupt> {
        self.look()?;
        Ok(self.available_seen() as usize)
    }

    /// How many bytes can be read, by a fresh look when the last one left fewer than `want`.
    #[inline]
    fn available_at_least(&mut self, want: u64) -> Result<u64, PeerCorrupt> {
        if self.available_seen() < want {
            self.look()?;
        }
        Ok(self.available_seen())
    }

    /// The producer is gone: what it held back counts as published. How many bytes can be read.
    pub fn take_held(&mut self) -> Result<usize, PeerCorrupt> {
        self.look()?;
        let held = self.words().held.load(Ordering::Acquire);
        let more = held.wrapping_sub(self.tail_seen);
        let used = self.tail_seen.wrapping_sub(self.published);
        // In the other half of all numbers: nothing was held back after the last publication.
        if more != 0 && more <= u64::MAX >> 1 {
            if more > self.buffer.size().wrapping_sub(used) {
                return Err(PeerCorrupt);
            }
            self.base = self.words().base.load(Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            self.tail_seen = held;
            // For every later look, and for others who ask whether something is there.
            self.words().tail.store(held, Ordering::Release);
        }
        Ok(self.available_seen() as usize)
    }

    /// Is anything there to read? 1 load, no check: a hint to go and look.
    #[inline]
    #[must_use]
    pub fn peek_published(&self) -> bool {
        self.words().tail.load(Ordering::Acquire) != self.head
    }

    /// Copies up to `len` bytes out of the ring and returns how many. Fewer than `len` means that
    /// the producer had published no more. The producer gets the room after
    /// [`publish`](Self::publish).
    ///
    /// # Safety
    /// `dst` is as [`copy`](crate::copy::copy) wants it and lies outside the ring.
    #[inline]
    pub unsafe fn read(&mut self, dst: *mut u8, len: usize) -> Result<usize, CopyError> {
        // Budget: 1 acquire load.
        let n = self.available_at_least(len as u64)?.min(len as u64);
        // SAFETY: n <= available <= size, dst is good for n <= len bytes (caller).
        unsafe { self.buffer.copy_out(self.head, self.base, dst, n as usize)? };
        self.head = self.head.wrapping_add(n);
        Ok(n as usize)
    }

    /// Copies up to `len` bytes, from `offset` bytes after the next one on, and consumes nothing.
    ///
    /// # Safety
    /// `dst` is as [`copy`](crate::copy::copy) wants it and lies outside the ring.
    pub unsafe fn peek(
        &mut self,
        offset: usize,
        dst: *mut u8,
        len: usize,
    ) -> Result<usize, CopyError> {
        let available = self.available_at_least((offset as u64).saturating_add(len as u64))?;
        let n = available.saturating_sub(offset as u64).min(len as u64) as usize;
        // SAFETY: n <= available <= size, dst is good for n <= len bytes (caller).
        unsafe { self.buffer.copy_out(self.head.wrapping_add(offset as u64), self.base, dst, n)? };
        Ok(n)
    }

    /// Puts the last `n` bytes back that were read and not given back (never others, whatever `n`):
    /// they are the next to be read.
    pub fn put_back(&mut self, n: usize) {
        let read = self.head.wrapping_sub(self.published);
        self.head = self.head.wrapping_sub((n as u64).min(read));
    }

    /// Consumes up to `len` bytes without copying them, and returns how many.
    pub fn skip(&mut self, len: usize) -> Result<usize, PeerCorrupt> {
        let n = self.available_at_least(len as u64)?.min(len as u64);
        self.head = self.head.wrapping_add(n);
        Ok(n as usize)
    }

    /// Gives the room of everything consumed back to the producer: 1 release store.
    ///
    /// Returns the new head as it stands in the words, for those who look at it without this:
    /// nobody reads it back from there.
    #[inline]
    #[must_use = "keep it where the peer cannot write"]
    pub fn publish(&mut self) -> u64 {
        // Private first: a tail that answers the store below must be in range even if we are killed
        // in between.
        self.published = self.head;
        self.words().head.store(self.head, Ordering::Release);
        self.head
    }

    /// To be asked after each [`publish`](Self::publish): does the producer wait for room, and is
    /// half of the ring free by now? Then the caller wakes it. Costs two comparisons, and a fence
    /// per half a ring of bytes: `seldom` is called then, for who has to look from time to time.
    #[inline]
    pub fn take_space_request(&mut self, seldom: impl FnOnce()) -> bool {
        let half = self.buffer.size() >> 1;
        if self.tail_seen.wrapping_sub(self.fenced) <= half
            || self.tail_seen.wrapping_sub(self.published) > half
        {
            return false;
        }
        self.take_space_request_slow(seldom)
    }

    #[cold]
    #[inline(never)]
    fn take_space_request_slow(&mut self, seldom: impl FnOnce()) -> bool {
        seldom();
        let wanted = self.words().take_space_request(|| true);
        self.fenced = self.published;
        wanted
    }

    /// Stream position of the next byte to read.
    #[inline]
    #[must_use]
    pub fn head(&self) -> u64 {
        self.start.wrapping_add(self.head)
    }

    /// The size of the ring.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.buffer.size() as usize
    }

    /// From here on the next byte to read is stream position `pos`: the direction left this ring
    /// and comes back to it.
    #[inline]
    pub fn continue_at(&mut self, pos: u64) {
        self.start = pos.wrapping_sub(self.head);
    }

    /// This end in the state `[head, published, tail_seen, base, fenced]`.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn in_state(self, state: [u64; 5]) -> Self {
        let [head, published, tail_seen, base, fenced] = state;
        Self { head, published, tail_seen, base, fenced, ..self }
    }

    /// As [`in_state`](Self::in_state) takes it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn state(&self) -> [u64; 5] {
        [self.head, self.published, self.tail_seen, self.base, self.fenced]
    }
}
