//! A peer's end goes with bytes unread, by a death and otherwise: the survivor sees a reset, as
//! TCP's, and nothing but that.

use super::ends::{
    DEATHS, RESETS, doomed, dying_servers, end, fill, hears_of_it, killed_with_a_child, poll_now,
    until_it_fails,
};
use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd, Sets};
use libc::{
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL,
    POLLIN, POLLOUT, POLLRDHUP, SIGKILL, SO_ERROR, SOL_SOCKET,
};

/// When a survivor does something.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// It waits in it when its peer dies.
    Waits,
    /// As that, for room.
    WaitsForRoom,
    /// Behind the peer's end.
    Later,
    /// The same, with its buffer full.
    LaterFull,
}
use When::*;

// docs/manual/limits.md: "Death over RDMA".
const FINDS_ROOM: &[(&str, &str)] =
    &[("rdma", "who waits for room may find it on the carrier before it hears of the end")];

/// A way to hear of the peer's end, and what it says of that.
type Way = (&'static str, When, fn(Fd) -> String);

const WAYS: [Way; 24] = [
    ("recv", Waits, |fd| recv(fd, 0)),
    ("recv, to peek", Waits, |fd| recv(fd, MSG_PEEK)),
    ("recv, of all", Waits, |fd| recv(fd, MSG_WAITALL)),
    ("read", Waits, |fd| format!("{:?}", sys::read(fd, &mut [0; 8]))),
    ("recvmmsg", Waits, |fd| format!("{:?}", sys::recvmmsg(fd, &mut [&mut [0; 8]], 0, None))),
    ("poll IN", Waits, |fd| poll(fd, POLLIN)),
    ("poll IN RDHUP", Waits, |fd| poll(fd, POLLIN | POLLRDHUP)),
    ("poll RDHUP", Waits, |fd| poll(fd, POLLRDHUP)),
    ("poll nothing", Waits, |fd| poll(fd, 0)),
    ("poll OUT", WaitsForRoom, |fd| poll(fd, POLLOUT)),
    ("poll IN OUT", WaitsForRoom, |fd| poll(fd, POLLIN | POLLOUT)),
    ("select, to read", Waits, |fd| select(fd, true, false)),
    ("select, to write", WaitsForRoom, |fd| select(fd, false, true)),
    ("epoll IN", Waits, |fd| epoll(fd, EPOLLIN)),
    ("epoll IN RDHUP, edge", Waits, |fd| epoll(fd, EPOLLIN | EPOLLRDHUP | EPOLLET)),
    ("epoll nothing", Waits, |fd| epoll(fd, 0)),
    ("epoll OUT", WaitsForRoom, |fd| epoll(fd, EPOLLOUT)),
    ("epoll OUT, edge", WaitsForRoom, |fd| epoll(fd, EPOLLOUT | EPOLLET)),
    ("send", WaitsForRoom, |fd| sends(fd, 0, 0)),
    ("recv, later", Later, |fd| recv(fd, 0)),
    ("SO_ERROR, later", Later, so_error),
    ("epoll IN OUT RDHUP, edge, later", Later, |fd| {
        epoll(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)
    }),
    // (Who only sends hears of it a little later.)
    ("send, later", Later, |fd| sends(fd, 0, 1)),
    ("send without waiting, full", LaterFull, |fd| sends(fd, MSG_DONTWAIT, 1)),
];

fn recv(fd: Fd, flags: i32) -> String {
    format!("{:?}", sys::recv(fd, &mut [0; 8], flags))
}

fn poll(fd: Fd, events: i16) -> String {
    sys::poll_names(sys::await_events(fd, events, -1))
}

fn select(fd: Fd, read: bool, write: bool) -> String {
    let set = |wanted| if wanted { vec![fd] } else { vec![] };
    let sets = Sets { read: set(read), write: set(write), ..Sets::default() };
    let said = sys::select(fd + 1, &sets, None);
    format!("{:?}", said.map(|(n, sets, _)| (n, sets.read.len(), sets.write.len())))
}

fn epoll(fd: Fd, events: i32) -> String {
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events as u32, 1).expect("EPOLL_CTL_ADD");
    let said = sys::epoll_wait(set, 8, -1).expect("epoll_wait");
    sys::close(set).expect("close");
    said.iter().map(|e| sys::epoll_names(e.0)).collect()
}

