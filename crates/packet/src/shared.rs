//! Memory of this process's own, and memory that a keeper may map as well, when this process is
//! gone.

use crate::sys::{self, Errno, Fd, checked, syscall};
use core::sync::atomic::AtomicU64;

/// A page, of any system that this runs on at most.
pub const PAGE: usize = 1 << 16;

/// A file in memory, which only this process has, and its keeper.
#[derive(Debug)]
pub struct File {
    fd: Fd,
}

impl File {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn new() -> Result<Self, Errno> {
        let name = c"netacc-utcp".as_ptr() as usize;
        let flags = libc::MFD_CLOEXEC as usize;
        // SAFETY: the kernel reads the name, which is live.
        Fd::new(unsafe { syscall(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]) })
            .map(|fd| Self { fd })
    }

    /// One that another process has made, and given us.
    #[must_use]
    pub const fn given(fd: Fd) -> Self {
        Self { fd }
    }

    /// Its descriptor.
    #[must_use]
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Makes it as long as that. It is never made shorter.
    ///
    /// # Errors
    ///
    /// What the kernel said; EFBIG where the process may not have such a file.
    pub fn lengthen(&self, to: usize) -> Result<(), Errno> {
        if to as u64 > sys::file_limit() {
            return Err(Errno(libc::EFBIG));
        }
        let arguments = [self.fd.number() as usize, to, 0, 0, 0, 0];
        // SAFETY: integers only.
        checked(unsafe { syscall(libc::SYS_ftruncate, arguments) }).map(|_| ())
    }
}

/// Memory that is mapped: zeros at first.
#[derive(Debug)]
pub struct Mapping {
    at: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is bound to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// So many bytes of this process's own.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn new(length: usize) -> Result<Self, Errno> {
        Self::map(length, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize, usize::MAX, 0)
    }

    /// So many bytes of a file that has them, from a multiple of [`PAGE`] on.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn of(file: &File, from: usize, length: usize) -> Result<Self, Errno> {
        Self::map(length, libc::MAP_SHARED as usize, file.fd.number() as usize, from)
    }

    fn map(length: usize, flags: usize, fd: usize, from: usize) -> Result<Self, Errno> {
        let length = length.max(1);
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        // SAFETY: a new mapping, where the kernel chooses.
        let at = unsafe { syscall(libc::SYS_mmap, [0, length, protection, flags, fd, from]) };
        Ok(Self { at: core::ptr::with_exposed_provenance_mut(checked(at)?), length })
    }

    /// What is in it.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: it is mapped, as long as that, until this value is dropped; of a file, the only
        // other process that has it looks when this one is gone, or is gone itself.
        unsafe { core::slice::from_raw_parts(self.at, self.length) }
    }

    /// The same, to be changed.
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this value is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.length) }
    }

    /// What is in it, as words.
    #[must_use]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: as above; a mapping begins at a page, so words are aligned.
        unsafe { core::slice::from_raw_parts(self.at.cast(), self.length / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let at = self.at.expose_provenance();
        // SAFETY: the mapping is this value's own, and nothing of it is borrowed any more.
        unsafe { syscall(libc::SYS_munmap, [at, self.length, 0, 0, 0, 0]) };
    }
}
