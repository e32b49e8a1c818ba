//! TCP connections between libraries: greeted, written to, ended, resumed. A connecting process has
//! one to each process that accepts at a destination ([`super::destinations`] finds them), an
//! accepting one has those that [`super::listeners`] takes. The acceptor speaks first.

use super::destinations::Answer;
use super::link::{
    ANSWER_NS, CONNECT_NS, Fault, Link, Packets, Phase, Route, Trust, event, set_up,
};
use super::pair::PairState;
use super::pair_list::Pairs;
use super::shares::Source;
use super::unheard::Unheard;
use super::{Remote, arenas, devices, keeper, pairs, watch};
use crate::log::debug_log;
use crate::{config, stats, sys};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::SocketAddr;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{ChannelState, Counter, LIBRARY_NUMBERS};
use netacc_proto::rendezvous::{
    DecodeError, Hello, HostHello, MAX_MESSAGE, Message, Peers, Role, VERSION,
};

/// Reads of one link in a row.
const READS: usize = 4;
/// What waits to be written to a peer that does not read.
const OUTPUT_MAX: usize = 1 << 20;
/// Words wait while so much does.
const OUTPUT_BUSY: usize = 1 << 16;

impl Remote {
    pub(super) fn link(&self, i: usize) -> Option<&Link> {
        self.links.get(i)?.as_deref()
    }

    pub(super) fn link_mut(&mut self, i: usize) -> Option<&mut Link> {
        self.links.get_mut(i)?.as_deref_mut()
    }

    pub(super) fn new_link(
        &mut self,
        fd: c_int,
        role: Role,
        phase: Phase,
        route: Route,
    ) -> Option<usize> {
        let Route { local, peer, port, k, device } = route;
        let source = Source::of(peer);
        let i = self.room_for_link(role, source)?;
        if role == Role::Acceptor && !self.shares.add_link(source) {
            return None;
        }
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        set_up(fd);
        let connecting = phase == Phase::Connecting;
        let events = (libc::EPOLLIN | if connecting { libc::EPOLLOUT } else { 0 }) as u32;
        if !watch(self.epoll, fd, events, event(serial, i)) {
            self.uncount_link(role, source, false);
            return None;
        }
        let now = sys::now_ns();
        self.at(now + if connecting { CONNECT_NS } else { ANSWER_NS });
        let mut key = [0u8; 16];
        sys::random(&mut key);
        let new = Link {
            serial,
            fd,
            role,
            phase,
            local,
            peer,
            port,
            k,
            since: now,
            hello: None,
            trust: Trust::None,
            device,
            cm_port: 0,
            key,
            broken_at: 0,
            deserted: false,
            retries: 0,
            answered_at: 0,
            input: Vec::new(),
            output: VecDeque::new(),
            blocked: connecting,
            unheard: Unheard::default(),
            domain: None,
            arenas: None,
            stale: false,
            channel: None,
            conns: Vec::new(),
            refused: 0,
            pairs: Pairs::default(),
            next_pair: 0,
            pair_after: 0,
            pair_pause: 0,
            opened_unix_ns: sys::unix_ns(),
            connections: 0,
            packets: Packets::default(),
            waiting: VecDeque::new(),
        };
        *self.links.get_mut(i)? = Some(Box::new(new));
        Some(i)
    }

    /// Brings what is shown of the links up to date.
    pub(super) fn show(&self) {
        for (i, l) in self.links.iter().enumerate() {
            let Some(r) = stats::remote_record(i) else { return };
            let Some((l, hello)) = l.as_deref().and_then(|l| Some((l, l.hello?))) else {
                if r.state.load(Relaxed) != ChannelState::Free as u32 {
                    r.state.store(ChannelState::Free as u32, Relaxed);
                }
                continue;
            };
            r.peer_pid.store(hello.hello.pid, Relaxed);
            stats::set_remote_library(i, hello.hello.lib_version);
            r.set_peer(l.peer);
            r.slots_used
                .store(l.conns.iter().filter(|c| !c.slot.is_free()).count() as u32, Relaxed);
            r.slots_total.store(crate::channel::SLOTS as u32, Relaxed);
            r.arena_bytes.store(l.arenas.as_ref().map_or(0, |a| a.registered() as u64), Relaxed);
            r.connections_total.store(l.connections, Relaxed);
            r.opened_unix_ns.store(l.opened_unix_ns, Relaxed);
            r.pairs.store(
                l.pairs.iter().filter(|p| p.state == PairState::Ready).count() as u32,
                Relaxed,
            );
            let state = if l.is_up() { ChannelState::Open } else { ChannelState::Draining };
            r.state.store(state as u32, Release);
        }
    }

    // ---- one link -------------------------------------------------------------------------------

