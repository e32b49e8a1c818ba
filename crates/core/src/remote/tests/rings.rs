//! Small rings, and whole ones for those that fill them.

use super::*;
use netacc_control::config::Config;
use netacc_verbs::memory::Model;

const SMALL: u64 = 8 << 10;
const WHOLE: u64 = 32 << 10;
/// Connections that have whole rings from the start.
const FIRST: usize = 7;

/// Rings of 32 KiB, and regions of one connection's: so eight of these are there at first.
fn few() -> Config {
    Config {
        buffer_bytes: 4096,
        arena_first_bytes: 65_536,
        arena_growth_max_bytes: 65_536,
        connections_per_channel: 4,
        ..Config::default()
    }
}

fn ring(rig: &Rig, i: usize, side: usize) -> u64 {
    rig.conns[i][side].socket.tx_ring_bytes()
}

fn registered(rig: &mut Rig, h: usize) -> usize {
    rig.remote(h)
        .links
        .iter()
        .flatten()
        .filter_map(|l| l.arenas.as_ref())
        .map(|a| a.registered())
        .sum()
}

/// Connections until one has small rings, which is the last one.
fn until_small(rig: &mut Rig) -> usize {
    loop {
        let i = rig.connect(0, 1);
        rig.promoted(i);
        if ring(rig, i, C) == SMALL {
            return i;
        }
    }
}

#[test]
fn the_first_connections_have_whole_rings_and_the_others_small_ones() {
    crate::config::with(few(), || {
        for model in MODELS {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = until_small(&mut rig);
            assert_eq!(i, FIRST + 1);
            for n in 0..8 {
                let more = rig.connect(0, 1);
                rig.promoted(more);
                rig.exchange(more, 5000);
                assert_eq!([C, A].map(|side| ring(&rig, more, side)), [SMALL; 2], "{n}");
            }
            let all = 8 * 2 * WHOLE + 9 * 2 * SMALL;
            for h in [0, 1] {
                let has = registered(&mut rig, h) as u64;
                assert!((all..all + 2 * WHOLE).contains(&has), "{has}, and {all} are in use");
            }
            // Those that are given back serve the next.
            rig.close(0, C);
            rig.close(0, A);
            rig.settle();
            let next = rig.connect(0, 1);
            rig.promoted(next);
            assert_eq!(ring(&rig, next, A), WHOLE);
            rig.finish();
        }
    });
}

/// Whichever end sends, and whichever wants it.
#[test]
fn a_stream_that_its_ring_bounds_is_given_a_whole_one() {
    crate::config::with(few(), || {
        for model in MODELS {
            for side in [C, A] {
                let mut rig = Rig::new(Order::Shuffled(side as u64), model, 2);
                let i = until_small(&mut rig);
                let quiet = rig.connect(0, 1);
                rig.promoted(quiet);
                let goal = rig.conns[i][side].sent + 60 * SMALL;
                rig.until("much is sent", |r| {
                    let left = goal - r.conns[i][side].sent;
                    r.send(i, side, left.min(20_000) as usize);
                    while r.receive(i, side ^ 1, 30_000) > 0 {}
                    r.conns[i][side].sent == goal && r.has_come(i)
                });
                rig.promoted(i);
                assert_eq!([C, A].map(|side| ring(&rig, i, side)), [WHOLE; 2]);
                rig.exchange(i, 100_000);
                // And no other.
                rig.exchange(quiet, 1000);
                assert_eq!(ring(&rig, quiet, C), SMALL);
                rig.finish();
            }
        }
    });
}

/// It is not the ring that bounds it.
#[test]
fn a_reader_that_stands_still_costs_no_whole_ring() {
    crate::config::with(few(), || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = until_small(&mut rig);
        for _ in 0..100 {
            rig.send(i, C, 5000);
            rig.settle();
        }
        assert!(rig.is_fast(i) && !rig.conns[i][C].socket.fills.load(Relaxed));
        rig.drain(i);
        assert_eq!(ring(&rig, i, C), SMALL);
        rig.finish();
    });
}

/// Where there is no memory for whole rings there may be some for small ones; who has asked for a
/// whole one in vain does not ask again.
#[test]
fn small_rings_serve_where_there_is_no_memory_for_whole_ones() {
    for h in [0, 1] {
        crate::config::with(few(), || {
            let mut models = [Model::ROCE; 2];
            // Two connections' whole rings, some small ones, and what pairs receive.
            models[h].registered_max = 4 * WHOLE + (60 << 10);
            let mut rig = Rig::of(Order::Prompt, &models);
            let i = until_small(&mut rig);
            assert_eq!(i, 2);
            for side in [C, A] {
                for _ in 0..3 {
                    rig.exchange(i, 60 * SMALL);
                }
                rig.promoted(i);
                assert_eq!(ring(&rig, i, side), SMALL);
            }
            rig.finish();
        });
    }
}
