//! `netacc bench`: measures an ordinary sockets program with and without the library, in
//! alternation, and prints both side by side.
//!
//! Nothing of netacc is used: the client and the server are two processes that use `std::net`, and
//! `libc`'s epoll, as any program would. The library gets under them by `LD_PRELOAD`, as under any
//! program. They are this same program, started again with a hidden subcommand: whoever offers
//! [`Command`] has to offer all of it.
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

pub use cli::{Command, WHOLE_MAX, whole};
use std::io::{self, Write};

/// One error type is enough for a tool whose only reaction is to print it.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The cells of a table's row.
pub type Row = Vec<String>;

/// The reader's terminal, which whoever offers [`Command`] knows.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// How many columns it has; none: standard output is no terminal.
    pub columns: fn() -> Option<usize>,
    /// Text with no line of more columns.
    pub fold: fn(String, Option<usize>) -> String,
    /// A table of these headings and rows with no line of more columns.
    pub table: fn(&[&str], Vec<Row>, Option<usize>) -> String,
    /// Says a line on standard error, folded as well.
    pub complain: fn(&str),
}

/// Says it on standard output. A reader that has seen enough is no error.
fn say(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Says a line on standard error. (Where nobody hears that there is nothing else to do.)
fn complain(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl Command {
    /// Runs the subcommand: whether all runs ended with exact bytes. Errors are one line each.
    pub fn run(self, terminal: Terminal) -> Result<bool> {
        match self {
            Command::Bench(args) => plan::bench(&args, terminal),
            Command::BenchServer { spec } => server::main(&spec).map(|()| true),
            Command::BenchClient { spec, ports } => client::main(&spec, &ports).map(|()| true),
            Command::BenchLoad => sys::spin_for_ever(),
        }
    }
}
