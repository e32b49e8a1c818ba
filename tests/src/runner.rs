//! Runs scenarios in every mode and compares their transcripts with plain TCP's.

use crate::broker::Broker;
use crate::choice::Choice;
use crate::ctx::{Role, Warmup};
use crate::oracle::Transcripts;
use crate::scenario::{Expect, Parts, Scenario};
use crate::ss::{Build, Connection, Path};
use crate::sys::{self, Fd};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Who has the library, and what it may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// No library: kernel TCP, the oracle.
    Plain,
    /// Both ends have the library, acceleration is off.
    Tcp,
    ServerOnly,
    ClientOnly,
    /// Both ends, promoted before the scenario starts.
    Shm,
    /// Both ends, promoted half way: the client's direction is promoted in the middle.
    Early,
    /// Both ends, no warm-up: promotion, if any, comes when it comes.
    New,
    /// Both ends, in fast connect mode: the scenario's connection has a parked carrier.
    Fast,
    /// Both ends; the library demotes and promotes at random points by itself.
    Switch,
    /// Both ends; connections stay on TCP, and each wait for one looks before it sleeps.
    Looks,
    /// As `Shm`, but over an RDMA device, which the machine must have: only when it is asked for.
    Rdma,
    /// As `Shm`, with failures to order ([`crate::starve`]): a connection may be accelerated, or
    /// not.
    Starved,
}

pub const MODES: [(Mode, &str); 11] = [
    (Mode::Plain, "plain"),
    (Mode::Tcp, "tcp"),
    (Mode::ServerOnly, "server-only"),
    (Mode::ClientOnly, "client-only"),
    (Mode::Shm, "shm"),
    (Mode::Early, "early"),
    (Mode::New, "new"),
    (Mode::Fast, "fast"),
    (Mode::Switch, "switch"),
    (Mode::Looks, "looks"),
    (Mode::Rdma, "rdma"),
];

impl Mode {
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(m, _)| *m == self).map_or("", |(_, n)| n)
    }

    /// The library does something by order: it is the one of `tests/inject`.
    fn is_ordered(self) -> bool {
        matches!(self, Mode::Switch | Mode::Looks)
    }

    fn path(self) -> Path {
        match self {
            Mode::Rdma => Path::Rdma,
            _ => Path::Shm,
        }
    }

    /// Whether a connection of such a scenario must be accelerated.
    fn requires(self, scenario: &Scenario) -> bool {
        match self {
            Mode::Shm | Mode::Early => scenario.expect != Expect::Any,
            Mode::Rdma => scenario.expect == Expect::Fast,
            _ => false,
        }
    }

    fn preloads(self, role: Role) -> bool {
        match self {
            Mode::Plain => false,
            Mode::ServerOnly => role == Role::Server,
            Mode::ClientOnly => role == Role::Client,
            _ => true,
        }
    }

    fn warmup(self, scenario: &Scenario) -> Warmup {
        match self {
            Mode::Rdma if scenario.tcp_between_hosts => Warmup::Fixed,
            Mode::Shm | Mode::Rdma | Mode::Starved => Warmup::UntilFast,
            Mode::Early => Warmup::UntilHalf,
            Mode::New => Warmup::None,
            Mode::Fast => Warmup::Lives,
            _ => Warmup::Fixed,
        }
    }
}

pub struct Options {
    pub choice: Choice,
    pub modes: Vec<Mode>,
    pub jobs: usize,
    /// Run the oracle this many times; all transcripts must agree.
    pub plain_runs: usize,
    pub transcripts: Transcripts,
    pub verbose: bool,
    pub timeout: Duration,
}

/// The sum of a suite.
#[derive(Default)]
pub struct Totals {
    pub passed: AtomicUsize,
    pub failed: AtomicUsize,
    pub skipped: AtomicUsize,
}

