//! What a scenario sees: its transcript, its peer, and connections that are warmed up in the way
//! the mode asks for.
//!
//! Standard output is the transcript. Standard input is a SOCK_SEQPACKET socket to the runner,
//! which forwards messages between the two processes of a scenario and answers the question "is
//! this connection on the fast path yet?". Both are below 3, so a scenario may close everything
//! else.

use crate::carriers;
use crate::mover::{Receiver, Sender};
use crate::pattern::Pattern;
use crate::sys::{self, Addr, E, Fd};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CONTROL: Fd = 0;
const TRANSCRIPT: Fd = 1;
/// The runner's word that the other process has ended.
const GONE: &str = "gone";
const WARM_MESSAGE: usize = 64;
/// NETACC_LEVEL, NETACC_INFO.
pub const NETACC: (libc::c_int, libc::c_int) = (0x6e61, 1);

/// Which half of a scenario this process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Server,
    Client,
    /// One process holds both ends.
    Alone,
}

/// How connections are prepared before the scenario uses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warmup {
    /// A few exchanges, so that every mode sends the same calls.
    Fixed,
    /// Exchanges until the runner has seen both directions on the fast path.
    UntilFast,
    /// Exchanges until what the server sends has just moved: what the client sends moves in the
    /// middle of the scenario.
    UntilHalf,
    /// None: promotion, if any, happens in the middle of the scenario.
    None,
    /// Short connections before, one of which leaves its carrier to the scenario's.
    Lives,
}

/// The server accepts some connections of one request before the scenario's.
const SHORT_ONES: &str = "short connections come first";
/// Connections that leave no carrier behind before the next ones take their time; so long at most.
const SOME: usize = 500;
/// (Of the 14,000 ports that a `connect` takes without a carrier none comes again before.)
const MOST: usize = 10_000;
const CARRIER_IN: Duration = Duration::from_secs(10);

/// Tells the runner that a connection has the carrier of one before it.
pub fn say_carrier() {
    let _ = sys::send(CONTROL, b"K", libc::MSG_NOSIGNAL);
}

pub struct Ctx {
    pub role: Role,
    warmup: Warmup,
    /// None of the scenario's connections needs a carrier of one before it.
    own_carriers: bool,
    inbox: RefCell<VecDeque<String>>,
}

impl Ctx {
    pub fn new(role: Role, warmup: Warmup, own_carriers: bool) -> Ctx {
        Ctx { role, warmup, own_carriers, inbox: RefCell::new(VecDeque::new()) }
    }

    // ---------------------------------------------------------------------------------- transcript

    /// One line of the transcript.
    pub fn say(&self, line: impl AsRef<str>) {
        sys::be_late();
        let line = format!("{}\n", line.as_ref());
        let _ = sys::write(TRANSCRIPT, line.as_bytes());
    }

    /// A line with a labelled value.
    pub fn log(&self, label: &str, value: impl std::fmt::Debug) {
        self.say(format!("{label}: {value:?}"));
    }

    /// A line with the text of the bytes received.
    pub fn log_text(&self, label: &str, bytes: &[u8]) {
        self.say(format!("{label}: {:?}", String::from_utf8_lossy(bytes)));
    }

    /// The machine has not got what the scenario is about: it counts as skipped, where it is so on
    /// plain TCP, too. It goes on to its end, so that nobody waits for this process.
    pub fn skip(&self, why: &str) {
        self.post(&format!("X {why}"));
    }

    // --------------------------------------------------------------------------- the other process

    fn post(&self, message: &str) {
        let _ = sys::send(CONTROL, message.as_bytes(), libc::MSG_NOSIGNAL);
    }

    fn next(&self) -> String {
        let mut buf = [0u8; 4096];
        loop {
            match sys::recv(CONTROL, &mut buf, 0) {
                Ok(0) => panic!("the runner or the peer went away"),
                Ok(n) => return String::from_utf8_lossy(&buf[..n]).into_owned(),
                Err(E(libc::EINTR)) => {}
                Err(e) => panic!("control socket: {e:?}"),
            }
        }
    }

