//! Who waits at an end of a connection, and who rings whom.
//!
//! What this is not: a system call. A doorbell is a number here, and whoever has to ring it is told
//! so; the caller sleeps.
//!
//! A *place* is where one epoll set or one thread is woken: a [`ReadySet`] in memory that is shared
//! with the peer, and a doorbell. A connection's *NOTIFY* word says in which places somebody waits
//! for a direction's news: bits 0 to 15 a set's place + 1, bits 16 to 31 a thread's, bit 32 that
//! the end is over ([`ENDS`]). A connection may be in some sets more ([`SETS`]): bits 40 to 63 are
//! a byte for each of these, which counts the places of sets from 1.
//!
//! # Why nobody sleeps through what was said
//!
//! "Fence" is a full (`SeqCst`) fence. All of it is one argument: each side says its own, fences,
//! and looks at what the other says. Of the two fences one comes first, and the other side sees
//! what was said before it.
//!
//! | who sleeps | says | then looks at |
//! |---|---|---|
//! | a receiver | NOTIFY, `sleeping` | the tail, and what else `prod` is called for |
//! | a sender without room | NOTIFY, `sleeping`, `space_wanted` | the head |
//! | a set that takes a connection over | NOTIFY | the connection |
//! | a receiver that ends, by [`end`] | [`ENDS`] in NOTIFY | the tail |
//! | a thread that looks now and then, by [`Watch`] | that it is not going to look again | what it watches |
//! | a thread in the kernel's own wait | that it is there ([`Outside`]) | whether the set is active |
//! | a thread with a new doorbell | the doorbell ([`hand_over`]) | whether the channel is dead |
//!
//! | who wakes | says | then looks at |
//! |---|---|---|
//! | a sender, by [`whom_to_tell`] and [`tell`] | the tail | NOTIFY, `sleeping` |
//! | a consumer, by [`RingWords::take_space_request`] | the head | `space_wanted`, and behind it NOTIFY, `sleeping` |
//! | who brings something that is watched | the tail | whether the thread is going to look |
//! | this process, by [`Posted::awaited`] | any change that no peer announces | who is posted |
//! | the set's first accelerated connection | that the set is active | who is there |
//! | who finds the peer dead | that it is | which doorbells there are |
//!
//! A ring that comes late finds another sleeper in the place: that one looks once in vain. It lost
//! nothing, because whoever elected itself to ring has taken `sleeping` away, and does ring.

use crate::ready::ReadySet;
use crate::ring::RingWords;
use crate::sync::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*, fence, fence_after_rmw,
};

/// Places of one side.
pub const PLACES: usize = 256;
/// Those below are for threads, the others for sets.
pub const THREAD_PLACES: usize = PLACES / 2;
/// So many sets can be told of one connection.
pub const SETS: usize = 4;

const THREAD_SHIFT: u32 = 16;
/// A place in a NOTIFY word.
const PLACE_MASK: u64 = 0xffff;
/// Where the sets but the first begin.
const MORE_SHIFT: u32 = 40;
const MORE_BITS: u32 = 8;
const MORE_MASK: u64 = (1 << MORE_BITS) - 1;
const _: () = {
    assert!(PLACES - THREAD_PLACES < 1 << MORE_BITS);
    assert!(MORE_SHIFT + MORE_BITS * (SETS as u32 - 1) == u64::BITS);
};

/// Which direction's news a blocked thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// It waits for bytes.
    Receive,
    /// It waits for room.
    Send,
}

/// Calls `f` for each set that a NOTIFY word names: which of the connection's it is, and its place.
#[inline(always)]
pub fn for_each_set(notify: u64, mut f: impl FnMut(usize, usize)) {
    if let Some(set) = place_of(notify) {
        f(0, set);
    }
    if notify >> MORE_SHIFT != 0 {
        for_each_more(notify, &mut f);
    }
}

