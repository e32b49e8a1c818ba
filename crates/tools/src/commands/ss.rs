//! `netacc_ss`, `netacc ss`: shows the connections of running processes, and why those on TCP are
//! on TCP. Without a process it shows which there are, as `netacc ps` does, or what is asked for of
//! all of them.

use super::{
    STATUS_FAILED, STATUS_USAGE, hold_standard_descriptors, parse, print, ps, say, sees_processes,
};
use crate::processes::{self, Found, Looks, Unknown};
use crate::rates::{self, Change};
use crate::segment::{self, Process};
use crate::selection::{Network, Order, Selection};
use crate::show::{Section, View, one_line, size};
use crate::trace::{self, Cleared};
use crate::{options, show, terminal};
use clap::ArgMatches;
use clap::parser::ValueSource;
use netacc_control::stats::{Path, Reason};
use serde_json::json;
use std::collections::HashMap;
use std::ffi::c_int;
use std::time::{Duration, Instant};

const TOOL: &str = "netacc_ss";

/// `netacc_ss …`; the exit status.
pub fn alone() -> c_int {
    hold_standard_descriptors();
    parse(TOOL, options::ss_command()).map_or_else(|status| status, |matches| main(&matches))
}

/// The same, the command line read.
pub fn main(matches: &ArgMatches) -> c_int {
    // (Before anything is cleared: unseen, a process counts as one that has ended.)
    if let Err(status) = sees_processes(TOOL) {
        return status;
    }
    if matches.get_flag("clear") {
        return clear(matches.get_flag("json"));
    }
    let words = |id| matches.get_many::<String>(id).into_iter().flatten().cloned();
    let words: Vec<String> = words("option-pid").chain(words("pid")).collect();
    let selection = selection(matches);
    let sections = sections(matches, &selection);
    let view = View {
        sections: &sections,
        is_wide: matches.get_flag("wide"),
        columns: terminal::columns(),
        selection: &selection,
    };
    let is_json = matches.get_flag("json");
    let is_overview = words.is_empty() && !asks_for_sections(matches, &selection);
    match pause(matches) {
        Some(pause) => {
            let watch = Watch {
                tool: TOOL,
                words: &words,
                pause,
                times: matches.get_one::<u32>("times").copied(),
                is_overview: is_overview && !is_json,
                is_json,
                view: &view,
            };
            watch.run()
        }
        None if is_overview => ps::show(TOOL, is_json, view.is_wide),
        None => once(&words, is_json, &view),
    }
}

/// Takes away what ended processes have left: their traces, and there is nothing else.
fn clear(is_json: bool) -> c_int {
    let Cleared { traces, bytes, failed } = trace::clear();
    for (path, error) in &failed {
        let text = format!("{TOOL}: {}: {error}", path.display());
        terminal::complain(&one_line(&text));
    }
    let text = match traces {
        _ if is_json => format!("{:#}\n", json!({ "traces": traces, "bytes": bytes })),
        0 => String::from(
            "Nothing to clear: ended processes leave nothing but traces, and there is none that \
             may be taken away.\n",
        ),
        1 => format!("Cleared 1 trace of an ended process ({}).\n", size(bytes)),
        n => format!("Cleared {n} traces of ended processes ({}).\n", size(bytes)),
    };
    let text = if is_json { text } else { terminal::fold(text, terminal::columns()) };
    print(TOOL, &text).max(if failed.is_empty() { 0 } else { STATUS_FAILED })
}

/// How often it is shown, if not once.
pub(super) fn pause(matches: &ArgMatches) -> Option<Duration> {
    matches.get_one::<f64>("watch").copied().map(Duration::from_secs_f64)
}

/// `netacc ps -w …`.
pub(super) fn watch_all(matches: &ArgMatches, pause: Duration, is_json: bool) -> c_int {
    let (selection, times) = (Selection::default(), matches.get_one::<u32>("times").copied());
    let view = View {
        sections: &[Section::Counts],
        is_wide: matches.get_flag("wide"),
        columns: terminal::columns(),
        selection: &selection,
    };
    let is_overview = !is_json;
    Watch { tool: "netacc", words: &[], pause, times, is_overview, is_json, view: &view }.run()
}

