//! Peers that stop, and go on; that vanish; that are killed, and have successors.

use super::*;
use netacc_proto::rendezvous::Message;

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
                let caller = link::tcp_socket(to.ip());
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

fn option(fd: c_int, level: c_int, name: c_int) -> c_int {
    let mut value: c_int = 0;
    assert!(sys::getsockopt(fd, level, name, &mut value) >= 0);
    value
}

/// A peer that is stopped has no room any more for what is said on its link: the link stays.
#[test]
fn a_link_without_room_is_waited_for() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.hosts[1].stopped = true;
        let remote = rig.remote(0);
        let at = remote.links.iter().position(|l| l.is_some()).unwrap();
        let fd = remote.link(at).unwrap().fd;
        // (It ends links without room as well.)
        assert_eq!(option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 0);
        while remote.link(at).is_some_and(|l| l.output.is_empty()) {
            (0..200).for_each(|_| remote.send(at, Message::Withdraw { token: u64::MAX }));
            remote.flush(at);
        }
        rig.stand_still(1_000_000_000_000);
        assert!(rig.remote(0).link(at).is_some_and(|l| l.is_up()), "{}", rig.describe());
        rig.hosts[1].stopped = false;
        rig.exchange(i, 10_000);
        assert!(rig.is_fast(i), "{}", rig.describe());
        rig.finish();
    }
}

/// A link that breaks with the word that it is resumed is not up.
#[test]
fn a_link_that_breaks_again_while_it_is_resumed_is_broken() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    rig.hosts[0].stopped = true;
    rig.break_links(1);
    rig.settle();
    let remote = rig.remote(1);
    let at = remote.links.iter().position(|l| l.is_some()).unwrap();
    assert_eq!(remote.link(at).map(|l| l.phase), Some(link::Phase::Broken));
    remote.resume(at);
    assert_eq!(remote.link(at).map(|l| l.phase), Some(link::Phase::Broken));
    rig.hosts[0].stopped = false;
    rig.exchange(i, 10_000);
    rig.finish();
}

/// What a carrier's kernel has received.
fn packets_in(fd: c_int) -> u32 {
    let mut info = [0u32; 40];
    assert!(sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) >= 0);
    // tcpi_segs_in
    info[35]
}

impl Rig {
    /// So many seconds, and the kernel's timers as well.
    fn seconds(&mut self, n: u32) {
        for _ in 0..n {
            testing::pass_ns(1_000_000_000);
            self.settle();
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.settle();
        }
    }
}

/// The kernel asks whether the peer's host is there, and the application sees nothing of that.
#[test]
fn a_carrier_is_probed_while_nothing_is_heard_of_the_peer() {
    for side in [C, A] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        patience_with(&rig, i, side, Some(60));
        let ends = [side, side ^ 1].map(|side| rig.conns[i][side].fd);
        // (The kernel's shortest time.)
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let before = packets_in(ends[1]);
        rig.hosts[1 - side].stopped = true;
        rig.send(i, side, 5000);
        rig.wires.break_pairs(&rig.hosts[1 - side].fabric);
        rig.links_end(1, side);
        rig.seconds(12);
        assert!(packets_in(ends[1]) > before, "{}", rig.describe());
        rig.seconds(3);
        assert_eq!(option(ends[0], libc::SOL_SOCKET, libc::SO_KEEPALIVE), 0);
        assert_eq!(option(ends[0], libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 60_000);
        assert!(option(ends[0], libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) > 1);
        assert!(option(ends[0], libc::IPPROTO_TCP, libc::TCP_KEEPCNT) < 127);
        assert_eq!(rig.is_over(i, side), None, "{}", rig.describe());
        rig.kill(1 - side);
        rig.finish();
    }
}

/// What a probe changes, as the kernel has it.
fn probed(fd: c_int) -> [c_int; 4] {
    [
        option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
        option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    ]
}

const PROBED: [c_int; 4] = [1, 0, 1, 127];

