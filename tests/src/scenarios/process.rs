//! fork, exec, spawn and their kin with live connections.

use crate::ctx::{Ctx, await_bytes, blocked, own_program, read_to_end, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Addr, Fd, Stream};
use libc::{MSG_DONTWAIT, POLLIN};

/// A client that checks an echo of numbered messages until it is told to stop, then says what the
/// end was.
fn echo_client(t: &Ctx) {
    let fd = t.client();
    echo_rounds(t, fd);
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
}

/// Does so many echoes as the server asks for each time; `end` ends it.
fn echo_rounds(t: &Ctx, fd: Fd) {
    let mut next = 0u32;
    loop {
        let word = t.hear();
        let Ok(n) = word.parse::<u32>() else { break };
        for _ in 0..n {
            send_all(fd, &next.to_ne_bytes());
            assert!(recv_exact(fd, 4) == next.to_ne_bytes(), "echo {next}");
            next += 1;
        }
        t.tell("did");
    }
    t.log("echoes", next);
}

/// In so many exchanges both ends have long agreed on a ring.
const AGREED_BY: usize = 24;

/// Where the connection was accelerated, it is told so once its link has ended.
const LINK_LOST: &[(&str, &str)] = &[("shm", "channel-failed")];

/// Echoes `n` messages.
fn echo(fd: Fd, n: usize) {
    for _ in 0..n {
        let ask = recv_exact(fd, 4);
        send_all(fd, &ask);
    }
}

/// Lets the client do `n` echoes that this process serves.
fn serve(t: &Ctx, fd: Fd, n: usize) {
    t.tell(&n.to_string());
    echo(fd, n);
    t.wait("did");
}

/// Two accepted connections: one that was warmed up, and one that nobody has used.
fn used_and_new(t: &Ctx) -> (Fd, Fd) {
    let listener = t.listener();
    t.publish(listener);
    let used = t.accept(listener);
    (used, sys::accept(listener).expect("accept"))
}

/// The other ends of these.
fn use_and_open(t: &Ctx) -> (Fd, Fd) {
    let addr = t.hear_addr();
    let used = t.connect(addr);
    (used, connected(addr))
}

/// The client of an echo on the connection that nobody has used.
fn new_echo_client(t: &Ctx) {
    let (_used, fd) = use_and_open(t);
    echo_rounds(t, fd);
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
}

