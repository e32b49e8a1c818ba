//! The transition tables, and scripts of single cases. The interleavings are in `tests/switchover`.

use super::rx::RxEvent;
use super::tx::TxEvent;
use super::*;
use std::string::String;
use std::vec::Vec;

const TX_STATES: [TxState; 5] =
    [TxState::Carrier, TxState::Promoting, TxState::Fast, TxState::Resending, TxState::Shut];

const TX_EVENTS: [TxEvent; 10] = [
    TxEvent::Promote,
    TxEvent::ConfirmArmed,
    TxEvent::ConfirmDisarmed,
    TxEvent::Accept,
    TxEvent::Demote,
    TxEvent::FailOverDone,
    TxEvent::FailOverResend,
    TxEvent::ResentPart,
    TxEvent::ResentAll,
    TxEvent::Shutdown,
];

const RX_STATES: [RxState; 11] = [
    RxState::Open,
    RxState::Armed,
    RxState::Disarming,
    RxState::ToFast,
    RxState::ToFastAndBack,
    RxState::Fast,
    RxState::ToCarrier,
    RxState::FrozenToFast,
    RxState::Frozen,
    RxState::Replaying,
    RxState::Leftover,
];

const RX_EVENTS: [RxEvent; 13] = [
    RxEvent::Arm,
    RxEvent::Freeze,
    RxEvent::SawNothing,
    RxEvent::SawPromotion,
    RxEvent::SawEmptyPromotion,
    RxEvent::SawPromotionAndDemotion,
    RxEvent::SawDemotion,
    RxEvent::SawFailOver,
    RxEvent::ReachedFast,
    RxEvent::ReachedCarrierArmed,
    RxEvent::ReachedCarrierOpen,
    RxEvent::ReachedResendEnd,
    RxEvent::CarrierEnded,
];

/// Every (state, event), and the same as a diagram: the events that lead from one state to another.
fn tables<S: Copy + core::fmt::Debug + PartialEq, E: Copy + core::fmt::Debug>(
    states: &[S],
    events: &[E],
    next: impl Fn(S, E) -> Option<S>,
) -> (String, String) {
    let mut table = String::new();
    let mut diagram = format!("```mermaid\nstateDiagram-v2\n    [*] --> {:?}\n", states[0]);
    for &from in states {
        for &event in events {
            let to = next(from, event);
            let name = to.map_or(String::from("-"), |to| format!("{to:?}"));
            table += &format!("{:16}{:26}{name}\n", format!("{from:?}"), format!("{event:?}"));
        }
        for &to in states.iter().filter(|&&to| to != from) {
            let labels: Vec<_> = events
                .iter()
                .filter(|&&e| next(from, e) == Some(to))
                .map(|e| format!("{e:?}"))
                .collect();
            if !labels.is_empty() {
                diagram += &format!("    {from:?} --> {to:?}: {}\n", labels.join(", "));
            }
        }
    }
    (table, diagram + "```\n")
}

#[test]
fn transition_tables_are_as_reviewed_and_documented() {
    assert_eq!(TxEvent::Shutdown as usize, TX_EVENTS.len() - 1);
    assert_eq!(RxEvent::CarrierEnded as usize, RX_EVENTS.len() - 1);
    let (tx_table, tx_diagram) = tables(&TX_STATES, &TX_EVENTS, |s, e| s.next(e).ok());
    let (rx_table, rx_diagram) = tables(&RX_STATES, &RX_EVENTS, RxState::next);
    let note = include_str!("../../../../docs/design/switchover.md");
    for (name, is, expected) in [
        ("tx.txt", &tx_table, include_str!("snapshots/tx.txt")),
        ("rx.txt", &rx_table, include_str!("snapshots/rx.txt")),
    ] {
        assert!(is == expected, "snapshots/{name} should be:\n{is}");
    }
    for diagram in [&tx_diagram, &rx_diagram] {
        assert!(
            note.contains(diagram.as_str()),
            "docs/design/switchover.md should contain:\n{diagram}"
        );
    }
}

