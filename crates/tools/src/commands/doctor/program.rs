//! A program that has not been started: would the library serve it?

use super::commands::{as_owner, by_path, edit, in_place, look_closer, netacc, tool};
use super::finding::Findings;
use super::remedy::{Command, Remedy, mend, no_command, show};
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
            true => show("name a program in it", format!("ls -l {}", word(&program))),
            false => show("name a program", format!("ls -ld {}", word(&program))),
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

fn word(file: &Path) -> String {
    shell_word(&file.to_string_lossy())
}

/// What is said of a word that names no command, and what may be meant instead.
fn not_found(name: &str) -> (String, Remedy) {
    let words: Vec<&str> = name.split_ascii_whitespace().collect();
    if words.len() > 1 {
        let found = format!("{name}: command not found; it is one word with blanks");
        let words: Vec<String> = words.into_iter().map(shell_word).collect();
        let meant = netacc(&format!("doctor {}", words.join(" ")));
        return (found, mend("a command and its arguments are words each", meant));
    }
    if let Some((host, service)) = place(name) {
        let found = format!("{name}: command not found; and in a place the port is a number");
        let port = service_port(&look::file("/etc/services").unwrap_or_default(), service);
        let said = "name the port by its number";
        let remedy = match port {
            Some(port) => {
                let place = shell_word(&format!("{host}:{port}"));
                mend(said, netacc(&format!("doctor {place}")))
            }
            None => no_command(said, format!("/etc/services has no {service} over TCP")),
        };
        return (found, remedy);
    }
    if name.contains('/') {
        let folder = Path::new(name).parent().unwrap_or(Path::new("/"));
        let remedy = show("name a file that there is", format!("ls -l {}", word(folder)));
        return (format!("{name}: no such file"), remedy);
    }
    let elsewhere = format!("whereis -b {}", shell_word(name));
    (format!("{name}: command not found"), show("install it, or name it by its path", elsewhere))
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
fn mended(no_start: &NoStart) -> Remedy {
    let (name, file) = (no_start.file.display(), word(&no_start.file));
    match (&no_start.what, &no_start.named_by) {
        (Broken::Missing, Some(Named::FirstLine(script) | Named::Env(script)))
            if no_start.has_carriage_return() =>
        {
            let end = format!("sed -i --follow-symlinks '1s/\\r$//' -- {}", word(script));
            mend("end the line as Unix does", in_place(script, &end))
        }
        (Broken::Missing, Some(Named::FirstLine(script))) => interpreter(&no_start.file, script),
        (Broken::Missing, Some(Named::Env(script))) => show(
            format!(
                "install what has {name}, or put its directory into PATH; options of an \
                 interpreter take env -S"
            ),
            format!("head -n 1 {}", word(script)),
        ),
        (Broken::Missing, Some(Named::Program(_))) => no_command(
            format!(
                "install the program built for this system's GNU C library, or what has {name}"
            ),
            "which dynamic loader a program asks for is settled where it is built",
        ),
        (Broken::Missing | Broken::NotAFile, _) => {
            show("put the program there", format!("ls -ld {file}"))
        }
        (Broken::NoExecuteBit, _) => {
            mend("give it one", as_owner(&no_start.file, &format!("chmod +x {file}")))
        }
        (Broken::NotExecutable, _) => show(
            "look at its mode and at the options of its mount",
            format!("ls -l {file}; findmnt -T {file}"),
        ),
        (Broken::Damaged | Broken::CutOff { .. } | Broken::NotAProgram, _) => {
            show("install or copy it again", format!("ls -l {file}; od -A d -t x1z -N 64 {file}"))
        }
        (Broken::Loop, _) => show("name another interpreter", format!("head -n 1 {file}")),
    }
}

/// An interpreter that is not where a script has it: it may be elsewhere.
fn interpreter(missing: &Path, script: &Path) -> Remedy {
    let (name, script_word) = (missing.display(), word(script));
    let special = ['|', '\\', '&', '\'', '\n', '*', '[', '^', '$'];
    let is_plain = |text: &str| !text.contains(special);
    let other = missing.file_name().and_then(|name| by_path(&name.to_string_lossy()));
    match other {
        Some(other) if is_plain(&name.to_string()) && is_plain(&other.to_string_lossy()) => {
            // (A pattern's own characters are none here: `.` is itself, too.)
            let other = other.display();
            let line = format!("sed -i --follow-symlinks '1s|{name}|{other}|' -- {script_word}");
            mend(format!("name {other}, which there is"), in_place(script, &line))
        }
        _ => show(
            format!("install what has {name}, or name another interpreter"),
            format!("head -n 1 {script_word}"),
        ),
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
                    show("look as root", look_closer(&word(program))),
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

fn remedy(verdict: &Verdict) -> Remedy {
    const BUILT: &str = "what a program is built for is settled where it is built";
    let file = word(&verdict.program);
    match &verdict.obstacle {
        Obstacle::Static => no_command(
            "link it dynamically: build it without -static, or install a package that is linked so",
            "the program must be linked dynamically",
        ),
        Obstacle::Go { .. } => no_command(
            "put a proxy that is linked dynamically (haproxy, nginx) before it, and accelerate \
             that one",
            "nothing that is preloaded sees what a Go program does",
        ),
        Obstacle::Privileged("has file capabilities") => show(
            "give them to the service (AmbientCapabilities= in its unit), which the dynamic loader \
             does not mind, and take them from the file (setcap -r)",
            format!("ls -l -- {file}; getcap {file}"),
        ),
        Obstacle::Privileged(_) => {
            let name = verdict.program.file_name().unwrap_or_default().to_string_lossy();
            let to = shell_word(&name);
            mend(
                "make a copy without the bit, and start that as the user that it becomes (sudo \
                 -u, User= in its unit)",
                format!(
                    "test ! -e \"$HOME\"/bin/{to} && install -D -m 755 -- {file} \
                     \"$HOME\"/bin/{to}"
                ),
            )
        }
        Obstacle::OtherTarget { library, .. } => no_command(
            format!("install the program for {library}, or build netacc for the program's machine"),
            BUILT,
        ),
        Obstacle::OtherLibc(_) => no_command(
            "install the program built for the GNU C library (in a container: an image of Debian, \
             Ubuntu or Fedora instead of Alpine)",
            BUILT,
        ),
        Obstacle::DropsPreload => Command::Opens(edit(&verdict.program))
            .with("have its first line leave LD_PRELOAD alone (no -i, no -u LD_PRELOAD)"),
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
            show("have it belong to root, and be writable for nobody else", {
                format!("ls -lL {}", word(&loader))
            }),
        );
        return;
    }
    for complaint in complaints(&program, &loader, preload) {
        findings.problem("preload", complaint, preloadable(preload));
    }
    for found in raw::find(&program, loader.as_os_str()) {
        findings.note(
            "system-calls",
            launch::describe_raw(&found),
            show(
                "if its connections say waits-unseen: turn off what makes these calls (io_uring, \
                 an event loop of its own), or use a build on libc's",
                format!("{} --reason waits-unseen", tool("netacc_ss")),
            ),
        );
    }
}

/// What has the dynamic loader load what LD_PRELOAD names. `preload`: with the library in front.
fn preloadable(preload: &OsStr) -> Remedy {
    let said = "the file that it names has to exist, to be readable for the program's user, for \
                its machine, and for no newer C library than its own";
    match Environment::inherited().get("LD_PRELOAD").is_some_and(|value| !value.is_empty()) {
        true => mend(format!("do without LD_PRELOAD, or mend it: {said}"), "unset LD_PRELOAD"),
        false => show(said, format!("ls -lL {}", shell_word(&preload.to_string_lossy()))),
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
    let mut command = std::process::Command::new(loader);
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
            (Obstacle::Static, "link it dynamically", ""),
            (Obstacle::Go { dynamic: true }, "put a proxy", ""),
            (
                Obstacle::Privileged("has file capabilities"),
                "take them from the file",
                "getcap '/bin/x y'",
            ),
            (
                Obstacle::Privileged("is set-user-ID"),
                "make a copy",
                "install -D -m 755 -- '/bin/x y' \"$HOME\"/bin/'x y'",
            ),
            (
                Obstacle::OtherTarget { program: target, library: target },
                "install the program for",
                "",
            ),
            (
                Obstacle::OtherLibc(String::from("/lib/ld-musl-x86_64.so.1")),
                "instead of Alpine",
                "",
            ),
            (Obstacle::DropsPreload, "no -i, no -u LD_PRELOAD", " '/bin/x y'"),
        ];
        for (obstacle, text, line) in all {
            let verdict = Verdict { program: PathBuf::from("/bin/x y"), obstacle };
            let remedy = remedy(&verdict);
            assert!(remedy.text.contains(text), "{text}: {remedy:?}");
            assert!(remedy.command.line().unwrap_or_default().ends_with(line), "{remedy:?}");
            assert_eq!(remedy.command.line().is_none(), line.is_empty(), "{remedy:?}");
        }
    }

    #[test]
    fn what_is_no_command_is_told_by_what_it_may_be() {
        for (name, found, line) in [
            ("./st $extra", "one word with blanks", Some("netacc doctor ./st '$extra'")),
            ("localhost:no-such", "the port is a number", None),
            ("std::sort", "std::sort: command not found", Some("whereis -b std::sort")),
            ("/nowhere$/st", "/nowhere$/st: no such file", Some("ls -l '/nowhere$'")),
            ("st", "st: command not found", Some("whereis -b st")),
        ] {
            let (said, remedy) = not_found(name);
            assert!(said.contains(found), "{name}: {said:?}");
            assert_eq!(remedy.command.line(), line, "{name}");
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
