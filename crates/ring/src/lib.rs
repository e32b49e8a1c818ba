//! Byte rings, ready sets and locks in memory that processes share.
//!
//! What is here: the one-producer, one-consumer byte ring of one direction of a connection
//! ([`Producer`], [`Consumer`]), the set of connections with news and its sleep/wake handshake
//! ([`ReadySet`]), who sleeps where and who rings whom ([`sleepers`]), and the lock of one end of a
//! connection that outlives its owner ([`EndLock`]).
//!
//! What is not: mapping memory, system calls, waiting. The caller brings the memory, rings and
//! sleeps.
//!
//! Invariants:
//! - A word that the peer can write is loaded once, checked once, and used from the private copy.
//!   Whatever the peer writes, at any time: no access outside the ring, no endless loop, no panic.
//! - No reference to the bytes of a ring is ever formed: they are copied in and out through raw
//!   pointers.
//! - No lock, allocation or system call anywhere.
//! - The other buffer of a copy is the application's and may be bad: then nothing was read or
//!   written ([`copy`]).
#![no_std]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests may fail loudly"
    )
)]

#[cfg(test)]
extern crate std;

mod consumer;
pub mod copy;
mod end_lock;
mod producer;
mod ready;
mod ring;
pub mod sleepers;
mod sync;
#[cfg(test)]
#[allow(unused_must_use, reason = "the tests look at the words themselves")]
mod tests;

pub use consumer::Consumer;
pub use end_lock::{EndLock, Reentrant, TryLockError, WAITERS, Waited};
pub use producer::Producer;
pub use ready::{ReadySet, SLOTS_MAX};
pub use ring::{CopyError, PeerCorrupt, RingWords};

// Positions are u64 and lengths usize; the casts between them lose nothing.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());
