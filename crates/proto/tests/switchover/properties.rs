//! Random runs: of large worlds, and of single halves against a hostile peer.

use crate::hostile::{RxOp, TxOp, apply_rx, apply_tx};
use crate::model::{Config, GiveUp, Mutant, run};
use netacc_proto::switchover::{Ack, Announce, Delivery, Rx, RxState, Tx};
use proptest::prelude::*;

fn any_config() -> impl Strategy<Value = Config> {
    let budgets = (1..=200u8, 1..=8u8, 0..=40u8, 0..=40u8, 0..=40u8, 0..=20u8);
    let place = (
        any::<bool>(),
        1..=12u8,
        1..=6u8,
        any::<bool>(),
        prop_oneof![Just(GiveUp::Never), Just(GiveUp::WhenOpen), Just(GiveUp::WhenReleased)],
        0..8u32,
        0..1u64 << 62,
    );
    (budgets, place).prop_map(|((bytes, chunk, promotes, demotes, arms, freezes), place)| {
        let (lossy, carrier_cap, fast_cap, crash, gives_up, epoch, offset) = place;
        Config {
            delivery: if lossy { Delivery::Lossy } else { Delivery::Reliable },
            bytes,
            chunk,
            promotes,
            demotes,
            arms,
            freezes,
            carrier_cap,
            fast_cap,
            crash,
            gives_up,
            mutant: Mutant::None,
            epoch: (u32::MAX - 5).wrapping_add(epoch) & !1,
            offset,
        }
    })
}

/// Mostly near the interesting values, sometimes anything.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..40u64, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn epoch() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0..8u32, 1 => any::<u32>()]
}

fn announce() -> impl Strategy<Value = Announce> {
    (epoch(), offset(), offset(), offset()).prop_map(
        |(epoch, fast_from, carrier_from, resend_to)| Announce {
            epoch,
            fast_from,
            carrier_from,
            resend_to,
        },
    )
}

fn ack() -> impl Strategy<Value = Ack> {
    (epoch(), any::<bool>(), prop::bool::weighted(0.2), offset())
        .prop_map(|(epoch, armed, frozen, consumed)| Ack { epoch, armed, frozen, consumed })
}

fn rx_op() -> impl Strategy<Value = RxOp> {
    prop_oneof![
        1 => Just(RxOp::Arm),
        1 => Just(RxOp::Freeze),
        4 => announce().prop_map(RxOp::Announce),
        2 => (offset(), announce()).prop_map(|(n, a)| RxOp::Peek(n, a)),
        1 => announce().prop_map(RxOp::Readable),
        2 => (announce(), any::<bool>()).prop_map(|(a, e)| RxOp::Eof(a, e)),
        1 => offset().prop_map(RxOp::Deliver),
        4 => (1..10u64).prop_map(RxOp::DeliverPlanned),
    ]
}

fn tx_op() -> impl Strategy<Value = TxOp> {
    prop_oneof![
        4 => offset().prop_map(TxOp::Accept),
        4 => (ack(), any::<bool>()).prop_map(|(a, l)| TxOp::Promote(a, l)),
        4 => ack().prop_map(TxOp::Confirm),
        2 => Just(TxOp::Demote),
        2 => offset().prop_map(TxOp::FailOver),
        2 => ack().prop_map(TxOp::PullBack),
        4 => (0..10u64).prop_map(TxOp::Resent),
        2 => offset().prop_map(TxOp::Acked),
        1 => Just(TxOp::Shutdown),
    ]
}

proptest! {
    #[test]
    fn random_runs_deliver_the_exact_stream(
        config in any_config(),
        choices in prop::collection::vec(any::<u8>(), 0..4000),
    ) {
        if let Err(violation) = run(config, &choices) {
            return Err(TestCaseError::fail(violation));
        }
    }

    #[test]
    fn receiver_survives_any_announcement(ops in prop::collection::vec(rx_op(), 0..60)) {
        let mut rx = Rx::new();
        ops.into_iter().for_each(|op| apply_rx(&mut rx, op));
    }

    /// As above, over a lossy path, where echoes come as well.
    #[test]
    fn lossy_receiver_survives_any_announcement_and_echo(
        ops in prop::collection::vec((rx_op(), epoch(), 0..4u64, prop::bool::weighted(0.02)), 0..60),
    ) {
        let mut rx = Rx::new_over(Delivery::Lossy);
        for (op, epoch, flags, peer_leaves) in ops {
            match op {
                // The armed word may stand a while longer.
                RxOp::Freeze => prop_assert!(rx.freeze() >= rx.offset()),
                op => apply_rx(&mut rx, op),
            }
            prop_assert!(rx.state() != RxState::Leftover);
            let before = rx;
            let control = rx.ack().control();
            let echo = u64::from(epoch) | flags << 32;
            if rx.ack_seen(echo) {
                prop_assert!(echo == control && rx.state() == RxState::Disarming);
            }
            if echo != control {
                prop_assert_eq!(rx, before);
            }
            if peer_leaves {
                rx.peer_left();
            }
            prop_assert!(rx.offset() == before.offset() && rx.state() == before.state());
        }
    }

    #[test]
    fn sender_survives_any_ack(ops in prop::collection::vec(tx_op(), 0..60)) {
        let mut tx = Tx::new();
        ops.into_iter().for_each(|op| apply_tx(&mut tx, op));
    }
}