    /// Sends a word to the other process, beside the connection.
    pub fn tell(&self, text: &str) {
        self.post(&format!(">{text}"));
    }

    /// The next word of the other process.
    pub fn hear(&self) -> String {
        if let Some(text) = self.inbox.borrow_mut().pop_front() {
            return text;
        }
        loop {
            let message = self.next();
            if let Some(text) = message.strip_prefix('>') {
                return text.to_string();
            }
            assert!(message != GONE, "the other process ended");
        }
    }

    /// Whether a word of the other process is there.
    pub fn heard(&self) -> bool {
        !self.inbox.borrow().is_empty() || sys::await_events(CONTROL, libc::POLLIN, 0) != 0
    }

    /// Waits for exactly this word.
    pub fn wait(&self, expected: &str) {
        let text = self.hear();
        assert!(text == expected, "waited for {expected:?}, heard {text:?}");
    }

    /// Both processes reach this point.
    pub fn meet(&self, name: &str) {
        self.tell(name);
        self.wait(name);
    }

    /// The runner's answer to a question.
    fn ask(&self, question: &str) -> String {
        self.post(question);
        loop {
            let message = self.next();
            match message.strip_prefix('>') {
                Some(text) => self.inbox.borrow_mut().push_back(text.to_string()),
                None if message == GONE => {}
                None => return message,
            }
        }
    }

    // --------------------------------------------------------------------------------- connections

    /// A listener on a free port of [`sys::home`].
    pub fn listener(&self) -> Fd {
        self.listener_on(sys::home())
    }

