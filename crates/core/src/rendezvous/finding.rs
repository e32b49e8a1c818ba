//! Finding each other: adverts, by the port that a process accepts on, and looks for them.

use super::*;

impl State {
    pub(super) fn port(&mut self, port: u16) -> &mut Port {
        let known = self.ports.iter().position(|p| p.port == port);
        let at = known.unwrap_or_else(|| {
            // In the place of the one that was looked at longest ago, and is not to be looked at again.
            let age = |i: &usize| self.ports.get(*i).map(|p| (p.try_at != 0, p.tried_all));
            (0..PORTS).min_by_key(age).unwrap_or(0)
        });
        let p = &mut self.ports[at % PORTS];
        if p.port != port {
            *p = Port { port, ..Port::NONE };
        }
        p
    }

    /// Whether somebody is known to accept on `port`; `later`: bytes have come from there, so they must be known by now.
    pub(crate) fn seek(&mut self, port: u16, later: bool) -> bool {
        let now = sys::now_ns();
        if self.links_to(port) == 0 && !self.probe(port, if later { NAMES } else { QUICK_NAMES }, true) {
            return false;
        }
        let p = self.port(port);
        if p.try_at == 0 && now.saturating_sub(p.tried_all) > TRIED_LATELY_NS {
            p.tries = 0;
            p.try_at = now;
        }
        true
    }

    /// Asks for another look at all names, now.
    pub(crate) fn seek_all(&mut self, port: u16) {
        let now = sys::now_ns();
        let p = self.port(port);
        if now.saturating_sub(p.tried_all) > 1_000_000 {
            p.tries = 0;
            p.try_at = now;
        }
    }

    /// `socket` sends and has received nothing, so its acceptor may not have accepted yet: whoever appears within the next
    /// seconds is told of it. True: the service thread has to learn of that.
    pub(crate) fn expect(&mut self, socket: &'static Socket) -> bool {
        if self.is_connected(socket) {
            return false;
        }
        let now = sys::now_ns();
        self.add_connected(socket);
        let p = self.port(socket.tuple().peer_port());
        let at = p.tried_all.saturating_add(TRY_PAUSE_NS).max(now + TRY_AGAIN_NS[0]);
        if p.try_at == 0 || at < p.try_at {
            p.try_at = at;
        }
        p.tries = 1;
        true
    }

    /// Asks for another look at all names in a moment, because somebody has gone.
    pub(super) fn seek_soon(&mut self, port: u16) {
        let at = sys::now_ns() + TRY_PAUSE_NS;
        let p = self.port(port);
        if p.try_at == 0 || at < p.try_at {
            p.try_at = at;
        }
    }

    /// When the service thread has to look for new advertisers next; 0: never.
    pub(crate) fn next_try(&self) -> u64 {
        self.ports.iter().map(|p| p.try_at).filter(|t| *t != 0).min().unwrap_or(0)
    }

    /// When the service thread has something to do of its own accord; 0: never.
    pub(crate) fn next_deed(&self) -> u64 {
        [self.next_try(), self.next_expiry, self.next_advert_look].into_iter().filter(|t| *t != 0).min().unwrap_or(0)
    }

    /// Looks for new advertisers of the ports whose time has come. Service thread only.
    pub(crate) fn try_ports(&mut self) {
        let now = sys::now_ns();
        for at in 0..PORTS {
            let p = self.ports[at];
            if p.try_at == 0 || p.try_at > now {
                continue;
            }
            for i in 0..LINKS {
                // Else the advert of its successor would not be looked for.
                if self.link(i).is_some_and(|l| l.takes_candidates() && l.port == p.port && l.is_orphan()) {
                    self.end_link(i, Violation::Ended);
                }
            }
            self.probe(p.port, NAMES, false);
            let waiting = self.tables.as_ref().is_some_and(|t| t.connected.len() != 0);
            let p = self.port(p.port);
            p.tried_all = now;
            p.try_at = match TRY_AGAIN_NS.get(p.tries as usize) {
                Some(pause) if waiting => now + pause,
                _ => 0,
            };
            p.tries = p.tries.saturating_add(1);
        }
    }

