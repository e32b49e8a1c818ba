//! What makes a connection's trace worth being kept when it and its process end in order: a timeout
//! of TCP in user space, a break, and waits that were too long (`NACC_TRACE_SLOW_MS`).
//!
//! Only waits count in which somebody has failed to do something: a send that found no room, as the
//! peer does not read (where no thread sleeps in it, `io/watch.rs` sees that); an agreement of a
//! connection that was used all the while; a queue pair on which nothing arrives. Who waits for the
//! next request, or for its answer, is not slow: that may take as long as the program at the other
//! end likes.

use super::Event;
use crate::config;
use core::sync::atomic::{AtomicBool, Ordering::*};
use netacc_control::stats::ConnRecord;
use netacc_control::trace::{Ring, Slow};

/// Of the sides of [`Event::Sleep`].
const SEND: u64 = 1;
/// Of [`Ring::send_waits`]: no thread sleeps in that send, and nobody has told of the wait.
const UNTOLD: u64 = 1;
/// An agreement is slow where the connection has been used so often meanwhile. (It takes calls of
/// both ends; one that is hardly used has all the time that it likes.)
const CALLS: u32 = 100;

/// Some connection's trace is worth being kept.
pub(super) static ANY: AtomicBool = AtomicBool::new(false);

/// How long is too long; `None`: nothing is.
pub(crate) fn bound_ns() -> Option<u64> {
    let ms = config::get().trace_slow_ms;
    (ms != 0).then(|| u64::from(ms) * 1_000_000)
}

/// An event was recorded. Says what it ends, if that took too long, and for how long.
pub(super) fn look(
    ring: &Ring,
    moved: Option<&ConnRecord>,
    (event, what): (Event, u64),
    now: u64,
) -> Option<(Slow, u64)> {
    let since = match event {
        Event::Rto | Event::Slow | Event::BrokenOff | Event::Corrupt => {
            super::trouble::begins(ring);
            ANY.store(true, Relaxed);
            return None;
        }
        Event::Sleep | Event::Full if what & 0xff == SEND => {
            // (A thread may be woken and find no room all the same: that is one wait. Where nobody
            // counts what is sent, each is one.)
            let sent = moved.map(sent);
            let goes_on = sent.is_some_and(|sent| sent == ring.send_from.load(Relaxed));
            let since = match ring.send_waits.load(Relaxed) {
                since if goes_on && since != 0 => since,
                _ => now | UNTOLD,
            };
            ring.send_from.store(sent.unwrap_or(0), Relaxed);
            let asleep = event == Event::Sleep;
            ring.send_waits.store(if asleep { since & !UNTOLD } else { since }, Relaxed);
            return None;
        }
        Event::Noted => {
            ring.noted.store(now, Relaxed);
            ring.noted_calls.store(calls(moved), Relaxed);
            return None;
        }
        Event::Wake if what & 0xff == SEND => (Slow::Send, ring.send_waits.load(Relaxed)),
        Event::Offered => {
            let since = ring.noted.swap(0, Relaxed);
            let used = calls(moved).wrapping_sub(ring.noted_calls.load(Relaxed)) >= CALLS;
            (Slow::Agreement, if used { since } else { 0 })
        }
        _ => return None,
    };
    let (slow, since) = since;
    let took = if since == 0 { 0 } else { now.saturating_sub(since) };
    bound_ns().filter(|bound| took >= *bound)?;
    if slow == Slow::Send {
        ring.send_waits.store(0, Relaxed);
    }
    Some((slow, took))
}

/// There is no room in a ring for what is sent: the same for a program whose calls do not wait. It
/// has found none, and has sent nothing since. Told once.
pub(super) fn still_waits(ring: &Ring, moved: &ConnRecord, now: u64) -> Option<u64> {
    let since = ring.send_waits.load(Relaxed);
    if since & UNTOLD == 0 || sent(moved) != ring.send_from.load(Relaxed) {
        return None;
    }
    let took = now.saturating_sub(since);
    bound_ns().filter(|bound| took >= *bound)?;
    ring.send_waits.store(since & !UNTOLD, Relaxed);
    Some(took)
}

/// The lowest bits of how much was sent.
fn sent(r: &ConnRecord) -> u32 {
    r.tx_bytes.iter().fold(0u64, |sum, bytes| sum.wrapping_add(bytes.load(Relaxed))) as u32
}

/// How often something was sent or received.
fn calls(moved: Option<&ConnRecord>) -> u32 {
    let sum = |r: &ConnRecord| {
        r.tx_messages.load(Relaxed).wrapping_add(r.rx_messages.load(Relaxed)) as u32
    };
    moved.map_or(0, sum)
}

/// Which wait it was and how long, as [`Event::Slow`] says it.
pub(crate) fn what(slow: Slow, ns: u64) -> u64 {
    slow as u64 | (ns / 1_000_000).min(u64::from(u32::MAX)) << 8
}
