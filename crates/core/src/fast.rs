//! Fast connect: what this process keeps of closed connections, and which of its listeners give out
//! lives of theirs.
//!
//! What this module is not: the steps of a carrier, which `io::park` makes by
//! `netacc_proto::lives`; whoever takes a connection out of the list here makes its next one.
//! `docs/design/fast-connect.md` has the whole.

use crate::channel::Channel;
use crate::fd_table::{self, Entry};
use crate::lock::Mutex;
use crate::socket::{self, Socket, harmless};
use crate::{config, process, sys, wait};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence,
};

/// `-F 1`.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    config::has_fast_connect()
}

/// The process has waited for connections by calls that the library sees.
static WAITS: AtomicBool = AtomicBool::new(false);

#[cold]
pub(crate) fn note_waits() {
    WAITS.store(true, Relaxed);
}

pub(crate) fn waits_seen() -> bool {
    WAITS.load(Relaxed)
}

// ---- what is kept -------------------------------------------------------------------------------

/// Most that are kept, whatever the configuration says.
const KEPT: usize = 256;
/// How long a connection that this end has closed waits for the other end to close it, too: the
/// kernel's tcp_fin_timeout.
pub(crate) const HALF_NS: u64 = 60_000_000_000;

/// Where a connector's peer is, as the kernel says it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place([u8; 28]);

impl Place {
    /// `None`: no address of IPv4 or IPv6, whole.
    pub(crate) fn of(raw: &[u8]) -> Option<Place> {
        let family = u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]);
        // (Behind an address of IPv4 there are 8 bytes of no meaning.)
        let len = match i32::from(family) {
            libc::AF_INET => 8,
            libc::AF_INET6 => 28,
            _ => return None,
        };
        let mut place = [0; 28];
        place.get_mut(..len)?.copy_from_slice(raw.get(..len)?);
        Some(Place(place))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) socket: &'static Socket,
    /// Connector: to where. `None`: an acceptor's.
    pub(crate) to: Option<Place>,
    since: u64,
}

struct List {
    kept: [Option<Kept>; KEPT],
    len: usize,
}

static LIST: Mutex<List> = Mutex::new(List { kept: [None; KEPT], len: 0 });

impl List {
    fn remove(&mut self, at: usize) -> Option<Kept> {
        let kept = self.kept.get_mut(at)?.take()?;
        self.len = self.len.checked_sub(1)?;
        // The last one closes the gap.
        let last = self.len;
        if at != last {
            let moved = self.kept.get_mut(last)?.take();
            *self.kept.get_mut(at)? = moved;
        }
        Some(kept)
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = (usize, &Kept)> {
        self.kept.iter().take(self.len).enumerate().filter_map(|(i, k)| Some((i, k.as_ref()?)))
    }
}

/// Keeps a connection. False: there is no room.
pub(crate) fn keep(socket: &'static Socket, to: Option<Place>) -> bool {
    let most = (config::get().empty_channels_max as usize).min(KEPT);
    let mut list = LIST.lock();
    let at = list.len;
    if at >= most {
        return false;
    }
    let Some(place) = list.kept.get_mut(at) else { return false };
    *place = Some(Kept { socket, to, since: sys::now_ns() });
    list.len = at + 1;
    true
}

/// It is the caller's from here on. False: it is somebody else's already.
pub(crate) fn take(socket: &Socket) -> bool {
    let mut list = LIST.lock();
    let at = list.each().find(|(_, k)| core::ptr::eq(k.socket, socket)).map(|(i, _)| i);
    at.and_then(|at| list.remove(at)).is_some()
}

/// The one that was kept last of those that `wanted` wants: the caller's from here on.
pub(crate) fn pick(wanted: impl Fn(&Kept) -> bool) -> Option<Kept> {
    let mut list = LIST.lock();
    let at = list.each().rev().find(|(_, k)| wanted(k)).map(|(i, _)| i)?;
    list.remove(at)
}

/// Whether connections to that place are kept.
pub(crate) fn has_kept_to(to: Place) -> bool {
    any(|k| k.to == Some(to))
}

/// How many of those that are kept are like this.
pub(crate) fn count(wanted: impl Fn(&Kept) -> bool) -> usize {
    LIST.lock().each().filter(|(_, k)| wanted(k)).count()
}

/// All of those that are kept, and that `wanted` wants, one after the other: the caller's. No more
/// than there is room for, whatever their peers change meanwhile.
pub(crate) fn pick_each(wanted: impl Fn(&Kept) -> bool, mut take: impl FnMut(Kept)) {
    for _ in 0..KEPT {
        let Some(kept) = pick(&wanted) else { return };
        take(kept);
    }
}

/// Whether one of those that are kept is like this.
pub(crate) fn any(wanted: impl Fn(&Kept) -> bool) -> bool {
    LIST.lock().each().any(|(_, k)| wanted(k))
}

/// When the oldest one that is kept has been so for `age_ns`; 0: none is.
pub(crate) fn oldest(age_ns: u64) -> u64 {
    let list = LIST.lock();
    list.each().map(|(_, k)| k.since.saturating_add(age_ns)).min().unwrap_or(0)
}

impl Kept {
    pub(crate) fn is_older_than(&self, age_ns: u64) -> bool {
        sys::now_ns().saturating_sub(self.since) >= age_ns
    }
}

// ---- peers --------------------------------------------------------------------------------------

/// How many connections have come onto their rings with a peer that knows of lives.
static GROWN: AtomicU32 = AtomicU32::new(0);

pub(crate) fn grown() -> u32 {
    GROWN.load(Relaxed)
}

/// Channels to peers that know of lives: a hint, for as many.
static CHANNELS: [AtomicPtr<Channel>; 16] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 16];

