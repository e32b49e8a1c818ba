//! The moment in which a direction moves from TCP to a faster path: what is still on TCP then, and
//! who waits there.

use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::mover::Receiver;
use crate::pattern::Pattern;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd, Sets};
use libc::{EAGAIN, EPOLLET, EPOLLIN, MSG_DONTWAIT, POLLIN, POLLOUT, SOL_SOCKET};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;

const SO_MAX_PACING_RATE: i32 = 47;
/// Bytes per second. The kernel sends at once what it has when it was idle, and then rests for as
/// long as that takes.
const PACE: i32 = 100_000;
const BURST: usize = 30_000;
/// It does not begin before so many packets (net/ipv4/tcp_output.c: tcp_update_skb_after_send).
const UNPACED: usize = 10;
const HELD: usize = 5_000;
const LATER: usize = 1_000;

/// It sees to its promotion itself, as it is to be on shared memory in mode `shm`.
const OWN_WARM_UP: &[(&str, &str)] = &[("early", "it has a way onto the fast path of its own")];

/// docs/manual/limits.md, the operations that go back to the kernel: over RDMA for good. What of
/// these can be asked there is in `hosts/held-tail-at-promotion`.
const SPLICED: &[(&str, &str)] = &[("rdma", "a splice keeps the connection on TCP for good")];

/// How the receiver of [`paced_receiver`] waits.
const WAYS: [&str; 5] = ["poll", "select", "epoll", "edge", "blocking"];

/// How the receive of `promotion/a-receive-from-before-ends` ends, where data comes, and where the
/// connection is used and accelerated further.
const ENDS: [&str; 9] =
    ["data", "close", "dup2", "shutdown", "eof", "signal", "time-out", "child", "option"];
const DATA: [&str; 5] = ["data", "close", "dup2", "child", "option"];
const LIVES: [&str; 3] = ["data", "signal", "time-out"];

/// Moves `count` bytes through a pipe into a connection, which an accelerated one lets TCP carry.
/// (One on which that could wait would be TCP's for good.)
fn splice_in(fd: Fd, count: usize, flags: u32) {
    let [from, to] = sys::pipe();
    assert!(sys::write(to, &vec![b's'; count]) == Ok(count));
    sys::set_nonblocking(fd, true);
    let mut left = count;
    while left > 0 {
        match sys::splice(from, fd, left, flags) {
            Ok(n) => left -= n,
            Err(sys::E(libc::EAGAIN)) => drop(sys::await_events(fd, libc::POLLOUT, -1)),
            Err(e) => panic!("splice: {e:?}"),
        }
    }
    sys::set_nonblocking(fd, false);
    let _ = (sys::close(from), sys::close(to));
}

