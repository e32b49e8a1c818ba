//! Scratch directories and small programs for the tests.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod doctor;
pub mod segment;
pub mod terminal;
pub mod top;
pub mod trace;

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// This test, or a part of it, cannot be made here. Past what cargo keeps to itself of tests that
/// have passed: `tests/run-all` counts it as skipped, and shows why.
pub fn skip(why: impl Display) {
    let thread = std::thread::current();
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("test {} ... skipped ({why})\n", thread.name().unwrap_or("?"));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// A directory that goes away with the test. One at a time: a file that one thread is writing while
/// another forks cannot be executed for a moment (ETXTBSY).
pub struct Scratch(PathBuf, MutexGuard<'static, ()>);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static LOCK: Mutex<()> = Mutex::new(());
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("netacc-tools-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Scratch(path, lock)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Compiles C; `None` where there is no compiler, or it cannot do that.
    pub fn compile(&self, name: &str, text: &str, flags: &[&str]) -> Option<PathBuf> {
        let source = self.write(&format!("{name}.c"), text);
        let program = self.path(name);
        let mut cc = Command::new("cc");
        let done = cc.arg("-o").arg(&program).arg(&source).args(flags).output().ok()?;
        if !done.status.success() {
            eprintln!("cc {flags:?}: {}", String::from_utf8_lossy(&done.stderr));
        }
        done.status.success().then_some(program)
    }

    /// A stand-in for the acceleration library, so that these tests do not depend on it.
    pub fn library(&self) -> PathBuf {
        let text = "int netacc_stand_in(void) { return 1; }\n";
        self.compile("libnetacc-preload.so", text, &["-shared", "-fPIC"]).expect("a C compiler")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub const HELLO: &str = "int main(void) { return 42; }\n";

pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// `netacc_run` with that library, and nothing of ours in the environment.
pub fn netacc_run(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc_run"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("NACC_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.env("NETACC_LIB", library);
    command
}

pub fn run(command: &mut Command) -> Ran {
    command.output().unwrap().into()
}
