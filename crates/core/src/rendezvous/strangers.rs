//! Files of strangers: taken in, and closed, where nobody else has to wait for them.
//!
//! What a peer passes can be any file. The last close of one takes as long as its maker likes (a
//! socket that lingers, memory to be freed), and it is the kernel's habit to do it in the thread
//! that lets go of the last name, before that goes on: also in `recvmsg`, of what found no room,
//! and in the `close` of a unix socket, of what nobody received. A close by number can even ask a
//! file system that a user has made, and wait for its answer for ever. So, in this order:
//!
//! - **Descriptors are refused where none is due.** SO_PASSRIGHTS (Linux 6.16) is off on every
//!   control socket ([`refuse_descriptors`]) until its peer has been verified: the sender's call
//!   fails.
//! - **A packet is looked at before it is taken** ([`super::packet`]), and one with descriptors
//!   that are not due is left where it is.
//! - **One that is due is taken by a courier** ([`fetch`]): a passing thread ("netacc-files") with
//!   a table of descriptors of its own, which hands on what is of the two kinds that an honest peer
//!   passes, and ends. A thread that ends does not linger. What keeps it all the same keeps nobody
//!   else: neither a number of the application's nor a lock is in its hands. There are
//!   [`COURIERS`]; when all are kept, nothing is taken in any more.
//! - **A control socket that may hold strangers' files is closed by a passing thread** ([`close`],
//!   "netacc-close"), of which there are [`CLOSERS`].

use super::packet::{self, Received};
use crate::{fd_table, numbers, sleep, sys, thread};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
use libc::pollfd;

/// Linux 6.16, asm-generic/socket.h.
const SO_PASSRIGHTS: c_int = 83;

/// No descriptor can be sent to `control`, nor to what is accepted from it. (Where the kernel can
/// do that.)
pub(super) fn refuse_descriptors(control: c_int) {
    let _ = sys::setsockopt(control, libc::SOL_SOCKET, SO_PASSRIGHTS, &0i32);
}

/// A socket for a control connection, to which nobody can send descriptors yet.
pub(super) fn control_socket() -> c_int {
    let fd = numbers::make(|| {
        sys::socket(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        )
    });
    if fd >= 0 {
        refuse_descriptors(fd);
    }
    fd
}

/// The peer is who it should be: it may pass what the agreement needs.
pub(super) fn take_descriptors(control: c_int) {
    let _ = sys::setsockopt(control, libc::SOL_SOCKET, SO_PASSRIGHTS, &1i32);
}

// ---- closing ------------------------------------------------------------------------------------

/// Threads that close, at most.
const CLOSERS: u32 = 4;
/// Sockets that wait for one.
const WAITING: usize = 64;

static TO_CLOSE: [AtomicI32; WAITING] = [const { AtomicI32::new(-1) }; WAITING];
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// Closes a control socket, one of the library's own descriptors. Never waits.
pub(super) fn close(control: c_int) {
    let mut allowed = 1i32;
    let refused = sys::getsockopt(control, libc::SOL_SOCKET, SO_PASSRIGHTS, &mut allowed) >= 0
        && allowed == 0;
    let noted = !refused
        && TO_CLOSE.iter().any(|w| w.compare_exchange(-1, control, AcqRel, Relaxed).is_ok());
    if !noted {
        // (Links are not made any more long before there is no room: see `is_overrun`.)
        return fd_table::close_internal(control);
    }
    let more = CLOSING.fetch_update(AcqRel, Acquire, |n| (n < CLOSERS).then_some(n + 1)).is_ok();
    if more && !thread::spawn(run_closer, core::ptr::null_mut()) {
        // The next one that is closed tries again.
        CLOSING.fetch_sub(1, AcqRel);
    }
}

fn run_closer(_: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-close\0");
    loop {
        while let Some(fd) = TO_CLOSE.iter().map(|w| w.swap(-1, AcqRel)).find(|fd| *fd >= 0) {
            fd_table::close_internal(fd);
        }
        CLOSING.fetch_sub(1, AcqRel);
        // One that was noted meanwhile may have found all threads busy.
        let left = TO_CLOSE.iter().any(|w| w.load(Acquire) >= 0);
        if !left
            || CLOSING.fetch_update(AcqRel, Acquire, |n| (n < CLOSERS).then_some(n + 1)).is_err()
        {
            return core::ptr::null_mut();
        }
    }
}

