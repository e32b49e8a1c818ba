//! One connection, as this process and its forked children see it.
//!
//! A [`Socket`] lives in memory that is shared with forked children (they share the kernel's socket
//! too), in type-stable slabs that are never unmapped ([`memory`]). What it is, and what makes it
//! something else, is a table ([`state`]); what is true of it beside that are flags ([`flag`]).
//! `docs/design/socket.md` has both.
//!
//! Only application threads make something else of a candidate. An agent ([`crate::agent`]) only
//! leaves an [`Offer`].

use crate::channel::Channel;
use crate::log::{self, debug_log};
use crate::path::{Children, PathId, PathList};
use crate::published::Published;
use crate::{carrier, process, stats, syn, trace};
mod calls;
mod end;
pub(crate) mod flag;
pub(crate) mod harmless;
mod memory;
pub(crate) mod offered;
mod ruled;
mod spill;
mod state;
mod stays;

pub(crate) use calls::lead_calls;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*,
};
pub(crate) use end::{
    LastName, await_change, await_close, close_books, end_life, forget_orphan, free_left,
    look_at_options, note_spare, orphan, recycle, reuse, set_corked, set_nonblock,
};
pub(crate) use memory::{after_fork_in_child, give_up_slab, new_socket};
use netacc_control::config::LogLevel;
use netacc_control::stats::{ConnRecord, Reason};
use netacc_control::trace::Ring;
use netacc_proto::rendezvous::Tuple;
use netacc_proto::switchover::{Rx, Tx};
use netacc_ring::sleepers::SETS;
use netacc_ring::{Consumer, EndLock, Producer, RingWords};
pub(crate) use offered::{OfferState, Offered};
pub(crate) use ruled::Limit;
use ruled::Ruled;
#[cfg(test)]
pub(crate) use spill::NO_MEMORY;
pub(crate) use state::{Event, Stage, State};
pub(crate) use stays::{comes, say_stays};

/// No reason against it.
pub(crate) const NONE: u32 = Reason::None as u32;

/// The sending half. Owned by whoever holds `Socket::tx_lock`.
#[derive(Debug)]
pub(crate) struct TxEnd {
    pub(crate) switch: Tx,
    pub(crate) ring: Producer,
    /// Never promote again.
    pub(crate) never: bool,
    /// When the first of the bytes was written that the ring holds back.
    pub(crate) held_since: u64,
    /// Kernel calls of before the attachment may be under way: what they send is not counted yet,
    /// and nothing is promoted.
    pub(crate) unsettled: bool,
    /// While bytes are sent again: what the carrier had taken before the send that is under way.
    pub(crate) resend_mark: Option<u64>,
    /// While the library's own SO_LINGER stands on the carrier ([`crate::io`]'s `end_in_reset`).
    pub(crate) linger: Option<Linger>,
    /// While a probe is under way: the application's options ([`crate::io`]'s `probe`).
    pub(crate) probed: Option<[i32; 4]>,
    /// The peer was told that this end has left the ring for good (within the host).
    pub(crate) told_left: bool,
    /// Acceleration is off: nothing is promoted until it is on again.
    pub(crate) paused: bool,
    /// Changes of path to order (tests only).
    pub(crate) switches: crate::inject::Switches,
}

/// What stands on the carrier is the library's own SO_LINGER.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linger {
    /// The application's.
    pub(crate) theirs: libc::linger,
    /// It is there for bytes that were sent.
    pub(crate) sending: bool,
    /// It is there for bytes that are unread.
    pub(crate) unread: bool,
}

/// The receiving half. Owned by whoever holds `Socket::rx_lock`.
#[derive(Debug)]
pub(crate) struct RxEnd {
    pub(crate) switch: Rx,
    pub(crate) ring: Consumer,
    /// As in [`TxEnd`]: what they receive is not counted yet, and the peer may not promote.
    pub(crate) unsettled: bool,
    /// When the carrier was last asked for news by a call that found the ring empty.
    pub(crate) carrier_asked: u64,
    /// `-errno` that the carrier reported while bytes of the ring came first.
    pub(crate) pending_error: i32,
    /// Shut down for receiving (between hosts): the stream's offset up to which there were bytes
    /// then; 0: that was not noted.
    pub(crate) read_until: u64,
    /// Both halves were shut down (between hosts) when there were bytes up to this offset: TCP
    /// answers what comes behind it with a reset.
    pub(crate) shut_at: Option<u64>,
    /// The peer's library was asked to pull back (within the host).
    pub(crate) asked_back: bool,
    /// The library's own SO_LINGER stands on the carrier for what is unread in the ring.
    pub(crate) resets: bool,
    /// As in [`TxEnd`]: the peer may not promote.
    pub(crate) paused: bool,
    /// Never arm again: the count of what was received is not known, or it leaves for good.
    pub(crate) never: bool,
    /// When it was frozen last (`sys::now_ns`).
    pub(crate) frozen_at: u64,
}

