//! An io_uring, made and entered through libc's `syscall` as libuv does it, by calls that nobody
//! sees ([`crate::raw`]), or by liburing, which is loaded as a program's plugin would load it.

use crate::ctx::Ctx;
use crate::sys::{E, Fd, errno};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

pub const READV: u8 = 1;
pub const POLL_ADD: u8 = 6;
pub const SENDMSG: u8 = 9;
pub const RECVMSG: u8 = 10;
pub const ACCEPT: u8 = 13;
pub const LINK_TIMEOUT: u8 = 15;
pub const CLOSE: u8 = 19;
pub const READ: u8 = 22;
pub const SEND: u8 = 26;
pub const RECV: u8 = 27;
pub const EPOLL_CTL: u8 = 29;
pub const EPOLL_WAIT: u8 = 59;

pub const SQPOLL: u32 = 1 << 1;

pub const DRAIN: u8 = 1 << 1;
pub const LINK: u8 = 1 << 2;
pub const HARDLINK: u8 = 1 << 3;

type Init = unsafe extern "C" fn(u32, *mut u64, u32) -> i32;
type Next = unsafe extern "C" fn(*mut u64) -> *mut Entry;
type Submit = unsafe extern "C" fn(*mut u64, u32) -> i32;

/// `struct io_uring_sqe`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Entry {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: Fd,
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub rest: [u64; 3],
}

pub struct Ring {
    pub fd: Fd,
    call: Call,
    library: Option<Library>,
    entries: u32,
    queue: *mut u8,
    sqes: *mut Entry,
    /// Offsets: of the submission queue head, tail, array; of the completion queue head, tail,
    /// entries, and their number.
    sq: [usize; 3],
    cq: [usize; 3],
    cq_entries: u32,
}

/// A system call: its result, or `-errno`.
type Call = unsafe fn(libc::c_long, [usize; 6]) -> isize;

unsafe fn by_libc(number: libc::c_long, a: [usize; 6]) -> isize {
    // SAFETY: the caller's arguments.
    let r = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    if r < 0 { -(errno().0 as isize) } else { r as isize }
}

/// Without a ring a scenario of rings asks for nothing: it counts as skipped.
pub fn or_skip(t: &Ctx, ring: Result<Ring, E>) -> Option<Ring> {
    match ring {
        Ok(ring) => return Some(ring),
        Err(E(libc::ENOENT)) => t.skip("there is no liburing here"),
        Err(e) => t.skip(&format!("no io_uring can be made here: {e:?}")),
    }
    None
}

impl Ring {
    /// `Err`: the machine allows no io_uring.
    pub fn new(entries: u32, flags: u32) -> Result<Ring, E> {
        Ring::by(by_libc, entries, flags)
    }

    /// One that no library sees, as a statically linked liburing makes it.
    pub fn raw(entries: u32, flags: u32) -> Result<Ring, E> {
        Ring::by(crate::raw::call, entries, flags)
    }

    /// One of liburing's. `Err`: the machine has none, or allows no io_uring.
    pub fn liburing(entries: u32, flags: u32) -> Result<Ring, E> {
        let library = Library::load().ok_or(E(libc::ENOENT))?;
        let at = library.ring();
        // SAFETY: its declaration in liburing.h.
        let init = unsafe {
            std::mem::transmute::<*mut c_void, Init>(library.symbol(c"io_uring_queue_init"))
        };
        // SAFETY: room for `struct io_uring`, which is 216 bytes long.
        let r = unsafe { init(entries, at, flags) };
        if r < 0 {
            return Err(E(-r));
        }
        // SAFETY: liburing has filled it in: `cq.khead`, `cq.ktail`, `cq.cqes`, `cq.ring_ptr`,
        // `cq.kring_entries`; `ring_fd`.
        unsafe {
            let word = |n: usize| *at.add(n / 8) as usize;
            let queue = word(168);
            Ok(Ring {
                fd: *at.cast::<i32>().add(196 / 4),
                call: crate::raw::call,
                library: Some(library),
                entries,
                queue: queue as *mut u8,
                sqes: std::ptr::null_mut(),
                sq: [0; 3],
                cq: [112 - 8, 112, 152].map(|n| word(n) - queue),
                cq_entries: *(word(128) as *const u32),
            })
        }
    }

