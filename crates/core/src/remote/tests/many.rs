//! Many peers, and what one of them can take of what is there for all.

use super::hostile::{Stranger, hello};
use super::*;
use crate::remote::link::Phase;
use crate::remote::shares::{PART, REMEMBERED, Source};
use netacc_control::config::Config;
use netacc_control::stats::{ChannelRecord, ChannelState, Counter};
use netacc_proto::agreement::SlotEvent;
use netacc_proto::rendezvous::{
    self as proto, Candidate, HostHello, Message, OfferLane, Peers, Proof, Role,
};

fn host(n: usize) -> IpAddr {
    loopback(2 + (n / 250) as u8, 1 + (n % 250) as u8)
}

/// Host 1 with a connection of host 0's on the ring, and where it takes links for which port.
fn server(hosts: usize) -> (Rig, SocketAddr, u16) {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, hosts);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let port = name(rig.hosts[1].listener, false).port();
    let at = name(rig.remote(1).listeners[0].fd, false);
    (rig, at, port)
}

/// A process with the library at that address, which has greeted.
fn greeted(rig: &mut Rig, n: usize, from: IpAddr, at: SocketAddr, port: u16) -> Stranger {
    let peer = Stranger::call(from, at);
    let mut process = [0; 16];
    process[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
    peer.say(Message::HostHello(HostHello { process, ..hello(Role::Connector, port) }));
    rig.settle();
    peer
}

fn up(rig: &mut Rig) -> usize {
    rig.remote(1).links.iter().flatten().filter(|l| l.phase == Phase::Up).count()
}

#[test]
fn a_server_has_links_to_more_hosts_than_there_is_room_for_at_first() {
    let (mut rig, at, port) = server(2);
    let many = 200;
    let peers: Vec<Stranger> = (0..many).map(|n| greeted(&mut rig, n, host(n), at, port)).collect();
    assert_eq!(up(&mut rig), many + 1);
    // What is told to one is not told to another.
    let mut heard: Vec<Message> = peers.into_iter().flat_map(|mut p| p.hear().unwrap()).collect();
    heard.retain(|f| !matches!(f, Message::HostHello(_)));
    assert_eq!(heard, []);
    rig.exchange(0, 10_000);
    rig.until("the strangers are gone", |r| up(r) == 1);
    assert!(rig.remote(1).shares.of(Source::of(host(1))).is_none(), "nothing is kept of them");
    rig.finish();
}

/// Processes of other hosts that `netacc_ss` shows (docs/manual/limits.md).
const SHOWN: usize = 32;

#[test]
fn of_many_processes_of_other_hosts_only_the_first_are_shown() {
    let (mut rig, at, port) = server(2);
    let all = SHOWN + 8;
    let peers: Vec<Stranger> = (0..all).map(|n| greeted(&mut rig, n, host(n), at, port)).collect();
    assert_eq!(up(&mut rig), all + 1);
    let shown = |rig: &mut Rig| {
        // (Both hosts are this process, which has one segment.)
        rig.remote(1).show();
        let is_open = |r: &&ChannelRecord| r.state.load(Relaxed) == ChannelState::Open as u32;
        let records = stats::header().unwrap().remote.iter().filter(is_open);
        let (strangers, others): (Vec<IpAddr>, Vec<IpAddr>) = records
            .map(|r| IpAddr::from(((r.peer_addr[0].load(Relaxed) >> 32) as u32).to_be_bytes()))
            .partition(|ip| (0..all).any(|n| host(n) == *ip));
        (strangers.len(), others)
    };
    let first = rig.hosts[0].address;
    assert_eq!(shown(&mut rig), (SHOWN - 1, vec![first]));
    drop(peers);
    rig.until("the strangers are gone", |r| up(r) == 1);
    assert_eq!(shown(&mut rig), (0, vec![first]));
    rig.finish();
}

#[test]
fn who_has_most_gives_way_to_who_has_least() {
    let (mut rig, at, port) = server(3);
    let most = 160;
    rig.remote(1).shares.links_max = most;
    // One host takes all that it can get, and then as many more.
    let mut greedy: Vec<Stranger> = Vec::new();
    for n in 0..most / PART + 20 {
        greedy.push(greeted(&mut rig, n, host(0), at, port));
    }
    let has = |r: &mut Rig| r.remote(1).shares.of(Source::of(host(0))).map_or(0, |s| s.links);
    assert_eq!(has(&mut rig) as usize, most / PART, "a part of all");
    rig.exchange(0, 10_000);
    // Callers that say nothing do not keep others out either, nor those that have greeted.
    let callers: Vec<Stranger> = (0..most / PART + 20)
        .map(|_| {
            let caller = Stranger::call(host(1), at);
            rig.settle();
            caller
        })
        .collect();
    assert!(rig.remote(1).shares.callers as usize <= most / PART);
    assert_eq!(has(&mut rig) as usize, most / PART);
    let i = rig.connect(2, 1);
    rig.promoted(i);
    rig.exchange(0, 10_000);
    assert!(rig.is_fast(0) && rig.is_fast(i));
    drop((greedy, callers));
    rig.finish();
}

/// Those with broken links come back, whatever is left for each; nobody else does with them.
#[test]
fn who_has_all_its_part_resumes_its_links() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 5);
        let hosts = [0, 2, 3, 4];
        let conns = hosts.map(|h| rig.connect(h, 1));
        conns.iter().for_each(|i| rig.promoted(*i));
        // Four are in use, and a third of the others is one.
        rig.remote(1).shares.links_max = 8;
        let from = rig.hosts[0].address;
        assert!(rig.remote(1).has_too_many(Source::of(from), 1));
        hosts.iter().for_each(|h| rig.hosts[*h].stopped = true);
        rig.break_links(1);
        rig.wires.break_pairs(&rig.hosts[1].fabric);
        rig.settle();
        // Who may have come back, and has not.
        let port = name(rig.hosts[1].listener, false).port();
        let at = name(rig.remote(1).listeners[0].fd, false);
        let transport = devices::transport_code(model.transport);
        let mut other = Stranger::call(from, at);
        other.say(Message::HostHello(HostHello { transport, ..hello(Role::Connector, port) }));
        rig.settle();
        assert!(other.hear().is_err_and(|said| said.len() == 1), "{}", rig.describe());
        let resumes = hello(Role::Connector, port);
        let mut other = Stranger::call(from, at);
        other.say(Message::HostHello(HostHello { transport, resumes: true, ..resumes }));
        rig.settle();
        let unknown = Message::Resume { known: false, key: [0; 16] };
        let said = other.hear().unwrap_err();
        assert_eq!(said.last(), Some(&unknown), "{}", rig.describe());
        hosts.iter().for_each(|h| rig.hosts[*h].stopped = false);
        for i in conns {
            rig.drain(i);
            rig.exchange(i, 10_000);
            rig.promoted(i);
            assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
        }
        rig.finish();
    }
}

