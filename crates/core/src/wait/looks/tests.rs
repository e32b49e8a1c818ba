use super::*;
use crate::wait::ALONE;
use netacc_control::config::Config;

const US: u64 = 1_000;

fn ticks(ns: u64) -> u64 {
    sys::ticks_of_ns(ns as u32)
}

fn fresh() -> Habit {
    ALONE.set(true);
    Habit::new()
}

/// The same, where waits may look.
fn allowed() -> Habit {
    config::from_here_on(Config { poll_tcp_us: None, ..config::get().clone() });
    fresh()
}

/// Sleeps of so long each, with so much work between them.
fn sleeps(habit: &Habit, count: u32, slept_ns: u64, worked_ns: u64) {
    for _ in 0..count {
        let at = habit.ended.load(Relaxed).max(1_000_000_000) + ticks(worked_ns);
        habit.learn(at, at + ticks(slept_ns), true, Limit::CONFIGURED);
    }
}

/// Calls made by a wait of which the `finds`-th look finds something (0: none).
fn looks_of(habit: &Habit, finds: u32) -> u32 {
    let mut calls = 0;
    habit.look(Limit::CONFIGURED, &[5], || {
        calls += 1;
        calls == finds
    });
    calls
}

/// One that has found something with its third look. (A wait that had to give way to others made
/// fewer: again, then.)
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
fn that_found_with_its_third() -> Habit {
    let found = || {
        let habit = allowed();
        sleeps(&habit, SOON, 50 * US, 20 * US);
        (looks_of(&habit, 3) == 3).then_some(habit)
    };
    (0..1000).find_map(|_| found()).unwrap()
}

#[test]
fn sleeps_that_end_soon_make_a_thread_look() {
    let habit = allowed();
    sleeps(&habit, SOON - 1, 50 * US, 20 * US);
    assert!(!habit.looks(-1));
    sleeps(&habit, 1, 50 * US, 20 * US);
    assert!(habit.looks(-1) && habit.looks(SHORTEST_TIMEOUT_NS));
    assert!(!habit.looks(SHORTEST_TIMEOUT_NS - 1));
}

#[test]
fn a_thread_that_wants_none_makes_its_call_alone() {
    let habit = that_found_with_its_third();
    signals::set_poll_us(Some(0));
    assert_eq!(looks_of(&habit, 3), 0, "it sleeps in the call itself");
    assert!(!habit.looks(-1));
    sleeps(&habit, 4 * SOON, 50 * US, 20 * US);
    assert!(!habit.looks(-1));
    signals::set_poll_us(None);
    sleeps(&habit, 4 * SOON, 50 * US, 20 * US);
    assert!(habit.looks(-1));
}

#[test]
fn a_rule_shortens_looks_and_allows_none() {
    let habit = allowed();
    sleeps(&habit, SOON, 50 * US, 20 * US);
    assert_eq!(habit.look(Limit::us(0), &[5], || false), Looked::Nothing);
    assert!(!habit.looks(-1), "it has given up");
    assert_eq!([Limit::us(7), Limit::at_most_us(70), Limit::us(90)].map(cap_ns), {
        [7_000, CAP_NS, CAP_NS]
    });
    let config = Config { poll_tcp_us: Some(0), ..config::get().clone() };
    assert_eq!(config::with(config, || cap_ns(Limit::us(90))), 0);
}

#[test]
fn a_late_one_begins_the_count_anew() {
    let habit = allowed();
    for _ in 0..4 {
        sleeps(&habit, SOON - 1, 50 * US, 20 * US);
        sleeps(&habit, 1, 200 * US, 20 * US);
        assert!(!habit.looks(-1));
    }
    sleeps(&habit, SOON - 1, 50 * US, 20 * US);
    habit.learn(0, ticks(50 * US), false, Limit::CONFIGURED);
    sleeps(&habit, 1, 50 * US, 20 * US);
    assert!(!habit.looks(-1), "a time-out is no news");
}

