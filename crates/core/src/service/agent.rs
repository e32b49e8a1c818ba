//! What the rest of the core calls.

use super::SERVICE;
use crate::agent::{Agent, HostAgent};
use crate::channel::Channel;
use crate::socket::{Socket, flag};
use core::net::SocketAddr;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;

/// The agent of connections within the host.
struct Here;
pub(crate) static AGENT: &dyn HostAgent = &Here;

impl Agent for Here {
    fn serves(&self, _: &Tuple) -> Result<(), Reason> {
        Ok(())
    }
    fn accepting(&self, local: SocketAddr) {
        SERVICE.accepting(local.port());
    }
    fn listener_closed(&self) {
        SERVICE.listener_closed();
    }
    fn note(&self, s: &'static Socket, generation: u16) -> bool {
        if s.has(flag::HEIR) && !s.has(flag::CONNECTOR) {
            // Accepted by another process: it is this one that the peer has to find.
            SERVICE.accepting(s.tuple().local_port());
        }
        SERVICE.note(s, generation)
    }
    fn closing(&self, s: &'static Socket) {
        SERVICE.closing(s);
    }
    fn released(&self, channel: &'static Channel, slot: usize) {
        SERVICE.released(channel, slot);
    }
}

impl HostAgent for Here {
    fn is_running(&self) -> bool {
        SERVICE.is_running()
    }
    fn connected(&self, s: &'static Socket, answered: bool) -> bool {
        SERVICE.connected(s, answered)
    }
    fn sending(&self, s: &'static Socket) -> bool {
        SERVICE.sending(s)
    }
    fn look_again(&self, s: &'static Socket, generation: u16) -> bool {
        SERVICE.look_again(s, generation)
    }
    fn forget(&self, s: &'static Socket) {
        SERVICE.closing(s);
    }
    fn renamed(&self, s: &Socket) {
        if s.has(flag::NOTED) && SERVICE.is_running() {
            let _ = SERVICE.with(|_| ());
        }
    }
    fn last_look(&self, s: &Socket) {
        if s.has(flag::NOTED) && SERVICE.is_running() {
            let _ = SERVICE.with(|state| state.end_proofs_at_last(s));
        }
    }
    fn end_proof(&self, s: &Socket) {
        if s.has(flag::NOTED) && SERVICE.is_running() {
            let _ = SERVICE.with(|state| state.end_proofs_of(s));
        }
    }
    fn attached_late(&self, channel: &Channel) {
        SERVICE.attached_late(channel);
    }
    fn accuse(&self, channel: &Channel) {
        SERVICE.accuse(channel);
    }
    fn held_until(&self, time: u64) {
        if SERVICE.look_at(time) {
            SERVICE.wake();
        }
    }
    fn watch_at(&self, time: u64) {
        SERVICE.watch_at.store(time, SeqCst);
        SERVICE.wake();
    }
}
