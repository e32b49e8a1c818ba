//! `netacc_run`: runs a command with the acceleration library preloaded.
//!
//! Has its own `main`, without Rust's runtime, because that one ignores SIGPIPE and opens missing standard
//! descriptors, and the command would inherit both: the command must start exactly as it would have without us.
#![deny(unsafe_code)]
#![no_main]

use netacc_tools::launch::{self, Environment, Launch};
use netacc_tools::{command, options};
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A mistake on the command line or in the configuration.
const STATUS_USAGE: c_int = 2;
/// As env(1): found, but cannot be run.
const STATUS_CANNOT_RUN: c_int = 126;
/// As env(1): not found.
const STATUS_NOT_FOUND: c_int = 127;

#[allow(unsafe_code, reason = "the entry point that libc calls")]
// SAFETY: no other symbol of this program is called main, and the signature is the one that libc calls.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    let matches = match options::run_command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let (is_error, text) = options::answer("netacc_run", &error);
            if is_error {
                let _ = io::stderr().write_all(text.as_bytes());
                return STATUS_USAGE;
            }
            let _ = io::stdout().write_all(text.as_bytes());
            return c_int::from(io::stdout().flush().is_err());
        }
    };
    let environment = Environment::inherited();
    let this_program = std::env::current_exe().ok();
    let launch = match launch::prepare(&matches, environment, this_program.as_deref()) {
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
    say(&format!(
        "{}: {}",
        name.to_string_lossy(),
        explain(&name, &launch, &error)
    ));
    match error.raw_os_error() {
        Some(libc::ENOENT) => STATUS_NOT_FOUND,
        _ => STATUS_CANNOT_RUN,
    }
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "netacc_run: {text}");
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
#[allow(
    unsafe_code,
    reason = "std's exec would reset the disposition of SIGPIPE"
)]
fn exec(launch: &Launch) -> io::Error {
    let arguments = launch.arguments.iter().cloned().map(OsString::into_vec);
    let environment = launch.environment.iter().map(|(name, value)| {
        let mut entry = name.as_bytes().to_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        entry
    });
    // Neither can hold a NUL: both came from the kernel as C strings.
    let arguments: Vec<CString> = arguments
        .filter_map(|bytes| CString::new(bytes).ok())
        .collect();
    let environment: Vec<CString> = environment
        .filter_map(|bytes| CString::new(bytes).ok())
        .collect();
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        let end = std::iter::once(std::ptr::null());
        strings
            .iter()
            .map(|string| string.as_ptr())
            .chain(end)
            .collect()
    };
    let argv = pointers(&arguments);
    let envp = pointers(&environment);
    let Some(file) = arguments.first() else {
        return io::Error::from_raw_os_error(libc::ENOENT);
    };
    // SAFETY: `file` is a C string; `argv` and `envp` are arrays of C strings that end with a null pointer; all outlive
    // the call, which returns only on failure.
    unsafe { libc::execvpe(file.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}
