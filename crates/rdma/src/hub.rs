//! A completion queue and the pairs on it.
//!
//! One thread at a time polls, for everybody: it takes completions, has them applied, and tells
//! what is new. Who comes while another one polls goes away again; what it waits for is being
//! looked at.
//!
//! A pair's life here: [`reserve`](Hub::reserve) a place, make the [`Lanes`], [`add`](Hub::add) it,
//! connect the pair, [`Lanes::start`]; at the end [`remove`](Hub::remove) it, [`Lanes::dismantle`]
//! it, and [`release`](Hub::release) the place. Completions of pairs that are not there any more
//! are told by their generation and ignored.

use crate::lanes::{Lanes, News, OpenError, Reason, Settings, Tag, TakenBack};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use netacc_ring::{EndLock, TryLockError};
use netacc_verbs::fabric::{Call, Completion, Error, Fabric};

/// Most pairs of a hub: what an identifier has room for.
pub const PAIRS_MAX: usize = 1 << 15;
/// Completions that are taken at once, and how often in one poll.
const BATCH: usize = 32;
const ROUNDS: usize = 8;

/// Why a hub does not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubError {
    /// Somebody polls or posts: try again.
    Busy,
    /// As many pairs, or completions, as there is room for.
    Full,
    /// There is no such pair.
    NoPair,
    /// There is no such lane, or it is not released.
    Lane(OpenError),
}

/// Why nothing was polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollError {
    /// Another thread polls, and tells what is new.
    Busy,
    /// This very thread polls: a signal handler came in between, and nothing is told before it
    /// returns.
    Reentrant,
    /// The queue is lost, and with it all of its pairs.
    Queue(Error),
}

struct Seat<F: Fabric> {
    generation: u16,
    lanes: Option<Arc<Lanes<F>>>,
    /// Completions that are reserved for it; 0: the seat is free.
    entries: u32,
    /// The pair was not started when it was last looked at.
    fresh: bool,
}

struct Inner<F: Fabric> {
    seats: Vec<Seat<F>>,
    entries: u32,
    fresh: usize,
}

/// A completion queue and its pairs. See the [crate] for who may call what.
pub struct Hub<F: Fabric> {
    fabric: Arc<F>,
    /// `None` when it is closed. For who has the lock, or is one of the `users`.
    queue: UnsafeCell<Option<F::Queue>>,
    entries: u32,
    /// Threads that use the queue without the lock, and whether any more may.
    users: AtomicU32,
    closing: AtomicBool,
    lock: EndLock,
    /// The lock's.
    inner: UnsafeCell<Inner<F>>,
    polls: AtomicU64,
    completions: AtomicU64,
}

// SAFETY: `inner` belongs to who has the lock; `queue` is changed by who has it, when there are no
// `users` and will be none.
unsafe impl<F: Fabric + Send + Sync> Sync for Hub<F>
where
    F::Queue: Send + Sync,
    F::Pair: Send + Sync,
    F::Region: Send + Sync,
{
}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<F: Fabric + Send + Sync> Send for Hub<F>
where
    F::Queue: Send + Sync,
    F::Pair: Send + Sync,
    F::Region: Send + Sync,
{
}

impl<F: Fabric> core::fmt::Debug for Hub<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hub")
    }
}

struct Held<'a, F: Fabric>(&'a Hub<F>);

impl<F: Fabric> Held<'_, F> {
    fn queue(&self) -> Option<&F::Queue> {
        // SAFETY: it is changed under the lock alone, which is held while this is borrowed.
        unsafe { &*self.0.queue.get() }.as_ref()
    }

    fn inner(&mut self) -> &mut Inner<F> {
        // SAFETY: whoever has a `Held` has the lock, and this one is borrowed uniquely.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl<F: Fabric> Drop for Held<'_, F> {
    fn drop(&mut self) {
        // Nobody sleeps for it: `try_lock` is all that is used.
        let _ = self.0.lock.unlock();
    }
}

impl<F: Fabric> Hub<F> {
    /// A hub on a queue of so many entries.
    #[must_use]
    pub fn new(fabric: Arc<F>, queue: F::Queue, entries: u32) -> Self {
        let inner = Inner { seats: Vec::new(), entries: 0, fresh: 0 };
        Self {
            fabric,
            queue: UnsafeCell::new(Some(queue)),
            entries,
            users: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            lock: EndLock::default(),
            inner: UnsafeCell::new(inner),
            polls: AtomicU64::new(0),
            completions: AtomicU64::new(0),
        }
    }

