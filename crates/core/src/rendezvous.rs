//! How two processes find each other and agree on shared memory for a connection: the book-keeping.
//!
//! [`State`] is what this process knows: the control connections ([`Link`]s) to other processes with the channel that
//! belongs to each, our sockets that wait for an agreement, and the peers' candidates. It is driven by
//! [`crate::service`], under its lock; what may take long (asking the kernel who owns a socket, serving a
//! pull-back) is done there, without the lock.
//!
//! Everything received is hostile: it is a private copy (a packet), checked against what *we* know before it has any
//! effect. A peer that breaks the rules loses its link and its channel, and nothing else.
//!
//! `docs/design/rendezvous.md` tells the whole story.

pub(crate) mod auth;
pub(crate) mod packet;
mod table;

use crate::arena::{self, ARENAS_MAX, MAPPED_BYTES_MAX, Mapping, MemoryError, Pair, Pool, RING_MAX, RING_MIN};
use crate::channel::{Channel, ChannelMem, PLACES, SLOTS, quiet};
use crate::log::{debug_log, warn_log};
use crate::socket::{self, Socket};
use crate::{fd_table, lifecycle, stats, sys};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use auth::{Cred, PeerVerified};
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*, fence};
use netacc_control::stats::{CHANNEL_SLOTS, ChannelState, Counter, Reason};
use netacc_proto::rendezvous::{self as proto, Direction, Hello, Message, Role, Tuple, refuse};
use table::{Key, Table};

/// Control connections, and with them channels, of this process.
pub(crate) const LINKS: usize = 64;
const _: () = assert!(LINKS <= CHANNEL_SLOTS && LINKS <= u64::BITS as usize);
/// Of these, how many may belong to other users.
const FOREIGN_LINKS: usize = 16;
/// Sockets that wait, each way, and candidates of peers.
const PENDING: u32 = 16384;
/// Candidates of one peer that wait here.
const CANDIDATES_PER_LINK: u32 = 4096;
const CANDIDATES_PER_FOREIGN_LINK: u32 = 512;
/// Messages that wait for a peer that does not read: more than the answers to all offers that can be on their way
/// (what fits into a socket's buffer, and [`PUT_OFF`]).
const QUEUE: usize = 2048;
/// No new offers while so many messages wait.
const PUT_OFF: usize = 128;
/// Slots looked at for reuse at each allocation.
const SWEEP: usize = 8;
/// A peer that has not greeted for so long makes room for others.
const GREETING_NS: u64 = 1_000_000_000;

/// Bytes of the control memfd.
pub(crate) const CHANNEL_BYTES: usize = arena::whole_pages(size_of::<ChannelMem>());

/// A `Refuse` reason beside those of the protocol: the acceptor could not prove that it holds the connection.
pub(crate) const REFUSE_NOT_AUTHENTICATED: u16 = 7;

const LIB_VERSION: [u16; 3] = [0, 1, 0];

/// One of our sockets that waits for an agreement.
struct Mine {
    socket: &'static Socket,
    generation: u32,
    /// The links that were told (connecting side), and when they are to be: never before that.
    announced: u64,
    due: u64,
    /// Where an offer was made for it (accepting side).
    offered: Option<(usize, u16)>,
}

/// A peer's candidate.
struct Theirs {
    link: usize,
    token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// Offered, not answered yet.
    Offered,
    /// Agreed: our end may be in use.
    Live,
    /// Our end is gone, the peer's may not be.
    Gone,
}

/// What we know of a slot, out of the peer's reach.
#[derive(Clone, Copy)]
struct Slot {
    state: SlotState,
    /// Acceptor: the connector's name for the candidate, and our waiting socket.
    token: u64,
    waiting: Key,
    /// Acceptor: its rings.
    pair: Pair,
    socket: *const Socket,
    generation: u32,
}

impl Slot {
    const FREE: Slot = Slot {
        state: SlotState::Free,
        token: 0,
        waiting: Key(u64::MAX),
        pair: Pair { arena: 0, offset: 0 },
        socket: core::ptr::null(),
        generation: 0,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not in use.
    Free,
    /// Connected; the peer has not greeted.
    Greeting,
    /// In use.
    Open,
    /// The peer said good-bye: no new connections.
    Leaving,
    /// Gone; kept for the sockets that are still on its channel.
    Dead,
    /// The parent's: kept for the sockets that this forked child inherited. Nothing is received.
    Inherited,
}

/// A control connection and its channel.
pub(crate) struct Link {
    pub(crate) phase: Phase,
    /// Counts the lives of this entry.
    pub(crate) serial: u32,
    pub(crate) fd: c_int,
    /// What we are on it.
    role: Role,
    port: u16,
    k: u8,
    peer: Cred,
    since: u64,
    channel: Option<&'static Channel>,
    /// Acceptor: the rings.
    pool: Option<Pool>,
    /// Connector: the mapped arenas, in order of their numbers.
    arenas: Vec<Mapping>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots at and above it were never used.
    high_water: usize,
    sweep_at: usize,
    slots_used: u32,
    candidates: u32,
    queue: VecDeque<(Message, c_int)>,
    /// A send found no room: told by epoll when there is.
    blocked: bool,
    /// Agreements were put off for that.
    put_off: bool,
    /// Pull-backs asked for and not served yet; somebody is at it.
    pulls: [u64; SLOTS / 64],
    pub(crate) pulling: bool,
}

impl Link {
    const fn new() -> Link {
        Link {
            phase: Phase::Free,
            serial: 0,
            fd: -1,
            role: Role::Connector,
            port: 0,
            k: 0,
            peer: Cred { pid: 0, uid: u32::MAX },
            since: 0,
            channel: None,
            pool: None,
            arenas: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            high_water: 0,
            sweep_at: 0,
            slots_used: 0,
            candidates: 0,
            queue: VecDeque::new(),
            blocked: false,
            put_off: false,
            pulls: [0; SLOTS / 64],
            pulling: false,
        }
    }

    fn users(&self) -> u32 {
        self.channel.map_or(0, |c| c.users.load(Acquire))
    }

    fn takes_candidates(&self) -> bool {
        self.role == Role::Connector && matches!(self.phase, Phase::Greeting | Phase::Open)
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.phase, Phase::Greeting | Phase::Open | Phase::Leaving)
    }
}

/// What a peer did that ends its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A message that no honest peer sends, or not now.
    Malformed,
    /// The sender is not who made the connection.
    Impostor,
    /// It speaks another version.
    OtherVersion,
    /// Not the peer's fault: our limits.
    NoDescriptor,
    NoMemory,
    /// It does not read.
    Stuck,
    /// The connection ended.
    Ended,
    /// We need the place for another.
    Evicted,
}

/// What is left to do without the lock.
#[derive(Debug)]
pub(crate) enum Then {
    Nothing,
    /// Both of a pair may be there: see [`State::pair_for`].
    Agree(Tuple),
    /// An offer to check: see [`State::judge`].
    Judge(proto::Offer),
    /// A pull-back to serve: see [`State::next_pull`].
    Pull,
}

/// What this process knows of ports that it connects to.
#[derive(Clone, Copy)]
struct Port {
    port: u16,
    /// When all advert names were last tried.
    tried_all: u64,
    /// No listener with the library before that moment: said by a look at connect, and by one after the first bytes.
    absent_at_connect: u64,
    absent_later: u64,
    /// When all names are to be tried next (0: not), and how often that was done in a row.
    try_at: u64,
    tries: u8,
}

impl Port {
    const NONE: Port = Port { port: 0, tried_all: 0, absent_at_connect: 0, absent_later: 0, try_at: 0, tries: 0 };
}

/// A listening socket that tells connectors of this process.
#[derive(Clone, Copy)]
pub(crate) struct Advert {
    pub(crate) port: u16,
    pub(crate) fd: c_int,
    uid: u32,
    /// When to try again, where it could not be made.
    retry_at: u64,
}

impl Advert {
    const NONE: Advert = Advert { port: 0, fd: -1, uid: u32::MAX, retry_at: 0 };
}

/// Ports that one process advertises.
pub(crate) const ADVERTS: usize = 32;
/// Advert names of one port.
pub(crate) const NAMES: u8 = 32;
/// Of these, how many are tried at connect.
const QUICK_NAMES: u8 = 4;
const PORTS: usize = 64;
const ABSENT_NS: u64 = 250_000_000;
const RETRY_ADVERT_NS: u64 = 1_000_000_000;
/// A connection is announced when it is this old: an agreement costs both processes more than a short one can gain.
const ANNOUNCE_AFTER_NS: u64 = 2_000_000;
/// Workers advertise when they first accept, so names are tried again a while after a connection was made...
const TRY_AGAIN_NS: [u64; 3] = [10_000_000, 100_000_000, 1_000_000_000];
/// ...and all anew when the last look is this old.
const TRIED_LATELY_NS: u64 = 1_000_000_000;

