//! Sequence numbers, and the positions that this crate computes with instead.
//!
//! A sequence number has 32 bits and wraps (RFC 9293, 3.4). It is turned into a [`Position`] where
//! a segment comes in, and back where one goes out; everything between compares and subtracts
//! ordinary integers. That is right as long as a number is less than 2^31 away from the position
//! that it is taken to be near, which the window (at most 2^30, RFC 7323, 2.3) sees to.

/// Where a byte stands in a stream. The first one after the take-over has [`START`].
///
/// 2^63 bytes are not sent in the life of a machine: sums of positions and lengths do not overflow.
pub(crate) type Position = u64;

/// The position of the first byte. Whatever is within 2^31 below it has a position, too.
pub(crate) const START: Position = 1 << 32;

/// The lowest 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
pub(crate) const fn low32(value: u64) -> u32 {
    value as u32
}

/// Whether a time stamp or sequence number is older than another one: half of all are.
pub(crate) const fn older(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// The sequence numbers of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// That of the byte at [`START`].
    start: u32,
}

impl Numbers {
    pub(crate) const fn new(start: u32) -> Self {
        Self { start }
    }

    /// The number of a position.
    pub(crate) const fn number(self, at: Position) -> u32 {
        // (The lowest 32 bits of START are 0.)
        self.start.wrapping_add(low32(at))
    }

    /// The position with this number that is nearest to `around`, which is START or behind it.
    pub(crate) fn near(self, around: Position, number: u32) -> Position {
        debug_assert!(around >= START);
        let distance = number.wrapping_sub(self.number(around)).cast_signed();
        around.saturating_add_signed(i64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_nearest_position() {
        for start in [0, 1, 5, 0x7fff_ffff, 0x8000_0000, u32::MAX - 3, u32::MAX] {
            let numbers = Numbers::new(start);
            assert_eq!(numbers.number(START), start);
            for around in
                [START, START + 7, START + (1 << 31), START + (1 << 32), START + (5 << 40)]
            {
                for distance in [-(1_i64 << 31), -1460, -1, 0, 1, 1460, (1 << 31) - 1] {
                    let at = around.saturating_add_signed(distance);
                    assert_eq!(numbers.near(around, numbers.number(at)), at);
                }
            }
        }
    }

    #[test]
    fn older_wraps() {
        assert!(older(u32::MAX, 0) && older(1, 2) && !older(2, 2) && !older(2, 1));
        assert!(older(0, 0x7fff_ffff) && older(0x8000_0000, 0));
    }
}
