//! Reads a segment from a copy of its bytes.
//!
//! The tools copy the bytes with `pread` instead of mapping them: nothing can change under the
//! reader, a segment that is cut short is an error instead of a SIGBUS, and no unsafe code is
//! needed. The writer is not trusted: every length is checked, every code may be unknown.

use super::{
    CHANNEL_SLOTS, CONFIG_BYTES, CONNS_OFFSET, COUNTER_SLOTS, ChannelRecord, ConnRecord, Header,
    MAGIC, PATH_SLOTS, Path, REASON_SLOTS, RECORD_OPEN, REMOTE_SLOTS, RULE_SHIFT, Rings, UNCOUNTED,
    VERSION, unpack_ip,
};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem::{offset_of, size_of};
use core::net::{IpAddr, SocketAddr};

/// Why bytes are not a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// Too short for a header.
    Short,
    /// The first word is not the magic number; the process may be starting.
    NotASegment,
    /// Made by a library with another layout.
    Version(u32),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Short => f.write_str("the statistics segment is cut short"),
            ReadError::NotASegment => f.write_str("not a statistics segment, or not yet one"),
            ReadError::Version(version) => write!(
                f,
                "the statistics have layout version {version}, this tool reads version {VERSION}"
            ),
        }
    }
}

impl core::error::Error for ReadError {}

/// A segment at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The process's own pid, as it sees itself.
    pub pid: u32,
    /// When the segment was made.
    pub started_unix_ns: u64,
    /// Version of the library: major, minor, patch; of an old one not known.
    pub library: Option<[u16; 3]>,
    /// Version of the protocol by which it agrees with others; of an old one not known.
    pub protocol: Option<u16>,
    /// Where the process hears requests: its descriptor, and the inode number of the pipe there.
    pub requests: Option<(u32, u32)>,
    /// The last answer to one.
    pub answer: u64,
    /// How many connections can be recorded.
    pub conn_capacity: u32,
    /// Records that were ever used.
    pub conn_high_water: u32,
    /// By path.
    pub open_by_path: [u64; PATH_SLOTS],
    /// By path.
    pub total_by_path: [u64; PATH_SLOTS],
    /// By code.
    pub reasons: [u64; REASON_SLOTS],
    /// By code.
    pub counters: [u64; COUNTER_SLOTS],
    /// What `Config::render` wrote.
    pub config: String,
    /// Those in use, on this host and to others.
    pub channels: Vec<Channel>,
}

/// A [`ChannelRecord`] at one moment.
#[derive(Debug, Clone)]
pub struct Channel {
    /// The path of its connections: [`Path::Shm`] to a process of this host, [`Path::Rdma`] to one
    /// of another.
    pub path: Path,
    /// The other host.
    pub peer: Option<IpAddr>,
    /// Which library the process of another host has, as it says; `None`: unknown, or of this one.
    pub library: Option<[u16; 3]>,
    /// Code.
    pub state: u32,
    /// Pid of the other process.
    pub peer_pid: u32,
    /// Connections that it carries.
    pub slots_used: u32,
    /// Connections that it can carry.
    pub slots_total: u32,
    /// Queue pairs that it has.
    pub pairs: u32,
    /// Memory that it takes.
    pub arena_bytes: u64,
    /// Connections that it has carried.
    pub connections_total: u64,
    /// When it was made.
    pub opened_unix_ns: u64,
}

/// A [`ConnRecord`] at one moment.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Descriptor.
    pub fd: u32,
    /// Code.
    pub tx_path: u32,
    /// Code.
    pub rx_path: u32,
    /// Code.
    pub reason: u32,
    /// Pid of the peer process; 0 unknown.
    pub peer_pid: u32,
    /// Own address, where known.
    pub local: Option<SocketAddr>,
    /// The peer's address, where known.
    pub peer: Option<SocketAddr>,
    /// By path.
    pub tx_bytes: [u64; PATH_SLOTS],
    /// By path.
    pub rx_bytes: [u64; PATH_SLOTS],
    /// It is the kernel's for good: what moves on it over TCP is not counted, nor are messages.
    pub is_uncounted: bool,
    /// The tag of the rule that holds for it; [`NO_RULE`](super::NO_RULE): none; 0: not known.
    pub rule: u32,
    /// Calls that have sent something.
    pub tx_messages: u64,
    /// Calls that have received something.
    pub rx_messages: u64,
    /// Of the rings that it sends and receives by.
    pub ring_bytes: [u32; 2],
    /// What of them was unread at the last look.
    pub ring_used: [u32; 2],
    /// Directions that left TCP.
    pub promotions: u32,
    /// Directions that went back.
    pub demotions: u32,
    /// When it was made.
    pub opened_unix_ns: u64,
    /// Where its rings are, if it has some.
    pub rings: Option<Rings>,
    /// As [`ConnRecord::ring_start`].
    pub ring_start: [u64; 2],
}