    pub fn listener_on(&self, addr: Addr) -> Fd {
        let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
        sys::setopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).expect("SO_REUSEADDR");
        sys::bind(fd, addr).expect("bind");
        sys::listen(fd, 128).expect("listen");
        fd
    }

    /// Tells the other process where we listen.
    pub fn publish(&self, listener: Fd) {
        self.tell(&sys::getsockname(listener).expect("getsockname").text());
    }

    pub fn publish_port(&self, host: Addr, listener: Fd) {
        self.tell(&host.with_port(sys::getsockname(listener).expect("getsockname").port()).text());
    }

    pub fn hear_addr(&self) -> Addr {
        let mut text = self.hear();
        if text == SHORT_ONES {
            text = self.hear();
            let addr = Addr::parse(&text).expect("an address");
            self.make_short_ones(addr);
        }
        Addr::parse(&text).unwrap_or_else(|| panic!("no address: {text:?}"))
    }

    /// The server end of the scenario's connection: listens, accepts one, warms up; the listener is
    /// closed.
    pub fn server(&self) -> Fd {
        let listener = self.listener_behind_short_ones();
        let fd = self.accept(listener);
        sys::close(listener).expect("close");
        fd
    }

    /// A listener that is published, and has had the connections that come before the scenario's.
    pub fn listener_behind_short_ones(&self) -> Fd {
        let listener = self.listener();
        self.behind_short_ones(listener);
        listener
    }

    /// The same of one that is there already.
    pub fn behind_short_ones(&self, listener: Fd) {
        if self.warmup == Warmup::Lives {
            self.tell(SHORT_ONES);
        }
        self.publish(listener);
        self.accept_short_ones(listener);
    }

    /// Accepts and warms up.
    pub fn accept(&self, listener: Fd) -> Fd {
        let fd = sys::accept(listener).expect("accept");
        self.warm_server(fd);
        fd
    }

    /// The client end of the scenario's connection.
    pub fn client(&self) -> Fd {
        self.connect(self.hear_addr())
    }

    /// Connections of one request and one reply, until the client has seen a port again.
    fn accept_short_ones(&self, listener: Fd) {
        let mut more = self.warmup == Warmup::Lives;
        while more {
            let fd = sys::accept(listener).expect("accept");
            let kind = recv_exact(fd, 1);
            send_all(fd, &kind);
            assert_eq!(sys::recv(fd, &mut [0; 8], 0), Ok(0));
            sys::close(fd).expect("close");
            more = kind[0] != b'E';
            self.tell("short");
        }
    }

    fn make_short_ones(&self, addr: Addr) {
        let (mut ports, mut again) = (std::collections::BTreeSet::new(), 0);
        let (mut made, begun) = (0, Instant::now());
        loop {
            made += 1;
            let enough = match self.own_carriers {
                true => made == SOME,
                false => made == MOST || begun.elapsed() > CARRIER_IN * sys::patience(),
            };
            if made > SOME {
                // (A busy machine needs time, not connections.)
                sys::sleep_ms(1);
            }
            let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
            sys::connect(fd, addr).expect("connect");
            again += u32::from(!ports.insert(sys::getsockname(fd).expect("getsockname").port()));
            let last = again > 1 || enough;
            send_all(fd, if last { b"E" } else { b"P" });
            recv_exact(fd, 1);
            sys::close(fd).expect("close");
            assert_eq!(self.hear(), "short");
            if last {
                break;
            }
        }
        self.post(&format!("P {} {made}", u32::from(again > 1)));
        carriers::remember(ports.into_iter().collect());
    }

    /// Connects and warms up.
    pub fn connect(&self, addr: Addr) -> Fd {
        let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, addr).expect("connect");
        self.warm_client(fd);
        fd
    }

    /// Several connections at once, in order.
    pub fn servers(&self, count: usize) -> Vec<Fd> {
        let listener = self.listener();
        self.publish(listener);
        let fds = (0..count).map(|_| self.accept(listener)).collect();
        sys::close(listener).expect("close");
        fds
    }

    pub fn clients(&self, count: usize) -> Vec<Fd> {
        let addr = self.hear_addr();
        (0..count).map(|_| self.connect(addr)).collect()
    }

    /// As [`Ctx::servers`], of so many that they are warmed up together.
    pub fn many_servers(&self, count: usize) -> Vec<Fd> {
        let listener = self.listener();
        self.publish(listener);
        let accept = || sys::accept(listener).expect("accept");
        let fds: Vec<Fd> = (0..count).map(|_| accept()).collect();
        sys::close(listener).expect("close");
        let mut more = self.warms_up();
        while more {
            for fd in &fds {
                more = answer_once(*fd);
            }
        }
        fds
    }

    /// As [`Ctx::clients`], of so many that they are warmed up together.
    pub fn many_clients(&self, count: usize) -> Vec<Fd> {
        let addr = self.hear_addr();
        let connect = || {
            let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
            sys::connect(fd, addr).expect("connect");
            fd
        };
        let fds: Vec<Fd> = (0..count).map(|_| connect()).collect();
        if !self.warms_up() {
            return fds;
        }
        let round = |kind| fds.iter().map(|fd| self.exchange(*fd, kind, || ())).max().unwrap_or(0);
        let mut peer = round(b'P');
        while !self.all_are_warm(&fds, peer) {
            peer = round(b'P');
        }
        round(b'E');
        fds
    }

    fn all_are_warm(&self, fds: &[Fd], peer_pid: i32) -> bool {
        match self.warmup {
            Warmup::UntilFast => self.all_settled(fds.len(), peer_pid),
            _ if self.stops_half_way() => {
                let left = fds.iter().copied().find(|fd| !receives_fast(*fd));
                self.has_moved(left, fds.len())
            }
            _ => true,
        }
    }

    /// A connection with both ends in this thread; returns (connecting end, accepted end).
    pub fn pair(&self) -> (Fd, Fd) {
        let listener = self.listener();
        let addr = sys::getsockname(listener).expect("getsockname");
        let near = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(near, addr).expect("connect");
        let far = sys::accept(listener).expect("accept");
        sys::close(listener).expect("close");
        self.warm_pair(near, far);
        (near, far)
    }

    /// The server's half of the warm-up: answers each message with our pid until the client says
    /// that it is enough.
    pub fn warm_server(&self, fd: Fd) {
        self.answer(fd, || ());
    }

    /// As [`Ctx::warm_server`], where a receive does not wait.
    pub fn warm_server_polling(&self, fd: Fd) {
        self.answer(fd, || await_message(fd));
    }

    fn answer(&self, fd: Fd, before: impl Fn()) {
        if self.warms_up() {
            answer_warm_up(fd, before);
        }
    }

    /// Whether connections have a warm-up in this mode.
    pub fn warms_up(&self) -> bool {
        !matches!(self.warmup, Warmup::None | Warmup::Lives)
    }

    /// Whether that is over when what the server sends has moved.
    fn stops_half_way(&self) -> bool {
        self.warmup == Warmup::UntilHalf
    }

    /// The client's half of the warm-up.
    pub fn warm_client(&self, fd: Fd) {
        self.warm(fd, || ());
    }

    /// As [`Ctx::warm_client`], where a receive does not wait.
    pub fn warm_client_polling(&self, fd: Fd) {
        self.warm(fd, || await_message(fd));
    }

    fn warm(&self, fd: Fd, before: impl Fn()) {
        if !self.warms_up() {
            return;
        }
        let mut peer = self.exchange(fd, b'P', &before);
        while !self.is_warm(fd, peer) {
            peer = self.exchange(fd, b'P', &before);
        }
        self.exchange(fd, b'E', &before);
    }

    /// Whether the warm-up of a connection of this end's is over.
    fn is_warm(&self, fd: Fd, peer_pid: i32) -> bool {
        match self.warmup {
            Warmup::UntilFast => self.settled(fd, peer_pid),
            _ if self.stops_half_way() => self.has_moved((!receives_fast(fd)).then_some(fd), 1),
            _ => true,
        }
    }

    /// The client's half of a message of the warm-up; the server's process id. Where the warm-up
    /// stops half way, the client's messages have a flag that says nothing on TCP, and that the
    /// rings do not carry.
    fn exchange(&self, fd: Fd, kind: u8, before: impl Fn()) -> i32 {
        send_all_with(fd, &[kind; WARM_MESSAGE], self.warm_flags());
        before();
        let answer = recv_exact(fd, WARM_MESSAGE);
        i32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]])
    }

    fn warm_flags(&self) -> libc::c_int {
        if self.stops_half_way() { libc::MSG_DONTROUTE } else { 0 }
    }

    /// Whether each connection of this mode is on the fast path when its warm-up is over.
    pub fn waits_until_fast(&self) -> bool {
        self.warmup == Warmup::UntilFast
    }

    /// Whether a connection of this mode has to come onto the fast path, if its scenario says so.
    pub fn must_be_fast(&self) -> bool {
        matches!(self.warmup, Warmup::UntilFast | Warmup::UntilHalf)
    }

    /// The warm-up of a connection with both ends in this thread.
    pub fn warm_pair(&self, near: Fd, far: Fd) {
        if !self.warms_up() {
            return;
        }
        loop {
            for (from, to, flags) in [(near, far, self.warm_flags()), (far, near, 0)] {
                send_all_with(from, &[1; WARM_MESSAGE], flags);
                recv_exact(to, WARM_MESSAGE);
            }
            if self.is_warm(near, sys::getpid()) {
                return;
            }
        }
    }

    /// Tells the runner how far a warm-up is that stops half way: `left` is one of its `count`
    /// connections to which nothing comes on the fast path yet. True: that is so of none, or the
    /// runner has given up.
    fn has_moved(&self, left: Option<Fd>, count: usize) -> bool {
        let Some(fd) = left else {
            self.post("C");
            return true;
        };
        let (Ok(local), Ok(peer)) = (sys::getsockname(fd), sys::getpeername(fd)) else {
            return true;
        };
        let (pid, local, peer) = (sys::getpid(), local.port(), peer.port());
        self.ask(&format!("H {pid} {local} {peer} {count}")) != "no"
    }

    /// Has the runner seen the sending direction on the fast path (or given up on it)? True in
    /// modes that do not wait for that.
    pub fn sends_fast(&self, fd: Fd) -> bool {
        let (Ok(local), Ok(peer)) = (sys::getsockname(fd), sys::getpeername(fd)) else {
            return true;
        };
        if self.warmup != Warmup::UntilFast {
            return true;
        }
        let answer = self.ask(&format!("T {} {} {}", sys::getpid(), local.port(), peer.port()));
        answer != "no"
    }

    /// As [`Ctx::sends_fast`], of both directions; `peer_pid` has the other end.
    pub fn is_fast(&self, fd: Fd, peer_pid: i32) -> bool {
        self.warmup != Warmup::UntilFast || self.settled(fd, peer_pid)
    }

    /// Has the runner seen both directions on the fast path (or given up on it)?
    fn settled(&self, fd: Fd, peer_pid: i32) -> bool {
        let (Ok(local), Ok(peer)) = (sys::getsockname(fd), sys::getpeername(fd)) else {
            return true;
        };
        let answer =
            self.ask(&format!("W {} {} {} {}", sys::getpid(), peer_pid, local.port(), peer.port()));
        answer == "yes" || answer == "give up"
    }

    /// The same of so many connections of both processes.
    fn all_settled(&self, count: usize, peer_pid: i32) -> bool {
        let answer = self.ask(&format!("A {} {peer_pid} {count}", sys::getpid()));
        answer == "yes" || answer == "give up"
    }

    /// How many connections of this process the runner sees on the fast path.
    pub fn count_fast(&self) -> usize {
        self.ask(&format!("N {}", sys::getpid())).parse().expect("a number")
    }

    /// Asks the runner to check, in the modes with that warm-up, that a connection still is on the
    /// fast path.
    pub fn still_fast(&self, fd: Fd) {
        self.outgrows(fd);
    }

    /// The same, and whether it has outgrown its small rings: what it sends is TCP's then, until
    /// it comes back with whole ones.
    pub fn outgrows(&self, fd: Fd) -> bool {
        let (Ok(local), Ok(peer)) = (sys::getsockname(fd), sys::getpeername(fd)) else {
            return false;
        };
        self.ask(&format!("S {} {} {}", sys::getpid(), local.port(), peer.port())) == "outgrown"
    }

    /// Asks the runner to check, in the modes that are named, that `netacc_ss` comes to show this
    /// reason for a connection of this process. Reasons that come with time need no call of ours
    /// for that.
    pub fn expect_reason(&self, fd: Fd, reasons: &[(&str, &str)]) {
        let (Ok(local), Ok(peer)) = (sys::getsockname(fd), sys::getpeername(fd)) else {
            return;
        };
        let reasons: Vec<String> = reasons.iter().map(|(m, r)| format!("{m}={r}")).collect();
        self.ask(&format!(
            "R {} {} {} {}",
            sys::getpid(),
            local.port(),
            peer.port(),
            reasons.join(",")
        ));
    }

    /// In the modes with the library at one end, at that end: how often this process's waits have
    /// looked again, and how many of them have found something so. Elsewhere as if it were enough.
    pub fn looks(&self) -> (u64, u64) {
        let answer = self.ask(&format!("L {}", sys::getpid()));
        let counts = answer.split_once(' ');
        counts.and_then(|(n, won)| Some((n.parse().ok()?, won.parse().ok()?))).unwrap_or((0, 1))
    }

    /// Asks the runner to check, in the modes shm and rdma, that the connection of this process
    /// comes to be on TCP both ways, and that `netacc_ss` shows this reason for it.
    pub fn went_back(&self, fd: Fd, reason: &str) {
        self.check_reason('B', fd, reason);
    }

    /// As [`Ctx::went_back`], of the sending direction alone.
    pub fn sends_over_tcp(&self, fd: Fd, reason: &str) {
        self.check_reason('D', fd, reason);
    }

    /// In mode rdma, where the way back to TCP takes an answer of the peer's library: waits until
    /// this process's end is on TCP both ways.
    pub fn is_back(&self, fd: Fd) {
        self.check_reason('G', fd, "");
    }

    /// Waits until an option that only TCP has counts for all that comes: until this process's end
    /// is on TCP both ways. `setsockopt` itself waits for the peer's library for so long and no
    /// longer (docs/manual/limits.md); on a busy machine what is in a ring may come behind it.
    pub fn option_counts(&self, fd: Fd) {
        self.check_reason('O', fd, "");
    }

    fn check_reason(&self, kind: char, fd: Fd, reason: &str) {
        let local = sys::getsockname(fd).expect("getsockname");
        let peer = sys::getpeername(fd).expect("getpeername");
        let question =
            format!("{kind} {} {} {} {reason}", sys::getpid(), local.port(), peer.port());
        while self.ask(&question) == "no" {
            // (The peer's library may have been late: then a call of the program's takes the
            // connection the rest of the way, as `recv` does that finds nothing.)
            let _ = sys::recv(fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        }
    }

    // ------------------------------------------------------------------------------------- streams

    /// The sending half of a stream of bytes that depend on `seed`.
    pub fn sender(&self, fd: Fd, seed: u64) -> Sender {
        Sender::new(fd, seed + 100, Pattern::new(seed))
    }

    pub fn receiver(&self, fd: Fd, seed: u64) -> Receiver {
        Receiver::new(fd, seed + 200, Pattern::new(seed))
    }

    /// Sends `total` pattern bytes with plain blocking sends.
    pub fn pour(&self, fd: Fd, seed: u64, total: usize) {
        send_all(fd, &Pattern::new(seed).bytes(0, total));
    }

    /// Receives `total` pattern bytes and logs whether they are right.
    pub fn drain(&self, fd: Fd, seed: u64, total: usize) {
        let mut receiver = self.receiver(fd, seed);
        while receiver.received < total as u64 {
            let mut buf = vec![0; (total - receiver.received as usize).min(65536)];
            match sys::recv(fd, &mut buf, 0) {
                Ok(0) => {
                    self.say("unexpected EOF");
                    break;
                }
                Ok(n) => receiver.accept(&buf[..n]),
                Err(E(libc::EINTR)) => {}
                Err(e) => {
                    self.log("unexpected", e);
                    break;
                }
            }
        }
        self.log("drained", receiver.verdict());
    }

    /// Receives pattern bytes to EOF; logs count, correctness and what ended it.
    pub fn drain_to_end(&self, fd: Fd, seed: u64) {
        let mut receiver = self.receiver(fd, seed);
        let mut buf = vec![0; 65536];
        let end = loop {
            match sys::recv(fd, &mut buf, 0) {
                Ok(0) => break "EOF".to_string(),
                Ok(n) => receiver.accept(&buf[..n]),
                Err(E(libc::EINTR)) => {}
                Err(e) => break format!("{e:?}"),
            }
        };
        self.say(format!("drained to end: {}, then {end}", receiver.verdict()));
    }

    // ------------------------------------------------------------------------------------ children

    /// Runs `body` in a forked child; its text comes back when the child is joined.
    pub fn child(&self, body: impl FnOnce(&Ctx) -> String) -> Child {
        let [from, to] = sys::pipe();
        match sys::fork().expect("fork") {
            0 => {
                let _ = sys::close(from);
                let text = body(self);
                let _ = sys::write(to, text.as_bytes());
                sys::exit_now(0)
            }
            pid => {
                let _ = sys::close(to);
                Child { pid, from }
            }
        }
    }

    /// A child that replaces itself by this program in the part of `helper`; it answers on its
    /// standard output.
    pub fn helper(
        &self,
        name: &str,
        args: &[&str],
        keep_preload: bool,
        stdin: Option<Fd>,
    ) -> Child {
        let [from, to] = sys::pipe();
        match sys::fork().expect("fork") {
            0 => {
                if let Some(fd) = stdin {
                    let _ = sys::dup2(fd, 0);
                }
                let _ = sys::dup2(to, 1);
                let program = own_program();
                let mut argv = vec![program.as_str(), "helper", name];
                argv.extend_from_slice(args);
                sys::exec(&program, &argv, keep_preload);
                sys::exit_now(99)
            }
            pid => {
                let _ = sys::close(to);
                Child { pid, from }
            }
        }
    }

    /// A child that replaces itself by any program, with the given fd as its standard input and
    /// output.
    pub fn exec_on(&self, fd: Fd, path: &str, args: &[&str], keep_preload: bool) -> libc::pid_t {
        match sys::fork().expect("fork") {
            0 => {
                let _ = sys::dup2(fd, 0);
                let _ = sys::dup2(fd, 1);
                let _ = sys::close(fd);
                sys::exec(path, args, keep_preload);
                sys::exit_now(99)
            }
            pid => pid,
        }
    }
}

