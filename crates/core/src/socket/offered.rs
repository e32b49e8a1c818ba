//! Whether a candidate has an offer: [`OfferState::next`] is the whole of it.
//!
//! Whatever an offer says stands in `Socket::offer`, and is complete before it is *made*. Between
//! hosts it is *taken* by one of two: who attaches the connection, or who gives the slot back.
//! Within the host only the lock of the service decides that, and it stays *made*.

use crate::path::PathId;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What an agent has said of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferState {
    /// Nothing yet.
    None,
    /// Both ends have agreed.
    Made,
    /// Somebody has taken the offer up, or takes it back.
    Taken,
    /// There will be none on that path; the reason is in `Socket::verdict`.
    Never(PathId),
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An agent offers.
    Made,
    /// See [`OfferState::Taken`].
    Taken,
    /// The agent of that path gives the candidate up.
    Refused(PathId),
    /// The candidate goes on to another path than that.
    Passed(PathId),
}

impl OfferState {
    /// What becomes of it. `None`: that does not happen to such a one.
    pub(crate) fn next(self, event: Event) -> Option<OfferState> {
        Some(match (self, event) {
            (OfferState::None, Event::Made) => OfferState::Made,
            (OfferState::Made, Event::Taken) => OfferState::Taken,
            (OfferState::None, Event::Refused(path)) => OfferState::Never(path),
            (OfferState::Never(refused), Event::Passed(path)) if refused == path => {
                OfferState::None
            }
            _ => return None,
        })
    }

    const fn word(self) -> u32 {
        match self {
            OfferState::None => 0,
            OfferState::Made => 1,
            OfferState::Taken => 2,
            OfferState::Never(path) => 3 | (path as u32) << 8,
        }
    }

    fn of(word: u32) -> OfferState {
        let path = |path: &PathId| OfferState::Never(*path).word() == word;
        match word {
            0 => OfferState::None,
            1 => OfferState::Made,
            2 => OfferState::Taken,
            _ => OfferState::Never(PathId::ALL.iter().copied().find(path).unwrap_or(PathId::Tcp)),
        }
    }
}

/// The offer of one connection. In zeroed memory there is none.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Offered(AtomicU32);

impl Offered {
    pub(crate) fn now(&self) -> OfferState {
        OfferState::of(self.0.load(SeqCst))
    }

    /// An agent has said nothing of it.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0.load(SeqCst) == 0
    }

    #[inline]
    pub(crate) fn is_made(&self) -> bool {
        self.0.load(SeqCst) == OfferState::Made.word()
    }

    /// Both ends have agreed, whatever became of that.
    #[inline]
    pub(crate) fn is_agreed(&self) -> bool {
        matches!(self.now(), OfferState::Made | OfferState::Taken)
    }

    /// False: that does not happen to it, or not any more.
    pub(crate) fn happens(&self, event: Event) -> bool {
        let now = self.now();
        now.next(event).is_some_and(|next| {
            self.0.compare_exchange(now.word(), next.word(), SeqCst, Relaxed).is_ok()
        })
    }

    /// Within the host, in the service thread, whose lock decides: an offer is made, also where a
    /// refusal of the path before still stands.
    pub(crate) fn make_here(&self) {
        self.0.store(OfferState::Made.word(), SeqCst);
    }

    /// The connection is a candidate as at first: there is none, whatever was.
    pub(crate) fn begin(&self) {
        self.0.store(0, SeqCst);
    }
}

#[cfg(test)]
impl Offered {
    pub(crate) fn word(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_happens_to_one_kind_of_offer() {
        let never = PathId::ALL.iter().copied().map(OfferState::Never);
        let events = [Event::Made, Event::Taken]
            .into_iter()
            .chain(PathId::ALL.iter().copied().flat_map(|p| [Event::Refused(p), Event::Passed(p)]));
        for event in events {
            for now in [OfferState::None, OfferState::Made, OfferState::Taken]
                .into_iter()
                .chain(never.clone())
            {
                assert_eq!(OfferState::of(now.word()), now);
                let offered = Offered(AtomicU32::new(now.word()));
                let expected = match event {
                    Event::Made if now == OfferState::None => Some(OfferState::Made),
                    Event::Taken if now == OfferState::Made => Some(OfferState::Taken),
                    Event::Refused(path) if now == OfferState::None => {
                        Some(OfferState::Never(path))
                    }
                    Event::Passed(path) if now == OfferState::Never(path) => Some(OfferState::None),
                    _ => None,
                };
                assert_eq!(offered.happens(event), expected.is_some(), "{now:?}, {event:?}");
                assert_eq!(offered.now(), expected.unwrap_or(now));
            }
        }
    }
}
