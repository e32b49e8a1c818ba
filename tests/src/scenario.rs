//! What a scenario is, and the list of all of them.

use crate::ctx::{Ctx, Role};
use crate::scenarios;
use crate::scenarios::epoll::obedient;
use crate::sys::Fd;

/// Whether the scenario's connection must be on the fast path after the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// It must; the scenario fails in the modes shm and rdma when it is not.
    Fast,
    /// It must in mode shm: its addresses are of the loopback interface, which no RDMA device has,
    /// or it does what keeps a connection off RDMA.
    Shm,
    /// It may.
    Any,
}

/// The conformance table's mark: how the library carries the behaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    Accelerated,
    Demoted,
    PassedThrough,
}

pub struct Scenario {
    pub name: &'static str,
    /// The behaviour, in the words of the checklist.
    pub about: &'static str,
    pub expect: Expect,
    pub mark: Mark,
    /// Modes in which it is not run, and why.
    pub skip: &'static [(&'static str, &'static str)],
    /// How many times as long as others it may take.
    pub length: u32,
    /// For so many seconds it waits, in each mode: it is begun early.
    pub seconds: u32,
    /// Between hosts its connections stay on TCP: in the mode `rdma` none is waited for.
    pub tcp_between_hosts: bool,
    /// What the library's environment has besides, in the mode `rdma`.
    pub rdma_environment: &'static [(&'static str, &'static str)],
    pub parts: Parts,
}

pub enum Parts {
    Pair {
        server: fn(&Ctx),
        client: fn(&Ctx),
    },
    /// The server with its one connection; the client does as it is told.
    Obeyed(fn(&Ctx, Fd)),
    Alone(fn(&Ctx)),
}

/// In the mode `fast` a scenario that has short connections before its own has one that comes by a
/// carrier which they have left behind. Not these.
const OWN_CARRIERS: [(&str, &str); 22] = [
    ("connect/bound-client", BOUND),
    ("connect/v4-mapped-client", "its sockets are of IPv6, and those before it of IPv4"),
    ("epoll/refused-and-connected", "a connect that was refused has bound its socket"),
    ("epoll/oneshot-before-connected", "an EPOLLONESHOT of the socket's may have fired"),
    ("epoll/duplicated-before-connected", "a duplicate connects"),
    ("epoll/forked-before-connected", FORKED),
    ("epoll/forked-then-connected", FORKED),
    ("exhausted/from-the-start", "the library has no memory"),
    ("lives/listener-shut-down", "nobody accepts"),
    ("lives/listener-closed", GIVEN_UP),
    ("lives/listener-duplicated", GIVEN_UP),
    ("lives/listener-of-a-child", GIVEN_UP),
    ("lives/options-of-the-listener", GIVEN_UP),
    ("listens/duplicate", GIVEN_UP),
    ("listens/ring", RING),
    ("options/negative-timeouts", "the socket has a time-out before it is connected"),
    ("rings/epoll-ctl", RING),
    ("rings/epoll-wait", RING),
    ("rings/receive", RING),
    ("rings/receive-within-a-time", RING),
    ("rings/forked", RING),
    ("adopt/passed-by-a-ring", RING),
];
const BOUND: &str = "the socket is bound to an address";
const FORKED: &str = "a child has the socket, too";
const GIVEN_UP: &str = "its listener gives out none: it is closed, a duplicate's, or changed";
const RING: &str = "a process with an io_uring keeps none";

/// Two processes, a connection that is accelerated.
pub const fn pair(
    name: &'static str,
    about: &'static str,
    server: fn(&Ctx),
    client: fn(&Ctx),
) -> Scenario {
    of_two(name, about, Parts::Pair { server, client })
}

/// The same, where the client does with the connection what the server asks for
/// (`scenarios::epoll::ask`).
pub const fn obeyed(name: &'static str, about: &'static str, server: fn(&Ctx, Fd)) -> Scenario {
    of_two(name, about, Parts::Obeyed(server))
}

const fn of_two(name: &'static str, about: &'static str, parts: Parts) -> Scenario {
    Scenario {
        name,
        about,
        expect: Expect::Fast,
        mark: Mark::Accelerated,
        skip: &[],
        length: 1,
        seconds: 0,
        tcp_between_hosts: false,
        rdma_environment: &[],
        parts,
    }
}

/// One process.
pub const fn alone(name: &'static str, about: &'static str, body: fn(&Ctx)) -> Scenario {
    Scenario {
        name,
        about,
        expect: Expect::Any,
        mark: Mark::PassedThrough,
        skip: &[],
        length: 1,
        seconds: 0,
        tcp_between_hosts: false,
        rdma_environment: &[],
        parts: Parts::Alone(body),
    }
}

impl Scenario {
    /// An operation that the fast path does not carry: the connection moves back to TCP, or never
    /// left it.
    pub const fn demoted(mut self) -> Scenario {
        self.mark = Mark::Demoted;
        self
    }

