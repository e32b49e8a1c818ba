//! As many as there is room for between hosts, and one more (docs/manual/limits.md, *Numbers*).

use super::*;
use crate::remote::destinations::link_port;
use crate::testing::{Moment, just_before, was_there};
use netacc_proto::agreement::SlotEvent;
use netacc_proto::rendezvous::Peers;

/// Connections between two processes, to one port.
const CONNECTIONS: usize = 4095;
/// Processes that are found at one address and port, and as many of them as are found there
/// whatever becomes of the others.
const FOUND: u8 = 32;
const ALWAYS: u8 = 4;
/// Addresses and ports at which one process is found.
const PLACES: usize = 64;

/// Whether a connection comes to be accelerated; otherwise nobody was found where it leads to.
fn is_found(rig: &mut Rig, i: usize) -> bool {
    rig.until("it is accelerated, or never will be", |r| {
        r.chat(i);
        r.is_fast(i) || r.conns[i][C].socket.is(State::Plain)
    });
    let found = rig.is_fast(i);
    assert!(found || rig.reason(i, C) == Reason::ListenerWithoutLibrary, "{}", rig.describe());
    found
}

#[test]
fn who_finds_every_slot_of_a_link_taken_stays_on_tcp() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let first = rig.connect(0, 1);
    rig.promoted(first);
    // All others but one are offered to connections that do not answer.
    let remote = rig.remote(1);
    let at = remote.links.iter().position(Option::is_some).unwrap();
    let conns = &mut remote.link_mut(at).unwrap().conns;
    while conns.len() < CONNECTIONS - 1 {
        let mut conn = link::Conn::FREE;
        conn.slot.step(SlotEvent::Offer, u64::MAX, Peers::TwoHosts, Role::Acceptor).unwrap();
        conns.push(conn);
    }
    let last = rig.connect(0, 1);
    rig.promoted(last);
    assert_eq!(rig.conns[last][A].socket.slot.load(Relaxed) as usize, CONNECTIONS - 1);
    let more = rig.connect(0, 1);
    rig.until("it stays on TCP", |r| {
        r.chat(more);
        r.conns[more].iter().all(|e| e.socket.is(State::Plain))
    });
    let why = [A, C].map(|side| rig.reason(more, side));
    assert_eq!(why, [Reason::ChannelFull, Reason::PeerRefused]);
    for i in [first, last, more] {
        rig.exchange(i, 10_000);
    }
    assert!(rig.is_fast(first) && rig.is_fast(last) && !rig.is_fast(more));
    // There is room again.
    for side in [C, A] {
        rig.close(last, side);
    }
    let next = rig.connect(0, 1);
    rig.promoted(next);
    let conns = &mut rig.remote(1).link_mut(at).unwrap().conns;
    let offered = conns.iter_mut().filter(|c| c.slot.state == SlotState::Offered);
    offered.for_each(|c| *c = link::Conn::FREE);
    rig.finish();
}

/// Somebody else has so many of the first ports of the links for host 1's connections, and says
/// nothing there; the next one is free.
fn others_take(rig: &mut Rig, taken: u8) -> Vec<c_int> {
    loop {
        let to = rig.listen(1);
        let at = |k| SocketAddr::new(to.ip(), link_port(to.port(), k));
        let mut fds: Vec<c_int> = (0..=taken).map_while(|k| tcp_if_free(at(k))).collect();
        if fds.len() > usize::from(taken) {
            assert!(sys::close(fds.pop().unwrap()) >= 0);
            assert!(fds.iter().all(|fd| sys::listen(*fd, 64) >= 0));
            return fds;
        }
        fds.into_iter().for_each(|fd| _ = sys::close(fd));
        rig.close_listener(1);
    }
}

#[test]
fn who_accepts_at_the_last_link_port_is_found_while_those_before_are_taken() {
    // So many are taken, and one of them is free again when the process is looked for.
    for (taken, gone, found) in [
        (ALWAYS - 1, Some(0), true),
        (ALWAYS, None, true),
        (ALWAYS, Some(0), false),
        (FOUND - 1, None, true),
        (FOUND - 1, Some(ALWAYS), false),
        (FOUND, None, false),
    ] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let mut others = others_take(&mut rig, taken);
        // It takes links before anybody looks for it.
        rig.hosts[0].stopped = true;
        let i = rig.connect(0, 1);
        rig.settle();
        let port = name(rig.hosts[1].listener, false).port();
        let at: Vec<u16> =
            rig.remote(1).listeners.iter().map(|l| name(l.fd, false).port()).collect();
        assert_eq!(at.first().copied(), (taken < FOUND).then(|| link_port(port, taken)));
        if let Some(k) = gone {
            assert!(sys::close(others.remove(usize::from(k))) >= 0);
        }
        rig.hosts[0].stopped = false;
        assert_eq!(is_found(&mut rig, i), found, "{taken} taken, {gone:?} gone");
        rig.exchange(i, 10_000);
        others.into_iter().for_each(|fd| _ = sys::close(fd));
        rig.finish();
    }
}

