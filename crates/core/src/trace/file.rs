//! The memory of the trace: a file in `/dev/shm`, which is there when the process was killed; where
//! none can be had, memory that goes with the process.
//!
//! Everybody may make files in `/dev/shm`, and only their owner can take them away. So a file is
//! made anew under a name that nobody has, for its owner alone. As much of it as is used gets
//! memory before it is used: a write to memory that cannot be had would be a SIGBUS. Its maker
//! holds a lock on it: whoever gets one knows that the process is gone.

use crate::{fd_words, numbers, shared, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use netacc_control::trace::{
    BYTES_KEPT, DIRECTORY, FILE_BYTES, FILES_KEPT, HEADER_BYTES, Header, NAME, RING_BYTES, RINGS,
};

/// Where it is mapped.
static AT: AtomicUsize = AtomicUsize::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);
/// Device and inode of the file in the directory; 0: it is none there.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// What its name is made of.
static BEGAN: AtomicU64 = AtomicU64::new(0);
static PID: AtomicU32 = AtomicU32::new(0);

/// So many rings get memory at a time: a few at first.
const FEW: u32 = 8;
const MANY: u32 = 64;

/// A file's name: `/dev/shm/netacc-trace.`, its beginning in 16 hexadecimal digits, a dot, the
/// process's number; NUL behind it.
fn name(began: u64, pid: u32) -> [u8; 64] {
    let mut out = [0u8; 64];
    let digits = (0..16).rev().map(|digit| {
        let nibble = (began >> (4 * digit)) as u8 & 15;
        if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
    });
    let mut decimal = [0u8; 10];
    let (mut rest, mut count) = (pid, 0);
    for place in decimal.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        (rest, count) = (rest / 10, count + 1);
        if rest == 0 {
            break;
        }
    }
    let pid = decimal.iter().copied().skip(10 - count);
    let text = DIRECTORY.bytes().chain(*b"/").chain(NAME.bytes()).chain(*b".");
    let text = text.chain(digits).chain(*b".").chain(pid);
    for (to, from) in out.iter_mut().zip(text) {
        *to = from;
    }
    out
}

/// The parts of a name in the directory, if it is one.
fn parts(name: &[u8]) -> Option<(u64, u32)> {
    let rest = name.strip_prefix(NAME.as_bytes())?.strip_prefix(b".")?;
    let (began, pid) = (rest.get(..16)?, rest.get(16..)?.strip_prefix(b".")?);
    let began = u64::from_str_radix(core::str::from_utf8(began).ok()?, 16).ok()?;
    Some((began, core::str::from_utf8(pid).ok()?.parse().ok()?))
}

/// Makes it, and maps it; how many rings have memory.
pub(super) fn make() -> Option<(*mut Header, u32)> {
    let (pid, unix_ns) = (sys::getpid(), sys::unix_ns());
    PID.store(pid, Relaxed);
    let fd = match named(unix_ns, pid) {
        Some(fd) => fd,
        None => unnamed()?,
    };
    // (A reader may be looking at this very moment whether it is held.)
    for _ in 0..100 {
        if sys::flock(fd, libc::LOCK_EX | libc::LOCK_NB) >= 0 {
            break;
        }
        sys::sched_yield();
    }
    let at = shared::map(fd, FILE_BYTES, shared::Kind::Bytes);
    if at.is_null() {
        FD.store(fd, Relaxed);
        remove();
        forget();
        return None;
    }
    let at = at.cast::<Header>();
    let mut program = [0u8; 16];
    sys::program(&mut program);
    // SAFETY: a fresh mapping, whose first bytes have memory; all zero is a valid Header.
    unsafe { &*at }.init(pid, &program, unix_ns, sys::now_ns());
    FD.store(fd, Relaxed);
    AT.store(at as usize, Release);
    Some((at, FEW))
}

fn unnamed() -> Option<c_int> {
    let fd = numbers::make(|| sys::memfd_create(b"netacc-trace\0", libc::MFD_CLOEXEC));
    if fd < 0 {
        return None;
    }
    let _ = sys::fchmod(fd, 0o600);
    if FILE_BYTES as u64 > sys::file_size_limit() || sys::ftruncate(fd, FILE_BYTES) < 0 {
        fd_words::close_internal(fd);
        return None;
    }
    Some(fd)
}

fn named(began: u64, pid: u32) -> Option<c_int> {
    // (More would be a signal.)
    if FILE_BYTES as u64 > sys::file_size_limit() {
        return None;
    }
    clean();
    let name = name(began, pid);
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let fd = numbers::make(|| sys::open(&name, flags, 0o600));
    if fd < 0 {
        return None;
    }
    let _ = sys::fchmod(fd, 0o600);
    let ready = is_roomy(fd)
        && sys::ftruncate(fd, FILE_BYTES) >= 0
        && sys::allocate(fd, 0, HEADER_BYTES + FEW as usize * RING_BYTES) >= 0;
    let Some((device, inode)) = sys::inode(fd).filter(|_| ready) else {
        let _ = sys::unlink(&name);
        fd_words::close_internal(fd);
        return None;
    };
    DEVICE.store(device, Relaxed);
    INODE.store(inode, Relaxed);
    BEGAN.store(began, Relaxed);
    Some(fd)
}

