//! Small rings, and whole ones for those that fill them.

use super::*;
use crate::wait;
use netacc_control::config::Config;
use netacc_control::stats::Counter;
use netacc_verbs::memory::Model;

const SMALL: u64 = 8 << 10;
const WHOLE: u64 = 32 << 10;
/// What a program may have written before its peer reads anything: as much as fits in a whole ring.
const UNREAD: u64 = 128 << 10;

/// Connections to one host that have whole rings: the eight of a process, less what is for others.
const FIRST: usize = 6;

/// Rings of 32 KiB, and regions of one connection's: so the first of a process have these.
fn few() -> Config {
    Config {
        buffer_bytes: 4096,
        arena_first_bytes: 65_536,
        arena_growth_max_bytes: 65_536,
        connections_per_channel: 4,
        ..Config::default()
    }
}

/// All have small ones at first.
pub(super) fn none() -> Config {
    Config { arena_growth_max_bytes: 0, ..few() }
}

fn ring(rig: &Rig, i: usize, side: usize) -> u64 {
    rig.conns[i][side].socket.tx_ring_bytes()
}

fn rings(rig: &Rig, i: usize) -> [u64; 2] {
    [C, A].map(|side| ring(rig, i, side))
}

pub(super) fn registered(rig: &mut Rig, h: usize) -> usize {
    let links = rig.remote(h).links.iter().flatten();
    links.filter_map(|l| l.arenas.as_ref()).map(|a| a.registered()).sum()
}

fn connected(rig: &mut Rig, c: usize, a: usize) -> usize {
    let i = rig.connect(c, a);
    rig.promoted(i);
    i
}

/// Bytes that a send finds room for.
fn free(rig: &Rig, i: usize, side: usize) -> usize {
    let s = rig.conns[i][side].socket;
    let c = s.channel().unwrap();
    let head = c.words(s.slot.load(Relaxed) as usize, c.side).head.load(Relaxed);
    (head + s.tx_ring_bytes() - s.published.tail.load(Relaxed)) as usize
}

/// Poll, select and epoll say that a send finds room.
fn has_room(rig: &Rig, i: usize, side: usize) -> bool {
    let s = rig.conns[i][side].socket;
    let slot = s.slot.load(Relaxed) as usize;
    s.channel().is_none_or(|c| wait::send_room(s, c, slot, s.room_bytes()))
}

/// So many bytes more are sent, and none is read.
#[track_caller]
fn sent_unread(rig: &mut Rig, i: usize, sides: &[usize], bytes: u64) {
    let goal = [C, A].map(|side| rig.conns[i][side].sent + bytes);
    rig.until("what nobody reads is sent", |r| {
        for side in sides {
            let left = goal[*side] - r.conns[i][*side].sent;
            r.send(i, *side, left.min(60_000) as usize);
        }
        sides.iter().all(|side| r.conns[i][*side].sent == goal[*side])
    });
}

#[test]
fn the_first_connections_have_whole_rings_and_the_others_small_ones() {
    crate::config::with(few(), || {
        for model in MODELS {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            for n in 0..FIRST + 8 {
                let i = connected(&mut rig, 0, 1);
                rig.exchange(i, 5000);
                assert_eq!(rings(&rig, i), [if n < FIRST { WHOLE } else { SMALL }; 2], "{n}");
            }
            let all = FIRST as u64 * 2 * WHOLE + 8 * 2 * SMALL;
            for h in [0, 1] {
                let has = registered(&mut rig, h) as u64;
                assert!((all..all + 2 * WHOLE).contains(&has), "{has}, and {all} are in use");
            }
            // Those that are given back serve the next.
            rig.close(0, C);
            rig.close(0, A);
            rig.settle();
            let next = connected(&mut rig, 0, 1);
            assert_eq!(rings(&rig, next), [WHOLE; 2]);
            rig.finish();
        }
    });
}

/// A client of many servers has connections to each, which do not know of each other.
#[test]
fn a_connector_has_a_limit_of_its_own() {
    crate::config::with(few(), || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 3);
        for n in 0..12 {
            let i = connected(&mut rig, 0, 1 + n % 2);
            assert_eq!(rings(&rig, i), [if n < FIRST { WHOLE } else { SMALL }; 2], "{n}");
        }
        assert!(registered(&mut rig, 0) < 11 * 2 * WHOLE as usize);
        // Whichever end it is that has filled one.
        for (i, side) in [(8, C), (9, A)] {
            sent_unread(&mut rig, i, &[side], UNREAD);
            rig.drain(i);
            rig.promoted(i);
            assert_eq!(rings(&rig, i), [WHOLE; 2]);
        }
        rig.finish();
    });
}

