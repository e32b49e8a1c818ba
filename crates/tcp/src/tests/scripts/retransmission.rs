//! RFC 6298 (timeouts), RFC 8985 (RACK-TLP), RFC 2018, 8 (reneging).

use super::super::script::{SEND, Script, ack, data, stamped};
use crate::Congestion;
use crate::wire::Segment;

/// RFC 6298, 5: (5.1) it runs from the first byte, (5.3) anew with each progress, (5.4) what is
/// first goes again, (5.5) twice as long.
#[test]
fn a_timeout_sends_the_first_segment_again_and_doubles() {
    let mut script = Script::new(|_| {});
    script.written(1000);
    assert_eq!(script.sent(), [(0, 1000)]);
    // RFC 8985, 7.2: the probe would come at 2 * 100 + 200 ms for one segment: later than this.
    assert_eq!(script.next_timer(), Some(300));
    script.at(300).timer();
    assert_eq!(script.sent(), [(0, 1000)]);
    assert_eq!(script.connection.figures().congestion, Congestion::Loss);
    assert_eq!(script.next_timer(), Some(300 + 600));
    script.at(900).timer();
    assert_eq!(script.sent(), [(0, 1000)]);
    assert_eq!(script.next_timer(), Some(900 + 1200));
    // Karn: no measure; but the timeout is that of the measures again with progress (5.7).
    script.at(950).ack(1000, &[]);
    let figures = script.connection.figures();
    assert_eq!((figures.srtt, figures.rto), (Some(100_000_000), 300_000_000));
    assert_eq!(script.next_timer(), None, "(5.2)");
}

#[test]
fn a_round_trip_is_measured_once_in_a_window() {
    let mut script = Script::new(|_| {});
    script.written(4000);
    script.sent();
    script.at(180).ack(1000, &[]);
    // 7/8 * 100 + 1/8 * 180; 3/4 * 10 + 1/4 * 80.
    let figures = script.connection.figures();
    assert_eq!((figures.srtt, figures.rttvar), (Some(110_000_000), 27_500_000));
    script.at(190).ack(4000, &[]);
    assert_eq!(script.connection.figures().srtt, Some(110_000_000));
}

/// RFC 7323, 4.1: what Karn forbids, time stamps allow.
#[test]
fn a_time_stamp_measures_what_was_sent_twice() {
    let mut script = Script::stamped(500, |_| {});
    script.written(1000);
    script.sent();
    script.at(300).timer();
    script.sent();
    script.at(360);
    script.takes(stamped(ack(1000, &[]), 1, 800), 0);
    assert_eq!(script.connection.figures().srtt, Some(95_000_000), "60 ms");
}

/// The peer had both segments; what it said then was lost. The next is an answer to the first one,
/// sent again, whose stamp it does not take (RFC 7323, 5.3: out of the window). The echo is of a
/// time before the loss.
#[test]
fn what_answers_a_duplicate_measures_no_round_trip() {
    let mut script = Script::stamped(500, |_| {});
    script.written(2000);
    script.sent();
    let timeout = script.next_timer().unwrap();
    script.at(timeout).timer();
    script.sent();
    script.at(2000);
    script.takes(stamped(ack(2000, &[(0, 1000)]), 1, 500), 0);
    let figures = script.connection.figures();
    assert_eq!((figures.srtt, figures.outstanding), (Some(100_000_000), 0));
}

/// RFC 8985, 6.2: a quarter of a round trip for reordering, as long as it is not certain.
#[test]
fn a_gap_is_mended_after_a_quarter_of_a_round_trip() {
    let mut script = Script::new(|_| {});
    script.spread(4);
    script.at(101).ack(0, &[(1000, 2000)]);
    assert_eq!(script.sent(), []);
    // Sent at 0, a round trip of 100 ms, a window of 25.
    assert_eq!(script.next_timer(), Some(125));
    script.at(125).timer();
    assert_eq!(script.sent(), [(0, 1000)]);
    let figures = script.connection.figures();
    assert_eq!((figures.congestion, figures.counters.recoveries), (Congestion::Recovery, 1));
}

/// 6.2, step 4: DupThresh.
#[test]
fn three_segments_behind_a_gap_make_it_certain() {
    let mut script = Script::new(|_| {});
    script.spread(5);
    script.at(101).ack(0, &[(1000, 2000)]);
    script.at(102).ack(0, &[(1000, 3000)]);
    assert_eq!(script.sent(), []);
    script.at(103).ack(0, &[(1000, 4000)]);
    assert_eq!(script.sent(), [(0, 1000)]);
    // Everything is there.
    script.at(203).ack(5000, &[]);
    let figures = script.connection.figures();
    assert_eq!((figures.congestion, figures.outstanding), (Congestion::Open, 0));
}

