//! Epoll instances with accelerated sockets in them.
//!
//! The application's epoll descriptor stays the kernel's, and everything that is not an attached
//! socket is in the kernel's set as the application put it there. Attached sockets are [`Item`]s
//! kept here: interest, the application's data, and a place in the *ready queue*, which works as
//! the kernel's own ready list does (queued by an edge, evaluated when a wait looks, queued again
//! after a level-triggered report).
//!
//! In the kernel's set an attached socket stands for its carrier, edge-triggered, with a *tag* as
//! data; it stays there through any number of the application's DELs and ADDs, which so cost no
//! system call. The instance's doorbell (an eventfd) stands there too. A tag is a random 40-bit
//! number of this process's and an item's index.
//!
//! What a set cannot carry here (a socket in several sets, an inherited set, a set that is itself
//! polled) sends its sockets back to the kernel first. A socket whose unread bytes do not follow at
//! once stays an item, in each of its sets: the first is its *home*, which the peer notifies; the
//! others hold *extra* items, looked at in every wait, until all that is in the ring has been read.

use crate::channel::{BY_KERNEL, Channel, announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry, Place};
use crate::lock::Mutex;
use crate::queues;
use crate::sets::Sets;
use crate::socket::Socket;
use crate::{heap, process, service, sys, wait};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use netacc_control::stats::Reason;
use netacc_ring::ReadySet;
use netacc_ring::sleepers::Outside;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
const ALWAYS: u32 = libc::EPOLLERR as u32 | libc::EPOLLHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// What the kernel is asked about the carrier of an attached socket.
const CARRIER: u32 = libc::EPOLLIN as u32
    | libc::EPOLLOUT as u32
    | libc::EPOLLRDHUP as u32
    | libc::EPOLLPRI as u32
    | ET;
/// How the carrier says that a direction, or all of it, has ended.
const ENDS: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// With EPOLLEXCLUSIVE the kernel allows these only (fs/eventpoll.c: EPOLLEXCLUSIVE_OK_BITS).
const EXCLUSIVE_OK: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP) as u32
        | ET
        | EXCLUSIVE;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// The doorbell's index in a tag.
const DOORBELL: u32 = 0xff_ffff;
const NO_ITEM: u32 = u32::MAX;
/// In the ready queue, among the items: what the kernel has comes before what is behind this.
const KERNEL: u32 = u32::MAX - 1;
/// A busy set looks at the kernel's descriptors at least so often (ticks: some 40 µs).
const KERNEL_VISIT_TICKS: u64 = 100_000;
/// Channels of one set that a polling thread watches.
const WATCHED: usize = 64;
/// Whose turn it is goes by a call's number: after so many it is the same one's again.
const TURNS: u64 = 32;
/// Looks at the kernel's set in a call that does not wait.
const VISITS: usize = 16;
/// How long a thread sleeps at most while news may come that nobody announces to its set.
const LOOK_NS: i64 = 1_000_000;
/// How soon after a try in vain a socket is tried again to be given to the kernel, at first and at
/// last (doubled each time).
const AGAIN_NS: u64 = 1_000_000;
const AGAIN_MAX_NS: u64 = 1_000_000_000;

/// Extra items of all sets: while there are none a socket is in no set but its home.
static EXTRAS: AtomicU32 = AtomicU32::new(0);

mod ctl;
mod epoll_wait;
mod handover;
mod news;
mod queue;
mod ready;

pub(crate) use ctl::ctl;
pub(crate) use epoll_wait::{on_wait, wait};
pub(crate) use handover::{bar, forget, leave_to_kernel, on_plain};
use handover::{shine, unlight};
use news::{News, place_in_time};
use queue::Queue;

