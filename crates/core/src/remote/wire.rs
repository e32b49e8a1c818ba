//! What a data call and a wait need of the rdma path: post what was published, give room back,
//! poll, arm.
//!
//! Between hosts a [`Channel`] is this process's alone: nobody else maps it. Its *wire* says, for
//! each slot, on which queue pair the connection is, and what of its words the peer has seen. The
//! words of `crate::channel` are the mirror that `docs/design/rdma.md` speaks of: the engine
//! (`netacc_rdma`) writes `tail` and `head` of the other end, the thread "netacc-rdma" ([`super`])
//! writes its announcements and acknowledgements.
//!
//! A slot's link is used under the lock of one of the connection's ends, and taken away under both.

use super::net::Net;
use crate::channel::{Channel, PLACES, SLOTS, producer_quiet, quiet};
use crate::lock::bump;
use crate::{channel, process, stats, sys};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence,
};
use netacc_control::stats::Counter;
use netacc_rdma::{News, PollError};

pub(crate) type Link = netacc_rdma::Link<Net>;

/// One connection.
#[repr(C, align(64))]
pub(crate) struct WireSlot {
    /// Null: no pair, or none any more.
    pub(crate) link: AtomicPtr<Link>,
    /// Its place on the pair.
    pub(crate) lane: AtomicU32,
    /// The epoch of our announcement that stands in the peer's mirror.
    pub(crate) seen_epoch: AtomicU32,
    /// The control word of our acknowledgement that stands there.
    pub(crate) seen_ack: AtomicU64,
    /// [`parting`]: both directions are to go back to the carrier, or have gone.
    pub(crate) leave: AtomicU32,
}

/// Bits of [`WireSlot::leave`].
pub(crate) mod parting {
    /// Wanted by this process.
    pub(crate) const WANTED: u32 = 1;
    /// Not for good: to be promoted again as soon as that is possible.
    pub(crate) const AGAIN: u32 = 2;
    /// The receiver is frozen.
    pub(crate) const FROZEN: u32 = 4;
    /// The peer is gone with what it had; nothing can be agreed upon any more.
    pub(crate) const GONE: u32 = 8;
    /// Somebody counts those that leave, and it is among them.
    pub(crate) const COUNTED: u32 = 16;
    /// Our last words are said.
    pub(crate) const LEFT: u32 = 32;
    /// Above: the reason's code.
    pub(crate) const REASON: u32 = 16;
}

/// What is said of a channel's slots.
#[repr(C)]
pub(crate) struct Wire {
    /// Some slot's words have changed.
    pub(crate) dirty: AtomicBool,
    pub(crate) dirty_slots: [AtomicU64; SLOTS / 64],
    slots: [WireSlot; SLOTS],
}

impl Wire {
    #[expect(clippy::indexing_slicing, reason = "masked: SLOTS is a power of two")]
    pub(crate) fn slot(&self, slot: usize) -> &WireSlot {
        &self.slots[slot & (SLOTS - 1)]
    }

    /// The words of a slot have changed. True: somebody has to be told.
    pub(super) fn mark(&self, slot: usize) -> bool {
        if let Some(word) = self.dirty_slots.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), SeqCst);
        }
        !self.dirty.swap(true, SeqCst)
    }
}

// ---- what a pair belongs to ---------------------------------------------------------------------

/// What is told by whoever polls, and not for data calls.
pub(crate) struct PairContext {
    pub(crate) channel: &'static Channel,
    /// The slot of each lane, plus one.
    pub(crate) slots: Vec<AtomicU32>,
    /// The pair is lost.
    pub(crate) lost: AtomicBool,
    /// Lanes that both ends have closed: their memory is to be taken back.
    pub(crate) released: Vec<AtomicU64>,
    /// What the statistics know of it.
    pub(crate) told: [AtomicU64; 4],
}

impl PairContext {
    fn slot(&self, lane: u16) -> Option<usize> {
        (self.slots.get(usize::from(lane))?.load(Acquire) as usize).checked_sub(1)
    }
}

/// A pair has something to tell the thread.
pub(super) static PAIR_NEWS: AtomicBool = AtomicBool::new(false);

/// Whether any pair has had news since the last question.
pub(super) fn take_pair_news() -> bool {
    PAIR_NEWS.swap(false, SeqCst)
}

