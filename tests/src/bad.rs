//! Memory that cannot be read or written, and calls that are given it.

use crate::sys::{self, Addr, Fd, R};
use libc::{
    MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, c_int, c_void,
};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;

/// What stands in front of a bad page of one page.
pub const FILL: u8 = b'g';

/// What stands in front of a bad page, byte by byte.
pub fn byte_at(i: usize) -> u8 {
    (i % 251) as u8
}

/// Why a page is bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Unmapped,
    NoAccess,
    /// Behind the end of its file, which was cut short.
    Truncated,
    /// Bad to write to, and full of zeros.
    ReadOnly,
}

pub const KINDS: [Kind; 4] = [Kind::Unmapped, Kind::NoAccess, Kind::Truncated, Kind::ReadOnly];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unmapped => "not mapped",
            Kind::NoAccess => "protected",
            Kind::Truncated => "truncated",
            Kind::ReadOnly => "read-only",
        }
    }
}

/// Good memory, with a bad page behind it.
pub struct Bad {
    start: *mut u8,
    good: usize,
    file: Fd,
}

impl Bad {
    pub fn new(kind: Kind) -> Bad {
        let bad = Bad::large(kind, PAGE);
        // SAFETY: the good page of a mapping of ours.
        unsafe { bad.start.write_bytes(FILL, PAGE) };
        bad
    }

