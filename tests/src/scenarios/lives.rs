//! What becomes of a listener, and of a socket, to which a connection would come by the TCP
//! connection of one before it (`docs/design/fast-connect.md`). Only the mode `fast` has short
//! connections before each scenario's own; all modes say the same.

use crate::ctx::{Ctx, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Fd};
use libc::{
    AF_INET, IPPROTO_TCP, POLLIN, SO_KEEPALIVE, SO_LINGER, SO_RCVBUF, SO_SNDBUF, SOCK_STREAM,
    SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY,
};

/// Connections of the scenario about what they leave behind.
const LEFT_BEHIND: usize = 60;
/// Exchanges of one that comes onto its rings before it is over.
const LONG_LIFE: usize = 2000;

fn tcp() -> Fd {
    sys::socket(AF_INET, SOCK_STREAM, 0).expect("socket")
}

/// The client of most: connects when it is told to, says hello, and hears how it ends.
fn says_hello(t: &Ctx) {
    let addr = t.hear_addr();
    t.wait("go");
    let fd = tcp();
    t.log("connect", sys::connect(fd, addr));
    t.log("send", sys::send(fd, b"hello", libc::MSG_NOSIGNAL));
    t.tell("sent");
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
}

/// Says hello, and hears how it ends.
fn hello_to_the_end(t: &Ctx, fd: Fd) {
    send_all(fd, b"hello");
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
    t.log("close", sys::close(fd));
}

/// Its server's: takes it from the listener, which is readable.
fn hears_hello(t: &Ctx, listener: Fd) {
    t.log("readable", sys::await_events(listener, POLLIN, 10_000));
    let fd = sys::accept(listener).expect("accept");
    t.log_text("data", &recv_exact(fd, 5));
    t.log("close", sys::close(fd));
}

/// Options that leave a carrier fit for other connections.
const OPTIONS: [(libc::c_int, libc::c_int); 5] = [
    (IPPROTO_TCP, TCP_NODELAY),
    (SOL_SOCKET, SO_KEEPALIVE),
    (IPPROTO_TCP, TCP_KEEPIDLE),
    (IPPROTO_TCP, TCP_KEEPINTVL),
    (IPPROTO_TCP, TCP_KEEPCNT),
];

