//! Finds and reads traces: of processes that run, and what killed ones have left
//! (`docs/design/trace.md`).
//!
//! Whoever wrote a trace is not trusted, and the file may be cut short, changing, or nonsense. It
//! is never mapped (a file that is made shorter would end the reader), and never written.

use crate::launch;
use crate::segment;
use crate::selection::Network;
use netacc_control::trace::{
    DIRECTORY, Head, LatenciesText, MAKING_NS, NAME, RING_HEAD_BYTES, RingText, SERVICES, State,
    Times, whole,
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags, statx};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, DirEntry, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a ring begins with: of which connection it is, and how many events it has had.
const SEEN_BYTES: usize = 64;

/// What a trace said at the last look.
#[derive(Debug, Default)]
pub struct Seen {
    /// What each ring began with; `None`: it has to be read again.
    heads: Vec<Option<[u8; SEEN_BYTES]>>,
    /// Those that have to be.
    again: Vec<usize>,
    /// Of each part of the file: its mark, and since when it is known; `None`: the part was looked
    /// into behind the time in which another event leaves the same mark.
    marks: Vec<(u32, Option<Instant>)>,
    /// When all parts were looked into.
    all: Option<Instant>,
}

impl Seen {
    /// A part whose mark is younger is looked into again.
    const YOUNG: Duration = Duration::from_secs(1);
    /// Then all are, whatever their marks say: a thread that was stopped for longer than that,
    /// between an event and its mark, may have left none.
    const ALL: Duration = Duration::from_secs(30);

    /// The parts that have to be looked into, by the marks as they are now; `None`: all.
    fn parts(&mut self, marks: Vec<u32>, is_live: bool) -> Option<Vec<usize>> {
        let now = Instant::now();
        self.marks.truncate(marks.len());
        self.marks.resize(marks.len(), (0, Some(now)));
        let is_all =
            !is_live || marks.is_empty() || self.all.is_none_or(|at| now - at >= Seen::ALL);
        if is_all {
            self.all = Some(now);
        }
        let mut parts = Vec::new();
        for (part, ((was, since), is)) in self.marks.iter_mut().zip(marks).enumerate() {
            if *was != is {
                (*was, *since) = (is, Some(now));
            }
            parts.extend(since.map(|_| part));
            *since = since.filter(|at| now - *at < Seen::YOUNG);
        }
        (!is_all).then_some(parts)
    }
}

/// A trace, open for reading.
#[derive(Debug)]
pub struct Trace {
    /// The process's number as we see it; of one that is gone, as it saw itself.
    pub pid: u32,
    /// The process runs.
    pub is_live: bool,
    /// Its user.
    pub uid: u32,
    /// Memory that it takes.
    pub bytes: u64,
    /// Where it is.
    pub path: PathBuf,
    /// What it says of itself.
    pub head: Head,
    file: File,
}

/// Why a file cannot be read as a trace.
#[derive(Debug)]
pub enum TraceError {
    /// By what it holds.
    Content(netacc_control::trace::ReadError),
    /// It is no plain file.
    NoFile,
    /// The system says so.
    Io(io::Error),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Content(error) => error.fmt(f),
            TraceError::NoFile => f.write_str("this is no plain file"),
            TraceError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> TraceError {
        TraceError::Io(error)
    }
}

