//! Both ends of a connection, for tests of what a call comes to: once within the kernel's TCP, once
//! in a ring. The former says what the latter has to say, too.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use crate::path::tests::{A, C, End, promoted_within_the_host};
use crate::{api, numbers, sleep, sys};
use core::ffi::c_int;
use core::ptr::null_mut;
use libc::{epoll_event, pollfd};
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::vec;
use std::vec::Vec;

/// Within this a loaded machine has done what it is to do.
pub(crate) const LONG_NS: i64 = 20_000_000_000;

/// What the kernel carries out of what the library has left to it, as a hook has it.
pub(crate) fn or_kernel(r: api::Ret, call: impl FnOnce() -> isize) -> isize {
    if r == api::PASS { call() } else { r }
}

/// A result, or the error that the program sees.
pub(crate) fn outcome(r: isize) -> Result<usize, c_int> {
    usize::try_from(r).map_err(|_| -r as c_int)
}

// ---- a socket -----------------------------------------------------------------------------------

/// A descriptor, with the calls of its program. Those that move bytes do not wait, unless told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fd(pub(crate) c_int);

/// Flags of a call that waits.
pub(crate) const WAITS: c_int = 1 << 29;

fn with_wait(flags: c_int) -> c_int {
    if flags & WAITS != 0 { flags & !WAITS } else { flags | libc::MSG_DONTWAIT }
}

impl Fd {
    pub(crate) fn send(self, bytes: &[u8]) -> Result<usize, c_int> {
        self.send_with(&[bytes], 0)
    }

    /// One buffer as send(2), several as sendmsg(2).
    pub(crate) fn send_with(self, parts: &[&[u8]], flags: c_int) -> Result<usize, c_int> {
        let flags = with_wait(flags) | libc::MSG_NOSIGNAL;
        if let [part] = parts {
            // SAFETY: a live buffer.
            return outcome(or_kernel(
                unsafe { api::send(self.0, part.as_ptr().cast(), part.len(), flags) },
                || unsafe { sys::sendto(self.0, part.as_ptr(), part.len(), flags) },
            ));
        }
        let iov: Vec<_> = parts.iter().map(|p| sys::iov(p.as_ptr(), p.len())).collect();
        // SAFETY: all zero is a valid msghdr; live buffers.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        (m.msg_iov, m.msg_iovlen) = (iov.as_ptr().cast_mut(), iov.len());
        // SAFETY: as above.
        outcome(or_kernel(unsafe { api::sendmsg(self.0, &m, flags) }, || unsafe {
            sys::sendmsg(self.0, &m, flags)
        }))
    }

    pub(crate) fn receive(self, most: usize) -> Result<Vec<u8>, c_int> {
        self.receive_with(&[most], 0)
    }

    /// Into buffers of these sizes: what they get, in one piece.
    pub(crate) fn receive_with(self, sizes: &[usize], flags: c_int) -> Result<Vec<u8>, c_int> {
        self.receive_raw(sizes, flags).map(|(n, all)| all[..n].to_vec())
    }

    /// What a receive says, and all that its buffers hold behind it: a byte that it does not write
    /// is b'.'.
    pub(crate) fn receive_raw(
        self,
        sizes: &[usize],
        flags: c_int,
    ) -> Result<(usize, Vec<u8>), c_int> {
        let flags = with_wait(flags);
        let mut parts: Vec<Vec<u8>> = sizes.iter().map(|size| vec![b'.'; *size]).collect();
        let r = if let [part] = &mut parts[..] {
            let (at, len) = (part.as_mut_ptr(), part.len());
            // SAFETY: a live buffer.
            or_kernel(unsafe { api::recv(self.0, at.cast(), len, flags) }, || unsafe {
                sys::recvfrom(self.0, at, len, flags, null_mut(), null_mut())
            })
        } else {
            let iov: Vec<_> = parts.iter_mut().map(|p| sys::iov(p.as_mut_ptr(), p.len())).collect();
            // SAFETY: all zero is a valid msghdr; live buffers.
            let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
            (m.msg_iov, m.msg_iovlen) = (iov.as_ptr().cast_mut(), iov.len());
            // SAFETY: as above.
            or_kernel(unsafe { api::recvmsg(self.0, &mut m, flags) }, || unsafe {
                sys::recvmsg(self.0, &mut m, flags)
            })
        };
        outcome(r).map(|n| (n, parts.concat()))
    }

