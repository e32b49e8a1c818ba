//! A host that has vanished.
//!
//! First, seen by a link on which something is under way. The kernel would send it again for a
//! quarter of an hour; TCP_USER_TIMEOUT would also end a link whose peer has no room for it,
//! because its process is stopped. So this end looks whether the peer's kernel has acknowledged
//! anything, old or new.
//!
//! Then by connections that need it: they are on their way back to their carriers, and cannot get
//! there without a word of the peer's, while its link is broken.
//!
//! The kernel does not end them. What the application has sent is in a ring, so its carrier is
//! idle, and an idle TCP connection waits for ever. So this end has TCP's patience for it: the
//! carrier's TCP_USER_TIMEOUT, or as long as the kernel sends again by default. Then the connection
//! fails as TCP's would, with ETIMEDOUT.

use super::Remote;
use super::links::Fault;
use crate::channel::{Channel, announce};
use crate::log::debug_log;
use crate::socket::{Socket, State, flag};
use crate::wire::{Wire, parting};
use crate::{carrier, sys};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

/// What `tcp_retries2` comes to as the kernel has it (15).
pub(super) const PATIENCE_NS: u64 = 925_000_000_000;

/// And the least: a host that is there has answered by then (the link is tried every five seconds).
const LEAST_NS: u64 = 10_000_000_000;

/// A link on which something is under way, and of which nothing is heard for so long, is broken;
/// and how often that is looked at.
const SILENT_NS: u64 = 45_000_000_000;
const LOOK_NS: u64 = SILENT_NS / 3;

/// What a link that is up has said, and its peer's kernel perhaps not heard.
#[derive(Default)]
pub(super) struct Unheard {
    /// Since when something has been under way, and nothing was acknowledged.
    since: u64,
    /// When to look; 0: nothing is under way.
    look_at: u64,
}

impl Unheard {
    /// Something is about to be under way. True: nothing was.
    fn begin(&mut self, now: u64) -> bool {
        let begins = self.look_at == 0;
        if begins {
            *self = Unheard { since: now, look_at: now + SILENT_NS };
        }
        begins
    }

    /// `heard_at`: when the peer's kernel last acknowledged something. True: too long ago.
    fn is_silent(&mut self, now: u64, is_under_way: bool, heard_at: u64) -> bool {
        if !is_under_way {
            *self = Unheard::default();
            return false;
        }
        if heard_at > self.since {
            // From here on, at least.
            self.since = now;
        }
        self.look_at = now + LOOK_NS;
        now.saturating_sub(self.since) >= SILENT_NS
    }
}

/// Something is to reach the peer that may not have: bytes, an end, or where the stream goes on.
fn awaits_peer(channel: &Channel, wire: &Wire, slot: usize, s: &Socket) -> bool {
    let words = channel.words(slot, channel.side);
    let said = words.producer_user[announce::EPOCH].load(Acquire) as u32;
    s.is(State::Attached)
        && (words.tail.load(Acquire) != words.head.load(Acquire)
            || said != wire.slot(slot).seen_epoch.load(Acquire)
            || s.has(flag::SHUT_WR | flag::ORPHAN))
}

impl Remote {
    /// Something was written to a link.
    pub(super) fn listen_for_answer(&mut self, i: usize) {
        let Some(l) = self.link_mut(i).filter(|l| l.is_up()) else { return };
        if l.unheard.look_at == 0 && l.unheard.begin(sys::now_ns()) {
            let at = l.unheard.look_at;
            self.at(at);
        }
    }

    /// A link that is up: whether its peer's kernel still hears what is said.
    pub(super) fn time_unheard(&mut self, i: usize, now: u64) {
        let Some(l) = self.link_mut(i) else { return };
        if l.unheard.look_at != 0 && l.unheard.look_at <= now {
            let is_under_way = !l.output.is_empty() || carrier::is_under_way(l.fd);
            let heard_at = now.saturating_sub(carrier::unanswered_ns(l.fd));
            if l.unheard.is_silent(now, is_under_way, heard_at) {
                return self.end_link(i, Fault::Ended);
            }
        }
        let at = l.unheard.look_at;
        if at != 0 {
            self.at(at);
        }
    }

    /// While a link is broken: those that have waited long enough are given up.
    pub(super) fn time_out_unheard(&mut self, i: usize, now: u64) {
        let Some(l) = self.link(i) else { return };
        let Some((channel, wire)) = l.channel.zip(l.wire()) else { return };
        // (A host that answers is there; its process may be stopped. TCP would wait.)
        let heard_at = if l.is_at_its_door() { now } else { l.answered_at };
        let (serial, silent_since) = (l.serial, l.broken_at.max(heard_at));
        let answers = l.is_at_its_door();
        let mut late = Vec::new();
        for x in self.leaving.iter_mut().filter(|x| x.link == i && x.serial == serial) {
            if !awaits_peer(channel, wire, x.slot, x.departure.socket()) {
                x.unheard_since = 0;
                x.probes.stop(x.departure.socket());
                continue;
            }
            if !answers {
                x.probes.ask(now, x.departure.socket());
            }
            if x.unheard_since == 0 {
                x.unheard_since = now;
            }
            if x.probes.is_under_way() {
                // (What the application has set is another limit's just now.)
                continue;
            }
            let patience = x.departure.user_timeout_ns().unwrap_or(PATIENCE_NS).max(LEAST_NS);
            if now.saturating_sub(x.unheard_since.max(silent_since)) > patience {
                x.departure.times_out();
                late.push(x.slot);
            }
        }
        for slot in late {
            debug_log!("slot {slot}: nothing is heard of the peer's host");
            wire.slot(slot).leave.fetch_or(parting::GONE, SeqCst);
            self.step(i, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_link_is_silent_when_nothing_was_acknowledged_for_so_long() {
        let mut u = Unheard::default();
        assert!(u.begin(100 * S) && !u.begin(101 * S));
        assert_eq!(u.look_at, 145 * S);
        // Heard of long before, and not since.
        assert!(u.is_silent(145 * S, true, 50 * S));
    }

    #[test]
    fn a_peer_without_room_whose_kernel_answers_is_not_silent() {
        let mut u = Unheard::default();
        assert!(u.begin(100 * S));
        for now in (145..10_000).step_by(15) {
            assert!(!u.is_silent(now * S, true, now * S), "{now}");
            assert_eq!(u.look_at, (now + 15) * S);
        }
        // Then it vanishes: a probe is not answered, and the one before was long ago.
        let silent = (10_000..10_100).step_by(15).find(|now| u.is_silent(now * S, true, 9_900 * S));
        assert!((10_030..=10_060).contains(&silent.unwrap_or(0)), "{silent:?}");
    }

    #[test]
    fn what_was_acknowledged_ends_the_look() {
        let mut u = Unheard::default();
        assert!(u.begin(100 * S));
        assert!(!u.is_silent(145 * S, false, 100 * S));
        assert_eq!(u.look_at, 0);
        assert!(u.begin(1000 * S), "and what is said later begins one");
        // What is under way at the look was sent just before.
        assert!(!u.is_silent(1045 * S, true, 1044 * S));
        assert!(!u.is_silent(1060 * S, true, 1044 * S));
        assert!(!u.is_silent(1075 * S, true, 1044 * S));
        assert!(u.is_silent(1090 * S, true, 1044 * S));
    }
}
