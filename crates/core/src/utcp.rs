//! TCP in user space: connections are taken out of the kernel, and given back
//! (`docs/design/utcp.md`).
//!
//! One thread ("netacc-utcp", every signal blocked) owns everything here but the data path, which
//! is [`crate::utcp_device`]: it opens devices, has their keepers started, takes connections out
//! and gives them back, and drives the engines while nobody else does. It is started by the first
//! connection that could be served. Application threads leave word in an inbox, or mark a slot, and
//! wake it.
//!
//! - `seats`: the connections of a device, and what the thread does with each;
//! - `devices`: devices, their channels and keepers.

mod devices;
mod reasons;
mod seats;

use crate::agent::{self, Agent, Ending, Noted, Used};
use crate::candidates::{NOTED_AFTER, is_on_this_host};
use crate::channel::Channel;
use crate::inbox::{Inbox, Starter};
use crate::log::warn_log;
use crate::path::{Far, PathId};
use crate::socket::{Socket, flag, offered};
use crate::utcp_device::{self, ASLEEP, BELL, CHILD, LEAVING, RUNNING, WOKEN, is_running, wake};
use crate::wait::looks;
use crate::{fd_table, host, numbers, packet_policy, process, sys, thread};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use libc::pollfd;
use netacc_control::stats::Reason;
use netacc_packet::route::NoRoute;
use netacc_packet::sys::Numbers;
use netacc_proto::rendezvous::Tuple;
use seats::Owned;

/// What application threads ask of the thread: a seat for a socket that is used, with its
/// generation, and what it asks of its packets.
type Ask = (&'static Socket, u32, u32);
static INBOX: Inbox<Ask> = Inbox::new();
static STARTER: Starter = Starter::new();
/// Until then no connection leaves the kernel: the process changes its user.
static PAUSED_UNTIL: AtomicU64 = AtomicU64::new(0);
/// How many threads fork: meanwhile none leaves either.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// A fork, or a change of user, waits for no longer than this for connections to go back; and not
/// for those that the kernel has no way for.
const BACK_NS: u64 = 1_000_000_000;
/// While somebody drives the engines the thread looks so often whether that is still so.
const LOOK_NS: u64 = 5_000_000;
/// Whoever is woken with it by packets has so long to take them.
const YIELD_NS: i64 = 1_000_000;
/// A device that cannot be used is tried again after so long.
const REFUSED_NS: u64 = 10_000_000_000;
/// So many connections without room in the kernel are heard of at a time.
const FULL: usize = 64;
/// The keepers, and the kernel's tables if nothing is heard of them, are looked at so often while
/// there is traffic.
const TABLES_NS: u64 = 500_000_000;

/// `preloaded`: LD_PRELOAD.
pub(crate) fn init(preloaded: Option<&'static str>) {
    if let Some(text) = preloaded {
        devices::note_preloaded(text);
    }
}

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
    EVER.store(true, Release);
    let started = STARTER.start(is_running, start_now);
    if started {
        agent::of(PathId::Shm).take_requests();
    }
    started
}

fn start_now() -> bool {
    STARTER.has_failed();
    netacc_packet::sys::keep_numbers(&NUMBERS);
    let bell = numbers::make(|| sys::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK));
    if bell < 0 {
        return false;
    }
    WOKEN.store(false, SeqCst);
    BELL.store(bell, SeqCst);
    STARTER.has_not_failed();
    RUNNING.store(process::id(), Release);
    if thread::spawn(run, core::ptr::null_mut()) {
        return true;
    }
    RUNNING.store(0, Release);
    STARTER.has_failed();
    BELL.store(-1, Release);
    fd_table::close_internal(bell);
    false
}

fn run(_: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-utcp\0");
    let mut all = All { devices: Vec::new(), refused: Vec::new(), visits: 0, tables_at: 0 };
    while all.turn() {}
    all.end();
    RUNNING.store(0, Release);
    STARTER.has_failed();
    core::mem::forget(all);
    core::ptr::null_mut()
}

// ---- descriptors --------------------------------------------------------------------------------

/// Those that the engines have, of which a forked child has copies: each and one, or 0. (So it is
/// memory that nobody has until something is written there.)
static OWN: [AtomicI32; 8192] = [const { AtomicI32::new(0) }; 8192];
/// This process, or one that it was forked from, has begun to start the thread: otherwise nothing
/// of all this was ever used.
static EVER: AtomicBool = AtomicBool::new(false);

