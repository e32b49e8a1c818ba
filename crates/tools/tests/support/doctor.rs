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

/// What it says of a subject, and its exit status.
pub fn told<S: AsRef<OsStr>>(command: &mut Command, subject: &[S]) -> (Value, Option<i32>) {
    let Ran { status, out, err } = run(command.arg("--json").args(subject));
    assert_eq!(err, "");
    let told = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    each_has_a_command(&told);
    (told, status)
}

/// What a remedy begins a command with.
const PROGRAMS: [&str; 42] = [
    "netacc",
    "netacc_run",
    "netacc_ss",
    "sudo",
    "ss",
    "ls",
    "cat",
    "df",
    "tail",
    "head",
    "file",
    "sed",
    "readelf",
    "findmnt",
    "kill",
    "prlimit",
    "ulimit",
    "sysctl",
    "modprobe",
    "nft",
    "ip",
    "rdma",
    "ibv_devinfo",
    "apt",
    "getent",
    "ping",
    "nsenter",
    "chmod",
    "setcap",
    "cp",
    "export",
    "unset",
    "make",
    "journalctl",
    "uname",
    "man",
    "gdb",
    "mount",
    "ps",
    "netacc-enable",
    "systemctl",
    "sudoedit",
];

/// Whatever is not as it should be has a command beside it that mends or shows it.
fn each_has_a_command(told: &Value) {
    for finding in told["findings"].as_array().unwrap().iter().filter(|f| f["level"] != "ok") {
        let remedy = finding["remedy"].as_str().unwrap_or_default();
        let mut words = remedy.split([' ', '(', ',']).map(|word| word.trim_end_matches([';', ':']));
        assert!(words.any(|word| PROGRAMS.contains(&word)), "no command: {finding:#}");
    }
}

/// The first finding of a check at a level.
pub fn finding<'a>(told: &'a Value, check: &str, level: &str) -> &'a Value {
    let all = told["findings"].as_array().unwrap();
    let found = all.iter().find(|f| f["check"] == check && f["level"] == level);
    found.unwrap_or_else(|| panic!("no {level} of {check}: {told:#}"))
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
