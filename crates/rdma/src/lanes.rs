//! The lanes of one queue pair, a connection on each: their opening and closing, and what both
//! halves of the engine share.
//!
//! The *sending half* ([`send`]) posts; whoever has the [`Turn`] is it. The *receiving half*
//! ([`receive`]) applies what has come; whoever has the hub's poll lock is it. They tell each other
//! by atomics with one writer each.
//!
//! A lane's life, at each end: free, opened, closed, free again when both ends have closed it and
//! all that this end posted has left its memory:
//!
//! ```text
//! open ─ OPEN ▶      ◀ OPEN ─      words and bytes, both ways      close ─ CLOSE ▶      ◀ CLOSE ─    take_back
//! ```
//!
//! Between the two `OPEN`s and the `CLOSE`s everything may cross. An end that does not want what
//! was opened refuses it: its `CLOSE` is all that it ever says. Who opens which lane first is
//! agreed on elsewhere.

mod receive;
mod send;

use crate::arena::Rings;
use crate::counters::Counters;
use crate::lane::{BUSY, CLOSING, Config, FREE, LANES_MAX, Lane, LaneRx, LaneTx, OPEN, REFUSING};
use crate::turn::{Bits, Turn};
use crate::wire::{IMM_BYTES_MAX, MESSAGE_BYTES};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use netacc_ring::RingWords;
use netacc_verbs::fabric::{Access, BATCH_MAX, Call, Error, Fabric, Failure, Piece, PostError};
use netacc_verbs::window::Window;
pub(crate) use receive::{Again, Rx};
use send::Tx;

/// Fewest receives of an end: one is kept for giving receives back, and a message may need another
/// one before it.
pub const RECEIVES_MIN: u32 = 4;
/// Fewest requests of a send queue.
pub const SENDS_MIN: u32 = 8;
const EINVAL: c_int = 22;

/// How a pair works. Both ends agree on `immediate` and `lanes`, and each knows the other's
/// `receives`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Work requests in the send queue, as it was created.
    pub sends: u32,
    /// Receives that this end posts.
    pub receives: u32,
    /// Receives that the peer posts.
    pub peer_receives: u32,
    /// Bytes that a work request carries inline, as the pair was created. A message that does not
    /// fit is posted from memory of the pair's.
    pub inline_bytes: u32,
    /// Bytes are announced by writes with immediate: both devices have them.
    pub immediate: bool,
    /// Connections.
    pub lanes: u16,
    /// Most bytes that one lane posts before the next one's turn (`NACC_SOR_MSG_SIZE`).
    pub turn_bytes: u32,
}

impl Settings {
    fn is_valid(&self) -> bool {
        self.sends >= SENDS_MIN
            && self.receives >= RECEIVES_MIN
            && self.peer_receives >= RECEIVES_MIN
            && (1..=LANES_MAX).contains(&usize::from(self.lanes))
            && self.turn_bytes > 0
    }

    /// Bytes of a pair's own memory: 64 for each receive, and for each request of the send queue
    /// where a message may not fit inline.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.receives.saturating_add(self.staged()) as usize * MESSAGE_BYTES
    }

    /// Places for messages to send: a power of two, at least as many as requests.
    fn staged(&self) -> u32 {
        if self.inline_bytes as usize >= MESSAGE_BYTES { 0 } else { self.sends.next_power_of_two() }
    }

    /// Entries of the completion queue that a pair needs.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.sends.saturating_add(self.receives)
    }

    fn turn_bytes(&self) -> u32 {
        if self.immediate { self.turn_bytes.min(IMM_BYTES_MAX) } else { self.turn_bytes }
    }
}

/// A pair's place in its hub, in the identifiers of its work requests. Never the same again before
/// 65536 pairs have had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

impl Tag {
    const RECEIVE: u64 = 1 << 63;

    fn prefix(self) -> u64 {
        u64::from(self.index) << 48 | u64::from(self.generation) << 32
    }
    fn of_send(self, number: u32) -> u64 {
        self.prefix() | u64::from(number)
    }
    fn of_receive(self, buffer: u32) -> u64 {
        Self::RECEIVE | self.prefix() | u64::from(buffer)
    }
    /// Tag, whether a receive, number or buffer.
    pub(crate) fn of(id: u64) -> (Self, bool, u32) {
        let tag = Self { index: (id >> 48) as u16 & 0x7fff, generation: (id >> 32) as u16 };
        (tag, id & Self::RECEIVE != 0, id as u32)
    }
}

