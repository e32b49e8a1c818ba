//! `netacc_ss`, `netacc ss`: shows the connections of a running process, and why those on TCP are
//! on TCP.

use super::{STATUS_FAILED, parse, print};
use crate::{options, segment, show};
use clap::ArgMatches;
use std::ffi::c_int;
use std::io::{self, Write};

const TOOL: &str = "netacc_ss";

/// `netacc_ss …`; the exit status.
pub fn alone() -> c_int {
    parse(TOOL, options::ss_command()).map_or_else(|status| status, |matches| main(&matches))
}

/// The same, the command line read.
pub fn main(matches: &ArgMatches) -> c_int {
    let pid = matches.get_one::<u32>("option-pid").or_else(|| matches.get_one("pid"));
    let what = matches.get_one::<String>("show").map_or("cnt", String::as_str);
    let pid = pid.copied().unwrap_or(0);
    match segment::read(pid) {
        Err(error) => {
            let _ = writeln!(io::stderr(), "{TOOL}: {pid}: {error}");
            STATUS_FAILED
        }
        Ok(process) if matches.get_flag("json") => {
            print(TOOL, &format!("{:#}\n", show::json(&process, what)))
        }
        Ok(process) => print(TOOL, &show::text(&process, what)),
    }
}
