//! A program that has not been started: would the library serve it?

use super::finding::Findings;
use super::{host, look, rdma, rules};
use crate::command::{self, Broken, Named, NoStart, Obstacle, Verdict};
use crate::elf::{Elf, Target};
use crate::launch::{self, Environment};
use crate::show::shell_word;
use crate::{library, raw};
use netacc_control::config::Program;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Looks at a command as `netacc_run` would.
pub fn look(words: &[OsString], findings: &mut Findings) {
    let mut environment = Environment::inherited();
    let name = words.first().cloned().unwrap_or_default();
    let path = environment.get("PATH").map(OsStr::to_owned);
    let Some(program) = command::find(&name, path.as_deref()) else {
        let (found, remedy) = not_found(&name.to_string_lossy());
        findings.blind("program", found, remedy);
        return;
    };
    if !program.is_file() {
        let file = program.display();
        let found = format!("{file} is not a file that can be run");
        let remedy = match program.is_dir() {
            true => format!("name a program in it: ls -l {file}"),
            false => format!("name a program: ls -ld {file}"),
        };
        findings.blind("program", found, remedy);
        return;
    }
    let library = host::library(&environment, findings);
    // Without a library: would one for this machine serve it?
    if let Some(target) = library.as_ref().map(|library| library.target).or_else(this_machine)
        && is_startable(&program, path.as_deref(), target, findings)
        && obstacle(&program, path.as_deref(), target, findings)
        && let Some(library) = library
    {
        let preload = library::preload(&library.path, environment.get("LD_PRELOAD"));
        loader(&program, path.as_deref(), &preload, findings);
    }
    if let Some(config) = host::config(&mut environment, findings) {
        host::effect(&config, "", findings);
        let (file, name) = known_as(&program, path.as_deref());
        let program = Program { file: &file, name: &name };
        rules::of_program(&config.rules, program, &host::config_file(&environment), findings);
    }
    host::limits("/proc/self", rdma::has_devices(), findings);
    host::confinement(findings);
}

/// What is said of a word that names no command, and what may be meant instead.
fn not_found(name: &str) -> (String, String) {
    let words: Vec<&str> = name.split_ascii_whitespace().collect();
    if words.len() > 1 {
        let found = format!("{name}: command not found; it is one word with blanks");
        let words = words.join(" ");
        let remedy = format!("a command and its arguments are words each: netacc doctor {words}");
        return (found, remedy);
    }
    if let Some((host, service)) = place(name) {
        let found = format!("{name}: command not found; and in a place the port is a number");
        let port = service_port(&look::file("/etc/services").unwrap_or_default(), service);
        let port = port.map_or_else(|| String::from("PORT"), |port| port.to_string());
        return (found, format!("netacc doctor {host}:{port}"));
    }
    if name.contains('/') {
        let folder = Path::new(name).parent().unwrap_or(Path::new("/")).display();
        return (format!("{name}: no such file"), format!("ls -l {folder}"));
    }
    (format!("{name}: command not found"), format!("command -v {name}; name it by its path"))
}

/// A host, and a service by its name.
fn place(name: &str) -> Option<(&str, &str)> {
    let (host, service) = name.rsplit_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_one = !service.is_empty() && service.chars().all(is_name);
    let is_host = !host.is_empty() && !host.ends_with(':') && !host.contains('/');
    (is_one && is_host).then_some((host, service))
}

/// The port of a service, as services(5) has it.
fn service_port(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, port) = (words.next()?, words.next()?.strip_suffix("/tcp")?);
        (first == name || words.any(|alias| alias == name)).then(|| port.parse().ok())?
    })
}

/// What this program is made for.
pub fn this_machine() -> Option<Target> {
    let file = std::fs::File::open("/proc/self/exe").ok()?;
    Some(Elf::read(file).ok()??.target)
}

/// Whether a program, and all that it takes to start it, is there and whole.
fn is_startable(
    program: &Path,
    path: Option<&OsStr>,
    machine: Target,
    findings: &mut Findings,
) -> bool {
    let no_start = command::cannot_start(program, path, machine);
    if let Some(no_start) = &no_start {
        findings.problem("program", no_start.to_string(), mended(no_start));
    }
    no_start.is_none()
}

