//! A watch over bytes that lie in a ring and nobody comes for.
//!
//! A program whose waits were seen when a connection was promoted may wait by calls of its own
//! later. It would sleep for good: its peer tells nobody but those whose waits are seen. So:
//!
//! * The *sender's* thread `netacc` looks, a second after a process has begun to send into rings
//!   and every second while any of it is unread, whose head stands still, and has the peer's
//!   library told (`Message::Unread`): after 1, 2, 4... seconds, 32 at last. Where all is read
//!   nobody looks any more, so an idle process has nothing to do.
//! * The *receiver's* library then looks what its own threads do ([`Waiter`]). If one of them sits
//!   in a call that waits for the connection, or receives from it, and that the library has not
//!   made, and sits there still a moment later, with the same bytes unread, the connection goes
//!   back to TCP for good: the call finds its bytes there. A program that computes, sleeps, is
//!   stopped, or leaves bytes alone on purpose has no such thread, and nothing happens. Where the
//!   kernel does not say what threads do (user-mode Linux; a process that is not dumpable, and not
//!   root's) they are taken to wait when all of them sleep, for four seconds.
//!
//! What the peer says makes this process look, twice a second at most, and nothing else.
//!
//! Between hosts the receiver's own thread `netacc-rdma` does what the sender's does within one,
//! from the first bytes that come: they make no news for the kernel there either, and it is this
//! process that hears of them.

use super::ends::{rx_of, tx_of};
use super::leave::to_kernel;
use crate::fd_table::{self, Entry};
use crate::lock::try_lock_end;
use crate::rendezvous::auth::read_start;
use crate::rendezvous::decimal_path;
use crate::sets::sets;
use crate::socket::{Socket, State, flag};
use crate::{agent, control, numbers, rdma_thread, sys, thread};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicBool, AtomicU64};
use libc::pollfd;
use netacc_control::stats::Reason;

/// How long bytes lie before somebody looks, and between two looks.
const LOOK_NS: u64 = 1_000_000_000;
/// Looks of a sender at bytes that stay where they are.
const LOOKS: u32 = 64;
/// The peer's word counts again after so long.
const AGAIN_NS: u64 = 500_000_000;
/// Between the two looks at the threads.
const STILL_NS: i64 = 100_000_000;
/// The same where it is not known what they do.
const ASLEEP_NS: i64 = 4_000_000_000;
/// Connections that one look is for.
const MOST: usize = 1024;
/// Descriptors of one `poll` that are looked at.
const POLLED: usize = 4096;
/// Bytes of what the kernel says of an epoll set that are read.
const SAID: usize = 4 << 20;

/// Somebody looks within a second what is unread.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// When the peer's word last counted.
static HEARD_AT: AtomicU64 = AtomicU64::new(0);
/// A thread looks what the others do.
static LOOKING: AtomicBool = AtomicBool::new(false);

// ---- the sender ---------------------------------------------------------------------------------

/// Bytes were put into a ring: one load, nearly always.
#[inline]
pub(super) fn watch() {
    if !WATCHED.load(Relaxed) {
        begin();
    }
}

#[cold]
#[inline(never)]
fn begin() {
    if agent::here().is_running() && !WATCHED.swap(true, SeqCst) {
        agent::here().watch_at(sys::now_ns().saturating_add(LOOK_NS));
    }
}

/// In a forked child: nobody does.
pub(crate) fn forget() {
    WATCHED.store(false, Relaxed);
    LOOKING.store(false, Relaxed);
}

/// Connections whose first name is `fd`, and on the paths between hosts or within this one, as
/// `remote` says.
fn is_watched(s: &Socket, fd: c_int, remote: bool) -> bool {
    s.is(State::Attached)
        && !s.is_inherited()
        && s.has(flag::REMOTE) == remote
        && s.fd.load(Relaxed) == fd
}

/// Counts a look that finds the reader at `head`, or nothing unread. True: somebody should look
/// what this reader does.
fn count_look(s: &Socket, head: Option<u64>, more: &mut bool) -> bool {
    let stood = s.stood.load(Relaxed);
    let looks = match head {
        None => 0,
        Some(head) if stood != 0 && s.stood_at.load(Relaxed) == head => {
            stood.saturating_add(1).min(LOOKS)
        }
        Some(_) => 1,
    };
    s.stood.store(looks, Relaxed);
    s.stood_at.store(head.unwrap_or(0), Relaxed);
    *more |= (1..LOOKS).contains(&looks);
    looks > 1 && (looks - 1).is_power_of_two()
}

