//! Bytes: every read and write call, their flags, and what they return.

use crate::ctx::{await_bytes, blocked, recv_exact, send_all};
use crate::mover::{Receiver, Sender};
use crate::pattern::Pattern;
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, Addr, E, Stream};
use libc::{
    MSG_DONTWAIT, MSG_ERRQUEUE, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL,
    MSG_WAITFORONE, POLLERR, POLLIN, POLLOUT, POLLPRI, SOL_SOCKET,
};
use std::time::{Duration, Instant};

mod aio;
mod files;
mod flags;

const MIB: usize = 1 << 20;

/// Sends `total` bytes with random blocking calls.
fn pump(mut sender: Sender, total: u64, max: usize) {
    while sender.sent < total {
        let room = (total - sender.sent).min(max as u64) as usize;
        match sender.step(room, 0) {
            Ok(_) | Err(E(libc::EINTR)) => {}
            Err(e) => panic!("send: {e:?}"),
        }
    }
}

fn suck(receiver: &mut Receiver, total: u64, max: usize) {
    while receiver.received < total {
        let room = (total - receiver.received).min(max as u64) as usize;
        match receiver.step(room, 0) {
            Ok(0) => panic!("EOF after {}", receiver.received),
            Ok(_) | Err(E(libc::EINTR)) => {}
            Err(e) => panic!("recv: {e:?}"),
        }
    }
}

/// Both directions at once on a non-blocking socket, driven by poll.
fn duplex(fd: i32, mut sender: Sender, mut receiver: Receiver, total: u64, max: usize) -> String {
    sys::set_nonblocking(fd, true);
    while sender.sent < total || receiver.received < total {
        let mut events = 0;
        if sender.sent < total {
            events |= POLLOUT;
        }
        if receiver.received < total {
            events |= POLLIN;
        }
        let revents = sys::await_events(fd, events, 10_000);
        assert!(revents != 0, "stuck at {} sent, {} received", sender.sent, receiver.received);
        if revents & POLLIN != 0 {
            match receiver.step(max.min((total - receiver.received) as usize), 0) {
                Ok(0) => panic!("EOF after {}", receiver.received),
                Ok(_) | Err(E(libc::EAGAIN)) => {}
                Err(e) => panic!("recv: {e:?}"),
            }
        }
        if revents & POLLOUT != 0 {
            match sender.step(max.min((total - sender.sent) as usize), 0) {
                Ok(_) | Err(E(libc::EAGAIN)) => {}
                Err(e) => panic!("send: {e:?}"),
            }
        }
    }
    receiver.verdict()
}

pub fn list() -> Vec<Scenario> {
    let mut all = first();
    all.extend(files::list());
    all.extend(aio::list());
    all.extend(flags::list());
    all
}

