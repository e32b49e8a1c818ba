//! Where a tool cannot say what it has to say, it ends with a status and a word: every one of them,
//! with a full disk, a closed standard output, and a reader that has seen enough.

mod support;

use std::process::Command;
use support::segment::Segment;
use support::{Scratch, trace};

/// What each of them prints is something on any host. PID: a process that has the library's
/// statistics. FILE: a trace.
const WORDS: [&str; 40] = [
    "netacc --help",
    "netacc --version",
    "netacc help ps",
    "netacc run --help",
    "netacc run --version",
    "netacc_run -h",
    "netacc_run -v",
    "netacc_ss -h",
    "netacc ps",
    "netacc ps --wide",
    "netacc ps --json",
    "netacc ps -w 0.1",
    "netacc ps -w 0.1 --wide",
    "netacc ps -w 0.1 --json",
    "netacc_ss",
    "netacc_ss -p PID -s all",
    "netacc_ss -p PID -s all --json",
    "netacc_ss -p PID -w 0.1",
    "netacc ss -p PID -w 0.1 --json",
    "netacc capture -p PID -w - -d 0.1",
    "netacc cfg list",
    "netacc cfg list --all --json",
    "netacc cfg list -p PID",
    "netacc cfg get NACC_TRACE --all",
    "netacc cfg set NACC_LOG_LEVEL 3 -p PID --wait 0.01 --json",
    "netacc cfg reload -p PID --wait 0.01 --json",
    "netacc doctor",
    "netacc doctor --json",
    "netacc doctor PID",
    "netacc doctor /bin/sh",
    "netacc doctor 127.0.0.1:1",
    "netacc metrics",
    "netacc trace list",
    "netacc trace list --json",
    "netacc trace show --file FILE",
    "netacc trace show --file FILE --json",
    "netacc trace show --file FILE --follow",
    "netacc trace histogram --file FILE",
    "netacc trace export --file FILE",
    "netacc bench --rounds 1 --seconds 0.05 --warmup 0.01 --lib /no.so --kinds plain pingpong",
];

/// Its words, its status, and what it says on standard error. `shell`: with TOOL in the place of
/// the tool.
fn status_and_words(shell: &str) -> Vec<(&'static str, Option<i32>, String)> {
    let pid = std::process::id();
    let _segment = Segment::filled(pid);
    let scratch = Scratch::new();
    let file = scratch.path("trace");
    std::fs::write(&file, trace::bytes()).unwrap();
    let run = |words: &'static str| {
        let (program, rest) = words.split_once(' ').unwrap_or((words, ""));
        let program = match program {
            "netacc" => env!("CARGO_BIN_EXE_netacc"),
            "netacc_run" => env!("CARGO_BIN_EXE_netacc_run"),
            _ => env!("CARGO_BIN_EXE_netacc_ss"),
        };
        let rest = rest.replace("PID", &pid.to_string()).replace("FILE", file.to_str().unwrap());
        // (Who goes on for ever is ended, and has failed: nothing here takes as long.)
        let tool = format!("timeout -s KILL 60 {program} {rest}");
        let output =
            Command::new("bash").args(["-c", &shell.replace("TOOL", &tool)]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{words}: {said}");
        (words, output.status.code(), said)
    };
    WORDS.iter().map(|words| run(words)).collect()
}

/// One test at a time: each holds out statistics of its own.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_full_disk_is_said() {
    let _alone = alone();
    for (words, status, said) in status_and_words("TOOL >/dev/full") {
        assert_eq!(status, Some(1), "{words}: {said}");
        assert!(said.contains("standard output: No space left"), "{words}: {said}");
    }
}

#[test]
fn a_closed_one_is_said() {
    let _alone = alone();
    for (words, status, said) in status_and_words("TOOL >&-") {
        assert_eq!(status, Some(1), "{words}: {said}");
        assert!(said.contains("standard output: Bad file descriptor"), "{words}: {said}");
    }
}

#[test]
fn where_nothing_can_be_said_the_status_does() {
    let _alone = alone();
    for shell in ["TOOL >/dev/full 2>/dev/full", "TOOL <&- >&- 2>&-", "TOOL >&- 2>/dev/full"] {
        for (words, status, _) in status_and_words(shell) {
            assert_eq!(status, Some(1), "{words}: {shell}");
        }
    }
}

/// Also where a write to a pipe that nobody reads is no signal, as below many programs.
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let _alone = alone();
    for shell in
        ["TOOL | true; exit ${PIPESTATUS[0]}", "trap '' PIPE; TOOL | true; exit ${PIPESTATUS[0]}"]
    {
        for (words, status, said) in status_and_words(shell) {
            // (Some say why there is nothing to say, and of a bench its progress.)
            assert!(!said.contains("standard output"), "{words}: {said}");
            assert_ne!(status, Some(128 + libc::SIGKILL), "{words}: goes on for nobody");
            assert_ne!(status, Some(128 + libc::SIGABRT), "{words}: {said}");
        }
    }
}

/// Of so many rounds that they would take hours.
#[test]
fn a_benchmark_ends_when_its_reader_has_seen_enough() {
    let bench = "timeout 120 \"$0\" bench --rounds 100000 --seconds 0.05 --warmup 0.01 \
                 --lib /no.so --kinds plain pingpong 2>/dev/null | head -n 1; exit ${PIPESTATUS[0]}";
    let output =
        Command::new("bash").args(["-c", bench, env!("CARGO_BIN_EXE_netacc")]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(!output.stdout.is_empty());
}

#[test]
fn top_asks_for_a_terminal_whatever_it_has_instead() {
    for shell in [">&-", ">/dev/full", "| cat", "<&- >&-"] {
        let top = format!("\"$0\" top {shell}; exit ${{PIPESTATUS[0]}}");
        let output =
            Command::new("bash").args(["-c", &top, env!("CARGO_BIN_EXE_netacc")]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{shell}: {said}");
        assert!(said.contains("this takes a terminal"), "{shell}: {said}");
    }
}

/// As root it would be gone.
#[test]
fn metrics_replaces_no_device() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let metrics = |file: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
        let output = command.args(["metrics", "--textfile"]).arg(file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let said = format!("netacc metrics: {}: is no file, and is left as it is\n", pipe.display());
    assert_eq!(metrics(&pipe), (Some(1), said));
    assert_eq!(std::fs::read_dir(scratch.path("")).unwrap().count(), 1, "a file is left over");
    // A link, too: `/dev/stdout` is one.
    let link = scratch.path("link");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    let said = format!("netacc metrics: {}: is no file, and is left as it is\n", link.display());
    assert_eq!(metrics(&link), (Some(1), said));
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}
