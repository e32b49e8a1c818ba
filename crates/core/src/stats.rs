//! The statistics segment of this process: made at its first connection, read by `netacc_ss` from outside.

use crate::{fd_table, lifecycle, numbers, sys};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use netacc_control::stats::{CONN_CAPACITY, CONNS_OFFSET, ChannelRecord, ConnRecord, Counter, Header, Path, Reason};

static HEADER: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENT_FD: core::sync::atomic::AtomicI32 = core::sync::atomic::AtomicI32::new(-1);
static NEXT: AtomicU32 = AtomicU32::new(0);

const BYTES: usize = CONNS_OFFSET + CONN_CAPACITY as usize * size_of::<ConnRecord>();

/// The segment, if there is one.
#[inline]
pub(crate) fn header() -> Option<&'static Header> {
    // SAFETY: once set it points to a mapping of a Header that is never unmapped; all its fields are atomics.
    unsafe { HEADER.load(Acquire).as_ref() }
}

fn records() -> &'static [ConnRecord] {
    let base = HEADER.load(Acquire);
    if base.is_null() {
        return &[];
    }
    // SAFETY: the mapping holds CONN_CAPACITY records behind the header; all atomics, all zero valid.
    unsafe { core::slice::from_raw_parts(base.cast::<u8>().add(CONNS_OFFSET).cast::<ConnRecord>(), CONN_CAPACITY as usize) }
}

#[cold]
#[inline(never)]
fn create() -> Option<&'static Header> {
    let fd = numbers::make(|| sys::memfd_create(b"netacc-stats\0", libc::MFD_CLOEXEC));
    if fd < 0 {
        return None;
    }
    let _ = sys::fchmod(fd, 0o600);
    if sys::ftruncate(fd, BYTES) < 0 {
        fd_table::close_internal(fd);
        return None;
    }
    let at = sys::map_shared(fd, BYTES);
    if at.is_null() {
        fd_table::close_internal(fd);
        return None;
    }
    if HEADER.compare_exchange(core::ptr::null_mut(), at.cast(), AcqRel, Acquire).is_err() {
        // SAFETY: `at` is the mapping made above, which nobody else knows.
        unsafe { sys::unmap(at, BYTES) };
        fd_table::close_internal(fd);
        return header();
    }
    SEGMENT_FD.store(fd, Relaxed);
    let h = header()?;
    h.set_config(lifecycle::config_text());
    h.init(sys::getpid(), sys::unix_ns(), CONN_CAPACITY);
    Some(h)
}

/// A child has its own segment; the parent's stays mapped, because inherited sockets point into it.
pub(crate) fn after_fork_in_child() {
    HEADER.store(core::ptr::null_mut(), Release);
    let fd = SEGMENT_FD.swap(-1, Relaxed);
    if fd >= 0 {
        fd_table::close_internal(fd);
    }
    NEXT.store(0, Relaxed);
}

/// A record for a new connection; null when there is no memory or no free record (the connection then is not shown).
pub(crate) fn open(fd: i32, reason: Reason) -> *mut ConnRecord {
    let Some(h) = header().or_else(create) else { return core::ptr::null_mut() };
    h.count_reason(reason);
    if let Some(n) = h.open_by_path.first() {
        n.fetch_add(1, Relaxed);
    }
    if let Some(n) = h.total_by_path.first() {
        n.fetch_add(1, Relaxed);
    }
    let all = records();
    let start = NEXT.fetch_add(1, Relaxed);
    for i in 0..CONN_CAPACITY {
        let i = start.wrapping_add(i) % CONN_CAPACITY.min(h.conn_high_water.load(Relaxed).saturating_add(64));
        let Some(r) = all.get(i as usize) else { break };
        // 2: claimed by us, not yet shown.
        if r.state.compare_exchange(0, 2, AcqRel, Relaxed).is_ok() {
            h.raise_high_water(i);
            r.open(fd as u32, reason, sys::unix_ns());
            return r as *const ConnRecord as *mut ConnRecord;
        }
    }
    h.count(Counter::RecordsExhausted);
    core::ptr::null_mut()
}

/// Counts one.
#[inline]
pub(crate) fn count(counter: Counter) {
    if let Some(h) = header() {
        h.count(counter);
    }
}

/// Counts several at once.
pub(crate) fn add(counter: Counter, n: u64) {
    if let Some(word) = header().filter(|_| n != 0).and_then(|h| h.counters.get(counter as usize)) {
        word.fetch_add(n, Relaxed);
    }
}

/// The record of a channel.
pub(crate) fn channel_record(i: usize) -> Option<&'static ChannelRecord> {
    header()?.channels.get(i)
}

/// The record of a process of another host.
pub(crate) fn remote_record(i: usize) -> Option<&'static ChannelRecord> {
    header()?.remote.get(i)
}

/// A connection's better path changed; `best` is the best it ever had.
pub(crate) fn moved(from: Path, to: Path, best_changed: Option<(Path, Path)>) {
    let Some(h) = header() else { return };
    let add = |w: &[core::sync::atomic::AtomicU64; 4], p: Path, up: bool| {
        if let Some(n) = w.get(p as usize) {
            if up {
                n.fetch_add(1, Relaxed)
            } else {
                n.fetch_sub(1, Relaxed)
            };
        }
    };
    add(&h.open_by_path, from, false);
    add(&h.open_by_path, to, true);
    if let Some((old, new)) = best_changed {
        add(&h.total_by_path, old, false);
        add(&h.total_by_path, new, true);
    }
}

/// A connection ends: its bytes are added to the process's.
pub(crate) fn add_bytes(r: &ConnRecord) {
    let Some(h) = header() else { return };
    let of = |words: &[core::sync::atomic::AtomicU64; 4], p: Path| words.get(p as usize).map_or(0, |w| w.load(Relaxed));
    for (tx, rx, path) in [
        (Counter::TcpBytesTx, Counter::TcpBytesRx, Path::Tcp),
        (Counter::ShmBytesTx, Counter::ShmBytesRx, Path::Shm),
        (Counter::RdmaBytesTx, Counter::RdmaBytesRx, Path::Rdma),
    ] {
        h.add(tx, of(&r.tx_bytes, path));
        h.add(rx, of(&r.rx_bytes, path));
    }
}

/// A connection on `path` is gone.
pub(crate) fn closed(path: Path) {
    if let Some(n) = header().and_then(|h| h.open_by_path.get(path as usize)) {
        n.fetch_sub(1, Relaxed);
    }
}
