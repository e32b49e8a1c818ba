//! What is in a set: its items, which of them are queued, and the news that queues them.

use super::limits::{LimitIndex, Limits};
use super::news::{News, place_in_time};
use super::queue::ReadyQueue;
use super::{ET, EXTRAS, Epoll, GATHER, IN, KERNEL, LISTENERS, NO_ITEM, ONESHOT, OUT, homes};
use crate::channel::{BY_KERNEL, Channel, announce, stamp_of};
use crate::engines::Engines;
use crate::fast_connect::Listener;
use crate::socket::{Named, Socket, State};
use crate::{io, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;
use netacc_control::stats::Reason;

/// One socket in a set.
pub(super) struct Item {
    pub(super) socket: &'static Socket,
    pub(super) generation: u16,
    pub(super) fd: c_int,
    pub(super) events: u32,
    pub(super) data: u64,
    /// The application has it in the set.
    pub(super) present: bool,
    /// Kept here; otherwise the kernel has it as the application put it, and this is only the
    /// record of that.
    pub(super) attached: bool,
    /// While it is kept here: where it counts among the set's limits.
    pub(super) limited: Option<LimitIndex>,
    /// Why it is here although this is no home of the socket's: the peer does not announce its news
    /// to this set.
    pub(super) extra: Option<Reason>,
    /// The announcement and the tail when an extra item was last looked at.
    pub(super) stamp: (u32, u64),
    /// The number under which it was put into the set is closed: the kernel's registration cannot
    /// be changed any more, and the item stays; `fd` is another name of the socket.
    pub(super) nameless: bool,
    /// Nameless, and the socket is the kernel's.
    pub(super) plain: bool,
    pub(super) queued: bool,
    /// ONESHOT has fired.
    pub(super) disabled: bool,
    /// Of one that had fired when the socket went back to the kernel: the kernel has no
    /// registration until it is armed again. (It would report an end of the connection by one that
    /// it has not fired itself.)
    pub(super) absent: bool,
    /// Of a candidate with ONESHOT, which the kernel has: it is known that it has fired; how many
    /// calls have asked since it was armed.
    pub(super) fired: bool,
    pub(super) asked: u32,
    /// Of such a one: it has not fired when it was last looked at, and nobody was there who could
    /// have taken its event.
    pub(super) armed: bool,
    /// The carrier has said something since it was last found silent.
    pub(super) carrier_news: bool,
    /// What the carrier last said of its end (RDHUP, HUP, ERR): said again it is no new edge.
    pub(super) ended: u32,
    /// The wait in which it was last reported: a wait reports an item once.
    pub(super) reported_in: u64,
    /// Of that wait: behind which look at the kernel's set.
    pub(super) reported_behind: u64,
    /// How the ring stood at its last report, since it was armed: an edge is what is new since.
    pub(super) seen: Option<Seen>,
}

/// How the ring stands, as far as an item asks for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// The tail, and which path the receiver has followed to.
    bytes: (u64, u64),
    /// How often somebody has found no room, and which path the sender has announced.
    room: (u32, u32),
}

impl Seen {
    /// Before the item is evaluated: what comes meanwhile is new.
    #[inline]
    pub(super) fn by(item: &Item) -> Option<Seen> {
        let s = item.socket;
        let (_, rx) = s.words()?;
        let bytes = (rx.tail.load(Acquire), s.published.ack.load(Relaxed));
        let room = (s.full.load(Acquire), s.published.epoch.load(Relaxed));
        Some(Seen {
            bytes: if item.events & IN != 0 { bytes } else { (0, 0) },
            room: if item.events & OUT != 0 { room } else { (0, 0) },
        })
    }
}

/// A listener in the set, by which connections come that the kernel knows nothing of.
pub(super) struct Listening {
    pub(super) listener: &'static Listener,
    /// Which life of the listener's entry.
    pub(super) serial: u32,
    pub(super) fd: c_int,
    pub(super) events: u32,
    pub(super) data: u64,
    /// The wait in which it was last reported for what it gives out besides the kernel's, and with
    /// what; and how much of that there had been.
    pub(super) reported_in: u64,
    pub(super) told: u32,
    pub(super) seen: u64,
    /// The wait in which the kernel last reported it.
    pub(super) by_kernel_in: u64,
}

