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
    hand_on(fd, Reason::IoUring);
    assert!(s.is(State::Plain), "who reads finds all of it");
    close_both(ends);
}