/// A socket under one of its descriptors. The generation says that it is still the one that the
/// call has found there.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    pub(crate) s: &'static Socket,
    pub(crate) g: u16,
    pub(crate) fd: c_int,
}

/// An epoll set that a socket is in, and its item there (`epoll/homes.rs`).
#[repr(C)]
pub(crate) struct Home {
    pub(crate) set: AtomicPtr<()>,
    pub(crate) item: AtomicU64,
}

#[repr(C, align(64))]
pub(crate) struct Socket {
    // Read at every call.
    pub(crate) state: Stage,
    /// Counts the lives of this piece of memory; 16 bits of it stand in every table entry.
    pub(crate) generation: AtomicU32,
    /// Serial number of the process ([`process::id`]) that made it: another one (a forked
    /// child) takes the slow way.
    pub(crate) owner: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) slot: AtomicU32,
    /// Some descriptor of the carrier, for the kernel calls that the service thread makes.
    pub(crate) fd: AtomicI32,
    pub(crate) channel: AtomicPtr<Channel>,
    /// The words that it sends and receives by, for calls that take the fast way; null where they
    /// must not ([`Socket::divert_calls`]). Set by who holds the end's lock, made null by anybody.
    pub(crate) tx_fast: AtomicPtr<RingWords>,
    pub(crate) rx_fast: AtomicPtr<RingWords>,
    pub(crate) record: AtomicPtr<ConnRecord>,
    // Taken at every call.
    pub(crate) tx_lock: EndLock,
    pub(crate) rx_lock: EndLock,
    pub(crate) tx_words: AtomicPtr<RingWords>,
    pub(crate) rx_words: AtomicPtr<RingWords>,
    /// The receiver's offset in the stream while it stands on the carrier, for those who look
    /// without the lock.
    pub(crate) rx_offset: AtomicU64,
    /// What this end has said in the shared words.
    pub(crate) published: Published,
    /// The epoll sets that it is in.
    pub(crate) homes: [Home; SETS],
    pub(crate) tx: UnsafeCell<TxEnd>,
    pub(crate) rx: UnsafeCell<RxEnd>,
    // While a candidate. (Calls that began then can last longer: `unsettled`. Changed under the
    // end's lock when such a call ends.)
    pub(crate) tx_inflight: AtomicU32,
    pub(crate) rx_inflight: AtomicU32,
    /// Threads that wait for it in poll or select; above, the generation that they wait for. (A
    /// jump out of a handler leaves one behind.)
    pub(crate) pollers: AtomicU64,
    pub(crate) tx_bytes: AtomicU64,
    pub(crate) rx_bytes: AtomicU64,
    pub(crate) calls: AtomicU32,
    /// Of a new one: how often its calls that moved bytes have changed sides, and which side was
    /// last ([`Socket::count_turn`]).
    pub(crate) turns: AtomicU32,
    /// Looks in a row that have found what it has sent unread (between hosts: what has come), and
    /// how far it was read then ([`crate::io::look_at_unread`]).
    pub(crate) stood: AtomicU32,
    pub(crate) stood_at: AtomicU64,
    /// How many receives in a row have found nothing and not waited.
    pub(crate) in_vain: AtomicU32,
    /// When its calls look for its peer again (monotonic), if it has none by then; 0: they have not
    /// looked yet.
    pub(crate) look_at: AtomicU64,
    /// How often they have.
    pub(crate) looks: AtomicU32,
    /// Made, last, by the agent: `offer` is complete.
    pub(crate) offered: Offered,
    /// Why there will be no offer.
    pub(crate) verdict: AtomicU32,
    /// The paths that it has left to try: a [`PathList`]. Of a candidate changed under the sending
    /// end's lock.
    pub(crate) paths: AtomicU32,
    pub(crate) offer: UnsafeCell<Offer>,
    pub(crate) tuple: UnsafeCell<Tuple>,
    // Rare.
    /// The number of its ring in its maker's trace ([`Socket::trace`]); 0: none.
    pub(crate) ring: AtomicU32,
    /// What a rule says of its waits and of its trace.
    pub(crate) ruled: Ruled,
    /// What it asked of its packets when a pair was sought for it
    /// ([`crate::packet_policy::Asked::key`]).
    pub(crate) asked: AtomicU32,
    /// Between hosts: it has filled a small ring, and is to have a whole one.
    pub(crate) fills: AtomicBool,
    /// A connect is under way, and the program has not heard of its end by another one.
    pub(crate) connects: AtomicBool,
    /// Between hosts, on its way back: what is to be received next is the kernel's. (For forked
    /// children, who do not see the receiving half.)
    pub(crate) receives_there: AtomicBool,
    /// Of how many bytes half must be free for a send to find room.
    pub(crate) room: AtomicU32,
    /// How often somebody has found no room ([`wait::on_full`](crate::wait::on_full)).
    pub(crate) full: AtomicU32,
    /// What a small ring has no room for is here until the connection has left it
    /// ([`Spill`](spill::Spill)).
    pub(crate) spill: spill::Spill,
    /// While unconnected: the reason why it must never be accelerated, or `Reason::None`.
    pub(crate) refused: AtomicU32,
    /// Between hosts: what is known of its SYN.
    pub(crate) syn: syn::Syn,
    /// Between hosts: counts what comes of its way back to its carrier ([`crate::io::Departure`]).
    pub(crate) came_on: AtomicU32,
    /// It became the kernel's before all had come again over the carrier: up to this byte of what
    /// that receives it comes. 0: all had.
    pub(crate) comes_until: AtomicU64,
    /// Descriptors, in this process and its children, that refer to it (a killed child is never
    /// subtracted); above, the generation.
    pub(crate) refs: AtomicU64,
    /// The connection that this one was adopted from, until nobody else has it any more; then null.
    pub(crate) from: AtomicPtr<Socket>,
    /// Its generation, and above how many of its `refs` this process has.
    pub(crate) from_key: AtomicU64,
    /// How often the process had forked when the connection was made.
    pub(crate) forks: AtomicU32,
    /// What is under way on it in this process: calls that block, a pull-back. It is not taken
    /// apart before that ends.
    pub(crate) waiters: AtomicU32,
    /// Epoll registrations (pairs of set and descriptor) that name it.
    pub(crate) registrations: AtomicU32,
    /// When a call that did not wait last asked the carrier ([`crate::io::carrier_is_due`]).
    pub(crate) carrier_asked: AtomicU64,
    /// SO_RCVTIMEO and SO_SNDTIMEO; 0: none, < 0: calls never wait.
    pub(crate) receive_timeout_ns: AtomicI64,
    pub(crate) send_timeout_ns: AtomicI64,
    /// `-errno` that the next receive returns which finds nothing (recvmmsg).
    pub(crate) kept_error: AtomicI32,
    // Fast connect (`crate::life_word`).
    /// The life of its carrier that it is; 0: there are none.
    pub(crate) life: AtomicU32,
    /// Another name of the carrier, of the library's own, + 1; 0: none. It lasts through the lives.
    pub(crate) spare: AtomicI32,
    /// Which listener it was accepted by ([`crate::fast_connect::listener_of`]).
    pub(crate) listener: AtomicU32,
    /// Options that the application has set ([`crate::fast_connect::mark_of`]).
    pub(crate) marks: AtomicU32,
    pub(crate) harmless: harmless::Harmless,
    /// The cookie of the carrier's network namespace, where it has another name.
    pub(crate) netns: AtomicU64,
    /// Of a connector, where the carrier has another name: where its peer is
    /// ([`crate::fast_connect::PeerAddress`]).
    pub(crate) peer_address: [AtomicU64; 4],
    /// Next of the free list.
    pub(crate) next_free: AtomicPtr<Socket>,
}

