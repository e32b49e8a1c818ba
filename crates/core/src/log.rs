//! The log: one line per message, appended by one `write`, errors ignored. Never on the data path.

use crate::{lifecycle, numbers, sys};
use core::fmt::{self, Write as _};
use netacc_control::config::LogLevel;

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
    let config = lifecycle::config();
    if level < config.log_level || config.log_path.is_empty() {
        return;
    }
    // As long as the configuration allows a path to be, and its NUL.
    let mut path = [0u8; 1024];
    let name = config.log_path.as_bytes();
    let Some(to) = path.get_mut(..name.len()).filter(|_| name.len() < 1024) else { return };
    to.copy_from_slice(name);
    let mut line = Line { bytes: [0; 512], len: 0 };
    let now = sys::unix_ns();
    let _ = write!(line, "{}.{:06} {} [{}] {}", now / 1_000_000_000, now / 1000 % 1_000_000, level.as_str(), sys::getpid(), text);
    if let Some(end) = line.bytes.get_mut(line.len) {
        *end = b'\n';
        line.len += 1;
    }
    let end = path.iter().position(|b| *b == 0).map_or(path.len(), |n| n + 1);
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    numbers::exclusively(|| {
        let fd = sys::open(path.get(..end).unwrap_or(&[0]), flags, 0o600) as i32;
        if fd >= 0 {
            let _ = sys::write(fd, line.bytes.get(..line.len).unwrap_or(&[]));
            let _ = sys::close(fd);
        }
    });
}

/// Logs a warning.
macro_rules! warn_log {
    ($($t:tt)*) => { $crate::log::log(netacc_control::config::LogLevel::Warn, format_args!($($t)*)) };
}
/// Logs for those who look for the reason of something.
macro_rules! debug_log {
    ($($t:tt)*) => { $crate::log::log(netacc_control::config::LogLevel::Debug, format_args!($($t)*)) };
}
pub(crate) use {debug_log, warn_log};
