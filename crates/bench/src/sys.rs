//! The system calls that `std` has no safe face for; the only file of this crate with `unsafe`.
//!
//! Epoll goes through libc's symbols on purpose, as in any ordinary program: raw system calls would
//! pass by the library that is to be measured.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether standard output is something that can still be written to: a pipe has a reader.
pub(crate) fn is_read() -> bool {
    let mut out = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one valid pollfd; it does not wait.
    let _ = unsafe { libc::poll(&raw mut out, 1, 0) };
    out.revents & libc::POLLERR == 0
}

pub(crate) use libc::epoll_event as Event;

/// Empty slot for [`Epoll::wait`].
pub(crate) const NO_EVENT: Event = Event { events: 0, u64: 0 };
pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
pub(crate) const WRITABLE: u32 = libc::EPOLLOUT as u32;

/// A level-triggered epoll set.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: epoll_create1 just returned it; nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: RawFd,
        interest: u32,
        token: u64,
    ) -> io::Result<()> {
        let mut event = Event { events: interest, u64: token };
        // SAFETY: `event` is valid for the call; epoll_ctl keeps no pointer to it.
        checked(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) }).map(drop)
    }

    pub(crate) fn add(&self, fd: &impl AsRawFd, interest: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), interest, token)
    }

    pub(crate) fn modify(&self, fd: &impl AsRawFd, interest: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), interest, token)
    }

    /// Waits without a time limit; retries when a signal interrupts. Returns how many of `events`
    /// were filled.
    pub(crate) fn wait(&self, events: &mut [Event]) -> io::Result<usize> {
        self.wait_ms(events, -1)
    }

    /// Waits for at most `timeout_ms` milliseconds (-1: for ever).
    pub(crate) fn wait_ms(&self, events: &mut [Event], timeout_ms: i32) -> io::Result<usize> {
        let capacity = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
        loop {
            // SAFETY: `events` is valid for `capacity` entries during the call.
            let n = unsafe {
                libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), capacity, timeout_ms)
            };
            match checked(n) {
                Ok(n) => return Ok(n as usize),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// CPUs this process may run on, ascending.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all zeroes is an empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for its size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } < 0 {
        return Vec::new();
    }
    // SAFETY: CPU_ISSET only reads `set`, and the index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Has the child killed when this thread ends for whatever reason, and, before its `exec`, bound to
/// one CPU: so that threads a preloaded library starts are bound as well, in every kind of run
/// alike.
pub(crate) fn prepare_child(command: &mut Command, cpu: Option<usize>) {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and only makes async-signal-safe system calls
    // on its own stack.
    unsafe {
        command.pre_exec(move || {
            checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
            if let Some(cpu) = cpu {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                checked(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set))?;
            }
            Ok(())
        });
    }
}

/// User and system CPU time of a process, all threads, with nanosecond resolution.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is valid for the call.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => {}
        code => return Err(io::Error::from_raw_os_error(code)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    checked(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Asks a child to end. It has not been waited for, so its process id is still its own.
pub(crate) fn terminate(child: &Child) {
    // SAFETY: no pointers.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
}

/// Allows as many descriptors as the hard limit does.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// The busy loop of `--load`.
pub(crate) fn spin_for_ever() -> ! {
    let mut count = 0_u64;
    loop {
        count = std::hint::black_box(count).wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_grows() {
        let before = cpu_time(std::process::id()).unwrap();
        let mut x = 0_u64;
        while cpu_time(std::process::id()).unwrap() < before + Duration::from_millis(2) {
            x = std::hint::black_box(x + 1);
        }
        assert!(x > 0);
        assert!(!allowed_cpus().is_empty());
    }

    #[test]
    fn epoll_reports_a_readable_socket() {
        use std::io::Write;
        let (mut a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let set = Epoll::new().unwrap();
        set.add(&b, READABLE, 7).unwrap();
        let mut events = [NO_EVENT; 4];
        assert_eq!(set.wait_ms(&mut events, 0).unwrap(), 0);
        a.write_all(b"x").unwrap();
        assert_eq!(set.wait(&mut events).unwrap(), 1);
        assert_eq!({ events[0].u64 }, 7);
        set.modify(&b, WRITABLE, 8).unwrap();
        assert_eq!(set.wait(&mut events).unwrap(), 1);
        assert_eq!({ events[0].u64 }, 8);
    }
}