/// As [`for_each_set`], of those but the first.
#[cold]
fn for_each_more(notify: u64, f: &mut impl FnMut(usize, usize)) {
    for (at, byte) in (1..SETS).zip((notify >> MORE_SHIFT).to_le_bytes()) {
        let place = usize::from(byte);
        if place != 0 && place <= PLACES.wrapping_sub(THREAD_PLACES) {
            f(at, place.wrapping_sub(1).wrapping_add(THREAD_PLACES));
        }
    }
}

/// What stands in a NOTIFY word for a set's `place` (+ 1; 0: none), the connection's `at`-th.
fn set_field(at: usize, place: u32) -> u64 {
    let byte = u64::from(place.saturating_sub(THREAD_PLACES as u32)) & MORE_MASK;
    match at & (SETS - 1) {
        0 => u64::from(place),
        1 => byte << MORE_SHIFT,
        2 => byte << (MORE_SHIFT + MORE_BITS),
        _ => byte << (MORE_SHIFT + 2 * MORE_BITS),
    }
}

#[inline(always)]
const fn place_of(field: u64) -> Option<usize> {
    let place = (field & PLACE_MASK) as usize;
    if place != 0 && place <= PLACES { Some(place.wrapping_sub(1)) } else { None }
}

/// Of a NOTIFY word: the consumer takes nothing more from the ring.
pub const ENDS: u64 = 1 << 32;

/// Of a consumer that is about to end: its producers find [`ENDS`], or have published before
/// whatever the caller looks at next.
pub fn end(notify: &AtomicU64) {
    notify.fetch_or(ENDS, SeqCst);
    fence_after_rmw();
}

/// What a NOTIFY word says, for who has just changed what its sleepers look at.
#[inline(always)]
#[must_use]
pub fn whom_to_tell(notify: &AtomicU64) -> u64 {
    fence(SeqCst);
    notify.load(Relaxed)
}

/// Tells those who wait for a slot. `notify` is what [`whom_to_tell`] gave behind the change.
/// `place` is the [`ReadySet`] of a place, `stamp` as [`ReadySet::announce_in_order`] has it, for
/// that of the connection's sets, `ring` rings the doorbell of a place.
#[inline(always)]
pub fn tell<'a>(
    notify: u64,
    slot: u16,
    place: impl Fn(usize) -> &'a ReadySet,
    stamp: impl Fn(usize, bool),
    ring: impl Fn(usize),
) {
    for_each_set(notify, |at, set| {
        if place(set).announce_in_order(slot, |all| stamp(at, all)) {
            ring(set);
        }
    });
    if let Some(thread) = place_of(notify >> THREAD_SHIFT)
        && place(thread).wake_fenced()
    {
        ring(thread);
    }
}

impl RingWords {
    /// Is half of the ring free that this end produces into up to `tail`?
    #[inline(always)]
    #[must_use]
    pub fn has_room(&self, tail: u64, size: u64) -> bool {
        let peers = self.head.load(Acquire);
        // (A fast peer may have consumed what another thread has published and not said here yet.)
        tail.wrapping_sub(peers).cast_signed() <= (size >> 1).cast_signed()
    }

    /// As [`has_room`](Self::has_room); if there is none, the consumer is asked to tell when there
    /// is, by [`take_space_request`](Self::take_space_request). Every look that precedes a sleep
    /// asks.
    #[inline]
    #[must_use]
    pub fn has_room_or_ask(&self, tail: impl Fn() -> u64, size: u64) -> bool {
        if self.has_room(tail(), size) {
            return true;
        }
        self.space_wanted.swap(1, SeqCst);
        fence_after_rmw();
        self.has_room(tail(), size)
    }

    /// Behind a head that was published: was the consumer asked to tell, and is there `room`? Then
    /// the caller tells the producer.
    #[inline]
    #[must_use]
    pub fn take_space_request(&self, room: impl FnOnce() -> bool) -> bool {
        fence(SeqCst);
        self.space_wanted.load(Relaxed) != 0 && room() && self.space_wanted.swap(0, Relaxed) != 0
    }
}

