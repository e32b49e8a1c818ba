//! What is under way on a connection, and keeps a close meanwhile from taking it apart.

use super::last_close::bury_orphan;
use crate::socket;
use crate::socket::{Socket, State, flag};
use core::sync::atomic::Ordering::*;

/// Something is under way on a connection: a call that waits, a pull-back, a departure. While this
/// lives a close does not take the connection apart.
pub(super) struct UnderWay(pub(super) &'static Socket, pub(super) u16);

impl UnderWay {
    pub(super) fn new(s: &'static Socket, generation: u16) -> UnderWay {
        s.waiters.fetch_add(1, SeqCst);
        UnderWay(s, generation)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.waiters.fetch_sub(1, SeqCst) == 1
            && (self.0.has(flag::ORPHAN) || self.0.is(State::Over))
        {
            bury_orphan(self.0, self.1);
            socket::recycle(self.0);
        }
    }
}
