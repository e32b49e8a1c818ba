//! What a set reports of a connection in a ring is what it reports of one in the kernel.

use crate::sys;
use crate::testing::pair::{Fd, LONG_NS, On, Pair, Set, on_both};
use crate::testing::states::{ASKED, UNASKED, in_each_state, with_news};
use core::ffi::c_int;
use libc::{EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, SHUT_WR};
use std::vec::Vec;

const ROOM: i32 = EPOLLOUT;
const BYTES: i32 = EPOLLIN | EPOLLOUT;

/// A program that makes a set for each wait asks it once. (It needs places to spare: limits.md, "A
/// new set with a full buffer".)
#[test]
fn a_new_set_tells_of_all_at_once() {
    on_both(|p| {
        for plain in 1..12 {
            let set = Set::new();
            let others: Vec<Fd> = (0..plain).map(|_| Fd(sys::eventfd(1, 0) as c_int)).collect();
            set.add(p.a, EPOLLOUT).unwrap();
            others.iter().for_each(|fd| set.add(*fd, EPOLLIN).unwrap());
            set.add(p.c, EPOLLOUT).unwrap();
            let ready = others.len() + 2;
            assert_eq!(set.look(4 * ready).len(), ready, "{:?}", p.on);
            set.close();
            others.into_iter().for_each(Fd::close);
        }
        p.close();
    });
}

#[test]
fn each_question_is_answered_at_each_wait() {
    in_each_state(
        |a| a.ready(ASKED),
        |state, a, is| {
            let set = Set::new();
            set.add(a, 0).unwrap();
            for events in (0..=ASKED).filter(|events| events & !ASKED == 0) {
                set.modify(a, events.into()).unwrap();
                let expected = i32::from(is & (events | UNASKED));
                for wait in 0..3 {
                    assert_eq!(set.says(), expected, "{state}, for {events:#x}, wait {wait}");
                }
            }
            set.close();
        },
    );
}

#[test]
fn who_is_put_in_is_reported_as_it_is() {
    in_each_state(
        |a| a.ready(ASKED),
        |state, a, is| {
            for edge in [0, EPOLLET] {
                let set = Set::new();
                set.add(a, i32::from(ASKED) | edge).unwrap();
                assert_eq!(set.says(), i32::from(is), "{state}");
                assert_eq!(set.says(), if edge == 0 { i32::from(is) } else { 0 }, "{state}");
                // Whatever the set was told of before.
                set.delete(a).unwrap();
                assert_eq!(set.says(), 0, "{state}");
                set.add(a, i32::from(ASKED) | edge).unwrap();
                assert_eq!(set.says(), i32::from(is), "{state}");
                set.close();
            }
        },
    );
}

#[test]
fn a_thread_that_goes_to_sleep_in_a_set_hears_of_what_comes_then() {
    for edge in [0, EPOLLET] {
        with_news(|a, events| {
            let set = Set::new();
            set.add(a, i32::from(events) | edge).unwrap();
            let told = set.wait(4, LONG_NS);
            set.close();
            assert!(told.len() <= 1, "{told:?}");
            told.first().map_or(0, |(events, _)| *events as i16)
        });
    }
}

/// A step of a connection whose end `a` is edge-triggered, and what the set reports then. Whatever
/// it is, it is reported once.
type Step = (&'static str, fn(Pair), i32);

const EDGES: &[Step] = &[
    ("put in", |_| {}, ROOM),
    (
        "bytes",
        |p| {
            p.c.send(b"abc").unwrap();
        },
        BYTES,
    ),
    (
        "a part is received",
        |p| {
            p.a.receive(1).unwrap();
        },
        0,
    ),
    (
        "more bytes",
        |p| {
            p.c.send(b"de").unwrap();
        },
        BYTES,
    ),
    (
        "bytes twice",
        |p| {
            p.c.send(b"f").unwrap();
            p.c.send(b"g").unwrap();
        },
        BYTES,
    ),
    (
        "all is received",
        |p| {
            assert_eq!(p.a.receive(9).unwrap(), b"bcdefg");
        },
        0,
    ),
    (
        "bytes that are gone when it is looked for them",
        |p| {
            p.c.send(b"h").unwrap();
            p.a.receive(9).unwrap();
        },
        ROOM,
    ),
    (
        "full",
        |p| {
            p.a.fill();
        },
        0,
    ),
    (
        "room",
        |p| {
            p.c.drain();
        },
        ROOM,
    ),
    (
        "room that nobody has missed",
        |p| {
            p.a.send(b"i").unwrap();
            p.c.drain();
        },
        0,
    ),
    ("half closed", |p| p.c.shutdown(SHUT_WR), BYTES | EPOLLRDHUP),
];

#[test]
fn an_edge_is_reported_once() {
    on_both(|p| {
        let set = Set::new();
        set.add(p.a, BYTES | EPOLLRDHUP | EPOLLET).unwrap();
        for (step, deed, expected) in EDGES {
            deed(p);
            assert_eq!(set.says(), *expected, "{step} ({:?})", p.on);
            assert_eq!(set.says(), 0, "{step}, again ({:?})", p.on);
        }
        set.close();
        p.close();
    });
}

#[test]
fn an_edge_is_one_of_what_is_asked_for() {
    on_both(|p| {
        let set = Set::new();
        set.add(p.a, EPOLLRDHUP | EPOLLET).unwrap();
        p.c.send(b"b").unwrap();
        assert_eq!(set.says(), 0, "{:?}", p.on);
        // Who asks for it is told, though it came before.
        set.modify(p.a, EPOLLIN | EPOLLET).unwrap();
        assert_eq!((set.says(), set.says()), (EPOLLIN, 0), "{:?}", p.on);
        set.modify(p.a, EPOLLIN | EPOLLET).unwrap();
        assert_eq!((set.says(), set.says()), (EPOLLIN, 0), "{:?}", p.on);
        set.close();
        p.close();
    });
}

/// Of four that are ready, by waits with room for fewer.
#[test]
fn waits_with_little_room_come_to_all() {
    for on in [On::Kernel, On::Ring] {
        let set = Set::new();
        let all: Vec<Pair> = (0..4).map(|_| Pair::new(on)).collect();
        for (i, p) in all.iter().enumerate() {
            set.ctl(libc::EPOLL_CTL_ADD, p.a, EPOLLIN, i as u64).unwrap();
            p.c.send(b"b").unwrap();
        }
        for most in 1..=4 {
            let waits = 4_usize.div_ceil(most);
            let mut told: Vec<u64> = (0..waits)
                .flat_map(|_| set.look(most))
                .map(|(events, data)| {
                    assert_eq!(events, EPOLLIN);
                    data
                })
                .collect();
            assert_eq!(told.len(), waits * most, "{told:?}");
            told.sort_unstable();
            told.dedup();
            assert_eq!(told, [0, 1, 2, 3], "{most} at a time ({on:?})");
        }
        // Each was reported for itself: one that is not ready any more is not.
        assert_eq!(all[2].a.receive(9).unwrap(), b"b");
        let mut told: Vec<u64> = set.look(8).into_iter().map(|(_, data)| data).collect();
        told.sort_unstable();
        assert_eq!(told, [0, 1, 3]);
        set.close();
        all.into_iter().for_each(Pair::close);
    }
}
