//! Who uses a descriptor past us, within the host, while its peer's library does not answer.

use super::*;
use crate::path::tests::{A, C, close_both, promoted_within_the_host};

/// Nothing is unread, but the peer may send by the ring as long as it has not heard.
#[test]
fn a_ring_that_receives_waits_for_the_peers_answer() {
    let ends = promoted_within_the_host();
    let (s, fd) = (ends[A].socket, ends[A].fd);
    {
        let peer = ends[C].socket;
        let held = hold_tx(peer, peer.generation16());
        need_kernel(fd, Reason::IoUring);
        assert!(held.is_ok() && s.is(State::Attached), "its peer has not answered");
    }
    assert!(!hand_on(fd, Reason::IoUring, || true), "the kernel has it");
    assert!(s.is(State::Plain), "who reads finds all of it");
    close_both(ends);
}

/// It has not heard that it is asked for its bytes, and ends: they are in the ring.
#[test]
fn a_ring_that_receives_finds_what_its_peer_has_left_before_it_heard() {
    for can_read in [true, false] {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, 500);
        let (s, fd) = (ends[A].socket, ends[A].fd);
        assert_eq!(crate::io::shutdown_of(ends[C].fd, libc::SHUT_WR), 0);
        assert_eq!(hand_on(fd, Reason::IoUring, || can_read), can_read);
        assert_eq!(s.has(flag::BROKEN_OFF), !can_read);
        if can_read {
            ends[A].receive_all(A, 500);
            assert_eq!(ends[A].receive(A, 1), 0);
        }
        ends.iter_mut().for_each(|end| end.close());
    }
}
