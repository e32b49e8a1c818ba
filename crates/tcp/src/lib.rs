//! netacc-tcp: an established TCP connection in user space, without any I/O.
//!
//! The data path of the path `utcp`, which is experimental; `docs/design/user-space-tcp.md`
//! describes it: a live connection of the kernel's is taken over
//! ([`Connection::taken_over`]), goes on here, and is given back ([`Connection::give_back`])
//! whenever something comes up that is not of the state ESTABLISHED: FIN, RST, urgent data, what
//! is not understood, trouble. So there is no handshake here, no close, and no other state.
//!
//! - [`wire`]: packets, read and written;
//! - [`Connection`]: what comes in, what goes out, what is due when;
//! - [`wheel`]: the timers of many connections;
//! - [`table`]: which connection a packet is for.
//!
//! The bytes of the streams are the caller's. A segment that is sent names a range of the send
//! buffer, a segment that came is told where its bytes belong in the receive buffer, out of order
//! or not. Offsets of both are counted from the take-over.
//!
//! This crate does no I/O, reads no clock and never panics, whatever the peer sends. It allocates
//! when a connection is taken over, or a wheel or table made, and never for a segment.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]

extern crate alloc;
#[cfg(test)]
#[macro_use]
extern crate std;

mod clock;
mod connection;
mod receiver;
mod sender;
mod seq;
pub mod table;
pub mod wheel;
pub mod wire;

pub use connection::{
    Bounds, Congestion, Connection, Figures, KeepAlive, Negotiated, Outgoing, Parameters, Reason,
    ReceiveStart, Refusal, Repair, RepairWindow, SendStart, StampStart, Verdict, Wishes, Write,
};

#[cfg(test)]
mod tests;

/// Nanoseconds, of a time on the caller's clock or between two.
pub type Nanos = u64;

/// The smallest payload of a full segment: options leave room in it. RFC 9293, 3.7.1 has 536 for
/// IPv4 by default; Linux goes down to 48.
pub const MSS_MIN: u16 = 88;

/// What has happened on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments that were sent; one that the device divides counts once.
    pub segments_sent: u64,
    /// Bytes that were sent, again ones as well.
    pub bytes_sent: u64,
    /// Of these, those that were sent again.
    pub bytes_again: u64,
    /// Recoveries that were begun without a timeout.
    pub recoveries: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// How often the congestion window was reduced, by losses or ECN.
    pub reductions: u64,
    /// Probes: for lost last bytes, of a closed window, of a silent peer.
    pub probes: u64,
    /// Duplicates that the peer has reported.
    pub dsacks: u64,
    /// Segments that came before others.
    pub out_of_order: u64,
    /// Segments whose bytes were there already, or some of them.
    pub duplicates: u64,
    /// Segments out of order that there was no place to remember.
    pub not_kept: u64,
    /// Segments that were not this connection's, or too old.
    pub dropped: u64,
    /// Of these, those that were answered by a challenge (RFC 5961).
    pub challenges: u64,
}

impl Counters {
    /// How often something went wrong on the way to the peer, or was in doubt: recoveries,
    /// timeouts and probes. It grows with each.
    #[must_use]
    pub const fn troubles(&self) -> u64 {
        self.recoveries.wrapping_add(self.timeouts).wrapping_add(self.probes)
    }
}
