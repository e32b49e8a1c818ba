//! Children that do nothing, die, or have children of their own.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "process/idle-child",
            "a child that touches nothing (BGSAVE) while the parent serves; the EOF waits for the child as in the kernel",
            |t| {
                let fd = t.server();
                let [go, wait] = pipe_pair();
                let child = t.child(|_| {
                    wait_turn(wait);
                    "idle".into()
                });
                serve(t, fd, 1000);
                t.still_fast(fd);
                t.log("close", sys::close(fd));
                t.tell("check");
                t.wait("no eof");
                give_turn(go);
                t.log("child", child.join());
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                echo_rounds(t, fd);
                t.log(
                    "eof comes with the child's end only",
                    sys::recv(fd, &mut [0; 1], MSG_DONTWAIT),
                );
                sys::sleep_ms(20);
                t.log("still", sys::recv(fd, &mut [0; 1], MSG_DONTWAIT));
                t.tell("no eof");
                t.wait("end");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "process/child-killed",
            "a child that is killed with the connection open changes nothing for the parent",
            |t| {
                let fd = t.server();
                for _ in 0..3 {
                    let child = t.child(|_| {
                        loop {
                            sys::sleep_ms(1000);
                        }
                    });
                    serve(t, fd, 50);
                    t.log("kill", sys::kill(child.pid, libc::SIGKILL));
                    t.log("child", child.join());
                    serve(t, fd, 50);
                }
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            echo_client,
        ),
        pair(
            "process/fork-per-connection",
            "a child for each connection, the parent closes at once (PostgreSQL, sshd)",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..5 {
                    let fd = sys::accept(listener).expect("accept");
                    let child = t.child(|t| {
                        sys::close(listener).expect("close");
                        t.warm_server(fd);
                        echo(fd, 100);
                        format!("eof {:?}", sys::recv(fd, &mut [0; 1], 0))
                    });
                    sys::close(fd).expect("close");
                    t.log("child", child.join());
                }
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..5 {
                    let fd = t.connect(addr);
                    for i in 0..100u32 {
                        send_all(fd, &i.to_ne_bytes());
                        assert!(recv_exact(fd, 4) == i.to_ne_bytes());
                    }
                    t.log("close", sys::close(fd));
                }
            },
        )
        .any_path(),
        pair(
            "process/double-fork",
            "daemonise: two forks, the first child exits, the grandchild serves",
            |t| {
                let fd = t.server();
                t.tell("200");
                let [done, wait] = pipe_pair();
                let child = t.child(|_| match sys::fork() {
                    Ok(0) => {
                        echo(fd, 200);
                        give_turn(done);
                        sys::exit_now(0)
                    }
                    _ => "first child".into(),
                });
                t.log("child", child.join());
                t.log("close", sys::close(fd));
                wait_turn(wait);
                t.wait("did");
                t.tell("end");
            },
            echo_client,
        ),
        pair(
            "process/fork-chain",
            "each child does some exchanges and forks the next; five deep",
            |t| {
                let fd = t.server();
                t.tell("60");
                fn link(t: &Ctx, fd: Fd, depth: u32) -> String {
                    echo(fd, 10);
                    if depth == 0 {
                        return "last".into();
                    }
                    let child = t.child(|t| link(t, fd, depth - 1));
                    format!("{depth} {}", child.join())
                }
                t.log("chain", link(t, fd, 5));
                t.wait("did");
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            echo_client,
        ),
        pair(
            "process/fork-with-threads",
            "fork while another thread is blocked in recv and another in epoll_wait; the child uses another connection",
            |t| {
                let fds = t.servers(3);
                let (a, b, c) = (fds[0], fds[1], fds[2]);
                let reader = blocked(move || recv_exact(a, 5));
                let e = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(e, libc::EPOLL_CTL_ADD, b, libc::EPOLLIN as u32, 7).expect("ADD");
                let waiter = blocked(move || sys::epoll_wait(e, 4, 10_000).map(|v| v.len()));
                for _ in 0..5 {
                    let child = t.child(|_| {
                        send_all(c, b"child");
                        format!("{:?}", recv_exact(c, 2))
                    });
                    t.log("child", child.join());
                }
                send_all(a, b"go");
                t.log_text("reader", &reader.join().expect("thread"));
                send_all(b, b"go");
                t.log("waiter", waiter.join().expect("thread"));
                t.log_text("data", &recv_exact(b, 5));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(3);
                for _ in 0..5 {
                    t.log_text("from the child", &recv_exact(fds[2], 5));
                    send_all(fds[2], b"ok");
                }
                for fd in &fds[..2] {
                    recv_exact(*fd, 2);
                    send_all(*fd, b"hello");
                }
                t.meet("end");
            },
        ),
        pair(
            "process/child-connects",
            "a forked child makes its own connections, and so does the parent afterwards",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..3 {
                    let fd = sys::accept(listener).expect("accept");
                    while let Ok(4) = sys::recv(fd, &mut [0; 4], libc::MSG_WAITALL) {
                        send_all(fd, b"echo");
                    }
                    sys::close(fd).expect("close");
                }
            },
            |t| {
                let addr = t.hear_addr();
                let talk = || {
                    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    for _ in 0..200 {
                        send_all(fd, b"ping");
                        recv_exact(fd, 4);
                    }
                    sys::close(fd)
                };
                let child = t.child(|_| format!("{:?}", talk()));
                t.log("child", child.join());
                t.log("parent", talk());
                let child = t.child(|_| format!("{:?}", talk()));
                t.log("child", child.join());
            },
        )
        .any_path(),
        pair(
            "process/child-of-child-polls",
            "a grandchild polls a connection that its grandparent has closed",
            |t| {
                let fd = t.server();
                let child = t.child(|t| {
                    let grandchild = t.child(|_| {
                        let revents = sys::poll_names(sys::await_events(fd, POLLIN, 10_000));
                        format!("{revents} {:?}", recv_exact(fd, 1))
                    });
                    let _ = sys::close(fd);
                    grandchild.join()
                });
                t.log("close", sys::close(fd));
                t.tell("go");
                t.log("grandchild", child.join());
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                sys::sleep_ms(10);
                send_all(fd, b"x");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
                let _ = own_program();
            },
        ),
    ]
}