/// 6.2, step 3: once seen, reordering is waited for in spite of DupThresh.
#[test]
fn reordering_that_was_seen_is_waited_for() {
    let mut script = Script::new(|_| {});
    script.spread(3);
    script.at(101).ack(0, &[(1000, 2000)]);
    script.at(103).ack(2000, &[]);
    script.at(104).ack(3000, &[]);
    script.at(200).spread(5);
    script.at(300).ack(3000, &[(4000, 8000)]);
    assert_eq!(script.sent(), [], "not certain any more");
    // Sent at 200; the round trip of the last that has arrived, 96 ms; a window of 24.
    assert_eq!(script.next_timer(), Some(320));
    script.at(310).ack(8000, &[]);
    assert_eq!(script.connection.figures().counters.bytes_again, 0);
}

/// 6.2: what was sent again and lost again is found by what was sent later.
#[test]
fn a_lost_retransmission_needs_no_timeout() {
    let mut script = Script::new(|_| {});
    script.spread(5);
    script.at(104).ack(0, &[(1000, 5000)]);
    assert_eq!(script.sent(), [(0, 1000)]);
    script.at(105).spread(1);
    script.at(230).ack(0, &[(1000, 6000)]);
    assert_eq!(script.sent(), [(0, 1000)]);
    assert_eq!(script.connection.figures().counters.timeouts, 0);
}

/// RFC 6298, 5, of a retransmission: its answer has a whole timeout, not what is left of one.
#[test]
fn a_retransmission_begins_the_timeout_again() {
    let mut script = Script::new(|_| {});
    script.spread(5);
    script.at(200).ack(0, &[(1000, 5000)]);
    assert_eq!(script.sent(), [(0, 1000)]);
    assert_eq!(script.next_timer(), Some(500));
}

/// 7.3: new data as a probe.
#[test]
fn the_last_segments_are_probed_by_new_data() {
    let mut script = Script::new(|parameters| parameters.send.cwnd = 2);
    script.written(5000);
    assert_eq!(script.sent(), [(0, 1000), (1000, 2000)]);
    // 2 * 100 ms, and two of Linux's ticks.
    assert_eq!(script.next_timer(), Some(202));
    script.at(202).timer();
    assert_eq!(script.sent(), [(2000, 3000)], "beside the congestion window");
    assert_eq!(script.next_timer(), Some(502), "one probe, then the timeout");
}

/// 7.3 and 7.4: without new data the last segment, and what that says.
#[test]
fn the_last_segment_is_probed_by_itself() {
    let mut script = Script::new(|_| {});
    script.written(3000);
    script.sent();
    script.at(100).ack(1000, &[]);
    assert_eq!(script.next_timer(), Some(302));
    script.at(302).timer();
    assert_eq!(script.sent(), [(2000, 3000)]);
    // It tells of the gap: mended by RACK, without a timeout.
    script.at(402).ack(1000, &[(2000, 3000)]);
    assert_eq!(script.sent(), [(1000, 2000)]);
    assert_eq!(script.connection.figures().counters.timeouts, 0);
}

#[test]
fn a_probe_that_was_not_needed_costs_no_window() {
    let mut script = Script::new(|_| {});
    script.written(3000);
    script.sent();
    let before = script.connection.figures().cwnd;
    script.at(202).timer();
    assert_eq!(script.sent(), [(2000, 3000)]);
    script.at(203).ack(3000, &[]);
    // The peer reports the duplicate (RFC 2883): 7.4.2, case 1.
    script.at(303).ack(3000, &[(2000, 3000)]);
    script.written(4000);
    script.sent();
    script.at(403).ack(4000, &[]);
    assert_eq!(script.connection.figures().counters.reductions, 0);
    assert!(script.connection.figures().cwnd >= before);
}

#[test]
fn a_probe_that_mended_a_loss_counts_as_one() {
    let mut script = Script::new(|_| {});
    script.written(3000);
    script.sent();
    script.at(202).timer();
    assert_eq!(script.sent(), [(2000, 3000)]);
    script.at(250).ack(2000, &[]);
    script.at(302).ack(3000, &[]);
    // 7.4.2: known when something behind it is acknowledged.
    assert_eq!(script.connection.figures().counters.reductions, 0);
    script.written(4000);
    script.sent();
    script.at(402).ack(4000, &[]);
    assert_eq!(script.connection.figures().counters.reductions, 1);
}