fn tell(link: &Arc<Link>, news: News) {
    // SAFETY: set by `pairs::make` before the link is put into its hub, to a context that lives
    // until after it was taken out, for which the lock under which this is called is needed.
    let Some(context) = (unsafe { (link.owner() as *const PairContext).as_ref() }) else { return };
    let channel = context.channel;
    match news {
        News::Data { slot: lane } => {
            if let Some(slot) = context.slot(lane) {
                crate::io::watch_here();
                fence(SeqCst);
                channel.announce_here(
                    slot,
                    channel.words(slot, channel.side ^ 1).quiet[quiet::NOTIFY].load(Relaxed),
                );
            }
        }
        News::Room { slot: lane } => {
            if let Some(slot) = context.slot(lane) {
                fence(SeqCst);
                channel.announce_here(
                    slot,
                    channel.words(slot, channel.side).producer_quiet[producer_quiet::NOTIFY]
                        .load(Relaxed),
                );
            }
        }
        News::Released { slot: lane } => {
            if let Some(word) = context.released.get(usize::from(lane) / 64) {
                word.fetch_or(1 << (lane % 64), Release);
            }
            call_thread();
        }
        News::Lost(_) => {
            context.lost.store(true, Release);
            call_thread();
        }
        News::Opened { .. } | News::Closed { .. } => {}
    }
}

fn call_thread() {
    PAIR_NEWS.store(true, SeqCst);
    super::ring();
}

// ---- queues -------------------------------------------------------------------------------------

/// A completion queue with its pairs. Never freed: a thread may be polling it.
pub(crate) struct Queue {
    pub(crate) hub: netacc_rdma::Hub<Net>,
    /// The next completion makes the descriptor readable.
    pub(crate) armed: AtomicBool,
    /// How often a thread of the application's has polled.
    pub(crate) visits: AtomicU64,
    /// What the statistics know of its polls.
    pub(crate) polls_told: AtomicU64,
}

/// Queues of one process.
pub(crate) const QUEUES: usize = 32;
static LIST: [AtomicPtr<Queue>; QUEUES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; QUEUES];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The queues of this process.
pub(crate) fn queues() -> impl Iterator<Item = &'static Queue> {
    // SAFETY: null, or a leaked box.
    LIST.iter().take(COUNT.load(Acquire)).filter_map(|q| unsafe { q.load(Acquire).as_ref() })
}

/// Puts a queue on the list. The thread "netacc-rdma" only.
pub(super) fn add_queue(queue: &'static Queue) -> bool {
    let n = COUNT.load(Relaxed);
    let Some(place) = LIST.get(n) else { return false };
    place.store(core::ptr::from_ref(queue).cast_mut(), Release);
    COUNT.store(n + 1, Release);
    true
}

/// In a forked child: the queues are the parent's.
pub(super) fn forget_queues() {
    COUNT.store(0, Release);
}

impl Queue {
    /// Takes what has come, and tells whoever waits for it. True: something had come.
    pub(crate) fn poll(&self) -> bool {
        matches!(self.hub.poll(process::tid(), &mut tell), Ok(1..))
    }

    /// As [`Queue::poll`], until nothing more comes.
    pub(crate) fn drain(&self) -> bool {
        let mut any = false;
        let mut looks = 0;
        let mut waits = 0u32;
        // Bounded: a peer that never stops sending must not keep a thread here.
        while looks < 64 {
            match self.hub.poll(process::tid(), &mut tell) {
                Ok(1..) => {
                    any = true;
                    looks += 1;
                }
                // Another one has the queue, and may have looked before the caller did what it
                // looks for now. It takes microseconds, unless it has lost its CPU.
                Err(PollError::Busy) => {
                    waits = waits.saturating_add(1);
                    if waits < 16 { sys::sched_yield() } else { sys::pause_ns(50_000) }
                }
                _ => break,
            }
        }
        any
    }

    /// Makes sure that somebody hears of the next completion.
    pub(crate) fn arm(&self) {
        if !self.armed.swap(true, SeqCst) {
            stats::count(Counter::RdmaArms);
            if self.hub.arm().is_err() {
                self.armed.store(false, SeqCst);
            }
        }
    }
}

/// A thread of the application's looks whether anything has come. One call of the provider for each
/// queue, no system call.
#[inline]
pub(crate) fn progress() {
    for q in queues() {
        bump(&q.visits, 1);
        q.poll();
    }
}

/// A thread of the application's is about to sleep: from here on the I/O threads hear what comes.
/// Look once more afterwards.
pub(crate) fn before_sleep() {
    for q in queues() {
        q.arm();
        q.drain();
    }
}

// ---- a channel between hosts --------------------------------------------------------------------

