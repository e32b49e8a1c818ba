//! The trace of this process: what has become of its connections, for `netacc trace`
//! (`docs/design/trace.md`).
//!
//! A ring of events for each connection, in memory that has a name (`file.rs`) and so is there when
//! the process was killed. To record takes no lock, no memory and no system call; signal handlers
//! may. A connection has a ring when it has shown that it lives: one of a single request and its
//! reply costs nothing. What takes system calls (the file, more of it) the library's own threads
//! do, beside their other work ([`keep_ready`]): who finds no ring has one with a later event.

use crate::{config, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use netacc_control::stats::{ConnRecord, Path};
use netacc_control::trace::{BECAME_ANOTHER, Header, RINGS, Ring, State};
pub(crate) use netacc_control::trace::{Event, Slow};

mod calls;
mod file;
mod left;
mod place;
pub(crate) mod slow;
mod trouble;
pub(crate) use calls::{
    Begun, before_turn, receive_begins, received, send_begins, sent, sent_nothing,
};
pub(crate) use trouble::close;

static HEADER: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());
/// It was tried to make the file.
static TRIED: AtomicU32 = AtomicU32::new(0);
/// Rings up to here have memory.
static READY: AtomicU32 = AtomicU32::new(0);
/// Rings from here on were never used.
static UNUSED: AtomicU32 = AtomicU32::new(0);
/// Where the search for a ring to be used again begins: at what was given back first, about.
static HAND: AtomicU32 = AtomicU32::new(0);
/// A thread is at the file.
static GROWING: AtomicU32 = AtomicU32::new(0);
/// No system call is made for it any more.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// A connection has found no ring, or no file.
static WANTED: AtomicBool = AtomicBool::new(false);
/// When tracing was turned on while the process ran: what is older was found.
static SINCE_UNIX: AtomicU64 = AtomicU64::new(0);
/// It was turned off.
static WAS_OFF: AtomicBool = AtomicBool::new(false);
/// Connections that got a ring.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// When a ring, and when memory for more, is asked for again, after there was none.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
static GROW_NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// So many rings there may be before those of connections that are over serve again.
const HISTORY: u32 = 256;
/// How many are looked at for one.
const LOOKS: u32 = 32;
/// So many places of times it passes over.
const PASSED_MAX: u32 = 1024;
/// After a search in vain the next one is so much later.
const PAUSE_NS: u64 = 1_000_000_000;
/// So many there are from the beginning where each call is recorded, if they can be had.
const AT_ONCE: u32 = 256;

/// Whether connections are traced of which no rule says anything.
#[inline]
pub(crate) fn is_on() -> bool {
    config::get().trace
}

/// Whether some may be.
pub(crate) fn may_be_on() -> bool {
    is_on() || config::get().rules.iter().any(|rule| rule.trace() == Some(true))
}

fn header() -> Option<&'static Header> {
    // SAFETY: once set it points to a mapping of a Header that is never unmapped; all its fields
    // are atomics.
    unsafe { HEADER.load(Acquire).as_ref() }
}

/// The ring of that number, if it has memory in this process: one that another process has given a
/// number to is never looked at by address.
pub(crate) fn ring(i: u32) -> Option<&'static Ring> {
    let base = HEADER.load(Acquire);
    if base.is_null() || i >= READY.load(Acquire) {
        return None;
    }
    // SAFETY: the mapping holds RINGS rings behind the header, of which those below READY have
    // memory; all atomics, all zero valid.
    unsafe {
        let rings = base.cast::<u8>().add(netacc_control::trace::HEADER_BYTES).cast::<Ring>();
        rings.add(i as usize).as_ref()
    }
}

/// Tracing was turned on or off, or up or down. A thread of the library's own.
pub(crate) fn turned() {
    if !is_on() {
        WAS_OFF.store(true, Relaxed);
    } else {
        if WAS_OFF.swap(false, Relaxed) || header().is_none() {
            SINCE_UNIX.store(sys::unix_ns(), Relaxed);
        }
        WANTED.store(true, Relaxed);
        keep_ready();
    }
}

/// Makes room for what comes, and the file when the first connection has asked for it. The threads
/// of the library's own alone do so, when they have worked: nobody else makes system calls for the
/// trace.
pub(crate) fn keep_ready() {
    if !may_be_on() || !is_due() || GROWING.swap(1, SeqCst) != 0 {
        return;
    }
    // (Who forbids it says so, and then looks whether somebody is at it.)
    if !FORBIDDEN.load(SeqCst) {
        WANTED.store(false, Relaxed);
        if header().is_none() {
            begin();
            // (Where each call is recorded connections that stay on TCP are measured as well, and
            // nobody of the library's own may come by for them again.)
            while config::follows_calls() && (1..AT_ONCE).contains(&READY.load(Relaxed)) && grow() {
            }
        } else {
            grow();
        }
    }
    GROWING.store(0, SeqCst);
}

