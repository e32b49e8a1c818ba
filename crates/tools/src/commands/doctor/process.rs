//! A running process: has it the library, what does it say, what limits it?

use super::commands::{
    as_its_user, as_root, edit_of, enable, environment_of, how_started, list_of, look_closer,
    netacc, restart,
};
use super::connection::listening;
use super::finding::Findings;
use super::host;
use super::look::{self, Status};
use super::remedies::Of;
use super::remedy::{Command, Remedy, mend, no_command, show};
use super::{program, rdma, rules};
use crate::launch::Environment;
use crate::library;
use crate::options::VERSION;
use crate::segment::{self, Process, SegmentError};
use crate::show::{
    accelerated_total, age, connections_total, one_line, reason_name, share, shell_word, version,
};
use crate::trace;
use netacc_control::config::{DEFAULT_FILE, Key, TakesEffect, file_of, parse_rendered};
use netacc_control::stats::{Counter, Path as Way, Reason};
use netacc_control::trace::DIRECTORY;
use std::fs;
use std::path::Path;

/// Looks at a process.
pub fn look(pid: u32, findings: &mut Findings) {
    let directory = format!("/proc/{pid}");
    let began = started(&directory);
    let is_there = match segment::read(pid) {
        Err(SegmentError::NoProcess) => {
            let remedy = show("name one that there is", netacc("ps"));
            findings.blind("process", format!("{pid}: no such process"), remedy);
            false
        }
        Err(SegmentError::Zombie) => {
            let found = format!("{pid} has ended, and its parent has not asked for its status");
            let parent = Status::of(&directory).ok();
            let parent = parent.and_then(|it| it.field("PPid:").map(|pid| format!(",{pid}")));
            let line = format!("ps -o pid,ppid,stat,args -p {pid}{}", parent.unwrap_or_default());
            let said = "nothing can be seen of it any more; its parent has to ask for its status";
            findings.blind("process", found, show(said, line));
            false
        }
        Err(SegmentError::NotPermitted) => {
            let error = SegmentError::NotPermitted;
            findings.blind("process", error.to_string(), look_closer_at(pid));
            true
        }
        Err(SegmentError::Io(error)) => {
            findings.blind("process", error.to_string(), look_closer_at(pid));
            true
        }
        Err(SegmentError::NotLoaded) => {
            not_loaded(pid, &directory, findings);
            true
        }
        Err(error @ SegmentError::NoSegment) => {
            let remedy = no_command(
                "let it connect to something, or accept a connection, and look again",
                "its connections are the program's own affair",
            );
            findings.note("process", error.to_string(), remedy);
            true
        }
        Err(error @ SegmentError::Unreadable(_)) => {
            let said = "start it again with this release's library, or use that one's netacc_ss";
            let remedy = restart(pid).with(said);
            findings.problem("process", error.to_string(), remedy);
            true
        }
        Ok(process) => {
            said(&process, findings);
            true
        }
    };
    if is_there {
        surroundings(pid, &directory, findings);
    }
    // The number may have been given to another process meanwhile.
    if began.is_some() && started(&directory) != began {
        let found = format!("{pid} has ended while it was looked at: nothing above counts");
        findings.blind("process", found, show("see what there is now", netacc("ps")));
    }
}

/// Who may look at it.
fn look_closer_at(pid: u32) -> Remedy {
    match rustix::process::geteuid().is_root() {
        true => no_command(
            "look from its own namespaces",
            "what would be run there, as root, is another system's",
        ),
        false => show("look as root", look_closer(&pid.to_string())),
    }
}

