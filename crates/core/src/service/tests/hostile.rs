//! Peers that do not keep to the protocol, or that hold no connection.

use super::*;
use crate::stats;
use netacc_control::stats::Counter;

pub(super) mod by_hand;
mod unproven;

use by_hand::accepting_by_hand;

fn candidate(tuple: Tuple, token: u64) -> Message {
    Message::Candidate(proto::Candidate {
        tuple,
        token,
        proof: proto::Proof::NONE,
        class: 0,
        fills: false,
    })
}

/// A control connection by hand.
pub(super) struct Raw(c_int);

impl Raw {
    /// To the advert of `port`.
    pub(super) fn caller(port: u16) -> Raw {
        Raw::caller_of(port, 0)
    }
    pub(super) fn caller_of(port: u16, k: u8) -> Raw {
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
        let (name, len) = advert_name(port, k);
        assert!(possession::name_link(fd));
        assert!(sys::connect(fd, &name[..len]) >= 0);
        let r = Raw(fd);
        r.prepare();
        r
    }
    /// Squats the advert of `port`.
    pub(super) fn squatter(port: u16) -> Raw {
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
        let (name, len) = advert_name(port, 0);
        assert!(sys::bind(fd, &name[..len]) >= 0);
        assert!(sys::listen(fd, 5) >= 0);
        Raw(fd)
    }
    pub(super) fn accept(&self) -> Raw {
        let fd = sys::accept4(self.0, libc::SOCK_CLOEXEC) as c_int;
        assert!(fd >= 0);
        let r = Raw(fd);
        r.prepare();
        r
    }
    pub(super) fn prepare(&self) {
        assert!(sys::setsockopt(self.0, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) >= 0);
    }
    pub(super) fn send(&self, m: Message) {
        self.send_fd(m, -1)
    }
    pub(super) fn send_fd(&self, m: Message, fd: c_int) {
        assert_eq!(control::send(self.0, sys::geteuid(), &m, fd), 0);
    }
    /// A descriptor that is not due: the kernel refuses it (Linux 6.16), or the receiver ends the
    /// link.
    pub(super) fn send_stray(&self, m: Message, fd: c_int) {
        match control::send(self.0, sys::geteuid(), &m, fd) {
            0 => {}
            refused => {
                assert_eq!(refused, -(libc::EPERM as isize));
                self.send_bytes(b"x");
            }
        }
    }
    pub(super) fn send_bytes(&self, bytes: &[u8]) {
        assert!(
            // SAFETY: valid bytes.
            unsafe { sys::sendto(self.0, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL) } >= 0
        );
    }
    /// The next message that is no greeting.
    pub(super) fn next(&self) -> Option<Message> {
        loop {
            match packet::receive(self.0) {
                Received::Message(Message::Hello(_), ..) => {}
                Received::Message(m, ..) => return Some(m),
                Received::Files(_) => match strangers::fetch(self.0) {
                    Received::Message(m, fd, _) => {
                        fd_table::close_internal(fd);
                        return Some(m);
                    }
                    other => panic!("{other:?}"),
                },
                Received::Nothing | Received::End => return None,
                other => panic!("{other:?}"),
            }
        }
    }
    pub(super) fn is_ended(&self) -> bool {
        loop {
            match packet::receive(self.0) {
                Received::Message(..) => {}
                Received::Files(_) => drop(strangers::fetch(self.0)),
                Received::End => return true,
                _ => return false,
            }
        }
    }
    /// Whoever has `carrier` shows, over this link, the mark of `turn`.
    pub(super) fn show(&self, role: Role, carrier: &TcpStream, turn: u8) {
        possession::show_turn(
            carrier.as_raw_fd(),
            possession::number_of(self.0, role).unwrap(),
            turn,
        );
    }
    /// As a connector that has `carrier`: shows what it is asked for. Returns the first other
    /// message.
    pub(super) fn prove(&self, acceptor: &Service, carrier: &TcpStream) -> Option<Message> {
        loop {
            settle(&[acceptor]);
            match self.next() {
                Some(Message::Turn { token, turn }) => {
                    self.show(Role::Connector, carrier, turn);
                    self.send(Message::Turn { token, turn });
                }
                other => return other,
            }
        }
    }
    pub(super) fn hello(&self, role: Role) {
        self.send(Message::Hello(Hello::new([9, 9, 9], 1, role)));
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

pub(super) fn memory(bytes: usize) -> c_int {
    arena::create_sealed(b"t\0", bytes).unwrap()
}

#[test]
fn whoever_does_not_keep_to_the_protocol_is_hung_up_on() {
    let net = Net::new();
    let a = service();
    a.accepting(net.port());
    let tuple = net.connect().0.tuple();
    let event = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    type Act = Box<dyn Fn(&Raw)>;
    let bad: Vec<Act> = std::vec![
        Box::new(|r| r.send_bytes(b"x")),
        Box::new(|r| r.send_bytes(&[1u8; 500])),
        Box::new(|r| r.send(Message::Bye)),
        Box::new(move |r| r.send(candidate(tuple, 1))),
        Box::new(|r| r.hello(Role::Acceptor)),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.hello(Role::Connector);
        }),
        Box::new(|r| {
            let mut other = Hello::new([0; 3], 1, Role::Connector);
            other.version = 999;
            r.send(Message::Hello(other));
        }),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.send(Message::Accept { token: 1, slot: 0 });
        }),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.send(Message::Refuse { token: 1, slot: 65535, reason: 1 });
        }),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.send(Message::PullBack { slot: 1, dir: Direction::AcceptorToConnector });
        }),
        Box::new(move |r| {
            r.hello(Role::Connector);
            r.send_stray(Message::Place { place: 1 }, event);
        }),
        Box::new(move |r| {
            // What only an acceptor sends.
            r.hello(Role::Connector);
            let m = memory(CHANNEL_BYTES);
            r.send_stray(
                Message::Channel(proto::Channel {
                    channel_bytes: CHANNEL_BYTES as u64,
                    slots: SLOTS as u32,
                    places: PLACES as u32,
                }),
                m,
            );
            fd_table::close_internal(m);
        }),
        Box::new(|r| {
            // A descriptor too few.
            r.hello(Role::Connector);
            let mut bytes = [0u8; proto::MAX_MESSAGE];
            let n = Message::Place { place: 1 }.encode(&mut bytes);
            r.send_bytes(&bytes[..n]);
        }),
    ];
    for (i, act) in bad.iter().enumerate() {
        let r = Raw::caller(net.port());
        settle(&[a]);
        act(&r);
        settle(&[a]);
        assert!(r.is_ended(), "case {i}");
        assert!(a.state.lock().links.iter().all(|l| l.phase == Phase::Free), "case {i}");
    }
    let _ = sys::close(event);
}

