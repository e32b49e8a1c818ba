//! `kill -9` of either end in the middle of traffic.
//!
//! A survivor lives through all rounds; a victim per round is killed at a random moment. What is
//! asserted of each round:
//!
//! - **Bytes.** The survivor has received every byte for which a send of the victim had returned,
//!   none that the victim did not mean to send, and nothing after the end. See `Loss` for the one
//!   case in which TCP itself loses bytes.
//! - **The end**, EOF or reset, was seen within 100 ms. The victim has a second, silent connection
//!   to the runner: kernel TCP without the library, ended by the same death. A round in which that
//!   one's end came late too, or in which the survivor stood in the queue for a CPU, says nothing
//!   about the library: another is run in its place.
//! - **Nothing is left**: no process of the victim's, no file, no segment, no socket name; at the
//!   end the survivor holds what it held after its first rounds.
//!
//! The same rounds, or as many as `--plain` says, are run on plain TCP first, which must pass them
//! as well.

mod ends;
mod left;

pub use ends::{survivor, victim};

use crate::pattern::Rng;
use crate::runner::{Totals, library_env, own_program};
use crate::ss::{Build, Path as Fast};
use crate::sys::{self, Addr, Counters, Fd, LOOPBACK};
use ends::{BLOCKING, COUNTERS, INTENDED, KINDS, OPEN, RECEIVED, SENT, WRONG, cpu_wait_ns};
use left::Holdings;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The bound of the end.
fn bound_ns() -> u64 {
    100_000_000 * u64::from(sys::patience())
}
/// So many rounds until each kind has been there in both roles.
const WARM: usize = 2 * KINDS.len();
/// How long anything may take that has no bound of its own.
fn patience() -> Duration {
    sys::patience() * Duration::from_secs(20)
}

/// Who has the library, and when the victim is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nobody: kernel TCP.
    Plain,
    /// Both, once the connection is on the fast path.
    Moved,
    /// Both, from the first moment of the connection on: before, while and after it moves. (Not in
    /// the first rounds, by which is told what the survivor comes to hold.)
    Early,
}

impl Mode {
    fn name(self, path: Fast) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Moved => path.name(),
            Mode::Early => "early",
        }
    }

    fn preloads(self) -> bool {
        self != Mode::Plain
    }
}

// --------------------------------------------------------------------------------------- processes

struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What all processes of a campaign share.
struct Place<'a> {
    build: &'a Build,
    mode: Mode,
    /// A directory of the campaign's own: the counters, the library's log, and nothing else.
    scratch: PathBuf,
}

impl Place<'_> {
    fn counters(&self) -> PathBuf {
        self.scratch.join("counters")
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("log")
    }

    /// Starts a process in a session of its own, that ends when the runner does.
    fn start(&self, args: &[&str], marker: &str) -> Talker {
        let mut command = Command::new(own_program());
        command.arg("helper").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        library_env(&mut command, self.build, self.mode.preloads());
        if self.mode.preloads() {
            command.env("NACC_LOG_PATH", self.log());
        }
        if let Some((key, value)) = marker.split_once('=') {
            command.env(key, value);
        }
        // SAFETY: both calls are async-signal-safe and touch no memory.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let mut child = command.spawn().expect("start a process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Talker { input: child.stdin.take(), output, child }
    }
}

