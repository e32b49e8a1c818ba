//! Making connections: connect, listen, accept, addresses, and who is at the other end.

use crate::ctx::{Ctx, recv_exact, send_all};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, ANY6, Addr, E, Fd, LOOPBACK, home, home6};
use libc::{AF_INET, AF_INET6, POLLIN, POLLOUT, SO_ERROR, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET};

fn tcp() -> Fd {
    sys::socket(AF_INET, SOCK_STREAM, 0).expect("socket")
}

fn tcp_nonblocking() -> Fd {
    sys::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).expect("socket")
}

/// Exchanges pattern bytes both ways over a new connection, and closes.
fn exchange_server(t: &Ctx, fd: Fd) {
    t.drain(fd, 1, 200_000);
    t.pour(fd, 2, 200_000);
    t.log("eof", sys::recv(fd, &mut [0; 8], 0));
    t.log("close", sys::close(fd));
}

/// The same on an address, and who the peer is.
fn exchange_on(t: &Ctx, addr: Addr) {
    let listener = t.listener_on(addr);
    t.publish(listener);
    let fd = t.accept(listener);
    t.log("peer", sys::getpeername(fd).map(Addr::host));
    exchange_server(t, fd);
}

fn exchange_client(t: &Ctx, fd: Fd) {
    t.pour(fd, 1, 200_000);
    t.drain(fd, 2, 200_000);
    t.log("close", sys::close(fd));
}

/// Serves connections, echoing to EOF, until one begins with `stop`; returns how many were served.
fn echo_until_stopped(listener: Fd) -> usize {
    let mut served = 0;
    loop {
        let fd = match sys::accept(listener) {
            Ok(fd) => fd,
            Err(E(libc::EINTR)) => continue,
            Err(e) => panic!("accept: {e:?}"),
        };
        let mut buf = [0; 4096];
        let mut first = true;
        loop {
            match sys::recv(fd, &mut buf, 0) {
                Ok(0) | Err(_) => break,
                Ok(n) if first && &buf[..n] == b"stop" => {
                    sys::close(fd).expect("close");
                    return served;
                }
                Ok(n) => send_all(fd, &buf[..n]),
            }
            first = false;
        }
        sys::close(fd).expect("close");
        served += 1;
    }
}

/// Four children accept on one listener, until each is stopped.
fn pre_forked(t: &Ctx) {
    let listener = t.listener();
    t.publish(listener);
    let children: Vec<_> =
        (0..4).map(|_| t.child(|_| echo_until_stopped(listener).to_string())).collect();
    sys::close(listener).expect("close");
    let served: usize = children.into_iter().map(|c| c.join().parse().unwrap_or(0)).sum();
    t.log("served", served);
}

