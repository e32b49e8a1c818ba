//! What was asked of the kernel for a connection's packets, and what becomes of it.

use super::super::policy::{LOOK_NS, PRETENDED_MTU};
use super::*;
use crate::channel::Side;
use crate::options;
use crate::packet_policy::SO_BINDTOIFINDEX;
use crate::reach::{PRETENDED, Way};
use netacc_control::config::Config;
use netacc_control::stats::Counter;

const IP_MINTTL: c_int = 21;
const HIGH: c_int = 0x68;
const LOW: c_int = 0x20;

/// As the program does it.
#[track_caller]
fn set(rig: &Rig, i: usize, side: usize, (level, name): (c_int, c_int), value: u64) {
    let fd = rig.conns[i][side].fd;
    let len = if name == libc::SO_MAX_PACING_RATE { 8 } else { 4 };
    let at = (&raw const value).cast::<c_void>();
    // SAFETY: a value of that length.
    unsafe {
        assert_eq!(options::setsockopt(fd, level, name, at, len), api::PASS);
        assert_eq!(sys::setsockopt_raw(fd, level, name, at, len), 0);
        options::on_setsockopt(fd, level, name, at, len);
    }
}

const TOS: (c_int, c_int) = (libc::IPPROTO_IP, libc::IP_TOS);
const MARK: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_MARK);
const PRIORITY: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_PRIORITY);
const PACING: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
const BOUND: (c_int, c_int) = (libc::SOL_SOCKET, SO_BINDTOIFINDEX);

fn pairs_lost() -> u64 {
    stats::header().map_or(0, |h| h.counter(Counter::RdmaPairsLost))
}

fn classes(rig: &Rig) -> [Vec<u8>; 2] {
    [0, 1].map(|h| rig.wires.classes(&rig.hosts[h].fabric))
}

/// The traffic class of the pair that a connection is on.
fn class_of(rig: &mut Rig, i: usize) -> u8 {
    let slot = rig.conns[i][C].socket.slot.load(Relaxed) as usize;
    let l = rig.remote(0).links.iter().flatten().find(|l| l.is_up()).unwrap();
    l.pair(l.conns[slot].pair).unwrap().class
}

/// Used, until it is plain at that side.
#[track_caller]
fn stays_plain(rig: &mut Rig, i: usize, side: usize) -> Reason {
    rig.until("it is plain", |r| {
        r.chat(i);
        r.conns[i][side].socket.is(State::Plain)
    });
    rig.exchange(i, 10_000);
    rig.reason(i, side)
}

#[test]
fn a_traffic_class_goes_to_the_pair_whichever_end_asks_for_it() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            // The network's own bits are not the program's to set.
            set(&rig, i, side, TOS, HIGH as u64 | 1);
            rig.promoted(i);
            rig.exchange(i, 100_000);
            assert_eq!(classes(&rig), [vec![HIGH as u8], vec![HIGH as u8]]);
            rig.finish();
        }
    }
}

#[test]
fn connections_of_different_classes_share_no_pair() {
    let config = Config { connections_per_channel: 4, ..Config::default() };
    crate::config::with(config, || {
        let mut rig = Rig::new(Order::Shuffled(7), Model::ROCE, 2);
        for class in [0, HIGH, 0, LOW, HIGH] {
            let i = rig.connect(0, 1);
            set(&rig, i, C, TOS, class as u64);
            rig.promoted(i);
        }
        for i in 0..5 {
            rig.exchange(i, 50_000);
        }
        let mut all = classes(&rig);
        all.iter_mut().for_each(|host| host.sort());
        assert_eq!(all, [0, 1].map(|_| vec![0, LOW as u8, HIGH as u8]));
        rig.finish();
    });
}

