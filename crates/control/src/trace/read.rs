//! Reading a trace. What is read may be cut short, changing, or nonsense: nothing in it is used as
//! a size or an index before it is checked.

use super::{KIND_BITS, LAP_BITS, MAGIC, TIME_AT, Table, VERSION};
use crate::stats::unpack_ip;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem::size_of;
use core::net::SocketAddr;
use core::ops::Range;

/// Why a file cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// Too short.
    Short,
    /// It does not begin as a trace does.
    NoTrace,
    /// A newer container, of this version.
    Version(u32),
    /// Its sizes contradict each other.
    Sizes,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Short => f.write_str("the trace is cut short"),
            ReadError::NoTrace => f.write_str("this is no trace"),
            ReadError::Version(version) => {
                write!(f, "the trace is of version {version}, this reads version {VERSION}")
            }
            ReadError::Sizes => f.write_str("the trace is damaged: its sizes cannot be"),
        }
    }
}

impl core::error::Error for ReadError {}

/// What a ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Never used.
    Free = 0,
    /// Of a connection, or of the process.
    Open = 1,
    /// The connection is over; the ring may serve another one.
    Closed = 2,
    /// The connection is over and went badly: kept for longer.
    Kept = 3,
    /// About to be used.
    Claimed = 4,
    /// A copy of a connection's ring from when it was in trouble: the connection goes on in its
    /// own.
    Excerpt = 5,
}

/// What a file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Pid of the process, as it saw itself.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// When the trace began.
    pub began_unix_ns: u64,
    /// The same by the clock of the events.
    pub began_ns: u64,
    /// The library's version; 0: unknown.
    pub library: u64,
    /// Where the first ring lies.
    pub rings_at: usize,
    /// How long each is.
    pub ring_bytes: usize,
    ring_head_bytes: usize,
    events_first: u64,
    /// How many there are.
    pub rings: usize,
    /// So many of them are places of latencies.
    pub latencies: usize,
    /// So many are excerpts.
    pub excerpts: usize,
    /// Connections that got none.
    pub missed: u64,
    /// The process has ended in order, or has become another program.
    pub is_ended: bool,
    /// It has become another program.
    pub is_another: bool,
    /// Connections that went badly, or were in trouble.
    pub troubles: u32,
    /// When an event was last recorded, nearly, by the clock of the events; 0: it is not known.
    pub last_ns: u64,
    /// Where the marks of the parts lie in which something was recorded, and how many there are;
    /// `None`: the file has none.
    pub changes: Option<(usize, usize)>,
    /// Of the bytes for which each stands the logarithm.
    pub changes_shift: u32,
    table_at: Range<usize>,
    /// What the events mean.
    pub table: Table,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// Where things lie in a header and in a ring's head: `super::Header`, `super::Ring`.
mod at {
    use crate::trace::{Header, Ring};
    use core::mem::offset_of;

    pub(super) const PROGRAM: usize = offset_of!(Header, program);
    pub(super) const VERSION: usize = offset_of!(Header, version);
    pub(super) const HEADER_BYTES: usize = offset_of!(Header, header_bytes);
    pub(super) const RING_BYTES: usize = offset_of!(Header, ring_bytes);
    pub(super) const RING_HEAD_BYTES: usize = offset_of!(Header, ring_head_bytes);
    pub(super) const RINGS: usize = offset_of!(Header, rings);
    pub(super) const EVENTS_FIRST: usize = offset_of!(Header, events_first);
    pub(super) const PID: usize = offset_of!(Header, pid);
    pub(super) const BEGAN_UNIX_NS: usize = offset_of!(Header, began_unix_ns);
    pub(super) const BEGAN_NS: usize = offset_of!(Header, began_ns);
    pub(super) const LIBRARY: usize = offset_of!(Header, library);
    pub(super) const TABLE_AT: usize = offset_of!(Header, table_at);
    pub(super) const TABLE_BYTES: usize = offset_of!(Header, table_bytes);
    pub(super) const MISSED: usize = offset_of!(Header, missed);
    pub(super) const ENDED: usize = offset_of!(Header, ended);
    pub(super) const TROUBLES: usize = offset_of!(Header, troubles);
    pub(super) const LATENCIES: usize = offset_of!(Header, latencies);
    pub(super) const EXCERPTS: usize = offset_of!(Header, excerpts);
    pub(super) const CHANGES_AT: usize = offset_of!(Header, changes_at);
    pub(super) const CHANGES_COUNT: usize = offset_of!(Header, changes_count);
    pub(super) const CHANGES_SHIFT: usize = offset_of!(Header, changes_shift);
    pub(super) const LAST_NS: usize = offset_of!(Header, last_ns);

