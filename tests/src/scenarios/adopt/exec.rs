//! Connections that go on in another program.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "adopt/exec",
            "accept, fork, and the child becomes another program (sshd), which serves; the parent closes",
            |t| {
                let fd = accept_one(t);
                let child =
                    t.helper("serve-all", &[&fd.to_string(), warms_up(t)], true, None);
                closes_copy(t, fd);
                t.log("child", child.join());
            },
            client_of_another,
        ),
        pair(
            "adopt/exec-inetd",
            "the same, with the connection as standard input, which the program moves elsewhere",
            |t| {
                let fd = accept_one(t);
                sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).expect("fcntl");
                let child = t.helper("serve-all-inetd", &[warms_up(t)], true, Some(fd));
                closes_copy(t, fd);
                t.log("child", child.join());
            },
            client_of_another,
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
                shuts_down(t, fd);
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
                closes_copy(t, fd);
                t.log("child", child.join());
            },
            client_of_another,
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
                keeps_and_writes(t, fd, "parent", "inherited-by-fork");
                t.log("child", child.join());
                send_all(fd, b"the end");
                t.log("close", sys::close(fd));
            },
            |t| hears_who_kept_it(t, "parent"),
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
    ]
}
