//! Listeners that give out lives of parked carriers besides the kernel's connections.
//!
//! A carrier's accepting end is one process's. Where others accept at the same listener too
//! (forked workers, SO_REUSEPORT) the kernel would give a connection to whoever is free: so what is
//! parked there is taken only while its process waits for connections, or comes by in a loop of
//! events ([`WAITS`], [`Listener::waits`]).

use super::{KEPT, Parked, count};
use crate::channel::{AnnouncedAt, Channel, LISTENERS};
use crate::fd_table::{self, Entry};
use crate::lock::Mutex;
use crate::socket::{self, Socket, harmless};
use crate::{config, sys, wait};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*, fence};

/// A listening socket that gives out parked connections besides the kernel's. It has a thread's
/// waiting place, where connectors announce that they have taken one, if its epoll set does not
/// hear of that: what gathers the place's doorbells is readable as long as there is one to give
/// out, and stands beside the listener wherever the application waits for it.
pub(crate) struct Listener {
    /// -1: none.
    fd: AtomicI32,
    /// Counts the lives of this entry.
    serial: AtomicU32,
    /// Waiting place + 1.
    place: AtomicU32,
    /// Others accept at its port, too.
    shared: AtomicBool,
    /// Its calls do not wait, as far as this process has set it up so.
    nonblock: AtomicBool,
    /// They accept from the very queue of the kernel's that this one has.
    common: AtomicBool,
    /// As whom its process is known to its peers: [`WAITS`], and so on.
    awaits: AtomicU64,
    /// Threads that wait for it in calls of their own; above that which life of this entry they
    /// wait for.
    waiting: AtomicU64,
    /// The epoll sets that it is in, + 1; and whether edge-triggered in one.
    sets: [AtomicI32; SETS],
    edge: AtomicBool,
    /// The one set that it is in hears of what is taken; and whether that is over.
    by_set: AtomicBool,
    not_by_set: AtomicBool,
    /// When its place was last made silent, and when it was last looked for what is taken
    /// ([`sys::ticks`]).
    silent_at: AtomicU64,
    sought_at: AtomicU64,
    /// In a forked child: the number + 1 at which the parent has it, and the child, too, which has
    /// not asked for it yet.
    inherited: AtomicI32,
    /// The application's backlog.
    backlog: AtomicU32,
    /// What its connections have of [`harmless::HARMLESS`].
    options: [AtomicI32; harmless::HARMLESS.len()],
    /// Nothing is parked for it any more.
    closed: AtomicBool,
    queue: Mutex<AcceptQueue>,
    /// One thread at a time accepts from the kernel: who has seen a connection there gets it.
    pub(crate) accepting: Mutex<()>,
}

struct AcceptQueue {
    channels: Vec<&'static Channel>,
    taken: VecDeque<&'static Socket>,
    /// The kernel's turn.
    kernel: bool,
    /// Something was heard at the listener's own place since it was last silent.
    heard: bool,
    /// How much was taken.
    count: u64,
}

impl AcceptQueue {
    fn put(&mut self, s: &'static Socket) {
        if self.has_room_for(s) {
            self.taken.push_back(s);
            self.count = self.count.wrapping_add(1);
        }
    }

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
        shared: AtomicBool::new(false),
        nonblock: AtomicBool::new(false),
        common: AtomicBool::new(false),
        awaits: AtomicU64::new(NOT_NOW),
        waiting: AtomicU64::new(0),
        sets: [const { AtomicI32::new(0) }; SETS],
        edge: AtomicBool::new(false),
        by_set: AtomicBool::new(false),
        not_by_set: AtomicBool::new(false),
        silent_at: AtomicU64::new(0),
        sought_at: AtomicU64::new(0),
        inherited: AtomicI32::new(0),
        backlog: AtomicU32::new(0),
        options: [const { AtomicI32::new(0) }; harmless::HARMLESS.len()],
        closed: AtomicBool::new(false),
        queue: Mutex::new(AcceptQueue {
            channels: Vec::new(),
            taken: VecDeque::new(),
            kernel: false,
            heard: false,
            count: 0,
        }),
        accepting: Mutex::new(()),
    }
}; LISTENERS];

