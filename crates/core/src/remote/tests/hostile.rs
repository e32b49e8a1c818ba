//! Peers that break the rules of the link: theirs is ended or what they say is ignored, as
//! `docs/design/rdma.md` says; nothing else suffers.

use super::*;
use crate::channel::announce;
use crate::remote::link::Phase;
use crate::syn::Said;
use netacc_control::stats::Counter;
use netacc_proto::rendezvous::{
    Candidate, Hello, HostHello, MAX_MESSAGE, Message, OfferLane, Pair, Peers, Proof, Role,
    VERSION, Words, refuse, request,
};
use netacc_proto::switchover::{Ack, Announce};

mod claims;

/// Somebody without a device who speaks the protocol of links.
pub(super) struct Stranger {
    pub(super) fd: c_int,
    pub(super) input: Vec<u8>,
}

impl Stranger {
    pub(super) fn call(from: IpAddr, to: SocketAddr) -> Stranger {
        let fd = tcp(SocketAddr::new(from, 0));
        let (raw, len) = crate::carrier::sockaddr(to);
        assert!(sys::connect(fd, &raw[..len]) >= 0);
        Stranger { fd, input: Vec::new() }
    }

    pub(super) fn say(&self, frame: Message) {
        let mut bytes = [0u8; MAX_MESSAGE];
        let n = frame.encode(&mut bytes);
        self.say_bytes(&bytes[..n]);
    }

    fn say_bytes(&self, bytes: &[u8]) {
        // SAFETY: a live buffer. (It may have been hung up on.)
        let _ = unsafe { sys::sendto(self.fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL) };
    }

