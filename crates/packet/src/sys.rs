//! The system calls of this crate and of `netacc-utcp`: raw, so that they cannot enter a hook of
//! the preload library, and write no `errno`. Each returns the kernel's own value, `>= 0`, or
//! `-errno`.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering};

/// One system call.
///
/// # Safety
/// As the system call itself demands of its arguments.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn syscall(n: i64, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 Linux system call convention: rcx and r11 are clobbered, memory may be
    // written.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    ret
}

/// One system call.
///
/// # Safety
/// As the system call itself demands of its arguments.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn syscall(n: i64, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the AArch64 Linux system call convention.
    unsafe {
        core::arch::asm!("svc 0", in("x8") n, inlateout("x0") a as isize => ret, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    ret
}

/// An `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// A result of a system call.
///
/// # Errors
///
/// What the kernel said.
pub fn checked(ret: isize) -> Result<usize, Errno> {
    usize::try_from(ret).map_err(|_| Errno(c_int::try_from(ret.unsigned_abs()).unwrap_or(0)))
}

/// How a program's guest keeps its descriptors out of the program's way.
#[derive(Debug)]
pub struct Numbers {
    /// A new descriptor gets another number, or `-errno`; it is closed then.
    pub adopt: fn(c_int) -> c_int,
    /// One of those is closed.
    pub close: fn(c_int),
}

static NUMBERS: AtomicPtr<Numbers> = AtomicPtr::new(core::ptr::null_mut());

/// From here on every descriptor that is made here gets its number so. Once, before the first.
pub fn keep_numbers(by: &'static Numbers) {
    NUMBERS.store(core::ptr::from_ref(by).cast_mut(), Ordering::Release);
}

fn numbers() -> Option<&'static Numbers> {
    // SAFETY: null, or what `keep_numbers` was given, which lives for ever and does not change.
    unsafe { NUMBERS.load(Ordering::Acquire).as_ref() }
}

/// A descriptor of this crate's, closed when it is dropped.
#[derive(Debug)]
pub struct Fd(c_int);

