//! `netacc doctor`, and what it has found.

use super::{Ran, run};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

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
    (serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}")), status)
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
