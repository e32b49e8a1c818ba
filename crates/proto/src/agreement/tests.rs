//! The transition tables, and what the clock does. The interleavings are in `tests/agreement`.

use super::*;
use std::string::String;
use std::vec::Vec;

const NOW: u64 = 100_000_000_000;
const PEERS: [Peers; 2] = [Peers::OneHost, Peers::TwoHosts];
const ROLES: [Role; 2] = [Role::Connector, Role::Acceptor];

fn of(peers: Peers, role: Role, state: State, links: Links) -> Agreement {
    Agreement { state, links, ..Agreement::new(peers, role, 0) }
}

/// Each state, and what is known in it of links 1 and 2.
fn states(role: Role) -> Vec<(State, Links)> {
    match role {
        Role::Connector => vec![
            (State::Waiting, 0),
            (State::Waiting, bit(1)),
            (State::Waiting, bit(1) | bit(2)),
            (State::Over, 0),
        ],
        Role::Acceptor => vec![
            (State::Waiting, 0),
            (State::Waiting, bit(1)),
            (State::Offered(1), 0),
            (State::Over, 0),
        ],
    }
}

fn events(role: Role) -> Vec<Event> {
    let flaws = [refuse::BAD_MEMORY, refuse::BUSY, refuse::NO_MEMORY, refuse::LESS_MEMORY];
    let tick = |claimed, known| Event::Tick { now: NOW, claimed, known };
    let mut all = match role {
        Role::Connector => {
            let mut all = vec![
                Event::Told { link: 1, now: NOW },
                Event::Again { now: NOW },
                Event::NoOffer(1),
            ];
            all.push(Event::Offer { link: 1, flaw: None });
            all.extend(flaws.map(|flaw| Event::Offer { link: 1, flaw: Some(flaw) }));
            all
        }
        Role::Acceptor => {
            let mut all =
                vec![Event::Claims(0), Event::Claims(bit(1)), Event::Claims(bit(1) | bit(2))];
            all.extend([Event::ClaimsChanged { now: NOW }, Event::Unproven(1), Event::Offered(1)]);
            all.extend([Event::Accepted(1), Event::Accepted(2)]);
            for reason in [refuse::WITHDRAWN, refuse::BUSY, refuse::NO_MEMORY, refuse::LESS_MEMORY]
            {
                all.push(Event::Refused { link: 1, reason });
            }
            all.extend([Event::Contested, tick(true, false), tick(false, true)]);
            all
        }
    };
    all.extend([tick(false, false), Event::LinkGone { link: 1, now: NOW }, Event::Closed]);
    all
}

#[test]
fn tables_are_as_reviewed() {
    let mut text = String::new();
    for (peers, role) in PEERS.into_iter().flat_map(|p| ROLES.map(|r| (p, r))) {
        text += &format!("{peers:?}, {role:?}\n");
        for (state, links) in states(role) {
            text += &format!("  {state:?}, links {links:b}\n");
            for event in events(role) {
                let before = of(peers, role, state, links);
                let mut after = before;
                let action = after.step(event);
                if action == Action::None && after == before {
                    continue;
                }
                let due = if after.due == 0 { "never".into() } else { ms(after.due) };
                text += &format!(
                    "    {event:?}: {:?}, links {:b}, due {due}; {action:?}\n",
                    after.state, after.links
                );
            }
        }
    }
    for (peers, role) in PEERS.into_iter().flat_map(|p| ROLES.map(|r| (p, r))) {
        text += &format!("slots: {peers:?}, {role:?}\n");
        for state in SLOT_STATES {
            let slot = Slot { state, token: 5, ..Slot::FREE };
            let slot = if state == SlotState::Free { Slot::FREE } else { slot };
            for (event, token) in slot_events(role) {
                let mut after = slot;
                let done = after.step(event, token, peers, role);
                if done != Ok(SlotAction::None) || after != slot {
                    let freed = if after.freed { " and freed" } else { "" };
                    let done = done.map_or("Malformed".into(), |done| format!("{done:?}"));
                    text += &format!(
                        "  {state:?}, {event:?}({token}): {:?}{freed}; {done}\n",
                        after.state
                    );
                }
            }
        }
    }
    let expected = include_str!("snapshots/tables.txt");
    assert!(text == expected, "snapshots/tables.txt should be:\n{text}");
}

