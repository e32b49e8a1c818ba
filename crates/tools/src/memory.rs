//! How much memory the library has mapped in a process, how much of it was ever touched, and how
//! much is locked, by the kernel's account.
//!
//! The sizes in the statistics are what is reserved: pages of a memfd that nobody has written cost
//! nothing. What is touched is read from the `pagemap` of these mappings alone
//! (proc_pid_pagemap(5)): for `smaps` the kernel goes through all memory of the process, a tenth of
//! a second for each GiB, and keeps it from mapping more meanwhile.

use crate::segment::{field, lossy};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Mappings of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mappings {
    /// What they are: the name of the library's memfds behind `netacc-`.
    pub kind: &'static str,
    /// How many there are.
    pub count: u64,
    /// Bytes of address space.
    pub reserved: u64,
    /// Bytes that this process has touched.
    pub touched: u64,
    /// Bytes that stay in memory.
    pub locked: u64,
}

/// Control words and rings of channels, rings of connections, statistics.
const KINDS: [&str; 3] = ["channel", "arena", "stats"];

/// So much of a process's mappings is looked at: what it has mapped, and how often, is its own
/// choice.
const LOOKED_AT_MAX: u64 = 64 << 30;

/// The library's mappings in a process, by kind; of what is locked nothing is said.
pub fn of(pid: u32) -> io::Result<Vec<Mappings>> {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let maps = lossy(&directory.join("maps"))?;
    let pages = File::open(directory.join("pagemap"))?;
    let mut all = empty();
    let mut left = LOOKED_AT_MAX;
    for (kind, from, to) in maps.lines().filter_map(mapping) {
        let Some(mappings) = all.iter_mut().find(|mappings| mappings.kind == kind) else {
            continue;
        };
        let looked_at = (to - from).min(left);
        left -= looked_at;
        mappings.count += 1;
        mappings.reserved = mappings.reserved.saturating_add(to - from);
        mappings.touched += touched(&pages, from, from + looked_at)?;
    }
    Ok(all.into_iter().filter(|mappings| mappings.count > 0).collect())
}

/// The same, with what is locked.
pub fn with_locked(pid: u32) -> io::Result<Vec<Mappings>> {
    let status = lossy(&PathBuf::from(format!("/proc/{pid}/status")))?;
    match field(&status, "VmLck:").is_some_and(|locked| !locked.starts_with("0 ")) {
        true => Ok(parse(&lossy(&PathBuf::from(format!("/proc/{pid}/smaps")))?)),
        false => of(pid),
    }
}

fn empty() -> [Mappings; KINDS.len()] {
    KINDS.map(|kind| Mappings { kind, count: 0, reserved: 0, touched: 0, locked: 0 })
}

/// What a line of `maps` is about, where it is the library's: the kind, from where, to where.
fn mapping(line: &str) -> Option<(&str, u64, u64)> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let kind = words.nth(4)?.strip_prefix("/memfd:netacc-")?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let (from, to) = (number(from)?, number(to)?);
    (from <= to).then_some((kind, from, to))
}

/// How many bytes between two addresses are in memory.
fn touched(pages: &File, from: u64, to: u64) -> io::Result<u64> {
    const ENTRY: u64 = 8;
    const PRESENT: u64 = 1 << 63;
    let size = rustix::param::page_size() as u64;
    let (mut at, end) = (from / size * ENTRY, to / size * ENTRY);
    let (mut present, mut block) = (0, [0; 1 << 16]);
    while at < end {
        let wanted = (end - at).min(block.len() as u64) as usize;
        let got = pages.read_at(&mut block[..wanted], at)? as u64 / ENTRY * ENTRY;
        if got == 0 {
            // The process has ended.
            break;
        }
        let entries = block[..got as usize].chunks_exact(ENTRY as usize);
        let entries = entries.map(|entry| u64::from_ne_bytes(entry.try_into().unwrap_or([0; 8])));
        present += entries.filter(|entry| entry & PRESENT != 0).count() as u64;
        at += got;
    }
    Ok(present * size)
}

