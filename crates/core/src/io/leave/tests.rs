//! Leaving shared memory, at moments that only a loaded machine, a handler or a child brings about.

extern crate std;
use super::halves::Headway;
use super::serve::PullBack;
use super::within_host::ASK_NS;
use super::*;
use crate::channel::Side;
use crate::io::end_in_reset::{For, end_as_ever, end_in_reset};
use crate::io::ends::{demote_tx, hold_tx};
use crate::io::under_way::UnderWay;
use crate::io::{Departure, Moved};
use crate::path::tests::{A, C, End, close_both, promoted, promoted_within_the_host};
use crate::{host, process, sys, testing};
use netacc_proto::switchover::{Peer, RxView, TxState, TxView};
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
        let mut way = LeaveCall::new(s, g, fd, PULL_BACK_NS, false);
        way.until = 0;
        let end = way.go();
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

/// The machine is so busy that the peer's library has no turn: who hands the connection on waits.
#[test]
fn a_busy_peer_has_more_time_before_the_connection_is_broken_off() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
    {
        let held = hold_tx(ends[C].socket, ends[C].socket.generation16());
        let mut way = LeaveCall::new(s, g, fd, PULL_BACK_STRICT_NS, true);
        let mut late_after = |ns| {
            testing::pass_ns(ns);
            while !matches!(way.step(false), Ok(Action::Wait(..))) {}
            way.is_late()
        };
        assert!(held.is_ok() && !late_after(0) && !late_after(2 * PULL_BACK_STRICT_NS));
        assert!(!late_after(2 * PULL_BACK_STRICT_NS) && late_after(2 * PULL_BACK_STRICT_NS));
    }
    assert!(leaves(&ends[A], Reason::PassedByScmRights, true), "it answers");
    receives(&mut ends, A, UNREAD);
    close_both(ends);
}

/// What comes of it gives it more time, and where the peer's process is stopped it has only that;
/// which is seldom looked for.
#[test]
fn a_stopped_peer_has_two_seconds_from_the_last_change_on() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
    testing::with_frozen_clock(|| {
        let held = hold_tx(ends[C].socket, ends[C].socket.generation16());
        let mut way = LeaveCall::new(s, g, fd, PULL_BACK_STRICT_NS, true);
        host::PRETENDED.set(Some(false));
        testing::pass_ns(PULL_BACK_STRICT_NS + 1);
        assert!(held.is_ok() && (0..100).all(|_| !way.is_late()));
        assert_eq!(host::ASKED.get(), 1, "within 100 ms");
        host::PRETENDED.set(Some(true));
        testing::pass_ns(ASK_NS);
        assert!(way.is_late(), "it is stopped, and nothing has come of it");
        // Something has come.
        while !matches!(way.step(false), Ok(Action::Wait(..))) {}
        testing::pass_ns(PULL_BACK_STRICT_NS - 1);
        assert!(!way.is_late(), "the time has begun anew");
        testing::pass_ns(ASK_NS);
        assert!(way.is_late());
        host::PRETENDED.set(None);
    });
    assert!(leaves(&ends[A], Reason::PassedByScmRights, true), "it answers");
    receives(&mut ends, A, UNREAD);
    close_both(ends);
}

/// A peer that changes its words again and again is not waited for for ever.
#[test]
fn a_peer_that_only_flips_its_words_is_given_up() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
    {
        let held = hold_tx(ends[C].socket, ends[C].socket.generation16());
        let mut way = LeaveCall::new(s, g, fd, PULL_BACK_STRICT_NS, true);
        let mut late_after = |ns| {
            testing::pass_ns(ns);
            let late = way.is_late();
            // As if the peer had been in none of these states before.
            way.headway = Headway::default();
            while !matches!(way.step(false), Ok(Action::Wait(..))) {}
            late
        };
        assert!(held.is_ok() && (0..5).all(|_| !late_after(NOTHING_COMES_NS / 2)));
        assert!((0..8).any(|_| late_after(NOTHING_COMES_NS * 9 / 10)));
    }
    assert!(leaves(&ends[A], Reason::PassedByScmRights, true), "it answers");
    receives(&mut ends, A, UNREAD);
    close_both(ends);
}