fn armed(rx: &mut Rx) -> Ack {
    assert!(rx.arm());
    rx.ack()
}

/// A pair on the fast path at offset 10, everything consumed.
fn fast_pair(delivery: Delivery) -> (Tx, Rx) {
    let (mut tx, mut rx) = (Tx::new(), Rx::new());
    tx.on_accepted(10).unwrap();
    rx.on_delivered(10).unwrap();
    let announce = tx.promote(armed(&mut rx), delivery).unwrap();
    assert_eq!(tx.confirm(rx.ack()), Ok(None));
    assert_eq!(rx.on_announce(announce), Ok(true));
    (tx, rx)
}

#[test]
fn zeroed_halves_are_new_halves() {
    assert_eq!(Tx::new(), Tx::default());
    assert_eq!(Rx::new(), Rx::default());
    assert_eq!(Tx::new().announce(), Announce::default());
    assert_eq!(Rx::new().ack(), Ack::default());
    assert_eq!(Rx::new().on_announce(Announce::default()), Ok(false));
}

#[test]
fn ack_survives_its_two_words() {
    for (armed, frozen) in [(false, false), (true, false), (false, true)] {
        let ack = Ack { epoch: 0x8000_0001, armed, frozen, consumed: u64::MAX };
        assert_eq!(Ack::from_words(ack.control(), ack.consumed), ack);
    }
}

#[test]
fn receiver_reads_each_path_up_to_the_switch() {
    let (mut tx, mut rx) = (Tx::new(), Rx::new());
    armed(&mut rx);
    tx.on_accepted(10).unwrap();
    let promoted = tx.promote(rx.ack(), Delivery::Reliable).unwrap();
    assert!(!tx.can_accept());
    tx.confirm(rx.ack()).unwrap();
    tx.on_accepted(5).unwrap();
    assert_eq!(rx.plan(), Plan::Carrier { limit: u64::MAX, peek_first: true });
    assert_eq!(rx.after_peek(4, Announce::default()), Ok(4));
    rx.on_delivered(4).unwrap();
    // The peek may show more than belongs to this stretch of the carrier.
    assert_eq!(rx.after_peek(9, promoted), Ok(6));
    assert_eq!(rx.plan(), Plan::Carrier { limit: 6, peek_first: false });
    assert_eq!(rx.on_delivered(6), Ok(true));
    assert_eq!(rx.plan(), Plan::Fast { limit: u64::MAX });
    let demoted = tx.demote().unwrap();
    assert_eq!(rx.on_announce(demoted), Ok(true));
    assert_eq!(rx.plan(), Plan::Fast { limit: 5 });
    assert_eq!(rx.on_delivered(6), Err(Corrupt::Overrun));
    assert_eq!(rx.on_delivered(5), Ok(true));
    assert_eq!((rx.epoch(), rx.state()), (2, RxState::Armed));
}

#[test]
fn promotion_waits_for_the_receiver() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(1).unwrap();
    let demoted = tx.demote().unwrap();
    assert_eq!(tx.promote(rx.ack(), Delivery::Reliable), Err(Refused::NotFollowed));
    let _ = rx.on_announce(demoted).unwrap();
    assert_eq!(tx.promote(rx.ack(), Delivery::Reliable), Err(Refused::NotFollowed));
    rx.on_delivered(1).unwrap();
    assert!(tx.promote(rx.ack(), Delivery::Reliable).is_ok());
}

