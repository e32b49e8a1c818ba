//! What a process or a file can feed the tools: no panic, and nothing is believed that cannot be.
#![no_main]

#[path = "../../crates/control/tests/hostile/readers.rs"]
mod readers;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| readers::read(input));
