//! Measures a ring between two threads, each on a CPU of its own.
//!
//! `cargo run --release -p netacc-ring --example pingpong [CPU CPU]`
//!
//! - `ring`: 64-byte messages to and fro; both sides spin on the ring itself.
//! - `ready set`: the same with everything a connection does: announce, drain, ask whether the
//!   writer waits.
//! - `stream`: 64-byte messages one way, as many as fit; `bulk`: 64 KiB pieces one way.
//!
//! A line shows the best, the tenth percentile and the median of many batches, each shorter than a
//! time slice: on a busy machine the first two still mean something.

use std::hint::spin_loop;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use netacc_ring::{Consumer, Producer, ReadySet, RingWords};
use rustix::thread::{CpuSet, sched_setaffinity};

const SIZE: usize = 256 << 10;
const MESSAGE: usize = 64;
const SLOT: u16 = 3;
const BATCHES: usize = 301;

struct Direction {
    producer: Producer,
    consumer: Consumer,
    set: ReadySet,
}

fn direction() -> Direction {
    let words = NonNull::from(Box::leak(Box::<RingWords>::default()));
    let data: NonNull<u8> = NonNull::from(Box::leak(vec![0u8; SIZE].into_boxed_slice())).cast();
    // SAFETY: leaked, so valid for ever; each end is made once.
    let (producer, consumer) =
        unsafe { (Producer::new(words, data, SIZE, 0), Consumer::new(words, data, SIZE, 0)) };
    Direction { producer, consumer, set: ReadySet::default() }
}

fn pin(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).expect("no such CPU");
}

fn write(p: &mut Producer, bytes: &[u8]) -> usize {
    // SAFETY: a slice is readable for its length.
    unsafe { p.write(bytes.as_ptr(), bytes.len()) }.expect("honest peer")
}

fn read(c: &mut Consumer, bytes: &mut [u8]) -> usize {
    // SAFETY: a slice is writable for its length.
    unsafe { c.read(bytes.as_mut_ptr(), bytes.len()) }.expect("honest peer")
}

fn send_message(p: &mut Producer, message: &[u8; MESSAGE]) {
    while write(p, message) == 0 {
        spin_loop();
    }
    let _ = p.publish();
}

fn receive_message(c: &mut Consumer, message: &mut [u8; MESSAGE]) {
    while read(c, message) == 0 {
        spin_loop();
    }
    let _ = c.publish();
}

fn announce(set: &ReadySet) {
    assert!(!set.announce(SLOT), "nobody sleeps");
}

fn await_ready(set: &ReadySet) {
    while set.drain(|_| {}) == 0 {
        spin_loop();
    }
}

/// Runs `one` and `other` `BATCHES` times beside each other; prints the time of `one` divided by
/// `count`.
fn measure(
    name: &str,
    cpus: [usize; 2],
    count: u32,
    mut one: impl FnMut(),
    mut other: impl FnMut() + Send,
) {
    let barrier = Barrier::new(2);
    let mut times: Vec<Duration> = thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[1]);
            for _ in 0..BATCHES {
                barrier.wait();
                other();
            }
        });
        pin(cpus[0]);
        (0..BATCHES)
            .map(|_| {
                barrier.wait();
                let start = Instant::now();
                one();
                start.elapsed() / count
            })
            .collect()
    });
    times.sort();
    let [best, tenth, median] = [0, BATCHES / 10, BATCHES / 2].map(|i| times[i].as_nanos());
    println!("{name:<28} best {best:>6} ns   p10 {tenth:>6} ns   median {median:>6} ns");
}

fn main() {
    let cpus: Vec<usize> =
        std::env::args().skip(1).map(|cpu| cpu.parse().expect("a CPU number")).collect();
    let cpus = if let [one, other] = cpus[..] { [one, other] } else { [0, 1] };
    let message = [1u8; MESSAGE];

    const TRIPS: u32 = 2_000;
    let (mut there, mut back) = (direction(), direction());
    measure(
        "ring, 64 B round trip",
        cpus,
        TRIPS,
        || {
            for _ in 0..TRIPS {
                send_message(&mut there.producer, &message);
                receive_message(&mut back.consumer, &mut [0; MESSAGE]);
            }
        },
        || {
            for _ in 0..TRIPS {
                receive_message(&mut there.consumer, &mut [0; MESSAGE]);
                send_message(&mut back.producer, &message);
            }
        },
    );

    let (mut there, mut back) = (direction(), direction());
    measure(
        "ready set, 64 B round trip",
        cpus,
        TRIPS,
        || {
            for _ in 0..TRIPS {
                send_message(&mut there.producer, &message);
                announce(&there.set);
                await_ready(&back.set);
                receive_message(&mut back.consumer, &mut [0; MESSAGE]);
                assert!(!back.consumer.take_space_request(|| {}));
            }
        },
        || {
            for _ in 0..TRIPS {
                await_ready(&there.set);
                receive_message(&mut there.consumer, &mut [0; MESSAGE]);
                assert!(!there.consumer.take_space_request(|| {}));
                send_message(&mut back.producer, &message);
                announce(&back.set);
            }
        },
    );

    const MESSAGES: u32 = 10_000;
    let mut there = direction();
    measure(
        "stream, one 64 B message",
        cpus,
        MESSAGES,
        || {
            for _ in 0..MESSAGES {
                send_message(&mut there.producer, &message);
            }
        },
        || {
            for _ in 0..MESSAGES {
                receive_message(&mut there.consumer, &mut [0; MESSAGE]);
            }
        },
    );

    const PIECES: u32 = 100;
    const PIECE: usize = 64 << 10;
    let mut there = direction();
    let (from, mut to) = (vec![1u8; PIECE], vec![0u8; PIECE]);
    measure(
        "bulk, one 64 KiB piece",
        cpus,
        PIECES,
        || {
            let mut left = PIECES as usize * PIECE;
            while left > 0 {
                left -= write(&mut there.producer, &from[..PIECE.min(left)]);
                let _ = there.producer.publish();
            }
        },
        || {
            let mut left = PIECES as usize * PIECE;
            while left > 0 {
                left -= read(&mut there.consumer, &mut to);
                let _ = there.consumer.publish();
            }
        },
    );
}