/// What of the peer's was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Violation {
    /// A message that is none, or longer than any.
    Message,
    /// An immediate, which was not agreed upon.
    Immediate,
    /// A lane that does not exist, or is not open.
    Lane,
    /// A lane was opened twice, or with an impossible ring.
    Open,
    /// A lane was closed twice.
    Close,
    /// More bytes than the ring has room for.
    Room,
    /// Bytes whose end does not fit their beginning, or no bytes.
    Tail,
    /// The ring was to begin anew while it was not empty.
    Rebase,
    /// More was consumed than was sent, or less than before; or a mark that was not set.
    Head,
    /// More receives were given back than were used.
    Returned,
}

/// Why a pair is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A work request failed.
    Failed(Failure),
    /// A call was refused.
    Refused {
        /// Which one.
        call: Call,
        /// Why.
        errno: c_int,
    },
    /// The peer broke the rules.
    Peer(Violation),
    /// Our own words are impossible: somebody has written over them.
    Words,
    /// The owner has ended it ([`Lanes::end`]).
    Ended,
}

/// What a poll has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The peer has opened the lane.
    Opened {
        /// Which one.
        lane: u16,
        /// Which connection it is for.
        token: u64,
        /// Bytes of each ring.
        ring_bytes: usize,
    },
    /// There are bytes to read.
    Data {
        /// Where.
        lane: u16,
    },
    /// The producer had asked for room (`space_wanted`), and half of the ring is free.
    Room {
        /// Where.
        lane: u16,
    },
    /// The peer says nothing more about the lane.
    Closed {
        /// Which one.
        lane: u16,
    },
    /// Both ends have closed the lane, and no device touches its memory: take it back.
    Released {
        /// Which one.
        lane: u16,
    },
    /// The pair is lost. Told once; nothing follows.
    Lost(Reason),
}

/// What became of a kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kicked {
    /// What there was is posted.
    Done,
    /// There was no room for all of it: what is left is posted by whoever polls next. What gives
    /// room may have come, and nobody has looked.
    Full,
    /// Another thread (or this one, below the signal handler) is posting, and does this as well.
    Left,
    /// The pair is lost.
    Lost(Reason),
}

/// Why a lane is not opened or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// There is no such lane.
    NoLane,
    /// It is not in the state for that.
    State,
}

/// What is known of a lane's outbound direction, in positions as the ring's words count them.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// What the peer has consumed.
    pub(crate) acknowledged: u64,
    /// What was given to the device; the peer cannot have more.
    pub(crate) posted: u64,
}

/// The peer has opened a lane again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reopened {
    /// For which connection.
    pub token: u64,
    /// Bytes of each ring.
    pub ring_bytes: usize,
    /// And has closed it.
    pub closed: bool,
}

/// A lane that is free again.
#[derive(Debug)]
pub struct TakenBack<F: Fabric> {
    /// Its rings, for the pool; none if it was refused.
    pub rings: Option<Rings<F>>,
    /// The peer was faster: what would have been [`News::Opened`] (and [`News::Closed`]).
    pub reopened: Option<Reopened>,
}

/// What a pair was made of.
#[derive(Debug)]
pub struct Parts<F: Fabric> {
    /// The rings of all lanes that were in use.
    pub rings: Vec<Rings<F>>,
    /// The pair's own memory.
    pub memory: NonNull<u8>,
    /// Something could not be closed: neither rings nor memory may be used for anything else, nor
    /// unmapped.
    pub error: Option<Error>,
}

