//! The directory in which the trace lies: the one that the configuration names, where it is safe,
//! and `/dev/shm` otherwise.
//!
//! In `/dev/shm` everybody may make files, and nobody take away another's. Another directory is
//! safe if nobody but root and this process's user can do either.

use crate::log::warn_log;
use crate::{config, sys};
use core::sync::atomic::{AtomicBool, Ordering::*};
use netacc_control::trace::{DIRECTORY, NAME};

/// Room for a file's name, with its directory and a NUL.
pub(super) const NAME_BYTES: usize = 256;
/// A file's name behind its directory: a slash, the time in 16 digits, the number in ten.
const FILE_BYTES: usize = 1 + NAME.len() + 1 + 16 + 1 + 10;

/// It is the one of the configuration.
static AS_CONFIGURED: AtomicBool = AtomicBool::new(false);

/// Where this process's trace is, or is made.
pub(super) fn directory() -> &'static str {
    if AS_CONFIGURED.load(Relaxed) { &config::get().trace_dir } else { DIRECTORY }
}

/// A trace is about to be made.
pub(super) fn choose() {
    let wanted = &config::get().trace_dir;
    let is_other = wanted != DIRECTORY;
    let flaw = if is_other { flaw(wanted) } else { None };
    AS_CONFIGURED.store(is_other && flaw.is_none(), Relaxed);
    if let Some(flaw) = flaw {
        warn_log!("the trace is in {DIRECTORY}: NACC_TRACE_DIR={wanted}: {flaw}");
    }
}

/// No file could be had there. True: there is another directory to try.
pub(super) fn give_up() -> bool {
    let is_other = AS_CONFIGURED.swap(false, Relaxed);
    if is_other {
        let wanted = &config::get().trace_dir;
        warn_log!(
            "the trace is in {DIRECTORY}: in NACC_TRACE_DIR={wanted} no file can be made, it is \
             no tmpfs, or there is too little room"
        );
    }
    is_other
}

/// Why no trace may lie in a directory.
fn flaw(path: &str) -> Option<&'static str> {
    let mut name = [0u8; NAME_BYTES];
    let room = name.len() - 1 - FILE_BYTES;
    if !path.starts_with('/') || path.len() > room {
        return Some("no whole path, or too long a one");
    }
    for (to, from) in name.iter_mut().zip(path.bytes()) {
        *to = from;
    }
    // (Not opened: a file system that does not answer would hold up whoever wants a descriptor.)
    match sys::directory_in_memory(&name) {
        None => Some("no directory on a tmpfs"),
        Some(of) if is_safe(of, sys::geteuid()) => None,
        Some(_) => Some("others could put files there, or take them away"),
    }
}

/// Of a directory, by its owner and its mode.
fn is_safe((owner, mode): (u32, u32), user: u32) -> bool {
    const OTHERS: u32 = libc::S_IWGRP | libc::S_IWOTH;
    (owner == 0 || owner == user) && (mode & OTHERS == 0 || mode & libc::S_ISVTX != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use netacc_control::Config;
    use std::format;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_is_safe_where_nobody_else_makes_files_or_takes_them_away() {
        for (owner, mode, is) in [
            (1000, 0o700, true),
            (1000, 0o755, true),
            (1000, 0o2755, true),
            (1000, 0o775, false),
            (1000, 0o757, false),
            (1000, 0o1777, true),
            (0, 0o1777, true),
            (0, 0o755, true),
            (0, 0o777, false),
            (1001, 0o700, false),
            (1001, 0o1777, false),
        ] {
            assert_eq!(is_safe((owner, mode), 1000), is, "{owner} {mode:o}");
        }
    }

    #[test]
    fn the_directory_is_that_of_the_configuration_where_it_is_safe() {
        crate::testing::init();
        let own = format!("/dev/shm/netacc-place-{}", std::process::id());
        std::fs::create_dir(&own).unwrap();
        let with_mode = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&own, permissions).unwrap();
        };
        let chosen = |wanted: &str| {
            let config = Config { trace_dir: wanted.into(), ..config::get().clone() };
            config::with(config, || {
                choose();
                directory()
            })
        };
        with_mode(0o700);
        assert_eq!(chosen(&own), own);
        with_mode(0o777);
        assert_eq!(chosen(&own), DIRECTORY);
        with_mode(0o1777);
        assert_eq!(chosen(&own), own);
        std::fs::remove_dir(&own).unwrap();
        let long = format!("/dev/{}shm", "./".repeat(110));
        for wanted in ["", "shm", "dev/shm", "/nowhere", "/dev/null", &own, &long, DIRECTORY] {
            assert_eq!(chosen(wanted), DIRECTORY, "{wanted}");
        }
        assert!(!give_up());
    }
}
