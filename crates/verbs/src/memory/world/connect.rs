//! How pairs come to be connected, and how that ends.

use super::{CONSUMER, Frees, Message, Pair, Phase, Result, World};
use crate::fabric::{Capacity, Failure, News, Outcome, Private};
use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};

impl World {
    pub(in crate::memory) fn pair(&mut self, pair: u64) -> Result<&mut Pair> {
        self.pairs.get_mut(&pair).ok_or(libc::EINVAL)
    }

    pub(in crate::memory) fn new_pair(
        &mut self,
        host: usize,
        manager: u64,
        token: u64,
        to: SocketAddr,
    ) -> u64 {
        let number = self.number();
        self.pairs.insert(
            number,
            Pair {
                host,
                manager,
                token,
                phase: Phase::Resolving,
                to,
                class: 0,
                peer: None,
                asked: false,
                waits_at: None,
                domain: None,
                queue: None,
                capacity: Capacity { sends: 0, receives: 0, inline_bytes: 0 },
                sends: VecDeque::new(),
                wire: VecDeque::new(),
                asleep: false,
                heard: false,
                receives: VecDeque::new(),
                posted: 0,
                freed: 0,
                receives_used: 0,
                told: false,
            },
        );
        number
    }

    pub(in crate::memory) fn resolve(
        &mut self,
        host: usize,
        manager: u64,
        from: IpAddr,
        to: SocketAddr,
        token: u64,
    ) -> Result<u64> {
        let h = self.hosts.get(host).ok_or(libc::ENODEV)?;
        if !h.device || !h.addresses.contains(&from) {
            return Err(libc::ENODEV);
        }
        let number = self.new_pair(host, manager, token, to);
        self.pair(number)?.asked = true;
        self.messages.push((number, Message::Resolve));
        Ok(number)
    }

    pub(in crate::memory) fn set_token(&mut self, pair: u64, token: u64) {
        if let Some(p) = self.pairs.get_mut(&pair) {
            p.token = token;
        }
    }

    /// Too late once it has its queues. (With verbs once the news of its way has been taken.)
    pub(in crate::memory) fn set_class(&mut self, pair: u64, class: u8) -> Result<()> {
        let p = self.pair(pair)?;
        if !matches!(p.phase, Phase::Resolving | Phase::Resolved) || p.queue.is_some() {
            return Err(libc::EINVAL);
        }
        p.class = class;
        Ok(())
    }

    pub(in crate::memory) fn create(
        &mut self,
        pair: u64,
        domain: u64,
        queue: u64,
        capacity: Capacity,
    ) -> Result<Capacity> {
        let device = *self.domains.get(&domain).ok_or(libc::EINVAL)?;
        let model = self.host_of(device)?.model;
        let same_host = self.is_on(device, pair);
        let same_device = self.queues.get(&queue).is_some_and(|q| q.device == device);
        let host = self.pair(pair)?.host;
        let created = |p: &&Pair| p.host == host && p.queue.is_some();
        let on_host = self.pairs.values().filter(created).count();
        let p = self.pair(pair)?;
        if !same_host {
            return Err(libc::EXDEV);
        }
        let early_or_late = !matches!(p.phase, Phase::Resolved | Phase::Requested);
        let depth = capacity.sends.max(capacity.receives);
        if early_or_late
            || !same_device
            || p.queue.is_some()
            || capacity.sends == 0
            || depth > model.depth_max
            || capacity.inline_bytes > model.inline_max
        {
            return Err(libc::EINVAL);
        }
        if on_host >= model.pairs_max as usize {
            return Err(libc::ENOMEM);
        }
        p.domain = Some(domain);
        p.queue = Some(queue);
        // Real devices round up, too: nobody may count on the exact number.
        p.capacity = Capacity {
            sends: capacity.sends.next_power_of_two(),
            receives: capacity.receives.next_power_of_two(),
            inline_bytes: capacity.inline_bytes.min(model.inline_granted),
        };
        Ok(p.capacity)
    }