    /// `good` bytes (whole pages) that say where they stand, and a bad page.
    pub fn large(kind: Kind, good: usize) -> Bad {
        let file = sys::anonymous_file(b"").expect("file");
        let len = good + PAGE;
        // SAFETY: a new mapping, whose good part is written, and whose last page is changed.
        unsafe {
            assert_eq!(libc::ftruncate(file, len as i64), 0);
            let (flags, from) = match kind {
                Kind::Truncated => (MAP_SHARED, file),
                _ => (MAP_PRIVATE | MAP_ANONYMOUS, -1),
            };
            let start = libc::mmap(null_mut(), len, PROT_READ | PROT_WRITE, flags, from, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let start = start.cast::<u8>();
            for i in 0..good {
                start.add(i).write(byte_at(i));
            }
            let page = start.add(good).cast::<c_void>();
            let done = match kind {
                Kind::Unmapped => libc::munmap(page, PAGE),
                Kind::NoAccess => libc::mprotect(page, PAGE, PROT_NONE),
                Kind::Truncated => libc::ftruncate(file, good as i64),
                Kind::ReadOnly => libc::mprotect(page, PAGE, PROT_READ),
            };
            assert_eq!(done, 0);
            Bad { start, good, file }
        }
    }

    /// A page that can only be read, and holds `value` at its start.
    pub fn read_only_holding<T: Copy>(value: &T) -> Bad {
        let bad = Bad::new(Kind::ReadOnly);
        // SAFETY: the page is ours.
        unsafe {
            libc::mprotect(bad.page().cast(), PAGE, PROT_READ | PROT_WRITE);
            bad.page().cast::<T>().write(*value);
            libc::mprotect(bad.page().cast(), PAGE, PROT_READ);
        }
        bad
    }

    /// The bad page.
    pub fn page(&self) -> *mut u8 {
        self.start.wrapping_add(self.good)
    }

    /// The last `n` good bytes.
    pub fn before(&self, n: usize) -> *mut u8 {
        self.page().wrapping_sub(n)
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        // SAFETY: the good part is ours; whether the page behind it is, only the mappings of a file
        // know.
        unsafe { libc::munmap(self.start.cast(), self.good) };
        let _ = sys::close(self.file);
    }
}

pub fn put<T>(at: *mut u8, value: T) {
    // SAFETY: good bytes in front of a bad page.
    unsafe { at.cast::<T>().write_unaligned(value) }
}

/// One call; its pointers are bad on purpose, and for the kernel, or the library in its place, to
/// find out.
macro_rules! call {
    ($e:expr) => {{
        // SAFETY: whoever carries the call out must not trust its pointers.
        let value = unsafe { $e } as isize;
        usize::try_from(value).map_err(|_| sys::errno())
    }};
}

pub fn send(fd: Fd, at: *mut u8, len: usize) -> R {
    call!(libc::send(fd, at.cast(), len, 0))
}

pub fn write(fd: Fd, at: *mut u8, len: usize) -> R {
    call!(libc::write(fd, at.cast(), len))
}

pub fn sendto(fd: Fd, at: *mut u8, len: usize, to: *const u8, to_len: u32) -> R {
    call!(libc::sendto(fd, at.cast(), len, 0, to.cast(), to_len))
}

pub fn recv(fd: Fd, at: *mut u8, len: usize, flags: c_int) -> R {
    call!(libc::recv(fd, at.cast(), len, flags))
}

pub fn read(fd: Fd, at: *mut u8, len: usize) -> R {
    call!(libc::read(fd, at.cast(), len))
}

pub fn recvfrom(fd: Fd, from: *mut u8, from_len: *mut u8) -> R {
    let mut byte = 0u8;
    call!(libc::recvfrom(fd, (&raw mut byte).cast(), 1, 0, from.cast(), from_len.cast()))
}

/// A bad place for the address, and a good one for its length.
pub fn recvfrom_address(fd: Fd, from: *mut u8) -> R {
    let mut len = 16u32;
    recvfrom(fd, from, (&raw mut len).cast())
}

pub fn recvfrom_length(fd: Fd, len: i32) -> R {
    let (mut len, mut address) = (len, [0u8; 16]);
    recvfrom(fd, address.as_mut_ptr(), (&raw mut len).cast())
}

/// A buffer.
type Part = (*mut u8, usize);

fn list(parts: &[Part]) -> Vec<libc::iovec> {
    let iov = |(at, len): &Part| libc::iovec { iov_base: at.cast(), iov_len: *len };
    parts.iter().map(iov).collect()
}

fn header(iov: *const c_void, count: usize) -> libc::msghdr {
    // SAFETY: all zero is a valid msghdr.
    let mut m: libc::msghdr = unsafe { zeroed() };
    m.msg_iov = iov.cast_mut().cast();
    m.msg_iovlen = count;
    m
}

pub fn writev(fd: Fd, parts: &[Part]) -> R {
    let iov = list(parts);
    call!(libc::writev(fd, iov.as_ptr(), iov.len() as c_int))
}

pub fn sendmsg(fd: Fd, parts: &[Part]) -> R {
    let iov = list(parts);
    call!(libc::sendmsg(fd, &header(iov.as_ptr().cast(), iov.len()), 0))
}

pub fn readv(fd: Fd, parts: &[Part]) -> R {
    let iov = list(parts);
    call!(libc::readv(fd, iov.as_ptr(), iov.len() as c_int))
}

pub fn recvmsg(fd: Fd, parts: &[Part], flags: c_int) -> R {
    let iov = list(parts);
    let mut m = header(iov.as_ptr().cast(), iov.len());
    call!(libc::recvmsg(fd, &mut m, flags))
}

pub fn writev_list(fd: Fd, at: *mut u8, count: c_int) -> R {
    call!(libc::writev(fd, at.cast(), count))
}

pub fn readv_list(fd: Fd, at: *mut u8, count: c_int) -> R {
    // A read-only list is a good one, of empty buffers.
    call!(libc::readv(fd, at.cast(), count))
}

pub fn sendmsg_list(fd: Fd, at: *mut u8, count: usize) -> R {
    call!(libc::sendmsg(fd, &header(at.cast(), count), 0))
}

pub fn recvmsg_list(fd: Fd, at: *mut u8, count: usize) -> R {
    let mut m = header(at.cast(), count);
    call!(libc::recvmsg(fd, &mut m, 0))
}

pub fn sendmsg_header(fd: Fd, at: *mut u8) -> R {
    call!(libc::sendmsg(fd, at.cast(), 0))
}

pub fn recvmsg_header(fd: Fd, at: *mut u8) -> R {
    call!(libc::recvmsg(fd, at.cast(), 0))
}

pub fn sendmmsg_header(fd: Fd, at: *mut u8, count: u32) -> R {
    call!(libc::sendmmsg(fd, at.cast(), count, 0))
}

pub fn recvmmsg_header(fd: Fd, at: *mut u8, count: u32) -> R {
    call!(libc::recvmmsg(fd, at.cast(), count, 0, null_mut()))
}

fn one_byte() -> libc::iovec {
    static BYTE: u8 = FILL;
    libc::iovec { iov_base: (&raw const BYTE).cast_mut().cast(), iov_len: 1 }
}

pub fn sendmsg_name(fd: Fd, at: *mut u8, len: u32) -> R {
    let iov = one_byte();
    let mut m = header((&raw const iov).cast(), 1);
    (m.msg_name, m.msg_namelen) = (at.cast(), len);
    call!(libc::sendmsg(fd, &m, 0))
}

pub fn sendmsg_control(fd: Fd, at: *mut u8, len: usize) -> R {
    let iov = one_byte();
    let mut m = header((&raw const iov).cast(), 1);
    (m.msg_control, m.msg_controllen) = (at.cast(), len as _);
    call!(libc::sendmsg(fd, &m, 0))
}

pub fn poll_at(at: *mut u8, count: usize) -> R {
    call!(libc::poll(at.cast(), count as _, 1000))
}

/// By number, where there is a time: libc's function reads it itself, and crashes. So for `select`
/// and `pselect`.
pub fn ppoll(fd: Fd, time: *const libc::timespec, mask: *const libc::sigset_t) -> R {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    if time.is_null() {
        return call!(libc::ppoll(&mut p, 1, time, mask));
    }
    call!(libc::syscall(libc::SYS_ppoll, &raw mut p, 1usize, time, mask, 8usize))
}

/// `set`: in the place of the set of descriptors to write to.
pub fn select(fd: Fd, set: Option<*mut u8>, time: *mut libc::timeval) -> R {
    // SAFETY: all zero is an empty set, and `fd` is small.
    let mut read: libc::fd_set = unsafe { zeroed() };
    // SAFETY: as above.
    unsafe { libc::FD_SET(fd, &mut read) };
    let write: *mut libc::fd_set = set.unwrap_or(null_mut()).cast();
    #[cfg(target_arch = "x86_64")]
    if !time.is_null() {
        let none = null_mut::<libc::fd_set>();
        return call!(libc::syscall(
            libc::SYS_select,
            fd as usize + 1,
            &raw mut read,
            write,
            none,
            time
        ));
    }
    #[cfg(not(target_arch = "x86_64"))]
    if !time.is_null() {
        return pselect(fd, time.cast(), null());
    }
    call!(libc::select(fd + 1, &mut read, write, null_mut(), time))
}

pub fn pselect(fd: Fd, time: *const libc::timespec, mask: *const libc::sigset_t) -> R {
    // SAFETY: as in `select`.
    let mut read: libc::fd_set = unsafe { zeroed() };
    // SAFETY: as above.
    unsafe { libc::FD_SET(fd, &mut read) };
    let none = null_mut::<libc::fd_set>();
    if time.is_null() {
        return call!(libc::pselect(fd + 1, &mut read, none, none, time, mask));
    }
    let no_mask = [0usize, 8];
    call!(libc::syscall(
        libc::SYS_pselect6,
        fd as usize + 1,
        &raw mut read,
        none,
        none,
        time,
        &raw const no_mask
    ))
}

/// The raw call, whose mask stands behind a pointer.
pub fn pselect_mask_at(fd: Fd, at: *const u8) -> R {
    // SAFETY: as in `select`.
    let mut read: libc::fd_set = unsafe { zeroed() };
    // SAFETY: as above.
    unsafe { libc::FD_SET(fd, &mut read) };
    let none = null_mut::<libc::fd_set>();
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    call!(libc::syscall(
        libc::SYS_pselect6,
        fd as usize + 1,
        &raw mut read,
        none,
        none,
        &raw const zero,
        at
    ))
}

pub fn epoll_ctl(set: Fd, op: c_int, fd: Fd, at: *mut u8) -> R {
    call!(libc::epoll_ctl(set, op, fd, at.cast()))
}

pub fn epoll_wait(set: Fd, at: *mut u8, max: c_int, timeout_ms: c_int) -> R {
    call!(libc::epoll_wait(set, at.cast(), max, timeout_ms))
}

fn eight_events() -> [libc::epoll_event; 8] {
    [libc::epoll_event { events: 0, u64: 0 }; 8]
}

pub fn epoll_pwait(set: Fd, max: c_int, timeout_ms: c_int, mask: *const libc::sigset_t) -> R {
    let mut events = eight_events();
    call!(libc::epoll_pwait(set, events.as_mut_ptr(), max, timeout_ms, mask))
}

pub fn epoll_pwait2(set: Fd, time: *const libc::timespec) -> R {
    unsafe extern "C" {
        fn epoll_pwait2(
            set: c_int,
            events: *mut libc::epoll_event,
            max: c_int,
            time: *const libc::timespec,
            mask: *const libc::sigset_t,
        ) -> c_int;
    }
    let mut events = eight_events();
    call!(epoll_pwait2(set, events.as_mut_ptr(), 8, time, null()))
}

pub fn ioctl(fd: Fd, request: u64, at: *mut u8) -> R {
    call!(libc::ioctl(fd, request as _, at))
}

pub fn getsockopt(fd: Fd, level: c_int, name: c_int, at: *mut u8) -> R {
    let mut len = 8u32;
    call!(libc::getsockopt(fd, level, name, at.cast(), &mut len))
}

pub fn setsockopt(fd: Fd, level: c_int, name: c_int, at: *mut u8) -> R {
    call!(libc::setsockopt(fd, level, name, at.cast(), 16))
}

pub fn sendfile(out: Fd, from: Fd, offset: *mut u8, count: usize) -> R {
    call!(libc::sendfile(out, from, offset.cast(), count))
}

pub fn connect(fd: Fd, at: *mut u8, len: u32) -> R {
    call!(libc::connect(fd, at.cast(), len))
}

pub fn accept(fd: Fd, at: *mut u8) -> R {
    call!(libc::accept(fd, at.cast(), at.cast()))
}

pub fn port(addr: Addr) -> u16 {
    match addr {
        Addr::V4(_, port) | Addr::V6(_, port) => port,
    }
}

/// Two UDP sockets that are connected with each other.
pub fn udp_pair() -> (Fd, Fd) {
    let one = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).expect("socket");
    let other = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).expect("socket");
    sys::bind(one, sys::LOOPBACK).expect("bind");
    sys::connect(other, sys::getsockname(one).expect("name")).expect("connect");
    (one, other)
}

