//! Every key that a tool prints with `--json` is in its manual page.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
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

/// A page as it is read: of its words those that are names, in quotation marks or in bold.
fn named_in(page: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man").join(page);
    let text = std::fs::read_to_string(path).unwrap().replace("\\-", "-");
    let quoted = text.lines().flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_bold = |line: &&str| [".B ", ".BR ", ".RB ", ".BI "].iter().any(|b| line.starts_with(b));
    let bold = text.lines().filter(is_bold).flat_map(|line| line.split([' ', '"']));
    quoted.chain(bold).map(str::to_owned).collect()
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