fn replace_own(old: c_int, new: c_int) {
    let _ = OWN.iter().any(|at| {
        at.load(Relaxed) == old && at.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
    });
}

/// Closes all that a forked child has copies of.
fn close_own() {
    for at in OWN.iter().filter(|at| at.load(Relaxed) != 0) {
        let fd = at.swap(0, AcqRel) - 1;
        if fd >= 0 {
            fd_table::close_internal(fd);
        }
    }
}

static NUMBERS: Numbers = Numbers { adopt, close };

/// (What makes one does so inside of [`numbers::exclusively`].)
fn adopt(fd: c_int) -> c_int {
    let own = numbers::adopt(fd);
    if own >= 0 {
        replace_own(0, own + 1);
    }
    own
}

fn close(fd: c_int) {
    replace_own(fd + 1, 0);
    fd_table::close_internal(fd);
}

// ---- what the rest of the core calls ------------------------------------------------------------

/// The capabilities that are needed, and what is known of this process: nothing (0), that it has
/// them, that it has not, or that it is the first of its PID namespace. The kernel ends all of that
/// with it, its keeper as well, and nobody would give back what is out.
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
static ALLOWED: AtomicU32 = AtomicU32::new(0);
const YES: u32 = 1;
const NO: u32 = 2;
const FIRST: u32 = 3;

fn is_allowed() -> Result<(), Reason> {
    if ALLOWED.load(Relaxed) == 0 && sys::getpid() == 1 {
        ALLOWED.store(FIRST, Relaxed);
        warn_log!(
            "utcp: connections stay on TCP, because this process is PID 1 of its namespace: see docs/manual/utcp.md"
        );
    }
    if ALLOWED.load(Relaxed) == 0 {
        let has = host::capabilities();
        let mut missing = NEEDED.iter().filter(|(bit, _)| has >> bit & 1 == 0);
        let first = missing.next();
        ALLOWED.store(if first.is_none() { YES } else { NO }, Relaxed);
        if let Some((_, name)) = first {
            let [second, third] = [missing.next(), missing.next()].map(|m| m.map_or("", |m| m.1));
            warn_log!(
                "utcp: connections stay on TCP, because this process lacks {name} {second} {third}: see docs/manual/utcp.md"
            );
        }
    }
    match ALLOWED.load(Relaxed) {
        YES => Ok(()),
        FIRST => Err(Reason::UtcpNoSupport),
        _ => Err(Reason::UtcpNoPrivilege),
    }
}

/// As if it lacked capabilities, or were the first of its PID namespace.
#[cfg(test)]
pub(crate) fn deny(first: bool) {
    ALLOWED.store(if first { FIRST } else { NO }, Relaxed);
}

/// The agent of connections that may leave the kernel.
struct UserSpace;
pub(crate) static AGENT: &dyn Agent = &UserSpace;

impl Agent for UserSpace {
    fn serves(&self, tuple: &Tuple) -> Result<(), Reason> {
        if is_on_this_host(tuple) {
            return Err(Reason::UtcpNoRoute);
        }
        is_allowed()
    }
    fn used(&self, s: &'static Socket, call: &Used) -> Noted {
        if call.calls < NOTED_AFTER || s.has(flag::NOTED) {
            return Noted::No;
        }
        let asked = match packet_policy::of(call.fd, s.tuple().local().ip()) {
            Ok(asked) if asked.interface == 0 => asked.key(),
            Ok(_) => return Noted::Never(Reason::KernelPolicy),
            Err(why) => return Noted::Never(why),
        };
        s.asked.store(asked, Relaxed);
        s.raise(flag::NOTED);
        s.start(Reason::Negotiating);
        if ask((s, s.generation.load(Acquire), asked)) {
            Noted::Now
        } else {
            Noted::Never(Reason::NoMemory)
        }
    }
    fn forget(&self, s: &'static Socket) {
        if s.is_inherited() || !s.offered.is_made() {
            return;
        }
        // SAFETY: complete since `offered` was set; not written again.
        let offer = unsafe { *s.offer.get() };
        // SAFETY: channels of this path live for ever, those of others as long as an offer of them.
        let channel = unsafe { &*offer.channel };
        if channel.far.id() == PathId::Utcp && s.offered.happens(offered::Event::Taken) {
            self.released(channel, offer.slot as usize);
        }
    }
    fn listener_closed(&self) {}
    fn released(&self, channel: &'static Channel, slot: usize) {
        // (In a forked child, and where the thread has ended, nothing is out.)
        if let Far::Utcp(device) = channel.far {
            device.is_released(slot);
        }
    }
    fn before_fork(&self) {
        if is_running() {
            FORKING.fetch_add(1, SeqCst);
            all_back(Reason::InheritedByFork);
        }
    }
    fn after_fork(&self) {
        if is_running() && FORKING.load(SeqCst) > 0 {
            FORKING.fetch_sub(1, SeqCst);
        }
    }
    fn in_child(&self, _parent: u32) {
        // (It may be the first process of a namespace, or its parent was that.)
        if ALLOWED.load(Relaxed) != 0 {
            ALLOWED.store(0, Relaxed);
        }
        if !EVER.load(Acquire) {
            return;
        }
        FORKING.store(0, Relaxed);
        PAUSED_UNTIL.store(0, Relaxed);
        close_own();
        INBOX.forget();
        STARTER.forget();
        utcp_device::after_fork_in_child();
    }
    fn before_rights_change(&self) {
        if is_running() {
            PAUSED_UNTIL.store(sys::now_ns().saturating_add(BACK_NS), SeqCst);
            all_back(Reason::UtcpNoPrivilege);
        }
        ALLOWED.store(0, Relaxed);
    }
    fn finish(&self, ending: Ending) {
        if is_running() {
            await_back(ending.limit_ns);
        }
    }
}