impl Fd {
    /// A call's result that is a new descriptor, which nobody else has.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn new(ret: isize) -> Result<Self, Errno> {
        let fd = c_int::try_from(checked(ret)?).unwrap_or(-1);
        let Some(numbers) = numbers() else { return Ok(Self(fd)) };
        match (numbers.adopt)(fd) {
            own if own >= 0 => Ok(Self(own)),
            errno => Err(Errno(-errno)),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> c_int {
        self.0
    }

    /// Another descriptor of the same file, closed by exec.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn duplicate_of(fd: c_int) -> Result<Self, Errno> {
        let command = libc::F_DUPFD_CLOEXEC as usize;
        // SAFETY: integers only.
        Self::new(unsafe { syscall(libc::SYS_fcntl, [fd as usize, command, 3, 0, 0, 0]) })
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if let Some(numbers) = numbers() {
            return (numbers.close)(self.0);
        }
        // SAFETY: integers only; the descriptor is this value's own.
        unsafe { syscall(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// The number of this process.
#[must_use]
pub fn process() -> c_int {
    // SAFETY: integers only.
    let ret = unsafe { syscall(libc::SYS_getpid, [0; 6]) };
    c_int::try_from(ret).unwrap_or(0)
}

/// How large this process may make a file. Who tries more gets a signal that ends it.
#[must_use]
pub fn file_limit() -> u64 {
    let mut limits = [u64::MAX; 2];
    let (which, at) = (libc::RLIMIT_FSIZE as usize, limits.as_mut_ptr() as usize);
    // SAFETY: the kernel writes both limits into the live array. (If it does not, there is none.)
    unsafe { syscall(libc::SYS_prlimit64, [0, which, 0, at, 0, 0]) };
    let [soft, _] = limits;
    soft
}

/// A new socket, closed by exec, that never waits.
///
/// # Errors
///
/// What the kernel said.
pub fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<Fd, Errno> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let arguments = [family as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: integers only.
    Fd::new(unsafe { syscall(libc::SYS_socket, arguments) })
}

/// `setsockopt` of plain bytes.
///
/// # Errors
///
/// What the kernel said.
pub fn set_bytes(fd: c_int, (level, name): (c_int, c_int), value: &[u8]) -> Result<(), Errno> {
    let at = value.as_ptr() as usize;
    let arguments = [fd as usize, level as usize, name as usize, at, value.len(), 0];
    // SAFETY: the kernel reads the live slice.
    checked(unsafe { syscall(libc::SYS_setsockopt, arguments) }).map(|_| ())
}

/// `setsockopt` of an int.
///
/// # Errors
///
/// What the kernel said.
pub fn set(fd: c_int, option: (c_int, c_int), value: c_int) -> Result<(), Errno> {
    set_bytes(fd, option, &value.to_ne_bytes())
}

/// `getsockopt` of plain bytes: how many were written.
///
/// # Errors
///
/// What the kernel said.
pub fn get_bytes(
    fd: c_int,
    (level, name): (c_int, c_int),
    value: &mut [u8],
) -> Result<usize, Errno> {
    let mut length = c_int::try_from(value.len()).unwrap_or(c_int::MAX);
    let (at, size) = (value.as_mut_ptr() as usize, &raw mut length as usize);
    let arguments = [fd as usize, level as usize, name as usize, at, size, 0];
    // SAFETY: the kernel writes at most `length` bytes of the live slice, and `length`.
    checked(unsafe { syscall(libc::SYS_getsockopt, arguments) })?;
    Ok(usize::try_from(length).unwrap_or(0).min(value.len()))
}

/// `getsockopt` of an int.
///
/// # Errors
///
/// What the kernel said.
pub fn get(fd: c_int, option: (c_int, c_int)) -> Result<c_int, Errno> {
    let mut value = [0; 4];
    get_bytes(fd, option, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

/// `bind`, to an address as the kernel has it.
///
/// # Errors
///
/// What the kernel said.
pub fn bind(fd: c_int, address: &[u8]) -> Result<(), Errno> {
    let arguments = [fd as usize, address.as_ptr() as usize, address.len(), 0, 0, 0];
    // SAFETY: the kernel reads the live slice.
    checked(unsafe { syscall(libc::SYS_bind, arguments) }).map(|_| ())
}

/// `connect`, to an address as the kernel has it.
///
/// # Errors
///
/// What the kernel said.
pub fn connect(fd: c_int, address: &[u8]) -> Result<(), Errno> {
    let arguments = [fd as usize, address.as_ptr() as usize, address.len(), 0, 0, 0];
    // SAFETY: the kernel reads the live slice.
    checked(unsafe { syscall(libc::SYS_connect, arguments) }).map(|_| ())
}

/// `send`, without a signal.
///
/// # Errors
///
/// What the kernel said.
pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize, Errno> {
    send_to(fd, bytes, flags, &[])
}

/// `sendto`, without a signal. An empty address is none.
///
/// # Errors
///
/// What the kernel said.
pub fn send_to(fd: c_int, bytes: &[u8], flags: c_int, address: &[u8]) -> Result<usize, Errno> {
    let flags = (flags | libc::MSG_NOSIGNAL) as usize;
    let to = if address.is_empty() { 0 } else { address.as_ptr() as usize };
    let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags, to, address.len()];
    // SAFETY: the kernel reads the live slices.
    checked(unsafe { syscall(libc::SYS_sendto, arguments) })
}

/// `recv`.
///
/// # Errors
///
/// What the kernel said.
pub fn receive(fd: c_int, bytes: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    let at = bytes.as_mut_ptr() as usize;
    let arguments = [fd as usize, at, bytes.len(), flags as usize, 0, 0];
    // SAFETY: the kernel writes into the live slice.
    checked(unsafe { syscall(libc::SYS_recvfrom, arguments) })
}

/// `ioctl` that gives an int.
///
/// # Errors
///
/// What the kernel said.
pub fn ioctl_int(fd: c_int, request: u64) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    let at = &raw mut value as usize;
    // SAFETY: the callers' requests write one int.
    checked(unsafe { syscall(libc::SYS_ioctl, [fd as usize, request as usize, at, 0, 0, 0]) })?;
    Ok(value)
}

/// What of `events` is true of a descriptor now.
///
/// # Errors
///
/// What the kernel said.
pub fn poll(fd: c_int, events: i16, milliseconds: c_int) -> Result<i16, Errno> {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let wait = libc::timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    let until = if milliseconds < 0 { 0 } else { &raw const wait as usize };
    let arguments = [&raw mut one as usize, 1, until, 0, 8, 0];
    // SAFETY: the kernel reads and writes the one pollfd, and reads the time, both live; no mask.
    checked(unsafe { syscall(libc::SYS_ppoll, arguments) })?;
    Ok(one.revents)
}

/// Waits until every CPU has left what it did in the kernel's network (an RCU grace period).
///
/// # Errors
///
/// What the kernel said.
pub fn settle() -> Result<(), Errno> {
    const MEMBARRIER_CMD_GLOBAL: usize = 1;
    // SAFETY: integers only.
    let ret = unsafe { syscall(libc::SYS_membarrier, [MEMBARRIER_CMD_GLOBAL, 0, 0, 0, 0, 0]) };
    checked(ret).map(|_| ())
}

/// `getsockname`, `getpeername`: the result, and how long the address is.
pub fn syscall_of_address(call: i64, fd: c_int, address: &mut [u8; 28]) -> (isize, usize) {
    let mut length: u32 = 28;
    let (at, size) = (address.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: the kernel writes at most 28 bytes of the live array, and the length.
    let ret = unsafe { syscall(call, [fd as usize, at, size, 0, 0, 0]) };
    (ret, usize::try_from(length).unwrap_or(0).min(address.len()))
}

/// The beginning of a file.
///
/// # Errors
///
/// What the kernel said.
pub fn read_file(path: &core::ffi::CStr, bytes: &mut [u8]) -> Result<usize, Errno> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: the kernel reads the path, which is live.
    let file = Fd::new(unsafe { syscall(libc::SYS_openat, arguments) })?;
    let arguments = [file.number() as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: the kernel writes into the live slice.
    checked(unsafe { syscall(libc::SYS_read, arguments) })
}
