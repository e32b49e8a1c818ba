//! What is under way on a connection, and keeps a close meanwhile from taking it apart.

use super::last_close::bury_orphan;
use crate::socket;
use crate::socket::{Socket, State, flag};
use core::sync::atomic::Ordering::*;

/// Something that is under way, a call that blocks or a pull-back: keeps the connection from being
/// taken apart by a close meanwhile.
pub(super) struct Blocking(pub(super) &'static Socket, pub(super) u16);

impl Blocking {
    pub(super) fn new(s: &'static Socket, generation: u16) -> Blocking {
        s.waiters.fetch_add(1, SeqCst);
        Blocking(s, generation)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        if self.0.waiters.fetch_sub(1, SeqCst) == 1
            && (self.0.has(flag::ORPHAN) || self.0.is(State::Over))
        {
            bury_orphan(self.0, self.1);
            socket::recycle(self.0);
        }
    }
}