/// What is asked for of the connections. (The parser lets only words through that mean something.)
fn selection(matches: &ArgMatches) -> Selection {
    let words = |id| matches.get_many::<String>(id).into_iter().flatten();
    let path = |word: &String| Path::ALL.into_iter().find(|path| path.name() == word);
    let reason = |word: &String| Reason::ALL.iter().copied().find(|reason| reason.name() == word);
    let order = matches.get_one::<String>("sort").and_then(|word| Order::from_word(word));
    Selection {
        ports: matches.get_many::<u16>("port").into_iter().flatten().copied().collect(),
        peers: matches.get_many::<Network>("peer").into_iter().flatten().copied().collect(),
        paths: words("path").filter_map(path).collect(),
        reasons: words("reason").filter_map(reason).collect(),
        order: order.unwrap_or_default(),
    }
}

/// Sections are named, or connections selected.
fn asks_for_sections(matches: &ArgMatches, selection: &Selection) -> bool {
    names_sections(matches) || selects(matches, selection)
}

fn names_sections(matches: &ArgMatches) -> bool {
    matches.value_source("show") == Some(ValueSource::CommandLine)
}

fn selects(matches: &ArgMatches, selection: &Selection) -> bool {
    !selection.is_all() || matches.contains_id("sort")
}

/// What is shown. Who selects connections wants to see them.
fn sections(matches: &ArgMatches, selection: &Selection) -> Vec<Section> {
    if !names_sections(matches) && selects(matches, selection) {
        return vec![Section::Sockets];
    }
    let asked = matches.get_many::<String>("show").into_iter().flatten();
    Section::list(asked.map(String::as_str))
}

/// Those that can be read; of the others it is said why not, and the status is not 0.
fn readable(tool: &str, found: Vec<Found>) -> (Vec<Process>, c_int) {
    let mut status = 0;
    let mut read = Vec::new();
    for found in found {
        match found.process {
            Ok(process) => read.push(process),
            Err(error) => {
                terminal::complain(&format!("{tool}: {}: {error}", found.pid));
                status = STATUS_FAILED;
            }
        }
    }
    (read, status)
}

/// All processes that have the library, and that may be read, as they were found; of the others
/// `says`, a tool, says that there are some.
fn all_of_host((found, not_permitted): (Vec<Found>, usize), says: Option<&str>) -> Vec<Process> {
    let Some(tool) = says else {
        return found.into_iter().filter_map(|it| it.process.ok()).collect();
    };
    let (read, _) = readable(tool, found);
    if read.is_empty() {
        terminal::complain(&format!("{tool}: no process that may be looked at has the library"));
    }
    ps::say_of_hidden(tool, not_permitted);
    read
}

/// The same with the addresses of all connections.
fn all_whole(looks: &mut Looks, says: Option<&str>) -> Vec<Process> {
    let mut all = all_of_host(looks.all(), says);
    all.iter_mut().for_each(Process::complete);
    all
}

fn unknown(unknown: &Unknown) -> c_int {
    terminal::complain(&format!("{TOOL}: {}", one_line(&unknown.to_string())));
    match unknown {
        Unknown::Number(_) => STATUS_USAGE,
        Unknown::Name(_) => STATUS_FAILED,
    }
}

/// `words`: processes; none: all that have the library, and that may be read.
fn once(words: &[String], is_json: bool, view: &View<'_>) -> c_int {
    let (read, status) = match processes::named(words) {
        Ok(_) if words.is_empty() => (all_whole(&mut Looks::default(), Some(TOOL)), 0),
        Ok(found) => readable(TOOL, found),
        Err(error) => return unknown(&error),
    };
    // One number is answered by one object, everything else by a list.
    let is_single = matches!(words, [word] if word.parse::<u32>().is_ok());
    let shown = match (is_json, read.as_slice()) {
        (true, [process]) if is_single => pretty(show::json(process, view)),
        (true, []) if is_single => return status,
        (true, all) => pretty(all.iter().map(|process| show::json(process, view)).collect()),
        (false, all) => {
            let all: Vec<_> = all.iter().map(|process| show::text(process, view)).collect();
            all.join("\n")
        }
    };
    print(TOOL, &shown).max(status)
}

