//! Finds and reads the statistics segment of a running process.
//!
//! Reads `/proc` and copies the segment; never maps it, never writes. The process is not trusted:
//! what it exposes may be cut short, changing, or nonsense.

use netacc_control::stats::{CONNS_OFFSET, Connection, MEMFD_LINK, ReadError, Snapshot};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::library;

/// What a process tells about itself.
#[derive(Debug)]
pub struct Process {
    /// Pid as we see it.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Header of its segment.
    pub header: Snapshot,
    /// Its open connections.
    pub connections: Vec<Connection>,
}

/// Why there is nothing to tell.
#[derive(Debug)]
pub enum SegmentError {
    /// No such process.
    NoProcess,
    /// It has ended, and its parent has not fetched its status.
    Zombie,
    /// Of another user.
    NotPermitted,
    /// The library is not in it.
    NotLoaded,
    /// The library is in it, but has made no segment.
    NoSegment,
    /// The segment cannot be read.
    Unreadable(ReadError),
    /// Something else.
    Io(io::Error),
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::NoProcess => f.write_str("no such process"),
            SegmentError::Zombie => f.write_str("the process has ended"),
            SegmentError::NotPermitted => {
                f.write_str("not permitted: this takes the user of the process, or CAP_SYS_PTRACE")
            }
            SegmentError::NotLoaded => {
                write!(f, "{} is not loaded: start the program with netacc_run", library::FILE_NAME)
            }
            SegmentError::NoSegment => write!(
                f,
                "{} is loaded, but the process has made or accepted no TCP connection yet",
                library::FILE_NAME
            ),
            SegmentError::Unreadable(error) => error.fmt(f),
            SegmentError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SegmentError {}

impl From<io::Error> for SegmentError {
    fn from(error: io::Error) -> SegmentError {
        const ESRCH: i32 = 3;
        match error.kind() {
            io::ErrorKind::NotFound => SegmentError::NoProcess,
            io::ErrorKind::PermissionDenied => SegmentError::NotPermitted,
            _ if error.raw_os_error() == Some(ESRCH) => SegmentError::NoProcess,
            _ => SegmentError::Io(error),
        }
    }
}

/// Reads the segment of a process.
pub fn read(pid: u32) -> Result<Process, SegmentError> {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let status = fs::read_to_string(directory.join("status"))?;
    if field(&status, "State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return Err(SegmentError::Zombie);
    }
    let own_pid = own_pid(&status).unwrap_or(pid);

    let mut best: Option<(File, Snapshot)> = None;
    let mut problem = None;
    for entry in fs::read_dir(directory.join("fd"))? {
        let link = entry?.path();
        // A descriptor may be closed meanwhile.
        match fs::read_link(&link) {
            Ok(target) if target.as_os_str() == OsStr::new(MEMFD_LINK) => {}
            _ => continue,
        }
        let Some(file) = open(&link)? else { continue };
        match header(&file) {
            Ok(header) if header.pid != own_pid => {}
            Ok(header) => {
                let newer =
                    |(_, best): &(File, Snapshot)| header.started_unix_ns > best.started_unix_ns;
                if best.as_ref().is_none_or(newer) {
                    best = Some((file, header));
                }
            }
            Err(error) => problem = Some(error),
        }
    }
    let Some((file, header)) = best else {
        return Err(match problem {
            Some(error) => SegmentError::Unreadable(error),
            None if is_library_loaded(&directory)? => SegmentError::NoSegment,
            None => SegmentError::NotLoaded,
        });
    };
    Ok(Process {
        pid,
        name: fs::read_to_string(directory.join("comm"))?.trim_end().to_owned(),
        connections: connections(&file, &header)?,
        header,
    })
}

/// The pid of a process in its own pid namespace: the last of `NSpid`.
fn own_pid(status: &str) -> Option<u32> {
    field(status, "NSpid:")?.split_whitespace().last()?.parse().ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start)
}

fn open(link: &Path) -> Result<Option<File>, SegmentError> {
    match File::open(link) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn header(file: &File) -> Result<Snapshot, ReadError> {
    let mut bytes = vec![0; CONNS_OFFSET];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Snapshot::read(&bytes),
        Err(_) => Err(ReadError::Short),
    }
}

fn connections(file: &File, header: &Snapshot) -> Result<Vec<Connection>, SegmentError> {
    const BYTES_MAX: u64 = 1 << 30;
    let there = file.metadata()?.len().saturating_sub(CONNS_OFFSET as u64);
    let wanted = (header.conns_bytes() as u64).min(there).min(BYTES_MAX);
    let mut connections = Vec::new();
    let mut block = vec![0; 1 << 20];
    let mut at = 0;
    while at < wanted {
        let length = (wanted - at).min(block.len() as u64) as usize;
        let part = &mut block[..length];
        file.read_exact_at(part, CONNS_OFFSET as u64 + at)?;
        connections.extend(Connection::read_all(part));
        at += length as u64;
    }
    connections.sort_by_key(|connection| connection.fd);
    Ok(connections)
}

fn is_library_loaded(directory: &Path) -> Result<bool, SegmentError> {
    let maps = fs::read(directory.join("maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    Ok(maps.lines().any(|line| {
        let name = line.rsplit('/').next().unwrap_or("");
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        line.contains('/') && [library::FILE_NAME, library::CARGO_FILE_NAME].contains(&name)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pid_is_the_innermost() {
        assert_eq!(own_pid("Name:\tx\nNSpid:\t4711\t17\t1\n"), Some(1));
        assert_eq!(own_pid("NSpid:\t4711\n"), Some(4711));
        assert_eq!(own_pid("Name:\tx\n"), None);
    }

    #[test]
    fn this_process_has_not_loaded_the_library() {
        let error = read(std::process::id()).unwrap_err();
        assert!(matches!(error, SegmentError::NotLoaded), "{error}");
        assert!(matches!(read(u32::MAX), Err(SegmentError::NoProcess)));
    }
}
