//! What RDMA does otherwise than TCP, and says so in docs/manual/limits.md: each scenario asks for
//! the difference there, and for what plain TCP does in every other mode. And what has to be the
//! same, in ways that cost little where a system call is slow.

mod moves;

use super::calls::receive_bytes;
use super::ends::{
    DEATHS, doomed, dying_servers, end, hears_of_it, killed_with_a_child, masks, poll_now,
    until_it_fails,
};
use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Addr, E, Fd, Sets, over_rdma};
use libc::{
    EPOLLET, EPOLLIN, IPPROTO_TCP, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, POLLERR, POLLHUP, POLLIN,
    POLLOUT, POLLRDHUP, SIGKILL, SIGTERM, SIGUSR1, SOL_SOCKET, TCP_CORK,
};

/// What looks whether something takes longer than TCP's 200 ms has so many tries: a busy machine
/// makes all of it slow.
const TRIES: usize = 50;
/// Connections that are sent to in turn, and how often.
const TOLD: usize = 4;
const ROUNDS: usize = 20;

/// Arrivals that are told of by edges.
const ARRIVALS: usize = 200;
/// Connections that go back to TCP, whose ends then look for room.
const GO_BACK: usize = 6;
/// Turns before a connection goes on in another process, and the bytes behind them.
const ASKED: usize = 30;
const REST: usize = 700_000;

/// Whether the peer's death was a reset: one error, and the end of both directions.
fn was_reset(fd: Fd) -> bool {
    let (first, then) = (sys::recv(fd, &mut [0; 8], 0), sys::recv(fd, &mut [0; 8], 0));
    let hung_up = poll_now(fd, POLLIN) & POLLHUP != 0;
    (first, then, hung_up) == (Err(E(libc::ECONNRESET)), Ok(0), true)
}

/// Whether it was the end of the stream, and nothing else.
fn was_the_end(fd: Fd) -> bool {
    let (first, then) = (sys::recv(fd, &mut [0; 8], 0), sys::recv(fd, &mut [0; 8], 0));
    let hung_up = poll_now(fd, POLLIN) & POLLHUP != 0;
    (first, then, hung_up) == (Ok(0), Ok(0), false)
}

/// What poll, select and epoll say without waiting, and should not, of a connection whose peer has
/// ended: of the end of the stream, or of a reset, which nobody has to ask for. `set` has had all
/// events of it since before.
fn wrong_masks(fd: Fd, set: Fd, is_reset: bool) -> Vec<String> {
    let unasked = if is_reset { POLLERR | POLLHUP } else { 0 };
    let mut wrong = Vec::new();
    let mut compare = |what: &str, events: i16, said: i16| {
        if said != events | unasked {
            let (events, said) = (sys::poll_names(events), sys::poll_names(said));
            wrong.push(format!("{what} of {events}: {said}"));
        }
    };
    let told = |set| {
        let events = sys::epoll_wait(set, 8, 0).expect("epoll_wait");
        events.iter().fold(0, |all, e| all | e.0 as i16)
    };
    for events in masks() {
        compare("poll", events, poll_now(fd, events));
        for trigger in [0, EPOLLET as u32] {
            let new = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
            sys::epoll_ctl(new, libc::EPOLL_CTL_ADD, fd, events as u32 | trigger, 1).expect("ADD");
            compare("epoll", events, told(new));
            sys::close(new).expect("close");
        }
    }
    compare("the old epoll", POLLIN | POLLOUT | POLLRDHUP, told(set));
    let sets = Sets { read: vec![fd], write: vec![fd], except: vec![fd] };
    let (n, sets, _) = sys::select(fd + 1, &sets, Some(0)).expect("select");
    let said = (n, sets.read.len(), sets.write.len(), sets.except.len());
    if said != (2, 1, 1, 0) {
        wrong.push(format!("select: {said:?}"));
    }
    wrong
}

pub fn list() -> Vec<Scenario> {
    let mut all = ends();
    all.extend(sends());
    all.extend(others());
    all.extend(went_on());
    all.extend(moves::list());
    all
}

