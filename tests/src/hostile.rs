//! The hostile suite: attackers against unmodified programs under `netacc_run`.
//!
//! One file per kind of attacker. A test starts a victim as one user, the attacker as another, and
//! in most cases a third user's checksummed stream beside them ([`parts`]). What has to hold: the
//! victim goes on and serves, the third user's stream is exact, nobody burns a CPU while the
//! attacker sleeps, and the peer at fault is named.
//!
//! Each test is a process of its own, in a process group that is ended with it, with a limit of
//! time. The programs are copied to a directory that every user can read. Other users can only be
//! had by root: the suite is skipped otherwise.
//!
//! A new test: a function in the attacker's file, named in its `TESTS`; the programs that it starts
//! are in the file's `part`, or in [`parts`].

#![allow(dead_code, reason = "what the files of attackers have to use")]

mod children;
mod confined;
mod descriptors;
mod parts;
mod traced;
mod words;

use crate::runner::{Totals, library_env, own_program};
use crate::ss::{Build, Connection};
use crate::sys;
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Users of the tests: numbers that need no entry anywhere.
pub const VICTIM: u32 = 61_001;
pub const ATTACKER: u32 = 61_002;
pub const THIRD: u32 = 61_003;
pub const ROOT: u32 = 0;

/// One test. Its name is the attacker's file, then what is tried.
pub struct Test {
    pub name: &'static str,
    pub run: fn(&Place) -> Verdict,
}

/// Why a test did not pass.
#[derive(Debug)]
pub enum Not {
    Skipped(String),
    Failed(String),
}

pub type Verdict = Result<(), Not>;

impl From<String> for Not {
    fn from(why: String) -> Not {
        Not::Failed(why)
    }
}

impl From<&str> for Not {
    fn from(why: &str) -> Not {
        Not::Failed(why.into())
    }
}

/// Fails the test unless `holds`.
pub fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Not::Failed(otherwise())) }
}

/// Skips the test: the machine lacks something.
pub fn skip<T>(why: &str) -> Result<T, Not> {
    Err(Not::Skipped(why.into()))
}

fn tests() -> impl Iterator<Item = &'static Test> {
    [words::TESTS, descriptors::TESTS, children::TESTS, confined::TESTS, traced::TESTS]
        .into_iter()
        .flatten()
}

/// How long a test may take, and how long anything in it.
fn limit() -> Duration {
    sys::patience() * Duration::from_secs(90)
}

fn patience() -> Duration {
    sys::patience() * Duration::from_secs(20)
}

/// The status of a test's process that skips.
const SKIPPED: u8 = 77;

// --------------------------------------------------------------------------------------- the suite

/// `hostile [NAME...]`: all tests, or those whose names contain one of these.
pub fn run(names: &[&str]) -> ExitCode {
    let build = Build::find();
    let totals = Totals::default();
    let selected = tests().filter(|t| names.is_empty() || names.iter().any(|n| t.name.contains(n)));
    let without = match () {
        () if !build.is_there() => Some("no library: run make first"),
        // SAFETY: asks the kernel.
        () if unsafe { libc::geteuid() } != 0 => Some("other users can only be had by root"),
        () => None,
    };
    let stage = without.is_none().then(|| Stage::new(&build));
    for test in selected {
        let began = Instant::now();
        let verdict = match (&stage, without) {
            (Some(stage), _) => stage.run(test),
            (None, why) => Err(Not::Skipped(why.unwrap_or_default().into())),
        };
        let millis = began.elapsed().as_millis();
        match verdict {
            Ok(()) => {
                totals.pass();
                println!("test hostile/{} ... ok ({millis} ms)", test.name);
            }
            Err(Not::Skipped(why)) => {
                totals.skip();
                println!("test hostile/{} ... skipped ({})", test.name, why.trim());
            }
            Err(Not::Failed(why)) => {
                totals.fail();
                println!("test hostile/{} ... FAILED ({millis} ms)", test.name);
                why.lines().for_each(|line| println!("    {line}"));
            }
        }
    }
    println!("\nhostile: {}", totals.line());
    if totals.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `hostile-one NAME DIR`: one test, in its own process.
pub fn one(name: &str, dir: &str) -> ExitCode {
    let Some(test) = tests().find(|t| t.name == name) else {
        return ExitCode::from(2);
    };
    let place = Place { dir: dir.into(), build: Build::find(), started: Cell::new(0) };
    match (test.run)(&place) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Not::Skipped(why)) => {
            println!("{why}");
            ExitCode::from(SKIPPED)
        }
        Err(Not::Failed(why)) => {
            println!("{why}");
            place.show_logs();
            ExitCode::FAILURE
        }
    }
}