    pub(super) const STATE: usize = offset_of!(Ring, state);
    pub(super) const FD: usize = offset_of!(Ring, fd);
    pub(super) const NUMBER: usize = offset_of!(Ring, number);
    pub(super) const RING_BEGAN: usize = offset_of!(Ring, began_ns);
    pub(super) const FAMILY: usize = offset_of!(Ring, family);
    pub(super) const LOCAL_PORT: usize = offset_of!(Ring, local_port);
    pub(super) const PEER_PORT: usize = offset_of!(Ring, peer_port);
    pub(super) const PEER_PID: usize = offset_of!(Ring, peer_pid);
    pub(super) const LOCAL_ADDR: usize = offset_of!(Ring, local_addr);
    pub(super) const PEER_ADDR: usize = offset_of!(Ring, peer_addr);
    pub(super) const RING_LATENCIES: usize = offset_of!(Ring, latencies);
    pub(super) const RING_EXCERPTS: usize = offset_of!(Ring, excerpts);
}

/// No header is longer, nor a ring: of few bytes there is not to be much text.
const HEADER_MAX: usize = 1 << 20;
const RING_MAX: usize = 64 << 10;
const RINGS_MAX: usize = 1 << 20;

impl Head {
    /// How many bytes of a file its header has, by the file's first bytes.
    pub fn bytes(first: &[u8]) -> Result<usize, ReadError> {
        let word = |at| u32_at(first, at).ok_or(ReadError::Short);
        if u64_at(first, 0).ok_or(ReadError::Short)? != MAGIC {
            return Err(ReadError::NoTrace);
        }
        match word(at::VERSION)? {
            VERSION => {}
            other => return Err(ReadError::Version(other)),
        }
        let bytes = word(at::HEADER_BYTES)? as usize;
        if (256..=HEADER_MAX).contains(&bytes) { Ok(bytes) } else { Err(ReadError::Sizes) }
    }

    /// Reads a header of that many bytes.
    pub fn read(bytes: &[u8]) -> Result<Head, ReadError> {
        let head = Head::without_table(bytes)?;
        let header = bytes.get(..head.rings_at).ok_or(ReadError::Short)?;
        let table = header.get(head.table_at.clone()).ok_or(ReadError::Sizes)?;
        Ok(Head { table: Table::parse(&String::from_utf8_lossy(table)), ..head })
    }

    /// So many bytes of a header change, the first ones.
    pub const CHANGING_BYTES: usize = 256;

    /// Reads them again. What the events mean no process changes: false, if this one has put it
    /// elsewhere, and all of the header has to be read.
    pub fn read_again(&mut self, first: &[u8]) -> Result<bool, ReadError> {
        let now = Head::without_table(first)?;
        let is_there = (now.rings_at, &now.table_at) == (self.rings_at, &self.table_at);
        if is_there {
            *self = Head { table: core::mem::take(&mut self.table), ..now };
        }
        Ok(is_there)
    }

    /// Reads a header's first bytes.
    fn without_table(header: &[u8]) -> Result<Head, ReadError> {
        let rings_at = Head::bytes(header)?;
        let word = |at| u32_at(header, at).ok_or(ReadError::Short);
        let long = |at| u64_at(header, at).ok_or(ReadError::Short);
        let size = |at| word(at).map(|size| size as usize);
        let (ring_bytes, ring_head_bytes) = (size(at::RING_BYTES)?, size(at::RING_HEAD_BYTES)?);
        if !(128..=RING_MAX).contains(&ring_bytes)
            || ring_head_bytes < 128
            || ring_bytes.saturating_sub(ring_head_bytes) < super::EVENT_BYTES
        {
            return Err(ReadError::Sizes);
        }
        let (table_at, table_bytes) = (size(at::TABLE_AT)?, size(at::TABLE_BYTES)?);
        let program = header.get(at::PROGRAM..at::PROGRAM + 16).ok_or(ReadError::Short)?;
        let program = program.split(|byte| *byte == 0).next().unwrap_or(&[]);
        Ok(Head {
            pid: word(at::PID)?,
            program: String::from_utf8_lossy(program).into_owned(),
            began_unix_ns: long(at::BEGAN_UNIX_NS)?,
            began_ns: long(at::BEGAN_NS)?,
            library: long(at::LIBRARY)?,
            rings_at,
            ring_bytes,
            ring_head_bytes,
            events_first: u64::from(word(at::EVENTS_FIRST)?),
            rings: size(at::RINGS)?.min(RINGS_MAX),
            latencies: size(at::LATENCIES)?,
            excerpts: size(at::EXCERPTS)?,
            missed: long(at::MISSED)?,
            is_ended: word(at::ENDED)? != 0,
            is_another: word(at::ENDED)? == super::BECAME_ANOTHER,
            troubles: word(at::TROUBLES)?,
            last_ns: long(at::LAST_NS)?,
            changes: changes(header, rings_at),
            changes_shift: word(at::CHANGES_SHIFT)?,
            table_at: table_at..table_at.saturating_add(table_bytes),
            table: Table::default(),
        })
    }

