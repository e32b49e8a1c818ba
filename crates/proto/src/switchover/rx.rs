//! The receiver half.
//!
//! Responsible for: from which path the next bytes may be taken and how many, whether an
//! announcement is credible, and whether the end of the carrier is the end of the stream. Not
//! responsible for: moving bytes and storing words; after every call that may change [`Rx::ack`],
//! the caller stores it.
//!
//! Invariants: `offset` counts the bytes delivered to the application; a recorded switch is at or
//! after `offset`; `state` is written by `step` alone.

use super::{Ack, Announce, Corrupt, Delivery, Path};

/// Where the receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RxState {
    /// On the carrier; the sender cannot promote. Announcements need not be looked at.
    Open = 0,
    /// On the carrier; the sender may promote at any moment.
    Armed = 1,
    /// On the carrier; disarmed, and the announcement has not been loaded since.
    Disarming = 2,
    /// On the carrier up to `fast_from`, then the fast path.
    ToFast = 3,
    /// On the carrier up to `fast_from`, then the fast path up to `carrier_from`, then the carrier.
    ToFastAndBack = 4,
    /// On the fast path.
    Fast = 5,
    /// On the fast path up to `carrier_from`, then the carrier.
    ToCarrier = 6,
    /// On the carrier up to `fast_from`; nothing will be taken from the fast path.
    FrozenToFast = 7,
    /// On the fast path, but nothing more is taken: waits for the sender's fail-over.
    Frozen = 8,
    /// On the carrier after a fail-over; bytes up to `resend_to` come again, and the fast path
    /// still has them.
    Replaying = 9,
    /// The carrier ended too early for that: takes the rest up to `resend_to` from the fast path.
    Leftover = 10,
}

/// What happens to a receiver, with the guards already decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxEvent {
    /// The application allows promotions.
    Arm,
    /// The receiver wants everything on the carrier.
    Freeze,
    /// The announcement was loaded and holds nothing new.
    SawNothing,
    /// A promotion at or after the present offset.
    SawPromotion,
    /// A promotion and a demotion at the same offset: the carrier just goes on.
    SawEmptyPromotion,
    /// A promotion, and a demotion behind it.
    SawPromotionAndDemotion,
    /// A demotion at or after the present offset.
    SawDemotion,
    /// A demotion at the frozen offset, with bytes that come again.
    SawFailOver,
    /// `offset` has come to `fast_from`.
    ReachedFast,
    /// `offset` has come to `carrier_from`, armed or not.
    ReachedCarrierArmed,
    ReachedCarrierOpen,
    /// `offset` has come to `resend_to`.
    ReachedResendEnd,
    /// The carrier has ended: a frozen receiver gets no answer, a replaying one no more bytes.
    CarrierEnded,
}

/// From where to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// Read at most `limit` bytes from the carrier.
    Carrier {
        /// `u64::MAX` when there is no limit.
        limit: u64,
        /// Peek first, load the announcement, and take what [`Rx::after_peek`] says.
        peek_first: bool,
    },
    /// Take at most `limit` bytes from the fast path. If it has none and the carrier is readable:
    /// [`Rx::on_carrier_readable`] or [`Rx::on_carrier_eof`].
    Fast {
        /// `u64::MAX` when there is no limit.
        limit: u64,
    },
    /// Frozen: take nothing; wait for an announcement, or for the end of the carrier.
    Wait,
}

/// What the end of the carrier (EOF or an error) means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum EofVerdict {
    /// The stream ends here: deliver the EOF, or the error, to the application.
    Eof,
    /// Take the bytes of the fast path first, as [`Rx::plan`] says, then ask again.
    DrainFastFirst,
    /// The sender died while it sent bytes again: discard the next `skip` bytes of the fast path
    /// (they did come on the carrier; if it has fewer, discard those), then as
    /// [`EofVerdict::DrainFastFirst`]. On a lossy path make sure first that nothing can arrive late
    /// (destroy the receiving end), so that these are the right bytes.
    SkipThenDrain {
        /// How many.
        skip: u64,
    },
    /// The announcement changed the plan (and was followed): store [`Rx::ack`], and plan again.
    FollowAnnounce,
    /// Bytes are missing: the sender died between two steps, or lied. Deliver ECONNRESET, never a
    /// clean EOF.
    Truncated,
}