/// `hostile-part ROLE ARGS...`: a program that a test starts.
pub fn part(words: &[&str]) -> ExitCode {
    sys::default_signal(libc::SIGPIPE);
    let known = parts::part(words)
        || words::part(words)
        || traced::part(words)
        || descriptors::part(words)
        || children::part(words)
        || confined::part(words);
    if known { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

/// The programs, where every user can run them; removed at the end.
struct Stage {
    dir: PathBuf,
}

impl Stage {
    fn new(build: &Build) -> Stage {
        let dir = std::env::temp_dir().join(format!("netacc-hostile-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory for the programs");
        let from = build.library.parent().expect("the library's directory");
        let stage = Stage { dir };
        for name in ["libnetacc_preload.so", "netacc_run", "netacc_ss", "netacc"] {
            std::fs::copy(from.join(name), stage.dir.join(name)).expect("copy a program");
        }
        let program = stage.dir.join("netacc-conformance");
        std::fs::copy(own_program(), program).expect("copy this program");
        let _ = std::fs::set_permissions(&stage.dir, PermissionsExt::from_mode(0o755));
        stage
    }

    /// Runs a test; afterwards nothing of it runs any more.
    fn run(&self, test: &Test) -> Verdict {
        let dir = self.dir.join(test.name.replace('/', "-"));
        std::fs::create_dir(&dir).expect("a directory of the test's own");
        // Each user's processes log here.
        let _ = std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o1777));
        let said = dir.join("said");
        let file = std::fs::File::create(&said).expect("a file");
        let mut child = Command::new(self.dir.join("netacc-conformance"))
            .args(["hostile-one", test.name])
            .arg(&dir)
            .env("NETACC_LIB_DIR", &self.dir)
            .stdin(Stdio::null())
            .stderr(file.try_clone().expect("a file"))
            .stdout(file)
            .process_group(0)
            .spawn()
            .expect("start a test");
        let group = -(child.id() as i32);
        let status = await_end(&mut child, limit());
        let _ = sys::kill(group, libc::SIGKILL);
        let _ = child.wait();
        let said = std::fs::read_to_string(said).unwrap_or_default();
        match status.and_then(|s| s.code()) {
            Some(0) => Ok(()),
            Some(code) if code == i32::from(SKIPPED) => Err(Not::Skipped(said)),
            Some(_) => Err(Not::Failed(said)),
            None if status.is_some() => Err(Not::Failed(format!("{said}ended by {status:?}"))),
            None => Err(Not::Failed(format!("{said}not done after {:?}", limit()))),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The status of a child that ends in time.
fn await_end(child: &mut Child, time: Duration) -> Option<std::process::ExitStatus> {
    // SAFETY: makes a descriptor; this process's own child.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as i32, 0) } as i32;
    let ended = sys::await_events(pidfd, libc::POLLIN, time.as_millis() as i32) != 0;
    let _ = sys::close(pidfd);
    if ended { child.wait().ok() } else { None }
}

// ----------------------------------------------------------------------------------- for the tests

/// Where a test starts its programs.
pub struct Place {
    dir: PathBuf,
    pub build: Build,
    started: Cell<u32>,
}

impl Place {
    /// Starts a part of the suite as `user`, under `netacc_run`.
    pub fn start(&self, user: u32, words: &[&str]) -> Proc {
        self.start_with(user, words, |_| ())
    }

    /// The same, and more said of the command.
    pub fn start_with(&self, user: u32, words: &[&str], more: impl FnOnce(&mut Command)) -> Proc {
        let mut all = vec![own_program().to_string_lossy().into_owned(), "hostile-part".into()];
        all.extend(words.iter().map(|w| w.to_string()));
        self.start_program(user, &all, more)
    }

    /// Starts any program as `user`, under `netacc_run`.
    pub fn start_program(
        &self,
        user: u32,
        words: &[String],
        more: impl FnOnce(&mut Command),
    ) -> Proc {
        let number = self.started.replace(self.started.get() + 1);
        let log = self.dir.join(format!("log-{number}-{user}"));
        let bin = self.build.library.parent().unwrap_or(Path::new("."));
        let mut command = Command::new(bin.join("netacc_run"));
        library_env(&mut command, &self.build, false);
        command
            .args(words)
            .env("NETACC_LIB", &self.build.library)
            .env("NETACC_LIB_DIR", bin)
            .env("NACC_LOG_PATH", &log)
            .current_dir(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        more(&mut command);
        become_user(&mut command, user);
        let mut child = command.spawn().expect("start a process");
        Proc {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
            log,
        }
    }

    /// A third user's stream to `port`, checked byte by byte, on shared memory from here on.
    pub fn stream(&self, port: u16) -> Result<Stream, Not> {
        let mut process = self.start(THIRD, &["stream", &port.to_string()]);
        let local = process.number("local")?;
        let stream = Stream { process, local };
        self.await_fast(&stream.process, stream.local)?;
        Ok(stream)
    }

    /// Waits until a process's connection from `local` is on shared memory both ways.
    pub fn await_fast(&self, process: &Proc, local: u16) -> Verdict {
        let end = Instant::now() + patience();
        loop {
            // (It may not have said yet what it is.)
            let list = self.build.connections(process.pid());
            let mine = list.iter().flatten().find(|c| c.local_port == local);
            if mine.is_some_and(|c| c.is_on(self.build.path)) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("never on shared memory: {list:?}").into());
            }
            sys::sleep_ms(5);
        }
    }

    /// What `netacc_ss` says of a process's connection with the peer's port `peer`.
    pub fn connection_with(&self, process: &Proc, peer: u16) -> Result<Option<Connection>, Not> {
        let list = self.build.connections(process.pid())?;
        Ok(list.into_iter().find(|c| c.peer_port == peer))
    }

    /// The text of `netacc_ss` with these options.
    pub fn netacc_ss(&self, options: &[&str], process: &Proc) -> String {
        let output = Command::new(&self.build.netacc_ss)
            .args(options)
            .arg(process.pid().to_string())
            .output();
        output.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).into_owned())
    }

    fn show_logs(&self) {
        let Ok(files) = std::fs::read_dir(&self.dir) else {
            return;
        };
        for file in files.flatten().filter(|f| f.file_name().to_string_lossy().starts_with("log")) {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(10)..] {
                println!("{}: {line}", file.file_name().to_string_lossy());
            }
        }
    }
}

