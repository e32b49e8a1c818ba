//! The reserve: memory in the library's own data, for when the kernel has none.

use super::{map_large, sys};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// What the kernel has refused comes from here; a power of two. More than what can be under way
/// takes: see `docs/design/no-memory.md`.
pub(super) const RESERVE_BYTES: usize = 256 * 1024;

/// The first reserve: twice the size, so that a part of that size in it is aligned to it. Not
/// touched: not there.
pub(super) struct First(pub(super) UnsafeCell<MaybeUninit<[u8; 2 * RESERVE_BYTES]>>);
// SAFETY: nobody refers to it as a whole; `CUT` gives each part of it out once.
unsafe impl Sync for First {}
pub(super) static FIRST: First = First(UnsafeCell::new(MaybeUninit::uninit()));

/// Where the reserve has been cut up to, 0: nowhere. It is aligned to its size, so that this word
/// alone says what is left: the last bytes are never given out, or a reserve that is used up would
/// look like the begin of another.
pub(super) static CUT: AtomicUsize = AtomicUsize::new(0);

pub(super) fn reserve() -> usize {
    match CUT.load(Acquire) {
        0 => (FIRST.0.get() as usize).wrapping_add(RESERVE_BYTES - 1) & !(RESERVE_BYTES - 1),
        cut => cut,
    }
}

/// A block of a class's size out of the reserve. Null: it is used up.
#[cold]
#[inline(never)]
pub(super) fn reserved(size: usize) -> *mut u8 {
    loop {
        let seen = CUT.load(Acquire);
        let cut = reserve();
        // A power of two, and so is the alignment that goes with it (at most a page).
        let block = cut.wrapping_add(size - 1) & !(size - 1);
        let left = RESERVE_BYTES - (block & (RESERVE_BYTES - 1));
        if (block ^ cut) & !(RESERVE_BYTES - 1) != 0 || left <= size {
            return null_mut();
        }
        if CUT.compare_exchange(seen, block.wrapping_add(size), AcqRel, Relaxed).is_ok() {
            return block as *mut u8;
        }
    }
}

/// Bytes of the present reserve that are given out.
#[cfg(any(test, feature = "inject"))]
pub(crate) fn reserve_used() -> usize {
    reserve() & (RESERVE_BYTES - 1)
}

/// Whether something may begin that needs memory: the reserve has not been touched, or there is a
/// new one.
#[inline]
pub(crate) fn plenty() -> bool {
    CUT.load(Relaxed) & (RESERVE_BYTES - 1) == 0 || renew()
}

/// The kernel may have memory again.
#[cold]
#[inline(never)]
pub(super) fn renew() -> bool {
    let seen = CUT.load(Acquire);
    let Ok(layout) = Layout::from_size_align(RESERVE_BYTES, RESERVE_BYTES) else { return false };
    let new = map_large(layout);
    if new.is_null() {
        return false;
    }
    if CUT.compare_exchange(seen, new as usize, AcqRel, Relaxed).is_err() {
        // SAFETY: mapped above, and nobody has seen it.
        unsafe { sys::unmap(new.cast(), RESERVE_BYTES) };
    }
    true
}
