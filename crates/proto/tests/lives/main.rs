//! Every interleaving of the lives of one carrier, and proof that each rule is needed.

#[path = "../switchover/explore.rs"]
mod explore;
mod model;

use explore::explore;
use model::{Config, Mutant, World};

#[test]
fn every_interleaving_of_small_worlds() {
    for config in [
        Config::SMALL,
        Config { deaths: true, ..Config::SMALL },
        Config { deaths: true, forks: 1, sends: 1, ..Config::SMALL },
        Config { retires: 1, leaves_listener: true, ..Config::SMALL },
        Config { lives: 3, sends: 1, ..Config::SMALL },
        Config { leaves: 1, deaths: true, sends: 1, ..Config::SMALL },
        Config { leaves: 2, retires: 1, ..Config::SMALL },
    ] {
        let start = std::time::Instant::now();
        match explore(World::new(config)) {
            Ok(outcome) => println!("{config:?}\n    {outcome:?} in {:?}", start.elapsed()),
            Err(failure) => panic!("{}\n{config:?}\n{:#?}", failure.violation, failure.trace),
        }
    }
}

/// As `every_interleaving_of_larger_worlds` of the switchover's.
#[test]
#[ignore = "minutes in a debug build"]
fn every_interleaving_of_larger_worlds() {
    let all = Config {
        deaths: true,
        forks: 1,
        retires: 1,
        leaves_listener: true,
        leaves: 1,
        ..Config::SMALL
    };
    for config in [all, Config { lives: 3, ..all }, Config { sends: 3, lives: 3, ..Config::SMALL }]
    {
        if let Err(failure) = explore(World::new(config)) {
            panic!("{}\n{config:?}\n{:#?}", failure.violation, failure.trace);
        }
    }
}

/// Leaving out any one rule breaks something, which also shows that the model can see such breaks.
#[test]
fn each_rule_is_needed() {
    let worlds = [
        Config::SMALL,
        Config { deaths: true, forks: 1, sends: 1, ..Config::SMALL },
        Config { retires: 1, leaves_listener: true, sends: 1, ..Config::SMALL },
        Config { lives: 3, sends: 1, ..Config::SMALL },
        Config { leaves: 1, sends: 1, ..Config::SMALL },
    ];
    for mutant in Mutant::ALL {
        let failure = worlds
            .iter()
            .find_map(|config| explore(World::new(Config { mutant, ..*config })).err());
        let Some(failure) = failure else { panic!("{mutant:?} survived") };
        println!("{mutant:?}: after {} steps: {}", failure.trace.len(), failure.violation);
    }
}
