//! What the tools say fits the terminal that they say it on, and none is lost of what they say to
//! a file.

mod support;

use netacc_control::stats::{CONNS_OFFSET, ConnRecord, Header, Reason};
use std::mem::{offset_of, size_of};
use std::process::Command;
use support::segment::Segment;
use support::terminal::said;
use support::{Ran, Scratch, run, trace};

const WIDTHS: [u16; 5] = [40, 60, 80, 120, 200];

/// Connections whose cells are as wide as they can be.
fn wide(pid: u32) -> Segment {
    let segment = Segment::filled(pid);
    let longest = Reason::in_use().max_by_key(|reason| reason.name().len()).unwrap();
    for index in 3..9 {
        let at = CONNS_OFFSET + index * size_of::<ConnRecord>();
        segment.u32(at + offset_of!(ConnRecord, state), 1);
        segment.u32(at + offset_of!(ConnRecord, fd), 1000 + index as u32);
        segment.u32(at + offset_of!(ConnRecord, tx_path), 1);
        segment.u32(at + offset_of!(ConnRecord, reason), longest as u32);
        segment.u32(at + offset_of!(ConnRecord, local_port), 65535);
        segment.u32(at + offset_of!(ConnRecord, peer_port), 65534);
        let is_ipv6 = index % 2 == 0;
        segment.u32(at + offset_of!(ConnRecord, family), if is_ipv6 { 10 } else { 2 });
        for address in [offset_of!(ConnRecord, local_addr), offset_of!(ConnRecord, peer_addr)] {
            segment.u64(at + address, if is_ipv6 { u64::MAX / 3 } else { 0x7fc8_c8c8 << 32 });
            segment.u64(at + address + 8, u64::MAX / 5);
        }
        segment.u64(at + offset_of!(ConnRecord, tx_bytes), u64::MAX / 3);
        segment.u64(at + offset_of!(ConnRecord, rx_bytes), u64::MAX / 3);
    }
    segment.u32(offset_of!(Header, conn_high_water), 9);
    segment
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// One that is longer than a line is not broken: what is copied would be another one.
fn is_a_word_of_a_command(line: &str) -> bool {
    let line = line.strip_suffix(" \\").unwrap_or(line).trim_start();
    let labels = ["mend: ", "edit: ", "look: "];
    let word = labels.iter().find_map(|label| line.strip_prefix(label)).unwrap_or(line);
    shlex::split(word).is_some_and(|words| words.len() == 1)
}

/// Cells move when rows are folded.
fn letters(text: &str) -> Vec<char> {
    let mut letters: Vec<char> = squeezed(text).chars().collect();
    letters.sort_unstable();
    letters
}

#[test]
fn no_line_is_wider_than_the_terminal_and_nothing_is_lost() {
    let pid = std::process::id().to_string();
    let segment = wide(std::process::id());
    let scratch = Scratch::new();
    let file = scratch.path("trace");
    std::fs::write(&file, trace::bytes()).unwrap();
    let file = file.display().to_string();
    let (ss, netacc) = (env!("CARGO_BIN_EXE_netacc_ss"), env!("CARGO_BIN_EXE_netacc"));
    // Each with what its lines are known by; the last ones say something else each time.
    let set = ["cfg", "set", "--wait", "0.05", "NACC_LOG_LEVEL", "3", "-p", &pid];
    let bench = ["bench", "pingpong", "--rounds", "1", "--seconds", "0.1", "--warmup", "0.02"];
    let bench = [&bench[..], &["--pin=none", "--lib", "/nonexistent.so"]].concat();
    let all: [(&str, &[&str], &[&str]); 17] = [
        (ss, &["-s", "sock", &pid], &["1003", "1008", "127.200.200.200:65535"]),
        (ss, &["-s", "cnt", &pid], &["peer-without-library", "rdma-lost", "fail_overs"]),
        (ss, &["-s", "cfg,qp", &pid], &["NACC_LOG_PATH", "rdma", "4711"]),
        (netacc, &["cfg", "list", "-p", &pid], &["NACC_SOR_MSG_SIZE", "NACC_LOG_PATH"]),
        (netacc, &["cfg", "list"], &["NACC_SOR_MSG_SIZE"]),
        (netacc, &["trace", "show", "--file", &file], &["65535", "open"]),
        (ss, &["-s", "mem", &pid], &["rdma"]),
        (ss, &["-w", "0.1", "-n", "1", "-s", "all", &pid], &["1003", "1008"]),
        (netacc, &["ps"], &[&pid]),
        (netacc, &["trace", "list"], &[]),
        (netacc, &["doctor", &pid], &[&pid]),
        (netacc, &["doctor", "127.0.0.1:1"], &["127.0.0.1:1"]),
        (netacc, &["trace", "histogram", "--file", &file], &["median"]),
        (netacc, &set, &[&pid]),
        (netacc, &set[..5], &[]),
        (netacc, &["cfg", "reload", "--wait", "0.05", "-p", &pid], &[&pid]),
        (netacc, &bench, &["plain", "p99.9", "NOT ACCELERATED"]),
    ];
    for (index, (program, words, keys)) in all.into_iter().enumerate() {
        let command = || {
            let mut command = Command::new(program);
            command.args(words).env_remove("COLUMNS");
            command
        };
        let whole: Ran = run(&mut command());
        for columns in WIDTHS {
            let (text, status) = said(columns, &mut command());
            let about = format!("{words:?} in {columns} columns: {status}\n{text}");
            assert_eq!(status.code(), whole.status, "{about}");
            let is_wide = |line: &&str| line.chars().count() > columns.into();
            let is_whole = |line: &str| words[0] == "doctor" && is_a_word_of_a_command(line);
            assert!(text.lines().filter(is_wide).all(is_whole), "{about}");
            for key in keys {
                assert!(text.lines().any(|line| line.contains(key)), "{key}: {about}");
            }
            if index < 6 {
                assert_eq!(letters(&text), letters(&whole.out), "{about}\n{}", whole.out);
            }
        }
    }
    // What is asked for whole is whole, and a row is a line where it fits.
    let sock = |columns, more: &[&str]| {
        let all = [&["-s", "sock", &pid], more].concat();
        said(columns, Command::new(ss).args(all).env_remove("COLUMNS")).0
    };
    let whole = run(Command::new(ss).args(["-s", "sock", &pid])).out;
    assert_eq!(sock(200, &[]), whole);
    let row = |line: &str| line.contains("1003") && line.matches("127.200.200.200").count() == 2;
    assert!(whole.lines().any(row), "{whole}");
    assert!(sock(40, &["--wide"]).lines().any(row));
    drop(segment);
}

#[test]
fn every_help_fits_the_terminal() {
    let (ss, netacc) = (env!("CARGO_BIN_EXE_netacc_ss"), env!("CARGO_BIN_EXE_netacc"));
    let mut all: Vec<(&str, Vec<&str>)> =
        vec![(ss, vec![]), (env!("CARGO_BIN_EXE_netacc_run"), vec![]), (netacc, vec![])];
    let alone = ["run", "ss", "ps", "capture", "cfg", "doctor", "metrics", "top", "trace", "bench"];
    all.extend(alone.map(|word| (netacc, vec![word])));
    let [cfg, trace] = [["list", "get", "set", "reload"], ["list", "show", "histogram", "export"]];
    all.extend(cfg.map(|word| (netacc, vec!["cfg", word])));
    all.extend(trace.map(|word| (netacc, vec!["trace", word])));
    for (program, words) in all {
        for help in ["-h", "--help"] {
            let command = || {
                let mut command = Command::new(program);
                command.args(&words).arg(help).env_remove("COLUMNS");
                command
            };
            let whole = run(&mut command());
            assert!(
                whole.status == Some(0) && whole.out.contains("-h"),
                "{words:?}: {}",
                whole.out
            );
            for columns in WIDTHS {
                let (text, status) = said(columns, &mut command());
                let about = format!("{words:?} {help} in {columns} columns: {status}\n{text}");
                assert!(status.success(), "{about}");
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert!(widest <= Some(columns.into()), "{about}");
                assert_eq!(squeezed(&text), squeezed(&whole.out), "{about}");
            }
        }
    }
}

#[test]
fn netacc_enable_fits_the_terminal_too() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/netacc-enable");
    // (There is no library in any place that is as long as that.)
    let place = format!("/nowhere/{}", "a-long-name/".repeat(20));
    for (words, status) in [(&["-h"][..], 0), (&["--what-is-no-option"], 2), (&["some"], 1)] {
        let command = || {
            let mut command = Command::new("sh");
            command.arg(script).args(words).env_remove("COLUMNS");
            // (Without a systemd it says so, and that is long enough.)
            command.env("NETACC_UNIT_DIR", "/nowhere").env("NETACC_LIB", &place);
            command
        };
        let whole = run(&mut command());
        assert_eq!(whole.status, Some(status), "{}", whole.err);
        for columns in WIDTHS {
            let (text, _) = said(columns, &mut command());
            let about = format!("{words:?} in {columns} columns:\n{text}");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns.into()), "{about}");
            assert_eq!(squeezed(&text), squeezed(&(whole.out.clone() + &whole.err)), "{about}");
        }
    }
}