struct Tables {
    /// Our sockets: made by connect, made by accept; in our own view.
    connected: Table<Mine>,
    accepted: Table<Mine>,
    /// The peers' candidates, in our view; numbered by their tokens.
    candidates: Table<Theirs>,
}

/// All of it.
pub(crate) struct State {
    /// The process whose service thread this is; another (a forked child) starts anew.
    pub(crate) process: u32,
    pub(crate) epoll: c_int,
    pub(crate) links: [Link; LINKS],
    pub(crate) adverts: [Advert; ADVERTS],
    ports: [Port; PORTS],
    tables: Option<Tables>,
    /// Channels by link and side. Their memory, and what they map, stays where it is for ever.
    shells: [[*mut Channel; 2]; LINKS],
    serial: u32,
    /// Connected sockets that are not old enough to be announced, oldest first.
    young: VecDeque<Key>,
    /// Accepted sockets whose candidate was there first.
    to_agree: Vec<Key>,
    /// Something for the service thread to do: links to recycle.
    pub(crate) to_recycle: bool,
}

// SAFETY: the pointers name sockets and channels, which are type-stable and shared through atomics, and mappings.
unsafe impl Send for State {}

/// The epoll item of a link: its place and life.
pub(crate) const EVENT_LINK: u64 = 1 << 62;
/// The epoll item of an advert: its place.
pub(crate) const EVENT_ADVERT: u64 = 1 << 61;

fn event_of(i: usize, serial: u32) -> u64 {
    EVENT_LINK | u64::from(serial) << 8 | i as u64
}

/// Whether `event` of a link is that of its present life.
pub(crate) fn link_of(event: u64) -> (usize, u32) {
    ((event & 0xff) as usize, (event >> 8) as u32)
}

impl State {
    pub(crate) const fn new() -> State {
        State {
            process: 0,
            epoll: -1,
            links: [const { Link::new() }; LINKS],
            adverts: [Advert::NONE; ADVERTS],
            ports: [Port::NONE; PORTS],
            tables: None,
            shells: [[core::ptr::null_mut(); 2]; LINKS],
            serial: 0,
            young: VecDeque::new(),
            to_agree: Vec::new(),
            to_recycle: false,
        }
    }

    /// Takes the memory of the tables. False: there is none.
    pub(crate) fn prepare(&mut self) -> bool {
        if self.tables.is_some() {
            return true;
        }
        let mut seed = [0u8; 8];
        sys::random(&mut seed);
        let seed = u64::from_ne_bytes(seed) ^ sys::now_ns();
        self.tables = (|| {
            self.to_agree.try_reserve_exact(PENDING as usize).ok()?;
            self.young.try_reserve_exact(PENDING as usize).ok()?;
            Some(Tables {
                connected: Table::new(PENDING, seed)?,
                accepted: Table::new(PENDING, seed)?,
                candidates: Table::new(PENDING, seed)?,
            })
        })();
        self.tables.is_some()
    }

    // ---- links ---------------------------------------------------------------------------------------------------

    fn link(&self, i: usize) -> Option<&Link> {
        self.links.get(i)
    }

    fn link_mut(&mut self, i: usize) -> Option<&mut Link> {
        self.links.get_mut(i)
    }

    /// The descriptor of a link, if it still is in that life and is read from.
    pub(crate) fn readable(&self, i: usize, serial: u32) -> Option<c_int> {
        self.link(i).filter(|l| l.serial == serial && l.is_read()).map(|l| l.fd)
    }

    /// A place for a new link; `foreign`: to another user's process.
    fn free_link(&self, foreign: bool) -> Option<usize> {
        let me = sys::geteuid();
        if foreign && self.links.iter().filter(|l| l.phase != Phase::Free && l.peer.uid != me).count() >= FOREIGN_LINKS {
            return None;
        }
        self.links.iter().position(|l| l.phase == Phase::Free)
    }

    /// Makes a link of a connected control socket (one of the library's own, which is closed when that fails).
    pub(crate) fn open_link(&mut self, fd: c_int, role: Role, port: u16, k: u8) -> Option<usize> {
        let opened = self.try_open_link(fd, role, port, k);
        if opened.is_none() {
            fd_table::close_internal(fd);
        }
        opened
    }