pub(crate) fn know(channel: &'static Channel) {
    GROWN.fetch_add(1, Relaxed);
    let at = core::ptr::from_ref(channel).cast_mut();
    if CHANNELS.iter().any(|c| c.load(Acquire) == at) {
        return;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Relaxed) as usize % CHANNELS.len();
    if let Some(place) = CHANNELS.get(n) {
        place.store(at, Release);
    }
}

fn known(side: usize) -> impl Iterator<Item = &'static Channel> {
    // SAFETY: null, or a channel, which is never freed.
    let all = CHANNELS.iter().filter_map(|c| unsafe { c.load(Acquire).as_ref() });
    all.filter(move |c| c.side == side && c.dead.load(Acquire) == 0)
}

/// A connect is about to be made, whose connection is to be agreed on at once.
pub(crate) fn say_seeks(now: u64) {
    known(1).for_each(|c| c.seeks_at(false).store(now, Relaxed));
}

/// Whether a peer has said so just now.
pub(crate) fn seeks(now: u64, within_ns: u64) -> bool {
    known(0).any(|c| now.saturating_sub(c.seeks_at(true).load(Relaxed)) < within_ns)
}

// ---- listeners ----------------------------------------------------------------------------------

const LISTENERS: usize = 32;

/// A listening socket of this process alone, which gives out parked connections besides the
/// kernel's. It has a thread's waiting place, where connectors announce that they have taken one:
/// what gathers that place's doorbells is readable as long as there is one to give out, and stands
/// beside the listener wherever the application waits for it.
pub(crate) struct Listener {
    /// -1: none.
    fd: AtomicI32,
    /// Counts the lives of this entry.
    serial: AtomicU32,
    /// Waiting place + 1.
    place: AtomicU32,
    /// How often the process had forked.
    forks: AtomicU32,
    /// The application's backlog.
    backlog: AtomicU32,
    /// What its connections have of [`harmless::HARMLESS`].
    options: [AtomicI32; harmless::HARMLESS.len()],
    /// Nothing is parked for it any more.
    closed: AtomicBool,
    queue: Mutex<Queue>,
    /// One thread at a time accepts from the kernel: who has seen a connection there gets it.
    pub(crate) accepting: Mutex<()>,
}

struct Queue {
    channels: Vec<&'static Channel>,
    taken: VecDeque<&'static Socket>,
    /// The kernel's turn.
    kernel: bool,
}

impl Queue {
    /// Each stands there once.
    fn has_room_for(&self, s: &Socket) -> bool {
        self.taken.len() < self.taken.capacity() && !self.taken.iter().any(|t| core::ptr::eq(*t, s))
    }
}

static TABLE: [Listener; LISTENERS] = [const {
    Listener {
        fd: AtomicI32::new(-1),
        serial: AtomicU32::new(0),
        place: AtomicU32::new(0),
        forks: AtomicU32::new(0),
        backlog: AtomicU32::new(0),
        options: [const { AtomicI32::new(0) }; harmless::HARMLESS.len()],
        closed: AtomicBool::new(false),
        queue: Mutex::new(Queue { channels: Vec::new(), taken: VecDeque::new(), kernel: false }),
        accepting: Mutex::new(()),
    }
}; LISTENERS];

/// How many of them there are.
static SOME: AtomicU32 = AtomicU32::new(0);
static ADDING: Mutex<()> = Mutex::new(());

/// Whether there are any.
#[inline]
pub(crate) fn has_listeners() -> bool {
    SOME.load(Relaxed) != 0
}

