//! The sender half.
//!
//! Responsible for: where the next byte goes, at which offset a switch happens, which bytes must be
//! kept or sent again. Not responsible for: moving bytes and publishing words; every method that
//! returns an [`Announce`] expects the caller to publish it before anything else happens on this
//! direction.
//!
//! Invariants: `fast_from <= acked <= offset` on the fast path; `resend_next < resend_end <=
//! offset` while re-sending; `state` is written by `step` alone.

use super::{Ack, Announce, Corrupt, Delivery, Path};
use core::ops::Range;

/// Where the sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum TxState {
    /// Bytes go to the carrier.
    Carrier = 0,
    /// A promotion is announced and not yet confirmed: no byte may be sent.
    Promoting = 1,
    /// Bytes go to the fast path.
    Fast = 2,
    /// Bytes that the fast path did not deliver must be sent again on the carrier before any new
    /// byte.
    Resending = 3,
    /// The sending side has been shut down (FIN on the carrier): no byte may be sent.
    Shut = 4,
}

/// What happens to a sender, with the guards already decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxEvent {
    Promote,
    ConfirmArmed,
    ConfirmDisarmed,
    Accept,
    Demote,
    FailOverDone,
    FailOverResend,
    ResentPart,
    ResentAll,
    Shutdown,
}

/// Why the sender does not do what was asked. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The operation has no meaning in this state (a stale request, or already done).
    State(TxState),
    /// The receiver has not followed to the present epoch yet: try later.
    NotFollowed,
    /// The receiver does not want to be promoted now.
    NotArmed,
    /// Bytes on a lossy fast path are not acknowledged: wait, or ask the receiver to freeze and
    /// fail over.
    Unacked,
    /// This sender was pinned to the carrier, or the receiver has left.
    Pinned,
    /// The peer broke the protocol.
    Corrupt(Corrupt),
}

impl From<Corrupt> for Refused {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// What to do after [`Tx::fail_over`]: publish `announce`, then send `resend` on the carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailOver {
    /// To be published before the first re-sent byte.
    pub announce: Announce,
    /// Stream offsets to send again, reporting them with [`Tx::on_resent`]; may be empty.
    pub resend: Range<u64>,
}

/// The sender half of one direction. Zeroed memory is a valid new sender.
///
/// Drive it under the lock of the direction: ask [`Tx::path`] and [`Tx::can_accept`], put bytes
/// there, report them with [`Tx::on_accepted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Tx {
    epoch: u32,
    state: u32,
    lossy: u32,
    /// Of `PINNED` and `PEER_LEFT`; with any of them there is no promotion.
    pinned: u32,
    /// Application bytes accepted so far, on all paths.
    offset: u64,
    fast_from: u64,
    carrier_from: u64,
    /// On the fast path: bytes below are never needed again.
    acked: u64,
    resend_next: u64,
    resend_end: u64,
}

impl Tx {
    const PINNED: u32 = 1;
    const PEER_LEFT: u32 = 2;

