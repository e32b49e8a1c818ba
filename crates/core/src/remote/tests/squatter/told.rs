//! A stamp that was told to who had shown nothing shows nothing any more: whoever heard it could
//! commit himself to it afterwards.

use super::*;

const NONCE: [u8; 16] = [3; 16];

/// How a squatter who was told a stamp comes to commit himself to it.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// On the same link, at once.
    SameLink,
    /// The same, when he has committed himself to another connection in between.
    AnotherBetween,
    /// On another link, when he has dropped that one.
    Dropped,
    /// The same, and the connector has forgotten the place since.
    Forgotten,
    /// On one to another port, which he has as well.
    OtherPort,
    /// On the same one, which broke, was of use, and is resumed.
    Resumed,
}

/// Uses a connection's connecting end until the library knows of it.
fn used(rig: &mut Rig, i: usize) {
    (0..4).for_each(|_| assert_eq!(rig.send(i, C, 9), 9));
    rig.settle();
}

/// All that he hears, until a hang-up or not.
fn heard(link: &mut Stranger) -> Vec<Message> {
    link.hear().unwrap_or_else(|last| last)
}

impl Squatter {
    /// The next call at one of his ports.
    fn answers(rig: &mut Rig, listener: c_int) -> Stranger {
        rig.until("he is called", |_| sys::poll_now(listener, libc::POLLIN) != 0);
        let fd = sys::accept4(listener, libc::SOCK_CLOEXEC) as c_int;
        assert!(fd >= 0);
        // (What he says is there when it is said, whether what came before has been answered.)
        assert!(sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32) >= 0);
        Stranger { fd, input: Vec::new() }
    }

    /// He greets on a new link, and hears what is said of his connection.
    fn greets(&mut self, rig: &mut Rig, port: u16) -> Vec<Message> {
        let process = self.process;
        self.link.say(Message::HostHello(HostHello { process, ..hello(Role::Acceptor, port) }));
        rig.settle();
        heard(&mut self.link)
    }

    /// Commits himself to `stamp`, and opens that, whatever he hears.
    fn shows(&mut self, rig: &mut Rig, stamp: u32) {
        let ports = [name(self.link.fd, true).port(), name(self.link.fd, false).port()];
        let (token, process) = (self.token, self.process);
        let digest = commitment(&NONCE, stamp, token, &process, ports);
        self.link.say(Message::Commit { token, digest });
        rig.settle();
        self.link.say(Message::Open { token, nonce: NONCE, stamp });
        rig.settle();
    }

    /// He goes that way.
    fn goes(&mut self, rig: &mut Rig, way: Way) -> Vec<c_int> {
        let port = name(rig.hosts[1].listener, false).port();
        let mut more = Vec::new();
        match way {
            Way::SameLink => {}
            Way::AnotherBetween => {
                rig.hosts[1].stopped = false;
                let other = rig.connect(0, 1);
                rig.hosts[1].stopped = true;
                used(rig, other);
                let said = heard(&mut self.link);
                let [Message::Candidate(Candidate { token, .. })] = said[..] else {
                    panic!("{said:?}")
                };
                let first = core::mem::replace(&mut self.token, token);
                let digest = commitment(&NONCE, 78, token, &self.process, [1, 2]);
                self.link.say(Message::Commit { token, digest });
                rig.settle();
                heard(&mut self.link);
                self.token = first;
            }
            Way::Dropped | Way::Forgotten => {
                if matches!(way, Way::Forgotten) {
                    let (local, to) = (rig.hosts[0].address, rig.hosts[1].address);
                    let place = SocketAddr::new(to, port);
                    *rig.remote(0).vain_at(local, place).unwrap() = Default::default();
                }
                let gone = core::mem::replace(&mut self.link.fd, -1);
                assert!(sys::close(gone) >= 0);
                self.link = Squatter::answers(rig, self.listener);
                self.greets(rig, port);
            }
            Way::OtherPort => {
                let listener = tcp(SocketAddr::new(rig.hosts[1].address, link_port(port, 1)));
                assert!(sys::listen(listener, 8) >= 0);
                more.push(listener);
                self.ports = 2;
                self.link = Squatter::answers(rig, listener);
                self.greets(rig, port);
            }
            Way::Resumed => {
                let is_his = |l: &&mut Box<link::Link>| l.phase == Phase::Up;
                let link = rig.remote(0).links.iter_mut().flatten().find(is_his).unwrap();
                // A connection without time stamps, say, was on it.
                link.connections = 1;
                let key = link.key;
                crate::carrier::dissolve(self.link.fd);
                self.link = Squatter::answers(rig, self.listener);
                self.greets(rig, port);
                self.link.say(Message::Resume { known: true, key });
                rig.settle();
                heard(&mut self.link);
            }
        }
        more
    }
}

