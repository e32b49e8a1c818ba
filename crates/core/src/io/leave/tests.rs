//! Leaving shared memory, at moments that only a loaded machine, a handler or a child brings about.

extern crate std;
use super::serve::PullBack;
use super::*;
use crate::channel::Side;
use crate::io::promote::demote_tx;
use crate::io::waits::Blocking;
use crate::path::tests::{A, C, End, close_both, promoted_within_the_host};
use crate::process;
use netacc_proto::switchover::TxState;
use std::thread;
use std::time::{Duration, Instant};

/// A loaded machine may need so long.
const LONG: Duration = Duration::from_secs(20);

/// Bytes in the ring from C to A, which A has not read.
const UNREAD: usize = 5_000;

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "{what}");
        thread::yield_now();
    }
}

/// Looks, until all of it has come.
fn receives(ends: &mut [End; 2], side: usize, n: usize) {
    let until = ends[side].received + n;
    let began = Instant::now();
    while ends[side].received < until {
        assert!(began.elapsed() < LONG, "{} bytes are missing", until - ends[side].received);
        ends[side].receive_now(side, until - ends[side].received);
    }
}

fn leaves(end: &End, why: Reason, strict: bool) -> bool {
    to_kernel(end.socket, end.socket.generation16(), end.fd, why, strict)
}

/// The sending direction leaves the ring, for good. Nobody is told here.
fn demote(s: &'static Socket) {
    let held = hold_tx(s, s.generation16());
    assert!(held.is_ok_and(|mut h| {
        demote_tx(s, &mut h, true);
        h.end.switch.state() == TxState::Carrier
    }));
}

/// What the kernel alone says of the end: what a program reads that has it without the library.
fn kernel_says(end: &End) -> isize {
    let mut byte = 0u8;
    // SAFETY: one byte of ours.
    unsafe {
        let (at, none) = (&raw mut byte, core::ptr::null_mut());
        sys::recvfrom(end.fd, at, 1, libc::MSG_DONTWAIT, none, core::ptr::null_mut())
    }
}

#[test]
fn a_leave_that_comes_too_late_has_asked_for_the_unread_bytes() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
    {
        // The thread did not run for as long as it was to wait, nor has the peer answered yet.
        let held = hold_tx(ends[C].socket, ends[C].socket.generation16());
        let end = LeaveCall { until: 0, ..LeaveCall::new(s, g, fd, PULL_BACK_NS, false) }.go();
        assert!(held.is_ok() && end == Some(Action::Later), "{end:?}");
    }
    leaves_later(s, Reason::SocketOption);
    receives(&mut ends, A, UNREAD);
    until("the move is completed", || {
        ends[A].receive_now(A, 1);
        ends[A].socket.is(State::Plain)
    });
    close_both(ends);
}

/// (Without that the receive never returns.)
#[test]
fn what_a_killed_peer_has_left_in_the_ring_is_read_behind_a_leave() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    let (c, a) = (ends[C].socket, ends[A].socket);
    {
        // It neither answers nor says that it ends; its kernel does.
        let held = hold_tx(c, c.generation16());
        assert!(held.is_ok() && sys::shutdown(ends[C].fd, libc::SHUT_WR) >= 0);
        assert!(!leaves(&ends[A], Reason::SeveralEpollSets, false));
        assert!(a.has(flag::LEAVING));
        receives(&mut ends, A, UNREAD);
        assert_eq!(ends[A].receive_now(A, 1), 0);
    }
    ends.iter_mut().for_each(End::close);
}

#[test]
fn a_handlers_leave_is_completed_by_the_calls_that_receive() {
    for half in [Side::Send, Side::Receive] {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, UNREAD);
        let (s, g) = (ends[A].socket, ends[A].socket.generation16());
        let left = match half {
            // As if this thread were in a call on that half.
            Side::Send => hold_tx(s, g).map(|_held| leaves(&ends[A], Reason::SocketOption, false)),
            _ => hold_rx(s, g).map(|_held| leaves(&ends[A], Reason::SocketOption, false)),
        };
        assert!(left.is_ok_and(|left| !left) && s.is(State::Attached));
        receives(&mut ends, A, UNREAD);
        until("the move is completed", || {
            ends[A].receive_now(A, 1);
            s.is(State::Plain)
        });
        ends[A].send(A, 100);
        receives(&mut ends, C, 100);
        close_both(ends);
    }
}

