//! Connections that were passed over a unix socket.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "adopt/passed-and-exec",
            "a worker that has received a connection becomes another program, which serves it",
            |t| {
                let serves_all = |t: &Ctx, fd: Fd| {
                    format!("{:?}", become_helper("serve-all", &[&fd.to_string(), warms_up(t)]))
                };
                hand_over(t, worker(t, serves_all));
            },
            client_of_another,
        ),
        pair(
            "adopt/passed-by-sendmmsg",
            "a server passes a connection with unread bytes to a worker by sendmmsg, and closes it",
            |t| pass_unread(t, |to, fd| sys::send_fds_mmsg(to, b"fd", &[fd])),
            client_of_unread,
        )
        .any_path(),
        pair(
            "adopt/passed-set",
            "a server passes an epoll set with a connection that it has used to another process, which waits for it",
            |t| {
                let (to, worker) = worker(t, |_, set| {
                    let events = sys::epoll_wait(set, 4, -1).expect("epoll_wait");
                    format!("{:?}", events.iter().map(|(_, data)| *data).collect::<Vec<_>>())
                });
                let fd = t.server();
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 0x77).expect("epoll_ctl");
                // Nothing is there yet: a first wait, by whom the set is for.
                t.log("nothing", sys::epoll_wait(set, 4, 0));
                pass(t, to, set);
                t.tell("passed");
                t.say(worker.join());
                echo(fd, 20);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("passed");
                ask(fd, 20);
                shuts_down(t, fd);
            },
        )
        .any_path(),
        pair(
            "adopt/passed-by-a-ring",
            "a server passes a connection with unread bytes to a worker by IORING_OP_SENDMSG, and closes it",
            |t| {
                let ring = ring::or_skip(t, Ring::new(8, 0));
                pass_unread(t, |to, fd| {
                    let Some(ring) = &ring else {
                        return sys::send_fds(to, b"fd", &[fd]);
                    };
                    sys::with_fds(b"fd", &[fd], |msg| {
                        let entry = Entry {
                            opcode: ring::SENDMSG,
                            fd: to,
                            addr: std::ptr::from_ref(msg) as u64,
                            len: 1,
                            user_data: 3,
                            ..Entry::default()
                        };
                        let n = ring.submit(&[entry], 1);
                        assert!(ring.completions() == [(3, 2)]);
                        n.map(|_| 2)
                    })
                });
            },
            client_of_unread,
        )
        .any_path(),
        pair(
            "adopt/passed",
            "a server passes each connection to a worker and closes it (a cluster); the worker serves it",
            |t| hand_over(t, worker(t, serve_all)),
            client_of_another,
        ),
        pair(
            "adopt/passed-client",
            "the connecting process passes its connection to another and closes it",
            |t| {
                let fd = accept_one(t);
                t.log("served", serve_all(t, fd));
            },
            |t| {
                let (to, worker) = worker(t, |t, fd| {
                    use_all(t, fd);
                    "used".into()
                });
                let fd = connect_one(t);
                let passed = (sys::send_fds(to, b"fd", &[fd]), sys::close(fd));
                // Behind what the worker says meanwhile.
                t.log("worker", worker.join());
                t.log("pass and close", passed);
            },
        ),
        pair(
            "adopt/passed-and-closed-late",
            "the worker has served for long when the sender closes its copy",
            |t| {
                let (to, worker) = worker(t, |t, fd| {
                    echo(fd, 30);
                    serve_all(t, fd)
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.wait("asked");
                t.log("close", sys::close(fd));
                t.tell("closed");
                t.log("worker", worker.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.wait("closed");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/passed-and-kept",
            "the sender keeps its copy and writes when the worker has served for long",
            |t| {
                let (to, worker) = worker(t, |_, fd| echo_to_end(fd));
                let fd = accept_one(t);
                pass(t, to, fd);
                keeps_and_writes(t, fd, "sender", "passed-by-scm-rights");
                t.log("worker", worker.join());
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
            |t| hears_who_kept_it(t, "sender"),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-twice",
            "a connection is passed to two workers, which take turns",
            |t| {
                let (to_a, a_waits) = turn();
                let (to_b, b_waits) = turn();
                let body = |waits: Fd, next: Fd| {
                    worker(t, move |_, fd| {
                        for _ in 0..50 {
                            await_turn(waits);
                            echo(fd, 10);
                            give(next);
                        }
                        "done".into()
                    })
                };
                let (a, b) = (body(a_waits, to_b), body(b_waits, to_a));
                let fd = accept_one(t);
                pass(t, a.0, fd);
                pass(t, b.0, fd);
                t.log("close", sys::close(fd));
                give(to_a);
                t.log("a", a.1.join());
                t.log("b", b.1.join());
            },
            |t| client_of_echoes(t, 1000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-read-late",
            "a connection is passed to two workers; one takes it when the other has served it for long",
            |t| {
                let (go, wait) = turn();
                let (to, first) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    "served".into()
                });
                let [late, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let second = t.child(|_| {
                    await_turn(wait);
                    echo_to_end(take(from))
                });
                let fd = accept_one(t);
                pass(t, late, fd);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("first", first.join());
                give(go);
                t.log("second", second.join());
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-on",
            "a worker passes the connection on to another and closes it",
            |t| {
                let (last, second) = worker(t, |_, fd| echo_to_end(fd));
                let (to, first) = worker(t, |_, fd| {
                    echo(fd, 300);
                    format!("{:?} {:?}", sys::send_fds(last, b"fd", &[fd]), sys::close(fd))
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("first", first.join());
                t.log("second", second.join());
            },
            |t| client_of_echoes(t, 800),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-by-a-program-without-the-library",
            "a program without the library passes the connection on and keeps it, and both use it",
            |t| {
                let (last, second) = worker(t, |_, fd| {
                    echo(fd, 1000);
                    "served".into()
                });
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let first = t.helper("pass-on", &[&last.to_string(), "300"], false, Some(from));
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("second", second.join());
                t.log("go on", sys::send(to, b"x", 0));
                t.log("first", first.join());
            },
            |t| client_of_echoes(t, 1300),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-to-itself",
            "a process passes an unused connection to itself and uses both numbers",
            |t| {
                let [a, b] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let fd = accept_one(t);
                pass(t, a, fd);
                let other = take(b);
                for _ in 0..50 {
                    echo(fd, 5);
                    echo(other, 5);
                }
                t.log("close", sys::close(fd));
                echo(other, 300);
                t.log("close", sys::close(other));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 800);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-peeked",
            "the worker peeks at the message first, and has the connection twice",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|_| {
                    let fds = |flags| {
                        let mut byte = [0u8; 2];
                        let got = sys::recvmsg_full(from, &mut [&mut byte], flags);
                        let control = got.expect("recvmsg").control;
                        let of = |c: &[u8]| i32::from_ne_bytes([c[0], c[1], c[2], c[3]]);
                        control.first().map_or(-1, |(_, _, payload)| of(payload))
                    };
                    let (first, second) = (fds(libc::MSG_PEEK), fds(0));
                    for _ in 0..50 {
                        echo(first, 5);
                        echo(second, 5);
                    }
                    format!("{:?}, {}", sys::close(first), echo_to_end(second))
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
            },
            |t| client_of_echoes(t, 900),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-then-forked",
            "the sender forks before it closes; its child reads and writes when the worker has served for long",
            |t| {
                let (go, wait) = turn();
                let (to, worker) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    "served".into()
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                let child = t.child(|_| {
                    await_turn(wait);
                    echo_to_end(fd)
                });
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
                give(go);
                t.log("child", child.join());
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-under-two-names",
            "the sender has a duplicate of what it passed, closes one of the two, and uses the other late",
            |t| {
                let (to, worker) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    "served".into()
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                let other = sys::dup(fd).expect("dup");
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
                t.log("sender", echo_to_end(other));
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-kept-under-another-name",
            "the sender has a duplicate of what it passed, closes one of the two, and uses the other while the worker lives",
            |t| {
                let (go, wait) = turn();
                let (back, until) = turn();
                let (to, worker) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    give(go);
                    await_turn(until);
                    echo_to_end(fd)
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                let other = sys::dup(fd).expect("dup");
                t.log("close", sys::close(fd));
                await_turn(wait);
                echo(other, 100);
                t.log("close the other", sys::close(other));
                give(back);
                t.log("worker", worker.join());
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-closed-under-both-names",
            "the sender has a duplicate of what it passed, closes the one before the worker uses it and the other one then: the worker is accelerated",
            |t| {
                let (to, worker) = worker(t, serve_all);
                let fd = accept_one(t);
                pass(t, to, fd);
                let other = sys::dup(fd).expect("dup");
                t.log("close", sys::close(fd));
                t.log("close the other", sys::close(other));
                t.log("worker", worker.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/passed-while-a-thread-reads",
            "a thread of the sender's waits in recv while another passes the connection and closes it",
            |t| {
                let (go, wait) = turn();
                let (to, worker) = worker(t, |_, fd| {
                    await_turn(wait);
                    echo(fd, 1000);
                    "served".into()
                });
                let fd = accept_one(t);
                let reader = blocked(move || recv_exact(fd, 4));
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.tell("closed");
                t.log_text("reader", &reader.join().expect("thread"));
                give(go);
                t.log("worker", worker.join());
            },
            |t| {
                let fd = connect_one(t);
                t.wait("closed");
                send_all(fd, b"once");
                ask(fd, 1000);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-killed",
            "the sender is killed when it has passed the connection; the worker serves on",
            |t| {
                let (to, worker) = worker(t, serve_all);
                let listener = t.listener();
                t.publish(listener);
                let (done, waits) = turn();
                let sender = t.child(|_| {
                    let fd = sys::accept(listener).expect("accept");
                    sys::send_fds(to, b"fd", &[fd]).expect("sendmsg");
                    give(done);
                    loop {
                        let _ = sys::poll(&[], 60_000);
                    }
                });
                await_turn(waits);
                t.log("kill", sys::kill(sender.pid, libc::SIGKILL));
                t.log("killed", sys::wait_child(sender.pid));
                t.log("worker", worker.join());
            },
            client_of_all,
        ),
    ]
}
