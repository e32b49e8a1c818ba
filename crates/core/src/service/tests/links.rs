//! Links: what is passed over them, and peers that do not answer.

use super::hostile::by_hand::accepting_by_hand;
use super::hostile::{Raw, memory};
use super::*;

/// A doorbell as `wait` makes it, and whether it was signalled since the last look.
fn doorbell() -> (c_int, impl Fn() -> bool) {
    let bell = crate::channel::new_doorbell();
    let epoll = sys::epoll_create1(libc::EPOLL_CLOEXEC) as c_int;
    let mut event = epoll_event { events: crate::channel::DOORBELL_EVENTS, u64: 0 };
    // SAFETY: a live event.
    assert!(unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, &mut event) } >= 0);
    let heard = move || {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        unsafe { sleep::epoll_wait(epoll, &mut event, 1, 0, core::ptr::null()) == 1 }
    };
    assert!(heard());
    (bell, heard)
}

#[test]
fn a_file_that_is_not_due_stays_where_it_is() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    settle(&[a]);
    let place = Message::Place { place: 1 };
    assert!(!a.state.lock().files_due(0, &place), "there is no channel");
    assert!(
        !a.state.lock().files_due(0, &Message::Arena(proto::Arena { arena: 0, bytes: 4096 })),
        "an acceptor takes no memory"
    );
    // The kernel refuses it, where it can.
    let bell = crate::channel::new_doorbell();
    r.send_stray(place, bell);
    settle(&[a]);
    assert!(r.is_ended());
    fd_table::close_internal(bell);
}

#[test]
fn memory_is_due_of_who_has_shown_a_connection() {
    let h = accepting_by_hand();
    let channel = Message::Channel(proto::Channel {
        channel_bytes: CHANNEL_BYTES as u64,
        slots: SLOTS as u32,
        places: PLACES as u32,
    });
    for turn in 0..TURNS {
        assert!(!h.c.state.lock().files_due(0, &channel), "before turn {turn}");
        h.show(turn);
    }
    assert!(h.c.state.lock().files_due(0, &channel));
    // Who passes it without that is heard no more.
    let h = accepting_by_hand();
    h.channel();
    settle(&[h.c]);
    assert!(h.r.is_ended());
}

/// Two ends of a control connection.
fn control_pair() -> [c_int; 2] {
    let mut fds = [-1; 2];
    assert_eq!(
        // SAFETY: room for two descriptors.
        unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
                fds.as_mut_ptr(),
            )
        },
        0
    );
    assert!(sys::setsockopt(fds[1], libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) >= 0);
    fds
}

/// How many descriptors this process has of the same file.
fn names(fd: c_int) -> usize {
    let list = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = list.flatten().filter_map(|n| n.file_name().to_str()?.parse().ok());
    numbers.filter(|n| sys::inode(*n) == sys::inode(fd)).count()
}

#[test]
fn couriers_bring_what_is_of_use_and_nothing_else() {
    crate::testing::init();
    let [near, far] = control_pair();
    let memory = memory(CHANNEL_BYTES);
    let bell = crate::channel::new_doorbell();
    let place = Message::Place { place: 7 };
    let arena = |bytes| Message::Arena(proto::Arena { arena: 0, bytes });
    for (message, file, good) in [
        (place, bell, true),
        (arena(CHANNEL_BYTES as u64), memory, true),
        (place, memory, false),
        (place, near, false),
        (arena(CHANNEL_BYTES as u64), bell, false),
        (arena(CHANNEL_BYTES as u64 * 2), memory, false),
    ] {
        assert_eq!(control::send(near, sys::geteuid(), &message, file), 0);
        // Seen as often as one likes, and not taken.
        for _ in 0..2 {
            assert!(matches!(packet::receive(far), Received::Files(seen) if seen == message));
        }
        match strangers::fetch(far) {
            Received::Message(got, fd, sender) => {
                assert!(good && got == message && fd >= 0 && sender.pid == sys::getpid());
                fd_table::close_internal(fd);
            }
            // (All eventfds are one file.)
            Received::Malformed => assert!(!good && (file == bell || names(file) == 1)),
            // (Another test has all couriers.)
            Received::NoDescriptor => {
                let _ = packet::receive(far);
                return;
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(packet::receive(far), Received::Nothing));
    }
    for fd in [near, far] {
        let _ = sys::close(fd);
    }
    for fd in [memory, bell] {
        fd_table::close_internal(fd);
    }
}

#[test]
fn signalling_keeps_nobody_waiting() {
    let (bell, heard) = doorbell();
    for _ in 0..1000 {
        crate::channel::wake(bell);
        assert!(heard());
    }
    assert!(!heard());
    // What a process without scruples passes: empty, and made to wait.
    let empty = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    crate::channel::wake(empty);
    // A writer makes itself heard by nobody who waits for a ring.
    assert_eq!(sys::write(bell, &1u64.to_ne_bytes()), 8);
    assert!(!heard());
    assert_eq!(sys::fcntl(bell, libc::F_SETFL, 0), 0);
    crate::channel::wake(bell);
    assert!(heard());
    for fd in [bell, empty] {
        let _ = sys::close(fd);
    }
}

#[test]
fn a_filter_without_preadv2_silences_no_doorbell() {
    let (bell, heard) = doorbell();
    // In a thread of its own, to which the filter belongs.
    std::thread::spawn(move || {
        let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_preadv2 as u32),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: a filter of four instructions, which the kernel copies.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
                0
            );
        }
        assert_eq!(sys::read_nowait(bell, &mut [0; 8]), -(libc::EPERM as isize));
        crate::channel::wake(bell);
    })
    .join()
    .unwrap();
    assert!(heard());
    let _ = sys::close(bell);
}

