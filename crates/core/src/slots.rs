//! What a channel's slots are on every path: how many there are, and how the word is read that
//! takes a slot's connection back to its carrier.
//!
//! A path whose thread takes connections back ([`Back::Agent`](crate::path::Back::Agent)) keeps
//! such a word for each slot, next to what it knows of the slot's far end. Who asks for the way
//! back sets it ([`Far::demote`](crate::path::Far::demote)), and the path's thread looks at it.

/// Slots of a channel.
pub(crate) const SLOTS: usize = netacc_ring::SLOTS_MAX;

/// Bits of a slot's word `leave`. Zero: nobody wants its connection back on the carrier.
pub(crate) mod parting {
    /// Wanted by this process.
    pub(crate) const WANTED: u32 = 1;
    /// Not for good: to be promoted again as soon as that is possible.
    pub(crate) const AGAIN: u32 = 2;
    /// The peer is gone with what it had; nothing can be agreed upon any more.
    pub(crate) const GONE: u32 = 8;
    /// Somebody counts those that leave, and it is among them.
    pub(crate) const COUNTED: u32 = 16;
    /// Our last words are said, where the peer has a library that hears them.
    pub(crate) const LEFT: u32 = 32;
    /// Above: the reason's code.
    pub(crate) const REASON: u32 = 16;
}
