//! Epoll instances with accelerated sockets in them.
//!
//! The application's epoll descriptor stays the kernel's, and everything that is not an attached socket is in the
//! kernel's set as the application put it there. Attached sockets are [`Item`]s kept here: interest, the application's
//! data, and a place in the *ready queue*, which works as the kernel's own ready list does (queued by an edge, evaluated
//! when a wait looks, queued again after a level-triggered report).
//!
//! In the kernel's set an attached socket stands for its carrier, edge-triggered, with a *tag* as data; it stays there
//! through any number of the application's DELs and ADDs, which so cost no system call. The instance's doorbell (an
//! eventfd) stands there too. A tag is a random 40-bit number of this process's and an item's index.
//!
//! What a set cannot carry here (a socket in several sets, an inherited set, a set that is itself polled) sends its sockets back to the
//! kernel first. A socket whose unread bytes do not follow at once stays an item, in each of its sets: the first is its *home*, which the peer
//! notifies; the others hold *extra* items, looked at in every wait, until all that is in the ring has been read.

use crate::api::{Mask, PASS, Ret};
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry};
use crate::lock::{Guard, Mutex};
use crate::socket::{ATTACHED, ATTACHING, CANDIDATE, Socket, flag};
use crate::{io, lifecycle, numbers, service, stats, sys, wait};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};
use libc::epoll_event;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::switchover::Ack;
use netacc_ring::ReadySet;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
const ALWAYS: u32 = libc::EPOLLERR as u32 | libc::EPOLLHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// What the kernel is asked about the carrier of an attached socket.
const CARRIER: u32 = libc::EPOLLIN as u32 | libc::EPOLLOUT as u32 | libc::EPOLLRDHUP as u32 | libc::EPOLLPRI as u32 | ET;
/// How the carrier says that a direction, or all of it, has ended.
const ENDS: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// With EPOLLEXCLUSIVE the kernel allows these only (fs/eventpoll.c: EPOLLEXCLUSIVE_OK_BITS).
const EXCLUSIVE_OK: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP) as u32 | ET | EXCLUSIVE;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// The doorbell's index in a tag.
const DOORBELL: u32 = 0xff_ffff;
const NO_ITEM: u32 = u32::MAX;
/// A busy set looks at the kernel's descriptors at least so often (ticks: some 40 µs).
const KERNEL_VISIT_TICKS: u64 = 100_000;
/// Channels of one set that a polling thread watches.
const WATCHED: usize = 64;
/// How long a thread sleeps at most while news may come that nobody announces to its set.
const LOOK_NS: i64 = 1_000_000;
/// How soon after a try in vain a socket is tried again to be given to the kernel, at first and at last (doubled each time).
const AGAIN_NS: u64 = 1_000_000;
const AGAIN_MAX_NS: u64 = 1_000_000_000;

/// Extra items of all sets: while there are none a socket is in no set but its home.
static EXTRAS: AtomicU32 = AtomicU32::new(0);

/// One socket in a set.
struct Item {
    socket: &'static Socket,
    generation: u16,
    fd: c_int,
    events: u32,
    data: u64,
    /// The application has it in the set.
    present: bool,
    /// Kept here; otherwise the kernel has it as the application put it, and this is only the record of that.
    attached: bool,
    /// Why it is here although this is not the socket's home: the peer does not announce its news to this set.
    extra: Option<Reason>,
    /// The announcement and the tail when an extra item was last looked at.
    stamp: (u32, u64),
    /// The number under which it was put into the set is closed: the kernel's registration cannot be changed any more, and the
    /// item stays; `fd` is another name of the socket.
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
}

struct Inner {
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    /// Item index by descriptor.
    by_fd: Vec<u32>,
    ready: VecDeque<u32>,
    channels: Vec<&'static Channel>,
    /// Threads asleep in the kernel.
    sleepers: u32,
    last_visit: u64,
    /// The last look at the kernel's set brought as much as there was room for.
    backlog: bool,
    /// A carrier was put into the kernel's set, which may tell what the item already knows: both are taken in one wait.
    fresh: bool,
    /// Number of the present wait.
    wait: u64,
    /// [`service::deaths`] when channels were last let go.
    deaths: u32,
    /// The items that are `extra`.
    extras: Vec<u32>,
    /// There are sockets that should be the kernel's and are not yet.
    unsettled: bool,
    /// When they are tried again, and how long after that the next time.
    settle_at: u64,
    settle_after: u64,
    /// In a set that is itself polled: what makes the set look ready while an item is (-1: not made yet), and whether it is in the set.
    beacon: c_int,
    lit: bool,
}

/// An epoll instance. Type-stable: never freed, reused through a pool.
pub(crate) struct Epoll {
    fd: core::sync::atomic::AtomicI32,
    refs: AtomicU32,
    owner: AtomicU32,
    /// It has, or had, attached sockets: waits go through here.
    active: AtomicBool,
    /// It must not get any (it is itself polled).
    barred: AtomicBool,
    /// Waiting place + 1; 0: none yet.
    place: AtomicU32,
    watch: [AtomicPtr<ReadySet>; WATCHED],
    watching: AtomicUsize,
    inner: Mutex<Inner>,
}

static POOL: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());

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
    fd_table::forget_stale(fd);
    if !lifecycle::started() {
        return;
    }
    let pooled = POOL.lock().pop();
    let e = pooled.unwrap_or_else(|| {
        Box::leak(Box::new(Epoll {
            fd: core::sync::atomic::AtomicI32::new(-1),
            refs: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            active: AtomicBool::new(false),
            barred: AtomicBool::new(false),
            place: AtomicU32::new(0),
            watch: [const { AtomicPtr::new(core::ptr::null_mut()) }; WATCHED],
            watching: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                items: Vec::new(),
                free: Vec::new(),
                by_fd: Vec::new(),
                ready: VecDeque::new(),
                channels: Vec::new(),
                sleepers: 0,
                last_visit: 0,
                backlog: false,
                fresh: false,
                wait: 1,
                deaths: 0,
                extras: Vec::new(),
                unsettled: false,
                settle_at: 0,
                settle_after: 0,
                beacon: -1,
                lit: false,
            }),
        }))
    });
    e.fd.store(fd, Relaxed);
    e.owner.store(lifecycle::process(), Relaxed);
    e.refs.store(1, Relaxed);
    e.barred.store(false, Relaxed);
    e.active.store(false, Release);
    fd_table::set(fd, Entry::Epoll(e));
}

pub(crate) fn on_dup(e: &'static Epoll) {
    e.refs.fetch_add(1, AcqRel);
}