/// That of a descriptor.
#[inline]
pub(crate) fn listener(fd: c_int) -> Option<&'static Listener> {
    if has_listeners() { known_listener(fd) } else { None }
}

#[cold]
#[inline(never)]
fn known_listener(fd: c_int) -> Option<&'static Listener> {
    TABLE.iter().find(|l| fd >= 0 && l.fd.load(Acquire) == fd)
}

/// That of a connection that was accepted, if it still is the same.
pub(crate) fn listener_of(s: &Socket) -> Option<&'static Listener> {
    let name = s.listener.load(Relaxed);
    let l = TABLE.get((name & 0xff).checked_sub(1)? as usize)?;
    (l.serial.load(Acquire) == name >> 8 && l.fd.load(Acquire) >= 0).then_some(l)
}

/// Those that are there.
pub(crate) fn listeners() -> impl Iterator<Item = &'static Listener> {
    TABLE.iter().filter(|l| l.fd.load(Acquire) >= 0)
}

/// The process has an io_uring, by which it may accept, or wait for its listeners.
static RINGS: AtomicBool = AtomicBool::new(false);

/// Whether it has.
pub(crate) fn has_rings() -> bool {
    RINGS.load(Acquire)
}

/// False: that was known.
pub(crate) fn note_rings() -> bool {
    !RINGS.load(Relaxed) && !RINGS.swap(true, AcqRel)
}

/// Options that a listener may have for whose sake its connections are the kernel's.
fn promises_more(fd: c_int) -> bool {
    const TCP_FASTOPEN: c_int = 23;
    [
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
        (libc::IPPROTO_TCP, TCP_FASTOPEN),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    ]
    .into_iter()
    .any(|(level, name)| {
        let mut value = [0u8; 16];
        sys::getsockopt_bytes(fd, level, name, &mut value) < 0 || value != [0; 16]
    })
}

/// `fd` listens.
pub(crate) fn on_listen(fd: c_int) {
    if let Some(known) = listener(fd) {
        known.backlog.store(backlog(fd), Relaxed);
        return;
    }
    if !config::get().fast_connect || promises_more(fd) {
        return;
    }
    let _one = ADDING.lock();
    let Some(l) = TABLE.iter().find(|l| l.fd.load(Acquire) < 0) else { return };
    {
        let mut queue = l.queue.lock();
        let room = (queue.taken.try_reserve(KEPT), queue.channels.try_reserve(64));
        if room.0.is_err() || room.1.is_err() {
            return;
        }
        queue.channels.clear();
        queue.taken.clear();
    }
    if l.place.load(Relaxed) == 0 {
        let Some(place) = wait::claim_for_thread() else { return };
        l.place.store(place as u32 + 1, Release);
    }
    wait::silence(l.place());
    l.serial.store(l.serial.load(Relaxed).wrapping_add(1) & 0xff_ffff, Release);
    l.forks.store(process::forks(), Relaxed);
    l.backlog.store(backlog(fd), Relaxed);
    for (to, value) in l.options.iter().zip(harmless::values(fd)) {
        to.store(value, Relaxed);
    }
    l.closed.store(false, Relaxed);
    l.fd.store(fd, Release);
    SOME.fetch_add(1, Release);
}

/// How many connections a listener's queue has room for, as the kernel has it.
fn backlog(fd: c_int) -> u32 {
    // linux/tcp.h, struct tcp_info: tcpi_sacked, of a listener its backlog.
    const SACKED: usize = 28;
    let mut info = [0u8; SACKED + 4];
    let n = sys::getsockopt_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    let word = info.get(SACKED..).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
    if n < info.len() as isize { 0 } else { word }
}

impl Listener {
    /// Whether `fd` still is that listener.
    pub(crate) fn is(&self, fd: c_int) -> bool {
        self.fd.load(Acquire) == fd
    }

    /// Another one may be parked: its queue holds no more than the kernel's would.
    pub(crate) fn has_room(&self) -> bool {
        let its = |k: &Kept| k.socket.listener.load(Relaxed) == self.name() && k.to.is_none();
        count(its) <= self.backlog.load(Relaxed) as usize
    }

    fn place(&self) -> usize {
        (self.place.load(Acquire) as usize).saturating_sub(1)
    }

    /// Where connectors announce what they have taken, as the word has it.
    pub(crate) fn announced_at(&self) -> u16 {
        self.place.load(Acquire) as u16
    }

    /// What is readable while there is something to give out.
    pub(crate) fn gather(&self) -> c_int {
        wait::gather(self.place())
    }

