//! `netacc trace`: what has become of connections, of processes that run and of killed ones.

use super::{STATUS_FAILED, STATUS_USAGE, print, say, sees_processes};
use crate::processes::is_name;
use crate::selection::Network;
use crate::show::one_line;
use crate::terminal;
use crate::trace::{self, Seen, Trace, Wanted};
use clap::ArgMatches;
use netacc_control::trace::whole;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

mod chrome;
mod histogram;
mod text;

pub(super) use text::events;

const TOOL: &str = "netacc";

/// `netacc trace …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    match matches.subcommand() {
        Some(("list", matches)) => list(matches),
        Some(("show", matches)) => show(matches),
        Some(("histogram", matches)) => histogram(matches),
        Some(("export", matches)) => export(matches),
        _ => STATUS_USAGE,
    }
}

fn complain(text: impl std::fmt::Display) {
    terminal::complain(&format!("{TOOL}: {}", one_line(&text.to_string())));
}

fn list(matches: &ArgMatches) -> c_int {
    if let Err(status) = sees_processes(TOOL) {
        return status;
    }
    let traces = trace::all();
    print(
        TOOL,
        &match matches.get_flag("json") {
            true => format!("{:#}\n", text::list_json(&traces)),
            false => text::list(&traces, terminal::columns()),
        },
    )
}

/// The traces that are meant; otherwise what is wrong has been said, and this is the status.
fn meant(matches: &ArgMatches) -> Result<Vec<Trace>, c_int> {
    let files: Vec<&PathBuf> = matches.get_many("file").into_iter().flatten().collect();
    let words: Vec<&String> = matches.get_many("pid").into_iter().flatten().collect();
    let mut traces = Vec::new();
    for file in &files {
        traces.push(Trace::open(file).map_err(|error| {
            complain(format_args!("{}: {error}", file.display()));
            STATUS_FAILED
        })?);
    }
    if files.is_empty() || !words.is_empty() {
        // (Without, who runs would count as killed.)
        sees_processes(TOOL)?;
        let all = trace::all();
        for word in &words {
            if !all.iter().any(|trace| is_called(trace, word)) {
                complain(format_args!(
                    "{word}: no trace of this process may be read: a process has one when a \
                     connection of its lives for more than a request, unless NACC_TRACE is 0 or \
                     system calls are filtered (`netacc cfg set NACC_TRACE 1 -p PID`); `netacc \
                     trace list` shows those that there are"
                ));
                return Err(STATUS_FAILED);
            }
        }
        let named = |trace: &Trace| words.iter().any(|word| is_called(trace, word));
        traces.extend(all.into_iter().filter(|trace| words.is_empty() || named(trace)));
    }
    if traces.is_empty() {
        complain(
            "there is no trace that may be read: a process has one when a connection of its lives \
             for more than a request; `netacc ps` shows who has the library",
        );
        return Err(STATUS_FAILED);
    }
    Ok(traces)
}

fn is_called(trace: &Trace, word: &str) -> bool {
    match word.parse::<u32>() {
        Ok(pid) => trace.pid == pid,
        Err(_) => is_name(&trace.head.program, word),
    }
}

/// Of which connections.
fn connections(matches: &ArgMatches) -> Wanted {
    Wanted {
        ports: matches.get_many("port").into_iter().flatten().copied().collect(),
        peers: matches.get_many::<Network>("peer").into_iter().flatten().copied().collect(),
        ..Wanted::default()
    }
}

fn wanted(matches: &ArgMatches) -> Wanted {
    Wanted {
        events: matches.get_many("event").into_iter().flatten().cloned().collect(),
        last: matches.get_one::<usize>("last").copied(),
        ..connections(matches)
    }
}

fn show(matches: &ArgMatches) -> c_int {
    let (traces, wanted) = match asked(matches) {
        Ok(asked) => asked,
        Err(status) => return status,
    };
    let is_json = matches.get_flag("json");
    if matches.get_flag("follow") {
        return follow(traces, &wanted, is_json);
    }
    print(
        TOOL,
        &match is_json {
            true => format!("{:#}\n", text::json(&traces, &wanted)),
            false => terminal::fold(text::text(&traces, &wanted), terminal::columns()),
        },
    )
}

