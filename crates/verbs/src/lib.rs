//! Verbs for netacc: the interface that the rdma path works with, over libibverbs and librdmacm,
//! and in memory.
//!
//! - [`fabric`]: the trait [`Fabric`], its values, and the rules of verbs that every implementation
//!   keeps;
//! - [`Verbs`]: the real one. Both C libraries are opened when they are first needed
//!   ([`Verbs::load`]): a machine without them, and a process without rdma connections, pays
//!   nothing;
//! - `memory` (feature `memory`, for tests): hosts, devices and links inside of one process, with
//!   verbs' rules enforced and faults on demand;
//! - [`window`]: how full a send queue is.
//!
//! What is not here: what travels over a pair, when, and for whom. `docs/design/rdma.md` has that.
//!
//! The code runs inside other people's processes: it does not panic, print, lose `errno`, or call a
//! libc symbol that the preload library hooks. The C libraries do call such symbols, print (when
//! `RLIMIT_MEMLOCK` is tiny and the user not root) and use the application's heap: see
//! `docs/design/rdma.md` for who may call what where.
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

pub mod fabric;
mod ffi;
mod load;
#[cfg(feature = "memory")]
pub mod memory;
mod sys;
mod verbs;
pub mod window;

pub use fabric::Fabric;
pub use load::{LoadError, Loader};
pub use verbs::{Device, Domain, Host, Listener, Manager, Pair, Queue, Region, Verbs};