/// Strangers keep those who close: no more of them are let in.
pub(super) fn is_overrun() -> bool {
    TO_CLOSE.iter().filter(|w| w.load(Relaxed) >= 0).count() > WAITING / 4
}

/// In a forked child there are no such threads.
pub(crate) fn after_fork_in_child() {
    CLOSING.store(0, Relaxed);
    // (The parent has these too.)
    for fd in TO_CLOSE.iter().map(|w| w.swap(-1, AcqRel)).filter(|fd| *fd >= 0) {
        fd_table::close_internal(fd);
    }
    for e in &ERRANDS {
        e.thread.store(0, Relaxed);
        e.users.store(0, Relaxed);
    }
}

// ---- taking in ----------------------------------------------------------------------------------

/// Couriers at a time; one that is kept counts for as long as it is.
const COURIERS: usize = if cfg!(test) { IN_TESTS } else { 4 };
/// Tests that run beside each other have one list, and what some of them send keeps its courier
/// until the machine has ended that thread.
const IN_TESTS: usize = 256;
/// How long one is waited for; it needs a hundred microseconds.
const PATIENCE_NS: u64 = 2_000_000_000;

/// What a courier is sent for. It outlives both.
struct Errand {
    /// Who sent it, and the courier. One that has, or had, strangers' files that are of no use
    /// never leaves: it is over with its thread.
    users: AtomicU32,
    thread: AtomicU32,
    state: AtomicU32,
    /// Written before [`LISTENING`]: where the courier can be reached, and the length of that.
    name: UnsafeCell<([u8; 128], usize)>,
    /// Written before the courier's answer: what came, without a descriptor.
    result: UnsafeCell<Received>,
}

/// The courier can not be reached yet; it can; it has been, and takes the packet; whoever sent it
/// has gone.
const SENT: u32 = 0;
const LISTENING: u32 = 1;
const TAKING: u32 = 2;
const ALONE: u32 = 3;

// SAFETY: the cells are written by the courier alone, before the state (or a message) that says so,
// and read by who sent it after that.
unsafe impl Sync for Errand {}

static ERRANDS: [Errand; COURIERS] = [const {
    Errand {
        users: AtomicU32::new(0),
        thread: AtomicU32::new(0),
        state: AtomicU32::new(SENT),
        name: UnsafeCell::new(([0; 128], 0)),
        result: UnsafeCell::new(Received::Nothing),
    }
}; COURIERS];

impl Errand {
    fn claim(&self) -> bool {
        let kept = || {
            let thread = self.thread.load(Acquire);
            thread != 0
                && !sys::alive(thread)
                && self.users.compare_exchange(1, 2, AcqRel, Relaxed).is_ok()
        };
        let claimed = self.users.compare_exchange(0, 2, AcqRel, Relaxed).is_ok() || kept();
        if claimed {
            self.thread.store(0, Relaxed);
            self.state.store(SENT, Release);
        }
        claimed
    }

    /// The courier is done with it, and has nothing of strangers' in its hands.
    fn let_go(&self) {
        self.thread.store(0, Release);
        self.users.fetch_sub(1, AcqRel);
    }
}

/// Takes the next packet of `control`, which brings descriptors that are due.
pub(crate) fn fetch(control: c_int) -> Received {
    let Some(e) = ERRANDS.iter().find(|e| e.claim()) else { return Received::NoDescriptor };
    if !thread::spawn(run_courier, core::ptr::from_ref(e).cast_mut().cast()) {
        e.users.store(0, Release);
        return Received::NoDescriptor;
    }
    let until = sys::now_ns().saturating_add(PATIENCE_NS);
    while e.state.load(Acquire) == SENT {
        let left = until.saturating_sub(sys::now_ns());
        if left == 0 {
            break;
        }
        sys::futex_wait(&e.state, SENT, left as i64, true);
    }
    let got = if e.state.load(Acquire) == LISTENING {
        send_and_wait(e, control, until)
    } else {
        Received::NoDescriptor
    };
    e.state.store(ALONE, Release);
    e.users.fetch_sub(1, AcqRel);
    got
}

