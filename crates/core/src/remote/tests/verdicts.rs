//! Whom nobody asks for, between hosts where others have the library: what is said of it, and when.

use super::hostile::{Stranger, hello};
use super::*;
use netacc_proto::rendezvous::{Candidate, Message, Proof, Role};

const SECOND_NS: u64 = 1_000_000_000;

impl Rig {
    /// One end uses a connection, and the other one's program has no library: what is said of it
    /// at first, and when it has been used for a second.
    fn used_alone(&mut self, i: usize, side: usize) -> [Reason; 2] {
        let began = sys::now_ns();
        for _ in 0..4 {
            self.send(i, side, 10);
            self.settle();
        }
        let first = self.reason(i, side);
        // (The thread is asked no later than then, however long the machine takes for that.)
        testing::pass_ns((began + SECOND_NS).saturating_sub(sys::now_ns()));
        self.settle();
        [first, self.reason(i, side)]
    }
}

#[test]
fn a_plain_client_of_a_host_where_others_have_the_library() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let other = rig.connect(0, 1);
        rig.promoted(other);
        let i = rig.connect(0, 1);
        let said = rig.used_alone(i, A);
        assert_eq!(said, [Reason::Negotiating, Reason::PeerWithoutLibrary]);
        // And so for as long as it is used.
        for _ in 0..70 {
            testing::pass_ns(SECOND_NS);
            rig.send(i, A, 10);
            rig.settle();
            assert_eq!(rig.reason(i, A), Reason::PeerWithoutLibrary);
        }
        // It is waited for all the same.
        rig.promoted(i);
        rig.exchange(i, 10_000);
        rig.finish();
    }
}

#[test]
fn a_plain_server_beside_one_that_has_the_library() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let other = rig.connect(0, 1);
        rig.promoted(other);
        let i = rig.connect(0, 1);
        let said = rig.used_alone(i, C);
        assert_eq!(said, [Reason::Negotiating, Reason::NotClaimed]);
        rig.promoted(i);
        rig.exchange(i, 10_000);
        rig.finish();
    }
}

/// The other process's link breaks, and is made again: told anew, judged anew.
#[test]
fn a_plain_server_beside_one_that_is_found_again() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let other = rig.connect(0, 1);
    rig.promoted(other);
    let i = rig.connect(0, 1);
    rig.used_alone(i, C);
    for _ in 0..3 {
        rig.break_links(0);
        for _ in 0..40 {
            rig.chat(other);
            rig.settle();
            rig.pass();
        }
        let began = sys::now_ns();
        rig.settle();
        testing::pass_ns((began + SECOND_NS).saturating_sub(sys::now_ns()));
        rig.settle();
        assert_ne!(rig.reason(i, C), Reason::Negotiating, "{}", rig.describe());
    }
    rig.finish();
}

/// Its program has the library after all, and claims it; then its link ends, and is not made again.
#[test]
fn a_claim_that_goes() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let other = rig.connect(0, 1);
    rig.promoted(other);
    let i = rig.connect(0, 1);
    assert_eq!(rig.used_alone(i, A)[1], Reason::PeerWithoutLibrary);
    for _ in 0..40 {
        rig.send(i, C, 10);
        let is_claimed = |rig: &Rig| rig.reason(i, A) == Reason::Negotiating;
        while !is_claimed(&rig) && rig.round() {}
        if is_claimed(&rig) {
            break;
        }
    }
    assert_eq!(rig.reason(i, A), Reason::Negotiating, "{}", rig.describe());
    rig.hosts[0].stopped = true;
    // (It is looked at more and more rarely.)
    for _ in 0..70 {
        testing::pass_ns(SECOND_NS);
        rig.settle();
    }
    assert_eq!(rig.reason(i, A), Reason::Negotiating, "{}", rig.describe());
    let remote = rig.remote(1);
    let at = remote.links.iter().position(Option::is_some).unwrap();
    remote.on_link_fault(at, link::Fault::Idle);
    for _ in 0..3 {
        testing::pass_ns(SECOND_NS);
        rig.send(i, A, 10);
        rig.settle();
        assert_eq!(rig.reason(i, A), Reason::PeerWithoutLibrary, "{}", rig.describe());
    }
    rig.hosts[0].stopped = false;
    rig.promoted(i);
    rig.exchange(i, 10_000);
    rig.finish();
}

/// Another process of its host claims it, is asked what it knows, and ends.
#[test]
fn an_unproven_claim_that_goes() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let other = rig.connect(0, 1);
    rig.promoted(other);
    let i = rig.connect(0, 1);
    assert_eq!(rig.used_alone(i, A)[1], Reason::PeerWithoutLibrary);
    let at = name(rig.remote(1).listeners[0].fd, false);
    let mut claimant = Stranger::call(rig.hosts[0].address, at);
    let port = name(rig.hosts[1].listener, false).port();
    claimant.say(Message::HostHello(hello(Role::Connector, port)));
    rig.settle();
    claimant.hear().unwrap();
    let (tuple, proof) = (rig.conns[i][C].socket.tuple(), Proof::LATER);
    claimant.say(Message::Candidate(Candidate { tuple, token: 3, proof, class: 0, fills: false }));
    rig.settle();
    let said = claimant.hear().unwrap();
    assert!(matches!(said[..], [Message::Commit { token: 3, .. }]), "{said:?}");
    // (It is looked at more and more rarely.)
    for _ in 0..70 {
        testing::pass_ns(SECOND_NS);
        rig.settle();
    }
    assert_eq!(rig.reason(i, A), Reason::NotAuthenticated, "{}", rig.describe());
    drop(claimant);
    rig.settle();
    for _ in 0..3 {
        testing::pass_ns(SECOND_NS);
        rig.send(i, A, 10);
        rig.settle();
        assert_eq!(rig.reason(i, A), Reason::PeerWithoutLibrary, "{}", rig.describe());
    }
    rig.promoted(i);
    rig.exchange(i, 10_000);
    rig.finish();
}

/// Between hosts a connection of which one half is shut down stays on TCP: both ends say why.
#[test]
fn one_that_is_shut_down_before_it_is_agreed_on() {
    for beside_others in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        if beside_others {
            let other = rig.connect(0, 1);
            rig.promoted(other);
        }
        let i = rig.connect(0, 1);
        rig.send(i, C, 10);
        let fd = rig.conns[i][C].fd;
        if api::shutdown(fd, libc::SHUT_WR) == api::PASS {
            assert!(sys::shutdown(fd, libc::SHUT_WR) >= 0);
        }
        assert_eq!(rig.used_alone(i, A)[1], Reason::ShuttingDown);
        rig.drain(i);
        assert_eq!(rig.reason(i, C), Reason::ShuttingDown);
        rig.finish();
    }
}
