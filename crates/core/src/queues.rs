//! Between hosts: the completion queues, which data calls and waits poll themselves, and whom they
//! tell of what has come.

use crate::channel::{Channel, producer_quiet, quiet};
use crate::lock::bump;
use crate::wire::{Lanes, Net, Wire};
use crate::{process, rdma_thread, stats, sys};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use netacc_control::stats::Counter;
use netacc_rdma::{News, PollError};

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

fn tell(lanes: &Arc<Lanes>, news: News) {
    // SAFETY: set by `pairs::make` before the `Lanes` is put into its hub, to a context that lives
    // until after it was taken out, for which the lock under which this is called is needed.
    let Some(context) = (unsafe { (lanes.owner() as *const PairContext).as_ref() }) else { return };
    let channel = context.channel;
    match news {
        News::Data { lane } => {
            if let Some(slot) = context.slot(lane) {
                let words = channel.words(slot, channel.side ^ 1);
                channel.announce_here(slot, &words.quiet[quiet::NOTIFY]);
                rdma_thread::watch_unread_fenced();
            }
        }
        News::Room { lane } => {
            if let Some(slot) = context.slot(lane) {
                let words = channel.words(slot, channel.side);
                channel.announce_here(slot, &words.producer_quiet[producer_quiet::NOTIFY]);
            }
        }
        News::Released { lane } => {
            if let Some(word) = context.released.get(usize::from(lane) / 64) {
                word.fetch_or(1 << (lane % 64), Release);
            }
            rdma_thread::tell_of_pairs();
        }
        News::Lost(_) => {
            context.lost.store(true, Release);
            rdma_thread::tell_of_pairs();
        }
        News::Opened { .. } | News::Closed { .. } => {}
    }
}

// ---- queues -------------------------------------------------------------------------------------

/// A completion queue with its pairs. This is never freed, because a thread may be polling it; the
/// device's queue is closed when it is lost and has no pairs any more.
pub(crate) struct Queue {
    pub(crate) hub: netacc_rdma::Hub<Net>,
    /// Its place on the list.
    pub(crate) number: usize,
    /// It could not be polled: it is lost, with its pairs.
    pub(crate) lost: AtomicBool,
    /// The next completion makes the descriptor readable.
    pub(crate) armed: AtomicBool,
    /// How often a thread of the application's has polled.
    pub(crate) visits: AtomicU64,
    /// What the statistics know of its polls.
    pub(crate) polls_told: AtomicU64,
}

/// Queues that a process has at a time.
pub(crate) const QUEUES: usize = 32;
static LIST: [AtomicPtr<Queue>; QUEUES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; QUEUES];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The queues of this process.
pub(crate) fn queues() -> impl Iterator<Item = &'static Queue> {
    // SAFETY: null, or a leaked box.
    LIST.iter().take(COUNT.load(Acquire)).filter_map(|q| unsafe { q.load(Acquire).as_ref() })
}

/// A place on the list that no queue has.
pub(crate) fn free_place() -> Option<usize> {
    let count = COUNT.load(Relaxed);
    let free =
        |at: &usize| *at >= count || LIST.get(*at).is_some_and(|q| q.load(Relaxed).is_null());
    (0..QUEUES).find(free)
}

/// Puts a queue on the list, at its place. The thread "netacc-rdma" only, as what follows.
pub(crate) fn add_queue(queue: &'static Queue) {
    if let Some(place) = LIST.get(queue.number) {
        place.store(core::ptr::from_ref(queue).cast_mut(), Release);
        COUNT.fetch_max(queue.number + 1, Release);
    }
}

/// Takes it off: its place is another one's to have.
pub(crate) fn remove_queue(queue: &'static Queue) {
    if let Some(place) = LIST.get(queue.number) {
        place.store(core::ptr::null_mut(), Release);
    }
}

/// In a forked child: the queues are the parent's.
pub(crate) fn forget_queues() {
    COUNT.store(0, Release);
}

impl Queue {
    /// Takes what has come, and tells whoever waits for it. True: something had come.
    pub(crate) fn poll(&self) -> bool {
        let polled = self.hub.poll(process::tid(), &mut tell);
        if let Err(PollError::Queue(_)) = polled {
            self.is_lost();
        }
        let any = matches!(polled, Ok(1..));
        if any {
            // What has come may have been answered.
            rdma_thread::watch_posted();
        }
        any
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
                Err(PollError::Queue(_)) => {
                    self.is_lost();
                    break;
                }
                _ => break,
            }
        }
        if any {
            rdma_thread::watch_posted();
        }
        any
    }

    #[cold]
    fn is_lost(&self) {
        self.lost.store(true, Release);
        rdma_thread::tell_of_pairs();
    }

    fn before_sleep(&self) {
        self.arm();
        self.drain();
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

/// The queue that tells of a slot's bytes. It may serve none of the slot's any more, and is never
/// gone.
#[inline]
fn queue_of(wire: &Wire, slot: usize) -> Option<&'static Queue> {
    let number = (wire.slot(slot).queue.load(Relaxed) as usize).checked_sub(1)?;
    // SAFETY: null, or a leaked box.
    LIST.get(number)
        .filter(|_| number < COUNT.load(Acquire))
        .and_then(|q| unsafe { q.load(Acquire).as_ref() })
}

/// As [`progress`], for who waits for one connection: only its own queue tells of it.
#[inline]
pub(crate) fn progress_of(wire: &Wire, slot: usize) {
    if let Some(q) = queue_of(wire, slot) {
        bump(&q.visits, 1);
        q.poll();
    }
}

/// A thread of the application's is about to sleep: from here on the I/O threads hear what comes.
/// Look once more afterwards.
pub(crate) fn before_sleep() {
    queues().for_each(Queue::before_sleep);
}

/// As [`before_sleep`], for who waits for one connection. (Should it change its queue meanwhile the
/// I/O threads arm that, as they do with those that nobody polls.)
pub(crate) fn before_sleep_of(wire: &Wire, slot: usize) {
    if let Some(q) = queue_of(wire, slot) {
        q.before_sleep();
    }
}

// ---- counters -----------------------------------------------------------------------------------

impl Queue {
    /// Brings the statistics up to date with what the pairs have done. For a thread that is about
    /// to sleep.
    pub(crate) fn flush(&self) {
        let mut each = |lanes: &Arc<Lanes>| {
            // SAFETY: as in `tell`.
            if let Some(context) = unsafe { (lanes.owner() as *const PairContext).as_ref() } {
                context.flush(lanes);
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
    pub(crate) fn flush(&self, lanes: &Lanes) {
        let now = lanes.counters.read();
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
