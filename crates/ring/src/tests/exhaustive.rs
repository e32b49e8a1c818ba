//! Every state of a small ring, every value of the peer's words: what a call does is what counting
//! with numbers that do not wrap says, and nothing beside the ring is touched.
//!
//! The ends compare positions by their differences alone, modulo 2^64, and find bytes by a
//! difference modulo the size. So rings of 1 to 8 bytes, every distance that a state of theirs can
//! have, and every distance of the peer's word up to two rings away, at places where numbers begin,
//! end and change their sign, are all the cases there are; the distances that are far from any ring
//! are tried by their ends.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::vec::Vec;

use super::util::{copy_out, peek, read, write};
use crate::*;

/// Where positions begin: the first of all, so near the end of all numbers that every state lies
/// across it, and so near the change of the sign.
const ORIGINS: [u64; 3] = [0, u64::MAX - 5, (1 << 63) - 5];
const SIZES: [u64; 4] = [1, 2, 4, 8];
/// What stands before and behind the ring's bytes.
const BESIDE: u8 = 0xEE;
const MARGIN: usize = 16;

/// A ring of `size` bytes with bytes of others' around it, and its words.
struct Memory {
    words: Box<RingWords>,
    bytes: Vec<u8>,
    size: u64,
}

impl Memory {
    fn new(size: u64) -> Self {
        let bytes = std::vec![BESIDE; size as usize + 2 * MARGIN];
        Self { words: Box::default(), bytes, size }
    }

    fn fill(&mut self) {
        for (i, byte) in self.ring_mut().iter_mut().enumerate() {
            *byte = 100 + i as u8;
        }
    }

    fn ring_mut(&mut self) -> &mut [u8] {
        let size = self.size as usize;
        &mut self.bytes[MARGIN..MARGIN + size]
    }

    /// The bytes from `pos` on as the ring has them, where `base` lives at index 0.
    fn from(&self, pos: u64, base: u64, len: u64) -> Vec<u8> {
        let index = |i: u64| pos.wrapping_sub(base).wrapping_add(i) % self.size;
        (0..len).map(|i| self.bytes[MARGIN + index(i) as usize]).collect()
    }

    fn is_alone(&self) -> bool {
        let (before, rest) = self.bytes.split_at(MARGIN);
        let behind = &rest[self.size as usize..];
        before.iter().chain(behind).all(|byte| *byte == BESIDE)
    }

    fn place(&mut self) -> (NonNull<RingWords>, NonNull<u8>) {
        let words = NonNull::from(&*self.words);
        (words, NonNull::from(self.ring_mut()).cast())
    }

    fn producer(&mut self, state: [u64; 4]) -> Producer {
        let size = self.size as usize;
        let (words, data) = self.place();
        // SAFETY: the memory outlives the end, which each case drops.
        unsafe { Producer::new(words, data, size, 0) }.in_state(state)
    }

    fn consumer(&mut self, state: [u64; 5]) -> Consumer {
        let size = self.size as usize;
        let (words, data) = self.place();
        // SAFETY: as above.
        unsafe { Consumer::new(words, data, size, 0) }.in_state(state)
    }
}

/// How far a word of the peer's may be from `from`: every distance up to two rings, and the ends of
/// all others.
fn distances(size: u64) -> impl Iterator<Item = i128> {
    let near = 2 * i128::from(size) + 2;
    let far = [-(1i128 << 63), -(1 << 63) + 1, -(1 << 62), -4097, 4097, 1 << 62, (1 << 63) - 1];
    (-near..=near).chain(far)
}

fn moved(from: u64, by: i128) -> u64 {
    (i128::from(from) + by) as u64
}

/// `0 <= a <= b <= most`.
fn pairs(most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..=most).flat_map(move |b| (0..=b).map(move |a| (a, b)))
}

/// Calls `case` with each state of a producer, `[tail, published, base, head_seen]`, and how far
/// the first two are ahead of the last.
fn each_producer(size: u64, mut case: impl FnMut([u64; 4], i128, i128)) {
    for origin in ORIGINS {
        for (published, tail) in pairs(size) {
            for base in 0..size {
                let at = |ahead| origin.wrapping_add(ahead);
                let state = [at(tail), at(published), at(published).wrapping_sub(base), origin];
                case(state, i128::from(published), i128::from(tail));
            }
        }
    }
}

#[test]
fn a_producer_takes_the_heads_of_an_honest_peer_and_no_others() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        each_producer(size, |state, published, tail| {
            let [_, _, base, head_seen] = state;
            for head in distances(size) {
                memory.words.head.store(moved(head_seen, head), Relaxed);
                let honest = (0..=published).contains(&head);
                let mut p = memory.producer(state);
                let now = p.in_flight();
                let expected = if honest { Ok((tail - head) as usize) } else { Err(PeerCorrupt) };
                assert_eq!(now, expected, "size {size}, {state:?}, head {head}");
                let [_, _, base_now, head_now] = p.state();
                // Refused: as if it had not been read.
                let taken = if honest { head } else { 0 };
                assert_eq!(head_now, moved(head_seen, taken));
                let rebased = honest && head == tail;
                assert_eq!(base_now, if rebased { moved(head_seen, tail) } else { base });
            }
        });
    }
}

