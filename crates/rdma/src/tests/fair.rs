//! No connection waits for another one's reader, nor longer than its turn for another one's bytes.

use super::*;

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_reader_that_stops_does_not_stop_its_neighbours() {
    for &(model, immediate) in WAYS {
        for receives in [4, 16].into_iter().take(few(2, 1)) {
            let settings = Settings { receives, peer_receives: receives, ..settings(immediate) };
            let mut rig = Rig::new(Order::Prompt, model, settings);
            rig.open(8);
            // Lane 3 is written until its ring is full, and nobody reads.
            let mut stuck = 0;
            for _ in 0..few(100, 6) {
                stuck += rig.ends[0].produce(3, 1000);
                rig.settle();
            }
            assert_eq!(stuck, RING);
            let works = rig.ends[0].lanes().counters.read().works;
            for _ in 0..few(50, 1) {
                rig.ends[0].lanes().kick(3);
            }
            assert_eq!(
                rig.ends[0].lanes().counters.read().works,
                works,
                "a full ring posts nothing"
            );
            // The others go on as ever.
            for round in 0..few(50, 1) {
                for lane in [0, 1, 2, 4, 5, 6, 7] {
                    assert_eq!(rig.ends[0].produce(lane, 512), 512, "round {round}");
                    rig.ends[0].lanes().kick(3);
                    rig.settle();
                    assert_eq!(rig.ends[1].consume(lane, 512), 512, "round {round}");
                }
            }
            // This one goes on, too, when it is read.
            rig.drain();
            rig.check();
            rig.close();
        }
    }
}

/// Everybody has a full ring to send, and the peer takes messages one by one: whoever has had its
/// turn waits for all others.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn turns_go_round() {
    for &(model, immediate) in WAYS {
        let settings =
            Settings { receives: 4, peer_receives: 4, turn_bytes: 256, ..settings(immediate) };
        let mut rig = Rig::new(Order::Prompt, model, settings);
        rig.open(8);
        let from = rig.ends[1]
            .conns
            .iter()
            .map(|c| c.as_ref().unwrap().inb().tail.load(Relaxed))
            .sum::<u64>();
        assert_eq!(from, 0);
        for lane in 0..8 {
            rig.ends[0].produce(lane, RING);
        }
        for _ in 0..few(1000, 20) {
            rig.ends[1].poll();
            rig.ends[0].poll();
            let tails: Vec<u64> = rig.ends[1]
                .conns
                .iter()
                .map(|c| c.as_ref().unwrap().inb().tail.load(Relaxed))
                .collect();
            let (least, most) = (tails.iter().min().unwrap(), tails.iter().max().unwrap());
            // The first one was alone until the peer's receives were used up; then it is one turn
            // each.
            assert!(most - least <= 4 * 256, "{tails:?}");
        }
        rig.settle();
        assert!(
            rig.ends[1]
                .conns
                .iter()
                .all(|c| c.as_ref().unwrap().inb().tail.load(Relaxed) == RING as u64)
        );
        rig.drain();
        rig.check();
        rig.close();
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_producer_without_room_is_told() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(2);
        assert_eq!(rig.ends[0].produce(1, RING + 1), RING);
        assert!(!rig.ends[0].conn(1).producer.want_space(1).unwrap());
        rig.settle();
        rig.ends[0].news.clear();
        // Read in pieces that fit no quarter: at the latest when all is read the producer is told.
        while rig.ends[1].consume(1, 333) > 0 {
            rig.settle();
        }
        let room = rig.ends[0].news.iter().filter(|n| **n == News::Room { lane: 1 }).count();
        assert_eq!(room, 1, "{:?}", rig.ends[0].news);
        assert!(rig.ends[0].conn(1).producer.free().unwrap() >= RING / 2);
        rig.close();
    }
}
