//! epoll.
//!
//! A set without anything of ours is waited for by the next symbol. If such a wait ends only
//! because the set has come to hold sockets of ours meanwhile, the core says so (no event is the
//! application's) and the wait goes on with what is left.

use super::fd::numbered;
use super::time;
use core::ptr::null;
use libc::{c_int, epoll_event, sigset_t, timespec};
use netacc_core::api;

hook! {
    /// `epoll_create(2)`.
    fn epoll_create(size: c_int) -> c_int |next| {
        let fd = numbered(|| next(size));
        if fd >= 0 {
            api::on_epoll_create(fd);
        }
        fd
    }
}
hook! {
    /// `epoll_create1(2)`.
    fn epoll_create1(flags: c_int) -> c_int |next| {
        let fd = numbered(|| next(flags));
        if fd >= 0 {
            api::on_epoll_create(fd);
        }
        fd
    }
}
hook! {
    /// `epoll_ctl(2)`.
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = api::epoll_ctl(epfd, op, fd, event);
}

/// A wait of at most `$timeout_ns`; `$next` is the next symbol's, for as long as `$left` says.
macro_rules! wait {
    ($epfd:ident, $events:ident, $max:ident, $timeout_ns:expr, $mask:expr, |$left:ident| $next:expr) => {{
        let mut $left = $crate::hooks::epoll::Left::of($timeout_ns);
        loop {
            let mut counted = netacc_core::api::Counted::default();
            let answer = netacc_core::api::epoll_wait(
                $epfd,
                $events,
                $max,
                $left.timeout_ns,
                $mask,
                &mut counted,
            );
            if answer != netacc_core::api::PASS {
                break $crate::errno::ret_at_point(answer) as c_int;
            }
            $left.start();
            let mut n: c_int = $next;
            counted.came_out(n);
            if n > 0 {
                // (Behind what was not the application's may be more than there was room for.)
                let is_full = n == $max;
                n = netacc_core::api::on_epoll_wait($epfd, $events, n, $max);
                if n == 0 && ($left.again() || (is_full && $left.looks_on())) {
                    continue;
                }
            }
            break n;
        }
    }};
}

hook! {
    /// `epoll_wait(2)`.
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int |next| {
        wait!(epfd, events, max, time::from_ms(timeout), null(), |left| next(epfd, events, max, left.ms()))
    }
}
hook! {
    /// `epoll_pwait(2)`.
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int |next| {
        wait!(epfd, events, max, time::from_ms(timeout), mask, |left| next(epfd, events, max, left.ms(), mask))
    }
}
hook! {
    /// `epoll_pwait2(2)`.
    unchecked fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int |next| {
        let Some(timeout_ns) = time::from_timespec(timeout) else {
            return next(epfd, events, max, timeout, mask);
        };
        wait!(epfd, events, max, timeout_ns, mask, |left| match left.timespec() {
            Some(left) => next(epfd, events, max, &left, mask),
            None => next(epfd, events, max, null(), mask),
        })
    }
}

/// What is left of a timeout.
///
/// Almost every wait is over after the first round, so the clock that every wait must read is the
/// coarse one, which costs 5 ns instead of 20. A further round may last a tick of it too long, and
/// never ends early.
pub(super) struct Left {
    /// Negative: for ever.
    pub(super) timeout_ns: i64,
    /// When the first round began, by the coarse clock; 0 before it and where there is nothing to
    /// count down.
    start_ns: u64,
    /// What was asked for.
    whole_ns: i64,
    /// Looks behind its end.
    looks: u32,
}

impl Left {
    #[inline]
    pub(super) fn of(timeout_ns: i64) -> Left {
        Left { timeout_ns, start_ns: 0, whole_ns: timeout_ns, looks: 0 }
    }

    /// Before each round.
    #[inline]
    pub(super) fn start(&mut self) {
        if self.timeout_ns > 0 && self.start_ns == 0 {
            let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `now` is written only.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
            self.start_ns = nanoseconds(now);
        }
    }

    /// Before another round; false when the time is up.
    #[cold]
    pub(super) fn again(&mut self) -> bool {
        if self.start_ns != 0 {
            let mut tick = timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `tick` is written only.
            unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut tick) };
            let end_ns = self
                .start_ns
                .saturating_add(nanoseconds(tick))
                .saturating_add(self.whole_ns as u64);
            self.timeout_ns = end_ns.saturating_sub(api::now_ns()) as i64;
        }
        self.timeout_ns != 0
    }

    /// Before another round though the time is up: the set may have more. Of each of the library's
    /// own things in a set one such round is enough.
    #[cold]
    pub(super) fn looks_on(&mut self) -> bool {
        const MOST: u32 = 64;
        self.looks = self.looks.saturating_add(1);
        self.looks <= MOST
    }

    /// In milliseconds, rounded up: a wait must not end early.
    #[inline]
    pub(super) fn ms(&self) -> c_int {
        if self.timeout_ns < 0 {
            return -1;
        }
        c_int::try_from(self.timeout_ns.saturating_add(999_999) / 1_000_000).unwrap_or(c_int::MAX)
    }

    pub(super) fn timespec(&self) -> Option<timespec> {
        if self.timeout_ns < 0 {
            return None;
        }
        Some(time::to_timespec(self.timeout_ns))
    }
}

fn nanoseconds(time: timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
