//! Waits that look again before they sleep: of connections whose peer has no library.
//!
//! Whether they have looked is counted by the library. Client and server are alike, so each way of
//! waiting is looked at in both modes with the library at one end.

use crate::ctx::{Ctx, send_all};
use crate::scenario::{Scenario, pair};
use crate::scenarios::looks_ends;
use crate::sys::{self, Fd, Sets};
use libc::{EPOLLIN, POLLIN, SO_RCVTIMEO};

/// A way to wait for bytes.
struct Way {
    /// Waits that long for what [`Way::take`] then takes; true: it is there. Such a call that takes
    /// for itself has nothing to do here.
    wait: fn(fd: Fd, set: Fd, ms: i32) -> bool,
    take: fn(fd: Fd, buf: &mut [u8]) -> Option<usize>,
}

fn plainly(fd: Fd, buf: &mut [u8]) -> Option<usize> {
    sys::recv(fd, buf, 0).ok()
}

fn reading(fd: Fd) -> Sets {
    Sets { read: vec![fd], ..Sets::default() }
}

fn nothing(_: Fd, _: Fd, _: i32) -> bool {
    true
}

const EPOLL_WAIT: Way = Way {
    wait: |_, set, ms| sys::epoll_wait(set, 4, ms).is_ok_and(|events| !events.is_empty()),
    take: plainly,
};
const POLL: Way =
    Way { wait: |fd, _, ms| sys::poll(&[(fd, POLLIN)], ms).is_ok_and(|r| r.0 > 0), take: plainly };
const SELECT: Way = Way {
    wait: |fd, _, ms| {
        sys::select(fd + 1, &reading(fd), Some(ms.into())).is_ok_and(|r| !r.1.read.is_empty())
    },
    take: plainly,
};
const RECV: Way = Way { wait: nothing, take: plainly };
const READ: Way = Way { wait: nothing, take: |fd, buf| sys::read(fd, buf).ok() };
const READV: Way = Way { wait: nothing, take: |fd, buf| sys::readv(fd, &mut [buf]).ok() };
const RECVMSG: Way = Way { wait: nothing, take: |fd, buf| sys::recvmsg(fd, &mut [buf], 0).ok() };

/// So many waits in vain end the longest looks: each halves them, from 1 ms to 8 µs.
const VAIN: usize = 10;
/// How long such a wait lasts.
const IDLE_MS: i32 = 5;

/// Messages to and fro until this end's waits have looked and found something, or the other one is
/// done; then waits in vain.
fn exchange(t: &Ctx, way: &Way, fd: Fd, first: bool) {
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, 1).expect("EPOLL_CTL_ADD");
    let mut buf = [0; 64];
    let mut take = || {
        while !(way.wait)(fd, set, 1000) {}
        (way.take)(fd, &mut buf).unwrap_or(0)
    };
    loop {
        // 100 times there and back: the first end says whether that is enough.
        for _ in 0..100 {
            if first {
                send_all(fd, b"there");
                assert_eq!(take(), 5, "and back");
            } else {
                assert_eq!(take(), 5, "there");
                send_all(fd, b"and b");
            }
        }
        if both_have_looked(t) {
            break;
        }
    }
    t.say("looked, and found what it waited for");
    sys::set_timeout(fd, SO_RCVTIMEO, IDLE_MS.into()).expect("SO_RCVTIMEO");
    let mut idle = |times: usize| {
        for _ in 0..times {
            let there = (way.wait)(fd, set, IDLE_MS) && (way.take)(fd, &mut buf).is_some();
            assert!(!there, "bytes that nobody has sent");
        }
    };
    idle(VAIN);
    let before = t.looks().0;
    idle(VAIN);
    t.log("looks of idle waits", t.looks().0 - before);
    t.tell("done");
    t.wait("done");
}

/// Both ends in threads that may end at any instruction, as those of Redis, and never do.
fn serve_asynchronous(t: &Ctx) {
    looks_ends::be_asynchronous();
    exchange(t, &EPOLL_WAIT, t.server(), false);
}

fn ask_asynchronous(t: &Ctx) {
    looks_ends::be_asynchronous();
    exchange(t, &EPOLL_WAIT, t.client(), true);
}

/// Both ends ask that at once. (The one without the library has nothing to count.)
fn both_have_looked(t: &Ctx) -> bool {
    let mine = if t.looks().1 > 0 { "yes" } else { "no" };
    t.tell(mine);
    t.hear() == "yes" && mine == "yes"
}

const ALL_LOOK: [(&str, &str); 1] = [("looks", "each of its waits looks, also idle ones")];

macro_rules! ways {
    ($($name:literal $about:literal $way:ident;)*) => {
        vec![$(pair(
            concat!("looks/", $name),
            $about,
            |t| exchange(t, &$way, t.server(), false),
            |t| exchange(t, &$way, t.client(), true),
        )
        .any_path()
        .passed_through()
        .skip(&ALL_LOOK)),*]
    };
}

pub fn list() -> Vec<Scenario> {
    let mut all = ways! {
        "epoll" "epoll_wait looks again before it sleeps, and an idle one does not" EPOLL_WAIT;
        "poll" "the same of poll" POLL;
        "select" "the same of select" SELECT;
        "recv" "the same of recv" RECV;
        "read" "the same of read" READ;
        "readv" "the same of readv" READV;
        "recvmsg" "the same of recvmsg" RECVMSG;
    };
    all.push(
        pair(
            "looks/asynchronous",
            "threads that may end at any instruction look again as long as none is cancelled",
            serve_asynchronous,
            ask_asynchronous,
        )
        .any_path()
        .passed_through()
        .skip(&ALL_LOOK),
    );
    all
}
