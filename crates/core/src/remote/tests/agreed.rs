//! Connections that are agreed on, and what they cost.

use super::*;

#[test]
fn the_second_connection_needs_no_pair_and_no_region() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let first = rig.connect(0, 1);
        rig.promoted(first);
        rig.exchange(first, 300_000);
        let made = |rig: &Rig| [0, 1].map(|h| (rig.calls(h, Call::Create), rig.calls(h, Call::Register), rig.objects(h)));
        let before = made(&rig);
        assert_eq!(before[0].0, 1);
        let second = rig.connect(0, 1);
        rig.promoted(second);
        rig.exchange(second, 300_000);
        assert_eq!(made(&rig), before);
        rig.finish();
    }
}

#[test]
fn without_threads_connections_stay_on_tcp_until_there_are_some() {
    for model in [Model::SIW, Model::ERDMA] {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        // iWARP's pairs are connected by a thread.
        testing::set_threads(Threads::Refuse);
        for _ in 0..5 {
            rig.chat(i);
            rig.settle();
            rig.pass();
        }
        assert!(!rig.is_attached(i, C) && !rig.is_attached(i, A));
        assert_eq!(rig.objects(0).pairs, 0, "{}", rig.describe());
        testing::set_threads(Threads::Hold);
        rig.promoted(i);
        rig.exchange(i, 10_000);
        rig.finish();
    }
}
