//! The table for people and the JSON for programs.

use crate::Terminal;
use crate::cli::BenchArgs;
use crate::library::{Proof, Tools};
use crate::plan::{Machine, Run, Series, Summary, Workload};
use crate::run::Measured;
use crate::spec::{Kind, Traffic};
use serde_json::{Value, json};
use std::fmt::Write;

/// What stands above the table: what was asked for, and the state of the machine.
pub(crate) fn header(args: &BenchArgs, machine: &Machine, tools: &Tools) -> String {
    let mut text = format!(
        "netacc bench: {} rounds of {} s, kinds in turn; figures are medians over the rounds\n",
        args.rounds, args.seconds
    );
    let _ = writeln!(
        text,
        "load average before: {}; {} CPUs; Linux {}",
        machine.load_before, machine.cpus, machine.kernel
    );
    if args.load > 0 {
        let _ = writeln!(text, "busy loops in the background: {}", args.load);
    }
    match &tools.library {
        Ok(path) => _ = writeln!(text, "library: {}", path.display()),
        Err(reason) => _ = writeln!(text, "library: {reason}: NOTHING CAN BE ACCELERATED"),
    }
    match &tools.ss {
        Some(path) => _ = writeln!(text, "netacc_ss: {}", path.display()),
        None => text += "netacc_ss: not found, so it is unknown what was accelerated\n",
    }
    let _ = writeln!(
        text,
        "one reading of the clock ({} ns) is part of every latency\n",
        machine.clock_cost.as_nanos()
    );
    text
}

/// One line for one run, while the others are still to come.
pub(crate) fn progress(workload: &Workload, result: &Result<Measured, String>) -> String {
    match result {
        Err(error) => format!("FAILED: {error}"),
        Ok(m) => format!(
            "{:>12}  p50 {:>8}  max {:>8}  CPU {}",
            rate(workload, m.rate),
            duration(m.latencies.value_at_quantile(0.5) as f64),
            duration(m.latencies.max() as f64),
            cpu(workload, m.cpu_server, m.cpu_client),
        ),
    }
}

/// The table: for each workload one line a kind.
pub(crate) fn table(all: &[Series], terminal: Terminal) -> String {
    let mut text = String::new();
    for series in all {
        let workload = &series.workload;
        let unit = match workload.spec.traffic {
            Traffic::Bulk | Traffic::Idle => String::new(),
            _ => format!("{}; ", workload.spec.rate_unit()),
        };
        let _ =
            writeln!(text, "{} ({unit}latency of: {})", workload.label, workload.spec.latency_of());
        text += &rows(workload, &series.summaries(), terminal);
        for run in &series.runs {
            if let Err(error) = &run.result {
                let _ =
                    writeln!(text, "  FAILED: {}, round {}: {error}", run.kind.word(), run.round);
            }
        }
        text.push('\n');
    }
    text += "ratio: above 1 is better than the first line (ping-pong: of the p50; the others: of the rate)\n";
    text
}

/// The lines of a workload: one a kind, or some where the terminal is too narrow for that.
fn rows(workload: &Workload, summaries: &[Summary], terminal: Terminal) -> String {
    const HEAD: [&str; 9] =
        ["", ">rate", ">ratio", ">p50", ">p99", ">p99.9", ">max", ">CPU srv+cli", "accelerated"];
    let rows: Vec<_> = summaries.iter().map(|summary| cells(workload, summary)).collect();
    let mut text = String::new();
    let head = HEAD.map(|heading| heading.trim_start_matches('>').to_owned());
    for row in std::iter::once(&head).chain(&rows) {
        let _ = write!(text, "  {:<12}", row[0]);
        for cell in &row[1..8] {
            let _ = write!(text, " {cell:>11}");
        }
        let _ = writeln!(text, "  {}", row[8]);
    }
    let columns = (terminal.columns)();
    let widest = text.lines().map(|line| line.chars().count()).max();
    match columns.is_some_and(|columns| widest > Some(columns)) {
        true => (terminal.table)(&HEAD, rows.into_iter().map(Vec::from).collect(), columns),
        false => text,
    }
}

fn cells(workload: &Workload, summary: &Summary) -> [String; 9] {
    if summary.rounds == 0 {
        let mut cells = [const { String::new() }; 9];
        cells[0] = summary.kind.word().into();
        cells[8] = "FAILED".into();
        return cells;
    }
    [
        summary.kind.word().into(),
        rate(workload, summary.rate),
        summary.ratio.map_or_else(|| "-".into(), ratio),
        duration(summary.p50_ns),
        duration(summary.p99_ns),
        duration(summary.p999_ns),
        duration(summary.max_ns),
        cpu(workload, summary.cpu_server, summary.cpu_client),
        summary.proof.cell(summary.kind == Kind::Accelerated),
    ]
}

fn rate(workload: &Workload, rate: f64) -> String {
    match workload.spec.traffic {
        Traffic::Idle => "-".into(),
        Traffic::Bulk => format!("{:.2} Gb/s", rate * 8.0 / 1e9),
        _ if rate >= 1e6 => format!("{:.2} M/s", rate / 1e6),
        _ if rate >= 1e3 => format!("{:.1} k/s", rate / 1e3),
        _ => format!("{rate:.1} /s"),
    }
}

fn ratio(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.1}x") } else { format!("{ratio:.2}x") }
}

/// Percent of one CPU, server and client. Idle processes need more digits.
fn cpu(workload: &Workload, server: f64, client: f64) -> String {
    match workload.spec.traffic {
        Traffic::Idle => format!("{:.3}+{:.3}%", server * 100.0, client * 100.0),
        _ => format!("{:.0}+{:.0}%", server * 100.0, client * 100.0),
    }
}