/// Two processes have bound the first port, and the other one listens first.
#[test]
fn who_comes_second_to_a_link_port_takes_the_next() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let others = others_take(&mut rig, 0);
    assert!(others.is_empty());
    let to = name(rig.hosts[1].listener, false);
    let at = SocketAddr::new(to.ip(), link_port(to.port(), 0));
    let other = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) as c_int;
    assert!(sys::setsockopt(other, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32) >= 0);
    assert!(link::bind(other, at) >= 0);
    let listens = Moment::Call(libc::SYS_listen);
    just_before(listens, move || assert!(sys::listen(other, 8) >= 0));
    let i = rig.connect(0, 1);
    // (At once: when it is asked for again, the other one listens already.)
    rig.settle();
    assert!(was_there());
    let own = rig.remote(1).listeners.first().map(|l| name(l.fd, false).port());
    assert_eq!(own, Some(link_port(to.port(), 1)));
    rig.promoted(i);
    rig.exchange(i, 10_000);
    let _ = sys::close(other);
    rig.finish();
}

/// A connection waits, and no other one comes: when there is a port it is used all the same.
#[test]
fn who_gets_no_link_port_asks_for_one_again() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let others = others_take(&mut rig, FOUND);
    rig.hosts[0].stopped = true;
    let i = rig.connect(0, 1);
    rig.settle();
    assert!(rig.remote(1).listeners.is_empty());
    // It says so, and is asked for less and less often, for longer than one waits whom nobody can
    // ask for.
    for _ in 0..90 {
        testing::pass_ns(1_000_000_000);
        rig.settle();
        rig.send(i, A, 10);
    }
    assert_eq!(rig.reason(i, A), Reason::RdmaRefused, "{}", rig.describe());
    others.into_iter().for_each(|fd| _ = sys::close(fd));
    // When there is a port it is waited for who asks there, as of a new one.
    while rig.remote(1).listeners.is_empty() {
        testing::pass_ns(100_000_000);
        rig.settle();
    }
    assert_eq!(rig.reason(i, A), Reason::Negotiating);
    testing::pass_ns(1_000_000_000);
    rig.settle();
    assert_eq!(rig.reason(i, A), Reason::PeerWithoutLibrary);
    rig.hosts[0].stopped = false;
    rig.promoted(i);
    rig.exchange(i, 10_000);
    rig.finish();
}

/// A listening socket of an application on host 1.
fn listens(rig: &Rig) -> c_int {
    let fd = tcp(SocketAddr::new(rig.hosts[1].address, 0));
    assert!(sys::listen(fd, 8) >= 0);
    api::on_socket(fd, libc::AF_INET, libc::SOCK_STREAM, 0);
    api::on_listen(fd);
    fd
}

fn close(fd: c_int) {
    if api::close(fd) == api::PASS {
        let _ = sys::close(fd);
    }
}

#[test]
fn who_accepts_at_one_place_too_many_is_found_there_when_another_is_closed() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let mut others: Vec<c_int> = (0..PLACES).map(|_| listens(&rig)).collect();
    FABRIC.set(Some(rig.hosts[1].fabric.clone()));
    others.iter().for_each(|fd| rig.remote(1).on_accepting(name(*fd, false)));
    FABRIC.set(None);
    let places = |r: &mut Rig| r.remote(1).listeners.iter().filter(|l| l.fd >= 0).count();
    assert_eq!(places(&mut rig), PLACES);
    let first = rig.connect(0, 1);
    assert!(!is_found(&mut rig, first), "there is room for one more");
    assert_eq!(places(&mut rig), PLACES);
    close(others.remove(PLACES / 2));
    testing::pass_ns(30_000_000_000);
    rig.settle();
    let next = rig.connect(0, 1);
    assert!(is_found(&mut rig, next), "{}", rig.describe());
    for i in [first, next] {
        rig.exchange(i, 10_000);
    }
    others.into_iter().for_each(close);
    rig.finish();
}

/// With so many connections on each.
#[test]
fn completion_queues_have_room_for_as_many_pairs_as_the_manual_says() {
    for (lanes, pairs) in [(1, 15_744), (8, 3936), (64, 3936)] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        FABRIC.set(Some(rig.hosts[0].fabric.clone()));
        let address = rig.hosts[0].address;
        let remote = rig.remote(0);
        let device = remote.device_at(address).unwrap();
        let facts = remote.facts(device).unwrap();
        let settings = devices::settings(lanes, true, &facts, 128);
        let seats: Vec<_> =
            core::iter::from_fn(|| remote.seat(device, &settings).ok()).take(2 * pairs).collect();
        assert_eq!((seats.len(), queues::queues().count()), (pairs, QUEUES), "-p {lanes}");
        for (q, tag) in seats {
            q.hub.release(process::tid(), tag).unwrap();
        }
        FABRIC.set(None);
        rig.finish();
    }
}
