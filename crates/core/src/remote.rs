//! Between hosts: connections over RDMA verbs.
//!
//! One thread ("netacc-rdma", every signal blocked) owns everything here but the data path: it
//! loads the libraries, opens devices, makes the TCP links to other processes' libraries, agrees
//! with them on connections, connects queue pairs, carries the words of switchover, and takes
//! connections back to their carriers. It is started by the first connection that a device could
//! serve. Application threads leave word in an inbox, or mark a slot ([`crate::wire`]), and wake
//! it.
//!
//! - [`crate::wire`], [`crate::queues`]: what data calls and waits use;
//! - `net`: the fabric's libraries;
//! - `devices`: the libraries, devices, queues; `io_threads`: who polls these while nobody else
//!   does;
//! - `link`, `pair`, `arenas`: a TCP connection to another process, a queue pair, the rings of a
//!   peer, as this process knows them; `pair_list`; `places` on a pair;
//! - `listeners`, `destinations`: where such connections are taken, and where they go;
//! - `links`: how they are made, and the frames on them; `broken_links`;
//! - `pairs`: how queue pairs are connected; `pair_ends`: how they end; `progress`, `stalls`:
//!   whether what is posted arrives;
//! - `policy`: what the kernel does with packets, and a device would not;
//! - `memory`: that of rings; `whole`: for which connections more of it is found;
//! - `proof`: whether who answers at a link port is who accepts there;
//! - `agree`: which connections are accelerated; `offers`: what becomes of an agreement;
//! - `shares`: what each host may take of all that; `room`: for one more link;
//! - `words`: what the ends say of their switches; `leave`: the way back to the carrier;
//! - `silence`: a host of which nothing is heard; `unheard`: how that is known; `probes`: what it
//!   says on carriers;
//! - `keeper`: the process that goes on with that when this one has ended.
//!
//! `docs/design/rdma.md` tells the whole story.

mod agree;
mod arenas;
mod broken_links;
mod claims;
mod destinations;
mod devices;
mod io_threads;
mod keeper;
mod leave;
mod link;
mod links;
mod listeners;
mod memory;
mod net;
mod offers;
mod pair;
mod pair_ends;
mod pair_list;
mod pairs;
mod places;
mod policy;
mod probes;
mod progress;
mod proof;
mod room;
mod shares;
mod silence;
mod stalls;
#[cfg(test)]
mod tests;
mod unheard;
mod vain;
mod whole;
mod words;

use crate::agent::{Agent, Ending, Noted, Used};
use crate::candidates::NOTED_AFTER;
use crate::channel::Channel;
use crate::inbox::{Inbox, Starter};
use crate::packet_policy::Asked;
use crate::path::PathId;
use crate::rdma_thread::{self, BELL, RUNNING, WOKEN, is_running, wake};
use crate::socket::{Socket, flag, offered};
use crate::tuple_table::Table;
use crate::wait::looks;
use crate::{agent, config, fd_table, host, numbers, process, queues, sleep, sys, thread};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use libc::epoll_event;
use netacc_control::stats::Reason;
use netacc_proto::agreement::Agreement;
use netacc_proto::rendezvous::{Candidate, Proof, Tuple};

/// By the so many-th call of a connection the kernel has said how long its packets may be, or never
/// does.
const LENGTH_BY: u32 = NOTED_AFTER + 32;

/// Sockets that wait, each way, and candidates of peers.
const PENDING: u32 = 16384;

// ---- the inbox ----------------------------------------------------------------------------------

