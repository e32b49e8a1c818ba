//! Asks the peer whether what was posted on a pair has arrived, and gives up pairs on which nothing
//! does. What an answer comes to: [`super::progress`].

use super::Remote;
use super::link::Fault;
use super::pair::{Pair, PairState};
use super::progress::Verdict;
use crate::log::warn_of_peer;
use crate::socket::{Socket, State};
use crate::{rdma_thread, stats, sys, trace};
use netacc_control::stats::{Counter, Reason};
use netacc_proto::rendezvous::Message;

/// The log hears of it at most so often.
const LOG_EVERY_NS: u64 = 60_000_000_000;

impl Remote {
    /// Something was posted; `at`: when to look, 0: nothing new.
    pub(super) fn watch_progress(&mut self, at: u64) {
        let looks = rdma_thread::stall_ns() != 0;
        if looks && at != 0 && (self.progress_at == 0 || at < self.progress_at) {
            self.progress_at = at;
            self.at(at);
        }
    }

    pub(super) fn time_progress(&mut self) {
        if self.progress_at != 0 && self.progress_at <= sys::now_ns() {
            rdma_thread::POSTED.begin_look();
            self.progress_at = 0;
            let mut waits = false;
            for i in 0..self.links.len() {
                waits |= self.ask_for_progress(i);
            }
            if waits {
                let at = rdma_thread::POSTED.look_again(rdma_thread::posted_ns());
                self.watch_progress(at);
            }
        }
        if self.progress_at != 0 {
            self.at(self.progress_at);
        }
    }

    /// Asks for each pair of the link on which something may be under way. True: there are some.
    fn ask_for_progress(&mut self, i: usize) -> bool {
        let now = sys::now_ns();
        let mut waits = false;
        let mut at = 0;
        while let Some(l) = self.link_mut(i).filter(|l| l.is_up()) {
            let Some(p) = l.pairs.get_mut(at) else { break };
            at += 1;
            let Some(engine) = p.engine.as_ref().filter(|_| p.state == PairState::Ready) else {
                continue;
            };
            let (sent, granted) = (engine.sent(), engine.granted());
            if p.progress.is_done(sent, granted) {
                continue;
            }
            waits = true;
            if !p.progress.moves(now, sent) && p.progress.asks(now, sent) {
                let pair = p.number;
                self.send(i, Message::PairAsk { pair });
            }
        }
        waits
    }

    /// Has a small frame leave that the peer answers, unless one is under way: the question after a
    /// pair, which may be asked at any time.
    pub(super) fn ask_anything(&mut self, i: usize) {
        let now = sys::now_ns();
        let Some(l) = self.link_mut(i).filter(|l| l.is_up()) else { return };
        let ready = l.pairs.iter_mut().find(|p| p.state == PairState::Ready);
        let Some(p) = ready else { return };
        let Some(sent) = p.engine.as_ref().map(|engine| engine.sent()) else { return };
        if p.progress.asks(now, sent) {
            let pair = p.number;
            self.send(i, Message::PairAsk { pair });
        }
    }

    /// The peer wants to know how many of its messages have come.
    pub(super) fn on_pair_ask(&mut self, i: usize, number: u32) {
        let Some(p) = self.link(i).and_then(|l| l.pair(number)) else { return };
        let (PairState::Ready, Some(engine), Some((queue, _))) =
            (p.state, p.engine.as_ref(), p.seat)
        else {
            return;
        };
        // (Without a limit, as all that this thread does to a queue: who has its lock is a thread
        // of this process's, in a section, with bounded work. A count that leaves out what lies
        // there would have the peer give the pair up.)
        queue.drain();
        let messages = engine.has_come();
        self.send(i, Message::PairHas { pair: number, messages });
    }

    pub(super) fn on_pair_has(
        &mut self,
        i: usize,
        number: u32,
        messages: u32,
    ) -> Result<(), Fault> {
        let now = sys::now_ns();
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        let to = l.peer;
        let Some(p) = l.pair_mut(number).filter(|p| p.state == PairState::Ready) else {
            return Ok(());
        };
        let Some(sent) = p.engine.as_ref().map(|engine| engine.sent()) else { return Ok(()) };
        let stall_ns = rdma_thread::stall_ns();
        match p.progress.hears(now, messages, sent, stall_ns) {
            Verdict::Moves => Ok(()),
            Verdict::Impossible => Err(Fault::Malformed),
            Verdict::Stalled => {
                if self.stall_logged_at == 0
                    || now.saturating_sub(self.stall_logged_at) > LOG_EVERY_NS
                {
                    self.stall_logged_at = now;
                    warn_of_peer!(
                        "nothing has arrived at {to} by RDMA for {} ms, and no device says so: connections go on over TCP",
                        stall_ns / 1_000_000
                    );
                }
                self.lose_stalled(i, number, stall_ns);
                Ok(())
            }
        }
    }

    /// What is on a pair that stands still is traced.
    fn trace_stall(&self, i: usize, number: u32, stall_ns: u64) {
        let Some(l) = self.link(i).filter(|_| trace::slow::bound_ns().is_some()) else { return };
        let Some((channel, pair)) = l.channel.zip(l.pair(number)) else { return };
        for slot in pair.places.slots() {
            if let Some(s) = Socket::on(channel, slot).filter(|s| s.is(State::Attached)) {
                s.trace(trace::Event::Slow, trace::slow::what(trace::Slow::Rdma, stall_ns));
            }
        }
    }

    /// Nothing arrives on a pair; nor, so it seems, on some others of the link. (A busy peer's
    /// answers of these may come much later.)
    fn lose_stalled(&mut self, i: usize, number: u32, stall_ns: u64) {
        let now = sys::now_ns();
        let mut next = Some(number);
        while let Some(number) = next {
            stats::count(Counter::RdmaPairsStalled);
            self.trace_stall(i, number, stall_ns);
            self.lose_pair(i, number, Reason::RdmaLost, true);
            let stands =
                |p: &&Pair| p.state == PairState::Ready && p.progress.stands_as_well(now, stall_ns);
            next = self.link(i).and_then(|l| l.pairs.iter().find(stands)).map(|p| p.number);
        }
    }
}