/// One of its descriptors is closed; with the last one (of this process) everything kept here goes.
pub(crate) fn on_close(e: &'static Epoll) {
    if e.refs.fetch_sub(1, AcqRel) > 1 || e.owner.load(Relaxed) != lifecycle::process() {
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
    leave_channels(e, &mut inner);
    inner.lit = false;
    let beacon = core::mem::replace(&mut inner.beacon, -1);
    if beacon >= 0 {
        fd_table::close_internal(beacon);
    }
    let idle = inner.sleepers == 0;
    drop(inner);
    let place = e.place.swap(0, AcqRel);
    if place != 0 {
        wait::give_back(place as usize - 1);
    }
    e.active.store(false, Release);
    if idle {
        POOL.lock().push(e);
    }
}

/// Lets go of channels whose peer is gone and that no item of the set uses.
fn prune(e: &Epoll, inner: &mut Inner, place: usize) {
    inner.deaths = service::deaths();
    if inner.channels.iter().all(|c| c.dead.load(Acquire) == 0) {
        return;
    }
    let used = |c: &Channel| inner.items.iter().flatten().any(|i| i.attached && i.socket.channel().is_some_and(|own| core::ptr::eq(own, c)));
    let (keep, drop): (Vec<_>, Vec<_>) = inner.channels.iter().copied().partition(|c| c.dead.load(Acquire) == 0 || used(c));
    // Nobody polls the old list while it changes: a thread that does holds pins of its own through `inner.channels` only.
    e.watching.store(0, SeqCst);
    for (w, c) in e.watch.iter().zip(&keep) {
        w.store((c.my_place(place) as *const ReadySet).cast_mut(), Release);
    }
    e.watching.store(keep.len(), SeqCst);
    inner.channels = keep;
    for c in drop {
        service::leave_channel(c);
    }
}

#[inline]
fn prune_if_due(e: &Epoll, inner: &mut Inner) {
    let place = e.place.load(Relaxed) as usize;
    if inner.deaths != service::deaths() && place != 0 {
        prune(e, inner, place - 1);
    }
}

fn leave_channels(e: &Epoll, inner: &mut Inner) {
    e.watching.store(0, Release);
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
    if item.extra.is_none() && core::ptr::eq(s.epoll.load(Acquire), e) {
        s.epoll.store(core::ptr::null_mut(), Release);
        if let (true, Some(channel)) = (item.attached, s.channel()) {
            let slot = s.slot.load(Relaxed) as usize;
            set_notify(&channel.words(slot, channel.side ^ 1).quiet[quiet::NOTIFY], 0);
            set_notify(&channel.words(slot, channel.side).producer_quiet[producer_quiet::NOTIFY], 0);
        }
    }
}

/// Sets the epoll place (+1; 0: none) in a NOTIFY word, leaving the blocked thread's as it is.
fn set_notify(word: &AtomicU64, place: u32) {
    let _ = word.fetch_update(SeqCst, Relaxed, |old| Some(old & !0xffff | place as u64 & 0xffff));
}

// ---- the set ---------------------------------------------------------------------------------------------------

impl Inner {
    fn index_of(&self, fd: c_int) -> Option<u32> {
        self.by_fd.get(fd as usize).copied().filter(|i| *i != NO_ITEM)
    }
    fn item(&mut self, index: u32) -> Option<&mut Item> {
        self.items.get_mut(index as usize)?.as_mut()
    }
    fn insert(&mut self, item: Item) -> Option<u32> {
        let fd = item.fd as usize;
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
            self.ready.retain(|i| *i != index);
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
        self.item(index).filter(|item| core::ptr::eq(item.socket, s) && item.generation == s.generation16())
    }
    /// The first item of `s` from `from` on.
    fn next_of(&self, s: &Socket, from: u32) -> Option<u32> {
        let g = s.generation16();
        let its = |item: &Option<Item>| item.as_ref().is_some_and(|i| core::ptr::eq(i.socket, s) && i.generation == g);
        self.items.iter().skip(from as usize).position(its).map(|i| from + i as u32)
    }
    #[inline]
    fn queue(&mut self, index: u32) {
        if let Some(Some(item)) = self.items.get_mut(index as usize)
            && !item.queued
            && item.present
            && item.attached
            && !item.disabled
        {
            item.queued = true;
            self.ready.push_back(index);
        }
    }
    /// Takes the news of all channels over into the ready queue.
    #[inline]
    fn drain(&mut self, e: &Epoll) {
        if !self.extras.is_empty() {
            self.look_at_extras();
        }
        let place = e.place.load(Relaxed) as usize;
        if place == 0 {
            return;
        }
        for i in 0..self.channels.len() {
            let Some(c) = self.channels.get(i).copied() else { break };
            let set = c.my_place(place - 1);
            if set.is_empty() {
                continue;
            }
            set.drain(|slot| {
                // SAFETY: null or a socket of a type-stable slab.
                let Some(s) = c.sockets.get(slot as usize).and_then(|p| unsafe { p.load(Acquire).as_ref() }) else { return };
                if core::ptr::eq(s.epoll.load(Relaxed), e) {
                    self.queue(s.item.load(Relaxed) as u32);
                }
            });
        }
    }
}

/// `Ack::control`'s flag of a receiver that waits for the peer to send again over the carrier.
const FROZEN: u64 = Ack { epoch: 0, armed: false, frozen: true, consumed: 0 }.control();

/// Whether a receive finds bytes in the ring, and whether the carrier has to be asked as well; by the shared words.
#[inline]
pub(crate) fn ring_says(channel: &Channel, slot: usize) -> (bool, bool) {
    let rx = channel.words(slot, channel.side ^ 1);
    // Before the announcement, which comes before the bytes.
    let some = rx.tail.load(Acquire) != rx.head.load(Relaxed);
    let ack = rx.quiet[quiet::ACK].load(Relaxed);
    let fast = ack & 1 != 0 && ack & FROZEN == 0;
    if some && fast {
        return (true, false);
    }
    let followed = rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32;
    // Of a receiver that has followed to the carrier the ring has only what has come there too. One that waits is told whether its bytes
    // come again, or stay where they are.
    let stay = || rx.producer_user[announce::RESEND_TO].load(Relaxed) == rx.producer_user[announce::CARRIER_FROM].load(Relaxed);
    let readable = some && !followed && (ack & FROZEN == 0 || stay());
    (readable, !readable && (!fast || !followed))
}

/// What changes in the ring of a socket whose news is not announced to this set.
fn stamp(channel: &Channel, slot: usize) -> (u32, u64) {
    let rx = channel.words(slot, channel.side ^ 1);
    (rx.producer_user[announce::EPOCH].load(Acquire) as u32, rx.tail.load(Acquire))
}

/// The receiver waits for the peer's answer to a pull-back: news that only the home is told of.
fn is_frozen(channel: &Channel, slot: usize) -> bool {
    channel.words(slot, channel.side ^ 1).quiet[quiet::ACK].load(Relaxed) & FROZEN != 0
}

/// The receiver has followed the sender to the carrier, and can stay there.
fn is_released(channel: &Channel, slot: usize) -> bool {
    let rx = channel.words(slot, channel.side ^ 1);
    let ack = rx.quiet[quiet::ACK].load(Relaxed);
    ack & 1 == 0 && ack >> 32 == 0 && rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32
}

impl Inner {
    /// Queues the extra items of which anything is new.
    #[cold]
    fn look_at_extras(&mut self) {
        for i in 0..self.extras.len() {
            let Some(index) = self.extras.get(i).copied() else { return };
            let Some(item) = self.item(index) else { continue };
            let Some(channel) = item.socket.channel() else { continue };
            let now = stamp(channel, item.socket.slot.load(Relaxed) as usize);
            if core::mem::replace(&mut item.stamp, now) != now {
                self.queue(index);
            }
        }
    }
    /// Whether news of a socket may come that nobody announces: of extra items, or (`all`) of all.
    fn hears_not_all(&self, all: bool) -> bool {
        (all || !self.extras.is_empty())
            && self.items.iter().flatten().any(|item| {
                let s = item.socket;
                (item.extra.is_some() || (all && item.attached && !item.plain))
                    && s.channel().is_some_and(|channel| is_frozen(channel, s.slot.load(Relaxed) as usize))
            })
    }
}

/// What a kept item has to report; reads shared words, and asks the kernel only where the carrier matters.
#[inline]
fn evaluate(item: &mut Item) -> u32 {
    let s = item.socket;
    let Some(channel) = s.channel().filter(|_| !item.plain) else { return evaluate_plain(item) };
    let slot = s.slot.load(Relaxed) as usize;
    let mut now = 0;
    let receives = io::receives_fast(channel, slot);
    let sends = io::sends_fast(channel, slot);
    let (readable, mut ask) = ring_says(channel, slot);
    ask |= item.carrier_news;
    if readable {
        now |= IN;
    }
    if sends {
        if item.events & OUT != 0 && wait::send_room_or_ask(channel, slot, io::tx_ring_bytes(s)) {
            now |= OUT;
        }
    } else {
        ask = true;
    }
    if ask {
        now |= ask_carrier(item, receives, sends);
    }
    now & (item.events | ALWAYS)
}

/// A nameless item of a socket that is the kernel's: the kernel says all.
#[cold]
#[inline(never)]
fn evaluate_plain(item: &Item) -> u32 {
    if !item.plain {
        return 0;
    }
    let asked = (item.events | ALWAYS) & 0xffff;
    sys::poll_now(item.fd, asked as i16) as u16 as u32 & asked
}

#[cold]
#[inline(never)]
fn ask_carrier(item: &mut Item, receives: bool, sends: bool) -> u32 {
    let ev = sys::poll_now(item.fd, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI) as u32;
    let spoke = ev & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    item.carrier_news = spoke != 0;
    item.ended |= spoke & ENDS;
    // Data is news only where the stream is in the ring.
    let expected = if receives { 0 } else { libc::EPOLLIN as u32 };
    if spoke & !expected != 0 {
        item.socket.raise(flag::CARRIER_SPOKE);
    }
    let mut now = spoke;
    if ev & libc::EPOLLIN as u32 != 0 {
        now |= IN;
    }
    if !sends && ev & libc::EPOLLOUT as u32 != 0 {
        now |= OUT;
    }
    if ev & libc::POLLNVAL as u32 != 0 {
        now = 0;
    }
    now
}

/// Makes sure that the set has a waiting place, by which its own process's threads wake those that sleep on it.
fn take_place(e: &'static Epoll) -> Option<u32> {
    // First: from here on the kernel's set may report a tag to a thread that sleeps in it.
    e.active.store(true, SeqCst);
    let mut place = e.place.load(Relaxed);
    if place == 0 {
        place = wait::claim_for_epoll(e.fd.load(Relaxed), tag(DOORBELL))? as u32 + 1;
        e.place.store(place, Release);
    }
    Some(place)
}

/// Makes the set one that has attached sockets, on `channel`.
fn activate(e: &'static Epoll, inner: &mut Inner, channel: &'static Channel) -> bool {
    if e.barred.load(Relaxed) {
        return false;
    }
    let Some(place) = take_place(e) else { return false };
    if !inner.channels.iter().any(|c| core::ptr::eq(*c, channel)) {
        prune(e, inner, place as usize - 1);
        if inner.channels.len() >= WATCHED || !wait::introduce(channel, place as usize - 1, e.fd.load(Relaxed), tag(DOORBELL)) {
            return false;
        }
        service::join_channel(channel);
        let n = inner.channels.len();
        inner.channels.push(channel);
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
    set_notify(&channel.words(slot, channel.side ^ 1).quiet[quiet::NOTIFY], place);
    set_notify(&channel.words(slot, channel.side).producer_quiet[producer_quiet::NOTIFY], place);
    fence(SeqCst);
}

/// Threads that sleep on this set look again.
fn prod(e: &Epoll, inner: &Inner) {
    let place = e.place.load(Relaxed);
    if inner.sleepers > 0 && place != 0 {
        wait::ring_own(place as usize - 1);
    }
}

// ---- epoll_ctl -------------------------------------------------------------------------------------------------

#[inline]
pub(crate) unsafe fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Ret {
    let raw = fd_table::raw(fd);
    if raw == 0 {
        return PASS;
    }
    // SAFETY: the caller's event.
    unsafe { ctl_ours(epfd, op, fd, event, raw) }
}

unsafe fn ctl_ours(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event, raw: u64) -> Ret {
    let mut entry = fd_table::decode(raw);
    if let Entry::Fresh(_) = entry {
        crate::socket::look_again(fd);
        entry = fd_table::get(fd);
        if let Entry::Fresh(_) = entry {
            // In a set before it is connected: what the kernel was told then could not be kept in step.
            if op == libc::EPOLL_CTL_ADD {
                fd_table::refuse(fd, Reason::SeveralEpollSets);
            }
            return PASS;
        }
    }
    let (s, g) = match entry {
        Entry::Socket(s, g) => (s, g),
        Entry::Epoll(inner) => {
            bar(inner);
            return PASS;
        }
        Entry::Internal => return -(libc::EBADF as Ret),
        _ => return PASS,
    };
    let Entry::Epoll(e) = fd_table::get(epfd) else {
        if op == libc::EPOLL_CTL_ADD {
            lifecycle::need_kernel(fd, Reason::SeveralEpollSets);
        }
        return PASS;
    };
    if e.owner.load(Relaxed) != lifecycle::process() || s.is_inherited() {
        lifecycle::need_kernel(fd, Reason::InheritedByFork);
        if e.owner.load(Relaxed) != lifecycle::process() || !s.is(ATTACHED) {
            return PASS;
        }
        // SAFETY: the caller's event.
        return unsafe { ctl_attached(e, epfd, op, fd, event, s, g) };
    }
    loop {
        match s.state.load(SeqCst) {
            CANDIDATE => {
                if op == libc::EPOLL_CTL_MOD && s.offered.load(Acquire) != 0 {
                    io::attach(s, g, fd);
                    if !s.is(CANDIDATE) {
                        continue;
                    }
                }
                // Counted before the kernel knows it, so that an attach either sees it or is seen below.
                // SAFETY: the caller's event.
                match unsafe { ctl_candidate(e, epfd, op, fd, event, s, g) } {
                    Some(r) => return r,
                    None => continue,
                }
            }
            ATTACHING => core::hint::spin_loop(),
            ATTACHED => break,
            _ => return PASS,
        }
    }
    // SAFETY: the caller's event.
    unsafe { ctl_attached(e, epfd, op, fd, event, s, g) }
}

/// The kernel keeps it; recorded for the day it is attached. `None`: it is no candidate any more.
unsafe fn ctl_candidate(e: &'static Epoll, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event, s: &'static Socket, g: u16) -> Option<Ret> {
    let mut inner = e.inner.lock();
    let here = inner.index_of(fd).filter(|i| inner.item_of(*i, s).is_some());
    let adds = op == libc::EPOLL_CTL_ADD && here.is_none();
    let others = if adds { s.registrations.fetch_add(1, SeqCst) } else { 0 };
    if s.state.load(SeqCst) != CANDIDATE || others > 0 {
        if adds {
            s.registrations.fetch_sub(1, SeqCst);
        }
        drop(inner);
        if others > 0 {
            // What the kernel keeps under several names is not followed.
            let _ = io::to_kernel(s, g, fd, several(e, s), false);
        }
        return None;
    }
    // SAFETY: the caller's event.
    let r = unsafe { sys::epoll_ctl(epfd, op, fd, event) };
    if !adds {
        match (op, here) {
            (libc::EPOLL_CTL_DEL, Some(i)) if r == 0 => {
                if let Some(item) = inner.remove(i) {
                    leave(e, &item);
                }
            }
            (libc::EPOLL_CTL_MOD, Some(i)) if r == 0 => {
                // SAFETY: the kernel has just read it.
                let ev = unsafe { event.read_unaligned() };
                if let Some(item) = inner.item(i) {
                    (item.events, item.data) = (ev.events, ev.u64);
                }
            }
            _ => {}
        }
        return Some(r);
    }
    let mut home = None;
    if r == 0 {
        // SAFETY: as above.
        let ev = unsafe { event.read_unaligned() };
        home = put(e, &mut inner, new_item(s, g, fd, ev));
    }
    let Some(i) = home else {
        s.registrations.fetch_sub(1, SeqCst);
        if r == 0 {
            drop(inner);
            let _ = io::to_kernel(s, g, fd, Reason::NoMemory, false);
        }
        return Some(r);
    };
    make_home(e, s, i);
    drop(inner);
    // An attach that did not find it home yet has left it to this thread.
    loop {
        match s.state.load(SeqCst) {
            ATTACHING => core::hint::spin_loop(),
            ATTACHED => {
                take_over(e, s, fd, true);
                return Some(r);
            }
            _ => return Some(r),
        }
    }
}

fn new_item(s: &'static Socket, g: u16, fd: c_int, ev: epoll_event) -> Item {
    Item {
        socket: s,
        generation: g,
        fd,
        events: ev.events,
        data: ev.u64,
        present: true,
        attached: false,
        extra: None,
        stamp: (0, 0),
        nameless: false,
        plain: false,
        queued: false,
        disabled: false,
        carrier_news: true,
        ended: 0,
        reported_in: 0,
    }
}

/// Inserts an item, in the place of what may be left over under its number.
fn put(e: &Epoll, inner: &mut Inner, item: Item) -> Option<u32> {
    if let Some(old) = inner.index_of(item.fd).and_then(|stale| inner.remove(stale)) {
        leave(e, &old);
    }
    inner.insert(item)
}

/// The peer, and whoever looks for the socket's set, finds it here from now on.
fn make_home(e: &'static Epoll, s: &Socket, index: u32) {
    s.item.store(index as u64, Relaxed);
    s.epoll.store((e as *const Epoll).cast_mut(), SeqCst);
    fence(SeqCst);
}

/// Why a socket that is in a set already cannot be put into `e` as well.
fn several(e: &Epoll, s: &Socket) -> Reason {
    if core::ptr::eq(s.epoll.load(Relaxed), e) { Reason::DuplicateInEpoll } else { Reason::SeveralEpollSets }
}

unsafe fn ctl_attached(e: &'static Epoll, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event, s: &'static Socket, g: u16) -> Ret {
    let mut ev = epoll_event { events: 0, u64: 0 };
    if op != libc::EPOLL_CTL_DEL {
        if (event as usize) < 4096 {
            return -(libc::EFAULT as Ret);
        }
        // SAFETY: checked not to be null; the caller's.
        ev = unsafe { event.read_unaligned() };
        let asked = ev.events;
        if asked & EXCLUSIVE != 0 && (op == libc::EPOLL_CTL_MOD || asked & !EXCLUSIVE_OK != 0) {
            return -(libc::EINVAL as Ret);
        }
    }
    let mut inner = e.inner.lock();
    let index = inner.index_of(fd).filter(|i| inner.item_of(*i, s).is_some());
    let r = match (op, index) {
        (libc::EPOLL_CTL_ADD, None) => {
            drop(inner);
            let r = add(e, epfd, fd, ev, s, g);
            inner = e.inner.lock();
            r
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(i)) => {
            let Some(item) = inner.item(i) else { return -(libc::ENOENT as Ret) };
            if item.present == (op == libc::EPOLL_CTL_ADD) {
                return -(if item.present { libc::EEXIST } else { libc::ENOENT } as Ret);
            }
            if op == libc::EPOLL_CTL_MOD && item.events & EXCLUSIVE != 0 {
                return -(libc::EINVAL as Ret);
            }
            (item.events, item.data, item.present, item.disabled) = (ev.events, ev.u64, true, false);
            stats::count(Counter::EpollCtlSaved);
            inner.queue(i);
            prod(e, &inner);
            0
        }
        (libc::EPOLL_CTL_DEL, Some(i)) => {
            let Some(item) = inner.item(i).filter(|item| item.present) else { return -(libc::ENOENT as Ret) };
            if item.extra.is_some() {
                take_out(e, &mut inner, i);
            } else {
                item.present = false;
                stats::count(Counter::EpollCtlSaved);
            }
            0
        }
        // The kernel may have an inherited one.
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) if s.is_inherited() => PASS,
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => -(libc::ENOENT as Ret),
        _ => -(libc::EINVAL as Ret),
    };
    if e.barred.load(Relaxed) {
        light(e, &mut inner);
    }
    r
}

/// Puts an attached socket into the set: at home, if it is in no other; otherwise it goes to the kernel, and only if it cannot go at once
/// becomes an extra item.
fn add(e: &'static Epoll, epfd: c_int, fd: c_int, ev: epoll_event, s: &'static Socket, g: u16) -> Ret {
    let counts = !s.is_inherited();
    let mut extra = (!counts).then_some(Reason::InheritedByFork);
    loop {
        let mut inner = e.inner.lock();
        if s.generation16() != g || !s.is(ATTACHED) {
            return PASS;
        }
        let others = if counts { s.registrations.fetch_add(1, SeqCst) } else { 0 };
        let uncount = || if counts { s.registrations.fetch_sub(1, SeqCst) } else { 0 };
        if extra.is_none() {
            let why = if others > 0 {
                Some(several(e, s))
            } else {
                let here = s.channel().is_some_and(|channel| activate(e, &mut inner, channel));
                (!here).then_some(Reason::NoDescriptor)
            };
            if let Some(why) = why {
                uncount();
                drop(inner);
                if others > 0 && evict(s) {
                    continue;
                }
                if io::to_kernel(s, g, fd, why, false) {
                    return PASS;
                }
                extra = Some(why);
                continue;
            }
        }
        let mut item = new_item(s, g, fd, ev);
        (item.attached, item.extra) = (true, extra);
        let Some(i) = put(e, &mut inner, item) else {
            uncount();
            return -(libc::ENOMEM as Ret);
        };
        if extra.is_some() {
            inner.extras.push(i);
            inner.unsettled = true;
            EXTRAS.fetch_add(1, AcqRel);
            let _ = take_place(e);
        }
        let r = register_carrier(epfd, fd, i);
        if r < 0 {
            inner.remove(i);
            uncount();
            return r;
        }
        if extra.is_none() {
            make_home(e, s, i);
            if let Some(channel) = s.channel() {
                post(e, s, channel);
            }
        }
        inner.fresh = true;
        inner.queue(i);
        prod(e, &inner);
        return 0;
    }
}

/// Takes an item out of the set and of the kernel's; it has a name.
fn take_out(e: &Epoll, inner: &mut Inner, index: u32) {
    let Some(item) = inner.remove(index) else { return };
    if item.attached {
        let mut ev = epoll_event { events: 0, u64: 0 };
        // SAFETY: one valid event; the descriptor is open.
        let _ = unsafe { sys::epoll_ctl(e.fd.load(Relaxed), libc::EPOLL_CTL_DEL, item.fd, &mut ev) };
    }
    leave(e, &item);
}

/// The socket leaves its home if the application has taken it out there. True: look again.
fn evict(s: &'static Socket) -> bool {
    let Some(home) = set_of(s) else { return false };
    let mut inner = home.inner.lock();
    let index = s.item.load(Relaxed) as u32;
    if inner.item_of(index, s).is_none_or(|item| item.present || !item.attached || item.nameless) {
        return false;
    }
    take_out(home, &mut inner, index);
    true
}

/// Puts the carrier into the kernel's set under a tag, whatever stands there for it.
fn register_carrier(epfd: c_int, fd: c_int, index: u32) -> isize {
    let mut ev = epoll_event { events: CARRIER, u64: tag(index) };
    // SAFETY: one valid event.
    let r = unsafe { sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut ev) };
    if r == -(libc::EEXIST as isize) {
        // SAFETY: as above.
        return unsafe { sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &mut ev) };
    }
    r
}

