//! What is told first: order, and fairness.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
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
        obeyed(
            "epoll/fairness-to-kernel-fds",
            "one connection that is not read and many kernel fds: they get their turn at small maxevents",
            |t, fd| {
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
            },
        ),
        obeyed(
            "epoll/one-at-a-time",
            "maxevents 1 and time between the calls: a kernel fd that is always ready does not keep a connection out",
            |t, fd| {
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
            },
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
            "epoll/order",
            "connections of one client are reported in the order in which they were sent to",
            |t| in_order(t, IN, 20),
            send_in_order,
        )
        .over_rdma_with(ONE_PAIR),
        pair(
            "epoll/order-edges",
            "the same edge-triggered, with room for half of them in each wait",
            |t| in_order(t, IN | ET, WORTH_SORTING / 2),
            send_in_order,
        )
        .over_rdma_with(ONE_PAIR),
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
                            let before = sends_by(fd);
                            send_all(fd, &byte);
                            byte = [path_of(before, sends_by(fd))];
                        }
                    });
                    sys::read(heard, &mut [0]).expect("read");
                    children.push(child);
                    fds.push((say, heard));
                }
                for round in 0..ROUNDS {
                    t.wait("go");
                    let mut paths = [[b'?']; WORTH_SORTING];
                    for i in order_of(round) {
                        sys::write(fds[i].0, &[1 + i as u8]).expect("write");
                        sys::read(fds[i].1, &mut paths[i]).expect("read");
                    }
                    t.tell(&String::from_utf8_lossy(paths.as_flattened()));
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
        .skip(&[
            ("rdma", "each process has its queue pair, and a device sends each by itself"),
            ("switch", "a set gives the kernel a registration behind what its peer has sent"),
        ]),
        pair(
            "epoll/order-over-both-paths",
            "of two connections, each anywhere on its way to a ring, the first that is sent to is reported first: to a server that looks \
             later, and to one that sleeps",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let e = set();
                let (mut wrong, mut round, mut again) = (Vec::new(), 0, 0);
                while round < 2 * STAGES * STAGES {
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
                    sys::close(first).expect("close");
                    sys::close(second).expect("close");
                    // (Who sleeps may be told of a connection late that comes onto its ring at this
                    // moment: docs/manual/limits.md, "Order across connections". Not each time.)
                    again = if round % 2 == 1 && seen != [1, 2] { again + 1 } else { 0 };
                    if (1..4).contains(&again) {
                        t.tell("again");
                        continue;
                    }
                    if seen != [1, 2] {
                        wrong.push((round, seen));
                    }
                    (round, again) = (round + 1, 0);
                    t.tell("done");
                }
                t.log("rounds in another order", wrong);
            },
            |t| {
                let addr = t.hear_addr();
                let mut round = 0;
                while round < 2 * STAGES * STAGES {
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
                    round += usize::from(t.hear() == "done");
                    sys::close(first).expect("close");
                    sys::close(second).expect("close");
                }
            },
        )
        .skip(&[OVER_TWO_WAYS, ON_THE_WAY_BACK])
        // Of its connections some are to be on TCP, and each ends after a few exchanges.
        .any_path(),
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
        .skip(UNORDERED_ON_THE_WAY)
        .over_rdma_with(ONE_PAIR),
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
        ).over_rdma_with(ONE_PAIR),
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
        .skip(&[OVER_TWO_WAYS]),
    ]
}
