//! epoll_ctl of a connection in a ring is epoll_ctl of one in the kernel.

use crate::api;
use crate::testing::pair::{Fd, LONG_NS, Pair, Set, on_both, or_kernel, outcome};
use core::ffi::c_int;
use core::ptr::without_provenance_mut;
use libc::{EEXIST, EFAULT, EINVAL, ENOENT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};

#[test]
fn a_set_knows_whom_it_has() {
    on_both(|p| {
        let set = Set::new();
        for _ in 0..2 {
            assert_eq!(set.modify(p.a, EPOLLIN), Err(ENOENT));
            assert_eq!(set.delete(p.a), Err(ENOENT));
            assert_eq!(set.add(p.a, EPOLLIN), Ok(()));
            assert_eq!(set.add(p.a, EPOLLOUT), Err(EEXIST));
            // (It is as it was.)
            assert_eq!(set.says(), 0);
            assert_eq!(set.modify(p.a, EPOLLOUT), Ok(()));
            assert_eq!(set.says(), EPOLLOUT);
            assert_eq!(set.ctl(99, p.a, EPOLLIN, 7), Err(EINVAL));
            assert_eq!(set.delete(p.a), Ok(()));
            assert_eq!(set.says(), 0);
        }
        set.close();
        p.close();
    });
}

#[test]
fn no_event_can_be_read_from_nowhere() {
    on_both(|p| {
        let set = Set::new();
        let ctl = |op| {
            // SAFETY: it is not read; that is an error, but of EPOLL_CTL_DEL.
            let r = unsafe { api::epoll_ctl(set.0, op, p.a.0, without_provenance_mut(8)) };
            // SAFETY: as above.
            let kernels = || unsafe {
                crate::sys::epoll_ctl(set.0, op, p.a.0, &mut *without_provenance_mut(8))
            };
            outcome(or_kernel(r, kernels)).map(|_| ())
        };
        assert_eq!(ctl(EPOLL_CTL_ADD), Err(EFAULT));
        set.add(p.a, EPOLLIN).unwrap();
        assert_eq!(ctl(EPOLL_CTL_MOD), Err(EFAULT));
        assert_eq!(ctl(EPOLL_CTL_DEL), Ok(()));
        assert_eq!(set.delete(p.a), Err(ENOENT));
        set.close();
        p.close();
    });
}

#[test]
fn the_latest_data_is_told() {
    on_both(|p| {
        let set = Set::new();
        set.ctl(EPOLL_CTL_ADD, p.a, EPOLLOUT, 1).unwrap();
        assert_eq!(set.look(4), [(EPOLLOUT, 1)]);
        set.ctl(EPOLL_CTL_MOD, p.a, EPOLLOUT, u64::MAX).unwrap();
        assert_eq!(set.look(4), [(EPOLLOUT, u64::MAX)]);
        set.delete(p.a).unwrap();
        set.ctl(EPOLL_CTL_ADD, p.a, EPOLLOUT, 3).unwrap();
        assert_eq!(set.look(4), [(EPOLLOUT, 3)]);
        set.close();
        p.close();
    });
}

fn bytes(p: Pair) {
    p.c.send(b"b").unwrap();
}

#[test]
fn what_fires_once_is_silent_until_it_is_armed() {
    for more in [0, EPOLLET] {
        on_both(|p| {
            let once = EPOLLIN | EPOLLONESHOT | more;
            let set = Set::new();
            set.add(p.a, once).unwrap();
            assert_eq!(set.says(), 0);
            bytes(p);
            assert_eq!((set.says(), set.says()), (EPOLLIN, 0));
            bytes(p);
            assert_eq!(set.says(), 0);
            // Armed, it tells of what is there; and it is in the set all the time.
            assert_eq!(set.add(p.a, once), Err(EEXIST));
            set.modify(p.a, once).unwrap();
            assert_eq!((set.says(), set.says()), (EPOLLIN, 0));
            p.a.drain();
            set.modify(p.a, once).unwrap();
            assert_eq!(set.says(), 0);
            bytes(p);
            assert_eq!((set.says(), set.says()), (EPOLLIN, 0));
            // Not even an end is told of.
            p.c.close();
            assert_ne!(p.a.await_ready(libc::POLLRDHUP, LONG_NS), 0);
            assert_eq!(set.says(), 0);
            set.delete(p.a).unwrap();
            set.add(p.a, once | EPOLLRDHUP).unwrap();
            assert_eq!((set.says(), set.says()), (EPOLLIN | EPOLLRDHUP, 0));
            set.close();
            p.a.close();
        });
    }
}