// ---- changes of a socket's state -------------------------------------------------------------------------------

/// The socket's home. (An inherited socket's is its maker's.)
fn set_of(s: &Socket) -> Option<&'static Epoll> {
    // SAFETY: null or a type-stable instance of this process.
    if s.is_inherited() { None } else { unsafe { s.epoll.load(SeqCst).as_ref() } }
}

/// Calls `f` for every set that may hold the socket, some perhaps twice.
fn for_each_set_of(s: &Socket, mut f: impl FnMut(&'static Epoll)) {
    if EXTRAS.load(Acquire) != 0 {
        fd_table::for_each(|_, entry| {
            if let Entry::Epoll(e) = entry
                && e.owner.load(Relaxed) == lifecycle::process()
            {
                f(e);
            }
        });
    } else if let Some(e) = set_of(s) {
        f(e);
    }
}

/// Whether the socket can be attached now as far as its set is concerned.
pub(crate) fn may_attach(s: &Socket) -> bool {
    let Some(e) = set_of(s) else { return true };
    // Not in a signal handler that interrupted a call on the set.
    let Some(mut inner) = e.inner.try_lock() else { return false };
    let index = s.item.load(Relaxed) as u32;
    inner.item_of(index, s).is_none_or(|item| item.events & ONESHOT == 0)
}

/// A candidate became attached: what the kernel kept for it is kept here from now on.
pub(crate) fn on_attached(s: &'static Socket, fd: c_int) {
    if let Some(e) = set_of(s) {
        // Attached only by the call that arms it (`ctl_ours`).
        take_over(e, s, fd, false);
    }
}

/// Takes an attached socket's registration over from the kernel. `armed`: one with ONESHOT has not fired.
fn take_over(e: &'static Epoll, s: &'static Socket, fd: c_int, armed: bool) {
    let mut inner = e.inner.lock();
    let index = s.item.load(Relaxed) as u32;
    let Some(channel) = s.channel() else { return };
    let Some((item_fd, attached)) = inner.item_of(index, s).map(|i| (i.fd, i.attached)) else { return };
    if attached && !armed {
        return;
    }
    if !attached && (!activate(e, &mut inner, channel) || register_carrier(e.fd.load(Relaxed), item_fd, index) < 0) {
        drop(inner);
        lifecycle::need_kernel(fd, Reason::NoDescriptor);
        return;
    }
    if let Some(item) = inner.item(index) {
        item.attached = true;
        item.carrier_news = true;
        item.disabled = !armed && item.events & ONESHOT != 0;
    }
    inner.fresh = true;
    post(e, s, channel);
    inner.queue(index);
    prod(e, &inner);
}

/// The socket is plain now: the kernel gets back what the application asked for.
pub(crate) fn on_plain(s: &'static Socket) {
    for_each_set_of(s, |e| {
        let mut inner = e.inner.lock();
        let mut from = 0;
        while let Some(index) = its_next(&inner, e, s, from) {
            from = index + 1;
            hand_back(e, &mut inner, index);
        }
    });
}

/// The first item of the socket's in this set, from index `from` on.
fn its_next(inner: &Inner, e: &Epoll, s: &Socket, from: u32) -> Option<u32> {
    if EXTRAS.load(Relaxed) != 0 {
        return inner.next_of(s, from);
    }
    // Only its home, under a known index.
    let index = s.item.load(Relaxed) as u32;
    let home = from <= index && core::ptr::eq(s.epoll.load(Relaxed), e);
    let its = |item: &Item| core::ptr::eq(item.socket, s) && item.generation == s.generation16();
    (home && inner.items.get(index as usize).is_some_and(|item| item.as_ref().is_some_and(its))).then_some(index)
}

/// Registers an item's descriptor in the kernel's set as the application asked for it.
fn give_to_kernel(epfd: c_int, item: &Item) {
    let events = if item.disabled { ONESHOT } else { item.events };
    let mut ev = epoll_event { events, u64: item.data };
    let mut ctl = |op| {
        // SAFETY: one valid event.
        let _ = unsafe { sys::epoll_ctl(epfd, op, item.fd, &mut ev) };
    };
    if item.present && events & EXCLUSIVE == 0 {
        ctl(libc::EPOLL_CTL_MOD);
        return;
    }
    ctl(libc::EPOLL_CTL_DEL);
    if item.present {
        // EXCLUSIVE can only be added.
        ctl(libc::EPOLL_CTL_ADD);
    }
}

fn hand_back(e: &Epoll, inner: &mut Inner, index: u32) {
    if let Some(item) = inner.item(index).filter(|item| item.nameless) {
        item.plain = true;
        inner.queue(index);
        prod(e, inner);
        return;
    }
    let Some(item) = inner.remove(index) else { return };
    if item.attached {
        give_to_kernel(e.fd.load(Relaxed), &item);
    }
    leave(e, &item);
}

/// A descriptor of the socket is about to be closed; -1: one was, and nobody told us which.
pub(crate) fn forget(s: &'static Socket, fd: c_int) {
    let last = s.refs.load(Relaxed) <= 1;
    for_each_set_of(s, |e| forget_in(e, s, fd, last));
}

/// As [`forget`], in one set. `last`: no other descriptor of it is open anywhere.
fn forget_in(e: &'static Epoll, s: &'static Socket, fd: c_int, last: bool) {
    if e.owner.load(Relaxed) != lifecycle::process() {
        return;
    }
    let mut from = 0;
    loop {
        // A signal handler that interrupted a call on this very set leaves the item to the set's next look.
        let Some(mut inner) = e.inner.lock_unless_mine() else { return };
        let Some(i) = its_next(&inner, e, s, from) else { return };
        from = i + 1;
        let Some(item) = inner.item(i) else { return };
        if last {
            if let Some(item) = inner.remove(i) {
                leave(e, &item);
            }
            let place = e.place.load(Relaxed) as usize;
            if place != 0 && s.channel().is_some_and(|c| c.dead.load(Acquire) != 0) {
                prune(e, &mut inner, place - 1);
            }
            continue;
        }
        if item.fd != fd && (fd >= 0 || names(item.fd, s)) {
            continue;
        }
        if item.nameless {
            lose_name(e, &mut inner, i);
            continue;
        }
        if !item.present {
            take_out(e, &mut inner, i);
            continue;
        }
        // The kernel goes on reporting a closed descriptor whose file lives on (epoll(7), Q6): let it, as the application put it.
        let mut name = item.fd;
        if fd < 0 && item.attached {
            // Too late to change what the kernel has.
            lose_name(e, &mut inner, i);
            name = inner.item_of(i, s).map_or(-1, |item| item.fd);
        }
        drop(inner);
        let plain = io::to_kernel(s, s.generation16(), name, Reason::DuplicateInEpoll, false);
        let Some(mut inner) = e.inner.lock_unless_mine() else { return };
        let Some(item) = inner.item_of(i, s).filter(|item| !item.nameless) else { continue };
        if item.attached && !plain {
            lose_name(e, &mut inner, i);
        } else if let Some(item) = inner.remove(i) {
            leave(e, &item);
        }
    }
}

/// Whether the table says that `fd` is the socket's.
fn names(fd: c_int, s: &Socket) -> bool {
    fd_table::socket(fd).is_some_and(|(now, g)| core::ptr::eq(now, s) && g == s.generation16())
}

/// The number of a registered, attached socket is closed: the item goes on under another, if this process has one.
fn lose_name(e: &Epoll, inner: &mut Inner, index: u32) {
    let Some(item) = inner.item(index) else { return };
    let (s, old, was_nameless) = (item.socket, item.fd, item.nameless);
    let mut other = -1;
    fd_table::for_each(|fd, _| {
        if other < 0 && fd != old && names(fd, s) {
            other = fd;
        }
    });
    if other < 0 && !was_nameless {
        take_out(e, inner, index);
    } else if other < 0 {
        if let Some(item) = inner.remove(index) {
            leave(e, &item);
        }
    } else {
        inner.forget_number(old, index);
        if let Some(item) = inner.item(index) {
            item.fd = other;
            item.nameless = true;
        }
        inner.unsettled = true;
    }
}

/// The set is itself polled, or shared with another process: its sockets go back to the kernel, and none comes here again.
#[cold]
pub(crate) fn bar(e: &'static Epoll) {
    let before = e.barred.swap(true, SeqCst);
    if !e.active.load(Acquire) {
        return;
    }
    let mut inner = e.inner.lock();
    if !before {
        let mut fds = Vec::new();
        for item in inner.items.iter().flatten().filter(|i| i.attached) {
            fds.push(item.fd);
        }
        drop(inner);
        for fd in fds {
            lifecycle::need_kernel(fd, Reason::SeveralEpollSets);
        }
        inner = e.inner.lock();
        inner.unsettled = true;
        inner.settle_at = 0;
    }
    inner.drain(e);
    inner = settle(e, inner);
    light(e, &mut inner);
}

/// Gives those sockets to the kernel that could not go at once. Without the lock in between: it may take a while.
#[cold]
#[inline(never)]
fn settle(e: &'static Epoll, mut inner: Guard<'static, Inner>) -> Guard<'static, Inner> {
    let barred = e.barred.load(Relaxed);
    let waits = |item: &Item| item.attached && !item.plain && (barred || item.extra.is_some() || item.nameless);
    let now = sys::now_ns();
    if now < inner.settle_at {
        return inner;
    }
    let mut ready = Vec::new();
    for item in inner.items.iter().flatten().filter(|item| waits(item)) {
        let s = item.socket;
        if s.channel().is_some_and(|c| is_released(c, s.slot.load(Relaxed) as usize)) {
            ready.push((s, item.generation, item.fd, item.extra.unwrap_or(Reason::SeveralEpollSets)));
        }
    }
    let mut all = true;
    if !ready.is_empty() {
        drop(inner);
        for (s, g, fd, why) in ready {
            all &= io::to_kernel(s, g, fd, why, false);
        }
        inner = e.inner.lock();
    }
    inner.settle_after = if all { AGAIN_NS } else { (inner.settle_after * 2).clamp(AGAIN_NS, AGAIN_MAX_NS) };
    inner.settle_at = sys::now_ns().saturating_add(inner.settle_after);
    for i in 0..inner.items.len() as u32 {
        // Given to the kernel by another process, or before it was put in here.
        if inner.item(i).is_some_and(|item| waits(item) && !item.socket.is(ATTACHED)) {
            hand_back(e, &mut inner, i);
        }
    }
    inner.unsettled = inner.items.iter().flatten().any(waits);
    if barred && inner.items.iter().flatten().all(|item| !item.attached) {
        // Nothing is left but doorbells, which would make the set look ready to whoever polls it.
        unlight(e, &mut inner);
        let place = e.place.swap(0, AcqRel) as usize;
        if place != 0 {
            wait::leave_set(place - 1, e.fd.load(Relaxed), &inner.channels);
            leave_channels(e, &mut inner);
            wait::give_back(place - 1);
        }
        e.active.store(false, Release);
    }
    inner
}

