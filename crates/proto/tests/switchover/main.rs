//! Model tests of the switchover: every interleaving of small worlds, random runs of larger ones,
//! and proof that each ordering rule is needed.

mod explore;
mod hostile;
mod hosts;
mod model;
mod properties;

use explore::explore;
use model::{Config, GiveUp, Mutant, World};
use netacc_proto::switchover::Delivery;
use std::collections::BTreeSet;

/// Two promotions, with the receiver changing its mind.
const BOTH_WAYS: Config = Config { promotes: 2, arms: 2, freezes: 1, ..Config::SMALL };
const THRICE: Config = Config { promotes: 3, demotes: 2, arms: 3, freezes: 2, ..Config::SMALL };
/// The receiver leaves the library, at the latest possible moment or at the earliest.
const STAYS: Config =
    Config { bytes: 2, crash: true, freezes: 1, gives_up: GiveUp::WhenOpen, ..Config::SMALL };
const HANDS_ON: Config = Config { gives_up: GiveUp::WhenReleased, ..STAYS };
const LOSSY: Config = Config { delivery: Delivery::Lossy, ..BOTH_WAYS };

fn explore_all(configs: &[Config]) -> BTreeSet<u32> {
    let mut rx_states = BTreeSet::new();
    for config in configs {
        let start = std::time::Instant::now();
        match explore(World::new(*config)) {
            Ok(outcome) => {
                println!("{config:?}\n    {outcome:?} in {:?}", start.elapsed());
                rx_states.extend(outcome.rx_states);
            }
            Err(failure) => panic!("{}\n{config:?}\n{:#?}", failure.violation, failure.trace),
        }
    }
    rx_states
}

#[test]
fn every_interleaving_of_small_worlds() {
    let rx_states = explore_all(&[
        Config::SMALL,
        Config { crash: true, ..Config::SMALL },
        Config { bytes: 2, crash: true, freezes: 1, ..Config::SMALL },
        Config { bytes: 2, ..BOTH_WAYS },
        Config { bytes: 2, arms: 1, delivery: Delivery::Lossy, ..Config::SMALL },
        Config {
            bytes: 2,
            promotes: 2,
            demotes: 2,
            chunk: 1,
            epoch: u32::MAX - 1,
            offset: 1 << 40,
            ..Config::SMALL
        },
        STAYS,
        HANDS_ON,
    ]);
    assert_eq!(rx_states, (0..=10).collect(), "all states of the receiver were visited");
}

/// About a minute in a release build: `cargo test --release -- --ignored
/// every_interleaving_of_larger`.
#[test]
#[ignore = "minutes in a debug build"]
fn every_interleaving_of_larger_worlds() {
    explore_all(&[
        Config { crash: true, ..BOTH_WAYS },
        Config { crash: true, demotes: 2, freezes: 2, ..BOTH_WAYS },
        Config {
            crash: true,
            bytes: 4,
            carrier_cap: 3,
            fast_cap: 3,
            demotes: 2,
            freezes: 2,
            ..BOTH_WAYS
        },
        Config { promotes: 3, demotes: 3, bytes: 4, ..Config::SMALL },
        LOSSY,
        Config { crash: true, ..LOSSY },
        Config { bytes: 4, fast_cap: 3, ..LOSSY },
        Config { crash: true, ..THRICE },
        Config { delivery: Delivery::Lossy, ..THRICE },
        Config { bytes: 3, ..STAYS },
        Config { bytes: 3, ..HANDS_ON },
        Config { delivery: Delivery::Lossy, ..HANDS_ON },
        Config { promotes: 2, arms: 2, freezes: 2, ..HANDS_ON },
    ]);
}

/// Leaving out any one rule breaks the stream, which also shows that the model can see such breaks.
#[test]
fn each_rule_is_needed() {
    let staying = [
        Config::SMALL,
        Config { bytes: 2, crash: true, ..Config::SMALL },
        Config { bytes: 2, delivery: Delivery::Lossy, ..Config::SMALL },
        Config { bytes: 2, ..BOTH_WAYS },
    ];
    let leaving = [STAYS, HANDS_ON];
    for mutant in Mutant::ALL {
        // Where nobody leaves the library an early FIN deceives nobody.
        let worlds = if mutant.is_about_leaving() { &leaving[..] } else { &staying[..] };
        let failure = worlds
            .iter()
            .find_map(|config| explore(World::new(Config { mutant, ..*config })).err());
        let Some(failure) = failure else { panic!("{mutant:?} survived") };
        println!("{mutant:?}: after {} steps: {}", failure.trace.len(), failure.violation);
    }
}
