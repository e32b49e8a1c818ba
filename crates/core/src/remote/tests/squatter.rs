//! Who answers at a link port and has accepted nothing there.

use super::hostile::{Stranger, hello};
use super::*;
use crate::remote::destinations::link_port;
use crate::remote::link::Phase;
use crate::syn::Said;
use netacc_control::stats::Counter;
use netacc_proto::rendezvous::{Candidate, HostHello, Message, Proof, Role, commitment};

mod told;

fn failures() -> u64 {
    stats::counted_here(Counter::AuthFailures)
}

/// A process that knows a connection's addresses, and not its SYN, is not believed, whatever else
/// it does right.
#[test]
fn who_does_not_know_a_connections_syn_is_not_its_acceptor() {
    for bare in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.conns[i][A].socket.syn.forget(bare);
        for _ in 0..20 {
            rig.chat(i);
            rig.settle();
        }
        assert!(!rig.is_fast(i) && rig.objects(0).pairs == 0, "{}", rig.describe());
        assert_eq!(rig.reason(i, A), Reason::NotAuthenticated);
        // Once it has shown for another connection that it accepts there, it is.
        let other = rig.connect(0, 1);
        rig.promoted(other);
        rig.promoted(i);
        rig.exchange(i, 20_000);
        rig.finish();
    }
}

/// Nor where the connector does not know either what its SYN said: it has not seen the call of
/// connect, or that took so long that a claim would leave too much open.
#[test]
fn who_knows_nothing_is_not_believed_by_who_knows_nothing() {
    for seen in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        let [c, a] = &rig.conns[i];
        if seen {
            let ended = sys::kernel_ns();
            c.socket.syn.sent(ended - 5_000_000_000, ended, true);
        } else {
            c.socket.syn.set_began(0);
        }
        // So it offers, and can show nothing.
        a.socket.syn.forget(false);
        let before = failures();
        for _ in 0..20 {
            rig.chat(i);
            rig.settle();
        }
        assert!(!rig.conns[i][C].socket.syn.proof().knows());
        assert!(!rig.is_fast(i) && !rig.is_attached(i, C), "{}", rig.describe());
        assert!(failures() > before);
        // Once it has shown for another connection that it accepts there, it is.
        let other = rig.connect(0, 1);
        rig.promoted(other);
        rig.promoted(i);
        rig.exchange(i, 20_000);
        rig.finish();
    }
}

/// Where one of the two hosts has no time stamps there is nothing to show: the address counts.
#[test]
fn without_time_stamps_nobody_has_to_show_anything() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    for side in [C, A] {
        let e = &rig.conns[i][side];
        assert!(e.socket.syn.learn(side == C, e.fd));
    }
    assert!(rig.conns[i][C].socket.syn.can_be_shown());
    rig.conns[i][C].socket.syn.forget_stamps();
    rig.conns[i][A].socket.syn.forget(true);
    rig.promoted(i);
    rig.exchange(i, 20_000);
    rig.finish();
}

/// It has the first of the link ports, and answers first.
struct Squatter {
    listener: c_int,
    /// Of his, from the first on.
    ports: u8,
    link: Stranger,
    process: [u8; 16],
    token: u64,
}

impl Squatter {
    /// Before the server's library has a link port; and a connection of host 0's to the server.
    /// `copies`: it says that it is the server's process, which anybody who calls is told.
    fn new(rig: &mut Rig, copies: bool) -> (Squatter, usize) {
        let (to, listener) = rig.listen_below_free(1);
        assert!(sys::listen(listener, 8) >= 0);
        let i = rig.connect(0, 1);
        // The true server is stopped meanwhile.
        rig.hosts[1].stopped = true;
        for _ in 0..4 {
            let e = &mut rig.conns[i][C];
            // SAFETY: a live buffer.
            let r = unsafe { io::send(e.fd, bytes(e.stream, e.sent, 9).as_ptr(), 9, 0) };
            assert_eq!(r, 9);
            e.sent += 9;
        }
        rig.settle();
        let fd = sys::accept4(listener, libc::SOCK_CLOEXEC) as c_int;
        assert!(fd >= 0);
        let mut link = Stranger { fd, input: Vec::new() };
        let process = if copies { rig.remote(1).process } else { [8; 16] };
        link.say(Message::HostHello(HostHello { process, ..hello(Role::Acceptor, to.port()) }));
        rig.settle();
        let heard = link.hear().unwrap();
        let [Message::HostHello(_), Message::Candidate(Candidate { token, proof, .. })] = heard[..]
        else {
            panic!("{heard:?}")
        };
        assert_eq!(proof, Proof::LATER, "nothing is said to who has shown nothing");
        (Squatter { listener, ports: 1, link, process, token }, i)
    }

    /// The proof that it is told when it has committed itself to a stamp.
    fn commits(&mut self, rig: &mut Rig, nonce: [u8; 16], stamp: u32) -> Proof {
        let ports = [name(self.link.fd, true).port(), name(self.link.fd, false).port()];
        self.commits_on(rig, nonce, stamp, ports)
    }

