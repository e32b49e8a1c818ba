//! Connections that are agreed on, and what they cost.

use super::*;

const MODELS: [Model; 3] = [Model::ROCE, Model::SIW, Model::ERDMA];

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