/// What application threads ask of the thread.
enum Ask {
    /// This socket is used: worth an agreement. With its generation, and what it asks of its
    /// packets.
    Note(&'static Socket, u32, Asked),
    /// Connections are accepted at that address.
    Accepting(SocketAddr),
    /// Our end of a slot is no longer used.
    Released(&'static Channel, usize),
    /// A listening socket of this process was closed.
    ListenerClosed,
}

static INBOX: Inbox<Ask> = Inbox::new();
static STARTER: Starter = Starter::new();

fn ask(what: Ask) -> bool {
    if !ensure_started() {
        return false;
    }
    let left = INBOX.put(what);
    wake();
    left
}

fn ensure_started() -> bool {
    crate::heap::plenty() && (is_running() || start())
}

#[cold]
#[inline(never)]
fn start() -> bool {
    let started = STARTER.start(is_running, start_now);
    if started {
        agent::of(PathId::Shm).take_requests();
    }
    started
}

fn start_now() -> bool {
    let me = process::id();
    STARTER.has_failed();
    let epoll = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
    let bell = numbers::make(|| sys::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK));
    if epoll >= 0 && bell >= 0 && watch(epoll, bell, libc::EPOLLIN as u32, EVENT_BELL) {
        WOKEN.store(false, SeqCst);
        rdma_thread::hang_bell(bell, || numbers::make(|| sys::pidfd_open(me)));
        // Before it runs: it may find that it cannot.
        STARTER.has_not_failed();
        RUNNING.store(me, Release);
        if thread::spawn(run, epoll as usize as *mut c_void) {
            return true;
        }
        RUNNING.store(0, Release);
        STARTER.has_failed();
        BELL.store(-1, Release);
    }
    for fd in [epoll, bell] {
        if fd >= 0 {
            fd_table::close_internal(fd);
        }
    }
    false
}

fn run(epoll: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-rdma\0");
    // Here, because first touching all that memory takes a third of a millisecond.
    let turn = take_turn(u64::MAX);
    let made = Remote::new(epoll as usize as c_int);
    if turn {
        end_turn();
    }
    if let Some(mut remote) = made {
        while remote.turn() {
            if crate::keeper::is_wanted() || remote.is_keeper_due() {
                remote.leave_to_keeper();
            }
        }
        // Somebody closed our descriptors behind our back. What was agreed on cannot be taken back
        // any more; the memory is left.
        core::mem::forget(remote);
    }
    RUNNING.store(0, Release);
    STARTER.has_failed();
    core::ptr::null_mut()
}

fn watch(epoll: c_int, fd: c_int, events: u32, data: u64) -> bool {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: a live event.
    let r = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
    // SAFETY: as above.
    r >= 0
        || (r == -(libc::EEXIST as isize)
            && unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, &mut event) } >= 0)
}

fn unwatch(epoll: c_int, fd: c_int) {
    // SAFETY: deleting takes no event.
    let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
}

// ---- what the rest of the core calls ------------------------------------------------------------

/// Whether a device could serve connections like this one. Asks the kernel once; where there is
/// none, once a minute.
fn could_serve(tuple: &Tuple) -> Result<(), Reason> {
    if LOADED.load(Acquire) && LOADED_BY.load(Relaxed) != process::id() {
        // The libraries' state is a copy of the parent's, and the kernel refuses a child the use of
        // its device.
        return Err(Reason::ForkedAfterRdma);
    }
    let ip = tuple.local().ip();
    // A link-local address is none without the interface's number, which the connection manager
    // does not carry.
    let link_local = matches!(ip, IpAddr::V6(a) if a.is_unicast_link_local());
    if link_local || ip.is_loopback() || tuple.peer().ip().is_loopback() {
        return Err(Reason::NoRdmaDevice);
    }
    if host::has_devices() { Ok(()) } else { Err(Reason::NoRdmaDevice) }
}

/// Addresses that the thread was told of, hashed.
static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// The thread is told anew where connections are accepted.
fn forget_known() {
    KNOWN.iter().for_each(|k| k.store(0, Relaxed));
    agent::forget_told();
}

/// The agent of connections between hosts.
struct BetweenHosts;
pub(crate) static AGENT: &dyn Agent = &BetweenHosts;

