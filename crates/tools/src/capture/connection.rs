//! One connection, followed: both of its directions, and whether they are still its own.

use super::stream::{Behind, Mark, Said, Stream};
use super::{Memory, ProcessMemory, Unreadable};
use netacc_control::rings::{self, Words};
use netacc_control::stats::{self, ACCEPTED, BY_DEVICE, CONNECTED, LATER_LIFE, Path, Rings};
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// For so long it is waited for what a peer says of its end, behind that of this side.
const PATIENCE: Duration = Duration::from_millis(200);

/// Where records of connections are read.
pub trait Records {
    /// That of a number, open or not.
    fn record(&self, index: u32) -> Option<Record>;
}

/// A record at one moment.
#[derive(Debug)]
pub struct Record {
    /// It is in use.
    pub is_open: bool,
    /// What it says.
    pub connection: stats::Connection,
}

/// What distinguishes a connection from others that had, or will have, its record or its rings.
/// (A record may be read while it is written: what it says of the rings belongs together if it says
/// the same twice, and while it goes on saying that.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The number of its record.
    pub index: u32,
    opened_unix_ns: u64,
    /// (The time alone is that of a coarse clock.)
    ends: [SocketAddr; 2],
    rings: Rings,
}

impl Key {
    /// That of a connection with addresses and rings.
    pub fn of(index: u32, connection: &stats::Connection) -> Option<Key> {
        let (ends, rings) = ([connection.local?, connection.peer?], connection.rings?);
        Some(Key { index, opened_unix_ns: connection.opened_unix_ns, ends, rings })
    }

    /// When the connection was made.
    pub fn opened_unix_ns(&self) -> u64 {
        self.opened_unix_ns
    }

    /// Whether its record is as old as the connection.
    pub fn is_of_whole_life(&self) -> bool {
        self.rings.origin & (CONNECTED | ACCEPTED) != 0
    }

    /// Whether it is the same connection, perhaps with other rings.
    pub fn is_same(&self, other: &Key) -> bool {
        let of = |key: &Key| (key.index, key.opened_unix_ns, key.ends);
        of(self) == of(other)
    }
}

/// What a look has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// Nothing is new.
    Idle,
    /// Something was.
    News,
    /// It has ended here.
    Over,
}

/// A connection; 0 is what this side sends, 1 what it receives.
#[derive(Debug)]
pub struct Connection {
    key: Key,
    streams: [Stream; 2],
    /// It was made when somebody looked already.
    is_new: bool,
    ended_at: Option<Instant>,
    /// It has left its rings, which serve others, and goes on over the kernel's TCP.
    has_left: bool,
    /// The peer's memory, and the lock there of its sending half.
    peer: Option<(Rc<ProcessMemory>, u64)>,
    /// What is certain, and has to wait for what the other direction had before.
    certain: [VecDeque<(u64, Said)>; 2],
    certain_bytes: usize,
    /// As [`Connection::ends`] and [`Connection::has_all`].
    ends: [bool; 2],
    has_all: [bool; 2],
    /// What was copied at its end, and is its own if nobody has the rings by now.
    last: Last,
}

/// What a look at, or behind, the end of a connection has found.
#[derive(Debug, Default)]
struct Last {
    /// Before the copies, where there are some.
    marks: Option<[Mark; 2]>,
    /// The words behind them, and whether the peer is idle.
    behind: Option<([Words; 2], bool)>,
}

/// Directions wait for each other, but not with more bytes than that.
const CERTAIN_MAX: usize = 1 << 20;

/// When something is looked at: for waits, and for who reads it (nanoseconds of Unix).
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For waits.
    pub instant: Instant,
    /// For who reads it.
    pub unix_ns: u64,
}

impl Connection {
    /// `None`: it has no rings, or what no library says.
    pub fn new(key: Key, of: &stats::Connection, is_new: bool) -> Option<Connection> {
        let rings = of.rings?;
        let [sent, received] = rings.bytes_at;
        let is_by_device = rings.origin & BY_DEVICE != 0;
        let [to_send, to_receive] = rings.sizes;
        let streams =
            [Stream::new(sent, to_send, false)?, Stream::new(received, to_receive, is_by_device)?];
        Some(Connection {
            key,
            streams,
            is_new,
            ended_at: None,
            has_left: false,
            peer: None,
            certain: Default::default(),
            certain_bytes: 0,
            ends: [false; 2],
            has_all: [false; 2],
            last: Last::default(),
        })
    }

