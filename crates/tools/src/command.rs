//! Finds the program that a command really starts, and says whether a preloaded library can serve
//! it.
//!
//! Follows PATH as execvp does, `#!` lines as the kernel does, and `/usr/bin/env PROGRAM` behind
//! them. What cannot be read or recognised is given the benefit of the doubt: this is advice for
//! the operator, and exec has the last word.

use crate::elf::{Elf, Target};
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a program cannot be accelerated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Statically linked.
    Static,
    /// Made by the Go tool chain; dynamically linked or not.
    Go {
        /// Whether it is linked dynamically all the same.
        dynamic: bool,
    },
    /// Starts with more privileges than its caller has.
    Privileged(&'static str),
    /// For another machine than the library.
    OtherTarget {
        /// The program's.
        program: Target,
        /// The library's.
        library: Target,
    },
    /// Its dynamic loader is not glibc's.
    OtherLibc(String),
}

impl Obstacle {
    /// Whether the library may be preloaded all the same, for the sake of the programs that this
    /// one starts.
    pub fn passes_preload_on(&self) -> bool {
        match self {
            // No dynamic loader looks at LD_PRELOAD, or it ignores it.
            Obstacle::Static | Obstacle::Privileged(_) => true,
            // A Go program closes descriptors behind the library's back.
            Obstacle::Go { dynamic } => !dynamic,
            // Its dynamic loader complains, or fails.
            Obstacle::OtherTarget { .. } | Obstacle::OtherLibc(_) => false,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str(
                "it is statically linked, and a preloaded library serves dynamically linked programs only",
            ),
            Obstacle::Go { .. } => f.write_str(
                "it is a Go program, and those make their system calls without the C library",
            ),
            Obstacle::Privileged(how) => write!(
                f,
                "it {how}, and the dynamic loader ignores preloaded libraries of such programs"
            ),
            Obstacle::OtherTarget { program, library } => {
                write!(f, "it is made for {program}, and the library for {library}")
            }
            Obstacle::OtherLibc(loader) => write!(
                f,
                "its dynamic loader is {loader}, and the library needs that of the GNU C library"
            ),
        }
    }
}

/// A program on the way from the command to what runs in the end.
#[derive(Debug)]
pub struct Verdict {
    /// The file.
    pub program: PathBuf,
    /// What stands against it.
    pub obstacle: Obstacle,
}

/// The file that execvp would start; `None` when there is none.
pub fn find(command: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return file.exists().then_some(file);
    }
    if command.is_empty() {
        return None;
    }
    // What glibc takes when PATH is not set.
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path)
        .map(|directory| {
            if directory.as_os_str().is_empty() {
                Path::new(".").join(command)
            } else {
                directory.join(command)
            }
        })
        .find(|file| is_executable(file))
}

/// Examines a program and, if it is a script, its interpreters. The first obstacle is the verdict.
pub fn examine(program: &Path, path: Option<&OsStr>, library: Target) -> Option<Verdict> {
    // The kernel follows four interpreters; each of them may be `env` and name one more program.
    const STEPS_MAX: usize = 12;
    let mut next = Some(program.to_path_buf());
    let mut arguments: Vec<OsString> = Vec::new();
    for _ in 0..STEPS_MAX {
        let program = next.take()?;
        if let Some(how) = privilege(&program) {
            let obstacle = Obstacle::Privileged(how);
            return Some(Verdict { program, obstacle });
        }
        match Content::of(&program)? {
            Content::Script { interpreter, argument } => {
                arguments = argument.into_iter().collect();
                next = Some(interpreter);
            }
            Content::Elf(elf) => {
                if let Some(obstacle) = obstacle(&program, &elf, library) {
                    return Some(Verdict { program, obstacle });
                }
                if program.file_name() == Some(OsStr::new("env")) {
                    let named = env_program(&std::mem::take(&mut arguments))?;
                    next = find(&named, path);
                }
            }
        }
    }
    None
}

/// The dynamic loader of a program that is no script.
pub fn loader(program: &Path) -> Option<String> {
    match Content::of(program)? {
        Content::Elf(elf) => elf.interpreter,
        Content::Script { .. } => None,
    }
}

/// What runs a script: its interpreter, or what `env` starts. `None`: it is no script.
pub fn interpreter(program: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let Content::Script { interpreter, argument } = Content::of(program)? else { return None };
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Some(interpreter);
    }
    let arguments: Vec<OsString> = argument.into_iter().collect();
    find(&env_program(&arguments)?, path)
}

/// Whether a script's first line has `env` find its interpreter, which so is a program of its own.
pub fn is_started_by_env(program: &Path) -> bool {
    let Some(Content::Script { interpreter, .. }) = Content::of(program) else { return false };
    interpreter.file_name() == Some(OsStr::new("env"))
}

enum Content {
    Elf(Elf),
    Script { interpreter: PathBuf, argument: Option<OsString> },
}

