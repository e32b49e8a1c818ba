//! What this process's threads sleep in, as the kernel tells it (proc(5)).

use super::{Lying, POLLED, SAID, is_waited_for, mark_one, mark_waited};
use crate::fd_table::{self, Entry};
use crate::rendezvous::auth::read_start;
use crate::rendezvous::decimal_path;
use crate::sets::sets;
use crate::{numbers, sys};
use core::ffi::c_int;
use libc::pollfd;

/// The names of the library's threads.
const OWN_THREADS: [&[u8]; 10] = [
    b"netacc",
    b"netacc-rdma",
    b"netacc-utcp",
    b"netacc-io",
    b"netacc-connect",
    b"netacc-look",
    b"netacc-pull",
    b"netacc-close",
    b"netacc-files",
    b"netacc-off",
];

/// What `stat` (proc(5)) says of a thread. `Some(false)`: it is the library's; `None`: it does not
/// sleep.
pub(super) fn asleep(said: &[u8]) -> Option<bool> {
    let name = said.iter().position(|b| *b == b'(')?;
    let end = said.iter().rposition(|b| *b == b')')?;
    if OWN_THREADS.contains(&said.get(name + 1..end)?) {
        return Some(false);
    }
    said.get(end..)?.starts_with(b") S").then_some(true)
}

/// Calls `f` with the number of each thread of this process, and the beginning of a file of its.
pub(super) fn for_each_task(file: &[u8], mut f: impl FnMut(u32, &[u8])) {
    let mut path = [0u8; 48];
    let tasks = numbers::make(|| {
        sys::open(b"/proc/self/task\0", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)
    });
    if tasks < 0 {
        return;
    }
    let mut names = [0u8; 4096];
    loop {
        let n = sys::getdents(tasks, &mut names);
        let Some(list) = names.get(..n.max(0) as usize).filter(|l| !l.is_empty()) else { break };
        // struct linux_dirent64: inode, offset, length of the entry, type, name.
        let mut at = 0;
        while let Some(entry) = list.get(at..) {
            let Some(length) = entry
                .get(16..18)
                .and_then(|b| Some(usize::from(u16::from_ne_bytes(b.try_into().ok()?))))
                .filter(|l| *l > 19)
            else {
                break;
            };
            at += length;
            let Some(tid) = entry.get(19..length).and_then(number) else { continue };
            let len = decimal_path(b"/proc/self/task/", tid, &mut path);
            if let Some(rest) = path.get_mut(len..len + file.len()) {
                rest.copy_from_slice(file);
            }
            let mut said = [0u8; 256];
            let n = read_start(path.get(..len + file.len()).unwrap_or(&[0]), &mut said);
            f(tid, said.get(..n).unwrap_or(&[]));
        }
    }
    fd_table::close_internal(tasks);
}

/// The decimal number that the text begins with.
fn number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit());
    let value = digits.fold((0u32, false), |(n, _), b| {
        (n.wrapping_mul(10).wrapping_add(u32::from(b - b'0')), true)
    });
    value.1.then_some(value.0)
}

/// The hexadecimal number that the text begins with.
fn hex(text: &[u8]) -> Option<u64> {
    let digits = text.iter().map_while(|b| char::from(*b).to_digit(16));
    let value = digits.fold((0u64, false), |(n, _), d| (n << 4 | u64::from(d), true));
    value.1.then_some(value.0)
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = text.iter().map_while(|b| char::from(*b).to_digit(10));
    digits.fold(None, |n: Option<u64>, d| {
        Some(n.unwrap_or(0).wrapping_mul(10).wrapping_add(u64::from(d)))
    })
}

/// What follows `label` in the text.
fn after<'a>(text: &'a [u8], label: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(label.len()).position(|w| w == label)?;
    text.get(at + label.len()..)
}

/// A thread in a system call: `NUMBER 0xARG...` (proc(5), /proc/pid/syscall).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) number: i64,
    pub(super) args: [u64; 3],
}

impl Waiter {
    /// `None`: the thread runs, or is elsewhere in the kernel.
    pub(super) fn of(said: &[u8]) -> Option<Waiter> {
        let mut words = said.split(|b| b.is_ascii_whitespace());
        let number = i64::from(number(words.next()?)?);
        let mut args = [0; 3];
        for arg in &mut args {
            *arg = hex(words.next()?.strip_prefix(b"0x")?)?;
        }
        Some(Waiter { number, args })
    }

