//! RFC 9293, 3.7.4 (Nagle), 3.8.6.1 (zero windows), 3.8.6.2.1 (silly windows); TCP_CORK.

use super::super::script::{SEND, Script, ack};
use crate::wire::{Flags, Segment};
use crate::{Outgoing, Reason};

fn window(script: &mut Script, to: u32, window: u16) {
    script.takes(Segment { window, ..ack(to, &[]) }, 0);
}

fn nagle() -> Script {
    Script::new(|parameters| parameters.wishes.nodelay = false)
}

#[test]
fn a_part_of_a_segment_waits_for_the_part_before() {
    let mut script = nagle();
    script.written(10);
    assert_eq!(script.sent(), [(0, 10)]);
    script.written(20);
    assert_eq!(script.sent(), []);
    // A full segment does not wait, and what is behind it does.
    script.written(1030);
    assert_eq!(script.sent(), [(10, 1010)]);
    script.ack(10, &[]);
    assert_eq!(script.sent(), [(1010, 1030)], "as Linux: no other part is outstanding");
}

#[test]
fn without_nagle_nothing_waits() {
    let mut script = Script::new(|_| {});
    script.written(10);
    assert_eq!(script.sent(), [(0, 10)]);
    script.written(20);
    assert_eq!(script.sent(), [(10, 20)]);
}

#[test]
fn a_cork_holds_a_part_back_for_200_ms() {
    let mut script = Script::new(|_| {});
    let more =
        |script: &mut Script, to| script.connection.on_written(script.now * 1_000_000, to, true);
    more(&mut script, 1500);
    assert_eq!(script.sent(), [(0, 1000)]);
    script.ack(1000, &[]);
    assert_eq!((script.sent(), script.next_timer()), ([].to_vec(), Some(200)));
    script.at(200).timer();
    assert_eq!(script.sent(), [(1000, 1500)]);
    more(&mut script, 1600);
    assert_eq!(script.sent(), []);
    // Uncorked.
    script.written(1600);
    assert_eq!(script.sent(), [(1500, 1600)]);
}

#[test]
fn push_is_set_on_the_last_of_what_was_written() {
    let mut script = Script::new(|_| {});
    script.written(2500);
    let push: std::vec::Vec<bool> =
        script.all().iter().map(|out| out.segment.flags.any(Flags::PSH)).collect();
    assert_eq!(push, [false, false, true]);
}

#[test]
fn a_device_gets_full_segments_and_the_rest() {
    let mut script = Script::new(|parameters| {
        parameters.bounds.run = 4500;
        parameters.wishes.nodelay = false;
    });
    script.written(5300);
    let all = script.all();
    let sizes = |out: &Outgoing| (out.offset, out.length, out.segment_size);
    let sizes: std::vec::Vec<_> = all.iter().map(sizes).collect();
    assert_eq!(sizes, [(0, 4000, 1000), (4000, 1300, 1000)]);
}

#[test]
fn nothing_goes_beyond_the_window() {
    let mut script = Script::new(|_| {});
    window(&mut script, 0, 2500);
    script.written(10_000);
    assert_eq!(script.sent(), [(0, 1000), (1000, 2000)]);
    window(&mut script, 1000, 2500);
    assert_eq!(script.sent(), [(2000, 3000)]);
    // It shrinks: what is out is out.
    window(&mut script, 1000, 500);
    assert_eq!(script.sent(), []);
}

/// SND.WL1 and SND.WL2: an older segment does not change the window.
#[test]
fn an_older_window_is_not_taken() {
    let mut script = Script::new(|_| {});
    script.written(3000);
    script.sent();
    window(&mut script, 2000, 9000);
    window(&mut script, 1000, 100);
    assert_eq!(script.connection.figures().send_window, 9000);
    window(&mut script, 2000, 200);
    assert_eq!(script.connection.figures().send_window, 200, "the same acknowledgement, later");
}

/// RFC 9293, 3.8.6.1 and MUST-36: probes, further and further apart, as long as they are answered.
#[test]
fn a_closed_window_is_asked_about() {
    let mut script = Script::new(|_| {});
    window(&mut script, 0, 0);
    script.written(5000);
    assert_eq!(script.sent(), []);
    // RTO is 100 + max(4 * 10, 200) ms, then twice that.
    let mut due = 300;
    let mut after = 300;
    for _ in 0..8 {
        assert_eq!(script.next_timer(), Some(due));
        script.at(due).timer();
        let probe = script.answer().expect("a probe");
        assert_eq!(probe.seq, SEND - 1, "below the window: it has to be answered");
        window(&mut script, 0, 0);
        after = (2 * after).min(120_000);
        due += after;
    }
    window(&mut script, 0, 1500);
    assert_eq!(script.sent(), [(0, 1000)]);
    assert!(script.connection.over().is_none());
}

#[test]
fn a_closed_window_that_nobody_answers_for_is_the_kernels() {
    let mut script = Script::new(|_| {});
    window(&mut script, 0, 0);
    script.written(5000);
    let mut over = None;
    let mut probes = 0;
    while over.is_none() {
        script.now = script.next_timer().unwrap();
        over = script.timer();
        probes += script.all().len();
    }
    assert_eq!((over, probes), (Some(Reason::Timeouts), 3));
}

/// RFC 9293, 3.8.6.2.1: less than a segment waits, for half of the largest window or a timeout.
#[test]
fn a_silly_window_is_not_filled_at_once() {
    let mut script = Script::new(|_| {});
    window(&mut script, 0, 400);
    script.written(5000);
    assert_eq!(script.sent(), []);
    script.at(300).timer();
    assert_eq!(script.sent(), [(0, 400)], "the override timeout");
    // The same of a peer whose largest window is less than two segments.
    let mut script = Script::new(|parameters| {
        (parameters.send.window, parameters.send.window_max) = (800, 800);
    });
    script.written(5000);
    assert_eq!(script.sent(), [(0, 800)]);
}
