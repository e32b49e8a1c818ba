//! Reads an IP packet that has a TCP segment.
//!
//! What is read here is what an established connection exchanges: a whole packet (no fragment)
//! without IP options or extension headers that would need an answer. The rest is the kernel's.

use super::checksum::{Sum, TCP};
use super::{Endpoint, Flags, Flow, Options, Segment};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A TCP header without options.
pub(super) const TCP_HEADER: usize = 20;
/// An IPv4 header without options.
pub(super) const IPV4_HEADER: usize = 20;
/// An IPv6 header.
pub(super) const IPV6_HEADER: usize = 40;

/// What a packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// From whom and to whom.
    pub flow: Flow,
    /// The segment.
    pub segment: Segment,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Why a packet was not read. Only [`Checksum`](Self::Checksum) was surely meant for this crate,
/// and is to be dropped; the others are the kernel's to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRead {
    /// It ends before its headers or its length say so, or these contradict each other.
    Truncated,
    /// Neither IPv4 nor IPv6.
    Version,
    /// A part of a packet.
    Fragment,
    /// Another protocol than TCP comes next: an extension header among them.
    Protocol,
    /// IPv4 options: among them are those that want something on the way.
    IpOptions,
    /// The bytes are not those that were sent.
    Checksum,
}

/// Who has looked at the checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Nobody: they are compared here.
    Compare,
    /// The device, or the bytes have been in no network (virtual links hand on segments with
    /// the sum of the pseudo-header alone).
    Trusted,
}

/// Takes the first `N` bytes.
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; N], NotRead> {
    let (first, rest) = bytes.split_first_chunk().ok_or(NotRead::Truncated)?;
    *bytes = rest;
    Ok(first)
}

/// Reads a packet, from its IP header on. What is behind the packet's own length is padding.
///
/// # Errors
///
/// What [`NotRead`] says.
pub fn packet(bytes: &[u8], checksums: Checksums) -> Result<Packet<'_>, NotRead> {
    let version = bytes.first().ok_or(NotRead::Truncated)? >> 4;
    let (addresses, congested, tcp) = match version {
        4 => ipv4(bytes, checksums)?,
        6 => ipv6(bytes)?,
        _ => return Err(NotRead::Version),
    };
    tcp_segment(addresses, congested, tcp, checksums)
}

type Inner<'a> = ((IpAddr, IpAddr), bool, &'a [u8]);

/// RFC 791, 3.1.
fn ipv4(packet: &[u8], checksums: Checksums) -> Result<Inner<'_>, NotRead> {
    let mut rest = packet;
    let header: &[u8; IPV4_HEADER] = take(&mut rest)?;
    let &[first, service, l0, l1, _, _, f0, f1, _, protocol, _, _, ref addresses @ ..] = header;
    if first & 0xf != 5 {
        return Err(if first & 0xf < 5 { NotRead::Truncated } else { NotRead::IpOptions });
    }
    let [a, b, c, d, e, f, g, h] = *addresses;
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let payload = length.checked_sub(IPV4_HEADER).ok_or(NotRead::Truncated)?;
    let tcp = rest.get(..payload).ok_or(NotRead::Truncated)?;
    // More fragments, or not the first one.
    if u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
        return Err(NotRead::Fragment);
    }
    if protocol != TCP {
        return Err(NotRead::Protocol);
    }
    if checksums == Checksums::Compare && Sum::default().bytes(header).checksum() != 0 {
        return Err(NotRead::Checksum);
    }
    let source = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    let destination = IpAddr::V4(Ipv4Addr::new(e, f, g, h));
    Ok(((source, destination), service & 3 == 3, tcp))
}

/// RFC 8200, 3.
fn ipv6(packet: &[u8]) -> Result<Inner<'_>, NotRead> {
    let mut rest = packet;
    let &[_, class, _, _, l0, l1, next, _] = take(&mut rest)?;
    let source = IpAddr::V6(Ipv6Addr::from(*take::<16>(&mut rest)?));
    let destination = IpAddr::V6(Ipv6Addr::from(*take::<16>(&mut rest)?));
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let tcp = rest.get(..length).ok_or(NotRead::Truncated)?;
    if next != TCP {
        return Err(NotRead::Protocol);
    }
    // The traffic class is the lower half of the first byte and the upper one of the second.
    Ok(((source, destination), class >> 4 & 3 == 3, tcp))
}

/// RFC 9293, 3.1.
fn tcp_segment(
    (from, to): (IpAddr, IpAddr),
    congested: bool,
    tcp: &[u8],
    checksums: Checksums,
) -> Result<Packet<'_>, NotRead> {
    let mut rest = tcp;
    let &[s0, s1, d0, d1, ref numbers @ .., offset, flags, w0, w1, _, _, _, _] =
        take::<TCP_HEADER>(&mut rest)?;
    let &[n0, n1, n2, n3, a0, a1, a2, a3] = numbers;
    let header = usize::from(offset >> 4) * 4;
    let options = header.checked_sub(TCP_HEADER).ok_or(NotRead::Truncated)?;
    let (options, payload) = rest.split_at_checked(options).ok_or(NotRead::Truncated)?;
    let flow = Flow {
        source: Endpoint { address: from, port: u16::from_be_bytes([s0, s1]) },
        destination: Endpoint { address: to, port: u16::from_be_bytes([d0, d1]) },
    };
    if checksums == Checksums::Compare {
        let length = u32::try_from(tcp.len()).map_err(|_| NotRead::Truncated)?;
        if Sum::default().pseudo_header(&flow, length).bytes(tcp).checksum() != 0 {
            return Err(NotRead::Checksum);
        }
    }
    let segment = Segment {
        seq: u32::from_be_bytes([n0, n1, n2, n3]),
        ack: u32::from_be_bytes([a0, a1, a2, a3]),
        flags: Flags(flags),
        window: u16::from_be_bytes([w0, w1]),
        options: Options::parse(options),
        congested,
    };
    Ok(Packet { flow, segment, payload })
}