    /// How many bytes of it wait to be certain, or for what comes first.
    pub fn held(&self) -> usize {
        self.streams.iter().map(Stream::held).sum::<usize>() + self.certain_bytes
    }

    /// So many bytes may be copied from here on: what is more is lost.
    pub fn set_room(&mut self, room: usize) {
        self.streams.iter_mut().for_each(|stream| stream.set_room(room as u64));
    }

    /// It has been on its rings.
    pub fn has_begun(&self) -> bool {
        self.streams.iter().any(Stream::has_begun)
    }

    /// Whether nobody knows when its peer sends.
    pub fn lacks_peer(&self) -> bool {
        self.peer.is_none()
    }

    /// Where the peer's process shows that it sends.
    pub fn set_peer(&mut self, memory: Rc<ProcessMemory>, lock_at: u64) {
        self.peer = Some((memory, lock_at));
    }

    /// What distinguishes it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// It has ended here.
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Looks what is new, and tells what is certain.
    pub fn look(
        &mut self,
        memory: &impl Memory,
        records: &impl Records,
        now: Now,
        tell: &mut impl FnMut(usize, Said),
    ) -> Result<Looked, Unreadable> {
        if self.has_left {
            return Ok(Looked::Idle);
        }
        let words = self.words(memory)?;
        let has_news = |(stream, words): (&Stream, _)| stream.has_news(words);
        let is_same = !is_free(&words) && ends(&words) == self.ends;
        if is_same && !self.streams.iter().zip(&words).any(has_news) {
            return Ok(Looked::Idle);
        }
        let Some(record) = self.own(records) else { return Ok(Looked::Over) };
        if is_free(&words) {
            self.leave(tell);
            return Ok(Looked::News);
        }
        let marks = self.marks();
        for (d, words) in words.iter().enumerate() {
            self.begin(d, words, &record, tell);
            let start = self.start(d, words, &record);
            self.streams[d].copy(memory, words, start, now.unix_ns)?;
        }
        let is_idle = [is_unlocked(memory, self.key.rings.lock_at)?, self.is_peer_idle()];
        let behind = self.words(memory)?;
        let moved = |d: usize| words[d].epoch != behind[d].epoch;
        if self.own(records).is_none() {
            self.back_to(marks);
            return Ok(Looked::Over);
        }
        if is_free(&behind) {
            self.back_to(marks);
            self.leave(tell);
            return Ok(Looked::News);
        }
        if moved(0) || moved(1) {
            // What is said of epochs may be of different moments.
            self.back_to(marks);
            return Ok(Looked::News);
        }
        self.ends = ends(&behind);
        self.settle(&behind, is_idle, now, tell);
        Ok(Looked::News)
    }

    /// It has left its rings for good, while it was open.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Its rings serve others from here on.
    fn leave(&mut self, tell: &mut impl FnMut(usize, Said)) {
        self.has_left = true;
        self.give_up(tell);
    }

    /// It has ended here: copies what is still there. It is told when it is known whose it is
    /// ([`Connection::settle_end`]).
    pub fn end(
        &mut self,
        memory: &impl Memory,
        may_copy: bool,
        now: Now,
    ) -> Result<(), Unreadable> {
        self.ended_at = Some(now.instant);
        if self.has_left || !may_copy {
            return Ok(());
        }
        let words = self.words(memory)?;
        if is_free(&words) {
            self.last.behind = Some((words, false));
            return Ok(());
        }
        let marks = self.marks();
        for (d, words) in words.iter().enumerate() {
            // (Its record says no more where a new epoch begins.)
            self.streams[d].copy(memory, words, None, now.unix_ns)?;
        }
        let is_peer_idle = self.is_peer_idle();
        let behind = self.words(memory)?;
        let is_same =
            |d: usize| words[d].epoch == behind[d].epoch && words[d].tail == behind[d].tail;
        if !is_same(0) || is_free(&behind) || words[1].epoch != behind[1].epoch {
            self.back_to(marks);
            return Ok(());
        }
        self.last = Last { marks: Some(marks), behind: Some((behind, is_peer_idle)) };
        Ok(())
    }

