//! What the tests of several modules share: the constructor, a clock that can be set forward, and
//! threads that are held back.

pub(crate) mod pair;
pub(crate) mod states;

use crate::lifecycle;
use crate::path::PathId;
use crate::socket::Socket;
use crate::trace::{self, Event};
use core::cell::{Cell, RefCell};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use netacc_control::Config;
use std::boxed::Box;
use std::vec::Vec;

/// What the names of this run's abstract sockets begin with: other runs on the machine, and
/// programs with the library, are not found, whatever port of the kernel's choice they share with
/// it. Forked children are of the same run.
pub(crate) fn room() -> &'static [u8] {
    static ROOM: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    ROOM.get_or_init(|| std::format!("{}:", std::process::id()).into_bytes())
}

/// What the constructor does, once. The configuration has small rings and several connections on a
/// pair; `NACC_LOG_PATH` and `NACC_LOG_LEVEL` are those of the tests' environment.
pub(crate) fn init() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let next =
        crate::outcome::NextSymbols { pthread_create: Some(create), pthread_detach: Some(detach) };
    let env = |name: &str| match name {
        "NACC_SOR_MSG_SIZE" => Some("4096"),
        "NACC_SOR_CONN_PER_QP" => Some("4"),
        "NACC_RDMA_MR_MIN_INC_SIZE" => Some("262144"),
        "NACC_TRACE" => Some("0"),
        "NACC_LOG_PATH" | "NACC_LOG_LEVEL" => std::env::var(name).ok().map(|value| &*value.leak()),
        _ => None,
    };
    ONCE.call_once(|| {
        // Before there is a child.
        room();
        lifecycle::init(&env, next);
        crate::agent::register(PathId::Loop, &crate::path::tests::AGENT);
    });
}

// ---- the clock ----------------------------------------------------------------------------------

std::thread_local! {
    static AHEAD: Cell<u64> = const { Cell::new(0) };
}

/// By how much this thread's monotonic clock is ahead of the system's.
pub(crate) fn ahead_ns() -> u64 {
    AHEAD.with(Cell::get)
}

/// Sets this thread's clock forward.
pub(crate) fn pass_ns(ns: u64) {
    AHEAD.with(|a| a.set(a.get() + ns));
}

/// How many such events the trace of a connection has of what `body` does.
pub(crate) fn traced(s: &Socket, event: Event, body: impl FnOnce()) -> usize {
    crate::config::with(Config { trace: true, ..crate::config::get().clone() }, || {
        // (The library's own thread makes room for it.)
        while s.ring.load(Relaxed) == 0 {
            trace::keep_ready();
            pass_ns(1_000_000_000);
            s.trace(Event::Doorbell, 0);
        }
        let Some(ring) = trace::ring(s.ring.load(Relaxed)) else { return 0 };
        let count = || {
            let all = ring.events.iter().map(|[first, _]| first.load(Relaxed) & 63);
            all.filter(|is| *is == event as u64).count()
        };
        let before = count();
        body();
        count() - before
    })
}

std::thread_local! {
    static FROZEN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Where this thread's clock stands, but for [`pass_ns`], if it does.
pub(crate) fn frozen_ns() -> Option<u64> {
    FROZEN.get()
}

/// This thread's clock stands still while `body` runs, but for [`pass_ns`]. (The kernel's does
/// not.)
pub(crate) fn with_frozen_clock<T>(body: impl FnOnce() -> T) -> T {
    FROZEN.set(Some(crate::sys::kernel_ns()));
    let result = body();
    FROZEN.set(None);
    result
}

// ---- the kernel's answers -----------------------------------------------------------------------

std::thread_local! {
    static NO_NETLINK: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn may_ask() -> bool {
    !NO_NETLINK.with(Cell::get)
}

/// This thread may not ask by netlink from here on, as in a sandbox.
pub(crate) fn forbid_netlink() {
    NO_NETLINK.with(|no| no.set(true));
}

// ---- processes ----------------------------------------------------------------------------------

/// Ends this process, when it is dropped, with a status.
struct Ends(c_int);

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: _exit(2).
        unsafe { libc::_exit(self.0) }
    }
}

