//! The trace of a process that runs the library: the layout of its file, and nothing else
//! (`docs/design/trace.md`).
//!
//! A [`Header`] of [`HEADER_BYTES`], in which a table in words says what the events mean, is
//! followed by rings of [`RING_BYTES`] each: the process's own, and one for each connection. A ring
//! holds [`EVENTS`] events of two words each: the first [`EVENTS_FIRST`], and the last ones.
//!
//! Rules: only atomics; all zero is an empty ring; writers never format. A reader takes sizes and
//! meanings from the file itself, so it reads what another version has written; the container alone
//! has a [`VERSION`].

mod latencies;
mod read;
mod table;

pub use latencies::{BUCKETS, Latencies, LatenciesText, Latency, Times, bucket_end};
pub use read::{Ended, Head, ReadError, RingText, State, whole};
pub use table::{Back, Event, Field, Meaning, Slow, Table, write_table};

use crate::stats::{LIBRARY, PATH_SLOTS, store_ip};
use core::mem::{offset_of, size_of};
use core::net::SocketAddr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

/// What file names and the name of a memfd begin with.
pub const NAME: &str = "netacc-trace";
/// Where the files are, unless `NACC_TRACE_DIR` says otherwise: memory, which outlives a process,
/// and no reboot.
pub const DIRECTORY: &str = "/dev/shm";
/// Where they are of services that have nothing in [`DIRECTORY`] for longer than they run
/// (`RemoveIPC=`): each has a directory in this one, which `netacc-enable` has systemd make.
pub const SERVICES: &str = "/run/netacc";
/// First word of a file: "NETACCTR", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"NETACCTR");
/// Version of the container.
pub const VERSION: u32 = 1;
/// Bytes before the first ring.
pub const HEADER_BYTES: usize = 16384;
/// Bytes of a ring with its head.
pub const RING_BYTES: usize = 2240;
/// Bytes of a ring's head.
pub const RING_HEAD_BYTES: usize = 256;
/// Bytes of an event.
pub const EVENT_BYTES: usize = 16;
/// Events that a ring holds: the first ones, how the connection came to be, and the last ones.
pub const EVENTS: usize = (RING_BYTES - RING_HEAD_BYTES) / EVENT_BYTES;
/// So many are the first ones.
pub const EVENTS_FIRST: usize = 24;
/// Most rings of a process, the first of which is its own.
pub const RINGS: usize = 16384;
/// Bytes of a file with all of them.
pub const FILE_BYTES: usize = HEADER_BYTES + RINGS * RING_BYTES;
/// How many files of ended processes a user keeps.
pub const FILES_KEPT: usize = 16;
/// How large they may be together.
pub const BYTES_KEPT: u64 = 64 << 20;
/// Of them so many in which something went badly stay before all others.
pub const BAD_FILES_KEPT: usize = FILES_KEPT / 2;
/// A file that has no header, and whose name is older, is one that nobody makes any more.
pub const MAKING_NS: u64 = 10_000_000_000;
/// So exact is [`Header::last_ns`].
pub const LAST_TO_NS: u64 = 1 << 24;

/// Of [`Header::ended`].
pub const BECAME_ANOTHER: u32 = 2;

/// Each mark of [`Header::changes`] stands for 1 << so many bytes of the file.
pub const CHANGE_SHIFT: u32 = 16;
/// A mark changes at most once in about 1 << so many nanoseconds.
const CHANGE_NS_SHIFT: u32 = 20;
const CHANGES: usize = 576;

const TABLE_AT: usize = 256;
const TABLE_BYTES: usize = HEADER_BYTES - TABLE_AT - CHANGES * size_of::<u32>();