fn so_error(fd: Fd) -> String {
    format!("{:?}", sys::getopt(fd, SOL_SOCKET, SO_ERROR).map(E))
}

/// Sends until it fails.
fn sends(fd: Fd, flags: i32, pause_ms: u64) -> String {
    let send = || loop {
        match sys::send(fd, &[1; 4096], MSG_NOSIGNAL | flags) {
            Err(E(libc::EAGAIN)) => sys::sleep_ms(1),
            said => return said,
        }
    };
    format!("{:?}", until_it_fails(1000, pause_ms, send))
}

/// What is left to be heard: each thing once.
pub(super) fn rest(t: &Ctx, name: &str, fd: Fd) {
    let polled = || sys::poll_names(poll_now(fd, POLLIN | POLLOUT | POLLRDHUP));
    t.log(name, polled());
    t.log(name, (recv(fd, 0), recv(fd, 0), so_error(fd), polled()));
    t.log(name, sys::send(fd, b"x", MSG_NOSIGNAL));
}

/// Uses one connection for each way, has the peer end meanwhile, and says what was heard, and what
/// was left to hear. `first` is waited for before a way that looks later.
fn survive(t: &Ctx, fds: &[Fd], ways: &[Way], first: fn(Fd)) {
    let mut waiting = vec![];
    for ((_, when, way), fd) in ways.iter().zip(fds) {
        if matches!(when, WaitsForRoom | LaterFull) {
            fill(*fd);
        }
        let (fd, way) = (*fd, *way);
        let waits = matches!(when, Waits | WaitsForRoom);
        waiting.push(waits.then(|| blocked(move || way(fd))));
    }
    t.tell("end");
    t.wait("ended");
    for (((name, when, way), fd), thread) in ways.iter().zip(fds).zip(waiting) {
        if *when == Later {
            first(*fd);
        }
        let said = thread.map_or_else(|| way(*fd), |thread| thread.join().expect("thread"));
        t.log(name, said);
        rest(t, name, *fd);
        sys::close(*fd).expect("close");
    }
}

/// A server for each death that ends with bytes unread on a connection for each way.
fn killed_with_unread(t: &Ctx, ways: &[Way]) {
    dying_servers(t, ways.len(), |_, fds| {
        fds.iter().for_each(|fd| await_bytes(*fd, 100));
    });
}

/// The other end of [`killed_with_unread`].
fn survive_each_death(t: &Ctx, ways: &[Way]) {
    for _ in DEATHS {
        let addr = t.hear_addr();
        let fds: Vec<Fd> = ways.iter().map(|_| t.connect(addr)).collect();
        fds.iter().for_each(|fd| send_all(*fd, &[1; 100]));
        t.wait("ready");
        survive(t, &fds, ways, |fd| hears_of_it(fd, POLLRDHUP));
    }
    t.meet("over");
}

fn receives(way: &Way) -> bool {
    let (name, when, _) = *way;
    !name.contains("send") && !name.contains("OUT") && matches!(when, Waits | Later)
}

/// Those that need not be able to send.
fn ways_to_receive() -> Vec<Way> {
    WAYS.into_iter().filter(receives).collect()
}

/// All others.
fn ways_to_send() -> Vec<Way> {
    WAYS.into_iter().filter(|way| !receives(way)).collect()
}

fn ways_with_data() -> Vec<Way> {
    WAYS.into_iter().filter(|(_, when, _)| *when == Later).collect()
}

