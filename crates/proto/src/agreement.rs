//! Agreement: what becomes of one connection that could have a faster path, at one of its ends.
//!
//! [`Agreement`] is the life of a connection that waits for one: noted, told of, offered, refused,
//! taken up. [`Slot`] is the life of the place on a channel that it gets. Both are told events and
//! answer what is to be done; who carries that out moves the messages and the memory, asks the
//! kernel, and says what time it is. They serve two processes of one host and of two alike; where
//! these differ, [`Peers`] says so. `docs/design/agreement.md` tells the whole story.

mod slot;

use crate::rendezvous::{Peers, Role, refuse};
pub use slot::{Malformed, Slot, SlotAction, SlotEvent, SlotState};

/// Links of a process, as bits, by the numbers that the caller gives them.
pub type Links = u64;

/// The bit of a link. A process has fewer than 65.
#[must_use]
pub const fn bit(link: usize) -> Links {
    1 << (link & 63)
}

/// Within a host, the connector's library looks for advertisers so long after a connection was
/// noted, and again so long after that... Workers advertise when they first accept; most are there
/// at the first look.
const LOOK_NS: [u64; 5] = [10_000_000, 40_000_000, 150_000_000, 350_000_000, 350_000_000];
const LAST_LOOK: u8 = 4;
/// Of a lost link's connections the successor is looked for after so long.
const SUCCESSOR_NS: u64 = 50_000_000;
/// A connection for which nobody has asked after so long has a peer without the library, as far as
/// can be told. An operator is to hear so within a second; the rest is for the thread that says it.
/// (What a connector within a host is told comes to as much.)
const JUDGED_NS: u64 = 900_000_000;
/// Between hosts, where pairs are made first, an accepted one is waited for so long.
const SILENT_HOST_NS: u64 = 30_000_000_000;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Noted. Connector: links may have been told of it. Acceptor: no offer is on its way.
    Waiting,
    /// Acceptor: an offer is on its way, on that link.
    Offered(usize),
    /// It waits no more: a slot is its own, or there will be none.
    Over,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Connector: a link was told of it.
    Told {
        /// That one.
        link: usize,
        /// The time.
        now: u64,
    },
    /// Its own calls ask for another look.
    Again {
        /// The time.
        now: u64,
    },
    /// Connector: an offer has come. `flaw`: why it cannot be taken up ([`refuse`]), asked only of
    /// one that is wanted ([`Agreement::wants`]).
    Offer {
        /// From there.
        link: usize,
        /// What is wrong with it.
        flaw: Option<u16>,
    },
    /// Connector: that link's peer will make no offer.
    NoOffer(usize),
    /// Acceptor: these links' peers claim the other end.
    Claims(Links),
    /// Acceptor, between hosts: somebody claims it from here on, or nobody does any more. What is
    /// said of it follows soon.
    ClaimsChanged {
        /// The time.
        now: u64,
    },
    /// Acceptor: this link's peer does not show that it has the other end. (Of a connection that
    /// waits: its proofs end before an offer is made, and none begins while that stands.)
    Unproven(usize),
    /// Acceptor: an offer was made there.
    Offered(usize),
    /// Acceptor: it was taken up.
    Accepted(usize),
    /// Acceptor: it was refused.
    Refused {
        /// There.
        link: usize,
        /// See [`refuse`].
        reason: u16,
    },
    /// Two processes claim it ([`Agreement::is_contested`]).
    Contested,
    /// A link is gone, and what was said on it.
    LinkGone {
        /// That one.
        link: usize,
        /// The time.
        now: u64,
    },
    /// It is no candidate any more.
    Closed,
    /// It was due ([`Agreement::due`]).
    Tick {
        /// The time.
        now: u64,
        /// Acceptor: somebody claims it.
        claimed: bool,
        /// Acceptor: a process of the peer's host has a link here.
        known: bool,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Connector: refuse the offer.
    Refuse(u16),
    /// Connector: accept the offer, and withdraw from these.
    TakeUp(Links),
    /// Connector: withdraw from these.
    Withdraw(Links),
    /// Acceptor: ask that link's peer for proof, and make it an offer then.
    Prove(usize),
    /// Acceptor: see who claims it, for [`Event::Claims`].
    SeeClaims,
    /// Acceptor: as that, in a moment, also for who has just refused.
    SeeClaimsSoon,
    /// Acceptor: give the socket the slot.
    HandOver,
    /// Acceptor: the slot has no socket: leave it at once.
    Leave,
    /// Connector: all advertisers are to be looked for and told.
    Seek,
    /// It stays where it is: say so. It may be asked for again.
    Judge(Why),
    /// As that, and for good.
    End(Why),
}