impl Listening {
    pub(super) fn new(listener: &'static Listener, fd: c_int, ev: epoll_event) -> Listening {
        Listening {
            listener,
            serial: listener.serial(),
            fd,
            events: ev.events,
            data: ev.u64,
            reported_in: 0,
            told: 0,
            seen: 0,
            by_kernel_in: 0,
        }
    }

    /// Reported where an edge is what is new since.
    pub(super) fn by_edge(&self) -> bool {
        self.events & (ET | ONESHOT) != 0
    }
}

impl Item {
    /// What the application puts into a set, which the kernel has until it is attached.
    pub(super) fn new(on: Named, ev: epoll_event) -> Item {
        Item {
            socket: on.s,
            generation: on.g,
            fd: on.fd,
            events: ev.events,
            data: ev.u64,
            present: true,
            attached: false,
            limited: None,
            extra: None,
            stamp: (0, 0),
            nameless: false,
            plain: false,
            queued: false,
            disabled: false,
            absent: false,
            fired: false,
            asked: 0,
            armed: false,
            carrier_news: true,
            ended: 0,
            reported_in: 0,
            reported_behind: 0,
            seen: None,
        }
    }

    /// Whether there is any use in queueing it.
    #[inline]
    pub(super) fn may_queue(&self) -> bool {
        !self.queued && self.present && self.attached && !self.disabled
    }

    #[inline]
    pub(super) fn queue(&mut self, ready: &mut ReadyQueue, index: u32) {
        if self.may_queue() {
            self.queued = ready.push_back(index);
        }
    }
}

pub(super) struct Inner {
    pub(super) items: Vec<Option<Item>>,
    pub(super) free: Vec<u32>,
    /// Item index by descriptor.
    pub(super) by_fd: Vec<u32>,
    /// Items, and at most one [`KERNEL`].
    pub(super) ready: ReadyQueue,
    pub(super) kernel_queued: bool,
    /// The listeners in the set that give out parked carriers, and whether [`LISTENERS`] is queued.
    pub(super) listeners: Vec<Listening>,
    pub(super) listeners_queued: bool,
    /// What it stands for was sent then ([`sys::ticks`]).
    pub(super) sent_by_kernel: u64,
    /// Looks at the kernel's set; the wait of the last one, and when it began, if it took all.
    pub(super) looks: u64,
    pub(super) looked_in: u64,
    pub(super) looked_at: u64,
    /// A look without sleep has taken the event of a doorbell since somebody who sleeps was last
    /// told.
    pub(super) woken: bool,
    /// While a drain lasts: the items of which it has brought news.
    pub(super) news: News,
    /// For how long a wait may poll, by rules.
    pub(super) limits: Limits,
    pub(super) channels: Vec<&'static Channel>,
    /// Threads asleep in the kernel.
    pub(super) sleepers: u32,
    /// Threads in a call of which [`super::report::give_way`] has let others have the set; they
    /// come back.
    pub(super) away: u32,
    /// Threads in the kernel's own wait are called in, until then (monotonic); 0: they are not.
    pub(super) calls_until: u64,
    /// How many of them had not come when they were last counted.
    pub(super) called: u32,
    pub(super) last_visit: u64,
    /// The last look at the kernel's set brought as much as there was room for.
    pub(super) backlog: bool,
    /// A carrier was put into the kernel's set, which may tell what the item already knows: both
    /// are taken in one wait.
    pub(super) fresh: bool,
    /// Number of the present wait.
    pub(super) wait: u64,
    /// [`crate::wait::deaths`] when channels were last let go.
    pub(super) deaths: u32,
    /// The items that are `extra`.
    pub(super) extras: Vec<u32>,
    /// There are sockets that should be the kernel's and are not yet.
    pub(super) unsettled: bool,
    /// When they are tried again, and how long after that the next time.
    pub(super) deferred_at: u64,
    pub(super) deferred_after: u64,
    /// In a set that is itself polled: what makes the set look ready while an item is (-1: not made
    /// yet), and whether it is in the set.
    pub(super) beacon: c_int,
    pub(super) lit: bool,
    /// Those that have to be polled for the news of its channels.
    pub(super) engines: Engines,
    /// The channels are several: stamps have to be the clock's.
    pub(super) by_clock: bool,
}

