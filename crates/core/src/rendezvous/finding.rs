//! Finding each other: adverts, by the port that a process accepts on, and looks for them.

use super::names::advert_name;
use super::strangers::control_socket;
use super::{
    ADVERTS, Advert, ControlLink, EVENT_ADVERT, LINKS, LOOK_AT_ADVERTS_NS, NAMES, Port,
    QUICK_NAMES, RETRY_ADVERT_NS, SHUN_NS, State, TRIED_LATELY_NS, UNUSED_ADVERT_NS, Violation,
    auth, possession, strangers,
};
use crate::agent::reason_of;
use crate::channel::SLOTS;
use crate::listens::Listens;
use crate::{adoption, config, fd_table, numbers, process, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use netacc_control::stats::Reason;
use netacc_proto::agreement::{Action, Event, Why};
use netacc_proto::rendezvous::Role;

impl Port {
    const fn new(port: u16) -> Port {
        Port {
            port,
            used_at: 0,
            links: 0,
            names: [0; NAMES as usize],
            tried_all: 0,
            try_at: 0,
            anew: false,
            shunned: 0,
            shunned_until: 0,
        }
    }
}

impl State {
    fn known_port(&self, port: u16) -> Option<&Port> {
        let at = self.port_numbers.iter().position(|p| *p == port)?;
        self.ports.get(at)
    }

    /// What is known of `port`, from here on something.
    fn port(&mut self, port: u16) -> Option<&mut Port> {
        let known = self.port_numbers.iter().position(|p| *p == port);
        let at = known.unwrap_or_else(|| {
            if self.ports.len() < self.ports.capacity().min(self.port_numbers.capacity()) {
                self.ports.push(Port::new(port));
                self.port_numbers.push(port);
                return self.ports.len() - 1;
            }
            let unused =
                self.ports.iter().enumerate().min_by_key(|(_, p)| (p.try_at != 0, p.used_at));
            unused.map_or(0, |(i, _)| i)
        });
        let (p, number) = (self.ports.get_mut(at)?, self.port_numbers.get_mut(at)?);
        if *number != port {
            (*p, *number) = (Port::new(port), port);
        }
        Some(p)
    }

    /// The links that take candidates for connections to `port`.
    pub(super) fn links_to(&self, port: u16) -> u64 {
        let all = self.known_port(port).map_or(0, |p| p.links);
        self.links
            .iter()
            .enumerate()
            .filter(|(i, l)| all & 1 << i != 0 && l.takes_candidates())
            .fold(0, |m, (i, _)| m | 1 << i)
    }

    /// ControlLink `i` leads to somebody who accepts on `port`.
    pub(super) fn serves(&self, i: usize, port: u16) -> bool {
        self.known_port(port).is_some_and(|p| p.links & 1 << i != 0)
    }

    /// ControlLink `i` has ended, or is no way to somebody who accepts any more. `shun`: whoever
    /// holds its names is left alone for a while.
    pub(super) fn forget_names(&mut self, i: usize, shun: bool) {
        let until = sys::now_ns() + SHUN_NS;
        for p in self.ports.iter_mut().filter(|p| p.links & 1 << i != 0) {
            p.links &= !(1 << i);
            for (k, name) in
                p.names.iter_mut().enumerate().filter(|(_, name)| usize::from(**name) == i + 1)
            {
                *name = 0;
                if shun {
                    p.shunned |= 1 << k;
                    p.shunned_until = until;
                }
            }
        }
    }

    /// Something is to be looked for at that moment.
    pub(crate) fn due(&mut self, at: u64) {
        if self.next_try == 0 || at < self.next_try {
            self.next_try = at;
            self.wake = true;
        }
    }

    /// All names of `port` are to be tried at that moment.
    fn try_at(&mut self, port: u16, at: u64) {
        let Some(p) = self.port(port) else { return };
        if p.try_at == 0 || at < p.try_at {
            p.try_at = at;
        }
        self.due(at);
    }

    /// Whether somebody is known to accept on `port`; `later`: bytes have come from there, so they
    /// must be known by now.
    pub(crate) fn seek(&mut self, port: u16, later: bool) -> bool {
        let now = sys::now_ns();
        if self.links_to(port) == 0
            && !self.probe(port, if later { NAMES } else { QUICK_NAMES }, true)
        {
            return false;
        }
        let Some(p) = self.port(port) else { return true };
        p.used_at = now;
        if now.saturating_sub(p.tried_all) > TRIED_LATELY_NS {
            self.try_at(port, now);
        }
        true
    }

    /// Asks for another look at all names, now.
    pub(crate) fn seek_all(&mut self, port: u16) {
        let now = sys::now_ns();
        if self.known_port(port).is_none_or(|p| now.saturating_sub(p.tried_all) > 1_000_000) {
            self.try_at(port, now);
        }
    }

    /// When the service thread has something to do of its own accord; 0: never.
    pub(crate) fn next_deed(&self) -> u64 {
        [self.next_try, self.next_expiry, self.next_advert_look, self.next_proof_end]
            .into_iter()
            .filter(|t| *t != 0)
            .min()
            .unwrap_or(0)
    }

    /// Looks for the peers of those connections whose time has come, and at ports whose time has.
    /// Service thread only.
    pub(crate) fn look(&mut self) {
        let now = sys::now_ns();
        if self.next_try == 0 || self.next_try > now {
            return;
        }
        for (port, anew) in self.waited_for(now) {
            self.try_at(port, now);
            if let Some(p) = self.port(port) {
                p.anew |= anew;
            }
        }
        self.next_try = 0;
        for at in 0..self.ports.len() {
            let Some(p) = self.ports.get(at).filter(|p| p.try_at != 0) else { continue };
            if p.try_at > now {
                self.due(p.try_at);
                continue;
            }
            let (port, links, anew) = (p.port, p.links, p.anew);
            for i in (0..LINKS).filter(|i| links & 1 << i != 0) {
                let Some(l) = self.link(i).filter(|l| l.takes_candidates() && l.is_orphan()) else {
                    continue;
                };
                // Else the advert of its successor would not be looked for. By the link itself the
                // child may have to ask for bytes.
                if l.users() == 0 {
                    self.end_link(i, Violation::Ended);
                } else {
                    self.forget_names(i, false);
                }
            }
            if anew {
                self.forget_changed_names(port);
            }
            self.probe(port, NAMES, false);
            if let Some(p) = self.ports.get_mut(at).filter(|p| p.port == port) {
                (p.tried_all, p.try_at, p.anew) = (now, 0, false);
            }
        }
        self.judge_waiting(now);
        // What was made due above is known to this thread.
        self.wake = false;
    }

    /// A name is free when its holder takes the advert down, and the link goes on: whoever has it
    /// now would not be looked for.
    fn forget_changed_names(&mut self, port: u16) {
        let Some(known) = self.known_port(port).map(|p| p.names) else { return };
        for (k, link) in (0..NAMES).zip(known).filter(|(_, link)| *link != 0) {
            let Some(l) = self.link(usize::from(link) - 1).map(|l| l.peer) else { continue };
            let fd = control_socket();
            let (name, len) = advert_name(port, k);
            let same = fd < 0
                || sys::connect(fd, name.get(..len).unwrap_or(&[])) >= 0
                    && auth::peer_of(fd) == Some(l);
            if fd >= 0 {
                strangers::close(fd);
            }
            if let Some(p) = self.port(port).filter(|_| !same)
                && let Some(name) = p.names.get_mut(usize::from(k))
            {
                *name = 0;
            }
        }
    }

    /// The ports of our connections that are due to be looked for, and whether one was before.
    fn waited_for(&self, now: u64) -> Vec<(u16, bool)> {
        let mut ports: Vec<(u16, bool)> = Vec::new();
        let Some(t) = self.tables.as_ref() else { return ports };
        let mut at = t.connected.newest();
        while let Some((key, tuple, m)) = at
            .and_then(|key| t.connected.get(key).map(|(t, m)| (key, t, m)))
            .filter(|(_, _, m)| m.agreement.due() != 0)
        {
            if m.agreement.due() <= now && m.is_current() {
                // (Those that there is no memory for are looked for by their own calls.)
                if ports.try_reserve(1).is_err() {
                    break;
                }
                match ports.iter_mut().find(|(port, _)| *port == tuple.peer_port()) {
                    Some((_, again)) => *again |= m.agreement.was_looked_for(),
                    None => ports.push((tuple.peer_port(), m.agreement.was_looked_for())),
                }
            }
            at = t.connected.before(key);
        }
        ports
    }

    /// Those whose time has come were looked for: says when they are next, or what is to be thought
    /// of their peers.
    fn judge_waiting(&mut self, now: u64) {
        let mut next = u64::MAX;
        let Some(t) = self.tables.as_mut() else { return };
        for (table, connector) in [(&mut t.connected, true), (&mut t.accepted, false)] {
            let mut at = table.newest();
            while let Some(key) = at {
                at = table.before(key);
                // Behind the first one that waits for its own calls they all do.
                let Some(m) = table.get_mut(key).filter(|m| m.agreement.due() != 0) else { break };
                let tick = Event::Tick { now, claimed: false, known: false };
                let action = m.agreement.step(tick);
                if m.agreement.due() != 0 {
                    next = next.min(m.agreement.due());
                    continue;
                }
                if let (Action::Judge(why), true) = (action, m.is_current()) {
                    m.socket.judge(match why {
                        Why::NoLibrary if connector => Reason::ListenerWithoutLibrary,
                        why => reason_of(why),
                    });
                }
                table.make_oldest(key);
            }
        }
        if next != u64::MAX {
            self.due(next);
        }
    }

    /// Connects to the advertisers of `port` under the first `names` names that we have no link to;
    /// `one` will do.
    fn probe(&mut self, port: u16, names: u8, one: bool) -> bool {
        let now = sys::now_ns();
        if strangers::is_overrun() {
            return false;
        }
        let Some(p) = self.port(port) else { return false };
        if p.shunned_until < now {
            p.shunned = 0;
        }
        let (shunned, known) = (p.shunned, p.names);
        let mut fd = -1;
        let mut found = false;
        for (k, link) in (0..names).zip(known) {
            if shunned & 1 << k != 0 || link != 0 {
                continue;
            }
            if fd < 0 {
                fd = control_socket();
                if fd < 0 {
                    return found;
                }
                if !possession::name_link(fd) {
                    break;
                }
            }
            let (name, len) = advert_name(port, k);
            if sys::connect(fd, name.get(..len).unwrap_or(&[])) < 0 {
                continue;
            }
            found = true;
            let Some(i) = self.link_over(core::mem::replace(&mut fd, -1), port) else {
                // No place for it: the service thread makes one.
                if one {
                    self.try_at(port, now);
                }
                continue;
            };
            if let Some(p) = self.port(port) {
                p.links |= 1 << i;
                if let Some(name) = p.names.get_mut(usize::from(k)) {
                    *name = i as u8 + 1;
                }
            }
            self.announce_all(i);
            if one {
                break;
            }
        }
        if fd >= 0 {
            fd_table::close_internal(fd);
        }
        found
    }

    /// The link to whoever took the connection `fd` for `port`: one that is there, if that process
    /// accepts on other ports too, or a new one.
    fn link_over(&mut self, fd: c_int, port: u16) -> Option<usize> {
        let named = self.known_port(port).map_or([0; NAMES as usize], |p| p.names);
        let peer = auth::peer_of(fd).filter(|p| p.pid != 0);
        let same = |l: &ControlLink| l.takes_candidates() && Some(l.peer) == peer;
        // (Under two names of one port there are two processes, or one as two users.)
        let there = self
            .links
            .iter()
            .enumerate()
            .position(|(i, l)| !named.contains(&(i as u8 + 1)) && same(l));
        if there.is_some() {
            strangers::close(fd);
            return there;
        }
        self.open_link(fd, Role::Connector, sys::geteuid())
    }

    /// Advertises that this process accepts on `port`, as the user that it runs as. True: it does
    /// (already).
    pub(crate) fn advertise(&mut self, port: u16, uid: u32) -> bool {
        let now = sys::now_ns();
        let epoll = self.epoll;
        let known = self.adverts.iter().position(|a| a.port == port && port != 0);
        if let Some((i, a)) = known
            .and_then(|i| Some((i, self.adverts.get_mut(i)?)))
            .filter(|(_, a)| a.deaf && a.fd >= 0)
        {
            if strangers::is_overrun() {
                return false;
            }
            let mut event =
                libc::epoll_event { events: libc::EPOLLIN as u32, u64: EVENT_ADVERT | i as u64 };
            // SAFETY: a live event.
            a.deaf = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, a.fd, &mut event) } < 0;
        }
        if let Some(a) = known
            .and_then(|i| self.adverts.get(i))
            .filter(|a| a.uid == uid && (a.fd >= 0 || now < a.retry_at))
        {
            return a.fd >= 0;
        }
        let free = || self.adverts.iter().position(|a| a.port == 0);
        let first =
            || self.adverts.iter().enumerate().min_by_key(|(_, a)| a.made_at).map(|(i, _)| i);
        let Some(i) = known.or_else(free).or_else(first) else { return false };
        let Some(a) = self.adverts.get_mut(i) else { return false };
        if a.fd >= 0 {
            // Made by us as another user, so what it says of us is no longer true; or it makes room
            // for another port.
            strangers::close(a.fd);
        }
        *a = Advert {
            port,
            fd: -1,
            uid,
            made_at: now,
            retry_at: now + RETRY_ADVERT_NS,
            unused_since: 0,
            deaf: false,
        };
        let fd = bind_advert(port);
        if fd < 0 {
            return false;
        }
        let mut event =
            libc::epoll_event { events: libc::EPOLLIN as u32, u64: EVENT_ADVERT | i as u64 };
        // SAFETY: a live event.
        if unsafe { sys::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &mut event) } < 0 {
            fd_table::close_internal(fd);
            return false;
        }
        a.fd = fd;
        true
    }

    /// A listening socket was closed: its advert may be of no use any more.
    pub(crate) fn look_at_adverts(&mut self) {
        self.advert_pause = LOOK_AT_ADVERTS_NS;
        let at = sys::now_ns() + LOOK_AT_ADVERTS_NS;
        // (Not put off by every close.)
        if self.next_advert_look == 0 || at < self.next_advert_look {
            self.next_advert_look = at;
            self.wake = true;
        }
    }

    /// Takes down the adverts of ports that no socket of ours listens on, and that nobody who was
    /// accepted there needs. Returns their places. (One too many is made again at the next accept.)
    /// Service thread only.
    pub(crate) fn take_down_adverts(&mut self, listens: &Listens) -> u128 {
        let now = sys::now_ns();
        const { assert!(ADVERTS <= u128::BITS as usize) };
        let mut gone = 0u128;
        let mut more = false;
        for (i, a) in self.adverts.iter_mut().enumerate().filter(|(_, a)| a.port != 0) {
            if listens.on(a.port) {
                a.unused_since = 0;
                continue;
            }
            if a.unused_since == 0 {
                a.unused_since = now;
            }
            let mut needed =
                listens.awaited(a.port) && now.saturating_sub(a.unused_since) < UNUSED_ADVERT_NS;
            if let Some(t) = self
                .tables
                .as_ref()
                .filter(|_| now.saturating_sub(a.unused_since) < UNUSED_ADVERT_NS)
            {
                let mut all = t.accepted.iter();
                needed |= all.any(|(_, t, m)| t.local_port() == a.port && m.is_current());
            }
            if needed {
                more = true;
                continue;
            }
            if a.fd >= 0 {
                strangers::close(a.fd);
            }
            *a = Advert::NONE;
            gone |= 1 << i;
        }
        self.advert_pause = self.advert_pause.saturating_mul(2);
        self.next_advert_look = if more { now + self.advert_pause } else { 0 };
        gone
    }

    /// Takes the connections that wait at an advert. False: it had to be given up, for a while.
    pub(crate) fn take_callers(&mut self, advert: usize) -> bool {
        for _ in 0..LINKS {
            let epoll = self.epoll;
            let Some(a) = self.adverts.get_mut(advert).filter(|a| a.fd >= 0) else { return true };
            if strangers::is_overrun() {
                // Nobody is let in, and the advert is not heard, until the application accepts when
                // they are gone.
                // SAFETY: deleting takes no event.
                let _ = unsafe {
                    sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, a.fd, core::ptr::null_mut())
                };
                a.deaf = true;
                return false;
            }
            let (advert, user) = (a.fd, a.uid);
            let fd =
                numbers::make(|| sys::accept4(advert, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC));
            if fd < 0 {
                if [libc::EAGAIN, libc::EINTR, libc::ECONNABORTED].contains(&-fd) {
                    return true;
                }
                // No descriptor, most likely. Left alone it would wake us for ever.
                strangers::close(a.fd);
                a.fd = -1;
                a.retry_at = sys::now_ns() + RETRY_ADVERT_NS;
                return false;
            }
            if self.free_link(false).is_none() {
                self.evict_idle();
            }
            self.open_link(fd, Role::Acceptor, user);
        }
        true
    }

    /// Ends links that nothing has used for as long as the configuration says. Service thread only.
    pub(crate) fn expire(&mut self) {
        let Some(ms) = config::get().empty_channel_expire_ms else {
            self.next_expiry = 0;
            return;
        };
        let now = sys::now_ns();
        if self.next_expiry == 0 || self.next_expiry > now {
            return;
        }
        self.next_expiry = 0;
        for i in 0..LINKS {
            let Some(l) = self.link(i).filter(|l| l.is_read() && l.users() == 0) else { continue };
            let mut end = l.since.saturating_add(u64::from(ms) * 1_000_000);
            if end <= now {
                self.sweep(i, SLOTS);
                if self.link(i).is_some_and(|l| l.is_idle()) {
                    self.end_link(i, Violation::Evicted);
                    continue;
                }
                // The peer still holds a slot, or waits for an answer.
                end = now.saturating_add(u64::from(ms.max(1000)) * 1_000_000);
            }
            if self.next_expiry == 0 || end < self.next_expiry {
                self.next_expiry = end;
            }
        }
    }

    /// A link has lost its last connection: it is looked at when it has been of no use for long.
    /// True: the service thread has to learn of that.
    pub(super) fn became_idle(&mut self, i: usize) -> bool {
        let now = sys::now_ns();
        if let Some(l) = self.link_mut(i).filter(|l| l.is_read() && l.users() == 0) {
            l.since = now;
            let ms = config::get().empty_channel_expire_ms;
            if let Some(ms) = ms.filter(|_| self.next_expiry == 0) {
                self.next_expiry = now.saturating_add(u64::from(ms) * 1_000_000).max(1);
                return true;
            }
        }
        false
    }
}

fn bind_advert(port: u16) -> c_int {
    let fd = control_socket();
    if fd < 0 {
        return fd;
    }
    // A child that goes on with a connection of its parent's keeps clear of the lowest names: one
    // that its parent has just given up stands, in the connector's book, for the parent, as long as
    // the link between those two lasts.
    let start = if adoption::inherits() {
        QUICK_NAMES + (process::id() % u32::from(NAMES - QUICK_NAMES)) as u8
    } else {
        0
    };
    for k in (start..NAMES).chain(0..start) {
        let (name, len) = advert_name(port, k);
        let r = sys::bind(fd, name.get(..len).unwrap_or(&[]));
        if r == -(libc::EADDRINUSE as isize) {
            continue;
        }
        if r >= 0 && sys::listen(fd, 1024) >= 0 {
            return fd;
        }
        break;
    }
    fd_table::close_internal(fd);
    -1
}
