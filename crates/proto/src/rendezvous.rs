//! Rendezvous: the messages by which two processes agree on a faster path for a TCP connection.
//!
//! Within a host they travel on a unix socket (`SOCK_SEQPACKET`: one message is one packet),
//! between hosts on a TCP connection of the libraries' own. This module is the bytes of a message
//! and nothing else: who may connect, and what proves who holds which connection, are the caller's.
//! The peer is hostile: [`Message::decode`] accepts exactly the bytes that [`Message::encode`]
//! produces, and returns a [`DecodeError`] for all others.
//!
//! **Layout**: little endian, no padding. `length: u16` of what follows it, `kind: u8`,
//! `format: u8`, then the fields in the order in which they are declared. A message's length is
//! fixed by its kind. [`Hello`] keeps its layout in all versions.
//!
//! **Order** (C = the process that called `connect` on the TCP connection, and on the link; A = the
//! one that accepted both; one link serves many TCP connections). [`TABLE`] has the same for
//! programs; `docs/design/agreement.md` tells the story.
//!
//! | step | who | message | meaning |
//! |---|---|---|---|
//! | 1 | both | `Hello` (within a host), `HostHello` (between hosts) | first message of each side. Between hosts A speaks first, so that a stranger's port is not spoken to |
//! | 2 | C → A | `Candidate` | this connection may be accelerated; `token` is C's, never used again; `proof` is what C knows of its SYN |
//! | 2' | A → C | `Commit` | between hosts, where C has said that its proof comes later: A binds itself to what it knows of that SYN without saying it; C says its proof then, by another `Candidate`, or that it has told it before: it says it once to who has shown nothing |
//! | 2' | A → C | `Open` | what A has bound itself to: it is a process that accepts there |
//! | 2' | both | `Withdraw` | C: not any more. A (between hosts): there will be no offer for it |
//! | 3 | both | `Turn`, `Unproven` | within a host: both show, in turns, that they hold the two ends of the connection |
//! | 3 | A → C | `Channel` + fd, `Arena` + fd | within a host, before the first offer that uses them; A owns them |
//! | 3 | A → C | `Pair` | between hosts: connect a queue pair to that port, and say the nonce |
//! | 3 | both | `PairReady` | established at this end. An end that has said it and heard it may use the pair |
//! | 4 | A → C | `Offer` (within a host), `OfferLane` (between hosts) | a slot, and where its rings are; A owns the slot until C answers |
//! | 5 | C → A | `Accept`, `Refuse` | from `Accept` on both may arm and promote; after `Refuse` the slot is free |
//! | 6 | both | `Place` + fd | within a host: a doorbell; any time before the first offer that may sleep there |
//! | 6 | both | `PullBack`, `Unread`, `Left` | within a host, nudges only: the truth is in the slot's shared words |
//! | 6 | both | `Words` | between hosts: the present state of one end's words |
//! | 6 | both | `PairAsk`, `PairHas` | how many messages have come on a ready pair? and the answer |
//! | 6 | both | `PairEnd` | it is lost, never came to be, or ends empty: answered then |
//! | 7 | C → A | `Freed` | between hosts: the slot may serve another connection |
//! | 8 | A → C | `Resume` | the answer to a greeting that resumes: what was agreed is still known, or not |
//! | 8 | both | `Synced` | after a resumption: every pair that is still ready has been named by `PairReady` |
//! | 9 | both | `Bye` | no more messages |
//!
//! `Withdraw` and an offer may cross: C answers such an offer with `Refuse(WITHDRAWN)`.

mod layout;
mod tuple;

use crate::sha256::sha256;
use crate::switchover::{Ack, Announce};
pub use layout::DecodeError;
use layout::{Field, Reader, Writer, structs};
pub use tuple::{Family, FamilyMismatch, Tuple};

/// Version of the rendezvous, of the shared memory's layout, and of what travels on queue pairs
/// (`netacc_rdma::wire`). Both ends must have the same.
pub const VERSION: u16 = 11;
/// What a [`Hello`] begins with.
pub const MAGIC: [u8; 8] = *b"netacc\r\n";
/// Version of the layout; changes only together with everything but [`Hello`]. (1 was that of two
/// layouts, within a host and between hosts. Builds that have those read this one as another
/// format, and this one theirs.)
pub const FORMAT: u8 = 2;
/// Length of the buffer for [`Message::encode`]: no message fills it.
pub const MAX_MESSAGE: usize = 96;
/// Bytes of a message's length, and of all that stands before its fields.
const LENGTH: usize = 2;
const HEADER: usize = LENGTH + 2;