/// The process is about to filter its system calls: none is made for the trace from here on, also
/// at its end. Waits for a thread that is at it, for a while.
pub(crate) fn forbid() {
    FORBIDDEN.store(true, SeqCst);
    for _ in 0..MOST_TURNS {
        if GROWING.load(SeqCst) == 0 {
            return;
        }
        sys::sched_yield();
    }
}

/// So often a thread that is at the file gets its turn before it is waited for no longer.
const MOST_TURNS: u32 = 10_000;

/// Somebody has found no ring, or a quarter of them is left.
fn is_due() -> bool {
    let (unused, ready) = (UNUSED.load(Relaxed), READY.load(Relaxed));
    WANTED.load(Relaxed)
        || (ready == 0 && config::follows_calls())
        || (ready != 0
            && (ready as usize) < RINGS
            && unused.saturating_add(ready / 4) > ready
            && sys::now_ns() >= GROW_NOT_BEFORE.load(Relaxed))
}

#[cold]
fn begin() {
    if TRIED.swap(1, AcqRel) != 0 {
        return;
    }
    place::choose();
    left::make_room();
    let Some((at, ready)) = file::make() else { return };
    HEADER.store(at, Release);
    READY.store(ready, Release);
    let Some(own) = ring(0) else { return };
    UNUSED.store(1, Release);
    if own.claim(State::Free) {
        own.open(0, u32::MAX, sys::now_ns());
    }
}

/// False: there is no memory.
#[cold]
fn grow() -> bool {
    let ready = READY.load(Acquire);
    let more = file::grow(ready);
    READY.store(ready + more, Release);
    let next = if more == 0 { sys::now_ns().saturating_add(PAUSE_NS) } else { 0 };
    GROW_NOT_BEFORE.store(next, Relaxed);
    if more != 0 {
        NOT_BEFORE.store(0, Relaxed);
    }
    more != 0
}

/// A ring for a connection: one that was never used, or that of a connection that is over. With its
/// number.
fn take() -> Option<(u32, &'static Ring)> {
    let rings = UNUSED.load(Relaxed);
    if rings < HISTORY
        && let Some(new) = never_used()
    {
        return Some(new);
    }
    used_again().or_else(never_used)
}

fn used_again() -> Option<(u32, &'static Ring)> {
    let rings = UNUSED.load(Relaxed);
    let (mut looks, mut passed) = (LOOKS.min(rings), PASSED_MAX);
    while looks != 0 && passed != 0 {
        let i = HAND.fetch_add(1, Relaxed) % rings.max(1);
        let found = ring(i).filter(|_| i != 0);
        if let Some(ring) = found.filter(|ring| ring.claim(State::Closed)) {
            return Some((i, ring));
        }
        // (Places of times may lie together, and are none that will ever do.)
        match found.filter(|ring| ring.state.load(Relaxed) == State::Claimed as u32) {
            Some(_) => passed -= 1,
            None => looks -= 1,
        }
    }
    None
}

fn never_used() -> Option<(u32, &'static Ring)> {
    loop {
        let n = UNUSED.load(Acquire);
        if n as usize >= RINGS || n >= READY.load(Acquire) {
            return None;
        }
        if UNUSED.compare_exchange(n, n + 1, AcqRel, Relaxed).is_ok() {
            if let Some(h) = header() {
                h.rings.fetch_max(n + 1, Release);
            }
            // (Otherwise somebody has written there: the next one.)
            if let Some(ring) = ring(n).filter(|ring| ring.claim(State::Free)) {
                return Some((n, ring));
            }
        }
    }
}

/// The number of a ring for a connection that has shown that it lives, and that came to be at that
/// time. 0: there is none now, and the library's own thread will make room.
pub(crate) fn open(fd: i32, event: Event, opened_unix_ns: u64) -> u32 {
    if !may_be_on() {
        return 0;
    }
    let Some(h) = header() else {
        WANTED.store(true, Relaxed);
        return 0;
    };
    let now = sys::now_ns();
    // (One without a ring asks with each event.)
    if now < NOT_BEFORE.load(Relaxed) {
        return 0;
    }
    let Some((i, ring)) = take() else {
        WANTED.store(true, Relaxed);
        NOT_BEFORE.store(now.saturating_add(PAUSE_NS), Relaxed);
        return 0;
    };
    let since = opened_unix_ns.saturating_sub(h.began_unix_ns.load(Relaxed));
    let opened = h.began_ns.load(Relaxed).saturating_add(since).min(now);
    let (event, opened) = match event {
        Event::Found => (event, now),
        _ if opened_unix_ns < SINCE_UNIX.load(Relaxed) => (Event::Found, now),
        _ => (event, opened),
    };
    ring.open(NUMBER.fetch_add(1, Relaxed) + 1, fd as u32, opened);
    calls::begin_anew(ring);
    ring.record(event, opened, u64::from(fd as u32));
    lives(ring, now);
    i
}

