//! What a killed process may have left behind, as the kernel shows it: processes, files, segments,
//! names of sockets, and what the other end still holds. Nothing here asks the library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The processes that live: pids, and with each what `f` reads from its directory.
fn processes<T>(f: impl Fn(i32, &Path) -> Option<T>) -> Vec<T> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    dir.flatten()
        .filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.path())))
        .filter_map(|(pid, path): (i32, PathBuf)| f(pid, &path))
        .collect()
}

/// The fields of `/proc/PID/stat` behind the name, which may hold spaces: state, parent, group,
/// session.
fn stat(path: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(path.join("stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(String::from).collect())
}

/// Processes of a session, or with `marker` in their environment: what a process and its
/// descendants are known by.
pub fn descendants(session: i32, marker: &str) -> Vec<String> {
    processes(|pid, path| {
        let fields = stat(path)?;
        let marked = || {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == marker.as_bytes())
        };
        (fields.get(3)?.parse() == Ok(session) || marked())
            .then(|| format!("process {pid} ({})", fields[0]))
    })
}

/// The abstract socket names with which a process of this network namespace offers shared memory
/// for a TCP port; with each the inode.
pub fn adverts(port: u16) -> Vec<(String, u64)> {
    let prefix = format!("@netacc/1/{port}/");
    fs::read_to_string("/proc/net/unix")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let name = fields.get(7)?;
            name.starts_with(&prefix)
                .then(|| Some((name.to_string(), fields.get(6)?.parse().ok()?)))?
        })
        .collect()
}

/// Adverts of a port, unless somebody outside of `ours` holds them: the port may have been given to
/// a stranger since.
pub fn orphaned_adverts(port: u16, ours: &[i32]) -> Vec<String> {
    adverts(port)
        .into_iter()
        .filter_map(|(name, inode)| {
            let holders = holders(inode);
            let strangers = holders.iter().any(|pid| !ours.contains(pid));
            (!strangers).then(|| format!("socket {name}, held by {holders:?}"))
        })
        .collect()
}

fn holders(inode: u64) -> Vec<i32> {
    let wanted = format!("socket:[{inode}]");
    processes(|pid, path| fds(path).iter().any(|(_, target)| *target == wanted).then_some(pid))
}

/// The descriptors of a process and what each is.
fn fds(path: &Path) -> Vec<(PathBuf, String)> {
    let Ok(dir) = fs::read_dir(path.join("fd")) else {
        return Vec::new();
    };
    dir.flatten()
        .filter_map(|e| {
            let target = fs::read_link(e.path()).ok()?;
            Some((e.path(), target.to_string_lossy().into_owned()))
        })
        .collect()
}

/// The trace of a process, which is kept on purpose when it was killed (`tests/apps/trace.sh`).
fn is_trace(path: &Path) -> bool {
    path.to_string_lossy().starts_with("/dev/shm/netacc-trace.")
}

/// Files with a name that a process could write: opened for writing, or mapped shared and writable.
/// What has no name (memfd, deleted) goes with its last user.
pub fn writable_files(pid: i32) -> BTreeSet<PathBuf> {
    let path = PathBuf::from(format!("/proc/{pid}"));
    let regular = |target: &str| {
        !is_trace(Path::new(target)) && fs::metadata(target).is_ok_and(|m| m.is_file())
    };
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    for (link, target) in fds(&path) {
        // The permissions of the link in /proc are the mode that it was opened with.
        let writes = fs::symlink_metadata(&link).is_ok_and(|m| m.mode() & 0o200 != 0);
        if writes && regular(&target) {
            found.insert(target.into());
        }
    }
    for line in fs::read_to_string(path.join("maps")).unwrap_or_default().lines() {
        let mut fields = line.split_whitespace();
        let shared = fields.nth(1).is_some_and(|p| p.contains("ws") || p.contains("wxs"));
        let target = fields.nth(3).unwrap_or("");
        if shared && regular(target) {
            found.insert(target.into());
        }
    }
    found
}

/// System V segments that a process made.
pub fn sysv_segments(pid: i32) -> Vec<String> {
    fs::read_to_string("/proc/sysvipc/shm")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter(|line| line.split_whitespace().nth(4).and_then(|p| p.parse().ok()) == Some(pid))
        .map(|line| format!("System V segment {line}"))
        .collect()
}

/// Where segments, locks and sockets are put, and where everybody puts everything.
const PLACES: [&str; 6] = ["/dev/shm", "/dev/mqueue", "/dev/hugepages", "/run", "/var/tmp", "/tmp"];

/// The names in those directories.
pub fn names() -> BTreeSet<PathBuf> {
    PLACES
        .iter()
        .map(PathBuf::from)
        .chain([std::env::temp_dir()])
        .flat_map(fs::read_dir)
        .flat_map(|dir| dir.flatten().map(|e| e.path()))
        .collect()
}

