//! Programs that make some of their calls past libc, where the library cannot see them.

use crate::bpf;
use crate::ctx::{Ctx, await_bytes, recv_exact, send_all};
use crate::raw::{self, Set};
use crate::ring::{self, Ring};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd};
use libc::{AF_INET, EAGAIN, EPOLLET, EPOLLIN, MSG_DONTWAIT, POLLIN, SOCK_STREAM};
use std::sync::atomic::{AtomicBool, Ordering};

const MESSAGE: usize = 64;
/// More than it takes to agree on a faster path.
const BEFORE: usize = 40;
const AFTER: usize = 200;
/// The bytes of an answer behind which nothing comes.
const LAST: u8 = 0xff;

/// Accepts without a warm-up.
fn accept(t: &Ctx) -> Fd {
    let listener = t.listener();
    t.publish(listener);
    let fd = sys::accept(listener).expect("accept");
    sys::close(listener).expect("close");
    fd
}

/// Receives one message by calls that are seen and do not wait; `wait` sees to that.
fn receive(fd: Fd, wait: &mut dyn FnMut()) -> Vec<u8> {
    let mut message = Vec::new();
    while message.len() < MESSAGE {
        let mut buf = [0; MESSAGE];
        let room = MESSAGE - message.len();
        match sys::recv(fd, &mut buf[..room], MSG_DONTWAIT) {
            Ok(0) => panic!("EOF"),
            Ok(n) => message.extend_from_slice(&buf[..n]),
            Err(E(EAGAIN)) => wait(),
            Err(e) => panic!("recv: {e:?}"),
        }
    }
    message
}

/// Answers messages; waits by `wait`, which the library is not to see. The connection stays on TCP,
/// and says why.
fn echo(t: &Ctx, fd: Fd, mut wait: impl FnMut()) {
    let mut serve = |count| {
        for _ in 0..count {
            let message = receive(fd, &mut wait);
            assert!(sys::send(fd, &message, MSG_DONTWAIT) == Ok(MESSAGE));
        }
    };
    serve(BEFORE);
    t.expect_reason(
        fd,
        &[("shm", "waits-unseen"), ("early", "waits-unseen"), ("rdma", "waits-unseen")],
    );
    serve(AFTER);
    t.say("served");
    t.meet("end");
}

fn client(t: &Ctx) {
    exchange(t, connected(t));
}

fn connected(t: &Ctx) -> Fd {
    let addr = t.hear_addr();
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    fd
}

/// Sends messages that say who sends them, until the server has seen both ends on a fast path. (How
/// many it takes to agree depends on the machine.)
fn ask_until_fast(t: &Ctx, fd: Fd) {
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&sys::getpid().to_ne_bytes());
    loop {
        send_all(fd, &message);
        if recv_exact(fd, MESSAGE)[0] == 1 {
            break;
        }
    }
    t.meet("end");
}

fn exchange(t: &Ctx, fd: Fd) {
    for n in 0..BEFORE + AFTER {
        send_all(fd, &[n as u8; MESSAGE]);
        assert!(recv_exact(fd, MESSAGE) == [n as u8; MESSAGE]);
    }
    t.meet("end");
}

/// These last some seconds, which one mode with the library is enough for.
const UNWATCHED: &[(&str, &str)] = &[
    ("tcp", "nothing is accelerated"),
    ("server-only", "nothing is accelerated"),
    ("client-only", "nothing is accelerated"),
    ("early", "lasts long, and is the same as in mode shm"),
    ("new", "lasts long, and is the same as in mode shm"),
    ("switch", "a connection that is not on a ring at the moment hangs for nobody"),
];

/// The same of connections of a forked child.
const UNWATCHED_CHILD: &[(&str, &str)] = &[
    UNWATCHED[0],
    UNWATCHED[1],
    UNWATCHED[2],
    UNWATCHED[3],
    UNWATCHED[4],
    ("rdma", "a child of a process that uses RDMA has no connections on it"),
];

/// Waits by calls that are seen until the connection is accelerated, then by `make`'s.
fn later(t: &Ctx, make: impl Fn(Fd) -> Box<dyn FnMut()>) {
    let fd = t.server();
    serve_later(t, fd, &mut make(fd));
    t.meet("end");
}

fn serve_later(t: &Ctx, fd: Fd, wait: &mut dyn FnMut()) {
    t.tell(&sys::getpid().to_string());
    for _ in 0..BEFORE {
        let message = receive(fd, wait);
        assert!(sys::send(fd, &message, 0) == Ok(MESSAGE));
    }
    t.expect_reason(fd, &[("shm", "waits-unseen"), ("rdma", "waits-unseen")]);
    t.say("served");
}

