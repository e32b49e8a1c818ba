//! The heap beside the tests' own: what it gives where the kernel gives nothing.

use super::reserve::{FIRST, RESERVE_BYTES, reserve};
use super::*;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard};

/// The reserve is one.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn the_reserve_gives_disjoint_aligned_blocks_and_ends_with_null() {
    let _alone = alone();
    assert!(renew_now());
    let (begin, mut end, mut taken) = (reserve(), reserve(), 0);
    for i in 0.. {
        let size = 16usize << (i % 12);
        let block = reserved(size) as usize;
        if block == 0 {
            // Used up as far as this size goes, and never by its last byte.
            assert!(
                end + 2 * size > begin + RESERVE_BYTES,
                "{taken} of {RESERVE_BYTES} were given"
            );
            break;
        }
        assert_eq!(block % size, 0);
        assert!(
            block >= end && block + size < begin + RESERVE_BYTES,
            "not twice, and within the reserve"
        );
        // SAFETY: a block of that size.
        unsafe { ptr::write_bytes(block as *mut u8, 0xa5, size) };
        (end, taken) = (block + size, taken + size);
    }
    assert!(taken > RESERVE_BYTES / 2);
    while !reserved(16).is_null() {}
    assert!(reserved(16).is_null() && reserved(LARGEST).is_null());
    assert!(reserve() & (RESERVE_BYTES - 1) != 0, "what is used up does not look like new");
}

#[test]
fn a_touched_reserve_is_renewed_when_the_kernel_has_memory() {
    let _alone = alone();
    assert!(renew_now());
    assert!(!reserved(64).is_null());
    assert_eq!(reserve_used(), 64);
    let touched = reserve() & !(RESERVE_BYTES - 1);
    // The tests' kernel has memory.
    assert!(plenty());
    assert_eq!(reserve_used(), 0);
    assert_ne!(reserve(), touched);
    assert!(plenty(), "once is enough");
}

/// A reserve that nothing was taken from.
fn renew_now() -> bool {
    let _ = reserved(16);
    plenty()
}

#[test]
fn what_the_kernel_refuses_comes_out_of_the_reserve() {
    let _alone = alone();
    assert!(renew_now());
    // The limit is a process's: a child has it.
    // SAFETY: a fork past libc; the child calls the heap, setrlimit(2) and _exit(2).
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as c_int;
    if pid == 0 {
        let none = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: setrlimit(2) with its argument.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &none) } == 0;
        let layout = Layout::new::<[u8; 4096]>();
        // As many as a region has, and some more.
        let had = (0..REGION_BYTES / 4096 + 8).all(|_| {
            // SAFETY: the layout has a size.
            let block = unsafe { Private.alloc(layout) };
            if !block.is_null() {
                // SAFETY: a block of that size.
                unsafe { ptr::write_bytes(block, 0xa5, 4096) };
            }
            !block.is_null()
        });
        let used = reserve_used() >= 8 * 4096;
        // SAFETY: _exit(2).
        unsafe { libc::_exit(i32::from(!limited) + 2 * i32::from(!had) + 4 * i32::from(!used)) }
    }
    let mut status = -1;
    // SAFETY: the child made above.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: no limit, 2: no block, 4: not of the reserve");
}

#[test]
fn the_first_reserve_lies_within_its_place() {
    let at = FIRST.0.get() as usize;
    let first = at.wrapping_add(RESERVE_BYTES - 1) & !(RESERVE_BYTES - 1);
    assert!(first >= at && first + RESERVE_BYTES <= at + 2 * RESERVE_BYTES);
}

#[test]
fn scratch_holds_what_it_has_room_for() {
    let mut list = Scratch::with_room(3).unwrap();
    assert!(list.push(1) && list.push(2) && list.push(3) && !list.push(4));
    assert_eq!(*list, [1, 2, 3]);
    list.truncate(4);
    assert_eq!(*list, [1, 2, 3]);
    list.truncate(2);
    assert!(list.push(5));
    assert_eq!(*list, [1, 2, 5]);
    list.copy_from(&[7, 8, 9, 10]);
    assert_eq!(*list, [7, 8, 9]);
    list.copy_from(&[]);
    assert!(list.is_empty());
    assert_eq!(*Scratch::filled(40_000, 6u64).unwrap(), [6; 40_000], "a mapping of its own");
    assert!(Scratch::<u64>::with_room(0).unwrap().is_empty());
    assert!(!Scratch::new().push(0u8));
    let mut place = [MaybeUninit::uninit(); 4];
    let at = place.as_ptr() as usize;
    let mut list = Scratch::within(&mut place, 2).unwrap();
    assert!(list.push(1u32) && list.push(2) && !list.push(3));
    assert_eq!((list.as_ptr() as usize, &*list), (at, &[1, 2][..]), "in the place that there is");
    drop(list);
    let mut list = Scratch::within(&mut place, 5).unwrap();
    assert!((0..5).all(|n| list.push(n)) && !list.push(5));
    assert_ne!(list.as_ptr() as usize, at);
    // More than there is; more than can be said.
    assert!(Scratch::<u64>::with_room(1 << 59).is_none());
    assert!(Scratch::<u64>::with_room(usize::MAX).is_none());
}

