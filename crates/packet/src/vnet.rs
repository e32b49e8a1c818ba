//! `struct virtio_net_hdr`: what a device has done to a packet, or has yet to do.

use crate::port::Frame;

/// Its size.
pub const SIZE: usize = 10;
/// An Ethernet header.
pub const ETHERNET: usize = 14;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

const TCP_CHECKSUM_AT: u16 = 16;
const TCP_FLAGS_AT: usize = 13;
const CWR: u8 = 0x80;

/// The header of a frame that has an Ethernet header; nothing where its lengths cannot be said.
#[must_use]
pub fn header(frame: &Frame<'_>) -> Option<[u8; SIZE]> {
    let whole = frame.length();
    let v6 = frame.headers.first()? >> 4 == 6;
    let (mut kind, mut size) = (GSO_NONE, 0);
    if whole > frame.segment {
        kind = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        // (The device leaves this flag in the first segment alone.)
        if frame.headers.get(frame.ip_header + TCP_FLAGS_AT)? & CWR != 0 {
            kind |= GSO_ECN;
        }
        size = u16::try_from(frame.segment).ok().filter(|&size| size > 0)?;
    }
    let [h0, h1] = u16::try_from(ETHERNET + frame.headers.len()).ok()?.to_ne_bytes();
    let [s0, s1] = size.to_ne_bytes();
    let [c0, c1] = u16::try_from(ETHERNET + frame.ip_header).ok()?.to_ne_bytes();
    let [o0, o1] = TCP_CHECKSUM_AT.to_ne_bytes();
    Some([NEEDS_CHECKSUM, kind, h0, h1, s0, s1, c0, c1, o0, o1])
}

/// Of a packet that came: whether its checksum has been looked at, or was never in a network.
#[must_use]
pub const fn is_checked(flags: u8) -> bool {
    flags & (NEEDS_CHECKSUM | CHECKSUM_VALID) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame<'a>(headers: &'a [u8], payload: &'a [u8]) -> Frame<'a> {
        Frame { to: [0; 6], headers, ip_header: 20, payload: [payload, b""], segment: 1000 }
    }

    #[test]
    fn what_fits_a_segment_is_not_divided() {
        let headers = [0x45; 52];
        let size = |n: u16| n.to_ne_bytes();
        let expected = [&[1, 0][..], &size(66), &size(0), &size(34), &size(16)].concat();
        assert_eq!(header(&frame(&headers, &[0; 1000])).unwrap()[..], expected);
        assert_eq!(header(&frame(&[], b"")), None);
    }

    #[test]
    fn what_is_longer_is_divided_by_its_family_and_cwr_is_said() {
        let mut headers = [0x45; 52];
        headers[20 + TCP_FLAGS_AT] = 0x10;
        let of = |headers: &[u8]| header(&frame(headers, &[0; 1001])).unwrap();
        assert_eq!(
            (of(&headers)[1], &of(&headers)[4..6]),
            (GSO_TCPV4, &1000_u16.to_ne_bytes()[..])
        );
        headers[0] = 0x60;
        assert_eq!(of(&headers)[1], GSO_TCPV6);
        headers[20 + TCP_FLAGS_AT] |= CWR;
        assert_eq!(of(&headers)[1], GSO_TCPV6 | GSO_ECN);
        let none = Frame { segment: 0, ..frame(&headers, b"x") };
        assert_eq!(header(&none), None, "a segment of no bytes would have no end");
    }

    #[test]
    fn partial_sums_and_looked_at_ones_are_trusted() {
        assert!(is_checked(NEEDS_CHECKSUM) && is_checked(CHECKSUM_VALID) && !is_checked(0));
    }
}