    /// A sender at offset 0 on the carrier.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            epoch: 0,
            state: 0,
            lossy: 0,
            pinned: 0,
            offset: 0,
            fast_from: 0,
            carrier_from: 0,
            acked: 0,
            resend_next: 0,
            resend_end: 0,
        }
    }

    /// A sender on the carrier whose direction is known to be at this epoch and offset: for a
    /// process that takes over a connection, with the byte count that the kernel reports
    /// (`tcpi_bytes_acked` plus what is still queued). An odd epoch is made even. Both halves must
    /// start at the same place.
    #[must_use]
    pub const fn starting_at(epoch: u32, offset: u64) -> Self {
        let mut tx = Self::new();
        tx.epoch = epoch & !1;
        tx.offset = offset;
        tx
    }

    /// The present state. An unknown value (damaged memory) reads as [`TxState::Shut`].
    #[must_use]
    pub const fn state(&self) -> TxState {
        match self.state {
            0 => TxState::Carrier,
            1 => TxState::Promoting,
            2 => TxState::Fast,
            3 => TxState::Resending,
            _ => TxState::Shut,
        }
    }

    /// The path of the next byte.
    #[must_use]
    pub const fn path(&self) -> Path {
        Path::of_epoch(self.epoch)
    }

    /// The number of switches so far.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Application bytes accepted so far.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether new application bytes may be put on [`Tx::path`] now.
    #[must_use]
    pub const fn can_accept(&self) -> bool {
        matches!(self.state(), TxState::Carrier | TxState::Fast)
    }

    /// Whether bytes (re-sent ones, too) and the FIN may go to the carrier, as far as it depends on
    /// the receiver: it must have an announcement before it that changes the meaning of the
    /// carrier's next byte. Shared memory shows it at once; over a lossy path the receiver's end
    /// says which epoch has arrived there.
    #[must_use]
    pub const fn carrier_is_open(&self, seen_epoch: u32) -> bool {
        let known = seen_epoch == self.epoch || self.pinned & Self::PEER_LEFT != 0;
        self.lossy == 0 || (matches!(self.path(), Path::Carrier) && known)
    }

    /// Whether bytes would be missing if this process ended now, without the receiver knowing it:
    /// then its end must reset the carrier (`SO_LINGER` with no time), because a FIN would look
    /// like the end of the stream. On a lossy path that is so from before a promotion is published
    /// until everything is the carrier's again.
    #[must_use]
    pub const fn must_end_in_reset(&self, seen_epoch: u32) -> bool {
        let on_carrier = matches!(self.state(), TxState::Carrier | TxState::Shut);
        self.lossy != 0 && !(on_carrier && self.carrier_is_open(seen_epoch))
    }

    /// The receiver's end was released, has left the library for good, and has said so in its last
    /// words: it needs no announcement any more, will answer none, and cannot be promoted.
    pub fn peer_left(&mut self) {
        self.pinned |= Self::PEER_LEFT;
    }

    /// The words to publish. Every switching method returns the same value.
    #[must_use]
    pub const fn announce(&self) -> Announce {
        Announce {
            epoch: self.epoch,
            fast_from: self.fast_from,
            carrier_from: self.carrier_from,
            resend_to: self.resend_end,
        }
    }

    /// Counts `n` application bytes that [`Tx::path`] has accepted.
    ///
    /// # Errors
    /// [`Refused::State`] when no bytes may be sent now (the caller sent them all the same: its
    /// bug).
    pub fn on_accepted(&mut self, n: u64) -> Result<(), Refused> {
        let offset = self.offset.checked_add(n).ok_or(Corrupt::Overrun)?;
        self.step(TxEvent::Accept)?;
        self.offset = offset;
        Ok(())
    }

    /// Moves to the fast path at the present offset. Publish the result, `fence(SeqCst)`, load the
    /// [`Ack`] again and call [`Tx::confirm`]; until then no byte is accepted.
    ///
    /// # Errors
    /// Refused unless the receiver has followed to this epoch and is armed, nothing waits to be
    /// re-sent, and the sender is neither shut down nor pinned.
    pub fn promote(&mut self, ack: Ack, delivery: Delivery) -> Result<Announce, Refused> {
        if self.pinned != 0 {
            return Err(Refused::Pinned);
        }
        self.check_ack_epoch(ack)?;
        TxState::next(self.state(), TxEvent::Promote).map_err(Refused::State)?;
        if ack.epoch != self.epoch {
            return Err(Refused::NotFollowed);
        }
        if !ack.armed || ack.frozen {
            return Err(Refused::NotArmed);
        }
        self.step(TxEvent::Promote)?;
        self.epoch = self.epoch.wrapping_add(1);
        self.fast_from = self.offset;
        self.acked = self.offset;
        self.lossy = u32::from(delivery == Delivery::Lossy);
        Ok(self.announce())
    }

    /// Ends a promotion, with an [`Ack`] loaded after the promotion was published. `Some`: the
    /// receiver has disarmed meanwhile; publish this demotion (no byte was on the fast path) and go
    /// on on the carrier.
    ///
    /// # Errors
    /// [`Refused::State`] when no promotion is unconfirmed.
    pub fn confirm(&mut self, ack: Ack) -> Result<Option<Announce>, Refused> {
        if ack.armed && !ack.frozen {
            self.step(TxEvent::ConfirmArmed)?;
            return Ok(None);
        }
        self.step(TxEvent::ConfirmDisarmed)?;
        self.return_to_carrier(self.offset);
        Ok(Some(self.announce()))
    }

    /// Moves back to the carrier at the present offset; the fast path still delivers the bytes
    /// before it.
    ///
    /// # Errors
    /// [`Refused::Unacked`] on a lossy path with unacknowledged bytes: those could be lost after
    /// newer bytes were sent on the carrier. [`Refused::State`] when not on the fast path.
    pub fn demote(&mut self) -> Result<Announce, Refused> {
        TxState::next(self.state(), TxEvent::Demote).map_err(Refused::State)?;
        self.check_flushed()?;
        self.step(TxEvent::Demote)?;
        self.return_to_carrier(self.offset);
        Ok(self.announce())
    }

    /// Moves back to the carrier at the offset where the receiver stopped, to send everything after
    /// it again.
    ///
    /// `consumed` must be final: the receiver is frozen there ([`Tx::pull_back`] checks that), and
    /// nothing more is written to the fast path from here on.
    ///
    /// # Errors
    /// [`Refused::State`] when not on the fast path (a demotion crossed the request: ignore it);
    /// [`Corrupt::Consumed`] when the offset is impossible.
    pub fn fail_over(&mut self, consumed: u64) -> Result<FailOver, Refused> {
        let done = consumed == self.offset;
        let event = if done { TxEvent::FailOverDone } else { TxEvent::FailOverResend };
        TxState::next(self.state(), event).map_err(Refused::State)?;
        if consumed < self.fast_from || consumed < self.acked || consumed > self.offset {
            return Err(Corrupt::Consumed.into());
        }
        self.step(event)?;
        self.return_to_carrier(consumed);
        Ok(FailOver { announce: self.announce(), resend: consumed..self.offset })
    }

    /// [`Tx::fail_over`] as the receiver asks for it in its [`Ack`]. `None`: it does not ask (any
    /// more).
    ///
    /// # Errors
    /// As [`Tx::fail_over`].
    pub fn pull_back(&mut self, ack: Ack) -> Result<Option<FailOver>, Refused> {
        self.check_ack_epoch(ack)?;
        // A receiver that freezes before it reaches the promotion still shows the even epoch before
        // it.
        if !ack.frozen || self.path() == Path::Carrier || ack.epoch | 1 != self.epoch {
            return Ok(None);
        }
        self.fail_over(ack.consumed).map(Some)
    }

    /// Counts `n` bytes that were sent again on the carrier.
    ///
    /// # Errors
    /// [`Refused::State`] when nothing is to be re-sent, [`Corrupt::Overrun`] when `n` is more than
    /// that.
    pub fn on_resent(&mut self, n: u64) -> Result<(), Refused> {
        let next = self.resend_next.checked_add(n).ok_or(Corrupt::Overrun)?;
        let event = if next == self.resend_end { TxEvent::ResentAll } else { TxEvent::ResentPart };
        TxState::next(self.state(), event).map_err(Refused::State)?;
        if next > self.resend_end {
            return Err(Corrupt::Overrun.into());
        }
        self.step(event)?;
        self.resend_next = next;
        Ok(())
    }

    /// What must still be sent again on the carrier before any new byte.
    #[must_use]
    pub const fn resend(&self) -> Range<u64> {
        match self.state() {
            TxState::Resending => self.resend_next..self.resend_end,
            _ => self.offset..self.offset,
        }
    }

    /// The receiver has consumed everything below `consumed`: it need not be kept any longer.
    /// An older value than before is ignored.
    ///
    /// # Errors
    /// [`Corrupt::Overrun`] when the receiver claims bytes that were never sent.
    pub fn acked(&mut self, consumed: u64) -> Result<(), Corrupt> {
        if consumed > self.offset {
            return Err(Corrupt::Overrun);
        }
        self.acked = self.acked.max(consumed);
        Ok(())
    }

    /// The bytes that must be kept because they may have to be sent again.
    #[must_use]
    pub const fn unacked(&self) -> Range<u64> {
        match self.state() {
            TxState::Promoting | TxState::Fast => self.acked..self.offset,
            _ => self.resend(),
        }
    }

    /// Ends the sending side. Publish the announcement, if there is one, *before* the FIN on the
    /// carrier (`shutdown(SHUT_WR)` or close): with it the receiver knows exactly where the fast
    /// path ends.
    ///
    /// # Errors
    /// [`Refused::Unacked`] on a lossy path with unacknowledged bytes, [`Refused::State`] while
    /// bytes wait to be re-sent: the FIN has to wait as well. (On a reliable path the process may
    /// also just leave, as a crash would: the receiver then takes the rest from the fast path,
    /// unless it has left the library.)
    pub fn shutdown(&mut self) -> Result<Option<Announce>, Refused> {
        TxState::next(self.state(), TxEvent::Shutdown).map_err(Refused::State)?;
        self.check_flushed()?;
        self.step(TxEvent::Shutdown)?;
        if self.path() == Path::Carrier {
            return Ok(None);
        }
        self.return_to_carrier(self.offset);
        Ok(Some(self.announce()))
    }

    /// Never promote again, for example because a process died while it held the lock of this
    /// direction and [`Tx::offset`] can no longer be trusted. Staying on the carrier needs no
    /// offsets.
    pub fn pin(&mut self) {
        self.pinned |= Self::PINNED;
    }

    /// The next epoch, on the carrier, from `at`.
    fn return_to_carrier(&mut self, at: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.carrier_from = at;
        self.resend_next = at;
        self.resend_end = self.offset;
    }

    fn check_flushed(&self) -> Result<(), Refused> {
        let kept = self.unacked();
        if self.lossy != 0 && self.path() == Path::Fast && kept.start != kept.end {
            return Err(Refused::Unacked);
        }
        Ok(())
    }

    /// A receiver is at most two epochs behind, and never ahead.
    fn check_ack_epoch(&self, ack: Ack) -> Result<(), Corrupt> {
        let behind = self.epoch.wrapping_sub(ack.epoch);
        // On an odd epoch the receiver had followed to the even one before it.
        let allowed = match self.path() {
            Path::Carrier => 2,
            Path::Fast => 1,
        };
        if behind > allowed { Err(Corrupt::Epoch) } else { Ok(()) }
    }

    /// The only writer of `state`.
    fn step(&mut self, event: TxEvent) -> Result<(), Refused> {
        self.state = TxState::next(self.state(), event).map_err(Refused::State)? as u32;
        Ok(())
    }
}

impl TxState {
    /// The transition table.
    pub(crate) const fn next(self, event: TxEvent) -> Result<Self, Self> {
        use TxEvent as E;
        use TxState as S;
        match (self, event) {
            (S::Carrier, E::Promote) => Ok(S::Promoting),
            (S::Promoting, E::ConfirmArmed) => Ok(S::Fast),
            (S::Promoting, E::ConfirmDisarmed) => Ok(S::Carrier),
            (S::Carrier | S::Fast, E::Accept) => Ok(self),
            (S::Promoting | S::Fast, E::Demote | E::FailOverDone) => Ok(S::Carrier),
            (S::Promoting | S::Fast, E::FailOverResend) => Ok(S::Resending),
            (S::Resending, E::ResentPart) => Ok(S::Resending),
            (S::Resending, E::ResentAll) => Ok(S::Carrier),
            (S::Carrier | S::Promoting | S::Fast | S::Shut, E::Shutdown) => Ok(S::Shut),
            _ => Err(self),
        }
    }
}
