//! Our sockets: noted and announced when they have shown to be used, forgotten when they are
//! closed.

use super::{ANNOUNCE_AT_ONCE, LINKS, Mine, Phase, Slot, State, consumed_by, record};
use crate::channel::{Channel, quiet};
use crate::socket::Socket;
use crate::tuple_table::{Key, Table};
use crate::{socket, sys};
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::agreement::{
    Action, Agreement, Event, Links, SlotAction, SlotEvent, SlotState, bit,
};
use netacc_proto::rendezvous::{self as proto, Message, Peers, Role, Tuple};

impl State {
    /// Notes a socket that connect made, and tells every advertiser of its port, also those that
    /// may yet appear.
    pub(crate) fn add_connected(&mut self, socket: &'static Socket) -> bool {
        if self.is_connected(socket) {
            return true;
        }
        let tuple = socket.tuple();
        let role = Role::Connector;
        let Some((key, due)) =
            self.tables.as_mut().and_then(|t| add(&mut t.connected, tuple, socket, role))
        else {
            return false;
        };
        self.announce_to_all(key);
        self.due(due);
        true
    }

    /// Tells all advertisers of a connection's port of it.
    fn announce_to_all(&mut self, key: Key) {
        let Some(port) =
            self.tables.as_ref().and_then(|t| t.connected.get(key)).map(|(t, _)| t.peer_port())
        else {
            return;
        };
        let told = self.links_to(port);
        for i in (0..LINKS).filter(|i| told & 1 << i != 0) {
            self.announce(i, key);
        }
    }

    /// A socket that was looked for in vain is used on. Whoever was told of it, and could not serve
    /// it then, is told again, and all names are tried.
    pub(crate) fn look_again(&mut self, socket: &'static Socket) -> bool {
        let tuple = socket.tuple();
        let now = sys::now_ns();
        let Some(t) = self.tables.as_mut() else { return false };
        let Some(key) = t.connected.find(&tuple, |m| m.is(socket)) else {
            return self.add_connected(socket);
        };
        let Some(m) = t.connected.get_mut(key) else { return false };
        m.agreement.step(Event::Again { now });
        let due = m.agreement.due();
        t.connected.make_newest(key);
        self.announce_to_all(key);
        self.due(due);
        true
    }

    pub(crate) fn is_connected(&self, socket: &Socket) -> bool {
        let tuple = socket.tuple();
        self.tables.as_ref().is_some_and(|t| t.connected.find(&tuple, |m| m.is(socket)).is_some())
    }

    /// Makes every link that nobody uses too old.
    #[cfg(test)]
    pub(crate) fn make_old(&mut self) {
        self.links.iter_mut().for_each(|l| l.since = 0);
        self.next_expiry = self.next_expiry.min(1);
    }

    /// Loses all candidates of peers.
    #[cfg(test)]
    pub(crate) fn forget_candidates(&mut self) {
        let Some(t) = self.tables.as_mut() else { return };
        while let Some(key) = t.candidates.oldest() {
            t.candidates.remove(key);
        }
        self.links.iter_mut().for_each(|l| l.candidates = 0);
    }

    #[cfg(test)]
    pub(crate) fn candidates(&self) -> u32 {
        self.tables.as_ref().map_or(0, |t| t.candidates.len())
    }

    pub(crate) fn has_advertiser(&self, port: u16) -> bool {
        self.links_to(port) != 0
    }

    fn announce(&mut self, i: usize, key: Key) -> bool {
        let Some((tuple, m)) = self.tables.as_ref().and_then(|t| t.connected.get(key)) else {
            return true;
        };
        if m.agreement.is_told(i) {
            return true;
        }
        let sent = Message::Candidate(proto::Candidate {
            tuple: *tuple,
            token: key.0,
            proof: proto::Proof::NONE,
            class: 0,
            fills: false,
        });
        if !self.try_send(i, sent) {
            return false;
        }
        if let Some(m) = self.tables.as_mut().and_then(|t| t.connected.get_mut(key)) {
            m.agreement.step(Event::Told { link: i, now: sys::now_ns() });
        }
        true
    }

    /// Tells a link of all candidates that it does not know yet, as far as there is room.
    pub(crate) fn announce_all(&mut self, i: usize) {
        if !self.link(i).is_some_and(|l| l.takes_candidates()) {
            return;
        }
        let mut left = ANNOUNCE_AT_ONCE;
        let mut at = self.tables.as_ref().and_then(|t| t.connected.oldest());
        while let Some(key) = at {
            let found = self.tables.as_ref().and_then(|t| t.connected.get(key));
            let wanted = found
                .is_some_and(|(t, m)| !m.agreement.is_told(i) && self.serves(i, t.peer_port()));
            if wanted {
                if left == 0 {
                    // The rest when others have had the lock: there is room, so epoll comes back at
                    // once.
                    self.want_room(i);
                    return;
                }
                if !self.announce(i, key) {
                    return;
                }
                left -= 1;
            }
            at = self.tables.as_ref().and_then(|t| t.connected.after(key));
        }
    }

