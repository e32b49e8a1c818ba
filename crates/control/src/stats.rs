//! The statistics segment of a process that runs the library: its layout, and nothing else.
//!
//! The library creates a memfd named [`MEMFD_NAME`] (mode 0600, close-on-exec off the application's
//! way at a high number), maps it `MAP_SHARED` and writes into it with relaxed stores; `netacc_ss`
//! finds it through `/proc/PID/fd` and reads it. A [`Header`] is followed by `conn_capacity`
//! [`ConnRecord`]s at offset [`CONNS_OFFSET`].
//!
//! Rules: only atomics; all zero is a valid, empty segment; writers never format; the layout is a
//! contract, so any change of an offset or of a meaning bumps [`VERSION`]. New counters and reasons
//! fit into the slots that are there.
//!
//! A forked child inherits its parent's descriptor: the segment of a process is the one whose `pid`
//! is that process's own pid, as it sees itself in its pid namespace (the last `NSpid` of
//! `/proc/PID/status`).

mod names;
mod read;
mod record;

pub use names::{COUNTERS, Counter, REASONS, Reason};
pub use read::{Channel, Connection, ReadError, Snapshot};
pub use record::{RECORD_BYTES, Record, Sums};

use core::mem::size_of;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

/// Name given to memfd_create.
pub const MEMFD_NAME: &str = "netacc-stats";
/// What the link in `/proc/PID/fd` says.
pub const MEMFD_LINK: &str = "/memfd:netacc-stats (deleted)";
/// First word of a segment: "NETACCST", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"NETACCST");
/// Version of this layout.
pub const VERSION: u32 = 1;

/// Room for counters; those of [`Counter`] come first.
pub const COUNTER_SLOTS: usize = 128;
/// Room for reasons, indexed by code.
pub const REASON_SLOTS: usize = 64;
/// Room for paths, indexed by code.
pub const PATH_SLOTS: usize = 4;
/// Room for the rendered configuration.
pub const CONFIG_BYTES: usize = 4096;
/// Room for channels to processes of this host.
pub const CHANNEL_SLOTS: usize = 64;
/// Room for agreements with processes of other hosts.
pub const REMOTE_SLOTS: usize = 32;
/// Usual number of connection records; pages that are never written cost nothing.
pub const CONN_CAPACITY: u32 = 65536;
/// Where the first [`ConnRecord`] lies.
pub const CONNS_OFFSET: usize = size_of::<Header>();

/// The version of this crate, which is the library's, as [`Header::library`] has it.
pub const LIBRARY: u64 = packed(env!("CARGO_PKG_VERSION").as_bytes());

/// Where in [`Header::library`] the version of the agreement begins. (These bits were zero before
/// it was there.)
const PROTOCOL_AT: u32 = 48;

/// `1.2.3` in three numbers of 16 bits. What follows them (`-rc1`) does not count.
const fn packed(text: &[u8]) -> u64 {
    let (mut numbers, mut dots, mut rest) = (0u64, 0, text);
    while let [byte, tail @ ..] = rest {
        match byte {
            b'0'..=b'9' => {
                let number =
                    (numbers & 0xffff).wrapping_mul(10).wrapping_add((*byte - b'0') as u64);
                numbers = (numbers & !0xffff) | (number & 0xffff);
            }
            b'.' if dots < 2 => {
                numbers <<= 16;
                dots += 1;
            }
            _ => break,
        }
        rest = tail;
    }
    numbers
}

/// The version of a library as [`Header::library`] has it, without that of the agreement.
pub const fn packed_library([major, minor, patch]: [u16; 3]) -> u64 {
    (major as u64) << 32 | (minor as u64) << 16 | patch as u64
}

/// The version of this crate, which is the library's, in its three numbers.
pub const LIBRARY_NUMBERS: [u16; 3] =
    [(LIBRARY >> 32) as u16, (LIBRARY >> 16) as u16, LIBRARY as u16];