fn candidates_of(rig: &mut Rig, n: usize) -> u32 {
    rig.remote(1).shares.of(Source::of(host(n))).map_or(0, |s| s.candidates)
}

#[test]
fn the_candidates_of_some_hosts_do_not_push_out_anothers() {
    let (mut rig, at, port) = server(3);
    // An honest one that waits to be used at the accepting end.
    let i = rig.connect(2, 1);
    for _ in 0..4 {
        rig.send(i, C, 100);
        rig.settle();
    }
    let tuple = rig.conns[i][A].socket.tuple();
    rig.until("it is told of", |r| r.remote(1).candidates.find(&tuple, |_| true).is_some());
    let greedy: Vec<Stranger> = (0..6).map(|n| greeted(&mut rig, n, host(n), at, port)).collect();
    for (n, peer) in greedy.iter().enumerate() {
        for k in 0..PENDING as u16 / 3 {
            let from = SocketAddr::new(host(n), 1024 + k);
            let tuple = Tuple::new(from, SocketAddr::new(at.ip(), port)).unwrap();
            let claim =
                Candidate { tuple, token: k.into(), proof: Proof::NONE, class: 0, fills: false };
            peer.say(Message::Candidate(claim));
            if k % 256 == 0 {
                rig.settle();
            }
        }
        rig.settle();
        if n < 2 {
            assert_eq!(candidates_of(&mut rig, n), PENDING / 3, "there is room");
        }
    }
    let counts: Vec<u32> = (0..6).map(|n| candidates_of(&mut rig, n)).collect();
    assert!(counts.iter().all(|n| *n > 500), "each has some: {counts:?}");
    assert!(rig.remote(1).candidates.find(&tuple, |_| true).is_some(), "pushed out: {counts:?}");
    rig.promoted(i);
    drop(greedy);
    rig.finish();
}