#[test]
fn a_stamp_that_was_told_proves_nobody() {
    use Way::*;
    for way in [SameLink, AnotherBetween, Dropped, Forgotten, OtherPort, Resumed] {
        for copies in [false, true] {
            let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
            let (mut squatter, i) = Squatter::new(&mut rig, copies);
            let (told, before) = (squatter.commits(&mut rig, NONCE, 77), failures());
            let more = squatter.goes(&mut rig, way);
            squatter.shows(&mut rig, told.lowest);
            assert!(!rig.is_proven(0), "{way:?} {copies}");
            // Who has not opened the last commitment makes no other.
            let ends = matches!(way, SameLink | AnotherBetween);
            assert_eq!((squatter.link.hear().is_err(), failures() > before), (ends, ends));
            more.into_iter().for_each(|fd| assert!(sys::close(fd) >= 0));
            squatter.loses(rig, i);
        }
    }
}

/// Of a connection without time stamps the connector says at once what it reads of a clock.
#[test]
fn what_is_said_of_a_connection_without_time_stamps_proves_nobody() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let (mut squatter, i) = Squatter::new(&mut rig, false);
    rig.hosts[1].stopped = false;
    let bare = rig.connect(0, 1);
    rig.hosts[1].stopped = true;
    let e = &rig.conns[bare][C];
    assert!(e.socket.syn.learn(true, e.fd));
    e.socket.syn.forget_stamps();
    used(&mut rig, bare);
    let said = heard(&mut squatter.link);
    let [Message::Candidate(Candidate { token, proof, .. })] = said[..] else { panic!("{said:?}") };
    assert!(proof.knows());
    squatter.token = token;
    squatter.shows(&mut rig, proof.lowest);
    assert!(!rig.is_proven(0));
    rig.conns[bare][A].socket.syn.forget(true);
    squatter.loses(rig, i);
}

/// Uses a connection, turn by turn, until that is so.
#[track_caller]
fn in_turns(rig: &mut Rig, i: usize, done: impl Fn(&mut Rig) -> bool) {
    for n in 0..1000 {
        if n % 10 == 0 {
            rig.chat(i);
        }
        rig.step(n % 2);
        testing::run_held();
        if done(rig) {
            return;
        }
        if n % 10 == 9 {
            rig.pass();
        }
    }
    panic!("never\n{}", rig.describe());
}

/// The link of the true server is lost when it was told a stamp, and has not opened its commitment.
/// So is the next one, in one of two.
#[test]
fn a_server_that_loses_its_link_in_the_middle_of_a_proof_shows_its_next_connection() {
    for (of_use, twice) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        if of_use {
            let bare = rig.connect(0, 1);
            for side in [C, A] {
                let e = &rig.conns[bare][side];
                assert!(e.socket.syn.learn(side == C, e.fd));
            }
            rig.conns[bare][C].socket.syn.forget_stamps();
            rig.conns[bare][A].socket.syn.forget(true);
            rig.promoted(bare);
        }
        let told: Vec<usize> = (0..1 + usize::from(twice))
            .map(|_| {
                let i = rig.connect(0, 1);
                in_turns(&mut rig, i, |r| r.conns[i][C].socket.syn.was_told());
                rig.break_links(1);
                i
            })
            .collect();
        rig.until("both ends say why", |r| {
            told.iter().for_each(|i| r.chat(*i));
            let why = |r: &Rig, i| [C, A].map(|side| r.reason(i, side));
            told.iter().all(|i| why(r, *i) == [Reason::NotAuthenticated; 2])
        });
        assert!(!rig.is_proven(0) && told.iter().all(|i| !rig.is_attached(*i, C)));
        let next = rig.connect(0, 1);
        rig.promoted(next);
        assert!(rig.is_proven(0));
        for i in told {
            rig.promoted(i);
            rig.exchange(i, 20_000);
        }
        rig.finish();
    }
}

