//! `netacc_ss` without a process: what is asked for of all of them, and what goes with `-c`.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::segment::Segment;
use support::{Ran, Scratch, run, skip};

/// One test at a time: each holds out statistics of its own.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ss(arguments: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_netacc_ss")).args(arguments))
}

/// What is said of this process among all; `None`: nothing.
fn own(said: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(said).unwrap();
    let own = u64::from(std::process::id());
    all.as_array().unwrap().iter().find(|it| it["pid"].as_u64() == Some(own)).cloned()
}

#[test]
fn what_is_asked_for_is_shown_of_every_process() {
    let _alone = alone();
    let pid = std::process::id();
    let _segment = Segment::filled(pid);
    let title = format!("Process {pid} (");
    for (arguments, has) in [
        (&["-s", "mem"][..], "Reserved"),
        (&["-s", "qp,cfg"], "NACC_TRACE"),
        (&["--port", "6379"], "1 of 3 open connections"),
        (&["--sort", "sent"], "3 open connections"),
        (&["--path", "shm", "--wide"], "Ring-Used"),
    ] {
        let ran = ss(arguments);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(ran.out.contains(&title) && ran.out.contains(has), "{arguments:?}: {}", ran.out);
    }
    let said = own(&ss(&["--port", "6379", "--json"]).out).unwrap();
    assert_eq!(said["sockets"].as_array().unwrap().len(), 1, "{said}");
    // Nothing asked for: the overview.
    assert!(!ss(&[]).out.contains(&title));
    assert_eq!(own(&ss(&["--json"]).out).unwrap()["connections_total"], 15);
}

#[test]
fn what_is_asked_for_is_watched_of_every_process() {
    let _alone = alone();
    let _segment = Segment::filled(std::process::id());
    let title = format!("Process {} (", std::process::id());
    for (arguments, is_shown) in
        [(&["--path", "shm"][..], true), (&["-s", "sock"], true), (&[], false)]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc_ss"));
        command.args(["-w", "0.1", "-n", "1"]).args(arguments).stdout(Stdio::piped());
        let mut watch = command.spawn().unwrap();
        let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        let said: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(watch.wait().unwrap().success(), "{arguments:?}");
        let has = said.iter().any(|line| line.starts_with(&title));
        assert_eq!(has, is_shown, "{arguments:?}: {said:?}");
    }
}

/// Who may look at none is not left with an empty answer.
#[test]
fn what_may_not_be_looked_at_is_said() {
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return skip("needs root to become somebody else");
    }
    let _segment = Segment::filled(std::process::id());
    let scratch = Scratch::new();
    let tool = scratch.path("netacc_ss");
    std::fs::copy(env!("CARGO_BIN_EXE_netacc_ss"), &tool).unwrap();
    for words in [
        &["-s", "mem"][..],
        &["--port", "6379"],
        &["--path", "shm", "--json"],
        &["-w", "0.1", "-n", "2"],
        &["-w", "0.1", "-n", "2", "-s", "sock"],
        &[],
    ] {
        let ran = run(Command::new(&tool).args(words).uid(65534).gid(65534));
        assert_eq!(ran.status, Some(0), "{words:?}: {}", ran.err);
        let said = ran.err.matches("may not be looked at, with the library or without").count();
        assert_eq!(said, 1, "{words:?}: {}", ran.err);
    }
}

#[test]
fn to_clear_goes_with_nothing_else() {
    let pid = std::process::id().to_string();
    for more in [
        &["-s", "sock"][..],
        &[&pid],
        &["-p", &pid],
        &["--wide"],
        &["-w", "1"],
        &["-n", "3"],
        &["--port", "80"],
        &["--peer", "::1"],
        &["--path", "shm"],
        &["--reason", "none"],
        &["--sort", "age"],
    ] {
        let ran = ss(&[&["-c"], more].concat());
        assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""), "{more:?}");
        assert!(ran.err.contains("-c") && ran.err.contains("cannot be used with"), "{}", ran.err);
    }
}

#[test]
fn a_number_that_no_process_has() {
    for (word, said) in [
        ("", "\"\": not the number"),
        ("0", "0: not the number"),
        ("2147483648", "1 to 2147483647"),
    ] {
        let ran = ss(&["-p", word]);
        assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""), "{word:?}");
        assert!(ran.err.contains(said), "{}", ran.err);
    }
}