/// Three digits and a unit.
pub(crate) fn duration(ns: f64) -> String {
    if !ns.is_finite() {
        return "-".into();
    }
    let (value, unit) = match ns {
        ns if ns < 999.5 => return format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => (ns / 1e3, "µs"),
        ns if ns < 999_500_000.0 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    match value {
        v if v < 9.995 => format!("{v:.2} {unit}"),
        v if v < 99.95 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

/// Everything, for programs. Times in nanoseconds, CPU in percent of one CPU, figures that are
/// missing as null.
pub(crate) fn json(args: &BenchArgs, machine: &Machine, tools: &Tools, all: &[Series]) -> Value {
    json!({
        "tool": "netacc bench",
        "version": env!("CARGO_PKG_VERSION"),
        "machine": {
            "cpus": machine.cpus,
            "kernel": machine.kernel,
            "load_average_before": machine.load_before,
            "load_average_after": machine.load_after,
            "clock_cost_ns": machine.clock_cost.as_nanos() as u64,
        },
        "library": tools.library.as_ref().ok().map(|path| path.display().to_string()),
        "background_load": args.load,
        "rounds": args.rounds,
        "workloads": all.iter().map(|series| json!({
            "name": series.workload.name.word(),
            "label": series.workload.label,
            "spec": series.workload.spec,
            "rate_unit": series.workload.spec.rate_unit(),
            "latency_of": series.workload.spec.latency_of(),
            "cpus": series.workload.cpus,
            "runs": series.runs.iter().map(run_json).collect::<Vec<_>>(),
            "summary": series.summaries().iter().map(summary_json).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

fn run_json(run: &Run) -> Value {
    let mut value = json!({ "kind": run.kind, "round": run.round });
    let more = match &run.result {
        Err(error) => json!({ "error": error }),
        Ok(m) => json!({
            "rate": m.rate,
            "p50_ns": m.latencies.value_at_quantile(0.5),
            "p99_ns": m.latencies.value_at_quantile(0.99),
            "p999_ns": m.latencies.value_at_quantile(0.999),
            "max_ns": m.latencies.max(),
            "samples": m.latencies.len(),
            "cpu_server_percent": m.cpu_server * 100.0,
            "cpu_client_percent": m.cpu_client * 100.0,
            "acceleration": proof_json(&m.proof),
        }),
    };
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

fn summary_json(summary: &Summary) -> Value {
    json!({
        "kind": summary.kind,
        "rounds": summary.rounds,
        "rate": summary.rate,
        "ratio": summary.ratio,
        "ratio_paired": summary.ratio_paired,
        "p50_ns": summary.p50_ns,
        "p99_ns": summary.p99_ns,
        "p999_ns": summary.p999_ns,
        "max_ns": summary.max_ns,
        "worst_ns": summary.worst_ns,
        "cpu_server_percent": summary.cpu_server * 100.0,
        "cpu_client_percent": summary.cpu_client * 100.0,
        "acceleration": proof_json(&summary.proof),
    })
}

fn proof_json(proof: &Proof) -> Value {
    let counts = proof.counts();
    json!({
        "verdict": proof.verdict(),
        "accelerated": counts.map(|c| c.accelerated),
        "connections": counts.map(|c| c.total),
        "why": match proof {
            Proof::NotLoaded(why) | Proof::Unknown(why) => Some(why),
            Proof::NotAsked | Proof::Counted(_) => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Counts;
    use crate::plan::tests::{args, measured, series};

    /// No terminal.
    const FILE: Terminal = Terminal {
        columns: || None,
        fold: |text, _| text,
        table: |_, _, _| String::new(),
        complain: |_| {},
    };

    #[test]
    fn durations_have_three_digits() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (999.0, "999 ns"),
            (999.9, "1.00 µs"),
            (9_994.0, "9.99 µs"),
            (9_996.0, "10.0 µs"),
            (64_123.0, "64.1 µs"),
            (999_700.0, "1.00 ms"),
            (123_456_789.0, "123 ms"),
            (2e9, "2.00 s"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn table_and_json_say_what_was_not_accelerated() {
        let not = Proof::Counted(Counts { total: 1, accelerated: 0 });
        let all = [series(
            "pingpong",
            vec![
                (Kind::Plain, 1, Ok(measured(15_000.0, 64_000, Proof::NotAsked))),
                (Kind::Accelerated, 1, Ok(measured(15_000.0, 64_000, not))),
                (Kind::Plain, 2, Err("server hangs".into())),
            ],
        )];
        let table = table(&all, FILE);
        assert!(table.contains("NOT ACCELERATED 0/1"), "{table}");
        assert!(table.contains("FAILED: plain, round 2: server hangs"), "{table}");
        assert!(
            table.contains("1.00x") && table.contains("64.1 µs") || table.contains("64.0 µs"),
            "{table}"
        );
        let machine = Machine {
            cpus: 2,
            kernel: "6".into(),
            load_before: "0 0 0".into(),
            load_after: "1 1 1".into(),
            clock_cost: std::time::Duration::from_nanos(25),
        };
        let tools = Tools { library: Err("library not found".into()), ss: None };
        assert!(header(&args(""), &machine, &tools).contains("NOTHING CAN BE ACCELERATED"));
        let json = json(&args(""), &machine, &tools, &all);
        let summary = &json["workloads"][0]["summary"];
        assert_eq!(summary[0]["acceleration"]["verdict"], "not-asked");
        assert_eq!(summary[1]["acceleration"]["verdict"], "none");
        assert_eq!(summary[1]["acceleration"]["connections"], 1);
        assert_eq!(summary[1]["ratio"], 1.0);
        assert_eq!(json["workloads"][0]["runs"][2]["error"], "server hangs");
    }
}
