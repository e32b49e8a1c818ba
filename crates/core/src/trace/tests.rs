use super::*;
use crate::testing::alone_in_child;
use netacc_control::trace::EVENTS;

/// In this thread connections are recorded.
fn on() {
    crate::testing::init();
    let config = crate::config::get().clone();
    crate::config::from_here_on(netacc_control::Config { trace: true, ..config });
}

fn some(i: u32) -> Option<&'static Ring> {
    ring(i).filter(|_| i != 0)
}

/// A ring for a connection of this moment, as it gets one sooner or later.
fn opens(event: Event) -> u32 {
    for _ in 0..100_000 {
        // (Another test's thread may have looked in vain.)
        NOT_BEFORE.store(0, Relaxed);
        match open(7, event, sys::unix_ns()) {
            0 => keep_ready(),
            i => return i,
        }
        std::thread::yield_now();
    }
    panic!("no ring")
}

fn opened() -> &'static Ring {
    on();
    some(opens(Event::Accepted)).unwrap()
}

fn of(ring: &Ring, event: Event) -> usize {
    let words = ring.events.iter().map(|[first, _]| first.load(Relaxed));
    words.filter(|word| word & 63 == event as u64).count()
}

#[test]
fn a_connection_has_a_ring_of_its_own_until_it_is_over() {
    let (a, b) = (opened(), opened());
    assert!(!core::ptr::eq(a, b));
    assert_ne!(a.number.load(Relaxed), b.number.load(Relaxed));
    record(a, None, Event::Sleep, 0);
    assert_eq!((of(a, Event::Accepted), of(a, Event::Sleep), of(b, Event::Sleep)), (1, 1, 0));
    assert!(a.ends_in(Event::Sleep) && b.ends_in(Event::Accepted));
    close(a, false);
    close(b, true);
    let state = |ring: &Ring| ring.state.load(Relaxed);
    assert_eq!(state(b), State::Kept as u32, "it went badly");
    assert!(state(a) != State::Kept as u32);
}

#[test]
fn what_has_moved_is_told_with_the_next_event() {
    let ring = opened();
    // SAFETY: all zero is a valid record.
    let moved: ConnRecord = unsafe { core::mem::zeroed() };
    record(ring, Some(&moved), Event::Sleep, 0);
    assert_eq!(of(ring, Event::Sent), 0);
    moved.add_tx(Path::Shm, 100);
    moved.tx_messages.store(3, Relaxed);
    moved.add_rx(Path::Tcp, 7);
    moved.rx_messages.store(1, Relaxed);
    record(ring, Some(&moved), Event::Wake, 0);
    record(ring, Some(&moved), Event::Sleep, 0);
    let what = |event: Event| {
        let events = ring.events.iter().map(|[a, b]| (a.load(Relaxed), b.load(Relaxed)));
        events.filter(|(first, _)| first & 63 == event as u64).map(|(_, what)| what).next()
    };
    assert_eq!(what(Event::Sent), Some(Path::Shm as u64 | 3 << 4 | 100 << 28));
    assert_eq!(what(Event::Received), Some(Path::Tcp as u64 | 1 << 4 | 7 << 28));
    assert_eq!((of(ring, Event::Sent), of(ring, Event::Received)), (1, 1));
    close(ring, false);
}

#[test]
fn more_than_an_event_can_say_is_said_in_several() {
    let ring = opened();
    // SAFETY: all zero is a valid record.
    let moved: ConnRecord = unsafe { core::mem::zeroed() };
    moved.add_rx(Path::Shm, BYTES_MAX + 5);
    moved.rx_messages.store(MESSAGES_MAX + 2, Relaxed);
    record(ring, Some(&moved), Event::Sleep, 0);
    record(ring, Some(&moved), Event::Wake, 0);
    record(ring, Some(&moved), Event::Sleep, 0);
    let events = ring.events.iter().map(|[a, b]| (a.load(Relaxed), b.load(Relaxed)));
    let said = events.filter(|(first, _)| first & 63 == Event::Received as u64);
    let said: std::vec::Vec<_> =
        said.map(|(_, what)| (what >> 4 & MESSAGES_MAX, what >> 28)).collect();
    assert_eq!(said, [(MESSAGES_MAX, BYTES_MAX), (2, 5)]);
    close(ring, false);
}

