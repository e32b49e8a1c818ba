extern crate std;
use super::*;
use std::collections::HashSet;

fn pool(buffer: u32, first: u32, most: u32) -> Pool {
    Pool::new(&Config {
        buffer_bytes: buffer,
        arena_first_bytes: first,
        arena_growth_max_bytes: most,
        ..Config::default()
    })
}

fn grow(p: &mut Pool) -> usize {
    let (fd, number, bytes) = p.grow().unwrap();
    assert_eq!(number as usize, p.arenas().len() - 1);
    assert!(is_sealed(fd, bytes));
    assert!(!is_sealed(fd, bytes + 4096));
    assert!(sys::ftruncate(fd, 0) < 0, "sealed against shrinking");
    assert!(sys::ftruncate(fd, bytes * 2) < 0, "sealed against growing");
    crate::fd_words::close_internal(fd);
    bytes
}

#[test]
fn arenas_double_from_one_connection_to_the_limit() {
    let mut p = pool(16384, 16384, 8 << 20);
    assert_eq!(p.ring_bytes(), 256 << 10);
    let sizes: std::vec::Vec<usize> = (0..7).map(|_| grow(&mut p)).collect();
    let mib = 1 << 20;
    assert_eq!(sizes, [mib / 2, mib, 2 * mib, 4 * mib, 8 * mib, 8 * mib, 8 * mib]);
    assert_eq!(p.total_bytes(), sizes.iter().sum::<usize>());
}

#[test]
fn an_arena_holds_at_least_one_connection() {
    let mut p = pool(1 << 20, 1 << 20, 1 << 20);
    assert_eq!(p.ring_bytes(), 16 << 20);
    assert_eq!(grow(&mut p), 32 << 20);
    assert_eq!(grow(&mut p), 32 << 20);
}

#[test]
fn a_ring_has_room_for_sixteen_buffers() {
    assert_eq!(Pool::new(&Config::default()).ring_bytes(), 256 << 10);
    for buffer in [4096, 65_536] {
        assert_eq!(pool(buffer, buffer, buffer).ring_bytes(), 16 * buffer as usize);
    }
}

#[test]
fn odd_buffer_sizes_give_rings_that_are_powers_of_two() {
    for buffer in [4096, 12288, 20480, 1 << 28, u32::MAX] {
        let ring = pool(buffer, buffer, buffer).ring_bytes();
        assert!(ring.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&ring));
    }
}

#[test]
fn rings_never_overlap_and_are_reused() {
    let mut p = pool(4096, 4096, 1 << 20);
    let unit = p.ring_bytes() * 2;
    let mut out = std::vec::Vec::new();
    let mut seen = HashSet::new();
    for _ in 0..5 {
        grow(&mut p);
        while let Some(pair) = p.take() {
            assert_eq!(pair.offset as usize % unit, 0);
            assert!(pair.offset as usize + unit <= p.arenas()[pair.arena as usize].bytes);
            assert!(seen.insert((pair.arena, pair.offset)));
            let [a, b] = p.rings(pair).unwrap();
            assert_eq!(b as usize - a as usize, p.ring_bytes());
            // SAFETY: inside of the mapping; nobody else has it.
            unsafe { a.write_volatile(1) };
            out.push(pair);
        }
    }
    assert_eq!(out.len() * unit, p.total_bytes());
    assert!(p.take().is_none());
    let capacity = p.free.capacity();
    for pair in out.iter().copied() {
        p.give_back(pair);
    }
    assert_eq!(p.free.capacity(), capacity, "giving back never allocates");
    let mut again = HashSet::new();
    while let Some(pair) = p.take() {
        assert!(again.insert((pair.arena, pair.offset)));
    }
    assert_eq!(again, seen);
}

#[test]
fn the_latest_given_back_is_taken_first_and_cold_ones_lose_their_pages() {
    let mut p = pool(4096, 1 << 24, 1 << 24);
    grow(&mut p);
    let all: std::vec::Vec<Pair> = core::iter::from_fn(|| p.take()).take(WARM_PAIRS + 1).collect();
    while p.take().is_some() {}
    for pair in &all {
        let [a, _] = p.rings(*pair).unwrap();
        // SAFETY: inside of the mapping.
        unsafe { a.write_volatile(7) };
        p.give_back(*pair);
    }
    let read = |p: &Pool, pair| {
        let [a, _] = p.rings(pair).unwrap();
        // SAFETY: inside of the mapping.
        unsafe { a.read_volatile() }
    };
    assert_eq!(read(&p, all[0]), 7);
    assert_eq!(read(&p, all[WARM_PAIRS]), 0);
    assert_eq!(p.take(), Some(all[WARM_PAIRS]));
}

#[test]
fn what_could_be_taken_away_is_not_mapped() {
    let plain = sys::memfd_create(b"t\0", libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as c_int;
    assert!(sys::ftruncate(plain, 8192) >= 0);
    assert_eq!(map_received(plain, 8192).unwrap_err(), MemoryError::NotSealed);
    // Sealed against growing only.
    assert!(sys::fcntl(plain, libc::F_ADD_SEALS, libc::F_SEAL_GROW as usize) >= 0);
    assert_eq!(map_received(plain, 8192).unwrap_err(), MemoryError::NotSealed);
    // Shrinking sealed, but further seals (against writing) are possible.
    assert!(sys::fcntl(plain, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK as usize) >= 0);
    assert_eq!(map_received(plain, 8192).unwrap_err(), MemoryError::NotSealed);
    assert!(sys::fcntl(plain, libc::F_ADD_SEALS, libc::F_SEAL_SEAL as usize) >= 0);
    for wrong in [0, 4096, 8191, 12288, u64::MAX] {
        assert!(map_received(plain, wrong).is_err());
    }
    let m = map_received(plain, 8192).unwrap();
    // SAFETY: nobody uses it.
    unsafe { m.unmap() };
    let _ = sys::close(plain);
    let event = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    assert!(map_received(event, 4096).is_err());
    let _ = sys::close(event);
    let null = sys::open(b"/dev/zero\0", libc::O_RDWR | libc::O_CLOEXEC, 0) as c_int;
    assert!(map_received(null, 4096).is_err());
    let _ = sys::close(null);
}