    /// As that, as the acceptor would on a link of these ports.
    fn commits_on(&mut self, rig: &mut Rig, nonce: [u8; 16], stamp: u32, ports: [u16; 2]) -> Proof {
        let digest = commitment(&nonce, stamp, self.token, &self.process, ports);
        self.link.say(Message::Commit { token: self.token, digest });
        rig.settle();
        let heard = self.link.hear().unwrap();
        let [Message::Candidate(Candidate { proof, .. })] = heard[..] else { panic!("{heard:?}") };
        assert!(proof.knows());
        proof
    }

    /// The true server goes on, and has the connection: with its next one, if he was told what the
    /// server would show by this one.
    fn loses(self, mut rig: Rig, i: usize) {
        rig.hosts[1].stopped = false;
        if rig.conns[i][C].socket.syn.was_told() {
            rig.until("both ends say why", |r| {
                r.chat(i);
                [C, A].iter().all(|side| r.reason(i, *side) == Reason::NotAuthenticated)
            });
            assert!(!rig.is_attached(i, C) && rig.objects(0).pairs == 0, "{}", rig.describe());
            let next = rig.connect(0, 1);
            rig.promoted(next);
        }
        rig.promoted(i);
        rig.exchange(i, 20_000);
        let at = name(rig.remote(1).listeners[0].fd, false).port();
        assert_eq!(at, link_port(name(rig.hosts[1].listener, false).port(), self.ports));
        drop(self.link);
        let _ = sys::close(self.listener);
        rig.finish();
    }
}

#[test]
fn a_squatter_that_answers_first_does_not_win() {
    // It says nothing more.
    for copies in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let (squatter, i) = Squatter::new(&mut rig, copies);
        squatter.loses(rig, i);
    }

    // It opens its commitment to what it was told afterwards, or to what it had guessed, or without
    // any.
    let nonce = [3; 16];
    for (lie, copies) in (0..6).map(|n| (n / 2, n % 2 != 0)) {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let (mut squatter, i) = Squatter::new(&mut rig, copies);
        let (before, token) = (failures(), squatter.token);
        let stamp = if lie == 2 {
            77
        } else {
            let proof = squatter.commits(&mut rig, nonce, 77);
            if lie == 0 { proof.lowest } else { 77 }
        };
        squatter.link.say(Message::Open { token, nonce, stamp });
        rig.settle();
        if lie == 2 {
            assert_eq!(squatter.link.hear(), Ok(Vec::new()));
        } else {
            assert!(squatter.link.hear().is_err(), "it goes on with who lied");
            assert!(failures() > before);
        }
        let proven = |l: &link::Link| l.phase == Phase::Up && l.is_proven();
        assert!(!rig.remote(0).links.iter().flatten().any(|l| proven(l)));
        squatter.loses(rig, i);
    }
}

/// What the true server says to a user of both hosts, on that one's own link, shows nothing on
/// another link.
#[test]
fn who_relays_a_commitment_shows_nothing() {
    let nonce = [3; 16];
    for relays in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let (mut squatter, i) = Squatter::new(&mut rig, true);
        let (before, token) = (failures(), squatter.token);
        let e = &rig.conns[i][A];
        assert!(e.socket.syn.learn(false, e.fd));
        let Said::Stamp(stamp) = e.socket.syn.said() else { panic!("the stamp is known") };
        let _ = if relays {
            let port = name(squatter.link.fd, true).port();
            squatter.commits_on(&mut rig, nonce, stamp, [port, link_port(7000, 0)])
        } else {
            squatter.commits(&mut rig, nonce, stamp)
        };
        squatter.link.say(Message::Open { token, nonce, stamp });
        rig.settle();
        let proven = |l: &link::Link| l.phase == Phase::Up && l.is_proven();
        let believed = rig.remote(0).links.iter().flatten().any(|l| proven(l));
        assert_eq!((believed, failures() > before), (!relays, relays));
        if relays {
            assert!(squatter.link.hear().is_err(), "it goes on with who relayed");
            squatter.loses(rig, i);
        }
    }
}

/// Who calls the server first, in the name of the client's process, keeps nobody out: nor by
/// claiming that one's connections before it does.
#[test]
fn who_calls_in_another_processs_name_keeps_nobody_out() {
    for claims in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        rig.hosts[0].stopped = true;
        let i = rig.connect(0, 1);
        rig.settle();
        let at = name(rig.remote(1).listeners[0].fd, false);
        let port = name(rig.hosts[1].listener, false).port();
        let mut caller = Stranger::call(rig.hosts[0].address, at);
        let process = rig.remote(0).process;
        caller.say(Message::HostHello(HostHello { process, ..hello(Role::Connector, port) }));
        if claims {
            let tuple = rig.conns[i][C].socket.tuple();
            let proof = Proof::LATER;
            caller.say(Message::Candidate(Candidate {
                tuple,
                token: 5,
                proof,
                class: 0,
                fills: false,
            }));
        }
        rig.settle();
        assert!(caller.hear().is_ok());
        rig.hosts[0].stopped = false;
        rig.promoted(i);
        rig.exchange(i, 20_000);
        assert!(caller.hear().is_ok(), "it is still there");
        drop(caller);
        rig.finish();
    }
}