/// Where the client answers a commitment later, the server says why its connection waits.
#[test]
fn a_server_that_has_to_wait_before_it_is_told_says_why() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    for _ in 0..6 {
        let i = rig.connect(0, 1);
        in_turns(&mut rig, i, |r| r.conns[i][C].socket.syn.was_told());
        rig.break_links(1);
    }
    let waits = |r: &mut Rig| {
        let waits = |l: &link::Link| matches!(l.trust, link::Trust::Waits { .. });
        r.remote(0).links.iter().flatten().any(|l| waits(l))
    };
    let next = rig.connect(0, 1);
    rig.until("it waits", |r| {
        r.chat(next);
        waits(r)
    });
    let began = sys::now_ns();
    rig.until("both ends say why", |r| {
        r.chat(next);
        assert!(waits(r), "{} ns\n{}", sys::now_ns() - began, r.describe());
        [C, A].iter().all(|side| r.reason(next, *side) == Reason::NotAuthenticated)
    });
    rig.promoted(next);
    rig.finish();
}

/// Who was told a stamp and has shown that it had known it shows it again, on another link: nobody
/// else was told.
#[test]
fn who_has_shown_a_stamp_shows_it_again() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    for _ in 0..3 {
        in_turns(&mut rig, i, |r| r.is_proven(0));
        let link = rig.remote(0).links.iter().position(Option::is_some).unwrap();
        rig.remote(0).on_link_fault(link, link::Fault::Over);
        assert!(!rig.is_proven(0));
    }
    rig.promoted(i);
    rig.exchange(i, 20_000);
    rig.finish();
}

/// Who shows nothing takes few connections from those by which the true server can show itself:
/// he is told the next one after a second, and then more and more rarely.
#[test]
fn who_shows_nothing_is_told_more_and_more_rarely() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let (mut squatter, _) = Squatter::new(&mut rig, false);
    squatter.commits(&mut rig, NONCE, 77);
    for seconds in [1, 2, 4, 8] {
        let dropped = sys::now_ns();
        squatter.goes(&mut rig, Way::Dropped);
        rig.hosts[1].stopped = false;
        let next = rig.connect(0, 1);
        rig.hosts[1].stopped = true;
        used(&mut rig, next);
        let said = heard(&mut squatter.link);
        let [Message::Candidate(Candidate { token, proof, .. })] = said[..] else {
            panic!("{said:?}")
        };
        assert_eq!(proof, Proof::LATER);
        squatter.link.say(Message::Commit { token, digest: [1; 16] });
        rig.settle();
        assert_eq!(
            (heard(&mut squatter.link), rig.reason(next, C)),
            (vec![], Reason::NotAuthenticated)
        );
        // What he says again is kept until then: for that no table is gone through.
        rig.conns[next][C].socket.start(Reason::Negotiating);
        for n in 2..5 {
            squatter.link.say(Message::Commit { token, digest: [n; 16] });
        }
        rig.settle();
        let trust = rig.remote(0).links.iter().flatten().map(|l| l.trust).next_back();
        assert_eq!(trust, Some(link::Trust::Waits { token, digest: [4; 16] }));
        assert_eq!((heard(&mut squatter.link), rig.reason(next, C)), (vec![], Reason::Negotiating));
        rig.until("it is told", |r| r.conns[next][C].socket.syn.was_told());
        let waited = sys::now_ns() - dropped;
        assert!(waited >= seconds * 1_000_000_000, "{seconds} s: {waited} ns");
        let said = heard(&mut squatter.link);
        assert!(matches!(said[..], [Message::Candidate(c)] if c.proof.knows()), "{said:?}");
    }
}

