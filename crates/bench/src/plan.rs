//! `netacc bench` itself: workloads one after the other, each in rounds that run every kind once,
//! in turn, so that whatever else the machine does falls on all kinds alike.

use crate::Terminal;
use crate::cli::{BenchArgs, Pin, WorkloadName};
use crate::library::{Proof, Tools};
use crate::report;
use crate::run::{self, Load, Measured};
use crate::spec::{Kind, Spec, Traffic};
use crate::stats::{self, Latencies};
use crate::svg;
use crate::sys;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// One line of the plan: what to run, in which kinds, where.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: WorkloadName,
    /// For people: sizes, connections, CPUs.
    pub(crate) label: String,
    pub(crate) spec: Spec,
    pub(crate) kinds: Vec<Kind>,
    /// CPUs of server and client.
    pub(crate) cpus: Option<[usize; 2]>,
}

/// The machine around the measurement.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
    pub(crate) clock_cost: Duration,
}

/// A workload with everything its runs found, in the order they ran.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) workload: Workload,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kind: Kind,
    pub(crate) round: u32,
    pub(crate) result: Result<Measured, String>,
}

/// Medians over the rounds of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) kind: Kind,
    /// Rounds that came to an end.
    pub(crate) rounds: usize,
    pub(crate) rate: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) p999_ns: f64,
    pub(crate) max_ns: f64,
    /// The worst of all rounds.
    pub(crate) worst_ns: f64,
    pub(crate) cpu_server: f64,
    pub(crate) cpu_client: f64,
    pub(crate) proof: Proof,
    /// Above 1 is better than the first kind.
    pub(crate) ratio: Option<f64>,
    /// Median of the ratios within each round.
    pub(crate) ratio_paired: Option<f64>,
}

/// Runs the subcommand: whether all runs ended with exact bytes.
pub(crate) fn bench(args: &BenchArgs, terminal: Terminal) -> crate::Result<bool> {
    let tools = Tools::find(args.lib.as_deref(), args.ss.as_deref());
    let plan = plan(args, &sys::allowed_cpus());
    let mut machine = Machine {
        cpus: sys::allowed_cpus().len(),
        kernel: read_line("/proc/sys/kernel/osrelease"),
        load_before: load_average(),
        load_after: String::new(),
        clock_cost: stats::clock_cost(),
    };
    // Where the results go is known before minutes are spent on them.
    let json = args.json.as_deref().filter(|path| path.as_os_str() != "-").map(Output::open);
    let json = json.transpose()?;
    let svg = args.svg.as_deref().map(Output::open).transpose()?;
    let table_wanted = args.json.as_deref().is_none_or(|path| path.as_os_str() != "-");
    if table_wanted {
        let header = report::header(args, &machine, &tools);
        crate::say(&(terminal.fold)(header, (terminal.columns)()))?;
    }
    // (Minutes are not spent on what nobody reads.)
    let is_for_files = json.is_some() || svg.is_some();
    let goes_on = || is_for_files || crate::sys::is_read();
    let mut all = Vec::new();
    {
        let _load = Load::start(args.load)?;
        for workload in plan {
            all.push(run_workload(args, workload, (&tools, terminal), goes_on));
        }
    }
    machine.load_after = load_average();
    if table_wanted {
        let (table, load) = (report::table(&all, terminal), &machine.load_after);
        let text = format!("{table}load average after: {load}; {} CPUs\n", machine.cpus);
        crate::say(&(terminal.fold)(text, (terminal.columns)()))?;
    }
    if args.json.is_some() {
        let text =
            serde_json::to_string_pretty(&report::json(args, &machine, &tools, &all))? + "\n";
        match &json {
            None => crate::say(&text)?,
            Some(file) => file.write(&text)?,
        }
    }
    if let Some(file) = &svg {
        file.write(&svg::picture(&all))?;
    }
    Ok(all.iter().flat_map(|series| &series.runs).all(|run| run.result.is_ok()))
}

