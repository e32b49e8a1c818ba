//! Descriptor numbers: how the library's stay out of the application's way.
//!
//! The kernel gives every new descriptor the lowest free number, and programs rely on it
//! (`close(0); open(...)`). The library's own are moved away at once ([`adopt`]), above the *soft*
//! RLIMIT_NOFILE where the hard limit allows it: there the application can neither be given the
//! number, nor reach it in a loop over its descriptors, nor miss it when it counts them.
//!
//! For the few microseconds before that a new one stands on a number that is the application's. Its
//! calls that take or free numbers therefore announce themselves ([`enter`], [`leave`]), and the
//! library makes a descriptor ([`make`]) while none of them is under way, and they wait meanwhile.
//! Both sides wait for a bounded time only: a call may block in the kernel for long (a FIFO, a dead
//! NFS server), and a thread may be cancelled or leave by `longjmp` in the middle of one. Then a
//! number may be seen to be taken for some microseconds, which is all that can go wrong.
//!
//! `accept` takes its number before it waits for a connection (net/socket.c), so only its first
//! moments count. It announces itself apart ([`enter_accept`]): each call that waits is waited for
//! once, by who makes a descriptor on a low number, and no other call waits meanwhile.
//!
//! The first number that high is beyond the kernel's table of the process. In a process with
//! several threads the kernel waits for every CPU before it has a larger one. So whoever listens
//! has it made larger as long as there is one thread ([`make_room`]).