#[test]
fn what_a_producer_writes_lies_in_the_ring_and_where_the_consumer_looks() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        each_producer(size, |state, published, tail| {
            let head_seen = state[3];
            for head in distances(size) {
                memory.words.head.store(moved(head_seen, head), Relaxed);
                let honest = (0..=published).contains(&head);
                for len in 0..=size as usize + 1 {
                    memory.fill();
                    let mut p = memory.producer(state);
                    let bytes: Vec<u8> = (1..=len as u8).collect();
                    let wrote = write(&mut p, &bytes);
                    assert!(memory.is_alone());
                    let room = i128::from(size) - tail;
                    // (One that wants nothing need not look.)
                    if len > 0 && !honest {
                        assert_eq!(wrote, Err(CopyError::PeerCorrupt), "{state:?}, {head}");
                        continue;
                    }
                    let room = if len > 0 { room + head } else { room };
                    let n = room.min(len as i128) as usize;
                    assert_eq!(wrote, Ok(n), "size {size}, {state:?}, head {head}, {len} bytes");
                    let [tail_now, published_now, base_now, _] = p.state();
                    assert_eq!((tail_now, published_now), (moved(state[0], n as i128), state[1]));
                    assert_eq!(memory.from(state[0], base_now, n as u64), bytes[..n]);
                    // It is found again by its position.
                    assert_eq!(copy_out(&p, state[0], len), bytes[..n]);
                    // And taken back, but for what was published.
                    p.take_back(len);
                    let left = (tail + n as i128 - len as i128).max(published);
                    assert_eq!(p.state()[0], moved(state[3], left));
                }
            }
        });
    }
}

#[test]
fn a_producer_knows_its_room_and_asks_for_no_more_than_half() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        each_producer(size, |state, published, tail| {
            for head in distances(size) {
                memory.words.head.store(moved(state[3], head), Relaxed);
                let honest = (0..=published).contains(&head);
                let free = |head| (i128::from(size) - tail + head) as usize;
                for want in 0..=size as usize + 1 {
                    let looked = want > free(0);
                    let expected = match (looked, honest) {
                        (false, _) => Ok(free(0)),
                        (true, true) => Ok(free(head)),
                        (true, false) => Err(PeerCorrupt),
                    };
                    assert_eq!(memory.producer(state).free_at_least(want), expected);
                    let asked = memory.producer(state).want_space(want);
                    let enough = want.min(size as usize / 2);
                    let roomy = honest && free(head) >= enough;
                    assert_eq!(asked, if honest { Ok(roomy) } else { Err(PeerCorrupt) });
                    assert_eq!(memory.words.space_wanted.load(Relaxed) == 0, roomy);
                }
            }
        });
    }
}

/// Calls `case` with each state of a consumer, `[head, published, tail_seen, base, fenced]`, and
/// how far head and tail are ahead of what is published.
fn each_consumer(size: u64, mut case: impl FnMut([u64; 5], i128, i128)) {
    for origin in ORIGINS {
        for (head, tail_seen) in pairs(size) {
            for base in 0..size {
                let at = |ahead| origin.wrapping_add(ahead);
                let state = [at(head), origin, at(tail_seen), origin.wrapping_sub(base), origin];
                case(state, i128::from(head), i128::from(tail_seen));
            }
        }
    }
}

/// What a look at a tail so far from what is published brings: whether it is refused, and the tail
/// and the base of afterwards.
fn look(size: u64, state: [u64; 5], tail_seen: i128, tail: i128, base: u64) -> Option<(i128, u64)> {
    match tail {
        _ if tail == tail_seen => Some((tail_seen, state[3])),
        _ if (tail_seen..=i128::from(size)).contains(&tail) => Some((tail, base)),
        _ => None,
    }
}

#[test]
fn a_consumer_takes_the_tails_of_an_honest_peer_and_no_others() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        each_consumer(size, |state, head, tail_seen| {
            for tail in distances(size) {
                for base in [0, 1, u64::MAX, 1 << 63] {
                    memory.words.tail.store(moved(state[1], tail), Relaxed);
                    memory.words.base.store(base, Relaxed);
                    let mut c = memory.consumer(state);
                    let there = c.refresh();
                    let looked = look(size, state, tail_seen, tail, base);
                    let expected = looked.map(|(tail, _)| (tail - head) as usize);
                    assert_eq!(there.ok(), expected, "size {size}, {state:?}, tail {tail}");
                    let (tail_now, base_now) = looked.unwrap_or((tail_seen, state[3]));
                    let [head_now, published, seen, used, fenced] = c.state();
                    assert_eq!((head_now, published, fenced), (state[0], state[1], state[4]));
                    assert_eq!((seen, used), (moved(state[1], tail_now), base_now));
                }
            }
        });
    }
}

