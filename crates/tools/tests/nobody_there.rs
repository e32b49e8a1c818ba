//! What is asked of all processes and reaches none: done is not what it was.

mod support;

use std::process::{Command, Output};

/// `netacc` with these words, among no other processes and no traces; `None` where there can be no
/// such place.
fn alone(words: &str) -> Option<Output> {
    within("mount -t tmpfs none /dev/shm", words)
}

/// The same in mounts of its own, where that was done before.
fn within(done: &str, words: &str) -> Option<Output> {
    let mut command = Command::new("unshare");
    command.args(["-rmpf", "--mount-proc", "sh", "-c"]);
    command.arg(format!("{{ {done}; }} || exit 77; exec \"$@\""));
    command.args(["sh", env!("CARGO_BIN_EXE_netacc")]).args(words.split(' '));
    let ran = command.env("NACC_LOG_PATH", "").output().ok()?;
    let is_there = ran.status.code() != Some(77) && !ran.stderr.starts_with(b"unshare: ");
    if !is_there {
        support::skip(format_args!("no namespaces: {}", String::from_utf8_lossy(&ran.stderr)));
    }
    is_there.then_some(ran)
}

#[test]
fn what_reaches_no_process_has_failed() {
    for (words, out, says) in [
        ("cfg set --all NACC_LOG_LEVEL 1", "", "netacc: no process that may be asked"),
        ("cfg set --all --json NACC_LOG_LEVEL 1", "[]\n", "netacc: no process that may be asked"),
        ("cfg get --all NACC_LOG_LEVEL", "", "netacc: no process that may be asked"),
        ("cfg list --all", "", "netacc: no process that may be asked"),
        ("cfg list --all --json", "[]\n", "netacc: no process that may be asked"),
        ("cfg reload --all", "", "netacc: no process that may be asked"),
        ("trace show", "", "netacc: there is no trace"),
        ("trace show --follow", "", "netacc: there is no trace"),
        ("trace histogram", "", "netacc: there is no trace"),
        ("trace export", "", "netacc: there is no trace"),
    ] {
        let Some(ran) = alone(words) else { return };
        assert_eq!(ran.status.code(), Some(1), "{words}");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), out, "{words}");
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(err.starts_with(says) && err.lines().count() == 1, "{words}: {err}");
    }
}

#[test]
fn without_proc_nobody_is_seen_and_that_is_said() {
    let all = [
        "ps",
        "ps --json",
        "ps -w 1 -n 1",
        "ss",
        "ss --json",
        "ss -w 1 -n 1",
        "ss -s sock",
        "ss 1",
        "ss -c",
        "ss -c --json",
        "top",
        "metrics",
        "metrics --listen 127.0.0.1:0",
        "metrics --textfile /dev/shm/metrics.prom",
        "trace list",
        "trace list --json",
        "trace show",
        "trace show -p 1",
        "trace histogram",
        "trace export",
        "capture -p 1 -w -",
        "cfg list --all",
        "cfg get -p 1 NACC_LOG_LEVEL",
        "cfg set --all NACC_LOG_LEVEL 1",
        "cfg reload --all",
    ];
    let gone = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /proc";
    for words in all {
        let Some(ran) = within(gone, words) else { return };
        let err = String::from_utf8_lossy(&ran.stderr);
        let is_said = err.contains(": /proc: no process is in it: ") && err.lines().count() == 1;
        assert!(is_said, "{words}: {err}");
        assert_eq!(ran.status.code(), Some(1), "{words}");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "", "{words}");
    }
}

#[test]
fn the_doctor_says_that_proc_is_missing_and_blames_nothing_else() {
    for subject in ["", " 1", " sh", " 127.0.0.1:1"] {
        let words =
            format!("doctor{subject} --json").replace("doctor sh --json", "doctor --json sh");
        let Some(ran) = within("mount -t tmpfs none /proc", &words) else { return };
        let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        let findings = told["findings"].as_array().unwrap();
        assert_eq!((findings.len(), &findings[0]["check"]), (1, &"proc".into()), "{told:#}");
        assert_eq!(findings[0]["command"], "mount -t proc proc /proc");
        assert_eq!(findings[0]["command_does"], "mends");
        assert_eq!((&told["verdict"], ran.status.code()), (&"unknown".into(), Some(2)));
    }
    let Some(ran) = within("mount -t tmpfs none /proc", "run true") else { return };
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(!err.contains("neither in") && err.contains("/proc/self/exe"), "{err}");
}

#[test]
fn a_list_may_be_empty() {
    for words in ["ps", "ss", "trace list"] {
        let Some(ran) = alone(words) else { return };
        assert_eq!(ran.status.code(), Some(0), "{words}");
        assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{words}");
    }
}
