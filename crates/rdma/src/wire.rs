//! What travels: messages of up to [`MESSAGE_BYTES`] bytes, and the 32 bits of an immediate.
//!
//! A message is a header and up to [`UNITS_MAX`] units of 16 bytes; an item is one or two units.
//! Little-endian:
//!
//! ```text
//! header   0 units (u8) | 1 version (u8) | 2 zero (u16) | 4 returned (u32)
//! unit     0 lane (u16) | 2 kind (u8) | 3 small (u8) | 4 half (u32) | 8 word (u64)
//! 2nd unit 0 first (u64) | 8 second (u64)
//! ```
//!
//! | kind | small | half | word | first, second |
//! |---|---|---|---|---|
//! | `OPEN` | log2 of the ring's bytes | key of the ring | its address | token, 0 |
//! | `CLOSE` | | | | |
//! | `DATA` | 1: rebased | bytes | tail after them | |
//! | `CREDIT` | | | head | |
//!
//! `returned` counts all messages that the sender has received, and posted receives for again,
//! since the pair began.
//!
//! An immediate announces bytes, in one of two forms; `returned` is how many more receives were
//! posted again:
//!
//! ```text
//! bits     20-31 lane | 19 long | 18 rebased | 17 mark | 16 reached
//! short    12-15 returned | 0-11 bytes less one
//! long     15 returned | 0-14 bytes less one
//! ```
//!
//! Reading checks the form only: what a value may be depends on the lane, and is checked where it
//! is applied.

/// Most bytes of a message: what every device carries inline.
pub const MESSAGE_BYTES: usize = 64;
/// Most units of a message.
pub const UNITS_MAX: usize = 3;
/// Most bytes that an immediate can announce.
pub const IMM_BYTES_MAX: u32 = 1 << 15;

/// Most bytes of an immediate's short form.
const IMM_SHORT_MAX: u32 = 1 << 12;

const HEADER: usize = 8;
const UNIT: usize = 16;
/// Who changes what travels counts `netacc_proto::rendezvous::VERSION` up as well: by that two
/// builds refuse each other before there is a pair.
const VERSION: u8 = 2;
const _: () = assert!(HEADER + UNITS_MAX * UNIT <= MESSAGE_BYTES);

mod kind {
    pub(super) const OPEN: u8 = 1;
    pub(super) const CLOSE: u8 = 2;
    pub(super) const DATA: u8 = 3;
    pub(super) const CREDIT: u8 = 4;
}

/// Where a ring of the other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Address of its first byte.
    pub address: u64,
    /// Key of its region.
    pub key: u32,
    /// Its size is 2 to this power.
    pub log2: u8,
}

/// One item of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The sender uses the lane, and its ring for what it receives there is this.
    Open {
        /// The ring.
        ring: Ring,
        /// Tells the connection.
        token: u64,
    },
    /// The sender says nothing more about the lane.
    Close,
    /// Bytes were written.
    Data {
        /// The first of them is at index 0 of the ring.
        rebased: bool,
        /// How many.
        bytes: u32,
        /// Position after them.
        tail: u64,
    },
    /// Everything before this position is consumed.
    Credit {
        /// The position.
        head: u64,
    },
}

impl Item {
    const fn units(&self) -> usize {
        match self {
            Self::Open { .. } => 2,
            _ => 1,
        }
    }
}

/// A message that is being written.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    bytes: [u8; MESSAGE_BYTES],
    units: usize,
}

impl Default for Draft {
    fn default() -> Self {
        Self::new()
    }
}

impl Draft {
    /// A message without items.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; MESSAGE_BYTES], units: 0 }
    }

    /// Whether it has no items.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// How many units there is room for.
    #[must_use]
    pub const fn room(&self) -> usize {
        UNITS_MAX.saturating_sub(self.units)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }

    /// Adds an item. False: it does not fit, and nothing has changed.
    pub fn push(&mut self, lane: u16, item: Item) -> bool {
        if item.units() > self.room() {
            return false;
        }
        let at = HEADER + self.units * UNIT;
        let (kind, small, half, word) = match item {
            Item::Open { ring, .. } => (kind::OPEN, ring.log2, ring.key, ring.address),
            Item::Close => (kind::CLOSE, 0, 0, 0),
            Item::Data { rebased, bytes, tail } => (kind::DATA, u8::from(rebased), bytes, tail),
            Item::Credit { head } => (kind::CREDIT, 0, 0, head),
        };
        self.put(at, &lane.to_le_bytes());
        self.put(at + 2, &[kind, small]);
        self.put(at + 4, &half.to_le_bytes());
        self.put(at + 8, &word.to_le_bytes());
        if let Item::Open { token, .. } = item {
            self.put(at + UNIT, &token.to_le_bytes());
        }
        self.units += item.units();
        true
    }

    /// The finished message.
    pub fn finish(&mut self, returned: u32) -> &[u8] {
        self.put(0, &[self.units as u8, VERSION, 0, 0]);
        self.put(4, &returned.to_le_bytes());
        self.bytes.get(..HEADER + self.units * UNIT).unwrap_or(&[])
    }
}