impl Agent for BetweenHosts {
    fn serves(&self, tuple: &Tuple) -> Result<(), Reason> {
        could_serve(tuple)
    }
    fn accepting(&self, local: SocketAddr) -> bool {
        let hash = match local.ip() {
            IpAddr::V4(a) => u64::from(u32::from(a)),
            IpAddr::V6(a) => {
                let bits = u128::from(a);
                (bits >> 64) as u64 ^ (bits as u64).rotate_left(13)
            }
        };
        let mixed = (hash ^ u64::from(local.port()) << 40 ^ u64::from(process::id()) << 20)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            | 1;
        let Some(place) = KNOWN.get((mixed >> 58) as usize) else { return false };
        let known = place.load(Relaxed) == mixed;
        if !known && ask(Ask::Accepting(local)) {
            place.store(mixed, Relaxed);
            return true;
        }
        known
    }
    fn finish(&self, ending: Ending) {
        keeper::finish(ending);
    }
    fn listener_closed(&self) {
        if is_running() {
            let _ = ask(Ask::ListenerClosed);
        }
    }
    fn used(&self, s: &'static Socket, call: &Used) -> Noted {
        if call.calls < NOTED_AFTER
            || s.has(flag::NOTED)
            || !s.syn.learn(s.has(flag::CONNECTOR), call.fd)
        {
            return Noted::No;
        }
        let asked = match crate::packet_policy::of(call.fd, s.tuple().local().ip()) {
            Ok(asked) => asked,
            Err(why) => return Noted::Never(why),
        };
        if asked.mtu == 0 && config::get().kernel_policy && call.calls < LENGTH_BY {
            // The kernel has no way for its packets at this moment (setting IP_TOS forgets it), and
            // so does not say how long they may be.
            return Noted::No;
        }
        s.asked.store(asked.key(), Relaxed);
        s.raise(flag::NOTED);
        s.start(Reason::Negotiating);
        if ask(Ask::Note(s, s.generation.load(Acquire), asked)) {
            Noted::Now
        } else {
            Noted::Never(Reason::RdmaRefused)
        }
    }
    fn forget(&self, s: &'static Socket) {
        if s.is_inherited() {
            // What is offered is its parent's to give back.
            if s.offered.is_made() {
                s.raise(flag::CALLED_BACK);
                rdma_thread::call_back(s.owner.load(Relaxed));
            }
            return;
        }
        if !s.offered.is_made() {
            return;
        }
        // SAFETY: complete since `offered` was set; not written again.
        let offer = unsafe { *s.offer.get() };
        // SAFETY: those of RDMA live for ever, and those of other paths as long as an offer of
        // them.
        let channel = unsafe { &*offer.channel };
        if channel.far.id() == PathId::Rdma && s.offered.happens(offered::Event::Taken) {
            released(channel, offer.slot as usize);
        }
    }
    fn released(&self, channel: &'static Channel, slot: usize) {
        released(channel, slot);
    }
    fn before_fork(&self) {
        if is_running() {
            take_turn(TURN_NS);
        }
    }
    fn after_fork(&self) {
        if TURN.load(Relaxed) == process::tid() || !is_running() {
            end_turn();
        }
    }
    fn in_child(&self, parent: u32) {
        after_fork_in_child(parent);
    }
    fn give_up_inherited(&self) {
        rdma_thread::give_up_inherited();
    }
}

fn released(channel: &'static Channel, slot: usize) {
    // Without room in the inbox the slot is lost, and nothing else.
    let _ = ask(Ask::Released(channel, slot));
}

/// Who has it: the thread, in what it does between its waits, or one that forks. A child must not
/// see the libraries, or a descriptor of theirs, in the middle of something.
static TURN: AtomicU32 = AtomicU32::new(0);
/// A fork waits for no longer than this. (Loading takes some milliseconds.)
const TURN_NS: u64 = 1_000_000_000;

fn take_turn(limit_ns: u64) -> bool {
    let until = sys::now_ns().saturating_add(limit_ns);
    while let Err(other) = TURN.compare_exchange(0, process::tid(), AcqRel, Acquire) {
        if other == process::tid() || sys::now_ns() >= until {
            return false;
        }
        sys::futex_wait(&TURN, other, 10_000_000, true);
    }
    true
}

fn end_turn() {
    TURN.store(0, Release);
    sys::futex_wake(&TURN, i32::MAX, true);
}

/// Descriptors that a forked child has no use for: links, listeners, and the libraries'.
static OWN: [AtomicI32; 4096] = [const { AtomicI32::new(-1) }; 4096];

/// Notes one. One too many just stays open in a child.
fn note_own(fd: c_int) {
    let _ = OWN.iter().any(|at| at.compare_exchange(-1, fd, AcqRel, Relaxed).is_ok());
}

fn forget_own(fd: c_int) {
    let _ = OWN.iter().any(|at| at.compare_exchange(fd, -1, AcqRel, Relaxed).is_ok());
}

/// Closes one of the thread's.
fn close_own(fd: c_int) {
    forget_own(fd);
    fd_table::close_internal(fd);
}

/// An ancestor of this process, or itself, has loaded the libraries.
static LOADED: AtomicBool = AtomicBool::new(false);
/// The process that has.
static LOADED_BY: AtomicU32 = AtomicU32::new(0);

/// In a forked child: thread, links, pairs and queues are the parent's.
fn after_fork_in_child(parent: u32) {
    queues::forget_queues();
    for at in &OWN {
        let fd = at.swap(-1, AcqRel);
        if fd >= 0 {
            fd_table::close_internal(fd);
        }
    }
    INBOX.forget();
    STARTER.forget();
    rdma_thread::after_fork_in_child(parent);
}

// ---- the thread ---------------------------------------------------------------------------------

/// Kinds of events in the thread's epoll set, in the upper byte.
const EVENT_BELL: u64 = 1 << 56;
const EVENT_MANAGER: u64 = 2 << 56;
const EVENT_DEVICE: u64 = 3 << 56;
const EVENT_LISTENER: u64 = 4 << 56;
const EVENT_LINK: u64 = 5 << 56;
const EVENT_SIGNAL: u64 = 6 << 56;
const EVENT_KIND: u64 = 0xff << 56;

