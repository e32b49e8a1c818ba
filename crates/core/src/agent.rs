//! The agents: who finds the other end of a connection, makes sure of it, and agrees with it on a
//! faster path. One serves connections within the host (`service`), one those between hosts
//! (`remote`). They do not know each other, and data calls know nothing of them but this page.
//!
//! Every function may be called by any thread of the application's, under no lock but those of a
//! connection's ends, and does not wait for a peer.

use crate::channel::Channel;
use crate::socket::{Socket, flag};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;

/// What both of them do.
pub(crate) trait Agent: Sync {
    /// Whether connections like this one can be served, or why not.
    fn serves(&self, tuple: &Tuple) -> Result<(), Reason>;
    /// This process accepts connections at that address: from the first call on, connectors can
    /// find it. Cheap when repeated.
    fn accepting(&self, local: SocketAddr);
    /// A listening socket of this process was closed.
    fn listener_closed(&self);
    /// `s` has shown to be used, and its peer can have the library: an agreement follows when both
    /// ends have said so. False: none is possible.
    fn note(&self, s: &'static Socket, generation: u16) -> bool;
    /// See [`closing`].
    fn closing(&self, s: &'static Socket);
    /// See [`released`].
    fn released(&self, channel: &'static Channel, slot: usize);
}

/// What only the one within the host does.
pub(crate) trait HostAgent: Agent {
    /// Its thread runs in this process.
    fn is_running(&self) -> bool;
    /// Connect made `s`, to an address of this host; `answered`: it has received bytes since, so
    /// its acceptor has accepted. False: nobody with the library is known to accept there (yet).
    fn connected(&self, s: &'static Socket, answered: bool) -> bool;
    /// `s` has no known acceptor yet, and has only sent, to somebody who may accept later. False:
    /// not found yet.
    fn sending(&self, s: &'static Socket) -> bool;
    /// `s` was noted, and has no agreement yet: its peer is looked for again. False: it cannot be.
    fn look_again(&self, s: &'static Socket, generation: u16) -> bool;
    /// `s` has come to an agreement over RDMA: it waits for none here.
    fn forget(&self, s: &'static Socket);
    /// The descriptor that `s` is known by has just become another. When this returns the thread
    /// uses the old one no more.
    fn renamed(&self, s: &Socket);
    /// `s` is plain, and its last descriptor is about to be closed.
    fn last_look(&self, s: &Socket);
    /// The program is about to use an option of `s` that a proof uses too.
    fn end_proof(&self, s: &Socket);
    /// A socket has come to be attached to `channel`, which has died meanwhile.
    fn attached_late(&self, channel: &Channel);
    /// The peer of `channel` has broken the rules on a connection.
    fn accuse(&self, channel: &Channel);
    /// Rings hold bytes back until `time`, if nothing else sends them before.
    fn held_until(&self, time: u64);
    /// Bytes were sent into rings: somebody is to look then whether they are read.
    fn watch_at(&self, time: u64);
}

static HERE: AtomicPtr<&'static dyn HostAgent> = AtomicPtr::new(core::ptr::null_mut());
static BETWEEN_HOSTS: AtomicPtr<&'static dyn Agent> = AtomicPtr::new(core::ptr::null_mut());

/// Once, before the first socket.
pub(crate) fn register(
    here: &'static &'static dyn HostAgent,
    between_hosts: &'static &'static dyn Agent,
) {
    HERE.store(core::ptr::from_ref(here).cast_mut(), Release);
    BETWEEN_HOSTS.store(core::ptr::from_ref(between_hosts).cast_mut(), Release);
}

/// The one within the host.
pub(crate) fn here() -> &'static dyn HostAgent {
    // SAFETY: null, or what was registered, for ever.
    unsafe { HERE.load(Acquire).as_ref() }.map_or(&Nobody, |agent| *agent)
}

/// The one between hosts.
pub(crate) fn between_hosts() -> &'static dyn Agent {
    // SAFETY: as above.
    unsafe { BETWEEN_HOSTS.load(Acquire).as_ref() }.map_or(&Nobody, |agent| *agent)
}

/// `s` is no candidate any more, or its memory is about to be freed. When this returns the agents
/// have forgotten it, and a slot that was agreed on but not taken up is released. Not while another
/// thread is attaching it.
pub(crate) fn closing(s: &'static Socket) {
    if !s.has(flag::REMOTE) || s.has(flag::RDMA_FIRST) {
        here().closing(s);
    }
    if s.has(flag::REMOTE) {
        between_hosts().closing(s);
    }
}

/// Our end of a slot is no longer used. The caller has set `quiet::CLOSED` as its last word on the
/// slot, and the socket names the channel no more. (In a forked child, for an inherited socket: the
/// mark alone counts, the books are the parent's.)
pub(crate) fn released(channel: &'static Channel, slot: usize) {
    if channel.wire().is_some() {
        between_hosts().released(channel, slot);
    } else {
        here().released(channel, slot);
    }
}

/// A socket has come to be attached to `channel`, which may have died meanwhile.
#[inline]
pub(crate) fn attached(channel: &Channel) {
    if channel.wire().is_none() && channel.dead.load(SeqCst) != 0 {
        here().attached_late(channel);
    }
}

/// The peer of `channel` has broken the rules on a connection.
pub(crate) fn accuse(channel: &Channel) {
    if channel.wire().is_none() {
        here().accuse(channel);
    }
}

/// A listening socket of this process was closed.
pub(crate) fn listener_closed() {
    here().listener_closed();
    between_hosts().listener_closed();
}

/// In the place of one that is not there: nothing is served.
struct Nobody;

impl Agent for Nobody {
    fn serves(&self, _: &Tuple) -> Result<(), Reason> {
        Err(Reason::PathsExcludeIt)
    }
    fn accepting(&self, _: SocketAddr) {}
    fn listener_closed(&self) {}
    fn note(&self, _: &'static Socket, _: u16) -> bool {
        false
    }
    fn closing(&self, _: &'static Socket) {}
    fn released(&self, _: &'static Channel, _: usize) {}
}

impl HostAgent for Nobody {
    fn is_running(&self) -> bool {
        false
    }
    fn connected(&self, _: &'static Socket, _: bool) -> bool {
        false
    }
    fn sending(&self, _: &'static Socket) -> bool {
        false
    }
    fn look_again(&self, _: &'static Socket, _: u16) -> bool {
        false
    }
    fn forget(&self, _: &'static Socket) {}
    fn renamed(&self, _: &Socket) {}
    fn last_look(&self, _: &Socket) {}
    fn end_proof(&self, _: &Socket) {}
    fn attached_late(&self, _: &Channel) {}
    fn accuse(&self, _: &Channel) {}
    fn held_until(&self, _: u64) {}
    fn watch_at(&self, _: u64) {}
}