    /// When an event was, by the system's clock.
    pub fn unix_ns(&self, ns: u64) -> u64 {
        self.began_unix_ns.wrapping_add(ns.wrapping_sub(self.began_ns))
    }
}

/// Where the marks lie, if they lie in the header.
fn changes(header: &[u8], header_bytes: usize) -> Option<(usize, usize)> {
    let word = |at| Some(u32_at(header, at)? as usize);
    let (at, count) = (word(at::CHANGES_AT)?, word(at::CHANGES_COUNT)?);
    let end = at.checked_add(count.checked_mul(size_of::<u32>())?)?;
    let is_sound = at != 0 && end <= header_bytes && word(at::CHANGES_SHIFT)? < 32;
    is_sound.then_some((at, count))
}

/// What decides for how long the trace of a process that is gone is kept: what its file begins with
/// says it, without more of it, and without memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// When it recorded an event for the last time; 0: the file does not say so.
    pub unix_ns: u64,
    /// Connections that went badly, or were in trouble.
    pub troubles: u32,
}

impl Ended {
    /// So many bytes of the file.
    pub const BYTES: usize = 128;

    /// Reads it. `None`: these bytes are no trace's.
    pub fn read(first: &[u8; Ended::BYTES]) -> Option<Ended> {
        if u64_at(first, 0)? != MAGIC {
            return None;
        }
        if u32_at(first, at::VERSION)? != VERSION {
            return Some(Ended { unix_ns: 0, troubles: 0 });
        }
        let since = match u64_at(first, at::LAST_NS)? {
            0 => None,
            last => last.checked_sub(u64_at(first, at::BEGAN_NS)?),
        };
        let began = u64_at(first, at::BEGAN_UNIX_NS)?;
        let unix_ns = since.map_or(0, |since| began.saturating_add(since));
        Some(Ended { unix_ns, troubles: u32_at(first, at::TROUBLES)? })
    }
}

/// What a ring says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingText {
    /// [`State`] code.
    pub state: u32,
    /// Its number among the connections of the process; 0: the process's own.
    pub number: u64,
    /// Descriptor in the process.
    pub fd: u32,
    /// When it began, by the clock of the events.
    pub began_ns: u64,
    /// This end's address, where it is known.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub peer: Option<SocketAddr>,
    /// Pid of the peer process, as the process saw it; 0: not known.
    pub peer_pid: u32,
    /// Which ring has its latencies instead of events; 0: none.
    pub latencies: u32,
    /// So many excerpts of it were made.
    pub excerpts: u32,
    /// Events that were recorded, those that are overwritten as well.
    pub recorded: u64,
    /// The index of the first event that somebody is still writing; otherwise as `recorded`.
    pub written: u64,
    /// The index among them, the event's number, its time, and its second word.
    pub events: Vec<(u64, u32, u64, u64)>,
}

