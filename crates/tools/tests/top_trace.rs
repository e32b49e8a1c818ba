//! `netacc top` at one connection of this process, which holds out statistics and a trace.

mod support;

use netacc_control::Config;
use netacc_control::config::NO_USERS;
use netacc_control::stats::{self, CONNS_OFFSET, ConnRecord, MEMFD_NAME};
use netacc_control::trace::{
    self, EVENT_BYTES, EVENTS_FIRST, Event, HEADER_BYTES, Header, NAME, RING_BYTES,
    RING_HEAD_BYTES, Ring, State, write_table,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard};
use support::top::Top;

/// All tests of this file are one process, which has one segment at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct Memory(File);

impl Memory {
    fn new(name: &str, bytes: usize) -> Memory {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
        file.set_len(bytes as u64).unwrap();
        Memory(file)
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.0.write_all_at(bytes, at as u64).unwrap();
    }

    fn words(&self, words: &[(usize, u32)]) {
        words.iter().for_each(|(at, word)| self.put(*at, &word.to_ne_bytes()));
    }

    fn long(&self, at: usize, word: u64) {
        self.put(at, &word.to_ne_bytes());
    }
}

const FD: u32 = 4711;
const PORT: u32 = 40000;
const LOCAL: u64 = 0x7f00_0001_0000_0000;
const PEER: u64 = 0x7f00_0002_0000_0000;

/// Statistics of this process with one open connection.
fn statistics(traces: &str) -> Memory {
    statistics_of(traces, 1)
}

/// With so many: each has a descriptor, and its peer a port, one above that of the one before.
fn statistics_of(traces: &str, connections: u32) -> Memory {
    use stats::Header;
    let bytes = connections as usize * size_of::<ConnRecord>();
    let memory = Memory::new(MEMFD_NAME, CONNS_OFFSET + bytes);
    let of = |name: &str| (name == "NACC_TRACE").then(|| traces.to_owned());
    let (config, origins) = Config::resolve(None, &of, &[], NO_USERS).unwrap();
    let text = config.render(&origins);
    memory.put(offset_of!(Header, config), text.as_bytes());
    memory.long(offset_of!(Header, magic), stats::MAGIC);
    memory.long(offset_of!(Header, started_unix_ns), 1);
    memory.words(&[
        (offset_of!(Header, version), stats::VERSION),
        (offset_of!(Header, pid), std::process::id()),
        (offset_of!(Header, conn_capacity), connections),
        (offset_of!(Header, conn_high_water), connections),
        (offset_of!(Header, config_len), text.len() as u32),
    ]);
    for n in 0..connections {
        let record = CONNS_OFFSET + n as usize * size_of::<ConnRecord>();
        memory.words(
            &[
                (offset_of!(ConnRecord, state), 1),
                (offset_of!(ConnRecord, fd), FD + n),
                (offset_of!(ConnRecord, family), 2),
                (offset_of!(ConnRecord, local_port), 6379),
                (offset_of!(ConnRecord, peer_port), PORT + n),
            ]
            .map(|(at, word)| (record + at, word)),
        );
        memory.long(record + offset_of!(ConnRecord, local_addr), LOCAL);
        memory.long(record + offset_of!(ConnRecord, peer_addr), PEER);
        memory.long(record + offset_of!(ConnRecord, opened_unix_ns), 1);
    }
    memory
}

/// A trace of this process: its own ring, and two.
fn traced() -> Memory {
    traced_in(3)
}

fn traced_in(rings: usize) -> Memory {
    let memory = Memory::new(NAME, HEADER_BYTES + rings * RING_BYTES);
    let mut table = String::new();
    write_table(&mut |text| table.push_str(text));
    memory.long(offset_of!(Header, magic), trace::MAGIC);
    memory.words(&[
        (offset_of!(Header, version), trace::VERSION),
        (offset_of!(Header, header_bytes), HEADER_BYTES as u32),
        (offset_of!(Header, ring_bytes), RING_BYTES as u32),
        (offset_of!(Header, ring_head_bytes), RING_HEAD_BYTES as u32),
        (offset_of!(Header, events_first), EVENTS_FIRST as u32),
        (offset_of!(Header, rings), rings as u32),
        (offset_of!(Header, pid), std::process::id()),
        (offset_of!(Header, table_at), offset_of!(Header, table) as u32),
        (offset_of!(Header, table_bytes), table.len() as u32),
    ]);
    memory.put(offset_of!(Header, table), table.as_bytes());
    memory
}

