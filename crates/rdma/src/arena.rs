//! Registered memory, and the rings that are cut from it.
//!
//! A [`Pool`] belongs to one peer: the key of an arena reaches all of it, so nobody else's bytes
//! are in there. An arena is one region. Each is twice as large as the one before, from `first` up
//! to `limit`, and holds whole connections: a ring to send from and a ring to receive into, side by
//! side.
//!
//! The caller brings the memory: mapping is its business, and so is [`Pool::next_bytes`] being
//! mappable.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ptr::NonNull;
use netacc_verbs::fabric::{Access, Error, Fabric, Remote};

/// Limits of one ring's bytes.
pub const RING_BYTES_MIN: usize = 4096;
/// As above.
pub const RING_BYTES_MAX: usize = 64 << 20;
/// Bytes of one arena, whatever the limit says.
const ARENA_BYTES_MAX: usize = 1 << 30;
/// Arenas of one pool.
const ARENAS_MAX: usize = 1024;

/// `ENOMEM`, which is all that this crate needs to know of errno.
pub(crate) const ENOMEM: i32 = 12;

/// Memory that is registered.
pub struct Arena<F: Fabric> {
    at: NonNull<u8>,
    bytes: usize,
    pub(crate) region: F::Region,
    pub(crate) remote: Remote,
}

impl<F: Fabric> fmt::Debug for Arena<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

// SAFETY: an address, a length and a region; who may use the memory is ruled by who has which
// rings.
unsafe impl<F: Fabric> Send for Arena<F> where F::Region: Send {}
// SAFETY: as above.
unsafe impl<F: Fabric> Sync for Arena<F> where F::Region: Sync {}

/// The two rings of one end of one connection.
#[derive(Debug)]
pub struct Rings<F: Fabric> {
    pub(crate) arena: Arc<Arena<F>>,
    number: usize,
    /// Of the ring to send from; the other one follows it at once.
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

impl<F: Fabric> Rings<F> {
    /// First byte of the ring to send from.
    #[must_use]
    pub fn outbound(&self) -> NonNull<u8> {
        // SAFETY: both rings lie inside of the arena (`Pool::grow`).
        unsafe { self.arena.at.add(self.offset) }
    }

    /// First byte of the ring to receive into.
    #[must_use]
    pub fn inbound(&self) -> NonNull<u8> {
        // SAFETY: as above.
        unsafe { self.arena.at.add(self.offset + self.size) }
    }

    /// Bytes of each.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.size
    }

    /// Where the peer writes.
    pub(crate) fn inbound_remote(&self) -> Remote {
        let Remote { address, key } = self.arena.remote;
        Remote { address: address.wrapping_add((self.offset + self.size) as u64), key }
    }
}

/// Why a pool does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowError {
    /// No memory for the books.
    NoMemory,
    /// As many arenas as a pool can have.
    Full,
    /// Fewer bytes than two rings.
    TooSmall,
    /// The device or the kernel has no room for so much pinned memory: `RLIMIT_MEMLOCK`, most
    /// likely.
    Locked {
        /// Bytes that were to be registered.
        bytes: usize,
        /// Bytes that this pool has registered already.
        registered: usize,
    },
    /// Refused for another reason.
    Refused(Error),
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory => f.write_str("out of memory"),
            Self::Full => {
                write!(f, "a peer has {ARENAS_MAX} memory regions, the most there can be")
            }
            Self::TooSmall => f.write_str("less memory than two rings"),
            Self::Locked { bytes, registered } => write!(
                f,
                "no room for {bytes} bytes of pinned memory ({registered} bytes are registered for this peer): the limit is \
                 RLIMIT_MEMLOCK (ulimit -l; LimitMEMLOCK= of a systemd unit; memlock in /etc/security/limits.conf)"
            ),
            Self::Refused(e) => write!(f, "the device refuses {:?}: errno {}", e.call, e.errno),
        }
    }
}