impl Talker {
    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn order(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// The next line; empty at the end of the output, and after [`patience`].
    fn line(&mut self) -> String {
        let mut line = String::new();
        let fd = self.output.get_ref().as_raw_fd();
        let patience = patience().as_millis() as i32;
        if !self.output.buffer().is_empty() || sys::await_events(fd, libc::POLLIN, patience) != 0 {
            let _ = self.output.read_line(&mut line);
        }
        line.trim().to_string()
    }

    /// Lets the process end by closing its input; whether it ended well, and in time.
    fn end(&mut self) -> bool {
        drop(self.input.take());
        // The end of its output is the end of the process; one that says nothing for so long is
        // ended by `drop`.
        while !self.line().is_empty() {}
        let fd = self.output.get_ref().as_raw_fd();
        let closed = sys::await_events(fd, libc::POLLIN, 0) != 0;
        closed && self.child.wait().is_ok_and(|s| s.success())
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The plain-TCP sibling: the runner's end of a silent connection that a victim makes before
/// anything else.
struct Sibling {
    listener: Fd,
    address: String,
}

impl Sibling {
    fn new() -> Sibling {
        let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let listener = listener.expect("socket");
        sys::bind(listener, LOOPBACK).expect("bind");
        sys::listen(listener, 5).expect("listen");
        let address = sys::getsockname(listener).map(Addr::text).expect("name");
        Sibling { listener, address }
    }

    /// Accepts the victim's connection; the thread sleeps in a receive until it ends, and returns
    /// when it ended: what the thread itself waited for a CPU is taken off.
    fn watch(&self) -> Result<JoinHandle<u64>, String> {
        if sys::await_events(self.listener, libc::POLLIN, patience().as_millis() as i32) == 0 {
            return Err("the victim does not connect".into());
        }
        let fd = sys::accept4(self.listener, libc::SOCK_CLOEXEC).expect("accept");
        Ok(std::thread::spawn(move || {
            let waited = cpu_wait_ns("/proc/thread-self");
            let end = sys::recv(fd, &mut [0; 1], 0);
            let seen = sys::now_ns();
            let waited = cpu_wait_ns("/proc/thread-self") - waited;
            assert_eq!(end, Ok(0), "the sibling carries nothing");
            let _ = sys::close(fd);
            seen - waited
        }))
    }
}

/// Time that the hypervisor took from the machine's CPUs, all together.
fn stolen_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: u64 = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8)?.parse().ok())
        .unwrap_or(0);
    ticks * 10_000_000
}

// --------------------------------------------------------------------------------------- one round

/// Whether bytes that were sent may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// No. The end is EOF, or everything that the survivor had sent was read by the victim before
    /// it died, or the bytes were in shared memory, which no reset reaches.
    None,
    /// The kernel's TCP loses them too: the victim dies with received bytes unread, or is sent more
    /// when it is dead, so its kernel answers with a reset, and drops what it has not yet delivered
    /// of the victim's own bytes. Or the victim dies with bytes that its RDMA device does not have
    /// yet.
    ByReset,
}

/// One round's result.
#[derive(Default)]
struct Round {
    end: String,
    /// From the kill to the survivor's seeing the end.
    latency_ns: u64,
    /// From the kill to the sibling's end.
    sibling_ns: u64,
    /// How much of the latency the machine took: until the sibling's end, what the survivor waited
    /// for a CPU, and what the hypervisor stole.
    machine_ns: u64,
    received: u64,
    lost: u64,
    problem: Option<String>,
    accelerated: bool,
    /// The victim accepted, and had its name out.
    advertised: bool,
    left: Vec<String>,
}

#[derive(PartialEq, Eq, Debug)]
enum Timing {
    InTime,
    /// Late, and the machine accounts for it: no result.
    Stalled,
    Late,
}

impl Round {
    /// Late is the machine's fault when it took half of the bound or more, and what it did not take
    /// is within the other half: it had stalled, and the library added nothing that would have
    /// broken the bound.
    fn timing(&self) -> Timing {
        let own = self.latency_ns.saturating_sub(self.machine_ns);
        if self.latency_ns <= bound_ns() {
            Timing::InTime
        } else if own <= bound_ns() / 2 {
            Timing::Stalled
        } else {
            Timing::Late
        }
    }
}

struct Campaign<'a> {
    place: Place<'a>,
    survivor: Talker,
    sibling: Sibling,
    rng: Rng,
    /// Ports on which one of the processes listened, and pids of victims.
    ports: BTreeSet<u16>,
    pids: BTreeSet<i32>,
    /// Files that a process may write and that are no trace of it: the campaign's, and what the
    /// runner itself writes to.
    known_files: BTreeSet<PathBuf>,
}

