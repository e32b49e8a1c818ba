//! This end goes back to TCP for good with bytes of its own unread at the peer, and then the peer
//! dies: of what it leaves unread TCP makes a reset, of what it has read to the end a clean end.

use super::ends::{DEATHS, doomed, end, hears_of_it, poll_now};
use super::unread::rest;
use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::raw;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd, R};
use libc::{
    EPOLLIN, IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, POLLIN, POLLOUT,
    POLLRDHUP, SIGKILL, SO_LINGER, SOL_SOCKET,
};

const TCP_INQ: i32 = 36;
const SENT: usize = 100;

/// Ways to leave, and the reason that `netacc_ss` shows. What is returned is kept open.
const LEAVES: [(&str, &str, fn(Fd) -> Vec<Fd>); 5] = [
    ("nested set", "several-epoll-sets", |fd| {
        let inner = set_of(fd);
        let outer = set_of(inner);
        sys::epoll_wait(outer, 1, 0).expect("epoll_wait");
        vec![outer, inner]
    }),
    ("five sets", "several-epoll-sets", |fd| (0..5).map(|_| set_of(fd)).collect()),
    ("SO_RCVLOWAT", "socket-option", |fd| option(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 5)),
    ("TCP_INQ", "socket-option", |fd| option(fd, IPPROTO_TCP, TCP_INQ, 1)),
    ("SO_OOBINLINE", "socket-option", |fd| option(fd, SOL_SOCKET, libc::SO_OOBINLINE, 1)),
];

fn set_of(fd: Fd) -> Fd {
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, 1).expect("EPOLL_CTL_ADD");
    set
}

fn option(fd: Fd, level: i32, name: i32, value: i32) -> Vec<Fd> {
    sys::setopt(fd, level, name, value).expect("setsockopt");
    vec![]
}

fn leave(fd: Fd) {
    option(fd, IPPROTO_TCP, TCP_INQ, 1);
}

/// Between hosts who does not wait may get EAGAIN while the bytes come again over TCP (docs/manual/
/// limits.md). Within a host nobody does: there they stay in the ring.
fn may_be_on_the_way(fd: Fd) -> bool {
    const SHM: [u8; 4] = 1u32.to_ne_bytes();
    // struct netacc_info: rx_path.
    sys::getopt_bytes(fd, 0x6e61, 1, 24).is_ok_and(|info| info[12..16] != SHM)
}

/// Reads all that there is. Behind that a death here is a clean end: within a host at once, between
/// hosts when this end, too, is the kernel's, which may be a moment later (docs/manual/limits.md).
fn read_all(fd: Fd, read: impl FnOnce(Fd) -> R) {
    let later = may_be_on_the_way(fd);
    read(fd).expect("read");
    let until = sys::now_ns() + 5_000_000_000 * u64::from(sys::patience());
    let resets = || raw::ends_in_a_reset(fd) && linger_of(fd) != (1, 0);
    while later && (sys::fionread(fd) != Ok(0) || resets()) {
        assert!(sys::now_ns() < until, "its end is not the kernel's");
        sys::sleep_ms(1);
    }
}

fn whole(fd: Fd) -> R {
    Ok(recv_exact(fd, SENT).len())
}

/// Ways to read all that there is, and whether anything of it is left.
const READS: [(&str, bool, fn(Fd) -> R); 13] = [
    ("recv", false, whole),
    ("recv of more", false, |fd| sys::recv(fd, &mut [0; 2 * SENT], 0)),
    ("byte by byte", false, |fd| (0..SENT).map(|_| sys::recv(fd, &mut [0], 0)).sum()),
    ("all but one", true, |fd| Ok(recv_exact(fd, SENT - 1).len())),
    ("nothing", true, |_| Ok(0)),
    ("peek", true, |fd| sys::recv(fd, &mut [0; SENT], MSG_PEEK)),
    ("peek, then all", false, |fd| {
        sys::recv(fd, &mut [0; SENT], MSG_PEEK)?;
        whole(fd)
    }),
    ("dropped", false, |fd| sys::recv(fd, &mut [0; SENT], MSG_TRUNC)),
    ("readv", false, |fd| sys::readv(fd, &mut [&mut [0; 10], &mut [0; SENT - 10]])),
    ("recvmsg", false, |fd| {
        loop {
            match sys::recvmsg(fd, &mut [&mut [0; SENT]], MSG_DONTWAIT) {
                Err(E(libc::EAGAIN)) if may_be_on_the_way(fd) => sys::sleep_ms(1),
                outcome => return outcome,
            }
        }
    }),
    ("recvmmsg", false, |fd| {
        Ok(sys::recvmmsg(fd, &mut [&mut [0; SENT / 2], &mut [0; SENT / 2]], 0, None)?.len())
    }),
    ("splice", false, |fd| {
        let [from, to] = sys::pipe();
        let moved = sys::splice(fd, to, SENT, 0);
        let _ = (sys::close(from), sys::close(to));
        moved
    }),
    ("in a call that waits for more", false, |fd| {
        drop(blocked(move || sys::recv(fd, &mut [0; 2 * SENT], MSG_WAITALL)));
        Ok(0)
    }),
];