/// As text, for people as well; the tool ends with that.
fn pretty(value: serde_json::Value) -> String {
    // (What is written into memory, and values, which have strings alone for keys, do not fail.)
    let text = serde_json::to_string_pretty(&value).unwrap_or_default() + "\n";
    // Of ten thousand connections it takes as long to give the memory back, piece by piece.
    std::mem::forget(value);
    text
}

/// Shows every so often what has changed.
struct Watch<'a> {
    /// Who says so.
    tool: &'a str,
    /// Processes; none: all that have the library.
    words: &'a [String],
    pause: Duration,
    times: Option<u32>,
    /// A row for each process, for people.
    is_overview: bool,
    /// A line for each process and time.
    is_json: bool,
    view: &'a View<'a>,
}

impl Watch<'_> {
    fn run(&self) -> c_int {
        let mut before: Option<(Instant, Vec<Process>)> = None;
        let (mut shown, mut looks) = (0, Looks::default());
        let mut started = HashMap::new();
        loop {
            let mut after = match self.look(&mut looks, before.is_none()) {
                Ok(after) => after,
                Err(error) => return unknown(&error),
            };
            after.retain(|process| self.is_same(process.pid, &mut started));
            let now = Instant::now();
            if after.is_empty() && !self.words.is_empty() {
                return STATUS_FAILED;
            }
            if let Some((then, before)) = &before {
                // (Windows change their size.)
                let view = View { columns: terminal::columns(), ..*self.view };
                let change = self.changes(&view, before, &after, now - *then);
                if let Err(status) = say(self.tool, &change) {
                    return status;
                }
                shown += 1;
                if self.times == Some(shown) {
                    return 0;
                }
            }
            let old = before.replace((now, after));
            looks.give_back(old.into_iter().flat_map(|(_, processes)| processes));
            std::thread::sleep(self.pause);
        }
    }

    /// Whether a process that is named by its number is the one that had that number before.
    /// `started`: when each of those was, that were seen.
    fn is_same(&self, pid: u32, started: &mut HashMap<u32, Option<u64>>) -> bool {
        let is_number = self.words.iter().any(|word| word.parse() == Ok(pid));
        let now = segment::started(pid);
        let is_same = !is_number || *started.entry(pid).or_insert(now) == now;
        if !is_same {
            let text = "the process has ended; another one has its number now";
            terminal::complain(&format!("{}: {pid}: {text}", self.tool));
        }
        is_same
    }

    /// `first`: what it says of processes that cannot be shown it says once.
    fn look(&self, looks: &mut Looks, first: bool) -> Result<Vec<Process>, Unknown> {
        let says = first.then_some(self.tool);
        match self.words {
            // (Connections, and their addresses, are not shown there.)
            [] if self.is_overview => Ok(all_of_host(looks.sums(), says)),
            [] => Ok(all_whole(looks, says)),
            words => processes::named_again(words, looks).map(|found| readable(self.tool, found).0),
        }
    }

    fn changes(
        &self,
        view: &View<'_>,
        before: &[Process],
        after: &[Process],
        time: Duration,
    ) -> String {
        let found = after.iter().filter_map(|after| {
            let before = before.iter().find(|before| before.pid == after.pid)?;
            let change = Change { before, after, time };
            change.is_of_one().then_some(change)
        });
        let found: Vec<Change<'_>> = found.collect();
        if self.is_overview {
            return rates::processes_text(&found, view) + "\n";
        }
        let text = |change: &Change<'_>| match self.is_json {
            true => format!("{}\n", rates::json(change, view)),
            false => rates::text(change, view) + "\n",
        };
        found.iter().map(text).collect()
    }
}
