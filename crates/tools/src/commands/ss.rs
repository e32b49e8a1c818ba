//! `netacc_ss`, `netacc ss`: shows the connections of running processes, and why those on TCP are
//! on TCP. Without a process it shows which there are, as `netacc ps` does.

use super::{STATUS_FAILED, STATUS_USAGE, parse, print, ps};
use crate::processes::{self, Unknown};
use crate::show::Section;
use crate::{options, show};
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
    if matches.get_flag("clear") {
        return print(
            TOOL,
            "Nothing to clear: netacc makes no files, and ended processes leave nothing.\n",
        );
    }
    let words = |id| matches.get_many::<String>(id).into_iter().flatten().cloned();
    let words: Vec<String> = words("option-pid").chain(words("pid")).collect();
    let is_json = matches.get_flag("json");
    let is_wide = matches.get_flag("wide");
    if words.is_empty() {
        return ps::show(TOOL, is_json);
    }
    let asked = matches.get_many::<String>("show").into_iter().flatten();
    let sections = Section::list(asked.map(String::as_str));
    let found = match processes::named(&words) {
        Ok(found) => found,
        Err(unknown) => {
            let _ = writeln!(io::stderr(), "{TOOL}: {unknown}");
            return match unknown {
                Unknown::Number(_) => STATUS_USAGE,
                Unknown::Name(_) => STATUS_FAILED,
            };
        }
    };
    let mut status = 0;
    let mut read = Vec::new();
    for found in found {
        match found.process {
            Ok(process) => read.push(process),
            Err(error) => {
                let _ = writeln!(io::stderr(), "{TOOL}: {}: {error}", found.pid);
                status = STATUS_FAILED;
            }
        }
    }
    // One number is answered by one object, everything else by a list.
    let is_single = matches!(words.as_slice(), [word] if word.parse::<u32>().is_ok());
    let shown = match (is_json, read.as_slice()) {
        (true, [process]) if is_single => format!("{:#}\n", show::json(process, &sections)),
        (true, []) if is_single => return status,
        (true, all) => {
            let all = all.iter().map(|process| show::json(process, &sections)).collect();
            format!("{:#}\n", serde_json::Value::Array(all))
        }
        (false, all) => {
            let all: Vec<_> =
                all.iter().map(|process| show::text(process, &sections, is_wide)).collect();
            all.join("\n")
        }
    };
    print(TOOL, &shown).max(status)
}
