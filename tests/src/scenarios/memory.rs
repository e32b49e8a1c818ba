//! Bad addresses: whatever pointer a call is given, the answer is the kernel's, and no byte and no
//! event is lost.

use crate::bad::{self, Bad, KINDS, Kind};
use crate::ctx::{await_bytes, blocked, recv_exact, send_all, sends_on_a_fast_path};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, Addr, E, R};
use libc::{
    EFAULT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, MSG_DONTWAIT, MSG_PEEK,
    MSG_TRUNC, MSG_WAITALL, POLLIN, SIGBUS, SIGSEGV,
};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const BLOCKED: &str = "nobody can handle a fault whose signal is blocked";
/// As many as bring a connection onto a fast path, where nothing waits for that.
const TURNS: usize = 50;
/// The byte in front of a bad page.
const GOOD: u8 = bad::FILL;

/// How much of good memory such sends have sent.
static SENT: AtomicUsize = AtomicUsize::new(0);

/// A send from a buffer that is good at first: nothing was sent, or a part of what is good (the
/// kernel stops where one of its own pieces ends).
fn part(result: R, good: usize) -> String {
    match result {
        Err(E(EFAULT)) => "EFAULT or a part".into(),
        Ok(n) if n > 0 && n <= good => {
            SENT.fetch_add(n, SeqCst);
            "EFAULT or a part".into()
        }
        other => format!("{other:?}"),
    }
}

/// Every way to send from bad memory.
fn send_from(t: &crate::ctx::Ctx, fd: i32, kind: Kind) {
    let bad = Bad::new(kind);
    let say = |call: &str| format!("{call}, {}", kind.name());
    t.log(&say("send"), bad::send(fd, bad.page(), 10));
    t.log(&say("write"), bad::write(fd, bad.page(), 10));
    t.log(&say("send behind the page"), bad::send(fd, bad.page().wrapping_add(PAGE - 1), 1));
    t.log(&say("part"), part(bad::send(fd, bad.before(64), 128), 64));
    t.log(&say("large part"), part(bad::send(fd, bad.before(64), 3000), 64));
    t.log(&say("sendto"), bad::sendto(fd, bad.page(), 10, null(), 0));
    t.log(&say("address of sendto"), bad::sendto(fd, bad.before(1), 1, bad.page(), 16));
    let parts = [(bad.before(8), 8), (bad.page(), 8), (bad.before(8), 8)];
    t.log(&say("writev"), part(bad::writev(fd, &parts), 8));
    t.log(&say("sendmsg"), part(bad::sendmsg(fd, &parts), 8));
    let many: Vec<_> =
        (0..20).map(|i| (if i == 17 { bad.page() } else { bad.before(1) }, 1)).collect();
    t.log(&say("writev of 20"), part(bad::writev(fd, &many), 17));
    t.log(&say("list of writev"), bad::writev_list(fd, bad.page(), 2));
    t.log(&say("end of the list"), bad::writev_list(fd, bad.before(16), 2));
    t.log(&say("list of sendmsg"), bad::sendmsg_list(fd, bad.page(), 2));
    t.log(&say("header of sendmsg"), bad::sendmsg_header(fd, bad.page()));
    t.log(&say("address of sendmsg"), bad::sendmsg_name(fd, bad.page(), 16));
    t.log(&say("sendmmsg"), bad::sendmmsg_header(fd, bad.page(), 2));
}