/// As [`count_look`], where the end is somebody's at the moment, or its owner has left a call by a
/// jump: it is asked next time.
fn count_vain_look(s: &Socket, more: &mut bool) {
    let looks = s.stood.load(Relaxed).saturating_add(1).min(LOOKS);
    s.stood.store(looks, Relaxed);
    *more |= looks < LOOKS;
}

/// Looks at all that this process has sent into rings. When to look again; 0: not before more is
/// sent. Service thread.
pub(crate) fn look_at_unread() -> u64 {
    // Before the looks: what is sent after them begins anew.
    WATCHED.store(false, SeqCst);
    let mut more = false;
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, _) = entry else { return };
        // (Once for all its names.)
        if !is_watched(s, fd, false) {
            return;
        }
        // Under the lock the words and the channel stay.
        let Some(free) = try_lock_end(&s.tx_lock) else { return count_vain_look(s, &mut more) };
        let Ok(h) = tx_of(s, s.generation16(), (free, false)) else { return };
        let (head, tail) = (h.words.head.load(Relaxed), h.published.tail.load(Relaxed));
        if count_look(s, (head != tail).then_some(head), &mut more) {
            let _ = control::send_unread(h.channel, h.slot);
        }
    });
    if more && !WATCHED.swap(true, SeqCst) { sys::now_ns().saturating_add(LOOK_NS) } else { 0 }
}

// ---- between hosts: the receiver ----------------------------------------------------------------

/// As [`look_at_unread`], at what has come from other hosts. Thread "netacc-rdma".
pub(crate) fn look_at_unread_here() -> u64 {
    rdma_thread::UNREAD.begin_look();
    let (mut more, mut due) = (false, false);
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, g) = entry else { return };
        if !is_watched(s, fd, true) {
            return;
        }
        let Some(free) = try_lock_end(&s.rx_lock) else { return count_vain_look(s, &mut more) };
        let Ok(mut h) = rx_of(s, g, (free, false)) else { return };
        let head = h.unread().is_ok_and(|n| n > 0).then(|| h.end.switch.offset());
        due |= count_look(s, head, &mut more);
    });
    if due {
        hear_unread();
    }
    if more { rdma_thread::look_at_unread_again() } else { 0 }
}

// ---- the receiver -------------------------------------------------------------------------------

/// A peer says that bytes lie unread here, or this process has found it. Service thread, or thread
/// "netacc-rdma".
pub(crate) fn hear_unread() {
    let (now, heard) = (sys::now_ns(), HEARD_AT.load(Relaxed));
    if heard != 0 && now.saturating_sub(heard) < AGAIN_NS {
        return;
    }
    HEARD_AT.store(now, Relaxed);
    if !LOOKING.swap(true, SeqCst) && !thread::spawn(run, core::ptr::null_mut()) {
        LOOKING.store(false, SeqCst);
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-look\0");
    look();
    LOOKING.store(false, SeqCst);
    core::ptr::null_mut()
}

/// A connection with bytes unread in its ring.
struct Lying {
    socket: &'static Socket,
    generation: u16,
    fd: c_int,
    inode: u64,
    head: u64,
    /// The thread that waits for it unseen, and the one that did at the last look.
    waits: u32,
    before: u32,
}

fn look() {
    let mut lying = lying();
    if lying.is_empty() {
        return;
    }
    let told = find_waiters(&mut lying);
    lying.retain(|l| l.waits != 0);
    if lying.is_empty() {
        return;
    }
    sys::pause_ns(if told { STILL_NS } else { ASLEEP_NS });
    lying.iter_mut().for_each(|l| {
        l.before = core::mem::take(&mut l.waits);
        if unread_at(l.socket, l.generation) != Some(l.head) {
            l.inode = 0;
        }
    });
    find_waiters(&mut lying);
    for l in &lying {
        if l.waits != l.before || l.inode == 0 {
            continue;
        }
        crate::log::warn_log!(
            "fd {}: thread {} waits for it by a call that the library does not see: back to TCP",
            l.fd,
            l.waits
        );
        let _ = to_kernel(l.socket, l.generation, l.fd, Reason::WaitsUnseen, false);
    }
}

/// Where in the stream the bytes lie that are to be read and are in the ring alone.
fn unread_at(s: &'static Socket, g: u16) -> Option<u64> {
    let mut h = rx_of(s, g, (try_lock_end(&s.rx_lock)?, false)).ok()?;
    (h.unread().ok()? > 0).then(|| h.end.switch.offset())
}

fn lying() -> Vec<Lying> {
    let mut all = Vec::new();
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, g) = entry else { return };
        if !is_watched(s, fd, s.has(flag::REMOTE)) || all.len() == MOST {
            return;
        }
        let (Some(head), Some((_, inode))) = (unread_at(s, g), sys::inode(fd)) else { return };
        if all.try_reserve(1).is_ok() {
            all.push(Lying { socket: s, generation: g, fd, inode, head, waits: 0, before: 0 });
        }
    });
    all
}

