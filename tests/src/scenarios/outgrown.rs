//! More is sent than a small ring between hosts holds (`docs/design/rings.md`), to a peer that
//! stands still, and something else is done then. It is to be as on TCP, whose buffers hold that.

use crate::ctx::{Ctx, await_bytes, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd, Sets};
use libc::{EAGAIN, MSG_DONTWAIT, POLLIN, POLLOUT, SHUT_WR, SIGCONT, SIGSTOP};

/// More than a small ring, less than the least that TCP's buffers hold here.
const FILL: usize = 48_000;
const SEED: u64 = 11;
const PART: usize = 1000;

fn stop(peer: i32) {
    sys::kill(peer, SIGSTOP).expect("stop");
    let is_stopped = |stat: String| stat.contains(") T ");
    let tasks = || std::fs::read_dir(format!("/proc/{peer}/task")).expect("tasks").flatten();
    while !tasks().all(|t| std::fs::read_to_string(t.path().join("stat")).is_ok_and(is_stopped)) {
        sys::sleep_ms(1);
    }
}

fn go_on(peer: i32) {
    sys::kill(peer, SIGCONT).expect("continue");
}

/// Bytes of the stream, sent at once or not at all.
fn put(fd: Fd, from: usize, bytes: usize) -> Result<usize, E> {
    let all = Pattern::new(SEED).bytes(from as u64, bytes);
    let mut at = 0;
    while at < bytes {
        at += sys::send(fd, &all[at..bytes.min(at + PART)], MSG_DONTWAIT)?;
    }
    Ok(bytes)
}

