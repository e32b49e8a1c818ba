//! What a look from outside finds in the words of a ring: one direction of a connection.
//!
//! Responsible for: where the words are that `netacc capture` needs, and what they mean. The words
//! themselves are `netacc_ring::RingWords`, which the tools do not link; the library compares both
//! (`core::channel`). Deliberately not: how a ring works (`netacc_ring`), or how it is followed
//! (the tools).
//!
//! The peer, and the process, may write anything: nothing here is an index before it was checked.

/// Bytes of the words of a ring.
pub const BYTES: usize = 256;

/// Bytes published since the ring began.
pub const TAIL: usize = 0;
/// The position that lives at the start of the buffer.
pub const BASE: usize = 8;
/// Odd: the stream is on the ring; each step counts.
pub const EPOCH: usize = 16;
/// The offset of the stream from which on it is on the ring.
pub const FAST_FROM: usize = 24;
/// The base before the one that the producer goes by.
pub const BASE_BEFORE: usize = 56;
/// Bytes consumed and given back.
pub const HEAD: usize = 64;
/// In its low 32 bits the epoch that the consumer has followed.
pub const ACK: usize = 136;
/// What the consumer has said of itself: bits.
pub const REQUEST: usize = 152;
/// What `TAIL` would be if nothing were held back.
pub const HELD: usize = 232;

/// Of `REQUEST`: the consumer has closed its end.
pub const CLOSED: u64 = 1 << 32;
/// It has shut down what it sends.
pub const HALF: u64 = 1 << 33;
/// The ring may serve another connection.
pub const FREE: u64 = 1 << 37;

/// The words of a ring at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Words {
    /// [`TAIL`]
    pub tail: u64,
    /// [`BASE`]
    pub base: u64,
    /// [`EPOCH`]
    pub epoch: u32,
    /// [`FAST_FROM`]
    pub fast_from: u64,
    /// [`BASE_BEFORE`]
    pub base_before: u64,
    /// [`HEAD`]
    pub head: u64,
    /// [`ACK`]
    pub followed: u32,
    /// [`REQUEST`]
    pub request: u64,
    /// [`HELD`]
    pub held: u64,
}

impl Words {
    /// Reads them from a copy.
    pub fn read(bytes: &[u8; BYTES]) -> Words {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(|from| from.first_chunk());
            bytes.map_or(0, |word| u64::from_ne_bytes(*word))
        };
        Words {
            tail: word(TAIL),
            base: word(BASE),
            epoch: word(EPOCH) as u32,
            fast_from: word(FAST_FROM),
            base_before: word(BASE_BEFORE),
            head: word(HEAD),
            followed: word(ACK) as u32,
            request: word(REQUEST),
            held: word(HELD),
        }
    }

    /// The stream is on the ring.
    pub fn is_on_ring(&self) -> bool {
        self.epoch & 1 == 1
    }

    /// Up to where the producer may have written, as long as no thread of its sends.
    pub fn written(&self, size: u64) -> u64 {
        let held = self.held.wrapping_sub(self.tail);
        if held <= size { self.held } else { self.tail }
    }
}