fn first() -> Vec<Scenario> {
    vec![
        pair(
            "data/stream-blocking",
            "read/readv/recv/recvfrom/recvmsg/recvmmsg/preadv2 and write/writev/send/sendto/sendmsg/sendmmsg/pwritev2, random sizes, both directions in turn",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 1);
                suck(&mut receiver, 6 * MIB as u64, 70_000);
                t.log("up", receiver.verdict());
                pump(t.sender(fd, 2), 6 * MIB as u64, 70_000);
                t.wait("done");
                t.still_fast(fd);
                t.tell("seen");
            },
            |t| {
                let fd = t.client();
                pump(t.sender(fd, 1), 6 * MIB as u64, 70_000);
                let mut receiver = t.receiver(fd, 2);
                suck(&mut receiver, 6 * MIB as u64, 70_000);
                t.log("down", receiver.verdict());
                t.tell("done");
                t.wait("seen");
            },
        ),
        pair(
            "data/stream-small",
            "a long stream of small messages with every call",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 3);
                suck(&mut receiver, 200_000, 40);
                t.log("up", receiver.verdict());
            },
            |t| {
                let fd = t.client();
                pump(t.sender(fd, 3), 200_000, 40);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/duplex-nonblocking",
            "both directions at once, non-blocking, every call, poll-driven",
            |t| {
                let fd = t.server();
                t.log("up", duplex(fd, t.sender(fd, 5), t.receiver(fd, 4), 4 * MIB as u64, 50_000));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.log(
                    "down",
                    duplex(fd, t.sender(fd, 4), t.receiver(fd, 5), 4 * MIB as u64, 50_000),
                );
                t.meet("end");
            },
        ),
        pair(
            "data/ping-pong",
            "request and response of random sizes, blocking",
            |t| {
                let fd = t.server();
                sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).expect("TCP_NODELAY");
                let (mut from, mut to) = (t.receiver(fd, 6), t.sender(fd, 7));
                let mut rng = crate::pattern::Rng::new(9);
                for _ in 0..2000 {
                    let (ask, answer) = (rng.range(1, 3000) as u64, rng.range(1, 3000) as u64);
                    let goal = from.received + ask;
                    suck(&mut from, goal, 4000);
                    let goal = to.sent + answer;
                    while to.sent < goal {
                        let room = (goal - to.sent) as usize;
                        to.step(room, 0).expect("send");
                    }
                }
                t.log("requests", from.verdict());
                t.wait("done");
            },
            |t| {
                let fd = t.client();
                sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).expect("TCP_NODELAY");
                let (mut from, mut to) = (t.receiver(fd, 7), t.sender(fd, 6));
                let mut rng = crate::pattern::Rng::new(9);
                for _ in 0..2000 {
                    let (ask, answer) = (rng.range(1, 3000) as u64, rng.range(1, 3000) as u64);
                    let goal = to.sent + ask;
                    while to.sent < goal {
                        let room = (goal - to.sent) as usize;
                        to.step(room, 0).expect("send");
                    }
                    let goal = from.received + answer;
                    suck(&mut from, goal, 4000);
                }
                t.log("responses", from.verdict());
                t.tell("done");
            },
        ),
        pair(
            "data/large-writes",
            "blocking writes much larger than any buffer return in full",
            |t| {
                let fd = t.server();
                t.drain(fd, 8, 48 * MIB);
                t.tell("done");
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 8).upcoming(48 * MIB);
                t.log("send", sys::send(fd, &bytes[..32 * MIB], 0));
                let (a, b) = bytes[32 * MIB..].split_at(7 * MIB + 1);
                t.log("writev", sys::writev(fd, &[a, b]));
                t.wait("done");
            },
        ),
        pair(
            "data/peek",
            "MSG_PEEK: sees without consuming; with MSG_DONTWAIT on nothing; with MSG_TRUNC; shorter and longer than what is there",
            |t| {
                let fd = t.server();
                t.log("peek empty", sys::recv(fd, &mut [0; 8], MSG_PEEK | MSG_DONTWAIT));
                t.tell("go");
                await_bytes(fd, 11);
                let mut buf = [0; 64];
                for (label, len) in [("peek 5", 5), ("peek 64", 64), ("peek 11", 11)] {
                    let n = sys::recv(fd, &mut buf[..len], MSG_PEEK).expect("peek");
                    t.log_text(label, &buf[..n]);
                }
                t.log("peek trunc", sys::recv(fd, &mut buf[..4], MSG_PEEK | MSG_TRUNC));
                let n = sys::recv(fd, &mut buf[..6], 0).expect("recv");
                t.log_text("recv 6", &buf[..n]);
                let n = sys::recvmsg(fd, &mut [&mut buf[..64]], MSG_PEEK).expect("peek");
                t.log_text("peek by recvmsg", &buf[..n]);
                let n = sys::recv(fd, &mut buf, 0).expect("recv");
                t.log_text("recv rest", &buf[..n]);
                t.log("fionread", sys::fionread(fd));
                t.tell("close");
                t.log("peek at eof", sys::recv(fd, &mut buf, MSG_PEEK));
                t.log("recv at eof", sys::recv(fd, &mut buf, 0));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"hello world");
                t.wait("close");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "data/peek-large",
            "MSG_PEEK over more bytes than one buffer holds, then the same bytes are read",
            |t| {
                let fd = t.server();
                await_bytes(fd, 40_000);
                let mut buf = vec![0; 40_000];
                t.log("peek", sys::recv(fd, &mut buf, MSG_PEEK | MSG_WAITALL));
                t.log("first error", t.receiver(fd, 11).verdict());
                let mut check = t.receiver(fd, 11);
                check.accept(&buf);
                t.log("peeked", check.verdict());
                t.drain(fd, 11, 40_000);
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 11, 40_000);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/waitall",
            "MSG_WAITALL: waits for all of it over several arrivals; EOF ends it early; with MSG_DONTWAIT it does not wait",
            |t| {
                let fd = t.server();
                let mut buf = [0; 64];
                t.tell("go");
                let n = sys::recv(fd, &mut buf[..30], MSG_WAITALL).expect("recv");
                t.log_text("30 of three tens", &buf[..n]);
                t.tell("more");
                await_bytes(fd, 5);
                t.log("do not wait", sys::recv(fd, &mut buf[..30], MSG_WAITALL | MSG_DONTWAIT));
                t.tell("last");
                let n = sys::recv(fd, &mut buf[..30], MSG_WAITALL).expect("recv");
                t.log_text("eof ends it", &buf[..n]);
                t.log("eof", sys::recv(fd, &mut buf[..30], MSG_WAITALL));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                for part in [b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"] {
                    send_all(fd, part);
                    sys::sleep_ms(5);
                }
                t.wait("more");
                send_all(fd, b"12345");
                t.wait("last");
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "data/waitall-large",
            "MSG_WAITALL for more than any buffer holds",
            |t| {
                let fd = t.server();
                let mut buf = vec![0; 9 * MIB];
                t.log("recv", sys::recv(fd, &mut buf, MSG_WAITALL));
                let mut check = t.receiver(fd, 12);
                check.accept(&buf);
                t.log("check", check.verdict());
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 12, 9 * MIB);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/zero-length",
            "zero-length reads and writes: no bytes, no EOF at the peer",
            |t| {
                let fd = t.server();
                t.log("read 0 on nothing", sys::read(fd, &mut []));
                t.log("readv 0 on nothing", sys::readv(fd, &mut [&mut [], &mut []]));
                t.log("recv 0 on nothing", sys::recv(fd, &mut [], MSG_DONTWAIT));
                t.log("recvmsg 0 on nothing", sys::recvmsg(fd, &mut [], MSG_DONTWAIT));
                t.log("readv of 0 parts", sys::readv(fd, &mut []));
                t.log("readv of -1 parts", sys::readv_count(fd, -1));
                t.log("readv of 1025 parts", sys::readv_count(fd, 1025));
                t.tell("go");
                t.wait("sent nothing");
                t.log("still nothing", sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN, 0)));
                t.tell("go");
                await_bytes(fd, 3);
                t.log("recv 0 with data", sys::recv(fd, &mut [], 0));
                t.log("read 0 with data", sys::read(fd, &mut []));
                t.log("fionread", sys::fionread(fd));
                t.log_text("data", &recv_exact(fd, 3));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                t.log("recv 0 at eof", sys::recv(fd, &mut [], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                t.log("write 0", sys::write(fd, &[]));
                t.log("send 0", sys::send(fd, &[], 0));
                t.log("writev 0", sys::writev(fd, &[&[], &[]]));
                t.log("writev of 0 parts", sys::writev(fd, &[]));
                t.log("writev of -1 parts", sys::writev_count(fd, -1));
                t.log("writev of 1025 parts", sys::writev_count(fd, 1025));
                t.log("sendmsg of 0 parts", sys::sendmsg(fd, &[], 0));
                t.log("sendmsg 0", sys::sendmsg(fd, &[&[]], 0));
                t.log("sendto 0", sys::sendto(fd, &[], 0, None));
                t.log("sendmmsg 0", sys::sendmmsg(fd, &[&[], &[]], 0));
                t.tell("sent nothing");
                t.wait("go");
                send_all(fd, b"abc");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "data/huge-iov",
            "vectors of 1024 parts, some empty",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 13);
                let mut total = 0;
                while total < 300_000 {
                    let mut space = vec![0u8; 1024 * 300];
                    let mut parts: Vec<&mut [u8]> = space.chunks_mut(300).collect();
                    parts.truncate(1024);
                    let n = sys::readv(fd, &mut parts).expect("readv");
                    assert!(n > 0);
                    receiver.accept(&space[..n]);
                    total += n;
                }
                t.log("readv", receiver.verdict());
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 13).upcoming(300_000);
                let mut rng = crate::pattern::Rng::new(4);
                let mut parts: Vec<&[u8]> = Vec::new();
                let mut rest = &bytes[..];
                for i in 0..1024 {
                    let len =
                        if i == 1023 { rest.len() } else { rng.range(0, 500).min(rest.len()) };
                    let (part, tail) = rest.split_at(len);
                    parts.push(part);
                    rest = tail;
                }
                t.log("writev", sys::writev(fd, &parts));
            },
        ),
        pair(
            "data/bad-pointers",
            "EFAULT for every call, and no byte is lost by it",
            |t| {
                let fd = t.server();
                await_bytes(fd, 8);
                t.log("recv", sys::recv_bad_pointer(fd, 4, 0));
                t.log("read", sys::read_bad_pointer(fd, 4));
                t.log("peek", sys::recv_bad_pointer(fd, 4, MSG_PEEK));
                t.log_text("nothing lost", &recv_exact(fd, 8));
                t.log("recv on nothing", sys::recv_bad_pointer(fd, 4, MSG_DONTWAIT));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.log("send", sys::send_bad_pointer(fd, 4, 0));
                send_all(fd, b"01234567");
                t.log("send 1 MiB", sys::send_bad_pointer(fd, MIB, 0));
                t.meet("end");
            },
        ),
        pair(
            "data/backpressure",
            "a writer gets EAGAIN after a bounded amount and POLLOUT when the reader has made room; nothing is lost",
            |t| {
                let fd = t.server();
                let full: u64 = t.hear().parse().expect("a number");
                let mut receiver = t.receiver(fd, 14);
                suck(&mut receiver, full, 65_536);
                t.log("exact", receiver.error);
                t.tell("drained");
                let more: u64 = t.hear().parse().expect("a number");
                suck(&mut receiver, full + more, 65_536);
                t.log("exact", receiver.error);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                sys::set_nonblocking(fd, true);
                let mut sender = t.sender(fd, 14);
                // TCP moves bytes to the receiver for a while after EAGAIN, on a busy machine for
                // long: full is what every call says is full, and is still when all have been
                // asked.
                let bound = 64 << 20;
                while sender.sent <= bound {
                    match sender.step(60_000, 0) {
                        Ok(_) => continue,
                        Err(E(libc::EAGAIN)) => {}
                        Err(e) => panic!("send: {e:?}"),
                    }
                    // Single bytes may still fit when POLLOUT waits for more room.
                    while sender.step(1, 0).is_ok() {}
                    let mut says_full = || {
                        sys::await_events(fd, POLLOUT, 0) == 0
                            && sender.step(1, 0) == Err(E(libc::EAGAIN))
                    };
                    if (0..10).all(|_| says_full()) {
                        break;
                    }
                }
                let first = sender.sent;
                t.log("bounded", (16_384..=bound).contains(&first));
                t.tell(&first.to_string());
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLOUT, 10_000)));
                t.wait("drained");
                // (What the receiver has read is not acknowledged at once.)
                while sender.sent < first + 20_000 {
                    if sender.step(1000, 0) == Err(E(libc::EAGAIN)) {
                        assert!(sys::await_events(fd, POLLOUT, 10_000) != 0, "no room again");
                    }
                }
                t.tell(&(sender.sent - first).to_string());
            },
        ),
        pair(
            "data/backpressure-many-laps",
            "fill until EAGAIN and drain, many times, with POLLOUT between",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 15);
                suck(&mut receiver, 24 * MIB as u64, 300_000);
                t.log("stream", receiver.verdict());
            },
            |t| {
                let fd = t.client();
                sys::set_nonblocking(fd, true);
                let mut sender = t.sender(fd, 15);
                while sender.sent < 24 * MIB as u64 {
                    let room = (24 * MIB as u64 - sender.sent).min(200_000) as usize;
                    match sender.step(room, 0) {
                        Ok(_) => {}
                        Err(E(libc::EAGAIN)) => {
                            assert!(sys::await_events(fd, POLLOUT, 10_000) != 0, "no POLLOUT");
                        }
                        Err(e) => panic!("send: {e:?}"),
                    }
                }
                sys::set_nonblocking(fd, false);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/slow-reader",
            "a blocking writer waits for a reader that pauses; one large send returns in full",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 16);
                for _ in 0..10 {
                    sys::sleep_ms(3);
                    let goal = receiver.received + 1_000_000;
                    suck(&mut receiver, goal, 65_536);
                }
                t.log("stream", receiver.verdict());
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 16).upcoming(10_000_000);
                t.log("send", sys::send(fd, &bytes, 0));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/receive-timeout",
            "SO_RCVTIMEO: EAGAIN after the time, no loss, data in time ends the wait, 0 waits for ever again",
            |t| {
                let fd = t.server();
                t.log("set", sys::set_timeout(fd, libc::SO_RCVTIMEO, 120));
                let begin = sys::now_ns();
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                let ms = (sys::now_ns() - begin) / 1_000_000;
                t.log("in time", (119..2000).contains(&ms));
                let begin = sys::now_ns();
                t.log("read", sys::read(fd, &mut [0; 8]));
                let ms = (sys::now_ns() - begin) / 1_000_000;
                t.log("in time", (119..2000).contains(&ms));
                t.log("set", sys::set_timeout(fd, libc::SO_RCVTIMEO, 10_000));
                t.tell("go");
                t.log_text("data", &recv_exact(fd, 5));
                t.log("set", sys::set_timeout(fd, libc::SO_RCVTIMEO, 100));
                t.tell("three");
                // (They may come later than that.)
                await_bytes(fd, 3);
                let mut buf = [0; 10];
                t.log("waitall keeps what came", sys::recv(fd, &mut buf, MSG_WAITALL));
                t.log("set", sys::set_timeout(fd, libc::SO_RCVTIMEO, 0));
                t.tell("later");
                t.log_text("data", &recv_exact(fd, 5));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"hello");
                t.wait("three");
                send_all(fd, b"abc");
                t.wait("later");
                sys::sleep_ms(30);
                send_all(fd, b"again");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/send-timeout",
            "SO_SNDTIMEO: a blocked send ends after the time with what it has sent, or EAGAIN",
            |t| {
                let fd = t.server();
                let total: u64 = t.hear().parse().expect("a number");
                let mut receiver = t.receiver(fd, 17);
                suck(&mut receiver, total, 65_536);
                t.log("exact", receiver.error);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("set", sys::set_timeout(fd, libc::SO_SNDTIMEO, 150));
                let mut sender = t.sender(fd, 17);
                let begin = sys::now_ns();
                let end = loop {
                    let bytes = sender.upcoming(8 * MIB);
                    match sys::send(fd, &bytes, 0) {
                        Ok(n) => {
                            sender.advance(n);
                            assert!(sender.sent < 256 << 20, "never full");
                        }
                        Err(e) => break e,
                    }
                };
                let ms = (sys::now_ns() - begin) / 1_000_000;
                t.log("end", end);
                t.log("in time", (149..5000).contains(&ms));
                t.tell(&sender.sent.to_string());
            },
        ),
        pair(
            "data/receive-low-water",
            "SO_RCVLOWAT: poll and recv wait for so many bytes",
            |t| {
                let fd = t.server();
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 100));
                t.log("get", sys::getopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT));
                t.went_back(fd, "socket-option");
                t.option_counts(fd);
                t.tell("50");
                await_bytes(fd, 50);
                t.log("poll at 50", sys::poll_names(sys::await_events(fd, POLLIN, 20)));
                t.tell("60");
                await_bytes(fd, 110);
                t.log("poll at 110", sys::poll_names(sys::await_events(fd, POLLIN, 5000)));
                t.log("recv", sys::recv(fd, &mut [0; 200], 0));
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 1));
                t.tell("one");
                t.log("recv", sys::recv(fd, &mut [0; 200], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("50");
                send_all(fd, &[1; 50]);
                t.wait("60");
                send_all(fd, &[1; 60]);
                t.wait("one");
                send_all(fd, &[1; 1]);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/fionread",
            "FIONREAD counts what can be read; SIOCOUTQ comes down to 0",
            |t| {
                let fd = t.server();
                t.log("nothing", sys::fionread(fd));
                t.tell("go");
                await_bytes(fd, 1000);
                t.log("1000", sys::fionread(fd));
                recv_exact(fd, 300);
                t.log("700", sys::fionread(fd));
                recv_exact(fd, 700);
                t.log("0", sys::fionread(fd));
                t.tell("read");
                t.wait("closing");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                t.log("at eof", sys::fionread(fd));
            },
            |t| {
                // The lowest free numbers are where the library makes its own descriptors
                // (docs/manual/limits.md): not at the closed one.
                let low = sys::pipe();
                let fd = t.client();
                let all_is_there = || {
                    let deadline = sys::now_ns() + 5_000_000_000;
                    while sys::outq(fd) != Ok(0) && sys::now_ns() < deadline {
                        sys::sleep_ms(1);
                    }
                };
                all_is_there();
                t.log("outq", sys::outq(fd));
                t.wait("go");
                send_all(fd, &[7; 1000]);
                t.wait("read");
                all_is_there();
                t.log("outq", sys::outq(fd));
                t.tell("closing");
                for end in low {
                    sys::close(end).expect("close");
                }
                t.log("close", sys::close(fd));
                t.log("fionread on a closed fd", sys::of_closed(|| sys::fionread(fd)));
            },
        ),
        pair(
            "data/many-messages",
            "sendmmsg and recvmmsg: lengths of each message, MSG_WAITFORONE",
            |t| {
                let fd = t.server();
                await_bytes(fd, 21);
                let (mut a, mut b, mut c) = ([0; 5], [0; 5], [0; 100]);
                t.log(
                    "recvmmsg",
                    sys::recvmmsg(fd, &mut [&mut a, &mut b, &mut c], MSG_WAITFORONE, None),
                );
                t.log_text("first", &a);
                t.log_text("second", &b);
                t.log_text("third", &c[..11]);
                t.log("nothing", sys::recvmmsg(fd, &mut [&mut a, &mut b], MSG_DONTWAIT, None));
                t.tell("go");
                await_bytes(fd, 3);
                t.log(
                    "one is enough",
                    sys::recvmmsg(fd, &mut [&mut a, &mut b], MSG_WAITFORONE, None),
                );
                t.tell("go");
                t.log(
                    "waits for both",
                    sys::recvmmsg(fd, &mut [&mut a[..1], &mut b[..1]], 0, None),
                );
            },
            |t| {
                let fd = t.client();
                t.log(
                    "sendmmsg",
                    sys::sendmmsg(fd, &[b"one", b"", b"three", b"and the fourth"], 0)
                        .map(|v| v.len()),
                );
                // The total is 3 + 0 + 5 + 14 = 22 bytes, of which 21 are awaited and 5 + 5 + 12
                // are read.
                t.wait("go");
                send_all(fd, b"abc");
                t.wait("go");
                send_all(fd, b"x");
                sys::sleep_ms(10);
                send_all(fd, b"y");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/server-speaks-first",
            "the accepting end sends before it has received anything",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                send_all(fd, b"220 ready\n");
                t.log_text("answer", &recv_exact(fd, 4));
                t.pour(fd, 24, MIB);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                t.log_text("banner", &recv_exact(fd, 10));
                send_all(fd, b"quit");
                t.drain(fd, 24, MIB);
            },
        )
        // It is over before both ends have agreed, where the machine is fast.
        .any_path(),
        pair(
            "data/silent-client",
            "a client that sends nothing, and then closes",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.log("nothing", sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                t.tell("close");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                t.wait("close");
                t.log("close", sys::close(fd));
            },
        )
        .any_path(),
        alone(
            "data/wrong-fds",
            "data calls on what is no connected socket: EBADF, ENOTSOCK, ENOTCONN, EPIPE",
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                let mut buf = [0; 4];
                for (label, fd) in [("-1", -1), ("999", 999)] {
                    t.say(label);
                    t.log("read", sys::read(fd, &mut buf));
                    t.log("write", sys::write(fd, b"x"));
                    t.log("recv", sys::recv(fd, &mut buf, 0));
                    t.log("send", sys::send(fd, b"x", 0));
                    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                    t.log("close", sys::close(fd));
                }
                let [from, to] = sys::pipe();
                t.log("recv on a pipe", sys::recv(from, &mut buf, 0));
                t.log("send on a pipe", sys::send(to, b"x", 0));
                t.log("connect a pipe", sys::connect(to, Addr::V4([127, 0, 0, 1], 1)));
                let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("recv unconnected", sys::recv(fresh, &mut buf, 0));
                t.log("read unconnected", sys::read(fresh, &mut buf));
                t.log("send unconnected", sys::send(fresh, b"x", MSG_NOSIGNAL));
                t.log("write unconnected", sys::write(fresh, b"x"));
                let listener = t.listener();
                t.log("recv on a listener", sys::recv(listener, &mut buf, 0));
                t.log("send on a listener", sys::send(listener, b"x", 0));
            },
        ),
        alone("data/one-process", "both ends in one thread: small and large exchanges", |t| {
            let (near, far) = t.pair();
            for size in [1usize, 100, 5000, 60_000] {
                for (from, to) in [(near, far), (far, near)] {
                    let bytes = t.sender(from, 25).upcoming(size);
                    send_all(from, &bytes);
                    t.log("same", recv_exact(to, size) == bytes);
                }
            }
            t.log("close", sys::close(near));
            t.log("eof", sys::recv(far, &mut [0; 1], 0));
        }),
    ]
}