/// What mends what a program cannot be started for.
fn mended(no_start: &NoStart) -> String {
    let file = no_start.file.display();
    match (&no_start.what, &no_start.named_by) {
        (Broken::Missing, Some(Named::FirstLine(script) | Named::Env(script)))
            if no_start.has_carriage_return() =>
        {
            format!("sed -i '1s/\\r$//' {}", script.display())
        }
        (Broken::Missing, Some(Named::FirstLine(script))) => format!(
            "install what has {file}, or name another interpreter: sed -i '1s|.*|#!/usr/bin/env \
             INTERPRETER|' {}",
            script.display()
        ),
        (Broken::Missing, Some(Named::Env(script))) => format!(
            "install what has {file}, or put its directory into PATH; options of an interpreter \
             take env -S: head -n 1 {}",
            script.display()
        ),
        (Broken::Missing, Some(Named::Program(program))) => format!(
            "install the program built for this system's GNU C library, or what has {file}; what \
             was it built for? file {}",
            program.display()
        ),
        (Broken::Missing | Broken::NotAFile, _) => format!("ls -ld {file}"),
        (Broken::NoExecuteBit, _) => format!("chmod +x {file}"),
        (Broken::NotExecutable, _) => {
            format!("look at its mode and its mount: ls -l {file}; findmnt -T {file}")
        }
        (Broken::Damaged | Broken::CutOff { .. } | Broken::NotAProgram, _) => {
            format!("install or copy it again; what is it? file {file}; readelf -hl {file}")
        }
        (Broken::Loop, _) => format!("head -n 1 {file}"),
    }
}

/// Whether nothing stands against a file.
pub fn obstacle(
    program: &Path,
    path: Option<&OsStr>,
    library: Target,
    findings: &mut Findings,
) -> bool {
    match command::examine(program, path, library) {
        Some(verdict) => {
            findings.problem("program", launch::describe(&verdict), remedy(&verdict));
            false
        }
        None => {
            let Some((file, _)) = ends_in(program, path) else {
                findings.note(
                    "program",
                    format!(
                        "{} cannot be read, or what runs it: what it is does not show",
                        program.display()
                    ),
                    format!("sudo netacc doctor {}", program.display()),
                );
                return false;
            };
            let runs = match file == program {
                true => String::new(),
                false => format!(", run by {},", file.display()),
            };
            let found = "is dynamically linked with the GNU C library, for this machine";
            findings.ok("program", format!("{}{runs} {found}", program.display()));
            true
        }
    }
}

fn remedy(verdict: &Verdict) -> String {
    let file = shell_word(&verdict.program.to_string_lossy());
    match &verdict.obstacle {
        Obstacle::Static => format!(
            "link it dynamically: build it without -static, or install a package that is linked \
             so; check with: file {file}"
        ),
        Obstacle::Go { .. } => String::from(
            "none within the program; put a proxy that is linked dynamically (haproxy, nginx) \
             before it, and accelerate that one: netacc_run haproxy …",
        ),
        Obstacle::Privileged("has file capabilities") => format!(
            "setcap -r {file}; give the capabilities to the service (AmbientCapabilities= in its \
             unit), which the dynamic loader does not mind"
        ),
        Obstacle::Privileged(_) => format!(
            "start it as the user that it becomes (sudo -u, User= in its unit), from a copy \
             without the bit: cp --no-preserve=mode {file} COPY; chmod 755 COPY"
        ),
        Obstacle::OtherTarget { library, .. } => {
            format!(
                "install the program for {library}, or build netacc for the program's machine; \
                 check with: file {file}"
            )
        }
        Obstacle::OtherLibc(_) => format!(
            "install the program built for the GNU C library (in a container: an image of Debian, \
             Ubuntu or Fedora instead of Alpine); check with: file {file}"
        ),
        Obstacle::DropsPreload => format!(
            "have its first line leave LD_PRELOAD alone (no -i, no -u LD_PRELOAD): head -n 1 {file}"
        ),
    }
}

/// What its dynamic loader says of what would be preloaded, and which of its code makes system
/// calls that the library does not see.
fn loader(program: &Path, path: Option<&OsStr>, preload: &OsStr, findings: &mut Findings) {
    let Some((program, loader)) = ends_in(program, path) else { return };
    if !is_of_the_system(&loader) {
        findings.note(
            "loader",
            format!("{} is not the system's, and was not asked", loader.display()),
            "netacc_run itself says what it sees",
        );
        return;
    }
    for complaint in complaints(&program, &loader, preload) {
        findings.problem(
            "preload",
            complaint,
            "unset LD_PRELOAD, or mend it: the file that it names has to exist, to be readable for the program's user, \
             for its machine, and for no newer C library than its own",
        );
    }
    for found in raw::find(&program, loader.as_os_str()) {
        findings.note(
            "system-calls",
            launch::describe_raw(&found),
            "if its connections say waits-unseen (netacc_ss --reason waits-unseen): turn off what \
             makes these calls (io_uring, an event loop of its own), or use a build on libc's",
        );
    }
}