/// What an agent leaves when both ends have agreed. Written while there is none, read once
/// `offered` is made ([`Offered`]).
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) channel: *const Channel,
    pub(crate) slot: u32,
    /// The bytes of the ring that we produce into, and of the one that we consume from, in the
    /// mapped arena.
    pub(crate) tx_ring: *mut u8,
    pub(crate) tx_bytes: u32,
    pub(crate) rx_ring: *mut u8,
    pub(crate) rx_bytes: u32,
    /// What was asked of its packets when the pair was sought: as [`Socket::asked`].
    pub(crate) asked: u32,
    /// Bytes of a whole ring: more than `tx_bytes` only between hosts, where the ring may be small.
    pub(crate) whole: u32,
}

// SAFETY: the UnsafeCells are governed by the locks and flags named beside them; everything else is
// atomic.
unsafe impl Sync for Socket {}
// SAFETY: as above.
unsafe impl Send for Socket {}

impl Socket {
    /// Size of the ring that an attached socket produces into.
    pub(crate) fn tx_ring_bytes(&self) -> u64 {
        // SAFETY: written before the socket was attached, read-only afterwards.
        unsafe { (*self.offer.get()).tx_bytes as u64 }
    }
    /// Of how many bytes half must be free for a send to find room.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.room.load(Relaxed).into()
    }
    /// Bytes of a whole ring of its path.
    pub(crate) fn whole_ring_bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.offer.get()).whole as usize }
    }
    pub(crate) fn generation16(&self) -> u16 {
        self.generation.load(Acquire) as u16
    }
    #[inline(always)]
    pub(crate) fn is(&self, state: State) -> bool {
        self.state.now() == state
    }
    /// It is a candidate, or may be one again in a moment: a thread looks at it
    /// (`io/leave/pause.rs`). What is agreed on meanwhile is not lost.
    pub(crate) fn may_be_candidate(&self) -> bool {
        matches!(self.state.now(), State::Candidate | State::Changing)
    }
    /// And no two ends have agreed on it.
    pub(crate) fn may_be_offered(&self) -> bool {
        self.may_be_candidate() && !self.offered.is_agreed()
    }
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Acquire) & flag != 0
    }
    pub(crate) fn raise(&self, flag: u32) {
        self.flags.fetch_or(flag, AcqRel);
    }
    pub(crate) fn lower(&self, flag: u32) {
        self.flags.fetch_and(!flag, AcqRel);
    }
    /// Takes an offer back that nobody has taken up: now it is too late for that. False: there is
    /// none such. (State::Plain: of a forked child, which cannot give it back.)
    pub(crate) fn take_offer_back(&self) -> bool {
        let is_there = self.is(State::Candidate) || self.is(State::Plain);
        if !is_there || !self.offered.happens(offered::Event::Taken) {
            return false;
        }
        // (Or one that a thread looks at, which finds that it is too late.)
        if self.may_be_candidate() {
            self.change_reason(&[Reason::Agreed], Reason::NotStarted);
            self.calls.store(0, Relaxed);
            self.lower(flag::NOTED);
            self.offered.begin();
        }
        true
    }
    /// Made by another process of the family: this one inherited it.
    #[inline(always)]
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner.load(Relaxed) != process::id()
    }
    /// Descriptors of this process and its children that refer to it.
    pub(crate) fn names(&self) -> u32 {
        self.refs.load(SeqCst) as u32
    }
    /// Counts descriptors in or out, unless it is another connection by now. Returns how many there
    /// were.
    pub(crate) fn count_names(&self, g: u16, change: impl Fn(u32) -> u32) -> Option<u32> {
        let counted = |old: u64| {
            ((old >> 32) as u16 == g).then(|| old >> 32 << 32 | u64::from(change(old as u32)))
        };
        self.refs.fetch_update(SeqCst, SeqCst, counted).ok().map(|old| old as u32)
    }
    /// One more thread waits for it in poll or select, or one less; nothing, if it is another
    /// connection by now.
    pub(crate) fn count_poller(&self, generation: u32, change: fn(u32) -> u32) -> bool {
        let counted = |old: u64| {
            ((old >> 32) as u32 == generation)
                .then(|| u64::from(generation) << 32 | u64::from(change(old as u32)))
        };
        self.pollers.fetch_update(SeqCst, SeqCst, counted).is_ok()
    }
    pub(crate) fn record(&self) -> Option<&'static ConnRecord> {
        // SAFETY: null or a record of a statistics segment, which is never unmapped.
        unsafe { self.record.load(Acquire).as_ref() }
    }
    /// The paths that it has left to try.
    pub(crate) fn paths(&self) -> PathList {
        PathList::from_bits(self.paths.load(Acquire))
    }
    pub(crate) fn set_paths(&self, paths: PathList) {
        self.paths.store(paths.bits(), Release);
    }
    /// The first of them: that which it tries, or is on beside its carrier.
    pub(crate) fn path(&self) -> PathId {
        self.paths().first()
    }
    /// Whether a forked child can go on with it, whichever of its paths it comes to.
    pub(crate) fn children_follow(&self) -> bool {
        self.paths().iter().all(PathId::children_follow)
    }
    /// A forked child has it, and only its maker can take it back to its carrier.
    pub(crate) fn needs_maker(&self) -> bool {
        self.is_inherited() && self.path().traits().children == Children::CallMaker
    }
    /// `None` also in a forked child that its maker does everything for: the memory may be of after
    /// the fork.
    pub(crate) fn channel(&self) -> Option<&'static Channel> {
        if self.needs_maker() {
            return None;
        }
        // SAFETY: null, or a channel that is not freed while `users` counts this socket; the memory
        // of one that a child uses is older than any fork that this process inherited the socket by
        // (`attach`).
        unsafe { self.channel.load(Acquire).as_ref() }
    }
    /// Our socket on a slot.
    #[inline(always)]
    pub(crate) fn on(channel: &Channel, slot: usize) -> Option<&'static Socket> {
        // SAFETY: null, or a socket of a type-stable slab.
        unsafe { channel.sockets.get(slot)?.load(Acquire).cast::<Socket>().as_ref() }
    }
    /// It is our socket on that slot from here on.
    pub(crate) fn put_on(&'static self, channel: &Channel, slot: usize) {
        if let Some(at) = channel.sockets.get(slot) {
            at.store(core::ptr::from_ref(self).cast_mut().cast(), Release);
        }
    }
    /// It must not be accelerated when it is connected.
    pub(crate) fn refuse(&self, why: Reason) {
        self.refused.store(why as u32, Relaxed);
    }
    /// The words of the directions that it produces and that it consumes; the channel is
    /// [`Self::channel`]'s.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<(&'static RingWords, &'static RingWords)> {
        // SAFETY: null, or words of the channel, which lives as that does.
        unsafe {
            Some((self.tx_words.load(Relaxed).as_ref()?, self.rx_words.load(Relaxed).as_ref()?))
        }
    }
    pub(crate) fn tuple(&self) -> Tuple {
        // SAFETY: written before its paths are, which is before anybody looks at it, never after.
        unsafe { *self.tuple.get() }
    }
    /// Nothing is known of a candidate but that it is one (`candidates::look_up`).
    pub(crate) fn is_new(&self) -> bool {
        self.paths().is_empty()
    }
    /// A call has moved bytes: how many turns there were, as in request, reply, request. (Not exact
    /// where several threads are in calls on it.)
    pub(crate) fn count_turn(&self, sends: bool) -> u32 {
        let (old, side) = (self.turns.load(Relaxed), u32::from(sends));
        if old >> 1 != 0 && old & 1 == side {
            return old >> 1;
        }
        let turns = (old >> 1).saturating_add(1).min(u32::MAX >> 1);
        self.turns.store(turns << 1 | side, Relaxed);
        turns
    }
    /// `None`: it was not looked up, or is on no path.
    pub(crate) fn known_tuple(&self) -> Option<Tuple> {
        (!self.is_new()).then(|| self.tuple())
    }
    /// Says so of a connection of which nothing better is known.
    pub(crate) fn judge(&self, why: Reason) {
        self.change_reason(&[Reason::NotStarted, Reason::Negotiating, Reason::Agreed], why);
    }
    /// The search for its peer begins, or comes to something.
    pub(crate) fn start(&self, why: Reason) {
        use Reason::*;
        let passing = [
            NotStarted,
            Negotiating,
            Agreed,
            WaitsUnseen,
            ListenerWithoutLibrary,
            PeerWithoutLibrary,
            NotClaimed,
            PeerRefused,
            VersionMismatch,
            NotAuthenticated,
            NoMemory,
            NoDescriptor,
            NoRecord,
            ChannelFull,
            ChannelFailed,
            PeerCorrupt,
        ];
        self.change_reason(&passing, why);
    }
    /// Another thread may have said something for good meanwhile.
    pub(crate) fn change_reason(&self, from: &[Reason], to: Reason) {
        let Some(r) = self.record() else { return };
        let old = r.reason.load(Relaxed);
        if let Some(old) = from.iter().find(|f| **f as u32 == old)
            && r.reason.compare_exchange(*old as u32, to as u32, Relaxed, Relaxed).is_ok()
        {
            stats::place_reason(r, to);
            self.say(to);
        }
    }
    /// Records why the connection is where it is.
    pub(crate) fn set_reason(&self, why: Reason) {
        if let Some(r) = self.record() {
            let old = r.reason.swap(why as u32, Relaxed);
            stats::place_reason(r, why);
            if old != why as u32 {
                self.say(why);
            }
        }
    }
    /// It is the kernel's for good, and nobody counts what moves on it.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_no_more(&self) {
        if let Some(r) = self.record() {
            r.count_no_more();
        }
    }
    /// Whether that is recorded which happens to it: as its rule says, or as of all.
    #[inline(always)]
    fn is_traced(&self) -> bool {
        self.ruled.is_traced(trace::is_on)
    }
    /// Records what happens to it, for `netacc trace`.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace(&self, event: trace::Event, what: u64) {
        if self.is_traced()
            && let Some(ring) = self.ring()
        {
            trace::record(ring, self.record(), event, what);
        }
    }
    /// Records what has moved on it.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_moved(&self) {
        if self.is_traced()
            && let (Some(ring), Some(moved)) = (self.ring(), self.record())
        {
            trace::look(ring, moved);
        }
    }
    /// Its ring has no room, and nobody takes anything out.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_full(&self) {
        if self.is_traced()
            && let (Some(ring), Some(moved)) = (self.ring(), self.record())
        {
            trace::still_full(ring, moved);
        }
    }
    /// As [`Socket::trace`], unless the same was recorded last: what a program can ask for again
    /// and again must not push everything else out.
    #[cold]
    pub(crate) fn trace_once(&self, event: trace::Event, what: u64) {
        if !self.is_traced() {
            return;
        }
        match self.known_ring().filter(|ring| ring.ends_in(event)) {
            Some(ring) => trace::happens_again(ring, self.record(), event, what),
            None => self.trace(event, what),
        }
    }
    /// Its ring, if it has one. A forked child looks at no ring of what it has inherited: the
    /// number is of its maker's trace, and counts there alone.
    fn known_ring(&self) -> Option<&'static Ring> {
        match self.ring.load(Acquire) {
            0 | RING_OVER => None,
            i => trace::ring(i).filter(|_| !self.is_inherited()),
        }
    }
    /// Its ring. One that was there before tracing was turned on gets it now.
    fn ring(&self) -> Option<&'static Ring> {
        let lives = || match self.state.now() {
            State::Candidate => !self.is_new(),
            state => state == State::Attached,
        };
        if self.ring.load(Acquire) == 0 && !self.is_inherited() && lives() {
            self.begin_trace(false);
        }
        self.known_ring()
    }
    /// It gets a ring, if there is one. `found`: it was there before this process had it.
    #[inline(always)]
    pub(crate) fn begin_trace(&self, found: bool) {
        if self.is_traced() {
            self.open_trace(found);
        }
    }
    #[cold]
    #[inline(never)]
    fn open_trace(&self, found: bool) {
        let event = match self.has(flag::CONNECTOR) {
            _ if found => trace::Event::Found,
            true => trace::Event::Connected,
            false => trace::Event::Accepted,
        };
        let of_record = |r: &ConnRecord| (r.opened_unix_ns.load(Relaxed), r.peer_pid.load(Relaxed));
        let (opened, peer_pid) = self.record().map_or((0, 0), of_record);
        let new = trace::open(self.fd.load(Relaxed), event, opened);
        let Some(ring) = trace::ring(new).filter(|_| new != 0) else { return };
        if let Some(t) = self.known_tuple() {
            ring.set_addresses(t.local(), t.peer());
        }
        ring.peer_pid.store(peer_pid, Relaxed);
        if self.ring.compare_exchange(0, new, AcqRel, Relaxed).is_err() {
            trace::close(ring, false);
        }
    }
    /// It is another connection from here on, with a trace of its own.
    pub(crate) fn trace_anew(&self) {
        self.ring.store(0, Release);
        if crate::config::follows_calls() {
            self.divert_calls();
        }
        self.begin_trace(false);
    }
    /// Its addresses are known from here on.
    pub(crate) fn show_in_trace(&self, tuple: Tuple) {
        if let Some(ring) = self.known_ring() {
            ring.set_addresses(tuple.local(), tuple.peer());
        }
    }
    /// Which process has its other end is known from here on.
    pub(crate) fn show_peer_in_trace(&self, pid: u32) {
        if let Some(ring) = self.known_ring() {
            ring.peer_pid.store(pid, Relaxed);
        }
    }
    /// Its trace is over.
    fn end_trace(&self) {
        // (Most that ever come to be are over before they have one.)
        if (self.is_new() && self.ring.load(Relaxed) == 0) || self.is_inherited() {
            return;
        }
        let ring = self.known_ring();
        if ring.is_some() {
            self.trace(trace::Event::Closed, 0);
        }
        let badly = self.has(flag::BROKEN_OFF | flag::CORRUPT);
        match (self.ring.swap(RING_OVER, AcqRel), ring) {
            (RING_OVER, _) => {}
            (_, Some(ring)) => trace::close(ring, badly),
            (_, None) if self.is_traced() => trace::missed(),
            (_, None) => {}
        }
    }
    /// It ends, or its process does. (Other reasons were said when they came.)
    pub(crate) fn say_at_end(&self) {
        if !log::says(LogLevel::Debug) {
            return;
        }
        let why = self.record().map_or(0, |r| r.reason.load(Relaxed));
        if let Some(why @ (Reason::NotStarted | Reason::Negotiating)) = Reason::from_code(why) {
            self.say(why);
        }
    }
    /// Says in the log, to those who look for it, why the connection is where it is, and in its
    /// trace.
    pub(crate) fn say(&self, why: Reason) {
        self.trace(trace::Event::Reason, u64::from(why as u32));
        let (fd, name, text) = (self.fd.load(Relaxed), why.name(), why.explanation());
        match self.known_tuple() {
            Some(t) => debug_log!("fd {fd} {} > {}: {name}: {text}", t.local(), t.peer()),
            None => debug_log!("fd {fd}: {name}: {text}"),
        }
    }
}