/// Which processes talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peers {
    /// Two of one host: descriptors can be passed.
    OneHost,
    /// Two of two hosts.
    TwoHosts,
}

/// Which side of the link a process is, and of the connections that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// It connected.
    Connector = 1,
    /// It listened.
    Acceptor = 2,
}

impl Role {
    /// The other side.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// A direction of a TCP connection; also the index into `ring_offset` and `ring_bytes` of an
/// [`Offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the end that called `connect` to the end that accepted.
    ConnectorToAcceptor = 0,
    /// The other way.
    AcceptorToConnector = 1,
}

/// What both sides say first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// Version of the sender's library, for the operator.
    pub lib_version: [u16; 3],
    /// Process id as the sender sees it: a hint.
    pub pid: u32,
    /// The sender's role.
    pub role: Role,
}

impl Hello {
    /// A greeting of this version of the protocol.
    #[must_use]
    pub const fn new(lib_version: [u16; 3], pid: u32, role: Role) -> Self {
        Self { version: VERSION, lib_version, pid, role }
    }

    /// Whether a side in that role that hears this can go on.
    #[must_use]
    pub fn fits(&self, role: Role) -> bool {
        self.version == VERSION && self.role == role.peer()
    }
}

/// Declares structs that are fields of messages.
macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }
        )*
        structs! { $($name { $($field: $ty),* })* }
    };
}

bodies! {
    /// Between hosts: whom one talks to, and what its device can do.
    HostHello {
        /// Who it is.
        hello: Hello,
        /// Random: names the process for its life.
        process: [u8; 16],
        /// The port of the connections that this link is for.
        port: u16,
        /// Writes with immediate can be posted there.
        immediate: bool,
        /// `ibv_transport_type` of its device: pairs connect like with like.
        transport: u8,
        /// Receives that it posts on each pair.
        receives: u16,
        /// Two to this power is the size of its rings.
        ring_log2: u8,
        /// Most connections that it puts on one pair.
        lanes: u16,
        /// C: goes on with what was agreed on an earlier link between the two, which has broken.
        resumes: bool,
        /// Random, and made for this link. Who resumes one says the key that the acceptor had made
        /// for it: nobody else knows it.
        key: [u8; 16],
    }
    /// This connection of mine may be accelerated.
    Candidate {
        /// The connection as the connector sees it.
        tuple: Tuple,
        /// The connector's name for it.
        token: u64,
        /// What only the two ends of the connection know; within a host nothing is said.
        proof: Proof,
        /// Between hosts: the traffic class that the connector's application wants for it; 0: none.
        class: u8,
        /// Between hosts: it fills small rings.
        fills: bool,
    }
    /// What a connector knows of the time stamp in its connection's SYN: it is one of `span + 1`
    /// values from `lowest` on.
    Proof {
        /// The first of them; those behind it may wrap around.
        lowest: u32,
        /// How many more there are, [`Proof::SPAN_MAX`] at most, so that a guess is in vain. With
        /// more nothing is known.
        span: u16,
    }
    /// With one fd: the channel's memfd. Owned by the sender.
    Channel {
        /// Size of the (sealed) memfd.
        channel_bytes: u64,
        /// Number of connection slots in it.
        slots: u32,
        /// Number of waiting places of each side in it.
        places: u32,
    }
    /// With one fd: memory for rings. Owned by the sender.
    Arena {
        /// Its number, in the order of announcement, from 0.
        arena: u32,
        /// Size of the (sealed) memfd.
        bytes: u64,
    }
    /// Within a host: memory for one candidate.
    Offer {
        /// The candidate.
        token: u64,
        /// The connection as the *acceptor* sees it: the mirror of the candidate's.
        tuple: Tuple,
        /// Slot in the channel.
        slot: u16,
        /// Arena that holds both rings.
        arena: u32,
        /// Place of each [`Direction`]'s ring in the arena.
        ring_offset: [u64; 2],
        /// Size of each [`Direction`]'s ring.
        ring_bytes: [u32; 2],
    }
    /// Connect a queue pair.
    Pair {
        /// Its number on this link, never used again.
        pair: u32,
        /// What the connection request has to say.
        nonce: [u8; 16],
        /// Where the connection manager listens.
        port: u16,
        /// Connections on it.
        lanes: u16,
        /// The traffic class of its packets; 0: what the device does by itself.
        class: u8,
    }
    /// Between hosts: a place on a pair for one candidate.
    OfferLane {
        /// The candidate.
        token: u64,
        /// Its slot on the link.
        slot: u16,
        /// The pair, and the place on it.
        pair: u32,
        /// As above.
        lane: u16,
        /// Two to this power is the size of its rings, at both ends.
        ring_log2: u8,
        /// The connection fills small rings, as one of its ends has found: whole ones or none.
        fills: bool,
    }
    /// The present state of one end's words of a connection. A later one makes an earlier one
    /// superfluous.
    #[derive(Default)]
    Words {
        /// The connection.
        slot: u16,
        /// Whose words these are, should the slot serve another connection meanwhile.
        token: u64,
        /// As sender.
        announce: Announce,
        /// As receiver.
        ack: Ack,
        /// See [`request`].
        request: u32,
        /// The announcement of the peer's that stands here.
        seen_epoch: u32,
        /// The control word of the peer's acknowledgement that stands here.
        seen_ack: u64,
    }
}