/// The program and dynamic loader that run in the end: a script's interpreter.
fn ends_in(program: &Path, path: Option<&OsStr>) -> Option<(PathBuf, PathBuf)> {
    const STEPS_MAX: usize = 5;
    let mut program = program.to_path_buf();
    for _ in 0..STEPS_MAX {
        if let Some(loader) = command::loader(&program) {
            return Some((program, PathBuf::from(loader)));
        }
        program = command::interpreter(&program, path)?;
    }
    None
}

/// The file that the library finds itself in, and the name by which that was started: of a script
/// its interpreter's file and its own name, unless it is `env` that starts the interpreter.
fn known_as(program: &Path, path: Option<&OsStr>) -> (String, String) {
    let file = ends_in(program, path).map_or_else(|| program.to_path_buf(), |(file, _)| file);
    let started = match command::is_started_by_env(program) {
        true => file.as_path(),
        false => program,
    };
    let name = started.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (file.canonicalize().unwrap_or(file.clone()).to_string_lossy().into_owned(), name)
}

/// Nothing is run that only a program names.
fn is_of_the_system(loader: &Path) -> bool {
    std::fs::metadata(loader).is_ok_and(|status| status.uid() == 0 && status.mode() & 0o022 == 0)
}

/// What the dynamic loader cannot preload, by its own word.
fn complaints(program: &Path, loader: &Path, preload: &OsStr) -> Vec<String> {
    let Ok(program) = program.canonicalize() else { return Vec::new() };
    let mut command = Command::new(loader);
    command.arg("--list").arg(program).env("LD_PRELOAD", preload);
    let said = look::complaints(&mut command, Duration::from_secs(5)).unwrap_or_default();
    said.lines()
        .filter(|line| line.contains("LD_PRELOAD"))
        .map(|line| line.trim_start_matches("ERROR: ld.so: ").to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_obstacle_has_a_remedy_of_its_own() {
        let target = this_machine().unwrap();
        let all = [
            (Obstacle::Static, "link it dynamically"),
            (Obstacle::Go { dynamic: true }, "put a proxy"),
            (Obstacle::Privileged("has file capabilities"), "setcap -r /bin/x"),
            (Obstacle::Privileged("is set-user-ID"), "cp --no-preserve=mode /bin/x"),
            (Obstacle::OtherTarget { program: target, library: target }, "install the program for"),
            (Obstacle::OtherLibc(String::from("/lib/ld-musl-x86_64.so.1")), "instead of Alpine"),
            (Obstacle::DropsPreload, "no -i, no -u LD_PRELOAD"),
        ];
        for (obstacle, text) in all {
            let verdict = Verdict { program: PathBuf::from("/bin/x"), obstacle };
            assert!(remedy(&verdict).contains(text), "{text}: {}", remedy(&verdict));
        }
    }

    #[test]
    fn what_is_no_command_is_told_by_what_it_may_be() {
        for (name, found, remedy) in [
            ("./st extra", "one word with blanks", "netacc doctor ./st extra"),
            ("localhost:no-such", "the port is a number", "netacc doctor localhost:PORT"),
            ("std::sort", "std::sort: command not found", "command -v std::sort;"),
            ("/nowhere/st", "/nowhere/st: no such file", "ls -l /nowhere"),
            ("st", "st: command not found", "command -v st; name it by its path"),
        ] {
            let said = not_found(name);
            assert!(said.0.contains(found) && said.1.contains(remedy), "{name}: {said:?}");
        }
        let services = "# a\nhttp\t80/tcp  www # web\ndomain 53/udp\ndomain 53/tcp\n";
        for (name, port) in
            [("http", Some(80)), ("www", Some(80)), ("domain", Some(53)), ("web", None)]
        {
            assert_eq!(service_port(services, name), port, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_judged() {
        let mut findings = Findings::default();
        let target = this_machine().unwrap();
        assert!(!obstacle(Path::new("/nowhere/x"), None, target, &mut findings));
        let told = findings.json("program", "x");
        let found = &told["findings"][0];
        assert!(found["level"] == "note", "{told:#}");
        assert!(found["found"].as_str().unwrap().contains("cannot be read"), "{told:#}");
    }
}
