//! `netacc cfg`: the parameters, of this host or of running processes; and another value for one
//! while a process runs.

use super::{STATUS_FAILED, STATUS_USAGE, print, sees_processes};
use crate::launch::{self, Environment};
use crate::live::{self, Failure, Left};
use crate::options::OTHER_NAMES;
use crate::processes::{self, Found, Looks, Unknown};
use crate::segment::{SegmentError, may_trace};
use crate::show::printable;
use crate::table::Table;
use crate::{hidden, terminal};
use clap::ArgMatches;
use netacc_control::config::{
    Answer, Config, DEFAULT_FILE, Key, RULES, TakesEffect, file_of, rendered_rules,
};
use serde_json::{Value, json};
use std::ffi::c_int;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TOOL: &str = "netacc";

/// `netacc cfg …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    match matches.subcommand() {
        Some(("get", matches)) => get(matches),
        Some(("reload", matches)) => reload(matches),
        Some(("set", matches)) => set(matches),
        Some((_, matches)) => list(matches),
        None => STATUS_USAGE,
    }
}

fn complain(text: impl std::fmt::Display) {
    terminal::complain(&format!("{TOOL}: {}", printable(&text.to_string())));
}

/// One parameter, as somebody has it.
struct Parameter {
    name: String,
    value: String,
    origin: String,
}

impl Parameter {
    fn takes_effect(&self) -> Option<TakesEffect> {
        Key::from_name(&self.name).map(Key::takes_effect)
    }
}

/// What one process has, or a program that is started now.
struct Parameters {
    /// Number and name.
    process: Option<(u32, String)>,
    all: Vec<Parameter>,
}

impl Parameters {
    /// What a program has that is started from here.
    fn here() -> Result<Parameters, Vec<String>> {
        let this_program = std::env::current_exe().ok();
        let mut environment = Environment::inherited();
        let (config, origins) =
            launch::configure(None, this_program.as_deref(), &[], &mut environment)?;
        let parameter = |key: &Key| Parameter {
            name: key.name().to_owned(),
            value: config.value_text(*key),
            origin: origins.of(*key).as_str().to_owned(),
        };
        Ok(Parameters { process: None, all: Key::ALL.iter().map(parameter).collect() })
    }

    fn of(pid: u32) -> Result<Parameters, SegmentError> {
        let (name, all) = live::parameters(pid)?;
        let parameter = |[name, value, origin]: [String; 3]| Parameter { name, value, origin };
        let all = all.into_iter().map(parameter).collect();
        Ok(Parameters { process: Some((pid, name)), all })
    }

    fn only(&mut self, names: &[Key]) {
        self.all.retain(|p| names.is_empty() || names.iter().any(|key| key.name() == p.name));
    }

    fn json(&self) -> Value {
        let parameter = |p: &Parameter| {
            let key = Key::from_name(&p.name);
            let of = |text: fn(Key) -> String| key.map(text);
            json!({
                "name": p.name,
                "value": p.value,
                "origin": p.origin,
                "takes_effect": p.takes_effect().map(TakesEffect::word),
                "default": of(|key| key.default_text().to_owned()),
                "valid": of(Key::valid),
                "brief": key.and_then(Key::setting).map(|setting| setting.brief),
            })
        };
        let parameters: Vec<Value> = self.all.iter().map(parameter).collect();
        match &self.process {
            Some((pid, name)) => json!({ "pid": pid, "name": name, "parameters": parameters }),
            None => json!({ "parameters": parameters }),
        }
    }

    fn text(&self, columns: Option<usize>) -> String {
        let mut table = Table::new(&["Parameter", "Value", "Origin", "A change takes effect"]);
        for p in &self.all {
            let value = if p.value.is_empty() { "\"\"".to_owned() } else { printable(&p.value) };
            let when = p.takes_effect().map_or("-", TakesEffect::word);
            table.row([printable(&p.name), value, printable(&p.origin), when.to_owned()]);
        }
        let table = table.render(columns);
        let text = match &self.process {
            Some((pid, name)) => format!("{} ({pid})\n\n{table}", printable(name)),
            None => table,
        };
        terminal::fold(text, columns)
    }
}