/// The receiver half of one direction. Zeroed memory is a valid new receiver.
///
/// Drive it under the lock of the direction: read as [`Rx::plan`] says, report with
/// [`Rx::on_delivered`], store [`Rx::ack`] where told to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Rx {
    /// The epoch on whose path the receiver reads.
    epoch: u32,
    state: u32,
    armed: u32,
    /// Of `LOSSY`, `ARMED_SEEN`, `DISARMED_SEEN`, `ENDED` and `PEER_LEFT`.
    facts: u32,
    offset: u64,
    /// Valid in `ToFast`, `ToFastAndBack`, `FrozenToFast`.
    fast_from: u64,
    /// Valid in `ToFastAndBack`, `ToCarrier`, `Replaying`.
    carrier_from: u64,
    /// If the carrier ends before this offset, bytes are missing.
    resend_to: u64,
}

impl Rx {
    /// The fast path is [`Delivery::Lossy`].
    const LOSSY: u32 = 1;
    /// The sender has seen the present turn of `armed`: it can be taken back.
    const ARMED_SEEN: u32 = 2;
    /// And then that it was taken back.
    const DISARMED_SEEN: u32 = 4;
    /// The carrier has ended while bytes were on the fast path: what it holds is the rest, and an
    /// announcement that comes late changes nothing any more.
    const ENDED: u32 = 8;
    /// The sender will never promote again, so whatever it has to see counts as seen.
    const PEER_LEFT: u32 = 16;

    /// A receiver at offset 0 on the carrier, not armed, whose fast path is [`Delivery::Reliable`].
    #[must_use]
    pub const fn new() -> Self {
        Self::new_over(Delivery::Reliable)
    }

    /// As [`Rx::new`], for this kind of fast path. Over a lossy one the words travel, too, so the
    /// sender's view of them is older than they are: tell [`Rx::ack_seen`] what it has seen.
    #[must_use]
    pub const fn new_over(delivery: Delivery) -> Self {
        Self {
            epoch: 0,
            state: 0,
            armed: 0,
            facts: match delivery {
                Delivery::Reliable => 0,
                Delivery::Lossy => Self::LOSSY,
            },
            offset: 0,
            fast_from: 0,
            carrier_from: 0,
            resend_to: 0,
        }
    }

    /// A receiver on the carrier, not armed, whose direction is known to be at this epoch and
    /// offset: for a process that takes over a connection, with the byte count that the kernel
    /// reports (`tcpi_bytes_received` less what is still queued). An odd epoch is made even. Both
    /// halves must start at the same place.
    #[must_use]
    pub const fn starting_at(epoch: u32, offset: u64) -> Self {
        Self::starting_at_over(Delivery::Reliable, epoch, offset)
    }

    /// As [`Rx::starting_at`], for this kind of fast path.
    #[must_use]
    pub const fn starting_at_over(delivery: Delivery, epoch: u32, offset: u64) -> Self {
        let mut rx = Self::new_over(delivery);
        rx.epoch = epoch & !1;
        rx.offset = offset;
        rx
    }

    /// The present state. An unknown value (damaged memory) reads as [`RxState::Frozen`].
    #[must_use]
    pub const fn state(&self) -> RxState {
        match self.state {
            0 => RxState::Open,
            1 => RxState::Armed,
            2 => RxState::Disarming,
            3 => RxState::ToFast,
            4 => RxState::ToFastAndBack,
            5 => RxState::Fast,
            6 => RxState::ToCarrier,
            7 => RxState::FrozenToFast,
            9 => RxState::Replaying,
            10 => RxState::Leftover,
            _ => RxState::Frozen,
        }
    }