#[test]
fn a_look_records_what_has_moved_and_not_all_the_time() {
    let ring = opened();
    // SAFETY: all zero is a valid record.
    let moved: ConnRecord = unsafe { core::mem::zeroed() };
    let look_again = || {
        ring.looked_at_ms.store(0, Relaxed);
        look(ring, &moved);
    };
    look_again();
    assert_eq!(ring.head.load(Relaxed), 1, "nothing has moved");
    moved.add_tx(Path::Shm, 1);
    look_again();
    assert_eq!(ring.head.load(Relaxed), 2);
    for _ in 0..10_000 {
        moved.add_tx(Path::Shm, 1);
        look(ring, &moved);
    }
    assert!(ring.head.load(Relaxed) < 5_000);
    close(ring, false);
}

#[test]
fn times_have_a_place_until_the_connection_is_over() {
    on();
    let config = crate::config::get().clone();
    crate::config::from_here_on(netacc_control::Config { trace_calls: true, ..config });
    let ring = opened();
    let counts = |i: u32| {
        let place = calls::place(i).unwrap();
        let of = |which: usize| place.counts[which].iter().map(|n| n.load(Relaxed)).sum::<u64>();
        [of(0), of(1)]
    };
    // (There may be no room at first: the library's own thread makes it, here whichever comes.)
    let own = || super::ring(0).unwrap().latencies.load(Relaxed);
    for _ in 0..100_000 {
        sent(ring, None, &send_begins(ring, None), (20, 10));
        received(ring, None, 10, 1 << 30);
        let i = ring.latencies.load(Relaxed);
        if i != 0 && own() != 0 && counts(i)[1] > 0 {
            break;
        }
        keep_ready();
        std::thread::yield_now();
    }
    let i = ring.latencies.load(Relaxed);
    assert!(i != 0 && own() != 0 && own() != i, "they have places");
    assert!(counts(i)[0] >= counts(i)[1] && counts(i)[1] > 0, "{:?}", counts(i));
    let what = |event: Event| {
        let events = ring.events.iter().map(|[a, b]| (a.load(Relaxed), b.load(Relaxed)));
        events.filter(|(first, _)| first & 63 == event as u64).map(|(_, what)| what).last()
    };
    assert_eq!(what(Event::Send), Some(20 | 10 << 40));
    assert_eq!(what(Event::Receive), Some(10 | ((1 << 24) - 1) << 40));
    close(ring, false);
    assert_eq!(ring.latencies.load(Relaxed), i, "it stays the ring's");
}

/// In this thread each call is recorded, in a child that is alone in its process.
fn in_child_with_calls(act: impl FnOnce() -> bool) {
    on();
    let config = crate::config::get().clone();
    crate::config::from_here_on(netacc_control::Config { trace_calls: true, ..config });
    assert!(alone_in_child(|| {
        after_fork_in_child();
        let done = act();
        file::remove();
        done
    }));
}

fn turns(ring: &Ring) {
    sent(ring, None, &send_begins(ring, None), (0, 1));
    received(ring, None, 0, 1);
}

fn answers_of(ring: &Ring) -> u64 {
    let place = calls::place(ring.latencies.load(Relaxed)).unwrap();
    place.counts[0].iter().map(|n| n.load(Relaxed)).sum()
}

#[test]
fn times_of_connections_that_come_and_go_take_no_more_memory_and_none_is_lost() {
    in_child_with_calls(|| {
        opens(Event::Accepted);
        let (many, at_once) = (10 * HISTORY as usize, 100);
        for _ in 0..many / at_once {
            let rings: std::vec::Vec<_> =
                (0..at_once).map(|_| some(opens(Event::Accepted)).unwrap()).collect();
            // (All rings, then all places.)
            for ring in rings.iter().copied() {
                turns(ring);
                keep_ready();
                if ring.latencies.load(Relaxed) != 0 && answers_of(ring) > 1 {
                    return false;
                }
            }
            rings.into_iter().for_each(|ring| close(ring, false));
        }
        let all = answers_of(super::ring(0).unwrap());
        UNUSED.load(Relaxed) <= HISTORY + 4 * at_once as u32
            && all as usize == many / at_once * at_once
    });
}

#[test]
fn times_without_a_place_count_for_the_process() {
    in_child_with_calls(|| {
        let first = some(opens(Event::Accepted)).unwrap();
        turns(first);
        header().unwrap().latencies.store(RINGS as u32 / 2, Relaxed);
        let ring = some(opens(Event::Accepted)).unwrap();
        let before = answers_of(super::ring(0).unwrap());
        turns(ring);
        ring.latencies.load(Relaxed) == 0 && answers_of(super::ring(0).unwrap()) == before + 1
    });
}

