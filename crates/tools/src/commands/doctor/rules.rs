//! Which rule of `netacc.conf` holds: for the connections of a process, for a program that is to be
//! started, for a connection that is not there yet.

use super::commands::{edit, edit_of, list_of, netacc};
use super::connection::{listening_ports, serve_within};
use super::finding::Findings;
use super::look::Status;
use super::remedy::{Command, Remedy, show};
use crate::segment::Process;
use netacc_control::config::{
    DEFAULT_FILE, Direction, Paths, Program, Rule, Subject, file_of, rendered_rules,
};
use netacc_control::stats::{Connection, Reason};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// What mends a rule of what is started here. `file`: where its configuration is.
pub fn correct(file: &Path) -> Remedy {
    Command::Opens(edit(file)).with(NOT_MEANT)
}

const NOT_MEANT: &str = "correct the rule, if that was not meant";

/// What mends a rule of a process: it takes its rules again, unless it takes no requests.
pub fn correct_of(process: &Process) -> Remedy {
    let command = edit_of(process.pid, file_of_process(process));
    match (command, process.header.requests) {
        (Command::Opens(open), Some(_)) => {
            let again = netacc(&format!("cfg reload -p {}", process.pid));
            Command::Opens(format!("{open} && {again}")).with(NOT_MEANT)
        }
        (command, Some(_)) => command.with(format!("{NOT_MEANT}, and have it reloaded")),
        (command, None) => command.with(format!("{NOT_MEANT}, and start the program again")),
    }
}

/// The file that a process has its rules from.
fn file_of_process(process: &Process) -> &str {
    file_of(&process.header.config).unwrap_or(DEFAULT_FILE)
}

/// What lets its library read that.
fn let_read(process: &Process) -> Remedy {
    let file = file_of_process(process);
    readable(file, process.pid).with(Reason::ConfigUnreadable.remedy())
}

/// What is in the way of reading a file. (Who may read it is its owner's to say, and which file it
/// is the process's.)
pub fn readable(file: &str, pid: u32) -> Command {
    Command::Shows(format!("{}; prlimit --pid {pid} --nofile", list_of(pid, file)))
}

/// Where all of its rules are.
fn whole(process: &Process) -> Remedy {
    show("look at the file", list_of(process.pid, file_of_process(process)))
}

/// What a rule does, in words.
fn effect(rule: &Rule) -> String {
    let mut effect = paths_of(rule);
    match rule.poll_us() {
        None => {}
        Some(0) => effect += "; waits for it do not poll",
        Some(us) => effect += &format!("; waits for it poll for {us} us at most"),
    }
    match rule.trace() {
        None => {}
        Some(true) => effect += "; it is traced",
        Some(false) => effect += "; it is not traced",
    }
    effect
}

/// Which paths it leaves.
fn paths_of(rule: &Rule) -> String {
    match rule.paths() {
        _ if rule.is_of_unreadable_file() => {
            String::from("(its library could not read netacc.conf) keeps everything on TCP")
        }
        _ if rule.is_unreadable() => {
            String::from("has a mistake, and so keeps all that comes to it on TCP")
        }
        None => String::from("lets it take any path of NACC_PATHS"),
        Some(paths) if paths.is_empty() => String::from("keeps it on TCP"),
        Some(paths) => format!("lets it take {paths} alone"),
    }
}

