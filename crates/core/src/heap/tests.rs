//! The heap beside the tests' own: what it gives where the kernel gives nothing.

use super::*;
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
            assert!(end + 2 * size > begin + RESERVE_BYTES, "{taken} of {RESERVE_BYTES} were given");
            break;
        }
        assert_eq!(block % size, 0);
        assert!(block >= end && block + size < begin + RESERVE_BYTES, "not twice, and within the reserve");
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
    list.retain(|n| n % 2 == 1);
    assert_eq!(*list, [1, 3]);
    assert!(list.push(5));
    assert_eq!(*list, [1, 3, 5]);
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
    let lists: std::vec::Vec<_> = (0..100).map(|i| Scratch::filled(1 << (i % 14), i as u8).unwrap()).collect();
    assert!(lists.iter().enumerate().all(|(i, l)| l.len() == 1 << (i % 14) && l.iter().all(|v| *v == i as u8)));
    assert_eq!(reserve_used(), used);
}

/// Calls that allocate without asking, where it can be as much as one likes. What is left of them stands here, with the reason why it may.
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
    // The configuration, once: bounded, and its file is read into what was asked for. `remote` begins nothing without `plenty`.
    const LEFT_OUT: [&str; 4] = ["lifecycle.rs", "remote", "testing.rs", "tests"];
    const REASONS: [(&str, &str); 5] = [
        ("epoll.rs", "inner.channels.iter().copied().partition("), // 64 of them at most
        ("epoll.rs", "self.by_fd.resize("),                        // reserved some lines above
        ("table.rs", "t.by_tuple.resize("),                        // likewise
        ("table.rs", "t.by_number.resize("),                       // likewise
        ("link.rs", "l.slots.resize("),                            // likewise
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
            for line in text.split("#[cfg(test)]\n#[allow").next().unwrap_or("").split("#[cfg(test)]\nmod tests").next().unwrap_or("").lines() {
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
    assert!(found.is_empty(), "use Scratch or try_reserve (docs/design/no-memory.md), or say why not: {found:#?}");
}
