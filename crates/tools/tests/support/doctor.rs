//! `netacc doctor`, and what it has found.

use super::{Ran, run};
use netacc_control::stats::{CONNS_OFFSET, Header, MAGIC, MEMFD_NAME, VERSION};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::mem::offset_of;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub fn doctor(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("NACC_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.env("NETACC_LIB", library).env("NACC_LOG_PATH", "").arg("doctor");
    command
}

/// What it says of a subject, and its exit status; both as on a host without RDMA devices.
pub fn told<S: AsRef<OsStr>>(command: &mut Command, subject: &[S]) -> (Value, Option<i32>) {
    let Ran { status, out, err } = run(command.arg("--json").args(subject));
    assert_eq!(err, "");
    let told = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    each_has_a_command(&told);
    as_without_devices(told, status)
}

/// What is in the way of the devices alone that a host may have is not counted.
fn as_without_devices(mut told: Value, status: Option<i32>) -> (Value, Option<i32>) {
    let problems = || told["findings"].as_array().unwrap().iter();
    let problems = || problems().filter(|finding| finding["level"] == "problem");
    let of_devices = |check: &str| check == "memlock" || check.starts_with("rdma-");
    let of_devices = problems().filter(|finding| of_devices(finding["check"].as_str().unwrap()));
    let (all, of_devices) = (problems().count(), of_devices.count());
    assert_eq!((told["problems"] == all, status == Some(0)), (true, all == 0), "{told:#}");
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if !devices.is_ok_and(|mut all| all.next().is_some()) {
        return (told, status);
    }
    told["problems"] = (all - of_devices).into();
    if of_devices == 0 || of_devices != all || status != Some(1) {
        return (told, status);
    }
    told["verdict"] = "clear".into();
    (told, Some(0))
}

/// Whatever is not as it should be has a command beside it that can be run as it stands, or the
/// reason why there is none.
pub fn each_has_a_command(told: &Value) {
    for finding in told["findings"].as_array().unwrap() {
        let [remedy, line, does, none] =
            ["remedy", "command", "command_does", "no_command"].map(|name| finding[name].as_str());
        if finding["level"] == "ok" {
            assert_eq!([remedy, line, does, none], [None; 4], "{finding:#}");
            continue;
        }
        assert!(remedy.is_some_and(|text| text.len() > 3), "no words: {finding:#}");
        match (line, does, none) {
            (Some(line), Some("mends" | "opens" | "shows"), None) => can_be_run(line),
            (None, None, Some(why)) => assert!(why.len() > 10, "{finding:#}"),
            _ => panic!("neither a command nor a reason: {finding:#}"),
        }
        // (Words may name what is to be done elsewhere, but leave no blanks either.)
        has_no_blanks(remedy.unwrap());
    }
}

/// What a reader would have to fill in.
fn has_no_blanks(text: &str) {
    let blanks = ["PID", "HOST", "PORT", "COPY", "INTERPRETER", "UNIT", "PEER", "ADDRESS", "FILE"];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_=/%$".contains(c);
    let mut words = text.split(|c| !is_part(c));
    let blank = words.find(|word| blanks.contains(word));
    assert_eq!(blank, None, "{text}");
    assert!(!text.contains('…') && !text.contains("..."), "{text}");
    let is_bracket = |at: usize| text[at + 1..].starts_with(|c: char| c.is_alphabetic());
    assert!(!text.match_indices('<').any(|(at, _)| is_bracket(at)), "{text}");
}

/// A shell takes it, and finds a program by the first word of each of its commands.
fn can_be_run(line: &str) {
    has_no_blanks(line);
    let sh = |script: &str| Command::new("sh").args(["-c", script]).output().unwrap();
    let parsed = Command::new("sh").args(["-n", "-c", line]).output().unwrap();
    assert!(parsed.status.success() && parsed.stderr.is_empty(), "{line}: {parsed:?}");
    let commands = line.replace(" && ", ";").replace(" | ", ";");
    for command in commands.split(';').map(str::trim) {
        let word = command.trim_start_matches("sudo ").split(' ').next().unwrap();
        // (What may not be installed here, and what is beside the program in PATH where it is.)
        let other = ["sudoedit", "netacc-enable", "gdb", "rdma", "nsenter", "journalctl"];
        if !word.starts_with('$') && !other.contains(&word) {
            let found = sh(&format!("command -v {word}"));
            assert!(found.status.success(), "{word} of: {line}");
        }
    }
}

/// The first finding of a check at a level.
pub fn finding<'a>(told: &'a Value, check: &str, level: &str) -> &'a Value {
    let all = told["findings"].as_array().unwrap();
    let found = all.iter().find(|f| f["check"] == check && f["level"] == level);
    found.unwrap_or_else(|| panic!("no {level} of {check}: {told:#}"))
}

