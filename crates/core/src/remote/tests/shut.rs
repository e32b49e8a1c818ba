//! A shutdown, and what comes behind it while its FIN waits for the way back to the carrier.

use super::*;
use crate::carrier;
use crate::socket::Named;

/// How far both ends have come when one of them shuts down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stands {
    /// Both directions are on the ring.
    Fast,
    /// What the other one sends is.
    OneWay,
    /// And the peer is on its way back to its carrier, for good.
    Left,
}

impl Rig {
    /// Until what `side` is sent is on the ring, and what it sends itself is not.
    pub(super) fn promoted_one_way(&mut self, i: usize, side: usize) {
        self.until("one direction is promoted", |r| {
            if !(r.is_attached(i, C) && r.is_attached(i, A)) {
                r.chat(i);
            } else {
                r.send(i, side ^ 1, 700);
                while r.receive(i, side, 5000) > 0 {}
            }
            r.conns[i][side ^ 1].socket.published.sends_fast()
        });
        self.drain(i);
        assert!(!self.conns[i][side].socket.published.sends_fast(), "{}", self.describe());
    }

    /// How many bytes lie unread.
    pub(super) fn there(&self, i: usize, side: usize) -> usize {
        let e = &self.conns[i][side];
        let mut part = [0u8; 1000];
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // SAFETY: a buffer of ours.
        let r = unsafe { io::recv(e.fd, part.as_mut_ptr(), part.len(), flags) };
        r.max(0) as usize
    }

    /// `side` receives all that was sent, so much at a time, and the end behind that.
    #[track_caller]
    pub(super) fn gets_all(&mut self, i: usize, side: usize, each: usize, at: &str) {
        self.until("the end is told", |r| {
            r.receive(i, side, each);
            r.conns[i][side].over.is_some()
        });
        let [end, other] = [&self.conns[i][side], &self.conns[i][side ^ 1]];
        let (told, right) = ((end.over, end.received), (Some(0), other.sent));
        assert_eq!(told, right, "{at}\n{}", self.describe());
    }

    /// So many turns of the library's threads, drawn; the applications do nothing.
    pub(super) fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            match self.random.below(3) {
                0 => self.serve_queues(),
                _ => {
                    let h = self.random.below(self.hosts.len());
                    self.step(h);
                }
            }
        }
    }
}

/// How it ends then.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    /// It is closed with bytes unread.
    Unread,
    /// With all read, and an SO_LINGER that has the kernel reset it.
    Lingers,
    /// The process ends in order, with bytes unread.
    Exits,
}

impl Rig {
    fn ends(&mut self, i: usize, side: usize, ends: Ends) {
        let (s, fd) = (self.conns[i][side].socket, self.conns[i][side].fd);
        if ends == Ends::Lingers {
            while self.receive(i, side, 1000) > 0 {}
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let on = Named { s, g: s.generation16(), fd };
            let len = size_of::<libc::linger>() as u32;
            // SAFETY: a value of ours.
            let r = unsafe { io::set_linger(on, (&raw const linger).cast(), len) };
            if r == api::PASS {
                assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger) >= 0);
            }
        }
        if ends != Ends::Exits {
            return self.close(i, side);
        }
        if io::begin_exit(s) {
            self.until("it is the kernel's", |_| !s.is(State::Attached));
        }
        io::at_exit(s, fd);
        self.kill(self.conns[i][side].host);
    }
}

/// `side` of a connection shuts down for sending, with bytes unread, and ends soon after that.
fn shuts_down_and_ends(model: Model, seed: u64, stands: Stands, side: usize, ends: Ends) {
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    let i = rig.connect(0, 1);
    match stands {
        Stands::OneWay => rig.promoted_one_way(i, side),
        Stands::Fast | Stands::Left => rig.promoted(i),
    }
    rig.drain(i);
    rig.send(i, side ^ 1, 100);
    rig.until("it is there", |r| r.there(i, side) == 100);
    rig.send(i, side, if seed.is_multiple_of(2) { 0 } else { 300 });
    if stands == Stands::Left {
        let s = rig.conns[i][side ^ 1].socket;
        let channel = s.channel().unwrap();
        channel.far.demote(s.slot.load(Relaxed) as usize, Reason::SocketOption, false);
        let turns = rig.random.below(12);
        rig.turns(turns);
    }
    rig.shut(i, side);
    let turns = rig.random.below(12);
    rig.turns(turns);
    rig.ends(i, side, ends);
    rig.gets_all(i, side ^ 1, 30_000, &format!("{model:?} {seed} {stands:?} {side} {ends:?}"));
    let fd = rig.conns[i][side ^ 1].fd;
    rig.until("the reset has come, too", |_| carrier::is_closed(fd));
    rig.finish();
}

/// A close with bytes unread is a reset. Behind a shutdown it comes behind the FIN, and whoever has
/// got both finds the end of the stream, as of TCP (tcp_fin: SOCK_DONE).
#[test]
fn a_reset_does_not_overtake_the_end_that_was_said_before_it() {
    for model in MODELS {
        for seed in seeds(0..2) {
            for stands in [Stands::Fast, Stands::OneWay, Stands::Left] {
                for ends in [Ends::Unread, Ends::Lingers, Ends::Exits] {
                    for side in [C, A] {
                        shuts_down_and_ends(model, seed, stands, side, ends);
                    }
                }
            }
        }
    }
}