    /// Notes a socket that accept made. `None`: no room; `Some(true)`: its candidate is there
    /// already.
    pub(crate) fn add_accepted(&mut self, socket: &'static Socket) -> Option<bool> {
        let tuple = socket.tuple();
        let t = self.tables.as_mut()?;
        let known = t.accepted.find(&tuple, |m| m.is(socket));
        let role = Role::Acceptor;
        let (key, due) = known
            .map_or_else(|| add(&mut t.accepted, tuple, socket, role), |key| Some((key, 0)))?;
        let there = t.candidates.find(&tuple, |_| true).is_some();
        if there && self.to_agree.len() < self.to_agree.capacity() {
            self.to_agree.push(key);
        }
        if known.is_none() {
            self.due(due);
        }
        Some(there)
    }

    /// The accepted sockets that [`add_accepted`](Self::add_accepted) found a candidate for, and
    /// those for whose proof there was no place.
    pub(crate) fn next_to_agree(&mut self) -> Option<Tuple> {
        while self.may_prove() {
            let key = self.to_agree.pop()?;
            if let Some((tuple, _)) = self.tables.as_ref().and_then(|t| t.accepted.get(key)) {
                return Some(*tuple);
            }
        }
        None
    }

    /// The socket's memory is about to be given up, or it is to stay in the kernel for good.
    pub(crate) fn closing(&mut self, socket: &Socket) {
        let tuple = socket.tuple();
        self.end_proofs_at_last(socket);
        let mut withdraw = None;
        if let Some(t) = self.tables.as_mut() {
            if let Some(key) = t.connected.find(&tuple, |m| m.is(socket)) {
                withdraw = t
                    .connected
                    .remove(key)
                    .map(|(_, mut m)| (key, m.agreement.step(Event::Closed)));
            }
            if let Some(key) = t.accepted.find(&tuple, |m| m.is(socket)) {
                // A slot that was offered for it: the peer's answer will find nobody.
                t.accepted.remove(key);
            }
        }
        if let Some((key, Action::Withdraw(told))) = withdraw {
            self.withdraw(told, key.0);
        }
        let taken_up =
            !socket.channel.load(Acquire).is_null() || socket.is(socket::State::Changing);
        if socket.offered.is_made() && !taken_up {
            // SAFETY: complete since `offered` is 1; written by no one else while we hold the lock.
            let offer = unsafe { *socket.offer.get() };
            let held = self.link_with(offer.channel).filter(|i| {
                let slot = self.link(*i).and_then(|l| l.slots.get(offer.slot as usize));
                slot.is_some_and(|s| {
                    s.life.is_live()
                        && core::ptr::eq(s.socket, socket)
                        && s.generation == socket.generation.load(Acquire)
                })
            });
            if let Some(i) = held {
                self.leave(i, offer.slot as usize);
                self.release(i, offer.slot as usize);
            }
        }
    }

    /// These links need not think of a connection of ours any more.
    pub(super) fn withdraw(&mut self, told: Links, token: u64) {
        for i in (0..LINKS).filter(|i| told & bit(*i) != 0) {
            self.try_send(i, Message::Withdraw { token });
        }
    }

    pub(crate) fn link_with(&self, channel: *const Channel) -> Option<usize> {
        self.links.iter().position(|l| l.channel.is_some_and(|c| core::ptr::eq(c, channel)))
    }

    /// Our end of a slot is gone: its last word, `CLOSED`, is said, and its socket names the
    /// channel no more. True: the service thread has something to do for that.
    ///
    /// Nothing is written to the slot here: since that last word it may belong to another
    /// connection. So may our entry of it, if both ends had said theirs and we were slow to come
    /// here.
    pub(crate) fn released(&mut self, channel: &Channel, slot: usize) -> bool {
        let Some(i) = self.link_with(channel) else { return false };
        let in_use = self.link(i).and_then(|l| l.slots.get(slot)).is_none_or(|s| {
            // SAFETY: null or a socket, which is type-stable memory.
            let socket = unsafe { s.socket.as_ref() };
            let current = socket.filter(|k| k.generation.load(Acquire) == s.generation);
            !s.life.is_live()
                || current.is_some_and(|k| {
                    matches!(k.state.now(), socket::State::Candidate | socket::State::Changing)
                        || core::ptr::eq(k.channel.load(Acquire), channel)
                })
        });
        if in_use { false } else { self.release(i, slot) }
    }

