//! Between two hosts: the frames of the link between two processes that run the library.
//!
//! The link is a TCP connection of the libraries' own. It carries what is not application bytes:
//! who the two are, which connections could be accelerated, which queue pairs there are, and the
//! words of `switchover` of every accelerated connection, which each end has a copy of.
//! `docs/design/rdma.md` tells the whole story; this module is the bytes of a frame. The peer is
//! hostile: [`Frame::decode`] accepts exactly the bytes that [`Frame::encode`] produces.
//!
//! **Layout**: little endian, no padding. `length: u16` of what follows it, `kind: u8`, `format:
//! u8`, then the fields in the order of the struct. A frame's length is fixed by its kind.
//!
//! **Order** (C = the process that called `connect` on the TCP connections that are to be
//! accelerated, and on the link; A = the one that accepted them):
//!
//! | who | frame | meaning |
//! |---|---|---|
//! | A, then C | `Hello` | first frame of each side. A speaks first, so that a stranger's port is not spoken to |
//! | C → A | `Candidate` | this connection may be accelerated; `token` is C's, never used again; `proof` is what C knows of its SYN |
//! | both | `Withdraw` | C: it may not any more. A: there will be no offer for it |
//! | A → C | `Pair` | connect a queue pair to that port, and say the nonce |
//! | both | `PairReady` | established at this end. An end that has said it and heard it may use the pair |
//! | both | `PairAsk`, `PairHas` | how many messages have come on a ready pair? and the answer |
//! | both | `PairEnd` | it is lost, never came to be, or ends empty: answered then |
//! | A → C | `Offer` | a place on a pair for that candidate |
//! | C → A | `Accept`, `Refuse` | after `Accept` both may arm and promote |
//! | both | `Words` | the present state of one end's words |
//! | C → A | `Freed` | the slot may serve another connection |
//! | A → C | `Resume` | the answer to a greeting that resumes: what was agreed is still known, or not |
//! | both | `Synced` | after a resumption: every pair that is still ready has been named by `PairReady` |
//! | both | `Bye` | the last frame |

use crate::rendezvous::wire::{Reader, Writer};
use crate::rendezvous::{DecodeError, Role, Tuple};
use crate::switchover::{Ack, Announce};

/// Version of the link's protocol, and of what travels on its pairs (`netacc_rdma::wire`). Both
/// ends must have the same.
pub const VERSION: u16 = 4;
/// First field of [`Hello`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"netaccR\n");
/// Version of the layout.
pub const FORMAT: u8 = 1;
/// Length of the longest frame, and of the buffer for [`Frame::encode`].
pub const MAX_FRAME: usize = 96;
/// Bytes of a frame's length.
const LENGTH: usize = 2;

/// Whom one talks to, and what its device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// Version of the sender's library, for the operator.
    pub lib_version: [u16; 3],
    /// Process id on its host, for the operator.
    pub pid: u32,
    /// The sender's role.
    pub role: Role,
    /// Random: names the process for its life.
    pub process: [u8; 16],
    /// The port of the connections that this link is for.
    pub port: u16,
    /// Writes with immediate can be posted there.
    pub immediate: bool,
    /// `ibv_transport_type` of its device: pairs connect like with like.
    pub transport: u8,
    /// Receives that it posts on each pair.
    pub receives: u16,
    /// Two to this power is the size of its rings.
    pub ring_log2: u8,
    /// Most connections that it puts on one pair.
    pub lanes: u16,
    /// C: goes on with what was agreed on an earlier link between the two, which has broken.
    pub resumes: bool,
    /// Random, and made for this link. Who resumes one says the key that the acceptor had made for
    /// it: nobody else knows it.
    pub key: [u8; 16],
}

/// A → C: connect a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// Its number on this link, never used again.
    pub pair: u32,
    /// What the connection request has to say.
    pub nonce: [u8; 16],
    /// Where the connection manager listens.
    pub port: u16,
    /// Connections on it.
    pub lanes: u16,
}

/// C → A: this connection of mine may be accelerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The connection as the connector sees it.
    pub tuple: Tuple,
    /// The connector's name for it.
    pub token: u64,
    /// What only the two ends of the connection know.
    pub proof: Proof,
}

/// What a connector knows of the time stamp in its connection's SYN: it is one of `span + 1` values
/// from `lowest` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Proof {
    /// The first of them; those behind it may wrap around.
    pub lowest: u32,
    /// How many more there are: few, so that a guess is in vain. [`Proof::NONE`] has no values at
    /// all.
    pub span: u16,
}

