//! The tables of `docs/design/leave.md`, and what holds for every view. The machine runs in the
//! models of `tests/switchover`.

use super::*;
use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

const DELIVERIES: [Delivery; 2] = [Delivery::Reliable, Delivery::Lossy];
const PEERS: [Peer; 3] = [Peer::Lives, Peer::Left, Peer::Gone];
const BOOLS: [bool; 2] = [false, true];

fn tx_views() -> Vec<TxView> {
    let states =
        [TxState::Promoting, TxState::Fast, TxState::Resending, TxState::Carrier, TxState::Shut];
    let mut all = Vec::new();
    for delivery in DELIVERIES {
        // In shared memory the peer has every word, and its end is the carrier's to tell.
        let (peers, opens) = match delivery {
            Delivery::Reliable => (&PEERS[..1], &BOOLS[1..]),
            Delivery::Lossy => (&PEERS[..], &BOOLS[..]),
        };
        for (state, &peer, &open) in product(&states, peers, opens) {
            // (One that has left needs no word any more.)
            for (asked, room, leaves) in bools().filter(|_| open || peer != Peer::Left) {
                all.push(TxView { delivery, state, open, asked, room, peer, leaves });
            }
        }
    }
    all
}

fn rx_views() -> Vec<(RxView, bool)> {
    let states = [
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
    let comings = [Coming::All, Coming::Waiting, Coming::Short];
    let mut all = Vec::new();
    for (state, &peer, &coming) in product(&states, &PEERS, &comings) {
        for (frozen, unread, _) in bools().filter(|b| b.2) {
            all.push((RxView { state, coming, unread, peer }, frozen));
        }
    }
    all
}

fn product<'a, A: Copy, B, C>(
    a: &'a [A],
    b: &'a [B],
    c: &'a [C],
) -> impl Iterator<Item = (A, &'a B, &'a C)> {
    a.iter().flat_map(move |a| b.iter().flat_map(move |b| c.iter().map(move |c| (*a, b, c))))
}

fn bools() -> impl Iterator<Item = (bool, bool, bool)> {
    product(&BOOLS, &BOOLS, &BOOLS).map(|(a, b, c)| (a, *b, *c))
}

/// Conditions, and what follows from them.
type Row = (Vec<String>, String);

fn name(of: impl core::fmt::Debug) -> String {
    format!("{of:?}")
}

fn yes(label: &str, is: bool) -> String {
    String::from(if is { label } else { "no" })
}

/// A table of decisions: one line for all rows that agree, with `-` for what does not matter.
fn table(head: &[&str], rows: Vec<Row>) -> String {
    let mut lines = Vec::new();
    decide(rows, Vec::new(), &mut lines);
    let mut text = String::new();
    let titles = head.iter().map(|title| String::from(*title)).collect::<Vec<_>>();
    lines.insert(0, titles);
    let width =
        |column: usize| lines.iter().map(|line: &Vec<String>| line[column].len()).max().unwrap();
    for line in &lines {
        for (column, cell) in line[..line.len() - 1].iter().enumerate() {
            text += &format!("{cell:0$}", width(column) + 2);
        }
        text += line.last().unwrap();
        text.push('\n');
    }
    text
}

fn decide(mut rows: Vec<Row>, done: Vec<String>, lines: &mut Vec<Vec<String>>) {
    let agree = rows.iter().all(|r| r.1 == rows[0].1);
    let width = rows[0].0.len();
    if agree {
        let rest = core::iter::repeat_n(String::from("-"), width);
        lines.push(done.into_iter().chain(rest).chain([rows[0].1.clone()]).collect());
        return;
    }
    assert!(width > 0, "no condition decides: {rows:?}");
    // Without the first condition: does any row contradict another?
    let mut without = BTreeMap::new();
    let matters = rows
        .iter()
        .any(|(conditions, then)| *without.entry(&conditions[1..]).or_insert(then) != then);
    let with = |cell: &str| done.iter().cloned().chain([String::from(cell)]).collect::<Vec<_>>();
    if !matters {
        rows.iter_mut().for_each(|r| drop(r.0.remove(0)));
        return decide(rows, with("-"), lines);
    }
    // Values that lead to the same are one.
    let mut groups: Vec<(Vec<String>, Vec<Row>)> = Vec::new();
    while !rows.is_empty() {
        let first = rows[0].0[0].clone();
        let (mut these, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|r| r.0[0] == first);
        these.iter_mut().for_each(|r| drop(r.0.remove(0)));
        match groups.iter_mut().find(|g| g.1 == these) {
            Some(group) => group.0.push(first),
            None => groups.push((vec![first], these)),
        }
        rows = others;
    }
    for (values, rows) in groups {
        decide(rows, with(&values.join("|")), lines);
    }
}

