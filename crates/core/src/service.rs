//! Within the host: the thread "netacc", and what application threads ask of it. (Other paths have
//! threads of their own; ARCHITECTURE.md lists all of them.)
//!
//! The thread blocks every signal, and sleeps in epoll_wait until a peer's message, a new peer or
//! an application thread wakes it. It has a timeout only while something is due: in the second
//! after a connection was noted, while a link or a proof is awaited, while bytes are held back or
//! lie unread. It owns the agreement ([`crate::rendezvous`]). It touches the data of a connection
//! only where the application's threads do not come: it sends what was held back for too long, and
//! serves a pull-back. Of a pull-back it sends again what there is room for, and leaves the rest to
//! a passing thread ("netacc-pull"), because that may take as long as a reader is slow. One such
//! thread serves all pull-backs in turn, so that none waits for another's reader.
//!
//! Application threads take the same lock for the few microseconds that it takes to note a socket;
//! with their signals blocked, so that no handler can come in between and want it too.

mod agent;
mod pulls;
mod requests;
mod search;

use crate::channel::{Channel, SLOTS};
use crate::io;
use crate::listens::Listens;
use crate::lock::{Guard, Mutex};
use crate::log::warn_log;
use crate::path::PathId;
use crate::rendezvous::absent::Absent;
use crate::rendezvous::packet::{self, Received};
use crate::rendezvous::{
    ADVERTS, EVENT_ADVERT, EVENT_CARRIER, EVENT_LINK, LINKS, State, TRY_PAUSE_NS, Then, Violation,
    auth, carrier_event, link_of, slot_of, strangers,
};
use crate::socket::{Socket, flag};
use crate::wait::looks;
use crate::{fd_table, heap, numbers, process, signals, sleep, sys, thread};
pub(crate) use agent::AGENT;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use libc::epoll_event;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;
use pulls::Pulls;
use requests::{EVENT_REQUESTS, Requests};

/// Messages of one link that are taken in a row.
const MESSAGES_IN_A_ROW: usize = 64;
/// Whether a peer whose link has ended is gone, too, is asked so often.
const ENDS_PAUSE_NS: u64 = 10_000_000;
/// A thread that could not be started is tried again after so long.
const START_AGAIN_NS: u64 = 1_000_000_000;

/// One process's end of all agreements. There is one; tests make several.
pub(crate) struct Service {
    state: Mutex<State>,
    pulls: Pulls,
    /// Wakes the thread.
    bell: AtomicI32,
    /// It was woken and not heard yet.
    woken: AtomicBool,
    /// The process that the thread runs in; 0: none.
    running: AtomicU32,
    /// Why it could not be started, when that was last tried, as a [`Reason`]; 0: it could.
    not_started: AtomicU32,
    requests: Requests,
    /// Ports that nobody advertises, for a look without the lock.
    absent: Absent,
    /// Ports with an advert, as `1 << 48 | port << 32 | uid`, for a look without the lock.
    advertised: [AtomicU64; ADVERTS],
    /// When bytes that a ring holds back are due; 0: there are none.
    held_until: AtomicU64,
    /// When to look whose bytes lie unread in rings; 0: not before more is sent.
    watch_at: AtomicU64,
    /// When to look at what is kept of closed connections; 0: nothing is.
    sweep_at: AtomicU64,
    /// A thread is started for it (not in tests, which turn it by hand).
    threaded: bool,
}

static SERVICE: Service = Service::new(true);

/// The lock, with the signals that are blocked while it is held.
struct Held<'a> {
    state: Option<Guard<'a, State>>,
    signals: Option<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.state = None;
        signals::go_on(self.signals);
    }
}

impl Service {
    const fn new(threaded: bool) -> Service {
        Service {
            state: Mutex::new(State::new()),
            pulls: Pulls::new(threaded),
            bell: AtomicI32::new(-1),
            woken: AtomicBool::new(false),
            running: AtomicU32::new(0),
            not_started: AtomicU32::new(0),
            requests: Requests::new(),
            absent: Absent::new(),
            advertised: [const { AtomicU64::new(0) }; ADVERTS],
            held_until: AtomicU64::new(0),
            watch_at: AtomicU64::new(0),
            sweep_at: AtomicU64::new(0),
            threaded,
        }
    }

