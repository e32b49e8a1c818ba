//! A listener whose accept waits, and that is waited for by other calls: whatever says that it is
//! readable has a connection for the next accept, which would sleep for ever otherwise. (In the
//! mode `fast` some connections are the kernel's, and some come by parked carriers.)

use crate::ctx::{Ctx, recv_exact, send_all};
use crate::raw;
use crate::ring::{self, Entry, Ring};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Fd, Sets};
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, POLLIN};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const IN: u32 = libc::EPOLLIN as u32;
const ET: u32 = libc::EPOLLET as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Rounds of the client; in each it has 1, 2 or 3 connections at once.
const ROUNDS: usize = 15;
const CONNECTIONS: usize = 30;
/// Exchanges of each connection: it comes onto its rings before it is over.
const EXCHANGES: usize = 100;

/// How a server waits for its listener and its connections.
#[derive(Clone, Copy)]
enum How {
    /// In an epoll set that reports so many at once, with these events of the listener.
    Set(usize, u32),
    /// By epoll_pwait2.
    Pwait2,
    /// In a set in another set.
    Nested,
    /// In two sets, the second of which has the listener alone.
    TwoSets,
    Poll,
    Ppoll,
    Select,
}

/// What a server waits for.
struct Waits {
    how: How,
    /// Set, and the one that it is in, or beside it.
    sets: [Fd; 2],
    fds: Vec<Fd>,
}

impl Waits {
    fn new(how: How, listener: Fd) -> Waits {
        let set = || sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
        let mut waits = Waits { how, sets: [set(), set()], fds: vec![] };
        let [inner, outer] = waits.sets;
        let beside = match how {
            How::Nested => Some(inner),
            How::TwoSets => Some(listener),
            _ => None,
        };
        if let Some(fd) = beside {
            sys::epoll_ctl(outer, ADD, fd, IN, 1).expect("EPOLL_CTL_ADD");
        }
        waits.add(listener);
        waits
    }

    fn is_set(&self) -> bool {
        !matches!(self.how, How::Poll | How::Ppoll | How::Select)
    }

    fn add(&mut self, fd: Fd) {
        let events = match self.how {
            // (The first is the listener.)
            How::Set(_, events) if self.fds.is_empty() => events,
            _ => IN,
        };
        if self.is_set() {
            sys::epoll_ctl(self.sets[0], ADD, fd, events, fd as u64).expect("EPOLL_CTL_ADD");
        }
        self.fds.push(fd);
    }

    fn remove(&mut self, fd: Fd) {
        if self.is_set() {
            sys::epoll_ctl(self.sets[0], DEL, fd, 0, 0).expect("EPOLL_CTL_DEL");
        }
        self.fds.retain(|other| *other != fd);
    }

    /// What is readable, as often as it is reported.
    fn wait(&self) -> Vec<Fd> {
        let [set, outer] = self.sets;
        let fds = |events: Vec<(u32, u64)>| events.into_iter().map(|(_, fd)| fd as Fd).collect();
        let polled: Vec<(Fd, i16)> = self.fds.iter().map(|fd| (*fd, POLLIN)).collect();
        let readable = |(_, said): (usize, Vec<i16>)| {
            let both = self.fds.iter().copied().zip(said);
            both.filter(|(_, said)| *said != 0).map(|(fd, _)| fd).collect()
        };
        match self.how {
            How::Set(max, _) => fds(sys::epoll_wait(set, max, -1).expect("epoll_wait")),
            How::Pwait2 => fds(sys::epoll_pwait2(set, 8, None).expect("epoll_pwait2")),
            How::TwoSets => fds(sys::epoll_wait(set, 8, -1).expect("epoll_wait")),
            How::Nested => {
                sys::epoll_wait(outer, 8, -1).expect("epoll_wait");
                fds(sys::epoll_wait(set, 8, 0).expect("epoll_wait"))
            }
            How::Poll => readable(sys::poll(&polled, -1).expect("poll")),
            How::Ppoll => readable(sys::ppoll(&polled, None, None).expect("ppoll")),
            How::Select => {
                let highest = self.fds.iter().copied().max().unwrap_or(-1);
                let sets = Sets { read: self.fds.clone(), ..Sets::default() };
                sys::select(highest + 1, &sets, None).expect("select").1.read
            }
        }
    }
}

/// As servers do that trust what they are told: an accept for each report.
fn serves(t: &Ctx, how: How) {
    let listener = t.listener_behind_short_ones();
    t.tell("go");
    serves_at(t, how, listener);
}