#[test]
fn what_a_consumer_reads_peeks_skips_and_puts_back_is_the_rings() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        memory.fill();
        each_consumer(size, |state, head, tail_seen| {
            for tail in distances(size) {
                // (A base may be anything: it is masked.)
                let base = moved(state[1], tail).wrapping_mul(3).wrapping_add(1);
                memory.words.tail.store(moved(state[1], tail), Relaxed);
                memory.words.base.store(base, Relaxed);
                for len in 0..=size as usize + 1 {
                    let far = len as i128 > tail_seen - head;
                    let looked = if far {
                        look(size, state, tail_seen, tail, base)
                    } else {
                        Some((tail_seen, state[3]))
                    };
                    let n = looked.map(|(tail, _)| (tail - head).min(len as i128) as usize);
                    let bytes =
                        looked.zip(n).map(|((_, base), n)| memory.from(state[0], base, n as u64));
                    let mut c = memory.consumer(state);
                    assert_eq!(read(&mut c, len).ok(), bytes, "{state:?}, tail {tail}, {len}");
                    let came_to = head + n.unwrap_or(0) as i128;
                    assert_eq!(c.head(), moved(state[1], came_to));
                    c.put_back(len);
                    let back = (came_to - len as i128).max(0);
                    assert_eq!(c.head(), moved(state[1], back), "what is given back stays so");
                    let mut c = memory.consumer(state);
                    assert_eq!(c.skip(len).ok(), n);
                    assert_eq!(c.head(), moved(state[1], head + n.unwrap_or(0) as i128));
                    // From each offset, up to as many bytes together.
                    for offset in 0..=len {
                        let mut c = memory.consumer(state);
                        let peeked = peek(&mut c, offset, len - offset).ok();
                        let rest = bytes.as_ref().map(|b| b[offset.min(b.len())..].to_vec());
                        assert_eq!(peeked, rest);
                        assert_eq!(c.head(), state[0]);
                    }
                }
            }
        });
        assert!(memory.is_alone());
    }
}

#[test]
fn what_a_dead_producer_held_back_is_taken_only_where_it_can_be() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        each_consumer(size, |state, head, tail_seen| {
            memory.words.tail.store(state[2], Relaxed);
            for held in distances(size) {
                memory.words.held.store(moved(state[2], held), Relaxed);
                let mut c = memory.consumer(state);
                let taken = c.take_held();
                // Behind the tail, by up to half of all numbers: nothing was held back since.
                let ahead = if held > 0 { held } else { 0 };
                let fits = tail_seen + ahead <= i128::from(size);
                let expected =
                    if fits { Ok((tail_seen + ahead - head) as usize) } else { Err(PeerCorrupt) };
                assert_eq!(taken, expected, "size {size}, {state:?}, held {held}");
                let tail_now = memory.words.tail.swap(state[2], Relaxed);
                assert_eq!(tail_now, moved(state[2], if fits { ahead } else { 0 }));
            }
        });
    }
}

/// A producer sleeps only while more than half of the ring is used, so it has to be called just
/// where that may end: at each step of each way to read a ring empty, the first publication that
/// leaves no more than half of the tail that is known takes the request.
#[test]
fn a_request_for_room_is_taken_where_half_is_free() {
    for size in SIZES {
        let mut memory = Memory::new(size);
        for origin in ORIGINS {
            for (fenced, tail_seen) in pairs(2 * size) {
                for published in fenced..=tail_seen {
                    if tail_seen - published > size {
                        continue;
                    }
                    let at = |ahead| origin.wrapping_add(ahead);
                    let state = [at(published), at(published), at(tail_seen), 0, at(fenced)];
                    for wanted in [0, 1, u32::MAX] {
                        memory.words.space_wanted.store(wanted, Relaxed);
                        let mut c = memory.consumer(state);
                        let due =
                            tail_seen - fenced > size / 2 && tail_seen - published <= size / 2;
                        assert_eq!(c.take_space_request(|| {}), due && wanted != 0);
                        let left = memory.words.space_wanted.load(Relaxed);
                        assert_eq!(left, if due { 0 } else { wanted });
                        let now = c.state()[4];
                        assert_eq!(now, if due { at(published) } else { at(fenced) });
                    }
                }
            }
        }
    }
}

/// Every slot comes out as it went in, alone and beside each slot of its own word and of others'
/// edges, whoever reads the numbers.
#[test]
fn each_slot_is_one_bit() {
    let set = ReadySet::default();
    let mut taken = Vec::new();
    for slot in 0..SLOTS_MAX as u16 {
        assert!(set.mark(slot, |_| ()));
        let beside = (slot & !63..=slot | 63).chain([0, 63, 64, SLOTS_MAX as u16 - 1]);
        for other in beside {
            let new = set.mark(other, |_| ());
            assert_eq!(new, other != slot, "{slot} {other}");
            assert!(!set.mark(slot, |_| ()) && !set.is_empty());
            taken.clear();
            set.drain(|slot| taken.push(slot));
            let mut expected = std::vec![slot.min(other), slot.max(other)];
            expected.dedup();
            assert_eq!(taken, expected);
            assert!(set.is_empty());
            assert!(set.mark(slot, |_| ()));
        }
        set.drain(|_| ());
    }
}