/// Its words may say this and then that: nothing of it counts twice, but for bytes that go again.
#[test]
fn what_a_peer_repeats_is_no_headway() {
    use netacc_proto::switchover::{Coming, Delivery, Peer, RxState};
    let tx = TxView {
        delivery: Delivery::Lossy,
        state: TxState::Fast,
        open: true,
        asked: false,
        room: true,
        peer: Peer::Lives,
        leaves: true,
    };
    let (state, coming) = (RxState::Frozen, Coming::Waiting);
    let rx = RxView { state, coming, unread: true, peer: Peer::Lives };
    let mut headway = Headway::default();
    let each = [
        (tx, rx),
        (TxView { asked: true, ..tx }, rx),
        (tx, RxView { unread: false, ..rx }),
        (tx, RxView { state: RxState::FrozenToFast, ..rx }),
        (tx, RxView { state: RxState::Leftover, coming: Coming::Short, ..rx }),
        (TxView { state: TxState::Shut, ..tx }, rx),
        (TxView { state: TxState::Resending, ..tx }, rx),
    ];
    for again in [true, false, false] {
        for (tx, rx) in &each {
            assert_eq!(headway.is_made(tx, rx, 5), again, "{tx:?} {rx:?}");
        }
    }
    let tx = TxView { state: TxState::Resending, ..tx };
    assert!(headway.is_made(&tx, &rx, 6) && !headway.is_made(&tx, &rx, 5));
    assert!(!headway.is_made(&tx, &rx, 6) && headway.is_made(&tx, &rx, 7));
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
    let pull = PullBack(UnderWay::new(s, g));
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

/// What the kernel does with the end's carrier when it is closed.
fn linger_of(end: &End) -> (c_int, c_int) {
    let mut linger = libc::linger { l_onoff: 9, l_linger: 9 };
    assert!(sys::getsockopt(end.fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0);
    (linger.l_onoff, linger.l_linger)
}

fn application_linger_of(end: &End) -> (c_int, c_int) {
    let (s, g) = (end.socket, end.socket.generation16());
    let linger = crate::io::application_linger(s, g, end.fd).unwrap();
    (linger.l_onoff, linger.l_linger)
}

fn application_sets(end: &End, linger: (c_int, c_int)) {
    let (s, g, fd) = (end.socket, end.socket.generation16(), end.fd);
    let value = libc::linger { l_onoff: linger.0, l_linger: linger.1 };
    let at = (&raw const value).cast();
    let on = crate::socket::Named { s, g, fd };
    // SAFETY: a value of ours.
    assert_eq!(unsafe { crate::io::set_linger(on, at, size_of_val(&value) as u32) }, 0);
}

/// The peer's word that it has left; whether it may count on a reset.
fn hears_that_it_is_left(end: &End) -> bool {
    let (s, channel) = (end.socket, end.socket.channel().unwrap());
    let slot = s.slot.load(Relaxed) as usize;
    crate::io::hear_left(channel, slot);
    let said = channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].load(Relaxed);
    said & quiet::RESETS != 0
}

/// What it has said of its end: nothing of its stream is on the carrier behind the ring.
fn says_last(end: &End) -> bool {
    let (s, channel) = (end.socket, end.socket.channel().unwrap());
    let slot = s.slot.load(Relaxed) as usize;
    channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].load(Relaxed) & quiet::LAST != 0
}

#[test]
fn a_process_that_ends_may_send_until_it_has_ended() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    crate::io::at_exit(ends[C].socket, ends[C].fd);
    assert!(!says_last(&ends[C]));
    // Destructors of other libraries run behind ours.
    ends[C].send(C, 100);
    receives(&mut ends, A, UNREAD + 100);
    assert!(!says_last(&ends[A]));
    let (s, fd) = (ends[A].socket, ends[A].fd);
    assert_eq!(crate::io::shutdown(s, s.generation16(), fd, libc::SHUT_WR), 0);
    assert!(says_last(&ends[A]));
    close_both(ends);
}

const RESETS: (c_int, c_int) = (1, 0);

#[test]
fn who_is_left_with_bytes_unread_ends_in_a_reset_until_they_are_read() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    // The peer's word comes before it is true, and when it is.
    assert!(hears_that_it_is_left(&ends[A]));
    assert_eq!(linger_of(&ends[A]), (0, 0));
    demote(ends[C].socket);
    assert!(hears_that_it_is_left(&ends[A]));
    for read in [1, UNREAD - 2] {
        assert_eq!((linger_of(&ends[A]), application_linger_of(&ends[A])), (RESETS, (0, 0)));
        receives(&mut ends, A, read);
    }
    assert_eq!(linger_of(&ends[A]), RESETS);
    receives(&mut ends, A, 1);
    assert_eq!((linger_of(&ends[A]), application_linger_of(&ends[A])), ((0, 0), (0, 0)));
    close_both(ends);
}

