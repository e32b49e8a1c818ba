//! `netacc trace` about files: what an earlier library has written and what a later one may write,
//! and files that are spoilt or cut short.

mod support;

use netacc_control::trace::{Event, Header, MAGIC, Ring, State, VERSION, write_table};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use support::Scratch;

const PATIENCE: Duration = Duration::from_secs(60);
/// `traces/README.md`.
const FIRST: &[u8] = include_bytes!("traces/first.trace");

/// `netacc trace WORDS --file FILE`; it does not hang.
fn trace(words: &[&str], file: &Path) -> Output {
    let child = Command::new(env!("CARGO_BIN_EXE_netacc"))
        .arg("trace")
        .args(words)
        .arg("--file")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    told.recv_timeout(PATIENCE).map(Result::unwrap).unwrap_or_else(|_| {
        let _ = kill_process(pid, Signal::KILL);
        panic!("it hangs: {words:?}");
    })
}

fn shown(file: &Path) -> Value {
    let said = trace(&["show", "--json"], file);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice::<Value>(&said.stdout).unwrap()[0].take()
}

/// All that was said then is said now; more may be.
fn still_says(then: &Value, now: &Value, place: &str) {
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            for (key, value) in then {
                still_says(value, &now[key], &format!("{place}.{key}"));
            }
        }
        (Value::Array(then), Value::Array(now)) => {
            assert_eq!(then.len(), now.len(), "{place}");
            for (i, (then, now)) in then.iter().zip(now).enumerate() {
                still_says(then, now, &format!("{place}[{i}]"));
            }
        }
        _ => assert_eq!(then, now, "{place}"),
    }
}

#[test]
fn a_trace_of_the_first_version_stays_readable() {
    let scratch = Scratch::new();
    let file = scratch.path("first");
    std::fs::write(&file, FIRST).unwrap();
    let then = serde_json::from_str(include_str!("traces/first.json")).unwrap();
    still_says(&then, &shown(&file), "trace");
}

/// Sizes of a library to come: all larger than today's.
const NEWER_HEADER: usize = 32768;
const NEWER_TABLE_AT: usize = 1024;
const NEWER_RING: usize = 4608;
const NEWER_RING_HEAD: usize = 512;
const NEWER_FIRST: usize = 40;
const NEWER_EVENTS: usize = (NEWER_RING - NEWER_RING_HEAD) / 16;
/// So many have been written over the first ones of those that do not stay.
const NEWER_AGAIN: usize = 10;

/// With an event that nobody knows today, one that even its table lacks, and a line of another
/// kind.
fn newer() -> Vec<u8> {
    let mut table = String::new();
    write_table(&mut |text| table.push_str(text));
    // (An event's number is its place among these lines.)
    let added = "event teleported distance:40 side:8:side mood:8:mood\n";
    let at = table.find("words ").unwrap();
    table.insert_str(at, added);
    table.push_str("words mood calm hasty\npicture of what it looked like\n");

    let mut bytes = vec![0; NEWER_HEADER + 2 * NEWER_RING];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(offset_of!(Header, magic), &MAGIC.to_le_bytes());
    for (at, value) in [
        (offset_of!(Header, version), VERSION as usize),
        (offset_of!(Header, header_bytes), NEWER_HEADER),
        (offset_of!(Header, ring_bytes), NEWER_RING),
        (offset_of!(Header, ring_head_bytes), NEWER_RING_HEAD),
        (offset_of!(Header, events_first), NEWER_FIRST),
        (offset_of!(Header, rings), 2),
        (offset_of!(Header, pid), 4711),
        (offset_of!(Header, table_at), NEWER_TABLE_AT),
        (offset_of!(Header, table_bytes), table.len()),
    ] {
        put(at, &(value as u32).to_le_bytes());
    }
    put(NEWER_TABLE_AT, table.as_bytes());
    let ring = NEWER_HEADER + NEWER_RING;
    put(NEWER_HEADER + offset_of!(Ring, state), &(State::Open as u32).to_le_bytes());
    put(ring + offset_of!(Ring, state), &(State::Open as u32).to_le_bytes());
    put(ring + offset_of!(Ring, number), &1u64.to_le_bytes());
    put(ring + offset_of!(Ring, head), &((NEWER_EVENTS + NEWER_AGAIN) as u64).to_le_bytes());
    let teleported = (Event::ALL.len() as u64, 5 | 1 << 40 | 1 << 48);
    for index in 0..NEWER_EVENTS + NEWER_AGAIN {
        let (number, what): (u64, u64) = match index {
            0 => (Event::Accepted as u64, 9),
            1 => teleported,
            2 => (63, 77),
            _ => (Event::Doorbell as u64, 0),
        };
        let lap = index / NEWER_EVENTS;
        let place = if lap == 0 { index } else { NEWER_FIRST + index - NEWER_EVENTS };
        let at = ring + NEWER_RING_HEAD + place * 16;
        put(at, &(((index as u64 + 1) << 8) | (lap as u64) << 6 | number).to_le_bytes());
        put(at + 8, &what.to_le_bytes());
    }
    bytes
}