    /// The path of the next byte (of a frozen receiver: the path that it stands on).
    #[must_use]
    pub const fn path(&self) -> Path {
        match self.state() {
            RxState::Leftover => Path::Fast,
            _ => Path::of_epoch(self.epoch),
        }
    }

    /// The epoch on whose path the receiver reads.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Bytes delivered to the application so far.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// On the carrier for good: the sender cannot promote until [`Rx::arm`], so the application may
    /// use the kernel socket as it likes. (Bytes that [`Rx::on_delivered`] is not told of while
    /// [`RxState::Replaying`] cost the protection against the sender's death.)
    #[must_use]
    pub const fn is_released(&self) -> bool {
        matches!(self.state(), RxState::Open | RxState::Replaying)
    }

    /// Bytes that come again on the carrier and were not delivered yet: where they were readable
    /// before, they are not before they have come.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        match self.state() {
            RxState::Replaying => self.resend_to.saturating_sub(self.offset),
            _ => 0,
        }
    }

    /// Frozen on (or before) the fast path: the sender must be asked to pull back.
    #[must_use]
    pub const fn wants_pull_back(&self) -> bool {
        matches!(self.state(), RxState::Frozen | RxState::FrozenToFast)
    }

    /// The words for the sender to see.
    #[must_use]
    pub const fn ack(&self) -> Ack {
        let frozen = self.wants_pull_back();
        let consumed = match self.state() {
            RxState::FrozenToFast => self.fast_from,
            _ => self.offset,
        };
        Ack {
            epoch: self.epoch,
            armed: self.armed != 0 || self.keeps_armed_word(),
            frozen,
            consumed,
        }
    }

    const fn is_lossy(&self) -> bool {
        self.facts & Self::LOSSY != 0
    }

    /// Disarming, but the sender has not seen `armed` yet. If it were taken back at once, an echo
    /// of the same word from before it was set could not be told from the answer to this one.
    const fn keeps_armed_word(&self) -> bool {
        matches!(self.state(), RxState::Disarming)
            && self.is_lossy()
            && self.facts & (Self::ARMED_SEEN | Self::PEER_LEFT) == 0
    }

    /// Allows the sender to promote. Store [`Rx::ack`] afterwards.
    ///
    /// If [`Rx::is_released`] before and armed after, everything that the fast path still holds is
    /// left over from a fail-over: discard it *before* storing the ack (a lossy path: make sure
    /// that nothing can arrive late).
    ///
    /// Not while a read that was planned as released (without peeking) is still under way. Returns
    /// whether the receiver is armed: not one that is frozen or replaying, nor, over a lossy path,
    /// one that is disarming.
    pub fn arm(&mut self) -> bool {
        if self.is_lossy() && self.state() == RxState::Disarming {
            return false;
        }
        let was_open = self.state() == RxState::Open;
        let armed = self.step(RxEvent::Arm).is_ok();
        if armed {
            self.armed = 1;
        }
        if armed && was_open {
            self.facts &= !(Self::ARMED_SEEN | Self::DISARMED_SEEN);
        }
        armed
    }

    /// Asks for everything on the carrier; the first step of pulling back. Returns the consumed
    /// offset that the stored [`Rx::ack`] will show.
    ///
    /// Store [`Rx::ack`], `fence(SeqCst)`, load the announcement, [`Rx::on_announce`]. Then, until
    /// [`Rx::is_released`]: send PullBack once if [`Rx::wants_pull_back`], and read on as
    /// [`Rx::plan`] says. A demotion that crossed the request may oblige the receiver to drain the
    /// fast path first.
    ///
    /// Over a lossy path there is no such fence: a receiver that is still on the carrier is
    /// released only after [`Rx::ack_seen`] was told what [`Rx::ack`] shows, which may change once
    /// more before.
    pub fn freeze(&mut self) -> u64 {
        // Every state knows this event.
        let _ = self.step(RxEvent::Freeze);
        self.armed = 0;
        self.ack().consumed
    }

    /// The sender has this control word of an [`Ack`] before it, as it says itself, and every
    /// announcement that it made before has arrived. `true`: store [`Rx::ack`], load the
    /// announcement *after* this call, [`Rx::on_announce`]. Call it with each echo that arrives;
    /// one that tells nothing new, or comes over a reliable path, changes nothing.
    pub fn ack_seen(&mut self, control: u64) -> bool {
        if !self.is_lossy() || control != self.ack().control() {
            return false;
        }
        let before = self.facts;
        self.facts |= match self.state() {
            RxState::Armed => Self::ARMED_SEEN,
            RxState::Disarming if self.keeps_armed_word() => Self::ARMED_SEEN,
            RxState::Disarming => Self::DISARMED_SEEN,
            _ => 0,
        };
        self.facts != before && self.state() == RxState::Disarming
    }

    /// The sender's end is on the carrier for good, has left the library, and has said so in its
    /// last words. `true`: as [`Rx::ack_seen`].
    pub fn peer_left(&mut self) -> bool {
        let before = self.facts;
        self.facts |= Self::PEER_LEFT;
        self.facts != before && self.is_lossy() && self.state() == RxState::Disarming
    }

    /// From where to read next, and how much.
    #[must_use]
    pub const fn plan(&self) -> Plan {
        match self.state() {
            RxState::Open | RxState::Replaying => {
                Plan::Carrier { limit: u64::MAX, peek_first: false }
            }
            RxState::Armed | RxState::Disarming => {
                Plan::Carrier { limit: u64::MAX, peek_first: true }
            }
            RxState::ToFast | RxState::ToFastAndBack | RxState::FrozenToFast => Plan::Carrier {
                limit: self.fast_from.saturating_sub(self.offset),
                peek_first: false,
            },
            RxState::Fast => Plan::Fast { limit: u64::MAX },
            RxState::ToCarrier => {
                Plan::Fast { limit: self.carrier_from.saturating_sub(self.offset) }
            }
            RxState::Frozen => Plan::Wait,
            RxState::Leftover => Plan::Fast { limit: self.resend_to.saturating_sub(self.offset) },
        }
    }

    /// Follows an announcement. Call it wherever the shared words were loaded; a released receiver
    /// ignores it. `true`: plan again, and store [`Rx::ack`].
    ///
    /// # Errors
    /// The announcement is not one that an honest sender can have published.
    pub fn on_announce(&mut self, latest: Announce) -> Result<bool, Corrupt> {
        match self.state() {
            RxState::Open | RxState::Replaying | RxState::Leftover => Ok(false),
            _ if self.facts & Self::ENDED != 0 => Ok(false),
            RxState::Armed | RxState::Disarming => self.hear_on_carrier(latest),
            RxState::ToFast | RxState::FrozenToFast => self.hear_before_promotion(latest),
            RxState::Fast | RxState::Frozen => self.hear_on_fast(latest),
            // Nothing can follow before the receiver has followed.
            RxState::ToFastAndBack => self.hear_nothing_after(latest, 2),
            RxState::ToCarrier => self.hear_nothing_after(latest, 1),
        }
    }

    /// After a peek of `peeked` bytes on the carrier and then a load of the announcement: how many
    /// of exactly those bytes may be taken. 0: plan again. Store [`Rx::ack`] if [`Rx::epoch`] has
    /// changed.
    ///
    /// # Errors
    /// As [`Rx::on_announce`].
    pub fn after_peek(&mut self, peeked: u64, latest: Announce) -> Result<u64, Corrupt> {
        // Bytes of a later epoch cannot be among those that were peeked before the load that shows
        // no switch.
        let _ = self.on_announce(latest)?;
        Ok(match self.plan() {
            Plan::Carrier { limit, .. } => limit.min(peeked),
            Plan::Fast { .. } | Plan::Wait => 0,
        })
    }

    /// On the fast path, the carrier has data (seen first), and `latest` was loaded after that was
    /// seen.
    ///
    /// # Errors
    /// [`Corrupt::CarrierData`] when no demotion is announced, otherwise as [`Rx::on_announce`].
    pub fn on_carrier_readable(&mut self, latest: Announce) -> Result<bool, Corrupt> {
        let changed = self.on_announce(latest)?;
        match self.state() {
            RxState::Fast | RxState::Frozen => Err(Corrupt::CarrierData),
            _ => Ok(changed),
        }
    }

    /// Counts `n` bytes that were delivered as planned. `true`: the receiver stands on another
    /// path; store [`Rx::ack`].
    ///
    /// # Errors
    /// [`Corrupt::Overrun`] when `n` is more than the plan allowed.
    #[inline(always)]
    pub fn on_delivered(&mut self, n: u64) -> Result<bool, Corrupt> {
        if matches!(self.state(), RxState::Fast) {
            // As below: there is no limit, and no place to come to.
            self.offset = self.offset.checked_add(n).ok_or(Corrupt::Overrun)?;
            return Ok(false);
        }
        self.on_delivered_between(n)
    }

    fn on_delivered_between(&mut self, n: u64) -> Result<bool, Corrupt> {
        let limit = match self.plan() {
            Plan::Carrier { limit, .. } | Plan::Fast { limit } => limit,
            Plan::Wait => 0,
        };
        if n > limit {
            return Err(Corrupt::Overrun);
        }
        self.offset = self.offset.checked_add(n).ok_or(Corrupt::Overrun)?;
        let before = self.epoch;
        self.settle()?;
        Ok(self.epoch != before)
    }

    /// The carrier has ended (EOF, reset or another error), seen first; `latest` was loaded after
    /// that; and `fast_drained` says, looked at last, that the fast path has no byte and can get
    /// none any more.
    ///
    /// An empty lossy path does not show that all has come: without a demotion that says where it
    /// ends, the stream is truncated there. What it held before a fail-over is not taken into
    /// account.
    ///
    /// # Errors
    /// As [`Rx::on_announce`].
    pub fn on_carrier_eof(
        &mut self,
        latest: Announce,
        fast_drained: bool,
    ) -> Result<EofVerdict, Corrupt> {
        use RxState as S;
        if self.on_announce(latest)? {
            return Ok(EofVerdict::FollowAnnounce);
        }
        if self.is_lossy() && matches!(self.state(), S::Fast | S::Frozen) {
            self.facts |= Self::ENDED;
        }
        match self.state() {
            S::Open | S::Armed | S::Disarming if self.offset < self.resend_to => {
                Ok(EofVerdict::Truncated)
            }
            S::Open | S::Armed | S::Disarming => Ok(EofVerdict::Eof),
            // Carrier bytes before the switch are missing.
            S::ToFast | S::ToFastAndBack | S::FrozenToFast => Ok(EofVerdict::Truncated),
            S::Replaying if self.is_lossy() => Ok(EofVerdict::Truncated),
            S::Replaying => match self.offset.checked_sub(self.carrier_from) {
                Some(skip) if !fast_drained => {
                    self.step(RxEvent::CarrierEnded)?;
                    Ok(EofVerdict::SkipThenDrain { skip })
                }
                _ => Ok(EofVerdict::Truncated),
            },
            S::Frozen => {
                self.step(RxEvent::CarrierEnded)?;
                Ok(if !fast_drained {
                    EofVerdict::DrainFastFirst
                } else if self.is_lossy() {
                    EofVerdict::Truncated
                } else {
                    EofVerdict::Eof
                })
            }
            S::Fast | S::ToCarrier | S::Leftover if !fast_drained => Ok(EofVerdict::DrainFastFirst),
            S::Fast if self.is_lossy() => Ok(EofVerdict::Truncated),
            S::Fast => Ok(EofVerdict::Eof),
            S::ToCarrier | S::Leftover => Ok(EofVerdict::Truncated),
        }
    }

    /// `Armed`, `Disarming`: nothing seen since the present even epoch.
    fn hear_on_carrier(&mut self, latest: Announce) -> Result<bool, Corrupt> {
        match latest.epoch.wrapping_sub(self.epoch) {
            // Between hosts a promotion may still be on its way.
            0 if self.state() == RxState::Disarming
                && self.is_lossy()
                && self.facts & (Self::DISARMED_SEEN | Self::PEER_LEFT) == 0 =>
            {
                Ok(false)
            }
            0 => {
                self.step(RxEvent::SawNothing)?;
                Ok(false)
            }
            1 => {
                self.check_not_behind(latest.fast_from)?;
                self.fast_from = latest.fast_from;
                self.step(RxEvent::SawPromotion)?;
                self.settle()?;
                Ok(true)
            }
            2 => self.hear_promotion_and_demotion(latest, latest.fast_from),
            _ => Err(Corrupt::Epoch),
        }
    }

    /// `ToFast`, `FrozenToFast`: the promotion is known, its demotion is not.
    fn hear_before_promotion(&mut self, latest: Announce) -> Result<bool, Corrupt> {
        match latest.epoch.wrapping_sub(self.epoch) {
            1 => Ok(false),
            2 => self.hear_promotion_and_demotion(latest, self.fast_from),
            _ => Err(Corrupt::Epoch),
        }
    }

    fn hear_promotion_and_demotion(
        &mut self,
        latest: Announce,
        fast_from: u64,
    ) -> Result<bool, Corrupt> {
        let pulled_back = self.state() == RxState::FrozenToFast && latest.carrier_from == fast_from;
        Self::check_order(latest, fast_from, pulled_back)?;
        if latest.carrier_from == fast_from {
            // No byte of this epoch was taken or will be taken from the fast path. The offset may
            // lie behind, when the receiver was released while the sender withdrew the promotion.
            let resends = latest.resend_to > latest.carrier_from;
            self.step(if resends { RxEvent::SawFailOver } else { RxEvent::SawEmptyPromotion })?;
            self.epoch = latest.epoch;
            self.carrier_from = latest.carrier_from;
            self.resend_to = latest.resend_to;
            return Ok(true);
        }
        self.check_not_behind(fast_from)?;
        self.fast_from = fast_from;
        self.carrier_from = latest.carrier_from;
        self.resend_to = latest.resend_to;
        self.step(RxEvent::SawPromotionAndDemotion)?;
        self.settle()?;
        Ok(true)
    }

    /// `Fast`, `Frozen`.
    fn hear_on_fast(&mut self, latest: Announce) -> Result<bool, Corrupt> {
        match latest.epoch.wrapping_sub(self.epoch) {
            0 => Ok(false),
            1 => {
                self.check_not_behind(latest.carrier_from)?;
                let pulled_back =
                    self.state() == RxState::Frozen && latest.carrier_from == self.offset;
                Self::check_order(latest, self.offset, pulled_back)?;
                self.carrier_from = latest.carrier_from;
                self.resend_to = latest.resend_to;
                if latest.resend_to > latest.carrier_from {
                    self.step(RxEvent::SawFailOver)?;
                    self.epoch = latest.epoch;
                } else {
                    self.step(RxEvent::SawDemotion)?;
                    self.settle()?;
                }
                Ok(true)
            }
            _ => Err(Corrupt::Epoch),
        }
    }

    fn hear_nothing_after(&self, latest: Announce, ahead: u32) -> Result<bool, Corrupt> {
        if latest.epoch.wrapping_sub(self.epoch) == ahead { Ok(false) } else { Err(Corrupt::Epoch) }
    }

    /// Passes every recorded switch that `offset` has come to; at most two.
    fn settle(&mut self) -> Result<(), Corrupt> {
        if self.offset == self.fast_from
            && matches!(
                self.state(),
                RxState::ToFast | RxState::ToFastAndBack | RxState::FrozenToFast
            )
        {
            self.step(RxEvent::ReachedFast)?;
            self.epoch = self.epoch.wrapping_add(1);
        }
        if self.offset == self.carrier_from && self.state() == RxState::ToCarrier {
            let event = if self.armed != 0 {
                RxEvent::ReachedCarrierArmed
            } else {
                RxEvent::ReachedCarrierOpen
            };
            self.step(event)?;
            self.epoch = self.epoch.wrapping_add(1);
        }
        if self.offset >= self.resend_to
            && matches!(self.state(), RxState::Replaying | RxState::Leftover)
        {
            self.step(RxEvent::ReachedResendEnd)?;
        }
        Ok(())
    }

    const fn check_not_behind(&self, at: u64) -> Result<(), Corrupt> {
        if at < self.offset { Err(Corrupt::OffsetBehind) } else { Ok(()) }
    }

    /// Only a receiver that asked for it, and only at its frozen offset, is sent bytes of the fast
    /// path again.
    const fn check_order(latest: Announce, from: u64, pulled_back: bool) -> Result<(), Corrupt> {
        let resends = latest.resend_to > latest.carrier_from;
        if latest.carrier_from < from
            || latest.resend_to < latest.carrier_from
            || (resends && !pulled_back)
        {
            Err(Corrupt::OffsetOrder)
        } else {
            Ok(())
        }
    }

    /// The only writer of `state`.
    fn step(&mut self, event: RxEvent) -> Result<(), Corrupt> {
        // The callers raise an event only in states that know it, so this error means damaged
        // memory.
        self.state = RxState::next(self.state(), event).ok_or(Corrupt::Epoch)? as u32;
        Ok(())
    }
}

