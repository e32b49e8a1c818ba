//! Peers that stop, and go on; that vanish; that are killed, and have successors.

use super::*;

#[test]
fn a_peer_that_stops_is_waited_for() {
    for model in MODELS {
        for seed in 0..6 {
            let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
            let (i, side) = (rig.connect(0, 1), (seed % 2) as usize);
            rig.promoted(i);
            rig.play(30, |_, _| {});
            rig.hosts[1 - side].stopped = true;
            // As long as there is room, and then not now: no error.
            let mut sent = 0;
            for _ in 0..60 {
                sent += rig.send(i, side, 5000);
                rig.settle();
            }
            assert!(sent < 60 * 5000, "endless room");
            testing::pass_ns(10_000_000_000);
            rig.settle();
            assert_eq!(
                (rig.send(i, side, 5000), rig.conns[i][side].over),
                (0, None),
                "{}",
                rig.describe()
            );
            if seed > 2 {
                // It goes on in the background.
                rig.close(i, side);
            }
            rig.hosts[1 - side].stopped = false;
            if seed > 2 {
                rig.until("all of it comes, and the end", |r| {
                    while r.receive(i, side ^ 1, 30_000) > 0 {}
                    r.conns[i][side ^ 1].over.is_some()
                });
                let [end, other] = [&rig.conns[i][side ^ 1], &rig.conns[i][side]];
                // What it had sent itself was not read: TCP resets, too.
                assert!(end.over != Some(0) || end.received == other.sent, "{}", rig.describe());
            } else {
                rig.drain(i);
                rig.promoted(i);
                rig.exchange(i, 50_000);
            }
            rig.finish();
        }
    }
}

#[test]
fn a_peer_that_has_vanished_is_an_error_when_tcp_says_so() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Shuffled(side as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.play(20, |_, _| {});
            let peer = 1 - side;
            rig.wires.power_off(&rig.hosts[peer].fabric);
            rig.hosts[peer].stopped = true;
            for _ in 0..20 {
                rig.send(i, side, 5000);
                rig.settle();
                rig.wires.time_out();
                rig.settle();
                rig.pass();
            }
            // The pair is lost, and the connection waits for its carrier.
            assert_eq!(rig.conns[i][side].over, None, "{}", rig.describe());
            rig.kill(peer);
            rig.until("it is told", |r| {
                while r.receive(i, side, 30_000) > 0 {}
                r.send(i, side, 10);
                r.conns[i][side].over.is_some()
            });
            rig.finish();
        }
    }
}

#[test]
fn a_killed_process_has_a_successor() {
    for model in MODELS {
        for h in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.play(40, |_, _| {});
            rig.kill(h);
            rig.play(20, |_, _| {});
            let side = 1 - h;
            rig.until("the survivor is told", |r| {
                while r.receive(i, side, 30_000) > 0 {}
                r.send(i, side, 100);
                r.conns[i][side].over.is_some()
            });
            rig.restart(h, model);
            let new = rig.connect(0, 1);
            rig.promoted(new);
            rig.exchange(new, 50_000);
            rig.close(i, side);
            // Also with the old one's slot given back.
            let third = rig.connect(0, 1);
            rig.promoted(third);
            rig.exchange(third, 20_000);
        }
    }
}

/// One end only receives: its own sending half stays on TCP, where the peer leaves some of what was
/// sent before unread.
#[test]
fn a_close_with_bytes_unread_ends_a_one_way_connection() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            let (reader, writer) = (side, side ^ 1);
            rig.send(i, reader, 100);
            rig.until("one direction is on the ring", |r| {
                r.send(i, writer, 500);
                while r.receive(i, reader, 5000) > 0 {}
                let s = r.conns[i][writer].socket;
                s.channel().is_some() && s.published.sends_fast()
            });
            rig.send(i, writer, 3000);
            rig.settle();
            rig.close(i, writer);
            rig.until("it is told", |r| {
                while r.receive(i, reader, 5000) > 0 {}
                r.conns[i][reader].over.is_some()
            });
            rig.finish();
        }
    }
}