#[test]
fn connections_of_many_classes_at_once_find_their_pairs() {
    for seed in seeds(1..9) {
        let mut rig = Rig::new(Order::Shuffled(seed), Model::ROCE, 2);
        for n in 0..12 {
            let i = rig.connect(0, 1);
            set(&rig, i, n % 2, TOS, [0, HIGH, LOW][n % 3] as u64);
        }
        rig.until("all are promoted", |r| {
            (0..12).for_each(|i| r.chat(i));
            (0..12).all(|i| r.is_fast(i))
        });
        for i in 0..12 {
            assert_eq!(class_of(&mut rig, i), [0, HIGH, LOW][i % 3] as u8, "seed {seed}");
        }
        rig.finish();
    }
}

#[test]
fn ends_that_want_different_classes_stay_on_tcp() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    set(&rig, i, C, TOS, HIGH as u64);
    set(&rig, i, A, TOS, LOW as u64);
    assert_eq!(stays_plain(&mut rig, i, A), Reason::KernelPolicy);
    assert_eq!(stays_plain(&mut rig, i, C), Reason::PeerRefused);
    rig.finish();
}

/// It leaves its pair for another one, and loses nothing by that.
#[test]
fn a_class_that_changes_takes_its_connection_to_another_pair() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.exchange(i, 100_000);
            let before = pairs_lost();
            rig.send(i, C, 5000);
            rig.send(i, A, 5000);
            set(&rig, i, side, TOS, HIGH as u64);
            rig.until("it is on another pair", |r| {
                r.chat(i);
                r.is_fast(i) && class_of(r, i) == HIGH as u8
            });
            rig.exchange(i, 100_000);
            assert_eq!(pairs_lost(), before);
            rig.finish();
        }
    }
}

/// Between the agreement and its first use.
#[test]
fn what_is_asked_for_when_all_is_agreed_counts() {
    for side in [C, A] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        let offered = |r: &Rig| r.conns[i][side].socket.offered.is_made();
        for _ in 0..50 {
            if offered(&rig) {
                break;
            }
            rig.chat(i);
            rig.settle();
        }
        assert!(offered(&rig), "{}", rig.describe());
        set(&rig, i, side, MARK, 7);
        assert_eq!(stays_plain(&mut rig, i, side), Reason::KernelPolicy);
        rig.finish();
    }
}

/// Both ends are used until one of them has an offer.
#[track_caller]
fn agreed(rig: &mut Rig, i: usize, side: usize) {
    let offered = |r: &Rig| r.conns[i][side].socket.offered.is_made();
    for _ in 0..50 {
        if offered(rig) {
            return;
        }
        rig.chat(i);
        rig.settle();
    }
    panic!("no offer: {}", rig.describe());
}

/// Another pair can do that.
#[test]
fn a_class_that_changes_when_all_is_agreed_is_asked_for_anew() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            agreed(&mut rig, i, side);
            set(&rig, i, side, TOS, HIGH as u64);
            rig.until("it is on a pair of that class", |r| {
                r.chat(i);
                r.is_fast(i) && class_of(r, i) == HIGH as u8
            });
            rig.exchange(i, 50_000);
            rig.finish();
        }
    }
}

/// Also when the offer is on its way.
#[test]
fn a_class_that_changes_while_the_peer_has_the_offer_is_asked_for_anew() {
    for side in [C, A] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        // So that there is a pair, and no other message is on its way.
        let first = rig.connect(0, 1);
        rig.promoted(first);
        let i = rig.connect(0, 1);
        let offers = |r: &mut Rig| {
            let tuple = r.conns[i][A].socket.tuple();
            let accepted = &r.remote(1).accepted;
            accepted.find(&tuple, |m| m.agreement.offered().is_some()).is_some()
        };
        rig.chat(i);
        rig.settle();
        for _ in 0..50 {
            if offers(&mut rig) {
                break;
            }
            rig.chat(i);
            (0..3).for_each(|h| {
                rig.step(h & 1);
            });
        }
        assert!(offers(&mut rig), "{}", rig.describe());
        set(&rig, i, side, TOS, HIGH as u64);
        // It asks before the answer comes.
        for _ in 0..4 {
            rig.send(i, side ^ 1, 100);
            rig.send(i, side, 100);
            rig.receive(i, side, 1000);
        }
        rig.step(side);
        rig.until("it is on a pair of that class", |r| {
            r.chat(i);
            r.is_fast(i) && class_of(r, i) == HIGH as u8
        });
        rig.finish();
    }
}

