//! Packets that the kernel gets after all: those that came while a connection was between both, or
//! that are not for the data path. And a reset of a peer, where there is no packet socket.
//!
//! A raw socket sends them to this host's own address, so they come in over the loopback device as
//! if they had just arrived. Where that does not work (a socket bound to a device does not take
//! them) the peer sends them again.

use crate::ended::{question_of, reset_of};
use core::net::IpAddr;
use netacc_packet::sys::{self, Errno, Fd};
use netacc_tcp::Repair;
use netacc_tcp::wire::checksum::Sum;
use netacc_tcp::wire::emit::{Checksum, HEADERS_MAX, Service, headers};
use netacc_tcp::wire::{Flow, Segment};

/// Whose packet it is, and what its IP header says.
type Way<'a> = (&'a Flow, &'a Service);

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
        let to = flow.destination.address;
        complete(flow, packet).is_some_and(|packet| self.send(to, packet).is_ok())
    }

    /// Resets the peer of a flow that is the kernel's again, and whose socket is gone.
    ///
    /// # Errors
    ///
    /// What the kernel said: the peer has not been told.
    pub(crate) fn reset(&self, (flow, service): Way<'_>, repair: &Repair) -> Result<(), Errno> {
        let back = flow.reversed();
        let of = (&back, service);
        self.write(of, &reset_of(repair), &[])?;
        let (question, byte) = question_of(repair);
        self.write(of, &question, &byte)
    }

    /// A packet of this host's, to wherever it goes.
    fn write(
        &self,
        (flow, service): Way<'_>,
        segment: &Segment,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let mut packet = [0; HEADERS_MAX + 1];
        let sum = Checksum::Here(bytes);
        let length = headers((flow, service), segment, bytes.len(), sum, &mut packet);
        let length = length.ok_or(Errno(libc::EINVAL))?;
        put(&mut packet, length, bytes);
        let packet = packet.get(..length + bytes.len()).unwrap_or(&[]);
        self.send(flow.destination.address, packet)
    }

    fn send(&self, to: IpAddr, packet: &[u8]) -> Result<(), Errno> {
        let mut name = [0; 28];
        let (socket, family, length) = match to {
            IpAddr::V4(address) => {
                put(&mut name, 4, &address.octets());
                (&self.v4, libc::AF_INET, 16)
            }
            IpAddr::V6(address) => {
                put(&mut name, 8, &address.octets());
                (&self.v6, libc::AF_INET6, 28)
            }
        };
        put(&mut name, 0, &u16::try_from(family).unwrap_or(0).to_ne_bytes());
        let socket = socket.as_ref().ok_or(Errno(libc::EPERM))?;
        let name = name.get(..length).unwrap_or(&[]);
        sys::send_to(socket.number(), packet, libc::MSG_DONTWAIT, name).map(drop)
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
