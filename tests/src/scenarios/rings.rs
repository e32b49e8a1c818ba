//! io_uring beside the calls: sets that are changed by a ring, sockets that are used by one.
//!
//! Where the machine allows no io_uring, they count as skipped.

use crate::ctx::{Ctx, await_bytes, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::raw;
use crate::ring::{self, Entry, Ring, change};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd};
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

fn show(t: &Ctx, label: &str, set: Fd, ms: i32) {
    let events = sys::epoll_wait(set, 8, ms);
    t.log(
        label,
        events.map(|list| {
            list.into_iter()
                .map(|(e, data)| format!("{data:x}:{}", sys::epoll_names(e)))
                .collect::<Vec<_>>()
        }),
    );
}

fn set() -> Fd {
    sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1")
}

/// How a ring is made: [`Ring::new`], or [`Ring::liburing`].
type Make = fn(u32, u32) -> Result<Ring, E>;

/// A ring, if there can be one.
fn ring(t: &Ctx, flags: u32) -> Option<Ring> {
    ring_by(t, Ring::new, flags)
}

fn ring_by(t: &Ctx, make: Make, flags: u32) -> Option<Ring> {
    ring::or_skip(t, make(8, flags))
}

fn named(result: Result<i32, E>) -> Result<(), E> {
    match result? {
        0 => Ok(()),
        error => Err(E(-error)),
    }
}

/// Sends four bytes each time it is told to, and answers what it receives, until it hears `end`.
fn four_each(t: &Ctx, fd: Fd) {
    loop {
        match t.hear().as_str() {
            "send" => send_all(fd, b"data"),
            "echo" => {
                let bytes = recv_exact(fd, 4);
                send_all(fd, &bytes);
            }
            _ => return,
        }
    }
}

fn four_each_client(t: &Ctx) {
    let fd = t.client();
    four_each(t, fd);
}

fn epoll_ctl(t: &Ctx, make: Make) {
    let ring = ring_by(t, make, 0);
    let fd = t.server();
    if let Some(ring) = ring {
        let e = set();
        let ctl = |op, events, data| named(ring.epoll_ctl(e, op, fd, events, data));
        t.log("change before", ctl(MOD, IN, 1));
        t.log("out before", ctl(DEL, 0, 0));
        t.log("add", ctl(ADD, IN, 2));
        t.log("add again", ctl(ADD, IN, 3));
        show(t, "quiet", e, 0);
        t.tell("send");
        show(t, "data", e, 5000);
        t.log("change", ctl(MOD, OUT | ET, 4));
        show(t, "room", e, 5000);
        show(t, "once", e, 0);
        t.log("exclusive", ctl(MOD, IN | EXCLUSIVE, 5));
        t.log("out", ctl(DEL, 0, 0));
        t.log("out again", ctl(DEL, 0, 0));
        t.log("change after", ctl(MOD, IN, 6));
        show(t, "nothing", e, 0);
        t.log("add exclusive", ctl(ADD, IN | EXCLUSIVE, 7));
        t.log("change exclusive", ctl(MOD, IN, 8));
        show(t, "data", e, 5000);
        t.log_text("data", &recv_exact(fd, 4));
        t.log("by a call", sys::epoll_ctl(e, DEL, fd, 0, 0));
        t.log("not there", ctl(DEL, 0, 0));
        t.log("bad descriptor", named(ring.epoll_ctl(e, ADD, 9999, IN, 1)));
        t.log("bad set", named(ring.epoll_ctl(fd, MOD, fd, IN, 1)));
        t.log("bad operation", named(ring.epoll_ctl(e, 9, fd, IN, 1)));
        t.log(
            "bad event",
            ring.submit(
                &[Entry {
                    addr: 8,
                    ..change(e, ADD, fd, &mut libc::epoll_event { events: 0, u64: 0 }, 5)
                }],
                1,
            )
            .map(|_| ring.completions()),
        );
        t.still_fast(fd);
    }
    t.tell("end");
}

