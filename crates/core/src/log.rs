//! The log: one line per message, appended by one `write`, or sent to the system's log. Never on
//! the data path.
//!
//! The file is one that this user made, a regular one under one name alone ([`is_ours`]): in a
//! directory that others can write it may be anything. A line that cannot be written is counted
//! (`log_lines_dropped`).
//!
//! What a peer can bring about as often as it likes is a [`warn_of_peer!`]: all of these together
//! are one line a second.

use crate::{config, numbers, stats, sys};
use core::ffi::c_int;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_control::config::{LogLevel, SYSLOG, SYSLOG_SOCKET, write_log_path};
use netacc_control::stats::Counter;

struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    fn text(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for b in s.bytes() {
            // Room for the newline is always left.
            if let Some(to) = self.bytes.get_mut(self.len).filter(|_| self.len < 511) {
                *to = b;
                self.len += 1;
            }
        }
        Ok(())
    }
}

/// Whether such lines are written.
#[inline]
pub(crate) fn says(level: LogLevel) -> bool {
    let config = config::get();
    level >= config.log_level && !config.log_path.is_empty()
}

/// Appends a line when `level` is at least the configured one.
pub(crate) fn log(level: LogLevel, text: fmt::Arguments<'_>) {
    if !says(level) {
        return;
    }
    let path = &config::get().log_path;
    let is_written =
        if path == SYSLOG { send(SYSLOG_SOCKET, level, text) } else { append(path, level, text) };
    if !is_written {
        stats::count(Counter::LogLinesDropped);
    }
}

/// Sends a line to the system's log, as syslog(3) does; whoever listens there notes the time.
/// (RFC 3164, 4.1: the priority, the tag, the text.)
fn send(socket: &str, level: LogLevel, text: fmt::Arguments<'_>) -> bool {
    let severity = match level {
        LogLevel::Trace | LogLevel::Debug => libc::LOG_DEBUG,
        LogLevel::Info => libc::LOG_INFO,
        LogLevel::Warn => libc::LOG_WARNING,
        LogLevel::Error => libc::LOG_ERR,
        LogLevel::Fatal => libc::LOG_CRIT,
    };
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "<{}>netacc[{}]: {text}", libc::LOG_USER | severity, sys::getpid());
    let mut to = [0u8; 2 + 108];
    let [family, path @ ..] = &mut to;
    *family = libc::AF_UNIX as u8;
    // (A family has two bytes; a path ends in a 0.)
    let Some(path) = path.get_mut(1..=socket.len()) else { return false };
    path.copy_from_slice(socket.as_bytes());
    numbers::exclusively(|| {
        let how = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = sys::socket(libc::AF_UNIX, how, 0) as c_int;
        if fd < 0 {
            return false;
        }
        let text = line.text();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: `text` has that many bytes.
        let sent = || unsafe { sys::sendto(fd, text.as_ptr(), text.len(), flags) };
        let is_sent = sys::connect(fd, &to) == 0 && sent() == text.len() as isize;
        let _ = sys::close(fd);
        is_sent
    })
}

/// Appends a line to a file.
fn append(path: &str, level: LogLevel, text: fmt::Arguments<'_>) -> bool {
    let Some(path) = expanded(path) else { return false };
    let mut line = Line { bytes: [0; 512], len: 0 };
    let now = Time(sys::unix_ns());
    let _ = write!(line, "{now} {} [{}] {text}", level.as_str(), sys::getpid());
    if let Some(end) = line.bytes.get_mut(line.len) {
        *end = b'\n';
        line.len += 1;
    }
    let flags = libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_CLOEXEC
        | libc::O_NOFOLLOW
        | libc::O_NONBLOCK;
    let text = line.text();
    numbers::exclusively(|| {
        let fd = sys::open(path.with_nul(), flags, 0o600) as c_int;
        if fd < 0 {
            return false;
        }
        let written = is_ours(fd) && sys::write(fd, text) == text.len() as isize;
        let _ = sys::close(fd);
        written
    })
}

/// A path, as long as the configuration allows one to be, and its NUL.
struct Expanded {
    bytes: [u8; 1024],
    len: usize,
}

