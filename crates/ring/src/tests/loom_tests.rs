//! Every interleaving and every reordering that the memory model allows, for small cases.
//!
//! Nobody really sleeps here: a thread that would sleep says so, and the test then asserts that
//! somebody signalled. That keeps the cases small and finds the same lost wake-ups as a deadlock
//! would.

use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::{sync::Arc, thread};

use super::util::{peek, read, write};
use crate::*;

/// For cases that are too large to try all: at most 3 times a thread is interrupted where it need
/// not wait.
fn bounded(case: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(case);
}

/// A ring whose bytes loom watches.
struct Ring {
    words: Box<RingWords>,
    data: Vec<UnsafeCell<u8>>,
}

impl Ring {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            words: Box::default(),
            data: (0..size).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn ends(&self) -> (Producer, Consumer) {
        let words = NonNull::from(&*self.words);
        let data = NonNull::from(self.data.as_slice()).cast();
        // SAFETY: each thread keeps the Arc for as long as its end.
        unsafe {
            (
                Producer::new(words, data, self.data.len(), 0),
                Consumer::new(words, data, self.data.len(), 0),
            )
        }
    }
}

/// Bytes `from..from + len` of the stream of a test.
fn stream(from: u64, len: usize) -> Vec<u8> {
    (from..).map(|pos| pos as u8 + 1).take(len).collect()
}

fn read_and_check(c: &mut Consumer, len: usize) {
    let from = c.head();
    let peeked = peek(c, 0, len).unwrap();
    assert_eq!(peeked, stream(from, peeked.len()));
    let bytes = read(c, len).unwrap();
    assert_eq!(bytes, stream(from, bytes.len()));
}

/// The base moves whenever the ring turns out empty; the consumer peeks, reads, and gives back
/// late.
#[test]
fn loom_bytes_survive_rebase() {
    bounded(|| {
        let ring = Ring::new(2);
        let (mut p, mut c) = ring.ends();
        let keep = ring.clone();
        let producer = thread::spawn(move || {
            for len in [1, 2, 1] {
                let bytes = stream(p.tail(), len);
                write(&mut p, &bytes).unwrap();
                p.publish();
            }
            drop(keep);
            p
        });
        read_and_check(&mut c, 1);
        c.publish();
        read_and_check(&mut c, 1);
        read_and_check(&mut c, 1);
        c.publish();
        read_and_check(&mut c, 2);
        let p = producer.join().unwrap();
        read_and_check(&mut c, 2);
        assert_eq!(c.head(), p.tail());
    });
}

/// What a receiver has seen of slots 0 and 64, and whether it would sleep now.
struct Receiver {
    seen: [bool; 2],
    asleep: bool,
}

impl Receiver {
    /// One turn: take the news, and sleep when there is no more.
    fn turn(set: &ReadySet, tails: &[AtomicU64; 2]) -> Self {
        let mut receiver = Self { seen: [false; 2], asleep: false };
        receiver.drain(set, tails);
        set.prepare_sleep();
        receiver.asleep = set.is_empty();
        if !receiver.asleep {
            set.cancel_sleep();
        }
        receiver
    }

    fn drain(&mut self, set: &ReadySet, tails: &[AtomicU64; 2]) {
        set.drain(|slot| {
            if slot % 64 == 0 {
                let i = usize::from(slot / 64);
                self.seen[i] |= tails[i].load(Relaxed) == 2;
            }
        });
    }
}

type Shared = Arc<(ReadySet, [AtomicU64; 2])>;

/// The bits of the slots `before` are set already, by news that came before.
fn shared(before: &[u16]) -> Shared {
    let set = ReadySet::default();
    for &slot in before {
        assert!(!set.announce(slot));
    }
    Arc::new((set, [AtomicU64::new(1), AtomicU64::new(1)]))
}

fn send(shared: &Shared, i: usize) -> bool {
    shared.1[i].store(2, Relaxed);
    shared.0.announce(i as u16 * 64)
}

fn announce_and_sleep(before: &'static [u16]) {
    loom::model(move || {
        let shared = shared(before);
        let theirs = shared.clone();
        let sender = thread::spawn(move || send(&theirs, 0));
        let mut receiver = Receiver::turn(&shared.0, &shared.1);
        let signalled = sender.join().unwrap();
        assert!(!receiver.asleep || signalled || receiver.seen[0], "slept through the news");
        receiver.drain(&shared.0, &shared.1);
        assert!(receiver.seen[0], "news lost");
    });
}

#[test]
fn loom_announce_wakes_or_is_seen() {
    announce_and_sleep(&[]);
}

#[test]
fn loom_announce_with_the_bit_already_set_wakes_or_is_seen() {
    announce_and_sleep(&[0]);
}

#[test]
fn loom_announce_with_the_bit_of_a_neighbour_set_wakes_or_is_seen() {
    announce_and_sleep(&[1]);
}

fn two_senders(before: &'static [u16], slots: [usize; 2]) {
    bounded(move || {
        let shared = shared(before);
        let senders = slots.map(|i| {
            let shared = shared.clone();
            thread::spawn(move || send(&shared, i))
        });
        let mut receiver = Receiver::turn(&shared.0, &shared.1);
        let signalled = senders.map(|sender| sender.join().unwrap());
        assert!(signalled != [true, true], "one doorbell per sleep");
        let signalled = signalled[0] || signalled[1];
        for i in slots {
            assert!(!receiver.asleep || signalled || receiver.seen[i], "slept through the news");
        }
        receiver.drain(&shared.0, &shared.1);
        for i in slots {
            assert!(receiver.seen[i], "news lost");
        }
    });
}

