//! Round trips, hostile bytes, and the layout as a snapshot.

use super::*;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use proptest::prelude::*;
use std::string::String;
use std::vec::Vec;

const PEERS: [Peers; 2] = [Peers::OneHost, Peers::TwoHosts];

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = [0xaa; MAX_MESSAGE];
    let len = message.encode(&mut out);
    assert!(out[len..].iter().all(|&b| b == 0xaa));
    out[..len].to_vec()
}

/// As whichever peers may say it.
fn decoded(bytes: &[u8]) -> Result<Message, DecodeError> {
    match PEERS.map(|peers| Message::decode(bytes, peers)) {
        [Err(DecodeError::Kind), other] | [other, Err(DecodeError::Kind)] => other,
        [one, two] => {
            assert_eq!(one, two);
            one
        }
    }
}

fn address() -> impl Strategy<Value = (bool, [u8; 16], u16)> {
    (any::<bool>(), any::<[u8; 16]>(), any::<u16>())
}

fn tuple() -> impl Strategy<Value = Tuple> {
    (address(), any::<[u8; 16]>(), any::<u16>()).prop_map(|((v4, local, lport), peer, pport)| {
        let ip = |octets: [u8; 16]| {
            let v6 = Ipv6Addr::from_octets(octets);
            // A random IPv6 address is never a mapped one.
            if v4 {
                IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]))
            } else {
                IpAddr::V6(v6)
            }
        };
        Tuple::new(SocketAddr::new(ip(local), lport), SocketAddr::new(ip(peer), pport)).unwrap()
    })
}

/// One message of each kind, in order.
fn samples() -> Vec<Message> {
    let v4 = |a, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, a)), port);
    let v6 =
        |a, port| SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, a)), port);
    let tuple4 = Tuple::new(v4(1, 0x1234), v4(2, 80)).unwrap();
    let tuple6 = Tuple::new(v6(1, 0x1234), v6(2, 80)).unwrap();
    let hello = Hello::new([1, 2, 3], 0x0102_0304, Role::Acceptor);
    vec![
        Message::Hello(hello),
        Message::Candidate(Candidate {
            tuple: tuple4,
            token: 5,
            proof: Proof { lowest: 0xdead_beef, span: 3 },
            class: 104,
            fills: true,
        }),
        Message::Withdraw { token: 5 },
        Message::Channel(Channel { channel_bytes: 0x10000, slots: 256, places: 16 }),
        Message::Arena(Arena { arena: 1, bytes: 0x0020_0000 }),
        Message::Place { place: 3 },
        Message::Offer(Offer {
            token: 5,
            tuple: tuple6,
            slot: 9,
            arena: 1,
            ring_offset: [0x1000, 0x2000],
            ring_bytes: [0x1000, 0x800],
        }),
        Message::Accept { token: 5, slot: 9 },
        Message::Refuse { token: 5, slot: 9, reason: refuse::WITHDRAWN },
        Message::PullBack { slot: 9, dir: Direction::AcceptorToConnector },
        Message::Unread { slot: 9 },
        Message::Bye,
        Message::Turn { token: 5, turn: 2 },
        Message::Unproven { token: 5 },
        Message::HostHello(HostHello {
            hello,
            process: [7; 16],
            port: 6379,
            immediate: true,
            transport: 1,
            receives: 128,
            ring_log2: 17,
            lanes: 32,
            resumes: true,
            key: [9; 16],
        }),
        Message::Pair(Pair { pair: 9, nonce: [3; 16], port: 26379, lanes: 4095, class: 104 }),
        Message::PairReady { pair: 9 },
        Message::PairEnd { pair: u32::MAX },
        Message::PairAsk { pair: 7 },
        Message::PairHas { pair: 7, messages: u32::MAX },
        Message::OfferLane(OfferLane {
            token: 1 << 40,
            slot: 4095,
            pair: 9,
            lane: 31,
            ring_log2: 17,
            fills: false,
        }),
        Message::Words(Words {
            slot: 3,
            token: 4,
            announce: Announce { epoch: 3, fast_from: u64::MAX, carrier_from: 2, resend_to: 3 },
            ack: Ack { epoch: 2, armed: true, frozen: false, consumed: 9 },
            request: request::LEAVE,
            seen_epoch: 8,
            seen_ack: 1 << 33,
        }),
        Message::Freed { slot: 1 },
        Message::Resume { known: true, key: [7; 16] },
        Message::Synced,
        Message::Commit { token: 7, digest: [5; 16] },
        Message::Open { token: 7, nonce: [6; 16], stamp: u32::MAX },
        Message::Left { slot: 9 },
    ]
}