    /// How a connection of its says whose it is.
    fn name(&self) -> u32 {
        let at = TABLE.iter().position(|l| core::ptr::eq(l, self)).unwrap_or(usize::MAX);
        self.serial.load(Acquire) << 8 | (at as u32).wrapping_add(1) & 0xff
    }

    /// Something is parked for it as long as this is so.
    pub(crate) fn may_park(&self) -> bool {
        let fd = self.fd.load(Acquire);
        !self.closed.load(Acquire)
            && !RINGS.load(Acquire)
            && self.forks.load(Relaxed) == process::forks()
            && matches!(fd_table::get(fd), Entry::Listener(socket::NONE))
    }

    /// The peer of `channel` can tell this listener from here on. False: it cannot.
    pub(crate) fn hears(&self, channel: &'static Channel) -> bool {
        let place = self.place();
        if !wait::introduce(channel, place, self.gather(), 0) {
            return false;
        }
        let mut queue = self.queue.lock();
        if !queue.channels.iter().any(|c| core::ptr::eq(*c, channel)) {
            if queue.channels.len() >= queue.channels.capacity() {
                return false;
            }
            queue.channels.push(channel);
        }
        // (It may have served another peer.)
        channel.my_place(place).prepare_sleep();
        true
    }

    /// What connectors have announced since comes into the queue.
    fn fill(&self, queue: &mut Queue, is_taken: impl Fn(&Socket) -> bool) {
        let place = self.place();
        for i in 0..queue.channels.len() {
            let Some(channel) = queue.channels.get(i).copied() else { return };
            channel.my_place(place).drain(|slot| {
                let Some(s) = Socket::on(channel, slot as usize) else { return };
                let its = s.listener.load(Relaxed) == self.name() && is_taken(s);
                if its && queue.has_room_for(s) {
                    queue.taken.push_back(s);
                }
            });
        }
    }

    /// The next connection to give out; `None`: the kernel's, if it has one. `only`: the kernel has
    /// none.
    pub(crate) fn next(
        &self,
        only: bool,
        is_taken: impl Fn(&Socket) -> bool,
    ) -> Option<&'static Socket> {
        let mut queue = self.queue.lock();
        self.fill(&mut queue, &is_taken);
        if queue.kernel && !only && !queue.taken.is_empty() {
            queue.kernel = false;
            return None;
        }
        let next = queue.taken.pop_front();
        queue.kernel = next.is_some();
        if next.is_some() && queue.taken.is_empty() {
            self.be_silent(&mut queue, &is_taken);
        }
        next
    }

    /// The queue is empty: what gathers its doorbells says so, until the next one is announced.
    fn be_silent(&self, queue: &mut Queue, is_taken: impl Fn(&Socket) -> bool) {
        let place = self.place();
        wait::silence(place);
        for channel in &queue.channels {
            channel.my_place(place).prepare_sleep();
        }
        fence(SeqCst);
        self.fill(queue, is_taken);
        if !queue.taken.is_empty() {
            wait::wake_own(place);
        }
    }

    /// Nothing was found behind a doorbell.
    pub(crate) fn on_nothing(&self, is_taken: impl Fn(&Socket) -> bool) {
        let mut queue = self.queue.lock();
        if queue.taken.is_empty() {
            self.be_silent(&mut queue, is_taken);
        }
    }

    /// What is taken waits to be given out: it is the kernel's turn.
    pub(crate) fn has_taken(&self) -> bool {
        !self.queue.lock().taken.is_empty()
    }

    /// What its connections have of the options.
    pub(crate) fn options(&self) -> &[AtomicI32; harmless::HARMLESS.len()] {
        &self.options
    }

    /// It could not be given out: it is the next again.
    pub(crate) fn put_back(&self, s: &'static Socket) {
        let mut queue = self.queue.lock();
        if queue.has_room_for(s) {
            queue.taken.push_front(s);
        }
        wait::wake_own(self.place());
    }

    /// A connector has taken that one, and may not have announced it: it is the last, unless it is
    /// known.
    pub(crate) fn hear(&self, s: &'static Socket, is_taken: impl Fn(&Socket) -> bool) {
        let mut queue = self.queue.lock();
        self.fill(&mut queue, is_taken);
        if queue.has_room_for(s) {
            queue.taken.push_back(s);
        }
        wait::wake_own(self.place());
    }

    /// A connection of its was accepted.
    pub(crate) fn accepted(&self, s: &Socket) {
        s.listener.store(self.name(), Relaxed);
    }

    /// Nothing is parked for it any more; what is waits to be accepted, or is retired by the
    /// caller.
    pub(crate) fn give_up(&self) {
        self.closed.store(true, Release);
    }

    /// It is closed. The caller has given it up, and has retired what was parked for it.
    pub(crate) fn end(&self) {
        self.fd.store(-1, Release);
        SOME.fetch_sub(1, Release);
    }
}