    pub(in crate::memory) fn connect(&mut self, pair: u64, private: Private) -> Result<()> {
        let p = self.pair(pair)?;
        if p.phase != Phase::Resolved || p.queue.is_none() {
            return Err(libc::EINVAL);
        }
        p.phase = Phase::Connecting;
        self.messages.push((pair, Message::Request { private }));
        Ok(())
    }

    pub(in crate::memory) fn accept(&mut self, pair: u64, private: Private) -> Result<()> {
        let p = self.pair(pair)?;
        if p.phase != Phase::Requested || p.queue.is_none() {
            return Err(libc::EINVAL);
        }
        p.phase = Phase::Connected;
        let (peer, from) = (p.peer, p.host);
        match peer.filter(|peer| self.pairs.contains_key(peer)) {
            Some(peer) => self.messages.push((peer, Message::Accepted { private })),
            // It has gone away meanwhile.
            None => self.messages.push((pair, Message::Disconnected { from })),
        }
        Ok(())
    }

    pub(in crate::memory) fn reject(&mut self, pair: u64, private: Private) -> Result<()> {
        let p = self.pair(pair)?;
        if p.phase != Phase::Requested {
            return Err(libc::EINVAL);
        }
        if let Some(peer) = p.peer.take() {
            let reason = CONSUMER;
            self.messages.push((peer, Message::Rejected { private, reason }));
        }
        Ok(())
    }

    pub(in crate::memory) fn fail(&mut self, pair: u64) -> Result<()> {
        let p = self.pair(pair)?;
        if p.queue.is_none() {
            return Err(libc::EINVAL);
        }
        let host = p.host;
        if self.is_iwarp(host) {
            self.hang_up(pair);
        }
        self.break_pair(pair);
        Ok(())
    }

    pub(in crate::memory) fn disconnect(&mut self, pair: u64) -> Result<()> {
        let p = self.pair(pair)?;
        if !p.told && p.phase != Phase::Connected {
            return Err(libc::EINVAL);
        }
        self.hang_up(pair);
        self.break_pair(pair);
        Ok(())
    }

    /// Both ends hear of the end, once.
    pub(in crate::memory) fn hang_up(&mut self, pair: u64) {
        let Some(p) = self.pairs.get_mut(&pair) else {
            return;
        };
        if p.phase != Phase::Connected && !p.told {
            return;
        }
        let Some(peer) = p.peer.take() else { return };
        let from = p.host;
        self.messages.push((pair, Message::Disconnected { from }));
        self.messages.push((peer, Message::Disconnected { from }));
        if let Some(other) = self.pairs.get_mut(&peer) {
            other.peer = None;
        }
    }

    pub(in crate::memory) fn close_pair(&mut self, pair: u64) -> Result<()> {
        self.hang_up(pair);
        let gone = self.pairs.remove(&pair).ok_or(libc::EINVAL)?;
        self.messages.retain(|(to, _)| *to != pair);
        // News that were not fetched are dropped with the identifier, and so are requests that
        // nobody will see.
        if let Some(m) = self.managers.get_mut(&gone.manager) {
            m.events.retain(|e| !matches!(e.news, News::Request { pair: p, .. } if p == pair));
        }
        if gone.phase == Phase::Requested
            && let Some(peer) = gone.peer
        {
            let message = Message::Rejected { private: Private::new(&[]), reason: CONSUMER };
            self.messages.push((peer, message));
        }
        Ok(())
    }

    /// Everything that was posted is flushed; nothing more arrives.
    pub(in crate::memory) fn break_pair(&mut self, pair: u64) {
        let Some(p) = self.pairs.get_mut(&pair) else {
            return;
        };
        if p.phase == Phase::Broken {
            return;
        }
        p.phase = Phase::Broken;
        p.wire.clear();
        self.flush(pair);
    }

    pub(in crate::memory) fn flush(&mut self, pair: u64) {
        let flushed = Outcome::Failed(Failure::Flushed);
        while let Some(send) = self.pairs.get_mut(&pair).and_then(|p| p.sends.pop_front()) {
            self.complete(pair, send.id, flushed, Frees::Sends(send.number));
        }
        while let Some((id, _)) = self.pairs.get_mut(&pair).and_then(|p| p.receives.pop_front()) {
            self.complete(pair, id, flushed, Frees::Receive);
        }
    }
}
