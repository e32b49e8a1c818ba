//! A program that sends, and waits for nothing: the room on its queue pair is its own to make.

use super::*;

/// Several times as many as a pair has receives.
const MESSAGES: usize = 1000;

#[test]
fn what_is_sent_goes_at_once_though_nobody_waits_for_an_answer() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let all = [(); 2].map(|()| {
            let i = rig.connect(0, 1);
            rig.promoted(i);
            i
        });
        for n in 0..MESSAGES {
            for i in all {
                assert_eq!(rig.send(i, C, 1), 1);
            }
            // Who receives looks at its own queue, and nobody at the sender's.
            for i in all {
                assert_eq!(rig.receive(i, A, 8), 1, "message {n} of connection {i}");
            }
        }
        rig.finish();
    }
}