/// It is memory, and half of what there may be is free: other programs use it, too.
fn is_roomy(fd: c_int) -> bool {
    sys::memory_left(fd).is_some_and(|(free, all)| all == 0 || free >= all / 2)
}

/// More rings get memory, behind so many. How many do.
pub(super) fn grow(ready: u32) -> u32 {
    let more = if ready < MANY { FEW } else { MANY }.min((RINGS as u32).saturating_sub(ready));
    let inode = INODE.load(Relaxed);
    if inode == 0 || more == 0 {
        return more;
    }
    let fd = FD.load(Relaxed);
    // (A program that closes descriptors past libc may have another file there.)
    let is_ours = sys::inode(fd) == Some((DEVICE.load(Relaxed), inode));
    let at = HEADER_BYTES + ready as usize * RING_BYTES;
    let done = is_ours && is_roomy(fd) && sys::allocate(fd, at, more as usize * RING_BYTES) >= 0;
    if done { more } else { 0 }
}

/// This process has made it.
pub(super) fn is_ours() -> bool {
    PID.load(Relaxed) == sys::getpid()
}

/// Takes its name away.
pub(super) fn remove() {
    if INODE.swap(0, Relaxed) != 0 {
        let _ = sys::unlink(&name(BEGAN.load(Relaxed), PID.load(Relaxed)));
    }
}

/// Puts private memory in its place, if `address` is in it.
pub(super) fn lose(address: usize) -> bool {
    let at = AT.load(Acquire);
    if at == 0 || !(at..at + FILE_BYTES).contains(&address) {
        return false;
    }
    // SAFETY: a mapping of this size, which is never unmapped: atomics, of which zeros say nothing.
    unsafe { sys::map_over(at as *mut u8, -1, FILE_BYTES) }
}

/// This process has none (any more).
pub(super) fn forget() {
    INODE.store(0, Relaxed);
    let fd = FD.swap(-1, Relaxed);
    if fd >= 0 {
        fd_words::close_internal(fd);
    }
}

/// So many files are looked at.
const SEEN: usize = 128;

/// What is left of processes that have ended goes, the oldest first, where it is too much.
fn clean() {
    let mut seen = [(0u64, 0u32); SEEN];
    let count = list(&mut seen);
    let Some(found) = seen.get_mut(..count) else { return };
    found.sort_unstable();
    let (mut kept, mut bytes) = (0, 0);
    let me = sys::geteuid();
    // (Whoever has the number by now: what is not taken for left today is one day. Who is in
    // another namespace holds its file.)
    for (began, pid) in found.iter().rev().filter(|(_, pid)| !sys::alive(*pid)) {
        let name = name(*began, *pid);
        let Some(size) = sys::memory_of(&name, me) else { continue };
        if kept < FILES_KEPT && bytes + size <= BYTES_KEPT {
            kept += 1;
            bytes += size;
        } else if is_left(&name) {
            let _ = sys::unlink(&name);
        }
    }
}

/// Whether the process that made the file is gone.
fn is_left(name: &[u8]) -> bool {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let fd = numbers::make(|| sys::open(name, flags, 0));
    if fd < 0 {
        return false;
    }
    let is_free = sys::flock(fd, libc::LOCK_SH | libc::LOCK_NB) >= 0;
    fd_words::close_internal(fd);
    is_free
}

/// The traces in the directory; how many there are.
fn list(seen: &mut [(u64, u32)]) -> usize {
    /// So many bytes of names are looked at.
    const NAMES: usize = 64;
    let mut path = [0u8; 16];
    for (to, from) in path.iter_mut().zip(DIRECTORY.bytes()) {
        *to = from;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let directory = numbers::make(|| sys::open(&path, flags, 0));
    if directory < 0 {
        return 0;
    }
    let (mut count, mut block) = (0, [0u8; 4096]);
    for _ in 0..NAMES {
        let n = sys::getdents(directory, &mut block);
        let Some(mut rest) = usize::try_from(n).ok().and_then(|n| block.get(..n)) else { break };
        if rest.is_empty() {
            break;
        }
        // `struct linux_dirent64`: its length at 16, the name at 19.
        while let Some(&[low, high]) = rest.get(16..18) {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let (Some(entry), Some(behind)) = (rest.get(19..length), rest.get(length..)) else {
                break;
            };
            rest = behind;
            let name = entry.split(|byte| *byte == 0).next().unwrap_or(&[]);
            if let (Some(found), Some(place)) = (parts(name), seen.get_mut(count)) {
                *place = found;
                count += 1;
            }
        }
    }
    fd_words::close_internal(directory);
    count
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_parts() {
        for (began, pid) in [(0, 0), (1_764_000_000_123_456_789, 4711), (u64::MAX, u32::MAX)] {
            let name = name(began, pid);
            let text = name.split(|byte| *byte == 0).next().unwrap();
            let file = text.strip_prefix(b"/dev/shm/").unwrap();
            assert_eq!(parts(file), Some((began, pid)));
            assert!(text.len() < name.len(), "NUL follows");
        }
        for other in [
            &b"netacc-trace"[..],
            b"netacc-trace.12.1",
            b"x",
            b"",
            b"netacc-trace.zzzzzzzzzzzzzzzz.1",
        ] {
            assert_eq!(parts(other), None);
        }
    }
}
