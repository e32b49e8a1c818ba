//! Rendezvous: the messages of the control connection between two processes that want to share
//! memory.
//!
//! The connection is an `AF_UNIX` `SOCK_SEQPACKET` socket: one message is one packet, delivered
//! whole and in order. This module is responsible for the bytes of a message and nothing else; who
//! may connect, and what proves that both ends hold the two ends of the TCP connection, are the
//! caller's. The peer is hostile: [`Message::decode`] accepts exactly the bytes that
//! [`Message::encode`] produces, and returns a [`DecodeError`] for all others.
//!
//! **Layout**: little endian, no padding. `kind: u8, format: u8, fds: u8, 0: u8`, then the fields
//! in the order of the struct. A message's length is fixed by its kind. [`Hello`] keeps its layout
//! in all versions, so that two libraries of different versions can at least tell each other so.
//!
//! **Order** (C = the process that called `connect` on the TCP connection, A = the one that
//! accepted it; between two processes one control connection is used for many TCP connections, in
//! both roles):
//!
//! | step | who | message | meaning |
//! |---|---|---|---|
//! | 1 | both | `Hello` | first message of each side, before anything else |
//! | 2 | both | `Place` + fd | any time; before the first offer that may sleep there |
//! | 3 | C → A | `Candidate` | this connection may be accelerated; `token` is C's, unique on this control connection |
//! | 3' | C → A | `Withdraw` | not any more (closed, passed on, or the application prevents it) |
//! | 3" | A → C, C → A | `Turn`, `Unproven` | both ends show, in turns, that they hold the two ends of the TCP connection |
//! | 4 | A → C | `Channel` + fd, `Arena` + fd | once each, before the first offer that uses them; A owns them |
//! | 5 | A → C | `Offer` | slot and rings for the candidate; A owns the slot until C answers |
//! | 6 | C → A | `Accept` / `Refuse` | from `Accept` on both may arm and promote; after `Refuse` the slot is free |
//! | 7 | either | `PullBack`, `Unread` | nudges only: the truth is in the slot's shared words |
//! | 8 | either | `Bye` | no more messages; slots live on until their carriers end |
//!
//! `Withdraw` and `Offer` may cross: C answers such an offer with `Refuse(WITHDRAWN)`. A slot is
//! reused only after both carrier ends are gone (A sees its own close and C's FIN or RST).

mod tuple;
pub(crate) mod wire;

pub use tuple::{Family, FamilyMismatch, Tuple};
pub use wire::{DecodeError, FORMAT, MAX_MESSAGE};

/// Version of the rendezvous and of the shared memory's layout. Both ends must have the same.
pub const PROTO_VERSION: u16 = 3;

/// First field of [`Hello`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"netacc\r\n");

/// Which side of the control connection the sender of a [`Hello`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// It connected the control connection.
    Connector = 1,
    /// It listened.
    Acceptor = 2,
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

/// First message of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// [`MAGIC`]; anything else does not decode.
    pub magic: u64,
    /// [`PROTO_VERSION`] of the sender.
    pub proto_version: u16,
    /// Version of the sender's library, for the operator.
    pub lib_version: [u16; 3],
    /// Process id as the sender sees it: a hint (`SO_PEERCRED` is the truth).
    pub pid: u32,
    /// The sender's role.
    pub role: Role,
}

impl Hello {
    /// A greeting of this version of the protocol.
    #[must_use]
    pub const fn new(lib_version: [u16; 3], pid: u32, role: Role) -> Self {
        Self { magic: MAGIC, proto_version: PROTO_VERSION, lib_version, pid, role }
    }

    /// Whether two sides that sent these greetings can go on.
    #[must_use]
    pub fn is_compatible(&self, peer: &Self) -> bool {
        self.proto_version == peer.proto_version && self.role != peer.role
    }
}

/// Connector → acceptor: this connection of mine may be accelerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The connection as the connector sees it.
    pub tuple: Tuple,
    /// The connector's name for it.
    pub token: u64,
}

/// Acceptor → connector, with one fd: the channel's memfd. Owned by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Size of the (sealed) memfd.
    pub channel_bytes: u64,
    /// Number of connection slots in it.
    pub slots: u32,
    /// Number of waiting places of each side in it.
    pub places: u32,
}

/// Acceptor → connector, with one fd: memory for rings. Owned by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arena {
    /// Its number, in the order of announcement, from 0.
    pub arena: u32,
    /// Size of the (sealed) memfd.
    pub bytes: u64,
}

/// Acceptor → connector: memory for one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The candidate.
    pub token: u64,
    /// The connection as the *acceptor* sees it: the mirror of the candidate's.
    pub tuple: Tuple,
    /// Slot in the channel.
    pub slot: u16,
    /// Arena that holds both rings.
    pub arena: u32,
    /// Place of each [`Direction`]'s ring in the arena.
    pub ring_offset: [u64; 2],
    /// Size of each [`Direction`]'s ring.
    pub ring_bytes: [u32; 2],
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

/// Values of `reason` in [`Message::Refuse`]. Unknown ones are possible (a newer peer).
pub mod refuse {
    /// The candidate was withdrawn while the offer was on its way.
    pub const WITHDRAWN: u16 = 1;
    /// No such token.
    pub const UNKNOWN_TOKEN: u16 = 2;
    /// The offer's tuple is not the mirror of the candidate's.
    pub const WRONG_TUPLE: u16 = 3;
    /// The memory named by the offer is unknown, too small or overlapping.
    pub const BAD_MEMORY: u16 = 4;
    /// Mapping the memory failed (limits).
    pub const NO_RESOURCES: u16 = 5;
    /// The operator's configuration forbids it.
    pub const CONFIG: u16 = 6;
}

/// Any message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// First message of both sides.
    Hello(Hello),
    /// Connector → acceptor.
    Candidate(Candidate),
    /// Connector → acceptor: forget the candidate.
    Withdraw {
        /// Its name.
        token: u64,
    },
    /// Acceptor → connector, one fd.
    Channel(Channel),
    /// Acceptor → connector, one fd.
    Arena(Arena),
    /// Either way, one fd: the doorbell eventfd of this waiting place of the sender. Owned by the
    /// sender.
    Place {
        /// Number of the waiting place.
        place: u16,
    },
    /// Acceptor → connector.
    Offer(Offer),
    /// Connector → acceptor: both may use the slot from here on.
    Accept {
        /// The candidate.
        token: u64,
        /// The slot.
        slot: u16,
    },
    /// Connector → acceptor: the slot is free again.
    Refuse {
        /// The candidate.
        token: u64,
        /// The slot.
        slot: u16,
        /// See [`refuse`].
        reason: u16,
    },
    /// Acceptor → connector: my end of this connection shows the mark of that turn. Connector →
    /// acceptor: so does mine.
    Turn {
        /// The candidate.
        token: u64,
        /// Which mark; counted from 0.
        turn: u8,
    },
    /// Either way: your end of this connection does not show what it should.
    Unproven {
        /// The candidate.
        token: u64,
    },
    /// Receiver of `dir` → its sender: the shared words show a frozen offset; fail over to the
    /// carrier there.
    PullBack {
        /// The slot.
        slot: u16,
        /// The direction that is frozen.
        dir: Direction,
    },
    /// Either way: bytes that the sender of this message has put into a ring of the slot lie there
    /// for a second or more. Perhaps the receiver waits for them in a way that its library does not
    /// see.
    Unread {
        /// The slot.
        slot: u16,
    },
    /// Either way: the last message.
    Bye,
}

#[cfg(test)]
mod tests;
