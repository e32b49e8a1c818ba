//! What a request and its reply cost, counted.

use super::*;
use crate::counters::Snapshot;
use netacc_verbs::fabric::Call;

const BYTES: usize = 512;
const ROUNDS: u64 = 2000;

/// Rings as the library makes them, queues as it asks for them.
fn usual(immediate: bool, ring: usize) -> (Settings, usize) {
    let queues = Settings { sends: 256, receives: 64, peer_receives: 64, turn_bytes: 16384, ..settings(immediate) };
    (queues, ring)
}

fn ping_pong(model: Model, immediate: bool, ring: usize) -> [Snapshot; 2] {
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
    let rounds = if cfg!(miri) { 20 } else { ROUNDS };
    for round in 0..rounds + 10 {
        if round == 10 {
            before = rig.ends.each_ref().map(|e| e.link().counters.read());
            calls = rig
                .ends
                .each_ref()
                .map(|e| (e.host.net().calls(&e.host, Call::Arm), e.host.net().calls(&e.host, Call::Clear)));
        }
        // Each end: produce and kick; poll until there is something; consume.
        for (from, to) in [(0, 1), (1, 0)] {
            assert_eq!(rig.ends[from].produce(0, BYTES), BYTES);
            while !rig.ends[to].conn(0).consumer.peek_published() {
                assert_ne!(rig.ends[to].poll(), 0, "nothing comes");
            }
            assert_eq!(rig.ends[to].consume(0, BYTES), BYTES);
        }
    }
    let after = rig.ends.each_ref().map(|e| e.link().counters.read());
    // No system call: nothing but `post`, `post_receives` and `poll` of the fabric's.
    for (end, (arm, clear)) in rig.ends.iter().zip(calls) {
        let net = end.host.net();
        assert_eq!((net.calls(&end.host, Call::Arm), net.calls(&end.host, Call::Clear)), (arm, clear));
        // The device counts the same requests as the link, and sees nothing else of it.
        assert_eq!(net.calls(&end.host, Call::Post), end.link().counters.read().works);
        assert_eq!(net.calls(&end.host, Call::Fail), 0);
    }
    rig.close();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_request_and_its_reply_take_two_requests_of_each_side_or_one_with_immediate() {
    let rounds = if cfg!(miri) { 20 } else { ROUNDS };
    for &(model, immediate) in WAYS {
        for ring in [16 << 10, 256 << 10] {
            for c in ping_pong(model, immediate, ring) {
                assert_eq!(c.data_messages, rounds, "one announcement for each");
                assert_eq!(c.bytes_sent, rounds * BYTES as u64);
                assert!(c.credit_messages * 8 <= c.data_messages, "{c:?}");
                assert_eq!(c.messages, c.data_messages + c.credit_messages, "nothing else is said");
                assert_eq!((c.queue_full, c.no_receive), (0, 0));
                let for_bytes = c.works - c.credit_messages;
                // A ring that wraps in the middle of a message has one write more, at most once a round of the ring.
                let wraps = c.bytes_sent / ring as u64 + 1;
                let each = if immediate { 1 } else { 2 };
                assert!((each * rounds..=each * rounds + wraps).contains(&for_bytes), "{c:?}");
                if !immediate {
                    assert_eq!(c.credit_messages, 0, "everything rides on the replies");
                } else if ring == 256 << 10 {
                    // A quarter of the ring; receives come back with the immediates.
                    assert!(c.credit_messages * 128 <= c.data_messages, "{c:?}");
                }
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
        let before = rig.ends[1].link().counters.read();
        let mut bytes = 0;
        while bytes < few(64, 2) * RING {
            bytes += rig.ends[0].produce(0, RING);
            rig.settle();
            while rig.ends[1].consume(0, 512) > 0 {}
            rig.settle();
        }
        rig.check();
        let c = rig.ends[1].link().counters.read() - before;
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
            for slot in 0..8 {
                rig.ends[0].produce(slot, few(3000, 300));
                rig.ends[1].produce(slot, few(3000, 300));
            }
            rig.drain();
            let before = rig.ends.each_ref().map(|e| e.link().counters.read());
            for _ in 0..few(100, 2) {
                rig.ends.iter_mut().for_each(|e| {
                    e.poll();
                    for slot in 0..8 {
                        e.link().kick(slot);
                    }
                });
            }
            assert_eq!(rig.ends.each_ref().map(|e| e.link().counters.read()), before);
            rig.close();
        }
    }
}
