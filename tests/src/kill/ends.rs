//! The two ends: the victim, one process per round, and the survivor, which lives through all
//! rounds.
//!
//! They share a page of counters with the runner. The victim notes there each byte for which a send
//! has returned, and each that it has received; the survivor says what it got, what it sent, and
//! when it saw the end.

use crate::ctx::recv_exact;
use crate::pattern::{Pattern, Rng};
use crate::sys::{self, Addr, Counters, E, Fd};
use std::io::{Lines, StdinLock};
use std::sync::atomic::Ordering;

// Counters in the shared page; all are the victim's.
/// Bytes for which a send has returned.
pub const SENT: usize = 0;
/// Bytes that it was about to send at most.
pub const INTENDED: usize = 1;
/// Bytes that a receive has returned.
pub const RECEIVED: usize = 2;
/// Not 0: a byte that it received was wrong.
pub const WRONG: usize = 3;
/// Not 0: it has the connection. One that it has not accepted yet is reset by its death.
pub const OPEN: usize = 4;
pub const COUNTERS: usize = 8;

/// What the two do until one dies.
pub const KINDS: [&str; 8] = [
    "ping-pong",
    "victim-sends",
    "both-send",
    "survivor-sends",
    // The survivor does not read: the victim's bytes lie where it left them, and its send blocks.
    "victim-blocks",
    // The victim reads slowly: the survivor dwells in a blocking send.
    "survivor-blocks",
    "rarely",
    "rarely-epoll",
];

/// The kinds in which the survivor is told when to stop what it does, because a connection whose
/// end dwells in the kernel is not moved.
pub const BLOCKING: [&str; 2] = ["victim-blocks", "survivor-blocks"];

const VICTIM_SEED: u64 = 71;
const SURVIVOR_SEED: u64 = 72;

// -------------------------------------------------------------------------------------- the victim

/// `victim COUNTERS SIBLING KIND dial ADDR | listen`
pub fn victim(args: &[&str]) {
    let [counters_path, sibling, kind, how, rest @ ..] = args else {
        return;
    };
    let counters = Counters::map(counters_path, COUNTERS);
    // The runner holds the other end, without the library. It stays open and silent until this
    // process dies.
    dial(sibling);
    let fd = if *how == "dial" {
        dial(rest.first().expect("an address"))
    } else {
        // The listener stays open, so that this process has an advert when it dies.
        listen_once().0
    };
    counters.at(OPEN).store(1, Ordering::SeqCst);
    let pattern = Pattern::new(VICTIM_SEED);
    let mut rng = Rng::new(u64::from(sys::getpid() as u32));
    match *kind {
        "ping-pong" => loop {
            let len = rng.range(1, 300);
            speak(fd, &counters, &pattern, len);
            let answer = recv_exact(fd, len);
            counters.at(RECEIVED).fetch_add(answer.len() as u64, Ordering::SeqCst);
            if answer != Pattern::new(SURVIVOR_SEED).bytes(0, len) {
                counters.at(WRONG).store(1, Ordering::SeqCst);
            }
        },
        "victim-sends" => loop {
            let len = rng.size(60_000);
            speak(fd, &counters, &pattern, len);
        },
        "both-send" => {
            let noted = Counters::map(counters_path, COUNTERS);
            std::thread::spawn(move || check_survivor(fd, &noted, 30_000, 0));
            loop {
                let len = rng.size(60_000);
                speak(fd, &counters, &pattern, len);
            }
        }
        "survivor-sends" => {
            speak(fd, &counters, &pattern, 100);
            check_survivor(fd, &counters, 30_000, 0);
        }
        "survivor-blocks" => {
            speak(fd, &counters, &pattern, 100);
            check_survivor(fd, &counters, 1000, 1);
        }
        "victim-blocks" => {
            for i in 0u64.. {
                let len = rng.size(5_000);
                speak(fd, &counters, &pattern, len);
                if i < 50 {
                    sys::sleep_ms(1);
                }
            }
        }
        _ => {
            // Rarely something: the survivor sleeps.
            for i in 0u64.. {
                speak(fd, &counters, &pattern, 100);
                sys::sleep_ms(if i < 50 { 1 } else { 15 });
            }
        }
    }
}

fn dial(address: &str) -> Fd {
    let addr = Addr::parse(address).expect("an address");
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    fd
}

