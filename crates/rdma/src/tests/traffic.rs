//! Bytes arrive once, in order, whatever is called when.

use super::*;

/// Random calls at both ends, then everything drained and checked.
fn run(seed: u64, model: Model, settings: Settings, order: Order, steps: usize) -> Rig {
    let mut random = Random::new(seed);
    let mut rig = Rig::new(order, model, settings);
    rig.open(settings.lanes);
    for _ in 0..steps {
        let end = &mut rig.ends[random.below(2)];
        let lane = random.below(usize::from(settings.lanes)) as u16;
        match random.below(8) {
            0 | 1 => {
                end.produce(lane, 1 + random.below(700));
            }
            // Published, and told later, or with another lane's.
            2 => {
                end.conn(lane).produce(1 + random.below(3000));
            }
            3 => {
                end.lanes().kick(lane);
            }
            4 | 5 => {
                end.consume(lane, 1 + random.below(2000));
            }
            6 => {
                end.poll();
            }
            _ => {
                // A producer that is about to sleep.
                if !end.conn(lane).producer.want_space(1).unwrap() {
                    end.lanes().kick(lane);
                }
            }
        }
    }
    for end in &rig.ends {
        for lane in 0..settings.lanes {
            end.lanes().kick(lane);
        }
    }
    rig.drain();
    rig.check();
    rig
}

#[test]
fn every_byte_arrives_once_and_in_order_in_any_order_of_steps() {
    let (seeds, steps) = if cfg!(miri) { (1, 60) } else { (30, 800) };
    for seed in 0..seeds {
        for &(model, immediate) in WAYS {
            run(seed, model, settings(immediate), Order::Shuffled(seed + 1), steps).close();
        }
    }
}

#[test]
fn what_does_not_fit_inline_goes_from_memory() {
    let (seeds, steps) = if cfg!(miri) { (1, 40) } else { (4, 400) };
    for seed in 0..seeds {
        for inline_bytes in [0, 16, 32, 48, 63, 64, 220] {
            for &(model, immediate) in WAYS {
                let model = Model { inline_max: inline_bytes, ..model };
                // (One that is no power of two: the places are more.)
                let settings = Settings { sends: 9, inline_bytes, ..settings(immediate) };
                run(seed, model, settings, Order::Shuffled(seed + 1), steps).close();
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn tiny_queues_slow_it_down_and_do_not_stop_it() {
    let (seeds, steps) = if cfg!(miri) { (1, 40) } else { (6, 400) };
    for seed in 0..seeds {
        for &(model, immediate) in WAYS {
            for receives in 4..few(9, 5) as u32 {
                let settings =
                    Settings { sends: 8, receives, peer_receives: receives, ..settings(immediate) };
                let rig = run(
                    seed,
                    model,
                    settings,
                    Order::Shuffled(seed * 100 + u64::from(receives)),
                    steps,
                );
                rig.close();
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn ends_may_differ_in_their_queues() {
    for &(model, immediate) in WAYS {
        let a = Settings { sends: 8, receives: 4, peer_receives: 33, ..settings(immediate) };
        let b = Settings { sends: 64, receives: 33, peer_receives: 4, ..settings(immediate) };
        let mut rig = Rig::of(Order::Prompt, model, [a, b]);
        rig.open(3);
        for round in 0..few(200, 2) {
            for side in [0, 1] {
                for lane in 0..3 {
                    rig.ends[side].produce(lane, 1 + (round * 37) % 900);
                }
            }
            rig.drain();
        }
        rig.check();
        rig.close();
    }
}

#[test]
fn a_ring_that_wraps_in_the_middle_of_a_message() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(1);
        // Never empty, so that the ring does not begin anew.
        rig.ends[0].produce(0, 100);
        for _ in 0..few(50, 6) {
            assert_eq!(rig.ends[0].produce(0, 999), 999);
            rig.settle();
            assert_eq!(rig.ends[1].consume(0, 999), 999);
            rig.settle();
        }
        assert_eq!(rig.ends[1].conn(0).inb().base.load(Relaxed), 0);
        rig.drain();
        rig.check();
        rig.close();
    }
}

#[test]
fn a_ring_that_is_empty_begins_anew_at_both_ends() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(1);
        for _ in 0..8 {
            rig.ends[0].produce(0, 1024);
            rig.drain();
        }
        let (mine, theirs) = {
            let [a, b] = &mut rig.ends;
            (a.conn(0).out().base.load(Relaxed), b.conn(0).inb().base.load(Relaxed))
        };
        assert!(mine != 0, "the producer never found it empty");
        assert_eq!(mine, theirs);
        rig.close();
    }
}

/// What another pair's completions do in between is nothing to this one.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn links_on_one_queue_do_not_see_each_other() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        for &(model, immediate) in WAYS {
            let mut random = Random::new(seed);
            let mut rig = Rig::new(Order::Shuffled(seed + 7), model, settings(immediate));
            rig.open(2);
            let mut other = rig
                .ends
                .each_mut()
                .map(|e| (e.lanes.take().unwrap(), core::mem::take(&mut e.conns)));
            rig.connect([settings(immediate); 2]);
            rig.open(2);
            for _ in 0..few(300, 20) {
                let side = random.below(2);
                let end = &mut rig.ends[side];
                let lane = random.below(2) as u16;
                match random.below(4) {
                    0 => {
                        end.produce(lane, 1 + random.below(900));
                    }
                    1 => {
                        end.consume(lane, 2000);
                    }
                    2 => {
                        end.poll();
                    }
                    _ => {
                        // The other pair's turn.
                        let (lanes, conns) = &mut other[side];
                        core::mem::swap(end.lanes.as_mut().unwrap(), lanes);
                        core::mem::swap(&mut end.conns, conns);
                    }
                }
            }
            for _ in 0..2 {
                for (end, (lanes, conns)) in rig.ends.iter_mut().zip(&mut other) {
                    core::mem::swap(end.lanes.as_mut().unwrap(), lanes);
                    core::mem::swap(&mut end.conns, conns);
                }
                // Both ends have the same pair now if they were swapped equally often; drain each
                // end by itself.
                for _ in 0..few(50, 8) {
                    rig.settle();
                    for end in &mut rig.ends {
                        for lane in 0..2 {
                            end.consume(lane, RING);
                        }
                    }
                }
            }
            let total = |f: fn(&Conn) -> u64| {
                let here = rig.ends.iter().flat_map(|e| e.conns.iter().flatten());
                let there = other.iter().flat_map(|(_, conns)| conns.iter().flatten());
                here.chain(there).map(f).sum::<u64>()
            };
            assert_eq!(total(|c| c.written), total(|c| c.read));
            for (end, (lanes, conns)) in rig.ends.iter_mut().zip(other) {
                assert_eq!((end.lost(), lanes.lost()), (None, None));
                end.close_lanes();
                (end.lanes, end.conns) = (Some(lanes), conns);
            }
            rig.close();
        }
    }
}
