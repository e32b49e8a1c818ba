//! The memory that two processes share, and this process's view of it.
//!
//! A *channel* joins two processes. It has one control memfd ([`ChannelMem`]: per side the waiting
//! places, per slot the control words of a connection's two rings) and arenas (memfds that hold the
//! rings' bytes). The acceptor of the first connection creates the channel and all its memory, and
//! is the only allocator; the other side maps what it is handed.
//!
//! Side 0 is the channel's creator (acceptor), side 1 the other process. Direction `d` of a slot is
//! produced by side `d` and consumed by side `1 - d`.
//!
//! The peer may write anything anywhere in the mapped memory at any time: nothing read from it is
//! an index before it was checked, and everything that must be true is kept in [`Channel`] and
//! `crate::socket::Socket`, out of its reach: what this end has said in its own words in
//! [`crate::published::Published`].
//!
//! Not every path shares the memory with the peer ([`crate::path`]): where an engine of this
//! process's plays the far end the channel is this process's alone, and holds what the engine has
//! heard of the peer.

mod announced_at;

use crate::path::Far;
pub(crate) use crate::slots::SLOTS;
use crate::{fd_words, sys, trace};
pub(crate) use announced_at::AnnouncedAt;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use netacc_control::stats::Path;
use netacc_ring::sleepers::{self, Doorbell};
/// Waiting places of one side: epoll instances and threads that sleep.
pub(crate) use netacc_ring::sleepers::{PLACES, Side};
use netacc_ring::{ReadySet, RingWords};

/// No connection's: news of it says that the kernel has something that was sent before what is
/// announced behind it.
pub(crate) const BY_KERNEL: usize = SLOTS - 1;

/// When a connection of this process within the host, which could have a ring now or soon, last
/// sent something by the kernel ([`sys::ticks`]).
static SENT_BY_KERNEL: AtomicU64 = AtomicU64::new(0);

/// The kernel has taken something (a connection, bytes, an end) that the peer is to hear of before
/// what goes into a ring from now on.
#[inline]
pub(crate) fn sent_by_kernel() {
    // (Another thread may have been stopped between its look at the clock and this.)
    SENT_BY_KERNEL.fetch_max(sys::ticks(), Relaxed);
}

#[cfg(test)]
pub(crate) fn last_sent_by_kernel() -> u64 {
    SENT_BY_KERNEL.load(Relaxed)
}

/// Listeners of a process that give out parked carriers.
pub(crate) const LISTENERS: usize = 32;

/// The control memfd.
#[repr(C)]
pub(crate) struct ChannelMem {
    pub(crate) sides: [SideMem; 2],
    pub(crate) slots: [SlotMem; SLOTS],
}

/// What one side's waiting threads publish; written by that side, and by the peer where
/// [`ReadySet`] says so.
#[repr(C, align(64))]
pub(crate) struct SideMem {
    /// The CPU on which a thread of this side last waited, plus one: a hint.
    pub(crate) last_cpu: AtomicU32,
    /// When a connector of this side last began a connection for whose agreement it waits
    /// (monotonic): a hint (`fast_connect`).
    pub(crate) seeks_at: AtomicU64,
    /// What this side says of each of its listeners (`fast_connect`).
    pub(crate) awaits: [AtomicU64; LISTENERS],
    pub(crate) places: [ReadySet; PLACES],
}

/// One connection.
#[repr(C, align(64))]
pub(crate) struct SlotMem {
    /// Direction `d`: produced by side `d`.
    pub(crate) dirs: [RingWords; 2],
}

