//! How waits that look end otherwise than by news: by a cancellation, a signal, a close in another
//! thread; and who must not look at all. The mode `looks` has them look for two milliseconds.

use crate::ctx::{Ctx, send_all};
use crate::raw;
use crate::scenario::{Scenario, alone};
use crate::sys::{self, Fd};
use libc::{EPOLLIN, SO_RCVTIMEO, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, Ordering::*};

// Declared as what does not unwind, although a thread that is cancelled ends in them: otherwise the
// compiler has each call end the process then.
unsafe extern "C" {
    fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize;
    fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, ms: c_int) -> c_int;
    fn select(
        n: c_int,
        r: *mut libc::fd_set,
        w: *mut libc::fd_set,
        x: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;
    fn epoll_wait(set: c_int, events: *mut libc::epoll_event, max: c_int, ms: c_int) -> c_int;
}
unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_tryjoin_np(thread: libc::pthread_t, value: *mut *mut c_void) -> c_int;
}

/// Ways to wait for a byte.
const WAYS: [&str; 5] = ["read", "recv", "poll", "select", "epoll_wait"];

/// A thread that waits, in a call of its own. (No frame of it has anything to drop.)
struct Waiter {
    way: AtomicIsize,
    fd: AtomicI32,
    set: AtomicI32,
    /// It is about to wait: its id.
    thread: AtomicI32,
    /// What the call has returned, or `-errno`; and the byte that it has received.
    result: AtomicIsize,
    byte: AtomicI32,
    /// Its CPU was taken from it meanwhile.
    lost_cpu: AtomicBool,
    disabled: AtomicBool,
    asynchronous: AtomicBool,
}

static WAITER: Waiter = Waiter {
    way: AtomicIsize::new(0),
    fd: AtomicI32::new(-1),
    set: AtomicI32::new(-1),
    thread: AtomicI32::new(0),
    result: AtomicIsize::new(isize::MIN),
    byte: AtomicI32::new(0),
    lost_cpu: AtomicBool::new(false),
    disabled: AtomicBool::new(false),
    asynchronous: AtomicBool::new(false),
};

/// One call of that kind.
unsafe fn wait_once(way: isize, fd: Fd, set: Fd, byte: *mut u8) -> isize {
    // SAFETY: all memory is this frame's or the caller's.
    unsafe {
        match way {
            0 => read(fd, byte.cast(), 1),
            1 => recv(fd, byte.cast(), 1, 0),
            2 => {
                let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                poll(&mut one, 1, -1) as isize
            }
            3 => {
                let mut bits = [0u64; 16];
                if let Some(word) = bits.get_mut(fd as usize / 64) {
                    *word = 1 << (fd % 64);
                }
                select(fd + 1, bits.as_mut_ptr().cast(), null_mut(), null_mut(), null_mut())
                    as isize
            }
            _ => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                epoll_wait(set, &mut event, 1, -1) as isize
            }
        }
    }
}

extern "C-unwind" fn run(_: *mut c_void) -> *mut c_void {
    let w = &WAITER;
    let mut byte = 0u8;
    // SAFETY: the calls' arguments are this frame's.
    unsafe {
        let mut old = 0;
        pthread_setcancelstate(c_int::from(w.disabled.load(SeqCst)), &mut old);
        if w.asynchronous.load(SeqCst) {
            pthread_setcanceltype(1, &mut old);
        }
        let before = sys::involuntary_switches();
        w.thread.store(libc::gettid(), SeqCst);
        let (way, fd) = (w.way.load(SeqCst), w.fd.load(SeqCst));
        let r = wait_once(way, fd, w.set.load(SeqCst), &mut byte);
        w.lost_cpu.store(sys::involuntary_switches() != before, SeqCst);
        w.byte.store(byte.into(), SeqCst);
        w.result.store(if r < 0 { -(*libc::__errno_location() as isize) } else { r }, SeqCst);
        if w.disabled.load(SeqCst) {
            // From here on it hears of it.
            pthread_setcancelstate(0, &mut old);
            wait_once(way, fd, w.set.load(SeqCst), &mut byte);
        }
    }
    null_mut()
}