/// Newer kernels hash the ports into the offset: who was told the stamp of one connection knows it
/// of each later one between the same addresses and ports.
#[test]
fn a_port_that_is_used_again_proves_nobody() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let (mut squatter, i) = Squatter::new(&mut rig, false);
    squatter.commits(&mut rig, NONCE, 77);
    let port = rig.conns[i][C].socket.tuple().local_port();
    // A reset: the port is free at once.
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    let fd = rig.conns[i][C].fd;
    assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &reset) >= 0);
    [C, A].into_iter().for_each(|side| rig.close(i, side));
    squatter.goes(&mut rig, Way::Dropped);
    rig.hosts[1].stopped = false;
    let again = rig.connect_from(port, 0, 1);
    rig.hosts[1].stopped = true;
    used(&mut rig, again);
    let said = heard(&mut squatter.link);
    let [.., Message::Candidate(Candidate { token, .. })] = said[..] else { panic!("{said:?}") };
    squatter.token = token;
    let digest = [1; 16];
    squatter.link.say(Message::Commit { token, digest });
    rig.until("it is answered", |r| r.conns[again][C].socket.syn.was_told());
    let said = heard(&mut squatter.link);
    assert!(matches!(said[..], [Message::Candidate(c)] if c.proof == Proof::TOLD), "{said:?}");
    squatter.loses(rig, again);
}

/// The true server hears of a connection, and has not accepted it when somebody else is told its
/// stamp. Then it commits itself to it in vain, and to the next one.
#[test]
fn who_commits_himself_when_another_was_told_commits_himself_to_the_next() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let (mut squatter, i) = Squatter::new(&mut rig, true);
    rig.hosts[1].stopped = false;
    rig.until("the true server is called", |r| {
        r.remote(1).links.iter().flatten().any(|l| l.phase == Phase::Up)
    });
    let tuple = rig.conns[i][A].socket.tuple();
    assert!(rig.remote(1).candidates.find(&tuple, |x| x.proof == Proof::LATER).is_some());
    squatter.commits(&mut rig, NONCE, 77);
    squatter.loses(rig, i);
}

fn has_committed_itself(rig: &mut Rig) -> bool {
    let committed = |l: &link::Link| matches!(l.trust, link::Trust::Committed { .. });
    rig.remote(1).links.iter().flatten().any(|l| committed(l))
}

/// As that, and the server has left the connection meanwhile: what it waits for is the next one's.
#[test]
fn who_commits_himself_to_a_connection_that_has_left_commits_himself_to_the_next() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let (mut squatter, i) = Squatter::new(&mut rig, true);
    rig.hosts[1].stopped = false;
    rig.until("the true server is called", |r| {
        r.remote(1).links.iter().flatten().any(|l| l.phase == Phase::Up)
    });
    squatter.commits(&mut rig, NONCE, 77);
    rig.hosts[0].stopped = true;
    rig.until("the true server commits itself", |r| {
        r.chat(i);
        has_committed_itself(r)
    });
    crate::candidates::make_plain(rig.conns[i][A].socket, Reason::DisabledByConfig);
    rig.hosts[0].stopped = false;
    let next = rig.connect(0, 1);
    rig.promoted(next);
    assert!(rig.is_proven(0));
    drop(squatter.link);
    let _ = sys::close(squatter.listener);
    rig.finish();
}

/// What the client knows of one connection's SYN is wrong: that is no matter of the next one's.
#[test]
fn who_hears_what_does_not_fit_commits_himself_to_the_next() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let [wrong, next] = [0; 2].map(|_| rig.connect(0, 1));
    let long_ago = sys::kernel_ns() - 3_600_000_000_000;
    rig.conns[wrong][C].socket.syn.sent(long_ago, long_ago, true);
    rig.hosts[1].stopped = true;
    [wrong, next].into_iter().for_each(|i| used(&mut rig, i));
    rig.hosts[1].stopped = false;
    rig.until("the server hears of both", |r| r.remote(1).candidates.len() == 2);
    rig.hosts[0].stopped = true;
    rig.until("the server commits itself", |r| {
        r.chat(wrong);
        has_committed_itself(r)
    });
    // The next one's claim waits for what comes of that.
    for _ in 0..4 {
        rig.chat(next);
    }
    rig.settle();
    rig.hosts[0].stopped = false;
    rig.promoted(next);
    assert!(rig.is_proven(0));
    assert_eq!(rig.reason(wrong, A), Reason::NotAuthenticated);
    rig.finish();
}
