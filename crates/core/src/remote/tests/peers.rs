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

impl Rig {
    /// Nobody answers any more where that host takes links.
    fn takes_no_links(&mut self, h: usize) {
        let at: Vec<c_int> = self.remote(h).listeners.iter().map(|l| l.fd).collect();
        for fd in at {
            // A queue that is full takes no SYN, and says nothing.
            unwatch(self.remote(h).epoll, fd);
            assert!(sys::listen(fd, 0) >= 0);
            let to = name(fd, false);
            SILENT.with_borrow_mut(|s| s.push(to));
            let (raw, len) = crate::carrier::sockaddr(to);
            for _ in 0..3 {
                let caller = links::tcp_socket(to.ip());
                let _ = sys::connect(caller, &raw[..len]);
                self.callers.push(caller);
            }
        }
    }

    /// TCP has given the links up, and there are no others.
    fn links_end(&mut self, server: usize, side: usize) {
        self.takes_no_links(server);
        self.break_links(side);
        self.settle();
    }

    fn is_over(&mut self, i: usize, side: usize) -> Option<isize> {
        while self.receive(i, side, 30_000) > 0 {}
        self.conns[i][side].over
    }
}

/// `None`: the application has set no time.
fn patience_with(rig: &Rig, i: usize, side: usize, seconds: Option<u64>) -> u64 {
    let ms = seconds.unwrap_or(0) as c_int * 1000;
    let fd = rig.conns[i][side].fd;
    assert!(sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &ms) >= 0);
    seconds.map_or(silence::PATIENCE_NS, |s| s * 1_000_000_000)
}

#[test]
fn a_peer_that_has_vanished_is_an_error_when_tcps_patience_ends() {
    for model in MODELS {
        for (side, seconds) in [(C, None), (A, None), (C, Some(20)), (A, Some(20))] {
            let mut rig = Rig::new(Order::Shuffled(side as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.play(20, |_, _| {});
            let patience = patience_with(&rig, i, side, seconds);
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
            // The pair is lost, and its connection waits for its peer's words.
            rig.links_end(1, side);
            rig.stand_still(2_000_000_000);
            rig.stand_still(patience - 10_000_000_000);
            assert_eq!(rig.is_over(i, side), None, "{}", rig.describe());
            rig.stand_still(20_000_000_000);
            let end = rig.is_over(i, side);
            assert_eq!(end, Some(-(libc::ETIMEDOUT as isize)), "{}", rig.describe());
            // Once, and then as any that is over.
            rig.conns[i][side].over = None;
            rig.send(i, side, 10);
            assert_eq!(rig.conns[i][side].over, Some(-(libc::EPIPE as isize)));
            rig.conns[i][side].over = None;
            assert_eq!(rig.is_over(i, side), Some(0));
            rig.kill(peer);
            rig.finish();
        }
    }
}

/// The carriers are as good as ever, but neither end hears the other about them.
#[test]
fn without_pairs_and_links_nothing_stands_still_for_ever() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Shuffled(side as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            let patience = patience_with(&rig, i, side, Some(60));
            rig.takes_no_links(1);
            rig.break_links(0);
            rig.break_links(1);
            rig.wires.break_pairs(&rig.hosts[1].fabric);
            rig.settle();
            rig.send(i, side, 5000);
            rig.stand_still(patience - 10_000_000_000);
            assert_eq!(rig.is_over(i, side), None, "{}", rig.describe());
            rig.stand_still(20_000_000_000);
            let end = rig.is_over(i, side);
            assert_eq!(end, Some(-(libc::ETIMEDOUT as isize)), "{}", rig.describe());
            rig.until("the other end is told", |r| r.is_over(i, side ^ 1).is_some());
            rig.finish();
        }
    }
}

/// A host that answers is there, and its process may go on: TCP waits, too.
#[test]
fn a_stopped_peer_is_waited_for_without_pair_and_link() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        patience_with(&rig, i, C, Some(20));
        rig.hosts[1].stopped = true;
        // Its kernel takes no more than some tries.
        for fd in rig.remote(1).listeners.iter().map(|l| l.fd).collect::<Vec<_>>() {
            assert!(sys::listen(fd, 3) >= 0);
        }
        rig.send(i, C, 5000);
        rig.wires.break_pairs(&rig.hosts[0].fabric);
        rig.break_links(0);
        let until = sys::now_ns() + 200_000_000_000;
        while sys::now_ns() < until {
            rig.pass();
            rig.settle();
        }
        assert_eq!(rig.is_over(i, C), None, "{}", rig.describe());
        // A try that ends, as where the host reboots, is an answer until then.
        rig.break_links(0);
        rig.stand_still(9_000_000_000);
        assert_eq!(rig.is_over(i, C), None, "{}", rig.describe());
        rig.hosts[1].stopped = false;
        rig.drain(i);
        rig.promoted(i);
        rig.exchange(i, 20_000);
        rig.finish();
    }
}

/// The same, and its host vanishes then.
#[test]
fn a_stopped_peer_that_vanishes_is_an_error_when_patience_ends() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    patience_with(&rig, i, C, Some(20));
    rig.hosts[1].stopped = true;
    rig.send(i, C, 5000);
    rig.wires.break_pairs(&rig.hosts[0].fabric);
    rig.break_links(0);
    rig.settle();
    rig.stand_still(100_000_000_000);
    rig.links_end(1, 0);
    rig.stand_still(10_000_000_000);
    assert_eq!(rig.is_over(i, C), None, "{}", rig.describe());
    rig.stand_still(20_000_000_000);
    assert_eq!(rig.is_over(i, C), Some(-(libc::ETIMEDOUT as isize)), "{}", rig.describe());
    rig.kill(1);
    rig.finish();
}

/// The kernel, too, gives a link up, whether something is under way on it or not.
#[test]
fn a_silent_link_is_given_up() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    for h in [0, 1] {
        let fd = rig.remote(h).links.iter().flatten().next().unwrap().fd;
        let mut ms: c_int = 0;
        let name = libc::TCP_USER_TIMEOUT;
        assert!(sys::getsockopt(fd, libc::IPPROTO_TCP, name, &mut ms) >= 0);
        assert_eq!(ms, 45_000);
    }
    rig.finish();
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
