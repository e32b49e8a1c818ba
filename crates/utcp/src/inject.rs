//! Packets that the kernel gets after all: those that came while a connection was between both, or
//! that are not for the data path.
//!
//! A raw socket sends them to this host's own address, so they come in over the loopback device as
//! if they had just arrived. Where that does not work (a socket bound to a device does not take
//! them) the peer sends them again.

use core::net::IpAddr;
use netacc_packet::sys::{self, Fd};
use netacc_tcp::wire::Flow;
use netacc_tcp::wire::checksum::Sum;

/// A raw socket for each family.
#[derive(Debug)]
pub struct Injector {
    v4: Option<Fd>,
    v6: Option<Fd>,
}

impl Injector {
    /// For this network namespace.
    #[must_use]
    pub fn new() -> Self {
        let open = |family| sys::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW).ok();
        Self { v4: open(libc::AF_INET), v6: open(libc::AF_INET6) }
    }

    /// Gives the kernel a packet of this flow, as it came. False: it did not take it.
    #[must_use]
    pub fn inject(&self, flow: &Flow, packet: &mut [u8]) -> bool {
        let mut to = [0; 28];
        let (socket, family, at, length) = match flow.destination.address {
            IpAddr::V4(_) => (&self.v4, libc::AF_INET, 4, 16),
            IpAddr::V6(_) => (&self.v6, libc::AF_INET6, 8, 28),
        };
        let family = u16::try_from(family).unwrap_or(0).to_ne_bytes();
        put(&mut to, 0, &family);
        match flow.destination.address {
            IpAddr::V4(address) => put(&mut to, at, &address.octets()),
            IpAddr::V6(address) => put(&mut to, at, &address.octets()),
        }
        let (Some(socket), Some(packet)) = (socket, complete(flow, packet)) else { return false };
        let to = to.get(..length).unwrap_or(&[]);
        sys::send_to(socket.number(), packet, libc::MSG_DONTWAIT, to).is_ok()
    }
}

impl Default for Injector {
    fn default() -> Self {
        Self::new()
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = to.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Without padding, and with a whole checksum: on virtual links it may be that of the pseudo-header
/// alone. Nothing where it contradicts itself.
pub fn complete<'a>(flow: &Flow, packet: &'a mut [u8]) -> Option<&'a [u8]> {
    const CHECKSUM: usize = 16;
    let word = |packet: &[u8], at: usize| -> Option<usize> {
        packet.get(at..)?.first_chunk().map(|&word| usize::from(u16::from_be_bytes(word)))
    };
    let (header, length) = match flow.destination.address {
        IpAddr::V4(_) => (20, word(packet, 2)?),
        IpAddr::V6(_) => (40, 40 + word(packet, 4)?),
    };
    let packet = packet.get_mut(..length)?;
    let tcp = packet.get_mut(header..)?;
    tcp.get_mut(CHECKSUM..CHECKSUM + 2)?.fill(0);
    let size = u32::try_from(tcp.len()).ok()?;
    let sum = Sum::default().pseudo_header(flow, size).bytes(tcp).checksum();
    tcp.get_mut(CHECKSUM..CHECKSUM + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(packet)
}
