//! The list of paths, and a path of the tests, `loop`: what `docs/design/paths.md` was tried out
//! on.
//!
//! Both ends of its connections are in this process, each on a channel of its own, as if they were
//! in two. The engine is a mirror: it brings the bytes and words of each end to the other's
//! channel, in its thread and in whoever polls. The agent knows of both ends what they have said,
//! and takes connections back to their carriers in the engine's thread.
//!
//! Bytes are lost with a connection that leaves: what lies between the two is not brought over any
//! more. So both ends have to agree how far each has come.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

mod mirror;

use super::*;
use crate::candidates::{begin, look_up, next_path};
use crate::socket::{NONE, Socket, State, flag, offered};
use crate::{api, fd_table, io, sys, testing};
use core::ffi::c_int;
use core::sync::atomic::AtomicU32;
pub(crate) use mirror::{AGENT, Engine, before_sleep, new_channel, poll};
use mirror::{Answer, serve};
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::time::{Duration, Instant};
use std::vec::Vec;
use std::{thread, vec};

#[test]
fn a_list_of_paths_gives_back_what_was_put_in_and_ends() {
    let list = PathList::EMPTY.and(PathId::Rdma).and(PathId::Shm);
    assert_eq!(list.iter().collect::<Vec<_>>(), [PathId::Rdma, PathId::Shm]);
    assert_eq!(list.first(), PathId::Rdma);
    assert_eq!(list.rest().first(), PathId::Shm);
    assert!(list.rest().rest().is_empty());
    assert_eq!(PathList::EMPTY.first(), PathId::Tcp);
    // Nothing that lies in memory is another path than one of these.
    assert_eq!(PathList::from_bits(0xf).first(), PathId::Tcp);
    let full = (0..9).fold(PathList::EMPTY, |list, _| list.and(PathId::Shm));
    assert_eq!(full.iter().count(), 8);
}

// ---- connections --------------------------------------------------------------------------------

/// Both ends of one.
pub(crate) const A: usize = 0;
pub(crate) const C: usize = 1;

/// One end, with its application.
pub(crate) struct End {
    pub(crate) fd: c_int,
    pub(crate) socket: &'static Socket,
    sent: usize,
    pub(crate) received: usize,
}