#[test]
fn what_rdma_does_not_do_keeps_a_connection_on_tcp() {
    if sys::geteuid() != 0 {
        return;
    }
    for side in [C, A] {
        for (option, value) in [
            (MARK, 7),
            (PRIORITY, 5),
            (PACING, 1_000_000),
            ((libc::IPPROTO_IP, libc::IP_TTL), 1),
            ((libc::IPPROTO_IP, IP_MINTTL), 10),
            // Three that mean nothing, and their end.
            ((libc::IPPROTO_IP, libc::IP_OPTIONS), 0x0001_0101),
        ] {
            // From the start, and when it is on the ring.
            for late in [false, true] {
                let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
                let i = rig.connect(0, 1);
                if late {
                    rig.promoted(i);
                    rig.send(i, side, 5000);
                }
                set(&rig, i, side, option, value);
                let why = stays_plain(&mut rig, i, side);
                assert_eq!(why, Reason::KernelPolicy, "{option:?} late {late}");
                rig.finish();
            }
        }
    }
}

/// IP_TOS sets a priority, which is that of the class.
#[test]
fn the_priority_of_a_class_is_no_other_wish() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    let e = &rig.conns[i][C];
    for class in (0..=252u64).step_by(4) {
        set(&rig, i, C, TOS, class);
        let asked = crate::packet_policy::of(e.fd, rig.hosts[0].address).unwrap();
        assert_eq!(u64::from(asked.class), class);
    }
    rig.finish();
}

/// On a socket of IPv6's IP_TOS sets the priority, and the packets have another class: MySQL does
/// that on each.
#[test]
fn the_priority_of_ip_tos_is_no_other_wish_on_ipv6_either() {
    let socket = std::net::UdpSocket::bind("[::1]:0").unwrap();
    socket.connect("[::1]:9").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let set = |(level, name): (c_int, c_int), value: c_int| {
        assert_eq!(sys::setsockopt(fd, level, name, &value), 0);
    };
    let of = || crate::packet_policy::of(fd, "::1".parse().unwrap());
    set(TOS, 8);
    let mut priority: c_int = 0;
    assert!(sys::getsockopt(fd, PRIORITY.0, PRIORITY.1, &mut priority) >= 0);
    assert_ne!(priority, 0);
    assert_eq!(of().map(|asked| asked.class), Ok(0));
    set(PRIORITY, 1);
    assert_eq!(of(), Err(Reason::KernelPolicy));
}

#[test]
fn few_hops_and_headers_of_its_own_are_another_wish_on_ipv6_too() {
    const MINHOPCOUNT: c_int = 73;
    // (The kernel lets root alone add headers: of nothing but padding.)
    let padding = 0x0401_0000u64;
    for (name, value, other) in [
        (libc::IPV6_UNICAST_HOPS, 255, false),
        (libc::IPV6_UNICAST_HOPS, 64, false),
        (libc::IPV6_UNICAST_HOPS, 1, true),
        (MINHOPCOUNT, 0, false),
        (MINHOPCOUNT, 255, true),
        (libc::IPV6_HOPOPTS, padding, true),
        (libc::IPV6_DSTOPTS, padding, true),
    ] {
        let socket = std::net::UdpSocket::bind("[::1]:0").unwrap();
        socket.connect("[::1]:9").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let set = if value == padding {
            sys::setsockopt(fd, libc::IPPROTO_IPV6, name, &value)
        } else {
            sys::setsockopt(fd, libc::IPPROTO_IPV6, name, &(value as c_int))
        };
        assert!(set == 0 || (value == padding && sys::geteuid() != 0), "{name}");
        let of = crate::packet_policy::of(fd, "::1".parse().unwrap());
        assert_eq!(of.err(), (other && set == 0).then_some(Reason::KernelPolicy), "{name} {value}");
        assert!(crate::packet_policy::is_about(libc::IPPROTO_IPV6, name));
    }
}