/// A peer's rings.
#[derive(Debug)]
pub struct Pool<F: Fabric> {
    ring: usize,
    next: usize,
    limit: usize,
    arenas: Vec<Arc<Arena<F>>>,
    /// Number of the arena, offset in it.
    free: Vec<(usize, usize)>,
    bytes: usize,
}

impl<F: Fabric> Pool<F> {
    /// A pool of rings of at least `ring` bytes (a power of two is made of it). No memory is taken
    /// yet.
    #[must_use]
    pub fn new(ring: usize, first: usize, limit: usize) -> Self {
        let ring = ring.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
        Self { ring, next: first, limit, arenas: Vec::new(), free: Vec::new(), bytes: 0 }
    }

    /// Bytes of one ring.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.ring
    }

    /// Bytes that are registered.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.bytes
    }

    /// Number of regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.arenas.len()
    }

    /// There are rings that nobody uses.
    #[must_use]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Bytes of the next arena.
    #[must_use]
    pub fn next_bytes(&self) -> usize {
        let unit = self.ring * 2;
        let wanted = self.next.clamp(unit, self.limit.clamp(unit, ARENA_BYTES_MAX));
        wanted - wanted % unit
    }

    /// Registers `bytes` (of [`next_bytes`](Self::next_bytes)) zeroed bytes at `at`.
    ///
    /// # Safety
    /// Until [`close`](Self::close) hands the memory back: it stays mapped, nobody else uses it,
    /// and no reference to it is formed.
    pub unsafe fn grow(
        &mut self,
        fabric: &F,
        domain: &F::Domain,
        at: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), GrowError> {
        let (number, unit) = (self.arenas.len(), self.ring * 2);
        let count = bytes / unit;
        if number >= ARENAS_MAX {
            return Err(GrowError::Full);
        }
        if count == 0 {
            return Err(GrowError::TooSmall);
        }
        // Giving back must never need memory.
        let missing = (self.bytes / unit + count).saturating_sub(self.free.len());
        if self.free.try_reserve(missing).is_err() || self.arenas.try_reserve(1).is_err() {
            return Err(GrowError::NoMemory);
        }
        // SAFETY: the caller's promise.
        let region = unsafe { fabric.register(domain, at, bytes, Access::RemoteWrite) };
        let region = region.map_err(|e| match e.errno {
            ENOMEM => GrowError::Locked { bytes, registered: self.bytes },
            _ => GrowError::Refused(e),
        })?;
        let remote = fabric.remote(&region);
        self.arenas.push(Arc::new(Arena { at, bytes, region, remote }));
        self.bytes += bytes;
        self.next = bytes.saturating_mul(2);
        self.free.extend((0..count).rev().map(|i| (number, i * unit)));
        Ok(())
    }

    /// Rings that nobody uses; the latest given back first. `None`: grow.
    pub fn take(&mut self) -> Option<Rings<F>> {
        let (number, offset) = self.free.pop()?;
        let arena = Arc::clone(self.arenas.get(number)?);
        Some(Rings { arena, number, offset, size: self.ring })
    }

    /// Takes rings back, which nobody and no device uses any more. Their bytes stay as they are.
    pub fn give_back(&mut self, rings: Rings<F>) {
        let ours = self.arenas.get(rings.number).is_some_and(|a| Arc::ptr_eq(a, &rings.arena));
        debug_assert!(ours, "rings of another pool");
        // Room was reserved when the arena was made.
        if ours && self.free.len() < self.free.capacity() {
            self.free.push((rings.number, rings.offset));
        }
    }

    /// Takes all registrations back; every ring was given back. Calls `free` with each piece of
    /// memory that is the caller's again. Memory whose region could not be closed stays registered
    /// for ever, and mapped.
    pub fn close(self, fabric: &F, mut free: impl FnMut(NonNull<u8>, usize)) {
        for arena in self.arenas {
            if let Ok(arena) = Arc::try_unwrap(arena)
                && fabric.close_region(arena.region).is_ok()
            {
                free(arena.at, arena.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
