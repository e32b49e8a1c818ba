//! One connection in several epoll sets, and on its way from one to another.

use super::epoll::{
    ET, EXCLUSIVE, IN, ONE_PAIR, ONESHOT, OUT, UNORDERED_ON_THE_WAY, add, ask, four_bytes, no_edge,
    obedient, once_more, set, show,
};
use crate::ctx::{Ctx, await_bytes, blocked, recv_exact};
use crate::scenario::{Scenario, obeyed, pair};
use crate::sys::{self, Fd};
use libc::{EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD};

/// A thread that sleeps in a set until it has an event.
fn asleep_in(set: Fd) -> std::thread::JoinHandle<Result<Vec<(u32, u64)>, sys::E>> {
    blocked(move || sys::epoll_wait(set, 8, 10_000))
}

/// The server's address, a socket that is not connected to it yet, and two sets.
fn unconnected(t: &Ctx) -> (sys::Addr, Fd, [Fd; 2]) {
    let addr = t.hear_addr();
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    (addr, fd, [set(), set()])
}

/// Reads what [`four_bytes`] has sent, of a connection that is accelerated still.
fn sees_data(t: &Ctx, fd: Fd) {
    t.log_text("data", &recv_exact(fd, 4));
    t.still_fast(fd);
    t.tell("seen");
}

