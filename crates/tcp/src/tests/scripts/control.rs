//! RFC 9293 and RFC 5961: what is answered, what is dropped, what the kernel gets; keep-alive, the
//! user timeout, and giving back.

use super::super::host::MS;
use super::super::script::{RECEIVE, SEND, Script, ack, data, stamped};
use crate::wire::{Flags, Options, Segment};
use crate::{KeepAlive, Reason, Refusal, Verdict};

#[test]
fn what_is_not_of_the_established_state_is_the_kernels() {
    let with = |flags: Flags| Segment { flags: Flags::ACK.with(flags), ..data(0) };
    let foreign = Options { foreign: true, ..Options::default() };
    let cases = [
        (with(Flags::FIN), Reason::Fin),
        (with(Flags::URG), Reason::Urgent),
        (with(Flags::RST), Reason::Reset),
        (Segment { seq: RECEIVE + 19_999, ..with(Flags::RST) }, Reason::Reset),
        (Segment { options: foreign, ..data(0) }, Reason::Foreign),
    ];
    for (segment, reason) in cases {
        let mut script = Script::new(|_| {});
        script.written(10);
        script.sent();
        let segment = Segment { ack: SEND + 10, ..segment };
        assert_eq!(script.takes(segment, 5), Verdict::GiveBack(reason));
        // It was left untouched, and nothing is done any more.
        assert_eq!((script.connection.readable(), script.connection.acknowledged()), (0, 0));
        assert_eq!(script.takes(data(0), 5), Verdict::GiveBack(reason));
        assert_eq!((script.all().len(), script.next_timer()), (0, None));
        assert_eq!(script.connection.give_back(0).reason, Some(reason));
    }
}

#[test]
fn a_segment_without_its_time_stamp_is_the_kernels() {
    let mut script = Script::stamped(1, |_| {});
    assert_eq!(script.takes(data(0), 5), Verdict::GiveBack(Reason::NoTimeStamp));
}

/// Who does not know the numbers gets nothing given back.
#[test]
fn a_blind_attacker_changes_nothing() {
    let mut script = Script::new(|_| {});
    script.written(10);
    script.sent();
    for flags in [Flags::RST, Flags::FIN, Flags::URG, Flags::ACK, Flags::SYN] {
        for seq in
            [RECEIVE - 1, RECEIVE + 20_001, RECEIVE + (1 << 31), RECEIVE.wrapping_sub(30_000)]
        {
            let flags = Flags::ACK.with(flags);
            let segment = Segment { seq, flags, ..ack(10, &[]) };
            assert_eq!(script.takes(segment, 0), Verdict::Dropped);
        }
    }
    assert_eq!(script.connection.acknowledged(), 0);
    // RFC 5961, 5.2: in the window, and acknowledging what was never sent, or long ago.
    for number in [SEND + 11, SEND.wrapping_sub(60_001), SEND + (1 << 31)] {
        let flags = Flags::ACK.with(Flags::FIN);
        let segment = Segment { ack: number, flags, ..data(0) };
        assert_eq!(script.takes(segment, 5), Verdict::Dropped);
    }
    assert_eq!(script.connection.over(), None);
}

/// RFC 5961, 3.2 and 4.2: silence, and a challenge.
#[test]
fn a_reset_beyond_the_window_is_not_answered_and_a_syn_is_challenged() {
    let mut script = Script::new(|_| {});
    script.takes(Segment { seq: RECEIVE - 1, flags: Flags::RST, ..data(0) }, 0);
    assert_eq!(script.acks(), None);
    script.takes(Segment { flags: Flags::SYN, ..data(0) }, 0);
    assert_eq!(script.acks(), Some(0));
}

/// RFC 5961, 7: ten in five seconds.
#[test]
fn challenges_are_few() {
    let mut script = Script::new(|_| {});
    let mut answers = 0;
    for _ in 0..100 {
        script.takes(Segment { flags: Flags::SYN, ..data(0) }, 0);
        answers += script.acks().map_or(0, |_| 1);
    }
    assert_eq!(answers, 10);
    script.at(5000).takes(Segment { flags: Flags::SYN, ..data(0) }, 0);
    assert!(script.acks().is_some());
}

/// RFC 9293, 3.10.7.4: also how the peer's keep-alive and its probes of a window are answered.
#[test]
fn a_segment_below_the_window_is_answered() {
    let mut script = Script::new(|_| {});
    assert_eq!(script.takes(Segment { seq: RECEIVE - 1, ..ack(0, &[]) }, 0), Verdict::Dropped);
    assert_eq!(script.acks(), Some(0));
}

#[test]
fn an_acknowledgement_that_was_overtaken_still_counts() {
    let mut script = Script::new(|_| {});
    script.warm();
    script.written(1000);
    script.sent();
    script.data(16, 100);
    // It was sent before those bytes.
    script.takes(Segment { seq: RECEIVE + 16, ..ack(1000, &[]) }, 0);
    assert_eq!(script.connection.acknowledged(), 1000);
}

#[test]
fn a_silent_peer_is_asked_and_then_the_kernels() {
    let mut script = Script::new(|parameters| {
        let keep_alive = KeepAlive { idle: 7000 * MS, interval: 1000 * MS, count: 2 };
        parameters.wishes.keep_alive = Some(keep_alive);
    });
    assert_eq!(script.next_timer(), Some(7000));
    for at in [7000, 8000] {
        assert_eq!(script.at(at).timer(), None);
        let probe = script.answer().expect("a probe");
        assert_eq!((probe.seq, probe.ack), (SEND - 1, RECEIVE));
    }
    // An answer begins it again.
    script.at(8500).ack(0, &[]);
    assert_eq!(script.next_timer(), Some(15_500));
    for at in [15_500, 16_500] {
        assert_eq!(script.at(at).timer(), None);
        assert!(script.answer().is_some());
    }
    assert_eq!(script.at(17_500).timer(), Some(Reason::KeepAlive));
}