/// Makes a set that is itself polled look ready exactly as long as an item of it may be. (What the kernel keeps speaks for itself.)
#[cold]
#[inline(never)]
fn light(e: &Epoll, inner: &mut Inner) {
    if inner.ready.is_empty() && !inner.hears_not_all(true) {
        unlight(e, inner);
        return;
    }
    if inner.lit {
        return;
    }
    if inner.beacon < 0 {
        inner.beacon = numbers::make(|| sys::eventfd(1, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC));
    }
    let mut ev = epoll_event { events: libc::EPOLLIN as u32, u64: tag(DOORBELL) };
    // SAFETY: one valid event.
    inner.lit = inner.beacon >= 0 && unsafe { sys::epoll_ctl(e.fd.load(Relaxed), libc::EPOLL_CTL_ADD, inner.beacon, &mut ev) } >= 0;
}

fn unlight(e: &Epoll, inner: &mut Inner) {
    if core::mem::take(&mut inner.lit) {
        let mut ev = epoll_event { events: 0, u64: 0 };
        // SAFETY: one valid event.
        let _ = unsafe { sys::epoll_ctl(e.fd.load(Relaxed), libc::EPOLL_CTL_DEL, inner.beacon, &mut ev) };
    }
}

// ---- epoll_wait ------------------------------------------------------------------------------------------------