fn ends() -> Vec<Scenario> {
    vec![
        pair(
            "hosts/killed-with-nothing-unread",
            "a peer dies with nothing unread or under way: the end of the stream; over RDMA a reset, unless it ended by _exit",
            |t| {
                for death in [SIGKILL, SIGTERM, SIGUSR1] {
                    let listener = t.listener();
                    t.publish(listener);
                    let child = doomed(t, listener, 1, |t, fds| {
                        recv_exact(fds[0], 100);
                        t.tell("read");
                    });
                    t.wait("end");
                    end(child, death);
                    t.tell("ended");
                    sys::close(listener).expect("close");
                }
                t.meet("over");
            },
            |t| {
                for death in [SIGKILL, SIGTERM, SIGUSR1] {
                    let fd = t.client();
                    send_all(fd, &[1; 100]);
                    t.wait("read");
                    t.tell("end");
                    t.wait("ended");
                    hears_of_it(fd, POLLRDHUP);
                    let resets = over_rdma() && death != SIGUSR1;
                    let right = if resets { was_reset(fd) } else { was_the_end(fd) };
                    t.log("as it has to be", right);
                    sys::close(fd).expect("close");
                }
                t.meet("over");
            },
        ),
        pair(
            "hosts/masks-of-dead",
            "poll, select and epoll of a survivor, with each set of events: its peer's death is the end of the stream; over RDMA a reset, unless it ended by _exit",
            |t| dying_servers(t, 2, |t, fds| t.pour(fds[1], 1, 100)),
            |t| {
                for death in DEATHS {
                    let addr = t.hear_addr();
                    let fds = [(); 2].map(|()| t.connect(addr));
                    let sets = fds.map(|fd| {
                        let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
                        let events = (POLLIN | POLLOUT | POLLRDHUP) as u32;
                        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 1).expect("ADD");
                        set
                    });
                    await_bytes(fds[1], 100);
                    t.wait("ready");
                    t.tell("end");
                    t.wait("ended");
                    let resets = over_rdma() && death != SIGUSR1;
                    for (fd, set) in fds.into_iter().zip(sets) {
                        // (As soon as one says it, all do.)
                        sys::await_events(fd, POLLRDHUP, 20_000);
                        hears_of_it(fd, POLLRDHUP);
                        t.log("wrong", wrong_masks(fd, set, resets));
                        if fd == fds[1] {
                            t.drain(fd, 1, 100);
                        }
                        let right = if resets { was_reset(fd) } else { was_the_end(fd) };
                        t.log("as it has to be", right);
                        let _ = (sys::close(fd), sys::close(set));
                    }
                }
                t.meet("over");
            },
        ),
        pair(
            "hosts/killed-with-a-child",
            "a process is killed, and its forked child has the connection: it goes on; over RDMA it is reset when that uses it",
            |t| {
                let takes = |fd| drop(recv_exact(fd, 1000));
                killed_with_a_child(t, takes, |_, fd| {
                    let _ = sys::send(fd, b"child", MSG_NOSIGNAL);
                    let _ = sys::recv(fd, &mut [0; 100], 0);
                });
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[1; 1000]);
                t.wait("forked");
                t.tell("kill");
                t.wait("killed");
                t.log("poll", sys::poll_names(poll_now(fd, POLLIN | POLLRDHUP)));
                send_all(fd, &[1; 100]);
                t.tell("go on");
                let right = if over_rdma() {
                    hears_of_it(fd, POLLRDHUP);
                    was_reset(fd)
                } else {
                    recv_exact(fd, 5) == b"child"
                };
                t.log("as it has to be", right);
                t.wait("over");
                let (e, soon) = until_it_fails(1000, 1, || sys::send(fd, &[1; 64], MSG_NOSIGNAL));
                t.log("send", (soon, matches!(e, E(libc::EPIPE | libc::ECONNRESET))));
            },
        ),
    ]
}