    /// Looks at the words behind its end, if that has not been done yet.
    pub fn look_behind_end(&mut self, memory: &impl Memory) {
        if self.last.behind.is_none() && !self.has_left {
            let is_peer_idle = self.is_peer_idle();
            self.last.behind = self.words(memory).ok().map(|words| (words, is_peer_idle));
        }
    }

    /// Tells what has become certain. `used`: where the words of the rings are that open
    /// connections have, as it was found behind that look. True: that was the last time.
    pub fn settle_end(
        &mut self,
        used: &HashSet<u64>,
        now: Now,
        tell: &mut impl FnMut(usize, Said),
    ) -> bool {
        let last = std::mem::take(&mut self.last);
        let is_used = self.key.rings.words_at.iter().any(|at| used.contains(at));
        if is_used && let Some(marks) = last.marks {
            self.back_to(marks);
        }
        let Some((words, is_peer_idle)) = last.behind.filter(|_| !is_used) else {
            self.give_up(tell);
            return true;
        };
        // (Words that are free begin with zeros when they are used next, so they say it still.)
        let said = ends(&words);
        self.ends = [self.ends[0] || said[0], self.ends[1] || said[1]];
        for (d, words) in words.iter().enumerate() {
            self.has_all[d] = words.is_on_ring() && self.streams[d].is_at(words);
        }
        let is_late = self.ended_at.is_none_or(|at| now.instant - at > PATIENCE);
        if is_late || is_free(&words) {
            self.give_up(tell);
            return true;
        }
        // This side sends no more.
        self.settle(&words, [true, is_peer_idle], now, tell);
        if self.streams.iter().any(Stream::waits) {
            return false;
        }
        self.give_up(tell);
        true
    }

    /// Nothing more can be found out.
    pub fn give_up(&mut self, tell: &mut impl FnMut(usize, Said)) {
        for d in [0, 1] {
            self.certain[d].drain(..).for_each(|(_, said)| tell(d, said));
            self.streams[d].give_up(&mut |said| tell(d, said));
        }
    }

    /// Which ends have said that they send nothing more: this side's, the peer's.
    pub fn ends(&self) -> [bool; 2] {
        self.ends
    }

    /// Which directions were copied up to their ends.
    pub fn has_all(&self) -> [bool; 2] {
        self.has_all
    }

    fn settle(
        &mut self,
        behind: &[Words; 2],
        is_idle: [bool; 2],
        now: Now,
        tell: &mut impl FnMut(usize, Said),
    ) {
        // The peer says where it consumes that it has closed, and so sends no more.
        let peer_closed = behind[0].request & rings::CLOSED != 0;
        let is_idle = [is_idle[0], is_idle[1] || peer_closed];
        for d in [0, 1] {
            let behind = Behind { words: behind[d], is_idle: is_idle[d] };
            let (certain, bytes) = (&mut self.certain[d], &mut self.certain_bytes);
            self.streams[d].settle(&behind, now.instant, &mut |said| {
                let time_ns = match &said {
                    Said::Bytes(_, all, time_ns) => {
                        *bytes += all.len();
                        *time_ns
                    }
                    _ => 0,
                };
                certain.push_back((time_ns, said));
            });
        }
        self.tell_in_order(tell);
    }

    /// Tells what is certain, in the order in which it was seen: a reply not before its request.
    fn tell_in_order(&mut self, tell: &mut impl FnMut(usize, Said)) {
        // Who connects asks, who accepts answers.
        let leader = usize::from(self.key.rings.origin & CONNECTED == 0);
        let waits = |d: usize, stream: &Stream| stream.waits_since().map(|at| (at, d != leader));
        let barriers = [waits(0, &self.streams[0]), waits(1, &self.streams[1])];
        loop {
            let first = |d: usize| self.certain[d].front().map(|(at, _)| (*at, d != leader));
            let fronts = [first(0), first(1)];
            let earlier = |d: usize| {
                let front = fronts[d]?;
                let other = fronts[1 - d].or(barriers[1 - d]);
                let may = other.is_none_or(|other| front <= other);
                (may || self.certain_bytes > CERTAIN_MAX).then_some(d)
            };
            let Some(d) = earlier(leader).or_else(|| earlier(1 - leader)) else { return };
            let Some((_, said)) = self.certain[d].pop_front() else { return };
            if let Said::Bytes(_, all, _) = &said {
                self.certain_bytes -= all.len();
            }
            tell(d, said);
        }
    }