/// The meaning of `RingWords::quiet` (written by a direction's consumer, read by its producer).
pub(crate) mod quiet {
    /// Whom to notify of new bytes: the places of epoll sets and of a blocked thread
    /// ([`netacc_ring::sleepers`]); [`ENDS`].
    pub(crate) const NOTIFY: usize = 0;
    /// Of NOTIFY, which a producer reads at each send: the consumer's last name is being closed, or
    /// it has shut down both halves, and nothing more is taken from the ring.
    pub(crate) use netacc_ring::sleepers::ENDS;
    /// `netacc_proto::switchover::Ack::control`: the epoch that the consumer has followed, armed,
    /// frozen.
    pub(crate) const ACK: usize = 1;
    /// `Ack::consumed`.
    pub(crate) const CONSUMED: usize = 2;
    /// What is asked of the producer over RDMA, and the bits below.
    pub(crate) const REQUEST: usize = 3;
    /// Of REQUEST: this end is closed, and makes no further use of the slot.
    pub(crate) const CLOSED: u64 = 1 << 32;
    /// Of REQUEST: this end has shut down its sending half, and goes on receiving; and: it receives
    /// no more.
    pub(crate) const HALF: u64 = 1 << 33;
    pub(crate) const DEAF: u64 = 1 << 34;
    /// Of REQUEST: the FIN that comes is that of a shutdown, and says nothing of what is unread
    /// here.
    pub(crate) const FIN: u64 = 1 << 35;
    /// Of REQUEST: it is heard that the producer has left the ring for good. Should this process
    /// end with bytes of the ring unread, its kernel resets the connection.
    pub(crate) const RESETS: u64 = 1 << 36;
    /// Of REQUEST, for who looks on from outside: the ring may serve another connection.
    pub(crate) const FREE: u64 = 1 << 37;
    /// Of REQUEST: what this end sends has ended on the ring, and nothing of it is on the carrier
    /// behind that but the FIN.
    pub(crate) const LAST: u64 = 1 << 38;
    /// Of REQUEST: this end stays on its carrier, for now or for good, though both have agreed.
    pub(crate) const STAYS: u64 = 1 << 39;
}

/// What the tools know of the words.
const _: () = {
    use core::mem::offset_of;
    use netacc_control::rings;
    let (user, quiet) = (offset_of!(RingWords, producer_user), offset_of!(RingWords, quiet));
    assert!(rings::BYTES == size_of::<RingWords>());
    assert!(rings::TAIL == offset_of!(RingWords, tail));
    assert!(rings::BASE == offset_of!(RingWords, base));
    assert!(rings::EPOCH == user + 8 * announce::EPOCH);
    assert!(rings::FAST_FROM == user + 8 * announce::FAST_FROM);
    assert!(rings::BASE_BEFORE == offset_of!(RingWords, base_before));
    assert!(rings::HEAD == offset_of!(RingWords, head));
    assert!(rings::ACK == quiet + 8 * quiet::ACK);
    assert!(rings::REQUEST == quiet + 8 * quiet::REQUEST);
    assert!(rings::HELD == offset_of!(RingWords, held));
    assert!(rings::CLOSED == quiet::CLOSED);
    assert!(rings::HALF == quiet::HALF);
    assert!(rings::FREE == quiet::FREE);
};

/// The meaning of `RingWords::producer_user` (written by the producer, on the line of the tail).
pub(crate) mod announce {
    pub(crate) const EPOCH: usize = 0;
    pub(crate) const FAST_FROM: usize = 1;
    pub(crate) const CARRIER_FROM: usize = 2;
    pub(crate) const RESEND_TO: usize = 3;
    /// When the peer's last news was announced to the first of the connection's sets, if others'
    /// stood there: see [`netacc_ring::ReadySet`]. A count of the channel's, or, with [`BY_CLOCK`],
    /// the CPU's time stamp counter.
    pub(crate) const STAMP: usize = 4;
    pub(crate) const BY_CLOCK: u64 = 1 << 63;
    /// Of [`BY_KERNEL`](super::BY_KERNEL): when that was sent.
    pub(crate) const SENT: usize = 0;
}

/// The meaning of `RingWords::producer_quiet` (written rarely by the producer, read by the
/// consumer).
pub(crate) mod producer_quiet {
    /// Whom to notify of room in the ring: as `quiet::NOTIFY`.
    pub(crate) const NOTIFY: usize = 0;
    /// The words behind this one: as `announce::STAMP`, for the connection's other sets.
    pub(crate) const STAMPS: usize = 0;
}

/// The meaning of `RingWords::lives`.
pub(crate) mod lives {
    /// Not 0: the producer knows of lives (`crate::life_word`).
    pub(crate) const KNOWN: usize = 0;
    /// Of direction 0: the word of the carrier's lives, which both ends change by exchange.
    pub(crate) const WORD: usize = 1;
}