/// What a finding's command does, and the command; or why there is none.
pub fn line_of(finding: &Value) -> (&str, &str) {
    match finding["command"].as_str() {
        Some(line) => (finding["command_does"].as_str().unwrap(), line),
        None => ("none", finding["no_command"].as_str().unwrap()),
    }
}

/// Runs the command that mends a finding, with that home.
pub fn mend(finding: &Value, home: &Path) {
    let ("mends", line) = line_of(finding) else { panic!("{finding:#}") };
    let ran = Command::new("sh").args(["-c", line]).env("HOME", home).output().unwrap();
    assert!(ran.status.success(), "{line}: {ran:?}");
}

/// A finding has that text, and says what mends it.
pub fn says(finding: &Value, text: &str) {
    let found = finding["found"].as_str().unwrap();
    assert!(found.contains(text), "{text}: {finding}");
    assert!(!finding["remedy"].as_str().unwrap_or_default().is_empty(), "{finding}");
}

/// A child that is killed at the end.
pub struct Running(pub Child);

impl Running {
    pub fn new(command: &mut Command) -> Running {
        let child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        Running(child)
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn wait_for_maps(process: &Running, name: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    let maps = format!("/proc/{}/maps", process.pid());
    while !std::fs::read_to_string(&maps).unwrap().contains(name) {
        assert!(Instant::now() < end, "{name} is not in {maps}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process is that program.
pub fn wait_for_program(process: &Running, name: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    let comm = format!("/proc/{}/comm", process.pid());
    while std::fs::read_to_string(&comm).unwrap().trim_end() != name {
        assert!(Instant::now() < end, "{comm}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program that listens and has the library, with statistics that a test writes.
pub struct Server {
    pub process: Running,
    statistics: File,
    pub place: String,
}

impl Server {
    pub fn new(library: &Path) -> Server {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Server::of(command, library)
    }

    /// Of a command that becomes `sleep`.
    pub fn of(mut command: Command, library: &Path) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let statistics = File::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).unwrap());
        statistics.set_len(CONNS_OFFSET as u64).unwrap();
        // (It holds both.)
        command.env("LD_PRELOAD", library).stdin(OwnedFd::from(listener));
        let process = Running(command.stdout(statistics.try_clone().unwrap()).spawn().unwrap());
        drop(command);
        wait_for_program(&process, "sleep");
        wait_for_maps(&process, "libnetacc-preload.so");
        let server = Server { process, statistics, place };
        server.put(offset_of!(Header, magic), &MAGIC.to_ne_bytes());
        server.put(offset_of!(Header, version), &VERSION.to_ne_bytes());
        server.put(offset_of!(Header, pid), &server.process.0.id().to_ne_bytes());
        server
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.statistics.write_all_at(bytes, at as u64).unwrap();
    }

    /// Says that it has this configuration.
    pub fn configure(&self, text: &str) {
        self.put(offset_of!(Header, config), text.as_bytes());
        self.put(offset_of!(Header, config_len), &(text.len() as u32).to_ne_bytes());
    }
}