/// Waits until something has come. A signal of the C library's own (setuid(2) sends one to every
/// thread) ends no wait.
fn wait_for(fd: c_int, until: u64) -> bool {
    loop {
        let left = until.saturating_sub(sys::now_ns());
        let mut p = pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd; no mask.
        let n = unsafe { sleep::ppoll(&mut p, 1, left as i64, core::ptr::null()) };
        if n != -(libc::EINTR as isize) || left == 0 {
            return n > 0;
        }
    }
}

fn send_and_wait(e: &Errand, control: c_int, until: u64) -> Received {
    let to = control_socket();
    if to < 0 {
        return Received::NoDescriptor;
    }
    // SAFETY: written before LISTENING, and not again before FREE.
    let (name, len) = unsafe { *e.name.get() };
    let reached = sys::connect(to, name.get(..len).unwrap_or(&[])) >= 0 && packet::is_self(to);
    let mut got = Received::NoDescriptor;
    if reached {
        take_descriptors(to);
        if packet::hand_over(to, control) {
            let answered = wait_for(to, until);
            let taking = e.state.load(Acquire) == TAKING;
            // It came from this process, and brings at most one descriptor, of a kind that is
            // closed at once.
            if let Some(fd) = answered
                .then(|| numbers::exclusively(|| packet::take_over(to).map(numbers_adopt)))
                .flatten()
            {
                // SAFETY: written before the answer.
                got = with_descriptor(unsafe { *e.result.get() }, fd);
            } else if taking {
                // What kept it may have come from there, or the process was stopped for that long:
                // nobody is to blame, and nobody to be trusted.
                got = Received::Withheld;
            }
        }
    }
    fd_table::close_internal(to);
    got
}

fn numbers_adopt(fd: c_int) -> c_int {
    if fd < 0 { -1 } else { numbers::adopt(fd) }
}

fn with_descriptor(got: Received, fd: c_int) -> Received {
    match got {
        Received::Message(m, _, _) if m.fds() != 0 && fd < 0 => Received::NoDescriptor,
        Received::Message(m, _, sender) => Received::Message(m, fd, sender),
        other => other,
    }
}

fn run_courier(errand: *mut c_void) -> *mut c_void {
    // SAFETY: what `fetch` passed: one of a static list.
    let e = unsafe { &*errand.cast::<Errand>() };
    sys::block_all_signals();
    sys::name_thread(b"netacc-files\0");
    let in_vain = courier(e);
    sys::futex_wake(&e.state, 1, true);
    if in_vain {
        e.let_go();
    }
    core::ptr::null_mut()
}

