//! Connections that go on in a process that did not make them.

use crate::ctx::{Ctx, blocked, own_program, read_to_end, recv_exact, send_all};
use crate::raw;
use crate::ring::{self, Entry, Ring};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd};
use libc::{POLLIN, c_int};

/// Accepts one connection and closes the listener. Nobody has used it.
fn accept_one(t: &Ctx) -> Fd {
    let listener = t.listener();
    t.publish(listener);
    let fd = sys::accept(listener).expect("accept");
    sys::close(listener).expect("close");
    fd
}

/// Connects, and uses nothing yet.
fn connect_one(t: &Ctx) -> Fd {
    let addr = t.hear_addr();
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    fd
}

/// Serves the warm-up, a stream each way, and the end of the client's.
fn serve_all(t: &Ctx, fd: Fd) -> String {
    t.warm_server(fd);
    let got = received(t, fd, 11, 700_000);
    t.pour(fd, 12, 700_000);
    format!("{got}, then {:?}", sys::recv(fd, &mut [0; 1], 0))
}

/// The other end of [`serve_all`].
fn use_all(t: &Ctx, fd: Fd) {
    t.warm_client(fd);
    t.pour(fd, 11, 700_000);
    t.drain(fd, 12, 700_000);
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

fn client_of_all(t: &Ctx) {
    let fd = connect_one(t);
    use_all(t, fd);
}

/// Receives `total` pattern bytes.
fn received(t: &Ctx, fd: Fd, seed: u64, total: u64) -> String {
    let mut receiver = t.receiver(fd, seed);
    while receiver.received < total {
        let room = (total - receiver.received).min(40_000) as usize;
        if receiver.step(room, 0).expect("recv") == 0 {
            break;
        }
    }
    receiver.verdict()
}

/// Answers each message of four bytes until the end.
fn echo_to_end(fd: Fd) -> String {
    let mut n = 0;
    loop {
        let mut ask = [0u8; 4];
        match sys::recv(fd, &mut ask, libc::MSG_WAITALL) {
            Ok(4) => send_all(fd, &ask),
            end => return format!("{n} echoes, then {end:?}"),
        }
        n += 1;
    }
}

/// A record lock, from the first byte on. 0: to the end.
fn record_lock(fd: Fd, kind: c_int, bytes: i64) -> Result<(), E> {
    // SAFETY: all zero is a valid lock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    (lock.l_type, lock.l_len) = (kind as libc::c_short, bytes);
    // SAFETY: it is read.
    match unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(E(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))),
    }
}

/// So many echoes as a client.
fn ask(fd: Fd, n: u32) {
    for i in 0..n {
        send_all(fd, &i.to_ne_bytes());
        assert!(recv_exact(fd, 4) == i.to_ne_bytes(), "echo {i}");
    }
}

/// A pipe: (what wakes, what waits).
fn turn() -> (Fd, Fd) {
    let [from, to] = sys::pipe();
    (to, from)
}

fn give(to: Fd) {
    assert!(sys::write(to, b"x") == Ok(1));
}

fn await_turn(from: Fd) {
    assert!(sys::read(from, &mut [0; 1]) == Ok(1), "the other process ended");
}

/// A worker, made before there is a connection: receives one, and serves it.
fn worker(t: &Ctx, body: fn(&Ctx, Fd) -> String) -> (Fd, crate::ctx::Child) {
    let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
    let child = t.child(|t| {
        let _ = sys::close(to);
        body(t, take(from))
    });
    let _ = sys::close(from);
    (to, child)
}

/// Receives a connection.
fn take(from: Fd) -> Fd {
    sys::recv_fds(from).expect("recvmsg").1[0]
}

/// Passes a connection, and says how that went.
fn pass(t: &Ctx, to: Fd, fd: Fd) {
    t.log("pass", sys::send_fds(to, b"fd", &[fd]));
}

fn echo(fd: Fd, n: usize) {
    for _ in 0..n {
        let ask = recv_exact(fd, 4);
        send_all(fd, &ask);
    }
}

