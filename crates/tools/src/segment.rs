//! Finds and reads the statistics segment of a running process.
//!
//! Reads `/proc` and copies the segment; never maps it, never writes. The process is not trusted:
//! what it exposes may be cut short, changing, or nonsense.

use netacc_control::stats::{
    CONNS_OFFSET, LIBRARY, MEMFD_LINK, RECORD_BYTES, ReadError, Snapshot, Sums,
};
use rustix::fs::{
    AtFlags, MemfdFlags, Mode, OFlags, RawDir, StatxFlags, lstat, memfd_create, readlinkat_raw,
    statx,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::connections::Connections;
use crate::hidden;
use crate::library;

/// The version of these tools, which is that of the library beside them.
const VERSION: [u16; 3] = [(LIBRARY >> 32) as u16, (LIBRARY >> 16) as u16, LIBRARY as u16];

/// What a process tells about itself.
#[derive(Debug)]
pub struct Process {
    /// Pid as we see it.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// For how long it has been running.
    pub uptime: Option<Duration>,
    /// The container that it is in.
    pub container: Option<String>,
    /// What the next look need not look for.
    pub known: Known,
    /// Header of its segment.
    pub header: Snapshot,
    /// What its open connections say together.
    pub open: Sums,
    /// Its open connections; none where they were not asked for ([`Depth`]).
    pub connections: Connections,
}

/// How much of a process's open connections is asked for.
#[derive(Debug)]
pub enum Depth<'a> {
    /// What they say together.
    Sums,
    /// Each of them, in the memory of one of these, which are not needed any more.
    Each(&'a mut Vec<Connections>),
}

/// What of a process is not looked for at each look: it may have ten thousand descriptors, and as
/// many mappings.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The descriptor of its segment.
    pub at: u32,
    /// Of which segment this is known.
    started_unix_ns: u64,
    /// The library's file has been replaced, or removed, since the process loaded it.
    is_library_replaced: bool,
    /// When that was asked.
    asked: Instant,
}

/// So long it is taken for granted which library a program has loaded.
const ASKED_FOR: Duration = Duration::from_secs(10);
/// So long, of one without the library whose address space has the same size as before.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

impl Known {
    /// What is known of a process with this segment, or is asked now.
    fn of(
        segment: &Segment,
        before: Option<Known>,
        directory: &Path,
    ) -> Result<Known, SegmentError> {
        let started_unix_ns = segment.header.started_unix_ns;
        let is_still_so =
            |k: &Known| k.started_unix_ns == started_unix_ns && k.asked.elapsed() < ASKED_FOR;
        if let Some(known) = before.filter(is_still_so) {
            return Ok(Known { at: segment.at, ..known });
        }
        let is_library_replaced = loaded_library(directory)? == Some(Loaded::Replaced);
        Ok(Known { at: segment.at, started_unix_ns, is_library_replaced, asked: Instant::now() })
    }

    #[cfg(test)]
    pub(crate) fn sample(is_library_replaced: bool) -> Known {
        Known { at: 3, started_unix_ns: 0, is_library_replaced, asked: Instant::now() }
    }
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
            SegmentError::NotPermitted if may_trace() => f.write_str(
                "not permitted, although this has CAP_SYS_PTRACE: the process is guarded by a \
                 security module, or belongs to a user namespace above this one",
            ),
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

/// The segment of a process, open for reading.
#[derive(Debug)]
pub struct Segment {
    /// Its descriptor there.
    pub at: u32,
    /// The file.
    pub file: File,
    /// What its header said when it was found.
    pub header: Snapshot,
}

impl Segment {
    /// Finds that of a process.
    pub fn of(pid: u32) -> Result<Segment, SegmentError> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        find(&directory, own_pid(&status(pid)?).unwrap_or(pid))
    }

    /// What its header says now.
    pub fn now(&self) -> Result<Snapshot, ReadError> {
        header(&self.file)
    }
}

/// The users of a process: real, effective, saved, and for files.
pub fn users(pid: u32) -> Result<String, SegmentError> {
    let status = status(pid)?;
    Ok(field(&status, "Uid:").unwrap_or_default().to_owned())
}

