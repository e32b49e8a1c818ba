//! Many connections, listeners, and sets in odd lives.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
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
                let fds = t.many_servers(64);
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
                let fds = t.many_clients(64);
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
        obeyed(
            "epoll/dup-of-the-set",
            "a dup of the epoll fd is the same set; the set outlives the close of one",
            |t, fd| {
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
            },
        ),
        obeyed(
            "epoll/set-closed-and-number-reused",
            "a set that is closed takes its registrations along; a new set under its number is empty",
            |t, fd| {
                let e = set();
                add(e, fd, IN, 1);
                ask(t, "b0");
                t.log("close", sys::close(e));
                let again = set();
                t.log("same number", e == again);
                show(t, "empty", sys::epoll_wait(again, 8, 20));
                t.log("add", sys::epoll_ctl(again, ADD, fd, IN, 2));
                show(t, "data", sys::epoll_wait(again, 8, 5000));
            },
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
        alone("epoll/one-process", "both ends in one set of one thread", |t| {
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
        }),
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
    ]
}