/// Receives `total` bytes without blocking, after a wait for each call; how often a wait said that
/// there were some and there were none.
pub(super) fn false_news(fd: Fd, way: &str, total: usize) -> usize {
    let set = sys::epoll_create1(0).expect("epoll");
    let edge = if way == "edge" { EPOLLET } else { 0 };
    if way == "epoll" || way == "edge" {
        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, (EPOLLIN | edge) as u32, 1).expect("ADD");
    }
    let (mut got, mut wrong) = (0, 0);
    let mut buf = vec![0; 65536];
    while got < total {
        match way {
            "poll" => assert!(sys::await_events(fd, POLLIN, 10_000) == POLLIN),
            "select" => {
                let sets = Sets { read: vec![fd], write: vec![], except: vec![] };
                assert!(sys::select(fd + 1, &sets, Some(10_000)).expect("select").0 == 1);
            }
            _ => assert!(sys::epoll_wait(set, 4, 10_000).expect("epoll_wait").len() == 1),
        }
        let before = got;
        loop {
            match sys::recv(fd, &mut buf, MSG_DONTWAIT) {
                Ok(n) => got += n,
                Err(E(EAGAIN)) => break,
                Err(e) => panic!("recv: {e:?}"),
            }
            // The whole news of an edge is read.
            if way != "edge" {
                break;
            }
        }
        wrong += usize::from(got == before);
    }
    let _ = sys::close(set);
    wrong
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "promotion/a-held-tail-goes-out",
            "bytes that MSG_MORE has held back on TCP follow at once when the next send goes another way",
            |t| {
                let fd = t.server();
                for _ in 0..9 {
                    t.wait("held");
                    let _ = sys::recv(fd, &mut [0; 1], MSG_DONTWAIT | libc::MSG_PEEK);
                    t.tell("looked");
                    recv_exact(fd, HELD + LATER);
                    send_all(fd, b"!");
                }
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                let mut times = Vec::new();
                for _ in 0..9 {
                    splice_in(fd, HELD, libc::SPLICE_F_MORE);
                    t.tell("held");
                    t.wait("looked");
                    let begin = sys::now_ns();
                    send_all(fd, &[b'l'; LATER]);
                    recv_exact(fd, 1);
                    times.push(sys::now_ns() - begin);
                }
                // The kernel keeps such bytes for 200 ms if nobody has them go. (Twice the machine
                // may have been as slow.)
                times.sort_unstable();
                t.log("at once", times[times.len() - 3] < 150_000_000);
                t.log(
                    "nodelay",
                    sys::getopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY),
                );
                t.meet("end");
            },
        )
        .skip(SPLICED),
        pair(
            "promotion/no-news-before-its-turn",
            "a wait does not tell of bytes that come after others still on their way over TCP",
            paced_receiver,
            |t| {
                let fd = t.client();
                sys::setopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, PACE).expect("SO_MAX_PACING_RATE");
                for _ in 0..UNPACED {
                    splice_in(fd, 1, 0);
                    t.wait("came");
                }
                for _ in WAYS {
                    splice_in(fd, BURST, 0);
                    t.wait("came");
                    splice_in(fd, HELD, 0);
                    send_all(fd, &[b'l'; LATER]);
                    t.tell("sent");
                    t.wait("all");
                }
            },
        )
        .waits(2)
        .skip(SPLICED),
        pair(
            "promotion/several-buffers",
            "a receive into several buffers takes all that is there, also where it came over TCP",
            |t| {
                let fd = t.server();
                t.tell("next");
                await_bytes(fd, HELD);
                let (mut a, mut b) = ([0; 16], [0; HELD]);
                t.log("peek", sys::recvmsg(fd, &mut [&mut a, &mut b], libc::MSG_PEEK));
                t.log("readv", sys::readv(fd, &mut [&mut a, &mut b]));
                t.tell("next");
                await_bytes(fd, HELD);
                let mut many = vec![[0; 300]; 40];
                let mut parts: Vec<&mut [u8]> = many.iter_mut().map(|p| &mut p[..]).collect();
                t.log("many", sys::recvmsg(fd, &mut parts, 0));
                t.log("right", many.as_flattened()[..HELD].iter().all(|b| *b == b's'));
                t.tell("next");
            },
            |t| {
                let fd = t.client();
                for _ in 0..2 {
                    t.wait("next");
                    splice_in(fd, HELD, 0);
                }
                t.wait("next");
            },
        )
        .skip(SPLICED),
        pair(
            "promotion/back-in-the-middle",
            "a receive with room for more does not stop where the stream went back to TCP",
            |t| {
                let fd = t.server();
                for _ in 0..3 {
                    t.tell("next");
                    await_bytes(fd, LATER + HELD);
                    let mut buf = vec![0; LATER + HELD + 1];
                    t.log("recv", sys::recv(fd, &mut buf, 0));
                    let right = buf[..LATER].iter().all(|b| *b == b'l') && buf[LATER..LATER + HELD].iter().all(|b| *b == b's');
                    t.log("right", right);
                    t.tell("next");
                    t.warm_server(fd);
                }
            },
            |t| {
                let fd = t.client();
                for _ in 0..3 {
                    t.wait("next");
                    send_all(fd, &[b'l'; LATER]);
                    splice_in(fd, HELD, 0);
                    t.wait("next");
                    t.warm_client(fd);
                }
            },
        )
        .skip(SPLICED),
        pair(
            "promotion/empty-before-the-end",
            "bytes over TCP, then a promotion that carries none (a send of nothing), then the end: the bytes are the stream's",
            |t| {
                for _ in 0..2 {
                    let fd = t.server();
                    t.log_text("first", &recv_exact(fd, 2));
                    t.tell("more");
                    sys::await_events(fd, libc::POLLRDHUP, 5_000);
                    let mut buf = [0; 8];
                    t.log("rest", sys::recv(fd, &mut buf, 0));
                    t.log_text("bytes", &buf);
                    t.log("end", sys::recv(fd, &mut buf, 0));
                }
            },
            |t| {
                for closes in [true, false] {
                    let fd = t.client();
                    // (A flag that only the kernel knows what to do with.)
                    t.log("first", sys::send(fd, b"he", libc::MSG_DONTROUTE));
                    t.wait("more");
                    t.log("more", sys::send(fd, b"llo", libc::MSG_DONTROUTE));
                    t.log("nothing", sys::send(fd, b"", 0));
                    if closes {
                        t.log("close", sys::close(fd));
                    } else {
                        t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                    }
                }
            },
        ),
        pair(
            "promotion/while-a-thread-receives",
            "a thread that waits in recv all the time keeps neither direction on TCP: the sending one moves at once, the other when it returns",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                while recv_exact(fd, 64)[0] != b'E' {}
                t.drain(fd, 5, 4_000_000);
                send_all(fd, b"!");
                t.warm_server(fd);
                t.meet("end");
            },
            |t| {
                let fd = raw_client(t);
                let reader = blocked(move || recv_exact(fd, 1));
                send_all(fd, &[b'P'; 64]);
                while !t.sends_fast(fd) {
                    send_all(fd, &[b'P'; 64]);
                }
                send_all(fd, &[b'E'; 64]);
                t.pour(fd, 5, 4_000_000);
                t.log_text("answer", &reader.join().expect("thread"));
                t.warm_client(fd);
                t.still_fast(fd);
                t.meet("end");
            },
        ),
        pair(
            "promotion/while-a-thread-polls",
            "the same with a thread that waits in poll, and one in select",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..2 {
                    let fd = sys::accept(listener).expect("accept");
                    while recv_exact(fd, 64)[0] != b'E' {}
                    t.drain(fd, 5, 1_000_000);
                    send_all(fd, b"!");
                    t.warm_server(fd);
                    t.meet("end");
                }
            },
            |t| {
                let addr = t.hear_addr();
                for way in ["poll", "select"] {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    let reader = blocked(move || {
                        if way == "poll" {
                            return sys::await_events(fd, POLLIN, 60_000) == POLLIN;
                        }
                        let sets = Sets {
                            read: vec![fd],
                            write: vec![],
                            except: vec![],
                        };
                        sys::select(fd + 1, &sets, Some(60_000)).is_ok_and(|r| r.0 == 1)
                    });
                    send_all(fd, &[b'P'; 64]);
                    while !t.sends_fast(fd) {
                        send_all(fd, &[b'P'; 64]);
                    }
                    send_all(fd, &[b'E'; 64]);
                    t.pour(fd, 5, 1_000_000);
                    t.log(way, reader.join().expect("thread"));
                    t.log_text("answer", &recv_exact(fd, 1));
                    t.warm_client(fd);
                    t.still_fast(fd);
                    t.meet("end");
                }
            },
        ),
        pair(
            "promotion/while-a-thread-sends",
            "a thread that is blocked in send keeps neither direction on TCP",
            |t| {
                let fd = raw_client(t);
                t.wait("full");
                send_all(fd, &[b'P'; 64]);
                while !t.sends_fast(fd) {
                    send_all(fd, &[b'P'; 64]);
                }
                send_all(fd, &[b'E'; 64]);
                t.pour(fd, 6, 1_000_000);
                t.wait("read");
                t.drain(fd, 7, 32_000_000);
                t.warm_server(fd);
                t.meet("end");
            },
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                let bytes = Pattern::new(7).bytes(0, 32_000_000);
                let writer = blocked(move || send_all(fd, &bytes));
                t.tell("full");
                while recv_exact(fd, 64)[0] != b'E' {}
                t.drain(fd, 6, 1_000_000);
                t.tell("read");
                writer.join().expect("thread");
                t.warm_client(fd);
                t.still_fast(fd);
                t.meet("end");
            },
        ),
        pair(
            "promotion/while-threads-stream",
            "each end has a thread that always receives and one that always sends: both directions move",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.tell(&sys::getpid().to_string());
                let (reader, writer, stop) = streams(fd, 1, 2);
                t.wait("stop");
                stop.store(true, Ordering::Relaxed);
                t.log("received", (writer.join().is_ok(), reader.join().expect("thread")));
                t.meet("end");
            },
            |t| {
                let fd = raw_client(t);
                let peer = t.hear().parse().expect("a pid");
                let (reader, writer, stop) = streams(fd, 2, 1);
                while !t.is_fast(fd, peer) {}
                t.still_fast(fd);
                t.tell("stop");
                stop.store(true, Ordering::Relaxed);
                t.log("received", (writer.join().is_ok(), reader.join().expect("thread")));
                t.meet("end");
            },
        )
        .skip(OWN_WARM_UP),
        pair(
            "promotion/a-receive-from-before-ends",
            "a receive that began on TCP and is still under way after the promotion: data, close, dup2, shutdown, EOF, a signal, a time-out, a child, an option",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for end in ENDS {
                    let fd = sys::accept(listener).expect("accept");
                    while recv_exact(fd, 64)[0] != b'E' {}
                    t.tell("moved");
                    t.wait("did");
                    match end {
                        "eof" => t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR)),
                        "child" => t.log_text("of the child", &recv_exact(fd, 5)),
                        _ => {}
                    }
                    if DATA.contains(&end) {
                        send_all(fd, b"data");
                    }
                    if LIVES.contains(&end) {
                        t.warm_server(fd);
                    }
                    t.meet("next");
                    let _ = sys::close(fd);
                }
            },
            |t| {
                extern "C" fn nothing(_: libc::c_int) {}
                sys::on_signal(libc::SIGUSR1, nothing, 0).expect("sigaction");
                let addr = t.hear_addr();
                let other = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                for end in ENDS {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    if end == "time-out" {
                        sys::set_timeout(fd, libc::SO_RCVTIMEO, 700).expect("SO_RCVTIMEO");
                    }
                    let tid = Arc::new(AtomicI32::new(0));
                    let his = tid.clone();
                    let reader = blocked(move || {
                        his.store(sys::gettid(), Ordering::Relaxed);
                        let mut buf = [0; 4];
                        let n = sys::recv(fd, &mut buf, 0);
                        (n, String::from_utf8_lossy(&buf).trim_end_matches('\0').to_string())
                    });
                    send_all(fd, &[b'P'; 64]);
                    while end != "time-out" && !t.sends_fast(fd) {
                        send_all(fd, &[b'P'; 64]);
                    }
                    send_all(fd, &[b'E'; 64]);
                    t.wait("moved");
                    match end {
                        "close" => t.log(end, sys::close(fd)),
                        "dup2" => t.log(end, sys::dup2(other, fd) == Ok(fd)),
                        "shutdown" => t.log(end, sys::shutdown(fd, libc::SHUT_RD)),
                        "signal" => {
                            while !reader.is_finished() {
                                let _ = sys::tgkill(tid.load(Ordering::Relaxed), libc::SIGUSR1);
                                sys::sleep_ms(5);
                            }
                        }
                        "child" => {
                            let child = t.child(|_| {
                                send_all(fd, b"child");
                                "done".into()
                            });
                            t.log_text(end, child.join().as_bytes());
                        }
                        "option" => t.log(end, sys::setopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 2)),
                        _ => {}
                    }
                    t.tell("did");
                    t.log(end, reader.join().expect("thread"));
                    if LIVES.contains(&end) {
                        t.warm_client(fd);
                        t.still_fast(fd);
                    }
                    t.meet("next");
                    let _ = sys::close(fd);
                }
            },
        ),
        pair(
            "promotion/after-a-half-close",
            "one end shuts down its sending half before anything has moved, and receives: 1 KB up, then megabytes down",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                let mut up = 0;
                let mut buf = [0; 64];
                while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
                    up += n;
                }
                t.log("up", up);
                send_all(fd, &[b'P'; 64]);
                while !t.sends_fast(fd) {
                    send_all(fd, &[b'P'; 64]);
                }
                send_all(fd, &[b'E'; 64]);
                t.pour(fd, 8, 4_000_000);
                t.log("end", sys::recv(fd, &mut buf, 0));
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.meet("end");
            },
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                let fd = raw_client(t);
                for _ in 0..16 {
                    send_all(fd, &[b'u'; 64]);
                }
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                while recv_exact(fd, 64)[0] != b'E' {
                    assert!(sys::send(fd, b"x", 0) == Err(E(libc::EPIPE)));
                }
                t.log("send", sys::send(fd, b"x", 0));
                t.drain(fd, 8, 4_000_000);
                t.log("send", sys::send(fd, b"x", 0));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
                t.meet("end");
            },
        )
        .skip(OWN_WARM_UP)
        .loopback(),
        pair(
            "promotion/after-a-half-close-ends",
            "a sender to a half-closed peer that then closes, closes with bytes unread, dies or receives no more: how sends and waits for room end",
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                for end in FATES {
                    for way in ["send", "blocked", "poll", "epoll", "asks"] {
                        let fd = t.server();
                        recv_exact(fd, 1);
                        t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                        t.log(end, sender_ends(t, fd, end, way));
                        let _ = sys::close(fd);
                        t.meet("next");
                    }
                }
            },
            |t| {
                for end in FATES {
                    for _ in 0..5 {
                        let addr = t.hear_addr();
                        let body = |t: &Ctx| {
                            let fd = t.connect(addr);
                            send_all(fd, b"x");
                            let _ = sys::shutdown(fd, libc::SHUT_WR);
                            recv_exact(fd, 1000);
                            match end {
                                "close" => {
 let _ = sys::close(fd);
 }
                                "close unread" => {
                                    await_bytes(fd, 1);
                                    let _ = sys::close(fd);
                                }
                                "deaf" => {
 let _ = sys::shutdown(fd, libc::SHUT_RD);
 }
                                _ => {}
                            }
                            fd
                        };
                        if end == "killed" {
                            let child = sys::fork().expect("fork");
                            if child == 0 {
                                body(t);
                                let _ = sys::kill(sys::getpid(), libc::SIGKILL);
                            }
                            let _ = sys::wait_child(child);
                            t.tell("ended");
                            t.meet("next");
                        } else {
                            let fd = body(t);
                            t.tell("ended");
                            t.meet("next");
                            let _ = sys::close(fd);
                        }
                    }
                }
            },
        )
        .any_path(),
        pair(
            "promotion/shut-twice",
            "a peer that has shut down its receiving half before the promotion, and its sending half after it, is sent to in vain",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_RD));
                t.warm_server_polling(fd);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.meet("end");
            },
            |t| {
                sys::ignore_signal(libc::SIGPIPE);
                let fd = raw_client(t);
                t.warm_client(fd);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                let end = loop {
                    match sys::send(fd, &[7; 1000], MSG_DONTWAIT) {
                        Ok(_) => sys::sleep_ms(1),
                        Err(e) => break e,
                    }
                };
                t.log("ends", [libc::EPIPE, libc::ECONNRESET].contains(&end.0));
                t.meet("end");
            },
        )
        .any_path(),
        pair(
            "promotion/waits-for-a-half-closed-peer",
            "a wait for room at a half-closed peer that does not read is a sleep, and ends when it reads",
            |t| {
                for way in ["blocked", "poll", "select", "epoll"] {
                    let fd = t.server();
                    t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                    let mut full = 0;
                    while let Ok(n) = sys::send(fd, &[2; 10_000], MSG_DONTWAIT) {
                        full += n;
                    }
                    let waiter = blocked(move || {
                        let begin = sys::cpu_ns();
                        match way {
                            "blocked" => send_all(fd, b"last"),
                            "poll" => assert!(sys::await_events(fd, POLLOUT, 20_000) == POLLOUT),
                            "select" => {
                                let sets = Sets { read: vec![], write: vec![fd], except: vec![] };
                                assert!(sys::select(fd + 1, &sets, Some(20_000)).expect("select").0 == 1);
                            }
                            _ => {
                                let set = sys::epoll_create1(0).expect("epoll");
                                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT as u32, 1).expect("ADD");
                                assert!(sys::epoll_wait(set, 1, 20_000).expect("epoll_wait").len() == 1);
                                let _ = sys::close(set);
                            }
                        }
                        sys::cpu_ns() - begin < 100_000_000
                    });
                    t.tell(&full.to_string());
                    t.log(way, waiter.join().expect("thread"));
                    let _ = sys::close(fd);
                    t.meet("next");
                }
            },
            |t| {
                for _ in 0..4 {
                    let fd = t.client();
                    let _ = sys::shutdown(fd, libc::SHUT_WR);
                    let full: usize = t.hear().parse().expect("a number");
                    recv_exact(fd, full);
                    t.meet("next");
                    let _ = sys::close(fd);
                }
            },
        )
        .any_path(),
    ]
}