#[test]
fn promotion_is_withdrawn_when_the_receiver_disarmed() {
    let (mut tx, mut rx) = (Tx::new(), Rx::new());
    let stale = armed(&mut rx);
    rx.freeze();
    assert_eq!(rx.on_announce(Announce::default()), Ok(false));
    assert!(rx.is_released());
    tx.promote(stale, Delivery::Reliable).unwrap();
    let withdrawn = tx.confirm(rx.ack()).unwrap().unwrap();
    assert_eq!((withdrawn.epoch, withdrawn.fast_from, withdrawn.carrier_from), (2, 0, 0));
    // The released receiver did not look, read on, and arms again.
    tx.on_accepted(7).unwrap();
    rx.on_delivered(7).unwrap();
    armed(&mut rx);
    assert_eq!(rx.on_announce(withdrawn), Ok(true));
    assert!(tx.promote(rx.ack(), Delivery::Reliable).is_ok());
}

#[test]
fn pull_back_sends_the_rest_again() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(8).unwrap();
    rx.on_delivered(3).unwrap();
    assert_eq!(tx.pull_back(rx.ack()), Ok(None), "nobody asked");
    assert_eq!(rx.freeze(), 13);
    assert_eq!(rx.plan(), Plan::Wait);
    let fail_over = tx.pull_back(rx.ack()).unwrap().unwrap();
    assert_eq!(fail_over.resend, 13..18);
    assert!(!tx.can_accept());
    assert_eq!(tx.shutdown(), Err(Refused::State(TxState::Resending)));
    assert_eq!(rx.on_announce(fail_over.announce), Ok(true));
    assert!(rx.is_released() && !rx.arm());
    tx.on_resent(4).unwrap();
    assert_eq!(tx.unacked(), 17..18);
    tx.on_resent(1).unwrap();
    assert!(tx.can_accept());
    rx.on_delivered(5).unwrap();
    assert_eq!(rx.state(), RxState::Open);
    assert!(rx.arm());
}

#[test]
fn sender_dies_while_sending_again() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(8).unwrap();
    rx.freeze();
    let fail_over = tx.pull_back(rx.ack()).unwrap().unwrap();
    let _ = rx.on_announce(fail_over.announce).unwrap();
    rx.on_delivered(3).unwrap();
    let verdict = rx.on_carrier_eof(fail_over.announce, false);
    assert_eq!(verdict, Ok(EofVerdict::SkipThenDrain { skip: 3 }));
    assert_eq!((rx.path(), rx.plan()), (Path::Fast, Plan::Fast { limit: 5 }));
    rx.on_delivered(5).unwrap();
    assert_eq!(rx.on_carrier_eof(fail_over.announce, true), Ok(EofVerdict::Eof));
}

#[test]
fn demotion_that_crosses_a_freeze_is_followed() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(8).unwrap();
    rx.on_delivered(3).unwrap();
    rx.freeze();
    let demoted = tx.demote().unwrap();
    assert_eq!(tx.pull_back(rx.ack()), Ok(None), "too late");
    assert_eq!(rx.on_announce(demoted), Ok(true));
    assert_eq!(rx.plan(), Plan::Fast { limit: 5 });
    rx.on_delivered(5).unwrap();
    assert!(rx.is_released());
}

#[test]
fn lossy_link_keeps_what_was_not_consumed() {
    let (mut tx, mut rx) = fast_pair(Delivery::Lossy);
    tx.on_accepted(8).unwrap();
    assert_eq!(tx.unacked(), 10..18);
    assert_eq!(tx.acked(14), Ok(()));
    assert_eq!(tx.acked(12), Ok(()));
    assert_eq!(tx.unacked(), 14..18);
    assert_eq!(tx.acked(19), Err(Corrupt::Overrun));
    assert_eq!(tx.demote(), Err(Refused::Unacked));
    assert_eq!(tx.shutdown(), Err(Refused::Unacked));
    assert_eq!(tx.fail_over(13), Err(Refused::Corrupt(Corrupt::Consumed)), "no longer kept");
    assert_eq!(tx.fail_over(19), Err(Refused::Corrupt(Corrupt::Consumed)));
    rx.on_delivered(6).unwrap();
    rx.freeze();
    assert_eq!(tx.fail_over(rx.ack().consumed).unwrap().resend, 16..18);
}

