//! One connection of a pair: what each half of the engine knows of it, and what they tell each
//! other.
//!
//! Who may touch what: [`LaneTx`] belongs to who has the pair's turn, [`LaneRx`] to who has the
//! hub's poll lock, the configuration is written while the lane is free or both are held.
//! Everything else is an atomic with one writer.

use crate::arena::Rings;
use crate::wire::Ring;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use netacc_ring::RingWords;
use netacc_verbs::Fabric;

/// Most lanes of a pair.
pub const LANES_MAX: usize = netacc_ring::SLOTS_MAX;

/// [`Lane::state`]: nobody uses it.
pub(crate) const FREE: u32 = 0;
/// Its configuration is being written.
pub(crate) const BUSY: u32 = 1;
/// In use.
pub(crate) const OPEN: u32 = 2;
/// What is published still goes out, then the end.
pub(crate) const CLOSING: u32 = 3;
/// The peer's opening is answered with the end.
pub(crate) const REFUSING: u32 = 4;

/// What the owner gave.
pub(crate) struct Config<F: Fabric> {
    /// Of the direction that this end produces.
    pub(crate) outbound: NonNull<RingWords>,
    /// Of the direction that this end consumes.
    pub(crate) inbound: NonNull<RingWords>,
    pub(crate) rings: Rings<F>,
    pub(crate) token: u64,
}

impl<F: Fabric> Config<F> {
    pub(crate) fn outbound(&self) -> &RingWords {
        // SAFETY: valid until the lane is taken back (`Lanes::open`), which needs turn and poll
        // lock, one of which every reader of the configuration holds; all fields are atomics.
        unsafe { self.outbound.as_ref() }
    }

    pub(crate) fn inbound(&self) -> &RingWords {
        // SAFETY: as above.
        unsafe { self.inbound.as_ref() }
    }
}

/// What the sending half knows.
#[derive(Clone, Copy, Default)]
pub(crate) struct LaneTx {
    /// Our `OPEN` was sent; our `CLOSE` was.
    pub(crate) opened: bool,
    pub(crate) closed: bool,
    /// The peer's ring, once it has opened.
    pub(crate) remote: Option<Ring>,
    /// Position up to which bytes were posted.
    pub(crate) posted: u64,
    /// Position at index 0, as the peer knows it.
    pub(crate) base: u64,
    /// The last head that was sent.
    pub(crate) told: u64,
    /// The last [`Lane::mark`] that was served.
    pub(crate) mark_served: u64,
    /// End of the last bytes that were marked, plus one.
    pub(crate) marked: u64,
}

/// How far the peer has come with a lane.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    #[default]
    Free,
    Open,
    Closed,
}

/// What the receiving half knows.
#[derive(Default)]
pub(crate) struct LaneRx {
    pub(crate) peer: Peer,
    /// The peer has opened the lane again before we have taken it back.
    pub(crate) reopened: Option<crate::lanes::Again>,
    /// Position up to which the peer has announced bytes.
    pub(crate) tail: u64,
    /// Position at index 0 of our inbound ring.
    pub(crate) base: u64,
    /// Our `CLOSE`, and with it everything before it, has left our memory.
    pub(crate) close_done: bool,
}

pub(crate) struct Lane<F: Fabric> {
    pub(crate) state: AtomicU32,
    pub(crate) config: UnsafeCell<Option<Config<F>>>,
    pub(crate) tx: UnsafeCell<LaneTx>,
    pub(crate) rx: UnsafeCell<LaneRx>,
    /// Written by the receiving half before `peer_open`, read by the sending half after it.
    pub(crate) peer: UnsafeCell<Option<Ring>>,
    pub(crate) peer_open: AtomicBool,
    /// Sending half: as [`LaneTx::posted`], stored before the bytes are posted.
    pub(crate) posted: AtomicU64,
    /// Receiving half: position up to which the peer has consumed.
    pub(crate) acked: AtomicU64,
    /// Sending half: as [`LaneTx::marked`], stored before the mark is posted. If it is not, the
    /// next bytes set another one.
    pub(crate) marked: AtomicU64,
    /// Receiving half: the last `marked` that the peer has reached. There is no other mark before.
    pub(crate) reached: AtomicU64,
    /// Receiving half: the peer's last mark, plus one; stored before its bytes are published.
    pub(crate) mark: AtomicU64,
    /// Sending half: the head from which on a credit is due.
    pub(crate) due: AtomicU64,
    /// Sending half: stored before `CLOSE` is posted.
    pub(crate) close_sent: AtomicBool,
    /// Sending half: number of the request that carries `CLOSE`.
    pub(crate) close_number: AtomicU32,
}

impl<F: Fabric> Lane<F> {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            config: UnsafeCell::new(None),
            tx: UnsafeCell::new(LaneTx::default()),
            rx: UnsafeCell::new(LaneRx::default()),
            peer: UnsafeCell::new(None),
            peer_open: AtomicBool::new(false),
            posted: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            mark: AtomicU64::new(0),
            due: AtomicU64::new(0),
            close_sent: AtomicBool::new(false),
            close_number: AtomicU32::new(0),
        }
    }
}
