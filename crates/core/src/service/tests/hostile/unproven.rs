//! What is said of a connection whose proof fails: while it lives, or one direction of it, and when
//! it has ended meanwhile.

use super::*;
use netacc_control::stats::ConnRecord;
use std::net::Shutdown;

/// What the peer's end does before the answer.
#[derive(Clone, Copy, Debug)]
enum Peer {
    Stays,
    /// It sends no more.
    HalfCloses,
    /// Nor receives.
    ShutsDown,
    Closes,
}

const ALL: [Peer; 4] = [Peer::Stays, Peer::HalfCloses, Peer::ShutsDown, Peer::Closes];
/// Only of one that receives anything is something said.
const BLAMED: [bool; 4] = [true, true, false, false];

impl Peer {
    /// `None`: it is closed.
    fn does(self, end: TcpStream) -> Option<TcpStream> {
        match self {
            Peer::Stays => {}
            Peer::HalfCloses => end.shutdown(Shutdown::Write).unwrap(),
            Peer::ShutsDown => end.shutdown(Shutdown::Both).unwrap(),
            Peer::Closes => return None,
        }
        Some(end)
    }
}

/// `s`, whose reason can be read.
fn recorded(s: &'static Socket) -> &'static ConnRecord {
    // SAFETY: all zero is a valid record.
    let record: &ConnRecord = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
    s.record.store(core::ptr::from_ref(record).cast_mut(), Release);
    record
}

fn is_blamed(record: &ConnRecord) -> bool {
    record.reason.load(Relaxed) == Reason::NotAuthenticated as u32
}

/// What an acceptor says of a connection of which nothing is shown, to whom `answer` is sent.
fn accepted(peer: Peer, answer: Message) -> bool {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, (near, _far)) = net.connect();
    let record = recorded(as_);
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    r.send(candidate(cs.tuple(), 7));
    a.noted(as_);
    settle(&[a]);
    assert_eq!(r.next(), Some(Message::Turn { token: 7, turn: 0 }));
    let near = peer.does(near);
    r.send(answer);
    settle(&[a]);
    drop(near);
    is_blamed(record)
}

#[test]
fn an_acceptor_blames_nobody_for_a_connection_that_has_ended() {
    for answer in [Message::Turn { token: 7, turn: 0 }, Message::Unproven { token: 7 }] {
        assert_eq!(ALL.map(|peer| accepted(peer, answer)), BLAMED, "{answer:?}");
    }
}

#[test]
fn a_refusal_is_no_reason_for_a_connection_that_has_ended() {
    for (why, reason) in [
        (refuse::NOT_AUTHENTICATED, Reason::NotAuthenticated),
        (refuse::WITHDRAWN, Reason::PeerRefused),
    ] {
        let said = ALL.map(|peer| {
            let (a, _net, r, as_, o, (near, _far)) = offered_by_hand();
            let record = recorded(as_);
            let near = peer.does(near);
            r.send(Message::Refuse { token: o.token, slot: o.slot, reason: why });
            settle(&[a]);
            drop(near);
            record.reason.load(Relaxed) == reason as u32
        });
        assert_eq!(said, BLAMED, "{reason:?}");
    }
}

/// What a connector says of its second connection, of which nothing, or the first mark, is shown,
/// when the acceptor goes on with `answer`.
fn connected(peer: Peer, shown: bool, answer: impl Fn(u64, Tuple) -> Message) -> bool {
    let h = accepting_by_hand();
    h.prepare(8192);
    h.offers(h.offer());
    assert!(matches!(h.r.next(), Some(Message::Accept { .. })));
    let (cs, _, (_near, far)) = h.net.connect();
    let record = recorded(cs);
    assert!(h.c.connect(cs));
    let Some(Message::Candidate(k)) = h.r.next() else { panic!("no candidate") };
    if shown {
        h.show_with(&far, k.token, 0);
    }
    let far = peer.does(far);
    h.r.send(answer(k.token, cs.tuple().mirrored()));
    settle(&[h.c]);
    drop(far);
    is_blamed(record)
}

#[test]
fn a_connector_blames_nobody_for_a_connection_that_has_ended() {
    let (ring_offset, ring_bytes) = ([0, 4096], [4096, 4096]);
    let offer = |token, tuple| {
        Message::Offer(proto::Offer { token, tuple, slot: 4, arena: 0, ring_offset, ring_bytes })
    };
    let turn = |token, _| Message::Turn { token, turn: 0 };
    let unproven = |token, _| Message::Unproven { token };
    assert_eq!(ALL.map(|peer| connected(peer, false, offer)), BLAMED, "an offer");
    assert_eq!(ALL.map(|peer| connected(peer, false, turn)), BLAMED, "nothing shown");
    assert_eq!(ALL.map(|peer| connected(peer, true, unproven)), BLAMED, "not seen");
}
