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

fn opened() -> &'static Ring {
    on();
    // (Another test's thread may be about to make the file.)
    for _ in 0..100_000 {
        if let Some(ring) = some(open(7, Event::Accepted)) {
            return ring;
        }
        std::thread::yield_now();
    }
    panic!("no ring")
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
    moved.add_rx(Path::Tcp, 7);
    record(ring, Some(&moved), Event::Wake, 0);
    record(ring, Some(&moved), Event::Sleep, 0);
    let what = |event: Event| {
        let events = ring.events.iter().map(|[a, b]| (a.load(Relaxed), b.load(Relaxed)));
        events.filter(|(first, _)| first & 63 == event as u64).map(|(_, what)| what).next()
    };
    assert_eq!(what(Event::Sent), Some(Path::Shm as u64 | 100 << 8));
    assert_eq!(what(Event::Received), Some(Path::Tcp as u64 | 7 << 8));
    assert_eq!((of(ring, Event::Sent), of(ring, Event::Received)), (1, 1));
    close(ring, false);
}

#[test]
fn rings_of_connections_that_are_over_serve_again() {
    on();
    for _ in 0..10 * HISTORY {
        close(opened(), false);
    }
    // (Other tests have some.)
    assert!(UNUSED.load(Relaxed) < HISTORY + 2048);
    let held: std::vec::Vec<_> = (0..50).map(|_| opened()).collect();
    let numbers = held.iter().map(|ring| ring.number.load(Relaxed));
    assert_eq!(numbers.collect::<std::collections::BTreeSet<_>>().len(), 50);
    held.into_iter().for_each(|ring| close(ring, false));
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
        let own = some(open(3, Event::Connected));
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
        s.begin_trace(Event::Accepted);
    }
    let number = s.ring.load(Relaxed);
    assert!(alone_in_child(|| {
        crate::process::become_child();
        after_fork_in_child();
        let own: std::vec::Vec<_> = (0..4).map(|_| open(3, Event::Connected)).collect();
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
            let begun = (0..7).all(|_| open(3, Event::Connected) != 0);
            let ends = open(3, Event::Connected) == 0;
            let before = calls();
            let events = [Event::Found, Event::Connected, Event::Found];
            let none = events.map(|event| open(3, event)) == [0; 3];
            let quiet = calls() == before;
            limit(libc::RLIM_INFINITY);
            let still = open(3, Event::Connected) == 0;
            pass_ns(PAUSE_NS);
            let again = open(3, Event::Found) != 0;
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
    crate::config::with(config, || assert!(open(7, Event::Accepted) == 0));
}