impl Proof {
    /// Nothing is known.
    pub const NONE: Self = Self { lowest: 0, span: u16::MAX };
    /// It is said when the acceptor has committed itself. Whoever answers in its place learns
    /// nothing by which it could.
    pub const LATER: Self = Self { lowest: 0, span: u16::MAX - 1 };
    /// Another link, or the same one before it broke, was told it and has shown nothing: so nobody
    /// can show anything by it. It is said when another connection's has been shown.
    pub const TOLD: Self = Self { lowest: 0, span: u16::MAX - 2 };
    /// 4 s in milliseconds: a SYN that was lost twice leaves 3 s after the first one. A guess hits
    /// once in 2^20.
    pub const SPAN_MAX: u16 = 4095;

    /// The time stamps from `lowest` to `highest`; [`Proof::NONE`] if these are too many to prove
    /// anything.
    #[must_use]
    pub fn new(lowest: u32, highest: u32) -> Self {
        match u16::try_from(highest.wrapping_sub(lowest)) {
            Ok(span) if span <= Self::SPAN_MAX => Self { lowest, span },
            _ => Self::NONE,
        }
    }

    /// Whether the connector says that it knows something.
    #[must_use]
    pub const fn knows(&self) -> bool {
        self.span <= Self::SPAN_MAX
    }

    /// Whether `stamp` is what it says.
    #[must_use]
    pub const fn fits(&self, stamp: u32) -> bool {
        self.knows() && stamp.wrapping_sub(self.lowest) <= self.span as u32
    }
}

/// What [`Message::Commit`] says of a connection's time stamp: nothing, to who does not know the
/// nonce; and there is no other stamp that it can be opened to. `ports`: those of the link that it
/// is said on, the connector's first. On another link, which somebody relays, it says nothing.
#[must_use]
pub fn commitment(
    nonce: &[u8; 16],
    stamp: u32,
    token: u64,
    process: &[u8; 16],
    ports: [u16; 2],
) -> [u8; 16] {
    let [connector, acceptor] = ports.map(u16::to_le_bytes);
    let (stamp, token) = (stamp.to_le_bytes(), token.to_le_bytes());
    let digest = sha256(&[b"netacc", nonce, &stamp, &token, process, &connector, &acceptor]);
    let mut half = [0; 16];
    half.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    half
}

