//! How much memory the library has mapped in a process, how much of it was ever touched, and how
//! much is locked, by the kernel's account (`smaps`, proc_pid_smaps(5)).
//!
//! The sizes in the statistics are what is reserved: pages of a memfd that nobody has written cost
//! nothing.

use std::fs;
use std::io;

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

/// The library's mappings in a process, by kind.
pub fn of(pid: u32) -> io::Result<Vec<Mappings>> {
    Ok(parse(&fs::read_to_string(format!("/proc/{pid}/smaps"))?))
}

fn parse(smaps: &str) -> Vec<Mappings> {
    let empty = |kind| Mappings { kind, count: 0, reserved: 0, touched: 0, locked: 0 };
    let mut all = KINDS.map(empty);
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
    fn this_process_has_none() {
        assert_eq!(of(std::process::id()).unwrap(), []);
    }
}