impl Expanded {
    fn with_nul(&self) -> &[u8] {
        self.bytes.get(..=self.len).unwrap_or(&[0])
    }
}

impl fmt::Write for Expanded {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // Room for the NUL is left.
        let end = self.len.saturating_add(s.len());
        let to = self.bytes.get_mut(self.len..end).filter(|_| end < 1024).ok_or(fmt::Error)?;
        to.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The path of the log for this process. `None`: it is too long.
fn expanded(path: &str) -> Option<Expanded> {
    let mut out = Expanded { bytes: [0; 1024], len: 0 };
    write_log_path(&mut out, path, sys::getpid(), sys::geteuid()).ok()?;
    Some(out)
}

/// Nanoseconds since 1970, shown as in RFC 3339, in UTC.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // Days are counted from 0000-03-01: the day that comes and goes is a year's last. (400
        // years have 146,097 days; H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".)
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{:04}-{month:02}-{day:02}T", era * 400 + year + later)?;
        write!(f, "{hour:02}:{minute:02}:{:02}.{:06}Z", second % 60, self.0 / 1000 % 1_000_000)
    }
}

/// Somebody else can have put a link to a file of ours at that path, or a file, a pipe or a device
/// of his own.
fn is_ours(fd: c_int) -> bool {
    sys::status(fd).is_some_and(|s| {
        s.st_mode & libc::S_IFMT == libc::S_IFREG && s.st_nlink == 1 && s.st_uid == sys::geteuid()
    })
}

/// How often something may be said.
pub(crate) struct Pace {
    /// When it was last said; 0: never.
    at: AtomicU64,
    /// How often it was not said since.
    unsaid: AtomicU32,
}

impl Pace {
    pub(crate) const fn new() -> Pace {
        Pace { at: AtomicU64::new(0), unsaid: AtomicU32::new(0) }
    }

    /// Whether it may be said now, as it may once in `every_ns`, and how often it was not since it
    /// last was.
    pub(crate) fn may(&self, now: u64, every_ns: u64) -> Option<u32> {
        let at = self.at.load(Relaxed);
        let waits = at != 0 && now.saturating_sub(at) < every_ns;
        // (Of two threads at the same moment one says it.)
        if waits || self.at.compare_exchange(at, now.max(1), Relaxed, Relaxed).is_err() {
            self.unsaid.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.unsaid.swap(0, Relaxed))
    }
}