/// How many of them there are; how many of those are shared; how many were inherited.
static SOME: AtomicU32 = AtomicU32::new(0);
static SHARED: AtomicU32 = AtomicU32::new(0);
static INHERITED: AtomicU32 = AtomicU32::new(0);
static ADDING: Mutex<()> = Mutex::new(());

/// So many epoll sets of one listener are known.
const SETS: usize = 4;

/// What a process says of a listener to those who may take what is parked there: nothing is taken;
/// it may be at any time, as nobody else accepts there; and it may be now, as a thread waits.
/// Between those: when a thread of it last came by, in a loop of events.
const NOT_NOW: u64 = 0;
const ALONE: u64 = u64::MAX;
const WAITS: u64 = u64::MAX - 1;
/// How often it is looked for what a set alone was told of, or rung at a place that is quiet.
const LOOKS_AGAIN_NS: u32 = 1_000_000;
/// A thread that came by such a short time ago comes again.
const COMES_AGAIN_NS: u32 = 1_000_000;

/// How good it is to take what is parked where the peer says that of its listener.
pub(crate) fn rank(said: u64, now: u64) -> u8 {
    match said {
        ALONE | WAITS => 2,
        NOT_NOW => 0,
        at => u8::from(now.wrapping_sub(at) < sys::ticks_of_ns(COMES_AGAIN_NS)),
    }
}

/// Whether there are any.
#[inline]
pub(crate) fn has_listeners() -> bool {
    SOME.load(Relaxed) != 0
}

/// Whether there are any, or may be.
#[inline]
pub(crate) fn may_have_listeners() -> bool {
    has_listeners() || INHERITED.load(Relaxed) != 0
}

/// Whether any are shared.
#[inline(always)]
pub(crate) fn has_shared() -> bool {
    SHARED.load(Relaxed) != 0
}

/// That of a descriptor, which the application is about to wait for, or to accept at.
#[inline]
pub(crate) fn listener_to_use(fd: c_int) -> Option<&'static Listener> {
    if INHERITED.load(Relaxed) != 0 && forget_inherited(fd) {
        adopt(fd);
    }
    listener(fd)
}

/// The number is not that of an inherited listener any more. True: it was.
#[cold]
#[inline(never)]
pub(crate) fn forget_inherited(fd: c_int) -> bool {
    let is = |l: &&Listener| fd >= 0 && l.inherited.load(Relaxed) == fd + 1;
    let Some(l) = TABLE.iter().find(is) else { return false };
    let was = l.inherited.swap(0, Relaxed) != 0;
    INHERITED.fetch_sub(u32::from(was), Relaxed);
    was
}

/// A forked child uses a listener of its parent's.
#[cold]
fn adopt(fd: c_int) {
    if matches!(fd_table::get(fd), Entry::Listener(socket::NONE)) && listener(fd).is_none() {
        add(fd, true, true);
    }
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
    let _ = INHERITED.load(Relaxed) != 0 && forget_inherited(fd);
    if let Some(known) = listener(fd) {
        known.backlog.store(backlog(fd), Relaxed);
        return;
    }
    let mut with_others: c_int = 0;
    let _ = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &mut with_others);
    add(fd, with_others != 0, false);
}

/// Whether an accept there does not wait. (Where others may be faster at the same queue of the
/// kernel's one that does cannot be asked only for what is there.)
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0);
    flags >= 0 && flags as c_int & libc::O_NONBLOCK != 0
}

