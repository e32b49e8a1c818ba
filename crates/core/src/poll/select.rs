//! select: its bit sets become the list of a poll, and are rewritten from what that says.

use super::{FEW, IN, NoMemory, OUT, is_ours, poll_list, without_memory};
use crate::fd_table::{self};
use crate::heap::Scratch;
use crate::outcome::{Mask, PASS, Ret};
use crate::{signals, sys, user};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use libc::{fd_set, pollfd};

const WORD_BITS: usize = usize::BITS as usize;

/// A copy of one of the caller's bit sets of `nfds` bits (glibc's FD_SETSIZE is no limit to the
/// kernel, and none here).
struct Bits {
    at: *mut usize,
    few: [usize; FEW],
    many: Scratch<'static, usize>,
    words: usize,
}

impl Bits {
    /// `None`: it cannot be read.
    fn read(at: *mut fd_set, nfds: usize) -> Result<Option<Bits>, NoMemory> {
        let words = if at.is_null() { 0 } else { nfds.div_ceil(WORD_BITS) };
        let mut set = Bits { at: at.cast(), few: [0; FEW], many: Scratch::new(), words };
        if words > FEW {
            set.many = Scratch::filled(words, 0).ok_or(NoMemory)?;
        }
        let at = set.at;
        // SAFETY: the application's set holds at least nfds bits, in whole words (select(2)).
        Ok(unsafe { user::read_into(at, set.list()) }.then_some(set))
    }
    fn list(&mut self) -> &mut [usize] {
        if self.words > FEW {
            &mut self.many
        } else {
            self.few.get_mut(..self.words).unwrap_or(&mut [])
        }
    }
    fn get(&mut self, fd: usize) -> bool {
        self.list().get(fd / WORD_BITS).is_some_and(|word| word >> (fd % WORD_BITS) & 1 != 0)
    }
    fn put(&mut self, fd: usize, on: bool) {
        if let Some(word) = self.list().get_mut(fd / WORD_BITS) {
            let bit = 1usize << (fd % WORD_BITS);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }
    /// False: it cannot be written.
    fn write_back(&mut self) -> bool {
        let at = self.at;
        // SAFETY: as in `read`.
        unsafe { user::write_all(at, self.list()) }
    }
}

/// The descriptors in the caller's sets, read one by one.
fn named(nfds: c_int, sets: [*mut fd_set; 3]) -> impl Iterator<Item = c_int> {
    (0..nfds).filter(move |fd| {
        let n = *fd as usize;
        // SAFETY: as in `Bits::read`.
        let word =
            |at: *mut fd_set| unsafe { user::read(at.cast::<usize>().wrapping_add(n / WORD_BITS)) };
        sets.iter()
            .any(|at| !at.is_null() && word(*at).is_some_and(|w| w >> (n % WORD_BITS) & 1 != 0))
    })
}

#[allow(clippy::too_many_arguments, reason = "select(2)'s own arguments")]
pub(crate) unsafe fn select(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout_ns: i64,
    mask: Mask,
    elapsed_ns: &mut i64,
) -> Ret {
    if nfds <= 0 || nfds as usize > fd_table::CAPACITY || fd_table::high_water() == 0 {
        return PASS;
    }
    // SAFETY: the caller's promise.
    signals::held(|| unsafe {
        select_held(nfds, [read, write, except], timeout_ns, mask, elapsed_ns)
    })
}

unsafe fn select_held(
    nfds: c_int,
    sets: [*mut fd_set; 3],
    timeout_ns: i64,
    mask: Mask,
    elapsed_ns: &mut i64,
) -> Ret {
    let [read, write, except] = sets;
    let set = |at| Bits::read(at, nfds as usize);
    let (Ok(r), Ok(w), Ok(x)) = (set(read), set(write), set(except)) else {
        return without_memory(named(nfds, sets));
    };
    let (Some(mut r), Some(mut w), Some(mut x)) = (r, w, x) else { return PASS };
    if !(0..nfds as usize)
        .any(|fd| (r.get(fd) || w.get(fd) || x.get(fd)) && is_ours(fd as c_int, timeout_ns != 0))
    {
        return PASS;
    }
    let count = (0..nfds as usize).filter(|fd| r.get(*fd) || w.get(*fd) || x.get(*fd)).count();
    let mut few = [MaybeUninit::uninit(); FEW];
    let Some(mut list) = Scratch::within(&mut few, count) else {
        return without_memory(named(nfds, sets));
    };
    for fd in 0..nfds as usize {
        let events = if r.get(fd) { libc::POLLIN } else { 0 }
            | if w.get(fd) { libc::POLLOUT } else { 0 }
            | if x.get(fd) { libc::POLLPRI } else { 0 };
        if events != 0 {
            list.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    if !user::is_mask(mask) {
        return -(libc::EFAULT as Ret);
    }
    let start = sys::now_ns();
    let result = poll_list(&mut list, timeout_ns, mask);
    *elapsed_ns = sys::now_ns().wrapping_sub(start) as i64;
    let n = match result {
        Ok(n) => n,
        Err(NoMemory) => return without_memory(named(nfds, sets)),
    };
    if n < 0 {
        return n;
    }
    if list.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return -(libc::EBADF as Ret);
    }
    let mut count = 0;
    for p in list.iter() {
        // The kernel's own translation (fs/select.c: POLLIN_SET, POLLOUT_SET, POLLEX_SET).
        let fd = p.fd as usize;
        let readable =
            p.revents & (IN | libc::POLLHUP | libc::POLLERR) != 0 && p.events & libc::POLLIN != 0;
        let writable = p.revents & (OUT | libc::POLLERR) != 0 && p.events & libc::POLLOUT != 0;
        let exceptional = p.revents & libc::POLLPRI != 0 && p.events & libc::POLLPRI != 0;
        r.put(fd, readable);
        w.put(fd, writable);
        x.put(fd, exceptional);
        count += readable as Ret + writable as Ret + exceptional as Ret;
    }
    if r.write_back() && w.write_back() && x.write_back() { count } else { -(libc::EFAULT as Ret) }
}
