//! What is under way to other hosts when this process ends: a process that outlives it goes on with
//! it (`docs/design/keeper.md`).
//!
//! In the process that ends: [`finish`] waits a moment, then has the thread "netacc-rdma" make a
//! keeper, between two of its turns, and stand still ([`Remote::leave_to_keeper`]). In the keeper:
//! it waits until that process is gone, and goes on with the same [`Remote`] in the same memory
//! ([`Remote::become_keeper`]), where nothing of the fabric's is touched any more: pairs have ended
//! with the process. What is left are links, words, and carriers of its own.

use super::link::{Conn, Fault, Link, Phase};
use super::listeners::Listener;
use super::pair::PairState;
use super::{
    EVENT_BELL, EVENT_KIND, EVENT_LINK, EVENT_LISTENER, EVENT_SIGNAL, INBOX, Remote, TURN,
    close_own, leave, note_own, watch,
};
use crate::agent::Ending;
use crate::io;
use crate::keeper::{self, Life};
use crate::rdma_thread::{self, BELL, RUNNING, WOKEN};
use crate::slots::parting;
use crate::socket::{Socket, State};
use crate::{config, process, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::SocketAddr;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;
use netacc_proto::agreement::SlotState;
use netacc_proto::rendezvous::{Message, Role};

/// So long a process that ends waits itself: peers whose programs run have answered by then.
const HAND_OVER_NS: u64 = 10_000_000;
/// A program that has asked for a keeper and then goes on after all (an exec that failed) goes on
/// with its connections after so long.
const EXEC_NS: u64 = 2_000_000_000;
/// A carrier that the close will reset is left so long for what was sent on it to arrive, and
/// looked at so often.
const ARRIVE_NS: u64 = 2_000_000_000;
const ARRIVE_LOOK_NS: u64 = 10_000_000;
/// A program that was to end, and has asked for something since, gets another keeper when it has
/// been quiet for so long: then after twice as long each time, so often at most.
const QUIET_NS: u64 = 10_000_000;
const AGAIN_MAX: u32 = 8;
/// A keeper looks so often whether a child of the program's has left its memory.
const SHARED_LOOK_NS: i64 = 5_000_000;
/// How long a keeper lives from SIGTERM on, whatever its peers do.
const TERM_NS: u64 = 5_000_000_000;

/// Connections that are on their way back to their carriers get there, by this process within a
/// moment, or by one that outlives it. (It waits itself for those that children have, too.)
pub(super) fn finish(Ending { limit_ns, shared, for_good }: Ending) {
    if !rdma_thread::is_running() {
        return;
    }
    let began = sys::now_ns();
    let left = || limit_ns.saturating_sub(sys::now_ns().saturating_sub(began)).max(HAND_OVER_NS);
    if leave::finish(if shared { limit_ns } else { HAND_OVER_NS }) {
        return;
    }
    if life_ns() == 0 {
        // None is wanted.
        leave::finish(left());
        return;
    }
    let patience_ns = if for_good { keeper::ENDS } else { EXEC_NS };
    if !keeper::ask(rdma_thread::wake, patience_ns, left()) {
        leave::finish(left());
    }
}

/// For how long a keeper may live.
fn life_ns() -> u64 {
    u64::from(config::get().keeper_s) * 1_000_000_000
}

/// A connection that a keeper has.
struct Owing {
    socket: &'static Socket,
    generation: u32,
    link: usize,
    slot: usize,
    /// Its name of the carrier.
    fd: c_int,
    /// When it was the kernel's again, with bytes unread; 0: it is not, or has none.
    unread_since: u64,
}

/// What a keeper has.
pub(super) struct Keeping {
    connections: Vec<Owing>,
    /// All of its descriptors, in order.
    descriptors: Vec<c_int>,
    life: Option<Life>,
    /// The process that they were of is gone.
    taken_over: bool,
    /// When it ends.
    until: u64,
}

/// What a keeper hears of a peer; nothing new begins.
pub(super) fn concerns(frame: &Message) -> bool {
    !matches!(
        frame,
        Message::Candidate(_)
            | Message::Withdraw { .. }
            | Message::Accept { .. }
            | Message::Refuse { .. }
            | Message::Freed { .. }
            | Message::Pair(_)
            | Message::OfferLane(_)
    )
}

impl Owing {
    /// The socket is still this connection's: one that was closed is buried by who takes it back,
    /// with its name of the carrier.
    fn is_same(&self) -> bool {
        self.socket.generation.load(Acquire) == self.generation
    }

    fn is_current(&self) -> bool {
        self.is_same() && self.socket.is(State::Attached)
    }

    fn close(&self) {
        io::never_linger(self.fd);
        let _ = sys::close(self.fd);
    }

    /// With bytes unread the close resets the connection, and the kernel forgets what the peer's
    /// has not acknowledged. With TCP that had arrived long before.
    fn must_wait(&mut self, now: u64) -> bool {
        let waiting = |request: libc::c_ulong| {
            let mut bytes: c_int = 0;
            sys::ioctl(self.fd, request as usize, &raw mut bytes as usize) >= 0 && bytes > 0
        };
        if !waiting(libc::FIONREAD) || !waiting(libc::TIOCOUTQ) {
            return false;
        }
        if self.unread_since == 0 {
            self.unread_since = now;
        }
        now.saturating_sub(self.unread_since) < ARRIVE_NS
    }
}

impl Remote {
    /// This process is a keeper.
    pub(super) fn is_keeper(&self) -> bool {
        self.keeping.as_ref().is_some_and(|k| k.taken_over)
    }

    // ---- in the process that ends ---------------------------------------------------------------

    /// Makes a keeper for what is under way, and stands still as long as that may have to go on.
    pub(super) fn leave_to_keeper(&mut self) {
        let made = self.choose_kept(Life::new())
            && keeper::spawn(keep, core::ptr::from_mut(self) as usize);
        keeper::answer(made);
        if made && keeper::await_end(BELL.load(Acquire)) && self.keepers < AGAIN_MAX {
            self.keeper_at = sys::now_ns().saturating_add(QUIET_NS << self.keepers);
            self.keepers += 1;
            self.at(self.keeper_at);
        }
        // It goes on.
        if let Some(life) = self.keeping.take().and_then(|k| k.life) {
            life.dismiss();
            for fd in life.descriptors().into_iter().filter(|fd| *fd >= 0) {
                close_own(fd);
            }
        }
    }

    /// The program ends, has gone on for a while behind that, and is quiet now.
    pub(super) fn is_keeper_due(&mut self) -> bool {
        let due = self.keeper_at != 0 && self.keeper_at <= sys::now_ns();
        if due {
            self.keeper_at = 0;
        }
        due && rdma_thread::LEAVING.load(SeqCst) != 0
    }

    /// Notes what a keeper has to have. False: there is nothing, or no room for it.
    pub(super) fn choose_kept(&mut self, life: Option<Life>) -> bool {
        let (mut connections, mut descriptors) = (Vec::new(), Vec::new());
        for i in 0..self.links.len() {
            let Some(l) = self.link(i) else { continue };
            let Some(wire) = l.wire() else { continue };
            let live = l.conns.iter().enumerate().filter(|(_, c)| c.slot.is_live());
            for (slot, c) in live {
                let Some(socket) = c.socket else { continue };
                let leaves = wire.slot(slot).leave.load(SeqCst);
                let fd = socket.fd.load(Acquire);
                let kept =
                    Owing { socket, generation: c.generation, link: i, slot, fd, unread_since: 0 };
                // (Of forked children nobody knows who is left. One that finds its maker gone
                // breaks the connection off itself.)
                let leaves = leaves & (parting::WANTED | parting::GONE) == parting::WANTED;
                if !leaves || !kept.is_current() || fd < 0 {
                    continue;
                }
                if connections.try_reserve(1).is_err() {
                    return false;
                }
                connections.push(kept);
            }
        }
        let own = [self.epoll, BELL.load(Acquire)];
        let of_life = life.as_ref().map_or([-1; 3], Life::descriptors);
        let links = self.links.iter().flatten().map(|l| l.fd);
        let listeners =
            self.listeners.iter().filter(|l| self.comes_back(l, &connections)).map(|l| l.fd);
        let all = connections.iter().map(|k| k.fd).chain(links).chain(listeners).chain(own);
        // (Not the program's end of the pipe.)
        for fd in all.chain(of_life.into_iter().take(2)).filter(|fd| *fd >= 0) {
            if descriptors.try_reserve(1).is_err() {
                return false;
            }
            descriptors.push(fd);
        }
        for fd in of_life.into_iter().filter(|fd| *fd >= 0) {
            // Forked children close them.
            note_own(fd);
        }
        descriptors.sort_unstable();
        descriptors.dedup();
        let some = !connections.is_empty();
        self.keeping =
            Some(Keeping { connections, descriptors, life, taken_over: false, until: u64::MAX });
        some
    }

    /// A link of these connections would come back there, should it break.
    fn comes_back(&self, at: &Listener, connections: &[Owing]) -> bool {
        let is_of =
            |l: &Link| l.role == Role::Acceptor && SocketAddr::new(l.local, l.port) == at.local;
        connections.iter().any(|k| self.link(k.link).is_some_and(is_of))
    }

    #[cfg(test)]
    pub(super) fn kept_carriers(&self) -> Vec<c_int> {
        self.keeping.iter().flat_map(|k| &k.connections).map(|k| k.fd).collect()
    }

    // ---- in the keeper --------------------------------------------------------------------------

    /// The process that all this was of is gone, and with it the pairs. What is not kept is
    /// forgotten; its carriers have ended.
    pub(super) fn become_keeper(&mut self) {
        let Some(mut keeping) = self.keeping.take() else { return };
        keeping.taken_over = true;
        keeping.until = sys::now_ns().saturating_add(life_ns());
        keeping.connections.retain(|k| {
            // (What the process has closed before its end has nothing left to do.)
            let current = k.is_current();
            if current {
                k.socket.owner.store(process::id(), Relaxed);
                k.socket.fd.store(k.fd, Release);
            } else {
                k.close();
            }
            current
        });
        let kept: Vec<(usize, usize)> =
            keeping.connections.iter().map(|k| (k.link, k.slot)).collect();
        self.devices.abandon();
        let unused = |l: &Listener| !self.comes_back(l, &keeping.connections);
        let unused: Vec<bool> = self.listeners.iter().map(unused).collect();
        self.keeping = Some(keeping);
        for (l, unused) in self.listeners.iter_mut().zip(unused) {
            l.cm = None;
            if unused {
                // (It has no such descriptor.)
                l.fd = -1;
            }
        }
        for table in [&mut self.connected, &mut self.accepted] {
            while let Some(key) = table.oldest() {
                table.remove(key);
            }
        }
        while let Some(key) = self.candidates.oldest() {
            self.candidates.remove(key);
        }
        for i in 0..self.links.len() {
            self.take_link_over(i, &kept);
        }
        (self.watch_at, self.progress_at, self.timer) = (0, 0, 1);
    }

    fn take_link_over(&mut self, i: usize, kept: &[(usize, usize)]) {
        let Some(l) = self.link_mut(i) else { return };
        if !matches!(l.phase, Phase::Up) && l.broken_at == 0 {
            // Nothing was agreed on it yet.
            l.phase = Phase::Gone;
            return;
        }
        l.waiting.clear();
        core::mem::forget((l.arenas.take(), l.domain.take()));
        let mut ended = Vec::new();
        for p in l.pairs.take_all() {
            if matches!(p.state, PairState::Ready | PairState::Ending) {
                ended.push(p.number);
            }
            core::mem::forget(p);
        }
        let (channel, wire) = (l.channel, l.wire());
        let mut others = Vec::new();
        for (slot, c) in l.conns.iter_mut().enumerate() {
            core::mem::forget(c.rings.take());
            if let Some(w) = wire {
                w.slot(slot).lanes.store(core::ptr::null_mut(), Release);
            }
            match c.slot.state {
                SlotState::Free => {}
                SlotState::Live if kept.contains(&(i, slot)) => {
                    if let Some(channel) = channel {
                        channel.far.words_changed(slot);
                    }
                }
                SlotState::Live => others.push(slot),
                _ => *c = Conn::FREE,
            }
        }
        for pair in ended {
            self.send(i, Message::PairEnd { pair });
        }
        for slot in others {
            self.say_last(i, slot);
            if let Some(c) = self.link_mut(i).and_then(|l| l.conns.get_mut(slot)) {
                *c = Conn::FREE;
            }
        }
    }

    /// A turn's work.
    pub(super) fn work_on_kept(&mut self, events: &[epoll_event]) {
        for e in events.iter() {
            let (what, bits) = (e.u64, e.events);
            let rest = what & !EVENT_KIND;
            match what & EVENT_KIND {
                EVENT_BELL => {
                    let mut count = [0u8; 8];
                    let _ = sys::read(BELL.load(Acquire), &mut count);
                    WOKEN.store(false, SeqCst);
                }
                EVENT_LISTENER => self.take_callers(rest as usize),
                EVENT_LINK => self.serve_link((rest & 0xffff) as usize, (rest >> 16) as u32, bits),
                EVENT_SIGNAL => {
                    let _ = sys::read(rest as c_int, &mut [0u8; 128]);
                    let until = sys::now_ns().saturating_add(TERM_NS);
                    if let Some(k) = self.keeping.as_mut() {
                        k.until = k.until.min(until);
                    }
                }
                _ => {}
            }
        }
        // (There are none.)
        let _ = rdma_thread::take_pair_news();
        if self.timer != 0 && self.timer <= sys::now_ns() {
            self.timer = 0;
            self.time_links();
            self.time_deaf();
        }
        self.serve_words();
        self.go_on_leaving();
        self.let_go_of_kept();
    }

    /// What is the kernel's again is closed, as the process's end would have closed it.
    fn let_go_of_kept(&mut self) {
        let Some(mut keeping) = self.keeping.take() else { return };
        let mut look_at = keeping.until;
        keeping.connections.retain_mut(|k| {
            let leaves = self
                .link(k.link)
                .and_then(|l| Some(l.wire()?.slot(k.slot).leave.load(SeqCst)))
                .unwrap_or(0);
            if k.is_current() && leaves & parting::WANTED != 0 {
                return true;
            }
            let now = sys::now_ns();
            if k.is_same() && k.must_wait(now) {
                look_at = look_at.min(now + ARRIVE_LOOK_NS);
                return true;
            }
            if k.is_same() {
                k.close();
            }
            false
        });
        self.keeping = Some(keeping);
        if self.keeps_any() {
            self.at(look_at);
        }
    }

    /// Whether there is anything left for it to do.
    pub(super) fn keeps_any(&self) -> bool {
        self.keeping.as_ref().is_some_and(|k| !k.connections.is_empty() && sys::now_ns() < k.until)
    }

    /// The peers' libraries need not wait for it.
    pub(super) fn take_leave(&mut self) {
        for i in 0..self.links.len() {
            self.flush(i);
            self.on_link_fault(i, Fault::Idle);
        }
    }
}

/// A keeper, from its first instruction to its last.
extern "C" fn keep(remote: usize) -> ! {
    // SAFETY: the thread "netacc-rdma" has handed it over, and stands still as long as this process
    // may use it, or has ended.
    let remote = unsafe { &mut *(remote as *mut Remote) };
    let is_over = remote
        .keeping
        .as_ref()
        .and_then(|k| Some(keeper::stand_by(k.life.as_ref()?, &k.descriptors)));
    if is_over != Some(true) {
        sys::exit_process();
    }
    // A vfork's child of the program's, on its way to an exec, may have the memory still.
    let until = sys::now_ns().saturating_add(life_ns());
    let alone = loop {
        match sys::is_memory_shared() {
            Some(true) if sys::now_ns() >= until => sys::exit_process(),
            Some(true) => sys::pause_ns(SHARED_LOOK_NS),
            alone => break alone.is_some(),
        }
    };
    keeper::take_memory();
    // What threads of the program's may have been changing when it ended.
    crate::sets::forget();
    INBOX.forget();
    RUNNING.store(process::id(), Release);
    WOKEN.store(false, SeqCst);
    TURN.store(0, SeqCst);
    remote.become_keeper();
    if alone {
        keeper::give_memory_back();
    }
    let signals = sys::signal_fd(libc::SIGTERM) as c_int;
    if signals >= 0 {
        let _ = watch(remote.epoll, signals, libc::EPOLLIN as u32, EVENT_SIGNAL | signals as u64);
    }
    while remote.keeps_any() && remote.turn() {}
    remote.take_leave();
    sys::exit_process();
}