/// How bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Path {
    /// Kernel TCP.
    Tcp = 0,
    /// Shared memory.
    Shm = 1,
    /// RDMA.
    Rdma = 2,
    /// TCP in user space, to a peer that may be anybody.
    Utcp = 3,
}

impl Path {
    /// Every path, by code.
    pub const ALL: [Path; 4] = [Path::Tcp, Path::Shm, Path::Rdma, Path::Utcp];
    /// `tcp`, `shm`, `rdma` or `utcp`.
    pub const fn name(self) -> &'static str {
        match self {
            Path::Tcp => "tcp",
            Path::Shm => "shm",
            Path::Rdma => "rdma",
            Path::Utcp => "utcp",
        }
    }
    /// The path with that code.
    pub fn from_code(code: u32) -> Option<Path> {
        Path::ALL.get(code as usize).copied()
    }
}

/// Start of the segment.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`]; stored last, with release.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The process's own pid, as it sees itself.
    pub pid: AtomicU32,
    /// When the segment was made.
    pub started_unix_ns: AtomicU64,
    /// Number of [`ConnRecord`]s that follow.
    pub conn_capacity: AtomicU32,
    /// Records at and above this index were never used. A reader stops here.
    pub conn_high_water: AtomicU32,
    /// Number of [`ChannelRecord`]s in `channels`.
    pub channel_capacity: AtomicU32,
    /// Length of the text in `config`.
    pub config_len: AtomicU32,
    /// Version of the library, as three numbers of 16 bits (major, minor, patch), and above them
    /// that of the agreement between libraries; 0: unknown.
    pub library: AtomicU64,
    /// Where `netacc cfg set` writes its requests: the process's descriptor of a pipe, and the
    /// pipe's inode number; 0: it hears none. (Zero before there were such, as what follows.)
    pub requests_fd: AtomicU32,
    /// See `requests_fd`.
    pub requests_inode: AtomicU32,
    /// The last answer, as [`crate::config::Answer::word`] has it; with a code of 0 while `config`
    /// is being written.
    pub answer: AtomicU64,
    /// Open connections by their better direction's path.
    pub open_by_path: [AtomicU64; PATH_SLOTS],
    /// All connections by the best path that they ever had.
    pub total_by_path: [AtomicU64; PATH_SLOTS],
    /// Connections, open and closed, by the reason why they are, or ended, not accelerated.
    pub reasons: [AtomicU64; REASON_SLOTS],
    /// By [`Counter`].
    pub counters: [AtomicU64; COUNTER_SLOTS],
    /// What `Config::render` wrote.
    pub config: [AtomicU8; CONFIG_BYTES],
    /// Channels to other processes of this host.
    pub channels: [ChannelRecord; CHANNEL_SLOTS],
    /// Agreements with processes of other hosts, whose connections are on [`Path::Rdma`]. These
    /// bytes were zero before there were such: a reader and a writer of different age understand
    /// each other.
    pub remote: [ChannelRecord; REMOTE_SLOTS],
    /// Which library the process at the other end of each of those has, as it says: as `library`,
    /// by [`packed_library`]. (Zero before there were such.)
    pub remote_library: [AtomicU64; REMOTE_SLOTS],
}