/// What `/proc/PID/status` says of a process that is not over.
fn status(pid: u32) -> Result<String, SegmentError> {
    let status = lossy(&PathBuf::from(format!("/proc/{pid}/status"))).map_err(SegmentError::from);
    let status = status.map_err(|error| match error {
        SegmentError::NoProcess if hidden::is_hidden(pid) => SegmentError::NotPermitted,
        error => error,
    })?;
    if field(&status, "State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return Err(SegmentError::Zombie);
    }
    Ok(status)
}

/// Reads the segment of a process.
pub fn read(pid: u32) -> Result<Process, SegmentError> {
    let mut process = look(pid, None, Depth::Each(&mut Vec::new()))?;
    process.complete();
    Ok(process)
}

impl Process {
    /// Whether the library's file has been replaced, or removed, since the process loaded it. (Of a
    /// process that is looked at again and again this may be ten seconds old.)
    pub fn is_library_replaced(&self) -> bool {
        self.known.is_library_replaced
    }

    /// Whether the library is of a version before this one's, wherever its file lies (another path,
    /// an image): it says so itself, or does not know of versions yet.
    pub fn is_library_older(&self) -> bool {
        self.header.library.is_none_or(|is| is < VERSION)
    }

    /// Asks the kernel for the addresses that the library has not asked for.
    pub fn complete(&mut self) {
        let directory = PathBuf::from(format!("/proc/{}", self.pid));
        self.connections.complete(&directory);
    }
}

/// The same without the addresses of connections that the library has not asked for, where this is
/// known from the last look.
pub fn look(pid: u32, before: Option<Known>, depth: Depth<'_>) -> Result<Process, SegmentError> {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let status = status(pid)?;
    let uid = field(&status, "Uid:").and_then(|ids| ids.split_whitespace().next()?.parse().ok());
    let own_pid = own_pid(&status).unwrap_or(pid);
    let there = before.filter(|known| is_written(&directory, known.at));
    let there = there.and_then(|known| segment(&directory, known.at, own_pid).ok().flatten());
    let segment = match there {
        Some(there) => there,
        None => find(&directory, own_pid)?,
    };
    let (open, connections) = connections(&segment, depth)?;
    let stat = Stat::of(pid)?;
    Ok(Process {
        known: Known::of(&segment, before, &directory)?,
        pid,
        name: stat.name,
        uid: uid.unwrap_or(0),
        uptime: stat.began.map(time_since),
        container: lossy(&directory.join("cgroup")).ok().and_then(|groups| container(&groups)),
        open,
        connections,
        header: segment.header,
    })
}

/// So many segments a process may have to write to, its own or another's. Each is looked at for
/// some milliseconds where it does not keep still.
const SEEN_MAX: u32 = 64;

/// Room for names of descriptors that are asked for at once.
const NAMES_BYTES: usize = 1 << 15;

