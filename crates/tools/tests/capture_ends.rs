//! How connections end for `netacc capture`: what their rings and their records say is told if it
//! is theirs, and where nobody knows the end, that is said instead of a FIN.

use netacc_control::rings::{self, EPOCH, HALF, REQUEST, TAIL};
use netacc_control::stats::{self, CONNECTED, ConnRecord, Rings};
use netacc_tools::capture::connection::{Connection, Key, Looked, Now, Record, Records};
use netacc_tools::capture::story::Story;
use netacc_tools::capture::stream::Said;
use netacc_tools::capture::{Memory, Unreadable};
use std::collections::HashSet;
use std::time::Instant;

const SIZE: u32 = 4096;
const WORDS: [u64; 2] = [0x1000, 0x1000 + rings::BYTES as u64];
const DATA: [u64; 2] = [0x2000, 0x4000];
const LOCK: u64 = 0x3000;

/// A process: its memory, and its only record.
struct Process {
    memory: Vec<u8>,
    record: stats::Connection,
}

impl Process {
    fn new() -> Process {
        let mut record = stats::Connection::read_closed(&[0; size_of::<ConnRecord>()]);
        record.local = Some("127.0.0.1:1".parse().unwrap());
        record.peer = Some("127.0.0.1:2".parse().unwrap());
        record.rings = Some(Rings {
            sizes: [SIZE; 2],
            words_at: WORDS,
            bytes_at: DATA,
            lock_at: LOCK,
            origin: CONNECTED,
        });
        let mut it = Process { memory: vec![0; 0x6000], record };
        (0..2).for_each(|d| it.set(d, EPOCH, 1));
        it
    }

    fn set(&mut self, d: usize, word: usize, to: u64) {
        self.memory[WORDS[d] as usize + word..][..8].copy_from_slice(&to.to_ne_bytes());
    }

    fn key(&self) -> Key {
        Key::of(0, &self.record).unwrap()
    }

    /// Followed from its first byte on, or from where it is.
    fn connection(&self, is_new: bool) -> Connection {
        Connection::new(self.key(), &self.record, is_new).unwrap()
    }

    fn look(&self, connection: &mut Connection) -> (Looked, Vec<(usize, Said)>) {
        let mut said = Vec::new();
        let looked = connection.look(self, self, now(), &mut |d, it| said.push((d, it)));
        (looked.unwrap(), said)
    }
}

impl Memory for Process {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Unreadable> {
        to.copy_from_slice(&self.memory[at as usize..][..to.len()]);
        Ok(())
    }
}

impl Records for Process {
    fn record(&self, _: u32) -> Option<Record> {
        Some(Record { is_open: true, connection: self.record.clone() })
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), unix_ns: 1 }
}

fn bytes(said: &[(usize, Said)]) -> usize {
    let of = |(_, said): &(usize, Said)| match said {
        Said::Bytes(_, all, _) => all.len(),
        _ => 0,
    };
    said.iter().map(of).sum()
}

#[test]
fn a_record_of_two_moments_is_not_its_own() {
    let mut process = Process::new();
    let mut connection = process.connection(true);
    process.set(0, TAIL, 100);
    assert_eq!(process.look(&mut connection).0, Looked::News);
    process.set(0, TAIL, 200);
    if let Some(rings) = &mut process.record.rings {
        rings.sizes = [2 * SIZE; 2];
    }
    assert_eq!(process.look(&mut connection).0, Looked::Over);
    assert!(process.key().is_same(&connection.key()));
}

#[test]
fn what_came_last_is_told_if_nobody_has_the_rings_by_then() {
    for used in [HashSet::new(), HashSet::from([WORDS[1]])] {
        let mut process = Process::new();
        let mut connection = process.connection(true);
        process.set(0, TAIL, 100);
        assert_eq!(bytes(&process.look(&mut connection).1), 100);
        process.set(0, TAIL, 300);
        process.set(0, REQUEST, HALF);
        connection.end(&process, true, now()).unwrap();
        connection.look_behind_end(&process);
        let mut said = Vec::new();
        assert!(connection.settle_end(&used, now(), &mut |d, it| said.push((d, it))));
        let is_own = used.is_empty();
        assert_eq!(bytes(&said), if is_own { 200 } else { 0 });
        assert_eq!(connection.has_all(), [is_own; 2]);
        assert_eq!(connection.ends(), [false, is_own]);
        assert_eq!(connection.held(), 0);
    }
}