#[inline]
pub(crate) unsafe fn wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ns: i64, mask: Mask) -> Ret {
    let Entry::Epoll(e) = fd_table::get(epfd) else { return PASS };
    if !e.active.load(Acquire) {
        return PASS;
    }
    if e.owner.load(Relaxed) != lifecycle::process() {
        inherited(e);
        return PASS;
    }
    if max <= 0 || max as usize > isize::MAX as usize / size_of::<epoll_event>() {
        return -(libc::EINVAL as Ret);
    }
    if (events as usize) < 4096 {
        return -(libc::EFAULT as Ret);
    }
    // SAFETY: the caller's buffer of `max` events.
    let r = unsafe { look(e, epfd, Out { events, max: max as usize, n: 0 }, timeout_ns, mask) };
    if e.barred.load(Relaxed) {
        light(e, &mut e.inner.lock());
    }
    r
}

#[inline]
unsafe fn look(e: &'static Epoll, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    let mut inner = e.inner.lock();
    inner.wait = inner.wait.wrapping_add(1);
    prune_if_due(e, &mut inner);
    if inner.unsettled {
        inner = settle(e, inner);
    }
    inner.drain(e);
    let now = sys::ticks();
    // A buffer that is always full of sockets must not keep the kernel's descriptors out either; nor they the sockets, where it has one place.
    let full = out.max <= inner.ready.len();
    let overdue = inner.backlog || inner.wait.is_multiple_of(32) || now.wrapping_sub(inner.last_visit) > KERNEL_VISIT_TICKS;
    let due = overdue || inner.fresh || (full && inner.wait.is_multiple_of(8));
    if due && (full || inner.fresh) && (out.max > 1 || inner.wait.is_multiple_of(2)) {
        // The buffer cannot hold all: the kernel's descriptors go first this time.
        inner.last_visit = now;
        let room = (out.max / 2).max(1);
        visit(&mut inner, e, epfd, &mut out, room);
    }
    collect(&mut inner, e, &mut out);
    if out.n > 0 {
        let room = out.max - out.n;
        if due && room > 0 && inner.last_visit != now {
            inner.last_visit = now;
            visit(&mut inner, e, epfd, &mut out, room);
        }
        if inner.sleepers > 0 && !inner.ready.is_empty() {
            prod(e, &inner);
        }
        return out.n as Ret;
    }
    // SAFETY: `out` is the caller's buffer.
    unsafe { wait_slow(e, inner, epfd, out, timeout_ns, mask) }
}

