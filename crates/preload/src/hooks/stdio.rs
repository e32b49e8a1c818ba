//! stdio: libc reads and writes a stream's descriptor by private calls that no hook sees, so a
//! socket under a stream stays with the kernel. Nothing here touches `errno` beside the next
//! symbol.

use super::fd::numbered;
use crate::errno;
use core::ffi::c_void;
use libc::{FILE, c_char, c_int};
use netacc_control::stats::Reason;
use netacc_core::api;

/// `fdopen` and its alias.
macro_rules! fdopen {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(fd: c_int, mode: *const c_char) -> *mut FILE |next| {
                api::need_kernel(fd, Reason::StdioStream);
                next(fd, mode)
            }
        }
    };
}

fdopen! {
    /// `fdopen(3)`.
    fn fdopen
}
fdopen! {
    /// libc's older public name of `fdopen`.
    unchecked fn _IO_fdopen
}

/// `fclose` and its alias. The entry goes *before* the close: afterwards another thread may own the
/// number.
macro_rules! fclose {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(stream: *mut FILE) -> c_int |next| {
                forget(stream);
                numbered(|| next(stream))
            }
        }
    };
}

fclose! {
    /// `fclose(3)`: libc closes by a private call.
    fn fclose
}
fclose! {
    /// libc's older public name of `fclose`.
    unchecked fn _IO_fclose
}

/// Calls that return a stream over a new descriptor.
macro_rules! opens {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name($($arg: $ty),*) -> *mut FILE |next| { opened(numbered(|| next($($arg),*))) }
        }
    )*};
}

opens! {
    /// `fopen(3)`.
    fopen(path: *const c_char, mode: *const c_char);
    /// `fopen` with 64-bit file offsets.
    fopen64(path: *const c_char, mode: *const c_char);
    /// libc's older public name of `fopen`.
    _IO_fopen(path: *const c_char, mode: *const c_char);
    /// `tmpfile(3)`.
    tmpfile();
    /// `tmpfile` with 64-bit file offsets.
    tmpfile64();
}

/// `freopen` and its 64-bit twin.
macro_rules! reopens {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE |next| {
                forget(stream);
                opened(numbered(|| next(path, mode, stream)))
            }
        }
    )*};
}

reopens! {
    /// `freopen(3)`: libc closes and opens by private calls.
    freopen;
    /// `freopen` with 64-bit file offsets.
    freopen64;
}

watch! {
    /// `dprintf(3)`: libc writes by a private call.
    fn dprintf, written_by_libc
}
watch! {
    /// `vdprintf(3)`. Its `va_list` is passed as the C ABI likes.
    fn vdprintf, written_by_libc
}
watch! {
    /// `dprintf` with `_FORTIFY_SOURCE`.
    fn __dprintf_chk, written_by_libc
}
watch! {
    /// `vdprintf` with `_FORTIFY_SOURCE`.
    fn __vdprintf_chk, written_by_libc
}

fn written_by_libc(fd: usize) {
    api::need_kernel_to_send(fd as c_int, Reason::StdioStream);
}

/// A stream's descriptor, or -1. `errno` stays.
unsafe fn descriptor(stream: *mut FILE) -> c_int {
    if stream.is_null() {
        return -1;
    }
    let saved = errno::get();
    // SAFETY: the caller's stream is valid.
    let fd = unsafe { libc::fileno(stream) };
    errno::set(saved);
    fd
}

/// Before libc closes a stream's descriptor.
unsafe fn forget(stream: *mut FILE) {
    // SAFETY: the caller's stream is valid.
    let fd = unsafe { descriptor(stream) };
    if fd >= 0 {
        api::need_kernel(fd, Reason::StdioStream);
        api::before_private_close(fd);
    }
}

/// Passes a new stream, or null, on.
pub(super) unsafe fn opened(stream: *mut FILE) -> *mut FILE {
    // SAFETY: null or valid.
    let fd = unsafe { descriptor(stream) };
    if fd >= 0 {
        api::on_new_fd(fd);
    }
    stream
}

const _: () = assert!(size_of::<*mut c_void>() == size_of::<usize>());