/// A file for results. What it had stays until there are new ones.
struct Output<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Output<'a> {
    fn open(path: &'a Path) -> crate::Result<Output<'a>> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Output { path, file })
    }

    fn write(&self, text: &str) -> crate::Result<()> {
        // (Of a terminal or a pipe there is nothing to cut.)
        let cut = self.file.set_len(0).or_else(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(error),
        });
        let written = cut.and_then(|()| (&self.file).write_all(text.as_bytes()));
        Ok(written.map_err(|error| format!("{}: {error}", self.path.display()))?)
    }
}

fn run_workload(
    args: &BenchArgs,
    workload: Workload,
    (tools, terminal): (&Tools, Terminal),
    goes_on: impl Fn() -> bool,
) -> Series {
    let mut runs = Vec::new();
    for round in (1..=args.rounds).take_while(|_| goes_on()) {
        for &kind in &workload.kinds {
            let result = run::run(&workload.spec, kind, tools, workload.cpus)
                .map_err(|error| error.to_string());
            if !args.quiet {
                let name = workload.name.word();
                (terminal.complain)(&format!(
                    "{name:<14} {round}/{} {:<11} {}",
                    args.rounds,
                    kind.word(),
                    report::progress(&workload, &result)
                ));
            }
            runs.push(Run { kind, round, result });
        }
    }
    Series { workload, runs }
}

/// What the arguments ask for.
fn plan(args: &BenchArgs, allowed: &[usize]) -> Vec<Workload> {
    const ALL: [WorkloadName; 8] = [
        WorkloadName::Pingpong,
        WorkloadName::PingpongEpoll,
        WorkloadName::Reqrep,
        WorkloadName::Bulk,
        WorkloadName::Rate,
        WorkloadName::Idle,
        WorkloadName::Mixed,
        WorkloadName::MixedEpoll,
    ];
    let names = if args.workloads.is_empty() { &ALL[..] } else { &args.workloads };
    names.iter().map(|&name| workload(name, args, allowed)).collect()
}

fn workload(name: WorkloadName, args: &BenchArgs, allowed: &[usize]) -> Workload {
    use WorkloadName as W;
    let one = Spec {
        traffic: Traffic::PingPong,
        request: args.size,
        response: args.size,
        connections: 1,
        threads: 1,
        pipeline: 1,
        seconds: args.seconds,
        warmup: args.warmup,
    };
    let (connections, threads) = (args.connections as usize, args.threads as usize);
    let spec = match name {
        W::Pingpong | W::Mixed => one,
        W::PingpongEpoll | W::MixedEpoll => Spec { traffic: Traffic::PingPongEpoll, ..one },
        W::Reqrep => Spec {
            traffic: Traffic::ReqRep,
            request: args.request,
            response: args.response,
            connections,
            threads,
            pipeline: args.pipeline as usize,
            ..one
        },
        W::Bulk => Spec { traffic: Traffic::Bulk, request: args.write_size, ..one },
        W::Rate => Spec { traffic: Traffic::Rate, connections: threads, threads, ..one },
        W::Idle => Spec {
            traffic: Traffic::Idle,
            connections: args.idle_connections as usize,
            seconds: args.idle_seconds,
            ..one
        },
    };
    let cpus = match args.pin {
        Pin::None => None,
        Pin::Apart => apart(allowed),
        Pin::Together => allowed.first().map(|&cpu| [cpu, cpu]),
        Pin::Auto if matches!(spec.traffic, Traffic::PingPong | Traffic::PingPongEpoll) => {
            apart(allowed)
        }
        Pin::Auto => None,
    };
    let kinds = match (&args.kinds[..], name) {
        ([], W::Mixed | W::MixedEpoll) => vec![Kind::Plain, Kind::ServerOnly, Kind::ClientOnly],
        ([], _) => vec![Kind::Plain, Kind::Accelerated],
        (kinds, _) => kinds.to_vec(),
    };
    Workload { name, label: label(name, &spec, cpus), spec, kinds, cpus }
}