    /// What FIONREAD says.
    pub(crate) fn unread(self) -> c_int {
        let mut n: c_int = -1;
        let at = (&raw mut n).addr();
        // SAFETY: room for an int.
        let r = unsafe { api::ioctl(self.0, libc::FIONREAD as usize, at) };
        assert_eq!(or_kernel(r, || sys::ioctl(self.0, libc::FIONREAD as usize, at)), 0);
        n
    }

    /// What is ready of `events`, at once.
    pub(crate) fn ready(self, events: i16) -> i16 {
        self.await_ready(events, 0)
    }

    /// As [`Fd::ready`], within that time.
    pub(crate) fn await_ready(self, events: i16, timeout_ns: i64) -> i16 {
        let mut list = [pollfd { fd: self.0, events, revents: 0x4000 }];
        let n = poll(&mut list, timeout_ns).unwrap();
        assert_eq!(n, usize::from(list[0].revents != 0));
        list[0].revents
    }

    /// setsockopt(2), of SOL_SOCKET.
    pub(crate) fn set<T: Copy>(self, option: c_int, value: T) {
        let (at, len) = ((&raw const value).cast(), size_of::<T>() as u32);
        let level = libc::SOL_SOCKET;
        // SAFETY: a live value.
        let r = or_kernel(unsafe { api::setsockopt(self.0, level, option, at, len) }, || {
            sys::setsockopt(self.0, level, option, &value)
        });
        assert_eq!(r, 0);
        // SAFETY: as above.
        unsafe { api::on_setsockopt(self.0, level, option, at, len) };
    }

    pub(crate) fn shutdown(self, how: c_int) {
        let r = or_kernel(api::shutdown(self.0, how), || sys::shutdown(self.0, how));
        assert_eq!(r, 0);
    }

    pub(crate) fn close(self) {
        assert_eq!(or_kernel(api::close(self.0), || sys::close(self.0)), 0);
    }

    /// As much as there is room for, until the other kernel has answered to all that is on its way
    /// there. Returns how much that is.
    pub(crate) fn fill(self) -> usize {
        let (part, mut all) = ([b'x'; 4096], 0);
        loop {
            match self.send(&part) {
                Ok(n) => all += n,
                Err(_) if self.is_under_way() => std::thread::yield_now(),
                Err(_) => return all,
            }
        }
    }

    /// The kernel has sent what is not acknowledged. (linux/sockios.h: SIOCOUTQNSD.)
    fn is_under_way(self) -> bool {
        let [all, unsent] = [libc::TIOCOUTQ as usize, 0x894b].map(|request| {
            let mut n: c_int = 0;
            sys::ioctl(self.0, request, (&raw mut n).addr());
            n
        });
        all > unsent
    }

    /// Receives all that is there, and drops it. Returns how much that is.
    pub(crate) fn drain(self) -> usize {
        let receives = core::iter::repeat_with(|| self.receive(1 << 20));
        receives.map_while(Result::ok).map(|got| got.len()).take_while(|n| *n > 0).sum()
    }
}

/// poll(2).
pub(crate) fn poll(list: &mut [pollfd], timeout_ns: i64) -> Result<usize, c_int> {
    let (at, n) = (list.as_mut_ptr(), list.len());
    // SAFETY: a live list; no mask.
    outcome(or_kernel(
        unsafe { api::poll(at, n as u64, timeout_ns, core::ptr::null()) },
        || unsafe { sleep::ppoll(at, n, timeout_ns, core::ptr::null()) },
    ))
}

// ---- a set --------------------------------------------------------------------------------------

/// An epoll set.
#[derive(Debug)]
pub(crate) struct Set(pub(crate) c_int);

