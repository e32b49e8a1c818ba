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
//! A socket may be in several sets, its *homes* ([`homes`]): the peer notifies each of them.
//!
//! What a set cannot carry here (a socket in more sets than that, duplicates of it in one, an
//! inherited set, a set that is itself polled) sends its sockets back to the kernel first. A socket
//! whose unread bytes do not follow at once stays an item, in each of its sets: those that are not
//! its homes hold *extra* items, looked at in every wait, until all that is in the ring has been
//! read.

use crate::channel::{self, Channel};
use crate::engines::Engines;
use crate::fd_table::{self, Entry, ObjectRef};
use crate::lock::Mutex;
use crate::sets::Sets;
use crate::socket::Socket;
use crate::wait::looks::Sleep;
use crate::{fast_connect, heap, io, process, signals, sys, wait};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use netacc_ring::ReadySet;
use netacc_ring::sleepers::Outside;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
const ALWAYS: u32 = libc::EPOLLERR as u32 | libc::EPOLLHUP as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// How what gathers a listener's doorbells stands beside it.
const GATHERED: u32 = IN | ET | ONESHOT;
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
/// As that: what gathers the doorbells of the first listener; those of others follow.
const GATHER: u32 = DOORBELL - channel::LISTENERS as u32;
const NO_ITEM: u32 = u32::MAX;
/// In the ready queue, among the items: what the kernel has comes before what is behind this.
const KERNEL: u32 = u32::MAX - 1;
/// As [`KERNEL`]: listeners that may have something to give out which the kernel does not know of.
const LISTENERS: u32 = u32::MAX - 2;
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

/// Extra items of all sets: while there are none a socket is in no set but its homes.
static EXTRAS: AtomicU32 = AtomicU32::new(0);

mod at_listeners;
mod ctl;
mod ctl_listener;
mod edge;
mod epoll_wait;
mod hand_back;
mod handover;
mod homes;
mod limits;
mod news;
mod peers;
mod queue;
mod ready;
mod report;
mod set;

pub(crate) use at_listeners::wait;
pub(crate) use ctl::ctl;
#[cfg(test)]
pub(crate) use ctl::ctl_of_attached;
pub(crate) use epoll_wait::on_wait;
pub(crate) use hand_back::move_out;
pub(crate) use handover::{bar, before_exec, forget, leave_to_kernel, on_plain};
use handover::{shine, unlight};
use limits::Limits;
use news::News;
use peers::{activate, leave, leave_channels, post, prune, prune_if_due, take_place, unpost};
use queue::ReadyQueue;
use set::{Inner, Item};

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
    fn is_home(&self, set: ObjectRef, s: &Socket) -> bool {
        handover::is_home(at(set), s)
    }
    fn is_slept_in(&self, set: ObjectRef) -> bool {
        handover::is_slept_in(at(set))
    }
    fn is_slept_for(&self, s: &Socket) -> bool {
        handover::is_slept_for(s)
    }
    fn place_for_takes(&self, set: ObjectRef, channel: &Channel) -> Option<usize> {
        peers::place_for_takes(at(set), channel)
    }
    fn bar(&self, set: ObjectRef) {
        handover::show_listeners(at(set), |_| true);
        handover::bar(at(set));
    }
}

/// The set that an entry of the table names.
#[inline(always)]
pub(crate) fn at(object: ObjectRef) -> &'static Epoll {
    // SAFETY: entries of that kind are made of references to instances, which are never freed.
    unsafe { &*(object.address() as *const Epoll) }
}

