//! Calls and options at their edges: time-outs of every kind, refused descriptors, and what an
//! option wakes.

use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, E, Fd, R};
use libc::{
    IPPROTO_TCP, MSG_DONTWAIT, MSG_MORE, MSG_PEEK, MSG_WAITALL, POLLOUT, SOL_SOCKET, TCP_CORK,
    TCP_NODELAY,
};

/// The options with 64-bit times on every machine (asm-generic/socket.h).
const SO_RCVTIMEO_NEW: i32 = 66;

/// Receives into parts of one byte; how many messages came, and what is left of the time.
pub(super) fn receive_bytes(fd: Fd, count: usize, flags: i32, time: (i64, i64)) -> (R, (i64, i64)) {
    let mut bytes = vec![[0u8; 1]; count];
    let mut parts: Vec<&mut [u8]> = bytes.iter_mut().map(|b| &mut b[..]).collect();
    let mut left = libc::timespec { tv_sec: time.0, tv_nsec: time.1 };
    let n = sys::recvmmsg_within(fd, &mut parts, flags, Some(&mut left));
    (n.map(|lens| lens.len()), (left.tv_sec, left.tv_nsec))
}

/// Sends until nothing fits any more. In calls that do not wait.
fn fill(fd: Fd) {
    let part = [7u8; 4096];
    loop {
        match sys::send(fd, &part, MSG_DONTWAIT) {
            Ok(_) => {}
            Err(E(libc::EAGAIN)) if sys::await_events(fd, POLLOUT, 0) == 0 => break,
            Err(E(libc::EAGAIN)) => {}
            Err(e) => panic!("send: {e:?}"),
        }
    }
    while sys::send(fd, b"x", MSG_DONTWAIT).is_ok() {}
}

const LARGER_BUFFER: &[(&str, &str)] =
    &[("rdma", "a send waits for the ring: docs/manual/limits.md, Buffers")];

/// Reads when the other end has done with waiting.
fn fills(t: &Ctx) {
    let fd = t.server();
    t.wait("full");
    let mut buf = [0; 65536];
    loop {
        let n = sys::recv(fd, &mut buf, 0).expect("recv");
        if n > 0 && buf[n - 1] == b'E' {
            break;
        }
    }
}

/// A blocked `wait` on a full connection ends when SO_SNDBUF grows.
fn grows(t: &Ctx, wait: fn(Fd) -> String) {
    let fd = t.client();
    t.log("small", sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 10_000));
    let waiter = loop {
        fill(fd);
        let waiter = blocked(move || wait(fd));
        if !waiter.is_finished() {
            break waiter;
        }
        // The kernel had moved some bytes on meanwhile.
        let _ = waiter.join();
    };
    t.log("grow", sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 200_000));
    t.say(waiter.join().expect("thread"));
    t.tell("full");
    send_all(fd, b"E");
}

/// TCP holds bytes back for 200 ms. What was looked at within this time has not been sent because
/// the time was over.
const SOON_NS: u64 = 100_000_000;

/// Holds bytes back, lets the other end look, and then sends them, `count` in all; once more if the
/// machine was too busy to look in time.
fn holds(t: &Ctx, label: &str, count: usize, hold: impl Fn(), send: impl Fn()) {
    loop {
        let begin = sys::now_ns();
        hold();
        t.tell("look");
        let seen = t.hear();
        let in_time = sys::now_ns() - begin < SOON_NS;
        send();
        t.tell(&count.to_string());
        t.wait("taken");
        if in_time {
            t.say(format!("{label}: {seen}"));
            break;
        }
    }
}

