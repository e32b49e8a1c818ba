//! Peers without the library: how often their ports are tried, and that connections there do not
//! wait for it.

use super::*;
use crate::remote::destinations::{TRIED, link_port};
use crate::remote::link::Phase;

const MS: u64 = 1_000_000;
/// For what the machine itself needs.
const SLACK_NS: u64 = 500 * MS;

/// Rounds of connects to the ports of the links.
struct Rounds {
    serial: u32,
    /// When each began, and how many ports were asked.
    all: Vec<(u64, u32)>,
    /// Another program's, at the first of these ports, and the connections that it has taken.
    foreign: c_int,
    taken: usize,
}

impl Rounds {
    fn new(rig: &mut Rig) -> Rounds {
        Rounds { serial: rig.remote(0).serial, all: Vec::new(), foreign: -1, taken: 0 }
    }

    fn look(&mut self, rig: &mut Rig) {
        rig.settle();
        let now = sys::now_ns();
        // What the kernel has to say to them comes in its own time, before the clock goes on.
        let began = std::time::Instant::now();
        while rig.remote(0).links.iter().flatten().any(|l| l.phase != Phase::Gone)
            && began.elapsed().as_millis() < 900
        {
            let fd = if self.foreign >= 0 {
                sys::accept4(self.foreign, libc::SOCK_CLOEXEC) as c_int
            } else {
                -1
            };
            if fd >= 0 {
                let _ = sys::close(fd);
                self.taken += 1;
            } else {
                rig.wait(1_000_000);
            }
            rig.settle();
        }
        // Each connect that is begun has a link of its own.
        let serial = rig.remote(0).serial;
        if serial != self.serial {
            self.all.push((now, serial - self.serial));
        }
        self.serial = serial;
    }

    /// A new connection is used until its reason is known: when that was.
    fn refused(&mut self, rig: &mut Rig, passes: bool) -> u64 {
        let i = rig.connect(0, 1);
        let mut calls = 0;
        loop {
            rig.chat(i);
            self.look(rig);
            if rig.conns[i][C].socket.is(crate::socket::State::Plain) {
                break;
            }
            calls += 1;
            assert!(calls < if passes { 200 } else { 6 }, "no verdict\n{}", rig.describe());
            // (Its calls are what takes note of the verdict.)
            if passes && rig.conns[i][C].socket.offered.is_none() {
                rig.pass();
                self.look(rig);
            }
        }
        assert_eq!(rig.reason(i, C), Reason::ListenerWithoutLibrary);
        let now = sys::now_ns();
        rig.drain(i);
        rig.close(i, C);
        rig.close(i, A);
        now
    }

    /// So many connects each, so long after the one before.
    #[track_caller]
    fn are(&self, expected: &[(u64, u32)]) {
        let gaps = self.all.windows(2).map(|w| w[1].0 - w[0].0);
        let near = |g: u64, ms: u64| (ms * MS - 50 * MS..ms * MS + SLACK_NS).contains(&g);
        let gaps_are = gaps.clone().zip(&expected[1..]).all(|(g, (ms, _))| near(g, *ms));
        let counts = self.all.iter().map(|(_, n)| *n).eq(expected.iter().map(|(_, n)| *n));
        assert!(gaps_are && counts, "{:?} {:?}", gaps.collect::<Vec<_>>(), self.all);
    }
}

