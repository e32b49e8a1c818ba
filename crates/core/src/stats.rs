//! The statistics segment of this process: made at its first connection, read by `netacc_ss` from
//! outside.

use crate::{config, fd_words, numbers, shared, sys};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use netacc_control::config::Answer;
use netacc_control::stats::{
    CONN_CAPACITY, CONNS_OFFSET, ChannelRecord, ConnRecord, Counter, Header, Path, Reason,
};
use netacc_proto::rendezvous;

static HEADER: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());
/// Those of the processes that this one was forked from, the youngest first: a connection that it
/// has inherited is shown there.
static BEFORE: [AtomicPtr<Header>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];
static SEGMENT_FD: core::sync::atomic::AtomicI32 = core::sync::atomic::AtomicI32::new(-1);
/// Records that were used and are free: the last one freed, counted from 1, and above it a counter
/// against ABA. A record is used again as soon as it can be: a process touches as many as it ever
/// had open at a time.
static FREE: AtomicU64 = AtomicU64::new(0);
/// Of each free record the one below it, counted from 1. (Not in the record, which late counts may
/// still change.)
static BELOW: [AtomicU32; CONN_CAPACITY as usize] =
    [const { AtomicU32::new(0) }; CONN_CAPACITY as usize];
/// Records from here on were never used.
static UNUSED: AtomicU32 = AtomicU32::new(0);

const BYTES: usize = CONNS_OFFSET + CONN_CAPACITY as usize * size_of::<ConnRecord>();

/// The segment, if there is one.
#[inline]
pub(crate) fn header() -> Option<&'static Header> {
    // SAFETY: once set it points to a mapping of a Header that is never unmapped; all its fields
    // are atomics.
    unsafe { HEADER.load(Acquire).as_ref() }
}

fn records() -> &'static [ConnRecord] {
    let base = HEADER.load(Acquire);
    if base.is_null() {
        return &[];
    }
    // SAFETY: the mapping holds CONN_CAPACITY records behind the header; all atomics, all zero
    // valid.
    unsafe {
        core::slice::from_raw_parts(
            base.cast::<u8>().add(CONNS_OFFSET).cast::<ConnRecord>(),
            CONN_CAPACITY as usize,
        )
    }
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
        fd_words::close_internal(fd);
        return None;
    }
    let at = shared::map(fd, BYTES, shared::Kind::Bytes);
    if at.is_null() {
        fd_words::close_internal(fd);
        return None;
    }
    if HEADER.compare_exchange(core::ptr::null_mut(), at.cast(), AcqRel, Acquire).is_err() {
        shared::remove(at);
        // SAFETY: `at` is the mapping made above, which nobody else knows.
        unsafe { sys::unmap(at, BYTES) };
        fd_words::close_internal(fd);
        return header();
    }
    SEGMENT_FD.store(fd, Relaxed);
    let h = header()?;
    h.set_config(config::text());
    h.init(sys::getpid(), sys::unix_ns(), CONN_CAPACITY, rendezvous::VERSION);
    Some(h)
}

/// Where requests are heard: a descriptor and its inode number.
pub(crate) fn hear_requests(fd: u32, inode: u32) {
    if let Some(h) = header() {
        h.requests_fd.store(fd, Relaxed);
        // Not 0: who reads it finds the other one.
        h.requests_inode.store(inode, Release);
    }
}

/// What became of a request; `Done`: the configuration is another one.
pub(crate) fn answer(request: u64, answer: Answer) {
    let Some(h) = header() else { return };
    if answer == Answer::Done {
        h.replace_config(config::text(), request);
    }
    h.answer.store(answer.word(request), Release);
}

/// A child has its own segment; the parent's stays mapped, because inherited sockets point into it.
pub(crate) fn after_fork_in_child() {
    let mut older = HEADER.swap(core::ptr::null_mut(), AcqRel);
    if !older.is_null() {
        for at in &BEFORE {
            older = at.swap(older, AcqRel);
        }
    }
    let fd = SEGMENT_FD.swap(-1, Relaxed);
    if fd >= 0 {
        fd_words::close_internal(fd);
    }
    FREE.store(0, Relaxed);
    UNUSED.store(0, Relaxed);
}