/// One socket in a set.
struct Item {
    socket: &'static Socket,
    generation: u16,
    fd: c_int,
    events: u32,
    data: u64,
    /// The application has it in the set.
    present: bool,
    /// Kept here; otherwise the kernel has it as the application put it, and this is only the
    /// record of that.
    attached: bool,
    /// Why it is here although this is not the socket's home: the peer does not announce its news
    /// to this set.
    extra: Option<Reason>,
    /// The announcement and the tail when an extra item was last looked at.
    stamp: (u32, u64),
    /// The number under which it was put into the set is closed: the kernel's registration cannot
    /// be changed any more, and the item stays; `fd` is another name of the socket.
    nameless: bool,
    /// Nameless, and the socket is the kernel's.
    plain: bool,
    queued: bool,
    /// ONESHOT has fired.
    disabled: bool,
    /// The carrier has said something since it was last found silent.
    carrier_news: bool,
    /// What the carrier last said of its end (RDHUP, HUP, ERR): said again it is no new edge.
    ended: u32,
    /// The wait in which it was last reported: a wait reports an item once.
    reported_in: u64,
    /// Of that wait: behind which look at the kernel's set.
    reported_behind: u64,
}

impl Item {
    /// Whether there is any use in queueing it.
    #[inline]
    fn may_queue(&self) -> bool {
        !self.queued && self.present && self.attached && !self.disabled
    }

    #[inline]
    fn queue(&mut self, ready: &mut Queue, index: u32) {
        if self.may_queue() {
            self.queued = ready.push_back(index);
        }
    }
}

struct Inner {
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    /// Item index by descriptor.
    by_fd: Vec<u32>,
    /// Items, and at most one [`KERNEL`].
    ready: Queue,
    kernel_queued: bool,
    /// What it stands for was sent then ([`sys::ticks`]).
    sent_by_kernel: u64,
    /// Looks at the kernel's set; the wait of the last one, and when it began, if it took all.
    looks: u64,
    looked_in: u64,
    looked_at: u64,
    /// A look without sleep has taken the event of a doorbell since somebody who sleeps was last
    /// told.
    woken: bool,
    /// While a drain lasts: the items of which it has brought news.
    news: News,
    channels: Vec<&'static Channel>,
    /// Threads asleep in the kernel.
    sleepers: u32,
    /// Threads in a call of which [`epoll_wait::give_way`] has let others have the set; they come
    /// back.
    away: u32,
    /// Threads in the kernel's own wait are called in, until then (monotonic); 0: they are not.
    calls_until: u64,
    /// How many of them had not come when they were last counted.
    called: u32,
    last_visit: u64,
    /// The last look at the kernel's set brought as much as there was room for.
    backlog: bool,
    /// A carrier was put into the kernel's set, which may tell what the item already knows: both
    /// are taken in one wait.
    fresh: bool,
    /// Number of the present wait.
    wait: u64,
    /// [`wait::deaths`] when channels were last let go.
    deaths: u32,
    /// The items that are `extra`.
    extras: Vec<u32>,
    /// There are sockets that should be the kernel's and are not yet.
    unsettled: bool,
    /// When they are tried again, and how long after that the next time.
    settle_at: u64,
    settle_after: u64,
    /// In a set that is itself polled: what makes the set look ready while an item is (-1: not made
    /// yet), and whether it is in the set.
    beacon: c_int,
    lit: bool,
    /// A channel of it leads to another host: its news has to be polled for.
    between_hosts: bool,
    /// The channels are several: stamps have to be the clock's.
    by_clock: bool,
}

/// What stands below knows sets by this ([`crate::sets`]).
struct Instances;
pub(crate) static SETS: &dyn Sets = &Instances;

impl Sets for Instances {
    fn may_attach(&self, s: &Socket) -> bool {
        handover::may_attach(s)
    }
    fn on_attached(&self, s: &'static Socket, fd: c_int) {
        handover::on_attached(s, fd);
    }
    fn on_plain(&self, s: &'static Socket) {
        handover::on_plain(s);
    }
    fn is_waited_for(&self, s: &Socket) -> bool {
        handover::is_waited_for(s)
    }
    fn is_home(&self, set: Place, s: &Socket) -> bool {
        handover::is_home(at(set), s)
    }
    fn is_slept_in(&self, set: Place) -> bool {
        handover::is_slept_in(at(set))
    }
    fn is_slept_for(&self, s: &Socket) -> bool {
        handover::is_slept_for(s)
    }
    fn bar(&self, set: Place) {
        handover::bar(at(set));
    }
}

/// The set that an entry of the table names.
#[inline(always)]
pub(crate) fn at(place: Place) -> &'static Epoll {
    // SAFETY: entries of that kind are made of references to instances, which are never freed.
    unsafe { &*(place.address() as *const Epoll) }
}