/// Of `smaps` (proc_pid_smaps(5)).
fn parse(smaps: &str) -> Vec<Mappings> {
    let mut all = empty();
    let mut current: Option<&mut Mappings> = None;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let Some(field) = first.strip_suffix(':') else {
            // The first line of a mapping: addresses, rights, offset, device, inode, name.
            let kind = words.nth(4).and_then(|name| name.strip_prefix("/memfd:netacc-"));
            current = kind.and_then(|kind| all.iter_mut().find(|m| m.kind == kind));
            if let Some(mappings) = &mut current {
                mappings.count += 1;
            }
            continue;
        };
        let Some(mappings) = &mut current else { continue };
        let bytes = words.next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
        let bytes = bytes.saturating_mul(1024);
        let sum = match field {
            "Size" => &mut mappings.reserved,
            "Rss" => &mut mappings.touched,
            "Locked" => &mut mappings.locked,
            _ => continue,
        };
        *sum = sum.saturating_add(bytes);
    }
    all.into_iter().filter(|mappings| mappings.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn only_the_librarys_mappings_count() {
        let smaps = "\
7f0000000000-7f0000100000 rw-s 00000000 00:01 77 /memfd:netacc-arena (deleted)
Size:               1024 kB
Rss:                  64 kB
Locked:                0 kB
VmFlags: rd wr sh mr mw me ms
7f0000100000-7f0000200000 rw-s 00000000 00:01 78 /memfd:netacc-arena (deleted)
Size:               1024 kB
Rss:                 128 kB
Locked:              128 kB
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
7f0000300000-7f0000400000 rw-s 00000000 00:01 79 /memfd:other (deleted)
Size:               4096 kB
7f0000400000-7f0000401000 rw-s 00000000 00:01 80 /memfd:netacc-stats (deleted)
Size:                  4 kB
Rss:                   x kB
";
        let of = |kind, count, reserved: u64, touched: u64, locked: u64| {
            let [reserved, touched, locked] = [reserved, touched, locked].map(|kb| kb * 1024);
            Mappings { kind, count, reserved, touched, locked }
        };
        assert_eq!(parse(smaps), [of("arena", 2, 2048, 192, 128), of("stats", 1, 4, 0, 0)]);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn what_is_touched_counts() {
        // Another process: this one's memory is other tests', too.
        let script = "import ctypes, os, sys\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 6\n\
             for name, size in (b'netacc-arena', 64 << 20), (b'netacc-arena', 1 << 20), (b'x', 1 << 20):\n    \
                 file = libc.memfd_create(name, 0)\n    \
                 os.ftruncate(file, size)\n    \
                 at = libc.mmap(0, size, 3, 1, file, 0)\n    \
                 ctypes.memset(at + size // 2, 1, 3 * 4096)\n\
             os.close(file)\n\
             print(flush=True)\n\
             sys.stdin.read()\n";
        let mut command = Command::new("python3");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: no python3");
            return;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let fast = of(child.id());
        let slow = lossy(&PathBuf::from(format!("/proc/{}/smaps", child.id())));
        let locked = with_locked(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        let page = rustix::param::page_size() as u64;
        let fast = fast.unwrap();
        assert_eq!((fast[0].kind, fast[0].count, fast[0].reserved), ("arena", 2, 65 << 20));
        assert_eq!(fast[0].touched, 2 * (3 * 4096u64).next_multiple_of(page));
        assert_eq!(fast, parse(&slow.unwrap()));
        assert_eq!(fast, locked.unwrap());
    }

    #[test]
    fn lines_of_maps_are_read_with_care() {
        let line = "7f00-7f10 rw-s 00000000 00:01 77   /memfd:netacc-arena (deleted)";
        assert_eq!(mapping(line), Some(("arena", 0x7f00, 0x7f10)));
        for other in
            ["", "7f00", "7f10-7f00 rw-s 0 0 7 /memfd:netacc-arena", "7f00-7f10 rw-p 0 0 0"]
        {
            assert_eq!(mapping(other), None, "{other}");
        }
    }

    #[test]
    fn this_process_has_none() {
        assert_eq!(of(std::process::id()).unwrap(), []);
    }
}
