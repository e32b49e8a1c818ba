//! `kill -9` of either end in the middle of traffic.
//!
//! A survivor lives through all rounds; a victim per round is killed at a random moment. Victim and survivor share a
//! page of counters with the runner: the victim notes each byte for which a send has returned, so that the runner knows
//! what the survivor must have received. The survivor notes when it saw the end, and what it still holds.

use crate::ctx::recv_exact;
use crate::pattern::{Pattern, Rng};
use crate::runner::{Totals, library_env, own_program, take_log};
use crate::ss::Build;
use crate::sys::{self, Addr, Counters, E, Fd, LOOPBACK};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

// Counters in the shared page.
const SENT: usize = 0;
const INTENDED: usize = 1;
const VICTIM_ERROR: usize = 2;
const COUNTERS: usize = 8;

/// What the two do until one dies.
const KINDS: [&str; 6] = [
    "ping-pong",
    "victim-sends",
    "both-send",
    "survivor-sends",
    "rarely",
    "rarely-epoll",
];

const VICTIM_SEED: u64 = 71;
const SURVIVOR_SEED: u64 = 72;

// ---------------------------------------------------------------------------------------------- the victim

/// `victim COUNTERS KIND dial ADDR | listen`
pub fn victim(args: &[&str]) {
    let [counters_path, kind, how, rest @ ..] = args else {
        return;
    };
    let counters = Counters::map(counters_path, COUNTERS);
    let fd = open_connection(how, rest);
    let pattern = Pattern::new(VICTIM_SEED);
    let mut rng = Rng::new(u64::from(sys::getpid() as u32));
    match *kind {
        "ping-pong" => loop {
            let len = rng.range(1, 300);
            speak(fd, &counters, &pattern, len);
            if recv_exact(fd, len) != Pattern::new(SURVIVOR_SEED).bytes(0, len) {
                counters.at(VICTIM_ERROR).store(1, Ordering::SeqCst);
            }
        },
        "victim-sends" => loop {
            let len = rng.size(60_000);
            speak(fd, &counters, &pattern, len);
        },
        "both-send" => {
            let noted = Counters::map(counters_path, COUNTERS);
            std::thread::spawn(move || check_survivor(fd, &noted));
            loop {
                let len = rng.size(60_000);
                speak(fd, &counters, &pattern, len);
            }
        }
        "survivor-sends" => {
            speak(fd, &counters, &pattern, 100);
            check_survivor(fd, &counters);
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

fn open_connection(how: &str, rest: &[&str]) -> Fd {
    if how == "dial" {
        let addr = rest
            .first()
            .and_then(|a| Addr::parse(a))
            .expect("an address");
        let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, addr).expect("connect");
        return fd;
    }
    let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::bind(listener, LOOPBACK).expect("bind");
    sys::listen(listener, 5).expect("listen");
    println!("{}", sys::getsockname(listener).expect("name").text());
    let fd = sys::accept(listener).expect("accept");
    sys::close(listener).expect("close");
    fd
}

/// Sends the next bytes of the victim's stream, and notes them when the send has returned.
fn speak(fd: Fd, counters: &Counters, pattern: &Pattern, len: usize) {
    let mut at = counters.at(SENT).load(Ordering::SeqCst);
    let bytes = pattern.bytes(at, len);
    counters
        .at(INTENDED)
        .store(at + len as u64, Ordering::SeqCst);
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

fn check_survivor(fd: Fd, counters: &Counters) {
    let pattern = Pattern::new(SURVIVOR_SEED);
    let mut buf = vec![0; 30_000];
    let mut at = 0;
    while let Ok(n) = sys::recv(fd, &mut buf, 0) {
        if n == 0 {
            return;
        }
        if pattern.first_error(at, &buf[..n]).is_some() {
            counters.at(VICTIM_ERROR).store(1, Ordering::SeqCst);
        }
        at += n as u64;
    }
}

// ---------------------------------------------------------------------------------------------- the survivor

/// Reads orders from standard input, one per line: `KIND dial ADDR` or `KIND listen`; answers on standard output.
pub fn survivor(_args: &[&str]) {
    sys::ignore_signal(libc::SIGPIPE);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, how, rest @ ..] = &words[..] else {
            return;
        };
        let fd = open_connection(how, rest);
        let name = |a: Result<Addr, E>| a.map(Addr::port).unwrap_or(0);
        println!(
            "ports {} {}",
            name(sys::getsockname(fd)),
            name(sys::getpeername(fd))
        );
        let mut life = Life {
            fd,
            pattern: Pattern::new(VICTIM_SEED),
            received: 0,
            error: None,
        };
        let end = match *kind {
            "ping-pong" => life.ping_pong(),
            "both-send" | "survivor-sends" => life.both_ways(),
            "rarely-epoll" => life.by_epoll(),
            _ => life.by_recv(),
        };
        let seen = sys::now_ns();
        let again = sys::recv(fd, &mut [0; 16], 0);
        let send = sys::send(fd, b"x", libc::MSG_NOSIGNAL);
        sys::close(fd).expect("close");
        let (fds, maps) = holdings();
        let error = life.error.map_or(-1, |e| e as i64);
        println!(
            "end {end} {seen} {} {error} {fds} {maps} {again:?} {send:?}",
            life.received
        );
    }
}

/// What this process holds: fds, and mappings of anonymous memory files.
fn holdings() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd")
        .map(Iterator::count)
        .unwrap_or(0);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    (
        fds,
        maps.lines()
            .filter(|l| l.contains("memfd:") || l.contains("/dev/shm/"))
            .count(),
    )
}