/// Every way to receive into bad memory; `good` bytes wait.
fn receive_into(t: &crate::ctx::Ctx, fd: i32, kind: Kind) {
    let bad = Bad::new(kind);
    let say = |call: &str| format!("{call}, {}", kind.name());
    t.log(&say("recv"), bad::recv(fd, bad.page(), 4, 0));
    t.log(&say("read"), bad::read(fd, bad.page(), 4));
    t.log(&say("part"), bad::recv(fd, bad.before(4), 8, 0));
    t.log(&say("peek"), bad::recv(fd, bad.page(), 4, MSG_PEEK));
    t.log(&say("part of a peek"), bad::recv(fd, bad.before(4), 8, MSG_PEEK));
    t.log(&say("peek that looks at nothing"), bad::recv(fd, bad.page(), 4, MSG_PEEK | MSG_TRUNC));
    let parts = [(bad.before(4), 4), (bad.page(), 8)];
    t.log(&say("readv"), bad::readv(fd, &parts));
    t.log(&say("recvmsg"), bad::recvmsg(fd, &parts, 0));
    t.log(&say("recvmsg that waits for all"), bad::recvmsg(fd, &parts, MSG_WAITALL));
    t.log(&say("list of readv"), bad::readv_list(fd, bad.page(), 2));
    t.log(&say("list of recvmsg"), bad::recvmsg_list(fd, bad.page(), 2));
    if kind != Kind::ReadOnly {
        t.log(&say("header of recvmsg"), bad::recvmsg_header(fd, bad.page()));
        t.log(&say("recvmmsg"), bad::recvmmsg_header(fd, bad.page(), 2));
    }
    t.log(&say("nothing lost"), sys::fionread(fd));
}

/// Waits that find a bad array, set, time or mask.
fn wait_for(t: &crate::ctx::Ctx, what: &str, fd: i32) {
    for kind in KINDS {
        let bad = Bad::new(kind);
        let say = |call: &str| format!("{call} of {what}, {}", kind.name());
        t.log(&say("poll"), bad::poll_at(bad.page(), 1));
        // One entry is good, the other one is not.
        let at = bad.before(8);
        bad::put(at, libc::pollfd { fd, events: POLLIN, revents: 0 });
        if kind != Kind::ReadOnly {
            t.log(&say("end of poll"), bad::poll_at(at, 2));
            t.log(&say("time of ppoll"), bad::ppoll(fd, bad.page().cast(), null()));
            t.log(&say("mask of ppoll"), bad::ppoll(fd, null(), bad.page().cast()));
            t.log(&say("time of select"), bad::select(fd, None, bad.page().cast()));
            t.log(&say("time of pselect"), bad::pselect(fd, bad.page().cast(), null()));
            t.log(&say("mask of pselect"), bad::pselect(fd, null(), bad.page().cast()));
            t.log(&say("place of its mask"), bad::pselect_mask_at(fd, bad.page()));
        }
        t.log(&say("set of select"), bad::select(fd, Some(bad.page()), null_mut()));
    }
    // It is read, and cannot be written.
    let only = Bad::read_only_holding(&libc::pollfd { fd, events: POLLIN, revents: 0 });
    t.log(&format!("read-only array of {what}"), bad::poll_at(only.page(), 1));
    let zero = Bad::read_only_holding(&libc::timeval { tv_sec: 5, tv_usec: 0 });
    t.log(
        &format!("read-only time of select of {what}"),
        bad::select(fd, None, zero.page().cast()),
    );
}