impl Set {
    pub(crate) fn new() -> Set {
        let fd = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        api::on_epoll_create(fd);
        Set(fd)
    }

    pub(crate) fn ctl(&self, op: c_int, fd: Fd, events: c_int, data: u64) -> Result<(), c_int> {
        let mut event = epoll_event { events: events as u32, u64: data };
        // SAFETY: a live event.
        let r = unsafe { api::epoll_ctl(self.0, op, fd.0, &mut event) };
        // SAFETY: as above.
        outcome(or_kernel(r, || unsafe { sys::epoll_ctl(self.0, op, fd.0, &mut event) }))
            .map(|_| ())
    }

    pub(crate) fn add(&self, fd: Fd, events: c_int) -> Result<(), c_int> {
        self.ctl(libc::EPOLL_CTL_ADD, fd, events, 7)
    }

    pub(crate) fn modify(&self, fd: Fd, events: c_int) -> Result<(), c_int> {
        self.ctl(libc::EPOLL_CTL_MOD, fd, events, 7)
    }

    pub(crate) fn delete(&self, fd: Fd) -> Result<(), c_int> {
        self.ctl(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// What a wait reports that does not wait: events and data of at most `most`.
    pub(crate) fn look(&self, most: usize) -> Vec<(c_int, u64)> {
        self.wait(most, 0)
    }

    pub(crate) fn wait(&self, most: usize, timeout_ns: i64) -> Vec<(c_int, u64)> {
        let mut list = vec![epoll_event { events: 0, u64: 0 }; most];
        let (at, max) = (list.as_mut_ptr(), most as c_int);
        let mut counted = api::Counted::default();
        // SAFETY: room for so many events; no mask.
        let r = unsafe {
            api::epoll_wait(self.0, at, max, timeout_ns, core::ptr::null(), &mut counted)
        };
        // SAFETY: as above.
        let n = or_kernel(r, || unsafe { by_kernel(self.0, at, max, timeout_ns) });
        list.truncate(outcome(n).unwrap());
        list.iter().map(|event| (event.events as c_int, event.u64)).collect()
    }

    /// The events of the one connection in it that a wait reports, which has room for what else the
    /// library has in there.
    pub(crate) fn says(&self) -> c_int {
        match self.look(16)[..] {
            [] => 0,
            [(events, 7)] => events,
            ref more => panic!("{more:?}"),
        }
    }

    pub(crate) fn close(self) {
        Fd(self.0).close();
    }
}

/// The kernel's own wait, and what the hook does behind it.
unsafe fn by_kernel(set: c_int, at: *mut epoll_event, max: c_int, timeout_ns: i64) -> isize {
    // SAFETY: the caller's promise.
    let n = unsafe { sleep::epoll_wait(set, at, max, timeout_ns, core::ptr::null()) };
    // SAFETY: as above.
    if n > 0 { unsafe { api::on_epoll_wait(set, at, n as c_int, max) as isize } } else { n }
}

// ---- a connection -------------------------------------------------------------------------------

/// Where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Kernel,
    Ring,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) on: On,
    pub(crate) a: Fd,
    pub(crate) c: Fd,
}

impl Pair {
    pub(crate) fn new(on: On) -> Pair {
        match on {
            On::Ring => Pair::of(&promoted_within_the_host()),
            On::Kernel => {
                super::init();
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let c = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let a = listener.accept().unwrap().0;
                let [a, c] = [a, c].map(|stream| {
                    stream.set_nodelay(true).unwrap();
                    Fd(stream.into_raw_fd())
                });
                Pair { on, a, c }
            }
        }
    }

    pub(crate) fn of(ends: &[End; 2]) -> Pair {
        Pair { on: On::Ring, a: Fd(ends[A].fd), c: Fd(ends[C].fd) }
    }

    pub(crate) fn close(self) {
        self.c.close();
        self.a.close();
    }
}

/// What a test expects of a connection in the kernel, and then of one in a ring.
pub(crate) fn on_both(mut test: impl FnMut(Pair)) {
    [On::Kernel, On::Ring].into_iter().for_each(|on| test(Pair::new(on)));
}
