//! How the two ends of a connection find each other, and what `netacc_ss` says where they do not.

use crate::ctx::{Child, Ctx, recv_exact, send_all};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, Addr, Fd, home};
use libc::{AF_INET, IPPROTO_TCP, POLLIN, SOCK_STREAM, SOL_SOCKET};

/// Of every connection between a fresh server of `workers` processes and its first client.
const CONNECTIONS: usize = 16;
const CALLS: usize = 10;
const MESSAGE: usize = 64;

fn tcp() -> Fd {
    sys::socket(AF_INET, SOCK_STREAM, 0).expect("socket")
}

fn connected(addr: Addr) -> Fd {
    let fd = tcp();
    sys::connect(fd, addr).expect("connect");
    fd
}

/// Answers each message of any connection with this process's id, as a warm-up's server does, until
/// it is killed.
fn work(listener: Fd) -> String {
    let mut set = vec![(listener, POLLIN)];
    loop {
        let Ok((_, ready)) = sys::poll(&set, -1) else {
            continue;
        };
        let ready: Vec<Fd> = set
            .iter()
            .zip(ready)
            .filter(|(_, events)| *events != 0)
            .map(|((fd, _), _)| *fd)
            .collect();
        for fd in ready {
            if fd == listener {
                if let Ok(fd) = sys::accept(listener) {
                    set.push((fd, POLLIN));
                }
                continue;
            }
            let mut message = [0; MESSAGE];
            if sys::recv(fd, &mut message, 0) != Ok(MESSAGE) {
                set.retain(|(other, _)| *other != fd);
                let _ = sys::close(fd);
                continue;
            }
            send_all(fd, &answer());
        }
    }
}

fn answer() -> [u8; MESSAGE] {
    let mut answer = [0; MESSAGE];
    answer[..4].copy_from_slice(&sys::getpid().to_ne_bytes());
    answer
}

/// `rounds` messages to each of the connections in turn, all of them sent before any is answered.
fn in_turn(fds: &[Fd], rounds: usize) -> usize {
    let mut answers = 0;
    for _ in 0..rounds {
        for fd in fds {
            send_all(*fd, &[b'P'; MESSAGE]);
        }
        for fd in fds {
            answers += usize::from(recv_exact(*fd, MESSAGE).len() == MESSAGE);
        }
    }
    answers
}

/// A server with forked workers for each round, and nobody has called it before.
fn pre_fork_server(t: &Ctx, rounds: &[usize]) {
    for workers in rounds {
        let listener = t.listener();
        sys::set_nonblocking(listener, true);
        let children: Vec<Child> = (0..*workers).map(|_| t.child(|_| work(listener))).collect();
        t.publish(listener);
        t.wait("done");
        for child in children {
            let _ = sys::kill(child.pid, libc::SIGKILL);
            child.join();
        }
        sys::close(listener).expect("close");
    }
}

fn pre_fork_client(t: &Ctx, rounds: &[usize]) {
    for workers in rounds {
        let addr = t.hear_addr();
        let fds: Vec<Fd> = (0..CONNECTIONS).map(|_| connected(addr)).collect();
        t.log("answers", (workers, in_turn(&fds, CALLS)));
        // In the modes with that warm-up each of them has to become fast, whoever has accepted it.
        for fd in &fds {
            t.warm_client(*fd);
        }
        for fd in fds {
            sys::close(fd).expect("close");
        }
        t.tell("done");
    }
}

/// Whether a unix socket of a name that begins so listens. (What it has accepted has that name,
/// too.)
fn is_advertised(name: &str) -> bool {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("00010000");
    all.lines().any(|line| line.contains(name) && listens(line))
}

/// The exchanges of a connection of ten calls.
fn serve(fd: Fd, count: usize) {
    for _ in 0..count {
        recv_exact(fd, MESSAGE);
        send_all(fd, &answer());
    }
}

