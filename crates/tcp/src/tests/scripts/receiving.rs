//! RFC 9293 (receiving), RFC 2018 and 2883 (SACK), RFC 5681, 4.2 (delayed acknowledgements),
//! RFC 7323 (time stamps), RFC 3168 (ECN).

use super::super::script::{RECEIVE, SEND, Script, ack, data, stamped};
use crate::wire::{Flags, Segment};
use crate::{Verdict, Write};

fn blocks(segment: &Segment) -> std::vec::Vec<(u32, u32)> {
    let of = |number: u32| number.wrapping_sub(RECEIVE);
    segment.options.sack.iter().map(|(from, to)| (of(from), of(to))).collect()
}

const fn write(offset: u64, skip: u64, length: u64) -> Option<Write> {
    Some(Write { offset, skip, length })
}

#[test]
fn bytes_out_of_order_are_written_in_their_place_and_reported() {
    let mut script = Script::new(|_| {});
    script.warm();
    assert_eq!(script.data(1016, 2016), write(1016, 0, 1000));
    assert_eq!(script.connection.readable(), 16);
    let answer = script.answer().expect("RFC 5681, 4.2: at once");
    assert_eq!((answer.ack, blocks(&answer)), (RECEIVE + 16, [(1016, 2016)].to_vec()));
    // RFC 2018, 4: the latest first.
    script.data(5016, 6016);
    assert_eq!(blocks(&script.answer().unwrap()), [(5016, 6016), (1016, 2016)]);
    script.data(3016, 4016);
    assert_eq!(blocks(&script.answer().unwrap()), [(3016, 4016), (5016, 6016), (1016, 2016)]);
    script.data(2016, 3016);
    assert_eq!(blocks(&script.answer().unwrap()), [(1016, 4016), (5016, 6016)]);
    // The gap is filled.
    assert_eq!(script.data(16, 1016), write(16, 0, 1000));
    assert_eq!(script.connection.readable(), 4016);
    let answer = script.answer().expect("at once");
    assert_eq!((answer.ack, blocks(&answer)), (RECEIVE + 4016, [(5016, 6016)].to_vec()));
}

#[test]
fn what_came_out_of_order_and_twice_and_without_a_place_is_counted() {
    let mut script = Script::new(|parameters| parameters.bounds.ranges = 2);
    let counted = |script: &Script| {
        let counters = script.connection.figures().counters;
        (counters.out_of_order, counters.duplicates, counters.not_kept)
    };
    script.data(0, 1000);
    assert_eq!(counted(&script), (0, 0, 0));
    script.data(2000, 3000);
    assert_eq!(counted(&script), (1, 0, 0));
    // Behind a gap, and again; then the same before one.
    script.data(2000, 3000);
    assert_eq!(counted(&script), (2, 1, 0));
    script.data(0, 500);
    assert_eq!(counted(&script), (2, 2, 0));
    script.data(4000, 5000);
    script.data(6000, 7000);
    assert_eq!(counted(&script), (4, 2, 1));
}

#[test]
fn beside_time_stamps_there_are_three_blocks() {
    let mut script = Script::stamped(1, |_| {});
    for n in [1_u32, 3, 5, 7, 9] {
        script.takes(stamped(data(n * 1000), 7, 0), 500);
    }
    let answer = script.answer().unwrap();
    assert_eq!(blocks(&answer), [(9000, 9500), (7000, 7500), (5000, 5500)]);
    assert_eq!(answer.options.length(), 40);
}

#[test]
fn a_duplicate_is_reported_once() {
    let mut script = Script::new(|_| {});
    script.data(0, 1000);
    script.all();
    // RFC 2883, 4.1.1: all of it was there.
    assert_eq!(script.data(0, 1000), None);
    assert_eq!(blocks(&script.answer().unwrap()), [(0, 1000)]);
    // 4.1.2 and 4.2: a part of it was; what is new is written.
    assert_eq!(script.data(500, 1500), write(1000, 500, 500));
    assert_eq!(blocks(&script.answer().unwrap()), [(500, 1000)]);
    script.data(1500, 1600);
    assert_eq!(blocks(&script.answer().unwrap()), [], "once");
    // Also far below the window.
    assert_eq!(script.takes(data(100), 200), Verdict::Dropped);
    assert_eq!(blocks(&script.answer().unwrap()), [(100, 300)]);
    // 4.2.1: behind a gap, the block that it is in follows.
    script.data(3000, 5000);
    script.all();
    script.data(3500, 4000);
    assert_eq!(blocks(&script.answer().unwrap()), [(3500, 4000), (3000, 5000)]);
}