// ---- signals ------------------------------------------------------------------------------------

static CALLS: AtomicI32 = AtomicI32::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static BLOCKED: AtomicI32 = AtomicI32::new(0);
static ON_STACK: AtomicI32 = AtomicI32::new(0);
/// The page that the handler makes good again, and the file behind it.
static PAGE_AT: AtomicUsize = AtomicUsize::new(0);
static FILE: AtomicI32 = AtomicI32::new(-1);

pub fn forget_handlers() {
    for n in [&CALLS, &CODE, &BLOCKED, &ON_STACK] {
        n.store(0, SeqCst);
    }
}

extern "C" fn note(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel's siginfo; calls that a handler may make, on memory of this module.
    unsafe {
        CALLS.fetch_add(1, SeqCst);
        CODE.store((*info).si_code, SeqCst);
        let mut mask: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, null(), &mut mask);
        let blocked = [libc::SIGUSR1, libc::SIGSEGV, libc::SIGBUS]
            .iter()
            .fold(0, |n, s| n * 2 + libc::sigismember(&mask, *s));
        BLOCKED.store(blocked, SeqCst);
        let mut stack: libc::stack_t = zeroed();
        libc::sigaltstack(null(), &mut stack);
        ON_STACK.store(stack.ss_flags & libc::SS_ONSTACK, SeqCst);
        if (*info).si_code > 0 {
            ADDRESS.store((*info).si_addr() as usize, SeqCst);
            let page = PAGE_AT.load(SeqCst) as *mut c_void;
            libc::mprotect(page, PAGE, PROT_READ | PROT_WRITE);
            libc::ftruncate(FILE.load(SeqCst), 2 * PAGE as i64);
        }
    }
}