/// A process that accepts `count` connections and waits until all bytes are there; does `work` when
/// the client has left; and dies when the client says so.
fn dying(t: &Ctx, death: i32, count: usize, work: impl FnOnce(&[Fd])) {
    dying_behind(t, death, count, |_| {}, work);
}

/// The same, which does something first.
fn dying_behind(
    t: &Ctx,
    death: i32,
    count: usize,
    first: impl FnOnce(&[Fd]),
    work: impl FnOnce(&[Fd]),
) {
    let listener = t.listener();
    t.publish(listener);
    let [from, to] = sys::pipe();
    let child = doomed(t, listener, count, |t, fds| {
        first(fds);
        fds.iter().for_each(|fd| await_bytes(*fd, SENT));
        t.tell("there");
        let _ = sys::read(from, &mut [0]);
        work(fds);
        t.tell("done");
    });
    t.wait("left");
    let _ = sys::write(to, b"x");
    t.wait("end");
    end(child, death);
    t.tell("ended");
    let _ = (sys::close(from), sys::close(to), sys::close(listener));
}

/// The client of that: its connections, which have left.
fn left(t: &Ctx, count: usize) -> Vec<Fd> {
    let addr = t.hear_addr();
    let fds: Vec<Fd> = (0..count).map(|_| t.connect(addr)).collect();
    all_leave(t, &fds);
    fds
}

fn all_leave(t: &Ctx, fds: &[Fd]) {
    fds.iter().for_each(|fd| send_all(*fd, &[1; SENT]));
    t.wait("there");
    fds.iter().for_each(|fd| leave(*fd));
    t.tell("left");
    t.wait("done");
}

/// One that is killed with all unread, and one that is killed with all read.
fn killed_readers(t: &Ctx) {
    for reads in [false, true] {
        dying(t, SIGKILL, 1, |fds| {
            if reads {
                read_all(fds[0], whole);
            }
        });
    }
    t.meet("over");
}

fn dies(t: &Ctx) {
    t.tell("end");
    t.wait("ended");
}

/// How a connection has ended. (Between hosts the news takes a moment.)
fn heard(t: &Ctx, name: &str, fd: Fd) {
    sys::await_events(fd, POLLRDHUP, 10_000);
    // (And there is no room while it goes back to TCP.)
    let until = sys::now_ns() + 5_000_000_000 * u64::from(sys::patience());
    while poll_now(fd, POLLOUT) & POLLOUT == 0 && sys::now_ns() < until {
        sys::sleep_ms(1);
    }
    t.log(name, sys::poll_names(poll_now(fd, POLLIN | POLLOUT | POLLRDHUP)));
    let recv = || sys::recv(fd, &mut [0; 8], 0);
    t.log(name, (recv(), recv()));
    sys::close(fd).expect("close");
}

fn linger_of(fd: Fd) -> (i32, i32) {
    let bytes = sys::getopt_bytes(fd, SOL_SOCKET, SO_LINGER, 8).expect("SO_LINGER");
    let int = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (int(0), int(4))
}

/// The application's SO_LINGER: before, while bytes are unread that the peer has left, and whether
/// all is read then.
const LINGERS: [(Option<(bool, i32)>, Option<(bool, i32)>, bool); 9] = [
    (None, None, true),
    (None, Some((true, 0)), true),
    (None, Some((false, 0)), true),
    (None, Some((false, 0)), false),
    (None, Some((true, 7)), true),
    (Some((true, 0)), None, true),
    (Some((true, 0)), Some((false, 0)), true),
    (Some((true, 0)), Some((false, 0)), false),
    (Some((false, 5)), None, true),
];

/// Who reads, of a process and its forked child.
const FAMILIES: [(&str, bool, bool); 3] =
    [("nobody", false, false), ("the parent", true, false), ("the child", false, true)];

pub fn list() -> Vec<Scenario> {
    let mut all = deaths();
    all.extend(others());
    all
}

