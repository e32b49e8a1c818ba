//! A peer that writes anything into the shared words: each half stays within its own bounds, and a
//! refusal changes nothing. The operations and what must hold after each; also used by the fuzz
//! targets.

use netacc_proto::switchover::{
    Ack, Announce, Delivery, EofVerdict, Plan, Rx, RxState, Tx, TxState,
};

#[derive(Clone, Debug)]
pub enum RxOp {
    Arm,
    Freeze,
    Announce(Announce),
    Peek(u64, Announce),
    Readable(Announce),
    Eof(Announce, bool),
    Deliver(u64),
    DeliverPlanned(u64),
}

#[derive(Clone, Debug)]
pub enum TxOp {
    Accept(u64),
    Promote(Ack, bool),
    Confirm(Ack),
    Demote,
    FailOver(u64),
    PullBack(Ack),
    Resent(u64),
    Acked(u64),
    Shutdown,
}

fn limit(plan: Plan) -> u64 {
    match plan {
        Plan::Carrier { limit, .. } | Plan::Fast { limit } => limit,
        Plan::Wait => 0,
    }
}

pub fn apply_rx(rx: &mut Rx, op: RxOp) {
    let before = *rx;
    let refused = match op {
        RxOp::Arm => !rx.arm(),
        RxOp::Freeze => {
            let consumed = rx.freeze();
            assert_eq!(rx.ack().consumed, consumed);
            assert!(!rx.ack().armed);
            false
        }
        RxOp::Announce(a) => rx.on_announce(a).is_err(),
        RxOp::Peek(n, a) => match rx.after_peek(n, a) {
            Ok(take) => {
                assert!(take <= n && take <= limit(rx.plan()));
                false
            }
            Err(_) => true,
        },
        // This one fails because of what it does not find, so it may have followed something.
        RxOp::Readable(a) => {
            let _ = rx.on_carrier_readable(a);
            false
        }
        RxOp::Eof(a, drained) => match rx.on_carrier_eof(a, drained) {
            Ok(EofVerdict::SkipThenDrain { skip }) => {
                assert_eq!(rx.state(), RxState::Leftover);
                assert!(skip <= rx.offset());
                false
            }
            Ok(EofVerdict::DrainFastFirst) => {
                assert!(matches!(rx.plan(), Plan::Fast { limit: 1.. }));
                false
            }
            Ok(_) => false,
            Err(_) => true,
        },
        RxOp::Deliver(n) => {
            let allowed = n <= limit(rx.plan()) && rx.offset().checked_add(n).is_some();
            let result = rx.on_delivered(n);
            assert_eq!(result.is_ok(), allowed);
            assert!(!allowed || rx.offset() == before.offset() + n);
            !allowed
        }
        RxOp::DeliverPlanned(n) => rx.on_delivered(n.min(limit(rx.plan()))).is_err(),
    };
    assert!(!refused || *rx == before, "a refusal changes nothing");
    assert!(rx.offset() >= before.offset());
    assert!(rx.ack().consumed >= rx.offset());
    assert!(rx.wants_pull_back() == rx.ack().frozen);
    assert!(!(rx.ack().frozen && rx.ack().armed));
    if let Plan::Fast { limit } = rx.plan() {
        assert!(limit > 0, "a switch is passed as soon as it is reached");
    }
}

pub fn apply_tx(tx: &mut Tx, op: TxOp) {
    let before = *tx;
    let kept = tx.unacked();
    let refused = match op {
        TxOp::Accept(n) => tx.on_accepted(n).is_err(),
        TxOp::Promote(a, lossy) => {
            tx.promote(a, if lossy { Delivery::Lossy } else { Delivery::Reliable }).is_err()
        }
        TxOp::Confirm(a) => tx.confirm(a).is_err(),
        TxOp::Demote => tx.demote().is_err(),
        TxOp::FailOver(consumed) => match tx.fail_over(consumed) {
            Ok(fail_over) => {
                assert!(fail_over.resend.start >= kept.start, "only kept bytes are sent again");
                assert_eq!(fail_over.resend.end, before.offset());
                false
            }
            Err(_) => true,
        },
        TxOp::PullBack(a) => match tx.pull_back(a) {
            Ok(None) => {
                assert_eq!(*tx, before);
                false
            }
            Ok(Some(_)) => false,
            Err(_) => true,
        },
        TxOp::Resent(n) => tx.on_resent(n).is_err(),
        TxOp::Acked(n) => tx.acked(n).is_err(),
        TxOp::Shutdown => tx.shutdown().is_err(),
    };
    assert!(!refused || *tx == before, "a refusal changes nothing");
    assert!(tx.offset() >= before.offset());
    let kept = tx.unacked();
    assert!(kept.start <= kept.end && kept.end <= tx.offset());
    assert!(tx.can_accept() || tx.state() != TxState::Carrier);
    let epoch = tx.announce();
    assert!(epoch.carrier_from <= epoch.resend_to && epoch.resend_to <= tx.offset());
    assert!(epoch.fast_from <= tx.offset());
}
