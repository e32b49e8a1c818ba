//! The sending end of a ring: room, copying in, publishing. The protocol and its proofs are in
//! [`ring`](crate::ring).
//!
//! Invariants: `head_seen <= published <= tail <= head_seen + size`, in numbers that wrap.
//! `head_seen` never goes back and never passes `published`, whatever the consumer writes.

use core::ptr::NonNull;
use core::sync::atomic::compiler_fence;

use crate::ring::{Buffer, CopyError, PeerCorrupt, RingWords};
use crate::sync::{Ordering, fence_after_rmw};

/// Small writes look at the consumer's head once per so many bytes, not at each write. One page: a
/// connection whose messages are answered one by one touches no more of its ring than this. Under
/// loom at each write, so that small cases move the base.
const LOOK_EVERY: u64 = if cfg!(loom) { 1 } else { 4096 };

/// The sending end of a ring.
///
/// Write (once or several times), [`publish`](Self::publish), then tell the consumer
/// ([`ReadySet::announce`](crate::ReadySet::announce)). Its fields are the truth; its words in
/// shared memory are only ever written from them.
#[derive(Debug)]
#[repr(C)]
pub struct Producer {
    words: NonNull<RingWords>,
    /// Where base and tail are published: `words`, until it has moved.
    told: NonNull<RingWords>,
    buffer: Buffer,
    /// Stream position of the ring's position 0.
    start: u64,
    /// Ring position of the next byte to write.
    tail: u64,
    /// `tail` as the consumer may know it. `published <= tail`.
    published: u64,
    /// Ring position of the byte at index 0 of the buffer.
    base: u64,
    /// The consumer's head when last looked at. `head_seen <= published`, `tail - head_seen <=
    /// size`.
    head_seen: u64,
    /// Bytes to write before the next look at the consumer's head.
    budget: u64,
}

// SAFETY: the shared words are atomics, and the bytes of the ring that a producer writes belong to
// it alone until it publishes them.
unsafe impl Send for Producer {}

impl Producer {
    /// The sending end of a new ring. The ring's first byte is stream position `start`.
    ///
    /// # Safety
    /// - `words` points to a [`RingWords`], `data` to `size` bytes, both valid for as long as this
    ///   is used; `size` is a power of two.
    /// - Nobody else writes the ring from this end, and the process makes no reference to its
    ///   bytes.
    #[must_use]
    pub const unsafe fn new(
        words: NonNull<RingWords>,
        data: NonNull<u8>,
        size: usize,
        start: u64,
    ) -> Self {
        // SAFETY: the caller's promise is the buffer's.
        let buffer = unsafe { Buffer::new(data, size) };
        Self {
            words,
            told: words,
            buffer,
            start,
            tail: 0,
            published: 0,
            base: 0,
            head_seen: 0,
            budget: 0,
        }
    }

    #[inline]
    fn words(&self) -> &RingWords {
        // SAFETY: valid while self is used (new); all fields are atomics, so the peer may write
        // them.
        unsafe { self.words.as_ref() }
    }

    /// Free bytes by the last look at the consumer's head; never more than there are.
    #[inline]
    fn free_seen(&self) -> u64 {
        self.buffer.size().wrapping_sub(self.tail.wrapping_sub(self.head_seen))
    }

    /// Looks at the consumer's head: 1 acquire load. Moves the base when the ring turns out to be
    /// empty.
    #[inline]
    fn look(&mut self) -> Result<(), PeerCorrupt> {
        let head = self.words().head.load(Ordering::Acquire);
        // An honest head lies in head_seen..=published; both bounds in one comparison that wraps.
        if self.published.wrapping_sub(head) > self.published.wrapping_sub(self.head_seen) {
            return Err(PeerCorrupt);
        }
        self.head_seen = head;
        if head == self.tail && self.base != self.tail {
            self.move_base();
        }
        self.budget = self.free_seen().min(LOOK_EVERY);
        Ok(())
    }