impl Content {
    fn of(program: &Path) -> Option<Content> {
        // The kernel looks at that many bytes of a script.
        let mut head = [0; 256];
        // (A pipe would have to be opened by a writer, too.)
        if !std::fs::metadata(program).ok()?.is_file() {
            return None;
        }
        let mut file = File::open(program).ok()?;
        let mut length = 0;
        while length < head.len() {
            match file.read(&mut head[length..]).ok()? {
                0 => break,
                more => length += more,
            }
        }
        let head = &head[..length];
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
            let mut words = line.splitn(2, |byte| matches!(byte, b' ' | b'\t'));
            let interpreter = words.next().filter(|word| !word.is_empty())?;
            let argument = words.next().map(<[u8]>::trim_ascii);
            return Some(Content::Script {
                interpreter: PathBuf::from(OsStr::from_bytes(interpreter)),
                argument: argument.map(|text| OsStr::from_bytes(text).to_owned()),
            });
        }
        match Elf::read(file) {
            Ok(Some(elf)) => Some(Content::Elf(elf)),
            // execvp hands a file of unknown format to the shell.
            Ok(None) => {
                Some(Content::Script { interpreter: PathBuf::from("/bin/sh"), argument: None })
            }
            Err(_) => None,
        }
    }
}

fn obstacle(program: &Path, elf: &Elf, library: Target) -> Option<Obstacle> {
    if elf.target != library {
        let program = elf.target;
        return Some(Obstacle::OtherTarget { program, library });
    }
    if elf.go {
        let dynamic = elf.interpreter.is_some();
        return Some(Obstacle::Go { dynamic });
    }
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let is_glibc_loader = |name: &str| {
        ["ld-linux", "ld64.so", "ld.so", "ld-2."].iter().any(|start| name.starts_with(start))
    };
    match &elf.interpreter {
        Some(loader) if is_glibc_loader(&name(Path::new(loader))) => None,
        Some(loader) => Some(Obstacle::OtherLibc(loader.clone())),
        // The loader itself, called with a program as its argument.
        None if elf.dynamic && is_glibc_loader(&name(program)) => None,
        None => Some(Obstacle::Static),
    }
}

/// How the program gets privileges that we do not have; root's programs get none.
fn privilege(program: &Path) -> Option<&'static str> {
    const SET_UID: u32 = 0o4000;
    const SET_GID_EXECUTABLE: u32 = 0o2010;
    let status = std::fs::metadata(program).ok()?;
    let user = rustix::process::getuid();
    let group = rustix::process::getgid();
    if status.mode() & SET_UID != 0 && status.uid() != user.as_raw() {
        return Some("is set-user-ID");
    }
    if status.mode() & SET_GID_EXECUTABLE == SET_GID_EXECUTABLE && status.gid() != group.as_raw() {
        return Some("is set-group-ID");
    }
    let mut value = [0u8; 64];
    let has_capabilities = rustix::fs::getxattr(program, "security.capability", &mut value[..])
        .is_ok_and(|length| length > 0);
    if has_capabilities && !user.is_root() {
        return Some("has file capabilities");
    }
    None
}

/// The program that `env` starts, given the one argument of a `#!` line.
fn env_program(arguments: &[OsString]) -> Option<OsString> {
    let line = arguments.first()?.as_bytes();
    let (line, split) = match line.strip_prefix(b"-S") {
        Some(rest) => (rest, true),
        None => match line.strip_prefix(b"--split-string") {
            Some(rest) => (rest.strip_prefix(b"=").unwrap_or(rest), true),
            None => (line, false),
        },
    };
    if !split {
        let plain = !line.starts_with(b"-") && !line.contains(&b'=');
        return plain.then(|| OsStr::from_bytes(line).to_owned());
    }
    let word = line
        .split(|byte| byte.is_ascii_whitespace())
        .find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))?;
    Some(OsStr::from_bytes(word).to_owned())
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_lines() {
        for (line, program) in [
            ("python3", Some("python3")),
            ("-S python3 -u", Some("python3")),
            ("-S A=1 -i python3 -u", Some("python3")),
            ("--split-string=node --flag", Some("node")),
            ("-i", None),
        ] {
            let found = env_program(&[OsString::from(line)]);
            assert_eq!(found, program.map(OsString::from), "{line}");
        }
        assert_eq!(env_program(&[]), None);
    }

    #[test]
    fn path_is_searched_as_execvp_does() {
        assert!(find(OsStr::new("sh"), None).is_some());
        assert!(find(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin"))).is_some());
        assert_eq!(find(OsStr::new("sh"), Some(OsStr::new("/nowhere"))), None);
        assert_eq!(find(OsStr::new("/nowhere/sh"), None), None);
        assert_eq!(find(OsStr::new(""), None), None);
        assert_eq!(find(OsStr::new("passwd"), Some(OsStr::new("/etc"))), None);
    }
}
