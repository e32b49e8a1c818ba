//! Other programs in the same process, and in children.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "process/exec-cat",
            "exec of cat with the connection as its standard input and output (inetd), bytes already waiting",
            |t| exec_cat(t, "/bin/cat", true, 0),
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-cat-without-the-library",
            "the same with a program that is not preloaded",
            |t| exec_cat(t, "/bin/cat", false, 0),
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-static",
            "exec of a statically linked program",
            |t| {
                let path = std::env::var("NETACC_TEST_STATIC_CAT");
                exec_cat(t, path.as_deref().unwrap_or("/bin/cat"), true, 0);
            },
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-after-partial-read",
            "the program that execs has read part of what was waiting; the rest is the new program's",
            |t| exec_cat(t, "/bin/cat", true, 400),
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-cat-behind-the-end",
            "the same when the peer has shut down: cat has all that it sent before, or the connection is reset, on both sides",
            |t| {
                let fd = t.server();
                await_bytes(fd, 1000);
                sys::await_events(fd, libc::POLLRDHUP, 5_000);
                let pid = t.exec_on(fd, "/bin/cat", &["cat"], true);
                t.log("close", sys::close(fd));
                let _ = sys::wait_child(pid);
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[7; 1000]);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                let (mut bytes, mut buf) = (0, [0; 2000]);
                let end = loop {
                    match sys::recv(fd, &mut buf, 0) {
                        Ok(n @ 1..) => bytes += n,
                        end => break end,
                    }
                };
                t.log("all, or a reset", matches!((end, bytes), (Ok(0), 1000) | (Err(_), _)));
            },
        )
        .demoted(),
        pair(
            "process/exec-shell",
            "sh -c with the connection on fd 0 and 1: reads lines, answers, runs a further program",
            |t| {
                let fd = t.server();
                let script = "while read line; do echo \"got $line\"; [ \"$line\" = last ] && break; done; tr a-z A-Z";
                let pid = t.exec_on(fd, "/bin/sh", &["sh", "-c", script], true);
                t.went_back(fd, of_a_child("stdio-stream"));
                t.log("close", sys::close(fd));
                t.log("sh", sys::wait_child(pid));
            },
            |t| {
                let fd = t.client();
                let line = |expect: usize| String::from_utf8_lossy(&recv_exact(fd, expect)).into_owned();
                send_all(fd, b"one\n");
                t.log("answer", line(8));
                send_all(fd, b"two\nlast\n");
                t.log("answer", line(17));
                send_all(fd, b"shout\n");
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("rest", read_to_end(fd));
            },
        )
        .demoted(),
        pair(
            "process/exec-itself",
            "a process replaces itself by another program with the library, the connection under the same number",
            |t| {
                let fd = t.server();
                t.tell("send");
                await_bytes(fd, 1000);
                let number = fd.to_string();
                let child = t.helper("echo", &[&number], true, None);
                t.went_back(fd, of_a_child("inherited-by-exec"));
                t.log("close", sys::close(fd));
                t.log("helper", child.join());
            },
            cat_client,
        )
        .demoted(),
        pair(
            "process/exec-in-place",
            "a process becomes another program with the library, with bytes unread in both directions, and no fork before",
            |t| become_echo(t, true),
            echoed_by_another_program,
        )
        .demoted(),
        pair(
            "process/exec-in-place-without-the-library",
            "the same with a program that is not preloaded",
            |t| become_echo(t, false),
            echoed_by_another_program,
        )
        .demoted(),
        pair(
            "process/exec-in-place-fails",
            "an exec that fails, without a fork before: the process goes on with its connection",
            |t| {
                let fd = t.server();
                let bytes = unread_both_ways(t, fd);
                t.log("exec", sys::exec("/nonexistent/program", &["program"], true));
                t.tell("exec");
                t.log("its bytes", recv_exact(fd, 1000) == bytes);
                send_all(fd, &bytes);
                serve(t, fd, 50);
                t.went_back(fd, "inherited-by-exec");
                t.log("close", sys::close(fd));
            },
            |t| {
                let fd = t.client();
                send_all(fd, &Pattern::new(6).bytes(0, 1000));
                t.wait("exec");
                t.drain(fd, 7, 500);
                t.drain(fd, 6, 1000);
                assert!(t.hear() == "50", "the rounds of echoes");
                for i in 0..50u32 {
                    send_all(fd, &i.to_ne_bytes());
                    assert!(recv_exact(fd, 4) == i.to_ne_bytes(), "echo {i}");
                }
                t.tell("did");
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "process/exec-closes-cloexec",
            "exec closes a CLOEXEC connection: the peer sees EOF when the parent's name is gone too",
            |t| {
                let fds = t.servers(2);
                t.log("cloexec", sys::fcntl(fds[0], libc::F_SETFD, libc::FD_CLOEXEC));
                let (a, b) = (fds[0].to_string(), fds[1].to_string());
                let child = t.helper("is-closed", &[&a], true, None);
                t.log("cloexec in the helper", child.join());
                let child = t.helper("is-closed", &[&b], true, None);
                t.log("the other in the helper", child.join());
                let child = t.helper("say-on", &[&b], true, None);
                t.log("helper", child.join());
                send_all(fds[0], b"still mine");
                t.log("close", (sys::close(fds[0]), sys::close(fds[1])));
            },
            |t| {
                let fds = t.clients(2);
                t.log("first", read_to_end(fds[0]));
                t.log("second", read_to_end(fds[1]));
            },
        )
        .demoted(),
        pair(
            "process/system-and-popen",
            "system() and popen() with live connections: nothing is lost, nobody gets an EOF",
            |t| {
                let fd = t.server();
                serve(t, fd, 50);
                t.log("system", sys::system("exit 3"));
                serve(t, fd, 50);
                let stream = Stream::popen("echo from the child; cat >/dev/null 2>&1 </dev/null", "r").expect("popen");
                serve(t, fd, 50);
                t.log("line", stream.gets());
                t.log("pclose", stream.pclose());
                let stream = Stream::popen("cat >/dev/null", "w").expect("popen");
                t.log("puts", stream.puts("text\n"));
                serve(t, fd, 50);
                t.log("pclose", stream.pclose());
                serve(t, fd, 50);
                t.went_back(fd, "inherited-by-exec");
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            echo_client,
        )
        .demoted(),
        pair(
            "process/spawn",
            "posix_spawn with file actions that close the connection in the child: the parent's table is untouched",
            |t| {
                let fds = t.servers(2);
                let [from, to] = sys::pipe();
                let pid = sys::spawn("/bin/echo", &["echo", "spawned"], &fds, to).expect("posix_spawn");
                sys::close(to).expect("close");
                t.log("output", read_to_end(from));
                t.log("status", sys::wait_child(pid));
                for fd in &fds {
                    send_all(*fd, b"alive");
                }
                t.went_back(fds[0], "inherited-by-exec");
                t.log("no such program", sys::spawn("/nonexistent", &["x"], &fds, 2).is_err());
                for fd in &fds {
                    send_all(*fd, b"still");
                }
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                for fd in &fds {
                    t.log_text("data", &recv_exact(*fd, 10));
                }
                t.meet("end");
            },
        )
        .demoted(),
        pair(
            "process/vfork-child-closes",
            "a vfork child closes and dup2()s over connections: the parent's are untouched",
            |t| {
                let fds = t.servers(2);
                let [from, _to] = sys::pipe();
                for _ in 0..10 {
                    t.log("child", sys::vfork_child_closing(fds[0], from, fds[1]));
                    for fd in &fds {
                        send_all(*fd, b"alive");
                        t.log_text("data", &recv_exact(*fd, 2));
                    }
                }
                t.log("close", (sys::close(fds[0]), sys::close(fds[1])));
            },
            |t| {
                let fds = t.clients(2);
                for _ in 0..10 {
                    for fd in &fds {
                        recv_exact(*fd, 5);
                        send_all(*fd, b"ok");
                    }
                }
                t.log("ends", (sys::recv(fds[0], &mut [0; 1], 0), sys::recv(fds[1], &mut [0; 1], 0)));
            },
        ),
        pair(
            "process/environment-cleared",
            "clearenv and chdir with a live connection, and a new connection afterwards (Redis overwrites its environment)",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                sys::clear_environment();
                std::env::set_current_dir("/").expect("chdir");
                serve(t, fd, 100);
                t.tell("end");
                let second = t.accept(listener);
                t.drain(second, 8, 100_000);
            },
            |t| {
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                echo_rounds(t, fd);
                let second = t.connect(addr);
                t.pour(second, 8, 100_000);
                t.log("eof", sys::recv(second, &mut [0; 1], 0));
            },
        ),
        pair(
            "process/exit-handlers",
            "exit() with live connections and threads that use them: status 0, the peer gets EOF or a reset",
            |t| {
                let fds = t.servers(2);
                let busy = fds[1];
                std::thread::spawn(move || {
                    loop {
                        if sys::recv(busy, &mut [0; 64], 0).unwrap_or(0) == 0 || sys::send(busy, b"x", 0).is_err() {
                            return;
                        }
                    }
                });
                t.wait("running");
                t.say("exit");
                sys::exit_with_handlers(0);
            },
            |t| {
                let fds = t.clients(2);
                let busy = fds[1];
                sys::ignore_signal(libc::SIGPIPE);
                let thread = std::thread::spawn(move || {
                    while sys::send(busy, b"y", 0).is_ok() && sys::recv(busy, &mut [0; 64], 0).unwrap_or(0) > 0 {}
                });
                sys::sleep_ms(20);
                t.tell("running");
                t.log("first", sys::recv(fds[0], &mut [0; 1], 0));
                thread.join().expect("thread");
                t.say("second ended");
            },
        ),
    ]
}

