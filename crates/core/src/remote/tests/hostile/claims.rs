//! Claims to connections by who has not seen their SYN, and by several.

use super::*;

/// A time stamp that is `by` later than the connection's.
fn around(said: Said, by: u32) -> Proof {
    match said {
        Said::Stamp(stamp) => {
            Proof::new(stamp.wrapping_add(by), stamp.wrapping_add(by).wrapping_add(9))
        }
        _ => panic!("{said:?}"),
    }
}

/// Another process of the connector's host, which claims a connection that is on the ring.
fn claims(rig: &mut Rig, i: usize, at: SocketAddr, proof: Proof) -> Stranger {
    let mut rival = Stranger::call(rig.hosts[0].address, at);
    let port = rig.conns[i][A].socket.tuple().local_port();
    rival.say(Message::HostHello(hello(Role::Connector, port)));
    rig.settle();
    rival.hear().unwrap();
    let tuple = rig.conns[i][C].socket.tuple();
    rival.say(Message::Candidate(Candidate { tuple, token: 3, proof, class: 0, fills: false }));
    rig.settle();
    rival
}

/// Whoever can see a connection could keep it from RDMA otherwise.
#[test]
fn who_does_not_know_the_syn_of_a_connection_takes_it_from_nobody() {
    let (mut rig, i, at, _) = victim();
    let said = rig.conns[i][A].socket.syn.said();
    let wrong = around(said, 1);
    for proof in [Proof::NONE, Proof::LATER, Proof::TOLD, wrong, around(said, 1 << 31)] {
        let mut rival = claims(&mut rig, i, at, proof);
        let said = rival.hear().unwrap();
        match proof {
            // It is to say it now.
            Proof::LATER => {
                assert!(matches!(said[..], [Message::Commit { token: 3, .. }]), "{said:?}");
                let tuple = rig.conns[i][C].socket.tuple();
                let (class, fills) = (0, false);
                let claim = Candidate { tuple, token: 3, proof: wrong, class, fills };
                rival.say(Message::Candidate(claim));
                rig.settle();
                let withdrawn = Message::Withdraw { token: 3 };
                assert!(rival.hear().is_ok_and(|said| said.contains(&withdrawn)));
            }
            Proof::TOLD => assert_eq!(said, []),
            _ => assert_eq!(said, [Message::Withdraw { token: 3 }]),
        }
        rig.exchange(i, 20_000);
        assert!(rig.is_fast(i), "{proof:?}");
    }
    rig.finish();
}

#[test]
fn a_connection_that_two_processes_claim_goes_to_tcp_for_good() {
    // (The second one may be the one whose it is: to a server that has not shown anything yet, it
    // says its proof later.)
    for later in [false, true] {
        two_processes_claim(later);
    }
}

fn two_processes_claim(later: bool) {
    let (mut rig, i, at, _) = victim();
    let proof = around(rig.conns[i][A].socket.syn.said(), 0);
    let withdrawn = [Message::Withdraw { token: 3 }];
    let mut rival = claims(&mut rig, i, at, if later { Proof::LATER } else { proof });
    if later {
        let said = rival.hear().unwrap();
        assert!(matches!(said[..], [Message::Commit { token: 3, .. }]), "{said:?}");
        let tuple = rig.conns[i][C].socket.tuple();
        rival.say(Message::Candidate(Candidate { tuple, token: 3, proof, class: 0, fills: false }));
        rig.settle();
        let said = rival.hear().unwrap();
        assert!(matches!(said[..], [Message::Open { token: 3, .. }, _]), "{said:?}");
        assert_eq!(said[1..], withdrawn);
    } else {
        assert_eq!(rival.hear().unwrap(), withdrawn);
    }
    rig.until("it leaves", |r| {
        r.chat(i);
        r.conns[i].iter().all(|e| e.socket.is(crate::socket::State::Plain))
    });
    assert_eq!(rig.reason(i, A), Reason::NotAuthenticated);
    rig.exchange(i, 20_000);
    assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
    // The rival is offered nothing, and other connections are agreed on as before.
    assert_eq!(rival.hear(), Ok(Vec::new()));
    let other = rig.connect(0, 1);
    rig.promoted(other);
    drop(rival);
    rig.finish();
}

