//! Each call that moves bytes, and how long answers take (`NACC_TRACE=2`).
//!
//! A connection's times have a place like a ring's, which its ring gets with the first such time,
//! and keeps for the connections behind it: so there are never more places than rings. They count
//! for the process as well: what its connections had is there when they are over.

use super::{RINGS, Ring, Way, ring};
use crate::{config, sys};
use core::sync::atomic::{AtomicU64, Ordering::*};
use netacc_control::stats::ConnRecord;
use netacc_control::trace::{Event, Latencies, Latency, State};

/// When calls began to be recorded: a turn of before does not count.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// An event has so many bits for the offset, and for the bytes.
const OFFSET_MASK: u64 = (1 << 40) - 1;
const BYTES_MAX: u64 = (1 << 24) - 1;

/// Tracing may be turned on or off, or up or down. A thread of the library's own. (Before it is: a
/// call that finds it on knows since when.)
pub(crate) fn before_turn() {
    if !config::follows_calls() {
        SINCE.store(sys::now_ns(), Relaxed);
    }
}

/// The place of that number.
pub(super) fn place(i: u32) -> Option<&'static Latencies> {
    let ring = core::ptr::from_ref(ring(i).filter(|_| i != 0)?);
    // SAFETY: a place of latencies has the size and the alignment of a ring, and both consist of
    // atomics for which all values are valid. Both have the state in the same word; the rest is
    // written by whoever has claimed it, as the one or as the other.
    unsafe { ring.cast::<Latencies>().as_ref() }
}

/// Where the times of a ring's connection are, or of the process: made, if there are none yet.
fn of(ring: &Ring, now: u64) -> Option<&'static Latencies> {
    match ring.latencies.load(Acquire) {
        0 => open(ring, now),
        // (`OPENING` is no place's number.)
        i => place(i),
    }
}

/// Stands for the place that a thread is about to make.
const OPENING: u32 = u32::MAX;

#[cold]
fn open(ring: &Ring, now: u64) -> Option<&'static Latencies> {
    // (A call that ends when its connection is over needs none.)
    if ring.state.load(Relaxed) != State::Open as u32
        || ring.latencies.compare_exchange(0, OPENING, AcqRel, Relaxed).is_err()
    {
        return None;
    }
    let new = never_used(now).and_then(|i| Some((i, place(i)?)));
    if let Some((_, new)) = new {
        new.open(ring.number.load(Relaxed));
    }
    ring.latencies.store(new.map_or(0, |(i, _)| i), Release);
    new.map(|(_, new)| new)
}

fn never_used(now: u64) -> Option<u32> {
    // (Half of all: a connection has a ring first.)
    let h = super::header().filter(|h| (h.latencies.load(Relaxed) as usize) < RINGS / 2)?;
    let new = super::never_used();
    if new.is_some() {
        h.latencies.fetch_add(1, Relaxed);
    } else if now >= super::GROW_NOT_BEFORE.load(Relaxed) {
        super::WANTED.store(true, Relaxed);
    }
    new.map(|(i, _)| i)
}

/// Another connection has the ring from here on, and its place.
pub(super) fn begin_anew(ring: &Ring) {
    if let Some(own) = place(ring.latencies.load(Acquire)) {
        own.open(ring.number.load(Relaxed));
    }
}

/// A time counts for the ring's connection and for the process.
fn count(ring: &Ring, (which, took): (Latency, u64), now: u64) {
    // Without a place the process's times are still all there.
    let all = super::ring(0).and_then(|all| of(all, now));
    of(ring, now).into_iter().chain(all).for_each(|times| times.count(which, took));
}

/// A call that sends, while it is under way.
pub(crate) struct Begun {
    ns: u64,
    /// The turn of before.
    before: u64,
    /// That has come to its end by this, if the call sends something.
    serve: Option<(Latency, u64)>,
}

/// A call begins of a direction whose calls are recorded. Before the first one that is what had
/// moved is said as a sum: from here on each has an event of its own.
fn begins(ring: &Ring, way: &Way<'_>, now: u64) {
    let since = SINCE.load(Relaxed) | 1;
    if way.followed.load(Relaxed) != since && way.followed.swap(since, Relaxed) != since {
        way.tell(ring, now);
    }
}

/// A call begins that sends on the ring's connection. (Before its first byte can be seen: what
/// comes of it comes later.)
pub(crate) fn send_begins(ring: &Ring, moved: Option<&ConnRecord>) -> Begun {
    let (ns, before) = (sys::now_ns(), ring.turn.load(Relaxed));
    if let Some(moved) = moved {
        begins(ring, &Way::sent(ring, moved), ns);
    }
    Begun { ns, before, serve: ring.turn(true, ns, SINCE.load(Relaxed)) }
}

/// It has sent so much, from that byte of the stream on.
pub(crate) fn sent(
    ring: &Ring,
    moved: Option<&ConnRecord>,
    begun: &Begun,
    (offset, bytes): (u64, u64),
) {
    if let Some(serve) = begun.serve {
        count(ring, serve, begun.ns);
    }
    ring.record(Event::Send, begun.ns, offset & OFFSET_MASK | bytes.min(BYTES_MAX) << 40);
    // (Marked by when it is written: a send may have waited for long.)
    super::lives(ring, sys::now_ns());
    if let Some(moved) = moved {
        Way::sent(ring, moved).has_told(bytes);
    }
}

/// It has sent nothing: the turn of before goes on. (Unless another thread's call has ended this
/// one's meanwhile.)
pub(crate) fn sent_nothing(ring: &Ring, begun: &Begun) {
    let own = begun.ns << 1 | 1;
    let _ = ring.turn.compare_exchange(own, begun.before, Relaxed, Relaxed);
}

/// A call begins that receives.
pub(crate) fn receive_begins(ring: &Ring, moved: &ConnRecord) {
    begins(ring, &Way::received(ring, moved), sys::now_ns());
}

/// It has received so much, from that byte of the stream on.
pub(crate) fn received(ring: &Ring, moved: Option<&ConnRecord>, offset: u64, bytes: u64) {
    let now = sys::now_ns();
    if let Some(answer) = ring.turn(false, now, SINCE.load(Relaxed)) {
        count(ring, answer, now);
    }
    ring.record(Event::Receive, now, offset & OFFSET_MASK | bytes.min(BYTES_MAX) << 40);
    super::lives(ring, now);
    if let Some(moved) = moved {
        Way::received(ring, moved).has_told(bytes);
    }
}
