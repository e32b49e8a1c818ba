//! A timer that interrupts.

use super::*;

pub(super) static TIMER: AtomicUsize = AtomicUsize::new(0);

/// From here on the thread is interrupted ten thousand times a second.
pub(super) fn tick(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    make_timer(signal, handler, flags);
    set_timer(100_000, 100_000);
}

/// Once, in so many nanoseconds.
pub(super) fn interrupt_in(ns: u64) {
    set_timer(ns, 0);
}

pub(super) fn set_timer(first_ns: u64, every_ns: u64) {
    let after = |ns: u64| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    let spec = libc::itimerspec { it_interval: after(every_ns), it_value: after(first_ns) };
    // SAFETY: the timer that `make_timer` made.
    let set =
        unsafe { libc::timer_settime(TIMER.load(Relaxed) as libc::timer_t, 0, &spec, null_mut()) };
    assert!(set == 0);
}

/// A timer that interrupts the thread when it is set.
pub(super) fn make_timer(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    sys::on_signal(signal, handler, flags).expect("sigaction");
    // SAFETY: all zero is valid; the timer's signal goes to this thread.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = sys::gettid();
        let mut timer: libc::timer_t = null_mut();
        assert!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0);
        TIMER.store(timer as usize, Relaxed);
    }
}

pub(super) fn untick() {
    // SAFETY: the timer that `make_timer` made.
    unsafe { libc::timer_delete(TIMER.load(Relaxed) as libc::timer_t) };
}