#[test]
fn where_nobody_is_it_is_tried_more_and_more_rarely() {
    for foreign in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        rig.kill(1);
        let (_, first) = rig.listen_below_free(1);
        let mut rounds = Rounds::new(&mut rig);
        if foreign {
            rounds.foreign = first;
            assert!(sys::fcntl(first, libc::F_SETFL, libc::O_NONBLOCK as usize) >= 0);
            assert!(sys::listen(first, 64) >= 0);
        } else {
            let _ = sys::close(first);
        }
        // Where the first port refuses, the others are asked twice.
        let all = u32::from(TRIED);
        let later = if foreign { all } else { 1 };
        // The first one waits until all tries have failed.
        let mut known = rounds.refused(&mut rig, true);
        let again = [400, 1000, 3000, 5000].map(|ms| (ms, later));
        rounds.are(&[&[(0, all), (100, all)], &again[..]].concat());
        for pause_s in [10, 20, 40, 80, 160, 300, 300] {
            rounds.all.clear();
            // Until then nothing is tried, and no connection waits.
            for ahead_ns in [pause_s * 500 * MS, pause_s * 1000 * MS - 3000 * MS] {
                testing::pass_ns((known + ahead_ns).saturating_sub(sys::now_ns()));
                rounds.look(&mut rig);
                rounds.refused(&mut rig, false);
                assert_eq!(rounds.all, [], "tried before {pause_s} s have passed");
            }
            testing::pass_ns((known + pause_s * 1000 * MS).saturating_sub(sys::now_ns()));
            rounds.look(&mut rig);
            assert_eq!(rounds.all, [], "tried for nobody");
            known = rounds.refused(&mut rig, true);
            rounds.are(&[(0, all), (1000, all)]);
        }
        assert_eq!(rounds.taken, if foreign { 6 + 7 * 2 } else { 0 });
        if foreign {
            let _ = sys::close(rounds.foreign);
        }
        rig.finish();
    }
}

#[test]
fn what_waits_for_nobody_says_so_within_a_second() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    rig.kill(1);
    let mut rounds = Rounds::new(&mut rig);
    let i = rig.connect(0, 1);
    let began = sys::now_ns();
    rig.chat(i);
    while rig.reason(i, C) != Reason::ListenerWithoutLibrary {
        rounds.look(&mut rig);
        rig.chat(i);
        assert!(sys::now_ns() < began + 1000 * MS + SLACK_NS, "{:?}", rig.reason(i, C));
        if rig.reason(i, C) != Reason::ListenerWithoutLibrary {
            rig.pass();
        }
    }
    // It goes on waiting: the server's library may be late.
    assert!(rig.conns[i][C].socket.is(crate::socket::State::Candidate));
    rig.drain(i);
    rig.finish();

    // The accepting end of a connection from a host where nobody has the library.
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    rig.kill(0);
    let i = rig.connect(0, 1);
    for _ in 0..4 {
        rig.chat(i);
    }
    rig.settle();
    assert_eq!(rig.reason(i, A), Reason::PeerWithoutLibrary);
    assert!(rig.conns[i][A].socket.is(crate::socket::State::Candidate));
    rig.drain(i);
    rig.finish();
}

/// A program without the library, on a host that drops what comes to other ports.
struct Plain {
    fds: Vec<c_int>,
    /// Used by a connector on host 0.
    socket: &'static Socket,
}

impl Plain {
    fn new(rig: &Rig, ip: IpAddr) -> Plain {
        // A queue that is full takes no SYN, and says nothing.
        let (app, at, full) = loop {
            let app = tcp(SocketAddr::new(ip, 0));
            let at = SocketAddr::new(ip, link_port(name(app, false).port(), 0));
            if let Some(full) = tcp_if_free(at) {
                break (app, at, full);
            }
            let _ = sys::close(app);
        };
        assert!(sys::listen(app, 8) >= 0);
        assert!(sys::listen(full, 0) >= 0);
        SILENT.with_borrow_mut(|s| s.push(at));
        let (raw, len) = crate::carrier::sockaddr(at);
        let caller = tcp(SocketAddr::new(ip, 0));
        assert!(sys::connect(caller, &raw[..len]) >= 0);
        let mut this = Plain::connect(rig, app);
        this.fds.extend([app, full, caller]);
        this
    }

    /// One whose host refuses what comes to other ports.
    fn refusing(rig: &Rig, ip: IpAddr) -> Plain {
        let app = loop {
            let app = tcp(SocketAddr::new(ip, 0));
            if are_link_ports_free(name(app, false)) {
                break app;
            }
            let _ = sys::close(app);
        };
        assert!(sys::listen(app, 8) >= 0);
        let mut this = Plain::connect(rig, app);
        this.fds.push(app);
        this
    }

