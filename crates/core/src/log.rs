//! The log: one line per message, appended by one `write`. Never on the data path.
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
use netacc_control::config::LogLevel;
use netacc_control::stats::Counter;

struct Line {
    bytes: [u8; 512],
    len: usize,
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

/// Appends a line when `level` is at least the configured one.
pub(crate) fn log(level: LogLevel, text: fmt::Arguments<'_>) {
    let config = config::get();
    if level < config.log_level || config.log_path.is_empty() {
        return;
    }
    // As long as the configuration allows a path to be, and its NUL.
    let mut path = [0u8; 1024];
    let name = config.log_path.as_bytes();
    let Some(to) = path.get_mut(..name.len()).filter(|_| name.len() < 1024) else {
        stats::count(Counter::LogLinesDropped);
        return;
    };
    to.copy_from_slice(name);
    let mut line = Line { bytes: [0; 512], len: 0 };
    let now = sys::unix_ns();
    let _ = write!(
        line,
        "{}.{:06} {} [{}] {}",
        now / 1_000_000_000,
        now / 1000 % 1_000_000,
        level.as_str(),
        sys::getpid(),
        text
    );
    if let Some(end) = line.bytes.get_mut(line.len) {
        *end = b'\n';
        line.len += 1;
    }
    let end = path.iter().position(|b| *b == 0).map_or(path.len(), |n| n + 1);
    let flags = libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_CLOEXEC
        | libc::O_NOFOLLOW
        | libc::O_NONBLOCK;
    let text = line.bytes.get(..line.len).unwrap_or(&[]);
    let written = numbers::exclusively(|| {
        let fd = sys::open(path.get(..end).unwrap_or(&[0]), flags, 0o600) as c_int;
        if fd < 0 {
            return false;
        }
        let written = is_ours(fd) && sys::write(fd, text) == text.len() as isize;
        let _ = sys::close(fd);
        written
    });
    if !written {
        stats::count(Counter::LogLinesDropped);
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
/// Lines of warnings of peers.
#[cfg(test)]
pub(crate) static LINES_OF_PEERS: AtomicU32 = AtomicU32::new(0);

/// A warning of what a peer does, unless there was one within a second.
#[cold]
pub(crate) fn of_peer(text: fmt::Arguments<'_>) {
    let Some(unsaid) = PEERS.may(sys::now_ns(), PEERS_NS) else { return };
    #[cfg(test)]
    LINES_OF_PEERS.fetch_add(1, Relaxed);
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
