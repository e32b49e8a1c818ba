//! Asynchronous I/O, by libc and by the kernel, and other calls that write past the hooks: between
//! ordinary calls, in their order.

use super::*;
use crate::ctx::Ctx;
use crate::sys::{Fd, R};
use std::ffi::c_void;

/// One request of libc's, until it has ended.
fn ended(request: &mut libc::aiocb) -> R {
    let list = [&raw const *request];
    loop {
        // SAFETY: a request that has been handed over.
        match unsafe { libc::aio_error(request) } {
            // SAFETY: a list of one request.
            libc::EINPROGRESS => unsafe {
                libc::aio_suspend(list.as_ptr(), 1, std::ptr::null());
            },
            0 => break,
            error => return Err(E(error)),
        }
    }
    // SAFETY: it has ended.
    Ok(unsafe { libc::aio_return(request) } as usize)
}

fn request(fd: Fd, bytes: &mut [u8], opcode: i32) -> libc::aiocb {
    // SAFETY: all zero is a valid aiocb.
    let mut request: libc::aiocb = unsafe { std::mem::zeroed() };
    (request.aio_fildes, request.aio_lio_opcode) = (fd, opcode);
    (request.aio_buf, request.aio_nbytes) = (bytes.as_mut_ptr().cast(), bytes.len());
    request
}

fn by_libc(t: &Ctx) {
    let fds = t.servers(4);
    let mut buf = [0u8; 4];
    for (way, fd) in ["read", "write", "list", "write, half-closed"].into_iter().zip(fds) {
        await_bytes(fd, 4);
        if way.ends_with("half-closed") {
            sys::await_events(fd, libc::POLLRDHUP, 5_000);
        }
        let mut bytes = *b"aio.";
        match way {
            "read" => {
                let mut one = request(fd, &mut buf, 0);
                // SAFETY: a request that lives until it has ended.
                t.log("aio_read", unsafe { libc::aio_read(&mut one) });
                t.log("read", ended(&mut one));
                t.log_text("bytes", &buf);
            }
            "write" | "write, half-closed" => {
                let mut one = request(fd, &mut bytes, 0);
                // SAFETY: as above.
                t.log("aio_write", unsafe { libc::aio_write(&mut one) });
                t.log("written", ended(&mut one));
                t.log_text("unread", &recv_exact(fd, 4));
            }
            _ => {
                let mut read = request(fd, &mut buf, libc::LIO_READ);
                let mut write = request(fd, &mut bytes, libc::LIO_WRITE);
                let list = [&raw mut read, std::ptr::null_mut(), &raw mut write];
                // SAFETY: as above; it waits for all of them.
                let r = unsafe {
                    libc::lio_listio(libc::LIO_WAIT, list.as_ptr(), 3, std::ptr::null_mut())
                };
                t.log("lio_listio", r);
                t.log("both", (ended(&mut read), ended(&mut write)));
                t.log_text("bytes", &buf);
            }
        }
        // (Between hosts the peer's half-close has taken it back before.)
        let back = sys::over_rdma() && way.ends_with("half-closed");
        t.went_back(fd, if back { "peer-asked-for-tcp" } else { "stdio-stream" });
        send_all(fd, b"then");
        t.log("close", sys::shutdown(fd, libc::SHUT_WR));
    }
}

fn by_libc_client(t: &Ctx) {
    let fds = t.clients(4);
    for fd in &fds {
        send_all(*fd, b"ask.");
    }
    t.log("half", sys::shutdown(fds[3], libc::SHUT_WR));
    for fd in fds {
        t.log_text("received", &all_of(fd));
    }
}

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct Kernels {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    bytes: u64,
    rest: [u64; 3],
}