fn receive(t: &Ctx, make: Make) {
    let ring = ring_by(t, make, 0);
    let fd = t.server();
    if let Some(ring) = ring {
        t.tell("send");
        await_bytes(fd, 4);
        let mut buf = [0u8; 8];
        let mut receive = |label: &str| {
            let entry = Entry {
                opcode: ring::RECV,
                fd,
                addr: buf.as_mut_ptr() as u64,
                len: 4,
                op_flags: libc::MSG_WAITALL as u32,
                user_data: 3,
                ..Entry::default()
            };
            t.log(label, ring.submit(&[entry], 1).map(|_| ring.completions()));
            t.log_text("bytes", &buf[..4]);
        };
        receive("what was there");
        t.tell("send");
        receive("what comes");
        send_all(fd, b"back");
        t.tell("echo");
        receive("the echo");
    }
    t.tell("end");
}

fn poll_and_close(t: &Ctx, make: Make) {
    let ring = ring_by(t, make, 0);
    let fds = t.servers(2);
    if let Some(ring) = ring {
        let e = set();
        sys::epoll_ctl(e, ADD, fds[1], IN, 1).expect("add");
        let wait = Entry {
            opcode: ring::POLL_ADD,
            fd: fds[0],
            op_flags: libc::POLLIN as u32,
            user_data: 1,
            ..Entry::default()
        };
        t.log("wait", ring.submit(&[wait], 0));
        t.tell("send");
        t.log("data", ring.submit(&[], 1).map(|_| ring.completions()));
        t.log_text("data", &recv_exact(fds[0], 4));
        let close = Entry { opcode: ring::CLOSE, fd: fds[1], user_data: 2, ..Entry::default() };
        t.log("close", ring.submit(&[close], 1).map(|_| ring.completions()));
        let again = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        t.log("its number", again == fds[1]);
        t.log("unconnected", sys::send(again, b"x", libc::MSG_NOSIGNAL));
        show(t, "nothing", e, 0);
    }
    t.tell("end");
}

fn poll_and_close_client(t: &Ctx) {
    let fds = t.clients(2);
    while t.hear() == "send" {
        send_all(fds[0], b"data");
        t.log("eof", sys::recv(fds[1], &mut [0; 8], 0));
    }
}

/// Receives by each kind of entry what the peer has sent before its end, and then the end.
fn receive_behind_the_end(t: &Ctx, make: Make) {
    let ring = ring_by(t, make, 0);
    let fds = t.servers(2);
    for (fd, end) in fds.into_iter().zip(["closes", "shuts down"]) {
        let Some(ring) = &ring else { break };
        t.tell(end);
        sys::await_events(fd, libc::POLLRDHUP, 5_000);
        let mut buf = [0u8; 4];
        let mut part = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 4 }];
        // SAFETY: all zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (part.as_mut_ptr(), 1);
        let at = buf.as_mut_ptr() as u64;
        let entries = [
            ("poll", ring::POLL_ADD, 0, 0, i32::from(libc::POLLIN)),
            ("peek", ring::RECV, at, 4, libc::MSG_PEEK),
            ("recv", ring::RECV, at, 4, 0),
            ("of all", ring::RECV, at, 4, libc::MSG_WAITALL),
            ("read", ring::READ, at, 4, 0),
            ("readv", ring::READV, part.as_mut_ptr() as u64, 1, 0),
            ("recvmsg", ring::RECVMSG, &raw mut message as u64, 1, 0),
            ("none", ring::RECV, at, 0, 0),
            ("none", ring::READV, at, 0, 0),
            ("a bad buffer", ring::RECV, 8, 4, 0),
            ("the rest", ring::RECV, at, 4, 0),
            ("the end", ring::RECV, at, 4, 0),
        ];
        for (label, opcode, addr, len, op_flags) in entries {
            let (op_flags, user_data) = (op_flags as u32, 3);
            let entry = Entry { opcode, fd, addr, len, op_flags, user_data, ..Entry::default() };
            t.log(label, ring.submit(&[entry], 1).map(|_| ring.completions()));
            t.log_text("bytes", &buf);
        }
        t.log("by a call", sys::recv(fd, &mut buf, 0));
    }
    t.tell("end");
}