fn serves_at(t: &Ctx, how: How, listener: Fd) {
    let mut waits = Waits::new(how, listener);
    let by_edge = matches!(how, How::Set(_, events) if events & ET != 0);
    let (mut accepted, mut ended) = (0, 0);
    while ended < CONNECTIONS {
        for fd in waits.wait() {
            if fd == listener {
                accepted += 1;
                let flags = if accepted % 2 == 0 { libc::SOCK_CLOEXEC } else { 0 };
                waits.add(sys::accept4(listener, flags).expect("accept4"));
                // (An edge has one report, for all that has come.)
                while by_edge && sys::await_events(listener, POLLIN, 0) != 0 {
                    accepted += 1;
                    waits.add(sys::accept(listener).expect("accept"));
                }
                continue;
            }
            if answers(fd) {
                continue;
            }
            waits.remove(fd);
            sys::close(fd).expect("close");
            ended += 1;
        }
    }
    t.log("accepted", accepted);
    t.log("ended", ended);
}

/// Sends back what has come. False: that was the end.
fn answers(fd: Fd) -> bool {
    let mut bytes = [0; 64];
    let n = sys::recv(fd, &mut bytes, 0).expect("recv");
    send_all(fd, &bytes[..n]);
    n > 0
}

/// Connections of some exchanges each, some at once.
fn connects(t: &Ctx) {
    let addr = t.hear_addr();
    t.wait("go");
    for round in 0..ROUNDS {
        let fds: Vec<Fd> = (0..round % 3 + 1)
            .map(|_| {
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                fd
            })
            .collect();
        for _ in 0..EXCHANGES {
            fds.iter().for_each(|fd| send_all(*fd, b"hello"));
            fds.iter().for_each(|fd| drop(recv_exact(*fd, 5)));
        }
        for fd in fds {
            sys::close(fd).expect("close");
        }
    }
}

/// Threads that accept and serve, one connection at a time each.
fn serves_by_threads(t: &Ctx) {
    const THREADS: usize = 3;
    let listener = t.listener_behind_short_ones();
    t.tell("go");
    let begun = Arc::new(AtomicUsize::new(0));
    let serves = |begun: Arc<AtomicUsize>| {
        move || {
            while begun.fetch_add(1, Relaxed) < CONNECTIONS {
                let fd = sys::accept(listener).expect("accept");
                while answers(fd) {}
                sys::close(fd).expect("close");
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(serves(begun.clone()))).collect();
    let ended = threads.into_iter().map(|thread| thread.join().is_ok());
    t.log("ended", ended.collect::<Vec<_>>());
}

/// What a set says to a child that has it, and asks the kernel alone, as another program would: of
/// which data, in any case of what the application has put there.
fn shares_its_set(t: &Ctx) {
    const LISTENER: u64 = 42;
    let listener = t.listener_behind_short_ones();
    sys::set_nonblocking(listener, true);
    let set = sys::epoll_create1(0).expect("epoll_create1");
    sys::epoll_ctl(set, ADD, listener, IN, LISTENER).expect("EPOLL_CTL_ADD");
    let [until, over] = sys::pipe();
    let child = sys::fork().expect("fork");
    if child == 0 {
        sys::close(over).expect("close");
        let theirs = raw::Set::of(set);
        while sys::await_events(until, POLLIN, 0) == 0 {
            let heard = theirs.heard(20);
            if let Some(other) = heard.into_iter().find(|data| *data != LISTENER) {
                eprintln!("an event with the data {other:#x}");
                sys::exit_now(1);
            }
        }
        sys::exit_now(0);
    }
    t.tell("go");
    let mut ended = 0;
    while ended < CONNECTIONS {
        let heard = sys::epoll_wait(set, 8, -1).expect("epoll_wait");
        assert!(heard.iter().all(|(_, data)| *data == LISTENER), "{heard:?}");
        while let Ok(fd) = sys::accept(listener) {
            sys::set_nonblocking(fd, false);
            while answers(fd) {}
            sys::close(fd).expect("close");
            ended += 1;
        }
    }
    sys::close(over).expect("close");
    t.log("child", sys::wait_child(child));
}

/// Something else in the set is always ready: a wait that has room for one event and does not wait
/// says so each time.
fn looks_beside_what_is_ready(t: &Ctx) {
    let listener = t.listener_behind_short_ones();
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, ADD, listener, IN, 1).expect("EPOLL_CTL_ADD");
    sys::epoll_ctl(set, ADD, sys::eventfd(1), IN, 2).expect("EPOLL_CTL_ADD");
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let serves = std::thread::spawn(move || {
        while count.load(Relaxed) < CONNECTIONS {
            let fd = sys::accept(listener).expect("accept");
            while answers(fd) {}
            sys::close(fd).expect("close");
            count.fetch_add(1, Relaxed);
        }
    });
    t.tell("go");
    let mut in_vain = 0;
    while ended.load(Relaxed) < CONNECTIONS {
        in_vain += usize::from(sys::epoll_wait(set, 1, 0).expect("epoll_wait").is_empty());
    }
    t.log("in vain", in_vain);
    t.log("served", serves.join().is_ok());
}

/// Accepts by an io_uring.
fn serves_by_a_ring(t: &Ctx) {
    let listener = t.listener_behind_short_ones();
    let ring = ring::or_skip(t, Ring::new(8, 0));
    t.tell("go");
    for _ in 0..CONNECTIONS {
        let fd = match &ring {
            Some(ring) => {
                let entry = Entry { opcode: ring::ACCEPT, fd: listener, ..Entry::default() };
                let _ = ring.submit(&[entry], 1).expect("io_uring_enter");
                ring.completions()[0].1
            }
            None => sys::accept(listener).expect("accept"),
        };
        while answers(fd) {}
        sys::close(fd).expect("close");
    }
}

/// As [`connects`], one at a time.
fn connects_one_by_one(t: &Ctx) {
    let addr = t.hear_addr();
    t.wait("go");
    for _ in 0..CONNECTIONS {
        let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, addr).expect("connect");
        for _ in 0..EXCHANGES {
            send_all(fd, b"hello");
            recv_exact(fd, 5);
        }
        sys::close(fd).expect("close");
    }
}