    /// Closes the queue, if it has no pairs and nobody uses it; else `Full`, or `Busy`. From then
    /// on others may call on it as before, and find nothing. The hub is no better than closed where
    /// the fabric refuses that.
    pub fn close(&self, tid: u32) -> Result<(), HubError> {
        let mut held = self.hold(tid).map_err(|_| HubError::Busy)?;
        if held.inner().entries != 0 {
            return Err(HubError::Full);
        }
        self.closing.store(true, SeqCst);
        if self.users.load(SeqCst) != 0 {
            return Err(HubError::Busy);
        }
        // SAFETY: the lock is held, nobody is inside `with_queue`, and nobody gets in any more.
        if let Some(queue) = unsafe { &mut *self.queue.get() }.take() {
            let _ = self.fabric.close_queue(queue);
        }
        Ok(())
    }

    /// Uses its queue. `None`: it is closed.
    pub fn with_queue<T>(&self, f: impl FnOnce(&F::Queue) -> T) -> Option<T> {
        self.users.fetch_add(1, SeqCst);
        // SAFETY: `close` looks at `users` behind setting `closing`, and this the other way round:
        // one of the two sees the other.
        let queue = || unsafe { &*self.queue.get() }.as_ref();
        let done = if self.closing.load(SeqCst) { None } else { queue().map(f) };
        self.users.fetch_sub(1, SeqCst);
        done
    }

    /// Readable after an armed queue got a completion. Below 0: it is closed.
    #[must_use]
    pub fn fd(&self) -> c_int {
        self.with_queue(|q| self.fabric.queue_fd(q)).unwrap_or(-1)
    }

    /// The next completion makes the descriptor readable. Poll once more before sleeping.
    pub fn arm(&self) -> Result<(), Error> {
        self.with_queue(|q| self.fabric.arm(q)).unwrap_or(Ok(()))
    }

    /// Makes the descriptor unreadable again. Poll afterwards.
    pub fn clear(&self) -> Result<u32, Error> {
        self.with_queue(|q| self.fabric.clear(q)).unwrap_or(Ok(0))
    }

    /// Polls that got through, and completions that they took.
    #[must_use]
    pub fn polls(&self) -> (u64, u64) {
        (self.polls.load(Relaxed), self.completions.load(Relaxed))
    }

    fn hold(&self, tid: u32) -> Result<Held<'_, F>, TryLockError> {
        self.lock.try_lock(tid).map(|()| Held(self))
    }

    // ---- pairs ----------------------------------------------------------------------------------

    /// A place for a pair with these settings. `tid` is the caller's thread id, here and below: not
    /// 0, below 2^31.
    pub fn reserve(&self, tid: u32, settings: &Settings) -> Result<Tag, HubError> {
        let mut held = self.hold(tid).map_err(|_| HubError::Busy)?;
        if self.closing.load(Relaxed) {
            return Err(HubError::Full);
        }
        let inner = held.inner();
        let entries = settings.entries().max(1);
        let sum = inner
            .entries
            .checked_add(entries)
            .filter(|sum| *sum <= self.entries)
            .ok_or(HubError::Full)?;
        let index = match inner.seats.iter().position(|s| s.entries == 0) {
            Some(index) => index,
            None => {
                if inner.seats.len() >= PAIRS_MAX || inner.seats.try_reserve(1).is_err() {
                    return Err(HubError::Full);
                }
                inner.seats.push(Seat { generation: 0, lanes: None, entries: 0, fresh: false });
                inner.seats.len() - 1
            }
        };
        let seat = inner.seats.get_mut(index).ok_or(HubError::Full)?;
        seat.entries = entries;
        seat.generation = seat.generation.wrapping_add(1);
        inner.entries = sum;
        Ok(Tag { index: index as u16, generation: seat.generation })
    }

    /// Puts a pair in its place: from here on its completions are applied.
    pub fn add(&self, tid: u32, lanes: Arc<Lanes<F>>) -> Result<(), HubError> {
        let mut held = self.hold(tid).map_err(|_| HubError::Busy)?;
        let inner = held.inner();
        let tag = lanes.tag();
        let seat = inner.seat(tag).filter(|s| s.lanes.is_none()).ok_or(HubError::NoPair)?;
        seat.lanes = Some(lanes);
        seat.fresh = true;
        inner.fresh += 1;
        Ok(())
    }

    /// Takes a pair out: nothing of it is applied any more. Its completions stay reserved.
    pub fn remove(&self, tid: u32, tag: Tag) -> Result<Option<Arc<Lanes<F>>>, HubError> {
        let mut held = self.hold(tid).map_err(|_| HubError::Busy)?;
        let inner = held.inner();
        let seat = inner.seat(tag).ok_or(HubError::NoPair)?;
        let was_fresh = core::mem::replace(&mut seat.fresh, false);
        let lanes = seat.lanes.take();
        inner.fresh -= usize::from(was_fresh);
        Ok(lanes)
    }

    /// Gives the place back: the pair is closed, and its completions were polled or went with it.
    pub fn release(&self, tid: u32, tag: Tag) -> Result<(), HubError> {
        let mut held = self.hold(tid).map_err(|_| HubError::Busy)?;
        let inner = held.inner();
        let seat = inner.seat(tag).filter(|s| s.lanes.is_none()).ok_or(HubError::NoPair)?;
        let entries = core::mem::take(&mut seat.entries);
        inner.entries = inner.entries.saturating_sub(entries);
        Ok(())
    }

    /// Frees a lane that was [`News::Released`]. The owner makes no further use of it by then.
    pub fn take_back(
        &self,
        tid: u32,
        lanes: &Lanes<F>,
        lane: u16,
    ) -> Result<TakenBack<F>, HubError> {
        let _held = self.hold(tid).map_err(|_| HubError::Busy)?;
        lanes.take_back(lane).ok_or(HubError::Busy)?.map_err(HubError::Lane)
    }

    /// Calls `f` for every pair, unless somebody polls. False: somebody does.
    pub fn for_each(&self, tid: u32, f: &mut dyn FnMut(&Arc<Lanes<F>>)) -> bool {
        let Ok(mut held) = self.hold(tid) else { return false };
        held.inner().seats.iter().filter_map(|s| s.lanes.as_ref()).for_each(f);
        true
    }

    // ---- polling --------------------------------------------------------------------------------

    /// Takes completions (a bounded number of them), applies them, lets everybody post who waited
    /// for them, and calls `tell` with what is new. Returns how many it took: when that is not 0
    /// there may be more. `tell` may kick, and may not poll.
    pub fn poll(
        &self,
        tid: u32,
        tell: &mut dyn FnMut(&Arc<Lanes<F>>, News),
    ) -> Result<usize, PollError> {
        let mut held = self.hold(tid).map_err(|e| match e {
            TryLockError::Busy { .. } => PollError::Busy,
            TryLockError::Reentrant => PollError::Reentrant,
        })?;
        let inner = held.inner();
        self.polls.fetch_add(1, Relaxed);
        if inner.fresh != 0 {
            inner.look_at_fresh(tell);
        }
        let mut taken = 0;
        for _ in 0..ROUNDS {
            let mut batch = [Completion::EMPTY; BATCH];
            let Some(queue) = held.queue() else { break };
            let count = match self.fabric.poll(queue, &mut batch) {
                Ok(count) => count,
                Err(e) => {
                    held.inner().lose_all(e.errno, tell);
                    return Err(PollError::Queue(e));
                }
            };
            held.inner().apply(batch.get(..count).unwrap_or(&[]), tell);
            taken += count;
            if count < BATCH {
                break;
            }
        }
        self.completions.fetch_add(taken as u64, Relaxed);
        Ok(taken)
    }
}

