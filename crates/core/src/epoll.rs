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
//! kernel first.

use crate::api::{Mask, PASS, Ret};
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry};
use crate::lock::{Guard, Mutex};
use crate::socket::{ATTACHED, ATTACHING, CANDIDATE, Socket, flag};
use crate::{io, lifecycle, service, stats, sys, wait};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};
use libc::epoll_event;
use netacc_control::stats::{Counter, Reason};
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
    /// Number of the present wait.
    wait: u64,
    /// [`service::deaths`] when channels were last let go.
    deaths: u32,
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
                wait: 1,
                deaths: 0,
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
    inner.items.clear();
    inner.free.clear();
    inner.by_fd.clear();
    inner.ready.clear();
    leave_channels(e, &mut inner);
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

/// The socket is no longer in this set.
fn leave(e: &Epoll, item: &Item) {
    let s = item.socket;
    if s.generation16() != item.generation {
        return;
    }
    s.registrations.fetch_sub(1, AcqRel);
    if core::ptr::eq(s.epoll.load(Acquire), e) {
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
        if let Some(i) = self.by_fd.get_mut(item.fd as usize).filter(|i| **i == index) {
            *i = NO_ITEM;
        }
        if item.queued {
            self.ready.retain(|i| *i != index);
        }
        self.free.push(index);
        Some(item)
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

/// What a kept item has to report; reads shared words, and asks the kernel only where the carrier matters.
#[inline]
fn evaluate(item: &mut Item) -> u32 {
    let s = item.socket;
    let Some(channel) = s.channel() else { return 0 };
    let slot = s.slot.load(Relaxed) as usize;
    let rx = channel.words(slot, channel.side ^ 1);
    let mut now = 0;
    let mut ask = item.carrier_news;
    let receives = io::receives_fast(channel, slot);
    let sends = io::sends_fast(channel, slot);
    if rx.tail.load(Acquire) != rx.head.load(Relaxed) {
        now |= IN;
    } else if !receives || rx.producer_user[announce::EPOCH].load(Acquire) as u32 != rx.quiet[quiet::ACK].load(Relaxed) as u32 {
        ask = true;
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

/// Makes the set one that has attached sockets, on `channel`.
fn activate(e: &'static Epoll, inner: &mut Inner, channel: &'static Channel) -> bool {
    if e.barred.load(Relaxed) {
        return false;
    }
    // First: from here on the kernel's set may report a tag to a thread that sleeps in it.
    e.active.store(true, SeqCst);
    let mut place = e.place.load(Relaxed);
    if place == 0 {
        let Some(p) = wait::claim_for_epoll(e.fd.load(Relaxed), tag(DOORBELL)) else { return false };
        place = p as u32 + 1;
        e.place.store(place, Release);
    }
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
        return PASS;
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

/// The kernel keeps it; recorded for the day it is attached. `None`: it was attached meanwhile.
unsafe fn ctl_candidate(e: &'static Epoll, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event, s: &'static Socket, g: u16) -> Option<Ret> {
    let mut inner = e.inner.lock();
    s.registrations.fetch_add(1, SeqCst);
    if s.state.load(SeqCst) != CANDIDATE {
        s.registrations.fetch_sub(1, SeqCst);
        return None;
    }
    // SAFETY: the caller's event.
    let r = unsafe { sys::epoll_ctl(epfd, op, fd, event) };
    let mut added = false;
    if r == 0 {
        let stale = inner.index_of(fd);
        match op {
            libc::EPOLL_CTL_ADD => {
                if let Some(i) = stale {
                    inner.remove(i);
                }
                // SAFETY: the kernel has just read it.
                let ev = unsafe { event.read_unaligned() };
                let item = Item {
                    socket: s,
                    generation: g,
                    fd,
                    events: ev.events,
                    data: ev.u64,
                    present: true,
                    attached: false,
                    queued: false,
                    disabled: false,
                    carrier_news: false,
                    ended: 0,
                    reported_in: 0,
                };
                if let Some(i) = inner.insert(item) {
                    s.item.store(i as u64, Relaxed);
                    s.epoll.store((e as *const Epoll).cast_mut(), Release);
                    added = true;
                }
            }
            libc::EPOLL_CTL_DEL => {
                if let Some(item) = stale.and_then(|i| inner.remove(i)) {
                    leave(e, &item);
                }
            }
            _ => {
                // SAFETY: as above.
                let ev = unsafe { event.read_unaligned() };
                if let Some(item) = stale.and_then(|i| inner.item(i)) {
                    (item.events, item.data) = (ev.events, ev.u64);
                }
            }
        }
    }
    if !added {
        s.registrations.fetch_sub(1, SeqCst);
    }
    Some(r)
}

unsafe fn ctl_attached(e: &'static Epoll, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event, s: &'static Socket, g: u16) -> Ret {
    if op != libc::EPOLL_CTL_DEL && (event as usize) < 4096 {
        return -(libc::EFAULT as Ret);
    }
    if op != libc::EPOLL_CTL_DEL {
        // SAFETY: checked not to be null; the caller's.
        let asked = unsafe { event.read_unaligned() }.events;
        if asked & EXCLUSIVE != 0 && (op == libc::EPOLL_CTL_MOD || asked & !EXCLUSIVE_OK != 0) {
            return -(libc::EINVAL as Ret);
        }
    }
    let mut inner = e.inner.lock();
    let mut index = inner.index_of(fd);
    if let Some(i) = index
        && inner.item(i).is_none_or(|item| item.generation != g || !core::ptr::eq(item.socket, s))
    {
        inner.remove(i);
        index = None;
    }
    match (op, index) {
        (libc::EPOLL_CTL_ADD, None) => {
            let elsewhere = !s.epoll.load(Acquire).is_null();
            let Some(channel) = s.channel().filter(|_| !elsewhere) else {
                drop(inner);
                let why = if elsewhere && core::ptr::eq(s.epoll.load(Relaxed), e) { Reason::DuplicateInEpoll } else { Reason::SeveralEpollSets };
                lifecycle::need_kernel(fd, why);
                return PASS;
            };
            if !activate(e, &mut inner, channel) {
                drop(inner);
                lifecycle::need_kernel(fd, Reason::NoDescriptor);
                return PASS;
            }
            // SAFETY: checked not to be null; the caller's.
            let ev = unsafe { event.read_unaligned() };
            let item = Item {
                socket: s,
                generation: g,
                fd,
                events: ev.events,
                data: ev.u64,
                present: true,
                attached: true,
                queued: false,
                disabled: false,
                carrier_news: true,
                ended: 0,
                reported_in: 0,
            };
            let Some(i) = inner.insert(item) else { return -(libc::ENOMEM as Ret) };
            let r = register_carrier(epfd, fd, i);
            if r < 0 {
                inner.remove(i);
                return r;
            }
            s.registrations.fetch_add(1, SeqCst);
            s.item.store(i as u64, Relaxed);
            s.epoll.store((e as *const Epoll).cast_mut(), Release);
            post(e, s, channel);
            inner.queue(i);
            prod(e, &inner);
            0
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(i)) => {
            let Some(item) = inner.item(i) else { return -(libc::ENOENT as Ret) };
            if item.present == (op == libc::EPOLL_CTL_ADD) {
                return -(if item.present { libc::EEXIST } else { libc::ENOENT } as Ret);
            }
            if op == libc::EPOLL_CTL_MOD && item.events & EXCLUSIVE != 0 {
                return -(libc::EINVAL as Ret);
            }
            // SAFETY: checked not to be null; the caller's.
            let ev = unsafe { event.read_unaligned() };
            (item.events, item.data, item.present, item.disabled) = (ev.events, ev.u64, true, false);
            stats::count(Counter::EpollCtlSaved);
            inner.queue(i);
            prod(e, &inner);
            0
        }
        (libc::EPOLL_CTL_DEL, Some(i)) => {
            let Some(item) = inner.item(i).filter(|item| item.present) else { return -(libc::ENOENT as Ret) };
            item.present = false;
            stats::count(Counter::EpollCtlSaved);
            0
        }
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => -(libc::ENOENT as Ret),
        _ => -(libc::EINVAL as Ret),
    }
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

fn set_of(s: &Socket) -> Option<&'static Epoll> {
    // SAFETY: null or a type-stable instance.
    unsafe { s.epoll.load(Acquire).as_ref() }
}

/// Whether the socket can be attached now as far as its set is concerned.
pub(crate) fn may_attach(s: &Socket) -> bool {
    let Some(e) = set_of(s) else { return true };
    // Not in a signal handler that interrupted a call on the set.
    let Some(mut inner) = e.inner.try_lock() else { return false };
    let index = s.item.load(Relaxed) as u32;
    inner.item(index).is_none_or(|item| item.events & ONESHOT == 0)
}

/// A candidate became attached: what the kernel kept for it is kept here from now on.
pub(crate) fn on_attached(s: &'static Socket, fd: c_int) {
    let Some(e) = set_of(s) else { return };
    let mut inner = e.inner.lock();
    let index = s.item.load(Relaxed) as u32;
    let Some(channel) = s.channel() else { return };
    let Some((item_fd, generation)) = inner.item(index).map(|i| (i.fd, i.generation)) else { return };
    if generation != s.generation16() {
        return;
    }
    if !activate(e, &mut inner, channel) || register_carrier(e.fd.load(Relaxed), item_fd, index) < 0 {
        drop(inner);
        lifecycle::need_kernel(fd, Reason::NoDescriptor);
        return;
    }
    if let Some(item) = inner.item(index) {
        item.attached = true;
        item.carrier_news = true;
        // Attached only by the call that arms it (`ctl_ours`).
        item.disabled = item.events & ONESHOT != 0;
    }
    post(e, s, channel);
    inner.queue(index);
    prod(e, &inner);
}

/// The socket is plain now: the kernel gets back what the application asked for.
pub(crate) fn on_plain(s: &'static Socket) {
    let Some(e) = set_of(s) else { return };
    let mut inner = e.inner.lock();
    let index = s.item.load(Relaxed) as u32;
    hand_back(e, &mut inner, index);
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
    let Some(item) = inner.remove(index) else { return };
    if item.attached {
        give_to_kernel(e.fd.load(Relaxed), &item);
    }
    leave(e, &item);
}

/// A descriptor of the socket is about to be closed.
pub(crate) fn forget(s: &'static Socket, fd: c_int) {
    let Some(e) = set_of(s) else { return };
    if e.owner.load(Relaxed) != lifecycle::process() {
        return;
    }
    // A signal handler that interrupted a call on this very set leaves the item to the set's next look.
    let Some(mut inner) = e.inner.lock_unless_mine() else { return };
    let index = s.item.load(Relaxed) as u32;
    if s.refs.load(Relaxed) > 1
        && fd >= 0
        && inner.item(index).is_some_and(|item| core::ptr::eq(item.socket, s) && item.fd == fd && item.present && item.attached)
    {
        // The kernel goes on reporting a closed descriptor whose file lives on (epoll(7), Q6): let it.
        drop(inner);
        let _ = io::to_kernel(s, s.generation16(), fd, Reason::DuplicateInEpoll, false);
        return;
    }
    if inner.item(index).is_some_and(|item| core::ptr::eq(item.socket, s) && (item.fd == fd || fd < 0))
        && let Some(item) = inner.remove(index)
    {
        if item.attached && s.refs.load(Relaxed) > 1 {
            let mut ev = epoll_event { events: 0, u64: 0 };
            // SAFETY: one valid event; the descriptor is still open.
            let _ = unsafe { sys::epoll_ctl(e.fd.load(Relaxed), libc::EPOLL_CTL_DEL, item.fd, &mut ev) };
        }
        leave(e, &item);
        let place = e.place.load(Relaxed) as usize;
        if place != 0 && s.channel().is_some_and(|c| c.dead.load(Acquire) != 0) {
            prune(e, &mut inner, place - 1);
        }
    }
}

/// The set is itself polled, or shared with another process: its sockets go back to the kernel, and none comes here again.
#[cold]
pub(crate) fn bar(e: &'static Epoll) {
    e.barred.store(true, SeqCst);
    if !e.active.load(Acquire) {
        return;
    }
    let mut fds = Vec::new();
    for item in e.inner.lock().items.iter().flatten().filter(|i| i.attached) {
        fds.push(item.fd);
    }
    for fd in fds {
        lifecycle::need_kernel(fd, Reason::SeveralEpollSets);
    }
    // The doorbells would make the set look ready to whoever polls it.
    let mut inner = e.inner.lock();
    let place = e.place.swap(0, AcqRel) as usize;
    if place != 0 && inner.items.iter().flatten().all(|i| !i.attached) {
        wait::leave_set(place - 1, e.fd.load(Relaxed), &inner.channels);
        leave_channels(e, &mut inner);
        wait::give_back(place - 1);
        e.active.store(false, Release);
    } else {
        e.place.store(place as u32, Release);
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
    let mut out = Out { events, max: max as usize, n: 0 };
    let mut inner = e.inner.lock();
    inner.wait = inner.wait.wrapping_add(1);
    prune_if_due(e, &mut inner);
    inner.drain(e);
    let now = sys::ticks();
    // A buffer that is always full of sockets must not keep the kernel's descriptors out either; nor they the sockets, where it has one place.
    let full = out.max <= inner.ready.len();
    let overdue = inner.backlog || inner.wait.is_multiple_of(32) || now.wrapping_sub(inner.last_visit) > KERNEL_VISIT_TICKS;
    let due = overdue || (full && inner.wait.is_multiple_of(8));
    if due && full && (out.max > 1 || inner.wait.is_multiple_of(2)) {
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
        if !item.socket.is(ATTACHED) {
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
        let Some(place) = (e.place.load(Relaxed) as usize).checked_sub(1) else { return PASS };
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
            c.my_place(place).prepare_sleep();
        }
        fence(SeqCst);
        inner.drain(e);
        collect(&mut inner, e, &mut out);
        if out.n > 0 {
            wake_up(&inner, place);
            return out.n as Ret;
        }
        inner.sleepers += 1;
        drop(inner);
        let mut local = [epoll_event { events: 0, u64: 0 }; 64];
        let room = out.max.min(local.len());
        stats::count(Counter::Sleeps);
        // SAFETY: a buffer of that many events; the caller's mask.
        let r = unsafe { sys::epoll_wait(epfd, local.as_mut_ptr(), room as c_int, wait::left(deadline), mask) };
        inner = e.inner.lock();
        inner.sleepers = inner.sleepers.saturating_sub(1);
        inner.last_visit = sys::ticks();
        inner.backlog = r == room as isize;
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
        if r == 0 || (deadline != 0 && sys::now_ns() >= deadline) {
            return 0;
        }
        // News that was no event of the application's.
        prune_if_due(e, &mut inner);
    }
}

/// This thread does not sleep any more; others may.
fn wake_up(inner: &Inner, place: usize) {
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
    for item in core::mem::take(&mut inner.items).into_iter().flatten().filter(|i| i.attached) {
        // The kernel's set is all that the child has: nothing may stay in the ring.
        let _ = io::to_kernel(item.socket, item.generation, item.fd, Reason::InheritedByFork, true);
        give_to_kernel(e.fd.load(Relaxed), &item);
    }
    e.active.store(false, Release);
}
