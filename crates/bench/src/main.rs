//! `netacc`: the operator's tool. Its one subcommand so far, `netacc bench`, measures an ordinary sockets program
//! with and without the library, in alternation, and prints both side by side.
//!
//! The tool links nothing of netacc: its client and its server are two processes that use `std::net`, and `libc`'s
//! epoll, as any program would. The library gets under them by `LD_PRELOAD`, as under any program.
//!
//! - [`spec`] what to run, as told to the two processes
//! - [`server`], [`client`] the two processes
//! - [`run`] starts them, reads their clocks, asks `netacc_ss` what was accelerated
//! - [`library`] where the library is, and the proof that it worked
//! - [`plan`] workloads × rounds × kinds, alternating
//! - [`stats`], [`report`], [`svg`] medians, the table and JSON, the picture
//! - [`sys`] the only file with `unsafe`

mod cli;
mod client;
mod framing;
mod library;
mod plan;
mod report;
mod run;
mod server;
mod spec;
mod stats;
mod svg;
mod sys;

use clap::Parser;
use std::process::ExitCode;

/// One error type is enough for a tool whose only reaction is to print it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let outcome = match cli::Cli::parse().command {
        cli::Command::Bench(args) => plan::bench(&args),
        cli::Command::BenchServer { spec } => server::main(&spec).map(|()| ExitCode::SUCCESS),
        cli::Command::BenchClient { spec, ports } => {
            client::main(&spec, &ports).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::BenchLoad => sys::spin_for_ever(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("netacc: {error}");
        ExitCode::FAILURE
    })
}