    fn by(call: Call, entries: u32, flags: u32) -> Result<Ring, E> {
        let mut params = [0u32; 30];
        params[2] = flags;
        // SAFETY: the kernel writes 120 bytes.
        let fd = unsafe {
            call(
                libc::SYS_io_uring_setup,
                [entries as usize, params.as_mut_ptr() as usize, 0, 0, 0, 0],
            )
        };
        if fd < 0 {
            return Err(E(-fd as i32));
        }
        let (sq_entries, cq_entries) = (params[0], params[1]);
        let sq = [params[10], params[11], params[16]].map(|n| n as usize);
        let cq = [params[20], params[21], params[25]].map(|n| n as usize);
        let bytes = (sq[2] + sq_entries as usize * 4).max(cq[2] + cq_entries as usize * 16);
        let map = |bytes: usize, offset: i64| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping.
            let at = unsafe {
                libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd as Fd, offset)
            };
            assert!(at != libc::MAP_FAILED, "mmap of a ring: {:?}", errno());
            at
        };
        Ok(Ring {
            fd: fd as Fd,
            call,
            library: None,
            entries: sq_entries,
            queue: map(bytes, 0).cast(),
            sqes: map(sq_entries as usize * 64, 0x1000_0000).cast(),
            sq,
            cq,
            cq_entries,
        })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel's offsets into the mapping.
        unsafe { &*self.queue.add(offset).cast() }
    }

    /// Puts entries into the queue and has the kernel take them; waits for `wait` completions.
    pub fn submit(&self, entries: &[Entry], wait: u32) -> Result<usize, E> {
        if let Some(library) = &self.library {
            return library.submit(entries, wait);
        }
        let tail = self.word(self.sq[1]).load(Ordering::Relaxed);
        for (n, entry) in entries.iter().enumerate() {
            let slot = tail.wrapping_add(n as u32) & (self.entries - 1);
            // SAFETY: one of the queue's entries; the kernel has taken what was there.
            unsafe { self.sqes.add(slot as usize).write(*entry) };
            self.word(self.sq[2] + slot as usize * 4).store(slot, Ordering::Relaxed);
        }
        self.word(self.sq[1]).store(tail.wrapping_add(entries.len() as u32), Ordering::Release);
        let flags = 1usize;
        // SAFETY: no pointers.
        let r = unsafe {
            (self.call)(
                libc::SYS_io_uring_enter,
                [self.fd as usize, entries.len(), wait as usize, flags, 0, 0],
            )
        };
        if r < 0 { Err(E(-r as i32)) } else { Ok(r as usize) }
    }

    /// What has completed: `user_data` and result, sorted.
    pub fn completions(&self) -> Vec<(u64, i32)> {
        let mut all = Vec::new();
        let mut head = self.word(self.cq[0]).load(Ordering::Relaxed);
        while head != self.word(self.cq[1]).load(Ordering::Acquire) {
            let slot = (head & (self.cq_entries - 1)) as usize;
            // SAFETY: one of the queue's entries, which the kernel has written.
            let entry =
                unsafe { self.queue.add(self.cq[2] + slot * 16).cast::<(u64, i32, u32)>().read() };
            all.push((entry.0, entry.1));
            head = head.wrapping_add(1);
        }
        self.word(self.cq[0]).store(head, Ordering::Release);
        all.sort_unstable();
        all
    }

    /// One change of an epoll set by an entry of its own; its result.
    pub fn epoll_ctl(&self, set: Fd, op: i32, fd: Fd, events: u32, data: u64) -> Result<i32, E> {
        let mut event = libc::epoll_event { events, u64: data };
        self.submit(&[change(set, op, fd, &mut event, 77)], 1)?;
        let all = self.completions();
        assert!(matches!(all[..], [(77, _)]), "completions {all:?}");
        Ok(all[0].1)
    }
}

/// liburing, with one `struct io_uring`.
struct Library {
    handle: *mut c_void,
    ring: *mut u64,
}

impl Library {
    fn load() -> Option<Library> {
        // SAFETY: a C string.
        let handle =
            unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let ring = Box::leak(Box::new([0u64; 64])).as_mut_ptr();
        (!handle.is_null()).then_some(Library { handle, ring })
    }

    fn ring(&self) -> *mut u64 {
        self.ring
    }

    /// As a plugin that is linked with liburing finds it: first in the global scope.
    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: C strings, and a handle.
        let found = [libc::RTLD_DEFAULT, self.handle]
            .map(|scope| unsafe { libc::dlsym(scope, name.as_ptr()) });
        let found = if found[0].is_null() { found[1] } else { found[0] };
        assert!(!found.is_null(), "no {name:?}");
        found
    }

    fn submit(&self, entries: &[Entry], wait: u32) -> Result<usize, E> {
        // SAFETY: their declarations in liburing.h.
        let (next, submit) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Next>(self.symbol(c"io_uring_get_sqe")),
                std::mem::transmute::<*mut c_void, Submit>(
                    self.symbol(c"io_uring_submit_and_wait"),
                ),
            )
        };
        for entry in entries {
            // SAFETY: an entry of the ring's, or null.
            unsafe { next(self.ring).as_mut() }.map(|at| *at = *entry).expect("room in the ring");
        }
        // SAFETY: the ring.
        let r = unsafe { submit(self.ring, wait) };
        if r < 0 { Err(E(-r)) } else { Ok(r as usize) }
    }
}

/// `IORING_OP_EPOLL_CTL`
pub fn change(set: Fd, op: i32, fd: Fd, event: &mut libc::epoll_event, user_data: u64) -> Entry {
    Entry {
        opcode: EPOLL_CTL,
        fd: set,
        off: fd as u64,
        addr: event as *mut libc::epoll_event as u64,
        len: op as u32,
        user_data,
        ..Entry::default()
    }
}
