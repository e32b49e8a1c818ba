//! Connections that go on in the program that their process becomes (`docs/design/adoption.md`).
//!
//! The new program has nothing of the old one's memory. What it has is the connection's open file,
//! and the marks on that ([`super::passed`]). Before the exec the process puts a mark there which
//! says that this process becomes that program; the library in the new program looks for it before
//! anything of the program's runs. As long as it stands nobody has the connection alone.

use super::share::names_here;
use super::{key_of, passed, refuse, stdio};
use crate::fd_table::{self, Entry};
use crate::log::debug_log;
use crate::socket::{self, Event, Socket, State, flag};
use crate::{agent, candidates, carrier, numbers, process, sys, user};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering::*};
use netacc_control::stats::Reason;

/// Numbers below which a new program looks for connections.
const SCANNED: c_int = 64;
/// It looks no further behind so many that are closed.
const GAP: u32 = 16;
/// Scripts whose interpreter is a script, at most.
const SCRIPTS: u32 = 4;

// ---- which program ------------------------------------------------------------------------------

/// Whose mark it is: a process, and the file of the program that it becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Heir(i64);

impl Heir {
    fn new(pid: u32, program: c_int) -> Option<Heir> {
        let (device, inode) = sys::inode(program)?;
        // (Nobody gains by another file of the same sum: it would be a program of his own.)
        let sum = (device ^ inode.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> (64 - passed::PROGRAM_BITS);
        let pid = u64::from(pid) % (1 << passed::PID_BITS);
        i64::try_from(pid << passed::PROGRAM_BITS | sum).ok().map(Heir)
    }

    /// This process, as what it is now.
    fn now() -> Option<Heir> {
        numbers::exclusively(|| {
            let fd = sys::open(b"/proc/self/exe\0", libc::O_PATH | libc::O_CLOEXEC, 0) as c_int;
            let heir = Heir::new(sys::getpid(), fd);
            let _ = sys::close(fd);
            heir
        })
    }

    /// This process, as what an exec of the file `path` below `dir` makes of it. `None`: that is
    /// not known, or has not the library.
    ///
    /// # Safety
    /// `path` is a C string, or what an application says is one.
    pub(crate) unsafe fn after(dir: c_int, path: *const u8, flags: c_int) -> Option<Heir> {
        // SAFETY: the kernel looks at it.
        numbers::exclusively(|| follow(unsafe { open_program(dir, path, flags) }))
    }
}

impl Heir {
    /// As [`Heir::after`], of a file that `execvp(3)` looks for in the folders of `path`; null:
    /// where it looks then.
    ///
    /// # Safety
    /// `path` is null or a C string, `file` what an application says is one.
    pub(crate) unsafe fn found(path: *const u8, file: *const u8) -> Option<Heir> {
        let mut name = [0u8; 256];
        // SAFETY: the caller's promise.
        let name = unsafe { text(file, &mut name) }?;
        if name.contains(&b'/') {
            // SAFETY: as above.
            return unsafe { Heir::after(libc::AT_FDCWD, file, 0) };
        }
        let mut folders = [0u8; 4096];
        let folders = match path.is_null() {
            true => b"/bin:/usr/bin".as_slice(),
            // SAFETY: the caller's promise.
            false => unsafe { text(path, &mut folders) }?,
        };
        for folder in folders.split(|b| *b == b':') {
            let mut whole = [0u8; 4096];
            let slash = usize::from(!folder.is_empty());
            let end = folder.len() + slash;
            whole.get_mut(..folder.len())?.copy_from_slice(folder);
            if slash != 0 {
                *whole.get_mut(folder.len())? = b'/';
            }
            whole.get_mut(end..end + name.len())?.copy_from_slice(name);
            if sys::is_executable(whole.get(..=end + name.len())?) {
                // SAFETY: it ends in NUL.
                return unsafe { Heir::after(libc::AT_FDCWD, whole.as_ptr(), 0) };
            }
        }
        None
    }
}

/// A C string of the application's, if there is room for it.
///
/// # Safety
/// It may be anything: the copy finds out.
unsafe fn text(from: *const u8, into: &mut [u8]) -> Option<&[u8]> {
    for i in 0..into.len() {
        // SAFETY: the caller's promise.
        let byte = unsafe { user::read(from.wrapping_add(i)) }?;
        if byte == 0 {
            return into.get(..i);
        }
        *into.get_mut(i)? = byte;
    }
    None
}

/// # Safety
/// As [`sys::open_at`].
unsafe fn open_program(dir: c_int, path: *const u8, flags: c_int) -> c_int {
    let open = |how: c_int| {
        // SAFETY: the caller's promise.
        unsafe { sys::open_at(dir, path, how | libc::O_CLOEXEC | libc::O_NONBLOCK) as c_int }
    };
    if flags & libc::AT_EMPTY_PATH != 0 {
        return sys::fcntl(dir, libc::F_DUPFD_CLOEXEC, 0) as c_int;
    }
    match open(libc::O_RDONLY) {
        // (Who may run a file need not be allowed to read it.)
        error if error < 0 => open(libc::O_PATH),
        fd => fd,
    }
}

/// From a script to its interpreter. Closes `program`.
fn follow(mut program: c_int) -> Option<Heir> {
    for _ in 0..SCRIPTS {
        let heir = Heir::new(sys::getpid(), program).filter(|_| runs_as_we_do(program));
        let mut line = [0u8; 256];
        let n = sys::pread(program, &mut line, 0);
        let _ = sys::close(program);
        let Some(path) = interpreter(&mut line, usize::try_from(n).unwrap_or(0)) else {
            return heir;
        };
        // SAFETY: it ends in NUL.
        program = unsafe { open_program(libc::AT_FDCWD, path.as_ptr(), 0) };
    }
    let _ = sys::close(program);
    None
}

/// A program of another user's rights starts without the library.
fn runs_as_we_do(program: c_int) -> bool {
    sys::file_of(program).is_some_and(|(mode, _)| {
        mode & libc::S_IFMT == libc::S_IFREG && mode & (libc::S_ISUID | libc::S_ISGID) == 0
    })
}

/// What the first line of a script names, with a NUL behind it.
fn interpreter(line: &mut [u8; 256], len: usize) -> Option<&[u8]> {
    let text = line.get(..len)?;
    if !text.starts_with(b"#!") {
        return None;
    }
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let begin = 2 + text.get(2..)?.iter().position(|b| !blank(b))?;
    let ends = |b: &u8| blank(b) || matches!(b, b'\n' | 0);
    let end = begin + text.get(begin..)?.iter().position(ends)?;
    *line.get_mut(end)? = 0;
    line.get(begin..=end)
}

// ---- before -------------------------------------------------------------------------------------

/// What an exec is called with, as the application has it.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// As for `execveat(2)`.
    pub dir: c_int,
    /// Likewise; of `execvp(3)` the file.
    pub path: *const c_char,
    /// Likewise.
    pub flags: c_int,
    /// Of `execvp(3)`: the folders to look in, or null. `None`: it is not looked for.
    pub search: Option<*const c_char>,
    /// The new program's environment.
    pub environment: *const *const c_char,
}