#[test]
fn an_acknowledgement_waits_for_a_second_segment_a_reply_or_40_ms() {
    let mut script = Script::new(|_| {});
    script.warm();
    script.data(16, 1016);
    assert_eq!((script.acks(), script.next_timer()), (None, Some(40)));
    script.at(1).data(1016, 2016);
    assert_eq!(script.acks(), Some(2016));
    script.at(2).data(2016, 2100);
    assert_eq!(script.acks(), None);
    script.written(10);
    let reply = script.all();
    assert_eq!(reply.len(), 1);
    assert_eq!((reply[0].length, reply[0].segment.ack), (10, RECEIVE + 2100));
    script.at(3).takes(Segment { seq: RECEIVE + 2100, ..ack(10, &[]) }, 0);
    script.data(2100, 2200);
    assert_eq!((script.acks(), script.next_timer()), (None, Some(43)));
    script.at(43).timer();
    assert_eq!(script.acks(), Some(2200));
}

#[test]
fn who_waits_for_input_delays_nothing() {
    let mut script = Script::new(|_| {});
    script.warm();
    script.data(16, 100);
    assert_eq!(script.acks(), None);
    script.connection.on_waiting();
    assert_eq!(script.acks(), Some(100));
    script.connection.on_waiting();
    assert_eq!(script.acks(), None, "nothing is owed");
}

#[test]
fn what_is_beyond_the_window_is_cut_off() {
    let mut script = Script::new(|_| {});
    assert_eq!(script.data(19_500, 20_500), write(19_500, 0, 500));
    script.all();
    // It begins behind the window: RFC 9293, 3.10.7.4, first.
    assert_eq!(script.takes(data(20_001), 10), Verdict::Dropped);
    assert_eq!(script.acks(), Some(0));
}

#[test]
fn a_closed_window_still_takes_acknowledgements() {
    let mut script = Script::new(|parameters| parameters.bounds.run = 30_000);
    script.written(5000);
    script.sent();
    script.data(0, 20_000);
    assert_eq!(script.answer().unwrap().window, 0);
    let closed = Segment { seq: RECEIVE + 20_000, ..ack(5000, &[]) };
    assert_eq!(script.takes(closed, 0), Verdict::Taken { write: None });
    assert_eq!(script.connection.acknowledged(), 5000);
    // One byte of a probe finds no room.
    assert_eq!(script.takes(closed, 1), Verdict::Taken { write: None });
    assert_eq!(script.acks(), Some(20_000));
}

/// RFC 9293, 3.8.6.2.2.
#[test]
fn a_window_opens_by_two_segments_and_never_closes_behind_what_was_offered() {
    let mut script = Script::new(|_| {});
    script.data(0, 20_000);
    assert_eq!(script.answer().unwrap().window, 0);
    script.connection.on_room(20_000 + 1999);
    assert_eq!(script.answer(), None, "not worth a segment");
    script.connection.on_room(20_000 + 2000);
    assert_eq!(script.answer().unwrap().window, 2000);
    script.connection.on_room(20_000);
    script.data(20_000, 20_500);
    assert_eq!(script.answer().unwrap().window, 1500);
    script.connection.on_room(20_000 + 2400);
    script.data(20_500, 21_000);
    assert_eq!(script.answer().unwrap().window, 1000, "the edge has moved by a segment, or not");
}

#[test]
fn a_window_is_shifted_and_rounds_down() {
    let mut script = Script::new(|parameters| {
        (parameters.receive.scale, parameters.send.scale) = (7, 3);
        parameters.receive.room = 1_000_000;
        parameters.receive.capacity = 1_000_000;
    });
    script.data(0, 1000);
    // (1000000 - 1000) >> 7.
    assert_eq!(script.answer().unwrap().window, 7804);
    let shifted = Segment { seq: RECEIVE + 1000, window: 500, ..ack(0, &[]) };
    script.takes(shifted, 0);
    assert_eq!(script.connection.figures().send_window, 4000);
}

