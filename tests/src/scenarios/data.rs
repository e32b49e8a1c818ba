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
                t.log("down", duplex(fd, t.sender(fd, 4), t.receiver(fd, 5), 4 * MIB as u64, 50_000));
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
            "data/dontwait",
            "MSG_DONTWAIT on nothing is EAGAIN on a blocking socket, for every receiving call",
            |t| {
                let fd = t.server();
                let (mut a, mut b) = ([0; 8], [0; 8]);
                t.log("recv", sys::recv(fd, &mut a, MSG_DONTWAIT));
                t.log("recvfrom", sys::recvfrom(fd, &mut a, MSG_DONTWAIT));
                t.log("recvmsg", sys::recvmsg(fd, &mut [&mut a, &mut b], MSG_DONTWAIT));
                t.log("recvmmsg", sys::recvmmsg(fd, &mut [&mut a, &mut b], MSG_DONTWAIT, None));
                t.log("preadv2 NOWAIT", sys::preadv2(fd, &mut [&mut a], -1, libc::RWF_NOWAIT));
                sys::set_nonblocking(fd, true);
                t.log("read", sys::read(fd, &mut a));
                t.log("readv", sys::readv(fd, &mut [&mut a, &mut b]));
                t.log("recv", sys::recv(fd, &mut a, 0));
                t.log("recv waitall", sys::recv(fd, &mut a, MSG_WAITALL));
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        pair(
            "data/trunc",
            "MSG_TRUNC on a stream discards the bytes and leaves the buffer alone",
            |t| {
                let fd = t.server();
                await_bytes(fd, 10);
                let mut buf = *b"........";
                t.log("trunc", sys::recv(fd, &mut buf[..4], MSG_TRUNC));
                t.log_text("buffer", &buf);
                let n = sys::recv(fd, &mut buf, 0).expect("recv");
                t.log_text("rest", &buf[..n]);
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"0123456789");
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
                    let len = if i == 1023 { rest.len() } else { rng.range(0, 500).min(rest.len()) };
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
                    let mut says_full = || sys::await_events(fd, POLLOUT, 0) == 0 && sender.step(1, 0) == Err(E(libc::EAGAIN));
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
                t.log("outq", sys::outq(fd));
                t.wait("go");
                send_all(fd, &[7; 1000]);
                t.wait("read");
                let deadline = sys::now_ns() + 5_000_000_000;
                while sys::outq(fd) != Ok(0) && sys::now_ns() < deadline {
                    sys::sleep_ms(1);
                }
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
            "data/out-of-band",
            "MSG_OOB: POLLPRI, the urgent byte apart, SIOCATMARK, the stream without it",
            |t| {
                let fd = t.server();
                t.log("nothing urgent", sys::recv(fd, &mut [0; 1], MSG_OOB));
                t.tell("go");
                t.log("pri", sys::poll_names(sys::await_events(fd, POLLPRI, 5000)));
                await_bytes(fd, 3);
                let mut urgent = [0; 4];
                let n = sys::recv(fd, &mut urgent, MSG_OOB).expect("urgent byte");
                t.log_text("urgent", &urgent[..n]);
                t.log("again", sys::recv(fd, &mut urgent, MSG_OOB));
                t.tell("more");
                let mut buf = [0; 16];
                let n = sys::recv(fd, &mut buf, 0).expect("recv");
                t.log_text("up to the mark", &buf[..n]);
                let mut mark = 0;
                let _ = sys::ioctl_int(fd, 0x8905, &mut mark);
                t.log("at mark", mark);
                t.log_text("after the mark", &recv_exact(fd, 3));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"abc");
                t.log("oob", sys::send(fd, b"!", MSG_OOB));
                t.sends_over_tcp(fd, "urgent-data");
                t.wait("more");
                send_all(fd, b"def");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/out-of-band-inline",
            "SO_OOBINLINE: the urgent byte in its place",
            |t| {
                let fd = t.server();
                t.log("inline", sys::setopt(fd, SOL_SOCKET, libc::SO_OOBINLINE, 1));
                t.tell("go");
                t.wait("sent");
                t.log_text("in line", &recv_exact(fd, 7));
                t.log("oob", sys::recv(fd, &mut [0; 1], MSG_OOB));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"abc");
                t.log("oob", sys::send(fd, b"!", MSG_OOB));
                send_all(fd, b"def");
                t.tell("sent");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/message-header",
            "recvmsg and recvfrom on a stream: no address, no flags, no control data",
            |t| {
                let fd = t.server();
                await_bytes(fd, 10);
                t.log("recvfrom", sys::recvfrom(fd, &mut [0; 4], 0));
                let mut a = [0; 3];
                let mut b = [0; 10];
                t.log("recvmsg", sys::recvmsg_full(fd, &mut [&mut a, &mut b], 0));
                t.log("recvmsg on nothing", sys::recvmsg_full(fd, &mut [&mut a], MSG_DONTWAIT));
                t.tell("close");
                t.log("recvmsg at eof", sys::recvmsg_full(fd, &mut [&mut a], 0));
                t.log("recvfrom at eof", sys::recvfrom(fd, &mut a, 0));
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"0123456789");
                t.wait("close");
                t.log("close", sys::close(fd));
            },
        )
        .skip(&[("switch", "a receive may stop where the path changed")]),
        pair(
            "data/sendto-address",
            "sendto with an address on a connected socket",
            |t| {
                let fd = t.server();
                t.log_text("data", &recv_exact(fd, 6));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let peer = sys::getpeername(fd).expect("getpeername");
                t.log("to the peer", sys::sendto(fd, b"abc", 0, Some(peer)));
                t.log("to another", sys::sendto(fd, b"def", 0, Some(Addr::V4([127, 0, 0, 9], 9))));
            },
        ),
        pair(
            "data/more-and-cork",
            "MSG_MORE and TCP_CORK may hold bytes back; the next send or the uncorking sends them",
            |t| {
                let fd = t.server();
                t.log_text("more", &recv_exact(fd, 8));
                t.tell("next");
                t.log_text("cork", &recv_exact(fd, 9));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("more", sys::send(fd, b"head", MSG_MORE));
                t.log("plain", sys::send(fd, b"tail", 0));
                t.wait("next");
                t.log("cork", sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1));
                t.log("get", sys::getopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK));
                for part in [b"abc", b"def", b"ghi"] {
                    t.log("send", sys::send(fd, part, 0));
                }
                t.log("uncork", sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0));
            },
        ),
        pair(
            "data/error-queue",
            "MSG_ERRQUEUE on nothing is EAGAIN, and does not take data",
            |t| {
                let fd = t.server();
                await_bytes(fd, 4);
                t.log("errqueue", sys::recvmsg_full(fd, &mut [&mut [0; 8]], MSG_ERRQUEUE));
                t.log_text("data", &recv_exact(fd, 4));
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"data");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/zero-copy",
            "MSG_ZEROCOPY: the bytes arrive and the completion is on the error queue",
            |t| {
                let fd = t.server();
                t.drain(fd, 18, 200_000);
                t.tell("drained");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_ZEROCOPY, 1));
                t.went_back(fd, "socket-option");
                let bytes = t.sender(fd, 18).upcoming(200_000);
                let mut at = 0;
                let mut calls = 0u32;
                while at < bytes.len() {
                    at += sys::send(fd, &bytes[at..], libc::MSG_ZEROCOPY).expect("zero copy");
                    calls += 1;
                }
                t.wait("drained");
                let mut completed = 0;
                while completed < calls {
                    assert!(sys::await_events(fd, 0, 5000) & POLLERR != 0, "no completion");
                    let got = sys::recvmsg_full(fd, &mut [&mut [0; 8]], MSG_ERRQUEUE).expect("completion");
                    let note = &got.control[0].2;
                    let word = |at: usize| u32::from_ne_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]]);
                    t.log("errno and origin", (word(0), note[4]));
                    // sock_extended_err: ee_info is the first, ee_data the last call of the range.
                    completed += word(12) - word(8) + 1;
                }
                t.log("all completed", completed == calls);
            },
        )
        .demoted(),
        pair(
            "data/sendfile",
            "sendfile from a file to the socket, with and without an offset, between ordinary sends",
            |t| {
                let fd = t.server();
                t.drain(fd, 19, 200_000);
                t.drain(fd, 19, 200_000);
                t.log_text("after", &recv_exact(fd, 5));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 19).upcoming(200_000);
                let file = sys::anonymous_file(&bytes).expect("file");
                for sendfile in [sys::sendfile, sys::sendfile64] {
                    send_all(fd, &bytes[..1000]);
                    let mut offset = 1000;
                    while offset < 150_000 {
                        let left = (150_000 - offset) as usize;
                        sendfile(fd, file, Some(&mut offset), left).expect("sendfile");
                    }
                    t.log("offset", offset);
                    let _ = sys::lseek(file, 150_000, libc::SEEK_SET);
                    let mut left = 50_000;
                    while left > 0 {
                        left -= sendfile(fd, file, None, left).expect("sendfile");
                    }
                    t.log("position", sys::lseek(file, 0, libc::SEEK_CUR));
                }
                t.log("at the end of the file", sys::sendfile(fd, file, None, 100));
                t.log("from a socket", sys::sendfile(file, fd, None, 100));
                t.still_fast(fd);
                send_all(fd, b"after");
            },
        ),
        pair(
            "data/splice-out",
            "splice from a pipe to the socket, between ordinary sends",
            |t| {
                let fd = t.server();
                t.drain(fd, 20, 100_000);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 20).upcoming(100_000);
                let [from, to] = sys::pipe();
                let mut at = 0;
                while at < bytes.len() {
                    let part = &bytes[at..(at + 3000).min(bytes.len())];
                    if at % 2 == 0 {
                        sys::write(to, part).expect("write");
                        let mut left = part.len();
                        while left > 0 {
                            left -= sys::splice(from, fd, left, libc::SPLICE_F_MOVE).expect("splice");
                        }
                    } else {
                        send_all(fd, part);
                    }
                    at += part.len() + 1;
                    if at <= bytes.len() {
                        send_all(fd, &bytes[at - 1..at]);
                    }
                }
                t.log("tee from a socket", sys::tee(fd, to, 10, 0));
                t.log("copy_file_range", sys::copy_file_range(fd, to, 10));
            },
        )
        .demoted(),
        pair(
            "data/splice-out-without-room",
            "splice from a pipe to a socket that has no room: it takes nothing, or waits",
            |t| {
                let fd = t.server();
                let total: u64 = t.hear().parse().expect("a count");
                let mut receiver = t.receiver(fd, 22);
                while receiver.received < total + 100 {
                    let room = (total + 100 - receiver.received).min(10_000) as usize;
                    receiver.accept(&recv_exact(fd, room));
                }
                t.log("right", receiver.verdict().ends_with("exact"));
                t.tell("read");
                t.log_text("behind it", &recv_exact(fd, 5));
            },
            |t| {
                let fd = t.client();
                let mut sender = t.sender(fd, 22);
                let [from, to] = sys::pipe();
                let mut sent = 0;
                loop {
                    match sys::send(fd, &sender.upcoming(1000), MSG_DONTWAIT) {
                        Ok(n) => {
                            sender.sent += n as u64;
                            sent += n;
                        }
                        // (What is on its way to the peer makes some room for a while.)
                        Err(_) if sys::await_events(fd, libc::POLLOUT, 100) != 0 => {}
                        Err(_) => match sys::send(fd, &sender.upcoming(1), MSG_DONTWAIT) {
                            Ok(n) => {
                                sender.sent += n as u64;
                                sent += n;
                            }
                            Err(_) => break,
                        },
                    }
                }
                sys::write(to, &sender.upcoming(100)).expect("write");
                sys::set_nonblocking(fd, true);
                t.log("full", sys::splice(from, fd, 100, 0));
                sys::set_nonblocking(fd, false);
                let _ = sys::set_timeval(fd, libc::SO_SNDTIMEO, 0, 100_000);
                t.log("not in time", sys::splice(from, fd, 100, 0));
                let _ = sys::set_timeval(fd, libc::SO_SNDTIMEO, 0, 0);
                let waits = blocked(move || sys::splice(from, fd, 100, 0));
                t.tell(&sent.to_string());
                t.log("room", waits.join().expect("thread"));
                t.wait("read");
                send_all(fd, b"after");
            },
        )
        .skip(&[("rdma", "a splice takes it to TCP, which has room")]),
        pair(
            "data/splice-in",
            "splice from the socket to a pipe, between ordinary reads, also when bytes were waiting",
            |t| {
                let fd = t.server();
                let [from, to] = sys::pipe();
                await_bytes(fd, 20_000);
                let mut receiver = t.receiver(fd, 21);
                receiver.accept(&recv_exact(fd, 777));
                while receiver.received < 100_000 {
                    let room = (100_000 - receiver.received).min(4000) as usize;
                    let n = sys::splice(fd, to, room, 0).expect("splice");
                    receiver.accept(&recv_pipe(from, n));
                    let room = (100_000 - receiver.received).min(100) as usize;
                    if room > 0 {
                        receiver.accept(&recv_exact(fd, room));
                    }
                }
                t.log("stream", receiver.verdict());
                t.expect_reason(fd, &[("shm", "none")]);
                sys::set_nonblocking(fd, true);
                t.log("nothing", sys::splice(fd, to, 100, libc::SPLICE_F_NONBLOCK));
                sys::set_nonblocking(fd, false);
                // That flag is about the pipe: bytes of the socket are waited for.
                let _ = sys::set_timeval(fd, libc::SO_RCVTIMEO, 0, 100_000);
                let began = Instant::now();
                t.log("nothing yet", sys::splice(fd, to, 100, libc::SPLICE_F_NONBLOCK));
                t.log("waited", began.elapsed() >= Duration::from_millis(90));
                let _ = sys::set_timeval(fd, libc::SO_RCVTIMEO, 0, 0);
                t.tell("close");
                t.log("eof", sys::splice(fd, to, 100, 0));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 21, 100_000);
                t.wait("close");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "data/splice-in-beside-a-receiver",
            "a splice waits for room in its pipe while another thread receives: each byte goes one way",
            |t| {
                let fd = t.server();
                let [from, to] = sys::pipe();
                sys::set_nonblocking(to, true);
                let mut full = 0;
                while let Ok(n) = sys::write(to, &[b'-'; 4096]) {
                    full += n;
                }
                sys::set_nonblocking(to, false);
                t.tell("go");
                await_bytes(fd, 80);
                let splicer = blocked(move || sys::splice(fd, to, 100, 0));
                t.log_text("received", &recv_exact(fd, 60));
                assert!(recv_pipe(from, full).iter().all(|b| *b == b'-'));
                t.log("spliced", splicer.join().expect("thread"));
                t.log_text("through the pipe", &recv_pipe(from, 20));
                t.log("no more", sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                // Nobody reads any more: nothing is taken.
                t.tell("again");
                await_bytes(fd, 5);
                sys::ignore_signal(libc::SIGPIPE);
                t.log("close", sys::close(from));
                t.log("nobody reads", sys::splice(fd, to, 100, 0));
                t.log_text("is still there", &recv_exact(fd, 5));
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                let bytes: Vec<u8> = (b'!'..b'!' + 80).collect();
                send_all(fd, &bytes);
                t.wait("again");
                send_all(fd, b"after");
                t.wait("end");
            },
        ),
        pair(
            "data/stdio",
            "fdopen on the socket: stdio's own reads and writes, after bytes were waiting",
            |t| {
                let fd = t.server();
                await_bytes(fd, 6);
                let stream = Stream::fdopen(fd, "r+").expect("fdopen");
                t.went_back(fd, "stdio-stream");
                for _ in 0..3 {
                    t.log("line", stream.gets());
                    t.log("flush", stream.flush());
                    t.log("puts", stream.puts("answer\n"));
                    t.log("flush", stream.flush());
                }
                let mut buf = vec![0; 100_000];
                let n = stream.read(&mut buf);
                let mut check = t.receiver(fd, 22);
                check.accept(&buf[..n]);
                t.log("fread", check.verdict());
                t.log("close", stream.close());
                t.log("closed", sys::of_closed(|| sys::recv(fd, &mut [0; 1], 0)));
            },
            |t| {
                let fd = t.client();
                for i in 0..3 {
                    send_all(fd, format!("ask {i}\n").as_bytes());
                    t.log_text("answer", &recv_exact(fd, 7));
                }
                t.pour(fd, 22, 100_000);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/stdio-writer",
            "fdopen for writing: large fwrite, and the close of the stream is the EOF",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 23);
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 23).upcoming(300_000);
                let stream = Stream::fdopen(fd, "w").expect("fdopen");
                t.went_back(fd, "stdio-stream");
                for part in bytes.chunks(7001) {
                    assert!(stream.write(part) == part.len());
                }
                t.log("close", stream.close());
            },
        )
        .demoted(),
        pair(
            "data/bytes-in-queue-message",
            "TCP_INQ: recvmsg tells how much is left",
            |t| {
                let fd = t.server();
                t.log("set", sys::setopt(fd, libc::IPPROTO_TCP, 36, 1));
                t.went_back(fd, "socket-option");
                t.tell("go");
                await_bytes(fd, 100);
                let got = sys::recvmsg_full(fd, &mut [&mut [0; 30]], 0).expect("recvmsg");
                t.log("inq", (got.bytes, got.control));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, &[5; 100]);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0).is_ok());
            },
        )
        .demoted(),
        pair(
            "data/peek-offset",
            "SO_PEEK_OFF: successive peeks advance",
            |t| {
                let fd = t.server();
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_PEEK_OFF, 2));
                t.went_back(fd, "socket-option");
                t.tell("go");
                await_bytes(fd, 9);
                let mut buf = [0; 3];
                for _ in 0..2 {
                    let n = sys::recv(fd, &mut buf, MSG_PEEK).unwrap_or(0);
                    t.log_text("peek", &buf[..n]);
                }
                t.log_text("data", &recv_exact(fd, 9));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"012345678");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/control-behind-bytes",
            "a message with control data, sent behind others to a peer that is stopped, comes behind them",
            |t| {
                let fd = t.server();
                let peer: libc::pid_t = t.hear().parse().expect("pid");
                let bytes = Pattern::new(8).bytes(0, 21 * 512);
                sys::kill(peer, libc::SIGSTOP).expect("stop");
                for part in bytes[..20 * 512].chunks(512) {
                    send_all(fd, part);
                }
                let goes_on = std::thread::spawn(move || {
                    sys::sleep_ms(300);
                    sys::kill(peer, libc::SIGCONT)
                });
                t.log("sent", sys::sendmsg_with_control(fd, &[&bytes[20 * 512..]], 0));
                goes_on.join().expect("thread").expect("continue");
                t.sends_over_tcp(fd, "socket-option");
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                t.tell(&sys::getpid().to_string());
                let got = recv_exact(fd, 21 * 512);
                t.log("first error", Pattern::new(8).first_error(0, &got));
                t.wait("end");
            },
        )
        .demoted(),
        pair(
            "data/control-behind-returned-bytes",
            "as before, where the receiver takes back what it has not read, and small buffers hold little of it",
            |t| {
                let listener = t.listener();
                sys::setopt(listener, SOL_SOCKET, libc::SO_SNDBUF, 8192).expect("SO_SNDBUF");
                t.publish(listener);
                let fd = t.accept(listener);
                let pattern = Pattern::new(9);
                let mut sent = 0;
                while let Ok(n) = sys::send(fd, &pattern.bytes(sent as u64, 1000), libc::MSG_DONTWAIT) {
                    sent += n;
                }
                t.tell(&(sent + 40_000).to_string());
                t.wait("taken back");
                let rest = pattern.bytes(sent as u64, 40_000);
                let sender = blocked(move || {
                    let mut at = 0;
                    while at < rest.len() {
                        at += sys::sendmsg_with_control(fd, &[&rest[at..]], 0).expect("sendmsg");
                    }
                });
                t.tell("read");
                sender.join().expect("thread");
                t.wait("all");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::setopt(fd, SOL_SOCKET, libc::SO_RCVBUF, 8192).expect("SO_RCVBUF");
                sys::connect(fd, addr).expect("connect");
                t.warm_client(fd);
                let total: usize = t.hear().parse().expect("number");
                sys::setopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 2).expect("SO_RCVLOWAT");
                t.tell("taken back");
                t.wait("read");
                // A reader that is slow: the sender has to wait for longer than the library waits
                // for it.
                sys::sleep_ms(200);
                let got = recv_exact(fd, total);
                t.log("first error", Pattern::new(9).first_error(0, &got));
                t.tell("all");
            },
        )
        .demoted(),
        pair(
            "data/not-seekable",
            "pread, pwrite, lseek and positioned vectors on a socket are ESPIPE",
            |t| {
                let fd = t.server();
                await_bytes(fd, 4);
                t.log("pread", sys::pread(fd, &mut [0; 4], 0));
                t.log("pwrite", sys::pwrite(fd, b"data", 0));
                t.log("lseek", sys::lseek(fd, 0, libc::SEEK_CUR));
                t.log("preadv2 at 0", sys::preadv2(fd, &mut [&mut [0; 4]], 0, 0));
                t.log("pwritev2 at 0", sys::pwritev2(fd, &[b"data"], 0, 0));
                t.log("ftruncate-like copy", sys::copy_file_range(fd, fd, 4));
                t.log_text("data", &recv_exact(fd, 4));
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"data");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/many-messages",
            "sendmmsg and recvmmsg: lengths of each message, MSG_WAITFORONE",
            |t| {
                let fd = t.server();
                await_bytes(fd, 21);
                let (mut a, mut b, mut c) = ([0; 5], [0; 5], [0; 100]);
                t.log("recvmmsg", sys::recvmmsg(fd, &mut [&mut a, &mut b, &mut c], MSG_WAITFORONE, None));
                t.log_text("first", &a);
                t.log_text("second", &b);
                t.log_text("third", &c[..11]);
                t.log("nothing", sys::recvmmsg(fd, &mut [&mut a, &mut b], MSG_DONTWAIT, None));
                t.tell("go");
                await_bytes(fd, 3);
                t.log("one is enough", sys::recvmmsg(fd, &mut [&mut a, &mut b], MSG_WAITFORONE, None));
                t.tell("go");
                t.log("waits for both", sys::recvmmsg(fd, &mut [&mut a[..1], &mut b[..1]], 0, None));
            },
            |t| {
                let fd = t.client();
                t.log("sendmmsg", sys::sendmmsg(fd, &[b"one", b"", b"three", b"and the fourth"], 0).map(|v| v.len()));
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
        ),
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
        pair(
            "data/unknown-flags",
            "flags without a meaning for TCP are ignored or refused as the kernel does",
            |t| {
                let fd = t.server();
                await_bytes(fd, 12);
                let mut buf = [0; 4];
                t.log("MSG_CMSG_CLOEXEC", sys::recvmsg(fd, &mut [&mut buf], libc::MSG_CMSG_CLOEXEC));
                t.log("MSG_NOSIGNAL", sys::recv(fd, &mut buf, MSG_NOSIGNAL));
                t.log("MSG_CONFIRM", sys::recv(fd, &mut buf, libc::MSG_CONFIRM));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("MSG_EOR", sys::send(fd, b"abcd", libc::MSG_EOR));
                t.log("MSG_DONTROUTE", sys::send(fd, b"efgh", libc::MSG_DONTROUTE));
                t.log("MSG_CONFIRM", sys::send(fd, b"ijkl", libc::MSG_CONFIRM));
            },
        ),
        alone("data/wrong-fds", "data calls on what is no connected socket: EBADF, ENOTSOCK, ENOTCONN, EPIPE", |t| {
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
        }),
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

fn recv_pipe(fd: i32, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let mut at = 0;
    while at < len {
        at += sys::read(fd, &mut buf[at..]).expect("read the pipe");
    }
    buf
}