#[test]
fn scratch_never_comes_from_the_reserve() {
    let _alone = alone();
    let used = reserve_used();
    let lists: std::vec::Vec<_> =
        (0..100).map(|i| Scratch::filled(1 << (i % 14), i as u8).unwrap()).collect();
    assert!(
        lists
            .iter()
            .enumerate()
            .all(|(i, l)| l.len() == 1 << (i % 14) && l.iter().all(|v| *v == i as u8))
    );
    assert_eq!(reserve_used(), used);
}

/// What a child is to find in a class of its parent's, whose threads are not there.
fn inherit(class: &Class) {
    let parent = generation().wrapping_add(1);
    class.generation.store(parent, Relaxed);
    class.lock.store(parent, Relaxed);
}

#[test]
fn a_child_gives_out_nothing_that_it_inherited() {
    let class = Class::new();
    let parents: std::vec::Vec<_> = (0..3).map(|_| class.allocate(64)).collect();
    let region = (parents[0] as usize, parents[0] as usize + REGION_BYTES);
    class.give_back(parents[0].cast());
    assert_eq!(class.allocate(64), parents[0], "what is given back serves again");
    // Both lists have a block: one of those that were given back has been taken with all of them.
    for block in &parents {
        class.give_back(block.cast());
    }
    let one = class.allocate(64);
    class.give_back(one.cast());
    inherit(&class);
    for _ in 0..8 {
        let block = class.allocate(64) as usize;
        assert!(block != 0 && !(region.0..region.1).contains(&block));
    }
    assert_eq!((class.lock.load(Relaxed), class.generation.load(Relaxed)), (0, generation()));
    // The child frees what its parent made: its own from then on, and nothing that hangs on it.
    inherit(&class);
    class.give_back(one.cast());
    let mut again: std::vec::Vec<_> = (0..3).map(|_| class.allocate(64)).collect();
    again.sort_unstable();
    again.dedup();
    assert!(
        again.contains(&one)
            && again.len() == 3
            && again.iter().all(|b| *b == one || !(region.0..region.1).contains(&(*b as usize)))
    );
}

#[test]
fn who_cannot_get_the_lock_gets_a_page() {
    let class = Class::new();
    // A handler that has interrupted the holder.
    assert!(class.lock());
    assert!(!class.lock());
    let (one, other) = (class.allocate(64), class.allocate(64));
    assert!(
        !one.is_null() && !other.is_null() && (one as usize).abs_diff(other as usize) >= PAGE_BYTES
    );
    // A call that gives back does not wait either.
    class.give_back(one.cast());
    class.unlock();
    assert_eq!(class.allocate(64), one);
}

#[test]
fn a_region_is_cut_to_its_end() {
    let class = Class::new();
    let blocks: std::vec::Vec<_> =
        (0..2 * REGION_BYTES / LARGEST).map(|_| class.allocate(LARGEST) as usize).collect();
    for (i, a) in blocks.iter().enumerate() {
        assert!(blocks.iter().skip(i + 1).all(|b| a.abs_diff(*b) >= LARGEST), "{blocks:x?}");
    }
    for region in blocks.chunks(REGION_BYTES / LARGEST) {
        assert!(region.iter().all(|b| b - region[0] < REGION_BYTES), "{blocks:x?}");
    }
}

/// However it was made: nobody tells the heap.
#[test]
fn a_child_is_of_another_generation() {
    let here = generation();
    // SAFETY: a fork past libc; the child makes no call but its end.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as c_int;
    if pid == 0 {
        let there = generation();
        // SAFETY: _exit(2).
        unsafe {
            libc::_exit(if there != here && there != 0 && there == generation() { 0 } else { 1 })
        }
    }
    let mut status = -1;
    // SAFETY: the child made above.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!((status, generation()), (0, here));
}

