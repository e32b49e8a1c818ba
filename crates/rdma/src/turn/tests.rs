use super::*;
use std::collections::BTreeSet;

#[test]
fn who_cannot_enter_is_seen_by_who_is_inside() {
    let turn = Turn::default();
    assert!(turn.enter());
    assert!(!turn.try_enter());
    assert!(turn.leave());
    assert!(turn.enter());
    assert!(!turn.enter());
    assert!(!turn.enter());
    assert!(!turn.leave(), "somebody came");
    assert!(turn.leave());
    assert!(turn.try_enter());
    assert!(!turn.enter());
    assert!(!turn.leave());
    assert!(turn.leave());
}

#[test]
fn bits_are_a_set_that_goes_round() {
    let bits = Bits::new();
    let mut model = BTreeSet::new();
    let mut x = 12345u64;
    for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lane = (x >> 33) as u16 % crate::LANES_MAX as u16;
        // Few and far between, so that words become empty.
        let lane = if x >> 60 & 1 == 0 { lane } else { lane & 0xf00 };
        if x >> 61 & 1 == 0 {
            bits.set(lane);
            model.insert(lane);
        } else {
            bits.clear(lane);
            model.remove(&lane);
        }
        let from = (x >> 20) as u16 % crate::LANES_MAX as u16;
        let next = model.range(from..).next().or_else(|| model.first()).copied();
        assert_eq!(bits.next(from), next);
        assert_eq!(bits.is_empty(), model.is_empty());
    }
}

/// Many threads add; each thing that was added is taken out by somebody, and nobody waits.
#[test]
fn nothing_that_was_added_is_left() {
    let turn = Turn::default();
    let bits = Bits::new();
    let taken = AtomicU64::new(0);
    let waiting = [const { AtomicU32::new(0) }; 64];
    std::thread::scope(|s| {
        for t in 0..3u16 {
            let (turn, bits, taken, waiting) = (&turn, &bits, &taken, &waiting);
            s.spawn(move || {
                for i in 0..if cfg!(miri) { 50 } else { 20_000u16 } {
                    let lane = i.wrapping_mul(7).wrapping_add(t) % 64;
                    waiting[usize::from(lane)].fetch_add(1, Relaxed);
                    bits.set(lane);
                    if turn.enter() {
                        loop {
                            while let Some(lane) = bits.next(0) {
                                bits.clear(lane);
                                let n = waiting[usize::from(lane)].swap(0, Relaxed);
                                taken.fetch_add(u64::from(n), Relaxed);
                            }
                            if turn.leave() {
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
    assert_eq!(taken.load(Relaxed), 3 * if cfg!(miri) { 50 } else { 20_000 });
}
