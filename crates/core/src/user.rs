//! The application's memory, at addresses that may be bad: everything that a call names by a
//! pointer, except the buffers of data, is read and written here.
//!
//! Where [`crate::faults`] cannot catch a fault the kernel is asked to copy, which costs a system
//! call.

use crate::{faults, sys};
use core::mem::MaybeUninit;
use netacc_ring::copy::{copy_words, rewrite, store};

/// Pages below are never mapped: the usual bad pointer.
pub(crate) const LOWEST_ADDRESS: usize = 4096;

/// `words`: both are arrays of words, `len` bytes together. They are copied one by one, as the
/// application has probably just stored them: a load of more than was stored at once waits until
/// all stores before it have left the CPU.
///
/// # Safety
/// One of both is valid for `len` bytes and this library's own, the other one is what the
/// application gave.
#[inline(always)]
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, reads: bool, words: bool) -> bool {
    let theirs = if reads { src as usize } else { dst as usize };
    if len == 0 {
        return true;
    }
    if theirs < LOWEST_ADDRESS {
        return false;
    }
    if faults::are_caught() {
        // SAFETY: the caller's promise; faults are handled.
        let done = unsafe {
            if words {
                copy_words(dst.cast(), src.cast(), len / size_of::<u64>())
            } else {
                netacc_ring::copy::copy(dst, src, len)
            }
        };
        return done.is_ok();
    }
    // SAFETY: the caller's promise.
    unsafe { by_kernel(dst, src, len, reads) }
}

/// # Safety
/// As for `copy`.
#[cold]
#[inline(never)]
unsafe fn by_kernel(dst: *mut u8, src: *const u8, len: usize, reads: bool) -> bool {
    let (ours, theirs) = if reads { (dst.cast_const(), src) } else { (src, dst.cast_const()) };
    let (ours, theirs) = (sys::iov(ours, len), sys::iov(theirs, len));
    // SAFETY: ours is valid (caller); the kernel looks after theirs.
    let n = unsafe { sys::copy_in_process(&ours, &theirs, reads) };
    if n == -(libc::EFAULT as isize) {
        return false;
    }
    // A filter does not allow the call (EPERM, ENOSYS...).
    // SAFETY: the caller's promise.
    n == len as isize || (n < 0 && unsafe { netacc_ring::copy::copy(dst, src, len) }.is_ok())
}

/// Whether a `T` consists of whole words (and perhaps smaller fields, two of which share one).
const fn is_words<T>() -> bool {
    align_of::<T>() >= align_of::<u64>()
}

/// Reads a value. `None`: EFAULT.
///
/// # Safety
/// `at` is what the application gave for a `T`, of which any bytes are a valid one.
#[inline]
pub(crate) unsafe fn read<T: Copy>(at: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` has room for a T.
    let ok = unsafe {
        copy(value.as_mut_ptr().cast(), at.cast(), size_of::<T>(), true, is_words::<T>())
    };
    // SAFETY: all its bytes were written, and any bytes are a T (caller).
    ok.then(|| unsafe { value.assume_init() })
}

/// Reads `out.len()` values. False: EFAULT.
///
/// # Safety
/// As for `read`.
#[inline]
pub(crate) unsafe fn read_into<T: Copy>(at: *const T, out: &mut [T]) -> bool {
    // SAFETY: `out` has that room.
    unsafe { copy(out.as_mut_ptr().cast(), at.cast(), size_of_val(out), true, is_words::<T>()) }
}

/// Writes a value. False: EFAULT.
///
/// # Safety
/// `at` is what the application gave as the place of a `T`.
#[inline]
pub(crate) unsafe fn write<T: Copy>(at: *mut T, value: T) -> bool {
    // SAFETY: `value` is valid.
    unsafe { copy(at.cast(), (&raw const value).cast(), size_of::<T>(), false, is_words::<T>()) }
}

/// Writes two values that lie near each other. False: EFAULT.
///
/// # Safety
/// As for `write`, of both.
#[inline(always)]
pub(crate) unsafe fn write_both(first: *mut u32, a: u32, second: *mut u64, b: u64) -> bool {
    if (first as usize) < LOWEST_ADDRESS {
        return false;
    }
    if faults::are_caught() {
        // SAFETY: the caller's promise; faults are handled.
        return unsafe { store(first, a, second, b) }.is_ok();
    }
    // SAFETY: as above.
    unsafe { write(first, a) && write(second, b) }
}

/// Whether the first and the last byte of a range can be written. There is at least one.
///
/// # Safety
/// The range is the application's, and this call's to write.
#[inline]
pub(crate) unsafe fn is_writable(at: *mut u8, len: usize) -> bool {
    let last = at.wrapping_add(len - 1);
    if (at as usize) < LOWEST_ADDRESS {
        return false;
    }
    if faults::are_caught() {
        // SAFETY: the caller's promise; faults are handled.
        return unsafe { rewrite(at, last) }.is_ok();
    }
    // SAFETY: the caller's promise.
    [at, last].iter().all(|at| unsafe { read(*at).is_some_and(|byte| write(*at, byte)) })
}

/// No mask, or one that the kernel can read.
pub(crate) fn is_mask(mask: crate::outcome::Mask) -> bool {
    // SAFETY: the application's mask; the kernel's has 64 bits.
    mask.is_null() || unsafe { read(mask.cast::<u64>()) }.is_some()
}

/// Writes values. False: EFAULT.
///
/// # Safety
/// As for `write`.
#[inline]
pub(crate) unsafe fn write_all<T: Copy>(at: *mut T, values: &[T]) -> bool {
    // SAFETY: `values` are valid.
    unsafe { copy(at.cast(), values.as_ptr().cast(), size_of_val(values), false, false) }
}