const SLOT_STATES: [SlotState; 5] =
    [SlotState::Free, SlotState::Offered, SlotState::Live, SlotState::Left, SlotState::Done];

/// With the tokens that the peer names: the slot's is 5.
fn slot_events(role: Role) -> Vec<(SlotEvent, u64)> {
    let mut all = match role {
        Role::Connector => vec![(SlotEvent::TakeUp, 5)],
        Role::Acceptor => vec![
            (SlotEvent::Offer, 5),
            (SlotEvent::Accept, 5),
            (SlotEvent::Accept, 6),
            (SlotEvent::Refuse, 5),
            (SlotEvent::Refuse, 6),
            (SlotEvent::TakeBack, 5),
            (SlotEvent::Freed, 5),
            (SlotEvent::LinkGone, 5),
        ],
    };
    all.extend([(SlotEvent::Left, 5), (SlotEvent::Back, 5)]);
    all
}

fn ms(ns: u64) -> String {
    format!("{} ms", ns / 1_000_000)
}

/// Ticks until nothing is due; when, and what was done.
fn ticks(mut a: Agreement, claimed: bool, known: bool) -> Vec<(String, Action)> {
    let mut all = Vec::new();
    while a.due() != 0 && all.len() < 8 {
        let now = a.due();
        assert_eq!(a.step(Event::Tick { now: now - 1, claimed, known }), Action::None);
        all.push((ms(now), a.step(Event::Tick { now, claimed, known })));
    }
    all
}