fn later_client(t: &Ctx) {
    let fd = t.client();
    exchange_later(t, fd);
    t.meet("end");
}

/// Each message comes when the server sleeps: it has to wait for every one.
fn exchange_later(t: &Ctx, fd: Fd) {
    let server = t.hear().parse().expect("a process");
    for n in 0..BEFORE {
        while !sys::is_asleep(server) {
            assert!(sys::exists(server), "the server has ended");
            std::thread::yield_now();
        }
        send_all(fd, &[n as u8; MESSAGE]);
        assert!(recv_exact(fd, MESSAGE) == [n as u8; MESSAGE]);
    }
}

/// The same connection under another number.
fn renamed(fd: Fd) -> Fd {
    let other = sys::fcntl(fd, libc::F_DUPFD, 70).expect("F_DUPFD") as Fd;
    sys::close(fd).expect("close");
    other
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "raw/epoll",
            "a server that waits by epoll calls past libc, level-triggered, and reads by calls that are seen: on TCP, and says why",
            |t| {
                let fd = accept(t);
                let set = Set::new();
                set.add(fd, EPOLLIN as u32);
                echo(t, fd, || assert!(set.wait(10_000) == 1));
            },
            client,
        )
        .any_path()
        .demoted(),
        pair(
            "raw/epoll-edge",
            "as raw/epoll, edge-triggered",
            |t| {
                let fd = accept(t);
                let set = Set::new();
                set.add(fd, (EPOLLIN | EPOLLET) as u32);
                echo(t, fd, || assert!(set.wait(10_000) == 1));
            },
            client,
        )
        .any_path()
        .demoted(),
        pair(
            "raw/epoll-wait",
            "a server whose set is made and changed by calls that are seen, and waited for past libc",
            |t| {
                let fd = accept(t);
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, 1).expect("ADD");
                echo(t, fd, || assert!(Set::of(set).wait(10_000) == 1));
            },
            client,
        )
        .any_path()
        .demoted(),
        pair(
            "raw/poll",
            "a server that waits by ppoll past libc",
            |t| {
                let fd = accept(t);
                echo(t, fd, || assert!(raw::poll(fd, POLLIN, 10_000) == POLLIN));
            },
            client,
        )
        .any_path()
        .demoted(),
        pair(
            "raw/ring",
            "a server that waits by an io_uring made and entered past libc (POLL_ADD)",
            |t| {
                let ring = ring::or_skip(t, Ring::raw(8, 0));
                let fd = accept(t);
                match ring {
                    Some(ring) => echo(t, fd, || raw::await_by_ring(&ring, fd)),
                    None => echo(t, fd, || assert!(raw::poll(fd, POLLIN, 10_000) == POLLIN)),
                }
            },
            client,
        )
        .any_path()
        .demoted(),
        pair(
            "raw/both-ends",
            "both ends wait past libc",
            |t| {
                let fd = accept(t);
                let set = Set::new();
                set.add(fd, (EPOLLIN | EPOLLET) as u32);
                echo(t, fd, || assert!(set.wait(10_000) == 1));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                for n in 0..BEFORE + AFTER {
                    assert!(sys::send(fd, &[n as u8; MESSAGE], MSG_DONTWAIT) == Ok(MESSAGE));
                    let message = receive(fd, &mut || assert!(raw::poll(fd, POLLIN, 10_000) == POLLIN));
                    assert!(message == [n as u8; MESSAGE]);
                }
                t.expect_reason(fd, &[("shm", "waits-unseen"), ("early", "waits-unseen"), ("rdma", "waits-unseen")]);
                t.meet("end");
            },
        )
        .any_path()
        .demoted(),
        pair(
            "raw/data-before",
            "a server that reads and writes past libc at first: the bytes cannot be counted, and the connection stays on TCP",
            |t| {
                let fd = accept(t);
                for _ in 0..BEFORE {
                    let mut message = [0; MESSAGE];
                    let mut got = 0;
                    while got < MESSAGE {
                        got += raw::read(fd, &mut message[got..]).expect("read");
                    }
                    assert!(raw::write(fd, &message) == Ok(MESSAGE));
                }
                // The agreement takes what time it takes: calls go on until it is over.
                let known = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        for n in 0.. {
                            let mut message = recv_exact(fd, MESSAGE);
                            let ends = n >= AFTER && known.load(Ordering::Acquire);
                            if ends {
                                message.fill(LAST);
                            }
                            send_all(fd, &message);
                            if ends {
                                break;
                            }
                        }
                    });
                    t.expect_reason(fd, &[("shm", "uncounted-bytes")]);
                    known.store(true, Ordering::Release);
                });
                t.say("served");
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                for n in 0.. {
                    let message = [(n % 100) as u8; MESSAGE];
                    send_all(fd, &message);
                    let answer = recv_exact(fd, MESSAGE);
                    if n >= BEFORE && answer == [LAST; MESSAGE] {
                        break;
                    }
                    assert!(answer == message);
                }
                t.meet("end");
            },
        )
        .any_path()
        .demoted(),
        pair(
            "raw/later-epoll",
            "a server that was seen to wait, and then waits by epoll past libc: it goes on after a second or two, on TCP, and says why",
            |t| {
                later(t, |fd| {
                    let set = Set::new();
                    set.add(fd, EPOLLIN as u32);
                    Box::new(move || assert!(set.wait(20_000) == 1))
                })
            },
            later_client,
        )
        .skip(UNWATCHED),
        pair(
            "raw/later-poll",
            "as raw/later-epoll, with ppoll",
            |t| later(t, |fd| Box::new(move || assert!(raw::poll(fd, POLLIN, 20_000) == POLLIN))),
            later_client,
        )
        .skip(UNWATCHED),
        pair(
            "raw/later-select",
            "as raw/later-epoll, with pselect6, on two connections in turn, under other numbers than those that they were made with",
            |t| {
                for fd in t.servers(2).into_iter().map(renamed) {
                    serve_later(t, fd, &mut || assert!(raw::select(fd, 20_000) == 1));
                }
                t.meet("end");
            },
            |t| {
                for fd in t.clients(2).into_iter().map(renamed) {
                    exchange_later(t, fd);
                }
                t.meet("end");
            },
        )
        .skip(UNWATCHED),
        pair(
            "raw/later-of-a-child",
            "as raw/later-poll, where a child sends, that was forked when its parent had just sent, by a connection of its own",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let parents = t.accept(listener);
                t.log("of the parent", recv_exact(parents, MESSAGE) == [1; MESSAGE]);
                let fd = t.accept(listener);
                serve_later(t, fd, &mut || assert!(raw::poll(fd, POLLIN, 20_000) == POLLIN));
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                send_all(fd, &[1; MESSAGE]);
                let child = t.child(|t| {
                    exchange_later(t, t.connect(addr));
                    "served".into()
                });
                t.log("child", child.join());
                t.meet("end");
            },
        )
        .skip(UNWATCHED_CHILD),
        pair(
            "raw/later-ring",
            "as raw/later-epoll, with an io_uring",
            |t| {
                later(t, |fd| match ring::or_skip(t, Ring::raw(8, 0)) {
                    Some(ring) => Box::new(move || raw::await_by_ring(&ring, fd)),
                    None => Box::new(move || assert!(raw::poll(fd, POLLIN, 20_000) == POLLIN)),
                })
            },
            later_client,
        )
        .skip(UNWATCHED),
        pair(
            "raw/later-read",
            "a server that was seen to wait, and then reads past libc: the read gets the bytes after a second or two, and others in order",
            |t| {
                let fd = t.server();
                t.tell(&sys::getpid().to_string());
                for _ in 0..BEFORE {
                    let mut message = [0; MESSAGE];
                    let mut got = 0;
                    while got < MESSAGE {
                        got += raw::read(fd, &mut message[got..]).expect("read");
                    }
                    assert!(sys::send(fd, &message, 0) == Ok(MESSAGE));
                }
                t.expect_reason(fd, &[("shm", "waits-unseen"), ("rdma", "waits-unseen")]);
                t.say("served");
                t.meet("end");
            },
            later_client,
        )
        .skip(UNWATCHED),
        pair(
            "raw/left-unread",
            "a program that leaves bytes unread for some seconds, asleep or computing, keeps its fast path",
            |t| {
                let fd = t.server();
                for computes in [false, true] {
                    t.tell("send");
                    t.wait("sent");
                    let end = sys::now_ns() + 3_000_000_000;
                    while sys::now_ns() < end {
                        if !computes {
                            sys::sleep_ms(3000);
                        }
                    }
                    t.log("all", recv_exact(fd, MESSAGE).len());
                    t.still_fast(fd);
                }
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..2 {
                    t.wait("send");
                    send_all(fd, &[1; MESSAGE]);
                    t.tell("sent");
                }
                t.meet("end");
            },
        )
        .waits(6)
        .skip(UNWATCHED),
        pair(
            "raw/left-unread-by-sleepers",
            "the same of a program whose threads sleep in waits that bytes do not end: for another edge, for a hang-up",
            |t| {
                let fd = t.server();
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, (EPOLLIN | EPOLLET) as u32, 1).expect("ADD");
                t.tell("send");
                t.log("edge", sys::epoll_wait(set, 8, -1));
                await_bytes(fd, MESSAGE);
                // Longer than the library looks after: its second look at bytes that stay, in the
                // third second. Where the kernel does not say in what threads sleep it takes them
                // for waiting four seconds later, and time-outs come late on a busy machine.
                std::thread::scope(|scope| {
                    scope.spawn(|| assert!(raw::poll(fd, 0, 4000) == 0));
                    t.log("another", sys::epoll_wait(set, 8, 4000));
                });
                t.log("all", recv_exact(fd, MESSAGE).len());
                t.still_fast(fd);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.wait("send");
                send_all(fd, &[1; MESSAGE]);
                t.meet("end");
            },
        )
        .waits(4)
        .skip(UNWATCHED),
        pair(
            "raw/later-write",
            "what is written past libc onto an accelerated connection comes to its place, or both ends see an error: never an end",
            |t| {
                let fd = t.server();
                t.meet("warm");
                assert!(raw::write(fd, &[7; MESSAGE]) == Ok(MESSAGE));
                t.tell("written");
                // The peer answers what is right.
                match sys::recv(fd, &mut [0; MESSAGE], 0) {
                    Ok(MESSAGE) | Err(E(libc::ECONNRESET | libc::EPIPE)) => t.say("an answer or an error"),
                    other => t.log("neither", other),
                }
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.meet("warm");
                t.wait("written");
                let mut buf = [0; MESSAGE];
                match sys::recv(fd, &mut buf, 0) {
                    Ok(MESSAGE) if buf == [7; MESSAGE] => send_all(fd, &buf),
                    Err(E(libc::ECONNRESET | libc::EPIPE)) => {}
                    other => t.log("neither", other),
                }
                t.say("bytes or an error");
                t.meet("end");
            },
        ),
        pair(
            "raw/later-write-and-close",
            "the same, with an ordinary send behind it, and a close: the peer receives in order, or an error, never an end behind another order",
            |t| {
                let fd = t.server();
                t.meet("warm");
                assert!(raw::write(fd, &[7; MESSAGE]) == Ok(MESSAGE));
                // (The peer may have heard of it.)
                let _ = sys::send(fd, &[8; MESSAGE], libc::MSG_NOSIGNAL);
                sys::close(fd).expect("close");
                t.tell("closed");
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.meet("warm");
                t.wait("closed");
                let mut all = Vec::new();
                let mut buf = [0; MESSAGE];
                let end = loop {
                    match sys::recv(fd, &mut buf, 0) {
                        Ok(n @ 1..) => all.extend_from_slice(&buf[..n]),
                        end => break end,
                    }
                };
                let in_order = all == [[7; MESSAGE], [8; MESSAGE]].concat();
                match end {
                    Ok(0) if in_order => t.say("in order, or an error"),
                    Err(E(libc::ECONNRESET | libc::EPIPE)) => t.say("in order, or an error"),
                    end => t.log("another order", (all, end)),
                }
                t.meet("end");
            },
        )
        .skip(&[("rdma", "what is written past the library between hosts: docs/manual/limits.md")]),
        pair(
            "raw/later-room",
            "a sender that waits for room past libc, by poll, and by an edge that it does not wait long for: it goes on, and all comes in order",
            |t| {
                let fd = t.server();
                t.wait("full");
                t.drain(fd, 31, 2_000_000);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                sys::setopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 20_000).expect("SO_SNDBUF");
                let mut sender = t.sender(fd, 31);
                let set = Set::new();
                set.add(fd, (libc::EPOLLOUT | libc::EPOLLET) as u32);
                let mut full = 0;
                while sender.sent < 2_000_000 {
                    let part = sender.upcoming((2_000_000 - sender.sent).min(5000) as usize);
                    match sys::send(fd, &part, libc::MSG_DONTWAIT) {
                        Ok(n) => sender.sent += n as u64,
                        Err(e) => {
                            assert!(e == E(libc::EAGAIN));
                            if full == 0 {
                                t.tell("full");
                            }
                            full += 1;
                            match full % 2 {
                                0 => drop(raw::poll(fd, libc::POLLOUT, 1000)),
                                _ => drop(set.wait(50)),
                            }
                        }
                    }
                }
                t.meet("end");
            },
        )
        .any_path(),
        pair(
            "raw/later-end",
            "a program that reads past libc what a peer has sent and closed behind it has the bytes, or an end before them: no others",
            |t| {
                let fd = t.server();
                t.meet("warm");
                t.wait("closed");
                let mut bytes = [0; MESSAGE];
                match raw::read(fd, &mut bytes) {
                    Ok(0) => {}
                    Ok(n) => assert!(bytes[..n].iter().all(|b| *b == 7)),
                    Err(e) => t.log("an error", e),
                }
                t.say("bytes, or the end");
            },
            |t| {
                let fd = t.client();
                t.meet("warm");
                send_all(fd, &[7; MESSAGE]);
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
        )
        .any_path(),
        pair(
            "raw/turns",
            "a program that never waits, and asks again and again, is seen by that",
            |t| {
                let fd = accept(t);
                for _ in 0..AFTER {
                    assert!(sys::recv(fd, &mut [0; 1], MSG_DONTWAIT) == Err(E(EAGAIN)));
                }
                t.tell("asked");
                // How many messages it takes to agree depends on the machine.
                loop {
                    let message = receive(fd, &mut || std::thread::yield_now());
                    let peer = i32::from_ne_bytes([message[0], message[1], message[2], message[3]]);
                    let done = t.is_fast(fd, peer);
                    assert!(sys::send(fd, &[u8::from(done); MESSAGE], MSG_DONTWAIT) == Ok(MESSAGE));
                    if done {
                        break;
                    }
                }
                t.expect_reason(fd, &[("shm", "none")]);
                t.say("served");
                t.meet("end");
            },
            |t| {
                let fd = connected(t);
                t.wait("asked");
                ask_until_fast(t, fd);
            },
        )
        .any_path(),
        pair(
            "raw/seen-in-a-set",
            "a program that takes a connection out of its set to serve it, as Apache does, is seen",
            |t| {
                let fd = accept(t);
                let set = sys::epoll_create1(0).expect("epoll_create1");
                loop {
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, 1).expect("ADD");
                    let ready = sys::epoll_wait(set, 8, 5000);
                    assert!(ready == Ok(vec![(EPOLLIN as u32, 1)]), "{ready:?}");
                    sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0).expect("DEL");
                    let message = receive(fd, &mut || panic!("what is ready is not there"));
                    let peer = i32::from_ne_bytes([message[0], message[1], message[2], message[3]]);
                    let done = t.is_fast(fd, peer);
                    assert!(sys::send(fd, &[u8::from(done); MESSAGE], MSG_DONTWAIT) == Ok(MESSAGE));
                    if done {
                        break;
                    }
                }
                t.expect_reason(fd, &[("shm", "none")]);
                t.say("served");
                t.meet("end");
            },
            |t| ask_until_fast(t, connected(t)),
        )
        .any_path(),
        pair(
            "raw/kernel-as-user",
            "a BPF map of sockets makes the kernel a connection's user: what comes goes on to another one (an accelerated connection's: to no one but the program)",
            |t| {
                let fd = t.server();
                let [near, far] = loopback();
                // (Where the caller may not, or the kernel has none of this, nothing is shown.)
                let map = bpf::send_on(fd, near);
                t.meet("told");
                t.wait("sent");
                let came = sys::poll(&[(fd, POLLIN), (far, POLLIN)], 10_000).expect("poll").1;
                let is_so = match came[..] {
                    _ if map.is_err() => true,
                    [here, there] if t.waits_until_fast() => here != 0 && there == 0,
                    [here, there] if !sys::has_library() => here == 0 && there != 0,
                    [here, there] => (here != 0) != (there != 0),
                    _ => false,
                };
                t.log("as it has to be", is_so);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.meet("told");
                send_all(fd, b"hello");
                t.tell("sent");
                t.meet("end");
            },
        ),
    ]
}

/// Both ends of a new connection.
fn loopback() -> [Fd; 2] {
    let listener = sys::socket(AF_INET, SOCK_STREAM, 0).expect("socket");
    sys::bind(listener, sys::home()).expect("bind");
    sys::listen(listener, 1).expect("listen");
    let near = sys::socket(AF_INET, SOCK_STREAM, 0).expect("socket");
    sys::connect(near, sys::getsockname(listener).expect("name")).expect("connect");
    let far = sys::accept(listener).expect("accept");
    sys::close(listener).expect("close");
    [near, far]
}