/// So many connections, one after the other.
fn calls_in_turn(t: &Ctx, count: usize) {
    for _ in 0..count {
        let fd = t.client();
        t.tell("done");
        sys::close(fd).expect("close");
    }
    t.say("called");
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "rendezvous/pre-fork-cold",
            "the first client of fresh pre-fork servers: many connections at once, all workers",
            |t| pre_fork_server(t, &[2, 2, 2, 4, 6]),
            |t| pre_fork_client(t, &[2, 2, 2, 4, 6]),
        ),
        pair(
            "rendezvous/sequential-listeners",
            "100 listeners one after the other, each on a port of its own, as FTP's passive mode makes them",
            |t| {
                for _ in 0..100 {
                    let fd = t.server();
                    t.wait("done");
                    sys::close(fd).expect("close");
                }
                t.say("served");
            },
            |t| calls_in_turn(t, 100),
        ),
        pair(
            "rendezvous/many-listeners",
            "300 listeners at the same time, all of which are called in turn",
            |t| {
                let listeners: Vec<Fd> = (0..300).map(|_| t.listener()).collect();
                for listener in &listeners {
                    t.publish(*listener);
                    let fd = t.accept(*listener);
                    t.wait("done");
                    sys::close(fd).expect("close");
                }
                t.say("served");
            },
            |t| calls_in_turn(t, 300),
        )
        .long(),
        pair(
            "rendezvous/after-a-plain-server",
            "a port is served by a process without the library, and right after that by one with it",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let plain = t.helper("serve", &[&listener.to_string(), "20"], false, None);
                t.say(plain.join());
                let fd = t.accept(listener);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let addr = t.hear_addr();
                let first = connected(addr);
                t.log("answers", in_turn(&[first], 20));
                t.log("eof", sys::recv(first, &mut [0; 1], 0));
                let fd = t.connect(addr);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "rendezvous/a-port-changes-hands",
            "another process listens at the port of one that the client has a connection to",
            |t| {
                let listener = t.listener();
                let addr = sys::getsockname(listener).expect("name");
                t.publish(listener);
                let fd = t.accept(listener);
                sys::close(listener).expect("close");
                // The name under which the first one was found is free then.
                let name = format!("netacc/1/{}/", addr.port());
                while is_advertised(&name) {
                    let _ = sys::poll(&[], 1);
                }
                let child = t.child(|t| {
                    let listener = t.listener_on(addr);
                    t.publish(listener);
                    let fd = t.accept(listener);
                    format!("{:?}", sys::recv(fd, &mut [0; 1], 0))
                });
                t.say(child.join());
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let first = t.client();
                let second = t.client();
                t.log("close", sys::close(second));
                t.log("close", sys::close(first));
            },
        )
        .skip(&[
            ("server-only", "the name is kept for 10 s"),
            ("early", "the name is kept for 10 s"),
            ("new", "the name is kept for 10 s"),
            ("switch", "the name is kept for 10 s"),
        ]),
        pair(
            "rendezvous/after-the-verdict",
            "an end that uses a connection only after the other has given up its search: the search begins again",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.wait("judged");
                let fd = sys::accept(listener).expect("accept");
                recv_exact(fd, 200);
                t.warm_server(fd);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = connected(t.hear_addr());
                for _ in 0..200 {
                    send_all(fd, b"x");
                }
                t.expect_reason(
                    fd,
                    &[
                        ("shm", "listener-without-library"),
                        ("early", "listener-without-library"),
                        ("client-only", "listener-without-library"),
                    ],
                );
                t.tell("judged");
                t.warm_client(fd);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "rendezvous/a-listener-over-exec",
            "a listener is inherited by a program that is executed with the library",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let served = t.helper("serve-warm", &[&listener.to_string()], true, None);
                t.say(served.join());
            },
            |t| {
                let fd = t.client();
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "rendezvous/reasons-of-peers",
            "what is said of a connection that is fast, whose peer has no library, or with acceleration off",
            |t| {
                let fd = t.server();
                t.expect_reason(
                    fd,
                    &[
                        ("tcp", "disabled-by-config"),
                        ("server-only", "peer-without-library"),
                        ("shm", "none"),
                    ],
                );
                t.meet("seen");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.expect_reason(
                    fd,
                    &[
                        ("tcp", "disabled-by-config"),
                        ("client-only", "listener-without-library"),
                        ("shm", "none"),
                    ],
                );
                t.meet("seen");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "rendezvous/reasons-of-the-unused",
            "what is said of a connection that nothing was sent on",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.expect_reason(fd, &not_started("server-only"));
                t.meet("seen");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = connected(t.hear_addr());
                t.expect_reason(fd, &not_started("client-only"));
                t.meet("seen");
                t.log("close", sys::close(fd));
            },
        )
        .any_path(),
        pair(
            "rendezvous/reasons-of-the-silent",
            "what is said of a connection that both ends have agreed on, and nobody uses from then on",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                serve(fd, 3);
                t.expect_reason(fd, &[("shm", "agreed"), ("rdma", "agreed")]);
                t.meet("seen");
                t.warm_server(fd);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = connected(t.hear_addr());
                t.log("answers", in_turn(&[fd], 3));
                t.expect_reason(fd, &[("shm", "agreed"), ("rdma", "agreed")]);
                t.meet("seen");
                // It takes the path when it is used again.
                t.warm_client(fd);
                t.expect_reason(fd, &[("shm", "none"), ("rdma", "none")]);
                t.log("close", sys::close(fd));
            },
        )
        .any_path(),
        pair(
            "rendezvous/reasons-one-end-off",
            "what is said of a connection whose client has the library, with acceleration off",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                serve(fd, 5);
                let alone = [
                    ("server-only", "peer-without-library"),
                    ("shm", "peer-without-library"),
                    ("early", "peer-without-library"),
                ];
                t.expect_reason(fd, &alone);
                serve(fd, 5);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let addr = t.hear_addr();
                // SAFETY: the process has one thread.
                unsafe { std::env::set_var("NACC_ENABLE_RDMA_DEFAULT", "0") };
                let client = t.helper("call", &[&addr.text(), "10"], true, None);
                t.say(client.join());
            },
        )
        .any_path(),
        pair(
            "rendezvous/reasons-of-options",
            "what is said of a connection with an option that the fast path has not",
            |t| {
                let fd = t.server();
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 2));
                t.log("no delay", sys::setopt(fd, IPPROTO_TCP, libc::TCP_NODELAY, 1));
                let option = [
                    ("server-only", "socket-option"),
                    ("shm", "socket-option"),
                    ("early", "socket-option"),
                ];
                t.expect_reason(fd, &option);
                t.meet("seen");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.meet("seen");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "rendezvous/reasons-of-a-listeners-option",
            "what is said of a connection whose listener has an option that the fast path has not",
            |t| serve_with_option(t, SOL_SOCKET, libc::SO_ZEROCOPY),
            call_with_option,
        )
        .any_path(),
        pair(
            "rendezvous/reasons-of-a-listeners-tcp-inq",
            "what is said of a connection whose listener has TCP_INQ",
            |t| serve_with_option(t, IPPROTO_TCP, TCP_INQ),
            call_with_option,
        )
        .any_path(),
        alone(
            "rendezvous/reasons-of-a-self-connect",
            "what is said of a socket that is connected to itself",
            |t| {
                let fd = tcp();
                sys::bind(fd, home()).expect("bind");
                let addr = sys::getsockname(fd).expect("name");
                t.log("connect", sys::connect(fd, addr));
                // It is looked up when it has shown that it lives.
                for _ in 0..2 {
                    send_all(fd, b"to myself");
                    recv_exact(fd, 9);
                }
                t.expect_reason(fd, &[("shm", "self-connect"), ("early", "self-connect")]);
            },
        ),
    ]
}