    fn try_open_link(&mut self, fd: c_int, role: Role, port: u16, k: u8) -> Option<usize> {
        let peer = auth::peer_of(fd)?;
        let i = self.free_link(peer.uid != sys::geteuid())?;
        if sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) < 0 {
            return None;
        }
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: event_of(i, serial) };
        // SAFETY: a live event.
        if unsafe { sys::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &mut event) } < 0 {
            return None;
        }
        let hello = Message::Hello(Hello::new(LIB_VERSION, sys::getpid(), role));
        if packet::send(fd, &hello, -1) < 0 {
            return None;
        }
        let l = self.link_mut(i)?;
        *l = Link { phase: Phase::Greeting, serial, fd, role, port, k, peer, since: sys::now_ns(), ..Link::new() };
        Some(i)
    }

    /// Sends, or queues behind what could not be sent. Service thread only.
    fn post(&mut self, i: usize, message: Message, fd: c_int) -> Result<(), Violation> {
        let Some(l) = self.link_mut(i).filter(|l| l.is_read()) else { return Err(Violation::Ended) };
        if l.queue.is_empty() {
            match packet::send(l.fd, &message, fd) {
                0 => return Ok(()),
                e if e == -(libc::EAGAIN as isize) => {}
                _ => return Err(Violation::Ended),
            }
        }
        if l.queue.len() >= QUEUE {
            return Err(Violation::Stuck);
        }
        let own = if message.fds() != 0 { copy_internal(fd) } else { -1 };
        if message.fds() != 0 && own < 0 {
            return Err(Violation::NoDescriptor);
        }
        l.queue.push_back((message, own));
        self.want_room(i);
        Ok(())
    }

    /// Sends now or not at all: the way of application threads, and of what is tried again later.
    fn try_send(&mut self, i: usize, message: Message) -> bool {
        let Some(l) = self.link(i).filter(|l| l.is_read()) else { return false };
        if l.queue.is_empty() {
            match packet::send(l.fd, &message, -1) {
                0 => return true,
                e if e != -(libc::EAGAIN as isize) => return false,
                _ => {}
            }
        }
        self.want_room(i);
        false
    }

    fn want_room(&mut self, i: usize) {
        let epoll = self.epoll;
        if let Some(l) = self.link_mut(i).filter(|l| !l.blocked) {
            l.blocked = true;
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLOUT) as u32, u64: event_of(i, l.serial) };
            // SAFETY: a live event.
            let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, l.fd, &mut event) };
        }
    }

    /// There is room: sends what waits. Returns the connections that can be agreed on now.
    pub(crate) fn has_room(&mut self, i: usize) -> Result<Vec<Tuple>, Violation> {
        let epoll = self.epoll;
        let Some(l) = self.links.get_mut(i) else { return Ok(Vec::new()) };
        while let Some((message, fd)) = l.queue.front() {
            match packet::send(l.fd, message, *fd) {
                0 => {}
                e if e == -(libc::EAGAIN as isize) => return Ok(Vec::new()),
                _ => return Err(Violation::Ended),
            }
            if let Some((_, fd)) = l.queue.pop_front().filter(|(_, fd)| *fd >= 0) {
                fd_table::close_internal(fd);
            }
        }
        l.blocked = false;
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: event_of(i, l.serial) };
        // SAFETY: a live event.
        let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, l.fd, &mut event) };
        let put_off = core::mem::take(&mut l.put_off);
        if l.role == Role::Connector {
            self.announce_all(i);
        }
        let mut tuples = Vec::new();
        if let Some(t) = self.tables.as_ref().filter(|_| put_off) {
            let mut at = t.candidates.oldest();
            while let Some(key) = at {
                if let Some((tuple, _)) = t.candidates.get(key).filter(|(_, c)| c.link == i) {
                    tuples.push(*tuple);
                }
                at = t.candidates.after(key);
            }
        }
        Ok(tuples)
    }

    /// Ends a link. Its channel, if sockets are on it, stays until they have left.
    pub(crate) fn end_link(&mut self, i: usize, why: Violation) {
        let epoll = self.epoll;
        let Some(l) = self.links.get_mut(i).filter(|l| l.is_read()) else { return };
        let fault = matches!(why, Violation::Malformed | Violation::Impostor);
        if fault {
            stats::count(Counter::PeerCorrupt);
            warn_log!("process {} (user {}) broke the rules of the agreement ({why:?}): its channel is given up", l.peer.pid, l.peer.uid);
        } else {
            debug_log!("link to process {} ended: {why:?}", l.peer.pid);
        }
        let _ = packet::send(l.fd, &Message::Bye, -1);
        // SAFETY: deleting takes no event.
        let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, l.fd, core::ptr::null_mut()) };
        let _ = sys::shutdown(l.fd, libc::SHUT_RDWR);
        for (_, fd) in l.queue.drain(..) {
            if fd >= 0 {
                fd_table::close_internal(fd);
            }
        }
        l.phase = Phase::Dead;
        l.candidates = 0;
        if let Some(c) = l.channel {
            // The descriptor itself stays ours until the last user left, so that nobody writes into another's.
            c.control.store(-1, Release);
            c.dead.store(1, Release);
            stats::count(if fault { Counter::ChannelsFailed } else { Counter::ChannelsClosed });
            let state = if fault { ChannelState::Failed } else { ChannelState::Draining };
            record(i, |r| r.state.store(state as u32, Relaxed));
        }
        let reason = match why {
            Violation::OtherVersion => Reason::VersionMismatch,
            Violation::Impostor => Reason::NotAuthenticated,
            Violation::Malformed => Reason::PeerCorrupt,
            Violation::NoDescriptor => Reason::NoDescriptor,
            Violation::NoMemory => Reason::NoMemory,
            _ => Reason::ChannelFailed,
        };
        self.forget_link(i, reason);
        self.recycle(i);
    }

    /// Takes a dead link out of the tables.
    fn forget_link(&mut self, i: usize, reason: Reason) {
        let Some(t) = self.tables.as_mut() else { return };
        let mut at = t.candidates.oldest();
        while let Some(key) = at {
            at = t.candidates.after(key);
            if t.candidates.get(key).is_some_and(|(_, c)| c.link == i) {
                t.candidates.remove(key);
            }
        }
        let mut at = t.connected.oldest();
        while let Some(key) = at {
            at = t.connected.after(key);
            if let Some(m) = t.connected.get_mut(key).filter(|m| m.announced & (1 << i) != 0) {
                m.announced &= !(1 << i);
                if m.announced == 0 && m.is_current() {
                    m.socket.set_reason(reason);
                }
            }
        }
        let mut at = t.accepted.oldest();
        while let Some(key) = at {
            at = t.accepted.after(key);
            if let Some(m) = t.accepted.get_mut(key).filter(|m| m.offered.is_some_and(|(l, _)| l == i)) {
                m.offered = None;
                if m.is_current() {
                    m.socket.set_reason(reason);
                }
            }
        }
    }

    /// Frees a dead link when no socket is on its channel any more.
    pub(crate) fn recycle(&mut self, i: usize) {
        let Some(l) = self.links.get_mut(i).filter(|l| l.phase == Phase::Dead && l.users() == 0 && !l.pulling) else { return };
        if let Some(c) = l.channel {
            for d in &c.doorbells {
                let fd = d.swap(-1, AcqRel);
                if fd >= 0 {
                    fd_table::close_internal(fd);
                }
            }
            for s in &c.sockets {
                s.store(core::ptr::null_mut(), Release);
            }
            // SAFETY: the mapping is the channel's own; a late reader finds zeros, which say nothing.
            let _ = unsafe { sys::map_over(c.mem.cast(), -1, CHANNEL_BYTES) };
            record(i, |r| r.state.store(ChannelState::Free as u32, Relaxed));
        }
        let arenas = l.pool.as_ref().map_or(l.arenas.as_slice(), |p| p.arenas());
        for a in arenas {
            // SAFETY: rings are used by attached sockets alone, and there are none.
            unsafe { a.unmap() };
        }
        if l.fd >= 0 {
            fd_table::close_internal(l.fd);
        }
        *l = Link::new();
    }

    /// Makes room by ending the link that has been of no use for longest. Service thread only.
    pub(crate) fn evict_idle(&mut self) -> bool {
        let now = sys::now_ns();
        let idle = |l: &&(usize, &Link)| match l.1.phase {
            Phase::Greeting => now.saturating_sub(l.1.since) > GREETING_NS,
            Phase::Open | Phase::Leaving => l.1.users() == 0 && l.1.slots_used == 0 && l.1.candidates == 0,
            _ => false,
        };
        let all: Vec<(usize, &Link)> = self.links.iter().enumerate().collect();
        let victim = all.iter().filter(idle).min_by_key(|l| l.1.since).map(|l| l.0);
        if let Some(i) = victim {
            self.end_link(i, Violation::Evicted);
        }
        victim.is_some()
    }

    /// The channel of a link, made of `memfd`.
    fn make_channel(&mut self, i: usize, memfd: c_int) -> Result<&'static Channel, MemoryError> {
        let Some(l) = self.links.get(i) else { return Err(MemoryError::NoMemory) };
        let side = match l.role {
            Role::Acceptor => 0,
            Role::Connector => 1,
        };
        let (pid, fd) = (l.peer.pid, l.fd);
        let Some(shell) = self.shells.get_mut(i).and_then(|s| s.get_mut(side)) else { return Err(MemoryError::NoMemory) };
        if shell.is_null() {
            let mem = sys::map_private(CHANNEL_BYTES);
            let at = sys::map_private(size_of::<Channel>());
            if mem.is_null() || at.is_null() {
                return Err(MemoryError::NoMemory);
            }
            let at = at.cast::<Channel>();
            // SAFETY: fresh zeroed memory of a Channel's size and alignment (pages); these two fields never change again.
            unsafe { (&raw mut (*at).mem).write(mem.cast()) };
            // SAFETY: as above.
            unsafe { (&raw mut (*at).side).write(side) };
            *shell = at;
        }
        let at = *shell;
        // SAFETY: `mem` was written above when the shell was made.
        let mem = unsafe { (*at).mem };
        // SAFETY: nobody uses this channel: its link had been recycled, or never was.
        if !unsafe { sys::map_over(mem.cast(), memfd, CHANNEL_BYTES) } {
            return Err(MemoryError::NoMemory);
        }
        // SAFETY: as above.
        unsafe { (&raw mut (*at).peer_pid).write_volatile(pid) };
        // SAFETY: valid from here on for ever: zeroed atomics, and the fields just written.
        let c: &'static Channel = unsafe { &*at };
        c.doorbells.iter().for_each(|d| d.store(-1, Relaxed));
        c.owed.iter().chain(&c.passed).for_each(|w| w.store(0, Relaxed));
        c.users.store(0, Relaxed);
        c.dead.store(0, Relaxed);
        c.control.store(fd, Release);
        let l = self.links.get_mut(i).ok_or(MemoryError::NoMemory)?;
        l.slots.try_reserve_exact(SLOTS).map_err(|_| MemoryError::NoMemory)?;
        l.free.try_reserve_exact(SLOTS).map_err(|_| MemoryError::NoMemory)?;
        l.slots.resize(SLOTS, Slot::FREE);
        if l.role == Role::Acceptor {
            l.free.extend((0..SLOTS as u16).rev());
        }
        l.channel = Some(c);
        stats::count(Counter::ChannelsOpened);
        record(i, |r| {
            r.peer_pid.store(pid, Relaxed);
            r.slots_used.store(0, Relaxed);
            r.slots_total.store(SLOTS as u32, Relaxed);
            r.arena_bytes.store(0, Relaxed);
            r.connections_total.store(0, Relaxed);
            r.opened_unix_ns.store(sys::unix_ns(), Relaxed);
            r.state.store(ChannelState::Open as u32, Release);
        });
        Ok(c)
    }

    // ---- our sockets ---------------------------------------------------------------------------------------------

    /// Notes a socket that connect made: every advertiser of its port is told of it in a while. `None`: nobody to tell.
    /// `Some(true)`: the service thread does not know yet that it has to wake up for that.
    pub(crate) fn add_connected(&mut self, socket: &'static Socket) -> Option<bool> {
        let tuple = socket.tuple();
        if self.links_to(tuple.peer_port()) == 0 {
            return None;
        }
        let due = sys::now_ns().saturating_add(ANNOUNCE_AFTER_NS);
        let key = add(&mut self.tables.as_mut()?.connected, tuple, socket, due)?;
        let first = self.young.is_empty();
        if self.young.len() < self.young.capacity() {
            self.young.push_back(key);
            return Some(first);
        }
        self.announce_now(key);
        Some(false)
    }

    pub(crate) fn is_connected(&self, socket: &Socket) -> bool {
        let tuple = socket.tuple();
        self.tables.as_ref().is_some_and(|t| t.connected.find(&tuple, |m| m.is(socket)).is_some())
    }

    /// Tells every advertiser of a socket's port of it, without waiting any longer.
    pub(crate) fn hurry(&mut self, socket: &Socket) {
        let key = self.tables.as_ref().and_then(|t| t.connected.find(&socket.tuple(), |m| m.is(socket)));
        if let Some(key) = key {
            self.announce_now(key);
        }
    }

    fn announce_now(&mut self, key: Key) {
        let Some(t) = self.tables.as_mut() else { return };
        let Some(m) = t.connected.get_mut(key) else { return };
        m.due = 0;
        let port = t.connected.get(key).map_or(0, |(t, _)| t.peer_port());
        let told = self.links_to(port);
        for i in (0..LINKS).filter(|i| told & 1 << i != 0) {
            self.announce(i, key);
        }
    }

    /// Announces what is old enough. Service thread only.
    pub(crate) fn announce_due(&mut self) {
        let now = sys::now_ns();
        while let Some(key) = self.young.front().copied() {
            let due = self.tables.as_ref().and_then(|t| t.connected.get(key)).map_or(0, |(_, m)| m.due);
            if due > now {
                break;
            }
            self.young.pop_front();
            self.announce_now(key);
        }
    }

    #[cfg(test)]
    pub(crate) fn age(&mut self) {
        for key in &self.young {
            if let Some(m) = self.tables.as_mut().and_then(|t| t.connected.get_mut(*key)) {
                m.due = 0;
            }
        }
        self.announce_due();
    }

    /// When [`announce_due`](Self::announce_due) has something to do; 0: never.
    fn next_due(&self) -> u64 {
        // One that is closed or announced already counts as due at once.
        self.young.front().map_or(0, |key| self.tables.as_ref().and_then(|t| t.connected.get(*key)).map_or(1, |(_, m)| m.due.max(1)))
    }

    /// The links that take candidates for connections to `port`.
    fn links_to(&self, port: u16) -> u64 {
        self.links.iter().enumerate().filter(|(_, l)| l.takes_candidates() && l.port == port).fold(0, |m, (i, _)| m | 1 << i)
    }

    fn announce(&mut self, i: usize, key: Key) -> bool {
        let Some((tuple, m)) = self.tables.as_ref().and_then(|t| t.connected.get(key)) else { return true };
        if m.announced & 1 << i != 0 {
            return true;
        }
        let sent = Message::Candidate(proto::Candidate { tuple: *tuple, token: key.0 });
        if !self.try_send(i, sent) {
            return false;
        }
        if let Some(m) = self.tables.as_mut().and_then(|t| t.connected.get_mut(key)) {
            m.announced |= 1 << i;
        }
        true
    }

    /// Tells a link of all candidates that are old enough and that it does not know yet, as far as there is room.
    pub(crate) fn announce_all(&mut self, i: usize) {
        let Some(port) = self.link(i).filter(|l| l.takes_candidates()).map(|l| l.port) else { return };
        let now = sys::now_ns();
        let mut at = self.tables.as_ref().and_then(|t| t.connected.oldest());
        while let Some(key) = at {
            let found = self.tables.as_ref().and_then(|t| t.connected.get(key));
            let wanted = found.is_some_and(|(t, m)| t.peer_port() == port && m.due <= now);
            if wanted && !self.announce(i, key) {
                return;
            }
            at = self.tables.as_ref().and_then(|t| t.connected.after(key));
        }
    }

    /// Notes a socket that accept made. `None`: no room; `Some(true)`: its candidate is there already.
    pub(crate) fn add_accepted(&mut self, socket: &'static Socket) -> Option<bool> {
        let tuple = socket.tuple();
        let t = self.tables.as_mut()?;
        let key = add(&mut t.accepted, tuple, socket, 0)?;
        let there = t.candidates.find(&tuple, |_| true).is_some();
        if there && self.to_agree.len() < self.to_agree.capacity() {
            self.to_agree.push(key);
        }
        Some(there)
    }

    /// The accepted sockets that [`add_accepted`](Self::add_accepted) found a candidate for.
    pub(crate) fn next_to_agree(&mut self) -> Option<Tuple> {
        loop {
            let key = self.to_agree.pop()?;
            if let Some((tuple, _)) = self.tables.as_ref().and_then(|t| t.accepted.get(key)) {
                return Some(*tuple);
            }
        }
    }

    /// The socket's memory is about to be given up, or it is to stay in the kernel for good.
    pub(crate) fn closing(&mut self, socket: &Socket) {
        let tuple = socket.tuple();
        let mut withdraw = None;
        if let Some(t) = self.tables.as_mut() {
            if let Some(key) = t.connected.find(&tuple, |m| m.is(socket)) {
                withdraw = t.connected.remove(key).map(|(_, m)| (key, m.announced));
            }
            if let Some(key) = t.accepted.find(&tuple, |m| m.is(socket)) {
                // A slot that was offered for it: the peer's answer will find nobody.
                t.accepted.remove(key);
            }
        }
        if let Some((key, told)) = withdraw {
            for i in (0..LINKS).filter(|i| told & 1 << i != 0) {
                self.try_send(i, Message::Withdraw { token: key.0 });
            }
        }
        let taken_up = !socket.channel.load(Acquire).is_null() || socket.is(socket::ATTACHING);
        if socket.offered.load(Acquire) == 1 && !taken_up {
            // SAFETY: complete since `offered` is 1; written by no one else while we hold the lock.
            let offer = unsafe { *socket.offer.get() };
            let held = self.link_with(offer.channel).filter(|i| {
                let slot = self.link(*i).and_then(|l| l.slots.get(offer.slot as usize));
                slot.is_some_and(|s| s.state == SlotState::Live && core::ptr::eq(s.socket, socket) && s.generation == socket.generation.load(Acquire))
            });
            if let Some(i) = held {
                self.release(i, offer.slot as usize);
            }
        }
    }

    fn link_with(&self, channel: *const Channel) -> Option<usize> {
        self.links.iter().position(|l| l.channel.is_some_and(|c| core::ptr::eq(c, channel)))
    }

    /// Our end of an attached slot is gone. Returns true when the service thread has something to clear away.
    pub(crate) fn released(&mut self, channel: &Channel, slot: usize) -> bool {
        let Some(i) = self.link_with(channel) else { return false };
        let stale = self.link(i).and_then(|l| l.slots.get(slot)).is_some_and(|s| {
            // SAFETY: null or a socket, which is type-stable memory.
            let socket = unsafe { s.socket.as_ref() };
            s.state != SlotState::Live || socket.is_some_and(|k| k.is(socket::CANDIDATE) && k.generation.load(Acquire) == s.generation)
        });
        if stale { false } else { self.release(i, slot) }
    }

    /// Gives our end of a live slot back.
    fn release(&mut self, i: usize, slot: usize) -> bool {
        let Some(l) = self.links.get_mut(i) else { return false };
        let (Some(c), Some(s)) = (l.channel, l.slots.get_mut(slot)) else { return false };
        if s.state != SlotState::Live {
            return false;
        }
        s.state = SlotState::Gone;
        s.socket = core::ptr::null();
        if let Some(k) = c.sockets.get(slot) {
            k.store(core::ptr::null_mut(), Release);
        }
        // The last word of our side on this slot: from here on the acceptor may give it to another connection.
        consumed_by(c, slot, c.side).fetch_or(quiet::CLOSED, AcqRel);
        let left = c.users.fetch_sub(1, AcqRel);
        match l.role {
            Role::Connector => {
                *s = Slot::FREE;
                l.slots_used = l.slots_used.saturating_sub(1);
                let used = l.slots_used;
                record(i, |r| r.slots_used.store(used, Relaxed));
            }
            Role::Acceptor => self.reclaim(i, slot),
        }
        let l = self.link(i);
        let clear = left == 1 && l.is_some_and(|l| matches!(l.phase, Phase::Dead));
        self.to_recycle |= clear;
        clear
    }

    /// Acceptor: makes a slot free again if both ends have left it.
    fn reclaim(&mut self, i: usize, slot: usize) {
        let Some(l) = self.links.get_mut(i) else { return };
        let (Some(c), Some(s)) = (l.channel, l.slots.get_mut(slot)) else { return };
        let peer_gone = consumed_by(c, slot, c.side ^ 1).load(Acquire) & quiet::CLOSED != 0;
        match s.state {
            SlotState::Gone if peer_gone => {}
            // A forked child of ours closed the last descriptor.
            SlotState::Live if peer_gone && consumed_by(c, slot, c.side).load(Acquire) & quiet::CLOSED != 0 => {
                c.users.fetch_sub(1, AcqRel);
                if let Some(k) = c.sockets.get(slot) {
                    k.store(core::ptr::null_mut(), Release);
                }
            }
            _ => return,
        }
        self.free_slot(i, slot);
    }

    fn free_slot(&mut self, i: usize, slot: usize) {
        let Some(l) = self.links.get_mut(i) else { return };
        let Some(s) = l.slots.get_mut(slot) else { return };
        let pair = s.pair;
        *s = Slot::FREE;
        if let Some(p) = l.pool.as_mut() {
            p.give_back(pair);
        }
        if l.free.len() < l.free.capacity() {
            l.free.push(slot as u16);
        }
        l.slots_used = l.slots_used.saturating_sub(1);
        let used = l.slots_used;
        record(i, |r| r.slots_used.store(used, Relaxed));
    }

    // ---- the acceptor's part -------------------------------------------------------------------------------------

    /// A waiting accepted socket and a candidate for it, with the process that claims the candidate.
    pub(crate) fn pair_for(&mut self, tuple: &Tuple) -> Option<(u64, u64, Cred)> {
        loop {
            let t = self.tables.as_mut()?;
            let waiting = t.accepted.find(tuple, |m| m.offered.is_none())?;
            if !t.accepted.get(waiting)?.1.is_current() {
                t.accepted.remove(waiting);
                continue;
            }
            let candidate = t.candidates.find(tuple, |_| true)?;
            let link = t.candidates.get(candidate)?.1.link;
            let Some(l) = self.links.get_mut(link).filter(|l| l.phase == Phase::Open) else {
                t.candidates.remove(candidate);
                continue;
            };
            if l.queue.len() >= PUT_OFF {
                l.put_off = true;
                return None;
            }
            return Some((waiting.0, candidate.0, l.peer));
        }
    }

    /// Makes the offer, if the pair still is there. `proof`: the candidate's process is who it has to be.
    pub(crate) fn offer(&mut self, waiting: u64, candidate: u64, proof: Option<PeerVerified>) {
        let (waiting, candidate) = (Key(waiting), Key(candidate));
        let Some(t) = self.tables.as_mut() else { return };
        let Some((tuple, theirs)) = t.candidates.remove(candidate) else { return };
        let i = theirs.link;
        if let Some(l) = self.links.get_mut(i) {
            l.candidates = l.candidates.saturating_sub(1);
        }
        let Some(m) = t.accepted.get_mut(waiting).filter(|m| m.is_current() && m.offered.is_none()) else { return };
        let socket = m.socket;
        let Some(proof) = proof else {
            stats::count(Counter::AuthFailures);
            socket.set_reason(Reason::NotAuthenticated);
            return;
        };
        match self.try_offer(i, waiting, theirs.token, tuple, &proof) {
            Ok(slot) => {
                if let Some(m) = self.tables.as_mut().and_then(|t| t.accepted.get_mut(waiting)) {
                    m.offered = Some((i, slot));
                }
                stats::count(Counter::OffersSent);
            }
            Err(why) => {
                socket.set_reason(match why {
                    OfferError::Memory(MemoryError::NoDescriptor) => Reason::NoDescriptor,
                    OfferError::Memory(MemoryError::Full) | OfferError::NoSlot => Reason::ChannelFull,
                    OfferError::Memory(_) => Reason::NoMemory,
                    OfferError::Link(_) => Reason::ChannelFailed,
                });
                if let OfferError::Link(why) = why {
                    self.end_link(i, why);
                }
            }
        }
    }

    fn try_offer(&mut self, i: usize, waiting: Key, token: u64, tuple: Tuple, _proof: &PeerVerified) -> Result<u16, OfferError> {
        let channel = match self.link(i).and_then(|l| l.channel) {
            Some(c) => c,
            None => self.create_channel(i)?,
        };
        self.sweep(i);
        let slot = self.link_mut(i).and_then(|l| l.free.pop()).ok_or(OfferError::NoSlot)?;
        let offer = self.fill_slot(i, channel, slot, waiting, token, tuple);
        let sent = offer.and_then(|offer| self.post(i, Message::Offer(offer), -1).map_err(OfferError::Link));
        match sent {
            Ok(()) => Ok(slot),
            Err(e) => {
                let l = self.link_mut(i).and_then(|l| l.slots.get(slot as usize).map(|s| s.state));
                if l == Some(SlotState::Offered) {
                    self.free_slot(i, slot as usize);
                } else if let Some(l) = self.link_mut(i).filter(|l| l.free.len() < l.free.capacity()) {
                    l.free.push(slot);
                }
                Err(e)
            }
        }
    }

    /// Rings and fresh words for a slot.
    fn fill_slot(&mut self, i: usize, channel: &Channel, slot: u16, waiting: Key, token: u64, tuple: Tuple) -> Result<proto::Offer, OfferError> {
        let taken = self.link_mut(i).and_then(|l| l.pool.as_mut()?.take());
        let pair = match taken {
            Some(p) => p,
            None => {
                self.add_arena(i)?;
                self.link_mut(i).and_then(|l| l.pool.as_mut()?.take()).ok_or(OfferError::Memory(MemoryError::NoMemory))?
            }
        };
        zero_slot(channel, slot as usize);
        let Some(l) = self.link_mut(i) else { return Err(OfferError::NoSlot) };
        let ring = l.pool.as_ref().map_or(0, |p| p.ring_bytes());
        l.high_water = l.high_water.max(slot as usize + 1);
        l.slots_used += 1;
        if let Some(s) = l.slots.get_mut(slot as usize) {
            *s = Slot { state: SlotState::Offered, token, waiting, pair, ..Slot::FREE };
        }
        let used = l.slots_used;
        record(i, |r| {
            r.slots_used.store(used, Relaxed);
            r.connections_total.fetch_add(1, Relaxed);
        });
        Ok(proto::Offer {
            token,
            tuple,
            slot,
            arena: pair.arena,
            ring_offset: [pair.offset, pair.offset + ring as u64],
            ring_bytes: [ring as u32; 2],
        })
    }

    fn create_channel(&mut self, i: usize) -> Result<&'static Channel, OfferError> {
        let memfd = arena::create_sealed(b"netacc-channel\0", CHANNEL_BYTES).map_err(OfferError::Memory)?;
        let made = self.make_channel(i, memfd).map_err(OfferError::Memory);
        let told = made.and_then(|c| {
            let m = proto::Channel { channel_bytes: CHANNEL_BYTES as u64, slots: SLOTS as u32, places: PLACES as u32 };
            self.post(i, Message::Channel(m), memfd).map_err(OfferError::Link).map(|()| c)
        });
        fd_table::close_internal(memfd);
        if told.is_ok() {
            if let Some(l) = self.link_mut(i) {
                l.pool = Some(Pool::new(lifecycle::config()));
            }
        }
        told
    }

    fn add_arena(&mut self, i: usize) -> Result<(), OfferError> {
        let Some(pool) = self.link_mut(i).and_then(|l| l.pool.as_mut()) else { return Err(OfferError::Memory(MemoryError::NoMemory)) };
        let (memfd, number, bytes) = pool.grow().map_err(OfferError::Memory)?;
        let total = pool.total_bytes();
        let told = self.post(i, Message::Arena(proto::Arena { arena: number, bytes: bytes as u64 }), memfd);
        fd_table::close_internal(memfd);
        record(i, |r| r.arena_bytes.store(total as u64, Relaxed));
        told.map_err(OfferError::Link)
    }

    /// Looks at a few slots, or at all when none is free, for such that both ends have left.
    fn sweep(&mut self, i: usize) {
        let Some(l) = self.link(i) else { return };
        let count = if l.free.is_empty() { l.high_water } else { SWEEP.min(l.high_water) };
        for _ in 0..count {
            let Some(l) = self.link_mut(i) else { return };
            let at = l.sweep_at;
            l.sweep_at = if at + 1 < l.high_water { at + 1 } else { 0 };
            self.reclaim(i, at);
        }
    }

    fn on_accept(&mut self, i: usize, token: u64, slot: u16) -> Result<Then, Violation> {
        let Some(l) = self.links.get_mut(i) else { return Err(Violation::Ended) };
        let (Some(c), Some(pool)) = (l.channel, l.pool.as_ref()) else { return Err(Violation::Malformed) };
        let Some(s) = l.slots.get_mut(slot as usize) else { return Err(Violation::Malformed) };
        if s.state != SlotState::Offered || s.token != token {
            return Err(Violation::Malformed);
        }
        let Some([to_us, from_us]) = pool.rings(s.pair) else { return Err(Violation::Malformed) };
        let ring = pool.ring_bytes() as u32;
        let waiting = self.tables.as_mut().and_then(|t| t.accepted.remove(s.waiting));
        let live = waiting.filter(|(_, m)| m.is_current() && m.socket.is(socket::CANDIDATE)).map(|(_, m)| m);
        s.state = SlotState::Live;
        c.users.fetch_add(1, AcqRel);
        match live {
            Some(m) => {
                s.socket = m.socket;
                s.generation = m.generation;
                hand_over(m.socket, c, slot, from_us, ring, to_us, ring);
            }
            None => {
                // Closed in the meantime.
                self.release(i, slot as usize);
            }
        }
        Ok(Then::Nothing)
    }

    fn on_refuse(&mut self, i: usize, token: u64, slot: u16, reason: u16) -> Result<Then, Violation> {
        let Some(s) = self.link(i).and_then(|l| l.slots.get(slot as usize)).copied() else { return Err(Violation::Malformed) };
        if s.state != SlotState::Offered || s.token != token {
            return Err(Violation::Malformed);
        }
        stats::count(Counter::OffersRefused);
        self.free_slot(i, slot as usize);
        let Some(t) = self.tables.as_mut() else { return Ok(Then::Nothing) };
        let Some(tuple) = t.accepted.get(s.waiting).map(|(t, _)| *t) else { return Ok(Then::Nothing) };
        if let Some(m) = t.accepted.get_mut(s.waiting) {
            m.offered = None;
            if m.is_current() {
                m.socket.set_reason(match reason {
                    REFUSE_NOT_AUTHENTICATED => Reason::NotAuthenticated,
                    _ => Reason::PeerRefused,
                });
            }
        }
        // Another process may have a claim to it, too.
        Ok(Then::Agree(tuple))
    }

    fn on_candidate(&mut self, i: usize, c: proto::Candidate) -> Then {
        let me = sys::geteuid();
        let Some(t) = self.tables.as_mut() else { return Then::Nothing };
        let Some(l) = self.links.get_mut(i) else { return Then::Nothing };
        let quota = if l.peer.uid == me { CANDIDATES_PER_LINK } else { CANDIDATES_PER_FOREIGN_LINK };
        if let Some(old) = t.candidates.find_number(c.token, |x| x.link == i) {
            t.candidates.remove(old);
            l.candidates = l.candidates.saturating_sub(1);
        }
        if l.candidates >= quota || t.candidates.is_full() {
            // Its own oldest makes room, if it is among the oldest of all.
            let mut at = t.candidates.oldest();
            for _ in 0..64 {
                let Some(key) = at else { break };
                if t.candidates.get(key).is_some_and(|(_, x)| x.link == i) {
                    t.candidates.remove(key);
                    l.candidates = l.candidates.saturating_sub(1);
                    break;
                }
                at = t.candidates.after(key);
            }
            if l.candidates >= quota {
                return Then::Nothing;
            }
        }
        let tuple = c.tuple.mirrored();
        if t.candidates.insert(tuple, c.token, Theirs { link: i, token: c.token }).is_none() {
            return Then::Nothing;
        }
        l.candidates += 1;
        Then::Agree(tuple)
    }

    // ---- the connector's part ------------------------------------------------------------------------------------

    /// The connection that an offer is for, and the process that made the offer. `None`: it is refused.
    pub(crate) fn judge(&mut self, i: usize, offer: &proto::Offer) -> Result<Option<(Tuple, Cred)>, Violation> {
        let reason = match self.check_offer(i, offer) {
            Ok(found) => return Ok(Some(found)),
            Err(reason) => reason,
        };
        self.refuse(i, offer, reason).map(|()| None)
    }

    fn refuse(&mut self, i: usize, offer: &proto::Offer, reason: u16) -> Result<(), Violation> {
        stats::count(Counter::OffersRefused);
        self.post(i, Message::Refuse { token: offer.token, slot: offer.slot, reason }, -1)
    }

    fn check_offer(&self, i: usize, offer: &proto::Offer) -> Result<(Tuple, Cred), u16> {
        let (l, t) = self.link(i).zip(self.tables.as_ref()).ok_or(refuse::UNKNOWN_TOKEN)?;
        let (tuple, m) = t.connected.get(Key(offer.token)).ok_or(refuse::WITHDRAWN)?;
        // A token that this peer was never told is not its business.
        if m.announced & 1 << i == 0 {
            return Err(refuse::UNKNOWN_TOKEN);
        }
        if offer.tuple.mirrored() != *tuple {
            return Err(refuse::WRONG_TUPLE);
        }
        if !m.is_current() || !m.socket.is(socket::CANDIDATE) {
            return Err(refuse::WITHDRAWN);
        }
        let arena = l.arenas.get(offer.arena as usize).ok_or(refuse::BAD_MEMORY)?;
        let slot = l.slots.get(offer.slot as usize).ok_or(refuse::BAD_MEMORY)?;
        let sizes = offer.ring_bytes.iter().all(|b| b.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&(*b as usize)));
        let places = offer.ring_offset.iter().all(|o| o % 64 == 0);
        if slot.state != SlotState::Free || !sizes || !places || !offer.fits(arena.bytes as u64) {
            return Err(refuse::BAD_MEMORY);
        }
        Ok((*tuple, l.peer))
    }

    /// Takes an offer up, or refuses it. `proof`: its maker is who it has to be.
    pub(crate) fn take_up(&mut self, i: usize, offer: &proto::Offer, proof: Option<PeerVerified>) -> Result<(), Violation> {
        // The world may have changed while the kernel was asked.
        if self.judge(i, offer)?.is_none() {
            return Ok(());
        }
        let key = Key(offer.token);
        if proof.is_none() {
            stats::count(Counter::AuthFailures);
            if let Some((_, m)) = self.tables.as_ref().and_then(|t| t.connected.get(key)) {
                m.socket.set_reason(Reason::NotAuthenticated);
            }
            return self.refuse(i, offer, REFUSE_NOT_AUTHENTICATED);
        }
        self.post(i, Message::Accept { token: offer.token, slot: offer.slot }, -1)?;
        let Some((_, m)) = self.tables.as_mut().and_then(|t| t.connected.remove(key)) else { return Ok(()) };
        let Some(l) = self.links.get_mut(i) else { return Ok(()) };
        let (Some(c), Some(arena), Some(s)) = (l.channel, l.arenas.get(offer.arena as usize), l.slots.get_mut(offer.slot as usize)) else { return Ok(()) };
        let [tx_at, rx_at] = offer.ring_offset.map(|o| usize::try_from(o).unwrap_or(usize::MAX));
        let [tx_bytes, rx_bytes] = offer.ring_bytes;
        const { assert!(Direction::ConnectorToAcceptor as usize == 0 && Direction::AcceptorToConnector as usize == 1) };
        // SAFETY: `check_offer` found both rings inside of this arena, which is mapped whole.
        let (tx, rx) = unsafe { (arena.at.add(tx_at), arena.at.add(rx_at)) };
        *s = Slot { state: SlotState::Live, socket: m.socket, generation: m.generation, ..Slot::FREE };
        c.users.fetch_add(1, AcqRel);
        l.slots_used += 1;
        let used = l.slots_used;
        record(i, |r| {
            r.slots_used.store(used, Relaxed);
            r.connections_total.fetch_add(1, Relaxed);
        });
        hand_over(m.socket, c, offer.slot, tx, tx_bytes, rx, rx_bytes);
        for other in (0..LINKS).filter(|o| *o != i && m.announced & 1 << o != 0) {
            self.try_send(other, Message::Withdraw { token: offer.token });
        }
        Ok(())
    }

    fn on_channel(&mut self, i: usize, m: proto::Channel, fd: c_int) -> Result<Then, Violation> {
        let ours = proto::Channel { channel_bytes: CHANNEL_BYTES as u64, slots: SLOTS as u32, places: PLACES as u32 };
        let fresh = self.link(i).is_some_and(|l| l.channel.is_none());
        if !fresh || m != ours || !arena::is_sealed(fd, CHANNEL_BYTES) {
            return Err(Violation::Malformed);
        }
        match self.make_channel(i, fd) {
            Ok(_) => Ok(Then::Nothing),
            Err(_) => Err(Violation::NoMemory),
        }
    }

    fn on_arena(&mut self, i: usize, m: proto::Arena, fd: c_int) -> Result<Then, Violation> {
        let Some(l) = self.link_mut(i).filter(|l| l.channel.is_some()) else { return Err(Violation::Malformed) };
        let mapped: usize = l.arenas.iter().map(|a| a.bytes).sum();
        let after = usize::try_from(m.bytes).ok().and_then(|b| b.checked_add(mapped));
        if m.arena as usize != l.arenas.len() || l.arenas.len() >= ARENAS_MAX || after.is_none_or(|b| b > MAPPED_BYTES_MAX) {
            return Err(Violation::Malformed);
        }
        if l.arenas.try_reserve(1).is_err() {
            return Err(Violation::NoMemory);
        }
        match arena::map_received(fd, m.bytes) {
            Ok(mapping) => l.arenas.push(mapping),
            Err(MemoryError::NotSealed) => return Err(Violation::Malformed),
            Err(_) => return Err(Violation::NoMemory),
        }
        record(i, |r| r.arena_bytes.store(after.unwrap_or(0) as u64, Relaxed));
        Ok(Then::Nothing)
    }

    // ---- messages ------------------------------------------------------------------------------------------------

    /// One message of the peer's. `fd`, where the message brought one, is closed or kept by this.
    pub(crate) fn handle(&mut self, i: usize, message: Message, fd: c_int, sender: Cred) -> Result<Then, Violation> {
        let mut keep = false;
        let result = self.dispatch(i, message, fd, sender, &mut keep);
        if fd >= 0 && !keep {
            fd_table::close_internal(fd);
        }
        result
    }

    fn dispatch(&mut self, i: usize, message: Message, fd: c_int, sender: Cred, keep: &mut bool) -> Result<Then, Violation> {
        let Some(l) = self.link_mut(i).filter(|l| l.is_read()) else { return Ok(Then::Nothing) };
        // A child forked by the peer inherits the connection, for the sockets it inherits with it, but agrees on nothing.
        let from_child = matches!(message, Message::Place { .. } | Message::PullBack { .. } | Message::Demote { .. });
        if sender.uid != l.peer.uid || (sender.pid != l.peer.pid && !from_child) {
            return Err(Violation::Impostor);
        }
        if l.phase == Phase::Greeting {
            let Message::Hello(hello) = message else { return Err(Violation::Malformed) };
            if !Hello::new(LIB_VERSION, 0, l.role).is_compatible(&hello) {
                return Err(Violation::OtherVersion);
            }
            l.phase = Phase::Open;
            return Ok(Then::Nothing);
        }
        let acceptor = l.role == Role::Acceptor;
        match message {
            Message::Candidate(c) if acceptor => Ok(self.on_candidate(i, c)),
            Message::Withdraw { token } if acceptor => {
                if let Some(t) = self.tables.as_mut() {
                    if let Some(key) = t.candidates.find_number(token, |x| x.link == i) {
                        t.candidates.remove(key);
                        if let Some(l) = self.links.get_mut(i) {
                            l.candidates = l.candidates.saturating_sub(1);
                        }
                    }
                }
                Ok(Then::Nothing)
            }
            Message::Accept { token, slot } if acceptor => self.on_accept(i, token, slot),
            Message::Refuse { token, slot, reason } if acceptor => self.on_refuse(i, token, slot, reason),
            Message::Channel(m) if !acceptor => self.on_channel(i, m, fd),
            Message::Arena(m) if !acceptor => self.on_arena(i, m, fd),
            Message::Offer(offer) if !acceptor => {
                if l.channel.is_none() {
                    return Err(Violation::Malformed);
                }
                stats::count(Counter::OffersReceived);
                Ok(Then::Judge(offer))
            }
            Message::Place { place } => {
                let Some(c) = l.channel else { return Err(Violation::Malformed) };
                if place as usize >= PLACES || !is_doorbell(fd) {
                    return Err(Violation::Malformed);
                }
                *keep = learn_doorbell(c, place as usize, fd);
                Ok(Then::Nothing)
            }
            Message::PullBack { slot, dir } => {
                let produced = if acceptor { Direction::AcceptorToConnector } else { Direction::ConnectorToAcceptor };
                let Some(word) = l.pulls.get_mut(slot as usize / 64).filter(|_| l.channel.is_some() && dir == produced) else { return Err(Violation::Malformed) };
                *word |= 1 << (slot % 64);
                Ok(Then::Pull)
            }
            // A wish that the shared words express better; not used between processes of one host.
            Message::Demote { slot } if (slot as usize) < SLOTS => Ok(Then::Nothing),
            Message::Bye => {
                l.phase = Phase::Leaving;
                Ok(Then::Nothing)
            }
            _ => Err(Violation::Malformed),
        }
    }

    /// Somebody begins to serve the pull-backs of a link. False: somebody else is at it, or there are none.
    pub(crate) fn begin_pulls(&mut self, i: usize) -> bool {
        let Some(l) = self.link_mut(i).filter(|l| !l.pulling && l.channel.is_some()) else { return false };
        l.pulling = l.pulls.iter().any(|w| *w != 0);
        l.pulling
    }

    /// The next pull-back to serve; `None` ends what [`begin_pulls`](Self::begin_pulls) began.
    pub(crate) fn next_pull(&mut self, i: usize) -> Option<(&'static Channel, usize)> {
        let l = self.link_mut(i)?;
        let c = l.channel?;
        for (w, word) in l.pulls.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some((c, w * 64 + bit));
            }
        }
        l.pulling = false;
        self.to_recycle |= l_is_dead(self.link(i));
        None
    }

    // ---- finding -------------------------------------------------------------------------------------------------

    fn port(&mut self, port: u16) -> &mut Port {
        let p = &mut self.ports[port as usize % PORTS];
        if p.port != port {
            *p = Port { port, ..Port::NONE };
        }
        p
    }

    /// Whether a socket that was just connected has somebody to be announced to; `later`: it has received bytes, so the
    /// acceptor must be known by now.
    pub(crate) fn seek(&mut self, port: u16, later: bool) -> bool {
        let now = sys::now_ns();
        let p = *self.port(port);
        if self.links_to(port) == 0 {
            let absent = if later { p.absent_later } else { p.absent_at_connect };
            if now < absent {
                return false;
            }
            if !self.probe(port, if later { NAMES } else { QUICK_NAMES }, true) {
                let p = self.port(port);
                p.absent_at_connect = now + ABSENT_NS;
                if later {
                    p.absent_later = now + ABSENT_NS;
                }
                return false;
            }
        }
        let p = self.port(port);
        if p.try_at == 0 && now.saturating_sub(p.tried_all) > TRIED_LATELY_NS {
            p.tries = 0;
            p.try_at = now;
        }
        true
    }

    /// Asks for another look at all names, now.
    pub(crate) fn seek_all(&mut self, port: u16) {
        let now = sys::now_ns();
        let p = self.port(port);
        if now.saturating_sub(p.tried_all) > 1_000_000 {
            p.tries = 0;
            p.try_at = now;
        }
    }

    /// When the service thread has to look for new advertisers next; 0: never.
    pub(crate) fn next_try(&self) -> u64 {
        self.ports.iter().map(|p| p.try_at).filter(|t| *t != 0).min().unwrap_or(0)
    }

    /// When the service thread has something to do of its own accord; 0: never.
    pub(crate) fn next_deed(&self) -> u64 {
        match (self.next_try(), self.next_due()) {
            (0, t) | (t, 0) => t,
            (a, b) => a.min(b),
        }
    }

    /// Looks for new advertisers of the ports whose time has come. Service thread only.
    pub(crate) fn try_ports(&mut self) {
        let now = sys::now_ns();
        for at in 0..PORTS {
            let p = self.ports[at];
            if p.try_at == 0 || p.try_at > now {
                continue;
            }
            self.probe(p.port, NAMES, false);
            let waiting = self.tables.as_ref().is_some_and(|t| t.connected.len() != 0);
            let p = self.port(p.port);
            p.tried_all = now;
            p.try_at = match TRY_AGAIN_NS.get(p.tries as usize) {
                Some(pause) if waiting => now + pause,
                _ => 0,
            };
            p.tries = p.tries.saturating_add(1);
        }
    }

    /// Connects to the advertisers of `port` under the first `names` names that we have no link to; `one` will do.
    fn probe(&mut self, port: u16, names: u8, one: bool) -> bool {
        let linked = |s: &State, k: u8| s.links.iter().any(|l| l.role == Role::Connector && l.is_read() && l.port == port && l.k == k);
        let mut fd = -1;
        let mut found = false;
        for k in 0..names {
            if linked(self, k) {
                continue;
            }
            if fd < 0 {
                fd = control_socket();
                if fd < 0 {
                    return found;
                }
            }
            let (name, len) = advert_name(port, k);
            if sys::connect(fd, name.get(..len).unwrap_or(&[])) < 0 {
                continue;
            }
            if let Some(i) = self.open_link(core::mem::replace(&mut fd, -1), Role::Connector, port, k) {
                found = true;
                self.announce_all(i);
                if one {
                    break;
                }
            }
        }
        if fd >= 0 {
            fd_table::close_internal(fd);
        }
        found
    }

    /// Advertises that this process accepts on `port`, as the user that it runs as. True: it does (already).
    pub(crate) fn advertise(&mut self, port: u16, uid: u32) -> bool {
        let now = sys::now_ns();
        let known = self.adverts.iter().position(|a| a.port == port && port != 0);
        if let Some(a) = known.and_then(|i| self.adverts.get(i)) {
            if a.uid == uid && (a.fd >= 0 || now < a.retry_at) {
                return a.fd >= 0;
            }
        }
        let Some(i) = known.or_else(|| self.adverts.iter().position(|a| a.port == 0)) else { return false };
        let Some(a) = self.adverts.get_mut(i) else { return false };
        if a.fd >= 0 {
            // Made by us as another user: what it says of us is no longer true.
            fd_table::close_internal(a.fd);
        }
        *a = Advert { port, fd: -1, uid, retry_at: now + RETRY_ADVERT_NS };
        let fd = bind_advert(port);
        if fd < 0 {
            return false;
        }
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: EVENT_ADVERT | i as u64 };
        // SAFETY: a live event.
        if unsafe { sys::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &mut event) } < 0 {
            fd_table::close_internal(fd);
            return false;
        }
        a.fd = fd;
        true
    }

    /// Takes the connections that wait at an advert.
    pub(crate) fn take_callers(&mut self, advert: usize) {
        for _ in 0..LINKS {
            let Some(a) = self.adverts.get(advert).filter(|a| a.fd >= 0).copied() else { return };
            let fd = sys::accept4(a.fd, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as c_int;
            if fd < 0 {
                return;
            }
            let fd = fd_table::adopt_internal(fd);
            if fd < 0 {
                return;
            }
            if self.free_link(false).is_none() {
                self.evict_idle();
            }
            self.open_link(fd, Role::Acceptor, a.port, 0);
        }
    }

    // ---- fork ----------------------------------------------------------------------------------------------------

    /// In a forked child: forgets what is the parent's alone, and keeps what inherited sockets need.
    ///
    /// Another thread of the parent may have been in the middle of a change, so nothing that owns memory is trusted.
    pub(crate) fn after_fork(&mut self) {
        for a in &mut self.adverts {
            if a.fd >= 0 {
                fd_table::close_internal(a.fd);
            }
            *a = Advert::NONE;
        }
        for fd in [core::mem::replace(&mut self.epoll, -1)] {
            if fd >= 0 {
                fd_table::close_internal(fd);
            }
        }
        for l in &mut self.links {
            let mut old = core::mem::replace(l, Link::new());
            let channel = old.channel.take();
            let keep = channel.is_some_and(|c| c.users.load(Acquire) != 0) && old.phase != Phase::Free;
            if keep {
                // Sockets of the parent's live on this channel, and now in this process too.
                if let Some(c) = channel {
                    // What the peer was passed are the parent's doorbells.
                    c.passed.iter().for_each(|w| w.store(0, Relaxed));
                }
                *l = Link { phase: Phase::Inherited, serial: old.serial, fd: old.fd, role: old.role, peer: old.peer, channel, ..Link::new() };
            } else if old.fd >= 0 && old.phase != Phase::Free {
                fd_table::close_internal(old.fd);
            }
            core::mem::forget(old);
        }
        core::mem::forget(self.tables.take());
        core::mem::forget(core::mem::take(&mut self.to_agree));
        core::mem::forget(core::mem::take(&mut self.young));
        self.ports = [Port::NONE; PORTS];
        self.to_recycle = false;
        self.process = 0;
    }

    /// In a forked child: an inherited end is gone, and it was the last. The parent's books are the parent's: it finds the
    /// mark when it looks for free slots.
    pub(crate) fn release_inherited(&mut self, channel: &Channel, slot: usize) -> bool {
        let inherited = self.link_with(channel).and_then(|i| self.link(i)).is_some_and(|l| l.phase == Phase::Inherited);
        if inherited {
            consumed_by(channel, slot, channel.side).fetch_or(quiet::CLOSED, AcqRel);
        }
        inherited
    }
}

