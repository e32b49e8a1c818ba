//! Finds the program that a command really starts, and says whether a preloaded library can serve
//! it.
//!
//! Follows PATH as execvp does, `#!` lines as the kernel does, and `/usr/bin/env PROGRAM` behind
//! them. What cannot be read or recognised is given the benefit of the doubt: this is advice for
//! the operator, and exec has the last word.

mod env_line;
mod start;

pub use start::{Broken, Named, NoStart, cannot_start};

use crate::elf::{Elf, Target};
use env_line::EnvLine;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
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
    /// A script whose first line has `env` start the program without LD_PRELOAD.
    DropsPreload,
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
            // Nothing gets past `env`.
            Obstacle::DropsPreload => false,
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
            Obstacle::DropsPreload => {
                f.write_str("its first line has env start it without LD_PRELOAD")
            }
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
    let mut next = Some(program.to_path_buf());
    let mut script = program.to_path_buf();
    let mut argument: Option<OsString> = None;
    for _ in 0..STEPS_MAX {
        let program = next.take()?;
        match Content::of(&program)? {
            // (The kernel minds no privileges of a script.)
            Content::Script { interpreter, argument: its } => {
                argument = its;
                next = Some(interpreter);
                script = program;
            }
            Content::Elf(elf) => {
                if let Some(how) = privilege(&program) {
                    let obstacle = Obstacle::Privileged(how);
                    return Some(Verdict { program, obstacle });
                }
                if let Some(obstacle) = obstacle(&program, &elf, library) {
                    return Some(Verdict { program, obstacle });
                }
                if is_env(&program) {
                    let EnvLine { program, drops_preload } =
                        env_line::read(argument.take().as_deref());
                    if drops_preload {
                        let obstacle = Obstacle::DropsPreload;
                        return Some(Verdict { program: script, obstacle });
                    }
                    next = find(&program?, path);
                }
            }
        }
    }
    None
}

/// The kernel follows five interpreters; each of them may be `env` and name one more program.
const STEPS_MAX: usize = 12;

fn is_env(program: &Path) -> bool {
    program.file_name() == Some(OsStr::new("env"))
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
    if !is_env(&interpreter) {
        return Some(interpreter);
    }
    find(&env_line::read(argument.as_deref()).program?, path)
}

/// Whether a script's first line has `env` find its interpreter, which so is a program of its own.
pub fn is_started_by_env(program: &Path) -> bool {
    let Some(Content::Script { interpreter, .. }) = Content::of(program) else { return false };
    is_env(&interpreter)
}

enum Content {
    Elf(Elf),
    Script { interpreter: PathBuf, argument: Option<OsString> },
}

impl Content {
    /// `None`: it cannot be read, or is neither.
    fn of(program: &Path) -> Option<Content> {
        Content::read(program).ok().flatten()
    }

    /// The same; what is damaged is an error of `InvalidData`.
    fn read(program: &Path) -> io::Result<Option<Content>> {
        // The kernel looks at that many bytes of a script.
        let mut head = Vec::with_capacity(256);
        // (A pipe would have to be opened by a writer, too.)
        if !std::fs::metadata(program)?.is_file() {
            return Ok(None);
        }
        let file = File::open(program)?;
        (&file).take(256).read_to_end(&mut head)?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = trim(line.split(|byte| *byte == b'\n').next().unwrap_or_default());
            let mut words = line.splitn(2, is_blank);
            let Some(interpreter) = words.next().filter(|word| !word.is_empty()) else {
                return Ok(None);
            };
            let argument = words.next().map(trim);
            return Ok(Some(Content::Script {
                interpreter: PathBuf::from(OsStr::from_bytes(interpreter)),
                argument: argument.map(|text| OsStr::from_bytes(text).to_owned()),
            }));
        }
        Ok(Some(match Elf::read(file)? {
            Some(elf) => Content::Elf(elf),
            // execvp hands a file of unknown format to the shell.
            None => Content::Script { interpreter: PathBuf::from("/bin/sh"), argument: None },
        }))
    }
}

/// What the kernel takes for the space between words. (A carriage return is part of one.)
fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trim(line: &[u8]) -> &[u8] {
    let Some(first) = line.iter().position(|byte| !is_blank(byte)) else { return b"" };
    let last = line.iter().rposition(|byte| !is_blank(byte)).unwrap_or(first);
    line.get(first..=last).unwrap_or_default()
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
    let is_of_musl = |loader: &Path| {
        loader.canonicalize().is_ok_and(|file| file.to_string_lossy().contains("musl"))
    };
    match &elf.interpreter {
        // (Another name for musl's is no glibc.)
        Some(loader) if is_of_musl(Path::new(loader)) => Some(Obstacle::OtherLibc(loader.clone())),
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

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
