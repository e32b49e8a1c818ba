//! File descriptors: dup, numbers, flags, closing everything, limits, passing.

use crate::ctx::{Ctx, await_bytes, read_to_end, recv_exact, send_all};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, Addr, E, Fd};
use libc::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, MSG_DONTWAIT, MSG_NOSIGNAL,
    O_NONBLOCK,
};

pub mod stdio;

/// A client that sends pattern bytes when told `N`, and says what ended the connection.
fn feeder(t: &Ctx) {
    let fd = t.client();
    let mut sender = t.sender(fd, 1);
    loop {
        let word = t.hear();
        match word.parse::<usize>() {
            Ok(n) => {
                send_all(fd, &sender.upcoming(n));
                sender.advance(n);
            }
            Err(_) => break,
        }
    }
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
}

fn feed(t: &Ctx, n: usize) {
    t.tell(&n.to_string());
}

/// A connection made after something was done to the fds, which must be as good as the first.
fn next_server(t: &Ctx, label: &str) {
    let fd = t.server();
    t.drain(fd, 31, 100_000);
    t.pour(fd, 32, 100_000);
    t.log(label, sys::recv(fd, &mut [0; 8], 0));
    t.log("close", sys::close(fd));
}

fn next_client(t: &Ctx) {
    let fd = t.client();
    t.pour(fd, 31, 100_000);
    t.drain(fd, 32, 100_000);
    t.log("close", sys::close(fd));
}

/// A daemon that closes all descriptors with a connection open, at both ends; the next one is as
/// good.
fn closes_all(t: &Ctx, close: fn(&Ctx)) {
    let fd = t.server();
    feed(t, 1000);
    t.drain(fd, 1, 1000);
    close(t);
    t.log("closed", sys::of_closed(|| sys::recv(fd, &mut [0; 1], 0)));
    t.tell("end");
    t.wait("ended");
    next_server(t, "eof");
}

/// Something is done to every number that /proc/self/fd shows, except the connection's.
fn spoils_what_proc_shows(t: &Ctx, spoil: fn(Fd)) {
    let fd = t.server();
    feed(t, 1000);
    let mut receiver = t.receiver(fd, 1);
    receiver.accept(&recv_exact(fd, 1000));
    sys::open_fds().into_iter().filter(|n| *n > 2 && *n != fd).for_each(spoil);
    feed(t, 50_000);
    receiver.accept(&recv_exact(fd, 50_000));
    t.log("stream", receiver.verdict());
    t.log("close", sys::close(fd));
    t.tell("end");
    t.wait("ended");
    next_server(t, "eof");
}

fn its_client(t: &Ctx, close: fn(&Ctx)) {
    feeder(t);
    close(t);
    t.tell("ended");
    next_client(t);
}

/// Descriptors that /proc/self/fd shows and that no call of the program's knows.
fn hidden() -> Vec<Fd> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("fd").flatten();
    let shown: Vec<_> = entries.map(|entry| entry.path()).collect();
    let there = shown.iter().filter(|path| std::fs::read_link(path).is_ok());
    let numbers = there.filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    numbers.filter(|n| sys::fcntl(*n, F_GETFD, 0).is_err()).collect()
}

const ALL_IN_THE_RING: &str =
    "what a peer that is handed on has left in the ring cannot come back: docs/manual/limits.md";

