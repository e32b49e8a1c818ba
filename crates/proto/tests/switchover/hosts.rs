//! The switchover between two hosts: every interleaving of small worlds, random runs of larger
//! ones, and proof that each rule is needed.

mod model;

use crate::explore::Violation;
use crate::explore::{Failure, Model, Outcome, explore};
use model::{Action, Config, Mutant, Notices, World};
use proptest::prelude::*;
use std::collections::BTreeSet;

const SMALL: Config = Config::SMALL;
/// Room for one of everything.
const NARROW: Config = Config { carrier_cap: 1, fast_cap: 1, frames: 1, ..SMALL };
const FREEZES: Config = Config { freezes: 1, ..NARROW };
const CRASHES: Config = Config { crash: true, ..SMALL };
const LOSES_PAIR: Config = Config { pair_losses: 1, ..NARROW };
const RECEIVER_LEAVES: Config = Config { receiver_leaves: true, ..FREEZES };
const SENDER_LEAVES: Config = Config { sender_leaves: true, ..FREEZES };
/// Off the fast path and on it again.
const TWICE: Config = Config { promotes: 2, arms: 2, ..NARROW };

fn run(config: Config) -> Result<Outcome, Failure<Action>> {
    explore(World::new(config))
}

fn explore_all(configs: &[Config]) -> BTreeSet<u32> {
    let mut rx_states = BTreeSet::new();
    for config in configs {
        let start = std::time::Instant::now();
        match run(*config) {
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
        SMALL,
        CRASHES,
        FREEZES,
        Config { bytes: 1, ..LOSES_PAIR },
        RECEIVER_LEAVES,
        SENDER_LEAVES,
        Config { asks: 1, ..NARROW },
        Config { demotes: 1, ..SMALL },
        Config { link_losses: 1, ..NARROW },
        Config { freezes: 1, epoch: u32::MAX - 1, offset: 1 << 40, ..TWICE },
    ]);
    // The states between are passed at once: a demotion that is not asked for finds all bytes
    // consumed.
    assert_eq!(rx_states, BTreeSet::from([0, 1, 2, 3, 5, 7, 8, 9]));
}

/// Some minutes and gigabytes in a release build: `cargo test --release -- --ignored hosts`.
#[test]
#[ignore = "needs a release build, and memory"]
fn every_interleaving_of_larger_worlds() {
    let frames = Config { frames: 2, ..FREEZES };
    explore_all(&[
        Config { frames: 3, freezes: 1, ..SMALL },
        Config { crash: true, freezes: 1, asks: 1, ..SMALL },
        Config { crash: true, link_losses: 1, ..frames },
        Config { pair_losses: 1, ..SMALL },
        Config { pair_losses: 1, notices: Notices::Receiver, ..SMALL },
        Config { pair_losses: 1, crash: true, ..NARROW },
        Config { pair_losses: 1, link_losses: 1, ..NARROW },
        Config { pair_losses: 1, receiver_leaves: true, crash: true, ..FREEZES },
        Config { bytes: 3, chunk: 2, carrier_cap: 3, fast_cap: 3, freezes: 1, demotes: 1, ..SMALL },
        Config { receiver_leaves: true, sender_leaves: true, crash: true, ..frames },
        Config { bytes: 1, pair_losses: 1, freezes: 1, ..TWICE },
        Config { bytes: 1, pair_losses: 2, notices: Notices::Receiver, ..TWICE },
        Config { freezes: 2, demotes: 1, ..TWICE },
        Config { crash: true, freezes: 2, ..TWICE },
        Config { bytes: 1, promotes: 3, arms: 3, freezes: 3, ..NARROW },
    ]);
}