/// Gives the `i`-th connection some options: those of the one before, others, with other values, or
/// none; and says what it has.
fn give_options(t: &Ctx, fd: Fd, i: usize) {
    for (at, (level, name)) in OPTIONS.into_iter().enumerate() {
        let value = match at {
            0 | 1 => i32::from(!i.is_multiple_of(7)),
            _ => 10 + (i / 8 % 3) as i32,
        };
        if ((i / 4 * 5) >> at) & 1 != 0 {
            t.log("set", sys::setopt(fd, level, name, value));
        }
        if !i.is_multiple_of(3) {
            t.log("has", sys::getopt(fd, level, name));
        }
    }
    t.log("all", format!("{:?}", OPTIONS.map(|o| sys::getopt(fd, o.0, o.1))));
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "lives/listener-shut-down",
            "a listener that is shut down refuses whoever comes then",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.log("shutdown", sys::shutdown(listener, libc::SHUT_RDWR));
                t.tell("go");
                t.wait("sent");
                t.log("accept", sys::accept(listener));
            },
            says_hello,
        )
        .any_path(),
        pair(
            "lives/listener-closed",
            "a listener that is closed refuses; the next one on that port gets the next connection",
            |t| {
                let listener = t.listener_behind_short_ones();
                let addr = sys::getsockname(listener).expect("getsockname");
                t.log("close", sys::close(listener));
                t.tell("closed");
                t.meet("refused");
                let listener = t.listener_on(addr);
                t.tell("go");
                hears_hello(t, listener);
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("closed");
                t.log("connect", sys::connect(tcp(), addr));
                t.meet("refused");
                t.wait("go");
                let fd = tcp();
                t.log("connect", sys::connect(fd, addr));
                send_all(fd, b"hello");
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .any_path(),
        pair(
            "lives/closed-with-one-queued",
            "a listener is closed while a connection waits to be accepted: that one is reset",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.tell("go");
                t.wait("sent");
                t.log("close", sys::close(listener));
            },
            says_hello,
        )
        .any_path(),
        pair(
            "lives/listener-duplicated",
            "a connection comes to a duplicate of its listener",
            |t| {
                let listener = t.listener_behind_short_ones();
                let twin = sys::dup(listener).expect("dup");
                t.tell("go");
                hears_hello(t, twin);
            },
            says_hello,
        )
        .any_path(),
        pair(
            "lives/listener-of-a-child",
            "a child accepts on its parent's listener, which accepts no more",
            |t| {
                let listener = t.listener_behind_short_ones();
                let child = t.child(|_| {
                    let fd = sys::accept(listener).expect("accept");
                    format!("{:?}", recv_exact(fd, 5))
                });
                t.tell("go");
                t.log("child", child.join());
            },
            says_hello,
        )
        .any_path(),
        pair(
            "lives/options-of-the-listener",
            "an option that its listener has been given is a connection's, too",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.log("set", sys::setopt(listener, SOL_SOCKET, SO_RCVBUF, 9000));
                t.log("set", sys::setopt(listener, IPPROTO_TCP, TCP_NODELAY, 1));
                t.tell("go");
                let fd = sys::accept(listener).expect("accept");
                t.log("buffer", sys::getopt(fd, SOL_SOCKET, SO_RCVBUF));
                t.log("nodelay", sys::getopt(fd, IPPROTO_TCP, TCP_NODELAY));
                t.log_text("data", &recv_exact(fd, 5));
            },
            says_hello,
        )
        .any_path(),
        pair(
            "lives/options-of-the-socket",
            "options that a socket was given before it is connected are the connection's, and no \
             others",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.tell("go");
                for _ in 0..4 {
                    hears_hello(t, listener);
                }
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("go");
                let options = [
                    None,
                    Some((IPPROTO_TCP, TCP_NODELAY, 1)),
                    None,
                    Some((SOL_SOCKET, SO_RCVBUF, 9000)),
                ];
                for option in options {
                    let fd = tcp();
                    if let Some((level, name, value)) = option {
                        t.log("set", sys::setopt(fd, level, name, value));
                    }
                    t.log("connect", sys::connect(fd, addr));
                    t.log("nodelay", sys::getopt(fd, IPPROTO_TCP, TCP_NODELAY));
                    hello_to_the_end(t, fd);
                }
            },
        )
        .any_path(),
        pair(
            "lives/options-in-between",
            "an option that a connection is given while it is used is not the next one's",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.tell("go");
                for i in 0..LEFT_BEHIND {
                    let fd = sys::accept(listener).expect("accept");
                    t.log_text("data", &recv_exact(fd, 5));
                    t.log("linger", sys::getopt_bytes(fd, SOL_SOCKET, SO_LINGER, 8));
                    if i % 4 == 3 {
                        t.log("set", sys::set_linger(fd, true, 3));
                    }
                    t.log("close", sys::close(fd));
                }
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("go");
                for i in 0..LEFT_BEHIND {
                    let fd = tcp();
                    t.log("connect", sys::connect(fd, addr));
                    send_all(fd, b"hello");
                    t.log("as ever", sys::getopt(fd, SOL_SOCKET, SO_SNDBUF) != Ok(2 * 9000));
                    if i % 4 == 1 {
                        t.log("set", sys::setopt(fd, SOL_SOCKET, SO_SNDBUF, 9000));
                    }
                    t.log("end", sys::recv(fd, &mut [0; 8], 0));
                    t.log("close", sys::close(fd));
                }
            },
        )
        .any_path(),
        pair(
            "lives/options-left-behind",
            "what a socket was given before it is connected is no matter of the next one's",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.tell("go");
                for _ in 0..LEFT_BEHIND {
                    hears_hello(t, listener);
                }
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("go");
                let nodelay = |fd| sys::getopt(fd, IPPROTO_TCP, TCP_NODELAY);
                for i in 0..LEFT_BEHIND {
                    let fd = tcp();
                    match i % 3 {
                        0 => sys::setopt(fd, IPPROTO_TCP, TCP_NODELAY, 1).expect("TCP_NODELAY"),
                        1 => sys::bind(fd, sys::Addr::V4([127, 0, 0, 2], 0)).expect("bind"),
                        _ => 0,
                    };
                    t.log("connect", sys::connect(fd, addr));
                    t.log("from", sys::getsockname(fd).map(sys::Addr::host));
                    t.log("nodelay", nodelay(fd));
                    hello_to_the_end(t, fd);
                }
            },
        )
        .any_path(),
        pair(
            "lives/options-set-again",
            "each connection has the options that it was given itself, whatever those before it had",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.tell("go");
                for i in 0..LEFT_BEHIND {
                    let fd = sys::accept(listener).expect("accept");
                    give_options(t, fd, i + 1);
                    t.log_text("data", &recv_exact(fd, 5));
                    t.log("close", sys::close(fd));
                }
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("go");
                for i in 0..LEFT_BEHIND {
                    let fd = tcp();
                    t.log("connect", sys::connect(fd, addr));
                    if i % 20 == 19 {
                        // (Asked by a child first.)
                        let child = t.child(|_| format!("{:?}", OPTIONS.map(|o| sys::getopt(fd, o.0, o.1))));
                        t.log("child", child.join());
                    }
                    give_options(t, fd, i);
                    hello_to_the_end(t, fd);
                }
            },
        )
        .any_path(),
        pair(
            "lives/first-one-bound",
            "the first connection of a program is bound to an address of its own: the next are not",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                for _ in 0..LONG_LIFE {
                    send_all(fd, &recv_exact(fd, 5));
                }
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
                t.log("close", sys::close(fd));
                t.meet("closed");
                for _ in 0..LEFT_BEHIND {
                    hears_hello(t, listener);
                }
            },
            |t| {
                let addr = t.hear_addr();
                let fd = tcp();
                t.log("bind", sys::bind(fd, sys::Addr::V4([127, 0, 0, 2], 0)));
                t.log("connect", sys::connect(fd, addr));
                t.log("from", sys::getsockname(fd).map(sys::Addr::host));
                for _ in 0..LONG_LIFE {
                    send_all(fd, b"hello");
                    recv_exact(fd, 5);
                }
                t.log("close", sys::close(fd));
                t.meet("closed");
                for _ in 0..LEFT_BEHIND {
                    let fd = tcp();
                    t.log("connect", sys::connect(fd, addr));
                    t.log("from", sys::getsockname(fd).map(sys::Addr::host));
                    hello_to_the_end(t, fd);
                }
            },
        )
        .any_path(),
        pair(
            "lives/client-gone",
            "a client sends, closes and exits before its connections are accepted: they are, with \
             their bytes",
            |t| {
                let listener = t.listener_behind_short_ones();
                t.tell("go");
                t.wait("sent");
                // (So that its end is heard of. It makes no difference what is.)
                std::thread::sleep(std::time::Duration::from_millis(300));
                for _ in 0..3 {
                    hears_hello(t, listener);
                }
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("go");
                for _ in 0..3 {
                    let fd = tcp();
                    t.log("connect", sys::connect(fd, addr));
                    send_all(fd, b"hello");
                    t.log("close", sys::close(fd));
                }
                t.tell("sent");
            },
        )
        .any_path(),
        pair(
            "lives/backlog",
            "nobody accepts: no more connections are made than the backlog has room for, twice",
            |t| {
                let listener = tcp();
                sys::bind(listener, sys::LOOPBACK).expect("bind");
                sys::listen(listener, 2).expect("listen");
                t.behind_short_ones(listener);
                t.tell("go");
                t.wait("counted");
            },
            |t| {
                let addr = t.hear_addr();
                t.wait("go");
                let nonblocking = SOCK_STREAM | libc::SOCK_NONBLOCK;
                let fds: Vec<Fd> = (0..12)
                    .map(|_| sys::socket(AF_INET, nonblocking, 0).expect("socket"))
                    .collect();
                for fd in &fds {
                    let _ = sys::connect(*fd, addr);
                }
                let made = |fd: &&Fd| sys::await_events(**fd, libc::POLLOUT, 50) != 0;
                let count = fds.iter().filter(made).count();
                t.log("at least one, and not all", (1..=6).contains(&count));
                t.tell("counted");
            },
        )
        .any_path(),
    ]
}