/// True: it ends without having taken anything. Otherwise it has let go, unless it has strangers'
/// files.
fn courier(e: &Errand) -> bool {
    // A table of its own, with nothing in it; what is in the process's stays there.
    if sys::close_range(0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) < 0 {
        return true;
    }
    // From here on descriptors are numbers of this thread's alone, and are left open: its end
    // closes them.
    let here = sys::socket(
        libc::AF_UNIX,
        libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        0,
    ) as c_int;
    refuse_descriptors(here);
    // The kernel finds a name that nobody has.
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    let mut name = [0u8; 128];
    if here < 0 || sys::bind(here, &family) < 0 || sys::listen(here, 8) < 0 {
        return true;
    }
    let len = sys::socket_name(here, false, &mut name);
    // SAFETY: nobody reads it before LISTENING.
    unsafe { *e.name.get() = (name, len.max(0) as usize) };
    take_descriptors(here);
    if e.state.compare_exchange(SENT, LISTENING, AcqRel, Relaxed).is_err() {
        return true;
    }
    sys::futex_wake(&e.state, 1, true);
    let until = sys::now_ns().saturating_add(PATIENCE_NS);
    let (to, control) = loop {
        if !wait_for(here, until) {
            return true;
        }
        let caller = sys::accept4(here, libc::SOCK_CLOEXEC) as c_int;
        // Somebody else who found the name is not listened to.
        if caller >= 0 && packet::is_self(caller) {
            wait_for(caller, until);
            match packet::take_over(caller) {
                Some(control) if control >= 0 => break (caller, control),
                _ => return true,
            }
        }
    };
    // Who has gone does not want the next packet.
    if e.state.compare_exchange(LISTENING, TAKING, AcqRel, Relaxed).is_err() {
        return true;
    }
    e.thread.store(sys::gettid(), Release);
    let (got, fd, count) = packet::receive_files(control);
    let wanted = fd >= 0 && packet::is_what_it_should_be(&got, fd);
    // SAFETY: read after the answer alone.
    unsafe { *e.result.get() = if fd >= 0 && !wanted { Received::Malformed } else { got } };
    if count == usize::from(wanted) {
        // Before the answer: this thread may not run again for a while, and who has the answer may
        // need the next courier by then. (It has the errand, too, until it has read the result.)
        e.let_go();
    }
    let _ = packet::hand_over(to, if wanted { fd } else { -1 });
    false
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::testing::{Threads, alone_in_child, run_held, set_threads};

    #[test]
    fn who_waits_in_vain_for_a_courier_blames_nobody() {
        crate::testing::init();
        let here =
            sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
        assert!(
            sys::bind(here, &(libc::AF_UNIX as u16).to_ne_bytes()) >= 0
                && sys::listen(here, 8) >= 0
        );
        let mut name = [0u8; 128];
        let len = sys::socket_name(here, false, &mut name) as usize;
        // It can be reached and says nothing, as in a process that was stopped meanwhile.
        for (state, kept) in [(LISTENING, false), (TAKING, true)] {
            let e = Errand {
                users: AtomicU32::new(2),
                thread: AtomicU32::new(0),
                state: AtomicU32::new(state),
                name: UnsafeCell::new((name, len)),
                result: UnsafeCell::new(Received::Nothing),
            };
            match send_and_wait(&e, here, sys::now_ns() + 1_000_000) {
                Received::NoDescriptor => assert!(!kept),
                Received::Withheld => assert!(kept),
                other => panic!("{other:?}"),
            }
        }
        let _ = sys::close(here);
    }

    extern "C" fn nothing(_: c_int) {}

    #[test]
    fn a_signal_of_the_c_librarys_does_not_end_a_wait() {
        crate::testing::init();
        // As glibc installs it: system calls are restarted, but ppoll is not.
        // SAFETY: a handler that does nothing, for a signal that nothing else uses here.
        unsafe {
            libc::signal(
                libc::SIGRTMAX() - 3,
                nothing as extern "C" fn(c_int) as libc::sighandler_t,
            )
        };
        let bell = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
        let waiter = std::thread::spawn(move || {
            (wait_for(bell, sys::now_ns() + 60_000_000_000), sys::now_ns())
        });
        use std::os::unix::thread::JoinHandleExt;
        for _ in 0..100 {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(waiter.as_pthread_t() as _, libc::SIGRTMAX() - 3) };
            std::thread::sleep(core::time::Duration::from_micros(500));
        }
        let signalled = sys::now_ns();
        let _ = sys::write(bell, &1u64.to_ne_bytes());
        let (came, at) = waiter.join().unwrap();
        assert!(came && at >= signalled);
        let _ = sys::close(bell);
    }

    /// An end of a pair.
    fn control() -> c_int {
        let mut fds = [-1; 2];
        assert_eq!(
            // SAFETY: room for two descriptors.
            unsafe {
                libc::socketpair(
                    libc::AF_UNIX,
                    libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                    0,
                    fds.as_mut_ptr(),
                )
            },
            0
        );
        let _ = sys::close(fds[1]);
        fds[0]
    }

    fn is_open(fd: c_int) -> bool {
        sys::fcntl(fd, libc::F_GETFD, 0) >= 0
    }

    /// Whether the kernel can refuse descriptors.
    fn can_refuse(control: c_int) -> bool {
        sys::getsockopt(control, libc::SOL_SOCKET, SO_PASSRIGHTS, &mut 0i32) >= 0
    }

    // In a child there are no threads of other tests.
    #[test]
    fn what_may_hold_files_is_closed_by_a_thread() {
        crate::testing::init();
        assert!(alone_in_child(|| {
            set_threads(Threads::Hold);
            let (trusted, refused) = (control(), control());
            refuse_descriptors(refused);
            take_descriptors(trusted);
            let at_once = can_refuse(refused);
            close(trusted);
            close(refused);
            let before = is_open(trusted) && is_open(refused) != at_once;
            // Where no thread can be had the next one that is closed has it done.
            let after = run_held() && !is_open(trusted) && !is_open(refused);
            set_threads(Threads::Refuse);
            let (first, second) = (control(), control());
            close(first);
            set_threads(Threads::Hold);
            let kept = is_open(first);
            close(second);
            before
                && after
                && kept
                && run_held()
                && !is_open(first)
                && !is_open(second)
                && CLOSING.load(Relaxed) == 0
        }));
    }

    #[test]
    fn who_is_slow_to_close_lets_nobody_in() {
        crate::testing::init();
        assert!(alone_in_child(|| {
            set_threads(Threads::Hold);
            let mut closed = 0;
            while !is_overrun() && closed < WAITING {
                close(control());
                closed += 1;
            }
            let overrun = closed == WAITING / 4 + 1;
            overrun && run_held() && !is_overrun()
        }));
    }

    #[test]
    fn a_courier_that_is_kept_counts_for_as_long_as_it_is() {
        let errand = |users, thread| Errand {
            users: AtomicU32::new(users),
            thread: AtomicU32::new(thread),
            state: AtomicU32::new(TAKING),
            name: UnsafeCell::new(([0; 128], 0)),
            result: UnsafeCell::new(Received::Nothing),
        };
        let over = std::thread::spawn(sys::gettid).join().unwrap();
        // (The kernel takes a thread from its list a moment after its last instruction.)
        while sys::alive(over) {
            std::thread::yield_now();
        }
        for (users, thread, free) in [
            (0, 0, true),
            (1, sys::gettid(), false),
            (1, over, true),
            (2, over, false),
            (1, 0, false),
        ] {
            let e = errand(users, thread);
            assert_eq!(e.claim(), free, "{users} {thread}");
            if free {
                assert_eq!([&e.users, &e.thread, &e.state].map(|w| w.load(Relaxed)), [2, 0, SENT]);
                assert!(!e.claim(), "twice");
            }
        }
    }

    #[test]
    fn errands_without_a_courier_are_free() {
        crate::testing::init();
        assert!(alone_in_child(|| {
            ERRANDS.iter().for_each(|e| e.users.store(2, Relaxed));
            let none =
                matches!(fetch(-1), Received::NoDescriptor) && !ERRANDS.iter().any(Errand::claim);
            after_fork_in_child();
            set_threads(Threads::Refuse);
            let refused = (0..=COURIERS).all(|_| matches!(fetch(-1), Received::NoDescriptor));
            none && refused && ERRANDS.iter().all(Errand::claim)
        }));
    }

    /// What is due is fetched, however late the couriers of before come to their end.
    #[test]
    fn couriers_that_have_answered_are_no_longer_needed() {
        crate::testing::init();
        assert!(alone_in_child(|| {
            let mut fds = [-1; 2];
            // SAFETY: room for two descriptors.
            let paired = unsafe {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) == 0
            };
            let place = netacc_proto::rendezvous::Message::Place { place: 7 };
            let bell = crate::channel::new_doorbell();
            // (So that packets name their sender, and bring descriptors.)
            let on = sys::setsockopt(fds[1], libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) >= 0;
            take_descriptors(fds[1]);
            let fetched = || {
                assert_eq!(crate::control::send(fds[0], sys::geteuid(), &place, bell), 0);
                let Received::Message(m, fd, _) = fetch(fds[1]) else { return false };
                fd_table::close_internal(fd);
                m == place && ERRANDS.iter().all(|e| e.users.load(Acquire) == 0)
            };
            paired && on && (0..50).all(|_| fetched())
        }));
    }

    /// Whoever finds an advert can write to it; nobody need close what he sends.
    #[test]
    fn descriptors_come_only_where_they_are_taken() {
        crate::testing::init();
        let mut fds = [-1; 2];
        assert_eq!(
            // SAFETY: room for two descriptors.
            unsafe {
                libc::socketpair(
                    libc::AF_UNIX,
                    libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                    0,
                    fds.as_mut_ptr(),
                )
            },
            0
        );
        let place = netacc_proto::rendezvous::Message::Place { place: 7 };
        refuse_descriptors(fds[1]);
        let refused = if can_refuse(fds[1]) { -libc::EPERM as isize } else { 0 };
        assert_eq!(crate::control::send(fds[0], sys::geteuid(), &place, fds[0]), refused);
        take_descriptors(fds[1]);
        assert_eq!(crate::control::send(fds[0], sys::geteuid(), &place, fds[0]), 0);
        let _ = (sys::close(fds[0]), sys::close(fds[1]));
    }
}