impl Totals {
    pub fn line(&self) -> String {
        let skipped = self.skipped.load(Ordering::Relaxed);
        let tail = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        format!(
            "{} passed, {} failed{tail}",
            self.passed.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed)
        )
    }

    pub fn ok(&self) -> bool {
        self.failed.load(Ordering::Relaxed) == 0
    }

    pub fn pass(&self) {
        self.passed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn fail(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn skip(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }
}

/// What one run of a scenario left behind.
pub struct Outcome {
    pub transcript: String,
    pub problems: Vec<String>,
    /// Why it could not be run on this machine.
    pub skipped: Option<String>,
    pub stderr: String,
    pub accelerated: bool,
    millis: u128,
}

/// Runs everything that the options select; true when nothing failed.
pub fn run(scenarios: Vec<Scenario>, options: &Options) -> bool {
    let build = Build::find();
    let with_library = build.is_there();
    let mut modes = options.modes.clone();
    if !with_library && modes.iter().any(|m| *m != Mode::Plain) {
        println!("no library at {}: only plain TCP is run", build.library.display());
        modes.retain(|m| *m == Mode::Plain);
    }
    let mut selected = scenarios;
    selected.retain(|s| options.choice.has(s.name));
    // What takes longest first: the last jobs end together then.
    selected.sort_by_key(|s| std::cmp::Reverse(s.seconds));
    let totals = Totals::default();
    let failures = Mutex::new(Vec::new());
    if modes.iter().any(|mode| mode.is_ordered()) && !build.switching.exists() {
        for mode in modes.iter().filter(|mode| mode.is_ordered()).map(|mode| mode.name()) {
            println!(
                "test all [{mode}] ... FAILED\n    no library at {}: run tests/inject",
                build.switching.display()
            );
            totals.fail();
            failures.lock().expect("alone").push(format!("all [{mode}]"));
        }
        modes.retain(|mode| !mode.is_ordered());
    }
    let next = AtomicUsize::new(0);
    let print = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(scenario) = selected.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (lines, failed) = judge(scenario, &modes, options, &build, &totals);
                    let _guard = print.lock();
                    print!("{lines}");
                    if let Ok(mut list) = failures.lock() {
                        list.extend(failed);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_default();
    if !failures.is_empty() {
        println!("\nfailures:");
        for failure in &failures {
            println!("    {failure}");
        }
    }
    println!("\nconformance: {}", totals.line());
    totals.ok()
}

/// Runs one scenario in all modes; returns the report and the names of the modes that failed.
fn judge(
    scenario: &Scenario,
    modes: &[Mode],
    options: &Options,
    build: &Build,
    totals: &Totals,
) -> (String, Vec<String>) {
    let mut report = String::new();
    let mut failed = Vec::new();
    let mut verdict = |mode: Mode, outcome: &Outcome, problems: &[String], report: &mut String| {
        let name = mode.name();
        let path = match outcome.accelerated {
            true => format!(", {}", mode.path().name()),
            false => String::new(),
        };
        if problems.is_empty() {
            totals.pass();
            report.push_str(&format!(
                "test {} [{name}] ... ok ({} ms{path})\n",
                scenario.name, outcome.millis
            ));
        } else {
            totals.fail();
            failed.push(format!("{} [{name}]", scenario.name));
            report.push_str(&format!(
                "test {} [{name}] ... FAILED ({} ms{path})\n",
                scenario.name, outcome.millis
            ));
            for problem in problems {
                for line in problem.lines() {
                    report.push_str(&format!("    {line}\n"));
                }
            }
            for line in outcome.stderr.lines() {
                report.push_str(&format!("    stderr: {line}\n"));
            }
        }
    };
    let why_skipped = |mode: Mode| scenario.skip.iter().find(|(m, _)| *m == mode.name());
    let skip = |(name, why): &(&str, &str), report: &mut String| {
        totals.skip();
        report.push_str(&format!("test {} [{name}] ... skipped ({why})\n", scenario.name));
    };
    // Nobody asks the oracle where nothing is to be compared.
    if modes.iter().all(|mode| why_skipped(*mode).is_some()) {
        let reasons = modes.iter().filter_map(|mode| why_skipped(*mode));
        reasons.for_each(|reason| skip(reason, &mut report));
        return (report, failed);
    }
    let mut due: Vec<Mode> = modes.iter().copied().filter(|m| *m != Mode::Plain).collect();
    due.retain(|mode| {
        let alone = matches!(scenario.parts, Parts::Alone(_));
        !(alone && matches!(mode, Mode::ServerOnly | Mode::ClientOnly))
    });
    let run = |mode: &Mode| match why_skipped(*mode) {
        Some(_) => None,
        None => Some(execute(scenario, *mode, options, build)),
    };
    // What came out as on the host needs no oracle here. All else is judged by one, and so is what
    // has failed: it may have failed on plain TCP, too.
    let mut early: Option<Vec<Option<Outcome>>> = None;
    let kept = options.transcripts.kept(scenario.name);
    if let Some(kept) = kept.filter(|_| !modes.contains(&Mode::Plain) && options.plain_runs == 1) {
        let outcomes: Vec<_> = due.iter().map(run).collect();
        let same =
            |o: &Outcome| o.problems.is_empty() && o.skipped.is_none() && o.transcript == kept;
        if outcomes.iter().flatten().all(same) {
            for (mode, outcome) in due.iter().zip(&outcomes) {
                match outcome {
                    Some(outcome) => verdict(*mode, outcome, &[], &mut report),
                    None => why_skipped(*mode).into_iter().for_each(|why| skip(why, &mut report)),
                }
            }
            return (report, failed);
        }
        early = Some(outcomes);
    }
    let oracle = execute(scenario, Mode::Plain, options, build);
    let mut problems = oracle.problems.clone();
    for _ in 1..options.plain_runs {
        let again = execute(scenario, Mode::Plain, options, build);
        problems.extend(again.problems);
        if let Some(diff) = difference(&oracle.transcript, &again.transcript) {
            problems.push(format!("plain TCP disagrees with itself:\n{diff}"));
        }
    }
    // What this machine cannot do, it cannot in any mode.
    if let Some(why) = oracle.skipped.as_deref().filter(|_| problems.is_empty()) {
        let asked = modes.iter().filter(|mode| **mode == Mode::Plain || due.contains(*mode));
        asked.for_each(|mode| skip(&(mode.name(), why), &mut report));
        return (report, failed);
    }
    verdict(Mode::Plain, &oracle, &problems, &mut report);
    if options.verbose {
        report.push_str(&oracle.transcript);
    }
    if !problems.is_empty() {
        return (report, failed);
    }
    options.transcripts.keep(scenario.name, &oracle.transcript);
    let mut early = early.into_iter().flatten();
    for &mode in &due {
        let already = early.next().flatten();
        if let Some(reason) = why_skipped(mode) {
            skip(reason, &mut report);
            continue;
        }
        let outcome = already.unwrap_or_else(|| execute(scenario, mode, options, build));
        let mut problems = outcome.problems.clone();
        if let Some(why) = &outcome.skipped {
            problems.push(format!("{why}, it says, and on plain TCP it does not"));
        }
        if let Some(diff) = difference(&oracle.transcript, &outcome.transcript) {
            problems.push(format!("the transcript differs from plain TCP (-) :\n{diff}"));
        }
        verdict(mode, &outcome, &problems, &mut report);
    }
    (report, failed)
}

/// The lines in which two transcripts differ, with the last common line before each group.
pub fn difference(expected: &str, got: &str) -> Option<String> {
    if expected == got {
        return None;
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), got.lines().collect());
    // Longest common subsequence: transcripts are short.
    let mut common = vec![vec![0u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = if a[i] == b[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut out = String::new();
    let mut context = None;
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            context = Some(a[i]);
            i += 1;
            j += 1;
            continue;
        }
        if let Some(line) = context.take() {
            out.push_str(&format!("  {line}\n"));
        }
        if j >= b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            out.push_str(&format!("- {}\n", a[i]));
            i += 1;
        } else {
            out.push_str(&format!("+ {}\n", b[j]));
            j += 1;
        }
    }
    Some(out)
}

struct Side {
    role: Role,
    child: Child,
    control: Option<Fd>,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// This program, whatever the current directory.
pub fn own_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"))
}

/// The environment of a process that has the library, or has not.
pub fn library_env(command: &mut Command, build: &Build, preload: bool) {
    for (key, _) in std::env::vars() {
        let aid =
            ["NETACC_TEST_SWITCH", "NETACC_TEST_LOOKS", "NETACC_TEST_FAIL", "NETACC_TEST_COUNTS"];
        if key.starts_with("NACC_") || key == "LD_PRELOAD" || aid.contains(&key.as_str()) {
            command.env_remove(key);
        }
    }
    command.env("NETACC_TEST_PROGRAM", own_program()).env("RUST_BACKTRACE", "0");
    if preload {
        if std::env::var_os("NETACC_TEST_FAST").is_some() {
            command.env("NACC_FAST_CONNECT", "1");
        }
        command.env("LD_PRELOAD", &build.library);
        command.env("NACC_LOG_PATH", log_path());
        if let Some(level) = std::env::var_os("NETACC_TEST_LOG_LEVEL") {
            command.env("NACC_LOG_LEVEL", level);
        }
        command.envs(build.environment.iter().map(|(k, v)| (k, v)));
        if build.path == Path::Rdma {
            command.env("NACC_PATHS", build.path.name());
        }
    }
}

/// As [`library_env`] where the library changes paths by itself, in an order that `seed` decides.
pub fn switching_env(command: &mut Command, build: &Build, seed: u64) {
    library_env(command, build, true);
    command.env("LD_PRELOAD", &build.switching).env("NETACC_TEST_SWITCH", seed.to_string());
}

/// Where the library logs to: $NETACC_TEST_LOG, or a file of this run's.
fn log_path() -> PathBuf {
    std::env::var_os("NETACC_TEST_LOG").map_or_else(
        || std::env::temp_dir().join(format!("netacc-test-{}.log", std::process::id())),
        PathBuf::from,
    )
}

/// Removes the library's log of this run, unless somebody wants to have it; returns it when there
/// is one.
pub fn take_log() -> Option<String> {
    let log = log_path();
    let text = std::fs::read_to_string(&log).ok();
    if std::env::var_os("NETACC_TEST_LOG").is_none() {
        let _ = std::fs::remove_file(&log);
    }
    text
}

/// For how long each wait looks in that mode, microseconds: most of what is waited for comes then.
const LOOKS_US: &str = "2000";

fn start(scenario: &Scenario, role: Role, mode: Mode, build: &Build) -> Side {
    let [mine, theirs] =
        sys::socketpair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC).expect("socketpair");
    // SAFETY: a new fd that nothing else owns.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
    let mut command = Command::new(own_program());
    command.args([
        "scenario",
        scenario.name,
        &format!("{role:?}"),
        &format!("{:?}", mode.warmup(scenario)),
    ]);
    command
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    library_env(&mut command, build, mode.preloads(role));
    match mode {
        Mode::Tcp => drop(command.env("NACC_ENABLE_RDMA_DEFAULT", "0")),
        Mode::Early | Mode::New => drop(command.env("NACC_CONN_TCP_FIRST", "1")),
        // So that news mostly comes while a wait looks, also on a busy machine.
        Mode::ServerOnly | Mode::ClientOnly => drop(command.env("NACC_POLL_TCP_US", "1000")),
        Mode::Fast => drop(command.env("NACC_FAST_CONNECT", "1")),
        Mode::Switch => switching_env(&mut command, build, 12345),
        Mode::Looks => {
            let _ = command.env("LD_PRELOAD", &build.switching).env("NETACC_TEST_LOOKS", LOOKS_US);
        }
        Mode::Rdma => drop(command.envs(scenario.rdma_environment.iter().copied())),
        _ => {}
    }
    let mut child = command.spawn().expect("start a scenario process");
    let mut out = child.stdout.take().expect("piped");
    let mut err = child.stderr.take().expect("piped");
    let slurp = |pipe: &mut dyn Read| {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Side {
        role,
        child,
        control: Some(mine),
        stdout: std::thread::spawn(move || slurp(&mut out)),
        stderr: std::thread::spawn(move || slurp(&mut err)),
    }
}

pub fn execute(scenario: &Scenario, mode: Mode, options: &Options, build: &Build) -> Outcome {
    let begin = Instant::now();
    let build = &build.clone().with_path(mode.path());
    let timeout = options.timeout * sys::patience() * scenario.length;
    let roles: &[Role] = match scenario.parts {
        Parts::Pair { .. } | Parts::Obeyed(_) => &[Role::Server, Role::Client],
        Parts::Alone(_) => &[Role::Alone],
    };
    let mut sides: Vec<Side> =
        roles.iter().map(|&role| start(scenario, role, mode, build)).collect();
    let required = mode.requires(scenario);
    let mut broker = Broker::new(build, mode, required);
    let in_time = serve(&mut sides, &mut broker, begin + timeout);
    if !in_time {
        let mut where_ = String::new();
        for side in &sides {
            where_.push_str(&stacks(side.child.id()));
            if mode.preloads(side.role) {
                where_.push_str(&connections_of(build, side.child.id() as i32));
            }
        }
        broker.problems.push(format!("timed out after {timeout:?}\n{where_}"));
    }
    if required && mode != Mode::Rdma && !broker.accelerated && broker.problems.is_empty() {
        broker.problems.push(format!("none of its connections came onto {}", mode.path().name()));
    }
    // (A scenario that has failed says so itself.)
    let asked = broker.short_ones.filter(|_| scenario.own_carriers().is_none());
    if let Some((kept, made)) = asked.filter(|_| !broker.took && broker.problems.is_empty()) {
        broker.problems.push(match kept {
            true => "none of its connections has the carrier of one before it".into(),
            false => format!("{made} short connections have left no carrier behind"),
        });
    }
    let mut transcript = String::new();
    let mut stderr = String::new();
    for side in &mut sides {
        let group = -(side.child.id() as i32);
        if !in_time {
            let _ = sys::kill(group, libc::SIGKILL);
        }
        let status = side.child.wait();
        // Whatever the scenario left running belongs to its group.
        let _ = sys::kill(group, libc::SIGKILL);
        if let Some(fd) = side.control {
            let _ = sys::close(fd);
        }
        let end = match status {
            Ok(s) => {
                s.code().map_or_else(|| format!("signal {:?}", s.signal()), |c| format!("exit {c}"))
            }
            Err(e) => format!("{e}"),
        };
        if end != "exit 0" && in_time {
            broker.problems.push(format!("[{:?}] ended with {end}", side.role));
        }
    }
    for side in sides {
        for line in side.stdout.join().unwrap_or_default().lines() {
            transcript.push_str(&format!("[{:?}] {line}\n", side.role));
        }
        let text = side.stderr.join().unwrap_or_default();
        if !text.is_empty() {
            stderr.push_str(&format!("[{:?}] {text}\n", side.role));
        }
    }
    Outcome {
        transcript,
        problems: broker.problems,
        skipped: broker.skipped,
        stderr,
        accelerated: broker.accelerated || broker.took,
        millis: begin.elapsed().as_millis(),
    }
}

/// Forwards messages until every process has closed its control socket; false when the time is up.
fn serve(sides: &mut [Side], broker: &mut Broker, deadline: Instant) -> bool {
    let mut held: Vec<(usize, String)> = Vec::new();
    let mut gone = false;
    loop {
        let open: Vec<(usize, Fd)> =
            sides.iter().enumerate().filter_map(|(i, s)| s.control.map(|fd| (i, fd))).collect();
        if open.is_empty() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
        if left == 0 {
            return false;
        }
        let set: Vec<(Fd, i16)> = open.iter().map(|&(_, fd)| (fd, libc::POLLIN)).collect();
        let Ok((_, ready)) = sys::poll(&set, left) else {
            continue;
        };
        for (&(i, fd), revents) in open.iter().zip(ready) {
            if revents == 0 {
                continue;
            }
            let mut buf = [0u8; 4096];
            let n = sys::recv(fd, &mut buf, 0).unwrap_or(0);
            if n == 0 {
                let _ = sys::close(fd);
                sides[i].control = None;
                continue;
            }
            let message = String::from_utf8_lossy(&buf[..n]).into_owned();
            if message.starts_with('>') {
                held.push((1 - i.min(1), message));
            } else if let Some(answer) = broker.answer(&message) {
                let _ = sys::send(fd, answer.as_bytes(), libc::MSG_NOSIGNAL);
            }
        }
        for (to, message) in held.drain(..) {
            if let Some(fd) = sides.get(to).and_then(|s| s.control) {
                let _ = sys::send(fd, message.as_bytes(), libc::MSG_NOSIGNAL);
            }
        }
        // A process that still waits for one that is gone must not wait for the deadline.
        if sides.iter().any(|s| s.control.is_none()) && !gone {
            gone = true;
            for fd in sides.iter().filter_map(|s| s.control) {
                let _ = sys::send(fd, b"gone", libc::MSG_NOSIGNAL);
            }
        }
    }
}

/// The connections of a hung process: some of them, and how many there are.
fn connections_of(build: &Build, pid: i32) -> String {
    let list = match build.connections(pid) {
        Ok(list) => list,
        Err(e) => return format!("{e}\n"),
    };
    let odd = |c: &&Connection| !c.is_on(build.path);
    let mut out = format!(
        "{pid}: {} connections, {} not on {}\n",
        list.len(),
        list.iter().filter(odd).count(),
        build.path.name()
    );
    for connection in list.iter().filter(odd).chain(list.first()).take(8) {
        out.push_str(&format!("{pid}: {connection:?}\n"));
    }
    out
}

/// Where the threads of a hung process wait in the kernel.
fn stacks(pid: u32) -> String {
    let mut out = String::new();
    if let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) {
        for entry in entries.flatten() {
            let read = |f: &str| {
                std::fs::read_to_string(entry.path().join(f)).unwrap_or_default().trim().to_string()
            };
            out.push_str(&format!(
                "{pid}: {} in {} ({})\n",
                read("comm"),
                read("wchan"),
                read("syscall")
            ));
        }
    }
    out
}
