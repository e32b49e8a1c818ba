//! What a command cannot be started for at all, with the library or without.

use super::{Content, STEPS_MAX, env_line, find, is_env, is_executable};
use crate::elf::{Elf, Target};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// It is not there.
    Missing,
    /// A directory, a pipe, a device.
    NotAFile,
    /// Nobody may execute it.
    NoExecuteBit,
    /// This user may not, or nobody may on that file system.
    NotExecutable,
    /// It begins as ELF does, and is none.
    Damaged,
    /// It is shorter than its own headers say.
    CutOff {
        /// Its length.
        is: u64,
        /// What it has to be, at least.
        needs: u64,
    },
    /// ELF, but an object file or a core.
    NotAProgram,
    /// More interpreters than the kernel follows.
    Loop,
}

/// Why a command cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoStart {
    /// The file that is at fault.
    pub file: PathBuf,
    /// What is wrong with it.
    pub what: Broken,
    /// What named it, unless it is the command.
    pub named_by: Option<Named>,
}

/// What names a file that a program is started by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// The first line of that script.
    FirstLine(PathBuf),
    /// `env` in the first line of that script, by PATH.
    Env(PathBuf),
    /// That program: it is its dynamic loader.
    Program(PathBuf),
}

impl NoStart {
    /// Its first line was written where lines end otherwise.
    pub fn has_carriage_return(&self) -> bool {
        self.what == Broken::Missing && self.file.as_os_str().as_bytes().ends_with(b"\r")
    }
}

impl fmt::Display for NoStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.named_by {
            Some(Named::FirstLine(script) | Named::Env(script)) if self.has_carriage_return() => {
                let script = script.display();
                return write!(
                    f,
                    "{script} cannot be started: its first line ends in a carriage return"
                );
            }
            None => write!(f, "{file} cannot be started: ")?,
            Some(Named::FirstLine(by) | Named::Env(by) | Named::Program(by)) => {
                write!(f, "{} cannot be started: ", by.display())?;
            }
        }
        match &self.named_by {
            None => f.write_str("it ")?,
            Some(Named::FirstLine(_)) => write!(f, "{file}, which its first line names, ")?,
            Some(Named::Env(_)) => write!(f, "{file}, which its first line has env start, ")?,
            Some(Named::Program(_)) => write!(f, "{file}, its dynamic loader, ")?,
        }
        match &self.what {
            Broken::Missing => f.write_str("does not exist"),
            Broken::NotAFile => f.write_str("is not a file"),
            Broken::NoExecuteBit => f.write_str("has no execute bit"),
            Broken::NotExecutable => {
                f.write_str("may not be executed by this user, or not on that file system")
            }
            Broken::Damaged => f.write_str("is a damaged ELF file"),
            Broken::CutOff { is, needs } => {
                write!(f, "is cut off: it has {is} bytes, and needs {needs}")
            }
            Broken::NotAProgram => f.write_str("is an ELF file, but no program"),
            Broken::Loop => f.write_str("is one interpreter more than the kernel follows"),
        }
    }
}

/// What a program cannot be started for on this `machine`. Of what cannot be read, or is made for
/// another one, nothing is said.
pub fn cannot_start(program: &Path, path: Option<&OsStr>, machine: Target) -> Option<NoStart> {
    let mut file = program.to_path_buf();
    let mut named_by = None;
    let mut script = file.clone();
    let mut argument: Option<OsString> = None;
    for _ in 0..STEPS_MAX {
        let no_start = |what| {
            let (file, named_by) = (file.clone(), named_by.clone());
            Some(NoStart { file, what, named_by })
        };
        if let Some(what) = not_runnable(&file) {
            return no_start(what);
        }
        match Content::read(&file) {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return no_start(Broken::Damaged);
            }
            Err(_) | Ok(None) => return None,
            Ok(Some(Content::Script { interpreter, argument: its })) => {
                named_by = Some(Named::FirstLine(file.clone()));
                (script, argument, file) = (file, its, interpreter);
            }
            Ok(Some(Content::Elf(elf))) => {
                if let Some(what) = damaged(&file, &elf) {
                    return no_start(what);
                }
                if elf.target != machine {
                    return None;
                }
                if let Some(missing) = elf.interpreter.and_then(|it| loader(&it, &file)) {
                    return Some(missing);
                }
                if !is_env(&file) {
                    return None;
                }
                let name = env_line::read(argument.take().as_deref()).program?;
                named_by = Some(Named::Env(script.clone()));
                // (Not found by PATH: it is named as it stands there.)
                file = find(&name, path).unwrap_or_else(|| PathBuf::from(name));
            }
        }
    }
    Some(NoStart { file, what: Broken::Loop, named_by })
}

/// What no file can be executed with.
fn not_runnable(file: &Path) -> Option<Broken> {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(Broken::Missing),
        Err(_) => None,
        Ok(status) if !status.is_file() => Some(Broken::NotAFile),
        Ok(status) if status.permissions().mode() & 0o111 == 0 => Some(Broken::NoExecuteBit),
        Ok(_) => (!is_executable(file)).then_some(Broken::NotExecutable),
    }
}

fn damaged(file: &Path, elf: &Elf) -> Option<Broken> {
    let is = std::fs::metadata(file).ok()?.len();
    match elf.needs {
        _ if !elf.runs => Some(Broken::NotAProgram),
        needs if needs > is => Some(Broken::CutOff { is, needs }),
        _ => None,
    }
}

/// A dynamic loader that is not there.
fn loader(loader: &str, program: &Path) -> Option<NoStart> {
    let file = PathBuf::from(loader);
    let what = not_runnable(&file).filter(|what| *what == Broken::Missing)?;
    Some(NoStart { file, what, named_by: Some(Named::Program(program.to_path_buf())) })
}
