//! What keeps a sending direction on the carrier, and what becomes of the carrier's bytes when it
//! does not.

use super::super::ends::demote_tx;
use super::super::ends::{RxHeld, hold_rx, load_announce, store_ack};
use super::*;
use crate::config;
use crate::path::tests::{A, C, promoted_within_the_host};
use crate::testing::pair::Pair;
use netacc_control::config::Config;

/// A connection whose end `c` sends over the carrier, where nothing keeps it.
struct Sender {
    p: Pair,
    peer: &'static Socket,
    s: &'static Socket,
}

impl Sender {
    fn new() -> Sender {
        let ends = promoted_within_the_host();
        let it = Sender { p: Pair::of(&ends), peer: ends[A].socket, s: ends[C].socket };
        it.on_carrier();
        // It has heard where the stream goes on.
        assert_eq!(it.p.a.receive(8).unwrap(), b"-");
        it
    }

    fn on_carrier(&self) {
        let mut h = self.hold();
        demote_tx(self.s, &mut h, false);
        h.end.unsettled = true;
        drop(h);
        self.p.c.send(b"-").unwrap();
        self.hold().end.unsettled = false;
    }

    fn hold(&self) -> TxHeld<'static> {
        hold_tx(self.s, self.s.generation16()).ok().unwrap()
    }

    fn hold_peer(&self) -> RxHeld<'static> {
        hold_rx(self.peer, self.peer.generation16()).ok().unwrap()
    }

    /// Whether a send with these flags goes into the ring.
    fn promotes(&self, flags: c_int) -> bool {
        let promoted = promote(self.s, &mut self.hold(), self.p.c.0, flags);
        assert_eq!(self.hold().end.switch.state() == TxState::Fast, promoted);
        assert_eq!(self.s.published.sends_fast(), promoted);
        promoted
    }
}

/// What keeps it on the carrier, and how that is over; the flags of the send.
type Obstacle = (&'static str, fn(&Sender), fn(&Sender), c_int);

const OBSTACLES: &[Obstacle] = &[
    ("for good", |it| it.hold().end.never = true, |it| it.hold().end.never = false, 0),
    (
        "not counted yet",
        |it| it.hold().end.unsettled = true,
        |it| it.hold().end.unsettled = false,
        0,
    ),
    ("a flag of the kernel's", |_| (), |_| (), libc::MSG_OOB),
    ("another", |_| (), |_| (), libc::MSG_CONFIRM),
    ("shut down", |it| it.s.raise(flag::SHUT_WR), |it| it.s.lower(flag::SHUT_WR), 0),
    (
        "the peer allows none",
        |it| {
            let h = it.hold_peer();
            h.end.switch.freeze();
            let _ = h.end.switch.on_announce(load_announce(h.words));
            store_ack(&h);
        },
        |it| {
            let h = it.hold_peer();
            assert!(h.end.switch.arm());
            store_ack(&h);
        },
        0,
    ),
    (
        "part of a packet is held back, for more",
        |it| {
            it.hold().end.unsettled = true;
            it.p.c.send_with(&[b"part"], libc::MSG_MORE).unwrap();
            it.hold().end.unsettled = false;
            assert_eq!(unsent(it.p.c.0), 4);
        },
        |it| push_carrier(it.p.c.0),
        libc::MSG_MORE,
    ),
    (
        "corked",
        |it| {
            it.hold().end.unsettled = true;
            it.p.c.send_with(&[b"part"], libc::MSG_MORE).unwrap();
            it.hold().end.unsettled = false;
            it.s.raise(flag::CORKED);
        },
        |it| it.s.lower(flag::CORKED),
        0,
    ),
];

#[test]
fn what_keeps_a_sender_on_the_carrier_does_so_as_long_as_it_is() {
    for (what, comes, goes, flags) in OBSTACLES {
        let it = Sender::new();
        comes(&it);
        for _ in 0..2 {
            assert!(!it.promotes(*flags), "{what}");
        }
        goes(&it);
        assert!(it.promotes(flags & SEND_FLAGS), "{what}");
        it.p.close();
    }
}

#[test]
fn acceleration_that_is_off_keeps_it_there() {
    let it = Sender::new();
    it.hold().end.paused = true;
    let off = Config { accelerate_by_default: false, ..Config::default() };
    config::with(off, || assert!(!it.promotes(0)));
    assert!(it.hold().end.paused);
    assert!(it.promotes(0), "it is on again");
    assert!(!it.hold().end.paused);
    it.p.close();
}

#[test]
fn a_peer_that_has_not_followed_yet_is_waited_for() {
    let it = Sender::new();
    assert!(it.promotes(0));
    it.on_carrier();
    assert!(!it.promotes(0), "it still stands before the ring");
    assert_eq!(it.p.a.receive(8).unwrap(), b"-");
    assert!(it.promotes(0));
    it.p.close();
}

/// Once it is known that nobody will read it stays, whatever the words say then.
#[test]
fn who_goes_is_sent_nothing_into_a_ring() {
    let it = Sender::new();
    let said = |it: &Sender| it.hold().words.quiet[quiet::REQUEST].load(Relaxed);
    let before = said(&it);
    it.hold().words.quiet[quiet::REQUEST].store(before | quiet::CLOSED, Relaxed);
    assert!(!it.promotes(0));
    it.hold().words.quiet[quiet::REQUEST].store(before, Relaxed);
    assert!(!it.promotes(0));
    it.p.close();
}

/// What the kernel holds back of a packet would wait for what goes by the ring.
#[test]
fn what_the_kernel_holds_back_goes_before() {
    for nodelay in [0, 1] {
        let it = Sender::new();
        let fd = it.p.c.0;
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &nodelay);
        it.hold().end.unsettled = true;
        it.p.c.send_with(&[b"part"], libc::MSG_MORE).unwrap();
        it.hold().end.unsettled = false;
        assert!(unsent(fd) > 0);
        assert!(it.promotes(0));
        assert_eq!(unsent(fd), 0);
        let mut now: c_int = -1;
        sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut now);
        assert_eq!(now, nodelay, "the application's option");
        it.p.c.send(b" and the rest").unwrap();
        assert_eq!(it.p.a.receive(99).unwrap(), b"part and the rest");
        it.p.close();
    }
}

/// The bytes of the carrier come first, wherever the stream has been before.
#[test]
fn the_ring_goes_on_where_the_carrier_ends() {
    let it = Sender::new();
    for round in 0..3 {
        it.p.c.send(b"ring").unwrap();
        assert!(it.s.published.sends_fast(), "round {round}");
        it.on_carrier();
        assert_eq!(it.p.a.receive(99).unwrap(), b"ring-");
        it.hold().end.unsettled = true;
        it.p.c.send(b"carrier").unwrap();
        it.hold().end.unsettled = false;
        it.p.c.send(b"ring").unwrap();
        assert_eq!(it.p.a.receive(99).unwrap(), b"carrierring");
        it.on_carrier();
        assert_eq!(it.p.a.receive(99).unwrap(), b"-");
    }
    it.p.close();
}