#[test]
fn a_send_that_sends_nothing_ends_no_turn() {
    in_child_with_calls(|| {
        let ring = some(opens(Event::Accepted)).unwrap();
        received(ring, None, 0, 1);
        let before = ring.turn.load(Relaxed);
        sent_nothing(ring, &send_begins(ring, None));
        let goes_on = ring.turn.load(Relaxed) == before;
        // Another thread has its answer already.
        let begun = send_begins(ring, None);
        received(ring, None, 0, 1);
        let answered = ring.turn.load(Relaxed);
        sent_nothing(ring, &begun);
        goes_on && ring.turn.load(Relaxed) == answered && ring.latencies.load(Relaxed) != 0
    });
}

#[test]
fn what_began_while_it_was_off_does_not_count() {
    in_child_with_calls(|| {
        let ring = some(opens(Event::Accepted)).unwrap();
        turns(ring);
        let _ = send_begins(ring, None);
        let follows = crate::config::get().clone();
        let off = netacc_control::Config { trace_calls: false, ..follows };
        crate::config::with(off, before_turn);
        // A call of another thread's, as soon as it is on.
        received(ring, None, 0, 1);
        answers_of(ring) == 1
    });
}

#[test]
fn a_call_that_ends_when_its_connection_is_over_takes_no_place() {
    in_child_with_calls(|| {
        let ring = some(opens(Event::Accepted)).unwrap();
        close(ring, false);
        received(ring, None, 0, 1);
        ring.latencies.load(Relaxed) == 0
    });
}

#[test]
fn a_ring_that_is_not_free_is_passed_over() {
    in_child_with_calls(|| {
        let first = opens(Event::Accepted);
        let next = ring(first + 1).unwrap();
        next.claim(State::Free) && never_used().is_some_and(|(i, _)| i == first + 2)
    });
}

#[test]
fn what_is_older_than_the_trace_was_found() {
    on();
    opened();
    let open_at = |ns| some(open(7, Event::Connected, ns));
    let of_before = |ns| {
        SINCE_UNIX.store(sys::unix_ns() - 1_000_000, Relaxed);
        let ring = opens_by(|| open_at(ns));
        SINCE_UNIX.store(0, Relaxed);
        ring
    };
    let old = of_before(1);
    assert_eq!((of(old, Event::Found), of(old, Event::Connected)), (1, 0));
    let new = opens_by(|| open_at(sys::unix_ns()));
    assert_eq!((of(new, Event::Found), of(new, Event::Connected)), (0, 1));
    assert!(new.began_ns.load(Relaxed) <= sys::now_ns());
    [old, new].into_iter().for_each(|ring| close(ring, false));
}

fn opens_by(open: impl Fn() -> Option<&'static Ring>) -> &'static Ring {
    let mut turns = 0..100_000;
    turns
        .find_map(|_| {
            NOT_BEFORE.store(0, Relaxed);
            let ring = open();
            keep_ready();
            ring
        })
        .unwrap()
}

/// The thread of the library's own makes the file, and more of it; the program's calls never do.
#[test]
fn no_call_of_the_programs_makes_a_system_call_for_it() {
    use crate::testing::calls;
    on();
    assert!(alone_in_child(|| {
        after_fork_in_child();
        let before = calls();
        let none = open(3, Event::Connected, sys::unix_ns()) == 0 && header().is_none();
        let quiet = calls() == before;
        keep_ready();
        let begun = header().is_some();
        let all = (1..FIRST).all(|_| opens_once());
        let before = calls();
        let ends = !opens_once() && calls() == before;
        keep_ready();
        let more = opens_once();
        file::remove();
        none && quiet && begun && all && ends && more
    }));
}

/// So many rings a new file has, with the process's own.
const FIRST: u32 = 8;

fn opens_once() -> bool {
    open(3, Event::Connected, sys::unix_ns()) != 0
}

#[test]
fn rings_of_connections_that_are_over_serve_again() {
    on();
    // (Other tests have some, and by turns thousands.)
    assert!(alone_in_child(|| {
        after_fork_in_child();
        for _ in 0..10 * HISTORY {
            close(opened(), false);
        }
        let few = UNUSED.load(Relaxed) <= HISTORY + 4;
        let held: std::vec::Vec<_> = (0..50).map(|_| opened()).collect();
        let numbers = held.iter().map(|ring| ring.number.load(Relaxed));
        let differ = numbers.collect::<std::collections::BTreeSet<_>>().len() == 50;
        file::remove();
        few && differ
    }));
}

#[test]
fn one_connection_more_than_there_are_rings_is_not_followed() {
    /// (docs/manual/limits.md)
    const FOLLOWED: u32 = 16_383;
    on();
    assert!(alone_in_child(|| {
        after_fork_in_child();
        // (The library's own thread makes room between two tries; who looks for a ring that is free
        // again looks at some.)
        let follows = |tries: u32| {
            (0..tries).any(|_| {
                NOT_BEFORE.store(0, Relaxed);
                opens_once() || {
                    keep_ready();
                    false
                }
            })
        };
        let first = follows(3);
        // It has no name from here on, so it may be larger than a name's share of the directory.
        file::remove();
        let all = (1..FOLLOWED).all(|_| follows(3));
        let ends = !follows(1000);
        close(super::ring(FOLLOWED / 2).unwrap(), false);
        first && all && ends && follows(1000) && !follows(1000)
    }));
}

#[test]
fn threads_never_lose_an_event() {
    let ring = opened();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| record(ring, None, Event::Doorbell, 0)));
        }
    });
    assert_eq!(ring.head.load(Relaxed), 4001);
    // (The first one stays.)
    assert_eq!((of(ring, Event::Accepted), of(ring, Event::Doorbell)), (1, EVENTS - 1));
    close(ring, false);
}