/// One of our sockets that waits for an agreement.
struct Mine {
    socket: &'static Socket,
    generation: u32,
    agreement: Agreement,
    /// What its application wants of its packets.
    asked: Asked,
    /// What the kernel does with them was looked at. (Of an accepted one: not before its host is
    /// known to have the library.)
    looked: bool,
}

impl Mine {
    fn is_current(&self) -> bool {
        self.socket.generation.load(Acquire) == self.generation
            && self.socket.may_be_candidate()
            && self.socket.path() == PathId::Rdma
    }

    /// This end fills small rings.
    fn fills(&self) -> bool {
        self.socket.fills.load(Relaxed)
    }
}

/// A peer's candidate.
#[derive(Clone, Copy)]
struct Theirs {
    link: usize,
    token: u64,
    proof: Proof,
    class: u8,
    /// It, or our end, fills small rings.
    fills: bool,
    /// There is no memory for whole ones there.
    has_less: bool,
    /// It is to have whole rings, and there were none: when that is tried again (0: it was not),
    /// and how often it was.
    again_at: u64,
    tries: u8,
}

impl Theirs {
    /// As it is claimed on that link.
    fn of(link: usize, c: &Candidate) -> Theirs {
        let Candidate { token, proof, class, fills, .. } = *c;
        Theirs { link, token, proof, class, fills, has_less: false, again_at: 0, tries: 0 }
    }
}

/// Everything that the thread owns.
struct Remote {
    epoll: c_int,
    devices: devices::Devices,
    listeners: Vec<listeners::Listener>,
    /// When to look whether they are of use; 0: not.
    listeners_at: u64,
    /// No links are taken at some address: when that is tried anew, where a connection waits for
    /// it, or with the next accept there; 0: not.
    anew_at: u64,
    /// Places at which none could be had.
    refused: Vec<listeners::Refused>,
    /// Some listeners are not listened to until then; 0: all are.
    deaf_until: u64,
    links: Vec<Option<Box<link::Link>>>,
    shares: shares::Shares,
    destinations: Vec<destinations::Destination>,
    hosts: Vec<destinations::Host>,
    kept: pair_ends::EmptyPairs,
    connected: Table<Mine>,
    accepted: Table<Mine>,
    candidates: Table<Theirs>,
    /// Our name for links, never used again.
    serial: u32,
    /// When to look for candidates whose connections are over; 0: there are none.
    sweep_at: u64,
    /// When to look at what waits for an agreement; 0: nothing does.
    waiting_at: u64,
    /// Names this process.
    process: [u8; 16],
    /// Channels and memory of receives that serve again.
    channels: Vec<&'static Channel>,
    /// Connections that are on their way back to their carriers, and what keeps them alive
    /// meanwhile.
    leaving: Vec<leave::Leaving>,
    /// Bytes of rings that are registered at most, whatever the limits are.
    memory_max: usize,
    /// Whether what this user locks has no limit.
    locks_all: core::cell::Cell<(u32, bool)>,
    /// When to look at what is unread; 0: nobody sends.
    watch_at: u64,
    /// When to look whether what is posted arrives; 0: nothing is.
    progress_at: u64,
    /// When the log was last told that something did not; 0: never.
    stall_logged_at: u64,
    /// When to look at what the kernel does with packets; 0: no connection is on RDMA.
    policy_at: u64,
    /// When connections that wait for whole rings are looked at; 0: there are none.
    whole_at: u64,
    /// Connections whose way back to TCP waits a moment for what is to be read here: link, its
    /// serial number, slot.
    readers: Vec<(usize, u32, usize)>,
    /// What a process that outlives this one keeps; there, what it still has.
    keeping: Option<keeper::Keeping>,
    /// When another keeper is to be made, and how often that was so.
    keeper_at: u64,
    keepers: u32,
    /// When something has to be done without being told; 0: never.
    timer: u64,
}