fn sender_table() -> String {
    let row = |v: &TxView| {
        let conditions = vec![
            name(v.state),
            yes("open", v.open),
            yes("gone", v.peer == Peer::Gone),
            yes("room", v.room),
            yes("asked", v.asked),
            yes("leaves", v.leaves),
            name(v.delivery),
            yes("left", v.peer == Peer::Left),
        ];
        (conditions, name(v.next()))
    };
    let head = ["state", "carrier", "peer", "room", "asked", "leaves", "delivery", "left", "then"];
    table(&head, tx_views().iter().map(row).collect())
}

fn receiver_table() -> String {
    let row = |(v, frozen): &(RxView, bool)| {
        let conditions = vec![
            yes("gone", v.peer == Peer::Gone),
            yes("frozen", *frozen),
            name(v.state),
            yes("left", v.peer == Peer::Left),
            name(v.coming),
        ];
        (conditions, name(v.next(*frozen)))
    };
    table(&["peer", "told", "state", "left", "comes", "then"], rx_views().iter().map(row).collect())
}

/// Every pair of views of one connection that is on its way, and what is due.
fn steps() -> impl Iterator<Item = (TxView, RxView, Leave, bool, Action)> {
    tx_views().into_iter().filter(|tx| tx.leaves).flat_map(|tx| {
        rx_views().into_iter().filter(move |(rx, _)| rx.peer == tx.peer).flat_map(
            move |(rx, frozen)| {
                product(&BOOLS, &BOOLS, &[()]).map(move |(strict, late, ())| {
                    let leave = Leave { strict, frozen };
                    (tx, rx, leave, *late, leave.clone().step(tx, rx, *late))
                })
            },
        )
    })
}

fn connection_table() -> String {
    let class = |action: Action| match action {
        Action::Wait(..) => String::from("Wait"),
        Action::Sender(_) => String::from("the sender's"),
        other => name(other),
    };
    let sender = |due: TxDue| match due {
        TxDue::Demote | TxDue::PullBack | TxDue::SendAgain => String::from("acts"),
        TxDue::Await(_) => String::from("waits"),
        other => name(other),
    };
    let receiver = |due: RxDue| match due {
        RxDue::Await(Await::Drain) => String::from("drains"),
        RxDue::Await(Await::Bytes) => String::from("waits for bytes"),
        RxDue::Await(_) => String::from("waits"),
        other => name(other),
    };
    let row = |(tx, rx, leave, late, action): (TxView, RxView, Leave, bool, Action)| {
        let conditions = vec![
            receiver(rx.next(leave.frozen)),
            sender(tx.next()),
            yes("gone", tx.peer == Peer::Gone),
            name(tx.delivery),
            yes("late", late),
            yes("strict", leave.strict),
            yes("unread", rx.unread),
        ];
        (conditions, class(action))
    };
    let mut rows = steps().map(row).collect::<Vec<_>>();
    rows.sort();
    rows.dedup();
    let head = ["receiver", "sender", "peer", "delivery", "time", "leave", "ring", "then"];
    table(&head, rows)
}

#[test]
fn tables_are_as_reviewed_and_documented() {
    let note = include_str!("../../../../../docs/design/leave.md");
    for table in [sender_table(), receiver_table(), connection_table()] {
        assert!(note.contains(&table), "docs/design/leave.md should contain:\n{table}");
    }
}

#[test]
fn nothing_is_the_kernels_before_both_halves_are() {
    for (tx, rx, ..) in steps().filter(|s| s.4 == Action::Become) {
        assert!(matches!(tx.state, TxState::Carrier | TxState::Shut), "{tx:?}");
        assert!(tx.open || tx.peer == Peer::Gone, "{tx:?}");
        let on_carrier = matches!(rx.state, RxState::Open | RxState::Replaying);
        let nobody_switches = matches!(rx.state, RxState::Armed | RxState::Disarming);
        assert!(on_carrier || (rx.peer == Peer::Gone && nobody_switches), "{rx:?}");
    }
}

#[test]
fn a_leave_waits_only_where_nothing_is_due_and_its_time_is_not_up() {
    for (tx, rx, leave, late, action) in steps() {
        let Action::Wait(sending, receiving) = action else { continue };
        assert_eq!((sending, receiving), (tx.next(), rx.next(leave.frozen)));
        let waits = matches!(sending, TxDue::Await(_) | TxDue::Done);
        let comes = matches!(receiving, RxDue::Await(_) | RxDue::Short | RxDue::Done);
        assert!(waits && comes, "{tx:?} {rx:?}");
        assert!(!late || receiving == RxDue::Await(Await::Bytes), "{tx:?} {rx:?}");
    }
}

#[test]
fn a_connection_is_broken_off_only_where_bytes_would_be_missing() {
    for (tx, rx, leave, late, action) in steps() {
        if action == Action::Later && leave.strict {
            assert!(!rx.unread || rx.next(leave.frozen) == RxDue::Done, "{tx:?} {rx:?}");
            assert_eq!(tx.next(), TxDue::Done);
        }
        let missing = tx.next() == TxDue::Broken || rx.next(leave.frozen) == RxDue::Broken;
        match action {
            Action::BreakOff => {
                assert!(missing || leave.strict && (rx.unread || tx.next() != TxDue::Done));
                assert!(missing || late || tx.delivery == Delivery::Reliable, "{tx:?} {rx:?}");
            }
            Action::BreakSending => assert_eq!(tx.peer, Peer::Gone),
            _ => assert!(!missing),
        }
    }
}