#[test]
fn the_application_s_so_linger_is_its_own_all_the_while() {
    for (before, meanwhile) in [((0, 0), (1, 9)), ((1, 0), (0, 0)), ((0, 0), RESETS)] {
        let mut ends = promoted_within_the_host();
        application_sets(&ends[A], before);
        assert_eq!(linger_of(&ends[A]), before);
        ends[C].send(C, UNREAD);
        demote(ends[C].socket);
        assert!(hears_that_it_is_left(&ends[A]));
        assert_eq!((linger_of(&ends[A]), application_linger_of(&ends[A])), (RESETS, before));
        application_sets(&ends[A], meanwhile);
        assert_eq!((linger_of(&ends[A]), application_linger_of(&ends[A])), (RESETS, meanwhile));
        receives(&mut ends, A, UNREAD);
        assert_eq!((linger_of(&ends[A]), application_linger_of(&ends[A])), (meanwhile, meanwhile));
        ends.iter_mut().for_each(End::close);
    }
}

#[test]
fn a_reset_for_two_reasons_is_due_until_neither_is_left() {
    for read_first in [false, true] {
        let mut ends = promoted_within_the_host();
        let (s, g) = (ends[A].socket, ends[A].socket.generation16());
        ends[C].send(C, UNREAD);
        demote(ends[C].socket);
        let sending = |begins: bool| {
            let Ok(mut h) = hold_tx(s, g) else { return };
            let fd = s.fd.load(Relaxed);
            match begins {
                true => end_in_reset(&mut h, fd, For::Sending),
                false => end_as_ever(&mut h, fd, For::Sending),
            }
        };
        sending(true);
        assert!(hears_that_it_is_left(&ends[A]));
        if read_first {
            receives(&mut ends, A, UNREAD);
        } else {
            sending(false);
        }
        assert_eq!((linger_of(&ends[A]), application_linger_of(&ends[A])), (RESETS, (0, 0)));
        if read_first {
            sending(false);
        } else {
            receives(&mut ends, A, UNREAD);
        }
        assert_eq!(linger_of(&ends[A]), (0, 0));
        close_both(ends);
    }
}

#[test]
fn who_leaves_itself_what_it_is_left_with_ends_in_a_reset_too() {
    let mut ends = promoted_within_the_host();
    ends[C].send(C, UNREAD);
    demote(ends[C].socket);
    assert!(!leaves(&ends[A], Reason::SeveralEpollSets, false));
    assert_eq!(linger_of(&ends[A]), RESETS);
    receives(&mut ends, A, UNREAD);
    assert_eq!(linger_of(&ends[A]), (0, 0));
    until("the move is completed", || {
        ends[A].receive_now(A, 1);
        ends[A].socket.is(State::Plain)
    });
    close_both(ends);
}

/// The kernel has no room for all that was unread, and the connection is its own all the same. Who
/// reads what is there, and closes, has left the rest unread: a reset. (It was a FIN.)
#[test]
fn a_close_resets_where_what_was_there_has_not_come_again() {
    let mut ends = promoted_within_the_host();
    for (end, room) in [(A, libc::SO_RCVBUF), (C, libc::SO_SNDBUF)] {
        assert!(sys::setsockopt(ends[end].fd, libc::SOL_SOCKET, room, &4096i32) >= 0);
    }
    let all = ends[A].received + 30_000;
    ends[C].send(C, 30_000);
    assert!(leaves(&ends[A], Reason::SocketOption, true) && ends[A].socket.is(State::Plain));
    {
        // The peer's library sends no more of it meanwhile.
        let held = hold_tx(ends[C].socket, ends[C].socket.generation16());
        assert!(held.is_ok());
        while ends[A].receive_now(A, 5000) > 0 {}
        assert!(ends[A].received < all);
        ends[A].close();
    }
    let began = Instant::now();
    let mut said = ends[C].receive_now(C, 1);
    while said == -(libc::EAGAIN as isize) && began.elapsed() < LONG {
        said = ends[C].receive_now(C, 1);
    }
    assert_eq!(said, -(libc::ECONNRESET as isize));
    ends[C].close();
}

/// Its peer is gone with bytes of it, and its carrier has failed already: nobody dissolves that.
#[test]
fn what_is_broken_off_behind_its_carrier_says_so_in_its_trace() {
    let mut ends = promoted();
    ends[C].send(C, UNREAD);
    let (s, fd) = (ends[C].socket, ends[C].fd);
    carrier::dissolve(fd);
    let breaks_off = testing::traced(s, Trace::BrokenOff, || {
        let mut departure = Departure::new(s);
        assert_eq!(departure.step((0, 0), Peer::Gone), Moved::Broken);
        departure.give_up();
    });
    assert_eq!((breaks_off, s.has(flag::BROKEN_OFF)), (1, true));
    [C, A].into_iter().for_each(|side| ends[side].close());
}