pub fn list() -> Vec<Scenario> {
    vec![
        obeyed(
            "epoll/two-sets",
            "one connection in two sets: both report it",
            |t, fd| {
                let (a, b) = (set(), set());
                add(a, fd, IN, 1);
                add(b, fd, IN | ET, 2);
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                show(t, "a again", sys::epoll_wait(a, 8, 0));
                t.log("del from a", sys::epoll_ctl(a, DEL, fd, 0, 0));
                ask(t, "b0");
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                show(t, "a", sys::epoll_wait(a, 8, 0));
                t.log("del again", sys::epoll_ctl(a, DEL, fd, 0, 0));
                t.log("mod in a", sys::epoll_ctl(a, MOD, fd, IN, 3));
                t.log("twice", sys::epoll_ctl(b, libc::EPOLL_CTL_ADD, fd, IN, 4));
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/moves-between-sets",
            "a connection that is put into a second set, and taken out of the first when that reports it: again and again",
            |t, fd| {
                let (mut old, mut new) = (set(), set());
                add(old, fd, IN, 0);
                for round in 1..20 {
                    add(new, fd, IN, round);
                    ask(t, "b0");
                    show(t, "new", sys::epoll_wait(new, 8, 5000));
                    show(t, "old", sys::epoll_wait(old, 8, 5000));
                    t.log("del", sys::epoll_ctl(old, DEL, fd, 0, 0));
                    recv_exact(fd, 1);
                    show(t, "read", sys::epoll_wait(new, 8, 0));
                    show(t, "gone", sys::epoll_wait(old, 8, 0));
                    (old, new) = (new, old);
                }
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/moves-between-many-sets",
            "a connection that goes through seven sets, deleted in each when the next has it",
            |t, fd| {
                let sets = [(); 7].map(|()| set());
                add(sets[0], fd, IN, 0);
                for i in 1..28 {
                    let (before, now) = (sets[(i - 1) % 7], sets[i % 7]);
                    add(now, fd, IN | ET, i as u64);
                    t.log("del", sys::epoll_ctl(before, DEL, fd, 0, 0));
                    ask(t, "b0");
                    show(t, "now", sys::epoll_wait(now, 8, 5000));
                    show(t, "before", sys::epoll_wait(before, 8, 0));
                    recv_exact(fd, 1);
                }
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/asleep-in-several-sets",
            "threads asleep in each of four sets are woken by one byte, and by room",
            |t, fd| {
                let sets = [set(), set(), set(), set()];
                let kinds = [IN, IN | ET, IN | ONESHOT, IN | OUT | ET];
                for (set, kind) in sets.iter().zip(kinds) {
                    add(*set, fd, kind, 7);
                }
                show(t, "room", sys::epoll_wait(sets[3], 8, 5000));
                let sleepers = sets.map(asleep_in);
                t.tell("b0");
                for sleeper in sleepers {
                    show(t, "woken", sleeper.join().expect("thread"));
                }
                t.wait("did");
                recv_exact(fd, 1);
                show(t, "read", sys::epoll_wait(sets[0], 8, 0));
                show(t, "fired", sys::epoll_wait(sets[2], 8, 0));
                let sleeper = asleep_in(sets[1]);
                t.tell("s0");
                show(t, "end", sleeper.join().expect("thread"));
                t.wait("did");
                show(t, "end", sys::epoll_wait(sets[0], 8, 5000));
                show(t, "fired", sys::epoll_wait(sets[2], 8, 0));
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/one-of-several-sets-closed",
            "a set that is closed takes nothing from the others; nor does the end of its connection",
            |t, fd| {
                let (a, b, c) = (set(), set(), set());
                add(a, fd, IN, 1);
                add(b, fd, IN, 2);
                t.log("close a", sys::close(a));
                ask(t, "b0");
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                add(c, fd, IN, 3);
                show(t, "c", sys::epoll_wait(c, 8, 5000));
                t.still_fast(fd);
                t.log("close", sys::close(fd));
                show(t, "b, closed", sys::epoll_wait(b, 8, 20));
                show(t, "c, closed", sys::epoll_wait(c, 8, 20));
            },
        ),
        obeyed(
            "epoll/deleted-and-put-elsewhere",
            "a connection that is deleted in one set and added to another, and back, while it is in a third",
            |t, fd| {
                let (a, b, c) = (set(), set(), set());
                add(a, fd, IN, 1);
                t.log("del", sys::epoll_ctl(a, DEL, fd, 0, 0));
                add(b, fd, IN, 2);
                add(c, fd, IN | ET, 3);
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 0));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                show(t, "c", sys::epoll_wait(c, 8, 5000));
                t.log("del", sys::epoll_ctl(b, DEL, fd, 0, 0));
                add(a, fd, IN, 4);
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 0));
                recv_exact(fd, 1);
                show(t, "read", sys::epoll_wait(a, 8, 0));
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "c", sys::epoll_wait(c, 8, 5000));
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/five-sets",
            "one connection in five sets: all report it",
            |t, fd| {
                let sets = [set(), set(), set(), set(), set()];
                for (i, set) in (0..).zip(sets) {
                    add(set, fd, IN, i);
                }
                ask(t, "b0");
                for set in sets {
                    show(t, "each", sys::epoll_wait(set, 8, 5000));
                }
                t.went_back(fd, "several-epoll-sets");
            },
        )
        .demoted(),
        obeyed(
            "epoll/two-sets-exclusive",
            "one connection in two sets, in one of them with EPOLLEXCLUSIVE: whoever sleeps there is woken",
            |t, fd| {
                let (a, b) = (set(), set());
                add(a, fd, IN | EXCLUSIVE, 1);
                add(b, fd, IN, 2);
                let sleepers = [a, b].map(asleep_in);
                t.tell("b0");
                for sleeper in sleepers {
                    show(t, "woken", sleeper.join().expect("thread"));
                }
                t.wait("did");
                t.went_back(fd, "several-epoll-sets");
            },
        )
        .demoted(),
        pair(
            "epoll/two-sets-before-connected",
            "a socket in two sets before it is connected: both report",
            four_bytes,
            |t| {
                let (addr, fd, [one, other]) = unconnected(t);
                add(one, fd, IN, 1);
                add(other, fd, IN, 2);
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                t.tell("go");
                await_bytes(fd, 4);
                show(t, "one", sys::epoll_wait(one, 8, 5000));
                show(t, "other", sys::epoll_wait(other, 8, 5000));
                sees_data(t, fd);
            },
        ),
        pair(
            "epoll/left-one-of-two-sets-before-connected",
            "a socket that is in two sets, and taken out of one of them, before it is connected",
            four_bytes,
            |t| {
                let (addr, fd, [one, other]) = unconnected(t);
                add(one, fd, IN, 1);
                add(other, fd, IN, 2);
                t.log("del", sys::epoll_ctl(one, DEL, fd, 0, 0));
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                t.tell("go");
                await_bytes(fd, 4);
                show(t, "one", sys::epoll_wait(one, 8, 0));
                show(t, "other", sys::epoll_wait(other, 8, 5000));
                sees_data(t, fd);
            },
        ),
        pair(
            "epoll/oneshot-in-two-sets-before-promotion",
            "ONESHOT in two sets before the connection is accelerated, one armed when it may be: each fires once",
            four_bytes,
            |t| {
                let (addr, fd, [one, other]) = unconnected(t);
                t.log("connect", sys::connect(fd, addr));
                add(one, fd, IN | ONESHOT, 1);
                add(other, fd, IN | OUT | ONESHOT, 2);
                show(t, "room", sys::epoll_wait(other, 8, 5000));
                t.warm_client(fd);
                t.log("mod", sys::epoll_ctl(other, MOD, fd, IN | ONESHOT, 3));
                t.log("mod", sys::epoll_ctl(one, MOD, fd, IN | ONESHOT, 4));
                t.log("mod", sys::epoll_ctl(other, MOD, fd, IN | ONESHOT, 5));
                t.tell("go");
                await_bytes(fd, 4);
                for set in [one, other] {
                    show(t, "data", sys::epoll_wait(set, 8, 5000));
                    show(t, "fired", sys::epoll_wait(set, 8, 20));
                }
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        )
        .any_path(),
        pair(
            "epoll/oneshot-fired-then-blocking-calls",
            "a registration with ONESHOT has fired, and its program goes on in blocking calls: armed again, it fires again",
            four_bytes,
            |t| {
                let (addr, fd, [one, other]) = unconnected(t);
                t.log("connect", sys::connect(fd, addr));
                add(one, fd, OUT | ONESHOT, 1);
                add(other, fd, OUT | ET | ONESHOT, 2);
                show(t, "fires", sys::epoll_wait(one, 8, 5000));
                show(t, "fires", sys::epoll_wait(other, 8, 5000));
                t.warm_client(fd);
                show(t, "fired", sys::epoll_wait(one, 8, 20));
                t.log("mod", sys::epoll_ctl(one, MOD, fd, IN | ONESHOT, 3));
                show(t, "nothing", sys::epoll_wait(one, 8, 20));
                t.tell("go");
                show(t, "data", sys::epoll_wait(one, 8, 5000));
                show(t, "fired", sys::epoll_wait(one, 8, 20));
                show(t, "fired", sys::epoll_wait(other, 8, 20));
                t.log("mod", sys::epoll_ctl(other, MOD, fd, IN | OUT | ET | ONESHOT, 4));
                show(t, "both", sys::epoll_wait(other, 8, 5000));
                sees_data(t, fd);
            },
        ),
        pair(
            "epoll/oneshot-armed-then-blocking-calls",
            "a registration with ONESHOT is armed, nobody waits, and its program goes on in blocking calls: it fires once when somebody waits",
            four_bytes,
            |t| {
                let (addr, fd, [one, other]) = unconnected(t);
                t.log("connect", sys::connect(fd, addr));
                add(one, fd, IN | ONESHOT, 1);
                add(other, fd, OUT | ET | ONESHOT, 2);
                t.warm_client(fd);
                show(t, "nothing", sys::epoll_wait(one, 8, 20));
                show(t, "room", sys::epoll_wait(other, 8, 5000));
                show(t, "fired", sys::epoll_wait(other, 8, 20));
                t.tell("go");
                show(t, "data", sys::epoll_wait(one, 8, 5000));
                show(t, "fired", sys::epoll_wait(one, 8, 20));
                t.log("mod", sys::epoll_ctl(one, MOD, fd, IN | ONESHOT, 3));
                show(t, "armed", sys::epoll_wait(one, 8, 5000));
                sees_data(t, fd);
            },
        ),
        obeyed(
            "epoll/edges-of-others",
            "an edge-triggered registration hears nothing of what it has not asked for: of bytes where it waits for room, of room where it waits for bytes",
            |t, fd| {
                sys::set_nonblocking(fd, true);
                let (bytes, room) = (set(), set());
                add(bytes, fd, IN | ET, 1);
                add(room, fd, OUT | ET, 2);
                show(t, "room", sys::epoll_wait(room, 8, 5000));
                for i in 1..=5 {
                    ask(t, "b0");
                    await_bytes(fd, i);
                    no_edge(t, "bytes", room, fd);
                }
                show(t, "bytes", sys::epoll_wait(bytes, 8, 5000));
                let mut sent = 0;
                loop {
                    match sys::send(fd, &[7; 4096], 0) {
                        Ok(n) => sent += n,
                        Err(_) if sys::await_events(fd, libc::POLLOUT, 0) == 0 => break,
                        Err(_) => {}
                    }
                }
                // (On its way to that there may have been room again.)
                let _ = sys::epoll_wait(room, 8, 20);
                t.tell("d0");
                t.tell(&sent.to_string());
                t.wait("did");
                show(t, "room again", sys::epoll_wait(room, 8, 5000));
                no_edge(t, "no bytes", bytes, fd);
                ask(t, "b0");
                await_bytes(fd, 6);
                show(t, "one more", sys::epoll_wait(bytes, 8, 5000));
                t.log_text("all", &recv_exact(fd, 6));
                t.still_fast(fd);
            },
        )
        .skip(&[("rdma", "an edge may be told twice where it comes from a device")]),
        pair(
            "epoll/edge-of-an-end-behind-bytes",
            "the end of a stream behind bytes that are unread is one edge, in one set and beside another",
            |t| {
                for others in [0, 1] {
                    let fd = t.server();
                    let (edges, other) = (set(), set());
                    add(edges, fd, IN | ET, 1);
                    if others > 0 {
                        add(other, fd, IN, 2);
                    }
                    for unread in 1..=2 {
                        ask(t, "b0");
                        await_bytes(fd, unread);
                        show(t, "a byte", sys::epoll_wait(edges, 8, 5000));
                    }
                    ask(t, "s0");
                    // (Not by a wait of the library's, which would learn of it.)
                    while sys::getopt_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 1) != Ok(vec![8]) {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    show(t, "the end", sys::epoll_wait(edges, 8, 5000));
                    for _ in 0..2 {
                        t.log_text("read", &recv_exact(fd, 1));
                        no_edge(t, "no news", edges, fd);
                    }
                    t.log("end", sys::recv(fd, &mut [0; 8], 0));
                    t.tell("x");
                }
            },
            |t| (0..2).for_each(|_| obedient(t, 1)),
        )
        .skip(&[("rdma", "an edge may be told twice where it comes from a device")]),
        pair(
            "epoll/edge-of-an-end-that-was-read",
            "who has read the end of a stream may be told of it by one edge more, and no other",
            |t| {
                let fd = t.server();
                let edges = set();
                add(edges, fd, IN | ET, 1);
                ask(t, "b0");
                await_bytes(fd, 1);
                show(t, "a byte", sys::epoll_wait(edges, 8, 5000));
                t.log_text("read", &recv_exact(fd, 1));
                ask(t, "s0");
                sys::await_events(fd, libc::POLLRDHUP, 5000);
                show(t, "the end", sys::epoll_wait(edges, 8, 5000));
                for _ in 0..2 {
                    t.log("end", sys::recv(fd, &mut [0; 8], 0));
                    once_more(t, "read", edges, fd);
                    show(t, "no news", sys::epoll_wait(edges, 8, 20));
                }
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        pair(
            "epoll/full-buffer-over-both-paths",
            "a wait fills its buffer where so much is ready, whatever of that is the kernel's",
            |t| {
                let fds = t.servers(2);
                let unused = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let (set, event) = (set(), sys::eventfd(1));
                add(set, event, IN, 9);
                add(set, unused, 0, 8);
                for (fd, i) in fds.iter().zip(0..) {
                    add(set, *fd, IN, i);
                    ask(t, &format!("b{i}"));
                    await_bytes(*fd, 1);
                }
                // (What the kernel has to say of connections that are new in the set is said then.)
                (0..4).for_each(|_| drop(sys::epoll_wait(set, 8, 0)));
                let mut counts = std::collections::BTreeSet::new();
                for round in 0..60 {
                    sys::epoll_ctl(set, MOD, unused, 0, round).expect("MOD");
                    for max in [1, 3, 1] {
                        counts.insert((max, sys::epoll_wait(set, max, 1000).expect("wait").len()));
                    }
                }
                // (What was never connected is ready, too.)
                t.log("events", counts);
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
        obeyed(
            "epoll/several-sets-in-a-child",
            "a connection in two sets, of which a forked child waits for one",
            |t, fd| {
                let (a, b) = (set(), set());
                add(a, fd, IN, 1);
                add(b, fd, IN, 2);
                ask(t, "b0");
                let child = t.child(move |_| format!("{:?}", sys::epoll_wait(b, 8, 5000)));
                t.log("child", child.join());
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                recv_exact(fd, 1);
                show(t, "a, read", sys::epoll_wait(a, 8, 20));
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
            },
        )
        .any_path(),
        obeyed(
            "epoll/two-threads-move-it",
            "two threads put a connection into their sets and take it out of them at the same time: each is told of what comes",
            |t, fd| {
                let threads = [(); 2].map(|()| {
                    std::thread::spawn(move || {
                        let mine = set();
                        (0..500).all(|i| {
                            let there = sys::epoll_ctl(mine, libc::EPOLL_CTL_ADD, fd, IN, i).is_ok();
                            there && sys::epoll_ctl(mine, DEL, fd, 0, 0).is_ok()
                        }) && {
                            add(mine, fd, IN, 9);
                            sys::epoll_wait(mine, 8, 10_000) == Ok(vec![(IN, 9)])
                        }
                    })
                });
                t.tell("b0");
                for thread in threads {
                    t.log("told", thread.join().expect("thread"));
                }
                t.wait("did");
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/oneshot-fired-then-back-on-tcp",
            "ONESHOT has fired in four sets, a fifth takes the connection back to TCP, and it is reset: none fires before it is armed",
            |t, fd| {
                let sets = [set(), set(), set(), set()];
                for (i, set) in (0..).zip(sets) {
                    add(set, fd, IN | ONESHOT, i);
                }
                ask(t, "b0");
                for set in sets {
                    show(t, "fires", sys::epoll_wait(set, 8, 5000));
                }
                recv_exact(fd, 1);
                add(set(), fd, IN, 4);
                t.went_back(fd, "several-epoll-sets");
                let [a, b, c, d] = sets;
                t.log("again", sys::epoll_ctl(a, libc::EPOLL_CTL_ADD, fd, IN, 5));
                t.log("mod, exclusive", sys::epoll_ctl(a, MOD, fd, IN | EXCLUSIVE, 5));
                t.log("mod", sys::epoll_ctl(b, MOD, fd, IN | ONESHOT, 6));
                t.log("del", sys::epoll_ctl(c, DEL, fd, 0, 0));
                t.log("del again", sys::epoll_ctl(c, DEL, fd, 0, 0));
                ask(t, "b0");
                show(t, "armed", sys::epoll_wait(b, 8, 5000));
                // (A byte that its peer has not read makes this end a reset.)
                t.log("send", sys::send(fd, b"z", libc::MSG_NOSIGNAL));
                ask(t, "c0");
                t.log("reset", sys::await_events(fd, libc::POLLHUP, 5000) != 0);
                for set in sets {
                    show(t, "fired", sys::epoll_wait(set, 8, 20));
                }
                t.log("mod", sys::epoll_ctl(d, MOD, fd, IN | ONESHOT, 7));
                show(t, "armed", sys::epoll_wait(d, 8, 5000));
                show(t, "fired", sys::epoll_wait(d, 8, 20));
            },
        )
        .demoted(),
        obeyed(
            "epoll/set-known-by-its-second-number",
            "a set goes on under a duplicate, and its number is another set's: what is deleted in it stays in the other",
            |t, fd| {
                let (a, b, c) = (set(), set(), set());
                add(a, fd, IN, 1);
                add(b, fd, IN, 2);
                let other = sys::dup(a).expect("dup");
                t.log("close", sys::close(a));
                t.log("dup2", sys::dup2(c, a).map(|to| to == a));
                add(a, fd, IN, 3);
                t.log("del", sys::epoll_ctl(other, DEL, fd, 0, 0));
                t.log("del again", sys::epoll_ctl(other, DEL, fd, 0, 0));
                t.still_fast(fd);
                // The kernel's again, which has what the library has left it.
                let sets = [set(), set(), set()];
                for set in sets {
                    add(set, fd, IN, 4);
                }
                ask(t, "b0");
                show(t, "gone", sys::epoll_wait(other, 8, 20));
                for set in [b, c, a].iter().chain(&sets) {
                    show(t, "each", sys::epoll_wait(*set, 8, 5000));
                }
                t.went_back(fd, "several-epoll-sets");
            },
        )
        .demoted(),
        obeyed(
            "epoll/exclusive-no-more",
            "a registration with EPOLLEXCLUSIVE is deleted and made anew without it: a second set is nothing special",
            |t, fd| {
                let (a, b) = (set(), set());
                add(a, fd, IN | EXCLUSIVE, 1);
                t.log("del", sys::epoll_ctl(a, DEL, fd, 0, 0));
                add(a, fd, IN, 2);
                add(b, fd, IN, 3);
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                t.log("mod", sys::epoll_ctl(a, MOD, fd, IN | ET, 4));
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                t.still_fast(fd);
            },
        ),
        obeyed(
            "epoll/second-set-is-polled",
            "a connection is put into a second set, which is in a third",
            |t, fd| {
                let (a, b, outer) = (set(), set(), set());
                add(a, fd, IN, 1);
                add(outer, b, IN, 2);
                add(b, fd, IN, 3);
                ask(t, "b0");
                show(t, "a", sys::epoll_wait(a, 8, 5000));
                show(t, "outer", sys::epoll_wait(outer, 8, 5000));
                show(t, "b", sys::epoll_wait(b, 8, 5000));
                t.went_back(fd, "several-epoll-sets");
            },
        )
        .demoted(),
        pair(
            "epoll/order-of-what-is-armed",
            "what is put into a set, or armed, while it is ready comes behind what has come before",
            |t| {
                let fds = t.servers(2);
                let e = set();
                let order = || sys::epoll_wait(e, 1, 5000).map(|all| {
                    all.iter().map(|event| event.1).collect::<Vec<_>>()
                });
                add(e, fds[1], IN | ET, 1);
                for round in 0..5 {
                    ask(t, "b1");
                    await_bytes(fds[1], 1);
                    if round == 0 {
                        add(e, fds[0], OUT | ONESHOT, 0);
                    } else {
                        t.log("mod", sys::epoll_ctl(e, MOD, fds[0], OUT | ONESHOT, 0));
                    }
                    t.log("first", order());
                    t.log("second", order());
                    recv_exact(fds[1], 1);
                }
                fds.iter().for_each(|fd| t.still_fast(*fd));
                t.tell("x");
            },
            |t| obedient(t, 2),
        )
        .skip(UNORDERED_ON_THE_WAY)
        .over_rdma_with(ONE_PAIR),
        pair(
            "epoll/order-in-two-sets",
            "what one set has taken changes nothing of the order in which another has it",
            |t| {
                let fds = t.servers(2);
                let (a, b) = (set(), set());
                for (i, fd) in (0..).zip(&fds) {
                    add(a, *fd, IN | ET, i);
                    add(b, *fd, IN | ET, i);
                }
                let order = |set| sys::epoll_wait(set, 8, 5000).map(|all| {
                    all.iter().map(|event| event.1).collect::<Vec<_>>()
                });
                for _ in 0..5 {
                    ask(t, "b0");
                    t.log("b", order(b));
                    // (Each is there before the next is sent: plain TCP promises no order.)
                    ask(t, "b1");
                    await_bytes(fds[1], 1);
                    ask(t, "b0");
                    await_bytes(fds[0], 2);
                    t.log("a", order(a));
                    t.log("b", order(b));
                    recv_exact(fds[0], 2);
                    recv_exact(fds[1], 1);
                }
                fds.iter().for_each(|fd| t.still_fast(*fd));
                t.tell("x");
            },
            |t| obedient(t, 2),
        )
        .skip(UNORDERED_ON_THE_WAY)
        .over_rdma_with(ONE_PAIR),
    ]
}