/// One host, however much it asks for, leaves whole rings and memory to others.
#[test]
fn no_host_has_all_memory() {
    crate::config::with(few(), || {
        for model in MODELS {
            let mut rig = Rig::new(Order::Prompt, model, 4);
            rig.remote(1).memory_max = 16 * 2 * WHOLE as usize;
            let limit = rig.remote(1).memory_max;
            let greedy: Vec<usize> = (0..16).map(|_| connected(&mut rig, 0, 1)).collect();
            assert_eq!(greedy.iter().filter(|i| rings(&rig, **i) == [WHOLE; 2]).count(), FIRST);
            let other = connected(&mut rig, 2, 1);
            assert_eq!(rings(&rig, other), [WHOLE; 2]);
            // The others fill small ones, and are to have whole ones, until none are left for them.
            for i in &greedy[FIRST..] {
                sent_unread(&mut rig, *i, &[C], UNREAD);
                rig.drain(*i);
            }
            for _ in 0..20 {
                greedy.iter().for_each(|i| rig.chat(*i));
                rig.settle();
                rig.pass();
            }
            assert!(greedy.iter().any(|i| !rig.is_fast(*i)));
            assert!(registered(&mut rig, 1) <= limit * 3 / 4);
            // Another one finds memory all the same.
            let i = connected(&mut rig, 3, 1);
            sent_unread(&mut rig, i, &[C], UNREAD);
            rig.drain(i);
            rig.promoted(i);
            assert_eq!(rings(&rig, i), [WHOLE; 2]);
            rig.finish();
        }
    });
}

/// A program that writes before it reads finds the room that it had with whole rings, also if its
/// peer does the same, and neither reads a byte meanwhile.
#[test]
fn who_fills_a_small_ring_is_not_held_up() {
    crate::config::with(none(), || {
        for model in MODELS {
            for (seed, sides) in [[C].as_slice(), &[A], &[C, A]].into_iter().enumerate() {
                let mut rig = Rig::new(Order::Shuffled(seed as u64), model, 2);
                let quiet = connected(&mut rig, 0, 1);
                let i = connected(&mut rig, 0, 1);
                assert_eq!(rings(&rig, i), [SMALL; 2]);
                sent_unread(&mut rig, i, sides, UNREAD);
                rig.drain(i);
                rig.promoted(i);
                assert_eq!(rings(&rig, i), [WHOLE; 2]);
                rig.exchange(i, 100_000);
                // And no other.
                rig.exchange(quiet, 1000);
                assert_eq!(rings(&rig, quiet), [SMALL; 2]);
                rig.finish();
            }
        }
    });
}

/// Who asks before it sends is told what a send finds.
#[test]
fn there_is_always_room_in_a_small_ring() {
    crate::config::with(none(), || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = connected(&mut rig, 0, 1);
        // (Of what was said before, the peer has not told yet that it was read.)
        let rest = free(&rig, i, C) - 5000;
        for part in [5000, rest] {
            assert_eq!(rig.send(i, C, part), part);
            rig.settle();
            assert!(rig.is_fast(i) && has_room(&rig, i, C));
        }
        // It has just what fits, and nobody has asked for more.
        assert!(!rig.conns[i][C].socket.fills.load(Relaxed));
        rig.drain(i);
        assert!(rig.is_fast(i));
        sent_unread(&mut rig, i, &[C], SMALL + 1);
        rig.drain(i);
        rig.promoted(i);
        assert_eq!(rings(&rig, i), [WHOLE; 2]);
        // In a whole one there is not.
        while rig.send(i, C, 20_000) > 0 {
            rig.settle();
        }
        assert!(rig.is_fast(i) && !has_room(&rig, i, C));
        rig.finish();
    });
}

