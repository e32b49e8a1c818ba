//! The buffers of a call: the caller's array of them, copied once and checked as the kernel does it
//! (import_iovec).

use super::{EFAULT, EINVAL};
use crate::heap::Scratch;
use crate::outcome::Ret;
use crate::{sys, user};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use libc::iovec;

/// The kernel moves at most so much in one call (MAX_RW_COUNT).
pub(super) const MAX_RW_COUNT: usize = 0x7fff_f000;

/// Arrays up to this long need no allocation.
const FEW: usize = 8;

/// Room for the buffers of the usual vector call: a few, and nothing odd about them.
pub(super) struct Few(MaybeUninit<[iovec; FEW]>);

impl Few {
    #[inline(always)]
    pub(super) const fn new() -> Few {
        Few(MaybeUninit::uninit())
    }

    /// Copies the caller's array. `None`: it is empty, or [`AnyBuffers::import`] knows what to say
    /// of it.
    #[inline(always)]
    pub(super) fn import(&mut self, iov: *const iovec, count: usize) -> Option<Buffers<'_>> {
        if count == 0 || count > FEW {
            return None;
        }
        // SAFETY: any bytes are an iovec, as far as nobody goes where it points; all of them are
        // written before they are read.
        let list: &mut [iovec] =
            unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) };
        // SAFETY: the application's array, of the length that it says.
        if !unsafe { user::read_into(iov, list) } {
            return None;
        }
        let (mut odd, mut lengths, mut total) = (0, 0, 0usize);
        for v in list.iter() {
            let (at, len) = (v.iov_base as usize, v.iov_len);
            odd |= at | at.wrapping_add(len);
            lengths |= len;
            total = total.wrapping_add(len);
        }
        // (No length has more than 31 bits: the sum is right.)
        let plain = odd <= isize::MAX as usize && lengths | total <= MAX_RW_COUNT && total > 0;
        plain.then_some(Buffers { list, total })
    }
}

/// Room for the buffers of a vector call. It stays where it is: to move it would be to load what
/// has just been stored, by other pieces, and that waits for all the stores before (those to the
/// ring go to another CPU).
pub(super) struct AnyBuffers {
    few: MaybeUninit<[iovec; FEW]>,
    many: Scratch<'static, iovec>,
}

/// Buffers that the kernel would take, and how many bytes they have.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a> {
    pub(super) list: &'a [iovec],
    pub(super) total: usize,
}

impl AnyBuffers {
    #[inline]
    pub(super) const fn new() -> AnyBuffers {
        AnyBuffers { few: MaybeUninit::uninit(), many: Scratch::new() }
    }

    /// Copies the caller's array. `Err`: what the kernel says of it; `too_many` is its word for an
    /// array that is too long.
    #[inline]
    pub(super) fn import(
        &mut self,
        iov: *const iovec,
        count: usize,
        too_many: c_int,
    ) -> Result<Buffers<'_>, Ret> {
        let list: &mut [iovec] = if count <= FEW {
            // SAFETY: any bytes are an iovec, as far as nobody goes where it points; all of them
            // are written before they are read.
            unsafe { core::slice::from_raw_parts_mut(self.few.as_mut_ptr().cast(), count) }
        } else {
            long_list(&mut self.many, count, too_many)?
        };
        // SAFETY: the application's array, of the length that it says.
        if !unsafe { user::read_into(iov, list) } {
            return Err(EFAULT);
        }
        let mut room = MAX_RW_COUNT;
        // The sign of all that `is_user` looks at.
        let mut odd = 0;
        for v in list.iter_mut() {
            let (at, len) = (v.iov_base as usize, v.iov_len);
            odd |= at | len | at.wrapping_add(len);
            v.iov_len = len.min(room);
            room -= v.iov_len;
        }
        if odd > isize::MAX as usize {
            return Err(refusal(iov, list));
        }
        Ok(Buffers { list, total: MAX_RW_COUNT - room })
    }
}

/// Which of an array's buffers the kernel would refuse first, and how.
#[cold]
fn refusal(iov: *const iovec, list: &mut [iovec]) -> Ret {
    // Again, as it was before lengths were cut. (Where another thread has mended it meanwhile it
    // was bad all the same.)
    // SAFETY: as in `import`.
    if !unsafe { user::read_into(iov, list) } {
        return EFAULT;
    }
    match list
        .iter()
        .find(|v| v.iov_len > isize::MAX as usize || !is_user(v.iov_base as usize, v.iov_len))
    {
        Some(v) if v.iov_len > isize::MAX as usize => EINVAL,
        _ => EFAULT,
    }
}

#[cold]
fn long_list<'a>(
    many: &'a mut Scratch<'static, iovec>,
    count: usize,
    too_many: c_int,
) -> Result<&'a mut [iovec], Ret> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(-(too_many as Ret));
    }
    *many = Scratch::filled(count, sys::iov(core::ptr::null(), 0)).ok_or(NO_MEMORY)?;
    Ok(many)
}

/// There is no memory for the list.
pub(super) const NO_MEMORY: Ret = -(libc::ENOMEM as Ret);

/// Whether a range can be the application's at all (access_ok): the kernel looks before it does
/// anything else.
#[inline(always)]
pub(super) fn is_user(at: usize, len: usize) -> bool {
    (at | len | at.wrapping_add(len)) <= isize::MAX as usize
}