    /// The library is not involved in the result.
    pub const fn passed_through(mut self) -> Scenario {
        self.mark = Mark::PassedThrough;
        self
    }

    /// Why none of its connections has the carrier of one before it in the mode `fast`.
    pub fn own_carriers(&self) -> Option<&'static str> {
        OWN_CARRIERS.iter().find(|(name, _)| *name == self.name).map(|(_, why)| *why)
    }

    /// Not run in these modes, for the reason that stands with each.
    pub const fn skip(mut self, modes: &'static [(&'static str, &'static str)]) -> Scenario {
        self.skip = modes;
        self
    }

    /// Hundreds of connections or listeners, about each of which `netacc_ss` is asked: it may take
    /// longer before it counts as stuck.
    pub const fn long(mut self) -> Scenario {
        self.length = 4;
        self
    }

    /// It waits for so many seconds, whatever the machine does.
    pub const fn waits(mut self, seconds: u32) -> Scenario {
        self.seconds = seconds;
        self
    }

    /// Between hosts its connections stay on TCP, for what it does with them.
    pub const fn stays_on_tcp_between_hosts(mut self) -> Scenario {
        self.tcp_between_hosts = true;
        if matches!(self.expect, Expect::Fast) {
            self.expect = Expect::Shm;
        }
        self
    }

    /// The library's environment has this besides, in the mode `rdma`.
    pub const fn over_rdma_with(
        mut self,
        environment: &'static [(&'static str, &'static str)],
    ) -> Scenario {
        self.rdma_environment = environment;
        self
    }

    /// Acceleration is not required.
    pub const fn any_path(mut self) -> Scenario {
        self.expect = Expect::Any;
        self
    }

    /// Acceleration is required within the host alone.
    pub const fn only_shm(mut self) -> Scenario {
        self.expect = Expect::Shm;
        self
    }

    /// Its addresses are of the loopback interface.
    pub const fn loopback(mut self) -> Scenario {
        self.expect = Expect::Shm;
        self
    }

    pub fn run(&self, ctx: &Ctx) {
        match (&self.parts, ctx.role) {
            (Parts::Pair { server, .. }, Role::Server) => server(ctx),
            (Parts::Pair { client, .. }, Role::Client) => client(ctx),
            (Parts::Obeyed(server), Role::Server) => {
                server(ctx, ctx.server());
                ctx.tell("x");
            }
            (Parts::Obeyed(_), Role::Client) => obedient(ctx, 1),
            (Parts::Alone(body), _) => body(ctx),
            (_, Role::Alone) => panic!("a pair has no lone role"),
        }
    }
}

pub fn all() -> Vec<Scenario> {
    let mut list = Vec::new();
    list.extend(scenarios::data::list());
    list.extend(scenarios::calls::list());
    list.extend(scenarios::cancelled::list());
    list.extend(scenarios::close::list());
    list.extend(scenarios::ends::list());
    list.extend(scenarios::memory::list());
    list.extend(scenarios::exhausted::list());
    list.extend(scenarios::epoll::list());
    list.extend(scenarios::sets::list());
    list.extend(scenarios::poll::list());
    list.extend(scenarios::looks::list());
    list.extend(scenarios::looks_ends::list());
    list.extend(scenarios::fds::list());
    list.extend(scenarios::fds::stdio::list());
    list.extend(scenarios::connect::list());
    list.extend(scenarios::lives::list());
    list.extend(scenarios::listens::list());
    list.extend(scenarios::options::list());
    list.extend(scenarios::process::list());
    list.extend(scenarios::rights::list());
    list.extend(scenarios::rings::list());
    list.extend(scenarios::raw::list());
    list.extend(scenarios::rendezvous::list());
    list.extend(scenarios::threads::list());
    list.extend(scenarios::unread::list());
    list.extend(scenarios::left::list());
    list.extend(scenarios::signals::list());
    list.extend(scenarios::promotion::list());
    list.extend(scenarios::leaving::list());
    list.extend(scenarios::outgrown::list());
    list.extend(scenarios::adopt::list());
    list.extend(scenarios::hosts::list());
    list
}

pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|s| s.name == name)
}

/// The conformance table.
pub fn markdown() -> String {
    let mut out = String::from("| scenario | behaviour | carried |\n|---|---|---|\n");
    for s in all() {
        let mark = match s.mark {
            Mark::Accelerated => "accelerated",
            Mark::Demoted => "demoted to tcp",
            Mark::PassedThrough => "passed through",
        };
        out.push_str(&format!("| `{}` | {} | {mark} |\n", s.name, s.about.replace('|', "\\|")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_name_scenarios() {
        assert!(OWN_CARRIERS.iter().all(|(name, _)| find(name).is_some()));
    }

    #[test]
    fn scenario_names_are_unique() {
        let mut names: Vec<&str> = all().iter().map(|s| s.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