    /// The lock, for a thread of the application's. Without the state: this very thread has it, and
    /// a handler that nobody saw being set ([`signals::hold_back`]) has interrupted it.
    fn hold(&self) -> Held<'_> {
        let signals = signals::hold_back();
        Held { state: self.state.lock_unless_mine(), signals }
    }

    /// Runs `f` under the lock, in a thread of the application's; then wakes the thread, if it has
    /// to do something earlier than it knows. `None`: as in [`hold`](Self::hold).
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        let mut held = self.hold();
        let done = held.state.as_mut().map(|s| (f(s), core::mem::take(&mut s.wake)));
        drop(held);
        let (r, wake) = done?;
        if wake {
            self.wake();
        }
        Some(r)
    }

    fn is_running(&self) -> bool {
        self.running.load(Acquire) == process::id()
    }

    /// Why it does not run, if it was to; `None`: nothing has kept it.
    fn hindrance(&self) -> Option<Reason> {
        if !heap::plenty() {
            return Some(Reason::NoMemory);
        }
        let why = Reason::from_code(self.not_started.load(Relaxed));
        why.filter(|why| *why != Reason::None && !self.is_running())
    }

    /// Starts the thread if it does not run. False: it cannot be, or there is no memory for what it
    /// would begin.
    fn ensure_started(&'static self) -> bool {
        heap::plenty() && (self.is_running() || self.start())
    }

    #[cold]
    #[inline(never)]
    fn start(&'static self) -> bool {
        let mut held = self.hold();
        let Some(state) = held.state.as_mut() else { return false };
        if self.is_running() {
            return true;
        }
        let now = sys::now_ns();
        // Failed before, in this process: not tried at every connection.
        if state.process == process::id() && now < state.start_again_at {
            return false;
        }
        (state.process, state.start_again_at) = (process::id(), now + START_AGAIN_NS);
        if !state.prepare() {
            self.not_started.store(Reason::NoMemory as u32, Relaxed);
            return false;
        }
        let epoll = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        let bell = numbers::make(|| sys::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK));
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: a live event.
        let ok = epoll >= 0
            && bell >= 0
            && unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, &mut event) } >= 0;
        if ok {
            state.epoll = epoll;
            self.bell.store(bell, Release);
            self.woken.store(false, Release);
            if self.threaded {
                self.requests.open(epoll);
            }
            if !self.threaded || thread::spawn(run, core::ptr::from_ref(self).cast_mut().cast()) {
                self.not_started.store(0, Relaxed);
                self.running.store(process::id(), Release);
                return true;
            }
            self.not_started.store(Reason::Internal as u32, Relaxed);
            state.epoll = -1;
            self.bell.store(-1, Release);
            self.requests.close();
        } else {
            self.not_started.store(Reason::NoDescriptor as u32, Relaxed);
        }
        for fd in [epoll, bell] {
            if fd >= 0 {
                fd_table::close_internal(fd);
            }
        }
        false
    }

    /// Wakes the thread. False: it cannot be woken (any more).
    fn wake(&self) -> bool {
        if self.woken.swap(true, SeqCst) {
            return true;
        }
        let rang = sys::write(self.bell.load(Acquire), &1u64.to_ne_bytes()) > 0;
        if !rang {
            self.woken.store(false, SeqCst);
        }
        rang
    }

    // ---- the thread -----------------------------------------------------------------------------

    /// Waits for something to do, at most `limit_ns` (< 0: for ever), and does it. False: it can no
    /// longer wait.
    fn turn(&self, limit_ns: i64) -> bool {
        looks::keep_trace_ready();
        let (epoll, next) = {
            let mut s = self.state.lock();
            s.wake = false;
            (
                s.epoll,
                [
                    s.next_deed(),
                    self.held_until.load(SeqCst),
                    self.watch_at.load(SeqCst),
                    self.sweep_at.load(SeqCst),
                ]
                .into_iter()
                .filter(|t| *t != 0)
                .min()
                .unwrap_or(0),
            )
        };
        let timeout = if next == 0 {
            limit_ns
        } else {
            // Whole milliseconds, so that no newer system call is needed.
            let left = next.saturating_sub(sys::now_ns()).div_ceil(1_000_000).min(60_000) as i64
                * 1_000_000;
            if limit_ns < 0 { left } else { left.min(limit_ns) }
        };
        let mut events = [epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: room for 32 events; no mask.
        let n = unsafe {
            sleep::epoll_wait(epoll, events.as_mut_ptr(), 32, timeout, core::ptr::null())
        };
        if n < 0 && n != -(libc::EINTR as isize) {
            return false;
        }
        for e in events.iter().take(n.max(0) as usize) {
            let what = e.u64;
            if what & EVENT_LINK != 0 {
                let (i, serial) = link_of(what);
                self.serve_link(i, serial, e.events);
            } else if what & EVENT_CARRIER != 0 {
                self.hear_carrier(what);
            } else if what & EVENT_ADVERT != 0 {
                let advert = (what & !EVENT_ADVERT) as usize;
                let kept = self.state.lock().take_callers(advert);
                if let Some(a) = self.advertised.get(advert).filter(|_| !kept) {
                    put_up(a, 0);
                }
            } else if what & EVENT_REQUESTS != 0 {
                self.requests.hear();
            } else {
                self.hear();
            }
        }
        if next != 0 {
            self.on_time();
        }
        self.agree_on_more();
        self.watch_carriers();
        self.pulls.start_if_due();
        true
    }

    /// The peers of these links are gone, most likely with their process. What becomes of each
    /// connection its carrier alone knows: a forked child of the peer's may go on with it, or the
    /// peer itself, which had no descriptor left for the link. What is sent goes there from now on,
    /// and a thread that only sends does not look there; this one does. Where bytes lie unread in
    /// the ring the carrier gets a moment to tell.
    fn watch_carriers(&self) {
        let (mut put_off, mut pause) = (0, TRY_PAUSE_NS);
        loop {
            let (epoll, i, draining, peer) = {
                let mut s = self.state.lock();
                if s.to_watch == 0 {
                    s.to_watch = put_off;
                    if put_off != 0 {
                        s.due(sys::now_ns() + pause);
                    }
                    return;
                }
                let i = s.to_watch.trailing_zeros() as usize;
                s.to_watch &= s.to_watch - 1;
                (s.epoll, i, s.draining(i), s.peer_of(i))
            };
            let Some((channel, serial)) = draining else { continue };
            let closes = core::cell::OnceCell::new();
            let may_close = || io::may_close(channel, || auth::is_ending(peer));
            for slot in 0..SLOTS {
                io::watch_carrier(channel, slot, epoll, carrier_event(i, serial, slot));
                if io::may_end(channel, slot) && *closes.get_or_init(may_close) {
                    put_off |= 1 << i;
                    pause = ENDS_PAUSE_NS;
                } else if !self.pulls.serve(|| io::leave_dead_channel(channel, slot)) {
                    put_off |= 1 << i;
                }
            }
        }
    }

    /// The carrier of a connection without a living link has ended, or half of it.
    fn hear_carrier(&self, event: u64) {
        let (i, serial) = link_of(event);
        let draining = self.state.lock().draining(i).filter(|d| d.1 == serial);
        if let Some((channel, _)) = draining {
            io::hear_carrier(channel, slot_of(event));
        }
    }

    /// Does what is due.
    fn on_time(&self) {
        let held_until = self.held_until.load(SeqCst);
        if held_until != 0 && held_until <= sys::now_ns() {
            // Before the look: what is held back after it says so again.
            self.held_until.store(0, SeqCst);
            self.look_at(io::send_held_in_time());
        }
        let watch_at = self.watch_at.load(SeqCst);
        if watch_at != 0 && watch_at <= sys::now_ns() {
            // Before the look, as above.
            self.watch_at.store(0, SeqCst);
            let again = io::look_at_unread(PathId::Shm);
            if again != 0 {
                self.watch_at.store(again, SeqCst);
            }
        }
        let sweep_at = self.sweep_at.load(SeqCst);
        if sweep_at != 0 && sweep_at <= sys::now_ns() {
            // Before the look, as above.
            self.sweep_at.store(0, SeqCst);
            let again = io::sweep_in_time();
            if again != 0 {
                let _ = self.sweep_at.compare_exchange(0, again, SeqCst, Relaxed);
            }
        }
        let look = {
            let mut s = self.state.lock();
            s.look();
            s.expire();
            s.next_advert_look != 0 && s.next_advert_look <= sys::now_ns()
        };
        loop {
            let given_up = self.state.lock().give_up_proofs();
            let Some(tuple) = given_up else { break };
            self.agree(&tuple);
        }
        if look {
            // Asks the kernel: without the lock.
            let listens = Listens::now();
            let mut s = self.state.lock();
            let gone = s.take_down_adverts(&listens);
            for (i, a) in self.advertised.iter().enumerate() {
                if gone & 1 << i != 0 {
                    put_up(a, 0);
                }
            }
        }
    }

    /// Rings hold bytes back until then (0: none does). True: this is news.
    fn look_at(&self, time: u64) -> bool {
        time != 0 && self.held_until.compare_exchange(0, time, SeqCst, Relaxed).is_ok()
    }

    /// An application thread left work.
    fn hear(&self) {
        let mut count = [0u8; 8];
        let _ = sys::read(self.bell.load(Acquire), &mut count);
        // Before the looks: what comes after them rings again.
        self.woken.store(false, SeqCst);
        self.on_time();
        let mut s = self.state.lock();
        if core::mem::take(&mut s.to_recycle) {
            for i in 0..LINKS {
                s.recycle(i);
            }
        }
    }

    fn serve_link(&self, i: usize, serial: u32, events: u32) {
        if events & libc::EPOLLOUT as u32 != 0 {
            let now_possible = {
                let mut s = self.state.lock();
                if s.readable(i, serial).is_none() {
                    return;
                }
                let r = s.has_room(i);
                if let Err(why) = r {
                    s.end_link(i, why);
                }
                r.unwrap_or_default()
            };
            for tuple in now_possible {
                self.agree(&tuple);
            }
        }
        if events & !(libc::EPOLLOUT as u32) == 0 {
            return;
        }
        for _ in 0..MESSAGES_IN_A_ROW {
            // Only this thread ends links, so the descriptor stays what it is without the lock.
            let Some(fd) = self.state.lock().readable(i, serial) else { return };
            let mut received = packet::receive(fd);
            if let Received::Files(message) = received {
                let due = self.state.lock().files_due(i, &message);
                received = if due { strangers::fetch(fd) } else { Received::Malformed };
            }
            let result = match received {
                Received::Nothing => return,
                Received::Message(message, fd, sender) => {
                    self.state.lock().handle(i, message, fd, sender)
                }
                Received::Files(_) => Err(Violation::Malformed),
                Received::End => Err(Violation::Ended),
                Received::NoDescriptor => Err(Violation::NoDescriptor),
                Received::Withheld => Err(Violation::Withheld),
                Received::OtherVersion => Err(Violation::OtherVersion),
                Received::Malformed => Err(Violation::Malformed),
            };
            let result = result.and_then(|then| self.follow_up(i, then));
            if let Err(why) = result {
                self.state.lock().end_link(i, why);
                return;
            }
        }
    }

    fn follow_up(&self, i: usize, then: Then) -> Result<(), Violation> {
        match then {
            Then::Nothing => {}
            Then::Agree(tuple) => self.agree(&tuple),
            Then::Look(look) => {
                // Asks the kernel: without the lock.
                let seen = look.ask();
                let then = self.state.lock().looked(look, seen)?;
                self.follow_up(i, then)?;
            }
            Then::PullBack(slot) => {
                let channel = self.state.lock().channel(i);
                if let Some(channel) = channel {
                    self.pulls.serve(|| io::serve_pull_back(channel, slot));
                }
            }
            Then::Unread => io::hear_unread(),
            Then::Left(slot) => {
                let channel = self.state.lock().channel(i);
                if let Some(channel) = channel {
                    io::hear_left(channel, slot);
                }
            }
        }
        Ok(())
    }

    /// Goes on with a connection of which both parts are known.
    fn agree(&self, tuple: &Tuple) {
        if self.state.lock().pair_for(tuple).is_some() {
            // Asks the kernel: without the lock.
            let own = auth::look(tuple);
            self.state.lock().prove(tuple, own);
        }
    }

    /// Those that wait for a place for their proof.
    fn agree_on_more(&self) {
        loop {
            let turn = self.state.lock().next_turn();
            if let Some(then) = turn {
                if let Then::Look(look) = then
                    && let Err(why) = self.follow_up(look.link(), then)
                {
                    self.state.lock().end_link(look.link(), why);
                }
                continue;
            }
            let next = self.state.lock().next_to_agree();
            let Some(tuple) = next else { return };
            self.agree(&tuple);
        }
    }

    // ---- what application threads ask -----------------------------------------------------------

    fn accepting(&'static self, port: u16) -> bool {
        let uid = sys::geteuid();
        let word = 1 << 48 | u64::from(port) << 32 | u64::from(uid);
        if self.is_running() && self.advertised.iter().any(|a| a.load(Acquire) == word) {
            return true;
        }
        if port == 0 || !self.ensure_started() {
            return false;
        }
        self.with(|s| {
            let made = s.advertise(port, uid);
            // (Another may have made room for it.)
            for (a, seen) in s.adverts.iter().zip(&self.advertised) {
                if a.port == port {
                    put_up(seen, if made { word } else { 0 });
                } else if (seen.load(Relaxed) >> 32) as u16 == port {
                    put_up(seen, 0);
                }
            }
            made
        })
        .unwrap_or(false)
    }

    /// Somebody is known to accept connections on the peer's port. `later`: the socket has received
    /// bytes.
    fn connected(&'static self, socket: &'static Socket, later: bool) -> bool {
        let port = socket.tuple().peer_port();
        // (One that is noted may have been found since by the service thread.)
        if (!socket.has(flag::NOTED) && self.absent.is_known(port, later)) || !self.ensure_started()
        {
            return false;
        }
        let done = self.with(|s| {
            if later && socket.has(flag::NOTED) && s.has_advertiser(port) {
                s.seek_all(port);
                return true;
            }
            s.seek(port, later)
        });
        let known = done.unwrap_or_default();
        if !known {
            self.absent.note(port, later);
        }
        known
    }

    /// `socket` is used: worth an agreement with its peer. False: none is possible.
    fn note(&'static self, socket: &'static Socket, generation: u16) -> bool {
        if !self.ensure_started() {
            socket.judge(self.hindrance().unwrap_or(Reason::Internal));
            return false;
        }
        // Before the look at its state: who closes it changes that first, and then looks for the
        // mark.
        socket.flags.fetch_or(flag::NOTED, SeqCst);
        let is_over = || !socket.may_be_offered() || socket.generation16() != generation;
        if socket.has(flag::CONNECTOR) {
            return self.with(|s| is_over() || s.add_connected(socket)) == Some(true);
        }
        let noted =
            self.with(|s| if is_over() { Some(false) } else { s.add_accepted(socket) }).flatten();
        if noted == Some(true) {
            // Its candidate is there.
            self.wake();
        }
        noted.is_some()
    }

    /// `socket` was looked for in vain, and is used on. False: it cannot be looked for.
    fn look_again(&'static self, socket: &'static Socket, generation: u16) -> bool {
        if !socket.has(flag::CONNECTOR) {
            self.accepting(socket.tuple().local_port());
            return self.note(socket, generation);
        }
        let is_over = || !socket.may_be_offered() || socket.generation16() != generation;
        self.ensure_started() && self.with(|s| is_over() || s.look_again(socket)) == Some(true)
    }

    /// `socket` has been sent on several times, and has received nothing. True: somebody is told of
    /// it.
    fn sending(&'static self, socket: &'static Socket) -> bool {
        if !self.ensure_started() {
            return false;
        }
        let generation = socket.generation16();
        // As in `note`.
        socket.flags.fetch_or(flag::NOTED, SeqCst);
        if !socket.may_be_offered() || socket.generation16() != generation {
            return false;
        }
        // Noted for whoever appears within the next second.
        self.with(|s| s.add_connected(socket) && s.has_advertiser(socket.tuple().peer_port()))
            == Some(true)
    }

    fn listener_closed(&self) {
        if self.is_running() && self.advertised.iter().any(|a| a.load(Acquire) != 0) {
            self.with(|s| s.look_at_adverts());
        }
    }

    fn closing(&self, socket: &Socket) {
        // Short connections never come to its notice.
        if !socket.has(flag::NOTED) || !self.is_running() {
            return;
        }
        let clear = self.with(|s| {
            s.closing(socket);
            s.to_recycle || s.could_prove()
        });
        if clear == Some(true) {
            self.wake();
        }
    }

    fn released(&self, channel: &Channel, slot: usize) {
        let clear = self.with(|s| s.released(channel, slot));
        if clear == Some(true) {
            self.wake();
        }
    }

    /// A socket was attached to a channel whose link has ended.
    fn attached_late(&self, channel: &Channel) {
        let done = self.with(|s| {
            if let Some(i) = s.link_with(channel) {
                s.to_watch |= 1 << i;
            }
        });
        if done.is_some() {
            self.wake();
        }
    }

    /// The peer of `channel` has broken the rules on a connection: the channel's record, and the
    /// log, say who it was.
    fn accuse(&self, channel: &Channel) {
        if let Some(Some((pid, uid))) = self.with(|s| s.accuse(channel)) {
            warn_log!(
                "process {pid} (user {uid}) wrote what no peer writes into shared memory: its connection is reset"
            );
        }
    }

    /// A dead channel has lost its last user.
    fn clear_away(&self) {
        if self.with(|s| s.to_recycle = true).is_some() {
            self.wake();
        }
    }

    fn give_up_inherited(&self) {
        let _ = self.with(State::give_up_inherited);
    }

    fn after_fork_in_child(&self) {
        self.pulls.after_fork_in_child();
        // One thread, no handlers of ours: the plain lock, which takes over what a thread of the
        // parent's held.
        self.state.lock().after_fork();
        strangers::after_fork_in_child();
        auth::after_fork_in_child();
        self.not_started.store(0, Relaxed);
        self.running.store(0, Release);
        self.held_until.store(0, Release);
        self.watch_at.store(0, Release);
        self.sweep_at.store(0, Release);
        io::forget_watch();
        io::forget_off();
        self.absent.forget_all();
        self.requests.leave();
        let bell = self.bell.swap(-1, AcqRel);
        if bell >= 0 {
            fd_table::close_internal(bell);
        }
        self.advertised.iter().for_each(|a| a.store(0, Release));
    }
}

/// Says which advert has a place, or, 0, that none has.
fn put_up(place: &AtomicU64, advert: u64) {
    let old = place.swap(advert, AcqRel);
    if old != 0 && old != advert {
        crate::agent::forget_told();
    }
}

fn run(service: *mut c_void) -> *mut c_void {
    // SAFETY: what `start` passed: a service, which lives for ever.
    let service = unsafe { &*service.cast::<Service>() };
    sys::block_all_signals();
    sys::name_thread(b"netacc\0");
    while service.turn(-1) {}
    // Somebody closed our descriptors behind our back: no more agreements, and no other thread;
    // what is agreed goes on.
    service.state.lock().start_again_at = u64::MAX;
    service.not_started.store(Reason::Internal as u32, Relaxed);
    service.running.store(0, Release);
    service.pulls.start_if_due();
    core::ptr::null_mut()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests;