/// A ring of a connection with that descriptor from that port.
fn ring(memory: &Memory, index: usize, state: State, port: u32, events: &[(Event, u64)]) {
    ring_of(memory, index, state, (FD, port), events);
}

fn ring_of(
    memory: &Memory,
    index: usize,
    state: State,
    (fd, port): (u32, u32),
    events: &[(Event, u64)],
) {
    let ring = HEADER_BYTES + index * RING_BYTES;
    for (index, (event, what)) in events.iter().enumerate() {
        let at = ring + RING_HEAD_BYTES + index * EVENT_BYTES;
        memory.long(at + 8, *what);
        memory.long(at, (index as u64) << 8 | *event as u64);
    }
    memory.long(ring + offset_of!(Ring, number), index as u64);
    memory.long(ring + offset_of!(Ring, local_addr), LOCAL);
    memory.long(ring + offset_of!(Ring, peer_addr), PEER);
    memory.words(
        &[
            (offset_of!(Ring, fd), fd),
            (offset_of!(Ring, family), 2),
            (offset_of!(Ring, local_port), 6379),
            (offset_of!(Ring, peer_port), port),
            (offset_of!(Ring, state), state as u32),
        ]
        .map(|(at, word)| (ring + at, word)),
    );
    memory.long(ring + offset_of!(Ring, head), events.len() as u64);
}

fn top(columns: u16) -> Top {
    let mut top = Top::new(columns, &[&std::process::id().to_string(), "-d", "0.1"]);
    top.shows(&["127.0.0.2:40000", "Entertrace"]);
    top.press("\r");
    top.shows(&["arrowsscroll"]);
    top
}

#[test]
fn a_connection_leads_to_its_events_as_they_come() {
    let _alone = alone();
    let _statistics = statistics("1");
    for columns in [40, 80, 200] {
        let traced = traced();
        // One that had the same descriptor before, and, for what it is worth, another one now.
        ring(&traced, 2, State::Open, 40001, &[(Event::Corrupt, 0)]);
        let mut events: Vec<(Event, u64)> =
            (0..60).map(|fds| (Event::SleepInPoll, 1000 + fds)).collect();
        events.insert(0, (Event::Found, u64::from(FD)));
        ring(&traced, 1, State::Open, 40000, &events);
        let mut top = top(columns);
        top.shows(&["sleep-in-pollfds1059"]);
        assert!(!top.text().contains("found"), "{}", top.text());
        events.push((Event::Eof, 0));
        ring(&traced, 1, State::Open, 40000, &events);
        top.shows(&["eof"]);
        // To the first one, and back to the table.
        top.press("\u{1b}[H");
        top.shows(&["found"]);
        assert!(!top.text().contains("corrupt"), "{}", top.text());
        top.press("\u{7f}");
        top.shows_again("Entertrace");
        top.press("q");
        assert_eq!(top.ended().code(), Some(0), "{}", top.text());
        assert!(top.has_restored(), "{}", top.text());
    }
}

/// All that a ring keeps of so many events: polls, each with its number.
fn fill(memory: &Memory, index: usize, state: State, recorded: usize) {
    use trace::EVENTS;
    ring(memory, index, state, PORT, &[]);
    let at = HEADER_BYTES + index * RING_BYTES;
    memory.long(at + offset_of!(Ring, head), recorded as u64);
    let cycle = EVENTS - EVENTS_FIRST;
    for n in (0..EVENTS_FIRST).chain(recorded - cycle..recorded) {
        let behind = n.saturating_sub(EVENTS_FIRST);
        let (place, lap) = (n.min(EVENTS_FIRST + behind % cycle), behind / cycle % 4);
        let at = at + RING_HEAD_BYTES + place * EVENT_BYTES;
        memory.long(at + 8, 10_000 + n as u64);
        memory.long(at, ((n << 2 | lap) << 6) as u64 | Event::SleepInPoll as u64);
    }
}

