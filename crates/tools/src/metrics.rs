//! What all processes with the library say, as metrics for Prometheus.
//!
//! Names, types and texts are written by the client library of the OpenMetrics project, which is
//! given the numbers anew each time. A series of a process has its number and its name as labels.

use crate::hidden;
use crate::latencies::Looks;
use crate::memory::{self, Mappings};
use crate::processes::Found;
use crate::segment::Process;
use crate::show::{accelerated_total, connections_total, reason_name, reasons, totals, version};
use netacc_control::stats::{COUNTERS, Counter as Count, Path};
use netacc_control::trace::{Latency, Times};
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For Prometheus, which asks for it.
    OpenMetrics,
    /// For node_exporter's folder of text files, and for what asks for nothing.
    Text,
}

impl Format {
    /// The type of the content, for HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => prometheus_text::CONTENT_TYPE,
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// The counters of a process, by its number and when its library began.
type Sums = HashMap<(u32, u64), [u64; COUNTERS]>;

/// Of a process, by its number and when its library began: when it was asked, and what it had.
type Mapped = HashMap<(u32, u64), (Instant, Vec<Mappings>)>;

/// What is mapped and touched may be so old: to count pages takes as long as all else.
const MAPPED_FOR: Duration = Duration::from_secs(10);

/// What was said before.
#[derive(Debug, Default)]
pub struct Past {
    /// What a connection has moved that ends while it is read is missing once (`Snapshot::totals`),
    /// and a counter that falls would be taken for one that began anew. Nothing ever counts twice:
    /// the highest that was seen is never too high.
    sums: Sums,
    mapped: Mapped,
    latencies: Looks,
}

impl Past {
    /// The library's mappings in these processes, in their order.
    fn mapped(&mut self, all: &[&Process]) -> Vec<Vec<Mappings>> {
        let mut now = Mapped::new();
        let mut found = Vec::new();
        for process in all {
            let key = (process.pid, process.header.started_unix_ns);
            let known = self.mapped.remove(&key).filter(|(at, _)| at.elapsed() < MAPPED_FOR);
            // (Of a process that has ended meanwhile there are none.)
            let (at, mappings) = known
                .unwrap_or_else(|| (Instant::now(), memory::of(process.pid).unwrap_or_default()));
            found.push(mappings.clone());
            now.insert(key, (at, mappings));
        }
        // Of processes that are gone nothing is kept.
        self.mapped = now;
        found
    }

    /// How long the answers of these processes took, where that was measured.
    pub fn latencies<'a>(&mut self, all: &[&'a Process]) -> Vec<(&'a Process, [Times; 2])> {
        self.latencies.at(all)
    }

    /// The counters of these processes, in their order; none is less than it was.
    fn totals(&mut self, all: &[&Process]) -> Vec<[u64; COUNTERS]> {
        let mut now = Sums::new();
        let mut found = Vec::new();
        for process in all {
            let key = (process.pid, process.header.started_unix_ns);
            let mut sums = totals(process);
            if let Some(before) = self.sums.get(&key) {
                sums.iter_mut().zip(before).for_each(|(is, was)| *is = (*is).max(*was));
            }
            now.insert(key, sums);
            found.push(sums);
        }
        // Of processes that are gone nothing is kept.
        self.sums = now;
        found
    }
}

/// The metrics of these processes, and of so many that could not be asked.
pub fn render(found: &[Found], not_permitted: usize, past: &mut Past, format: Format) -> String {
    let registry = registry(found, not_permitted, past);
    let mut out = String::new();
    // (Writing into a string does not fail.)
    let _ = match format {
        Format::OpenMetrics => text::encode(&mut out, &registry),
        Format::Text => prometheus_text::encode(&mut out, &registry),
    };
    out
}

/// Gauges and counters that are filled in, process by process.
struct Families<'a> {
    registry: &'a mut Registry,
}