/// Whether the socket's home is that set.
#[inline(always)]
fn is_in(s: &Socket, e: &Epoll) -> bool {
    core::ptr::eq(s.epoll.load(Acquire).cast::<Epoll>(), e)
}

/// An epoll instance. Type-stable: never freed, reused through a pool.
pub(crate) struct Epoll {
    fd: core::sync::atomic::AtomicI32,
    refs: AtomicU32,
    owner: AtomicU32,
    /// It has attached sockets: waits go through here.
    active: AtomicBool,
    /// It had some: a thread may still come out of the kernel's own wait with tags.
    tagged: AtomicBool,
    /// It must not get any (it is itself polled).
    barred: AtomicBool,
    /// Somebody has waited for it by a call that is seen.
    waited: AtomicBool,
    /// Threads in the kernel's own wait for it.
    outside: Outside,
    /// Waiting place + 1; 0: none yet.
    place: AtomicU32,
    watch: [AtomicPtr<ReadySet>; WATCHED],
    watching: AtomicUsize,
    inner: Mutex<Inner>,
}

static POOL: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());

/// A thread that is counted in [`Outside`].
#[derive(Default)]
pub struct Counted(Option<(&'static Epoll, u32)>);

impl Counted {
    /// A thread goes into the kernel's own wait for `e`; and whether it is to come back at once.
    #[inline]
    fn enter(e: &'static Epoll) -> (Counted, bool) {
        let (time, active) = e.outside.enter(&e.active);
        (Counted(Some((e, time))), active)
    }
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        if let Some((e, time)) = self.0.take() {
            e.outside.leave(time);
        }
    }
}

/// The random part of this process's tags, in the upper 40 bits.
fn tag_base() -> u64 {
    static BASE: AtomicU64 = AtomicU64::new(0);
    let base = BASE.load(Relaxed);
    if base != 0 {
        return base;
    }
    let mut bytes = [0u8; 8];
    sys::random(&mut bytes);
    let mut new = u64::from_ne_bytes(bytes) ^ sys::ticks().rotate_left(32);
    new = (new | 1 << 63) & !0xff_ffff;
    match BASE.compare_exchange(0, new, Relaxed, Relaxed) {
        Ok(_) => new,
        Err(other) => other,
    }
}

fn tag(index: u32) -> u64 {
    tag_base() | index as u64 & 0xff_ffff
}

/// The item index in an event's data, if it is a tag of ours.
#[inline]
fn untag(data: u64) -> Option<u32> {
    (data & !0xff_ffff == tag_base()).then_some(data as u32 & 0xff_ffff)
}

pub(crate) fn on_create(fd: c_int) {
    if !process::started() {
        return;
    }
    let pooled = POOL.lock().pop();
    // Without memory the set is one that the library does not know: whatever comes into it stays
    // with the kernel.
    let new = || {
        heap::leak(Epoll {
            fd: core::sync::atomic::AtomicI32::new(-1),
            refs: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            active: AtomicBool::new(false),
            tagged: AtomicBool::new(false),
            barred: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            outside: Outside::new(),
            place: AtomicU32::new(0),
            watch: [const { AtomicPtr::new(core::ptr::null_mut()) }; WATCHED],
            watching: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                items: Vec::new(),
                free: Vec::new(),
                by_fd: Vec::new(),
                ready: Queue::new(),
                news: News::new(),
                channels: Vec::new(),
                sleepers: 0,
                away: 0,
                calls_until: 0,
                called: 0,
                last_visit: 0,
                backlog: false,
                fresh: false,
                kernel_queued: false,
                sent_by_kernel: 0,
                looks: 0,
                looked_in: 0,
                looked_at: 0,
                woken: false,
                wait: 1,
                deaths: 0,
                extras: Vec::new(),
                unsettled: false,
                settle_at: 0,
                settle_after: 0,
                beacon: -1,
                lit: false,
                between_hosts: false,
                by_clock: false,
            }),
        })
    };
    let Some(e) = pooled.or_else(|| heap::plenty().then(new).flatten()) else { return };
    e.fd.store(fd, Relaxed);
    e.owner.store(process::id(), Relaxed);
    e.refs.store(1, Relaxed);
    e.barred.store(false, Relaxed);
    e.waited.store(false, Relaxed);
    e.outside.forget();
    e.tagged.store(false, Relaxed);
    e.active.store(false, Release);
    fd_table::set(fd, Entry::Epoll(Place::of(e)));
}