fn call(addr: Addr, rounds: u32) -> bool {
    let fd = sys::socket(addr.family(), SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    let same = (0..rounds).all(|i| {
        send_all(fd, &i.to_ne_bytes());
        recv_exact(fd, 4) == i.to_ne_bytes()
    });
    sys::close(fd).expect("close");
    same
}

fn stop(addr: Addr) -> sys::R {
    let fd = sys::socket(addr.family(), SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    send_all(fd, b"stop");
    let end = sys::recv(fd, &mut [0; 1], 0);
    sys::close(fd).expect("close");
    end
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "connect/blocking",
            "socket, connect, accept, exchange, close",
            |t| {
                let fd = t.server();
                exchange_server(t, fd);
            },
            |t| {
                let fd = t.client();
                exchange_client(t, fd);
            },
        ),
        pair(
            "connect/non-blocking",
            "EINPROGRESS, POLLOUT, SO_ERROR 0, a second and a third connect() as hiredis does it",
            |t| {
                let fd = t.server();
                exchange_server(t, fd);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = tcp_nonblocking();
                let first = sys::connect(fd, addr);
                t.log("in progress or done", first == Err(E(libc::EINPROGRESS)) || first == Ok(0));
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLOUT, 5000)));
                t.log("SO_ERROR", sys::getopt(fd, SOL_SOCKET, SO_ERROR));
                t.log("second", sys::connect(fd, addr));
                t.log("third", sys::connect(fd, addr));
                t.log("recv", sys::recv(fd, &mut [0; 1], 0));
                sys::set_nonblocking(fd, false);
                t.warm_client(fd);
                exchange_client(t, fd);
            },
        ),
        alone(
            "connect/refused",
            "ECONNREFUSED: blocking, non-blocking by SO_ERROR and by the second connect; then a retry",
            |t| {
                let listener = t.listener();
                let dead = sys::getsockname(listener).expect("name");
                sys::close(listener).expect("close");
                let fd = tcp();
                t.log("blocking", sys::connect(fd, dead));
                t.log("again", sys::connect(fd, dead));
                let fd = tcp_nonblocking();
                t.log("non-blocking", sys::connect(fd, dead));
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN | POLLOUT, 5000)));
                t.log("SO_ERROR", sys::getopt(fd, SOL_SOCKET, SO_ERROR).map(E));
                t.log("SO_ERROR", sys::getopt(fd, SOL_SOCKET, SO_ERROR));
                let fd = tcp_nonblocking();
                t.log("non-blocking", sys::connect(fd, dead));
                sys::await_events(fd, POLLOUT, 5000);
                t.log("second", sys::connect(fd, dead));
                t.log("third", sys::connect(fd, dead));
                sys::await_events(fd, POLLOUT, 5000);
                t.log("recv", sys::recv(fd, &mut [0; 1], 0));
                t.log("recv", sys::recv(fd, &mut [0; 1], 0));
                let live = t.listener();
                let fd = tcp();
                t.log("refused", sys::connect(fd, dead));
                t.log("the same socket", sys::connect(fd, sys::getsockname(live).expect("name")));
                let far = sys::accept(live).expect("accept");
                send_all(far, b"hello");
                t.log_text("data", &recv_exact(fd, 5));
            },
        ),
        pair(
            "connect/refused-then-elsewhere",
            "non-blocking connects that are refused, as the program hears by a second one, by SO_ERROR, or by both; then the same sockets elsewhere",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..3 {
                    let fd = t.accept(listener);
                    exchange_server(t, fd);
                }
            },
            |t| {
                let listener = t.listener();
                let dead = sys::getsockname(listener).expect("name");
                sys::close(listener).expect("close");
                let addr = t.hear_addr();
                for (by_option, by_connect) in [(false, true), (true, false), (true, true)] {
                    let fd = tcp_nonblocking();
                    t.log("connect", sys::connect(fd, dead));
                    sys::await_events(fd, POLLOUT, 5000);
                    if by_option {
                        t.log("SO_ERROR", sys::getopt(fd, SOL_SOCKET, SO_ERROR).map(E));
                    }
                    if by_connect {
                        t.log("second", sys::connect(fd, dead));
                    }
                    let mut result = sys::connect(fd, addr);
                    t.log("elsewhere", result);
                    // (The kernel says first that the other one has ended.)
                    if result == Err(E(libc::ECONNABORTED)) {
                        result = sys::connect(fd, addr);
                        t.log("and again", result);
                    }
                    sys::await_events(fd, POLLOUT, 5000);
                    t.log("connected", sys::connect(fd, addr));
                    sys::set_nonblocking(fd, false);
                    t.warm_client(fd);
                    exchange_client(t, fd);
                }
            },
        ),
        alone(
            "connect/errors",
            "EISCONN, EINVAL, EAFNOSUPPORT, EALREADY, ENETUNREACH-like errors of connect, bind, listen, accept",
            |t| {
                let listener = t.listener();
                let addr = sys::getsockname(listener).expect("name");
                let fd = tcp();
                t.log("short address", sys::connect_len(fd, addr, 4));
                t.log("length 0", sys::connect_len(fd, addr, 0));
                t.log("family", sys::connect(fd, home6()));
                t.log("connect", sys::connect(fd, addr));
                t.log("connect again", sys::connect(fd, addr));
                t.log("bind afterwards", sys::bind(fd, home()));
                t.log("listen on a connection", sys::listen(fd, 1));
                t.log("accept on a connection", sys::accept(fd));
                t.log("connect a listener", sys::connect(listener, addr));
                t.log("bind twice", sys::bind(listener, home()));
                t.log("address in use", {
                    let other = tcp();
                    sys::bind(other, addr)
                });
                t.log("not our address", sys::bind(tcp(), Addr::V4([192, 0, 2, 250], 0)));
                let fresh = tcp();
                t.log("accept without listen", sys::accept(fresh));
                t.log("listen unbound", sys::listen(fresh, 1));
                t.log("bound by listen", sys::getsockname(fresh).map(|a| a.port() != 0));
                t.log("broadcast", sys::connect(tcp(), Addr::V4([255, 255, 255, 255], 9)));
                t.log("accept4 flags", sys::accept4(listener, 0x4000_0000));
                sys::set_nonblocking(listener, true);
                let far = sys::accept(listener);
                t.log("accept", far.is_ok());
                t.log("accept, nothing", sys::accept(listener));
                t.log("poll", sys::poll_names(sys::await_events(listener, POLLIN | POLLOUT, 0)));
            },
        ),
        pair(
            "connect/names",
            "getsockname and getpeername mirror each other; short buffers; after the peer has gone",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let (fd, from, len) = sys::accept_addr(listener).expect("accept");
                t.warm_server(fd);
                let (local, peer) =
                    (sys::getsockname(fd).expect("local"), sys::getpeername(fd).expect("peer"));
                t.log("accept told the peer", from == Some(peer));
                t.log("length", len);
                t.log("local is the listener", local == sys::getsockname(listener).expect("name"));
                t.log("hosts", (local.host(), peer.host()));
                t.tell(&peer.text());
                t.log("short buffer", sys::getpeername_len(fd, 4));
                t.log("listener has no peer", sys::getpeername(listener).map(|_| ()));
                t.wait("end");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                t.log("still named", sys::getpeername(fd) == Ok(peer));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                t.log("peer", sys::getpeername(fd) == Ok(addr));
                let mine = t.hear_addr();
                t.log("local", sys::getsockname(fd) == Ok(mine));
                t.log("close", sys::close(fd));
                t.log("closed", sys::of_closed(|| sys::getsockname(fd).map(|_| ())));
                t.tell("end");
            },
        ),
        pair(
            "connect/ipv6",
            "an IPv6 address",
            |t| exchange_on(t, home6()),
            |t| {
                let fd = t.client();
                t.log("peer", sys::getpeername(fd).map(Addr::host));
                exchange_client(t, fd);
            },
        ),
        pair(
            "connect/dual-stack",
            "an IPv6 listener serves IPv4 clients as v4-mapped, and IPv6 clients",
            |t| {
                let listener = t.listener_on(ANY6);
                t.publish_port(home(), listener);
                for _ in 0..2 {
                    let fd = t.accept(listener);
                    t.log("peer", sys::getpeername(fd).map(Addr::host));
                    t.log("local", sys::getsockname(fd).map(Addr::host));
                    exchange_server(t, fd);
                }
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                exchange_client(t, fd);
                let fd = t.connect(home6().with_port(addr.port()));
                exchange_client(t, fd);
            },
        ),
        pair(
            "connect/v4-mapped-client",
            "an IPv6 socket connected to a v4-mapped address",
            |t| {
                let fd = t.server();
                t.log("peer", sys::getpeername(fd).map(Addr::host));
                exchange_server(t, fd);
            },
            |t| {
                let fd = t.connect(t.hear_addr().mapped());
                t.log(
                    "names",
                    (sys::getsockname(fd).map(Addr::host), sys::getpeername(fd).map(Addr::host)),
                );
                exchange_client(t, fd);
            },
        ),
        alone("connect/v6only", "IPV6_V6ONLY refuses IPv4 clients", |t| {
            let fd = sys::socket(AF_INET6, SOCK_STREAM, 0).expect("socket");
            t.log("set", sys::setopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1));
            t.log("bind", sys::bind(fd, ANY6));
            t.log("listen", sys::listen(fd, 5));
            let port = sys::getsockname(fd).expect("name").port();
            t.log("IPv4", sys::connect(tcp(), home().with_port(port)));
            let six = sys::socket(AF_INET6, SOCK_STREAM, 0).expect("socket");
            t.log("IPv6", sys::connect(six, home6().with_port(port)));
            let far = sys::accept(fd).expect("accept");
            send_all(far, b"six");
            t.log_text("data", &recv_exact(six, 3));
        }),
        pair(
            "connect/other-loopback-addresses",
            "127.0.0.2 and 0.0.0.0 as destinations, a client bound to 127.0.0.3",
            |t| {
                let listener = t.listener_on(Addr::V4([0, 0, 0, 0], 0));
                t.publish_port(LOOPBACK, listener);
                for _ in 0..3 {
                    let fd = t.accept(listener);
                    t.log("local", sys::getsockname(fd).map(Addr::host));
                    t.log("peer", sys::getpeername(fd).map(Addr::host));
                    exchange_server(t, fd);
                }
            },
            |t| {
                let port = t.hear_addr().port();
                for to in [[127, 0, 0, 2], [0, 0, 0, 0]] {
                    let fd = t.connect(Addr::V4(to, port));
                    t.log("peer", sys::getpeername(fd).map(Addr::host));
                    exchange_client(t, fd);
                }
                let fd = tcp();
                t.log("bind", sys::bind(fd, Addr::V4([127, 0, 0, 3], 0)));
                t.log("connect", sys::connect(fd, LOOPBACK.with_port(port)));
                t.warm_client(fd);
                exchange_client(t, fd);
            },
        )
        .loopback(),
        pair(
            "connect/bound-client",
            "bind with SO_REUSEADDR before connect; the port is the client's",
            |t| {
                let fd = t.server();
                let port: u16 = t.hear().parse().expect("a port");
                t.log("the port", sys::getpeername(fd).map(|a| a.port() == port));
                exchange_server(t, fd);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = tcp();
                t.log("bind", sys::bind(fd, home()));
                let port = sys::getsockname(fd).expect("name").port();
                t.log("connect", sys::connect(fd, addr));
                t.log("kept", sys::getsockname(fd).map(|a| a.port() == port));
                t.warm_client(fd);
                t.tell(&port.to_string());
                exchange_client(t, fd);
            },
        ),
        alone("connect/to-its-own-port", "a socket connected to itself (simultaneous open)", |t| {
            let fd = tcp();
            sys::bind(fd, home()).expect("bind");
            let addr = sys::getsockname(fd).expect("name");
            t.log("connect", sys::connect(fd, addr));
            t.log("names", sys::getsockname(fd) == sys::getpeername(fd));
            t.log("send", sys::send(fd, b"to myself", 0));
            t.log_text("recv", &recv_exact(fd, 9));
            t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
            t.log("eof", sys::recv(fd, &mut [0; 1], 0));
        }),
        alone(
            "connect/threads",
            "16 threads connect at the same time, each exchanges with a server thread",
            |t| {
                let listener = t.listener();
                let addr = sys::getsockname(listener).expect("name");
                let server = std::thread::spawn(move || {
                    let threads: Vec<_> = (0..16)
                        .map(|_| {
                            let fd = sys::accept(listener).expect("accept");
                            std::thread::spawn(move || {
                                for _ in 0..100 {
                                    let ask = recv_exact(fd, 4);
                                    send_all(fd, &ask);
                                }
                                sys::recv(fd, &mut [0; 1], 0)
                            })
                        })
                        .collect();
                    threads.into_iter().map(|t| t.join().expect("thread")).collect::<Vec<_>>()
                });
                let clients: Vec<_> =
                    (0..16).map(|_| std::thread::spawn(move || call(addr, 100))).collect();
                t.log("clients", clients.into_iter().all(|c| c.join().expect("thread")));
                t.log("ends", server.join().expect("thread").iter().all(|r| *r == Ok(0)));
            },
        ),
        pair(
            "connect/pre-fork",
            "four children accept on one inherited listener; 40 clients are served",
            pre_forked,
            |t| {
                let addr = t.hear_addr();
                let ok = (0..40).filter(|_| call(addr, 50)).count();
                t.log("right", ok);
                for _ in 0..4 {
                    t.log("stop", stop(addr));
                }
            },
        )
        .any_path(),
        pair(
            "connect/pre-fork-parallel",
            "four children accept on one listener; eight clients at once",
            pre_forked,
            |t| {
                let addr = t.hear_addr();
                let threads: Vec<_> = (0..8)
                    .map(|_| std::thread::spawn(move || (0..10).all(|_| call(addr, 20))))
                    .collect();
                t.log("right", threads.into_iter().all(|c| c.join().expect("thread")));
                for _ in 0..4 {
                    t.log("stop", stop(addr));
                }
            },
        )
        .any_path(),
        pair(
            "connect/reuse-port",
            "SO_REUSEPORT listeners of two processes on one port: every client is served",
            |t| {
                let bound = |addr: Addr| {
                    let fd = tcp();
                    sys::setopt(fd, SOL_SOCKET, libc::SO_REUSEPORT, 1).expect("SO_REUSEPORT");
                    sys::bind(fd, addr).expect("bind");
                    sys::listen(fd, 64).expect("listen");
                    fd
                };
                let own = bound(home());
                let addr = sys::getsockname(own).expect("name");
                let [end, open] = sys::pipe();
                let child = t.child(|_| {
                    sys::close(open).expect("close");
                    sys::close(own).expect("close");
                    let listener = bound(addr);
                    serve_until(listener, || sys::await_events(end, POLLIN, 0) != 0)
                });
                while sys::process_listeners(addr.port()) < 2 {
                    let _ = sys::poll(&[], 1);
                }
                t.publish(own);
                let mine = serve_until(own, || t.heard());
                t.wait("all called");
                sys::close(open).expect("close");
                let other = child.join();
                let sum = |text: &str| text.parse::<usize>().unwrap_or(0);
                t.log("served", sum(&mine) + sum(&other));
            },
            |t| {
                let addr = t.hear_addr();
                let ok = (0..60).filter(|_| call(addr, 20)).count();
                t.log("right", ok);
                t.tell("all called");
            },
        )
        .any_path(),
        pair(
            "connect/mixed-peers",
            "clients with and without the library on one port, in turn and at the same time",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let served = echo_until_stopped(listener);
                t.log("served", served);
            },
            |t| {
                let addr = t.hear_addr();
                for round in 0..3 {
                    let helper = t.helper("client", &[&addr.text(), "20000"], round % 2 == 1, None);
                    t.log("helper", helper.join());
                    t.log("own", call(addr, 100));
                }
                t.log("stop", stop(addr));
            },
        )
        .any_path(),
        pair(
            "connect/fast-open",
            "sendto(MSG_FASTOPEN): connects and sends in one call",
            |t| {
                let listener = t.listener();
                let _ = sys::setopt(listener, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 5);
                t.publish(listener);
                for _ in 0..2 {
                    let fd = sys::accept(listener).expect("accept");
                    t.log_text("data", &recv_exact(fd, 9));
                    t.warm_server(fd);
                    exchange_server(t, fd);
                }
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..2 {
                    let fd = tcp();
                    t.log("sendto", sys::sendto(fd, b"fast open", libc::MSG_FASTOPEN, Some(addr)));
                    t.log("peer", sys::getpeername(fd) == Ok(addr));
                    t.warm_client(fd);
                    exchange_client(t, fd);
                }
            },
        ),
        pair(
            "connect/fast-open-connect",
            "TCP_FASTOPEN_CONNECT: the connection is made at the first send",
            |t| {
                let listener = t.listener();
                let _ = sys::setopt(listener, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 5);
                t.publish(listener);
                for _ in 0..2 {
                    let fd = t.accept(listener);
                    exchange_server(t, fd);
                }
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..2 {
                    let fd = tcp();
                    t.log("set", sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1));
                    t.log("connect", sys::connect(fd, addr));
                    t.warm_client(fd);
                    exchange_client(t, fd);
                }
            },
        ),
        pair(
            "connect/defer-accept",
            "TCP_DEFER_ACCEPT: accept returns when data is there",
            |t| {
                let listener = t.listener();
                t.log("set", sys::setopt(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 3));
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.log_text("data", &recv_exact(fd, 5));
                exchange_server(t, fd);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = tcp();
                t.log("connect", sys::connect(fd, addr));
                send_all(fd, b"first");
                exchange_client(t, fd);
            },
        )
        .any_path(),
        pair(
            "connect/backlog",
            "clients that connect and send before the server accepts",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.wait("connected");
                for _ in 0..20 {
                    let fd = sys::accept(listener).expect("accept");
                    let ask = recv_exact(fd, 4);
                    send_all(fd, &ask);
                    t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                    sys::close(fd).expect("close");
                }
            },
            |t| {
                let addr = t.hear_addr();
                let fds: Vec<Fd> = (0..20u32)
                    .map(|i| {
                        let fd = tcp();
                        sys::connect(fd, addr).expect("connect");
                        send_all(fd, &i.to_ne_bytes());
                        fd
                    })
                    .collect();
                t.tell("connected");
                for (i, fd) in fds.iter().enumerate() {
                    t.log("answer", recv_exact(*fd, 4) == (i as u32).to_ne_bytes());
                    sys::close(*fd).expect("close");
                }
            },
        )
        .any_path(),
        pair(
            "connect/storm",
            "200 connections one after another, each promoted or not, with a few messages",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.log("served", echo_until_stopped(listener));
            },
            |t| {
                let addr = t.hear_addr();
                t.log("right", (0..200).filter(|i| call(addr, 1 + i % 7)).count());
                t.log("stop", stop(addr));
            },
        )
        .any_path(),
        pair(
            "connect/many-open",
            "150 connections open at the same time, used round robin",
            |t| {
                let fds = t.many_servers(150);
                for round in 0..5u32 {
                    for fd in &fds {
                        let ask = recv_exact(*fd, 4);
                        assert!(ask == round.to_ne_bytes());
                        send_all(*fd, &ask);
                    }
                }
                t.log("ends", fds.iter().all(|fd| sys::recv(*fd, &mut [0; 1], 0) == Ok(0)));
            },
            |t| {
                let fds = t.many_clients(150);
                for round in 0..5u32 {
                    for fd in &fds {
                        send_all(*fd, &round.to_ne_bytes());
                    }
                    for fd in &fds {
                        assert!(recv_exact(*fd, 4) == round.to_ne_bytes());
                    }
                }
                t.log("close", fds.iter().all(|fd| sys::close(*fd) == Ok(0)));
            },
        )
        .long(),
        pair(
            "connect/accept-timeout",
            "SO_RCVTIMEO on a listener bounds accept; SO_SNDTIMEO does not disturb connect",
            |t| {
                let listener = t.listener();
                t.log("set", sys::set_timeout(listener, libc::SO_RCVTIMEO, 60));
                t.log("accept", sys::accept(listener));
                t.log("set", sys::set_timeout(listener, libc::SO_RCVTIMEO, 10_000));
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.log(
                    "inherits",
                    sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_RCVTIMEO, 16).map(|v| v[0]),
                );
                t.warm_server(fd);
                exchange_server(t, fd);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = tcp();
                t.log("set", sys::set_timeout(fd, libc::SO_SNDTIMEO, 5000));
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                exchange_client(t, fd);
            },
        ),
        pair(
            "connect/accept-interrupted",
            "EINTR in accept; restarted with SA_RESTART",
            |t| {
                extern "C" fn nothing(_: libc::c_int) {}
                let listener = t.listener();
                sys::on_signal(libc::SIGUSR1, nothing, 0).expect("sigaction");
                t.log("accept", super::poll::interrupted(libc::SIGUSR1, || sys::accept(listener)));
                sys::on_signal(libc::SIGUSR1, nothing, libc::SA_RESTART).expect("sigaction");
                let fd = super::poll::interrupted(libc::SIGUSR1, || {
                    t.publish(listener);
                    sys::accept(listener)
                });
                t.log("restarted", fd.is_ok());
                let fd = fd.expect("accept");
                t.warm_server(fd);
                exchange_server(t, fd);
            },
            |t| {
                let addr = t.hear_addr();
                sys::sleep_ms(60);
                let fd = t.connect(addr);
                exchange_client(t, fd);
            },
        ),
        pair(
            "connect/own-lan-address",
            "the machine's own address on its network interface",
            |t| exchange_on(t, sys::lan_address().unwrap_or(home())),
            |t| {
                let fd = t.client();
                exchange_client(t, fd);
            },
        ),
    ]
}

/// Echoes what each connection says, until it is `over` and nobody waits to be accepted. (How many
/// of a group's calls come to one listener in a second is the kernel's affair.) The number served.
fn serve_until(listener: Fd, mut over: impl FnMut() -> bool) -> String {
    let mut served = 0;
    loop {
        if sys::await_events(listener, POLLIN, 5) == 0 {
            if over() {
                break;
            }
            continue;
        }
        let fd = sys::accept(listener).expect("accept");
        let mut buf = [0; 4096];
        while let Ok(n) = sys::recv(fd, &mut buf, 0) {
            if n == 0 {
                break;
            }
            send_all(fd, &buf[..n]);
        }
        sys::close(fd).expect("close");
        served += 1;
    }
    served.to_string()
}