#[test]
fn a_peer_of_another_version_is_the_reason() {
    for version in [0, 999] {
        let (c, net) = (service(), Net::new());
        let squat = Raw::squatter(net.port());
        let (cs, _, tcp) = net.connect();
        cs.record.store(crate::stats::open(tcp.0.as_raw_fd(), Reason::Negotiating), Relaxed);
        assert!(c.connect(cs));
        let peer = squat.accept();
        let mut hello = Hello::new([9, 9, 9], 1, Role::Acceptor);
        hello.version = version;
        peer.send(Message::Hello(hello));
        settle(&[c]);
        assert!(peer.is_ended(), "{version}");
        let why = cs.record().and_then(|r| Reason::from_code(r.reason.load(Relaxed)));
        assert_eq!(why.map(Reason::name), Some("version-mismatch"), "{version}");
    }
}

/// A connector that we play by hand against an acceptor that has a connection for it.
fn offered_by_hand()
-> (&'static Service, Net, Raw, &'static Socket, proto::Offer, (TcpStream, TcpStream)) {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, tcp) = net.connect();
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    r.send(candidate(cs.tuple(), 0xfeed));
    a.noted(as_);
    let mut offer = None;
    while let Some(m) = r.prove(a, &tcp.0) {
        if let Message::Offer(o) = m {
            offer = Some(o);
        }
    }
    (a, net, r, as_, offer.expect("an offer"), tcp)
}

#[test]
fn answers_that_do_not_fit_the_offer_end_the_link() {
    let count = |what| stats::header().map_or(0, |h| h.counter(what));
    let counts = || [Counter::PeerCorrupt, Counter::ChannelsFailed].map(count);
    for wrong in 0..4 {
        let (a, _net, r, as_, o, _tcp) = offered_by_hand();
        as_.record.store(stats::open(as_.fd.load(Relaxed), Reason::NotStarted), Relaxed);
        let before = counts();
        assert_eq!(o.token, 0xfeed);
        assert_eq!(o.tuple, as_.tuple());
        match wrong {
            0 => r.send(Message::Accept { token: o.token + 1, slot: o.slot }),
            1 => r.send(Message::Accept { token: o.token, slot: o.slot + 1 }),
            2 => {
                r.send(Message::Accept { token: o.token, slot: o.slot });
                r.send(Message::Accept { token: o.token, slot: o.slot });
            }
            _ => r.send(Message::Refuse { token: o.token, slot: 4095, reason: 0 }),
        }
        settle(&[a]);
        assert!(r.is_ended(), "case {wrong}");
        // (Other tests count as well.)
        let now = counts();
        assert!(now.iter().zip(before).all(|(now, then)| *now > then), "case {wrong}: {now:?}");
        assert_eq!(as_.offered.word(), u32::from(wrong == 2), "case {wrong}");
    }
}