/// One connection.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ConnRecord {
    /// 0 free, 1 open, 2 claimed but not filled in; 1 is written last when opened, 0 when closed.
    pub state: AtomicU32,
    /// File descriptor in the owning process (its lowest, where it has several).
    pub fd: AtomicU32,
    /// [`Path`] on which this side sends.
    pub tx_path: AtomicU32,
    /// [`Path`] on which this side receives.
    pub rx_path: AtomicU32,
    /// [`Reason`] code.
    pub reason: AtomicU32,
    /// Pid of the peer process as we see it; 0 unknown.
    pub peer_pid: AtomicU32,
    /// AF_INET (2), AF_INET6 (10), or 0 unknown.
    pub family: AtomicU32,
    /// In host order.
    pub local_port: AtomicU32,
    /// In host order.
    pub peer_port: AtomicU32,
    /// Times a direction went from TCP to a faster path.
    pub promotions: AtomicU32,
    /// Times a direction went back to TCP.
    pub demotions: AtomicU32,
    /// [`Path`] under which the header counts it; its owner's alone ([`Header::place`]).
    pub counted_path: AtomicU32,
    /// Address octets as two big-endian numbers; an IPv4 address fills the first four octets.
    pub local_addr: [AtomicU64; 2],
    /// As `local_addr`.
    pub peer_addr: [AtomicU64; 2],
    /// Bytes sent, by [`Path`].
    pub tx_bytes: [AtomicU64; PATH_SLOTS],
    /// Bytes received, by [`Path`].
    pub rx_bytes: [AtomicU64; PATH_SLOTS],
    /// When the connection was made.
    pub opened_unix_ns: AtomicU64,
    /// [`Reason`] code under which the header counts it; its owner's alone.
    pub counted_reason: AtomicU64,
    /// Calls that have sent something, on any path. (Zero before there was such a count.)
    pub tx_messages: AtomicU64,
    /// Calls that have received something.
    pub rx_messages: AtomicU64,
    /// Bytes of the rings that this side sends and receives by; 0: none, or not known.
    pub ring_bytes: [AtomicU32; 2],
    /// Bytes in them that were unread when the library last looked, which it does once a second
    /// while it sends: within the host of what is sent, between hosts of what is received.
    pub ring_used: [AtomicU32; 2],
    /// Addresses, in the process, of the words of the rings by which it sends and receives
    /// ([`crate::rings`]); 0: none. (Zero before there were such, as what follows.) Read first and
    /// stored last: the rest belongs to them.
    pub words_at: [AtomicU64; 2],
    /// Addresses of the bytes of these rings.
    pub bytes_at: [AtomicU64; 2],
    /// The offset of the stream, in numbers that wrap, that the ring's position 0 would have: of a
    /// direction that stands on the ring.
    pub ring_start: [AtomicU64; 2],
    /// Address of 32 bits that are not 0 while a thread of the process's sends.
    pub lock_at: AtomicU64,
    /// How it came to be, and to its rings: [`CONNECTED`], [`ACCEPTED`], [`LATER_LIFE`],
    /// [`BY_DEVICE`]. Without rings it may be [`UNCOUNTED`]. In its upper half: which rule holds
    /// for it ([`crate::config::Rule::tag`]); 0: not known (yet).
    pub origin: AtomicU64,
}

/// Of [`ConnRecord::origin`]: the process made the connection.
pub const CONNECTED: u64 = 1;
/// It accepted it.
pub const ACCEPTED: u64 = 2;
/// Its carrier, and its rings, have served another connection before.
pub const LATER_LIFE: u64 = 4;
/// What it receives is written into its ring by a device, of which no lock tells.
pub const BY_DEVICE: u64 = 8;
/// It is the kernel's for good, and what moves on it over TCP is not counted.
pub const UNCOUNTED: u64 = 16;

/// Where [`ConnRecord::origin`] has the rule's tag.
const RULE_SHIFT: u32 = 32;
/// There, that no rule holds.
pub const NO_RULE: u32 = 1;

/// Where the rings of a connection are; of what is sent and of what is received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rings {
    /// As [`ConnRecord::ring_bytes`].
    pub sizes: [u32; 2],
    /// As [`ConnRecord::words_at`].
    pub words_at: [u64; 2],
    /// As [`ConnRecord::bytes_at`].
    pub bytes_at: [u64; 2],
    /// As [`ConnRecord::lock_at`].
    pub lock_at: u64,
    /// The lower half of [`ConnRecord::origin`].
    pub origin: u64,
}

