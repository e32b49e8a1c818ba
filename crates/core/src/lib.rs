//! The sockets of netacc: what each descriptor means, where a connection's bytes travel, and who is
//! told when.
//!
//! [`api`] is what the hooks call. Nothing here uses libc symbols that the library hooks, std's
//! I/O, or a panic: the code runs inside other people's processes. `ARCHITECTURE.md` has the map.
#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![deny(clippy::large_stack_arrays)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::large_stack_arrays))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod adoption;
mod agent;
pub mod api;
mod arena;
mod candidates;
mod carrier;
mod channel;
mod config;
mod control;
mod engines;
mod epoll;
mod establish;
mod fast_connect;
mod faults;
mod fd_table;
mod fd_words;
pub mod heap;
mod host;
mod inbox;
mod inject;
mod introspect;
mod io;
mod io_uring;
mod keeper;
mod life_word;
mod lifecycle;
mod listens;
mod lock;
mod log;
mod mapped;
mod netlink;
mod numbers;
mod options;
mod outcome;
mod packet_policy;
mod path;
mod poll;
mod process;
mod published;
mod queues;
mod rdma_thread;
mod reach;
mod remote;
mod rendezvous;
mod rights;
mod service;
mod sets;
mod shared;
mod signals;
mod sleep;
mod slots;
mod socket;
mod stats;
mod syn;
mod sys;
#[cfg(test)]
mod testing;
mod thread;
mod trace;
mod tuple_table;
mod unconnected;
mod user;
mod utcp;
mod utcp_device;
mod wait;
mod wire;