impl Proof {
    /// Nothing is known.
    pub const NONE: Self = Self { lowest: 0, span: u16::MAX };

    /// The time stamps from `lowest` to `highest`; [`Proof::NONE`] if these are too many to prove
    /// anything.
    #[must_use]
    pub fn new(lowest: u32, highest: u32) -> Self {
        match u16::try_from(highest.wrapping_sub(lowest)) {
            Ok(span) if span != Self::NONE.span => Self { lowest, span },
            _ => Self::NONE,
        }
    }

    /// Whether the connector says that it knows something.
    #[must_use]
    pub const fn knows(&self) -> bool {
        self.span != u16::MAX
    }

    /// Whether `stamp` is what it says.
    #[must_use]
    pub const fn fits(&self, stamp: u32) -> bool {
        self.knows() && stamp.wrapping_sub(self.lowest) <= self.span as u32
    }
}

/// A → C: a place for a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The candidate.
    pub token: u64,
    /// Its slot on the link.
    pub slot: u16,
    /// The pair, and the place on it.
    pub pair: u32,
    /// As above.
    pub lane: u16,
}

/// The present state of one end's words of a connection. A later one makes an earlier one
/// superfluous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Words {
    /// The connection.
    pub slot: u16,
    /// Whose words these are, should the slot serve another connection meanwhile.
    pub token: u64,
    /// As sender.
    pub announce: Announce,
    /// As receiver.
    pub ack: Ack,
    /// See [`request`].
    pub request: u32,
    /// The announcement of the peer's that stands here.
    pub seen_epoch: u32,
    /// The control word of the peer's acknowledgement that stands here.
    pub seen_ack: u64,
}

/// Bits of [`Words::request`].
pub mod request {
    /// Everything is to go over the carrier again.
    pub const LEAVE: u32 = 1;
    /// But not for good: the connection is a candidate afterwards.
    pub const AGAIN: u32 = 2;
    /// These are the last words: this end answers nothing any more.
    pub const LEFT: u32 = 4;
    /// Nothing is known of this connection here (any more): only slot, token and this mean
    /// anything.
    pub const FORGOTTEN: u32 = 8;
}

/// Values of `reason` in [`Frame::Refuse`]. Unknown ones are possible (a newer peer).
pub mod refuse {
    /// The candidate was withdrawn while the offer was on its way, or was never told.
    pub const WITHDRAWN: u16 = 1;
    /// No memory, or no more of it may be pinned.
    pub const NO_MEMORY: u16 = 2;
    /// The slot, or the place on the pair, is in use here.
    pub const BUSY: u16 = 3;
}

/// Any frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are those of the table above")]
pub enum Frame {
    Hello(Hello),
    Candidate(Candidate),
    Withdraw {
        token: u64,
    },
    Pair(Pair),
    PairReady {
        pair: u32,
    },
    PairEnd {
        pair: u32,
    },
    PairAsk {
        pair: u32,
    },
    /// `messages`: those of all of the pair's life, counted as receives, modulo 2^32.
    PairHas {
        pair: u32,
        messages: u32,
    },
    Offer(Offer),
    Accept {
        token: u64,
        slot: u16,
    },
    Refuse {
        token: u64,
        slot: u16,
        reason: u16,
    },
    Words(Words),
    Freed {
        slot: u16,
    },
    /// `key` is what the connector made for this link: it knows by it whom it talks to.
    Resume {
        known: bool,
        key: [u8; 16],
    },
    Synced,
    Bye,
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const CANDIDATE: u8 = 2;
    pub(super) const WITHDRAW: u8 = 3;
    pub(super) const PAIR: u8 = 4;
    pub(super) const PAIR_READY: u8 = 5;
    pub(super) const PAIR_END: u8 = 6;
    pub(super) const OFFER: u8 = 7;
    pub(super) const ACCEPT: u8 = 8;
    pub(super) const REFUSE: u8 = 9;
    pub(super) const WORDS: u8 = 10;
    pub(super) const FREED: u8 = 11;
    pub(super) const BYE: u8 = 12;
    pub(super) const RESUME: u8 = 13;
    pub(super) const SYNCED: u8 = 14;
    pub(super) const PAIR_ASK: u8 = 15;
    pub(super) const PAIR_HAS: u8 = 16;
}