use crate::fd_words::{self, CAPACITY, INTERNAL};
use crate::lock::Mutex;
use crate::{signals, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// The application's calls under way: their number, and above it the epoch that they belong to
/// ([`EPOCH`]).
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// The same of its calls of `accept`.
static ACCEPTS: AtomicU32 = AtomicU32::new(0);
/// Not 0: a descriptor of the library's is about to be made, or ([`ALONE`]) is being made.
static MAKING: AtomicU32 = AtomicU32::new(0);
/// No call of `accept` begins.
const BEGINS: u32 = 1;
/// Nor does another one that takes a number.
const ALONE: u32 = 2;

const COUNT: u32 = (1 << 16) - 1;
const EPOCH: u32 = 1 << 16;
/// How long the library waits for calls that are under way. Those that take longer are not waited
/// for again.
const CALLS_NS: i64 = 1_000_000;
/// The same of calls of `accept`: a call takes its number at once, and may then wait for ever.
const ACCEPTS_NS: i64 = 100_000;
/// How long a call waits for the library.
const MAKING_NS: i64 = 10_000_000;

/// A call that takes a number begins. Returns what [`leave`] wants. Async-signal-safe; two atomic
/// operations.
#[inline]
pub(crate) fn enter() -> u32 {
    enter_as(&INSIDE, ALONE)
}

/// As [`enter`], of a call of `accept`, which may block for ever once it has its number; for
/// [`leave_accept`].
#[inline]
pub(crate) fn enter_accept() -> u32 {
    enter_as(&ACCEPTS, BEGINS)
}

#[inline]
fn enter_as(calls: &AtomicU32, from: u32) -> u32 {
    loop {
        let epoch = calls.fetch_add(1, SeqCst) & !COUNT;
        if MAKING.load(SeqCst) < from {
            return epoch;
        }
        leave_as(calls, epoch);
        if !wait_for_library(from) {
            return calls.fetch_add(1, SeqCst) & !COUNT;
        }
    }
}

/// The call has ended.
#[inline]
pub(crate) fn leave(epoch: u32) {
    leave_as(&INSIDE, epoch);
}

/// The same of a call of `accept`.
#[inline]
pub(crate) fn leave_accept(epoch: u32) {
    leave_as(&ACCEPTS, epoch);
}

#[inline]
fn leave_as(calls: &AtomicU32, epoch: u32) {
    let mut now = calls.load(Relaxed);
    // (An entry of an earlier epoch is not counted any more.)
    while now & !COUNT == epoch && now & COUNT != 0 {
        match calls.compare_exchange_weak(now, now - 1, SeqCst, Relaxed) {
            Ok(_) => {
                if now & COUNT == 1 && MAKING.load(SeqCst) != 0 {
                    sys::futex_wake(calls, 1, true);
                }
                return;
            }
            Err(other) => now = other,
        }
    }
}

/// False: it takes too long.
#[cold]
#[inline(never)]
fn wait_for_library(from: u32) -> bool {
    let until = sys::now_ns().saturating_add(MAKING_NS as u64);
    loop {
        let making = MAKING.load(SeqCst);
        if making < from {
            return true;
        }
        if sys::now_ns() >= until {
            return false;
        }
        sys::futex_wait(&MAKING, making, MAKING_NS, true);
    }
}

/// Runs `f`, in which descriptors may stand on low numbers, while no call of the application's
/// takes any.
pub(crate) fn exclusively<R>(f: impl FnOnce() -> R) -> R {
    alone(true, f)
}

/// `low`: also while no call of `accept` takes any.
fn alone<R>(low: bool, f: impl FnOnce() -> R) -> R {
    static LIBRARY: Mutex<()> = Mutex::new(());
    // No handler of the application's may come in between, and want a number. (One that nobody saw
    // being set does, and goes on by itself.)
    let held = signals::hold_back();
    let one = LIBRARY.lock_unless_mine();
    if low {
        MAKING.store(BEGINS, SeqCst);
        wait_for_calls(&ACCEPTS, ACCEPTS_NS);
    }
    MAKING.store(ALONE, SeqCst);
    wait_for_calls(&INSIDE, CALLS_NS);
    let r = f();
    MAKING.store(0, SeqCst);
    sys::futex_wake(&MAKING, i32::MAX, true);
    drop(one);
    signals::go_on(held);
    r
}

fn wait_for_calls(calls: &AtomicU32, most: i64) {
    let mut until = 0;
    loop {
        let now = calls.load(SeqCst);
        if now & COUNT == 0 {
            return;
        }
        let time = sys::now_ns();
        if until == 0 {
            until = time.saturating_add(most as u64);
        } else if time >= until {
            // They block, or will never end: forgotten.
            let next = (now & !COUNT).wrapping_add(EPOCH);
            let _ = calls.compare_exchange(now, next, SeqCst, Relaxed);
            return;
        }
        sys::futex_wait(calls, now, most, true);
    }
}

/// What [`leave`] wants of the fork that is under way: there is one at a time.
static FORK: AtomicU32 = AtomicU32::new(0);

/// Last before a fork, which takes numbers, too: whatever stands on a low one then is the child's
/// for good, and nobody there would know.
pub(crate) fn before_fork() {
    FORK.store(enter(), Relaxed);
}

pub(crate) fn after_fork_in_parent() {
    leave(FORK.load(Relaxed));
}

/// In a forked child no call is under way.
pub(crate) fn after_fork_in_child() {
    for calls in [&INSIDE, &ACCEPTS] {
        calls.store((calls.load(Relaxed) & !COUNT).wrapping_add(EPOCH), SeqCst);
    }
    MAKING.store(0, SeqCst);
    // Its table is as large as what was open, and it may start threads before it accepts.
    if LISTENS.load(Relaxed) {
        grow(MOST_IN_A_CHILD);
    }
}

/// Makes a descriptor of the library's own, by a system call that makes one close-on-exec. Returns
/// its number, or `-errno`.
pub(crate) fn make(call: impl FnOnce() -> isize) -> c_int {
    if let Some(error) = crate::inject::call() {
        return error;
    }
    exclusively(|| match call() as c_int {
        fd if fd >= 0 => adopt(fd),
        error => error,
    })
}

/// As [`make`], a pipe: to read from, to write to.
pub(crate) fn make_pipe() -> Option<[c_int; 2]> {
    if crate::inject::call().is_some() {
        return None;
    }
    exclusively(|| match sys::pipe().ok()?.map(adopt) {
        [read, write] if read >= 0 && write >= 0 => Some([read, write]),
        ends => {
            ends.into_iter().filter(|end| *end >= 0).for_each(fd_words::close_internal);
            None
        }
    })
}

/// A second name for `fd`, of the library's own, or `-errno`. Needs no low number.
pub(crate) fn copy(fd: c_int) -> c_int {
    if let Some(error) = crate::inject::call() {
        return error;
    }
    alone(false, || keep(lift(fd)))
}

/// Makes `fd`, just created close-on-exec and inside of [`exclusively`], one of the library's own:
/// moved out of the way, and hidden. Returns its final number, or `-errno` (`fd` is closed then).
/// The soft limit is raised for the one call that makes the number.
pub(crate) fn adopt(fd: c_int) -> c_int {
    let high = lift(fd);
    let _ = sys::close(fd);
    keep(high)
}

/// A name for `fd` out of the application's way.
fn lift(fd: c_int) -> c_int {
    let (limit, soft) = soft_limit();
    let mut high = -1;
    let room = room_above(limit);
    if room > 0 && raise(limit, room) {
        high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, soft) as c_int;
        let _ = sys::setrlimit_nofile(&limit);
    }
    if high < 0 {
        // Never a number that the application is about to be given.
        high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, below(soft)) as c_int;
    }
    high
}

fn soft_limit() -> (libc::rlimit, usize) {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let _ = sys::getrlimit_nofile(&mut limit);
    (limit, (limit.rlim_cur as usize).min(CAPACITY))
}

