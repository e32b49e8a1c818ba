//! Small looks at files of the kernel and at programs, each bounded in time and size.

use crate::segment::field;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The start of a small file, without the white space at its ends. `None`: it cannot be read.
pub fn file(path: impl AsRef<Path>) -> Option<String> {
    text(path).ok()
}

/// The same, with the error.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    const BYTES_MAX: u64 = 4 << 20;
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// A number in a file of its own.
pub fn number(path: impl AsRef<Path>) -> Option<i64> {
    file(path)?.parse().ok()
}

/// The names in a directory, in order; none where there is no such directory.
pub fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// What a program writes to its standard error, if it ends in time.
pub fn complaints(command: &mut Command, limit: Duration) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let pipe = child.stderr.take()?;
    written(child, pipe, limit)
}

/// What a program writes to its standard output, if it ends in time.
pub fn answer(command: &mut Command, limit: Duration) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let pipe = child.stdout.take()?;
    written(child, pipe, limit)
}

fn written(mut child: Child, pipe: impl Read + Send + 'static, limit: Duration) -> Option<String> {
    let reader = std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.take(1 << 16).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let is_in_time = ends(&mut child, limit);
    if !is_in_time {
        let _ = child.kill();
        let _ = child.wait();
    }
    reader.ok().filter(|_| is_in_time)?.join().ok()
}

fn ends(child: &mut Child, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Ok(Some(_)) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// The status of a process, or of this one: `/proc/self/status`.
#[derive(Debug)]
pub struct Status(String);

impl Status {
    /// Reads it from a directory of `/proc`.
    pub fn of(directory: &str) -> io::Result<Status> {
        text(format!("{directory}/status")).map(Status)
    }

    /// What a line says.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.0, name).map(str::trim)
    }

    /// 0 none, 1 strict, 2 a filter; of a kernel without it nothing.
    pub fn seccomp(&self) -> Option<u32> {
        self.field("Seccomp:")?.parse().ok()
    }

    /// Whether it has a capability, by its number.
    pub fn has_capability(&self, number: u32) -> bool {
        let set = self.field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok());
        set.is_some_and(|set| set >> number & 1 == 1)
    }

    /// The effective user.
    pub fn uid(&self) -> Option<u32> {
        self.field("Uid:")?.split_whitespace().nth(1)?.parse().ok()
    }
}

/// What the path utcp needs; who has the last one needs no CAP_BPF.
pub const CAP_NET_ADMIN: u32 = 12;
/// As that.
pub const CAP_NET_RAW: u32 = 13;
/// As that.
pub const CAP_BPF: u32 = 39;
/// As that.
pub const CAP_SYS_ADMIN: u32 = 21;
/// Raises hard limits.
pub const CAP_SYS_RESOURCE: u32 = 24;
/// Overrides the limit of locked memory.
pub const CAP_IPC_LOCK: u32 = 14;

/// A limit: what it is now, and how far it may be raised. `None`: unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The soft one.
    pub now: Option<u64>,
    /// The hard one.
    pub most: Option<u64>,
}

/// A limit of a process, by its name in `/proc/PID/limits` (proc_pid_limits(5)).
pub fn limit(limits: &str, name: &str) -> Option<Limit> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let value = |word: &str| match word {
        "unlimited" => Some(None),
        word => word.parse().ok().map(Some),
    };
    let mut words = line.split_whitespace();
    Some(Limit { now: value(words.next()?)?, most: value(words.next()?)? })
}

/// Bytes of a limit, for people.
pub fn kib(limit: Option<u64>) -> String {
    limit.map_or_else(|| String::from("unlimited"), |bytes| format!("{} KiB", bytes / 1024))
}

/// A namespace of a process, as the kernel numbers it. `None`: it may not be seen.
pub fn namespace(directory: &str, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("{directory}/ns/{kind}")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 unlimited            files\n\
                      Max locked memory         x                    8388608              bytes\n";
        let files = limit(limits, "Max open files");
        assert_eq!(files, Some(Limit { now: Some(1024), most: None }));
        assert_eq!(limit(limits, "Max locked memory"), None, "garbage");
        assert_eq!(limit(limits, "Max nothing"), None);
        assert_eq!(kib(Some(8 << 20)), "8192 KiB");
    }

    #[test]
    fn a_program_that_hangs_is_not_waited_for() {
        let limit = Duration::from_millis(50);
        assert_eq!(complaints(Command::new("sleep").arg("1000"), limit), None);
        let long = Duration::from_secs(60);
        let said = complaints(Command::new("sh").args(["-c", "echo no >&2"]), long);
        assert_eq!(said.as_deref(), Some("no\n"));
    }

    #[test]
    fn what_is_not_there_is_none() {
        assert_eq!(file("/nowhere/at/all"), None);
        assert!(names("/nowhere/at/all").is_empty());
        assert!(Status::of("/proc/self").unwrap().uid().is_some());
        assert!(namespace("/proc/self", "net").unwrap().starts_with("net:["));
    }
}