fn paced_receiver(t: &Ctx) {
    let fd = t.server();
    for _ in 0..UNPACED {
        recv_exact(fd, 1);
        t.tell("came");
    }
    for way in WAYS {
        recv_exact(fd, BURST);
        let _ = sys::recv(fd, &mut [0; 1], MSG_DONTWAIT | libc::MSG_PEEK);
        t.tell("came");
        t.wait("sent");
        if way == "blocking" {
            let (begin, cpu) = (sys::now_ns(), sys::cpu_ns());
            recv_exact(fd, HELD + LATER);
            // (Who spins has the CPU all the time. In a kernel that is emulated on a busy machine
            // little takes long, too.)
            let most = (sys::now_ns() - begin) / 2;
            t.log(way, sys::cpu_ns() - cpu < most.max(40_000_000));
        } else {
            t.log(way, false_news(fd, way, HELD + LATER));
        }
        t.tell("all");
    }
}

/// A connection that was not used yet.
fn raw_client(t: &Ctx) -> Fd {
    let addr = t.hear_addr();
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    fd
}

type Streams = (JoinHandle<bool>, JoinHandle<()>, Arc<AtomicBool>);

/// A thread that receives pattern `from` to its end, and says whether it was right, and one that
/// sends pattern `to` until it is stopped.
fn streams(fd: Fd, to: u64, from: u64) -> Streams {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let reader = std::thread::spawn(move || {
        let mut receiver = Receiver::new(fd, 1, Pattern::new(from));
        let mut buf = vec![0; 65536];
        while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
            receiver.accept(&buf[..n]);
        }
        receiver.received > 0 && receiver.verdict().ends_with("exact")
    });
    let writer = std::thread::spawn(move || {
        let pattern = Pattern::new(to);
        let mut at = 0;
        while at == 0 || !stopped.load(Ordering::Relaxed) {
            send_all(fd, &pattern.bytes(at, 65536));
            at += 65536;
        }
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    });
    (reader, writer, stop)
}