    /// The frames that have come. `Err`: and the end.
    pub(super) fn hear(&mut self) -> Result<Vec<Message>, Vec<Message>> {
        let mut part = [0u8; 4096];
        let over = loop {
            // SAFETY: a live buffer.
            let r = unsafe {
                sys::recvfrom(
                    self.fd,
                    part.as_mut_ptr(),
                    part.len(),
                    libc::MSG_DONTWAIT,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            };
            if r <= 0 {
                break r != -(libc::EAGAIN as isize);
            }
            self.input.extend(&part[..r as usize]);
        };
        let mut frames = Vec::new();
        while let Ok(Some(n)) = Message::length(&self.input) {
            let Some(bytes) = self.input.get(..n) else { break };
            frames.push(Message::decode(bytes, Peers::TwoHosts).unwrap());
            self.input.drain(..n);
        }
        if over { Err(frames) } else { Ok(frames) }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = sys::close(self.fd);
    }
}

pub(super) fn hello(role: Role, port: u16) -> HostHello {
    HostHello {
        hello: Hello::new([0, 1, 0], 4711, role),
        process: [7; 16],
        port,
        immediate: true,
        transport: 0,
        receives: 128,
        ring_log2: 15,
        lanes: 4,
        resumes: false,
        key: [9; 16],
    }
}

fn stranger() -> IpAddr {
    loopback(0, 99)
}

/// Host 1 with a connection of host 0's on the ring, and where it takes links for which port.
fn victim() -> (Rig, usize, SocketAddr, u16) {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let port = name(rig.hosts[1].listener, false).port();
    let at = name(rig.remote(1).listeners[0].fd, false);
    (rig, i, at, port)
}

#[test]
fn frames_that_no_connector_sends_end_its_link_and_no_other() {
    let (mut rig, i, at, port) = victim();
    let tuple = |from: IpAddr, port| {
        Tuple::new(SocketAddr::new(from, 4000), SocketAddr::new(at.ip(), port)).unwrap()
    };
    let words = Words { slot: 3, token: 5, ..Words::default() };
    let ends = [
        Message::HostHello(hello(Role::Connector, port)),
        Message::Pair(Pair { pair: 0, nonce: [0; 16], port: 1, lanes: 1, class: 0 }),
        Message::OfferLane(OfferLane {
            token: 0,
            slot: 0,
            pair: 0,
            lane: 0,
            ring_log2: 15,
            fills: false,
        }),
        Message::Resume { known: true, key: [9; 16] },
        Message::Accept { token: 1, slot: 0 },
        Message::Accept { token: 1, slot: u16::MAX },
        Message::Refuse { token: 1, slot: 0, reason: 1 },
        Message::Freed { slot: 0 },
        Message::Commit { token: 1, digest: [0; 16] },
        Message::Open { token: 1, nonce: [0; 16], stamp: 0 },
        Message::Bye,
    ];
    let ignored = [
        Message::Candidate(Candidate {
            tuple: tuple(stranger(), port),
            token: 1,
            proof: Proof::NONE,
            class: 0,
            fills: false,
        }),
        Message::Withdraw { token: 77 },
        Message::PairReady { pair: 0 },
        Message::PairReady { pair: u32::MAX },
        Message::PairEnd { pair: 0 },
        Message::PairEnd { pair: u32::MAX },
        Message::Words(words),
        Message::Words(Words { request: request::LEAVE, slot: u16::MAX, ..words }),
        Message::Words(Words { request: request::FORGOTTEN | request::LEFT, ..words }),
        Message::Synced,
    ];
    // Connections of others, as behind translated addresses: there will be no offer.
    let refused = [
        Message::Candidate(Candidate {
            tuple: tuple(loopback(0, 98), port),
            token: 1,
            proof: Proof::NONE,
            class: 0,
            fills: false,
        }),
        Message::Candidate(Candidate {
            tuple: tuple(stranger(), port ^ 1),
            token: 1,
            proof: Proof::NONE,
            class: 0,
            fills: false,
        }),
        Message::Candidate(Candidate {
            tuple: rig.conns[i][C].socket.tuple(),
            token: 1,
            proof: Proof::NONE,
            class: 0,
            fills: false,
        }),
    ];
    let all =
        ends.iter().map(|f| (f, true)).chain(ignored.iter().chain(&refused).map(|f| (f, false)));
    for (frame, ends) in all {
        let mut peer = Stranger::call(stranger(), at);
        rig.settle();
        assert!(
            matches!(peer.hear().unwrap()[..], [Message::HostHello(h)] if h.hello.role == Role::Acceptor && h.port == port)
        );
        peer.say(Message::HostHello(hello(Role::Connector, port)));
        rig.settle();
        assert_eq!(peer.hear(), Ok(Vec::new()));
        peer.say(*frame);
        rig.settle();
        match peer.hear() {
            Ok(frames) if refused.contains(frame) => {
                assert_eq!(frames, [Message::Withdraw { token: 1 }], "{frame:?}")
            }
            Ok(frames) => assert!(!ends && frames.is_empty(), "{frame:?}: goes on with {frames:?}"),
            Err(frames) => assert!(
                ends && matches!(frames[..], [] | [Message::Bye]),
                "{frame:?}: ended with {frames:?}"
            ),
        }
        drop(peer);
        rig.settle();
        rig.exchange(i, 2000);
        assert!(rig.is_fast(i), "{frame:?}");
    }
    rig.finish();
}

#[test]
fn who_does_not_greet_properly_is_left_alone() {
    let (mut rig, i, at, port) = victim();
    let good = hello(Role::Connector, port);
    let bad = [
        HostHello { hello: Hello { role: Role::Acceptor, ..good.hello }, ..good },
        HostHello { port: port ^ 1, ..good },
        HostHello { hello: Hello { version: VERSION + 1, ..good.hello }, ..good },
        HostHello { transport: 1, ..good },
        HostHello { lanes: 0, ..good },
        HostHello { lanes: 4097, ..good },
        HostHello { ring_log2: 11, ..good },
        HostHello { ring_log2: 27, ..good },
        // Nobody talks to himself.
        HostHello { process: rig.remote(1).process, ..good },
    ];
    for hello in bad {
        let mut peer = Stranger::call(stranger(), at);
        peer.say(Message::HostHello(hello));
        rig.settle();
        assert!(peer.hear().is_err(), "{hello:?}");
    }
    // A key that was never made resumes nothing.
    let mut peer = Stranger::call(stranger(), at);
    peer.say(Message::HostHello(HostHello { resumes: true, ..good }));
    rig.settle();
    assert!(matches!(
        peer.hear().unwrap_or_else(|e| e)[..],
        [Message::HostHello(_), Message::Resume { known: false, .. }, ..]
    ));
    // Something else altogether, in one piece and in many.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &[255; 100]] {
        let mut peer = Stranger::call(stranger(), at);
        rig.settle();
        for byte in bytes.chunks(if bytes[0] == 0 { 100 } else { 1 }) {
            peer.say_bytes(byte);
            rig.settle();
        }
        assert!(peer.hear().is_err());
    }
    // Silence is given a second.
    let mut silent = Stranger::call(stranger(), at);
    rig.settle();
    assert!(silent.hear().is_ok());
    testing::pass_ns(1_100_000_000);
    rig.settle();
    assert!(silent.hear().is_err());
    rig.exchange(i, 2000);
    rig.finish();
}

