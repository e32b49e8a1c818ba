//! What is asked of all processes and reaches none: done is not what it was.

mod support;

use std::process::{Command, Output};

/// `netacc` with these words, among no other processes and no traces; `None` where there can be no
/// such place.
fn alone(words: &str) -> Option<Output> {
    let mut command = Command::new("unshare");
    command.args(["-rmpf", "--mount-proc", "sh", "-c"]);
    command.arg("mount -t tmpfs none /dev/shm || exit 77; exec \"$@\"");
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
fn a_list_may_be_empty() {
    for words in ["ps", "ss", "trace list"] {
        let Some(ran) = alone(words) else { return };
        assert_eq!(ran.status.code(), Some(0), "{words}");
        assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{words}");
    }
}