/// The client of many: hears that the server is alive, and says that it is.
fn answers(t: &Ctx) {
    let fd = t.client();
    t.log_text("data", &recv_exact(fd, 5));
    send_all(fd, b"ok");
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "fds/dup",
            "dup, F_DUPFD, F_DUPFD_CLOEXEC: all names read one stream; EOF at the peer after the last close only",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 1);
                let names = [
                    fd,
                    sys::dup(fd).expect("dup"),
                    sys::fcntl(fd, F_DUPFD, 100).expect("F_DUPFD") as Fd,
                    sys::fcntl(fd, F_DUPFD_CLOEXEC, 200).expect("F_DUPFD_CLOEXEC") as Fd,
                    sys::dup2(fd, 50).expect("dup2"),
                    sys::dup3(fd, 51, libc::O_CLOEXEC).expect("dup3"),
                ];
                t.log("numbers", &names[2..]);
                for name in names {
                    t.log("flags", sys::fcntl(name, F_GETFD, 0));
                    feed(t, 1000);
                    receiver.accept(&recv_exact(name, 1000));
                }
                for name in names {
                    feed(t, 500);
                    receiver.accept(&recv_exact(name, 500));
                    t.log("poll", sys::poll_names(sys::await_events(name, libc::POLLOUT, 0)));
                    t.log("close", sys::close(name));
                    t.log("closed", sys::of_closed(|| sys::recv(name, &mut [0; 1], 0)));
                    if name != names[5] {
                        t.log("peer is open", sys::send(names[5], b"", MSG_NOSIGNAL));
                    }
                }
                t.log("stream", receiver.verdict());
                t.tell("end");
            },
            feeder,
        ),
        pair(
            "fds/dup-writers",
            "bytes written through two names of a connection are one stream",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 2);
            },
            |t| {
                let fd = t.client();
                let twin = sys::dup(fd).expect("dup");
                let mut sender = t.sender(fd, 2);
                for i in 0..200 {
                    let bytes = sender.upcoming(777);
                    send_all(if i % 2 == 0 { fd } else { twin }, &bytes);
                    sender.advance(777);
                }
                t.log("close", sys::close(fd));
                send_all(twin, &sender.upcoming(5000));
                t.log("close", sys::close(twin));
            },
        ),
        pair(
            "fds/dup2-over-a-connection",
            "dup2 over a connection closes it: the peer sees EOF; the number now names the other one",
            |t| {
                let fds = t.servers(2);
                t.log("dup2", sys::dup2(fds[1], fds[0]) == Ok(fds[0]));
                t.wait("eof");
                send_all(fds[0], b"by the old number");
                t.log_text("data", &recv_exact(fds[0], 5));
                t.log("close", sys::close(fds[1]));
                send_all(fds[0], b" and again");
                t.log("close", sys::close(fds[0]));
            },
            |t| {
                let fds = t.clients(2);
                t.log("first", sys::recv(fds[0], &mut [0; 8], 0));
                t.tell("eof");
                send_all(fds[1], b"hello");
                t.log_text("second", &recv_exact(fds[1], 27));
                t.log("end", sys::recv(fds[1], &mut [0; 8], 0));
            },
        ),
        pair(
            "fds/dup2-file-over-a-connection",
            "dup2 of a pipe over a connection, and of a connection over a pipe",
            |t| {
                let fd = t.server();
                let [from, to] = sys::pipe();
                t.log("connection over the pipe", sys::dup2(fd, from) == Ok(from));
                t.log("write to a pipe without reader", {
                    sys::ignore_signal(libc::SIGPIPE);
                    sys::write(to, b"x")
                });
                let [from2, to2] = sys::pipe();
                t.log("pipe over the connection", sys::dup2(from2, fd) == Ok(fd));
                sys::write(to2, b"piped").expect("write");
                let mut buf = [0; 8];
                t.log("read", sys::read(fd, &mut buf));
                t.log_text("data", &buf[..5]);
                t.log("recv", sys::recv(fd, &mut buf, 0));
                send_all(from, b"socket");
                t.log_text("data", &recv_exact(from, 4));
                t.log("close", sys::close(from));
            },
            |t| {
                let fd = t.client();
                t.log_text("data", &recv_exact(fd, 6));
                send_all(fd, b"back");
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "fds/dup-errors",
            "dup2 onto itself, dup3 onto itself, bad numbers, limits",
            |t| {
                let fd = t.server();
                t.log("dup2 itself", sys::dup2(fd, fd) == Ok(fd));
                t.log("dup3 itself", sys::dup3(fd, fd, 0));
                t.log("dup3 bad flags", sys::dup3(fd, 60, 12345));
                t.log("dup2 to -1", sys::dup2(fd, -1));
                t.log("dup2 from closed", sys::dup2(999, fd));
                t.log("dup closed", sys::dup(999));
                t.log("dup2 beyond the limit", sys::dup2(fd, 1 << 30));
                t.log("F_DUPFD beyond the limit", sys::fcntl(fd, F_DUPFD, 1 << 30));
                t.log("F_DUPFD -1", sys::fcntl(fd, F_DUPFD, -1));
                send_all(fd, b"alive");
                t.log_text("data", &recv_exact(fd, 2));
            },
            answers,
        ),
        pair(
            "fds/lowest-number",
            "new fds get the lowest free numbers: the library takes none that the program expects",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let first = t.accept(listener);
                let second = t.accept(listener);
                let [a, b] = sys::pipe();
                let file = sys::open("/dev/null", libc::O_RDONLY).expect("open");
                let e = sys::epoll_create1(0).expect("epoll");
                t.log("numbers", [listener, first, second, a, b, file, e]);
                sys::epoll_ctl(e, libc::EPOLL_CTL_ADD, first, libc::EPOLLIN as u32, 1)
                    .expect("ADD");
                sys::epoll_ctl(e, libc::EPOLL_CTL_ADD, second, libc::EPOLLIN as u32, 1)
                    .expect("ADD");
                let _ = sys::epoll_wait(e, 4, 20);
                t.log("next", sys::dup(0));
                t.log("close", sys::close(first));
                t.log("lowest", sys::dup(0));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                t.log("numbers", &fds);
                t.log("next", sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
                t.meet("end");
            },
        ),
        pair(
            "fds/close-range",
            "close_range(3, ~0) as at the start of a daemon: the connection ends, the next one is as good",
            |t| closes_all(t, |t| t.log("close_range", sys::close_range(3, u32::MAX, 0))),
            |t| its_client(t, |t| t.log("close_range", sys::close_range(3, u32::MAX, 0))),
        ),
        pair(
            "fds/closefrom",
            "closefrom(3)",
            |t| closes_all(t, |_| sys::close_from(3)),
            |t| its_client(t, |_| sys::close_from(3)),
        ),
        pair(
            "fds/close-loop",
            "a loop of close() over every possible number, as old daemons do",
            |t| {
                closes_all(t, |_| {
                    for n in 3..sys::nofile_limit().0.min(1 << 16) as Fd {
                        let _ = sys::close(n);
                    }
                });
            },
            |t| its_client(t, |_| ()),
        ),
        pair(
            "fds/close-what-proc-shows",
            "close of every number that /proc/self/fd shows, except the connection: it goes on",
            |t| spoils_what_proc_shows(t, |n| _ = sys::close(n)),
            |t| its_client(t, |_| ()),
        ),
        pair(
            "fds/dup2-over-what-proc-shows",
            "dup2 over every number that /proc/self/fd shows, except the connection: it goes on",
            |t| spoils_what_proc_shows(t, |n| _ = sys::dup2(2, n)),
            |t| its_client(t, |_| ()),
        ),
        pair(
            "fds/own-descriptors",
            "close of a descriptor that the library made is EBADF, dup2 and dup3 onto it EBUSY; the connection goes on",
            |t| {
                let fd = t.server();
                let own = hidden();
                assert!(!own.is_empty() || !t.waits_until_fast(), "the library has none");
                for n in own {
                    assert!(sys::close(n) == Err(E(libc::EBADF)), "close({n})");
                    assert!(sys::dup2(2, n) == Err(E(libc::EBUSY)), "dup2 onto {n}");
                    assert!(
                        sys::dup3(2, n, libc::O_CLOEXEC) == Err(E(libc::EBUSY)),
                        "dup3 onto {n}"
                    );
                }
                feed(t, 50_000);
                t.drain(fd, 1, 50_000);
                t.still_fast(fd);
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            feeder,
        ),
        pair(
            "fds/close-range-around",
            "close_range that leaves the connection open, and with CLOSE_RANGE_CLOEXEC",
            |t| {
                let fd = t.server();
                let moved = sys::fcntl(fd, F_DUPFD, 300).expect("F_DUPFD") as Fd;
                t.log("close", sys::close_range(3, 299, 0));
                t.log("above", sys::close_range(301, u32::MAX, 0));
                let mut receiver = t.receiver(moved, 1);
                feed(t, 20_000);
                receiver.accept(&recv_exact(moved, 20_000));
                t.log("cloexec", sys::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC));
                t.log("flag", sys::fcntl(moved, F_GETFD, 0));
                t.log("bad flags", sys::close_range(3, 10, 999));
                t.log("bad range", sys::close_range(10, 3, 0));
                feed(t, 20_000);
                receiver.accept(&recv_exact(moved, 20_000));
                t.log("stream", receiver.verdict());
                t.log("close", sys::close(moved));
                t.tell("end");
            },
            feeder,
        ),
        pair(
            "fds/limit",
            "RLIMIT_NOFILE reached: EMFILE where the kernel gives it, the connection goes on, and accept works afterwards",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                sys::set_nofile_limit(40).expect("setrlimit");
                let mut filler = Vec::new();
                let end = loop {
                    match sys::dup(0) {
                        Ok(n) => filler.push(n),
                        Err(e) => break e,
                    }
                };
                t.log("end", (end, filler.len(), filler.last()));
                t.log("socket", sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
                t.log("epoll", sys::epoll_create1(0));
                t.tell("connect");
                sys::await_events(listener, libc::POLLIN, 5000);
                t.log("accept", sys::accept(listener));
                t.drain(fd, 3, 50_000);
                t.pour(fd, 4, 50_000);
                t.log("close", sys::close(filler[0]));
                let second = sys::accept(listener);
                t.log("accept", second.is_ok());
                let second = second.expect("accept");
                t.log_text("data", &recv_exact(second, 5));
                send_all(second, b"hello");
                for n in filler.drain(1..) {
                    sys::close(n).expect("close");
                }
                t.tell("third");
                let third = t.accept(listener);
                t.drain(third, 5, 10_000);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                t.wait("connect");
                let second = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("connect", sys::connect(second, addr));
                t.pour(fd, 3, 50_000);
                t.drain(fd, 4, 50_000);
                send_all(second, b"12345");
                t.log_text("data", &recv_exact(second, 5));
                t.wait("third");
                let third = t.connect(addr);
                t.pour(third, 5, 10_000);
                t.log("eof", sys::recv(third, &mut [0; 1], 0));
            },
        ),
        alone(
            "fds/limit-from-the-start",
            "a program with almost no fds left makes a connection to itself",
            |t| {
                sys::set_nofile_limit(8).expect("setrlimit");
                let (near, far) = t.pair();
                send_all(near, b"hello");
                t.log_text("data", &recv_exact(far, 5));
                let mut n = 0;
                let end = loop {
                    match sys::dup(0) {
                        Ok(_) => n += 1,
                        Err(e) => break e,
                    }
                };
                t.log("end", end);
                assert!(n > 0, "no fd was left");
                send_all(far, b"again");
                t.log_text("data", &recv_exact(near, 5));
            },
        ),
        pair(
            "fds/file-status",
            "fstat, isatty, SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN of a connection",
            |t| {
                let fd = t.server();
                t.log("socket", sys::file_type(fd).map(|m| m == libc::S_IFSOCK));
                t.log("isatty", sys::isatty(fd));
                for (label, name) in [
                    ("type", libc::SO_TYPE),
                    ("domain", libc::SO_DOMAIN),
                    ("protocol", libc::SO_PROTOCOL),
                    ("acceptconn", libc::SO_ACCEPTCONN),
                ] {
                    t.log(label, sys::getopt(fd, libc::SOL_SOCKET, name));
                }
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("readlink");
                t.log("proc", link.to_string_lossy().starts_with("socket:["));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.log("socket", sys::file_type(fd).map(|m| m == libc::S_IFSOCK));
                t.log("acceptconn", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN));
                t.meet("end");
            },
        ),
        pair(
            "fds/flags",
            "O_NONBLOCK by F_SETFL and FIONBIO, shared by dups; FD_CLOEXEC by each name; accept4 and SOCK_ flags",
            |t| {
                let listener = t.listener();
                sys::set_nonblocking(listener, true);
                t.publish(listener);
                sys::await_events(listener, libc::POLLIN, 5000);
                let fd = sys::accept(listener).expect("accept");
                let access = |fd| {
                    sys::fcntl(fd, F_GETFL, 0)
                        .map(|f| (f as i32 & O_NONBLOCK != 0, f as i32 & libc::O_ACCMODE))
                };
                t.log("accepted", (access(fd), sys::fcntl(fd, F_GETFD, 0)));
                t.warm_server(fd);
                let twin = sys::dup(fd).expect("dup");
                t.log("set", sys::fcntl(fd, F_SETFL, O_NONBLOCK));
                t.log("twin", (access(twin), sys::recv(twin, &mut [0; 1], 0)));
                let mut off = 0;
                t.log("FIONBIO off", sys::ioctl_int(twin, libc::FIONBIO, &mut off));
                t.log("fd", access(fd));
                let mut on = 1;
                t.log("FIONBIO on", sys::ioctl_int(fd, libc::FIONBIO, &mut on));
                t.log("twin", (access(twin), sys::read(twin, &mut [0; 1])));
                t.log("off", sys::fcntl(fd, F_SETFL, 0));
                t.log("dontwait", sys::recv(fd, &mut [0; 1], MSG_DONTWAIT));
                t.log("cloexec", sys::fcntl(fd, F_SETFD, libc::FD_CLOEXEC));
                t.log("flags", (sys::fcntl(fd, F_GETFD, 0), sys::fcntl(twin, F_GETFD, 0)));
                t.log("FIOCLEX", sys::ioctl_int(twin, 0x5451, &mut off));
                t.log("flag", sys::fcntl(twin, F_GETFD, 0));
                t.log("FIONCLEX", sys::ioctl_int(twin, 0x5450, &mut off));
                t.log("flag", sys::fcntl(twin, F_GETFD, 0));
                t.tell("second");
                sys::await_events(listener, libc::POLLIN, 5000);
                let second = sys::accept4(listener, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
                    .expect("accept4");
                t.log("accept4", (access(second), sys::fcntl(second, F_GETFD, 0)));
                t.log("accept4 bad flags", sys::accept4(listener, 1));
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                t.wait("second");
                let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
                let second = sys::socket(libc::AF_INET, kind, 0).expect("socket");
                t.log("flags", sys::fcntl(second, F_GETFL, 0).map(|f| f as i32 & O_NONBLOCK != 0));
                t.log("cloexec", sys::fcntl(second, F_GETFD, 0));
                let _ = sys::connect(second, addr);
                t.meet("end");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "fds/reuse",
            "a number that is reused by a file, a pipe, a socket right after close is what it is now",
            |t| {
                let fds = t.servers(2);
                // The listener's number is free again: take it, so that the next one is the
                // connection's.
                sys::dup(0).expect("dup");
                t.log("close", sys::close(fds[0]));
                let file = sys::anonymous_file(b"file").expect("file");
                t.log("same number", file == fds[0]);
                let mut buf = [0; 8];
                t.log("read", sys::read(file, &mut buf));
                t.log("recv", sys::recv(file, &mut buf, 0));
                t.log("seek", sys::lseek(file, 1, libc::SEEK_SET));
                t.log("poll", sys::poll_names(sys::await_events(file, libc::POLLIN, 0)));
                t.log("close", sys::close(file));
                let udp = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).expect("socket");
                t.log("same number", udp == fds[0]);
                t.log("recv", sys::recv(udp, &mut buf, MSG_DONTWAIT));
                t.log("close", sys::close(udp));
                send_all(fds[1], b"alive");
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                t.log("first", sys::recv(fds[0], &mut [0; 8], 0));
                t.log_text("second", &recv_exact(fds[1], 5));
                t.meet("end");
            },
        ),
        pair(
            "fds/ioctl",
            "requests that a socket does not know, SIOCSPGRP, FIOASYNC",
            |t| {
                let fd = t.server();
                let mut value = 0;
                t.log("TCGETS", sys::ioctl_int(fd, libc::TCGETS, &mut value));
                t.log("unknown", sys::ioctl_int(fd, 0xDEAD, &mut value));
                t.log("SIOCGPGRP", sys::ioctl_int(fd, 0x8904, &mut value));
                t.log("FIONREAD by SIOCINQ", sys::ioctl_int(fd, 0x541B, &mut value));
                send_all(fd, b"alive");
                t.log_text("data", &recv_exact(fd, 2));
            },
            answers,
        ),
        pair(
            "fds/sigio",
            "F_SETOWN and O_ASYNC: SIGIO on arrival",
            |t| {
                use std::sync::atomic::{AtomicI32, Ordering};
                static SIGNALS: AtomicI32 = AtomicI32::new(0);
                extern "C" fn count(_: libc::c_int) {
                    SIGNALS.fetch_add(1, Ordering::Relaxed);
                }
                let fd = t.server();
                sys::on_signal(libc::SIGIO, count, libc::SA_RESTART).expect("sigaction");
                t.log("own", sys::fcntl(fd, libc::F_SETOWN, sys::getpid()));
                t.log("owner", sys::fcntl(fd, libc::F_GETOWN, 0) == Ok(sys::getpid() as usize));
                t.log("async", sys::fcntl(fd, F_SETFL, libc::O_ASYNC | O_NONBLOCK));
                t.tell("go");
                let deadline = sys::now_ns() + 5_000_000_000;
                while SIGNALS.load(Ordering::Relaxed) == 0 && sys::now_ns() < deadline {
                    let _ = sys::poll(&[], 5);
                }
                t.log("signalled", SIGNALS.load(Ordering::Relaxed) > 0);
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.went_back(fd, "socket-option");
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"x");
                t.meet("end");
            },
        )
        .demoted(),
        pair(
            "fds/pass-to-itself",
            "SCM_RIGHTS of a connection to the same process: a further name of it",
            |t| {
                let fd = t.server();
                let [a, b] =
                    sys::socketpair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC).expect("socketpair");
                let mut receiver = t.receiver(fd, 1);
                feed(t, 1000);
                await_bytes(fd, 1000);
                t.log("send", sys::send_fds(a, b"fd", &[fd]));
                let (text, fds) = sys::recv_fds(b).expect("recvmsg");
                t.log_text("with", &text);
                receiver.accept(&recv_exact(fds[0], 600));
                receiver.accept(&recv_exact(fd, 400));
                t.log("close", sys::close(fd));
                feed(t, 30_000);
                receiver.accept(&recv_exact(fds[0], 30_000));
                t.log("stream", receiver.verdict());
                t.log("close", sys::close(fds[0]));
                t.tell("end");
            },
            feeder,
        ),
        pair(
            "fds/pass-in-flight",
            "SCM_RIGHTS: the sender closes its name while the connection is in flight",
            |t| {
                let fd = t.server();
                let [a, b] =
                    sys::socketpair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC).expect("socketpair");
                feed(t, 1000);
                await_bytes(fd, 1000);
                t.log("send", sys::send_fds(a, b"fd", &[fd]));
                t.log("close", sys::close(fd));
                let (_, fds) = sys::recv_fds(b).expect("recvmsg");
                t.drain(fds[0], 1, 1000);
                send_all(fds[0], b"");
                t.log("close", sys::close(fds[0]));
                t.tell("end");
            },
            feeder,
        ),
        pair(
            "fds/pass-at-both-ends",
            "SCM_RIGHTS at both ends at once, with small buffers, all of them full, and nobody who reads: neither waits for the other",
            |t| passes_full(t, t.server(), [1, 2], false),
            |t| passes_full(t, t.client(), [2, 1], false),
        )
        .skip(&[
            ("shm", ALL_IN_THE_RING),
            ("early", ALL_IN_THE_RING),
            ("new", ALL_IN_THE_RING),
            ("fast", ALL_IN_THE_RING),
            ("switch", ALL_IN_THE_RING),
        ]),
        pair(
            "fds/pass-at-both-ends-or-none",
            "the same: all of it comes, exact, or there is an error at both ends; never an early end",
            |t| passes_full(t, t.server(), [1, 2], true),
            |t| passes_full(t, t.client(), [2, 1], true),
        ),
        pair(
            "fds/pass-to-a-child",
            "SCM_RIGHTS to a process with the library that was started before the connection",
            |t| pass_to_helper(t, true),
            feeder,
        )
        .demoted(),
        pair(
            "fds/pass-to-a-child-without-the-library",
            "SCM_RIGHTS to a process without the library: exact bytes, both directions",
            |t| pass_to_helper(t, false),
            feeder,
        )
        .demoted(),
        pair(
            "fds/pidfd-getfd",
            "pidfd_getfd of our own connection",
            |t| {
                let fd = t.server();
                let twin = sys::pidfd_getfd(fd);
                t.log("pidfd_getfd", twin.is_ok());
                let twin = twin.expect("pidfd_getfd");
                let mut receiver = t.receiver(fd, 1);
                feed(t, 1000);
                receiver.accept(&recv_exact(twin, 500));
                receiver.accept(&recv_exact(fd, 500));
                t.still_fast(fd);
                t.log("close", sys::close(fd));
                feed(t, 1000);
                receiver.accept(&recv_exact(twin, 1000));
                t.log("stream", receiver.verdict());
                t.log("close", sys::close(twin));
                t.tell("end");
            },
            feeder,
        ),
        pair(
            "fds/pidfd-getfd-by-another",
            "a process takes another one's connection by pidfd_getfd, and looks: it sees the bytes that are there, or none, and the connection goes on",
            |t| {
                let fd = t.server();
                feed(t, 1000);
                await_bytes(fd, 1000);
                let pid = sys::getpid();
                let looker = t.child(move |_| {
                    sys::close(fd).expect("close");
                    // (Not everywhere may a child do that to its parent.)
                    let Ok(taken) = sys::pidfd_getfd_of(pid, fd) else { return "true".into() };
                    let seen = sys::recv(taken, &mut [0; 2000], MSG_DONTWAIT | libc::MSG_PEEK);
                    format!("{}", matches!(seen, Ok(1000) | Err(E(libc::EAGAIN))))
                });
                t.log("bytes or none", looker.join());
                let mut receiver = t.receiver(fd, 1);
                receiver.accept(&recv_exact(fd, 1000));
                t.log("stream", receiver.verdict());
                t.still_fast(fd);
                t.tell("end");
            },
            feeder,
        ),
        alone("fds/other-kinds", "pipes, unix sockets, UDP, files and ttys are not touched", |t| {
            let mut buf = [0; 16];
            let [from, to] = sys::pipe();
            t.log("pipe", (sys::write(to, b"abc"), sys::read(from, &mut buf)));
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
                let [a, b] = sys::socketpair(kind).expect("socketpair");
                t.log("unix", (sys::send(a, b"hello", 0), sys::recv(b, &mut buf, 0)));
                t.log(
                    "peek",
                    (
                        sys::send(a, b"hello", 0),
                        sys::recv(b, &mut buf, libc::MSG_PEEK),
                        sys::fionread(b),
                    ),
                );
                t.log("shutdown", sys::shutdown(a, libc::SHUT_WR));
            }
            let udp = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).expect("socket");
            sys::bind(udp, sys::LOOPBACK).expect("bind");
            let name = sys::getsockname(udp).expect("name");
            t.log("udp", sys::sendto(udp, b"datagram", 0, Some(name)));
            t.log("udp", sys::recvfrom(udp, &mut buf, 0));
            t.log("udp connect", sys::connect(udp, name));
            t.log("udp send", (sys::send(udp, b"x", 0), sys::recv(udp, &mut buf, 0)));
            t.log("udp accept", sys::accept(udp));
            t.log("udp listen", sys::listen(udp, 1));
            let unknown = Addr::V4([127, 0, 0, 1], 1);
            t.log(
                "udp refused",
                (sys::connect(udp, unknown), sys::send(udp, b"x", 0), sys::send(udp, b"x", 0)),
            );
            t.log("raw kind", sys::socket(libc::AF_INET, 99, 0));
            t.log("family", sys::socket(99, libc::SOCK_STREAM, 0));
            t.log("protocol", sys::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP));
            t.log("socketpair", sys::socketpair(99).map(|_| ()));
        }),
    ]
}