/// The stranger accepts: what it says to host 0, which has connected to it.
fn as_acceptor(frames: &[Message]) -> Result<Vec<Message>, Vec<Message>> {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let honest = rig.connect(0, 1);
    rig.promoted(honest);
    let app = loop {
        let app = tcp(SocketAddr::new(stranger(), 0));
        if are_link_ports_free(name(app, false)) {
            break app;
        }
        assert!(sys::close(app) >= 0);
    };
    assert!(sys::listen(app, 8) >= 0);
    let to = name(app, false);
    let links = tcp(SocketAddr::new(stranger(), destinations::link_port(to.port(), 0)));
    assert!(sys::listen(links, 8) >= 0);
    // A connection to it, used.
    let fd = tcp(SocketAddr::new(rig.hosts[0].address, 0));
    let (raw, len) = crate::carrier::sockaddr(to);
    assert!(sys::connect(fd, &raw[..len]) >= 0);
    let other = sys::accept4(app, libc::SOCK_CLOEXEC) as c_int;
    begin(fd, true);
    for _ in 0..4 {
        // SAFETY: a live buffer.
        let r = unsafe { io::send(fd, b"some".as_ptr(), 4, libc::MSG_DONTWAIT) };
        assert_eq!(r, 4);
    }
    rig.settle();
    let mut peer =
        Stranger { fd: sys::accept4(links, libc::SOCK_CLOEXEC) as c_int, input: Vec::new() };
    assert!(peer.fd >= 0);
    peer.say(Message::HostHello(hello(Role::Acceptor, to.port())));
    rig.settle();
    let said = peer.hear().unwrap();
    let [Message::HostHello(_), Message::Candidate(Candidate { token, .. })] = said[..] else {
        panic!("{said:?}")
    };
    for frame in frames {
        let frame = match *frame {
            // Its token stands for the true one.
            Message::OfferLane(OfferLane {
                token: 0,
                slot,
                pair,
                lane,
                ring_log2: 15,
                fills: false,
            }) => Message::OfferLane(OfferLane {
                token,
                slot,
                pair,
                lane,
                ring_log2: 15,
                fills: false,
            }),
            other => other,
        };
        peer.say(frame);
        rig.settle();
    }
    rig.until("nothing comes of it", |r| {
        let r = r.remote(0);
        r.links
            .iter()
            .flatten()
            .filter(|l| l.peer == stranger())
            .all(|l| l.pairs.is_empty() && !l.in_use())
    });
    let said = peer.hear();
    rig.exchange(honest, 2000);
    assert!(rig.is_fast(honest));
    drop(peer);
    for fd in [fd, other, app, links] {
        if api::close(fd) == api::PASS {
            let _ = sys::close(fd);
        }
    }
    rig.finish();
    said
}

#[test]
fn frames_that_no_acceptor_sends_end_its_link() {
    let pair = Pair { pair: 0, nonce: [0; 16], port: 1, lanes: 4, class: 0 };
    let tuple = Tuple::new(SocketAddr::new(stranger(), 1), SocketAddr::new(stranger(), 2)).unwrap();
    let bad: [&[Message]; 10] = [
        &[Message::HostHello(hello(Role::Acceptor, 1))],
        &[Message::Candidate(Candidate {
            tuple,
            token: 1,
            proof: Proof::NONE,
            class: 0,
            fills: false,
        })],
        &[Message::Accept { token: 1, slot: 0 }],
        &[Message::Refuse { token: 1, slot: 0, reason: 1 }],
        &[Message::Freed { slot: 0 }],
        &[Message::Resume { known: true, key: [9; 16] }],
        &[Message::OfferLane(OfferLane {
            token: 0,
            slot: 4095,
            pair: 0,
            lane: 0,
            ring_log2: 15,
            fills: false,
        })],
        &[Message::Pair(Pair { lanes: 0, ..pair })],
        &[Message::Pair(Pair { lanes: 4097, ..pair })],
        &[Message::Bye],
    ];
    for frames in bad {
        assert!(as_acceptor(frames).is_err(), "{frames:?}");
    }
}

