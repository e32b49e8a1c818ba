//! A ring with both of its ends at work, followed from outside as `netacc capture` does: whatever
//! the moment, no byte is wrong, and what is missing is told.

use netacc_control::rings::{self, Words};
use netacc_ring::{Consumer, Producer, RingWords};
use netacc_tools::capture::stream::{Behind, Said, Stream};
use netacc_tools::capture::{Memory, ProcessMemory, Unreadable};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const SIZE: usize = 16 << 10;

/// A ring that is never freed, and the lock of its sender.
struct Ring {
    words: NonNull<RingWords>,
    data: NonNull<u8>,
    lock: AtomicU32,
}

// SAFETY: words and bytes are for ever, and the ends are made once each.
unsafe impl Sync for Ring {}

impl Ring {
    fn new() -> &'static Ring {
        let data: &'static mut [u8] = Box::leak(vec![0; SIZE].into_boxed_slice());
        Box::leak(Box::new(Ring {
            words: NonNull::from(Box::leak(Box::<RingWords>::default())),
            data: NonNull::from(data).cast(),
            lock: AtomicU32::new(0),
        }))
    }

    fn ends(&self) -> (Producer, Consumer) {
        // SAFETY: memory for ever, and each end is made once.
        unsafe {
            let producer = Producer::new(self.words, self.data, SIZE, 0);
            (producer, Consumer::new(self.words, self.data, SIZE, 0))
        }
    }

    fn words(&self, memory: &impl Memory) -> Words {
        let mut bytes = [0; rings::BYTES];
        memory.read(self.words.as_ptr() as u64, &mut bytes).unwrap();
        // (The library says by its epoch that the stream is on the ring.)
        Words { epoch: 1, ..Words::read(&bytes) }
    }

    fn stream(&self) -> Stream {
        let mut stream = Stream::new(self.data.as_ptr() as u64, SIZE as u32, false).unwrap();
        assert_eq!(stream.begin(0, Some(0), 1, 0), 0);
        stream
    }

    /// Looks once, as a connection does.
    fn look(&self, stream: &mut Stream, memory: &impl Memory, asks_lock: bool, seen: &mut Seen) {
        let words = self.words(memory);
        if !stream.has_news(&words) {
            return;
        }
        stream.copy(memory, &words, None, 0).unwrap();
        let is_idle = asks_lock && self.lock.load(Acquire) == 0;
        let behind = Behind { words: self.words(memory), is_idle };
        stream.settle(&behind, Instant::now(), &mut |said| seen.add(said));
    }
}

/// The byte at an offset of every stream here.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[derive(Default, Debug)]
struct Seen {
    next: u64,
    bytes: u64,
    gaps: u64,
}

