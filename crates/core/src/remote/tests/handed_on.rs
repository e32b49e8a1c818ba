//! A connection that is about to be handed to somebody who can read no ring: it goes back to its
//! carrier first, however long that takes, as long as it comes on.

use super::*;
use crate::io::Patience;
use crate::socket::{Named, flag};
use crate::trace::{self, Event};
use netacc_control::config::Config;

const SECOND_NS: u64 = 1_000_000_000;

impl Rig {
    /// A call hands that end on. While it waits `meanwhile` happens, each time in so long, and the
    /// hosts go on. What the call comes to, and how long it took.
    fn hand_on(
        &mut self,
        (i, side): (usize, usize),
        each_ns: u64,
        meanwhile: impl FnMut(&mut Rig),
    ) -> (bool, u64) {
        let s = self.conns[i][side].socket;
        let patience = Patience::of(s, s.generation16(), Reason::InheritedByExec, true);
        self.waits((i, side), patience, each_ns, meanwhile)
    }

    fn waits(
        &mut self,
        (i, side): (usize, usize),
        patience: Patience,
        each_ns: u64,
        mut meanwhile: impl FnMut(&mut Rig),
    ) -> (bool, u64) {
        let End { socket: s, fd, .. } = self.conns[i][side];
        let (g, why) = (s.generation16(), Reason::InheritedByExec);
        let began = sys::now_ns();
        let went = io::await_way_back(Named { s, g, fd }, why, patience, |_| {
            meanwhile(self);
            self.settle();
            testing::pass_ns(each_ns);
        });
        (went, sys::now_ns() - began)
    }

    /// A connection whose connector has sent more than its carrier has room for, by RDMA.
    pub(super) fn full(model: Model) -> (Rig, usize) {
        let mut rig = Rig::new(Order::Shuffled(5), model, 2);
        rig.listen(1);
        let few: c_int = 4096;
        let listener = rig.hosts[1].listener;
        assert!(sys::setsockopt(listener, libc::SOL_SOCKET, libc::SO_RCVBUF, &few) >= 0);
        let i = rig.connect(0, 1);
        let fd = rig.conns[i][C].fd;
        assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &few) >= 0);
        rig.promoted(i);
        while rig.send(i, C, 20_000) > 0 {
            rig.settle();
        }
        (rig, i)
    }

    /// Something comes of that end's way back when a program has done that. (When there is room is
    /// the kernel's to say, in its own time: on a busy machine it may take more than that.)
    fn comes_on(&mut self, (i, side): (usize, usize), mut act: impl FnMut(&mut Rig)) {
        let s = self.conns[i][side].socket;
        let before = s.came_on.load(Acquire);
        for turn in 0..1000 {
            if turn % 300 == 0 {
                act(self);
            }
            self.settle();
            if s.came_on.load(Acquire) != before || !s.is(State::Attached) {
                return;
            }
            self.wait(1_000_000);
            testing::pass_ns(1_000_000);
        }
    }

    fn nothing_is_lost(mut self, i: usize) {
        self.drain(i);
        for e in &self.conns[i] {
            assert!(e.over.is_none() && !e.socket.has(flag::BROKEN_OFF), "{}", self.describe());
        }
        self.finish();
    }
}

/// Its program reads a little at a time: what goes again over the carrier finds room as slowly,
/// where the kernel may keep no more of it. (After 2 s the connection was broken off.)
#[test]
fn a_slow_reader_is_waited_for() {
    for model in MODELS {
        let (mut rig, i) = Rig::full(model);
        let (fd, few) = (rig.conns[i][C].fd, 1);
        assert!(sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &few) >= 0);
        let (went, took) = rig.hand_on((i, C), 3 * SECOND_NS, |r| {
            r.comes_on((i, C), |r| _ = r.receive(i, A, 3000));
        });
        assert!(went && took > 12 * SECOND_NS, "{model:?}: {went} after {took} ns");
        rig.nothing_is_lost(i);
    }
}

