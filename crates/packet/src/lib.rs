//! netacc-packet: packets in and out of a device, past the kernel's TCP.
//!
//! For `netacc-utcp`: see `docs/design/utcp.md`.
//!
//! - [`port`]: the trait [`Port`], which the engine sends and receives by;
//! - [`device`]: a device of the kernel's, by AF_PACKET;
//! - [`steering`]: which flows leave the kernel, and that it is silent on them;
//! - [`route`]: over which device and to whom packets of a flow go;
//! - [`shared`], [`rights`]: memory and messages that a process shares with its keeper;
//! - `memory` (feature `memory`, for tests): a network in memory that loses, reorders, duplicates,
//!   corrupts, delays and throttles, and the same between a real device and its user.
//!
//! The code is to run inside other people's processes: it does not panic, print, write `errno`, or
//! call a libc symbol that the preload library hooks.
#![no_std]
#![warn(missing_debug_implementations, unreachable_pub)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing,)
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bpf;
pub mod device;
#[cfg(feature = "memory")]
pub mod memory;
pub mod port;
pub mod rights;
pub mod route;
pub mod shared;
pub mod steering;
pub mod sys;
pub mod vnet;

pub use device::Device;
pub use port::{Arrived, Frame, LinkAddress, Port, Sent};
pub use steering::Steering;