extern "C" fn simple(_signal: c_int) {
    CALLS.fetch_add(100, SeqCst);
}

extern "C" fn leave(_signal: c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(7) };
}

fn name_of(handler: usize) -> String {
    match handler {
        libc::SIG_DFL => "default".into(),
        libc::SIG_IGN => "ignored".into(),
        h if h == note as *const () as usize => "note".into(),
        h if h == simple as *const () as usize => "simple".into(),
        h if h == leave as *const () as usize => "leave".into(),
        _ => "another".into(),
    }
}

fn described(action: &libc::sigaction) -> String {
    let names = [
        (libc::SA_SIGINFO, "SIGINFO"),
        (libc::SA_ONSTACK, "ONSTACK"),
        (libc::SA_RESTART, "RESTART"),
        (libc::SA_NODEFER, "NODEFER"),
        (libc::SA_RESETHAND, "RESETHAND"),
    ];
    let flags: Vec<_> =
        names.iter().filter(|(bit, _)| action.sa_flags & bit != 0).map(|(_, name)| *name).collect();
    let mask: Vec<_> = (1..32)
        // SAFETY: a set that libc has filled.
        .filter(|s| unsafe { libc::sigismember(&action.sa_mask, *s) } == 1)
        .collect();
    format!("{} {flags:?} {mask:?}", name_of(action.sa_sigaction))
}

