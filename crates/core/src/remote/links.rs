//! TCP connections between libraries: greeted, written to, ended, resumed. A connecting process has
//! one to each process that accepts at a destination ([`super::destinations`] finds them), an
//! accepting one has those that [`super::listeners`] takes. The acceptor speaks first.

use super::destinations::{Answer, CONNECT_NS};
use super::memory::{self, Arenas};
use super::pair_list::Pairs;
use super::pairs::{self, Pair};
use super::policy::Packets;
use super::proof::Trust;
use super::shares::{LINKS_MAX, Source};
use super::unheard::Unheard;
use super::{EVENT_LINK, Remote, Theirs, devices, keeper, net, note_own, watch};
use crate::carrier::sockaddr;
use crate::channel::Channel;
use crate::log::debug_log;
use crate::socket::{Socket, State};
use crate::tuple_table::Key;
use crate::wire::Wire;
use crate::{config, numbers, stats, sys};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{ChannelState, Counter};
use netacc_proto::agreement::Slot;
use netacc_proto::rendezvous::{
    DecodeError, Hello, HostHello, MAX_MESSAGE, Message, Peers, Role, Tuple, VERSION,
};

/// A peer that has not answered, or not greeted, for so long is given up.
pub(super) const ANSWER_NS: u64 = 1_000_000_000;
/// Reads of one link in a row.
const READS: usize = 4;
/// What waits to be written to a peer that does not read.
const OUTPUT_MAX: usize = 1 << 20;
/// Words wait while so much does.
const OUTPUT_BUSY: usize = 1 << 16;
const LIB_VERSION: [u16; 3] = [0, 1, 0];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// TCP's handshake is under way.
    Connecting,
    /// The peer has not greeted.
    Greeting,
    /// Connector: it has, and is to say whether it still knows what was agreed.
    Resuming,
    Up,
    /// The TCP connection has broken; what was agreed on it goes on, and is resumed on another one.
    Broken,
    /// The TCP connection has ended for good; connections are still on the channel.
    Gone,
}

/// Why a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It ended.
    Ended,
    /// The peer's process is gone, and its kernel has closed it: who lives says so first, or resets
    /// it.
    Closed,
    /// The peer has said so, or has not come back.
    Over,
    /// Nobody is there, or somebody else.
    NotFound,
    /// The peer broke the rules.
    Malformed,
    /// It is not who accepts there.
    Impostor,
    OtherVersion,
    /// It does not read.
    Stuck,
    NoMemory,
    /// It is of no use any more.
    Idle,
}

/// What we know of a slot of a link's.
pub(super) struct Conn {
    /// Whose it is.
    pub(super) slot: Slot,
    /// Acceptor: the claim that it was offered for.
    pub(super) theirs: Option<Theirs>,
    /// Acceptor: the waiting socket.
    pub(super) waiting: Key,
    pub(super) socket: Option<&'static Socket>,
    pub(super) generation: u32,
    pub(super) pair: u32,
    pub(super) lane: u16,
    /// Its rings, until the pair has them.
    pub(super) rings: Option<netacc_rdma::arena::Rings<net::Net>>,
    /// What was last said of it.
    pub(super) published: Option<netacc_proto::rendezvous::Words>,
    /// The peer's last request.
    pub(super) asked: u32,
    /// When its way back began to wait for its reader; 0: it has not.
    pub(super) leaves_since: u64,
    /// It is in [`Remote::readers`].
    pub(super) awaits_reader: bool,
}

impl Conn {
    pub(super) const FREE: Conn = Conn {
        slot: Slot::FREE,
        theirs: None,
        waiting: Key(u64::MAX),
        socket: None,
        generation: 0,
        pair: 0,
        lane: 0,
        rings: None,
        published: None,
        asked: 0,
        leaves_since: 0,
        awaits_reader: false,
    };

    /// Its connection has it, and a carrier.
    pub(super) fn is_carried(&self) -> bool {
        let has = |s: &Socket| s.generation.load(Acquire) == self.generation;
        self.slot.is_live() && self.socket.is_some_and(|s| has(s) && s.is(State::Attached))
    }
}

/// A connection that waits for a place on a pair.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) tuple: Tuple,
    /// The traffic class of the pair.
    pub(super) class: u8,
}

/// A TCP connection to another process's library, and what was agreed on it.
pub(super) struct Link {
    pub(super) serial: u32,
    pub(super) fd: c_int,
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    /// The port of the connections that it is for.
    pub(super) port: u16,
    pub(super) k: u8,
    /// When it was made; when it was last of use, broke, or was tried to resume.
    pub(super) since: u64,
    pub(super) hello: Option<HostHello>,
    pub(super) trust: Trust,
    pub(super) device: usize,
    /// Acceptor: where the manager listens for its pairs.
    pub(super) cm_port: u16,
    /// Ours, for this link alone.
    key: [u8; 16],
    /// When it broke, and how often it was tried to resume since.
    pub(super) broken_at: u64,
    pub(super) retries: usize,
    /// Connector: when the peer's host last answered a try to resume it, or that ended.
    pub(super) answered_at: u64,
    /// While it is broken: the peer's process is gone, or, for a connector, nobody listens any more
    /// where it did.
    pub(super) deserted: bool,
    pub(super) input: Vec<u8>,
    pub(super) output: VecDeque<u8>,
    pub(super) blocked: bool,
    pub(super) unheard: Unheard,
    pub(super) domain: Option<net::Domain>,
    pub(super) arenas: Option<Arenas>,
    /// Domain and arenas are those of a device that is gone.
    pub(super) stale: bool,
    pub(super) channel: Option<&'static Channel>,
    pub(super) conns: Vec<Conn>,
    /// Acceptor: slots below that are not offered first, because the last of them was in use at the
    /// peer.
    pub(super) refused: usize,
    pub(super) pairs: Pairs,
    pub(super) next_pair: u32,
    /// No new pair before that; and how long the next pause is.
    pub(super) pair_after: u64,
    pub(super) pair_pause: u64,
    /// When it was greeted, and the connections that it has carried: for people.
    opened_unix_ns: u64,
    pub(super) connections: u64,
    /// What its packets tell of what the kernel does with them.
    pub(super) packets: Packets,
    /// Acceptor: connections of which both ends are there, and no pair is.
    pub(super) waiting: VecDeque<Waiting>,
}