/// The server's half of a warm-up.
pub fn answer_warm_up(fd: Fd, before: impl Fn()) {
    loop {
        before();
        if !answer_once(fd) {
            return;
        }
    }
}

/// Whether what comes on this connection comes on the fast path, as the library says itself.
pub fn receives_fast(fd: Fd) -> bool {
    const RX_PATH: usize = 3;
    path_told(fd, RX_PATH) != 0
}

/// The same of what this end sends.
pub fn sends_on_a_fast_path(fd: Fd) -> bool {
    sends_by(fd) != 0
}

/// By which path this end sends, as the library says itself (`netacc.h`); TCP without one.
pub fn sends_by(fd: Fd) -> u8 {
    const TX_PATH: usize = 2;
    path_told(fd, TX_PATH)
}

fn path_told(fd: Fd, field: usize) -> u8 {
    let told = sys::getopt_bytes(fd, NETACC.0, NETACC.1, 24).unwrap_or_default();
    told.chunks_exact(4).nth(field).map_or(0, |path| path[0])
}

/// One message of it. False: it was the last.
fn answer_once(fd: Fd) -> bool {
    let message = recv_exact(fd, WARM_MESSAGE);
    let mut answer = [0u8; WARM_MESSAGE];
    answer[..4].copy_from_slice(&sys::getpid().to_ne_bytes());
    send_all(fd, &answer);
    message[0] != b'E'
}