/// With a way that is looked up as this one, used from the start.
#[track_caller]
fn over(way: Way, bound: u32) -> Option<Reason> {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    PRETENDED.set(Some(way));
    let i = rig.connect(0, 1);
    if bound != 0 {
        set(&rig, i, C, BOUND, bound.into());
    }
    rig.until("it comes to something", |r| {
        r.chat(i);
        r.is_fast(i) || r.conns[i].iter().any(|e| e.socket.is(State::Plain))
    });
    let why = (!rig.is_fast(i)).then(|| rig.reason(i, C));
    PRETENDED.set(None);
    rig.finish();
    why
}

#[test]
fn packets_that_the_kernel_wraps_are_none_of_rdmas() {
    let lo = 1;
    // Of a socket over loopback, as the kernel says.
    let way = Way { interface: lo, mtu: 65_536, ..Way::UNKNOWN };
    assert_eq!(over(way, 0), None);
    // As if ESP took something off each packet.
    assert_eq!(over(Way { mtu: 9000, ..way }, 0), Some(Reason::Ipsec));
    // As if a policy's packets had nowhere to go yet, and the kernel kept them.
    assert_eq!(over(Way { mtu: 1500, ..way }, 0), Some(Reason::Ipsec));
    assert_eq!(over(Way { mtu: 0, ..way }, 0), None, "nobody knows");
    assert_eq!(over(Way { encrypts: true, ..way }, 0), Some(Reason::Ipsec));
    assert_eq!(over(Way { in_vrf: true, ..way }, 0), Some(Reason::KernelPolicy));
    let unseen = Way { unseen: true, ..way };
    assert_eq!(over(unseen, 0), Some(Reason::KernelPolicy), "it may be all of that");
    let nothing = Config { kernel_policy: false, ..Config::default() };
    crate::config::with(nothing, || {
        assert_eq!(over(Way { mtu: 1500, encrypts: true, ..unseen }, 0), None, "not to be heeded");
    });
}

/// Without the length of its packets nobody knows whether they are wrapped: its next calls ask
/// again.
#[test]
fn a_connection_whose_packets_have_no_way_yet_is_asked_again() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    set(&rig, i, C, TOS, HIGH as u64);
    let used = |rig: &Rig, calls| {
        let e = &rig.conns[i][C];
        AGENT.used(e.socket, &Used { generation: 0, fd: e.fd, side: Side::Receive, calls })
    };
    assert_eq!(used(&rig, NOTED_AFTER), Noted::No);
    assert_eq!(rig.send(i, C, 10), 10);
    assert_eq!(used(&rig, NOTED_AFTER + 1), Noted::Now);
    let other = rig.connect(0, 1);
    set(&rig, other, C, TOS, HIGH as u64);
    let e = &rig.conns[other][C];
    let late = Used { generation: 0, fd: e.fd, side: Side::Receive, calls: LENGTH_BY };
    assert_eq!(AGENT.used(e.socket, &late), Noted::Now, "a kernel that never says it");
    rig.promoted(i);
    rig.finish();
}

/// As if ESP took something off the packets of links, and off those of all connections from their
/// next agreement on.
fn make_policy() {
    PRETENDED_MTU.set(Some(8946));
    PRETENDED.set(Some(Way { mtu: 9000, ..Way::UNKNOWN }));
}