/// Two CPUs that do not share a core, if there are.
fn apart(allowed: &[usize]) -> Option<[usize; 2]> {
    let (&first, rest) = allowed.split_first()?;
    let core = |cpu: usize| {
        read_line(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    };
    let other = rest
        .iter()
        .find(|&&cpu| core(cpu) != core(first) || core(cpu).is_empty())
        .or(rest.first())?;
    Some([first, *other])
}

fn label(name: WorkloadName, spec: &Spec, cpus: Option<[usize; 2]>) -> String {
    let what = match spec.traffic {
        Traffic::PingPong | Traffic::PingPongEpoll => format!("{} B", spec.request),
        Traffic::ReqRep => format!(
            "{}/{} B, {} connections, {} threads, pipeline {}",
            spec.request, spec.response, spec.connections, spec.threads, spec.pipeline
        ),
        Traffic::Bulk => format!("writes of {} B", spec.request),
        Traffic::Rate => format!("{} B, {} threads", spec.request, spec.threads),
        Traffic::Idle => format!("{} connections, {} s", spec.connections, spec.seconds),
    };
    match cpus {
        Some([a, b]) if a == b => format!("{} {what}, both on CPU {a}", name.word()),
        Some([a, b]) => format!("{} {what}, CPUs {a} and {b}", name.word()),
        None => format!("{} {what}", name.word()),
    }
}

impl Series {
    fn measured(&self, kind: Kind) -> impl Iterator<Item = (u32, &Measured)> {
        self.runs
            .iter()
            .filter(move |run| run.kind == kind)
            .filter_map(|run| run.result.as_ref().ok().map(|measured| (run.round, measured)))
    }

    /// The latencies of all rounds together.
    pub(crate) fn latencies(&self, kind: Kind) -> Latencies {
        let mut sum = stats::latencies();
        for (_, measured) in self.measured(kind) {
            // All histograms have the same bounds.
            let _ = sum.add(&measured.latencies);
        }
        sum
    }

    /// One summary for each kind, in the order of the plan.
    pub(crate) fn summaries(&self) -> Vec<Summary> {
        self.workload.kinds.iter().map(|&kind| self.summary(kind)).collect()
    }

    fn summary(&self, kind: Kind) -> Summary {
        let middle = |figure: &dyn Fn(&Measured) -> f64| {
            stats::median(self.measured(kind).map(|(_, measured)| figure(measured)))
                .unwrap_or(f64::NAN)
        };
        let quantile = |q: f64| middle(&|m| m.latencies.value_at_quantile(q) as f64);
        let base = self.workload.kinds.first().copied().unwrap_or(kind);
        let goodness =
            |kind: Kind| stats::median(self.measured(kind).map(|(_, m)| self.goodness(m)));
        let ratio = goodness(kind).zip(goodness(base)).map(|(ours, theirs)| ours / theirs);
        let paired = self.measured(kind).filter_map(|(round, ours)| {
            let (_, theirs) = self.measured(base).find(|(r, _)| *r == round)?;
            Some(self.goodness(ours) / self.goodness(theirs))
        });
        Summary {
            kind,
            rounds: self.measured(kind).count(),
            rate: middle(&|m| m.rate),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: quantile(1.0),
            worst_ns: self
                .measured(kind)
                .map(|(_, m)| m.latencies.max() as f64)
                .fold(f64::NAN, f64::max),
            cpu_server: middle(&|m| m.cpu_server),
            cpu_client: middle(&|m| m.cpu_client),
            proof: Proof::sum(self.measured(kind).map(|(_, m)| &m.proof)),
            ratio: ratio.filter(|_| self.has_ratio()),
            ratio_paired: stats::median(paired).filter(|_| self.has_ratio()),
        }
    }

    /// Idle connections have no speed to compare.
    fn has_ratio(&self) -> bool {
        self.workload.spec.traffic != Traffic::Idle
    }

    /// The figure that ratios are of: for ping-pong the inverse of the median round trip, otherwise
    /// the rate.
    fn goodness(&self, measured: &Measured) -> f64 {
        match self.workload.spec.traffic {
            Traffic::PingPong | Traffic::PingPongEpoll => {
                1.0 / (measured.latencies.value_at_quantile(0.5) as f64)
            }
            _ => measured.rate,
        }
    }
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The three load averages.
fn load_average() -> String {
    read_line("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    pub(crate) fn args(line: &str) -> BenchArgs {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let words = std::iter::once("bench").chain(line.split_whitespace());
        BenchArgs::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    /// A run in which every latency is `ns`.
    pub(crate) fn measured(rate: f64, ns: u64, proof: Proof) -> Measured {
        let mut latencies = stats::latencies();
        stats::record_many(&mut latencies, Duration::from_nanos(ns), 1000);
        Measured { rate, latencies, cpu_server: 0.5, cpu_client: 0.25, proof }
    }

    pub(crate) fn series(line: &str, runs: Vec<(Kind, u32, Result<Measured, String>)>) -> Series {
        let workload = plan(&args(line), &[0, 1]).remove(0);
        let runs =
            runs.into_iter().map(|(kind, round, result)| Run { kind, round, result }).collect();
        Series { workload, runs }
    }

    #[test]
    fn every_workload_by_default() {
        let plan = plan(&args(""), &[0, 1]);
        assert_eq!(plan.len(), 8);
        assert!(plan.iter().all(|w| w.kinds[0] == Kind::Plain));
        for one_sided in &plan[6..] {
            assert_eq!(one_sided.kinds, [Kind::Plain, Kind::ServerOnly, Kind::ClientOnly]);
        }
        assert!(plan[0].cpus.is_some_and(|[a, b]| a != b));
        assert_eq!(plan[2].cpus, None);
        assert_eq!(plan[5].spec.seconds, 10.0);
    }

    #[test]
    fn pinning() {
        let one = |line: &str, allowed: &[usize]| plan(&args(line), allowed).remove(0).cpus;
        assert_eq!(one("pingpong", &[3]), None);
        assert_eq!(one("pingpong --pin none", &[0, 1]), None);
        assert_eq!(one("bulk --pin together", &[2, 5]), Some([2, 2]));
        assert!(one("bulk --pin apart", &[0, 1]).is_some());
    }

    #[test]
    fn ratios_are_better_above_one() {
        use Kind::{Accelerated, Plain};
        let go = |rate, ns| Ok(measured(rate, ns, Proof::NotAsked));
        let rows = vec![
            (Plain, 1, go(100.0, 60_000)),
            (Accelerated, 1, go(900.0, 500)),
            (Plain, 2, go(200.0, 50_000)),
            (Accelerated, 2, go(600.0, 1000)),
            (Plain, 3, go(150.0, 40_000)),
            (Accelerated, 3, Err("hangs".into())),
        ];
        let pingpong = series("pingpong", rows.clone()).summaries();
        assert_eq!((pingpong[0].rounds, pingpong[1].rounds), (3, 2));
        assert_eq!(pingpong[0].ratio, Some(1.0));
        // The median of the two goodness figures, 1/500 and 1/1000 ns, against 1/50000 ns.
        assert!((pingpong[1].ratio.unwrap() - 75.0).abs() < 0.5, "{:?}", pingpong[1].ratio);
        let bulk = series("bulk", rows.clone()).summaries();
        assert_eq!(bulk[1].ratio, Some(5.0));
        assert_eq!(bulk[1].ratio_paired, Some(6.0));
        assert_eq!(series("idle", rows).summaries()[1].ratio, None);
    }

    #[test]
    fn nothing_measured_is_no_number() {
        let none = series("bulk", vec![(Kind::Plain, 1, Err("x".into()))]).summaries();
        assert!(none[1].rate.is_nan() && none[1].ratio.is_none() && none[0].ratio.is_none());
    }
}
