//! netacc-proto: the decisions of netacc, without any I/O.
//!
//! - [`switchover`]: how the bytes of one direction of a TCP connection move from the kernel
//!   connection (the *carrier*) to a faster path and back, at exact stream offsets.
//! - [`agreement`]: what becomes of a connection that could have a faster path, and of the place
//!   that it gets there, at each end.
//! - [`lives`]: how one carrier serves one connection after another.
//! - [`rendezvous`]: the messages by which two processes, of one host or of two, agree on a faster
//!   path, and between hosts keep its words in step.
//!
//! This crate does no I/O, reads no clock, starts no thread, allocates nothing and never panics:
//! the caller moves the bytes and the shared words, this crate says which and in what order.
//! Whatever a hostile peer writes comes back as a value ([`switchover::Corrupt`],
//! [`rendezvous::DecodeError`]).
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

#[cfg(test)]
#[macro_use]
extern crate std;

pub mod agreement;
pub mod lives;
pub mod rendezvous;
mod sha256;
pub mod switchover;
