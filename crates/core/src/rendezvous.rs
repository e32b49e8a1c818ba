//! How two processes find each other and agree on shared memory for a connection: the book-keeping.
//!
//! [`State`] is what this process knows: the control connections ([`ControlLink`]s) to other
//! processes with the channel that belongs to each, our sockets that wait for an agreement, and the
//! peers' candidates. It is driven by [`crate::service`], under its lock; what may take long
//! (asking the kernel who owns a socket, serving a pull-back) is done there, without the lock.
//!
//! Everything received is hostile: it is a private copy (a packet), checked against what *we* know
//! before it has any effect. A peer that breaks the rules loses its link and its channel, and
//! nothing else.
//!
//! `docs/design/rendezvous.md` tells the whole story.

pub(crate) mod absent;
mod acceptor;
pub(crate) mod auth;
mod connector;
mod control_link;
mod doorbell;
mod finding;
pub(crate) mod marks;
mod names;
pub(crate) mod packet;
pub(crate) mod possession;
pub(crate) mod strangers;
mod waiting;

use crate::arena::{self, Mapping, Pair, Pool};
use crate::channel::{Channel, ChannelMem, PLACES, SLOTS, quiet};
use crate::socket::{self, Socket};
use crate::tuple_table::{Key, Table};
use crate::{carrier, fd_table, stats, sys, trace};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use auth::Cred;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use doorbell::learn_doorbell;
#[cfg(test)]
pub(crate) use names::advert_name;
use netacc_control::stats::{CHANNEL_SLOTS, Counter, Reason};
use netacc_proto::agreement::{self, Agreement, Malformed, SlotAction, SlotEvent};
use netacc_proto::rendezvous::{Direction, Message, Peers, Role, Tuple};
pub(crate) use possession::Look;
use possession::{PROOFS, Proof};

/// Control connections, and with them channels, of this process.
pub(crate) const LINKS: usize = 64;
const _: () = assert!(LINKS <= CHANNEL_SLOTS && LINKS <= u64::BITS as usize);
/// Of these, how many may belong to other users.
const FOREIGN_LINKS: usize = 48;
/// Sockets that wait, each way, and candidates of peers.
const PENDING: u32 = 16384;
/// Candidates of one peer that wait here.
const CANDIDATES_PER_LINK: u32 = 4096;
const CANDIDATES_PER_FOREIGN_LINK: u32 = 512;
/// Messages that wait for a peer that does not read: more than the answers to all offers that can
/// be on their way (what fits into a socket's buffer, and [`PUT_OFF`]).
const QUEUE: usize = 2048;
/// No new offers while so many messages wait.
const PUT_OFF: usize = 128;
/// Slots looked at for reuse at each allocation.
const SWEEP: usize = 8;
/// Announcements made while the lock is held.
const ANNOUNCE_AT_ONCE: usize = 64;
/// A peer that has not greeted for so long makes room for others.
const GREETING_NS: u64 = 1_000_000_000;

/// Bytes of the control memfd.
pub(crate) const CHANNEL_BYTES: usize = arena::whole_pages(size_of::<ChannelMem>());

const LIB_VERSION: [u16; 3] = [
    number(env!("CARGO_PKG_VERSION_MAJOR")),
    number(env!("CARGO_PKG_VERSION_MINOR")),
    number(env!("CARGO_PKG_VERSION_PATCH")),
];

const fn number(text: &str) -> u16 {
    let mut rest = text.as_bytes();
    let mut n = 0u16;
    while let [digit, more @ ..] = rest {
        n = n * 10 + (*digit - b'0') as u16;
        rest = more;
    }
    n
}

/// One of our sockets that waits for an agreement.
struct Mine {
    socket: &'static Socket,
    generation: u32,
    agreement: Agreement,
    /// It has been through a proof in which nobody here saw the other end (`possession`).
    shown_blindly: bool,
}

/// A peer's candidate.
struct Theirs {
    link: usize,
    token: u64,
}

/// What we know of a slot, out of the peer's reach.
#[derive(Clone, Copy)]
struct Slot {
    life: agreement::Slot,
    /// Acceptor: our waiting socket.
    waiting: Key,
    /// Acceptor: its rings.
    pair: Pair,
    socket: *const Socket,
    generation: u32,
}

