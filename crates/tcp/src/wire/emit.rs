//! Writes the headers of a packet.
//!
//! The payload is the caller's: it stands behind the headers, or in another buffer of the same
//! send. With segmentation by the device (GSO) one header stands for many segments.

use super::checksum::{Sum, TCP};
use super::parse::{IPV4_HEADER, IPV6_HEADER, TCP_HEADER};
use super::{Flow, Segment, options::OPTIONS_MAX};
use core::net::IpAddr;

/// The longest headers that are written.
pub const HEADERS_MAX: usize = IPV6_HEADER + TCP_HEADER + OPTIONS_MAX;

/// Who computes the checksum of the segment.
#[derive(Clone, Copy, Debug)]
pub enum Checksum<'a> {
    /// The device, from the sum of the pseudo-header, which is put in its place.
    ByTheDevice,
    /// It is computed here, over this payload.
    Here(&'a [u8]),
}

/// What the IP header says beside addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// How many routers the packet may pass: TTL, hop limit.
    pub hops: u8,
    /// The upper six bits of type of service or traffic class: IP_TOS, IPV6_TCLASS.
    pub class: u8,
    /// The packet says that its ends can do with ECN: ECT(0) (RFC 3168, 5).
    pub ecn_capable: bool,
    /// Of IPv6: 20 bits.
    pub flow_label: u32,
}

/// Writes IP and TCP header for `payload_length` bytes, and says how long they are; nothing where
/// `out` is too small, the packet too long, or the addresses are not of one family.
#[must_use]
pub fn headers(
    (flow, service): (&Flow, &Service),
    segment: &Segment,
    payload_length: usize,
    checksum: Checksum<'_>,
    out: &mut [u8],
) -> Option<usize> {
    let tcp_header = TCP_HEADER + segment.options.length();
    let tcp_length = tcp_header + payload_length;
    let ip_header = match flow.source.address {
        IpAddr::V4(_) => IPV4_HEADER,
        IpAddr::V6(_) => IPV6_HEADER,
    };
    let out = out.get_mut(..ip_header + tcp_header)?;
    let (ip, tcp) = out.split_at_mut_checked(ip_header)?;
    ip_header_into(ip, (flow, service), tcp_length)?;
    tcp_header_into(tcp, flow, segment);
    let pseudo = Sum::default().pseudo_header(flow, u32::try_from(tcp_length).ok()?);
    let sum = match checksum {
        Checksum::ByTheDevice => pseudo.folded(),
        // (The header's length is even, as that of all pieces before the last must be.)
        Checksum::Here(payload) => pseudo.bytes(tcp).bytes(payload).checksum(),
    };
    tcp.get_mut(16..18)?.copy_from_slice(&sum.to_be_bytes());
    Some(ip_header + tcp_header)
}

fn ip_header_into(out: &mut [u8], of: (&Flow, &Service), tcp_length: usize) -> Option<()> {
    let (flow, service) = of;
    // ECT(0) is 10 (RFC 3168, 5).
    let class = service.class & !3 | if service.ecn_capable { 2 } else { 0 };
    match (flow.source.address, flow.destination.address) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [l0, l1] = u16::try_from(IPV4_HEADER + tcp_length).ok()?.to_be_bytes();
            // Not to be fragmented, so the identification may be anything (RFC 6864, 4.1).
            let fixed = [0x45, class, l0, l1, 0, 0, 0x40, 0, service.hops, TCP, 0, 0];
            let (first, addresses) = out.split_at_mut_checked(fixed.len())?;
            first.copy_from_slice(&fixed);
            let (from, to) = addresses.split_at_mut_checked(4)?;
            from.copy_from_slice(&source.octets());
            to.copy_from_slice(&destination.octets());
            let sum = Sum::default().bytes(out).checksum();
            out.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let first = 6 << 28 | u32::from(class) << 20 | service.flow_label & 0xf_ffff;
            let [l0, l1] = u16::try_from(tcp_length).ok()?.to_be_bytes();
            let (fixed, addresses) = out.split_at_mut_checked(8)?;
            let (word, rest) = fixed.split_at_mut_checked(4)?;
            word.copy_from_slice(&first.to_be_bytes());
            rest.copy_from_slice(&[l0, l1, TCP, service.hops]);
            let (from, to) = addresses.split_at_mut_checked(16)?;
            from.copy_from_slice(&source.octets());
            to.copy_from_slice(&destination.octets());
        }
        _ => return None,
    }
    Some(())
}

/// With a checksum of 0.
fn tcp_header_into(out: &mut [u8], flow: &Flow, segment: &Segment) {
    let words = u8::try_from(out.len() / 4).unwrap_or(0);
    let Some((header, options)) = out.split_first_chunk_mut::<TCP_HEADER>() else { return };
    let [s0, s1] = flow.source.port.to_be_bytes();
    let [d0, d1] = flow.destination.port.to_be_bytes();
    let [n0, n1, n2, n3] = segment.seq.to_be_bytes();
    let [a0, a1, a2, a3] = segment.ack.to_be_bytes();
    let [w0, w1] = segment.window.to_be_bytes();
    *header = [
        s0,
        s1,
        d0,
        d1,
        n0,
        n1,
        n2,
        n3,
        a0,
        a1,
        a2,
        a3,
        words << 4,
        segment.flags.0,
        w0,
        w1,
        0,
        0,
        0,
        0,
    ];
    segment.options.emit(options);
}

#[cfg(test)]
mod tests {
    use super::super::parse::{Checksums, NotRead, packet};
    use super::super::{Endpoint, Flags, Options, Stamps};
    use super::*;
    use std::vec::Vec;