/// An epoll instance. Type-stable: never freed, reused through a pool.
pub(crate) struct Epoll {
    fd: core::sync::atomic::AtomicI32,
    refs: AtomicU32,
    owner: AtomicU32,
    /// It has attached sockets: waits go through here.
    active: AtomicBool,
    /// It had some, or has a listener's: a thread may come out of the kernel's own wait with tags.
    tagged: AtomicBool,
    /// It must not get any (it is itself polled).
    barred: AtomicBool,
    /// Others may wait in it: no listener's tag is put into it any more.
    shown: AtomicBool,
    /// Somebody has waited for it by a call that is seen.
    waited: AtomicBool,
    /// It has, or has had, connections that the library follows.
    connections: AtomicBool,
    /// How often the process had forked when it was made.
    forks: AtomicU32,
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
pub struct Counted {
    inside: Option<(&'static Epoll, u32)>,
    sleep: Option<Sleep>,
}

impl Counted {
    /// A thread goes into the kernel's own wait for `e`; and whether it is to come back at once.
    #[inline]
    fn enter(e: &'static Epoll) -> (Counted, bool) {
        let (time, active) = e.outside.enter(&e.active);
        (Counted { inside: Some((e, time)), sleep: None }, active)
    }
    /// The thread has come out of that wait with so many events, or an error.
    #[inline]
    pub fn came_out(mut self, n: c_int) {
        if let Some(sleep) = self.sleep.take() {
            sleep.over(n > 0);
        }
        if fast_connect::has_shared()
            && let Some((e, _)) = self.inside
        {
            leaves_listeners(e, e.fd.load(Relaxed));
        }
    }
}

/// A thread waits no more in a set with listeners at which others accept, too. (One with
/// connections of its own is a loop of events.)
#[cold]
#[inline(never)]
fn leaves_listeners(e: &Epoll, epfd: c_int) {
    signals::held(|| fast_connect::waited_in(epfd, e.active.load(Relaxed)));
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        if let Some((e, time)) = self.inside.take() {
            e.outside.leave(time);
        }
    }
}

/// The random part of this process's tags, in the upper 40 bits; 0: not chosen yet.
static TAG_BASE: AtomicU64 = AtomicU64::new(0);

fn tag_base() -> u64 {
    let base = TAG_BASE.load(Relaxed);
    if base != 0 {
        return base;
    }
    let mut bytes = [0u8; 8];
    sys::random(&mut bytes);
    let mut new = u64::from_ne_bytes(bytes) ^ sys::ticks().rotate_left(32);
    new = (new | 1 << 63) & !0xff_ffff;
    match TAG_BASE.compare_exchange(0, new, Relaxed, Relaxed) {
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

/// Parent and child have the same sets, and each hears what the other puts into them later: both
/// have to know a tag when they see one. (A process that has none makes no call more than it does
/// without the library.)
pub(crate) fn before_fork() {
    if fd_table::high_water() != 0 {
        tag_base();
        before_exec();
    }
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
            shown: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            connections: AtomicBool::new(false),
            forks: AtomicU32::new(0),
            outside: Outside::new(),
            place: AtomicU32::new(0),
            watch: [const { AtomicPtr::new(core::ptr::null_mut()) }; WATCHED],
            watching: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                items: Vec::new(),
                free: Vec::new(),
                by_fd: Vec::new(),
                ready: ReadyQueue::new(),
                news: News::new(),
                limits: Limits::new(),
                channels: Vec::new(),
                sleepers: 0,
                away: 0,
                calls_until: 0,
                called: 0,
                last_visit: 0,
                backlog: false,
                fresh: false,
                kernel_queued: false,
                listeners: Vec::new(),
                listeners_queued: false,
                sent_by_kernel: 0,
                looks: 0,
                looked_in: 0,
                looked_at: 0,
                woken: false,
                wait: 1,
                deaths: 0,
                extras: Vec::new(),
                unsettled: false,
                deferred_at: 0,
                deferred_after: 0,
                beacon: -1,
                lit: false,
                engines: Engines::default(),
                by_clock: false,
            }),
        })
    };
    let Some(e) = pooled.or_else(|| heap::plenty().then(new).flatten()) else { return };
    e.fd.store(fd, Relaxed);
    e.owner.store(process::id(), Relaxed);
    e.refs.store(1, Relaxed);
    e.barred.store(false, Relaxed);
    e.shown.store(false, Relaxed);
    e.waited.store(false, Relaxed);
    e.connections.store(false, Relaxed);
    e.forks.store(process::forks(), Relaxed);
    e.outside.forget();
    e.tagged.store(false, Relaxed);
    e.active.store(false, Release);
    fd_table::set(fd, Entry::Epoll(ObjectRef::of(e)));
}

pub(crate) fn on_dup(e: &'static Epoll) {
    e.refs.fetch_add(1, AcqRel);
}

/// The set goes on without its number `fd`: it is known by another that names it.
#[cold]
fn lose_number(e: &'static Epoll, fd: c_int) {
    // Who uses the number under the lock is through with it before it is another file's. (A signal
    // handler that interrupted a call on the set cannot wait for that.)
    let mine = e.owner.load(Relaxed) == process::id();
    let _inner = mine.then(|| e.inner.lock_unless_mine());
    if e.fd.load(Relaxed) != fd {
        return;
    }
    fd_table::for_each(|other, entry| {
        if other != fd && matches!(entry, Entry::Epoll(named) if named == ObjectRef::of(e)) {
            e.fd.store(other, Relaxed);
        }
    });
}

/// Its descriptor `fd` is closed; with the last one (of this process) everything kept here goes.
pub(crate) fn on_close(e: &'static Epoll, fd: c_int) {
    if e.refs.fetch_sub(1, AcqRel) > 1 {
        return lose_number(e, fd);
    }
    if e.owner.load(Relaxed) != process::id() {
        return;
    }
    fast_connect::set_closed(fd, io::waits_elsewhere);
    let mut inner = e.inner.lock();
    inner.listeners.clear();
    inner.listeners_queued = false;
    for item in inner.items.iter().flatten() {
        leave(e, item);
    }
    EXTRAS.fetch_sub(inner.extras.len() as u32, AcqRel);
    inner.extras.clear();
    inner.unsettled = false;
    inner.items.clear();
    inner.limits = Limits::new();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_child, init};

    #[test]
    fn a_child_knows_what_its_parent_puts_into_their_sets_behind_the_fork() {
        init();
        let is_chosen = in_child(|| {
            // A process that has used no socket needs no tags.
            fd_table::set(100, Entry::Fresh(0));
            TAG_BASE.store(0, Relaxed);
            before_fork();
            TAG_BASE.load(Relaxed) != 0
        });
        assert!(is_chosen);
    }
}