/// The same where the other end leaves its ring, too: there is no room for the moment between the
/// two libraries (docs/manual/limits.md, "No room for a moment over RDMA").
fn put_with_moments(fd: Fd, from: usize, bytes: usize) -> Result<usize, E> {
    let all = Pattern::new(SEED).bytes(from as u64, bytes);
    let mut at = 0;
    while at < bytes {
        match sys::send(fd, &all[at..bytes.min(at + PART)], MSG_DONTWAIT) {
            Ok(n) => at += n,
            Err(E(libc::EAGAIN)) => {
                sys::poll(&[(fd, libc::POLLOUT)], 20_000)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

/// A connection whose peer stands still, with its ring full.
fn filled(t: &Ctx) -> (Fd, i32) {
    let fd = t.client();
    let peer = t.hear().parse().expect("a pid");
    stop(peer);
    t.log("sent", put(fd, 0, FILL));
    (fd, peer)
}

/// The end that stands still.
fn stopped(t: &Ctx) -> Fd {
    let fd = t.server();
    t.tell(&sys::getpid().to_string());
    fd
}

/// What comes is what was sent, how much of it that may be; then it answers.
fn read_what_was_taken(t: &Ctx) {
    let fd = stopped(t);
    let mut receiver = t.receiver(fd, SEED);
    let mut buf = vec![0; 65_536];
    let end = loop {
        match sys::recv(fd, &mut buf, 0) {
            Ok(n) if n > 0 => receiver.accept(&buf[..n]),
            end => break end,
        }
    };
    t.log("the end", (end, receiver.verdict().ends_with("exact")));
    send_all(fd, b"yes");
}

/// What comes is what was sent, up to the end; then it answers, where that is still possible.
fn read_to_end(t: &Ctx, answer: &[u8]) {
    let fd = stopped(t);
    t.drain_to_end(fd, SEED);
    if !answer.is_empty() {
        send_all(fd, answer);
    }
}

fn sends(t: &Ctx, fd: Fd, from: usize) {
    send_all(fd, &Pattern::new(SEED).bytes(from as u64, PART));
    t.log("shutdown", sys::shutdown(fd, SHUT_WR));
}

fn what_had_come(t: &Ctx) {
    let fd = t.client();
    let peer = t.hear().parse().expect("a pid");
    await_bytes(fd, 4000);
    stop(peer);
    t.log("sent", put(fd, 0, FILL));
    t.log("ready", sys::await_events(fd, POLLIN, 0));
    t.log("there", sys::fionread(fd));
    t.log("peek", sys::recv(fd, &mut [0; 10], MSG_DONTWAIT | libc::MSG_PEEK));
    t.drain(fd, 5, 4000);
    go_on(peer);
    t.log("shutdown", sys::shutdown(fd, SHUT_WR));
    t.log("answer", recv_exact(fd, 3));
}

fn fork(t: &Ctx) {
    let (fd, peer) = filled(t);
    let child = t.child(|t| {
        sends(t, fd, FILL);
        "sent".into()
    });
    go_on(peer);
    t.log("the child", child.join());
    t.log("answer", recv_exact(fd, 3));
}

/// The parent has no name of it any more.
fn fork_and_close(t: &Ctx) {
    let (fd, peer) = filled(t);
    let [closed, say] = sys::pipe();
    let child = t.child(|t| {
        let _ = sys::read(closed, &mut [0]);
        sends(t, fd, FILL);
        format!("{:?}", recv_exact(fd, 3))
    });
    t.log("close", sys::close(fd));
    let _ = sys::write(say, &[1]);
    go_on(peer);
    t.log("the child", child.join());
}

fn exec(t: &Ctx, keep_preload: bool) {
    let (fd, peer) = filled(t);
    let text = String::from_utf8_lossy(&[b'x'; 100]).into_owned();
    let waker = t.child(|_| {
        sys::sleep_ms(100);
        go_on(peer);
        "continued".into()
    });
    let pid = t.exec_on(fd, "/bin/echo", &["echo", "-n", &text], keep_preload);
    t.log("echo", sys::wait_child(pid));
    t.log("waker", waker.join());
    t.log("shutdown", sys::shutdown(fd, SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

fn send_timeout(t: &Ctx) {
    let (fd, peer) = filled(t);
    t.log("SO_SNDTIMEO", sys::set_timeout(fd, libc::SO_SNDTIMEO, 50));
    let bytes = Pattern::new(SEED).bytes(FILL as u64, 8 << 20);
    let mut at = 0;
    let end = loop {
        match sys::send(fd, &bytes[at..at + 10_000], 0) {
            Ok(n) => at += n,
            Err(e) => break e,
        }
    };
    t.log("the end", end);
    go_on(peer);
    t.log("SO_SNDTIMEO", sys::set_timeout(fd, libc::SO_SNDTIMEO, 0));
    sends(t, fd, FILL + at);
    t.log("answer", recv_exact(fd, 3));
}

fn files(t: &Ctx) {
    let (fd, peer) = filled(t);
    let of = |from: usize, bytes| Pattern::new(SEED).bytes(from as u64, bytes);
    let file = sys::anonymous_file(&of(FILL, 5000)).expect("file");
    t.log("sendfile", sys::sendfile(fd, file, Some(&mut 0), 5000));
    let [from, to] = sys::pipe();
    t.log("into the pipe", sys::write(to, &of(FILL + 5000, 3000)));
    go_on(peer);
    t.log("splice", sys::splice(from, fd, 3000, 0));
    t.log("SO_ZEROCOPY", sys::setopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1));
    let last = of(FILL + 8000, 700);
    t.log("MSG_ZEROCOPY", sys::send(fd, &last, libc::MSG_ZEROCOPY));
    sends(t, fd, FILL + 8700);
    t.log("answer", recv_exact(fd, 3));
}

fn room(t: &Ctx) {
    let fd = t.client();
    let peer = t.hear().parse().expect("a pid");
    let set = sys::epoll_create1(0).expect("epoll");
    let edge = (libc::EPOLLOUT | libc::EPOLLET) as u32;
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, edge, 1).expect("add");
    t.log("room", sys::epoll_wait(set, 2, 5000).map(|e| e.len()));
    let sets = Sets { read: vec![], write: vec![fd], except: vec![] };
    let selected = || sys::select(fd + 1, &sets, Some(0)).map(|s| s.0);
    stop(peer);
    let mut at = 0;
    // Who asks first never waits, and is not told twice.
    while sys::await_events(fd, POLLOUT, 0) != 0 {
        assert_eq!(put(fd, at, PART), Ok(PART), "after {at}");
        at += PART;
    }
    t.log("as much as is to be had", at >= FILL);
    t.log("select", selected());
    let end = loop {
        match sys::send(fd, &Pattern::new(SEED).bytes(at as u64, PART), MSG_DONTWAIT) {
            Ok(n) => at += n,
            Err(e) => break e,
        }
    };
    t.log("full", end == E(EAGAIN));
    t.log("poll", sys::await_events(fd, POLLOUT, 0));
    let _ = sys::epoll_wait(set, 2, 0);
    go_on(peer);
    t.log("the edge", sys::epoll_wait(set, 2, 10_000).map(|e| e.len()));
    t.log("poll", sys::await_events(fd, POLLOUT, 10_000));
    sends(t, fd, at);
    t.log("answer", recv_exact(fd, 3));
}

fn both(t: &Ctx, fd: Fd) {
    t.meet("begin");
    t.log("sent", put_with_moments(fd, 0, FILL));
    t.meet("filled");
    t.drain(fd, SEED, FILL);
    t.meet("drained");
    t.log("sent", put_with_moments(fd, 0, FILL));
    t.drain(fd, SEED, FILL);
}

pub fn list() -> Vec<Scenario> {
    let answers = |t: &Ctx| read_to_end(t, b"yes");
    vec![
        pair(
            "outgrown/what-had-come",
            "what a peer had sent before it stood still is read, behind more bytes for it than a small ring holds",
            |t| {
                let fd = t.server();
                t.pour(fd, 5, 4000);
                t.tell(&sys::getpid().to_string());
                t.drain_to_end(fd, SEED);
                send_all(fd, b"yes");
            },
            what_had_come,
        )
        .demoted(),
        pair(
            "outgrown/fork",
            "a forked child sends behind more bytes than a small ring holds",
            answers,
            fork,
        )
        .demoted(),
        pair(
            "outgrown/fork-and-close",
            "and its parent closes the connection",
            answers,
            fork_and_close,
        )
        .demoted(),
        pair(
            "outgrown/exec",
            "a program is started on a connection that has sent more than a small ring holds",
            |t| {
                let fd = stopped(t);
                t.drain(fd, SEED, FILL);
                t.log_text("echo", &recv_exact(fd, 100));
            },
            |t| exec(t, true),
        )
        .demoted(),
        pair(
            "outgrown/exec-without-the-library",
            "and that program has no library",
            |t| {
                let fd = stopped(t);
                t.drain(fd, SEED, FILL);
                t.log_text("echo", &recv_exact(fd, 100));
            },
            |t| exec(t, false),
        )
        .demoted(),
        pair(
            "outgrown/close",
            "close behind more bytes than a small ring holds: all come, then the end",
            |t| read_to_end(t, b""),
            |t| {
                let (fd, peer) = filled(t);
                t.log("close", sys::close(fd));
                go_on(peer);
            },
        )
        .demoted(),
        pair(
            "outgrown/shutdown",
            "shutdown behind more bytes than a small ring holds: all come, then the end, then the answer",
            answers,
            |t| {
                let (fd, peer) = filled(t);
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.log("more", sys::send(fd, &[1], libc::MSG_NOSIGNAL));
                go_on(peer);
                t.log("answer", recv_exact(fd, 3));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "outgrown/send-timeout",
            "SO_SNDTIMEO of a send that finds no room behind more bytes than a small ring holds",
            read_what_was_taken,
            send_timeout,
        )
        .demoted(),
        pair(
            "outgrown/files",
            "sendfile, splice and MSG_ZEROCOPY behind more bytes than a small ring holds",
            answers,
            files,
        )
        .demoted(),
        pair(
            "outgrown/room",
            "poll, select and epoll of room: a peer that stands still has as much as TCP would, and then none",
            read_what_was_taken,
            room,
        )
        .demoted(),
        pair(
            "outgrown/both",
            "both ends send more than a small ring holds before either reads",
            |t| {
                let fd = t.server();
                both(t, fd);
            },
            |t| {
                let fd = t.client();
                both(t, fd);
            },
        ),
    ]
}
