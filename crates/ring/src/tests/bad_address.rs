//! The copy: every short length, and pages that are not there.

use core::ffi::c_int;
use std::sync::{Mutex, Once, PoisonError};
use std::vec;
use std::vec::Vec;

use super::util::{Ring, peek, read, write};
use crate::CopyError;
use crate::copy::{self, BadAddress, copy, copy_words, fault_range, rewrite, store, tune};

const PAGE: usize = 4096;

extern "C" fn on_fault(_: c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    let range = fault_range();
    // SAFETY: the kernel's ucontext.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let pc = (&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast::<usize>();
        #[cfg(target_arch = "aarch64")]
        let pc = (&raw mut (*context).uc_mcontext.pc).cast::<usize>();
        if !(range.start..range.end).contains(&*pc) {
            libc::abort();
        }
        *pc = range.resume;
    }
}

fn catch_faults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tune();
        // SAFETY: all zero is a valid sigaction, and the handler one that takes a siginfo.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()), 0);
        }
    });
}

/// `pages` good pages, with a bad one on each side.
fn pages(pages: usize) -> *mut u8 {
    let len = (pages + 2) * PAGE;
    // SAFETY: a new mapping, and protections within it.
    unsafe {
        let at = libc::mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        let good = at.cast::<u8>().add(PAGE);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(libc::mprotect(good.cast(), pages * PAGE, access), 0);
        good
    }
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 3) as u8).collect()
}

/// Runs `test` with every way of copying that this processor has, each for as many lengths as it
/// can be used for.
fn with_every_variant(test: impl Fn()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    #[cfg(target_arch = "x86_64")]
    {
        copy::set_rep_from(usize::MAX);
        test();
        if copy::has_fast_rep() {
            copy::set_rep_from(65);
            test();
        }
    }
    tune();
    test();
}

#[test]
fn every_length_at_every_alignment() {
    with_every_variant(copies_at_every_alignment);
}

fn copies_at_every_alignment() {
    for len in (0..=300).chain([511, 512, 1000, 2047, 2048, 2049, 4096, 70_000]) {
        for (from, to) in [(0, 0), (1, 0), (0, 3), (7, 9), (13, 13)] {
            let src = numbered(len + 32);
            let mut dst = vec![0xee; len + 64];
            // SAFETY: both have that room.
            let done = unsafe { copy(dst.as_mut_ptr().add(to + 16), src.as_ptr().add(from), len) };
            assert_eq!(done, Ok(()));
            assert_eq!(&dst[to + 16..to + 16 + len], &src[from..from + len]);
            assert!(dst[..to + 16].iter().all(|b| *b == 0xee), "before, length {len}");
            assert!(dst[to + 16 + len..].iter().all(|b| *b == 0xee), "after, length {len}");
        }
    }
}

#[test]
fn a_bad_page_at_either_side_of_either_buffer_is_an_error() {
    catch_faults();
    with_every_variant(meets_bad_pages);
}

fn meets_bad_pages() {
    let (bad, good) = (pages(2), pages(2));
    for len in (1..=300).chain([2047, 2048, 2049, 5000]) {
        for missing in [1, 2, len / 2, len] {
            if missing == 0 || missing > len {
                continue;
            }
            let behind = bad.wrapping_add(2 * PAGE + missing - len);
            let before = bad.wrapping_sub(missing);
            for at in [behind, before] {
                // SAFETY: `good` has that room; what is bad belongs to nobody.
                unsafe {
                    assert_eq!(copy(good, at, len), Err(BadAddress), "from, length {len}");
                    assert_eq!(copy(at, good, len), Err(BadAddress), "to, length {len}");
                }
            }
        }
        // SAFETY: the last bytes before the bad page.
        unsafe {
            assert_eq!(copy(good, bad.add(2 * PAGE - len), len), Ok(()));
            assert_eq!(copy(bad.add(2 * PAGE - len), good, len), Ok(()));
        }
    }
    // Not even an address.
    for wild in [1usize << 63, 1 << 50, usize::MAX - 3] {
        // SAFETY: as above.
        assert_eq!(unsafe { copy(good, wild as *const u8, 4) }, Err(BadAddress));
    }
}

