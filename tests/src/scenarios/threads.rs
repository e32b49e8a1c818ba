//! Several threads, and signal handlers, on one connection.

use super::poll::interrupted;
use crate::ctx::{await_bytes, blocked, recv_exact, send_all, sum_to_end};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E};
use libc::{MSG_NOSIGNAL, POLLIN, SHUT_RD, SHUT_RDWR, SHUT_WR, SIGUSR1};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

const MIB: u64 = 1 << 20;

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "threads/full-duplex",
            "one thread receives while another sends on the same connection, megabytes both ways",
            |t| duplex(t, 1, 2),
            |t| duplex(t, 2, 1),
        ),
        pair(
            "threads/blocked-receiver",
            "a thread blocked in recv; another sends on the same connection; then the answer comes",
            |t| {
                let fd = t.server();
                for _ in 0..20 {
                    let ask = recv_exact(fd, 5);
                    send_all(fd, &ask);
                }
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                for _ in 0..20 {
                    let reader = std::thread::spawn(move || recv_exact(fd, 5));
                    sys::sleep_ms(3);
                    send_all(fd, b"hello");
                    assert!(reader.join().expect("thread") == b"hello");
                }
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "threads/shutdown-wakes-recv",
            "shutdown by another thread wakes a blocked recv with EOF, for SHUT_RD and SHUT_RDWR; SHUT_WR does not",
            |t| {
                let fds = t.servers(3);
                for (fd, how) in [(fds[0], SHUT_RD), (fds[1], SHUT_RDWR)] {
                    let reader = blocked(move || sys::recv(fd, &mut [0; 8], 0));
                    t.log("shutdown", sys::shutdown(fd, how));
                    t.log("recv", reader.join().expect("thread"));
                }
                let fd = fds[2];
                let reader = blocked(move || sys::recv(fd, &mut [0; 8], 0));
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.tell("send");
                t.log("recv", reader.join().expect("thread"));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(3);
                t.wait("send");
                send_all(fds[2], b"data");
                t.meet("end");
            },
        ),
        pair(
            "threads/shutdown-wakes-poll",
            "shutdown by another thread wakes poll and epoll_wait",
            |t| {
                let fds = t.servers(2);
                let fd = fds[0];
                let waiter = blocked(move || sys::await_events(fd, POLLIN, 10_000));
                t.log("shutdown", sys::shutdown(fd, SHUT_RD));
                t.log("poll", sys::poll_names(waiter.join().expect("thread")));
                let fd = fds[1];
                let e = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).expect("ADD");
                let waiter = blocked(move || sys::epoll_wait(e, 4, 10_000));
                t.log("shutdown", sys::shutdown(fd, SHUT_RDWR));
                let events = waiter.join().expect("thread");
                t.log(
                    "epoll",
                    events.map(|v| {
                        v.iter().map(|e| e.0 & libc::EPOLLIN as u32 != 0).collect::<Vec<_>>()
                    }),
                );
                t.meet("end");
            },
            |t| {
                let _fds = t.clients(2);
                t.meet("end");
            },
        ),
        pair(
            "threads/close-while-receiving",
            "close by another thread: the blocked recv still gets what arrives, as the kernel does; then the fd is gone",
            |t| {
                let fd = t.server();
                let reader = blocked(move || {
                    let mut buf = [0; 8];
                    let n = sys::recv(fd, &mut buf, 0);
                    (n, buf)
                });
                t.log("close", sys::close(fd));
                t.log("gone", sys::of_closed(|| sys::recv(fd, &mut [0; 1], 0)));
                t.tell("send");
                let (n, buf) = reader.join().expect("thread");
                t.log("recv", n);
                t.log_text("data", &buf[..4]);
                t.log("gone", sys::of_closed(|| sys::recv(fd, &mut [0; 1], 0)));
            },
            |t| {
                let fd = t.client();
                t.wait("send");
                send_all(fd, b"data");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "threads/dup2-while-receiving",
            "dup2 over a connection while another thread is blocked in recv on it",
            |t| {
                let fds = t.servers(2);
                let (a, b) = (fds[0], fds[1]);
                let reader = blocked(move || {
                    let mut buf = [0; 8];
                    let n = sys::recv(a, &mut buf, 0);
                    (n, buf)
                });
                t.log("dup2", sys::dup2(b, a) == Ok(a));
                send_all(a, b"by the second");
                t.tell("send");
                let (n, buf) = reader.join().expect("thread");
                t.log("recv", n);
                t.log_text("data", &buf[..5]);
                t.log("close", (sys::close(a), sys::close(b)));
            },
            |t| {
                let fds = t.clients(2);
                t.log_text("second", &recv_exact(fds[1], 13));
                t.wait("send");
                send_all(fds[0], b"first");
                t.log("first ends", sys::recv(fds[0], &mut [0; 1], 0));
                t.log("second ends", sys::recv(fds[1], &mut [0; 1], 0));
            },
        ),
        pair(
            "threads/several-senders",
            "four threads send framed messages on one connection: no message is torn",
            |t| {
                let fd = t.server();
                let mut seen = [0u32; 4];
                loop {
                    let mut head = [0; 1];
                    if sys::recv(fd, &mut head, 0) != Ok(1) {
                        break;
                    }
                    let body = recv_exact(fd, head[0] as usize);
                    assert!(body.iter().all(|b| *b == body[0]), "a torn message");
                    seen[body[0] as usize] += 1;
                }
                t.log("messages", seen);
            },
            |t| {
                let fd = t.client();
                let threads: Vec<_> = (0..4u8)
                    .map(|who| {
                        std::thread::spawn(move || {
                            let mut rng = crate::pattern::Rng::new(u64::from(who) + 60);
                            for i in 0..100 {
                                let len = rng.range(1, 200) as u8;
                                let head = [len];
                                let body = vec![who; len as usize];
                                let n = match i % 3 {
                                    0 => sys::writev(fd, &[&head, &body]),
                                    1 => sys::sendmsg(fd, &[&head, &body], 0),
                                    _ => {
                                        let mut whole = head.to_vec();
                                        whole.extend_from_slice(&body);
                                        sys::send(fd, &whole, 0)
                                    }
                                };
                                assert!(n == Ok(len as usize + 1));
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "threads/several-receivers",
            "four threads receive from one connection: together exactly its bytes",
            |t| {
                let fd = t.server();
                let threads: Vec<_> =
                    (0..4).map(|_| std::thread::spawn(move || sum_to_end(fd, 501))).collect();
                let total = threads
                    .into_iter()
                    .map(|t| t.join().expect("thread"))
                    .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                t.log("together", total);
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 3, 2_000_000);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "threads/blocked-writer-and-shutdown",
            "a thread blocked in send on a full connection ends with EPIPE when another shuts it down",
            |t| {
                let fd = t.server();
                t.wait("end");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                sys::ignore_signal(libc::SIGPIPE);
                let writer = blocked(move || {
                    loop {
                        if let Err(e) = sys::send(fd, &[1; 100_000], MSG_NOSIGNAL) {
                            return e;
                        }
                    }
                });
                t.log("shutdown", sys::shutdown(fd, SHUT_WR));
                t.log("send", writer.join().expect("thread"));
                t.tell("end");
            },
        ),
        pair(
            "threads/interrupted-recv",
            "EINTR in recv and read; restarted with SA_RESTART; nothing lost",
            |t| {
                static SIGNALS: AtomicI32 = AtomicI32::new(0);
                extern "C" fn count(_: libc::c_int) {
                    SIGNALS.fetch_add(1, Ordering::Relaxed);
                }
                let [fd, other] = t.servers(2)[..] else { unreachable!() };
                sys::on_signal(SIGUSR1, count, 0).expect("sigaction");
                t.log("recv", interrupted(SIGUSR1, || sys::recv(fd, &mut [0; 8], 0)));
                t.log("read", interrupted(SIGUSR1, || sys::read(fd, &mut [0; 8])));
                t.log("recvmsg", interrupted(SIGUSR1, || sys::recvmsg(fd, &mut [&mut [0; 8]], 0)));
                t.log("readv", interrupted(SIGUSR1, || sys::readv(fd, &mut [&mut [0; 8]])));
                sys::on_signal(SIGUSR1, count, libc::SA_RESTART).expect("sigaction");
                SIGNALS.store(0, Ordering::Relaxed);
                let got = std::thread::scope(|scope| {
                    scope.spawn(|| {
                        // Some of them find it waiting.
                        while SIGNALS.load(Ordering::Relaxed) < 3 {
                            sys::sleep_ms(1);
                        }
                        send_all(other, b"!");
                    });
                    interrupted(SIGUSR1, || recv_exact(fd, 4))
                });
                t.log_text("restarted", &got);
                t.log("set", sys::set_timeout(fd, libc::SO_RCVTIMEO, 10_000));
                // With a timeout set, Linux does not restart.
                t.log("with a timeout", interrupted(SIGUSR1, || sys::recv(fd, &mut [0; 8], 0)));
                t.meet("end");
            },
            |t| {
                let [fd, other] = t.clients(2)[..] else { unreachable!() };
                recv_exact(other, 1);
                send_all(fd, b"data");
                t.meet("end");
            },
        ),
        pair(
            "threads/interrupted-send",
            "EINTR in a send that waits for room and has sent nothing; a partial count when it has",
            |t| {
                let fd = t.server();
                let total: u64 = t.hear().parse().expect("a number");
                let mut receiver = t.receiver(fd, 4);
                while receiver.received < total {
                    let room = (total - receiver.received).min(65_536) as usize;
                    receiver.step(room, 0).expect("recv");
                }
                t.log("exact", receiver.error);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                extern "C" fn nothing(_: libc::c_int) {}
                let fd = t.client();
                sys::on_signal(SIGUSR1, nothing, 0).expect("sigaction");
                let mut sender = t.sender(fd, 4);
                let bytes = sender.upcoming(64 << 20);
                let partial = interrupted(SIGUSR1, || sys::send(fd, &bytes, 0));
                t.log("partial", matches!(partial, Ok(n) if n < bytes.len()));
                sender.advance(partial.unwrap_or(0));
                let mut end = None;
                for _ in 0..50 {
                    match interrupted(SIGUSR1, || sys::send(fd, &sender.upcoming(1 << 20), 0)) {
                        Ok(n) => sender.advance(n),
                        Err(e) => {
                            end = Some(e);
                            break;
                        }
                    }
                }
                t.log("nothing sent", end);
                t.tell(&sender.sent.to_string());
            },
        ),
        pair(
            "threads/handler-writes",
            "a signal handler that writes to the connection while the same thread is in recv on it",
            |t| {
                let fd = t.server();
                t.log_text("from the handler", &recv_exact(fd, 7));
                send_all(fd, b"thanks");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                static FD: AtomicI32 = AtomicI32::new(-1);
                extern "C" fn write_once(_: libc::c_int) {
                    let fd = FD.swap(-1, Ordering::Relaxed);
                    if fd >= 0 {
                        let _ = sys::write(fd, b"handler");
                    }
                }
                let fd = t.client();
                FD.store(fd, Ordering::Relaxed);
                sys::on_signal(SIGUSR1, write_once, libc::SA_RESTART).expect("sigaction");
                let answer = interrupted(SIGUSR1, || recv_exact(fd, 6));
                t.log_text("answer", &answer);
            },
        ),
        pair(
            "threads/handler-reads",
            "a signal handler that reads from another connection, and closes it, during epoll_wait",
            |t| {
                static FD: AtomicI32 = AtomicI32::new(-1);
                static GOT: AtomicUsize = AtomicUsize::new(0);
                extern "C" fn read_and_close(_: libc::c_int) {
                    let fd = FD.swap(-1, Ordering::Relaxed);
                    if fd >= 0 {
                        GOT.store(sys::read(fd, &mut [0; 16]).unwrap_or(0), Ordering::Relaxed);
                        let _ = sys::close(fd);
                    }
                }
                let fds = t.servers(2);
                await_bytes(fds[1], 5);
                FD.store(fds[1], Ordering::Relaxed);
                sys::on_signal(SIGUSR1, read_and_close, 0).expect("sigaction");
                let e = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(e, libc::EPOLL_CTL_ADD, fds[0], libc::EPOLLIN as u32, 1)
                    .expect("ADD");
                let end = interrupted(SIGUSR1, || sys::epoll_wait(e, 4, 10_000).map(|v| v.len()));
                t.log("epoll_wait", end);
                t.log("the handler read", GOT.load(Ordering::Relaxed));
                t.log("closed", sys::of_closed(|| sys::recv(fds[1], &mut [0; 1], 0)));
                t.tell("go");
                t.log("epoll_wait", sys::epoll_wait(e, 4, 10_000).map(|v| v.len()));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                send_all(fds[1], b"hello");
                t.log("eof", sys::recv(fds[1], &mut [0; 1], 0));
                t.wait("go");
                send_all(fds[0], b"x");
                t.meet("end");
            },
        ),
        pair(
            "threads/fd-reuse-race",
            "connections closed and made by two threads all the time: each gets its own bytes",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let threads: Vec<_> = (0..2)
                    .map(|_| {
                        std::thread::spawn(move || {
                            for _ in 0..100 {
                                let fd = sys::accept(listener).expect("accept");
                                let ask = recv_exact(fd, 8);
                                send_all(fd, &ask);
                                assert!(sys::recv(fd, &mut [0; 1], 0) == Ok(0));
                                sys::close(fd).expect("close");
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.say("served");
            },
            |t| {
                let addr = t.hear_addr();
                let threads: Vec<_> = (0..2u32)
                    .map(|who| {
                        std::thread::spawn(move || {
                            for i in 0..100u32 {
                                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0)
                                    .expect("socket");
                                sys::connect(fd, addr).expect("connect");
                                let mut ask = who.to_ne_bytes().to_vec();
                                ask.extend_from_slice(&i.to_ne_bytes());
                                send_all(fd, &ask);
                                assert!(recv_exact(fd, 8) == ask);
                                sys::close(fd).expect("close");
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.say("200 right");
            },
        )
        .any_path(),
        pair(
            "threads/many-pairs",
            "eight connections, each with a thread on either side, small ping-pong",
            |t| {
                let threads: Vec<_> = t
                    .servers(8)
                    .into_iter()
                    .map(|fd| {
                        std::thread::spawn(move || {
                            for _ in 0..500 {
                                let ask = recv_exact(fd, 8);
                                send_all(fd, &ask);
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.say("done");
                t.meet("end");
            },
            |t| {
                let threads: Vec<_> = t
                    .clients(8)
                    .into_iter()
                    .map(|fd| {
                        std::thread::spawn(move || {
                            for i in 0..500u64 {
                                send_all(fd, &i.to_ne_bytes());
                                assert!(recv_exact(fd, 8) == i.to_ne_bytes());
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.say("done");
                t.meet("end");
            },
        ),
        pair(
            "threads/errno",
            "errno of one thread is not disturbed by another's traffic",
            |t| {
                let fd = t.server();
                t.drain(fd, 5, 500_000);
            },
            |t| {
                let fd = t.client();
                let checker = std::thread::spawn(|| {
                    (0..2000).all(|_| {
                        sys::close(-1) == Err(E(libc::EBADF)) && sys::errno() == E(libc::EBADF)
                    })
                });
                t.pour(fd, 5, 500_000);
                t.log("errno", checker.join().expect("thread"));
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "threads/stopped-peer",
            "SIGSTOP of the peer for a while: the survivor waits; after SIGCONT everything arrives",
            |t| {
                let fd = t.server();
                t.tell(&sys::getpid().to_string());
                t.drain(fd, 6, 8_000_000);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                let pid: i32 = t.hear().parse().expect("a pid");
                t.log("stop", sys::kill(pid, libc::SIGSTOP));
                let bytes = t.sender(fd, 6).upcoming(8_000_000);
                let writer = std::thread::spawn(move || {
                    send_all(fd, &bytes);
                    sys::close(fd)
                });
                sys::sleep_ms(200);
                t.log("continue", sys::kill(pid, libc::SIGCONT));
                t.log("close", writer.join().expect("thread"));
            },
        ),
    ]
}

fn duplex(t: &crate::ctx::Ctx, send_seed: u64, recv_seed: u64) {
    let fd = if t.role == crate::ctx::Role::Server { t.server() } else { t.client() };
    let mut sender = t.sender(fd, send_seed);
    let writer = std::thread::spawn(move || {
        while sender.sent < 6 * MIB {
            let room = (6 * MIB - sender.sent).min(50_000) as usize;
            sender.step(room, 0).expect("send");
        }
    });
    let mut receiver = t.receiver(fd, recv_seed);
    while receiver.received < 6 * MIB {
        let room = (6 * MIB - receiver.received).min(50_000) as usize;
        assert!(receiver.step(room, 0).expect("recv") > 0, "EOF");
    }
    writer.join().expect("thread");
    t.log("stream", receiver.verdict());
    t.meet("end");
}