/// Starts one, and returns when it is about to wait.
fn start(way: usize, fd: Fd, set: Fd) -> libc::pthread_t {
    let w = &WAITER;
    w.way.store(way as isize, SeqCst);
    w.fd.store(fd, SeqCst);
    w.set.store(set, SeqCst);
    w.thread.store(0, SeqCst);
    w.result.store(isize::MIN, SeqCst);
    let mut thread = 0;
    // SAFETY: an entry that may unwind is called as any other.
    let made = unsafe {
        let entry: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(run as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        libc::pthread_create(&mut thread, std::ptr::null(), entry, null_mut())
    };
    assert_eq!(made, 0, "pthread_create");
    while w.thread.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    thread
}

/// Whether it ends in good time.
fn ends(thread: libc::pthread_t) -> bool {
    let until = sys::now_ns() + 2_000_000_000 * u64::from(sys::patience());
    loop {
        // SAFETY: a thread that nobody has joined.
        if unsafe { pthread_tryjoin_np(thread, null_mut()) } == 0 {
            return true;
        }
        if sys::now_ns() > until {
            return false;
        }
        let _ = sys::poll(&[], 1);
    }
}

/// Runs on for so long, on the spot: a sleep would take longer.
fn pass_us(us: u64) {
    let until = sys::now_ns() + us * 1_000;
    while sys::now_ns() < until {
        std::hint::spin_loop();
    }
}

fn set_of(fd: Fd) -> Fd {
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, 1).expect("EPOLL_CTL_ADD");
    set
}

/// The moments, in microseconds after a wait has begun: while it looks, and about when it stops.
fn moments() -> impl Iterator<Item = u64> {
    (0..8).map(|n| n * 250).chain((0..24).map(|n| 1_900 + n * 12))
}

/// A thread that sleeps on is woken by a byte, so that the next one has the connection alone.
fn wake(far: Fd, near: Fd, thread: libc::pthread_t) {
    send_all(far, b"w");
    let _ = ends(thread);
    let _ = sys::recv(near, &mut [0; 8], libc::MSG_DONTWAIT);
}

fn cancelled(t: &Ctx) {
    let (near, far) = t.pair();
    let set = set_of(near);
    for (way, name) in WAYS.iter().enumerate() {
        let mut missed = 0;
        for us in moments() {
            let thread = start(way, near, set);
            pass_us(us);
            // SAFETY: the thread has not been joined.
            assert_eq!(unsafe { pthread_cancel(thread) }, 0);
            if !ends(thread) {
                missed += 1;
                wake(far, near, thread);
            }
        }
        t.log(&format!("{name}: threads that slept on"), missed);
    }
}

fn cancelled_later(t: &Ctx) {
    let (near, far) = t.pair();
    let set = set_of(near);
    WAITER.disabled.store(true, SeqCst);
    for (way, name) in WAYS.iter().enumerate().take(2) {
        let thread = start(way, near, set);
        pass_us(300);
        // SAFETY: as above.
        assert_eq!(unsafe { pthread_cancel(thread) }, 0);
        pass_us(300);
        send_all(far, b"m");
        t.log(&format!("{name}: ends in the next wait"), ends(thread));
        t.log("what the first returned", WAITER.result.load(SeqCst));
    }
    t.log("and now", sys::recv(near, &mut [0; 8], libc::MSG_DONTWAIT));
}

/// A thread that ends at any instruction leaves nothing behind: others wait, and get their bytes.
fn cancelled_anywhere(t: &Ctx) {
    let (near, far) = t.pair();
    let set = set_of(near);
    WAITER.asynchronous.store(true, SeqCst);
    for us in moments().step_by(4) {
        let thread = start(2, near, set);
        pass_us(us);
        // SAFETY: as above.
        assert_eq!(unsafe { pthread_cancel(thread) }, 0);
        t.log("ends", ends(thread));
    }
    send_all(far, b"m");
    t.log("readable", sys::poll(&[(near, libc::POLLIN)], 5000).map(|r| r.0));
}

