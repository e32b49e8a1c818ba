//! What is kept of connections that go badly, or are in trouble: the ring of one that is over, and
//! an excerpt of one that goes on.
//!
//! A connection that goes on has soon recorded more than its ring holds. So half of the last events
//! behind the trouble its ring is copied into another one: what led to it, and what came of it. An
//! excerpt has the number of its connection, and its events those of the ring: readers put them
//! together (`netacc_control::trace::whole`).

use super::{WANTED, header, lives, take};
use core::sync::atomic::{AtomicU32, Ordering::*};
use netacc_control::trace::{EVENTS, EVENTS_FIRST, Ring, State};

/// Rings that are kept.
static KEPT: AtomicU32 = AtomicU32::new(0);
/// Excerpts.
static EXCERPTS: AtomicU32 = AtomicU32::new(0);

/// Most rings that are kept.
pub(super) const KEPT_MAX: u32 = 1024;
/// Most excerpts; and of a connection: how its troubles began. (Its ring has the last one.)
pub(super) const EXCERPTS_MAX: u32 = 256;
const OF_ONE_MAX: u32 = 4;
/// So many events behind a trouble it is copied.
pub(super) const BEHIND: u32 = (EVENTS - EVENTS_FIRST) as u32 / 2;

pub(super) fn is_any_kept() -> bool {
    KEPT.load(Relaxed) != 0
}

/// A child keeps none of its parent's.
pub(super) fn forget() {
    KEPT.store(0, Relaxed);
    EXCERPTS.store(0, Relaxed);
}

/// One more, of so many at most.
fn add(count: &AtomicU32, most: u32) -> bool {
    count.fetch_update(Relaxed, Relaxed, |n| (n < most).then_some(n + 1)).is_ok()
}

/// A connection goes badly, or is in trouble: counted once of each.
pub(super) fn is_worth(ring: &Ring) {
    if ring.worth.swap(1, Relaxed) == 0
        && let Some(h) = header()
    {
        h.troubles.fetch_add(1, Relaxed);
    }
}

/// An event that says so was recorded. (Of several before the ring is copied the first one counts.)
pub(super) fn begins(ring: &Ring) {
    is_worth(ring);
    if ring.excerpts.load(Relaxed) < OF_ONE_MAX {
        let now = (ring.head.load(Relaxed) as u32).max(1);
        let _ = ring.trouble_at.compare_exchange(0, now, Release, Relaxed);
    }
}

/// An event was recorded behind a trouble.
#[cold]
#[inline(never)]
pub(super) fn goes_on(ring: &Ring, now: u64) {
    let number = ring.number.load(Acquire);
    let since = ring.trouble_at.load(Acquire);
    let behind = (ring.head.load(Relaxed) as u32).wrapping_sub(since);
    // (One thread does it; a signal handler that comes meanwhile finds nothing to do.)
    let is_due = since != 0 && behind >= BEHIND;
    if !is_due || ring.trouble_at.compare_exchange(since, 0, Relaxed, Relaxed).is_err() {
        return;
    }
    let Some(h) = header().filter(|_| add(&EXCERPTS, EXCERPTS_MAX)) else { return };
    let Some((_, excerpt)) = take() else {
        // (There may be room at the next event.)
        WANTED.store(true, Relaxed);
        let _ = EXCERPTS.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        let _ = ring.trouble_at.compare_exchange(0, since, Relaxed, Relaxed);
        return;
    };
    let is_whole = excerpt.copy(ring, number);
    if !header().is_some_and(|now| core::ptr::eq(now, h)) {
        // A signal handler has forked: this is the child, and that is its parent's.
        return;
    }
    let state = if is_whole { State::Excerpt } else { State::Closed };
    if is_whole {
        ring.excerpts.fetch_add(1, Relaxed);
        h.excerpts.fetch_add(1, Relaxed);
    } else {
        let _ = EXCERPTS.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
    }
    excerpt.state.store(state as u32, Release);
    lives(excerpt, now);
}

/// The connection is over; `badly`: its ring is kept for longer than others. So is that of one that
/// has been in trouble; but these leave room for those that end badly.
pub(crate) fn close(ring: &Ring, badly: bool) {
    if badly {
        is_worth(ring);
    }
    let worth = ring.worth.load(Relaxed) != 0;
    let keeps = worth && add(&KEPT, if badly { KEPT_MAX } else { KEPT_MAX / 2 });
    ring.state.store(if keeps { State::Kept } else { State::Closed } as u32, Release);
}