/// A peer that stands still answers nothing: what a whole ring has room for is sent, and no more.
#[test]
fn a_peer_that_is_stopped_takes_what_a_whole_ring_would_have() {
    crate::config::with(none(), || {
        for model in MODELS {
            let mut rig = Rig::new(Order::Prompt, model, 3);
            let (i, other) = (connected(&mut rig, 0, 1), connected(&mut rig, 0, 2));
            rig.hosts[1].stopped = true;
            let room = free(&rig, i, C) as u64 + WHOLE - SMALL;
            let before = rig.conns[i][C].sent;
            while rig.conns[i][C].sent - before < room / 3 {
                assert!(has_room(&rig, i, C) && rig.send(i, C, 1000) == 1000);
            }
            while rig.send(i, C, 7000) > 0 {
                rig.settle();
                rig.exchange(other, 1000);
            }
            assert_eq!(rig.conns[i][C].sent - before, room);
            assert!(!has_room(&rig, i, C) && rig.is_attached(i, C));
            // What it has is not lost by that, whatever becomes of the rest.
            rig.stand_still(10_000_000_000);
            rig.hosts[1].stopped = false;
            rig.drain(i);
            sent_unread(&mut rig, i, &[C], UNREAD);
            rig.drain(i);
            rig.promoted(i);
            assert_eq!(rings(&rig, i), [WHOLE; 2]);
            assert!(rig.conns[i].iter().all(|e| e.socket.spill.is_free()));
            rig.finish();
        }
    });
}

/// Nobody is held up by a peer that stands still in reading what had come before.
#[test]
fn what_a_stopped_peer_had_sent_is_read() {
    crate::config::with(none(), || {
        for model in MODELS {
            for (c, a) in [(C, A), (A, C)] {
                let mut rig = Rig::new(Order::Prompt, model, 2);
                let i = connected(&mut rig, 0, 1);
                assert_eq!(rig.send(i, a, 4000), 4000);
                rig.settle();
                rig.hosts[rig.conns[i][a].host].stopped = true;
                while rig.send(i, c, 7000) > 0 {
                    rig.settle();
                }
                rig.stand_still(100_000_000);
                assert_eq!([1500, 60_000].map(|n| rig.receive(i, c, n)), [1500, 2500]);
                assert!(rig.is_attached(i, c));
                rig.stand_still(1_000_000_000);
                rig.hosts[rig.conns[i][a].host].stopped = false;
                rig.drain(i);
                rig.exchange(i, UNREAD);
                rig.promoted(i);
                assert_eq!(rings(&rig, i), [WHOLE; 2]);
                rig.finish();
            }
        }
    });
}

/// Poll, select and epoll say that a receive finds something.
fn is_readable(rig: &Rig, i: usize, side: usize) -> bool {
    let e = &rig.conns[i][side];
    let slot = e.socket.slot.load(Relaxed) as usize;
    let ring = e.socket.channel().is_some_and(|c| wait::receive_news(e.socket, c, slot));
    ring || (!e.socket.is(State::Attached) && sys::poll_now(e.fd, libc::POLLIN) != 0)
}

/// Who is told that there are bytes finds them, whatever happens in between.
#[test]
fn what_was_said_to_be_there_is_read() {
    crate::config::with(none(), || {
        for seed in 0..30 {
            let mut rig = Rig::new(Order::Shuffled(seed), MODELS[seed as usize % 3], 2);
            let i = connected(&mut rig, 0, 1);
            assert_eq!(rig.send(i, C, 20_000), 20_000);
            for step in 0..100 {
                let told = is_readable(&rig, i, A);
                match rig.random.below(5) {
                    0 => rig.serve_queues(),
                    1 => _ = testing::run_held(),
                    2 => _ = rig.step(C),
                    _ => _ = rig.step(A),
                }
                assert!(!told || rig.receive(i, A, 700) > 0, "{seed}: step {step}");
            }
            rig.drain(i);
            rig.promoted(i);
            assert_eq!(rings(&rig, i), [WHOLE; 2]);
            rig.finish();
        }
    });
}

