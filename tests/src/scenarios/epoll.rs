//! epoll: triggering, re-arming, sets and threads, errors.

use super::poll::interrupted;
use crate::ctx::{Ctx, await_bytes, blocked, comes_to_sleep, recv_exact, send_all, sends_by};
use crate::scenario::{Scenario, alone, obeyed, pair};
use crate::sys::{self, E, Fd};
use libc::{
    EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD, MSG_DONTWAIT, MSG_NOSIGNAL,
    SIGUSR1,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

mod back;
mod before;
mod order;
mod others;
mod threads;

pub(super) const IN: u32 = libc::EPOLLIN as u32;
pub(super) const OUT: u32 = libc::EPOLLOUT as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(super) const ET: u32 = libc::EPOLLET as u32;
pub(super) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub(super) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

type Events = Result<Vec<(u32, u64)>, E>;

// docs/manual/limits.md: "Order across connections".
const OVER_TWO_WAYS: (&str, &str) =
    ("rdma", "a queue pair and TCP each have their own way between hosts");
/// Sets of a process that have accelerated connections (`PLACES` of crates/core/src/channel.rs,
/// half).
const SETS_SERVED: usize = 128;
/// Connections of which one after the other ends.
const ENDING: usize = 4;
/// Bytes, each for the one of two threads that comes first.
const BESIDE: u64 = 1500;
/// Connections are on their way back to TCP all the time.
const ON_THE_WAY_BACK: (&str, &str) =
    ("switch", "bytes that were in the ring when its sender left it are sent again over TCP");
pub(super) const UNORDERED_ON_THE_WAY: &[(&str, &str)] = &[ON_THE_WAY_BACK];
/// In the mode `rdma`: connections of a process share a queue pair.
pub(super) const ONE_PAIR: &[(&str, &str)] = &[("NACC_SOR_CONN_PER_QP", "8")];

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
pub(super) fn once_more(t: &Ctx, label: &str, set: Fd, fd: Fd) {
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

/// As [`no_edge`], of a connection whose stream has ended. Between hosts its end takes it back to
/// TCP, so that its path may just have changed.
fn no_edge_behind_the_end(t: &Ctx, label: &str, set: Fd, fd: Fd) {
    if sys::over_rdma() {
        once_more(t, label, set, fd);
    } else {
        no_edge(t, label, set, fd);
    }
}

/// A set that is itself polled, and has nothing: between hosts it comes to look so when its
/// connection is back on TCP, and nobody has waited for it since.
pub(crate) fn quiet(t: &Ctx, label: &str, set: Fd) {
    let begin = sys::now_ns();
    let mut events = sys::epoll_wait(set, 8, 0);
    while sys::over_rdma()
        && events.as_ref().is_ok_and(|list| !list.is_empty())
        && sys::now_ns() - begin < 10_000_000_000
    {
        sys::sleep_ms(1);
        events = sys::epoll_wait(set, 8, 0);
    }
    show(t, label, events);
}

/// What a full connection has. Between hosts room may come by itself: one that has outgrown small
/// rings comes back with whole ones. That is filled, too, and counted in `filled`.
fn while_full(t: &Ctx, label: &str, set: Fd, fd: Fd, filled: &mut usize, wait_ms: i32) {
    let mut events = sys::epoll_wait(set, 8, wait_ms);
    while sys::over_rdma() && events.as_ref().is_ok_and(|list| list.iter().any(|e| e.0 & OUT != 0))
    {
        let more = fill(fd);
        if more == 0 {
            break;
        }
        *filled += more;
        events = sys::epoll_wait(set, 8, wait_ms);
    }
    show(t, label, events);
}

/// A client that does what the server tells it: `bN` sends a byte on connection N, `sN`
/// half-closes, `cN` closes, `dN` receives as many bytes as the next word says, `lN` puts its end
/// into five sets: from then on it sends over the kernel, whatever is unread where it sent before.
pub(crate) fn obedient(t: &Ctx, count: usize) {
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

/// Says by which path each of the connections has sent.
fn send_in_order(t: &Ctx) {
    let fds = t.clients(WORTH_SORTING);
    for round in 0..ROUNDS {
        t.wait("go");
        let mut paths = [b'?'; WORTH_SORTING];
        for i in order_of(round) {
            let before = sends_by(fds[i]);
            send_all(fds[i], &[1 + i as u8]);
            paths[i] = path_of(before, sends_by(fds[i]));
        }
        t.tell(&String::from_utf8_lossy(&paths));
    }
    t.wait("seen");
}

/// By which path one has sent; `?`: it has changed its path meanwhile.
pub(super) fn path_of(before: u8, after: u8) -> u8 {
    if before == after { b'0' + after } else { b'?' }
}

/// Of these connections, those that have sent by this path.
fn by_path(order: &[usize], paths: &[u8], path: u8) -> Vec<usize> {
    order.iter().copied().filter(|i| paths[*i] == path).collect()
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
/// Where connections come onto their rings meanwhile, some on TCP have others' rings between them,
/// and the kernel does not say where: then each path's own have to be in order, and no others.
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
        let paths = t.hear().into_bytes();
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
        let differs =
            |path: &u8| by_path(&seen, &paths, *path) != by_path(&order_of(round), &paths, *path);
        // (Where paths stay what they are, all have one.)
        let is_wrong = match paths_differ() {
            true => paths.iter().filter(|path| **path != b'?').any(differs),
            false => seen != order_of(round),
        };
        if round >= 2 && is_wrong {
            let paths = String::from_utf8_lossy(&paths).into_owned();
            wrong.push((round, seen, order_of(round), paths));
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
    let mut all = triggers();
    all.extend(order::list());
    all.extend(back::list());
    all.extend(threads::list());
    all.extend(before::list());
    all.extend(others::list());
    all
}

fn triggers() -> Vec<Scenario> {
    vec![
        obeyed(
            "epoll/level",
            "LT: reported as long as bytes are there, not before, not after; data untouched",
            |t, fd| {
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
            },
        ),
        obeyed(
            "epoll/edge",
            "ET: once for each arrival, also when bytes are left over; once at ADD and at MOD",
            |t, fd| {
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
                no_edge_behind_the_end(t, "once", e, fd);
            },
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
                    assert!(!events.is_empty(), "no event after {} bytes", receiver.received);
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
        obeyed(
            "epoll/edge-out",
            "ET with EPOLLOUT: once at ADD, then after the socket was full and has room again",
            |t, fd| {
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
            },
        ),
        obeyed(
            "epoll/level-out",
            "LT with EPOLLOUT: not reported while full, reported after the peer has read",
            |t, fd| {
                let e = set();
                add(e, fd, OUT | IN, 1);
                show(t, "room", sys::epoll_wait(e, 8, 0));
                let mut n = fill(fd);
                while_full(t, "full", e, fd, &mut n, 0);
                ask(t, "b0");
                while_full(t, "full and data", e, fd, &mut n, 5000);
                t.tell("d0");
                t.tell(&n.to_string());
                t.wait("did");
                t.log("mod", sys::epoll_ctl(e, MOD, fd, OUT, 2));
                show(t, "room again", sys::epoll_wait(e, 8, 5000));
            },
        ),
        obeyed("epoll/oneshot", "ONESHOT: one event, then none until MOD", |t, fd| {
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
        }),
        obeyed(
            "epoll/rdhup",
            "EPOLLRDHUP when asked for, EPOLLIN at EOF, EPOLLHUP when both directions are closed",
            |t, fd| {
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
            },
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
                t.log("MOD to EXCLUSIVE", sys::epoll_ctl(e, MOD, fd, IN | EXCLUSIVE, 1));
                t.log("DEL with a null event", sys::epoll_ctl_null(e, DEL, fd));
                t.log("DEL again", sys::epoll_ctl(e, DEL, fd, 0, 0));
                t.log(
                    "ADD EXCLUSIVE with ONESHOT",
                    sys::epoll_ctl(e, ADD, fd, IN | EXCLUSIVE | ONESHOT, 1),
                );
                t.log("ADD EXCLUSIVE", sys::epoll_ctl(e, ADD, fd, IN | EXCLUSIVE, 1));
                t.log("MOD of EXCLUSIVE", sys::epoll_ctl(e, MOD, fd, IN, 1));
                t.log("set is a connection", sys::epoll_ctl(fd, ADD, e, IN, 1));
                t.log("wait on a connection", sys::epoll_wait(fd, 8, 0).map(|v| v.len()));
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
    ]
}

fn eof(t: &Ctx, fd: Fd) {
    t.log("eof", sys::recv(fd, &mut [0; 8], 0).is_ok());
}