/// Says where it listens, and accepts one connection; returns it and the listener.
fn listen_once() -> (Fd, Fd) {
    let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::bind(listener, sys::home()).expect("bind");
    sys::listen(listener, 5).expect("listen");
    println!("{}", sys::getsockname(listener).expect("name").text());
    (sys::accept(listener).expect("accept"), listener)
}

/// Sends the next bytes of the victim's stream, and notes them when the send has returned.
fn speak(fd: Fd, counters: &Counters, pattern: &Pattern, len: usize) {
    let mut at = counters.at(SENT).load(Ordering::SeqCst);
    let bytes = pattern.bytes(at, len);
    counters.at(INTENDED).store(at + len as u64, Ordering::SeqCst);
    let mut done = 0;
    while done < len {
        match sys::send(fd, &bytes[done..], libc::MSG_NOSIGNAL) {
            Ok(n) => {
                done += n;
                at += n as u64;
                counters.at(SENT).store(at, Ordering::SeqCst);
            }
            Err(E(libc::EINTR)) => {}
            Err(_) => sys::exit_now(3),
        }
    }
}

/// Receives to the end, at most `most` bytes every `pause_ms`, and checks them.
fn check_survivor(fd: Fd, counters: &Counters, most: usize, pause_ms: u64) {
    let pattern = Pattern::new(SURVIVOR_SEED);
    let mut buf = vec![0; most];
    let mut at = 0;
    while let Ok(n) = sys::recv(fd, &mut buf, 0) {
        if n == 0 {
            return;
        }
        counters.at(RECEIVED).store(at + n as u64, Ordering::SeqCst);
        if pattern.first_error(at, &buf[..n]).is_some() {
            counters.at(WRONG).store(1, Ordering::SeqCst);
        }
        at += n as u64;
        if pause_ms > 0 {
            sys::sleep_ms(pause_ms);
        }
    }
}

// ------------------------------------------------------------------------------------ the survivor

/// Reads orders from standard input, one per line: `KIND dial ADDR` or `KIND listen`; answers on
/// standard output.
pub fn survivor(_args: &[&str]) {
    sys::ignore_signal(libc::SIGPIPE);
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, how, rest @ ..] = &words[..] else {
            return;
        };
        let fd = if *how == "dial" {
            dial(rest.first().expect("an address"))
        } else {
            let (fd, listener) = listen_once();
            sys::close(listener).expect("close");
            fd
        };
        let name = |a: Result<Addr, E>| a.map(Addr::port).unwrap_or(0);
        println!("ports {} {}", name(sys::getsockname(fd)), name(sys::getpeername(fd)));
        let mut life = Life {
            fd,
            pattern: Pattern::new(VICTIM_SEED),
            received: 0,
            sent: 0,
            error: None,
            seen: None,
        };
        let end = match *kind {
            "ping-pong" => life.ping_pong(),
            "both-send" | "survivor-sends" => life.both_ways(),
            "victim-blocks" => life.late(&mut lines),
            "survivor-blocks" => life.by_blocking_send(&mut lines),
            "rarely-epoll" => life.by_epoll(),
            _ => life.by_recv(),
        };
        let seen = life.seen.unwrap_or_else(sys::now_ns);
        let waited = cpu_wait_ns("/proc/thread-self");
        let again = sys::recv(fd, &mut [0; 16], 0);
        let send = sys::send(fd, b"x", libc::MSG_NOSIGNAL);
        sys::close(fd).expect("close");
        let error = life.error.map_or(-1, |e| e as i64);
        println!(
            "end {end} {seen} {waited} {} {} {error} {again:?} {send:?}",
            life.received, life.sent
        );
    }
}

