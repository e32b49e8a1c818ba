//! Anything at any time: three hosts, connections that come and go, and faults, drawn from a seed.

use super::*;

/// How many connections were on the ring in the end.
fn anything(seed: u64) -> usize {
    let model = MODELS[seed as usize % 3];
    let mut rig = Rig::new(Order::Shuffled(seed), model, 3);
    for (c, a) in [(0, 1), (0, 1), (2, 1)] {
        rig.connect(c, a);
    }
    for _ in 0..60 {
        rig.play(25, |_, _| {});
        let h = rig.random.below(3);
        let open: Vec<usize> = (0..rig.conns.len())
            .filter(|i| rig.conns[*i].iter().all(|e| e.open && e.over.is_none()))
            .collect();
        match rig.random.below(16) {
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
                let call = [
                    Call::Post,
                    Call::PostReceives,
                    Call::Poll,
                    Call::Register,
                    Call::Create,
                    Call::Resolve,
                ][rig.random.below(6)];
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
            11 => rig.wires.mute(&rig.hosts[h].fabric, true),
            12 => (0..3).for_each(|h| rig.wires.mute(&rig.hosts[h].fabric, false)),
            _ => {}
        }
    }
    // (What is mute stays so until the first of them has every byte.)
    let mut back = 0;
    // Those that both ends have left alone have every byte, and go on.
    for i in (0..rig.conns.len())
        .filter(|i| rig.conns[*i].iter().all(|e| e.open && !e.shut))
        .collect::<Vec<_>>()
    {
        rig.drain(i);
        rig.exchange(i, 20_000);
        (0..3).for_each(|h| rig.wires.mute(&rig.hosts[h].fabric, false));
        // And come back, unless an end has left the matter to TCP. (A server that was told the
        // stamp of one, and lost its link then, shows the next one's.)
        let mut next = None;
        rig.until(&format!("connection {i} is promoted"), |r| {
            r.chat(i);
            let [c, a] = &r.conns[i];
            let is_stuck = c.socket.syn.was_told() && r.reason(i, C) == Reason::NotAuthenticated;
            if next.is_none() && is_stuck {
                next = Some(r.connect(c.host, a.host));
            }
            next.into_iter().for_each(|n| r.chat(n));
            r.is_fast(i) || r.conns[i].iter().any(|e| e.socket.is(crate::socket::State::Plain))
        });
        assert!(
            rig.conns[i].iter().all(|e| e.over.is_none()),
            "connection {i}\n{}",
            rig.describe()
        );
        back += usize::from(rig.is_fast(i));
    }
    rig.finish();
    back
}

#[test]
fn anything_may_happen_at_any_time() {
    let mut back = 0;
    for seed in seeds(1..25) {
        std::println!("seed {seed}");
        back += anything(seed);
    }
    assert!(back > 0, "TCP is no answer to everything");
    std::println!("{back} connections came back");
}

/// With rings that connections outgrow.
#[test]
fn anything_may_happen_to_small_rings() {
    let mut back = 0;
    for seed in seeds(1..25) {
        std::println!("seed {seed}");
        back += crate::config::with(rings::none(), || anything(seed));
    }
    assert!(back > 0, "TCP is no answer to everything");
}
