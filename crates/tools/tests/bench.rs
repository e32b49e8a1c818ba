//! Runs the real `netacc bench`, briefly and without the library: every workload has to come to an
//! end with exact bytes, and nothing may be called accelerated.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(arguments: &str) -> Output {
    let short =
        "--rounds 1 --seconds 0.4 --warmup 0.02 --idle-seconds 0.1 --quiet --lib /nonexistent.so";
    Command::new(env!("CARGO_BIN_EXE_netacc"))
        .arg("bench")
        .args(short.split(' '))
        .args(arguments.split_whitespace())
        .output()
        .expect("netacc starts")
}

#[test]
fn every_workload_ends_and_nothing_is_accelerated() {
    let output = bench("--json -");
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let workloads = json["workloads"].as_array().expect("workloads");
    assert_eq!(workloads.len(), 8);
    for workload in workloads {
        for summary in workload["summary"].as_array().expect("summary") {
            assert_eq!(summary["rounds"], 1, "{workload}");
            assert!(summary["p50_ns"].as_f64().expect("p50") > 0.0, "{workload}");
            let expected = if summary["kind"] == "plain" { "not-asked" } else { "none" };
            assert_eq!(summary["acceleration"]["verdict"], expected, "{workload}");
        }
    }
}

#[test]
fn messages_larger_than_socket_buffers_arrive_exactly() {
    let output = bench(
        "pingpong-epoll reqrep --size 9M --request 300000 --response 100001 -c 5 -t 2 -P 40 --kinds plain --json -",
    );
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn where_results_cannot_go_is_said_before_the_run() {
    for option in ["--json", "--svg"] {
        let output = bench(&format!("pingpong {option} /nonexistent/out"));
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(text, "netacc: /nonexistent/out: No such file or directory (os error 2)\n");
        // No run has begun: not even the heading was printed.
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn results_replace_what_the_file_had() {
    let path = std::env::temp_dir().join(format!("netacc-bench-{}.json", std::process::id()));
    std::fs::write(&path, [b' '; 1 << 20]).unwrap();
    let output = bench(&format!("pingpong --kinds plain --json {}", path.display()));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text.starts_with('{') && text.len() < 1 << 20);
    serde_json::from_str::<Value>(&text).expect("JSON");
}

#[test]
fn table_is_loud_without_the_library() {
    let output = bench("pingpong --load 1");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("NOT ACCELERATED"), "{text}");
    assert!(text.contains("load average before") && text.contains("load average after"), "{text}");
}

#[test]
fn run_ss_and_ps_are_subcommands_too() {
    let netacc = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_netacc")).args(arguments).output().expect("netacc starts")
    };
    let help = |program: &str| {
        let output = Command::new(program).arg("-h").output().expect("it starts");
        assert!(output.status.success());
        output.stdout
    };
    assert_eq!(netacc(&["run", "-h"]).stdout, help(env!("CARGO_BIN_EXE_netacc_run")));
    assert_eq!(netacc(&["ss", "-h"]).stdout, help(env!("CARGO_BIN_EXE_netacc_ss")));
    let said = String::from_utf8(netacc(&["-h"]).stdout).expect("UTF-8");
    assert_eq!(said.lines().next(), Some("Tools for netacc, the TCP acceleration library"));
    assert_eq!(netacc(&["run", "/nonexistent"]).status.code(), Some(127));
    assert_eq!(netacc(&["ss", "4194305"]).status.code(), Some(1));
    // (Whose processes are shown, and so how wide the columns are, changes.)
    let heading = |arguments: &[&str]| -> Vec<String> {
        let text = String::from_utf8(netacc(arguments).stdout).expect("UTF-8");
        let heading = text.lines().next().expect("a heading");
        heading.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(heading(&["ps"]), heading(&["ss"]));
    assert!(heading(&["ps"]).contains(&"Program".to_owned()));
    for wrong in [&["fly"][..], &[], &["bench", "--rounds", "0"], &["ss", "0"], &["run"]] {
        let output = netacc(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
}