/// A connection that is traced has ended, and had shown that it lived, and had no ring.
pub(crate) fn missed() {
    if let Some(h) = header() {
        h.missed.fetch_add(1, Relaxed);
    }
}

/// An event of that time was recorded in a ring.
fn lives(ring: &Ring, now: u64) {
    if let Some(h) = header() {
        h.lives(now);
        let [at, begin] = [core::ptr::from_ref(ring).addr(), core::ptr::from_ref(h).addr()];
        h.has_changed(at.wrapping_sub(begin), now);
    }
    if ring.trouble_at.load(Relaxed) != 0 {
        trouble::goes_on(ring, now);
    }
}

/// Records an event of a connection, and before it what has moved since the last one.
pub(crate) fn record(ring: &Ring, moved: Option<&ConnRecord>, event: Event, what: u64) {
    let now = sys::now_ns();
    // (Where each call is recorded that is said already.)
    if let Some(moved) = moved.filter(|_| !config::follows_calls()) {
        record_moved(ring, moved, now);
    }
    ring.record(event, now, what);
    lives(ring, now);
    if let Some((which, ns)) = slow::look(ring, moved, (event, what), now) {
        record(ring, None, Event::Slow, slow::what(which, ns));
    }
}

/// Records what has moved, without an event, if that was not done in the same few milliseconds.
pub(crate) fn look(ring: &Ring, moved: &ConnRecord) {
    if config::follows_calls() {
        return;
    }
    let ms = (sys::unix_ns_coarse() / 1_000_000) as u32;
    if ring.looked_at_ms.swap(ms, Relaxed) != ms {
        record_moved(ring, moved, sys::now_ns());
    }
}

/// The event that was recorded last happens once more, and is not recorded.
pub(crate) fn happens_again(ring: &Ring, moved: Option<&ConnRecord>, event: Event, what: u64) {
    slow::look(ring, moved, (event, what), sys::now_ns());
}

/// A ring has no room for what is sent, and nobody takes anything out.
pub(crate) fn still_full(ring: &Ring, moved: &ConnRecord) {
    if let Some(ns) = slow::still_waits(ring, moved, sys::now_ns()) {
        record(ring, Some(moved), Event::Slow, slow::what(Slow::Send, ns));
    }
}

/// An event has so many bits for messages, and for bytes.
const MESSAGES_MAX: u64 = (1 << 24) - 1;
const BYTES_MAX: u64 = (1 << 36) - 1;

fn record_moved(ring: &Ring, moved: &ConnRecord, now: u64) {
    [Way::sent(ring, moved), Way::received(ring, moved)].iter().for_each(|way| way.tell(ring, now));
}

/// What has moved on a connection in one direction, and how much of that events have said.
struct Way<'a> {
    bytes: &'a [AtomicU64; Path::ALL.len()],
    said: &'a [AtomicU64; Path::ALL.len()],
    messages: &'a AtomicU64,
    messages_said: &'a AtomicU64,
    /// Since when its calls are recorded one by one.
    followed: &'a AtomicU64,
    event: Event,
}

impl<'a> Way<'a> {
    fn sent(ring: &'a Ring, moved: &'a ConnRecord) -> Way<'a> {
        let ([messages_said, _], [followed, _]) = (&ring.messages, &ring.followed);
        let (bytes, said, messages) = (&moved.tx_bytes, &ring.sent, &moved.tx_messages);
        Way { bytes, said, messages, messages_said, followed, event: Event::Sent }
    }

    fn received(ring: &'a Ring, moved: &'a ConnRecord) -> Way<'a> {
        let ([_, messages_said], [_, followed]) = (&ring.messages, &ring.followed);
        let (bytes, said, messages) = (&moved.rx_bytes, &ring.received, &moved.rx_messages);
        Way { bytes, said, messages, messages_said, followed, event: Event::Received }
    }

    /// Records what no event has said.
    fn tell(&self, ring: &Ring, now: u64) {
        for (path, (count, said)) in Path::ALL.iter().zip(self.bytes.iter().zip(self.said)) {
            let bytes = told(count, said, BYTES_MAX);
            if bytes != 0 {
                // (Those of several paths count for the first.)
                let messages = told(self.messages, self.messages_said, MESSAGES_MAX);
                ring.record(self.event, now, *path as u64 | messages << 4 | bytes << 28);
                lives(ring, now);
            }
        }
    }

    /// One message of so many bytes has an event of its own: no sum has to say it.
    fn has_told(&self, bytes: u64) {
        self.messages_said.fetch_add(1, Relaxed);
        let mut left = bytes;
        for (count, said) in self.bytes.iter().zip(self.said) {
            let more = untold(count.load(Relaxed), said.load(Relaxed)).min(left);
            if more != 0 {
                said.fetch_add(more, Relaxed);
                left = left.saturating_sub(more);
            }
        }
        // (A call of the kernel's is counted behind its event.)
        if let Some(tcp) = self.said.get(Path::Tcp as usize).filter(|_| left != 0) {
            tcp.fetch_add(left, Relaxed);
        }
    }
}