/// This thread may end at any instruction from here on.
pub fn be_asynchronous() {
    // SAFETY: nobody cancels it.
    unsafe { pthread_setcanceltype(1, &mut 0) };
}

extern "C" fn handle(_: c_int) {}

fn interrupted(t: &Ctx) {
    let (near, far) = t.pair();
    let set = set_of(near);
    sys::on_signal(libc::SIGUSR1, handle, 0).expect("sigaction");
    for (way, name) in WAYS.iter().enumerate() {
        let (mut ended, mut late) = (0, 0);
        for us in moments().filter(|us| *us >= 250) {
            let thread = start(way, near, set);
            pass_us(us);
            sys::tgkill(WAITER.thread.load(SeqCst), libc::SIGUSR1).expect("tgkill");
            if !ends(thread) {
                late += 1;
                wake(far, near, thread);
            } else if WAITER.result.load(SeqCst) == -(libc::EINTR as isize) {
                ended += 1;
            }
        }
        // (One may not have begun to wait yet.)
        t.log(&format!("{name}: nearly all ended with EINTR"), ended >= 29 && late <= 1);
    }
}

/// A thread that lost its CPU, or has not begun to wait, goes on with what is there now
/// (limits.md): until one has kept it.
const TRIES: usize = 20;

/// Whether the thread ends, and by which connection's byte.
fn reuse_number(t: &Ctx, way: usize, closes: bool) -> (bool, char) {
    let (near, far) = t.pair();
    let (other, beyond) = t.pair();
    let thread = start(way, near, -1);
    pass_us(500);
    if closes {
        sys::close(near).expect("close");
    }
    sys::dup2(other, near).expect("dup2");
    send_all(beyond, b"n");
    pass_us(3000);
    send_all(far, b"o");
    let said = (ends(thread), WAITER.byte.load(SeqCst) as u8 as char);
    for fd in [near, far, other, beyond] {
        let _ = sys::close(fd);
    }
    said
}

fn number_reused(t: &Ctx) {
    for (way, name) in WAYS.iter().enumerate().filter(|(_, name)| ["read", "recv"].contains(name)) {
        for closes in [false, true] {
            let mut tries = (0..TRIES).map(|_| reuse_number(t, way, closes));
            let is_fair = |said: &_| *said != (true, 'n') || !WAITER.lost_cpu.load(SeqCst);
            let last = tries.find(is_fair).unwrap_or((true, 'n'));
            t.log(&format!("{name}: ends"), last.0);
            t.log("by the byte of the connection that it waited for", last.1);
        }
    }
}

fn set_reused(t: &Ctx) {
    let mut both = (false, false);
    for _ in 0..TRIES {
        let (near, far) = t.pair();
        let (other, beyond) = t.pair();
        let (set, others) = (set_of(near), set_of(other));
        let thread = start(4, near, set);
        pass_us(500);
        sys::dup2(others, set).expect("dup2");
        send_all(beyond, b"n");
        let waits = !ends(thread);
        send_all(far, b"o");
        both = (waits, !waits || ends(thread));
        for fd in [near, far, other, beyond, set, others] {
            sys::close(fd).expect("close");
        }
        if waits {
            break;
        }
    }
    t.log("epoll_wait hears its own set alone", both.0);
    t.log("and that one", both.1);
}

fn splice_timeout(t: &Ctx) {
    let (near, _far) = t.pair();
    let [_out, into] = sys::pipe();
    sys::set_timeout(near, SO_RCVTIMEO, 500).expect("SO_RCVTIMEO");
    let wait = || sys::splice(near, into, 10, 0);
    let (said, once) = sys::takes_ms(490..950, wait);
    t.log("splice", said);
    t.log("once", once);
}

/// Waits in vain, by each way; and how often they have looked.
fn idle_looks(t: &Ctx, near: Fd, set: Fd) -> u64 {
    let before = t.looks().0;
    let _ = sys::poll(&[(near, libc::POLLIN)], 5);
    let _ = sys::epoll_wait(set, 1, 5);
    sys::set_timeout(near, SO_RCVTIMEO, 5).expect("SO_RCVTIMEO");
    let _ = sys::recv(near, &mut [0; 1], 0);
    t.looks().0 - before
}