    /// Another connection to it.
    fn again(&self, rig: &Rig) -> Plain {
        Plain::connect(rig, self.fds[2])
    }

    fn connect(rig: &Rig, app: c_int) -> Plain {
        let fd = tcp(SocketAddr::new(rig.hosts[0].address, 0));
        let (raw, len) = crate::carrier::sockaddr(name(app, false));
        assert!(sys::connect(fd, &raw[..len]) >= 0);
        let other = sys::accept4(app, libc::SOCK_CLOEXEC) as c_int;
        assert!(other >= 0);
        Plain { fds: vec![fd, other], socket: begin(fd, true) }
    }

    /// It is used, so often that a faster path is looked for.
    fn chat(&self) {
        for _ in 0..4 {
            // SAFETY: a live buffer.
            let mut r = unsafe { io::send(self.fds[0], b"some".as_ptr(), 4, libc::MSG_DONTWAIT) };
            if r == api::PASS {
                // SAFETY: as above.
                r = unsafe { sys::sendto(self.fds[0], b"some".as_ptr(), 4, libc::MSG_DONTWAIT) };
            }
            assert_eq!(r, 4);
        }
    }

    /// It is used until it is known that nobody is there: the connects, and ms, that took.
    fn refused(&self, rig: &mut Rig) -> (u32, u64) {
        let serial = rig.remote(0).serial;
        let began = sys::now_ns();
        self.chat();
        while !self.socket.is(crate::socket::State::Plain) {
            rig.settle();
            if self.socket.offered.is_none() {
                rig.pass();
                rig.settle();
            }
            self.chat();
        }
        (rig.remote(0).serial - serial, (sys::now_ns() - began) / MS)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        for fd in self.fds.drain(..) {
            if api::close(fd) == api::PASS {
                let _ = sys::close(fd);
            }
        }
    }
}

fn silent_host(n: u8) -> IpAddr {
    loopback(1, n)
}

/// The connector cannot tell whether its packets are lost or nobody is there.
#[test]
fn what_goes_to_a_silent_host_says_so_within_a_second() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 1);
    let one = Plain::new(&rig, silent_host(1));
    let all = [Plain::new(&rig, silent_host(1)), Plain::new(&rig, silent_host(2)), one];
    for plain in &all {
        let began = sys::now_ns();
        plain.chat();
        rig.settle();
        let reason = || plain.socket.record().map_or(0, |r| r.reason.load(Relaxed));
        assert_eq!(reason(), Reason::Negotiating as u32);
        testing::pass_ns((began + 1000 * MS).saturating_sub(sys::now_ns()));
        rig.settle();
        assert_eq!(reason(), Reason::ListenerWithoutLibrary as u32);
        plain.refused(&mut rig);
    }
    rig.finish();
}

#[test]
fn a_silent_host_is_sent_a_packet_now_and_then_whatever_its_ports() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 1);
    let one = Plain::new(&rig, silent_host(1));
    let (connects, ms) = one.refused(&mut rig);
    assert_eq!(connects, 3);
    assert!((6_600..7_500).contains(&ms), "{ms}");
    // Another port of it is asked once, and no more than one a second is; one that was is not.
    let others = [0, 1].map(|_| Plain::new(&rig, silent_host(1)));
    let began = sys::now_ns();
    for other in &others {
        let (connects, ms) = other.refused(&mut rig);
        assert!(connects == 1 && ms < 1_500, "{connects} connects, {ms} ms");
        let (connects, ms) = other.again(&rig).refused(&mut rig);
        assert!(connects == 0 && ms < 500, "{connects} connects, {ms} ms");
    }
    assert!(sys::now_ns() - began > 1_500 * MS);
    testing::pass_ns(8_000 * MS);
    // Two of its ports at the same time are one question, and an answer to one is one to both.
    for pause_s in [10, 20, 40] {
        testing::pass_ns(pause_s * 1000 * MS);
        let [a, b] = [&others[0], &others[1]].map(|p| p.again(&rig));
        let serial = rig.remote(0).serial;
        a.chat();
        b.chat();
        rig.settle();
        a.refused(&mut rig);
        b.refused(&mut rig);
        assert_eq!(rig.remote(0).serial - serial, 1, "after {pause_s} s");
    }
    rig.finish();
}

