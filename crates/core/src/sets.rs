//! The epoll sets, as connections know them: this page is the contract of [`crate::epoll`] with all
//! that stands below it.

use crate::channel::Channel;
use crate::fd_table::ObjectRef;
use crate::socket::Socket;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering::*};

pub(crate) trait Sets: Sync {
    /// Whether the socket can be attached now as far as its set is concerned.
    fn may_attach(&self, s: &Socket) -> bool;
    /// A candidate became attached: what the kernel kept for it is kept here from now on.
    fn on_attached(&self, s: &'static Socket, fd: c_int);
    /// The socket is plain now, or a candidate again: the kernel gets back what the application
    /// asked for.
    fn on_plain(&self, s: &'static Socket);
    /// Whether the socket is in a set for which somebody has waited by a call that is seen.
    fn is_waited_for(&self, s: &Socket) -> bool;
    /// The set is the socket's home.
    fn is_home(&self, set: ObjectRef, s: &Socket) -> bool;
    /// A thread is asleep in a wait for the set that is seen. (True also where that cannot be
    /// told.)
    fn is_slept_in(&self, set: ObjectRef) -> bool;
    /// As `is_slept_in`, of the set that the peer notifies of `s`, if there is one.
    fn is_slept_for(&self, s: &Socket) -> bool;
    /// Where a peer announces to the set that it has taken a carrier parked for a listener in it.
    /// `None`: it has not joined that channel, or is busy.
    fn place_for_takes(&self, set: ObjectRef, channel: &Channel) -> Option<usize>;
    /// The set is itself polled, or shared with another process: its sockets go back to the kernel,
    /// and none comes there again.
    fn bar(&self, set: ObjectRef);
}

static SETS: AtomicPtr<&'static dyn Sets> = AtomicPtr::new(core::ptr::null_mut());

/// Once, before the first socket.
pub(crate) fn register(sets: &'static &'static dyn Sets) {
    SETS.store(core::ptr::from_ref(sets).cast_mut(), Release);
}

/// In a process that has none of the program's sets.
pub(crate) fn forget() {
    SETS.store(core::ptr::null_mut(), Release);
}

pub(crate) fn sets() -> &'static dyn Sets {
    // SAFETY: null, or what was registered, for ever.
    unsafe { SETS.load(Acquire).as_ref() }.map_or(&NoSets, |sets| *sets)
}

/// Before they are registered there are none.
struct NoSets;

impl Sets for NoSets {
    fn may_attach(&self, _: &Socket) -> bool {
        true
    }
    fn on_attached(&self, _: &'static Socket, _: c_int) {}
    fn on_plain(&self, _: &'static Socket) {}
    fn is_waited_for(&self, _: &Socket) -> bool {
        false
    }
    fn is_home(&self, _: ObjectRef, _: &Socket) -> bool {
        false
    }
    fn is_slept_in(&self, _: ObjectRef) -> bool {
        false
    }
    fn is_slept_for(&self, _: &Socket) -> bool {
        false
    }
    fn place_for_takes(&self, _: ObjectRef, _: &Channel) -> Option<usize> {
        None
    }
    fn bar(&self, _: ObjectRef) {}
}