/// The names of the events that these traces can have.
fn names(traces: &[Trace]) -> Vec<&str> {
    // (The first one is none: it marks what was never written.)
    let mut names: Vec<&str> =
        traces.iter().flat_map(|trace| trace.head.table.names().skip(1)).collect();
    if !names.is_empty() {
        names.push(text::UNKNOWN);
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// As [`meant`], and what of them: an event that none of them can have is a mistake.
fn asked(matches: &ArgMatches) -> Result<(Vec<Trace>, Wanted), c_int> {
    let (traces, wanted) = (meant(matches)?, wanted(matches));
    let names = names(&traces);
    let is_unknown = |name: &&String| !names.is_empty() && !names.contains(&name.as_str());
    if let Some(name) = wanted.events.iter().find(is_unknown) {
        complain(format_args!("{name}: not an event; valid: {}", names.join(", ")));
        return Err(STATUS_USAGE);
    }
    Ok((traces, wanted))
}

/// Says what is new, again and again, as long as one of the processes runs.
fn follow(mut traces: Vec<Trace>, wanted: &Wanted, is_json: bool) -> c_int {
    const PAUSE_MAX: Duration = Duration::from_secs(2);
    const PAUSE_MIN: Duration = Duration::from_millis(100);
    // Of each ring: of which connection it was, and up to where it was said.
    let mut said: HashMap<(usize, u64), u64> = HashMap::new();
    let mut seen: Vec<Seen> = traces.iter().map(|_| Seen::default()).collect();
    let mut lines = text::Lines::new(is_json);
    loop {
        let (began, mut searched) = (cpu_time(), Duration::ZERO);
        let is_last = !traces.iter().any(|trace| trace.is_live);
        for (at, (trace, seen)) in traces.iter().zip(&mut seen).enumerate() {
            let before = cpu_time();
            let changed = trace.changed(seen);
            searched += cpu_time() - before;
            for ring in whole(trace.read_rings(&changed, seen)) {
                let said = said.entry((at, ring.number)).or_insert(0);
                // (What is being written is waited for once, and what is behind it with it. An
                // excerpt ends before its ring.)
                let to = if ring.written > *said { ring.written } else { ring.recorded };
                let to = to.max(*said);
                let new = std::mem::replace(said, to)..to;
                if wanted.has(&ring) {
                    lines.add(trace, &ring, wanted, &new);
                }
            }
        }
        let text = lines.take();
        let text = if is_json { text } else { terminal::fold(text, terminal::columns()) };
        if let Err(status) = say(TOOL, &text) {
            return status;
        }
        if is_last {
            return 0;
        }
        // However many connections there are, to search takes 0.2 % of a CPU, and all together
        // 0.4 %, or it looks each two seconds.
        let pause = (500 * searched).max(250 * (cpu_time() - began));
        std::thread::sleep(pause.clamp(PAUSE_MIN, PAUSE_MAX));
        for trace in traces.iter_mut().filter(|trace| trace.is_live) {
            if let Err(error) = trace.look_again() {
                complain(format_args!("{}: {error}", trace.pid));
                trace.is_live = false;
            }
        }
    }
}

/// That this thread has had.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// All but these: the other ends of their connections may be among them.
fn others(traces: &[Trace]) -> Vec<Trace> {
    let known: Vec<_> = traces.iter().filter_map(Trace::identity).collect();
    let is_other = |it: &Trace| it.identity().is_none_or(|identity| !known.contains(&identity));
    trace::all().into_iter().filter(is_other).collect()
}

fn histogram(matches: &ArgMatches) -> c_int {
    let traces = match meant(matches) {
        Ok(traces) => traces,
        Err(status) => return status,
    };
    // (What a file was copied from may be another host.)
    let others = if matches.contains_id("pid") { others(&traces) } else { Vec::new() };
    let all = histogram::of(&traces, &others, &connections(matches));
    print(
        TOOL,
        &match matches.get_flag("json") {
            true => format!("{:#}\n", histogram::json(&all)),
            false => histogram::text(&all, terminal::columns()),
        },
    )
}

fn export(matches: &ArgMatches) -> c_int {
    let (traces, wanted) = match asked(matches) {
        Ok(asked) => asked,
        Err(status) => return status,
    };
    print(TOOL, &format!("{}\n", chrome::events(&traces, &wanted)))
}
