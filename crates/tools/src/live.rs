//! Another value for a parameter of a process that runs: asks its library (`docs/design/cfg.md`).

use crate::segment::{self, Depth, Segment, SegmentError, field};
use netacc_control::config::{Answer, Key, Origin, Request, parse_rendered};
use netacc_control::stats::{Connection, Counter, Path};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked whether there is an answer.
const PAUSE: Duration = Duration::from_millis(1);
/// How much longer than the process may take the request up its answer is waited for.
const GRACE: Duration = Duration::from_millis(200);

/// Why a value was not set.
#[derive(Debug)]
pub enum Failure {
    /// The process says nothing of itself.
    Segment(SegmentError),
    /// Its library takes no requests.
    Deaf,
    /// Nor does one that was started with this setting, which keeps every connection on TCP.
    StartedOff(String),
    /// Another tool is asking it all the time.
    Busy,
    /// It has ended meanwhile, or has become another program.
    Ended,
    /// There was no answer; what the kernel says of the process.
    Silent(String),
    /// The answer is no.
    Refused(Answer),
    /// The value has characters that cannot be said.
    Unspeakable,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Segment(error) => error.fmt(f),
            Failure::Deaf => f.write_str(
                "its library takes no requests: it is an older one, or no connection of the \
                 process could be accelerated so far; put the value in the \
                 configuration file, and restart it",
            ),
            Failure::StartedOff(setting) => write!(
                f,
                "it was started with acceleration off ({setting}), and takes no requests: a new \
                 value takes effect at restart alone; put it where that setting is (netacc cfg get)"
            ),
            Failure::Busy => f.write_str("another `netacc cfg` is at work on it; nothing changed"),
            Failure::Ended => f.write_str("the process has ended, or has become another program"),
            Failure::Silent(state) => {
                write!(f, "it does not answer{state}; the request has lapsed, and nothing changed")
            }
            Failure::Refused(Answer::AtRestart) => {
                f.write_str("takes effect at restart alone: put it in the configuration file")
            }
            Failure::Refused(Answer::UnknownName) => {
                f.write_str("its library, which is another version, has no such parameter")
            }
            Failure::Refused(Answer::BadValue) => {
                f.write_str("its library, which is another version, does not take this value")
            }
            Failure::Refused(Answer::TooMany) => f.write_str(
                "it has had too many configurations already: it can go back to one of them, \
                 and take a new one after a restart",
            ),
            Failure::Refused(Answer::NoMemory) => f.write_str("it has no memory for that"),
            Failure::Refused(Answer::Unread) => f.write_str(
                "it cannot read its configuration file any more (another user, another root), or \
                 has none, or an empty one, or one with a relative name; its rules are as they were",
            ),
            Failure::Refused(Answer::Mistake) => f.write_str(
                "its configuration file has a mistake, which `netacc_run -f FILE true` names; its \
                 rules are as they were",
            ),
            Failure::Refused(Answer::Done) => f.write_str("done"),
            Failure::Unspeakable => f.write_str("the value has control characters, or is too long"),
        }
    }
}

impl From<SegmentError> for Failure {
    fn from(error: SegmentError) -> Failure {
        Failure::Segment(error)
    }
}