/// A pair on which nothing arrives, while a probe is under way; and the options of before.
fn while_probed(side: usize) -> (Rig, usize, [c_int; 4]) {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    patience_with(&rig, i, side, Some(60));
    let fd = rig.conns[i][side].fd;
    let before = probed(fd);
    rig.hosts[1 - side].stopped = true;
    rig.links_end(1, side);
    rig.send(i, side, 5000);
    let begins = (0..20).any(|_| {
        rig.seconds(1);
        probed(fd) == PROBED
    });
    assert!(begins, "{}", rig.describe());
    (rig, i, before)
}

#[test]
fn a_probe_ends_with_what_it_waits_for() {
    for side in [C, A] {
        for is_lost in [false, true] {
            let (mut rig, i, before) = while_probed(side);
            let fd = rig.conns[i][side].fd;
            if is_lost {
                let remote = rig.remote(side);
                let at = remote.links.iter().position(|l| l.is_some()).unwrap();
                remote.lose_pair(at, 0, Reason::RdmaLost, false);
                assert_eq!(probed(fd), before);
            } else {
                rig.hosts[1 - side].stopped = false;
                rig.drain(i);
                // (It answers when its link is resumed, in the kernel's own time.)
                rig.until("the probe is over", |_| probed(fd) == before);
            }
            rig.settle();
            assert_eq!(probed(fd), before, "{is_lost}: {}", rig.describe());
            rig.kill(0);
            rig.kill(1);
        }
    }
}

/// Its own options are what the application hears, and what it sets stays.
#[test]
fn options_that_are_set_during_a_probe_stay() {
    let (mut rig, i, before) = while_probed(C);
    let fd = rig.conns[i][C].fd;
    let mut len = 4;
    let (mut told, set) = (0, 1);
    let (at, new) = ((&raw mut told).cast::<c_void>(), (&raw const set).cast::<c_void>());
    // SAFETY: an int.
    let r = unsafe {
        crate::options::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, at, &mut len)
    };
    assert_eq!((r, probed(fd)), (crate::api::PASS, before));
    // SAFETY: an int.
    let r =
        unsafe { crate::options::setsockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, new, len) };
    assert_eq!(r, 0);
    let [_, rest @ ..] = before;
    rig.seconds(2);
    assert_eq!(probed(fd).split_first(), Some((&1, &rest[..])), "{}", rig.describe());
    rig.kill(0);
    rig.kill(1);
}

/// A host that has rebooted knows nothing of its connections, and says so to who asks; also where a
/// device never says that its peer is gone.
#[test]
fn a_host_that_has_rebooted_resets_its_connections() {
    const TCP_REPAIR: c_int = 19;
    for (side, says) in [(C, true), (A, true), (C, false), (A, false)] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let peer = 1 - side;
        // A socket that is being repaired says nothing when it is closed.
        let links: Vec<c_int> = rig.remote(peer).links.iter().flatten().map(|l| l.fd).collect();
        for fd in links.into_iter().chain([rig.conns[i][side ^ 1].fd]) {
            if sys::setsockopt(fd, libc::IPPROTO_TCP, TCP_REPAIR, &1i32) < 0 {
                std::eprintln!("this needs CAP_NET_ADMIN");
                return;
            }
        }
        rig.wires.power_off(&rig.hosts[peer].fabric);
        rig.send(i, side, 5000);
        rig.kill(peer);
        if says {
            rig.wires.time_out();
        }
        rig.break_links(side);
        rig.settle();
        assert_eq!(rig.is_over(i, side), None, "{}", rig.describe());
        rig.seconds(20);
        let end = rig.is_over(i, side);
        assert_eq!(end, Some(-(libc::ECONNRESET as isize)), "{says}: {}", rig.describe());
        rig.finish();
    }
}

/// A device that never says that its peer is gone, whose host answers on TCP: its process may go
/// on.
#[test]
fn a_pair_of_a_stopped_peer_stays_without_its_link() {
    for side in [C, A] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        rig.hosts[1 - side].stopped = true;
        rig.links_end(1, side);
        rig.send(i, side, 5000);
        rig.seconds(100);
        assert!(rig.is_fast(i), "{}", rig.describe());
        assert_eq!(rig.is_over(i, side), None, "{}", rig.describe());
        rig.hosts[1 - side].stopped = false;
        rig.drain(i);
        // (Without a link nothing ends in order.)
        rig.kill(0);
        rig.kill(1);
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