/// The two rings of a connection, of so many bytes each.
fn new_rings(bytes: usize) -> Option<[NonNull<u8>; 2]> {
    let both = NonNull::new(sys::map_own(2 * bytes))?;
    // SAFETY: within what was just mapped.
    Some([both, unsafe { both.add(bytes) }])
}

/// For how long no connection may leave the kernel, as far as that is known; 0: they may. Under a
/// device's turn: who sets what is asked here takes the turn afterwards, and finds those that have
/// left before.
fn pause_ns() -> u64 {
    let forks = u64::from(FORKING.load(SeqCst) != 0);
    PAUSED_UNTIL.load(SeqCst).saturating_sub(sys::now_ns()).max(forks)
}

/// All connections go back to the kernel, for good. By any thread that holds no end's lock.
fn all_back(why: Reason) {
    for device in utcp_device::devices() {
        drop(device.take_turn());
        device.each_live(|slot| device.demote(slot, why));
    }
    await_back(BACK_NS);
}

fn await_back(limit_ns: u64) {
    let until = sys::now_ns().saturating_add(limit_ns);
    loop {
        let left = until.saturating_sub(sys::now_ns());
        let count = LEAVING.load(SeqCst);
        if count == 0 || left == 0 {
            return;
        }
        sys::futex_wait(&LEAVING, count, left as i64, true);
    }
}

// ---- the thread ---------------------------------------------------------------------------------

/// What the thread owns.
struct All {
    devices: Vec<Owned>,
    /// Those that cannot be used, until when that is believed, and why.
    refused: Vec<(u32, u64, Reason)>,
    /// How often the engines were driven when that was last looked at.
    visits: u64,
    tables_at: u64,
}

impl All {
    /// One turn. False: it cannot go on.
    fn turn(&mut self) -> bool {
        let called = match hear_bell() {
            Some(count) => count >= CHILD,
            None => return false,
        };
        self.devices.iter_mut().for_each(Owned::hear_released);
        let asked = INBOX.take();
        for (s, generation, asked) in asked {
            self.note(s, generation, asked);
        }
        let now = sys::now_ns();
        for device in &mut self.devices {
            device.turn(now, called);
        }
        if now >= self.tables_at {
            self.tables_at = now.saturating_add(TABLES_NS);
            self.devices.iter().for_each(|device| device.look());
        }
        looks::keep_trace_ready();
        self.sleep();
        true
    }

    /// Brings all back, before there is nobody who could: without its bell, so it looks again and
    /// again.
    fn end(&mut self) {
        // (The number may be another file's by now.)
        BELL.store(-1, Release);
        warn_log!("utcp: its bell was closed, and all connections go back to the kernel");
        PAUSED_UNTIL.store(u64::MAX, SeqCst);
        loop {
            let asked = INBOX.take();
            asked.iter().for_each(|(s, generation, _)| {
                refuse(s, *generation, Reason::UtcpNoSupport);
            });
            for d in &mut self.devices {
                d.hear_released();
                d.device.each_live(|slot| d.device.demote(slot, Reason::UtcpNoSupport));
                d.full().for_each(|(slot, _)| d.device.is_due(slot));
                d.turn(sys::now_ns(), false);
                d.time();
            }
            if LEAVING.load(SeqCst) == 0 && !self.devices.iter().any(Owned::is_busy) {
                return;
            }
            sys::pause_ns(LOOK_NS as i64);
        }
    }