/// The application's event buffer.
struct Out {
    events: *mut epoll_event,
    max: usize,
    n: usize,
}

impl Out {
    #[inline]
    fn push(&mut self, events: u32, data: u64) {
        if self.n < self.max {
            // SAFETY: below `max`, the length that the application gave.
            unsafe { self.events.add(self.n).write_unaligned(epoll_event { events, u64: data }) };
            self.n += 1;
        }
    }
}

/// Reports what is ready, each queued item at most once.
#[inline]
fn collect(inner: &mut Inner, e: &'static Epoll, out: &mut Out) {
    for _ in 0..inner.ready.len() {
        if out.n == out.max {
            return;
        }
        let Some(index) = inner.ready.pop_front() else { return };
        let Some(Some(item)) = inner.items.get_mut(index as usize) else { continue };
        if item.reported_in == inner.wait {
            inner.ready.push_back(index);
            continue;
        }
        item.queued = false;
        if !item.present || item.disabled {
            continue;
        }
        if item.socket.generation16() != item.generation {
            // Closed where the set could not be told.
            inner.remove(index);
            continue;
        }
        if !item.plain && !item.socket.is(ATTACHED) {
            // Made plain by another process that shares it.
            hand_back(e, inner, index);
            continue;
        }
        let now = evaluate(item);
        if now == 0 {
            continue;
        }
        out.push(now, item.data);
        item.reported_in = inner.wait;
        if item.events & ONESHOT != 0 {
            item.disabled = true;
        } else if item.events & ET == 0 {
            item.queued = true;
            inner.ready.push_back(index);
        }
    }
}

