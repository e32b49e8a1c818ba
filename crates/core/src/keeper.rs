//! A process that outlives the program: what it needs of the system. What it does is
//! `remote/keeper.rs`'s; `docs/design/keeper.md` has the reasons.
//!
//! It is made while the program still runs, has the program's memory (as the child of a vfork has
//! it, which costs nothing, however much that is) and descriptors of its own, and does nothing
//! until the program is gone: ended, or another one. From then on the memory is its alone, as it
//! was at that moment, and it gives back what is the program's.

use crate::{fd_words, heap, mapped, numbers, process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

const STACK: usize = 128 * 1024;

/// Who makes the keeper, and what it runs.
struct Middle {
    top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    made: AtomicBool,
}

/// Makes a process that runs `entry(argument)` in this memory, with copies of this process's
/// descriptors and all signals blocked, as they are in the calling thread. It is nobody's child
/// (its maker ends at once), no debugger follows it, and no signal tells of it. False: refused.
pub(crate) fn spawn(entry: extern "C" fn(usize) -> !, argument: usize) -> bool {
    let stacks = sys::map_private(2 * STACK);
    if stacks.is_null() {
        return false;
    }
    let [first, second] = [1, 2].map(|n| stacks as usize + n * STACK);
    let middle = Middle { top: second, entry, argument, made: AtomicBool::new(false) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED;
    // SAFETY: the lower half of what was just mapped. This thread goes on when the other process
    // has ended, which uses nothing else of this one's but `middle`.
    let child = unsafe { sys::clone(flags, first, make_keeper, &raw const middle as usize) };
    if child > 0 {
        sys::reap(child as u32);
    }
    let made = middle.made.load(Acquire);
    if !made {
        // SAFETY: nobody runs there.
        unsafe { sys::unmap(stacks, 2 * STACK) };
    }
    made
}

extern "C" fn make_keeper(middle: usize) -> ! {
    // SAFETY: `spawn`'s, which waits for the end of this process.
    let middle = unsafe { &*(middle as *const Middle) };
    // SAFETY: the upper half of what `spawn` has mapped, which is unmapped only if this fails.
    let child = unsafe {
        sys::clone(libc::CLONE_VM | libc::CLONE_UNTRACED, middle.top, middle.entry, middle.argument)
    };
    middle.made.store(child > 0, Release);
    sys::exit_process()
}

// ---- what it waits for --------------------------------------------------------------------------

/// By which a keeper knows that its program is gone. Descriptors of the library's own.
pub(crate) struct Life {
    /// Readable when the process has ended (pidfd_open(2), Linux 5.3); -1: there is none.
    process: c_int,
    /// The keeper's end of a pipe, and the program's, which an exec closes too.
    heard: c_int,
    held: c_int,
}

impl Life {
    /// Of this process.
    pub(crate) fn new() -> Option<Life> {
        let [heard, held] = numbers::exclusively(|| {
            let ends = sys::pipe().ok()?;
            Some(ends.map(numbers::adopt))
        })?;
        let process = numbers::make(|| sys::pidfd_open(sys::getpid()));
        let life = Life { process, heard, held };
        if heard < 0 || held < 0 {
            life.close();
            return None;
        }
        Some(life)
    }

    pub(crate) fn descriptors(&self) -> [c_int; 3] {
        [self.process, self.heard, self.held]
    }

    /// The keeper is not needed any more.
    pub(crate) fn dismiss(&self) {
        let _ = sys::write(self.held, &[1]);
    }

    pub(crate) fn close(&self) {
        for fd in self.descriptors() {
            if fd >= 0 {
                fd_words::close_internal(fd);
            }
        }
    }

    /// In the keeper: waits. True: the program is gone; false: it goes on, and needs no keeper.
    fn is_over(&self) -> bool {
        loop {
            // (A number below 0 is passed by.)
            let mut p = [self.process, self.heard].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            sys::poll_blocked(&mut p);
            let [gone, pipe] = p.map(|p| p.revents);
            if pipe & libc::POLLIN != 0 {
                return false;
            }
            if gone != 0 || pipe != 0 {
                return true;
            }
        }
    }
}

/// In the keeper, first of all: lets go of everything but `kept` (in order), and waits until the
/// program is gone. False: it is not needed.
pub(crate) fn stand_by(life: &Life, kept: &[c_int]) -> bool {
    sys::name_thread(b"netacc-keeper\0");
    sys::detach();
    close_but(kept);
    life.is_over()
}

/// Closes all descriptors but these, which are in order.
fn close_but(kept: &[c_int]) {
    let mut from = 0;
    for fd in kept.iter().map(|fd| *fd as u32).chain([u32::MAX]) {
        let to = if fd == u32::MAX { fd } else { fd.wrapping_sub(1) };
        if from <= to && fd != 0 {
            close_all(from, to);
        }
        from = fd.saturating_add(1);
    }
}

/// In a process that [`spawn`] has made, first of all: another program, which has nothing but the
/// descriptor `given`, under the number `as_number`, and no environment. `path` ends with a zero,
/// the arguments with a null pointer.
pub(crate) fn become_program(
    path: &[u8],
    arguments: &[*const core::ffi::c_char],
    (given, as_number): (c_int, c_int),
) -> ! {
    sys::detach();
    // (Both signals and descriptors are this process's own; the memory is not.)
    if given == as_number || sys::dup3(given, as_number, 0) >= 0 {
        close_but(&[as_number]);
        sys::execute(path, arguments);
    }
    sys::exit_process()
}

fn close_all(from: u32, to: u32) {
    if sys::close_range(from, to, 0) >= 0 {
        return;
    }
    // Linux before 5.9.
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let _ = sys::getrlimit_nofile(&mut limit);
    let end = (limit.rlim_max.min(fd_words::CAPACITY as u64)) as u32;
    for fd in from..to.min(end) {
        let _ = sys::close(fd as c_int);
    }
}

/// In the keeper: the program's memory is this process's alone.
pub(crate) fn take_memory() {
    process::become_keeper();
    heap::after_fork();
    numbers::after_fork_in_child();
}

// ---- the program's memory -----------------------------------------------------------------------

/// A line of `/proc/self/maps`.
struct Area {
    from: usize,
    to: usize,
    /// Device and inode as text, hashed; 0: none.
    file: u64,
    /// It has a name: the file's, or in brackets.
    name: [u8; 8],
}

/// In the keeper: gives back what is the program's, files that it had mapped (of its devices, too,
/// which end with that) and its arguments included. What cannot be told apart is kept.
pub(crate) fn give_memory_back() {
    // SAFETY: getauxval(3) has no preconditions.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    let code = [
        give_memory_back as *const () as usize,
        libc::memcpy as *const () as usize,
        libc::clock_gettime as *const () as usize,
        loader,
    ];
    let mut files = [0u64; 4];
    let known = for_each_area(|a| {
        for (at, file) in code.iter().zip(&mut files) {
            if (a.from..a.to).contains(at) {
                *file = a.file;
            }
        }
    });
    if !known || files.contains(&0) {
        return;
    }
    // Thread-local words, and what libc keeps beside them.
    let thread = sys::thread_pointer();
    let own_words = (thread.saturating_sub(1 << 20), thread.saturating_add(1 << 16));
    let mut ends = 0;
    let _ = for_each_area(|a| {
        let is_code = a.file != 0 && files.contains(&a.file);
        let behind_code = a.file == 0 && a.name == [0; 8] && a.from == ends;
        let is_kernel_s =
            a.name.first() == Some(&b'[') && ![b"[heap]\0\0", b"[stack]\0"].contains(&&a.name);
        if is_code || behind_code || is_kernel_s {
            ends = if is_code { a.to } else { 0 };
            return;
        }
        let (before, after) = (own_words.0.clamp(a.from, a.to), own_words.1.clamp(a.from, a.to));
        for (from, to) in [(a.from, before), (after, a.to)] {
            mapped::for_each_foreign(from, to, |from, to| {
                // SAFETY: not the library's, nor its code's; no other thread runs in this memory.
                unsafe { sys::unmap_foreign(from, to) };
            });
        }
    });
}

/// Calls `f` with each line. False: there are none to be read.
fn for_each_area(mut f: impl FnMut(&Area)) -> bool {
    let fd = sys::open(b"/proc/self/maps\0", libc::O_RDONLY | libc::O_CLOEXEC, 0) as c_int;
    if fd < 0 {
        return false;
    }
    let mut text = [0u8; 8192];
    let mut have = 0;
    let mut any = false;
    loop {
        let r = sys::read(fd, text.get_mut(have..).unwrap_or(&mut []));
        if r <= 0 {
            break;
        }
        have += r as usize;
        let mut at = 0;
        while let Some(rest) = text.get(at..have)
            && let Some(n) = rest.iter().position(|b| *b == b'\n')
        {
            if let Some(area) = rest.get(..n).and_then(area_of) {
                any = true;
                f(&area);
            }
            at += n + 1;
        }
        if at == 0 && have == text.len() {
            // A path that is longer than any.
            any = false;
            break;
        }
        text.copy_within(at..have, 0);
        have -= at;
    }
    let _ = sys::close(fd);
    any
}

fn area_of(line: &[u8]) -> Option<Area> {
    let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let mut range = fields.next()?.split(|b| *b == b'-');
    let hex = |text: &[u8]| {
        core::str::from_utf8(text).ok().and_then(|text| usize::from_str_radix(text, 16).ok())
    };
    let (from, to) = (hex(range.next()?)?, hex(range.next()?)?);
    let (_rights, _offset) = (fields.next()?, fields.next()?);
    let (device, inode) = (fields.next()?, fields.next()?);
    let hash = device
        .iter()
        .chain(inode)
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    let mut name = [0u8; 8];
    if let Some(text) = fields.next() {
        name.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    }
    Some(Area { from, to, file: if inode == b"0" { 0 } else { hash | 1 }, name })
}

// ---- how it is asked for ------------------------------------------------------------------------

/// What was asked, and what was answered; a futex.
static STATE: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = 0;
const ASKED: u32 = 1;
const MADE: u32 = 2;

/// For how long the program may go on that has asked for one; [`ENDS`]: it ends.
static PATIENCE_NS: AtomicU64 = AtomicU64::new(0);
pub(crate) const ENDS: u64 = u64::MAX;
/// A program that ends may run code of its own behind the library's: destructors of other
/// libraries, and other threads until then. After so long what they ask for counts.
const ENDS_SOON_NS: i64 = 50_000_000;

/// The exiting thread: a keeper is wanted, as this process is gone in so long, or never was about
/// to go. `wake`: tells who makes it. Waits for the answer, so long at most; true: there is one.
pub(crate) fn ask(wake: impl FnOnce(), patience_ns: u64, limit_ns: u64) -> bool {
    if STATE.load(SeqCst) == MADE {
        // Two ends of one process. (One of them may be an exec, which may fail.)
        if patience_ns == ENDS {
            PATIENCE_NS.store(ENDS, SeqCst);
        }
        return true;
    }
    PATIENCE_NS.store(patience_ns, SeqCst);
    STATE.store(ASKED, SeqCst);
    wake();
    let until = sys::now_ns().saturating_add(limit_ns);
    loop {
        let state = STATE.load(SeqCst);
        let left = until.saturating_sub(sys::now_ns());
        if left == 0 {
            // Too late for it to be made.
            let _ = STATE.compare_exchange(ASKED, NONE, SeqCst, SeqCst);
        }
        if state != ASKED || left == 0 {
            return STATE.load(SeqCst) == MADE;
        }
        sys::futex_wait(&STATE, ASKED, left as i64, true);
    }
}

/// Whether one is asked for.
pub(crate) fn is_wanted() -> bool {
    STATE.load(SeqCst) == ASKED
}

/// It is there, or there is none.
pub(crate) fn answer(made: bool) {
    STATE.store(if made { MADE } else { NONE }, SeqCst);
    sys::futex_wake(&STATE, i32::MAX, true);
}

/// The exec that has asked for one has failed: the program goes on.
pub(crate) fn goes_on() {
    if PATIENCE_NS.load(SeqCst) != ENDS
        && STATE.compare_exchange(MADE, NONE, SeqCst, SeqCst).is_ok()
    {
        sys::futex_wake(&STATE, i32::MAX, true);
    }
}

/// Waits for the end of this process. What returns goes on without a keeper, for now: the process
/// is there still, and somebody has signalled `bell`, or its exec has failed, or its patience has
/// ended. True: it ends all the same, and one is to be made again.
pub(crate) fn await_end(bell: c_int) -> bool {
    let began = sys::now_ns();
    let ends = loop {
        let patience_ns = PATIENCE_NS.load(SeqCst);
        if patience_ns == ENDS {
            break true;
        }
        let left = patience_ns.saturating_sub(sys::now_ns().saturating_sub(began));
        if left == 0 || STATE.load(SeqCst) != MADE {
            break false;
        }
        sys::futex_wait(&STATE, MADE, left as i64, true);
    };
    if ends {
        sys::pause_ns(ENDS_SOON_NS);
        while !sys::await_input(bell, i64::MAX) {}
    }
    let _ = STATE.compare_exchange(MADE, NONE, SeqCst, SeqCst);
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One after another: there is one keeper to ask for.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// A destructor of another library's that sends, and waits, behind the library's own.
    #[test]
    fn who_asks_for_something_behind_the_end_is_served() {
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let bell = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
        assert!(ask(|| answer(true), ENDS, 1_000_000_000));
        // The second end of the same process is not waited for.
        assert!(ask(|| answer(false), ENDS, 1_000_000_000));
        assert!(sys::write(bell, &1u64.to_ne_bytes()) > 0);
        assert!(await_end(bell), "one is made again when that is over");
        assert!(!is_wanted() && STATE.load(SeqCst) == NONE);
        let _ = sys::close(bell);
    }

    /// Not for as long as it may take.
    #[test]
    fn an_exec_that_fails_is_not_waited_for() {
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let hour = 3_600_000_000_000;
        let asked = || assert!(ask(|| answer(true), hour, 1_000_000_000));
        asked();
        let waits = std::thread::spawn(|| await_end(-1));
        sys::pause_ns(10_000_000);
        goes_on();
        assert!(waits.join().is_ok_and(|ends| !ends), "the program goes on");
        assert_eq!(STATE.load(SeqCst), NONE);
        // But not where the process ends meanwhile, by another thread.
        asked();
        assert!(ask(|| answer(false), ENDS, 1_000_000_000));
        goes_on();
        assert_eq!(STATE.load(SeqCst), MADE);
        answer(false);
    }

    #[test]
    fn memory_that_a_vforked_child_has_is_not_taken() {
        assert!(matches!(sys::is_memory_shared(), Some(true) | None), "this program has threads");
    }

    #[test]
    fn a_line_of_the_maps_is_read() {
        let parts = |line: &str| area_of(line.as_bytes()).map(|a| (a.from, a.to, a.file, a.name));
        let file = |line: &str| area_of(line.as_bytes()).map(|a| a.file);
        let library = "7f00-7fa0 r-xp 00001000 fe:01 1234   /usr/lib/x y.so";
        let hash = file(library).unwrap_or(0);
        assert_ne!(hash, 0);
        assert_eq!(parts(library), Some((0x7f00, 0x7fa0, hash, *b"/usr/lib")));
        assert_ne!(file("7f00-7fa0 r-xp 00002000 fe:01 1235 /usr/lib/x"), Some(hash));
        assert_eq!(file("7fa0-7fb0 rw-p 00002000 fe:01 1234 /usr/lib/x y.so"), Some(hash));
        let heap = "1000-2000 rw-p 00000000 00:00 0    [heap]";
        assert_eq!(parts(heap), Some((0x1000, 0x2000, 0, *b"[heap]\0\0")));
        let nameless = "1000-2000 rw-p 00000000 00:00 0 ";
        assert_eq!(parts(nameless), Some((0x1000, 0x2000, 0, [0; 8])));
        assert_eq!(parts("nonsense"), None);
    }

    #[test]
    fn the_maps_name_this_code() {
        let mut found = false;
        let here = give_memory_back as *const () as usize;
        assert!(for_each_area(|a| found |= (a.from..a.to).contains(&here) && a.file != 0));
        assert!(found);
    }
}