#[test]
fn a_trace_of_a_later_library_is_read_by_what_it_says_of_itself() {
    let scratch = Scratch::new();
    let file = scratch.path("newer");
    std::fs::write(&file, newer()).unwrap();
    let trace_shown = shown(&file);
    let events = trace_shown["connections"][1]["events"].as_array().unwrap();
    let times: Vec<_> = events.iter().map(|event| event["ns"].as_u64().unwrap()).collect();
    let last = NEWER_EVENTS + NEWER_AGAIN;
    let there = (1..=NEWER_FIRST).chain(NEWER_FIRST + NEWER_AGAIN + 1..=last);
    assert_eq!(times, there.map(|ns| ns as u64).collect::<Vec<_>>());
    let then = serde_json::json!([
        { "event": "accepted", "fd": 9 },
        { "event": "teleported", "distance": 5, "side": "send", "mood": "hasty" },
        { "event": "unknown", "number": 63, "what": 77 },
        { "event": "doorbell", "ns": 4 },
    ]);
    still_says(&then, &Value::Array(events[..4].to_vec()), "events");
    // By its name, too; and in all the other ways.
    for words in [&["show", "--event", "teleported"][..], &["histogram"], &["export"]] {
        let said = trace(words, &file);
        assert!(said.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8_lossy(&said.stdout);
        let expected = if words == ["histogram"] { "doorbell" } else { "teleported" };
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn a_histogram_counts_the_connections_that_are_asked_for() {
    let scratch = Scratch::new();
    let file = scratch.path("first");
    std::fs::write(&file, FIRST).unwrap();
    let counts = |asked: &[&str]| -> Vec<Option<u64>> {
        let said = trace(&[&["histogram", "--json"], asked].concat(), &file);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let kinds: Value = serde_json::from_slice(&said.stdout).unwrap();
        kinds.as_array().unwrap().iter().map(|kind| kind["count"].as_u64()).collect()
    };
    // Doorbells and sleeps are those of the first connection, what was used before it was promoted
    // are the ends of the second. The last three take NACC_TRACE=2.
    let of = |doorbells, sleeps, agreed| {
        vec![Some(doorbells), Some(sleeps), Some(agreed), None, None, None]
    };
    for (asked, expected) in [
        (&[][..], of(3, 4, 2)),
        (&["--port", "43265"], of(3, 4, 2)),
        (&["--port", "55566"], of(3, 4, 0)),
        (&["--port", "55570"], of(0, 0, 2)),
        (&["--port", "55566,55570", "--peer", "127.0.0.1"], of(3, 4, 2)),
        (&["--peer", "10.0.0.0/8"], of(0, 0, 0)),
    ] {
        assert_eq!(counts(asked), expected, "{asked:?}");
    }
}

#[test]
fn of_a_container_of_another_version_that_is_said() {
    let scratch = Scratch::new();
    let file = scratch.path("other");
    let mut bytes = newer();
    bytes[offset_of!(Header, version)] = VERSION as u8 + 1;
    std::fs::write(&file, bytes).unwrap();
    for words in ["show", "histogram", "export"] {
        let said = trace(&[words], &file);
        let err = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{words}: {err}");
        assert!(err.contains("of version 2, this reads version 1"), "{words}: {err}");
    }
}

/// Numbers that nobody can foresee, and anybody can have again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A valid trace, spoilt by that seed: some words of one of its parts are others, and of every
/// third one the end is missing.
fn spoilt(seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = if seed.is_multiple_of(2) { FIRST.to_vec() } else { newer() };
    let (header, table_at, ring) =
        if seed.is_multiple_of(2) { (16384, 256, 2240) } else { (NEWER_HEADER, 1024, NEWER_RING) };
    // (Behind the first word, which says that it is a trace; that has few meanings.)
    let (from, to) = match seed % 5 {
        0 => (8, 144),
        1 => (table_at, table_at + 2000),
        2 => (header + ring, header + ring + 256),
        3 => (header, bytes.len()),
        _ => (8, bytes.len()),
    };
    let words = [1, 4, 64, 2000][random.below(4)];
    for _ in 0..words {
        let at = from + random.below((to - from) / 4) * 4;
        let word = match random.below(4) {
            0 => [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX][random.below(5)],
            1 => random.below(70_000) as u32,
            _ => random.next() as u32,
        };
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    if seed.is_multiple_of(3) {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

/// It ends by itself with a status, has said a word, and nothing that drives a terminal.
fn is_clear(said: &Output, about: &str) {
    let [out, err] = [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text));
    let about = format!("{about}: {}\n{out}{err}", said.status);
    assert!(said.status.signal().is_none() && !err.contains("panicked"), "{about}");
    assert!(matches!(said.status.code(), Some(0 | 1)), "{about}");
    assert!(said.status.success() || err.starts_with("netacc: "), "{about}");
    let drives = |c: char| c.is_control() && c != '\n';
    assert!(!out.contains(drives) && !err.contains(drives), "{about}");
}

#[test]
fn any_word_of_a_header_or_of_a_ring_may_be_anything() {
    let scratch = Scratch::new();
    let file = scratch.path("word");
    let words = (8..160).chain(16384 + 2240..16384 + 2240 + 256).step_by(4);
    for (at, word) in words.flat_map(|at| [0, 1, 70_000, 1 << 31, u32::MAX].map(|word| (at, word)))
    {
        let mut bytes = FIRST.to_vec();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let ways = [&["show"][..], &["histogram"], &["export"]];
        let words = ways[at / 4 % 3];
        is_clear(&trace(words, &file), &format!("{word} at {at}, {words:?}"));
    }
}

#[test]
fn a_spoilt_trace_is_read_as_far_as_it_goes() {
    let scratch = Scratch::new();
    let file = scratch.path("spoilt");
    let (mut read, mut refused) = (0, 0);
    for seed in 0..60 {
        std::fs::write(&file, spoilt(seed)).unwrap();
        for words in [
            &["show"][..],
            &["show", "--json", "--last", "3"],
            &["show", "--follow"],
            &["histogram", "--json"],
            &["histogram"],
            &["export"],
        ] {
            let said = trace(words, &file);
            is_clear(&said, &format!("seed {seed}, {words:?}"));
            let is_json = words.contains(&"--json") || words == ["export"];
            if is_json && said.status.success() {
                let all: Result<Value, _> = serde_json::from_slice(&said.stdout);
                assert!(all.is_ok(), "seed {seed}, {words:?}: {all:?}");
            }
            if said.status.success() { read += 1 } else { refused += 1 }
        }
    }
    // (Both happen: what is spoilt is no nonsense altogether, nor left as it was.)
    assert!(read > 60 && refused > 12, "{read} read, {refused} refused");
}

#[test]
fn a_trace_that_is_spoilt_while_it_is_followed_ends_it_with_a_word() {
    let scratch = Scratch::new();
    let path = scratch.path("followed");
    for seed in 0..8 {
        std::fs::write(&path, FIRST).unwrap();
        // Its lock is what says that the process runs.
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.lock().unwrap();
        let spoils = std::thread::spawn(move || {
            for n in 0..6 {
                std::thread::sleep(Duration::from_millis(60));
                let bytes = spoilt(100 + 6 * seed + n);
                file.write_all_at(&bytes, 0).unwrap();
                file.set_len(bytes.len() as u64).unwrap();
            }
        });
        let said = trace(&["show", "--follow"], &path);
        is_clear(&said, &format!("seed {seed}"));
        let out = String::from_utf8_lossy(&said.stdout);
        assert!(out.contains("promoted receive offset 42752"), "{out}");
        spoils.join().unwrap();
    }
}
