//! Random calls on both ends of a ring, checked against four counters.

use proptest::collection::vec;
use proptest::prelude::*;
use std::vec::Vec;

use super::util::{Ring, copy_out, peek, read, write};

/// The largest number of calls in a case.
pub(super) const OPS: usize = if cfg!(miri) { 40 } else { 200 };

#[derive(Debug, Clone)]
pub(super) enum Op {
    Write(usize),
    Publish,
    Free(usize),
    InFlight,
    CopyOut(usize, usize),
    WantSpace(usize),
    Available,
    Refresh,
    Read(usize),
    Peek(usize, usize),
    Skip(usize),
    GiveBack,
}

impl Op {
    /// The call that a random number stands for, with lengths that suit a ring of `size`.
    pub(super) fn new(random: u64, size: usize) -> Self {
        let [kind, .., a, b] = random.to_le_bytes();
        // Mostly short, at most a little more than the ring. What copies makes a buffer of that
        // length.
        let len = |byte: u8| {
            if byte & 1 == 0 {
                usize::from(byte >> 1) % 9
            } else {
                (size + 3) * usize::from(byte) / 256
            }
        };
        // What does not copy takes any length.
        let any = |byte: u8| {
            if byte < 250 { len(byte) } else { usize::MAX - usize::from(byte & 1) }
        };
        match kind % 24 {
            0..4 => Op::Write(len(a)),
            4..8 => Op::Publish,
            8 => Op::Free(any(a)),
            9 => Op::InFlight,
            10 => Op::CopyOut(len(a), len(b)),
            11 | 12 => Op::WantSpace(any(a)),
            13 => Op::Available,
            14 => Op::Refresh,
            15..19 => Op::Read(len(a)),
            19 => Op::Peek(any(a), len(b)),
            20 => Op::Skip(any(a)),
            _ => Op::GiveBack,
        }
    }
}

/// A ring size (the largest is larger than the distance between two looks at the head) and calls
/// for it.
pub(super) fn size_and_ops() -> impl Strategy<Value = (usize, Vec<Op>)> {
    let bits = prop_oneof![8 => 0..8u32, 1 => Just(13)];
    (bits, vec(any::<u64>(), 0..OPS)).prop_map(|(bits, randoms)| {
        let size = 1 << bits;
        (size, randoms.iter().map(|&random| Op::new(random, size)).collect())
    })
}

/// Anywhere, with a liking for the place where numbers wrap.
fn position() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), (0..300u64).prop_map(|n| n.wrapping_sub(250))]
}

/// The byte at a position, different from its neighbours and from those one lap away.
fn byte(pos: u64) -> u8 {
    (pos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| byte(from.wrapping_add(i))).collect()
}

fn check(size: usize, start: u64, past: u64, ops: &[Op]) {
    let ring = Ring::new(size);
    let (mut p, mut c) = ring.ends_after(start, past);
    // Counted from the start: given_back <= consumed <= published <= written.
    let (mut written, mut published, mut consumed, mut given_back) = (0usize, 0, 0, 0);
    let mut sleeping = false;
    for op in ops {
        let free = size - (written - given_back);
        let available = published - consumed;
        let at = |offset: usize| start.wrapping_add(offset as u64);
        match *op {
            Op::Write(len) => {
                let n = write(&mut p, &bytes(at(written), len)).unwrap();
                assert_eq!(n, len.min(free));
                written += n;
            }
            Op::Publish => {
                p.publish();
                published = written;
            }
            Op::Free(want) => {
                let n = p.free_at_least(want).unwrap();
                assert!(want.min(free) <= n && n <= free);
                let n = p.free().unwrap();
                assert!(1.min(free) <= n && n <= free);
            }
            Op::InFlight => assert_eq!(p.in_flight(), Ok(written - given_back)),
            Op::CopyOut(back, len) => {
                p.in_flight().unwrap();
                let held = if back <= written - given_back { back } else { 0 };
                let from = at(written).wrapping_sub(back as u64);
                assert_eq!(copy_out(&p, from, len), bytes(from, len.min(held)));
            }
            Op::WantSpace(want) => {
                p.publish();
                published = written;
                let roomy = p.want_space(want).unwrap();
                assert_eq!(roomy, free >= want.min(size / 2));
                sleeping = !roomy;
            }
            Op::Available => {
                let n = c.available().unwrap();
                assert!(1.min(available) <= n && n <= available);
            }
            Op::Refresh => assert_eq!(c.refresh(), Ok(available)),
            Op::Read(len) => {
                assert_eq!(c.peek_published(), available > 0);
                let read = read(&mut c, len).unwrap();
                assert_eq!(read, bytes(at(consumed), len.min(available)));
                consumed += read.len();
            }
            Op::Peek(offset, len) => {
                let n = available.saturating_sub(offset).min(len);
                assert_eq!(
                    peek(&mut c, offset, len).unwrap(),
                    bytes(at(consumed).wrapping_add(offset as u64), n)
                );
            }
            Op::Skip(len) => {
                let n = c.skip(len).unwrap();
                assert_eq!(n, len.min(available));
                consumed += n;
            }
            Op::GiveBack => {
                c.publish();
                given_back = consumed;
                sleeping &= !c.take_space_request(|| {});
                assert!(!sleeping || consumed < written, "all is read and the writer still sleeps");
            }
        }
        assert_eq!(
            (p.tail(), p.unpublished(), c.head()),
            (at(written), written - published, at(consumed))
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 20 } else { 1000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn ends_agree_with_the_oracle(
        (size, ops) in size_and_ops(),
        start in position(),
        past in position(),
    ) {
        check(size, start, past, &ops);
    }
}