/// Hosts of which nothing is left but that their claims were wrong take no part of what is there.
#[test]
fn hosts_that_are_remembered_for_wrong_claims_have_no_share() {
    let (mut rig, at, port) = server(3);
    (0..REMEMBERED).for_each(|n| rig.remote(1).shares.is_wrong(Source::of(host(10 + n))));
    let claim = |n: usize, k: u16| {
        let from = SocketAddr::new(host(n), 1024 + k);
        let tuple = Tuple::new(from, SocketAddr::new(at.ip(), port)).unwrap();
        let proof = Proof::NONE;
        Message::Candidate(Candidate { tuple, token: k.into(), proof, class: 0, fills: false })
    };
    let greedy = greeted(&mut rig, 0, host(0), at, port);
    for k in 0..PENDING as u16 + 100 {
        greedy.say(claim(0, k));
        if k % 256 == 0 {
            rig.settle();
        }
    }
    rig.settle();
    assert!(rig.remote(1).candidates.is_full());
    let honest = greeted(&mut rig, 1, host(1), at, port);
    (0..100).for_each(|k| honest.say(claim(1, k)));
    rig.settle();
    assert_eq!(candidates_of(&mut rig, 1), 100);
    let conns: Vec<usize> = (0..3).map(|_| rig.connect(2, 1)).collect();
    conns.iter().for_each(|i| rig.promoted(*i));
    drop((greedy, honest));
    rig.finish();
}

/// (10,000 connections that were opened at once: 6300 of them were never told of.)
#[test]
fn who_comes_when_much_is_to_be_said_to_the_peer_is_told_of() {
    let (mut rig, ..) = server(2);
    let i = rig.connect(0, 1);
    // Noted, and the thread has not looked yet.
    (0..LENGTH_BY).for_each(|_| rig.chat(i));
    let remote = rig.remote(0);
    let at = remote.links.iter().position(|l| l.is_some()).unwrap();
    while !remote.is_busy(at) {
        remote.send(at, Message::Withdraw { token: u64::MAX });
    }
    rig.promoted(i);
    rig.exchange(0, 10_000);
    rig.finish();
}

#[test]
fn wrong_claims_lock_their_host_out_and_are_told_of_once_a_second() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 3);
    let (from, lines) = (rig.hosts[0].address, || crate::log::LINES_OF_PEERS.get());
    let other = rig.connect(2, 1);
    rig.promoted(other);
    let port = name(rig.hosts[1].listener, false).port();
    let at = name(rig.remote(1).listeners[0].fd, false);
    let mut liar = greeted(&mut rig, 1, from, at, port);
    let (began, before) = (sys::now_ns(), lines());
    let failures = || stats::counted_here(Counter::AuthFailures);
    let counted = failures();
    let claim = |rig: &mut Rig, liar: &mut Stranger, token, by: u32| {
        let i = rig.connect(0, 1);
        crate::candidates::make_plain(rig.conns[i][C].socket, Reason::DisabledByConfig);
        let accepted = &rig.conns[i][A];
        assert!(accepted.socket.syn.learn(false, accepted.fd));
        let crate::syn::Said::Stamp(stamp) = accepted.socket.syn.said() else { panic!() };
        let proof = Proof::new(stamp.wrapping_add(by), stamp.wrapping_add(by + 3));
        let tuple = rig.conns[i][C].socket.tuple();
        liar.say(Message::Candidate(Candidate { tuple, token, proof, class: 0, fills: false }));
        for _ in 0..4 {
            rig.chat(i);
        }
        rig.settle();
        rig.close(i, C);
        rig.close(i, A);
        rig.settle();
        let mut said = liar.hear().unwrap();
        said.retain(|f| !matches!(f, Message::HostHello(_)));
        said
    };
    for n in 0..40 {
        assert_eq!(claim(&mut rig, &mut liar, n, 1), [Message::Withdraw { token: n }]);
    }
    // Five of them were looked at.
    assert!(failures() - counted >= 5);
    let seconds = (sys::now_ns() - began) / 1_000_000_000;
    assert!(u64::from(lines() - before) <= seconds + 1, "{} lines", lines() - before);
    // What is true is not believed either, from that host, and from others it is.
    assert_eq!(claim(&mut rig, &mut liar, 50, 0), [Message::Withdraw { token: 50 }]);
    let i = rig.connect(2, 1);
    rig.promoted(i);
    testing::pass_ns(61_000_000_000);
    rig.settle();
    let said = claim(&mut rig, &mut liar, 51, 0);
    assert!(matches!(said[..], [Message::Pair(_), ..]), "{said:?}");
    drop(liar);
    rig.finish();
}