/// Where the news that the producer of `words` announces to the `at`-th of the connection's sets
/// has its place in time.
#[inline(always)]
pub(crate) fn stamp_of(words: &RingWords, at: usize) -> &AtomicU64 {
    let first = &words.producer_user[announce::STAMP];
    if at == 0 {
        return first;
    }
    words.producer_quiet.get(producer_quiet::STAMPS + at).unwrap_or(first)
}

/// [`Channel::peer_ends`], by the words of the direction that we produce.
#[inline(always)]
pub(crate) fn says_end(tx: &RingWords) -> bool {
    tx.quiet[quiet::NOTIFY].load(Relaxed) & quiet::ENDS != 0
}

/// This process's view of a channel. Never freed while a socket refers to it; lives in private
/// memory, so that after a fork the child has its own copy whose mappings are the parent's.
pub(crate) struct Channel {
    pub(crate) mem: *mut ChannelMem,
    /// Our side: 0 creator, 1 joiner.
    pub(crate) side: usize,
    /// Who plays the far end.
    pub(crate) far: Far,
    /// The control connection (AF_UNIX, SEQPACKET), `-1` when gone.
    pub(crate) control: AtomicI32,
    /// As seen by us through SO_PEERCRED.
    pub(crate) peer_pid: u32,
    /// Our effective user, as the peer was told it when the link was made.
    pub(crate) own_user: u32,
    /// The peer's doorbells (eventfds) by its place number, `-1` where not known yet.
    pub(crate) doorbells: [AtomicI32; PLACES],
    /// Doorbells that were wanted before they were known: signalled by the service thread when they
    /// arrive.
    pub(crate) owed: [AtomicU64; PLACES / 64],
    /// Our own doorbells by our place number, one for this channel alone: what this peer does to
    /// them cannot keep another peer's call from being heard. `-1`: not made yet.
    pub(crate) own_doorbells: [AtomicI32; PLACES],
    /// Our socket on each slot (null: none): `Socket::on`.
    pub(crate) sockets: [AtomicPtr<()>; SLOTS],
    /// Sockets attached or with an offer pending; the channel is unmapped when it reaches 0 and the
    /// control connection is gone.
    pub(crate) users: AtomicU32,
    /// Not 0: the link has ended. The peer is mostly dead, but need not be: it may have misbehaved,
    /// or one of both had no room for the link any more.
    pub(crate) dead: AtomicU32,
    /// When that came.
    pub(crate) died_at: AtomicU64,
    pub(crate) stamps: Stamps,
    /// What [`SENT_BY_KERNEL`] was when the peer's place was last told.
    kernel_told: [AtomicU64; PLACES],
}

/// How much news was stamped. On a line of its own: every thread that sends may write it.
#[repr(align(64))]
pub(crate) struct Stamps(AtomicU64);

// SAFETY: all shared fields are atomics; `mem` points to a mapping that outlives the channel and is
// only accessed through atomics and the ring crate's copying accessors.
unsafe impl Sync for Channel {}
// SAFETY: as above; nothing in it belongs to one thread.
unsafe impl Send for Channel {}

/// Where the peers are that a thread polls for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Last seen on this very CPU: they can only go on when this thread lets them.
    SameCpu,
    OtherCpus,
    /// They need none of this host's CPUs, and are some microseconds away: this thread makes room
    /// for others less often.
    OtherHosts,
    /// They have no library, and stand anywhere: also on this host, behind a virtual device, where
    /// they need its CPUs. They sleep until a packet comes, and so take longer than others.
    Anybody,
}

impl Peers {
    /// Those of several channels, on which this thread waits.
    pub(crate) fn of<'a>(channels: impl Iterator<Item = &'a Channel>) -> Peers {
        let mut all = None;
        for c in channels {
            c.note_cpu();
            let peers = c.peers();
            if peers == Peers::OtherCpus || all.is_some_and(|all| all != peers) {
                return Peers::OtherCpus;
            }
            all = Some(peers);
        }
        all.unwrap_or(Peers::SameCpu)
    }
}