fn l_is_dead(l: Option<&Link>) -> bool {
    l.is_some_and(|l| l.phase == Phase::Dead)
}

/// Why an offer could not be made.
enum OfferError {
    NoSlot,
    Memory(MemoryError),
    Link(Violation),
}

impl Mine {
    fn is(&self, socket: &Socket) -> bool {
        core::ptr::eq(self.socket, socket) && self.is_current()
    }
    /// The socket still is the one that was noted.
    fn is_current(&self) -> bool {
        self.socket.generation.load(Acquire) == self.generation
    }
}

/// Notes a socket; the one that waited longest makes room.
fn add(table: &mut Table<Mine>, tuple: Tuple, socket: &'static Socket, due: u64) -> Option<Key> {
    if table.is_full() {
        if let Some((_, m)) = table.oldest().and_then(|k| table.remove(k)) {
            if m.is_current() {
                m.socket.set_reason(Reason::PeerWithoutLibrary);
            }
        }
    }
    table.insert(tuple, 0, Mine { socket, generation: socket.generation.load(Acquire), announced: 0, due, offered: None })
}

/// The `REQUEST` word that `side` writes: that of the direction which it consumes.
fn consumed_by(c: &Channel, slot: usize, side: usize) -> &AtomicU64 {
    let [.., request] = &c.words(slot, side ^ 1).quiet;
    const { assert!(quiet::REQUEST == 3) };
    request
}