impl Families<'_> {
    fn gauge(&mut self, name: &str, help: &str) -> Family<Labels, Gauge> {
        let family = Family::<Labels, Gauge>::default();
        self.registry.register(name, help.trim_end_matches('.'), family.clone());
        family
    }

    fn gauge_in(&mut self, name: &str, help: &str, unit: Unit) -> Family<Labels, Gauge> {
        let family = Family::<Labels, Gauge>::default();
        self.registry.register_with_unit(name, help, unit, family.clone());
        family
    }

    fn counter(&mut self, name: &str, help: &str) -> Family<Labels, Counter> {
        let family = Family::<Labels, Counter>::default();
        self.registry.register(name, help.trim_end_matches('.'), family.clone());
        family
    }
}

fn set(family: &Family<Labels, Gauge>, labels: Labels, value: u64) {
    family.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
}

fn count(family: &Family<Labels, Counter>, labels: Labels, value: u64) {
    family.get_or_create(&labels).inc_by(value);
}

fn registry(found: &[Found], not_permitted: usize, past: &mut Past) -> Registry {
    let mut registry = Registry::with_prefix("netacc");
    let mut families = Families { registry: &mut registry };
    let processes = families.gauge("processes", "Processes that have the library");
    let help = "Processes that may not be looked at, with or without the library";
    let hidden = families.gauge("processes_not_permitted", help);
    let help = "1: /proc hides processes of others (hidepid=), nobody can tell how many";
    let by_mount = families.gauge("processes_hidden", help);
    set(&processes, Labels::new(), found.len() as u64);
    set(&hidden, Labels::new(), not_permitted as u64);
    set(&by_mount, Labels::new(), u64::from(hidden::hides().is_some()));
    let all: Vec<&Process> = found.iter().filter_map(|f| f.process.as_ref().ok()).collect();
    about(&mut families, &all);
    connections(&mut families, &all);
    let totals = past.totals(&all);
    bytes(&mut families, &all, &totals);
    mapped(&mut families, &all, past);
    latencies(&mut families, &all, past);
    counters(&mut families, &all, &totals);
    registry
}

