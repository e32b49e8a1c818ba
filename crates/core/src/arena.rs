//! Memory that is handed to a peer: sealed memfds, and the rings that are cut from them.
//!
//! The acceptor of a channel creates all its memory and is the only one that allots it ([`Pool`]);
//! the other side maps what it is handed, after it has made sure that nobody can take it away again
//! ([`map_received`]).
//!
//! Pages are taken when they are first written, so a connection that carries nothing costs nothing;
//! rings that come back keep their pages while few of them are free, and lose them beyond that.

use crate::{numbers, shared, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use netacc_control::config::Config;

/// A ring holds this many of the configured buffers (`NACC_SOR_MSG_SIZE`).
pub(crate) const RING_BUFFERS: usize = 16;
/// Limits of one ring's bytes.
pub(crate) const RING_MIN: usize = 4096;
pub(crate) const RING_MAX: usize = 64 << 20;
/// Arenas of one channel.
pub(crate) const ARENAS_MAX: usize = 1024;
/// Bytes of one arena and of all arenas that a peer may make us map.
pub(crate) const ARENA_BYTES_MAX: usize = 1 << 30;
pub(crate) const MAPPED_BYTES_MAX: usize = 16 << 30;
/// Free pairs of rings that keep their pages.
const WARM_PAIRS: usize = 4;
const PAGE: usize = 4096;

/// Why there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryError {
    /// No free descriptor.
    NoDescriptor,
    /// The system or a limit refused.
    NoMemory,
    /// As many arenas as a channel can have.
    Full,
    /// A received descriptor is not what it was said to be, or could be changed behind our back.
    NotSealed,
}

/// A mapping of shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) at: *mut u8,
    pub(crate) bytes: usize,
}

impl Mapping {
    /// # Safety
    /// Nobody uses the memory any more.
    pub(crate) unsafe fn unmap(self) {
        shared::remove(self.at);
        // SAFETY: the caller's promise; the mapping is whole.
        unsafe { sys::unmap(self.at, self.bytes) }
    }
}

// SAFETY: an address and a length; who may use the memory is ruled by who holds the rings in it.
unsafe impl Send for Mapping {}

/// The size of a memfd for `bytes`.
pub(crate) const fn whole_pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE) * PAGE
}

const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Makes a memfd whose size nobody can change any more. Returns one of the library's own
/// descriptors.
pub(crate) fn create_sealed(name: &[u8], bytes: usize) -> Result<c_int, MemoryError> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let mut fd = numbers::make(|| sys::memfd_create(name, flags | libc::MFD_NOEXEC_SEAL));
    if fd == -libc::EINVAL {
        fd = numbers::make(|| sys::memfd_create(name, flags));
    }
    if fd < 0 {
        return Err(if fd == -libc::EMFILE || fd == -libc::ENFILE {
            MemoryError::NoDescriptor
        } else {
            MemoryError::NoMemory
        });
    }
    let _ = sys::fchmod(fd, 0o600);
    let sealed =
        sys::ftruncate(fd, bytes) >= 0 && sys::fcntl(fd, libc::F_ADD_SEALS, SEALS as usize) >= 0;
    if !sealed {
        crate::fd_words::close_internal(fd);
        return Err(MemoryError::NoMemory);
    }
    Ok(fd)
}

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Whether `fd` is a memfd of exactly `bytes` whose size is fixed for ever, so that touching its
/// mapping cannot fault. It is not a file that can be truncated, has no huge pages that can run
/// out, and can be mapped for writing.
pub(crate) fn is_sealed(fd: c_int, bytes: usize) -> bool {
    const FIXED: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    const READ_ONLY: c_int = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;
    let seals = sys::fcntl(fd, libc::F_GET_SEALS, 0);
    seals >= 0
        && seals as c_int & (FIXED | READ_ONLY) == FIXED
        && sys::file_size(fd) == bytes as isize
        && sys::file_system(fd) == TMPFS_MAGIC
}

/// Maps what a peer handed over, if it is safe to.
pub(crate) fn map_received(fd: c_int, bytes: u64) -> Result<Mapping, MemoryError> {
    let Some(bytes) =
        usize::try_from(bytes).ok().filter(|b| *b != 0 && *b <= ARENA_BYTES_MAX && b % PAGE == 0)
    else {
        return Err(MemoryError::NotSealed);
    };
    if !is_sealed(fd, bytes) {
        return Err(MemoryError::NotSealed);
    }
    map(fd, bytes)
}