/// What ends the last one who has a connection: nobody says a word.
const LAST: [&str; 4] = ["kill", "exit", "close", "exec"];

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "unread/killed",
            "a peer that was killed, ended by a signal's default action, or by _exit, had bytes unread: heard in each way to receive, once",
            |t| killed_with_unread(t, &ways_to_receive()),
            |t| survive_each_death(t, &ways_to_receive()),
        ),
        pair(
            "unread/killed-with-room",
            "the same, heard by who sends, or waits for room",
            |t| killed_with_unread(t, &ways_to_send()),
            |t| survive_each_death(t, &ways_to_send()),
        )
        .skip(FINDS_ROOM),
        pair(
            "unread/killed-slowly",
            "the same of a process that takes a third of a second to close its descriptors",
            |t| {
                dying_servers(t, ways_to_send().len(), |_, fds| {
                    sys::take_long_to_close(30);
                    fds.iter().for_each(|fd| await_bytes(*fd, 100));
                });
            },
            |t| survive_each_death(t, &ways_to_send()),
        )
        .skip(FINDS_ROOM),
        pair(
            "unread/killed-while-sending",
            "twenty peers are killed while a sender waits for room: it hears of a reset",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..20 {
                    let child = doomed(t, listener, 1, |t, _| t.tell("ready"));
                    t.wait("end");
                    end(child, SIGKILL);
                }
                t.meet("over");
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..20 {
                    let fd = t.connect(addr);
                    t.wait("ready");
                    fill(fd);
                    let sender = blocked(move || sends(fd, 0, 0));
                    t.tell("end");
                    t.log("send", sender.join().expect("thread"));
                    t.log("recv", recv(fd, 0));
                    sys::close(fd).expect("close");
                }
                t.meet("over");
            },
        ),
        pair(
            "unread/killed-behind-data",
            "the same of a peer that had sent: all of that comes first",
            |t| {
                dying_servers(t, 2 * ways_with_data().len(), |t, fds| {
                    for fd in fds {
                        await_bytes(*fd, 100);
                        t.pour(*fd, 1, 1000);
                    }
                });
            },
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let ways = ways_with_data();
                    let fds: Vec<Fd> = (0..2 * ways.len()).map(|_| t.connect(addr)).collect();
                    fds.iter().for_each(|fd| send_all(*fd, &[1; 100]));
                    t.wait("ready");
                    fds.iter().for_each(|fd| await_bytes(*fd, 1000));
                    let (some, others) = fds.split_at(ways.len());
                    t.tell("end");
                    t.wait("ended");
                    fds.iter().for_each(|fd| hears_of_it(*fd, POLLRDHUP));
                    for (fd, (name, _, way)) in some.iter().zip(&ways) {
                        t.log(name, way(*fd));
                        t.log(name, sys::poll_names(poll_now(*fd, POLLIN | POLLOUT)));
                        let mut left = vec![];
                        while let Ok(n @ 1..) = sys::recv(*fd, &mut [0; 100], MSG_DONTWAIT) {
                            left.push(n);
                        }
                        t.log("left", left.iter().sum::<usize>());
                        rest(t, name, *fd);
                    }
                    for fd in others {
                        t.drain_to_end(*fd, 1);
                        rest(t, "drained", *fd);
                    }
                }
                t.meet("over");
            },
        ),
        pair(
            "unread/killed-behind-all",
            "the same of a receive of more than the peer had sent: what there is, then the reset",
            |t| {
                dying_servers(t, 1, |t, fds| {
                    await_bytes(fds[0], 100);
                    t.pour(fds[0], 1, 100);
                });
            },
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let fd = t.connect(addr);
                    send_all(fd, &[1; 100]);
                    t.wait("ready");
                    await_bytes(fd, 100);
                    let all = blocked(move || sys::recv(fd, &mut [0; 200], MSG_WAITALL));
                    t.tell("end");
                    t.wait("ended");
                    t.log("recv", all.join().expect("thread"));
                    hears_of_it(fd, POLLRDHUP);
                    rest(t, "rest", fd);
                }
                t.meet("over");
            },
        ),
        pair(
            "unread/killed-behind-a-fin",
            "the same of a peer to which nothing more was to come",
            |t| {
                dying_servers(t, ways_to_receive().len(), |_, fds| {
                    fds.iter().for_each(|fd| await_bytes(*fd, 100));
                });
            },
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let ways = ways_to_receive();
                    let fds: Vec<Fd> = ways.iter().map(|_| t.connect(addr)).collect();
                    for fd in &fds {
                        send_all(*fd, &[1; 100]);
                        sys::shutdown(*fd, libc::SHUT_WR).expect("shutdown");
                    }
                    t.wait("ready");
                    survive(t, &fds, &ways, |_| ());
                }
                t.meet("over");
            },
        ),
        pair(
            "unread/nothing",
            "a peer that dies with nothing unread: the end of the stream, and no error",
            |t| {
                dying_servers(t, ways_to_receive().len(), |_, fds| {
                    fds.iter().for_each(|fd| drop(recv_exact(*fd, 100)));
                });
            },
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let ways = ways_to_receive();
                    let fds: Vec<Fd> = ways.iter().map(|_| t.connect(addr)).collect();
                    fds.iter().for_each(|fd| send_all(*fd, &[1; 100]));
                    t.wait("ready");
                    // (Which of them a FIN wakes is not the same: those that wait for no more than
                    // an error sleep on.)
                    let ways: Vec<_> = ways
                        .into_iter()
                        .map(|w| if w.0.contains("nothing") { ("recv", Later, WAYS[0].2) } else { w })
                        .collect();
                    let mut waiting = vec![];
                    for ((_, when, way), fd) in ways.iter().zip(&fds) {
                        let (fd, way) = (*fd, *way);
                        waiting.push((*when == Waits).then(|| blocked(move || way(fd))));
                    }
                    t.tell("end");
                    t.wait("ended");
                    for (((name, _, way), fd), thread) in ways.iter().zip(&fds).zip(waiting) {
                        let said = thread.map_or_else(|| way(*fd), |thread| thread.join().expect("thread"));
                        t.log(name, said);
                        t.log("recv", (recv(*fd, 0), so_error(*fd)));
                        t.log("poll", sys::poll_names(poll_now(*fd, POLLIN | POLLOUT | POLLRDHUP)));
                    }
                }
                t.meet("over");
            },
        )
        .skip(RESETS),
        pair(
            "unread/last-of-a-family",
            "a process is killed with bytes unread, and its forked child has the connection: no end, until that dies, closes, or is another program",
            |t| {
                for last in LAST {
                    let takes = |fd| {
                        await_bytes(fd, 1000);
                        sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("F_SETFD");
                    };
                    killed_with_a_child(t, takes, |_, fd| match last {
                        "kill" => _ = sys::kill(sys::getpid(), SIGKILL),
                        "close" => drop(sys::close(fd)),
                        "exec" => drop(sys::exec("/bin/true", &["true"], false)),
                        _ => {}
                    });
                }
                t.meet("over");
            },
            |t| {
                for last in LAST {
                    let addr = t.hear_addr();
                    let fd = t.connect(addr);
                    send_all(fd, &[1; 1000]);
                    t.wait("forked");
                    t.tell("kill");
                    t.wait("killed");
                    t.log("poll", sys::poll_names(poll_now(fd, POLLIN | POLLRDHUP)));
                    t.log("SO_ERROR", so_error(fd));
                    t.log("recv", recv(fd, MSG_DONTWAIT));
                    let receiver = blocked(move || recv(fd, 0));
                    t.tell("go on");
                    t.log(last, receiver.join().expect("thread"));
                    t.wait("over");
                    rest(t, last, fd);
                    sys::close(fd).expect("close");
                }
                t.meet("over");
            },
        ),
        pair(
            "unread/exec",
            "a process with bytes unread becomes another program, which has not the connection",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let child = t.child(|t| {
                    let fd = t.accept(listener);
                    await_bytes(fd, 1000);
                    sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("F_SETFD");
                    t.tell("there");
                    t.wait("exec");
                    format!("{:?}", sys::exec("/bin/true", &["true"], false))
                });
                let _ = child.join();
                t.meet("over");
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[1; 1000]);
                t.wait("there");
                let receiver = blocked(move || recv(fd, 0));
                t.tell("exec");
                t.log("recv", receiver.join().expect("thread"));
                rest(t, "rest", fd);
                t.meet("over");
            },
        ),
        pair(
            "unread/shutdown",
            "a peer shuts down, one way, both ways, one after the other, with bytes unread, and lives: the end of the stream, no reset",
            |t| {
                let fds = t.servers(5);
                fds.iter().for_each(|fd| await_bytes(*fd, 1000));
                t.wait("shut down");
                sys::shutdown(fds[0], libc::SHUT_WR).expect("SHUT_WR");
                sys::shutdown(fds[1], libc::SHUT_RDWR).expect("SHUT_RDWR");
                sys::shutdown(fds[2], libc::SHUT_RD).expect("SHUT_RD");
                sys::shutdown(fds[2], libc::SHUT_WR).expect("SHUT_WR");
                sys::shutdown(fds[3], libc::SHUT_WR).expect("SHUT_WR");
                sys::shutdown(fds[4], libc::SHUT_WR).expect("SHUT_WR");
                t.tell("shut");
                t.wait("read");
                for fd in fds {
                    recv_exact(fd, 1000);
                }
                t.meet("over");
            },
            |t| {
                let fds = t.clients(5);
                fds.iter().for_each(|fd| send_all(*fd, &[1; 1000]));
                // Its own end comes first.
                sys::shutdown(fds[4], libc::SHUT_WR).expect("SHUT_WR");
                let waits = fds[3];
                let receiver = blocked(move || recv(waits, 0));
                t.tell("shut down");
                t.wait("shut");
                t.log("recv", receiver.join().expect("thread"));
                for fd in fds {
                    hears_of_it(fd, POLLRDHUP);
                    t.log("poll", sys::poll_names(poll_now(fd, POLLIN | POLLRDHUP)));
                    t.log("recv", (recv(fd, 0), so_error(fd), recv(fd, 0)));
                }
                t.tell("read");
                t.meet("over");
            },
        ),
        pair(
            "unread/shutdown-by-a-child",
            "a forked child of a process that lives, or was killed, shuts down with bytes unread, and reads on: no reset",
            |t| {
                for killed in [false, true] {
                    let listener = t.listener();
                    t.publish(listener);
                    let [from, to] = sys::pipe();
                    let maker = doomed(t, listener, 2, move |t, fds| {
                        fds.iter().for_each(|fd| await_bytes(*fd, 1000));
                        if sys::fork().expect("fork") == 0 {
                            t.tell("forked");
                            let _ = sys::read(from, &mut [0]);
                            for fd in fds {
                                sys::shutdown(*fd, libc::SHUT_WR).expect("SHUT_WR");
                            }
                            t.tell("shut");
                            let _ = sys::read(from, &mut [0]);
                            for fd in fds {
                                recv_exact(*fd, 1000);
                            }
                            t.tell("all read");
                            let _ = sys::read(from, &mut [0]);
                            sys::exit_now(0);
                        }
                    });
                    t.wait("kill");
                    if killed {
                        sys::kill(maker.pid, SIGKILL).expect("kill");
                        let _ = sys::wait_child(maker.pid);
                    }
                    t.tell("killed");
                    for word in ["shut down", "read", "over"] {
                        t.wait(word);
                        let _ = sys::write(to, b"x");
                    }
                    if !killed {
                        sys::kill(maker.pid, SIGKILL).expect("kill");
                    }
                    let _ = maker.join();
                    let _ = (sys::close(from), sys::close(to), sys::close(listener));
                }
                t.meet("over");
            },
            |t| {
                for _ in 0..2 {
                    let addr = t.hear_addr();
                    let fds = [t.connect(addr), t.connect(addr)];
                    fds.iter().for_each(|fd| send_all(*fd, &[1; 1000]));
                    sys::shutdown(fds[1], libc::SHUT_WR).expect("SHUT_WR");
                    t.wait("forked");
                    t.tell("kill");
                    t.wait("killed");
                    t.tell("shut down");
                    t.wait("shut");
                    for fd in fds {
                        t.log("poll", sys::poll_names(poll_now(fd, POLLIN | POLLRDHUP)));
                        t.log("recv", (recv(fd, 0), so_error(fd), recv(fd, 0)));
                    }
                    t.tell("read");
                    t.wait("all read");
                    t.tell("over");
                }
                t.meet("over");
            },
        )
        .skip(RESETS),
    ]
}
