//! Bytes of files and pipes: `sendfile`, `splice`, stdio.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "data/sendfile",
            "sendfile from a file to the socket, with and without an offset, between ordinary sends",
            |t| {
                let fd = t.server();
                t.drain(fd, 19, 200_000);
                t.drain(fd, 19, 200_000);
                t.log_text("after", &recv_exact(fd, 5));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 19).upcoming(200_000);
                let file = sys::anonymous_file(&bytes).expect("file");
                for sendfile in [sys::sendfile, sys::sendfile64] {
                    send_all(fd, &bytes[..1000]);
                    let mut offset = 1000;
                    while offset < 150_000 {
                        let left = (150_000 - offset) as usize;
                        sendfile(fd, file, Some(&mut offset), left).expect("sendfile");
                    }
                    t.log("offset", offset);
                    let _ = sys::lseek(file, 150_000, libc::SEEK_SET);
                    let mut left = 50_000;
                    while left > 0 {
                        left -= sendfile(fd, file, None, left).expect("sendfile");
                    }
                    t.log("position", sys::lseek(file, 0, libc::SEEK_CUR));
                }
                t.log("at the end of the file", sys::sendfile(fd, file, None, 100));
                t.log("from a socket", sys::sendfile(file, fd, None, 100));
                t.still_fast(fd);
                send_all(fd, b"after");
            },
        ),
        pair(
            "data/splice-out",
            "splice from a pipe to the socket, between ordinary sends",
            |t| {
                let fd = t.server();
                t.drain(fd, 20, 100_000);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 20).upcoming(100_000);
                let [from, to] = sys::pipe();
                let mut at = 0;
                while at < bytes.len() {
                    let part = &bytes[at..(at + 3000).min(bytes.len())];
                    if at % 2 == 0 {
                        sys::write(to, part).expect("write");
                        let mut left = part.len();
                        while left > 0 {
                            left -=
                                sys::splice(from, fd, left, libc::SPLICE_F_MOVE).expect("splice");
                        }
                    } else {
                        send_all(fd, part);
                    }
                    at += part.len() + 1;
                    if at <= bytes.len() {
                        send_all(fd, &bytes[at - 1..at]);
                    }
                }
                t.log("tee from a socket", sys::tee(fd, to, 10, 0));
                t.log("copy_file_range", sys::copy_file_range(fd, to, 10));
            },
        )
        .demoted(),
        pair(
            "data/splice-out-without-room",
            "splice from a pipe to a socket that has no room: it takes nothing, or waits",
            |t| {
                let fd = t.server();
                let total: u64 = t.hear().parse().expect("a count");
                let mut receiver = t.receiver(fd, 22);
                while receiver.received < total + 100 {
                    let room = (total + 100 - receiver.received).min(10_000) as usize;
                    receiver.accept(&recv_exact(fd, room));
                }
                t.log("right", receiver.verdict().ends_with("exact"));
                t.tell("read");
                t.log_text("behind it", &recv_exact(fd, 5));
            },
            |t| {
                let fd = t.client();
                let mut sender = t.sender(fd, 22);
                let [from, to] = sys::pipe();
                let mut sent = 0;
                loop {
                    match sys::send(fd, &sender.upcoming(1000), MSG_DONTWAIT) {
                        Ok(n) => {
                            sender.sent += n as u64;
                            sent += n;
                        }
                        // (What is on its way to the peer makes some room for a while.)
                        Err(_) if sys::await_events(fd, libc::POLLOUT, 100) != 0 => {}
                        Err(_) => match sys::send(fd, &sender.upcoming(1), MSG_DONTWAIT) {
                            Ok(n) => {
                                sender.sent += n as u64;
                                sent += n;
                            }
                            Err(_) => break,
                        },
                    }
                }
                sys::write(to, &sender.upcoming(100)).expect("write");
                sys::set_nonblocking(fd, true);
                t.log("full", sys::splice(from, fd, 100, 0));
                sys::set_nonblocking(fd, false);
                let _ = sys::set_timeval(fd, libc::SO_SNDTIMEO, 0, 100_000);
                t.log("not in time", sys::splice(from, fd, 100, 0));
                let _ = sys::set_timeval(fd, libc::SO_SNDTIMEO, 0, 0);
                let waits = blocked(move || sys::splice(from, fd, 100, 0));
                t.tell(&sent.to_string());
                t.log("room", waits.join().expect("thread"));
                t.wait("read");
                send_all(fd, b"after");
            },
        )
        .skip(&[("rdma", "a splice takes it to TCP, which has room")]),
        pair(
            "data/splice-out-that-waits",
            "splice into a connection that nobody reads: the others of the process go on meanwhile, and so does a close",
            |t| {
                let fds = t.servers(2);
                t.wait("waits");
                // Both want the client's library to give them back what is unread.
                t.log("option", sys::setopt(fds[0], libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2));
                let mut other = t.receiver(fds[1], 24);
                let stream = sys::Stream::fdopen(sys::dup(fds[1]).expect("dup"), "r").expect("fdopen");
                let mut got = vec![0; 1000];
                t.log("read", stream.read(&mut got));
                other.accept(&got);
                t.log("of the other", other.verdict());
                t.tell("close");
                t.wait("closed");
                let mut receiver = t.receiver(fds[0], 23);
                while receiver.step(100_000, 0).expect("recv") > 0 {}
                t.log("more than a ring", receiver.received > 1000);
                t.log("right", receiver.error);
            },
            |t| {
                let fds = t.clients(2);
                let [fd, other] = [fds[0], fds[1]];
                sys::setopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 65_536).expect("SO_SNDBUF");
                let bytes = Pattern::new(23).bytes(0, 8 << 20);
                send_all(fd, &bytes[..1000]);
                send_all(other, &Pattern::new(24).bytes(0, 1000));
                let [from, to] = sys::pipe();
                std::thread::spawn(move || sys::write(to, &bytes[1000..]));
                let splices = blocked(move || {
                    loop {
                        if let Err(e) = sys::splice(from, fd, 1 << 20, 0) {
                            return e;
                        }
                    }
                });
                t.tell("waits");
                t.wait("close");
                t.went_back(fd, "splice");
                t.log("close", sys::close(fd));
                t.tell("closed");
                t.log("splice", splices.join().expect("thread"));
            },
        )
        .demoted(),
        pair(
            "data/splice-in",
            "splice from the socket to a pipe, between ordinary reads, also when bytes were waiting",
            |t| {
                let fd = t.server();
                let [from, to] = sys::pipe();
                await_bytes(fd, 20_000);
                let mut receiver = t.receiver(fd, 21);
                receiver.accept(&recv_exact(fd, 777));
                while receiver.received < 100_000 {
                    let room = (100_000 - receiver.received).min(4000) as usize;
                    let n = sys::splice(fd, to, room, 0).expect("splice");
                    receiver.accept(&recv_pipe(from, n));
                    let room = (100_000 - receiver.received).min(100) as usize;
                    if room > 0 {
                        receiver.accept(&recv_exact(fd, room));
                    }
                }
                t.log("stream", receiver.verdict());
                t.expect_reason(fd, &[("shm", "none")]);
                sys::set_nonblocking(fd, true);
                t.log("nothing", sys::splice(fd, to, 100, libc::SPLICE_F_NONBLOCK));
                sys::set_nonblocking(fd, false);
                // That flag is about the pipe: bytes of the socket are waited for.
                let _ = sys::set_timeval(fd, libc::SO_RCVTIMEO, 0, 100_000);
                let began = Instant::now();
                t.log("nothing yet", sys::splice(fd, to, 100, libc::SPLICE_F_NONBLOCK));
                t.log("waited", began.elapsed() >= Duration::from_millis(90));
                let _ = sys::set_timeval(fd, libc::SO_RCVTIMEO, 0, 0);
                t.tell("close");
                t.log("eof", sys::splice(fd, to, 100, 0));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 21, 100_000);
                t.wait("close");
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "data/splice-in-beside-a-receiver",
            "a splice waits for room in its pipe while another thread receives: each byte goes one way",
            |t| {
                let fd = t.server();
                let [from, to] = sys::pipe();
                sys::set_nonblocking(to, true);
                let mut full = 0;
                while let Ok(n) = sys::write(to, &[b'-'; 4096]) {
                    full += n;
                }
                sys::set_nonblocking(to, false);
                t.tell("go");
                await_bytes(fd, 80);
                let splicer = blocked(move || sys::splice(fd, to, 100, 0));
                t.log_text("received", &recv_exact(fd, 60));
                assert!(recv_pipe(from, full).iter().all(|b| *b == b'-'));
                t.log("spliced", splicer.join().expect("thread"));
                t.log_text("through the pipe", &recv_pipe(from, 20));
                t.log("no more", sys::recv(fd, &mut [0; 8], MSG_DONTWAIT));
                // Nobody reads any more: nothing is taken.
                t.tell("again");
                await_bytes(fd, 5);
                sys::ignore_signal(libc::SIGPIPE);
                t.log("close", sys::close(from));
                t.log("nobody reads", sys::splice(fd, to, 100, 0));
                t.log_text("is still there", &recv_exact(fd, 5));
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                let bytes: Vec<u8> = (b'!'..b'!' + 80).collect();
                send_all(fd, &bytes);
                t.wait("again");
                send_all(fd, b"after");
                t.wait("end");
            },
        ),
        pair(
            "data/stdio",
            "fdopen on the socket: stdio's own reads and writes, after bytes were waiting",
            |t| {
                let fd = t.server();
                await_bytes(fd, 6);
                let stream = Stream::fdopen(fd, "r+").expect("fdopen");
                t.went_back(fd, "stdio-stream");
                for _ in 0..3 {
                    t.log("line", stream.gets());
                    t.log("flush", stream.flush());
                    t.log("puts", stream.puts("answer\n"));
                    t.log("flush", stream.flush());
                }
                let mut buf = vec![0; 100_000];
                let n = stream.read(&mut buf);
                let mut check = t.receiver(fd, 22);
                check.accept(&buf[..n]);
                t.log("fread", check.verdict());
                t.log("close", stream.close());
                t.log("closed", sys::of_closed(|| sys::recv(fd, &mut [0; 1], 0)));
            },
            |t| {
                let fd = t.client();
                for i in 0..3 {
                    send_all(fd, format!("ask {i}\n").as_bytes());
                    t.log_text("answer", &recv_exact(fd, 7));
                }
                t.pour(fd, 22, 100_000);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/stdio-writer",
            "fdopen for writing: large fwrite, and the close of the stream is the EOF",
            |t| {
                let fd = t.server();
                t.drain_to_end(fd, 23);
            },
            |t| {
                let fd = t.client();
                let bytes = t.sender(fd, 23).upcoming(300_000);
                let stream = Stream::fdopen(fd, "w").expect("fdopen");
                t.went_back(fd, "stdio-stream");
                for part in bytes.chunks(7001) {
                    assert!(stream.write(part) == part.len());
                }
                t.log("close", stream.close());
            },
        )
        .demoted(),
    ]
}

fn recv_pipe(fd: i32, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let mut at = 0;
    while at < len {
        at += sys::read(fd, &mut buf[at..]).expect("read the pipe");
    }
    buf
}