/// Whom the peer is to wake, as this process knows it: never read back from the NOTIFY words, which
/// the peer can write. All zero: nobody.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Posted {
    /// Sets' places + 1.
    sets: [AtomicU32; SETS],
    /// A blocked thread's place + 1, one for each direction.
    threads: [AtomicU32; 2],
}

/// Who waits for a connection in this process; each a place + 1, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// In sets.
    pub sets: [u32; SETS],
    /// Threads for each direction.
    pub threads: [u32; 2],
}

/// Changes a word that both ends write. False: `to` did not want to, or the peer changes it all the
/// time.
fn change(word: &AtomicU64, to: impl Fn(u64) -> Option<u64>) -> bool {
    const TRIES: usize = 100;
    let mut now = word.load(SeqCst);
    for _ in 0..TRIES {
        let Some(next) = to(now) else { return false };
        match word.compare_exchange(now, next, SeqCst, SeqCst) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

impl Posted {
    /// Nobody waits: the memory serves another connection.
    pub fn begin(&self) {
        for word in self.sets.iter().chain(&self.threads) {
            word.store(0, Relaxed);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "masked: there are two")]
    fn thread_of(&self, side: Side) -> &AtomicU32 {
        &self.threads[side as usize & 1]
    }

    /// The thread's place + 1 that stands in the NOTIFY word of a direction; 0: none.
    #[must_use]
    pub fn thread(&self, side: Side) -> u32 {
        self.thread_of(side).load(SeqCst)
    }

    #[expect(clippy::indexing_slicing, reason = "masked: there are four")]
    fn set_at(&self, at: usize) -> &AtomicU32 {
        &self.sets[at & (SETS - 1)]
    }

    /// The place + 1 of the connection's `at`-th set that stands in the NOTIFY words; 0: none.
    #[must_use]
    pub fn set(&self, at: usize) -> u32 {
        self.set_at(at).load(SeqCst)
    }

    /// Who has to look, because something has changed that no peer announces.
    #[must_use]
    pub fn awaited(&self) -> Awaited {
        fence(SeqCst);
        let threads = self.threads.each_ref().map(|thread| thread.load(Relaxed));
        Awaited { sets: self.sets.each_ref().map(|set| set.load(Relaxed)), threads }
    }

    /// Puts a thread there, before its [`ReadySet::prepare_sleep`] and its last look. False:
    /// another one's place stands there. What else stands in the word is the peer's doing, or of
    /// the next connection on this slot, which `is_ours` tells.
    #[must_use]
    pub fn post_thread(
        &self,
        side: Side,
        place: u32,
        word: &AtomicU64,
        is_ours: impl Fn() -> bool,
    ) -> bool {
        let posted = self.thread_of(side);
        if let Err(now) = posted.compare_exchange(0, place, SeqCst, SeqCst) {
            return now == place;
        }
        let (field, mine) = thread_field(place);
        let done =
            change(word, |now| (now & field == 0 || is_ours()).then_some(now & !field | mine));
        if !done {
            posted.store(0, SeqCst);
        }
        done
    }

    /// Takes it out again, if it stands there.
    pub fn unpost_thread(&self, side: Side, place: u32, word: &AtomicU64) {
        let posted = self.thread_of(side);
        if posted.load(SeqCst) == place {
            // First: whoever comes next finds the word empty. (If the slot is another connection's
            // by now, its thread stands there.)
            let (field, mine) = thread_field(place);
            change(word, |now| (now & field == mine).then_some(now & !field));
            posted.store(0, SeqCst);
        }
    }

    /// Sets the place of the connection's `at`-th set, in the NOTIFY words of both directions. The
    /// caller looks at the connection afterwards: what was announced to the set before is not
    /// announced again.
    pub fn post_set(&self, at: usize, place: u32, words: [&AtomicU64; 2]) {
        let old = self.set_at(at).swap(place, SeqCst);
        let change = set_field(at, old) ^ set_field(at, place);
        for word in words {
            word.fetch_xor(change, SeqCst);
        }
        fence_after_rmw();
    }
}

const fn thread_field(place: u32) -> (u64, u64) {
    (PLACE_MASK << THREAD_SHIFT, (place as u64) << THREAD_SHIFT)
}

/// A doorbell of the peer's: its number (-1: it has not come yet), and whether it was wanted
/// before, a bit of `owed`.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    /// Its number.
    pub number: &'a AtomicI32,
    /// Which of several are owed.
    pub owed: &'a AtomicU64,
    /// The bit of this one.
    pub bit: u64,
}

impl Doorbell<'_> {
    /// It is wanted now. The number to ring; `None`: whoever learns it rings.
    #[must_use]
    pub fn want(&self) -> Option<i32> {
        let mut number = self.number.load(Acquire);
        if number < 0 {
            // Of this and the change in `learn` one comes second, and sees what precedes the other.
            self.owed.fetch_or(self.bit, AcqRel);
            number = self.number.load(Acquire);
        }
        (number >= 0).then_some(number)
    }

    /// It has come. Which one it takes the place of (-1: none), and whether it is to be rung.
    #[must_use]
    pub fn learn(&self, number: i32) -> (i32, bool) {
        let old = self.number.swap(number, AcqRel);
        (old, self.owed.fetch_and(!self.bit, AcqRel) & self.bit != 0)
    }
}

