//! What is sent on a connection that has filled a small ring, until it has left that for its
//! carrier (`docs/design/rings.md`): in memory that no device reads, and so need not be locked.

use crate::{process, sys};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use netacc_ring::{Producer, RingWords};

/// Before the bytes: words that nobody reads.
const HEAD: usize = 4096;
const _: () = assert!(size_of::<RingWords>() <= HEAD);

/// Null, or the memory: `HEAD` bytes and those of a ring. Changed under the sending half's lock, or
/// when nobody uses the socket.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    at: AtomicPtr<u8>,
    bytes: AtomicUsize,
    /// The process that has mapped it: sockets are shared with forked children.
    owner: AtomicU32,
}

#[cfg(test)]
std::thread_local! {
    pub(crate) static NO_MEMORY: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

impl Spill {
    /// The producer goes on here, with room as in a ring of that size, and its ring gets nothing
    /// more. False: there is no memory. Async-signal-safe.
    pub(crate) fn take_over(&self, ring: &mut Producer, size: usize) -> bool {
        let bytes = HEAD.saturating_add(size);
        #[cfg(test)]
        if NO_MEMORY.get() {
            return false;
        }
        self.free();
        let Some(at) = NonNull::new(sys::map_own(bytes)) else { return false };
        // SAFETY: mapped just now, zeroed, for this producer alone; unmapped when the connection
        // has left its ring, and so has no producer (`free`).
        let moved = unsafe { ring.move_to(at.cast(), at.add(HEAD), size) };
        if moved {
            self.bytes.store(bytes, Relaxed);
            self.owner.store(process::id(), Relaxed);
            self.at.store(at.as_ptr(), Release);
        } else {
            // SAFETY: nobody has it.
            unsafe { sys::unmap(at.as_ptr(), bytes) };
        }
        moved
    }

    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.at.load(Relaxed).is_null()
    }

    /// The connection has left its ring: its producer is used no more. (A child has none of it.)
    pub(crate) fn free(&self) {
        if self.at.load(Relaxed).is_null() || self.owner.load(Relaxed) != process::id() {
            return;
        }
        let at = self.at.swap(null_mut(), AcqRel);
        if !at.is_null() {
            // SAFETY: mapped here by `take_over`; the swap gives it to one caller, and whoever
            // finds the producer by its lock finds another state than State::Attached.
            unsafe { sys::unmap(at, self.bytes.load(Relaxed)) };
        }
    }
}