/// One channel: the shared memory between this process and another of this host, or the queue pairs
/// and the registered memory between this process and one of another host.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ChannelRecord {
    /// [`ChannelState`] code.
    pub state: AtomicU32,
    /// Pid of the other process as we see it; on another host, as it says.
    pub peer_pid: AtomicU32,
    /// Connections that it carries.
    pub slots_used: AtomicU32,
    /// Connections that it can carry.
    pub slots_total: AtomicU32,
    /// Shared memory that it takes, or memory that is registered for it.
    pub arena_bytes: AtomicU64,
    /// Connections that it has carried.
    pub connections_total: AtomicU64,
    /// When it was made.
    pub opened_unix_ns: AtomicU64,
    /// Queue pairs that it has; 0 on this host.
    pub pairs: AtomicU32,
    /// Of `peer_addr`: AF_INET (2), AF_INET6 (10), or 0 on this host.
    pub peer_family: AtomicU32,
    /// The other host, as in [`ConnRecord`].
    pub peer_addr: [AtomicU64; 2],
}

/// What a channel is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ChannelState {
    /// The record is not in use.
    Free = 0,
    /// It carries connections, or can.
    Open = 1,
    /// It takes no new connections and goes away with its last one.
    Draining = 2,
    /// The peer broke the rules, or died; nothing of it is trusted any more.
    Failed = 3,
    /// The peer broke the rules on a connection, which was reset; its others go on.
    Corrupt = 4,
}

impl ChannelState {
    /// The word in tables.
    pub const fn name(self) -> &'static str {
        match self {
            ChannelState::Free => "free",
            ChannelState::Open => "open",
            ChannelState::Draining => "draining",
            ChannelState::Failed => "failed",
            ChannelState::Corrupt => "corrupt",
        }
    }
    /// The state with that code.
    pub fn from_code(code: u32) -> Option<ChannelState> {
        match code {
            0 => Some(ChannelState::Free),
            1 => Some(ChannelState::Open),
            2 => Some(ChannelState::Draining),
            3 => Some(ChannelState::Failed),
            4 => Some(ChannelState::Corrupt),
            _ => None,
        }
    }
}