#[test]
fn a_terminal_may_say_nothing_and_columns_may_be_asked_for() {
    let list = |columns, asked: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
        command.args(["cfg", "list"]).env_remove("COLUMNS");
        asked.map(|asked| command.env("COLUMNS", asked));
        let (text, _) = said(columns, &mut command);
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    };
    let whole = list(200, None);
    assert!((61..=80).contains(&whole), "{whole}");
    assert_eq!(list(0, None), whole);
    assert!(list(40, None) <= 40);
    assert!(list(200, Some("50")) <= 50);
    assert_eq!(list(40, Some("120")), whole);
    assert_eq!(list(200, Some("wide")), whole);
    // It is no terminal: what a script reads has its own lines.
    let mut piped = Command::new(env!("CARGO_BIN_EXE_netacc"));
    let piped = run(piped.args(["cfg", "list"]).env("COLUMNS", "40")).out;
    assert_eq!(piped.lines().map(|line| line.chars().count()).max(), Some(whole));
}

#[test]
fn what_goes_to_standard_error_fits_the_terminal_too() {
    let (ss, netacc) = (env!("CARGO_BIN_EXE_netacc_ss"), env!("CARGO_BIN_EXE_netacc"));
    let run_it = env!("CARGO_BIN_EXE_netacc_run");
    let none = "a-program-with-a-long-name-that-nobody-has-started";
    let pid = std::process::id().to_string();
    let _segment = wide(std::process::id());
    let scratch = Scratch::new();
    let file = scratch.path("a-capture-with-a-name-of-some-length.pcapng").display().to_string();
    let nowhere = format!("/nowhere/{none}/in-a-folder-that-is-not-there.prom");
    let all: [(&str, &[&str]); 14] = [
        (netacc, &["capture", "-w", &file, "-d", "0.1", "-p", &pid]),
        (netacc, &["capture", "-w", &file, "-p", none]),
        (netacc, &["capture", "-w", &nowhere, "-p", &pid]),
        (netacc, &["capture", "-w", &file, "--peer", "what", "-p", &pid]),
        (netacc, &["metrics", "--textfile", &nowhere]),
        (netacc, &["metrics", "--listen", "192.0.2.1:9000"]),
        (netacc, &["metrics", "--listen", &format!("unix:{nowhere}")]),
        (ss, &[none]),
        (ss, &["-s", "what"]),
        (netacc, &["cfg", "set", "NACC_SOR_MSG_SIZE", "5000", "-p", none]),
        (netacc, &["cfg", "get", "NACC_NO_SUCH_PARAMETER"]),
        (netacc, &["trace", "show", "-p", none]),
        (netacc, &["doctor", "127.0.0.1:0"]),
        (run_it, &["-n", "0", "true"]),
    ];
    for (program, words) in all {
        let command = || {
            // (A capture takes a name that nobody has.)
            let _ = std::fs::remove_file(&file);
            let mut command = Command::new(program);
            command.args(words).env_remove("COLUMNS");
            command
        };
        let whole = run(&mut command());
        assert!(whole.out.is_empty() && !whole.err.is_empty(), "{words:?}: {}", whole.out);
        for columns in WIDTHS {
            let (text, status) = said(columns, &mut command());
            let about = format!("{words:?} in {columns} columns: {status}\n{text}");
            assert_eq!(status.code(), whole.status, "{about}");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns.into()), "{about}");
            assert_eq!(squeezed(&text), squeezed(&whole.err), "{about}");
        }
    }
}
