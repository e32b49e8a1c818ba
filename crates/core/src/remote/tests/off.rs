//! Acceleration is turned off while connections are between hosts, and on again.

use super::*;
use crate::config;
use netacc_control::config::Config;

fn off() -> Config {
    Config { accelerate_by_default: false, ..Config::default() }
}

#[test]
fn what_was_taken_back_comes_again() {
    for model in MODELS {
        for seed in 0..6 {
            let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            for round in 0..3 {
                // With bytes under way, at one end or at both.
                rig.play(seed as usize * 5, |_, _| {});
                let ends = [C, A].map(|side| rig.conns[i][side].socket);
                let turned = if (seed + round) % 3 == 0 {
                    &ends[..]
                } else {
                    &ends[round as usize % 2..][..1]
                };
                config::with(off(), || {
                    for s in turned {
                        io::pause(s, s.generation16(), s.fd.load(SeqCst), 0);
                    }
                    rig.until("on TCP", |r| {
                        while r.receive(i, C, 30_000) > 0 {}
                        while r.receive(i, A, 30_000) > 0 {}
                        ends.iter().all(|s| s.is(State::Candidate))
                    });
                    rig.drain(i);
                    rig.exchange(i, 20_000);
                    for s in turned {
                        assert!(s.is(State::Candidate));
                        let record = s.record().unwrap();
                        assert_eq!(record.reason.load(SeqCst), Reason::DisabledByConfig as u32);
                    }
                });
                for s in turned {
                    io::resume(s, s.generation16());
                }
                rig.promoted(i);
                rig.exchange(i, 50_000);
                assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
            }
            rig.finish();
        }
    }
}