/// When it was started, in ticks: field 22 of its `stat`.
fn started(directory: &str) -> Option<u64> {
    let stat = look::file(format!("{directory}/stat"))?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn not_loaded(pid: u32, directory: &str, findings: &mut Findings) {
    let name = segment::name(pid).unwrap_or_default();
    let name = one_line(&name);
    let environment = fs::read(format!("{directory}/environ")).unwrap_or_default();
    let names_us = environment.split(|byte| *byte == 0).any(|entry| {
        let value = entry.strip_prefix(b"LD_PRELOAD=").map(String::from_utf8_lossy);
        value.is_some_and(|value| {
            value.contains(library::FILE_NAME) || value.contains(library::CARGO_FILE_NAME)
        })
    });
    let found = match names_us {
        true => format!("{name} was started with LD_PRELOAD, and has not loaded the library"),
        false => format!("{name} runs without the library"),
    };
    let remedy = match names_us {
        true => show(
            "have it name a file that is there, for the program's machine, and start it again",
            environment_of(pid, "LD_PRELOAD="),
        ),
        false => enable(pid).with(WITH_LIBRARY),
    };
    findings.problem("process", found, remedy);
    // Would it do?
    let environment = Environment::inherited();
    let this_program = std::env::current_exe().ok();
    let named = environment.get(library::ENV_LIBRARY);
    let library = library::find(named, this_program.as_deref()).ok();
    let target = library.map(|library| library.target).or_else(program::this_machine);
    let Some(target) = target else { return };
    let path = format!("{directory}/exe");
    let Ok(program) = fs::read_link(&path) else { return };
    // The file itself: its name may be another one's by now, or of another mount namespace.
    let file = if program.exists() { program } else { Path::new(&path).to_path_buf() };
    program::obstacle(&file, environment.get("PATH"), target, findings);
}

/// What gives a program the library.
pub const WITH_LIBRARY: &str = "start it again with netacc_run, or its service by netacc-enable";

/// Which library it has loaded, beside that of these tools. `its`: whose.
pub fn loaded(process: &Process, its: &str, findings: &mut Findings) {
    match process.header.library.map(version) {
        Some(is) if is == VERSION => {
            findings.ok("library", format!("{its} version is {is}, as that of these tools"))
        }
        is => {
            let is = is.unwrap_or_else(|| String::from("unknown"));
            findings.note(
                "library",
                format!("{its} version is {is}, that of these tools {VERSION}"),
                start_again(process),
            );
        }
    }
    if process.is_library_replaced() {
        findings.note(
            "library",
            format!("{its} file has been replaced or removed since the process loaded it"),
            start_again(process),
        );
    }
}

/// What has it load the library that is there now.
fn start_again(process: &Process) -> Remedy {
    restart(process.pid).with(format!("start {} again", one_line(&process.name)))
}

/// What the library in it says.
fn said(process: &Process, findings: &mut Findings) {
    let name = one_line(&process.name);
    let uptime = process.uptime.map_or_else(|| String::from("unknown"), age);
    findings.ok("process", format!("{name} has the library; it has been running for {uptime}"));
    loaded(process, "its", findings);
    configured(process, "", findings);
    let status = Status::of(&format!("/proc/{}", process.pid)).ok();
    let user = status.and_then(|status| status.uid()).unwrap_or(process.uid);
    let of = Of::new(process, user);
    connections(process, &of, findings);
    rules::of_process(process, user, findings);
    counters(process, &of, findings);
    far_ends(process, findings);
    traced(process, findings);
    traced_elsewhere(process, findings);
}

/// Which of its peers on other hosts have another library than it has.
fn far_ends(process: &Process, findings: &mut Findings) {
    let Some(its) = process.header.library else { return };
    for channel in &process.header.channels {
        let (Some(peer), Some(other)) = (channel.peer, channel.library) else { continue };
        if other != its {
            let (pid, other, its) = (channel.peer_pid, version(other), version(its));
            let found = format!(
                "process {pid} at {peer}, to which it has connections, has version {other}, it has \
                 {its}"
            );
            let why = format!("that is done on {peer}, or here, wherever the older one is");
            findings.note("library", found, no_command("install one release at both ends", why));
        }
    }
}

/// Whether its trace is where its configuration has it.
fn traced_elsewhere(process: &Process, findings: &mut Findings) {
    let wanted = parse_rendered(&process.header.config)
        .find(|(key, ..)| *key == Key::TraceDir.name())
        .map_or(DIRECTORY, |(_, value, _)| value);
    if wanted != DIRECTORY
        && trace::of_process(process.pid).is_some_and(|trace| trace.is_in_usual_place())
    {
        findings.note(
            "trace",
            format!(
                "its trace is not in {}={}, which others may write to, is full, is on no tmpfs, \
                 or is not there: its log says which",
                Key::TraceDir.name(),
                one_line(wanted)
            ),
            show(
                "name a folder on a tmpfs that only root or the program's user can write to",
                list_of(process.pid, wanted),
            ),
        );
    }
}

/// Whether it is traced: in a process that filters its system calls only where that was asked for.
fn traced(process: &Process, findings: &mut Findings) {
    let pid = process.pid;
    let status = Status::of(&format!("/proc/{pid}")).ok();
    if status.and_then(|status| status.seccomp()) != Some(2) || trace::of_process(pid).is_some() {
        return;
    }
    let (value, origin) = parse_rendered(&process.header.config)
        .find(|(key, ..)| *key == Key::Trace.name())
        .map_or(("", ""), |(_, value, origin)| (value, origin));
    if value != "0" && !["environment", "live"].contains(&origin) {
        findings.note(
            "trace",
            format!(
                "it is not traced: it filters its system calls, and {}={} ({}) was not asked for \
                 in its environment",
                Key::Trace.name(),
                one_line(value),
                one_line(origin)
            ),
            mend(
                "turn it on; for good: Environment=NACC_TRACE=1 in the unit, as netacc-enable sets \
                 it; its filter has to let through what the manual (install.md, \
                 SystemCallFilter=) lists",
                netacc(&format!("cfg set NACC_TRACE 1 -p {pid}")),
            ),
        );
    }
}

/// What its configuration keeps on TCP. `end`: which it is of a connection's.
pub fn configured(process: &Process, end: &str, findings: &mut Findings) {
    let hears = process.header.requests.is_some();
    leaves_on_tcp((process.pid, hears), end, &process.header.config, findings);
}

/// The same of its number and whether it takes another value while it runs.
fn leaves_on_tcp((pid, hears): (u32, bool), end: &str, config: &str, findings: &mut Findings) {
    for (key, value, origin) in parse_rendered(config) {
        let better = match (key, value) {
            ("NACC_ENABLE_RDMA_DEFAULT", "0") => "1",
            ("NACC_CONNECT_RDMA_PERCENT", "0") => "100",
            ("NACC_PATHS", "tcp") => "shm,rdma",
            _ => continue,
        };
        findings.problem(
            "config",
            format!("{end}{key}={} ({}) leaves it on TCP", one_line(value), one_line(origin)),
            set((pid, hears), config, key, better),
        );
    }
}

/// What gives that process another value of a parameter.
pub fn set_in(process: &Process, key: Key, better: &str) -> Remedy {
    let hears = process.header.requests.is_some();
    set((process.pid, hears), &process.header.config, key.name(), better)
}

/// The same, of its number and whether it takes another value while it runs.
pub fn set((pid, hears): (u32, bool), config: &str, key: &str, better: &str) -> Remedy {
    let when = Key::from_name(key).map(Key::takes_effect);
    if hears && when.is_some_and(|when| when != TakesEffect::Restart) {
        let live = netacc(&format!("cfg set {key} {better} -p {pid}"));
        return mend(format!("set {key}={better} while it runs"), live);
    }
    let origin = parse_rendered(config).find(|(name, ..)| *name == key).map(|(.., of)| of);
    let (place, command) = match origin {
        // (A child of a process that was off: what it would be started with is another matter.)
        Some("live") => return restart(pid).with(RESTART_ALONE),
        Some("file") => {
            let file = file_of(config).unwrap_or(DEFAULT_FILE);
            ("in its configuration file", edit_of(pid, file))
        }
        Some("environment") => ("in its environment", Command::Shows(environment_of(pid, "NACC_"))),
        Some("command-line") => {
            ("on the command line of netacc_run", Command::Shows(how_started(pid)))
        }
        _ => ("where it is started", Command::Shows(how_started(pid))),
    };
    command.with(format!("{key}={better} {place}, and start it again"))
}

const RESTART_ALONE: &str = "it takes no other value while it runs: start it again";

fn connections(process: &Process, of: &Of, findings: &mut Findings) {
    let total = connections_total(process);
    let accelerated = accelerated_total(process);
    let of_all = share(process).map_or_else(String::new, |share| format!(" ({share})"));
    let open: Vec<String> = Way::ALL
        .iter()
        .zip(process.header.open_by_path)
        .map(|(path, count)| format!("{count} on {}", path.name()))
        .collect();
    findings.ok(
        "connections",
        format!("{total} so far, {accelerated} accelerated{of_all}; open: {}", open.join(", ")),
    );
    for (code, count) in (0u32..).zip(process.header.reasons) {
        let now = process.open.reasons.get(code as usize).copied().unwrap_or(0);
        let Some(reason) = Reason::from_code(code) else {
            if count > 0 {
                let found = format!("{count} connections: {}", reason_name(code));
                findings.note(
                    "reason",
                    found,
                    show("use the tools of the library's own release", netacc("ps")),
                );
            }
            continue;
        };
        if reason == Reason::None || (count == 0 && now == 0) {
            continue;
        }
        let found = format!(
            "{}: {count} connections, {now} of them open. {}",
            reason.name(),
            reason.explanation()
        );
        // What is over is in nobody's way, nor is what cannot be helped.
        let is_helped = |word| !reason.remedy().starts_with(word);
        let is_in_the_way = now > 0 && ["None", "Wait"].into_iter().all(is_helped);
        let one = process.connections.iter().find(|it| it.reason == code);
        let remedy = of.reason(reason, one.as_ref());
        match is_in_the_way {
            true => findings.problem("reason", found, remedy),
            false => findings.note("reason", found, remedy),
        }
    }
}

/// Counters that are not 0 in a process that is well.
fn counters(process: &Process, of: &Of, findings: &mut Findings) {
    for counter in [
        Counter::AuthFailures,
        Counter::PeerCorrupt,
        Counter::ChannelsFailed,
        Counter::RecordsExhausted,
        Counter::LogLinesDropped,
        Counter::RdmaPairsLost,
        Counter::UtcpLost,
    ] {
        let value = process.header.counters.get(counter as usize).copied().unwrap_or(0);
        if value > 0 {
            let found = format!("{} is {value}. {}", counter.name(), counter.doc());
            findings.note("counter", found, of.counter(counter));
        }
    }
}

/// What the kernel says of it.
fn surroundings(pid: u32, directory: &str, findings: &mut Findings) {
    let Ok(status) = Status::of(directory) else { return };
    match status.field("State:").and_then(|state| state.chars().next()) {
        Some(state @ ('T' | 't')) => findings.note(
            "state",
            "it is stopped: what its peers send waits until it goes on",
            go_on(pid, state),
        ),
        Some('D') => findings.note(
            "state",
            "it is in an uninterruptible wait",
            show(
                "look for a file system that does not answer",
                as_its_user(pid, &format!("cat /proc/{pid}/wchan")),
            ),
        ),
        _ => {}
    }
    if let Some(uid) = status.uid() {
        let ours = rustix::process::geteuid().as_raw();
        let is_same = if uid == ours { "this one" } else { "another one than this" };
        findings.ok("user", format!("{uid}, {is_same}"));
    }
    namespaces(pid, directory, findings);
    match status.seccomp() {
        Some(1) => findings.problem(
            "seccomp",
            "strict: it can use no socket",
            no_command("none", "it has asked for that itself, and cannot take it back"),
        ),
        Some(2) => findings.note(
            "seccomp",
            "a filter is in force; what it refuses does not show from outside",
            filter(pid).with(
                "if its connections stay on TCP: allow what the manual (install.md, \
                 SystemCallFilter=) lists, as netacc-enable does for a service",
            ),
        ),
        _ => findings.ok("seccomp", "no filter"),
    }
    host::limits(directory, rdma::has_devices(), findings);
}

/// What lets the filter of a service pass what the library calls.
fn filter(pid: u32) -> Command {
    match enable(pid) {
        // (What it is, as nothing is known to be wrong.)
        Command::Mends(_) => Command::Shows(format!("systemctl status {pid}")),
        _ => Command::None(String::from("who has set it up does not show")),
    }
}

fn namespaces(pid: u32, directory: &str, findings: &mut Findings) {
    let of = |kind| (look::namespace(directory, kind), look::namespace("/proc/self", kind));
    match of("net") {
        (None, _) => {}
        (its, ours) if its == ours => findings.ok("network", "in this network namespace"),
        (Some(its), _) => findings.note(
            "network",
            format!(
                "in another network namespace ({its}) than this: it shares memory with processes \
                 in its own alone"
            ),
            show(
                "its peers have to be there, too: one pod, or a container that is started with \
                 --network=container: and the name of the other; it can be looked at from there",
                from_there(pid, directory),
            ),
        ),
    }
    let others: Vec<&str> = ["pid", "mnt", "user", "ipc"]
        .into_iter()
        .filter(|kind| matches!(of(kind), (Some(its), Some(ours)) if its != ours))
        .collect();
    match others.as_slice() {
        [] => {}
        kinds => findings.ok(
            "namespaces",
            format!("others than here: {}; they keep nothing from working", kinds.join(", ")),
        ),
    }
}

/// What has a process go on that is stopped: by a signal, or (`t`) by who traces it.
pub fn go_on(pid: u32, state: char) -> Remedy {
    match state {
        't' => show("have its debugger let it go on", format!("grep TracerPid /proc/{pid}/status")),
        _ => mend("let it go on", as_its_user(pid, &format!("kill -CONT {pid}"))),
    }
}

/// The doctor in the network namespace of a process: at a place where somebody listens, if anybody
/// does.
fn from_there(pid: u32, directory: &str) -> String {
    let place = listening(directory).first().map(|at| shell_word(&at.to_string()));
    let doctor = netacc(format!("doctor {}", place.unwrap_or_default()).trim_end());
    as_root(&format!("nsenter -t {pid} -n {doctor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_configuration_leaves_on_tcp_is_in_the_way() {
        let [off, sampled] = ["NACC_ENABLE_RDMA_DEFAULT", "NACC_CONNECT_RDMA_PERCENT"];
        let live = |name, value| format!("mends netacc cfg set {name} {value} -p {PID}");
        // (No process has it.)
        const PID: u32 = i32::MAX as u32;
        let started = format!("shows {}", how_started(PID));
        for (text, hears, found, command) in [
            (format!("{off}=0 # live"), true, "(live)", live(off, 1)),
            (format!("{off}=0 # live"), false, "(live)", started.clone()),
            (format!("{off}=0 # file:3"), true, "(file)", live(off, 1)),
            (
                format!("# file: /a b.conf\n{off}=0 # file:3"),
                false,
                "(file)",
                format!("shows {}", list_of(PID, "/a b.conf")),
            ),
            (format!("{sampled}=0 # environment"), true, "(environment)", live(sampled, 100)),
            (
                format!("{sampled}=0 # environment"),
                false,
                "(environment)",
                format!("shows grep -az ^NACC_ /proc/{PID}/environ | cat -v"),
            ),
            (String::from("NACC_PATHS=tcp # command-line"), true, "(command-line)", started),
            (
                String::from("NACC_PATHS=shm # default\nNACC_POLL_MS=0 # live"),
                true,
                "",
                String::new(),
            ),
        ] {
            let mut findings = Findings::default();
            leaves_on_tcp((PID, hears), "", &format!("{text}\n"), &mut findings);
            let told = findings.json("process", "p");
            let said: Vec<_> = told["findings"].as_array().unwrap().iter().collect();
            if found.is_empty() {
                assert!(said.is_empty(), "{told:#}");
                continue;
            }
            let value = text.lines().last().unwrap().split(" # ").next().unwrap();
            let what = format!("{value} {found}");
            assert!(
                said.len() == 1
                    && said[0]["level"] == "problem"
                    && said[0]["found"].as_str().unwrap().starts_with(&what),
                "{told:#}"
            );
            let [does, line] =
                ["command_does", "command"].map(|name| said[0][name].as_str().unwrap());
            // (Who runs the tests may not be root.)
            let line = line.trim_start_matches("sudo ").replace("sudoedit", "${EDITOR:-vi}");
            assert_eq!(format!("{does} {line}"), command);
        }
    }
}