    /// A connection is worth it: it is offered a seat, or hears why not.
    fn note(&mut self, s: &'static Socket, generation: u32, asked: u32) {
        if s.generation.load(Acquire) != generation || !s.may_be_candidate() {
            return;
        }
        let seated = match self.device_for(s) {
            Ok(at) => match self.devices.get_mut(at) {
                Some(device) => device.seat(s, generation, asked),
                None => Err(Reason::Internal),
            },
            Err(why) => Err(why),
        };
        if let Err(why) = seated {
            refuse(s, generation, why);
        }
    }

    /// The device that its packets go over.
    fn device_for(&mut self, s: &Socket) -> Result<usize, Reason> {
        let tuple = s.tuple();
        let (own, peer) = (tuple.local().ip().to_canonical(), tuple.peer().ip().to_canonical());
        let route = numbers::exclusively(|| netacc_packet::route::find(own, peer));
        let route = route.map_err(|why| match why {
            NoRoute::NotAsked(_) => Reason::NoDescriptor,
            _ => Reason::UtcpNoRoute,
        })?;
        let known = |d: &Owned| d.device.interface == route.interface;
        if let Some(at) = self.devices.iter().position(known) {
            return Ok(at);
        }
        if self.devices.len() == utcp_device::DEVICES {
            return Err(Reason::UtcpNoRoute);
        }
        // (What was refused is not asked for by each connection.)
        let now = sys::now_ns();
        self.refused.retain(|(_, until, _)| *until > now);
        if let Some((.., why)) = self.refused.iter().find(|(i, ..)| *i == route.interface) {
            return Err(*why);
        }
        let room = self.devices.try_reserve(1).and_then(|()| self.refused.try_reserve(1));
        room.map_err(|_| Reason::NoMemory)?;
        match devices::open(&route) {
            Ok(device) => self.devices.push(device),
            Err(why) => {
                self.refused.push((route.interface, now.saturating_add(REFUSED_NS), why));
                return Err(why);
            }
        }
        Ok(self.devices.len() - 1)
    }

    /// Connections without room in the kernel: device, slot and carrier.
    fn full(&self) -> impl Iterator<Item = (usize, usize, c_int)> {
        let devices = self.devices.iter().enumerate();
        devices.flat_map(|(i, d)| d.full().map(move |(slot, fd)| (i, slot, fd)))
    }

    /// The kernel says of some that it has room: the last of these places are theirs, in this
    /// order.
    fn hear_room(&mut self, fds: &[pollfd]) {
        let mut room = [(0, 0); FULL];
        let mut count = 0;
        for (place, (i, slot, _)) in fds.iter().rev().zip(self.full()).take(FULL) {
            if let Some(at) = room.get_mut(count).filter(|_| place.revents != 0) {
                *at = (i, slot);
                count += 1;
            }
        }
        for (i, slot) in room.into_iter().take(count) {
            if let Some(device) = self.devices.get_mut(i) {
                device.hear_room(slot);
            }
        }
    }