    /// Connects to the advertisers of `port` under the first `names` names that we have no link to; `one` will do.
    fn probe(&mut self, port: u16, names: u8, one: bool) -> bool {
        let linked = |s: &State, k: u8| s.links.iter().any(|l| l.role == Role::Connector && l.is_read() && l.port == port && l.k == k);
        let p = self.port(port);
        if p.shunned_until < sys::now_ns() {
            p.shunned = 0;
        }
        let shunned = p.shunned;
        let mut fd = -1;
        let mut found = false;
        for k in 0..names {
            if shunned & 1 << k != 0 || linked(self, k) {
                continue;
            }
            if fd < 0 {
                fd = control_socket();
                if fd < 0 {
                    return found;
                }
            }
            let (name, len) = advert_name(port, k);
            if sys::connect(fd, name.get(..len).unwrap_or(&[])) < 0 {
                continue;
            }
            if let Some(i) = self.open_link(core::mem::replace(&mut fd, -1), Role::Connector, port, k) {
                found = true;
                self.announce_all(i);
                if one {
                    break;
                }
            }
        }
        if fd >= 0 {
            fd_table::close_internal(fd);
        }
        found
    }

    /// Advertises that this process accepts on `port`, as the user that it runs as. True: it does (already).
    pub(crate) fn advertise(&mut self, port: u16, uid: u32) -> bool {
        let now = sys::now_ns();
        let known = self.adverts.iter().position(|a| a.port == port && port != 0);
        if let Some(a) = known.and_then(|i| self.adverts.get(i)).filter(|a| a.uid == uid && (a.fd >= 0 || now < a.retry_at)) {
            return a.fd >= 0;
        }
        let Some(i) = known.or_else(|| self.adverts.iter().position(|a| a.port == 0)) else { return false };
        let Some(a) = self.adverts.get_mut(i) else { return false };
        if a.fd >= 0 {
            // Made by us as another user: what it says of us is no longer true.
            fd_table::close_internal(a.fd);
        }
        *a = Advert { port, fd: -1, uid, retry_at: now + RETRY_ADVERT_NS, unused_since: 0 };
        let fd = bind_advert(port);
        if fd < 0 {
            return false;
        }
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: EVENT_ADVERT | i as u64 };
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
        self.next_advert_look = sys::now_ns() + LOOK_AT_ADVERTS_NS;
    }

    /// Takes down the adverts of ports that no socket of ours listens on, and that nobody who was accepted there needs.
    /// Returns their places. (One too many is made again at the next accept.) Service thread only.
    pub(crate) fn take_down_adverts(&mut self, listens: &Listens) -> u32 {
        let now = sys::now_ns();
        let mut gone = 0;
        let mut more = false;
        for (i, a) in self.adverts.iter_mut().enumerate().filter(|(_, a)| a.port != 0) {
            if listens.on(a.port) {
                a.unused_since = 0;
                continue;
            }
            if a.unused_since == 0 {
                a.unused_since = now;
            }
            let mut needed = listens.awaited(a.port) && now.saturating_sub(a.unused_since) < UNUSED_ADVERT_NS;
            if let Some(t) = self.tables.as_ref().filter(|_| now.saturating_sub(a.unused_since) < UNUSED_ADVERT_NS) {
                let mut at = t.accepted.oldest();
                while let Some(key) = at.filter(|_| !needed) {
                    needed = t.accepted.get(key).is_some_and(|(t, m)| t.local_port() == a.port && m.is_current());
                    at = t.accepted.after(key);
                }
            }
            if needed {
                more = true;
                continue;
            }
            if a.fd >= 0 {
                fd_table::close_internal(a.fd);
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
            let Some(a) = self.adverts.get_mut(advert).filter(|a| a.fd >= 0) else { return true };
            let port = a.port;
            let advert = a.fd;
            let fd = numbers::make(|| sys::accept4(advert, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC));
            if fd < 0 {
                if [libc::EAGAIN, libc::EINTR, libc::ECONNABORTED].contains(&-fd) {
                    return true;
                }
                // No descriptor, most likely. Left alone it would wake us for ever.
                fd_table::close_internal(a.fd);
                a.fd = -1;
                a.retry_at = sys::now_ns() + RETRY_ADVERT_NS;
                return false;
            }
            if self.free_link(false).is_none() {
                self.evict_idle();
            }
            self.open_link(fd, Role::Acceptor, port, 0);
        }
        true
    }

    /// Ends links that nothing has used for as long as the configuration says. Service thread only.
    pub(crate) fn expire(&mut self) {
        let Some(ms) = lifecycle::config().empty_channel_expire_ms else {
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

    /// A link has lost its last connection: it is looked at when it has been of no use for long. True: the service
    /// thread has to learn of that.
    pub(super) fn became_idle(&mut self, i: usize) -> bool {
        let now = sys::now_ns();
        if let Some(l) = self.link_mut(i).filter(|l| l.is_read() && l.users() == 0) {
            l.since = now;
            let ms = lifecycle::config().empty_channel_expire_ms;
            if let Some(ms) = ms.filter(|_| self.next_expiry == 0) {
                self.next_expiry = now.saturating_add(u64::from(ms) * 1_000_000).max(1);
                return true;
            }
        }
        false
    }
}

/// The ports that sockets of this process listen on, as far as it was seen.
pub(crate) struct Listens {
    on: Ports,
    /// Of connections that were accepted and wait for their peer.
    accepted: Ports,
}

/// Some ports; when there are more than fit, each may be one of them.
#[derive(Clone, Copy)]
struct Ports {
    ports: [u16; 64],
    len: usize,
}

impl Ports {
    const NONE: Ports = Ports { ports: [0; 64], len: 0 };

    fn has(&self, port: u16) -> bool {
        self.ports.get(..self.len).is_none_or(|all| all.contains(&port))
    }

    fn add(&mut self, port: u16) {
        if port == 0 || self.has(port) {
            return;
        }
        if let Some(to) = self.ports.get_mut(self.len) {
            *to = port;
        }
        self.len += 1;
    }
}

impl Listens {
    pub(crate) fn now() -> Listens {
        let mut all = Listens { on: Ports::NONE, accepted: Ports::NONE };
        fd_table::for_each(|fd, entry| match entry {
            fd_table::Entry::Listener(_) => all.on.add(socket::local_port(fd)),
            fd_table::Entry::Socket(s, _) if s.is(socket::CANDIDATE) && !s.has(socket::flag::CONNECTOR) => all.accepted.add(s.tuple().local_port()),
            _ => {}
        });
        all
    }

    pub(crate) fn on(&self, port: u16) -> bool {
        self.on.has(port)
    }

    fn awaited(&self, port: u16) -> bool {
        self.accepted.has(port)
    }
}

/// `sockaddr_un` of an advert, and its length.
pub(super) fn advert_name(port: u16, k: u8) -> ([u8; 48], usize) {
    let mut name = [0u8; 48];
    let [a, b] = (libc::AF_UNIX as u16).to_ne_bytes();
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        for b in bytes {
            if let Some(to) = name.get_mut(at) {
                *to = *b;
                at += 1;
            }
        }
    };
    put(&[a, b, 0]);
    let mut number = [0u8; 12];
    put(b"netacc/1/");
    let n = decimal_path(b"", u32::from(port), &mut number);
    put(number.get(..n).unwrap_or(&[]));
    put(b"/");
    let n = decimal_path(b"", u32::from(k), &mut number);
    put(number.get(..n).unwrap_or(&[]));
    (name, at)
}

fn control_socket() -> c_int {
    numbers::make(|| sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0))
}

fn bind_advert(port: u16) -> c_int {
    let fd = control_socket();
    if fd < 0 {
        return fd;
    }
    for k in 0..NAMES {
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
