//! Which paths there are, in what they differ, and which of them a connection has left to try.
//!
//! A path carries a connection's bytes beside its carrier, by two rings and their words on a slot
//! of a channel. What a path must give, and how one is added, is in `docs/design/paths.md`; who
//! finds peers for it and agrees with them is its agent ([`crate::agent`]).
//!
//! What tells one path from another stands here: an answer for each path ([`PathId::traits`]), and
//! calls that are dispatched by `match`. A path that is polled also has arms in `engines`, and
//! [`Channel::peers`](crate::channel::Channel::peers) tells a thread that polls where the peer is.
//! Otherwise a path is named by its own files, by `lifecycle`, which registers its agent, and by
//! what one path alone has, as fast connect is shared memory's.

use crate::utcp_device::{self, UtcpDevice};
use crate::wire::Wire;
use crate::{process, rdma_thread, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::Delivery;

/// A path, by number: that of the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PathId {
    /// The carrier alone: nothing is left to try.
    Tcp,
    Shm,
    Rdma,
    Utcp,
    #[cfg(test)]
    Loop,
}

/// In what paths differ.
pub(crate) struct Traits {
    /// What the statistics call it.
    pub(crate) shown: Path,
    /// The far end of the rings is the peer's process, which maps the channel: what either end says
    /// in its words the other one sees at once, what was put into a ring is there whatever becomes
    /// of who put it, and sleepers are woken by doorbells that both have. Where that is not so an
    /// engine of this process's plays the far end, and says in the words what it has heard.
    pub(crate) shared: bool,
    /// Whether what a ring has taken can be lost. If so a sender goes on over the carrier only when
    /// the peer is known to have heard of that ([`Far::seen_epoch`]), and sends again what was not
    /// received.
    pub(crate) delivery: Delivery,
    /// Nothing comes unless somebody looks: threads that wait do ([`crate::engines`]).
    pub(crate) polled: bool,
    /// Who takes a connection back to its carrier.
    pub(crate) back: Back,
    /// How a forked child goes on with a connection that it has inherited.
    pub(crate) children: Children,
    /// Whether the carrier may be out of the kernel while a connection is on the path. Then what is
    /// done to the kernel's socket is not done to the connection: an option that is set there is
    /// not its own, and to dissolve the socket ends nothing.
    pub(crate) hides_carrier: bool,
    /// Its search for a peer ends with the connection: no other path comes after it.
    pub(crate) is_last: bool,
    /// Why a connection is on its carrier that was lost on the path.
    pub(crate) lost: Reason,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Back {
    /// Whoever needs it there, in its own call.
    Caller,
    /// A thread of the path's, which is asked to ([`crate::io::Departure`]); the call waits for it.
    Agent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Children {
    /// By the memory, which it has too; and it may adopt a connection that was not attached.
    Follow,
    /// Its maker takes the connection back to the carrier, and is called for that.
    CallMaker,
}

impl PathId {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::ALL.len();
    pub(crate) const ALL: &[PathId] = &[
        PathId::Tcp,
        PathId::Shm,
        PathId::Rdma,
        PathId::Utcp,
        #[cfg(test)]
        PathId::Loop,
    ];

    #[inline(always)]
    pub(crate) const fn traits(self) -> Traits {
        match self {
            PathId::Tcp | PathId::Shm => Traits {
                shown: if matches!(self, PathId::Tcp) { Path::Tcp } else { Path::Shm },
                shared: true,
                delivery: Delivery::Reliable,
                polled: false,
                back: Back::Caller,
                children: Children::Follow,
                hides_carrier: false,
                is_last: true,
                lost: Reason::ChannelFailed,
            },
            PathId::Rdma => Traits {
                shown: Path::Rdma,
                shared: false,
                delivery: Delivery::Lossy,
                polled: true,
                back: Back::Agent,
                children: Children::CallMaker,
                hides_carrier: false,
                is_last: false,
                lost: Reason::RdmaLost,
            },
            // (Whose peer has no library: no path comes behind it.)
            PathId::Utcp => Traits {
                shown: Path::Utcp,
                shared: false,
                delivery: Delivery::Lossy,
                polled: true,
                back: Back::Agent,
                children: Children::CallMaker,
                hides_carrier: true,
                is_last: true,
                lost: Reason::UtcpGivenBack,
            },
            #[cfg(test)]
            PathId::Loop => Traits {
                shown: Path::Rdma,
                shared: false,
                delivery: Delivery::Lossy,
                polled: true,
                back: Back::Agent,
                children: Children::CallMaker,
                hides_carrier: false,
                is_last: false,
                lost: Reason::ChannelFailed,
            },
        }
    }

    /// In the order of the configuration's.
    pub(crate) fn in_order(paths: netacc_control::config::Paths) -> impl Iterator<Item = PathId> {
        let configured = paths.iter().map(|path| match path {
            Path::Tcp => PathId::Tcp,
            Path::Shm => PathId::Shm,
            Path::Rdma => PathId::Rdma,
            Path::Utcp => PathId::Utcp,
        });
        #[cfg(test)]
        let configured = core::iter::once(PathId::Loop).chain(configured);
        configured
    }

    #[inline(always)]
    pub(crate) fn is_shared(self) -> bool {
        self.traits().shared
    }

    #[inline(always)]
    pub(crate) fn is_lossy(self) -> bool {
        matches!(self.traits().delivery, Delivery::Lossy)
    }

    /// Whether an agent takes its connections back to their carriers.
    pub(crate) fn leaves_by_agent(self) -> bool {
        self.traits().back == Back::Agent
    }

    /// Whether the carrier may be out of the kernel.
    #[inline(always)]
    pub(crate) fn hides_carrier(self) -> bool {
        self.traits().hides_carrier
    }

    pub(crate) fn children_follow(self) -> bool {
        self.traits().children == Children::Follow
    }

    /// Whether every child that has a connection of this process's, made after so many forks, can
    /// go on with it if it comes onto the path now.
    pub(crate) fn every_child_can_go_on(self, forks: u32) -> bool {
        match self {
            PathId::Tcp | PathId::Shm => forks == process::forks(),
            PathId::Rdma => rdma_thread::can_be_called(forks),
            // (A child that has it could end what the kernel has of it.)
            PathId::Utcp => forks == process::forks(),
            #[cfg(test)]
            PathId::Loop => true,
        }
    }

    /// In a forked child: the maker of a connection is to take it back to the carrier
    /// ([`Children::CallMaker`]).
    pub(crate) fn call_maker(self, maker: u32) {
        match self {
            PathId::Rdma => rdma_thread::call_back(maker),
            PathId::Utcp => utcp_device::call_back(),
            PathId::Tcp | PathId::Shm => {}
            #[cfg(test)]
            PathId::Loop => {}
        }
    }

    /// In a forked child: whether the maker of a connection goes on with it.
    pub(crate) fn maker_is_alive(self, maker: u32) -> bool {
        match self {
            PathId::Rdma => rdma_thread::is_alive(maker),
            PathId::Tcp | PathId::Shm | PathId::Utcp => process::is_alive(maker),
            #[cfg(test)]
            PathId::Loop => process::is_alive(maker),
        }
    }
}

/// Who plays the far end of a channel's rings, as data calls know it. By value in the channel;
/// nothing in it changes.
///
/// A slot's calls are made under the lock of one of the connection's ends, as far as they say
/// nothing else, and not after [`crate::agent::Agent::released`].
#[derive(Clone, Copy)]
pub(crate) enum Far {
    /// The peer's process: it shares the channel's memory. (The representation is a null pointer:
    /// what tells it from the others is one comparison.)
    Process,
    /// The engine of RDMA: the channel mirrors the peer's.
    Mirror(&'static Wire),
    /// TCP in user space: the peer is anybody.
    Utcp(&'static UtcpDevice),
    #[cfg(test)]
    Loop(&'static tests::Engine),
}

impl Far {
    #[inline(always)]
    pub(crate) const fn id(self) -> PathId {
        match self {
            Far::Process => PathId::Shm,
            Far::Mirror(_) => PathId::Rdma,
            Far::Utcp(_) => PathId::Utcp,
            #[cfg(test)]
            Far::Loop(_) => PathId::Loop,
        }
    }

    #[inline(always)]
    pub(crate) fn is_shared(self) -> bool {
        self.id().is_shared()
    }

    /// Bytes, room or an announcement were published on a slot: they are handed on. False: some of
    /// it waits until somebody polls the engine.
    #[cold]
    pub(crate) fn kick(self, slot: usize) -> bool {
        match self {
            Far::Process => {}
            Far::Mirror(wire) => return wire.kick(slot),
            Far::Utcp(device) => device.kick(slot),
            #[cfg(test)]
            Far::Loop(engine) => engine.kick(slot),
        }
        true
    }

    /// What was consumed on a slot, up to `head`, is room again, and the far end is told when it is
    /// time for that. The caller holds the receiving end.
    #[inline]
    pub(crate) fn consumed(self, slot: usize, head: u64) {
        match self {
            Far::Process => {}
            Far::Mirror(wire) => wire.consumed(slot, head),
            Far::Utcp(device) => device.consumed(slot),
            #[cfg(test)]
            Far::Loop(engine) => engine.kick(slot),
        }
    }

    /// An announcement, an acknowledgement or a request of ours has changed: the far end is told.
    #[inline]
    pub(crate) fn words_changed(self, slot: usize) {
        match self {
            Far::Process => {}
            Far::Mirror(wire) => wire.words_changed(slot),
            Far::Utcp(device) => device.words_changed(slot),
            #[cfg(test)]
            Far::Loop(engine) => engine.kick(slot),
        }
    }

    /// The epoch of our announcement that the peer is known to have heard of; `None`: of all. Looks
    /// without a lock see the last that it was.
    pub(crate) fn seen_epoch(self, slot: usize) -> Option<u32> {
        match self {
            Far::Process => None,
            Far::Mirror(wire) => Some(wire.slot(slot).seen_epoch.load(SeqCst)),
            Far::Utcp(device) => Some(device.seat(slot).seen_epoch.load(SeqCst)),
            #[cfg(test)]
            Far::Loop(engine) => Some(engine.seen_epoch(slot)),
        }
    }

    /// Both directions of a slot are to go back to the carrier ([`Back::Agent`]); `again`: until
    /// the path is to be had once more. By any thread, with or without an end.
    pub(crate) fn demote(self, slot: usize, why: Reason, again: bool) {
        match self {
            Far::Process => {}
            Far::Mirror(wire) => wire.demote(slot, why, again),
            Far::Utcp(device) => device.demote(slot, why),
            #[cfg(test)]
            Far::Loop(engine) => engine.demote(slot, why, again),
        }
    }

    /// The peer is gone with what it had, and nothing can be agreed upon any more.
    pub(crate) fn is_gone(self, slot: usize) -> bool {
        match self {
            Far::Process => false,
            Far::Mirror(wire) => wire.is_gone(slot),
            Far::Utcp(device) => device.is_gone(slot),
            #[cfg(test)]
            Far::Loop(_) => false,
        }
    }

    /// What of `said`, which poll said of a slot's carrier `fd`, is the connection's. (Of a carrier
    /// that is out of the kernel nothing is, and on its way it is disconnected for a moment.)
    pub(crate) fn of_carrier(self, slot: usize, fd: c_int, said: i16) -> i16 {
        let Far::Utcp(device) = self else { return said };
        let moves = &device.seat(slot).moves;
        let before = moves.load(SeqCst);
        if said == 0 || before & 1 != 0 {
            return 0;
        }
        let now = sys::poll_now(fd, said);
        if moves.load(SeqCst) == before { said & now } else { 0 }
    }

    /// What wakes who sleeps for news that nobody announces: a descriptor, or -1.
    pub(crate) fn packets(self) -> c_int {
        match self {
            Far::Utcp(device) => device.awaited_packets(),
            _ => -1,
        }
    }

    /// For the path's own thread.
    pub(crate) fn mirror(self) -> Option<&'static Wire> {
        match self {
            Far::Mirror(wire) => Some(wire),
            _ => None,
        }
    }
}

/// Paths that a connection has left to try; the first is the one that it tries, or is on. Four bits
/// for each, the first lowest, behind the last zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathList(u32);

impl PathList {
    pub(crate) const EMPTY: PathList = PathList(0);
    const BITS: u32 = 4;

    pub(crate) const fn from_bits(bits: u32) -> PathList {
        PathList(bits)
    }
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
    /// With one more, behind the others.
    pub(crate) fn and(self, path: PathId) -> PathList {
        let at = self.iter().count() as u32 * PathList::BITS;
        PathList(self.0 | (path as u32).checked_shl(at).unwrap_or(0))
    }
    #[inline(always)]
    pub(crate) fn first(self) -> PathId {
        let code = self.0 as usize & ((1 << PathList::BITS) - 1);
        PathId::ALL.get(code).copied().unwrap_or(PathId::Tcp)
    }
    /// Those behind the first.
    pub(crate) const fn rest(self) -> PathList {
        PathList(self.0 >> PathList::BITS)
    }
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub(crate) fn iter(self) -> impl Iterator<Item = PathId> {
        let from = |list: PathList| (!list.is_empty()).then_some(list);
        core::iter::successors(from(self), move |list| from(list.rest())).map(PathList::first)
    }
}

#[cfg(test)]
pub(crate) mod tests;