/// Where the library's numbers begin where there is no room above the soft limit.
fn below(soft: usize) -> usize {
    soft - soft / 4
}

fn raise(limit: libc::rlimit, room: usize) -> bool {
    let raised = libc::rlimit { rlim_cur: limit.rlim_cur + room as u64, rlim_max: limit.rlim_max };
    sys::setrlimit_nofile(&raised) >= 0
}

/// Whether [`make_room`] was asked for.
static LISTENS: AtomicBool = AtomicBool::new(false);
/// A table for more numbers costs too much to be made before it is needed: 8 bytes each, in a
/// process that listens, and in each of its children (10 us).
const MOST_EARLY: usize = 1 << 16;
const MOST_IN_A_CHILD: usize = 1 << 14;

/// The process is about to listen, and will want numbers of its own: has the kernel make room for
/// them, if there is one thread. With several that takes 8 to 16 ms (fs/file.c: expand_fdtable,
/// synchronize_rcu), in which somebody may be waiting for an answer: it is left to the first number
/// then.
pub(crate) fn make_room() {
    if !LISTENS.load(Relaxed) {
        LISTENS.store(true, Relaxed);
        if sys::has_one_thread() {
            grow(MOST_EARLY);
        }
    }
}

/// As [`make_room`], by the only thread. Makes no descriptor: dup3 makes the room first, and finds
/// then that there is nothing to duplicate. `most`: for no more numbers than that.
fn grow(most: usize) {
    let (limit, soft) = soft_limit();
    let room = room_above(limit);
    let first = if room > 0 { soft } else { below(soft) };
    if first >= most {
        return;
    }
    // (Nor may a handler of the application's find, or change, a raised limit.)
    let signals = sys::hold_signals();
    if room == 0 || raise(limit, room) {
        let _ = sys::dup3(-1, first as c_int, libc::O_CLOEXEC);
    }
    if room > 0 {
        let _ = sys::setrlimit_nofile(&limit);
    }
    sys::restore_signals(signals);
}

fn keep(high: c_int) -> c_int {
    if high >= 0 && (high as usize) < CAPACITY {
        fd_words::set(high, INTERNAL);
        return high;
    }
    if high >= 0 {
        let _ = sys::close(high);
    }
    -libc::EMFILE
}

/// How many numbers above the soft limit the library may use: one for each link to another host's
/// process, of which there may be 4096, and as many for all else.
const ROOM_ABOVE: usize = 8192;

/// How many of these there are under that limit.
fn room_above(limit: libc::rlimit) -> usize {
    let (soft, hard) = (limit.rlim_cur, limit.rlim_max.min(CAPACITY as u64));
    usize::try_from(hard.saturating_sub(soft)).unwrap_or(0).min(ROOM_ABOVE)
}

