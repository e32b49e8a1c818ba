//! A model of agreements: connections between two processes, a third one that is a sibling of the
//! acceptor, a thief at either side or nobody, and links that deliver late, break, lose what was on
//! its way, say things twice or end. Schedules are drawn; [`World::check`] and [`World::close_all`]
//! are the oracle: both ends of a connection have the same slot or both have none, nobody waits for
//! ever, and each slot is released exactly once.
//!
//! What a step does besides `Agreement::step` and `Slot::step` is what `netacc` and `netacc-rdma`
//! do: keep claims, move messages, know who has which end.

mod world;

use netacc_proto::rendezvous::Peers;
use world::{Random, Third, World};

const SCHEDULES: u64 = 20_000;

fn schedules() -> u64 {
    std::env::var("NETACC_TEST_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(SCHEDULES)
}

fn explore(peers: Peers, third: Third, faults: bool) {
    let mut attached = 0;
    for seed in 0..schedules() {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(peers, third, Random(seed + 1), faults);
            for _ in 0..120 {
                world.go_on();
                world.check_always();
            }
            world.settle();
            world.check();
            let attached = world.attached();
            world.close_all();
            attached
        });
        match run {
            Ok(n) => attached += n,
            Err(why) => {
                eprintln!("{peers:?}, {third:?}, faults {faults}, seed {seed}");
                std::panic::resume_unwind(why);
            }
        }
    }
    // The model does agree on something.
    let honest = matches!(third, Third::Nobody | Third::Sibling);
    assert!(attached as u64 > if honest { schedules() / 2 } else { 0 }, "{attached}");
}

macro_rules! worlds {
    ($($name:ident: $peers:ident, $third:ident, $faults:literal;)*) => {$(
        #[test]
        fn $name() {
            explore(Peers::$peers, Third::$third, $faults);
        }
    )*};
}

worlds! {
    within_a_host: OneHost, Nobody, false;
    within_a_host_with_a_sibling_and_faults: OneHost, Sibling, true;
    within_a_host_with_a_thief_who_connects: OneHost, Claimant, true;
    within_a_host_with_a_thief_who_accepts: OneHost, Squatter, true;
    between_hosts: TwoHosts, Nobody, false;
    between_hosts_with_a_sibling_and_faults: TwoHosts, Sibling, true;
    between_hosts_with_a_thief_who_connects: TwoHosts, Claimant, true;
    between_hosts_with_a_thief_who_accepts: TwoHosts, Squatter, true;
}
