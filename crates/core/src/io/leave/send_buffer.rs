//! The carrier's send buffer has room for all that goes again, where a call cannot go on before:
//! the peer's program may not be reading, or may be about to hand its own end on, and then each
//! would wait for the other.

use crate::sys;
use core::ffi::c_int;

/// What net.core.wmem_max is unless somebody has changed it: as much may be asked for, and so can
/// be put back. (Where it is less, a size that the kernel has chosen above that is smaller
/// afterwards, until the kernel chooses again.)
const WMEM_MAX: c_int = 212_992;

/// What it is put back to ([`SendBuffer::put_back`]).
pub(in crate::io) struct SendBuffer {
    /// The socket's: a number may be another file's by then.
    inode: (u64, u64),
    bytes: c_int,
    lock: c_int,
    /// What it was grown to: another size is the program's own, set meanwhile.
    grown: c_int,
}

impl SendBuffer {
    /// Room for `more` bytes, as far as net.core.wmem_max lets it. `None`: nothing was changed. It
    /// is so large that it could not be put back, or the kernel has no SO_BUF_LOCK (Linux 5.14),
    /// by which it goes on choosing the size itself afterwards.
    #[cold]
    pub(in crate::io) fn grown(fd: c_int, more: u64) -> Option<SendBuffer> {
        let inode = sys::inode(fd)?;
        let lock = get(fd, libc::SO_BUF_LOCK)?;
        // (socket(7): the kernel takes the double of what it is told, and says that.)
        let bytes = get(fd, libc::SO_SNDBUF).filter(|bytes| bytes / 2 <= WMEM_MAX)?;
        let want = (bytes / 2).saturating_add(c_int::try_from(more).unwrap_or(c_int::MAX / 4));
        set(fd, libc::SO_SNDBUF, want);
        let grown = get(fd, libc::SO_SNDBUF)?;
        Some(SendBuffer { inode, bytes, lock, grown })
    }

    /// By whichever of these numbers is the socket's still.
    pub(in crate::io) fn put_back(self, fds: [c_int; 2]) {
        let Some(fd) = fds.into_iter().find(|fd| sys::inode(*fd) == Some(self.inode)) else {
            return;
        };
        if get(fd, libc::SO_SNDBUF) == Some(self.grown) {
            set(fd, libc::SO_SNDBUF, self.bytes / 2);
            set(fd, libc::SO_BUF_LOCK, self.lock);
        }
    }
}

fn get(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value = 0;
    (sys::getsockopt(fd, libc::SOL_SOCKET, name, &mut value) >= 0).then_some(value)
}

fn set(fd: c_int, name: c_int, value: c_int) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, name, &value);
}