impl Header {
    /// Fills in a fresh segment.
    pub fn init(&self, pid: u32, started_unix_ns: u64, conn_capacity: u32, protocol: u16) {
        self.version.store(VERSION, Relaxed);
        self.pid.store(pid, Relaxed);
        self.started_unix_ns.store(started_unix_ns, Relaxed);
        self.conn_capacity.store(conn_capacity, Relaxed);
        self.channel_capacity.store(CHANNEL_SLOTS as u32, Relaxed);
        self.library.store(LIBRARY | u64::from(protocol) << PROTOCOL_AT, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Stores what `Config::render` made, as much of it as fits, in whole lines.
    pub fn set_config(&self, text: &str) {
        let mut fits = text.as_bytes();
        if let Some(first) = fits.get(..CONFIG_BYTES) {
            let whole = first.iter().rposition(|byte| *byte == b'\n');
            fits = first.get(..whole.map_or(0, |end| end + 1)).unwrap_or(&[]);
        }
        self.config_len.store(0, Release);
        for (to, from) in self.config.iter().zip(fits) {
            to.store(*from, Relaxed);
        }
        self.config_len.store(fits.len() as u32, Release);
    }

    /// Stores another configuration in the place of the one that is there. Its reader looks before
    /// and after whether `answer` is the same: what comes next is the answer to that request.
    pub fn replace_config(&self, text: &str, request: u64) {
        self.answer.store(request << 8, Relaxed);
        fence(Release);
        self.set_config(text);
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        if let Some(slot) = self.counters.get(counter as usize) {
            slot.fetch_add(amount, Relaxed);
        }
    }

    /// Adds one to a counter.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// A counter's value.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).map_or(0, |slot| slot.load(Relaxed))
    }

    /// Counts a connection under a reason.
    pub fn count_reason(&self, reason: Reason) {
        if let Some(slot) = self.reasons.get(reason as usize) {
            slot.fetch_add(1, Relaxed);
        }
    }

    /// Counts an open connection under that path from here on. (Each change begins where the one
    /// before ended, whoever else changes it meanwhile, and none comes behind
    /// [`ConnRecord::take_counted`]: no count stays below zero.)
    pub fn place(&self, record: &ConnRecord, path: Path) {
        let to = path as u32;
        let placed = record.counted_path.fetch_update(Relaxed, Relaxed, |from| {
            (from != to && from != COUNTED_NOWHERE).then_some(to)
        });
        if let Ok(from) = placed {
            move_one(&self.open_by_path, from as usize, to as usize);
        }
    }

    /// The same of the reason.
    pub fn place_reason(&self, record: &ConnRecord, why: Reason) {
        let to = why as u64;
        let placed = record.counted_reason.fetch_update(Relaxed, Relaxed, |from| {
            (from != to && from != u64::from(COUNTED_NOWHERE)).then_some(to)
        });
        if let Ok(from) = placed {
            move_one(&self.reasons, from as usize, to as usize);
        }
    }

    /// Tells readers that the record at `index` is used.
    pub fn raise_high_water(&self, index: u32) {
        let above = index.saturating_add(1);
        if self.conn_high_water.load(Relaxed) < above {
            self.conn_high_water.fetch_max(above, Release);
        }
    }
}

impl ChannelRecord {
    /// Stores the address of the other host.
    pub fn set_peer(&self, host: IpAddr) {
        let family = match host {
            IpAddr::V4(_) => AF_INET,
            IpAddr::V6(_) => AF_INET6,
        };
        self.peer_family.store(family, Relaxed);
        store_ip(&self.peer_addr, host);
    }
}

impl ConnRecord {
    /// Claims a free record; only its claimant may open it.
    pub fn claim(&self) -> bool {
        self.state.compare_exchange(RECORD_FREE, RECORD_CLAIMED, Acquire, Relaxed).is_ok()
    }

