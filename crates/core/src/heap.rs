//! The library's own heap, on pages of its own: the application's `malloc` is never called, so that
//! hooks may run inside it, beside any other allocator, and between fork and exec.
//!
//! Sizes are rounded up to powers of two (16 bytes to 32 KiB), each of which has a free list and a
//! region to cut new blocks from; larger allocations are mappings of their own. Memory of the small
//! sizes is kept for ever.
//!
//! Nothing here can wait for something that does not come:
//! - a class is locked by a spin lock that is never held across a system call. The lock word is the
//!   *generation* of the process: a page that the kernel wipes on fork (MADV_WIPEONFORK) tells a
//!   child, however it was made, that it is one, and a lock that another generation holds is
//!   nobody's: its holder does not exist in the child;
//! - a child forgets the lists that it inherited. fork copies page by page while other threads go
//!   on writing, so a list's head and its links may be of different moments, whatever the order of
//!   the stores was;
//! - who cannot get the lock (a signal handler that interrupted its holder, a holder killed in a
//!   vfork child) gives up after a bounded time and maps a page instead;
//! - freeing never locks: it pushes onto a list that only the allocating side takes, as a whole.
//!
//! **Nothing here ends the process.** Rust's collections abort where memory cannot be had, so it
//! always can be, for those that do not ask (`push`, `Box::new`): what the kernel refuses comes out
//! of a *reserve* in the library's own data, which is there from the start and is a fork's too.
//! That holds because what is taken from it is bounded:
//! - blocks of the small sizes alone come from it. What can be larger is asked for
//!   ([`Vec::try_reserve`](alloc::vec::Vec), [`Scratch`]);
//! - nothing that an application's call is the size of comes from it: that is [`Scratch`], which
//!   the kernel alone gives;
//! - once it has been touched nothing begins that would need more ([`plenty`]): no connection is
//!   noted, offered or looked for any more, and no waiting place, channel or table is made. What is
//!   left is what was under way. Connections that are not accelerated then are on TCP.
//!
//! When the kernel gives memory again, a new reserve takes the place of the old one.

mod reserve;
mod scratch;

use crate::inject::{self, Fails};
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::hint::spin_loop;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
pub(crate) use reserve::plenty;
#[cfg(any(test, feature = "inject"))]
pub(crate) use reserve::reserve_used;
use reserve::reserved;
pub(crate) use scratch::{PART_FEW, Part, Scratch, leak};

/// The `#[global_allocator]` of the library.
#[derive(Debug)]
pub struct Private;

const SMALLEST_SHIFT: u32 = 4;
const CLASS_COUNT: usize = 12;
const LARGEST: usize = 1 << (SMALLEST_SHIFT as usize + CLASS_COUNT - 1);
const REGION_BYTES: usize = 64 * 1024;
const PAGE_BYTES: usize = 4096;
/// Tries before the lock is given up; from `PATIENT` on the processor is yielded between them.
const TRIES: u32 = 400;
const PATIENT: u32 = 100;

static CLASSES: [Class; CLASS_COUNT] = [const { Class::new() }; CLASS_COUNT];

struct Class {
    /// 0, or the generation of the process whose thread holds the lock.
    lock: AtomicU32,
    /// The generation to which the rest belongs. Under the lock.
    generation: AtomicU32,
    /// Blocks to hand out; each holds the address of the next one. Under the lock.
    free: AtomicPtr<Block>,
    /// Blocks given back. Pushed by anyone, taken as a whole.
    returned: AtomicPtr<Block>,
    /// The part of the region that has not been cut yet: `cut..end`. Under the lock.
    cut: AtomicUsize,
    end: AtomicUsize,
}

struct Block {
    next: AtomicPtr<Block>,
}

