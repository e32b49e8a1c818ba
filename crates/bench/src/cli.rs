//! The command line.

use crate::spec::Kind;
use clap::{Args, Subcommand, ValueEnum};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The subcommand and its helpers.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure TCP connections with and without the library, side by side.
    Bench(Box<BenchArgs>),
    /// The measured server (started by `netacc bench`).
    #[command(hide = true)]
    BenchServer {
        /// What to run, as JSON.
        spec: String,
    },
    /// The measured client (started by `netacc bench`).
    #[command(hide = true)]
    BenchClient {
        /// What to run, as JSON.
        spec: String,
        /// Of the server.
        ports: Vec<u16>,
    },
    /// One busy loop (started by `netacc bench --load`).
    #[command(hide = true)]
    BenchLoad,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadName {
    /// round trip of a small message, blocking recv on both ends
    Pingpong,
    /// the same with epoll_wait on both ends
    PingpongEpoll,
    /// request/response: N connections, T client threads, epoll
    Reqrep,
    /// one-way stream of large writes
    Bulk,
    /// connect, one request, close
    Rate,
    /// CPU time that idle connections cost
    Idle,
    /// ping-pong with the library on one side only
    Mixed,
    /// the same with epoll_wait on both ends
    MixedEpoll,
}

impl WorkloadName {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pingpong => "pingpong",
            Self::PingpongEpoll => "pingpong-epoll",
            Self::Reqrep => "reqrep",
            Self::Bulk => "bulk",
            Self::Rate => "rate",
            Self::Idle => "idle",
            Self::Mixed => "mixed",
            Self::MixedEpoll => "mixed-epoll",
        }
    }
}

/// Where the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pin {
    /// ping-pong: a CPU each; the others: wherever the scheduler puts them
    Auto,
    /// a CPU each, always
    Apart,
    /// both on one CPU
    Together,
    /// wherever the scheduler puts them
    None,
}

/// Runs a client and a server as two processes over 127.0.0.1, in turn without and with the
/// library, and prints both: rate, ratio, latency and how many connections were in fact
/// accelerated.
///
/// Latency is taken with the monotonic clock around each operation; one reading of that clock
/// (printed with the results, about 25 ns) is part of every figure. Every figure in the table is
/// the median over the rounds.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What to measure [default: all of them]
    #[arg(value_enum)]
    pub(crate) workloads: Vec<WorkloadName>,

    /// Rounds; each runs every kind once, in turn
    #[arg(long, default_value_t = 5, value_parser = whole::<u32>(1..=WHOLE_MAX), allow_negative_numbers = true)]
    pub(crate) rounds: u32,
    /// Measured seconds of each run
    #[arg(long, default_value_t = 2.0, value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Seconds before measuring starts, in each run
    #[arg(long, default_value_t = 0.3, value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) warmup: f64,
    /// Kinds of run to alternate; ratios are against the first [default: plain,accelerated; for
    /// `mixed` and `mixed-epoll` plain,server-only,client-only]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) kinds: Vec<Kind>,
    /// Where the two processes run
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pub(crate) pin: Pin,
    /// Keep N busy loops running beside everything
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = whole::<usize>(0..=WHOLE_MAX), allow_negative_numbers = true)]
    pub(crate) load: usize,

    /// pingpong, mixed, both with -epoll, rate, idle: bytes of a message
    #[arg(long, default_value = "64", value_parser = frame_size, allow_negative_numbers = true)]
    pub(crate) size: usize,
    /// reqrep: bytes of a request
    #[arg(long, default_value = "512", value_parser = frame_size, allow_negative_numbers = true)]
    pub(crate) request: usize,
    /// reqrep: bytes of a response
    #[arg(long, default_value = "64", value_parser = frame_size, allow_negative_numbers = true)]
    pub(crate) response: usize,
    /// reqrep: connections
    #[arg(short = 'c', long, default_value_t = 100, value_parser = whole::<u32>(1..=60_000), allow_negative_numbers = true)]
    pub(crate) connections: u32,
    /// reqrep, rate: client threads
    #[arg(short = 't', long, default_value_t = 4, value_parser = whole::<u32>(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: u32,
    /// reqrep: requests sent at once on a connection; the next batch follows when all are answered
    #[arg(short = 'P', long, default_value_t = 1, value_parser = whole::<u32>(1..=65_536), allow_negative_numbers = true)]
    pub(crate) pipeline: u32,
    /// bulk: bytes of a write
    #[arg(long, default_value = "128K", value_parser = frame_size, allow_negative_numbers = true)]
    pub(crate) write_size: usize,
    /// idle: connections
    #[arg(long, default_value_t = 100, value_parser = whole::<u32>(1..=60_000), allow_negative_numbers = true)]
    pub(crate) idle_connections: u32,
    /// idle: seconds over which CPU time is counted
    #[arg(long, default_value_t = 10.0, value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) idle_seconds: f64,

    /// The library [default: $NETACC_LIB, or beside this program, then ../lib, /usr/local/lib,
    /// /usr/lib]
    #[arg(long, value_name = "PATH")]
    pub(crate) lib: Option<PathBuf>,
    /// netacc_ss [default: beside this program, then $PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) ss: Option<PathBuf>,
    /// Write every run and the summary as JSON (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the latency distributions as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// No progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The most that a whole number without a limit of its own may be.
pub const WHOLE_MAX: u64 = u32::MAX as u64;

/// Reads whole numbers of that range; of others it says which there are.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            format!("valid: a whole number from {} to {}", range.start(), range.end())
        })
    }
}

/// A size in bytes, with K or M for powers of 1024.
fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1024),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1024 * 1024),
        _ => (text, 1),
    };
    let number: usize =
        digits.parse().map_err(|_| format!("`{text}` is not a size (examples: 64, 128K, 1M)"))?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

/// A message carries its 8-byte sequence number, so that a wrong answer is noticed.
fn frame_size(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        n @ 8..=67_108_864 => Ok(n),
        _ => Err("valid: 8 bytes to 64M".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s.is_finite() && (0.0..=86_400.0).contains(&s) => Ok(s),
        _ => Err("valid: 0 to 86400 seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn command() -> clap::Command {
        Command::augment_subcommands(clap::Command::new("netacc"))
    }

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn sizes() {
        assert_eq!(frame_size("64"), Ok(64));
        assert_eq!(frame_size("128K"), Ok(131_072));
        assert_eq!(frame_size("1M"), Ok(1_048_576));
        for wrong in ["", "7", "K", "-1", "64KB", "65M", "99999999999999999999M"] {
            assert!(frame_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn defaults_and_lists() {
        let matches = command().get_matches_from([
            "netacc",
            "bench",
            "pingpong",
            "bulk",
            "--kinds",
            "plain,server-only",
            "--pin",
            "apart",
        ]);
        let Ok(Command::Bench(args)) = Command::from_arg_matches(&matches) else {
            panic!("not bench")
        };
        assert_eq!(args.workloads, [WorkloadName::Pingpong, WorkloadName::Bulk]);
        assert_eq!(args.kinds, [Kind::Plain, Kind::ServerOnly]);
        assert_eq!((args.pin, args.rounds, args.write_size), (Pin::Apart, 5, 131_072));
    }
}
