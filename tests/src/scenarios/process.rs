//! fork, exec, spawn and their kin with live connections.

use crate::ctx::{
    Ctx, await_bytes, blocked, own_program, read_to_end, recv_exact, send_all, sum_to_end,
};
use crate::pattern::Pattern;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Addr, Fd, Stream};
use libc::{MSG_DONTWAIT, POLLIN};

mod children;
mod exec;
mod vforked;

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
    let mut all = first();
    all.extend(exec::list());
    all.extend(children::list());
    all.extend(vforked::list());
    all
}

fn first() -> Vec<Scenario> {
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
            "process/forked-and-both-read",
            "parent and child read one stream without taking turns: together exactly its bytes",
            |t| {
                let fd = t.server();
                let count = |fd: Fd| sum_to_end(fd, 777);
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
    ]
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