/// Of a close in reset, what the peer has no room for is thrown away, and no more is waited for
/// than with TCP.
#[test]
fn a_close_in_reset_waits_for_no_reader() {
    for model in MODELS {
        for (shuts, ends) in [
            (true, Ends::Unread),
            (false, Ends::Unread),
            (true, Ends::Lingers),
            (false, Ends::Lingers),
        ] {
            let (mut rig, i) = Rig::full(model);
            rig.send(i, A, 100);
            rig.until("it is there", |r| r.there(i, C) == 100);
            let s = rig.conns[i][C].socket;
            let generation = s.generation16();
            if shuts {
                rig.shut(i, C);
                rig.turns(20);
            }
            rig.ends(i, C, ends);
            rig.until("it is over", |_| !s.is(State::Attached) || s.generation16() != generation);
            rig.until("the end is told", |r| {
                while r.receive(i, A, 30_000) > 0 {}
                r.conns[i][A].over.is_some()
            });
            let [end, other] = [&rig.conns[i][A], &rig.conns[i][C]];
            let at = format!("{model:?} {shuts} {ends:?}");
            assert_eq!(end.over, Some(-(libc::ECONNRESET as isize)), "{at}");
            assert!(!shuts || end.received < other.sent, "{at}");
            rig.finish();
        }
    }
}

/// A peer that has shut down for sending goes on receiving: what is sent to it outlives the close,
/// however slowly it reads.
#[test]
fn an_answer_outlives_its_close_behind_the_end_of_the_request() {
    for model in MODELS {
        let (mut rig, i) = Rig::full(model);
        let asks = rig.conns[i][A].socket;
        rig.shut(i, A);
        rig.until("the request has ended", |r| {
            r.receive(i, C, 1000);
            r.conns[i][C].over.is_some()
        });
        assert_eq!(rig.conns[i][C].over, Some(0), "{model:?}");
        rig.until("its FIN has gone", |_| !asks.has(flag::FIN_LATER));
        rig.close(i, C);
        rig.gets_all(i, A, 3000, &format!("{model:?}"));
        rig.finish();
    }
}

/// The same where the kernel alone has said so: the peer's descriptor was used by a program without
/// the library.
#[test]
fn a_bare_end_of_the_peers_is_no_death() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.drain(i);
            rig.send(i, side, 300);
            assert!(sys::shutdown(rig.conns[i][side ^ 1].fd, libc::SHUT_WR) >= 0);
            rig.close(i, side);
            rig.gets_all(i, side ^ 1, 30_000, &format!("{model:?} {side}"));
            rig.finish();
        }
    }
}

/// The FIN goes once: a second shutdown leaves nothing to be said.
#[test]
fn a_second_shutdown_says_nothing_more() {
    let mut met = 0;
    for model in MODELS {
        for seed in 0..4 {
            let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.drain(i);
            rig.send(i, A, 100);
            rig.send(i, C, 300);
            rig.until("they are there", |r| r.there(i, C) == 100 && r.there(i, A) == 300);
            rig.shut(i, C);
            let s = rig.conns[i][C].socket;
            while s.has(flag::FIN_LATER) {
                rig.turns(1);
            }
            if s.is(State::Attached) {
                rig.shut(i, C);
                assert!(!s.has(flag::FIN_LATER), "{model:?} {seed}");
                met += 1;
            }
            rig.drain(i);
            rig.finish();
        }
    }
    assert!(met > 0, "none was on its way still");
}

/// A signal handler shuts down in the middle of a send: what was sent comes, and then the end.
#[test]
fn a_shutdown_within_a_send_is_one() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.send(i, side, 300);
            io::with_carrier(rig.conns[i][side].socket, |_| rig.shut(i, side));
            rig.gets_all(i, side ^ 1, 30_000, &format!("{model:?} {side}"));
            rig.finish();
        }
    }
}

/// A signal handler that the library could not hold back shuts down in the middle of a receive, or
/// a forked child does: what was there is received, though it is on its way back to the carrier
/// just then. (It was said to be the end.)
#[test]
fn what_was_there_is_received_whoever_shuts_down() {
    let mut met = 0;
    for model in MODELS {
        for (seed, child) in (0..12).flat_map(|seed| [(seed, false), (seed, true)]) {
            let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.drain(i);
            rig.send(i, C, 300);
            rig.until("it is there", |r| r.there(i, A) == 300);
            let (s, fd, host) = (rig.conns[i][A].socket, rig.conns[i][A].fd, rig.conns[i][A].host);
            if child {
                s.raise(flag::CALLED_BACK);
                assert_eq!(io::shutdown_of_parents(s, fd, libc::SHUT_RD), 0);
                rig.remote(host).serve_children();
            } else {
                io::within_receive(s, || assert_eq!(api::shutdown(fd, libc::SHUT_RD), 0));
            }
            rig.turns(seed as usize);
            met += usize::from(s.is(State::Attached));
            for _ in 0..10_000 {
                if rig.conns[i][A].over.is_none() && rig.receive(i, A, 100) == 0 {
                    rig.turns(1);
                }
            }
            let end = &rig.conns[i][A];
            assert_eq!(
                (end.over, end.received),
                (Some(0), rig.conns[i][C].sent),
                "{model:?} {seed}"
            );
            rig.finish();
        }
    }
    assert!(met > 0, "all were the kernel's by then");
}

/// A process that has read everything ends in order, and its peer still sends by the ring: that
/// hears how far it has been read, and sends on TCP, as to any peer that has closed. (It took the
/// connection for a broken one.)
#[test]
fn who_has_read_all_ends_in_order() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted_one_way(i, side);
            rig.ends(i, side, Ends::Exits);
            let at = format!("{model:?} {side}");
            rig.gets_all(i, side ^ 1, 30_000, &at);
            assert_eq!(rig.send(i, side ^ 1, 100), 100, "{at}");
            rig.finish();
        }
    }
}
