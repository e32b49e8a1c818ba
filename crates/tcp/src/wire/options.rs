//! TCP options (RFC 9293, 3.2): those that an established connection has.

const END: u8 = 0;
const NOTHING: u8 = 1;
/// RFC 2018, 3.
const SACK: u8 = 5;
/// RFC 7323, 3.2.
const STAMPS: u8 = 8;
/// RFC 2385; RFC 5925. A segment that has one of these is signed.
const MD5: u8 = 19;
const AO: u8 = 29;
/// RFC 8684.
const MULTIPATH: u8 = 30;

/// The largest room that options have: a header of 60 bytes less the 20 that all have.
pub const OPTIONS_MAX: usize = 40;
/// Of the time stamps, with two bytes that align them (RFC 7323, appendix A).
pub const STAMPS_LENGTH: usize = 12;

/// A pair of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the receiver's clock, as it comes back.
    pub echo: u32,
}

/// Blocks of bytes that have arrived behind the acknowledgement, by sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Blocks {
    blocks: [(u32, u32); 4],
    count: u8,
}

impl Blocks {
    /// Adds a block from this number up to and without that one. There is room for four.
    pub fn push(&mut self, from: u32, to: u32) -> bool {
        match self.blocks.get_mut(usize::from(self.count)) {
            Some(block) => {
                *block = (from, to);
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.blocks.iter().copied().take(usize::from(self.count))
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What `count` blocks take of a header, aligned (RFC 2018, 3).
    #[must_use]
    pub const fn length(count: usize) -> usize {
        if count == 0 { 0 } else { 4 + 8 * count }
    }
}

/// The options of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Time stamps (RFC 7323).
    pub stamps: Option<Stamps>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: Blocks,
    /// There is a signature, or an option of MPTCP: not for this crate to judge.
    pub foreign: bool,
}

impl Options {
    /// Reads what stands between header and payload. What is not known is passed over (RFC 9293,
    /// MUST-6). Reading ends at an option with an impossible length (MUST-7), as Linux's does.
    #[must_use]
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                END => break,
                NOTHING => bytes = rest,
                _ => {
                    let Some((&length, _)) = rest.split_first() else { break };
                    let length = usize::from(length);
                    let Some((option, behind)) = bytes.split_at_checked(length) else { break };
                    let Some((_, body)) = option.split_at_checked(2) else { break };
                    options.take(kind, body);
                    bytes = behind;
                }
            }
        }
        options
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match kind {
            STAMPS => {
                if let Ok([a, b, c, d, e, f, g, h]) = <[u8; 8]>::try_from(body) {
                    let value = u32::from_be_bytes([a, b, c, d]);
                    let echo = u32::from_be_bytes([e, f, g, h]);
                    self.stamps = Some(Stamps { value, echo });
                }
            }
            SACK => {
                let (blocks, rest) = body.as_chunks::<8>();
                if rest.is_empty() {
                    self.sack = Blocks::default();
                    for &[a, b, c, d, e, f, g, h] in blocks {
                        let from = u32::from_be_bytes([a, b, c, d]);
                        self.sack.push(from, u32::from_be_bytes([e, f, g, h]));
                    }
                }
            }
            MD5 | AO | MULTIPATH => self.foreign = true,
            _ => {}
        }
    }

    /// How many bytes they take: a multiple of four, at most [`OPTIONS_MAX`].
    #[must_use]
    pub const fn length(&self) -> usize {
        let stamps = if self.stamps.is_some() { STAMPS_LENGTH } else { 0 };
        stamps + Blocks::length(self.written_blocks())
    }

    /// Beside time stamps there is room for three blocks (RFC 2018, 3).
    const fn written_blocks(&self) -> usize {
        let room = if self.stamps.is_some() { 3 } else { 4 };
        if self.sack.len() < room { self.sack.len() } else { room }
    }

    /// Writes them into a room of [`length`](Self::length) bytes.
    pub(super) fn emit(&self, mut out: &mut [u8]) {
        let mut put = |bytes: &[u8]| {
            if let Some((here, rest)) = core::mem::take(&mut out).split_at_mut_checked(bytes.len())
            {
                here.copy_from_slice(bytes);
                out = rest;
            }
        };
        if let Some(Stamps { value, echo }) = self.stamps {
            put(&[NOTHING, NOTHING, STAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        let blocks = self.written_blocks();
        if blocks > 0 {
            let length = u8::try_from(2 + 8 * blocks).unwrap_or(u8::MAX);
            put(&[NOTHING, NOTHING, SACK, length]);
            for (from, to) in self.sack.iter().take(blocks) {
                put(&from.to_be_bytes());
                put(&to.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for stamps in [None, Some(Stamps { value: 1, echo: u32::MAX })] {
            for count in 0..=4 {
                let mut options = Options { stamps, ..Options::default() };
                for n in 0..count {
                    assert!(options.sack.push(n * 100, n * 100 + 50));
                }
                let mut room = [0xff; OPTIONS_MAX];
                let length = options.length();
                assert!(length <= OPTIONS_MAX && length.is_multiple_of(4));
                options.emit(&mut room[..length]);
                let read = Options::parse(&room[..length]);
                assert_eq!(read.stamps, stamps);
                let kept = if stamps.is_some() { 3 } else { 4 };
                assert!(read.sack.iter().eq(options.sack.iter().take(kept)));
            }
        }
    }

    #[test]
    fn an_impossible_length_ends_reading() {
        let stamps = [8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        for bad in [&[99, 0][..], &[99, 1], &[99, 40, 0], &[99]] {
            let bytes = [&stamps[..], bad].concat();
            assert_eq!(Options::parse(&bytes).stamps, Some(Stamps { value: 1, echo: 2 }));
            let bytes = [bad, &stamps[..]].concat();
            let _ = Options::parse(&bytes);
        }
        assert_eq!(Options::parse(&[99, 0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).stamps, None);
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let bytes = [1, 77, 3, 9, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0, 19, 18];
        let options = Options::parse(&bytes);
        assert_eq!(options.stamps, Some(Stamps { value: 1, echo: 2 }));
        assert!(!options.foreign, "it stands behind the end of the list");
        assert!(Options::parse(&[19, 2]).foreign);
    }

    #[test]
    fn stamps_and_blocks_of_another_length_are_none() {
        assert_eq!(Options::parse(&[8, 9, 0, 0, 0, 0, 0, 0, 0]).stamps, None);
        assert!(Options::parse(&[5, 9, 0, 0, 0, 0, 0, 0, 0]).sack.is_empty());
        assert!(Options::parse(&[5, 2]).sack.is_empty());
    }
}