#[test]
fn a_thread_with_little_time_to_wait_does_not_look() {
    let habit = allowed();
    sleeps(&habit, 10 * SOON, 20 * US, 100 * US);
    assert!(!habit.looks(-1));
    sleeps(&habit, 2 * SOON, 20 * US, 30 * US);
    assert!(habit.looks(-1));
}

#[test]
fn what_is_there_needs_one_call() {
    let habit = that_found_with_its_third();
    for _ in 0..100 {
        assert_eq!(looks_of(&habit, 1), 1);
    }
    assert!(habit.looks(-1));
}

#[test]
fn looks_in_vain_end_soon_and_begin_later_each_time() {
    let habit = allowed();
    let mut needed = SOON;
    for _ in 0..4 {
        sleeps(&habit, needed - 1, 50 * US, 20 * US);
        assert!(!habit.looks(-1));
        sleeps(&habit, 1, 50 * US, 20 * US);
        let mut waits = 0;
        while habit.looks(-1) {
            assert!(looks_of(&habit, 0) > 1);
            waits += 1;
        }
        assert_eq!(waits, 3, "60, 30 and 15 µs");
        needed *= 2;
    }
}

#[test]
fn success_lets_it_look_again_soon() {
    let habit = allowed();
    sleeps(&habit, SOON, 50 * US, 20 * US);
    (0..MANY).for_each(|_| assert_eq!(looks_of(&habit, 2), 2));
    // (Real ones could have strangers in between, behind whom no success counts.)
    while habit.looks(-1) {
        habit.in_vain();
    }
    sleeps(&habit, SOON, 50 * US, 20 * US);
    assert!(habit.looks(-1));
}

#[test]
fn one_thread_too_many_sleeps() {
    static LOOKERS: Lookers = Lookers::new();
    let one = LOOKERS.take(&[5], 1);
    assert!(one.is_some() && LOOKERS.take(&[6], 1).is_none());
    drop(one);
    assert!(LOOKERS.take(&[6; NUMBERS + 1], 1).is_none());
    assert!(LOOKERS.take(&[6; NUMBERS], 1).is_some());
}

#[test]
fn who_closes_a_number_waits_until_nobody_looks_at_it() {
    static LOOKERS: Lookers = Lookers::new();
    static SLEEPS: AtomicU32 = AtomicU32::new(0);
    let other = LOOKERS.take(&[3, 9], 2);
    std::thread::scope(|scope| {
        let (tell, hear) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let turn = LOOKERS.take(&[4, 5], 2);
            let _ = tell.send(());
            while !turn.as_ref().is_some_and(|turn| turn.is_called_off()) {}
            // (Longer than a closer pauses behind its wait.)
            std::thread::sleep(std::time::Duration::from_millis(200));
            SLEEPS.store(1, Relaxed);
        });
        let _ = hear.recv();
        LOOKERS.call_off(6, 8);
        assert_eq!(SLEEPS.load(Relaxed), 0, "nobody looks at these");
        // (Its patience does not end.)
        crate::testing::with_frozen_clock(|| LOOKERS.call_off(5, 5));
        assert_eq!(SLEEPS.load(Relaxed), 1);
    });
    assert!(other.is_some_and(|turn| !turn.is_called_off()), "it looks at others");
}

#[test]
fn an_operator_can_forbid_it() {
    for config in [
        config::get().clone(),
        Config { poll_tcp_us: Some(0), ..config::get().clone() },
        Config { poll_ms: Some(0), poll_tcp_us: None, ..config::get().clone() },
        Config { poll_ms: Some(0), poll_tcp_us: Some(1000), ..config::get().clone() },
    ] {
        config::with(config, || {
            let habit = fresh();
            sleeps(&habit, 100 * SOON, 50 * US, 20 * US);
            assert!(!habit.looks(-1));
        });
    }
}