/// Warnings of peers: one in so long.
const PEERS_NS: u64 = 1_000_000_000;
static PEERS: Pace = Pace::new();
#[cfg(test)]
std::thread_local! {
    /// Lines of warnings of peers that this thread has logged.
    pub(crate) static LINES_OF_PEERS: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// A warning of what a peer does, unless there was one within a second.
#[cold]
pub(crate) fn of_peer(text: fmt::Arguments<'_>) {
    let Some(unsaid) = PEERS.may(sys::now_ns(), PEERS_NS) else { return };
    #[cfg(test)]
    LINES_OF_PEERS.set(LINES_OF_PEERS.get() + 1);
    match unsaid {
        0 => log(LogLevel::Warn, text),
        n => log(LogLevel::Warn, format_args!("{text} (and {n} warnings of peers before)")),
    }
}

/// Logs a warning.
macro_rules! warn_log {
    ($($t:tt)*) => { $crate::log::log(netacc_control::config::LogLevel::Warn, format_args!($($t)*)) };
}
/// Logs a warning of what a peer can bring about, one a second in all.
macro_rules! warn_of_peer {
    ($($t:tt)*) => { $crate::log::of_peer(format_args!($($t)*)) };
}
/// Logs for those who look for the reason of something.
macro_rules! debug_log {
    ($($t:tt)*) => { $crate::log::log(netacc_control::config::LogLevel::Debug, format_args!($($t)*)) };
}
pub(crate) use {debug_log, warn_log, warn_of_peer};

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use std::os::fd::AsRawFd;
    use std::vec::Vec;

    #[test]
    fn what_may_be_said_once_a_second_is_counted_in_between() {
        let pace = Pace::new();
        let said: Vec<_> =
            (1..=3000u64).filter_map(|ms| pace.may(ms * 1_000_000, 1_000_000_000)).collect();
        assert_eq!(said, [0, 999, 999]);
        assert_eq!(pace.may(u64::MAX, 1_000_000_000), Some(999));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let of = |seconds: u64| std::format!("{}", Time(seconds * 1_000_000_000 + 7_000));
        // date -u -d @N +%FT%TZ
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (1_735_689_600, "2025-01-01T00:00:00"),
            (4_107_542_399, "2100-02-28T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(of(seconds), std::format!("{text}.000007Z"));
        }
    }

    #[test]
    fn the_systems_log_has_a_line_for_each_message() {
        use std::os::unix::net::UnixDatagram;
        let place = std::env::temp_dir().join(std::format!("netacc-syslog-{}", std::process::id()));
        let path = place.to_str().unwrap();
        assert!(!send(path, LogLevel::Warn, format_args!("nobody listens")));
        let daemon = UnixDatagram::bind(&place).unwrap();
        assert!(send(path, LogLevel::Warn, format_args!("100 % {}", 'ä')));
        let long = "x".repeat(1000);
        assert!(send(path, LogLevel::Debug, format_args!("{long}")));
        let mut bytes = [0; 2000];
        let mut read = || {
            let n = daemon.recv(&mut bytes).unwrap();
            std::string::String::from_utf8(bytes[..n].into()).unwrap()
        };
        let pid = std::process::id();
        assert_eq!(read(), std::format!("<12>netacc[{pid}]: 100 % ä"));
        let cut = read();
        assert!(cut.starts_with(&std::format!("<15>netacc[{pid}]: xxx")) && cut.len() == 511);
        // Nobody is waited for: what a daemon that hangs has no room for is not sent.
        while send(path, LogLevel::Warn, format_args!("more")) {}
        drop(daemon);
        assert!(!send(path, LogLevel::Warn, format_args!("it has ended")));
        assert!(!send(&long, LogLevel::Warn, format_args!("a path that is too long")));
        std::fs::remove_file(&place).unwrap();
    }

    #[test]
    fn a_path_names_the_process_and_its_user() {
        let of = |path: &str| {
            let path = expanded(path)?;
            let bytes = path.with_nul();
            assert_eq!(bytes.last(), Some(&0));
            Some(std::string::String::from_utf8(bytes[..bytes.len() - 1].into()).unwrap())
        };
        let (pid, user) = (std::process::id(), sys::geteuid());
        assert_eq!(of("/tmp/%u/netacc-%p.log"), Some(std::format!("/tmp/{user}/netacc-{pid}.log")));
        assert_eq!(of("/100%%/%x/%"), Some("/100%/%x/%".into()));
        assert_eq!(of("/%ä%p"), Some(std::format!("/%ä{pid}")));
        assert_eq!(of(""), Some("".into()));
        let longest = "a".repeat(1023);
        assert_eq!(of(&longest), Some(longest.clone()));
        assert_eq!(of(&(longest.clone() + "a")), None);
        assert_eq!(of(&(longest + "%p")), None);
    }

    #[test]
    fn only_a_regular_file_under_one_name_is_written() {
        let dir = std::env::temp_dir().join(std::format!("netacc-log-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (one, two) = (dir.join("one"), dir.join("two"));
        let file = std::fs::File::create(&one).unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let device = std::fs::File::open("/dev/null").unwrap();
        assert!(is_ours(file.as_raw_fd()));
        assert!(!is_ours(pipe.as_raw_fd()) && !is_ours(device.as_raw_fd()) && !is_ours(-1));
        std::fs::hard_link(&one, &two).unwrap();
        assert!(!is_ours(file.as_raw_fd()), "a second name");
        std::fs::remove_file(&two).unwrap();
        assert!(is_ours(file.as_raw_fd()));
        if sys::geteuid() == 0 {
            std::os::unix::fs::chown(&one, Some(61_002), None).unwrap();
            assert!(!is_ours(file.as_raw_fd()), "another user's");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