#[test]
fn layout_is_as_reviewed() {
    let mut text = String::new();
    let samples = samples();
    assert_eq!(samples.len(), TABLE.len());
    for (message, row) in samples.iter().zip(TABLE) {
        let bytes = encoded(message);
        assert_eq!((message.kind(), bytes.len()), (row.kind, row.bytes));
        assert_eq!(message.fds(), row.fds);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let on = row.on.map_or("any peers".into(), |on| format!("{on:?}"));
        let from = row.from.map_or("either".into(), |from| format!("{from:?}"));
        text += &format!("{message:?}\n    {on}, {from}, {} fds\n    {hex}\n", row.fds);
    }
    let expected = include_str!("layout.txt");
    assert!(text == expected, "layout.txt should be:\n{text}");
}

#[test]
fn a_message_is_for_those_that_the_table_names() {
    for (message, row) in samples().iter().zip(TABLE) {
        let bytes = encoded(message);
        for peers in PEERS {
            let expected = if row.on.is_none_or(|on| on == peers) {
                Ok(*message)
            } else {
                Err(DecodeError::Kind)
            };
            assert_eq!(Message::decode(&bytes, peers), expected);
        }
        for role in [Role::Connector, Role::Acceptor] {
            assert_eq!(message.is_said_by(role), row.from.is_none_or(|from| from == role));
        }
    }
}

#[test]
fn every_other_length_is_refused() {
    for message in samples() {
        let mut bytes = encoded(&message);
        assert!(bytes.len() < MAX_MESSAGE);
        assert_eq!(Message::length(&bytes), Ok(Some(bytes.len())));
        for len in 0..bytes.len() {
            assert_eq!(decoded(&bytes[..len]), Err(DecodeError::Length), "{message:?} {len}");
        }
        bytes.push(0);
        assert_eq!(decoded(&bytes), Err(DecodeError::Length));
        // One that says another length than its kind has.
        let length = u16::from_le_bytes([bytes[0], bytes[1]]) + 1;
        bytes[..2].copy_from_slice(&length.to_le_bytes());
        assert_eq!(decoded(&bytes), Err(DecodeError::Length));
    }
}

#[test]
fn a_length_waits_or_is_refused() {
    assert_eq!(Message::length(&[]), Ok(None));
    assert_eq!(Message::length(&[9]), Ok(None));
    assert_eq!(Message::length(&[1, 0]), Err(DecodeError::Length));
    assert_eq!(Message::length(&[0xff, 0xff, 0]), Err(DecodeError::Length));
}

/// All that differ from a message in one byte, and all headers over a body of zeros: what decodes
/// is the one encoding of what it says.
#[test]
fn whatever_is_changed_has_one_meaning_or_none() {
    let mut meanings = 0;
    let mut check = |bytes: &[u8]| {
        for peers in PEERS {
            if let Ok(message) = Message::decode(bytes, peers) {
                assert_eq!(encoded(&message), bytes);
                meanings += 1;
            }
        }
    };
    for message in samples() {
        let good = encoded(&message);
        for at in 0..good.len() {
            for value in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = value;
                check(&bytes);
            }
        }
    }
    for size in 0..=MAX_MESSAGE + 1 {
        for kind in 0..=u8::MAX {
            for format in [0, 1, FORMAT, FORMAT + 1, u8::MAX] {
                let mut bytes = vec![0; size.max(HEADER)];
                let length = (size as u16).wrapping_sub(LENGTH as u16).to_le_bytes();
                bytes[..HEADER].copy_from_slice(&[length[0], length[1], kind, format]);
                check(&bytes[..size]);
            }
        }
    }
    assert!(meanings > 100_000, "{meanings}");
}

