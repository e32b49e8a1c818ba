//! What a request and its reply cost, counted.

use super::*;
use crate::counters::Snapshot;
use netacc_verbs::fabric::Call;

/// More than two rings of messages of 500 bytes.
const ROUNDS: u64 = 600;

/// Rings as the library makes them, queues as it asks for them.
fn usual(immediate: bool, ring: usize) -> (Settings, usize) {
    let queues = Settings {
        sends: 256,
        receives: 64,
        peer_receives: 64,
        turn_bytes: 16384,
        ..settings(immediate)
    };
    (queues, ring)
}

/// Each round one end sends so many messages of so many bytes, each by itself, and when they are
/// read the other one. What each end has done in these rounds.
fn rounds(
    model: Model,
    immediate: bool,
    ring: usize,
    sends: [(usize, usize); 2],
    count: u64,
) -> [Snapshot; 2] {
    let (settings, ring) = usual(immediate, ring);
    let net = Net::new(Order::Prompt);
    let mut ends = [0, 1].map(|side| End::new(&net, side, model));
    for end in &mut ends {
        end.pool = Pool::new(ring, 0, 1 << 20);
    }
    let mut rig = Rig { net, ends };
    rig.connect([settings; 2]);
    rig.open(1);
    let mut before = [Snapshot::default(); 2];
    let mut calls = [(0, 0); 2];
    for round in 0..count + 10 {
        if round == 10 {
            before = rig.ends.each_ref().map(|e| e.lanes().counters.read());
            calls = rig.ends.each_ref().map(|e| {
                (e.host.net().calls(&e.host, Call::Arm), e.host.net().calls(&e.host, Call::Clear))
            });
        }
        // Each end: produce and kick; poll until there is something; consume.
        for (from, to) in [(0, 1), (1, 0)] {
            let (messages, bytes) = sends[from];
            for _ in 0..messages {
                assert_eq!(rig.ends[from].produce(0, bytes), bytes);
            }
            let mut left = messages * bytes;
            while left > 0 {
                while !rig.ends[to].conn(0).consumer.peek_published() {
                    assert_ne!(rig.ends[to].poll(), 0, "nothing comes");
                }
                left -= rig.ends[to].consume(0, left);
            }
        }
    }
    let after = rig.ends.each_ref().map(|e| e.lanes().counters.read());
    // No system call: nothing but `post`, `post_receives` and `poll` of the fabric's.
    for (end, (arm, clear)) in rig.ends.iter().zip(calls) {
        let net = end.host.net();
        assert_eq!(
            (net.calls(&end.host, Call::Arm), net.calls(&end.host, Call::Clear)),
            (arm, clear)
        );
        // The device counts the same requests as the pair, and sees nothing else of it.
        assert_eq!(net.calls(&end.host, Call::Post), end.lanes().counters.read().works);
        assert_eq!(net.calls(&end.host, Call::Fail), 0);
    }
    rig.close();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_request_and_its_reply_take_two_requests_of_each_side_or_one_with_immediate() {
    for &(model, immediate) in WAYS {
        for ring in [4 << 10, 128 << 10] {
            // Some fit into a ring without a rest, some do not.
            for bytes in [512, 500] {
                for c in rounds(model, immediate, ring, [(1, bytes); 2], ROUNDS) {
                    assert_eq!(c.works, if immediate { ROUNDS } else { 2 * ROUNDS }, "{c:?}");
                    assert_eq!(
                        (c.data_messages, c.messages),
                        (ROUNDS, ROUNDS),
                        "one announcement for each, nothing else"
                    );
                    assert_eq!(c.bytes_sent, ROUNDS * bytes as u64);
                    assert_eq!((c.credit_messages, c.queue_full, c.no_receive), (0, 0, 0));
                }
            }
        }
    }
}

/// Other traffic in which each end waits for the other one: long messages, many for one, long ones
/// for short ones.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn what_is_answered_needs_no_message_for_room_or_receives() {
    let ring = 128 << 10;
    for &(model, immediate) in WAYS {
        for sends in [
            [(1, 4096), (1, 4096)],
            [(1, 4097), (1, 4097)],
            [(1, 16384), (1, 16384)],
            [(1, 16384), (1, 100)],
            [(1, 100), (1, 16384)],
            [(2, 300), (1, 512)],
            [(15, 512), (1, 512)],
            [(1, 512), (15, 512)],
        ] {
            for (side, c) in
                rounds(model, immediate, ring, sends, ROUNDS / 4).into_iter().enumerate()
            {
                assert_eq!(c.data_messages, sends[side].0 as u64 * ROUNDS / 4, "{sends:?}: {c:?}");
                assert_eq!(
                    (c.credit_messages, c.queue_full, c.no_receive),
                    (0, 0, 0),
                    "{sends:?}: {c:?}"
                );
            }
        }
    }
}

/// A stream in one direction: what comes back is a credit for each quarter of the ring.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_stream_costs_four_credits_a_ring() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, usual(immediate, 0).0);
        rig.open(1);
        let before = rig.ends[1].lanes().counters.read();
        let mut bytes = 0;
        while bytes < few(64, 2) * RING {
            bytes += rig.ends[0].produce(0, RING);
            rig.settle();
            while rig.ends[1].consume(0, 512) > 0 {}
            rig.settle();
        }
        rig.check();
        let c = rig.ends[1].lanes().counters.read() - before;
        assert_eq!(c.works, c.messages);
        assert_eq!(c.messages, c.credit_messages);
        assert!(c.credit_messages <= (bytes / (RING / 4)) as u64 + 1, "{c:?}");
        rig.close();
    }
}

/// Idle means that nothing goes back and forth: no credit answers a credit.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn it_comes_to_rest() {
    for &(model, immediate) in WAYS {
        for receives in [4, 5, 8, 16].into_iter().take(few(4, 1)) {
            let settings = Settings { receives, peer_receives: receives, ..settings(immediate) };
            let mut rig = Rig::new(Order::Prompt, model, settings);
            rig.open(8);
            for lane in 0..8 {
                rig.ends[0].produce(lane, few(3000, 300));
                rig.ends[1].produce(lane, few(3000, 300));
            }
            rig.drain();
            let before = rig.ends.each_ref().map(|e| e.lanes().counters.read());
            for _ in 0..few(100, 2) {
                rig.ends.iter_mut().for_each(|e| {
                    e.poll();
                    for lane in 0..8 {
                        e.lanes().kick(lane);
                    }
                });
            }
            assert_eq!(rig.ends.each_ref().map(|e| e.lanes().counters.read()), before);
            rig.close();
        }
    }
}
