//! Bytes ↔ [`Message`]: the only place that knows the layout.

use super::{
    Arena, Candidate, Channel, Direction, Family, Hello, MAGIC, Message, Offer, Role, Tuple,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Version of the layout; changes only together with everything but [`Hello`].
pub const FORMAT: u8 = 1;

/// Length of the longest message, and of the buffer for [`Message::encode`].
pub const MAX_MESSAGE: usize = 96;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeError {
    /// Shorter or longer than its kind says.
    Length,
    /// Unknown kind.
    Kind,
    /// Unknown format version.
    Format,
    /// Not a greeting of this protocol.
    Magic,
    /// A field has a value that no encoder produces.
    Value,
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const CANDIDATE: u8 = 2;
    pub(super) const WITHDRAW: u8 = 3;
    pub(super) const CHANNEL: u8 = 4;
    pub(super) const ARENA: u8 = 5;
    pub(super) const PLACE: u8 = 6;
    pub(super) const OFFER: u8 = 7;
    pub(super) const ACCEPT: u8 = 8;
    pub(super) const REFUSE: u8 = 9;
    pub(super) const PULL_BACK: u8 = 10;
    pub(super) const UNREAD: u8 = 11;
    pub(super) const BYE: u8 = 12;
    pub(super) const TURN: u8 = 13;
    pub(super) const UNPROVEN: u8 = 14;
}

impl Message {
    /// How many file descriptors travel with this message: exactly so many must have arrived.
    #[must_use]
    pub const fn fds(&self) -> u8 {
        match self {
            Self::Channel(_) | Self::Arena(_) | Self::Place { .. } => 1,
            _ => 0,
        }
    }

    /// Writes the message to the start of `out` and returns its length.
    pub fn encode(&self, out: &mut [u8; MAX_MESSAGE]) -> usize {
        let mut w = Writer { out, at: 0 };
        w.u8(self.kind());
        w.u8(FORMAT);
        w.u8(self.fds());
        w.u8(0);
        match self {
            Self::Hello(m) => {
                w.u64(m.magic);
                w.u16(m.proto_version);
                m.lib_version.iter().for_each(|v| w.u16(*v));
                w.u32(m.pid);
                w.u8(m.role as u8);
            }
            Self::Candidate(m) => {
                w.tuple(&m.tuple);
                w.u64(m.token);
            }
            Self::Withdraw { token } => w.u64(*token),
            Self::Channel(m) => {
                w.u64(m.channel_bytes);
                w.u32(m.slots);
                w.u32(m.places);
            }
            Self::Arena(m) => {
                w.u32(m.arena);
                w.u64(m.bytes);
            }
            Self::Place { place } => w.u16(*place),
            Self::Offer(m) => {
                w.u64(m.token);
                w.tuple(&m.tuple);
                w.u16(m.slot);
                w.u32(m.arena);
                m.ring_offset.iter().for_each(|v| w.u64(*v));
                m.ring_bytes.iter().for_each(|v| w.u32(*v));
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
            Self::PullBack { slot, dir } => {
                w.u16(*slot);
                w.u8(*dir as u8);
            }
            Self::Unread { slot } => w.u16(*slot),
            Self::Bye => {}
            Self::Turn { token, turn } => {
                w.u64(*token);
                w.u8(*turn);
            }
            Self::Unproven { token } => w.u64(*token),
        }
        w.at
    }

    /// Reads one packet.
    ///
    /// # Errors
    /// The bytes are not exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader { rest: bytes };
        let [kind, format, fds, zero] = r.array()?;
        if format != FORMAT {
            return Err(DecodeError::Format);
        }
        let message = match kind {
            kind::HELLO => Self::Hello(r.hello()?),
            kind::CANDIDATE => Self::Candidate(Candidate { tuple: r.tuple()?, token: r.u64()? }),
            kind::WITHDRAW => Self::Withdraw { token: r.u64()? },
            kind::CHANNEL => Self::Channel(Channel {
                channel_bytes: r.u64()?,
                slots: r.u32()?,
                places: r.u32()?,
            }),
            kind::ARENA => Self::Arena(Arena { arena: r.u32()?, bytes: r.u64()? }),
            kind::PLACE => Self::Place { place: r.u16()? },
            kind::OFFER => Self::Offer(Offer {
                token: r.u64()?,
                tuple: r.tuple()?,
                slot: r.u16()?,
                arena: r.u32()?,
                ring_offset: [r.u64()?, r.u64()?],
                ring_bytes: [r.u32()?, r.u32()?],
            }),
            kind::ACCEPT => Self::Accept { token: r.u64()?, slot: r.u16()? },
            kind::REFUSE => Self::Refuse { token: r.u64()?, slot: r.u16()?, reason: r.u16()? },
            kind::PULL_BACK => Self::PullBack { slot: r.u16()?, dir: r.direction()? },
            kind::UNREAD => Self::Unread { slot: r.u16()? },
            kind::BYE => Self::Bye,
            kind::TURN => Self::Turn { token: r.u64()?, turn: r.u8()? },
            kind::UNPROVEN => Self::Unproven { token: r.u64()? },
            _ => return Err(DecodeError::Kind),
        };
        if !r.rest.is_empty() {
            return Err(DecodeError::Length);
        }
        if fds != message.fds() || zero != 0 {
            return Err(DecodeError::Value);
        }
        Ok(message)
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::Candidate(_) => kind::CANDIDATE,
            Self::Withdraw { .. } => kind::WITHDRAW,
            Self::Channel(_) => kind::CHANNEL,
            Self::Arena(_) => kind::ARENA,
            Self::Place { .. } => kind::PLACE,
            Self::Offer(_) => kind::OFFER,
            Self::Accept { .. } => kind::ACCEPT,
            Self::Refuse { .. } => kind::REFUSE,
            Self::PullBack { .. } => kind::PULL_BACK,
            Self::Unread { .. } => kind::UNREAD,
            Self::Bye => kind::BYE,
            Self::Turn { .. } => kind::TURN,
            Self::Unproven { .. } => kind::UNPROVEN,
        }
    }
}