/// Marks those for which a thread of this process waits by a call that is not the library's. False:
/// the kernel does not say what threads do, and those are marked for which nobody waits by a seen
/// call, if all threads sleep.
fn find_waiters(lying: &mut [Lying]) -> bool {
    let mut told = false;
    for_each_task(b"/syscall\0", |tid, said| {
        told |= !said.is_empty();
        if let Some(waiter) = Waiter::of(said) {
            waiter.mark(tid, lying);
        }
    });
    if told {
        return true;
    }
    let mut sleeper = Some(0);
    for_each_task(b"/stat\0", |tid, said| match asleep(said) {
        Some(true) => sleeper = sleeper.map(|_| tid),
        Some(false) => {}
        None => sleeper = None,
    });
    for l in lying.iter_mut().filter(|l| !is_waited_for(l.socket) && !sets().is_slept_for(l.socket))
    {
        l.waits = sleeper.unwrap_or(0);
    }
    false
}

/// The names of the library's threads.
const OWN_THREADS: [&[u8]; 8] = [
    b"netacc",
    b"netacc-rdma",
    b"netacc-io",
    b"netacc-connect",
    b"netacc-look",
    b"netacc-pull",
    b"netacc-close",
    b"netacc-files",
];

/// What `stat` (proc(5)) says of a thread. `Some(false)`: it is the library's; `None`: it does not
/// sleep.
fn asleep(said: &[u8]) -> Option<bool> {
    let name = said.iter().position(|b| *b == b'(')?;
    let end = said.iter().rposition(|b| *b == b')')?;
    if OWN_THREADS.contains(&said.get(name + 1..end)?) {
        return Some(false);
    }
    said.get(end..)?.starts_with(b") S").then_some(true)
}

/// Calls `f` with the number of each thread of this process, and the beginning of a file of its.
fn for_each_task(file: &[u8], mut f: impl FnMut(u32, &[u8])) {
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

/// What follows `label` in the text.
fn after<'a>(text: &'a [u8], label: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(label.len()).position(|w| w == label)?;
    text.get(at + label.len()..)
}

/// A thread in a system call: `NUMBER 0xARG...` (proc(5), /proc/pid/syscall).
#[derive(Debug, PartialEq, Eq)]
struct Waiter {
    number: i64,
    args: [u64; 3],
}

impl Waiter {
    /// `None`: the thread runs, or is elsewhere in the kernel.
    fn of(said: &[u8]) -> Option<Waiter> {
        let mut words = said.split(|b| b.is_ascii_whitespace());
        let number = i64::from(number(words.next()?)?);
        let mut args = [0; 3];
        for arg in &mut args {
            *arg = hex(words.next()?.strip_prefix(b"0x")?)?;
        }
        Some(Waiter { number, args })
    }

    fn mark(&self, tid: u32, lying: &mut [Lying]) {
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
    fn mark_set(&self, tid: u32, set: c_int, lying: &mut [Lying]) {
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

    fn mark_polled(&self, tid: u32, lying: &mut [Lying]) {
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

    fn mark_selected(&self, tid: u32, lying: &mut [Lying]) {
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

fn mark_one(tid: u32, fd: c_int, lying: &mut [Lying]) {
    if let Entry::Socket(s, _) = fd_table::get(fd) {
        lying.iter_mut().filter(|l| core::ptr::eq(l.socket, s)).for_each(|l| l.waits = tid);
    }
}

/// As [`mark_one`], unless the wait may be the library's own.
fn mark_waited(tid: u32, fd: c_int, lying: &mut [Lying]) {
    if let Entry::Socket(s, _) = fd_table::get(fd)
        && !is_waited_for(s)
    {
        mark_one(tid, fd, lying);
    }
}

/// A thread sleeps in a seen call that waits for the connection.
fn is_waited_for(s: &Socket) -> bool {
    s.channel().is_none() || s.published.posted.awaited().threads != [0; 2]
}

/// Something is polled for in this io_uring: its `PollList` has an entry (`  op=6, task_works=0`).
fn has_polls(ring: c_int) -> bool {
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
mod tests {
    use super::*;

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
    }
}
