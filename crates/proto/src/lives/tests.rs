//! The table of steps, and what no honest peer writes. The interleavings are in `tests/lives`.

use super::*;
use std::string::String;
use std::vec::Vec;

fn words(life: u32) -> Vec<Word> {
    let mut all = Vec::new();
    for bits in 0..16u64 {
        if let Ok(word) = Word::from_bits(u64::from(life) << 32 | bits) {
            all.push(word);
        }
    }
    all
}

/// Relative to the end's own life, `n`.
fn written(word: Word, n: u32) -> String {
    let mut out = match word.life.wrapping_sub(n).cast_signed() {
        0 => String::from("n"),
        by => format!("n{by:+}"),
    };
    for (is, name) in [
        (word.queued, "queued"),
        (word.connector_closed, "C closed"),
        (word.acceptor_closed, "A closed"),
        (word.retired, "retired"),
    ] {
        if is {
            out += ", ";
            out += name;
        }
    }
    out
}

const STATES: [State; 3] = [State::Open, State::Closed, State::Over];

#[test]
fn the_table_is_the_one_that_is_written_down() {
    let mut table =
        String::from("| end | is | event | word | becomes | word |\n|---|---|---|---|---|---|\n");
    for role in [Role::Connector, Role::Acceptor] {
        for state in STATES {
            for event in [Event::Close { place: 0 }, Event::Take, Event::GiveOut, Event::Retire] {
                for word in (6..=9).flat_map(words) {
                    let end = End { role, life: 7, state };
                    let Ok((new, to)) = end.step(event, word) else { continue };
                    let name = format!("{event:?}");
                    table += &format!(
                        "| {} | {state:?} | {} | {} | {:?} | {} |\n",
                        if role == Role::Connector { "C" } else { "A" },
                        name.split(' ').next().unwrap(),
                        written(word, 7),
                        new.state,
                        written(to, 7),
                    );
                }
            }
        }
    }
    let page = include_str!("../../../../docs/design/fast-connect.md");
    assert!(page.contains(&table), "docs/design/fast-connect.md should have:\n{table}");
}

#[test]
fn an_end_ends_whatever_stands_in_the_word() {
    for role in [Role::Connector, Role::Acceptor] {
        for state in STATES {
            for word in (0..=9).flat_map(words) {
                let (new, to) = End { role, life: 7, state }.step(Event::End, word).unwrap();
                assert_eq!(
                    (new.state, new.life, to),
                    (State::Over, 7, Word { retired: true, ..word })
                );
                assert_eq!(new.look(to), Ok(Seen::Retired));
            }
        }
    }
}

#[test]
fn a_word_is_the_number_that_was_stored() {
    for life in [1, 2, u32::MAX] {
        for word in words(life) {
            for place in [0, 1, 255, u16::MAX] {
                let word = Word { place, ..word };
                assert_eq!(Word::from_bits(word.bits()), Ok(word));
            }
        }
    }
    assert_eq!(Word::from_bits(0), Err(Broken), "nobody has written it");
    for bit in (4..8).chain(24..32) {
        assert_eq!(Word::from_bits(Word::FIRST.bits() | 1 << bit), Err(Broken));
    }
    let queued = Word { queued: true, acceptor_closed: true, ..Word::FIRST };
    assert_eq!(Word::from_bits(queued.bits()), Err(Broken));
}

#[test]
fn no_step_leads_out_of_a_word_that_no_honest_peer_writes() {
    for role in [Role::Connector, Role::Acceptor] {
        for state in [State::Open, State::Closed] {
            let end = End { role, life: 7, state };
            for word in (1..=9).flat_map(words).filter(|w| end.look(*w).is_err()) {
                for event in [Event::Close { place: 0 }, Event::Take, Event::GiveOut, Event::Retire]
                {
                    assert_eq!(end.step(event, word), Err(Refused::Broken), "{end:?} {word:?}");
                }
            }
        }
    }
}

#[test]
fn lives_end_before_they_begin_again() {
    for role in [Role::Connector, Role::Acceptor] {
        let end = End { role, life: u32::MAX, state: State::Open };
        let word = Word { life: u32::MAX, ..Word::FIRST };
        assert_eq!(end.step(Event::Close { place: 0 }, word), Err(Refused::Retired));
    }
}

/// Two lives, as each end goes through them.
#[test]
fn one_life_after_another() {
    let (mut c, mut a) = (End::first(Role::Connector), End::first(Role::Acceptor));
    let mut word = Word::FIRST;
    for life in 1..=3 {
        (a, word) = a.step(Event::Close { place: 5 }, word).unwrap();
        assert_eq!(
            (c.look(word), c.step(Event::Take, word)),
            (Ok(Seen::PeerClosed), Err(Refused::NotNow))
        );
        (c, word) = c.step(Event::Close { place: 0 }, word).unwrap();
        assert_eq!(
            (c.look(word), a.look(word), word.place),
            (Ok(Seen::Parked), Ok(Seen::Parked), 5)
        );
        assert_eq!(a.step(Event::Take, word), Err(Refused::NotNow), "the connector's alone");
        (c, word) = c.step(Event::Take, word).unwrap();
        assert_eq!((c.look(word), a.look(word)), (Ok(Seen::PeerOpen), Ok(Seen::Taken)));
        assert_eq!(a.step(Event::Retire, word), Err(Refused::NotNow), "it is the application's");
        (a, word) = a.step(Event::GiveOut, word).unwrap();
        assert_eq!((c.life, a.life), (life + 1, life + 1));
    }
}