impl Inner {
    pub(super) fn index_of(&self, fd: c_int) -> Option<u32> {
        self.by_fd.get(fd as usize).copied().filter(|i| *i != NO_ITEM)
    }
    pub(super) fn item(&mut self, index: u32) -> Option<&mut Item> {
        self.items.get_mut(index as usize)?.as_mut()
    }
    /// Whether an item is queued.
    pub(super) fn has_ready(&self) -> bool {
        self.ready.len() > usize::from(self.kernel_queued)
    }
    /// `None`: there is no memory for it. Nothing else allocates: what is taken out, queued and
    /// reported has its room from here on.
    pub(super) fn insert(&mut self, item: Item) -> Option<u32> {
        let fd = item.fd as usize;
        self.by_fd.try_reserve((fd + 1).saturating_sub(self.by_fd.len())).ok()?;
        let index = match self.free.pop() {
            Some(i) => i,
            None => self.grow()?,
        };
        if self.by_fd.len() <= fd {
            self.by_fd.resize(fd + 1, NO_ITEM);
        }
        *self.by_fd.get_mut(fd)? = index;
        *self.items.get_mut(index as usize)? = Some(item);
        Some(index)
    }
    /// A place more, and room for all that can be said of so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Option<u32> {
        let all = self.items.len() + 1;
        self.free.try_reserve(all.saturating_sub(self.free.len())).ok()?;
        self.ready.reserve(all + 2).ok()?;
        self.news.reserve(all + 2).ok()?;
        self.extras.try_reserve(all.saturating_sub(self.extras.len())).ok()?;
        self.items.try_reserve(1).ok()?;
        if self.items.len() >= GATHER as usize {
            return None;
        }
        self.items.push(None);
        Some(self.items.len() as u32 - 1)
    }
    pub(super) fn remove(&mut self, index: u32) -> Option<Item> {
        let item = self.items.get_mut(index as usize)?.take()?;
        self.forget_number(item.fd, index);
        if let Some(at) = item.limited {
            self.limits.leave(at);
        }
        if item.queued {
            self.ready.forget(index);
        }
        if item.extra.is_some() {
            self.extras.retain(|i| *i != index);
            EXTRAS.fetch_sub(1, AcqRel);
        }
        self.free.push(index);
        Some(item)
    }
    /// As [`Self::remove`], of one that the kernel has: its socket, if it is this process's and
    /// still the same. `None`: nothing is removed.
    #[inline]
    pub(super) fn remove_record(&mut self, index: u32) -> Option<&'static Socket> {
        let place = self.items.get_mut(index as usize)?;
        let item = place.as_ref()?;
        let (s, fd) = (item.socket, item.fd);
        let is_record = !item.attached && !item.queued && !item.nameless && item.extra.is_none();
        if !is_record || item.generation != s.generation16() || s.is_inherited() {
            return None;
        }
        *place = None;
        self.forget_number(fd, index);
        self.free.push(index);
        Some(s)
    }
    /// `fd` does not stand for the item any more.
    pub(super) fn forget_number(&mut self, fd: c_int, index: u32) {
        if let Some(i) = self.by_fd.get_mut(fd as usize).filter(|i| **i == index) {
            *i = NO_ITEM;
        }
    }
    /// The item, if it is `s`'s of today.
    pub(super) fn item_of(&mut self, index: u32, s: &Socket) -> Option<&mut Item> {
        self.item(index)
            .filter(|item| core::ptr::eq(item.socket, s) && item.generation == s.generation16())
    }
    /// The first item of `s` from `from` on.
    pub(super) fn next_of(&self, s: &Socket, from: u32) -> Option<u32> {
        let g = s.generation16();
        let its = |item: &Option<Item>| {
            item.as_ref().is_some_and(|i| core::ptr::eq(i.socket, s) && i.generation == g)
        };
        self.items.iter().skip(from as usize).position(its).map(|i| from + i as u32)
    }
    #[inline]
    pub(super) fn queue(&mut self, index: u32) {
        queue(&mut self.items, &mut self.ready, index);
    }
    /// Takes the news of all channels over into the ready queue.
    #[inline(always)]
    pub(super) fn drain(&mut self, e: &Epoll) {
        if self.engines != Engines::default() && !self.has_ready() {
            self.engines.poll();
        }
        if !self.extras.is_empty() {
            self.look_at_extras();
        }
        let news = e.watch.iter().take(e.watching.load(Relaxed)).any(|set| {
            // SAFETY: within a channel that this set has joined, which keeps it mapped.
            unsafe { set.load(Relaxed).as_ref() }.is_some_and(|set| !set.is_empty())
        });
        if news {
            self.drain_channels(e);
        }
    }

    #[inline(always)]
    pub(super) fn drain_channels(&mut self, e: &Epoll) {
        let place = e.place.load(Relaxed) as usize;
        if place == 0 {
            return;
        }
        let (by_clock, mut sent) = (self.by_clock, self.sent_by_kernel);
        let (news, items, ready) = (&mut self.news, &mut self.items, &mut self.ready);
        for c in &self.channels {
            c.my_place(place - 1).drain(|slot| {
                let Some(s) = Socket::on(c, slot as usize) else {
                    if slot as usize == BY_KERNEL {
                        sent = sent.max(take_mark(c, news, by_clock));
                    }
                    return;
                };
                let words = c.words(slot as usize, c.side ^ 1);
                let its = match homes::item_of_first(s, e) {
                    Some(index) => Some((&words.producer_user[announce::STAMP], index)),
                    None => homes::item_of_others(s, e).map(|(at, i)| (stamp_of(words, at), i)),
                };
                if let Some((stamp, index)) = its {
                    let stamp = stamp.load(Relaxed);
                    // (There is room for all items once. A peer can say the same again.)
                    if !news.push(place_in_time(stamp, by_clock), index) {
                        queue(items, ready, index)
                    }
                } else if hears_taken(e, s) {
                    let _ = news.push(0, LISTENERS);
                }
            });
        }
        // In the order in which it came, as the kernel reports it.
        news.take(|index| {
            if index < LISTENERS {
                queue(items, ready, index);
            } else {
                let mark = if index == KERNEL {
                    &mut self.kernel_queued
                } else {
                    &mut self.listeners_queued
                };
                queue_mark(ready, mark, index);
            }
        });
        self.sent_by_kernel = sent;
    }
    /// One of the listeners may have something to give out.
    #[cold]
    pub(super) fn queue_listeners(&mut self) {
        if !self.listeners_queued {
            self.listeners_queued = self.ready.push_back(LISTENERS);
        }
    }
    /// The kernel may have got news of this moment, which is not in a ring: behind what is ready
    /// now.
    pub(super) fn mark_kernel(&mut self, e: &Epoll) {
        self.drain(e);
        self.sent_by_kernel = sys::ticks();
        if !self.kernel_queued {
            self.kernel_queued = self.ready.push_back(KERNEL);
        }
    }
}

