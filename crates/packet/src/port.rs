//! Where packets go out and come in: a device ([`crate::device`]), or a network in memory.

use crate::sys::Errno;

/// A hardware address.
pub type LinkAddress = [u8; 6];

/// A packet to be sent. The device computes the checksum of the segment, and divides what is
/// longer than a segment.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The next hop.
    pub to: LinkAddress,
    /// IP and TCP header, as `netacc_tcp::wire::emit` writes them for a device.
    pub headers: &'a [u8],
    /// How long the IP header is.
    pub ip_header: usize,
    /// The bytes, in two parts.
    pub payload: [&'a [u8]; 2],
    /// How many of them a segment has.
    pub segment: usize,
}

impl Frame<'_> {
    /// How many bytes it has behind its headers.
    #[must_use]
    pub fn length(&self) -> usize {
        let [first, second] = self.payload;
        first.len().saturating_add(second.len())
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The device has it.
    Taken,
    /// The device, or its queue, has no room. It is lost, unless it is sent again.
    Full,
    /// It will not have it: it is down, gone, or has another MTU.
    Refused(Errno),
}

/// A packet that came.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// From its IP header on. It may be followed by padding.
    pub packet: &'a [u8],
    /// The device has looked at the checksums, or it was in no network.
    pub checked: bool,
}

/// Sends and receives packets of the flows that are taken over.
pub trait Port {
    /// Whether a packet may have come: where nobody can tell it may.
    fn has_any(&self) -> bool {
        true
    }

    /// Hands a packet to the device.
    fn send(&mut self, frame: &Frame<'_>) -> Sent;

    /// Gives the next packet to `take`, if there is one. Nothing of it is there afterwards.
    fn receive<R>(&mut self, take: impl FnOnce(Arrived<'_>) -> R) -> Option<R>;
}