#[test]
fn a_child_has_a_trace_of_its_own() {
    let ring = opened();
    assert!(alone_in_child(|| {
        after_fork_in_child();
        let none = header().is_none();
        let own = some(opens(Event::Connected));
        let done = none
            && own.is_some_and(|own| own.number.load(Relaxed) == 1)
            && header().is_some_and(|h| h.pid.load(Relaxed) == sys::getpid());
        file::remove();
        done
    }));
    assert_eq!(of(ring, Event::Connected), 0);
    close(ring, false);
}

/// A number is of its maker's trace: in the child's own it would be another connection's ring.
#[test]
fn a_child_looks_at_no_ring_of_what_it_has_inherited() {
    on();
    let s = crate::socket::new_socket(-1).unwrap();
    while s.ring.load(Relaxed) == 0 {
        NOT_BEFORE.store(0, Relaxed);
        s.begin_trace(false);
        keep_ready();
    }
    let number = s.ring.load(Relaxed);
    assert!(alone_in_child(|| {
        crate::process::become_child();
        after_fork_in_child();
        let own: std::vec::Vec<_> = (0..4).map(|_| opens(Event::Connected)).collect();
        for event in [Event::Doorbell, Event::Shutdown] {
            s.trace(event, 0);
            s.trace_once(event, 0);
        }
        // The parent's trace is longer than the child's.
        s.ring.store(RINGS as u32 - 1, Relaxed);
        s.trace_once(Event::Doorbell, 0);
        s.ring.store(number, Relaxed);
        crate::socket::close_books(s);
        file::remove();
        own.iter().all(|i| ring(*i).is_some_and(|ring| ring.head.load(Relaxed) == 1))
    }));
    let ring = ring(number).unwrap();
    assert_eq!((s.ring.load(Relaxed), ring.head.load(Relaxed)), (number, 1));
    assert_eq!(ring.state.load(Relaxed), State::Open as u32, "it is its maker's to close");
    close(ring, false);
}

#[test]
fn where_no_memory_is_left_nobody_asks_at_each_event() {
    use crate::testing::{calls, pass_ns, with_frozen_clock};
    on();
    let limit = |bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: setrlimit(2) with a live rlimit.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
    };
    assert!(alone_in_child(|| {
        after_fork_in_child();
        with_frozen_clock(|| {
            limit(40_000);
            WANTED.store(true, Relaxed);
            keep_ready();
            let begun = (1..FIRST).all(|_| opens_once());
            let ends = !opens_once();
            keep_ready();
            let before = calls();
            let none = (0..3).all(|_| !opens_once());
            keep_ready();
            let quiet = calls() == before;
            limit(libc::RLIM_INFINITY);
            pass_ns(PAUSE_NS);
            let still = !opens_once();
            keep_ready();
            let again = opens_once();
            file::remove();
            begun && ends && none && quiet && still && again
        })
    }));
}

