//! What a connection is, and what makes it something else: [`State::next`] is the whole of it.
//!
//! [`Stage`] is the word in the memory that forked children share. Nothing else writes it, and it
//! does so by compare-exchange alone: of two threads, or processes, that want to move a connection
//! from the same state one does. The hot path reads it once and compares.

use crate::process;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What a connection is. Zeroed memory is [`State::Free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// Nobody's: on the list of free memory, or just taken from there.
    Free = 0,
    /// Neither connected nor listening, but in an epoll set or duplicated, which its connection has
    /// to know. (All others are [`crate::fd_table::Entry::Fresh`], and have no `Socket`.)
    Unconnected = 1,
    /// One thread makes something else of it; others wait a moment ([`super::await_change`]).
    Changing = 2,
    /// All data goes through the kernel. Bytes are counted: a switch needs the exact offset.
    Candidate = 3,
    /// Both directions have a slot of a channel; each is on the carrier or on the ring.
    Attached = 4,
    /// Nothing of it is ours, for good.
    Plain = 5,
    /// Its maker closes it as a candidate, and forked children have it: they wait, a few system
    /// calls, for what becomes of it.
    Closing = 6,
    /// Its maker has closed it as a candidate, and forked children have it, who may adopt it.
    Left = 7,
    /// As `Left`, and one has: the memory is its maker's again.
    Adopted = 8,
    /// It has no name any more, and is taken apart. What a child has ended stays so.
    Ended = 9,
    /// The memory is free as soon as nobody is in a call on it.
    Over = 10,
    /// The application has closed it in good order, and its carrier is kept for another connection.
    Parked = 11,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Something happens to an unconnected socket that its connection must know.
    Named,
    /// A thread begins to make something else of it.
    Claimed,
    /// It may be accelerated: it is a new connection, has not been attached after all, or is back
    /// on the carrier until a better path is there.
    Begun,
    /// It was no connection: its connect has failed.
    Dissolved,
    /// It has its slot.
    Attached,
    /// It is the kernel's alone, for good.
    Refused,
    /// Its maker closes it, and children have it.
    Closed,
    /// It is left to those children.
    Left,
    /// One of them has it alone.
    Adopted,
    /// Its last name is gone.
    Ended,
    /// Everything that hung on it is given back.
    Released,
    /// Nobody is in a call on it.
    Freed,
    /// Its last name goes in good order, and its carrier is kept.
    Parked,
    /// The carrier is another connection's, or is closed after all.
    Reopened,
}

impl State {
    /// What becomes of it. `None`: that does not happen to such a one.
    pub(crate) const fn next(self, event: Event) -> Option<State> {
        use State::{
            Adopted, Attached, Candidate, Changing, Closing, Ended, Free, Left, Over, Parked,
            Plain, Unconnected,
        };
        Some(match (self, event) {
            (Free, Event::Named) | (Changing, Event::Dissolved) => Unconnected,
            (Unconnected | Candidate, Event::Claimed) => Changing,
            (Free | Changing | Attached, Event::Begun) => Candidate,
            (Changing, Event::Attached) | (Parked, Event::Reopened) => Attached,
            (Attached, Event::Parked) => Parked,
            (
                Free | Unconnected | Changing | Candidate | Attached | Closing | Left,
                Event::Refused,
            ) => Plain,
            (Candidate, Event::Closed) => Closing,
            (Closing, Event::Left) => Left,
            (Left, Event::Adopted) => Adopted,
            (
                Unconnected | Changing | Candidate | Attached | Plain | Closing | Left | Adopted
                | Parked,
                Event::Ended,
            ) => Ended,
            (Ended, Event::Released) => Over,
            (Over, Event::Freed) => Free,
            _ => return None,
        })
    }

    #[inline(always)]
    const fn of(word: u32) -> State {
        match word {
            0 => State::Free,
            1 => State::Unconnected,
            2 => State::Changing,
            3 => State::Candidate,
            4 => State::Attached,
            6 => State::Closing,
            7 => State::Left,
            8 => State::Adopted,
            9 => State::Ended,
            10 => State::Over,
            11 => State::Parked,
            _ => State::Plain,
        }
    }
}

/// The state of one connection, and who changes it.
#[repr(C)]
pub(crate) struct Stage {
    word: AtomicU32,
    /// The thread that has claimed it. 0: none, or it has just begun.
    changer: AtomicU32,
}

impl Stage {
    /// In one order with all else that is SeqCst. (On x86-64 and ARM64 no other load is cheaper.)
    #[inline(always)]
    pub(crate) fn now(&self) -> State {
        State::of(self.word.load(SeqCst))
    }

    /// For `futex_wait`: the word, and what it holds while it is `state`.
    pub(crate) fn word(&self, state: State) -> (&AtomicU32, u32) {
        (&self.word, state as u32)
    }

    /// The thread that has claimed it, if it has got that far.
    pub(super) fn changer(&self) -> u32 {
        self.changer.load(SeqCst)
    }

    /// `event` happens to a connection that is `from`. False: it is not, or [`State::next`] has
    /// nothing of the kind.
    pub(crate) fn change(&self, from: State, event: Event) -> bool {
        #[cfg(test)]
        crate::testing::comes_to(crate::testing::Moment::change_of(self));
        let Some(to) = from.next(event) else { return false };
        if from == State::Changing {
            self.changer.store(0, SeqCst);
        }
        let won = self.word.compare_exchange(from as u32, to as u32, SeqCst, Relaxed).is_ok();
        if won && to == State::Changing {
            self.changer.store(process::tid(), Relaxed);
        }
        won
    }

    /// `event` happens to it, whatever it is.
    pub(crate) fn happens(&self, event: Event) -> bool {
        loop {
            let now = self.now();
            if now.next(event).is_none() {
                return false;
            }
            if self.change(now, event) {
                return true;
            }
        }
    }

    /// A test begins in the middle of a life.
    #[cfg(test)]
    pub(crate) fn begin_as(&self, state: State) {
        self.word.store(state as u32, SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    const STATES: [State; 12] = [
        State::Free,
        State::Unconnected,
        State::Changing,
        State::Candidate,
        State::Attached,
        State::Plain,
        State::Closing,
        State::Left,
        State::Adopted,
        State::Ended,
        State::Over,
        State::Parked,
    ];
    const EVENTS: [Event; 14] = [
        Event::Named,
        Event::Claimed,
        Event::Begun,
        Event::Dissolved,
        Event::Attached,
        Event::Refused,
        Event::Closed,
        Event::Left,
        Event::Adopted,
        Event::Ended,
        Event::Released,
        Event::Freed,
        Event::Parked,
        Event::Reopened,
    ];

    #[test]
    fn the_table_is_the_one_that_is_written_down() {
        let mut is = String::from("| event | happens to | which becomes |\n|---|---|---|\n");
        for event in EVENTS {
            let from: Vec<_> = STATES
                .into_iter()
                .filter(|s| s.next(event).is_some())
                .map(|s| std::format!("{s:?}"))
                .collect();
            let to = STATES.into_iter().find_map(|s| s.next(event)).unwrap();
            assert!(STATES.into_iter().filter_map(|s| s.next(event)).all(|other| other == to));
            is += &std::format!("| {event:?} | {} | {to:?} |\n", from.join(", "));
        }
        let page = include_str!("../../../../docs/design/socket.md");
        assert!(page.contains(&is), "docs/design/socket.md should have:\n{is}");
    }

    #[test]
    fn a_word_is_the_state_that_was_stored() {
        for state in STATES {
            assert_eq!(State::of(state as u32), state);
        }
    }

    #[test]
    fn every_life_ends_in_free_memory() {
        // From each state that can be reached an `Ended`, `Released`, `Freed` leads to `Free`.
        let mut reached = std::vec![State::Free];
        let mut i = 0;
        while let Some(state) = reached.get(i).copied() {
            for next in EVENTS.into_iter().filter_map(|event| state.next(event)) {
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
            i += 1;
        }
        assert_eq!(reached.len(), STATES.len(), "no state without a way to it");
        for state in reached {
            let mut at = state;
            for event in [Event::Ended, Event::Released, Event::Freed] {
                at = at.next(event).unwrap_or(at);
            }
            assert_eq!(at, State::Free, "from {state:?}");
        }
    }

    #[test]
    fn one_of_two_changes_it() {
        let stage =
            Stage { word: AtomicU32::new(State::Candidate as u32), changer: AtomicU32::new(0) };
        let won = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    won.fetch_add(stage.change(State::Candidate, Event::Claimed).into(), SeqCst)
                });
            }
        });
        assert_eq!((won.load(SeqCst), stage.now()), (1, State::Changing));
        assert_ne!(stage.changer(), 0);
        assert!(stage.happens(Event::Attached));
        assert_eq!((stage.changer(), stage.now()), (0, State::Attached));
        assert!(!stage.happens(Event::Claimed), "it stays what it is");
        assert_eq!(stage.now(), State::Attached);
    }
}