#[test]
fn whatever_strangers_do_is_one_line_a_second() {
    let (mut rig, at, port) = server(2);
    let from = rig.hosts[0].address;
    let (began, before) = (sys::now_ns(), crate::log::LINES_OF_PEERS.get());
    for n in 0..60 {
        let peer = greeted(&mut rig, n, host(n % 7), at, port);
        peer.say(Message::OfferLane(OfferLane {
            token: 0,
            slot: 0,
            pair: 0,
            lane: 0,
            ring_log2: 15,
            fills: false,
        }));
        rig.settle();
        let peer = greeted(&mut rig, n, from, at, port);
        let tuple = rig.conns[0][C].socket.tuple();
        peer.say(Message::Candidate(Candidate {
            tuple,
            token: 3,
            proof: Proof::NONE,
            class: 0,
            fills: false,
        }));
        rig.settle();
    }
    let seconds = (sys::now_ns() - began) / 1_000_000_000;
    let lines = crate::log::LINES_OF_PEERS.get() - before;
    assert!(u64::from(lines) <= seconds + 1, "{lines} lines in {seconds} s");
    rig.finish();
}

/// What this thread has had of a CPU.
fn cpu_ns() -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) into a live place.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut at) };
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

/// The CPU time of what the thread does when so many connections with a pair each end: in order, or
/// with their link. (Pairs without queues: what the device does is not of interest.)
fn closing_takes(pairs: u32, in_order: bool) -> u64 {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let remote = rig.remote(0);
    let at = remote.links.iter().position(|l| l.is_some()).unwrap();
    let link = remote.link_mut(at).unwrap();
    let first = link.conns.len();
    for n in 0..pairs {
        let asked = proto::Pair { pair: 1000 + n, nonce: [0; 16], port: 0, lanes: 1, class: 0 };
        let mut pair = pair::Pair::new(PairState::Ready, &asked);
        pair.take(0, first + n as usize);
        link.pairs.push(pair);
        let mut conn = link::Conn { pair: 1000 + n, ..link::Conn::FREE };
        let taken = SlotEvent::TakeUp;
        conn.slot.step(taken, u64::from(n), Peers::TwoHosts, Role::Connector).unwrap();
        link.conns.push(conn);
    }
    let began = cpu_ns();
    if in_order {
        for slot in 0..pairs as usize {
            remote.left(at, first + slot);
        }
        for n in 0..pairs {
            remote.on_pair_end(at, 1000 + n);
        }
    } else {
        remote.end_all_pairs(at);
        for slot in 0..pairs as usize {
            remote.left(at, first + slot);
        }
    }
    let took = cpu_ns() - began;
    let link = remote.link(at).unwrap();
    assert!(!link.pairs.iter().any(|p| p.number >= 1000));
    assert!(link.conns.iter().skip(first).all(|c| c.slot.is_free()));
    rig.kill(0);
    rig.kill(1);
    took
}

/// What is quadratic takes longer for so many, optimized or not.
#[test]
fn many_pairs_are_closed_in_no_time() {
    for in_order in [true, false] {
        let least = |pairs| (0..3).map(|_| closing_takes(pairs, in_order)).min().unwrap() / 1000;
        let [some, many] = [1000, 4000].map(least);
        std::eprintln!("1,000 pairs: {some} us, 4,000: {many} us, in order: {in_order}");
        assert!(many < 200_000, "4,000 pairs: {many} us");
    }
}

/// How many descriptors this process may have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let _ = sys::getrlimit_nofile(&mut limit);
    let most = limit.rlim_max;
    let _ = sys::setrlimit_nofile(&libc::rlimit { rlim_cur: most, rlim_max: most });
    most as usize
}