impl Slot {
    const FREE: Slot = Slot {
        life: agreement::Slot::FREE,
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
pub(crate) struct ControlLink {
    pub(crate) phase: Phase,
    /// Counts the lives of this entry.
    pub(crate) serial: u32,
    pub(crate) fd: c_int,
    /// What we are on it.
    role: Role,
    peer: Cred,
    /// Our effective user when it was made: the peer knows us by that.
    user: u32,
    /// When it was made, or when nobody used it any more.
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
    /// What its marks spell (`possession`): the name of its connecting side. `None`: that has none.
    number: Option<u16>,
    /// The peer has shown that it holds the other end of one of our connections: it may pass the
    /// memory for them (connecting side).
    proven: bool,
}

impl ControlLink {
    const fn new() -> ControlLink {
        ControlLink {
            phase: Phase::Free,
            serial: 0,
            fd: -1,
            role: Role::Connector,
            peer: Cred { pid: 0, uid: u32::MAX },
            user: u32::MAX,
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
            number: None,
            proven: false,
        }
    }

    fn users(&self) -> u32 {
        self.channel.map_or(0, |c| c.users.load(Acquire))
    }

    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Leaving)
            && self.users() == 0
            && self.slots_used == 0
            && self.candidates == 0
    }

    fn takes_candidates(&self) -> bool {
        self.role == Role::Connector && matches!(self.phase, Phase::Greeting | Phase::Open)
    }

    /// The peer's process is dead, and a forked child of its holds the connection open.
    fn is_orphan(&self) -> bool {
        self.peer.pid != 0 && !sys::alive(self.peer.pid)
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
    /// The sender is not, or not as the same user, who made the connection.
    Impostor,
    /// It speaks another version.
    OtherVersion,
    /// Not the peer's fault: our limits.
    NoDescriptor,
    NoMemory,
    /// It does not read.
    Stuck,
    /// Its files, or a stop of this process, kept whoever took them in: it may be honest, and is
    /// left alone for a while.
    Withheld,
    /// The connection ended.
    Ended,
    /// It was of no use any more, or its place is needed for another.
    Evicted,
}

/// What is left to do without the lock.
#[derive(Debug)]
pub(crate) enum Then {
    Nothing,
    /// Both of a pair may be there: see [`State::pair_for`].
    Agree(Tuple),
    /// Whether the other end of a connection shows a mark: see [`State::looked`].
    Look(Look),
    /// A pull-back of this slot to serve: see [`State::channel`].
    PullBack(usize),
    /// Bytes are said to lie unread.
    Unread,
    /// The peer has left this slot's ring, with bytes unread.
    Left(usize),
}

/// What this process knows of a port that it connects to.
#[derive(Clone)]
struct Port {
    port: u16,
    /// When it was last of use.
    used_at: u64,
    /// The links to those who accept on it. (A link serves all ports of a process.)
    links: u64,
    /// The link that an advert's name led to, by the name's number: 1 + its place; 0: none.
    names: [u8; NAMES as usize],
    /// When all advert names were last tried.
    tried_all: u64,
    /// When all names are to be tried next (0: not).
    try_at: u64,
    /// Also those names that led to a link: another process may hold them by now.
    anew: bool,
    /// Names, by number, whose holder cannot be dealt with, until that moment.
    shunned: u64,
    shunned_until: u64,
}

/// A listening socket that tells connectors of this process.
#[derive(Clone, Copy)]
pub(crate) struct Advert {
    pub(crate) port: u16,
    pub(crate) fd: c_int,
    uid: u32,
    /// When it was made.
    made_at: u64,
    /// When to try again, where it could not be made.
    retry_at: u64,
    /// When it was first found that none of our sockets listens on the port any more; 0: one does.
    unused_since: u64,
    /// It is there and not heard: strangers' files keep those who close them.
    deaf: bool,
}

impl Advert {
    const NONE: Advert = Advert {
        port: 0,
        fd: -1,
        uid: u32::MAX,
        made_at: 0,
        retry_at: 0,
        unused_since: 0,
        deaf: false,
    };
}

/// Ports that one process advertises at a time: the one that was advertised first makes room.
pub(crate) const ADVERTS: usize = 128;
/// Advert names of one port.
pub(crate) const NAMES: u8 = 64;
const _: () = assert!(NAMES as u32 <= u64::BITS);
/// Of these, how many are tried at connect.
const QUICK_NAMES: u8 = 4;
/// Ports that are remembered: the one that was not used for longest makes room.
const PORTS: usize = 1024;
const SHUN_NS: u64 = 5_000_000_000;
const RETRY_ADVERT_NS: u64 = 1_000_000_000;
/// Looks that are asked for by somebody else are at least so far apart.
pub(crate) const TRY_PAUSE_NS: u64 = 50_000_000;
/// After a listening socket was closed, its advert is looked at: at first after so long, then after
/// twice as long...
const LOOK_AT_ADVERTS_NS: u64 = 50_000_000;
/// ...and goes after so long, even if a connection that was accepted there still waits for its
/// peer.
const UNUSED_ADVERT_NS: u64 = 10_000_000_000;
/// A connect asks for a look at all names when the last one is this old.
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
    /// When the thread can be tried to be started again, where it could not be.
    pub(crate) start_again_at: u64,
    pub(crate) epoll: c_int,
    pub(crate) links: [ControlLink; LINKS],
    pub(crate) adverts: [Advert; ADVERTS],
    /// What is known of ports, and which they are.
    ports: Vec<Port>,
    port_numbers: Vec<u16>,
    /// When some port, or a connection that waits, is to be looked at; it may be too early. 0:
    /// never.
    next_try: u64,
    /// The thread has something to do earlier than it knows.
    pub(crate) wake: bool,
    tables: Option<Tables>,
    /// Channels by link and side. Their memory, and what they map, stays where it is for ever.
    shells: [[*mut Channel; 2]; LINKS],
    serial: u32,
    /// Accepted sockets whose candidate was there first, or whose proof found no place.
    to_agree: Vec<Key>,
    pub(crate) proofs: [Option<Proof>; PROOFS],
    /// Proofs of connectors that found no place: the link, with its life, and the connection's
    /// token.
    turns_put_off: VecDeque<(usize, u32, u64)>,
    /// When to look for proofs that do not go on; it may be too early. 0: never.
    next_proof_end: u64,
    /// Something for the service thread to do: links to recycle.
    pub(crate) to_recycle: bool,
    /// Likewise, by place: links that have ended, of whose connections nobody but the carriers
    /// tells the end.
    pub(crate) to_watch: u64,
    /// When to look for links that nobody uses; 0: never.
    next_expiry: u64,
    /// When to look for adverts that nobody needs (0: never), and the pause before that look.
    pub(crate) next_advert_look: u64,
    advert_pause: u64,
    /// When a peer's fault was last logged: a hostile one must not fill the log.
    logged_at: u64,
}

