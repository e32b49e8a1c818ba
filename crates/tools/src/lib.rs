//! What `netacc`, `netacc_run` and `netacc_ss` are made of.
//!
//! Responsible for: finding the library and the command, seeing from outside whether the command
//! can be accelerated, and reading statistics and traces of processes. Deliberately not: any
//! part of the data plane; of the library the tools know the contract in `netacc-control` alone.
//! (`netacc bench` is `netacc-bench`, an ordinary sockets program.)
#![deny(unsafe_code)]

pub mod addresses;
pub mod capture;
pub mod command;
pub mod commands;
pub mod connections;
pub mod elf;
pub mod hidden;
pub mod latencies;
pub mod launch;
pub mod library;
pub mod live;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod options;
pub mod processes;
pub mod rates;
pub mod raw;
mod ruled;
pub mod segment;
pub mod selection;
pub mod show;
mod table;
pub mod terminal;
pub mod trace;
mod utc;