fn map(fd: c_int, bytes: usize) -> Result<Mapping, MemoryError> {
    let at = shared::map(fd, bytes, shared::Kind::Bytes);
    if at.is_null() { Err(MemoryError::NoMemory) } else { Ok(Mapping { at, bytes }) }
}

/// The two rings of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) arena: u32,
    /// Of the first ring; the second follows it at once.
    pub(crate) offset: u64,
}

/// The acceptor's store of rings for one channel.
pub(crate) struct Pool {
    ring: usize,
    /// Size of the next arena, before it is rounded to whole connections; doubles with each.
    next: usize,
    limit: usize,
    arenas: Vec<Mapping>,
    free: Vec<Pair>,
    bytes: usize,
}

impl Pool {
    /// An empty pool as the configuration wants it: no memory is taken yet.
    pub(crate) fn new(config: &Config) -> Self {
        let ring = (config.buffer_bytes as usize)
            .saturating_mul(RING_BUFFERS)
            .clamp(RING_MIN, RING_MAX)
            .next_power_of_two()
            .min(RING_MAX);
        Self {
            ring,
            next: config.arena_first_bytes as usize,
            limit: config.arena_growth_max_bytes as usize,
            arenas: Vec::new(),
            free: Vec::new(),
            bytes: 0,
        }
    }

    /// Bytes of one ring.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring
    }

    /// Bytes of all arenas.
    pub(crate) fn total_bytes(&self) -> usize {
        self.bytes
    }

    /// The arenas in order of their numbers.
    pub(crate) fn arenas(&self) -> &[Mapping] {
        &self.arenas
    }

    /// Two rings that nobody uses; the latest given back first, because its pages are warm.
    pub(crate) fn take(&mut self) -> Option<Pair> {
        self.free.pop()
    }

    /// Size of the next arena: at least one connection, whole connections, doubling up to the
    /// limit.
    fn next_bytes(&self) -> usize {
        let unit = self.ring * 2;
        let cap = self.limit.clamp(unit, ARENA_BYTES_MAX);
        let wanted = self.next.clamp(unit, cap);
        wanted - wanted % unit
    }

    /// Adds an arena. The caller hands its descriptor (one of the library's own) to the peer and
    /// closes it.
    pub(crate) fn grow(&mut self) -> Result<(c_int, u32, usize), MemoryError> {
        let number = self.arenas.len();
        if number >= ARENAS_MAX {
            return Err(MemoryError::Full);
        }
        let unit = self.ring * 2;
        let bytes = self.next_bytes();
        let pairs = bytes / unit;
        // Giving back must never need memory.
        let all = self.bytes / unit + pairs;
        let missing = all.saturating_sub(self.free.len());
        if self.free.try_reserve(missing).is_err() || self.arenas.try_reserve(1).is_err() {
            return Err(MemoryError::NoMemory);
        }
        let fd = create_sealed(b"netacc-arena\0", bytes)?;
        let mapping = match map(fd, bytes) {
            Ok(m) => m,
            Err(e) => {
                crate::fd_words::close_internal(fd);
                return Err(e);
            }
        };
        self.arenas.push(mapping);
        self.bytes += bytes;
        self.next = bytes.saturating_mul(2);
        for i in (0..pairs).rev() {
            self.free.push(Pair { arena: number as u32, offset: (i * unit) as u64 });
        }
        Ok((fd, number as u32, bytes))
    }

    /// The rings of a pair: where each begins.
    pub(crate) fn rings(&self, pair: Pair) -> Option<[*mut u8; 2]> {
        let arena = self.arenas.get(pair.arena as usize)?;
        let offset = usize::try_from(pair.offset).ok()?;
        if offset.checked_add(self.ring * 2)? > arena.bytes {
            return None;
        }
        // SAFETY: both rings lie inside of the arena, as just checked.
        Some(unsafe { [arena.at.add(offset), arena.at.add(offset + self.ring)] })
    }

    /// Takes back what [`take`](Self::take) gave out.
    pub(crate) fn give_back(&mut self, pair: Pair) {
        if self.free.len() >= WARM_PAIRS
            && let Some([first, _]) = self.rings(pair)
        {
            // SAFETY: both rings lie side by side in one arena, and both ends of the connection are
            // gone.
            unsafe { sys::punch(first, self.ring * 2) };
        }
        // Room was reserved when the arena was made.
        if self.free.len() < self.free.capacity() {
            self.free.push(pair);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests;
