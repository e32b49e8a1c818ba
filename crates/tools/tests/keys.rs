//! Every key that a tool prints with `--json`, every heading of its tables and every value of its
//! options is in its manual page.

mod support;

use netacc_control::stats::{Counter, Header, Reason};
use serde_json::Value;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::segment::Segment;
use support::{Scratch, run};

/// The keys of these objects are names of reasons, counters, parameters.
const NAMED: [&str; 4] = ["reasons", "open_reasons", "counters", "config"];

/// (A run without the library is a run.)
const BENCH: [&str; 12] = [
    "bench",
    "pingpong",
    "--rounds",
    "1",
    "--seconds",
    "0.1",
    "--warmup",
    "0.02",
    "--quiet",
    "--json",
    "-",
    "--pin=none",
];

/// All keys; of an event those that each has: what stands behind its name are its own fields.
fn collect(value: &Value, is_named: bool, all: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, false, all)),
        Value::Object(map) => {
            for (key, value) in map {
                if !is_named {
                    all.insert(key.clone());
                }
                collect(value, NAMED.contains(&key.as_str()), all);
                if key == "event" {
                    break;
                }
            }
        }
        _ => {}
    }
}

/// What a tool prints: one value, or one a line.
fn keys(tool: &str, words: &[&str]) -> BTreeSet<String> {
    let mut command = Command::new(tool);
    command.args(words).env("NETACC_LIB", "/nowhere");
    if !words.contains(&"--json") {
        command.arg("--json");
    }
    let ran = run(&mut command);
    let values = serde_json::Deserializer::from_str(&ran.out).into_iter::<Value>();
    let values: Vec<Value> = values.map(|value| value.expect(&ran.out)).collect();
    assert!(!values.is_empty(), "{words:?}: {}", ran.err);
    let mut all = BTreeSet::new();
    values.iter().for_each(|value| collect(value, false, &mut all));
    assert!(!all.is_empty(), "{words:?}: {}", ran.out);
    all
}

/// The headings of the tables that a tool prints: of lines that have nothing but such words.
fn headings(tool: &str, words: &[&str]) -> BTreeSet<String> {
    let ran = run(Command::new(tool).args(words));
    let is_word = |word: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '/';
        word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(is_part)
    };
    let mut all = BTreeSet::new();
    for line in ran.out.lines() {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        if cells.len() > 1 && cells.iter().all(|cell| is_word(cell)) {
            all.extend(cells.into_iter().map(str::to_owned));
        }
    }
    assert!(!all.is_empty(), "{words:?}: {}{}", ran.out, ran.err);
    all
}

/// What an option may be, as the complaint about another value has it.
fn values(tool: &str, option: &str) -> BTreeSet<String> {
    let ran = run(Command::new(tool).args([option, "no-such-value"]));
    let valid = ran.err.split("[possible values: ").nth(1).and_then(|rest| rest.split(']').next());
    valid.unwrap_or_else(|| panic!("{}", ran.err)).split(", ").map(str::to_owned).collect()
}

/// A page as it is read: of its words those that are names, in quotation marks or in bold.
fn named_in(page: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man").join(page);
    let text = std::fs::read_to_string(path).unwrap().replace("\\-", "-");
    let quoted = text.lines().flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_bold = |line: &&str| [".B ", ".BR ", ".RB ", ".BI "].iter().any(|b| line.starts_with(b));
    let bold = text.lines().filter(is_bold).flat_map(|line| line.split([' ', '"']));
    quoted.chain(bold).map(str::to_owned).collect()
}

/// What a page says of an option has each of these words.
fn option_says(page: &str, option: &str, all: &BTreeSet<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man").join(page);
    let text = std::fs::read_to_string(path).unwrap().replace("\\-", "-");
    let is_it = |item: &&str| item.lines().next().is_some_and(|line| line.contains(option));
    let item = text.split("\n.TP\n").find(is_it).unwrap_or_else(|| panic!("{option}"));
    let words: BTreeSet<&str> =
        item.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    let missing: Vec<_> = all.iter().filter(|word| !words.contains(word.as_str())).collect();
    assert!(missing.is_empty(), "man/{page}, {option}: {missing:?}");
}

fn are_in(page: &str, said: &[BTreeSet<String>]) {
    let named = named_in(page);
    let missing: BTreeSet<_> = said.iter().flatten().filter(|key| !named.contains(*key)).collect();
    assert!(missing.is_empty(), "man/{page}: {missing:?}");
}