/// The other end of [`holds`].
fn sees(t: &Ctx, fd: Fd) {
    while t.hear() == "look" {
        let seen = sys::recv(fd, &mut [0; 100], MSG_DONTWAIT | MSG_PEEK);
        t.tell(&format!("{seen:?}"));
        recv_exact(fd, t.hear().parse().expect("a number"));
        t.tell("taken");
    }
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "calls/recvmmsg-time",
            "the time-out of recvmmsg: looked at after each message, invalid ones, what is left of it; the end of the stream fills up",
            |t| {
                let fd = t.server();
                await_bytes(fd, 8);
                t.log("no time", receive_bytes(fd, 4, 0, (0, 0)));
                let (n, left) = receive_bytes(fd, 1, 0, (50, 0));
                t.log("much time", (n, left.0, left.1 > 0));
                for time in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
                    t.log("invalid", receive_bytes(fd, 1, 0, time));
                }
                t.log("enough", receive_bytes(fd, 2, 0, (i64::MAX, 999_999_999)).0);
                t.log_text("rest", &recv_exact(fd, 4));
                t.log("nothing", receive_bytes(fd, 2, MSG_DONTWAIT, (3, 7)));
                t.log(
                    "invalid, where nothing is",
                    receive_bytes(fd, 1, 0, (0, -1)),
                );
                t.tell("drip");
                // Far less than a second's bytes, one in a millisecond.
                let (n, left) = receive_bytes(fd, 1000, 0, (0, 40_000_000));
                t.log("in time", (n.map(|n| n > 0 && n < 1000), left));
                t.tell("enough");
                while sys::recv(fd, &mut [0; 64], 0) != Ok(0) {}
                t.log("end", receive_bytes(fd, 3, 0, (5, 0)).0);
                t.log("end, no time", receive_bytes(fd, 3, 0, (0, 0)));
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"12345678");
                t.wait("drip");
                for _ in 0..2000 {
                    send_all(fd, b".");
                    sys::sleep_ms(1);
                    if t.heard() {
                        break;
                    }
                }
                t.wait("enough");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "calls/recvmmsg-error",
            "an error behind a message of recvmmsg belongs to the next call that finds nothing, or to SO_ERROR",
            |t| {
                let fds = t.servers(2);
                for fd in &fds {
                    await_bytes(*fd, 5);
                    t.log("one", sys::recvmmsg_then_bad_pointer(*fd, 1, 0));
                }
                t.log("data first", sys::recv(fds[0], &mut [0; 8], 0));
                t.log("then the error", sys::recv(fds[0], &mut [0; 8], MSG_PEEK));
                t.log("once", sys::recv(fds[0], &mut [0; 8], MSG_DONTWAIT));
                t.log("SO_ERROR", sys::getopt(fds[1], SOL_SOCKET, libc::SO_ERROR));
                t.log("SO_ERROR", sys::getopt(fds[1], SOL_SOCKET, libc::SO_ERROR));
                t.log_text("data", &recv_exact(fds[1], 4));
                t.log("once", sys::recv(fds[1], &mut [0; 8], MSG_DONTWAIT));
                t.meet("over");
                t.log("eof", sys::recv(fds[0], &mut [0; 8], 0));
            },
            |t| {
                let fds = t.clients(2);
                for fd in &fds {
                    send_all(*fd, b"abcde");
                }
                t.meet("over");
            },
        ),
        pair(
            "calls/negative-timeouts",
            "SO_RCVTIMEO and SO_SNDTIMEO: negative ones never wait, those out of range are EDOM, short ones EINVAL; by both names",
            |t| {
                let fd = t.server();
                let time = |name, seconds, us| sys::set_timeval(fd, name, seconds, us);
                t.log("negative", time(libc::SO_RCVTIMEO, -1, 0));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("all of", sys::recv(fd, &mut [0; 8], MSG_WAITALL));
                t.log("read", sys::read(fd, &mut [0; 8]));
                t.log(
                    "reads back",
                    sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_RCVTIMEO, 16),
                );
                t.tell("three");
                await_bytes(fd, 3);
                t.log("all of", sys::recv(fd, &mut [0; 8], MSG_WAITALL));
                t.log("microseconds", time(libc::SO_RCVTIMEO, -1, 1_000_000));
                t.log("microseconds", time(libc::SO_RCVTIMEO, 0, -1));
                let short = sys::setopt_bytes(fd, SOL_SOCKET, libc::SO_RCVTIMEO, &[0; 15]);
                t.log("short", short);
                t.log("still", sys::recv(fd, &mut [0; 8], 0));
                t.log("by the other name", time(SO_RCVTIMEO_NEW, 0, 20_000));
                let begin = sys::now_ns();
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("waited", sys::now_ns() - begin >= 19_000_000);
                t.log("negative", time(SO_RCVTIMEO_NEW, -1, 0));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("none", time(libc::SO_RCVTIMEO, 0, 0));
                let reader = blocked(move || recv_exact(fd, 3));
                t.tell("three");
                t.log_text("waited", &reader.join().expect("thread"));
                // It counts too where it was set while calls did not wait anyhow.
                sys::set_nonblocking(fd, true);
                t.log("some", time(libc::SO_RCVTIMEO, 0, 20_000));
                sys::set_nonblocking(fd, false);
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("sending", time(libc::SO_SNDTIMEO, -1, 0));
                fill(fd);
                let part = [1u8; 4096];
                let end = loop {
                    if let Err(e) = sys::send(fd, &part, 0) {
                        break e;
                    }
                };
                t.log("send", end);
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..2 {
                    t.wait("three");
                    send_all(fd, b"abc");
                }
                t.wait("end");
            },
        ),
        pair(
            "calls/negative-timeouts-before",
            "a negative time-out that is set before the connection is made, or on the listener",
            |t| {
                let listener = t.listener();
                t.log("set", sys::set_timeval(listener, libc::SO_RCVTIMEO, -3, 0));
                t.publish(listener);
                sys::await_events(listener, libc::POLLIN, 10_000);
                let fd = sys::accept(listener).expect("accept");
                t.log("none to accept", sys::accept(listener));
                for _ in 0..50 {
                    sys::await_events(fd, libc::POLLIN, 10_000);
                    let mut byte = [0; 1];
                    assert!(sys::recv(fd, &mut byte, 0) == Ok(1), "recv");
                    send_all(fd, &byte);
                }
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                t.log("set", sys::set_timeval(fd, libc::SO_RCVTIMEO, -1, 0));
                sys::connect(fd, addr).expect("connect");
                for _ in 0..50 {
                    send_all(fd, b".");
                    sys::await_events(fd, libc::POLLIN, 10_000);
                    assert!(sys::recv(fd, &mut [0; 1], 0) == Ok(1), "recv");
                }
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.meet("end");
            },
        )
        .any_path(),
        pair(
            "calls/send-buffer-grows",
            "a larger SO_SNDBUF ends a blocked send",
            fills,
            |t| {
                grows(t, |fd| format!("sent {:?}", sys::send(fd, b"x", 0)));
            },
        )
        .skip(LARGER_BUFFER),
        pair(
            "calls/send-buffer-grows-poll",
            "a larger SO_SNDBUF ends a poll for room",
            fills,
            |t| {
                grows(t, |fd| {
                    sys::poll_names(sys::await_events(fd, POLLOUT, 20_000))
                });
            },
        )
        .skip(LARGER_BUFFER),
        pair(
            "calls/send-buffer-grows-epoll",
            "a larger SO_SNDBUF ends an epoll_wait for room",
            fills,
            |t| {
                grows(t, |fd| {
                    let set = sys::epoll_create1(0).expect("epoll");
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT as u32, 1)
                        .expect("ADD");
                    let events = sys::epoll_wait(set, 4, 20_000).expect("epoll_wait");
                    sys::close(set).expect("close");
                    format!("{events:?}")
                });
            },
        )
        .skip(LARGER_BUFFER),
        pair(
            "calls/held-back",
            "what MSG_MORE and TCP_CORK hold back is seen with the next send, the uncorking, TCP_NODELAY, a shutdown, and not before",
            |t| {
                let fd = t.server();
                sees(t, fd);
                t.log_text("last", &recv_exact(fd, 4));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                t.tell("last");
            },
            |t| {
                let fd = t.client();
                let cork = |on| { sys::setopt(fd, IPPROTO_TCP, TCP_CORK, on).expect("TCP_CORK"); };
                let more = || { sys::send(fd, b"abc", MSG_MORE).expect("send"); };
                let plain = || { sys::send(fd, b"def", 0).expect("send"); };
                holds(t, "the next send", 6, more, plain);
                holds(t, "more of it", 12, || (0..3).for_each(|_| more()), plain);
                let corked = || {
                    cork(1);
                    (0..3).for_each(|_| plain());
                };
                holds(t, "uncorked", 9, corked, || cork(0));
                let push = || { sys::setopt(fd, IPPROTO_TCP, TCP_NODELAY, 1).expect("TCP_NODELAY"); };
                holds(t, "pushed", 9, corked, push);
                holds(t, "corked as before", 9, corked, || cork(0));
                holds(t, "no delay, but more", 6, more, plain);
                let parts = || {
                    cork(1);
                    sys::writev(fd, &[b"abc", b"def"]).expect("writev");
                };
                holds(t, "parts", 6, parts, || cork(0));
                t.tell("end");
                t.log("more", sys::send(fd, b"last", MSG_MORE));
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.wait("last");
            },
        )
        .skip(&[
            ("switch", "a demotion sends what the ring holds back"),
            ("rdma", "nothing is held back: docs/manual/limits.md"),
        ]),
        pair(
            "calls/held-back-behind-a-segment",
            "a full segment is seen at once, whatever is held back, and all of it with what comes next",
            |t| {
                let fd = t.server();
                while t.hear() == "look" {
                    await_bytes(fd, 1);
                    let seen = sys::recv(fd, &mut vec![0; 200_000], MSG_DONTWAIT | MSG_PEEK);
                    // (What is behind it the kernel holds back, or not.)
                    t.tell(&format!("{:?}", seen.map(|n| n >= 65_483)));
                    recv_exact(fd, t.hear().parse().expect("a number"));
                    t.tell("taken");
                }
            },
            |t| {
                let fd = t.client();
                let plain = || { sys::send(fd, b"def", 0).expect("send"); };
                let at_once = || { sys::send(fd, &vec![1; 100_000], MSG_MORE).expect("send"); };
                holds(t, "in one send", 100_003, at_once, plain);
                t.tell("end");
            },
        )
        .skip(&[("rdma", "nothing is held back: docs/manual/limits.md")]),
        pair(
            "calls/held-back-in-time",
            "what is held back is seen after a while, in full segments at once, and when its sender closes",
            |t| {
                let fds = t.servers(3);
                t.tell("go");
                for _ in 0..2 {
                    t.log_text("in time", &recv_exact(fds[0], 4));
                    t.tell("in time");
                }
                t.drain(fds[1], 5, 300_000);
                t.tell("in time");
                t.log_text("the end", &recv_exact(fds[2], 4));
                t.log("eof", sys::recv(fds[2], &mut [0; 8], 0));
                t.meet("over");
            },
            |t| {
                let fds = t.clients(3);
                t.wait("go");
                sys::setopt(fds[0], IPPROTO_TCP, TCP_CORK, 1).expect("TCP_CORK");
                for _ in 0..2 {
                    t.log("send", sys::send(fds[0], b"slow", 0));
                    t.wait("in time");
                }
                let bytes = Pattern::new(5).bytes(0, 300_000);
                let mut at = 0;
                while at < bytes.len() {
                    let end = (at + 5000).min(bytes.len());
                    at += sys::send(fds[1], &bytes[at..end], MSG_MORE).expect("send");
                }
                t.wait("in time");
                t.log("send", sys::send(fds[2], b"bye!", MSG_MORE));
                t.log("close", sys::close(fds[2]));
                t.meet("over");
            },
        ),
        pair(
            "calls/held-back-and-killed",
            "what is held back is seen when its sender is killed",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                t.log_text("the end", &recv_exact(fd, 4));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                t.meet("over");
            },
            |t| {
                let addr = t.hear_addr();
                let child = t.child(|t| {
                    let fd = t.connect(addr);
                    sys::send(fd, b"die!", MSG_MORE).expect("send");
                    sys::kill(sys::getpid(), libc::SIGKILL).expect("kill");
                    String::new()
                });
                t.log("killed", child.join());
                t.meet("over");
            },
        )
        // docs/manual/limits.md: "Death over RDMA".
        .skip(&[("rdma", "a process that dies takes along what the device has not delivered")]),
        pair(
            "calls/held-back-and-not-wanted",
            "a receiver that shuts down its receiving half, and looks for more, takes nothing that its peer still holds back",
            |t| {
                let fd = t.server();
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_RD));
                t.tell("shut");
                t.wait("held");
                let mut buf = [0; 20_000];
                let mut got = sys::recv(fd, &mut buf, 0).expect("recv");
                t.tell("looked");
                while got < 10_000 {
                    await_bytes(fd, 1);
                    got += sys::recv(fd, &mut buf[got..], 0).expect("recv");
                }
                t.log("right", Pattern::new(6).first_error(0, &buf[..got]).is_none());
                t.tell("all");
            },
            |t| {
                let fd = t.client();
                let bytes = Pattern::new(6).bytes(0, 10_000);
                t.wait("shut");
                sys::setopt(fd, IPPROTO_TCP, TCP_CORK, 1).expect("TCP_CORK");
                t.log("send", sys::send(fd, &bytes[..100], 0));
                t.tell("held");
                t.wait("looked");
                for part in bytes[100..].chunks(1100) {
                    t.log("send", sys::send(fd, part, 0));
                }
                sys::setopt(fd, IPPROTO_TCP, TCP_CORK, 0).expect("TCP_CORK");
                t.wait("all");
            },
        ),
        pair(
            "calls/splice-refused",
            "splice without a pipe at one end, at an offset, with unknown flags or the wrong end of a pipe moves nothing",
            |t| {
                let fds = t.servers(2);
                let fd = fds[0];
                let file = sys::anonymous_file(&[9; 100]).expect("a file");
                let [from, to] = sys::pipe();
                sys::write(to, b"piped").expect("write");
                await_bytes(fd, 4);
                let splice =
                    |from, at, to, into, flags| sys::splice_at(from, at, to, into, 4, flags);
                t.log("to a socket", splice(fd, None, fds[1], None, 0));
                t.log("to itself", splice(fd, None, fd, None, 0));
                t.log("to a file", splice(fd, None, file, None, 0));
                t.log("to a file at", splice(fd, None, file, Some(0), 0));
                t.log("from a file", splice(file, None, fd, None, 0));
                t.log("from a file at", splice(file, Some(0), fd, None, 0));
                t.log("pipe at", splice(fd, None, to, Some(0), 0));
                t.log("socket at", splice(fd, Some(0), to, None, 0));
                t.log("from pipe at", splice(from, Some(0), fd, None, 0));
                t.log("to socket at", splice(from, None, fd, Some(0), 0));
                t.log("flags", splice(fd, None, to, None, 0x100));
                t.log("flags", splice(from, None, fd, None, 0x100));
                t.log("read end", splice(fd, None, from, None, 0));
                t.log("write end", splice(to, None, fd, None, 0));
                t.log("closed", splice(fd, None, 999, None, 0));
                t.log("closed", splice(999, None, fd, None, 0));
                t.log("nothing", sys::splice_at(fd, None, file, None, 0, 0));
                t.log("tee", (sys::tee(fd, to, 4, 0), sys::tee(from, fd, 4, 0)));
                t.log(
                    "sendfile",
                    (
                        sys::sendfile(fds[1], fd, None, 4),
                        sys::sendfile(fd, from, None, 4),
                    ),
                );
                t.log(
                    "copy_file_range",
                    (
                        sys::copy_file_range(fd, file, 4),
                        sys::copy_file_range(file, fd, 4),
                    ),
                );
                t.log_text("all is there", &recv_exact(fd, 4));
                t.log_text("and here", &recv_exact_from_pipe(from, 5));
                t.tell("end");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fds = t.clients(2);
                send_all(fds[0], b"data");
                t.wait("end");
                for fd in fds {
                    t.log("nothing", sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                }
            },
        ),
        alone(
            "calls/short-connections-leave-nothing",
            "memory after many short connections is that of a few",
            |t| {
                let listener = t.listener();
                let addr = sys::getsockname(listener).expect("getsockname");
                let connections = |count| {
                    for _ in 0..count {
                        let near =
                            sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                        sys::connect(near, addr).expect("connect");
                        let far = sys::accept(listener).expect("accept");
                        send_all(near, b"?");
                        recv_exact(far, 1);
                        // No TIME-WAIT: ports are as many as there are.
                        sys::set_linger(near, true, 0).expect("SO_LINGER");
                        sys::close(near).expect("close");
                        sys::close(far).expect("close");
                    }
                };
                // (With fast connect each has a trace; 256 have had one before one serves again.)
                connections(300);
                // Their records alone would be 2 MiB, each time. (On a busy machine the library's
                // thread may have many to let go of at once, and what these have touched stays.)
                let leaves_nothing = (0..4).any(|_| {
                    let before = shared_kib();
                    connections(4000);
                    shared_kib().saturating_sub(before) < 512
                });
                t.log("leaves nothing", leaves_nothing);
            },
        )
        .any_path(),
    ]
}

fn recv_exact_from_pipe(from: Fd, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let n = sys::read(from, &mut bytes).expect("read");
    bytes.truncate(n);
    bytes
}

/// Shared memory of this process, touched.
fn shared_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).expect("RssShmem")
}