fn connected(addr: Addr) -> Fd {
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    fd
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "process/fork-child-continues",
            "fork: the parent closes at once, the child serves the connection to its end",
            |t| {
                let fd = t.server();
                serve(t, fd, 10);
                t.tell("500");
                let child = t.child(|t| {
                    echo(fd, 500);
                    t.pour(fd, 1, 0);
                    "served".into()
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
                t.wait("did");
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                echo_rounds(t, fd);
                // (The child has no page of statistics before it has a connection of its own.)
                t.went_back(fd, "peer-asked-for-tcp");
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "process/fork-parent-continues",
            "fork: the child closes, the parent serves on; no EOF by the child's close or exit",
            |t| {
                let fd = t.server();
                let child = t.child(|_| format!("{:?}", sys::close(fd)));
                t.log("child", child.join());
                serve(t, fd, 300);
                let child = t.child(|_| "exit only".into());
                t.log("child", child.join());
                serve(t, fd, 300);
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            echo_client,
        ),
        pair(
            "process/fork-client",
            "the connecting end forks: the child carries on",
            |t| {
                let fd = t.server();
                t.drain(fd, 2, 200_000);
                t.pour(fd, 3, 200_000);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                let mut sender = t.sender(fd, 2);
                send_all(fd, &sender.upcoming(50_000));
                sender.advance(50_000);
                let child = t.child(|_| {
                    send_all(fd, &sender.upcoming(100_000));
                    "sent".into()
                });
                t.log("child", child.join());
                sender.advance(100_000);
                send_all(fd, &sender.upcoming(50_000));
                let child = t.child(|_| {
                    let got = recv_exact(fd, 70_000);
                    format!("{:?}", Pattern::new(3).first_error(0, &got))
                });
                t.log("child", child.join());
                let got = recv_exact(fd, 130_000);
                t.went_back(fd, "inherited-by-fork");
                t.log("parent", Pattern::new(3).first_error(70_000, &got));
            },
        )
        .demoted(),
        pair(
            "process/fork-alternate",
            "parent and child take turns in reading and writing one connection",
            |t| {
                let fd = t.server();
                let [to_child, child_in] = pipe_pair();
                let [to_parent, parent_in] = pipe_pair();
                let child = t.child(|_| {
                    for _ in 0..40 {
                        wait_turn(child_in);
                        echo(fd, 5);
                        give_turn(to_parent);
                    }
                    "done".into()
                });
                t.tell("400");
                for _ in 0..40 {
                    echo(fd, 5);
                    give_turn(to_child);
                    wait_turn(parent_in);
                }
                t.wait("did");
                t.log("child", child.join());
                t.went_back(fd, "inherited-by-fork");
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            echo_client,
        )
        .demoted(),
        pair(
            "process/fork-without-descriptors",
            "a process without a descriptor left is told of another waiting place, then its child uses the connection",
            |t| {
                let fd = t.server();
                let [to_child, child_in] = pipe_pair();
                let [to_parent, parent_in] = pipe_pair();
                // No number is left, not for the library either: what the peer's waiting place
                // brings cannot be taken.
                sys::set_nofile_limits(64, 64).expect("setrlimit");
                let filler: Vec<Fd> = std::iter::from_fn(|| sys::dup(0).ok()).collect();
                t.tell("none left");
                t.wait("waited");
                // Not before it has moved is the child of use here.
                t.expect_reason(fd, LINK_LOST);
                for fd in filler {
                    sys::close(fd).expect("close");
                }
                let child = t.child(|_| {
                    for _ in 0..10 {
                        wait_turn(child_in);
                        echo(fd, 5);
                        give_turn(to_parent);
                    }
                    "done".into()
                });
                t.tell("100");
                for _ in 0..10 {
                    echo(fd, 5);
                    give_turn(to_child);
                    wait_turn(parent_in);
                }
                t.wait("did");
                t.log("child", child.join());
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                t.wait("none left");
                let set = sys::epoll_create1(0).expect("epoll_create1");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).expect("epoll_ctl");
                t.log("quiet", sys::epoll_wait(set, 1, 30));
                t.tell("waited");
                t.expect_reason(fd, LINK_LOST);
                sys::close(set).expect("close");
                echo_rounds(t, fd);
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "process/fork-before-first-use",
            "a connection that was made before the fork is first used by the parent, then by the child, then by the parent",
            |t| {
                let (other, fd) = used_and_new(t);
                let [to_child, child_in] = pipe_pair();
                let child = t.child(|t| {
                    wait_turn(child_in);
                    serve(t, fd, 300);
                    "served".into()
                });
                serve(t, fd, 300);
                t.still_fast(other);
                give_turn(to_child);
                t.log("child", child.join());
                serve(t, fd, 300);
                t.tell("end");
                t.log("close", sys::close(fd));
            },
            new_echo_client,
        )
        .any_path(),
        pair(
            "process/child-polls-before-first-use",
            "a forked child polls a new connection, its parent sends on it many times, then the answer comes",
            |t| {
                let (other, fd) = used_and_new(t);
                let child = t.child(|t| {
                    t.tell("polls");
                    let revents = sys::poll_names(sys::await_events(fd, POLLIN, 20_000));
                    format!("{revents} {:?}", recv_exact(fd, 6))
                });
                t.wait("polls seen");
                for _ in 0..40 {
                    send_all(fd, &[7; 512]);
                }
                t.still_fast(other);
                t.tell("sent");
                t.log("child", child.join());
            },
            |t| {
                let (_other, fd) = use_and_open(t);
                t.wait("polls");
                t.tell("polls seen");
                recv_exact(fd, 40 * 512);
                t.wait("sent");
                send_all(fd, b"answer");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path(),
        pair(
            "process/fork-before-acceleration-set",
            "an epoll set of before the fork is used by the child when its parent has moved much on the connection since",
            |t| {
                let (other, fd) = used_and_new(t);
                let set = sys::epoll_create1(0).expect("set");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 7).expect("add");
                let [to_child, child_in] = pipe_pair();
                let child = t.child(|t| {
                    wait_turn(child_in);
                    t.tell("1");
                    let events = sys::epoll_wait(set, 4, 20_000);
                    echo(fd, 1);
                    format!("{events:x?}")
                });
                for _ in 0..3 {
                    serve(t, fd, 100);
                    t.log("set", sys::epoll_wait(set, 4, 0));
                }
                t.still_fast(other);
                give_turn(to_child);
                t.log("child", child.join());
                t.wait("did");
                t.tell("end");
                t.log("close", sys::close(fd));
            },
            new_echo_client,
        )
        .any_path(),
        pair(
            "process/child-keeps-what-its-parent-closed",
            "a child shuts down a connection that its parent has closed, when the parent has moved much on another one since",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                let [to_child, child_in] = pipe_pair();
                let child = t.child(|_| {
                    wait_turn(child_in);
                    let mut queued = 0;
                    format!("{:?} {:?}", sys::ioctl_int(fd, libc::TIOCOUTQ, &mut queued), sys::shutdown(fd, libc::SHUT_WR))
                });
                t.log("close", sys::close(fd));
                let next = sys::accept(listener).expect("accept");
                serve(t, next, 300);
                give_turn(to_child);
                t.log("child", child.join());
                serve(t, next, 300);
                t.tell("end");
                t.log("close", sys::close(next));
            },
            |t| {
                let addr = t.hear_addr();
                let (first, next) = (connected(addr), connected(addr));
                echo_rounds(t, next);
                t.log("first", sys::recv(first, &mut [0; 8], 0));
                t.log("next", sys::recv(next, &mut [0; 8], 0));
            },
        )
        .any_path(),
        pair(
            "process/fork-split-directions",
            "the child only reads, the parent only writes, at the same time",
            |t| {
                let fd = t.server();
                let child = t.child(|t| {
                    let mut receiver = t.receiver(fd, 4);
                    while receiver.received < 3_000_000 {
                        let room = (3_000_000 - receiver.received).min(40_000) as usize;
                        receiver.step(room, 0).expect("recv");
                    }
                    receiver.verdict()
                });
                t.pour(fd, 5, 3_000_000);
                t.log("child", child.join());
                t.went_back(fd, "inherited-by-fork");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                let writer = {
                    let mut sender = t.sender(fd, 4);
                    std::thread::spawn(move || {
                        while sender.sent < 3_000_000 {
                            let room = (3_000_000 - sender.sent).min(40_000) as usize;
                            sender.step(room, 0).expect("send");
                        }
                    })
                };
                t.drain(fd, 5, 3_000_000);
                writer.join().expect("thread");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
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
                t.log("eof comes with the child's end only", sys::recv(fd, &mut [0; 1], MSG_DONTWAIT));
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
            "process/fork-while-it-is-agreed-on",
            "connections that go on after a fork in each of their first calls: the child ends at once, or lives as long as they do",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..2 * AGREED_BY {
                    let fd = sys::accept(listener).expect("accept");
                    echo(fd, 300);
                    t.log("end", sys::recv(fd, &mut [0; 1], 0));
                    sys::close(fd).expect("close");
                }
            },
            |t| {
                let addr = t.hear_addr();
                for forked in 0..2 * AGREED_BY {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    let [to, from] = pipe_pair();
                    let mut child = None;
                    for i in 0..300u32 {
                        if i as usize == forked / 2 {
                            child = Some(t.child(|_| {
                                sys::close(to).expect("close");
                                if forked % 2 == 0 {
                                    let _ = sys::read(from, &mut [0; 1]);
                                }
                                "over".into()
                            }));
                        }
                        send_all(fd, &i.to_ne_bytes());
                        assert!(recv_exact(fd, 4) == i.to_ne_bytes());
                    }
                    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                    sys::close(to).expect("close");
                    t.log("child", child.expect("a child").join());
                    t.log("close", (sys::close(fd), sys::close(from)));
                }
            },
        )
        .any_path(),
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
            "process/blocked-parent",
            "threads of the parent are blocked in recv, poll, select and epoll_wait while a child uses their connections: what comes wakes them",
            |t| {
                let fds = t.servers(5);
                let [a, b, c, d, e] = fds[..] else { panic!("five") };
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, d, libc::EPOLLIN as u32, 4).expect("ADD");
                let edges = sys::epoll_create1(0).expect("epoll");
                let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
                sys::epoll_ctl(edges, libc::EPOLL_CTL_ADD, e, events, 5).expect("ADD");
                let read = |fd| move || recv_exact(fd, 4);
                let waiters = [
                    blocked(read(a)),
                    blocked(move || (sys::await_events(b, libc::POLLIN, 20_000), read(b)()).1),
                    blocked(move || {
                        let sets = sys::Sets {
                            read: vec![c],
                            ..Default::default()
                        };
                        sys::select(c + 1, &sets, Some(20_000)).expect("select");
                        read(c)()
                    }),
                    blocked(move || (sys::epoll_wait(set, 4, 20_000), read(d)()).1),
                    blocked(move || (sys::epoll_wait(edges, 4, 20_000), read(e)()).1),
                ];
                let child = t.child(move |_| {
                    for fd in fds {
                        sys::send(fd, b"from the child", 0).expect("send");
                    }
                    String::from("sent")
                });
                t.say(child.join());
                t.tell("used");
                for waiter in waiters {
                    t.log_text("woken", &waiter.join().expect("thread"));
                }
                t.tell("end");
            },
            |t| {
                let fds = t.clients(5);
                t.wait("used");
                for fd in &fds {
                    t.log_text("data", &recv_exact(*fd, 14));
                    send_all(*fd, b"wake");
                }
                t.wait("end");
            },
        )
        .demoted(),
        pair(
            "process/blocked-senders",
            "threads of the parent are blocked for room while a child uses their connections: the peer reads, and they go on",
            |t| {
                let fds = t.servers(3);
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fds[2], libc::EPOLLOUT as u32, 4).expect("ADD");
                let part = [7u8; 4096];
                for fd in &fds {
                    while sys::await_events(*fd, libc::POLLOUT, 0) != 0 || sys::send(*fd, &part, libc::MSG_DONTWAIT).is_ok() {
                        let _ = sys::send(*fd, &part, libc::MSG_DONTWAIT);
                    }
                }
                let [a, b, c] = fds[..] else { panic!("three") };
                let waiters = [
                    blocked(move || {
                        let events = sys::await_events(a, libc::POLLOUT, 20_000);
                        send_all(a, b"E");
                        sys::poll_names(events)
                    }),
                    blocked(move || {
                        send_all(b, &[&[7; 4 << 20][..], b"E"].concat());
                        String::from("sent")
                    }),
                    blocked(move || {
                        let events = sys::epoll_wait(set, 4, 20_000).expect("epoll_wait");
                        send_all(c, b"E");
                        format!("{events:?}")
                    }),
                ];
                let child = t.child(move |_| {
                    let seen = fds.iter().map(|fd| sys::recv(*fd, &mut [0; 8], libc::MSG_DONTWAIT));
                    format!("{:?}", seen.collect::<Vec<_>>())
                });
                t.say(child.join());
                t.tell("used");
                for waiter in waiters {
                    t.say(waiter.join().expect("thread"));
                }
            },
            |t| {
                let fds = t.clients(3);
                t.wait("used");
                for fd in fds {
                    let mut buf = vec![0; 1 << 20];
                    loop {
                        let n = sys::recv(fd, &mut buf, 0).expect("recv");
                        if n == 0 || buf[n - 1] == b'E' {
                            t.log("to the end", n > 0);
                            break;
                        }
                    }
                }
            },
        )
        .demoted(),
        pair(
            "process/exec-cat",
            "exec of cat with the connection as its standard input and output (inetd), bytes already waiting",
            |t| exec_cat(t, "/bin/cat", true, 0),
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-cat-without-the-library",
            "the same with a program that is not preloaded",
            |t| exec_cat(t, "/bin/cat", false, 0),
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-static",
            "exec of a statically linked program",
            |t| {
                let path = std::env::var("NETACC_TEST_STATIC_CAT");
                exec_cat(t, path.as_deref().unwrap_or("/bin/cat"), true, 0);
            },
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-after-partial-read",
            "the program that execs has read part of what was waiting; the rest is the new program's",
            |t| exec_cat(t, "/bin/cat", true, 400),
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-shell",
            "sh -c with the connection on fd 0 and 1: reads lines, answers, runs a further program",
            |t| {
                let fd = t.server();
                let script = "while read line; do echo \"got $line\"; [ \"$line\" = last ] && break; done; tr a-z A-Z";
                let pid = t.exec_on(fd, "/bin/sh", &["sh", "-c", script], true);
                t.went_back(fd, "stdio-stream");
                t.log("close", sys::close(fd));
                t.log("sh", sys::wait_child(pid));
            },
            |t| {
                let fd = t.client();
                let line = |expect: usize| String::from_utf8_lossy(&recv_exact(fd, expect)).into_owned();
                send_all(fd, b"one\n");
                t.log("answer", line(8));
                send_all(fd, b"two\nlast\n");
                t.log("answer", line(17));
                send_all(fd, b"shout\n");
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("rest", read_to_end(fd));
            },
        )
        .demoted(),
        pair(
            "process/exec-itself",
            "a process replaces itself by another program with the library, the connection under the same number",
            |t| {
                let fd = t.server();
                t.tell("send");
                await_bytes(fd, 1000);
                let number = fd.to_string();
                let child = t.helper("echo", &[&number], true, None);
                t.went_back(fd, "inherited-by-exec");
                t.log("close", sys::close(fd));
                t.log("helper", child.join());
            },
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-in-place",
            "a process becomes another program with the library, with bytes unread in both directions, and no fork before",
            |t| become_echo(t, true),
            echoed_by_another_program,
        )
        .demoted(),
        pair(
            "process/exec-in-place-without-the-library",
            "the same with a program that is not preloaded",
            |t| become_echo(t, false),
            echoed_by_another_program,
        )
        .demoted(),
        pair(
            "process/exec-in-place-fails",
            "an exec that fails, without a fork before: the process goes on with its connection",
            |t| {
                let fd = t.server();
                let bytes = unread_both_ways(t, fd);
                t.log("exec", sys::exec("/nonexistent/program", &["program"], true));
                t.tell("exec");
                t.log("its bytes", recv_exact(fd, 1000) == bytes);
                send_all(fd, &bytes);
                serve(t, fd, 50);
                t.went_back(fd, "inherited-by-exec");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                send_all(fd, &Pattern::new(6).bytes(0, 1000));
                t.wait("exec");
                t.drain(fd, 7, 500);
                t.drain(fd, 6, 1000);
                assert!(t.hear() == "50", "the rounds of echoes");
                for i in 0..50u32 {
                    send_all(fd, &i.to_ne_bytes());
                    assert!(recv_exact(fd, 4) == i.to_ne_bytes(), "echo {i}");
                }
                t.tell("did");
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "process/exec-closes-cloexec",
            "exec closes a CLOEXEC connection: the peer sees EOF when the parent's name is gone too",
            |t| {
                let fds = t.servers(2);
                t.log("cloexec", sys::fcntl(fds[0], libc::F_SETFD, libc::FD_CLOEXEC));
                let (a, b) = (fds[0].to_string(), fds[1].to_string());
                let child = t.helper("is-closed", &[&a], true, None);
                t.log("cloexec in the helper", child.join());
                let child = t.helper("is-closed", &[&b], true, None);
                t.log("the other in the helper", child.join());
                let child = t.helper("say-on", &[&b], true, None);
                t.log("helper", child.join());
                send_all(fds[0], b"still mine");
                t.log("close", (sys::close(fds[0]), sys::close(fds[1])));
            },
            |t| {
                let fds = t.clients(2);
                t.log("first", read_to_end(fds[0]));
                t.log("second", read_to_end(fds[1]));
            },
        )
        .demoted(),
        pair(
            "process/system-and-popen",
            "system() and popen() with live connections: nothing is lost, nobody gets an EOF",
            |t| {
                let fd = t.server();
                serve(t, fd, 50);
                t.log("system", sys::system("exit 3"));
                serve(t, fd, 50);
                let stream = Stream::popen("echo from the child; cat >/dev/null 2>&1 </dev/null", "r").expect("popen");
                serve(t, fd, 50);
                t.log("line", stream.gets());
                t.log("pclose", stream.pclose());
                let stream = Stream::popen("cat >/dev/null", "w").expect("popen");
                t.log("puts", stream.puts("text\n"));
                serve(t, fd, 50);
                t.log("pclose", stream.pclose());
                serve(t, fd, 50);
                t.went_back(fd, "inherited-by-exec");
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            echo_client,
        )
        .demoted(),
        pair(
            "process/spawn",
            "posix_spawn with file actions that close the connection in the child: the parent's table is untouched",
            |t| {
                let fds = t.servers(2);
                let [from, to] = sys::pipe();
                let pid = sys::spawn("/bin/echo", &["echo", "spawned"], &fds, to).expect("posix_spawn");
                sys::close(to).expect("close");
                t.log("output", read_to_end(from));
                t.log("status", sys::wait_child(pid));
                for fd in &fds {
                    send_all(*fd, b"alive");
                }
                t.went_back(fds[0], "inherited-by-exec");
                t.log("no such program", sys::spawn("/nonexistent", &["x"], &fds, 2).is_err());
                for fd in &fds {
                    send_all(*fd, b"still");
                }
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                for fd in &fds {
                    t.log_text("data", &recv_exact(*fd, 10));
                }
                t.meet("end");
            },
        )
        .demoted(),
        pair(
            "process/vfork-child-closes",
            "a vfork child closes and dup2()s over connections: the parent's are untouched",
            |t| {
                let fds = t.servers(2);
                let [from, _to] = sys::pipe();
                for _ in 0..10 {
                    t.log("child", sys::vfork_child_closing(fds[0], from, fds[1]));
                    for fd in &fds {
                        send_all(*fd, b"alive");
                        t.log_text("data", &recv_exact(*fd, 2));
                    }
                }
                t.log("close", (sys::close(fds[0]), sys::close(fds[1])));
            },
            |t| {
                let fds = t.clients(2);
                for _ in 0..10 {
                    for fd in &fds {
                        recv_exact(*fd, 5);
                        send_all(*fd, b"ok");
                    }
                }
                t.log("ends", (sys::recv(fds[0], &mut [0; 1], 0), sys::recv(fds[1], &mut [0; 1], 0)));
            },
        ),
        pair(
            "process/forked-and-both-read",
            "parent and child read one stream without taking turns: together exactly its bytes",
            |t| {
                let fd = t.server();
                let count = |fd: Fd| {
                    let (mut n, mut sum) = (0u64, 0u64);
                    let mut buf = [0; 777];
                    while let Ok(got) = sys::recv(fd, &mut buf, 0) {
                        if got == 0 {
                            break;
                        }
                        n += got as u64;
                        sum += buf[..got].iter().map(|b| u64::from(*b)).sum::<u64>();
                    }
                    (n, sum)
                };
                t.tell("go");
                let child = t.child(|_| {
                    let (n, sum) = count(fd);
                    format!("{n} {sum}")
                });
                let (n, sum) = count(fd);
                let text = child.join();
                let other: Vec<u64> = text.split(' ').map(|v| v.parse().unwrap_or(0)).collect();
                t.log("together", (n + other[0], sum + other[1]));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                t.pour(fd, 7, 1_000_000);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "process/forked-and-both-write",
            "parent and child write messages to one connection: no message is torn",
            |t| {
                let fd = t.server();
                let mut seen = [0u32; 2];
                loop {
                    let mut head = [0; 1];
                    if sys::recv(fd, &mut head, 0) != Ok(1) {
                        break;
                    }
                    let len = head[0] as usize;
                    let body = recv_exact(fd, len);
                    assert!(body.iter().all(|b| *b == body[0]), "a torn message");
                    seen[body[0] as usize] += 1;
                }
                t.log("messages", seen);
            },
            |t| {
                let fd = t.client();
                let speak = |who: u8| {
                    let mut rng = crate::pattern::Rng::new(u64::from(who) + 50);
                    for _ in 0..100 {
                        let len = rng.range(1, 250) as u8;
                        let mut message = vec![who; len as usize + 1];
                        message[0] = len;
                        assert!(sys::send(fd, &message, 0) == Ok(message.len()));
                    }
                };
                let child = t.child(|_| {
                    speak(1);
                    "spoke".into()
                });
                speak(0);
                t.log("child", child.join());
                t.went_back(fd, "inherited-by-fork");
                t.log("close", sys::close(fd));
            },
        )
        .demoted(),
        pair(
            "process/environment-cleared",
            "clearenv and chdir with a live connection, and a new connection afterwards (Redis overwrites its environment)",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                sys::clear_environment();
                std::env::set_current_dir("/").expect("chdir");
                serve(t, fd, 100);
                t.tell("end");
                let second = t.accept(listener);
                t.drain(second, 8, 100_000);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                echo_rounds(t, fd);
                let second = t.connect(addr);
                t.pour(second, 8, 100_000);
                t.log("eof", sys::recv(second, &mut [0; 1], 0));
            },
        ),
        pair(
            "process/exit-handlers",
            "exit() with live connections and threads that use them: status 0, the peer gets EOF or a reset",
            |t| {
                let fds = t.servers(2);
                let busy = fds[1];
                std::thread::spawn(move || {
                    loop {
                        if sys::recv(busy, &mut [0; 64], 0).unwrap_or(0) == 0 || sys::send(busy, b"x", 0).is_err() {
                            return;
                        }
                    }
                });
                t.wait("running");
                t.say("exit");
                sys::exit_with_handlers(0);
            },
            |t| {
                let fds = t.clients(2);
                let busy = fds[1];
                sys::ignore_signal(libc::SIGPIPE);
                let thread = std::thread::spawn(move || {
                    while sys::send(busy, b"y", 0).is_ok() && sys::recv(busy, &mut [0; 64], 0).unwrap_or(0) > 0 {}
                });
                sys::sleep_ms(20);
                t.tell("running");
                t.log("first", sys::recv(fds[0], &mut [0; 1], 0));
                thread.join().expect("thread");
                t.say("second ended");
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

/// Has a program that is cat serve a connection on which 1000 bytes wait, and answers `own` of them
/// itself before.
fn exec_cat(t: &Ctx, program: &str, preloaded: bool, own: usize) {
    let fd = t.server();
    t.tell("send");
    await_bytes(fd, 1000);
    if own > 0 {
        let got = recv_exact(fd, own);
        t.log("own part", Pattern::new(6).first_error(0, &got));
        send_all(fd, &got);
    }
    let pid = t.exec_on(fd, program, &["cat"], preloaded);
    t.went_back(fd, "stdio-stream");
    t.log("close", sys::close(fd));
    t.log("cat", sys::wait_child(pid));
}

/// Sends 1000 and then 50,000 pattern bytes to something that echoes, and checks the echo to EOF.
fn cat_client(t: &Ctx) {
    let fd = t.client();
    t.wait("send");
    let bytes = Pattern::new(6).bytes(0, 51_000);
    send_all(fd, &bytes[..1000]);
    let echo = recv_exact(fd, 1000);
    t.log("first", Pattern::new(6).first_error(0, &echo));
    for part in bytes[1000..].chunks(5000) {
        send_all(fd, part);
    }
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    let mut receiver = t.receiver(fd, 6);
    receiver.received = 1000;
    while receiver.step(4000, 0).expect("recv") > 0 {}
    t.log("echo", receiver.verdict());
}

/// Waits for the client's 1000 bytes, which stay unread, and sends it 500, which it does not read
/// yet. Returns the former.
fn unread_both_ways(t: &Ctx, fd: Fd) -> Vec<u8> {
    await_bytes(fd, 1000);
    t.pour(fd, 7, 500);
    t.still_fast(fd);
    Pattern::new(6).bytes(0, 1000)
}

/// The server replaces itself by an echo, which has its connection under the same number.
fn become_echo(t: &Ctx, keep_preload: bool) {
    let fd = t.server();
    unread_both_ways(t, fd);
    t.tell(&sys::getpid().to_string());
    let (program, number) = (own_program(), fd.to_string());
    t.log("exec", sys::exec(&program, &[&program, "helper", "echo", &number], keep_preload));
}

/// Its peer, which reads nothing before the other program runs, and no end before its own.
fn echoed_by_another_program(t: &Ctx) {
    let fd = t.client();
    let bytes = Pattern::new(6).bytes(0, 51_000);
    send_all(fd, &bytes[..1000]);
    let pid = t.hear();
    let runs = || {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|c| c.windows(6).any(|w| w == b"helper"))
    };
    while !runs() {
        let _ = sys::poll(&[], 1);
    }
    t.drain(fd, 7, 500);
    t.drain(fd, 6, 1000);
    t.went_back(fd, "peer-asked-for-tcp");
    for part in bytes[1000..].chunks(5000) {
        send_all(fd, part);
    }
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    let mut receiver = t.receiver(fd, 6);
    receiver.received = 1000;
    while receiver.step(4000, 0).expect("recv") > 0 {}
    t.log("echo", receiver.verdict());
}

fn pipe_pair() -> [Fd; 2] {
    let [from, to] = sys::pipe();
    [to, from]
}

fn give_turn(to: Fd) {
    let _ = sys::write(to, b"t");
}

fn wait_turn(from: Fd) {
    assert!(sys::read(from, &mut [0; 1]) == Ok(1), "the other process ended");
}
