//! The switch that turns acceleration off, and on again, while the program runs
//! (`docs/design/cfg.md`).

use super::kept::retire_all;
use super::leave::PULL_BACK_NS;
use super::leave::pause::{pause, resume};
use super::under_way::UnderWay;
use crate::fd_table::{self, Entry};
use crate::socket::{Socket, State};
use crate::{config, sys, thread};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// How often it was turned.
static TURNED: AtomicU32 = AtomicU32::new(0);
/// A thread is at it.
static AT_WORK: AtomicBool = AtomicBool::new(false);
/// For so long the peers of all connections together are waited for: some may be stopped, and have
/// as many as they like.
const ALL_NS: u64 = 1_000_000_000;

/// The configuration says whether acceleration is on: every connection of this process's goes back
/// to its carrier, or comes from there.
///
/// In a thread of its own: a peer's thread "netacc" is waited for, and that may be waiting for this
/// process's, to do the same.
pub(crate) fn follow_switch() {
    TURNED.fetch_add(1, SeqCst);
    if AT_WORK.swap(true, SeqCst) {
        return;
    }
    // In this thread where no other can be had: it takes longer then.
    if !thread::spawn(run, core::ptr::null_mut()) {
        work();
    }
}

/// In a forked child: nobody is at it.
pub(crate) fn forget() {
    AT_WORK.store(false, Relaxed);
}

fn run(_: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-off\0");
    work();
    core::ptr::null_mut()
}

fn work() {
    loop {
        let turned = TURNED.load(SeqCst);
        if config::get().accelerate_by_default {
            for_each(true, |s, g, _| resume(s, g));
        } else {
            take_all_back();
        }
        AT_WORK.store(false, SeqCst);
        // Who has turned it since has relied on this thread.
        if TURNED.load(SeqCst) == turned || AT_WORK.swap(true, SeqCst) {
            return;
        }
    }
}

fn take_all_back() {
    retire_all();
    // Every peer is asked before one is waited for.
    for_each(false, |s, g, fd| take_back(s, g, fd, 0));
    let until = sys::now_ns().saturating_add(ALL_NS);
    for_each(false, |s, g, fd| {
        let left = until.saturating_sub(sys::now_ns());
        take_back(s, g, fd, left.min(PULL_BACK_NS));
    });
}

/// Each connection of this process's own (a forked child's is its maker's), for as long as
/// acceleration is `on`. What is not connected yet is looked at when it is.
fn for_each(on: bool, mut f: impl FnMut(&'static Socket, u16, c_int)) {
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, g) = entry
            && !s.is_inherited()
            && !s.is(State::Unconnected)
            && config::get().accelerate_by_default == on
        {
            f(s, g, fd);
        }
    });
}

