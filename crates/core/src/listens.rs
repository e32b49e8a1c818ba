//! On which ports this process listens, and on which it has accepted connections that wait for
//! their peer.

use crate::{carrier, fd_table, socket};

/// The ports that sockets of this process listen on, as far as it was seen.
pub(crate) struct Listens {
    on: Ports,
    /// Of connections that were accepted and wait for their peer.
    accepted: Ports,
}

/// A set of ports.
struct Ports([u64; 1024]);

impl Ports {
    const NONE: Ports = Ports([0; 1024]);

    fn has(&self, port: u16) -> bool {
        self.0.get(usize::from(port / 64)).is_some_and(|w| w & 1 << (port % 64) != 0)
    }

    fn add(&mut self, port: u16) {
        if let Some(w) = self.0.get_mut(usize::from(port / 64)) {
            *w |= 1 << (port % 64);
        }
    }
}

impl Listens {
    pub(crate) fn now() -> Listens {
        let mut all = Listens { on: Ports::NONE, accepted: Ports::NONE };
        fd_table::for_each(|fd, entry| match entry {
            fd_table::Entry::Listener(_) => all.on.add(carrier::local_port(fd)),
            fd_table::Entry::Socket(s, _)
                if s.is(socket::State::Candidate) && !s.has(socket::flag::CONNECTOR) =>
            {
                let known = s.known_tuple().map(|tuple| tuple.local_port());
                all.accepted.add(known.unwrap_or_else(|| carrier::local_port(fd)))
            }
            _ => {}
        });
        all
    }

    pub(crate) fn on(&self, port: u16) -> bool {
        self.on.has(port)
    }

    pub(crate) fn awaited(&self, port: u16) -> bool {
        self.accepted.has(port)
    }
}