    pub(super) fn time_links(&mut self) {
        let now = sys::now_ns();
        for i in 0..self.links.len() {
            let Some(l) = self.link(i) else { continue };
            match l.phase {
                Phase::Broken => self.time_broken(i, now),
                _ if l.is_at_its_door() => self.time_broken(i, now),
                Phase::Connecting | Phase::Greeting | Phase::Resuming if now >= l.patience() => {
                    if l.phase == Phase::Connecting {
                        self.port_answers(i, Answer::Silent);
                    }
                    self.on_link_fault(i, Fault::NotFound)
                }
                Phase::Connecting | Phase::Greeting | Phase::Resuming => {
                    let at = l.patience();
                    self.at(at);
                    self.end_probes_in_time(i, now);
                }
                Phase::Gone if !l.in_use() => self.drop_link(i),
                Phase::Up => {
                    self.time_commitment(i);
                    self.time_unheard(i, now)
                }
                _ => {}
            }
        }
    }

    pub(super) fn greet(&mut self, i: usize) {
        let Some(l) = self.link(i) else { return };
        let (role, port, device) = (l.role, l.port, l.device);
        let resumes = l.broken_at != 0;
        let key = if resumes { l.hello.map_or(l.key, |h| h.key) } else { l.key };
        let Some(facts) = self.facts(device) else { return };
        let config = config::get();
        let hello = HostHello {
            hello: Hello::new(LIBRARY_NUMBERS, sys::getpid(), role),
            process: self.process,
            port,
            immediate: facts.writes_imm,
            transport: devices::transport_code(facts.transport),
            receives: devices::depth(&facts) as u16,
            ring_log2: arenas::ring_bytes(config).trailing_zeros() as u8,
            lanes: pairs::lanes(config),
            resumes,
            key,
        };
        self.send(i, Message::HostHello(hello));
    }

    /// Sends, or leaves it to be sent when there is room.
    pub(super) fn send(&mut self, i: usize, message: Message) {
        let Some(l) = self
            .link_mut(i)
            .filter(|l| matches!(l.phase, Phase::Greeting | Phase::Resuming | Phase::Up))
        else {
            return;
        };
        let mut bytes = [0u8; MAX_MESSAGE];
        let n = message.encode(&mut bytes);
        if l.output.len() > OUTPUT_MAX || l.output.try_reserve(n).is_err() {
            self.on_link_fault(i, Fault::Stuck);
            return;
        }
        l.output.extend(bytes.get(..n).unwrap_or(&[]));
    }

    /// Whether words should wait: the peer does not read.
    pub(super) fn is_busy(&self, i: usize) -> bool {
        self.link(i).is_none_or(|l| l.output.len() > OUTPUT_BUSY)
    }

