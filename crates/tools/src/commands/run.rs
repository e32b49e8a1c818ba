//! `netacc_run`, `netacc run`: runs a command with the acceleration library preloaded.
//!
//! The command must start exactly as it would have without us.

use super::{STATUS_USAGE, parse};
use crate::launch::{self, Environment, Launch};
use crate::terminal;
use crate::{command, options};
use clap::ArgMatches;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io::{self};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// As env(1): found, but cannot be run.
const STATUS_CANNOT_RUN: c_int = 126;
/// As env(1): not found.
const STATUS_NOT_FOUND: c_int = 127;

/// `netacc_run …`; the exit status, if the command could not be started.
pub fn alone() -> c_int {
    parse("netacc_run", options::run_command())
        .map_or_else(|status| status, |matches| main(&matches))
}

/// The same, the command line read.
pub fn main(matches: &ArgMatches) -> c_int {
    let environment = Environment::inherited();
    let this_program = std::env::current_exe().ok();
    let launch = match launch::prepare(matches, environment, this_program.as_deref()) {
        Ok(launch) => launch,
        Err(errors) => {
            for error in errors {
                say(&error);
            }
            return STATUS_USAGE;
        }
    };
    for warning in &launch.warnings {
        say(&format!("warning: {warning}"));
    }
    let error = exec(&launch);
    let name = launch.arguments.first().cloned().unwrap_or_default();
    say(&format!("{}: {}", name.to_string_lossy(), explain(&name, &launch, &error)));
    match error.raw_os_error() {
        Some(libc::ENOENT) => STATUS_NOT_FOUND,
        _ => STATUS_CANNOT_RUN,
    }
}

fn say(text: &str) {
    terminal::complain(&format!("netacc_run: {text}"));
}

fn explain(name: &OsStr, launch: &Launch, error: &io::Error) -> String {
    let path = launch.environment.get("PATH");
    match error.raw_os_error() {
        Some(libc::ENOENT) => match command::find(name, path) {
            Some(file) => format!("{} exists, but its interpreter does not", file.display()),
            None => String::from("command not found"),
        },
        Some(libc::EACCES) => String::from("permission denied"),
        _ => error.to_string(),
    }
}

/// Becomes the command; returns only when that fails.
#[allow(unsafe_code, reason = "std's exec would reset the disposition of SIGPIPE")]
fn exec(launch: &Launch) -> io::Error {
    let arguments = launch.arguments.iter().cloned().map(OsString::into_vec);
    let environment = launch.environment.iter().map(|(name, value)| {
        let mut entry = name.as_bytes().to_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        entry
    });
    // Neither can hold a NUL: both came from the kernel as C strings.
    let arguments: Vec<CString> = arguments.filter_map(|bytes| CString::new(bytes).ok()).collect();
    let environment: Vec<CString> =
        environment.filter_map(|bytes| CString::new(bytes).ok()).collect();
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        let end = std::iter::once(std::ptr::null());
        strings.iter().map(|string| string.as_ptr()).chain(end).collect()
    };
    let argv = pointers(&arguments);
    let envp = pointers(&environment);
    let Some(file) = arguments.first() else {
        return io::Error::from_raw_os_error(libc::ENOENT);
    };
    // SAFETY: `file` is a C string; `argv` and `envp` are arrays of C strings that end with a null
    // pointer; all outlive the call, which returns only on failure.
    unsafe { libc::execvpe(file.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}