    /// Says the last word of our side on a slot: from here on the acceptor may give it to another
    /// connection.
    pub(super) fn leave(&mut self, i: usize, slot: usize) {
        if let Some(c) = self.link(i).and_then(|l| l.channel) {
            consumed_by(c, slot, c.side).fetch_or(quiet::CLOSED, AcqRel);
        }
    }

    /// Notes that our end of a live slot is gone. True: the service thread has something to do for
    /// that.
    pub(super) fn release(&mut self, i: usize, slot: usize) -> bool {
        let Some(l) = self.links.get_mut(i) else { return false };
        let (Some(c), Some(s)) = (l.channel, l.slots.get_mut(slot)) else { return false };
        if !s.life.is_live() {
            return false;
        }
        let action = s.step(SlotEvent::Left, 0, l.role);
        s.socket = core::ptr::null();
        if let Some(k) = c.sockets.get(slot) {
            k.store(core::ptr::null_mut(), Release);
        }
        let left = c.users.fetch_sub(1, AcqRel);
        match action {
            Ok(SlotAction::Release) => {
                *s = Slot::FREE;
                l.slots_used = l.slots_used.saturating_sub(1);
                let used = l.slots_used;
                record(i, |r| r.slots_used.store(used, Relaxed));
            }
            _ => self.reclaim(i, slot),
        }
        let l = self.link(i);
        let clear = left == 1 && l.is_some_and(|l| matches!(l.phase, Phase::Dead));
        self.to_recycle |= clear;
        (left == 1 && self.became_idle(i)) | clear
    }

    /// Acceptor: makes a slot free again if both ends have left it.
    pub(super) fn reclaim(&mut self, i: usize, slot: usize) {
        let Some(l) = self.links.get_mut(i) else { return };
        let (Some(c), Some(s)) = (l.channel, l.slots.get_mut(slot)) else { return };
        let peer_gone = consumed_by(c, slot, c.side ^ 1).load(Acquire) & quiet::CLOSED != 0;
        // SAFETY: null or a socket, which is type-stable memory.
        let socket = unsafe { s.socket.as_ref() };
        match s.life.state {
            SlotState::Left if peer_gone => {}
            // A forked child of ours closed the last descriptor; or a thread of ours has said our
            // last word just now. (What the shared word says of our own end the peer may have
            // written.)
            SlotState::Live
                if peer_gone && socket.is_some_and(|k| k.published.has_left(s.generation)) =>
            {
                c.users.fetch_sub(1, AcqRel);
                if let Some(k) = c.sockets.get(slot) {
                    k.store(core::ptr::null_mut(), Release);
                }
                let _ = s.step(SlotEvent::Left, 0, Role::Acceptor);
            }
            _ => return,
        }
        if s.step(SlotEvent::Back, 0, Role::Acceptor) == Ok(SlotAction::Release) {
            self.free_slot(i, slot);
        }
    }

    pub(super) fn free_slot(&mut self, i: usize, slot: usize) {
        let Some(l) = self.links.get_mut(i) else { return };
        let Some(s) = l.slots.get_mut(slot) else { return };
        let pair = s.pair;
        *s = Slot::FREE;
        if let Some(c) = l.channel {
            c.rings_are_free(slot);
        }
        if let Some(p) = l.pool.as_mut() {
            p.give_back(pair);
        }
        if l.free.len() < l.free.capacity() {
            l.free.push(slot as u16);
        }
        l.slots_used = l.slots_used.saturating_sub(1);
        let used = l.slots_used;
        record(i, |r| r.slots_used.store(used, Relaxed));
    }
}

/// Notes a socket, and says when it is to be looked at; the one that waited longest makes room, and
/// is noted again by its calls.
fn add(
    table: &mut Table<Mine>,
    tuple: Tuple,
    socket: &'static Socket,
    role: Role,
) -> Option<(Key, u64)> {
    let agreement = Agreement::new(Peers::OneHost, role, sys::now_ns());
    if table.is_full()
        && let Some((_, m)) =
            table.oldest().and_then(|k| table.remove(k)).filter(|(_, m)| m.is_current())
    {
        m.socket.judge(Reason::NoRecord);
    }
    let key = table.insert(
        tuple,
        0,
        Mine {
            socket,
            generation: socket.generation.load(Acquire),
            agreement,
            shown_blindly: false,
        },
    )?;
    socket.raise(socket::flag::NOTED);
    socket.start(Reason::Negotiating);
    Some((key, agreement.due()))
}