/// The device of a server goes away with so many connections of three processes on it, each with
/// bytes under way both ways: all of these come over TCP. Returns how long the server's thread, and
/// everybody's, had of a CPU meanwhile, in milliseconds.
fn losing_a_device(many: usize) -> [u64; 2] {
    testing::init();
    let many = many.min((descriptors() - 300) / 2);
    let config = Config { connections_per_channel: 32, ..config::get().clone() };
    let mut took = [0; 2];
    crate::config::with(config, || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 4);
        let conns: Vec<usize> = (0..many).map(|n| rig.connect(1 + n % 3, 0)).collect();
        rig.until("all are on the ring", |r| {
            let slow: Vec<usize> = conns.iter().copied().filter(|i| !r.is_fast(*i)).collect();
            slow.iter().for_each(|i| r.chat(*i));
            slow.is_empty()
        });
        for i in &conns {
            assert_eq!((rig.send(*i, C, 512), rig.send(*i, A, 512)), (512, 512));
        }
        let began = cpu_ns();
        rig.remove_device(0);
        // Its own turn in which it hears of that.
        for _ in 0..10_000 {
            if rig.remote(0).devices.list.iter().all(|d| d.device.is_none()) {
                break;
            }
            if !rig.step(0) {
                rig.serve_queues();
            }
        }
        took[0] = (cpu_ns() - began) / 1_000_000;
        rig.until("all has come", |r| {
            for i in &conns {
                for side in [C, A] {
                    r.receive(*i, side, 5000);
                }
            }
            conns.iter().all(|i| r.has_come(*i))
        });
        took[1] = (cpu_ns() - began) / 1_000_000;
        let over = conns.iter().filter(|i| rig.conns[**i].iter().any(|e| e.over.is_some())).count();
        assert_eq!(over, 0, "connections that ended");
        rig.finish();
    });
    took
}

#[test]
fn a_device_with_hundreds_of_connections_is_lost() {
    let took = losing_a_device(300);
    std::eprintln!("300 connections: {took:?} ms");
}

#[test]
#[ignore = "a minute or so: `make soak-rdma` runs it"]
fn a_device_with_four_thousand_connections_is_lost() {
    let [device, all] = losing_a_device(4000);
    std::eprintln!("4,000 connections: {device} ms until the device is given up, {all} in all");
}

/// 10,000 connections of three processes to one, 32 on a queue pair: what it takes to open them, to
/// move a message each way on each, and to close them. All of it in one thread: both kernels' TCP,
/// the four processes' libraries, their applications and the fabric.
#[test]
#[ignore = "a benchmark, of some minutes: `make soak-rdma` runs it"]
fn ten_thousand_connections_are_opened_used_and_closed() {
    testing::init();
    // (Both ends are this process's.)
    let many = 10_000.min((descriptors() - 300) / 2);
    let config = Config { connections_per_channel: 32, ..config::get().clone() };
    crate::config::with(config, || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 4);
        let mut began = (cpu_ns(), std::time::Instant::now());
        let mut took = |what: &str| {
            let (cpu, time) = (cpu_ns() - began.0, began.1.elapsed());
            std::eprintln!("{what}: {} ms of CPU, {} ms", cpu / 1_000_000, time.as_millis());
            began = (cpu_ns(), std::time::Instant::now());
        };
        let conns: Vec<usize> = (0..many).map(|n| rig.connect(1 + n % 3, 0)).collect();
        rig.until("all are on the ring", |r| {
            let slow: Vec<usize> = conns.iter().copied().filter(|i| !r.is_fast(*i)).collect();
            slow.iter().for_each(|i| r.chat(*i));
            slow.is_empty()
        });
        took(&format!("{many} connections, on RDMA both ways"));
        let locked = [0, 1].map(|h| rings::registered(&mut rig, h) >> 20);
        std::eprintln!(
            "for rings {} MiB are locked at the server, {} at a client",
            locked[0],
            locked[1]
        );
        for i in &conns {
            assert_eq!((rig.send(*i, C, 512), rig.send(*i, A, 512)), (512, 512));
        }
        rig.until("all has come", |r| {
            for i in &conns {
                for side in [C, A] {
                    r.receive(*i, side, 5000);
                }
            }
            conns.iter().all(|i| r.has_come(*i))
        });
        took("512 bytes each way on each");
        assert!(conns.iter().all(|i| rig.is_fast(*i)));
        rig.finish();
        took("all are closed");
    });
}