impl Offer {
    /// Whether both rings lie inside of an arena of this size, are not empty and do not overlap.
    #[must_use]
    pub fn fits(&self, arena_bytes: u64) -> bool {
        let [a_from, b_from] = self.ring_offset;
        let [a_bytes, b_bytes] = self.ring_bytes;
        let (Some(a_to), Some(b_to)) =
            (a_from.checked_add(u64::from(a_bytes)), b_from.checked_add(u64::from(b_bytes)))
        else {
            return false;
        };
        a_bytes != 0
            && b_bytes != 0
            && a_to <= arena_bytes
            && b_to <= arena_bytes
            && (a_to <= b_from || b_to <= a_from)
    }
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

/// Values of `reason` in [`Message::Refuse`]. Unknown ones are possible (a newer peer).
pub mod refuse {
    /// The candidate was withdrawn while the offer was on its way, or was never told.
    pub const WITHDRAWN: u16 = 1;
    /// This peer was not told of it.
    pub const UNKNOWN_TOKEN: u16 = 2;
    /// The offer's tuple is not the mirror of the candidate's.
    pub const WRONG_TUPLE: u16 = 3;
    /// The memory named by the offer is unknown, too small or overlapping.
    pub const BAD_MEMORY: u16 = 4;
    /// No memory, or no more of it may be pinned.
    pub const NO_MEMORY: u16 = 5;
    /// The slot, or the place on the pair, is in use here.
    pub const BUSY: u16 = 6;
    /// The acceptor could not prove that it holds the connection.
    pub const NOT_AUTHENTICATED: u16 = 7;
    /// Between hosts: no memory for whole rings, for now; there may be some for small ones.
    pub const LESS_MEMORY: u16 = 8;
}

/// What there is to know of a kind of message.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number.
    pub kind: u8,
    /// Its name.
    pub name: &'static str,
    /// Between which processes it is said; `None`: any.
    pub on: Option<Peers>,
    /// Who says it; `None`: either.
    pub from: Option<Role>,
    /// How many descriptors travel with it: exactly so many must have arrived.
    pub fds: u8,
    /// Its length.
    pub bytes: usize,
}

/// Declares the messages: kind, between whom, from whom, descriptors.
macro_rules! messages {
    ($(
        $name:ident $(($body:ident: $of:ty))? $({ $($field:ident: $ty:ty),* })?
        = $kind:literal, $on:expr, $from:expr, $fds:literal;
    )*) => {
        /// Any message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the meanings are those of the module's table")]
        pub enum Message {
            $($name $(($of))? $({ $($field: $ty),* })?,)*
        }

        /// All of them, in order of their kinds.
        pub const TABLE: &[Row] = &[$(Row {
            kind: $kind,
            name: stringify!($name),
            on: $on,
            from: $from,
            fds: $fds,
            bytes: HEADER $(+ <$of as Field>::BYTES)? $($(+ <$ty as Field>::BYTES)*)?,
        },)*];

        impl Message {
            const fn kind(&self) -> u8 {
                match self {
                    $(Self::$name { .. } => $kind,)*
                }
            }

            fn put(&self, w: &mut Writer<'_>) {
                match self {
                    $(Self::$name $(($body))? $({ $($field),* })? => {
                        $($body.put(w);)?
                        $($($field.put(w);)*)?
                    })*
                }
            }

            fn get(kind: u8, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(match kind {
                    $($kind => Self::$name $((<$of as Field>::get(r)?))?
                        $({ $($field: <$ty as Field>::get(r)?),* })?,)*
                    _ => return Err(DecodeError::Kind),
                })
            }
        }
    };
}

const ANY: Option<Peers> = None;
const ONE: Option<Peers> = Some(Peers::OneHost);
const TWO: Option<Peers> = Some(Peers::TwoHosts);
const BOTH: Option<Role> = None;
const C: Option<Role> = Some(Role::Connector);
const A: Option<Role> = Some(Role::Acceptor);