/// Brings a slot's words to their first state.
fn zero_slot(c: &Channel, slot: usize) {
    for d in 0..2 {
        let at = core::ptr::from_ref(c.words(slot, d)).cast::<AtomicU64>();
        for w in 0..size_of::<netacc_ring::RingWords>() / 8 {
            // SAFETY: inside of the words of this direction, which are atomics of 8 or (in pairs) 4 bytes.
            unsafe { &*at.add(w) }.store(0, Relaxed);
        }
    }
    fence(Release);
}

/// Leaves the agreement for the application's threads.
fn hand_over(s: &'static Socket, c: &'static Channel, slot: u16, tx: *mut u8, tx_bytes: u32, rx: *mut u8, rx_bytes: u32) {
    let offer = socket::Offer { channel: c, slot: u32::from(slot), tx_ring: tx, tx_bytes, rx_ring: rx, rx_bytes };
    // SAFETY: `offered` is 0: nobody reads it yet, and only the holder of the service's lock writes it.
    unsafe { *s.offer.get() = offer };
    if let Some(at) = c.sockets.get(slot as usize) {
        let at: &AtomicPtr<Socket> = at;
        at.store(core::ptr::from_ref(s).cast_mut(), Release);
    }
    s.offered.store(1, Release);
}

fn record(i: usize, f: impl FnOnce(&netacc_control::stats::ChannelRecord)) {
    if let Some(r) = stats::channel_record(i) {
        f(r);
    }
}