/// Sorts one event of the kernel's: the application's own goes out, ours queues its item.
#[inline]
fn sort(inner: &mut Inner, ev: epoll_event, out: &mut Out) {
    let (bits, data) = (ev.events, ev.u64);
    match untag(data) {
        None => out.push(bits, data),
        Some(DOORBELL) => stats::count(Counter::Wakeups),
        Some(index) => {
            if let Some(item) = inner.item(index) {
                let end = bits & ENDS;
                let known = end & !item.ended == 0;
                item.ended |= end;
                let data = bits & (libc::EPOLLIN | libc::EPOLLPRI) as u32 != 0;
                let room = bits & libc::EPOLLOUT as u32 != 0 && item.events & OUT != 0;
                let fast = item.socket.channel().is_some_and(|c| io::sends_fast(c, item.socket.slot.load(Relaxed) as usize));
                // Room on a carrier that carries nothing is no news, nor is an end that was reported before.
                if (end != 0 && known && item.events & ET != 0) || (!data && end == 0 && (!room || fast)) {
                    return;
                }
                item.carrier_news = true;
            }
            inner.queue(index);
        }
    }
}

/// Looks at the kernel's set without waiting.
fn visit(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out, room: usize) {
    if room == 0 {
        return;
    }
    stats::count(Counter::KernelEpollVisits);
    let mut local = [epoll_event { events: 0, u64: 0 }; 32];
    let room = room.min(local.len());
    // SAFETY: a buffer of that many events.
    let r = unsafe { sys::epoll_wait(epfd, local.as_mut_ptr(), room as c_int, 0, core::ptr::null()) };
    inner.backlog = r == room as isize;
    inner.fresh = false;
    for ev in local.iter().take(r.max(0) as usize) {
        sort(inner, *ev, out);
    }
    collect(inner, e, out);
}