#[test]
fn a_handlers_strict_leave_is_an_error_and_no_gap() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    let (s, g) = (ends[A].socket, ends[A].socket.generation16());
    {
        let held = hold_tx(s, g);
        assert!(held.is_ok() && !leaves(&ends[A], Reason::PassedByScmRights, true));
    }
    assert!(kernel_says(&ends[A]) < 0, "whoever has it next does not wait for ever");
    until("the peer is told", || {
        let r = ends[C].receive_now(C, 1);
        r == -(libc::ECONNRESET as isize)
    });
    ends.iter_mut().for_each(End::close);
}

#[test]
fn what_is_broken_off_has_no_clean_end() {
    let mut ends = promoted_within_the_host();
    // Unread at both ends, and C has left the ring by itself.
    ends[A].send(A, UNREAD);
    ends[C].send(C, UNREAD);
    demote(ends[C].socket);
    assert!(!leaves(&ends[A], Reason::PassedByScmRights, true));
    assert!(is_reset_now(ends[A].socket, ends[A].socket.generation16(), ends[A].fd));
    for _ in 0..3 {
        assert!(kernel_says(&ends[A]) < 0, "an end would be one of the whole stream");
    }
    ends.iter_mut().for_each(End::close);
}

#[test]
fn a_reset_that_nobody_was_told_of_goes_with_the_descriptor() {
    let mut ends = promoted_within_the_host();
    // C has not read it when it is reset.
    ends[A].send(A, UNREAD);
    break_off(ends[C].socket, ends[C].fd);
    let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
    until("the reset is found", || is_reset_now(s, g, fd));
    assert!(owes_reset(s), "the application has made no call since");
    assert!(!leaves(&ends[A], Reason::PassedByScmRights, true));
    for _ in 0..3 {
        assert!(kernel_says(&ends[A]) < 0, "an end would be one of the whole stream");
    }
    ends.iter_mut().for_each(End::close);
}

/// C sends more than what the ring takes, and sleeps; it comes back from its thread.
fn sends_more_than_fits(mut c: End) -> (usize, thread::JoinHandle<End>) {
    let (s, ring) = (c.socket, c.socket.tx_ring_bytes() as usize);
    let sender = thread::spawn(move || {
        c.send(C, ring + 100);
        c
    });
    until("the ring is full", || {
        let slot = s.slot.load(Relaxed) as usize;
        !wait::send_room(s, s.channel().unwrap(), slot, ring as u64)
            && s.published.posted.awaited().threads.iter().any(|place| *place != 0)
    });
    (ring + 100, sender)
}

#[test]
fn who_waits_for_room_is_woken_where_a_child_has_sent_the_rest() {
    let [mut a, c] = promoted_within_the_host();
    let (s, g) = (c.socket, c.socket.generation16());
    let pull = PullBack(Blocking::new(s, g));
    let (n, sender) = sends_more_than_fits(c);
    // What a child does in its own process; it can wake nobody here.
    demote(s);
    assert!(s.state.change(State::Attached, Event::Refused));
    assert_eq!(pull.go_on(), None);
    until("the sender goes on", || sender.is_finished());
    drop(pull);
    a.receive_all(A, n);
    [a, sender.join().unwrap()].iter_mut().for_each(End::close);
}

#[test]
fn who_waits_for_room_since_before_a_fork_sees_what_the_child_does() {
    let [mut a, c] = promoted_within_the_host();
    let s = c.socket;
    let (n, sender) = sends_more_than_fits(c);
    // The process has forked since the connection was made. (Not in this test's.)
    s.forks.store(process::forks().wrapping_sub(1), Relaxed);
    wait::after_fork_in_parent(s);
    demote(s);
    until("the sender goes on", || sender.is_finished());
    a.receive_all(A, n);
    [a, sender.join().unwrap()].iter_mut().for_each(End::close);
}
