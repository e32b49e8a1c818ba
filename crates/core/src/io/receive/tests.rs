//! What a receive from a ring comes to is what one from the kernel comes to.

use super::super::ends::{TxHeld, demote_tx, hold_tx};
use crate::path::tests::{C, promoted_within_the_host};
use crate::testing::pair::{LONG_NS, On, Pair, WAITS, on_both, or_kernel};
use crate::testing::{Moment, just_before, was_there};
use crate::{api, sys};
use core::ptr::null_mut;
use libc::{EAGAIN, ECONNRESET, EFAULT, EINVAL, MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC};
use libc::{MSG_WAITALL, POLLIN, POLLRDHUP, SHUT_RD, SHUT_WR};
use netacc_proto::switchover::TxState;

#[test]
fn bytes_are_spread_over_the_buffers_in_order() {
    on_both(|p| {
        p.c.send(b"abcdefgh").unwrap();
        assert_eq!(p.a.receive_raw(&[2, 0, 3], 0), Ok((5, b"abcde".to_vec())));
        // As much as there is, and nothing is written behind it.
        assert_eq!(p.a.receive_raw(&[2, 4], 0), Ok((3, b"fgh...".to_vec())));
        assert_eq!(p.a.receive_raw(&[2, 4], 0), Err(EAGAIN));
        p.close();
    });
}

#[test]
fn a_look_takes_nothing() {
    on_both(|p| {
        assert_eq!(p.a.receive_with(&[4], MSG_PEEK), Err(EAGAIN));
        p.c.send(b"abcdefgh").unwrap();
        assert_eq!(p.a.receive_with(&[3], MSG_PEEK).unwrap(), b"abc");
        assert_eq!(p.a.receive_with(&[3, 0, 2], MSG_PEEK).unwrap(), b"abcde");
        assert_eq!(p.a.receive_with(&[5, 9], MSG_PEEK).unwrap(), b"abcdefgh");
        assert_eq!(p.a.unread(), 8);
        assert_eq!(p.a.receive(2).unwrap(), b"ab");
        assert_eq!(p.a.receive_with(&[9], MSG_PEEK).unwrap(), b"cdefgh");
        p.close();
    });
}

#[test]
fn what_is_dropped_is_counted_and_not_written() {
    on_both(|p| {
        p.c.send(b"abcdefgh").unwrap();
        let look = MSG_TRUNC | MSG_PEEK;
        assert_eq!(p.a.receive_raw(&[3, 9], look), Ok((8, b"............".to_vec())));
        assert_eq!(p.a.receive_raw(&[3], MSG_TRUNC), Ok((3, b"...".to_vec())));
        assert_eq!(p.a.receive_raw(&[1, 1], MSG_TRUNC), Ok((2, b"..".to_vec())));
        assert_eq!(p.a.receive(9).unwrap(), b"fgh");
        p.close();
    });
}

#[test]
fn who_wants_all_gets_what_comes_while_it_waits() {
    on_both(|p| {
        p.c.send(b"abc").unwrap();
        // Who does not wait gets what is there.
        assert_eq!(p.a.receive_with(&[8], MSG_WAITALL | MSG_PEEK).unwrap(), b"abc");
        assert_eq!(p.a.receive_with(&[8], MSG_WAITALL).unwrap(), b"abc");
        p.c.send(b"abc").unwrap();
        if p.on == On::Ring {
            just_before(Moment::Sleep, move || {
                p.c.send(b"de").unwrap();
                just_before(Moment::Sleep, move || {
                    p.c.send(b"fghi").unwrap();
                });
            });
        } else {
            p.c.send(b"defghi").unwrap();
        }
        let all = MSG_WAITALL | WAITS;
        assert_eq!(p.a.receive_with(&[2, 6], all).unwrap(), b"abcdefgh");
        assert!(was_there());
        // It is all that was wanted.
        assert_eq!(p.a.receive(9).unwrap(), b"i");
        p.close();
    });
}

#[test]
fn who_wants_all_gets_what_came_before_the_end() {
    on_both(|p| {
        p.c.send(b"abc").unwrap();
        p.c.shutdown(SHUT_WR);
        for flags in [MSG_WAITALL | MSG_PEEK, MSG_WAITALL] {
            assert_eq!(p.a.receive_with(&[8], flags | WAITS).unwrap(), b"abc");
        }
        assert_eq!(p.a.receive_with(&[8], MSG_WAITALL | WAITS).unwrap(), b"");
        p.close();
    });
}

