//! What cannot be had: each allocation of the library's fails, each mapping, descriptor and thread
//! that it makes, in turn, and from there on all that come. The scenarios must not be able to tell:
//! plain TCP's transcript, no signal, no hang. The library orders the failures for itself (its
//! feature `inject`), so that nothing of the program's own fails.

use crate::choice::Choice;
use crate::oracle::Transcripts;
use crate::runner::{Mode, Options, Totals, difference, execute, take_log};
use crate::scenario::{self, Scenario};
use crate::ss::Build;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What there is: connections made and accepted, moved and brought back, each call that waits,
/// processes, passing.
const SCENARIOS: &[&str] = &[
    "data/duplex-nonblocking",
    "data/ping-pong",
    "data/huge-iov",
    "data/one-process",
    "close/eof-after-data",
    "close/many-connections",
    "epoll/level",
    "epoll/mixed-kinds",
    "epoll/many-connections",
    "epoll/nested",
    "epoll/two-sets",
    "epoll/registered-before-connected",
    "poll/mixed",
    "poll/wakes",
    "poll/many-fds",
    "poll/thousands",
    "select/mixed",
    "fds/dup",
    "fds/pass-to-a-child",
    "connect/non-blocking",
    "connect/pre-fork",
    "process/fork-alternate",
    "process/fork-per-connection",
    "process/exec-in-place",
    "process/forked-and-both-read",
    "rings/epoll-ctl",
    "threads/full-duplex",
    "threads/blocked-receiver",
    "promotion/while-threads-stream",
    "leaving/options-with-unread-bytes",
    "adopt/fork",
    "adopt/passed",
];

/// At each `make test`: some failures of each of these.
const QUICK: &[&str] = &[
    "data/duplex-nonblocking",
    "epoll/mixed-kinds",
    "poll/thousands",
    "process/fork-alternate",
    "adopt/fork",
];

/// What the library understands, and which of its two counts says how many there are.
const KINDS: [(&str, usize); 4] =
    [("memory", 0), ("memory-once", 0), ("call", 1), ("call-once", 1)];

pub fn run(words: &[&str]) -> ExitCode {
    let every = words.contains(&"--every");
    // One of them alone, many times: `--fail "call-once 30"`.
    let failure =
        words.iter().position(|w| *w == "--fail").and_then(|at| words.get(at + 1)).copied();
    let Some(build) = crate::build_of(words) else {
        return ExitCode::from(2);
    };
    let path = build.path.name();
    let named: Vec<&str> = words
        .iter()
        .copied()
        .filter(|w| !w.starts_with("--") && Some(*w) != failure && *w != path)
        .collect();
    let options = Options {
        choice: Choice::default(),
        modes: Vec::new(),
        jobs: 2,
        plain_runs: 1,
        transcripts: Transcripts::default(),
        verbose: false,
        timeout: Duration::from_secs(30),
    };
    let totals = Totals::default();
    for scenario in scenario::all() {
        let chosen = if named.is_empty() {
            if every { SCENARIOS } else { QUICK }.contains(&scenario.name)
        } else {
            named.iter().any(|n| scenario.name.contains(n))
        };
        if chosen {
            starve(&scenario, &build, &options, every, failure, &totals);
        }
    }
    let _ = take_log();
    println!("\nstarve: {}", totals.line());
    if totals.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Which ones fail: every one, or the first ones and some of the others.
fn chosen(count: usize, every: bool) -> Vec<usize> {
    if every {
        return (1..=count).collect();
    }
    let mut all: Vec<usize> =
        (1..=3).chain((1..=4).map(|i| count * i / 5)).filter(|n| (1..=count).contains(n)).collect();
    all.dedup();
    all
}

fn starve(
    scenario: &Scenario,
    build: &Build,
    options: &Options,
    every: bool,
    failure: Option<&str>,
    totals: &Totals,
) {
    let oracle = execute(scenario, Mode::Plain, options, build);
    let file = std::env::temp_dir().join(format!("netacc-starve-{}", std::process::id()));
    let mut counting = build.clone();
    counting.environment = vec![("NETACC_TEST_COUNTS", file.display().to_string())];
    let whole = execute(scenario, Mode::Starved, options, &counting);
    let counts = read_counts(&file);
    let _ = std::fs::remove_file(&file);
    let mut problems = oracle.problems;
    if let Some(why) = oracle.skipped.filter(|_| problems.is_empty()) {
        totals.skip();
        println!("test starve/{} ... skipped ({why})", scenario.name);
        return;
    }
    problems.extend(whole.problems);
    problems.extend(difference(&oracle.transcript, &whole.transcript));
    if counts.contains(&0) {
        problems.push(format!(
            "nothing is counted ({counts:?}): the library is not built with the feature inject"
        ));
    }
    if !problems.is_empty() {
        totals.fail();
        println!(
            "test starve/{} ... FAILED (nothing made to fail)\n    {}",
            scenario.name,
            problems.join("\n    ")
        );
        return;
    }
    for (kind, which) in KINDS {
        let all = match failure.map(|f| f.split_once(' ').unwrap_or((f, "1"))) {
            Some((of, n)) if of == kind => vec![n.parse().unwrap_or(1); 10],
            Some(_) => continue,
            None => chosen(counts[which], every),
        };
        let (next, failed, fast) =
            (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..options.jobs {
                scope.spawn(|| {
                    while let Some(n) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut build = build.clone();
                        build.environment = vec![("NETACC_TEST_FAIL", format!("{kind} {n}"))];
                        let mut outcome = execute(scenario, Mode::Starved, options, &build);
                        fast.fetch_add(usize::from(outcome.accelerated), Ordering::Relaxed);
                        outcome
                            .problems
                            .extend(difference(&oracle.transcript, &outcome.transcript));
                        if !outcome.problems.is_empty()
                            && let Ok(mut list) = failed.lock()
                        {
                            list.push(format!(
                                "{kind} {n}: {}\n{}",
                                outcome.problems.join("\n"),
                                outcome.stderr
                            ));
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_default();
        let (fast, runs) = (fast.into_inner(), all.len());
        if failed.is_empty() {
            totals.pass();
            println!(
                "test starve/{} [{kind}] ... ok ({runs} of {} failed in turn, {fast} runs accelerated)",
                scenario.name, counts[which]
            );
        } else {
            totals.fail();
            println!(
                "test starve/{} [{kind}] ... FAILED ({} of {runs} runs)",
                scenario.name,
                failed.len()
            );
            for text in failed.iter().take(6) {
                for line in text.lines().take(40) {
                    println!("    {line}");
                }
            }
        }
    }
}

/// How many there were in the process that had most, of both kinds.
fn read_counts(file: &Path) -> [usize; 2] {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut most = [0, 0];
    for line in text.lines() {
        for (most, n) in
            most.iter_mut().zip(line.split(" ").filter_map(|w| w.parse::<usize>().ok()))
        {
            *most = n.max(*most);
        }
    }
    most
}
