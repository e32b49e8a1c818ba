//! A `/proc` that hides processes of others (`hidepid=`): it is said, where something is hidden.

mod support;

use std::process::Command;
use support::{Ran, run, skip};

const LINE: &str = "/proc does not show processes of others (hidepid=";

/// Who looks: a user, root without the capability to look into others, root.
const NOBODY: &str = "setpriv --reuid 65534 --regid 65534";
const WEAK_ROOT: &str = "setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace";

/// A program with these words as `who`, in a namespace of processes with a `/proc` that is mounted
/// so. The first process there is root's, and so is a second one whose capabilities are all. `None`
/// where there can be no such place.
fn seen(options: &str, who: &str, program: &str, words: &str) -> Option<Ran> {
    let mut command = Command::new("unshare");
    command.args(["-mpf", "--mount-proc", "sh", "-c"]);
    let script = "umount /proc && mount -t proc -o \"$0\" proc /proc || exit 77; exec 3>&-; \
                  sleep 1000 & \"$@\"; status=$?; kill $!; exit $status";
    command.args([script, options]).args(who.split_whitespace()).arg(program);
    let ran = run(command.args(words.split_whitespace()).env("NACC_LOG_PATH", ""));
    let is_there = ran.status != Some(77) && !ran.err.starts_with("unshare: ");
    if !is_there {
        skip(format_args!("no namespaces, or no hidepid: {}", ran.err));
    }
    is_there.then_some(ran)
}

const NETACC: &str = env!("CARGO_BIN_EXE_netacc");
const SS: &str = env!("CARGO_BIN_EXE_netacc_ss");

#[test]
fn who_sees_not_all_is_told_so_once() {
    for (program, words) in [
        (NETACC, "ps"),
        (NETACC, "ps --json"),
        (NETACC, "ps --wide"),
        (NETACC, "ps -w 0.1 -n 2"),
        (SS, ""),
        (SS, "--json"),
        (SS, "-s cnt"),
        (SS, "-w 0.1 -n 2"),
    ] {
        for options in ["hidepid=2", "hidepid=invisible,gid=4711", "hidepid=ptraceable"] {
            let who = format!("{NOBODY} --groups 4712");
            let Some(ran) = seen(options, &who, program, words) else { return };
            let lines = ran.err.lines().filter(|line| line.contains(LINE)).collect::<Vec<_>>();
            assert_eq!((ran.status, lines.len()), (Some(0), 1), "{words} {options}: {}", ran.err);
            assert!(lines[0].ends_with(": root sees all"), "{words} {options}: {}", ran.err);
            let name = if program == SS { "netacc_ss: " } else { "netacc: " };
            assert!(ran.err.lines().all(|line| line.starts_with(name)), "{words}: {}", ran.err);
        }
    }
}

#[test]
fn root_without_the_capability_is_told_which() {
    let Some(ran) = seen("hidepid=invisible", WEAK_ROOT, NETACC, "ps") else { return };
    // (The group of such a `/proc` is root's: what it does not hide may still not be looked at.)
    assert!(!ran.err.contains(LINE), "{}", ran.err);
    let says = "may not be looked at, with the library or without: with CAP_SYS_PTRACE root sees";
    assert!(ran.err.contains(says), "{}", ran.err);
    let Some(ran) = seen("hidepid=ptraceable", WEAK_ROOT, NETACC, "ps") else { return };
    assert!(ran.err.contains(LINE), "{}", ran.err);
    assert!(ran.err.ends_with(": with CAP_SYS_PTRACE root sees all\n"), "{}", ran.err);
}

#[test]
fn where_nothing_is_hidden_nothing_is_said_of_it() {
    let reader = format!("{NOBODY} --groups 4711");
    let stranger = format!("{NOBODY} --clear-groups");
    for (options, who, may_not) in [
        ("hidepid=invisible", "env", 0),
        ("hidepid=ptraceable", "env", 0),
        ("hidepid=off", "env", 0),
        // They are there, and are counted: the first one, and the one beside it.
        ("hidepid=invisible,gid=4711", reader.as_str(), 2),
        ("hidepid=noaccess", stranger.as_str(), 2),
        ("hidepid=off", stranger.as_str(), 2),
    ] {
        for words in ["ps", "ps --json"] {
            let Some(ran) = seen(options, who, NETACC, words) else { return };
            assert!(!ran.err.contains(LINE), "{options} {who}: {}", ran.err);
            let said = match may_not {
                0 => String::new(),
                n => format!(
                    "netacc: {n} processes may not be looked at, with the library or without: root \
                     sees all\n"
                ),
            };
            assert_eq!((ran.status, ran.err), (Some(0), said), "{options} {who} {words}");
        }
    }
}

#[test]
fn a_process_that_is_hidden_is_not_said_to_be_gone() {
    let who = format!("{NOBODY} --clear-groups");
    for options in ["hidepid=invisible", "hidepid=off"] {
        let Some(ran) = seen(options, &who, SS, "1") else { return };
        assert_eq!(ran.status, Some(1), "{options}");
        assert!(ran.err.contains("not permitted"), "{options}: {}", ran.err);
        // Nobody has that number.
        let Some(ran) = seen(options, &who, SS, "999999") else { return };
        assert_eq!(ran.status, Some(1), "{options}");
        assert!(ran.err.contains("no such process"), "{options}: {}", ran.err);
    }
}

#[test]
fn the_other_tools_say_it_too() {
    let who = format!("{NOBODY} --clear-groups");
    let Some(ran) = seen("hidepid=invisible", &who, NETACC, "metrics") else { return };
    assert!(ran.out.contains("\nnetacc_processes_hidden 1\n"), "{}", ran.out);
    let Some(ran) = seen("hidepid=invisible", "env", NETACC, "metrics") else { return };
    assert!(ran.out.contains("\nnetacc_processes_hidden 0\n"), "{}", ran.out);
    let Some(ran) = seen("hidepid=invisible", &who, NETACC, "doctor --json") else { return };
    let note = "/proc is mounted with hidepid=invisible: processes of other users do not show";
    assert!(ran.out.contains(note), "{}", ran.out);
    let Some(ran) = seen("hidepid=invisible", "env", NETACC, "doctor --json") else { return };
    assert!(!ran.out.contains("hidepid"), "{}", ran.out);
    let words = "cfg set --all NACC_LOG_LEVEL 1";
    let Some(ran) = seen("hidepid=invisible", &who, NETACC, words) else { return };
    let says = "processes that may not be looked at are left alone: root sees all";
    assert!(ran.err.contains(says), "{}", ran.err);
}