/// How long a thread has been runnable without running, by the scheduler's count; 0 where it keeps
/// none.
pub fn cpu_wait_ns(thread: &str) -> u64 {
    std::fs::read_to_string(format!("{thread}/schedstat"))
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

struct Life {
    fd: Fd,
    pattern: Pattern,
    received: u64,
    sent: u64,
    error: Option<u64>,
    /// When the end was seen, if that was before the last byte was received.
    seen: Option<u64>,
}

impl Life {
    fn take(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.pattern.first_error(self.received, bytes);
        }
        self.received += bytes.len() as u64;
    }

    fn ping_pong(&mut self) -> String {
        let mut buf = vec![0; 4096];
        let answer = Pattern::new(SURVIVOR_SEED);
        // The victim's next message begins where the last ended, so what was received is what is
        // answered.
        loop {
            match sys::recv(self.fd, &mut buf, 0) {
                Ok(0) => return "EOF".into(),
                Ok(n) => {
                    self.take(&buf[..n]);
                    let bytes = answer.bytes(0, n);
                    let sent = sys::send(self.fd, &bytes, libc::MSG_NOSIGNAL);
                    self.sent += sent.unwrap_or(0) as u64;
                }
                Err(e) => return format!("{e:?}"),
            }
        }
    }

    fn by_recv(&mut self) -> String {
        let mut buf = vec![0; 50_000];
        loop {
            match sys::recv(self.fd, &mut buf, 0) {
                Ok(0) => return "EOF".into(),
                Ok(n) => self.take(&buf[..n]),
                Err(e) => return format!("{e:?}"),
            }
        }
    }

    /// Reads until it is told to stop, and again, to the end, when it is told to go on.
    fn late(&mut self, lines: &mut Lines<StdinLock<'static>>) -> String {
        let mut buf = vec![0; 50_000];
        loop {
            let set = [(0, libc::POLLIN), (self.fd, libc::POLLIN)];
            let Ok((_, ready)) = sys::poll(&set, 20_000) else {
                continue;
            };
            if ready[0] != 0 {
                break;
            }
            match sys::recv(self.fd, &mut buf, libc::MSG_DONTWAIT) {
                Ok(0) => return "early-EOF".into(),
                Ok(n) => self.take(&buf[..n]),
                Err(E(libc::EAGAIN)) => {}
                Err(e) => return format!("early-{e:?}"),
            }
        }
        let _ = lines.next();
        println!("blocking");
        let _ = lines.next();
        self.by_recv()
    }

    /// Sends a little every millisecond until it is told to, then all that the connection takes.
    fn by_blocking_send(&mut self, lines: &mut Lines<StdinLock<'static>>) -> String {
        let answer = Pattern::new(SURVIVOR_SEED);
        let mut len = 100;
        let error = loop {
            if len == 100 && sys::await_events(0, libc::POLLIN, 1) != 0 {
                let _ = lines.next();
                println!("blocking");
                len = 60_000;
            }
            let bytes = answer.bytes(self.sent, len);
            match sys::send(self.fd, &bytes, libc::MSG_NOSIGNAL) {
                Ok(n) => self.sent += n as u64,
                Err(E(libc::EINTR)) => {}
                Err(e) => break e,
            }
        };
        self.seen = Some(sys::now_ns());
        match self.by_recv().as_str() {
            "EOF" | "ECONNRESET" => format!("{error:?}"),
            other => format!("{error:?}-then-{other}"),
        }
    }

    fn by_epoll(&mut self) -> String {
        let e = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll");
        let interest = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        sys::epoll_ctl(e, libc::EPOLL_CTL_ADD, self.fd, interest, 1).expect("ADD");
        let mut buf = vec![0; 50_000];
        let end = loop {
            if sys::epoll_wait(e, 4, 20_000).map(|v| v.len()) != Ok(1) {
                break "no-event".into();
            }
            match sys::recv(self.fd, &mut buf, libc::MSG_DONTWAIT) {
                Ok(0) => break "EOF".into(),
                Ok(n) => self.take(&buf[..n]),
                Err(E(libc::EAGAIN)) => {}
                Err(e) => break format!("{e:?}"),
            }
        };
        let _ = sys::close(e);
        end
    }

    /// Sends and receives at the same time, by poll.
    fn both_ways(&mut self) -> String {
        let answer = Pattern::new(SURVIVOR_SEED);
        let mut sending = true;
        // A send may be the call that the reset is told to; the receive then ends with EOF.
        let mut reset = false;
        let mut buf = vec![0; 50_000];
        loop {
            let events = if sending { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
            let revents = sys::await_events(self.fd, events, 20_000);
            if revents == 0 {
                return "no-event".into();
            }
            if revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
                match sys::recv(self.fd, &mut buf, libc::MSG_DONTWAIT) {
                    Ok(0) => return if reset { "ECONNRESET" } else { "EOF" }.into(),
                    Ok(n) => self.take(&buf[..n]),
                    Err(E(libc::EAGAIN)) => {}
                    Err(e) => return format!("{e:?}"),
                }
            }
            if sending && revents & libc::POLLOUT != 0 {
                let bytes = answer.bytes(self.sent, 20_000);
                match sys::send(self.fd, &bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                    Ok(n) => self.sent += n as u64,
                    Err(E(libc::EAGAIN)) => {}
                    Err(_) => (sending, reset) = (false, true),
                }
            }
        }
    }
}