#[test]
fn doorbells_and_pull_backs_arrive() {
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
    let (cc, ac) = (channel_of(cs), channel_of(as_));
    let (bell, heard) = doorbell();
    // Wanted before it is known: signalled when it comes.
    ac.wake_peer(5);
    assert!(control::send_place(cc, 5, bell));
    assert!(!control::send_place(cc, 70000, bell));
    wait_until(&[a, c], &heard);
    assert!(!heard());
    ac.wake_peer(5);
    assert!(heard());
    // Passed again: another takes its place under the same number.
    let known = ac.doorbells[5].load(Relaxed);
    let (second, heard) = doorbell();
    assert!(control::send_place(cc, 5, second));
    wait_until(&[a, c], heard);
    assert_eq!(ac.doorbells[5].load(Relaxed), known);
    assert!(control::send_pull_back(cc, offer_of(cs).slot as usize));
    assert!(control::send_pull_back(ac, offer_of(cs).slot as usize));
    settle(&[a, c]);
    assert_eq!((ac.dead.load(Relaxed), cc.dead.load(Relaxed)), (0, 0));
    for fd in [bell, second] {
        let _ = sys::close(fd);
    }
}

#[test]
fn a_silent_peer_does_not_stop_us() {
    let (a, c, net) = both();
    // The acceptor never reads: candidates pile up, nothing blocks, nothing is lost.
    let all: Vec<_> = (0..600).map(|_| net.connect()).collect();
    for (cs, _, _) in &all {
        assert!(c.connect(cs));
    }
    for (_, as_, _) in &all {
        assert!(a.noted(as_));
    }
    // Now one, now the other.
    for _ in 0..40 {
        settle(&[a]);
        settle(&[c]);
    }
    for (cs, as_, _) in &all {
        assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    }
}

#[test]
fn a_link_that_nobody_uses_goes_and_comes_back() {
    let (a, c, net) = both();
    let agreed = || {
        let (cs, as_, tcp) = agree(a, c, &net);
        attach(cs);
        attach(as_);
        (cs, as_, tcp)
    };
    let phases = |s: &Service| s.state.lock().links[0].phase;
    let (cs, as_, _tcp) = agreed();
    a.state.lock().make_old();
    settle(&[a, c]);
    assert_eq!(phases(a), Phase::Open, "in use");
    leave(a, as_);
    crate::testing::pass_ns(2_000_000_000);
    settle(&[a, c]);
    assert!(a.state.lock().next_deed() > sys::now_ns() + 50_000_000_000, "in a minute");
    leave(c, cs);
    settle(&[a, c]);
    assert_eq!(phases(a), Phase::Open, "not old");
    a.state.lock().make_old();
    a.on_time();
    settle(&[a, c]);
    assert_eq!((phases(a), phases(c)), (Phase::Free, Phase::Free));
    nothing_is_due(a);
    agreed();
}