impl Channel {
    /// `None`: it is shared memory.
    #[inline(always)]
    pub(crate) fn wire(&self) -> Option<&'static Wire> {
        // SAFETY: null, or a mapping that is never unmapped; all its fields are atomics.
        unsafe { self.wire.as_ref() }
    }

    /// Posts what was published on a slot. The caller holds an end of the connection.
    #[cold]
    pub(crate) fn kick(&self, slot: usize) {
        let Some(at) = self.wire().map(|w| w.slot(slot)) else { return };
        // SAFETY: null, or a link that is not taken away while an end of this connection is held.
        if let Some(link) = unsafe { at.link.load(Acquire).as_ref() } {
            let _ = link.kick(at.lane.load(Relaxed) as u16);
        }
    }

    /// Gives back the room of what was consumed, when it is time for that. The caller holds the
    /// receiving end.
    #[inline]
    pub(crate) fn consumed(&self, slot: usize) {
        let Some(at) = self.wire().map(|w| w.slot(slot)) else { return };
        // SAFETY: as in `kick`.
        if let Some(link) = unsafe { at.link.load(Acquire).as_ref() } {
            let head = self.words(slot, self.side ^ 1).head.load(Relaxed);
            let _ = link.consumed(at.lane.load(Relaxed) as u16, head);
        }
    }

    /// An announcement, an acknowledgement or a request of ours has changed: the peer is told.
    #[inline]
    pub(crate) fn words_changed(&self, slot: usize) {
        if let Some(wire) = self.wire()
            && wire.mark(slot)
        {
            super::ring();
        }
    }

    /// Both directions of a slot are to go back to the carrier. `again`: until a better path is
    /// there.
    pub(crate) fn ask_to_leave(
        &self,
        slot: usize,
        why: netacc_control::stats::Reason,
        again: bool,
    ) {
        let Some(at) = self.wire().map(|w| w.slot(slot)) else { return };
        super::apart::count_leaving();
        let wanted = (why as u32) << parting::REASON
            | parting::WANTED
            | parting::COUNTED
            | if again { parting::AGAIN } else { 0 };
        // Who asks first says why; who wants it for good has the last word.
        let first = at.leave.compare_exchange(0, wanted, SeqCst, Relaxed).is_ok();
        if !first {
            super::apart::uncount_leaving();
        }
        if !first && !again {
            let for_good = |old: u32| {
                (old & parting::AGAIN != 0).then_some(
                    (old & 0xffff & !parting::AGAIN)
                        | parting::WANTED
                        | (why as u32) << parting::REASON,
                )
            };
            let _ = at.leave.fetch_update(SeqCst, Relaxed, for_good);
        }
        self.words_changed(slot);
        super::ring();
    }

    /// Tells the threads of this process that wait for a slot; `notify` is a NOTIFY word of theirs,
    /// loaded after a SeqCst fence that followed the change.
    pub(crate) fn announce_here(&self, slot: usize, notify: u64) {
        let epoll = (notify & 0xffff) as usize;
        if epoll != 0
            && epoll <= PLACES
            && self
                .my_place(epoll - 1)
                .announce_in_order(slot as u16, |all| self.stamp(slot, self.side ^ 1, all))
        {
            self.ring_own_doorbell(epoll - 1);
        }
        let thread = (notify >> 16 & 0xffff) as usize;
        if thread != 0 && thread <= PLACES && self.my_place(thread - 1).wake_fenced() {
            self.ring_own_doorbell(thread - 1);
        }
    }

    #[cold]
    fn ring_own_doorbell(&self, place: usize) {
        let fd = self.own_doorbells.get(place).map_or(-1, |d| d.load(Acquire));
        if fd >= 0 {
            channel::ring(fd);
        }
    }
}

// ---- counters -----------------------------------------------------------------------------------

impl Queue {
    /// Brings the statistics up to date with what the pairs have done. For a thread that is about
    /// to sleep.
    pub(crate) fn flush(&self) {
        let mut each = |link: &Arc<Link>| {
            // SAFETY: as in `tell`.
            if let Some(context) = unsafe { (link.owner() as *const PairContext).as_ref() } {
                context.flush(link);
            }
        };
        self.hub.for_each(process::tid(), &mut each);
        let (polls, _) = self.hub.polls();
        stats::add(Counter::RdmaPolls, polls.wrapping_sub(self.polls_told.swap(polls, Relaxed)));
    }
}

impl PairContext {
    /// Adds what the pair has done since the last time. Under its hub's lock, or when it is in none
    /// any more.
    pub(crate) fn flush(&self, link: &Link) {
        let now = link.counters.read();
        let counts = [
            (Counter::RdmaWorkRequests, now.works),
            (Counter::RdmaMessagesSent, now.messages),
            (Counter::RdmaMessagesReceived, now.messages_received),
            (Counter::RdmaCredits, now.credit_messages),
        ];
        for ((counter, value), told) in counts.iter().zip(&self.told) {
            let before = told.swap(*value, Relaxed);
            stats::add(*counter, value.wrapping_sub(before));
        }
    }
}