/// The path of this program.
pub fn own_program() -> String {
    std::env::var("NETACC_TEST_PROGRAM").unwrap_or_else(|_| "/proc/self/exe".into())
}

/// A child process and the pipe that brings its text.
pub struct Child {
    pub pid: libc::pid_t,
    from: Fd,
}

impl Child {
    /// What the child wrote, and how it ended.
    pub fn join(self) -> String {
        let text = read_to_end(self.from);
        let _ = sys::close(self.from);
        match sys::wait_child(self.pid) {
            Ok(0) => text,
            Ok(status) => format!("{text} (status {status})"),
            Err(e) => format!("{text} (wait: {e:?})"),
        }
    }

    /// The next bytes that the child wrote.
    pub fn line(&self) -> String {
        let mut line = Vec::new();
        let mut byte = [0u8];
        while sys::read(self.from, &mut byte) == Ok(1) && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line).into_owned()
    }
}

pub fn read_to_end(fd: Fd) -> String {
    let mut out = Vec::new();
    let mut buf = [0u8; 4096];
    loop {
        match sys::read(fd, &mut buf) {
            Ok(0) => break,
            Ok(n) => out.extend_from_slice(&buf[..n]),
            Err(E(libc::EINTR)) => {}
            Err(e) => {
                out.extend_from_slice(format!("<{e:?}>").as_bytes());
                break;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Sends everything with blocking calls; panics on an error, which fails the scenario.
pub fn send_all(fd: Fd, bytes: &[u8]) {
    send_all_with(fd, bytes, 0);
}

fn send_all_with(fd: Fd, bytes: &[u8], flags: libc::c_int) {
    let mut at = 0;
    while at < bytes.len() {
        match sys::send(fd, &bytes[at..], flags | libc::MSG_NOSIGNAL) {
            Ok(n) => at += n,
            Err(E(libc::EINTR)) => {}
            Err(e) => panic!("send_all on fd {fd}: {e:?} after {at} of {} bytes", bytes.len()),
        }
    }
}

/// Receives exactly `len` bytes with blocking calls; panics on EOF or an error.
pub fn recv_exact(fd: Fd, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let mut at = 0;
    while at < len {
        match sys::recv(fd, &mut buf[at..], 0) {
            Ok(0) => panic!("recv_exact on fd {fd}: EOF after {at} of {len} bytes"),
            Ok(n) => at += n,
            Err(E(libc::EINTR)) => {}
            Err(e) => panic!("recv_exact on fd {fd}: {e:?} after {at} of {len} bytes"),
        }
    }
    buf
}

/// As a program without blocking calls waits, for a message of the warm-up.
fn await_message(fd: Fd) {
    sys::await_events(fd, libc::POLLIN, 10_000);
    await_bytes(fd, WARM_MESSAGE);
}

/// Waits until at least `len` bytes can be read, as FIONREAD tells; the bytes stay.
pub fn await_bytes(fd: Fd, len: usize) {
    let deadline = sys::now_ns() + 10_000_000_000 * u64::from(sys::patience());
    while sys::fionread(fd).unwrap_or(0) < len as i32 {
        assert!(
            sys::now_ns() < deadline,
            "await_bytes on fd {fd}: {:?} of {len}",
            sys::fionread(fd)
        );
        let _ = sys::poll(&[], 1);
    }
}

/// Receives to the end, or an error, in pieces of up to that size: how many bytes, and their sum.
pub fn sum_to_end(fd: Fd, piece: usize) -> (u64, u64) {
    let (mut n, mut sum) = (0u64, 0u64);
    let mut buf = vec![0; piece];
    while let Ok(got @ 1..) = sys::recv(fd, &mut buf, 0) {
        n += got as u64;
        sum += buf[..got].iter().map(|b| u64::from(*b)).sum::<u64>();
    }
    (n, sum)
}

/// Runs `body` in a thread, and returns when that thread sleeps in the kernel: it waits inside the
/// call under test.
pub fn blocked<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    all_blocked([body]).pop().expect("a thread")
}

/// The same of many threads at once.
pub fn all_blocked<T: Send + 'static>(
    bodies: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'static>,
) -> Vec<JoinHandle<T>> {
    let (tell, hear) = std::sync::mpsc::channel();
    let mut handles = Vec::new();
    for body in bodies {
        let tell = tell.clone();
        handles.push(std::thread::spawn(move || {
            let _ = tell.send(sys::gettid());
            body()
        }));
    }
    let tids: Vec<i32> = handles.iter().map(|_| hear.recv().unwrap_or(0)).collect();
    let _ = all_come_to_sleep(&tids);
    handles
}

/// Waits until a thread of this process sleeps in the kernel. False: it does not, for seconds.
pub fn comes_to_sleep(tid: i32) -> bool {
    all_come_to_sleep(&[tid])
}

fn all_come_to_sleep(tids: &[i32]) -> bool {
    let deadline = sys::now_ns() + 5_000_000_000 * u64::from(sys::patience());
    let mut asleep = 0;
    // Asleep for a while, not just on the way into the call (the sending of the id may sleep for a
    // moment).
    while asleep < 6 && sys::now_ns() < deadline {
        let _ = sys::poll(&[], 5);
        let states: Vec<Option<char>> = tids.iter().map(|tid| state_of(*tid)).collect();
        asleep = if states.iter().all(|s| *s == Some('S')) { asleep + 1 } else { 0 };
        if states.contains(&None) {
            break;
        }
    }
    asleep == 6
}

/// What a thread of this process does, as the kernel says it. `None`: it has ended.
fn state_of(tid: i32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    text.rsplit(") ").next()?.chars().next()
}