/// By how much a count is above what was said of it. (In the other half of all numbers: more has
/// been said.)
fn untold(count: u64, said: u64) -> u64 {
    let more = count.wrapping_sub(said);
    if more > u64::MAX >> 1 { 0 } else { more }
}

/// By how much a count has grown since it was said; it is said now. (Two threads may be at it.)
fn told(count: &AtomicU64, said: &AtomicU64, most: u64) -> u64 {
    let before = said.load(Relaxed);
    let more = untold(count.load(Relaxed), before).min(most);
    if more == 0 {
        return 0;
    }
    match said.compare_exchange(before, before.wrapping_add(more), Relaxed, Relaxed) {
        Ok(_) => more,
        Err(_) => 0,
    }
}

/// Records an event of the process, if it has connections that are traced.
pub(crate) fn process(event: Event, what: u64) {
    if may_be_on()
        && let Some(own) = ring(0)
    {
        let now = sys::now_ns();
        own.record(event, now, what);
        lives(own, now);
    }
}

/// The process is about to become another program.
pub(crate) fn before_exec() {
    if let Some(h) = header().filter(|_| file::is_ours()) {
        process(Event::Exec, 0);
        h.ended.store(BECAME_ANOTHER, Relaxed);
    }
}

/// That has failed.
pub(crate) fn exec_failed() {
    if let Some(h) = header().filter(|_| file::is_ours()) {
        h.ended.store(0, Relaxed);
    }
}

/// What is told of a doorbell: by the channel, of whom it has on the slot ([`set_bell`]).
pub(crate) fn rang(socket: *mut ()) {
    // SAFETY: null, or what was set, for ever.
    if let Some(told) = unsafe { BELL.load(Acquire).as_ref() } {
        told(socket);
    }
}

static BELL: AtomicPtr<fn(*mut ())> = AtomicPtr::new(core::ptr::null_mut());

/// Who knows what a channel's sockets are. Once, before the first socket.
pub(crate) fn set_bell(told: &'static fn(*mut ())) {
    BELL.store(core::ptr::from_ref(told).cast_mut(), Release);
}

/// The process ends in order: its trace goes, unless a connection went badly or was in trouble.
pub(crate) fn at_exit() {
    // (A child that nobody saw being made has its parent's.)
    let Some(h) = header().filter(|_| file::is_ours()) else { return };
    process(Event::Exit, 0);
    h.ended.store(1, Relaxed);
    // (Others take away what is left, where it is too much.)
    let is_worth = trouble::is_any_kept() || slow::ANY.load(Relaxed);
    if !is_worth && !FORBIDDEN.load(Relaxed) {
        file::remove();
    }
}

/// There is no memory at `address`: true, if it was the trace's. Somebody has made the file
/// shorter; the process goes on, and records nothing any more.
pub(crate) fn lost(address: usize) -> bool {
    if !file::lose(address) {
        return false;
    }
    HEADER.store(core::ptr::null_mut(), Release);
    true
}

/// A child has a trace of its own. It records nothing of sockets that it has inherited: the numbers
/// of their rings are their maker's. (The parent's stays mapped: a handler that has interrupted an
/// event may be what forks.)
pub(crate) fn after_fork_in_child() {
    HEADER.store(core::ptr::null_mut(), Release);
    file::forget();
    for word in [&TRIED, &READY, &UNUSED, &HAND, &GROWING] {
        word.store(0, Relaxed);
    }
    trouble::forget();
    for word in [&NUMBER, &NOT_BEFORE, &GROW_NOT_BEFORE] {
        word.store(0, Relaxed);
    }
    WANTED.store(false, Relaxed);
    slow::ANY.store(false, Relaxed);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]
mod tests;
