//! Bytes ↔ fields: little endian, no padding, one encoding for each value.

use super::{Direction, Family, Hello, Role, Tuple};
use crate::switchover::{Ack, Announce};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeError {
    /// Shorter or longer than its kind says.
    Length,
    /// Unknown kind, or none between such processes.
    Kind,
    /// Unknown format version.
    Format,
    /// Not a greeting of this protocol.
    Magic,
    /// A field has a value that no encoder produces.
    Value,
}

/// Appends to a buffer that is long enough for every message (checked when it is compiled).
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut [u8],
    pub(super) at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        if let Some(place) = self.out.get_mut(self.at..end) {
            place.copy_from_slice(bytes);
            self.at = end;
        }
    }
}

/// Takes from the front of a message.
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

/// What a message consists of.
pub(super) trait Field: Sized {
    /// Bytes of every value.
    const BYTES: usize;
    fn put(&self, w: &mut Writer<'_>);
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl<const N: usize> Field for [u8; N] {
    const BYTES: usize = N;
    fn put(&self, w: &mut Writer<'_>) {
        w.bytes(self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (first, rest) = r.rest.split_first_chunk::<N>().ok_or(DecodeError::Length)?;
        r.rest = rest;
        Ok(*first)
    }
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            const BYTES: usize = size_of::<$ty>();
            fn put(&self, w: &mut Writer<'_>) {
                w.bytes(&self.to_le_bytes());
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Field::get(r).map(Self::from_le_bytes)
            }
        }
        impl Field for [$ty; 2] {
            const BYTES: usize = size_of::<Self>();
            fn put(&self, w: &mut Writer<'_>) {
                self.iter().for_each(|v| v.put(w));
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok([Field::get(r)?, Field::get(r)?])
            }
        }
    )*};
}

integers!(u16, u32, u64);

impl Field for u8 {
    const BYTES: usize = 1;
    fn put(&self, w: &mut Writer<'_>) {
        w.bytes(&[*self]);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Field::get(r).map(Self::from_le_bytes)
    }
}

/// A byte of which few values mean something.
macro_rules! choices {
    ($($ty:ty { $($value:literal: $name:expr),* })*) => {$(
        impl Field for $ty {
            const BYTES: usize = 1;
            fn put(&self, w: &mut Writer<'_>) {
                (*self as u8).put(w);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match u8::get(r)? {
                    $($value => Ok($name),)*
                    _ => Err(DecodeError::Value),
                }
            }
        }
    )*};
}

choices! {
    bool { 0: false, 1: true }
    Role { 1: Role::Connector, 2: Role::Acceptor }
    Direction { 0: Direction::ConnectorToAcceptor, 1: Direction::AcceptorToConnector }
    Family { 4: Family::V4, 6: Family::V6 }
}

/// A struct is its fields, in their order.
macro_rules! structs {
    ($($ty:ident { $($field:ident: $of:ty),* })*) => {$(
        impl Field for $ty {
            const BYTES: usize = 0 $(+ <$of as Field>::BYTES)*;
            fn put(&self, w: &mut Writer<'_>) {
                $(self.$field.put(w);)*
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Field::get(r)?),* })
            }
        }
    )*};
}
pub(super) use structs;

structs! {
    Announce { epoch: u32, fast_from: u64, carrier_from: u64, resend_to: u64 }
}

impl Field for Ack {
    const BYTES: usize = 16;
    fn put(&self, w: &mut Writer<'_>) {
        self.control().put(w);
        self.consumed.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (control, consumed) = (u64::get(r)?, u64::get(r)?);
        let ack = Self::from_words(control, consumed);
        if ack.control() == control { Ok(ack) } else { Err(DecodeError::Value) }
    }
}

impl Field for Hello {
    const BYTES: usize = 21;
    fn put(&self, w: &mut Writer<'_>) {
        w.bytes(&super::MAGIC);
        self.version.put(w);
        self.lib_version.iter().for_each(|v| v.put(w));
        self.pid.put(w);
        self.role.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if <[u8; 8]>::get(r)? != super::MAGIC {
            return Err(DecodeError::Magic);
        }
        Ok(Self {
            version: Field::get(r)?,
            lib_version: [Field::get(r)?, Field::get(r)?, Field::get(r)?],
            pid: Field::get(r)?,
            role: Field::get(r)?,
        })
    }
}

/// Only the normal form is accepted, so that one connection has one encoding.
impl Field for Tuple {
    const BYTES: usize = 1 + 2 * (16 + 2);
    fn put(&self, w: &mut Writer<'_>) {
        self.family().put(w);
        self.local_addr().put(w);
        self.local_port().put(w);
        self.peer_addr().put(w);
        self.peer_port().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let family = Family::get(r)?;
        let local = address(r, family)?;
        let peer = address(r, family)?;
        let tuple = Self::new(local, peer).map_err(|_| DecodeError::Value)?;
        if tuple.family() == family { Ok(tuple) } else { Err(DecodeError::Value) }
    }
}

fn address(r: &mut Reader<'_>, family: Family) -> Result<SocketAddr, DecodeError> {
    let octets: [u8; 16] = Field::get(r)?;
    let port = Field::get(r)?;
    let ip = match (family, octets) {
        (Family::V4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => {
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        (Family::V4, _) => return Err(DecodeError::Value),
        (Family::V6, _) => IpAddr::V6(Ipv6Addr::from_octets(octets)),
    };
    Ok(SocketAddr::new(ip, port))
}