// What they mean says the table above. `reason` is one of [`refuse`]; `turn` counts from 0;
// `messages` are all of the pair's life, counted as receives, modulo 2^32; `dir` is the direction
// that is frozen; `key` is what the connector made for this link; `digest`, of `nonce` and `stamp`,
// is a [`commitment`].
messages! {
    Hello(m: Hello) = 1, ONE, BOTH, 0;
    Candidate(m: Candidate) = 2, ANY, C, 0;
    Withdraw { token: u64 } = 3, ANY, BOTH, 0;
    Channel(m: Channel) = 4, ONE, A, 1;
    Arena(m: Arena) = 5, ONE, A, 1;
    Place { place: u16 } = 6, ONE, BOTH, 1;
    Offer(m: Offer) = 7, ONE, A, 0;
    Accept { token: u64, slot: u16 } = 8, ANY, C, 0;
    Refuse { token: u64, slot: u16, reason: u16 } = 9, ANY, C, 0;
    PullBack { slot: u16, dir: Direction } = 10, ONE, BOTH, 0;
    Unread { slot: u16 } = 11, ONE, BOTH, 0;
    Bye = 12, ANY, BOTH, 0;
    Turn { token: u64, turn: u8 } = 13, ONE, BOTH, 0;
    Unproven { token: u64 } = 14, ONE, BOTH, 0;
    HostHello(m: HostHello) = 15, TWO, BOTH, 0;
    Pair(m: Pair) = 16, TWO, A, 0;
    PairReady { pair: u32 } = 17, TWO, BOTH, 0;
    PairEnd { pair: u32 } = 18, TWO, BOTH, 0;
    PairAsk { pair: u32 } = 19, TWO, BOTH, 0;
    PairHas { pair: u32, messages: u32 } = 20, TWO, BOTH, 0;
    OfferLane(m: OfferLane) = 21, TWO, A, 0;
    Words(m: Words) = 22, TWO, BOTH, 0;
    Freed { slot: u16 } = 23, TWO, C, 0;
    Resume { known: bool, key: [u8; 16] } = 24, TWO, A, 0;
    Synced = 25, TWO, BOTH, 0;
    Commit { token: u64, digest: [u8; 16] } = 26, TWO, A, 0;
    Open { token: u64, nonce: [u8; 16], stamp: u32 } = 27, TWO, A, 0;
    Left { slot: u16 } = 28, ONE, BOTH, 0;
}

const _: () = {
    let mut rest = TABLE;
    let mut kind = 1;
    while let [row, more @ ..] = rest {
        assert!(row.kind == kind && row.bytes < MAX_MESSAGE);
        (kind, rest) = (kind + 1, more);
    }
};

impl Message {
    fn row(&self) -> Option<&'static Row> {
        TABLE.get(usize::from(self.kind()).saturating_sub(1))
    }

    /// How many file descriptors travel with this message.
    #[must_use]
    pub fn fds(&self) -> u8 {
        self.row().map_or(0, |row| row.fds)
    }

    /// Whether a side in that role says such a thing.
    #[must_use]
    pub fn is_said_by(&self, role: Role) -> bool {
        self.row().is_some_and(|row| row.from.is_none_or(|from| from == role))
    }

    /// Writes the message to the start of `out` and returns its length.
    pub fn encode(&self, out: &mut [u8; MAX_MESSAGE]) -> usize {
        let length = self.row().map_or(0, |row| row.bytes).saturating_sub(LENGTH);
        let mut w = Writer { out, at: 0 };
        u16::try_from(length).unwrap_or(0).put(&mut w);
        self.kind().put(&mut w);
        FORMAT.put(&mut w);
        self.put(&mut w);
        w.at
    }

    /// On a stream: how long the message is that begins like this. `None`: more of it is needed.
    ///
    /// # Errors
    /// No message is so short or so long.
    pub fn length(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
        let Some(first) = bytes.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let all = usize::from(u16::from_le_bytes(*first)).saturating_add(LENGTH);
        if (HEADER..=MAX_MESSAGE).contains(&all) { Ok(Some(all)) } else { Err(DecodeError::Length) }
    }

    /// Reads one whole message.
    ///
    /// # Errors
    /// The bytes are not exactly one message that such processes send each other.
    pub fn decode(bytes: &[u8], peers: Peers) -> Result<Self, DecodeError> {
        let mut r = Reader { rest: bytes };
        let length = usize::from(u16::get(&mut r)?);
        let [kind, format] = Field::get(&mut r)?;
        // First: another format has its length elsewhere.
        if format != FORMAT {
            return Err(DecodeError::Format);
        }
        if length.saturating_add(LENGTH) != bytes.len() {
            return Err(DecodeError::Length);
        }
        let message = Self::get(kind, &mut r)?;
        if !r.rest.is_empty() {
            return Err(DecodeError::Length);
        }
        match message.row().and_then(|row| row.on) {
            Some(on) if on != peers => Err(DecodeError::Kind),
            _ => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests;
