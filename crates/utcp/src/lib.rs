//! netacc-utcp: live connections of the kernel's, taken over into user space and given back.
//!
//! The engine of the path `utcp` of `netacc-core`, which is experimental. `docs/design/utcp.md`
//! says what it does, in which order, and what is missing.
//!
//! - [`kernel`]: a socket, by `TCP_REPAIR`: what may be taken over, what the kernel says of it,
//!   and how it goes on at other numbers;
//! - [`carried`]: a connection while it is out: `netacc-tcp`'s data path and its two buffers;
//! - [`engine`]: many of them over a device of `netacc-packet`'s;
//! - [`keeper`]: a process that outlives one which is killed, and gives its connections back;
//! - [`inject`]: packets that the kernel gets after all.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, unreachable_pub)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing,)
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod buffer;
pub mod carried;
mod ended;
pub mod engine;
pub mod inject;
pub mod keeper;
pub mod kernel;
mod outcome;
mod record;

pub use carried::Over;
pub use engine::Engine;
pub use kernel::Refusal;
pub use netacc_tcp::{Congestion, Counters, Figures, Reason};
pub use outcome::{GivenBack, NotBack, NotTaken};
