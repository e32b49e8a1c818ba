//! `netacc ps`: the processes of this host that have the library.

use super::{print, sees_processes, ss};
use crate::processes::Looks;
use crate::segment::may_trace;
use crate::{hidden, show, terminal};
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
    let text = match is_wide {
        _ if is_json => format!("{:#}\n", show::processes_json(&found)),
        true => show::wide_processes_text(&found),
        false => show::processes_text(&found, terminal::columns()),
    };
    let status = print(tool, &text);
    say_of_hidden(tool, not_permitted);
    status
}

/// Of so many processes nothing is known; of those that `/proc` hides not even how many.
pub(super) fn say_of_hidden(tool: &str, not_permitted: usize) {
    // (Who has the capability sees all, but for what a security module guards.)
    if not_permitted > 0 && !may_trace() {
        let what = if not_permitted == 1 { "process" } else { "processes" };
        terminal::complain(&format!(
            "{tool}: {not_permitted} {what} may not be looked at, with the library or without: {}",
            hidden::who_sees()
        ));
    }
    if let Some(hides) = hidden::hides() {
        terminal::complain(&format!(
            "{tool}: /proc does not show processes of others ({hides}), with the library or \
             without: {}",
            hidden::who_sees()
        ));
    }
}
