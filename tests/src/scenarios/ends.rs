//! How an end hears that its peer has closed or died when it does not receive: it only sends, waits
//! for room, or polls without waiting.

mod killed_peers;

use crate::ctx::{Child, Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd, R, Sets};
use libc::{
    EPOLLET, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, POLLRDHUP, SIGKILL, SIGTERM,
    SIGUSR1,
};

/// How a process ends without closing its connections: by `kill -9`, a signal's default action,
/// `_exit`.
pub(super) const DEATHS: [i32; 3] = [SIGKILL, SIGTERM, SIGUSR1];

// docs/manual/limits.md: "Death over RDMA".
pub(super) const RESETS: &[(&str, &str)] =
    &[("rdma", "a process that dies on RDMA resets its connections")];

/// Over RDMA news of the peer's end comes a round trip or two later: waits for it there, and
/// elsewhere for nothing (docs/manual/limits.md, "close and shutdown over RDMA").
pub(super) fn hears_of_it(fd: Fd, events: i16) {
    if sys::over_rdma() {
        let said = sys::await_events(fd, events, 20_000);
        assert!(said != 0, "no news of the peer's end on fd {fd}");
        // (And there is no room while it goes back to TCP: "No room for a moment over RDMA".)
        sys::await_events(fd, POLLOUT, 20_000);
    }
}

extern "C" fn end_now(_: libc::c_int) {
    sys::exit_now(0)
}

/// A process that accepts `count` connections, does `work`, and waits for one of [`DEATHS`].
pub(super) fn doomed(t: &Ctx, listener: Fd, count: usize, work: impl FnOnce(&Ctx, &[Fd])) -> Child {
    t.child(|t| {
        sys::default_signal(SIGTERM);
        sys::on_signal(SIGUSR1, end_now, 0).expect("sigaction");
        let fds: Vec<Fd> = (0..count).map(|_| t.accept(listener)).collect();
        work(t, &fds);
        loop {
            let _ = sys::poll(&[], -1);
        }
    })
}

/// A process accepts a connection, `takes` what it is sent, forks, and is killed when the client
/// says `kill`; its child does `last` with the connection when the client says `go on`, and ends.
pub(super) fn killed_with_a_child(t: &Ctx, takes: impl FnOnce(Fd), last: impl FnOnce(&Ctx, Fd)) {
    let listener = t.listener();
    t.publish(listener);
    let [from, to] = sys::pipe();
    let maker = doomed(t, listener, 1, move |t, fds| {
        takes(fds[0]);
        if sys::fork().expect("fork") == 0 {
            t.tell("forked");
            let _ = sys::read(from, &mut [0]);
            last(t, fds[0]);
            sys::exit_now(0);
        }
    });
    t.wait("kill");
    sys::kill(maker.pid, SIGKILL).expect("kill");
    let _ = sys::wait_child(maker.pid);
    t.tell("killed");
    t.wait("go on");
    let _ = sys::write(to, b"x");
    // To the end of its child, too.
    let _ = maker.join();
    t.tell("over");
    let _ = (sys::close(from), sys::close(to), sys::close(listener));
}

pub(super) fn end(child: Child, death: i32) {
    sys::kill(child.pid, death).expect("kill");
    let _ = child.join();
}

/// A server that is a process of its own for each of [`DEATHS`], and ends in that way when the
/// client says so.
pub(super) fn dying_servers(t: &Ctx, count: usize, work: fn(&Ctx, &[Fd])) {
    for death in DEATHS {
        // A port of its own: no client has heard of the one before.
        let listener = t.listener();
        t.publish(listener);
        let child = doomed(t, listener, count, |t, fds| {
            work(t, fds);
            t.tell("ready");
        });
        t.wait("end");
        end(child, death);
        t.tell("ended");
        sys::close(listener).expect("close");
    }
    t.meet("over");
}

/// The client of [`dying_servers`], with what it does behind each of these ends.
fn survives_each_death(t: &Ctx, then: impl Fn(Fd)) {
    for _ in DEATHS {
        let addr = t.hear_addr();
        let fd = t.connect(addr);
        t.wait("ready");
        t.tell("end");
        t.wait("ended");
        then(fd);
    }
    t.meet("over");
}