// ---- a socket before it connects ----------------------------------------------------------------

/// An option besides [`harmless::HARMLESS`] was set: this carrier serves no other connection, and
/// such a socket takes none.
pub(crate) const ODD: u32 = 1 << 31;

/// Not an option: a connect that did not wait has not been answered by another one yet, which says
/// 0 once, as the kernel's does.
const CONNECTING: u32 = 1 << 29;

/// Such a connect was made on a connection.
pub(crate) fn mark_connecting(s: &Socket) {
    s.marks.fetch_or(CONNECTING, AcqRel);
}

/// Whether this is the other one.
pub(crate) fn take_connecting(s: &Socket) -> bool {
    s.marks.load(Relaxed) & CONNECTING != 0
        && s.marks.fetch_and(!CONNECTING, AcqRel) & CONNECTING != 0
}

/// The mark of an option that was set.
pub(crate) fn mark_of(level: c_int, name: c_int) -> u32 {
    if level == libc::SOL_SOCKET && name == libc::SO_REUSEADDR {
        return 0;
    }
    harmless::index(level, name).map_or(ODD, |i| 1 << i)
}

/// Of each fresh socket: how often the process had forked when it was made, and the marks of the
/// options that were set.
static FRESH: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

#[cold]
#[inline(never)]
pub(crate) fn on_socket(fd: c_int) {
    if let Some(word) = FRESH.get(fd as usize) {
        word.store(u64::from(process::forks()) << 32 | u64::from(SEEN), Relaxed);
    }
}

/// An option of a fresh socket was set.
pub(crate) fn mark_fresh(fd: c_int, mark: u32) {
    if let Some(word) = FRESH.get(fd as usize) {
        word.fetch_or(u64::from(mark), Relaxed);
    }
}

/// Not an option: its connection is to be agreed on, and its connect waits for that.
pub(crate) const WAITS_FOR: u32 = 1 << 30;
/// The same, and it does not wait.
pub(crate) const SEEKS: u32 = 1 << 28;

/// Nor this: the socket was made when it was known that all this is on, and what was set since is
/// marked. (Of one that is older nothing is known.)
const SEEN: u32 = 1 << 27;

/// What is no option.
const OTHERS: u32 = WAITS_FOR | SEEKS | SEEN;

/// Which of both is so of a socket that has been connected: once.
pub(crate) fn take_seeks(fd: c_int) -> u32 {
    const BOTH: u32 = WAITS_FOR | SEEKS;
    let Some(word) = FRESH.get(fd as usize) else { return 0 };
    if word.load(Relaxed) as u32 & BOTH == 0 {
        return 0;
    }
    word.fetch_and(!u64::from(BOTH), Relaxed) as u32 & BOTH
}

/// What is marked of a socket that connects, for its connection; that and [`ODD`] where not all is
/// known.
pub(crate) fn marks_of_connecting(fd: c_int) -> u32 {
    let Some(word) = FRESH.get(fd as usize).map(|w| w.load(Relaxed)) else { return ODD };
    let odd = if is_own(word) { 0 } else { ODD };
    word as u32 & !OTHERS | odd
}

/// All is known of it, and no other process has it.
fn is_own(word: u64) -> bool {
    word as u32 & SEEN != 0 && (word >> 32) as u32 == process::forks()
}

/// The marks of a fresh socket that this process has alone. `None`: of any other.
pub(crate) fn fresh(fd: c_int) -> Option<u32> {
    let word = FRESH.get(fd as usize)?.load(Relaxed);
    (is_own(word) && word as u32 & ODD == 0).then_some(word as u32 & !OTHERS)
}

// ---- processes ----------------------------------------------------------------------------------

/// Nothing that is kept is the child's, nor are the listeners' places. (Its copies of the
/// descriptors are closed with the orphans'.)
pub(crate) fn after_fork_in_child() {
    LIST.lock().len = 0;
    CHANNELS.iter().for_each(|c| c.store(core::ptr::null_mut(), Relaxed));
    for l in &TABLE {
        l.fd.store(-1, Relaxed);
        l.place.store(0, Relaxed);
        // (Their memory is the parent's copy: never freed.)
        let mut queue = l.queue.lock();
        core::mem::forget(core::mem::take(&mut queue.channels));
        core::mem::forget(core::mem::take(&mut queue.taken));
    }
    SOME.store(0, Relaxed);
}
