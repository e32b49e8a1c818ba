//! The agents: who finds the other end of a connection, makes sure of it, and agrees with it on a
//! path. Each path has one, which is registered once: `service` for shared memory, `remote` for
//! RDMA, `utcp` for TCP in user space. The modules below them know no more of them than this page,
//! and agents call each other only through it.
//!
//! Every function may be called by any thread of the application's, under no lock but those of a
//! connection's ends, and does not wait for a peer, but for `finish` and `before_fork`. An agent
//! leaves what it has agreed on as an [`Offer`](crate::socket::Offer), under the lock of the
//! sending end, and only while [`Socket::path`] still names its path: a connection may have gone on
//! to another one (`candidates::next_path`), and what is kept of it is dropped when it is next
//! looked at.

use crate::channel::{Channel, Side};
use crate::path::PathId;
use crate::socket::Socket;
use core::ffi::c_int;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use netacc_control::stats::Reason;
use netacc_proto::agreement::Why;
use netacc_proto::rendezvous::Tuple;

/// A call on a candidate that has moved bytes.
pub(crate) struct Used {
    pub(crate) generation: u16,
    pub(crate) fd: c_int,
    pub(crate) side: Side,
    /// It was the so many-th. (Of a candidate that is noted not every one is told.)
    pub(crate) calls: u32,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    /// Nothing, or nothing new.
    No,
    /// An agreement is sought from now on.
    Now,
    /// There can be none.
    Never(Reason),
}

/// How the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// At most so long it may be held up.
    pub(crate) limit_ns: u64,
    /// Forked children have connections, too, that only this process can serve.
    pub(crate) shared: bool,
    /// For good: it does not become another program, which may fail.
    pub(crate) for_good: bool,
}

pub(crate) trait Agent: Sync {
    // ---- a candidate ----------------------------------------------------------------------------