/// A policy that is made while connections are on RDMA takes them back, once.
#[test]
fn a_policy_that_is_made_later_takes_connections_back() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        PRETENDED.set(Some(Way { mtu: 65_536, ..Way::UNKNOWN }));
        let all = [rig.connect(0, 1), rig.connect(0, 1)];
        for i in all {
            rig.promoted(i);
            rig.send(i, A, 3000);
        }
        make_policy();
        rig.until("they are plain", |r| {
            all.iter().for_each(|i| r.chat(*i));
            all.iter().all(|i| r.conns[*i].iter().all(|e| e.socket.is(State::Plain)))
        });
        for i in all {
            rig.exchange(i, 20_000);
            assert!([C, A].iter().any(|side| rig.reason(i, *side) == Reason::Ipsec));
        }
        PRETENDED.set(None);
        PRETENDED_MTU.set(None);
        rig.finish();
    }
}

/// `n` looks at what links' packets tell, and what else comes of that.
fn looks(rig: &mut Rig, n: usize) {
    for _ in 0..n {
        testing::pass_ns(LOOK_NS);
        rig.settle();
        while rig.is_under_way() {
            rig.wait(1_000_000);
            rig.settle();
        }
    }
}

/// Bytes that a host's links have sent.
fn sent_on_links(rig: &mut Rig, h: usize) -> u64 {
    let links = rig.remote(h).links.iter().flatten().filter(|l| l.is_up());
    links.map(|l| crate::carrier::moved(l.fd, l.role == Role::Connector).unwrap().0).sum()
}

/// Also when nobody says anything, or only one end: the kernel notices it when the link sends.
#[test]
fn a_policy_that_is_made_later_is_noticed_without_the_connections_help() {
    for bulk in [0, 20_000] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        PRETENDED.set(Some(Way { mtu: 65_536, ..Way::UNKNOWN }));
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.drain(i);
        looks(&mut rig, 2);
        let before = [0, 1].map(|h| sent_on_links(&mut rig, h));
        looks(&mut rig, 1);
        let after = [0, 1].map(|h| sent_on_links(&mut rig, h));
        assert!((0..2).all(|h| after[h] > before[h]), "{before:?} {after:?}");
        assert!(rig.is_fast(i));
        make_policy();
        for _ in 0..2 {
            assert!(rig.is_fast(i));
            rig.send(i, C, bulk);
            while rig.receive(i, A, 30_000) > 0 {}
            looks(&mut rig, 1);
        }
        assert!(!rig.is_fast(i));
        let why = [C, A].map(|side| stays_plain(&mut rig, i, side));
        assert!(why.contains(&Reason::Ipsec), "{why:?}");
        PRETENDED.set(None);
        PRETENDED_MTU.set(None);
        rig.finish();
    }
}

/// A route that changes, or a packet that was too long for it, looks like that for a moment.
#[test]
fn one_look_takes_no_connection_back() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    PRETENDED.set(Some(Way { mtu: 65_536, ..Way::UNKNOWN }));
    let i = rig.connect(0, 1);
    rig.promoted(i);
    for _ in 0..3 {
        PRETENDED_MTU.set(Some(9000));
        looks(&mut rig, 1);
        PRETENDED_MTU.set(Some(65_536));
        looks(&mut rig, 1);
    }
    // It is the route's, too.
    PRETENDED_MTU.set(Some(9000));
    looks(&mut rig, 1);
    PRETENDED.set(Some(Way { mtu: 9000, ..Way::UNKNOWN }));
    looks(&mut rig, 3);
    assert!(rig.is_fast(i));
    // As long as it is, nothing is looked up.
    PRETENDED.set(Some(Way { mtu: 1500, ..Way::UNKNOWN }));
    looks(&mut rig, 70);
    assert!(rig.is_fast(i));
    let left = |rig: &mut Rig| rig.remote(0).policy_at;
    assert_ne!(left(&mut rig), 0);
    rig.exchange(i, 20_000);
    assert!(rig.is_fast(i));
    rig.close(i, C);
    rig.close(i, A);
    looks(&mut rig, 3);
    assert_eq!(left(&mut rig), 0, "without connections there is nothing to look at");
    PRETENDED.set(None);
    PRETENDED_MTU.set(None);
    rig.finish();
}

