//! How long a link has been silent on which something is under way (what that means: `silence.rs`).

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
    pub(super) look_at: u64,
}

impl Unheard {
    /// Something is about to be under way. True: nothing was.
    pub(super) fn begin(&mut self, now: u64) -> bool {
        let begins = self.look_at == 0;
        if begins {
            *self = Unheard { since: now, look_at: now + SILENT_NS };
        }
        begins
    }

    /// `heard_at`: when the peer's kernel last acknowledged something. True: too long ago.
    pub(super) fn is_silent(&mut self, now: u64, is_under_way: bool, heard_at: u64) -> bool {
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