    fn flows() -> [Flow; 2] {
        let flow = |from: &str, to: &str| Flow {
            source: Endpoint { address: from.parse().unwrap(), port: 6379 },
            destination: Endpoint { address: to.parse().unwrap(), port: 50000 },
        };
        [flow("10.0.0.1", "10.0.0.2"), flow("fd00::1", "fd00::2")]
    }

    fn written(flow: &Flow, segment: &Segment, payload: &[u8]) -> Vec<u8> {
        let service = Service { hops: 64, class: 0, ecn_capable: false, flow_label: 0x12345 };
        let mut out = [0; HEADERS_MAX];
        let here = Checksum::Here(payload);
        let length = headers((flow, &service), segment, payload.len(), here, &mut out).unwrap();
        [&out[..length], payload].concat()
    }

    fn segment() -> Segment {
        let stamps = Some(Stamps { value: 1, echo: 2 });
        let options = Options { stamps, ..Options::default() };
        let flags = Flags::ACK.with(Flags::PSH);
        Segment { seq: u32::MAX, ack: 7, flags, window: 512, options, congested: false }
    }

    #[test]
    fn what_is_written_is_read() {
        for flow in flows() {
            for payload in [&b""[..], b"x", b"even", &[0xff; 1448]] {
                let bytes = written(&flow, &segment(), payload);
                let read = packet(&bytes, Checksums::Compare).unwrap();
                assert_eq!((read.flow, read.segment, read.payload), (flow, segment(), payload));
                let padded = [&bytes[..], &[0; 6]].concat();
                assert_eq!(packet(&padded, Checksums::Compare).unwrap().payload, payload);
            }
        }
    }

    #[test]
    fn a_bit_that_was_turned_is_noticed() {
        for flow in flows() {
            let bytes = written(&flow, &segment(), b"payload");
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let read = packet(&bad, Checksums::Compare);
                // No checksum covers class, flow label and hop limit of IPv6.
                if flow.source.address.is_ipv6()
                    && ((0..4).contains(&bit) || (8..32).contains(&bit) || bit / 8 == 7)
                {
                    assert_eq!(read.unwrap().payload, b"payload");
                } else {
                    assert!(read.is_err(), "bit {bit} of {flow:?}");
                }
            }
        }
    }

    #[test]
    fn a_packet_that_ends_early_is_not_read() {
        for flow in flows() {
            let bytes = written(&flow, &segment(), b"payload");
            for length in 0..bytes.len() {
                assert_eq!(packet(&bytes[..length], Checksums::Trusted), Err(NotRead::Truncated));
            }
        }
    }

    #[test]
    fn what_is_the_kernels_is_not_read() {
        let [v4, v6] = flows();
        let bytes = written(&v4, &segment(), b"payload");
        let with = |at: usize, value: u8| {
            let mut bad = bytes.clone();
            bad[at] = value;
            packet(&bad, Checksums::Trusted).map(|_| ())
        };
        for words in 0..16 {
            let expected = match words {
                ..5 => Err(NotRead::Truncated),
                5 => Ok(()),
                _ => Err(NotRead::IpOptions),
            };
            assert_eq!(with(0, 0x40 | words), expected, "{words}");
        }
        assert_eq!(with(0, 0x55), Err(NotRead::Version));
        assert_eq!(with(6, 0x20), Err(NotRead::Fragment));
        assert_eq!(with(7, 1), Err(NotRead::Fragment));
        assert_eq!(with(9, 17), Err(NotRead::Protocol));
        assert_eq!(with(32, 0x40), Err(NotRead::Truncated));
        assert_eq!(with(32, 0xf0), Err(NotRead::Truncated));
        let mut extended = written(&v6, &segment(), b"payload");
        extended[6] = 0;
        assert_eq!(packet(&extended, Checksums::Trusted), Err(NotRead::Protocol));
    }

    #[test]
    fn a_device_goes_on_from_the_sum_of_the_pseudo_header() {
        let [flow, _] = flows();
        let service = Service { hops: 64, class: 0xb8, ecn_capable: true, flow_label: 0 };
        let mut out = [0; HEADERS_MAX];
        let by_device = Checksum::ByTheDevice;
        let length = headers((&flow, &service), &segment(), 4, by_device, &mut out).unwrap();
        let mut bytes = [&out[..length], b"data"].concat();
        assert_eq!(bytes[1], 0xba, "the class, and ECT(0)");
        let sum = Sum::default().bytes(&bytes[20..]).checksum();
        bytes[36..38].copy_from_slice(&sum.to_be_bytes());
        assert!(packet(&bytes, Checksums::Compare).is_ok());
    }

    #[test]
    fn congestion_is_read_from_both_headers() {
        for (flow, at, bits) in [(flows()[0], 1, 3), (flows()[1], 1, 0x30)] {
            let mut bytes = written(&flow, &segment(), b"");
            bytes[at] |= bits;
            assert!(packet(&bytes, Checksums::Trusted).unwrap().segment.congested);
        }
    }

    #[test]
    fn a_packet_that_is_too_long_is_not_written() {
        let service = Service { hops: 64, class: 0, ecn_capable: false, flow_label: 0 };
        let mut out = [0; HEADERS_MAX];
        for flow in flows() {
            let of = (&flow, &service);
            let by_device = Checksum::ByTheDevice;
            assert_eq!(headers(of, &segment(), 65536, by_device, &mut out), None);
            assert_eq!(headers(of, &segment(), 1, by_device, &mut out[..40]), None);
        }
        let [v4, v6] = flows();
        let mixed = Flow { source: v4.source, destination: v6.source };
        let of = (&mixed, &service);
        assert_eq!(headers(of, &segment(), 1, Checksum::ByTheDevice, &mut out), None);
    }
}