fn take_back(s: &'static Socket, g: u16, fd: c_int, patience_ns: u64) {
    // A close in another thread leaves it as it is until this has ended.
    let _under_way = UnderWay::new(s, g);
    if fd_table::is_named(fd, s, g) {
        pause(s, g, fd, patience_ns);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::super::ends::hold_rx;
    use super::super::leave::within_host::LeaveCall;
    use super::*;
    use crate::path::tests::{
        A, C, End, candidate_within_the_host, close_both, promoted_within_the_host, talk,
    };
    use crate::socket::Event;
    use netacc_control::config::Config;
    use netacc_control::stats::{Path, Reason, UNCOUNTED};
    use netacc_proto::switchover::Action;
    use std::time::{Duration, Instant};

    fn off() -> Config {
        Config { accelerate_by_default: false, ..Config::default() }
    }

    /// Also where a test fails.
    struct OnDrop<F: Fn()>(F);

    impl<F: Fn()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    fn turn_off(end: &End, patience_ns: u64) {
        let s = end.socket;
        config::with(off(), || take_back(s, s.generation16(), end.fd, patience_ns));
    }

    fn turn_on(end: &End) {
        resume(end.socket, end.socket.generation16());
    }

    fn says(end: &End, why: Reason, path: Path) -> bool {
        let record = end.socket.record().unwrap();
        [&record.tx_path, &record.rx_path].iter().all(|p| p.load(Relaxed) == path as u32)
            && record.reason.load(Relaxed) == why as u32
    }

    /// Until it is so, with what is said to and fro meanwhile.
    fn comes_to(ends: &mut [End; 2], what: &str, is: impl Fn(&[End; 2]) -> bool) {
        let began = Instant::now();
        while !is(ends) {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            talk(ends, 64);
        }
    }

    #[test]
    fn a_candidate_waits_until_it_is_on_again() {
        let mut ends = candidate_within_the_host();
        for end in &ends {
            turn_off(end, PULL_BACK_NS);
            assert!(end.socket.is(State::Candidate));
            assert!(says(end, Reason::DisabledByConfig, Path::Tcp));
        }
        config::with(off(), || {
            for _ in 0..200 {
                talk(&mut ends, 64);
            }
        });
        for end in &ends {
            assert!(
                end.socket.is(State::Candidate) && says(end, Reason::DisabledByConfig, Path::Tcp)
            );
            assert_eq!(end.socket.waiters.load(SeqCst), 0);
            // Of a life that is over nothing is touched.
            let (s, later) = (end.socket, end.socket.generation16().wrapping_sub(1));
            take_back(s, later, end.fd, PULL_BACK_NS);
            take_back(s, s.generation16(), -1, PULL_BACK_NS);
            resume(s, later);
            assert_eq!(s.waiters.load(SeqCst), 0);
            turn_on(end);
        }
        comes_to(&mut ends, "accelerated", |ends| {
            ends.iter().all(|end| says(end, Reason::None, Path::Shm))
        });
        close_both(ends);
    }

    /// The switch looks at it nearly all the time, and has claimed it then, while both ends agree.
    #[test]
    fn a_candidate_that_is_looked_at_is_accelerated() {
        for side in [A, C] {
            let mut ends = candidate_within_the_host();
            let (s, over) = (ends[side].socket, AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(SeqCst) {
                        if s.state.change(State::Candidate, Event::Claimed) {
                            std::thread::sleep(Duration::from_millis(2));
                            assert!(s.state.happens(Event::Begun));
                        }
                        // (Others have a turn. Without this they may have none for seconds.)
                        std::thread::sleep(Duration::from_micros(100));
                    }
                });
                let _end = OnDrop(|| over.store(true, SeqCst));
                comes_to(&mut ends, "accelerated", |ends| {
                    ends.iter().all(|end| says(end, Reason::None, Path::Shm))
                });
            });
            close_both(ends);
        }
    }

    /// Both ends have agreed, and no call comes that would attach one.
    fn agreed_within_the_host() -> [End; 2] {
        let mut ends = candidate_within_the_host();
        let agreed = |ends: &[End; 2]| {
            (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                ends.iter().all(|end| end.socket.offered.is_made())
            })
        };
        while !agreed(&ends) {
            assert!(ends.iter().all(|end| end.socket.is(State::Candidate)));
            talk(&mut ends, 64);
        }
        ends
    }

    /// One end talks with its switch off, the other with its on.
    fn talk_beside_off(ends: &mut [End; 2], off_side: usize) {
        for (from, to) in [(C, A), (A, C)] {
            for (side, sends) in [(from, true), (to, false)] {
                let [a, c] = &mut *ends;
                let end = if side == A { a } else { c };
                let now = if side == off_side { off() } else { Config::default() };
                config::with(now, || match sends {
                    true => end.send(side, 64),
                    false => end.receive_all(side, 64),
                });
            }
        }
    }

    fn reason(end: &End) -> Option<Reason> {
        Reason::from_code(end.socket.record().unwrap().reason.load(Relaxed))
    }

    /// It is attached alone, before or after its peer's program is turned off, and says so.
    #[test]
    fn who_is_off_before_it_is_attached_tells_its_peer() {
        for (off_side, attached_first) in [(A, false), (A, true), (C, false), (C, true)] {
            let mut ends = agreed_within_the_host();
            let other = off_side ^ 1;
            if attached_first {
                let end = &ends[other];
                super::super::attach(end.socket, end.socket.generation16(), end.fd);
                assert_eq!(reason(end), Some(Reason::Agreed));
            }
            turn_off(&ends[off_side], PULL_BACK_NS);
            let began = Instant::now();
            while reason(&ends[other]) != Some(Reason::PeerAskedForTcp) {
                assert!(began.elapsed() < Duration::from_secs(20), "{:?}", reason(&ends[other]));
                // (One that is attached hears of it without a call.)
                if !attached_first {
                    talk_beside_off(&mut ends, off_side);
                }
            }
            (0..100).for_each(|_| talk_beside_off(&mut ends, off_side));
            assert!(says(&ends[off_side], Reason::DisabledByConfig, Path::Tcp));
            assert!(says(&ends[other], Reason::PeerAskedForTcp, Path::Tcp));
            assert!(ends[off_side].socket.is(State::Candidate));
            assert!(ends[other].socket.is(State::Attached));
            turn_on(&ends[off_side]);
            assert_eq!(reason(&ends[off_side]), Some(Reason::Agreed));
            comes_to(&mut ends, "accelerated", |ends| {
                ends.iter().all(|end| says(end, Reason::None, Path::Shm))
            });
            close_both(ends);
        }
    }

    /// Both are attached, and nothing was sent since: nothing is to be pulled back from a ring.
    #[test]
    fn who_is_off_before_anything_is_on_a_ring_tells_its_peer() {
        let mut ends = agreed_within_the_host();
        for end in &ends {
            super::super::attach(end.socket, end.socket.generation16(), end.fd);
            assert_eq!(reason(end), Some(Reason::Agreed));
        }
        turn_off(&ends[A], PULL_BACK_NS);
        let began = Instant::now();
        while reason(&ends[C]) != Some(Reason::PeerAskedForTcp) {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", reason(&ends[C]));
            std::thread::yield_now();
        }
        (0..20).for_each(|_| talk_beside_off(&mut ends, A));
        assert!(says(&ends[C], Reason::PeerAskedForTcp, Path::Tcp));
        turn_on(&ends[A]);
        comes_to(&mut ends, "accelerated", |ends| {
            ends.iter().all(|end| says(end, Reason::None, Path::Shm))
        });
        close_both(ends);
    }

    /// What an option, urgent data, or an exec leaves to the kernel, with an offer or with a slot.
    #[test]
    fn who_is_plain_before_it_is_on_a_ring_tells_its_peer() {
        for (peer_attached, attached) in [(false, false), (true, false), (true, true)] {
            let mut ends = agreed_within_the_host();
            let attach = |end: &End| {
                super::super::attach(end.socket, end.socket.generation16(), end.fd);
            };
            if peer_attached {
                attach(&ends[A]);
            }
            if attached {
                attach(&ends[C]);
            }
            let (s, g, fd) = (ends[C].socket, ends[C].socket.generation16(), ends[C].fd);
            assert!(super::super::to_kernel(s, g, fd, Reason::SocketOption, false));
            assert!(says(&ends[C], Reason::SocketOption, Path::Tcp) && s.is(State::Plain));
            let began = Instant::now();
            while reason(&ends[A]) != Some(Reason::PeerAskedForTcp) {
                assert!(began.elapsed() < Duration::from_secs(20), "{:?}", reason(&ends[A]));
                if !peer_attached {
                    talk(&mut ends, 64);
                }
            }
            (0..20).for_each(|_| talk(&mut ends, 64));
            assert!(says(&ends[A], Reason::PeerAskedForTcp, Path::Tcp));
            close_both(ends);
        }
    }

    /// The service's thread finds the peer while this process is off, behind another reason.
    #[test]
    fn what_is_agreed_on_while_it_is_off_says_that_it_is_off() {
        let mut ends = agreed_within_the_host();
        ends[A].socket.set_reason(Reason::NotClaimed);
        turn_off(&ends[A], PULL_BACK_NS);
        // As `hand_over` does.
        config::with(off(), || {
            ends[A].socket.start(Reason::Agreed);
            ends[A].socket.is_offered();
        });
        assert_eq!(reason(&ends[A]), Some(Reason::DisabledByConfig));
        turn_on(&ends[A]);
        comes_to(&mut ends, "accelerated", |ends| {
            ends.iter().all(|end| says(end, Reason::None, Path::Shm))
        });
        close_both(ends);
    }

    /// The peer has said that it stays, and that it comes: the first word is heard behind the
    /// second.
    #[test]
    fn a_late_word_changes_nothing_of_what_is_said_of_one_that_comes() {
        let ends = promoted_within_the_host();
        let s = ends[C].socket;
        let (channel, slot) = (s.channel().unwrap(), s.slot.load(Relaxed) as usize);
        drop(super::super::serve_pull_back(channel, slot));
        assert!(says(&ends[C], Reason::None, Path::Shm), "{:?}", reason(&ends[C]));
        close_both(ends);
    }

    #[test]
    fn what_lies_in_a_ring_comes_and_both_directions_are_promoted_again() {
        let mut ends = promoted_within_the_host();
        for round in 1..20 {
            // (Less than a ring holds: nobody reads meanwhile.)
            let (up, down) = (5_000 * (round % 8), 3_000 * (round % 7));
            ends[C].send(C, up);
            ends[A].send(A, down);
            // Asked first, with bytes unread, and then waited for.
            turn_off(&ends[A], 0);
            if round % 3 != 0 {
                turn_off(&ends[A], PULL_BACK_NS);
            }
            if round % 2 == 0 {
                turn_off(&ends[C], PULL_BACK_NS);
            }
            config::with(off(), || {
                ends[A].receive_all(A, up);
                ends[C].receive_all(C, down);
                comes_to(&mut ends, "on TCP", |ends| {
                    says(&ends[A], Reason::DisabledByConfig, Path::Tcp)
                });
                // More than once: a receiver follows with the call after the last byte of the ring.
                (0..4).for_each(|_| talk(&mut ends, 64));
                assert!(says(&ends[A], Reason::DisabledByConfig, Path::Tcp));
                talk(&mut ends, 100_000);
            });
            assert!(says(&ends[A], Reason::DisabledByConfig, Path::Tcp));
            assert!(ends.iter().all(|end| end.socket.is(State::Attached)));
            ends.iter().for_each(turn_on);
            comes_to(&mut ends, "accelerated again", |ends| {
                ends.iter().all(|end| says(end, Reason::None, Path::Shm))
            });
            assert!(ends.iter().all(|end| end.socket.waiters.load(SeqCst) == 0));
        }
        close_both(ends);
    }

    /// Turned to and fro with bytes on their way: what the receiver waits for comes when it is on.
    #[test]
    fn it_is_on_again_before_all_is_back() {
        let mut ends = promoted_within_the_host();
        for round in 1..20 {
            ends[C].send(C, 20_000);
            turn_off(&ends[A], 0);
            turn_on(&ends[A]);
            turn_off(&ends[A], 0);
            ends[C].send(C, 100 * round);
            turn_on(&ends[A]);
            ends[A].receive_all(A, 20_000 + 100 * round);
            comes_to(&mut ends, "accelerated again", |ends| {
                ends.iter().all(|end| says(end, Reason::None, Path::Shm))
            });
        }
        close_both(ends);
    }

    #[test]
    fn what_is_off_can_leave_for_good() {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, 5_000);
        turn_off(&ends[A], PULL_BACK_NS);
        let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
        let is_uncounted = || s.record().unwrap().origin.load(Relaxed) & UNCOUNTED != 0;
        assert!(!is_uncounted(), "it goes on counting while it can come back");
        assert!(super::super::to_kernel(s, g, fd, Reason::SocketOption, false));
        assert!(is_uncounted());
        assert!(s.is(State::Plain) && says(&ends[A], Reason::SocketOption, Path::Tcp));
        turn_on(&ends[A]);
        ends[A].receive_all(A, 5_000);
        talk(&mut ends, 100_000);
        assert!(s.is(State::Plain));
        close_both(ends);
    }

    /// From the first step of a leave on nothing arms the receiver: the ring is given back.
    #[test]
    fn what_leaves_for_good_is_not_armed_by_the_switch() {
        let mut ends = promoted_within_the_host();
        turn_off(&ends[A], PULL_BACK_NS);
        let (s, g) = (ends[A].socket, ends[A].socket.generation16());
        let mut way = LeaveCall::new(s, g, ends[A].fd, PULL_BACK_NS, false);
        assert_eq!(way.go(), Some(Action::Become));
        turn_on(&ends[A]);
        assert_eq!(ends[A].receive_now(A, 1), -(libc::EAGAIN as isize));
        talk(&mut ends, 64);
        talk(&mut ends, 64);
        assert!(
            !ends[C].socket.published.sends_fast() && !ends[A].socket.published.receives_fast()
        );
        assert!(super::super::to_kernel(s, g, ends[A].fd, Reason::SocketOption, false));
        talk(&mut ends, 100_000);
        close_both(ends);
    }

    #[test]
    fn a_receiver_whose_count_is_not_known_is_not_armed_by_the_switch() {
        let mut ends = promoted_within_the_host();
        turn_off(&ends[A], PULL_BACK_NS);
        let s = ends[A].socket;
        {
            // As if a call of before the attachment had received what nobody has counted.
            let h = hold_rx(s, s.generation16()).ok().unwrap();
            h.end.unsettled = true;
        }
        turn_on(&ends[A]);
        assert_eq!(s.record().unwrap().reason.load(Relaxed), Reason::UncountedBytes as u32);
        turn_off(&ends[A], PULL_BACK_NS);
        turn_on(&ends[A]);
        (0..4).for_each(|_| talk(&mut ends, 64));
        assert!(!ends[A].socket.published.receives_fast());
        close_both(ends);
    }

    /// What comes again to a kernel socket that is shut down for receiving is answered by a reset.
    #[test]
    fn what_is_unread_behind_a_shutdown_is_read_from_the_ring() {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, 5_000);
        let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
        assert_eq!(super::super::shutdown(s, g, fd, libc::SHUT_RDWR), 0);
        turn_off(&ends[A], PULL_BACK_NS);
        ends[A].receive_all(A, 5_000);
        assert_eq!(ends[A].receive(A, 1), 0);
        assert_eq!(ends[C].receive(C, 1), 0);
        ends[C].send(C, 1);
        ends.iter_mut().for_each(End::close);
    }

    /// Who does not wait was told that there are bytes, and gets them while they come again.
    #[test]
    fn what_was_readable_is_received_without_waiting() {
        let mut ends = promoted_within_the_host();
        for _ in 0..200 {
            ends[C].send(C, 5_000);
            let began = sys::now_ns();
            turn_off(&ends[A], 0);
            // (It waits for what comes again for so long, and a busy machine may take longer.)
            let got = loop {
                let got = ends[A].receive_now(A, 5_000);
                let took = sys::now_ns() - began;
                if got > 0 || !(PULL_BACK_NS..20_000_000_000).contains(&took) {
                    break got;
                }
            };
            assert!(got > 0, "{got} after {} ns", sys::now_ns() - began);
            ends[A].receive_all(A, 5_000 - got as usize);
            turn_on(&ends[A]);
            comes_to(&mut ends, "accelerated again", |ends| {
                ends.iter().all(|end| says(end, Reason::None, Path::Shm))
            });
        }
        close_both(ends);
    }
}
