//! Asynchronous I/O, and what else libc or the kernel reads and writes by itself: the socket is the
//! kernel's before that. Nothing here touches `errno` beside the next symbol.
//!
//! POSIX' calls (aio(7)) are carried out by threads of libc's, which use private calls. The
//! kernel's (`io_submit(2)`) come by `syscall`; libaio makes it by an instruction of its own, and
//! its function's name is one that others use, too.

use core::ffi::c_void;
use libc::{aiocb, c_int, sigevent};
use netacc_control::stats::Reason;
use netacc_core::api::{self, PASS, Ret};

/// Of a request of libc's its descriptor, and what `lio_listio` is to do.
type Start = [c_int; 2];
const _: () = assert!(core::mem::offset_of!(aiocb, aio_fildes) == 0);
const _: () = assert!(core::mem::offset_of!(aiocb, aio_lio_opcode) == 4);

unsafe fn before(request: *const aiocb, opcode: Option<c_int>) {
    // SAFETY: two words, which may be any numbers.
    if let Some([fd, own]) = unsafe { api::peek_at(request.cast::<Start>()) } {
        given(fd, opcode.unwrap_or(own) == libc::LIO_WRITE);
    }
}

/// Who only sends leaves what is unread in a ring to ordinary calls.
fn given(fd: c_int, only_sends: bool) {
    if only_sends {
        api::need_kernel_to_send(fd, Reason::StdioStream);
    } else {
        api::need_kernel(fd, Reason::StdioStream);
    }
}

/// Calls with one request, under both of their names.
macro_rules! one {
    ($($(#[$meta:meta])* $name:ident: $opcode:expr;)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name(request: *mut aiocb) -> c_int |next| {
                before(request, Some($opcode));
                next(request)
            }
        }
    )*};
}

one! {
    /// `aio_read(3)`.
    aio_read: libc::LIO_READ;
    /// `aio_read` with 64-bit file offsets.
    aio_read64: libc::LIO_READ;
    /// `aio_write(3)`.
    aio_write: libc::LIO_WRITE;
    /// `aio_write` with 64-bit file offsets.
    aio_write64: libc::LIO_WRITE;
}

/// Calls with a list of them.
macro_rules! list {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int |next| {
                each(list, count.max(0) as usize, |request: *mut aiocb| before(request, None));
                next(mode, list, count, event)
            }
        }
    )*};
}

list! {
    /// `lio_listio(3)`.
    lio_listio;
    /// `lio_listio` with 64-bit file offsets.
    lio_listio64;
}

hook! {
    /// `backtrace_symbols_fd(3)`: libc writes by a private call.
    unchecked fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> () |next| {
        given(fd, true);
        next(addresses, count, fd)
    }
}

/// `struct iocb` of linux/aio_abi.h, as far as its descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    data_and_key: [u64; 2],
    opcode: u16,
    priority: i16,
    fd: c_int,
}
const _: () = assert!(core::mem::offset_of!(Request, fd) == 20);

/// `io_submit(2)` is about to be called with so many requests. [`PASS`]: in any case.
///
/// # Safety
/// `list` is the application's argument.
pub(super) unsafe fn before_submit(list: *const *const c_void, count: usize) -> Ret {
    const PWRITE: u16 = 1;
    const PWRITEV: u16 = 8;
    // (More than the kernel takes: it refuses that.)
    let count = if count > isize::MAX as usize { 0 } else { count };
    // SAFETY: the caller's promise; any bytes are a request.
    unsafe {
        each(list, count, |request| {
            if let Some(request) = api::peek_at(request.cast::<Request>()) {
                given(request.fd, matches!(request.opcode, PWRITE | PWRITEV));
            }
        });
    }
    PASS
}

/// Looks at each pointer of a list, as far as it can be read.
///
/// # Safety
/// `list` is the application's argument.
unsafe fn each<T>(list: *const T, count: usize, look: impl Fn(T))
where
    T: Copy,
{
    for at in 0..count {
        // SAFETY: a pointer, whatever it is; the address may be anything.
        match unsafe { api::peek_at(list.wrapping_add(at)) } {
            Some(request) => look(request),
            None => break,
        }
    }
}