impl Frame {
    /// Writes the frame to the start of `out` and returns its length.
    pub fn encode(&self, out: &mut [u8; MAX_FRAME]) -> usize {
        let mut w = Writer { out, at: LENGTH };
        w.u8(self.kind());
        w.u8(FORMAT);
        match self {
            Self::Hello(m) => {
                w.u64(MAGIC);
                w.u16(m.version);
                m.lib_version.iter().for_each(|v| w.u16(*v));
                w.u32(m.pid);
                w.u8(m.role as u8);
                w.bytes(&m.process);
                w.u16(m.port);
                w.u8(u8::from(m.immediate));
                w.u8(m.transport);
                w.u16(m.receives);
                w.u8(m.ring_log2);
                w.u16(m.lanes);
                w.u8(u8::from(m.resumes));
                w.bytes(&m.key);
            }
            Self::Candidate(m) => {
                w.tuple(&m.tuple);
                w.u64(m.token);
                w.u32(m.proof.lowest);
                w.u16(m.proof.span);
            }
            Self::Withdraw { token } => w.u64(*token),
            Self::Pair(m) => {
                w.u32(m.pair);
                w.bytes(&m.nonce);
                w.u16(m.port);
                w.u16(m.lanes);
            }
            Self::PairReady { pair } | Self::PairEnd { pair } | Self::PairAsk { pair } => {
                w.u32(*pair)
            }
            Self::PairHas { pair, messages } => {
                w.u32(*pair);
                w.u32(*messages);
            }
            Self::Offer(m) => {
                w.u64(m.token);
                w.u16(m.slot);
                w.u32(m.pair);
                w.u16(m.lane);
            }
            Self::Accept { token, slot } => {
                w.u64(*token);
                w.u16(*slot);
            }
            Self::Refuse { token, slot, reason } => {
                w.u64(*token);
                w.u16(*slot);
                w.u16(*reason);
            }
            Self::Words(m) => {
                w.u16(m.slot);
                w.u64(m.token);
                w.u32(m.announce.epoch);
                w.u64(m.announce.fast_from);
                w.u64(m.announce.carrier_from);
                w.u64(m.announce.resend_to);
                w.u64(m.ack.control());
                w.u64(m.ack.consumed);
                w.u32(m.request);
                w.u32(m.seen_epoch);
                w.u64(m.seen_ack);
            }
            Self::Freed { slot } => w.u16(*slot),
            Self::Resume { known, key } => {
                w.u8(u8::from(*known));
                w.bytes(key);
            }
            Self::Synced | Self::Bye => {}
        }
        let at = w.at;
        let length = u16::try_from(at.saturating_sub(LENGTH)).unwrap_or(0);
        if let Some(place) = out.first_chunk_mut() {
            *place = length.to_le_bytes();
        }
        at
    }

    /// How long the frame is that begins like this. `None`: more of it is needed.
    ///
    /// # Errors
    /// No frame is so short or so long.
    pub fn length(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
        let Some(first) = bytes.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let all = usize::from(u16::from_le_bytes(*first)).saturating_add(LENGTH);
        if (LENGTH.saturating_add(2)..=MAX_FRAME).contains(&all) {
            Ok(Some(all))
        } else {
            Err(DecodeError::Length)
        }
    }

