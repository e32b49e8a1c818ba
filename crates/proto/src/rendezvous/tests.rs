//! Round trips, hostile bytes, and the layout as a snapshot.

use super::*;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use proptest::prelude::*;
use std::string::String;
use std::vec::Vec;

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = [0xaa; MAX_MESSAGE];
    let len = message.encode(&mut out);
    assert!(out[len..].iter().all(|&b| b == 0xaa));
    out[..len].to_vec()
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

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Connector), Just(Role::Acceptor)]
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::ConnectorToAcceptor), Just(Direction::AcceptorToConnector)]
}

fn offer() -> impl Strategy<Value = Offer> {
    (any::<u64>(), tuple(), any::<u16>(), any::<u32>(), any::<[u64; 2]>(), any::<[u32; 2]>())
        .prop_map(|(token, tuple, slot, arena, ring_offset, ring_bytes)| Offer {
            token,
            tuple,
            slot,
            arena,
            ring_offset,
            ring_bytes,
        })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u16>(), any::<[u16; 3]>(), any::<u32>(), role()).prop_map(
            |(proto_version, lib_version, pid, role)| {
                Message::Hello(Hello { proto_version, ..Hello::new(lib_version, pid, role) })
            }
        ),
        (tuple(), any::<u64>())
            .prop_map(|(tuple, token)| Message::Candidate(Candidate { tuple, token })),
        any::<u64>().prop_map(|token| Message::Withdraw { token }),
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(channel_bytes, slots, places)| {
            Message::Channel(Channel { channel_bytes, slots, places })
        }),
        (any::<u32>(), any::<u64>())
            .prop_map(|(arena, bytes)| Message::Arena(Arena { arena, bytes })),
        any::<u16>().prop_map(|place| Message::Place { place }),
        offer().prop_map(Message::Offer),
        (any::<u64>(), any::<u16>()).prop_map(|(token, slot)| Message::Accept { token, slot }),
        (any::<u64>(), any::<u16>(), any::<u16>())
            .prop_map(|(token, slot, reason)| { Message::Refuse { token, slot, reason } }),
        (any::<u16>(), direction()).prop_map(|(slot, dir)| Message::PullBack { slot, dir }),
        any::<u16>().prop_map(|slot| Message::Unread { slot }),
        Just(Message::Bye),
        (any::<u64>(), any::<u8>()).prop_map(|(token, turn)| Message::Turn { token, turn }),
        any::<u64>().prop_map(|token| Message::Unproven { token }),
    ]
}

/// One message of each kind.
fn samples() -> [Message; 14] {
    let v4 = |a, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, a)), port);
    let v6 =
        |a, port| SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, a)), port);
    let tuple4 = Tuple::new(v4(1, 0x1234), v4(2, 80)).unwrap();
    let tuple6 = Tuple::new(v6(1, 0x1234), v6(2, 80)).unwrap();
    [
        Message::Hello(Hello::new([1, 2, 3], 0x0102_0304, Role::Acceptor)),
        Message::Candidate(Candidate { tuple: tuple4, token: 5 }),
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
    ]
}

#[test]
fn layout_is_as_reviewed() {
    let mut text = String::new();
    for message in samples() {
        let hex: String = encoded(&message).iter().map(|b| format!("{b:02x}")).collect();
        text += &format!("{message:?}\n    {hex}\n");
    }
    let expected = include_str!("layout.txt");
    assert!(text == expected, "layout.txt should be:\n{text}");
}

#[test]
fn every_other_length_is_refused() {
    for message in samples() {
        let mut bytes = encoded(&message);
        assert!(bytes.len() <= MAX_MESSAGE);
        for len in 0..bytes.len() {
            assert_eq!(
                Message::decode(&bytes[..len]),
                Err(DecodeError::Length),
                "{message:?} {len}"
            );
        }
        bytes.push(0);
        assert_eq!(Message::decode(&bytes), Err(DecodeError::Length));
    }
}

#[test]
fn damaged_headers_are_refused() {
    for message in samples() {
        let good = encoded(&message);
        let damaged = |at: usize, value| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Message::decode(&bytes)
        };
        assert_eq!(damaged(0, 0), Err(DecodeError::Kind));
        assert_eq!(damaged(0, 200), Err(DecodeError::Kind));
        assert_eq!(damaged(1, FORMAT + 1), Err(DecodeError::Format));
        assert_eq!(damaged(2, good[2] ^ 1), Err(DecodeError::Value));
        assert_eq!(damaged(3, 1), Err(DecodeError::Value));
    }
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
fn only_the_normal_form_of_a_tuple_decodes() {
    let mut bytes = encoded(&samples()[1]);
    // Rubbish behind the four bytes of an IPv4 address.
    bytes[4 + 1 + 15] = 1;
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Value));
    // An IPv6 tuple whose addresses are both mapped.
    let mut bytes = encoded(&samples()[1]);
    bytes[4] = 6;
    for at in [5, 5 + 18] {
        bytes[at..at + 16].copy_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    }
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Value));
}

#[test]
fn greetings_of_other_versions_decode_and_do_not_match() {
    let us = Hello::new([1, 0, 0], 1, Role::Connector);
    let peer = Hello::new([9, 0, 0], 2, Role::Acceptor);
    assert!(us.is_compatible(&peer));
    assert!(!us.is_compatible(&us), "the same role");
    let newer = Hello { proto_version: PROTO_VERSION + 1, ..peer };
    assert_eq!(Message::decode(&encoded(&Message::Hello(newer))), Ok(Message::Hello(newer)));
    assert!(!us.is_compatible(&newer));
    let mut bytes = encoded(&samples()[0]);
    bytes[4] ^= 1;
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Magic));
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
    #[test]
    fn messages_survive_the_wire(message in message()) {
        prop_assert_eq!(Message::decode(&encoded(&message)), Ok(message));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_have_one_meaning(
        kind in 0..14u8,
        fds in 0..2u8,
        mut bytes in prop::collection::vec(any::<u8>(), 0..100),
        header in any::<bool>(),
    ) {
        if header && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&[kind, FORMAT, fds, 0]);
        }
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
    }

    #[test]
    fn mirror_twice_is_the_same(tuple in tuple()) {
        prop_assert_eq!(tuple.mirrored().mirrored(), tuple);
        prop_assert_eq!(tuple.mirrored().local(), tuple.peer());
    }

    #[test]
    fn fits_agrees_with_plain_arithmetic(offer in offer(), small in any::<[u8; 4]>(), arena in 0..600u64) {
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
