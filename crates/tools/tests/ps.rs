//! `netacc ps`: every column of it, and the same for programs.

mod support;

use serde_json::Value;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use support::run;
use support::segment::Segment;

/// One test at a time: each holds out statistics of its own.
static ONE: Mutex<()> = Mutex::new(());

fn netacc(arguments: &[&str]) -> String {
    let ran = run(Command::new(env!("CARGO_BIN_EXE_netacc")).arg("ps").args(arguments));
    // (What others run on this host meanwhile is said in the words of this tool, but is not ours.)
    let others = "is loaded, but the process has made or accepted no TCP connection yet";
    let is_others = |line: &str| line.starts_with("netacc: ") && line.ends_with(others);
    let err: Vec<&str> = ran.err.lines().filter(|line| !is_others(line)).collect();
    assert_eq!((ran.status, err), (Some(0), vec![]), "{arguments:?}");
    ran.out
}

/// This process's row, by the headings, but for its age, which is another one a second later. (No
/// cell but the share has a blank, which has its own.)
fn row(table: &str) -> Vec<(String, String)> {
    let own = std::process::id().to_string();
    let words = |line: &str| -> Vec<String> {
        line.replace(" %", "%")
            .split("  ")
            .map(str::trim)
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut lines = table.lines();
    let headings = words(lines.next().unwrap());
    let cells = lines.map(words).find(|cells| cells.first() == Some(&own)).unwrap();
    assert_eq!(headings.len(), cells.len(), "{table}");
    headings.into_iter().zip(cells).filter(|(heading, _)| heading != "Uptime").collect()
}

#[test]
fn wide_has_the_bytes_by_path_and_json_always() {
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    let _segment = Segment::filled(pid);
    let all: Value = serde_json::from_str(&netacc(&["--json"])).unwrap();
    let ours = all.as_array().unwrap().iter().find(|row| row["pid"] == pid).unwrap();
    assert_eq!((&ours["tx_bytes"]["rdma"], &ours["rx_bytes"]["shm"]), (&3300.into(), &2002.into()));
    let wide = row(&netacc(&["--wide"]));
    let cell = |heading: &str| {
        let cell = wide.iter().find(|(h, _)| h == heading);
        &cell.unwrap_or_else(|| panic!("no {heading}: {wide:?}")).1
    };
    for path in ["tcp", "shm", "rdma", "utcp"] {
        let (first, rest) = path.split_at(1);
        let name = format!("{}{rest}", first.to_uppercase());
        assert_eq!(*cell(&format!("Tx-{name}")), ours["tx_bytes"][path].to_string());
        assert_eq!(*cell(&format!("Rx-{name}")), ours["rx_bytes"][path].to_string());
        assert_eq!(*cell(&name), ours["open"][path].to_string());
    }
    assert_eq!(cell("Container"), ours["container"].as_str().unwrap_or("-"));
    assert_eq!(cell("Protocol"), "-", "an older library");
    // What is shown otherwise is shown the same, and netacc_ss says all that, too.
    let narrow = row(&netacc(&[]));
    assert_eq!(narrow[..], wide[..narrow.len()]);
    let ss = run(Command::new(env!("CARGO_BIN_EXE_netacc_ss")).arg("--wide"));
    assert_eq!(row(&ss.out), wide);
}

#[test]
fn watched_wide_has_rates_by_path() {
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _segment = Segment::filled(std::process::id());
    let headings = |arguments: &[&str]| -> Vec<String> {
        row(&netacc(arguments)).into_iter().map(|(heading, _)| heading).collect()
    };
    let narrow = headings(&["-w", "0.1", "-n", "1"]);
    let wide = headings(&["-w", "0.1", "-n", "1", "--wide"]);
    let more =
        ["Tx", "Rx"].map(|way| ["Tcp", "Shm", "Rdma", "Utcp"].map(|p| format!("{way}-{p}/s")));
    assert_eq!(wide, [narrow, more.concat()].concat());
}