/// Its host is so busy that its library has no turn for a while.
#[test]
fn a_busy_host_is_waited_for() {
    for model in MODELS {
        for side in [C, A] {
            let (mut rig, i) = Rig::full(model);
            let other = rig.conns[i][side ^ 1].host;
            rig.hosts[other].stopped = true;
            let mut turns = 0;
            let (went, took) = rig.hand_on((i, side), SECOND_NS, |r| {
                turns += 1;
                r.hosts[other].stopped = turns % 7 != 0;
                if !r.hosts[other].stopped {
                    r.comes_on((i, side), |r| _ = r.receive(i, A, 30_000));
                }
            });
            assert!(went && took > 6 * SECOND_NS, "{model:?}: {went} after {took} ns");
            rig.hosts[other].stopped = false;
            rig.nothing_is_lost(i);
        }
    }
}

/// Who only sends past the library waits for its own half, however busy the other host is: a byte
/// that came to the carrier before would be taken for a broken rule. (It waited 50 ms.)
#[test]
fn who_only_sends_waits_for_its_own_half() {
    for model in MODELS {
        let (mut rig, i) = Rig::full(model);
        let s = rig.conns[i][C].socket;
        let g = s.generation16();
        let patience = Patience::to_send(s, crate::sys::now_ns());
        let other = rig.conns[i][A].host;
        let mut turns = 0;
        let (_, took) = rig.waits((i, C), patience, SECOND_NS, |r| {
            turns += 1;
            r.hosts[other].stopped = turns % 5 != 0;
            if !r.hosts[other].stopped {
                r.comes_on((i, C), |r| _ = r.receive(i, A, 30_000));
            }
        });
        assert!(took > 4 * SECOND_NS, "{model:?}: after {took} ns");
        assert!(!s.is(State::Attached) || io::is_pinned_to_kernel(s, g), "{model:?}");
        rig.hosts[other].stopped = false;
        rig.nothing_is_lost(i);
    }
}

/// The same of a half that has never left the carrier: it is let go at once, and what the program
/// sends behind that goes the same way. (The next send was promoted, and came at an offset that did
/// not count the bytes of the write.)
#[test]
fn who_only_sends_past_us_is_not_promoted_afterwards() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Shuffled(5), model, 2);
        let i = rig.connect(0, 1);
        rig.until("the acceptor sends by RDMA, and its peer does not", |r| {
            if r.is_attached(i, C) {
                r.send(i, A, 50);
                while r.receive(i, C, 1000) > 0 {}
            } else {
                r.chat(i);
            }
            r.conns[i][A].socket.published.sends_fast()
                && !r.conns[i][C].socket.published.sends_fast()
        });
        rig.drain(i);
        let End { socket: s, fd, .. } = rig.conns[i][C];
        let patience = Patience::to_send(s, crate::sys::now_ns());
        // Its thread has no turn yet.
        let on = Named { s, g: s.generation16(), fd };
        let went = io::await_way_back(on, Reason::StdioStream, patience, |_| {
            panic!("it is there already")
        });
        assert!(!went && s.is(State::Attached), "{model:?}");
        assert_eq!(rig.send(i, C, 500), 500);
        assert!(!s.published.sends_fast(), "{model:?}");
        rig.nothing_is_lost(i);
    }
}

/// A program that does not read, or that waits for the same at its end, holds nobody up: the
/// kernel's buffer takes what goes again, and is then as it was. (After 10 s it was broken off.)
#[test]
fn nobody_has_to_read_meanwhile() {
    let option = |fd, name| {
        let mut value: c_int = 0;
        assert!(sys::getsockopt(fd, libc::SOL_SOCKET, name, &mut value) >= 0);
        value
    };
    for (model, is_chosen) in MODELS.into_iter().flat_map(|m| [(m, true), (m, false)]) {
        let (mut rig, i) = Rig::full(model);
        let fd = rig.conns[i][C].fd;
        if !is_chosen {
            assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &0) >= 0);
        }
        let before = [libc::SO_SNDBUF, libc::SO_BUF_LOCK].map(|name| option(fd, name));
        let (went, took) = rig.hand_on((i, C), SECOND_NS / 4, |_| {});
        assert!(went && took < 9 * SECOND_NS, "{model:?}: {went} after {took} ns");
        assert_eq!([libc::SO_SNDBUF, libc::SO_BUF_LOCK].map(|name| option(fd, name)), before);
        rig.nothing_is_lost(i);
    }
}