pub fn list() -> Vec<Scenario> {
    let all = vec![
        pair(
            "listens/set",
            "a listener that blocks, in an epoll set: each report of it has a connection to accept",
            |t| serves(t, How::Set(8, IN)),
            connects_one_by_one,
        ),
        pair(
            "listens/set-several",
            "the same, with several connections at once",
            |t| serves(t, How::Set(8, IN)),
            connects,
        ),
        pair(
            "listens/set-one-place",
            "the same, where a wait has room for one event",
            |t| serves(t, How::Set(1, IN)),
            connects,
        ),
        pair(
            "listens/set-edge",
            "the same, edge-triggered, where poll says whether there are more",
            |t| serves(t, How::Set(8, IN | ET)),
            connects,
        ),
        pair(
            "listens/set-exclusive",
            "the same, with EPOLLEXCLUSIVE",
            |t| serves(t, How::Set(8, IN | EXCLUSIVE)),
            connects,
        ),
        pair("listens/pwait2", "the same, by epoll_pwait2", |t| serves(t, How::Pwait2), connects),
        pair(
            "listens/set-in-a-set",
            "the same, in a set that stands in another one",
            |t| serves(t, How::Nested),
            connects,
        ),
        pair(
            "listens/two-sets",
            "the same, of a listener that another set has, too, which nobody waits for",
            |t| serves(t, How::TwoSets),
            connects,
        ),
        pair(
            "listens/poll",
            "a listener that blocks, and is polled: it is readable when there is one to accept",
            |t| serves(t, How::Poll),
            connects,
        ),
        pair("listens/ppoll", "the same, by ppoll", |t| serves(t, How::Ppoll), connects),
        pair("listens/select", "the same, by select", |t| serves(t, How::Select), connects),
        pair(
            "listens/duplicate",
            "a duplicate of a listener is in the set, and the listener is closed",
            |t| {
                let listener = t.listener_behind_short_ones();
                let twin = sys::dup(listener).expect("dup");
                sys::close(listener).expect("close");
                t.tell("go");
                serves_at(t, How::Set(8, IN), twin);
            },
            connects,
        ),
        pair(
            "listens/threads",
            "threads sleep in accept: each connection is given to one of them",
            serves_by_threads,
            connects,
        ),
        pair(
            "listens/set-of-a-child",
            "a listener in a set that a child has, too: it hears of nothing but what was put there",
            shares_its_set,
            connects_one_by_one,
        ),
        pair(
            "listens/beside-what-is-ready",
            "a wait that does not wait finds what is ready beside a listener, each time",
            looks_beside_what_is_ready,
            connects_one_by_one,
        ),
        pair(
            "listens/ring",
            "a listener that blocks, whose connections an io_uring accepts",
            serves_by_a_ring,
            connects_one_by_one,
        ),
    ];
    all.into_iter().map(Scenario::any_path).collect()
}
