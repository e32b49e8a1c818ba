//! `netacc ps`: the processes of this host that have the library.

use super::{print, sees_processes, ss};
use crate::processes::Looks;
use crate::{show, terminal};
use clap::ArgMatches;
use std::ffi::c_int;

/// `netacc ps …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    if let Err(status) = sees_processes("netacc") {
        return status;
    }
    let is_json = matches.get_flag("json");
    match ss::pause(matches) {
        Some(pause) => ss::watch_all(matches, pause, is_json),
        None => show("netacc", is_json, matches.get_flag("wide")),
    }
}

/// The same for `tool`.
pub fn show(tool: &str, is_json: bool, is_wide: bool) -> c_int {
    let (found, not_permitted) = Looks::default().sums();
    if is_json {
        return print(tool, &format!("{:#}\n", show::processes_json(&found)));
    }
    let text = match is_wide {
        true => show::wide_processes_text(&found),
        false => show::processes_text(&found, terminal::columns()),
    };
    let status = print(tool, &text);
    say_of_hidden(tool, not_permitted);
    status
}

/// Of so many processes nothing is known.
pub(super) fn say_of_hidden(tool: &str, not_permitted: usize) {
    if not_permitted > 0 && !rustix::process::geteuid().is_root() {
        let what = if not_permitted == 1 { "process" } else { "processes" };
        terminal::complain(&format!(
            "{tool}: {not_permitted} {what} may not be looked at, with the library or without: root \
             sees all"
        ));
    }
}
