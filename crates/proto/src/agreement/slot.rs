//! A place on a channel, as one end knows it, out of the peer's reach.
//!
//! ```text
//! acceptor    Free ─Offer─▶ Offered ─Accept─▶ Live ─Left─▶ Left ─Back─▶ (Done ─Freed─▶) Free
//!                            └─Refuse, TakeBack─▶ Free
//! connector   Free ─TakeUp─▶ Live ─Left─▶ (Left ─Back─▶) Free
//! ```
//!
//! In brackets: between hosts, where each end has memory of its own, which comes back by itself,
//! and the acceptor gives a slot away again only when the connector has said that its memory is
//! back.

use crate::rendezvous::{Peers, Role};

/// Who has a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody.
    #[default]
    Free,
    /// Acceptor: offered, not answered.
    Offered,
    /// A connection: this end may be in use.
    Live,
    /// This end is gone; its memory is not back.
    Left,
    /// Acceptor, between hosts: the memory is back here, perhaps not at the connector.
    Done,
}

/// What happens to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// Acceptor: it is offered.
    Offer,
    /// Connector: an offer of it is taken up.
    TakeUp,
    /// Acceptor: so the connector says.
    Accept,
    /// Acceptor: the connector does not want it.
    Refuse,
    /// Acceptor: nobody will answer.
    TakeBack,
    /// This end has said its last word.
    Left,
    /// Nobody writes into its memory any more: within a host the peer has said its last word, too.
    Back,
    /// Acceptor: the connector's memory is back.
    Freed,
    /// The link is gone: the connector will not say so.
    LinkGone,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// Nothing.
    None,
    /// Its memory and words serve this connection from here on.
    Open,
    /// Its memory serves others.
    Release,
}

/// No honest peer says that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Who has it.
    pub state: SlotState,
    /// The connector's name for the connection that has it.
    pub token: u64,
    /// The connector's memory is back.
    pub(super) freed: bool,
}

impl Slot {
    /// One that nobody has.
    pub const FREE: Self = Self { state: SlotState::Free, token: 0, freed: false };

    /// It can be given away.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        matches!(self.state, SlotState::Free)
    }

    /// A slot of that connection, which this end is in.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self.state, SlotState::Live)
    }

    /// What an end in that role does when this happens to the slot, for the connection `token`
    /// where the event names one.
    ///
    /// # Errors
    /// The peer says what no honest peer says.
    pub fn step(
        &mut self,
        event: SlotEvent,
        token: u64,
        peers: Peers,
        role: Role,
    ) -> Result<SlotAction, Malformed> {
        use SlotState::{Done, Free, Left, Live, Offered};
        let named = self.token == token;
        let hosts = matches!(peers, Peers::TwoHosts);
        match (self.state, event) {
            (Free, SlotEvent::Offer | SlotEvent::TakeUp) => {
                let offer = event == SlotEvent::Offer;
                *self = Self { state: if offer { Offered } else { Live }, token, freed: false };
                Ok(if offer { SlotAction::None } else { SlotAction::Open })
            }
            (Offered, SlotEvent::Accept) if named => {
                self.state = Live;
                Ok(SlotAction::Open)
            }
            // Said again after the link had broken.
            (Live | Left | Done, SlotEvent::Accept) if named && hosts => Ok(SlotAction::None),
            (Offered, SlotEvent::Refuse) if named => Ok(self.release()),
            (_, SlotEvent::Accept | SlotEvent::Refuse) => Err(Malformed),
            (Offered, SlotEvent::TakeBack) => Ok(self.release()),
            (Live, SlotEvent::Left) if !hosts && role == Role::Connector => Ok(self.release()),
            (Live, SlotEvent::Left) => {
                self.state = Left;
                Ok(SlotAction::None)
            }
            (Left, SlotEvent::Back) if !hosts || role == Role::Connector || self.freed => {
                Ok(self.release())
            }
            (Left, SlotEvent::Back) => {
                self.state = Done;
                Ok(SlotAction::None)
            }
            (Live | Left, SlotEvent::Freed) => {
                self.freed = true;
                Ok(SlotAction::None)
            }
            (Done, SlotEvent::Freed | SlotEvent::LinkGone) => Ok(self.release()),
            _ => Ok(SlotAction::None),
        }
    }

    fn release(&mut self) -> SlotAction {
        *self = Self::FREE;
        SlotAction::Release
    }
}