/// The newest segment of the process's own.
fn find(directory: &Path, own_pid: u32) -> Result<Segment, SegmentError> {
    let mut best: Option<Segment> = None;
    let (mut problem, mut seen) = (None, 0);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptors = rustix::fs::open(directory.join("fd"), flags, Mode::empty());
    let descriptors = descriptors.map_err(io::Error::from)?;
    let mut names = Vec::with_capacity(NAMES_BYTES);
    let mut names = RawDir::new(&descriptors, names.spare_capacity_mut());
    while let Some(entry) = names.next().filter(|_| seen < SEEN_MAX) {
        let entry = entry.map_err(io::Error::from)?;
        // (There may be ten thousand: for each one call, from here, and no memory.)
        if !is_segments(&descriptors, entry.file_name())? {
            continue;
        }
        let Some(at) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if !is_written(directory, at) {
            continue;
        }
        seen += 1;
        match segment(directory, at, own_pid) {
            Ok(Some(found)) => {
                let newer =
                    |best: &Segment| found.header.started_unix_ns > best.header.started_unix_ns;
                if best.as_ref().is_none_or(newer) {
                    best = Some(found);
                }
            }
            Ok(None) => {}
            Err(SegmentError::Unreadable(error)) => problem = Some(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(best) = best {
        return Ok(best);
    }
    Err(match (problem, loaded_library(directory)?) {
        (Some(error), _) => SegmentError::Unreadable(error),
        (None, Some(_)) => SegmentError::NoSegment,
        (None, None) => SegmentError::NotLoaded,
    })
}

/// Whether a link among a process's descriptors is called as those to a segment are.
fn is_segments(descriptors: &OwnedFd, link: &CStr) -> Result<bool, SegmentError> {
    let mut name = [0; MEMFD_LINK.len() + 1];
    match readlinkat_raw(descriptors, link, &mut name) {
        Ok(length) => Ok(name.get(..length) == Some(MEMFD_LINK.as_bytes())),
        // Whoever may not follow one may follow none.
        Err(Errno::ACCESS) => Err(SegmentError::NotPermitted),
        // It may be closed meanwhile; and there are `.` and `..`.
        Err(_) => Ok(false),
    }
}

/// Whether a descriptor is one to write by, as a library's is. Those of who only looks, as these
/// tools do, say nothing of the process that has them.
fn is_written(directory: &Path, at: u32) -> bool {
    let link = lstat(directory.join("fd").join(at.to_string()));
    link.is_ok_and(|link| Mode::from_raw_mode(link.st_mode).contains(Mode::WUSR))
}

/// What a descriptor leads to, if it is a segment of the process's own.
fn segment(directory: &Path, at: u32, own_pid: u32) -> Result<Option<Segment>, SegmentError> {
    let link = directory.join("fd").join(at.to_string());
    // A descriptor may be closed meanwhile.
    match fs::read_link(&link) {
        Ok(target) if target.as_os_str() == OsStr::new(MEMFD_LINK) => {}
        _ => return Ok(None),
    }
    let Some(file) = open(&link)? else { return Ok(None) };
    let header = header(&file).map_err(SegmentError::Unreadable)?;
    Ok((header.pid == own_pid).then_some(Segment { at, file, header }))
}

/// The pid of a process in its own pid namespace: the last of `NSpid`.
pub fn own_pid(status: &str) -> Option<u32> {
    field(status, "NSpid:")?.split_whitespace().last()?.parse().ok()
}

/// What a line of `/proc/PID/status` says behind its name.
pub fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start)
}

/// Opens what a link of `/proc/PID/fd` leads to, if it is a memfd. Whoever has mounts of their own
/// can give another file that name, and one that is opened may keep us waiting: a pipe, a file of
/// FUSE. Where it is, is asked without a question to its file system.
fn open(link: &Path) -> Result<Option<File>, SegmentError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let it = match rustix::fs::open(link, flags, Mode::empty()) {
        Ok(it) => it,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    if device(&it)? != device_of_memory()? {
        return Ok(None);
    }
    Ok(Some(File::open(format!("/proc/self/fd/{}", it.as_raw_fd()))?))
}

/// The device that memfds are on: the same one until the system ends.
pub fn device_of_memory() -> io::Result<(u32, u32)> {
    static KNOWN: OnceLock<(u32, u32)> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let memory = memfd_create(c"netacc-compared", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let found = device(memory)?;
    Ok(*KNOWN.get_or_init(|| found))
}

fn device(file: impl AsFd) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let data = statx(file, c"", flags, StatxFlags::empty())?;
    Ok((data.stx_dev_major, data.stx_dev_minor))
}

/// A configuration that is being changed is read again, in the hope of a whole one.
fn header(file: &File) -> Result<Snapshot, ReadError> {
    const LOOKS: u32 = 8;
    let read = |bytes: &mut [u8], at: usize| {
        file.read_exact_at(bytes, at as u64).map_err(|_| ReadError::Short)
    };
    let mut bytes = vec![0; CONNS_OFFSET];
    let mut whole = || {
        read(&mut bytes, 0)?;
        Snapshot::read(&bytes)
    };
    let mut seen = whole()?;
    for _ in 0..LOOKS {
        let mut answer = [0; size_of::<u64>()];
        read(&mut answer, Snapshot::ANSWER_AT)?;
        // What was read whole has the same answer before and behind it.
        if !seen.is_changing() && u64::from_ne_bytes(answer) == seen.answer {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        seen = whole()?;
    }
    Ok(seen)
}

/// What the open connections say, and each where that is asked for. (In blocks that the nearest
/// cache holds: nothing of ten thousand connections that only count is written to memory.)
fn connections(segment: &Segment, depth: Depth<'_>) -> Result<(Sums, Connections), SegmentError> {
    const BYTES_MAX: u64 = 1 << 30;
    const BLOCK: usize = 256 * RECORD_BYTES;
    let (file, header) = (&segment.file, &segment.header);
    let there = file.metadata()?.len().saturating_sub(CONNS_OFFSET as u64);
    let wanted = (header.conns_bytes() as u64).min(there).min(BYTES_MAX);
    let (mut sums, mut each, mut block) = (Sums::default(), None, Vec::new());
    match depth {
        Depth::Sums => block.resize(BLOCK, 0),
        Depth::Each(spare) => each = Some(Connections::reusing(spare.pop().unwrap_or_default())),
    }
    let mut at = 0;
    while at < wanted {
        let length = (wanted - at).min(BLOCK as u64);
        let read = |part: &mut [u8]| file.read_exact_at(part, CONNS_OFFSET as u64 + at);
        match &mut each {
            Some(each) => sums.add(each.read(length as usize, read)?),
            None => {
                let part = &mut block[..length as usize];
                read(part)?;
                sums.add(part);
            }
        }
        at += length;
    }
    let mut each = each.unwrap_or_default();
    each.sort();
    Ok((sums, each))
}

/// The name of a process, as the kernel has it.
pub fn name(pid: u32) -> io::Result<String> {
    Ok(lossy(&PathBuf::from(format!("/proc/{pid}/comm")))?.trim_end().to_owned())
}

/// A file of `/proc`: what a process calls itself and its files, in it too, need not be UTF-8.
pub fn lossy(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(bytes(path)?);
    Ok(text.unwrap_or_else(|not| String::from_utf8_lossy(not.as_bytes()).into_owned()))
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    // (It does not say how long it is: most have room in this, and are read by one call.)
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The numbers of all processes that `/proc` shows, in order. (Who asks is one of them: where there
/// is none, it is no such file system.)
pub fn pids() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.filter_map(Result::ok);
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    match pids.is_empty() {
        true => Err(io::Error::other("no process is in it: no proc(5) is mounted there")),
        false => Ok(pids),
    }
}

/// What has become of the file of a library that a process has loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    /// It is the one that was loaded.
    Current,
    /// Another one has its name, or none.
    Replaced,
}

fn loaded_library(directory: &Path) -> Result<Option<Loaded>, SegmentError> {
    let maps = bytes(&directory.join("maps"))?;
    let names = [library::FILE_NAME, library::CARGO_FILE_NAME];
    Ok(names.into_iter().find_map(|name| loaded(&maps, name.as_bytes())))
}

/// Whether `/proc/PID/maps` has a file of that name. (Most have none, and are not taken apart.)
fn loaded(maps: &[u8], name: &[u8]) -> Option<Loaded> {
    let found = memchr::memmem::find_iter(maps, name);
    let mut found = found.filter(|at| at.checked_sub(1).and_then(|at| maps.get(at)) == Some(&b'/'));
    found.find_map(|at| {
        let behind = maps.get(at + name.len()..)?.split(|byte| *byte == b'\n').next()?;
        match behind {
            b"" => Some(Loaded::Current),
            b" (deleted)" => Some(Loaded::Replaced),
            _ => None,
        }
    })
}

/// A program that does not have the library.
#[derive(Debug, Clone)]
pub struct Stranger {
    program: [u64; 2],
    size: u64,
    asked: Instant,
    /// It was seen without the library before: one that has only begun may get it yet.
    is_sure: bool,
}

impl Stranger {
    /// The program that a process runs, which was without the library before, too, or was not seen.
    pub fn of(pid: u32, before: Option<&Stranger>) -> Option<Stranger> {
        let stat = Stat::of(pid).ok()?;
        let program = stat.program()?;
        let is_sure = before.is_some_and(|before| before.program == program);
        Some(Stranger { program, size: stat.size?, asked: Instant::now(), is_sure })
    }

    /// Whether the process still runs it, as far as that is taken for granted.
    pub fn is_still(&self, pid: u32) -> bool {
        let age = self.asked.elapsed();
        let is_it = |stat: Stat| {
            // (A library that it has loaded meanwhile has made it larger.)
            let is_as_large = age < ASKED_AGAIN && stat.size == Some(self.size);
            (age < ASKED_FOR || is_as_large) && stat.program() == Some(self.program)
        };
        self.is_sure && Stat::of(pid).is_ok_and(is_it)
    }
}

/// What `/proc/PID/stat` says of a process (proc_pid_stat(5)).
#[derive(Debug)]
struct Stat {
    name: String,
    /// When it began, in ticks.
    began: Option<u64>,
    /// Bytes of its address space.
    size: Option<u64>,
    /// Where its stack begins.
    stack: Option<u64>,
}

impl Stat {
    fn of(pid: u32) -> io::Result<Stat> {
        // (More than it has, with the longest of names and numbers: all of it is one read.)
        let mut bytes = [0; 2048];
        let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut bytes)?;
        let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
        // (The name, in parentheses, may contain anything.)
        let (before, fields) = text.rsplit_once(')').unwrap_or_default();
        let (_, name) = before.split_once('(').unwrap_or_default();
        // The first one behind the name has the number 3.
        let mut fields = fields.split(' ').skip(1);
        let mut number = |skipped: usize| fields.nth(skipped)?.parse().ok();
        let (began, size, stack) = (number(22 - 3), number(0), number(28 - 24));
        Ok(Stat { name: name.trim_end().to_owned(), began, size, stack })
    }

    /// What tells a program from one that the process ran before: when the process began, and where
    /// the stack does, which execve(2) puts elsewhere.
    fn program(&self) -> Option<[u64; 2]> {
        Some([self.began?, self.stack?])
    }
}

/// The time since that tick of the system's.
fn time_since(tick: u64) -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let then = tick as f64 / rustix::param::clock_ticks_per_second() as f64;
    let since = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9 - then;
    Duration::try_from_secs_f64(since.max(0.0)).unwrap_or_default()
}