    /// Sleeps until there is something to do: for the packets, too, while nobody else looks at
    /// them.
    fn sleep(&mut self) {
        let sum = |all: &All| {
            let visits = all.devices.iter().map(|d| d.device.visits.load(SeqCst));
            visits.fold(0u64, u64::wrapping_add)
        };
        let now = sys::now_ns();
        let mut until = self.devices.iter().map(|d| d.again_at).filter(|at| *at != 0).min();
        let mut sooner = |at: u64| until = Some(until.map_or(at, |until| until.min(at)));
        let out = self.devices.iter().any(|d| d.is_busy());
        let visits = sum(self);
        let alone = out && visits == self.visits;
        self.visits = visits;
        if out && !alone {
            sooner(now.saturating_add(LOOK_NS));
        }
        if alone {
            ASLEEP.store(true, SeqCst);
            self.devices.iter().filter_map(|d| d.next_timer()).for_each(&mut sooner);
            if sum(self) != visits {
                ASLEEP.store(false, SeqCst);
                return;
            }
        }
        let none = pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        let mut fds = [none; 1 + 2 * utcp_device::DEVICES + FULL];
        if let Some((bell, rest)) = fds.split_first_mut() {
            bell.fd = BELL.load(Acquire);
            for (place, device) in rest.chunks_exact_mut(2).zip(&self.devices) {
                if let [packets, tables] = place {
                    packets.fd = if alone { device.device.packets } else { -1 };
                    // (Where none is out nobody reads what has changed.)
                    tables.fd = if device.is_busy() { device.device.tables } else { -1 };
                }
            }
        }
        for (place, (.., fd)) in fds.iter_mut().rev().zip(self.full()).take(FULL) {
            (place.fd, place.events) = (fd, libc::POLLOUT);
        }
        let left = until.map_or(-1, |at| at.saturating_sub(sys::now_ns()) as i64);
        // SAFETY: live pollfds; no mask.
        let _ =
            unsafe { crate::sleep::ppoll(fds.as_mut_ptr(), fds.len(), left, core::ptr::null()) };
        ASLEEP.store(false, SeqCst);
        self.hear_room(&fds);
        let came = |i: usize| fds.get(i).is_some_and(|p| p.revents != 0);
        if (0..utcp_device::DEVICES).any(|i| came(2 + 2 * i)) {
            self.tables_at = 0;
        }
        for (packets, d) in fds.iter().skip(1).step_by(2).zip(&self.devices) {
            if packets.revents & libc::POLLERR != 0 {
                d.device.hear_failure();
            }
        }
        if alone && (0..utcp_device::DEVICES).any(|i| came(1 + 2 * i)) {
            sys::pause_ns(YIELD_NS);
            if sum(self) == visits {
                for d in &self.devices {
                    d.device.drive();
                }
                // (Nobody else does.)
                self.visits = sum(self);
            }
        } else if alone {
            self.devices.iter().for_each(|d| d.time());
        }
    }
}

/// What the bell has counted. `None`: somebody has closed it.
fn hear_bell() -> Option<u64> {
    let mut count = [0u8; 8];
    let r = sys::read(BELL.load(Acquire), &mut count);
    WOKEN.store(false, SeqCst);
    match r {
        8 => Some(u64::from_ne_bytes(count)),
        r if r == -(libc::EAGAIN as isize) => Some(0),
        _ => None,
    }
}

/// There will be no offer.
fn refuse(s: &'static Socket, generation: u32, why: Reason) {
    let _tx = crate::lock::lock_end(&s.tx_lock);
    if s.generation.load(Acquire) == generation && s.path() == PathId::Utcp {
        // (At once, and not with its next call: there may be none for long.)
        s.set_reason(why);
        s.verdict.store(why as u32, Relaxed);
        let _ = s.offered.happens(offered::Event::Refused(PathId::Utcp));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::socket::State;
    use crate::testing::alone_in_child;

    #[test]
    fn a_refusal_is_said_without_another_call() {
        crate::testing::init();
        let (local, peer) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        let tuple = Tuple::new(local, peer).unwrap();
        let fd = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
        let s = crate::candidates::new_heir(fd, Reason::None, true, tuple, (0, 0)).unwrap();
        s.set_paths(crate::path::PathList::EMPTY.and(PathId::Utcp));
        s.start(Reason::Negotiating);
        refuse(s, s.generation.load(Acquire), Reason::UtcpNoRoute);
        let says = || s.record().map(|r| r.reason.load(Relaxed));
        assert!(s.is(State::Candidate));
        assert_eq!(says(), Some(Reason::UtcpNoRoute as u32));
        // Of another life of that memory nothing is said.
        refuse(s, s.generation.load(Acquire).wrapping_add(1), Reason::UtcpNoSupport);
        assert_eq!(says(), Some(Reason::UtcpNoRoute as u32));
        sys::close(fd);
    }

    #[test]
    fn a_child_closes_what_the_engines_had_and_nothing_where_they_had_nothing() {
        crate::testing::init();
        assert!(alone_in_child(|| {
            let fd = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
            let is_open = || sys::read(fd, &mut [0; 4]) == -(libc::EINVAL as isize);
            assert!(fd >= 0 && is_open());
            replace_own(0, fd + 1);
            AGENT.in_child(0);
            assert!(is_open() && !EVER.load(Relaxed));
            EVER.store(true, Relaxed);
            AGENT.in_child(0);
            assert!(!is_open() && OWN.iter().all(|at| at.load(Relaxed) == 0));
            true
        }));
    }
}