/// Start of the file.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`]; stored last, with release.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`HEADER_BYTES`].
    pub header_bytes: AtomicU32,
    /// [`RING_BYTES`].
    pub ring_bytes: AtomicU32,
    /// [`RING_HEAD_BYTES`].
    pub ring_head_bytes: AtomicU32,
    /// Rings from here on were never used.
    pub rings: AtomicU32,
    /// The process's own pid, as it sees itself.
    pub pid: AtomicU32,
    /// When the trace began.
    pub began_unix_ns: AtomicU64,
    /// The same moment by the clock of the events (CLOCK_MONOTONIC).
    pub began_ns: AtomicU64,
    /// As of the statistics segment.
    pub library: AtomicU64,
    /// Where the table begins.
    pub table_at: AtomicU32,
    /// How long it is.
    pub table_bytes: AtomicU32,
    /// Connections that got no ring.
    pub missed: AtomicU64,
    /// 0: the process runs, or was killed; 1: it has ended in order; 2: it became another program,
    /// if it is gone.
    pub ended: AtomicU32,
    /// Connections that went badly, or were in trouble.
    pub troubles: AtomicU32,
    /// The name of the program; NUL behind it.
    pub program: [AtomicU8; 16],
    /// [`EVENTS_FIRST`].
    pub events_first: AtomicU32,
    /// Of the rings so many are places of [`Latencies`].
    pub latencies: AtomicU32,
    /// When an event was last recorded, by the clock of the events, to [`LAST_TO_NS`]; 0: it is not
    /// known.
    pub last_ns: AtomicU64,
    /// Where `changes` begins; 0: there are no such marks. (Zero before there were, as what
    /// follows.)
    pub changes_at: AtomicU32,
    /// How many there are.
    pub changes_count: AtomicU32,
    /// [`CHANGE_SHIFT`].
    pub changes_shift: AtomicU32,
    /// Of the rings so many are excerpts.
    pub excerpts: AtomicU32,
    /// Zero.
    pub reserved: [AtomicU64; 16],
    /// The events in words ([`write_table`]).
    pub table: [AtomicU8; TABLE_BYTES],
    /// When an event was last recorded in a ring that begins in that part of the file, in about
    /// milliseconds of the clock of the events. Who follows a trace looks into the parts whose mark
    /// is another one than before, and in those where it is young: two events in one millisecond
    /// leave one mark.
    pub changes: [AtomicU32; CHANGES],
}

/// One connection's events, or the process's.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Ring {
    /// Events that were ever recorded.
    pub head: AtomicU64,
    /// [`State`] code.
    pub state: AtomicU32,
    /// Descriptor in the process; of the process's own ring none.
    pub fd: AtomicU32,
    /// Counts the connections of the process; 0: the process's own ring.
    pub number: AtomicU64,
    /// When the connection came to be, by the clock of the events.
    pub began_ns: AtomicU64,
    /// AF_INET (2), AF_INET6 (10), or 0: not known yet.
    pub family: AtomicU32,
    /// In host order.
    pub local_port: AtomicU32,
    /// In host order.
    pub peer_port: AtomicU32,
    /// Pid of the peer process as the process sees it; 0: not known.
    pub peer_pid: AtomicU32,
    /// As in the statistics' record.
    pub local_addr: [AtomicU64; 2],
    /// As `local_addr`.
    pub peer_addr: [AtomicU64; 2],
    /// What was sent by path, as far as it is recorded.
    pub sent: [AtomicU64; PATH_SLOTS],
    /// What was received.
    pub received: [AtomicU64; PATH_SLOTS],
    /// The event that was recorded last.
    pub last: AtomicU32,
    /// When what has moved was last recorded for itself, in coarse milliseconds.
    pub looked_at_ms: AtomicU32,
    /// Of the messages that were sent, and of those received, as many as are recorded.
    pub messages: [AtomicU64; 2],
    /// Since when a send waits for room; 0: none does.
    pub send_waits: AtomicU64,
    /// Since when an agreement is sought; 0: none is.
    pub noted: AtomicU64,
    /// How often the connection had been used then.
    pub noted_calls: AtomicU32,
    /// Not 0: the trace is kept for longer than others.
    pub worth: AtomicU32,
    /// The lowest bits of how much had been sent when that wait began.
    pub send_from: AtomicU32,
    /// Which place has the connection's [`Latencies`]; 0: none. It is the ring's for good.
    pub latencies: AtomicU32,
    /// When the turn that is under way began, and above bit 0, which says that it is a send's.
    pub turn: AtomicU64,
    /// Of sends and of receives: since when calls were recorded, and 1, as the last one that was
    /// recorded had it; 0: none was.
    pub followed: [AtomicU64; 2],
    /// `head` when a trouble was recorded of which an excerpt is to be made, its lowest bits; 0:
    /// there is none.
    pub trouble_at: AtomicU32,
    /// How many excerpts were made.
    pub excerpts: AtomicU32,
    /// Zero.
    pub reserved: [AtomicU32; 6],
    /// [`word`] and what belongs to it.
    pub events: [[AtomicU64; 2]; EVENTS],
}

