//! The self-test of `examples/selftest`, which is for real providers, on the fabric in memory: what
//! passes there must pass here, and the other way round.

#[path = "../examples/selftest/checks.rs"]
mod checks;

use checks::{Bed, Side};
use netacc_verbs::memory::{Memory, Model, Net, Order};
use std::net::IpAddr;
use std::time::Duration;

fn run(order: Order, model: Model, rounds: u32) {
    let net = Net::new(order);
    let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let (at_a, at_b) = (net.host(a, model), net.host(b, model));
    let (x, y) = (Side::open(at_a.clone(), a, 1).unwrap(), Side::open(at_b.clone(), b, 2).unwrap());
    let bed = Bed::new(x, y, 0, rounds, |f: &Memory| f.net().time_out()).unwrap();
    let failed = checks::all(&bed, |name, result| {
        if let Err(why) = result {
            println!("{order:?} {model:?}: {name}: {why}");
        }
    });
    assert_eq!(failed, 0);
    bed.close().unwrap();
    assert_eq!(net.objects(&at_a) + net.objects(&at_b), 0);
}

#[test]
fn in_order() {
    for model in [Model::ROCE, Model::SIW, Model::ERDMA] {
        run(Order::Prompt, model, 200);
    }
}

#[test]
fn in_any_order() {
    for seed in 0..8 {
        for model in [Model::ROCE, Model::SIW, Model::ERDMA] {
            run(Order::Shuffled(seed), model, 15);
        }
    }
}

#[test]
fn each_end_in_a_thread_of_its_own() {
    for model in [Model::ROCE, Model::SIW, Model::ERDMA] {
        let net = Net::new(Order::Prompt);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (at_a, at_b) = (net.host(a, model), net.host(b, model));
        let barrier = std::sync::Barrier::new(2);
        let meet = || {
            barrier.wait();
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let side = Side::open(at_b.clone(), b, 1).unwrap();
                checks::serve(&side, 7000, 3, &mut { meet }).unwrap();
                side.close().unwrap();
            });
            let side = Side::open(at_a.clone(), a, 1).unwrap();
            checks::call(&side, (b, 7000).into(), 3, 20, &mut { meet }).unwrap();
            side.close().unwrap();
        });
        assert_eq!(net.objects(&at_a) + net.objects(&at_b), 0);
    }
}

#[test]
fn a_device_that_goes_away_can_be_closed() {
    for model in [Model::ROCE, Model::SIW, Model::ERDMA] {
        let net = Net::new(Order::Prompt);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (at_a, at_b) = (net.host(a, model), net.host(b, model));
        let (x, y) =
            (Side::open(at_a.clone(), a, 1).unwrap(), Side::open(at_b.clone(), b, 2).unwrap());
        let bed = Bed::new(x, y, 0, 1, |_| ()).unwrap();
        let removed = || net.remove_device(&at_b);
        let heard = checks::watch(bed, removed, Duration::from_millis(1)).unwrap();
        assert!(heard.contains("news of 2: device removed"), "{heard}");
        assert_eq!(net.objects(&at_a) + net.objects(&at_b), 0);
    }
}
