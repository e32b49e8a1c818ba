//! The contract between the library and the tools.
//!
//! Responsible for: the configuration (one table of options, its parser and its resolved form), and
//! the layouts of the statistics segment that an accelerated process exposes, of its trace, and of
//! the words of its rings.
//! Deliberately not: any I/O. Callers read files, environment and memory and hand the text in, so
//! the same code runs inside the host application and in the tools.
//!
//! Invariant: nothing in here panics on any input, because the library runs it in other people's
//! processes.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

extern crate alloc;

pub mod config;
pub mod rings;
pub mod stats;
pub mod trace;

pub use config::{Config, ConfigError, Key, Origin, Origins};
pub use stats::{ChannelRecord, ConnRecord, Counter, Header, Path, Reason};
