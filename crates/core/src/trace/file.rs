//! The memory of the trace: a file in `/dev/shm`, or in another place (`place.rs`), which is there
//! when the process was killed; where none can be had, memory that goes with the process.
//!
//! Everybody may make files in `/dev/shm`, and only their owner can take them away. So a file is
//! made anew under a name that nobody has, for its owner alone. As much of it as is used gets
//! memory before it is used: a write to memory that cannot be had would be a SIGBUS. It is no
//! longer than that: what is mapped behind its end is an address, and no memory, for a program that
//! locks all of its own. Its maker holds a lock on it: whoever gets one knows that the process is
//! gone.

use super::place::{self, NAME_BYTES};
use crate::{fd_words, numbers, shared, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use netacc_control::trace::{FILE_BYTES, HEADER_BYTES, Header, NAME, RING_BYTES, RINGS};

/// Where it is mapped.
static AT: AtomicUsize = AtomicUsize::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);
/// Device and inode; 0: there is none.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// It has a name in the directory.
static NAMED: AtomicBool = AtomicBool::new(false);
/// What its name is made of.
static BEGAN: AtomicU64 = AtomicU64::new(0);
static PID: AtomicU32 = AtomicU32::new(0);

/// So many rings get memory at first; later as many as there are, and never more than these.
const FEW: u32 = 8;
const MANY: u32 = 256;

/// A file's name: the directory, `/netacc-trace.`, its beginning in 16 hexadecimal digits, a dot,
/// the process's number; NUL behind it.
pub(super) fn name(began: u64, pid: u32) -> [u8; NAME_BYTES] {
    let mut out = [0u8; NAME_BYTES];
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
    let text = place::directory().bytes().chain(*b"/").chain(NAME.bytes()).chain(*b".");
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
    let elsewhere = || place::give_up().then(|| named(unix_ns, pid)).flatten();
    let fd = match named(unix_ns, pid).or_else(elsewhere) {
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
    let program = program();
    // It begins with the process's first connection, whose events come later.
    let began = stats::header().map_or(unix_ns, |h| h.started_unix_ns.load(Relaxed)).min(unix_ns);
    let ns = sys::now_ns().saturating_sub(unix_ns - began);
    // SAFETY: a fresh mapping, whose first bytes have memory; all zero is a valid Header.
    unsafe { &*at }.init(pid, &program, began, ns);
    FD.store(fd, Relaxed);
    AT.store(at as usize, Release);
    Some((at, FEW))
}

/// The name of the process's first thread; NUL behind it. (This is another one.)
fn program() -> [u8; 16] {
    let mut name = [0u8; 16];
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = numbers::make(|| sys::open(b"/proc/self/comm\0", flags, 0));
    if fd >= 0 {
        let n = usize::try_from(sys::read(fd, &mut name)).unwrap_or(0);
        // (A line feed is behind it.)
        name.iter_mut().skip(n.saturating_sub(1)).for_each(|byte| *byte = 0);
        fd_words::close_internal(fd);
    }
    name
}

fn unnamed() -> Option<c_int> {
    let fd = numbers::make(|| sys::memfd_create(b"netacc-trace\0", libc::MFD_CLOEXEC));
    if fd < 0 {
        return None;
    }
    let _ = sys::fchmod(fd, 0o600);
    if !get_first(fd) {
        fd_words::close_internal(fd);
        return None;
    }
    Some(fd)
}

fn named(began: u64, pid: u32) -> Option<c_int> {
    let name = name(began, pid);
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let fd = numbers::make(|| sys::open(&name, flags, 0o600));
    if fd < 0 {
        return None;
    }
    let _ = sys::fchmod(fd, 0o600);
    if !is_roomy(fd, HEADER_BYTES + FEW as usize * RING_BYTES) || !get_first(fd) {
        let _ = sys::unlink(&name);
        fd_words::close_internal(fd);
        return None;
    }
    BEGAN.store(began, Relaxed);
    NAMED.store(true, Relaxed);
    Some(fd)
}

/// A new file has its first memory, and is known.
fn get_first(fd: c_int) -> bool {
    let Some((device, inode)) = sys::inode(fd) else { return false };
    DEVICE.store(device, Relaxed);
    INODE.store(inode, Relaxed);
    extend(fd, 0, HEADER_BYTES + FEW as usize * RING_BYTES)
}

/// A piece of the file gets memory, and the file the length for it.
fn extend(fd: c_int, at: usize, bytes: usize) -> bool {
    // (More than the limit would be a signal.)
    at.saturating_add(bytes) as u64 <= sys::file_size_limit() && sys::allocate(fd, at, bytes) >= 0
}

/// It is memory, of which three quarters are free, and an eighth is enough for the file: other
/// programs use it, too.
fn is_roomy(fd: c_int, bytes: usize) -> bool {
    sys::memory_left(fd)
        .is_some_and(|(free, all)| all == 0 || (free >= all / 4 * 3 && bytes as u64 <= all / 8))
}

/// More rings get memory, behind so many. How many do.
pub(super) fn grow(ready: u32) -> u32 {
    let more = ready.clamp(FEW, MANY).min((RINGS as u32).saturating_sub(ready));
    let (fd, inode) = (FD.load(Relaxed), INODE.load(Relaxed));
    // (A program that closes descriptors past libc may have another file there.)
    let is_ours = inode != 0 && sys::inode(fd) == Some((DEVICE.load(Relaxed), inode));
    let at = HEADER_BYTES + ready as usize * RING_BYTES;
    let done = is_ours
        && (!NAMED.load(Relaxed) || is_roomy(fd, at + more as usize * RING_BYTES))
        && extend(fd, at, more as usize * RING_BYTES);
    if done { more } else { 0 }
}

/// This process has made it.
pub(super) fn is_ours() -> bool {
    PID.load(Relaxed) == sys::getpid()
}

/// Takes its name away.
pub(super) fn remove() {
    if NAMED.swap(false, Relaxed) {
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
    NAMED.store(false, Relaxed);
    let fd = FD.swap(-1, Relaxed);
    if fd >= 0 {
        fd_words::close_internal(fd);
    }
}

/// Calls `found` with the parts of each trace's name in the directory.
pub(super) fn each(mut found: impl FnMut(u64, u32)) {
    /// So many bytes of names are looked at.
    const NAMES: usize = 256;
    let mut path = [0u8; NAME_BYTES];
    for (to, from) in path.iter_mut().zip(place::directory().bytes()) {
        *to = from;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let directory = numbers::make(|| sys::open(&path, flags, 0));
    if directory < 0 {
        return;
    }
    let mut block = [0u8; 4096];
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
            if let Some((began, pid)) = parts(name) {
                found(began, pid);
            }
        }
    }
    fd_words::close_internal(directory);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_first_threads_name() {
        std::thread::Builder::new()
            .name("another".into())
            .spawn(|| {
                let comm = std::fs::read("/proc/self/comm").unwrap();
                let name = program();
                let name = name.split(|byte| *byte == 0).next().unwrap();
                assert_eq!([name, b"\n"].concat(), comm);
            })
            .unwrap()
            .join()
            .unwrap();
    }

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