/// The processes that are meant; otherwise it has been said that there are none such, and this is
/// the status.
fn meant(matches: &ArgMatches) -> Result<Vec<u32>, c_int> {
    if matches.get_flag("all") || matches.contains_id("pid") {
        sees_processes(TOOL)?;
    }
    if matches.get_flag("all") {
        let (found, not_permitted) = Looks::default().sums();
        if (not_permitted > 0 && !may_trace()) || hidden::hides().is_some() {
            let text = "processes that may not be looked at are left alone";
            complain(format!("{text}: {}", hidden::who_sees()));
        }
        // (Who has had no connection has no configuration yet: that of its file, as it is then.)
        let is_begun = |found: &Found| !matches!(found.process, Err(SegmentError::NoSegment));
        let all: Vec<u32> = found.into_iter().filter(is_begun).map(|found| found.pid).collect();
        if all.is_empty() {
            if matches.get_flag("json") {
                print(TOOL, "[]\n");
            }
            complain(
                "no process that may be asked has the library and has had a connection: nothing \
                 was done; `netacc ps` shows those that there are",
            );
            return Err(STATUS_FAILED);
        }
        return Ok(all);
    }
    let words: Vec<String> =
        matches.get_many::<String>("pid").into_iter().flatten().cloned().collect();
    match processes::named(&words) {
        Ok(found) => Ok(found.into_iter().map(|found| found.pid).collect()),
        Err(unknown) => {
            complain(&unknown);
            Err(match unknown {
                Unknown::Number(_) => STATUS_USAGE,
                Unknown::Name(_) => STATUS_FAILED,
            })
        }
    }
}

fn is_of_processes(matches: &ArgMatches) -> bool {
    matches.get_flag("all") || matches.contains_id("pid")
}

/// What is asked for, and a status that is not 0 if a part of it could not be had.
fn read(matches: &ArgMatches, names: &[Key]) -> Result<(Vec<Parameters>, c_int), c_int> {
    let mut all = Vec::new();
    let mut status = 0;
    if is_of_processes(matches) {
        for pid in meant(matches)? {
            match Parameters::of(pid) {
                Ok(parameters) => all.push(parameters),
                Err(error) => {
                    complain(format_args!("{pid}: {error}"));
                    status = STATUS_FAILED;
                }
            }
        }
    } else {
        all.push(Parameters::here().map_err(|errors| {
            errors.iter().for_each(complain);
            STATUS_USAGE
        })?);
    }
    all.iter_mut().for_each(|parameters| parameters.only(names));
    Ok((all, status))
}

/// One object for what is here; a list for processes.
fn shown(matches: &ArgMatches, all: &[Parameters]) -> String {
    if !matches.get_flag("json") {
        let columns = terminal::columns();
        let all: Vec<String> = all.iter().map(|one| one.text(columns)).collect();
        return all.join("\n");
    }
    let json: Vec<Value> = all.iter().map(Parameters::json).collect();
    match is_of_processes(matches) {
        true => format!("{:#}\n", Value::Array(json)),
        false => json.iter().map(|one| format!("{one:#}\n")).collect(),
    }
}

fn list(matches: &ArgMatches) -> c_int {
    match read(matches, &[]) {
        Ok((all, status)) => print(TOOL, &shown(matches, &all)).max(status),
        Err(status) => status,
    }
}

/// By its other name.
fn by_other_name(name: &str) -> Option<Key> {
    OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, key)| *key)
}

/// The parameters of these names; those that are none are said.
fn keys<'a>(names: impl Iterator<Item = &'a String>) -> Option<Vec<Key>> {
    let mut keys = Vec::new();
    let mut is_clear = true;
    for name in names {
        match Key::from_name(name).or_else(|| by_other_name(name)) {
            Some(key) => keys.push(key),
            None => {
                complain(format_args!("{name}: no such parameter; {}", Key::suggest(name)));
                is_clear = false;
            }
        }
    }
    is_clear.then_some(keys)
}

/// The value alone where one is asked for, for scripts.
fn get(matches: &ArgMatches) -> c_int {
    let names = matches.get_many::<String>("name").into_iter().flatten();
    let Some(keys) = keys(names) else { return STATUS_USAGE };
    let (all, status) = match read(matches, &keys) {
        Ok(read) => read,
        Err(status) => return status,
    };
    let text = match all.as_slice() {
        [Parameters { all: one, .. }] if !matches.get_flag("json") && one.len() == 1 => {
            one.iter().map(|p| format!("{}\n", printable(&p.value))).collect()
        }
        all => shown(matches, all),
    };
    print(TOOL, &text).max(status)
}

/// What became of it in one process.
struct Outcome {
    pid: u32,
    name: String,
    before: String,
    done: Result<(), Failure>,
    /// Of the off-switch: what has not gone back to TCP yet, if the process says so.
    left: Option<Option<Left>>,
}

