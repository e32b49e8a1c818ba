//! The behaviour tests of netacc: every scenario is an ordinary sockets program that runs on kernel
//! TCP, on the library with acceleration off, and on shared memory, and must not be able to tell
//! them apart.

// Scenarios are lists of closures.
#![allow(clippy::type_complexity)]

mod bad;
mod bpf;
mod broker;
mod carriers;
mod choice;
mod ctx;
mod helpers;
mod hostile;
mod kill;
mod mover;
mod oracle;
mod pattern;
mod raw;
mod ring;
mod runner;
mod scenario;
mod scenarios;
mod ss;
mod starve;
mod stress;
mod sys;

use choice::Choice;
use ctx::{Ctx, Role, Warmup};
use oracle::Transcripts;
use runner::{MODES, Mode, Options};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage:
  netacc-conformance run [--mode plain|tcp|server-only|client-only|shm|early|new|fast|switch|looks|rdma]... [--twice] [--jobs N]
                         [--timeout S] [--verbose] [--except NAME]... [--share K/N [--everywhere NAME]...]
                         [--write-oracle DIR] [--oracle DIR] [NAME...]
                         --oracle: plain TCP's transcripts are those that a run with --write-oracle has kept there; plain TCP
                         is run where a mode's transcript is another, or fails
  netacc-conformance --list [--markdown]
  netacc-conformance kill [--rounds N] [--plain N] [--path shm|rdma]
                         kill -9 of either side in the middle of traffic; --plain: so many rounds without the library
  netacc-conformance stress [--operations N] [--seed N] [--path shm|rdma] [--no-plain] [--only NAME]
                         checksummed streams over promotions and demotions
  netacc-conformance hostile [NAME...]
                         attackers of other users, as peers and otherwise; needs root
  netacc-conformance starve [--path shm|rdma] [--every] [NAME...]
                         memory, mappings, descriptors and threads fail: one after the other, some of them or every one.
                         The library has to be built with the feature `inject` (tests/inject does that)
The library is taken from $NETACC_LIB_DIR, or target/release. Connections are between $NETACC_TEST_ADDRESS and itself
(127.0.0.1), or $NETACC_TEST_ADDRESS6 (::1); the mode or path rdma needs addresses of an RDMA device. All limits of time
are multiplied by $NETACC_TEST_PATIENCE (1).";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["scenario", name, role, warmup] => part(name, role, warmup),
        ["helper", name, ref rest @ ..] => helpers::run(name, rest),
        ["run", ref rest @ ..] => {
            // What this process was born with must not show in the scenarios' fd numbers.
            let _ = sys::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            run(rest)
        }
        ["--list", "--markdown"] | ["list", "--markdown"] => {
            print!("{}", scenario::markdown());
            ExitCode::SUCCESS
        }
        ["--list"] | ["list"] => {
            for s in scenario::all() {
                println!("{}: {}", s.name, s.about);
            }
            ExitCode::SUCCESS
        }
        ["kill", ref rest @ ..] => kill::run(rest),
        ["stress", ref rest @ ..] => stress::run(rest),
        ["starve", ref rest @ ..] => starve::run(rest),
        ["hostile", ref names @ ..] => hostile::run(names),
        ["hostile-one", name, dir] => hostile::one(name, dir),
        ["hostile-part", ref rest @ ..] => hostile::part(rest),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// One process of a scenario.
fn part(name: &str, role: &str, warmup: &str) -> ExitCode {
    let Some(scenario) = scenario::find(name) else {
        return ExitCode::from(2);
    };
    let role = match role {
        "Server" => Role::Server,
        "Client" => Role::Client,
        _ => Role::Alone,
    };
    let warmup = match warmup {
        "UntilFast" => Warmup::UntilFast,
        "UntilHalf" => Warmup::UntilHalf,
        "None" => Warmup::None,
        "Lives" => Warmup::Lives,
        _ => Warmup::Fixed,
    };
    // std ignores SIGPIPE; the scenarios are ordinary C programs in this respect.
    sys::default_signal(libc::SIGPIPE);
    scenario.run(&Ctx::new(role, warmup, scenario.own_carriers().is_some()));
    ExitCode::SUCCESS
}

/// The library, and the path that `--path` names; an error is the user's.
pub fn build_of(words: &[&str]) -> Option<ss::Build> {
    let name = option(words, "--path", "shm".to_string());
    let path = ss::Path::from_name(&name);
    if path.is_none() {
        eprintln!("{USAGE}");
    }
    Some(ss::Build::find().with_path(path?))
}

/// The value after an option, parsed.
pub fn option<T: std::str::FromStr>(words: &[&str], name: &str, default: T) -> T {
    words
        .iter()
        .position(|w| *w == name)
        .and_then(|i| words.get(i + 1))
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

fn run(words: &[&str]) -> ExitCode {
    let mut options = Options {
        choice: Choice::default(),
        modes: Vec::new(),
        jobs: 2,
        plain_runs: 1,
        transcripts: Transcripts::default(),
        verbose: false,
        timeout: Duration::from_secs(30),
    };
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--mode" => match rest.next().and_then(|v| MODES.iter().find(|(_, n)| n == v)) {
                Some((mode, _)) => options.modes.push(*mode),
                None => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            },
            "--except" => options.choice.except.extend(rest.next().map(|v| v.to_string())),
            "--everywhere" => {
                options.choice.everywhere.extend(rest.next().map(|v| v.to_string()));
            }
            "--share" => match rest.next().and_then(|v| Choice::share(v)) {
                Some(share) => options.choice.share = Some(share),
                None => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            },
            "--twice" => options.plain_runs = 2,
            "--oracle" => options.transcripts.from = rest.next().map(|v| v.into()),
            "--write-oracle" => options.transcripts.to = rest.next().map(|v| v.into()),
            "--verbose" => options.verbose = true,
            "--jobs" => options.jobs = rest.next().and_then(|v| v.parse().ok()).unwrap_or(1),
            "--timeout" => {
                options.timeout =
                    Duration::from_secs(rest.next().and_then(|v| v.parse().ok()).unwrap_or(30));
            }
            name => options.choice.filter.push(name.to_string()),
        }
    }
    if options.modes.is_empty() {
        options.modes = MODES.iter().map(|(m, _)| *m).collect::<Vec<Mode>>();
        options.modes.retain(|m| *m != Mode::Rdma);
    }
    let ok = runner::run(scenario::all(), &options);
    if let Some(log) = runner::take_log() {
        let worrying: Vec<&str> = log
            .lines()
            .filter(|l| l.contains("panic") || l.contains("ERROR") || l.contains("FATAL"))
            .collect();
        for line in worrying.iter().take(20) {
            println!("library log: {line}");
        }
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