const _: () = {
    assert!(size_of::<Header>() == HEADER_BYTES);
    assert!(size_of::<Ring>() == RING_BYTES);
    assert!(offset_of!(Header, table) == TABLE_AT);
    assert!(offset_of!(Ring, events) == RING_HEAD_BYTES);
    assert!(Event::ALL.len() < 1 << KIND_BITS);
    assert!(FILE_BYTES <= CHANGES << CHANGE_SHIFT);
};

const KIND_BITS: u32 = 6;
const LAP_BITS: u32 = 2;
const TIME_AT: u32 = KIND_BITS + LAP_BITS;

/// Where the event of that index is in a ring of so many, of which so many are the first ones; and
/// its lap.
const fn place(index: u64, events: u64, first: u64) -> (u64, u64) {
    let (Some(behind), Some(cycle)) = (index.checked_sub(first), events.checked_sub(first)) else {
        return (index, 0);
    };
    match (behind.checked_rem(cycle), behind.checked_div(cycle)) {
        (Some(at), Some(lap)) => (first.saturating_add(at), lap & ((1 << LAP_BITS) - 1)),
        _ => (index, 0),
    }
}

/// The first word of an event: which one it is, its time, and which lap of the ring it belongs to:
/// what was not written yet is of another.
const fn word(event: Event, lap: u64, ns: u64) -> u64 {
    ns << TIME_AT | lap << KIND_BITS | event as u64
}