    /// Reads one whole frame, of [`Frame::length`] bytes.
    ///
    /// # Errors
    /// The bytes are not exactly one frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if Self::length(bytes)? != Some(bytes.len()) {
            return Err(DecodeError::Length);
        }
        let mut r = Reader { rest: bytes.get(LENGTH..).unwrap_or(&[]) };
        let [kind, format] = r.array()?;
        if format != FORMAT {
            return Err(DecodeError::Format);
        }
        let frame = match kind {
            kind::HELLO => Self::Hello(hello(&mut r)?),
            kind::CANDIDATE => Self::Candidate(Candidate {
                tuple: r.tuple()?,
                token: r.u64()?,
                proof: Proof { lowest: r.u32()?, span: r.u16()? },
            }),
            kind::WITHDRAW => Self::Withdraw { token: r.u64()? },
            kind::PAIR => Self::Pair(Pair {
                pair: r.u32()?,
                nonce: r.array()?,
                port: r.u16()?,
                lanes: r.u16()?,
            }),
            kind::PAIR_READY => Self::PairReady { pair: r.u32()? },
            kind::PAIR_END => Self::PairEnd { pair: r.u32()? },
            kind::PAIR_ASK => Self::PairAsk { pair: r.u32()? },
            kind::PAIR_HAS => Self::PairHas { pair: r.u32()?, messages: r.u32()? },
            kind::OFFER => Self::Offer(Offer {
                token: r.u64()?,
                slot: r.u16()?,
                pair: r.u32()?,
                lane: r.u16()?,
            }),
            kind::ACCEPT => Self::Accept { token: r.u64()?, slot: r.u16()? },
            kind::REFUSE => Self::Refuse { token: r.u64()?, slot: r.u16()?, reason: r.u16()? },
            kind::WORDS => Self::Words(words(&mut r)?),
            kind::FREED => Self::Freed { slot: r.u16()? },
            kind::BYE => Self::Bye,
            kind::RESUME => Self::Resume { known: flag(&mut r)?, key: r.array()? },
            kind::SYNCED => Self::Synced,
            _ => return Err(DecodeError::Kind),
        };
        if r.rest.is_empty() { Ok(frame) } else { Err(DecodeError::Length) }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::Candidate(_) => kind::CANDIDATE,
            Self::Withdraw { .. } => kind::WITHDRAW,
            Self::Pair(_) => kind::PAIR,
            Self::PairReady { .. } => kind::PAIR_READY,
            Self::PairEnd { .. } => kind::PAIR_END,
            Self::PairAsk { .. } => kind::PAIR_ASK,
            Self::PairHas { .. } => kind::PAIR_HAS,
            Self::Offer(_) => kind::OFFER,
            Self::Accept { .. } => kind::ACCEPT,
            Self::Refuse { .. } => kind::REFUSE,
            Self::Words(_) => kind::WORDS,
            Self::Freed { .. } => kind::FREED,
            Self::Bye => kind::BYE,
            Self::Resume { .. } => kind::RESUME,
            Self::Synced => kind::SYNCED,
        }
    }
}

fn hello(r: &mut Reader<'_>) -> Result<Hello, DecodeError> {
    if r.u64()? != MAGIC {
        return Err(DecodeError::Magic);
    }
    Ok(Hello {
        version: r.u16()?,
        lib_version: [r.u16()?, r.u16()?, r.u16()?],
        pid: r.u32()?,
        role: match r.u8()? {
            1 => Role::Connector,
            2 => Role::Acceptor,
            _ => return Err(DecodeError::Value),
        },
        process: r.array()?,
        port: r.u16()?,
        immediate: flag(r)?,
        transport: r.u8()?,
        receives: r.u16()?,
        ring_log2: r.u8()?,
        lanes: r.u16()?,
        resumes: flag(r)?,
        key: r.array()?,
    })
}

fn flag(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Value),
    }
}