#[test]
fn what_is_resized_keeps_its_bytes_and_its_place_in_memory() {
    let sizes = [24, 16, 40, 4096, 100, 40_000, 200_000, 33_000, 32_768, 8, 300_000];
    for align in [8, 64, PAGE_BYTES, 1 << 20] {
        let layout = |size| Layout::from_size_align(size, align).unwrap();
        let first = layout(sizes[0]);
        // SAFETY: blocks are used within the sizes that they have at the time, and freed once.
        unsafe {
            let mut block = Private.alloc(first);
            for i in 0..first.size() {
                block.add(i).write(i as u8);
            }
            let mut before = sizes[0];
            for size in sizes.into_iter().skip(1) {
                // What lies behind a mapping keeps it from growing where it is.
                let behind = block.wrapping_add(round_to_page(before));
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                let none = libc::MAP_FAILED;
                let wall = if before > LARGEST {
                    libc::mmap(behind.cast(), PAGE_BYTES, libc::PROT_NONE, flags, -1, 0)
                } else {
                    none
                };
                block = Private.realloc(block, layout(before), size);
                if wall != none {
                    libc::munmap(wall, PAGE_BYTES);
                }
                assert!(
                    !block.is_null() && (block as usize).is_multiple_of(align),
                    "{size} at {block:?}, aligned to {align}"
                );
                for i in 0..before.min(size) {
                    assert_eq!(
                        block.add(i).read(),
                        i as u8,
                        "byte {i} of {before} when {size} are wanted"
                    );
                }
                for i in 0..size {
                    block.add(i).write(i as u8);
                }
                before = size;
            }
            Private.dealloc(block, layout(before));
        }
    }
}

#[test]
fn memory_that_was_used_is_zeroed_where_that_is_asked_for() {
    for size in [16, 1000, LARGEST, LARGEST + 1] {
        let layout = Layout::from_size_align(size, 16).unwrap();
        // SAFETY: blocks of that layout, freed once.
        unsafe {
            let used = Private.alloc(layout);
            ptr::write_bytes(used, 0xee, size);
            Private.dealloc(used, layout);
            let blocks: std::vec::Vec<_> = (0..4).map(|_| Private.alloc_zeroed(layout)).collect();
            assert!(blocks.iter().all(|b| (0..size).all(|i| b.add(i).read() == 0)));
            blocks.into_iter().for_each(|b| Private.dealloc(b, layout));
        }
    }
}

/// Calls that allocate without asking, where it can be as much as one likes. What is left of them
/// stands here, with the reason why it may.
#[test]
fn what_allocates_asks_first() {
    const CALLS: [&str; 12] = [
        "with_capacity(",
        "vec![",
        "format!(",
        "to_vec(",
        "to_string(",
        "Box::new(",
        "collect()",
        "collect::<",
        "Vec::from(",
        "resize(",
        "extend_from_slice(",
        ".partition(",
    ];
    // The configuration, once: bounded, and its file is read into what was asked for. `remote`
    // and `utcp` begin nothing without `plenty`.
    const LEFT_OUT: [&str; 5] = ["config.rs", "remote", "testing", "tests", "utcp"];
    const REASONS: [(&str, &str); 8] = [
        ("process.rs", "NEXT.store(Box::into_raw("), // once, by the constructor
        ("peers.rs", "inner.channels.iter().copied().partition("), // 64 of them at most
        ("set.rs", "self.by_fd.resize("),            // reserved some lines above
        ("tuple_table.rs", "t.by_tuple.resize("),    // likewise
        ("tuple_table.rs", "t.by_number.resize("),   // likewise
        ("control_link.rs", "l.slots.resize("),      // likewise
        ("queue.rs", "places.resize("),              // likewise
        ("utcp_device.rs", "slots.resize("),         // likewise
    ];
    fn look(dir: &std::path::Path, found: &mut std::vec::Vec<std::string::String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            let name = entry.file_stem().unwrap().to_string_lossy().into_owned();
            let file = entry.file_name().unwrap().to_string_lossy().into_owned();
            if LEFT_OUT.contains(&name.as_str()) || LEFT_OUT.contains(&file.as_str()) {
                continue;
            }
            if entry.is_dir() {
                look(&entry, found);
                continue;
            }
            let text = std::fs::read_to_string(&entry).unwrap();
            // Tests stand last.
            for line in text
                .split("#[cfg(test)]\n#[allow")
                .next()
                .unwrap_or("")
                .split("#[cfg(test)]\nmod tests")
                .next()
                .unwrap_or("")
                .lines()
            {
                let code = line.split("//").next().unwrap_or("");
                let asks = REASONS.iter().any(|(f, c)| *f == file && code.contains(c));
                if CALLS.iter().any(|c| code.contains(c)) && !asks {
                    found.push(std::format!("{file}: {}", line.trim()));
                }
            }
        }
    }
    let mut found = std::vec::Vec::new();
    look(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(
        found.is_empty(),
        "use Scratch or try_reserve (docs/design/no-memory.md), or say why not: {found:#?}"
    );
}