fn set(matches: &ArgMatches) -> c_int {
    let word = |id| matches.get_one::<String>(id).map_or("", String::as_str);
    let (name, value) = (word("name"), word("value"));
    let Some(key) = keys([name.to_owned()].iter()).and_then(|keys| keys.first().copied()) else {
        return STATUS_USAGE;
    };
    if let Err(problem) = Config::check(key, value) {
        complain(problem);
        return STATUS_USAGE;
    }
    if key.takes_effect() == TakesEffect::Restart {
        complain(format_args!(
            "{name} takes effect at restart: put it in /etc/netacc.conf. `netacc cfg list` shows \
             what takes effect while a program runs"
        ));
        return STATUS_USAGE;
    }
    let pids = match meant(matches) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let limit = limit(matches);
    let outcomes = each(&pids, |pid| set_in(pid, key, value, limit));
    let failed = outcomes.iter().any(|outcome| outcome.done.is_err());
    let status = if failed { STATUS_FAILED } else { 0 };
    if matches.get_flag("json") {
        let all = outcomes.iter().map(|outcome| outcome_json(outcome, key, value)).collect();
        return print(TOOL, &format!("{:#}\n", Value::Array(all))).max(status);
    }
    let mut text = String::new();
    for outcome in &outcomes {
        match &outcome.done {
            Ok(()) => text += &outcome_text(outcome, key, value),
            Err(failure) => complain(format_args!("{}: {failure}", outcome.pid)),
        }
    }
    print(TOOL, &terminal::fold(text, terminal::columns())).max(status)
}

/// How long a process is waited for.
fn limit(matches: &ArgMatches) -> Duration {
    Duration::from_secs_f64(matches.get_one::<f64>("wait").copied().unwrap_or(2.0))
}

/// Asks processes at the same time, so that one that does not answer keeps no other; what became of
/// each, in their order.
fn each<T: Send>(pids: &[u32], ask: impl Fn(u32) -> T + Sync) -> Vec<T> {
    const THREADS: usize = 64;
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(pid) = pids.get(at) else { return done };
            done.push((at, ask(*pid)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        // (Where there is no further thread, those that there are do its part.)
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..pids.len().min(THREADS)).filter_map(start).collect();
        let mut all = work();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, done)| done).collect()
}

fn set_in(pid: u32, key: Key, value: &str, limit: Duration) -> Outcome {
    let (name, before) = live::parameters(pid)
        .map(|(name, all)| {
            let before = all.into_iter().find(|[name, ..]| name == key.name());
            (name, before.map(|[_, value, _]| value).unwrap_or_default())
        })
        .unwrap_or_default();
    let done = live::set(pid, key.name(), value, limit);
    let is_off = key == Key::AccelerateByDefault && value == "0" && done.is_ok();
    let left = is_off.then(|| live::await_tcp(pid, limit));
    Outcome { pid, name, before, done, left }
}

fn outcome_json(outcome: &Outcome, key: Key, value: &str) -> Value {
    json!({
        "pid": outcome.pid,
        "name": outcome.name,
        "parameter": key.name(),
        "before": outcome.before,
        "value": value,
        "is_set": outcome.done.is_ok(),
        "takes_effect": key.takes_effect().word(),
        "left_accelerated": outcome.left.as_ref().and_then(|left| Some(left.as_ref()?.accelerated)),
        "error": outcome.done.as_ref().err().map(ToString::to_string),
    })
}

fn left_text(left: &Left) -> String {
    let of = if left.is_all { "" } else { ", of those that the library has a record of" };
    match left.accelerated {
        0 => format!("; every connection is on TCP{of}"),
        1 => format!(
            "; 1 connection follows when its peer answers and what lies in its rings is read{of}"
        ),
        n => format!(
            "; {n} connections follow when their peers answer and what lies in their rings is \
             read{of}"
        ),
    }
}

fn outcome_text(outcome: &Outcome, key: Key, value: &str) -> String {
    let shown = |text: &str| if text.is_empty() { "\"\"".to_owned() } else { printable(text) };
    let left = match &outcome.left {
        None => String::new(),
        Some(None) => String::from("; it does not say any more what has followed"),
        Some(Some(left)) => left_text(left),
    };
    format!(
        "{} ({}): {} {} -> {}, {}{left}\n",
        printable(&outcome.name),
        outcome.pid,
        key.name(),
        shown(&outcome.before),
        shown(value),
        key.takes_effect().as_str()
    )
}

/// What became of the rules in one process.
struct Reloaded {
    pid: u32,
    name: String,
    /// Its configuration file, as the process names it.
    file: String,
    /// How many rules there are for it.
    rules: usize,
    done: Result<(), String>,
}

/// The rules of the files that processes have are read again.
fn reload(matches: &ArgMatches) -> c_int {
    let pids = match meant(matches) {
        Ok(pids) => pids,
        Err(status) => return status,
    };
    let limit = limit(matches);
    let all = each(&pids, |pid| reload_in(pid, limit));
    let status = if all.iter().any(|one| one.done.is_err()) { STATUS_FAILED } else { 0 };
    if matches.get_flag("json") {
        let all = all.iter().map(|one| {
            json!({
                "pid": one.pid,
                "name": one.name,
                "file": one.file,
                "rules": one.rules,
                "is_set": one.done.is_ok(),
                "error": one.done.as_ref().err(),
            })
        });
        return print(TOOL, &format!("{:#}\n", Value::Array(all.collect()))).max(status);
    }
    let mut text = String::new();
    for Reloaded { pid, name, file, rules, done } in &all {
        match done {
            Ok(()) => {
                let (name, file) = (printable(name), printable(file));
                let word = if *rules == 1 { "rule" } else { "rules" };
                text += &format!(
                    "{name} ({pid}): {file}: {rules} {word}, for connections made from now on\n"
                );
            }
            Err(problem) => complain(format_args!("{pid}: {problem}")),
        }
    }
    print(TOOL, &terminal::fold(text, terminal::columns())).max(status)
}

