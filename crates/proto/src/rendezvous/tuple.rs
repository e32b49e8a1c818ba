//! The addresses of one TCP connection, in one form for each connection.
//!
//! An IPv4 connection on an IPv6 socket (`::ffff:a.b.c.d`) is the same connection as on an IPv4
//! socket, so it is stored as IPv4. Scope ids and flow labels are no part of a connection's
//! identity here.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// IPv4; addresses are in the first 4 bytes, the rest is zero.
    V4 = 4,
    /// IPv6, not v4-mapped.
    V6 = 6,
}

/// The two addresses are not of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FamilyMismatch;

/// One TCP connection as one end sees it. Always in normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    family: Family,
    local_addr: [u8; 16],
    local_port: u16,
    peer_addr: [u8; 16],
    peer_port: u16,
}

impl Tuple {
    /// From what `getsockname` and `getpeername` say.
    ///
    /// # Errors
    /// One address is IPv4 (or mapped) and the other is not.
    pub const fn new(local: SocketAddr, peer: SocketAddr) -> Result<Self, FamilyMismatch> {
        match (local.ip().to_canonical(), peer.ip().to_canonical()) {
            (IpAddr::V4(l), IpAddr::V4(p)) => Ok(Self {
                family: Family::V4,
                local_addr: widen(l),
                local_port: local.port(),
                peer_addr: widen(p),
                peer_port: peer.port(),
            }),
            (IpAddr::V6(l), IpAddr::V6(p)) => Ok(Self {
                family: Family::V6,
                local_addr: l.octets(),
                local_port: local.port(),
                peer_addr: p.octets(),
                peer_port: peer.port(),
            }),
            _ => Err(FamilyMismatch),
        }
    }

    /// The same connection as the other end sees it.
    #[must_use]
    pub const fn mirrored(&self) -> Self {
        Self {
            family: self.family,
            local_addr: self.peer_addr,
            local_port: self.peer_port,
            peer_addr: self.local_addr,
            peer_port: self.local_port,
        }
    }

    /// Address family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// The local address as 16 bytes (IPv4: the first 4).
    #[must_use]
    pub const fn local_addr(&self) -> [u8; 16] {
        self.local_addr
    }

    /// The local port, in host byte order.
    #[must_use]
    pub const fn local_port(&self) -> u16 {
        self.local_port
    }

    /// The peer's address as 16 bytes (IPv4: the first 4).
    #[must_use]
    pub const fn peer_addr(&self) -> [u8; 16] {
        self.peer_addr
    }

    /// The peer's port, in host byte order.
    #[must_use]
    pub const fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// The local address and port.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        socket_addr(self.family, self.local_addr, self.local_port)
    }

    /// The peer's address and port.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        socket_addr(self.family, self.peer_addr, self.peer_port)
    }
}

const fn widen(addr: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = addr.octets();
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

const fn socket_addr(family: Family, addr: [u8; 16], port: u16) -> SocketAddr {
    let ip = match family {
        Family::V4 => {
            let [a, b, c, d, ..] = addr;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        Family::V6 => IpAddr::V6(Ipv6Addr::from_octets(addr)),
    };
    SocketAddr::new(ip, port)
}