    pub(super) fn mark(&self, tid: u32, lying: &mut [Lying]) {
        let fd = self.args[0] as c_int;
        let is = |list: &[i64]| list.contains(&self.number);
        if is(&[
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
        ]) {
            // The library's own calls on an attached connection never wait.
            mark_one(tid, fd, lying);
        } else if is(&EPOLL_WAITS) {
            self.mark_set(tid, fd, lying);
        } else if is(&POLLS) {
            self.mark_polled(tid, lying);
        } else if is(&SELECTS) {
            self.mark_selected(tid, lying);
        } else if self.number == libc::SYS_io_uring_enter
            && !matches!(fd_table::get(fd), Entry::Ring(_))
            && has_polls(fd)
        {
            // What it waits for the kernel does not tell.
            lying.iter_mut().for_each(|l| l.waits = tid);
        }
    }

    /// The thread waits for an epoll set past the library: the connection's own, in which nobody
    /// sleeps by a seen call; or another one that has it in the kernel, which then a raw call has
    /// put there.
    pub(super) fn mark_set(&self, tid: u32, set: c_int, lying: &mut [Lying]) {
        let entry = fd_table::get(set);
        if matches!(entry, Entry::Internal) {
            return;
        }
        let is_home = |l: &Lying| matches!(entry, Entry::Epoll(e) if sets().is_home(e, l.socket));
        if let Entry::Epoll(e) = entry
            && !sets().is_slept_in(e)
        {
            lying.iter_mut().filter(|l| is_home(l)).for_each(|l| l.waits = tid);
        }
        for_each_line(set, |line| {
            // "tfd: 7 events: 1 data: 7 pos:0 ino:1f sdev:8"
            let events = after(line, b"events:").map(<[u8]>::trim_ascii_start).and_then(hex);
            let inode = after(line, b" ino:").and_then(hex);
            if line.starts_with(b"tfd:") && events.is_some_and(|e| e & libc::EPOLLIN as u64 != 0) {
                lying
                    .iter_mut()
                    .filter(|l| inode == Some(l.inode) && !is_home(l))
                    .for_each(|l| l.waits = tid);
            }
        });
    }

    pub(super) fn mark_polled(&self, tid: u32, lying: &mut [Lying]) {
        let count = (self.args[1] as usize).min(POLLED);
        let mut part = [pollfd { fd: -1, events: 0, revents: 0 }; 64];
        let mut at = 0;
        while at < count {
            let n = (count - at).min(part.len());
            let Some(some) = part.get_mut(..n) else { return };
            if !sys::read_own(self.args[0] as usize + at * size_of::<pollfd>(), some) {
                return;
            }
            for p in some.iter().filter(|p| p.events & libc::POLLIN != 0) {
                mark_waited(tid, p.fd, lying);
            }
            at += n;
        }
    }

    pub(super) fn mark_selected(&self, tid: u32, lying: &mut [Lying]) {
        for l in lying.iter_mut().filter(|l| (l.fd as u64) < self.args[0]) {
            let mut byte = [0u8];
            let at = (self.args[1] as usize).wrapping_add(l.fd as usize / 8);
            if self.args[1] != 0
                && sys::read_own(at, &mut byte)
                && byte[0] >> (l.fd % 8) & 1 != 0
                && !is_waited_for(l.socket)
            {
                l.waits = tid;
            }
        }
    }
}

const EPOLL_WAITS: [i64; 3] = [
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(not(target_arch = "x86_64"))]
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];
const POLLS: [i64; 2] = [
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(not(target_arch = "x86_64"))]
    libc::SYS_ppoll,
    libc::SYS_ppoll,
];
const SELECTS: [i64; 2] = [
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(not(target_arch = "x86_64"))]
    libc::SYS_pselect6,
    libc::SYS_pselect6,
];

/// As [`super::has_fired`].
pub(super) fn has_fired(set: c_int, fd: c_int) -> Option<bool> {
    let (_, inode) = sys::inode(fd)?;
    let mut found = None;
    for_each_line(set, |line| {
        let number = after(line, b"tfd:").map(<[u8]>::trim_ascii_start).and_then(decimal);
        let events = after(line, b"events:").map(<[u8]>::trim_ascii_start).and_then(hex);
        if number == Some(fd as u64) && after(line, b" ino:").and_then(hex) == Some(inode) {
            found = events;
        }
    });
    // The kernel leaves it nothing to wait for, not even errors.
    found.map(|events| events & ANY_EVENT == 0)
}