fn sends() -> Vec<Scenario> {
    vec![
        pair(
            "hosts/not-held-back",
            "what MSG_MORE and TCP_CORK hold back: for 200 ms at least, or until it is pushed; over RDMA not at all",
            |t| {
                let fd = t.server();
                while t.hear() == "look" {
                    recv_exact(fd, 6);
                    t.tell("seen");
                }
            },
            |t| {
                let fd = t.client();
                let mut at_once = false;
                for _ in 0..TRIES {
                    t.tell("look");
                    let begin = sys::now_ns();
                    sys::setopt(fd, IPPROTO_TCP, TCP_CORK, 1).expect("TCP_CORK");
                    sys::send(fd, b"abc", 0).expect("send");
                    sys::send(fd, b"def", MSG_MORE).expect("send");
                    t.wait("seen");
                    at_once |= sys::now_ns() - begin < 150_000_000;
                    sys::setopt(fd, IPPROTO_TCP, TCP_CORK, 0).expect("TCP_CORK");
                    if at_once || !over_rdma() {
                        break;
                    }
                }
                t.log("as it has to be", at_once == over_rdma());
                t.tell("end");
            },
        )
        .skip(&[
            ("early", "a change of path sends what is held back"),
            ("new", "a change of path sends what is held back"),
            ("fast", "a change of path sends what is held back"),
            ("switch", "a change of path sends what is held back"),
        ]),
        pair(
            "hosts/larger-send-buffer",
            "a larger SO_SNDBUF ends a blocked send; over RDMA that waits until the peer reads",
            |t| {
                let fd = t.server();
                while t.hear() == "read" {
                    while sys::recv(fd, &mut [0; 65536], MSG_DONTWAIT).is_ok() {}
                    t.tell("has read");
                }
                t.log("end", end_of(fd));
            },
            |t| {
                let fd = t.client();
                let (mut waits, mut slowest_ms) = (false, None);
                for _ in 0..if over_rdma() { 10 } else { 1 } {
                    sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 10_000).expect("SO_SNDBUF");
                    let sender = blocked(move || {
                        while sys::send(fd, &[1; 4096], MSG_NOSIGNAL | MSG_DONTWAIT).is_ok() {}
                        sys::send(fd, &[1; 4096], MSG_NOSIGNAL)
                    });
                    sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 400_000).expect("SO_SNDBUF");
                    // (A connection that has just come onto whole rings has room by itself. And
                    // who was woken on a slow kernel comes to its end later: it has ten times as
                    // long as one that the peer's reading has woken.)
                    let mut until_read = false;
                    if over_rdma() {
                        sys::sleep_ms(50 + 10 * slowest_ms.unwrap_or(0));
                        until_read = !sender.is_finished();
                        waits |= until_read && slowest_ms.is_some();
                        t.tell("read");
                    }
                    let begin = sys::now_ns();
                    let sent = sender.join().expect("thread");
                    if until_read {
                        let took = (sys::now_ns() - begin) / 1_000_000;
                        slowest_ms = slowest_ms.max(Some(took));
                    }
                    assert!(sent.is_ok_and(|n| n > 0), "{sent:?}");
                    if over_rdma() {
                        t.wait("has read");
                    }
                    if waits {
                        break;
                    }
                }
                t.log("as it has to be", waits == over_rdma());
                sys::shutdown(fd, libc::SHUT_WR).expect("shutdown");
                t.tell("end");
                t.log("end", end_of(fd));
            },
        )
        .any_path(),
        pair(
            "hosts/room-comes-back",
            "a connection goes back to TCP: a poll for room with a time-out ends with room, and a send that does not wait goes then",
            |t| {
                let fds = t.servers(GO_BACK);
                go_back(t, &fds, 0);
            },
            |t| {
                let fds = t.clients(GO_BACK);
                go_back(t, &fds, 1);
            },
        ),
        pair(
            "hosts/half-closed-before-the-agreement",
            "a client sends a little, shuts down its sending half, and receives a megabyte: exact, and between hosts on TCP",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.drain_to_end(fd, 41);
                t.pour(fd, 42, 1_000_000);
                t.is_back(fd);
                t.expect_reason(fd, &[("rdma", "shutting-down")]);
                t.meet("received");
                sys::close(fd).expect("close");
            },
            |t| {
                let fd = connected(t);
                t.pour(fd, 41, 1000);
                sys::shutdown(fd, libc::SHUT_WR).expect("SHUT_WR");
                t.drain(fd, 42, 1_000_000);
                t.is_back(fd);
                t.expect_reason(fd, &[("rdma", "shutting-down")]);
                t.meet("received");
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .any_path(),
        pair(
            "hosts/shut-down-and-not-read",
            "a client fills what is on the way to a peer that has shut down both halves, keeps the descriptor and does not read: its sends fail",
            |t| {
                let fd = t.server();
                t.wait("shut");
                sys::shutdown(fd, libc::SHUT_RDWR).expect("shutdown");
                t.tell("is shut");
                t.wait("done");
            },
            |t| {
                let fd = t.client();
                t.tell("shut");
                t.wait("is shut");
                let (e, soon) = until_it_fails(1000, u64::from(over_rdma()), || {
                    match sys::send(fd, &[0; 100_000], MSG_NOSIGNAL | MSG_DONTWAIT) {
                        Err(E(libc::EAGAIN)) if over_rdma() => Ok(0),
                        said => said,
                    }
                });
                t.log("fails", (soon, e));
                // The end is seen all the same.
                let heard = sys::await_events(fd, POLLIN | POLLRDHUP, 20_000);
                t.log("heard", heard & POLLRDHUP != 0);
                t.tell("done");
            },
        ),
        pair(
            "hosts/recvmmsg-error",
            "a reset behind a message of recvmmsg is the next call's",
            |t| {
                let fd = t.server();
                await_bytes(fd, 5);
                let reader = blocked(move || receive_bytes(fd, 6, 0, (50, 0)).0);
                t.tell("reset");
                t.log("before the reset", reader.join().expect("thread"));
                let next = || sys::recv(fd, &mut [0; 8], 0);
                let said = (next(), next());
                t.log("behind it", said);
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"abcde");
                t.wait("reset");
                sys::set_linger(fd, true, 0).expect("SO_LINGER");
                t.log("close", sys::close(fd));
            },
        ),
    ]
}