/// The lanes of one queue pair. See the [crate] for who may call what.
pub struct Lanes<F: Fabric> {
    fabric: Arc<F>,
    tag: Tag,
    settings: Settings,
    lanes: Box<[Lane<F>]>,
    /// Lanes that may have something to send.
    dirty: Bits,
    /// Lanes whose `CLOSE` is on its way.
    closing: Bits,
    turn: Turn,
    /// The turn's.
    tx: UnsafeCell<Tx>,
    /// The poll lock's.
    rx: UnsafeCell<Rx>,
    /// Written before `started`.
    pair: UnsafeCell<Option<F::Pair>>,
    starting: AtomicBool,
    started: AtomicBool,
    /// A first message is to be sent. Written before `started`, then the sending half's.
    greets: AtomicBool,
    /// 0, or the reason, encoded.
    lost: AtomicU64,
    /// Receiving half: number of the last request that is known to be done.
    completed: AtomicU32,
    /// Receiving half: receives that the peer has posted again.
    granted: AtomicU32,
    /// Sending half: messages, stored before they are posted.
    sent: AtomicU32,
    /// Receiving half: receives that we have posted again.
    reposted: AtomicU32,
    /// Sending half: how many of these the peer was told of.
    returned: AtomicU32,
    region: F::Region,
    /// The receives, then what is staged.
    memory: NonNull<u8>,
    owner: AtomicUsize,
    /// What it has done.
    pub counters: Counters,
}

// SAFETY: cells are touched by who has the turn or the poll lock (see `lane`), `pair` is written
// once before `started` and only read afterwards; `memory` is touched by the device, and its two
// parts by one half each.
unsafe impl<F: Fabric + Send + Sync> Sync for Lanes<F>
where
    F::Pair: Send + Sync,
    F::Region: Send + Sync,
{
}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl<F: Fabric + Send + Sync> Send for Lanes<F>
where
    F::Pair: Send + Sync,
    F::Region: Send + Sync,
{
}