impl Remote {
    fn new(epoll: c_int) -> Option<Box<Remote>> {
        let mut seed = [0u8; 8];
        sys::random(&mut seed);
        let seed = u64::from_ne_bytes(seed) ^ sys::now_ns();
        let mut process = [0u8; 16];
        sys::random(&mut process);
        Some(Box::new(Remote {
            epoll,
            devices: devices::Devices::default(),
            listeners: Vec::new(),
            listeners_at: 0,
            anew_at: 0,
            refused: Vec::new(),
            deaf_until: 0,
            links: Vec::new(),
            shares: shares::Shares::new(),
            destinations: Vec::new(),
            hosts: Vec::new(),
            kept: pair_ends::EmptyPairs::new(config::get()),
            connected: Table::new(PENDING, seed)?,
            accepted: Table::new(PENDING, seed.rotate_left(7))?,
            candidates: Table::new(PENDING, seed.rotate_left(17))?,
            serial: 0,
            sweep_at: 0,
            waiting_at: 0,
            process,
            channels: Vec::new(),
            leaving: Vec::new(),
            memory_max: usize::MAX,
            // (Nobody's number.)
            locks_all: core::cell::Cell::new((u32::MAX, false)),
            watch_at: 0,
            progress_at: 0,
            stall_logged_at: 0,
            policy_at: 0,
            whole_at: 0,
            readers: Vec::new(),
            keeping: None,
            keeper_at: 0,
            keepers: 0,
            timer: 0,
        }))
    }

    /// Something has to be done at `at`.
    fn at(&mut self, at: u64) {
        if self.timer == 0 || at < self.timer {
            self.timer = at.max(1);
        }
    }

    /// Waits for something to do, and does it. False: it can no longer wait.
    fn turn(&mut self) -> bool {
        let timeout = match self.timer {
            0 => -1,
            // Whole milliseconds, so that no newer system call is needed.
            at => {
                at.saturating_sub(sys::now_ns()).div_ceil(1_000_000).min(60_000) as i64 * 1_000_000
            }
        };
        let mut events = [epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: room for 32 events; no mask.
        let n = unsafe {
            sleep::epoll_wait(self.epoll, events.as_mut_ptr(), 32, timeout, core::ptr::null())
        };
        if n < 0 && n != -(libc::EINTR as isize) {
            return false;
        }
        let turn = take_turn(u64::MAX);
        self.work(events.get(..n.max(0) as usize).unwrap_or(&[]));
        if turn {
            end_turn();
        }
        looks::keep_trace_ready();
        true
    }

    fn work(&mut self, events: &[epoll_event]) {
        if self.is_keeper() {
            return self.work_on_kept(events);
        }
        for e in events.iter() {
            let (what, bits) = (e.u64, e.events);
            let rest = what & !EVENT_KIND;
            match what & EVENT_KIND {
                EVENT_BELL => {
                    let mut count = [0u8; 8];
                    let _ = sys::read(BELL.load(Acquire), &mut count);
                    // Before the looks: what comes after them rings again.
                    WOKEN.store(false, SeqCst);
                    if u64::from_ne_bytes(count) >= rdma_thread::CHILD {
                        self.serve_children();
                    }
                }
                EVENT_MANAGER => self.hear_manager(),
                EVENT_DEVICE => self.hear_device(rest as usize),
                EVENT_LISTENER => self.take_callers(rest as usize),
                EVENT_LINK => self.serve_link((rest & 0xffff) as usize, (rest >> 16) as u32, bits),
                _ => {}
            }
        }
        self.open_inbox();
        if rdma_thread::take_pair_news() {
            self.look_at_pairs();
        }
        self.take_connected();
        let watch_at = rdma_thread::UNREAD.take_at();
        if watch_at != 0 {
            self.watch_at = watch_at;
            self.at(watch_at);
        }
        self.watch_progress(rdma_thread::POSTED.take_at());
        if self.timer != 0 && self.timer <= sys::now_ns() {
            self.timer = 0;
            self.on_time();
        }
        self.serve_words();
        self.go_on_leaving();
        self.show();
    }

    fn open_inbox(&mut self) {
        for a in INBOX.take() {
            match a {
                Ask::Note(s, generation, asked) => self.on_note(s, generation, asked),
                Ask::Accepting(local) => self.on_accepting(local),
                Ask::Released(channel, slot) => self.on_released(channel, slot),
                Ask::ListenerClosed => self.look_at_listeners(),
            }
        }
    }

    /// Looks at everything that has a time.
    fn on_time(&mut self) {
        self.time_links();
        self.time_pairs();
        self.time_destinations();
        self.time_devices();
        self.time_waiting();
        self.time_whole();
        self.time_readers();
        self.sweep();
        self.time_listeners();
        self.time_deaf();
        self.time_unread();
        self.time_progress();
        self.time_policy();
    }

    fn time_unread(&mut self) {
        if self.watch_at != 0 && self.watch_at <= sys::now_ns() {
            // Before the looks: what comes after them begins anew.
            rdma_thread::UNREAD.begin_look();
            let more = crate::io::look_at_unread_here(PathId::Rdma);
            self.watch_at = if more { rdma_thread::look_at_unread_again() } else { 0 };
        }
        if self.watch_at != 0 {
            self.at(self.watch_at);
        }
    }
}
