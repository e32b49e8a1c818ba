//! Where a connection's time stamp was told, and not shown: whoever answers at that port is told
//! the next one after a while. So a squatter takes few connections from those by which the true
//! server can show itself.

use alloc::vec::Vec;

/// Link ports of one place.
pub(super) const PORTS: usize = 32;

/// After the first time; doubled with each up to that.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_MAX_NS: u64 = 300_000_000_000;

/// Of one place: each of its link ports by itself, as who has another port may be another user.
#[derive(Default)]
pub(super) struct Vain {
    ports: [Port; PORTS],
    /// The ports of this end's connections there of which a stamp was told, and not shown: sorted.
    /// (A kernel that hashes the ports gives the next connection from one the same offset.)
    told: Vec<u16>,
}

#[derive(Clone, Copy, Default)]
struct Port {
    until: u64,
    /// How often in a row.
    times: u8,
}

impl Vain {
    /// Who answers at port `k` has not shown what it was told.
    pub(super) fn add(&mut self, k: u8, now: u64) {
        let Some(port) = self.ports.get_mut(usize::from(k)) else { return };
        let pause = (PAUSE_NS << port.times.min(9)).min(PAUSE_MAX_NS);
        *port = Port { until: now.saturating_add(pause), times: port.times.saturating_add(1) };
    }

    /// Who answers there has shown what it was told of a connection from that port of ours.
    pub(super) fn shown(&mut self, k: u8, from: u16) {
        if let Some(port) = self.ports.get_mut(usize::from(k)) {
            *port = Port::default();
        }
        if let Ok(at) = self.told.binary_search(&from) {
            self.told.remove(at);
        }
    }

    /// The stamp of a connection from that port is told, if no earlier one's was, in vain.
    pub(super) fn tells(&mut self, from: u16) -> bool {
        match self.told.binary_search(&from) {
            // (Without memory, nothing is told.)
            Err(at) if self.told.try_reserve(1).is_ok() => {
                self.told.insert(at, from);
                true
            }
            _ => false,
        }
    }

    /// When who answers there may be told the next one, if that is not now.
    pub(super) fn later(&self, k: u8, now: u64) -> Option<u64> {
        let until = self.ports.get(usize::from(k)).map(|port| port.until);
        until.filter(|until| now < *until)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_a_ports_own_and_double_until_it_has_shown_something() {
        let mut vain = Vain::default();
        let mut now = 7;
        assert_eq!(vain.later(0, now), None);
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            vain.add(3, now);
            let until = vain.later(3, now).unwrap();
            assert_eq!((until - now, vain.later(0, now)), (seconds * 1_000_000_000, None));
            assert_eq!((vain.later(3, until - 1), vain.later(3, until)), (Some(until), None));
            now = until;
        }
        // Another one's is as if there were no other, and shows nothing of this one.
        vain.add(31, now);
        assert_eq!((vain.later(31, now), vain.later(3, now)), (Some(now + PAUSE_NS), None));
        vain.add(3, now);
        assert_eq!(vain.later(31, now), Some(now + PAUSE_NS));
        vain.shown(31, 0);
        assert_eq!(vain.later(31, now), None);
        assert_eq!(vain.later(3, now), Some(now + PAUSE_MAX_NS));
        vain.shown(3, 0);
        assert_eq!(vain.later(3, now), None);
        vain.add(3, now);
        assert_eq!(vain.later(3, now), Some(now + PAUSE_NS));
    }

    #[test]
    fn of_a_port_a_stamp_is_told_once_until_it_is_shown() {
        let mut vain = Vain::default();
        let ports = [70, u16::MAX, 3, 0];
        assert!(ports.iter().all(|port| vain.tells(*port)));
        assert!(!ports.iter().any(|port| vain.tells(*port)));
        vain.shown(0, 3);
        vain.shown(0, 4);
        assert_eq!(ports.map(|port| vain.tells(port)), [false, false, true, false]);
    }
}