impl RingText {
    /// Reads a ring of a file with that head. `again`: its head, as it was read behind that, if
    /// somebody may be writing. `None`: nothing was ever in it, or it changed under the reader.
    pub fn read(head: &Head, bytes: &[u8], again: Option<&[u8]>) -> Option<RingText> {
        let bytes = bytes.get(..head.ring_bytes)?;
        let long = |at| u64_at(bytes, at);
        let ring = RingText::read_head(bytes)?;
        let recorded = ring.recorded;
        let now = match again {
            None => recorded,
            Some(again) if u64_at(again, at::NUMBER)? == ring.number => u64_at(again, 0)?,
            Some(_) => return None,
        };
        let room = head.ring_bytes.checked_sub(head.ring_head_bytes)? / super::EVENT_BYTES;
        let room = u64::try_from(room).ok()?;
        let kept = head.events_first;
        let last = room.checked_sub(kept).filter(|last| *last != 0)?;
        let began_ns = head.began_ns;
        let from = recorded.max(now).saturating_sub(last).max(kept);
        let (mut events, mut written) = (Vec::new(), recorded);
        for index in (0..kept.min(recorded)).chain(from..recorded) {
            let (place, lap) = super::place(index, room, kept);
            let at = head.ring_head_bytes + usize::try_from(place).ok()? * super::EVENT_BYTES;
            let (first, what) = (long(at)?, long(at + 8)?);
            // (Taken and not written yet: its writer is at it, or was killed.)
            if first >> KIND_BITS & ((1 << LAP_BITS) - 1) != lap || first == 0 {
                written = written.min(index);
                continue;
            }
            let number = first & ((1 << KIND_BITS) - 1);
            events.push((index, number as u32, whole_time(first >> TIME_AT, began_ns), what));
        }
        Some(RingText { written, events, ..ring })
    }

    /// Of which connection a ring is, by its first bytes, without events. `None`: nothing was ever
    /// in it.
    pub fn read_head(bytes: &[u8]) -> Option<RingText> {
        let word = |at| u32_at(bytes, at);
        let long = |at| u64_at(bytes, at);
        let state = word(at::STATE)?;
        if state == State::Free as u32 || state == State::Claimed as u32 {
            return None;
        }
        let address = |address: usize, port: usize| {
            let ip = unpack_ip(word(at::FAMILY)?, long(address)?, long(address + 8)?)?;
            Some(SocketAddr::new(ip, word(port)? as u16))
        };
        let recorded = long(0)?;
        Some(RingText {
            state,
            number: long(at::NUMBER)?,
            fd: word(at::FD)?,
            began_ns: long(at::RING_BEGAN)?,
            local: address(at::LOCAL_ADDR, at::LOCAL_PORT),
            peer: address(at::PEER_ADDR, at::PEER_PORT),
            peer_pid: word(at::PEER_PID)?,
            latencies: word(at::RING_LATENCIES)?,
            excerpts: word(at::RING_EXCERPTS)?,
            recorded,
            written: recorded,
            events: Vec::new(),
        })
    }
}

/// Puts the excerpts of a trace together with the rings that they are of: one of each connection,
/// where the first of its rings was.
#[must_use]
pub fn whole(rings: Vec<RingText>) -> Vec<RingText> {
    let is_excerpt = |ring: &RingText| ring.state == State::Excerpt as u32;
    if !rings.iter().any(is_excerpt) {
        return rings;
    }
    let mut all: Vec<RingText> = Vec::new();
    let mut known: BTreeMap<u64, usize> = BTreeMap::new();
    let mut joined = BTreeSet::new();
    for mut ring in rings {
        // (The place of latencies is another connection's.)
        ring.latencies = if is_excerpt(&ring) { 0 } else { ring.latencies };
        // (A number may be there more than once in a file that somebody has made up.)
        let at = known.get(&ring.number).copied();
        match at.and_then(|at| Some((at, all.get_mut(at)?))) {
            Some((at, other)) if is_excerpt(other) || is_excerpt(&ring) => {
                if is_excerpt(other) {
                    core::mem::swap(other, &mut ring);
                }
                other.recorded = other.recorded.max(ring.recorded);
                other.events.append(&mut ring.events);
                joined.insert(at);
            }
            _ => {
                known.insert(ring.number, all.len());
                all.push(ring);
            }
        }
    }
    for at in joined {
        let Some(ring) = all.get_mut(at) else { continue };
        ring.events.sort_by_key(|(index, ..)| *index);
        ring.events.dedup_by_key(|(index, ..)| *index);
    }
    all
}

/// An event's time has the low 56 bits of the clock's, which go round each 834 days of a host; the
/// rest is that of the trace, which began at most 13 days behind it and 821 days before it.
fn whole_time(low: u64, began: u64) -> u64 {
    const MASK: u64 = u64::MAX >> TIME_AT;
    const BEHIND: u64 = 1 << 50;
    let since = low.wrapping_sub(began).wrapping_add(BEHIND) & MASK;
    began.wrapping_add(since).wrapping_sub(BEHIND)
}