#[test]
fn who_loses_its_memory_goes_on() {
    let ring = opened();
    assert!(alone_in_child(|| {
        let at = core::ptr::from_ref(ring) as usize;
        let other = [0u8; 8];
        let lost = !lost(other.as_ptr() as usize) && lost(at);
        record(ring, None, Event::Doorbell, 0);
        process(Event::Exit, 0);
        lost && header().is_none() && ring.head.load(Relaxed) == 1
    }));
    close(ring, false);
}

#[test]
fn what_is_turned_off_records_nothing() {
    on();
    let config = netacc_control::Config { trace: false, ..crate::config::get().clone() };
    crate::config::with(config, || assert!(open(7, Event::Accepted, 1) == 0));
}

/// In this thread waits of so many milliseconds are too long.
fn slow_from(ms: u32) {
    on();
    let config = crate::config::get().clone();
    crate::config::from_here_on(netacc_control::Config { trace_slow_ms: ms, ..config });
}

#[test]
fn a_send_that_waits_for_room_for_too_long_is_told_and_no_other_wait() {
    let ring = opened();
    slow_from(2);
    let (receive, send) = (0, 1);
    let waits = |side: u64| {
        record(ring, None, Event::Sleep, side);
        sys::pause_ns(4_000_000);
        record(ring, None, Event::Wake, side);
        of(ring, Event::Slow)
    };
    assert_eq!((waits(receive), ring.worth.load(Relaxed)), (0, 0), "it waits for a request");
    assert_eq!((waits(send), ring.worth.load(Relaxed)), (1, 1));
    let [_, what] =
        ring.events.iter().find(|[a, _]| a.load(Relaxed) & 63 == Event::Slow as u64).unwrap();
    assert_eq!(what.load(Relaxed) & 0xff, Slow::Send as u64);
    assert!(what.load(Relaxed) >> 8 >= 2);
    slow_from(0);
    assert_eq!(waits(send), 1, "nothing is too long");
    slow_from(60_000);
    assert_eq!(waits(send), 1);
    close(ring, false);
    assert_eq!(ring.state.load(Relaxed), State::Kept as u32);
    // Woken again and again, and no room: one wait, until something was sent.
    let ring = opened();
    slow_from(10);
    // SAFETY: all zero is a valid record.
    let moved: ConnRecord = unsafe { core::mem::zeroed() };
    let woken = || {
        record(ring, Some(&moved), Event::Sleep, send);
        sys::pause_ns(1_000_000);
        record(ring, Some(&moved), Event::Wake, send);
        of(ring, Event::Slow)
    };
    assert!((0..100).any(|_| woken() == 1));
    slow_from(60_000);
    moved.add_tx(Path::Shm, 1);
    record(ring, Some(&moved), Event::Sleep, send);
    let first = ring.send_waits.load(Relaxed);
    record(ring, Some(&moved), Event::Sleep, send);
    assert_eq!(ring.send_waits.load(Relaxed), first);
    moved.add_tx(Path::Shm, 1);
    sys::pause_ns(1_000);
    record(ring, Some(&moved), Event::Sleep, send);
    assert!(ring.send_waits.load(Relaxed) > first, "another wait");
    close(ring, false);
}

#[test]
fn a_ring_that_stays_full_is_told_once_also_where_nobody_sleeps() {
    let ring = opened();
    slow_from(2);
    // SAFETY: all zero is a valid record.
    let moved: ConnRecord = unsafe { core::mem::zeroed() };
    let send = 1;
    let told = || {
        still_full(ring, &moved);
        of(ring, Event::Slow)
    };
    assert_eq!(told(), 0, "no send has found it full");
    record(ring, Some(&moved), Event::Full, send);
    moved.add_tx(Path::Shm, 1);
    sys::pause_ns(4_000_000);
    assert_eq!(told(), 0, "something was sent since");
    record(ring, Some(&moved), Event::Full, send);
    assert_eq!(told(), 0, "just now");
    sys::pause_ns(4_000_000);
    assert_eq!((told(), told()), (1, 1));
    let [_, what] =
        ring.events.iter().find(|[a, _]| a.load(Relaxed) & 63 == Event::Slow as u64).unwrap();
    let what = what.load(Relaxed);
    assert!(what & 0xff == Slow::Send as u64 && what >> 8 >= 2);
    // It asks again and again, and is a wait.
    record(ring, Some(&moved), Event::Full, send);
    sys::pause_ns(4_000_000);
    assert_eq!(told(), 1);
    // A thread that sleeps in its send tells that itself.
    moved.add_tx(Path::Shm, 1);
    record(ring, Some(&moved), Event::Full, send);
    record(ring, Some(&moved), Event::Sleep, send);
    sys::pause_ns(4_000_000);
    assert_eq!(told(), 1);
    record(ring, Some(&moved), Event::Wake, send);
    assert_eq!(of(ring, Event::Slow), 2);
    close(ring, false);
}