/// A message that has come, copied out of the peer's reach.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

impl<'a> Message<'a> {
    /// Reads the header. `None`: this is no message. Else the message, and `returned`.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<(Self, u32)> {
        let [units, version, 0, 0, ..] = *bytes else { return None };
        if version != VERSION
            || usize::from(units) > UNITS_MAX
            || bytes.len() != HEADER + usize::from(units) * UNIT
        {
            return None;
        }
        Some((Self { bytes, at: HEADER }, u32_at(bytes, 4)?))
    }

    /// The next item with its lane. `None`: there is no more. `Some(None)`: this is no item.
    #[expect(
        clippy::should_implement_trait,
        reason = "it ends at the first bad item, which an iterator's user would not expect"
    )]
    pub fn next(&mut self) -> Option<Option<(u16, Item)>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let item = self.item();
        match item {
            Some((_, item)) => self.at += item.units() * UNIT,
            None => self.at = self.bytes.len(),
        }
        Some(item)
    }

    fn item(&self) -> Option<(u16, Item)> {
        let (bytes, at) = (self.bytes, self.at);
        let lane = u16_at(bytes, at)?;
        let [kind, small] = *bytes.get(at + 2..)?.first_chunk()?;
        let half = u32_at(bytes, at + 4)?;
        let word = u64_at(bytes, at + 8)?;
        let item = match kind {
            kind::OPEN => {
                let ring = Ring { address: word, key: half, log2: small };
                Item::Open { ring, token: u64_at(bytes, at + UNIT)? }
            }
            kind::CLOSE => Item::Close,
            kind::DATA => Item::Data { rebased: small != 0, bytes: half, tail: word },
            kind::CREDIT => Item::Credit { head: word },
            _ => return None,
        };
        Some((lane, item))
    }
}

/// What an immediate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imm {
    /// Where bytes were written.
    pub lane: u16,
    /// As [`Item::Data`]'s.
    pub rebased: bool,
    /// The sender wants to be told when everything before the end of these bytes is consumed.
    pub mark: bool,
    /// Everything before the receiver's last mark is consumed.
    pub reached: bool,
    /// Receives posted again since the sender last spoke of them: at most [`Imm::returned_max`].
    pub returned: u32,
    /// How many bytes: 1 to [`IMM_BYTES_MAX`].
    pub bytes: u32,
}

impl Imm {
    /// Most receives that one for so many bytes can give back.
    #[must_use]
    pub const fn returned_max(bytes: u32) -> u32 {
        if bytes <= IMM_SHORT_MAX { 15 } else { 1 }
    }

    /// The 32 bits. Values out of range are cut off.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let Self { lane, rebased, mark, reached, returned, bytes } = self;
        let less_one = bytes.wrapping_sub(1);
        let amounts = if bytes <= IMM_SHORT_MAX {
            (returned & 15) << 12 | less_one & 0xfff
        } else {
            1 << 19 | (returned & 1) << 15 | less_one & 0x7fff
        };
        (lane as u32) << 20
            | (rebased as u32) << 18
            | (mark as u32) << 17
            | (reached as u32) << 16
            | amounts
    }

    /// The opposite: every value means something.
    #[must_use]
    pub const fn decode(imm: u32) -> Self {
        let (returned, less_one) = if imm >> 19 & 1 == 0 {
            (imm >> 12 & 15, imm & 0xfff)
        } else {
            (imm >> 15 & 1, imm & 0x7fff)
        };
        Self {
            lane: (imm >> 20) as u16,
            rebased: imm >> 18 & 1 != 0,
            mark: imm >> 17 & 1 != 0,
            reached: imm >> 16 & 1 != 0,
            returned,
            bytes: less_one + 1,
        }
    }
}

#[cfg(test)]
mod tests;