/// What becomes of the receiver of `promotion/after-a-half-close-ends`.
const FATES: [&str; 4] = ["close", "close unread", "deaf", "killed"];

/// Sends to a half-closed peer that ends when it has had 1,000 bytes; what error says so, and
/// whether it comes in time.
fn sender_ends(t: &Ctx, fd: Fd, end: &str, way: &str) -> String {
    if end == "close unread" {
        send_all(fd, &[1; 1001]);
    } else {
        send_all(fd, &[1; 1000]);
    }
    let fill = |flags: i32| {
        loop {
            if let Err(e) = sys::send(fd, &[2; 10_000], flags) {
                break e;
            }
        }
    };
    if way == "blocked" {
        let begin = sys::now_ns();
        let e = fill(0);
        t.wait("ended");
        return format!("{way}: {e:?} {}", sys::now_ns() - begin < 5_000_000_000);
    }
    t.wait("ended");
    let mut errors = Vec::new();
    let begin = sys::now_ns();
    while errors.is_empty() && sys::now_ns() - begin < 5_000_000_000 {
        let e = fill(MSG_DONTWAIT);
        if e != E(EAGAIN) {
            errors.push(format!("{e:?}"));
            break;
        }
        match way {
            "poll" | "asks" => {
                let timeout = if way == "poll" { 5000 } else { 0 };
                let _ = sys::await_events(fd, POLLOUT, timeout);
            }
            "epoll" => {
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT as u32, 1)
                    .expect("ADD");
                let _ = sys::epoll_wait(set, 1, 5000);
                let _ = sys::close(set);
            }
            _ => sys::sleep_ms(1),
        }
    }
    format!("{way}: {errors:?}")
}