impl RxState {
    /// The transition table.
    pub(crate) const fn next(self, event: RxEvent) -> Option<Self> {
        use RxEvent as E;
        use RxState as S;
        Some(match (self, event) {
            (S::Open | S::Armed | S::Disarming, E::Arm) => S::Armed,
            (S::ToFast | S::ToFastAndBack | S::Fast | S::ToCarrier, E::Arm) => self,

            (S::Open | S::Disarming | S::Replaying | S::Leftover, E::Freeze) => self,
            (S::Armed, E::Freeze) => S::Disarming,
            (S::ToFast | S::FrozenToFast, E::Freeze) => S::FrozenToFast,
            (S::Fast | S::Frozen, E::Freeze) => S::Frozen,
            // The sender has already left the fast path: its bytes cannot be pulled back.
            (S::ToFastAndBack | S::ToCarrier, E::Freeze) => self,

            (S::Armed, E::SawNothing) => S::Armed,
            (S::Disarming, E::SawNothing) => S::Open,

            (S::Armed, E::SawPromotion) => S::ToFast,
            (S::Disarming, E::SawPromotion) => S::FrozenToFast,

            (S::Armed | S::ToFast, E::SawEmptyPromotion) => S::Armed,
            (S::Disarming | S::FrozenToFast, E::SawEmptyPromotion) => S::Open,

            (S::Armed | S::Disarming | S::ToFast | S::FrozenToFast, E::SawPromotionAndDemotion) => {
                S::ToFastAndBack
            }

            // A frozen receiver: the demotion crossed its request, or answers it with nothing to
            // send again.
            (S::Fast | S::Frozen, E::SawDemotion) => S::ToCarrier,

            (S::Frozen | S::FrozenToFast, E::SawFailOver) => S::Replaying,
            (S::Replaying | S::Leftover, E::ReachedResendEnd) => S::Open,
            (S::Replaying, E::CarrierEnded) => S::Leftover,

            (S::ToFast, E::ReachedFast) => S::Fast,
            (S::ToFastAndBack, E::ReachedFast) => S::ToCarrier,
            (S::FrozenToFast, E::ReachedFast) => S::Frozen,

            (S::ToCarrier, E::ReachedCarrierArmed) => S::Armed,
            (S::ToCarrier, E::ReachedCarrierOpen) => S::Open,

            (S::Frozen, E::CarrierEnded) => S::Fast,
            _ => return None,
        })
    }
}
