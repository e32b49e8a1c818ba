//! The Internet checksum (RFC 1071).

use super::Flow;
use core::net::IpAddr;

/// The number of TCP among the protocols of IP.
pub const TCP: u8 = 6;

/// A sum that is not complete yet. Pieces that are added have even lengths, but for the last one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// With these bytes.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<2>();
        // Each word is less than 2^16, so the sum of a packet has room in 64 bits.
        let sum: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
        let last = rest.first().map_or(0, |&byte| u64::from(byte) << 8);
        Self(self.0.wrapping_add(sum).wrapping_add(last))
    }

    /// With the pseudo-header of a TCP segment of that length (RFC 9293, 3.1; RFC 8200, 8.1).
    #[must_use]
    pub fn pseudo_header(self, flow: &Flow, length: u32) -> Self {
        let of = |sum: Self, address: &IpAddr| match address {
            IpAddr::V4(address) => sum.bytes(&address.octets()),
            IpAddr::V6(address) => sum.bytes(&address.octets()),
        };
        of(of(self, &flow.source.address), &flow.destination.address)
            .bytes(&length.to_be_bytes())
            .bytes(&[0, TCP])
    }

    /// The sum in 16 bits: what a device goes on from that completes the checksum itself.
    #[must_use]
    pub fn folded(self) -> u16 {
        let mut sum = self.0;
        loop {
            let [.., high, low] = sum.to_be_bytes();
            match sum >> 16 {
                0 => return u16::from_be_bytes([high, low]),
                above => sum = above + u64::from(u16::from_be_bytes([high, low])),
            }
        }
    }

    /// The checksum. Over bytes that contain the right one it is 0.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, 3.
    #[test]
    fn the_rfcs_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&bytes).folded(), 0xddf2);
    }

    #[test]
    fn an_odd_byte_is_the_upper_half_of_a_word() {
        let even = Sum::default().bytes(&[1, 2, 3, 0]);
        assert_eq!(Sum::default().bytes(&[1, 2, 3]).folded(), even.folded());
    }

    #[test]
    fn every_carry_comes_around() {
        assert_eq!(Sum::default().bytes(&[0xff; 65534]).folded(), 0xffff);
        assert_eq!(Sum(u64::MAX).folded(), 0xffff);
    }
}