// SAFETY: the pointers name sockets and channels, which are type-stable and shared through atomics,
// and mappings.
unsafe impl Send for State {}

/// The epoll item of a link: its place and life.
pub(crate) const EVENT_LINK: u64 = 1 << 62;
/// The epoll item of an advert: its place.
pub(crate) const EVENT_ADVERT: u64 = 1 << 61;

/// The epoll item of the carrier of a connection whose link has ended: its slot, and the link's
/// place and life.
pub(crate) const EVENT_CARRIER: u64 = 1 << 60;

/// [`EVENT_CARRIER`] of a slot.
pub(crate) fn carrier_event(i: usize, serial: u32, slot: usize) -> u64 {
    EVENT_CARRIER | (slot as u64) << 40 | u64::from(serial) << 8 | i as u64
}

pub(crate) fn slot_of(event: u64) -> usize {
    (event >> 40) as usize & (SLOTS - 1)
}

fn event_of(i: usize, serial: u32) -> u64 {
    EVENT_LINK | u64::from(serial) << 8 | i as u64
}

/// Whether `event` of a link is that of its present life.
pub(crate) fn link_of(event: u64) -> (usize, u32) {
    ((event & 0xff) as usize, (event >> 8) as u32)
}

impl State {
    #[allow(clippy::large_stack_arrays, reason = "the value of a static")]
    pub(crate) const fn new() -> State {
        State {
            process: 0,
            start_again_at: 0,
            epoll: -1,
            links: [const { ControlLink::new() }; LINKS],
            adverts: [Advert::NONE; ADVERTS],
            ports: Vec::new(),
            port_numbers: Vec::new(),
            next_try: 0,
            wake: false,
            tables: None,
            shells: [[core::ptr::null_mut(); 2]; LINKS],
            serial: 0,
            to_agree: Vec::new(),
            proofs: [None; PROOFS],
            turns_put_off: VecDeque::new(),
            next_proof_end: 0,
            to_recycle: false,
            to_watch: 0,
            next_expiry: 0,
            next_advert_look: 0,
            advert_pause: 0,
            logged_at: 0,
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
            self.ports.try_reserve_exact(PORTS).ok()?;
            self.port_numbers.try_reserve_exact(PORTS).ok()?;
            Some(Tables {
                connected: Table::new(PENDING, seed)?,
                accepted: Table::new(PENDING, seed)?,
                candidates: Table::new(PENDING, seed)?,
            })
        })();
        self.tables.is_some()
    }

    // ---- messages -------------------------------------------------------------------------------

    /// One message of the peer's. `fd`, where the message brought one, is closed or kept by this.
    pub(crate) fn handle(
        &mut self,
        i: usize,
        message: Message,
        fd: c_int,
        sender: Cred,
    ) -> Result<Then, Violation> {
        let mut keep = false;
        let result = self.dispatch(i, message, fd, sender, &mut keep);
        if fd >= 0 && !keep {
            fd_table::close_internal(fd);
        }
        result
    }

    fn dispatch(
        &mut self,
        i: usize,
        message: Message,
        fd: c_int,
        sender: Cred,
        keep: &mut bool,
    ) -> Result<Then, Violation> {
        let Some(l) = self.link_mut(i).filter(|l| l.is_read()) else { return Ok(Then::Nothing) };
        // A child forked by the peer inherits the connection, for the sockets it inherits with it,
        // but agrees on nothing.
        let from_child = matches!(
            message,
            Message::Place { .. }
                | Message::PullBack { .. }
                | Message::Unread { .. }
                | Message::Left { .. }
        );
        if sender.uid != l.peer.uid || (sender.pid != l.peer.pid && !from_child) {
            return Err(Violation::Impostor);
        }
        if l.phase == Phase::Greeting {
            let Message::Hello(hello) = message else { return Err(Violation::Malformed) };
            if !hello.fits(l.role) {
                return Err(Violation::OtherVersion);
            }
            l.phase = Phase::Open;
            return Ok(Then::Nothing);
        }
        if !message.is_said_by(l.role.peer()) {
            return Err(Violation::Malformed);
        }
        let acceptor = l.role == Role::Acceptor;
        match message {
            Message::Candidate(c) => Ok(self.on_candidate(i, c)),
            Message::Withdraw { token } if acceptor => {
                let tuple = self.withdraw_proof(i, token);
                self.forget_candidate(i, token);
                // Somebody else may have a claim to it.
                Ok(tuple.map_or(Then::Nothing, Then::Agree))
            }
            Message::Turn { token, turn } => Ok(self.on_turn(i, token, turn)),
            Message::Unproven { token } => Ok(self.on_unproven(i, token)),
            Message::Accept { token, slot } => self.on_accept(i, token, slot),
            Message::Refuse { token, slot, reason } => self.on_refuse(i, token, slot, reason),
            Message::Channel(m) => self.on_channel(i, m, fd),
            Message::Arena(m) => self.on_arena(i, m, fd),
            Message::Offer(offer) => {
                if l.channel.is_none() {
                    return Err(Violation::Malformed);
                }
                self.on_offer(i, &offer).map(|()| Then::Nothing)
            }
            Message::Place { place } => {
                let Some(c) = l.channel else { return Err(Violation::Malformed) };
                if place as usize >= PLACES {
                    return Err(Violation::Malformed);
                }
                *keep = learn_doorbell(c, place as usize, fd);
                Ok(Then::Nothing)
            }
            Message::PullBack { slot, dir } => {
                let produced = if acceptor {
                    Direction::AcceptorToConnector
                } else {
                    Direction::ConnectorToAcceptor
                };
                if l.channel.is_none() || slot as usize >= SLOTS || dir != produced {
                    return Err(Violation::Malformed);
                }
                Ok(Then::PullBack(slot as usize))
            }
            Message::Unread { slot } if (slot as usize) < SLOTS => Ok(Then::Unread),
            Message::Left { slot } if (slot as usize) < SLOTS && l.channel.is_some() => {
                Ok(Then::Left(slot as usize))
            }
            Message::Bye => {
                l.phase = Phase::Leaving;
                Ok(Then::Nothing)
            }
            _ => Err(Violation::Malformed),
        }
    }

    /// Whether the descriptors that `message` brings are due: what this end waits for, of a peer
    /// that has a right to it.
    pub(crate) fn files_due(&self, i: usize, message: &Message) -> bool {
        let Some(l) = self.link(i).filter(|l| l.phase != Phase::Greeting) else { return false };
        let there = l.channel.is_some();
        match message {
            // Who has made the channel had proof, or had to show it.
            Message::Place { .. } => there,
            Message::Arena(_) => there && l.role == Role::Connector,
            Message::Channel(_) => !there && l.role == Role::Connector && l.proven,
            _ => false,
        }
    }

    /// The channel of a link that has ended, and the link's life.
    pub(crate) fn draining(&self, i: usize) -> Option<(&'static Channel, u32)> {
        self.link(i).filter(|l| l.phase == Phase::Dead).and_then(|l| Some((l.channel?, l.serial)))
    }

    /// The process at the other end of a link.
    pub(crate) fn peer_of(&self, i: usize) -> u32 {
        self.link(i).map_or(0, |l| l.peer.pid)
    }

    pub(crate) fn channel(&mut self, i: usize) -> Option<&'static Channel> {
        self.link_mut(i)?.channel
    }
}

