//! Sets that have a connection which goes back to TCP, or has to.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        obeyed(
            "epoll/nested",
            "an epoll fd in poll, in select and in another epoll set",
            |t, fd| {
                let (inner, outer) = (set(), set());
                add(inner, fd, IN, 1);
                add(outer, inner, IN, 2);
                t.is_back(fd);
                let sets = sys::Sets {
                    read: vec![inner],
                    ..sys::Sets::default()
                };
                quiet(t, "quiet", outer);
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
            },
        )
        .demoted(),
        obeyed(
            "epoll/duplicate-fds",
            "a connection and its dup in one set are two registrations",
            |t, fd| {
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
            },
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
        obeyed(
            "epoll/left-in-the-ring-dup",
            "the same with duplicates in one set",
            |t, fd| {
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
            },
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
                let modify = || sys::epoll_ctl(e, MOD, fds[0], IN, 8);
                t.log("mod by the old number", sys::of_closed(modify));
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
        obeyed(
            "epoll/left-in-the-ring-threads",
            "threads that already wait in a set hear of a connection that is put into it with bytes left in the ring",
            |t, fd| {
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
            },
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
        obeyed(
            "epoll/left-in-the-ring-child",
            "a forked child puts a connection with bytes left in the ring into a set of its own",
            |t, fd| {
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
            },
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
    ]
}