/// A doorbell of this end's has been given to the peer. False: the peer is dead, and may have died
/// before it was seen by whoever rings for the dead.
#[must_use]
pub fn hand_over(place: &AtomicI32, number: i32, dead: &AtomicU32) -> bool {
    place.store(number, Release);
    fence(SeqCst);
    dead.load(Acquire) == 0
}

/// The peer is dead, as its channel says by now: calls `ring` for each place that it has a doorbell
/// of.
pub fn ring_for_the_dead<'a>(
    doorbells: impl Iterator<Item = &'a AtomicI32>,
    mut ring: impl FnMut(usize),
) {
    fence(SeqCst);
    for (place, doorbell) in doorbells.enumerate() {
        if doorbell.load(Acquire) >= 0 {
            ring(place);
        }
    }
}

/// How many threads are in the kernel's own wait for a set that has no accelerated connection yet,
/// in the lower half; in the upper one, how often they were forgotten: a thread may leave its wait
/// by `siglongjmp` or be cancelled in it, and is not counted out.
#[derive(Debug, Default)]
pub struct Outside(AtomicU64);

impl Outside {
    /// Nobody is there.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A thread goes there. What [`leave`](Self::leave) wants of it, and whether it is to come back
    /// at once, because the set is `active` by now.
    #[inline]
    pub fn enter(&self, active: &AtomicBool) -> (u32, bool) {
        let time = (self.0.fetch_add(1, SeqCst) >> 32) as u32;
        fence_after_rmw();
        (time, active.load(Relaxed))
    }

    /// It is not there any more.
    #[inline]
    pub fn leave(&self, time: u32) {
        let next = |word: u64| {
            ((word >> 32) as u32 == time && word as u32 > 0).then(|| word.wrapping_sub(1))
        };
        let _ = self.0.fetch_update(SeqCst, Relaxed, next);
    }

    /// The set is `active` from here on. How many threads have to be called in.
    pub fn activate(&self, active: &AtomicBool) -> u32 {
        active.store(true, SeqCst);
        fence(SeqCst);
        self.count()
    }

    /// How many are there.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(SeqCst) as u32
    }

    /// Those who are there count no more.
    pub fn forget(&self) {
        let next = |word: u64| Some((word >> 32).wrapping_add(1) << 32);
        let _ = self.0.fetch_update(SeqCst, Relaxed, next);
    }
}

/// Whether a thread is going to look at something. It looks again and again while there is news,
/// and not at all otherwise.
#[derive(Debug, Default)]
pub struct Watch(AtomicBool);