fn client_of_echoes(t: &Ctx, n: u32) {
    let fd = connect_one(t);
    ask(fd, n);
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

/// Passes a connection that has been used, with bytes unread, by `send`; a worker goes on with it.
fn pass_unread(t: &Ctx, send: impl FnOnce(Fd, Fd) -> Result<usize, E>) {
    let (to, worker) = worker(t, |_, fd| echo_to_end(fd));
    let fd = t.server();
    // They are in a ring if there is one.
    t.wait("asked");
    t.log("pass", send(to, fd).is_ok());
    sys::close(fd).expect("close");
    t.tell("passed");
    t.say(worker.join());
}

fn client_of_unread(t: &Ctx) {
    let fd = t.client();
    for i in 0..3u32 {
        send_all(fd, &i.to_ne_bytes());
    }
    t.tell("asked");
    t.wait("passed");
    t.log("answers", recv_exact(fd, 12));
    ask(fd, 20);
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

/// This program becomes another, which has the connection under the same number.
fn become_helper(name: &str, args: &[&str]) -> E {
    let program = own_program();
    let mut argv = vec![program.as_str(), "helper", name];
    argv.extend_from_slice(args);
    sys::exec(&program, &argv, true)
}

/// As an argument of a helper.
fn warms_up(t: &Ctx) -> &'static str {
    if t.warms_up() { "1" } else { "0" }
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "adopt/exec",
            "accept, fork, and the child becomes another program (sshd), which serves; the parent closes",
            |t| {
                let fd = accept_one(t);
                let child =
                    t.helper("serve-all", &[&fd.to_string(), warms_up(t)], true, None);
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/exec-inetd",
            "the same, with the connection as standard input, which the program moves elsewhere",
            |t| {
                let fd = accept_one(t);
                sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("fcntl");
                let child = t.helper("serve-all-inetd", &[warms_up(t)], true, Some(fd));
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/exec-in-place",
            "accept, and the process becomes another program, which serves",
            |t| {
                let fd = accept_one(t);
                t.log("exec", become_helper("serve-all", &[&fd.to_string(), warms_up(t)]));
            },
            client_of_all,
        ),
        pair(
            "adopt/exec-after-bytes",
            "a process that has served for a while becomes another program, with bytes unread, which goes on",
            |t| {
                let fd = accept_one(t);
                // (Fewer calls than an agreement takes: with one it would go back to TCP for good.)
                echo(fd, 1);
                t.wait("asked");
                t.log("exec", become_helper("serve-all", &[&fd.to_string(), warms_up(t)]));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 1);
                if t.warms_up() {
                    t.tell("asked");
                    use_all(t, fd);
                    return;
                }
                let mut stream = t.sender(fd, 11);
                while stream.sent < 1000 {
                    stream.step(1000, 0).expect("send");
                }
                t.tell("asked");
                while stream.sent < 700_000 {
                    let left = (700_000 - stream.sent) as usize;
                    stream.step(left, 0).expect("send");
                }
                t.drain(fd, 12, 700_000);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "adopt/exec-client",
            "connect, and the process becomes another program, which uses the connection",
            |t| {
                let fd = accept_one(t);
                let got = received(t, fd, 11, 700_000);
                t.pour(fd, 12, 700_000);
                t.log("served", format!("{got}, then {:?}", sys::recv(fd, &mut [0; 1], 0)));
            },
            |t| {
                let fd = connect_one(t);
                t.log("exec", become_helper("use-all", &[&fd.to_string()]));
            },
        )
        .any_path(),
        pair(
            "adopt/exec-twice",
            "a program starts another for the connection, which starts a third one",
            |t| {
                let fd = accept_one(t);
                let number = fd.to_string();
                let child = t.helper("exec-on", &[&number, warms_up(t)], true, None);
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/exec-and-closed-late",
            "the new program has served for long when the parent closes its copy",
            |t| {
                let fd = accept_one(t);
                let child =
                    t.helper("echoes-serve-all", &[&fd.to_string(), warms_up(t)], true, None);
                t.wait("asked");
                t.log("close", sys::close(fd));
                t.tell("closed");
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.wait("closed");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/exec-and-kept",
            "the parent keeps its copy and writes when the new program has served for long",
            |t| {
                let fd = accept_one(t);
                let child = t.helper("echo", &[&fd.to_string()], true, None);
                t.wait("asked");
                send_all(fd, b"of the parent");
                t.tell("written");
                t.went_back(fd, "inherited-by-fork");
                t.log("child", child.join());
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 2000);
                t.tell("asked");
                t.wait("written");
                t.log_text("parent", &recv_exact(fd, 13));
                ask(fd, 400);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", read_to_end(fd));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/exec-twice-without-the-library-between",
            "a program without the library shares the connection with a child, and becomes the same program with the library",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let library = std::env::var("LD_PRELOAD").unwrap_or_default();
                let fd = accept_one(t);
                let child =
                    t.helper("exec-again", &[&fd.to_string(), &library], false, Some(from));
                t.log("close", sys::close(fd));
                t.wait("asked");
                t.log("go on", sys::send(to, b"x", 0));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 1000);
                t.tell("asked");
                ask(fd, 50);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/shared-with-a-child",
            "a child that has given up its rights uses the connection and ends, the parent goes on; another one never uses it",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|_| {
                    sys::set_own_group().expect("setgid");
                    echo(fd, 20);
                    "used".into()
                });
                t.log("child", child.join());
                echo(fd, 5);
                let child = t.child(|_| {
                    sys::set_own_group().expect("setgid");
                    "not used".into()
                });
                t.log("child", child.join());
                t.log("served", serve_all(t, fd));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 25);
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/shared-in-turn",
            "parent and a child that has given up its rights take turns; the child is killed, the parent goes on",
            |t| {
                let (to_child, child_waits) = turn();
                let (to_parent, parent_waits) = turn();
                let fd = accept_one(t);
                let child = t.child(|_| {
                    sys::set_own_group().expect("setgid");
                    for _ in 0..40 {
                        await_turn(child_waits);
                        echo(fd, 5);
                        give(to_parent);
                    }
                    await_turn(child_waits);
                    "not reached".into()
                });
                for _ in 0..40 {
                    give(to_child);
                    await_turn(parent_waits);
                    echo(fd, 5);
                }
                sys::kill(child.pid, libc::SIGKILL).expect("kill");
                t.log("child", child.join());
                t.log("served", serve_all(t, fd));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 400);
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/record-locks",
            "record locks of a program's on a connection that a child uses: its own below 2^61",
            |t| {
                let (go, wait) = turn();
                let (done, until_done) = turn();
                let fd = accept_one(t);
                let child = t.child(|_| {
                    echo(fd, 20);
                    give(done);
                    await_turn(wait);
                    "used".into()
                });
                await_turn(until_done);
                t.log("some bytes", record_lock(fd, libc::F_WRLCK, 1000));
                t.log("none of them", record_lock(fd, libc::F_UNLCK, 1000));
                // Those of the library's are behind them, as long as it may go on in the child.
                let all = record_lock(fd, libc::F_WRLCK, 0);
                t.log("all, or somebody has some", matches!(all, Ok(()) | Err(E(libc::EAGAIN))));
                let _ = record_lock(fd, libc::F_UNLCK, 0);
                give(go);
                t.log("child", child.join());
                echo(fd, 5);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 25);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path(),
        pair(
            "adopt/shared-and-kept",
            "a child that has given up its rights leaves the connection to a child of its own, which uses it late",
            |t| {
                let (go, wait) = turn();
                let (done, until_done) = turn();
                let fd = accept_one(t);
                let child = t.child(|t| {
                    sys::set_own_group().expect("setgid");
                    echo(fd, 5);
                    let _ = t.child(|_| {
                        await_turn(wait);
                        echo(fd, 20);
                        "used late".into()
                    });
                    give(done);
                    "done".into()
                });
                await_turn(until_done);
                echo(fd, 1000);
                t.tell("asked");
                give(go);
                t.wait("answered");
                echo(fd, 100);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 1005);
                t.wait("asked");
                ask(fd, 20);
                t.tell("answered");
                ask(fd, 100);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-exec",
            "a worker that has received a connection becomes another program, which serves it",
            |t| {
                let (to, worker) = worker(t, |t, fd| {
                    format!("{:?}", become_helper("serve-all", &[&fd.to_string(), warms_up(t)]))
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/passed-by-sendmmsg",
            "a server passes a connection with unread bytes to a worker by sendmmsg, and closes it",
            |t| pass_unread(t, |to, fd| sys::send_fds_mmsg(to, b"fd", &[fd])),
            client_of_unread,
        )
        .any_path(),
        pair(
            "adopt/passed-set",
            "a server passes an epoll set with a connection that it has used to another process, which waits for it",
            |t| {
                let (to, worker) = worker(t, |_, set| {
                    let events = sys::epoll_wait(set, 4, -1).expect("epoll_wait");
                    format!("{:?}", events.iter().map(|(_, data)| *data).collect::<Vec<_>>())
                });
                let fd = t.server();
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 0x77).expect("epoll_ctl");
                // Nothing is there yet: a first wait, by whom the set is for.
                t.log("nothing", sys::epoll_wait(set, 4, 0));
                pass(t, to, set);
                t.tell("passed");
                t.say(worker.join());
                echo(fd, 20);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("passed");
                ask(fd, 20);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path(),
        pair(
            "adopt/passed-by-a-ring",
            "a server passes a connection with unread bytes to a worker by IORING_OP_SENDMSG, and closes it",
            |t| {
                let ring = Ring::new(8, 0);
                pass_unread(t, |to, fd| {
                    let Ok(ring) = &ring else {
                        return sys::send_fds(to, b"fd", &[fd]);
                    };
                    sys::with_fds(b"fd", &[fd], |msg| {
                        let entry = Entry {
                            opcode: ring::SENDMSG,
                            fd: to,
                            addr: std::ptr::from_ref(msg) as u64,
                            len: 1,
                            user_data: 3,
                            ..Entry::default()
                        };
                        let n = ring.submit(&[entry], 1);
                        assert!(ring.completions() == [(3, 2)]);
                        n.map(|_| 2)
                    })
                });
            },
            client_of_unread,
        )
        .any_path(),
        pair(
            "adopt/passed",
            "a server passes each connection to a worker and closes it (a cluster); the worker serves it",
            |t| {
                let (to, worker) = worker(t, serve_all);
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/passed-client",
            "the connecting process passes its connection to another and closes it",
            |t| {
                let fd = accept_one(t);
                t.log("served", serve_all(t, fd));
            },
            |t| {
                let (to, worker) = worker(t, |t, fd| {
                    use_all(t, fd);
                    "used".into()
                });
                let fd = connect_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
            },
        ),
        pair(
            "adopt/passed-and-closed-late",
            "the worker has served for long when the sender closes its copy",
            |t| {
                let (to, worker) = worker(t, |t, fd| {
                    echo(fd, 30);
                    serve_all(t, fd)
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.wait("asked");
                t.log("close", sys::close(fd));
                t.tell("closed");
                t.log("worker", worker.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.wait("closed");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/passed-and-kept",
            "the sender keeps its copy and writes when the worker has served for long",
            |t| {
                let (to, worker) = worker(t, |_, fd| echo_to_end(fd));
                let fd = accept_one(t);
                pass(t, to, fd);
                t.wait("asked");
                send_all(fd, b"of the sender");
                t.tell("written");
                t.went_back(fd, "passed-by-scm-rights");
                t.log("worker", worker.join());
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 2000);
                t.tell("asked");
                t.wait("written");
                t.log_text("sender", &recv_exact(fd, 13));
                ask(fd, 400);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", read_to_end(fd));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-twice",
            "a connection is passed to two workers, which take turns",
            |t| {
                let (to_a, a_waits) = turn();
                let (to_b, b_waits) = turn();
                let body = |waits: Fd, next: Fd| {
                    let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                    let child = t.child(|_| {
                        let fd = take(from);
                        for _ in 0..50 {
                            await_turn(waits);
                            echo(fd, 10);
                            give(next);
                        }
                        "done".into()
                    });
                    (to, child)
                };
                let (a, b) = (body(a_waits, to_b), body(b_waits, to_a));
                let fd = accept_one(t);
                pass(t, a.0, fd);
                pass(t, b.0, fd);
                t.log("close", sys::close(fd));
                give(to_a);
                t.log("a", a.1.join());
                t.log("b", b.1.join());
            },
            |t| client_of_echoes(t, 1000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-read-late",
            "a connection is passed to two workers; one takes it when the other has served it for long",
            |t| {
                let (go, wait) = turn();
                let (to, first) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    "served".into()
                });
                let [late, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let second = t.child(|_| {
                    await_turn(wait);
                    echo_to_end(take(from))
                });
                let fd = accept_one(t);
                pass(t, late, fd);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("first", first.join());
                give(go);
                t.log("second", second.join());
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-on",
            "a worker passes the connection on to another and closes it",
            |t| {
                let (last, second) = worker(t, |_, fd| echo_to_end(fd));
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let first = t.child(|_| {
                    let fd = take(from);
                    echo(fd, 300);
                    format!("{:?} {:?}", sys::send_fds(last, b"fd", &[fd]), sys::close(fd))
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("first", first.join());
                t.log("second", second.join());
            },
            |t| client_of_echoes(t, 800),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-by-a-program-without-the-library",
            "a program without the library passes the connection on and keeps it, and both use it",
            |t| {
                let (last, second) = worker(t, |_, fd| {
                    echo(fd, 1000);
                    "served".into()
                });
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let first = t.helper("pass-on", &[&last.to_string(), "300"], false, Some(from));
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("second", second.join());
                t.log("go on", sys::send(to, b"x", 0));
                t.log("first", first.join());
            },
            |t| client_of_echoes(t, 1300),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-to-itself",
            "a process passes an unused connection to itself and uses both numbers",
            |t| {
                let [a, b] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let fd = accept_one(t);
                pass(t, a, fd);
                let other = take(b);
                for _ in 0..50 {
                    echo(fd, 5);
                    echo(other, 5);
                }
                t.log("close", sys::close(fd));
                echo(other, 300);
                t.log("close", sys::close(other));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 800);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-peeked",
            "the worker peeks at the message first, and has the connection twice",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|_| {
                    let fds = |flags| {
                        let mut byte = [0u8; 2];
                        let got = sys::recvmsg_full(from, &mut [&mut byte], flags);
                        let control = got.expect("recvmsg").control;
                        let of = |c: &[u8]| i32::from_ne_bytes([c[0], c[1], c[2], c[3]]);
                        control.first().map_or(-1, |(_, _, payload)| of(payload))
                    };
                    let (first, second) = (fds(libc::MSG_PEEK), fds(0));
                    for _ in 0..50 {
                        echo(first, 5);
                        echo(second, 5);
                    }
                    format!("{:?}, {}", sys::close(first), echo_to_end(second))
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
            },
            |t| client_of_echoes(t, 900),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-then-forked",
            "the sender forks before it closes; its child reads and writes when the worker has served for long",
            |t| {
                let (go, wait) = turn();
                let (to, worker) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    "served".into()
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                let child = t.child(|_| {
                    await_turn(wait);
                    echo_to_end(fd)
                });
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
                give(go);
                t.log("child", child.join());
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-under-two-names",
            "the sender has a duplicate of what it passed, closes one of the two, and uses the other late",
            |t| {
                let (to, worker) = worker(t, |_, fd| {
                    echo(fd, 1500);
                    "served".into()
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                let other = sys::dup(fd).expect("dup");
                t.log("close", sys::close(fd));
                t.log("worker", worker.join());
                t.log("sender", echo_to_end(other));
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-kept-under-another-name",
            "the sender has a duplicate of what it passed, closes one of the two, and uses the other while the worker lives",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let (go, wait) = turn();
                let (back, until) = turn();
                let worker = t.child(|_| {
                    let fd = take(from);
                    echo(fd, 1500);
                    give(go);
                    await_turn(until);
                    echo_to_end(fd)
                });
                let fd = accept_one(t);
                pass(t, to, fd);
                let other = sys::dup(fd).expect("dup");
                t.log("close", sys::close(fd));
                await_turn(wait);
                echo(other, 100);
                t.log("close the other", sys::close(other));
                give(back);
                t.log("worker", worker.join());
            },
            |t| client_of_echoes(t, 2000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-closed-under-both-names",
            "the sender has a duplicate of what it passed, closes the one before the worker uses it and the other one then: the worker is accelerated",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|t| serve_all(t, take(from)));
                let fd = accept_one(t);
                pass(t, to, fd);
                let other = sys::dup(fd).expect("dup");
                t.log("close", sys::close(fd));
                t.log("close the other", sys::close(other));
                t.log("worker", worker.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/passed-while-a-thread-reads",
            "a thread of the sender's waits in recv while another passes the connection and closes it",
            |t| {
                let (go, wait) = turn();
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|_| {
                    let fd = take(from);
                    await_turn(wait);
                    echo(fd, 1000);
                    "served".into()
                });
                let fd = accept_one(t);
                let reader = blocked(move || recv_exact(fd, 4));
                pass(t, to, fd);
                t.log("close", sys::close(fd));
                t.tell("closed");
                t.log_text("reader", &reader.join().expect("thread"));
                give(go);
                t.log("worker", worker.join());
            },
            |t| {
                let fd = connect_one(t);
                t.wait("closed");
                send_all(fd, b"once");
                ask(fd, 1000);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/passed-and-killed",
            "the sender is killed when it has passed the connection; the worker serves on",
            |t| {
                let [to, from] = sys::socketpair(libc::SOCK_STREAM).expect("socketpair");
                let worker = t.child(|t| serve_all(t, take(from)));
                let listener = t.listener();
                t.publish(listener);
                let (done, waits) = turn();
                let sender = t.child(|_| {
                    let fd = sys::accept(listener).expect("accept");
                    sys::send_fds(to, b"fd", &[fd]).expect("sendmsg");
                    give(done);
                    loop {
                        let _ = sys::poll(&[], 60_000);
                    }
                });
                await_turn(waits);
                t.log("kill", sys::kill(sender.pid, libc::SIGKILL));
                t.log("killed", sys::wait_child(sender.pid));
                t.log("worker", worker.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/fork",
            "a server that forks for each connection: the parent closes it, the child serves it",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| serve_all(t, fd));
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/never-waits",
            "a negative SO_RCVTIMEO, set before the fork, counts in the child, too",
            |t| {
                let fd = accept_one(t);
                t.log("set", sys::set_timeval(fd, libc::SO_RCVTIMEO, -1, 0));
                let child = t.child(|t| {
                    t.warm_server_polling(fd);
                    let nothing = sys::recv(fd, &mut [0; 1], 0);
                    send_all(fd, b"!");
                    format!("{nothing:?}")
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.warm_client(fd);
                t.log_text("end", &recv_exact(fd, 1));
            },
        ),
        pair(
            "adopt/forked-on-standard-input",
            "the connection is standard input when the server forks, and stays so for the child, which \
             also writes as stdio does, past the library",
            |t| {
                let fd = accept_one(t);
                t.log("dup2", sys::dup2(fd, 0));
                sys::close(fd).expect("close");
                let child = t.child(|_| {
                    echo(0, 20_000);
                    let written = raw::write(0, b"tail");
                    echo(0, 200);
                    format!("{written:?}")
                });
                let null = sys::open("/dev/null", libc::O_RDONLY).expect("open");
                t.log("dup2", sys::dup2(null, 0));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                // (Enough for an agreement, if there were one.)
                ask(fd, 20_000);
                t.log_text("tail", &recv_exact(fd, 4));
                ask(fd, 200);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "adopt/fork-client",
            "the connecting process forks and closes, its child uses the connection",
            |t| {
                let fd = accept_one(t);
                t.log("served", serve_all(t, fd));
            },
            |t| {
                let fd = connect_one(t);
                let child = t.child(|t| {
                    use_all(t, fd);
                    "done".into()
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
        ),
        pair(
            "adopt/several-children",
            "three children, each with its connection, at the same time",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let mut children = Vec::new();
                for _ in 0..3 {
                    let fd = sys::accept(listener).expect("accept");
                    children.push(t.child(|t| serve_all(t, fd)));
                    t.log("close", sys::close(fd));
                }
                for child in children {
                    t.log("child", child.join());
                }
            },
            |t| {
                let addr = t.hear_addr();
                let fds: Vec<Fd> = (0..3)
                    .map(|_| {
                        let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                        sys::connect(fd, addr).expect("connect");
                        fd
                    })
                    .collect();
                for fd in fds {
                    use_all(t, fd);
                }
            },
        ),
        pair(
            "adopt/set-of-the-child",
            "the child puts the connection into an epoll set of its own before its parent has closed it",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let (done, closes) = turn();
                let child = t.child(|t| {
                    let set = sys::epoll_create1(0).expect("set");
                    let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 5).expect("add");
                    give(done);
                    await_turn(wait);
                    t.warm_server(fd);
                    give(done);
                    let mut served = 0;
                    loop {
                        let events = sys::epoll_wait(set, 4, 20_000).expect("wait");
                        assert!(events.len() == 1 && events[0].1 == 5, "{events:x?}");
                        match sys::recv(fd, &mut [0; 4], libc::MSG_WAITALL) {
                            Ok(4) => send_all(fd, b"pong"),
                            end => return format!("{served} served, then {end:?}"),
                        }
                        served += 1;
                    }
                });
                await_turn(closes);
                t.log("close", sys::close(fd));
                give(go);
                await_turn(closes);
                t.tell("warm");
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.warm_client(fd);
                t.wait("warm");
                for _ in 0..300 {
                    send_all(fd, b"ping");
                    assert!(recv_exact(fd, 4) == b"pong");
                }
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "adopt/parent-closes-late",
            "the child has served for long when its parent closes",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|t| {
                    for _ in 0..30 {
                        let ask = recv_exact(fd, 4);
                        send_all(fd, &ask);
                    }
                    await_turn(wait);
                    serve_all(t, fd)
                });
                t.wait("asked");
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/parent-greets",
            "the parent writes a greeting after the fork and closes, the child goes on",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|t| {
                    await_turn(wait);
                    serve_all(t, fd)
                });
                send_all(fd, b"greeting");
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.log_text("greeting", &recv_exact(fd, 8));
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/parent-writes-late",
            "the parent writes when the child has used the connection, and closes it then",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|_| {
                    for _ in 0..30 {
                        let ask = recv_exact(fd, 4);
                        send_all(fd, &ask);
                    }
                    await_turn(wait);
                    echo_to_end(fd)
                });
                t.wait("asked");
                send_all(fd, b"of the parent");
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.log_text("parent", &recv_exact(fd, 13));
                ask(fd, 400);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/parent-keeps-it",
            "the parent keeps its copy, and writes when the child has served for long",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|_| echo_to_end(fd));
                t.wait("asked");
                send_all(fd, b"of the parent");
                t.tell("written");
                t.went_back(fd, "inherited-by-fork");
                t.log("child", child.join());
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 2000);
                t.tell("asked");
                t.wait("written");
                t.log_text("parent", &recv_exact(fd, 13));
                ask(fd, 400);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", read_to_end(fd));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/sibling-closes",
            "two children inherit the connection; one of them closes it, the other serves",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let idle = t.child(|_| {
                    await_turn(wait);
                    format!("{:?}", sys::close(fd))
                });
                let child = t.child(|t| {
                    for _ in 0..30 {
                        let ask = recv_exact(fd, 4);
                        send_all(fd, &ask);
                    }
                    serve_all(t, fd)
                });
                t.log("close", sys::close(fd));
                t.wait("asked");
                give(go);
                t.log("idle", idle.join());
                t.tell("alone");
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 30);
                t.tell("asked");
                t.wait("alone");
                use_all(t, fd);
            },
        ),
        pair(
            "adopt/siblings-alternate",
            "two children inherit the connection and take turns; their parent has closed it",
            |t| {
                let fd = accept_one(t);
                let (to_a, a_waits) = turn();
                let (to_b, b_waits) = turn();
                let body = |waits: Fd, next: Fd| {
                    move |_: &Ctx| {
                        for _ in 0..50 {
                            await_turn(waits);
                            for _ in 0..10 {
                                let ask = recv_exact(fd, 4);
                                send_all(fd, &ask);
                            }
                            give(next);
                        }
                        "done".into()
                    }
                };
                let a = t.child(body(a_waits, to_b));
                let b = t.child(body(b_waits, to_a));
                t.log("close", sys::close(fd));
                give(to_a);
                t.log("a", a.join());
                t.log("b", b.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 1000);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/sleeping-sibling",
            "a child that slept while another served the connection reads and writes at last",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let sleeper = t.child(|_| {
                    await_turn(wait);
                    echo_to_end(fd)
                });
                let child = t.child(|_| {
                    for _ in 0..20_000 {
                        let ask = recv_exact(fd, 4);
                        send_all(fd, &ask);
                    }
                    "served".into()
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
                give(go);
                t.log("sleeper", sleeper.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 20_500);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/beside-a-sibling",
            "two children have a connection, and use it in turn while both live",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let (back, until) = turn();
                let sibling = t.child(|_| {
                    await_turn(wait);
                    echo(fd, 500);
                    give(back);
                    "served".into()
                });
                let child = t.child(|_| {
                    echo(fd, 20_000);
                    give(go);
                    await_turn(until);
                    echo_to_end(fd)
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
                t.log("sibling", sibling.join());
            },
            |t| client_of_echoes(t, 21_000),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/grandchild",
            "the child forks before it has used the connection, and closes it; the grandchild serves",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    let grandchild = t.child(|t| serve_all(t, fd));
                    let closed = sys::close(fd);
                    format!("{closed:?} {}", grandchild.join())
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/double-fork",
            "the child forks and ends without having used or closed the connection; the grandchild serves",
            |t| {
                let fd = accept_one(t);
                let (to_parent, waits) = turn();
                let (go, wait) = turn();
                let child = t.child(|t| {
                    let _grandchild = t.child(|t| {
                        await_turn(wait);
                        let said = serve_all(t, fd);
                        assert!(sys::write(to_parent, said.as_bytes()).is_ok());
                        String::new()
                    });
                    "ends".into()
                });
                t.log("close", sys::close(fd));
                t.log("child", sys::wait_child(child.pid));
                give(go);
                let mut text = [0; 100];
                let n = sys::read(waits, &mut text).expect("read");
                t.log_text("grandchild", &text[..n]);
            },
            client_of_all,
        ),
        pair(
            "adopt/child-starts-a-program",
            "the child starts a program by fork and exec, which does not get the connection, and serves it",
            |t| {
                let fd = accept_one(t);
                sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("FD_CLOEXEC");
                let child = t.child(|t| {
                    let program = t.child(|_| {
                        sys::exec("/bin/cat", &["cat", "/dev/null"], true);
                        "not started".into()
                    });
                    let ended = program.join();
                    format!("{ended} {}", serve_all(t, fd))
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            client_of_all,
        ),
        pair(
            "adopt/program-cannot-be-started",
            "a grandchild whose exec fails, and its child, use the connection when the child has served it for long",
            |t| {
                let fd = accept_one(t);
                sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("FD_CLOEXEC");
                let (to_grandchild, wait) = turn();
                let (failed, waits) = turn();
                let child = t.child(|t| {
                    let grandchild = t.child(|t| {
                        sys::exec("/nonexistent", &["nonexistent"], true);
                        let last = t.child(|_| {
                            await_turn(wait);
                            echo(fd, 300);
                            "the last".into()
                        });
                        give(failed);
                        let last = last.join();
                        echo(fd, 300);
                        format!("not started, {last}")
                    });
                    await_turn(waits);
                    echo(fd, 20_000);
                    give(to_grandchild);
                    grandchild.join()
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            |t| client_of_echoes(t, 20_600),
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/heir-forks-early",
            "the child reads a little, forks and closes; the grandchild serves",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    let first = recv_exact(fd, 4);
                    let grandchild = t.child(|t| {
                        send_all(fd, &first);
                        serve_all(t, fd)
                    });
                    let closed = sys::close(fd);
                    format!("{closed:?} {}", grandchild.join())
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 1);
                use_all(t, fd);
            },
        )
        .any_path(),
        pair(
            "adopt/heir-forks",
            "the child has adopted the connection and forks: the grandchild goes on with it",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    t.warm_server(fd);
                    let grandchild = t.child(|_| echo_to_end(fd));
                    let closed = sys::close(fd);
                    format!("{closed:?} {}", grandchild.join())
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.warm_client(fd);
                ask(fd, 500);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "adopt/heir-execs",
            "the child has adopted the connection and becomes another program on it",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    t.warm_server(fd);
                    let cat = t.exec_on(fd, "/bin/cat", &["cat"], true);
                    format!("{:?} {:?}", sys::close(fd), sys::wait_child(cat))
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.warm_client(fd);
                ask(fd, 100);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "adopt/parent-killed",
            "the parent is killed while it has the connection too; the child serves on",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let (go, wait) = turn();
                let (done, waits) = turn();
                let parent = t.child(|t| {
                    let fd = sys::accept(listener).expect("accept");
                    let _child = t.child(|_| {
                        for _ in 0..20 {
                            let ask = recv_exact(fd, 4);
                            send_all(fd, &ask);
                        }
                        await_turn(wait);
                        let said = echo_to_end(fd);
                        assert!(sys::write(done, said.as_bytes()).is_ok());
                        String::new()
                    });
                    give(done);
                    loop {
                        let _ = sys::poll(&[], 60_000);
                    }
                });
                await_turn(waits);
                t.wait("asked");
                t.log("kill", sys::kill(parent.pid, libc::SIGKILL));
                t.log("killed", sys::wait_child(parent.pid));
                give(go);
                let mut text = [0; 100];
                let n = sys::read(waits, &mut text).expect("read");
                t.log_text("child", &text[..n]);
            },
            |t| {
                let fd = connect_one(t);
                ask(fd, 20);
                t.tell("asked");
                ask(fd, 1000);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path()
        .demoted(),
        pair(
            "adopt/heir-killed",
            "the child that has adopted the connection is killed: its peer hears the end at once",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    t.warm_server(fd);
                    send_all(fd, b"last words");
                    loop {
                        let _ = sys::poll(&[], 60_000);
                    }
                });
                t.log("close", sys::close(fd));
                t.wait("kill");
                t.log("kill", sys::kill(child.pid, libc::SIGKILL));
                t.log("killed", sys::wait_child(child.pid));
            },
            |t| {
                let fd = connect_one(t);
                t.warm_client(fd);
                t.log_text("words", &recv_exact(fd, 10));
                t.tell("kill");
                let events = sys::await_events(fd, POLLIN | libc::POLLRDHUP, 20_000);
                t.log("events", events & (POLLIN | libc::POLLRDHUP));
                t.log("end", read_to_end(fd));
            },
        ),
        pair(
            "adopt/threads",
            "the child reads in one thread and writes in another, from the first call on",
            |t| {
                let fd = accept_one(t);
                let child = t.child(|t| {
                    let mut receiver = t.receiver(fd, 21);
                    let mut sender = t.sender(fd, 22);
                    let writer = std::thread::spawn(move || {
                        while sender.sent < 900_000 {
                            let room = (900_000 - sender.sent).min(30_000) as usize;
                            sender.step(room, 0).expect("send");
                        }
                    });
                    while receiver.received < 900_000 {
                        let room = (900_000 - receiver.received).min(30_000) as usize;
                        receiver.step(room, 0).expect("recv");
                    }
                    writer.join().expect("thread");
                    receiver.verdict()
                });
                t.log("close", sys::close(fd));
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                let mut sender = t.sender(fd, 21);
                let writer = std::thread::spawn(move || {
                    while sender.sent < 900_000 {
                        let room = (900_000 - sender.sent).min(30_000) as usize;
                        sender.step(room, 0).expect("send");
                    }
                });
                t.drain(fd, 22, 900_000);
                writer.join().expect("thread");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path(),
        pair(
            "adopt/half-closed",
            "the parent shuts down its sending half and closes; the child reads on",
            |t| {
                let fd = accept_one(t);
                let (go, wait) = turn();
                let child = t.child(|t| {
                    await_turn(wait);
                    let got = received(t, fd, 31, 500_000);
                    format!("{got} {:?}", sys::send(fd, b"x", libc::MSG_NOSIGNAL))
                });
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("close", sys::close(fd));
                give(go);
                t.log("child", child.join());
            },
            |t| {
                let fd = connect_one(t);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
                t.pour(fd, 31, 500_000);
            },
        )
        .any_path(),
    ]
}
