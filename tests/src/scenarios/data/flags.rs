//! Flags, control data, urgent data, and calls that are no stream's.

use super::*;
use crate::ctx::Ctx;

fn says_data(t: &Ctx) {
    let fd = t.client();
    send_all(fd, b"data");
    t.log("eof", sys::recv(fd, &mut [0; 8], 0));
}

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "data/dontwait",
            "MSG_DONTWAIT on nothing is EAGAIN on a blocking socket, for every receiving call",
            |t| {
                let fd = t.server();
                let (mut a, mut b) = ([0; 8], [0; 8]);
                t.log("recv", sys::recv(fd, &mut a, MSG_DONTWAIT));
                t.log("recvfrom", sys::recvfrom(fd, &mut a, MSG_DONTWAIT));
                t.log("recvmsg", sys::recvmsg(fd, &mut [&mut a, &mut b], MSG_DONTWAIT));
                t.log("recvmmsg", sys::recvmmsg(fd, &mut [&mut a, &mut b], MSG_DONTWAIT, None));
                t.log("preadv2 NOWAIT", sys::preadv2(fd, &mut [&mut a], -1, libc::RWF_NOWAIT));
                sys::set_nonblocking(fd, true);
                t.log("read", sys::read(fd, &mut a));
                t.log("readv", sys::readv(fd, &mut [&mut a, &mut b]));
                t.log("recv", sys::recv(fd, &mut a, 0));
                t.log("recv waitall", sys::recv(fd, &mut a, MSG_WAITALL));
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        pair(
            "data/trunc",
            "MSG_TRUNC on a stream discards the bytes and leaves the buffer alone",
            |t| {
                let fd = t.server();
                await_bytes(fd, 10);
                let mut buf = *b"........";
                t.log("trunc", sys::recv(fd, &mut buf[..4], MSG_TRUNC));
                t.log_text("buffer", &buf);
                let n = sys::recv(fd, &mut buf, 0).expect("recv");
                t.log_text("rest", &buf[..n]);
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"0123456789");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "data/out-of-band",
            "MSG_OOB: POLLPRI, the urgent byte apart, SIOCATMARK, the stream without it",
            |t| {
                let fd = t.server();
                t.log("nothing urgent", sys::recv(fd, &mut [0; 1], MSG_OOB));
                t.tell("go");
                t.log("pri", sys::poll_names(sys::await_events(fd, POLLPRI, 5000)));
                await_bytes(fd, 3);
                let mut urgent = [0; 4];
                let n = sys::recv(fd, &mut urgent, MSG_OOB).expect("urgent byte");
                t.log_text("urgent", &urgent[..n]);
                t.log("again", sys::recv(fd, &mut urgent, MSG_OOB));
                t.tell("more");
                let mut buf = [0; 16];
                let n = sys::recv(fd, &mut buf, 0).expect("recv");
                t.log_text("up to the mark", &buf[..n]);
                let mut mark = 0;
                let _ = sys::ioctl_int(fd, 0x8905, &mut mark);
                t.log("at mark", mark);
                t.log_text("after the mark", &recv_exact(fd, 3));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"abc");
                t.log("oob", sys::send(fd, b"!", MSG_OOB));
                t.sends_over_tcp(fd, "urgent-data");
                t.wait("more");
                send_all(fd, b"def");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/mark-behind-bytes",
            "an urgent byte behind unread ones: SIOCATMARK and sockatmark say no before these are read, and yes behind them",
            |t| {
                let fd = t.server();
                await_bytes(fd, 1000);
                t.tell("urgent");
                t.log("pri", sys::poll_names(sys::await_events(fd, POLLPRI, 5000)));
                let at_mark = || {
                    let mut mark = 0;
                    (sys::ioctl_int(fd, 0x8905, &mut mark).map(|_| mark), sys::at_mark(fd))
                };
                t.log("before", at_mark());
                recv_exact(fd, 999);
                t.log("still before", at_mark());
                recv_exact(fd, 1);
                t.log("at the mark", at_mark());
                t.log_text("behind it", &recv_exact(fd, 3));
                t.log("behind it", at_mark());
            },
            |t| {
                let fd = t.client();
                send_all(fd, &[7; 1000]);
                t.wait("urgent");
                t.log("oob", sys::send(fd, b"!", MSG_OOB));
                send_all(fd, b"end");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/out-of-band-inline",
            "SO_OOBINLINE: the urgent byte in its place",
            |t| {
                let fd = t.server();
                t.log("inline", sys::setopt(fd, SOL_SOCKET, libc::SO_OOBINLINE, 1));
                t.tell("go");
                t.wait("sent");
                t.log_text("in line", &recv_exact(fd, 7));
                t.log("oob", sys::recv(fd, &mut [0; 1], MSG_OOB));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"abc");
                t.log("oob", sys::send(fd, b"!", MSG_OOB));
                send_all(fd, b"def");
                t.tell("sent");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/message-header",
            "recvmsg and recvfrom on a stream: no address, no flags, no control data",
            |t| {
                let fd = t.server();
                await_bytes(fd, 10);
                t.log("recvfrom", sys::recvfrom(fd, &mut [0; 4], 0));
                let mut a = [0; 3];
                let mut b = [0; 10];
                t.log("recvmsg", sys::recvmsg_full(fd, &mut [&mut a, &mut b], 0));
                t.log("recvmsg on nothing", sys::recvmsg_full(fd, &mut [&mut a], MSG_DONTWAIT));
                t.tell("close");
                t.log("recvmsg at eof", sys::recvmsg_full(fd, &mut [&mut a], 0));
                t.log("recvfrom at eof", sys::recvfrom(fd, &mut a, 0));
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"0123456789");
                t.wait("close");
                t.log("close", sys::close(fd));
            },
        )
        .skip(&[("switch", "a receive may stop where the path changed")]),
        pair(
            "data/sendto-address",
            "sendto with an address on a connected socket",
            |t| {
                let fd = t.server();
                t.log_text("data", &recv_exact(fd, 6));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                let peer = sys::getpeername(fd).expect("getpeername");
                t.log("to the peer", sys::sendto(fd, b"abc", 0, Some(peer)));
                t.log("to another", sys::sendto(fd, b"def", 0, Some(Addr::V4([127, 0, 0, 9], 9))));
            },
        ),
        pair(
            "data/more-and-cork",
            "MSG_MORE and TCP_CORK may hold bytes back; the next send or the uncorking sends them",
            |t| {
                let fd = t.server();
                t.log_text("more", &recv_exact(fd, 8));
                t.tell("next");
                t.log_text("cork", &recv_exact(fd, 9));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("more", sys::send(fd, b"head", MSG_MORE));
                t.log("plain", sys::send(fd, b"tail", 0));
                t.wait("next");
                t.log("cork", sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1));
                t.log("get", sys::getopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK));
                for part in [b"abc", b"def", b"ghi"] {
                    t.log("send", sys::send(fd, part, 0));
                }
                t.log("uncork", sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0));
            },
        ),
        pair(
            "data/error-queue",
            "MSG_ERRQUEUE on nothing is EAGAIN, and does not take data",
            |t| {
                let fd = t.server();
                await_bytes(fd, 4);
                t.log("errqueue", sys::recvmsg_full(fd, &mut [&mut [0; 8]], MSG_ERRQUEUE));
                t.log_text("data", &recv_exact(fd, 4));
            },
            says_data,
        ),
        pair(
            "data/zero-copy",
            "MSG_ZEROCOPY: the bytes arrive and the completion is on the error queue",
            |t| {
                let fd = t.server();
                t.drain(fd, 18, 200_000);
                t.tell("drained");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_ZEROCOPY, 1));
                t.went_back(fd, "socket-option");
                t.option_counts(fd);
                let bytes = t.sender(fd, 18).upcoming(200_000);
                let mut at = 0;
                let mut calls = 0u32;
                while at < bytes.len() {
                    at += sys::send(fd, &bytes[at..], libc::MSG_ZEROCOPY).expect("zero copy");
                    calls += 1;
                }
                t.wait("drained");
                let mut completed = 0;
                while completed < calls {
                    assert!(sys::await_events(fd, 0, 5000) & POLLERR != 0, "no completion");
                    let got = sys::recvmsg_full(fd, &mut [&mut [0; 8]], MSG_ERRQUEUE).expect("completion");
                    let note = &got.control[0].2;
                    let word = |at: usize| u32::from_ne_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]]);
                    t.log("errno and origin", (word(0), note[4]));
                    // sock_extended_err: ee_info is the first, ee_data the last call of the range.
                    completed += word(12) - word(8) + 1;
                }
                t.log("all completed", completed == calls);
            },
        )
        .demoted(),
        pair(
            "data/bytes-in-queue-message",
            "TCP_INQ: recvmsg tells how much is left",
            |t| {
                let fd = t.server();
                t.log("set", sys::setopt(fd, libc::IPPROTO_TCP, 36, 1));
                t.went_back(fd, "socket-option");
                t.option_counts(fd);
                t.tell("go");
                await_bytes(fd, 100);
                let got = sys::recvmsg_full(fd, &mut [&mut [0; 30]], 0).expect("recvmsg");
                t.log("inq", (got.bytes, got.control));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, &[5; 100]);
                t.log("eof", sys::recv(fd, &mut [0; 8], 0).is_ok());
            },
        )
        .demoted(),
        pair(
            "data/peek-offset",
            "SO_PEEK_OFF: successive peeks advance",
            |t| {
                let fd = t.server();
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_PEEK_OFF, 2));
                t.went_back(fd, "socket-option");
                t.option_counts(fd);
                t.tell("go");
                await_bytes(fd, 9);
                let mut buf = [0; 3];
                for _ in 0..2 {
                    let n = sys::recv(fd, &mut buf, MSG_PEEK).unwrap_or(0);
                    t.log_text("peek", &buf[..n]);
                }
                t.log_text("data", &recv_exact(fd, 9));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"012345678");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        )
        .demoted(),
        pair(
            "data/control-behind-bytes",
            "a message with control data, sent behind others to a peer that is stopped, comes behind them",
            |t| {
                let fd = t.server();
                let peer: libc::pid_t = t.hear().parse().expect("pid");
                let bytes = Pattern::new(8).bytes(0, 21 * 512);
                sys::kill(peer, libc::SIGSTOP).expect("stop");
                for part in bytes[..20 * 512].chunks(512) {
                    send_all(fd, part);
                }
                let goes_on = std::thread::spawn(move || {
                    sys::sleep_ms(300);
                    sys::kill(peer, libc::SIGCONT)
                });
                t.log("sent", sys::sendmsg_with_control(fd, &[&bytes[20 * 512..]], 0));
                goes_on.join().expect("thread").expect("continue");
                t.sends_over_tcp(fd, "socket-option");
                t.tell("end");
            },
            |t| {
                let fd = t.client();
                t.tell(&sys::getpid().to_string());
                let got = recv_exact(fd, 21 * 512);
                t.log("first error", Pattern::new(8).first_error(0, &got));
                t.wait("end");
            },
        )
        .demoted(),
        pair(
            "data/control-behind-returned-bytes",
            "as before, where the receiver takes back what it has not read, and small buffers hold little of it",
            |t| {
                let listener = t.listener();
                sys::setopt(listener, SOL_SOCKET, libc::SO_SNDBUF, 8192).expect("SO_SNDBUF");
                t.publish(listener);
                let fd = t.accept(listener);
                let pattern = Pattern::new(9);
                let mut sent = 0;
                while let Ok(n) = sys::send(fd, &pattern.bytes(sent as u64, 1000), libc::MSG_DONTWAIT) {
                    sent += n;
                }
                t.tell(&(sent + 40_000).to_string());
                t.wait("taken back");
                let rest = pattern.bytes(sent as u64, 40_000);
                let sender = blocked(move || {
                    let mut at = 0;
                    while at < rest.len() {
                        at += sys::sendmsg_with_control(fd, &[&rest[at..]], 0).expect("sendmsg");
                    }
                });
                t.tell("read");
                sender.join().expect("thread");
                t.wait("all");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::setopt(fd, SOL_SOCKET, libc::SO_RCVBUF, 8192).expect("SO_RCVBUF");
                sys::connect(fd, addr).expect("connect");
                t.warm_client(fd);
                let total: usize = t.hear().parse().expect("number");
                sys::setopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 2).expect("SO_RCVLOWAT");
                t.tell("taken back");
                t.wait("read");
                // A reader that is slow: the sender has to wait for longer than the library waits
                // for it.
                sys::sleep_ms(200);
                let got = recv_exact(fd, total);
                t.log("first error", Pattern::new(9).first_error(0, &got));
                t.tell("all");
            },
        )
        .demoted(),
        pair(
            "data/not-seekable",
            "pread, pwrite, lseek and positioned vectors on a socket are ESPIPE",
            |t| {
                let fd = t.server();
                await_bytes(fd, 4);
                t.log("pread", sys::pread(fd, &mut [0; 4], 0));
                t.log("pwrite", sys::pwrite(fd, b"data", 0));
                t.log("lseek", sys::lseek(fd, 0, libc::SEEK_CUR));
                t.log("preadv2 at 0", sys::preadv2(fd, &mut [&mut [0; 4]], 0, 0));
                t.log("pwritev2 at 0", sys::pwritev2(fd, &[b"data"], 0, 0));
                t.log("ftruncate-like copy", sys::copy_file_range(fd, fd, 4));
                t.log_text("data", &recv_exact(fd, 4));
            },
            says_data,
        ),
        pair(
            "data/unknown-flags",
            "flags without a meaning for TCP are ignored or refused as the kernel does",
            |t| {
                let fd = t.server();
                await_bytes(fd, 12);
                let mut buf = [0; 4];
                t.log("MSG_CMSG_CLOEXEC", sys::recvmsg(fd, &mut [&mut buf], libc::MSG_CMSG_CLOEXEC));
                t.log("MSG_NOSIGNAL", sys::recv(fd, &mut buf, MSG_NOSIGNAL));
                t.log("MSG_CONFIRM", sys::recv(fd, &mut buf, libc::MSG_CONFIRM));
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.log("MSG_EOR", sys::send(fd, b"abcd", libc::MSG_EOR));
                t.log("MSG_DONTROUTE", sys::send(fd, b"efgh", libc::MSG_DONTROUTE));
                t.log("MSG_CONFIRM", sys::send(fd, b"ijkl", libc::MSG_CONFIRM));
            },
        ),
    ]
}
