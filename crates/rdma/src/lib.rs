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
//! - [`Lanes`]: one queue pair and the connections on it (*lanes*), sending and receiving;
//! - [`Hub`]: a completion queue and the pairs on it;
//! - [`counters`]: what a pair has done.
//!
//! What is not here: threads, clocks, waiting, system calls (beyond those of the fabric's);
//! connecting pairs, and deciding who opens which lane; what a connection does when its pair is
//! lost. `docs/design/rdma-engine.md` has the message layouts, the ordering argument and the table
//! of failures.
//!
//! # Who may call what at the same time
//!
//! | call | with |
//! |---|---|
//! | [`Lanes::kick`], [`Lanes::consumed`] | anything, on any lanes, in signal handlers too; never wait |
//! | [`Hub::poll`] | anything; while one thread polls, another one is told `Busy` and need not wait: it is being polled for |
//! | [`Lanes::open`], [`Lanes::close`], [`Lanes::refuse`], [`Lanes::start`] | anything but each other on the same lane |
//! | [`Hub::take_back`], [`Hub::add`], [`Hub::remove`] | anything; answer `Busy` while a poll or a kick is under way |
//! | [`Lanes::dismantle`] | nothing: it takes the pair itself |
//!
//! # Invariants
//!
//! - A value of the peer's is copied once, checked once, and used from the copy. Whatever the peer
//!   sends: no access outside of the lane's words and rings, no endless loop, no panic; the pair
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
mod lane;
mod lanes;
mod turn;
pub mod wire;

pub use hub::{Hub, HubError, PAIRS_MAX, PollError};
pub use lane::LANES_MAX;
pub use lanes::{
    Kicked, Lanes, News, OpenError, Parts, Reason, Reopened, Settings, Tag, TakenBack, Violation,
};

#[cfg(test)]
mod tests;