/// Sends until there is no room, as the peer does, hands the connection on, and reads what has
/// come: all of it, or, where the connection may be broken off, an error at both ends.
fn passes_full(t: &Ctx, fd: Fd, [mine, theirs]: [u64; 2], may_break: bool) {
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        sys::setopt(fd, libc::SOL_SOCKET, name, 4096).expect("setsockopt");
    }
    let mut sender = t.sender(fd, mine);
    while let Ok(n) = sys::send(fd, &sender.upcoming(4096), MSG_DONTWAIT) {
        sender.advance(n);
    }
    t.meet("full");
    let [a, b] = sys::socketpair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC).expect("socketpair");
    t.log("send", sys::send_fds(a, b"fd", &[fd]));
    t.log("close", sys::close(fd));
    let fd = sys::recv_fds(b).expect("recvmsg").1[0];
    t.tell(&sender.sent.to_string());
    let all = t.hear().parse().expect("a number");
    let mut receiver = t.receiver(fd, theirs);
    let mut end = "all";
    while end == "all" && receiver.received < all {
        let mut buf = [0; 4096];
        match sys::recv(fd, &mut buf, 0) {
            Ok(0) => end = "an early end",
            Ok(n) => receiver.accept(&buf[..n]),
            Err(_) => end = "an error",
        }
    }
    t.meet("read");
    t.tell(end);
    let alike = t.hear() == end && end != "an early end";
    let right = if may_break { alike } else { end == "all" };
    let right = right && receiver.error.is_none();
    t.log("as it has to be", right);
    if !right {
        t.log("instead", (end, receiver.received, all, sender.sent, &receiver.error));
    }
    t.meet("end");
}

/// A helper gets the connection over a unix socket that it was born with, reads 1000 bytes and
/// sends them back.
fn pass_to_helper(t: &Ctx, keep_preload: bool) {
    let [a, b] = sys::socketpair(libc::SOCK_STREAM | libc::SOCK_CLOEXEC).expect("socketpair");
    let helper = t.helper("take-fd", &[], keep_preload, Some(b));
    sys::close(b).expect("close");
    let fd = t.server();
    let mut receiver = t.receiver(fd, 1);
    feed(t, 1500);
    receiver.accept(&recv_exact(fd, 500));
    await_bytes(fd, 1000);
    t.log("send", sys::send_fds(a, b"fd", &[fd]));
    t.log("helper", helper.line());
    // The helper has taken 1000 bytes; this name goes on behind it.
    receiver.received += 1000;
    feed(t, 20_000);
    receiver.accept(&recv_exact(fd, 20_000));
    t.log("stream", receiver.verdict());
    t.went_back(fd, "passed-by-scm-rights");
    t.log("close", sys::close(fd));
    sys::close(a).expect("close");
    t.log("helper", helper.join());
    t.tell("end");
}