impl Trace {
    /// Reads the head of a file.
    pub fn open(path: &Path) -> Result<Trace, TraceError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
        Trace::of(File::from(file), path.to_owned())
    }

    fn of(file: File, path: PathBuf) -> Result<Trace, TraceError> {
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(TraceError::NoFile);
        }
        let head = head(&file)?;
        let (uid, bytes) = (data.uid(), data.blocks().saturating_mul(512));
        // Its writer holds a lock for as long as it lives.
        let is_live = file.try_lock_shared().is_err();
        let _ = file.unlock();
        Ok(Trace { pid: head.pid, is_live, uid, bytes, path, head, file })
    }

    /// Whether a running process's trace is where those are for which no other place is good.
    pub(crate) fn is_in_usual_place(&self) -> bool {
        fs::read_link(&self.path).is_ok_and(|link| is_usual(&link))
    }

    /// Which file it is.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|data| (data.dev(), data.ino()))
    }

    /// Whether its process has gone since, and what it says of itself now.
    pub fn look_again(&mut self) -> Result<(), TraceError> {
        let mut first = [0; Head::CHANGING_BYTES];
        self.file.read_exact_at(&mut first, 0).map_err(short)?;
        if !self.head.read_again(&first).map_err(TraceError::Content)? {
            self.head = head(&self.file)?;
        }
        if self.is_live && self.file.try_lock_shared().is_ok() {
            let _ = self.file.unlock();
            self.is_live = false;
        }
        Ok(())
    }

    /// Every ring that says something, of each connection one; the process's own is the first.
    pub fn rings(&self) -> Vec<RingText> {
        let mut seen = Seen::default();
        let all = self.changed(&mut seen);
        whole(self.read_rings(&all, &mut seen))
    }

    /// Which rings may say something else than at the last look, of which [`Trace::read_rings`] has
    /// kept in `seen` what they said. Most connections do nothing most of the time: the process
    /// marks the parts of the file in which it records something. What many rings begin with is
    /// read at once, with what lies between: a call for each takes several times as long.
    pub fn changed(&self, seen: &mut Seen) -> Vec<usize> {
        const BLOCK: u64 = 1 << 16;
        let rings: Vec<(usize, u64)> = match seen.parts(self.marks(), self.is_live) {
            None => self.written_rings().collect(),
            Some(parts) => parts.into_iter().flat_map(|part| self.rings_in(part)).collect(),
        };
        let mut block = vec![0; BLOCK as usize];
        let (mut from, mut length) = (0, 0);
        let mut changed = seen.again.clone();
        for (i, at) in rings {
            // (One that is new, or in which something was still being written.)
            let Some(was) = seen.heads.get(i).and_then(Option::as_ref) else {
                changed.push(i);
                continue;
            };
            let end = at.saturating_add(SEEN_BYTES as u64);
            if at < from || end > from + length {
                #[cfg(test)]
                READS.set(READS.get() + 1);
                let got = self.file.read_at(&mut block, at).unwrap_or(0);
                (from, length) = (at, got as u64);
            }
            let first = at.checked_sub(from).and_then(|at| usize::try_from(at).ok());
            let first = first.filter(|_| end <= from + length);
            if first.and_then(|at| block.get(at..at + SEEN_BYTES)) != Some(was.as_slice()) {
                changed.push(i);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// The rings that begin in that part of the file: which one each is, and where.
    fn rings_in(&self, part: usize) -> impl Iterator<Item = (usize, u64)> {
        let (first, bytes) = (self.head.rings_at as u64, self.head.ring_bytes as u64);
        let index = |at: u64| {
            let ring = at.saturating_sub(first).div_ceil(bytes);
            usize::try_from(ring).unwrap_or(usize::MAX).min(self.head.rings.max(1))
        };
        let begin = (part as u64).saturating_mul(1 << self.head.changes_shift);
        let rings = index(begin)..index(begin.saturating_add(1 << self.head.changes_shift));
        rings.filter_map(|i| Some((i, self.place(i)?)))
    }

    /// The marks of the parts of the file; none where it has none.
    fn marks(&self) -> Vec<u32> {
        let Some((at, count)) = self.head.changes else { return Vec::new() };
        let mut bytes = vec![0; count * size_of::<u32>()];
        match self.file.read_exact_at(&mut bytes, at as u64) {
            Ok(()) => bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Of these rings, in their order, those that say something; what each begins with is kept in
    /// `seen`.
    pub fn read_rings(&self, which: &[usize], seen: &mut Seen) -> Vec<RingText> {
        let (mut rings, mut bytes) = (Vec::new(), vec![0; self.head.ring_bytes]);
        let (heads, again) = (&mut seen.heads, &mut seen.again);
        again.retain(|i| which.binary_search(i).is_err());
        for i in which.iter().copied() {
            let Some(at) = self.place(i).filter(|at| self.read(&mut bytes, *at).is_some()) else {
                break;
            };
            let ring = self.text(&bytes, at);
            // (Where an event is still being written, the next look reads all of it again.)
            let is_whole = ring.as_ref().is_none_or(|r| r.written == r.recorded);
            heads.resize(heads.len().max(i + 1), None);
            heads[i] = bytes.first_chunk().filter(|_| is_whole || !self.is_live).copied();
            again.extend(heads[i].is_none().then_some(i));
            rings.extend(ring);
        }
        rings
    }

    /// What a ring says.
    pub fn ring(&self, i: usize) -> Option<RingText> {
        let (mut bytes, at) = (vec![0; self.head.ring_bytes], self.place(i)?);
        self.read(&mut bytes, at)?;
        self.text(&bytes, at)
    }

    /// What a ring says that was just read from there.
    fn text(&self, bytes: &[u8], at: u64) -> Option<RingText> {
        let mut again = [0; SEEN_BYTES];
        let behind = self.file.read_exact_at(&mut again, at).is_ok() && self.is_live;
        RingText::read(&self.head, bytes, behind.then_some(again.as_slice()))
    }

    /// The rings that somebody has written to: which one it is, and where.
    fn written_rings(&self) -> impl Iterator<Item = (usize, u64)> {
        const BYTES_MAX: u64 = 256 << 20;
        let there = self.file.metadata().map_or(0, |data| data.len()).min(BYTES_MAX);
        let (first, bytes) = (self.head.rings_at as u64, self.head.ring_bytes as u64);
        let mut written = 0..0;
        let places = (0..self.head.rings.max(1))
            .map(move |i| (i, first.saturating_add((i as u64).saturating_mul(bytes))));
        let whole = places.take_while(move |(_, at)| at.saturating_add(bytes) <= there);
        // What nobody has written costs its owner nothing: it is not to cost the reader.
        whole.filter(move |(_, at)| {
            if written.end < at.saturating_add(bytes) {
                written = self::written(&self.file, *at);
            }
            written.start < at.saturating_add(bytes)
        })
    }

    /// The connections that are open, without events, and which ring each has.
    pub fn open_rings(&self) -> impl Iterator<Item = (usize, RingText)> {
        let rings = self.written_rings().filter_map(|(i, _)| Some((i, self.ring_head(i)?)));
        rings.filter(|(_, ring)| ring.state == State::Open as u32)
    }

    /// The excerpts that there are of a ring's connection.
    pub fn excerpts(&self, ring: &RingText) -> Vec<RingText> {
        // (A library makes fewer. Whoever wrote the file may say anything.)
        const MOST: usize = 64;
        let is_its = |it: &RingText| {
            it.state == State::Excerpt as u32 && it.number == ring.number && it.number != 0
        };
        let heads = self.written_rings().filter_map(|(i, _)| Some((i, self.ring_head(i)?)));
        let its = heads.filter(|(_, head)| is_its(head)).take(MOST.min(ring.excerpts as usize));
        its.filter_map(|(i, _)| self.ring(i)).filter(is_its).collect()
    }

    /// Of which connection a ring is, without events.
    pub fn ring_head(&self, i: usize) -> Option<RingText> {
        let mut bytes = [0; RING_HEAD_BYTES];
        let bytes = bytes.get_mut(..self.head.ring_bytes.min(RING_HEAD_BYTES))?;
        self.read(bytes, self.place(i)?)?;
        RingText::read_head(bytes)
    }

    /// Where a ring is.
    fn place(&self, i: usize) -> Option<u64> {
        let before = (i as u64).checked_mul(self.head.ring_bytes as u64)?;
        (self.head.rings_at as u64).checked_add(before)
    }

    /// Reads a ring, or what it begins with.
    fn read(&self, bytes: &mut [u8], at: u64) -> Option<()> {
        #[cfg(test)]
        READS.set(READS.get() + 1);
        self.file.read_exact_at(bytes, at).ok()
    }

    /// How long the answers of a ring's connection took, or of the process's; `None`: that was not
    /// measured.
    pub fn latencies(&self, ring: &RingText) -> Option<[Times; 2]> {
        let i = ring.latencies as usize;
        if !(1..self.head.rings).contains(&i) {
            return None;
        }
        let mut bytes = vec![0; self.head.ring_bytes];
        self.read(&mut bytes, self.place(i)?)?;
        // (The connection may be over, and another one have the place.)
        LatenciesText::read(&bytes).filter(|it| it.number == ring.number).map(|it| it.times)
    }

    /// The process's own ring.
    pub fn own_ring(&self) -> Option<RingText> {
        let mut bytes = vec![0; self.head.ring_bytes];
        self.read(&mut bytes, self.place(0)?)?;
        RingText::read(&self.head, &bytes, None)
    }

    /// `killed`, `exited`, `exec` or `live`.
    pub fn state(&self) -> &'static str {
        match (self.is_live, self.head.is_ended) {
            (true, _) => "live",
            (false, true) if self.head.is_another => "exec",
            (false, true) => "exited",
            (false, false) => "killed",
        }
    }
}

#[cfg(test)]
std::thread_local! {
    /// How often this thread has read a ring, what one begins with, or what many do.
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The same as a part of a sentence.
pub(crate) fn said(state: &str) -> &str {
    if state == "exec" { "it runs another program now" } else { state }
}

/// Which part of a file, the first one from there on, was ever written.
fn written(file: &File, at: u64) -> Range<u64> {
    let seek = |from| rustix::fs::seek(file, from);
    match seek(SeekFrom::Data(at)) {
        Ok(start) => start..seek(SeekFrom::Hole(start)).unwrap_or(start),
        // Nothing is.
        Err(Errno::NXIO) => u64::MAX..u64::MAX,
        // The file system does not know.
        Err(_) => at..u64::MAX,
    }
}

fn short(_: io::Error) -> TraceError {
    TraceError::Content(netacc_control::trace::ReadError::Short)
}

fn head(file: &File) -> Result<Head, TraceError> {
    let mut first = [0; Head::CHANGING_BYTES];
    file.read_exact_at(&mut first, 0).map_err(short)?;
    let mut bytes = vec![0; Head::bytes(&first).map_err(TraceError::Content)?];
    file.read_exact_at(&mut bytes, 0).map_err(short)?;
    Head::read(&bytes).map_err(TraceError::Content)
}

/// Whether a link in `/proc/PID/fd` may lead to the library's file, wherever that is.
fn is_trace(link: &Path) -> bool {
    let text = link.to_string_lossy();
    is_usual(link) || is_librarys(Path::new(text.strip_suffix(" (deleted)").unwrap_or(&text)))
}

/// To one in the usual directory, or without a name.
fn is_usual(link: &Path) -> bool {
    let text = link.to_string_lossy();
    let file = text.strip_prefix(DIRECTORY).and_then(|name| name.strip_prefix('/'));
    file.or(text.strip_prefix("/memfd:")).is_some_and(|name| name.starts_with(NAME))
}

/// The trace of a process that runs. `None`: it has none, or may not be read.
pub fn of_process(pid: u32) -> Option<Trace> {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let status = segment::lossy(&directory.join("status")).ok()?;
    let own = segment::own_pid(&status).unwrap_or(pid);
    for entry in fs::read_dir(directory.join("fd")).ok()? {
        let link = entry.ok()?.path();
        if !fs::read_link(&link).is_ok_and(|target| is_trace(&target)) {
            continue;
        }
        let Some(file) = open_memory(&link, &directory) else { continue };
        let Ok(trace) = Trace::of(file, link) else { continue };
        // (A child that was made past libc has its parent's.)
        if trace.head.pid == own {
            return Some(Trace { pid, is_live: true, ..trace });
        }
    }
    None
}

/// Opens what a link of `/proc/PID/fd` leads to, if it is memory. Whoever has mounts of their own
/// can give another file that name, and one that is opened may keep us waiting: what and where it
/// is, is asked without a question to its file system.
fn open_memory(link: &Path, directory: &Path) -> Option<File> {
    let it = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let data = statx(it.as_fd(), c"", flags, StatxFlags::TYPE).ok()?;
    if FileType::from_raw_mode(data.stx_mode.into()) != FileType::RegularFile {
        return None;
    }
    let device = (data.stx_dev_major, data.stx_dev_minor);
    let is_memory = segment::device_of_memory().ok() == Some(device)
        || is_tmpfs(&segment::lossy(&directory.join("mountinfo")).unwrap_or_default(), device);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open =
        || rustix::fs::open(format!("/proc/self/fd/{}", it.as_raw_fd()), flags, Mode::empty()).ok();
    is_memory.then(open).flatten().map(File::from)
}

/// Whether a device is a tmpfs among these mounts (proc_pid_mountinfo(5)).
fn is_tmpfs(mounts: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    mounts.lines().any(|line| {
        let (before, behind) = line.split_once(" - ").unwrap_or((line, ""));
        before.split(' ').nth(2) == Some(device.as_str()) && behind.starts_with("tmpfs ")
    })
}

/// The directories in which traces may lie: the usual one, that of the configuration, and those of
/// services.
fn directories() -> Vec<PathBuf> {
    /// More than any honest host has.
    const MOST: usize = 1024;
    let services = fs::read_dir(SERVICES).into_iter().flatten().filter_map(Result::ok);
    let mut services = services.take(MOST).map(|entry| entry.path()).peekable();
    let configured = launch::trace_directory();
    if services.peek().is_none() && configured == Path::new(DIRECTORY) {
        return vec![configured];
    }
    let named = [PathBuf::from(DIRECTORY), configured];
    let mut known = HashSet::new();
    // (A directory of a service with a user of its own, `DynamicUser=`, has another name as well.)
    let all = named.into_iter().chain(services).filter_map(|path| path.canonicalize().ok());
    all.filter(|path| path.is_dir() && known.insert(path.clone())).collect()
}

/// Why the library takes no trace to a directory. (Of another user's process root does not know
/// whose the directory may be.)
pub(crate) fn obstacle(directory: &str) -> Option<&'static str> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let path = Path::new(directory);
    let Some(status) = fs::metadata(path).ok().filter(|status| status.is_dir()) else {
        return Some("there is no such folder");
    };
    let me = rustix::process::geteuid().as_raw();
    let is_others = ![0, me].contains(&status.uid()) && me != 0;
    if !path.is_absolute() {
        Some("it is no whole path")
    } else if is_others || (status.mode() & 0o022 != 0 && status.mode() & 0o1000 == 0) {
        Some("others could put files there, or take them away")
    } else if rustix::fs::statfs(path).is_ok_and(|it| it.f_type != TMPFS_MAGIC) {
        Some("it is on no tmpfs")
    } else {
        None
    }
}

/// The names in these that begin as a trace's.
fn named() -> impl Iterator<Item = PathBuf> {
    directories().into_iter().flat_map(named_in)
}

fn named_in(directory: PathBuf) -> impl Iterator<Item = PathBuf> {
    /// More than any honest host has.
    const MOST: usize = 4096;
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let ours =
        |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("{NAME}."));
    entries.filter(ours).take(MOST).map(|entry| entry.path())
}

/// What lies there and may be read: those of this user, for root all.
fn files() -> Vec<Trace> {
    let traces = named().filter_map(|path| Trace::open(&path).ok());
    // (Who makes a file of this name for others to read is not the process that it tells of.)
    traces.filter(|trace| is_mine(trace.uid)).collect()
}

/// Whether a file of that user's is this user's to look at: root's are all.
fn is_mine(uid: u32) -> bool {
    let me = rustix::process::geteuid().as_raw();
    me == 0 || uid == me
}

/// Whether a name is one that the library gives: when its process began the trace, and its number.
/// (A copy that somebody keeps beside it has another.)
fn is_librarys(path: &Path) -> bool {
    began_by_name(path).is_some()
}

/// When the process began the trace, by the name that the library has given it.
fn began_by_name(path: &Path) -> Option<u64> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let rest = name.strip_prefix(NAME)?.strip_prefix('.')?;
    let (began, pid) = rest.split_once('.')?;
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let is = began.len() == 16 && began.chars().all(is_hex) && pid.parse::<u32>().is_ok();
    u64::from_str_radix(began, 16).ok().filter(|_| is)
}

/// A file with the library's name that cannot be read as a trace, and that nobody makes any more:
/// its process has ended while it did. Its memory.
fn half_made(path: &Path) -> Option<u64> {
    let began = began_by_name(path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let data = file.metadata().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos() as u64;
    // (Who makes it at this moment gets the lock behind the name.)
    let is = data.is_file()
        && is_mine(data.uid())
        && now.abs_diff(began) >= MAKING_NS
        && head(&file).is_err()
        && file.try_lock_shared().is_ok();
    is.then(|| data.blocks().saturating_mul(512))
}

/// What was taken away.
#[derive(Debug, Default)]
pub struct Cleared {
    /// How many traces.
    pub traces: usize,
    /// Memory that they took.
    pub bytes: u64,
    /// Those that could not be.
    pub failed: Vec<(PathBuf, io::Error)>,
}

/// Takes away what processes that are gone have left in these directories, also what was never
/// finished: of this user's, for root of all users'. (A process holds the lock before its trace can
/// be read, and nobody makes a file of a name that was there: it has the moment at which its
/// process began the trace.)
pub fn clear() -> Cleared {
    let mut cleared = Cleared::default();
    let left = files().into_iter().filter(|trace| !trace.is_live && is_librarys(&trace.path));
    let left = left.map(|trace| (trace.path, trace.bytes)).collect::<Vec<_>>();
    let half = named().filter_map(|path| half_made(&path).map(|bytes| (path, bytes)));
    for (path, bytes) in left.into_iter().chain(half.collect::<Vec<_>>()) {
        match fs::remove_file(&path) {
            Ok(()) => {
                cleared.traces += 1;
                cleared.bytes += bytes;
            }
            // A process that began meanwhile has made room for its own.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => cleared.failed.push((path, error)),
        }
    }
    cleared
}

/// All traces that may be read, the oldest first.
pub fn all() -> Vec<Trace> {
    let pids = segment::pids().unwrap_or_default();
    let mut traces: Vec<Trace> = pids.into_iter().filter_map(of_process).collect();
    let known: HashSet<_> = traces.iter().filter_map(Trace::identity).collect();
    let left = files().into_iter();
    traces.extend(left.filter(|t| t.identity().is_none_or(|it| !known.contains(&it))));
    traces.sort_by_key(|trace| trace.head.began_unix_ns);
    traces
}

/// Which traces, connections and events are meant.
#[derive(Debug, Default, Clone)]
pub struct Wanted {
    /// Ports at either end; empty: all.
    pub ports: Vec<u16>,
    /// Peers; empty: all.
    pub peers: Vec<Network>,
    /// Names of events; empty: all.
    pub events: Vec<String>,
    /// So many of each connection, the last ones.
    pub last: Option<usize>,
}

impl Wanted {
    /// Whether every connection is meant.
    pub fn has_all(&self) -> bool {
        self.ports.is_empty() && self.peers.is_empty()
    }

    /// Whether a connection is meant. The process's own ring is where no connection is asked for.
    pub fn has(&self, ring: &RingText) -> bool {
        let ports = [ring.local, ring.peer].map(|end| end.map(|end| end.port()));
        let port =
            self.ports.is_empty() || ports.iter().flatten().any(|port| self.ports.contains(port));
        let peer = self.peers.is_empty()
            || ring.peer.is_some_and(|peer| self.peers.iter().any(|net| net.contains(peer.ip())));
        port && peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_beside_a_trace_is_not_the_librarys() {
        let is = |name: &str| is_librarys(&Path::new(DIRECTORY).join(name));
        assert!(is("netacc-trace.17f3a0b1c2d4e5f6.4711"));
        for name in [
            "netacc-trace.17f3a0b1c2d4e5f6.4711.bak",
            "netacc-trace.17f3a0b1c2d4e5f6.copy",
            "netacc-trace.17F3A0B1C2D4E5F6.4711",
            "netacc-trace.17f3.4711",
            "netacc-trace.4711",
            "netacc-traces",
        ] {
            assert!(!is(name), "{name}");
        }
    }

    #[test]
    fn a_device_is_found_among_mounts() {
        let mounts =
            "22 1 0:21 / /dev/shm rw - tmpfs tmpfs rw\n23 1 0:30 / /x rw - fuse.x tmpfs rw\n";
        assert!(is_tmpfs(mounts, (0, 21)));
        assert!(!is_tmpfs(mounts, (0, 30)), "what calls itself so");
        assert!(!is_tmpfs("", (0, 21)));
    }

    #[test]
    fn what_was_never_written_is_passed_over() {
        const HOLE: u64 = 1 << 22;
        let memory = rustix::fs::memfd_create(c"netacc-test", rustix::fs::MemfdFlags::CLOEXEC);
        let file = File::from(memory.unwrap());
        file.set_len(3 * HOLE).unwrap();
        file.write_all_at(b"x", HOLE + 5).unwrap();
        let first = written(&file, 0);
        assert!(first.contains(&(HOLE + 5)), "{first:?}");
        assert!(first.start >= HOLE && first.end <= 2 * HOLE, "{first:?}");
        assert_eq!(written(&file, 2 * HOLE), u64::MAX..u64::MAX);
    }

    #[test]
    fn only_the_librarys_names_are_traces() {
        for (link, is) in [
            ("/dev/shm/netacc-trace.0011.1", true),
            ("/dev/shm/netacc-trace.0011.1 (deleted)", true),
            ("/memfd:netacc-trace (deleted)", true),
            ("/dev/shm/other", false),
            ("/run/netacc/x.service/netacc-trace.0123456789abcdef.1", true),
            ("/run/netacc/x.service/netacc-trace.0123456789abcdef.1 (deleted)", true),
            ("/run/netacc/x.service/netacc-trace.0123456789abcdef.1.gz", false),
            ("/tmp/netacc-trace.1", false),
        ] {
            assert_eq!(is_trace(Path::new(link)), is, "{link}");
        }
    }

    /// A trace with so many rings, each of an open connection that has had one event.
    fn traced(rings: usize) -> Trace {
        use netacc_control::trace::{EVENTS_FIRST, HEADER_BYTES, Header, MAGIC, RING_BYTES, Ring};
        use std::mem::offset_of;
        let mut bytes = vec![0; HEADER_BYTES + rings * RING_BYTES];
        let mut put = |at: usize, word: usize| {
            bytes[at..at + 4].copy_from_slice(&(word as u32).to_ne_bytes());
        };
        for (at, word) in [
            (offset_of!(Header, version), netacc_control::trace::VERSION as usize),
            (offset_of!(Header, header_bytes), HEADER_BYTES),
            (offset_of!(Header, ring_bytes), RING_BYTES),
            (offset_of!(Header, ring_head_bytes), RING_HEAD_BYTES),
            (offset_of!(Header, events_first), EVENTS_FIRST),
            (offset_of!(Header, rings), rings),
        ] {
            put(at, word);
        }
        for at in (0..rings).map(|ring| HEADER_BYTES + ring * RING_BYTES) {
            put(at + offset_of!(Ring, state), State::Open as usize);
            put(at + offset_of!(Ring, number), at / RING_BYTES);
            put(at, 1);
            put(at + RING_HEAD_BYTES, 1);
        }
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        let memory = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC);
        let file = File::from(memory.unwrap());
        file.write_all_at(&bytes, 0).unwrap();
        Trace::of(file, PathBuf::from("test")).unwrap()
    }

    #[test]
    fn of_many_rings_those_that_say_something_new_are_found_in_a_few_reads() {
        const MANY: usize = 10_000;
        let trace = traced(MANY);
        let mut seen = Seen::default();
        assert_eq!(trace.changed(&mut seen).len(), MANY);
        assert_eq!(trace.read_rings(&(0..MANY).collect::<Vec<_>>(), &mut seen).len(), MANY);
        READS.set(0);
        assert!(trace.changed(&mut seen).is_empty());
        assert!(READS.get() < MANY / 25, "{} reads", READS.get());
        // In the first and the last one, and in two of which one begins where a block ends.
        for ring in [0, 29, 30, MANY - 1] {
            let at = trace.place(ring).unwrap();
            trace.file.write_all_at(&[2], at).unwrap();
        }
        let changed = trace.changed(&mut seen);
        assert_eq!(changed, [0, 29, 30, MANY - 1]);
        let rings = trace.read_rings(&changed, &mut seen);
        assert_eq!(rings.iter().map(|ring| ring.recorded).collect::<Vec<_>>(), [2; 4]);
        // (Their second events are not written yet: they are looked at again.)
        assert!(rings.iter().all(|ring| ring.written == 1));
    }

    /// As [`traced`], of a process that runs and marks where it records; as it was read, and all
    /// that it said is old.
    fn quiet(rings: usize) -> (Trace, Seen) {
        use netacc_control::trace::{CHANGE_SHIFT, HEADER_BYTES, Header};
        use std::mem::offset_of;
        let mut trace = traced(rings);
        let begin = offset_of!(Header, changes);
        for (at, word) in [
            (offset_of!(Header, changes_at), begin),
            (offset_of!(Header, changes_count), (HEADER_BYTES - begin) / 4),
            (offset_of!(Header, changes_shift), CHANGE_SHIFT as usize),
        ] {
            trace.file.write_all_at(&(word as u32).to_ne_bytes(), at as u64).unwrap();
        }
        trace.head = head(&trace.file).unwrap();
        trace.is_live = true;
        let mut seen = Seen::default();
        let all = trace.changed(&mut seen);
        trace.read_rings(&all, &mut seen);
        age(&mut seen, Seen::YOUNG);
        assert!(trace.changed(&mut seen).is_empty());
        READS.set(0);
        (trace, seen)
    }

    /// All that was seen was seen so much earlier.
    fn age(seen: &mut Seen, by: Duration) {
        let all = seen.marks.iter_mut().filter_map(|(_, since)| since.as_mut());
        all.chain(&mut seen.all).for_each(|at| *at -= by);
    }

    /// Of a ring the head is another one; its part has that mark.
    fn record(trace: &Trace, ring: usize, head: u8, mark: Option<u8>) {
        let at = trace.place(ring).unwrap();
        trace.file.write_all_at(&[head], at).unwrap();
        let (changes, _) = trace.head.changes.unwrap();
        if let Some(mark) = mark {
            let part = at >> trace.head.changes_shift;
            trace.file.write_all_at(&[mark], changes as u64 + 4 * part).unwrap();
        }
    }

    #[test]
    fn parts_of_a_trace_in_which_nothing_is_recorded_are_not_read() {
        let (trace, mut seen) = quiet(10_000);
        assert!(trace.changed(&mut seen).is_empty());
        assert_eq!(READS.get(), 0);
        record(&trace, 5000, 2, Some(1));
        assert_eq!(trace.changed(&mut seen), [5000]);
        assert!(READS.get() <= 2, "{} reads", READS.get());
    }

    #[test]
    fn a_part_is_looked_into_until_its_mark_is_old() {
        let (trace, mut seen) = quiet(100);
        record(&trace, 50, 2, Some(1));
        assert_eq!(trace.changed(&mut seen), [50]);
        trace.read_rings(&[50], &mut seen);
        // (The ring's second event is not written: it is in any case read again.)
        record(&trace, 51, 2, None);
        assert_eq!(trace.changed(&mut seen), [50, 51], "in the same millisecond");
        age(&mut seen, Seen::YOUNG);
        assert_eq!(trace.changed(&mut seen), [50, 51]);
        record(&trace, 49, 2, None);
        assert_eq!(trace.changed(&mut seen), [50], "it is old, and was looked into since");
        record(&trace, 49, 3, Some(2));
        assert_eq!(trace.changed(&mut seen), [49, 50, 51]);
    }

    #[test]
    fn what_is_recorded_without_a_mark_is_found_at_last() {
        let (mut trace, mut seen) = quiet(100);
        record(&trace, 50, 2, None);
        assert!(trace.changed(&mut seen).is_empty());
        age(&mut seen, Seen::ALL);
        assert_eq!(trace.changed(&mut seen), [50]);
        assert!(trace.changed(&mut seen).is_empty());
        trace.is_live = false;
        assert_eq!(trace.changed(&mut seen), [50], "its process has ended");
    }

    #[test]
    fn garbage_is_no_trace() {
        let directory = std::env::temp_dir().join(format!("netacc-trace-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("x");
        for bytes in [&b""[..], b"NETACCTR", &[0; 512], &[255; 20_000]] {
            fs::write(&file, bytes).unwrap();
            assert!(Trace::open(&file).is_err());
        }
        let link = directory.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(Trace::open(&link).is_err(), "links are not followed");
        assert!(matches!(Trace::open(&directory), Err(TraceError::NoFile)));
        fs::remove_dir_all(&directory).unwrap();
    }
}
