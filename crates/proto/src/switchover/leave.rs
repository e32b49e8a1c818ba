//! The way back to the carrier, decided in one place for every path.
//!
//! A connection leaves its fast path in one way, whatever the cause. Its receiver freezes: how far
//! the application has come stands still. Its sender announces where the stream goes on on the
//! carrier, and sends again what the peer's receiver has not taken. When both halves stand on the
//! carrier, and the peer knows that, the connection is the kernel's. Shared memory is the case in
//! which the peer has seen every word at once, and in which the ring can still be read afterwards.
//!
//! [`TxView::next`] and [`RxView::next`] say what is due for one half, [`Leave::step`] for the
//! connection. They look at nothing and do nothing: the caller fills in what it sees, carries the
//! action out, and asks again. Tables: `docs/design/leave.md`.

use super::{Ack, Delivery, Refused, RxState, Tx, TxState};

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It will answer.
    Lives,
    /// It stands on the carrier for good, has said so in its last words, and answers no more.
    Left,
    /// Its process is gone, with all that it had.
    Gone,
}

/// How much of what comes again over the carrier is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coming {
    /// All: what was readable is readable.
    All,
    /// Not yet all.
    Waiting,
    /// Not all, and no more is waited for.
    Short,
}

/// What a half waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Await {
    /// Sender: that the peer's receiver says how far it has come.
    Freeze,
    /// Either: that the peer has the last word.
    Echo,
    /// Sender: room on the carrier.
    Room,
    /// Receiver: the peer's sender says where the stream goes on. (It may have to be asked.)
    Answer,
    /// Receiver: bytes that come again.
    Bytes,
    /// Receiver: the sender has left the ring by itself, and the application reads it to its end.
    Drain,
}

/// What a sender has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxDue {
    /// [`Tx::demote`], and publish: what the ring holds is read there.
    Demote,
    /// [`Tx::pull_back`], and publish.
    PullBack,
    /// Put what there is room for of [`Tx::resend`] on the carrier.
    SendAgain,
    /// Nothing now.
    Await(Await),
    /// Nothing any more.
    Done,
    /// What the peer does not have cannot be sent.
    Broken,
}

/// What a receiver has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RxDue {
    /// [`super::Rx::freeze`], and what its documentation says.
    Freeze,
    /// Nothing now.
    Await(Await),
    /// It stands on the carrier, which has not all of what comes again.
    Short,
    /// Nothing any more.
    Done,
    /// Bytes are missing and will not come.
    Broken,
}

/// What is to be done with the connection. Then look again, but for the last five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// See [`RxDue::Freeze`].
    Freeze,
    /// The sender demotes, pulls back, or sends again.
    Sender(TxDue),
    /// Wait until something changes of what is named.
    Wait(TxDue, RxDue),
    /// Both directions are the carrier's.
    Become,
    /// They will be; until then the ring serves what it holds, and later calls complete it.
    Later,
    /// Nothing is sent any more, and the close resets; what has come is read.
    BreakSending,
    /// The connection ends with an error: bytes would be missing.
    BreakOff,
}

/// A sender that is to leave, or whose peer has frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxView {
    /// The fast path.
    pub delivery: Delivery,
    /// Where the sender is.
    pub state: TxState,
    /// [`Tx::carrier_is_open`].
    pub open: bool,
    /// The peer's receiver has frozen, and its bytes can be sent again.
    pub asked: bool,
    /// The carrier takes bytes.
    pub room: bool,
    /// The other end.
    pub peer: Peer,
    /// This end leaves. Otherwise the sender only serves a peer that does.
    pub leaves: bool,
}

impl TxView {
    /// What [`Tx`] says, where the peer has our announcements up to `seen_epoch`. Nobody asks,
    /// there is room, the peer lives, and this end leaves.
    #[must_use]
    pub const fn of(tx: &Tx, delivery: Delivery, seen_epoch: u32) -> Self {
        Self {
            delivery,
            state: tx.state(),
            open: tx.carrier_is_open(seen_epoch),
            asked: false,
            room: true,
            peer: Peer::Lives,
            leaves: true,
        }
    }

    /// And what the peer's word says.
    ///
    /// # Errors
    /// It cannot be.
    pub fn asked_by(self, ack: Ack, tx: &Tx) -> Result<Self, Refused> {
        let mut then = *tx;
        let on_ring = matches!(self.state, TxState::Promoting | TxState::Fast);
        Ok(Self { asked: on_ring && then.pull_back(ack)?.is_some(), ..self })
    }

    /// What is due.
    #[must_use]
    pub const fn next(self) -> TxDue {
        let gone = matches!(self.peer, Peer::Gone);
        match self.state {
            // Without a peer nobody needs to know.
            TxState::Carrier | TxState::Shut if self.open || gone => TxDue::Done,
            TxState::Resending if self.open && self.room => TxDue::SendAgain,
            TxState::Resending if self.open => TxDue::Await(Await::Room),
            TxState::Carrier | TxState::Shut | TxState::Resending if !gone => {
                TxDue::Await(Await::Echo)
            }
            _ if gone => TxDue::Broken,
            _ if self.asked => TxDue::PullBack,
            _ if !self.leaves => TxDue::Done,
            _ if matches!(self.delivery, Delivery::Reliable) => TxDue::Demote,
            // It was closed without a word about what it had read.
            _ if matches!(self.peer, Peer::Left) => TxDue::Broken,
            _ => TxDue::Await(Await::Freeze),
        }
    }
}