    /// Writes what waits.
    pub(super) fn flush(&mut self, i: usize) {
        let epoll = self.epoll;
        let Some(l) = self
            .link_mut(i)
            .filter(|l| matches!(l.phase, Phase::Greeting | Phase::Resuming | Phase::Up))
        else {
            return;
        };
        let any = !l.output.is_empty();
        while !l.output.is_empty() {
            let (first, _) = l.output.as_slices();
            // SAFETY: a live buffer.
            let r = unsafe {
                sys::sendto(
                    l.fd,
                    first.as_ptr(),
                    first.len(),
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            if r > 0 {
                l.output.drain(..r as usize);
            } else if r == -(libc::EAGAIN as isize) || r == -(libc::EINTR as isize) {
                break;
            } else {
                self.on_link_fault(i, Fault::Ended);
                return;
            }
        }
        let blocked = !l.output.is_empty();
        let drained = !blocked && l.blocked && l.role == Role::Connector && l.is_up();
        if blocked != l.blocked {
            l.blocked = blocked;
            let events = (libc::EPOLLIN | if blocked { libc::EPOLLOUT } else { 0 }) as u32;
            let _ = watch(epoll, l.fd, events, event(l.serial, i));
        }
        if any {
            self.listen_for_answer(i);
        }
        if drained {
            // Candidates that were not told of for want of room.
            self.announce_all(i);
        }
    }

    /// Writes what waits on all links.
    pub(super) fn flush_all(&mut self) {
        for i in 0..self.links.len() {
            if self.link(i).is_some_and(|l| !l.output.is_empty() && !l.blocked) {
                self.flush(i);
            }
        }
    }

    pub(super) fn serve_link(&mut self, i: usize, serial: u32, events: u32) {
        let Some(l) = self
            .link_mut(i)
            .filter(|l| l.serial == serial && !matches!(l.phase, Phase::Gone | Phase::Broken))
        else {
            return;
        };
        if l.phase == Phase::Connecting {
            let mut error: c_int = 0;
            let asked = sys::getsockopt(l.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
            if asked < 0 || error != 0 {
                let refused = asked >= 0 && error == libc::ECONNREFUSED;
                self.port_answers(i, if refused { Answer::Refused } else { Answer::Silent });
                if let Some(l) = self.link_mut(i) {
                    l.deserted |= refused && l.broken_at != 0;
                }
                self.on_link_fault(i, Fault::NotFound);
                return;
            }
            if events & libc::EPOLLOUT as u32 == 0 {
                return;
            }
            let now = sys::now_ns();
            (l.phase, l.since, l.answered_at) = (Phase::Greeting, now, now);
            self.port_answers(i, Answer::Taken);
            let Some(l) = self.link(i) else { return };
            // Connected to itself (a free port of this host): nobody.
            let mut raw = [[0u8; 128]; 2];
            let [a, b] = &mut raw;
            if sys::socket_name(l.fd, false, a) == sys::socket_name(l.fd, true, b) && a == b {
                self.on_link_fault(i, Fault::NotFound);
                return;
            }
        }
        if events & libc::EPOLLOUT as u32 != 0 {
            self.flush(i);
        }
        if let Err(why) = self.read(i) {
            self.on_link_fault(i, why);
        }
    }

    fn read(&mut self, i: usize) -> Result<(), Fault> {
        // Bounded: what is left is told again, after the others' turn.
        for _ in 0..READS {
            let Some(l) =
                self.link_mut(i).filter(|l| !matches!(l.phase, Phase::Gone | Phase::Broken))
            else {
                return Ok(());
            };
            let mut part = [0u8; 8192];
            // SAFETY: a live buffer.
            let r = unsafe {
                sys::recvfrom(
                    l.fd,
                    part.as_mut_ptr(),
                    part.len(),
                    libc::MSG_DONTWAIT,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            };
            let n = match r {
                1.. => r as usize,
                0 => return Err(Fault::Closed),
                e if e == -(libc::EAGAIN as isize) || e == -(libc::EINTR as isize) => return Ok(()),
                _ => return Err(Fault::Ended),
            };
            l.input.try_reserve(n).map_err(|_| Fault::NoMemory)?;
            l.input.extend_from_slice(part.get(..n).unwrap_or(&[]));
            let mut at = 0;
            loop {
                let Some(l) =
                    self.link(i).filter(|l| !matches!(l.phase, Phase::Gone | Phase::Broken))
                else {
                    return Ok(());
                };
                let rest = l.input.get(at..).unwrap_or(&[]);
                let Some(len) = Message::length(rest).map_err(|_| Fault::Malformed)? else { break };
                let Some(bytes) = rest.get(..len) else { break };
                let message = Message::decode(bytes, Peers::TwoHosts).map_err(|e| match e {
                    DecodeError::Format => Fault::OtherVersion,
                    _ => Fault::Malformed,
                })?;
                at += len;
                self.handle(i, message)?;
            }
            let Some(l) = self.link_mut(i) else { return Ok(()) };
            l.input.drain(..at.min(l.input.len()));
        }
        Ok(())
    }

    fn handle(&mut self, i: usize, message: Message) -> Result<(), Fault> {
        let Some(l) = self.link(i) else { return Ok(()) };
        if l.phase == Phase::Greeting {
            let Message::HostHello(hello) = message else { return Err(Fault::Malformed) };
            return self.on_hello(i, hello);
        }
        if l.phase == Phase::Resuming {
            let Message::Resume { known, key } = message else { return Err(Fault::Malformed) };
            // Somebody else may have the port, and the name of the process that had it.
            if !known || key != l.key {
                return Err(Fault::Over);
            }
            self.resume(i);
            return Ok(());
        }
        if !message.is_said_by(l.role.peer()) {
            return Err(Fault::Malformed);
        }
        if self.is_keeper() && !keeper::concerns(&message) {
            return Ok(());
        }
        match message {
            Message::Candidate(c) => self.on_candidate(i, c),
            Message::Withdraw { token } => self.on_withdraw(i, token),
            Message::Accept { token, slot } => self.on_accept(i, token, slot),
            Message::Refuse { token, slot, reason } => self.on_refuse(i, token, slot, reason),
            Message::Freed { slot } => self.on_freed(i, slot),
            Message::Pair(p) => self.on_pair(i, p),
            Message::OfferLane(o) => self.on_offer(i, o),
            Message::Commit { token, digest } => self.on_commit(i, token, digest),
            Message::Open { token, nonce, stamp } => self.on_open(i, token, nonce, stamp),
            Message::PairReady { pair } => self.on_pair_ready(i, pair),
            Message::PairAsk { pair } => {
                self.on_pair_ask(i, pair);
                Ok(())
            }
            Message::PairHas { pair, messages } => self.on_pair_has(i, pair, messages),
            Message::PairEnd { pair } => {
                self.on_pair_end(i, pair);
                Ok(())
            }
            Message::Words(w) => self.on_words(i, w),
            Message::Synced => {
                self.on_synced(i);
                Ok(())
            }
            Message::Bye => Err(Fault::Over),
            _ => Err(Fault::Malformed),
        }
    }

    fn on_hello(&mut self, i: usize, hello: HostHello) -> Result<(), Fault> {
        let Some(l) = self.link(i) else { return Ok(()) };
        let (role, port, device, local, peer) = (l.role, l.port, l.device, l.local, l.peer);
        if hello.hello.version != VERSION {
            return Err(Fault::OtherVersion);
        }
        let transport = self.facts(device).map(|f| devices::transport_code(f.transport));
        // Another process's port may lie where ours is looked for; and nobody talks to himself.
        let fits =
            hello.hello.fits(role) && hello.port == port && transport == Some(hello.transport);
        if !fits
            || hello.process == self.process
            || !(12..=26).contains(&hello.ring_log2)
            || !(1..=4096).contains(&hello.lanes)
        {
            return Err(Fault::NotFound);
        }
        let known = |l: &Link| {
            l.role == role
                && l.port == port
                && l.peer == peer
                && l.local == local
                && l.hello.is_some_and(|h| h.process == hello.process)
        };
        if role == Role::Connector && self.link(i).is_some_and(|l| l.broken_at != 0) {
            // Another process has its port: the one that we knew is gone.
            if !self.link(i).is_some_and(known) {
                return Err(Fault::Over);
            }
            self.greet(i);
            if let Some(l) = self.link_mut(i) {
                l.phase = Phase::Resuming;
            }
            return Ok(());
        }
        if role == Role::Acceptor && hello.resumes {
            let earlier = self.links.iter().position(|l| {
                l.as_deref().is_some_and(|l| {
                    matches!(l.phase, Phase::Up | Phase::Broken) && known(l) && l.key == hello.key
                })
            });
            if let Some(earlier) = earlier {
                return self.take_over(earlier, i);
            }
            self.send(i, Message::Resume { known: false, key: [0; 16] });
            // It may be the last word.
            self.flush(i);
        }
        if role == Role::Acceptor && self.has_too_many(Source::of(peer), 0) {
            // It was let in because it might have resumed a link.
            return Err(Fault::NotFound);
        }
        if self.is_keeper() {
            // Nothing new begins with it.
            return Err(Fault::NotFound);
        }
        // Who has shown nothing may have another one's name, so it keeps nobody out: neither who
        // answers, nor who calls (each of its claims is shown for itself).
        if role == Role::Acceptor {
            self.end_earlier(i, hello.process);
        }
        let counts = |l: &Link| l.phase == Phase::Up && l.is_proven();
        if self.links.iter().flatten().any(|l| counts(l) && known(l)) {
            return Err(Fault::NotFound);
        }
        if role == Role::Connector {
            self.greet(i);
        }
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        l.phase = Phase::Up;
        l.hello = Some(hello);
        if role == Role::Acceptor {
            self.shares.greeted(Source::of(peer));
        }
        stats::count(Counter::RdmaLinks);
        debug_log!("link to process {} at {peer}, port {port}", hello.hello.pid);
        if role == Role::Connector {
            self.destination_is_found(local, SocketAddr::new(peer, port));
            self.announce_all(i);
        }
        Ok(())
    }

    /// A process that calls again has lost its earlier link: if that is over it ends before
    /// anything is said on this one.
    fn end_earlier(&mut self, i: usize, process: [u8; 16]) {
        for other in (0..self.links.len()).filter(|other| *other != i) {
            let is_over = |l: &Link| {
                l.role == Role::Acceptor
                    && l.is_up()
                    && l.hello.is_some_and(|h| h.process == process)
                    && crate::carrier::peer_ended(l.fd)
            };
            if self.link(other).is_some_and(is_over) {
                self.on_link_fault(other, Fault::Ended);
            }
        }
    }

    // ---- a link that breaks, and is resumed -----------------------------------------------------

    /// Nothing new is made on a device that goes away; what was is closed when nobody uses it any
    /// more.
    pub(super) fn leave_device(&mut self, device: usize) {
        for i in 0..self.links.len() {
            if let Some(l) = self.link_mut(i).filter(|l| l.device == device) {
                l.stale = l.domain.is_some();
            }
            self.renew_memory(i);
        }
        self.close_managers_listeners(device);
    }

    /// Nothing is left of a link.
    pub(super) fn drop_link(&mut self, i: usize) {
        let Some(place) = self.links.get_mut(i) else { return };
        let Some(link) = place.take() else { return };
        self.uncount_link(link.role, Source::of(link.peer), link.hello.is_some());
        if self.is_keeper() {
            // Its memory is the process's, which ends.
            core::mem::forget(link);
            return;
        }
        self.take_apart(*link);
    }
}