/// And so does one that has lost the pair, or the link, or both, and ends, or is asked for the end.
#[test]
fn what_a_stopped_peer_has_not_taken_comes_whatever_breaks() {
    crate::config::with(none(), || {
        for at in 0..48 {
            let mut rig = Rig::new(Order::Shuffled(at as u64), MODELS[at % 3], 2);
            let i = connected(&mut rig, 0, 1);
            rig.hosts[1].stopped = true;
            rig.send(i, C, 3000 + 1000 * at);
            rig.play(at, |_, _| {});
            if at & 4 != 0 {
                rig.wires.break_pairs(&rig.hosts[at & 1].fabric);
            }
            if at & 8 != 0 {
                rig.break_links(at & 1);
            }
            rig.send(i, C, 5000);
            rig.settle();
            match at & 3 {
                0 => {}
                1 => rig.shut(i, C),
                _ => rig.close(i, C),
            }
            rig.stand_still(1_000_000_000);
            rig.hosts[1].stopped = false;
            rig.until("all comes", |r| {
                while r.receive(i, A, 30_000) > 0 {}
                r.conns[i][A].received == r.conns[i][C].sent
                    && (at & 3 == 0 || r.conns[i][A].over == Some(0))
            });
            rig.settle();
            assert!(rig.conns[i].iter().all(|e| e.socket.spill.is_free()), "{at}");
            rig.finish();
        }
    });
}

/// Without memory for it a send finds the room of a small ring, and goes on when that is left.
#[test]
fn without_memory_a_stopped_peer_takes_what_a_small_ring_does() {
    crate::config::with(none(), || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = connected(&mut rig, 0, 1);
        rig.hosts[1].stopped = true;
        let room = free(&rig, i, C);
        crate::socket::NO_MEMORY.set(true);
        assert_eq!(rig.send(i, C, 20_000), room);
        assert!(!has_room(&rig, i, C));
        assert_eq!(rig.send(i, C, 20_000), 0);
        crate::socket::NO_MEMORY.set(false);
        rig.hosts[1].stopped = false;
        sent_unread(&mut rig, i, &[C], UNREAD);
        rig.drain(i);
        rig.promoted(i);
        rig.finish();
    });
}

/// The link breaks, the pair is lost, or both, at each moment of the way.
#[test]
fn growing_survives_links_and_pairs_that_break() {
    crate::config::with(none(), || {
        for at in 0..60 {
            let seed = at as u64;
            let mut rig = Rig::new(Order::Shuffled(seed), MODELS[at % 3], 2);
            let i = connected(&mut rig, 0, 1);
            rig.send(i, C, 20_000);
            rig.play(60, |r, step| {
                if step == at / 2 {
                    if at % 2 == 0 {
                        r.wires.break_pairs(&r.hosts[at / 4 % 2].fabric);
                    }
                    if at % 4 > 0 {
                        r.break_links(at / 4 % 2);
                    }
                }
            });
            rig.drain(i);
            sent_unread(&mut rig, i, &[C, A], UNREAD);
            rig.drain(i);
            rig.promoted(i);
            assert_eq!(rings(&rig, i), [WHOLE; 2], "{at}");
            rig.finish();
        }
    });
}

/// Its process is killed, at each moment of the way: as with any other, what had come is read, and
/// then the reset.
#[test]
fn growing_survives_a_peer_that_is_killed() {
    crate::config::with(none(), || {
        let mut late = Vec::new();
        for at in 0..120 {
            let mut rig = Rig::new(Order::Shuffled(at as u64), MODELS[at % 3], 2);
            let i = connected(&mut rig, 0, 1);
            let side = 1 - at % 2;
            rig.send(i, side, 20_000);
            if at < 60 {
                rig.send(i, side ^ 1, 20_000);
            }
            let mut killed = 0;
            rig.play(60, |r, step| {
                if step == at % 60 {
                    r.kill(at % 2);
                    killed = sys::now_ns();
                }
            });
            rig.until("the end is seen", |r| {
                while r.receive(i, side, 30_000) > 0 {}
                r.conns[i][side].over.is_some()
            });
            // What it has left to its kernel comes, as ever.
            let [c, a] = &rig.conns[i];
            let all = [c.received == a.sent, a.received == c.sent][side];
            let sides = [c, a].map(|e| (e.sent, e.received, e.over));
            assert!(all || rig.conns[i][side].over != Some(0), "{at}: no end in order: {sides:?}");
            // And its sends say so, in time.
            rig.conns[i][side].over = None;
            rig.until("a send fails", |r| {
                r.send(i, side, 1000);
                r.conns[i][side].over.is_some_and(|r| r < 0)
            });
            let after = sys::now_ns() - killed;
            if after > 400_000_000 {
                late.push((at, after / 1_000_000));
            }
            rig.finish();
        }
        assert!(late.is_empty(), "the end was seen after, in ms: {late:?}");
    });
}