/// Receives with a limit of time, which is an entry that is linked behind.
fn receive_within(t: &Ctx) {
    let ring = ring(t, 0);
    let fd = t.server();
    if let Some(ring) = ring {
        t.tell("shuts down");
        sys::await_events(fd, libc::POLLRDHUP, 5_000);
        let (mut buf, seconds) = ([0u8; 64], [60i64, 0]);
        let (addr, len) = (buf.as_mut_ptr() as u64, 64);
        let recv =
            Entry { opcode: ring::RECV, fd, flags: ring::LINK, addr, len, ..Entry::default() };
        let (addr, fd) = (seconds.as_ptr() as u64, -1);
        let limit = Entry { opcode: ring::LINK_TIMEOUT, fd, addr, len: 1, ..Entry::default() };
        let batch = [Entry { user_data: 1, ..recv }, Entry { user_data: 2, ..limit }];
        t.log("taken", ring.submit(&batch, 2));
        t.log("ended", ring.completions());
        t.log_text("bytes", &buf[..12]);
    }
    t.tell("end");
}

/// Sends from a buffer, and receives into it: the second has to wait for the first.
fn receive_in_a_chain(t: &Ctx) {
    let ring = ring(t, 0);
    let fds = t.servers(6);
    for (pair, (first, second)) in
        fds.chunks(2).zip([(ring::LINK, 0), (ring::HARDLINK, 0), (0, ring::DRAIN)])
    {
        let (Some(ring), [from, to]) = (&ring, pair) else { break };
        t.tell("shuts down");
        sys::await_events(*from, libc::POLLRDHUP, 5_000);
        let mut buf = *b"outgoing";
        let (addr, len) = (buf.as_mut_ptr() as u64, 8);
        let send =
            Entry { opcode: ring::SEND, fd: *to, flags: first, user_data: 1, ..Entry::default() };
        let recv = Entry {
            opcode: ring::RECV,
            fd: *from,
            flags: second,
            user_data: 2,
            ..Entry::default()
        };
        let batch = [Entry { addr, len, ..send }, Entry { addr, len, ..recv }];
        t.log("taken", ring.submit(&batch, 2));
        // All, or an error.
        let said = ring.completions();
        let right = matches!(said[..], [(1, 8), (2, 8)]) && &buf == b"one.two.";
        t.log("right, or an error", right || matches!(said[..], [(1, 8), (2, ..0)]));
        t.log("close", sys::close(*to));
    }
    t.tell("end");
}

fn receive_in_a_chain_client(t: &Ctx) {
    let fds = t.clients(6);
    for pair in fds.chunks(2) {
        if t.hear() != "shuts down" {
            return;
        }
        send_all(pair[0], b"one.two.");
        sys::shutdown(pair[0], libc::SHUT_WR).expect("shutdown");
        t.log_text("what was sent", &recv_exact(pair[1], 8));
    }
}

/// Entries that send to a peer which stands still: at once, behind one that has begun the way back
/// to TCP, and in a child.
fn send_to_a_stopped_peer(t: &Ctx) {
    let fds = t.servers(3);
    let peer: libc::pid_t = t.hear().parse().expect("pid");
    let is_there = ring(t, 0).is_some_and(|ring| sys::close(ring.fd).is_ok());
    for (how, fd) in ["at once", "behind a look", "in a child"].into_iter().zip(fds) {
        t.log("stop", sys::kill(peer, libc::SIGSTOP));
        let goes_on = std::thread::spawn(move || {
            sys::sleep_ms(400);
            sys::kill(peer, libc::SIGCONT)
        });
        let mut bytes = Pattern::new(9).bytes(0, 8 * 512);
        // (Room for all of it, whoever reads.)
        let (first, last) = bytes.split_at_mut(7 * 512);
        send_all(fd, first);
        let (addr, len) = (last.as_mut_ptr() as u64, 512);
        let send = move || {
            if !is_there {
                send_all(fd, &Pattern::new(9).bytes(7 * 512, 512));
                return;
            }
            let ring = Ring::new(8, 0).expect("ring");
            let op_flags = libc::POLLOUT as u32;
            let look = Entry { opcode: ring::POLL_ADD, fd, op_flags, ..Entry::default() };
            if how == "behind a look" {
                ring.submit(&[look], 1).expect("a look");
                assert_eq!(ring.completions().len(), 1);
            }
            let send = Entry { opcode: ring::SEND, fd, addr, len, ..Entry::default() };
            ring.submit(&[send], 1).expect("a send");
            assert_eq!(ring.completions(), [(0, 512)]);
        };
        if how == "in a child" {
            let child = t.child(move |_| {
                send();
                "sent".into()
            });
            t.log(how, child.join());
        } else {
            send();
        }
        t.log("continue", goes_on.join().expect("thread"));
        t.log("close", sys::close(fd));
    }
}

