//! `netacc doctor`: what keeps a program, a process, a connection or this host from acceleration,
//! and what to do about it.
//!
//! It looks and changes nothing. It starts no program but the dynamic loader, which is asked what
//! it would load, and `systemctl show`. It connects to another host only where it was asked about a
//! connection to it. What it looks at may hang or lie, so the checks run in a thread of their own,
//! which is not waited for longer than [`PATIENCE`]; what they have found by then is said.

mod commands;
mod connection;
mod elsewhere;
mod finding;
mod host;
mod interfaces;
mod look;
mod process;
mod program;
mod rdma;
mod remedies;
mod remedy;
mod rules;

use super::{STATUS_FAILED, STATUS_USAGE, print};
use crate::segment;
use crate::terminal;
use clap::ArgMatches;
use finding::{Findings, Level};
use remedy::{mend, show};
use std::ffi::{OsStr, OsString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// For how long all checks together may look.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Host,
    /// A command with its arguments.
    Program(Vec<OsString>),
    Process(u32),
    /// A host's name or address, and a port.
    Connection(String, u16),
}

/// `netacc doctor …`, the command line read; the exit status: 0 nothing is in the way, 1 something
/// is, 2 a mistake on the command line, or it could not be looked at.
pub fn main(matches: &ArgMatches) -> c_int {
    let mut words: Vec<OsString> =
        matches.get_many::<OsString>("subject").into_iter().flatten().cloned().collect();
    let mut is_json = matches.get_flag("json");
    // Behind a number or a place, what would be a command's own option is ours.
    if let [one, rest @ ..] = words.as_slice()
        && !rest.is_empty()
        && rest.iter().all(|word| word == "--json")
        && !matches!(subject(std::slice::from_ref(one)), Ok(Subject::Program(_)))
    {
        is_json = true;
        words.truncate(1);
    }
    let subject = match subject(&words) {
        Ok(subject) => subject,
        Err(mistake) => {
            terminal::complain(&format!("netacc doctor: {mistake}"));
            return STATUS_USAGE;
        }
    };
    let (kind, name) = described(&subject);
    let findings = within(PATIENCE, move |findings| examine(subject, findings));
    let said = if is_json {
        format!("{:#}\n", findings.json(kind, &name))
    } else {
        findings.text(kind, &name, terminal::columns())
    };
    match (print("netacc doctor", &said), findings.worst()) {
        (0, _) if findings.is_blind => STATUS_USAGE,
        (0, Some(Level::Problem)) => STATUS_FAILED,
        (status, _) => status,
    }
}

/// What words mean. A file that is called as a number or a place is named by its path.
fn subject(words: &[OsString]) -> Result<Subject, String> {
    let Some(first) = words.first() else { return Ok(Subject::Host) };
    let text = first.to_str().unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let place = text
        .rsplit_once(':')
        .filter(|(host, port)| !host.is_empty() && !host.contains('/') && is_number(port));
    let found = match place {
        _ if is_number(text) => {
            let pid = text.parse().ok().filter(|pid| *pid != 0 && *pid <= i32::MAX as u32);
            let valid = format!("valid: 1 to {}", i32::MAX);
            pid.map(Subject::Process)
                .ok_or_else(|| format!("{text}: not the number of a process; {valid}"))?
        }
        Some((host, port)) => {
            let number = port.parse().ok().filter(|port| *port != 0);
            let port = number.ok_or_else(|| format!("{text}: not a port; valid: 1 to 65535"))?;
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = bare.unwrap_or(host);
            if bare.is_none() && host.contains(':') {
                return Err(format!("{text}: an IPv6 address stands in brackets: [{host}]:{port}"));
            }
            Subject::Connection(host.to_owned(), port)
        }
        None if first.is_empty() => return Err(String::from("the program has no name")),
        None => return Ok(Subject::Program(words.to_vec())),
    };
    match words {
        [_] => Ok(found),
        _ => Err(format!("{text}: nothing may follow it; a program of this name: ./{text}")),
    }
}

