//! Children that share this memory, and become other programs: what they do to their descriptors
//! is not done to ours.

use super::*;

/// The number under which the program has the connection.
const GIVEN: Fd = 9;

/// How a child comes by it there.
const WAYS: [fn(Fd) -> bool; 4] = [
    |fd| sys::dup2(fd, GIVEN).is_ok(),
    |fd| sys::dup3(fd, GIVEN - 1, libc::O_CLOEXEC).is_ok() && sys::dup2(GIVEN - 1, GIVEN).is_ok(),
    |fd| sys::fcntl(fd, libc::F_DUPFD, GIVEN) == Ok(GIVEN as usize),
    |fd| sys::dup(fd).is_ok_and(|twin| sys::dup2(twin, GIVEN).is_ok()),
];

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "process/vfork-child-duplicates",
            "a vfork child duplicates a connection that is close-on-exec, and becomes another program: that has it whole",
            |t| {
                let fds = t.servers(WAYS.len());
                for fd in &fds {
                    t.log("cloexec", sys::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC));
                }
                for (fd, way) in fds.into_iter().zip(WAYS) {
                    answered_by_shell(t, fd, &|script, out| {
                        sys::vfork_child_shell(script, out, &|| way(fd))
                    });
                    t.went_back(fd, "inherited-by-exec");
                    t.log("close", sys::close(fd));
                }
            },
            |t| t.clients(WAYS.len()).into_iter().for_each(|fd| asks_shell(t, fd)),
        )
        .demoted(),
        pair(
            "process/vfork-child-with-other-numbers",
            "a vfork child has another connection under the number of one, and becomes a program that uses that: ours go on as they were",
            |t| {
                let fds = t.servers(2);
                let [over, fd] = [fds[0], fds[1]];
                t.log("cloexec", sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC));
                t.tell("send");
                for fd in &fds {
                    await_bytes(*fd, BEFORE.len());
                }
                let [from, to] = sys::pipe();
                let script = "echo from the child";
                let pid = sys::vfork_child_shell(script, to, &|| {
                    sys::dup2(from, over).is_ok() && sys::dup2(over, GIVEN).is_ok()
                });
                sys::close(to).expect("close");
                t.log("the shell", read_to_end(from));
                t.log("status", sys::wait_child(pid.expect("a child")));
                t.still_fast(over);
                for fd in &fds {
                    t.log_text("before", &recv_exact(*fd, BEFORE.len()));
                    send_all(*fd, BEFORE);
                }
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                t.wait("send");
                for fd in &fds {
                    send_all(*fd, BEFORE);
                }
                for fd in &fds {
                    t.log_text("echo", &recv_exact(*fd, BEFORE.len()));
                }
                t.meet("end");
            },
        ),
        pair(
            "process/vfork-child-exchanges",
            "a vfork child has another connection under the number of one whose last bytes are unread, and becomes a program: neither is broken off",
            |t| {
                let fds = t.servers(2);
                let [other, over] = [fds[0], fds[1]];
                t.log("cloexec", sys::fcntl(other, libc::F_SETFD, libc::FD_CLOEXEC));
                t.tell("send");
                await_bytes(over, BEFORE.len());
                sys::await_events(over, libc::POLLRDHUP, -1);
                let [from, to] = sys::pipe();
                let pid = sys::vfork_child_shell("exit 7", to, &|| sys::dup2(other, over).is_ok());
                t.log("status", sys::wait_child(pid.expect("a child")));
                t.log_text("left", &recv_exact(over, BEFORE.len()));
                t.log("its end", sys::recv(over, &mut [0; 8], 0));
                t.tell("more");
                t.log_text("the other's", &recv_exact(other, BEFORE.len()));
                let _ = (sys::close(from), sys::close(to));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                t.wait("send");
                send_all(fds[1], BEFORE);
                t.log("shutdown", sys::shutdown(fds[1], libc::SHUT_WR));
                t.wait("more");
                send_all(fds[0], BEFORE);
                t.meet("end");
            },
        )
        .demoted(),
    ]
}

/// A shell has the connection under [`GIVEN`]: says a word there, and shows what comes.
fn answered_by_shell(t: &Ctx, fd: Fd, start: &dyn Fn(&str, Fd) -> Result<libc::pid_t, sys::E>) {
    t.tell("send");
    await_bytes(fd, BEFORE.len());
    let [from, to] = sys::pipe();
    let script = format!("echo word >&{GIVEN}; cat <&{GIVEN}");
    let pid = start(&script, to).expect("a child");
    sys::close(to).expect("close");
    t.log("came to the shell", read_to_end(from));
    t.log("status", sys::wait_child(pid));
    sys::close(from).expect("close");
}

const BEFORE: &[u8] = b"sent before, ";

fn asks_shell(t: &Ctx, fd: Fd) {
    t.wait("send");
    send_all(fd, BEFORE);
    t.log_text("from the shell", &recv_exact(fd, 5));
    send_all(fd, b"and behind");
    t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 8], 0));
}