/// One of the ends asks for what only TCP has, each at half of the connections; both look for room.
fn go_back(t: &Ctx, fds: &[Fd], side: usize) {
    for (i, fd) in fds.iter().enumerate() {
        let leaves = i % 2 == side;
        t.meet("next");
        if leaves {
            sys::setopt(*fd, SOL_SOCKET, libc::SO_RCVLOWAT, 2).expect("SO_RCVLOWAT");
            t.tell("leaves");
        } else {
            t.wait("leaves");
        }
        // (The other end may find room in the ring still, and be asked for TCP behind that.)
        let mut sent = Err(E(libc::EAGAIN));
        for _ in 0..if leaves { 1 } else { 100 } {
            assert!(sys::await_events(*fd, POLLOUT, 20_000) & POLLOUT != 0, "no room");
            sent = sys::send(*fd, b"xy", MSG_DONTWAIT);
            if sent != Err(E(libc::EAGAIN)) {
                break;
            }
        }
        t.log("sent", sent);
        recv_exact(*fd, 2);
    }
    t.meet("over");
}

/// Connects, and uses nothing yet.
fn connected(t: &Ctx) -> Fd {
    connected_to(t.hear_addr())
}

fn connected_to(addr: Addr) -> Fd {
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    fd
}

fn end_of(fd: Fd) -> bool {
    while let Ok(n) = sys::recv(fd, &mut [0; 65536], 0) {
        if n == 0 {
            let _ = sys::shutdown(fd, libc::SHUT_WR);
            return true;
        }
    }
    false
}

