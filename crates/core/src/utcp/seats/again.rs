//! When a connection is looked at again for which nothing else happens: after a time or, on its way
//! back, when the kernel has room for its bytes.

use super::Owned;
use crate::sys;
use crate::utcp::FULL;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;

/// It is tried again after so long, whatever the kernel says.
const TRIED_NS: u64 = 1_000_000_000;
/// Where the kernel says that it has room, and takes nothing (it lacks memory).
const IN_VAIN_NS: u64 = 50_000_000;

/// How one stands with its carrier's room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Room {
    /// It is not asked for.
    #[default]
    Unasked,
    Awaited,
    /// There is some, the kernel has said.
    Said,
}

impl Room {
    /// How it stands with one that has no room still. `went`: some bytes have gone.
    fn behind(self, went: bool) -> Room {
        if self == Room::Said && !went { Room::Unasked } else { Room::Awaited }
    }
}

impl Owned {
    pub(super) fn again(&mut self, slot: usize, after_ns: u64) {
        let at = sys::now_ns().saturating_add(after_ns);
        if let Some(seated) = self.seats.get_mut(slot) {
            seated.again_at = at;
            if self.again_at == 0 || at < self.again_at {
                self.again_at = at;
            }
        }
    }

    /// The carriers of those that wait for room, by their slots.
    pub(in crate::utcp) fn full(&self) -> impl Iterator<Item = (usize, c_int)> {
        let waits = self.seats.iter().enumerate().filter(|(_, s)| s.room == Room::Awaited);
        waits.filter_map(|(slot, s)| Some((slot, s.socket?.fd.load(Acquire))))
    }

    /// One has some, as the kernel says.
    pub(in crate::utcp) fn hear_room(&mut self, slot: usize) {
        if let Some(seated) = self.seats.get_mut(slot) {
            seated.room = Room::Said;
        }
        self.again(slot, 0);
    }

    /// One has no room, which stood so `before` it was looked at.
    pub(super) fn await_room(&mut self, slot: usize, before: Room, went: bool) {
        let room = before.behind(went);
        if let Some(seated) = self.seats.get_mut(slot) {
            seated.room = room;
        }
        // (Of more than there are places for some are not heard.)
        let all_heard = self.full().count() <= FULL;
        let waits = room == Room::Awaited && all_heard;
        self.again(slot, if waits { TRIED_NS } else { IN_VAIN_NS });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hears_of_room_in_vain_does_not_ask_at_once_again() {
        let rows = [
            (Room::Unasked, false, Room::Awaited),
            (Room::Awaited, false, Room::Awaited),
            (Room::Said, true, Room::Awaited),
            (Room::Said, false, Room::Unasked),
        ];
        for (before, went, then) in rows {
            assert_eq!(before.behind(went), then, "{before:?} {went}");
        }
    }
}