// SAFETY: blocks are disjoint, at least as large as the layout, and aligned to their size, a power
// of two that is no less than the alignment, or to a page; mappings are page-aligned or aligned as
// asked. See the methods.
unsafe impl GlobalAlloc for Private {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some((class, size)) => class.allocate_or_reserve(size),
            None => map_large(layout),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some((class, _)) => class.give_back(block.cast()),
            // SAFETY: `alloc` mapped this range for this layout.
            None => unsafe { sys::unmap(block.cast(), round_to_page(layout.size())) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some((class, size)) => {
                let block = class.allocate_or_reserve(size);
                if !block.is_null() {
                    // SAFETY: the block has `size` bytes, of which these are a part.
                    unsafe { ptr::write_bytes(block, 0, layout.size()) };
                }
                block
            }
            None => map_large(layout),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new_layout = match Layout::from_size_align(new_size, layout.align()) {
            Ok(new_layout) => new_layout,
            Err(_) => return null_mut(),
        };
        match (class_of(layout), class_of(new_layout)) {
            (Some((_, size)), Some((_, new))) if size == new => return block,
            (None, None) if layout.align() <= PAGE_BYTES => {
                // SAFETY: the range is a mapping of its own.
                return unsafe {
                    sys::remap(block.cast(), round_to_page(layout.size()), round_to_page(new_size))
                };
            }
            _ => {}
        }
        // SAFETY: the caller's promises for realloc are those for alloc, and for dealloc once the
        // bytes have moved.
        unsafe {
            let moved = self.alloc(new_layout);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

/// In the child of a fork: where the kernel does not know MADV_WIPEONFORK, this starts the new
/// generation.
pub fn after_fork() {
    let page = GENERATION.load(Acquire);
    if !page.is_null() {
        // SAFETY: the page is mapped for ever.
        let word = unsafe { &*page };
        let seen = word.load(Relaxed);
        if seen != 0 {
            word.store(seen.wrapping_add(1).max(1), Relaxed);
            LATEST.store(seen.wrapping_add(1).max(1), Relaxed);
        }
    }
}

impl Class {
    const fn new() -> Class {
        Class {
            lock: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            free: AtomicPtr::new(null_mut()),
            returned: AtomicPtr::new(null_mut()),
            cut: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }

    fn allocate_or_reserve(&self, size: usize) -> *mut u8 {
        let block = self.allocate(size);
        if block.is_null() { reserved(size) } else { block }
    }

    /// A block, unless the kernel has no memory for it.
    fn allocate(&self, size: usize) -> *mut u8 {
        if is_to_fail() {
            return null_mut();
        }
        let mut spare: *mut c_void = null_mut();
        loop {
            if !self.lock() {
                break;
            }
            let block = self.take(size);
            if block.is_null() && !spare.is_null() {
                self.install(spare as usize);
                spare = null_mut();
                self.unlock();
                continue;
            }
            self.unlock();
            if !block.is_null() {
                if !spare.is_null() {
                    // SAFETY: mapped below, and nobody has seen it.
                    unsafe { sys::unmap(spare, REGION_BYTES) };
                }
                return block;
            }
            spare = sys::map(REGION_BYTES);
            if spare.is_null() {
                return null_mut();
            }
        }
        // Not to be had: a mapping serves as a block of the class, for ever.
        if spare.is_null() { sys::map(size.max(PAGE_BYTES)).cast() } else { spare.cast() }
    }

    /// A block from the free list, from what was given back, or cut from the region. Under the
    /// lock.
    fn take(&self, size: usize) -> *mut u8 {
        let mut first = self.free.load(Relaxed);
        if first.is_null() {
            first = self.returned.swap(null_mut(), Acquire);
        }
        if !first.is_null() {
            // SAFETY: a block on a list is free memory that holds its link.
            let next = unsafe { (*first).next.load(Relaxed) };
            self.free.store(next, Relaxed);
            return first.cast();
        }
        let cut = self.cut.load(Relaxed);
        let after = cut.wrapping_add(size);
        if after > self.end.load(Relaxed) {
            return null_mut();
        }
        self.cut.store(after, Relaxed);
        cut as *mut u8
    }

    /// A new region, when the old one is used up. Under the lock.
    fn install(&self, region: usize) {
        self.cut.store(region, Relaxed);
        self.end.store(region.wrapping_add(REGION_BYTES), Relaxed);
    }

    fn give_back(&self, block: *mut Block) {
        if self.generation.load(Acquire) != generation() {
            // The list must not be one that was inherited. Without the lock the block is given up.
            if !self.lock() {
                return;
            }
            self.unlock();
        }
        let mut first = self.returned.load(Relaxed);
        loop {
            // SAFETY: the block is the caller's until the exchange succeeds.
            unsafe { (*block).next.store(first, Relaxed) };
            match self.returned.compare_exchange_weak(first, block, Release, Relaxed) {
                Ok(_) => return,
                Err(seen) => first = seen,
            }
        }
    }

    /// Takes the lock; false when that would be to wait for ever.
    fn lock(&self) -> bool {
        let mine = generation();
        for attempt in 0..TRIES {
            let free = match self.lock.compare_exchange(0, mine, Acquire, Relaxed) {
                Ok(_) => true,
                // Held when a fork copied it, by a thread that is not here.
                Err(holder) if holder != mine => {
                    self.lock.compare_exchange(holder, mine, Acquire, Relaxed).is_ok()
                }
                Err(_) => false,
            };
            if free {
                if self.generation.load(Relaxed) != mine {
                    self.forget(mine);
                }
                return true;
            }
            if attempt < PATIENT { spin_loop() } else { sys::sched_yield() }
        }
        false
    }

    /// Starts anew in a child. Under the lock.
    fn forget(&self, generation: u32) {
        self.free.store(null_mut(), Relaxed);
        self.returned.store(null_mut(), Relaxed);
        self.cut.store(0, Relaxed);
        self.end.store(0, Relaxed);
        self.generation.store(generation, Release);
    }

    fn unlock(&self) {
        self.lock.store(0, Release);
    }
}

/// Whether a test has ordered that this allocation fails.
#[inline(always)]
fn is_to_fail() -> bool {
    match inject::allocation() {
        Fails::No => false,
        Fails::This => true,
        // What is given back from here on serves again.
        Fails::AllBehind => {
            empty();
            false
        }
    }
}

/// Nothing is left of what was mapped: as if the kernel had refused it.
fn empty() {
    for class in &CLASSES {
        if class.lock() {
            class.forget(generation());
            class.unlock();
        }
    }
}

/// The class that serves a layout, and the size of its blocks.
fn class_of(layout: Layout) -> Option<(&'static Class, usize)> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT);
    if size > LARGEST || layout.align() > PAGE_BYTES {
        return None;
    }
    let size = size.next_power_of_two();
    let index = size.trailing_zeros().saturating_sub(SMALLEST_SHIFT);
    CLASSES.get(index as usize).map(|class| (class, size))
}

fn round_to_page(size: usize) -> usize {
    size.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

/// A mapping of its own, aligned as asked: more is mapped than needed, and both ends are cut off.
fn map_large(layout: Layout) -> *mut u8 {
    if is_to_fail() {
        return null_mut();
    }
    let size = round_to_page(layout.size());
    let align = layout.align();
    if align <= PAGE_BYTES {
        return sys::map(size).cast();
    }
    let Some(whole) = size.checked_add(align) else {
        return null_mut();
    };
    let start = sys::map(whole) as usize;
    if start == 0 {
        return null_mut();
    }
    let aligned = start.wrapping_add(align).wrapping_sub(1) & !align.wrapping_sub(1);
    let before = aligned.wrapping_sub(start);
    let after = whole.wrapping_sub(before).wrapping_sub(size);
    // SAFETY: both ranges are parts of the mapping outside `aligned..aligned + size`.
    unsafe {
        if before != 0 {
            sys::unmap(start as *mut c_void, before);
        }
        if after != 0 {
            sys::unmap(aligned.wrapping_add(size) as *mut c_void, after);
        }
    }
    crate::mapped::remove(start);
    crate::mapped::add(aligned, size);
    aligned as *mut u8
}

// ---- the process --------------------------------------------------------------------------------

/// The page with the generation's word, which reads 0 in a new child.
static GENERATION: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The last generation that was given out, in this process or in the one that it is a copy of.
static LATEST: AtomicU32 = AtomicU32::new(0);

/// The generation of this process: not 0, and not that of the process that it was forked from.
fn generation() -> u32 {
    let page = GENERATION.load(Acquire);
    if !page.is_null() {
        // SAFETY: the page is mapped for ever.
        let seen = unsafe { &*page }.load(Relaxed);
        if seen != 0 {
            return seen;
        }
    }
    new_generation(page)
}

#[cold]
fn new_generation(mut page: *mut AtomicU32) -> u32 {
    if page.is_null() {
        page = sys::map(PAGE_BYTES).cast();
        if page.is_null() {
            return 1;
        }
        sys::wipe_on_fork(page.cast(), PAGE_BYTES);
        if let Err(other) = GENERATION.compare_exchange(null_mut(), page, AcqRel, Acquire) {
            // SAFETY: mapped above, and nobody has seen it.
            unsafe { sys::unmap(page.cast(), PAGE_BYTES) };
            page = other;
        }
    }
    let next = LATEST.load(Relaxed).wrapping_add(1).max(1);
    // SAFETY: the page is mapped for ever.
    match unsafe { &*page }.compare_exchange(0, next, Relaxed, Relaxed) {
        Ok(_) => {
            LATEST.store(next, Relaxed);
            next
        }
        Err(other) => other,
    }
}

/// The system calls of this module.
mod sys {
    use super::{PAGE_BYTES, c_void, null_mut};
    use crate::mapped;
    use crate::sys::syscall;
    use libc::{
        MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_PRIVATE, MREMAP_MAYMOVE, PROT_READ, PROT_WRITE,
    };

    pub(super) fn map(size: usize) -> *mut c_void {
        if crate::inject::is_starved() {
            return null_mut();
        }
        let access = (PROT_READ | PROT_WRITE) as usize;
        let kind = (MAP_PRIVATE | MAP_ANONYMOUS) as usize;
        // SAFETY: a new anonymous mapping harms nobody.
        let at = address(unsafe { syscall(libc::SYS_mmap, 0, size, access, kind, usize::MAX, 0) });
        if !at.is_null() {
            mapped::add(at as usize, size);
        }
        at
    }

    /// # Safety
    /// The range is the caller's and not used any more.
    pub(super) unsafe fn unmap(start: *mut c_void, size: usize) {
        mapped::remove(start as usize);
        // SAFETY: the caller's promise.
        unsafe { syscall(libc::SYS_munmap, start as usize, size, 0, 0, 0, 0) };
    }

    /// # Safety
    /// The range is a mapping of the caller's.
    pub(super) unsafe fn remap(start: *mut c_void, size: usize, new_size: usize) -> *mut u8 {
        if new_size > size && super::is_to_fail() {
            return null_mut();
        }
        // SAFETY: the caller's promise.
        let at = address(unsafe {
            syscall(libc::SYS_mremap, start as usize, size, new_size, MREMAP_MAYMOVE as usize, 0, 0)
        });
        if !at.is_null() {
            mapped::remove(start as usize);
            mapped::add(at as usize, new_size);
        }
        at.cast()
    }

    pub(super) fn wipe_on_fork(start: *mut c_void, size: usize) {
        // SAFETY: advice about a page of ours; kernels before 4.14 refuse it.
        unsafe {
            syscall(libc::SYS_madvise, start as usize, size, MADV_WIPEONFORK as usize, 0, 0, 0)
        };
    }

    pub(super) use crate::sys::sched_yield;

    fn address(result: isize) -> *mut c_void {
        // The kernel's errors are the last 4095 values.
        if (result as usize) > 0usize.wrapping_sub(PAGE_BYTES) {
            null_mut()
        } else {
            result as *mut c_void
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests;