/// Leaving out any one rule breaks the stream, accuses an honest peer, or makes somebody wait for
/// ever.
#[test]
fn each_rule_is_needed() {
    for mutant in Mutant::ALL {
        let world = match mutant {
            Mutant::FramesOvertake => SMALL,
            Mutant::WordsNotRepeated => Config { link_losses: 1, ..NARROW },
            Mutant::DemoteUnconsumed => Config { demotes: 1, ..NARROW },
            Mutant::NeverAsks => LOSES_PAIR,
            Mutant::ArmOnOpenPair => Config { pair_losses: 1, ..TWICE },
            Mutant::ArmBeforeLaneEnd => Config { freezes: 1, ..TWICE },
            Mutant::CleanEndOnFast | Mutant::DeathIsFin | Mutant::ReplayFromOpenRing => CRASHES,
            Mutant::DeathIsFinTooEarly => Config { crash: true, ..RECEIVER_LEAVES },
            Mutant::ReceiverLeavesSilently => RECEIVER_LEAVES,
            Mutant::SenderLeavesSilently => SENDER_LEAVES,
            _ => FREEZES,
        };
        let bytes = if mutant == Mutant::ReplayFromOpenRing { 2 } else { 1 };
        let Err(failure) = run(Config { mutant, bytes, ..world }) else {
            panic!("{mutant:?} survived")
        };
        println!(
            "{mutant:?}: after {} steps: {}\n    {:?}",
            failure.trace.len(),
            failure.violation,
            failure.trace
        );
    }
}

/// That the ring is not used while bytes come again makes things simpler, not right: where nothing
/// can arrive any more, its bytes are the right ones.
#[test]
fn a_closed_ring_could_be_used_after_a_fail_over() {
    explore_all(&[Config { mutant: Mutant::ReplayFromClosedRing, ..CRASHES }]);
}

fn any_config() -> impl Strategy<Value = Config> {
    let sizes = (1..=200u8, 1..=4u8, 1..=5u8, 1..=5u8, 1..=3u8);
    let budgets = (0..=30u8, 0..=30u8, 0..=30u8, 0..=30u8, 0..=30u8, 0..=10u8, 0..=10u8);
    let flags = (any::<[bool; 4]>(), 0..8u32, 0..1u64 << 62);
    (sizes, budgets, flags).prop_map(|(sizes, budgets, (flags, epoch, offset))| {
        let (bytes, chunk, carrier_cap, fast_cap, frames) = sizes;
        let (promotes, demotes, asks, arms, freezes, pair_losses, link_losses) = budgets;
        let [receiver_leaves, sender_leaves, crash, receiver_notices] = flags;
        Config {
            bytes,
            chunk,
            carrier_cap,
            fast_cap,
            frames,
            promotes,
            demotes,
            asks,
            arms,
            freezes,
            receiver_leaves,
            sender_leaves,
            crash,
            pair_losses,
            notices: if receiver_notices { Notices::Receiver } else { Notices::Sender },
            link_losses,
            mutant: Mutant::None,
            epoch: (u32::MAX - 5).wrapping_add(epoch) & !1,
            offset,
        }
    })
}

/// Each byte of `choices` picks a step; then on at random, by steps that are due, until all is
/// well.
fn random_run(config: Config, choices: &[u8]) -> Result<(), Violation> {
    let mut world = World::new(config);
    let mut actions = Vec::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for step in 0..choices.len() + 100_000 {
        world.actions(&mut actions);
        let choice = choices.get(step).copied();
        match choice {
            // What ends everything is rare, so that there is a run before it.
            Some(255) => {}
            Some(_) => actions.retain(|a| !a.is_last()),
            None if world.is_settled() => return Ok(()),
            None => actions.retain(|a| world.is_due(*a)),
        }
        if actions.is_empty() {
            if choice.is_some() {
                continue;
            }
            return Err(format!("stuck: {world:?}"));
        }
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = choice.map_or((random >> 33) as usize, usize::from) % actions.len();
        let action = actions[pick];
        world.apply(action).map_err(|violation| format!("{action:?}: {violation}"))?;
    }
    Err(format!("no end after many steps: {world:?}"))
}

proptest! {
    #[test]
    fn random_runs_deliver_the_exact_stream(
        config in any_config(),
        choices in prop::collection::vec(any::<u8>(), 0..4000),
    ) {
        if let Err(violation) = random_run(config, &choices) {
            return Err(TestCaseError::fail(violation));
        }
    }
}