#[test]
fn after_a_refusal_a_rival_gets_the_connection() {
    let (a, net, r, as_, o, tcp) = offered_by_hand();
    let c = service();
    let cs = socket_of(&tcp.0);
    assert!(c.connect(cs));
    settle(&[a, c]);
    assert!(cs.offered.is_none(), "the first claim is being tried");
    r.send(Message::Refuse { token: o.token, slot: o.slot, reason: refuse::UNKNOWN_TOKEN });
    settle(&[a, c]);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    drop(net);
}

fn is_shown(end: &Socket) -> bool {
    auth::look(&end.tuple())
        .is_some_and(|end| end.mark.is_some_and(|mark| mark & marks::SHOWN != 0))
}

#[test]
fn who_does_not_hold_a_connection_gets_nothing() {
    for by_turn in 0..TURNS {
        let (a, net) = (service(), Net::new());
        a.accepting(net.port());
        let (cs, as_, tcp) = net.connect();
        let r = Raw::caller(net.port());
        r.hello(Role::Connector);
        r.send(candidate(cs.tuple(), 7));
        a.noted(as_);
        // (The first turns by who does hold it, so that each of them is looked at.)
        let mut answer = None;
        for turn in 0..=by_turn {
            settle(&[a]);
            assert_eq!(r.next(), Some(Message::Turn { token: 7, turn }));
            if turn < by_turn {
                r.show(Role::Connector, &tcp.0, turn);
            }
            r.send(Message::Turn { token: 7, turn });
            settle(&[a]);
            if turn == by_turn {
                answer = r.next();
            }
        }
        assert_eq!(answer, Some(Message::Unproven { token: 7 }), "turn {by_turn}");
        assert_eq!(r.next(), None);
        assert!(!is_shown(as_), "turn {by_turn}");
        // Its rightful owner gets it.
        let (c, cs) = (service(), socket_of(&tcp.0));
        assert!(c.connect(cs));
        settle(&[a, c]);
        assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
        assert!(!is_shown(as_) && !is_shown(cs));
    }
}

#[test]
fn who_stands_between_the_two_gets_nothing() {
    let (a, c, net) = (service(), service(), Net::new());
    // The squatter has the first name, the acceptor the next.
    let squat = Raw::squatter(net.port());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    let from_c = squat.accept();
    from_c.hello(Role::Acceptor);
    let to_a = Raw::caller_of(net.port(), 1);
    to_a.hello(Role::Connector);
    let mut passed = 0;
    for _ in 0..50 {
        settle(&[c]);
        while let Some(m) = from_c.next() {
            assert!(!matches!(m, Message::Accept { .. } | Message::Turn { turn: 5, .. }), "{m:?}");
            to_a.send(m);
            passed += 1;
        }
        settle(&[a]);
        while let Some(m) = to_a.next() {
            assert!(!matches!(m, Message::Channel(_) | Message::Offer(_)), "{m:?}");
            from_c.send(m);
            passed += 1;
        }
    }
    assert!(passed >= 3, "{passed}");
    // The two find each other all the same.
    wait_until(&[a, c], || (cs.offered.word(), as_.offered.word()) == (1, 1));
}