/// Of what a registration asks for: events, and no other flags.
const ANY_EVENT: u64 = 0xffff;

/// Something is polled for in this io_uring: its `PollList` has an entry (`  op=6, task_works=0`).
pub(super) fn has_polls(ring: c_int) -> bool {
    let (mut polls, mut inside) = (false, false);
    for_each_line(ring, |line| {
        polls |= inside && line.trim_ascii_start().starts_with(b"op=");
        inside = line.starts_with(b"PollList") || (inside && line.starts_with(b" "));
    });
    polls
}

/// Calls `f` for each line of what the kernel says of a descriptor.
fn for_each_line(fd: c_int, mut f: impl FnMut(&[u8])) {
    let mut path = [0u8; 48];
    let len = decimal_path(b"/proc/self/fdinfo/", fd as u32, &mut path);
    if let Some(end) = path.get_mut(len) {
        *end = 0;
    }
    let info = numbers::make(|| {
        sys::open(path.get(..len + 1).unwrap_or(&[0]), libc::O_RDONLY | libc::O_CLOEXEC, 0)
    });
    if info < 0 {
        return;
    }
    let mut text = [0u8; 4096];
    let (mut have, mut total) = (0, 0);
    while total < SAID {
        let n = text.get_mut(have..).map_or(0, |room| sys::read(info, room)).max(0) as usize;
        if n == 0 {
            break;
        }
        (have, total) = (have + n, total + n);
        let mut from = 0;
        while let Some(length) =
            text.get(from..have).and_then(|rest| rest.iter().position(|b| *b == b'\n'))
        {
            f(text.get(from..from + length).unwrap_or(&[]));
            from += length + 1;
        }
        // (A line that does not fit is none of those that count.)
        from = if from == 0 && have == text.len() { have } else { from };
        text.copy_within(from..have, 0);
        have -= from;
    }
    fd_table::close_internal(info);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    extern crate std;
    use std::string::ToString;

    /// The names that the code below `dir` gives to threads.
    fn named(dir: &std::path::Path, found: &mut std::vec::Vec<std::string::String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                named(&entry, found);
                continue;
            }
            let text = std::fs::read_to_string(&entry).unwrap();
            let calls = text.split("name_thread(b\"").skip(1);
            found.extend(calls.filter_map(|rest| Some(rest.split_once("\\0")?.0.to_string())));
        }
    }

    #[test]
    fn all_threads_of_the_librarys_are_known() {
        let mut names = std::vec::Vec::new();
        named(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
        // (A process of its own.)
        names.retain(|name| name != "netacc-keeper");
        assert!(names.len() >= OWN_THREADS.len(), "{names:?}");
        for name in names {
            assert!(OWN_THREADS.contains(&name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_the_kernel_says_of_a_thread_is_understood() {
        assert_eq!(
            Waiter::of(b"232 0x5 0x7ffc 0x20 0xffffffffffffffff 0x0 0x8 0x7ffd 0x7f01\n"),
            Some(Waiter { number: 232, args: [5, 0x7ffc, 0x20] })
        );
        assert_eq!(Waiter::of(b"running\n"), None);
        assert_eq!(Waiter::of(b"-1 0x7ffd 0x7f01\n"), None);
        assert_eq!(Waiter::of(b""), None);
        assert_eq!(asleep(b"7 (a) b) S 1 7"), Some(true));
        assert_eq!(asleep(b"7 (netacc-io) S 1 7"), Some(false));
        assert_eq!(asleep(b"7 (netacc-conforma) S 1 7"), Some(true));
        assert_eq!(asleep(b"7 (S) R 1 7"), None);
        assert_eq!(asleep(b""), None);
        let line = b"tfd:        7 events:       1 data:                7  pos:0 ino:1f sdev:8";
        assert_eq!(after(line, b" ino:").and_then(hex), Some(0x1f));
        assert_eq!(after(line, b"events:").map(<[u8]>::trim_ascii_start).and_then(hex), Some(1));
        assert_eq!(after(line, b"tfd:").map(<[u8]>::trim_ascii_start).and_then(decimal), Some(7));
        assert_eq!((decimal(b"10 "), decimal(b" "), decimal(b"")), (Some(10), None, None));
    }
}