/// A receiver that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RxView {
    /// Where the receiver is.
    pub state: RxState,
    /// What the carrier has of what comes again.
    pub coming: Coming,
    /// Bytes that the ring alone has, or nobody knows.
    pub unread: bool,
    /// The other end.
    pub peer: Peer,
}

impl RxView {
    /// What is due, for one that was told to freeze, or not yet.
    #[must_use]
    pub const fn next(self, frozen: bool) -> RxDue {
        use RxState as S;
        match (self.peer, self.state) {
            // On the carrier, as far as it knows. Had the sender been elsewhere, its end would have
            // reset the carrier.
            (Peer::Gone, S::Open | S::Armed | S::Disarming | S::Replaying) => RxDue::Done,
            (Peer::Gone, _) => RxDue::Broken,
            _ if !frozen => RxDue::Freeze,
            (_, S::Open | S::Replaying) => match self.coming {
                Coming::All => RxDue::Done,
                Coming::Waiting => RxDue::Await(Await::Bytes),
                Coming::Short => RxDue::Short,
            },
            // It left without a word about where its stream goes on.
            (Peer::Left, S::Frozen | S::FrozenToFast) => RxDue::Broken,
            (_, S::Frozen | S::FrozenToFast) => RxDue::Await(Await::Answer),
            (_, S::Disarming) => RxDue::Await(Await::Echo),
            _ => RxDue::Await(Await::Drain),
        }
    }
}

/// A connection on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leave {
    /// Whoever has the socket next cannot read a ring: where that would cost bytes, the connection
    /// is broken off.
    strict: bool,
    /// The receiver was told to freeze.
    frozen: bool,
}

impl Leave {
    /// One that has not begun.
    #[must_use]
    pub const fn new(strict: bool) -> Self {
        Self { strict, frozen: false }
    }

    /// What is due for the connection. `late`: its time is up.
    pub fn step(&mut self, tx: TxView, rx: RxView, late: bool) -> Action {
        let (sending, receiving) = (tx.next(), rx.next(self.frozen));
        match (sending, receiving) {
            (TxDue::Broken, RxDue::Done) if tx.peer == Peer::Gone => Action::BreakSending,
            (TxDue::Broken, _) | (_, RxDue::Broken) => Action::BreakOff,
            (_, RxDue::Freeze) => {
                self.frozen = true;
                Action::Freeze
            }
            (TxDue::Demote | TxDue::PullBack | TxDue::SendAgain, _) => Action::Sender(sending),
            (TxDue::Done, RxDue::Done) => Action::Become,
            // What has not come is in a ring in shared memory, too, should the sender die.
            (TxDue::Done, RxDue::Short) if self.strict || tx.delivery == Delivery::Lossy => {
                Action::Become
            }
            (TxDue::Done, RxDue::Short) => Action::Later,
            // (Whoever waits for bytes has a limit of his own.)
            (TxDue::Done, RxDue::Await(Await::Bytes)) => Action::Wait(sending, receiving),
            // The calls that drain it would wait for this one.
            (_, RxDue::Await(Await::Drain)) if tx.delivery == Delivery::Reliable => {
                self.give_up(sending != TxDue::Done || rx.unread)
            }
            _ if late => self.give_up(sending != TxDue::Done || rx.unread),
            _ => Action::Wait(sending, receiving),
        }
    }

    /// The time is up. `missing`: bytes would be, for somebody who knows no ring.
    #[must_use]
    pub const fn give_up(self, missing: bool) -> Action {
        if self.strict && missing { Action::BreakOff } else { Action::Later }
    }
}

/// Looks at what comes again over the carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The time of the first look that found it wanting; 0: none has.
    began: u64,
    /// The most that was there, and since when.
    most: u64,
    grew: u64,
}

impl Arrival {
    /// At the time `now`, `there` bytes of `due` are there. They are waited for as long as
    /// `patience`, but once some are there no longer than `stall` for more: the kernel may have no
    /// room.
    pub fn look(
        &mut self,
        now: u64,
        (there, due): (u64, u64),
        patience: u64,
        stall: u64,
    ) -> Coming {
        if there >= due {
            return Coming::All;
        }
        if self.began == 0 {
            (self.began, self.grew) = (now, now);
        }
        if there > self.most {
            (self.most, self.grew) = (there, now);
        }
        let stalled = self.most > 0 && now.saturating_sub(self.grew) > stall;
        if stalled || now.saturating_sub(self.began) >= patience {
            Coming::Short
        } else {
            Coming::Waiting
        }
    }
}

#[cfg(test)]
mod tests;