fn reload_in(pid: u32, limit: Duration) -> Reloaded {
    let (mut name, mut file, mut rules) = Default::default();
    let mut ask = || -> Result<(), String> {
        let is = live::configuration(pid).map_err(|error| error.to_string())?;
        let named = file_of(&is.1);
        (name, file) = (is.0, named.unwrap_or(DEFAULT_FILE).to_owned());
        live::set(pid, RULES, "", limit).map_err(|failure| {
            let why = match failure {
                Failure::Refused(Answer::Unread) => unread(pid, named),
                _ => mistakes(pid, &file),
            };
            why.unwrap_or_else(|| failure.to_string())
        })?;
        let is = live::configuration(pid).map_err(|error| error.to_string())?;
        rules = rendered_rules(&is.1).0.len();
        Ok(())
    };
    let done = ask();
    Reloaded { pid, name, file, rules, done }
}

/// Why a process could not read its file, as far as it shows from here. `named`: the one that it
/// had at its start.
fn unread(pid: u32, named: Option<&str>) -> Option<String> {
    let file = named.unwrap_or(DEFAULT_FILE);
    if !file.starts_with('/') {
        return Some(format!(
            "its configuration file has a relative name, {file}, which may be another one's by \
             now; its rules are as they were: restart it"
        ));
    }
    // (The default file in our own view is nobody's to choose.)
    let is_seen = file == DEFAULT_FILE && has_our_files(pid);
    if !is_seen && !is_ours(pid) {
        return None;
    }
    let seen = PathBuf::from(format!("/proc/{pid}/root")).join(file.strip_prefix('/')?);
    match fs::symlink_metadata(seen) {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(match named {
            Some(_) => format!("there is no {file} any more; its rules are as they were"),
            None => format!(
                "it was started without a configuration file, and there is no {file}: write that \
                 one, or the one that its NACC_CONF names, and reload again"
            ),
        }),
        Ok(is) if is.is_file() && is.len() == 0 => {
            Some(format!("its configuration file, {file}, is empty; its rules are as they were"))
        }
        _ => None,
    }
}

fn is_ours(pid: u32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|is| is.uid());
    owner.is_ok_and(|owner| owner == rustix::process::geteuid().as_raw())
}

/// Whether a process has the mounts and the root that we have.
fn has_our_files(pid: u32) -> bool {
    let of = |pid: &str, what: &str| fs::read_link(format!("/proc/{pid}/{what}")).ok();
    let (pid, own) = (pid.to_string(), "self");
    ["ns/mnt", "root"].iter().all(|what| {
        let theirs = of(&pid, what);
        theirs.is_some() && theirs == of(own, what)
    })
}

/// The mistakes of a file that a process has not taken, as far as they can be read from here. Only
/// of a process of this very user's: another one may name a file that is not for it to read, or
/// that hangs who reads it.
fn mistakes(pid: u32, file: &str) -> Option<String> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let seen = root.join(file.strip_prefix('/')?);
    if !is_ours(pid) || !seen.metadata().ok()?.is_file() {
        return None;
    }
    let text = fs::read_to_string(&seen).ok()?;
    let users = launch::user_of(&root);
    let errors = Config::resolve(Some((file, &text)), &|_| None, &[], &users).err()?;
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Some(format!("{}; its rules are as they were", errors.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_told_from_none_and_from_an_empty_one() {
        let own = std::process::id();
        let folder = std::env::temp_dir().join(format!("netacc-cfg-{own}"));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("netacc.conf");
        let name = file.to_str().unwrap();
        let says = || unread(own, Some(name)).unwrap_or_default();
        assert!(says().contains(&format!("there is no {name}")), "{}", says());
        fs::write(&file, "").unwrap();
        assert!(says().contains("is empty"), "{}", says());
        fs::write(&file, "[netacc]\n").unwrap();
        assert_eq!(unread(own, Some(name)), None);
        fs::remove_dir_all(&folder).unwrap();
        assert!(unread(own, Some("netacc.conf")).unwrap().contains("a relative name"));
        assert!(has_our_files(own));
        if !std::path::Path::new(DEFAULT_FILE).exists() {
            let said = unread(own, None).unwrap();
            assert!(said.contains("started without a configuration file"), "{said}");
        }
    }
}
