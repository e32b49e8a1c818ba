//! The peer's words are anything, at any time: nothing leaves the ring's memory, loops or panics.
//!
//! Every call loads each of the peer's words once, so a change of the words between any two calls
//! shows a call every value it can meet; the threads add changes within a call. Accesses outside
//! the ring are found by Miri.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::vec;

use proptest::prelude::*;

use super::model::{OPS, Op, size_and_ops};
use super::util::{Ring, copy_out, peek, read, write};
use crate::*;

/// What the peer writes before a call.
#[derive(Debug, Clone, Copy)]
enum Lie {
    /// Nothing new.
    Still,
    /// This value.
    Any(u64),
    /// A value near the honest one.
    Near(i8),
}

fn lie() -> impl Strategy<Value = Lie> {
    any::<u64>().prop_map(|random| match random % 3 {
        0 => Lie::Still,
        1 => Lie::Any(random),
        _ => Lie::Near((random >> 56) as i8),
    })
}

impl Lie {
    fn tell(self, word: &core::sync::atomic::AtomicU64, honest: u64) {
        match self {
            Lie::Still => {}
            Lie::Any(value) => word.store(value, Relaxed),
            Lie::Near(offset) => word.store(honest.wrapping_add_signed(i64::from(offset)), Relaxed),
        }
    }
}

/// One call on a producer; what it returns stays within the ring.
fn produce(p: &mut Producer, op: &Op) {
    let size = p.size();
    let n = match *op {
        Op::Write(len) => write(p, &vec![7; len]).inspect(|&n| assert!(n <= len)),
        Op::Free(want) => p.free_at_least(want).map_err(CopyError::from),
        Op::InFlight => p.in_flight().map_err(CopyError::from),
        Op::CopyOut(back, len) => Ok(copy_out(p, p.tail().wrapping_sub(back as u64), len).len()),
        Op::WantSpace(want) => p.want_space(want).map(usize::from).map_err(CopyError::from),
        _ => {
            p.publish();
            Ok(p.unpublished())
        }
    };
    assert!(n.unwrap_or(0) <= size);
}

/// One call on a consumer; what it returns stays within the ring.
fn consume(c: &mut Consumer, op: &Op) {
    let size = c.size();
    let n = match *op {
        Op::Available => c.available().map_err(CopyError::from),
        Op::Refresh => c.refresh().map_err(CopyError::from),
        Op::Read(len) => read(c, len).map(|bytes| bytes.len()),
        Op::Peek(offset, len) => peek(c, offset, len).map(|bytes| bytes.len()),
        Op::Skip(len) => c.skip(len).inspect(|&n| assert!(n <= len)).map_err(CopyError::from),
        Op::GiveBack => {
            c.publish();
            Ok(usize::from(c.take_space_request(|| {})))
        }
        _ => Ok(usize::from(c.peek_published())),
    };
    assert!(n.unwrap_or(0) <= size);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 20 } else { 1000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn lying_consumer_is_contained(
        (size, ops) in size_and_ops(),
        lies in proptest::collection::vec(lie(), OPS),
        past in any::<u64>(),
    ) {
        let ring = Ring::new(size);
        let (mut p, _) = ring.ends_after(0, past);
        for (op, lie) in ops.iter().zip(lies) {
            lie.tell(&ring.words().head, p.tail().wrapping_add(past));
            // The producer's own words are the peer's to overwrite as well.
            lie.tell(&ring.words().tail, 0);
            lie.tell(&ring.words().base, 0);
            produce(&mut p, op);
        }
    }

    #[test]
    fn lying_producer_is_contained(
        (size, ops) in size_and_ops(),
        lies in proptest::collection::vec((lie(), lie()), OPS),
        past in any::<u64>(),
    ) {
        let ring = Ring::new(size);
        let (_, mut c) = ring.ends_after(0, past);
        for (op, (tail, base)) in ops.iter().zip(lies) {
            tail.tell(&ring.words().tail, c.head().wrapping_add(past));
            base.tell(&ring.words().base, c.head().wrapping_add(past));
            tail.tell(&ring.words().head, 0);
            ring.words().space_wanted.store(1, Relaxed);
            consume(&mut c, op);
        }
    }
}

/// A pseudo-random sequence (xorshift).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

const ROUNDS: usize = if cfg!(miri) { 200 } else { 200_000 };

/// Runs `victim` while another thread runs `scribble` all the time.
fn beside(scribble: impl Fn(u64) + Sync, victim: impl FnOnce()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 88_172_645_463_325_252;
            while !done.load(Relaxed) {
                scribble(random(&mut state));
                thread::yield_now();
            }
        });
        victim();
        done.store(true, Relaxed);
    });
}

#[test]
fn scribbled_ring_words_are_contained() {
    let ring = Ring::new(64);
    let (mut p, mut c) = ring.ends(0);
    let words = ring.words();
    let scribble = |value: u64| {
        let word = [&words.tail, &words.base, &words.head][value as usize % 3];
        // Mostly small steps, which pass the checks more often.
        let value = if value & 0x10 == 0 {
            value
        } else {
            word.load(Relaxed).wrapping_add(value >> 5 & 31)
        };
        word.store(value, Relaxed);
        words.space_wanted.store(value as u32, Relaxed);
    };
    beside(scribble, || {
        for round in 0..ROUNDS {
            let len = round % 70;
            produce(
                &mut p,
                [&Op::Write(len), &Op::Publish, &Op::WantSpace(len), &Op::Free(len)][round % 4],
            );
            consume(
                &mut c,
                [&Op::Read(len), &Op::GiveBack, &Op::Peek(3, len), &Op::Available][round % 4],
            );
        }
    });
}

#[test]
fn scribbled_ready_set_costs_at_most_a_call_per_slot() {
    let set = ReadySet::default();
    let scribble = |value: u64| set.scribble(value as usize, value | value << 32);
    beside(scribble, || {
        for round in 0..ROUNDS {
            let _ = set.announce(round as u16 & 4095);
            let mut calls = 0;
            let count = set.drain(|slot| {
                assert!(usize::from(slot) < SLOTS_MAX);
                calls += 1;
            });
            assert!(count == calls && calls <= SLOTS_MAX);
            set.prepare_sleep();
            set.cancel_sleep();
        }
    });
}