#[test]
fn end_of_stream_is_where_both_paths_end() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(4).unwrap();
    let now = tx.announce();
    // Killed: FIN without a demotion.
    assert_eq!({ rx }.on_carrier_eof(now, false), Ok(EofVerdict::DrainFastFirst));
    assert_eq!({ rx }.on_carrier_eof(now, true), Ok(EofVerdict::Eof));
    // Shut down: the demotion says where.
    let last = tx.shutdown().unwrap().unwrap();
    assert_eq!(tx.shutdown(), Ok(None));
    assert_eq!(rx.on_carrier_eof(last, true), Ok(EofVerdict::FollowAnnounce));
    assert_eq!({ rx }.on_carrier_eof(last, true), Ok(EofVerdict::Truncated));
    assert_eq!(rx.on_carrier_eof(last, false), Ok(EofVerdict::DrainFastFirst));
    rx.on_delivered(4).unwrap();
    assert_eq!(rx.on_carrier_eof(last, true), Ok(EofVerdict::Eof));
}

#[test]
fn reset_that_swallowed_carrier_bytes_is_no_clean_end() {
    let (mut tx, mut rx) = (Tx::new(), Rx::new());
    armed(&mut rx);
    tx.on_accepted(10).unwrap();
    let announce = tx.promote(rx.ack(), Delivery::Reliable).unwrap();
    rx.on_delivered(4).unwrap();
    assert_eq!(rx.on_carrier_eof(announce, false), Ok(EofVerdict::FollowAnnounce));
    assert_eq!(rx.on_carrier_eof(announce, false), Ok(EofVerdict::Truncated));
}

#[test]
fn carrier_data_without_a_demotion_is_corrupt() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    assert_eq!(rx.on_carrier_readable(tx.announce()), Err(Corrupt::CarrierData));
    assert_eq!(rx.on_carrier_readable(tx.demote().unwrap()), Ok(true));
}

#[test]
fn announcements_that_no_sender_makes_are_corrupt() {
    let (tx, mut rx) = fast_pair(Delivery::Reliable);
    let good = tx.announce();
    let at = |epoch, carrier_from, resend_to| Announce { epoch, carrier_from, resend_to, ..good };
    let before = rx;
    for (announce, corrupt) in [
        (at(0, 0, 0), Corrupt::Epoch),
        (at(3, 10, 10), Corrupt::Epoch),
        (at(u32::MAX, 10, 10), Corrupt::Epoch),
        (at(2, 9, 9), Corrupt::OffsetBehind),
        (at(2, 10, 9), Corrupt::OffsetOrder),
        (at(2, 10, 11), Corrupt::OffsetOrder),
    ] {
        assert_eq!(rx.on_announce(announce), Err(corrupt), "{announce:?}");
        assert_eq!(rx, before);
    }
}

#[test]
fn pinned_sender_stays_on_the_carrier() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.pin();
    let _ = rx.on_announce(tx.demote().unwrap()).unwrap();
    assert_eq!(tx.promote(rx.ack(), Delivery::Reliable), Err(Refused::Pinned));
}

#[test]
fn epochs_wrap_around() {
    let mut tx = Tx::starting_at(u32::MAX, 5);
    let mut rx = Rx::starting_at(u32::MAX, 5);
    for _ in 0..4 {
        armed(&mut rx);
        let announce = tx.promote(rx.ack(), Delivery::Reliable).unwrap();
        tx.confirm(rx.ack()).unwrap();
        tx.on_accepted(1).unwrap();
        assert_eq!(rx.on_announce(announce), Ok(true));
        assert_eq!(rx.on_announce(tx.demote().unwrap()), Ok(true));
        rx.on_delivered(1).unwrap();
        assert_eq!((rx.epoch(), rx.offset()), (tx.epoch(), tx.offset()));
    }
    assert_eq!(rx.epoch(), 6);
}