fn not_started(alone: &str) -> [(&str, &str); 4] {
    [alone, "shm", "new", "switch"].map(|mode| (mode, "not-started"))
}

/// Linux 4.18.
const TCP_INQ: i32 = 36;

/// A server whose listener has an option that its connections inherit.
fn serve_with_option(t: &Ctx, level: i32, name: i32) {
    let listener = tcp();
    t.log("set", sys::setopt(listener, level, name, 1));
    sys::bind(listener, home()).expect("bind");
    sys::listen(listener, 8).expect("listen");
    t.publish(listener);
    let fd = sys::accept(listener).expect("accept");
    serve(fd, 10);
    let option =
        [("server-only", "socket-option"), ("shm", "socket-option"), ("early", "socket-option")];
    t.expect_reason(fd, &option);
    t.meet("seen");
    t.log("eof", sys::recv(fd, &mut [0; 1], 0));
}

/// Its client: the server has the library, and does not want the connection.
fn call_with_option(t: &Ctx) {
    let fd = connected(t.hear_addr());
    for _ in 0..10 {
        send_all(fd, &answer());
        recv_exact(fd, MESSAGE);
    }
    let alone = [
        ("client-only", "listener-without-library"),
        ("shm", "not-claimed"),
        ("early", "not-claimed"),
    ];
    t.expect_reason(fd, &alone);
    t.meet("seen");
    t.log("close", sys::close(fd));
}
