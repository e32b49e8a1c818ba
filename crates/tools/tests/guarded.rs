//! A process that nobody here may look into, also not with CAP_SYS_PTRACE: it belongs to the user
//! namespace above. (What a security module guards answers the same; that takes such a module.)

mod support;

use std::process::Command;
use support::segment::Segment;
use support::{Ran, run, skip};

/// As root of a user namespace below this one, with all capabilities there.
fn below(program: &str, words: &[&str]) -> Ran {
    let root = ["--user", "--map-root-user", program];
    run(Command::new("unshare").args(root).args(words))
}

#[test]
fn who_has_the_capability_is_not_told_to_take_it() {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let has = below("grep", &["CapEff", "/proc/self/status"]);
    let set = has.out.split_whitespace().nth(1).map(|set| u64::from_str_radix(set, 16).unwrap());
    if set.is_none_or(|set| set & CAP_SYS_PTRACE == 0) {
        return skip(format_args!("no user namespace: {}", has.err));
    }
    let pid = std::process::id().to_string();
    let _segment = Segment::filled(std::process::id());
    let (netacc, ss) = (env!("CARGO_BIN_EXE_netacc"), env!("CARGO_BIN_EXE_netacc_ss"));
    // It is to be seen where it may be.
    assert_eq!(run(Command::new(ss).arg(&pid)).status, Some(0));
    let all: [(&str, &[&str], i32); 7] = [
        (ss, &[&pid], 1),
        (ss, &["-s", "all", "--json", &pid], 1),
        (netacc, &["capture", "-p", &pid, "-w", "/dev/stdout/no", "-d", "0.1"], 1),
        (netacc, &["cfg", "get", "NACC_TRACE", "-p", &pid], 1),
        (netacc, &["cfg", "set", "--wait", "0.1", "NACC_LOG_LEVEL", "3", "-p", &pid], 1),
        (netacc, &["cfg", "reload", "--wait", "0.1", "-p", &pid], 1),
        // (It could not be told.)
        (netacc, &["doctor", &pid], 2),
    ];
    for (program, words, status) in all {
        let ran = below(program, words);
        let said: String = (ran.out + &ran.err).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(ran.status, Some(status), "{words:?}: {said}");
        assert!(said.contains("although this has CAP_SYS_PTRACE"), "{words:?}: {said}");
        assert!(!said.contains("or CAP_SYS_PTRACE"), "{words:?}: {said}");
    }
}