fn described(subject: &Subject) -> (&'static str, String) {
    match subject {
        Subject::Host => ("host", look::file("/proc/sys/kernel/hostname").unwrap_or_default()),
        Subject::Program(words) => {
            ("program", words.first().map_or("", |word| lossy(word)).to_owned())
        }
        Subject::Process(pid) => ("process", pid.to_string()),
        Subject::Connection(host, port) if host.contains(':') => {
            ("connection", format!("[{host}]:{port}"))
        }
        Subject::Connection(host, port) => ("connection", format!("{host}:{port}")),
    }
}

fn lossy(word: &OsStr) -> &str {
    std::str::from_utf8(word.as_bytes()).unwrap_or("?")
}

fn examine(subject: Subject, findings: &mut Findings) {
    // (Nearly all that is looked at is there, where the library lies as well.)
    if let Err(error) = segment::pids() {
        let mount = commands::as_root("mount -t proc proc /proc");
        findings.blind("proc", format!("/proc: {error}"), mend("mount it", mount));
        return;
    }
    match subject {
        Subject::Host => host::look(findings),
        Subject::Program(words) => program::look(&words, findings),
        Subject::Process(pid) => process::look(pid, findings),
        Subject::Connection(host, port) => connection::look(&host, port, findings),
    }
}

/// All findings of checks, or those that were made in time.
fn within(patience: Duration, checks: impl FnOnce(&mut Findings) + Send + 'static) -> Findings {
    let (sender, receiver) = mpsc::channel();
    // The thread is not joined: what it hangs in may never end. It dies with this process.
    let started = std::thread::Builder::new().spawn(move || {
        checks(&mut Findings::telling(sender));
    });
    let mut findings = Findings::default();
    if let Err(error) = started {
        let remedy = show("raise the limit of processes and threads", "prlimit --nproc");
        findings.blind("netacc", format!("no thread could be started: {error}"), remedy);
        return findings;
    }
    let end = Instant::now() + patience;
    loop {
        match receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(finding) => findings.take(finding),
            Err(RecvTimeoutError::Disconnected) => return findings,
            Err(RecvTimeoutError::Timeout) => {
                findings.blind(
                    "time",
                    format!(
                        "no answer within {} s: the rest was not looked at",
                        patience.as_secs()
                    ),
                    show(
                        "look for a process in state D, for a file system that does not answer, or \
                         for a slow name server, and try again",
                        "ps -eo pid,stat,wchan,comm",
                    ),
                );
                return findings;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_not_waited_for_and_what_was_found_is_said() {
        let (_hold, never) = mpsc::channel::<()>();
        let findings = within(Duration::from_secs(1), move |findings| {
            findings.ok("first", "found");
            let _ = never.recv();
            findings.ok("second", "found");
        });
        let told = findings.json("host", "h");
        assert_eq!(told["verdict"], "unknown");
        let checks = told["findings"].as_array().unwrap().iter().map(|f| f["check"].clone());
        assert_eq!(checks.collect::<Vec<_>>(), ["first", "time"]);
        let all = within(PATIENCE, |findings| findings.ok("first", "found"));
        assert!(!all.is_blind);
    }

    fn of(words: &[&str]) -> Result<Subject, String> {
        subject(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_name_a_subject() {
        let at = |host: &str, port| Ok(Subject::Connection(host.to_owned(), port));
        let program = |words: &[&str]| {
            Ok(Subject::Program(words.iter().map(OsString::from).collect::<Vec<_>>()))
        };
        assert_eq!(of(&[]), Ok(Subject::Host));
        assert_eq!(of(&["4711"]), Ok(Subject::Process(4711)));
        assert_eq!(of(&["db.example:6379"]), at("db.example", 6379));
        assert_eq!(of(&["[::1]:80"]), at("::1", 80));
        assert_eq!(of(&["./4711"]), program(&["./4711"]));
        assert_eq!(of(&["./a:80"]), program(&["./a:80"]));
        assert_eq!(of(&["redis-server", "--port", "1"]), program(&["redis-server", "--port", "1"]));
        assert_eq!(of(&["std::sort"]), program(&["std::sort"]));
        for wrong in [&["0"][..], &["99999999999"], &["a:0"], &["a:65536"], &["::1:80"], &[""]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
        assert!(of(&["4711", "4712"]).is_err());
    }
}
