//! The engine of the rdma path: the bytes and the words of many connections over one queue pair.
//!
//! Each end of a connection has a ring and its [`RingWords`](netacc_ring::RingWords) for each
//! direction in its *own* memory. A [`Producer`](netacc_ring::Producer) and a
//! [`Consumer`](netacc_ring::Consumer) work on them as they do on shared memory; the engine keeps
//! the copies of the two ends in step: it writes the bytes of a ring into the peer's ring, and
//! tells it how far they go; it brings back what was consumed. What switchover announces and
//! acknowledges goes another way.
//!
//! - [`wire`]: what a message looks like;
//! - [`arena`]: registered memory, and the rings that are cut from it;
//! - [`Link`]: one queue pair and the connections on it (*slots*), sending and receiving;
//! - [`Hub`]: a completion queue and the links on it;
//! - [`counters`]: what a link has done.
//!
//! What is not here: threads, clocks, waiting, system calls (beyond those of the fabric's);
//! connecting pairs, and deciding who opens which slot; what a connection does when its link is
//! lost. `docs/design/rdma-engine.md` has the message layouts, the ordering argument and the table
//! of failures.
//!
//! # Who may call what at the same time
//!
//! | call | with |
//! |---|---|
//! | [`Link::kick`], [`Link::consumed`] | anything, on any slots, in signal handlers too; never wait |
//! | [`Hub::poll`] | anything; while one thread polls, another one is told `Busy` and need not wait: it is being polled for |
//! | [`Link::open`], [`Link::close`], [`Link::refuse`], [`Link::start`] | anything but each other on the same slot |
//! | [`Hub::take_back`], [`Hub::add`], [`Hub::remove`] | anything; answer `Busy` while a poll or a kick is under way |
//! | [`Link::dismantle`] | nothing: it takes the link itself |
//!
//! # Invariants
//!
//! - A value of the peer's is copied once, checked once, and used from the copy. Whatever the peer
//!   sends: no access outside of the slot's words and rings, no endless loop, no panic; the pair
//!   ends, with the reason.
//! - No reference to the bytes of a ring or of a receive buffer is ever formed.
//! - Nobody waits for anybody. A caller who finds the sending half taken leaves its work to who has
//!   it.
#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "tests may fail loudly"
    )
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod arena;
pub mod counters;
mod hub;
mod link;
mod slot;
mod turn;
pub mod wire;

pub use hub::{Hub, HubError, LINKS_MAX, PollError};
pub use link::{
    Kicked, Link, News, OpenError, Parts, Reason, Reopened, Settings, Tag, TakenBack, Violation,
};
pub use slot::SLOTS_MAX;

#[cfg(test)]
mod tests;