#[test]
fn loom_two_senders_two_slots() {
    two_senders(&[], [0, 1]);
}

#[test]
fn loom_two_senders_two_slots_bits_already_set() {
    two_senders(&[0, 64], [0, 1]);
}

#[test]
fn loom_two_senders_one_slot() {
    two_senders(&[], [0, 0]);
}

/// A sender dies between its two bits. The next one for the same slot must still get through.
#[test]
fn loom_half_set_bits_of_a_dead_sender_hide_no_news() {
    loom::model(|| {
        let shared = shared(&[1]);
        let dead = shared.clone();
        let dead = thread::spawn(move || dead.0.set_word_bit_only(0));
        let theirs = shared.clone();
        let sender = thread::spawn(move || send(&theirs, 0));
        let mut receiver = Receiver { seen: [false; 2], asleep: false };
        receiver.drain(&shared.0, &shared.1);
        dead.join().unwrap();
        sender.join().unwrap();
        receiver.drain(&shared.0, &shared.1);
        assert!(receiver.seen[0], "news lost");
    });
}

/// The receiver waits for one connection, by its ring.
#[test]
fn loom_sleepers_only_wakes_or_is_seen() {
    loom::model(|| {
        let ring = Ring::new(2);
        let set = Arc::new(ReadySet::default());
        let (mut p, c) = ring.ends();
        let theirs = (ring.clone(), set.clone());
        let sender = thread::spawn(move || {
            write(&mut p, &[1]).unwrap();
            p.publish();
            theirs.1.wake_only()
        });
        set.prepare_sleep();
        let asleep = !c.peek_published();
        assert!(sender.join().unwrap() || !asleep, "slept through the news");
        assert!(c.peek_published());
    });
}

/// The producer fills the ring and would sleep; the consumer reads on, in steps that do and do not
/// cross the half, knowing an old or the new tail. `first` bytes are there from the start.
fn space(first: usize, steps: &'static [usize]) {
    loom::model(move || {
        let ring = Ring::new(4);
        let (mut p, mut c) = ring.ends();
        write(&mut p, &stream(0, first)).unwrap();
        p.publish();
        let keep = ring.clone();
        let producer = thread::spawn(move || {
            let mut asleep = false;
            for _ in 0..2 {
                let bytes = stream(p.tail(), 4);
                write(&mut p, &bytes).unwrap();
                p.publish();
                asleep = p.want_space(4) == Ok(false);
                if asleep {
                    break;
                }
            }
            drop(keep);
            asleep
        });
        let mut called = false;
        let mut step = |c: &mut Consumer, len| {
            let from = c.head();
            let bytes = read(c, len).unwrap();
            assert_eq!(bytes, stream(from, bytes.len()));
            if !bytes.is_empty() {
                c.publish();
                called |= c.take_space_request(|| {});
            }
            bytes.len()
        };
        for &len in steps {
            step(&mut c, len);
        }
        let asleep = producer.join().unwrap();
        while step(&mut c, 4) > 0 {}
        assert!(!asleep || called, "the ring is empty and the writer still sleeps");
    });
}

#[test]
fn loom_space_call_when_the_ring_is_full_from_the_start() {
    space(4, &[1, 2, 1]);
}

#[test]
fn loom_space_call_when_the_ring_fills_while_it_is_read() {
    space(2, &[2, 2]);
}

#[test]
fn loom_space_call_when_all_is_read_at_once() {
    space(3, &[4, 4]);
}

/// Two threads, one datum that loom watches, a futex made of a `Notify`.
#[test]
fn loom_end_lock_excludes_and_wakes() {
    loom::model(|| {
        let shared = Arc::new((EndLock::default(), UnsafeCell::new(0u32), Notify::new()));
        let run = |shared: Arc<(EndLock, UnsafeCell<u32>, Notify)>, tid| {
            let (lock, datum, futex) = &*shared;
            lock.lock(tid, |owner| {
                if lock.word() == owner | WAITERS {
                    futex.wait();
                }
                Waited::Retry
            })
            .unwrap();
            // SAFETY: the lock is held; loom checks it.
            datum.with_mut(|datum| unsafe { *datum += 1 });
            if lock.unlock() {
                futex.notify();
            }
        };
        let theirs = shared.clone();
        let other = thread::spawn(move || run(theirs, 1));
        run(shared.clone(), 2);
        other.join().unwrap();
        // SAFETY: alone again; loom checks it.
        assert_eq!(shared.1.with(|datum| unsafe { *datum }), 2);
        assert_eq!(shared.0.owner(), 0);
    });
}

#[test]
fn loom_end_lock_of_a_dead_owner_goes_to_one() {
    bounded(|| {
        let shared = Arc::new((EndLock::default(), UnsafeCell::new(0u32)));
        shared.0.try_lock(9).unwrap();
        let run = |shared: Arc<(EndLock, UnsafeCell<u32>)>, tid| {
            let (lock, datum) = &*shared;
            let stolen = lock.lock(tid, |owner| {
                if owner == 9 {
                    return Waited::OwnerDead;
                }
                thread::yield_now();
                Waited::Retry
            });
            // SAFETY: the lock is held; loom checks it.
            datum.with_mut(|datum| unsafe { *datum += 1 });
            let _ = lock.unlock();
            stolen.unwrap()
        };
        let theirs = shared.clone();
        let other = thread::spawn(move || run(theirs, 1));
        let mine = run(shared.clone(), 2);
        assert!(other.join().unwrap() != mine);
    });
}