/// What a peer passes as a doorbell: an eventfd, or a unix socket.
fn is_doorbell(fd: c_int) -> bool {
    let mut domain = 0i32;
    if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut domain) >= 0 {
        return domain == libc::AF_UNIX;
    }
    let mut path = [0u8; 32];
    let mut out = [0u8; 32];
    let len = decimal_path(b"/proc/self/fd/", fd as u32, &mut path);
    let n = sys::readlink(path.get(..=len).unwrap_or(&[0]), &mut out);
    if n > 0 {
        return out.get(..n as usize) == Some(b"anon_inode:[eventfd]");
    }
    // No /proc: at least it is of the family that eventfds belong to.
    let own = sys::eventfd(libc::EFD_CLOEXEC) as c_int;
    let same = own >= 0 && sys::inode(own) == sys::inode(fd);
    if own >= 0 {
        let _ = sys::close(own);
    }
    same
}

/// Takes over the peer's doorbell; false: the descriptor given is not needed any more.
fn learn_doorbell(c: &Channel, place: usize, fd: c_int) -> bool {
    let known = c.doorbells.get(place).map_or(-1, |d| d.load(Acquire));
    if known < 0 {
        c.learn_doorbell(place, fd);
        return true;
    }
    // Under the same number, in one step: a thread may be about to write to it.
    let _ = sys::dup3(fd, known, libc::O_CLOEXEC);
    let _ = sys::write(known, &1u64.to_ne_bytes());
    false
}