fn add(fd: c_int, shared: bool, common: bool) {
    if !config::get().fast_connect || promises_more(fd) || (common && !is_nonblocking(fd)) {
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
        queue.heard = false;
    }
    if l.place.load(Relaxed) == 0 {
        let Some(place) = wait::claim_for_thread() else { return };
        l.place.store(place as u32 + 1, Release);
    }
    wait::silence(l.place());
    let serial = l.serial.load(Relaxed).wrapping_add(1) & 0xff_ffff;
    l.serial.store(serial, Release);
    l.shared.store(shared, Relaxed);
    l.common.store(common, Relaxed);
    l.nonblock.store(is_nonblocking(fd), Relaxed);
    l.awaits.store(if shared { NOT_NOW } else { ALONE }, Relaxed);
    l.waiting.store(u64::from(serial) << 32, Relaxed);
    l.sets.iter().for_each(|set| set.store(0, Relaxed));
    for flag in [&l.edge, &l.by_set, &l.not_by_set] {
        flag.store(false, Relaxed);
    }
    l.backlog.store(backlog(fd), Relaxed);
    for (to, value) in l.options.iter().zip(harmless::values(fd)) {
        to.store(value, Relaxed);
    }
    l.closed.store(false, Relaxed);
    l.fd.store(fd, Release);
    SOME.fetch_add(1, Release);
    SHARED.fetch_add(u32::from(shared), Relaxed);
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
    /// Which life of its entry this is.
    pub(crate) fn serial(&self) -> u32 {
        self.serial.load(Acquire)
    }

    /// Whether `fd` still is that listener, of that life.
    pub(crate) fn is(&self, fd: c_int, serial: u32) -> bool {
        self.fd.load(Acquire) == fd && self.serial() == serial
    }

    /// Another one may be parked: its queue holds no more than the kernel's would.
    pub(crate) fn has_room(&self) -> bool {
        let its = |k: &Parked| k.socket.listener.load(Relaxed) == self.name() && k.to.is_none();
        count(its) <= self.backlog.load(Relaxed) as usize
    }

    fn place(&self) -> usize {
        (self.place.load(Acquire) as usize).saturating_sub(1)
    }

    /// Where connectors announce what they have taken, as the word has it: at that place of the
    /// set's, or at the listener's own.
    pub(crate) fn announced_at(&self, set: Option<usize>) -> AnnouncedAt {
        if set.is_some() {
            self.by_set.store(true, Relaxed);
            // (Who has it wait elsewhere says so first, and looks at this then.)
            fence(SeqCst);
        }
        let of_set = set.filter(|_| !self.not_by_set.load(Relaxed));
        AnnouncedAt::new(of_set.unwrap_or_else(|| self.place()), self.index())
    }

    /// The set that it stands in, if that is one, and may hear of what is taken.
    pub(crate) fn only_set(&self) -> Option<c_int> {
        let mut sets = self.sets.iter().map(|set| set.load(Relaxed)).filter(|set| *set != 0);
        let only = sets.next().filter(|_| !self.not_by_set.load(Relaxed))?;
        sets.next().is_none().then_some(only - 1)
    }

    /// No set hears of what is taken any more. True: one may have.
    pub(crate) fn ends_by_set(&self) -> bool {
        if self.not_by_set.swap(true, SeqCst) {
            return false;
        }
        fence(SeqCst);
        self.by_set.load(Relaxed)
    }

    pub(crate) fn index(&self) -> usize {
        TABLE.iter().position(|l| core::ptr::eq(l, self)).unwrap_or(0)
    }

    /// What is readable while there is something to give out.
    pub(crate) fn gather(&self) -> c_int {
        wait::gather(self.place())
    }

    /// How a connection of its says whose it is.
    pub(crate) fn name(&self) -> u32 {
        self.serial.load(Acquire) << 8 | (self.index() as u32 + 1) & 0xff
    }

    /// Something is parked for it as long as this is so.
    pub(crate) fn may_park(&self) -> bool {
        let fd = self.fd.load(Acquire);
        !self.closed.load(Acquire)
            && !RINGS.load(Acquire)
            && matches!(fd_table::get(fd), Entry::Listener(socket::NONE))
    }

    /// The peer of `channel` can tell this listener from here on. False: it cannot.
    pub(crate) fn hears(
        &self,
        channel: &'static Channel,
        is_taken: impl Fn(&Socket) -> bool,
    ) -> bool {
        let place = self.place();
        if !wait::introduce(channel, place, self.gather(), 0) {
            return false;
        }
        let mut queue = self.queue.lock();
        let is_new = !queue.channels.iter().any(|c| core::ptr::eq(*c, channel));
        if is_new {
            if queue.channels.len() >= queue.channels.capacity() {
                return false;
            }
            queue.channels.push(channel);
        }
        if is_new && queue.taken.is_empty() {
            // (A new doorbell has rung once, for nothing.)
            queue.heard = true;
            self.be_silent(&mut queue, is_taken);
        }
        channel.awaits(self.index(), false).store(self.awaits.load(Relaxed), Relaxed);
        // (It may have served another peer.)
        channel.my_place(place).prepare_sleep();
        true
    }

    /// What connectors have announced since comes into the queue.
    fn fill(&self, queue: &mut AcceptQueue, is_taken: impl Fn(&Socket) -> bool) {
        let place = self.place();
        for i in 0..queue.channels.len() {
            let Some(channel) = queue.channels.get(i).copied() else { return };
            let mut heard = false;
            channel.my_place(place).drain(|slot| {
                heard = true;
                let Some(s) = Socket::on(channel, slot as usize) else { return };
                if s.listener.load(Relaxed) == self.name() && is_taken(s) {
                    queue.put(s);
                }
            });
            queue.heard |= heard;
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
    fn be_silent(&self, queue: &mut AcceptQueue, is_taken: impl Fn(&Socket) -> bool) {
        if self.is_quiet(queue) {
            return;
        }
        let place = self.place();
        queue.heard = false;
        self.silent_at.store(sys::ticks(), Relaxed);
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

    /// A set hears of what is taken, and nothing was heard at the place itself. (Somebody may have
    /// rung there all the same: that is seen a moment later.)
    fn is_quiet(&self, queue: &AcceptQueue) -> bool {
        let since = sys::ticks().wrapping_sub(self.silent_at.load(Relaxed));
        self.by_set.load(Relaxed)
            && !self.not_by_set.load(Relaxed)
            && !queue.heard
            && since < sys::ticks_of_ns(LOOKS_AGAIN_NS)
    }

    /// Nothing was found behind a doorbell.
    pub(crate) fn on_nothing(&self, is_taken: impl Fn(&Socket) -> bool) {
        let mut queue = self.queue.lock();
        if queue.taken.is_empty() {
            self.be_silent(&mut queue, is_taken);
        }
    }

    /// A set may have been told of what is taken that nobody has looked at since.
    pub(crate) fn is_to_be_sought(&self) -> bool {
        if !self.by_set.load(Relaxed) {
            return false;
        }
        let now = sys::ticks();
        let since = now.wrapping_sub(self.sought_at.load(Relaxed));
        let due = since >= sys::ticks_of_ns(LOOKS_AGAIN_NS) || self.only_set().is_none();
        if due {
            self.sought_at.store(now, Relaxed);
        }
        due
    }

    /// What was announced to a set is to be given out. `wakes`: who waits for the listener does not
    /// hear of it by that.
    pub(crate) fn hear_at_set(&self, s: &'static Socket, wakes: bool) {
        self.queue.lock().put(s);
        if wakes {
            self.wake();
        }
    }

    /// Who waits for it looks.
    fn wake(&self) {
        self.queue.lock().heard = true;
        wait::wake_own(self.place());
    }

    /// What is taken waits to be given out: it is the kernel's turn.
    pub(crate) fn has_taken(&self) -> bool {
        !self.queue.lock().taken.is_empty()
    }

    /// How much has been taken until now, if anything of that is to be given out: then the next
    /// accept has it, unless another thread's is faster. `rung`: its doorbells were signalled,
    /// perhaps for nothing; where there is nothing, they are silent from here on.
    pub(crate) fn has_to_give(
        &self,
        rung: bool,
        is_taken: impl Fn(&Socket) -> bool,
    ) -> Option<u64> {
        let mut queue = self.queue.lock();
        if rung {
            queue.heard = true;
            self.fill(&mut queue, &is_taken);
        }
        // (What was given out while somebody heard of it came into the queue again.)
        let is_here = |s: &&&Socket| s.listener.load(Relaxed) == self.name() && is_taken(s);
        while queue.taken.front().is_some_and(|s| !is_here(&s)) {
            queue.taken.pop_front();
        }
        if rung && queue.taken.is_empty() {
            self.be_silent(&mut queue, is_taken);
        }
        (!queue.taken.is_empty()).then_some(queue.count)
    }

    /// What its connections have of the options.
    pub(crate) fn options(&self) -> &[AtomicI32; harmless::HARMLESS.len()] {
        &self.options
    }

    /// It could not be given out: it is the next again.
    pub(crate) fn put_back(&self, s: &'static Socket) {
        {
            let mut queue = self.queue.lock();
            if queue.has_room_for(s) {
                queue.taken.push_front(s);
            }
        }
        self.wake();
    }

    /// A connector has taken that one, and may not have announced it: it is the last, unless it is
    /// known.
    pub(crate) fn hear(&self, s: &'static Socket, is_taken: impl Fn(&Socket) -> bool) {
        {
            let mut queue = self.queue.lock();
            self.fill(&mut queue, is_taken);
            queue.put(s);
        }
        self.wake();
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
        SHARED.fetch_sub(u32::from(self.shared.load(Relaxed)), Relaxed);
    }

    // ---- with others ----

    /// Whether an accept does not wait.
    pub(crate) fn is_nonblocking(&self) -> bool {
        // (Others may set that up, too, where it is not this process's alone.)
        if self.is_common() {
            return is_nonblocking(self.fd.load(Acquire));
        }
        self.nonblock.load(Relaxed)
    }

    pub(crate) fn set_nonblock(&self, nonblock: bool) {
        self.nonblock.store(nonblock, Relaxed);
    }

    /// Others may accept from its queue.
    pub(crate) fn is_common(&self) -> bool {
        self.common.load(Relaxed)
    }

    fn say(&self, awaits: u64) {
        if !self.shared.load(Relaxed) {
            return;
        }
        // (Under the lock: a peer that is introduced meanwhile learns it, too.)
        let queue = self.queue.lock();
        self.awaits.store(awaits, Relaxed);
        for channel in &queue.channels {
            channel.awaits(self.index(), false).store(awaits, Relaxed);
        }
    }

    /// A thread begins to wait for it, in a call of its own, if it still is of that life.
    pub(crate) fn waits(&self, serial: u32) {
        if self.count_waiting(serial, |n| n.checked_add(1)).is_some() {
            self.say(WAITS);
        }
    }

    /// It does not wait any more. (It may have been closed meanwhile, and be another one.)
    /// `comes_again`: it waits for other things, too, and so is a loop of events.
    pub(crate) fn waited(&self, serial: u32, comes_again: bool) {
        if self.count_waiting(serial, |n| n.checked_sub(1)) == Some(1) {
            self.say(if comes_again { sys::ticks() } else { NOT_NOW });
        }
    }

    /// How many waited before.
    fn count_waiting(&self, serial: u32, to: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let above = u64::from(serial) << 32;
        let count = |now: u64| {
            let same = now >> 32 == u64::from(serial);
            Some(above | u64::from(to(now as u32).filter(|_| same)?))
        };
        self.waiting.fetch_update(Relaxed, Relaxed, count).ok().map(|before| before as u32)
    }

    /// Whether each report of it has to be of something to accept: its calls wait, or its edges are
    /// told once.
    pub(crate) fn is_to_be_sure(&self) -> bool {
        self.edge.load(Relaxed) || !is_nonblocking(self.fd.load(Acquire))
    }

    /// It stands in an epoll set.
    pub(crate) fn is_in(&self, set: c_int, edge: bool) {
        if edge {
            self.edge.store(true, Relaxed);
        }
        let free = |of: &AtomicI32| of.compare_exchange(0, set + 1, Relaxed, Relaxed).is_ok();
        let _ = self.is_waited_for_in(set) || self.sets.iter().any(free);
    }

    pub(crate) fn is_waited_for_in(&self, set: c_int) -> bool {
        self.sets.iter().any(|of| of.load(Relaxed) == set + 1)
    }

    /// It stands there no more.
    pub(crate) fn leaves(&self, set: c_int) {
        for of in &self.sets {
            let _ = of.compare_exchange(set + 1, 0, Relaxed, Relaxed);
        }
    }
}

/// A thread begins to wait in an epoll set.
#[cold]
#[inline(never)]
pub(crate) fn waits_in(set: c_int) {
    listeners().filter(|l| l.is_waited_for_in(set)).for_each(|l| l.say(WAITS));
}

/// It does not wait any more. (Of several threads the last one counts that has come or gone.)
#[cold]
#[inline(never)]
pub(crate) fn waited_in(set: c_int, comes_again: bool) {
    let said = if comes_again { sys::ticks() } else { NOT_NOW };
    listeners().filter(|l| l.is_waited_for_in(set)).for_each(|l| l.say(said));
}

/// An epoll set is closed, and hears of nothing any more (`ends`).
pub(crate) fn set_closed(set: c_int, ends: impl Fn(&'static Listener)) {
    if has_listeners() {
        for l in listeners().filter(|l| l.is_waited_for_in(set)) {
            ends(l);
            l.leaves(set);
        }
    }
}

/// The process has forked: its child may accept at each of its listeners, too. `give_up`: of one
/// whose calls wait, or whose edges a child may take that has the set as well.
#[cold]
#[inline(never)]
pub(crate) fn share(give_up: impl Fn(&'static Listener)) {
    for l in listeners() {
        if l.is_to_be_sure() {
            give_up(l);
        }
        if !l.shared.swap(true, Relaxed) {
            SHARED.fetch_add(1, Relaxed);
        }
        l.common.store(true, Relaxed);
        l.say(sys::ticks());
    }
}

/// None of them is the child's: their waiting places are not. Those that it may come to use are
/// remembered: but what stands in a set of its parent's is not told from what stands there in the
/// child's.
pub(super) fn after_fork_in_child() {
    let mut some = 0;
    for l in &TABLE {
        let fd = l.fd.swap(-1, Relaxed);
        let in_set = l.sets.iter().any(|set| set.load(Relaxed) != 0);
        if fd >= 0 && !in_set && !l.closed.load(Relaxed) {
            l.inherited.store(fd + 1, Relaxed);
        }
        some += u32::from(l.inherited.load(Relaxed) != 0);
        l.place.store(0, Relaxed);
        // (Their memory is the parent's copy: never freed.)
        let mut queue = l.queue.lock();
        core::mem::forget(core::mem::take(&mut queue.channels));
        core::mem::forget(core::mem::take(&mut queue.taken));
    }
    SOME.store(0, Relaxed);
    SHARED.store(0, Relaxed);
    INHERITED.store(some, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{carrier, numbers, testing};
    use netacc_control::config::Config;

    /// (docs/manual/limits.md)
    const MOST: usize = 32;

    fn listens() -> c_int {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) as c_int;
        let (raw, len) = carrier::sockaddr(([127, 0, 0, 1], 0).into());
        let _ = sys::bind(fd, raw.get(..len).unwrap_or(&[]));
        let _ = sys::listen(fd, 8);
        on_listen(fd);
        fd
    }

    #[test]
    fn one_listener_more_than_there_is_room_for_has_only_the_kernels_connections() {
        testing::init();
        config::from_here_on(Config { fast_connect: true, ..config::get().clone() });
        // (Other tests have listeners, too.)
        assert!(testing::alone_in_child(|| {
            numbers::after_fork_in_child();
            wait::after_fork_in_child();
            after_fork_in_child();
            let all = (0..MOST).all(|_| listener(listens()).is_some());
            let more = listens();
            let none = listener(more).is_none();
            listeners().next().into_iter().for_each(Listener::end);
            on_listen(more);
            all && none && listener(more).is_some()
        }));
    }
}
