//! Memory for what a call is the size of: it is given by the kernel alone, or is not there.

use super::{Private, class_of, map_large};
use core::alloc::{GlobalAlloc, Layout};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};

/// A list for as many values as a call of the application's names: in a place of the caller's where
/// they fit, otherwise in memory that never comes out of the reserve.
pub(crate) struct Scratch<'a, T> {
    at: NonNull<T>,
    len: usize,
    room: usize,
    place: PhantomData<&'a mut T>,
    borrowed: bool,
}

impl<'a, T: Copy> Scratch<'a, T> {
    /// An empty one without room.
    pub(crate) const fn new() -> Scratch<'a, T> {
        Scratch { at: NonNull::dangling(), len: 0, room: 0, place: PhantomData, borrowed: true }
    }

    /// An empty one with room for `count`, which is `place` if that has it. `None`: there is no
    /// memory for them.
    #[inline]
    pub(crate) fn within(place: &'a mut [MaybeUninit<T>], count: usize) -> Option<Scratch<'a, T>> {
        if count > place.len() {
            return Self::with_room(count);
        }
        Some(Scratch {
            at: NonNull::from(place).cast(),
            len: 0,
            room: count,
            place: PhantomData,
            borrowed: true,
        })
    }

    /// An empty one with room for `count`. `None`: there is no memory for them.
    pub(crate) fn with_room(count: usize) -> Option<Scratch<'a, T>> {
        let layout = Layout::array::<T>(count).ok()?;
        if layout.size() == 0 {
            return Some(Scratch::new());
        }
        let at = match class_of(layout) {
            Some((class, size)) => class.allocate(size),
            None => map_large(layout),
        };
        Some(Scratch {
            at: NonNull::new(at.cast())?,
            len: 0,
            room: count,
            place: PhantomData,
            borrowed: false,
        })
    }

    /// `count` copies of `value`. `None`: there is no memory for them.
    pub(crate) fn filled(count: usize, value: T) -> Option<Scratch<'a, T>> {
        let mut list = Self::with_room(count)?;
        for i in 0..count {
            // SAFETY: within the block, which has that room.
            unsafe { list.at.add(i).write(value) };
        }
        list.len = count;
        Some(list)
    }

    /// False: there is no room for it.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.len >= self.room {
            return false;
        }
        // SAFETY: within the block, which has room for `room` values.
        unsafe { self.at.add(self.len).write(value) };
        self.len += 1;
        true
    }

    /// Holds these values from here on, or as many as there is room for.
    pub(crate) fn copy_from(&mut self, values: &[T]) {
        self.len = values.len().min(self.room);
        // SAFETY: within the block, which nobody else has.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.at.as_ptr(), self.len) };
    }

    /// Holds no more than the first so many.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl<T> Deref for Scratch<'_, T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many values were written, and the block is this value's alone.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Scratch<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for Scratch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.borrowed
            && let Ok(layout) = Layout::array::<T>(self.room)
        {
            // SAFETY: what `with_room` got for this layout, as `alloc` does.
            unsafe { Private.dealloc(self.at.as_ptr().cast(), layout) };
        }
    }
}

/// Room for the bytes that a call moves by way of memory of ours: `few`, which is on the stack (of
/// a thread that may have no more than PTHREAD_STACK_MIN in all), where there is no memory for
/// more.
pub(crate) struct Part<'a> {
    many: Option<Scratch<'a, u8>>,
    few: &'a mut [u8],
}

pub(crate) const PART_FEW: usize = 512;
const PART_BYTES: usize = 16 * 1024;

impl<'a> Part<'a> {
    pub(crate) fn new(few: &'a mut [u8; PART_FEW]) -> Part<'a> {
        Part { many: Scratch::filled(PART_BYTES, 0), few }
    }
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.many.as_deref_mut().unwrap_or(self.few)
    }
}

/// A value that lives for ever. `None`: there is no memory for it.
pub(crate) fn leak<T>(value: T) -> Option<&'static T> {
    // SAFETY: a layout of a size that is not 0 (of a type with fields).
    let at = unsafe { alloc::alloc::alloc(Layout::new::<T>()) }.cast::<T>();
    // SAFETY: null, or room for a T that is never freed.
    (size_of::<T>() != 0 && !at.is_null()).then(|| unsafe {
        at.write(value);
        &*at
    })
}
