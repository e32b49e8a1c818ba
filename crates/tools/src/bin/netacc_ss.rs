//! `netacc_ss`: shows the connections of a running process, and why those on TCP are on TCP.
#![forbid(unsafe_code)]

use netacc_tools::{options, segment, show};
use std::io::{self, Write};
use std::process::ExitCode;

const STATUS_FAILED: u8 = 1;
const STATUS_USAGE: u8 = 2;

fn main() -> ExitCode {
    let matches = match options::ss_command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let (is_error, text) = options::answer("netacc_ss", &error);
            if is_error {
                let _ = io::stderr().write_all(text.as_bytes());
                return ExitCode::from(STATUS_USAGE);
            }
            return print(&text);
        }
    };
    let pid = matches
        .get_one::<u32>("option-pid")
        .or_else(|| matches.get_one("pid"));
    let what = matches
        .get_one::<String>("show")
        .map_or("cnt", String::as_str);
    let pid = pid.copied().unwrap_or(0);
    match segment::read(pid) {
        Err(error) => {
            let _ = writeln!(io::stderr(), "netacc_ss: {pid}: {error}");
            ExitCode::from(STATUS_FAILED)
        }
        Ok(process) if matches.get_flag("json") => {
            print(&format!("{:#}\n", show::json(&process, what)))
        }
        Ok(process) => print(&show::text(&process, what)),
    }
}

/// A reader that has seen enough is no error.
fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "netacc_ss: {error}");
            ExitCode::from(STATUS_FAILED)
        }
    }
}
