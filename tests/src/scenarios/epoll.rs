//! epoll: triggering, re-arming, sets and threads, errors.

use super::poll::interrupted;
use crate::ctx::{Ctx, await_bytes, blocked, comes_to_sleep, recv_exact, send_all};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, E, Fd};
use libc::{
    EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD, MSG_DONTWAIT, MSG_NOSIGNAL,
    SIGUSR1,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

pub(super) const IN: u32 = libc::EPOLLIN as u32;
pub(super) const OUT: u32 = libc::EPOLLOUT as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(super) const ET: u32 = libc::EPOLLET as u32;
pub(super) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub(super) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

type Events = Result<Vec<(u32, u64)>, E>;

// docs/manual/limits.md: "Order across connections".
const BETWEEN_HOSTS: (&str, &str) = ("rdma", "between hosts news has no order across connections");
/// Sets of a process that have accelerated connections (`PLACES` of crates/core/src/channel.rs,
/// half).
const SETS_SERVED: usize = 128;
/// Connections of which one after the other ends.
const ENDING: usize = 4;
/// Bytes, each for the one of two threads that comes first.
const BESIDE: u64 = 1500;
pub(super) const UNORDERED: &[(&str, &str)] = &[BETWEEN_HOSTS];
/// The same where connections are on their way back to TCP all the time.
pub(super) const UNORDERED_ON_THE_WAY: &[(&str, &str)] = &[
    BETWEEN_HOSTS,
    ("switch", "bytes that were in the ring when its sender left it are sent again over TCP"),
];

/// A transcript line with the events by name, sorted by data: the order within one call is not
/// promised.
pub(super) fn show(t: &Ctx, label: &str, events: Events) {
    t.log(
        label,
        events.map(|mut list| {
            list.sort_by_key(|e| e.1);
            list.into_iter()
                .map(|(e, data)| format!("{data:x}:{}", sys::epoll_names(e)))
                .collect::<Vec<_>>()
        }),
    );
}

pub(super) fn set() -> Fd {
    sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1")
}

pub(super) fn add(set: Fd, fd: Fd, events: u32, data: u64) {
    sys::epoll_ctl(set, ADD, fd, events, data).expect("EPOLL_CTL_ADD");
}

/// Fills a non-blocking socket until it takes nothing for 50 ms; returns the bytes.
fn fill(fd: Fd) -> usize {
    let mut total = 0;
    loop {
        match sys::send(fd, &[9; 40_000], MSG_DONTWAIT | MSG_NOSIGNAL) {
            Ok(n) => total += n,
            Err(E(libc::EAGAIN)) => {
                if sys::await_events(fd, libc::POLLOUT, 50) == 0 {
                    return total;
                }
            }
            Err(e) => panic!("send: {e:?}"),
        }
    }
}

/// Between hosts a connection on its way back to TCP, as one that has ended is, has no room for a
/// moment (docs/manual/limits.md, "No room for a moment over RDMA").
fn await_room(fd: Fd) {
    let begin = sys::now_ns();
    while sys::await_events(fd, libc::POLLOUT, 5000) & libc::POLLOUT == 0 {
        if sys::now_ns() - begin > 10_000_000_000 {
            break;
        }
        sys::sleep_ms(1);
    }
}

/// Whether the connection may change its path in the middle of the scenario (the modes early and
/// switch).
fn path_moves() -> bool {
    ["NETACC_TEST_SWITCH", "NACC_CONN_TCP_FIRST"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// Whether one connection may be on its ring, and another on the kernel, without a warm-up of both.
fn paths_differ() -> bool {
    path_moves() || std::env::var_os("NACC_FAST_CONNECT").is_some()
}

/// No event is due. A registration that has just changed hands between the library and the kernel
/// may report what it reported before once more: one event, of something that is so.
fn once_more(t: &Ctx, label: &str, set: Fd, fd: Fd) {
    let mut events = sys::epoll_wait(set, 8, 20);
    if let Ok(list) = &events
        && let [(seen, _)] = list[..]
    {
        let now = sys::await_events(fd, seen as i16, 0) as u32;
        if seen & !now == 0 {
            events = sys::epoll_wait(set, 8, 20);
        }
    }
    show(t, label, events);
}

/// No edge is due: exactly none, unless the path may just have changed.
pub(super) fn no_edge(t: &Ctx, label: &str, set: Fd, fd: Fd) {
    if path_moves() {
        once_more(t, label, set, fd);
    } else {
        show(t, label, sys::epoll_wait(set, 8, 20));
    }
}

/// A client that does what the server tells it: `bN` sends a byte on connection N, `sN`
/// half-closes, `cN` closes, `dN` receives as many bytes as the next word says, `lN` puts its end
/// into five sets: from then on it sends over the kernel, whatever is unread where it sent before.
pub(super) fn obedient(t: &Ctx, count: usize) {
    let fds = t.clients(count);
    obey(t, &fds);
}

/// As [`obedient`], after its process id.
fn obedient_with_pid(t: &Ctx, count: usize) {
    let fds = t.clients(count);
    t.tell(&sys::getpid().to_string());
    obey(t, &fds);
}

fn obey(t: &Ctx, fds: &[Fd]) {
    loop {
        let word = t.hear();
        let (verb, rest) = word.split_at(1);
        match (verb, rest.parse::<usize>()) {
            ("s", Ok(i)) => drop(sys::shutdown(fds[i], libc::SHUT_WR)),
            ("c", Ok(i)) => drop(sys::close(fds[i])),
            ("b", Ok(i)) => send_all(fds[i], b"!"),
            ("l", Ok(i)) => (0..5).for_each(|_| add(set(), fds[i], 0, 1)),
            ("d", Ok(i)) => {
                let n = t.hear().parse().expect("a count");
                recv_exact(fds[i], n);
            }
            _ => break,
        }
        t.tell("did");
    }
}

/// Tells the obedient client to do something and waits until it has.
pub(super) fn ask(t: &Ctx, what: &str) {
    t.tell(what);
    t.wait("did");
}

/// Connections of a scenario about their order, and its rounds.
const WORTH_SORTING: usize = 6;
const ROUNDS: usize = 60;

/// A permutation of the connections for each round.
fn order_of(round: usize) -> Vec<usize> {
    let mut list: Vec<usize> = (0..WORTH_SORTING).collect();
    let mut seed = round * 7919 + 12345;
    for i in (1..WORTH_SORTING).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        list.swap(i, (seed >> 33) % (i + 1));
    }
    list
}

fn send_in_order(t: &Ctx) {
    let fds = t.clients(WORTH_SORTING);
    for round in 0..ROUNDS {
        t.wait("go");
        for i in order_of(round) {
            send_all(fds[i], &[1 + i as u8]);
        }
        t.tell("sent");
    }
    t.wait("seen");
}

/// How many exchanges bring a connection to any stage of its way to a ring, and beyond.
const STAGES: usize = 8;

/// A new connection after so many exchanges.
fn reach(addr: sys::Addr, exchanges: usize) -> Fd {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    for _ in 0..exchanges {
        send_all(fd, b".");
        recv_exact(fd, 1);
    }
    send_all(fd, b"!");
    recv_exact(fd, 1);
    fd
}

/// The other end of [`reach`], in a set from its beginning.
fn stage(listener: Fd, e: Fd, data: u64) -> Fd {
    let fd = sys::accept(listener).expect("accept");
    add(e, fd, IN, data);
    loop {
        sys::epoll_wait(e, 8, 5000).expect("epoll_wait");
        let last = recv_exact(fd, 1) == b"!";
        send_all(fd, b".");
        if last {
            return fd;
        }
    }
}

/// Has all connections sent to while nobody waits, and looks in which order they are reported.
/// While paths move, a connection can be on TCP and its neighbour not, and their order is not kept.
fn in_order(t: &Ctx, events: u32, room: usize) {
    let fds = t.servers(WORTH_SORTING);
    let e = set();
    for (i, fd) in fds.iter().enumerate() {
        add(e, *fd, events, i as u64);
    }
    let mut wrong = Vec::new();
    for round in 0..ROUNDS {
        // What was reported before is ready no more.
        while !sys::epoll_wait(e, 20, 0).expect("epoll_wait").is_empty() {}
        t.tell("go");
        t.wait("sent");
        let mut seen = Vec::new();
        while seen.len() < WORTH_SORTING {
            for (_, i) in sys::epoll_wait(e, room, 5000).expect("epoll_wait") {
                let i = i as usize;
                // (A spurious edge may come while a path moves.)
                if sys::recv(fds[i], &mut [0; 8], MSG_DONTWAIT).is_ok() {
                    seen.push(i);
                }
            }
        }
        // (Kernel TCP, too, reports the second round of all in another order.)
        if round >= 2 && seen != order_of(round) && !paths_differ() {
            wrong.push((round, seen, order_of(round)));
        }
    }
    // The clients end behind that: their ends are events as well.
    t.tell("seen");
    t.log("rounds in another order", wrong);
}

/// Accepts one, warms up, sends four bytes when it is told to, and closes when it is told to.
pub(super) fn four_bytes(t: &Ctx) {
    let fd = t.server();
    t.wait("go");
    send_all(fd, b"data");
    t.wait("seen");
    sys::close(fd).expect("close");
}

/// Waits until `count` different registrations have been reported; the events of each, together.
/// The library may leave the kernel's descriptors to one of the next waits, so one call need not
/// report all; each must report something.
fn collect(set: Fd, max: usize, count: usize) -> Events {
    let mut seen = BTreeMap::new();
    for _ in 0..200 {
        let events = sys::epoll_wait(set, max, 0)?;
        assert!(events.len() <= max && !events.is_empty());
        for (events, data) in events {
            *seen.entry(data).or_insert(0) |= events;
        }
        if seen.len() >= count {
            break;
        }
    }
    Ok(seen.into_iter().map(|(data, events)| (events, data)).collect())
}

/// Waits until each registration has been reported at least so: what a call of its own brings (an
/// edge that comes with another's event, a connection that changes its path) may come in the next.
/// Nothing that was not expected may come.
fn collect_until(set: Fd, expected: &[(u64, u32)]) -> Events {
    let mut seen = BTreeMap::new();
    let begin = sys::now_ns();
    loop {
        for (events, data) in sys::epoll_wait(set, 8, 1000)? {
            *seen.entry(data).or_insert(0) |= events;
        }
        let has =
            |(data, events): &(u64, u32)| seen.get(data).is_some_and(|e| e & events == *events);
        if expected.iter().all(has) || sys::now_ns() - begin > 5_000_000_000 {
            break;
        }
    }
    Ok(seen.into_iter().map(|(data, events)| (events, data)).collect())
}

/// As [`once_more`], beside a level-triggered registration (with `data`) that is reported each
/// time.
fn once_more_beside(t: &Ctx, label: &str, set: Fd, fd: Fd, data: u64) {
    let mut events = sys::epoll_wait(set, 8, 5000);
    if let Ok(list) = &events
        && list.len() > 1
        && list.iter().all(|(seen, _)| seen & !(sys::await_events(fd, *seen as i16, 0) as u32) == 0)
    {
        events = sys::epoll_wait(set, 8, 5000);
    }
    assert!(
        events.as_ref().is_ok_and(|list| list.iter().any(|e| e.1 == data)),
        "{label}: {events:x?}"
    );
    show(t, label, events);
}

/// A connection with one unread byte, which comes by these words to its client, in three sets: `a`
/// level, `b` edge, `c` once.
fn all_three(t: &Ctx, others: usize, before: &[&str]) -> Fd {
    let fd = t.server();
    let (a, b, c) = (set(), set(), set());
    add(a, fd, IN, 1);
    (0..others).for_each(|_| add(set(), fd, IN, 9));
    before.iter().for_each(|word| ask(t, word));
    await_bytes(fd, 1);
    add(b, fd, IN | ET, 2);
    add(c, fd, IN | ONESHOT, 3);
    show(t, "a", sys::epoll_wait(a, 8, 5000));
    show(t, "b", sys::epoll_wait(b, 8, 5000));
    show(t, "c", sys::epoll_wait(c, 8, 5000));
    show(t, "a again", sys::epoll_wait(a, 8, 5000));
    once_more(t, "b once", b, fd);
    show(t, "c once", sys::epoll_wait(c, 8, 20));
    t.log("mod b", sys::epoll_ctl(b, MOD, fd, IN | ET, 4));
    t.log("mod c", sys::epoll_ctl(c, MOD, fd, IN | ONESHOT, 5));
    show(t, "b", sys::epoll_wait(b, 8, 5000));
    show(t, "c", sys::epoll_wait(c, 8, 5000));
    ask(t, "b0");
    await_bytes(fd, 2);
    show(t, "a, more", sys::epoll_wait(a, 8, 5000));
    show(t, "b, more", sys::epoll_wait(b, 8, 5000));
    show(t, "c, more", sys::epoll_wait(c, 8, 20));
    t.log_text("bytes", &recv_exact(fd, 2));
    show(t, "a, read", sys::epoll_wait(a, 8, 20));
    once_more(t, "b, read", b, fd);
    t.log("mod c", sys::epoll_ctl(c, MOD, fd, IN | ONESHOT, 6));
    show(t, "c, read", sys::epoll_wait(c, 8, 20));
    t.log("del a", sys::epoll_ctl(a, DEL, fd, 0, 0));
    ask(t, "b0");
    show(t, "b, new", sys::epoll_wait(b, 8, 5000));
    show(t, "c, new", sys::epoll_wait(c, 8, 5000));
    show(t, "a, deleted", sys::epoll_wait(a, 8, 20));
    fd
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "epoll/level",
            "LT: reported as long as bytes are there, not before, not after; data untouched",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 0xDEAD_BEEF_CAFE_F00D);
                show(t, "quiet", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                show(t, "again", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                await_bytes(fd, 2);
                show(t, "more", sys::epoll_wait(e, 8, 0));
                recv_exact(fd, 1);
                show(t, "one left", sys::epoll_wait(e, 8, 0));
                recv_exact(fd, 1);
                show(t, "none left", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                show(t, "new data", sys::epoll_wait(e, 8, 5000));
                show(t, "del", sys::epoll_ctl(e, DEL, fd, 0, 0).map(|_| vec![]));
                show(t, "deleted", sys::epoll_wait(e, 8, 0));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/edge",
            "ET: once for each arrival, also when bytes are left over; once at ADD and at MOD",
            |t| {
                let fd = t.server();
                let e = set();
                ask(t, "b0");
                await_bytes(fd, 1);
                add(e, fd, IN | ET, 1);
                show(t, "at ADD", sys::epoll_wait(e, 8, 5000));
                no_edge(t, "once", e, fd);
                ask(t, "b0");
                await_bytes(fd, 2);
                show(t, "new arrival", sys::epoll_wait(e, 8, 5000));
                no_edge(t, "once", e, fd);
                recv_exact(fd, 1);
                no_edge(t, "reading is no edge", e, fd);
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | ET, 2));
                show(t, "at MOD", sys::epoll_wait(e, 8, 5000));
                recv_exact(fd, 1);
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | ET, 3));
                show(t, "MOD with nothing", sys::epoll_wait(e, 8, 20));
                ask(t, "s0");
                sys::await_events(fd, libc::POLLRDHUP, 5000);
                show(t, "eof", sys::epoll_wait(e, 8, 5000));
                no_edge(t, "once", e, fd);
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/edge-drain-loop",
            "ET with a non-blocking drain loop over a long stream: nothing is missed",
            |t| {
                let fd = t.server();
                let e = set();
                sys::set_nonblocking(fd, true);
                add(e, fd, IN | RDHUP | ET, 1);
                let mut receiver = t.receiver(fd, 1);
                'events: loop {
                    let events = sys::epoll_wait(e, 8, 10_000).expect("epoll_wait");
                    assert!(
                        !events.is_empty(),
                        "no event after {} bytes",
                        receiver.received
                    );
                    loop {
                        match receiver.step(3000, 0) {
                            Ok(0) => break 'events,
                            Ok(_) => {}
                            Err(E(libc::EAGAIN)) => break,
                            Err(e) => panic!("recv: {e:?}"),
                        }
                    }
                }
                t.log("stream", receiver.verdict());
            },
            |t| {
                let fd = t.client();
                let mut sender = t.sender(fd, 1);
                while sender.sent < 3_000_000 {
                    sender.step(5000, 0).expect("send");
                }
                send_all(fd, &sender.upcoming(3_010_000 - sender.sent as usize));
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "epoll/edge-out",
            "ET with EPOLLOUT: once at ADD, then after the socket was full and has room again",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, OUT | ET, 1);
                show(t, "at ADD", sys::epoll_wait(e, 8, 5000));
                no_edge(t, "once", e, fd);
                let n = fill(fd);
                // Room that came while filling is an edge of its own.
                let _ = sys::epoll_wait(e, 8, 0);
                show(t, "full", sys::epoll_wait(e, 8, 20));
                t.tell("d0");
                t.tell(&n.to_string());
                show(t, "room", sys::epoll_wait(e, 8, 10_000));
                t.wait("did");
                t.log("send", sys::send(fd, b"x", MSG_DONTWAIT));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/level-out",
            "LT with EPOLLOUT: not reported while full, reported after the peer has read",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, OUT | IN, 1);
                show(t, "room", sys::epoll_wait(e, 8, 0));
                let n = fill(fd);
                show(t, "full", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                show(t, "full and data", sys::epoll_wait(e, 8, 5000));
                t.tell("d0");
                t.tell(&n.to_string());
                t.wait("did");
                t.log("mod", sys::epoll_ctl(e, MOD, fd, OUT, 2));
                show(t, "room again", sys::epoll_wait(e, 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/oneshot",
            "ONESHOT: one event, then none until MOD",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN | ONESHOT, 1);
                ask(t, "b0");
                show(t, "first", sys::epoll_wait(e, 8, 5000));
                show(t, "disabled", sys::epoll_wait(e, 8, 20));
                ask(t, "b0");
                await_bytes(fd, 2);
                show(t, "still disabled", sys::epoll_wait(e, 8, 20));
                t.log("add", sys::epoll_ctl(e, ADD, fd, IN, 2));
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, 3));
                show(t, "re-armed", sys::epoll_wait(e, 8, 5000));
                recv_exact(fd, 2);
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | ET | ONESHOT, 4));
                show(t, "nothing", sys::epoll_wait(e, 8, 20));
                ask(t, "b0");
                show(t, "after an arrival", sys::epoll_wait(e, 8, 5000));
                ask(t, "s0");
                sys::await_events(fd, libc::POLLRDHUP, 5000);
                show(t, "disabled for EOF too", sys::epoll_wait(e, 8, 20));
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | RDHUP, 5));
                show(t, "level", sys::epoll_wait(e, 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/rdhup",
            "EPOLLRDHUP when asked for, EPOLLIN at EOF, EPOLLHUP when both directions are closed",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, RDHUP, 1);
                show(t, "quiet", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                show(t, "data is not asked for", sys::epoll_wait(e, 8, 20));
                ask(t, "s0");
                show(t, "half-closed", sys::epoll_wait(e, 8, 5000));
                await_room(fd);
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | RDHUP | OUT, 2));
                show(t, "all", sys::epoll_wait(e, 8, 0));
                recv_exact(fd, 1);
                show(t, "eof", sys::epoll_wait(e, 8, 0));
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                await_room(fd);
                show(t, "both closed", sys::epoll_wait(e, 8, 5000));
                t.log("mod", sys::epoll_ctl(e, MOD, fd, 0, 3));
                show(t, "nothing asked", sys::epoll_wait(e, 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/error-without-asking",
            "a reset is EPOLLERR|EPOLLHUP whatever was asked for",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, 0, 1);
                t.tell("go");
                show(t, "reset", sys::epoll_wait(e, 8, 5000));
                await_room(fd);
                t.log("mod", sys::epoll_ctl(e, MOD, fd, IN | OUT | RDHUP, 1));
                show(t, "all", sys::epoll_wait(e, 8, 0));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                show(t, "after the error was taken", sys::epoll_wait(e, 8, 5000));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                sys::set_linger(fd, true, 0).expect("linger");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "epoll/mod",
            "MOD between reading and writing, as event loops do at each request",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                for i in 0..500u32 {
                    let events = sys::epoll_wait(e, 8, 10_000).expect("epoll_wait");
                    assert!(events.len() == 1 && events[0].0 == IN, "{events:x?} at {i}");
                    let ask = recv_exact(fd, 4);
                    sys::epoll_ctl(e, MOD, fd, OUT, 2).expect("MOD");
                    let events = sys::epoll_wait(e, 8, 10_000).expect("epoll_wait");
                    assert!(events == [(OUT, 2)], "{events:x?} at {i}");
                    send_all(fd, &ask);
                    sys::epoll_ctl(e, MOD, fd, IN, 1).expect("MOD");
                }
                t.say("500 requests");
            },
            |t| {
                let fd = t.client();
                for i in 0..500u32 {
                    send_all(fd, &i.to_ne_bytes());
                    assert!(recv_exact(fd, 4) == i.to_ne_bytes());
                }
                t.say("500 answers");
            },
        ),
        pair(
            "epoll/del-and-add-each-time",
            "DEL and ADD at each request on both sides (redis-benchmark does it)",
            |t| {
                let fd = t.server();
                let e = set();
                for i in 0..1000u32 {
                    add(e, fd, IN, u64::from(i));
                    let events = sys::epoll_wait(e, 8, 10_000).expect("epoll_wait");
                    assert!(events == [(IN, u64::from(i))], "{events:x?} at {i}");
                    let ask = recv_exact(fd, 4);
                    sys::epoll_ctl(e, DEL, fd, 0, 0).expect("DEL");
                    add(e, fd, OUT, 7);
                    let events = sys::epoll_wait(e, 8, 10_000).expect("epoll_wait");
                    assert!(events == [(OUT, 7)], "{events:x?} at {i}");
                    send_all(fd, &ask);
                    sys::epoll_ctl(e, DEL, fd, 0, 0).expect("DEL");
                }
                t.say("1000 requests");
            },
            |t| {
                let fd = t.client();
                let e = set();
                for i in 0..1000u32 {
                    send_all(fd, &i.to_ne_bytes());
                    add(e, fd, IN, 1);
                    assert!(sys::epoll_wait(e, 8, 10_000) == Ok(vec![(IN, 1)]));
                    sys::epoll_ctl(e, DEL, fd, 0, 0).expect("DEL");
                    assert!(recv_exact(fd, 4) == i.to_ne_bytes());
                }
                t.say("1000 answers");
            },
        ),
        pair(
            "epoll/errors",
            "EEXIST, ENOENT, EBADF, EINVAL, EPERM, EFAULT on a connection, exactly",
            |t| {
                let fd = t.server();
                let e = set();
                t.log("MOD before ADD", sys::epoll_ctl(e, MOD, fd, IN, 1));
                t.log("DEL before ADD", sys::epoll_ctl(e, DEL, fd, 0, 0));
                t.log("ADD", sys::epoll_ctl(e, ADD, fd, IN, 1));
                t.log("ADD again", sys::epoll_ctl(e, ADD, fd, IN, 1));
                t.log("ADD with a null event", sys::epoll_ctl_null(e, ADD, fd));
                t.log("MOD with a null event", sys::epoll_ctl_null(e, MOD, fd));
                t.log("bad operation", sys::epoll_ctl(e, 9, fd, IN, 1));
                t.log(
                    "MOD to EXCLUSIVE",
                    sys::epoll_ctl(e, MOD, fd, IN | EXCLUSIVE, 1),
                );
                t.log("DEL with a null event", sys::epoll_ctl_null(e, DEL, fd));
                t.log("DEL again", sys::epoll_ctl(e, DEL, fd, 0, 0));
                t.log(
                    "ADD EXCLUSIVE with ONESHOT",
                    sys::epoll_ctl(e, ADD, fd, IN | EXCLUSIVE | ONESHOT, 1),
                );
                t.log(
                    "ADD EXCLUSIVE",
                    sys::epoll_ctl(e, ADD, fd, IN | EXCLUSIVE, 1),
                );
                t.log("MOD of EXCLUSIVE", sys::epoll_ctl(e, MOD, fd, IN, 1));
                t.log("set is a connection", sys::epoll_ctl(fd, ADD, e, IN, 1));
                t.log(
                    "wait on a connection",
                    sys::epoll_wait(fd, 8, 0).map(|v| v.len()),
                );
                t.log("set is bad", sys::epoll_ctl(-1, ADD, fd, IN, 1));
                t.log("fd is bad", sys::epoll_ctl(e, ADD, 999, IN, 1));
                t.log("the set itself", sys::epoll_ctl(e, ADD, e, IN, 1));
                let file = sys::anonymous_file(b"x").expect("file");
                t.log("a file", sys::epoll_ctl(e, ADD, file, IN, 1));
                t.log("maxevents 0", sys::epoll_wait(e, 0, 0).map(|v| v.len()));
                t.log("wait on -1", sys::epoll_wait(-1, 8, 0).map(|v| v.len()));
                t.log("epoll_create(0)", sys::epoll_create(0));
                t.log("epoll_create1(bad)", sys::epoll_create1(12345));
                t.log("after all that", sys::epoll_wait(e, 8, 0).map(|v| v.len()));
                let other = set();
                t.log("nested", sys::epoll_ctl(e, ADD, other, IN, 1));
                t.log("a loop", sys::epoll_ctl(other, ADD, e, IN, 1));
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        pair(
            "epoll/mixed-kinds",
            "pipes, eventfd, timerfd, signalfd, a listener and connections in one set: each is reported",
            |t| {
                let fds = t.servers(2);
                let listener = t.listener();
                let [from, to] = sys::pipe();
                let event = sys::eventfd(0);
                sys::block_signals(&[libc::SIGUSR2]).expect("block");
                let signal = sys::signalfd(libc::SIGUSR2);
                let timer = sys::timerfd(1);
                let e = set();
                for (fd, data) in [
                    (fds[0], 1),
                    (fds[1], 2),
                    (listener, 3),
                    (from, 4),
                    (event, 5),
                    (signal, 6),
                    (timer, 7),
                ] {
                    add(e, fd, IN, data);
                }
                show(t, "the timer", sys::epoll_wait(e, 16, 5000));
                sys::write(to, b"x").expect("write");
                sys::write(event, &1u64.to_ne_bytes()).expect("write");
                sys::kill(sys::getpid(), libc::SIGUSR2).expect("kill");
                ask(t, "b1");
                await_bytes(fds[1], 1);
                show(t, "five", collect(e, 16, 5));
                let near = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(near, sys::getsockname(listener).expect("name")).expect("connect");
                ask(t, "b0");
                await_bytes(fds[0], 1);
                sys::await_events(listener, libc::POLLIN, 5000);
                show(t, "seven", collect(e, 16, 7));
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
        pair(
            "epoll/fairness",
            "maxevents smaller than the ready set: connections that are not read, and kernel fds, all get their turn",
            |t| {
                let fds = t.servers(8);
                let e = set();
                for (i, fd) in fds.iter().enumerate() {
                    add(e, *fd, IN, i as u64);
                }
                for i in 0..4 {
                    add(e, sys::eventfd(1), IN, 100 + i);
                }
                for (i, fd) in fds.iter().enumerate() {
                    ask(t, &format!("b{i}"));
                    await_bytes(*fd, 1);
                }
                for max in [1, 2, 5, 64] {
                    show(
                        t,
                        &format!("all served, {max} at a time"),
                        collect(e, max, 12),
                    );
                }
                t.tell("x");
            },
            |t| obedient(t, 8),
        ),
        pair(
            "epoll/fairness-to-kernel-fds",
            "one connection that is not read and many kernel fds: they get their turn at small maxevents",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                for i in 0..20 {
                    add(e, sys::eventfd(1), IN, 100 + i);
                }
                ask(t, "b0");
                await_bytes(fd, 1);
                for max in [2, 3, 8] {
                    show(t, &format!("{max} at a time"), collect(e, max, 21));
                }
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/one-at-a-time",
            "maxevents 1 and time between the calls: a kernel fd that is always ready does not keep a connection out",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                add(e, sys::eventfd(1), IN, 2);
                ask(t, "b0");
                await_bytes(fd, 1);
                let mut seen = [0; 2];
                for _ in 0..40 {
                    for (_, data) in sys::epoll_wait(e, 1, 0).expect("epoll_wait") {
                        seen[data as usize - 1] += 1;
                    }
                    let _ = sys::poll(&[], 1);
                }
                t.log("a fair share", seen.map(|n| n > 10));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/busy-kernel-fd-starves-nobody",
            "an eventfd that is always ready and a connection that is always ready are both served",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                add(e, sys::eventfd(1), IN, 2);
                let mut got = 0;
                let mut kernel = 0;
                while got < 2000 {
                    let events = sys::epoll_wait(e, 1, 10_000).expect("epoll_wait");
                    for (_, data) in events {
                        if data == 2 {
                            kernel += 1;
                        } else {
                            got += recv_exact(fd, 1).len();
                            send_all(fd, b"k");
                        }
                    }
                }
                t.log("bytes", got);
                t.log("kernel fd served", kernel > 100);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..2000 {
                    send_all(fd, b"p");
                    recv_exact(fd, 1);
                }
                t.meet("end");
            },
        )
        .skip(&[("looks", "both ends would keep the CPU all the time")]),
        pair(
            "epoll/nested",
            "an epoll fd in poll, in select and in another epoll set",
            |t| {
                let fd = t.server();
                let (inner, outer) = (set(), set());
                add(inner, fd, IN, 1);
                add(outer, inner, IN, 2);
                t.is_back(fd);
                let sets = sys::Sets {
                    read: vec![inner],
                    ..sys::Sets::default()
                };
                show(t, "quiet", sys::epoll_wait(outer, 8, 0));
                t.log(
                    "poll",
                    sys::poll_names(sys::await_events(inner, libc::POLLIN, 0)),
                );
                t.log(
                    "select",
                    sys::select(inner + 1, &sets, Some(0)).map(|r| r.0),
                );
                ask(t, "b0");
                show(t, "outer", sys::epoll_wait(outer, 8, 5000));
                t.log(
                    "poll",
                    sys::poll_names(sys::await_events(inner, libc::POLLIN, 5000)),
                );
                t.log(
                    "select",
                    sys::select(inner + 1, &sets, Some(5000)).map(|r| r.0),
                );
                show(t, "inner", sys::epoll_wait(inner, 8, 0));
                recv_exact(fd, 1);
                show(t, "outer, read", sys::epoll_wait(outer, 8, 0));
                t.log(
                    "poll, read",
                    sys::poll_names(sys::await_events(inner, libc::POLLIN, 0)),
                );
                t.tell("b0");
                show(t, "outer waits", sys::epoll_wait(outer, 8, 5000));
                t.wait("did");
                recv_exact(fd, 1);
                t.tell("b0");
                t.log(
                    "poll waits",
                    sys::poll_names(sys::await_events(inner, libc::POLLIN, 5000)),
                );
                t.wait("did");
                t.went_back(fd, "several-epoll-sets");
                t.tell("x");
            },
            |t| obedient(t, 1),
        )
        .demoted(),
        pair(
            "epoll/duplicate-fds",
            "a connection and its dup in one set are two registrations",
            |t| {
                let fd = t.server();
                let twin = sys::dup(fd).expect("dup");
                let e = set();
                add(e, fd, IN, 1);
                add(e, twin, IN | OUT, 2);
                t.is_back(fd);
                ask(t, "b0");
                await_bytes(fd, 1);
                show(t, "both", sys::epoll_wait(e, 8, 0));
                t.log("del one", sys::epoll_ctl(e, DEL, fd, 0, 0));
                show(t, "the other", sys::epoll_wait(e, 8, 0));
                t.log("close the deleted one", sys::close(fd));
                show(t, "the other", sys::epoll_wait(e, 8, 0));
                t.log("recv", sys::recv(twin, &mut [0; 8], 0));
                ask(t, "b0");
                await_bytes(twin, 1);
                show(t, "data", sys::epoll_wait(e, 8, 0));
                t.went_back(twin, "duplicate-in-epoll");
                t.tell("x");
            },
            |t| obedient(t, 1),
        )
        .demoted(),
        pair(
            "epoll/unread-and-a-second-set",
            "a connection with unread bytes is put into further sets: each reports them; and no longer when they are read",
            |t| {
                let fd = all_three(t, 0, &["b0"]);
                t.still_fast(fd);
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/unread-and-a-fifth-set",
            "the same where it is in four sets by then",
            |t| {
                let fd = all_three(t, 3, &["b0"]);
                t.went_back(fd, "several-epoll-sets");
                t.tell("x");
            },
            |t| obedient(t, 1),
        )
        .demoted(),
        pair(
            "epoll/left-in-the-ring",
            "the same when the peer has changed its path first: the bytes are where the kernel's set does not see them",
            |t| {
                all_three(t, 3, &["b0", "l0"]);
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/left-in-the-ring-and-a-second-set",
            "the same where it is in one set by then",
            |t| {
                all_three(t, 0, &["b0", "l0"]);
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/left-in-the-ring-dup",
            "the same with duplicates in one set",
            |t| {
                let fd = t.server();
                let (second, third) = (sys::dup(fd).expect("dup"), sys::dup(fd).expect("dup"));
                let e = set();
                add(e, fd, IN, 1);
                ask(t, "b0");
                ask(t, "b0");
                ask(t, "l0");
                await_bytes(fd, 2);
                add(e, second, IN | OUT | ET, 2);
                add(e, third, IN | ONESHOT, 3);
                show(t, "all", collect_until(e, &[(1, IN), (2, IN | OUT), (3, IN)]));
                once_more_beside(t, "level", e, fd, 1);
                t.log("twice", sys::epoll_ctl(e, ADD, second, IN, 9));
                t.log("mod", sys::epoll_ctl(e, MOD, third, IN | ONESHOT, 4));
                show(t, "armed", collect_until(e, &[(1, IN), (4, IN)]));
                t.log("del", sys::epoll_ctl(e, DEL, fd, 0, 0));
                t.log("del again", sys::epoll_ctl(e, DEL, fd, 0, 0));
                recv_exact(third, 1);
                once_more(t, "no level any more", e, fd);
                t.log("mod", sys::epoll_ctl(e, MOD, second, IN, 5));
                show(t, "one left", sys::epoll_wait(e, 8, 5000));
                show(t, "still", sys::epoll_wait(e, 8, 0));
                recv_exact(second, 1);
                show(t, "read", sys::epoll_wait(e, 8, 20));
                ask(t, "b0");
                show(t, "new data", sys::epoll_wait(e, 8, 5000));
                t.log("mod", sys::epoll_ctl(e, MOD, third, IN | ONESHOT, 6));
                show(t, "by both", collect_until(e, &[(5, IN), (6, IN)]));
                recv_exact(fd, 1);
                show(t, "read", sys::epoll_wait(e, 8, 20));
                ask(t, "s0");
                show(t, "eof", sys::epoll_wait(e, 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/left-in-the-ring-close",
            "the descriptor that is registered is closed: its registration goes on, and so does that of a duplicate",
            |t| {
                let fds = t.servers(3);
                let e = set();
                let mut twins = Vec::new();
                for (i, fd) in fds.iter().enumerate() {
                    let twin = sys::dup(*fd).expect("dup");
                    twins.push(twin);
                    add(e, *fd, if i == 1 { IN | ET } else { IN }, i as u64);
                    ask(t, &format!("b{i}"));
                    ask(t, &format!("b{i}"));
                    ask(t, &format!("l{i}"));
                    await_bytes(*fd, 2);
                }
                add(e, twins[2], IN, 3);
                for fd in &fds {
                    t.log("close", sys::close(*fd));
                }
                show(t, "all", collect_until(e, &[(0, IN), (1, IN), (2, IN), (3, IN)]));
                recv_exact(twins[0], 1);
                recv_exact(twins[2], 2);
                t.log("mod by the old number", sys::epoll_ctl(e, MOD, fds[0], IN, 8));
                t.log("a new one under it", sys::eventfd(0) == fds[0]);
                t.log("is not there", sys::epoll_ctl(e, MOD, fds[0], IN, 8));
                once_more_beside(t, "the first has more", e, twins[1], 0);
                recv_exact(twins[0], 1);
                recv_exact(twins[1], 1);
                once_more(t, "nothing due", e, twins[1]);
                ask(t, "b1");
                show(t, "the edge", sys::epoll_wait(e, 8, 5000));
                recv_exact(twins[1], 2);
                ask(t, "b1");
                show(t, "another edge", sys::epoll_wait(e, 8, 5000));
                recv_exact(twins[1], 1);
                ask(t, "b0");
                show(t, "again", sys::epoll_wait(e, 8, 5000));
                recv_exact(twins[0], 1);
                ask(t, "b2");
                show(t, "both", collect_until(e, &[(2, IN), (3, IN)]));
                t.log("del", sys::epoll_ctl(e, DEL, twins[2], 0, 0));
                once_more_beside(t, "the closed one", e, twins[2], 2);
                for twin in twins {
                    t.log("close", sys::close(twin));
                }
                show(t, "gone", sys::epoll_wait(e, 8, 20));
                t.tell("x");
            },
            |t| obedient(t, 3),
        ),
        pair(
            "epoll/left-in-the-ring-threads",
            "threads that already wait in a set hear of a connection that is put into it with bytes left in the ring",
            |t| {
                let fd = t.server();
                let (a, b) = (set(), set());
                add(a, fd, IN | ET, 1);
                ask(t, "b0");
                ask(t, "l0");
                await_bytes(fd, 1);
                show(t, "first", sys::epoll_wait(a, 8, 5000));
                let waiter = blocked(move || sys::epoll_wait(b, 8, 10_000));
                add(b, fd, IN, 2);
                show(t, "woke", waiter.join().expect("thread"));
                t.log("mod", sys::epoll_ctl(b, MOD, fd, OUT << 8, 2));
                let waiter = blocked(move || sys::epoll_wait(b, 8, 10_000));
                t.log("mod", sys::epoll_ctl(b, MOD, fd, IN, 3));
                show(t, "woke", waiter.join().expect("thread"));
                recv_exact(fd, 1);
                let waiter = blocked(move || sys::epoll_wait(b, 8, 10_000));
                ask(t, "b0");
                show(t, "woke", waiter.join().expect("thread"));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/left-in-the-ring-nested",
            "a set that is itself waited for, with a connection whose bytes are left in the ring",
            |t| {
                let fds = t.servers(2);
                let (inner, outer) = (set(), set());
                add(inner, fds[0], IN, 1);
                for (i, fd) in fds.iter().enumerate() {
                    ask(t, &format!("b{i}"));
                    ask(t, &format!("l{i}"));
                    await_bytes(*fd, 1);
                }
                show(t, "inner", sys::epoll_wait(inner, 8, 5000));
                add(outer, inner, IN, 2);
                show(t, "outer", sys::epoll_wait(outer, 8, 5000));
                show(t, "inner", sys::epoll_wait(inner, 8, 0));
                show(t, "outer", sys::epoll_wait(outer, 8, 0));
                t.log(
                    "poll",
                    sys::poll_names(sys::await_events(inner, libc::POLLIN, 0)),
                );
                recv_exact(fds[0], 1);
                show(t, "inner, read", sys::epoll_wait(inner, 8, 0));
                show(t, "outer, read", sys::epoll_wait(outer, 8, 0));
                add(inner, fds[1], IN, 3);
                show(t, "outer, another", sys::epoll_wait(outer, 8, 5000));
                show(t, "inner, another", sys::epoll_wait(inner, 8, 0));
                show(t, "outer", sys::epoll_wait(outer, 8, 0));
                recv_exact(fds[1], 1);
                show(t, "inner, read", sys::epoll_wait(inner, 8, 0));
                show(t, "outer, read", sys::epoll_wait(outer, 8, 20));
                for (i, fd) in fds.iter().enumerate() {
                    t.tell(&format!("b{i}"));
                    show(t, "outer waits", sys::epoll_wait(outer, 8, 5000));
                    t.wait("did");
                    show(t, "inner", sys::epoll_wait(inner, 8, 5000));
                    recv_exact(*fd, 1);
                }
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
        pair(
            "epoll/left-in-the-ring-child",
            "a forked child puts a connection with bytes left in the ring into a set of its own",
            |t| {
                let fd = t.server();
                ask(t, "b0");
                ask(t, "l0");
                await_bytes(fd, 1);
                let child = t.child(|_| {
                    let e = set();
                    add(e, fd, IN, 1);
                    let first = sys::epoll_wait(e, 8, 5000);
                    let again = sys::epoll_wait(e, 8, 0);
                    recv_exact(fd, 1);
                    let read = sys::epoll_wait(e, 8, 20);
                    format!("{first:x?} {again:x?} {read:x?}")
                });
                t.log("child", child.join());
                let e = set();
                add(e, fd, IN, 2);
                show(t, "quiet", sys::epoll_wait(e, 8, 20));
                ask(t, "b0");
                show(t, "parent", sys::epoll_wait(e, 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/peer-stopped",
            "unread bytes of a peer that is stopped while their connection is put into a second set come to both",
            |t| {
                let fd = t.server();
                let peer: i32 = t.hear().parse().expect("a pid");
                let (a, b) = (set(), set());
                add(a, fd, IN, 1);
                ask(t, "b0");
                await_bytes(fd, 1);
                t.log("stop", sys::kill(peer, libc::SIGSTOP));
                add(b, fd, IN | ET, 2);
                // The library gets the byte back from the peer, and may wait until that runs again;
                // what is reported is there.
                let waiter = blocked(move || {
                    let events = (sys::epoll_wait(a, 8, 10_000), sys::epoll_wait(b, 8, 10_000));
                    (events, sys::recv(fd, &mut [0; 8], MSG_DONTWAIT))
                });
                t.log("continue", sys::kill(peer, libc::SIGCONT));
                t.log("came", waiter.join().expect("thread"));
                show(t, "read", sys::epoll_wait(a, 8, 20));
                once_more(t, "read", b, fd);
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                t.tell("x");
            },
            |t| obedient_with_pid(t, 1),
        ),
        pair(
            "epoll/peer-stopped-and-leaves",
            "the same when the peer changes its path by itself in the moment in which it goes on",
            |t| {
                const N: usize = 8;
                let fds = t.servers(N);
                let peer: i32 = t.hear().parse().expect("a pid");
                let (a, b) = (set(), set());
                for (i, fd) in fds.iter().enumerate() {
                    add(a, *fd, IN | ET, i as u64);
                    ask(t, "b");
                    await_bytes(*fd, 1);
                }
                let _ = collect_until(a, &(0..N as u64).map(|i| (i, IN)).collect::<Vec<_>>());
                t.log("stop", sys::kill(peer, libc::SIGSTOP));
                for (i, fd) in fds.iter().enumerate() {
                    send_all(*fd, b"?");
                    add(b, *fd, IN | ET, i as u64);
                }
                let waiter = std::thread::spawn(move || {
                    let mut got = 0;
                    while got < N {
                        let events = sys::epoll_wait(b, 2, 10_000).expect("epoll_wait");
                        assert!(!events.is_empty(), "{got} came");
                        for (_, i) in events {
                            got += sys::recv(fds[i as usize], &mut [0; 8], MSG_DONTWAIT).unwrap_or(0);
                        }
                    }
                    got
                });
                t.log("continue", sys::kill(peer, libc::SIGCONT));
                t.log("came", waiter.join().expect("thread"));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(8);
                let (first, second) = (set(), set());
                for fd in &fds {
                    add(first, *fd, 0, 1);
                }
                t.tell(&sys::getpid().to_string());
                for fd in &fds {
                    t.wait("b");
                    send_all(*fd, b"!");
                    t.tell("did");
                }
                let mut left = fds;
                while !left.is_empty() {
                    left.retain(|fd| {
                        let asked = sys::recv(*fd, &mut [0; 1], MSG_DONTWAIT) == Ok(1);
                        if asked {
                            add(second, *fd, 0, 1);
                        }
                        !asked
                    });
                }
                t.meet("end");
            },
        ),
        pair(
            "epoll/duplicate-before-promotion",
            "duplicates registered while the connection is on TCP; one is deleted, one closed; the rest holds after a promotion",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let (a, b) = (set(), set());
                let fds: Vec<Fd> = (0..4)
                    .map(|i| {
                        let fd = sys::accept(listener).expect("accept");
                        let twin = sys::dup(fd).expect("dup");
                        match i {
                            // One registration is left, of the two made.
                            0 => {
                                add(a, fd, IN, 0);
                                add(a, twin, IN, 10);
                                sys::epoll_ctl(a, DEL, fd, 0, 0).expect("DEL");
                            }
                            1 => {
                                add(a, fd, IN, 1);
                                add(b, fd, IN, 11);
                                sys::epoll_ctl(b, DEL, fd, 0, 0).expect("DEL");
                            }
                            // The registered number is closed.
                            2 => {
                                add(a, fd, IN, 2);
                                sys::close(fd).expect("close");
                            }
                            _ => {
                                add(a, fd, IN, 3);
                                add(b, fd, IN, 13);
                                sys::close(b).expect("close");
                            }
                        }
                        t.warm_server(twin);
                        twin
                    })
                    .collect();
                show(t, "quiet", sys::epoll_wait(a, 8, 0));
                for (i, fd) in fds.iter().enumerate() {
                    ask(t, &format!("b{i}"));
                    show(t, "data", sys::epoll_wait(a, 8, 5000));
                    recv_exact(*fd, 1);
                }
                show(t, "quiet", sys::epoll_wait(a, 8, 0));
                t.tell("x");
            },
            |t| obedient(t, 4),
        )
        // What was registered twice stays on TCP.
        .any_path(),
        pair(
            "epoll/moved-between-sets",
            "deleted from one set and added to another, back and forth, and by a duplicate: it stays where it is fast",
            |t| {
                let fd = t.server();
                let twin = sys::dup(fd).expect("dup");
                let (a, b) = (set(), set());
                for _ in 0..50 {
                    for (set, fd) in [(a, fd), (b, fd), (a, twin), (b, twin)] {
                        add(set, fd, IN, fd as u64);
                        t.tell("b0");
                        let events = sys::epoll_wait(set, 8, 5000);
                        assert!(events == Ok(vec![(IN, fd as u64)]), "{events:x?}");
                        recv_exact(fd, 1);
                        t.wait("did");
                        sys::epoll_ctl(set, DEL, fd, 0, 0).expect("DEL");
                    }
                }
                t.still_fast(fd);
                show(t, "a", sys::epoll_wait(a, 8, 20));
                show(t, "b", sys::epoll_wait(b, 8, 20));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/close-without-del",
            "a closed connection leaves the set; a new one under its number is not registered",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let e = set();
                let first = t.accept(listener);
                add(e, first, IN | RDHUP, 1);
                t.tell("data");
                t.wait("sent");
                await_bytes(first, 4);
                show(t, "before", sys::epoll_wait(e, 8, 0));
                t.log("close", sys::close(first));
                show(t, "closed", sys::epoll_wait(e, 8, 0));
                t.log("mod", sys::epoll_ctl(e, MOD, first, IN, 1));
                t.tell("next");
                let second = t.accept(listener);
                t.log("same number", first == second);
                t.tell("data");
                t.wait("sent");
                await_bytes(second, 4);
                show(t, "not registered", sys::epoll_wait(e, 8, 20));
                t.log("mod", sys::epoll_ctl(e, MOD, second, IN, 2));
                t.log("add", sys::epoll_ctl(e, ADD, second, IN, 2));
                show(t, "registered", sys::epoll_wait(e, 8, 0));
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let first = t.connect(addr);
                t.wait("data");
                send_all(first, b"data");
                t.tell("sent");
                t.wait("next");
                let second = t.connect(addr);
                t.wait("data");
                send_all(second, b"more");
                t.tell("sent");
                t.meet("end");
            },
        ),
        pair(
            "epoll/closed-with-a-dup-open",
            "close of a registered fd whose dup is open: the registration lives on with the old data, as in the kernel",
            |t| {
                let fd = t.server();
                let twin = sys::dup(fd).expect("dup");
                let e = set();
                add(e, fd, IN, 1);
                t.log("close", sys::close(fd));
                ask(t, "b0");
                await_bytes(twin, 1);
                show(t, "still reported", sys::epoll_wait(e, 8, 1000));
                t.log("del by the old number", sys::epoll_ctl(e, DEL, fd, 0, 0));
                t.log("recv", sys::recv(twin, &mut [0; 8], 0));
                show(t, "read", sys::epoll_wait(e, 8, 0));
                t.log("close the dup", sys::close(twin));
                show(t, "gone", sys::epoll_wait(e, 8, 0));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/threads-on-one-set",
            "four threads in epoll_wait on one set with ONESHOT: every request is answered once",
            |t| {
                let fds = Arc::new(t.servers(6));
                let e = set();
                for (i, fd) in fds.iter().enumerate() {
                    add(e, *fd, IN | ONESHOT, i as u64);
                }
                let answered = Arc::new(AtomicUsize::new(0));
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        let (fds, answered) = (fds.clone(), answered.clone());
                        std::thread::spawn(move || {
                            while answered.load(Ordering::Relaxed) < 1200 {
                                for (_, i) in sys::epoll_wait(e, 2, 50).expect("epoll_wait") {
                                    let fd = fds[i as usize];
                                    let ask = recv_exact(fd, 4);
                                    send_all(fd, &ask);
                                    answered.fetch_add(1, Ordering::Relaxed);
                                    sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, i).expect("MOD");
                                }
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.log("answered", answered.load(Ordering::Relaxed));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(6);
                for round in 0..200u32 {
                    for fd in &fds {
                        send_all(*fd, &round.to_ne_bytes());
                    }
                    for fd in &fds {
                        assert!(recv_exact(*fd, 4) == round.to_ne_bytes());
                    }
                }
                t.meet("end");
            },
        ),
        pair(
            "epoll/threads-edge",
            "two threads in epoll_wait on one ET set: one arrival wakes at least one, and no byte is missed",
            |t| {
                let fd = t.server();
                sys::set_nonblocking(fd, true);
                let e = set();
                add(e, fd, IN | ET, 1);
                let got = Arc::new(AtomicUsize::new(0));
                let threads: Vec<_> = (0..2)
                    .map(|_| {
                        let got = got.clone();
                        std::thread::spawn(move || {
                            while got.load(Ordering::Acquire) < 500 {
                                if sys::epoll_wait(e, 4, 50).expect("epoll_wait").is_empty() {
                                    continue;
                                }
                                while let Ok(n) = sys::recv(fd, &mut [0; 64], 0) {
                                    got.fetch_add(n, Ordering::AcqRel);
                                    sys::send(fd, &vec![7; n], MSG_NOSIGNAL).expect("send");
                                }
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.log("bytes", got.load(Ordering::Relaxed));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..500 {
                    send_all(fd, b"x");
                    recv_exact(fd, 1);
                }
                t.meet("end");
            },
        ),
        pair(
            "epoll/add-from-another-thread",
            "ADD and MOD by another thread wake a thread that already waits",
            |t| {
                let fds = t.servers(2);
                ask(t, "b0");
                ask(t, "b1");
                await_bytes(fds[0], 1);
                await_bytes(fds[1], 1);
                let e = set();
                add(e, fds[1], 0, 1);
                for step in 0..2 {
                    let waiter = blocked(move || sys::epoll_wait(e, 8, 10_000));
                    if step == 0 {
                        t.log("add", sys::epoll_ctl(e, ADD, fds[0], IN, 2));
                    } else {
                        t.log("mod", sys::epoll_ctl(e, MOD, fds[1], IN, 3));
                    }
                    show(t, "woke", waiter.join().expect("thread"));
                    t.log("del", sys::epoll_ctl(e, DEL, fds[0], 0, 0).is_ok());
                }
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
        pair(
            "epoll/interrupted",
            "EINTR in epoll_wait, also with SA_RESTART; epoll_pwait's mask is atomic",
            |t| {
                static SEEN: AtomicI32 = AtomicI32::new(0);
                extern "C" fn count(_: libc::c_int) {
                    SEEN.fetch_add(1, Ordering::Relaxed);
                }
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                sys::on_signal(SIGUSR1, count, 0).expect("sigaction");
                show(
                    t,
                    "wait",
                    interrupted(SIGUSR1, || sys::epoll_wait(e, 8, 10_000)),
                );
                sys::on_signal(SIGUSR1, count, libc::SA_RESTART).expect("sigaction");
                show(
                    t,
                    "wait for ever, SA_RESTART",
                    interrupted(SIGUSR1, || sys::epoll_wait(e, 8, -1)),
                );
                sys::block_signals(&[SIGUSR1]).expect("block");
                SEEN.store(0, Ordering::Relaxed);
                sys::tgkill(sys::gettid(), SIGUSR1).expect("tgkill");
                show(t, "blocked", sys::epoll_wait(e, 8, 20));
                show(t, "pwait without a mask", sys::epoll_pwait(e, 8, 20, None));
                t.log("not delivered", SEEN.load(Ordering::Relaxed));
                let open = sys::sigset(&[]);
                show(t, "pwait opens it", sys::epoll_pwait(e, 8, -1, Some(&open)));
                t.log("delivered", SEEN.load(Ordering::Relaxed));
                show(t, "quiet", sys::epoll_pwait(e, 8, 20, Some(&open)));
                ask(t, "b0");
                show(t, "data", sys::epoll_pwait(e, 8, -1, Some(&open)));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/timeouts",
            "0 at once, ms kept, -1 for ever, epoll_pwait2 in ns",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                let timed = |label: &str, low: u64, high: u64, wait: &dyn Fn() -> Events| {
                    let begin = sys::now_ns();
                    show(t, label, wait());
                    let ms = (sys::now_ns() - begin) / 1_000_000;
                    t.log("in time", (low..high).contains(&ms));
                };
                timed("0", 0, 50, &|| sys::epoll_wait(e, 8, 0));
                timed("90", 90, 1000, &|| sys::epoll_wait(e, 8, 90));
                timed("1", 1, 200, &|| sys::epoll_wait(e, 8, 1));
                timed("pwait 50", 50, 1000, &|| sys::epoll_pwait(e, 8, 50, None));
                timed("pwait2 30", 30, 1000, &|| {
                    sys::epoll_pwait2(e, 8, Some(sys::timespec_ms(30)))
                });
                timed("pwait2 0", 0, 50, &|| {
                    sys::epoll_pwait2(e, 8, Some(sys::timespec_ms(0)))
                });
                let bad = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: -1,
                };
                show(t, "pwait2 bad", sys::epoll_pwait2(e, 8, Some(bad)));
                t.tell("b0");
                show(t, "for ever", sys::epoll_wait(e, 8, -1));
                t.wait("did");
                recv_exact(fd, 1);
                t.tell("b0");
                show(t, "pwait2 for ever", sys::epoll_pwait2(e, 8, None));
                t.wait("did");
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/inherited-by-fork",
            "a set and its connection are used by a forked child; the parent uses them afterwards",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                t.tell("b0");
                let child = t.child(|_| {
                    let events = sys::epoll_wait(e, 8, 5000);
                    let byte = recv_exact(fd, 1);
                    format!("{events:x?} {byte:?} {:?}", sys::epoll_wait(e, 8, 0))
                });
                t.log("child", child.join());
                t.wait("did");
                show(t, "parent, quiet", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                show(t, "parent", sys::epoll_wait(e, 8, 5000));
                t.log_text("byte", &recv_exact(fd, 1));
                t.went_back(fd, "inherited-by-fork");
                t.tell("x");
            },
            |t| obedient(t, 1),
        )
        .demoted(),
        pair(
            "epoll/sets-made-after-fork",
            "a forked child closes what its parent has put into a set since",
            |t| {
                let fd = t.server();
                let [from, to] = sys::pipe();
                let child = t.child(|_| {
                    let _ = sys::read(from, &mut [0; 1]);
                    format!("{:?}", sys::close(fd))
                });
                // Their memory is the parent's alone.
                let sets: Vec<Fd> = (0..500).map(|_| set()).collect();
                add(sets[499], fd, IN, 1);
                sys::write(to, b"x").expect("write");
                t.log("child", child.join());
                ask(t, "b0");
                show(t, "data", sys::epoll_wait(sets[499], 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/registered-before-connected",
            "a socket registered before it is connected keeps its registration",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                t.wait("ready");
                send_all(fd, b"data");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0).is_ok());
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
                    .expect("socket");
                let e = set();
                add(e, fd, IN | OUT | ET, 0x1234);
                show(t, "fresh", sys::epoll_wait(e, 8, 0));
                t.log("connect", sys::connect(fd, addr).is_err());
                show(t, "connected", sys::epoll_wait(e, 8, 5000));
                t.log("error", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR));
                sys::set_nonblocking(fd, false);
                t.warm_client(fd);
                // The warm-up left edges of its own behind.
                let _ = sys::epoll_wait(e, 8, 0);
                t.tell("ready");
                await_bytes(fd, 4);
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                show(t, "once", sys::epoll_wait(e, 8, 0));
                t.log_text("data", &recv_exact(fd, 4));
            },
        ),
        pair(
            "epoll/changed-before-connected",
            "what is added, changed, taken out and moved to another set before the connect is what counts after it",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let (one, other) = (set(), set());
                add(one, fd, IN | OUT | ET, 1);
                t.log("twice", sys::epoll_ctl(one, ADD, fd, IN, 2));
                t.log("not here", sys::epoll_ctl(other, MOD, fd, IN, 2));
                t.log("out", sys::epoll_ctl(one, DEL, fd, 0, 0));
                t.log("out twice", sys::epoll_ctl(one, DEL, fd, 0, 0));
                add(other, fd, OUT, 3);
                t.log("changed", sys::epoll_ctl(other, MOD, fd, IN | RDHUP, 4));
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                show(t, "quiet", sys::epoll_wait(other, 8, 0));
                t.tell("go");
                await_bytes(fd, 4);
                show(t, "data", sys::epoll_wait(other, 8, 5000));
                show(t, "data again", sys::epoll_wait(other, 8, 5000));
                t.log("kernel", sys::epoll_ctl(one, MOD, fd, IN, 5));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
                show(t, "eof", sys::epoll_wait(other, 8, 5000));
                show(t, "left", sys::epoll_wait(one, 8, 0));
            },
        ),
        pair(
            "epoll/oneshot-before-connected",
            "ONESHOT before the connect: fires once, and again when it is armed again",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let e = set();
                add(e, fd, OUT | ONESHOT, 1);
                show(t, "unconnected", sys::epoll_wait(e, 8, 0));
                show(t, "fired", sys::epoll_wait(e, 8, 0));
                t.log("connect", sys::connect(fd, addr));
                t.log("armed", sys::epoll_ctl(e, MOD, fd, IN, 2));
                t.warm_client(fd);
                t.log("armed", sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, 3));
                t.tell("go");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                show(t, "fired", sys::epoll_wait(e, 8, 0));
                t.log("armed", sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, 4));
                show(t, "again", sys::epoll_wait(e, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        ),
        pair(
            "epoll/refused-and-connected",
            "a registered socket whose first connect is refused, and that is connected by the next",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let dead = t.listener();
                let nowhere = sys::getsockname(dead).expect("getsockname");
                sys::close(dead).expect("close");
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
                    .expect("socket");
                let e = set();
                add(e, fd, IN | OUT | RDHUP | ET, 7);
                show(t, "fresh", sys::epoll_wait(e, 8, 0));
                t.log("refused", sys::connect(fd, nowhere));
                show(t, "refused", sys::epoll_wait(e, 8, 5000));
                t.log(
                    "error",
                    sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR).map(E),
                );
                t.log("its end", sys::connect(fd, addr));
                t.log("connect", sys::connect(fd, addr).is_err());
                sys::await_events(fd, libc::POLLOUT, 5000);
                show(t, "connected", sys::epoll_wait(e, 8, 5000));
                t.log("error", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR));
                sys::set_nonblocking(fd, false);
                t.warm_client(fd);
                let _ = sys::epoll_wait(e, 8, 0);
                t.tell("go");
                await_bytes(fd, 4);
                let seen = sys::epoll_wait(e, 8, 5000).map(|list| list.iter().any(|(e, data)| e & IN != 0 && *data == 7));
                t.log("data", seen);
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        ),
        pair(
            "epoll/duplicated-before-connected",
            "a duplicate of a registered socket connects it; the number that was registered goes first or last",
            |t| {
                four_bytes(t);
                four_bytes(t);
            },
            |t| {
                for first in [true, false] {
                    let addr = t.hear_addr();
                    let old = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    let e = set();
                    add(e, old, IN, 8);
                    let new = sys::dup(old).expect("dup");
                    let (goes, stays) = if first { (new, old) } else { (old, new) };
                    t.log("connect", sys::connect(new, addr));
                    t.log("connected", sys::connect(old, addr));
                    if first {
                        t.log("close", sys::close(goes));
                    }
                    t.warm_client(stays);
                    if !first {
                        // (The kernel goes on reporting it.)
                        t.log("close", sys::close(goes));
                    }
                    t.tell("go");
                    await_bytes(stays, 4);
                    show(t, "data", sys::epoll_wait(e, 8, 5000));
                    t.log_text("data", &recv_exact(stays, 4));
                    t.tell("seen");
                    t.log("eof", sys::recv(stays, &mut [0; 8], 0));
                    t.log("close", sys::close(stays));
                }
            },
        ),
        pair(
            "epoll/registered-before-listening",
            "a socket in two sets before it is bound and listens: its connections are as any listener's",
            |t| {
                let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let (one, other) = (set(), set());
                add(one, listener, IN | ET, 9);
                add(other, listener, IN, 10);
                show(t, "fresh", sys::epoll_wait(one, 8, 0));
                t.log("bind", sys::bind(listener, sys::home()));
                t.log("listen", sys::listen(listener, 8));
                t.publish(listener);
                show(t, "somebody", sys::epoll_wait(other, 8, 5000));
                show(t, "somebody", sys::epoll_wait(one, 8, 5000));
                let fd = t.accept(listener);
                t.log("out", sys::epoll_ctl(one, DEL, listener, 0, 0));
                show(t, "nobody", sys::epoll_wait(other, 8, 0));
                add(one, fd, IN, 11);
                t.tell("go");
                show(t, "data", sys::epoll_wait(one, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"data");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "epoll/forked-before-connected",
            "a child connects the socket that its parent has registered: both hear of it",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let e = set();
                add(e, fd, IN, 1);
                let child = t.child(|_| format!("{:?}", sys::connect(fd, addr)));
                t.log("child", child.join());
                t.warm_client(fd);
                t.tell("go");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        )
        .any_path()
        .demoted(),
        pair(
            "epoll/forked-then-connected",
            "a registered socket, or one that has a duplicate, is connected when its process has forked",
            |t| {
                four_bytes(t);
                four_bytes(t);
            },
            |t| {
                for registered in [true, false] {
                    let addr = t.hear_addr();
                    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    let e = set();
                    let twin = if registered {
                        add(e, fd, IN, 1);
                        None
                    } else {
                        Some(sys::dup(fd).expect("dup"))
                    };
                    let child = t.child(|_| String::from("forked"));
                    t.log("child", child.join());
                    t.log("connect", sys::connect(fd, addr));
                    t.warm_client(fd);
                    t.went_back(fd, "inherited-by-fork");
                    t.tell("go");
                    t.log_text("data", &recv_exact(twin.unwrap_or(fd), 4));
                    t.tell("seen");
                    t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                }
            },
        )
        .any_path()
        .demoted(),
        pair(
            "epoll/order",
            "connections of one client are reported in the order in which they were sent to",
            |t| in_order(t, IN, 20),
            send_in_order,
        )
        .skip(UNORDERED),
        pair(
            "epoll/order-edges",
            "the same edge-triggered, with room for half of them in each wait",
            |t| in_order(t, IN | ET, WORTH_SORTING / 2),
            send_in_order,
        )
        .skip(UNORDERED),
        pair(
            "epoll/order-of-processes",
            "connections of several clients are reported in the order in which these sent",
            |t| in_order(t, IN, 20),
            |t| {
                // Each is a client process of its own, which sends when its pipe says so.
                let addr = t.hear_addr();
                let mut children = Vec::new();
                let mut fds = Vec::new();
                for _ in 0..WORTH_SORTING {
                    let ([word, say], [heard, done]) = (sys::pipe(), sys::pipe());
                    let child = t.child(|t| {
                        let fd = t.connect(addr);
                        let mut byte = [0];
                        loop {
                            sys::write(done, &byte).expect("write");
                            if sys::read(word, &mut byte) != Ok(1) || byte[0] == 0 {
                                return "ended".into();
                            }
                            send_all(fd, &byte);
                        }
                    });
                    sys::read(heard, &mut [0]).expect("read");
                    children.push(child);
                    fds.push((say, heard));
                }
                for round in 0..ROUNDS {
                    t.wait("go");
                    for i in order_of(round) {
                        sys::write(fds[i].0, &[1 + i as u8]).expect("write");
                        sys::read(fds[i].1, &mut [0]).expect("read");
                    }
                    t.tell("sent");
                }
                t.wait("seen");
                for (say, _) in fds {
                    sys::write(say, &[0]).expect("write");
                }
                for child in children {
                    child.join();
                }
            },
        )
        .skip(UNORDERED),
        pair(
            "epoll/order-over-both-paths",
            "of two connections, each anywhere on its way to a ring, the first that is sent to is reported first: to a server that looks \
             later, and to one that sleeps",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let e = set();
                let mut wrong = Vec::new();
                for round in 0..2 * STAGES * STAGES {
                    let (second, first) = (stage(listener, e, 2), stage(listener, e, 1));
                    if round % 2 == 0 {
                        t.tell("go");
                        t.wait("sent");
                    }
                    let mut seen = Vec::new();
                    while seen.len() < 2 {
                        for (_, i) in sys::epoll_wait(e, 8, 5000).expect("epoll_wait") {
                            // (An event may come twice while a path moves.)
                            let fd = if i == 1 { first } else { second };
                            if sys::recv(fd, &mut [0; 1], MSG_DONTWAIT).is_ok() {
                                seen.push(i);
                            }
                        }
                    }
                    if seen != [1, 2] {
                        wrong.push((round, seen));
                    }
                    sys::close(first).expect("close");
                    sys::close(second).expect("close");
                    t.tell("done");
                }
                t.log("rounds in another order", wrong);
            },
            |t| {
                let addr = t.hear_addr();
                for round in 0..2 * STAGES * STAGES {
                    let (p, q) = (round / 2 % STAGES, round / 2 / STAGES);
                    let (second, first) = (reach(addr, p), reach(addr, q));
                    if round % 2 == 0 {
                        t.wait("go");
                    }
                    send_all(first, b"x");
                    send_all(second, b"x");
                    if round % 2 == 0 {
                        t.tell("sent");
                    }
                    t.wait("done");
                    sys::close(first).expect("close");
                    sys::close(second).expect("close");
                }
            },
        )
        .skip(&[
            BETWEEN_HOSTS,
            ("switch", "bytes that were in the ring when its sender left it are sent again over TCP, behind other connections'"),
        ]),
        pair(
            "epoll/order-of-the-first",
            "the first two events that a set ever has of a peer are reported in their order",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fds = [t.accept(listener), t.accept(listener)];
                let e = set();
                add(e, fds[0], IN | ET, 1);
                add(e, fds[1], IN | ET, 2);
                t.tell("go");
                t.wait("sent");
                let told = sys::epoll_wait(e, 8, 5000).expect("epoll_wait");
                t.log("in this order", told.iter().map(|(_, data)| *data).collect::<Vec<_>>());
                t.tell("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fds = [t.connect(addr), t.connect(addr)];
                t.wait("go");
                send_all(fds[1], b"x");
                send_all(fds[0], b"x");
                for fd in fds {
                    t.still_fast(fd);
                }
                t.tell("sent");
                t.wait("end");
            },
        )
        .skip(&[
            BETWEEN_HOSTS,
            ("switch", "bytes that were in the ring when its sender left it are sent again over TCP"),
        ]),
        pair(
            "epoll/order-in-a-small-buffer",
            "what was ready before is reported first by a set's first look, whatever its room",
            |t| {
                let fd = t.server();
                t.tell("go");
                await_bytes(fd, 1);
                let [reader, writer] = sys::pipe();
                sys::write(writer, b"x").expect("write");
                for room in 1..10 {
                    let e = set();
                    add(e, fd, IN, 1);
                    add(e, reader, IN, 2);
                    let told = sys::epoll_wait(e, room, 5000).expect("epoll_wait");
                    t.log(&format!("first of {room}"), told.first().map(|(_, data)| *data));
                    sys::close(e).expect("close");
                }
                t.tell("seen");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"a");
                t.wait("seen");
            },
        )
        .skip(&[BETWEEN_HOSTS]),
        pair(
            "epoll/order-of-a-new-connection",
            "a connection that has just been made is sent to before one that is long accelerated, and reported first",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let old = t.accept(listener);
                let e = set();
                add(e, old, IN, 1);
                let mut wrong = 0;
                for _ in 0..ROUNDS {
                    while !sys::epoll_wait(e, 20, 0).expect("epoll_wait").is_empty() {}
                    let new = sys::accept(listener).expect("accept");
                    add(e, new, IN, 2);
                    // (What is new in a set has the kernel asked. From here on only what the peer
                    // says does.)
                    while !sys::epoll_wait(e, 20, 0).expect("epoll_wait").is_empty() {}
                    t.tell("go");
                    t.wait("sent");
                    let mut seen = Vec::new();
                    while seen.len() < 2 {
                        for (_, i) in sys::epoll_wait(e, 8, 5000).expect("epoll_wait") {
                            seen.push(i);
                            recv_exact(if i == 1 { old } else { new }, 1);
                        }
                    }
                    wrong += usize::from(seen != [2, 1]);
                    sys::close(new).expect("close");
                }
                t.log("rounds in another order", wrong);
                t.still_fast(old);
                t.tell("end");
            },
            |t| {
                let addr = t.hear_addr();
                let old = t.connect(addr);
                for _ in 0..ROUNDS {
                    let new = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(new, addr).expect("connect");
                    t.wait("go");
                    send_all(new, b"a");
                    send_all(old, b"b");
                    t.tell("sent");
                    t.log("end", sys::recv(new, &mut [0; 1], 0));
                    sys::close(new).expect("close");
                }
                t.wait("end");
            },
        )
        .skip(UNORDERED),
        pair(
            "epoll/edges-with-ends",
            "bytes and the end behind them, for one edge: reported to a server that looks later with a full buffer, and to one that sleeps",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fds: Vec<Fd> = (0..ENDING).map(|_| t.accept(listener)).collect();
                let e = set();
                for (i, fd) in fds.iter().enumerate() {
                    add(e, *fd, IN | RDHUP | ET, i as u64);
                }
                while !sys::epoll_wait(e, 20, 0).expect("epoll_wait").is_empty() {}
                for ends in 0..ENDING {
                    let wait = move || sys::epoll_wait(e, ENDING, 5000 * sys::patience() as i32);
                    let asleep = (ends > 0).then(|| blocked(wait));
                    t.tell("go");
                    t.wait("sent");
                    let mut said = [0; ENDING];
                    let mut first = asleep.map(|thread| thread.join().expect("waiter"));
                    while said[ends] & RDHUP == 0 {
                        let news = first.take().unwrap_or_else(wait);
                        let events = news.expect("epoll_wait");
                        if events.is_empty() {
                            break;
                        }
                        for (what, i) in events {
                            said[i as usize] |= what;
                        }
                    }
                    t.log("said", sys::epoll_names(said[ends]));
                    for fd in &fds[ends..] {
                        t.log_text("data", &recv_exact(*fd, 4));
                    }
                }
            },
            |t| {
                let fds = t.clients(ENDING);
                for ends in 0..ENDING {
                    t.wait("go");
                    send_all(fds[ends], b"last");
                    t.log("end", sys::shutdown(fds[ends], libc::SHUT_WR));
                    for fd in &fds[ends + 1..] {
                        send_all(*fd, b"more");
                    }
                    t.tell("sent");
                }
                t.log("eof", sys::recv(fds[0], &mut [0; 8], 0));
            },
        ),
        pair(
            "epoll/small-buffer",
            "room for two events, and a descriptor that is always ready: a connection has its turn, also behind what came over TCP before it",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                let e = set();
                add(e, sys::eventfd(1), IN, 1);
                add(e, fd, IN, 2);
                let mut turns = 0;
                for _ in 0..ROUNDS {
                    t.tell("go");
                    t.wait("sent");
                    await_bytes(fd, 1);
                    let seen = (0..20).any(|_| {
                        let events = sys::epoll_wait(e, 2, 0).expect("epoll_wait");
                        let seen = events.iter().any(|(_, data)| *data == 2);
                        // (Between hosts the bytes may be here a moment before their news.)
                        seen || sys::poll(&[], 1).is_err()
                    });
                    turns += usize::from(seen);
                    recv_exact(fd, 1);
                    sys::close(sys::accept(listener).expect("accept")).expect("close");
                }
                t.log("turns", turns);
                t.still_fast(fd);
                t.tell("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                for _ in 0..ROUNDS {
                    t.wait("go");
                    let new = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(new, addr).expect("connect");
                    send_all(fd, b"x");
                    t.tell("sent");
                    t.log("end", sys::recv(new, &mut [0; 1], 0));
                    sys::close(new).expect("close");
                }
                t.wait("end");
            },
        ),
        pair(
            "epoll/looked-at-beside-a-sleeper",
            "a thread sleeps in a set at which another looks without waiting, now and then: whoever is told, nothing is missed",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                let e = set();
                add(e, fd, IN | ET, 1);
                let (say, hear) = std::sync::mpsc::channel();
                let takes = move |timeout| {
                    let events = sys::epoll_wait(e, 8, timeout).expect("epoll_wait");
                    events.iter().any(|_| sys::recv(fd, &mut [0; 1], MSG_DONTWAIT).is_ok())
                };
                let sleeper = std::thread::spawn(move || while say.send(takes(-1)).is_ok() {});
                let long = std::time::Duration::from_secs(5) * sys::patience();
                let mut missed = 0;
                for round in 0..BESIDE {
                    t.tell("go");
                    // (At all moments of the other's wake-up.)
                    let look_at = sys::now_ns() + round * 997 % 300_000;
                    while sys::now_ns() < look_at {
                        std::hint::spin_loop();
                    }
                    // (The sleeper alone hears what comes behind a byte that the other one took.)
                    let mut taken = round % 2 == 0 && takes(0);
                    while !taken {
                        // (It may hear of a byte that has been taken already.)
                        taken = hear.recv_timeout(long).unwrap_or_else(|_| {
                            missed += 1;
                            takes(0)
                        });
                    }
                }
                t.log("missed", missed);
                drop(hear);
                t.tell("end");
                sleeper.join().expect("sleeper");
            },
            |t| {
                let fd = t.client();
                for _ in 0..BESIDE {
                    t.wait("go");
                    send_all(fd, b"x");
                }
                t.wait("end");
                send_all(fd, b"x");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "epoll/asleep-before-promotion",
            "threads that went to sleep in a set before it had an accelerated connection: each is woken while the others are busy",
            |t| {
                let e = set();
                let (say, hear) = std::sync::mpsc::channel();
                let released = Arc::new(std::sync::RwLock::new(()));
                let busy = released.write().expect("lock");
                let takes = |fd: Arc<AtomicI32>| {
                    let (say, released) = (say.clone(), released.clone());
                    move || loop {
                        sys::epoll_wait(e, 1, -1).expect("epoll_wait");
                        let mut byte = [0];
                        if sys::recv(fd.load(Ordering::SeqCst), &mut byte, MSG_DONTWAIT) == Ok(1) {
                            let _ = say.send(byte[0]);
                            drop(released.read());
                            return;
                        }
                    }
                };
                let at = Arc::new(AtomicI32::new(-1));
                let threads: Vec<_> = (0..4).map(|_| blocked(takes(at.clone()))).collect();
                let fd = t.server();
                at.store(fd, Ordering::SeqCst);
                add(e, fd, IN | ET, 1);
                let long = std::time::Duration::from_secs(5) * sys::patience();
                for _ in 0..threads.len() {
                    t.tell("go");
                    t.log("taken", hear.recv_timeout(long));
                }
                // (Not by the watchdog, which takes back what nobody reads.)
                t.still_fast(fd);
                drop(busy);
                for thread in threads {
                    thread.join().expect("thread");
                }
            },
            |t| {
                let fd = t.client();
                for i in 0..4 {
                    t.wait("go");
                    send_all(fd, &[b'a' + i]);
                }
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "epoll/asleep-in-a-set-too-many",
            "a thread sleeps in a set that comes to have a connection when as many sets have one as the library serves",
            |t| {
                let fds = t.servers(SETS_SERVED + 1);
                let (last, others) = fds.split_last().expect("connections");
                for fd in others {
                    add(set(), *fd, IN, 1);
                }
                let (e, fd) = (set(), *last);
                let tid = Arc::new(AtomicI32::new(0));
                let own = tid.clone();
                let thread = blocked(move || {
                    own.store(sys::gettid(), Ordering::SeqCst);
                    sys::epoll_wait(e, 1, -1)
                });
                add(e, fd, IN, 2);
                t.log("sleeps", comes_to_sleep(tid.load(Ordering::SeqCst)));
                t.tell("go");
                show(t, "data", thread.join().expect("thread"));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("end");
            },
            |t| {
                let fds = t.clients(SETS_SERVED + 1);
                t.wait("go");
                send_all(fds[SETS_SERVED], b"data");
                t.wait("end");
            },
        )
        .any_path(),
        pair(
            "epoll/registered-before-promotion",
            "LT registrations made while the connection is on TCP hold after its promotion",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                let e = set();
                add(e, fd, IN, 0xABCD_0000_0001);
                t.warm_server(fd);
                show(t, "quiet", sys::epoll_wait(e, 8, 0));
                t.tell("go");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("go");
                show(t, "eof", sys::epoll_wait(e, 8, 5000));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"data");
                t.wait("go");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "epoll/exclusive",
            "EPOLLEXCLUSIVE on a connection and on a listener shared by two forked children",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                sys::set_nonblocking(listener, true);
                let children: Vec<_> = (0..2)
                    .map(|_| {
                        t.child(|_| {
                            let e = set();
                            add(e, listener, IN | EXCLUSIVE, 1);
                            let mut served = 0;
                            loop {
                                if sys::epoll_wait(e, 1, 10_000) == Ok(vec![]) {
                                    return format!("idle after {served}");
                                }
                                let Ok(fd) = sys::accept(listener) else {
                                    continue;
                                };
                                sys::set_nonblocking(fd, false);
                                add(e, fd, IN | EXCLUSIVE, 2);
                                let word = recv_exact(fd, 4);
                                sys::close(fd).expect("close");
                                if word == b"stop" {
                                    return "stopped".into();
                                }
                                served += 1;
                            }
                        })
                    })
                    .collect();
                for child in children {
                    t.log("child", child.join());
                }
            },
            |t| {
                let addr = t.hear_addr();
                let say = |word: &[u8]| {
                    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    send_all(fd, word);
                    sys::recv(fd, &mut [0; 1], 0)
                };
                for _ in 0..30 {
                    assert!(say(b"work") == Ok(0));
                }
                // Each child takes one stop: it ends before it could take a second.
                t.log("stop", say(b"stop"));
                t.log("stop", say(b"stop"));
            },
        )
        .any_path(),
        pair(
            "epoll/urgent",
            "EPOLLPRI for urgent data",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, PRI, 1);
                t.tell("go");
                show(t, "pri", sys::epoll_wait(e, 8, 5000));
                t.log("byte", sys::recv(fd, &mut [0; 1], libc::MSG_OOB));
                show(t, "taken", sys::epoll_wait(e, 8, 0));
                t.tell("end");
                t.wait("seen");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                t.log("oob", sys::send(fd, b"!", libc::MSG_OOB));
                t.sends_over_tcp(fd, "urgent-data");
                t.wait("end");
                t.tell("seen");
            },
        )
        .demoted(),
        pair(
            "epoll/many-connections",
            "64 connections in one set, 3000 requests in random order, small maxevents",
            |t| {
                let fds = t.servers(64);
                let e = set();
                for (i, fd) in fds.iter().enumerate() {
                    add(e, *fd, IN, i as u64);
                }
                let mut answered = 0;
                while answered < 3000 {
                    let events = sys::epoll_wait(e, 7, 10_000).expect("epoll_wait");
                    assert!(!events.is_empty(), "stuck after {answered}");
                    for (_, i) in events {
                        let ask = recv_exact(fds[i as usize], 8);
                        send_all(fds[i as usize], &ask);
                        answered += 1;
                    }
                }
                t.log("answered", answered);
                t.meet("end");
            },
            |t| {
                let fds = t.clients(64);
                let mut rng = crate::pattern::Rng::new(5);
                let mut sent = 0u64;
                while sent < 3000 {
                    let burst: BTreeSet<usize> = (0..20).map(|_| rng.range(0, 63)).collect();
                    let burst: Vec<usize> =
                        burst.into_iter().take((3000 - sent) as usize).collect();
                    for i in &burst {
                        send_all(fds[*i], &(sent + *i as u64).to_ne_bytes());
                    }
                    for i in &burst {
                        assert!(recv_exact(fds[*i], 8) == (sent + *i as u64).to_ne_bytes());
                    }
                    sent += burst.len() as u64;
                }
                t.log("asked", sent);
                t.meet("end");
            },
        )
        .long(),
        pair(
            "epoll/dup-of-the-set",
            "a dup of the epoll fd is the same set; the set outlives the close of one",
            |t| {
                let fd = t.server();
                let e = set();
                let twin = sys::dup(e).expect("dup");
                add(e, fd, IN, 1);
                ask(t, "b0");
                show(t, "by the dup", sys::epoll_wait(twin, 8, 5000));
                t.log("add by the dup", sys::epoll_ctl(twin, ADD, fd, IN, 2));
                t.log("close", sys::close(e));
                show(t, "after close", sys::epoll_wait(twin, 8, 0));
                t.log("mod", sys::epoll_ctl(twin, MOD, fd, IN, 3));
                show(t, "changed", sys::epoll_wait(twin, 8, 0));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/set-closed-and-number-reused",
            "a set that is closed takes its registrations along; a new set under its number is empty",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                ask(t, "b0");
                t.log("close", sys::close(e));
                let again = set();
                t.log("same number", e == again);
                show(t, "empty", sys::epoll_wait(again, 8, 20));
                t.log("add", sys::epoll_ctl(again, ADD, fd, IN, 2));
                show(t, "data", sys::epoll_wait(again, 8, 5000));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/idle-then-data",
            "a waiter that has slept for a while wakes; bytes sent just before it sleeps are not missed",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                for _ in 0..30 {
                    t.tell("go");
                    show(t, "woke", sys::epoll_wait(e, 8, 10_000));
                    recv_exact(fd, 1);
                }
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                let mut rng = crate::pattern::Rng::new(8);
                while t.hear() == "go" {
                    let _ = sys::poll(&[], rng.range(0, 15) as i32);
                    send_all(fd, b"x");
                }
            },
        ),
        alone(
            "epoll/one-process",
            "both ends in one set of one thread",
            |t| {
                let (near, far) = t.pair();
                let e = set();
                add(e, near, IN | OUT, 1);
                add(e, far, IN, 2);
                show(t, "fresh", sys::epoll_wait(e, 8, 0));
                send_all(near, b"ask");
                await_bytes(far, 3);
                show(t, "asked", sys::epoll_wait(e, 8, 0));
                recv_exact(far, 3);
                send_all(far, b"answer");
                await_bytes(near, 6);
                show(t, "answered", sys::epoll_wait(e, 8, 0));
                t.log("close", sys::close(far));
                sys::await_events(near, libc::POLLRDHUP, 5000);
                show(t, "closed", sys::epoll_wait(e, 8, 0));
            },
        ),
        pair(
            "epoll/end-of-peer-process",
            "a peer that exits is EPOLLIN and EPOLLRDHUP; then EOF",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN | RDHUP, 1);
                t.tell("exit");
                show(t, "end", sys::epoll_wait(e, 8, 5000));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let _fd = t.client();
                t.wait("exit");
                sys::exit_now(0);
            },
        ),
        pair(
            "epoll/listener",
            "a listener in the set: EPOLLIN when a connection waits, gone after accept",
            |t| {
                let listener = t.listener();
                sys::set_nonblocking(listener, true);
                let e = set();
                add(e, listener, IN, 1);
                show(t, "quiet", sys::epoll_wait(e, 8, 0));
                t.publish(listener);
                show(t, "waiting", sys::epoll_wait(e, 8, 10_000));
                let fd = sys::accept(listener).expect("accept");
                show(t, "accepted", sys::epoll_wait(e, 8, 0));
                t.log("accept", sys::accept(listener));
                t.log(
                    "does not inherit O_NONBLOCK",
                    sys::fcntl(fd, libc::F_GETFL, 0).map(|f| f as i32 & libc::O_NONBLOCK),
                );
                t.warm_server(fd);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.meet("end");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "epoll/unused",
            "a set that never sees its connections ready costs them nothing: plain blocking traffic",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN | ET, 1);
                t.drain(fd, 2, 400_000);
                let _ = sys::epoll_wait(e, 8, 0);
                show(t, "after", sys::epoll_wait(e, 8, 0));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 2, 400_000);
                eof(t, fd);
            },
        ),
        pair(
            "epoll/peer-without-epoll",
            "only one end uses epoll",
            |t| {
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                show(
                    t,
                    "eof",
                    sys::epoll_wait(e, 8, 5000)
                        .map(|v| v.into_iter().map(|(_, d)| (IN, d)).collect()),
                );
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "epoll/close-while-waiting",
            "another thread closes the connection that a waiter's set holds: the waiter just times out",
            |t| {
                let fds = t.servers(2);
                let e = set();
                add(e, fds[0], IN, 1);
                add(e, fds[1], IN, 2);
                let waiter = blocked(move || sys::epoll_wait(e, 8, 10_000));
                t.log("close", sys::close(fds[0]));
                ask(t, "b1");
                show(t, "the other wakes it", waiter.join().expect("thread"));
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
    ]
}

fn eof(t: &Ctx, fd: Fd) {
    t.log("eof", sys::recv(fd, &mut [0; 8], 0).is_ok());
}