/// When a process was started, in ticks since the boot: of two processes that have a number one
/// after the other, another one.
pub(crate) fn started(pid: u32) -> Option<u64> {
    Stat::of(pid).ok()?.began
}

/// The short number of the container that a control group belongs to: a part of the path of
/// Docker's, Podman's, containerd's and CRI-O's groups has its 64 hexadecimal digits. Mostly that
/// is the last one; Podman has a group `container` in it, and a container its own groups. (The
/// innermost counts.)
pub(crate) fn container(groups: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        line.rsplit('/').find_map(|part| {
            let part = part.strip_suffix(".scope").unwrap_or(part);
            let id = part.rsplit(['-', ':']).next()?;
            let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_id.then(|| id[..12].to_owned())
        })
    })
}

/// Whether this process may look into those of other users.
pub(crate) fn may_trace() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = field(&status, "CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok());
    effective.is_some_and(|set| set >> CAP_SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FileType;
    use std::io::{Read, Write};

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

    #[test]
    fn only_a_memfd_is_opened() {
        let place = std::env::temp_dir().join(format!("netacc-segment-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        // A pipe that nobody writes would keep its reader waiting.
        let (pipe, file) = (place.join("pipe"), place.join("file"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::write(&file, "x").unwrap();
        for other in [&pipe, &file, &place, &place.join("none")] {
            assert!(open(other).unwrap().is_none(), "{other:?}");
        }
        fs::remove_dir_all(&place).unwrap();
        let memfd = memfd_create(c"netacc-test", MemfdFlags::CLOEXEC).unwrap();
        let link = PathBuf::from(format!("/proc/self/fd/{}", memfd.as_raw_fd()));
        assert!(open(&link).unwrap().is_some());
    }

    #[test]
    fn containers_are_known_by_their_groups() {
        let id = "0123456789abcdef".repeat(4);
        for group in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("0::/docker/{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope\n"),
            format!(
                "12:pids:/x\n0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope\n"
            ),
            format!("0::/kubepods/besteffort/pod1/{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
            format!("0::/docker/{}/docker/{id}/system.slice/x.service\n", "f".repeat(64)),
        ] {
            assert_eq!(container(&group).as_deref(), Some("0123456789ab"), "{group}");
        }
        for group in ["0::/\n", "0::/user.slice/user-0.slice/session-1.scope\n", ""] {
            assert_eq!(container(group), None);
        }
    }

    #[test]
    fn every_process_has_an_age_and_a_name() {
        let own = std::process::id();
        assert!(pids().unwrap().contains(&own));
        assert!(!name(own).unwrap().is_empty());
        let directory = PathBuf::from(format!("/proc/{own}"));
        let stat = Stat::of(own).unwrap();
        assert_eq!(stat.name, name(own).unwrap());
        assert!(time_since(stat.began.unwrap()) < Duration::from_secs(3600));
        let status = lossy(&directory.join("status")).unwrap();
        let kib = field(&status, "VmSize:").unwrap().strip_suffix(" kB").unwrap().parse::<u64>();
        assert!(kib.unwrap().abs_diff(stat.size.unwrap() / 1024) < 1 << 16);
        assert!(stat.stack.unwrap() > 1 << 16);
    }

    #[test]
    fn a_stranger_is_asked_again_when_it_has_loaded_something() {
        let pid = std::process::id();
        let seen_once = Stranger::of(pid, None).unwrap();
        let stranger = Stranger::of(pid, Some(&seen_once)).unwrap();
        // (Mapped alone: what other tests have and give back meanwhile is less.)
        let more = Vec::<u8>::with_capacity(1 << 30);
        assert!(stranger.is_still(pid));
        let asked = |ago| Instant::now().checked_sub(Duration::from_secs(ago)).unwrap();
        assert!(!Stranger { asked: asked(11), ..stranger.clone() }.is_still(pid));
        let size = || Stat::of(pid).unwrap().size.unwrap();
        let is_still_as_large = |ago| {
            // (Other tests change it: it is asked until nobody has.)
            let once = || {
                let before = size();
                let is_it = Stranger { asked: asked(ago), size: before, ..stranger.clone() };
                let is_still = is_it.is_still(pid);
                (before == size()).then_some(is_still)
            };
            std::iter::repeat_with(once).find_map(|it| it)
        };
        assert_eq!(is_still_as_large(11), Some(true));
        assert_eq!(is_still_as_large(61), Some(false));
        assert!(more.is_empty());
    }

    #[test]
    fn a_library_is_known_by_the_whole_name_of_its_file() {
        let maps = |path: &str| {
            format!("7f00-7f10 r-xp 0 08:01 7   /bin/x\n7f20-7f30 r-xp 0 08:01 8   {path}\n")
        };
        for (path, is) in [
            ("/usr/lib/libnetacc-preload.so", Some(Loaded::Current)),
            ("/usr/lib/libnetacc-preload.so (deleted)", Some(Loaded::Replaced)),
            ("/libnetacc-preload.so/libnetacc-preload.so", Some(Loaded::Current)),
            ("/usr/lib/libnetacc-preload.so/x", None),
            ("/usr/lib/libnetacc-preload.so.1", None),
            ("/usr/lib/xlibnetacc-preload.so", None),
            ("libnetacc-preload.so", None),
            ("", None),
        ] {
            assert_eq!(loaded(maps(path).as_bytes(), library::FILE_NAME.as_bytes()), is, "{path}");
        }
        assert_eq!(
            loaded(b"/libnetacc-preload.so", b"libnetacc-preload.so"),
            Some(Loaded::Current)
        );
    }

    #[test]
    fn a_stranger_is_known_until_it_runs_another_program() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo up; read line; exec cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        let seen_once = Stranger::of(pid, None).unwrap();
        assert!(!seen_once.is_still(pid), "it may have only begun");
        let stranger = Stranger::of(pid, Some(&seen_once)).unwrap();
        assert!(stranger.is_still(pid) && !stranger.is_still(std::process::id()));
        child.stdin.as_mut().unwrap().write_all(b"go\nseen\n").unwrap();
        let mut seen = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
        assert!(!stranger.is_still(pid));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(!stranger.is_still(pid));
    }
}