/// Where nothing comes of it the connection is broken off 10 s after the last change (the kernel
/// may find room for a little more): an error at both ends.
#[test]
fn nobody_is_waited_for_for_ever() {
    for model in MODELS {
        let (mut rig, i) = Rig::full(model);
        rig.hosts[1].stopped = true;
        let (went, took) = rig.hand_on((i, C), SECOND_NS / 4, |_| {});
        assert!(!went, "{model:?}");
        assert!((10..100).contains(&(took / SECOND_NS)), "{model:?}: after {took} ns");
        assert!(rig.conns[i][C].socket.has(flag::BROKEN_OFF));
        rig.hosts[1].stopped = false;
        rig.until("the peer is told", |r| {
            while r.receive(i, A, 30_000) > 0 {}
            r.conns[i][A].over.is_some()
        });
        assert_eq!(rig.conns[i][A].over, Some(-(libc::ECONNRESET as isize)));
        rig.finish();
    }
}

/// And in the trace of who has broken it off, which is worth being kept.
#[test]
fn who_breaks_it_off_says_so_in_its_trace() {
    testing::init();
    config::with(Config { trace: true, ..config::get().clone() }, || {
        let (mut rig, i) = Rig::full(Model::ROCE);
        let s = rig.conns[i][C].socket;
        // (The library's own thread makes room for it, which this one is here.)
        rig.until("it is traced", |_| {
            trace::keep_ready();
            testing::pass_ns(2 * SECOND_NS);
            s.trace(Event::Doorbell, 0);
            s.ring.load(Relaxed) != 0
        });
        let ring = trace::ring(s.ring.load(Relaxed)).unwrap();
        let broken = || {
            let all = ring.events.iter().map(|[first, _]| first.load(Relaxed) & 63);
            all.filter(|event| *event == Event::BrokenOff as u64).count()
        };
        assert_eq!((broken(), ring.worth.load(Relaxed)), (0, 0));
        rig.hosts[1].stopped = true;
        let (went, _) = rig.hand_on((i, C), SECOND_NS / 4, |_| {});
        assert!(!went);
        assert_eq!((broken(), ring.worth.load(Relaxed)), (1, 1));
        rig.hosts[1].stopped = false;
        rig.finish();
    });
}

/// It was broken off before, and the library has taken the carrier's error: whoever gets it finds
/// an error, and not the end of a complete stream. (It did.)
#[test]
fn what_has_broken_before_does_not_end_in_order() {
    for model in MODELS {
        let (mut rig, i) = Rig::full(model);
        rig.hosts[1].stopped = true;
        let End { socket: s, fd, .. } = rig.conns[i][C];
        let slot = s.slot.load(Relaxed) as usize;
        crate::carrier::dissolve(rig.conns[i][A].fd);
        let mut error = 0;
        assert!(sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) >= 0);
        assert_eq!(error, libc::ECONNRESET);
        s.raise(flag::BROKEN_OFF);
        s.channel().unwrap().far.demote(slot, Reason::RdmaLost, false);
        let (went, _) = rig.hand_on((i, C), SECOND_NS / 4, |_| {});
        assert!(!went, "{model:?}");
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        let r = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((r, error), (-1, Some(libc::ENOTCONN)), "{model:?}");
        rig.hosts[1].stopped = false;
        rig.close(i, C);
        rig.close(i, A);
        rig.settle();
    }
}