impl Header {
    /// Fills in a fresh file.
    pub fn init(&self, pid: u32, program: &[u8], unix_ns: u64, ns: u64) {
        self.version.store(VERSION, Relaxed);
        self.header_bytes.store(HEADER_BYTES as u32, Relaxed);
        self.ring_bytes.store(RING_BYTES as u32, Relaxed);
        self.ring_head_bytes.store(RING_HEAD_BYTES as u32, Relaxed);
        self.events_first.store(EVENTS_FIRST as u32, Relaxed);
        self.pid.store(pid, Relaxed);
        self.began_unix_ns.store(unix_ns, Relaxed);
        self.began_ns.store(ns, Relaxed);
        self.last_ns.store(ns, Relaxed);
        self.library.store(LIBRARY, Relaxed);
        for (to, from) in self.program.iter().zip(program) {
            to.store(*from, Relaxed);
        }
        let mut bytes = 0;
        write_table(&mut |text| {
            for (to, from) in self.table.iter().skip(bytes).zip(text.as_bytes()) {
                to.store(*from, Relaxed);
            }
            bytes += text.len();
        });
        self.table_at.store(TABLE_AT as u32, Relaxed);
        self.table_bytes.store(bytes.min(TABLE_BYTES) as u32, Relaxed);
        self.changes_count.store(CHANGES as u32, Relaxed);
        self.changes_shift.store(CHANGE_SHIFT, Relaxed);
        self.changes_at.store(offset_of!(Header, changes) as u32, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// An event is recorded at that time. (Many threads come here: few write.)
    #[inline]
    pub fn lives(&self, ns: u64) {
        if ns.saturating_sub(self.last_ns.load(Relaxed)) >= LAST_TO_NS {
            self.last_ns.store(ns, Relaxed);
        }
    }

    /// An event of that time was recorded in the ring that begins there in the file. (A ring of a
    /// busy connection is one of many in its part: few write here, too.)
    #[inline]
    pub fn has_changed(&self, at: usize, ns: u64) {
        let Some(mark) = self.changes.get(at >> CHANGE_SHIFT) else { return };
        let ms = (ns >> CHANGE_NS_SHIFT) as u32;
        if mark.load(Relaxed) != ms {
            mark.store(ms, Release);
        }
    }
}

impl Ring {
    /// Records an event. Any thread, and a signal handler: one atomic step takes the place.
    pub fn record(&self, event: Event, ns: u64, what: u64) {
        let index = self.head.fetch_add(1, Acquire);
        // (Who reads what follows, as Acquire, has the new head.)
        fence(Release);
        let (at, lap) = place(index, EVENTS as u64, EVENTS_FIRST as u64);
        let Some([first, second]) = self.events.get(at as usize) else { return };
        second.store(what, Relaxed);
        first.store(word(event, lap, ns), Release);
        self.last.store(event as u32, Relaxed);
    }

    /// Whether it is the event that was recorded last.
    pub fn ends_in(&self, event: Event) -> bool {
        self.last.load(Relaxed) == event as u32
    }

    /// Begins a connection's trace in a ring that its caller has claimed ([`Ring::claim`]). It
    /// keeps its place of latencies.
    pub fn open(&self, number: u64, fd: u32, ns: u64) {
        self.number.store(number, Release);
        self.head.store(0, Release);
        for word in [&self.family, &self.local_port, &self.peer_port, &self.peer_pid] {
            word.store(0, Relaxed);
        }
        self.last.store(0, Relaxed);
        self.looked_at_ms.store(0, Relaxed);
        self.turn.store(0, Relaxed);
        for words in [&self.messages, &self.followed] {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        [&self.send_waits, &self.noted].iter().for_each(|word| word.store(0, Relaxed));
        for word in [&self.noted_calls, &self.worth, &self.send_from] {
            word.store(0, Relaxed);
        }
        [&self.trouble_at, &self.excerpts].iter().for_each(|word| word.store(0, Relaxed));
        for words in [&self.local_addr, &self.peer_addr] {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        for words in [&self.sent, &self.received] {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        // (What a connection before has left is of no lap of this one's.)
        for [first, _] in &self.events {
            first.store(0, Relaxed);
        }
        self.fd.store(fd, Relaxed);
        self.began_ns.store(ns, Relaxed);
        self.state.store(State::Open as u32, Release);
    }

    /// Makes this ring, which its caller has claimed, an excerpt of one that goes on being written:
    /// what that holds now. The caller sets its state. False: that has begun to serve another
    /// connection than that of this number. (It keeps its place of latencies, which is none of the
    /// other's.)
    #[must_use]
    pub fn copy(&self, of: &Ring, number: u64) -> bool {
        let head = of.head.load(Acquire);
        [&self.trouble_at, &self.excerpts].iter().for_each(|word| word.store(0, Relaxed));
        self.number.store(number, Relaxed);
        for (to, from) in [
            (&self.began_ns, &of.began_ns),
            (&self.local_addr[0], &of.local_addr[0]),
            (&self.local_addr[1], &of.local_addr[1]),
            (&self.peer_addr[0], &of.peer_addr[0]),
            (&self.peer_addr[1], &of.peer_addr[1]),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
        for (to, from) in [
            (&self.fd, &of.fd),
            (&self.family, &of.family),
            (&self.local_port, &of.local_port),
            (&self.peer_port, &of.peer_port),
            (&self.peer_pid, &of.peer_pid),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
        for ([first, second], [from, what]) in self.events.iter().zip(&of.events) {
            first.store(from.load(Acquire), Relaxed);
            second.store(what.load(Relaxed), Relaxed);
        }
        fence(Acquire);
        // (What was begun since may have changed under this.)
        for index in (head..of.head.load(Relaxed)).take(EVENTS) {
            let (at, _) = place(index, EVENTS as u64, EVENTS_FIRST as u64);
            if let Some([first, _]) = self.events.get(at as usize) {
                first.store(0, Relaxed);
            }
        }
        self.head.store(head, Relaxed);
        of.number.load(Relaxed) == number
    }

    /// Takes a ring that has this state; only its claimant opens it.
    pub fn claim(&self, from: State) -> bool {
        // (Most that are looked at have another: a load leaves their lines where they are.)
        self.state.load(Relaxed) == from as u32
            && self
                .state
                .compare_exchange(from as u32, State::Claimed as u32, Acquire, Relaxed)
                .is_ok()
    }

    /// Bytes move at that time. A time that has come to its end by this; what began before `since`
    /// does not count.
    pub fn turn(&self, sends: bool, ns: u64, since: u64) -> Option<(Latency, u64)> {
        let before = self.turn.load(Relaxed);
        let (then, sent) = (before >> 1, before & 1 != 0);
        let counts = before != 0 && then >= since;
        if counts && sent == sends {
            return None;
        }
        self.turn.store(ns << 1 | u64::from(sends), Relaxed);
        let took = ns.checked_sub(then).filter(|_| counts)?;
        Some((if sends { Latency::Serve } else { Latency::Answer }, took))
    }

    /// Stores both addresses.
    pub fn set_addresses(&self, local: SocketAddr, peer: SocketAddr) {
        self.local_port.store(u32::from(local.port()), Relaxed);
        self.peer_port.store(u32::from(peer.port()), Relaxed);
        store_ip(&self.local_addr, local.ip());
        store_ip(&self.peer_addr, peer.ip());
        self.family.store(if local.is_ipv4() { 2 } else { 10 }, Release);
    }
}

#[cfg(test)]
mod tests;