/// Where an end has no memory for whole rings, who fills a small one is on TCP until it has: with
/// nothing held up, and not for ever. The others are not touched.
#[test]
fn who_finds_no_whole_ring_is_on_tcp_until_there_is_one() {
    for h in [0, 1] {
        for side in [C, A] {
            crate::config::with(few(), || {
                let mut models = [Model::ROCE; 2];
                // Two connections' whole rings, some small ones, and what pairs receive.
                models[h].registered_max = 4 * WHOLE + (60 << 10);
                let mut rig = Rig::of(Order::Prompt, &models);
                let [first, _, i, quiet] = [(); 4].map(|()| connected(&mut rig, 0, 1));
                assert_eq!(rings(&rig, first), [WHOLE; 2]);
                assert_eq!([rings(&rig, i), rings(&rig, quiet)], [[SMALL; 2]; 2]);
                sent_unread(&mut rig, i, &[side], UNREAD);
                for _ in 0..4 {
                    rig.exchange(i, UNREAD);
                    testing::pass_ns(5_000_000_000);
                    assert!(!rig.is_fast(i) && rig.is_fast(quiet));
                }
                let why = rig.reason(i, h);
                assert!(matches!(why, Reason::MemlockLimit | Reason::NoMemory), "{why:?}");
                rig.close(first, C);
                rig.close(first, A);
                rig.promoted(i);
                assert_eq!(rings(&rig, i), [WHOLE; 2]);
                rig.exchange(i, 100_000);
                rig.finish();
            });
        }
    }
}

/// Who waits for whole rings closes.
#[test]
fn a_connection_that_waits_for_whole_rings_may_be_closed() {
    for side in [C, A] {
        crate::config::with(none(), || {
            let mut models = [Model::ROCE; 2];
            models[side].registered_max = WHOLE + (16 << 10);
            let mut rig = Rig::of(Order::Prompt, &models);
            let i = connected(&mut rig, 0, 1);
            sent_unread(&mut rig, i, &[C, A], UNREAD);
            rig.exchange(i, UNREAD);
            rig.close(i, side);
            rig.close(i, side ^ 1);
            let next = connected(&mut rig, 0, 1);
            rig.exchange(next, 1000);
            assert_eq!(rings(&rig, next), [SMALL; 2]);
            rig.finish();
        });
    }
}

/// A connector that always says that it has less makes nobody work for nothing.
#[test]
fn the_wish_is_refused_until_there_is_memory_and_asked_for_ever_more_rarely() {
    crate::config::with(none(), || {
        let mut models = [Model::ROCE; 2];
        models[C].registered_max = WHOLE + (16 << 10);
        let mut rig = Rig::of(Order::Prompt, &models);
        let i = connected(&mut rig, 0, 1);
        sent_unread(&mut rig, i, &[C], UNREAD);
        rig.exchange(i, UNREAD);
        let refused = || stats::counted_here(Counter::OffersRefused);
        let before = refused();
        for _ in 0..600 {
            rig.chat(i);
            rig.settle();
            testing::pass_ns(1_000_000_000);
        }
        // Refused and told of it: each counts.
        let asked = (refused() - before) / 2;
        assert!((5..20).contains(&asked), "{asked} in ten minutes");
        rig.finish();
    });
}

/// Who has written all that it has shuts down in the middle of it: all comes, and the end.
#[test]
fn growing_survives_a_shutdown() {
    for side in [C, A] {
        crate::config::with(none(), || {
            let mut rig = Rig::new(Order::Prompt, Model::SIW, 2);
            let i = connected(&mut rig, 0, 1);
            rig.send(i, side, 20_000);
            rig.shut(i, side);
            rig.until("all comes, and the end", |r| {
                while r.receive(i, side ^ 1, 30_000) > 0 {}
                r.conns[i][side ^ 1].over == Some(0)
            });
            assert_eq!(rig.conns[i][side ^ 1].received, rig.conns[i][side].sent);
            assert_ne!(rig.reason(i, side), Reason::Negotiating);
            rig.finish();
        });
    }
}