fn lossy_armed() -> Rx {
    let mut rx = Rx::new_over(Delivery::Lossy);
    assert!(rx.arm());
    rx
}

#[test]
fn zeroed_receiver_is_reliable() {
    assert_eq!(Rx::new_over(Delivery::Reliable), Rx::default());
    assert_eq!(Rx::starting_at_over(Delivery::Reliable, 3, 7), Rx::starting_at(3, 7));
    assert_ne!(Rx::new_over(Delivery::Lossy), Rx::default());
    assert_eq!(Rx::new_over(Delivery::Lossy).ack(), Ack::default());
}

#[test]
fn disarming_over_a_lossy_link_waits_for_the_echo() {
    let mut rx = lossy_armed();
    let armed = rx.ack().control();
    assert!(!rx.ack_seen(armed), "nothing follows from it yet");
    rx.freeze();
    assert!(!rx.ack().armed);
    assert_eq!(rx.on_announce(Announce::default()), Ok(false));
    assert_eq!(rx.after_peek(4, Announce::default()), Ok(4));
    assert_eq!(rx.state(), RxState::Disarming);
    assert!(!rx.arm(), "not before the sender has seen it disarmed");
    assert!(!rx.ack_seen(armed), "an older word");
    assert!(rx.ack_seen(rx.ack().control()));
    assert!(!rx.ack_seen(rx.ack().control()), "known");
    assert_eq!(rx.state(), RxState::Disarming, "not looked yet");
    assert_eq!(rx.on_announce(Announce::default()), Ok(false));
    assert!(rx.is_released() && rx.arm());
}

#[test]
fn armed_word_stands_until_the_sender_has_seen_it() {
    let mut rx = Rx::new_over(Delivery::Lossy);
    let before = rx.ack().control();
    rx.arm();
    rx.freeze();
    assert!(rx.ack().armed, "not taken back yet");
    assert!(!rx.ack_seen(before), "an echo from before it was armed");
    assert!(rx.ack_seen(rx.ack().control()));
    assert_eq!(rx.ack().control(), before);
    assert_eq!(rx.on_announce(Announce::default()), Ok(false));
    assert_eq!(rx.state(), RxState::Disarming);
    assert!(rx.ack_seen(before));
    assert_eq!(rx.on_announce(Announce::default()), Ok(false));
    assert!(rx.is_released());
}

#[test]
fn promotion_that_crosses_a_disarming_is_pulled_back() {
    let mut rx = lossy_armed();
    let mut tx = Tx::new();
    let promoted = tx.promote(rx.ack(), Delivery::Lossy).unwrap();
    assert_eq!(tx.confirm(rx.ack()), Ok(None));
    tx.on_accepted(5).unwrap();
    rx.freeze();
    assert_eq!(rx.on_announce(promoted), Ok(true));
    assert!(!rx.ack().armed && rx.ack().frozen);
    let fail_over = tx.pull_back(rx.ack()).unwrap().unwrap();
    assert_eq!(fail_over.resend, 0..5);
    assert_eq!(rx.on_announce(fail_over.announce), Ok(true));
    assert!(rx.is_released());
}

#[test]
fn carrier_opens_with_the_echo_of_the_demotion() {
    let (mut tx, _) = fast_pair(Delivery::Reliable);
    assert!(tx.carrier_is_open(0), "nothing travels");
    tx.demote().unwrap();
    assert!(tx.carrier_is_open(1), "nothing travels");
    assert!(Tx::new().carrier_is_open(0), "never left");
    let (mut tx, mut rx) = fast_pair(Delivery::Lossy);
    tx.on_accepted(2).unwrap();
    assert!(!tx.carrier_is_open(1), "on the fast path");
    rx.freeze();
    let _ = tx.pull_back(rx.ack()).unwrap().unwrap();
    assert!(!tx.carrier_is_open(1));
    assert!(tx.carrier_is_open(2));
}