#[test]
fn what_was_kept_around_trouble_is_shown_in_its_place() {
    let _alone = alone();
    let _statistics = statistics("1");
    let traced = traced_in(5);
    let excerpts = |count: u32| {
        let ring = HEADER_BYTES + RING_BYTES;
        traced.words(&[(ring + offset_of!(Ring, excerpts), count)]);
    };
    let excerpt = |index: usize, of: u64, recorded: usize| {
        fill(&traced, index, State::Excerpt, recorded);
        traced.long(HEADER_BYTES + index * RING_BYTES + offset_of!(Ring, number), of);
    };
    fill(&traced, 1, State::Open, 1000);
    excerpt(2, 1, 400);
    // (Another connection's.)
    excerpt(3, 3, 600);
    excerpts(1);
    let mut top = top(80);
    top.shows(&["sleep-in-pollfds10999"]);
    // Up, to where the excerpt ends.
    let kept = trace::EVENTS - EVENTS_FIRST;
    top.press(&"\u{1b}[A".repeat(kept));
    top.redraws(90, "(500eventsarenotkept)");
    assert!(top.text().contains("sleep-in-pollfds10399"), "{}", top.text());
    assert!(!top.text().contains("fds10599"), "{}", top.text());
    // One that was made meanwhile, of more events of its own.
    fill(&traced, 1, State::Open, 1050);
    excerpt(4, 1, 800);
    excerpts(2);
    top.redraws_behind("\u{1b}[F", 90, "fds11049");
    top.press(&"\u{1b}[A".repeat(kept));
    top.redraws(90, "(150eventsarenotkept)");
    top.press(&"\u{1b}[A".repeat(kept + 1));
    top.redraws(90, "(300eventsarenotkept)");
    top.redraws_behind("\u{1b}[H", 90, "fds10000");
    top.press("q");
    assert_eq!(top.ended().code(), Some(0), "{}", top.text());
}

#[test]
fn where_there_are_no_events_it_says_why() {
    let _alone = alone();
    for (setting, has_trace, why) in [
        ("1", false, "Notraceofthisprocessmayberead"),
        ("1", true, "hasnoeventsinthetrace"),
        ("0", true, "Thetraceofthisprocessisturnedoff"),
    ] {
        let _statistics = statistics(setting);
        let traced = has_trace.then(traced);
        if let Some(traced) = &traced {
            ring(traced, 1, State::Closed, 40000, &[(Event::Corrupt, 0)]);
        }
        for columns in [40, 200] {
            let mut top = top(columns);
            top.shows(&[why]);
            assert!(!top.text().contains("corrupt"), "{}", top.text());
            top.press("q");
            assert_eq!(top.ended().code(), Some(0), "{}", top.text());
        }
    }
}

/// Words that mean nothing in place of one that did, in the head, in a ring and anywhere.
fn spoil(memory: &Memory, state: &mut u64) {
    let mut next = |bound: usize| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % bound as u64) as usize
    };
    let ring = HEADER_BYTES + RING_BYTES;
    for (from, bytes) in [(8, 136), (ring, RING_HEAD_BYTES), (0, ring + RING_BYTES)] {
        for _ in 0..4 {
            let (at, word) = (from + next(bytes / 4) * 4, [0, usize::MAX, next(usize::MAX)]);
            memory.words(&[(at, word[next(3)] as u32)]);
        }
    }
    memory.0.set_len([HEADER_BYTES + 3 * RING_BYTES, next(ring)][next(4) / 3] as u64).unwrap();
}

