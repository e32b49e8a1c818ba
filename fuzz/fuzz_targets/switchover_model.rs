//! The model of the switchover, with the input as the scheduler: the receiver gets the exact
//! stream.
#![no_main]

#[path = "../../crates/proto/tests/switchover/model.rs"]
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
mod model;

use libfuzzer_sys::fuzz_target;
use model::{Config, GiveUp, Mutant, run};
use netacc_proto::switchover::Delivery;

fuzz_target!(|input: &[u8]| {
    let Some((head, choices)) = input.split_first_chunk::<12>() else { return };
    let [
        flags,
        bytes,
        chunk,
        promotes,
        demotes,
        arms,
        freezes,
        carrier_cap,
        fast_cap,
        epoch,
        high,
        low,
    ] = *head;
    let config = Config {
        link: if flags & 1 == 0 { Delivery::Reliable } else { Delivery::Lossy },
        bytes,
        chunk: 1 + chunk % 8,
        promotes,
        demotes,
        arms,
        freezes,
        carrier_cap: 1 + carrier_cap % 12,
        fast_cap: 1 + fast_cap % 6,
        crash: flags & 2 != 0,
        gives_up: [GiveUp::Never, GiveUp::WhenOpen, GiveUp::WhenReleased]
            [usize::from(flags >> 2) % 3],
        mutant: Mutant::None,
        epoch: u32::from(epoch).wrapping_sub(128) & !1,
        offset: u64::from(high) << 48 | u64::from(low),
    };
    if let Err(violation) = run(config, choices) {
        panic!("{violation}");
    }
});
