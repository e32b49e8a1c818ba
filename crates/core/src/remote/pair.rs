//! A queue pair, as this process knows it: its state, and who is on it. (How it is connected:
//! [`super::pairs`]; how it ends: [`super::pair_ends`].)

use super::net::{self, Net};
use super::places::Places;
use super::probes::Quiet;
use super::progress::Progress;
use crate::queues::{PairContext, Queue};
use crate::{sys, wire};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;
use netacc_proto::rendezvous as proto;
use netacc_rdma::Tag;
use netacc_rdma::arena::Rings;

/// A pair that is not established after so long will not be.
pub(super) const CONNECT_NS: u64 = 5_000_000_000;
/// A pair without connections counts as one too many only after so long: it may be meant for one
/// that is being offered.
pub(super) const FRESH_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairState {
    /// Acceptor: the peer was asked to connect it.
    Requested,
    /// Connector: the manager looks for the way.
    Resolving,
    /// Asked, or accepted.
    Connecting,
    /// Established at this end.
    Established,
    /// Established at both ends, and both know.
    Ready,
    /// Empty, and to be closed when the peer knows.
    Ending,
    /// Closed; connections that were on it still name it.
    Lost,
}

/// A queue pair.
pub(super) struct Pair {
    pub(super) number: u32,
    pub(super) state: PairState,
    pub(super) nonce: [u8; 16],
    pub(super) lanes: u16,
    /// The traffic class of its packets; 0: what the device does by itself.
    pub(super) class: u8,
    /// Until it is ready. `None` before it is created, and while a thread connects it.
    pub(super) pair: Option<net::Pair>,
    /// A thread connects it.
    pub(super) connecting: bool,
    /// The peer's, where it is accepted.
    pub(super) port: u16,
    /// How often that found its port here taken.
    pub(super) tries: u8,
    pub(super) engine: Option<Arc<wire::Lanes>>,
    pub(super) seat: Option<(&'static Queue, Tag)>,
    pub(super) context: *mut PairContext,
    pub(super) receives: Option<(NonNull<u8>, usize)>,
    /// The peer has said that it is established there.
    pub(super) peer_ready: bool,
    pub(super) deadline: u64,
    pub(super) progress: Progress,
    pub(super) quiet: Quiet,
    pub(super) ready_since: u64,
    /// Whose lanes are taken.
    pub(super) places: Places,
    /// It had connections before.
    pub(super) was_used: bool,
    /// Since when it has none.
    pub(super) idle_since: u64,
    /// Once it is lost: the rings of the connections that were on it.
    pub(super) rings: Vec<Rings<Net>>,
}

impl Pair {
    pub(super) fn new(state: PairState, asked: &proto::Pair) -> Pair {
        let lanes = asked.lanes;
        Pair {
            number: asked.pair,
            state,
            nonce: asked.nonce,
            lanes,
            class: asked.class,
            pair: None,
            connecting: false,
            port: asked.port,
            tries: 0,
            engine: None,
            seat: None,
            context: core::ptr::null_mut(),
            receives: None,
            peer_ready: false,
            deadline: sys::now_ns() + CONNECT_NS,
            progress: Progress::default(),
            quiet: Quiet::default(),
            ready_since: 0,
            places: Places::new(lanes),
            was_used: false,
            idle_since: sys::now_ns(),
            rings: Vec::new(),
        }
    }

    /// No slot of the link's that is in use names it.
    pub(super) fn is_empty(&self) -> bool {
        self.places.taken() == 0
    }

    /// It can take another connection.
    pub(super) fn has_room(&self) -> bool {
        self.state == PairState::Ready && !self.places.is_full()
    }

    pub(super) fn take(&mut self, lane: u16, slot: usize) {
        self.was_used = true;
        self.places.take(lane, slot);
    }

    /// It could serve, and serves nobody.
    pub(super) fn is_spare(&self) -> bool {
        self.state == PairState::Ready && self.is_empty()
    }

    /// From when on it counts as one that is kept.
    pub(super) fn counts_at(&self) -> u64 {
        self.idle_since.saturating_add(FRESH_NS)
    }

    pub(super) fn is_coming(&self) -> bool {
        !matches!(self.state, PairState::Ready | PairState::Ending | PairState::Lost)
    }
}