/// Appends to a buffer that is long enough for every message (tests encode them all).
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut [u8],
    pub(crate) at: usize,
}

impl Writer<'_> {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        if let Some(place) = self.out.get_mut(self.at..end) {
            place.copy_from_slice(bytes);
            self.at = end;
        }
    }

    pub(crate) fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    pub(crate) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn tuple(&mut self, tuple: &Tuple) {
        self.u8(tuple.family() as u8);
        self.bytes(&tuple.local_addr());
        self.u16(tuple.local_port());
        self.bytes(&tuple.peer_addr());
        self.u16(tuple.peer_port());
    }
}

/// Takes from the front of a packet.
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl Reader<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Length)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn direction(&mut self) -> Result<Direction, DecodeError> {
        match self.u8()? {
            0 => Ok(Direction::ConnectorToAcceptor),
            1 => Ok(Direction::AcceptorToConnector),
            _ => Err(DecodeError::Value),
        }
    }

    fn hello(&mut self) -> Result<Hello, DecodeError> {
        let magic = self.u64()?;
        if magic != MAGIC {
            return Err(DecodeError::Magic);
        }
        Ok(Hello {
            magic,
            proto_version: self.u16()?,
            lib_version: [self.u16()?, self.u16()?, self.u16()?],
            pid: self.u32()?,
            role: match self.u8()? {
                1 => Role::Connector,
                2 => Role::Acceptor,
                _ => return Err(DecodeError::Value),
            },
        })
    }

    /// Only the normal form is accepted, so that one connection has one encoding.
    pub(crate) fn tuple(&mut self) -> Result<Tuple, DecodeError> {
        let family = match self.u8()? {
            4 => Family::V4,
            6 => Family::V6,
            _ => return Err(DecodeError::Value),
        };
        let local = self.address(family)?;
        let peer = self.address(family)?;
        let tuple = Tuple::new(local, peer).map_err(|_| DecodeError::Value)?;
        if tuple.family() == family { Ok(tuple) } else { Err(DecodeError::Value) }
    }

    fn address(&mut self, family: Family) -> Result<SocketAddr, DecodeError> {
        let octets: [u8; 16] = self.array()?;
        let port = self.u16()?;
        let ip = match (family, octets) {
            (Family::V4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => {
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            (Family::V4, _) => return Err(DecodeError::Value),
            (Family::V6, _) => IpAddr::V6(Ipv6Addr::from_octets(octets)),
        };
        Ok(SocketAddr::new(ip, port))
    }
}
