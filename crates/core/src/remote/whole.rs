//! Connections that wait for whole rings: those that have filled small ones, where there is no
//! memory for more at one of the two ends. They are on TCP meanwhile (`docs/design/rings.md`).

use super::{Remote, Theirs};
use crate::sys;
use crate::tuple_table::Key;
use alloc::vec::Vec;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;
use netacc_rdma::arena::Rings;

/// Whole rings are tried for again after so long, doubled up to a minute.
const AGAIN_NS: u64 = 1_000_000_000;
const AGAIN_DOUBLED: u8 = 6;
const AGAIN_MAX_NS: u64 = 60_000_000_000;

impl Remote {
    /// A slot for a connection, and its rings.
    pub(super) fn room_for(
        &mut self,
        i: usize,
        theirs: &Theirs,
    ) -> Result<(usize, Rings<super::net::Net>), Reason> {
        let slot = self.free_slot(i).ok_or(Reason::ChannelFull)?;
        let rings = if theirs.has_less && !theirs.fills {
            self.take_rings_of(i, self.ring_sizes(i).small)
        } else {
            self.take_rings(i, theirs.fills)
        };
        rings.map(|rings| (slot, rings))
    }

    /// Its connector has no memory for whole rings: it is offered small ones; if it fills those, it
    /// waits.
    pub(super) fn offer_less(&mut self, tuple: Tuple, theirs: Theirs) {
        self.add_candidate(tuple, Theirs { has_less: true, ..theirs });
        match self.candidates.find(&tuple, |t| t.fills) {
            Some(candidate) => self.wait_for_whole(candidate),
            None => self.agree(tuple),
        }
    }

    /// It is offered whole rings after a while.
    pub(super) fn wait_for_whole(&mut self, candidate: Key) {
        let Some(theirs) = self.candidates.get_mut(candidate) else { return };
        let pause = (AGAIN_NS << theirs.tries.min(AGAIN_DOUBLED)).min(AGAIN_MAX_NS);
        theirs.tries = theirs.tries.saturating_add(1);
        let at = sys::now_ns().saturating_add(pause);
        theirs.again_at = at;
        if self.whole_at == 0 || at < self.whole_at {
            self.whole_at = at;
        }
        self.at(at);
    }

    /// Whose time has come is offered whole rings, if there are any now.
    pub(super) fn time_whole(&mut self) {
        let now = sys::now_ns();
        if self.whole_at == 0 || now < self.whole_at {
            let at = self.whole_at;
            return if at != 0 {
                self.at(at)
            };
        }
        self.whole_at = 0;
        let mut due: Vec<Tuple> = Vec::new();
        for (_, tuple, theirs) in self.candidates.iter() {
            let again_at = theirs.again_at;
            if again_at != 0 && again_at <= now && due.try_reserve(1).is_ok() {
                due.push(*tuple);
            } else if again_at != 0 && (self.whole_at == 0 || again_at < self.whole_at) {
                self.whole_at = again_at;
            }
        }
        due.into_iter().for_each(|tuple| self.agree(tuple));
        let at = self.whole_at;
        if at != 0 {
            self.at(at);
        }
    }
}
