//! Acceptors whose offers are made by hand.

use super::*;

/// An acceptor that we play by hand against a connector.
pub(in crate::service::tests) struct ByHand {
    pub(in crate::service::tests) c: &'static Service,
    pub(in crate::service::tests) _squat: Raw,
    pub(in crate::service::tests) r: Raw,
    pub(in crate::service::tests) cs: &'static Socket,
    pub(in crate::service::tests) token: u64,
    pub(in crate::service::tests) net: Net,
    pub(in crate::service::tests) tcp: (TcpStream, TcpStream),
}

pub(in crate::service::tests) fn accepting_by_hand() -> ByHand {
    let (c, net) = (service(), Net::new());
    let squat = Raw::squatter(net.port());
    let (cs, _, tcp) = net.connect();
    assert!(c.connect(cs));
    let r = squat.accept();
    r.hello(Role::Acceptor);
    let Some(Message::Candidate(k)) = r.next() else { panic!("no candidate") };
    assert_eq!(k.tuple, cs.tuple());
    ByHand { c, _squat: squat, r, cs, token: k.token, net, tcp }
}

impl ByHand {
    /// Shows the mark of `turn`, and has the connector show it.
    pub(in crate::service::tests) fn show(&self, turn: u8) {
        self.show_with(&self.tcp.1, self.token, turn);
    }
    pub(in crate::service::tests) fn show_with(&self, carrier: &TcpStream, token: u64, turn: u8) {
        self.r.show(Role::Acceptor, carrier, turn);
        self.r.send(Message::Turn { token, turn });
        settle(&[self.c]);
        assert_eq!(self.r.next(), Some(Message::Turn { token, turn }));
    }
    pub(in crate::service::tests) fn prove(&self) {
        (0..TURNS).for_each(|turn| self.show(turn));
    }
    pub(in crate::service::tests) fn channel(&self) {
        let m = memory(CHANNEL_BYTES);
        self.r.send_fd(
            Message::Channel(proto::Channel {
                channel_bytes: CHANNEL_BYTES as u64,
                slots: SLOTS as u32,
                places: PLACES as u32,
            }),
            m,
        );
        fd_table::close_internal(m);
    }
    pub(in crate::service::tests) fn arena(&self, arena: u32, bytes: usize) {
        let m = memory(bytes);
        self.r.send_fd(Message::Arena(proto::Arena { arena, bytes: bytes as u64 }), m);
        fd_table::close_internal(m);
    }
    /// All that an offer needs: the connector takes the next one.
    pub(in crate::service::tests) fn prepare(&self, arena_bytes: usize) {
        self.prove();
        self.channel();
        self.arena(0, arena_bytes);
    }
    pub(in crate::service::tests) fn offers(&self, offer: proto::Offer) {
        self.r.send(Message::Offer(offer));
        settle(&[self.c]);
    }
    pub(in crate::service::tests) fn offer(&self) -> proto::Offer {
        proto::Offer {
            token: self.token,
            tuple: self.cs.tuple().mirrored(),
            slot: 3,
            arena: 0,
            ring_offset: [0, 4096],
            ring_bytes: [4096, 4096],
        }
    }
}

#[test]
fn a_good_offer_is_taken() {
    let h = accepting_by_hand();
    h.prepare(8192);
    h.offers(h.offer());
    assert_eq!(h.r.next(), Some(Message::Accept { token: h.token, slot: 3 }));
    let o = offer_of(h.cs);
    assert_eq!((o.slot, o.tx_bytes, o.rx_bytes), (3, 4096, 4096));
    assert_eq!(o.rx_ring as usize - o.tx_ring as usize, 4096);
}

#[test]
fn an_offer_without_the_turns_is_refused() {
    let h = accepting_by_hand();
    h.prepare(8192);
    h.offers(h.offer());
    assert!(matches!(h.r.next(), Some(Message::Accept { .. })));
    // For the next connection nothing is shown, or not all.
    for turns in [0, 1, TURNS - 1] {
        let (cs, _, tcp) = h.net.connect();
        assert!(h.c.connect(cs));
        let Some(Message::Candidate(k)) = h.r.next() else { panic!("no candidate") };
        (0..turns).for_each(|turn| h.show_with(&tcp.1, k.token, turn));
        let o = proto::Offer { token: k.token, tuple: cs.tuple().mirrored(), slot: 4, ..h.offer() };
        h.offers(o);
        assert_eq!(
            h.r.next(),
            Some(Message::Refuse { token: k.token, slot: 4, reason: refuse::NOT_AUTHENTICATED }),
            "after {turns}"
        );
        assert!(cs.offered.is_none());
    }
}