impl Link {
    pub(super) fn wire(&self) -> Option<&'static Wire> {
        self.channel.and_then(|c| c.far.mirror())
    }

    /// The channel's slots in use, or a thread still connecting a pair of it.
    pub(super) fn in_use(&self) -> bool {
        self.conns.iter().any(|c| !c.slot.is_free()) || self.pairs.iter().any(Pair::is_connecting)
    }

    /// Somebody has called, and has not greeted.
    pub(super) fn is_caller(&self) -> bool {
        self.role == Role::Acceptor && self.hello.is_none()
    }

    /// It broke, and the peer's host has taken a try to resume it. Its process has said nothing,
    /// because it is stopped, say: that one try is kept, as the kernel takes only so many.
    pub(super) fn is_at_its_door(&self) -> bool {
        self.broken_at != 0 && matches!(self.phase, Phase::Greeting | Phase::Resuming)
    }

    /// Until when an answer is waited for.
    fn patience(&self) -> u64 {
        let tries = self.phase == Phase::Connecting && self.broken_at == 0;
        self.since + if tries { CONNECT_NS } else { ANSWER_NS }
    }

    /// Connector: what a candidate's agreement knows it by, among those to its destination.
    pub(super) fn number(&self) -> usize {
        usize::from(self.k)
    }

    /// The peer can be talked to.
    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Connections from `local` to `peer` are what it is for.
    pub(super) fn leads_to(&self, local: IpAddr, peer: SocketAddr) -> bool {
        self.role == Role::Connector
            && self.local == local
            && self.peer == peer.ip()
            && self.port == peer.port()
    }

    pub(super) fn immediate(&self, ours: bool) -> bool {
        ours && self.hello.is_some_and(|h| h.immediate)
    }
}

/// What the epoll set says of a link.
pub(super) fn event(serial: u32, i: usize) -> u64 {
    const _: () = assert!(LINKS_MAX <= 1 << 16);
    EVENT_LINK | u64::from(serial) << 16 | i as u64
}

pub(super) fn tcp_socket(of: IpAddr) -> c_int {
    let domain = if of.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = numbers::make(|| {
        sys::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    });
    if fd >= 0 {
        note_own(fd);
    }
    fd
}

pub(super) fn bind(fd: c_int, to: SocketAddr) -> isize {
    let (raw, len) = sockaddr(to);
    sys::bind(fd, raw.get(..len).unwrap_or(&[]))
}

/// Where a new link leads: its fields are those of [`Link`].
pub(super) struct Route {
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    pub(super) port: u16,
    pub(super) k: u8,
    pub(super) device: usize,
}

/// Small frames, at once; and a peer whose host has vanished is noticed while nothing is under way
/// to it, after 45 s. (While something is the kernel does not probe: [`super::silence`].)
pub(super) fn set_up(fd: c_int) {
    for (level, name, value) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 15),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6),
    ] {
        let _ = sys::setsockopt(fd, level, name, &value);
    }
}

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
            let Some(l) = l.as_deref().filter(|l| l.hello.is_some()) else {
                if r.state.load(Relaxed) != ChannelState::Free as u32 {
                    r.state.store(ChannelState::Free as u32, Relaxed);
                }
                continue;
            };
            r.peer_pid.store(l.hello.map_or(0, |h| h.hello.pid), Relaxed);
            r.set_peer(l.peer);
            r.slots_used
                .store(l.conns.iter().filter(|c| !c.slot.is_free()).count() as u32, Relaxed);
            r.slots_total.store(crate::channel::SLOTS as u32, Relaxed);
            r.arena_bytes.store(l.arenas.as_ref().map_or(0, |a| a.registered() as u64), Relaxed);
            r.connections_total.store(l.connections, Relaxed);
            r.opened_unix_ns.store(l.opened_unix_ns, Relaxed);
            r.pairs.store(
                l.pairs.iter().filter(|p| p.state == pairs::PairState::Ready).count() as u32,
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
                    self.end_link(i, Fault::NotFound)
                }
                Phase::Connecting | Phase::Greeting | Phase::Resuming => {
                    let at = l.patience();
                    self.at(at);
                    self.end_probes_in_time(i, now);
                }
                Phase::Gone if !l.in_use() => self.drop_link(i),
                Phase::Up => self.time_unheard(i, now),
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
            hello: Hello::new(LIB_VERSION, sys::getpid(), role),
            process: self.process,
            port,
            immediate: facts.writes_imm,
            transport: devices::transport_code(facts.transport),
            receives: devices::depth(&facts) as u16,
            ring_log2: memory::ring_bytes(config).trailing_zeros() as u8,
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
            self.end_link(i, Fault::Stuck);
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
                self.end_link(i, Fault::Ended);
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
                self.end_link(i, Fault::NotFound);
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
                self.end_link(i, Fault::NotFound);
                return;
            }
        }
        if events & libc::EPOLLOUT as u32 != 0 {
            self.flush(i);
        }
        if let Err(why) = self.read(i) {
            self.end_link(i, why);
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
            Message::Commit { token, digest } => {
                self.on_commit(i, token, digest);
                Ok(())
            }
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
                self.end_link(other, Fault::Ended);
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