/// The peer stands still while an entry that receives is given to the ring, then sends and closes.
fn receive_from_a_stopped_peer(t: &Ctx) {
    let fd = t.server();
    let peer: libc::pid_t = t.hear().parse().expect("pid");
    let ring = ring(t, 0);
    t.tell("stop");
    while !sys::is_stopped(peer) {
        sys::sleep_ms(1);
    }
    let goes_on = std::thread::spawn(move || {
        sys::sleep_ms(300);
        sys::kill(peer, libc::SIGCONT)
    });
    let mut buf = [0; 512];
    let mut at = 0;
    while let (Some(ring), true) = (&ring, at < buf.len()) {
        let addr = buf[at..].as_mut_ptr() as u64;
        let len = (buf.len() - at) as u32;
        let receive = Entry { opcode: ring::RECV, fd, addr, len, ..Entry::default() };
        ring.submit(&[receive], 1).expect("a receive");
        let [(_, n)] = ring.completions()[..] else { panic!("one completion") };
        assert!(n > 0, "{n} after {at} of 512 bytes");
        at += n as usize;
    }
    if ring.is_none() {
        buf.copy_from_slice(&recv_exact(fd, 512));
    }
    t.log("received", Pattern::new(9).first_error(0, &buf));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
    t.log("continue", goes_on.join().expect("thread"));
}

