//! Threads that end at any instruction (PTHREAD_CANCEL_ASYNCHRONOUS) in the middle of calls: what
//! they were inside of is not left as it was, and others go on with their connections.

use crate::ctx::{Ctx, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Fd};
use libc::{MSG_DONTWAIT, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::*};

// Declared as what does not unwind, although a thread that is cancelled ends in them: otherwise the
// compiler has each call end the process then.
unsafe extern "C" {
    fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
    fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, ms: c_int) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_tryjoin_np(thread: libc::pthread_t, value: *mut *mut c_void) -> c_int;
}

const WAYS: [&str; 4] = ["send", "recv", "poll", "recv that waits"];
/// Threads of each kind.
const ROUNDS: u32 = 40;

static FD: AtomicI32 = AtomicI32::new(-1);
static WAY: AtomicI32 = AtomicI32::new(0);
/// 1: it has begun.
static BEGUN: AtomicI32 = AtomicI32::new(0);
static BYTES: [AtomicU8; 1000] = [const { AtomicU8::new(b'x') }; 1000];
static INTO: [AtomicU8; 1000] = [const { AtomicU8::new(0) }; 1000];

/// Calls without end. (No frame of it has anything to drop.)
extern "C-unwind" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: buffers that live for ever.
    unsafe {
        pthread_setcanceltype(1, null_mut());
        let (fd, way) = (FD.load(SeqCst), WAY.load(SeqCst));
        let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        BEGUN.store(1, SeqCst);
        loop {
            match way {
                0 => _ = send(fd, BYTES.as_ptr().cast(), 1000, MSG_DONTWAIT),
                1 => _ = recv(fd, INTO.as_ptr().cast_mut().cast(), 1000, MSG_DONTWAIT),
                2 => _ = poll(&raw mut one, 1, 1),
                _ => _ = recv(fd, INTO.as_ptr().cast_mut().cast(), 1000, 0),
            }
        }
    }
}

fn start(way: usize, fd: Fd) -> libc::pthread_t {
    FD.store(fd, SeqCst);
    WAY.store(way as c_int, SeqCst);
    BEGUN.store(0, SeqCst);
    let mut thread = 0;
    // SAFETY: an entry that may unwind is called as any other.
    let made = unsafe {
        let entry: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(run as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        libc::pthread_create(&mut thread, std::ptr::null(), entry, null_mut())
    };
    assert_eq!(made, 0, "pthread_create");
    while BEGUN.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    thread
}

fn ends(thread: libc::pthread_t) -> bool {
    let until = sys::now_ns() + 5_000_000_000 * u64::from(sys::patience());
    // SAFETY: a thread that nobody has joined.
    while unsafe { pthread_tryjoin_np(thread, null_mut()) } != 0 {
        if sys::now_ns() > until {
            return false;
        }
        let _ = sys::poll(&[], 1);
    }
    true
}

fn server(t: &Ctx) {
    let fd = t.server();
    for (way, name) in WAYS.iter().enumerate() {
        let mut ended = 0;
        for n in 0..ROUNDS {
            let thread = start(way, fd);
            let until = sys::now_ns() + u64::from(n * 37 % 1000) * 1000;
            while sys::now_ns() < until {
                std::hint::spin_loop();
            }
            // SAFETY: the thread has not been joined.
            assert_eq!(unsafe { pthread_cancel(thread) }, 0);
            ended += u32::from(ends(thread));
        }
        t.log(&format!("{name}: threads that ended"), ended);
    }
    // Others go on with the connection, both ways.
    sys::set_timeout(fd, libc::SO_SNDTIMEO, 20_000).expect("SO_SNDTIMEO");
    sys::set_timeout(fd, libc::SO_RCVTIMEO, 20_000).expect("SO_RCVTIMEO");
    t.log("sends", sys::send(fd, b"!", 0));
    let mut buf = [0u8; 4096];
    let last = loop {
        match sys::recv(fd, &mut buf, 0) {
            Ok(n) if n > 0 && !buf[..n].contains(&b'!') => {}
            other => break other.map(|n| n > 0),
        }
    };
    t.log("receives", last);
    t.meet("end");
}

/// Sends and receives all the while.
fn client(t: &Ctx) {
    let fd = t.client();
    let mut buf = [0u8; 8192];
    loop {
        let n = sys::recv(fd, &mut buf, MSG_DONTWAIT).unwrap_or(0);
        if buf[..n].contains(&b'!') {
            break;
        }
        let _ = sys::send(fd, &[b'y'; 100], MSG_DONTWAIT);
        if n == 0 {
            let _ = sys::poll(&[(fd, libc::POLLIN)], 1);
        }
    }
    send_all(fd, b"!");
    t.meet("end");
}

pub fn list() -> Vec<Scenario> {
    vec![pair(
        "signals/cancelled-anywhere",
        "threads that end at any instruction, in the middle of sends, receives and waits; then another one uses the connection",
        server,
        client,
    )]
}