#[test]
fn keep_alive_is_silent_while_something_is_outstanding() {
    let mut script = Script::new(|parameters| {
        let keep_alive = KeepAlive { idle: 10 * MS, interval: 10 * MS, count: 1 };
        parameters.wishes.keep_alive = Some(keep_alive);
        parameters.wishes.user_timeout = None;
    });
    script.written(10);
    script.sent();
    assert!(script.next_timer().unwrap() > 100);
}

#[test]
fn keep_alive_that_is_set_later_begins_with_what_was_heard_last() {
    let keep_alive = KeepAlive { idle: 1000 * MS, interval: 100 * MS, count: 2 };
    let mut script = Script::new(|_| {});
    assert_eq!(script.next_timer(), None);
    script.at(300).ack(0, &[]);
    script.connection.set_keep_alive(Some(keep_alive));
    assert_eq!(script.next_timer(), Some(1300));
    script.at(1300).timer();
    assert!(script.answer().is_some());
    assert_eq!(script.next_timer(), Some(1400));
    // Set anew, it counts no probe of before, and sends none that was due.
    script.at(1400).timer();
    script.connection.set_keep_alive(Some(keep_alive));
    assert_eq!(script.answer(), None);
    assert_eq!(script.next_timer(), Some(1300));
    for at in [1400, 1500] {
        assert_eq!(script.at(at).timer(), None);
        assert!(script.answer().is_some());
    }
    script.connection.set_keep_alive(None);
    assert_eq!((script.at(9000).timer(), script.next_timer()), (None, None));
}

/// RFC 5482: also where the retransmission timeout would come later.
#[test]
fn the_user_timeout_ends_the_patience() {
    let mut script = Script::new(|parameters| parameters.wishes.user_timeout = Some(450 * MS));
    script.at(50).written(10);
    script.sent();
    let mut over = None;
    while over.is_none() {
        script.now = script.next_timer().unwrap();
        over = script.timer();
        script.sent();
    }
    assert_eq!((over, script.now), (Some(Reason::UserTimeout), 500));
}

#[test]
fn after_its_timeouts_the_connection_is_the_kernels() {
    let mut script = Script::new(|_| {});
    script.written(10);
    script.sent();
    let mut over = None;
    while over.is_none() {
        script.now = script.next_timer().unwrap();
        over = script.timer();
        script.sent();
    }
    assert_eq!(over, Some(Reason::Timeouts));
    let repair = script.connection.give_back(script.now * MS);
    assert_eq!((repair.send_from, repair.send_sent, repair.send_to), (0, 10, 10));
}

#[test]
fn what_is_given_back_is_where_it_has_come_to() {
    let mut script = Script::stamped(500, |_| {});
    script.written(7000);
    assert_eq!(script.sent().len(), 7);
    script.at(10);
    script.takes(stamped(Segment { window: 3000, ..ack(2000, &[]) }, 9, 500), 0);
    script.takes(stamped(Segment { ack: SEND + 2000, ..data(0) }, 9, 500), 600);
    script.all();
    script.takes(stamped(Segment { ack: SEND + 2000, ..data(600) }, 9, 500), 100);
    script.takes(stamped(Segment { ack: SEND + 2000, ..data(5000) }, 9, 500), 100);
    let repair = script.connection.give_back(30 * MS);
    assert_eq!(repair.send_seq, SEND + 2000);
    assert_eq!((repair.send_from, repair.send_sent, repair.send_to), (2000, 7000, 7000));
    assert_eq!((repair.receive_seq, repair.receive_to), (RECEIVE + 700, 700));
    assert_eq!(repair.stamp, Some(530));
    let window = repair.window;
    // (The last segment that said it: its window is 60000, and it is the highest.)
    assert_eq!((window.snd_wl1, window.snd_wnd), (RECEIVE + 5000, 60_000));
    assert_eq!((window.rcv_wup, window.rcv_wnd), (RECEIVE + 600, 19_400));
    assert_eq!(window.max_window, 60_000);
}

#[test]
fn what_cannot_be_served_is_refused() {
    use super::super::script::parameters;
    use crate::{Connection, Parameters};
    let refused = |change: fn(&mut Parameters)| {
        let mut parameters = parameters();
        change(&mut parameters);
        Connection::taken_over(&parameters).err()
    };
    assert_eq!(refused(|of| of.options.sack = false), Some(Refusal::NoSack));
    assert_eq!(refused(|of| of.receive.room = 19_999), Some(Refusal::Window));
    assert_eq!(refused(|of| of.receive.nxt += 20_001), Some(Refusal::Window));
    assert_eq!(refused(|of| of.send.scale = 15), Some(Refusal::Window));
    assert_eq!(refused(|of| of.send.window = (1 << 30) + 1), Some(Refusal::Window));
    assert_eq!(refused(|of| of.send.mss = 87), Some(Refusal::Size));
    assert_eq!(refused(|of| of.send.in_flight = 1), Some(Refusal::Size));
    assert_eq!(refused(|_| {}), None);
}