/// Nor where its words change again and again, which is no more than the peer's say.
#[test]
fn a_peer_that_only_flips_its_words_is_given_up() {
    for model in MODELS {
        let (mut rig, i) = Rig::full(model);
        rig.hosts[1].stopped = true;
        let mut flips = 100;
        let (went, took) = rig.hand_on((i, C), SECOND_NS, |r| {
            if flips > 0 {
                flips -= 1;
                r.conns[i][C].socket.came_on.fetch_add(1, Release);
            }
        });
        assert!(!went, "{model:?}");
        assert!((59..80).contains(&(took / SECOND_NS)), "{model:?}: after {took} ns");
        rig.hosts[1].stopped = false;
        rig.until("the peer is told", |r| {
            while r.receive(i, A, 30_000) > 0 {}
            r.conns[i][A].over.is_some()
        });
        rig.finish();
    }
}

/// A call that had bytes to tell first has taken the carrier's error: the next call tells it,
/// though the connection was on its way back to the kernel, which does not know it any more. (The
/// stream ended as if in order.)
#[test]
fn an_error_that_is_still_to_be_told_is_not_lost_on_the_way_back() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Shuffled(7), model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.drain(i);
        let End { socket: s, fd, .. } = rig.conns[i][C];
        crate::carrier::dissolve(rig.conns[i][A].fd);
        let mut error = 0;
        assert!(sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) >= 0);
        assert_eq!(error, libc::ECONNRESET);
        {
            let _rx = crate::lock::lock_end(&s.rx_lock);
            // SAFETY: under its lock.
            unsafe { (*s.rx.get()).pending_error = -error };
        }
        let slot = s.slot.load(Relaxed) as usize;
        s.channel().unwrap().far.demote(slot, Reason::SocketOption, false);
        rig.until("it has left", |r| {
            r.conns[i][C].socket.has(flag::BROKEN_OFF) || !r.is_attached(i, C)
        });
        rig.receive(i, C, 100);
        assert_eq!(rig.conns[i][C].over.take(), Some(-(libc::ECONNRESET as isize)), "{model:?}");
        rig.receive(i, C, 100);
        assert_eq!(rig.conns[i][C].over.take(), Some(0), "told once");
        rig.send(i, C, 100);
        assert_eq!(rig.conns[i][C].over, Some(-(libc::EPIPE as isize)), "{model:?}");
        rig.close(i, C);
        rig.close(i, A);
        rig.settle();
    }
}

/// As `sk_err`: it is told once, to whoever asks first, SO_ERROR or a send or a receive, and poll
/// says that it is there until then.
#[test]
fn an_error_that_is_still_to_be_told_is_told_to_whoever_asks_first() {
    for (model, by_send) in MODELS.into_iter().flat_map(|m| [(m, false), (m, true)]) {
        let mut rig = Rig::new(Order::Shuffled(7), model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.drain(i);
        let End { socket: s, fd, .. } = rig.conns[i][C];
        let g = s.generation16();
        crate::carrier::dissolve(rig.conns[i][A].fd);
        let mut error = 0;
        assert!(sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) >= 0);
        assert_eq!(error, libc::ECONNRESET);
        {
            let _rx = crate::lock::lock_end(&s.rx_lock);
            // SAFETY: under its lock.
            unsafe { (*s.rx.get()).pending_error = -error };
            s.raise(flag::CARRIER_SPOKE);
        }
        let poll = || crate::io::with_error_owed(s, g, libc::POLLHUP) & libc::POLLERR != 0;
        assert!(poll(), "{model:?}");
        let reset = Some(-(libc::ECONNRESET as isize));
        if by_send {
            rig.send(i, C, 100);
            assert_eq!(rig.conns[i][C].over.take(), reset, "{model:?}");
        } else {
            assert_eq!(crate::io::on_error_taken(s, g, fd, 0), Some(libc::ECONNRESET), "{model:?}");
        }
        assert!(!poll(), "{model:?}");
        assert_eq!(crate::io::on_error_taken(s, g, fd, 0).unwrap_or(0), 0, "told once");
        rig.receive(i, C, 100);
        assert_eq!(rig.conns[i][C].over.take(), Some(0), "{model:?}");
        rig.send(i, C, 100);
        assert_eq!(rig.conns[i][C].over, Some(-(libc::EPIPE as isize)), "{model:?}");
        rig.close(i, C);
        rig.close(i, A);
        rig.settle();
    }
}