    /// Whether connections like this one can be served, or why not.
    fn serves(&self, tuple: &Tuple) -> Result<(), Reason>;
    /// `s`, a connecting end, is a candidate for the path from now on, the first that it has left
    /// to try.
    fn began(&self, _s: &'static Socket) {}
    /// Connections that the path could serve are accepted at that address: peers can find this
    /// process from here on. What makes that untrue later calls [`forget_told`]. False: they cannot
    /// yet; to be told again.
    fn accepting(&self, _local: SocketAddr) -> bool {
        true
    }
    /// A call on `s`, which tries this path, has moved bytes. If it is not one of the first few,
    /// `s` has also shown that it waits where the library sees it (`io/candidate.rs`).
    fn used(&self, s: &'static Socket, call: &Used) -> Noted;
    /// `s`, an accepting end, has been noted for a path that it tries before this one. Its peer may
    /// have come to this one already.
    fn expect(&self, _s: &'static Socket, _generation: u16) {}
    /// `s` is no candidate for this path any more, or its memory is about to be freed. When this
    /// returns the agent has forgotten it, and a slot that was agreed on but not taken up is
    /// released. Not while another thread is attaching it.
    fn forget(&self, s: &'static Socket);
    /// A listening socket of this process was closed.
    fn listener_closed(&self);

    // ---- a connection on the path ---------------------------------------------------------------

    /// A socket has come to be attached to `channel`, which may have died meanwhile.
    fn attached(&self, _channel: &Channel) {}
    /// A waiting place of ours keeps `channel` in view, beyond the sockets on it: its memory serves
    /// no other peer.
    fn joined(&self, _channel: &Channel) {}
    /// Undoes that.
    fn left(&self, _channel: &Channel) {}
    /// The peer of `channel` has broken the rules on a connection.
    fn accuse(&self, _channel: &Channel) {}
    /// A close, a shutdown or the end of the process comes, and the peer has frozen: what it wants
    /// back goes first.
    fn before_fin(&self, _channel: &Channel, _slot: usize) {}
    /// Our end of a slot is no longer used. The caller has said its last word on the slot, and the
    /// socket names the channel no more. (In a forked child, for an inherited socket: the mark
    /// alone counts, the books are the parent's.)
    fn released(&self, channel: &'static Channel, slot: usize);
    /// A thread of the path's runs in this process, which does in time what it is told of here.
    fn is_running(&self) -> bool {
        false
    }
    /// Bytes are held back in a ring until that time (monotonic):
    /// [`crate::io::send_held_in_time`].
    fn hold_until(&self, _time: u64) {}
    /// Bytes were put into rings: [`crate::io::look_at_unread`] is due at that time.
    fn watch_at(&self, _time: u64) {}

    /// What is kept of closed connections is looked at then ([`crate::io::sweep_in_time`]); 0:
    /// there is nothing.
    fn sweep_at(&self, _time: fn() -> u64) {}

    // ---- processes ------------------------------------------------------------------------------

    /// Another path's thread runs in this process: from here on it takes an operator's requests,
    /// too, which one agent does for all.
    fn take_requests(&self) {}
    /// In the thread that forks, before it does: a child must not see a path in the middle of
    /// something.
    fn before_fork(&self) {}
    /// Behind it, in both processes.
    fn after_fork(&self) {}
    /// In the child, whose parent that is: threads, peers and descriptors are the parent's.
    fn in_child(&self, parent: u32);
    /// The child changes its user: what it has of its parent's is closed.
    fn give_up_inherited(&self) {}
    /// The process is about to change its user, or a capability: what it may still do now it may
    /// not be allowed to do later.
    fn before_rights_change(&self) {}

    /// The process is about to end, or to become another program. Returns when the peers have what
    /// the path still owes them, or somebody goes on with that who outlives the program.
    fn finish(&self, _ending: Ending) {}

    // ---- the descriptor of a candidate ----------------------------------------------------------

    /// The descriptor that `s` is known by has just become another. When this returns the old one
    /// is used no more.
    fn renamed(&self, _s: &Socket) {}
    /// The carrier of `s` is about to be something else's: the program's, by an option of `s` that
    /// the agent has set, another path's, or, `closes`, nobody's. What the agent has changed in it
    /// is undone.
    fn leave_carrier(&self, _s: &Socket, _closes: bool) {}
}

static AGENTS: [AtomicPtr<&'static dyn Agent>; PathId::COUNT] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; PathId::COUNT];

/// Once for each path, before the first socket.
pub(crate) fn register(path: PathId, agent: &'static &'static dyn Agent) {
    if let Some(place) = AGENTS.get(path as usize) {
        place.store(core::ptr::from_ref(agent).cast_mut(), Release);
    }
}

/// That of a path.
pub(crate) fn of(path: PathId) -> &'static dyn Agent {
    let registered = AGENTS.get(path as usize).map_or(core::ptr::null_mut(), |a| a.load(Acquire));
    // SAFETY: null, or what was registered, for ever.
    unsafe { registered.as_ref() }.map_or(&Nobody, |agent| *agent)
}

/// Counts what makes it untrue that peers were told where this process accepts.
static TERM: AtomicU32 = AtomicU32::new(0);

/// What was told of a listener within one term need not be told again.
#[inline]
pub(crate) fn term() -> u32 {
    TERM.load(Acquire)
}

/// A listener has come to be, or an agent no longer tells peers of one.
pub(crate) fn forget_told() {
    TERM.fetch_add(1, AcqRel);
}

/// `s` is no candidate any more: see [`Agent::forget`].
pub(crate) fn forget(s: &'static Socket) {
    s.paths().iter().for_each(|path| of(path).forget(s));
}

/// See [`Agent::renamed`].
pub(crate) fn renamed(s: &Socket) {
    s.paths().iter().for_each(|path| of(path).renamed(s));
}

/// See [`Agent::leave_carrier`].
pub(crate) fn leave_carrier(s: &Socket, closes: bool) {
    s.paths().iter().for_each(|path| of(path).leave_carrier(s, closes));
}

/// All of them.
pub(crate) fn each(call: impl Fn(&'static dyn Agent)) {
    for agent in &AGENTS {
        // SAFETY: as in `of`.
        if let Some(agent) = unsafe { agent.load(Acquire).as_ref() } {
            call(*agent);
        }
    }
}

/// What the operator is told of a peer's answer.
pub(crate) fn reason_of(why: Why) -> Reason {
    match why {
        Why::NoLibrary => Reason::PeerWithoutLibrary,
        Why::NotClaimed => Reason::NotClaimed,
        Why::Refused => Reason::PeerRefused,
        Why::NotAuthenticated => Reason::NotAuthenticated,
    }
}

/// In the place of one that is not there: nothing is served.
struct Nobody;

impl Agent for Nobody {
    fn serves(&self, _: &Tuple) -> Result<(), Reason> {
        Err(Reason::PathsExcludeIt)
    }
    fn used(&self, _: &'static Socket, _: &Used) -> Noted {
        Noted::Never(Reason::PathsExcludeIt)
    }
    fn forget(&self, _: &'static Socket) {}
    fn listener_closed(&self) {}
    fn released(&self, _: &'static Channel, _: usize) {}
    fn in_child(&self, _: u32) {}
}