/// The rules of a process, and how many of its open connections each of them holds for.
pub fn of_process(process: &Process, user: u32, findings: &mut Findings) {
    let (rules, is_whole) = rendered_rules(&process.header.config);
    if !is_whole {
        let found = "the process has more rules than it can show: the last ones are not named here";
        findings.note("rule", found, whole(process));
    }
    if rules.is_empty() {
        return;
    }
    let listening = listening_ports(&format!("/proc/{}", process.pid));
    let mut counts = vec![(0usize, 0usize); rules.len()];
    for connection in process.connections.iter() {
        let first = match connection.rule {
            // (Its library, which is older, does not say so; or it has not been looked up yet.)
            0 => subject(&connection, &listening, user)
                .and_then(|of| rules.iter().position(|rule| rule.holds(&of))),
            tag => rules.iter().position(|rule| rule.tag() == tag),
        };
        if let Some((open, kept)) = first.and_then(|first| counts.get_mut(first)) {
            *open += 1;
            let why = [Reason::Rule, Reason::ConfigUnreadable].map(|why| why as u32);
            *kept += usize::from(why.contains(&connection.reason));
        }
    }
    for (rule, (open, kept)) in rules.iter().zip(counts) {
        let found = format!(
            "{} {}; it holds for {open} of the open connections, {kept} of them kept on TCP by it",
            rule.name,
            effect(rule)
        );
        match kept {
            _ if rule.is_of_unreadable_file() => findings.problem("rule", found, let_read(process)),
            0 => findings.ok("rule", found),
            _ => findings.note("rule", found, correct_of(process)),
        }
    }
}

/// What a rule is asked about an open connection. (Who began it does not show: it is taken for an
/// accepted one where its port listens.)
fn subject(connection: &Connection, listening: &[u16], user: u32) -> Option<Subject> {
    let (local, peer) = (connection.local?, connection.peer?);
    let (direction, port) = match listening.contains(&local.port()) {
        true => (Direction::In, local.port()),
        false => (Direction::Out, peer.port()),
    };
    Some(Subject { port, peer: peer.ip(), direction, user })
}

/// The rules that may hold in a program.
pub fn of_program(rules: &[Rule], program: Program<'_>, file: &Path, findings: &mut Findings) {
    for rule in rules.iter().filter(|rule| rule.is_of(program)) {
        let found =
            format!("{} may hold for a connection of it, and then {}", rule.name, effect(rule));
        let keeps = rule.paths().is_some_and(|paths| paths.is_empty());
        match keeps {
            true => findings.note("rule", found, correct(file)),
            false => findings.ok("rule", found),
        }
    }
}

/// The rules that hold for a connection from here, of this user's, up to the first that holds for
/// all programs; and the paths that this one leaves.
pub fn of_connection(
    rules: &[Rule],
    to: SocketAddr,
    file: &Path,
    findings: &mut Findings,
) -> Option<Paths> {
    let user = rustix::process::geteuid().as_raw();
    let of = Subject { port: to.port(), peer: to.ip(), direction: Direction::Out, user };
    for rule in rules.iter().filter(|rule| rule.holds(&of)) {
        let (programs, name) = (rule.programs(), &rule.name);
        let keeps = rule.paths().is_some_and(|paths| paths.is_empty());
        if !programs.is_empty() {
            let programs = programs.join(", ");
            let found = format!("{CLIENTS}{name}, to {to} for {programs}: {}", effect(rule));
            findings.note("rule", found, correct(file));
            continue;
        }
        let found = format!("{CLIENTS}{name}, to {to}: {}", effect(rule));
        match keeps {
            true => findings.problem("rule", found, correct(file)),
            false => findings.ok("rule", found),
        }
        return rule.paths();
    }
    None
}

/// Whose configuration it is of a connection's ends: that of what is started here.
pub const CLIENTS: &str = "the client's end: ";

