//! A TCP connection to another process's library, as this process knows it: its state, and what was
//! agreed on it. (How links are made, greeted, written to and ended: [`super::links`].)

use super::arenas::Arenas;
use super::pair::Pair;
use super::pair_list::Pairs;
use super::shares::LINKS_MAX;
use super::unheard::Unheard;
use super::{EVENT_LINK, Theirs, net, note_own};
use crate::carrier::sockaddr;
use crate::channel::Channel;
use crate::socket::{Socket, State};
use crate::tuple_table::Key;
use crate::wire::Wire;
use crate::{numbers, sys};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering::*;
use netacc_proto::agreement::Slot;
use netacc_proto::rendezvous::{HostHello, Proof, Role, Tuple};

/// A peer that has not answered, or not greeted, for so long is given up.
pub(super) const ANSWER_NS: u64 = 1_000_000_000;
/// A host of the neighbourhood answers a SYN within so long, or not at all. (It is shorter than
/// TCP's first repetition: one try is one packet.)
pub(super) const CONNECT_NS: u64 = 200_000_000;

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

/// What an end of a link has said or heard of who accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nothing, or nothing more is due.
    None,
    /// Acceptor: it has committed itself.
    Committed { token: u64, nonce: [u8; 16], stamp: u32 },
    /// Connector: the acceptor has, and is answered later ([`super::vain`]).
    Waits { token: u64, digest: [u8; 16] },
    /// Connector: the acceptor has, and was told what is known here.
    Heard { token: u64, digest: [u8; 16], proof: Proof, from: u16 },
    /// Connector: it is a process that accepts there.
    Proven,
}

/// What a link's own packets tell.
#[derive(Clone, Copy, Default)]
pub(super) struct Packets {
    /// How long they may be: that was looked into. 0: not yet.
    pub(super) mtu: u32,
    /// At the last look they were of another length than the route's.
    pub(super) differed: bool,
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
    /// It is in [`super::Remote::readers`].
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
    pub(super) key: [u8; 16],
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
    pub(super) opened_unix_ns: u64,
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
        self.conns.iter().any(|c| !c.slot.is_free()) || self.pairs.iter().any(|p| p.connecting)
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
    pub(super) fn patience(&self) -> u64 {
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

    pub(super) fn pair(&self, number: u32) -> Option<&Pair> {
        self.pairs.of(number)
    }

    pub(super) fn pair_mut(&mut self, number: u32) -> Option<&mut Pair> {
        self.pairs.of_mut(number)
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
