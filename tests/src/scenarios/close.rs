//! The end of a connection: EOF, half-close, reset, SIGPIPE.

use super::ends::{doomed, end};
use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, E, Fd, home};
use libc::{
    MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, SHUT_RD, SHUT_RDWR,
    SHUT_WR, SIGKILL, SO_ERROR, SOL_SOCKET,
};
use std::sync::atomic::{AtomicI32, Ordering};

mod many;

const MIB: usize = 1 << 20;

/// Connections in turn, of which more than half become accelerated.
const IN_TURN: usize = 9000;

/// What ends before a socket with bytes unread is disconnected.
const BEFORE_DISCONNECT: [&str; 4] = ["kill", "close", "shutdown", "own shutdown"];

static PIPES: AtomicI32 = AtomicI32::new(0);
static PIPE_THREAD: AtomicI32 = AtomicI32::new(0);

extern "C" fn count_sigpipe(_: libc::c_int) {
    PIPES.fetch_add(1, Ordering::Relaxed);
    PIPE_THREAD.store(sys::gettid(), Ordering::Relaxed);
}

/// Waits for the reset, as SIGPIPE or EPIPE need it. (The kernel shows the error, and that it has
/// hung up a moment later: tcp_reset.)
fn wait_for_reset(fd: i32) -> String {
    let until = sys::now_ns() + 5_000_000_000 * u64::from(sys::patience());
    let mut revents = sys::await_events(fd, 0, 5000);
    while revents & POLLHUP == 0 && sys::now_ns() < until {
        sys::sleep_ms(1);
        revents = sys::await_events(fd, 0, 0);
    }
    sys::poll_names(revents)
}

/// Closes with a byte unread.
fn closes_on_a_byte(t: &Ctx) {
    let fd = t.server();
    await_bytes(fd, 1);
    t.log("close", sys::close(fd));
    t.tell("closed");
}

