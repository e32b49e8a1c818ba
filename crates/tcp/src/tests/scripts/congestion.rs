//! RFC 5681 and 9438 (windows), RFC 6937 (PRR), RFC 3168 (ECN).

use super::super::script::{Script, ack};
use crate::Congestion;
use crate::wire::{Flags, Segment};

/// RFC 5681, 3.1: each acknowledgement lets twice as much be sent.
#[test]
fn slow_start_doubles() {
    let mut script = Script::new(|parameters| parameters.send.cwnd = 2);
    script.written(100_000);
    assert_eq!(script.sent().len(), 2);
    script.at(100).ack(2000, &[]);
    assert_eq!(script.sent().len(), 4);
    script.at(200).ack(6000, &[]);
    assert_eq!(script.sent().len(), 8);
}

/// RFC 9438, 5.8: a window that is not used does not grow.
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut script = Script::new(|_| {});
    for n in 1..20 {
        script.written(u64::from(n) * 1000);
        assert_eq!(script.sent().len(), 1);
        script.ack(n * 1000, &[]);
        script.now += 100;
    }
    assert_eq!(script.connection.figures().cwnd, 10_000);
}

/// RFC 9438, 4.6, and RFC 6937: a loss takes three tenths, bit by bit.
#[test]
fn a_loss_takes_three_tenths_of_the_window() {
    let mut script = Script::new(|_| {});
    script.written(100_000);
    assert_eq!(script.sent().len(), 10);
    // Slow start lets the acknowledged segment be two: 11 are outstanding.
    script.at(100).ack(1000, &[]);
    assert_eq!(script.sent().len(), 2);
    let mut sent = 0;
    for n in 2..12 {
        script.at(100 + u64::from(n)).ack(1000, &[(2000, n * 1000 + 1000)]);
        sent += script.sent().len();
    }
    let figures = script.connection.figures();
    assert_eq!((figures.congestion, figures.ssthresh), (Congestion::Recovery, 7700));
    // 10 have arrived: ten times 7.7 / 11 have been sent, the first of them what was lost.
    assert!((6..=8).contains(&sent), "{sent}");
    assert!(figures.in_flight <= 8000);
    // (RFC 3042: two more went out before the loss was certain.)
    script.at(220).ack(14_000, &[]);
    let figures = script.connection.figures();
    assert_eq!((figures.congestion, figures.cwnd), (Congestion::Open, 7700));
}

/// RFC 5681, 3.1 (4) and (7): one segment, and slow start up to the threshold; once for a window.
#[test]
fn a_timeout_leaves_one_segment() {
    let mut script = Script::new(|_| {});
    script.written(10_000);
    assert_eq!(script.sent().len(), 10);
    // (The probe, first, and then nothing.)
    script.at(202).timer();
    assert_eq!(script.sent().len(), 1);
    let due = script.next_timer().unwrap();
    script.at(due).timer();
    let figures = script.connection.figures();
    assert_eq!((figures.congestion, figures.ssthresh), (Congestion::Loss, 7000));
    assert_eq!(script.sent(), [(0, 1000)]);
    let due = script.next_timer().unwrap();
    script.at(due).timer();
    assert_eq!(script.connection.figures().ssthresh, 7000, "not again");
    assert_eq!(script.sent(), [(0, 1000)]);
    script.at(due + 100).ack(1000, &[]);
    assert_eq!(script.sent().len(), 2);
    script.at(due + 200).ack(3000, &[]);
    assert_eq!(script.sent().len(), 4);
    script.at(due + 300).ack(10_000, &[]);
    assert_eq!(script.connection.figures().congestion, Congestion::Open);
}

/// RFC 5681, 4.1.
#[test]
fn after_a_pause_it_begins_with_the_initial_window() {
    let mut script = Script::new(|parameters| parameters.send.cwnd = 50);
    script.at(10_000).written(60_000);
    assert_eq!(script.sent().len(), 10);
}

/// RFC 3168, 6.1.2: less once in a window, and CWR on the next new segment.
#[test]
fn an_echo_of_congestion_is_answered_once_in_a_window() {
    let mut script = Script::new(|parameters| parameters.options.ecn = true);
    script.written(50_000);
    let all = script.all();
    assert!(all.len() == 10 && all.iter().all(|out| out.ecn_capable));
    let echo = |to| Segment { flags: Flags::ACK.with(Flags::ECE), ..ack(to, &[]) };
    script.at(100).takes(echo(1000), 0);
    assert_eq!(script.connection.figures().cwnd, 6300, "0.7 of the nine that are outstanding");
    script.at(101).takes(echo(6000), 0);
    assert_eq!(script.connection.figures().counters.reductions, 1);
    let cwr: std::vec::Vec<bool> =
        script.all().iter().map(|out| out.segment.flags.any(Flags::CWR)).collect();
    assert!(!cwr.is_empty() && cwr[0] && !cwr[1..].contains(&true));
}

#[test]
fn what_is_sent_again_may_not_be_marked() {
    let mut script = Script::new(|parameters| parameters.options.ecn = true);
    script.written(1000);
    assert!(script.all()[0].ecn_capable);
    script.at(300).timer();
    assert!(!script.all()[0].ecn_capable);
}

#[test]
fn a_smaller_mtu_makes_smaller_segments() {
    let mut script = Script::new(|parameters| parameters.bounds.run = 4000);
    script.written(4000);
    assert_eq!(script.sent(), [(0, 4000)]);
    script.connection.set_mss(600);
    script.written(6000);
    assert_eq!(script.all()[0].segment_size, 600);
    let due = script.next_timer().unwrap();
    script.at(due).timer();
    assert!(script.all().iter().all(|out| out.segment_size == 600));
}
