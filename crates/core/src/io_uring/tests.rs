use super::abi::SETUP_SQE128;
use super::*;

const UNSEEN: Seen = Seen { files: false, linked: false, drained: false };
const SEEN: Seen = Seen { files: true, ..UNSEEN };

fn ctl(op: c_int, fd: c_int) -> Sqe {
    Sqe {
        opcode: OP_EPOLL_CTL,
        flags: 1 << 4,
        fd: 1_000_000,
        off: fd as u64,
        len: op as u32,
        addr: 8192,
        user_data: 0xdead_beef,
        ..Sqe::default()
    }
}

#[test]
fn an_entry_completes_with_the_result() {
    let entry = ctl(libc::EPOLL_CTL_ADD, 7);
    assert!(completes_with(entry, PASS).is_none());
    assert!(completes_with(entry, -(libc::EEXIST as Ret)).is_none());
    let done = completes_with(entry, 0).unwrap();
    assert_eq!((done.opcode, done.flags, done.user_data), (OP_NOP, 1 << 4, 0xdead_beef));
    assert_eq!((done.fd, done.off, done.addr, done.len, done.op_flags), (0, 0, 0, 0, 0));
    let none = completes_with(entry, -(libc::ENOENT as Ret)).unwrap();
    assert_eq!((none.opcode, none.user_data, none.len), (OP_TIMEOUT_REMOVE, 0xdead_beef, 0));
    assert!(none.addr != 0 && none.addr == nobody());
    assert_eq!(completes_with(entry, -(libc::EINVAL as Ret)).unwrap().buf_index, 1);
    assert_eq!(completes_with(entry, -(libc::EBADF as Ret)).unwrap().fd, -1);
    let some = completes_with(Sqe { flags: FIXED_FILE | 1 << 4, ..entry }, 12).unwrap();
    assert_eq!((some.opcode, some.flags, some.user_data), (OP_WRITE, 1 << 4, 0xdead_beef));
    assert_eq!(sys::write(some.fd, &[0; 12]), 12);
}

#[test]
fn what_is_not_ours_stays_as_it_is() {
    for op in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL] {
        assert!(follow(ctl(op, 900_000), UNSEEN).is_none());
    }
    assert!(follow(Sqe { opcode: OP_NOP, fd: -1, ..Sqe::default() }, UNSEEN).is_none());
    assert!(follow(Sqe { opcode: OP_CLOSE, fd: 900_000, ..Sqe::default() }, UNSEEN).is_none());
    // What was registered is known where it was seen.
    for opcode in [OP_NOP, OP_SENDMSG, OP_SPLICE, 27] {
        assert!(
            follow(
                Sqe { opcode, flags: FIXED_FILE, op_flags: SPLICE_FD_IN_FIXED, ..Sqe::default() },
                SEEN
            )
            .is_none()
        );
    }
    assert!(!unconnected::all_refused());
}

/// liburing's ring in ordinary memory, with entries of both sizes.
#[test]
fn what_liburing_submits_next_is_read() {
    let ours = 900_002;
    fd_table::set(ours, Entry::Internal);
    for (flags, step) in [(0, 1), (SETUP_SQE128, 2)] {
        let closing = Sqe { opcode: OP_CLOSE, fd: ours, ..Sqe::default() };
        let mut sqes = [closing; 8];
        let sqes = sqes.as_mut_ptr();
        let mask = 3u32;
        let mut ring = Liburing {
            head_and_tail: [core::ptr::null(); 2],
            ring_mask: &mask,
            others: [core::ptr::null(); 4],
            sqes: sqes.cast(),
            sqe_head: u32::MAX,
            sqe_tail: u32::MAX,
            rest: [0; 15],
            flags,
            ring_fd: -1,
        };
        // SAFETY: one of the entries, of which there are four times `step`.
        let fds = || [0, 1, 2, 3].map(|i| unsafe { sqes.add(i * step).read_volatile() }.fd);
        // SAFETY: a ring of four entries.
        let submit = |ring: &Liburing| unsafe { ring.follow() };
        submit(&ring);
        assert_eq!(fds(), [ours; 4]);
        ring.sqe_tail = 1;
        submit(&ring);
        assert_eq!(fds(), [-1, ours, ours, -1]);
        (ring.sqe_head, ring.sqe_tail) = (1, 1000);
        submit(&ring);
        assert_eq!(fds(), [-1; 4]);
    }
    fd_table::set(ours, Entry::None);
}

/// A queue in ordinary memory, with indices that a program could write.
#[test]
fn a_queue_is_read_as_the_kernel_reads_it() {
    let ours = 900_001;
    fd_table::set(ours, Entry::Internal);
    let mut ring = [0u32; 16];
    let mut sqes = [Sqe::default(); 4];
    let view = View {
        ring: ring.as_mut_ptr().cast(),
        ring_bytes: 64,
        sqes: sqes.as_mut_ptr().cast(),
        entries: 4,
        head: 0,
        tail: 4,
        array: Some(8),
    };
    let set = |at: usize, to: u32| view.word(at).store(to, Relaxed);
    // The head is near its overflow; the entries 6 and 7 of the application's stand in places 3
    // and 1, one index is none.
    set(0, u32::MAX);
    set(4, 3);
    for (slot, index) in [(3, 3), (0, 99), (1, 1), (2, 0)] {
        set(8 + slot * 4, index);
    }
    let closing = Sqe { opcode: OP_CLOSE, fd: ours, ..Sqe::default() };
    for i in 0..4 {
        // SAFETY: one of four.
        unsafe { view.sqes.cast::<Sqe>().add(i).write_volatile(closing) };
    }
    // SAFETY: as above.
    let fds = || [0, 1, 2, 3].map(|i| unsafe { view.sqes.cast::<Sqe>().add(i).read_volatile() }.fd);
    view.follow(0);
    assert_eq!(fds(), [ours; 4]);
    view.follow(3);
    assert_eq!(fds(), [ours, -1, ours, -1]);
    view.follow(100);
    assert_eq!(fds(), [-1, -1, ours, -1]);
    fd_table::set(ours, Entry::None);
}