pub(crate) fn on_dup(e: &'static Epoll) {
    e.refs.fetch_add(1, AcqRel);
}

/// One of its descriptors is closed; with the last one (of this process) everything kept here goes.
pub(crate) fn on_close(e: &'static Epoll) {
    if e.refs.fetch_sub(1, AcqRel) > 1 || e.owner.load(Relaxed) != process::id() {
        return;
    }
    let mut inner = e.inner.lock();
    for item in inner.items.iter().flatten() {
        leave(e, item);
    }
    EXTRAS.fetch_sub(inner.extras.len() as u32, AcqRel);
    inner.extras.clear();
    inner.unsettled = false;
    inner.items.clear();
    inner.free.clear();
    inner.by_fd.clear();
    inner.ready.clear();
    inner.kernel_queued = false;
    (inner.sent_by_kernel, inner.looked_at) = (0, 0);
    leave_channels(e, &mut inner);
    inner.lit = false;
    inner.calls_until = 0;
    let beacon = core::mem::replace(&mut inner.beacon, -1);
    if beacon >= 0 {
        fd_table::close_internal(beacon);
    }
    let idle = inner.away == 0;
    drop(inner);
    let place = e.place.swap(0, AcqRel);
    if place != 0 {
        wait::give_back(place as usize - 1);
    }
    e.active.store(false, Release);
    if idle {
        let mut pool = POOL.lock();
        if pool.try_reserve(1).is_ok() {
            pool.push(e);
        }
    }
}

/// Lets go of channels whose peer is gone and that no item of the set uses.
fn prune(e: &Epoll, inner: &mut Inner, place: usize) {
    inner.deaths = wait::deaths();
    if inner.channels.iter().all(|c| c.dead.load(Acquire) == 0) {
        return;
    }
    let used = |c: &Channel| {
        inner
            .items
            .iter()
            .flatten()
            .any(|i| i.attached && i.socket.channel().is_some_and(|own| core::ptr::eq(own, c)))
    };
    let (keep, drop): (Vec<_>, Vec<_>) =
        inner.channels.iter().copied().partition(|c| c.dead.load(Acquire) == 0 || used(c));
    // Nobody polls the old list while it changes: a thread that does holds pins of its own through
    // `inner.channels` only.
    e.watching.store(0, SeqCst);
    for (w, c) in e.watch.iter().zip(&keep) {
        w.store((c.my_place(place) as *const ReadySet).cast_mut(), Release);
    }
    e.watching.store(keep.len(), SeqCst);
    inner.channels = keep;
    choose_stamps(inner, place);
    for c in drop {
        service::leave_channel(c);
    }
}

#[inline]
fn prune_if_due(e: &Epoll, inner: &mut Inner) {
    let place = e.place.load(Relaxed) as usize;
    if inner.deaths != wait::deaths() && place != 0 {
        prune(e, inner, place - 1);
    }
}

/// Tells the senders of all channels what their stamps have to be.
fn choose_stamps(inner: &mut Inner, place: usize) {
    inner.by_clock = inner.channels.len() > 1;
    for c in &inner.channels {
        c.my_place(place).want_stamps(inner.by_clock);
    }
}

fn leave_channels(e: &Epoll, inner: &mut Inner) {
    e.watching.store(0, Release);
    inner.between_hosts = false;
    for c in core::mem::take(&mut inner.channels) {
        service::leave_channel(c);
    }
}

/// The socket is no longer in this set by this item.
fn leave(e: &Epoll, item: &Item) {
    let s = item.socket;
    // What an inherited socket says of sets is its maker's.
    if s.generation16() != item.generation || s.is_inherited() {
        return;
    }
    s.registrations.fetch_sub(1, SeqCst);
    if item.extra.is_none() && is_in(s, e) {
        s.epoll.store(core::ptr::null_mut(), Release);
        if item.attached {
            unpost(s);
        }
    }
}

/// Nobody waits for the socket's news in a set any more.
fn unpost(s: &Socket) {
    if let Some(channel) = s.channel() {
        let slot = s.slot.load(Relaxed) as usize;
        set_notify(s, channel, slot, 0);
    }
}

