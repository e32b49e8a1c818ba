//! Bytes as packets, and as what a connection is told. What must hold stands beside the test that
//! does the same with random bytes of its own, `crates/tcp/tests/fuzz.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tcp/tests/bytes/mod.rs"]
mod bytes;

fuzz_target!(|input: &[u8]| bytes::drive(input, &mut bytes::Seen::default()));