/// In shared memory two ends that leave at once, step by step in every order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct End {
    tx: Tx,
    rx: crate::switchover::Rx,
    leave: Leave,
    over: Option<Action>,
}

impl End {
    fn at(sent: u64, taken: u64) -> Self {
        let (mut tx, mut rx) = (Tx::new(), crate::switchover::Rx::new());
        rx.arm();
        let ack = rx.ack();
        let promoted = tx.promote(ack, Delivery::Reliable).unwrap();
        tx.confirm(ack).unwrap();
        tx.on_accepted(sent).unwrap();
        rx.on_announce(promoted).unwrap();
        rx.on_delivered(taken).unwrap();
        Self { tx, rx, leave: Leave::new(true), over: None }
    }

    /// One look and what follows from it; `peer` may have gone on since.
    fn step(&mut self, peer: &Self, late: bool) {
        let _ = self.rx.on_announce(peer.tx.announce());
        let tx = TxView::of(&self.tx, Delivery::Reliable, self.tx.epoch());
        let tx = tx.asked_by(peer.rx.ack(), &self.tx).unwrap();
        let unread =
            peer.tx.offset() > self.rx.offset() && self.rx.path() == crate::switchover::Path::Fast;
        let coming = if peer.tx.resend().is_empty() { Coming::All } else { Coming::Waiting };
        let rx = RxView { state: self.rx.state(), coming, unread, peer: Peer::Lives };
        match self.leave.step(tx, rx, late) {
            Action::Freeze => drop(self.rx.freeze()),
            Action::Sender(TxDue::Demote) => drop(self.tx.demote().unwrap()),
            Action::Sender(TxDue::PullBack) => drop(self.tx.pull_back(peer.rx.ack()).unwrap()),
            Action::Sender(_) => self.tx.on_resent(1).unwrap(),
            Action::Wait(..) => {}
            over => self.over = Some(over),
        }
    }
}

#[test]
fn two_ends_that_leave_at_once_agree_or_break_off() {
    for (sent, taken) in [(0, 0), (2, 0), (2, 1), (2, 2)] {
        let start = [End::at(sent, taken), End::at(sent, taken)];
        let (mut seen, mut todo) = (std::collections::HashSet::new(), vec![start]);
        let mut overs = std::collections::BTreeSet::new();
        while let Some(ends) = todo.pop() {
            if !seen.insert(ends) {
                continue;
            }
            overs.extend(ends.iter().filter_map(|e| e.over).map(name));
            let mut moved = false;
            for (i, late) in [(0, false), (1, false), (0, true), (1, true)] {
                if ends[i].over.is_some() {
                    continue;
                }
                let mut next = ends;
                next[i].step(&ends[1 - i], late);
                moved |= next != ends;
                todo.push(next);
            }
            assert!(moved || ends.iter().all(|e| e.over.is_some()), "stuck: {ends:?}");
            for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                if end.over == Some(Action::Become) {
                    let there = peer.tx.resend().start.min(peer.tx.offset());
                    assert_eq!(there, peer.tx.offset(), "bytes that nobody sends: {ends:?}");
                }
            }
        }
        assert!(overs.contains("Become"), "{overs:?}");
        // Where nothing is unread nothing has to be broken off.
        assert!(sent != taken || !overs.contains("BreakOff"), "{overs:?}");
    }
}

#[test]
fn bytes_that_come_again_are_waited_for_while_they_come() {
    let mut arrival = Arrival::default();
    let mut look = |now, there| arrival.look(now, (there, 10), 1_000, 100);
    assert_eq!(look(5, 10), Coming::All);
    assert_eq!(look(10, 0), Coming::Waiting);
    assert_eq!(look(900, 0), Coming::Waiting, "none has come: the peer may be slow");
    assert_eq!(look(950, 3), Coming::Waiting);
    assert_eq!(look(1_009, 4), Coming::Waiting);
    assert_eq!(look(1_009, 10), Coming::All);
    assert_eq!(look(1_010, 5), Coming::Short, "the patience is over");
    let mut arrival = Arrival::default();
    let mut look = |now, there| arrival.look(now, (there, 10), 1_000, 100);
    assert_eq!(look(10, 3), Coming::Waiting);
    assert_eq!(look(110, 3), Coming::Waiting);
    assert_eq!(look(111, 3), Coming::Short, "no more comes");
    assert_eq!(look(112, 4), Coming::Waiting, "it does after all");
    // Without patience what is there decides.
    assert_eq!(Arrival::default().look(0, (9, 10), 0, 0), Coming::Short);
}