impl Seen {
    fn add(&mut self, said: Said) {
        match said {
            Said::Bytes(offset, bytes, _) => {
                assert_eq!(offset, self.next, "without a word of what is between");
                for (i, b) in bytes.iter().enumerate() {
                    let at = offset + i as u64;
                    assert_eq!(*b, byte(at), "at {at}, {self:?}");
                }
                self.next += bytes.len() as u64;
                self.bytes += bytes.len() as u64;
            }
            Said::Lost(offset) => {
                assert!(offset >= self.next);
                self.gaps += u64::from(offset > self.next);
                self.next = offset;
            }
            Said::Kernel(_) | Said::Begins(..) => unreachable!(),
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn write(producer: &mut Producer, from: u64, length: u64) -> u64 {
    let bytes: Vec<u8> = (from..from + length).map(byte).collect();
    // SAFETY: a slice is readable for its length and is not the ring.
    let n = unsafe { producer.write(bytes.as_ptr(), bytes.len()) }.unwrap();
    let _ = producer.publish();
    n as u64
}

fn read(consumer: &mut Consumer, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: a slice is writable for its length and is not the ring.
    let n = unsafe { consumer.read(bytes.as_mut_ptr(), length) }.unwrap();
    let _ = consumer.publish();
    bytes.truncate(n);
    bytes
}

fn both_at_work(asks_lock: bool, sizes: u64, echoes: bool) -> Seen {
    let (ring, memory) = (Ring::new(), ProcessMemory::open(std::process::id()).unwrap());
    let (mut producer, mut consumer) = ring.ends();
    let (stop, taken, sent) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut at) = (Random(7), 0);
            while !stop.load(Relaxed) {
                if echoes && taken.load(Acquire) < at {
                    std::thread::yield_now();
                    continue;
                }
                ring.lock.store(1, SeqCst);
                at += write(&mut producer, at, 1 + random.below(sizes));
                sent.store(at, Release);
                ring.lock.store(0, SeqCst);
            }
        });
        scope.spawn(|| {
            let (mut random, mut at) = (Random(9), 0);
            while !stop.load(Relaxed) {
                let bytes = read(&mut consumer, 1 + random.below(2 * sizes) as usize);
                at += bytes.len() as u64;
                taken.store(at, Release);
                if bytes.is_empty() || random.below(64) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut stream = ring.stream();
        let end = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end {
            ring.look(&mut stream, &memory, asks_lock, &mut seen);
        }
        stop.store(true, Relaxed);
    });
    assert!(seen.next > 0 && seen.next <= sent.load(Acquire), "{seen:?}");
    seen
}

#[test]
fn no_byte_is_wrong_whoever_is_faster() {
    let mut bytes = 0;
    for (asks_lock, sizes) in [(false, 100), (true, 100), (false, 6000), (true, 6000)] {
        let seen = both_at_work(asks_lock, sizes, false);
        println!("lock {asks_lock} sizes {sizes}: {seen:?}");
        bytes += seen.bytes;
    }
    assert!(bytes > 0);
}

#[test]
fn no_byte_is_wrong_of_requests_and_replies() {
    for (asks_lock, sizes) in [(false, 64), (true, 64), (true, 5000)] {
        let seen = both_at_work(asks_lock, sizes, true);
        println!("lock {asks_lock} sizes {sizes}: {seen:?}");
        assert!(seen.bytes > 0, "{seen:?}");
    }
}

/// Who looks behind each message misses none, also where it is consumed by then, and wherever the
/// producer has moved its base to.
#[test]
fn a_look_for_each_message_misses_nothing() {
    let (ring, memory) = (Ring::new(), ProcessMemory::open(std::process::id()).unwrap());
    let (mut producer, mut consumer) = ring.ends();
    let (mut stream, mut seen, mut random, mut at) = (ring.stream(), Seen::default(), Random(5), 0);
    for _ in 0..20_000 {
        let length = match random.below(4) {
            0 => 1 + random.below(SIZE as u64),
            _ => 1 + random.below(100),
        };
        at += write(&mut producer, at, length);
        if random.below(2) == 0 {
            read(&mut consumer, SIZE);
        }
        ring.look(&mut stream, &memory, true, &mut seen);
        read(&mut consumer, SIZE);
    }
    assert_eq!((seen.bytes, seen.gaps), (at, 0));
}

/// Without knowing who sends the next message tells that the one before was whole; after the last
/// one it has to be quiet.
#[test]
fn who_cannot_ask_waits_for_what_comes_next() {
    let (ring, memory) = (Ring::new(), ProcessMemory::open(std::process::id()).unwrap());
    let (mut producer, mut consumer) = ring.ends();
    let (mut stream, mut seen) = (ring.stream(), Seen::default());
    write(&mut producer, 0, 10);
    read(&mut consumer, 10);
    ring.look(&mut stream, &memory, false, &mut seen);
    assert_eq!(seen.bytes, 0);
    write(&mut producer, 10, 10);
    ring.look(&mut stream, &memory, false, &mut seen);
    assert_eq!(seen.bytes, 20, "the first by the second, and that is unread");
    read(&mut consumer, 10);
    write(&mut producer, 20, 10);
    read(&mut consumer, 10);
    ring.look(&mut stream, &memory, false, &mut seen);
    assert_eq!(seen.bytes, 20);
    let behind = Behind { words: ring.words(&memory), is_idle: false };
    let later = Instant::now() + Duration::from_secs(2);
    stream.settle(&behind, later, &mut |said| seen.add(said));
    assert_eq!((seen.bytes, seen.gaps), (30, 0));
}

/// A send that is under way has overwritten what it had room for; nobody can tell how much.
#[test]
fn what_lies_under_a_send_is_not_told_before_that_has_ended() {
    let (ring, memory) = (Ring::new(), ProcessMemory::open(std::process::id()).unwrap());
    let (mut producer, mut consumer) = ring.ends();
    let (mut stream, mut seen) = (ring.stream(), Seen::default());
    write(&mut producer, 0, 5000);
    read(&mut consumer, 5000);
    // Written, and not published.
    let bytes: Vec<u8> = (5000..7000).map(byte).collect();
    // SAFETY: a slice is readable for its length and is not the ring.
    unsafe { producer.write(bytes.as_ptr(), bytes.len()) }.unwrap();
    ring.lock.store(1, SeqCst);
    ring.look(&mut stream, &memory, true, &mut seen);
    assert_eq!(seen.next, 0);
    let _ = producer.publish();
    ring.lock.store(0, SeqCst);
    ring.look(&mut stream, &memory, true, &mut seen);
    // The base has moved: the first 2000 bytes are those of later.
    assert_eq!((seen.next, seen.bytes, seen.gaps), (7000, 5000, 1));
}

/// Of what a device writes nobody knows how much is under way.
#[test]
fn of_a_device_only_what_is_unread_is_told() {
    let (ring, memory) = (Ring::new(), ProcessMemory::open(std::process::id()).unwrap());
    let (mut producer, mut consumer) = ring.ends();
    let mut stream = Stream::new(ring.data.as_ptr() as u64, SIZE as u32, true).unwrap();
    stream.begin(0, Some(0), 1, 0);
    let mut seen = Seen::default();
    write(&mut producer, 0, 100);
    read(&mut consumer, 60);
    ring.look(&mut stream, &memory, false, &mut seen);
    assert_eq!((seen.next, seen.bytes, seen.gaps), (100, 40, 1));
}

/// The bytes of a ring, and no words.
struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Unreadable> {
        to.copy_from_slice(&self.0[at as usize..][..to.len()]);
        Ok(())
    }
}

