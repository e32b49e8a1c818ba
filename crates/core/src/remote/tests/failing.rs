//! Each call of the fabric's fails once, at each end: no byte is wrong, nothing hangs, and nothing stays open.

use super::*;

/// The calls that are made until bytes are on the ring and while they are, and how many of each are tried.
const CALLS: [(Call, u64); 16] = [
    (Call::OpenManager, 1),
    (Call::OpenDevice, 1),
    (Call::OpenDomain, 1),
    (Call::OpenQueue, 1),
    (Call::Register, 2),
    (Call::Listen, 1),
    (Call::Resolve, 1),
    (Call::Create, 1),
    (Call::Connect, 1),
    (Call::Accept, 1),
    (Call::Post, 4),
    (Call::PostReceives, 3),
    (Call::Poll, 3),
    (Call::Arm, 3),
    (Call::Clear, 1),
    (Call::NextFault, 1),
];

fn fails_once(model: Model, h: usize, call: Call, nth: u64, errno: c_int) {
    let what = format!("{:?} {call:?} number {nth} of host {h}, errno {errno}", model.transport);
    let seed = nth * 31 + h as u64 * 7 + call as u64;
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    rig.wires.fail_call(&rig.hosts[h].fabric, call, nth, errno);
    let first = rig.connect(0, 1);
    for _ in 0..40 {
        rig.chat(first);
        rig.play(20, |_, _| {});
        rig.settle();
        rig.pass();
    }
    rig.drain(first);
    for side in [C, A] {
        assert_eq!(rig.conns[first][side].over, None, "{what}\n{}", rig.describe());
        // On TCP for a reason, unless it waits for a better time.
        let plain = rig.conns[first][side].socket.is(crate::socket::PLAIN);
        let why = rig.reason(first, side);
        assert!(!plain || !matches!(why, Reason::None | Reason::Negotiating), "{what}\n{}", rig.describe());
    }
    // Whatever it was, it is over: later connections are served.
    testing::pass_ns(70_000_000_000);
    rig.settle();
    let second = rig.connect(0, 1);
    rig.until(&what, |r| {
        r.chat(second);
        r.is_fast(second)
    });
    rig.exchange(second, 20_000);
    rig.exchange(first, 20_000);
    rig.finish();
}

#[test]
fn each_call_fails_once_at_each_end() {
    for (m, model) in MODELS.into_iter().enumerate() {
        for (call, count) in CALLS {
            for h in [0, 1] {
                for nth in 1..=count {
                    let errno = if (m as u64 + nth).is_multiple_of(2) { libc::ENOMEM } else { libc::EIO };
                    fails_once(model, h, call, nth, errno);
                }
            }
        }
    }
}