/// Writes `prefix` and a number; returns the length, a NUL follows.
fn decimal_path(prefix: &[u8], number: u32, out: &mut [u8]) -> usize {
    let mut digits = [0u8; 10];
    let mut n = number;
    let mut count = 0;
    for d in digits.iter_mut().rev() {
        *d = b'0' + (n % 10) as u8;
        n /= 10;
        count += 1;
        if n == 0 {
            break;
        }
    }
    let all = prefix.iter().chain(digits.iter().skip(10 - count));
    let mut len = 0;
    for (to, from) in out.iter_mut().zip(all) {
        *to = *from;
        len += 1;
    }
    len
}

/// `sockaddr_un` of an advert, and its length.
fn advert_name(port: u16, k: u8) -> ([u8; 48], usize) {
    let mut name = [0u8; 48];
    let [a, b] = (libc::AF_UNIX as u16).to_ne_bytes();
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        for b in bytes {
            if let Some(to) = name.get_mut(at) {
                *to = *b;
                at += 1;
            }
        }
    };
    put(&[a, b, 0]);
    let mut number = [0u8; 12];
    put(b"netacc/1/");
    let n = decimal_path(b"", u32::from(port), &mut number);
    put(number.get(..n).unwrap_or(&[]));
    put(b"/");
    let n = decimal_path(b"", u32::from(k), &mut number);
    put(number.get(..n).unwrap_or(&[]));
    (name, at)
}

/// A second descriptor for one of the library's own, which is the library's own too.
fn copy_internal(fd: c_int) -> c_int {
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize) as c_int;
    if copy >= 0 {
        fd_table::set(copy, fd_table::Entry::Internal);
    }
    copy
}

fn control_socket() -> c_int {
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) as c_int;
    if fd < 0 { fd } else { fd_table::adopt_internal(fd) }
}

fn bind_advert(port: u16) -> c_int {
    let fd = control_socket();
    if fd < 0 {
        return fd;
    }
    for k in 0..NAMES {
        let (name, len) = advert_name(port, k);
        let r = sys::bind(fd, name.get(..len).unwrap_or(&[]));
        if r == -(libc::EADDRINUSE as isize) {
            continue;
        }
        if r >= 0 && sys::listen(fd, 1024) >= 0 {
            return fd;
        }
        break;
    }
    fd_table::close_internal(fd);
    -1
}

#[cfg(test)]
mod tests;