#[test]
fn an_agreement_is_slow_where_the_connection_is_used_meanwhile() {
    slow_from(2);
    for (calls, is_slow) in [(5, 0), (150, 1)] {
        let ring = opened();
        slow_from(2);
        // SAFETY: all zero is a valid record.
        let moved: ConnRecord = unsafe { core::mem::zeroed() };
        moved.add_tx(Path::Tcp, 7);
        record(ring, Some(&moved), Event::Noted, 0);
        (0..calls).for_each(|_| moved.add_rx(Path::Tcp, 1));
        sys::pause_ns(4_000_000);
        record(ring, Some(&moved), Event::Offered, 0);
        assert_eq!(of(ring, Event::Slow), is_slow, "{calls} calls");
        record(ring, Some(&moved), Event::Offered, 0);
        assert_eq!(of(ring, Event::Slow), is_slow, "it was told");
        close(ring, false);
    }
}

/// What each excerpt of a connection holds.
fn excerpts(ring: &Ring) -> std::vec::Vec<std::vec::Vec<(u64, u64)>> {
    let number = ring.number.load(Relaxed);
    let rings = (1..UNUSED.load(Relaxed)).filter_map(some);
    let is_its = |it: &&Ring| {
        it.state.load(Relaxed) == State::Excerpt as u32 && it.number.load(Relaxed) == number
    };
    let events = |it: &Ring| {
        let events = it.events.iter().map(|[a, b]| (a.load(Relaxed) & 63, b.load(Relaxed)));
        events.filter(|(event, _)| *event != 0).collect()
    };
    rings.filter(is_its).map(events).collect()
}

#[test]
fn a_trouble_is_kept_of_a_connection_that_goes_on() {
    on();
    assert!(alone_in_child(|| {
        after_fork_in_child();
        let ring = some(opens(Event::Accepted)).unwrap();
        let rings = |from: u64, to: u64| {
            (from..to).for_each(|i| record(ring, None, Event::Doorbell, i));
        };
        let rto = (Event::Rto as u64, 1 | 1 << 16);
        rings(0, 200);
        record(ring, None, Event::Rto, rto.1);
        rings(200, 300);
        let first = excerpts(ring);
        let is_told = first.len() == 1 && first[0].contains(&rto);
        // As much of what led to it as of what came of it.
        let bell = |i: u64| first[0].contains(&(Event::Doorbell as u64, i));
        let around = bell(151) && bell(199) && bell(200) && bell(248) && bell(0);
        // A connection that is never well does not keep all there is.
        for i in 0..2 * u64::from(trouble::KEPT_MAX) {
            record(ring, None, Event::Rto, i);
            rings(0, 60);
        }
        let most = excerpts(ring).len();
        let said = header().unwrap().excerpts.load(Relaxed);
        close(ring, false);
        let kept = ring.state.load(Relaxed) == State::Kept as u32;
        file::remove();
        is_told && around && most == 4 && said == 4 && kept
    }));
}

#[test]
fn a_burst_of_trouble_is_kept_and_leaves_room_for_those_that_end_badly() {
    on();
    assert!(alone_in_child(|| {
        after_fork_in_child();
        let closed = |rto: bool, badly: bool| {
            let ring = some(opens(Event::Accepted)).unwrap();
            if rto {
                record(ring, None, Event::Rto, 1 | 1 << 16);
            }
            close(ring, badly);
            ring.state.load(Relaxed) == State::Kept as u32
        };
        let kept = |n: u32, rto: bool, badly: bool| (0..n).filter(|_| closed(rto, badly)).count();
        let half = trouble::KEPT_MAX as usize / 2;
        // Each of a burst, but for what would leave no room for worse; then that.
        let ok = !closed(false, false)
            && kept(trouble::KEPT_MAX, true, false) == half
            && kept(trouble::KEPT_MAX, false, true) == half;
        file::remove();
        ok && slow::ANY.load(Relaxed)
    }));
}