/// The new names that are ours by the look of them: with a pid of `ours`, or with the library's
/// name, except in /tmp: other tests of the project put theirs there.
pub fn new_names(before: &BTreeSet<PathBuf>, ours: &BTreeSet<i32>) -> Vec<String> {
    names()
        .difference(before)
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let pid = name
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|digits| digits.parse().ok())
                .any(|n: i32| ours.contains(&n));
            let common = path.starts_with("/tmp") || path.starts_with(std::env::temp_dir());
            let is_named = !common && (name.contains("nacc") || name.contains("netacc"));
            !is_trace(path) && (pid || is_named)
        })
        .map(|path| format!("file {}", path.display()))
        .collect()
}

/// How many of each kind a process holds: descriptors, mappings of memory files, threads. (Its
/// trace, one file that it maps once, may come with any connection, and stays.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings(BTreeMap<String, usize>);

impl Holdings {
    pub fn of(pid: i32) -> Holdings {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let mut kinds = BTreeMap::new();
        let mut count = |kind: String| *kinds.entry(kind).or_insert(0) += 1;
        for (_, target) in fds(&path) {
            if is_trace(Path::new(&target)) {
                continue;
            }
            // The number of a socket or pipe is its own, the name of an anon_inode its kind's.
            let kind = match target.split_once(":[") {
                Some((kind, number)) if number.starts_with(|c: char| c.is_ascii_digit()) => kind,
                _ => &target,
            };
            count(format!("fd {kind}"));
        }
        for line in fs::read_to_string(path.join("maps")).unwrap_or_default().lines() {
            let target = line.split_whitespace().nth(5).unwrap_or("");
            let memory = target.starts_with("/memfd:") || target.starts_with("/dev/shm");
            if memory && !is_trace(Path::new(target)) {
                count(format!("mapping {target}"));
            }
        }
        let threads = fs::read_dir(path.join("task")).map_or(0, Iterator::count);
        kinds.insert("thread".into(), threads);
        Holdings(kinds)
    }

    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// What is there beyond `other`.
    pub fn beyond(&self, other: &Holdings) -> Vec<String> {
        self.0
            .iter()
            .filter(|(kind, n)| **n > other.0.get(*kind).copied().unwrap_or(0))
            .map(|(kind, n)| {
                let had = other.0.get(kind).copied().unwrap_or(0);
                format!("{kind}: {n}, was {had}")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    // The tests of this program run beside one another, so each looks for its own thing only.

    #[test]
    fn a_process_shows_in_what_it_holds() {
        let fd = sys::anonymous_file(b"x").unwrap();
        let held = Holdings::of(sys::getpid());
        sys::close(fd).unwrap();
        let memfds = held.0["fd /memfd:test (deleted)"];
        assert!(memfds >= 1 && held.0["thread"] >= 1);
        let mut less = held.clone();
        less.0.remove("fd /memfd:test (deleted)");
        assert_eq!(held.beyond(&less), [format!("fd /memfd:test (deleted): {memfds}, was 0")]);
        assert_eq!(less.beyond(&held), [""; 0]);
    }

    #[test]
    fn a_written_file_shows_and_a_read_one_does_not() {
        let path = std::env::temp_dir().join(format!("netacc-left-{}", sys::getpid()));
        let name = format!("file {}", path.display());
        let before = names();
        let open = fs::File::create(&path).unwrap();
        let us = BTreeSet::from([sys::getpid()]);
        assert!(new_names(&before, &us).contains(&name));
        // In /tmp, with the pid of a process that is not among ours.
        assert!(!new_names(&before, &BTreeSet::new()).contains(&name));
        assert!(writable_files(sys::getpid()).contains(&path));
        drop(open);
        let open = fs::File::open(&path).unwrap();
        assert!(!writable_files(sys::getpid()).contains(&path));
        drop(open);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_advert_has_a_holder() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        // Port 0 is nobody's.
        let address = SocketAddr::from_abstract_name(b"netacc/1/0/7").unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let me = sys::getpid();
        assert_eq!(orphaned_adverts(0, &[me]), [format!("socket @netacc/1/0/7, held by [{me}]")]);
        assert_eq!(orphaned_adverts(0, &[]), [""; 0]);
        drop(listener);
        assert_eq!(adverts(0), []);
    }

    #[test]
    fn a_child_is_found_by_its_mark() {
        let marker = format!("NETACC_TEST_ROUND=self-{}", sys::getpid());
        let (key, value) = marker.split_once('=').unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("60").env(key, value).spawn().unwrap();
        // spawn returns when exec has left the old memory, a moment before the new environment can
        // be read.
        let mut found = descendants(-1, &marker);
        let late = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while found.is_empty() && std::time::Instant::now() < late {
            found = descendants(-1, &marker);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.len() == 1 && found[0].starts_with(&format!("process {}", child.id())));
        assert_eq!(descendants(-1, &marker), [""; 0]);
    }
}