impl Program {
    /// What it makes of this process.
    ///
    /// # Safety
    /// The pointers may be anything, `search` is null or a C string.
    pub(crate) unsafe fn heir(&self) -> Option<Heir> {
        // SAFETY: the caller's promise.
        if BY_ENVIRONMENT.load(Relaxed) && !unsafe { names_library(self.environment) } {
            return None;
        }
        let (path, flags) = (self.path.cast(), self.flags);
        match self.search {
            // SAFETY: as above.
            Some(folders) => unsafe { Heir::found(folders.cast(), path) },
            // SAFETY: as above.
            None => unsafe { Heir::after(self.dir, path, flags) },
        }
    }
}

/// The library was loaded because the environment says so.
static BY_ENVIRONMENT: AtomicBool = AtomicBool::new(false);
const LIBRARY: &[u8] = b"libnetacc";

fn has_library(value: &[u8]) -> bool {
    value.windows(LIBRARY.len()).any(|w| w == LIBRARY)
}

/// Whether an environment says that the library is to be loaded.
///
/// # Safety
/// It may be anything.
unsafe fn names_library(environment: *const *const c_char) -> bool {
    const NAME: &[u8] = b"LD_PRELOAD=";
    let mut at = environment;
    // SAFETY: the copy finds out.
    while let Some(entry) = unsafe { user::read(at) }.filter(|e| !e.is_null()) {
        // (An entry that is shorter ends before what does not fit.)
        let is_it = NAME.iter().enumerate().all(|(i, b)| {
            let at = entry.cast::<u8>().wrapping_add(i);
            // SAFETY: as above.
            let byte = unsafe { user::read(at) };
            byte == Some(*b)
        });
        if is_it {
            let mut value = [0u8; 4096];
            // SAFETY: as above.
            let value = unsafe { text(entry.cast::<u8>().wrapping_add(NAME.len()), &mut value) };
            return value.is_some_and(has_library);
        }
        at = at.wrapping_add(1);
    }
    false
}

