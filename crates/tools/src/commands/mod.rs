//! The subcommands of `netacc`, a file each (`bench`: the crate `netacc-bench`). `netacc_run` and
//! `netacc_ss` are two of them under names of their own.
//!
//! The programs have their own `main`, without Rust's runtime, because that one ignores SIGPIPE and
//! opens missing standard descriptors, and what [`run`] starts would inherit both.

pub mod capture;
pub mod cfg;
pub mod doctor;
pub mod metrics;
pub mod ps;
pub mod run;
pub mod ss;
pub mod top;
pub mod trace;
mod utcp_keeper;

use crate::options;
use crate::segment;
use crate::table::Table;
use crate::terminal;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use netacc_bench::{Command as Bench, Terminal};
use std::borrow::Cow;
use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something did not work.
const STATUS_FAILED: c_int = 1;
/// A mistake on the command line or in the configuration.
const STATUS_USAGE: c_int = 2;

/// `netacc SUBCOMMAND …`; the exit status.
pub fn netacc() -> c_int {
    if utcp_keeper::is_asked_for() {
        return utcp_keeper::main();
    }
    // (A command that is run gets them as they are.)
    if std::env::args_os().nth(1).is_none_or(|word| word != "run") {
        hold_standard_descriptors();
    }
    let matches = match parse("netacc", netacc_command()) {
        Ok(matches) => matches,
        Err(status) => return status,
    };
    match matches.subcommand() {
        Some(("run", matches)) => run::main(matches),
        Some(("ss", matches)) => ss::main(matches),
        Some(("ps", matches)) => ps::main(matches),
        Some(("capture", matches)) => capture::main(matches),
        Some(("cfg", matches)) => cfg::main(matches),
        Some(("doctor", matches)) => doctor::main(matches),
        Some(("metrics", matches)) => metrics::main(matches),
        Some(("top", matches)) => top::main(matches),
        Some(("trace", matches)) => trace::main(matches),
        _ => bench(&matches),
    }
}

/// The command line of `netacc`.
pub fn netacc_command() -> Command {
    let command = Command::new("netacc")
        .version(options::VERSION)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(options::run_command().name("run"))
        .subcommand(options::ss_command().name("ss"))
        .subcommand(options::ps_command())
        .subcommand(options::capture_command())
        .subcommand(options::cfg_command())
        .subcommand(options::doctor_command())
        .subcommand(options::metrics_command())
        .subcommand(options::top_command())
        .subcommand(options::trace_command());
    // (Behind that: it brings a text of its own.)
    Bench::augment_subcommands(command).about("Tools for netacc, the TCP acceleration library")
}

/// `netacc bench` and the processes that it starts.
fn bench(matches: &ArgMatches) -> c_int {
    ignore_signals_of_writes();
    // Before minutes are spent on what nobody can be told.
    if let Err(error) = is_open() {
        return cannot_say("netacc", &error);
    }
    let terminal = Terminal {
        columns: terminal::columns,
        fold: terminal::fold,
        table: |headings, rows, columns| {
            let mut table = Table::new(headings);
            rows.into_iter().for_each(|row| table.row(row));
            table.render(columns)
        },
        complain: terminal::complain,
    };
    let bench = Bench::from_arg_matches(matches).map_err(Into::into);
    let done = bench.and_then(|bench| bench.run(terminal));
    match done {
        Ok(true) => 0,
        Ok(false) => STATUS_FAILED,
        Err(error) => {
            terminal::complain(&format!("netacc: {error}"));
            STATUS_FAILED
        }
    }
}

/// A write to a pipe that nobody reads, or to a file that has all that the process may write, is an
/// error of that write, not the end of the process.
#[allow(unsafe_code, reason = "signal(2)")]
fn ignore_signals_of_writes() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: nobody else handles these signals here, and ignoring one runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Standard output was closed when the program began.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output is what it was when the program began, which may be nothing.
fn is_open() -> io::Result<()> {
    match IS_CLOSED.load(Ordering::Relaxed) || rustix::io::fcntl_getfd(io::stdout()).is_err() {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => Ok(()),
    }
}

fn cannot_say(tool: &str, error: &io::Error) -> c_int {
    terminal::complain(&format!("{tool}: standard output: {error}"));
    STATUS_FAILED
}

/// Where a standard descriptor is closed, the next file that is opened would have its number, and
/// what is said would go there.
#[allow(unsafe_code, reason = "fcntl(2), open(2)")]
fn hold_standard_descriptors() {
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: no pointer but to a string that lives as long as the program; a number that is
        // not open is an error.
        let is_closed = unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0
            && unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) } == fd;
        if is_closed && fd == libc::STDOUT_FILENO {
            IS_CLOSED.store(true, Ordering::Relaxed);
        }
    }
}

/// The arguments of this process; otherwise what `tool` has to say has been said, and this is its
/// exit status.
fn parse(tool: &str, command: Command) -> Result<ArgMatches, c_int> {
    command.try_get_matches().map_err(|error| {
        let (is_error, text) = options::answer(tool, &error);
        if is_error {
            terminal::complain(text.trim_end_matches('\n'));
            return STATUS_USAGE;
        }
        print(tool, &terminal::fold(text, terminal::columns()))
    })
}

/// Whether processes can be seen at all; otherwise it has been said that they cannot, and this is
/// the exit status.
fn sees_processes(tool: &str) -> Result<(), c_int> {
    segment::pids().map(drop).map_err(|error| {
        terminal::complain(&format!("{tool}: /proc: {error}"));
        STATUS_FAILED
    })
}

/// The exit status.
fn print(tool: &str, text: &str) -> c_int {
    say(tool, text).err().unwrap_or(0)
}

/// Writes it to standard output, or says why not; then this is the exit status. A reader that has
/// seen enough is no error.
fn say(tool: &str, text: &str) -> Result<(), c_int> {
    let mut out = io::stdout().lock();
    let done = is_open().and_then(|()| out.write_all(tame(text).as_bytes()));
    done.and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => 0,
        _ => cannot_say(tool, &error),
    })
}

/// JSON escapes what is below a blank. What else drives a terminal stands in strings alone, and is
/// escaped as there.
fn tame(text: &str) -> Cow<'_, str> {
    let drives = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    // (All but the first of these begin with that byte: most texts are looked through at once, many
    // bytes by an instruction.)
    let may_drive = |is: bool, byte: &u8| is | (*byte == 0x7f) | (*byte == 0xc2);
    let mut parts = text.as_bytes().chunks(256);
    if !parts.any(|part| part.iter().fold(false, may_drive)) || !text.contains(drives) {
        return text.into();
    }
    let one = |c: char| if drives(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_does_not_drive_a_terminal() {
        let value = serde_json::json!("a\u{1b}\u{7f}\u{9b}2J\u{a0}é");
        let text = value.to_string();
        let tamed = super::tame(&text);
        assert!(!tamed.chars().any(char::is_control), "{tamed}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&tamed).unwrap(), value);
        // Wherever it stands in a long one.
        for at in [255, 256, 257, 511, 1000] {
            let text = format!("{}\u{9b}", "x".repeat(at));
            assert_eq!(super::tame(&text), format!("{}\\u009b", "x".repeat(at)));
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        super::netacc_command().debug_assert();
    }
}