impl Channel {
    /// A new channel over `mem`, of which nothing is known yet. `None`: there is no memory for it.
    ///
    /// # Safety
    /// `mem` is a mapping of a [`ChannelMem`] that is never taken away.
    pub(crate) unsafe fn make(mem: *mut ChannelMem, side: usize, far: Far) -> Option<*mut Channel> {
        let at = core::ptr::NonNull::new(sys::map_private(size_of::<Channel>()))?
            .cast::<Channel>()
            .as_ptr();
        // SAFETY: fresh zeroed memory of a Channel's size and alignment (pages); these fields never
        // change again.
        let c: &Channel = unsafe {
            (&raw mut (*at).mem).write(mem);
            (&raw mut (*at).side).write(side);
            (&raw mut (*at).far).write(far);
            &*at
        };
        c.doorbells.iter().chain(&c.own_doorbells).for_each(|d| d.store(-1, Relaxed));
        c.control.store(-1, Relaxed);
        Some(at)
    }

    /// The words of direction `d` of `slot`; `slot` was checked against [`SLOTS`] where it came
    /// from the peer.
    #[expect(clippy::indexing_slicing, reason = "masked: each is a power of two")]
    pub(crate) fn words(&self, slot: usize, d: usize) -> &RingWords {
        // SAFETY: `mem` is a live mapping of a ChannelMem (see the type), all of whose bytes are
        // atomics, valid for any bit pattern.
        let mem = unsafe { &*self.mem };
        &mem.slots[slot & (SLOTS - 1)].dirs[d & 1]
    }
    /// The word of the lives of a slot's carrier.
    #[cold]
    pub(crate) fn life(&self, slot: usize) -> &AtomicU64 {
        &self.words(slot, 0).lives[lives::WORD]
    }
    /// Both directions of a slot begin anew.
    pub(crate) fn zero_words(&self, slot: usize) {
        for w in [self.words(slot, 0), self.words(slot, 1)] {
            let at = core::ptr::from_ref(w).cast::<AtomicU64>();
            for i in 0..size_of::<RingWords>() / 8 {
                // SAFETY: inside of the words, which are atomics of 8 or (in pairs) 4 bytes.
                unsafe { &*at.add(i) }.store(0, Relaxed);
            }
        }
    }
    /// Nobody here uses it any more: its doorbells are closed, and its sockets forgotten.
    pub(crate) fn close_doorbells(&self) {
        for d in self.doorbells.iter().chain(&self.own_doorbells) {
            let fd = d.swap(-1, AcqRel);
            if fd >= 0 {
                fd_words::close_internal(fd);
            }
        }
        self.sockets.iter().for_each(|s| s.store(core::ptr::null_mut(), Release));
    }
    /// Both ends have left a slot: its rings may serve another one from here on. (That slot's words
    /// begin with zeros when it is next used, and not before.)
    pub(crate) fn rings_are_free(&self, slot: usize) {
        for d in 0..2 {
            self.words(slot, d).quiet[quiet::REQUEST].fetch_or(quiet::FREE, Release);
        }
    }
    /// Whether the peer has said that it takes nothing more from the ring that we produce into.
    #[inline(always)]
    pub(crate) fn peer_ends(&self, slot: usize) -> bool {
        says_end(self.words(slot, self.side))
    }
    /// Whether the peer's FIN says nothing about what we send: it lives, has shut down its sending
    /// half alone, and goes on receiving.
    pub(crate) fn peer_half_closed(&self, slot: usize) -> bool {
        let said = self.words(slot, self.side).quiet[quiet::REQUEST].load(Acquire)
            & (quiet::CLOSED | quiet::HALF | quiet::DEAF);
        said == quiet::HALF
            && self.far.is_shared()
            && !self.peer_ends(slot)
            && self.dead.load(Acquire) == 0
    }
    /// What `side` publishes.
    #[expect(clippy::indexing_slicing, reason = "masked: there are two")]
    fn side_mem(&self, side: usize) -> &SideMem {
        // SAFETY: as in `words`.
        let mem = unsafe { &*self.mem };
        &mem.sides[side & 1]
    }
    /// Our own waiting place `p` in this channel.
    #[expect(clippy::indexing_slicing, reason = "masked: PLACES is a power of two")]
    pub(crate) fn my_place(&self, p: usize) -> &ReadySet {
        &self.side_mem(self.side).places[p & (PLACES - 1)]
    }
    /// The peer's waiting place `p`.
    #[expect(clippy::indexing_slicing, reason = "masked: PLACES is a power of two")]
    pub(crate) fn peer_place(&self, p: usize) -> &ReadySet {
        &self.side_mem(self.side ^ 1).places[p & (PLACES - 1)]
    }