#[test]
fn impossible_values_are_refused() {
    let samples = samples();
    let sample =
        |name: &str| encoded(&samples[TABLE.iter().position(|row| row.name == name).unwrap()]);
    for name in ["Hello", "HostHello"] {
        let mut hello = sample(name);
        hello[HEADER] ^= 1;
        assert_eq!(decoded(&hello), Err(DecodeError::Magic));
    }
    // A bit of the acknowledgement's control word that means nothing.
    let mut words = sample("Words");
    words[HEADER + 2 + 8 + 28 + 7] = 0x80;
    assert_eq!(decoded(&words), Err(DecodeError::Value));
    let mut bye = sample("Bye");
    bye[2] = 99;
    assert_eq!(decoded(&bye), Err(DecodeError::Kind));
    bye[2] = 0;
    assert_eq!(decoded(&bye), Err(DecodeError::Kind));
    // Rubbish behind the four bytes of an IPv4 address.
    let mut bytes = sample("Candidate");
    bytes[HEADER + 1 + 15] = 1;
    assert_eq!(decoded(&bytes), Err(DecodeError::Value));
    // An IPv6 tuple whose addresses are both mapped.
    let mut bytes = sample("Candidate");
    bytes[HEADER] = 6;
    for at in [HEADER + 1, HEADER + 1 + 18] {
        bytes[at..at + 16].copy_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    }
    assert_eq!(decoded(&bytes), Err(DecodeError::Value));
}

/// The greetings of the last build with two layouts, and how it reads ours: as another version,
/// not as nonsense, at both ends.
#[test]
fn older_builds_and_this_one_know_each_other_for_others() {
    // Within a host: kind, format, descriptors, 0.
    let mut older = b"\x01\x01\x00\x00netacc\r\n\x03\x00".to_vec();
    older.resize(25, 0);
    assert_eq!(Message::decode(&older, Peers::OneHost), Err(DecodeError::Format));
    assert_ne!(encoded(&samples()[0])[1], 1);
    // Between hosts: length, kind, format.
    let mut older = b"\x41\x00\x01\x01netaccR\n\x04\x00".to_vec();
    older.resize(67, 0);
    assert_eq!(Message::length(&older), Ok(Some(67)));
    assert_eq!(Message::decode(&older, Peers::TwoHosts), Err(DecodeError::Format));
    let ours = encoded(&samples()[14]);
    assert!(ours.len() <= 96 && ours[3] != 1);
}

#[test]
fn mapped_addresses_are_ipv4() {
    let mapped =
        |a, port| SocketAddr::new(IpAddr::V6(Ipv4Addr::new(10, 0, 0, a).to_ipv6_mapped()), port);
    let plain = |a, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, a)), port);
    let tuple = Tuple::new(mapped(1, 1000), plain(2, 2000)).unwrap();
    assert_eq!(tuple, Tuple::new(plain(1, 1000), mapped(2, 2000)).unwrap());
    assert_eq!(
        (tuple.family(), tuple.local(), tuple.peer()),
        (Family::V4, plain(1, 1000), plain(2, 2000))
    );
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 1);
    assert_eq!(Tuple::new(v6, plain(2, 2000)), Err(FamilyMismatch));
}

#[test]
fn greetings_of_other_versions_decode_and_do_not_match() {
    let peer = Hello::new([9, 0, 0], 2, Role::Acceptor);
    assert!(peer.fits(Role::Connector));
    assert!(!peer.fits(Role::Acceptor), "the same role");
    let newer = Hello { version: VERSION + 1, ..peer };
    assert_eq!(decoded(&encoded(&Message::Hello(newer))), Ok(Message::Hello(newer)));
    assert!(!newer.fits(Role::Connector));
}