/// What stands at `at` in the stream that a side sends.
fn byte(side: usize, at: usize) -> u8 {
    let x = (at as u64 ^ (side as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

impl End {
    /// One whose stream begins here.
    pub(crate) fn of(fd: c_int, socket: &'static Socket) -> End {
        End { fd, socket, sent: 0, received: 0 }
    }

    /// A blocking send of so many bytes.
    pub(crate) fn send(&mut self, side: usize, n: usize) {
        let bytes: Vec<u8> = (self.sent..self.sent + n).map(|at| byte(side, at)).collect();
        let mut done = 0;
        while done < n {
            let left = &bytes[done..];
            // SAFETY: a buffer of ours.
            let r = unsafe { io::send(self.fd, left.as_ptr(), left.len(), libc::MSG_NOSIGNAL) };
            let r = match r {
                // SAFETY: as above.
                api::PASS => unsafe {
                    sys::sendto(self.fd, left.as_ptr(), left.len(), libc::MSG_NOSIGNAL)
                },
                r => r,
            };
            assert!(r > 0, "a send of {} bytes said {r}", left.len());
            done += r as usize;
        }
        self.sent += n;
    }

    /// A blocking receive; 0: the end.
    pub(crate) fn receive(&mut self, side: usize, most: usize) -> usize {
        let r = self.receive_with(side, most, 0);
        assert!(r >= 0, "a receive said {r}");
        r as usize
    }

    /// One that does not wait; its result, or `-errno`.
    pub(crate) fn receive_now(&mut self, side: usize, most: usize) -> isize {
        self.receive_with(side, most, libc::MSG_DONTWAIT)
    }

    /// What came is what the other side sends.
    fn receive_with(&mut self, side: usize, most: usize, flags: c_int) -> isize {
        let mut part = vec![0u8; most];
        // SAFETY: a buffer of ours.
        let r = match unsafe { io::recv(self.fd, part.as_mut_ptr(), most, flags) } {
            // SAFETY: as above.
            api::PASS => unsafe {
                let (at, none) = (part.as_mut_ptr(), core::ptr::null_mut());
                sys::recvfrom(self.fd, at, most, flags, none, core::ptr::null_mut())
            },
            r => r,
        };
        for (i, got) in part[..r.max(0) as usize].iter().enumerate() {
            assert_eq!(*got, byte(side ^ 1, self.received + i), "byte {}", self.received + i);
        }
        self.received += r.max(0) as usize;
        r
    }

    pub(crate) fn receive_all(&mut self, side: usize, n: usize) {
        let until = self.received + n;
        while self.received < until {
            assert!(self.receive(side, until - self.received) > 0, "the stream ended early");
        }
    }

    pub(crate) fn close(&mut self) {
        if api::close(self.fd) == api::PASS {
            let _ = sys::close(self.fd);
        }
    }
}

/// On a port that the kernel gives to nobody by itself: shared memory advertises it for a while,
/// and other tests must not find that.
fn listener() -> TcpListener {
    const PORTS: core::ops::Range<u32> = 21_000..25_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let tries = core::iter::repeat_with(|| {
        let n = std::process::id().wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, SeqCst));
        TcpListener::bind(("127.0.0.1", (PORTS.start + n % PORTS.len() as u32) as u16))
    });
    tries.take(PORTS.len()).find_map(Result::ok).unwrap()
}

/// A connection that `loop` serves, and what its agent is to say of it.
fn connection(answer: Answer) -> [End; 2] {
    let ends = new_connection(answer);
    for e in &ends {
        assert!(look_up(e.socket, e.socket.generation16(), e.fd) || !e.socket.is(State::Candidate));
    }
    ends
}

/// One that has not shown yet that it lives.
fn new_connection(answer: Answer) -> [End; 2] {
    testing::init();
    let listener = listener();
    serve(listener.local_addr().unwrap().port(), answer);
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().0;
    [(accepted, false), (connected, true)].map(|(stream, connector)| {
        stream.set_nodelay(true).unwrap();
        let fd = stream.into_raw_fd();
        begin(fd, NONE, connector, true);
        let socket = fd_table::socket(fd).unwrap().0;
        End::of(fd, socket)
    })
}

pub(crate) fn talk(ends: &mut [End; 2], n: usize) {
    for (from, to) in [(C, A), (A, C)] {
        ends[from].send(from, n);
        ends[to].receive_all(to, n);
    }
}

/// Both applications talk until that is so.
#[track_caller]
fn talk_until(ends: &mut [End; 2], mut done: impl FnMut(&[End; 2]) -> bool) {
    let began = Instant::now();
    while !done(ends) {
        talk(ends, 64);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", ends.each_ref().map(describe));
        thread::yield_now();
    }
}

fn describe(e: &End) -> (State, u32, PathId, u32) {
    let offered = e.socket.offered.word();
    let reason = e.socket.record().map_or(0, |r| r.reason.load(SeqCst));
    (e.socket.state.now(), offered, e.socket.path(), reason)
}

fn is_fast(e: &End) -> bool {
    e.socket.is(State::Attached)
        && e.socket.published.sends_fast()
        && e.socket.published.receives_fast()
}

fn is_on(e: &End, path: PathId) -> bool {
    is_fast(e) && e.socket.channel().is_some_and(|c| c.far.id() == path)
}

/// A connection with both directions of both ends on the path.
pub(crate) fn promoted() -> [End; 2] {
    let mut ends = connection(Answer::Agrees);
    for e in &ends {
        assert!(e.socket.is(State::Candidate) && e.socket.path() == PathId::Loop);
        assert!(e.socket.paths().rest().first() == PathId::Shm);
    }
    talk_until(&mut ends, |ends| ends.iter().all(|e| is_on(e, PathId::Loop)));
    ends
}

/// One that shared memory will carry.
pub(crate) fn candidate_within_the_host() -> [End; 2] {
    connection(Answer::RefusesAtOnce)
}

/// One that shared memory carries both ways.
pub(crate) fn promoted_within_the_host() -> [End; 2] {
    let mut ends = candidate_within_the_host();
    talk_until_within_the_host(&mut ends);
    ends
}

pub(crate) fn talk_until_within_the_host(ends: &mut [End; 2]) {
    talk_until(ends, |ends| ends.iter().all(|e| is_on(e, PathId::Shm)));
}

/// More than the rings hold, one way, with both ends at it at once.
fn pour(ends: &mut [End; 2], from: usize) {
    const BYTES: usize = 300_000;
    let [a, c] = ends;
    let (sender, receiver) = if from == A { (a, c) } else { (c, a) };
    thread::scope(|scope| {
        scope.spawn(|| sender.send(from, BYTES));
        receiver.receive_all(from ^ 1, BYTES);
    });
}

pub(crate) fn close_both(mut ends: [End; 2]) {
    ends[C].close();
    assert_eq!(ends[A].receive(A, 64), 0, "the end");
    ends[A].close();
}

// ---- the beginning ------------------------------------------------------------------------------

fn addresses(e: &End) -> u32 {
    e.socket.record().unwrap().family.load(SeqCst)
}

#[test]
fn a_connection_is_looked_up_when_it_lives() {
    let mut ends = new_connection(Answer::Agrees);
    // A request in two calls, and a reply in three.
    for n in [10, 20] {
        ends[C].send(C, n);
        ends[A].receive_all(A, n);
    }
    for n in [30, 40, 50] {
        ends[A].send(A, n);
        ends[C].receive_all(C, n);
    }
    for e in &ends {
        assert!(e.socket.is(State::Candidate) && e.socket.is_new() && addresses(e) == 0);
        assert_eq!(e.socket.known_tuple(), None);
    }
    // Another request.
    ends[C].send(C, 1);
    ends[A].receive_all(A, 1);
    for e in &ends {
        assert!(!e.socket.is_new() && addresses(e) != 0);
        assert_eq!(e.socket.known_tuple(), crate::carrier::tuple_of(e.fd));
    }
    talk_until(&mut ends, |ends| ends.iter().all(|e| is_on(e, PathId::Loop)));
    close_both(ends);
}

#[test]
fn one_way_it_lives_by_its_calls_or_its_bytes() {
    for (calls, n) in [(8, 1), (2, 32 << 10)] {
        let mut ends = new_connection(Answer::Agrees);
        for call in 0..calls {
            assert!(ends.iter().all(|e| e.socket.is_new()), "before call {call} of {n} bytes");
            ends[C].send(C, n);
            let [a, _] = &mut ends;
            a.receive_all(A, n);
        }
        assert!(!ends[C].socket.is_new(), "after {calls} calls of {n} bytes");
        close_both(ends);
    }
}

#[test]
fn what_was_reset_meanwhile_is_no_candidate() {
    let [mut a, mut c] = new_connection(Answer::Agrees);
    a.send(A, 1);
    // With bytes unread.
    c.close();
    let (s, g) = (a.socket, a.socket.generation16());
    assert_eq!(crate::carrier::tuple_of(a.fd), None, "it has no addresses any more");
    assert!(!look_up(s, g, a.fd));
    assert!(s.is(State::Plain));
    assert_eq!(s.record().unwrap().reason.load(SeqCst), Reason::Disconnected as u32);
    a.close();
}

#[test]
fn only_the_connection_itself_is_looked_up() {
    let [mut a, mut c] = new_connection(Answer::Agrees);
    let [mut other, mut peer] = new_connection(Answer::Agrees);
    // By a number that is another connection's by now, or by one that is of another life.
    assert!(!look_up(a.socket, a.socket.generation16(), other.fd));
    assert!(!look_up(a.socket, a.socket.generation16().wrapping_add(1), a.fd));
    assert!(a.socket.is_new() && a.socket.is(State::Candidate));
    [&mut a, &mut c, &mut other, &mut peer].into_iter().for_each(End::close);
}

#[test]
fn a_half_closed_one_is_only_for_a_path_that_can_say_so() {
    let mut ends = new_connection(Answer::Agrees);
    assert_eq!(api::shutdown(ends[C].fd, libc::SHUT_WR), 0);
    let (s, fd) = (ends[C].socket, ends[C].fd);
    assert!(s.is(State::Candidate) && s.is_new(), "nothing is asked for that");
    assert!(!look_up(s, s.generation16(), fd), "the engine's path cannot");
    assert!(s.is(State::Plain));
    ends.iter_mut().for_each(End::close);
    for how in [libc::SHUT_RD, libc::SHUT_RDWR] {
        let mut ends = new_connection(Answer::Agrees);
        assert_eq!(api::shutdown(ends[C].fd, how), api::PASS);
        assert!(ends[C].socket.is(State::Plain), "{how}");
        ends.iter_mut().for_each(End::close);
    }
}

// ---- the path -----------------------------------------------------------------------------------

#[test]
fn a_path_that_is_added_carries_both_ways() {
    let mut ends = promoted();
    for from in [C, A, C] {
        pour(&mut ends, from);
    }
    assert!(ends.iter().all(|e| is_on(e, PathId::Loop)), "{:?}", ends.each_ref().map(describe));
    close_both(ends);
}

#[test]
fn a_connection_leaves_an_added_path_with_unread_bytes() {
    for who in [A, C] {
        let mut ends = promoted();
        // Unread at both ends when one needs the kernel.
        ends[A].send(A, 20_000);
        ends[C].send(C, 10_000);
        let s = ends[who].socket;
        let why = Reason::SocketOption;
        // (It waits for the other end, but not for long.)
        let began = Instant::now();
        while !io::to_kernel(s, s.generation16(), ends[who].fd, why, false) {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", describe(&ends[who]));
        }
        assert!(s.is(State::Plain));
        ends[A].receive_all(A, 10_000);
        ends[C].receive_all(C, 20_000);
        pour(&mut ends, C);
        pour(&mut ends, A);
        talk_until(&mut ends, |ends| ends.iter().all(|e| e.socket.is(State::Plain)));
        close_both(ends);
    }
}

#[test]
fn a_connection_leaves_an_added_path_for_a_while() {
    let mut ends = promoted();
    for round in 0..5 {
        ends[C].send(C, 5000 * round);
        let s = ends[round % 2].socket;
        let slot = s.slot.load(SeqCst) as usize;
        s.channel().unwrap().far.demote(slot, s.path().traits().lost, true);
        ends[A].receive_all(A, 5000 * round);
        let promotions = |e: &End| e.socket.record().map_or(0, |r| r.promotions.load(SeqCst));
        let before = ends.each_ref().map(promotions);
        talk_until(&mut ends, |ends| {
            ends.iter().zip(before).all(|(e, n)| promotions(e) > n && is_on(e, PathId::Loop))
        });
        pour(&mut ends, round % 2);
    }
    close_both(ends);
}

#[test]
fn what_was_sent_before_a_close_arrives_from_an_added_path() {
    for who in [A, C] {
        let mut ends = promoted();
        ends[who].send(who, 20_000);
        ends[who].close();
        ends[who ^ 1].receive_all(who ^ 1, 20_000);
        assert_eq!(ends[who ^ 1].receive(who ^ 1, 64), 0, "the end");
        ends[who ^ 1].close();
    }
}

// ---- from one path to the next ------------------------------------------------------------------

#[test]
fn a_connection_goes_on_to_the_next_path() {
    for answer in [Answer::RefusesAtOnce, Answer::RefusesLater] {
        let mut ends = connection(answer);
        talk_until(&mut ends, |ends| ends.iter().all(|e| is_on(e, PathId::Shm)));
        assert!(ends.iter().all(|e| e.socket.paths().rest().is_empty()));
        pour(&mut ends, C);
        pour(&mut ends, A);
        close_both(ends);
    }
}

#[test]
fn behind_the_last_path_a_connection_is_plain() {
    let mut ends = connection(Answer::Silent);
    let s = ends[C].socket;
    next_path(s, s.generation16(), Reason::PeerRefused);
    assert!(s.is(State::Candidate) && s.path() == PathId::Shm);
    next_path(s, s.generation16(), Reason::PeerRefused);
    assert!(s.is(State::Plain));
    assert_eq!(describe(&ends[C]).3, Reason::PeerRefused as u32);
    talk(&mut ends, 100);
    close_both(ends);
}

#[test]
fn a_verdict_on_the_path_before_says_nothing_of_the_next() {
    let ends = connection(Answer::Silent);
    let s = ends[C].socket;
    next_path(s, s.generation16(), Reason::PeerRefused);
    assert!(s.path() == PathId::Shm && !s.has(flag::NOTED));
    // Whoever says it has not seen yet that the connection has gone on.
    assert!(s.offered.happens(offered::Event::Refused(PathId::Loop)));
    next_path(s, s.generation16(), Reason::PeerRefused);
    assert!(s.is(State::Candidate) && s.path() == PathId::Shm && s.offered.is_none());
    close_both(ends);
}