impl<F: Fabric> Inner<F> {
    /// The seat that still has this tag.
    fn seat(&mut self, tag: Tag) -> Option<&mut Seat<F>> {
        let seat = self.seats.get_mut(usize::from(tag.index))?;
        (seat.entries != 0 && seat.generation == tag.generation).then_some(seat)
    }

    fn lanes(&self, index: u16) -> Option<&Arc<Lanes<F>>> {
        self.seats.get(usize::from(index))?.lanes.as_ref()
    }

    fn apply(&self, batch: &[Completion], tell: &mut dyn FnMut(&Arc<Lanes<F>>, News)) {
        let mut touched = [0u16; BATCH];
        let mut count = 0;
        for c in batch {
            let (tag, is_receive, number) = Tag::of(c.id);
            let Some(lanes) = self.lanes(tag.index).filter(|l| l.tag() == tag) else { continue };
            lanes.complete(is_receive, number, c.outcome, &mut |news| tell(lanes, news));
            if !touched.get(..count).unwrap_or(&[]).contains(&tag.index)
                && let Some(place) = touched.get_mut(count)
            {
                *place = tag.index;
                count += 1;
            }
        }
        for index in touched.get(..count).unwrap_or(&[]) {
            if let Some(lanes) = self.lanes(*index) {
                lanes.settle(&mut |news| tell(lanes, news));
            }
        }
    }

    /// Pairs that were started since: what came before is settled.
    fn look_at_fresh(&mut self, tell: &mut dyn FnMut(&Arc<Lanes<F>>, News)) {
        for seat in &mut self.seats {
            if let Some(lanes) = &seat.lanes
                && seat.fresh
                && (lanes.is_started() || lanes.lost().is_some())
            {
                seat.fresh = false;
                self.fresh = self.fresh.saturating_sub(1);
                lanes.settle(&mut |news| tell(lanes, news));
            }
        }
    }

    fn lose_all(&self, errno: c_int, tell: &mut dyn FnMut(&Arc<Lanes<F>>, News)) {
        for lanes in self.seats.iter().filter_map(|s| s.lanes.as_ref()) {
            lanes.lose(Reason::Refused { call: Call::Poll, errno });
            lanes.settle(&mut |news| tell(lanes, news));
        }
    }
}