impl Snapshot {
    /// Reads a header from the first [`CONNS_OFFSET`] bytes of a segment.
    pub fn read(bytes: &[u8]) -> Result<Snapshot, ReadError> {
        if bytes.len() < CONNS_OFFSET {
            return Err(ReadError::Short);
        }
        if u64_at(bytes, offset_of!(Header, magic)) != MAGIC {
            return Err(ReadError::NotASegment);
        }
        let version = u32_at(bytes, offset_of!(Header, version));
        if version != VERSION {
            return Err(ReadError::Version(version));
        }
        let config_len = u32_at(bytes, offset_of!(Header, config_len)) as usize;
        let config = bytes
            .get(offset_of!(Header, config)..)
            .and_then(|from| from.get(..config_len.min(CONFIG_BYTES)))
            .unwrap_or(&[]);
        let word = |at| u32_at(bytes, at);
        let requests =
            (word(offset_of!(Header, requests_fd)), word(offset_of!(Header, requests_inode)));
        Ok(Snapshot {
            pid: u32_at(bytes, offset_of!(Header, pid)),
            requests: Some(requests).filter(|(_, inode)| *inode != 0),
            answer: u64_at(bytes, offset_of!(Header, answer)),
            library: library(u64_at(bytes, offset_of!(Header, library))),
            protocol: protocol(u64_at(bytes, offset_of!(Header, library))),
            started_unix_ns: u64_at(bytes, offset_of!(Header, started_unix_ns)),
            conn_capacity: u32_at(bytes, offset_of!(Header, conn_capacity)),
            conn_high_water: u32_at(bytes, offset_of!(Header, conn_high_water)),
            open_by_path: counts_at(bytes, offset_of!(Header, open_by_path)),
            total_by_path: counts_at(bytes, offset_of!(Header, total_by_path)),
            reasons: counts_at(bytes, offset_of!(Header, reasons)),
            counters: u64s_at(bytes, offset_of!(Header, counters)),
            config: String::from_utf8_lossy(config).into_owned(),
            channels: Channel::read_all(bytes),
        })
    }

    /// Where a segment has the last answer, in eight bytes.
    pub const ANSWER_AT: usize = offset_of!(Header, answer);

    /// Whether the configuration is being changed.
    pub fn is_changing(&self) -> bool {
        self.answer != 0 && self.answer & 0xff == 0
    }

    /// How many bytes of connection records follow the header that are worth reading.
    pub fn conns_bytes(&self) -> usize {
        let records = self.conn_high_water.min(self.conn_capacity) as usize;
        records * size_of::<ConnRecord>()
    }
}

impl Connection {
    /// Bytes that it has sent on all paths; `None` where not all of them are counted.
    pub fn sent(&self) -> Option<u64> {
        self.counted(all(&self.tx_bytes))
    }

    /// The same of what it has received.
    pub fn received(&self) -> Option<u64> {
        self.counted(all(&self.rx_bytes))
    }

    /// A count that is one only as long as the library follows the connection.
    pub fn counted(&self, count: u64) -> Option<u64> {
        (!self.is_uncounted).then_some(count)
    }

    /// How full the ring is by which it sends, of how many bytes: known within the host.
    pub fn tx_ring(&self) -> Option<(u32, u32)> {
        self.ring(0, Path::Shm)
    }

    /// The same of what it receives: known between hosts.
    pub fn rx_ring(&self) -> Option<(u32, u32)> {
        self.ring(1, Path::Rdma)
    }

    fn ring(&self, side: usize, path: Path) -> Option<(u32, u32)> {
        let on = [self.tx_path, self.rx_path].get(side).copied()?;
        let (used, bytes) = (*self.ring_used.get(side)?, *self.ring_bytes.get(side)?);
        (on == path as u32 && bytes != 0).then_some((used.min(bytes), bytes))
    }

    /// Reads the open connections from the bytes after the header.
    pub fn read_all(bytes: &[u8]) -> impl Iterator<Item = Connection> {
        bytes.chunks_exact(size_of::<ConnRecord>()).filter_map(Connection::read)
    }

    /// Reads one from its record, if it is open.
    pub fn read(bytes: &[u8]) -> Option<Connection> {
        (u32_at(bytes, offset_of!(ConnRecord, state)) == RECORD_OPEN)
            .then(|| Connection::read_closed(bytes))
    }