    /// The ring is empty: it begins at the start of the buffer again.
    #[inline]
    fn move_base(&mut self) {
        #[cfg(not(loom))]
        {
            // SAFETY: as `words` (move_to).
            let words = unsafe { self.told.as_ref() };
            words.base_before.store(self.base, Ordering::Relaxed);
        }
        self.base = self.tail;
    }

    /// How many bytes can be written. Looks at the consumer's head only when the last look leaves
    /// none.
    #[inline]
    pub fn free(&mut self) -> Result<usize, PeerCorrupt> {
        self.free_at_least(1)
    }

    /// How many bytes can be written. Looks at the consumer's head only when the last look leaves
    /// less than `want`; the result may still be less.
    #[inline]
    pub fn free_at_least(&mut self, want: usize) -> Result<usize, PeerCorrupt> {
        if self.free_seen() < want as u64 {
            self.look()?;
        }
        Ok(self.free_seen() as usize)
    }

    /// Copies as much of `src` into the ring as fits, and returns how much that was. The consumer
    /// sees it after [`publish`](Self::publish).
    ///
    /// # Safety
    /// `src` is as [`copy`](crate::copy::copy) wants it and lies outside the ring.
    #[inline]
    pub unsafe fn write(&mut self, src: *const u8, len: usize) -> Result<usize, CopyError> {
        // Budget: no load of a shared word per small write, 1 acquire load per LOOK_EVERY bytes.
        let want = len as u64;
        if self.budget < want {
            self.look()?;
        }
        let n = want.min(self.free_seen());
        self.budget = self.budget.saturating_sub(n);
        // SAFETY: n <= free <= size, src is good for n <= len bytes (caller).
        unsafe { self.buffer.copy_in(self.tail, self.base, src, n as usize)? };
        // Killed here, the bytes were never written: whoever goes on with this end must not see
        // them counted before they are there.
        compiler_fence(Ordering::SeqCst);
        self.tail = self.tail.wrapping_add(n);
        Ok(n as usize)
    }

    /// Takes the last `n` bytes back that were written and not published (never others, whatever
    /// `n`).
    pub fn take_back(&mut self, n: usize) {
        self.tail = self.tail.wrapping_sub((n as u64).min(self.unpublished() as u64));
    }

    /// Makes everything written visible to the consumer: 1 plain and 1 release store, to one cache
    /// line.
    ///
    /// Whoever goes on with this end after the death of another process calls it once, whatever
    /// [`unpublished`](Self::unpublished) says.
    ///
    /// Returns the new tail as it stands in the words, for those who look at it without this:
    /// nobody reads it back from there.
    #[inline]
    #[must_use = "keep it where the peer cannot write"]
    pub fn publish(&mut self) -> u64 {
        // Private first: a head that answers the store below must be in range even if we are killed
        // in between.
        self.published = self.tail;
        // SAFETY: as `words` (move_to).
        let words = unsafe { self.told.as_ref() };
        words.base.store(self.base, Ordering::Relaxed);
        words.tail.store(self.tail, Ordering::Release);
        self.tail
    }

    /// What is written and not published waits for more. Should this process be killed meanwhile,
    /// the consumer finds it by [`Consumer::take_held`](crate::Consumer::take_held).
    pub fn hold(&mut self) {
        // SAFETY: as `words` (move_to).
        let words = unsafe { self.told.as_ref() };
        words.base.store(self.base, Ordering::Relaxed);
        words.held.store(self.tail, Ordering::Release);
    }

