//! The agent of shared memory: what the rest of the core calls.

use super::{SERVICE, search};
use crate::agent::{Agent, Ending, Noted, Used};
use crate::candidates::is_on_this_host;
use crate::channel::Channel;
use crate::socket::{Socket, flag};
use crate::{config, io};
use core::net::SocketAddr;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;

struct Here;
pub(crate) static AGENT: &dyn Agent = &Here;

impl Agent for Here {
    fn serves(&self, tuple: &Tuple) -> Result<(), Reason> {
        if is_on_this_host(tuple) { Ok(()) } else { Err(Reason::PeerRemote) }
    }
    fn accepting(&self, local: SocketAddr) -> bool {
        SERVICE.accepting(local.port())
    }
    fn began(&self, s: &'static Socket) {
        if !config::get().tcp_first && SERVICE.connected(s, false) {
            // (The listener may not have accepted anything yet, and be unknown for that: asked
            // again after its first answer; with NACC_CONN_TCP_FIRST=1 only then.)
            s.raise(flag::FOUND);
        }
    }
    fn used(&self, s: &'static Socket, call: &Used) -> Noted {
        search::on_call(s, call)
    }
    fn expect(&self, s: &'static Socket, generation: u16) {
        search::note(s, generation);
    }
    fn forget(&self, s: &'static Socket) {
        SERVICE.closing(s);
    }
    fn listener_closed(&self) {
        SERVICE.listener_closed();
    }
    /// What goes out again over the carriers is sent: nobody would go on with it.
    fn finish(&self, ending: Ending) {
        SERVICE.pulls.finish(ending.limit_ns);
    }
    fn attached(&self, channel: &Channel) {
        if channel.dead.load(SeqCst) != 0 {
            SERVICE.attached_late(channel);
        }
    }
    fn joined(&self, channel: &Channel) {
        channel.users.fetch_add(1, AcqRel);
    }
    fn left(&self, channel: &Channel) {
        if channel.users.fetch_sub(1, AcqRel) == 1 && channel.dead.load(Acquire) != 0 {
            SERVICE.clear_away();
        }
    }
    fn accuse(&self, channel: &Channel) {
        SERVICE.accuse(channel);
    }
    fn before_fin(&self, channel: &Channel, slot: usize) {
        let is_due = SERVICE.pulls.serve_before_fin(|| io::serve_pull_back(channel, slot));
        if is_due && !(SERVICE.is_running() && SERVICE.wake()) {
            SERVICE.pulls.give_up();
        }
    }
    fn released(&self, channel: &'static Channel, slot: usize) {
        SERVICE.released(channel, slot);
    }
    fn is_running(&self) -> bool {
        SERVICE.is_running()
    }
    fn hold_until(&self, time: u64) {
        if SERVICE.look_at(time) {
            SERVICE.wake();
        }
    }
    fn watch_at(&self, time: u64) {
        SERVICE.watch_at.store(time, SeqCst);
        SERVICE.wake();
    }
    fn take_requests(&self) {
        SERVICE.ensure_started();
    }
    fn sweep_at(&self, time: fn() -> u64) {
        // (Who is woken too early looks in vain; too late it never is, as what is kept grows older
        // in order.)
        if SERVICE.sweep_at.load(SeqCst) != 0 {
            return;
        }
        let time = time();
        if SERVICE.sweep_at.compare_exchange(0, time, SeqCst, Relaxed).is_ok() && time != 0 {
            SERVICE.wake();
        }
    }
    fn in_child(&self, _parent: u32) {
        // The thread, the adverts and the agreements are the parent's.
        SERVICE.after_fork_in_child();
    }
    fn give_up_inherited(&self) {
        SERVICE.give_up_inherited();
    }
    fn renamed(&self, s: &Socket) {
        if s.has(flag::NOTED) && SERVICE.is_running() {
            // Behind whatever the thread does with the old one.
            let _ = SERVICE.with(|_| ());
        }
    }
    fn leave_carrier(&self, s: &Socket, closes: bool) {
        if s.has(flag::NOTED) && SERVICE.is_running() {
            let _ = SERVICE.with(|state| match closes {
                true => state.end_proofs_at_last(s),
                false => state.end_proofs_of(s),
            });
        }
    }
}
