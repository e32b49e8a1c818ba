//! Random calls on both ends of a ring, checked against four counters.

use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

use super::util::{Ring, copy_out, peek, read, write};

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

/// Lengths up to a little more than a ring of `size`, mostly short.
fn len(size: usize) -> impl Strategy<Value = usize> + Clone {
    prop_oneof![3 => 0..=size.min(8), 2 => 0..=size + 2, 1 => Just(usize::MAX >> 1)]
}

pub(super) fn ops(size: usize) -> impl Strategy<Value = Vec<Op>> {
    // A buffer is made for each copy, so lengths are bounded; `len` alone may be huge where nothing is copied.
    let copied = move || len(size).prop_map(move |len| len.min(size + 2));
    let op = prop_oneof![
        4 => copied().prop_map(Op::Write),
        4 => Just(Op::Publish),
        1 => len(size).prop_map(Op::Free),
        1 => Just(Op::InFlight),
        1 => (0..=size + 2, copied()).prop_map(|(back, len)| Op::CopyOut(back, len)),
        2 => len(size).prop_map(Op::WantSpace),
        1 => Just(Op::Available),
        1 => Just(Op::Refresh),
        4 => copied().prop_map(Op::Read),
        1 => (len(size), copied()).prop_map(|(offset, len)| Op::Peek(offset, len)),
        1 => len(size).prop_map(Op::Skip),
        4 => Just(Op::GiveBack),
    ];
    proptest::collection::vec(op, 0..200)
}

/// Ring sizes; the largest is larger than the distance between two looks at the head.
pub(super) fn size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => (0..8u32).prop_map(|bits| 1 << bits), 1 => Just(1 << 13)]
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
    (0..len as u64)
        .map(|i| byte(from.wrapping_add(i)))
        .collect()
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
                let held = if back <= written - given_back {
                    back
                } else {
                    0
                };
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
                sleeping &= !c.take_space_request();
                assert!(
                    !sleeping || consumed < written,
                    "all is read and the writer still sleeps"
                );
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
        cases: if cfg!(miri) { 20 } else { 500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn ends_agree_with_the_oracle(
        (size, ops) in size().prop_flat_map(|size| (Just(size), ops(size))),
        start in position(),
        past in position(),
    ) {
        check(size, start, past, &ops);
    }
}
