//! What becomes of an order to the engine.

use crate::carried::Over;
use crate::kernel::Refusal;
use alloc::vec::Vec;
use netacc_packet::route::NoRoute;
use netacc_packet::sys::Errno;

/// Why a connection was not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// It stays with the kernel as it is.
    Refused(Refusal),
    /// Its packets do not go over this device, or not to a neighbour that is known.
    Route(NoRoute),
    /// They go over another device.
    OtherDevice(u32),
    /// It is out already.
    Out,
    /// There are as many as there may be.
    Full,
    /// The steering does not take it.
    Steering(Errno),
    /// There is to be a keeper, and it does not answer.
    NoKeeper(Errno),
}

/// A connection that is the kernel's again.
#[derive(Debug)]
pub struct GivenBack {
    /// Why the kernel had to go on, if it had to.
    pub reason: Option<Over>,
    /// What the application had written and the kernel has not taken: only where it lacks memory.
    /// It comes before anything that is written from now on.
    pub unsent: Vec<u8>,
}

/// Why a connection is not the kernel's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBack {
    /// The kernel has no way to the peer now, so it cannot have it, or there is no memory for its
    /// bytes. It is out as before, and is said to be over again in a moment.
    NoWay(Errno),
    /// The kernel could not go on with it. The peer was reset; the socket is closed.
    Lost(Errno),
}
