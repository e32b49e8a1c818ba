//! Socket options: they read back as the kernel's, and data flows whatever is set.

use crate::ctx::{Ctx, NETACC, await_bytes, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::raw;
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, E, Fd};
use libc::{IPPROTO_IP, IPPROTO_TCP, MSG_DONTWAIT, SOL_SOCKET};

/// Sets and reads back integer options on a connection, with an exchange after each.
const INTEGERS: &[(&str, i32, i32, i32)] = &[
    ("TCP_NODELAY", IPPROTO_TCP, libc::TCP_NODELAY, 1),
    ("TCP_NODELAY", IPPROTO_TCP, libc::TCP_NODELAY, 0),
    ("SO_KEEPALIVE", SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ("TCP_KEEPIDLE", IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
    ("TCP_KEEPINTVL", IPPROTO_TCP, libc::TCP_KEEPINTVL, 7),
    ("TCP_KEEPCNT", IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
    ("TCP_USER_TIMEOUT", IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 30_000),
    ("TCP_SYNCNT", IPPROTO_TCP, libc::TCP_SYNCNT, 3),
    ("TCP_LINGER2", IPPROTO_TCP, libc::TCP_LINGER2, 5),
    ("TCP_QUICKACK", IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    ("TCP_NOTSENT_LOWAT", IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 16_384),
    ("SO_SNDBUF", SOL_SOCKET, libc::SO_SNDBUF, 50_000),
    ("SO_RCVBUF", SOL_SOCKET, libc::SO_RCVBUF, 60_000),
    ("SO_SNDBUF minimum", SOL_SOCKET, libc::SO_SNDBUF, 1),
    ("SO_RCVBUF minimum", SOL_SOCKET, libc::SO_RCVBUF, 1),
    ("SO_SNDBUF large", SOL_SOCKET, libc::SO_SNDBUF, 1 << 20),
    ("SO_RCVBUF large", SOL_SOCKET, libc::SO_RCVBUF, 1 << 20),
    ("SO_REUSEADDR", SOL_SOCKET, libc::SO_REUSEADDR, 1),
    ("SO_OOBINLINE", SOL_SOCKET, libc::SO_OOBINLINE, 1),
    ("SO_OOBINLINE", SOL_SOCKET, libc::SO_OOBINLINE, 0),
    ("SO_PRIORITY", SOL_SOCKET, libc::SO_PRIORITY, 3),
    ("SO_TIMESTAMP", SOL_SOCKET, libc::SO_TIMESTAMP, 1),
    ("SO_TIMESTAMP", SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    ("IP_TOS", IPPROTO_IP, libc::IP_TOS, 0x10),
    ("IP_TTL", IPPROTO_IP, libc::IP_TTL, 60),
];

/// Asks what becomes of `fd`, and says whether that is so.
fn asked(t: &Ctx, fd: Fd) {
    let word =
        |bytes: &[u8], at: usize| bytes[at * 4..].first_chunk().map(|w| i32::from_ne_bytes(*w));
    let is_so = match sys::getopt_bytes(fd, NETACC.0, NETACC.1, 312) {
        Err(E(libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => !t.waits_until_fast(),
        Ok(told) if told.len() == 312 && t.waits_until_fast() => {
            let path = std::env::var("NACC_PATHS").unwrap_or_default();
            let path = if path == "rdma" { 2 } else { 1 };
            (0..6).map(|at| word(&told, at)).eq([1, 1, path, path, 0, 0].map(Some))
                && told[24..].starts_with(b"none\0")
        }
        Ok(told) => told.len() == 312 && word(&told, 0) == Some(1) && told[24] != 0,
        Err(_) => false,
    };
    t.log("is so", is_so);
}

/// The bytes of an int.
const fn int(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

/// What lies unread when TCP_ZEROCOPY_RECEIVE is asked, and room for it.
const UNREAD: usize = 20_000;
const MAPPED: usize = 1 << 16;

/// TCP_ZEROCOPY_RECEIVE: how many bytes are in the pages, and how many behind them are to be
/// received otherwise.
fn zerocopy(fd: Fd, mapped: *const u8) -> Result<(usize, usize), E> {
    // struct tcp_zerocopy_receive: address, length, recv_skip_hint.
    let mut asked = [0; 16];
    asked[..8].copy_from_slice(&(mapped as u64).to_ne_bytes());
    asked[8..12].copy_from_slice(&(MAPPED as u32).to_ne_bytes());
    sys::getopt_with(fd, IPPROTO_TCP, 35, &mut asked)?;
    let word = |at: usize| asked[at..].first_chunk().map_or(0, |w| u32::from_ne_bytes(*w)) as usize;
    Ok((word(8), word(12)))
}

/// CLOCK_MONOTONIC, no flags.
const TXTIME: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

/// What only TCP has: with a value that changes nothing, if there is one, then with one that sends
/// the connection back, then as it was before, where it would be in the way. Also where this
/// kernel does not know it, or refuses it.
type OnlyTcp = (&'static str, i32, i32, Option<i32>, &'static [u8], Option<i32>);
const ONLY_TCP: &[OnlyTcp] = &[
    ("SO_RCVLOWAT", SOL_SOCKET, libc::SO_RCVLOWAT, Some(1), &int(2), None),
    ("SO_OOBINLINE", SOL_SOCKET, libc::SO_OOBINLINE, Some(0), &int(1), None),
    ("SO_ZEROCOPY", SOL_SOCKET, libc::SO_ZEROCOPY, Some(0), &int(1), None),
    ("SO_TXTIME", SOL_SOCKET, libc::SO_TXTIME, None, &TXTIME, None),
    ("SO_PEEK_OFF", SOL_SOCKET, libc::SO_PEEK_OFF, Some(-1), &int(0), None),
    ("SO_TIMESTAMP", SOL_SOCKET, 29, Some(0), &int(1), None),
    ("SO_TIMESTAMPNS", SOL_SOCKET, 35, Some(0), &int(1), None),
    ("SO_TIMESTAMPING", SOL_SOCKET, 37, Some(0), &int(8), None),
    ("SO_TIMESTAMP_NEW", SOL_SOCKET, 63, Some(0), &int(1), None),
    ("SO_TIMESTAMPNS_NEW", SOL_SOCKET, 64, Some(0), &int(1), None),
    ("SO_TIMESTAMPING_NEW", SOL_SOCKET, 65, Some(0), &int(8), None),
    ("TCP_REPAIR", IPPROTO_TCP, 19, None, &int(1), Some(0)),
    ("TCP_ULP", IPPROTO_TCP, libc::TCP_ULP, None, b"tls", None),
    ("TCP_INQ", IPPROTO_TCP, 36, None, &int(1), None),
    ("TCP_TX_DELAY", IPPROTO_TCP, 37, None, &int(1), None),
    ("IP_XFRM_POLICY", IPPROTO_IP, 17, None, &int(0), None),
    ("IP_IPSEC_POLICY", IPPROTO_IP, 16, None, &int(0), None),
    ("IPV6_XFRM_POLICY", libc::IPPROTO_IPV6, 35, None, &int(0), None),
    ("TCP_MD5SIG", IPPROTO_TCP, libc::TCP_MD5SIG, None, &MD5_OF_ANOTHER, None),
    ("TCP_AO_ADD_KEY", IPPROTO_TCP, 38, None, &int(0), None),
    ("TCP_AO_DEL_KEY", IPPROTO_TCP, 39, None, &int(0), None),
    ("TCP_AO_INFO", IPPROTO_TCP, 40, None, &int(0), None),
    ("TCP_AO_GET_KEYS", IPPROTO_TCP, 41, None, &int(0), None),
    ("IP_TRANSPARENT", IPPROTO_IP, libc::IP_TRANSPARENT, Some(0), &int(1), None),
    ("IPV6_TRANSPARENT", libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, None, &int(1), None),
];

/// A tcp_md5sig with a key for 127.0.0.9.
const MD5_OF_ANOTHER: [u8; 216] = {
    let mut key = [0; 216];
    key[0] = libc::AF_INET as u8;
    key[4] = 127;
    key[7] = 9;
    // tcpm_keylen, behind the address, the flags, and the length of a prefix.
    key[130] = 4;
    key[136] = b'k';
    key
};

const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;

/// What the kernel has kept of a connection's SYN: how long it is and how it begins. Asked with too
/// little room, with enough, and again.
fn saved_syn(t: &Ctx, label: &str, fd: Fd) {
    t.log(label, sys::getopt(fd, IPPROTO_TCP, TCP_SAVE_SYN));
    for room in [8, 200, 200] {
        let syn = sys::getopt_bytes(fd, IPPROTO_TCP, TCP_SAVED_SYN, room);
        t.log(label, syn.map(|s| (s.len(), s.first().map(|b| b >> 4))));
    }
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "options/timeouts-are-the-connection's",
            "a connection that does not block when it is promoted, and then does: its own SO_RCVTIMEO and SO_SNDTIMEO count, set before connect, on the listener, or never; not those of one that was closed before",
            |t| {
                for set in [false, true] {
                    let listener = t.listener();
                    if set {
                        t.log("set", sys::set_timeout(listener, libc::SO_RCVTIMEO, 40));
                    }
                    t.publish(listener);
                    // Short ones, on all that is used again below.
                    if !set {
                        let fds: Vec<Fd> = (0..4).map(|_| t.accept(listener)).collect();
                        for fd in fds {
                            t.log(
                                "short",
                                (
                                    sys::set_timeout(fd, libc::SO_RCVTIMEO, 30),
                                    sys::set_timeout(fd, libc::SO_SNDTIMEO, 30),
                                ),
                            );
                            t.log("ends", sys::recv(fd, &mut [0; 1], 0));
                            t.log("close", sys::close(fd));
                        }
                        t.meet("closed");
                    }
                    // (The peer may come later than the listener's own time-out.)
                    sys::await_events(listener, libc::POLLIN, 10_000);
                    let fd = sys::accept4(listener, libc::SOCK_NONBLOCK).expect("accept");
                    t.warm_server_polling(fd);
                    sys::set_nonblocking(fd, false);
                    receives_behind(t, fd, set);
                    t.meet("next");
                }
            },
            |t| {
                for set in [false, true] {
                    let addr = t.hear_addr();
                    if !set {
                        let fds: Vec<Fd> = (0..4).map(|_| t.connect(addr)).collect();
                        t.meet("closed");
                        for fd in fds {
                            t.log("close", sys::close(fd));
                        }
                    }
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    if set {
                        t.log("set", sys::set_timeout(fd, libc::SO_RCVTIMEO, 40));
                    }
                    sys::connect(fd, addr).expect("connect");
                    sys::set_nonblocking(fd, true);
                    t.warm_client_polling(fd);
                    sys::set_nonblocking(fd, false);
                    sends_behind(t, fd);
                    receives_behind_own(t, fd, set);
                    t.meet("next");
                }
            },
        ),
        pair(
            "options/saved-syn",
            "TCP_SAVE_SYN and TCP_SAVED_SYN of one that never sets it, and of one that does: before listen, after it, and no more",
            |t| {
                let connection = |label: &str, listener| {
                    t.log(label, sys::getopt(listener, IPPROTO_TCP, TCP_SAVE_SYN));
                    t.publish(listener);
                    let fd = sys::accept(listener).expect("accept");
                    saved_syn(t, label, fd);
                    t.warm_server(fd);
                    saved_syn(t, label, fd);
                    t.drain(fd, 1, 100_000);
                    sys::close(fd).expect("close");
                };
                let first = t.listener();
                connection("not used", first);
                let second =
                    sys::socket(sys::home().family(), libc::SOCK_STREAM, 0).expect("socket");
                t.log("set", sys::setopt(second, IPPROTO_TCP, TCP_SAVE_SYN, 1));
                sys::bind(second, sys::home()).expect("bind");
                sys::listen(second, 8).expect("listen");
                connection("before listen", second);
                connection("another one's use", first);
                t.log("set", sys::setopt(first, IPPROTO_TCP, TCP_SAVE_SYN, 1));
                connection("after listen", first);
                t.log("set", sys::setopt(first, IPPROTO_TCP, TCP_SAVE_SYN, 0));
                t.log("set", sys::setopt(first, IPPROTO_TCP, TCP_SAVE_SYN, 7));
                connection("no more", first);
            },
            |t| {
                for _ in 0..5 {
                    let fd = t.client();
                    saved_syn(t, "connector", fd);
                    t.pour(fd, 1, 100_000);
                    sys::close(fd).expect("close");
                }
            },
        )
        // (Over RDMA the connections of a server that uses it stay on TCP: nothing proves them.)
        .only_shm(),
        pair(
            "options/saved-syn-of-one-in-use",
            "TCP_SAVE_SYN is set on a listener that has served connections, each closed in good order: the SYN of the next one is kept",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                for _ in 0..4 {
                    let fd = t.accept(listener);
                    t.log("end", sys::recv(fd, &mut [0; 1], 0));
                    sys::close(fd).expect("close");
                    t.meet("closed");
                }
                t.log("set", sys::setopt(listener, IPPROTO_TCP, TCP_SAVE_SYN, 1));
                t.meet("set");
                let fd = t.accept(listener);
                saved_syn(t, "next", fd);
                sys::close(fd).expect("close");
            },
            |t| {
                let addr = t.hear_addr();
                for _ in 0..4 {
                    let fd = t.connect(addr);
                    sys::close(fd).expect("close");
                    t.meet("closed");
                }
                t.meet("set");
                let fd = t.connect(addr);
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
                sys::close(fd).expect("close");
            },
        )
        .only_shm(),
        pair(
            "options/asked",
            "what becomes of the connection (netacc.h): the kernel's refusal, or the library's answer, at both ends",
            |t| {
                let fd = t.server();
                asked(t, fd);
                t.meet("asked");
                sys::close(fd).expect("close");
            },
            |t| {
                let fd = t.client();
                asked(t, fd);
                t.meet("asked");
                t.log("closed", sys::getopt_bytes(fd + 100, NETACC.0, NETACC.1, 24));
            },
        ),
        pair(
            "options/integers",
            "integer options read back as from the kernel (SO_SNDBUF doubled), and bytes flow after each",
            |t| {
                let fd = t.server();
                for (label, level, name, value) in INTEGERS {
                    let set = sys::setopt(fd, *level, *name, *value);
                    t.log(label, (set, sys::getopt(fd, *level, *name)));
                    send_all(fd, b"ping");
                    t.log_text("answer", &recv_exact(fd, 4));
                }
                t.drain(fd, 1, 300_000);
            },
            |t| {
                let fd = t.client();
                for _ in INTEGERS {
                    recv_exact(fd, 4);
                    send_all(fd, b"pong");
                }
                t.pour(fd, 1, 300_000);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "options/only-tcp",
            "options that only TCP has, set one by one on new connections: the kernel's own answer, and bytes flow",
            |t| {
                for (name, level, option, idle, value, after) in ONLY_TCP {
                    let fd = t.server();
                    if let Some(idle) = idle {
                        t.log(name, sys::setopt(fd, *level, *option, *idle));
                        t.still_fast(fd);
                    }
                    t.log(name, sys::setopt_bytes(fd, *level, *option, value));
                    t.went_back(fd, "socket-option");
                    if let Some(after) = after {
                        t.log(name, sys::setopt(fd, *level, *option, *after));
                    }
                    send_all(fd, b"ping");
                    t.log_text("answer", &recv_exact(fd, 4));
                    t.log("close", sys::close(fd));
                }
            },
            |t| {
                for _ in ONLY_TCP {
                    let fd = t.client();
                    recv_exact(fd, 4);
                    t.went_back(fd, "peer-asked-for-tcp");
                    send_all(fd, b"pong");
                    t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                }
            },
        )
        .demoted(),
        pair(
            "options/zerocopy-receive",
            "TCP_ZEROCOPY_RECEIVE asked while bytes are unread: they are there for it, and by it and recv they come in order",
            |t| {
                let fd = t.server();
                await_bytes(fd, UNREAD);
                let mapped = sys::map(fd, MAPPED).expect("mmap");
                let first = zerocopy(fd, mapped).expect("TCP_ZEROCOPY_RECEIVE");
                t.log("there", first.0 + first.1 > 0);
                let (pattern, mut at, mut next) = (Pattern::new(9), 0, first);
                while at < UNREAD {
                    let (in_pages, behind) = next;
                    // SAFETY: the kernel has put so many bytes there, which nobody changes.
                    let there = unsafe { std::slice::from_raw_parts(mapped, in_pages) };
                    let wrong = pattern.first_error(at as u64, there);
                    at += in_pages;
                    let mut buf = vec![0; behind.min(UNREAD - at)];
                    let got = if buf.is_empty() { 0 } else { sys::recv(fd, &mut buf, 0).expect("recv") };
                    let wrong = wrong.or(pattern.first_error(at as u64, &buf[..got]));
                    if let Some(wrong) = wrong {
                        t.log("WRONG", wrong);
                    }
                    at += got;
                    next = zerocopy(fd, mapped).expect("TCP_ZEROCOPY_RECEIVE");
                }
                t.log("left", next);
                t.went_back(fd, "socket-option");
                send_all(fd, b"ping");
                t.log_text("answer", &recv_exact(fd, 4));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 9, UNREAD);
                recv_exact(fd, 4);
                send_all(fd, b"pong");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "options/zerocopy-receive-behind-the-end",
            "the same when the peer has shut down: it says that there is something, and recv has all",
            |t| {
                let fd = t.server();
                await_bytes(fd, UNREAD);
                sys::await_events(fd, libc::POLLRDHUP, 5_000);
                let mapped = sys::map(fd, MAPPED).expect("mmap");
                let (in_pages, behind) = zerocopy(fd, mapped).expect("TCP_ZEROCOPY_RECEIVE");
                t.log("there", in_pages + behind > 0);
                // SAFETY: the kernel has put so many bytes there, which nobody changes.
                let mut all = unsafe { std::slice::from_raw_parts(mapped, in_pages) }.to_vec();
                let mut buf = vec![0; UNREAD];
                while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
                    all.extend_from_slice(&buf[..n]);
                }
                t.log("all", (all.len(), Pattern::new(9).first_error(0, &all)));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 9, UNREAD);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .demoted(),
        pair(
            "options/given-to-the-kernel",
            "requests that make the kernel a connection's user, of what has no such device: the kernel's refusal, with every byte readable there (past libc)",
            |t| {
                let fd = t.server();
                await_bytes(fd, 1000);
                let device = sys::open("/dev/null", libc::O_RDWR).expect("open");
                t.log("NBD_SET_SOCK", sys::ioctl(device, 0xab00, fd as usize));
                let mut got = vec![0; 1000];
                let mut at = 0;
                while at < got.len() {
                    at += raw::read(fd, &mut got[at..]).expect("read");
                }
                t.log("first error", Pattern::new(9).first_error(0, &got));
                t.went_back(fd, "passed-by-scm-rights");
                send_all(fd, b"answer");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 9, 1000);
                t.log_text("answer", &recv_exact(fd, 6));
                t.log("close", sys::close(fd));
            },
        )
        .demoted(),
        pair(
            "options/negative-timeouts",
            "a negative SO_RCVTIMEO or SO_SNDTIMEO that is set on a socket before it is connected, or on a listener: calls wait as the kernel says",
            |t| {
                for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                    let listener = t.listener();
                    t.log("set", sys::set_timeval(listener, name, -1, 0));
                    t.publish(listener);
                    // (What it accepts does not wait either.)
                    sys::await_events(listener, libc::POLLIN, 10_000);
                    let fd = sys::accept(listener).expect("accept");
                    t.warm_server_polling(fd);
                    t.went_back(fd, "socket-option");
                    t.log("close", (sys::close(listener), sys::recv(fd, &mut [0; 1], MSG_DONTWAIT)));
                    t.meet("next");
                    sys::close(fd).expect("close");
                    let fd = t.server();
                    t.meet("done");
                    sys::close(fd).expect("close");
                }
            },
            |t| {
                for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                    let fd = t.client();
                    t.meet("next");
                    sys::close(fd).expect("close");
                    let addr = t.hear_addr();
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    t.log("set", sys::set_timeval(fd, libc::SO_RCVTIMEO, -1, 0).is_ok());
                    t.log("set", sys::set_timeval(fd, name, -1, 0));
                    t.log("connect", sys::connect(fd, addr).is_ok());
                    sys::await_events(fd, libc::POLLOUT, 10_000);
                    t.warm_client_polling(fd);
                    t.went_back(fd, "socket-option");
                    t.meet("done");
                    sys::close(fd).expect("close");
                }
            },
        )
        .any_path()
        .demoted(),
        pair(
            "options/counters-of-the-kernel",
            "TCP_INFO and SIOCOUTQ count what TCP carries: all bytes without acceleration, none with it",
            |t| {
                let fd = t.server();
                let received = || {
                    // linux/tcp.h, struct tcp_info: tcpi_bytes_received.
                    let info = sys::getopt_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 136);
                    let info = info.expect("TCP_INFO");
                    u64::from_ne_bytes(info[128..136].try_into().expect("8 bytes"))
                };
                let before = received();
                t.tell("go");
                recv_exact(fd, 5000);
                t.still_fast(fd);
                let bytes = received() - before;
                let part = [7u8; 1024];
                let mut sent = 0;
                while let Ok(n) = sys::send(fd, &part, MSG_DONTWAIT) {
                    sent += n;
                }
                let unsent = sys::outq(fd).expect("SIOCOUTQ");
                let outgrows = t.outgrows(fd);
                if t.waits_until_fast() {
                    let sent_fast = unsent == 0 || outgrows;
                    assert!(bytes == 0 && sent_fast, "{bytes} received, {unsent} of {sent} unsent");
                } else {
                    assert!(bytes == 5000 && unsent > 0, "{bytes} received, {unsent} unsent");
                }
                t.tell(&sent.to_string());
                t.wait("read");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, &[1; 5000]);
                recv_exact(fd, t.hear().parse().expect("a number"));
                t.tell("read");
            },
        )
        .skip(&[
            ("early", "the path is not known"),
            ("new", "the path is not known"),
            ("fast", "the path is not known"),
            ("switch", "the path is not known"),
        ]),
        pair(
            "options/ring-has-its-own-size",
            "SO_SNDBUF made small or large before anything is sent: a ring takes as much as ever; every byte arrives",
            |t| {
                let mut filled = Vec::new();
                for size in [None, Some(1), Some(4 << 20)] {
                    let fd = t.server();
                    if let Some(size) = size {
                        t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, size));
                    }
                    let part = [7u8; 1024];
                    let mut sent = 0;
                    while let Ok(n) = sys::send(fd, &part, MSG_DONTWAIT) {
                        sent += n;
                    }
                    t.still_fast(fd);
                    filled.push(sent);
                    t.tell(&sent.to_string());
                    t.wait("read");
                    t.log("close", sys::close(fd));
                }
                if t.waits_until_fast() {
                    let same = |n: &usize| n.abs_diff(filled[0]) < 1024;
                    assert!(filled.iter().all(same), "rings with {filled:?}");
                }
            },
            |t| {
                for _ in 0..3 {
                    let fd = t.client();
                    let sent: usize = t.hear().parse().expect("a number");
                    recv_exact(fd, sent);
                    t.tell("read");
                    t.log("eof", sys::recv(fd, &mut [0; 1], 0));
                }
            },
        )
        .skip(&[("rdma", "the device empties a ring while it is filled")]),
        pair(
            "options/structures",
            "SO_LINGER, timeouts, TCP_INFO, TCP_CONGESTION, SO_MEMINFO, SO_COOKIE, SO_PEERCRED-like structures",
            |t| {
                let fd = t.server();
                t.log("linger", sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_LINGER, 8));
                t.log("set linger", sys::set_linger(fd, true, 12));
                t.log("linger", sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_LINGER, 8));
                t.log("unset linger", sys::set_linger(fd, false, 0));
                t.log("set rcvtimeo", sys::set_timeout(fd, libc::SO_RCVTIMEO, 1500));
                t.log("rcvtimeo", sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_RCVTIMEO, 16));
                t.log("unset rcvtimeo", sys::set_timeout(fd, libc::SO_RCVTIMEO, 0));
                t.log("sndtimeo", sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_SNDTIMEO, 16));
                let info =
                    sys::getopt_bytes(fd, IPPROTO_TCP, libc::TCP_INFO, 104).expect("TCP_INFO");
                t.log("state", (info.len(), info[0]));
                let name = sys::getopt_bytes(fd, IPPROTO_TCP, libc::TCP_CONGESTION, 16)
                    .expect("TCP_CONGESTION");
                t.log_text("congestion", &name);
                t.log(
                    "set congestion",
                    sys::setopt_bytes(fd, IPPROTO_TCP, libc::TCP_CONGESTION, b"reno"),
                );
                t.log_text(
                    "congestion",
                    &sys::getopt_bytes(fd, IPPROTO_TCP, libc::TCP_CONGESTION, 16).expect("get"),
                );
                t.log(
                    "meminfo",
                    sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_MEMINFO, 64).map(|v| v.len()),
                );
                t.log(
                    "cookie",
                    sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_COOKIE, 8).map(|v| v.len()),
                );
                t.log(
                    "incoming cpu",
                    sys::getopt(fd, SOL_SOCKET, libc::SO_INCOMING_CPU).map(|c| c >= -1),
                );
                t.log("SO_ERROR", sys::getopt(fd, SOL_SOCKET, libc::SO_ERROR));
                t.log("bound device", sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_BINDTODEVICE, 16));
                send_all(fd, b"done");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                let info =
                    sys::getopt_bytes(fd, IPPROTO_TCP, libc::TCP_INFO, 104).expect("TCP_INFO");
                t.log("state", info[0]);
                t.log_text("data", &recv_exact(fd, 4));
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "options/errors",
            "unknown options, short and bad buffers, options of other families",
            |t| {
                let fd = t.server();
                t.log("unknown socket option", sys::getopt(fd, SOL_SOCKET, 9999));
                t.log("unknown tcp option", sys::setopt(fd, IPPROTO_TCP, 9999, 1));
                t.log("unknown level", sys::setopt(fd, 9999, 1, 1));
                t.log("short", sys::setopt_bytes(fd, IPPROTO_TCP, libc::TCP_NODELAY, b"x"));
                t.log("short get", sys::getopt_bytes(fd, SOL_SOCKET, libc::SO_TYPE, 1));
                t.log("read-only", sys::setopt(fd, SOL_SOCKET, libc::SO_TYPE, 1));
                t.log("keepidle", sys::setopt(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE, -1));
                t.log(
                    "no such congestion",
                    sys::setopt_bytes(fd, IPPROTO_TCP, libc::TCP_CONGESTION, b"nonesuch"),
                );
                t.log(
                    "no such ulp",
                    sys::setopt_bytes(fd, IPPROTO_TCP, libc::TCP_ULP, b"nonesuch"),
                );
                t.log("on a closed fd", sys::getopt(999, SOL_SOCKET, libc::SO_TYPE));
                let [from, _to] = sys::pipe();
                t.log("on a pipe", sys::getopt(from, SOL_SOCKET, libc::SO_TYPE));
                send_all(fd, b"alive");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let fd = t.client();
                t.log_text("data", &recv_exact(fd, 5));
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "options/inherited-from-the-listener",
            "an accepted connection inherits the listener's options",
            |t| {
                let listener = t.listener();
                for (level, name, value) in [
                    (SOL_SOCKET, libc::SO_KEEPALIVE, 1),
                    (IPPROTO_TCP, libc::TCP_NODELAY, 1),
                    (SOL_SOCKET, libc::SO_RCVBUF, 40_000),
                    (IPPROTO_TCP, libc::TCP_KEEPIDLE, 50),
                ] {
                    sys::setopt(listener, level, name, value).expect("setsockopt");
                }
                t.publish(listener);
                let fd = t.accept(listener);
                t.log("keepalive", sys::getopt(fd, SOL_SOCKET, libc::SO_KEEPALIVE));
                t.log("nodelay", sys::getopt(fd, IPPROTO_TCP, libc::TCP_NODELAY));
                t.log("rcvbuf", sys::getopt(fd, SOL_SOCKET, libc::SO_RCVBUF));
                t.log("keepidle", sys::getopt(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE));
                t.drain(fd, 2, 200_000);
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 2, 200_000);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "options/small-buffers",
            "tiny SO_SNDBUF and SO_RCVBUF before the connection: megabytes still arrive",
            |t| {
                let listener = t.listener();
                sys::setopt(listener, SOL_SOCKET, libc::SO_RCVBUF, 1).expect("SO_RCVBUF");
                t.publish(listener);
                let fd = t.accept(listener);
                t.drain(fd, 3, 1 << 20);
            },
            |t| {
                let addr = t.hear_addr();
                let fd: Fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                t.log("set", sys::setopt(fd, SOL_SOCKET, libc::SO_SNDBUF, 1));
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                t.pour(fd, 3, 1 << 20);
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .any_path(),
        alone("options/fresh-socket", "options of a socket that was never connected", |t| {
            let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
            for (label, level, name, value) in INTEGERS {
                let set = sys::setopt(fd, *level, *name, *value);
                t.log(label, (set, sys::getopt(fd, *level, *name)));
            }
            t.log("error", sys::getopt(fd, SOL_SOCKET, libc::SO_ERROR));
            t.log("state", sys::getopt_bytes(fd, IPPROTO_TCP, libc::TCP_INFO, 1));
        }),
    ]
}

/// A receive without bytes ends after the time that is set, or, if there is none, only when there
/// are some.
fn receives_behind(t: &Ctx, fd: Fd, set: bool) {
    if set {
        t.log("receive", sys::recv(fd, &mut [0; 8], 0));
        t.tell("send");
        // (The peer may take longer than the time-out.)
        await_bytes(fd, 4);
        t.log("receive", recv_exact(fd, 4).len());
    } else {
        let reader = std::thread::spawn(move || sys::recv(fd, &mut [0; 8], 0));
        // Longer than any time that was ever set.
        sys::sleep_ms(100);
        t.tell("send");
        t.log("receive", reader.join().expect("thread"));
    }
}

fn sends_behind(t: &Ctx, fd: Fd) {
    t.wait("send");
    send_all(fd, b"four");
}

fn receives_behind_own(t: &Ctx, fd: Fd, set: bool) {
    if set {
        t.log("own", sys::recv(fd, &mut [0; 8], 0));
    }
}