fn others() -> Vec<Scenario> {
    vec![
        pair(
            "hosts/forked-after-accept",
            "a server forks for each connection, as PostgreSQL does: right, and between hosts on TCP",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..3 {
                    let fd = sys::accept(listener).expect("accept");
                    let child = t.child(|t| {
                        let _ = sys::close(listener);
                        while recv_exact(fd, 4) != b"end." {
                            send_all(fd, b"more");
                        }
                        t.pour(fd, 3, 200_000);
                        String::from("served")
                    });
                    sys::close(fd).expect("close");
                    t.log("child", child.join());
                }
                t.meet("over");
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..3 {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    for _ in 0..20 {
                        send_all(fd, b"ask.");
                        recv_exact(fd, 4);
                    }
                    if over_rdma() {
                        t.is_back(fd);
                    }
                    send_all(fd, b"end.");
                    t.drain_to_end(fd, 3);
                    sys::close(fd).expect("close");
                }
                t.meet("over");
            },
        )
        .any_path(),
        pair(
            "hosts/each-is-told-once",
            "connections of one epoll set are sent to in turn: each is reported, once, in whatever order",
            |t| {
                let fds = t.servers(TOLD);
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
                for (i, fd) in fds.iter().enumerate() {
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, *fd, EPOLLIN as u32, i as u64)
                        .expect("ADD");
                }
                let mut wrong = 0;
                for round in 0..ROUNDS {
                    t.tell("go");
                    let mut heard = [0; TOLD];
                    while heard.iter().sum::<usize>() < TOLD {
                        let events = sys::epoll_wait(set, 8, 20_000).expect("epoll_wait");
                        assert!(!events.is_empty(), "round {round}: {heard:?}");
                        for (events, i) in events {
                            heard[i as usize] += 1;
                            wrong += usize::from(events != EPOLLIN as u32);
                            recv_exact(fds[i as usize], 1);
                        }
                    }
                    wrong += usize::from(heard != [1; TOLD]);
                    t.wait("sent");
                }
                t.log("wrong", wrong);
                t.log("rest", sys::epoll_wait(set, 8, 0).map(|e| e.len()));
                t.tell("end");
            },
            |t| {
                let fds = t.clients(TOLD);
                for round in 0..ROUNDS {
                    t.wait("go");
                    for i in 0..TOLD {
                        send_all(fds[(i + round) % TOLD], b"x");
                    }
                    t.tell("sent");
                }
                t.wait("end");
            },
        ),
        pair(
            "hosts/edges",
            "an edge-triggered registration: each arrival is an edge, and nothing else is",
            |t| {
                let fd = t.server();
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
                let events = (EPOLLIN | EPOLLET) as u32;
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 1).expect("ADD");
                sys::epoll_wait(set, 8, 0).expect("epoll_wait");
                let mut edges = 0;
                for n in 0..ARRIVALS {
                    t.tell("go");
                    loop {
                        let told = sys::epoll_wait(set, 8, 20_000).expect("epoll_wait");
                        assert!(!told.is_empty(), "no edge of arrival {n}");
                        edges += told.len();
                        if sys::recv(fd, &mut [0; 8], MSG_DONTWAIT) == Ok(1) {
                            break;
                        }
                    }
                    send_all(fd, b"y");
                    t.wait("answered");
                }
                edges += sys::epoll_wait(set, 8, 0).expect("epoll_wait").len();
                t.log("edges", edges);
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                while t.hear() == "go" {
                    send_all(fd, b"x");
                    recv_exact(fd, 1);
                    t.tell("answered");
                }
            },
        ),
    ]
}

/// Connections that go on in a process that did not make them: the device is their maker's.
fn went_on() -> Vec<Scenario> {
    vec![
        pair(
            "hosts/passed-after-accept",
            "a server passes each connection to a worker and closes it: right, and between hosts on TCP",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|t| {
                    let fd = sys::recv_fds(from).expect("recvmsg").1[0];
                    for _ in 0..ASKED {
                        let ask = recv_exact(fd, 4);
                        send_all(fd, &ask);
                    }
                    t.drain(fd, 11, REST);
                    t.pour(fd, 12, REST);
                    format!("{:?}", sys::recv(fd, &mut [0; 8], 0))
                });
                let fd = accepted(t);
                let pass = sys::send_fds(to, b"fd", &[fd]);
                sys::close(fd).expect("close");
                // Behind what the worker says meanwhile.
                t.log("worker", worker.join());
                t.log("pass", pass);
                t.meet("over");
            },
            asks,
        )
        .any_path(),
        pair(
            "hosts/executed-after-accept",
            "a server forks for each connection, and the child becomes another program: right, and between hosts on TCP",
            |t| {
                let fd = accepted(t);
                let child = t.helper("echoes-serve-all", &[&fd.to_string(), "0"], true, None);
                sys::close(fd).expect("close");
                t.log("child", child.join());
                t.meet("over");
            },
            asks,
        )
        .any_path(),
    ]
}

/// Accepts one connection. Nobody has used it.
fn accepted(t: &Ctx) -> Fd {
    let listener = t.listener();
    t.publish(listener);
    let fd = sys::accept(listener).expect("accept");
    sys::close(listener).expect("close");
    fd
}

/// The client of those: turns, then a stream each way.
fn asks(t: &Ctx) {
    let fd = connected(t);
    for _ in 0..ASKED {
        send_all(fd, b"ask.");
        recv_exact(fd, 4);
    }
    t.is_back(fd);
    t.pour(fd, 11, REST);
    t.drain(fd, 12, REST);
    t.is_back(fd);
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
    t.meet("over");
}