/// [`KERNEL`] and [`LISTENERS`] are queued once.
#[cold]
#[inline(never)]
fn queue_mark(ready: &mut ReadyQueue, is_queued: &mut bool, index: u32) {
    if !*is_queued {
        *is_queued = ready.push_back(index);
    }
}

/// News of a slot of which the set has no item: true where a listener in it has something to give
/// out.
#[cold]
#[inline(never)]
fn hears_taken(e: &Epoll, s: &'static Socket) -> bool {
    let is_here = |l: &Listener| l.is_waited_for_in(e.fd.load(Relaxed));
    s.is(State::Parked) && io::hear_taken(s, is_here)
}

/// Takes the mark of a channel among the news. Returns when that was sent which it stands for.
#[cold]
fn take_mark(c: &Channel, news: &mut News, by_clock: bool) -> u64 {
    let said = &c.words(BY_KERNEL, c.side ^ 1).producer_user;
    if !news.push(place_in_time(said[announce::STAMP].load(Relaxed), by_clock), KERNEL) {
        return 0;
    }
    // (A time to come, which only a bad peer writes, would never be looked behind.)
    said[announce::SENT].load(Relaxed).min(sys::ticks())
}

#[inline]
fn queue(items: &mut [Option<Item>], ready: &mut ReadyQueue, index: u32) {
    if let Some(Some(item)) = items.get_mut(index as usize) {
        item.queue(ready, index);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