    /// When this side, or the peer, last began to seek an agreement that it waits for.
    pub(crate) fn seeks_at(&self, peer: bool) -> &AtomicU64 {
        &self.side_mem(self.side ^ usize::from(peer)).seeks_at
    }

    /// Publishes the CPU that this thread waits on.
    #[inline]
    pub(crate) fn note_cpu(&self) {
        let word = &self.side_mem(self.side).last_cpu;
        let cpu = sys::cpu().wrapping_add(1);
        if word.load(Relaxed) != cpu {
            word.store(cpu, Relaxed);
        }
    }

    /// See [`Far::consumed`]. (A call, so that the shared path keeps nothing in registers for it.)
    #[inline(never)]
    pub(crate) fn consumed(&self, slot: usize) {
        self.far.consumed(slot, self.words(slot, self.side ^ 1).head.load(Relaxed));
    }

    /// Tells the threads of this process that wait for a slot, behind a change; `notify` is a
    /// NOTIFY word of theirs.
    pub(crate) fn announce_here(&self, slot: usize, notify: &AtomicU64) {
        sleepers::tell(
            sleepers::whom_to_tell(notify),
            slot as u16,
            |place| self.my_place(place),
            |at, all| self.stamp(at, slot, self.side ^ 1, all),
            |place| self.wake_own(place),
        );
    }

    #[cold]
    fn wake_own(&self, place: usize) {
        let fd = self.own_doorbells.get(place).map_or(-1, |d| d.load(Acquire));
        if fd >= 0 {
            wake(fd);
        }
    }

    /// The path that its connections take.
    #[inline(always)]
    pub(crate) fn path(&self) -> Path {
        self.far.id().traits().shown
    }

    /// Where the peer is, for a thread that polls.
    #[inline]
    pub(crate) fn peers(&self) -> Peers {
        match self.far {
            Far::Process => {}
            Far::Utcp(_) => return Peers::Anybody,
            _ => return Peers::OtherHosts,
        }
        let cpu = self.side_mem(self.side ^ 1).last_cpu.load(Relaxed);
        if cpu == sys::cpu().wrapping_add(1) { Peers::SameCpu } else { Peers::OtherCpus }
    }

    /// The news of `slot` that side `from` is about to announce to the `at`-th of its sets is of
    /// now: by the clock where it is compared with other channels' news, by this channel's count
    /// otherwise, which is cheaper.
    #[inline]
    pub(crate) fn stamp(&self, at: usize, slot: usize, from: usize, by_clock: bool) {
        // (0 is what a slot has that never had one.)
        let stamp = if by_clock {
            sys::ticks() | announce::BY_CLOCK
        } else {
            self.stamps.0.fetch_add(1, Relaxed).wrapping_add(1)
        };
        stamp_of(self.words(slot, from), at).store(stamp, Relaxed);
    }

    /// Tells whoever waits at the peer's end of `slot`, behind a change; `notify` is a NOTIFY word
    /// of the peer's. Returns what that says.
    #[inline(always)]
    pub(crate) fn notify(&self, slot: usize, notify: &AtomicU64) -> u64 {
        let notify = sleepers::whom_to_tell(notify);
        if !self.far.is_shared() {
            let _ = self.far.kick(slot);
        } else if notify != 0 {
            self.notify_places(slot, notify);
        }
        notify
    }

    fn notify_places(&self, slot: usize, notify: u64) {
        sleepers::for_each_set(notify, |_, set| self.tell_of_kernel(set));
        sleepers::tell(
            notify,
            slot as u16,
            |place| self.peer_place(place),
            |at, all| self.stamp(at, slot, self.side, all),
            |place| self.ring_for(slot, place),
        );
    }