    /// Begins to follow a direction that has come onto its ring.
    fn begin(
        &mut self,
        d: usize,
        words: &Words,
        record: &stats::Connection,
        tell: &mut impl FnMut(usize, Said),
    ) {
        if self.streams[d].has_begun() || !words.is_on_ring() {
            return;
        }
        let Some(start) = self.start(d, words, record) else { return };
        let (position, base) = match self.is_new {
            false => (words.tail, Some(words.base)),
            // Another one had the ring before; its stream begins here.
            true if self.key.rings.origin & LATER_LIFE != 0 => (start.wrapping_neg(), None),
            true => (0, Some(0)),
        };
        let offset = self.streams[d].begin(position, base, words.epoch, start);
        let [by_kernel, ..] = [record.tx_bytes, record.rx_bytes][d];
        tell(d, if self.is_new { Said::Kernel(offset) } else { Said::Begins(offset, by_kernel) });
    }

    /// The offset of the stream that position 0 of the ring would have, in the epoch of `words`.
    fn start(&self, d: usize, words: &Words, record: &stats::Connection) -> Option<u64> {
        let path = [record.tx_path, record.rx_path][d];
        // A receiver shows that when it has followed.
        let is_shown = path != Path::Tcp as u32 && (d == 0 || words.followed == words.epoch);
        if is_shown {
            return Some(record.ring_start[d]);
        }
        // The first one begins where the ring does.
        let is_first = words.epoch == 1 && self.key.rings.origin & LATER_LIFE == 0;
        is_first.then_some(words.fast_from)
    }

    /// What its record says, while that is its own.
    fn own(&self, records: &impl Records) -> Option<stats::Connection> {
        let record = records.record(self.key.index)?;
        let is_own =
            record.is_open && Key::of(self.key.index, &record.connection) == Some(self.key);
        is_own.then_some(record.connection)
    }

    /// What its record says behind its end, until another connection has it.
    pub fn last_words(&self, records: &impl Records) -> Option<stats::Connection> {
        let it = records.record(self.key.index)?.connection;
        (Key::of(self.key.index, &it) == Some(self.key)).then_some(it)
    }

    /// At this moment no thread of the peer's is in a send, as far as can be known.
    fn is_peer_idle(&mut self) -> bool {
        let Some((memory, lock_at)) = &self.peer else { return false };
        let is_idle = is_unlocked(&**memory, *lock_at);
        if is_idle.is_err() {
            self.peer = None;
        }
        is_idle == Ok(true)
    }

    fn words(&self, memory: &impl Memory) -> Result<[Words; 2], Unreadable> {
        let [sent, received] = self.key.rings.words_at;
        let first = sent.min(received);
        if sent.abs_diff(received) != rings::BYTES as u64 {
            let one = |at| {
                let mut bytes = [0; rings::BYTES];
                memory.read(at, &mut bytes).map(|()| Words::read(&bytes))
            };
            return Ok([one(sent)?, one(received)?]);
        }
        let mut both = [0; 2 * rings::BYTES];
        memory.read(first, &mut both)?;
        let (halves, _) = both.as_chunks::<{ rings::BYTES }>();
        let [low, high] = [0, 1].map(|half| halves.get(half).map(Words::read).unwrap_or_default());
        Ok(if first == sent { [low, high] } else { [high, low] })
    }

    fn marks(&self) -> [Mark; 2] {
        self.streams.each_ref().map(Stream::mark)
    }

    fn back_to(&mut self, marks: [Mark; 2]) {
        for (stream, mark) in self.streams.iter_mut().zip(marks) {
            stream.back_to(mark);
        }
    }
}

/// No thread has that lock.
fn is_unlocked(memory: &impl Memory, lock_at: u64) -> Result<bool, Unreadable> {
    let mut word = [0; 4];
    memory.read(lock_at, &mut word)?;
    Ok(word == [0; 4])
}

/// Which ends have said that they send nothing more. (Each says it where it consumes.)
fn ends([sent, received]: &[Words; 2]) -> [bool; 2] {
    let ended = |said: u64| said & (rings::HALF | rings::CLOSED) != 0;
    [ended(received.request), ended(sent.request)]
}

/// The rings may serve another connection.
fn is_free(words: &[Words; 2]) -> bool {
    words.iter().any(|words| words.request & rings::FREE != 0)
}
