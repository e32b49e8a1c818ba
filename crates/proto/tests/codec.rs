//! Every kind of message, at every length, with every value of each byte: what decodes is exactly
//! what an encoder produces.
//!
//! A sample of each kind says which of its bytes are free (any value is a message, another one)
//! and which values the others may have. So a field that is not checked, or a byte that is not
//! looked at, shows.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use netacc_proto::rendezvous::{
    Arena, Candidate, Channel, Direction, Hello, HostHello, MAX_MESSAGE, Message, Offer, OfferLane,
    Pair, Peers, Proof, Role, TABLE, Tuple, Words, request,
};
use netacc_proto::switchover::{Ack, Announce};

const HEADER: usize = 4;
/// Where the kind stands.
const KIND: usize = 2;

/// Whether bytes decode, for processes of one host or of two; and then they are the one form of
/// what they say.
fn decodes(bytes: &[u8]) -> bool {
    let read = [Peers::OneHost, Peers::TwoHosts].map(|peers| Message::decode(bytes, peers));
    for message in read.into_iter().flatten() {
        let mut out = [0; MAX_MESSAGE];
        let n = message.encode(&mut out);
        assert_eq!(out[..n], *bytes, "two forms of {message:?}");
    }
    read.iter().any(Result::is_ok)
}

/// Bytes that decode.
struct Sample {
    bytes: Vec<u8>,
    /// The values that the bytes at these places may have; all others may have any.
    bound: Vec<(Range<usize>, Bound)>,
}

#[derive(Clone)]
enum Bound {
    /// That of the sample, at each place.
    Same,
    /// One of these.
    OneOf(&'static [u8]),
}

impl Sample {
    fn new(message: Message) -> Self {
        let mut out = [0; MAX_MESSAGE];
        let n = message.encode(&mut out);
        Self { bytes: out[..n].to_vec(), bound: vec![(0..HEADER, Bound::Same)] }
    }

    fn same(mut self, place: Range<usize>) -> Self {
        self.bound.push((place, Bound::Same));
        self
    }

    fn one_of(mut self, at: usize, values: &'static [u8]) -> Self {
        self.bound.push((at..at + 1, Bound::OneOf(values)));
        self
    }