#[test]
fn end_of_the_carrier_on_a_lossy_path_is_no_clean_end() {
    let mut rx = lossy_armed();
    let mut tx = Tx::new();
    let promoted = tx.promote(rx.ack(), Delivery::Lossy).unwrap();
    assert_eq!(tx.confirm(rx.ack()), Ok(None));
    tx.on_accepted(5).unwrap();
    assert_eq!(rx.on_announce(promoted), Ok(true));
    assert_eq!({ rx }.on_carrier_eof(promoted, false), Ok(EofVerdict::DrainFastFirst));
    assert_eq!({ rx }.on_carrier_eof(promoted, true), Ok(EofVerdict::Truncated));
    let mut frozen = rx;
    frozen.freeze();
    assert_eq!({ frozen }.on_carrier_eof(promoted, true), Ok(EofVerdict::Truncated));
    assert_eq!({ frozen }.on_carrier_eof(promoted, false), Ok(EofVerdict::DrainFastFirst));
    let again = tx.pull_back(frozen.ack()).unwrap().unwrap().announce;
    assert_eq!(frozen.on_announce(again), Ok(true));
    frozen.on_delivered(2).unwrap();
    assert_eq!({ frozen }.on_carrier_eof(again, false), Ok(EofVerdict::Truncated));
    frozen.on_delivered(3).unwrap();
    assert_eq!(frozen.on_carrier_eof(again, false), Ok(EofVerdict::Eof));
}

#[test]
fn who_has_left_is_not_waited_for() {
    let mut rx = lossy_armed();
    let mut tx = Tx::new();
    let stale = rx.ack();
    rx.freeze();
    assert!(rx.peer_left() && !rx.peer_left());
    assert!(!rx.ack().armed);
    assert_eq!(rx.on_announce(Announce::default()), Ok(false));
    assert!(rx.is_released());
    // The receiver has left while the sender promoted.
    tx.promote(stale, Delivery::Lossy).unwrap();
    assert!(tx.confirm(rx.ack()).unwrap().is_some());
    assert!(!tx.carrier_is_open(0));
    tx.peer_left();
    assert!(tx.carrier_is_open(0) && !tx.must_end_in_reset(0));
    assert_eq!(tx.promote(stale, Delivery::Lossy), Err(Refused::Pinned));
}

#[test]
fn end_of_the_process_resets_the_carrier_while_bytes_may_be_missing() {
    let (tx, _) = fast_pair(Delivery::Reliable);
    assert!(!tx.must_end_in_reset(1), "the ring outlives the process");
    let (mut tx, mut rx) = fast_pair(Delivery::Lossy);
    tx.on_accepted(1).unwrap();
    assert!(tx.must_end_in_reset(1));
    rx.freeze();
    tx.pull_back(rx.ack()).unwrap().unwrap();
    assert!(tx.must_end_in_reset(2), "not sent again yet");
    tx.on_resent(1).unwrap();
    assert!(tx.must_end_in_reset(1), "the receiver does not know yet");
    assert!(!tx.must_end_in_reset(2));
}

#[test]
fn announcement_that_comes_after_the_end_of_the_carrier_is_too_late() {
    let mut rx = lossy_armed();
    let mut tx = Tx::new();
    let promoted = tx.promote(rx.ack(), Delivery::Lossy).unwrap();
    assert_eq!(tx.confirm(rx.ack()), Ok(None));
    tx.on_accepted(5).unwrap();
    assert_eq!(rx.on_announce(promoted), Ok(true));
    rx.freeze();
    let again = tx.pull_back(rx.ack()).unwrap().unwrap().announce;
    assert_eq!(rx.on_carrier_eof(promoted, false), Ok(EofVerdict::DrainFastFirst));
    rx.on_delivered(3).unwrap();
    assert_eq!(rx.on_announce(again), Ok(false));
    assert_eq!(rx.on_carrier_eof(again, true), Ok(EofVerdict::Truncated));
}