impl<F: Fabric> core::fmt::Debug for Lanes<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lanes")
            .field("tag", &self.tag)
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> Lanes<F> {
    /// The lanes of a pair that was created in a domain and is not connected yet; posts its
    /// receives.
    /// Add it to its hub before the pair is connected or accepted.
    ///
    /// On an error close the pair before anything else is done with `memory`.
    ///
    /// # Safety
    /// `memory` is [`Settings::memory_bytes`]; until [`dismantle`](Self::dismantle) hands it back
    /// it stays mapped, nobody else uses it, and no reference to it is formed.
    pub unsafe fn new(
        fabric: Arc<F>,
        tag: Tag,
        settings: Settings,
        (domain, pair): (&F::Domain, &F::Pair),
        memory: NonNull<u8>,
    ) -> Result<Self, Error> {
        if !settings.is_valid() {
            return Err(Error { call: Call::Create, errno: EINVAL });
        }
        let (mut lanes, mut again) = (Vec::new(), Vec::new());
        let reserved = lanes
            .try_reserve_exact(usize::from(settings.lanes))
            .and_then(|()| again.try_reserve_exact(settings.receives as usize));
        if reserved.is_err() {
            return Err(Error { call: Call::Create, errno: crate::arena::ENOMEM });
        }
        lanes.resize_with(usize::from(settings.lanes), Lane::new);
        let bytes = settings.memory_bytes();
        // SAFETY: the caller's promise.
        let region = unsafe { fabric.register(domain, memory, bytes, Access::Receive) }?;
        let lanes = Self {
            tag,
            lanes: lanes.into_boxed_slice(),
            dirty: Bits::new(),
            closing: Bits::new(),
            turn: Turn::default(),
            tx: UnsafeCell::new(Tx::new(Window::new(settings.sends))),
            rx: UnsafeCell::new(Rx::new(again)),
            pair: UnsafeCell::new(None),
            starting: AtomicBool::new(false),
            started: AtomicBool::new(false),
            greets: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            completed: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            reposted: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            region,
            memory,
            owner: AtomicUsize::new(0),
            counters: Counters::default(),
            settings,
            fabric,
        };
        let mut from = 0;
        while from < settings.receives {
            let count = (settings.receives - from).min(BATCH_MAX as u32);
            if let Err(e) = lanes.post_buffers(pair, |i| from.wrapping_add(i), count as usize) {
                let _ = lanes.fabric.close_region(lanes.region);
                return Err(Error { call: Call::PostReceives, errno: e.errno });
            }
            from += count;
        }
        Ok(lanes)
    }

    /// Posts `count` receives, at most [`BATCH_MAX`], into the buffers that `which` says.
    fn post_buffers(
        &self,
        pair: &F::Pair,
        which: impl Fn(u32) -> u32,
        count: usize,
    ) -> Result<(), PostError> {
        let receive = |buffer: u32| netacc_verbs::fabric::Receive {
            id: self.tag.of_receive(buffer),
            into: Some(Piece {
                region: &self.region,
                offset: buffer as usize * MESSAGE_BYTES,
                bytes: MESSAGE_BYTES,
            }),
        };
        let all: [_; BATCH_MAX] = core::array::from_fn(|i| receive(which(i as u32)));
        self.fabric.post_receives(pair, all.get(..count).unwrap_or(&[]))
    }

    /// Its place in its hub.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// A word of the owner's, which the pair only keeps: who is told its news finds by it what it
    /// belongs to. 0 at first.
    #[must_use]
    pub fn owner(&self) -> usize {
        self.owner.load(Acquire)
    }

    /// Sets that word.
    pub fn set_owner(&self, word: usize) {
        self.owner.store(word, Release);
    }

    /// How it works.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The pair is established, and the peer is known to know: from here on it is posted on. Poll
    /// afterwards: something may have come before. `connected`: this end has connected, not
    /// accepted, so it sends first (iWARP wants that), an empty message if there is nothing else.
    /// Gives the pair back if there is one already.
    pub fn start(&self, pair: F::Pair, connected: bool) -> Result<Kicked, F::Pair> {
        if self.starting.swap(true, AcqRel) {
            return Err(pair);
        }
        // SAFETY: `starting` lets one caller come here, and nobody reads the cell before `started`.
        unsafe { *self.pair.get() = Some(pair) };
        self.greets.store(connected, Relaxed);
        self.started.store(true, Release);
        Ok(self.pump())
    }

    fn pair(&self) -> Option<&F::Pair> {
        if !self.started.load(Acquire) {
            return None;
        }
        // SAFETY: written before `started`, and not again while the pair is shared.
        unsafe { (*self.pair.get()).as_ref() }
    }

    fn lane(&self, lane: u16) -> Option<&Lane<F>> {
        self.lanes.get(usize::from(lane))
    }

    // ---- lanes ----------------------------------------------------------------------------------

    /// Opens a lane: `outbound` are the words of the direction that this end produces into
    /// `rings.outbound()`, `inbound` those of the direction that it consumes from
    /// `rings.inbound()`. The peer is told `token`. Rings and words are in use until
    /// [`Hub::take_back`](crate::Hub::take_back) or [`dismantle`](Self::dismantle).
    ///
    /// Gives the rings back when the lane is not free.
    ///
    /// # Safety
    /// - The words are valid as long as they are in use, and zeroed. One producer works on
    ///   `outbound`, one consumer on `inbound`; the others' words there (`head` and `quiet`;
    ///   `tail`, `base` and `producer_user`) are the engine's alone.
    /// - Only that producer writes to the outbound ring, and nobody but the engine's peer to the
    ///   inbound one.
    pub unsafe fn open(
        &self,
        lane: u16,
        outbound: NonNull<RingWords>,
        inbound: NonNull<RingWords>,
        rings: Rings<F>,
        token: u64,
    ) -> Result<Kicked, (OpenError, Rings<F>)> {
        let Some(s) = self.lane(lane) else { return Err((OpenError::NoLane, rings)) };
        if s.state.compare_exchange(FREE, BUSY, AcqRel, Acquire).is_err() {
            return Err((OpenError::State, rings));
        }
        s.due.store(rings.size as u64 / 4, Relaxed);
        // SAFETY: the state lets one caller come here, and nobody looks at the configuration of a
        // lane that is busy.
        unsafe { *s.config.get() = Some(Config { outbound, inbound, rings, token }) };
        s.state.store(OPEN, Release);
        Ok(self.kick(lane))
    }

    /// Closes an open lane: what is published goes out, then the end. The peer's part goes on until
    /// it closes, too.
    pub fn close(&self, lane: u16) -> Result<Kicked, OpenError> {
        self.turn_over(lane, OPEN, CLOSING)
    }

    /// Answers the peer's opening of a lane with the end.
    pub fn refuse(&self, lane: u16) -> Result<Kicked, OpenError> {
        let opened = self.lane(lane).ok_or(OpenError::NoLane)?.peer_open.load(Acquire);
        if !opened {
            return Err(OpenError::State);
        }
        self.turn_over(lane, FREE, REFUSING)
    }

    fn turn_over(&self, lane: u16, from: u32, to: u32) -> Result<Kicked, OpenError> {
        let s = self.lane(lane).ok_or(OpenError::NoLane)?;
        match s.state.compare_exchange(from, to, AcqRel, Acquire) {
            Ok(_) => Ok(self.kick(lane)),
            Err(_) => Err(OpenError::State),
        }
    }

    /// Frees a released lane. `None`: the turn is taken. The caller has the poll lock.
    pub(crate) fn take_back(&self, lane: u16) -> Option<Result<TakenBack<F>, OpenError>> {
        let Some(s) = self.lane(lane) else { return Some(Err(OpenError::NoLane)) };
        if !self.turn.try_enter() {
            return None;
        }
        // SAFETY: the poll lock is the caller's, the turn is ours.
        let (rx, tx, config, peer) = unsafe {
            (&mut *s.rx.get(), &mut *s.tx.get(), &mut *s.config.get(), &mut *s.peer.get())
        };
        let state = s.state.load(Acquire);
        let result = if matches!(state, CLOSING | REFUSING) && rx.is_released() {
            let reopened = rx.reopened.take();
            *rx = LaneRx::default();
            *tx = LaneTx::default();
            for word in [&s.posted, &s.acked, &s.marked, &s.reached, &s.mark, &s.due] {
                word.store(0, Relaxed);
            }
            s.close_number.store(0, Relaxed);
            s.close_sent.store(false, Relaxed);
            s.peer_open.store(false, Relaxed);
            *peer = None;
            let rings = config.take().map(|c| c.rings);
            let reopened = reopened.map(|again| {
                rx.reopen(again);
                *peer = Some(again.ring);
                s.peer_open.store(true, Release);
                Reopened {
                    token: again.token,
                    ring_bytes: again.ring.bytes(),
                    closed: again.closed,
                }
            });
            s.state.store(FREE, Release);
            Ok(TakenBack { rings, reopened })
        } else {
            Err(OpenError::State)
        };
        if !self.turn.leave() {
            self.pump_held();
        }
        Some(result)
    }

    // ---- the owner's calls ----------------------------------------------------------------------

    /// Bytes of the lane's were published. Posts them.
    pub fn kick(&self, lane: u16) -> Kicked {
        if usize::from(lane) < self.lanes.len() {
            self.dirty.set(lane);
        }
        self.pump()
    }

    /// The consumer has published its head, which is `head` (of the inbound words). Posts a credit
    /// if one is due: a quarter of the ring was consumed since the last one. Budget when none is:
    /// one load.
    #[inline]
    pub fn consumed(&self, lane: u16, head: u64) -> Kicked {
        let Some(s) = self.lane(lane) else { return Kicked::Done };
        let due = head.wrapping_sub(s.due.load(Relaxed)).cast_signed() >= 0;
        if due { self.kick(lane) } else { Kicked::Done }
    }

    /// Messages that were posted, as the peer counts them ([`has_come`](Self::has_come)): receives
    /// of its that they use, modulo 2^32.
    #[must_use]
    pub fn sent(&self) -> u32 {
        self.sent.load(Acquire)
    }

    /// Of these, those of which messages of the peer's have said that their receives are posted
    /// again: some that have arrived are not among them yet.
    #[must_use]
    pub fn granted(&self) -> u32 {
        self.granted.load(Acquire)
    }

    /// Messages that have come, as far as somebody has polled, modulo 2^32.
    #[must_use]
    pub fn has_come(&self) -> u32 {
        self.counters.read().messages_received as u32
    }

    /// What is known of a lane.
    #[cfg(test)]
    pub(crate) fn account(&self, lane: u16) -> Option<Account> {
        let s = self.lane(lane)?;
        Some(Account { acknowledged: s.acked.load(Acquire), posted: s.posted.load(Acquire) })
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Why the pair is lost, if it is.
    #[must_use]
    pub fn lost(&self) -> Option<Reason> {
        Reason::decode(self.lost.load(Acquire))
    }

    /// Nothing is posted or applied any more: the connection manager has told the end, or the owner
    /// wants it, or has heard of a loss. What is under way is flushed, and the peer's writes are
    /// refused. A call into the kernel, which may wait for the device: the owner's alone.
    pub fn end(&self) {
        self.lose(Reason::Ended);
        if let Some(pair) = self.pair() {
            // There is nothing to be done if this fails: closing the pair comes anyway.
            let _ = self.fabric.fail(pair);
        }
    }

    /// The first reason counts. Whoever polls or posts may find it, in the middle of a call of the
    /// application's and under the hub's lock, so nothing is asked of the device here: the owner is
    /// told, by [`News::Lost`] or [`Kicked::Lost`], and ends the pair.
    pub(crate) fn lose(&self, why: Reason) {
        let _ = self.lost.compare_exchange(0, why.encode(), AcqRel, Acquire);
    }

    /// Closes the pair and the region of the receives. After it no device touches the memory of the
    /// lanes: their owners have their words and rings back.
    ///
    /// `pair`: the queue pair, where it was never started.
    pub fn dismantle(self, pair: Option<F::Pair>) -> Parts<F> {
        let mut error = None;
        for pair in self.pair.into_inner().into_iter().chain(pair) {
            error = error.or(self.fabric.close_pair(pair).err());
        }
        error = error.or(self.fabric.close_region(self.region).err());
        let configs = self.lanes.into_iter().filter_map(|s| s.config.into_inner());
        Parts { rings: configs.map(|c| c.rings).collect(), memory: self.memory, error }
    }
}

#[cfg(test)]
impl<F: Fabric> Lanes<F> {
    /// The pair and the region of its receives, without the engine.
    pub(crate) fn into_pair(self) -> (F::Pair, F::Region) {
        (self.pair.into_inner().unwrap(), self.region)
    }
}

impl Reason {
    /// Not 0: kind in the lowest byte, then detail, then errno.
    fn encode(self) -> u64 {
        let pack = |kind: u64, detail: u64, errno: c_int| {
            kind | detail << 8 | u64::from(errno.cast_unsigned()) << 32
        };
        match self {
            Self::Failed(failure) => match failure {
                Failure::Flushed => pack(1, 0, 0),
                Failure::Length => pack(1, 1, 0),
                Failure::Local => pack(1, 2, 0),
                Failure::RemoteAccess => pack(1, 3, 0),
                Failure::RemoteOther => pack(1, 4, 0),
                Failure::Unreachable => pack(1, 5, 0),
                Failure::NotReady => pack(1, 6, 0),
                Failure::Other(status) => pack(1, 7, status),
            },
            Self::Refused { call, errno } => pack(2, call as u64, errno),
            Self::Peer(violation) => pack(3, violation as u64, 0),
            Self::Words => pack(4, 0, 0),
            Self::Ended => pack(5, 0, 0),
        }
    }

    fn decode(code: u64) -> Option<Self> {
        let (detail, errno) = (code >> 8 & 0xff, (code >> 32) as u32);
        let errno = errno.cast_signed();
        Some(match code & 0xff {
            0 => return None,
            1 => Self::Failed(match detail {
                0 => Failure::Flushed,
                1 => Failure::Length,
                2 => Failure::Local,
                3 => Failure::RemoteAccess,
                4 => Failure::RemoteOther,
                5 => Failure::Unreachable,
                6 => Failure::NotReady,
                _ => Failure::Other(errno),
            }),
            2 => {
                let calls = [Call::Post, Call::PostReceives, Call::Poll];
                let call = calls.into_iter().find(|c| *c as u64 == detail).unwrap_or(Call::Post);
                Self::Refused { call, errno }
            }
            3 => {
                let all = [
                    Violation::Message,
                    Violation::Immediate,
                    Violation::Lane,
                    Violation::Open,
                    Violation::Close,
                    Violation::Room,
                    Violation::Tail,
                    Violation::Rebase,
                    Violation::Head,
                    Violation::Returned,
                ];
                Self::Peer(
                    all.into_iter().find(|v| *v as u64 == detail).unwrap_or(Violation::Message),
                )
            }
            4 => Self::Words,
            _ => Self::Ended,
        })
    }
}