#[test]
fn offers_that_do_not_hold_water_are_refused() {
    type Change = Box<dyn Fn(&mut proto::Offer)>;
    let change: Vec<(u16, Change)> = std::vec![
        (refuse::WITHDRAWN, Box::new(|o| o.token ^= 1 << 40)),
        (refuse::WITHDRAWN, Box::new(|o| o.token = u64::MAX)),
        (refuse::WRONG_TUPLE, Box::new(|o| o.tuple = o.tuple.mirrored())),
        (refuse::BAD_MEMORY, Box::new(|o| o.slot = SLOTS as u16)),
        (refuse::BAD_MEMORY, Box::new(|o| o.slot = u16::MAX)),
        (refuse::BAD_MEMORY, Box::new(|o| o.arena = 1)),
        (refuse::BAD_MEMORY, Box::new(|o| o.arena = u32::MAX)),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [2048, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [4096, 6144])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [0, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [1 << 31, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [0, 8192])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [0, 2048])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [4096, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [1, 4160])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [u64::MAX - 63, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [u64::MAX - 4095, 4096])),
    ];
    let h = accepting_by_hand();
    h.prepare(8192);
    for (i, (reason, f)) in change.iter().enumerate() {
        let mut o = h.offer();
        f(&mut o);
        h.offers(o);
        assert_eq!(
            h.r.next(),
            Some(Message::Refuse { token: o.token, slot: o.slot, reason: *reason }),
            "case {i}"
        );
        assert!(h.cs.offered.is_none(), "case {i}");
    }
    h.offers(h.offer());
    offer_of(h.cs);
}

#[test]
fn a_slot_in_use_is_not_taken_again() {
    let h = accepting_by_hand();
    h.prepare(16384);
    h.offers(h.offer());
    assert!(matches!(h.r.next(), Some(Message::Accept { .. })));
    let (cs, _, tcp) = h.net.connect();
    let tuple = cs.tuple();
    assert!(h.c.connect(cs));
    let Some(Message::Candidate(k)) = h.r.next() else { panic!() };
    (0..TURNS).for_each(|turn| h.show_with(&tcp.1, k.token, turn));
    let o = proto::Offer {
        token: k.token,
        tuple: tuple.mirrored(),
        ring_offset: [8192, 12288],
        ..h.offer()
    };
    h.offers(o);
    assert_eq!(
        h.r.next(),
        Some(Message::Refuse { token: k.token, slot: 3, reason: refuse::BAD_MEMORY })
    );
    h.offers(proto::Offer { slot: 4, ..o });
    assert_eq!(h.r.next(), Some(Message::Accept { token: k.token, slot: 4 }));
}

#[test]
fn memory_that_could_be_taken_away_ends_the_link() {
    for wrong in 0..7 {
        let h = accepting_by_hand();
        h.prove();
        let unsealed =
            sys::memfd_create(b"t\0", libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as c_int;
        assert!(sys::ftruncate(unsealed, CHANNEL_BYTES) >= 0);
        let good = proto::Channel {
            channel_bytes: CHANNEL_BYTES as u64,
            slots: SLOTS as u32,
            places: PLACES as u32,
        };
        match wrong {
            0 => h.r.send_fd(Message::Channel(good), unsealed),
            1 => h.r.send_fd(Message::Channel(proto::Channel { slots: 1, ..good }), unsealed),
            2 => {
                h.channel();
                h.channel();
            }
            3 => h.arena(0, 8192),
            4 => {
                h.channel();
                h.arena(1, 8192);
            }
            5 => {
                h.channel();
                h.r.send_fd(
                    Message::Arena(proto::Arena { arena: 0, bytes: CHANNEL_BYTES as u64 }),
                    unsealed,
                );
            }
            _ => h.r.send(Message::Offer(h.offer())),
        }
        settle(&[h.c]);
        assert!(h.r.is_ended(), "case {wrong}");
        assert!(h.cs.offered.is_none());
        assert_eq!(h.c.state.lock().links[0].phase, Phase::Free, "case {wrong}");
        // It is not called again for a while.
        std::thread::sleep(core::time::Duration::from_millis(12));
        settle(&[h.c]);
        assert_eq!(h.c.state.lock().links[0].phase, Phase::Free, "case {wrong}");
        let _ = sys::close(unsealed);
    }
}

#[test]
fn noise_never_hurts() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let mut x = 7u64;
    let mut random = move || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) as u8
    };
    for _ in 0..100 {
        let r = Raw::caller(net.port());
        r.hello(Role::Connector);
        let n = usize::from(random()) % 96 + 1;
        let mut bytes: Vec<u8> = (0..n).map(|_| random()).collect();
        if n > 3 {
            bytes[..2].copy_from_slice(&(n as u16 - 2).to_le_bytes());
            bytes[2] %= proto::TABLE.len() as u8 + 2;
            bytes[3] = proto::FORMAT;
        }
        r.send_bytes(&bytes);
        settle(&[a]);
    }
    settle(&[a]);
    let c = service();
    let (cs, _, _tcp) = agree(a, c, &net);
    offer_of(cs);
}