#[test]
fn who_waits_is_looked_for_and_judged_in_time() {
    let at = |ms: u64| format!("{ms} ms");
    let mut a = Agreement::new(Peers::OneHost, Role::Connector, 0);
    assert!(!a.was_looked_for());
    a.step(Event::Tick { now: a.due(), claimed: false, known: false });
    assert!(a.was_looked_for());
    a = Agreement::new(Peers::OneHost, Role::Connector, 0);
    let looks = |last| {
        let mut all: Vec<_> =
            [10, 50, 200, 550].into_iter().map(|ms| (at(ms), Action::Seek)).collect();
        all.push((at(900), Action::Judge(last)));
        all
    };
    assert_eq!(ticks(a, false, false), looks(Why::NoLibrary));
    a.step(Event::Told { link: 3, now: 0 });
    assert_eq!(ticks(a, false, false), looks(Why::NotClaimed));
    // One that rests is looked for once more when its calls ask for it.
    while a.due() != 0 {
        a.step(Event::Tick { now: a.due(), claimed: false, known: false });
    }
    assert_eq!(a.step(Event::Again { now: NOW }), Action::Seek);
    assert_eq!((a.due(), a.is_told(3)), (NOW + LOOK_NS[0], false));
    assert_eq!(ticks(a, false, false).len(), 1);

    let silent = |peers| Agreement::new(peers, Role::Acceptor, 0);
    let judged = Action::Judge(Why::NoLibrary);
    assert_eq!(ticks(silent(Peers::OneHost), false, false), [(at(900), judged)]);
    let ended = Action::End(Why::NoLibrary);
    assert_eq!(
        ticks(silent(Peers::TwoHosts), false, false),
        [(at(900), judged), (at(30_000), ended)]
    );
    let known = ticks(silent(Peers::TwoHosts), false, true);
    let goes_on = [(at(30_000), judged), (at(60_000), judged)];
    assert_eq!((&known[..1], &known[1..3]), (&[(at(900), judged)][..], &goes_on[..]));
    let claimed = ticks(silent(Peers::TwoHosts), true, true);
    // (More and more rarely: a claim may wait for as long as the connection lives.)
    let seen_to = [900, 1800, 3600, 7200, 14_400, 28_800, 57_600, 87_600];
    assert_eq!(claimed[..8], seen_to.map(|ms| (at(ms), Action::None)));
    // Another claim is looked at as soon as the first one was.
    let mut a = silent(Peers::TwoHosts);
    while a.due() < 30_000_000_000 {
        a.step(Event::Tick { now: a.due(), claimed: true, known: true });
    }
    let now = a.due() - 20_000_000_000;
    a.step(Event::ClaimsChanged { now });
    let first = ticks(a, true, true)[..2].iter().map(|(at, _)| at.clone()).collect::<Vec<_>>();
    assert_eq!(first, [900, 1800].map(|ms| at(now / 1_000_000 + ms)));
    // And one that goes then is told of as soon.
    let mut a = silent(Peers::TwoHosts);
    while a.due() < 30_000_000_000 {
        a.step(Event::Tick { now: a.due(), claimed: true, known: true });
    }
    let now = a.due() - 20_000_000_000;
    let mut offered = a;
    a.step(Event::ClaimsChanged { now });
    offered.step(Event::Offered(1));
    offered.step(Event::LinkGone { link: 1, now });
    for a in [a, offered] {
        assert_eq!(ticks(a, false, true)[0], (at(now / 1_000_000 + 900), judged));
    }
    // A claim that goes: what is said of it comes in time again, and it is waited for as at first.
    for is_known in [false, true] {
        let mut a = silent(Peers::TwoHosts);
        a.step(Event::Tick { now: a.due(), claimed: false, known: is_known });
        a.step(Event::ClaimsChanged { now: 5_000_000_000 });
        let later = if is_known { judged } else { ended };
        let gone = ticks(a, false, is_known);
        assert_eq!(gone[..2], [(at(5_900), judged), (at(35_000), later)]);
        a.step(Event::Offered(1));
        a.step(Event::Tick { now: a.due(), claimed: false, known: is_known });
        a.step(Event::LinkGone { link: 1, now: 6_000_000_000 });
        assert_eq!(ticks(a, false, is_known)[0], (at(6_800), judged));
    }
    let mut a = silent(Peers::TwoHosts);
    (0..20).for_each(|_| {
        a.step(Event::Tick { now: a.due(), claimed: true, known: true });
    });
    let last = a.due();
    a.step(Event::Tick { now: last, claimed: false, known: true });
    assert!(a.was_looked_for());
    a.step(Event::ClaimsChanged { now: last });
    a.step(Event::Tick { now: a.due(), claimed: true, known: true });
    assert_eq!(a.due() - last, 2 * JUDGED_NS, "another one is seen to in time");
    // Between hosts a connector's place is looked for, and what is said of it comes in time.
    let mut a = Agreement::new(Peers::TwoHosts, Role::Connector, 0);
    assert_eq!(ticks(a, false, false), [(at(900), judged)]);
    a.step(Event::Tick { now: a.due(), claimed: false, known: false });
    a.step(Event::Told { link: 3, now: NOW });
    let not_claimed = Action::Judge(Why::NotClaimed);
    assert_eq!(ticks(a, false, false), [(ms(NOW + JUDGED_NS), not_claimed)]);
}

#[test]
fn claims_are_contested_between_hosts_alone() {
    for claims in 0..5 {
        assert!(!Agreement::is_contested(Peers::OneHost, claims));
        assert_eq!(Agreement::is_contested(Peers::TwoHosts, claims), claims > 1);
    }
}

#[test]
fn who_could_not_prove_its_claim_comes_last() {
    let mut a = Agreement::new(Peers::OneHost, Role::Acceptor, 0);
    assert_eq!(a.step(Event::Claims(0b110)), Action::Prove(1));
    assert_eq!(a.step(Event::Unproven(1)), Action::SeeClaims);
    assert_eq!(a.step(Event::Claims(0b110)), Action::Prove(2));
    assert_eq!(a.step(Event::Unproven(2)), Action::SeeClaims);
    assert_eq!(a.step(Event::Claims(0b110)), Action::Prove(1));
    a.step(Event::LinkGone { link: 2, now: 0 });
    assert_eq!(a.step(Event::Claims(0b110)), Action::Prove(2));
}