/// Why a connection is back on TCP with which a forked child becomes another program: over RDMA its
/// maker takes it back, who does not hear what for.
fn of_a_child(why: &str) -> &str {
    if sys::over_rdma() { "inherited-by-fork" } else { why }
}

/// Has a program that is cat serve a connection on which 1000 bytes wait, and answers `own` of them
/// itself before.
fn exec_cat(t: &Ctx, program: &str, preloaded: bool, own: usize) {
    let fd = t.server();
    t.tell("send");
    await_bytes(fd, 1000);
    if own > 0 {
        let got = recv_exact(fd, own);
        t.log("own part", Pattern::new(6).first_error(0, &got));
        send_all(fd, &got);
    }
    let pid = t.exec_on(fd, program, &["cat"], preloaded);
    t.went_back(fd, of_a_child("stdio-stream"));
    t.log("close", sys::close(fd));
    t.log("cat", sys::wait_child(pid));
}

/// Sends 1000 and then 50,000 pattern bytes to something that echoes, and checks the echo to EOF.
fn cat_client(t: &Ctx) {
    let fd = t.client();
    t.wait("send");
    let bytes = Pattern::new(6).bytes(0, 51_000);
    send_all(fd, &bytes[..1000]);
    let echo = recv_exact(fd, 1000);
    t.log("first", Pattern::new(6).first_error(0, &echo));
    for part in bytes[1000..].chunks(5000) {
        send_all(fd, part);
    }
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    let mut receiver = t.receiver(fd, 6);
    receiver.received = 1000;
    while receiver.step(4000, 0).expect("recv") > 0 {}
    t.log("echo", receiver.verdict());
}