/// Sets a value in a process, which has so long to take it up. `name`: that of a parameter, or
/// [`netacc_control::config::RULES`].
pub fn set(pid: u32, name: &str, value: &str, limit: Duration) -> Result<(), Failure> {
    let until = Instant::now() + limit;
    let segment = Segment::of(pid)?;
    // One tool at a time, by the file that they all read: the next answer overwrites this one.
    while segment.file.try_lock().is_err() {
        if Instant::now() >= until {
            return Err(Failure::Busy);
        }
        std::thread::sleep(PAUSE);
    }
    let link = requests(pid, &segment)?;
    let mut pipe = open(&link)?;
    let request = Request {
        number: number(),
        until_unix_ns: unix_ns().saturating_add(nanoseconds(limit)),
        name,
        value,
    };
    let line = request.line().ok_or(Failure::Unspeakable)?;
    match pipe.write(line.as_bytes()) {
        Ok(_) => {}
        // It is full of what others have asked.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(Failure::Silent(state(pid)));
        }
        Err(_) => return Err(Failure::Ended),
    }
    let until = Instant::now() + limit + GRACE;
    loop {
        let now = segment.now().map_err(SegmentError::Unreadable)?;
        match Answer::of(now.answer, request.number) {
            Some(Answer::Done) => return Ok(()),
            Some(answer) => return Err(Failure::Refused(answer)),
            None if fs::read_link(&link.path).ok().as_ref() != Some(&link.names) => {
                return Err(Failure::Ended);
            }
            None if Instant::now() >= until => return Err(Failure::Silent(state(pid))),
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// What the off-switch has left.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// Connections that are still accelerated, by their records.
    pub accelerated: u64,
    /// Every connection has had a record.
    pub is_all: bool,
}

/// Waits until a process has no connection left that is accelerated, but not for longer than that.
/// `None`: it does not say any more. (What a forked child has taken back to TCP stands in the
/// connection's record alone, not in the process's counts: the child does not keep its parent's
/// books.)
pub fn await_tcp(pid: u32, limit: Duration) -> Option<Left> {
    let until = Instant::now() + limit;
    let is_left = |connection: &Connection| {
        [connection.tx_path, connection.rx_path].iter().any(|path| *path != Path::Tcp as u32)
    };
    let (mut known, mut spare) = (None, Vec::new());
    loop {
        let process = segment::look(pid, known, Depth::Each(&mut spare)).ok()?;
        known = Some(process.known);
        let accelerated = process.connections.iter().filter(is_left).count() as u64;
        if accelerated == 0 || Instant::now() >= until {
            let without_record = Counter::RecordsExhausted as usize;
            let is_all = process.header.counters.get(without_record) == Some(&0);
            return Some(Left { accelerated, is_all });
        }
        spare.push(process.connections);
        std::thread::sleep(PAUSE);
    }
}

/// Where a process hears requests.
struct Link {
    path: PathBuf,
    /// What it names.
    names: PathBuf,
    inode: u32,
}

fn requests(pid: u32, segment: &Segment) -> Result<Link, Failure> {
    let Some((fd, inode)) = segment.header.requests else {
        return Err(
            off_from_the_start(&segment.header.config).map_or(Failure::Deaf, Failure::StartedOff)
        );
    };
    let path = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    let names = fs::read_link(&path).map_err(SegmentError::from)?;
    // (Another process may have the number by now.)
    let is_pipe = names.as_os_str() == OsString::from(format!("pipe:[{inode}]"));
    if is_pipe { Ok(Link { path, names, inode }) } else { Err(Failure::Ended) }
}

/// The setting by which a process was started with acceleration off: it has no thread that could
/// hear a request. (Where it was set meanwhile, it had one.)
fn off_from_the_start(config: &str) -> Option<String> {
    let is_off = |name: &str, value: &str| {
        (name == Key::AccelerateByDefault.name() && value == "0")
            || (name == Key::Paths.name() && value == Path::Tcp.name())
    };
    let mut all = parse_rendered(config);
    let found =
        all.find(|(name, value, origin)| is_off(name, value) && *origin != Origin::Live.as_str());
    found.map(|(name, value, _)| format!("{name}={value}"))
}

/// Opened only as what it was seen to be, and used only if it is that: to write elsewhere would be
/// wrong.
fn open(link: &Link) -> Result<File, Failure> {
    let mut how = OpenOptions::new();
    how.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let pipe = how.open(&link.path).map_err(|error| match error.raw_os_error() {
        // A pipe without a reader.
        Some(libc::ENXIO) => Failure::Ended,
        _ => SegmentError::from(error).into(),
    })?;
    let is = pipe.metadata().map_err(SegmentError::from)?;
    match is.file_type().is_fifo() && is.ino() as u32 == link.inode {
        true => Ok(pipe),
        false => Err(Failure::Ended),
    }
}

/// What keeps a process from answering, as far as the kernel says.
fn state(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let text = match field(&status, "State:").and_then(|state| state.chars().next()) {
        Some('T') => " because it is stopped",
        Some('t') => " because a debugger holds it",
        Some('D') => " and waits in the kernel",
        Some('Z' | 'X') | None => " because it has ended",
        _ => "",
    };
    text.to_owned()
}

/// A number that no other request has, for all that matters.
fn number() -> u64 {
    (unix_ns() ^ u64::from(std::process::id()).rotate_left(40)) & Answer::NUMBER_MAX
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    nanoseconds(now.unwrap_or_default())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The name of a process, and its configuration as it shows it.
pub fn configuration(pid: u32) -> Result<(String, String), SegmentError> {
    let config = Segment::of(pid)?.header.config;
    Ok((segment::name(pid)?, config))
}

/// The name and the parameters of a process: name, value, origin.
pub fn parameters(pid: u32) -> Result<(String, Vec<[String; 3]>), SegmentError> {
    let (name, config) = configuration(pid)?;
    let all = parse_rendered(&config);
    let all = all.map(|(name, value, origin)| [name, value, origin].map(str::to_owned));
    Ok((name, all.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::Config;
    use netacc_control::config::NO_USERS;

    #[test]
    fn what_was_started_with_acceleration_off_is_told_from_what_was_turned_off() {
        for (name, value, is) in [
            ("NACC_ENABLE_RDMA_DEFAULT", "0", Some("NACC_ENABLE_RDMA_DEFAULT=0")),
            ("NACC_PATHS", "tcp", Some("NACC_PATHS=tcp")),
            ("NACC_PATHS", "shm", None),
            ("NACC_TRACE", "0", None),
        ] {
            let environment = |asked: &str| (asked == name).then(|| value.to_owned());
            let (config, origins) = Config::resolve(None, &environment, &[], NO_USERS).unwrap();
            let text = config.render(&origins);
            assert_eq!(off_from_the_start(&text).as_deref(), is, "{text}");
            let live = text.replace("environment", Origin::Live.as_str());
            assert_eq!(off_from_the_start(&live), None, "{live}");
        }
        assert_eq!(off_from_the_start("garbage"), None);
    }
}