/// This process is about to become `heir`, which has the descriptor `fd`. True: it can go on with
/// the connection there. False: it has to be the kernel's.
pub(crate) fn hand_over(fd: c_int, heir: Heir) -> bool {
    let Some((s, g)) = fd_table::socket(fd) else { return false };
    // (Its maker may be in the middle of its close: that is waited for.)
    let (s, g) = super::of(s, g, fd);
    // (Each of its names: under one that is not found the new program would read past the library.)
    if s.is_inherited() || !is_found(fd) {
        return false;
    }
    if s.has(flag::HANDED) {
        return true;
    }
    let given = is_own_alone(s, g) && process::between_forks(|| give(s, fd, heir)) == Some(true);
    if given {
        debug_log!("fd {fd}: is handed to the program that this process becomes");
    }
    given
}

/// The new program will find the descriptor ([`start`]).
fn is_found(fd: c_int) -> bool {
    let mut closed = 0;
    for n in 0..fd.min(SCANNED) {
        let flags = sys::fcntl(n, libc::F_GETFD, 0);
        let goes = flags < 0 || flags & libc::FD_CLOEXEC as isize != 0;
        closed = if goes { closed + 1 } else { 0 };
        if closed == GAP {
            return false;
        }
    }
    (0..SCANNED).contains(&fd)
}

/// Nobody of this process's children has it, no agreement is as far as an offer, and the kernel can
/// tell the new program all that this one knows of it.
fn is_own_alone(s: &'static Socket, g: u16) -> bool {
    let flags = s.flags.load(SeqCst);
    let unseen = flag::PASSED | flag::CONTESTED;
    s.is(State::Candidate)
        && s.names() == names_here(s, g)
        && s.registrations.load(Acquire) == 0
        && s.children_follow()
        && (flags & unseen == 0 || flags & flag::TRACKED != 0)
        && !passed::never_waits(s)
        && !s.offered.is_made()
}

/// The marks of a hand-over. While nobody forks.
fn give(s: &'static Socket, fd: c_int, heir: Heir) -> bool {
    let was = s.flags.fetch_or(flag::CONTESTED | flag::TRACKED | flag::HANDED, SeqCst);
    // (Nothing is offered from here on.)
    agent::forget(s);
    let connector = was & flag::CONNECTOR != 0;
    let given = passed::hold(fd)
        && if was & flag::TRACKED != 0 {
            passed::know_later(fd, connector, heir.0)
        } else {
            leave_family(s, fd) && passed::announce(fd, connector, heir.0)
        };
    if !given {
        passed::forget(fd);
        give_up(s);
    }
    given
}

/// This process goes on with what is not counted in the memory of its maker any more: nobody adopts
/// it.
fn give_up(s: &Socket) {
    // SAFETY: as in `give_back`.
    if let Some(from) = unsafe { s.from.swap(core::ptr::null_mut(), AcqRel).as_ref() } {
        refuse(from, key_of(s).0);
    }
}

/// A forked child hands on what its maker, or other children of that, may have too: they are
/// counted in the maker's memory, of which the new program knows nothing. A mark stands for all of
/// them, until the last one has closed it ([`family_ended`]).
fn leave_family(s: &'static Socket, fd: c_int) -> bool {
    // SAFETY: as in `give_back`.
    let Some(from) = (unsafe { s.from.load(Acquire).as_ref() }) else { return true };
    let (g, names) = key_of(s);
    // In this order: who is the last one finds the flag.
    if !passed::mark_family(fd) {
        return false;
    }
    from.flags.fetch_or(flag::FAMILY, SeqCst);
    let counted = from.count_names(g, |n| n.saturating_sub(names));
    s.from_key.store(u64::from(g), Release);
    if counted == Some(names) {
        // Its maker has counted itself out. It has left it by then, or finds the flag.
        if from.is(State::Closing) {
            socket::await_close(from);
        }
        if from.state.change(State::Left, Event::Adopted) {
            passed::unmark_family(fd);
        }
    }
    counted.is_some()
}

/// The last name of a connection is about to be closed that a child of its maker's has handed on.
/// `idle`: no call is under way on it.
pub(crate) fn family_ended(s: &Socket, fd: c_int, idle: bool) {
    if idle && fd >= 0 && !s.has(flag::UNSETTLED) {
        passed::unmark_family(fd);
    }
}

/// The exec has failed: this process goes on, with what it has handed over.
pub(crate) fn failed() {
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, _) = entry else { return };
        if s.is_inherited() || !s.has(flag::HANDED) {
            return;
        }
        passed::lose_track(s, fd);
        candidates::make_plain(s, Reason::InheritedByExec);
        give_up(s);
    });
}

