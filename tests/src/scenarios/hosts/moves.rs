//! The moment in which a connection leaves TCP, without an operation that over RDMA keeps it there
//! for good.

use super::{accepted, connected_to};
use crate::ctx::{Ctx, receives_fast, recv_exact, send_all, sends_on_a_fast_path};
use crate::raw;
use crate::scenario::{Scenario, pair};
use crate::scenarios::promotion::false_news;
use crate::sys::{self, Fd};
use libc::{IPPROTO_TCP, MSG_DONTWAIT, MSG_MORE, MSG_PEEK, SOL_SOCKET, TCP_CORK, TCP_NODELAY};

/// Both ends have agreed on a path, and neither has used the connection since.
const AGREED: &[(&str, &str)] = &[("rdma", "agreed")];
const MESSAGE: usize = 64;
/// The kernel does not pace before so many packets (net/ipv4/tcp_output.c:
/// tcp_update_skb_after_send). It sends the next bytes at once, and then rests for as long as they
/// take at that many bytes a second.
const UNPACED: usize = 10;
const BURST: usize = 30_000;
const PACE: i32 = 100_000;
const SO_MAX_PACING_RATE: i32 = 47;
const HELD: usize = 5_000;
const LATER: usize = 1_000;
/// A busy machine makes all of it slow, and a connection may take the other path too late.
const TRIES: usize = 10;
/// How the server waits, of one connection after the other, and whether the kernel paces it. (What
/// is paced is late by itself.)
const WAYS: [(&str, bool); 4] =
    [("poll", false), ("epoll", true), ("select", true), ("edge", true)];

/// As FTP's passive mode makes them.
const LISTENERS: usize = 66;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "hosts/held-tail-at-promotion",
            "bytes that MSG_MORE holds back on TCP when the next send takes another path: they go at once, and no wait tells of what comes behind them before",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let mut wrong = 0;
                loop {
                    let way = t.hear();
                    if way == "end" {
                        break;
                    }
                    let fd = sys::accept(listener).expect("accept");
                    let told = receives_behind_a_tail(t, fd, &way);
                    // (A change of its path may be an edge.)
                    wrong += told.saturating_sub(usize::from(way == "edge"));
                    sys::close(fd).expect("close");
                }
                t.log("false news", wrong);
            },
            |t| {
                let addr = t.hear_addr();
                for (way, paced) in WAYS {
                    let right = (0..TRIES).any(|_| {
                        t.tell(way);
                        let fd = connected_to(addr);
                        let crossed = sends_behind_a_tail(t, fd, paced);
                        sys::close(fd).expect("close");
                        !t.waits_until_fast() || crossed.is_some_and(|ms| paced || ms < 150)
                    });
                    t.log("as it has to be", (way, paced, right));
                }
                t.tell("end");
            },
        )
        // (It asks for that itself.)
        .any_path()
        .skip(&[("shm", "promotion/a-held-tail-goes-out asks for it there")]),
        pair(
            "hosts/listeners-in-a-row",
            "66 listeners one after the other, each on a port of its own: each connection comes onto the fast path",
            |t| {
                for _ in 0..LISTENERS {
                    let fd = accepted(t);
                    while recv_exact(fd, 1) != b"E" {
                        send_all(fd, b"y");
                    }
                    sys::close(fd).expect("close");
                }
                t.say("served");
            },
            |t| {
                let fast = (0..LISTENERS).filter(|_| comes_onto_the_fast_path(t)).count();
                let right = fast == LISTENERS || !t.waits_until_fast();
                t.log("as it has to be", right);
                if !right {
                    t.log("fast", fast);
                }
            },
        )
        // (As above.)
        .any_path()
        // (Each is made anew, by threads that a busy machine lets wait.)
        .waits(60),
    ]
}

/// The fewest turns behind which both ends agree on a path, for which they need no call.
fn in_turn(fd: Fd, asks: bool) {
    for sends in [asks, !asks, asks] {
        if sends {
            send_all(fd, &[b'f'; MESSAGE]);
        } else {
            recv_exact(fd, MESSAGE);
        }
    }
}

/// How often a wait has told of bytes that were not there.
fn receives_behind_a_tail(t: &Ctx, fd: Fd, way: &str) -> usize {
    in_turn(fd, false);
    t.expect_reason(fd, AGREED);
    t.meet("agreed");
    t.wait("held");
    recv_exact(fd, UNPACED + BURST);
    send_all(fd, b"!");
    // From here on the peer may send on the other path.
    let _ = sys::recv(fd, &mut [0; 1], MSG_DONTWAIT | MSG_PEEK);
    t.tell("looked");
    let wrong = false_news(fd, way, HELD + LATER);
    t.tell("all");
    t.wait("over");
    wrong
}

/// For how long both the tail and what went another way were on their way. `None`: nothing was held
/// back, or nothing went another way.
fn sends_behind_a_tail(t: &Ctx, fd: Fd, paced: bool) -> Option<u64> {
    sys::setopt(fd, IPPROTO_TCP, TCP_NODELAY, 1).expect("TCP_NODELAY");
    in_turn(fd, true);
    t.expect_reason(fd, AGREED);
    t.meet("agreed");
    // (The peer makes no call yet: all this is TCP's.)
    for _ in 0..UNPACED {
        send_all(fd, b"u");
    }
    if paced {
        // (Past libc: between hosts the connection would stay on TCP for that.)
        raw::setopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, PACE).expect("SO_MAX_PACING_RATE");
    }
    send_all(fd, &[b'b'; BURST]);
    // (MSG_MORE holds back until something is acknowledged, a cork for 200 ms; of this one the
    // library knows nothing.)
    raw::setopt(fd, IPPROTO_TCP, TCP_CORK, 1).expect("TCP_CORK");
    assert!(sys::send(fd, &[b's'; HELD], MSG_MORE) == Ok(HELD));
    t.tell("held");
    t.wait("looked");
    recv_exact(fd, 1);
    let held = unsent(fd) == HELD as i32 && !sends_on_a_fast_path(fd);
    let begin = sys::now_ns();
    send_all(fd, &[b'l'; LATER]);
    t.wait("all");
    let took = sys::now_ns() - begin;
    let crossed = held && sends_on_a_fast_path(fd);
    t.tell("over");
    crossed.then_some(took / 1_000_000)
}

/// `SIOCOUTQNSD`: what the kernel has not sent yet.
fn unsent(fd: Fd) -> i32 {
    let mut bytes = 0;
    sys::ioctl_int(fd, 0x894b, &mut bytes).map_or(0, |_| bytes)
}

/// Connects to the next listener, and says whether both directions left TCP.
fn comes_onto_the_fast_path(t: &Ctx) -> bool {
    let fd = connected_to(t.hear_addr());
    let begin = sys::now_ns();
    let patience_ns = 8_000_000_000 * u64::from(sys::patience());
    let turns = |count| {
        for _ in 0..count {
            send_all(fd, b"P");
            recv_exact(fd, 1);
        }
    };
    let is_fast = || sends_on_a_fast_path(fd) && receives_fast(fd);
    if t.waits_until_fast() {
        // (Who looks before its peer can be found looks again a tenth of a second later.)
        sys::sleep_ms(10);
    }
    turns(5);
    while t.waits_until_fast() && !is_fast() && sys::now_ns() - begin < patience_ns {
        // (The threads that agree need the CPU.)
        sys::sleep_ms(2);
        turns(1);
    }
    let is_fast = is_fast();
    send_all(fd, b"E");
    sys::close(fd).expect("close");
    is_fast
}