/// The labels of a process, and more.
fn labels(process: &Process, more: &[(&'static str, String)]) -> Labels {
    let mut labels = vec![("pid", process.pid.to_string()), ("program", process.name.clone())];
    labels.extend_from_slice(more);
    labels
}

fn about(families: &mut Families<'_>, all: &[&Process]) {
    let info = families.gauge("process_info", "A process with the library; always 1");
    let help = "For how long the process has been running";
    let uptime = families.gauge_in("process_uptime", help, Unit::Seconds);
    let help = "1 where the library's file has been replaced since the process started";
    let replaced = families.gauge("process_library_replaced", help);
    for process in all {
        let about = [
            ("uid", process.uid.to_string()),
            ("container", process.container.clone().unwrap_or_default()),
            ("library", process.header.library.map(version).unwrap_or_default()),
        ];
        set(&info, labels(process, &about), 1);
        let seconds = process.uptime.as_ref().map_or(0, Duration::as_secs);
        set(&uptime, labels(process, &[]), seconds);
        set(&replaced, labels(process, &[]), u64::from(process.is_library_replaced()));
    }
}

fn connections(families: &mut Families<'_>, all: &[&Process]) {
    let help = "Open connections, by the path of their better direction";
    let open = families.gauge("connections", help);
    let help = "All connections since the start, open and ended, by the best path they ever had";
    let by_path = families.gauge("connections_by_best_path", help);
    let help = "All connections since the start that were accelerated at some time";
    let accelerated = families.gauge("connections_accelerated", help);
    let help = "All connections since the start";
    let total = families.gauge("connections_seen", help);
    let help = "Connections, open and ended, by the reason why they are, or ended, on TCP";
    let by_reason = families.gauge("connections_by_reason", help);
    let help = "Open connections, by the reason why they are on TCP; none: they are not";
    let open_by_reason = families.gauge("open_connections_by_reason", help);
    for process in all {
        let header = &process.header;
        for path in Path::ALL {
            let at = labels(process, &[("path", path.name().to_owned())]);
            let of = |words: &[u64]| words.get(path as usize).copied().unwrap_or(0);
            set(&open, at.clone(), of(&header.open_by_path));
            set(&by_path, at, of(&header.total_by_path));
        }
        set(&accelerated, labels(process, &[]), accelerated_total(process));
        set(&total, labels(process, &[]), connections_total(process));
        for (code, open, total) in reasons(process) {
            let at = labels(process, &[("reason", reason_name(code))]);
            set(&by_reason, at.clone(), total);
            set(&open_by_reason, at, open);
        }
    }
}

fn bytes(families: &mut Families<'_>, all: &[&Process], totals: &[[u64; COUNTERS]]) {
    let sent = families.counter("sent_bytes", "Bytes sent, by path");
    let received = families.counter("received_bytes", "Bytes received, by path");
    for (process, totals) in all.iter().zip(totals) {
        for path in Path::ALL {
            let at = labels(process, &[("path", path.name().to_owned())]);
            count(&sent, at.clone(), of(totals, Count::bytes_tx(path)));
            count(&received, at, of(totals, Count::bytes_rx(path)));
        }
    }
}

fn of(totals: &[u64; COUNTERS], counter: Count) -> u64 {
    totals.get(counter as usize).copied().unwrap_or(0)
}

fn mapped(families: &mut Families<'_>, all: &[&Process], past: &mut Past) {
    let help = "Address space of the library's shared memory, by what it is for";
    let reserved = families.gauge_in("memory_reserved", help, Unit::Bytes);
    let help = "Bytes of it that the process has touched";
    let touched = families.gauge_in("memory_touched", help, Unit::Bytes);
    let help = "Channels to other processes, by path";
    let channels = families.gauge("channels", help);
    let pairs = families.gauge("queue_pairs", "Queue pairs to other hosts");
    for (process, of_it) in all.iter().zip(past.mapped(all)) {
        for mappings in of_it {
            let at = labels(process, &[("kind", mappings.kind.to_owned())]);
            set(&reserved, at.clone(), mappings.reserved);
            set(&touched, at, mappings.touched);
        }
        let open = &process.header.channels;
        for path in [Path::Shm, Path::Rdma] {
            let number = open.iter().filter(|channel| channel.path == path).count() as u64;
            set(&channels, labels(process, &[("path", path.name().to_owned())]), number);
        }
        set(&pairs, labels(process, &[]), open.iter().map(|c| u64::from(c.pairs)).sum());
    }
}

/// A histogram whose numbers are given.
#[derive(Debug, Clone, Default)]
struct Given(OnceLock<Times>);

impl EncodeMetric for Given {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let none = Times::default();
        let times = self.0.get().unwrap_or(&none);
        let mut before = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for power in LE_POWERS {
            let below = times.below(1 << power);
            buckets.push(((1u64 << power) as f64 / 1e9, below - before));
            before = below;
        }
        let count = times.count();
        buckets.push((f64::INFINITY, count - before));
        let sum = times.sum_ns as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        <Self as TypedMetric>::TYPE
    }
}

impl TypedMetric for Given {
    const TYPE: MetricType = MetricType::Histogram;
}

/// The bounds of what Prometheus is told: powers of two nanoseconds, 512 ns to 34 s.
const LE_POWERS: RangeInclusive<u32> = 9..=35;

fn latencies(families: &mut Families<'_>, all: &[&Process], past: &mut Past) {
    let mut family = |name: &str, help: &str| {
        let family = Family::<Labels, Given>::default();
        families.registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        family
    };
    let help = "From a send to the first bytes behind it, where NACC_TRACE is 2";
    let answer = family(Latency::Answer.name(), help);
    let help = "From the first bytes received to the next send, where NACC_TRACE is 2";
    let serve = family(Latency::Serve.name(), help);
    for (process, times) in past.latencies(all) {
        for (family, times) in [&answer, &serve].into_iter().zip(times) {
            let _ = family.get_or_create(&labels(process, &[])).0.set(times);
        }
    }
}

/// Each counter of the library but for the bytes, which have metrics of their own, by path.
fn counters(families: &mut Families<'_>, all: &[&Process], totals: &[[u64; COUNTERS]]) {
    let is_of_bytes = |counter: Count| {
        Path::ALL.iter().any(|p| [Count::bytes_tx(*p), Count::bytes_rx(*p)].contains(&counter))
    };
    for counter in Count::ALL.iter().copied().filter(|counter| !is_of_bytes(*counter)) {
        let family = families.counter(counter.name(), counter.doc());
        for (process, totals) in all.iter().zip(totals) {
            count(&family, labels(process, &[]), of(totals, counter));
        }
    }
}