#[test]
fn a_time_out_ends_a_wait_with_what_has_come() {
    on_both(|p| {
        p.a.set(libc::SO_RCVTIMEO, libc::timeval { tv_sec: 0, tv_usec: 1000 });
        for flags in [0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_WAITALL | MSG_PEEK] {
            assert_eq!(p.a.receive_with(&[4], flags | WAITS), Err(EAGAIN), "{flags:#x}");
        }
        p.c.send(b"abc").unwrap();
        for flags in [MSG_WAITALL | MSG_PEEK, MSG_WAITALL] {
            assert_eq!(p.a.receive_with(&[2, 2], flags | WAITS).unwrap(), b"abc", "{flags:#x}");
        }
        p.c.shutdown(SHUT_WR);
        assert_eq!(p.a.receive_with(&[4], WAITS).unwrap(), b"");
        p.close();
    });
}

#[test]
fn nothing_is_received_as_any_byte_would_be() {
    on_both(|p| {
        assert_eq!(p.a.receive(0), Err(EAGAIN));
        p.c.send(b"b").unwrap();
        for flags in [0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL] {
            assert_eq!(p.a.receive_with(&[0], flags).unwrap(), b"", "{flags:#x}");
        }
        assert_eq!(p.a.receive(8).unwrap(), b"b");
        p.c.shutdown(SHUT_WR);
        assert_eq!(p.a.await_ready(POLLRDHUP, LONG_NS), POLLRDHUP);
        assert_eq!(p.a.receive(0).unwrap(), b"");
        p.close();
    });
}

#[test]
fn the_end_comes_behind_the_bytes_and_stays() {
    on_both(|p| {
        p.c.send(b"abcdefgh").unwrap();
        p.c.close();
        assert_eq!(p.a.await_ready(POLLRDHUP, LONG_NS), POLLRDHUP);
        assert_eq!(p.a.unread(), 8);
        assert_eq!(p.a.receive(5).unwrap(), b"abcde");
        assert_eq!(p.a.receive_with(&[5], MSG_PEEK).unwrap(), b"fgh");
        assert_eq!(p.a.receive(5).unwrap(), b"fgh");
        for flags in [MSG_PEEK, 0, MSG_WAITALL, MSG_TRUNC] {
            assert_eq!(p.a.receive_with(&[5], flags | WAITS).unwrap(), b"");
        }
        assert_eq!(p.a.unread(), 0);
        p.a.close();
    });
}

/// The error is told once, behind the bytes, and then it is the end.
#[test]
fn a_reset_comes_behind_the_bytes_and_is_told_once() {
    on_both(|p| {
        p.a.send(b"unread").unwrap();
        p.c.send(b"abc").unwrap();
        p.c.close();
        assert_ne!(p.a.await_ready(libc::POLLPRI, LONG_NS) & libc::POLLHUP, 0);
        assert_eq!(p.a.receive(8).unwrap(), b"abc");
        assert_eq!(p.a.receive_with(&[8], MSG_PEEK), Err(ECONNRESET));
        assert_eq!(p.a.receive(8).unwrap(), b"");
        assert_eq!(p.a.receive(8).unwrap(), b"");
        p.a.close();
    });
}

#[test]
fn behind_a_shutdown_what_is_there_is_received_and_then_the_end() {
    on_both(|p| {
        p.c.send(b"abc").unwrap();
        p.a.shutdown(SHUT_RD);
        assert_eq!(p.a.receive_with(&[2], WAITS).unwrap(), b"ab");
        assert_eq!(p.a.receive_with(&[2], WAITS).unwrap(), b"c");
        assert_eq!(p.a.receive_with(&[2], WAITS).unwrap(), b"");
        p.close();
    });
}

#[test]
fn urgent_bytes_and_errors_are_the_kernels() {
    on_both(|p| {
        p.c.send(b"b").unwrap();
        assert_eq!(p.a.receive_with(&[4], MSG_OOB), Err(EINVAL));
        assert_eq!(p.a.receive_with(&[4], MSG_ERRQUEUE), Err(EAGAIN));
        assert_eq!(p.a.receive(4).unwrap(), b"b");
        p.close();
    });
}

// ---- where the path changes ---------------------------------------------------------------------

/// A connection whose end `c` sends over the path that it is told.
struct Changing {
    p: Pair,
    sender: &'static crate::socket::Socket,
}

impl Changing {
    fn new() -> Changing {
        let ends = promoted_within_the_host();
        Changing { p: Pair::of(&ends), sender: ends[C].socket }
    }

    fn hold(&self) -> TxHeld<'static> {
        hold_tx(self.sender, self.sender.generation16()).ok().unwrap()
    }

    fn by_carrier(&self, bytes: &[u8]) {
        let mut h = self.hold();
        demote_tx(self.sender, &mut h, false);
        h.end.unsettled = true;
        drop(h);
        self.p.c.send(bytes).unwrap();
        assert_eq!(self.hold().end.switch.state(), TxState::Carrier);
    }

    fn by_ring(&self, bytes: &[u8]) {
        self.hold().end.unsettled = false;
        self.p.c.send(bytes).unwrap();
        assert_eq!(self.hold().end.switch.state(), TxState::Fast);
    }
}

