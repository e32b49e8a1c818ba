//! TCP segments as they are on the network: [`parse`] reads IP packets, [`emit`] writes them.
//!
//! Nothing here knows a connection. A packet comes from anybody: every length is checked before it
//! is used, and what cannot be read is a value, [`parse::NotRead`].

use core::net::IpAddr;

pub mod checksum;
pub mod emit;
pub mod options;
pub mod parse;

pub use options::{Blocks, Options, Stamps};

/// An end of a connection, as packets name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address. An IPv4 address is never written as an IPv6 one here.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

/// Between which ends a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The sending end.
    pub source: Endpoint,
    /// The receiving end.
    pub destination: Endpoint,
}

impl Flow {
    /// The other direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }
}

/// The control bits of a segment (RFC 9293, 3.1; RFC 3168, 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number means something.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer means something.
    pub const URG: Self = Self(0x20);
    /// The network is congested.
    pub const ECE: Self = Self(0x40);
    /// The sender has slowed down.
    pub const CWR: Self = Self(0x80);

    /// Whether any of these is set.
    #[must_use]
    pub const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// These and those.
    #[must_use]
    pub const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }
}

/// A segment without its payload, and without who sent it to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; means something with [`Flags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// The window field as it stands there: not scaled.
    pub window: u16,
    /// What stands behind the header.
    pub options: Options,
    /// The IP header says that the network is congested (CE, RFC 3168, 5).
    pub congested: bool,
}