/// An epoll set with `fd` in it, which is readable.
fn epoll_of(t: &crate::ctx::Ctx, what: &str, fd: i32) {
    let set = sys::epoll_create1(0).expect("epoll");
    let events = (EPOLLIN | EPOLLET) as u32;
    for kind in KINDS {
        let bad = Bad::new(kind);
        let say = |call: &str| format!("{call} of {what}, {}", kind.name());
        if kind != Kind::ReadOnly {
            t.log(&say("add"), bad::epoll_ctl(set, EPOLL_CTL_ADD, fd, bad.page()));
        }
        t.log(&say("add"), sys::epoll_ctl(set, EPOLL_CTL_ADD, fd, events, 7));
        if kind != Kind::ReadOnly {
            t.log(&say("modify"), bad::epoll_ctl(set, EPOLL_CTL_MOD, fd, bad.page()));
        }
        t.log(&say("events"), bad::epoll_wait(set, bad.page(), 8, 5000));
        t.log(&say("events of one"), bad::epoll_wait(set, bad.page(), 1, 0));
        if kind != Kind::ReadOnly {
            t.log(&say("mask"), bad::epoll_pwait(set, 8, 0, bad.page().cast()));
            t.log(&say("time of pwait2"), bad::epoll_pwait2(set, bad.page().cast()));
        }
        let seen = sys::epoll_wait(set, 8, 5000)
            .map(|list| list.iter().map(|e| (e.0 & EPOLLIN as u32 != 0, e.1)).collect::<Vec<_>>());
        t.log(&say("the edge is not lost"), seen);
        t.log(&say("delete with no event"), bad::epoll_ctl(set, EPOLL_CTL_DEL, fd, bad.page()));
    }
    sys::close(set).expect("close");
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "memory/send",
            "every call that sends, from memory that is not mapped, protected, or behind the end of its file: EFAULT or a part, and nothing else is sent",
            |t| {
                let fd = t.server();
                let mut rest = Vec::new();
                while !rest.ends_with(b"END") {
                    rest.extend(recv_exact(fd, 1));
                }
                let all = rest.len();
                rest.retain(|b| *b != GOOD);
                t.log("no more than was said", (all - rest.len()).to_string() == t.hear());
                t.log_text("came", &rest);
                t.still_fast(fd);
                t.tell("seen");
            },
            |t| {
                let fd = t.client();
                for kind in KINDS {
                    if kind != Kind::ReadOnly {
                        send_from(t, fd, kind);
                    }
                }
                t.log("kernel address", bad::send(fd, (1usize << 63) as *mut u8, 4));
                t.log("null", bad::send(fd, null_mut(), 4));
                t.log("null, nothing", bad::send(fd, null_mut(), 0));
                send_all(fd, b"END");
                t.tell(&SENT.load(SeqCst).to_string());
                t.wait("seen");
            },
        ),
        pair(
            "memory/send-large",
            "a megabyte of which the end is bad: a part is sent, in order, or nothing",
            |t| {
                let fd = t.server();
                for _ in 0..2 {
                    let sent: usize = t.hear().parse().expect("number");
                    let bytes = recv_exact(fd, sent);
                    t.log("as sent", bytes.iter().enumerate().all(|(i, b)| *b == bad::byte_at(i)));
                    t.tell("seen");
                }
                t.log_text("then", &recv_exact(fd, 3));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for kind in [Kind::Unmapped, Kind::Truncated] {
                    let bad = Bad::large(kind, MIB);
                    sys::set_nonblocking(fd, true);
                    let sent = bad::send(fd, bad.before(MIB), MIB + 10).unwrap_or(0);
                    sys::set_nonblocking(fd, false);
                    t.log("not all", sent <= MIB);
                    t.tell(&sent.to_string());
                    t.wait("seen");
                }
                send_all(fd, b"END");
                t.meet("end");
            },
        ),
        pair(
            "memory/receive",
            "every call that receives, into memory that is not mapped, protected, read-only or behind the end of its file: EFAULT, and every byte is still there",
            |t| {
                let fd = t.server();
                await_bytes(fd, 8);
                for kind in KINDS {
                    receive_into(t, fd, kind);
                }
                t.log("kernel address", bad::recv(fd, (1usize << 63) as *mut u8, 4, 0));
                t.log("null", bad::recv(fd, null_mut(), 4, 0));
                t.log("null that drops", bad::recv(fd, null_mut(), 1, MSG_TRUNC));
                t.log_text("the rest", &recv_exact(fd, 7));
                t.log("on nothing", bad::recv(fd, null_mut(), 4, MSG_DONTWAIT));
                t.still_fast(fd);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                sys::send(fd, b"01234567", 0).expect("send");
                t.meet("end");
            },
        ),
        pair(
            "memory/receive-address",
            "a bad place for the address: the bytes are taken all the same, as the kernel does it",
            |t| {
                let fd = t.server();
                for kind in KINDS {
                    let bad = Bad::new(kind);
                    let say = |call: &str| format!("{call}, {}", kind.name());
                    await_bytes(fd, 2);
                    t.log(&say("recvfrom"), bad::recvfrom(fd, bad.page(), bad.page()));
                    t.log(&say("and one"), sys::fionread(fd));
                    t.log(&say("address alone"), bad::recvfrom_address(fd, bad.page()));
                    t.meet(kind.name());
                }
                await_bytes(fd, 1);
                t.log("length -1", bad::recvfrom_length(fd, -1));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for kind in KINDS {
                    send_all(fd, b"ab");
                    t.meet(kind.name());
                }
                send_all(fd, b"c");
                t.meet("end");
            },
        ),
        pair(
            "memory/readiness",
            "poll, select and epoll with bad arrays, sets, times, masks and events, of an accelerated socket and a pipe: EFAULT, and no event is lost",
            |t| {
                let fd = t.server();
                await_bytes(fd, 1);
                let pipe = sys::pipe();
                sys::write(pipe[1], b"x").expect("write");
                wait_for(t, "a socket", fd);
                wait_for(t, "a pipe", pipe[0]);
                epoll_of(t, "a socket", fd);
                epoll_of(t, "a pipe", pipe[0]);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"1");
                t.meet("end");
            },
        )
        .waits(2),
        pair(
            "memory/epoll-both",
            "a bad event buffer in a set of an accelerated socket and a pipe, both edge-triggered: a good one then gets both edges",
            |t| {
                let fd = t.server();
                let pipe = sys::pipe();
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, EPOLL_CTL_ADD, fd, (EPOLLIN | EPOLLET) as u32, 1).expect("add");
                sys::epoll_ctl(set, EPOLL_CTL_ADD, pipe[0], (EPOLLIN | EPOLLET) as u32, 2)
                    .expect("add");
                for kind in KINDS {
                    let bad = Bad::new(kind);
                    t.log(
                        "nothing ready",
                        bad::epoll_wait(set, bad.page(), 8, 0)
                            .map(|_| ())
                            .or_else(|e| if e == E(EFAULT) { Ok(()) } else { Err(e) }),
                    );
                    sys::write(pipe[1], b"x").expect("write");
                    t.meet(kind.name());
                    await_bytes(fd, 1);
                    t.log("events", bad::epoll_wait(set, bad.page(), 8, 5000));
                    let mut seen = Vec::new();
                    while seen.len() < 2 {
                        let list = sys::epoll_wait(set, 8, 5000).expect("wait");
                        if list.is_empty() {
                            break;
                        }
                        seen.extend(list.iter().map(|e| e.1));
                        seen.sort_unstable();
                        seen.dedup();
                    }
                    t.log("both", seen);
                    recv_exact(fd, 1);
                    sys::read(pipe[0], &mut [0]).expect("read");
                    t.meet("taken");
                }
            },
            |t| {
                let fd = t.client();
                for kind in KINDS {
                    t.meet(kind.name());
                    send_all(fd, b"1");
                    t.meet("taken");
                }
            },
        ),
        alone(
            "memory/others",
            "the same of pipes, timers and UDP sockets, in a process without a TCP socket",
            |t| {
                let pipe = sys::pipe();
                sys::write(pipe[1], b"x").expect("write");
                wait_for(t, "a pipe", pipe[0]);
                epoll_of(t, "a pipe", pipe[0]);
                wait_for(t, "a timer", sys::timerfd(1));
                let (_, udp) = bad::udp_pair();
                for kind in KINDS {
                    if kind == Kind::ReadOnly {
                        continue;
                    }
                    let bad = Bad::new(kind);
                    let say = |call: &str| format!("{call}, {}", kind.name());
                    t.log(&say("send"), bad::send(udp, bad.page(), 10));
                    t.log(&say("header"), bad::sendmsg_header(udp, bad.page()));
                    t.log(&say("list"), bad::sendmsg_list(udp, bad.page(), 2));
                    t.log(&say("address"), bad::sendmsg_name(udp, bad.page(), 16));
                    t.log(&say("control data"), bad::sendmsg_control(udp, bad.page(), 64));
                    t.log(&say("sendmmsg"), bad::sendmmsg_header(udp, bad.page(), 2));
                    t.log(&say("connect"), bad::connect(udp, bad.page(), 16));
                }
            },
        ),
        pair(
            "memory/control",
            "options, ioctl, sendfile's offset, control data and addresses at bad pointers, beside an accelerated connection",
            |t| {
                let fd = t.server();
                let (_, udp) = bad::udp_pair();
                let file = sys::anonymous_file(b"0123456789").expect("file");
                for kind in KINDS {
                    let bad = Bad::new(kind);
                    let say = |call: &str| format!("{call}, {}", kind.name());
                    t.log(&say("FIONREAD"), bad::ioctl(fd, libc::FIONREAD, bad.page()));
                    t.log(&say("TIOCOUTQ"), bad::ioctl(fd, libc::TIOCOUTQ, bad.page()));
                    t.log(
                        &say("getsockopt"),
                        bad::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, bad.page()),
                    );
                    t.log(
                        &say("getsockopt of SO_LINGER"),
                        bad::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, bad.page()),
                    );
                    if kind == Kind::ReadOnly {
                        continue;
                    }
                    t.log(&say("FIONBIO"), bad::ioctl(fd, libc::FIONBIO, bad.page()));
                    t.log(
                        &say("setsockopt"),
                        bad::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bad.page()),
                    );
                    t.log(
                        &say("setsockopt of SO_RCVTIMEO"),
                        bad::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, bad.page()),
                    );
                    t.log(&say("offset"), bad::sendfile(fd, file, bad.page(), 4));
                    t.log(&say("control data of UDP"), bad::sendmsg_control(udp, bad.page(), 64));
                    t.log(&say("header of UDP"), bad::sendmsg_header(udp, bad.page()));
                    t.log(&say("connect"), bad::connect(fd, bad.page(), 16));
                }
                let listener = t.listener_on(sys::LOOPBACK);
                let other = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let there = Addr::V4(
                    [127, 0, 0, 1],
                    sys::getsockname(listener).map(bad::port).expect("name"),
                );
                t.log("connect", bad::connect(other, Bad::new(Kind::Unmapped).page(), 16));
                t.log("then connect", sys::connect(other, there));
                t.log("accept", bad::accept(listener, Bad::new(Kind::Unmapped).page()));
                t.still_fast(fd);
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        pair(
            "memory/dispositions",
            "SIGSEGV and SIGBUS are the application's: what sigaction says, who is called, on which stack, with which mask, how a process ends",
            |t| {
                let fd = t.server();
                for signal in [SIGSEGV, SIGBUS] {
                    bad::forget_handlers();
                    sys::default_signal(signal);
                    bad::dispositions(signal, fd, &|label, text| t.log(label, text));
                    // After all that a bad address is still only an error.
                    t.log("send", bad::send(fd, Bad::new(Kind::Unmapped).page(), 10));
                    t.log("send", bad::send(fd, Bad::new(Kind::Truncated).page(), 10));
                }
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        pair(
            "memory/dispositions-by-threads",
            "threads that set the dispositions of SIGSEGV and SIGBUS at the same time, during the first connection and after it: the last one counts, and a bad buffer is an error",
            |t| {
                let change = || -> Vec<_> {
                    (0..3).map(|_| std::thread::spawn(bad::change_handlers)).collect()
                };
                let end = |thread: std::thread::JoinHandle<()>| thread.join().expect("thread");
                let threads = change();
                let fd = t.server();
                threads.into_iter().for_each(end);
                change().into_iter().for_each(end);
                for signal in [SIGSEGV, SIGBUS] {
                    t.log("set", bad::set_handler(signal));
                    t.log("raised", bad::raise(signal));
                }
                t.log("send", bad::send(fd, Bad::new(Kind::Unmapped).page(), 10));
                t.log("send", bad::send(fd, Bad::new(Kind::Truncated).page(), 10));
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        pair(
            "memory/blocked-signal",
            "a thread that has blocked SIGSEGV sends from a bad buffer",
            |t| {
                let fd = t.server();
                sys::block_signals(&[SIGSEGV]).expect("mask");
                t.log("send", bad::send(fd, Bad::new(Kind::Unmapped).page(), 10));
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        )
        .skip(&[
            ("shm", BLOCKED),
            ("early", BLOCKED),
            ("new", BLOCKED),
            ("fast", BLOCKED),
            ("switch", BLOCKED),
            ("rdma", BLOCKED),
        ]),
        pair(
            "memory/blocked-signal-ends-the-process",
            "the same of a process: EFAULT on TCP; where its connection is accelerated, SIGSEGV ends it",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let [from, to] = sys::pipe();
                let child = t.child(|t| {
                    let fd = t.accept(listener);
                    for _ in 0..TURNS {
                        recv_exact(fd, 1);
                        send_all(fd, b"y");
                    }
                    sys::block_signals(&[SIGSEGV]).expect("mask");
                    sys::write(to, &[u8::from(sends_on_a_fast_path(fd))]).expect("write");
                    let sent = bad::send(fd, Bad::new(Kind::Unmapped).page(), 10);
                    if sent == Err(E(EFAULT)) { "refused".into() } else { format!("{sent:?}") }
                });
                let how = child.join();
                let mut fast = [0];
                sys::read(from, &mut fast).expect("read");
                // (With or without the file that a process leaves behind.)
                let ended = [SIGSEGV, SIGSEGV | 0x80].map(|status| format!(" (status {status})"));
                let ended = ended.contains(&how);
                let right = match fast {
                    [1] => ended,
                    _ if t.warms_up() => how == "refused",
                    // The call itself may be the one that takes it there.
                    _ => ended || how == "refused",
                };
                t.log("as it has to be", right);
                if !right {
                    t.log("but", (fast, how));
                }
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..TURNS {
                    send_all(fd, b"x");
                    recv_exact(fd, 1);
                }
                t.meet("end");
            },
        )
        .skip(&[("switch", "it may go back to TCP in the call")]),
        pair(
            "memory/recvmmsg-error",
            "an error in the middle of recvmmsg: what came before is returned, and the next call meets the error",
            |t| {
                let fd = t.server();
                send_all(fd, b"unread");
                await_bytes(fd, 10);
                let call =
                    blocked(move || sys::recvmmsg(fd, &mut [&mut [0; 10], &mut [0; 5]], 0, None));
                t.tell("close");
                t.log("one message", call.join().expect("thread"));
                t.log("then", sys::recv(fd, &mut [0; 8], 0));
                t.log("then", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                await_bytes(fd, 6);
                send_all(fd, b"0123456789");
                t.wait("close");
                sys::close(fd).expect("close");
            },
        ),
        pair(
            "memory/peek-over-two-buffers",
            "MSG_PEEK fills one buffer after the other, twice the same, and takes nothing",
            |t| {
                let fd = t.server();
                await_bytes(fd, 8);
                for _ in 0..2 {
                    let (mut a, mut b, mut c) = ([b'.'; 3], [b'.'; 4], [b'.'; 4]);
                    let n = sys::recvmsg(fd, &mut [&mut a, &mut b, &mut c], MSG_PEEK);
                    t.log("peek", n);
                    t.log_text("peeked", &[&a[..], &b, &c].concat());
                }
                t.log_text("all", &recv_exact(fd, 8));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                sys::send(fd, b"01234567", 0).expect("send");
                t.meet("end");
            },
        ),
    ]
}