/// Runs `f` in a forked child; true if it said so.
pub(crate) fn in_child(f: impl FnOnce() -> bool) -> bool {
    // (Not while another test's thread has that lock. Nobody would free it in the child, whose
    // number the library does not know: it takes over none.)
    // SAFETY: fork(2); the child calls only what works with one thread left, and exits without
    // unwinding.
    let pid = crate::numbers::exclusively(|| unsafe { libc::fork() });
    if pid == 0 {
        // (Of a panic nobody would hear: the thread would end, and with it, in order, the child.)
        let failed = Ends(1);
        if f() {
            drop(Ends(0));
        }
        drop(failed);
    }
    let mut status = 0;
    // SAFETY: waitpid(2) for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status == 0
}

/// As [`in_child`], for what needs none of the descriptors: listeners and names of other tests do
/// not live on in it.
pub(crate) fn alone_in_child(f: impl FnOnce() -> bool) -> bool {
    in_child(|| {
        crate::sys::close_range(3, u32::MAX, 0);
        f()
    })
}

// ---- system calls -------------------------------------------------------------------------------

std::thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn count_call(number: i64) {
    CALLS.with(|c| c.set(c.get() + 1));
    comes_to(Moment::Call(number));
}

pub(crate) fn count_sleep(number: i64) {
    comes_to(Moment::Sleep);
    count_call(number);
}

/// How many system calls the core has made in this thread.
pub(crate) fn calls() -> u64 {
    CALLS.with(Cell::get)
}

// ---- what others do meanwhile -------------------------------------------------------------------

/// A moment in what this thread does next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It is about to make the system call of that number.
    Call(i64),
    /// It is about to change the state that lies at that address.
    Change(usize),
    /// It is about to make a system call that may sleep, in the application's place.
    Sleep,
}

impl Moment {
    pub(crate) fn change_of<T>(state: &T) -> Moment {
        Moment::Change(core::ptr::from_ref(state).addr())
    }
}

std::thread_local! {
    static AWAITED: Cell<Option<Moment>> = const { Cell::new(None) };
    static DEED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// When this thread comes to that moment for the first time `deed` is done, as another thread, or
/// another process, does it just then.
pub(crate) fn just_before(moment: Moment, deed: impl FnOnce() + 'static) {
    DEED.set(Some(Box::new(deed)));
    AWAITED.set(Some(moment));
}

/// Whether it has come to that.
pub(crate) fn was_there() -> bool {
    AWAITED.get().is_none()
}

pub(crate) fn comes_to(moment: Moment) {
    if AWAITED.get() == Some(moment) {
        AWAITED.set(None);
        if let Some(deed) = DEED.take() {
            deed();
        }
    }
}

// ---- threads ------------------------------------------------------------------------------------

/// The body of a thread, and its argument.
type Body = (extern "C" fn(*mut c_void) -> *mut c_void, usize);

/// What happens when this thread starts a thread of the library's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    Start,
    /// They wait until [`run_held`].
    Hold,
    Refuse,
}

std::thread_local! {
    static THREADS: Cell<Threads> = const { Cell::new(Threads::Start) };
    static HELD: RefCell<Vec<Body>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn set_threads(how: Threads) {
    THREADS.with(|t| t.set(how));
}

/// Runs what was held back, to its end. False: there was nothing.
pub(crate) fn run_held() -> bool {
    let held = HELD.with(RefCell::take);
    let any = !held.is_empty();
    for (body, argument) in held {
        let thread = std::thread::spawn(move || {
            body(argument as *mut c_void);
        });
        assert!(thread.join().is_ok(), "a thread of the library's panicked");
    }
    any
}

unsafe extern "C" fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    match THREADS.with(Cell::get) {
        // SAFETY: the caller's promise.
        Threads::Start => unsafe { libc::pthread_create(thread, attributes, body, argument) },
        Threads::Hold => {
            HELD.with(|h| h.borrow_mut().push((body, argument as usize)));
            0
        }
        Threads::Refuse => libc::EAGAIN,
    }
}

unsafe extern "C" fn detach(thread: libc::pthread_t) -> c_int {
    // Of one that is held back there is none.
    // SAFETY: the caller's promise.
    if thread == 0 { 0 } else { unsafe { libc::pthread_detach(thread) } }
}
