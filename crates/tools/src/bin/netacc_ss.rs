//! `netacc_ss`: shows the connections of a running process, and why those on TCP are on TCP.
#![forbid(unsafe_op_in_unsafe_fn)]
#![no_main]

use netacc_tools::commands;
use std::ffi::{c_char, c_int};

#[allow(unsafe_code, reason = "the entry point that libc calls")]
// SAFETY: no other symbol of this program is called main, and the signature is the one that libc
// calls.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    commands::ss::alone()
}