/// Its client, which has been reset.
fn is_reset(t: &Ctx) -> Fd {
    let fd = t.client();
    send_all(fd, b"x");
    t.wait("closed");
    t.log("poll", wait_for_reset(fd));
    fd
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "close/half-close-client",
            "shutdown(SHUT_WR) by the client: the server reads to EOF, answers, the client reads to EOF",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 1);
                t.log("eof again", sys::recv(fd, &mut [0; 8], 0));
                t.wait("go");
                t.pour(fd, 2, MIB);
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                sys::ignore_signal(libc::SIGPIPE);
                t.pour(fd, 1, MIB);
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.log("shutdown again", sys::shutdown(fd, SHUT_WR));
                t.log("send", sys::send(fd, b"x", 0));
                t.log("write", sys::write(fd, b"x"));
                t.log("send 0", sys::send(fd, b"", 0));
                t.tell("go");
                t.drain_to_end(fd, 2);
                t.log("eof again", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "close/half-close-server",
            "shutdown(SHUT_WR) by the server; the client goes on sending",
            |t| {
                let fd = t.server();
                t.pour(fd, 3, 100_000);
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.drain_to_end(fd, 4);
            },
            |t| {
                let fd = t.client();
                t.drain_to_end(fd, 3);
                t.pour(fd, 4, 2 * MIB);
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "close/half-close-at-once",
            "a client that half-closes before it has sent anything",
            |t| {
                let fd = t.server();
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                t.pour(fd, 5, MIB);
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.drain_to_end(fd, 5);
            },
        ),
        pair(
            "close/eof-after-data",
            "the sender closes at once after sending: all bytes, then EOF, however late the reader comes",
            |t| {
                let fd = t.server();
                t.wait("closed");
                t.drain_to_end(fd, 6);
                t.log("eof again", sys::recv(fd, &mut [0; 8], 0));
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN | POLLRDHUP, 1000)));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 6, 50_000);
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
        ),
        pair(
            "close/eof-after-much-data",
            "close while the reader is still draining megabytes",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 7);
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 7, 20 * MIB);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "close/exit-without-close",
            "a process that simply ends: all bytes, then EOF",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 8);
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 8, 3 * MIB);
                sys::exit_now(0);
            },
        ),
        pair(
            "close/eof-wakes-a-blocked-reader",
            "a reader that waits sees EOF when the peer closes; also by poll",
            |t| {
                let fds = t.servers(2);
                t.tell("close");
                t.log("recv", sys::recv(fds[0], &mut [0; 8], 0));
                t.tell("close");
                t.log("poll", sys::poll_names(sys::await_events(fds[1], POLLIN, 5000)));
                t.log("recv", sys::recv(fds[1], &mut [0; 8], 0));
            },
            |t| {
                for fd in t.clients(2) {
                    t.wait("close");
                    sys::sleep_ms(20);
                    t.log("close", sys::close(fd));
                }
            },
        ),
        pair(
            "close/unread-data-resets",
            "close with unread data: the peer gets ECONNRESET once, then EOF; its send gets EPIPE",
            |t| {
                let fd = t.server();
                await_bytes(fd, 100);
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[1; 100]);
                t.wait("closed");
                t.log("poll", wait_for_reset(fd));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("recv again", sys::recv(fd, &mut [0; 8], 0));
                t.log("send", sys::send(fd, b"x", MSG_NOSIGNAL));
                t.log("SO_ERROR", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR));
            },
        ),
        pair(
            "close/exit-with-unread-data",
            "a process that ends with unread data, by exit or killed: the peer gets ECONNRESET, as after close",
            |t| {
                let fds = t.servers(2);
                for fd in &fds {
                    await_bytes(*fd, 100);
                }
                let child = t.child(|_| {
                    sys::exit_now(0);
                });
                t.log("child", child.join());
                let child = t.child(|_| {
                    let _ = sys::kill(sys::getpid(), libc::SIGKILL);
                    String::new()
                });
                sys::close_range(3, u32::MAX, 0).expect("close_range");
                let _ = sys::wait_child(child.pid);
                sys::exit_now(0);
            },
            |t| {
                let fds = t.clients(2);
                for fd in &fds {
                    send_all(*fd, &[1; 100]);
                }
                for fd in &fds {
                    t.log("poll", wait_for_reset(*fd));
                    t.log("recv", sys::recv(*fd, &mut [0; 8], 0));
                }
            },
        ),
        pair(
            "close/data-before-reset",
            "bytes that were sent before a reset can still be read; then ECONNRESET",
            |t| {
                let fd = t.server();
                await_bytes(fd, 100);
                t.pour(fd, 9, 1000);
                t.tell("sent");
                t.wait("seen");
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[1; 100]);
                t.wait("sent");
                await_bytes(fd, 1000);
                t.tell("seen");
                t.wait("closed");
                t.log("poll", wait_for_reset(fd));
                t.drain_to_end(fd, 9);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "close/reset-so-error",
            "SO_ERROR after a reset gives ECONNRESET once and clears it",
            closes_on_a_byte,
            |t| {
                let fd = is_reset(t);
                let error = sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR).map(E);
                t.log("SO_ERROR", error);
                t.log("SO_ERROR", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("getpeername", sys::getpeername(fd).is_ok());
            },
        ),
        pair(
            "close/linger-zero",
            "SO_LINGER with time 0: close resets the connection",
            |t| {
                let fd = t.server();
                t.wait("closed");
                t.log("poll", wait_for_reset(fd));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("recv again", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("linger", sys::set_linger(fd, true, 0));
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
        ),
        pair(
            "close/linger-seconds",
            "SO_LINGER with a time: close waits, and everything arrives",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 10);
            },
            |t| {
                let fd = t.client();
                t.log("linger", sys::set_linger(fd, true, 5));
                t.pour(fd, 10, MIB);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "close/sigpipe",
            "a send to a closed peer: EPIPE and one SIGPIPE for each call, none with MSG_NOSIGNAL",
            closes_on_a_byte,
            |t| {
                let fd = t.client();
                sys::on_signal(libc::SIGPIPE, count_sigpipe, 0).expect("sigaction");
                send_all(fd, b"x");
                t.wait("closed");
                t.log("poll", wait_for_reset(fd));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                let signals = |t: &crate::ctx::Ctx, label: &str, r: sys::R| {
                    t.log(label, (r, PIPES.swap(0, Ordering::Relaxed)));
                };
                signals(t, "write", sys::write(fd, b"x"));
                signals(t, "writev", sys::writev(fd, &[b"x", b"y"]));
                signals(t, "send", sys::send(fd, b"x", 0));
                signals(t, "sendto", sys::sendto(fd, b"x", 0, None));
                signals(t, "sendmsg", sys::sendmsg(fd, &[b"x"], 0));
                signals(t, "send NOSIGNAL", sys::send(fd, b"x", MSG_NOSIGNAL));
                signals(t, "sendmsg NOSIGNAL", sys::sendmsg(fd, &[b"x"], MSG_NOSIGNAL));
                signals(t, "write 0", sys::write(fd, b""));
                let r = std::thread::spawn(move || (sys::write(fd, b"x"), sys::gettid())).join().expect("thread");
                t.log("in a thread", (r.0, PIPES.load(Ordering::Relaxed)));
                t.log("on that thread", PIPE_THREAD.load(Ordering::Relaxed) == r.1);
            },
        ),
        pair(
            "close/sigpipe-after-shutdown",
            "SIGPIPE for a send after our own SHUT_WR",
            |t| {
                let fd = t.server();
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                sys::on_signal(libc::SIGPIPE, count_sigpipe, 0).expect("sigaction");
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.log("write", sys::write(fd, b"x"));
                t.log("signals", PIPES.load(Ordering::Relaxed));
                t.meet("end");
            },
        ),
        pair(
            "close/sigpipe-kills",
            "the default action of SIGPIPE ends the writer",
            closes_on_a_byte,
            |t| {
                let fd = is_reset(t);
                let child = t.child(|_| {
                    let _ = sys::recv(fd, &mut [0; 8], 0);
                    format!("survived: {:?}", sys::write(fd, b"x"))
                });
                t.log("child", child.join());
            },
        ),
        pair(
            "close/shutdown-read",
            "shutdown(SHUT_RD): recv gives EOF at once, sending goes on, the peer does not notice",
            |t| {
                let fd = t.server();
                t.log("shutdown", sys::shutdown(fd, SHUT_RD));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                // Over RDMA there is no room on the way back to TCP (docs/manual/limits.md).
                sys::await_events(fd, POLLOUT, 5000);
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN | POLLRDHUP | POLLOUT, 0)));
                send_all(fd, b"still sending");
                t.wait("received");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                t.log_text("data", &recv_exact(fd, 13));
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN | POLLRDHUP | POLLOUT, 5000)));
                t.tell("received");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "close/shutdown-read-with-data",
            "shutdown(SHUT_RD) with bytes waiting: they can still be read",
            |t| {
                let fd = t.server();
                await_bytes(fd, 5);
                t.log("shutdown", sys::shutdown(fd, SHUT_RD));
                let mut buf = [0; 8];
                t.log("recv", sys::recv(fd, &mut buf, 0));
                t.log("recv", sys::recv(fd, &mut buf, 0));
                t.tell("more");
                t.wait("sent");
                t.log("dontwait", sys::recv(fd, &mut [0; 8], MSG_DONTWAIT).is_ok());
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"hello");
                t.wait("more");
                t.log("send", sys::send(fd, b"again", MSG_NOSIGNAL));
                t.tell("sent");
                t.meet("end");
            },
        ),
        pair(
            "close/shutdown-both",
            "shutdown(SHUT_RDWR): both ends see the end; revents of both",
            |t| {
                let fd = t.server();
                t.log("shutdown", sys::shutdown(fd, SHUT_RDWR));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("send", sys::send(fd, b"x", MSG_NOSIGNAL));
                t.wait("closed");
                sys::await_events(fd, POLLHUP, 5000);
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN | POLLRDHUP | POLLOUT, 0)));
            },
            |t| {
                let fd = t.client();
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                // (Between hosts there is no room while it goes back to TCP.)
                sys::await_events(fd, POLLOUT, 5000);
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN | POLLRDHUP | POLLOUT, 0)));
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
        ),
        pair(
            "close/events-of-each-stage",
            "POLLIN, POLLRDHUP, POLLHUP as data, half-close and close arrive",
            |t| {
                let fd = t.server();
                let all = POLLIN | POLLOUT | POLLRDHUP | libc::POLLPRI;
                t.log("fresh", sys::poll_names(sys::await_events(fd, all, 0)));
                t.tell("data");
                await_bytes(fd, 4);
                t.log("data", sys::poll_names(sys::await_events(fd, all, 0)));
                t.tell("shutdown");
                sys::await_events(fd, POLLRDHUP, 5000);
                sys::await_events(fd, POLLOUT, 5000);
                t.log("half-closed, unread", sys::poll_names(sys::await_events(fd, all, 0)));
                t.log_text("data", &recv_exact(fd, 4));
                t.log("half-closed, read", sys::poll_names(sys::await_events(fd, all, 0)));
                t.log("without RDHUP", sys::poll_names(sys::await_events(fd, POLLIN, 0)));
                t.log("asking nothing", sys::poll_names(sys::await_events(fd, 0, 0)));
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                sys::await_events(fd, 0, 5000);
                t.log("both closed", sys::poll_names(sys::await_events(fd, all, 0)));
                t.log("asking nothing", sys::poll_names(sys::await_events(fd, 0, 0)));
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                t.wait("data");
                send_all(fd, b"data");
                t.wait("shutdown");
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.wait("end");
            },
        ),
        alone("close/shutdown-errors", "shutdown on what is not connected, with a bad direction, on a listener", |t| {
            let fresh = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
            t.log("unconnected", sys::shutdown(fresh, SHUT_WR));
            t.log("bad direction", sys::shutdown(fresh, 7));
            let [from, _to] = sys::pipe();
            t.log("pipe", sys::shutdown(from, SHUT_WR));
            let (near, _far) = t.pair();
            t.log("bad direction", sys::shutdown(near, 7));
            t.log("bad direction", sys::shutdown(near, -1));
            t.log("good", sys::shutdown(near, SHUT_RDWR));
            t.log("again", sys::shutdown(near, SHUT_RDWR));
        }),
        alone("close/shutdown-wakes-accept", "shutdown of a listener wakes a thread that waits in accept", |t| {
            let listener = t.listener();
            let waiter = blocked(move || sys::accept(listener));
            t.log("shutdown", sys::shutdown(listener, SHUT_RD));
            t.log("accept", waiter.join().expect("thread"));
            t.log("accept again", sys::accept(listener));
        }),
        pair(
            "close/listener-closed-with-queue",
            "a listener closed with connections queued resets them",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.wait("connected");
                sys::await_events(listener, POLLIN, 5000);
                t.log("close", sys::close(listener));
                t.tell("closed");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("connect", sys::connect(fd, addr));
                t.tell("connected");
                t.wait("closed");
                t.log("poll", wait_for_reset(fd));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .any_path()
        .passed_through(),
        pair(
            "close/gone-before-accept",
            "a client that has sent and closed before accept: the bytes, then EOF",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.wait("closed");
                let fd = sys::accept(listener).expect("accept");
                t.drain_to_end(fd, 11);
                t.log("send", sys::send(fd, b"late", MSG_NOSIGNAL));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("connect", sys::connect(fd, addr));
                t.pour(fd, 11, 1000);
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
        )
        .any_path()
        .passed_through(),
        pair(
            "close/reset-before-accept",
            "a client that has reset its connection before accept",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.wait("closed");
                let fd = sys::accept(listener).expect("accept");
                t.log("poll", sys::poll_names(sys::await_events(fd, POLLIN, 5000) & POLLERR));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("connect", sys::connect(fd, addr));
                sys::set_linger(fd, true, 0).expect("linger");
                t.log("close", sys::close(fd));
                t.tell("closed");
            },
        )
        .any_path()
        .passed_through(),
        pair(
            "close/disconnect-and-reuse",
            "connect(AF_UNSPEC) resets the connection, and the socket connects again",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let first = t.accept(listener);
                t.tell("disconnect");
                t.log("poll", wait_for_reset(first));
                t.log("recv", sys::recv(first, &mut [0; 8], 0));
                let second = t.accept(listener);
                t.drain_to_end(second, 12);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                t.wait("disconnect");
                t.log("disconnect", sys::disconnect(fd));
                t.log("getpeername", sys::getpeername(fd).is_ok());
                t.log("send", sys::send(fd, b"x", MSG_NOSIGNAL));
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                t.pour(fd, 12, 100_000);
                t.log("close", sys::close(fd));
            },
        )
        // A socket that was disconnected stays on TCP.
        .any_path(),
        pair(
            "close/send-behind-own-shutdown-and-reset",
            "what sends say behind one's own shutdown, before and behind the peer's reset, and a receive or SO_ERROR that has taken the error",
            |t| {
                for fd in t.servers(4) {
                    await_bytes(fd, 1);
                    t.wait("close");
                    t.log("close", sys::close(fd));
                    t.tell("closed");
                }
            },
            |t| {
                for (how, fd) in ["send", "two sends", "recv", "SO_ERROR"].into_iter().zip(t.clients(4)) {
                    send_all(fd, b"x");
                    t.log(how, sys::shutdown(fd, SHUT_WR));
                    t.log(how, sys::send(fd, b"x", MSG_NOSIGNAL));
                    t.tell("close");
                    t.wait("closed");
                    t.log(how, wait_for_reset(fd));
                    match how {
                        "recv" => t.log(how, sys::recv(fd, &mut [0; 8], 0)),
                        "SO_ERROR" => t.log(how, sys::getopt(fd, SOL_SOCKET, SO_ERROR).map(E)),
                        "send" => t.log(how, sys::send(fd, b"x", MSG_NOSIGNAL)),
                        _ => t.log(how, sys::send(fd, &[0; 70_000], MSG_NOSIGNAL | MSG_DONTWAIT)),
                    }
                    t.log(how, sys::send(fd, b"x", MSG_NOSIGNAL));
                    t.log(how, sys::recv(fd, &mut [0; 8], 0));
                    t.log(how, sys::getopt(fd, SOL_SOCKET, SO_ERROR).map(E));
                    t.log(how, sys::close(fd));
                }
            },
        ),
        pair(
            "close/disconnect-with-bytes-unread",
            "connect(AF_UNSPEC) with bytes unread, after an end of either side: they are gone, and the socket connects again",
            |t| {
                for how in BEFORE_DISCONNECT {
                    // (A port of its own: no client has heard of the one before.)
                    let listener = t.listener();
                    t.publish(listener);
                    let doomed = (how == "kill").then(|| {
                        doomed(t, listener, 1, |t, fds| {
                            send_all(fds[0], &[7; 1000]);
                            t.tell("sent");
                        })
                    });
                    let first = if doomed.is_none() { t.accept(listener) } else { -1 };
                    if doomed.is_none() {
                        send_all(first, &[7; 1000]);
                        t.tell("sent");
                    }
                    t.wait("end");
                    match (how, doomed) {
                        (_, Some(child)) => end(child, SIGKILL),
                        ("close", _) => sys::close(first).map(drop).expect("close"),
                        ("shutdown", _) => sys::shutdown(first, SHUT_WR).map(drop).expect("end"),
                        _ => {}
                    }
                    t.tell("ended");
                    let second = sys::accept(listener).expect("accept");
                    send_all(second, &recv_exact(second, 4));
                    t.log(how, sys::recv(second, &mut [0; 8], 0));
                    sys::close(second).expect("close");
                    if !matches!(how, "close" | "kill") {
                        t.log(how, wait_for_reset(first));
                        sys::close(first).expect("close");
                    }
                    sys::close(listener).expect("close");
                }
            },
            |t| {
                for how in BEFORE_DISCONNECT {
                    let addr = t.hear_addr();
                    let fd = t.connect(addr);
                    t.wait("sent");
                    await_bytes(fd, 1000);
                    t.log(how, recv_exact(fd, 10).len());
                    t.tell("end");
                    t.wait("ended");
                    if how == "own shutdown" {
                        t.log(how, sys::shutdown(fd, SHUT_WR));
                    } else {
                        sys::await_events(fd, POLLRDHUP, 5000);
                    }
                    t.log(how, sys::disconnect(fd));
                    t.log(how, sys::getpeername(fd).is_ok());
                    // (The error of the reset that is sent stays behind, or none.)
                    let _ = sys::getopt(fd, SOL_SOCKET, SO_ERROR);
                    t.log(how, sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                    t.log(how, sys::send(fd, b"x", MSG_NOSIGNAL));
                    t.log(how, sys::connect(fd, addr));
                    t.log(how, sys::send(fd, b"anew", MSG_NOSIGNAL));
                    t.log_text(how, &recv_exact(fd, 4));
                    t.log(how, sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                    t.log(how, sys::close(fd));
                }
            },
        ),
        pair(
            "close/both-at-once",
            "both ends close with nothing unread; both succeed",
            |t| {
                let fd = t.server();
                t.meet("close");
                t.log("close", sys::close(fd));
                t.log("again", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                t.meet("close");
                t.log("close", sys::close(fd));
                t.log("again", sys::close(fd));
            },
        ),
        pair(
            "close/many-connections",
            "300 connections in turn, each with an exchange and EOF; the fd number is the same each time",
            many::serve,
            many::connect,
        )
        .any_path(),
        pair(
            "close/of-nothing",
            "a thread closes the lowest number that is free, again and again, while connections to 16 processes become accelerated: each close is EBADF",
            many::closes_nothing,
            many::are_many,
        )
        .skip(&[("rdma", "within a host: what is made for a peer there is the same")])
        .any_path(),
        pair(
            "close/of-nothing-by-syscall",
            "the same by libc's syscall()",
            many::closes_nothing_by_syscall,
            many::are_many,
        )
        .skip(&[("rdma", "within a host: what is made for a peer there is the same")])
        .any_path(),
        pair(
            "close/more-than-a-channel-holds",
            "more connections in turn than two processes can have at a time (4,096): the last is served as the first",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                sys::close(t.accept(listener)).expect("close");
                for _ in 0..IN_TURN {
                    let fd = sys::accept(listener).expect("accept");
                    let mut buf = [0; 8];
                    while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
                        send_all(fd, &buf[..n]);
                    }
                    sys::close(fd).expect("close");
                }
                t.log("last", sys::close(t.accept(listener)));
            },
            |t| {
                let addr = t.hear_addr();
                sys::close(t.connect(addr)).expect("close");
                for i in 0..IN_TURN {
                    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    // As many as an agreement takes.
                    for _ in 0..40 {
                        send_all(fd, &[1; 8]);
                        recv_exact(fd, 8);
                    }
                    if i % 8 == 0 {
                        // Goes back to TCP before it ends.
                        sys::setopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).expect("SO_OOBINLINE");
                    }
                    sys::close(fd).expect("close");
                }
                t.log("last", sys::close(t.connect(addr)));
            },
        )
        .waits(12)
        .skip(&[
            ("tcp", "about a channel"),
            ("server-only", "about a channel"),
            ("client-only", "about a channel"),
            ("early", "about a channel"),
            ("new", "about a channel"),
            ("switch", "about a channel"),
            ("looks", "about a channel"),
            ("rdma", "minutes, where a system call costs 60 µs"),
        ]),
        pair(
            "close/refused-after-close",
            "a listener that is gone refuses; established connections go on",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                t.log("close", sys::close(listener));
                t.tell("closed");
                t.drain_to_end(fd, 13);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                t.wait("closed");
                let other = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("connect", sys::connect(other, addr));
                t.log("bind afterwards", sys::bind(other, home()).is_ok());
                t.pour(fd, 13, 300_000);
                t.log("close", sys::close(fd));
            },
        ),
    ]
}