/// RFC 7323, 4.3: which time stamp comes back.
#[test]
fn the_echo_is_of_the_first_segment_that_is_acknowledged() {
    let mut script = Script::stamped(500, |_| {});
    script.takes(stamped(data(0), 100, 500), 16);
    let answer = script.at(3).answer().unwrap().options.stamps.unwrap();
    assert_eq!((answer.value, answer.echo), (503, 100));
    // (A): of two, the first one, which was delayed.
    script.takes(stamped(data(16), 101, 500), 10);
    script.takes(stamped(data(26), 102, 500), 10);
    let echo = |script: &mut Script| script.answer().unwrap().options.stamps.unwrap().echo;
    assert_eq!(echo(&mut script), 101);
    // (B): a segment behind a gap does not count; what fills the gap does.
    script.takes(stamped(data(1036), 103, 500), 10);
    assert_eq!(echo(&mut script), 101);
    script.takes(stamped(data(36), 104, 500), 1000);
    assert_eq!(echo(&mut script), 104);
}

/// RFC 7323, 5.3.
#[test]
fn paws_drops_what_is_older_and_answers() {
    let mut script = Script::stamped(500, |_| {});
    script.takes(stamped(data(0), 100, 500), 10);
    script.all();
    assert_eq!(script.takes(stamped(data(10), 99, 500), 10), Verdict::Dropped);
    assert_eq!(script.acks(), Some(10));
    assert_eq!(script.connection.readable(), 10);
    // 5.5: after 24 days the clock of the peer may have wrapped.
    script.at(24 * 24 * 3600 * 1000);
    script.takes(stamped(data(10), 99, 500), 10);
    assert_eq!(script.connection.readable(), 20);
}

/// RFC 3168, 6.1.3.
#[test]
fn congestion_is_echoed_until_the_peer_has_slowed_down() {
    let mut script = Script::new(|parameters| parameters.options.ecn = true);
    script.warm();
    script.takes(Segment { congested: true, ..data(16) }, 10);
    let ece = |segment: Segment| segment.flags.any(Flags::ECE);
    assert!(ece(script.answer().expect("at once")));
    script.data(26, 36);
    assert!(ece(script.answer().unwrap()));
    let slower = Segment { flags: Flags::ACK.with(Flags::CWR), ..data(36) };
    script.takes(slower, 10);
    assert!(!ece(script.answer().unwrap()));
    let both = Segment { congested: true, ..slower };
    script.takes(Segment { seq: RECEIVE + 46, ..both }, 10);
    assert!(ece(script.answer().unwrap()), "marked again");
}

#[test]
fn without_ecn_a_mark_means_nothing() {
    let mut script = Script::new(|_| {});
    script.takes(Segment { congested: true, ..data(0) }, 10);
    assert!(!script.answer().unwrap().flags.any(Flags::ECE));
}

#[test]
fn sequence_numbers_wrap() {
    let mut script = Script::new(|parameters| {
        (parameters.receive.nxt, parameters.receive.acked) = (u32::MAX - 10, u32::MAX - 10);
        parameters.send.una = u32::MAX - 500;
    });
    let behind = Segment { seq: 89, ack: u32::MAX - 500, ..ack(0, &[]) };
    assert_eq!(script.takes(behind, 100), Verdict::Taken { write: write(100, 0, 100) });
    let first = Segment { seq: u32::MAX - 10, ..behind };
    assert_eq!(script.takes(first, 100), Verdict::Taken { write: write(0, 0, 100) });
    assert_eq!(script.connection.readable(), 200);
    assert_eq!(script.answer().unwrap().ack, 189);
    script.written(1000);
    let sent = script.all();
    assert_eq!((sent[0].segment.seq, sent[0].length), (u32::MAX - 500, 1000));
    script.takes(Segment { seq: 189, ack: 499, ..behind }, 0);
    assert_eq!(script.connection.acknowledged(), 1000);
    let _ = SEND;
}