    /// Stream position of the next byte to write.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.start.wrapping_add(self.tail)
    }

    /// Bytes written and not yet published.
    #[inline]
    #[must_use]
    pub fn unpublished(&self) -> usize {
        self.tail.wrapping_sub(self.published) as usize
    }

    /// Bytes written that the consumer has not consumed, by a fresh look.
    #[inline]
    pub fn in_flight(&mut self) -> Result<usize, PeerCorrupt> {
        self.look()?;
        Ok(self.tail.wrapping_sub(self.head_seen) as usize)
    }

    /// The size of the ring.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.buffer.size() as usize
    }

    /// Asks the consumer for a call when half of the ring is free, and looks once more.
    ///
    /// `Ok(false)`: less than `want` (and less than half of the ring) is free and the consumer will
    /// be told so by [`Consumer::take_space_request`](crate::Consumer::take_space_request): sleep.
    /// `Ok(true)`: there is room, the request is withdrawn.
    pub fn want_space(&mut self, want: usize) -> Result<bool, PeerCorrupt> {
        self.words().space_wanted.swap(1, Ordering::Relaxed);
        fence_after_rmw();
        self.look()?;
        // The consumer calls only when the used part falls to half of the ring: never wait for more
        // than that.
        let enough = (want as u64).min(self.buffer.size() >> 1);
        let roomy = self.free_seen() >= enough;
        if roomy {
            self.words().space_wanted.store(0, Ordering::Relaxed);
        }
        Ok(roomy)
    }

    /// Copies bytes that are still in the ring, from stream position `from` on, and returns how
    /// many: fewer than `len` when fewer were written, 0 when `from` is not (or no longer) in the
    /// ring.
    ///
    /// # Safety
    /// `dst` is as [`copy`](crate::copy::copy) wants it and lies outside the ring.
    pub unsafe fn copy_out(&self, from: u64, dst: *mut u8, len: usize) -> usize {
        let pos = from.wrapping_sub(self.start);
        let held = self.tail.wrapping_sub(pos);
        if held > self.tail.wrapping_sub(self.head_seen) {
            return 0;
        }
        let n = (len as u64).min(held) as usize;
        // SAFETY: n <= held <= size, dst is good for n <= len bytes (caller).
        match unsafe { self.buffer.copy_out(pos, self.base, dst, n) } {
            Ok(()) => n,
            Err(_) => 0,
        }
    }

    /// From here on the next byte to write is stream position `pos`: the direction left this ring
    /// and comes back to it. Bytes written before can no longer be named by their stream position.
    #[inline]
    pub fn continue_at(&mut self, pos: u64) {
        self.start = pos.wrapping_sub(self.tail);
    }

    /// Goes on in a larger buffer, which the consumer does not see: it is told of nothing more, but
    /// for `own`. What it has been told of stays where it is, and is copied as far as it is not
    /// consumed. False: it cannot be copied, and nothing has changed.
    ///
    /// # Safety
    /// - `own` points to a [`RingWords`], `data` to `size` bytes, both valid for as long as this is
    ///   used, and this end's alone; `size` is a power of two.
    pub unsafe fn move_to(
        &mut self,
        own: NonNull<RingWords>,
        data: NonNull<u8>,
        size: usize,
    ) -> bool {
        let (from, held) = (self.head_seen, self.tail.wrapping_sub(self.head_seen));
        if (size as u64) < self.buffer.size() {
            return false;
        }
        // SAFETY: held <= the old size <= the new one, and the buffers are apart.
        let copied = unsafe { self.buffer.copy_out(from, self.base, data.as_ptr(), held as usize) };
        if copied.is_err() {
            return false;
        }
        // SAFETY: the caller's promise.
        self.buffer = unsafe { Buffer::new(data, size) };
        (self.told, self.base, self.budget) = (own, from, 0);
        true
    }

    /// This end in the state `[tail, published, base, head_seen]`.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn in_state(self, state: [u64; 4]) -> Self {
        let [tail, published, base, head_seen] = state;
        Self { tail, published, base, head_seen, ..self }
    }

    /// As [`in_state`](Self::in_state) takes it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn state(&self) -> [u64; 4] {
        [self.tail, self.published, self.base, self.head_seen]
    }
}