/// Wrong guesses lock its host, and do nothing else. Who knows it is heard all the same: it may be
/// the owner, whose neighbour had claimed it first.
#[test]
fn who_guesses_at_a_connection_that_another_has_keeps_its_owner_from_nothing() {
    let (mut rig, i, at, _) = victim();
    let tuple = rig.conns[i][C].socket.tuple();
    let said = rig.conns[i][A].socket.syn.said();
    let claim = |proof| Candidate { tuple, token: 3, proof, class: 0, fills: false };
    let withdrawn = Message::Withdraw { token: 3 };
    let mut rival = claims(&mut rig, i, at, Proof::LATER);
    for guesses in 1..12 {
        assert!(matches!(rival.hear().unwrap()[..], [Message::Commit { .. }]), "{guesses}");
        rival.say(Message::Candidate(claim(around(said, guesses * 4096))));
        rig.settle();
        assert!(rival.hear().is_ok_and(|said| said.contains(&withdrawn)), "{guesses}");
        rival.say(Message::Candidate(claim(Proof::LATER)));
        rig.settle();
    }
    let source = shares::Source::of(rig.hosts[0].address);
    assert!(rig.remote(1).shares.is_locked(source));
    rig.exchange(i, 20_000);
    assert!(rig.is_fast(i));
    rival.say(Message::Candidate(claim(around(said, 0))));
    rig.settle();
    assert!(rival.hear().is_ok_and(|said| said.contains(&withdrawn)), "two have claimed it");
    rig.until("it is on TCP", |r| {
        r.chat(i);
        r.reason(i, A) == Reason::NotAuthenticated
    });
    rig.exchange(i, 20_000);
    assert!(!rig.is_fast(i));
    drop(rival);
    rig.finish();
}

/// What came of a claim that another process of the connector's host makes to a connection whose
/// owner has no library.
fn claimed(early: bool, proof: impl Fn(Said) -> Proof) -> (Rig, usize, Vec<Message>) {
    let (mut rig, _, at, port) = victim();
    let i = rig.connect(0, 1);
    crate::candidates::make_plain(rig.conns[i][C].socket, Reason::DisabledByConfig);
    // What the third call will learn.
    let accepted = &rig.conns[i][A];
    assert!(accepted.socket.syn.learn(accepted.socket.has(flag::CONNECTOR), accepted.fd));
    let candidate = Candidate {
        tuple: rig.conns[i][C].socket.tuple(),
        token: 3,
        proof: proof(accepted.socket.syn.said()),
        class: 0,
        fills: false,
    };
    let mut rival = Stranger::call(rig.hosts[0].address, at);
    rival.say(Message::HostHello(hello(Role::Connector, port)));
    rig.settle();
    rival.hear().unwrap();
    if early {
        rival.say(Message::Candidate(candidate));
        rig.settle();
    }
    for _ in 0..4 {
        rig.chat(i);
    }
    rig.settle();
    if !early {
        rival.say(Message::Candidate(candidate));
        rig.settle();
    }
    let mut heard = rival.hear().unwrap();
    // Whatever it says afterwards.
    let stamp = match rig.conns[i][A].socket.syn.said() {
        Said::Stamp(stamp) => Proof::new(stamp, stamp),
        _ => Proof::NONE,
    };
    rig.chat(i);
    rival.say(Message::Candidate(Candidate { token: 4, proof: stamp, ..candidate }));
    rig.chat(i);
    rig.settle();
    heard.extend(rival.hear().unwrap());
    drop(rival);
    (rig, i, heard)
}

#[test]
fn a_claim_has_to_know_the_time_stamp_of_the_connections_syn() {
    type Claim<'a> = (&'a str, &'a dyn Fn(Said) -> Proof, u64);
    let lies: [Claim; 4] = [
        ("a millisecond late", &|said| around(said, 1), 1),
        ("ten early", &|said| around(said, 10u32.wrapping_neg()), 1),
        ("half the clock away", &|said| around(said, 1 << 31), 1),
        ("nothing", &|_| Proof::NONE, 0),
    ];
    for early in [false, true] {
        for (what, lie, counted) in lies {
            let before = stats::counted_here(Counter::AuthFailures);
            let (mut rig, i, heard) = claimed(early, lie);
            assert_eq!(heard, [Message::Withdraw { token: 3 }], "{what}");
            assert!(rig.conns[i][A].socket.is(crate::socket::State::Plain), "{what}");
            assert_eq!(rig.reason(i, A), Reason::NotAuthenticated, "{what}");
            let failures = stats::counted_here(Counter::AuthFailures) - before;
            assert!(failures >= counted, "{what}: {failures}");
            rig.exchange(i, 20_000);
            rig.finish();
        }
        for by in [0, 9u32.wrapping_neg()] {
            let (rig, _, heard) = claimed(early, |said| around(said, by));
            assert!(matches!(heard[..], [Message::Pair(_), ..]), "{heard:?}");
            rig.finish();
        }
    }
}