/// What sigaction says, and sets.
fn set(signal: c_int, new: Option<(usize, c_int, &[c_int])>) -> String {
    // SAFETY: all zero is a valid sigaction; both are live.
    unsafe {
        let mut old: libc::sigaction = zeroed();
        let action = new.map(|(handler, flags, mask)| {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            action.sa_mask = sys::sigset(mask);
            action
        });
        let new = action.as_ref().map_or(null(), |a| &raw const *a);
        let result = libc::sigaction(signal, new, &mut old);
        format!("{result} {}", described(&old))
    }
}

/// A fault of the program's own, at a page that the handler then mends.
fn fault(signal: c_int) -> String {
    let kind = if signal == libc::SIGBUS { Kind::Truncated } else { Kind::NoAccess };
    let bad = Bad::new(kind);
    PAGE_AT.store(bad.page() as usize, SeqCst);
    FILE.store(bad.file, SeqCst);
    let at = bad.page().wrapping_add(40);
    // SAFETY: the handler makes the page good; otherwise the process ends here, as it is to.
    let value = unsafe { at.read_volatile() };
    format!("read {value}, there {}, {}", ADDRESS.load(SeqCst) == at as usize, noted())
}

fn noted() -> String {
    format!(
        "calls {}, from the kernel {}, blocked {:03b}, on the other stack {}",
        CALLS.load(SeqCst),
        CODE.load(SeqCst) > 0,
        BLOCKED.load(SeqCst),
        ON_STACK.load(SeqCst) != 0
    )
}

pub fn raise(signal: c_int) -> String {
    let _ = sys::tgkill(sys::gettid(), signal);
    noted()
}

fn child(body: impl FnOnce()) -> String {
    let pid = sys::fork().expect("fork");
    if pid == 0 {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit: no core files of these deaths.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        body();
        sys::exit_now(0);
    }
    format!("{:?}", sys::wait_child(pid))
}

#[inline(never)]
fn overflow(depth: usize) -> usize {
    let mut room = [depth as u8; 4096];
    // SAFETY: a live array; nothing of it is left out.
    unsafe { (&raw mut room[depth % 4096]).write_volatile(1) };
    if depth == usize::MAX { 0 } else { overflow(depth + 1) + room[0] as usize }
}