#[test]
fn what_an_acceptor_may_say_and_does_not_mean_is_answered() {
    let pair = Pair { pair: 0, nonce: [0; 16], port: 1, lanes: 4, class: 0 };
    // Offers of a pair that is none; of a connection that nobody knows.
    let said = as_acceptor(&[Message::OfferLane(OfferLane {
        token: 0,
        slot: 0,
        pair: 0,
        lane: 0,
        ring_log2: 15,
        fills: false,
    })])
    .unwrap();
    assert!(
        matches!(said[..], [Message::Refuse { slot: 0, reason: refuse::BUSY, .. }]),
        "{said:?}"
    );
    let said = as_acceptor(&[Message::OfferLane(OfferLane {
        token: 12345,
        slot: 4094,
        pair: 9,
        lane: 9,
        ring_log2: 15,
        fills: false,
    })])
    .unwrap();
    assert!(
        matches!(
            said[..],
            [Message::Refuse { token: 12345, slot: 4094, reason: refuse::WITHDRAWN }]
        ),
        "{said:?}"
    );
    // A pair that nobody takes, and more of them than are made at once.
    let said = as_acceptor(&[Message::Pair(pair)]).unwrap();
    assert!(matches!(said[..], [Message::PairEnd { pair: 0 }]), "{said:?}");
    let many: Vec<Message> = (0..100).map(|n| Message::Pair(Pair { pair: n, ..pair })).collect();
    assert_eq!(as_acceptor(&many).unwrap().len(), 100);
    // Nothing that is known of.
    let words = Words { slot: 0, token: 1, request: request::LEAVE, ..Words::default() };
    let idle = [
        Message::PairReady { pair: 3 },
        Message::PairEnd { pair: 3 },
        Message::Synced,
        Message::Withdraw { token: 9 },
        Message::Words(words),
    ];
    assert_eq!(as_acceptor(&idle).unwrap(), Vec::new());
}

// ---- from within: frames that are put between those of an honest library ------------------------

impl Rig {
    /// As if the library of host `from` had said it to that of host `to`.
    fn inject(&mut self, from: usize, to: usize, frame: Message) {
        let peer = self.hosts[to].address;
        let Some(remote) = self.hosts[from].remote.as_ref() else { return };
        let mut bytes = [0u8; MAX_MESSAGE];
        let n = frame.encode(&mut bytes);
        // (Between two turns there are whole frames only, unless the peer does not read.)
        for l in remote
            .links
            .iter()
            .flatten()
            .filter(|l| l.peer == peer && l.phase == Phase::Up && l.output.is_empty())
        {
            // SAFETY: a live buffer.
            let _ = unsafe {
                sys::sendto(l.fd, bytes.as_ptr(), n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
        }
    }

    /// Slot and token of a connection.
    fn named(&mut self, h: usize) -> (u16, u64) {
        let links = self.remote(h).links.iter().flatten();
        let mut conns =
            links.flat_map(|l| l.conns.iter().enumerate()).filter(|(_, c)| c.slot.is_live());
        conns.next().map(|(slot, c)| (slot as u16, c.slot.token)).unwrap()
    }
}

#[test]
fn what_is_said_twice_changes_nothing() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        let (slot, token) = rig.named(1);
        rig.inject(0, 1, Message::Accept { token, slot });
        let ring_log2 = rig.conns[i][C].socket.tx_ring_bytes().trailing_zeros() as u8;
        let offer = OfferLane { token, slot, pair: 0, lane: 0, ring_log2, fills: false };
        rig.inject(1, 0, Message::OfferLane(offer));
        rig.inject(0, 1, Message::PairReady { pair: 0 });
        rig.inject(1, 0, Message::PairReady { pair: 0 });
        rig.inject(1, 0, Message::PairEnd { pair: 55 });
        rig.inject(0, 1, Message::PairEnd { pair: 55 });
        rig.exchange(i, 50_000);
        assert!(rig.is_fast(i), "{}", rig.describe());
        rig.finish();
    }
}

