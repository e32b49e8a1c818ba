//! Several processes of a family have a connection.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "adopt/several-children",
            "three children, each with its connection, at the same time",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let mut children = Vec::new();
                for _ in 0..3 {
                    let fd = sys::accept(listener).expect("accept");
                    children.push(t.child(|t| serve_all(t, fd)));
                    t.log("close", sys::close(fd));
                }
                for child in children {
                    t.log("child", child.join());
                }
            },
            |t| {
                let addr = t.hear_addr();
                let fds: Vec<Fd> = (0..3).map(|_| connect_to(addr)).collect();
                for fd in fds {
                    use_all(t, fd);
                }
            },
        ),
        pair(
            "adopt/set-of-the-child",
            "the child puts the connection into an epoll set of its own before its parent has closed it",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let (done, closes) = turn();
                let child = t.child(|t| {
                    let set = sys::epoll_create1(0).expect("set");
                    let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 5).expect("add");
                    give(done);
                    await_turn(wait);
                    t.warm_server(fd);
                    give(done);
                    let mut served = 0;
                    loop {
                        let events = sys::epoll_wait(set, 4, 20_000).expect("wait");
                        assert!(events.len() == 1 && events[0].1 == 5, "{events:x?}");
                        match sys::recv(fd, &mut [0; 4], libc::MSG_WAITALL) {
                            Ok(4) => send_all(fd, b"pong"),
                            end => return format!("{served} served, then {end:?}"),
                        }
                        served += 1;
                    }
                });
                await_turn(closes);
                t.log("close", sys::close(fd));
                give(go);
                await_turn(closes);
                t.tell("warm");
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.warm_client(fd);
                t.wait("warm");
                for _ in 0..300 {
                    send_all(fd, b"ping");
                    assert!(recv_exact(fd, 4) == b"pong");
                }
                shuts_down(t, fd);
            },
        ),
        pair(
            "adopt/parent-closes-late",
            "the child has served for long when its parent closes",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|t| {
                    echo(fd, 30);
                    await_turn(wait);
                    serve_all(t, fd)
                });
                t.wait("asked");
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/parent-greets",
            "the parent writes a greeting after the fork and closes, the child goes on",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|t| {
                    await_turn(wait);
                    serve_all(t, fd)
                });
                send_all(fd, b"greeting");
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.log_text("greeting", &recv_exact(fd, 8));
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/parent-writes-late",
            "the parent writes when the child has used the connection, and closes it then",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|_| {
                    echo(fd, 30);
                    await_turn(wait);
                    echo_to_end(fd)
                });
                t.wait("asked");
                send_all(fd, b"of the parent");
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.log_text("parent", &recv_exact(fd, 13));
                ask(fd, 400);
                shuts_down(t, fd);
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/parent-keeps-it",
            "the parent keeps its copy, and writes when the child has served for long",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|_| echo_to_end(fd));
                keeps_and_writes(t, fd, "parent", "inherited-by-fork");
                t.log("child", child.join());
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
            |t| hears_who_kept_it(t, "parent"),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/reasons-of-three",
            "the parent keeps its copy and never uses it: what it, the child that serves and their peer say",
            |t| {
                let fd = accept_one(t);
                let (served, wait) = turn();
                let child = t.child(|t| {
                    echo(fd, 2000);
                    t.expect_reason(fd, &[("shm", "inherited-by-fork")]);
                    give(served);
                    echo_to_end(fd)
                });
                await_turn(wait);
                t.expect_reason(fd, &[("shm", "not-started")]);
                t.tell("seen");
                t.log("child", child.join());
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 2000);
                t.wait("seen");
                t.expect_reason(fd, &[("shm", "not-claimed")]);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path(),
        pair(
            "adopt/sibling-closes",
            "two children inherit the connection; one of them closes it, the other serves",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let idle = t.child(|_| {
                    await_turn(wait);
                    format!("{:?}", sys::close(fd))
                });
                let child = t.child(|t| {
                    echo(fd, 30);
                    serve_all(t, fd)
                });
                t.log("close", sys::close(fd));
                t.wait("asked");
                give(go);
                t.log("idle", idle.join());
                t.tell("alone");
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.wait("alone");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/siblings-alternate",
            "two children inherit the connection and take turns; their parent has closed it",
            |t| {
                let fd = accept_one(t);
                let (to_a, a_waits) = turn();
                let (to_b, b_waits) = turn();
                let body = |waits: Fd, next: Fd| {
                    move |_: &Ctx| {
                        for _ in 0..50 {
                            await_turn(waits);
                            echo(fd, 10);
                            give(next);
                        }
                        "done".into()
                    }
                };
                let a = t.child(body(a_waits, to_b));
                let b = t.child(body(b_waits, to_a));
                t.log("close", sys::close(fd));
                give(to_a);
                t.log("a", a.join());
                t.log("b", b.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 1000);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/sleeping-sibling",
            "a child that slept while another served the connection reads and writes at last",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let sleeper = t.child(|_| {
                    await_turn(wait);
                    echo_to_end(fd)
                });
                let child = t.child(|_| {
                    echo(fd, 20_000);
                    "served".into()
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
                give(go);
                t.log("sleeper", sleeper.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 20_500);
                shuts_down(t, fd);
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/beside-a-sibling",
            "two children have a connection, and use it in turn while both live",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let (back, until) = turn();
                let sibling = t.child(|_| {
                    await_turn(wait);
                    echo(fd, 500);
                    give(back);
                    "served".into()
                });
                let child = t.child(|_| {
                    echo(fd, 20_000);
                    give(go);
                    await_turn(until);
                    echo_to_end(fd)
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
                t.log("sibling", sibling.join());
            },
            |t| client_of_echoes(t, 21_000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/grandchild",
            "the child forks before it has used the connection, and closes it; the grandchild serves",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    let grandchild = t.child(|t| serve_all(t, fd));
                    let closed = sys::close(fd);
                    format!("{closed:?} {}", grandchild.join())
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/double-fork",
            "the child forks and ends without having used or closed the connection; the grandchild serves",
            |t| {
                let fd = accept_one(t);
                let (to_parent, waits) = turn();
                let (go, wait) = turn();
                let child = t.child(|t| {
                    let _grandchild = t.child(|t| {
                        await_turn(wait);
                        let said = serve_all(t, fd);
                        assert!(sys::write(to_parent, said.as_bytes()).is_ok());
                        String::new()
                    });
                    "ends".into()
                });
                t.log("close", sys::close(fd));
                t.log("child", sys::wait_child(child.pid));
                give(go);
                let mut text = [0; 100];
                let n = sys::read(waits, &mut text).expect("read");
                t.log_text("grandchild", &text[..n]);
            },
            client_of_all,
        ),
        pair(
            "adopt/parent-killed",
            "the parent is killed while it has the connection too; the child serves on",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let (go, wait) = turn();
                let (done, waits) = turn();
                let parent = t.child(|t| {
                    let fd = sys::accept(listener).expect("accept");
                    let _child = t.child(|_| {
                        echo(fd, 20);
                        await_turn(wait);
                        let said = echo_to_end(fd);
                        assert!(sys::write(done, said.as_bytes()).is_ok());
                        String::new()
                    });
                    give(done);
                    loop {
                        let _ = sys::poll(&[], 60_000);
                    }
                });
                await_turn(waits);
                t.wait("asked");
                t.log("kill", sys::kill(parent.pid, libc::SIGKILL));
                t.log("killed", sys::wait_child(parent.pid));
                give(go);
                let mut text = [0; 100];
                let n = sys::read(waits, &mut text).expect("read");
                t.log_text("child", &text[..n]);
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 20);
                t.tell("asked");
                ask(fd, 1000);
                shuts_down(t, fd);
            },
        )
        .any_path()
        .demoted(),
    ]
}
