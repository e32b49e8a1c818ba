//! The one place that knows whether loom checks us.
//!
//! Atomics and fences come from `core`, or from loom under `cfg(loom)`. The bytes of a ring are
//! copied through here as well: under loom a ring is an array of loom's `UnsafeCell<u8>`, so that a
//! byte which is read without having been published, or overwritten while it is read, is found.

use crate::copy::BadAddress;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// A full fence where a locked read-modify-write of this thread comes just before it in program
/// order.
///
/// On x86-64 that instruction is a full barrier already, only the compiler has to be held back.
#[inline]
pub(crate) fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}

/// Copies `len` bytes into the ring memory `data` at `index`.
///
/// # Safety
/// `data[index..index + len]` is ring memory; `src` is as [`copy`](crate::copy::copy) wants it and
/// lies outside.
#[inline]
pub(crate) unsafe fn copy_in(
    data: *mut u8,
    index: usize,
    src: *const u8,
    len: usize,
) -> Result<(), BadAddress> {
    #[cfg(not(loom))]
    // SAFETY: the ring's range is valid, the other one is as `copy` wants it, and they are apart
    // (caller).
    unsafe {
        crate::copy::copy(data.add(index), src, len)?;
    }
    #[cfg(loom)]
    for i in 0..len {
        // SAFETY: under loom `data` points to cells (module doc), and `index + i` is one of them
        // (caller).
        let cell =
            unsafe { &*data.cast::<loom::cell::UnsafeCell<u8>>().add(index.wrapping_add(i)) };
        // SAFETY: loom checks that nobody else has the cell; `src` is readable (caller).
        cell.with_mut(|byte| unsafe { *byte = *src.add(i) });
    }
    Ok(())
}

/// Copies `len` bytes out of the ring memory `data` from `index` on.
///
/// # Safety
/// `data[index..index + len]` is ring memory; `dst` is as [`copy`](crate::copy::copy) wants it and
/// lies outside.
#[inline]
pub(crate) unsafe fn copy_out(
    data: *const u8,
    index: usize,
    dst: *mut u8,
    len: usize,
) -> Result<(), BadAddress> {
    #[cfg(not(loom))]
    // SAFETY: as in `copy_in`.
    unsafe {
        crate::copy::copy(dst, data.add(index), len)?;
    }
    #[cfg(loom)]
    for i in 0..len {
        // SAFETY: under loom `data` points to cells (module doc), and `index + i` is one of them
        // (caller).
        let cell =
            unsafe { &*data.cast::<loom::cell::UnsafeCell<u8>>().add(index.wrapping_add(i)) };
        // SAFETY: loom checks that nobody writes the cell; `dst` is writable (caller).
        cell.with(|byte| unsafe { *dst.add(i) = *byte });
    }
    Ok(())
}