#[test]
fn a_pair_that_the_peer_ends_is_changed_for_another() {
    for model in MODELS {
        for from in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(from as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.play(30, |_, _| {});
            rig.inject(from, 1 - from, Message::PairEnd { pair: 0 });
            rig.play(30, |_, _| {});
            rig.drain(i);
            rig.promoted(i);
            rig.exchange(i, 50_000);
            rig.finish();
        }
    }
}

#[test]
fn words_that_no_honest_library_says_reset_their_connection_and_no_other() {
    let nothing = Ack::from_words(0, 0);
    let epoch = |epoch| Announce { epoch, fast_from: 0, carrier_from: 0, resend_to: 0 };
    let lies = [
        // Announcements do not skip one, and no byte of the future is sent again.
        Words { announce: epoch(77), ack: nothing, ..Words::default() },
        Words {
            announce: Announce { resend_to: u64::MAX, ..epoch(2) },
            ack: nothing,
            ..Words::default()
        },
        // It has consumed what was never sent, and is frozen there.
        Words {
            ack: Ack::from_words(u64::MAX, u64::MAX),
            request: request::LEAVE,
            announce: epoch(1),
            ..Words::default()
        },
    ];
    for (n, words) in lies.into_iter().enumerate() {
        for from in [0, 1] {
            let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
            let (bad, good) = (rig.connect(0, 1), rig.connect(0, 1));
            rig.conns[bad].iter_mut().for_each(|e| e.honest = false);
            rig.promoted(bad);
            rig.promoted(good);
            let token = {
                let generation = rig.conns[bad][1 - from].socket;
                let links = rig.remote(1 - from).links.iter().flatten();
                links
                    .flat_map(|l| &l.conns)
                    .find(|c| c.socket.is_some_and(|s| core::ptr::eq(s, generation)))
                    .map(|c| c.slot.token)
                    .unwrap()
            };
            let slot = rig.conns[bad][1 - from].socket.slot.load(Relaxed) as u16;
            rig.inject(from, 1 - from, Message::Words(Words { slot, token, ..words }));
            let (victim, liar) = (1 - from, from);
            rig.until("the victim is told", |r| {
                r.receive(bad, victim, 1000);
                r.send(bad, victim, 10);
                r.receive(bad, liar, 1000);
                r.conns[bad][victim].over.is_some()
            });
            let over = rig.conns[bad][victim].over;
            assert!(over.is_some_and(|r| r < 0), "lie {n}: {over:?}");
            rig.exchange(good, 20_000);
            assert!(
                rig.is_fast(good) && rig.conns[good].iter().all(|e| e.over.is_none()),
                "lie {n}\n{}",
                rig.describe()
            );
            // (What becomes of the liar's own end does not matter.)
            rig.kill(liar);
            rig.finish();
        }
    }
}