impl Watch {
    /// Nobody is going to look.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// There is news, which a `SeqCst` fence followed. True: nobody was going to look, and the
    /// caller wakes the thread. One load, nearly always.
    #[inline]
    #[must_use = "true: wake the thread"]
    pub fn on_news_fenced(&self) -> bool {
        !self.0.load(Relaxed) && !self.0.swap(true, SeqCst)
    }

    /// The thread begins to look. It is woken for what comes from here on.
    pub fn begin_look(&self) {
        self.0.store(false, SeqCst);
        fence(SeqCst);
    }

    /// The thread has found what is worth another look. False: it is woken for that anyway.
    #[must_use]
    pub fn look_again(&self) -> bool {
        !self.0.swap(true, SeqCst)
    }

    /// In a forked child there is no such thread.
    pub fn forget(&self) {
        self.0.store(false, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Every value of both fields of a NOTIFY word, and what else may stand in the word: no place
    /// is touched that is none.
    #[test]
    fn every_notify_word_names_places_or_nobody() {
        let sets: Vec<ReadySet> = (0..PLACES).map(|_| ReadySet::default()).collect();
        sets.iter().for_each(ReadySet::prepare_sleep);
        let rung = core::cell::RefCell::new(Vec::new());
        let valid = |field: u64| (1..=PLACES as u64).contains(&field).then(|| field as usize - 1);
        for field in 0..=PLACE_MASK {
            for other in [0, 1, PLACES as u64, PLACES as u64 + 1, PLACE_MASK] {
                for above in [0, 1 << 32, u64::MAX << 32] {
                    for (set, thread) in [(field, other), (other, field)] {
                        let word = above | thread << THREAD_SHIFT | set;
                        tell(word, 7, |p| &sets[p], |_, _| (), |p| rung.borrow_mut().push(p));
                        let mut expected: Vec<_> = valid(set).into_iter().collect();
                        // (Who is woken once does not sleep any more.)
                        expected.extend(valid(thread).filter(|t| Some(*t) != valid(set)));
                        assert_eq!(*rung.borrow(), expected, "{word:x}");
                        for place in rung.take() {
                            sets[place].drain(|slot| assert_eq!(slot, 7));
                            sets[place].prepare_sleep();
                        }
                    }
                }
            }
        }
    }

    /// Half of a ring, anywhere in the number range, also where a head is ahead of the tail that is
    /// known.
    #[test]
    fn room_is_half_of_the_ring_wherever_numbers_begin() {
        let words = RingWords::default();
        for origin in [0, u64::MAX - 20, (1 << 63) - 20] {
            for size in [2, 4, 8, 16] {
                for (tail, head) in (0..=40u64).flat_map(|tail| (0..=40u64).map(move |h| (tail, h)))
                {
                    words.head.store(origin.wrapping_add(head), Relaxed);
                    words.space_wanted.store(0, Relaxed);
                    let room = tail <= head + size / 2;
                    let tail = origin.wrapping_add(tail);
                    assert_eq!(words.has_room(tail, size), room);
                    assert_eq!(words.has_room_or_ask(|| tail, size), room);
                    assert_eq!(words.space_wanted.load(Relaxed) == 0, room);
                }
            }
        }
    }

    /// A thread that slept on a connection which is over takes its place out when another
    /// connection has the slot.
    #[test]
    fn who_comes_late_leaves_the_next_connections_thread_alone() {
        let (before, after, word) = (Posted::default(), Posted::default(), AtomicU64::new(7));
        assert!(before.post_thread(Side::Receive, 3, &word, || true));
        assert_eq!(word.load(SeqCst), 7 | 3 << 16);
        // The slot begins anew.
        word.store(0, SeqCst);
        assert!(after.post_thread(Side::Receive, 4, &word, || true));
        before.unpost_thread(Side::Receive, 3, &word);
        assert_eq!((word.load(SeqCst), before.thread(Side::Receive)), (4 << 16, 0));
        assert!(!before.post_thread(Side::Receive, 3, &word, || false));
        assert_eq!((word.load(SeqCst), before.thread(Side::Receive)), (4 << 16, 0));
        after.unpost_thread(Side::Receive, 4, &word);
        assert_eq!((word.load(SeqCst), after.thread(Side::Receive)), (0, 0));
    }

    /// What the peer has written there in our name keeps nobody from being woken.
    #[test]
    fn a_thread_takes_the_place_of_a_lie() {
        let (posted, word) = (Posted::default(), AtomicU64::new(u64::MAX));
        assert!(posted.post_thread(Side::Send, 9, &word, || true));
        assert_eq!(word.load(SeqCst), 0xffff_ffff_0009_ffff);
        assert!(!posted.post_thread(Side::Send, 8, &word, || true));
        word.store(0xffff_0000_0001, SeqCst);
        posted.unpost_thread(Side::Send, 9, &word);
        assert_eq!((word.load(SeqCst), posted.thread(Side::Send)), (0xffff_0000_0001, 0));
    }

    /// Each of a connection's sets has its own part of the words, and is told, whichever others
    /// there are.
    #[test]
    fn each_of_several_sets_is_told() {
        let sets: Vec<ReadySet> = (0..PLACES).map(|_| ReadySet::default()).collect();
        let (posted, words) = (Posted::default(), [ENDS, 7 << 16].map(AtomicU64::new));
        let mut now = [0; SETS];
        let first = THREAD_PLACES as u32 + 1;
        for (i, place) in [first, 0, PLACES as u32, first + 1, first + 77]
            .into_iter()
            .cycle()
            .take(60)
            .enumerate()
        {
            let at = i * 7 % SETS;
            posted.post_set(at, place, [&words[0], &words[1]]);
            now[at] = place;
            assert_eq!((posted.set(at), posted.awaited().sets), (place, now));
            for word in &words {
                sets.iter().for_each(ReadySet::prepare_sleep);
                let rung = core::cell::RefCell::new(Vec::new());
                let notify = whom_to_tell(word) & !(PLACE_MASK << THREAD_SHIFT);
                let stamp = |at: usize, _| assert_ne!(now[at], 0);
                tell(notify, 7, |p| &sets[p], stamp, |p| rung.borrow_mut().push(p as u32 + 1));
                let (mut rung, mut expected) = (rung.take(), now.to_vec());
                expected.retain(|place| *place != 0);
                expected.sort_unstable();
                expected.dedup();
                rung.sort_unstable();
                assert_eq!(rung, expected);
            }
        }
        (0..SETS).for_each(|at| posted.post_set(at, 0, [&words[0], &words[1]]));
        assert_eq!(words.map(|w| w.load(SeqCst)), [ENDS, 7 << 16]);
    }

    /// The place of a set stands in both words, beside what else stands there.
    #[test]
    fn one_set_takes_anothers_place() {
        let (posted, words) = (Posted::default(), [0x7_0000, 0x9_0000].map(AtomicU64::new));
        for place in [0x15, 0x2a, 0x2a, 0, 1] {
            posted.post_set(0, place, [&words[0], &words[1]]);
            assert_eq!(posted.set(0), place);
            assert_eq!(
                words.each_ref().map(|w| w.load(SeqCst)),
                [0x7_0000 | u64::from(place), 0x9_0000 | u64::from(place)]
            );
        }
    }

    /// Who was forgotten and comes out counts nobody else out.
    #[test]
    fn who_was_forgotten_counts_nobody_out() {
        let (outside, active) = (Outside::new(), AtomicBool::new(false));
        let (first, again) = outside.enter(&active);
        assert!(!again);
        assert_eq!(outside.activate(&active), 1);
        outside.forget();
        assert_eq!(outside.count(), 0);
        let (second, again) = outside.enter(&active);
        assert!(again, "the set is active");
        outside.leave(first);
        assert_eq!(outside.count(), 1);
        outside.leave(second);
        outside.leave(second);
        assert_eq!(outside.count(), 0);
    }
}