fn ends_behind_bytes(t: &Ctx) {
    let fds = t.clients(2);
    for fd in fds {
        match t.hear().as_str() {
            "closes" => {
                send_all(fd, b"one.two.thr.fou.fiv.six");
                sys::close(fd).expect("close");
            }
            "shuts down" => {
                send_all(fd, b"one.two.thr.fou.fiv.six");
                sys::shutdown(fd, libc::SHUT_WR).expect("shutdown");
            }
            _ => return,
        }
    }
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "rings/epoll-ctl",
            "IORING_OP_EPOLL_CTL adds, changes and takes out an accelerated socket, with epoll_ctl's own errors",
            |t| epoll_ctl(t, Ring::new),
            four_each_client,
        ),
        pair(
            "rings/epoll-ctl-batch",
            "a batch of changes of accelerated and other descriptors completes in one call, each with its own result",
            |t| {
                let ring = ring(t, 0);
                let fds = t.servers(2);
                if let Some(ring) = ring {
                    let e = set();
                    let [reader, writer] = sys::pipe();
                    let mut events = [1, 2, 3, 4].map(|data| libc::epoll_event {
                        events: IN,
                        u64: data,
                    });
                    let [one, two, three, four] = &mut events;
                    let batch = [
                        change(e, ADD, fds[0], one, 10),
                        change(e, ADD, reader, two, 11),
                        change(e, ADD, fds[1], three, 12),
                        change(e, DEL, fds[0], four, 13),
                        change(e, MOD, fds[0], four, 14),
                        change(e, MOD, fds[1], four, 15),
                    ];
                    t.log("taken", ring.submit(&batch, 6));
                    t.log("results", ring.completions());
                    t.tell("send");
                    sys::write(writer, b"x").expect("write");
                    await_bytes(fds[1], 4);
                    await_bytes(fds[0], 4);
                    let mut seen = Vec::new();
                    for _ in 0..100 {
                        seen.extend(
                            sys::epoll_wait(e, 8, 10)
                                .expect("epoll_wait")
                                .into_iter()
                                .map(|(_, data)| data),
                        );
                    }
                    seen.sort_unstable();
                    seen.dedup();
                    t.log("seen", seen);
                    for fd in &fds {
                        t.still_fast(*fd);
                    }
                }
                t.tell("end");
            },
            |t| {
                let fds = t.clients(2);
                while t.hear() == "send" {
                    for fd in &fds {
                        send_all(*fd, b"data");
                    }
                }
            },
        ),
        pair(
            "rings/epoll-ctl-before-connected",
            "a ring registers a socket before it is connected, and takes it out before it is closed",
            |t| {
                let fd = t.server();
                four_each(t, fd);
            },
            |t| {
                let addr = t.hear_addr();
                let ring = ring(t, 0);
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let e = set();
                if let Some(ring) = &ring {
                    t.log("add", named(ring.epoll_ctl(e, ADD, fd, IN, 1)));
                }
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                if let Some(ring) = &ring {
                    t.tell("send");
                    // (The unconnected socket had hung up.)
                    await_bytes(fd, 4);
                    show(t, "data", e, 5000);
                    t.log_text("data", &recv_exact(fd, 4));
                    t.still_fast(fd);
                    t.log("out", named(ring.epoll_ctl(e, DEL, fd, 0, 0)));
                    t.log("close", sys::close(fd));
                    let out = || named(ring.epoll_ctl(e, DEL, fd, 0, 0));
                    t.log("closed", sys::of_closed(out));
                    show(t, "nothing", e, 0);
                    t.log("the ring", sys::close(ring.fd));
                }
                t.tell("end");
            },
        ),
        pair(
            "rings/epoll-wait",
            "a ring waits for a set with a connection whose peer has sent and closed; where it cannot, epoll_wait does",
            |t| {
                let ring = ring(t, 0);
                let fd = t.server();
                t.tell("send");
                await_bytes(fd, 4);
                t.tell("end");
                t.wait("closed");
                let set = set();
                sys::epoll_ctl(set, ADD, fd, IN, 0x77).expect("epoll_ctl");
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
                let entry = Entry {
                    opcode: ring::EPOLL_WAIT,
                    fd: set,
                    addr: events.as_mut_ptr() as u64,
                    len: 4,
                    user_data: 3,
                    ..Entry::default()
                };
                let n = ring.map_or(-1, |ring| {
                    let _ = ring.submit(&[entry], 1).expect("io_uring_enter");
                    ring.completions()[0].1
                });
                if n < 0 {
                    show(t, "event", set, -1);
                } else {
                    let all = events[..n as usize].iter().map(|e| {
                        let (e, data) = (e.events, e.u64);
                        format!("{data:x}:{}", sys::epoll_names(e))
                    });
                    t.log("event", Ok::<_, E>(all.collect::<Vec<_>>()));
                }
                t.log_text("bytes", &recv_exact(fd, 4));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                four_each(t, fd);
                sys::close(fd).expect("close");
                t.tell("closed");
            },
        )
        .any_path(),
        pair(
            "rings/receive",
            "a ring receives on an accelerated socket what came before and what comes later",
            |t| receive(t, Ring::new),
            four_each_client,
        )
        .demoted(),
        pair(
            "rings/receive-behind-the-end",
            "a ring receives, by each kind of entry, what an accelerated peer has sent before it closes or shuts down, then the end",
            |t| receive_behind_the_end(t, Ring::new),
            ends_behind_bytes,
        )
        .demoted(),
        pair(
            "rings/receive-within-a-time",
            "a ring receives, with a timeout linked behind, what an accelerated peer has sent before it shuts down",
            receive_within,
            |t| {
                let fd = t.client();
                if t.hear() == "shuts down" {
                    send_all(fd, b"one.two.thr.");
                    sys::shutdown(fd, libc::SHUT_WR).expect("shutdown");
                }
            },
        )
        .demoted(),
        pair(
            "rings/receive-in-a-chain",
            "a ring receives behind another entry, linked or drained, what an accelerated peer has sent before its end: in that order",
            receive_in_a_chain,
            receive_in_a_chain_client,
        )
        .demoted(),
        pair(
            "rings/send-to-a-stopped-peer",
            "a ring sends on an accelerated socket whose peer stands still for a while: that comes, and nothing else",
            send_to_a_stopped_peer,
            |t| {
                let fds = t.clients(3);
                t.tell(&sys::getpid().to_string());
                for fd in fds {
                    t.drain(fd, 9, 8 * 512);
                    t.log("end", sys::recv(fd, &mut [0; 1], 0));
                }
            },
        )
        .demoted(),
        pair(
            "rings/receive-from-a-stopped-peer",
            "a ring receives on an accelerated socket whose peer stands still for a while, then sends and closes: all of it, then the end",
            receive_from_a_stopped_peer,
            |t| {
                let fd = t.client();
                t.tell(&sys::getpid().to_string());
                t.wait("stop");
                sys::kill(sys::getpid(), libc::SIGSTOP).expect("stop");
                send_all(fd, &Pattern::new(9).bytes(0, 512));
                t.log("close", sys::close(fd));
            },
        )
        .demoted(),
        pair(
            "rings/liburing-receive-behind-the-end",
            "as rings/receive-behind-the-end, by a ring of liburing's",
            |t| receive_behind_the_end(t, Ring::liburing),
            ends_behind_bytes,
        )
        .demoted(),
        pair(
            "rings/poll-and-close",
            "a ring waits for an accelerated socket and closes another, whose peer hears of it",
            |t| poll_and_close(t, Ring::new),
            poll_and_close_client,
        )
        .demoted(),
        pair(
            "rings/kernel-thread",
            "a ring whose entries a kernel thread takes: sockets of before and after it work",
            |t| {
                let before = t.server();
                let ring = ring(t, ring::SQPOLL);
                let listener = t.listener();
                t.publish(listener);
                let after = t.accept(listener);
                if ring.is_some() {
                    for fd in [before, after] {
                        t.tell("send");
                        t.log_text("data", &recv_exact(fd, 4));
                    }
                }
                t.tell("end");
            },
            |t| {
                let before = t.client();
                let after = t.connect(t.hear_addr());
                for fd in [before, after] {
                    if t.hear() != "send" {
                        return;
                    }
                    send_all(fd, b"data");
                }
            },
        )
        .any_path()
        .demoted(),
        pair(
            "rings/forked",
            "a child changes a set by the ring that it inherited, and makes one of its own",
            |t| {
                let ring = ring(t, 0);
                let fd = t.server();
                if let Some(ring) = ring {
                    let e = set();
                    t.log("add", named(ring.epoll_ctl(e, ADD, fd, IN, 1)));
                    let child = t.child(|_| {
                        let own = Ring::new(8, 0).expect("ring");
                        let e = set();
                        let [reader, writer] = sys::pipe();
                        let added = named(own.epoll_ctl(e, ADD, reader, IN, 5));
                        sys::write(writer, b"x").expect("write");
                        format!(
                            "{added:?} {:?} {:?}",
                            sys::epoll_wait(e, 8, 5000),
                            sys::close(ring.fd)
                        )
                    });
                    t.log("child", child.join());
                    t.tell("send");
                    show(t, "data", e, 5000);
                    t.log_text("data", &recv_exact(fd, 4));
                    t.log("out", named(ring.epoll_ctl(e, DEL, fd, 0, 0)));
                }
                t.tell("end");
            },
            four_each_client,
        ),
        pair(
            "rings/liburing-epoll-ctl",
            "as rings/epoll-ctl, by a ring of liburing's",
            |t| epoll_ctl(t, Ring::liburing),
            four_each_client,
        ),
        pair(
            "rings/liburing-receive",
            "as rings/receive, by a ring of liburing's",
            |t| receive(t, Ring::liburing),
            four_each_client,
        )
        .demoted(),
        pair(
            "rings/liburing-poll-and-close",
            "as rings/poll-and-close, by a ring of liburing's",
            |t| poll_and_close(t, Ring::liburing),
            poll_and_close_client,
        )
        .demoted(),
        pair(
            "rings/liburing-reason",
            "a connection that liburing polls for is on TCP from then on, and says why; one that it does not use is not",
            |t| {
                let ring = ring_by(t, Ring::liburing, 0);
                let fds = t.servers(2);
                if let Some(ring) = ring {
                    t.tell("send");
                    raw::await_by_ring(&ring, fds[0]);
                    t.log_text("data", &recv_exact(fds[0], 4));
                    t.expect_reason(fds[0], &[("shm", "io-uring"), ("rdma", "io-uring")]);
                    t.still_fast(fds[1]);
                }
                t.tell("end");
            },
            |t| {
                let fds = t.clients(2);
                while t.hear() == "send" {
                    send_all(fds[0], b"data");
                }
            },
        )
        .demoted(),
    ]
}