impl Slot {
    /// Something happens to a slot of ours in that role; `token` is the connection that the peer
    /// names.
    fn step(&mut self, event: SlotEvent, token: u64, role: Role) -> Result<SlotAction, Violation> {
        let action = self.life.step(event, token, Peers::OneHost, role);
        action.map_err(|Malformed| Violation::Malformed)
    }
}

impl Mine {
    fn is(&self, socket: &Socket) -> bool {
        core::ptr::eq(self.socket, socket) && self.is_current()
    }
    /// No offer is on its way to it.
    fn waits(&self) -> bool {
        self.agreement.waits()
    }
    /// The socket still is the one that was noted.
    fn is_current(&self) -> bool {
        self.socket.generation.load(Acquire) == self.generation
    }
    /// And it is not about to end.
    fn goes_on(&self) -> bool {
        self.is_current() && !has_peer_ended(self.socket)
    }
    /// Who holds the other end was to be proven, and was not.
    fn is_unproven(&self) {
        if self.goes_on() {
            stats::count(Counter::AuthFailures);
            self.socket.set_reason(Reason::NotAuthenticated);
        }
    }
}

/// The peer of `s` has ended more than what it sends itself. (Of such a one, whatever fails says
/// nothing.) Service thread only.
fn has_peer_ended(s: &Socket) -> bool {
    carrier::peer_ended(s.fd.load(Acquire)) && !auth::goes_on_receiving(&s.tuple().mirrored())
}

/// The `REQUEST` word that `side` writes: that of the direction which it consumes.
fn consumed_by(c: &Channel, slot: usize, side: usize) -> &AtomicU64 {
    let [.., request] = &c.words(slot, side ^ 1).quiet;
    const { assert!(quiet::REQUEST == 3) };
    request
}

/// Leaves the agreement for the application's threads. `c` is the offer's channel.
fn hand_over(s: &'static Socket, c: &'static Channel, offer: socket::Offer) {
    // SAFETY: `offered` is 0: nobody reads it yet, and only the holder of the service's lock writes
    // it.
    unsafe { *s.offer.get() = offer };
    s.put_on(c, offer.slot as usize);
    s.start(Reason::Agreed);
    s.trace(trace::Event::Offered, u64::from(offer.slot) << 8 | c.path() as u64);
    s.offered.make_here();
    s.is_offered();
}

fn record(i: usize, f: impl FnOnce(&netacc_control::stats::ChannelRecord)) {
    if let Some(r) = stats::channel_record(i) {
        f(r);
    }
}

/// Writes `prefix` and a number; returns the length, a NUL follows.
pub(crate) fn decimal_path(prefix: &[u8], number: u32, out: &mut [u8]) -> usize {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests;
