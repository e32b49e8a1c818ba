//! Lives: a connection that both applications have closed in good order leaves its carrier behind,
//! and the next connection between the same two places takes it over.
//!
//! A carrier's *lives* are counted from 1. Both ends share one [`Word`] for it, which either
//! changes by compare-exchange alone: so of two ends that want it at the same moment, one to take
//! the carrier and one to retire it, exactly one has it. What an end is itself it keeps out of the
//! peer's reach, as an [`End`], and only published in the word.
//!
//! ```text
//!          Open(n) ──Close──▶ Closed(n) ──Take (connector)────▶ Open(n+1)
//!             │                 │    └──GiveOut (acceptor)────▶ Open(n+1)
//!             └──End──▶ Over ◀──┴──Retire, End
//! ```
//!
//! **Order, on which everything rests** (each point has a mutation test that shows the model
//! breaking without it):
//! 1. An end closes by the word behind the last byte's tail. A receiver that finds its ring empty,
//!    and then the peer closed, looks at the tail once more before it says that this is the end.
//! 2. Before it closes by the word an end says that it takes nothing more, fences, and looks for
//!    unread bytes: where there are any the connection ends as ever. A sender publishes, fences,
//!    and looks for that: where it is said its bytes do not count, and the carrier serves no more.
//! 3. Only a carrier that both ends have closed is taken, and only after a look at it: what its
//!    peer's death has left behind there cannot be told from this life's own end.
//! 4. Who retires a carrier has changed the word before it closes its descriptor, and who finds a
//!    retired one, or one whose other end is gone, closes its own.
//! 5. An acceptor whose listener is gone closes no connection by the word, and retires what it has
//!    closed so; what waits to be accepted it resets.
//! 6. Who leaves its ring, to go on by the carrier alone, closes no connection by the word any
//!    more, nor does its peer. An end that has closed and hears that its peer leaves ends by the
//!    kernel; who has left takes what lies in the ring where no answer comes any more: its peer has
//!    closed, or is gone.
//!
//! What this module does not do: copy bytes, say that nothing more is taken, wake anybody, or
//! decide *when* to retire. `docs/design/fast-connect.md` has the rest.

use crate::rendezvous::Role;

/// What both ends say of a carrier. 0 in memory that nobody has written: no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// The present life, from 1.
    pub life: u32,
    /// The connector has closed it.
    pub connector_closed: bool,
    /// The acceptor has closed it.
    pub acceptor_closed: bool,
    /// The connector has begun it, and the acceptor's application has not got it yet.
    pub queued: bool,
    /// The carrier serves no more: its own end says the rest.
    pub retired: bool,
    /// The acceptor's, while it has closed: where a connector announces that it takes the carrier.
    pub place: u16,
}

/// No honest peer says that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Word {
    const CONNECTOR: u64 = 1;
    const ACCEPTOR: u64 = 1 << 1;
    const QUEUED: u64 = 1 << 2;
    const RETIRED: u64 = 1 << 3;
    const PLACE: u32 = 8;
    const LIFE: u32 = 32;
    const UNUSED: u64 = 0xf0 | 0xff << 24;

    /// Of a carrier's first life, from when the connection is on its rings.
    pub const FIRST: Self = Self {
        life: 1,
        connector_closed: false,
        acceptor_closed: false,
        queued: false,
        retired: false,
        place: 0,
    };

    /// As one number.
    #[must_use]
    pub const fn bits(self) -> u64 {
        (self.life as u64) << Self::LIFE
            | (self.place as u64) << Self::PLACE
            | if self.connector_closed { Self::CONNECTOR } else { 0 }
            | if self.acceptor_closed { Self::ACCEPTOR } else { 0 }
            | if self.queued { Self::QUEUED } else { 0 }
            | if self.retired { Self::RETIRED } else { 0 }
    }

    /// The opposite. The number is the peer's.
    ///
    /// # Errors
    /// No honest end writes it.
    #[expect(clippy::cast_possible_truncation, reason = "shifted down to as many bits")]
    pub const fn from_bits(bits: u64) -> Result<Self, Broken> {
        let word = Self {
            life: (bits >> Self::LIFE) as u32,
            connector_closed: bits & Self::CONNECTOR != 0,
            acceptor_closed: bits & Self::ACCEPTOR != 0,
            queued: bits & Self::QUEUED != 0,
            retired: bits & Self::RETIRED != 0,
            place: (bits >> Self::PLACE) as u16,
        };
        let both = word.queued && word.acceptor_closed;
        if bits & Self::UNUSED != 0 || word.life == 0 || both { Err(Broken) } else { Ok(word) }
    }

    const fn closed_by(&self, role: Role) -> bool {
        match role {
            Role::Connector => self.connector_closed,
            Role::Acceptor => self.acceptor_closed,
        }
    }
}

