//! Switchover: one direction of a connection moves between the carrier and a fast path at exact
//! stream offsets.
//!
//! A direction has a sender half [`Tx`] and a receiver half [`Rx`]. Both are plain integers,
//! `repr(C)` and valid when zeroed, so that they can live in memory shared by a family of
//! processes. The halves talk through two groups of shared words, [`Announce`] (written by the
//! sender) and [`Ack`] (written by the receiver), and through the two paths themselves.
//!
//! **Epochs.** `epoch` counts switches: even = carrier, odd = fast path; epoch 0 starts at offset
//! 0. A sender promotes only when the receiver has followed to the present epoch and is armed; it
//! demotes whenever it likes. So the receiver is at most two epochs behind, and one offset for the
//! last promotion and one for the last demotion are enough.
//!
//! **Order, on which everything rests** (each point has a mutation test that shows the model
//! breaking without it):
//! 1. The sender publishes an [`Announce`] (offsets first, epoch last, release) before the first
//!    byte on the new path.
//! 2. Promoting: publish, `fence(SeqCst)`, load [`Ack`] again, [`Tx::confirm`]. Bytes may
//!    follow only then.
//! 3. An armed receiver on the carrier peeks, *then* loads the announcement, then takes
//!    ([`Rx::after_peek`]).
//! 4. At the end of the carrier: see EOF or reset, *then* load the announcement, *then* look
//!    whether the fast path is empty ([`Rx::on_carrier_eof`]).
//! 5. Freezing: store [`Ack`], `fence(SeqCst)`, load the announcement, [`Rx::on_announce`].
//!
//! What this module does not do: move bytes, wake anybody, or decide *when* to switch.
//! State diagrams and message orders: `docs/design/switchover.md`.

mod leave;
mod rx;
mod tx;

pub use leave::{Action, Arrival, Await, Coming, Leave, Peer, RxDue, RxView, TxDue, TxView};
pub use rx::{EofVerdict, Plan, Rx, RxState};
pub use tx::{FailOver, Refused, Tx, TxState};

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The kernel TCP connection.
    Carrier,
    /// The faster path that both ends agreed on.
    Fast,
}

impl Path {
    /// The path of an epoch: even = carrier, odd = fast.
    #[must_use]
    pub const fn of_epoch(epoch: u32) -> Self {
        if epoch & 1 == 0 { Self::Carrier } else { Self::Fast }
    }
}

/// Whether a fast path can lose bytes that it has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Bytes that the path accepted stay readable whatever happens (shared memory).
    Reliable,
    /// The path may die with bytes in flight (RDMA): the sender keeps them until the receiver
    /// consumed them.
    Lossy,
}

/// Sender → receiver. Store `fast_from`, `carrier_from` and `resend_to` first, `epoch` last with
/// release; load `epoch` first with acquire.
///
/// A torn read is harmless: an offset is rewritten only after the receiver has followed past its
/// previous meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Announce {
    /// Number of switches so far; even = carrier, odd = fast.
    pub epoch: u32,
    /// Offset of the first byte of the latest promotion.
    pub fast_from: u64,
    /// Offset of the first byte on the carrier after the latest demotion.
    pub carrier_from: u64,
    /// Bytes in `carrier_from..resend_to` were on the fast path before and come again on the
    /// carrier (fail-over). Equal to `carrier_from` for a plain demotion. If the carrier ends
    /// before this offset, bytes were lost.
    pub resend_to: u64,
}

/// Receiver → sender. Two shared words: store `consumed` first, then [`Ack::control`] with release;
/// load the control word first with acquire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ack {
    /// The epoch on whose path the receiver reads.
    pub epoch: u32,
    /// The receiver obeys the peek-first rule, so the sender may promote.
    pub armed: bool,
    /// The receiver takes nothing more from the fast path and waits for a fail-over at exactly
    /// `consumed`.
    pub frozen: bool,
    /// Offset up to which the receiver has consumed; while `frozen`, the offset at which it wants
    /// the carrier to go on.
    pub consumed: u64,
}

impl Ack {
    const ARMED: u64 = 1 << 32;
    const FROZEN: u64 = 1 << 33;

    /// Epoch and flags in one word, so that they change together.
    #[must_use]
    pub const fn control(&self) -> u64 {
        let armed = if self.armed { Self::ARMED } else { 0 };
        let frozen = if self.frozen { Self::FROZEN } else { 0 };
        self.epoch as u64 | armed | frozen
    }

    /// The opposite of [`Ack::control`]. Any value is accepted: the checks are in [`Tx`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the epoch is the low half of the word")]
    pub const fn from_words(control: u64, consumed: u64) -> Self {
        Self {
            epoch: control as u32,
            armed: control & Self::ARMED != 0,
            frozen: control & Self::FROZEN != 0,
            consumed,
        }
    }
}

/// The peer broke the protocol: reset this connection, and count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Corrupt {
    /// The announced epoch is neither the present one nor a switch that is allowed from it.
    Epoch,
    /// A switch was announced at an offset that the receiver has already passed.
    OffsetBehind,
    /// The announced offsets contradict each other.
    OffsetOrder,
    /// The carrier has data although no demotion was announced.
    CarrierData,
    /// More bytes were delivered, sent or acknowledged than the plan allowed or the stream has.
    Overrun,
    /// The receiver's frozen offset is outside of what the fast path carried and the sender still
    /// keeps.
    Consumed,
}

#[cfg(test)]
mod tests;
