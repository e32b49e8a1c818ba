//! `libnetacc-preload.so`: the libc symbols of the socket API, led to the core.
//!
//! The library is loaded in front of libc. A *hook* is a function with the name and the signature
//! of a libc symbol; it asks [`netacc_core::api`] once and either returns the core's answer, with
//! `errno`, or jumps to the *next* symbol: libc's, or that of another preloaded library. There is
//! no policy here: what a socket is and where its bytes travel is the core's business.
//!
//! What holds for every line of this crate, because it runs inside a program that does not know of
//! it:
//! - nothing panics, prints, allocates from the application's heap or takes a lock that the
//!   application can hold;
//! - `errno` changes only when a hook reports a failure;
//! - a hook works before the constructor has run, in a signal handler, and in the child of fork and
//!   vfork;
//! - the frames of hooks can be unwound: a thread may be cancelled inside the next symbol, a
//!   handler may `longjmp`.
//!
//! `docs/hooks.md` lists every hooked symbol, and those that are left alone, with the reasons.
// Test harnesses force unwinding panics on, which need std; what is shipped has neither.
#![cfg_attr(panic = "abort", no_std)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "the preload library knows the calling conventions of x86-64 and AArch64 Linux with glibc only"
);

extern crate alloc;

#[macro_use]
mod original;
mod about;
mod errno;
mod hooks;
mod init;
mod raw;
#[cfg(panic = "abort")]
mod runtime;

#[global_allocator]
static ALLOCATOR: netacc_core::heap::Private = netacc_core::heap::Private;