/// (fs/eventpoll.c: EPOLLEXCLUSIVE_OK_BITS.)
#[test]
fn who_is_exclusive_can_only_be_put_in() {
    on_both(|p| {
        let set = Set::new();
        let of = |events| EPOLLEXCLUSIVE | events;
        for events in [EPOLLRDHUP, EPOLLONESHOT, EPOLLIN | EPOLLRDHUP] {
            assert_eq!(set.add(p.a, of(events)), Err(EINVAL), "{events:#x}");
        }
        set.add(p.a, EPOLLIN).unwrap();
        assert_eq!(set.modify(p.a, of(EPOLLIN)), Err(EINVAL));
        assert_eq!(set.modify(p.a, EPOLLIN), Ok(()));
        set.delete(p.a).unwrap();
        for edge in [0, EPOLLET] {
            set.add(p.a, of(EPOLLIN | EPOLLOUT | edge)).unwrap();
            assert_eq!(set.modify(p.a, EPOLLIN), Err(EINVAL));
            assert_eq!(set.says(), EPOLLOUT);
            bytes(p);
            assert_eq!(set.says(), EPOLLIN | EPOLLOUT);
            assert_eq!(set.says() == 0, edge != 0);
            p.a.drain();
            set.delete(p.a).unwrap();
        }
        // What it was does not stick to it.
        set.add(p.a, EPOLLIN).unwrap();
        assert_eq!(set.modify(p.a, EPOLLOUT), Ok(()));
        set.close();
        p.close();
    });
}

// ---- numbers ------------------------------------------------------------------------------------

fn duplicate(fd: Fd) -> Fd {
    let r = or_kernel(api::dup(fd.0), || crate::sys::fcntl(fd.0, libc::F_DUPFD, 0));
    Fd(r as c_int)
}

#[test]
fn a_closed_socket_is_in_no_set() {
    on_both(|p| {
        let set = Set::new();
        set.add(p.a, EPOLLIN | EPOLLOUT).unwrap();
        assert_eq!(set.says(), EPOLLOUT);
        p.a.close();
        assert_eq!(set.says(), 0);
        // Nor is another one, which may have its number.
        let other = Pair::new(p.on);
        for fd in [other.a, other.c] {
            assert_eq!(set.modify(fd, EPOLLIN), Err(ENOENT));
            assert_eq!(set.add(fd, EPOLLOUT), Ok(()));
        }
        assert_eq!(set.look(4), [(EPOLLOUT, 7); 2]);
        other.close();
        p.c.close();
        set.close();
    });
}

#[test]
fn each_number_of_a_socket_is_put_in_for_itself() {
    on_both(|p| {
        let set = Set::new();
        let b = duplicate(p.a);
        set.ctl(EPOLL_CTL_ADD, p.a, EPOLLIN, 1).unwrap();
        assert_eq!(set.ctl(EPOLL_CTL_MOD, b, EPOLLIN, 2), Err(ENOENT));
        set.ctl(EPOLL_CTL_ADD, b, EPOLLIN | EPOLLOUT, 2).unwrap();
        bytes(p);
        let mut told = set.look(4);
        told.sort_unstable();
        assert_eq!(told, [(EPOLLIN, 1), (EPOLLIN | EPOLLOUT, 2)]);
        set.delete(p.a).unwrap();
        assert_eq!(set.look(4), [(EPOLLIN | EPOLLOUT, 2)]);
        b.close();
        p.close();
        set.close();
    });
}

/// (epoll(7), question 6.)
#[test]
fn a_closed_number_is_reported_as_long_as_there_is_another() {
    on_both(|p| {
        let set = Set::new();
        let b = duplicate(p.a);
        set.add(p.a, EPOLLIN).unwrap();
        p.a.close();
        assert_eq!(set.says(), 0);
        bytes(p);
        assert_eq!(set.says(), EPOLLIN);
        assert_eq!(b.receive(9).unwrap(), b"b");
        assert_eq!(set.says(), 0);
        bytes(p);
        b.close();
        assert_eq!(set.says(), 0);
        p.c.close();
        set.close();
    });
}