/// Calls `send` until it fails; the error, and whether that came within `limit` calls.
pub(super) fn until_it_fails(
    limit: usize,
    pause_ms: u64,
    mut send: impl FnMut() -> R,
) -> (E, bool) {
    let begin = sys::now_ns();
    for n in 1.. {
        match send() {
            Err(e) => return (e, n <= limit),
            Ok(_) if sys::now_ns() - begin > 20_000_000_000 => break,
            Ok(_) if pause_ms > 0 => sys::sleep_ms(pause_ms),
            Ok(_) => {}
        }
    }
    (E(0), false)
}

/// Sends without waiting until there has been no room for a while.
pub(super) fn fill(fd: Fd) {
    let block = [7u8; 16384];
    let mut full = 0;
    while full < 5 {
        match sys::send(fd, &block, MSG_DONTWAIT | MSG_NOSIGNAL) {
            Ok(_) => full = 0,
            Err(E(libc::EAGAIN)) => {
                full += 1;
                sys::sleep_ms(2);
            }
            Err(e) => panic!("fill: {e:?}"),
        }
    }
}

pub(super) fn poll_now(fd: Fd, events: i16) -> i16 {
    sys::poll(&[(fd, events)], 0).expect("poll").1[0]
}

/// Polls without waiting until something is said.
fn poll_until(fd: Fd, events: i16) -> i16 {
    let begin = sys::now_ns();
    loop {
        let said = poll_now(fd, events);
        if said != 0 || sys::now_ns() - begin > 10_000_000_000 {
            return said;
        }
    }
}

/// Each set of events that can be asked for.
pub(super) fn masks() -> impl Iterator<Item = i16> {
    (0..8).map(|mask| {
        [POLLIN, POLLOUT, POLLRDHUP]
            .iter()
            .enumerate()
            .fold(0, |all, (i, e)| if mask >> i & 1 != 0 { all | e } else { all })
    })
}

/// What `poll` without waiting says, for each set of events that can be asked for.
fn all_masks(t: &Ctx, fd: Fd) {
    for events in masks() {
        t.log(&sys::poll_names(events), sys::poll_names(poll_now(fd, events)));
    }
    let sets = Sets { read: vec![fd], write: vec![fd], except: vec![fd] };
    let (n, sets, _) = sys::select(fd + 1, &sets, Some(0)).expect("select");
    t.log("select", (n, sets.read.len(), sets.write.len(), sets.except.len()));
}

/// Ways to wait for room, as long as it takes, each with what it says then.
const WAITS: [(&str, fn(Fd) -> String); 6] = [
    ("poll", |fd| sys::poll_names(sys::await_events(fd, POLLOUT, -1) & POLLOUT)),
    ("select", |fd| {
        let sets = Sets { write: vec![fd], ..Sets::default() };
        format!("{:?}", sys::select(fd + 1, &sets, None).map(|r| r.0))
    }),
    ("epoll, level", |fd| epoll_out(fd, 0)),
    ("epoll, edge", |fd| epoll_out(fd, EPOLLET as u32)),
    // (In the middle of a reset the kernel may say the one and not yet the other.)
    ("poll without waiting", |fd| format!("{:?}", poll_until(fd, POLLOUT) != 0)),
    ("send", |fd| {
        // The first may still have gone; a further one fails.
        format!("{:?}", until_it_fails(100_000, 0, || sys::send(fd, &[1; 4096], MSG_NOSIGNAL)).1)
    }),
];

fn epoll_out(fd: Fd, more: u32) -> String {
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLOUT as u32 | more, 1).expect("EPOLL_CTL_ADD");
    let events = sys::epoll_wait(set, 8, -1).expect("epoll_wait");
    let said = events.iter().fold(0, |all, e| all | e.0) & EPOLLOUT as u32;
    sys::close(set).expect("close");
    sys::epoll_names(said)
}

/// Waits for room on full connections in each way, has the peer end meanwhile, and says what each
/// waiter heard.
fn wait_for_room(t: &Ctx, fds: &[Fd]) {
    for fd in fds {
        fill(*fd);
    }
    let waiting: Vec<_> = WAITS
        .iter()
        .zip(fds)
        .map(|((name, wait), fd)| {
            let (fd, wait) = (*fd, *wait);
            let body = move || wait(fd);
            let looks = name.contains("without");
            (name, fd, if looks { std::thread::spawn(body) } else { blocked(body) })
        })
        .collect();
    t.tell("end");
    t.wait("ended");
    for (name, fd, thread) in waiting {
        t.log(name, thread.join().expect("thread"));
        let send = || sys::send(fd, &[1; 64], MSG_NOSIGNAL | MSG_DONTWAIT);
        let (e, soon) = until_it_fails(1000, 1, send);
        t.log("send", (soon, matches!(e, E(libc::EPIPE | libc::ECONNRESET))));
    }
}