/// The rule of the process that listens which holds for a connection from that address within the
/// host. (A process has the rules of its program alone.)
pub fn of_server(server: &Process, from: IpAddr, to: SocketAddr, findings: &mut Findings) {
    let (rules, is_whole) = rendered_rules(&server.header.config);
    let status = Status::of(&format!("/proc/{}", server.pid)).ok();
    let user = status.and_then(|status| status.uid()).unwrap_or(server.uid);
    let of = Subject { port: to.port(), peer: from, direction: Direction::In, user };
    let end = format!("the server's end, process {}: ", server.pid);
    let Some(rule) = rules.iter().find(|rule| rule.holds(&of)) else {
        if !is_whole {
            let found = format!("{end}it has more rules than it can show");
            findings.note("rule", found, whole(server));
        }
        return;
    };
    let found = format!("{end}{}, for connections to {to}: {}", rule.name, effect(rule));
    let is_kept = rule.paths().is_some_and(|paths| !serve_within(paths, to));
    match is_kept || rule.is_unreadable() {
        _ if rule.is_of_unreadable_file() => findings.problem("rule", found, let_read(server)),
        true => findings.problem("rule", found, correct_of(server)),
        false => findings.ok("rule", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::config::{Config, NO_USERS};
    use netacc_control::stats::RECORD_BYTES;

    fn rules(text: &str) -> Vec<Rule> {
        Config::resolve(Some(("f", text)), &|_| None, &[], NO_USERS).unwrap().0.rules
    }

    fn told(findings: &Findings) -> Vec<String> {
        let json = findings.json("host", "h");
        let all = json["findings"].as_array().unwrap().iter();
        all.map(|f| format!("{}: {}", f["level"].as_str().unwrap(), f["found"].as_str().unwrap()))
            .collect()
    }

    const RULES: &str = "[rule a]\nprogram=x\nport=80\naccelerate=0\n[rule b]\nport=80\npaths=shm\n\
                         [rule c]\nport=80-90\naccelerate=0\n[rule d]\ndirection=in\naccelerate=0\n";

    #[test]
    fn a_connection_has_the_first_rule_that_holds_for_any_program() {
        let of = |port: u16| {
            let mut findings = Findings::default();
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            let left = of_connection(&rules(RULES), to, Path::new("f"), &mut findings);
            (told(&findings), left.map(|paths| paths.to_string()))
        };
        assert_eq!(
            of(80).0,
            [
                "note: the client's end: a, to 127.0.0.1:80 for x: keeps it on TCP",
                "ok: the client's end: b, to 127.0.0.1:80: lets it take shm alone"
            ]
        );
        assert_eq!(of(81).0, ["problem: the client's end: c, to 127.0.0.1:81: keeps it on TCP"]);
        assert_eq!(of(91), (Vec::new(), None));
        assert_eq!([of(80).1, of(81).1], ["shm", "tcp"].map(|paths| Some(paths.to_owned())));
    }

    #[test]
    fn a_rule_says_all_that_it_does() {
        for (text, said) in [
            ("poll=0", "lets it take any path of NACC_PATHS; waits for it do not poll"),
            (
                "paths=shm\npoll=2ms\ntrace=1",
                "lets it take shm alone; waits for it poll for 2000 us at most; it is traced",
            ),
            ("accelerate=0\ntrace=0", "keeps it on TCP; it is not traced"),
            ("accelerate=1", "lets it take any path of NACC_PATHS"),
        ] {
            assert_eq!(effect(&rules(&format!("[rule r]\n{text}\n"))[0]), said);
        }
        assert!(effect(&Rule::unreadable("r")).ends_with("keeps all that comes to it on TCP"));
    }

    #[test]
    fn a_program_has_the_rules_that_name_it_or_none() {
        let mut findings = Findings::default();
        of_program(
            &rules(RULES),
            Program { file: "/bin/y", name: "y" },
            Path::new("f"),
            &mut findings,
        );
        let names: Vec<_> = told(&findings).iter().map(|f| f.replace(" may hold", "|")).collect();
        let names: Vec<_> = names.iter().filter_map(|f| f.split('|').next()).collect();
        assert_eq!(names, ["ok: b", "note: c", "note: d"]);
    }

    #[test]
    fn who_accepted_shows_by_the_port_that_listens() {
        let connection = |local: u16, peer: u16| Connection {
            reason: Reason::Rule as u32,
            local: Some(SocketAddr::from(([127, 0, 0, 1], local))),
            peer: Some(SocketAddr::from(([127, 0, 0, 1], peer))),
            ..Connection::read_closed(&[0; RECORD_BYTES])
        };
        let of = |local, peer| subject(&connection(local, peer), &[80], 0).unwrap();
        assert_eq!((of(80, 5000).direction, of(80, 5000).port), (Direction::In, 80));
        assert_eq!((of(5000, 81).direction, of(5000, 81).port), (Direction::Out, 81));
    }
}
