//! Connections that go on in a process that did not make them.

use crate::ctx::{Child, Ctx, blocked, own_program, read_to_end, recv_exact, send_all};
use crate::raw;
use crate::ring::{self, Entry, Ring};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Addr, E, Fd};
use libc::{POLLIN, c_int};

mod exec;
mod families;
mod passed;

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
    connect_to(t.hear_addr())
}

fn connect_to(addr: Addr) -> Fd {
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
    use_all_until(t, fd, || ());
}

/// As that; the end comes behind something.
fn use_all_until(t: &Ctx, fd: Fd, end: impl FnOnce()) {
    t.warm_client(fd);
    t.pour(fd, 11, 700_000);
    t.drain(fd, 12, 700_000);
    end();
    shuts_down(t, fd);
}

fn client_of_all(t: &Ctx) {
    let fd = connect_one(t);
    use_all(t, fd);
}

/// The client of a server that closes its copy while another process serves ([`closes_copy`]). It
/// ends when that is closed: what the two processes say has an order.
fn client_of_another(t: &Ctx) {
    let fd = connect_one(t);
    use_all_until(t, fd, || t.wait("closed"));
}

fn closes_copy(t: &Ctx, fd: Fd) {
    t.log("close", sys::close(fd));
    t.tell("closed");
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

/// Who has kept a copy of a connection writes when another process has served on it for long.
fn keeps_and_writes(t: &Ctx, fd: Fd, who: &str, reason: &str) {
    t.wait("asked");
    send_all(fd, format!("of the {who}").as_bytes());
    t.tell("written");
    t.went_back(fd, reason);
}

/// The client of that.
fn hears_who_kept_it(t: &Ctx, who: &str) {
    let fd = connect_one(t);
    ask(fd, 2000);
    t.tell("asked");
    t.wait("written");
    t.log_text(who, &recv_exact(fd, 13));
    ask(fd, 400);
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", read_to_end(fd));
}

/// The last of a client: it shuts down, and hears that the server has ended.
fn shuts_down(t: &Ctx, fd: Fd) {
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
}

/// A record lock, from the first byte on. 0: to the end.
fn record_lock(fd: Fd, kind: c_int, bytes: i64) -> Result<(), E> {
    record_lock_with(fd, libc::F_SETLK, kind, bytes)
}

fn record_lock_with(fd: Fd, command: c_int, kind: c_int, bytes: i64) -> Result<(), E> {
    // SAFETY: all zero is a valid lock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    (lock.l_type, lock.l_len) = (kind as libc::c_short, bytes);
    // SAFETY: it is read.
    match unsafe { libc::fcntl(fd, command, &raw const lock) } {
        0 => Ok(()),
        _ => Err(E(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))),
    }
}

/// What is in the way of a lock of all there is: its kind, and where it stands.
fn lock_in_the_way(fd: Fd) -> (c_int, i64, i64) {
    // SAFETY: all zero is a valid lock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: it is read and written.
    let r = unsafe { libc::fcntl(fd, libc::F_GETLK, &raw mut lock) };
    assert_eq!(r, 0, "F_GETLK");
    (lock.l_type.into(), lock.l_start, lock.l_len)
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
fn worker(t: &Ctx, body: impl FnOnce(&Ctx, Fd) -> String) -> (Fd, Child) {
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

/// Accepts a connection, passes it to the worker that was made for it, and closes it.
fn hand_over(t: &Ctx, (to, worker): (Fd, Child)) {
    let fd = accept_one(t);
    pass(t, to, fd);
    closes_copy(t, fd);
    t.log("worker", worker.join());
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
    shuts_down(t, fd);
}

fn client_of_echoes_and_all(t: &Ctx, n: u32) {
    let fd = connect_one(t);
    ask(fd, n);
    use_all(t, fd);
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
    shuts_down(t, fd);
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
    let mut all = first();
    all.extend(exec::list());
    all.extend(passed::list());
    all.extend(families::list());
    // (The devices are their maker's: docs/design/adoption.md.)
    all.into_iter().map(Scenario::stays_on_tcp_between_hosts).collect()
}

fn first() -> Vec<Scenario> {
    vec![
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
            |t| client_of_echoes_and_all(t, 25),
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
            |t| client_of_echoes_and_all(t, 400),
        ),
        pair(
            "adopt/record-locks",
            "record locks of a program's on a connection that a child uses: its own below 2^61",
            |t| {
                let (go, wait) = turn();
                let (done, until_done) = turn();
                let fd = accept_one(t);
                let child = t.child(|_| {
                    sys::set_own_group().expect("setgid");
                    echo(fd, 20);
                    give(done);
                    await_turn(wait);
                    "used".into()
                });
                await_turn(until_done);
                t.log("some bytes", record_lock(fd, libc::F_WRLCK, 1000));
                t.log("none of them", record_lock(fd, libc::F_UNLCK, 1000));
                // Those of the library's are behind them, as long as it may go on in the child.
                t.log("who has any of all", lock_in_the_way(fd));
                t.log("all", record_lock(fd, libc::F_WRLCK, 0));
                t.log("none of all", record_lock(fd, libc::F_UNLCK, 0));
                t.log("all, waiting for it", record_lock_with(fd, libc::F_SETLKW, libc::F_WRLCK, 0));
                give(go);
                t.log("child", child.join());
                echo(fd, 5);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| client_of_echoes(t, 25),
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
                shuts_down(t, fd);
            },
        )
        // Who has it on a number of stdio stays on TCP.
        .any_path(),
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
                let close = sys::close(fd);
                // Behind what the child says meanwhile.
                t.log("child", child.join());
                t.log("close", close);
            },
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
            |t| client_of_echoes_and_all(t, 1),
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
                shuts_down(t, fd);
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
                shuts_down(t, fd);
            },
        )
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