const SENDS: [(&str, fn(Fd) -> R); 7] = [
    ("send", |fd| sys::send(fd, b"x", MSG_NOSIGNAL)),
    ("write", |fd| sys::write(fd, b"x")),
    ("writev", |fd| sys::writev(fd, &[b"x", b"y"])),
    ("sendto", |fd| sys::sendto(fd, b"x", MSG_NOSIGNAL, None)),
    ("sendmsg", |fd| sys::sendmsg(fd, &[b"x", b"y"], MSG_NOSIGNAL)),
    ("sendmmsg", |fd| sys::sendmmsg(fd, &[b"x"], MSG_NOSIGNAL).map(|n| n.len())),
    ("large", |fd| sys::send(fd, &[0; 100_000], MSG_NOSIGNAL | MSG_DONTWAIT).map(|_| 1)),
];

/// What a send has said to a peer that has ended, where it did not fail yet: over RDMA there may be
/// no room for a round trip or two (docs/manual/limits.md, "No room for a moment over RDMA").
pub(super) fn or_no_room(said: R) -> R {
    match said {
        Err(E(libc::EAGAIN)) if sys::over_rdma() => Ok(0),
        said => said,
    }
}

/// Sends, and waits for nothing, until it fails. Over RDMA that takes a round trip or two
/// (docs/manual/limits.md, "close and shutdown over RDMA"). What goes in that time counts as
/// unread, so the error may be a reset ("Death with unread bytes").
fn only_sends(t: &Ctx, name: &str, send: impl Fn() -> R) {
    let over_rdma = sys::over_rdma();
    let goes = || or_no_room(send());
    t.log(name, goes().is_ok());
    let (e, soon) = until_it_fails(1000, u64::from(over_rdma), goes);
    let e = if over_rdma && e == E(libc::ECONNRESET) { E(libc::EPIPE) } else { e };
    t.log("fails", (e, soon));
}

/// Ways to shut down both halves.
const SHUT_BOTH: [&[i32]; 3] =
    [&[libc::SHUT_RDWR], &[libc::SHUT_RD, libc::SHUT_WR], &[libc::SHUT_WR, libc::SHUT_RD]];