/// A connection whose trace is over.
const RING_OVER: u32 = u32::MAX;

/// A peer was woken, by the socket that a channel has on a slot.
pub(crate) static RANG: fn(*mut ()) = |socket| {
    // SAFETY: null, or a socket of a type-stable slab (`Socket::put_on`).
    if let Some(s) = unsafe { socket.cast::<Socket>().as_ref() } {
        s.trace(trace::Event::Doorbell, 0);
    }
};

/// What the kernel says of a connection's position agrees with what was counted as sent and as
/// received (`None`: not to be asked, as somebody sends or receives); otherwise bytes moved unseen.
pub(crate) fn counts_agree(
    s: &Socket,
    fd: c_int,
    sent: Option<u64>,
    received: Option<u64>,
) -> bool {
    if sent.is_none() && received.is_none() {
        return true;
    }
    let Some(counts) = carrier::counts(fd, s.has(flag::CONNECTOR)) else { return false };
    if counts.shut {
        // Perhaps by a forked child.
        s.raise(flag::SHUT_WR);
    }
    // More may have arrived between two questions; less can't be.
    sent.is_none_or(|n| n == counts.sent)
        && received.is_none_or(|n| n >= counts.read && n <= counts.received)
}

/// How many bytes the kernel has taken to send on a connection, and how many that it received were
/// read. Nobody sends or reads meanwhile.
pub(crate) fn carrier_counts(s: &Socket, fd: c_int) -> Option<(u64, u64)> {
    carrier::settled_counts(fd, s.has(flag::CONNECTOR))
}