struct Life {
    fd: Fd,
    pattern: Pattern,
    received: u64,
    error: Option<u64>,
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
        // The victim's next message begins where the last ended, so what was received is what is answered.
        loop {
            match sys::recv(self.fd, &mut buf, 0) {
                Ok(0) => return "EOF".into(),
                Ok(n) => {
                    self.take(&buf[..n]);
                    let bytes = answer.bytes(0, n);
                    let _ = sys::send(self.fd, &bytes, libc::MSG_NOSIGNAL);
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
        let mut sent = 0u64;
        let mut sending = true;
        // A send may be the call that the reset is told to; the receive then ends with EOF.
        let mut reset = false;
        let mut buf = vec![0; 50_000];
        loop {
            let events = if sending {
                libc::POLLIN | libc::POLLOUT
            } else {
                libc::POLLIN
            };
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
                let bytes = answer.bytes(sent, 20_000);
                match sys::send(self.fd, &bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                    Ok(n) => sent += n as u64,
                    Err(E(libc::EAGAIN)) => {}
                    Err(_) => (sending, reset) = (false, true),
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------- the runner

struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talker {
    fn start(args: &[&str], build: &Build, preload: bool) -> Talker {
        let mut command = Command::new(own_program());
        command
            .arg("helper")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        library_env(&mut command, build, preload);
        let mut child = command.spawn().expect("start a process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Talker {
            input: child.stdin.take(),
            output,
            child,
        }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn order(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.output.read_line(&mut line);
        line.trim().to_string()
    }
}

/// One round's result.
struct Round {
    end: String,
    latency_ns: u64,
    received: u64,
    sent: u64,
    intended: u64,
    problem: Option<String>,
    fds: usize,
    maps: usize,
    accelerated: bool,
}

pub fn run(words: &[&str]) -> ExitCode {
    let rounds = crate::option(words, "--rounds", 200usize);
    let seed = crate::option(words, "--seed", u64::from(std::process::id()));
    let build = Build::find();
    let totals = Totals::default();
    println!("kill: seed {seed}");
    campaign(&build, false, rounds.min(30), seed, &totals);
    if build.is_there() {
        campaign(&build, true, rounds, seed, &totals);
    } else {
        println!(
            "no library at {}: only plain TCP is run",
            build.library.display()
        );
    }
    let _ = take_log();
    println!("\nkill: {}", totals.line());
    if totals.ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn shared_files() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("/dev/shm")
        .map(|dir| {
            dir.flatten()
                .map(|e| e.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

fn campaign(build: &Build, preload: bool, rounds: usize, seed: u64, totals: &Totals) {
    let mode = if preload { "shm" } else { "plain" };
    let files_before = shared_files();
    let path = std::env::temp_dir().join(format!("netacc-kill-{}", std::process::id()));
    let path = path.to_string_lossy().into_owned();
    let mut survivor = Talker::start(&["survivor"], build, preload);
    let mut rng = Rng::new(seed);
    let mut results: Vec<Round> = Vec::new();
    let mut bad = Vec::new();
    for i in 0..rounds {
        let kind = KINDS[i % KINDS.len()];
        let dial = (i / KINDS.len()).is_multiple_of(2);
        let round = one(build, preload, &mut survivor, kind, dial, &path, &mut rng);
        if let Some(problem) = &round.problem {
            bad.push(format!(
                "round {i} ({kind}, survivor {}): {problem}",
                if dial { "serves" } else { "dials" }
            ));
            if bad.len() >= 5 {
                break;
            }
        }
        results.push(round);
    }
    let _ = std::fs::remove_file(&path);
    drop(survivor.input.take());
    let status = survivor.child.wait();
    let verdict = |name: &str, problem: Option<String>| match problem {
        None => {
            totals.pass();
            println!("test kill/{name} [{mode}] ... ok");
        }
        Some(text) => {
            totals.fail();
            println!(
                "test kill/{name} [{mode}] ... FAILED\n    {}",
                text.replace('\n', "\n    ")
            );
        }
    };
    report(&results);
    verdict(
        "bytes-and-end",
        if bad.is_empty() {
            None
        } else {
            Some(bad.join("\n"))
        },
    );
    let slow = results
        .iter()
        .filter(|r| r.latency_ns > 2_000_000_000)
        .count();
    verdict(
        "end-within-2s",
        (slow > 0).then(|| format!("{slow} rounds were slower")),
    );
    let plain = results.iter().filter(|r| !r.accelerated).count();
    verdict(
        "accelerated-when-killed",
        (preload && plain > 0).then(|| format!("{plain} of {} were not", results.len())),
    );
    if results.len() > 40 {
        // The least of a quarter's rounds: the advert of a closed listener stands for up to 10 s, a leak for ever.
        let quarter = results.len() / 4;
        let least = |rounds: &[Round]| {
            let fds = rounds.iter().map(|r| r.fds).min().unwrap_or(0);
            (fds, rounds.iter().map(|r| r.maps).min().unwrap_or(0))
        };
        let early = least(&results[quarter..2 * quarter]);
        let late = least(&results[results.len() - quarter..]);
        let grown = late.0 > early.0 + 4 || late.1 > early.1 + 4;
        verdict(
            "no-growth",
            grown.then(|| {
                format!(
                    "fds {} to {}, mappings {} to {}",
                    early.0, late.0, early.1, late.1
                )
            }),
        );
    }
    let left: Vec<String> = shared_files()
        .into_iter()
        .filter(|f| !files_before.contains(f))
        .collect();
    verdict(
        "no-files-left",
        (!left.is_empty()).then(|| format!("/dev/shm: {left:?}")),
    );
    verdict(
        "survivor-ends",
        (!status.is_ok_and(|s| s.success())).then(|| "the survivor crashed".to_string()),
    );
}

fn report(results: &[Round]) {
    let mut times: Vec<u64> = results.iter().map(|r| r.latency_ns / 1000).collect();
    times.sort_unstable();
    if times.is_empty() {
        return;
    }
    let at = |q: usize| times[(times.len() * q / 100).min(times.len() - 1)];
    let over = times.iter().filter(|t| **t > 100_000).count();
    let eof = results.iter().filter(|r| r.end == "EOF").count();
    println!(
        "    {} rounds: end seen after (µs) p50 {} p90 {} p99 {} max {}; over 100 ms: {over}; EOF {eof}, reset {}",
        results.len(),
        at(50),
        at(90),
        at(99),
        times[times.len() - 1],
        results.len() - eof
    );
    let missing = results.iter().filter(|r| r.received < r.sent).count();
    println!(
        "    rounds in which bytes were lost (plain TCP may, with a reset): {missing}; survivor's fds {} to {}, mappings {} to {}",
        results[0].fds,
        results[results.len() - 1].fds,
        results[0].maps,
        results[results.len() - 1].maps
    );
}

fn one(
    build: &Build,
    preload: bool,
    survivor: &mut Talker,
    kind: &str,
    survivor_serves: bool,
    path: &str,
    rng: &mut Rng,
) -> Round {
    let counters = Counters::map(path, COUNTERS);
    for i in 0..COUNTERS {
        counters.at(i).store(0, Ordering::SeqCst);
    }
    let mut victim;
    if survivor_serves {
        survivor.order(&format!("{kind} listen"));
        let addr = survivor.line();
        victim = Talker::start(&["victim", path, kind, "dial", &addr], build, preload);
    } else {
        victim = Talker::start(&["victim", path, kind, "listen"], build, preload);
        let addr = victim.line();
        survivor.order(&format!("{kind} dial {addr}"));
    }
    let ports = survivor.line();
    let ports: Vec<u16> = ports
        .split(' ')
        .skip(1)
        .map(|p| p.parse().unwrap_or(0))
        .collect();
    let mut problem = None;
    let mut accelerated = false;
    if preload {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut last = String::new();
        while !accelerated && Instant::now() < deadline {
            let near = build.connection(survivor.pid(), ports[0], ports[1]);
            let far = build.connection(victim.pid(), ports[1], ports[0]);
            // A direction in which nothing travels has no reason to move.
            let (sends, receives) = match kind {
                "survivor-sends" => (true, false),
                "ping-pong" | "both-send" => (true, true),
                _ => (false, true),
            };
            accelerated = near
                .as_ref()
                .is_ok_and(|c| (!sends || c.tx_path == "shm") && (!receives || c.rx_path == "shm"))
                && far.is_ok();
            last = format!("{near:?} {far:?}");
        }
        if !accelerated {
            problem = Some(format!("not promoted: {last}"));
        }
    }
    let wait = rng.range(0, 20_000) as u64;
    std::thread::sleep(Duration::from_micros(wait));
    let killed = sys::now_ns();
    let _ = victim.child.kill();
    let _ = victim.child.wait();
    let line = survivor.line();
    let words: Vec<&str> = line.split(' ').collect();
    let number = |i: usize| {
        words
            .get(i)
            .and_then(|w| w.parse::<i64>().ok())
            .unwrap_or(-1)
    };
    let (sent, intended) = (
        counters.at(SENT).load(Ordering::SeqCst),
        counters.at(INTENDED).load(Ordering::SeqCst),
    );
    let round = Round {
        end: words.get(1).unwrap_or(&"").to_string(),
        latency_ns: (number(2).max(0) as u64).saturating_sub(killed),
        received: number(3).max(0) as u64,
        sent,
        intended,
        problem: None,
        fds: number(5).max(0) as usize,
        maps: number(6).max(0) as usize,
        accelerated,
    };
    let problem = problem.or_else(|| judge(&round, &line, number(4), preload, &counters));
    Round { problem, ..round }
}

fn judge(
    round: &Round,
    line: &str,
    error: i64,
    preload: bool,
    counters: &Counters,
) -> Option<String> {
    if !line.starts_with("end ") {
        return Some(format!("the survivor said {line:?}"));
    }
    if round.end != "EOF" && round.end != "ECONNRESET" {
        return Some(format!("the survivor saw {line}"));
    }
    if error >= 0 {
        return Some(format!("a wrong byte at {error}: {line}"));
    }
    if counters.at(VICTIM_ERROR).load(Ordering::SeqCst) != 0 {
        return Some("the victim received a wrong byte".into());
    }
    if round.received > round.intended {
        return Some(format!(
            "received {} of {} intended",
            round.received, round.intended
        ));
    }
    // Plain TCP drops what was not delivered when the victim had unread data: it resets.
    let must_have_all = round.end == "EOF" || (preload && round.accelerated);
    if must_have_all && round.received < round.sent {
        return Some(format!(
            "received {} of {} sent, then {}",
            round.received, round.sent, round.end
        ));
    }
    None
}