#[test]
fn a_trace_that_is_spoilt_while_it_is_shown_does_no_harm() {
    let _alone = alone();
    let _statistics = statistics("1");
    let traced = traced();
    let events: Vec<(Event, u64)> = (0..60).map(|fds| (Event::SleepInPoll, 1000 + fds)).collect();
    ring(&traced, 1, State::Open, 40000, &events);
    let mut whole = vec![0; HEADER_BYTES + 3 * RING_BYTES];
    traced.0.read_exact_at(&mut whole, 0).unwrap();
    let mut top = top(80);
    top.shows(&["sleep-in-pollfds1059"]);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for round in 0..12 {
        for _ in 0..5 {
            spoil(&traced, &mut state);
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        top.press("\u{1b}[A\u{1b}[5~");
        // And it finds its way back.
        let events: Vec<(Event, u64)> =
            (0..60).map(|fds| (Event::SleepInPoll, 2000 + 100 * round + fds)).collect();
        traced.0.set_len(whole.len() as u64).unwrap();
        traced.put(0, &whole);
        ring(&traced, 1, State::Open, 40000, &events);
        top.redraws_behind("\u{1b}[F", 90, &format!("{}", 2059 + 100 * round));
    }
    top.press("q");
    assert_eq!(top.ended().code(), Some(0), "{}", top.text());
    assert!(top.has_restored(), "{}", top.text());
}

/// Another ring has the times of that one: a single one, of so many microseconds.
fn times(memory: &Memory, [ring, place]: [usize; 2], microseconds: u64) {
    use trace::{BUCKETS, Latencies};
    let at = HEADER_BYTES + place * RING_BYTES;
    memory.long(at + offset_of!(Latencies, number), ring as u64);
    memory.long(at + offset_of!(Latencies, max_ns), microseconds * 1000);
    // (The last bucket has no end: the longest time is told.)
    memory.long(at + offset_of!(Latencies, counts) + (BUCKETS - 1) * 8, 1);
    memory.put(at + offset_of!(Latencies, magic), b"NETACCLT");
    memory.words(&[
        (at + offset_of!(Latencies, state), State::Claimed as u32),
        (HEADER_BYTES + ring * RING_BYTES + offset_of!(Ring, latencies), place as u32),
    ]);
}

#[test]
fn of_many_connections_the_answers_of_those_that_are_seen_are_shown() {
    const MANY: u32 = 500;
    let _alone = alone();
    let _statistics = statistics_of("2", MANY);
    let traced = traced_in(2 * MANY as usize + 1);
    let place = |n: u32| [1 + n as usize, (1 + MANY + n) as usize];
    for n in 0..MANY {
        ring_of(&traced, place(n)[0], State::Open, (FD + n, PORT + n), &[(Event::Eof, 0)]);
        times(&traced, place(n), 111);
    }
    traced.words(&[(offset_of!(Header, latencies), MANY)]);
    let last = place(MANY - 1);
    times(&traced, last, 222);
    let mut top = Top::new(160, &[&std::process::id().to_string(), "-d", "0.1"]);
    top.shows(&["500openconnections", "127.0.0.2:40000", "111us"]);
    assert!(!top.text().contains("222us"), "{}", top.text());
    top.press("\u{1b}[F");
    top.redraws(170, "222us");
    times(&traced, last, 333);
    top.redraws(170, "333us");
    // Its ring is another one from here on, as that of a connection with the same numbers would be.
    ring_of(&traced, last[0], State::Closed, (FD, PORT), &[(Event::Eof, 0)]);
    let [_, free] = last;
    ring_of(&traced, free, State::Open, (FD + MANY - 1, PORT + MANY - 1), &[(Event::Eof, 0)]);
    times(&traced, [free, last[0]], 444);
    top.redraws(170, "444us");
    top.press("q");
    assert_eq!(top.ended().code(), Some(0), "{}", top.text());
}

#[test]
fn a_process_may_be_named() {
    let _alone = alone();
    let statistics = statistics("1");
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    let mut top = Top::new(120, &[own.trim_end()]);
    top.shows(&[&FD.to_string(), &PORT.to_string()]);
    top.press("q");
    assert_eq!(top.ended().code(), Some(0), "{}", top.text());
    // None has that name, or several do.
    let mut top = Top::new(120, &["no-such-program"]);
    assert_eq!(top.ended().code(), Some(1), "{}", top.text());
    assert!(top.text().contains("no-such-program:noprocessofthisname"), "{}", top.text());
    assert!(!top.has_restored(), "{}", top.text());
    drop(statistics);
}