fn words(r: &mut Reader<'_>) -> Result<Words, DecodeError> {
    let (slot, token) = (r.u16()?, r.u64()?);
    let announce = Announce {
        epoch: r.u32()?,
        fast_from: r.u64()?,
        carrier_from: r.u64()?,
        resend_to: r.u64()?,
    };
    let (control, consumed) = (r.u64()?, r.u64()?);
    let ack = Ack::from_words(control, consumed);
    if ack.control() != control {
        return Err(DecodeError::Value);
    }
    Ok(Words {
        slot,
        token,
        announce,
        ack,
        request: r.u32()?,
        seen_epoch: r.u32()?,
        seen_ack: r.u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    fn all() -> [Frame; 17] {
        let v4 = |d, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, d)), port);
        let v6 =
            |d, port| SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, d)), port);
        let candidate = |a, b| {
            Frame::Candidate(Candidate {
                tuple: Tuple::new(a, b).unwrap(),
                token: u64::MAX,
                proof: Proof { lowest: 0xdead_beef, span: 3 },
            })
        };
        [
            Frame::Hello(Hello {
                version: VERSION,
                lib_version: [1, 2, 3],
                pid: 77,
                role: Role::Acceptor,
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
            candidate(v4(1, 40000), v4(2, 6379)),
            candidate(v6(1, 40000), v6(2, 6379)),
            Frame::Withdraw { token: 5 },
            Frame::Pair(Pair { pair: 9, nonce: [3; 16], port: 26379, lanes: 4095 }),
            Frame::PairReady { pair: 9 },
            Frame::PairEnd { pair: u32::MAX },
            Frame::PairAsk { pair: 7 },
            Frame::PairHas { pair: 7, messages: u32::MAX },
            Frame::Offer(Offer { token: 1 << 40, slot: 4095, pair: 9, lane: 31 }),
            Frame::Accept { token: 1 << 40, slot: 4095 },
            Frame::Refuse { token: 1 << 40, slot: 0, reason: refuse::BUSY },
            Frame::Words(Words {
                slot: 3,
                token: 4,
                announce: Announce { epoch: 3, fast_from: u64::MAX, carrier_from: 2, resend_to: 3 },
                ack: Ack { epoch: 2, armed: true, frozen: false, consumed: 9 },
                request: request::LEAVE,
                seen_epoch: 8,
                seen_ack: 1 << 33,
            }),
            Frame::Freed { slot: 1 },
            Frame::Bye,
            Frame::Resume { known: true, key: [7; 16] },
            Frame::Synced,
        ]
    }

    #[test]
    fn every_frame_comes_back_and_nothing_else_is_one() {
        for frame in all() {
            let mut bytes = [0; MAX_FRAME];
            let n = frame.encode(&mut bytes);
            assert!(n < MAX_FRAME, "{frame:?} may be cut off");
            assert_eq!(Frame::length(&bytes), Ok(Some(n)));
            assert_eq!(Frame::decode(&bytes[..n]), Ok(frame));
            for short in 0..n {
                assert!(Frame::decode(&bytes[..short]).is_err());
            }
            // A frame that says another length than its kind has.
            let mut longer = bytes;
            let length = u16::from_le_bytes([bytes[0], bytes[1]]) + 1;
            longer[..2].copy_from_slice(&length.to_le_bytes());
            assert_eq!(Frame::decode(&longer[..=n]), Err(DecodeError::Length));
        }
    }

    proptest::proptest! {
        /// Whatever a peer sends: no panic, and one encoding for each frame. Most of it is a frame
        /// with a few bytes changed.
        #[test]
        fn nothing_but_frames_decodes(
            which in 0..17usize,
            changes in proptest::collection::vec((0..MAX_FRAME, proptest::num::u8::ANY), 0..4),
            length in 0..=MAX_FRAME,
            keep in proptest::bool::ANY,
        ) {
            let mut bytes = [0; MAX_FRAME];
            let n = all()[which].encode(&mut bytes);
            for (at, value) in changes {
                bytes[at] = value;
            }
            let bytes = &bytes[..if keep { n } else { length }];
            if let Ok(frame) = Frame::decode(bytes) {
                let mut out = [0; MAX_FRAME];
                let len = frame.encode(&mut out);
                assert_eq!(&out[..len], bytes);
            }
        }
    }

    #[test]
    fn a_proof_fits_what_it_names_and_nothing_else() {
        let around = Proof::new(u32::MAX - 1, 2);
        assert_eq!(around.span, 4);
        let fitting = [u32::MAX - 1, u32::MAX, 0, 1, 2];
        assert!(fitting.iter().all(|stamp| around.fits(*stamp)));
        assert!(![3, u32::MAX - 2, 1 << 31].iter().any(|s| around.fits(*s)));
        // Who names more values than a guess would need knows nothing.
        assert_eq!(Proof::new(5, 5 + 65_534).span, 65_534);
        assert_eq!(Proof::new(5, 5 + 65_535), Proof::NONE);
        assert_eq!(Proof::new(5, 4), Proof::NONE);
        assert!(![0, 1, 65_535, u32::MAX].iter().any(|s| Proof::NONE.fits(*s)));
    }

    #[test]
    fn a_length_waits_or_is_refused() {
        assert_eq!(Frame::length(&[]), Ok(None));
        assert_eq!(Frame::length(&[9]), Ok(None));
        assert_eq!(Frame::length(&[1, 0]), Err(DecodeError::Length));
        assert_eq!(Frame::length(&[0xff, 0xff, 0]), Err(DecodeError::Length));
    }

    #[test]
    fn impossible_values_are_refused() {
        let encoded = |frame: Frame| {
            let mut bytes = [0; MAX_FRAME];
            let n = frame.encode(&mut bytes);
            bytes[..n].to_vec()
        };
        let mut hello = encoded(all()[0]);
        hello[4] ^= 1;
        assert_eq!(Frame::decode(&hello), Err(DecodeError::Magic));
        let words = all().into_iter().find(|f| matches!(f, Frame::Words(_))).unwrap();
        let mut words = encoded(words);
        // A bit of the acknowledgement's control word that means nothing.
        words[2 + 2 + 2 + 8 + 4 + 24 + 7] = 0x80;
        assert_eq!(Frame::decode(&words), Err(DecodeError::Value));
        let mut bye = encoded(Frame::Bye);
        bye[2] = 99;
        assert_eq!(Frame::decode(&bye), Err(DecodeError::Kind));
        bye[3] = 9;
        assert_eq!(Frame::decode(&bye), Err(DecodeError::Format));
    }
}