#[cold]
#[inline(never)]
unsafe fn wait_slow(e: &'static Epoll, mut inner: Guard<'static, Inner>, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    if timeout_ns == 0 {
        inner.last_visit = sys::ticks();
        let room = out.max - out.n;
        visit(&mut inner, e, epfd, &mut out, room);
        return out.n as Ret;
    }
    let deadline = if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    loop {
        let place = (e.place.load(Relaxed) as usize).checked_sub(1);
        if !e.active.load(Acquire) || (place.is_none() && inner.extras.is_empty()) {
            return PASS;
        }
        if mask.is_null() {
            let same_cpu = inner.channels.iter().filter(|c| c.dead.load(Relaxed) == 0).all(|c| {
                c.note_cpu();
                c.peer_shares_cpu()
            });
            let last = inner.last_visit;
            drop(inner);
            let won = spin(e, same_cpu, epfd, last);
            inner = e.inner.lock();
            if won {
                inner.drain(e);
                collect(&mut inner, e, &mut out);
                if out.n == 0 {
                    inner.last_visit = sys::ticks();
                    let room = out.max - out.n;
                    visit(&mut inner, e, epfd, &mut out, room);
                }
                if out.n > 0 {
                    return out.n as Ret;
                }
            }
        }
        for c in &inner.channels {
            c.my_place(place.unwrap_or(0)).prepare_sleep();
        }
        fence(SeqCst);
        inner.drain(e);
        collect(&mut inner, e, &mut out);
        if out.n > 0 {
            wake_up(&inner, place);
            return out.n as Ret;
        }
        let mut left = wait::left(deadline);
        // What nobody rings for is looked for.
        let looks = !inner.extras.is_empty() && (place.is_none() || inner.hears_not_all(false));
        if looks && !(0..=LOOK_NS).contains(&left) {
            left = LOOK_NS;
        }
        unlight(e, &mut inner);
        inner.sleepers += 1;
        drop(inner);
        let mut local = [epoll_event { events: 0, u64: 0 }; 64];
        let room = out.max.min(local.len());
        stats::count(Counter::Sleeps);
        // SAFETY: a buffer of that many events; the caller's mask.
        let r = unsafe { sys::epoll_wait(epfd, local.as_mut_ptr(), room as c_int, left, mask) };
        inner = e.inner.lock();
        inner.sleepers = inner.sleepers.saturating_sub(1);
        inner.last_visit = sys::ticks();
        inner.backlog = r == room as isize;
        inner.fresh = false;
        wake_up(&inner, place);
        if r < 0 {
            return r;
        }
        for ev in local.iter().take(r as usize) {
            sort(&mut inner, *ev, &mut out);
        }
        inner.drain(e);
        collect(&mut inner, e, &mut out);
        if out.n > 0 {
            if !inner.ready.is_empty() {
                prod(e, &inner);
            }
            return out.n as Ret;
        }
        if (r == 0 && !looks) || (deadline != 0 && sys::now_ns() >= deadline) {
            return 0;
        }
        // News that was no event of the application's.
        prune_if_due(e, &mut inner);
        if inner.unsettled {
            inner = settle(e, inner);
        }
    }
}

/// This thread does not sleep any more; others may.
fn wake_up(inner: &Inner, place: Option<usize>) {
    let Some(place) = place else { return };
    for c in &inner.channels {
        if inner.sleepers == 0 {
            c.my_place(place).cancel_sleep();
        } else {
            c.my_place(place).prepare_sleep();
        }
    }
}

/// Polls the channels, and now and then the kernel's set.
fn spin(e: &'static Epoll, same_cpu: bool, epfd: c_int, last_visit: u64) -> bool {
    let mut last = last_visit;
    wait::spin(same_cpu, || {
        let n = e.watching.load(Acquire);
        for w in e.watch.iter().take(n) {
            // SAFETY: within a channel that this set has joined, which keeps it mapped.
            if unsafe { w.load(Relaxed).as_ref() }.is_some_and(|set| !set.is_empty()) {
                return true;
            }
        }
        let now = sys::ticks();
        if now.wrapping_sub(last) > KERNEL_VISIT_TICKS / 2 {
            last = now;
            return sys::poll_now(epfd, libc::POLLIN) != 0;
        }
        false
    })
}

/// The kernel's wait returned events of a set that has come to have attached sockets meanwhile.
#[inline]
pub(crate) unsafe fn on_wait(epfd: c_int, events: *mut epoll_event, n: c_int) -> c_int {
    let Entry::Epoll(e) = fd_table::get(epfd) else { return n };
    // A set that a child inherited still holds its parent's tags.
    let inherited = e.owner.load(Relaxed) != lifecycle::process();
    if !e.active.load(Acquire) && !inherited {
        return n;
    }
    let mut inner = e.inner.lock();
    let mut out = Out { events, max: n.max(0) as usize, n: 0 };
    for i in 0..n.max(0) as usize {
        // SAFETY: below `n`; the write position never passes the read position.
        let ev = unsafe { events.add(i).read_unaligned() };
        sort(&mut inner, ev, &mut out);
    }
    out.n as c_int
}

/// A forked child uses its parent's set: what is kept here is the parent's; the sockets go back to the kernel.
#[cold]
fn inherited(e: &'static Epoll) {
    let mut inner = e.inner.lock();
    EXTRAS.fetch_sub(inner.extras.len() as u32, AcqRel);
    inner.extras.clear();
    inner.unsettled = false;
    for item in core::mem::take(&mut inner.items).into_iter().flatten().filter(|i| i.attached) {
        // The kernel's set is all that the child has: nothing may stay in the ring.
        let _ = io::to_kernel(item.socket, item.generation, item.fd, Reason::InheritedByFork, true);
        give_to_kernel(e.fd.load(Relaxed), &item);
    }
    e.active.store(false, Release);
}