/// Gives both signals one handler after the other.
pub fn change_handlers() {
    for i in 0..400 {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            let handler = [libc::SIG_DFL, note as *const () as usize][i % 2];
            let _ = set(signal, Some((handler, libc::SA_SIGINFO, &[])));
        }
    }
}

/// Gives `signal` a handler that notes its calls; what `sigaction` then says.
pub fn set_handler(signal: i32) -> String {
    let _ = set(signal, Some((note as *const () as usize, libc::SA_SIGINFO, &[])));
    set(signal, None)
}

/// All that a program can do with the disposition of `signal`, which is the default one, while its
/// connection `fd` gets bad buffers.
pub fn dispositions(signal: c_int, fd: Fd, say: &dyn Fn(&str, String)) {
    let efault = |label: &str| {
        let r = send(fd, Bad::new(Kind::NoAccess).page(), 10);
        say(label, format!("{r:?}, calls {}", CALLS.load(SeqCst)));
    };
    let noting = note as *const () as usize;
    say("at first", set(signal, None));
    efault("send with no handler");
    let full = libc::SA_SIGINFO | libc::SA_ONSTACK;
    say("set", set(signal, Some((noting, full, &[libc::SIGUSR1]))));
    say("then", set(signal, None));
    efault("send with a handler");
    say("own fault", fault(signal));
    say("raised", raise(signal));
    say(
        "set",
        set(signal, Some((noting, libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART, &[]))),
    );
    say("raised", raise(signal));
    efault("send with another handler");
    say("own fault", fault(signal));
    // SAFETY: dispositions of this module.
    unsafe {
        say("signal", name_of(libc::signal(signal, simple as *const () as usize)));
        say("then", set(signal, None));
        say("raised", raise(signal));
        say("signal", name_of(libc::signal(signal, libc::SIG_DFL)));
    }
    say("set", set(signal, Some((noting, libc::SA_SIGINFO | libc::SA_RESETHAND, &[]))));
    efault("send with a handler for once");
    say("then", set(signal, None));
    say("raised", raise(signal));
    say("then", set(signal, None));
    efault("send after that");
    say("ignored", set(signal, Some((libc::SIG_IGN, 0, &[]))));
    say("raised", raise(signal));
    say("then", set(signal, None));
    say("default", set(signal, Some((libc::SIG_DFL, 0, &[libc::SIGUSR2]))));
    say("then", set(signal, None));
    say("wrong number", format!("{:?}", set(99, None).starts_with("-1")));
    say("child that faults", child(|| drop(fault(signal))));
    say("child that raises", child(|| drop(raise(signal))));
    say(
        "child that is killed",
        child(|| {
            let _ = sys::kill(sys::getpid(), signal);
            sys::sleep_ms(5000);
        }),
    );
    say(
        "child that ignores",
        child(|| {
            sys::ignore_signal(signal);
            let _ = raise(signal);
        }),
    );
    let leaving = leave as *const () as usize;
    say(
        "child with a handler",
        child(|| {
            let _ = set(signal, Some((leaving, 0, &[])));
            drop(fault(signal));
        }),
    );
    say(
        "child that faults in its handler",
        child(|| {
            let _ = set(signal, Some((noting, libc::SA_SIGINFO | libc::SA_RESETHAND, &[])));
            let _ = raise(signal);
            PAGE_AT.store(0, SeqCst);
            FILE.store(-1, SeqCst);
            drop(fault(signal));
        }),
    );
    if signal == libc::SIGSEGV {
        say(
            "child whose stack ends",
            child(|| {
                let _ = set(signal, Some((leaving, libc::SA_ONSTACK, &[])));
                std::hint::black_box(overflow(1));
            }),
        );
        say(
            "and with no handler",
            child(|| {
                std::hint::black_box(overflow(1));
            }),
        );
    }
    efault("send at last");
}
