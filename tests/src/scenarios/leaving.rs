//! Operations that only TCP can carry, while bytes are unread on a faster path: nothing of them is
//! lost, hidden or late, and they take effect.

mod ktls;

use crate::ctx::{Ctx, await_bytes, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::raw;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Fd, Sets};
use libc::{
    EPOLLIN, IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, POLLIN, SHUT_WR, SO_RCVLOWAT, SO_TIMESTAMP,
    SOL_SOCKET,
};
use std::sync::atomic::{AtomicU32, Ordering};

const TCP_INQ: i32 = 36;
const TCP_ULP: i32 = 31;
const UNREAD: usize = 1000;
const MANY: usize = 200_000;
/// So many the kernel takes at once where they are not read.
const SOME: usize = 50_000;

/// The options, and whether each received message carries control data afterwards.
const OPTIONS: [(&str, i32, i32, i32, bool); 5] = [
    ("TCP_INQ", IPPROTO_TCP, TCP_INQ, 1, true),
    ("SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1, true),
    ("SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 2, false),
    ("SO_PEEK_OFF", SOL_SOCKET, 42, 0, false),
    ("SO_OOBINLINE", SOL_SOCKET, libc::SO_OOBINLINE, 1, false),
];

/// Receives `total` pattern bytes by recvmsg; the control data of the last.
fn receive(t: &Ctx, fd: Fd, from: u64, total: usize, room: usize) -> Vec<(i32, i32, Vec<u8>)> {
    let pattern = Pattern::new(9);
    let (mut at, mut last) = (0, Vec::new());
    let mut buf = vec![0; room];
    while at < total {
        let got =
            sys::recvmsg_full(fd, &mut [&mut buf[..room.min(total - at)]], 0).expect("recvmsg");
        assert!(got.bytes > 0, "EOF after {at}");
        if let Some(wrong) = pattern.first_error(from + at as u64, &buf[..got.bytes]) {
            t.log("WRONG", wrong);
        }
        at += got.bytes;
        last = got.control;
    }
    last
}

/// One end's half of an exchange: bytes both ways at the same time.
fn exchange(t: &Ctx, fd: Fd, seed: u64) {
    let sending = std::thread::spawn(move || send_all(fd, &Pattern::new(seed).bytes(0, SOME)));
    t.drain(fd, seed, SOME);
    sending.join().expect("thread");
}

/// An end of a connection that becomes one of an upper protocol's, where the kernel has it. Until
/// it is given keys, it passes all on.
fn upper_protocol(t: &Ctx, fd: Fd) {
    exchange(t, fd, 1);
    t.meet("exchanged");
    t.log("ulp", sys::setopt_bytes(fd, IPPROTO_TCP, TCP_ULP, b"tls"));
    t.log("which", sys::getopt_bytes(fd, IPPROTO_TCP, TCP_ULP, 16));
    t.meet("asked");
    exchange(t, fd, 2);
    t.log("shutdown", sys::shutdown(fd, SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

/// Receives 50 bytes more, and again until control data comes with them, if it is to: the kernel
/// begins to take times a moment after it was told to (net/core/dev.c: netstamp_work).
fn later(t: &Ctx, fd: Fd, from: usize, tells: bool) -> Vec<(i32, i32, Vec<u8>)> {
    let mut control = Vec::new();
    for i in 0..100 {
        t.tell("more");
        await_bytes(fd, 50);
        control = receive(t, fd, (from + 50 * i) as u64, 50, 50);
        if !tells || !control.is_empty() {
            break;
        }
    }
    t.tell("enough");
    control
}

fn send_later(t: &Ctx, fd: Fd, from: usize) {
    let mut at = from as u64;
    while t.hear() == "more" {
        send_all(fd, &Pattern::new(9).bytes(at, 50));
        at += 50;
    }
}

fn kinds(control: &[(i32, i32, Vec<u8>)]) -> Vec<(i32, i32)> {
    control.iter().map(|c| (c.0, c.1)).collect()
}

/// A connection with bytes unread, whose client has said its number and is stopped.
fn unread_of_a_stopped_peer(t: &Ctx) -> (Fd, i32) {
    let fd = t.server();
    let peer: i32 = t.hear().parse().expect("a pid");
    await_bytes(fd, UNREAD);
    t.log("stop", sys::kill(peer, libc::SIGSTOP));
    while !sys::is_stopped(peer) {
        sys::sleep_ms(1);
    }
    (fd, peer)
}

/// A server that leaves with all unread, and with little room for what comes again; it reads when
/// the client says that word.
fn leaves_with_little_room(t: &Ctx, room: i32, until: &str) {
    let fd = t.server();
    await_bytes(fd, SOME);
    // What comes from now on finds little room.
    sys::setopt(fd, SOL_SOCKET, libc::SO_RCVBUF, room).expect("SO_RCVBUF");
    t.tell("there");
    t.wait("small");
    t.log("option", sys::setopt(fd, IPPROTO_TCP, TCP_INQ, 1));
    t.tell("left");
    t.wait(until);
    t.drain(fd, 9, SOME);
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

/// A server whose connection a program without the library gets, `stays` to its end or only counts
/// what comes, while the client stands still.
fn to_a_program_while_stopped(t: &Ctx, stays: bool) {
    let fd = t.server();
    let peer: i32 = t.hear().parse().expect("a pid");
    await_bytes(fd, UNREAD);
    t.tell("stop");
    while !sys::is_stopped(peer) {
        sys::sleep_ms(1);
    }
    let goes_on = std::thread::spawn(move || {
        sys::sleep_ms(150);
        sys::kill(peer, libc::SIGCONT)
    });
    // (What is said to a peer that has closed is lost.)
    let counts = format!("test $(wc -c) -eq {}", UNREAD + 512);
    let pid = match stays {
        true => t.exec_on(fd, "/bin/cat", &["cat"], true),
        false => t.exec_on(fd, "/bin/sh", &["sh", "-c", &counts], true),
    };
    t.log("continue", goes_on.join().expect("thread"));
    t.log("close", sys::close(fd));
    t.log("has read all", sys::wait_child(pid));
}

/// A client that sends, stands still, and sends more.
fn sends_behind_a_stop(t: &Ctx) -> Fd {
    let fd = t.client();
    t.tell(&sys::getpid().to_string());
    t.pour(fd, 9, UNREAD);
    t.wait("stop");
    sys::kill(sys::getpid(), libc::SIGSTOP).expect("stop");
    send_all(fd, &Pattern::new(9).bytes(UNREAD as u64, 512));
    fd
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "leaving/send-behind-what-was-sent-again",
            "a small send behind bytes that were sent again over TCP comes with their acknowledgement, at the latest",
            |t| {
                let fd = t.server();
                await_bytes(fd, 10);
                t.log("option", sys::setopt(fd, SOL_SOCKET, SO_TIMESTAMP, 1));
                t.tell("back");
                t.wait("sent");
                let began = sys::now_ns();
                t.log_text("all", &recv_exact(fd, 11));
                let limit = 1_000_000_000 * u64::from(sys::patience());
                t.log("soon", sys::now_ns() - began < limit);
                t.went_back(fd, "socket-option");
                t.tell("read");
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"0123456789");
                t.wait("back");
                send_all(fd, b"!");
                t.tell("sent");
                t.wait("read");
            },
        )
        .demoted(),
        pair(
            "leaving/options-with-unread-bytes",
            "TCP_INQ, SO_TIMESTAMP and others set while bytes are unread: these are there at once, by every call, and the option takes effect",
            |t| {
                for (name, level, option, value, tells) in OPTIONS {
                    let fd = t.server();
                    await_bytes(fd, UNREAD);
                    t.log(name, sys::setopt(fd, level, option, value));
                    // Each of these right after it, so to say.
                    let sets = Sets { read: vec![fd], write: vec![], except: vec![] };
                    let set = sys::epoll_create1(0).expect("epoll");
                    let ready = (
                        sys::recv(fd, &mut [0; 10], MSG_DONTWAIT | MSG_PEEK),
                        sys::fionread(fd),
                        sys::await_events(fd, POLLIN, 0),
                        sys::select(fd + 1, &sets, Some(0)).map(|s| s.0),
                        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, 1),
                        sys::epoll_wait(set, 2, 0).map(|e| e.len()),
                    );
                    t.log("ready", ready);
                    let first = receive(t, fd, 0, 100, 100);
                    if option == TCP_INQ {
                        t.log("left", first);
                    }
                    receive(t, fd, 100, UNREAD - 100, 333);
                    let control = later(t, fd, UNREAD, tells);
                    t.log("control", (kinds(&control), control.is_empty() != tells));
                    t.went_back(fd, "socket-option");
                    t.log("close", sys::close(set));
                    t.log("close", sys::close(fd));
                }
            },
            |t| {
                for _ in OPTIONS {
                    let fd = t.client();
                    t.pour(fd, 9, UNREAD);
                    send_later(t, fd, UNREAD);
                    t.log("end", sys::recv(fd, &mut [0; 1], 0));
                }
            },
        )
        .demoted(),
        pair(
            "leaving/option-while-the-peer-stands-still",
            "an option is set while bytes are unread and the peer's process stands still for a moment: the bytes are there behind it",
            |t| {
                let (fd, peer) = unread_of_a_stopped_peer(t);
                let goes_on = std::thread::spawn(move || {
                    sys::sleep_ms(150);
                    sys::kill(peer, libc::SIGCONT)
                });
                t.log("TCP_INQ", sys::setopt(fd, IPPROTO_TCP, TCP_INQ, 1));
                t.log("peek", sys::recv(fd, &mut [0; 10], MSG_DONTWAIT | MSG_PEEK));
                t.log("there", (sys::fionread(fd), sys::await_events(fd, POLLIN, 0)));
                t.log("continue", goes_on.join().expect("thread"));
                receive(t, fd, 0, UNREAD, 333);
                let control = later(t, fd, UNREAD, true);
                t.log("control", (kinds(&control), control.is_empty()));
                t.went_back(fd, "socket-option");
            },
            |t| {
                let fd = t.client();
                t.tell(&sys::getpid().to_string());
                t.pour(fd, 9, UNREAD);
                send_later(t, fd, UNREAD);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "leaving/exec-while-the-peer-is-stopped",
            "a program without the library gets a connection whose peer stands still for a moment, with bytes unread, then sends and shuts down or closes: it has all of it, then the end",
            |t| [true, false].into_iter().for_each(|stays| to_a_program_while_stopped(t, stays)),
            |t| {
                let fd = sends_behind_a_stop(t);
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.drain(fd, 9, UNREAD + 512);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
                t.log("close", sys::close(sends_behind_a_stop(t)));
            },
        )
        .demoted(),
        pair(
            "leaving/exec-while-the-peer-ends",
            "the same where the peer ends then, without closing it",
            |t| to_a_program_while_stopped(t, false),
            |t| {
                let child = t.child(|t| {
                    sends_behind_a_stop(t);
                    sys::exit_now(0)
                });
                let _ = child.join();
            },
        )
        .demoted(),
        pair(
            "leaving/while-the-peer-is-stopped",
            "a connection comes into a fifth epoll set while its peer's process is stopped: what is unread comes, when the peer goes on at the latest",
            |t| {
                let (fd, peer) = unread_of_a_stopped_peer(t);
                let sets = [(); 5].map(|()| {
                    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
                    let events = EPOLLIN as u32;
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 1).expect("ADD");
                    set
                });
                let there = sys::recv(fd, &mut [0; 10], MSG_DONTWAIT | MSG_PEEK) == Ok(10);
                // What had come onto the fast path is not there.
                let is_so = match (t.waits_until_fast(), sys::has_library()) {
                    (true, _) => !there,
                    (_, false) => there,
                    _ => true,
                };
                t.log("as it has to be", is_so);
                t.log("continue", sys::kill(peer, libc::SIGCONT));
                for set in sets {
                    t.log("told", sys::epoll_wait(set, 8, -1).map(|e| e.len()));
                }
                receive(t, fd, 0, UNREAD, 333);
                t.went_back(fd, "several-epoll-sets");
                t.tell("received");
            },
            |t| {
                let fd = t.client();
                t.tell(&sys::getpid().to_string());
                t.pour(fd, 9, UNREAD);
                t.wait("received");
                t.log("close", sys::close(fd));
            },
        )
        .demoted(),
        pair(
            "leaving/options-with-many-unread-bytes",
            "the same with more unread bytes than the kernel takes at once",
            |t| {
                for (name, level, option, value, tells) in OPTIONS {
                    let fd = t.server();
                    await_bytes(fd, 20_000);
                    t.log(name, sys::setopt(fd, level, option, value));
                    let there = sys::fionread(fd).is_ok_and(|n| n > 0);
                    t.log("there", (there, sys::await_events(fd, POLLIN, 0)));
                    t.log("peek", sys::recv(fd, &mut [0; 10], MSG_DONTWAIT | MSG_PEEK));
                    receive(t, fd, 0, MANY, 10_000);
                    let control = later(t, fd, MANY, tells);
                    t.log("control", (kinds(&control), control.is_empty() != tells));
                    t.went_back(fd, "socket-option");
                    t.log("close", sys::close(fd));
                }
            },
            |t| {
                for _ in OPTIONS {
                    let fd = t.client();
                    let pouring = std::thread::spawn(move || send_all(fd, &Pattern::new(9).bytes(0, MANY)));
                    send_later(t, fd, MANY);
                    pouring.join().expect("thread");
                    t.log("end", sys::recv(fd, &mut [0; 1], 0));
                }
            },
        )
        .demoted(),
        pair(
            "leaving/ulp-with-unread-bytes",
            "an upper protocol (kTLS) is asked for while bytes are unread: they stay readable, both ways go on",
            |t| {
                let fd = t.server();
                await_bytes(fd, UNREAD);
                t.log("ulp", sys::setopt_bytes(fd, IPPROTO_TCP, TCP_ULP, b"tls"));
                t.log("there", sys::fionread(fd));
                t.drain(fd, 9, UNREAD);
                t.went_back(fd, "socket-option");
                send_all(fd, b"answer");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 9, UNREAD);
                t.log_text("answer", &recv_exact(fd, 6));
                t.log("close", sys::close(fd));
            },
        )
        .demoted(),
        pair(
            "leaving/ulp-with-nothing-unread",
            "both ends ask for an upper protocol (kTLS) between two exchanges: the kernel's own answer, and every byte after it",
            |t| upper_protocol(t, t.server()),
            |t| upper_protocol(t, t.client()),
        )
        .demoted(),
        ktls::scenario(),
        pair(
            "leaving/send-after-shutdown",
            "a send behind shutdown(SHUT_WR) fails with EPIPE also while bytes of before still go out again, and with SIGPIPE unless it is asked not to",
            |t| leaves_with_little_room(t, 1, "sent"),
            |t| {
                extern "C" fn count(_: libc::c_int) {
                    PIPES.fetch_add(1, Ordering::Relaxed);
                }
                sys::on_signal(libc::SIGPIPE, count, libc::SA_RESTART).expect("sigaction");
                let fd = t.client();
                t.pour(fd, 9, SOME);
                t.wait("there");
                sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 1).expect("SO_SNDBUF");
                t.tell("small");
                t.wait("left");
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.log("send", sys::send(fd, b"x", libc::MSG_NOSIGNAL));
                t.log("signals", PIPES.load(Ordering::Relaxed));
                t.log("send", sys::send(fd, b"x", 0));
                t.log("writev", sys::writev(fd, &[b"x", b"y"]));
                t.log("signals", PIPES.load(Ordering::Relaxed));
                t.tell("sent");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "leaving/passed-with-more-than-has-room",
            "a server with more unread than the kernel takes at once passes the connection on and closes it: whoever gets it reads all, and its answer arrives",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|t| {
                    let fd = sys::recv_fds(from).expect("recvmsg").1[0];
                    // Behind its maker's close.
                    sys::read(from, &mut [0; 2]).expect("read");
                    t.drain(fd, 9, MANY);
                    send_all(fd, b"answer");
                    format!("{:?}", sys::close(fd))
                });
                let fd = t.server();
                await_bytes(fd, SOME);
                t.log("pass", sys::send_fds(to, b"fd", &[fd]));
                t.log("close", sys::close(fd));
                sys::write(to, b"go").expect("write");
                t.log("worker", worker.join());
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 9, MANY);
                t.log_text("answer", &recv_exact(fd, 6));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "leaving/print-behind-what-goes-again",
            "stdio prints on a socket while bytes of before still go out again, where there is little room: it comes behind them",
            |t| {
                let fd = t.server();
                await_bytes(fd, SOME);
                sys::setopt(fd, SOL_SOCKET, libc::SO_RCVBUF, 1).expect("SO_RCVBUF");
                t.tell("there");
                t.wait("small");
                t.log("option", sys::setopt(fd, IPPROTO_TCP, TCP_INQ, 1));
                t.tell("left");
                t.wait("prints");
                t.drain(fd, 9, SOME);
                t.log_text("printed", &recv_exact(fd, 8));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 9, SOME);
                t.wait("there");
                sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 1).expect("SO_SNDBUF");
                t.tell("small");
                t.wait("left");
                t.tell("prints");
                t.log("printed", sys::print(fd, c"printed."));
                t.log("close", sys::close(fd));
            },
        )
        .demoted(),
        pair(
            "leaving/exit-while-bytes-go-again",
            "a process ends by _exit while bytes of its go out again over TCP, where there is little room: all arrive, then EOF",
            |t| leaves_with_little_room(t, 8192, "ends"),
            |t| {
                let child = t.child(|t| {
                    let fd = t.client();
                    t.pour(fd, 9, SOME);
                    t.wait("there");
                    sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 1).expect("SO_SNDBUF");
                    t.tell("small");
                    t.wait("left");
                    t.tell("ends");
                    sys::exit_now(0)
                });
                t.log("status", child.join());
            },
        )
        .demoted(),
        pair(
            "leaving/killed-while-bytes-go-again",
            "a process is killed while bytes of its go out again over TCP, where there is little room: all arrive, or the connection is reset, but it never ends short of them",
            |t| {
                let fd = t.server();
                await_bytes(fd, SOME);
                // What comes from now on finds little room.
                sys::setopt(fd, SOL_SOCKET, libc::SO_RCVBUF, 8192).expect("SO_RCVBUF");
                t.tell("there");
                t.wait("small");
                t.log("option", sys::setopt(fd, IPPROTO_TCP, TCP_INQ, 1));
                t.tell("left");
                t.wait("killed");
                // (Past libc: the library would know of the end that it comes too early. Who has
                // the connection without it hears the kernel alone.)
                let (mut got, mut buf) = (0, vec![0; SOME]);
                let end = loop {
                    match raw::read(fd, &mut buf) {
                        Ok(n) if n > 0 => got += n,
                        end => break end,
                    }
                };
                t.log("ends short of them", end == Ok(0) && got < SOME);
            },
            |t| {
                let child = t.child(|t| {
                    let fd = t.client();
                    t.pour(fd, 9, SOME);
                    t.wait("there");
                    sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 1).expect("SO_SNDBUF");
                    t.tell("small");
                    t.wait("left");
                    let _ = sys::kill(sys::getpid(), libc::SIGKILL);
                    String::new()
                });
                t.log("status", child.join());
                t.tell("killed");
            },
        )
        .demoted(),
    ]
}

static PIPES: AtomicU32 = AtomicU32::new(0);