/// How many descriptors of one kind the library may have: half of those that the application can
/// never be given, or a quarter of its own where that is more.
pub(crate) fn most_of_a_kind(limit: libc::rlimit) -> usize {
    let quarter = usize::try_from(limit.rlim_cur / 4).unwrap_or(usize::MAX);
    quarter.max(room_above(limit) / 2)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn what_lies_between_the_limits_counts_where_there_is_much() {
        let most = |soft, hard| most_of_a_kind(libc::rlimit { rlim_cur: soft, rlim_max: hard });
        // systemd's, those of before, equal ones (Docker's), a shell's that was raised.
        assert_eq!(most(1024, 524_288), 4096);
        assert_eq!(most(1024, 4096), 1536);
        assert_eq!(most(1024, 1024), 256);
        assert_eq!(most(1_048_576, 1_048_576), 262_144);
        assert_eq!(most(524_288, 1_048_576), 131_072);
        assert_eq!(most(1024, libc::RLIM_INFINITY), 4096);
        assert_eq!(most(0, 64), 32);
        // Above what the table has room for there is nothing.
        assert_eq!(room_above(libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 30 }), 0);
        assert_eq!(room_above(libc::rlimit { rlim_cur: (1 << 20) - 5, rlim_max: 1 << 30 }), 5);
    }

    #[test]
    fn calls_and_the_library_exclude_each_other() {
        // One test: the words are the process's.
        let first = enter();
        let second = enter();
        assert_eq!(INSIDE.load(Relaxed) & COUNT, 2);
        leave(second);
        leave(first);
        assert_eq!(INSIDE.load(Relaxed) & COUNT, 0);

        before_fork();
        assert_eq!(INSIDE.load(Relaxed) & COUNT, 1, "a fork takes numbers");
        after_fork_in_parent();
        assert_eq!(INSIDE.load(Relaxed) & COUNT, 0);

        let stuck = enter();
        let fd = make(|| sys::eventfd(0, libc::EFD_CLOEXEC));
        assert!(fd > 100, "made in spite of a call that never ends");
        assert_ne!(INSIDE.load(Relaxed) & !COUNT, stuck, "which is not waited for again");
        let now = INSIDE.load(Relaxed);
        leave(stuck);
        assert_eq!(INSIDE.load(Relaxed), now, "and does not count when it ends");
        fd_words::close_internal(fd);
    }

    #[test]
    fn a_call_of_accept_is_waited_for_once_where_a_low_number_is_taken() {
        // (In a child: the words are the process's, and other tests make descriptors.)
        assert!(crate::testing::alone_in_child(|| {
            after_fork_in_child();
            let accepts = enter_accept();
            let word = ACCEPTS.load(Relaxed);
            let copied = copy(0);
            let copy_waits = ACCEPTS.load(Relaxed) != word;
            let made = make(|| sys::eventfd(0, libc::EFD_CLOEXEC));
            let waited = ACCEPTS.load(Relaxed);
            let once = waited == (word & !COUNT).wrapping_add(EPOCH);
            leave_accept(accepts);
            let counts_late = ACCEPTS.load(Relaxed) != waited;
            leave_accept(enter_accept());
            fd_words::close_internal(make(|| sys::eventfd(0, libc::EFD_CLOEXEC)));
            let ended_waits = ACCEPTS.load(Relaxed) != waited;
            copied > 100 && made > 100 && once && !copy_waits && !counts_late && !ended_waits
        }));
    }

    /// Whoever announces a call, or makes a descriptor, goes on: none waits for good.
    #[test]
    fn nobody_is_left_waiting_where_calls_and_descriptors_meet() {
        assert!(crate::testing::in_child(|| {
            after_fork_in_child();
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !ends.load(Relaxed) {
                            leave_accept(enter_accept());
                        }
                    });
                }
                scope.spawn(|| {
                    while !ends.load(Relaxed) {
                        leave(enter());
                    }
                });
                for turn in 0..300 {
                    // One that waits for ever is under way as well.
                    let _ = (turn % 100 == 0).then(enter_accept);
                    let own = make(|| sys::eventfd(0, libc::EFD_CLOEXEC));
                    let copied = copy(own);
                    fd_words::close_internal(own);
                    fd_words::close_internal(copied);
                }
                ends.store(true, Relaxed);
            });
            (INSIDE.load(Relaxed) & COUNT, MAKING.load(Relaxed)) == (0, 0)
        }));
    }

    /// How many descriptors the kernel's table of this process has room for.
    fn table() -> usize {
        let mut text = [0u8; 4096];
        let fd = sys::open(b"/proc/self/status\0", libc::O_RDONLY | libc::O_CLOEXEC, 0) as c_int;
        let n = sys::read(fd, &mut text) as usize;
        let _ = sys::close(fd);
        let text = core::str::from_utf8(&text[..n]).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse().unwrap()
    }

    /// In a child with one thread, whose table is that of a small process: a fork copies only what
    /// is open.
    fn with_a_small_table(f: impl FnOnce() -> bool) -> bool {
        crate::testing::alone_in_child(|| {
            crate::testing::in_child(|| {
                let hard = soft_limit().0.rlim_max;
                let small = libc::rlimit { rlim_cur: 1024, rlim_max: hard };
                LISTENS.store(false, Relaxed);
                after_fork_in_child();
                sys::setrlimit_nofile(&small) >= 0 && table() < 1024 && f()
            })
        })
    }

    fn has_room() -> bool {
        let (limit, soft) = soft_limit();
        let next = if room_above(limit) > 0 { soft } else { below(soft) };
        soft == 1024 && table() > next
    }

    #[test]
    fn who_listens_has_room_for_the_librarys_numbers_and_so_have_its_children() {
        crate::testing::init();
        let listens = || {
            let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0) as c_int;
            crate::establish::on_socket(fd, libc::AF_INET, libc::SOCK_STREAM, 0);
            crate::establish::before_listen(fd);
            let _ = sys::close(fd);
        };
        assert!(with_a_small_table(|| {
            listens();
            let child = crate::testing::in_child(|| {
                let small = table() < 768;
                after_fork_in_child();
                small && has_room()
            });
            has_room() && child
        }));
        // With a second thread nobody waits for that.
        assert!(with_a_small_table(|| {
            let mut thread = 0;
            let (usual, nothing) = (core::ptr::null(), core::ptr::null_mut());
            // SAFETY: a thread that sleeps, until the process ends.
            unsafe { libc::pthread_create(&mut thread, usual, sleeps, nothing) };
            listens();
            !has_room()
        }));
    }

    extern "C" fn sleeps(nothing: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
        loop {
            core::hint::black_box(nothing);
            // SAFETY: pause(2).
            unsafe { libc::pause() };
        }
    }
}
