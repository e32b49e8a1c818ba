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
        let more = c_int::try_from(more).unwrap_or(c_int::MAX / 4);
        let want = (bytes / 2).saturating_add(queued(fd)).saturating_add(more);
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

/// What the memory of all that is queued counts for. It may be far more than the size: a packet
/// that was begun is filled (tcp_sendmsg), up to half of the peer's largest window. And a part of
/// what goes again may stand there already, and be no part of `more`.
fn queued(fd: c_int) -> c_int {
    // (SK_MEMINFO_WMEM_QUEUED of linux/sock_diag.h. It is doubled as the size is: a socket is
    // writable again when a third of that is free, sk_stream_is_writeable.)
    let mut counts = [0 as c_int; 9];
    let r = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut counts);
    let [.., queued, _, _, _] = counts;
    if r < 0 { 0 } else { queued.max(0) }
}

fn get(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value = 0;
    (sys::getsockopt(fd, libc::SOL_SOCKET, name, &mut value) >= 0).then_some(value)
}

fn set(fd: c_int, name: c_int, value: c_int) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, name, &value);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// Sends as much as there is room for, `most` bytes at most.
    fn fills(to: &mut TcpStream, most: usize) -> usize {
        let mut sent = 0;
        while sent < most {
            match to.write(&[b'x'; 4096][..(most - sent).min(4096)]) {
                Ok(n) => sent += n,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        sent
    }

    #[test]
    fn there_is_room_behind_whatever_is_queued() {
        for more in [1, 1000, 4096, 30_000] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut far = listener.accept().unwrap().0;
            near.set_nonblocking(true).unwrap();
            set(far.as_raw_fd(), libc::SO_RCVBUF, 4096);
            set(near.as_raw_fd(), libc::SO_SNDBUF, 4096);
            let size = get(near.as_raw_fd(), libc::SO_SNDBUF);
            let full = fills(&mut near, usize::MAX);
            assert_eq!(fills(&mut near, 1), 0);
            let grown = SendBuffer::grown(near.as_raw_fd(), more).unwrap();
            assert_eq!(fills(&mut near, more as usize), more as usize, "behind {full}");
            grown.put_back([-1, near.as_raw_fd()]);
            assert_eq!(get(near.as_raw_fd(), libc::SO_SNDBUF), size);
            drop(near);
            let mut all = std::vec::Vec::new();
            assert_eq!(far.read_to_end(&mut all).unwrap(), full + more as usize);
        }
    }
}