/// Ways to the state that the test of this name begins in: what is unread is "abcdef", some of it
/// in the ring, some with the kernel.
type Way = (&'static str, fn(&Changing));

const WAYS: [Way; 3] = [
    ("back to the carrier", |c| {
        c.by_ring(b"abc");
        c.by_carrier(b"def");
    }),
    ("onto the ring", |c| {
        c.by_carrier(b"-");
        assert_eq!(c.p.a.receive(8).unwrap(), b"-");
        c.by_carrier(b"abc");
        c.by_ring(b"def");
    }),
    ("onto the ring and back", |c| {
        c.by_carrier(b"-");
        assert_eq!(c.p.a.receive(8).unwrap(), b"-");
        c.by_carrier(b"ab");
        c.by_ring(b"cd");
        c.by_carrier(b"ef");
    }),
];

fn at_each_change(test: impl Fn(&str, Pair)) {
    for (way, deed) in WAYS {
        let c = Changing::new();
        deed(&c);
        assert_eq!(c.p.a.ready(POLLIN), POLLIN, "{way}");
        assert_eq!(c.p.a.unread(), 6, "{way}");
        test(way, c.p);
        c.p.close();
    }
}

#[test]
fn a_receive_goes_on_where_the_path_changes() {
    at_each_change(|way, p| {
        assert_eq!(p.a.receive(8).unwrap(), b"abcdef", "{way}");
        assert_eq!(p.a.receive(8), Err(EAGAIN), "{way}");
    });
    at_each_change(|way, p| {
        let parts = core::iter::repeat_with(|| p.a.receive_with(&[1, 3], 0)).map_while(Result::ok);
        assert_eq!(
            parts.collect::<std::vec::Vec<_>>(),
            [b"abcd".to_vec(), b"ef".to_vec()],
            "{way}"
        );
    });
    at_each_change(|way, p| {
        assert_eq!(p.a.receive_with(&[6], MSG_WAITALL | WAITS).unwrap(), b"abcdef", "{way}");
    });
}

/// A program that looks until a whole message is there sees it.
#[test]
fn a_look_goes_on_where_the_path_changes() {
    for flags in [0, MSG_WAITALL, MSG_WAITALL | WAITS] {
        at_each_change(|way, p| {
            for sizes in [&[6][..], &[1, 5], &[4, 0, 2]] {
                let seen = p.a.receive_with(sizes, MSG_PEEK | flags).unwrap();
                assert_eq!(seen, b"abcdef", "{way}, into {sizes:?}");
            }
            assert_eq!(p.a.receive_with(&[8], MSG_PEEK).unwrap(), b"abcdef", "{way}");
            assert_eq!(p.a.receive_with(&[5], MSG_PEEK | flags).unwrap(), b"abcde", "{way}");
            let counted = p.a.receive_raw(&[6], MSG_PEEK | MSG_TRUNC).unwrap();
            assert_eq!(counted, (6, b"......".to_vec()), "{way}");
            assert_eq!(p.a.receive(8).unwrap(), b"abcdef", "{way}");
        });
    }
}

/// What is before it is taken first.
#[test]
fn a_look_takes_no_error_of_the_carriers() {
    let c = Changing::new();
    c.by_ring(b"abc");
    demote_tx(c.sender, &mut c.hold(), false);
    crate::carrier::dissolve(c.p.c.0);
    for _ in 0..2 {
        assert_eq!(c.p.a.receive_with(&[8], MSG_PEEK).unwrap(), b"abc");
    }
    assert_eq!(c.p.a.receive(8).unwrap(), b"abc");
    assert_eq!(c.p.a.receive(8), Err(ECONNRESET));
    c.p.close();
}

#[test]
fn a_bad_buffer_takes_no_byte() {
    on_both(|p| {
        p.c.send(b"abc").unwrap();
        let bad = core::ptr::without_provenance_mut(8);
        // SAFETY: it is never written to; that is an error.
        let r = unsafe { api::recv(p.a.0, bad, 4, 0) };
        // SAFETY: as above.
        let r = or_kernel(r, || unsafe {
            sys::recvfrom(p.a.0, bad.cast(), 4, 0, null_mut(), null_mut())
        });
        assert_eq!(r, -(EFAULT as isize));
        assert_eq!(p.a.receive(8).unwrap(), b"abc");
        p.close();
    });
}
