//! Anything at any time: three hosts, connections that come and go, and faults, drawn from a seed.

use super::*;

fn anything(seed: u64) {
    let model = MODELS[seed as usize % 3];
    let mut rig = Rig::new(Order::Shuffled(seed), model, 3);
    for (c, a) in [(0, 1), (0, 1), (2, 1)] {
        rig.connect(c, a);
    }
    for _ in 0..60 {
        rig.play(25, |_, _| {});
        let h = rig.random.below(3);
        let open: Vec<usize> = (0..rig.conns.len()).filter(|i| rig.conns[*i].iter().all(|e| e.open && e.over.is_none())).collect();
        match rig.random.below(14) {
            0 => rig.wires.break_pairs(&rig.hosts[h].fabric),
            1 => rig.break_links(h),
            2 => {
                rig.wires.cut(&rig.hosts[h].fabric, true);
                rig.play(20, |_, _| {});
                let ms = rig.random.below(200) as u64;
                testing::pass_ns(ms * 1_000_000);
                rig.play(20, |_, _| {});
                rig.wires.cut(&rig.hosts[h].fabric, false);
            }
            3 => {
                let call = [Call::Post, Call::PostReceives, Call::Poll, Call::Register, Call::Create, Call::Resolve][rig.random.below(6)];
                let nth = 1 + rig.random.below(5) as u64;
                rig.wires.fail_call(&rig.hosts[h].fabric, call, nth, libc::EIO);
            }
            4 => {
                rig.hosts[h].stopped = true;
                rig.play(40, |_, _| {});
                rig.hosts[h].stopped = false;
            }
            5 if open.len() < 8 => {
                let (c, a) = [(0, 1), (2, 1), (1, 0), (2, 0)][rig.random.below(4)];
                rig.connect(c, a);
            }
            6 if open.len() > 2 => {
                let i = open[rig.random.below(open.len())];
                let side = rig.random.below(2);
                rig.close(i, side);
            }
            7 if open.len() > 2 => {
                let i = open[rig.random.below(open.len())];
                let side = rig.random.below(2);
                rig.shut(i, side);
            }
            8 | 9 => {
                rig.pass();
            }
            10 => rig.settle(),
            _ => {}
        }
    }
    // Those that both ends have left alone have every byte, and go on.
    for i in (0..rig.conns.len()).filter(|i| rig.conns[*i].iter().all(|e| e.open && !e.shut)).collect::<Vec<_>>() {
        rig.drain(i);
        rig.exchange(i, 20_000);
        assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "connection {i}\n{}", rig.describe());
    }
    rig.finish();
}

#[test]
fn anything_may_happen_at_any_time() {
    for seed in seeds(1..25) {
        std::println!("seed {seed}");
        anything(seed);
    }
}