fn real_time(t: &Ctx) {
    let (near, _far) = t.pair();
    let set = set_of(near);
    for policy in [libc::SCHED_FIFO, libc::SCHED_RR] {
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: a valid parameter. (Where that is not allowed there is nothing to see.)
        if unsafe { libc::sched_setscheduler(0, policy, &param) } == 0 {
            t.log("looks", idle_looks(t, near, set));
            let param = libc::sched_param { sched_priority: 0 };
            // SAFETY: as above.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &param) };
        } else {
            t.log("looks", 0);
        }
    }
}

/// A filter that ends the process for `sched_yield`, set where the library does not see it, as one
/// that came by exec.
fn filter() -> bool {
    let insn =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call.
        insn(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        insn(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_sched_yield as u32, 0, 1),
        insn(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        insn(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let list = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let past_libc = |number: c_long, args: [usize; 6]| {
        // SAFETY: the filter is valid.
        unsafe { raw::call(number, args) }
    };
    let seccomp = [libc::SECCOMP_SET_MODE_FILTER as usize, 0, &raw const list as usize, 0, 0, 0];
    past_libc(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) == 0
        && past_libc(libc::SYS_seccomp, seccomp) == 0
}

fn filtered(t: &Ctx) {
    let listener = t.listener();
    let set = filter();
    t.log("filter", set);
    // (No warm-up: it might look.)
    let near = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(near, sys::getsockname(listener).expect("getsockname")).expect("connect");
    let far = sys::accept(listener).expect("accept");
    let epoll = set_of(near);
    for _ in 0..20 {
        let _ = sys::poll(&[(near, libc::POLLIN)], 2);
        let _ = sys::epoll_wait(epoll, 1, 2);
    }
    send_all(far, b"m");
    t.log("still there", sys::recv(near, &mut [0; 1], 0));
}

fn connections_gone(t: &Ctx) {
    let (near, far) = t.pair();
    let set = set_of(near);
    let [out, _into] = sys::pipe();
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, out, EPOLLIN as u32, 2).expect("EPOLL_CTL_ADD");
    let _ = sys::epoll_wait(set, 1, 5);
    sys::close(near).expect("close");
    sys::close(far).expect("close");
    let before = t.looks().0;
    for _ in 0..3 {
        t.log("nothing", sys::epoll_wait(set, 1, 5).map(|events| events.len()));
    }
    t.log("looks", t.looks().0 - before);
}

pub fn list() -> Vec<Scenario> {
    vec![
        alone(
            "looks/cancelled",
            "pthread_cancel ends a thread that waits, at any moment of the wait",
            cancelled,
        ),
        alone(
            "looks/cancelled-later",
            "a thread that cannot be cancelled waits on, gets its byte, and ends in its next wait when it can be",
            cancelled_later,
        ),
        alone(
            "looks/cancelled-anywhere",
            "threads that end at any instruction of a wait: others wait as before",
            cancelled_anywhere,
        ),
        alone(
            "looks/interrupted",
            "a handler without SA_RESTART ends a wait with EINTR, at any moment of it",
            interrupted,
        ),
        alone(
            "looks/number-reused",
            "a wait goes on with what it was called for, when another thread puts something else on the number",
            number_reused,
        ),
        alone("looks/set-reused", "the same of a set", set_reused).skip(&[
            ("shm", "a set of accelerated connections ends with its number"),
            ("early", "the same"),
            ("new", "the same"),
            ("switch", "the same"),
            ("rdma", "the same"),
        ]),
        alone("looks/splice", "SO_RCVTIMEO of a splice counts once", splice_timeout),
        alone("looks/real-time", "a thread with a real-time policy does not look", real_time),
        alone(
            "looks/filter",
            "a process under a filter of system calls that the library has not seen set is not ended by it",
            filtered,
        ),
        alone("looks/gone", "a set whose connections are closed does not look", connections_gone),
    ]
}