// ---- behind -------------------------------------------------------------------------------------

/// The library starts: what the program before has handed to this one becomes a candidate.
/// `preloaded`: LD_PRELOAD.
pub(crate) fn start(preloaded: Option<&str>) {
    BY_ENVIRONMENT.store(preloaded.is_some_and(|p| has_library(p.as_bytes())), Relaxed);
    let (mut heir, mut closed) = (None, 0);
    for fd in 0..SCANNED {
        // (Asks no file: it could take as long as its maker likes.)
        let mut protocol: c_int = 0;
        let r = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol);
        closed = if r == -(libc::EBADF as isize) { closed + 1 } else { 0 };
        if closed == GAP {
            break;
        }
        if r >= 0 && protocol == libc::IPPROTO_TCP && fd_table::raw(fd) == 0 {
            if heir.is_none() {
                heir = Heir::now();
            }
            let Some(heir) = heir else { return };
            take_over(fd, heir);
        }
    }
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, _) = entry
            && s.has(flag::UNSETTLED)
        {
            // (Most often it has been closed by everybody else long ago.)
            super::go_alone_at_once(s, fd);
        }
    });
}

fn cookie(fd: c_int) -> u64 {
    let mut cookie = 0u64;
    let _ = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie);
    cookie
}

fn take_over(fd: c_int, heir: Heir) {
    let mut same = None;
    fd_table::for_each(|other, entry| {
        if let Entry::Socket(s, g) = entry
            && same.is_none()
            && cookie(other) == cookie(fd)
        {
            same = Some((s, g));
        }
    });
    if let Some((s, g)) = same {
        let _ = s.count_names(g, |n| n.saturating_add(1));
        fd_table::set(fd, Entry::Socket(s, g));
        stdio::named(s, fd);
        return;
    }
    let Some(connector) = passed::is_handed(fd, heir.0) else { return };
    let (true, Some(tuple), Some(moved)) = (
        passed::take_over(fd, connector, heir.0),
        carrier::tuple_of(fd),
        carrier::settled_counts(fd, connector),
    ) else {
        return passed::forget(fd);
    };
    let Some(s) = candidates::new_heir(fd, Reason::None, connector, tuple, moved) else {
        return passed::forget(fd);
    };
    s.raise(flag::HEIR | flag::UNSETTLED | flag::TRACKED | flag::EXECED | flag::LATE);
    if s.is(State::Candidate) {
        if s.children_follow() {
            s.set_reason(Reason::InheritedByExec);
        } else {
            candidates::make_plain(s, Reason::InheritedByExec);
        }
    }
    debug_log!("{tuple:?}: handed over, sent {} received {}", moved.0, moved.1);
    fd_table::set(fd, Entry::Socket(s, s.generation16()));
    stdio::named(s, fd);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    fn named(text: &[u8]) -> Option<std::string::String> {
        let mut line = [0u8; 256];
        line.get_mut(..text.len()).unwrap().copy_from_slice(text);
        let path = interpreter(&mut line, text.len())?;
        assert_eq!(path.last(), Some(&0));
        Some(std::string::String::from_utf8_lossy(path.split_last().unwrap().1).into())
    }

    #[test]
    fn a_script_names_its_interpreter() {
        assert_eq!(named(b"#!/bin/sh\n").as_deref(), Some("/bin/sh"));
        assert_eq!(named(b"#! \t/usr/bin/env python3\nx").as_deref(), Some("/usr/bin/env"));
        assert_eq!(named(b"#!/bin/sh"), None, "no end of line was read");
        assert_eq!(
            (named(b"#!"), named(b"#"), named(b""), named(b"\x7fELF")),
            (None, None, None, None)
        );
        assert_eq!(named(&[b'#', b'!'].repeat(128)), None);
    }

    #[test]
    fn a_program_is_known_by_its_file() {
        let at = |path: &[u8]| {
            // SAFETY: C strings.
            unsafe { Heir::after(libc::AT_FDCWD, path.as_ptr(), 0) }
        };
        assert_eq!(at(b"/proc/self/exe\0"), Heir::now());
        assert!(Heir::now().is_some());
        assert_ne!(at(b"/bin/ls\0"), Heir::now());
        assert!(at(b"/bin/ls\0").is_some());
        assert_eq!((at(b"/nonexistent\0"), at(b"/dev/null\0"), at(b"/tmp\0")), (None, None, None));
        // SAFETY: not mapped, which the kernel says.
        assert_eq!(unsafe { Heir::after(libc::AT_FDCWD, 8 as *const u8, 0) }, None);
    }
}