/// The command's process is `user`'s, has no other groups, and ends with this one.
pub fn become_user(command: &mut Command, user: u32) {
    // SAFETY: system calls that are async-signal-safe and touch no memory of the parent.
    unsafe {
        command.pre_exec(move || {
            if user != ROOT {
                let done = libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setresgid(user, user, user) == 0
                    && libc::setresuid(user, user, user) == 0;
                if !done {
                    return Err(std::io::Error::last_os_error());
                }
            }
            // After the change of user, which clears it.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
}

/// A process of a test; ends with it.
pub struct Proc {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    log: PathBuf,
}

impl Proc {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Writes a line to the process's standard input.
    pub fn order(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// The next line of its standard output.
    pub fn line(&mut self) -> Result<String, Not> {
        let fd = self.output.get_ref().as_raw_fd();
        let patience = patience().as_millis() as i32;
        let mut line = String::new();
        if self.output.buffer().is_empty() && sys::await_events(fd, libc::POLLIN, patience) == 0 {
            return Err(format!("process {} says nothing", self.pid()).into());
        }
        let read = self.output.read_line(&mut line).unwrap_or(0);
        if read == 0 {
            return Err(format!("process {} has ended: {:?}", self.pid(), self.child.wait()).into());
        }
        Ok(line.trim().into())
    }

    /// The number in the next line, which is `WORD NUMBER`.
    pub fn number<T: std::str::FromStr>(&mut self, word: &str) -> Result<T, Not> {
        let line = self.line()?;
        let rest = line.strip_prefix(word).and_then(|r| r.trim().parse().ok());
        rest.ok_or_else(|| format!("`{line}` instead of `{word} NUMBER`").into())
    }

    /// Waits for this line.
    pub fn await_line(&mut self, wanted: &str) -> Verdict {
        let line = self.line()?;
        expect(line == wanted, || format!("`{line}` instead of `{wanted}`"))
    }

    /// Fails when the process has ended.
    pub fn must_live(&mut self, who: &str) -> Verdict {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(format!("{who} has ended: {ended:?}").into()),
        }
    }

    /// Fails unless the process comes to rest: all its threads together use next to nothing of a
    /// CPU over a second. One that turns in circles has a multiple of that on a machine under any
    /// load; one that is still busy is given time.
    pub fn must_rest(&self, who: &str) -> Verdict {
        self.must_rest_but(0, who)
    }

    /// As [`Proc::must_rest`], where it has so many tenths of a CPU's time to use for others, or a
    /// periodic task.
    pub fn must_rest_but(&self, tenths: u64, who: &str) -> Verdict {
        let mut used = Vec::new();
        for _ in 0..6 {
            let before = self.cpu_ns();
            sys::sleep_ms(1000);
            // (Less than before: a thread has ended meanwhile.)
            let now = self.cpu_ns().checked_sub(before);
            if now.is_some_and(|ns| ns < 10_000_000 + tenths * 100_000_000) {
                return Ok(());
            }
            used.push(now.map(|ns| ns / 1_000_000));
        }
        Err(format!("{who} does not rest: {used:?} ms of CPU in a second each").into())
    }

    /// The CPU time of all its threads.
    pub fn cpu_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let of = |dir: std::fs::DirEntry| {
            let text = std::fs::read_to_string(dir.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        tasks.map_or(0, |t| t.flatten().filter_map(of).sum())
    }

    /// What its library has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it with this signal and waits for its end.
    pub fn end_with(&mut self, signal: i32) {
        let _ = sys::kill(self.pid(), signal);
        let _ = self.child.wait();
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The stream of a third user.
pub struct Stream {
    pub process: Proc,
    pub local: u16,
}

impl Stream {
    /// Ends the stream: it was exact from the first byte to the last, and goes on to this moment.
    pub fn must_be_exact(mut self) -> Verdict {
        self.process.order("more");
        self.process.await_line("more")?;
        self.process.order("end");
        let line = self.process.line()?;
        expect(line.starts_with("exact "), || format!("a third user's stream: {line}"))
    }
}