    #[cold]
    fn ring_for(&self, slot: usize, place: usize) {
        // First: what the peer's trace says of its wake is to come behind this.
        trace::rang(self.sockets.get(slot).map_or(core::ptr::null_mut(), |s| s.load(Acquire)));
        self.wake_peer(place);
    }

    /// Before news is announced to the peer's set: whether something went by the kernel before it.
    #[inline]
    fn tell_of_kernel(&self, set: usize) {
        let sent = SENT_BY_KERNEL.load(Relaxed);
        if let Some(told) = self.kernel_told.get(set).filter(|told| told.load(Relaxed) != sent) {
            let place = self.peer_place(set);
            if place.looked() < sent {
                self.words(BY_KERNEL, self.side).producer_user[announce::SENT]
                    .fetch_max(sent, Relaxed);
                let _ =
                    place.mark(BY_KERNEL as u16, |all| self.stamp(0, BY_KERNEL, self.side, all));
            }
            // Behind the mark: no other thread's news comes between.
            told.store(sent, Relaxed);
        }
    }

    /// Signals the doorbell of the peer's place, or leaves word with the service thread when it has
    /// not come yet.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake_peer(&self, place: usize) {
        crate::stats::count(netacc_control::stats::Counter::DoorbellsRung);
        if let Some(fd) = self.doorbell(place).and_then(|doorbell| doorbell.want()) {
            wake(fd);
        }
    }

    /// The service thread received the peer's doorbell for `place`.
    pub(crate) fn learn_doorbell(&self, place: usize, fd: c_int) {
        let Some(doorbell) = self.doorbell(place) else { return };
        let (old, wanted) = doorbell.learn(fd);
        if old >= 0 {
            crate::fd_words::close_internal(old);
        }
        if wanted {
            wake(fd);
        }
    }

    /// The doorbell of the peer's place.
    fn doorbell(&self, place: usize) -> Option<Doorbell<'_>> {
        let (number, owed) = (self.doorbells.get(place)?, self.owed.get(place / 64)?);
        Some(Doorbell { number, owed, bit: 1 << (place % 64) })
    }
}

/// The most that a doorbell's counter can hold and still be "writable", which is what its owner
/// waits for (fs/eventfd.c: eventfd_poll). A ring takes one: 2^64 of them are enough.
const DOORBELL_COUNT: u64 = u64::MAX - 2;

/// A new doorbell: a full eventfd of which each [`wake`] takes one. One of the library's own
/// descriptors, or `-errno`.
pub(crate) fn new_doorbell() -> c_int {
    let fd = crate::numbers::make(|| {
        sys::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
    });
    // (It fits into an empty counter, so this does not wait.)
    if fd >= 0 && sys::write(fd, &DOORBELL_COUNT.to_ne_bytes()) < 0 {
        crate::fd_words::close_internal(fd);
        return -libc::EIO;
    }
    fd
}

/// What the owner of a doorbell waits for: that somebody takes from the counter. Not that somebody
/// adds to it.
pub(crate) const DOORBELL_EVENTS: u32 = (libc::EPOLLOUT | libc::EPOLLET) as u32;

/// Signals a doorbell, by a *read* that asks not to be kept waiting.
///
/// A write can be made to wait: the other process holds the same open file, can clear its
/// O_NONBLOCK, and can fill the counter up (by the completion of an AIO request, to a value to
/// which even 0 cannot be added). With RWF_NOWAIT this call says so itself, not a flag of the
/// file: a counter that is empty is EAGAIN (fs/eventfd.c: eventfd_read). Who empties it, or fills
/// it up, silences himself.
///
/// A program's own filter (seccomp) may know of no preadv2: then `read` rings, and only an honest
/// peer is sure not to keep it waiting.
pub(crate) fn wake(fd: c_int) {
    let mut count = [0u8; 8];
    if matches!(
        -sys::read_nowait(fd, &mut count) as c_int,
        libc::EPERM | libc::EACCES | libc::ENOSYS
    ) {
        let _ = sys::read(fd, &mut count);
    }
}
