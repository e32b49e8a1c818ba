//! Model tests of the switchover.

mod explore;
mod model;

use explore::explore;
use model::{Config, Mutant};
use netacc_proto::switchover::Link;

#[test]
fn scratch() {
    let t = std::time::Instant::now();
    for (name, c) in [
        ("small", Config::SMALL),
        (
            "freeze",
            Config {
                freezes: 1,
                ..Config::SMALL
            },
        ),
        (
            "freeze crash",
            Config {
                freezes: 1,
                crash: true,
                ..Config::SMALL
            },
        ),
        (
            "2x",
            Config {
                promotes: 2,
                demotes: 2,
                ..Config::SMALL
            },
        ),
        (
            "2x freeze",
            Config {
                promotes: 2,
                demotes: 1,
                arms: 2,
                freezes: 1,
                ..Config::SMALL
            },
        ),
        (
            "lossy",
            Config {
                link: Link::Lossy,
                arms: 2,
                promotes: 2,
                ..Config::SMALL
            },
        ),
    ] {
        match explore(c, 5_000_000) {
            Ok(o) => println!("{name}: {o:?} {:?}", t.elapsed()),
            Err(e) => {
                println!("{name}: {} {:?}", e.violation, t.elapsed());
                for a in e.trace {
                    println!("    {a:?}");
                }
            }
        }
    }
    let _ = Mutant::None;
}