/// Sets the epoll place (+1; 0: none) in the NOTIFY words, leaving the blocked threads' as they
/// are.
fn set_notify(s: &Socket, channel: &Channel, slot: usize, place: u32) {
    let (receiving, sending) =
        (channel.words(slot, channel.side ^ 1), channel.words(slot, channel.side));
    s.published.posted.post_set(
        place,
        [&receiving.quiet[quiet::NOTIFY], &sending.producer_quiet[producer_quiet::NOTIFY]],
    );
}

// ---- the set ------------------------------------------------------------------------------------

impl Inner {
    fn index_of(&self, fd: c_int) -> Option<u32> {
        self.by_fd.get(fd as usize).copied().filter(|i| *i != NO_ITEM)
    }
    fn item(&mut self, index: u32) -> Option<&mut Item> {
        self.items.get_mut(index as usize)?.as_mut()
    }
    /// Whether an item is queued.
    fn has_ready(&self) -> bool {
        self.ready.len() > usize::from(self.kernel_queued)
    }
    /// `None`: there is no memory for it. Nothing else allocates: what is taken out, queued and
    /// reported has its room from here on.
    fn insert(&mut self, item: Item) -> Option<u32> {
        let fd = item.fd as usize;
        let all = self.items.len() + 1;
        self.free.try_reserve(all.saturating_sub(self.free.len())).ok()?;
        self.ready.reserve(all + 1).ok()?;
        self.news.reserve(all + 1).ok()?;
        self.extras.try_reserve(all.saturating_sub(self.extras.len())).ok()?;
        self.items.try_reserve(1).ok()?;
        self.by_fd.try_reserve((fd + 1).saturating_sub(self.by_fd.len())).ok()?;
        let index = match self.free.pop() {
            Some(i) => i,
            None => {
                if self.items.len() >= DOORBELL as usize {
                    return None;
                }
                self.items.push(None);
                self.items.len() as u32 - 1
            }
        };
        if self.by_fd.len() <= fd {
            self.by_fd.resize(fd + 1, NO_ITEM);
        }
        *self.by_fd.get_mut(fd)? = index;
        *self.items.get_mut(index as usize)? = Some(item);
        Some(index)
    }
    fn remove(&mut self, index: u32) -> Option<Item> {
        let item = self.items.get_mut(index as usize)?.take()?;
        self.forget_number(item.fd, index);
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
    /// `fd` does not stand for the item any more.
    fn forget_number(&mut self, fd: c_int, index: u32) {
        if let Some(i) = self.by_fd.get_mut(fd as usize).filter(|i| **i == index) {
            *i = NO_ITEM;
        }
    }
    /// The item, if it is `s`'s of today.
    fn item_of(&mut self, index: u32, s: &Socket) -> Option<&mut Item> {
        self.item(index)
            .filter(|item| core::ptr::eq(item.socket, s) && item.generation == s.generation16())
    }
    /// The first item of `s` from `from` on.
    fn next_of(&self, s: &Socket, from: u32) -> Option<u32> {
        let g = s.generation16();
        let its = |item: &Option<Item>| {
            item.as_ref().is_some_and(|i| core::ptr::eq(i.socket, s) && i.generation == g)
        };
        self.items.iter().skip(from as usize).position(its).map(|i| from + i as u32)
    }
    #[inline]
    fn queue(&mut self, index: u32) {
        queue(&mut self.items, &mut self.ready, index);
    }
    /// Takes the news of all channels over into the ready queue.
    #[inline(always)]
    fn drain(&mut self, e: &Epoll) {
        if self.between_hosts && !self.has_ready() {
            queues::progress();
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
    fn drain_channels(&mut self, e: &Epoll) {
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
                if is_in(s, e) {
                    let stamp = c.words(slot as usize, c.side ^ 1).producer_user[announce::STAMP]
                        .load(Relaxed);
                    let index = s.item.load(Relaxed) as u32;
                    // (There is room for all items once. A peer can say the same again.)
                    if !news.push(place_in_time(stamp, by_clock), index) {
                        queue(items, ready, index)
                    }
                }
            });
        }
        // In the order in which it came, as the kernel reports it.
        news.take(|index| {
            if index != KERNEL {
                queue(items, ready, index);
            } else if !self.kernel_queued {
                self.kernel_queued = ready.push_back(KERNEL);
            }
        });
        self.sent_by_kernel = sent;
    }
    /// The kernel may have got news of this moment, which is not in a ring: behind what is ready
    /// now.
    fn mark_kernel(&mut self, e: &Epoll) {
        self.drain(e);
        self.sent_by_kernel = sys::ticks();
        if !self.kernel_queued {
            self.kernel_queued = self.ready.push_back(KERNEL);
        }
    }
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
fn queue(items: &mut [Option<Item>], ready: &mut Queue, index: u32) {
    if let Some(Some(item)) = items.get_mut(index as usize) {
        item.queue(ready, index);
    }
}

/// Makes sure that the set has a waiting place, by which its own process's threads wake those that
/// sleep on it.
fn take_place(e: &'static Epoll, inner: &mut Inner) -> Option<u32> {
    // First: from here on the kernel's set may report a tag to a thread that sleeps in it.
    e.tagged.store(true, Relaxed);
    let mut place = e.place.load(Relaxed);
    if place == 0 {
        place =
            wait::claim_for_epoll(e.fd.load(Relaxed), tag(DOORBELL)).map_or(0, |p| p as u32 + 1);
        e.place.store(place, Release);
    }
    // (A thread that came into a set without a place would go back to the kernel's wait.)
    let called = e.outside.activate(&e.active);
    let ours = place != 0 || !inner.extras.is_empty();
    if called > 0 && ours && !e.barred.load(SeqCst) {
        call_in(e, inner, called);
    }
    (place != 0).then_some(place)
}

/// Makes the set one that has attached sockets, on `channel`.
fn activate(e: &'static Epoll, inner: &mut Inner, channel: &'static Channel) -> bool {
    if e.barred.load(Relaxed) {
        return false;
    }
    let Some(place) = take_place(e, inner) else { return false };
    if inner.channels.try_reserve(1).is_err() {
        return false;
    }
    if !inner.channels.iter().any(|c| core::ptr::eq(*c, channel)) {
        prune(e, inner, place as usize - 1);
        if inner.channels.len() >= WATCHED
            || !wait::introduce(channel, place as usize - 1, e.fd.load(Relaxed), tag(DOORBELL))
        {
            return false;
        }
        service::join_channel(channel);
        let n = inner.channels.len();
        inner.between_hosts |= channel.wire().is_some();
        // (What the place's last set has looked at is another one.)
        channel.my_place(place as usize - 1).set_looked(0);
        inner.channels.push(channel);
        choose_stamps(inner, place as usize - 1);
        if let Some(w) = e.watch.get(n) {
            w.store((channel.my_place(place as usize - 1) as *const ReadySet).cast_mut(), Release);
        }
        e.watching.store(n + 1, Release);
        if inner.sleepers > 0 {
            channel.my_place(place as usize - 1).prepare_sleep();
        }
    }
    true
}

/// Tells the peer whom to notify of this socket's news.
fn post(e: &Epoll, s: &Socket, channel: &Channel) {
    let slot = s.slot.load(Relaxed) as usize;
    let place = e.place.load(Relaxed);
    set_notify(s, channel, slot, place);
}

/// How long the set waits for the next thread that it calls in. One that has left its wait without
/// being counted out never comes.
const CALL_NS: u64 = 1_000_000_000;

/// Threads that have gone to sleep in the kernel's own wait before the set came to have attached
/// sockets hear of no ring. So something in the kernel's set is ready, level-triggered, until all
/// of them have come in: each wakes the next.
#[cold]
fn call_in(e: &Epoll, inner: &mut Inner, called: u32) {
    shine(e, inner);
    inner.called = called;
    inner.calls_until = sys::now_ns().saturating_add(CALL_NS);
}

/// One has come: the beacon goes out behind the last.
#[cold]
fn come_in(e: &Epoll, inner: &mut Inner) {
    if inner.calls_until != 0 {
        unlight(e, inner);
    }
}

/// Threads that sleep on this set look again.
fn prod(e: &Epoll, inner: &Inner) {
    let place = e.place.load(Relaxed);
    if inner.sleepers > 0 && place != 0 {
        wait::wake_own(place as usize - 1);
    }
}