#[test]
fn a_proof_fits_what_it_names_and_nothing_else() {
    let around = Proof::new(u32::MAX - 1, 2);
    assert_eq!(around.span, 4);
    let fitting = [u32::MAX - 1, u32::MAX, 0, 1, 2];
    assert!(fitting.iter().all(|stamp| around.fits(*stamp)));
    assert!(![3, u32::MAX - 2, 1 << 31].iter().any(|s| around.fits(*s)));
    // Who names more values than a guess would need knows nothing.
    assert_eq!(Proof::new(5, 5 + 4095).span, 4095);
    assert_eq!(Proof::new(5, 5 + 4096), Proof::NONE);
    assert!(!Proof { lowest: 5, span: 4096 }.fits(6), "whatever a peer says");
    let nothing = [Proof::NONE, Proof::LATER, Proof::TOLD];
    assert!(nothing.iter().all(|p| !p.knows() && !p.fits(0)));
    assert!((0..3).all(|n| nothing[n] != nothing[(n + 1) % 3]));
    assert_eq!(Proof::new(5, 4), Proof::NONE);
    assert!(![0, 1, 65_535, u32::MAX].iter().any(|s| Proof::NONE.fits(*s)));
}

#[test]
fn a_commitment_is_to_all_that_it_says() {
    let (nonce, process) = ([1; 16], [2; 16]);
    let this = commitment(&nonce, 3, 4, &process, [5, 6]);
    assert_eq!(this, commitment(&nonce, 3, 4, &process, [5, 6]));
    let others = [
        commitment(&[0; 16], 3, 4, &process, [5, 6]),
        commitment(&nonce, 2, 4, &process, [5, 6]),
        commitment(&nonce, 3, 5, &process, [5, 6]),
        commitment(&nonce, 3, 4, &[0; 16], [5, 6]),
        commitment(&nonce, 3, 4, &process, [7, 6]),
        commitment(&nonce, 3, 4, &process, [5, 7]),
        commitment(&nonce, 3, 4, &process, [6, 5]),
    ];
    assert!(!others.contains(&this));
}

#[test]
fn rings_must_lie_apart_inside_of_the_arena() {
    let Message::Offer(good) = samples()[6] else { unreachable!() };
    assert!(good.fits(0x2800));
    assert!(!good.fits(0x27ff));
    assert!(!Offer { ring_bytes: [0, 0x800], ..good }.fits(0x2800));
    assert!(!Offer { ring_bytes: [0x1001, 0x800], ..good }.fits(0x2800));
    assert!(Offer { ring_offset: [0x2000, 0x1000], ..good }.fits(0x3000));
    assert!(!Offer { ring_offset: [u64::MAX, 0], ..good }.fits(u64::MAX));
    assert!(!Offer { ring_offset: [0x1000, 0x1000], ..good }.fits(u64::MAX));
}

proptest! {
    /// Whatever fields hold: a body of the right length is the one encoding of what it says.
    #[test]
    fn bodies_of_any_content_have_one_meaning(
        which in 0..TABLE.len(),
        body in any::<[u8; MAX_MESSAGE]>(),
        tuple in tuple(),
        likely in any::<bool>(),
    ) {
        let mut bytes = encoded(&samples()[which]);
        let from = if likely { bytes.len() / 2 } else { HEADER };
        let end = bytes.len();
        bytes[from..].copy_from_slice(&body[from..end]);
        if let Ok(message) = decoded(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
        let candidate = Message::Candidate(Candidate { tuple, token: 1, proof: Proof::NONE, class: 0, fills: false });
        prop_assert_eq!(decoded(&encoded(&candidate)), Ok(candidate));
    }

    #[test]
    fn mirror_twice_is_the_same(tuple in tuple()) {
        prop_assert_eq!(tuple.mirrored().mirrored(), tuple);
        prop_assert_eq!(tuple.mirrored().local(), tuple.peer());
    }

    #[test]
    fn fits_agrees_with_plain_arithmetic(small in any::<[u8; 4]>(), arena in 0..600u64) {
        let Message::Offer(offer) = samples()[6] else { unreachable!() };
        let offer = Offer {
            ring_offset: [small[0].into(), small[1].into()],
            ring_bytes: [small[2].into(), small[3].into()],
            ..offer
        };
        let ring = |i: usize| offer.ring_offset[i]..offer.ring_offset[i] + u64::from(offer.ring_bytes[i]);
        let expected = (0..2).all(|i| !ring(i).is_empty() && ring(i).end <= arena)
            && !ring(0).any(|at| ring(1).contains(&at));
        prop_assert_eq!(offer.fits(arena), expected);
    }
}
