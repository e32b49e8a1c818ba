//! The sockets of netacc: what each descriptor means, where a connection's bytes travel, and who is told when.
//!
//! [`api`] is what the hooks call. Nothing here uses libc symbols that the library hooks, std's I/O, or a panic:
//! the code runs inside other people's processes. `ARCHITECTURE.md` has the map.
#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod api;
mod arena;
mod channel;
mod epoll;
mod fd_table;
mod io;
mod lifecycle;
mod lock;
mod log;
mod numbers;
mod options;
mod own;
mod poll;
mod remote;
mod rendezvous;
mod service;
mod socket;
mod stats;
mod syn;
mod sys;
#[cfg(test)]
mod testing;
mod wait;