#[test]
fn words_are_copied_one_by_one_until_a_bad_one() {
    catch_faults();
    let (bad, good) = (pages(1), pages(1));
    for words in [1, 2, 3, 7, 16, 300] {
        let from = numbered(8 * words);
        for to in [0, 3] {
            // SAFETY: both have that room.
            unsafe {
                let at = good.add(to);
                at.write_bytes(0xee, 8 * words + 8);
                assert_eq!(copy_words(at.cast(), from.as_ptr().cast(), words), Ok(()));
                assert_eq!(core::slice::from_raw_parts(at, 8 * words), from);
                assert_eq!(*at.add(8 * words), 0xee);
            }
        }
        for missing in [1, 8, 8 * words] {
            let behind = bad.wrapping_add(PAGE + missing - 8 * words).cast::<u64>();
            // SAFETY: `good` has that room; what is bad belongs to nobody.
            unsafe {
                assert_eq!(copy_words(good.cast(), behind, words), Err(BadAddress));
                assert_eq!(copy_words(behind, good.cast(), words), Err(BadAddress));
            }
        }
    }
}

#[test]
fn two_values_are_stored_or_a_page_is_bad() {
    catch_faults();
    let (bad, good) = (pages(1), pages(1));
    for at in [0, 1, 12] {
        // SAFETY: `good` has that room; what is bad belongs to nobody.
        unsafe {
            good.write_bytes(0xee, 64);
            let (first, second) = (good.add(at).cast::<u32>(), good.add(at + 4).cast::<u64>());
            assert_eq!(store(first, 0x0403_0201, second, 0x0c0b_0a09_0807_0605), Ok(()));
            let want: Vec<u8> = (1..=12).collect();
            assert_eq!(core::slice::from_raw_parts(good.add(at), 12), want);
            assert_eq!(*good.add(at + 12), 0xee);
            let behind = bad.wrapping_add(PAGE - 4);
            let (word, long) = (behind.cast::<u32>(), behind.cast::<u64>());
            assert_eq!(store(word, 1, long, 2), Err(BadAddress), "the second");
            assert_eq!(store(word.wrapping_add(1), 1, second, 2), Err(BadAddress), "the first");
        }
    }
}

#[test]
fn bytes_that_are_rewritten_stay_as_they_are() {
    catch_faults();
    let bad = pages(1);
    let last = bad.wrapping_add(PAGE - 1);
    // SAFETY: one good page; what is bad belongs to nobody.
    unsafe {
        bad.write(7);
        last.write(9);
        assert_eq!(rewrite(bad, last), Ok(()));
        assert_eq!((*bad, *last), (7, 9));
        assert_eq!(rewrite(bad.wrapping_sub(1), last), Err(BadAddress));
        assert_eq!(rewrite(bad, last.wrapping_add(1)), Err(BadAddress));
        let read_only = libc::mprotect(bad.cast(), PAGE, libc::PROT_READ);
        assert_eq!(read_only, 0);
        assert_eq!(rewrite(bad, bad), Err(BadAddress));
    }
}

#[test]
fn a_bad_buffer_leaves_the_ring_as_it_was() {
    catch_faults();
    let bad = pages(1);
    let end = bad.wrapping_add(PAGE - 5);
    for before in [0, 3, 7] {
        let ring = Ring::new(8);
        let (mut p, mut c) = ring.ends(0);
        // Some of the bytes lie behind the end of the ring, some before.
        write(&mut p, &numbered(before)).unwrap();
        p.publish();
        assert_eq!(read(&mut c, before).unwrap(), numbered(before));
        c.publish();
        assert_eq!(write(&mut p, b"ab"), Ok(2));
        // SAFETY: five good bytes, then none.
        assert_eq!(unsafe { p.write(end, 6) }, Err(CopyError::BadAddress));
        assert_eq!(write(&mut p, b"cd"), Ok(2));
        p.publish();
        for _ in 0..2 {
            // SAFETY: one good byte, then none.
            unsafe {
                let one = end.add(4);
                assert_eq!(c.read(one, 4), Err(CopyError::BadAddress));
                assert_eq!(c.peek(1, one, 3), Err(CopyError::BadAddress));
            }
        }
        assert_eq!(peek(&mut c, 0, 9).unwrap(), b"abcd");
        assert_eq!(read(&mut c, 9).unwrap(), b"abcd");
    }
}

#[test]
fn what_was_written_or_read_can_be_taken_back_until_it_is_published() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(0);
    write(&mut p, b"ab").unwrap();
    p.publish();
    write(&mut p, b"cdef").unwrap();
    p.take_back(2);
    write(&mut p, b"x").unwrap();
    p.publish();
    p.take_back(9);
    assert_eq!((p.tail(), p.unpublished()), (5, 0));
    assert_eq!(read(&mut c, 2).unwrap(), b"ab");
    c.publish();
    assert_eq!(read(&mut c, 3).unwrap(), b"cdx");
    c.put_back(2);
    assert_eq!(read(&mut c, 1).unwrap(), b"d");
    c.put_back(9);
    assert_eq!((c.head(), c.refresh()), (2, Ok(3)));
    assert_eq!(read(&mut c, 9).unwrap(), b"cdx");
}
