//! The library's private heap, as the allocator of this very test program: harness, threads and
//! all.
#![allow(missing_docs, reason = "a test program")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

// The fork handler is not registered here: the kernel's wiping must do.
use netacc_core::heap;
#[path = "../src/raw.rs"]
mod raw;

#[global_allocator]
static HEAP: heap::Private = heap::Private;

/// xorshift64*: a test needs no better.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

struct Piece {
    start: *mut u8,
    layout: Layout,
    fill: u8,
}

impl Piece {
    fn new(random: &mut Random) -> Piece {
        let size = match random.below(20) {
            0 => 1 + random.below(300_000),
            1..4 => 1 + random.below(40_000),
            _ => 1 + random.below(600),
        };
        let align = 1 << if random.below(50) == 0 { random.below(17) } else { random.below(7) };
        let layout = Layout::from_size_align(size as usize, align).unwrap();
        let fill = random.below(255) as u8 + 1;
        // SAFETY: the size is not 0.
        let start =
            unsafe { if fill & 1 == 0 { HEAP.alloc(layout) } else { HEAP.alloc_zeroed(layout) } };
        assert!(!start.is_null());
        assert_eq!(start as usize % align, 0);
        // SAFETY: just allocated.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, layout.size()) };
        assert!(fill & 1 == 0 || bytes.iter().all(|byte| *byte == 0));
        bytes.fill(fill);
        Piece { start, layout, fill }
    }

    fn check(&self, size: usize) {
        // SAFETY: allocated and filled by `new`.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, size) };
        assert!(bytes.iter().all(|byte| *byte == self.fill));
    }

    fn resize(&mut self, size: usize) {
        // SAFETY: `layout` is the piece's own.
        self.start = unsafe { HEAP.realloc(self.start, self.layout, size) };
        assert!(!self.start.is_null());
        assert_eq!(self.start as usize % self.layout.align(), 0);
        self.check(size.min(self.layout.size()));
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        // SAFETY: just allocated.
        unsafe { self.start.write_bytes(self.fill, size) };
    }

    fn free(self) {
        self.check(self.layout.size());
        // SAFETY: the piece is not used again.
        unsafe { HEAP.dealloc(self.start, self.layout) };
    }
}

fn churn(seed: u64, steps: usize) {
    let mut random = Random(seed);
    let mut pieces = Vec::new();
    for _ in 0..steps {
        match random.below(5) {
            0 | 1 => pieces.push(Piece::new(&mut random)),
            2 if !pieces.is_empty() => {
                let index = random.below(pieces.len() as u64) as usize;
                pieces[index].resize(1 + random.below(70_000) as usize);
            }
            _ if !pieces.is_empty() => {
                pieces.swap_remove(random.below(pieces.len() as u64) as usize).free()
            }
            _ => {}
        }
    }
    pieces.into_iter().for_each(Piece::free);
}

fn while_others_churn(test: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let done = &done;
            scope.spawn(move || {
                let mut round = seed;
                while !done.load(Relaxed) {
                    round += 17;
                    churn(round, 300);
                }
            });
        }
        test();
        done.store(true, Relaxed);
    });
}

/// Exits 0 in the child of `fork` if it can allocate, and quickly.
fn child_can_allocate(fork: impl Fn() -> libc::pid_t) {
    let pid = fork();
    assert!(pid >= 0);
    if pid == 0 {
        let start = Instant::now();
        let whole = std::panic::catch_unwind(|| churn(99, 200)).is_ok();
        let quick = start.elapsed() < Duration::from_secs(20);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if whole && quick { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

#[test]
fn blocks_are_disjoint_aligned_and_keep_their_bytes() {
    churn(1, 20_000);
}

#[test]
fn threads_may_allocate_and_free_at_once() {
    while_others_churn(|| churn(7, 5_000));
}

#[test]
fn memory_is_used_again() {
    let layout = Layout::from_size_align(1000, 8).unwrap();
    let mut highest = 0;
    let mut lowest = usize::MAX;
    for _ in 0..100_000 {
        // SAFETY: allocated and freed with one layout.
        unsafe {
            let block = HEAP.alloc(layout);
            highest = highest.max(block as usize);
            lowest = lowest.min(block as usize);
            HEAP.dealloc(block, layout);
        }
    }
    assert!(highest - lowest < 256 << 20, "{} bytes for one block at a time", highest - lowest);
}

#[test]
fn impossible_sizes_fail_without_harm() {
    let layout = Layout::from_size_align(isize::MAX as usize - 4095, 1).unwrap();
    // SAFETY: the size is not 0.
    assert!(unsafe { HEAP.alloc(layout) }.is_null());
}

#[test]
fn child_of_fork_can_allocate_whatever_other_threads_were_doing() {
    // SAFETY: the child calls what this test is about and _exit.
    while_others_churn(|| (0..60).for_each(|_| child_can_allocate(|| unsafe { libc::fork() })));
}

#[test]
fn child_of_a_raw_fork_that_runs_no_handlers_can_allocate() {
    // SAFETY: clone without a shared memory or a stack is fork.
    let raw_fork = || unsafe { raw::call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) }
        as libc::pid_t;
    while_others_churn(|| (0..60).for_each(|_| child_can_allocate(raw_fork)));
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn allocate_in_handler(_: libc::c_int) {
    let mut random = Random(HANDLED.fetch_add(1, Relaxed) + 1);
    let pieces = [Piece::new(&mut random), Piece::new(&mut random)];
    pieces.into_iter().for_each(Piece::free);
}

#[test]
fn signal_handler_may_allocate_inside_the_allocator() {
    // SAFETY: the handler touches atomics, its stack and the heap under test.
    unsafe {
        libc::signal(libc::SIGUSR1, allocate_in_handler as *const () as libc::sighandler_t);
        let target = libc::pthread_self();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    libc::pthread_kill(target, libc::SIGUSR1);
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            while HANDLED.load(Relaxed) < 2_000 {
                churn(HANDLED.load(Relaxed) + 1, 200);
            }
            done.store(true, Relaxed);
        });
    }
}
