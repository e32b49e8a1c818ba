//! The words of switchover, and their order with the bytes.

use super::*;
use crate::slot::{announce, quiet};

fn publish(conn: &Conn, epoch: u64, fast_from: u64, carrier_from: u64, resend_to: u64) {
    let w = &conn.out().producer_user;
    w[announce::FAST_FROM].store(fast_from, Relaxed);
    w[announce::CARRIER_FROM].store(carrier_from, Relaxed);
    w[announce::RESEND_TO].store(resend_to, Relaxed);
    w[announce::EPOCH].store(epoch, Release);
}

fn announced(conn: &Conn) -> [u64; 4] {
    core::array::from_fn(|i| conn.inb().producer_user[i].load(Acquire))
}

#[test]
fn words_arrive_as_they_were_stored() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(3);
        publish(rig.ends[0].conn(2), 1, u64::MAX - 4, 5, 6);
        let w = rig.ends[0].conn(2);
        w.inb().quiet[quiet::CONSUMED].store(u64::MAX - 9, Relaxed);
        w.inb().quiet[quiet::ACK].store(3 << 32 | 0xffff_fff1, Release);
        w.inb().quiet[quiet::REQUEST].store(1 << 32 | 77, Release);
        w.inb().quiet[0].store(99, Release);
        rig.ends[0].link().kick(2);
        rig.settle();
        let peer = rig.ends[1].conn(2);
        assert_eq!(announced(peer), [1, u64::MAX - 4, 5, 6]);
        let quiet: [u64; 4] = core::array::from_fn(|i| peer.out().quiet[i].load(Acquire));
        assert_eq!(quiet, [0, 3 << 32 | 0xffff_fff1, u64::MAX - 9, 1 << 32 | 77], "NOTIFY stays at home");
        assert!(rig.ends[1].news.contains(&News::Words { slot: 2 }));
        // The announcement has come back.
        assert_eq!(rig.ends[0].link().account(2).unwrap().echoed, 1);
        assert!(rig.ends[0].news.contains(&News::Words { slot: 2 }));
        // Nothing changes twice.
        let before = rig.ends[0].link().counters.read();
        rig.ends[0].link().kick(2);
        assert_eq!(rig.ends[0].link().counters.read(), before);
        rig.close();
    }
}

/// What the peer may ever see: bytes of a fast stretch never before its promotion, and its demotion never before the last of
/// them. Whoever looks at any moment of any order of steps.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn promotions_come_before_their_bytes_and_demotions_after() {
    for seed in 0..if cfg!(miri) { 1 } else { 40 } {
        for &(model, immediate) in WAYS {
            let mut random = Random::new(seed);
            let small = Settings { receives: 5, peer_receives: 5, sends: 8, turn_bytes: 300, ..settings(immediate) };
            let mut rig = Rig::new(Order::Shuffled(seed + 1), model, small);
            rig.open(2);
            let mut epoch = 0u64;
            // For each promotion the position at which it was made; for each demotion the one at which it ended.
            let mut positions = std::vec![0u64];
            for _ in 0..few(400, 60) {
                match random.below(6) {
                    0 if epoch & 1 == 0 => {
                        // As `Tx::promote`: only when the peer has followed.
                        if announced(rig.ends[1].conn(0))[0] == epoch {
                            epoch += 1;
                            let at = rig.ends[0].conn(0).written;
                            positions.push(at);
                            publish(rig.ends[0].conn(0), epoch, at, 0, 0);
                        }
                    }
                    0 => {
                        epoch += 1;
                        let at = rig.ends[0].conn(0).written;
                        positions.push(at);
                        publish(rig.ends[0].conn(0), epoch, positions[epoch as usize - 1], at, at);
                    }
                    1 if epoch & 1 == 1 => drop(rig.ends[0].conn(0).produce(1 + random.below(1500))),
                    2 => {
                        rig.ends[0].link().kick(0);
                    }
                    3 => {
                        rig.ends[0].produce(1, 1 + random.below(500));
                    }
                    4 => {
                        rig.ends[0].poll();
                    }
                    _ => {
                        rig.ends[1].poll();
                        let conn = rig.ends[1].conn(0);
                        let tail = conn.inb().tail.load(Acquire);
                        let seen = announced(conn)[0] as usize;
                        if seen & 1 == 0 {
                            // On the carrier: exactly what the last stretch had.
                            assert_eq!(tail, positions[seen], "epoch {seen}");
                        } else {
                            assert!(tail >= positions[seen]);
                            if let Some(end) = positions.get(seen + 1) {
                                assert!(tail <= *end);
                            }
                        }
                        for slot in [0, 1] {
                            rig.ends[1].consume(slot, 900);
                        }
                    }
                }
            }
            rig.ends[0].link().kick(0);
            rig.drain();
            rig.check();
            assert_eq!(announced(rig.ends[1].conn(0))[0], epoch);
            assert_eq!(u64::from(rig.ends[0].link().account(0).unwrap().echoed), epoch);
            assert!(cfg!(miri) || epoch > 2, "nothing happened");
            rig.close();
        }
    }
}

/// A receiver that disarms and a sender that promotes cross: with the echo the sender knows the receiver's last word.
#[test]
fn an_echo_is_not_older_than_what_it_echoes() {
    for seed in 0..if cfg!(miri) { 2 } else { 100 } {
        for &(model, immediate) in WAYS {
            let mut random = Random::new(seed);
            let mut rig = Rig::new(Order::Shuffled(seed), model, settings(immediate));
            rig.open(1);
            publish(rig.ends[0].conn(0), 1, 0, 0, 0);
            rig.ends[0].link().kick(0);
            // At some moment the receiver stores its acknowledgement, and looks.
            let at = random.below(6);
            let mut saw_promotion = None;
            for i in 0..12 {
                if i == at {
                    let conn = rig.ends[1].conn(0);
                    conn.inb().quiet[quiet::ACK].store(1 << 33, SeqCst);
                    saw_promotion = Some(announced(conn)[0] == 1);
                    // Told later.
                }
                rig.ends[random.below(2)].poll();
                let account = rig.ends[0].link().account(0).unwrap();
                if account.echoed == 1 && saw_promotion == Some(false) {
                    // It has not seen the promotion, so the sender must have seen its word.
                    assert_eq!(rig.ends[0].conn(0).out().quiet[quiet::ACK].load(SeqCst), 1 << 33);
                }
            }
            rig.ends[1].link().kick(0);
            rig.settle();
            assert_eq!(rig.ends[0].link().account(0).unwrap().echoed, 1);
            assert_eq!(rig.ends[0].conn(0).out().quiet[quiet::ACK].load(SeqCst), 1 << 33);
            rig.close();
        }
    }
}