#[test]
fn bytes_that_come_again_are_outstanding_until_they_have_come() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(8).unwrap();
    rx.on_delivered(3).unwrap();
    assert_eq!(rx.outstanding(), 0, "on the fast path nothing is");
    rx.freeze();
    let fail_over = tx.pull_back(rx.ack()).unwrap().unwrap();
    assert_eq!(rx.outstanding(), 0, "not known yet");
    assert_eq!(rx.on_announce(fail_over.announce), Ok(true));
    assert_eq!(rx.outstanding(), 5);
    rx.on_delivered(2).unwrap();
    assert_eq!(rx.outstanding(), 3);
    rx.on_delivered(3).unwrap();
    assert_eq!((rx.outstanding(), rx.state()), (0, RxState::Open));
    rx.on_delivered(7).unwrap();
    assert_eq!(rx.outstanding(), 0);
}

#[test]
fn each_arming_over_a_lossy_link_waits_for_echoes_of_its_own() {
    let mut rx = lossy_armed();
    for _ in 0..2 {
        rx.freeze();
        assert!(rx.ack().armed, "of this arming the sender has seen nothing");
        assert!(rx.ack_seen(rx.ack().control()));
        assert!(rx.ack_seen(rx.ack().control()));
        assert_eq!(rx.on_announce(Announce::default()), Ok(false));
        assert!(rx.is_released() && rx.arm());
    }
    // One that was armed already is no new arming.
    assert!(!rx.ack_seen(rx.ack().control()));
    assert!(rx.arm());
    rx.freeze();
    assert!(!rx.ack().armed, "the sender has seen it armed");
}

#[test]
fn announcement_after_the_end_counts_where_the_fast_path_keeps_its_bytes() {
    let (mut tx, mut rx) = fast_pair(Delivery::Reliable);
    tx.on_accepted(5).unwrap();
    let before = Announce { epoch: 1, fast_from: 10, ..Announce::default() };
    assert_eq!(rx.on_carrier_eof(before, false), Ok(EofVerdict::DrainFastFirst));
    rx.on_delivered(3).unwrap();
    assert_eq!(rx.on_announce(tx.demote().unwrap()), Ok(true));
    assert_eq!(rx.plan(), Plan::Fast { limit: 2 });
    // On the carrier nothing is lost by its end over a lossy path either.
    let mut rx = lossy_armed();
    let promoted = Tx::new().promote(rx.ack(), Delivery::Lossy).unwrap();
    let end = rx.on_carrier_eof(Announce::default(), true);
    assert_eq!(end, Ok(EofVerdict::Eof));
    assert_eq!(rx.on_announce(promoted), Ok(true));
}

#[test]
fn bytes_of_a_promotion_come_again_only_to_who_froze_before_it() {
    let resent = |carrier_from| Announce { epoch: 2, fast_from: 10, carrier_from, resend_to: 15 };
    let promoted = Announce { epoch: 1, fast_from: 10, ..Announce::default() };
    let frozen_before = || {
        let mut rx = Rx::new();
        armed(&mut rx);
        assert_eq!(rx.on_announce(promoted), Ok(true));
        rx.freeze();
        assert_eq!(rx.state(), RxState::FrozenToFast);
        rx
    };
    assert_eq!(frozen_before().on_announce(resent(10)), Ok(true));
    let late = frozen_before().on_announce(resent(12));
    assert_eq!(late, Err(Corrupt::OffsetOrder));
    let mut rx = Rx::new();
    armed(&mut rx);
    assert_eq!(rx.on_announce(promoted), Ok(true));
    let unasked = rx.on_announce(resent(10));
    assert_eq!(unasked, Err(Corrupt::OffsetOrder));
}