#[test]
fn an_end_that_was_seen_is_known_when_the_rings_are_others() {
    let mut process = Process::new();
    let mut connection = process.connection(true);
    process.look(&mut connection);
    process.set(0, REQUEST, HALF);
    assert_eq!(process.look(&mut connection).0, Looked::News);
    assert_eq!(process.look(&mut connection).0, Looked::Idle);
    (0..2).for_each(|d| process.set(d, REQUEST, 0));
    connection.end(&process, true, now()).unwrap();
    connection.settle_end(&HashSet::from(WORDS), now(), &mut |_, _| ());
    assert_eq!(connection.ends(), [false, true]);
}

#[test]
fn of_one_that_was_there_before_it_is_known_where_that_was() {
    let mut process = Process::new();
    process.set(0, TAIL, 100);
    process.record.tx_bytes[0] = 70;
    let (_, said) = process.look(&mut process.connection(false));
    assert_eq!(said.first(), Some(&(0, Said::Begins(100, 70))));
}

/// What is counted of a stream is told in those that have begun before, too; without a count it is
/// said that the end was not seen.
#[test]
fn the_end_of_a_stream_is_told_or_said_not_to_be_known() {
    let mut file = Vec::new();
    let mut story = Story::begin(&mut file, 1 << 16, 100, "test").unwrap();
    story.interface("test", 0).unwrap();
    let ends = ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
    let mut told = story.connection(0, ends, "");
    story.say(&mut told, 0, Said::Begins(1000, 300));
    story.say(&mut told, 0, Said::Bytes(1000, vec![1; 10], 1));
    // (What lies behind has no place.)
    story.say(&mut told, 0, Said::Bytes(500, vec![1; 10], 1));
    story.reconcile(&mut told, 0, 1060, 320);
    story.reconcile(&mut told, 1, 4711, 4711);
    story.leave(&mut told, "", 2);
    story.leave_open(&mut told, 0);
    story.leave(&mut told, "", 3);
    let sums = story.finish(4).unwrap();
    assert_eq!((sums.bytes, sums.gaps, sums.lost, sums.kernel), (10, 1, 30, 20));
    assert_eq!((sums.open_ends, sums.packets), (1, 4));
    let text = String::from_utf8_lossy(&file);
    for what in [
        "30 bytes before this are missing",
        "20 bytes before this went over the kernel",
        "begins at byte 4711",
        "the end of this stream was not seen",
        "the ends of 1 directions were not seen",
    ] {
        assert!(text.contains(what), "{what}");
    }
}

/// A carrier's next life may have begun at the peer, in the same ring, when this one is looked at
/// for the last time.
#[test]
fn what_was_never_counted_is_another_connections() {
    let limits = [Said::Bytes(90, vec![1; 30], 1), Said::Lost(200), Said::Kernel(200)];
    let [bytes, lost, kernel] = limits.map(|said| said.up_to(100));
    assert_eq!(bytes, Said::Bytes(90, vec![1; 10], 1));
    assert_eq!((lost, kernel), (Said::Lost(100), Said::Kernel(100)));
    assert_eq!(Said::Bytes(150, vec![1; 30], 1).up_to(100), Said::Bytes(100, vec![], 1));
    let mut process = Process::new();
    let mut connection = process.connection(true);
    process.look(&mut connection);
    process.set(1, TAIL, 100);
    connection.end(&process, false, now()).unwrap();
    connection.look_behind_end(&process);
    let mut said = Vec::new();
    assert!(connection.settle_end(&HashSet::new(), now(), &mut |d, it| said.push((d, it))));
    assert_eq!((said, connection.has_all()), (vec![], [true, false]));
}