/// A device writes several messages before its peer says that the first one is there: that one
/// bounds nothing.
#[test]
fn what_a_device_writes_ahead_is_never_told() {
    let mut stream = Stream::new(0, SIZE as u32, true).unwrap();
    stream.begin(0, Some(0), 1, 0);
    let size = SIZE as u64;
    let mut memory = Bytes((0..size).map(byte).collect());
    let words = Words { tail: size, held: size, epoch: 1, ..Words::default() };
    // All was taken, and three messages of 1000 bytes have come over it, before it was copied.
    for at in size..size + 3000 {
        memory.0[(at - size) as usize] = byte(at);
    }
    stream.copy(&memory, &words, None, 0).unwrap();
    let behind = Words { head: size, ..words };
    let mut seen = Seen::default();
    let mut settle = |words, is_idle| {
        let later = Instant::now() + Duration::from_secs(9);
        stream.settle(&Behind { words, is_idle }, later, &mut |said| seen.add(said));
    };
    settle(behind, true);
    // The first of them is announced.
    settle(Words { tail: size + 1000, held: size + 1000, ..behind }, true);
    assert_eq!((seen.next, seen.bytes, seen.gaps), (size, 0, 1));
}

/// What there is no room for is a gap, and what comes behind it has its place.
#[test]
fn what_is_too_much_at_once_is_lost() {
    let (ring, memory) = (Ring::new(), ProcessMemory::open(std::process::id()).unwrap());
    let (mut producer, _) = ring.ends();
    let (mut stream, mut seen) = (ring.stream(), Seen::default());
    stream.set_room(150);
    for at in [0, 100, 200] {
        write(&mut producer, at, 100);
        ring.look(&mut stream, &memory, true, &mut seen);
    }
    assert_eq!((seen.next, seen.bytes, seen.gaps), (300, 100, 2));
    stream.set_room(100);
    write(&mut producer, 300, 100);
    ring.look(&mut stream, &memory, true, &mut seen);
    assert_eq!((seen.next, seen.bytes, stream.held()), (400, 200, 0));
}

/// Whatever stands in the memory.
struct Nonsense(std::cell::RefCell<Random>);

impl Memory for Nonsense {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Unreadable> {
        let mut random = self.0.borrow_mut();
        if random.below(50) == 0 {
            return Err(Unreadable::Nothing);
        }
        assert!(
            at >= 1 << 40 && at + to.len() as u64 <= (1 << 40) + SIZE as u64,
            "outside the ring"
        );
        to.fill(at as u8);
        Ok(())
    }
}

#[test]
fn words_of_any_value_are_survived() {
    let memory = Nonsense(std::cell::RefCell::new(Random(3)));
    let mut random = Random(11);
    for _ in 0..2000 {
        let mut stream = Stream::new(1 << 40, SIZE as u32, random.below(2) == 0).unwrap();
        stream.begin(random.below(100), None, 1, random.below(100));
        for _ in 0..20 {
            let mut word = || match random.below(4) {
                0 => random.below(3 * SIZE as u64),
                1 => random.below(3 * SIZE as u64).wrapping_neg(),
                2 => 1 << random.below(64),
                _ => random.below(u64::MAX),
            };
            let words = Words {
                tail: word(),
                base: word(),
                epoch: word() as u32 & 7,
                fast_from: word(),
                base_before: word(),
                head: word(),
                followed: 0,
                request: 0,
                held: word(),
            };
            let start = (word() & 1 == 0).then(&mut word);
            let mut told = 0;
            if stream.has_news(&words) {
                let _ = stream.copy(&memory, &words, start, 0);
            }
            let behind = Behind { words, is_idle: word() & 1 == 0 };
            stream.settle(&behind, Instant::now(), &mut |said| {
                if let Said::Bytes(_, bytes, _) = said {
                    told += bytes.len();
                }
            });
            assert!(told <= 64 * SIZE);
        }
    }
    for size in [0, 1, 4095, 4097, u32::MAX, 1 << 31] {
        assert!(Stream::new(0, size, false).is_none(), "{size}");
    }
}