/// Waits for the client's 1000 bytes, which stay unread, and sends it 500, which it does not read
/// yet. Returns the former.
fn unread_both_ways(t: &Ctx, fd: Fd) -> Vec<u8> {
    await_bytes(fd, 1000);
    t.pour(fd, 7, 500);
    t.still_fast(fd);
    Pattern::new(6).bytes(0, 1000)
}

/// The server replaces itself by an echo, which has its connection under the same number.
fn become_echo(t: &Ctx, keep_preload: bool) {
    let fd = t.server();
    unread_both_ways(t, fd);
    t.tell(&sys::getpid().to_string());
    let (program, number) = (own_program(), fd.to_string());
    t.log("exec", sys::exec(&program, &[&program, "helper", "echo", &number], keep_preload));
}

/// Its peer, which reads nothing before the other program runs, and no end before its own.
fn echoed_by_another_program(t: &Ctx) {
    let fd = t.client();
    let bytes = Pattern::new(6).bytes(0, 51_000);
    send_all(fd, &bytes[..1000]);
    let pid = t.hear();
    let runs = || {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|c| c.windows(6).any(|w| w == b"helper"))
    };
    while !runs() {
        let _ = sys::poll(&[], 1);
    }
    t.drain(fd, 7, 500);
    t.drain(fd, 6, 1000);
    t.went_back(fd, "peer-asked-for-tcp");
    for part in bytes[1000..].chunks(5000) {
        send_all(fd, part);
    }
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    let mut receiver = t.receiver(fd, 6);
    receiver.received = 1000;
    while receiver.step(4000, 0).expect("recv") > 0 {}
    t.log("echo", receiver.verdict());
}