fn by_the_kernel(t: &Ctx) {
    let fd = t.server();
    let mut context = 0usize;
    // SAFETY: a place for a context.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) };
    t.log("io_setup", made);
    await_bytes(fd, 4);
    let (mut buf, bytes) = ([0u8; 4], *b"aio.");
    for (label, opcode, at) in
        [("read", 0, buf.as_mut_ptr() as u64), ("write", 1, bytes.as_ptr() as u64)]
    {
        if made != 0 {
            break;
        }
        let mut one = Kernels { opcode, fd: fd as u32, buf: at, bytes: 4, ..Kernels::default() };
        let mut list = [(&raw mut one).cast::<c_void>()];
        // SAFETY: a request that lives until it has ended.
        t.log(label, unsafe { by_syscall(context, 1, list.as_mut_ptr()) });
        let mut event = [0i64; 4];
        // SAFETY: room for one event.
        let n = unsafe {
            let none = std::ptr::null::<libc::timespec>();
            libc::syscall(libc::SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), none)
        };
        t.log("ended", (n, event[2]));
    }
    t.log_text("bytes", &buf);
    if made == 0 {
        t.went_back(fd, "stdio-stream");
    }
    send_all(fd, b"then");
    t.log("close", sys::shutdown(fd, libc::SHUT_WR));
}

unsafe extern "C" fn by_syscall(context: usize, n: libc::c_long, list: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_io_submit, context, n, list) as i32 }
}

/// Sends four bytes on each of so many connections, and receives to the end.
fn four_and_all(t: &Ctx, count: usize) {
    let fds = t.clients(count);
    for fd in &fds {
        send_all(*fd, b"ask.");
    }
    for fd in fds {
        t.log_text("received", &all_of(fd));
    }
}

fn all_of(fd: Fd) -> Vec<u8> {
    let (mut all, mut buf) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
        all.extend_from_slice(&buf[..n]);
    }
    all
}

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "data/aio",
            "aio_read of what is there, aio_write, lio_listio of both; then send: all in their order",
            by_libc,
            by_libc_client,
        )
        .demoted(),
        pair(
            "data/aio-of-the-kernel",
            "io_submit by syscall(2), a read of what is there and a write; then send",
            by_the_kernel,
            |t| four_and_all(t, 1),
        )
        .demoted(),
        pair(
            "data/flags-of-the-kernels",
            "preadv2 and pwritev2 with flags that the library does not know: the kernel knows what they mean",
            |t| {
                // RWF_NOAPPEND, RWF_ATOMIC, RWF_DONTCACHE, RWF_NOSIGNAL, and one that is none yet.
                for flag in [0x20, 0x40, 0x80, 0x100, 1 << 30] {
                    let [reads, writes] = t.servers(2)[..] else { return };
                    await_bytes(reads, 4);
                    let mut buf = [0; 4];
                    t.log("read", sys::preadv2(reads, &mut [&mut buf], -1, flag));
                    t.log_text("bytes", &buf);
                    t.log("rest", sys::recv(reads, &mut [0; 4], libc::MSG_DONTWAIT));
                    t.log("write", sys::pwritev2(writes, &[b"flag"], -1, flag));
                    for fd in [reads, writes] {
                        send_all(fd, b"then");
                        t.log("close", sys::shutdown(fd, libc::SHUT_WR));
                    }
                }
            },
            |t| (0..5).for_each(|_| four_and_all(t, 2)),
        )
        .demoted(),
        pair(
            "data/backtrace",
            "backtrace_symbols_fd between two sends",
            |t| {
                unsafe extern "C" {
                    fn backtrace_symbols_fd(at: *const *mut c_void, count: i32, fd: i32);
                }
                let fd = t.server();
                send_all(fd, b"<");
                let at = [by_syscall as *mut c_void];
                // SAFETY: a list of one address.
                unsafe { backtrace_symbols_fd(at.as_ptr(), 1, fd) };
                t.went_back(fd, "stdio-stream");
                send_all(fd, b">");
                t.log("close", sys::shutdown(fd, libc::SHUT_WR));
            },
            |t| {
                let fd = t.client();
                let all = all_of(fd);
                t.log("in order", (all.first(), all.last(), all.len() > 4));
            },
        )
        .demoted(),
    ]
}