/// Ways are looked up for connections that a device could serve, of peers that have the library.
#[test]
fn nobodys_connections_cost_no_look_at_the_routes() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    PRETENDED.set(Some(Way { encrypts: true, ..Way::UNKNOWN }));
    rig.wires.fail_call(&rig.hosts[0].fabric, Call::OpenDevice, 1, libc::ENODEV);
    let i = rig.connect(0, 1);
    for _ in 0..8 {
        rig.chat(i);
        rig.settle();
    }
    assert!(rig.conns[i][C].socket.is(State::Plain));
    assert_eq!(rig.reason(i, C), Reason::NoRdmaDevice);
    assert_eq!([0, 1].map(|h| rig.remote(h).hosts.len()), [0, 0]);
    PRETENDED.set(None);
    rig.finish();
}

/// An acceptor may be the only one whose kernel wraps packets.
#[test]
fn an_acceptor_looks_at_its_packets_when_somebody_claims_them() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    set(&rig, i, A, BOUND, 1);
    PRETENDED.set(Some(Way { interface: 77, ..Way::UNKNOWN }));
    assert_eq!(stays_plain(&mut rig, i, A), Reason::KernelPolicy);
    assert_eq!(stays_plain(&mut rig, i, C), Reason::PeerRefused);
    PRETENDED.set(None);
    rig.finish();
}

/// Of two interfaces in one network the kernel takes one: it is that one's length that counts.
#[test]
fn a_bound_socket_is_not_compared_with_another_interfaces_packets() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    let (local, peer) = (rig.hosts[0].address, rig.hosts[1].address);
    let s = rig.conns[i][C].socket;
    for (interface, mtu, why) in [
        (0, 9000, None),
        (0, 1500, Some(Reason::Ipsec)),
        (1, 1500, None),
        (5, 1500, Some(Reason::Ipsec)),
    ] {
        PRETENDED.set(Some(Way { interface: 1, out: 5, mtu: 9000, ..Way::UNKNOWN }));
        let asked = Asked { interface, mtu, ..Asked::NOTHING };
        // (What is asked of the kernel once more is another length than the route's, too.)
        assert_eq!(rig.remote(0).policy_against(local, peer, s, asked), why, "{interface} {mtu}");
    }
    PRETENDED.set(None);
    rig.finish();
}

#[test]
fn who_is_bound_to_another_interface_stays_on_tcp() {
    let lo = 1;
    assert_eq!(over(Way { interface: lo, ..Way::UNKNOWN }, lo), None);
    assert_eq!(over(Way { interface: 77, ..Way::UNKNOWN }, lo), Some(Reason::KernelPolicy));
    assert_eq!(over(Way::UNKNOWN, lo), Some(Reason::KernelPolicy), "nobody knows");
}

/// A route whose MTU has changed since it was looked up is looked up again, however short ago that
/// was.
#[test]
fn news_of_another_mtu_is_not_taken_for_ipsec() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    PRETENDED.set(Some(Way { mtu: 65_536, ..Way::UNKNOWN }));
    let first = rig.connect(0, 1);
    rig.promoted(first);
    // What was looked up is as of another network.
    for h in 0..2 {
        rig.remote(h).pretend_mtu(1500);
    }
    let second = rig.connect(0, 1);
    rig.promoted(second);
    // The socket is asked again, too.
    let (local, peer) = (rig.hosts[0].address, rig.hosts[1].address);
    let s = rig.conns[second][C].socket;
    let before = Asked { mtu: 1500, ..Asked::NOTHING };
    assert_eq!(rig.remote(0).policy_against(local, peer, s, before), None);
    PRETENDED.set(None);
    rig.finish();
}

#[test]
fn a_class_that_the_device_refuses_costs_nothing_but_the_pair() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    rig.wires.fail_call(&rig.hosts[0].fabric, Call::SetClass, 1, libc::EINVAL);
    let i = rig.connect(0, 1);
    set(&rig, i, C, TOS, HIGH as u64);
    rig.promoted(i);
    rig.finish();
}