    /// Reads what the record of a connection that has ended still says of it, until it serves
    /// another one.
    pub fn read_closed(bytes: &[u8]) -> Connection {
        let word = |at| u32_at(bytes, at);
        let family = word(offset_of!(ConnRecord, family));
        let address = |addr, port| {
            let [high, low] = u64s_at(bytes, addr);
            let ip: IpAddr = unpack_ip(family, high, low)?;
            Some(SocketAddr::new(ip, u16::try_from(word(port)).ok()?))
        };
        Connection {
            fd: word(offset_of!(ConnRecord, fd)),
            tx_path: word(offset_of!(ConnRecord, tx_path)),
            rx_path: word(offset_of!(ConnRecord, rx_path)),
            reason: word(offset_of!(ConnRecord, reason)),
            peer_pid: word(offset_of!(ConnRecord, peer_pid)),
            local: address(offset_of!(ConnRecord, local_addr), offset_of!(ConnRecord, local_port)),
            peer: address(offset_of!(ConnRecord, peer_addr), offset_of!(ConnRecord, peer_port)),
            tx_bytes: u64s_at(bytes, offset_of!(ConnRecord, tx_bytes)),
            rx_bytes: u64s_at(bytes, offset_of!(ConnRecord, rx_bytes)),
            ring_bytes: u32s_at(bytes, offset_of!(ConnRecord, ring_bytes)),
            ring_used: u32s_at(bytes, offset_of!(ConnRecord, ring_used)),
            is_uncounted: u64_at(bytes, offset_of!(ConnRecord, origin)) & UNCOUNTED != 0,
            rule: (u64_at(bytes, offset_of!(ConnRecord, origin)) >> RULE_SHIFT) as u32,
            tx_messages: u64_at(bytes, offset_of!(ConnRecord, tx_messages)),
            rx_messages: u64_at(bytes, offset_of!(ConnRecord, rx_messages)),
            promotions: word(offset_of!(ConnRecord, promotions)),
            demotions: word(offset_of!(ConnRecord, demotions)),
            opened_unix_ns: u64_at(bytes, offset_of!(ConnRecord, opened_unix_ns)),
            rings: Some(Rings::read(bytes)).filter(|rings| !rings.words_at.contains(&0)),
            ring_start: u64s_at(bytes, offset_of!(ConnRecord, ring_start)),
        }
    }
}

impl Rings {
    fn read(bytes: &[u8]) -> Rings {
        Rings {
            words_at: u64s_at(bytes, offset_of!(ConnRecord, words_at)),
            sizes: u32s_at(bytes, offset_of!(ConnRecord, ring_bytes)),
            bytes_at: u64s_at(bytes, offset_of!(ConnRecord, bytes_at)),
            lock_at: u64_at(bytes, offset_of!(ConnRecord, lock_at)),
            origin: u64::from(u64_at(bytes, offset_of!(ConnRecord, origin)) as u32),
        }
    }
}

impl Channel {
    fn read_all(bytes: &[u8]) -> Vec<Channel> {
        let here = (offset_of!(Header, channels), CHANNEL_SLOTS, Path::Shm);
        let elsewhere = (offset_of!(Header, remote), REMOTE_SLOTS, Path::Rdma);
        let mut all = Vec::new();
        for (start, slots, path) in [here, elsewhere] {
            all.extend((0..slots).filter_map(|index| {
                let at = start + index * size_of::<ChannelRecord>();
                let is_remote = path == Path::Rdma;
                let packed = u64_at(bytes, offset_of!(Header, remote_library) + index * 8);
                let library = library(packed).filter(|_| is_remote);
                Some(Channel { library, ..Channel::read(bytes.get(at..)?, path)? })
            }));
        }
        all
    }

    fn read(bytes: &[u8], path: Path) -> Option<Channel> {
        let state = u32_at(bytes, offset_of!(ChannelRecord, state));
        let family = u32_at(bytes, offset_of!(ChannelRecord, peer_family));
        let [high, low] = u64s_at(bytes, offset_of!(ChannelRecord, peer_addr));
        (state != 0).then(|| Channel {
            path,
            library: None,
            peer: unpack_ip(family, high, low),
            pairs: u32_at(bytes, offset_of!(ChannelRecord, pairs)),
            state,
            peer_pid: u32_at(bytes, offset_of!(ChannelRecord, peer_pid)),
            slots_used: u32_at(bytes, offset_of!(ChannelRecord, slots_used)),
            slots_total: u32_at(bytes, offset_of!(ChannelRecord, slots_total)),
            arena_bytes: u64_at(bytes, offset_of!(ChannelRecord, arena_bytes)),
            connections_total: u64_at(bytes, offset_of!(ChannelRecord, connections_total)),
            opened_unix_ns: u64_at(bytes, offset_of!(ChannelRecord, opened_unix_ns)),
        })
    }
}

pub(super) fn protocol(packed: u64) -> Option<u16> {
    Some((packed >> super::PROTOCOL_AT) as u16).filter(|version| *version != 0)
}

pub(super) fn library(packed: u64) -> Option<[u16; 3]> {
    (packed != 0).then_some([(packed >> 32) as u16, (packed >> 16) as u16, packed as u16])
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|from| from.first_chunk());
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|from| from.first_chunk());
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

fn u32s_at<const N: usize>(bytes: &[u8], at: usize) -> [u32; N] {
    core::array::from_fn(|index| u32_at(bytes, at + index * 4))
}

/// Counts that go down as well. Who changes one may end between two steps, or be between them: one
/// that is below zero reads as none.
fn counts_at<const N: usize>(bytes: &[u8], at: usize) -> [u64; N] {
    u64s_at(bytes, at).map(|n| if n > i64::MAX.cast_unsigned() { 0 } else { n })
}

#[inline]
pub(super) fn u64s_at<const N: usize>(bytes: &[u8], at: usize) -> [u64; N] {
    core::array::from_fn(|index| u64_at(bytes, at + index * 8))
}

fn all(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}