/// What was inherited is not this process's to see any more.
pub(crate) fn give_up_inherited() {
    BEFORE.iter().for_each(|at| at.store(core::ptr::null_mut(), Release));
}

/// The segment that a record belongs to.
fn segment_of(r: &ConnRecord) -> Option<&'static Header> {
    let record = core::ptr::from_ref(r).addr();
    let has = |at: &*mut Header| !at.is_null() && record.wrapping_sub(at.addr()) < BYTES;
    let at = core::iter::once(&HEADER).chain(&BEFORE).map(|at| at.load(Acquire)).find(has)?;
    // SAFETY: as in `header`; one of a process before stays mapped for as long as it is named here.
    unsafe { at.as_ref() }
}

/// A record that nobody has, counted from 0.
fn take() -> Option<u32> {
    loop {
        let head = FREE.load(Acquire);
        let Some(i) = (head as u32).checked_sub(1) else { break };
        let below = BELOW.get(i as usize)?.load(Relaxed);
        if FREE.compare_exchange(head, next(head, below), AcqRel, Relaxed).is_ok() {
            return Some(i);
        }
    }
    UNUSED.fetch_update(Relaxed, Relaxed, |n| (n < CONN_CAPACITY).then_some(n + 1)).ok()
}

fn give_back(i: u32) {
    let Some(below) = BELOW.get(i as usize) else { return };
    loop {
        let head = FREE.load(Relaxed);
        below.store(head as u32, Relaxed);
        if FREE.compare_exchange(head, next(head, i + 1), AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// The head of the free records that follows `head`.
fn next(head: u64, record: u32) -> u64 {
    (head & !u64::from(u32::MAX)).wrapping_add(1 << 32) | u64::from(record)
}

/// A record for a new connection; null when there is no memory or no free record (the connection
/// then is not shown).
#[inline(always)]
pub(crate) fn open(fd: i32, reason: Reason) -> *mut ConnRecord {
    let Some(h) = header().or_else(create) else { return core::ptr::null_mut() };
    h.count_reason(reason);
    if let Some(n) = h.total_by_path.first() {
        n.fetch_add(1, Relaxed);
    }
    let Some((i, r)) = take().and_then(|i| Some((i, records().get(i as usize)?))) else {
        h.count(Counter::RecordsExhausted);
        return core::ptr::null_mut();
    };
    // (One without a record is not shown, and nobody says when it ends.)
    if let Some(n) = h.open_by_path.first() {
        n.fetch_add(1, Relaxed);
    }
    h.raise_high_water(i);
    r.open(fd as u32, reason, sys::unix_ns_coarse());
    r as *const ConnRecord as *mut ConnRecord
}

/// The record's connection is this process's no more: what it has moved is the process's. Once for
/// each [`open`], and not in a forked child.
pub(crate) fn close(r: &'static ConnRecord) {
    // In this order: who reads the counters first, and then the records, never counts one twice
    // (`Snapshot::totals`). And before another connection has the record.
    r.close();
    #[cfg(test)]
    if let Some(look) = tests::BETWEEN.get() {
        look();
    }
    add_moved(r);
    let all = records().as_ptr_range();
    if all.contains(&(r as *const ConnRecord)) {
        // SAFETY: both point into the same mapping, of whole records.
        give_back(unsafe { (r as *const ConnRecord).offset_from(all.start) } as u32);
    }
}

#[cfg(test)]
std::thread_local! {
    /// What this thread has counted: other tests count at the same time.
    static COUNTED: [core::cell::Cell<u64>; netacc_control::stats::COUNTER_SLOTS] =
        const { [const { core::cell::Cell::new(0) }; netacc_control::stats::COUNTER_SLOTS] };
}

/// How often this thread has counted it, by [`count`].
#[cfg(test)]
pub(crate) fn counted_here(counter: Counter) -> u64 {
    COUNTED.with(|counted| counted[counter as usize].get())
}

/// Counts one.
#[inline]
pub(crate) fn count(counter: Counter) {
    #[cfg(test)]
    COUNTED.with(|counted| counted[counter as usize].set(counted[counter as usize].get() + 1));
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

/// Shows which library the process has that a record of another host's is about.
pub(crate) fn set_remote_library(i: usize, version: [u16; 3]) {
    if let Some(word) = header().and_then(|h| h.remote_library.get(i)) {
        word.store(netacc_control::stats::packed_library(version), Relaxed);
    }
}

/// An open connection is on that path, which is the better of its directions': its maker counts it
/// there, whoever says so. `first`: on that one for the first time, and so on any but TCP.
pub(crate) fn place(r: &ConnRecord, path: Path, first: Option<Path>) {
    let Some(h) = segment_of(r) else { return };
    h.place(r, path);
    if let Some(first) = first {
        for (path, up) in [(Path::Tcp, false), (first, true)] {
            if let Some(n) = h.total_by_path.get(path as usize) {
                if up {
                    n.fetch_add(1, Relaxed)
                } else {
                    n.fetch_sub(1, Relaxed)
                };
            }
        }
    }
}

/// Why an open connection is where it is.
pub(crate) fn place_reason(r: &ConnRecord, why: Reason) {
    if let Some(h) = segment_of(r) {
        h.place_reason(r, why);
    }
}

/// What a connection has moved is added to the process's, behind all that was stored before.
fn add_moved(r: &ConnRecord) {
    let Some(h) = header() else { return };
    let add = |counter: Counter, n: &AtomicU64| {
        let n = n.load(Relaxed);
        if let Some(sum) = h.counters.get(counter as usize).filter(|_| n != 0) {
            sum.fetch_add(n, Release);
        }
    };
    for (path, (tx, rx)) in Path::ALL.into_iter().zip(r.tx_bytes.iter().zip(&r.rx_bytes)) {
        add(Counter::bytes_tx(path), tx);
        add(Counter::bytes_rx(path), rx);
    }
    add(Counter::MessagesTx, &r.tx_messages);
    add(Counter::MessagesRx, &r.rx_messages);
}

/// A connection on `path` is gone.
pub(crate) fn closed(path: Path) {
    if let Some(n) = header().and_then(|h| h.open_by_path.get(path as usize)) {
        n.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    /// The records are the process's, and other tests have some thousands.
    const OTHERS: u32 = 20_000;

    fn open_one() -> &'static ConnRecord {
        // SAFETY: a record of the segment, which is never unmapped.
        unsafe { open(7, Reason::Negotiating).as_ref() }.unwrap()
    }

    #[test]
    fn a_record_serves_again_when_it_is_closed() {
        crate::testing::init();
        let used: std::collections::BTreeSet<_> = (0..70_000)
            .map(|_| {
                let record = open_one();
                close(record);
                record as *const ConnRecord
            })
            .collect();
        assert!(used.len() < 1000, "{} records for one connection after another", used.len());
        let held: Vec<_> = (0..100).map(|_| open_one()).collect();
        assert!(held.iter().all(|r| r.is_open()));
        assert_eq!(
            held.iter()
                .map(|r| *r as *const ConnRecord)
                .collect::<std::collections::BTreeSet<_>>()
                .len(),
            100
        );
        held.into_iter().for_each(close);
        let h = header().unwrap();
        assert!(h.conn_high_water.load(Relaxed) < OTHERS);
        assert_eq!(h.counter(Counter::RecordsExhausted), 0);
    }

    #[test]
    fn one_connection_more_than_there_are_records_is_not_shown() {
        /// (docs/manual/limits.md)
        const SHOWN: usize = 65_536;
        crate::testing::init();
        assert!(crate::testing::alone_in_child(|| {
            after_fork_in_child();
            let first = open(7, Reason::Negotiating);
            let opens = || !open(7, Reason::Negotiating).is_null();
            let all = (1..SHOWN).all(|_| opens());
            let ends = !opens() && header().unwrap().counter(Counter::RecordsExhausted) == 1;
            // SAFETY: a record of the segment, which is never unmapped.
            unsafe { first.as_ref() }.is_some_and(|first| {
                close(first);
                all && ends && opens() && !opens()
            })
        }));
    }

    std::thread_local! {
        /// What this thread does in the middle of [`close`].
        pub(super) static BETWEEN: core::cell::Cell<Option<fn()>> =
            const { core::cell::Cell::new(None) };
        static SEEN: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
    }

    /// As the tools do: the counter first, then the records. (Of a path on which nothing moves in
    /// other tests.)
    fn moved_by_all(counter: Counter) -> u64 {
        let h = header().unwrap();
        let ended = h.counter(counter);
        core::sync::atomic::fence(Acquire);
        let used = h.conn_high_water.load(Relaxed) as usize;
        records().iter().take(used).filter(|r| r.is_open()).fold(ended, |sum, r| {
            let bytes = if counter == Counter::UtcpBytesTx { &r.tx_bytes } else { &r.rx_bytes };
            sum + bytes[Path::Utcp as usize].load(Relaxed)
        })
    }

    #[test]
    fn what_a_connection_has_moved_never_counts_twice() {
        crate::testing::init();
        // (The first one makes the segment.)
        close(open_one());
        const EACH: u64 = 1 << 20;
        const ALL: u64 = 3000;
        let before = moved_by_all(Counter::UtcpBytesRx);
        let moved = AtomicU64::new(before);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=ALL {
                    let r = open_one();
                    // (It is said before: what is seen is never more.)
                    moved.store(before + n * EACH, Release);
                    r.add_rx(Path::Utcp, EACH);
                    close(r);
                }
            });
            let mut seen = 0;
            while seen < before + ALL * EACH {
                seen = moved_by_all(Counter::UtcpBytesRx);
                assert!(seen <= moved.load(Acquire), "{seen} of {ALL} times {EACH}");
            }
        });
        assert_eq!(moved_by_all(Counter::UtcpBytesRx), before + ALL * EACH, "and nothing is lost");
    }

    /// Who looks in between finds it in neither place: too little for a moment, never too much.
    #[test]
    fn a_record_is_closed_before_what_it_has_moved_is_added() {
        const MOVED: u64 = 1 << 20;
        crate::testing::init();
        let r = open_one();
        let before = moved_by_all(Counter::UtcpBytesTx);
        r.add_tx(Path::Utcp, MOVED);
        SEEN.set(u64::MAX);
        BETWEEN.set(Some(|| SEEN.set(moved_by_all(Counter::UtcpBytesTx))));
        close(r);
        BETWEEN.set(None);
        let behind = moved_by_all(Counter::UtcpBytesTx);
        assert_eq!((SEEN.get(), behind), (before, before + MOVED));
    }

    #[test]
    fn what_a_child_says_of_a_connection_counts_with_its_maker() {
        use crate::testing::alone_in_child;
        crate::testing::init();
        let r = open_one();
        let counted = || {
            let why = Reason::from_code(r.counted_reason.load(Relaxed) as u32);
            (Path::from_code(r.counted_path.load(Relaxed)), why)
        };
        place(r, Path::Shm, None);
        assert_eq!(counted(), (Some(Path::Shm), Some(Reason::Negotiating)));
        let says = |path, why, given_up: bool| {
            alone_in_child(move || {
                let own = header();
                after_fork_in_child();
                if given_up {
                    give_up_inherited();
                }
                // (A grandchild says it as well.)
                after_fork_in_child();
                place(r, path, None);
                place_reason(r, why);
                header().is_none() && segment_of(r).is_none_or(|h| core::ptr::eq(h, own.unwrap()))
            })
        };
        assert!(says(Path::Tcp, Reason::InheritedByFork, false));
        assert_eq!(counted(), (Some(Path::Tcp), Some(Reason::InheritedByFork)));
        assert!(says(Path::Rdma, Reason::None, true));
        assert_eq!(counted(), (Some(Path::Tcp), Some(Reason::InheritedByFork)), "given up");
        close(r);
    }

    #[test]
    fn threads_never_share_a_record() {
        crate::testing::init();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for i in 0..20_000u64 {
                        let (a, b) = (open_one(), open_one());
                        let mark = thread << 32 | i;
                        a.opened_unix_ns.store(mark, Relaxed);
                        b.opened_unix_ns.store(!mark, Relaxed);
                        std::hint::black_box((a, b));
                        assert_eq!(
                            (a.opened_unix_ns.load(Relaxed), b.opened_unix_ns.load(Relaxed)),
                            (mark, !mark)
                        );
                        close(a);
                        close(b);
                    }
                });
            }
        });
        assert!(header().unwrap().conn_high_water.load(Relaxed) < OTHERS);
    }
}