/// What an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its application has the connection. (The connector's: from the take on.)
    Open,
    /// Its application has let go of it in good order; the carrier is kept.
    Closed,
    /// The carrier is, or is about to be, closed by the kernel.
    Over,
}

/// What happens to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The application lets go of the connection, in good order, and nothing lies unread.
    Close {
        /// The acceptor's place for takes; of no meaning for a connector.
        place: u16,
    },
    /// Connector: the application connects.
    Take,
    /// Acceptor: the application accepts.
    GiveOut,
    /// A closed carrier is given up: by its age, its number, a listener that has gone.
    Retire,
    /// It ends in any other way: the kernel's close.
    End,
}

/// What an end finds in the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The peer's application has the connection, or will get it.
    PeerOpen,
    /// Of an open end: the peer has closed.
    PeerClosed,
    /// Both have closed: it can be taken.
    Parked,
    /// Acceptor, closed: the connector has begun the next life.
    Taken,
    /// The carrier serves no more.
    Retired,
}

/// Why a step is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// That does not happen to such a carrier, or not now.
    NotNow,
    /// It serves no more: this end is over, too.
    Retired,
    /// The peer has written what no honest one does: over, by a reset.
    Broken,
}

impl From<Broken> for Refused {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// One end of a carrier, out of the peer's reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// Who made the connection.
    pub role: Role,
    /// This end's life.
    pub life: u32,
    /// What it is.
    pub state: State,
}

impl End {
    /// Of a connection that has just come onto its rings: the word is [`Word::FIRST`].
    #[must_use]
    pub const fn first(role: Role) -> Self {
        Self { role, life: 1, state: State::Open }
    }

    /// What the word says to this end.
    ///
    /// # Errors
    /// No honest peer leaves such a word to an end that is in this state.
    pub const fn look(&self, word: Word) -> Result<Seen, Broken> {
        let (mine, theirs) = (word.closed_by(self.role), word.closed_by(self.role.peer()));
        let acceptor = matches!(self.role, Role::Acceptor);
        let same = word.life == self.life;
        match self.state {
            State::Over => Ok(Seen::Retired),
            State::Open if !same || mine || (acceptor && word.queued) => Err(Broken),
            State::Open if theirs => Ok(Seen::PeerClosed),
            State::Open if word.retired => Ok(Seen::Retired),
            State::Open => Ok(Seen::PeerOpen),
            // Whatever has become of it since: it was begun, and the application gets it.
            State::Closed if acceptor && word.queued && follows(word.life, self.life) => {
                Ok(Seen::Taken)
            }
            State::Closed if !same || !mine || (acceptor && word.queued) => Err(Broken),
            State::Closed if word.retired => Ok(Seen::Retired),
            State::Closed if theirs => Ok(Seen::Parked),
            State::Closed => Ok(Seen::PeerOpen),
        }
    }

    /// What becomes of this end, and of the word, if `word` still stands there: the caller
    /// exchanges it for the new one, and begins again with what it finds where that fails.
    ///
    /// # Errors
    /// Nothing happens, or this end is over.
    pub fn step(&self, event: Event, word: Word) -> Result<(Self, Word), Refused> {
        let seen = match self.look(word) {
            Ok(seen) => seen,
            // It is closed, whatever the peer has written.
            Err(Broken) if event == Event::End => Seen::Retired,
            Err(Broken) => return Err(Refused::Broken),
        };
        let acceptor = self.role == Role::Acceptor;
        let over = Self { state: State::Over, ..*self };
        match (self.state, event, seen) {
            (_, Event::End, _) => Ok((over, Word { retired: true, ..word })),
            (State::Over, ..) => Err(Refused::Retired),
            (State::Open, Event::Close { place }, _) => {
                if word.retired || self.life == u32::MAX {
                    return Err(Refused::Retired);
                }
                let closed = Self { state: State::Closed, ..*self };
                Ok((
                    closed,
                    if acceptor {
                        Word { acceptor_closed: true, place, ..word }
                    } else {
                        Word { connector_closed: true, ..word }
                    },
                ))
            }
            (State::Closed, Event::GiveOut, Seen::Taken) => {
                let open = Self { state: State::Open, life: word.life, ..*self };
                Ok((open, Word { queued: false, ..word }))
            }
            (State::Closed, _, Seen::Retired) => Err(Refused::Retired),
            (State::Closed, Event::Take, Seen::Parked) if !acceptor => {
                let life = self.life.checked_add(1).ok_or(Refused::Retired)?;
                let open = Self { state: State::Open, life, ..*self };
                Ok((open, Word { life, queued: true, ..Word::FIRST }))
            }
            (State::Closed, Event::Retire, Seen::Parked | Seen::PeerOpen) => {
                Ok((over, Word { retired: true, ..word }))
            }
            _ => Err(Refused::NotNow),
        }
    }
}

const fn follows(next: u32, life: u32) -> bool {
    match life.checked_add(1) {
        Some(n) => n == next,
        None => false,
    }
}

#[cfg(test)]
mod tests;