#[test]
fn a_proof_ends_with_its_connection_and_with_patience() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    let begun = |token| {
        let (cs, as_, tcp) = net.connect();
        r.send(candidate(cs.tuple(), token));
        a.noted(as_);
        settle(&[a]);
        assert!(is_shown(as_));
        assert_eq!(r.next(), Some(Message::Turn { token, turn: 0 }));
        (cs, as_, tcp)
    };
    // It is closed.
    let (_, as_, _tcp) = begun(1);
    a.closing(as_);
    assert!(!is_shown(as_));
    // Its connector says no more.
    let (_, as_, _tcp) = begun(2);
    crate::testing::pass_ns(2_000_000_001);
    settle(&[a]);
    assert!(!is_shown(as_));
    // It withdraws it.
    let (_, as_, _tcp) = begun(3);
    r.send(Message::Withdraw { token: 3 });
    settle(&[a]);
    assert!(!is_shown(as_));
    // A forked child has made it plain: the parent finds that out.
    let (_, as_, _tcp) = begun(6);
    as_.state.begin_as(socket::State::Plain);
    crate::testing::pass_ns(2_000_000_001);
    settle(&[a]);
    assert!(!is_shown(as_) && a.state.lock().proofs.iter().all(Option::is_none));
    // Its number is another file's by now.
    let (_, as_, _tcp) = begun(7);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    possession::show_turn(other.as_raw_fd(), 0, 0);
    as_.fd.store(other.as_raw_fd(), Relaxed);
    a.closing(as_);
    assert!(
        !possession::is_at_rest(other.as_raw_fd())
            && a.state.lock().proofs.iter().all(Option::is_none)
    );
    // The program uses one of the options.
    let (_, as_, _tcp) = begun(4);
    a.state.lock().end_proofs_of(as_);
    assert!(!is_shown(as_));
    // It hangs up.
    let (_, as_, _tcp) = begun(5);
    r.send(Message::Hello(Hello::new([0; 3], 1, Role::Connector)));
    settle(&[a]);
    assert!(r.is_ended() && !is_shown(as_));
}

#[test]
fn more_than_there_is_room_for_are_proven_in_turn() {
    for candidate_first in [true, false] {
        let (a, c, net) = both();
        let all: Vec<_> = (0..possession::PROOFS + 50).map(|_| net.connect()).collect();
        let (connects, accepts) = (
            || all.iter().for_each(|k| assert!(c.connect(k.0))),
            || all.iter().for_each(|k| assert!(a.noted(k.1))),
        );
        if candidate_first {
            connects();
            settle(&[c, a]);
            accepts();
        } else {
            accepts();
            connects();
        }
        wait_until(&[a, c], || {
            all.iter().all(|(cs, as_, _)| (cs.offered.word(), as_.offered.word()) == (1, 1))
        });
        assert!([a, c].iter().all(|s| s.state.lock().proofs.iter().all(Option::is_none)));
    }
}

#[test]
fn who_is_told_no_options_goes_through_one_proof() {
    crate::testing::forbid_netlink();
    let h = accepting_by_hand();
    let token = h.token;
    let asked = |turn| {
        h.r.send(Message::Turn { token, turn });
        settle(&[h.c]);
        h.r.next()
    };
    // It shows whatever it is asked for, without a look; once.
    assert_eq!(
        (asked(0), asked(1)),
        (Some(Message::Turn { token, turn: 0 }), Some(Message::Turn { token, turn: 1 }))
    );
    assert_eq!(asked(0), Some(Message::Unproven { token }));
    assert_eq!(asked(2), None);
    // That is enough for who holds the other end.
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
}

#[test]
fn a_connector_of_several_acceptors_has_turns_for_all() {
    let (c, net) = (service(), Net::new());
    let workers = [service(), service(), service()];
    workers.iter().for_each(|w| assert!(w.accepting(net.port())));
    let all: Vec<_> = (0..2 * possession::PROOFS).map(|_| net.connect()).collect();
    all.iter().zip(workers.iter().cycle()).for_each(|(k, w)| assert!(w.noted(k.1)));
    all.iter().for_each(|k| assert!(c.connect(k.0)));
    let everybody = [c, workers[0], workers[1], workers[2]];
    wait_until(&everybody, || {
        all.iter().all(|(cs, as_, _)| (cs.offered.word(), as_.offered.word()) == (1, 1))
    });
    assert!(everybody.iter().all(|s| s.state.lock().proofs.iter().all(Option::is_none)));
}

#[test]
fn one_peer_cannot_fill_the_table() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    for n in 0..6000u64 {
        let far = SocketAddr::new("127.0.0.1".parse().unwrap(), (n % 60000) as u16 + 1);
        let tuple =
            Tuple::new(far, SocketAddr::new("127.0.0.1".parse().unwrap(), net.port())).unwrap();
        r.send(candidate(tuple, n));
        if n % 50 == 0 {
            settle(&[a]);
        }
    }
    settle(&[a]);
    assert!(!r.is_ended());
    // An honest one still gets through.
    let c = service();
    let (cs, _, _tcp) = agree(a, c, &net);
    offer_of(cs);
}
