//! TCP segments of what no TCP has sent: IPv4 or IPv6 packets as they would have crossed an
//! interface.

use std::net::{IpAddr, SocketAddr};

/// Of [`Segment::flags`].
pub const FIN: u8 = 0x01;
/// As above.
pub const SYN: u8 = 0x02;
/// As above.
pub const PSH: u8 = 0x08;
/// As above.
pub const ACK: u8 = 0x10;

/// So many bytes fit into one packet, with room for headers.
pub const PAYLOAD_MAX: usize = 60 << 10;

const TCP: u8 = 6;
const HOPS: u8 = 64;
const WINDOW: u16 = u16::MAX;
/// The largest segment; no operation; window scale 14: whatever is under way fits into the window.
const OPTIONS_OF_SYN: [u8; 8] = [2, 4, 0xff, 0xff, 1, 3, 3, 14];

/// A TCP segment.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Where it comes from.
    pub from: SocketAddr,
    /// Where it goes to.
    pub to: SocketAddr,
    /// Its sequence number.
    pub seq: u32,
    /// What it acknowledges; 0 without [`ACK`].
    pub ack: u32,
    /// Flags.
    pub flags: u8,
    /// At most [`PAYLOAD_MAX`] bytes.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// The packet.
    pub fn packet(&self) -> Vec<u8> {
        let tcp = self.tcp();
        let mut packet = Vec::with_capacity(40 + tcp.len());
        match addresses(self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let length = (20 + tcp.len()) as u16;
                packet.extend([0x45, 0]);
                packet.extend(length.to_be_bytes());
                // Number 0, and not to be cut up.
                packet.extend([0, 0, 0x40, 0, HOPS, TCP, 0, 0]);
                packet.extend(from.octets());
                packet.extend(to.octets());
                let sum = fold(sum(0, &packet));
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (from, to) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                packet.extend([0x60, 0, 0, 0]);
                packet.extend((tcp.len() as u16).to_be_bytes());
                packet.extend([TCP, HOPS]);
                packet.extend(octets(from));
                packet.extend(octets(to));
            }
        }
        packet.extend(tcp);
        packet
    }

    fn tcp(&self) -> Vec<u8> {
        let options: &[u8] = if self.flags & SYN != 0 { &OPTIONS_OF_SYN } else { &[] };
        let header = 20 + options.len();
        let mut tcp = Vec::with_capacity(header + self.payload.len());
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(header as u8 / 4) << 4, self.flags]);
        tcp.extend(WINDOW.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(self.payload);
        let sum = fold(sum(self.pseudo_header(tcp.len()), &tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }

    /// What of the addresses goes into the check sum (RFC 9293 3.1, RFC 8200 8.1).
    fn pseudo_header(&self, length: usize) -> u64 {
        let octets = |ip: IpAddr, so_far| match ip {
            IpAddr::V4(ip) => sum(so_far, &ip.octets()),
            IpAddr::V6(ip) => sum(so_far, &ip.octets()),
        };
        let (from, to) = addresses(self.from, self.to);
        octets(to, octets(from, u64::from(TCP) + length as u64))
    }
}

/// Of one kind: an IPv4 address in the clothes of IPv6 is one of IPv4 where both are.
fn addresses(from: SocketAddr, to: SocketAddr) -> (IpAddr, IpAddr) {
    let as_v6 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        ip => ip,
    };
    match (from.ip().to_canonical(), to.ip().to_canonical()) {
        both @ ((IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_))) => both,
        (from, to) => (as_v6(from), as_v6(to)),
    }
}

/// Adds up words of 16 bits (RFC 1071).
fn sum(so_far: u64, bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let words = words.iter().fold(so_far, |sum, word| sum + u64::from(u16::from_be_bytes(*word)));
    odd.iter().fold(words, |sum, byte| sum + (u64::from(*byte) << 8))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment<'a>(from: &str, to: &str, payload: &'a [u8]) -> Segment<'a> {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Segment { from, to, seq: 1, ack: 2, flags: ACK, payload }
    }

    /// What arrives whole adds up to all ones, with the sum in it.
    #[test]
    fn check_sums_are_right() {
        for (from, to, header) in
            [("127.0.0.1:1", "10.1.2.3:65535", 20), ("[::1]:7", "[2001:db8::1]:9", 40)]
        {
            for payload in [&b""[..], b"x", b"xy", &[0xff; 1001]] {
                let it = segment(from, to, payload);
                let packet = it.packet();
                if header == 20 {
                    assert_eq!(fold(sum(0, &packet[..20])), 0);
                    let length = u16::from_be_bytes([packet[2], packet[3]]);
                    assert_eq!(usize::from(length), packet.len());
                }
                let tcp = &packet[header..];
                assert_eq!(fold(sum(it.pseudo_header(tcp.len()), tcp)), 0, "{from} {payload:?}");
                assert_eq!(&tcp[20..], payload);
            }
        }
    }

    /// RFC 1071 3.
    #[test]
    fn a_sum_that_is_known() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(0, &bytes)), !0xddf2);
    }

    #[test]
    fn addresses_are_of_one_kind() {
        let version = |from, to| segment(from, to, b"").packet()[0] >> 4;
        assert_eq!(version("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2"), 4);
        assert_eq!(version("10.0.0.1:1", "[::ffff:10.0.0.2]:2"), 4);
        assert_eq!(version("10.0.0.1:1", "[2001:db8::1]:2"), 6);
    }

    #[test]
    fn the_largest_fits() {
        let payload = vec![0; PAYLOAD_MAX];
        for to in ["10.0.0.1:1", "[2001:db8::1]:2"] {
            assert!(segment(to, to, &payload).packet().len() <= usize::from(u16::MAX));
        }
        let syn = Segment { flags: SYN, ..segment("10.0.0.1:1", "10.0.0.2:2", b"") };
        assert_eq!((syn.packet().len(), syn.packet()[32] >> 4), (48, 7));
    }
}