impl Campaign<'_> {
    fn round(&mut self, number: usize) -> Round {
        let kind = KINDS[number % KINDS.len()];
        let survivor_serves = (number / KINDS.len()).is_multiple_of(2);
        let mut round = Round::default();
        if let Err(problem) = self.live_and_die(number, kind, survivor_serves, &mut round) {
            let role = if survivor_serves { "serves" } else { "dials" };
            round.problem = Some(format!("round {number} ({kind}, survivor {role}): {problem}"));
        }
        round
    }

    fn live_and_die(
        &mut self,
        number: usize,
        kind: &str,
        survivor_serves: bool,
        round: &mut Round,
    ) -> Result<(), String> {
        let path = self.place.counters().to_string_lossy().into_owned();
        let counters = Counters::map(&path, COUNTERS);
        for i in 0..COUNTERS {
            counters.at(i).store(0, Ordering::SeqCst);
        }
        let count = |index: usize| counters.at(index).load(Ordering::SeqCst);

        // --- the connection
        let marker = format!("NETACC_TEST_ROUND={}-{number}", std::process::id());
        let sibling = self.sibling.address.clone();
        let mut victim;
        let (address, end_of_sibling);
        if survivor_serves {
            self.survivor.order(&format!("{kind} listen"));
            address = self.survivor.line();
            let args = ["victim", &path, &sibling, kind, "dial", &address];
            victim = self.place.start(&args, &marker);
            end_of_sibling = self.sibling.watch()?;
        } else {
            let args = ["victim", &path, &sibling, kind, "listen"];
            victim = self.place.start(&args, &marker);
            end_of_sibling = self.sibling.watch()?;
            address = victim.line();
            self.survivor.order(&format!("{kind} dial {address}"));
        }
        self.pids.insert(victim.pid());
        let listens = Addr::parse(&address).map_or(0, Addr::port);
        self.ports.insert(listens);
        let ports = self.survivor.line();
        let ports: Vec<u16> = ports.split(' ').skip(1).filter_map(|p| p.parse().ok()).collect();
        let [local, peer] = ports[..] else {
            return Err("the survivor has no connection".into());
        };
        let moved = match self.place.mode {
            Mode::Plain => false,
            Mode::Moved => true,
            Mode::Early => number < WARM,
        };
        if moved {
            let found = self.await_promotion(kind, victim.pid(), local, peer);
            round.accelerated = found.is_ok();
            if let Err(last) = found {
                return Err(format!("not promoted: {last}"));
            }
        }
        if BLOCKING.contains(&kind) {
            self.survivor.order("block");
            let said = self.survivor.line();
            if said != "blocking" {
                return Err(format!("the survivor said {said:?}"));
            }
        }

        // --- the death
        round.advertised = !survivor_serves && !left::adverts(listens).is_empty();
        let files = left::writable_files(victim.pid());
        let survivor_thread = format!("/proc/{0}/task/{0}", self.survivor.pid());
        let wait = self.rng.range(0, 20_000) as u64;
        std::thread::sleep(Duration::from_micros(wait));
        let stolen = stolen_ns();
        let waited = cpu_wait_ns(&survivor_thread);
        let mut killed = sys::now_ns();
        let _ = sys::kill(victim.pid(), libc::SIGKILL);
        let _ = victim.child.wait();
        // Before anything that a child of its could hold up.
        round.left = left::descendants(victim.pid(), &marker);
        let sibling_ended = end_of_sibling.join().expect("the sibling's thread");
        round.sibling_ns = sibling_ended.saturating_sub(killed);
        let mut machine_ns = round.sibling_ns;
        if kind == "victim-blocks" {
            // It looks for the end only now.
            (killed, machine_ns) = (sys::now_ns(), 0);
            self.survivor.order("go");
        }
        let line = self.survivor.line();
        machine_ns += stolen_ns() - stolen;

        // --- what is left
        let ours = [self.survivor.pid(), victim.pid()];
        if !survivor_serves {
            round.left.extend(left::orphaned_adverts(listens, &ours));
        }
        round.left.extend(left::sysv_segments(victim.pid()));
        for file in files.difference(&self.known_files).filter(|f| f.exists()) {
            round.left.push(format!("file {}", file.display()));
        }

        // --- what the survivor saw
        let words: Vec<&str> = line.split(' ').collect();
        let ["end", end, seen, cpu_wait, received, sent, error, again, after] = words[..] else {
            return Err(format!("the survivor said {line:?}"));
        };
        let number = |word: &str| word.parse::<u64>().unwrap_or(0);
        round.end = end.to_string();
        round.latency_ns = number(seen).saturating_sub(killed);
        round.machine_ns = machine_ns + number(cpu_wait).saturating_sub(waited);
        if !self.place.mode.preloads() {
            // There is nothing but the machine.
            round.machine_ns = round.machine_ns.max(round.latency_ns);
        }
        round.received = number(received);
        round.lost = count(SENT).saturating_sub(round.received);
        if !["EOF", "ECONNRESET", "EPIPE"].contains(&end) {
            return Err(format!("no end that TCP has: {line}"));
        }
        if error != "-1" {
            return Err(format!("a wrong byte at {error}: {line}"));
        }
        if !["Ok(0)", "Err(ECONNRESET)"].contains(&again) {
            return Err(format!("something comes after the end: {line}"));
        }
        if !["Ok(1)", "Err(EPIPE)", "Err(ECONNRESET)"].contains(&after) {
            return Err(format!("no answer that TCP gives to a send: {line}"));
        }
        if count(WRONG) != 0 {
            return Err("the victim received a wrong byte".into());
        }
        if round.received > count(INTENDED) {
            return Err(format!("received {} of {} intended", round.received, count(INTENDED)));
        }
        // (The other way round it may have received more than it has counted, or been sent more
        // when it was dead.)
        let unread = number(sent) > count(RECEIVED);
        // Between hosts nobody knows what a killed sender had not yet handed to the device: that is
        // a reset (docs/manual/limits.md).
        let may_reset =
            unread || (self.place.mode.preloads() && self.place.build.path == Fast::Rdma);
        if end != "EOF" && !may_reset && count(OPEN) != 0 {
            return Err(format!("a reset, with nothing unread: {line}"));
        }
        let kept = moved && self.place.build.path == Fast::Shm;
        let loss = if end == "EOF" || kept { Loss::None } else { Loss::ByReset };
        if loss == Loss::None && round.lost > 0 {
            return Err(format!(
                "{} of {} sent bytes are missing: {line}",
                round.lost,
                count(SENT)
            ));
        }
        Ok(())
    }

    /// Waits until the bytes of each direction in which something travels are in shared memory.
    fn await_promotion(
        &self,
        kind: &str,
        victim: i32,
        local: u16,
        peer: u16,
    ) -> Result<(), String> {
        let (sends, receives) = match kind {
            "survivor-sends" | "survivor-blocks" => (true, false),
            "ping-pong" | "both-send" => (true, true),
            _ => (false, true),
        };
        let build = self.place.build;
        let path = build.path.name();
        let deadline = Instant::now() + patience();
        loop {
            let near = build.connection(self.survivor.pid(), local, peer);
            let far = build.connection(victim, peer, local);
            let moved = near
                .as_ref()
                .is_ok_and(|c| (!sends || c.tx_path == path) && (!receives || c.rx_path == path));
            if moved && far.is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{near:?} {far:?}"));
            }
        }
    }
}

