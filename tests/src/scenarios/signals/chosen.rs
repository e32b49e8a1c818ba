//! A signal that is sent to the process comes to the thread that the kernel has chosen.

use super::*;

static FIRST: AtomicI32 = AtomicI32::new(0);
static CAME: AtomicU32 = AtomicU32::new(0);
static TO_OTHERS: AtomicU32 = AtomicU32::new(0);
/// Threads that have made connections: the library's own threads have begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);
const THREADS: u32 = 3;
const SIGNALS: u32 = 600;
static ENOUGH: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: c_int) {
    if sys::gettid() != FIRST.load(Relaxed) {
        TO_OTHERS.fetch_add(1, Relaxed);
    }
    CAME.fetch_add(1, SeqCst);
}

/// Connections that are made, used and closed, one after another.
fn make_connections(address: sys::Addr) {
    for n in 0.. {
        if n == 10 {
            BEGUN.fetch_add(1, SeqCst);
        }
        if ENOUGH.load(Relaxed) {
            return;
        }
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, address).expect("connect");
        for _ in 0..60 {
            send_all(fd, b"question");
            recv_exact(fd, 8);
        }
        sys::close(fd).expect("close");
    }
}

/// One signal at a time, when the first thread sleeps.
fn send_signals(count: u32) {
    let until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    };
    until(&|| BEGUN.load(SeqCst) == THREADS);
    for n in 0..count {
        until(&|| sys::is_asleep(sys::getpid()));
        sys::kill(sys::getpid(), SIGUSR1).expect("kill");
        until(&|| CAME.load(SeqCst) > n);
    }
    ENOUGH.store(true, SeqCst);
}

fn serve(t: &Ctx) {
    let listener = t.listener();
    t.publish(listener);
    std::thread::spawn(move || {
        while let Ok(fd) = sys::accept(listener) {
            std::thread::spawn(move || {
                let mut buf = [0; 8];
                while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
                    send_all(fd, &buf[..n]);
                }
                sys::close(fd).expect("close");
            });
        }
    });
    t.meet("end");
}

/// The first thread sleeps; the kernel takes it for a signal of the process (complete_signal).
fn sleep_in_first(t: &Ctx) {
    let address = t.hear_addr();
    FIRST.store(sys::getpid(), Relaxed);
    sys::on_signal(SIGUSR1, note, 0).expect("sigaction");
    let others: Vec<_> = (0..THREADS)
        .map(|_| std::thread::spawn(move || make_connections(address)))
        .chain([std::thread::spawn(|| send_signals(SIGNALS))])
        .collect();
    while !ENOUGH.load(SeqCst) {
        sys::sleep_ms(1000);
    }
    others.into_iter().for_each(|thread| thread.join().expect("thread"));
    t.log("signals", CAME.load(SeqCst));
    // (A thread that starts one of the library's takes it, as any that starts a thread: limits.md.)
    t.log("hardly one to another thread", TO_OTHERS.load(SeqCst) <= SIGNALS / 300);
    t.meet("end");
}

pub(super) fn scenario() -> Scenario {
    pair(
        "signals/of-the-process",
        "a signal that is sent to the process comes to its first thread, which sleeps, whatever other threads do with connections",
        serve,
        sleep_in_first,
    )
    .any_path()
}
