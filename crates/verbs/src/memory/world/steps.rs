//! What can happen next, and that it does.

use super::super::Order;
use super::{
    Frees, Message, NO_LISTENER, Payload, Phase, Refusal, STEPS_MAX, Send, Step, What, World,
};
use crate::fabric::{Failure, News, Outcome, PRIVATE_MAX, Private};
use alloc::vec::Vec;

impl World {
    /// What can happen next, in the order in which [`Order::Prompt`] does it.
    pub(in crate::memory) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut seen = Vec::new();
        for (to, message) in &self.messages {
            if !seen.contains(to) {
                seen.push(*to);
                if self.can_travel(*to, message) {
                    steps.push(Step::Message(*to));
                }
            }
        }
        for (number, p) in &self.pairs {
            if p.phase != Phase::Connected {
                continue;
            }
            let peer = p.peer.and_then(|peer| self.pairs.get(&peer));
            let Some(peer) = peer else { continue };
            let linked = self.connected(p.host) && self.connected(peer.host);
            let ready =
                |what: &What| matches!(what, What::Write { .. }) || !peer.receives.is_empty();
            if self.is_iwarp(p.host) {
                // The accepting end waits until it has heard of the other one.
                if p.sends.front().is_some() && (p.asked || p.heard) {
                    steps.push(Step::Take(*number));
                }
                // As siw: what comes before the accepting end is established lies there until more
                // comes.
                let noticed = !p.asleep || (peer.told && p.wire.len() > 1);
                let arrives = |first: &Payload| linked && !self.is_mute(p.host, first.bytes.len());
                if peer.phase == Phase::Connected && p.wire.front().is_some_and(arrives) && noticed
                {
                    steps.push(Step::Arrive(*number));
                }
                continue;
            }
            if !linked {
                continue;
            }
            if p.sends.front().is_some_and(|s| s.taken) && !self.is_mute(p.host, 0) {
                steps.push(Step::Acknowledge(*number));
            }
            let first = p.sends.iter().find(|s| !s.taken);
            let arrives = |s: &Send| ready(&s.what) && !self.is_mute(p.host, s.bytes());
            if first.is_some_and(arrives) && peer.phase == Phase::Connected {
                steps.push(Step::Take(*number));
            }
        }
        steps
    }

    pub(in crate::memory) fn can_travel(&self, to: u64, message: &Message) -> bool {
        let Some(p) = self.pairs.get(&to) else {
            return false;
        };
        match message {
            Message::Resolve => true,
            Message::Disconnected { from } => {
                *from == p.host || (self.is_up(*from) && self.is_up(p.host))
            }
            Message::Request { .. } => {
                let other = self.hosts.iter().position(|h| h.addresses.contains(&p.to.ip()));
                self.connected(p.host) && other.is_none_or(|o| self.connected(o))
            }
            _ => {
                let peer = p.peer.and_then(|peer| self.pairs.get(&peer));
                self.connected(p.host) && peer.is_none_or(|peer| self.connected(peer.host))
            }
        }
    }

    pub(in crate::memory) fn step(&mut self, step: Step) {
        match step {
            Step::Message(to) => {
                if let Some(at) = self.messages.iter().position(|(t, _)| *t == to) {
                    let (_, message) = self.messages.remove(at);
                    self.deliver(to, message);
                }
            }
            Step::Take(pair) if self.pairs.get(&pair).is_some_and(|p| self.is_iwarp(p.host)) => {
                self.send_off(pair);
            }
            Step::Take(pair) => self.take(pair),
            Step::Acknowledge(pair) => {
                let send = self.pairs.get_mut(&pair).and_then(|p| p.sends.pop_front());
                if let Some(send) = send {
                    self.succeed(pair, &send);
                }
            }
            Step::Arrive(pair) => self.arrive(pair),
        }
    }

    pub(in crate::memory) fn succeed(&mut self, pair: u64, send: &Send) {
        if send.signaled {
            let outcome = match send.what {
                What::Send { .. } => Outcome::Sent,
                _ => Outcome::Written,
            };
            self.complete(pair, send.id, outcome, Frees::Sends(send.number));
        }
    }

    /// InfiniBand: the first request that has had no effect has it.
    pub(in crate::memory) fn take(&mut self, pair: u64) {
        let Some(p) = self.pairs.get(&pair) else {
            return;
        };
        let (domain, peer) = (p.domain, p.peer);
        let (Some(peer), Some(index)) = (peer, p.sends.iter().position(|s| !s.taken)) else {
            return;
        };
        let Some(send) = p.sends.get(index) else {
            return;
        };
        let payload = self.bytes_of(domain, send).map(|bytes| Payload { what: send.what, bytes });
        let effect = payload.and_then(|payload| self.take_effect(peer, &payload));
        let why = match effect {
            Ok(()) => {
                let send = self.pairs.get_mut(&pair).and_then(|p| p.sends.get_mut(index));
                if let Some(send) = send {
                    send.taken = true;
                }
                return;
            }
            Err(Refusal::NotReady) => return,
            Err(Refusal::Local) => Failure::Local,
            Err(Refusal::Access) => {
                self.refused_by(peer);
                Failure::RemoteAccess
            }
            Err(Refusal::Length) => {
                self.refused_by(peer);
                Failure::RemoteOther
            }
        };
        // Those before it were acknowledged first.
        for _ in 0..index {
            self.step(Step::Acknowledge(pair));
        }
        self.fail_first(pair, why);
    }

    /// iWARP: the first request goes onto the wire, and is done as far as its sender can tell.
    pub(in crate::memory) fn send_off(&mut self, pair: u64) {
        let Some(p) = self.pairs.get(&pair) else {
            return;
        };
        let Some(send) = p.sends.front() else { return };
        match self.bytes_of(p.domain, send) {
            Ok(bytes) => {
                let what = send.what;
                let send = self.pairs.get_mut(&pair).and_then(|p| {
                    p.wire.push_back(Payload { what, bytes });
                    p.sends.pop_front()
                });
                if let Some(send) = send {
                    self.succeed(pair, &send);
                }
            }
            Err(_) => {
                self.hang_up(pair);
                self.fail_first(pair, Failure::Local);
            }
        }
    }

    /// iWARP: what is first on the wire arrives.
    pub(in crate::memory) fn arrive(&mut self, pair: u64) {
        let peer = self.pairs.get(&pair).and_then(|p| p.peer);
        let told = peer.and_then(|peer| self.pairs.get(&peer)).is_some_and(|peer| peer.told);
        let Some(p) = self.pairs.get_mut(&pair) else {
            return;
        };
        p.asleep = !told;
        if p.asleep {
            return;
        }
        let (Some(peer), Some(payload)) = (peer, p.wire.pop_front()) else {
            return;
        };
        if self.take_effect(peer, &payload).is_err() {
            // The receiver terminates the connection.
            self.hang_up(peer);
            self.refused_by(peer);
            self.break_pair(pair);
        }
    }

    pub(in crate::memory) fn deliver(&mut self, to: u64, message: Message) {
        let Some(p) = self.pairs.get_mut(&to) else {
            return;
        };
        match message {
            Message::Resolve => {
                let ip = p.to.ip();
                let known = self.hosts.iter().any(|h| h.addresses.contains(&ip));
                let Some(p) = self.pairs.get_mut(&to) else {
                    return;
                };
                if known {
                    p.phase = Phase::Resolved;
                    self.tell_pair(to, News::Resolved);
                } else {
                    let errno = libc::EHOSTUNREACH;
                    self.tell_pair(to, News::Unreachable { errno });
                }
            }
            Message::Request { private } => self.request(to, private),
            Message::Accepted { private } => {
                if p.phase != Phase::Connecting {
                    return;
                }
                p.phase = Phase::Connected;
                p.told = true;
                let (host, peer) = (p.host, p.peer);
                let private = self.padded(host, private);
                self.tell_pair(to, News::Established { private });
                if let Some(peer) = peer {
                    self.messages.push((peer, Message::Ready));
                }
            }
            Message::Ready => {
                p.told = true;
                let private = Private::new(&[]);
                self.tell_pair(to, News::Established { private });
            }
            Message::Rejected { private, reason } => {
                let host = p.host;
                p.peer = None;
                self.break_pair(to);
                let private = self.padded(host, private);
                self.tell_pair(to, News::Refused { reason, private });
            }
            Message::Disconnected { .. } => {
                let host = p.host;
                p.peer = None;
                // iWARP's pairs end with the TCP connection; InfiniBand's wait to be told.
                if self.is_iwarp(host) {
                    self.break_pair(to);
                }
                self.tell_pair(to, News::Disconnected);
            }
        }
    }

    /// InfiniBand's private data has a fixed length.
    pub(in crate::memory) fn padded(&self, host: usize, private: Private) -> Private {
        if self.is_iwarp(host) {
            return private;
        }
        let mut bytes = [0; PRIVATE_MAX];
        for (to, from) in bytes.iter_mut().zip(private.iter()) {
            *to = *from;
        }
        Private::new(&bytes)
    }

    pub(in crate::memory) fn request(&mut self, from: u64, private: Private) {
        let Some(p) = self.pairs.get(&from) else { return };
        let (to, host, class) = (p.to, p.host, p.class);
        let waiting = |at: u64| self.pairs.values().filter(|p| p.waits_at == Some(at)).count();
        let listener = self.listeners.iter().find(|(_, l)| l.address == to);
        let Some((number, l)) = listener.filter(|(number, l)| waiting(**number) < l.backlog.max(1))
        else {
            let message = Message::Rejected { private: Private::new(&[]), reason: NO_LISTENER };
            self.deliver(from, message);
            return;
        };
        let (number, there, manager, token) = (*number, l.host, l.manager, l.token);
        if self.is_iwarp(there) != self.is_iwarp(host) {
            self.tell_pair(from, News::Unreachable { errno: libc::EPROTO });
            return;
        }
        let pair = self.new_pair(there, manager, token, to);
        if let Some(p) = self.pairs.get_mut(&pair) {
            p.phase = Phase::Requested;
            p.class = class;
            p.peer = Some(from);
            p.waits_at = Some(number);
        }
        if let Some(p) = self.pairs.get_mut(&from) {
            p.peer = Some(pair);
        }
        let private = self.padded(there, private);
        self.tell(manager, token, News::Request { pair, private });
    }

    /// As many steps as the order has for a call.
    pub(in crate::memory) fn advance(&mut self) {
        if self.order == Order::Prompt {
            self.settle();
            return;
        }
        for _ in 0..self.draw(4) {
            if !self.draw_step() {
                break;
            }
        }
    }

    /// As [`advance`](Self::advance), for a poll: an armed queue is only said to be empty when
    /// nothing more can happen.
    pub(in crate::memory) fn advance_for(&mut self, queue: u64) {
        self.advance();
        let empty = |w: &Self| {
            (w.queues.get(&queue)).is_some_and(|q| q.entries.is_empty() && q.armed && !q.lost)
        };
        for _ in 0..STEPS_MAX {
            if !empty(self) || !self.draw_step() {
                break;
            }
        }
    }

    /// As [`advance`](Self::advance), for a look at the manager: there are only no news when
    /// nothing more can happen.
    pub(in crate::memory) fn advance_for_news(&mut self, manager: u64) {
        self.advance();
        let empty = |w: &Self| {
            let m = w.managers.get(&manager);
            m.is_some_and(|m| m.events.is_empty())
        };
        for _ in 0..STEPS_MAX {
            if !empty(self) || !self.draw_step() {
                break;
            }
        }
    }

    /// Does one of the possible steps. False: there is none.
    pub(in crate::memory) fn draw_step(&mut self) -> bool {
        let steps = self.steps();
        let index = self.draw(steps.len());
        match steps.get(index) {
            Some(step) => {
                self.step(*step);
                true
            }
            None => false,
        }
    }

    pub(in crate::memory) fn settle(&mut self) -> bool {
        for _ in 0..STEPS_MAX {
            let done = match self.order {
                Order::Prompt => match self.steps().first() {
                    Some(step) => {
                        self.step(*step);
                        false
                    }
                    None => true,
                },
                Order::Shuffled(_) => !self.draw_step(),
            };
            if done {
                return true;
            }
        }
        false
    }

    pub(in crate::memory) fn time_out(&mut self) {
        self.settle();
        let all: Vec<u64> = self.pairs.keys().copied().collect();
        for number in all {
            let Some(p) = self.pairs.get(&number) else {
                continue;
            };
            if !self.hosts.get(p.host).is_some_and(|h| h.alive && h.on) {
                continue;
            }
            let peer = p.peer.and_then(|peer| self.pairs.get(&peer));
            let reachable = self.connected(p.host)
                && peer.is_some_and(|o| self.connected(o.host) && o.phase == Phase::Connected);
            match p.phase {
                Phase::Connecting => {
                    if let Some(p) = self.pairs.get_mut(&number) {
                        p.phase = Phase::Broken;
                    }
                    self.messages.retain(|(to, _)| *to != number);
                    let errno = libc::ETIMEDOUT;
                    self.tell_pair(number, News::Unreachable { errno });
                }
                Phase::Connected if !p.asked && !p.told && !reachable => {
                    self.break_pair(number);
                    let errno = libc::ETIMEDOUT;
                    self.tell_pair(number, News::Unreachable { errno });
                }
                Phase::Connected if self.is_iwarp(p.host) && !p.wire.is_empty() && !reachable => {
                    self.hang_up(number);
                    self.break_pair(number);
                }
                Phase::Connected if !self.is_iwarp(p.host) && !p.sends.is_empty() && !reachable => {
                    self.fail_first(number, Failure::Unreachable);
                }
                _ => {}
            }
        }
        self.settle();
    }
}