#[test]
fn last_words_that_do_not_say_where_the_stream_goes_on_do_not_keep_a_closed_end() {
    for from in [0, 1] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let (bad, good) = (rig.connect(0, 1), rig.connect(0, 1));
        rig.conns[bad].iter_mut().for_each(|e| e.honest = false);
        rig.promoted(bad);
        rig.promoted(good);
        let (victim, liar) = (1 - from, from);
        let slot = rig.conns[bad][victim].socket.slot.load(Relaxed) as usize;
        let conns = |r: &mut Rig| {
            r.remote(victim)
                .links
                .iter()
                .flatten()
                .flat_map(|l| &l.conns)
                .map(|c| (c.slot.state, c.slot.token))
                .collect::<Vec<_>>()
        };
        let token = conns(&mut rig)[slot].1;
        // It has received everything, has left, and is still on the ring.
        let announced = |e: &End| {
            let c = e.socket.channel().unwrap();
            let words = &c.words(slot, c.side).producer_user;
            (words[announce::EPOCH].load(Relaxed) as u32, words[announce::FAST_FROM].load(Relaxed))
        };
        let ends = &rig.conns[bad];
        let ((epoch, fast_from), (seen, _)) = (announced(&ends[liar]), announced(&ends[victim]));
        let ack = Ack { epoch: seen, armed: false, frozen: true, consumed: ends[liar].received };
        let announce = Announce { epoch, fast_from, carrier_from: 0, resend_to: 0 };
        rig.hosts[liar].stopped = true;
        rig.inject(
            from,
            victim,
            Message::Words(Words {
                slot: slot as u16,
                token,
                announce,
                ack,
                request: request::LEFT,
                seen_epoch: seen,
                seen_ack: 0,
            }),
        );
        rig.close(bad, victim);
        rig.until("the closed end is given back", |r| conns(r)[slot].0 != SlotState::Live);
        rig.hosts[liar].stopped = false;
        rig.exchange(good, 20_000);
        assert!(rig.conns[good].iter().all(|e| e.over.is_none()), "{}", rig.describe());
        rig.kill(liar);
        rig.finish();
    }
}

/// Frames that are drawn, some of them with values that mean something.
fn frame(random: &mut Random, token: u64) -> Message {
    let mut number = |most: usize| {
        let wild = random.below(8) == 0;
        if wild {
            random.below(1 << 30) as u64 * random.below(1 << 30) as u64
        } else {
            random.below(most) as u64
        }
    };
    let (slot, pair, lane) = (number(3) as u16, number(3) as u32, number(4) as u16);
    let token = if number(3) == 0 { number(10) } else { token };
    match number(12) {
        0 => Message::Withdraw { token },
        1 => Message::Pair(Pair {
            pair,
            nonce: [number(256) as u8; 16],
            port: number(65536) as u16,
            lanes: lane,
            class: (number(2) as u8).wrapping_mul(104),
        }),
        2 => Message::PairReady { pair },
        3 => Message::PairEnd { pair },
        4 => Message::OfferLane(OfferLane { token, slot, pair, lane, ring_log2: 15, fills: false }),
        5 => Message::Accept { token, slot },
        6 => Message::Refuse { token, slot, reason: number(8) as u16 },
        7 => Message::Freed { slot },
        8 => Message::Synced,
        _ => Message::Words(Words {
            slot,
            token,
            announce: Announce {
                epoch: number(6) as u32,
                fast_from: number(5000),
                carrier_from: number(5000),
                resend_to: number(5000),
            },
            ack: Ack::from_words(number(64), number(5000)),
            request: number(16) as u32,
            seen_epoch: number(6) as u32,
            seen_ack: number(64),
        }),
    }
}

#[test]
fn whatever_a_library_says_its_peer_lives_and_other_connections_do_not_notice() {
    for seed in seeds(1..40) {
        std::println!("seed {seed}");
        let model = MODELS[seed as usize % 3];
        // Host 0 speaks the truth to nobody; host 2 has a connection to the same process.
        let mut rig = Rig::new(Order::Shuffled(seed), model, 3);
        let (bad, good) = (rig.connect(0, 1), rig.connect(2, 1));
        rig.conns[bad].iter_mut().for_each(|e| e.honest = false);
        rig.promoted(good);
        let settled = rig.random.below(3) > 0;
        if settled {
            rig.promoted(bad);
        }
        for _ in 0..40 {
            rig.play(12, |_, _| {});
            let token = rig
                .remote(1)
                .links
                .iter()
                .flatten()
                .flat_map(|l| &l.conns)
                .map(|c| c.slot.token)
                .next()
                .unwrap_or(0);
            let frame = frame(&mut rig.random, token);
            // A connector lies, or an acceptor.
            let (from, to) = if seed % 2 == 0 { (0, 1) } else { (1, 0) };
            rig.inject(from, to, frame);
            if rig.random.below(4) == 0 {
                rig.pass();
            }
        }
        rig.drain(good);
        rig.exchange(good, 30_000);
        assert!(
            rig.is_fast(good) && rig.conns[good].iter().all(|e| e.over.is_none()),
            "seed {seed}\n{}",
            rig.describe()
        );
        rig.finish();
    }
}