fn deaths() -> Vec<Scenario> {
    vec![
        pair(
            "left/killed",
            "an end goes back to TCP for good, and its peer is killed, ended by a signal's default action, or by _exit with bytes of before unread: a reset",
            |t| {
                for death in DEATHS {
                    dying(t, death, LEAVES.len(), |_| {});
                }
                t.meet("over");
            },
            |t| {
                for _ in DEATHS {
                    let addr = t.hear_addr();
                    let fds: Vec<Fd> = LEAVES.iter().map(|_| t.connect(addr)).collect();
                    fds.iter().for_each(|fd| send_all(*fd, &[1; SENT]));
                    t.wait("there");
                    let mut sets = vec![];
                    for (fd, (_, reason, leave)) in fds.iter().zip(LEAVES) {
                        sets.extend(leave(*fd));
                        t.went_back(*fd, reason);
                        t.is_back(*fd);
                    }
                    t.tell("left");
                    t.wait("done");
                    let outer = sets[0];
                    let waits = blocked(move || sys::epoll_wait(outer, 1, -1).map(|e| e.len()));
                    dies(t);
                    t.log("outer set", waits.join().expect("thread"));
                    let inner = sys::epoll_wait(sets[1], 1, 0).expect("epoll_wait");
                    t.log("inner set", inner.iter().map(|e| sys::epoll_names(e.0)).collect::<String>());
                    for (fd, (name, ..)) in fds.iter().zip(LEAVES) {
                        rest(t, name, *fd);
                        sys::close(*fd).expect("close");
                    }
                    for set in sets {
                        let _ = sys::close(set);
                    }
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/read-by-then",
            "the same, and the peer reads before it dies, by each call: a reset if anything is left, and otherwise a clean end",
            |t| {
                for death in DEATHS {
                    dying(t, death, READS.len(), |fds| {
                        for (fd, (_, left, read)) in fds.iter().zip(READS) {
                            match left {
                                true => drop(read(*fd).expect("read")),
                                false => read_all(*fd, read),
                            }
                        }
                    });
                }
                t.meet("over");
            },
            |t| {
                for _ in DEATHS {
                    let fds = left(t, READS.len());
                    dies(t);
                    for (fd, (name, ..)) in fds.iter().zip(READS) {
                        heard(t, name, *fd);
                    }
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/lingers",
            "the same, and the peer sets SO_LINGER meanwhile, or has set it before: it finds what it has set, and ends by that",
            |t| {
                for (before, meanwhile, reads) in LINGERS {
                    let listener = t.listener();
                    t.publish(listener);
                    let fd = t.accept(listener);
                    let set = |to: Option<(bool, i32)>| {
                        if let Some((on, seconds)) = to {
                            t.log("set", sys::set_linger(fd, on, seconds));
                        }
                    };
                    set(before);
                    await_bytes(fd, SENT);
                    t.tell("there");
                    t.wait("left");
                    t.log("is", linger_of(fd));
                    set(meanwhile);
                    t.log("is", linger_of(fd));
                    if reads {
                        read_all(fd, whole);
                        t.log("is", linger_of(fd));
                    }
                    t.tell("done");
                    t.wait("end");
                    // A process that goes by a kill: nobody closes in good order.
                    let [from, to] = sys::pipe();
                    let heir = sys::fork().expect("fork");
                    if heir == 0 {
                        let _ = sys::read(from, &mut [0]);
                        sys::exit_now(0);
                    }
                    t.log("close", sys::close(fd));
                    sys::kill(heir, SIGKILL).expect("kill");
                    let _ = sys::wait_child(heir);
                    t.tell("ended");
                    let _ = (sys::close(from), sys::close(to), sys::close(listener));
                }
                t.meet("over");
            },
            |t| {
                for case in LINGERS {
                    let fds = left(t, 1);
                    dies(t);
                    heard(t, &format!("{case:?}"), fds[0]);
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/sends-meanwhile",
            "the same, and the peer sends before it reads all and dies: all of that arrives, and a clean end",
            |t| {
                for death in DEATHS {
                    dying(t, death, 1, |fds| {
                        t.pour(fds[0], 3, 20_000);
                        read_all(fds[0], whole);
                    });
                }
                t.meet("over");
            },
            |t| {
                for _ in DEATHS {
                    let fds = left(t, 1);
                    dies(t);
                    t.drain_to_end(fds[0], 3);
                    heard(t, "end", fds[0]);
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/both",
            "both ends go back to TCP for good with bytes of the other one unread, and one of them dies",
            |t| {
                for death in DEATHS {
                    for reads in [false, true] {
                        let pours = |fds: &[Fd]| t.pour(fds[0], 3, 1000);
                        dying_behind(t, death, 1, pours, |fds| {
                            leave(fds[0]);
                            if reads {
                                read_all(fds[0], whole);
                            }
                        });
                    }
                }
                t.meet("over");
            },
            |t| {
                for _ in DEATHS {
                    for reads in [false, true] {
                        let fd = t.connect(t.hear_addr());
                        send_all(fd, &[1; SENT]);
                        await_bytes(fd, 1000);
                        t.wait("there");
                        leave(fd);
                        t.tell("left");
                        t.wait("done");
                        dies(t);
                        t.log("there", recv_exact(fd, 1000).len());
                        heard(t, if reads { "read" } else { "unread" }, fd);
                    }
                }
                t.meet("over");
            },
        )
        .demoted(),
    ]
}

fn others() -> Vec<Scenario> {
    vec![
        pair(
            "left/closed",
            "an end goes back to TCP for good, and its peer closes in good order with bytes of before unread, or read: a reset, or a clean end",
            |t| {
                for reads in [false, true] {
                    let fds = t.servers(3);
                    fds.iter().for_each(|fd| await_bytes(*fd, SENT));
                    t.tell("there");
                    t.wait("left");
                    let double = sys::dup(fds[1]).expect("dup");
                    sys::shutdown(fds[2], libc::SHUT_WR).expect("shutdown");
                    if reads {
                        fds.iter().for_each(|fd| drop(recv_exact(*fd, SENT)));
                    }
                    t.tell("done");
                    t.wait("end");
                    fds.iter().for_each(|fd| t.log("close", sys::close(*fd)));
                    t.log("close", sys::close(double));
                    t.tell("ended");
                }
                t.meet("over");
            },
            |t| {
                for reads in [false, true] {
                    let fds = t.clients(3);
                    all_leave(t, &fds);
                    dies(t);
                    for (fd, name) in fds.iter().zip(["closed", "closed twice", "shut down"]) {
                        // (Over RDMA the reset may follow a FIN.)
                        if !reads {
                            hears_of_it(*fd, 0);
                        }
                        heard(t, &format!("{name}, {reads}"), *fd);
                    }
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/family",
            "an end goes back to TCP for good; its peer forks, one of the two reads or none, and both die: a reset, or a clean end, with the last of them",
            |t| {
                for (_, parent_reads, child_reads) in FAMILIES {
                    let listener = t.listener();
                    t.publish(listener);
                    let [from, to] = sys::pipe();
                    let [last, go] = sys::pipe();
                    let maker = doomed(t, listener, 1, |t, fds| {
                        await_bytes(fds[0], SENT);
                        t.tell("there");
                        let _ = sys::read(from, &mut [0]);
                        if sys::fork().expect("fork") == 0 {
                            if child_reads {
                                read_all(fds[0], whole);
                            }
                            t.tell("done");
                            let _ = sys::read(last, &mut [0]);
                            let _ = sys::kill(sys::getpid(), SIGKILL);
                        }
                        if parent_reads {
                            read_all(fds[0], whole);
                        }
                        t.tell("done");
                    });
                    t.wait("left");
                    let _ = sys::write(to, b"x");
                    t.wait("kill");
                    sys::kill(maker.pid, SIGKILL).expect("kill");
                    let _ = sys::wait_child(maker.pid);
                    t.tell("killed");
                    t.wait("end");
                    let _ = sys::write(go, b"x");
                    let _ = maker.join();
                    t.tell("ended");
                    for fd in [from, to, last, go, listener] {
                        let _ = sys::close(fd);
                    }
                }
                t.meet("over");
            },
            |t| {
                for (who, ..) in FAMILIES {
                    let fds = left(t, 1);
                    t.wait("done");
                    t.tell("kill");
                    t.wait("killed");
                    t.log(who, sys::poll_names(poll_now(fds[0], POLLIN | POLLRDHUP)));
                    dies(t);
                    // (A process that is told to end has not ended yet.)
                    let recv = || sys::recv(fds[0], &mut [0; 8], 0);
                    t.log(who, (recv(), recv()));
                    heard(t, who, fds[0]);
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/to-a-child",
            "a process leaves a connection to its forked child, and its peer goes back to TCP for good: the child dies with bytes of before unread, or read",
            |t| {
                for reads in [false, true] {
                    let listener = t.listener();
                    t.publish(listener);
                    let fd = t.accept(listener);
                    await_bytes(fd, SENT);
                    let ([from, to], [read, done]) = (sys::pipe(), sys::pipe());
                    let child = sys::fork().expect("fork");
                    if child == 0 {
                        let _ = sys::read(from, &mut [0]);
                        if reads {
                            read_all(fd, whole);
                        }
                        let _ = (sys::write(done, b"x"), sys::read(from, &mut [0]));
                    }
                    t.log("close", sys::close(fd));
                    t.tell("there");
                    t.wait("left");
                    let _ = (sys::write(to, b"x"), sys::read(read, &mut [0]));
                    t.tell("done");
                    t.wait("end");
                    sys::kill(child, SIGKILL).expect("kill");
                    let _ = sys::wait_child(child);
                    t.tell("ended");
                    for fd in [from, to, read, done, listener] {
                        let _ = sys::close(fd);
                    }
                }
                t.meet("over");
            },
            |t| {
                for reads in [false, true] {
                    let fds = left(t, 1);
                    dies(t);
                    heard(t, if reads { "read" } else { "unread" }, fds[0]);
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/exec",
            "an end goes back to TCP for good, and its peer becomes another program, which has not the connection, with bytes of before unread, or read",
            |t| {
                for reads in [false, true] {
                    let listener = t.listener();
                    t.publish(listener);
                    let [from, to] = sys::pipe();
                    let child = t.child(|t| {
                        let fd = t.accept(listener);
                        await_bytes(fd, SENT);
                        sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("F_SETFD");
                        t.tell("there");
                        let _ = sys::read(from, &mut [0]);
                        if reads {
                            read_all(fd, whole);
                        }
                        t.tell("done");
                        let _ = sys::read(from, &mut [0]);
                        format!("{:?}", sys::exec("/bin/true", &["true"], false))
                    });
                    t.wait("left");
                    let _ = sys::write(to, b"x");
                    t.wait("end");
                    let _ = sys::write(to, b"x");
                    t.log("exec", child.join());
                    t.tell("ended");
                    let _ = (sys::close(from), sys::close(to), sys::close(listener));
                }
                t.meet("over");
            },
            |t| {
                for reads in [false, true] {
                    let fds = left(t, 1);
                    dies(t);
                    heard(t, if reads { "read" } else { "unread" }, fds[0]);
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/by-a-child",
            "a forked child goes on with a connection on TCP, and the peer dies with bytes of the parent's unread, or read",
            killed_readers,
            |t| {
                for reads in [false, true] {
                    let fd = t.connect(t.hear_addr());
                    send_all(fd, &[1; SENT]);
                    t.wait("there");
                    let [from, to] = sys::pipe();
                    let child = t.child(|_| {
                        let first = sys::recv(fd, &mut [0; 8], MSG_DONTWAIT);
                        let _ = sys::write(to, b"x");
                        let recv = || sys::recv(fd, &mut [0; 8], 0);
                        format!("{first:?} {:?} {:?}", recv(), recv())
                    });
                    let _ = sys::read(from, &mut [0]);
                    t.is_back(fd);
                    t.log("close", sys::close(fd));
                    t.tell("left");
                    t.wait("done");
                    dies(t);
                    t.log(if reads { "read" } else { "unread" }, child.join());
                    let _ = (sys::close(from), sys::close(to));
                }
                t.meet("over");
            },
        )
        .demoted(),
        pair(
            "left/to-a-program",
            "a program without the library goes on with a connection, and the peer dies with bytes of before unread, or read: it sees an error, or the end",
            killed_readers,
            |t| {
                for reads in [false, true] {
                    let fd = t.connect(t.hear_addr());
                    send_all(fd, &[1; SENT]);
                    t.wait("there");
                    let [from, to] = sys::pipe();
                    let cat = sys::fork().expect("fork");
                    if cat == 0 {
                        let null = sys::open("/dev/null", libc::O_RDWR).expect("/dev/null");
                        let _ = (sys::dup2(fd, 0), sys::dup2(null, 1), sys::dup2(null, 2));
                        sys::exec("/bin/cat", &["cat"], false);
                        sys::exit_now(99);
                    }
                    // Until it has become that program.
                    let _ = sys::close(to);
                    let _ = sys::read(from, &mut [0]);
                    t.log("close", sys::close(fd));
                    t.tell("left");
                    t.wait("done");
                    dies(t);
                    t.log(if reads { "read" } else { "unread" }, sys::wait_child(cat));
                    let _ = sys::close(from);
                }
                t.meet("over");
            },
        )
        .demoted(),
    ]
}