    fn may_have(&self, at: usize, value: u8) -> bool {
        match self.bound.iter().find(|(place, _)| place.contains(&at)) {
            None => true,
            Some((_, Bound::Same)) => value == self.bytes[at],
            Some((_, Bound::OneOf(values))) => values.contains(&value),
        }
    }
}

fn tuple(six: bool) -> Tuple {
    let ends: [&str; 2] = if six { ["fd00::1", "fd00::2"] } else { ["127.0.0.1", "127.0.0.2"] };
    let [local, peer] = ends.map(|end| SocketAddr::new(end.parse::<IpAddr>().unwrap(), 0x1234));
    Tuple::new(local, peer).unwrap()
}

/// What may stand in a tuple that begins at `at`: the family and, of IPv4, the bytes that no
/// address has.
fn with_tuple(sample: Sample, at: usize, six: bool) -> Sample {
    if six {
        return sample.one_of(at, &[6]);
    }
    let (local, peer) = (at + 1, at + 1 + 18);
    // (Those bytes are an IPv6 address as well.)
    sample.one_of(at, &[4, 6]).same(local + 4..local + 16).same(peer + 4..peer + 16)
}

fn samples() -> Vec<Sample> {
    let encoded = Sample::new;
    let (token, slot, key) = (0x0102_0304_0506_0708, 0x0910, [9; 16]);
    let hello = Hello::new([1, 2, 3], 77, Role::Acceptor);
    let candidate = |six| {
        let proof = Proof { lowest: 0xdead_beef, span: 3 };
        let candidate = Candidate { tuple: tuple(six), token, proof, class: 0, fills: false };
        with_tuple(encoded(Message::Candidate(candidate)), 4, six).one_of(56, &[0, 1])
    };
    let offer = |six| {
        let (ring_offset, ring_bytes) = ([0x1000, 0x2000], [0x1000, 0x800]);
        let offer = Offer { token, tuple: tuple(six), slot, arena: 1, ring_offset, ring_bytes };
        with_tuple(encoded(Message::Offer(offer)), 12, six)
    };
    let channel = Channel { channel_bytes: 1 << 20, slots: 4096, places: 256 };
    let host_hello = HostHello {
        hello,
        process: [7; 16],
        port: 6379,
        immediate: true,
        transport: 1,
        receives: 128,
        ring_log2: 17,
        lanes: 32,
        resumes: true,
        key,
    };
    let words = Words {
        slot,
        token,
        announce: Announce { epoch: 3, fast_from: u64::MAX, carrier_from: 2, resend_to: 3 },
        ack: Ack { epoch: 2, armed: true, frozen: false, consumed: 9 },
        request: request::LEAVE,
        seen_epoch: 8,
        seen_ack: 1 << 33,
    };
    let (flags, dir) = (&[0, 1], Direction::AcceptorToConnector);
    vec![
        encoded(Message::Hello(hello)).same(4..12).one_of(24, &[1, 2]),
        candidate(false),
        candidate(true),
        encoded(Message::Withdraw { token }),
        encoded(Message::Channel(channel)),
        encoded(Message::Arena(Arena { arena: 1, bytes: 1 << 21 })),
        encoded(Message::Place { place: 3 }),
        offer(false),
        offer(true),
        encoded(Message::Accept { token, slot }),
        encoded(Message::Refuse { token, slot, reason: 2 }),
        encoded(Message::PullBack { slot, dir }).one_of(6, flags),
        encoded(Message::Unread { slot }),
        encoded(Message::Bye),
        encoded(Message::Turn { token, turn: 2 }),
        encoded(Message::Unproven { token }),
        encoded(Message::HostHello(host_hello))
            .same(4..12)
            .one_of(24, &[1, 2])
            .one_of(43, flags)
            .one_of(50, flags),
        encoded(Message::Pair(Pair {
            pair: 9,
            nonce: [3; 16],
            port: 26379,
            lanes: 4095,
            class: 104,
        })),
        encoded(Message::PairReady { pair: 9 }),
        encoded(Message::PairEnd { pair: 9 }),
        encoded(Message::PairAsk { pair: 9 }),
        encoded(Message::PairHas { pair: 9, messages: 7 }),
        encoded(Message::OfferLane(OfferLane {
            token,
            slot,
            pair: 9,
            lane: 31,
            ring_log2: 17,
            fills: true,
        }))
        .one_of(21, flags),
        // Of the acknowledgement's control word two bits mean something beside the epoch.
        encoded(Message::Words(words)).one_of(46, &[0, 1, 2, 3]).same(47..50),
        encoded(Message::Freed { slot }),
        encoded(Message::Resume { known: true, key }).one_of(4, flags),
        encoded(Message::Synced),
        encoded(Message::Commit { token, digest: [5; 16] }),
        encoded(Message::Open { token, nonce: [6; 16], stamp: 7 }),
        encoded(Message::Left { slot }),
    ]
}

/// Bytes of that kind and length, which say so.
fn framed(kind: u8, body: impl Iterator<Item = u8>, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = body.take(len).collect();
    let [low, high] = (len as u16).wrapping_sub(2).to_le_bytes();
    for (place, value) in bytes.iter_mut().zip([low, high, kind, netacc_proto::rendezvous::FORMAT])
    {
        *place = value;
    }
    bytes
}

#[test]
fn the_samples_are_all_kinds() {
    let samples = samples();
    for row in TABLE {
        let mut same = samples.iter().filter(|s| s.bytes[KIND] == row.kind).peekable();
        assert!(same.peek().is_some(), "{}", row.name);
        assert!(same.all(|s| s.bytes.len() == row.bytes && decodes(&s.bytes)), "{}", row.name);
    }
}

#[test]
fn every_value_of_each_byte_is_free_or_refused() {
    for sample in samples() {
        // (Kinds of one form may change into each other.)
        for at in (0..sample.bytes.len()).filter(|at| *at != KIND) {
            for value in 0..=255 {
                let mut bytes = sample.bytes.clone();
                bytes[at] = value;
                assert_eq!(decodes(&bytes), sample.may_have(at, value), "byte {at} of {bytes:x?}");
            }
        }
    }
}

#[test]
fn every_kind_has_one_length_and_others_have_none() {
    let samples = samples();
    for kind in 0..=255 {
        let length = TABLE.iter().find(|row| row.kind == kind).map(|row| row.bytes);
        for len in 0..=MAX_MESSAGE + 2 {
            for sample in &samples {
                let bytes = framed(kind, sample.bytes.iter().copied().cycle(), len);
                let itself = sample.bytes[KIND] == kind && len == sample.bytes.len();
                let decodes = decodes(&bytes);
                assert!(if decodes { length == Some(len) } else { !itself }, "{bytes:x?}");
            }
            for fill in [0, 1, 0xff] {
                let bytes = framed(kind, std::iter::repeat(fill), len);
                assert!(!decodes(&bytes) || length == Some(len), "{bytes:x?}");
            }
        }
    }
}

/// All four bytes of the header, each with every value while another has every value.
#[test]
fn every_two_bytes_of_a_header_have_to_fit() {
    for sample in samples() {
        for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            for (x, y) in (0..=255).flat_map(|x| (0..=255).map(move |y| (x, y))) {
                let mut bytes = sample.bytes.clone();
                (bytes[a], bytes[b]) = (x, y);
                // Another kind may have that form.
                let same_kind = bytes[KIND] == sample.bytes[KIND];
                let expected = bytes == sample.bytes;
                assert!(decodes(&bytes) == expected || !same_kind, "{bytes:x?}");
            }
        }
    }
}

#[test]
fn every_truncation_and_every_addition_is_refused() {
    for sample in samples() {
        let mut bytes = sample.bytes.clone();
        bytes.resize(MAX_MESSAGE + 8, 0);
        for len in (0..bytes.len()).filter(|len| *len != sample.bytes.len()) {
            assert!(!decodes(&bytes[..len]), "{len} bytes of {bytes:x?}");
        }
    }
}

#[test]
fn every_length_on_a_stream_is_waited_for_or_refused() {
    for said in 0..=u16::MAX {
        let bytes = said.to_le_bytes();
        let all = usize::from(said) + 2;
        let expected = (HEADER..=MAX_MESSAGE).contains(&all).then_some(Some(all));
        assert_eq!(Message::length(&bytes).ok(), expected);
    }
}

/// What comes out of a control word is what went in, or what is refused.
#[test]
fn every_control_word_of_an_acknowledgement_has_one_meaning() {
    let epochs = [0, 1, 2, 3, u32::MAX - 1, u32::MAX];
    for (high, epoch) in (0..1u64 << 16).flat_map(|high| epochs.map(|epoch| (high, epoch))) {
        // Its low half, and each bit of the high half by itself.
        for word in [high << 32, high << 48].map(|high| high | u64::from(epoch)) {
            let ack = Ack::from_words(word, 7);
            assert_eq!((ack.epoch, ack.consumed), (epoch, 7));
            assert_eq!(ack.control() == word, word >> 34 == 0, "{word:x}");
        }
    }
}