/// A server that shuts down both halves, in each way, of so many connections, and keeps them.
fn shuts_both_down(t: &Ctx, each: usize) {
    let fds = t.servers(SHUT_BOTH.len() * each);
    for (fds, shutdowns) in fds.chunks(each).zip(SHUT_BOTH) {
        for fd in fds {
            t.wait("shut");
            for how in shutdowns {
                sys::shutdown(*fd, *how).expect("shutdown");
            }
            t.tell("is shut");
        }
    }
    t.wait("done");
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "ends/send-to-closed",
            "a client that only sends, and waits for nothing: to a peer that has closed one send goes, the next ones fail",
            |t| {
                for fd in t.servers(SENDS.len()) {
                    t.wait("close");
                    sys::close(fd).expect("close");
                    t.tell("closed");
                }
            },
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                for ((name, send), fd) in SENDS.iter().zip(t.clients(SENDS.len())) {
                    t.tell("close");
                    t.wait("closed");
                    hears_of_it(fd, POLLRDHUP);
                    t.log(name, send(fd).is_ok());
                    t.log("fails", until_it_fails(100, 0, || send(fd)));
                }
            },
        ),
        pair(
            "ends/send-to-closed-unheard",
            "the same where the news may be on its way still, which nobody waits for",
            |t| {
                for fd in t.servers(SENDS.len()) {
                    t.wait("close");
                    sys::close(fd).expect("close");
                    t.tell("closed");
                }
            },
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                for ((name, send), fd) in SENDS.iter().zip(t.clients(SENDS.len())) {
                    t.tell("close");
                    t.wait("closed");
                    only_sends(t, name, || send(fd));
                }
            },
        ),
        pair(
            "ends/send-behind-the-end",
            "a client that has waited for its peer's end, and then only sends: its sends fail, however it was connected",
            |t| {
                for fd in t.servers(SENDS.len()) {
                    t.wait("close");
                    sys::close(fd).expect("close");
                }
            },
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                for ((name, send), fd) in SENDS.iter().zip(t.clients(SENDS.len())) {
                    t.tell("close");
                    let heard = sys::await_events(fd, POLLRDHUP, 20_000);
                    t.log(name, heard & POLLRDHUP != 0);
                    let (e, soon) = until_it_fails(1000, 1, || or_no_room(send(fd)));
                    t.log("fails", (matches!(e, E(libc::EPIPE | libc::ECONNRESET)), soon));
                }
            },
        ),
        pair(
            "ends/send-behind-a-death",
            "the same of a peer that was killed, ended by a signal's default action, or by _exit",
            |t| dying_servers(t, 1, |_, _| {}),
            |t| {
                survives_each_death(t, |fd| {
                    t.log("heard", sys::await_events(fd, POLLRDHUP, 20_000) != 0);
                    let (e, soon) =
                        until_it_fails(1000, 1, || sys::send(fd, &[1; 64], MSG_NOSIGNAL));
                    t.log("fails", (matches!(e, E(libc::EPIPE | libc::ECONNRESET)), soon));
                })
            },
        ),
        pair(
            "ends/send-to-shut-down",
            "a client that only sends, to a peer that has shut down both halves and keeps the descriptor: one send goes, the next ones fail",
            |t| shuts_both_down(t, SENDS.len()),
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                let fds = t.clients(SHUT_BOTH.len() * SENDS.len());
                for ((name, send), fd) in SENDS.iter().cycle().zip(fds) {
                    t.tell("shut");
                    t.wait("is shut");
                    hears_of_it(fd, POLLRDHUP);
                    t.log(name, send(fd).is_ok());
                    t.log("fails", until_it_fails(100, 0, || send(fd)));
                    t.log("poll", sys::poll_names(sys::await_events(fd, POLLOUT, 0)));
                }
                t.tell("done");
            },
        ),
        pair(
            "ends/send-to-shut-down-unheard",
            "the same where the news may be on its way still, which nobody waits for",
            |t| shuts_both_down(t, SENDS.len()),
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                let fds = t.clients(SHUT_BOTH.len() * SENDS.len());
                for ((name, send), fd) in SENDS.iter().cycle().zip(fds) {
                    t.tell("shut");
                    t.wait("is shut");
                    only_sends(t, name, || send(fd));
                    t.log("poll", sys::poll_names(sys::await_events(fd, POLLOUT, 0)));
                }
                t.tell("done");
            },
        ),
        pair(
            "ends/send-to-reset",
            "a client that only sends, to a peer that has closed with bytes unread: ECONNRESET, then EPIPE",
            |t| {
                for fd in t.servers(SENDS.len()) {
                    await_bytes(fd, 1000);
                    sys::close(fd).expect("close");
                    t.tell("closed");
                }
            },
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                for ((name, send), fd) in SENDS.iter().zip(t.clients(SENDS.len())) {
                    send_all(fd, &[1; 1000]);
                    t.wait("closed");
                    hears_of_it(fd, 0);
                    t.log(name, send(fd));
                    t.log("again", send(fd));
                }
            },
        ),
        pair(
            "ends/close-while-sending",
            "a peer closes while bytes come in all the time: the sender gets an error, whoever was first",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..20 {
                    let fd = t.accept(listener);
                    recv_exact(fd, 200_000);
                    sys::close(fd).expect("close");
                }
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..20 {
                    let fd = t.connect(addr);
                    // (How far it runs ahead of the peer is the buffers' affair.)
                    let (e, _) =
                        until_it_fails(usize::MAX, 0, || sys::send(fd, &[1; 64], MSG_NOSIGNAL));
                    t.log("fails", matches!(e, E(libc::EPIPE | libc::ECONNRESET)));
                    sys::close(fd).expect("close");
                }
            },
        ),
        pair(
            "ends/log-client",
            "a server closes each connection after 200 records: a client that connects again when a send fails loses a few (over RDMA: what it sends until it hears of the close)",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let (mut records, mut shorter) = (0, 0);
                let mut buf = [0; 64];
                'all: loop {
                    let fd = t.accept(listener);
                    let mut here = 0;
                    while here < 200 {
                        match sys::recv(fd, &mut buf, libc::MSG_WAITALL) {
                            Ok(64) if buf[0] == b'E' => break 'all,
                            Ok(64) => here += 1,
                            _ => break,
                        }
                        t.tell("there");
                    }
                    sys::close(fd).expect("close");
                    t.tell("closed");
                    records += here;
                    shorter += usize::from(here < 200);
                }
                // (Of 1,950. One for each close; over RDMA as many as are sent before the news.)
                let least = if sys::over_rdma() { 1850 } else { 1900 };
                t.log("records", records > least);
                // The last one, which the client closes.
                t.log("lost before a close", shorter > 1);
            },
            |t| {
                let addr = t.hear_addr();
                let mut fd = t.connect(addr);
                let mut here = 0;
                let mut sent = 0;
                let mut soon = true;
                while sent < 1950 {
                    if sys::send(fd, &[b'r'; 64], MSG_NOSIGNAL).is_err() {
                        soon &= here < 1000;
                        let _ = sys::close(fd);
                        fd = t.connect(addr);
                        here = 0;
                        continue;
                    }
                    (sent, here) = (sent + 1, here + 1);
                    // None is in flight when the server closes.
                    if here <= 200 {
                        t.wait("there");
                    }
                    if here == 200 {
                        t.wait("closed");
                    }
                    // (The FIN follows a round trip or two later.)
                    if here > 200 && sys::over_rdma() {
                        sys::sleep_ms(1);
                    }
                }
                t.log("a send fails soon", soon);
                sys::close(fd).expect("close");
                let fd = t.connect(addr);
                send_all(fd, &[b'E'; 64]);
            },
        ),
        pair(
            "ends/send-to-dead",
            "a client that only sends, to a peer that was killed, ended by a signal's default action, or by _exit: it fails soon",
            |t| dying_servers(t, 1, |_, _| {}),
            |t| {
                survives_each_death(t, |fd| {
                    // (A send a millisecond: who looks after the peer's end may need a moment. What
                    // is sent in that moment counts as unread by the dead: docs/manual/limits.md,
                    // "Death with unread bytes".)
                    let (e, soon) =
                        until_it_fails(1000, 1, || sys::send(fd, &[1; 64], MSG_NOSIGNAL));
                    let gone = matches!(e, E(libc::EPIPE | libc::ECONNRESET));
                    t.log("send", (gone, soon));
                })
            },
        ),
        pair(
            "ends/reason-of-a-death",
            "the same with nothing unread: the connection was accelerated to its end, as netacc_ss says",
            |t| dying_servers(t, 1, |_, _| {}),
            |t| {
                survives_each_death(t, |fd| {
                    t.log("end", sys::recv(fd, &mut [0; 8], 0));
                    t.expect_reason(fd, &[("shm", "none"), ("early", "none")]);
                    t.log("close", sys::close(fd));
                })
            },
        )
        .skip(RESETS),
        pair(
            "ends/exit-with-unread-data",
            "a process that ends by _exit, in a signal handler, with bytes unread: ECONNRESET, as after a close",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let child = doomed(t, listener, 2, |t, fds| {
                    await_bytes(fds[0], 100);
                    await_bytes(fds[1], 100);
                    t.tell("there");
                });
                t.wait("end");
                end(child, SIGUSR1);
                t.tell("ended");
            },
            |t| {
                let fds = t.clients(2);
                send_all(fds[0], &[1; 100]);
                send_all(fds[1], &[1; 100]);
                t.wait("there");
                t.tell("end");
                t.wait("ended");
                t.log("recv", sys::recv(fds[0], &mut [0; 8], 0));
                t.log("again", sys::recv(fds[0], &mut [0; 8], 0));
                let (e, soon) = until_it_fails(1000, 1, || sys::send(fds[1], b"x", MSG_NOSIGNAL));
                t.log("send", (e, soon));
            },
        ),
        pair(
            "ends/room-of-the-closed",
            "a sender waits for room, in each way, when its peer closes: it hears of that",
            |t| {
                let fds = t.servers(WAITS.len());
                t.wait("end");
                fds.iter().for_each(|fd| sys::close(*fd).map(drop).expect("close"));
                t.tell("ended");
                t.meet("over");
            },
            |t| {
                wait_for_room(t, &t.clients(WAITS.len()));
                t.meet("over");
            },
        ),
        pair(
            "ends/room-of-the-dead",
            "a sender waits for room, in each way, when its peer is killed: it hears of that",
            |t| dying_servers(t, WAITS.len(), |_, _| {}),
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let fds: Vec<Fd> = WAITS.iter().map(|_| t.connect(addr)).collect();
                    t.wait("ready");
                    wait_for_room(t, &fds);
                }
                t.meet("over");
            },
        ),
        pair(
            "ends/room-of-the-dead-with-a-child",
            "the same of a peer that had forked: its child has closed the connections, and lives on",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let [from, to] = sys::pipe();
                let maker = doomed(t, listener, WAITS.len(), move |t, fds| {
                    if sys::fork().expect("fork") == 0 {
                        fds.iter()
                            .for_each(|fd| sys::close(*fd).map(drop).expect("close"));
                        t.tell("ready");
                        let _ = sys::read(from, &mut [0]);
                        sys::exit_now(0);
                    }
                });
                t.wait("end");
                sys::kill(maker.pid, SIGKILL).expect("kill");
                let _ = sys::wait_child(maker.pid);
                t.tell("ended");
                t.wait("over");
                let _ = sys::write(to, b"x");
                let _ = maker.join();
            },
            |t| {
                let fds = t.clients(WAITS.len());
                t.wait("ready");
                wait_for_room(t, &fds);
                t.tell("over");
            },
        ),
        pair(
            "ends/masks-of-closed",
            "poll and select without waiting, with each set of events: of a living peer, one that has closed, one that has reset",
            |t| {
                let fds = t.servers(2);
                t.meet("living");
                t.wait("close");
                sys::close(fds[0]).expect("close");
                await_bytes(fds[1], 1000);
                sys::close(fds[1]).expect("close");
                t.tell("closed");
            },
            |t| {
                let fds = t.clients(2);
                all_masks(t, fds[0]);
                t.meet("living");
                send_all(fds[1], &[1; 1000]);
                t.tell("close");
                t.wait("closed");
                hears_of_it(fds[0], POLLRDHUP);
                hears_of_it(fds[1], 0);
                for fd in fds {
                    all_masks(t, fd);
                }
            },
        ),
        pair(
            "ends/masks-of-dead",
            "the same of a peer that has died: as soon as one says it, all do",
            |t| dying_servers(t, 2, |t, fds| t.pour(fds[1], 1, 100)),
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let fds: Vec<Fd> = (0..2).map(|_| t.connect(addr)).collect();
                    await_bytes(fds[1], 100);
                    t.wait("ready");
                    t.tell("end");
                    t.wait("ended");
                    t.log("rdhup", sys::poll_names(poll_until(fds[0], POLLRDHUP)));
                    all_masks(t, fds[0]);
                    t.log("rdhup", sys::poll_names(poll_until(fds[1], POLLRDHUP)));
                    all_masks(t, fds[1]);
                    t.drain_to_end(fds[1], 1);
                    all_masks(t, fds[1]);
                }
                t.meet("over");
            },
        )
        .skip(RESETS),
        pair(
            "ends/keep-alive",
            "a client looks whether its idle connection still lives before it asks again (poll without waiting, once)",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..20 {
                    let fd = t.accept(listener);
                    for _ in 0..10 {
                        recv_exact(fd, 10);
                        send_all(fd, &[2; 10]);
                    }
                    t.wait("close");
                    sys::close(fd).expect("close");
                    t.tell("closed");
                }
            },
            |t| {
                let addr = t.hear_addr();
                let mut lives = 0;
                let mut gone = 0;
                for _ in 0..20 {
                    let fd = t.connect(addr);
                    for _ in 0..10 {
                        lives += i32::from(poll_now(fd, POLLIN) == 0);
                        send_all(fd, &[1; 10]);
                        recv_exact(fd, 10);
                    }
                    t.tell("close");
                    t.wait("closed");
                    hears_of_it(fd, POLLRDHUP);
                    gone += i32::from(poll_now(fd, POLLIN) == POLLIN);
                    sys::close(fd).expect("close");
                }
                t.log("lives, gone", (lives, gone));
            },
        ),
        pair(
            "ends/child-goes-on",
            "a process is killed, and its forked child still has the connection: it ends when the child ends, not before",
            |t| {
                let takes = |fd| drop(recv_exact(fd, 1000));
                killed_with_a_child(t, takes, |t, fd| t.drain(fd, 3, 300_000));
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[1; 1000]);
                t.wait("forked");
                t.tell("kill");
                t.wait("killed");
                t.log("poll", sys::poll_names(poll_now(fd, POLLIN | POLLRDHUP)));
                t.pour(fd, 3, 1000);
                t.tell("go on");
                send_all(fd, &crate::pattern::Pattern::new(3).bytes(1000, 299_000));
                t.wait("over");
                // (The child's exit closes the connection after what it tells by.)
                let (e, soon) = until_it_fails(1000, 1, || sys::send(fd, &[1; 64], MSG_NOSIGNAL));
                t.log(
                    "send",
                    (soon, matches!(e, E(libc::EPIPE | libc::ECONNRESET))),
                );
            },
        )
        .skip(RESETS),
        killed_peers::scenario(),
    ]
}