// ----------------------------------------------------------------------------------- the campaigns

pub fn run(words: &[&str]) -> ExitCode {
    let rounds = crate::option(words, "--rounds", 200usize);
    let plain = crate::option(words, "--plain", rounds);
    let seed = crate::option(words, "--seed", u64::from(std::process::id()));
    let Some(build) = crate::build_of(words) else {
        return ExitCode::from(2);
    };
    let totals = Totals::default();
    println!("kill: seed {seed}");
    // Without the library there is nothing else to run.
    let plain = if build.is_there() { plain.min(rounds) } else { rounds };
    if plain > 0 {
        campaign(&build, Mode::Plain, plain, seed, &totals);
    }
    if build.is_there() {
        campaign(&build, Mode::Moved, rounds, seed, &totals);
        campaign(&build, Mode::Early, rounds.div_ceil(2), seed, &totals);
    } else {
        println!("no library at {}: only plain TCP is run", build.library.display());
    }
    println!("\nkill: {}", totals.line());
    if totals.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn campaign(build: &Build, mode: Mode, rounds: usize, seed: u64, totals: &Totals) {
    let names_before = left::names();
    let scratch = std::env::temp_dir().join(format!("netacc-kill-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a directory of its own");
    let place = Place { build, mode, scratch: scratch.clone() };
    let survivor = place.start(&["survivor"], "");
    let mut known_files = left::writable_files(sys::getpid());
    known_files.extend([place.counters(), place.log()]);
    let mut campaign = Campaign {
        place,
        survivor,
        sibling: Sibling::new(),
        rng: Rng::new(seed),
        ports: BTreeSet::new(),
        pids: BTreeSet::new(),
        known_files,
    };
    let mut results: Vec<Round> = Vec::new();
    let mut broken = Vec::new();
    let mut baseline = None;
    // A stalled round is replaced by another of its kind; twice as many rounds are the end of that.
    let mut number = 0;
    while number < rounds && results.len() < 2 * rounds {
        let round = campaign.round(number);
        if round.end.is_empty() {
            // The two processes are out of step.
            broken.extend(round.problem);
            break;
        }
        number += usize::from(round.timing() != Timing::Stalled);
        results.push(round);
        if number == WARM && baseline.is_none() {
            baseline = Some(settled(campaign.survivor.pid()));
        }
    }
    let pid = campaign.survivor.pid();
    let growth = baseline.map(|before| growth(pid, before));
    let ended = campaign.survivor.end();
    let log = std::fs::read_to_string(campaign.place.log()).unwrap_or_default();

    report(&results);
    let name = mode.name(build.path);
    let verdict = |what: &str, problems: Vec<String>| {
        let (word, text) = if problems.is_empty() {
            totals.pass();
            ("ok", String::new())
        } else {
            totals.fail();
            let shown: Vec<String> = problems.iter().take(8).cloned().collect();
            ("FAILED", format!("\n    {}", shown.join("\n    ")))
        };
        println!("test kill/{what} [{name}] ... {word}{text}");
    };
    verdict(
        "bytes-and-end",
        broken.into_iter().chain(results.iter().filter_map(|r| r.problem.clone())).collect(),
    );
    timing(&results, rounds, name, totals, verdict);
    if mode == Mode::Moved {
        let plain = results.iter().filter(|r| !r.accelerated).count();
        verdict(
            "accelerated-when-killed",
            some(plain > 0, || format!("{plain} of {} were not", results.len())),
        );
        if build.path == Fast::Shm {
            // Otherwise that no name is left would say nothing.
            let advertised = results.iter().any(|r| r.advertised);
            verdict(
                "victims-advertise",
                some(!advertised, || "no victim that accepted had an advert".into()),
            );
        }
    }
    if let Some(growth) = growth {
        verdict("no-growth", growth);
    }
    let mut left: Vec<String> = results.iter().flat_map(|r| r.left.clone()).collect();
    for port in &campaign.ports {
        left.extend(left::orphaned_adverts(*port, &[]));
    }
    verdict("nothing-left-of-victims", left);
    let mut files = left::new_names(&names_before, &campaign.pids);
    files.retain(|name| !name.ends_with(&*scratch.to_string_lossy()));
    files.extend(strangers_in(&scratch));
    let _ = std::fs::remove_dir_all(&scratch);
    verdict("no-files-left", files);
    verdict("survivor-ends", some(!ended, || "it crashed, or does not end".into()));
    if mode.preloads() {
        // That a peer died is no mistake of the peer's.
        let worries = ["panic", "FATAL", "ERROR", "corrupt"];
        verdict(
            "library-log",
            log.lines()
                .filter(|line| worries.iter().any(|w| line.contains(w)))
                .map(String::from)
                .collect(),
        );
    }
}

fn some(wrong: bool, text: impl Fn() -> String) -> Vec<String> {
    if wrong { vec![text()] } else { Vec::new() }
}

fn strangers_in(scratch: &Path) -> Vec<String> {
    std::fs::read_dir(scratch)
        .into_iter()
        .flat_map(|dir| dir.flatten())
        .filter(|e| e.file_name() != "counters" && e.file_name() != "log")
        .map(|e| format!("file {}", e.path().display()))
        .collect()
}

/// What a process holds once its service thread has let go of the last dead peer; an error when it
/// does not: then it still maps memory that is none of its own.
fn settled(pid: i32) -> Result<Holdings, Vec<String>> {
    let deadline = Instant::now() + patience();
    loop {
        let holdings = Holdings::of(pid);
        let shared: Vec<String> = holdings
            .kinds()
            .filter(|kind| kind.starts_with("mapping ") && !kind.contains("netacc-stats"))
            .map(|kind| format!("{kind} in the survivor, without a connection"))
            .collect();
        if shared.is_empty() {
            return Ok(holdings);
        }
        if Instant::now() > deadline {
            return Err(shared);
        }
        sys::sleep_ms(1);
    }
}

/// What the survivor holds beyond what it held; it has the time to let go (an advert stands for 10
/// s at most).
fn growth(pid: i32, before: Result<Holdings, Vec<String>>) -> Vec<String> {
    let deadline = Instant::now() + patience();
    loop {
        let more = match (&before, settled(pid)) {
            (Ok(before), Ok(now)) => now.beyond(before),
            (Err(held), _) => return held.clone(),
            (_, Err(held)) => return held,
        };
        if more.is_empty() || Instant::now() > deadline {
            return more;
        }
        sys::sleep_ms(10);
    }
}

fn timing(
    results: &[Round],
    rounds: usize,
    mode: &str,
    totals: &Totals,
    verdict: impl Fn(&str, Vec<String>),
) {
    let ms = |ns: u64| ns / 1_000_000;
    let mut late: Vec<String> = results
        .iter()
        .filter(|r| r.timing() == Timing::Late)
        .map(|r| {
            format!(
                "{} after {} ms, of which the machine took {} (sibling {} ms)",
                r.end,
                ms(r.latency_ns),
                ms(r.machine_ns),
                ms(r.sibling_ns)
            )
        })
        .collect();
    let stalled = results.iter().filter(|r| r.timing() == Timing::Stalled).count();
    if late.is_empty() && stalled >= rounds {
        totals.skip();
        println!(
            "test kill/end-in-time [{mode}] ... skipped (the machine stalled in {stalled} of {} rounds)",
            results.len()
        );
        return;
    }
    if results.len() - stalled < rounds {
        late.push(format!("only {} of {rounds} rounds", results.len() - stalled));
    }
    verdict("end-in-time", late);
}

fn report(results: &[Round]) {
    let distribution = |name: &str, of: fn(&Round) -> u64| {
        let mut times: Vec<u64> = results.iter().map(|r| of(r) / 1000).collect();
        times.sort_unstable();
        let at = |q: usize| times[(times.len() * q / 100).min(times.len() - 1)];
        println!(
            "    {name} (µs): p50 {} p90 {} p99 {} max {}",
            at(50),
            at(90),
            at(99),
            times[times.len() - 1]
        );
    };
    if results.is_empty() {
        return;
    }
    let count = |f: fn(&Round) -> bool| results.iter().filter(|r| f(r)).count();
    println!(
        "    {} rounds: EOF {}, reset {}; sent bytes missing in {}, as TCP loses them; over 100 ms {}, of which the machine stalled in {}",
        results.len(),
        count(|r| r.end == "EOF"),
        count(|r| r.end != "EOF"),
        count(|r| r.lost > 0),
        count(|r| r.timing() != Timing::InTime),
        count(|r| r.timing() == Timing::Stalled)
    );
    distribution("end seen after", |r| r.latency_ns);
    distribution("  plain sibling", |r| r.sibling_ns);
    distribution("  beyond what the machine took", |r| r.latency_ns.saturating_sub(r.machine_ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_end_is_excused_by_the_machine_alone() {
        let timing = |latency_ms: u64, machine_ms: u64| {
            Round {
                latency_ns: latency_ms * 1_000_000,
                machine_ns: machine_ms * 1_000_000,
                ..Round::default()
            }
            .timing()
        };
        assert_eq!(timing(100, 0), Timing::InTime);
        assert_eq!(timing(101, 0), Timing::Late);
        assert_eq!(timing(101, 50), Timing::Late);
        assert_eq!(timing(120, 80), Timing::Stalled);
        assert_eq!(timing(500, 400), Timing::Late);
        assert_eq!(timing(500, 490), Timing::Stalled);
    }
}
