//! Connections that come onto 0, 1 or 2 by the way: libc's streams read and write them there by
//! calls that nobody sees.

use super::*;

/// Echoes, in which both ends have long agreed on a ring.
const ROUNDS: usize = 500;
const PRINTED: &str = "by stdio";
const BEHIND: &[u8] = b"behind";

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "fds/dup-onto-stdin",
            "close(0), and a dup of a connection that comes to be 0: getchar has all its bytes",
            |t| {
                let fd = t.server();
                let mut receiver = t.receiver(fd, 1);
                feed(t, 1000);
                await_bytes(fd, 1000);
                let (twin, got) = without(0, || (sys::dup(fd), sys::getchars(1000)));
                t.log("dup", twin);
                receiver.accept(&got);
                t.went_back(fd, "stdio-stream");
                feed(t, 30_000);
                receiver.accept(&recv_exact(fd, 30_000));
                t.log("stream", receiver.verdict());
                t.log("close", sys::close(fd));
                t.tell("end");
            },
            feeder,
        )
        .demoted(),
        pair(
            "fds/dup-onto-stdout",
            "close(1), and F_DUPFD of a connection gives 1: what puts writes comes in its turn",
            |t| {
                let fd = t.server();
                send_all(fd, b"before, ");
                let (twin, printed) =
                    without(1, || (sys::fcntl(fd, F_DUPFD, 0), sys::put_line(PRINTED)));
                t.log("twin", (twin, printed));
                send_all(fd, BEHIND);
                t.went_back(fd, "stdio-stream");
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("all", read_to_end(fd));
            },
        )
        .demoted(),
        pair(
            "fds/made-on-stdio",
            "accept gives 1, and socket 0: used for long before puts writes there, and getchar reads",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let mut fd = -1;
                without(1, || {
                    fd = sys::accept(listener).expect("accept");
                    for _ in 0..ROUNDS {
                        let ask = recv_exact(fd, 4);
                        send_all(fd, &ask);
                    }
                    let _ = sys::put_line(PRINTED);
                    send_all(fd, BEHIND);
                    t.expect_reason(fd, &[("shm", "stdio-stream")]);
                });
                t.log("accepted as", fd);
            },
            |t| {
                let addr = t.hear_addr();
                let (mut fd, mut rest) = (-1, Vec::new());
                without(0, || {
                    fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    for i in 0..ROUNDS as u32 {
                        send_all(fd, &i.to_ne_bytes());
                        assert!(recv_exact(fd, 4) == i.to_ne_bytes(), "echo {i}");
                    }
                    rest = sys::getchars(PRINTED.len() + 1 + BEHIND.len());
                });
                t.log("connected as", fd);
                t.log_text("rest", &rest);
            },
        )
        .any_path()
        .demoted(),
    ]
}

/// What comes of `body` while that number is free to be given out. (It is the runner's.)
fn without<T>(number: Fd, body: impl FnOnce() -> T) -> T {
    let kept = sys::fcntl(number, F_DUPFD_CLOEXEC, 10).expect("F_DUPFD") as Fd;
    sys::close(number).expect("close");
    let result = body();
    sys::dup2(kept, number).expect("dup2");
    sys::close(kept).expect("close");
    result
}
