//! System calls that no library sees: as rustix's linux_raw backend, Go's runtime and a statically
//! linked liburing make them.

use crate::ring::{Entry, POLL_ADD, Ring};
use crate::sys::{E, Fd};
use libc::{c_long, epoll_event, pollfd};

/// One system call by the processor's own instruction.
#[cfg(target_arch = "x86_64")]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> isize {
    let mut result = number as isize;
    // SAFETY: the caller's arguments; the instruction changes rcx and r11 besides.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// One system call by the processor's own instruction.
#[cfg(target_arch = "aarch64")]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> isize {
    let mut result = args[0] as isize;
    // SAFETY: the caller's arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") result,
            in("x1") args[1], in("x2") args[2],
            in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack)
        );
    }
    result
}

fn checked(r: isize) -> Result<usize, E> {
    if r < 0 { Err(E(-r as i32)) } else { Ok(r as usize) }
}

pub fn read(fd: Fd, buf: &mut [u8]) -> Result<usize, E> {
    // SAFETY: a valid buffer.
    checked(unsafe {
        call(libc::SYS_read, [fd as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0])
    })
}

pub fn write(fd: Fd, buf: &[u8]) -> Result<usize, E> {
    // SAFETY: a valid buffer.
    checked(unsafe {
        call(libc::SYS_write, [fd as usize, buf.as_ptr() as usize, buf.len(), 0, 0, 0])
    })
}

pub fn setopt(fd: Fd, level: i32, name: i32, value: i32) -> Result<usize, E> {
    let (at, size) = ((&raw const value) as usize, size_of_val(&value));
    // SAFETY: an int.
    checked(unsafe {
        call(libc::SYS_setsockopt, [fd as usize, level as usize, name as usize, at, size, 0])
    })
}

/// Whether the kernel resets the connection at its last close (SO_LINGER, on and 0).
pub fn ends_in_a_reset(fd: Fd) -> bool {
    let (mut linger, mut len) = ([0i32; 2], 8u32);
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_LINGER as usize);
    let at = [fd as usize, level, name, linger.as_mut_ptr() as usize, &raw mut len as usize, 0];
    // SAFETY: room for the value, and its length.
    let got = unsafe { call(libc::SYS_getsockopt, at) };
    got == 0 && linger == [1, 0]
}

/// Waits with ppoll for one descriptor; what it reports, or 0.
pub fn poll(fd: Fd, events: i16, ms: i64) -> i16 {
    let mut one = pollfd { fd, events, revents: 0 };
    let limit = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    // SAFETY: one pollfd and a time.
    let r = unsafe {
        call(libc::SYS_ppoll, [&raw mut one as usize, 1, &raw const limit as usize, 0, 8, 0])
    };
    assert!(r >= 0, "ppoll: {r}");
    one.revents
}

/// Waits with pselect6 for one descriptor to be readable; how many are.
pub fn select(fd: Fd, ms: i64) -> usize {
    // SAFETY: all zero is an empty set; its room is for this number.
    let mut read: libc::fd_set = unsafe { std::mem::zeroed() };
    assert!((fd as usize) < libc::FD_SETSIZE);
    // SAFETY: as above.
    unsafe { libc::FD_SET(fd, &mut read) };
    let limit = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let args = [fd as usize + 1, &raw mut read as usize, 0, 0, &raw const limit as usize, 0];
    // SAFETY: one set, a time, no mask.
    checked(unsafe { call(libc::SYS_pselect6, args) }).expect("pselect6")
}

/// An epoll set that nobody else knows of.
pub struct Set(Fd);

impl Set {
    pub fn new() -> Set {
        // SAFETY: no pointers.
        Set(checked(unsafe {
            call(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0])
        })
        .expect("epoll_create1") as Fd)
    }

    /// Of a set that was made by a call that is seen.
    pub fn of(fd: Fd) -> Set {
        Set(fd)
    }

    pub fn add(&self, fd: Fd, events: u32) {
        let mut event = epoll_event { events, u64: fd as u64 };
        let args = [
            self.0 as usize,
            libc::EPOLL_CTL_ADD as usize,
            fd as usize,
            &raw mut event as usize,
            0,
            0,
        ];
        // SAFETY: one event.
        checked(unsafe { call(libc::SYS_epoll_ctl, args) }).expect("epoll_ctl");
    }

    /// How many events came within that time.
    pub fn wait(&self, ms: i32) -> usize {
        self.heard(ms).len()
    }

    /// The data of those events.
    pub fn heard(&self, ms: i32) -> Vec<u64> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 8];
        let args = [self.0 as usize, events.as_mut_ptr() as usize, events.len(), ms as usize, 0, 8];
        // SAFETY: a buffer of so many events; no mask.
        let n = checked(unsafe { call(libc::SYS_epoll_pwait, args) }).expect("epoll_pwait");
        events.iter().take(n).map(|event| event.u64).collect()
    }
}

/// Waits by an io_uring of its own until the descriptor is readable.
pub fn await_by_ring(ring: &Ring, fd: Fd) {
    let entry = Entry {
        opcode: POLL_ADD,
        fd,
        op_flags: libc::POLLIN as u32,
        user_data: 1,
        ..Entry::default()
    };
    ring.submit(&[entry], 1).expect("io_uring_enter");
    assert!(ring.completions().len() == 1);
}