    /// Starts a record: everything zero but the descriptor, the time and the reason; on TCP; open.
    pub fn open(&self, fd: u32, reason: Reason, opened_unix_ns: u64) {
        // Not free meanwhile: another thread may be looking for a record.
        self.state.store(RECORD_CLAIMED, Relaxed);
        for word in [
            &self.tx_path,
            &self.rx_path,
            &self.peer_pid,
            &self.family,
            &self.local_port,
            &self.peer_port,
            &self.promotions,
            &self.demotions,
            &self.counted_path,
        ] {
            word.store(0, Relaxed);
        }
        for words in [&self.local_addr, &self.peer_addr] {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        for words in [&self.tx_bytes, &self.rx_bytes] {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        self.tx_messages.store(0, Relaxed);
        self.rx_messages.store(0, Relaxed);
        for words in [&self.ring_bytes, &self.ring_used] {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        // (Without words there is no ring.)
        let [sent, _] = &self.words_at;
        sent.store(0, Relaxed);
        self.origin.store(0, Relaxed);
        self.fd.store(fd, Relaxed);
        self.reason.store(reason as u32, Relaxed);
        self.counted_reason.store(reason as u64, Relaxed);
        self.opened_unix_ns.store(opened_unix_ns, Relaxed);
        self.state.store(RECORD_OPEN, Release);
    }

    /// Its connection is over: nobody counts it elsewhere from here on, not even a child of its
    /// maker's that still has it. The path under which it counts, which is the caller's to take
    /// back; its reason stays counted.
    pub fn take_counted(&self) -> Option<Path> {
        self.counted_reason.store(u64::from(COUNTED_NOWHERE), Relaxed);
        Path::from_code(self.counted_path.swap(COUNTED_NOWHERE, Relaxed))
    }

    /// Frees the record.
    pub fn close(&self) {
        self.state.store(RECORD_FREE, Release);
    }

    /// Whether it is in use.
    pub fn is_open(&self) -> bool {
        self.state.load(Acquire) == RECORD_OPEN
    }

    /// Stores both addresses.
    pub fn set_addresses(&self, local: SocketAddr, peer: SocketAddr) {
        self.family.store(family(&local), Relaxed);
        self.local_port.store(u32::from(local.port()), Relaxed);
        self.peer_port.store(u32::from(peer.port()), Relaxed);
        store_ip(&self.local_addr, local.ip());
        store_ip(&self.peer_addr, peer.ip());
    }

    /// What moves on it over TCP is not counted from here on.
    pub fn count_no_more(&self) {
        self.origin.fetch_or(UNCOUNTED, Relaxed);
    }

    /// Which rule holds for it: its tag, or [`NO_RULE`].
    pub fn set_rule(&self, tag: u32) {
        let set = |old: u64| Some(u64::from(old as u32) | u64::from(tag) << RULE_SHIFT);
        let _ = self.origin.fetch_update(Relaxed, Relaxed, set);
    }

    /// It has these rings from here on, which are empty.
    pub fn set_rings(&self, rings: &Rings) {
        for (to, from) in self.ring_bytes.iter().zip(rings.sizes) {
            to.store(from, Relaxed);
        }
        self.ring_used.iter().for_each(|word| word.store(0, Relaxed));
        for (to, from) in self.bytes_at.iter().zip(rings.bytes_at) {
            to.store(from, Relaxed);
        }
        self.ring_start.iter().for_each(|word| word.store(0, Relaxed));
        self.lock_at.store(rings.lock_at, Relaxed);
        let set = |old: u64| Some(rings.origin | old >> RULE_SHIFT << RULE_SHIFT);
        let _ = self.origin.fetch_update(Relaxed, Relaxed, set);
        for (to, from) in self.words_at.iter().zip(rings.words_at).rev() {
            to.store(from, Release);
        }
    }

    /// A direction stands on its ring: position 0 there is that offset of the stream.
    pub fn set_ring_start(&self, sends: bool, start: u64) {
        let [sent, received] = &self.ring_start;
        (if sends { sent } else { received }).store(start, Release);
    }

    /// Adds sent bytes, of one call.
    #[inline]
    pub fn add_tx(&self, path: Path, bytes: u64) {
        if let Some(slot) = self.tx_bytes.get(path as usize) {
            slot.fetch_add(bytes, Relaxed);
        }
        self.tx_messages.fetch_add(1, Relaxed);
    }

    /// Adds received bytes, of one call.
    #[inline]
    pub fn add_rx(&self, path: Path, bytes: u64) {
        if let Some(slot) = self.rx_bytes.get(path as usize) {
            slot.fetch_add(bytes, Relaxed);
        }
        self.rx_messages.fetch_add(1, Relaxed);
    }
}

fn move_one(counts: &[AtomicU64], from: usize, to: usize) {
    if let Some(count) = counts.get(from) {
        count.fetch_sub(1, Relaxed);
    }
    if let Some(count) = counts.get(to) {
        count.fetch_add(1, Relaxed);
    }
}

/// In the place of a code: the connection is over.
const COUNTED_NOWHERE: u32 = u32::MAX;

const RECORD_FREE: u32 = 0;
const RECORD_OPEN: u32 = 1;
const RECORD_CLAIMED: u32 = 2;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

fn family(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => AF_INET,
        SocketAddr::V6(_) => AF_INET6,
    }
}

/// Stores an address as two numbers.
pub(crate) fn store_ip(to: &[AtomicU64; 2], ip: IpAddr) {
    let words = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let [high, low] = to;
    high.store((words >> 64) as u64, Relaxed);
    low.store(words as u64, Relaxed);
}

/// The address that two numbers are.
pub(crate) fn unpack_ip(family: u32, high: u64, low: u64) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::from_bits((high >> 32) as u32).into()),
        AF_INET6 => Some(Ipv6Addr::from_bits((u128::from(high) << 64) | u128::from(low)).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