#[test]
fn every_key_of_json_is_in_the_manual_page_of_its_tool() {
    let _segment = Segment::filled(std::process::id());
    let pid = std::process::id().to_string();
    let ss = |words: &[&str]| keys(env!("CARGO_BIN_EXE_netacc_ss"), words);
    let literal = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let said = [
        ss(&[]),
        ss(&["-p", &pid, "-s", "all"]),
        ss(&["-p", &pid, "-s", "all", "-w", "0.1", "-n", "1"]),
        // (Of a process that cannot be read; of -c, which takes traces away.)
        literal(&["problem", "traces", "bytes"]),
    ];
    assert!(said[1].len() > 60 && said[2].contains("tx_messages_per_s"), "{said:?}");
    are_in("netacc_ss.8", &said);

    let scratch = Scratch::new();
    let file = scratch.path("some.trace");
    std::fs::write(&file, support::trace::bytes()).unwrap();
    let file = file.to_str().unwrap();
    let netacc = |words: &[&str]| keys(env!("CARGO_BIN_EXE_netacc"), words);
    let said = [
        // (What `list` says of a trace, `show` says as well.)
        netacc(&["trace", "show", "--file", file]),
        netacc(&["trace", "show", "--follow", "--file", file]),
        netacc(&["trace", "histogram", "--file", file]),
        netacc(&["cfg", "list"]),
        netacc(&["cfg", "list", "-p", &pid]),
        netacc(&["cfg", "set", "NACC_LOG_LEVEL", "1", "-p", &pid]),
        netacc(&["cfg", "reload", "-p", &pid]),
        netacc(&["doctor"]),
        netacc(&BENCH),
        // (Where events are missing; where a run has failed.)
        literal(&["events_not_kept", "error"]),
    ];
    assert!(said[0].contains("recorded") && said[2].contains("up_to_ns"), "{said:?}");
    assert!(said[8].contains("ratio_paired") && said[8].contains("samples"), "{said:?}");
    are_in("netacc.1", &said);
}

/// The headings of what is said while a counter and a reason rise. (Who has no turn meanwhile
/// raises nothing.)
fn changing(segment: &Segment, says: impl Fn() -> BTreeSet<String>) -> BTreeSet<String> {
    let is_over = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in (20u64..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                segment.u64(offset_of!(Header, counters) + 8 * Counter::Accepted as usize, value);
                segment.u64(offset_of!(Header, reasons) + 8 * Reason::Splice as usize, value);
            }
        });
        let mut said = says();
        while !said.contains("Change") && Instant::now() < end {
            said = says();
        }
        is_over.store(true, Ordering::Relaxed);
        said
    })
}

#[test]
fn every_heading_and_every_value_is_in_the_manual_page_of_its_tool() {
    let segment = Segment::filled(std::process::id());
    let pid = std::process::id().to_string();
    let tool = env!("CARGO_BIN_EXE_netacc_ss");
    let said = [
        headings(tool, &[]),
        headings(tool, &["--wide"]),
        headings(tool, &["-p", &pid, "-s", "all"]),
        headings(tool, &["-p", &pid, "-s", "all", "--wide"]),
        changing(&segment, || headings(tool, &["-p", &pid, "-s", "all", "-w", "0.1", "-n", "1"])),
        headings(tool, &["-w", "0.1", "-n", "1", "--wide"]),
        values(tool, "-s"),
        values(tool, "--reason"),
    ];
    let has = |at: usize, word: &str| said[at].contains(word);
    assert!(has(3, "Ring-Used") && has(4, "Per-Second") && has(5, "Tx-Utcp/s"), "{said:?}");
    assert!(has(6, "sock") && has(7, "rule"), "{said:?}");
    are_in("netacc_ss.8", &said);
    for option in ["--path", "--sort"] {
        option_says("netacc_ss.8", option, &values(tool, option));
    }
    let run = env!("CARGO_BIN_EXE_netacc_run");
    option_says("netacc_run.8", "--profile", &values(run, "--profile"));

    let tool = env!("CARGO_BIN_EXE_netacc");
    // A trace that is listed, where no other is.
    let scratch = Scratch::new();
    let file = scratch.path("some.trace");
    std::fs::write(&file, support::trace::bytes()).unwrap();
    let place = "mount -t tmpfs none /dev/shm && cp $0 /dev/shm/netacc-trace.0000000000000001.4711";
    let script = format!("{place} || exit 77; exec \"$@\"");
    let words = ["-rm", "sh", "-c", &script, file.to_str().unwrap(), tool, "trace", "list"];
    let is_there = |ran: std::process::Output| ran.status.code() != Some(77);
    if !Command::new("unshare").args(words).output().is_ok_and(is_there) {
        return support::skip("no mount namespaces");
    }
    let said = headings("unshare", &words);
    assert!(said.contains("Last-Event"), "{said:?}");
    are_in("netacc.1", &[said]);
}