/// Why a connection stays on the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nobody with the library is there.
    NoLibrary,
    /// Those that are there do not claim it.
    NotClaimed,
    /// The peer does not want it.
    Refused,
    /// Who claims it does not have it, as far as can be told.
    NotAuthenticated,
}

/// A connection that waits for an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    peers: Peers,
    role: Role,
    state: State,
    /// Connector: who was told. Acceptor: whose claim was not proven.
    links: Links,
    /// When it is to be looked at; 0: not before its own calls ask for that.
    due: u64,
    /// How often it was looked at. (Acceptor: whether it was.)
    looks: u8,
    /// Acceptor, between hosts: at how many looks in a row somebody had claimed it.
    seen: u8,
}

impl Agreement {
    /// A connection that is noted.
    #[must_use]
    pub const fn new(peers: Peers, role: Role, now: u64) -> Self {
        let [look, ..] = LOOK_NS;
        let after = match (peers, role) {
            (Peers::OneHost, Role::Connector) => look,
            // (Between hosts a connector's place is looked for, not it.)
            (Peers::OneHost, Role::Acceptor) | (Peers::TwoHosts, _) => JUDGED_NS,
        };
        let due = now.saturating_add(after);
        Self { peers, role, state: State::Waiting, links: 0, due, looks: 0, seen: 0 }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// When it is to be looked at; 0: not before something happens.
    #[must_use]
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// It was looked for before, or judged.
    #[must_use]
    pub const fn was_looked_for(&self) -> bool {
        self.looks > 0
    }

    /// No offer is on its way to it, and it is not over.
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// It waits no more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Connector: that link was told of it.
    #[must_use]
    pub const fn is_told(&self, link: usize) -> bool {
        matches!(self.role, Role::Connector) && self.links & bit(link) != 0
    }

    /// Acceptor: the link on which an offer is on its way.
    #[must_use]
    pub const fn offered(&self) -> Option<usize> {
        match self.state {
            State::Offered(link) => Some(link),
            _ => None,
        }
    }

    /// Connector: whether an offer from there is wanted, if there is nothing wrong with it.
    ///
    /// # Errors
    /// Why not ([`refuse`]).
    pub const fn wants(&self, link: usize) -> Result<(), u16> {
        match (self.state, self.is_told(link), self.peers) {
            (State::Waiting, true, _) => Ok(()),
            // A token that this peer was never told is not its business.
            (State::Waiting, false, Peers::OneHost) => Err(refuse::UNKNOWN_TOKEN),
            _ => Err(refuse::WITHDRAWN),
        }
    }

    /// Whether more than one process has a claim to a connection: those that claim it, or have it.
    /// Between hosts none is believed then. (Within a host each has to prove its own.)
    #[must_use]
    pub const fn is_contested(peers: Peers, claims: usize) -> bool {
        matches!(peers, Peers::TwoHosts) && claims > 1
    }

    /// Goes on by what has happened.
    pub fn step(&mut self, event: Event) -> Action {
        if self.state == State::Over {
            return match event {
                Event::Offer { .. } => Action::Refuse(refuse::WITHDRAWN),
                Event::Accepted(_) => Action::Leave,
                _ => Action::None,
            };
        }
        match (event, self.role) {
            (Event::Closed, Role::Connector) => self.over(Action::Withdraw(self.links)),
            (Event::Closed, Role::Acceptor) => self.over(Action::None),
            (Event::Contested, _) => self.over(Action::End(Why::NotAuthenticated)),
            (Event::LinkGone { link, now }, _) => self.link_gone(link, now),
            (Event::Tick { now, .. }, _) if self.due == 0 || now < self.due => Action::None,
            (_, Role::Connector) => self.step_connector(event),
            (_, Role::Acceptor) => self.step_acceptor(event),
        }
    }

    fn over(&mut self, action: Action) -> Action {
        (self.state, self.due) = (State::Over, 0);
        action
    }

    fn link_gone(&mut self, link: usize, now: u64) -> Action {
        let was_told = self.is_told(link);
        self.links &= !bit(link);
        if self.state == State::Offered(link) {
            // Nobody will answer.
            self.state = State::Waiting;
            self.judge_soon(now);
        }
        if was_told && self.links == 0 && self.peers == Peers::OneHost {
            self.look_once(now.saturating_add(SUCCESSOR_NS));
            return Action::Seek;
        }
        Action::None
    }

    /// Acceptor, between hosts: what is said of it follows in time, as of a new one.
    fn judge_soon(&mut self, now: u64) {
        if self.peers == Peers::TwoHosts {
            self.due = self.due.min(now.saturating_add(JUDGED_NS));
            (self.looks, self.seen) = (0, 0);
        }
    }

    /// It is looked for once, at that moment, if it is not looked for anyway.
    fn look_once(&mut self, at: u64) {
        if self.due == 0 {
            (self.due, self.looks) = (at, LAST_LOOK);
        }
    }

    fn step_connector(&mut self, event: Event) -> Action {
        match event {
            Event::Told { link, now } => {
                self.links |= bit(link);
                if self.peers == Peers::TwoHosts && self.due == 0 {
                    // Somebody is there after all: what is said of it then comes in time, too.
                    self.due = now.saturating_add(JUDGED_NS);
                }
                Action::None
            }
            // Whoever was told of it, and could not serve it then, is told again.
            Event::Again { now } if self.peers == Peers::OneHost => {
                let [look, ..] = LOOK_NS;
                self.links = 0;
                self.look_once(now.saturating_add(look));
                Action::Seek
            }
            Event::Offer { link, flaw } => match (self.wants(link), flaw) {
                (Err(reason), _) => Action::Refuse(reason),
                // Its peer takes the other's word for it, and so would every other one.
                (Ok(()), Some(reason @ refuse::NO_MEMORY)) if self.peers == Peers::TwoHosts => {
                    self.over(Action::Refuse(reason))
                }
                (Ok(()), Some(reason)) => Action::Refuse(reason),
                (Ok(()), None) => self.over(Action::TakeUp(self.links & !bit(link))),
            },
            Event::NoOffer(link) if self.is_told(link) && self.peers == Peers::TwoHosts => {
                self.over(Action::End(Why::Refused))
            }
            Event::Tick { now, .. } => {
                self.looks = self.looks.saturating_add(1);
                self.due = match (self.peers, LOOK_NS.get(usize::from(self.looks))) {
                    (Peers::OneHost, Some(pause)) => now.saturating_add(*pause),
                    _ => 0,
                };
                match (self.due, self.links) {
                    (0, 0) => Action::Judge(Why::NoLibrary),
                    (0, _) => Action::Judge(Why::NotClaimed),
                    _ => Action::Seek,
                }
            }
            _ => Action::None,
        }
    }

    fn step_acceptor(&mut self, event: Event) -> Action {
        match (event, self.state) {
            (Event::Claims(claims), State::Waiting) => {
                // Those that could not prove theirs come last.
                let first = claims & !self.links;
                let from = if first == 0 { claims } else { first };
                if from == 0 {
                    return Action::None;
                }
                usize::try_from(from.trailing_zeros()).map_or(Action::None, Action::Prove)
            }
            (Event::ClaimsChanged { now }, State::Waiting) => {
                self.judge_soon(now);
                Action::None
            }
            (Event::Unproven(link), State::Waiting) if self.peers == Peers::OneHost => {
                self.links |= bit(link);
                Action::SeeClaims
            }
            // For good: a claim is a guess at most once.
            (Event::Unproven(_), State::Waiting) => self.over(Action::End(Why::NotAuthenticated)),
            (Event::Offered(link), State::Waiting) => {
                self.state = State::Offered(link);
                Action::None
            }
            (Event::Accepted(link), State::Offered(at)) if link == at => {
                self.over(Action::HandOver)
            }
            (Event::Accepted(_), _) => Action::Leave,
            (Event::Refused { link, reason }, State::Offered(at)) if link == at => {
                self.state = State::Waiting;
                match (self.peers, reason) {
                    (Peers::TwoHosts, refuse::NO_MEMORY) => self.over(Action::End(Why::Refused)),
                    (Peers::TwoHosts, refuse::BUSY | refuse::LESS_MEMORY) => Action::SeeClaimsSoon,
                    _ => Action::SeeClaims,
                }
            }
            (Event::Tick { now, claimed, known }, _) => {
                let is_seen_to = claimed || self.offered().is_some();
                let first = self.looks == 0;
                self.looks = u8::from(self.peers == Peers::OneHost || !is_seen_to);
                let pause = (JUDGED_NS << self.seen.min(6)).min(SILENT_HOST_NS);
                self.seen = if is_seen_to { self.seen.saturating_add(1) } else { 0 };
                match self.peers {
                    // It goes on waiting; its own calls see to it.
                    Peers::OneHost => self.due = 0,
                    // What sees to it may go, and nobody says so; or stay for as long as it lives.
                    Peers::TwoHosts if is_seen_to => self.due = now.saturating_add(pause),
                    // (Of when it was due, however late it is looked at.)
                    Peers::TwoHosts if first => {
                        self.due = self.due.saturating_add(SILENT_HOST_NS - JUDGED_NS);
                    }
                    // Its process may be one of those that are known, and has not used it enough.
                    Peers::TwoHosts if known => self.due = now.saturating_add(SILENT_HOST_NS),
                    Peers::TwoHosts => return self.over(Action::End(Why::NoLibrary)),
                }
                if is_seen_to { Action::None } else { Action::Judge(Why::NoLibrary) }
            }
            _ => Action::None,
        }
    }
}

#[cfg(test)]
mod tests;
