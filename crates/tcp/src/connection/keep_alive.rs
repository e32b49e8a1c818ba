//! SO_KEEPALIVE (RFC 9293, 3.8.4): whether the peer is still there, when nobody says anything.

use super::Reason;
use super::parameters::KeepAlive;
use crate::Nanos;

#[derive(Debug)]
pub(super) struct Idle {
    wanted: Option<KeepAlive>,
    heard_at: Nanos,
    /// Probes since then, and when the last one went out.
    probes: u32,
    probed_at: Nanos,
    due: bool,
}

impl Idle {
    pub(super) const fn new(now: Nanos, wanted: Option<KeepAlive>) -> Self {
        Self { wanted, heard_at: now, probes: 0, probed_at: now, due: false }
    }

    pub(super) const fn set(&mut self, wanted: Option<KeepAlive>) {
        self.wanted = wanted;
        self.due = false;
        self.probes = 0;
    }

    /// The peer is there.
    pub(super) const fn on_heard(&mut self, now: Nanos) {
        self.heard_at = now;
        self.probes = 0;
        self.due = false;
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        let wanted = self.wanted.filter(|_| !self.due)?;
        Some(match self.probes {
            0 => self.heard_at.saturating_add(wanted.idle),
            _ => self.probed_at.saturating_add(wanted.interval),
        })
    }

    pub(super) fn on_timer(&mut self, now: Nanos) -> Option<Reason> {
        let wanted = self.wanted?;
        if self.next_timer().is_some_and(|at| at <= now) {
            if self.probes >= wanted.count {
                return Some(Reason::KeepAlive);
            }
            self.probes += 1;
            self.probed_at = now;
            self.due = true;
        }
        None
    }

    pub(super) const fn take_probe(&mut self) -> bool {
        core::mem::replace(&mut self.due, false)
    }
}
