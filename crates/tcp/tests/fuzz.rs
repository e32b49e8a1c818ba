//! What the fuzz target of the segment parser and the data path does, with bytes that are random
//! and said by a seed: valid packets near where the connection is, some of them damaged.
//! `NETACC_FUZZ_SEGMENTS` says how many segments the connections get, a million if it does not.

#[allow(dead_code, reason = "the fuzz target uses less of it")]
mod bytes;

use bytes::{Seen, drive};
use netacc_tcp::wire::emit::{Checksum, HEADERS_MAX, Service, headers};
use netacc_tcp::wire::{Blocks, Endpoint, Flags, Flow, Options, Segment, Stamps};

/// xorshift64*.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    const fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// In one of so many cases.
    const fn one_of(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    /// A number near that one, mostly: where streams are, the edges of windows, and anywhere.
    const fn near(&mut self, of: u32) -> u32 {
        match self.below(16) {
            0 => self.next() as u32,
            1 => of.wrapping_add(1 << 31),
            2 => of.wrapping_sub(self.below(3000) as u32),
            3 => of.wrapping_add(40_000 + self.below(20_000) as u32),
            4..8 => of,
            _ => of.wrapping_add(self.below(9000) as u32),
        }
    }
}

fn ends(v6: bool) -> Flow {
    let end = |address: &str| Endpoint { address: address.parse().unwrap(), port: 80 };
    let (from, to) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    Flow { source: end(from), destination: end(to) }
}

/// A packet of the peer's, whose stream has come about that far.
fn packet(random: &mut Random, flow: &Flow, (seq, ack, clock): (u32, u32, u32)) -> Vec<u8> {
    let mut sack = Blocks::default();
    if random.one_of(3) {
        for _ in 0..random.below(5) {
            let from = random.near(ack);
            sack.push(from, from.wrapping_add(random.below(3000) as u32));
        }
    }
    let flags = match random.below(300) {
        0 => Flags(random.next() as u8),
        1..20 => Flags::ACK.with(Flags(random.next() as u8 & 0xc8)),
        _ => Flags::ACK,
    };
    let stamps = Stamps { value: clock, echo: 1000 + random.below(20) as u32 };
    let segment = Segment {
        seq: random.near(seq),
        ack: random.near(ack),
        flags,
        window: if random.one_of(10) { 0 } else { random.next() as u16 },
        options: Options { stamps: Some(stamps), sack, foreign: random.one_of(2000) },
        congested: random.one_of(30),
    };
    let service = Service { hops: 64, class: 0, ecn_capable: true, flow_label: 1 };
    let length = if random.one_of(2) { 0 } else { random.below(1460) as usize };
    let mut bytes = vec![7; HEADERS_MAX + length];
    let here = Checksum::ByTheDevice;
    let header = headers((flow, &service), &segment, length, here, &mut bytes).unwrap();
    bytes.truncate(header + length);
    if random.one_of(20) {
        for _ in 0..1 + random.below(4) {
            let at = random.below(header as u64) as usize;
            bytes[at] = random.next() as u8;
        }
    }
    if random.one_of(50) {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
    }
    bytes
}

/// A connection's life.
fn input(random: &mut Random) -> Vec<u8> {
    let number = if random.one_of(2) { random.next() as u32 } else { 0_u32.wrapping_sub(4000) };
    let mut input = vec![random.next() as u8];
    input.extend(number.to_be_bytes());
    let flow = ends(random.one_of(2));
    let (mut seq, mut ack, mut clock) = (number, number, 500);
    for _ in 0..random.below(300) {
        let what = random.below(8) as u8;
        // (Mostly below 130 µs, and 2 s at most.)
        let time = if random.one_of(30) { random.below(32) } else { random.below(18) } as u8;
        let bytes = if what > 2 { packet(random, &flow, (seq, ack, clock)) } else { Vec::new() };
        let length = if what > 2 { bytes.len() as u16 } else { random.below(500) as u16 };
        input.push(what << 5 | time);
        input.extend(length.to_be_bytes());
        input.extend(bytes);
        // (About as fast as the streams are.)
        seq = seq.wrapping_add(random.below(500) as u32);
        ack = ack.wrapping_add(random.below(500) as u32);
        clock += random.below(2) as u32;
    }
    input
}

#[test]
fn segments_of_any_sort_harm_nothing() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let segments = number("NETACC_FUZZ_SEGMENTS").unwrap_or(1_000_000);
    let seed: u64 = number("PROPTEST_RNG_SEED").unwrap_or(1);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut seen = Seen::default();
    while seen.segments < segments {
        let state = random.0;
        let input = input(&mut random);
        let result = std::panic::catch_unwind(move || {
            drive(&input, &mut seen);
            seen
        });
        seen = result.unwrap_or_else(|failure| {
            eprintln!("PROPTEST_RNG_SEED={seed}: the input that the state {state:#x} makes");
            std::panic::resume_unwind(failure);
        });
    }
    eprintln!("{seen:?}");
    // They get deep into it.
    assert!(seen.taken > segments / 4 && seen.bytes > 50 * segments, "{seen:?}");
    assert!(seen.sent > segments / 5 && seen.given_back > segments / 1000, "{seen:?}");
}