/// RFC 8985, 7.4.2: a duplicate acknowledgement says that the probe was one too many. A segment
/// that brings bytes of the peer's repeats the number all the same, and says nothing.
#[test]
fn only_an_acknowledgement_without_bytes_says_that_a_probe_was_not_needed() {
    for (length, reductions) in [(0, 0), (1, 1)] {
        let mut script = Script::new(|_| {});
        script.written(3000);
        script.sent();
        script.at(202).timer();
        assert_eq!(script.sent(), [(2000, 3000)]);
        script.at(250).ack(3000, &[]);
        script.at(302).takes(Segment { ack: SEND + 3000, ..data(0) }, length);
        script.written(4000);
        script.sent();
        script.at(402).takes(Segment { ack: SEND + 4000, ..data(length) }, 0);
        let counters = script.connection.figures().counters;
        assert_eq!(counters.reductions, reductions, "{length}");
    }
}

/// RFC 2018, 8: what was reported and is not acknowledged after a timeout was thrown away.
#[test]
fn a_peer_that_forgets_gets_it_again() {
    let mut script = Script::new(|_| {});
    script.spread(3);
    script.at(102).ack(0, &[(1000, 3000)]);
    script.at(125).timer();
    assert_eq!(script.sent(), [(0, 1000)]);
    script.at(230).ack(1000, &[]);
    assert_eq!(script.sent(), []);
    let due = script.next_timer().unwrap();
    script.at(due).timer();
    assert_eq!(script.sent(), [(1000, 2000)]);
    script.at(due + 100).ack(2000, &[]);
    assert_eq!(script.sent(), [(2000, 3000)]);
    script.at(due + 200).ack(3000, &[]);
    assert_eq!(script.connection.figures().outstanding, 0);
}

/// RFC 2018, 4; RFC 6675: blocks that cannot be are none.
#[test]
fn blocks_that_cannot_be_are_passed_over() {
    let mut script = Script::new(|_| {});
    script.spread(4);
    script.at(101);
    let before = script.connection.figures();
    for bad in [(2000, 2000), (3000, 2000), (3000, 5000), (5000, 9000), (1 << 31, 1)] {
        script.ack(0, &[bad]);
    }
    let after = script.connection.figures();
    assert_eq!((after.sacked, after.lost), (before.sacked, before.lost));
    assert_eq!(script.sent(), []);
}

#[test]
fn a_part_of_a_segment_may_be_acknowledged() {
    let mut script = Script::new(|_| {});
    script.written(3000);
    script.sent();
    script.at(100).ack(500, &[(1200, 1700)]);
    let figures = script.connection.figures();
    assert_eq!((figures.outstanding, figures.sacked), (2500, 500));
    script.at(150).timer();
    // What is sent again begins at the acknowledgement, and leaves out what has arrived.
    assert_eq!(script.sent(), [(500, 1000), (1000, 1200)]);
}

/// What was in flight when the connection was taken over is sent again when it is lost.
#[test]
fn what_the_kernel_sent_is_looked_after() {
    let mut script = Script::new(|parameters| {
        (parameters.send.in_flight, parameters.send.queued) = (3000, 4500);
    });
    assert_eq!(script.sent(), [(3000, 4000), (4000, 4500)]);
    script.at(100).ack(1000, &[(2000, 4500)]);
    script.at(125).timer();
    assert_eq!(script.sent(), [(1000, 2000)]);
    let mut script = Script::new(|parameters| {
        (parameters.send.in_flight, parameters.send.queued) = (1500, 1500);
    });
    let due = script.next_timer().unwrap();
    script.at(due).timer();
    let mut sent = script.sent();
    if sent.len() < 2 {
        let due = script.next_timer().unwrap();
        script.at(due).timer();
        sent.extend(script.sent());
    }
    assert!(sent.iter().any(|&(from, _)| from == 0), "{sent:?}");
}

#[test]
fn an_acknowledgement_is_on_everything_that_is_sent() {
    let mut script = Script::new(|_| {});
    script.data(0, 700);
    script.written(1000);
    let all = script.all();
    assert_eq!(all[0].segment.ack, super::super::script::RECEIVE + 700);
    let segment = Segment { seq: super::super::script::RECEIVE + 700, ..ack(1000, &[]) };
    script.takes(segment, 0);
    assert_eq!(script.connection.acknowledged(), 1000);
    assert_eq!(all[0].segment.seq, SEND);
}