/// A host where nobody has the library at two ports most likely has it at no other one either.
#[test]
fn a_host_that_refuses_is_asked_less_and_less_whatever_its_ports() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let ip = rig.hosts[1].address;
    let mut plain = Vec::new();
    for expected in [12, 9, 2, 2, 2] {
        plain.push(Plain::refusing(&rig, ip));
        let (connects, ms) = plain.last().unwrap().refused(&mut rig);
        assert_eq!(connects, expected, "{ms} ms");
        assert!(expected > 2 || ms < 1_500, "{ms} ms");
    }
    // It has it nevertheless.
    let i = rig.connect(0, 1);
    rig.promoted(i);
    rig.finish();
}

/// The link port of one server is dropped, and another one's on the same host is open.
#[test]
fn a_port_that_is_silent_does_not_keep_another_one_from_being_asked() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let plain = Plain::new(&rig, rig.hosts[1].address);
    plain.refused(&mut rig);
    for pause_s in [10, 20, 40, 80, 160] {
        testing::pass_ns(pause_s * 1000 * MS);
        plain.again(&rig).refused(&mut rig);
    }
    let began = sys::now_ns();
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let ms = (sys::now_ns() - began) / MS;
    assert!(ms < 3_000, "{ms} ms");
    drop(plain);
    rig.finish();
}

#[test]
fn a_hundred_silent_peers_do_not_delay_the_first_link() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let plain: Vec<Plain> = (1..=100).map(|n| Plain::new(&rig, silent_host(n))).collect();
    plain.iter().for_each(Plain::chat);
    rig.settle();
    let began = sys::now_ns();
    let i = rig.connect(0, 1);
    rig.until("there is a link", |r| {
        r.chat(i);
        r.remote(0).links.iter().flatten().any(|l| l.is_up())
    });
    let ms = (sys::now_ns() - began) / MS;
    assert!(ms < 500, "{ms} ms");
    rig.promoted(i);
    drop(plain);
    rig.finish();
}

#[test]
fn who_is_out_of_reach_is_not_asked() {
    use crate::reach::{PRETENDED, Reach, Way};
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    PRETENDED.set(Some(Way { reach: Reach::No, ..Way::UNKNOWN }));
    let i = rig.connect(0, 1);
    let serial = rig.remote(0).serial;
    for _ in 0..5 {
        rig.chat(i);
        rig.settle();
    }
    assert_eq!((rig.remote(0).serial, rig.reason(i, C)), (serial, Reason::NotInReach));
    assert!(rig.conns[i][C].socket.is(crate::socket::State::Plain));
    // Behind a gateway, and not far away, once the route is looked up anew.
    PRETENDED.set(Some(Way { reach: Reach::Routed, ..Way::UNKNOWN }));
    testing::pass_ns(61_000 * MS);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    PRETENDED.set(None);
    rig.finish();
}

/// Where an address has no device that is the reason, whatever the routes say.
#[test]
fn without_a_device_there_is_no_question_of_reach() {
    use crate::reach::{PRETENDED, Reach, Way};
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    PRETENDED.set(Some(Way { reach: Reach::No, ..Way::UNKNOWN }));
    rig.wires.fail_call(&rig.hosts[0].fabric, Call::OpenDevice, 1, libc::ENODEV);
    let i = rig.connect(0, 1);
    for _ in 0..5 {
        rig.chat(i);
        rig.settle();
    }
    assert!(rig.conns[i][C].socket.is(crate::socket::State::Plain));
    assert_ne!(rig.reason(i, C), Reason::NotInReach);
    PRETENDED.set(None);
    rig.finish();
}
