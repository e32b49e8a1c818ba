//! A connection that is not there yet: which path would it take, and what is in the way of a faster
//! one?

use super::finding::Findings;
use super::interfaces::{self, Own, Route};
use super::look::Status;
use super::rdma::{self, Port};
use super::rules;
use super::{host, look, process};
use crate::addresses;
use crate::launch::Environment;
use crate::options::VERSION;
use crate::segment::{self, Process, SegmentError};
use crate::show::one_line;
use netacc_control::config::{Config, Key, Paths, parse_rendered};
use netacc_control::stats::{Path as Way, Reason};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A name server answers within so long.
const RESOLVE: Duration = Duration::from_secs(5);
/// A host answers a SYN within so long.
const CONNECT: Duration = Duration::from_secs(1);
/// A host of the neighbourhood answers within so long.
const NEAR: Duration = Duration::from_millis(500);
/// A server accepts within so long.
const ACCEPTS: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Addresses of a name that are looked at.
const ADDRESSES: usize = 4;
/// Processes that are named.
const NAMED: usize = 8;

/// Looks at a connection from here to that place.
pub fn look(host: &str, port: u16, findings: &mut Findings) {
    let Some(found) = resolved(host, port, findings) else { return };
    let own = match interfaces::own() {
        Ok(own) => own,
        Err(error) => {
            let found = format!("rtnetlink: {}", std::io::Error::from(error));
            let remedy = "allow AF_NETLINK; what filters here? cat /proc/self/status";
            findings.note("addresses", found, remedy);
            Vec::new()
        }
    };
    let mut environment = Environment::inherited();
    let config = host::config(&mut environment, findings);
    let ends: Vec<(SocketAddr, Client)> = match &config {
        None => found.into_iter().map(|to| (to, Client::default())).collect(),
        Some(config) => {
            let file = host::config_file(&environment);
            host::effect(config, rules::CLIENTS, findings);
            let rule = |to| rules::of_connection(&config.rules, to, &file, findings);
            let left: Vec<_> = found.iter().copied().map(rule).collect();
            found.into_iter().zip(left).map(|(to, left)| (to, Client::of(config, left))).collect()
        }
    };
    each(&ends, &own, findings);
}

/// What the client's end leaves to a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Client {
    paths: Paths,
    /// It is a rule that leaves no others.
    by_rule: bool,
}

impl Client {
    /// `left`: what the rule that holds leaves to it.
    fn of(config: &Config, left: Option<Paths>) -> Client {
        let paths = match left {
            _ if !config.accelerate_by_default || config.accelerate_percent == 0 => Paths::TCP,
            Some(left) => left.within(config.paths),
            None => config.paths,
        };
        Client { paths, by_rule: paths != config.paths && left.is_some() }
    }

    /// What it has none but these of.
    fn says(self) -> String {
        match self.by_rule {
            true => format!("{} alone, by the rule of the client's end,", self.paths),
            false => format!("NACC_PATHS={} of the client's end", self.paths),
        }
    }

    fn remedy(self) -> &'static str {
        match self.by_rule {
            true => "if that was not meant: sudoedit \"${NACC_CONF:-/etc/netacc.conf}\"",
            false => "export NACC_PATHS=shm,rdma",
        }
    }
}

/// Looks at every address of a name.
fn each(found: &[(SocketAddr, Client)], own: &[Own], findings: &mut Findings) {
    // A name may have addresses that nobody serves, beside one that is: clients try them all.
    let is_served = |to: &SocketAddr| {
        interfaces::is_own(to.ip(), own) && !listeners("/proc/self", *to).is_empty()
    };
    let is_any_served = found.iter().any(|(to, _)| is_served(to));
    for (address, client) in found.iter().copied() {
        match interfaces::is_own(address.ip(), own) {
            true if is_any_served && !is_served(&address) => {
                let remedy = format!("ss -ltnp 'sport = :{}'", address.port());
                findings.note("listener", format!("nobody listens on {address}"), remedy);
            }
            true => here(address, client, findings),
            false => elsewhere(address, own, client, findings),
        }
    }
}

fn resolved(host: &str, port: u16, findings: &mut Findings) -> Option<Vec<SocketAddr>> {
    let (sender, receiver) = mpsc::channel();
    let place = (host.to_owned(), port);
    let started = std::thread::Builder::new().spawn(move || {
        let found = place.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let _ = sender.send(found);
    });
    let found = started.ok().and_then(|_| receiver.recv_timeout(RESOLVE).ok());
    let remedy = format!("getent ahosts {host}; /etc/hosts, /etc/resolv.conf");
    match found {
        None => {
            let found = format!("{host}: no name server has answered");
            findings.blind("resolve", found, remedy);
            None
        }
        Some(Err(error)) => {
            findings.blind("resolve", format!("{host}: {error}"), remedy);
            None
        }
        Some(Ok(found)) => {
            let mut addresses: Vec<SocketAddr> = Vec::new();
            for address in found {
                // (127.0.0.1 as ::ffff:127.0.0.1 is the same place.)
                let address = match address {
                    SocketAddr::V6(it) if it.ip().to_ipv4_mapped().is_some() => {
                        SocketAddr::new(address.ip().to_canonical(), port)
                    }
                    it => it,
                };
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            let all: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
            findings.ok("resolve", format!("{host} is {}", all.join(", ")));
            addresses.truncate(ADDRESSES);
            Some(addresses)
        }
    }
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listener {
    local: SocketAddr,
    uid: u32,
    inode: u64,
    /// Connections that wait to be accepted.
    waiting: u32,
}

impl Listener {
    /// Whether it takes connections to an address.
    fn serves(&self, to: SocketAddr) -> bool {
        self.local.port() == to.port()
            && match self.local.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => to.is_ipv4(),
                // (IPV6_V6ONLY does not show.)
                IpAddr::V6(ip) if ip.is_unspecified() => true,
                ip => ip == to.ip(),
            }
    }
}

/// Those of the network namespace of a process, from `/proc`.
fn listeners(directory: &str, to: SocketAddr) -> Vec<Listener> {
    let mut found = Vec::new();
    for name in ["tcp", "tcp6"] {
        let table = look::file(format!("{directory}/net/{name}")).unwrap_or_default();
        found.extend(table.lines().filter_map(listener).filter(|listener| listener.serves(to)));
    }
    found
}

/// The ports on which somebody listens in the network namespace of a process.
pub fn listening_ports(directory: &str) -> Vec<u16> {
    let mut found = Vec::new();
    for name in ["tcp", "tcp6"] {
        let table = look::file(format!("{directory}/net/{name}")).unwrap_or_default();
        found.extend(table.lines().filter_map(listener).map(|listener| listener.local.port()));
    }
    found
}

/// A row of the kernel's table that listens.
fn listener(line: &str) -> Option<Listener> {
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let local = addresses::address(words.next()?)?;
    let is_listener = words.nth(1)? == LISTEN;
    let (_, waiting) = words.next()?.split_once(':')?;
    let waiting = u32::from_str_radix(waiting, 16).ok()?;
    let uid = words.nth(2)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    is_listener.then_some(Listener { local, uid, inode, waiting })
}

/// The processes that hold one of these sockets, and whether some could not be asked.
fn holders(listeners: &[Listener]) -> (Vec<u32>, bool) {
    let mut found = Vec::new();
    let mut is_partial = false;
    for pid in segment::pids().unwrap_or_default() {
        let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(entries) => entries,
            Err(error) => {
                is_partial |= error.kind() == ErrorKind::PermissionDenied;
                continue;
            }
        };
        let mut links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let is_one = links.any(|link| {
            let inode = link.to_str().and_then(addresses::socket_inode);
            inode.is_some_and(|inode| listeners.iter().any(|listener| listener.inode == inode))
        });
        if is_one {
            found.push(pid);
        }
    }
    (found, is_partial)
}

/// A connection within this host.
fn here(to: SocketAddr, client: Client, findings: &mut Findings) {
    let listeners = listeners("/proc/self", to);
    if listeners.is_empty() {
        nobody(to, findings);
        return;
    }
    let (pids, is_partial) = holders(&listeners);
    let mut is_stopped = false;
    for pid in &pids {
        is_stopped |= stopped(*pid, to, findings);
    }
    if !is_stopped {
        hangs(&listeners, &pids, to, findings);
    }
    if pids.is_empty() {
        let uid = listeners.first().map_or(0, |listener| listener.uid);
        let found = format!("a process of user {uid} listens on {to}, which may not be looked at");
        // What a process with the library shows to everybody in its network namespace.
        if has_advert(to.port()) {
            findings.ok("listener", format!("{found}; it has the library"));
            let found = "how its end is configured is not known";
            findings.note("config", found, format!("sudo netacc doctor {to}"));
            within_host(to, client, findings);
        } else if is_partial {
            findings.blind("listener", found, format!("sudo netacc doctor {to}"));
        } else {
            let found = format!("nobody in sight holds the socket that listens on {to}");
            findings.blind("listener", found, format!("look from its host: netacc doctor {to}"));
        }
        return;
    }
    if servers(&pids, to, client.paths, findings) {
        within_host(to, client, findings);
    } else {
        stays_on_tcp(to, findings);
    }
}

/// Whether one of the processes that listen takes a connection to a faster path. `paths`: the
/// client's end's.
fn servers(pids: &[u32], to: SocketAddr, paths: Paths, findings: &mut Findings) -> bool {
    let mut accelerate = 0;
    for pid in pids.iter().copied().take(NAMED) {
        let name = one_line(&segment::name(pid).unwrap_or_default());
        let who = format!("process {pid} ({name}) listens on {to}");
        match segment::read(pid) {
            Ok(server) => {
                findings.ok("listener", format!("{who}, and has the library"));
                process::loaded(&server, "the server's", findings);
                let before = findings.problems();
                servers_end(&server, to, paths, findings);
                accelerate += usize::from(findings.problems() == before);
            }
            Err(SegmentError::NoSegment) => {
                accelerate += 1;
                findings.ok("listener", format!("{who}, and has the library"));
            }
            Err(SegmentError::Unreadable(error)) => {
                let remedy = format!(
                    "start it again with this release's library; of which unit is it? systemctl \
                     status {pid}"
                );
                findings.problem("listener", format!("{who}; {error}"), remedy);
            }
            Err(SegmentError::NotLoaded) => findings.problem(
                "listener",
                format!("{who}, and runs without the library"),
                format!("start it again with netacc_run; would that help? netacc doctor {pid}"),
            ),
            Err(error) => {
                let remedy = format!("sudo netacc doctor {to}");
                findings.blind("listener", format!("{who}; {error}"), remedy);
            }
        }
    }
    if pids.len() > NAMED {
        let found = format!("{} more processes listen on {to}", pids.len() - NAMED);
        findings.note("listener", found, "netacc ps");
    }
    accelerate > 0
}

/// What the configuration of a process that listens, and its rules, keep on TCP. `clients`: the
/// paths of the client's end.
fn servers_end(server: &Process, to: SocketAddr, clients: Paths, findings: &mut Findings) {
    let end = format!("the server's end, process {}: ", server.pid);
    process::configured(server, &end, findings);
    let as_it_is = format!("as it is: netacc cfg get NACC_PATHS -p {}", server.pid);
    let paths = parse_rendered(&server.header.config).find(|(key, ..)| *key == Key::Paths.name());
    let paths = paths.and_then(|(_, value, _)| Paths::parse(value).ok());
    if let Some(paths) = paths.filter(|paths| !paths.is_empty() && !serve_within(*paths, to)) {
        findings.problem(
            "config",
            format!("{end}NACC_PATHS={paths} leaves connections within the host on TCP"),
            format!("NACC_PATHS=shm,rdma,utcp where it is started, and start it again; {as_it_is}"),
        );
    } else if let Some(paths) = paths.filter(|paths| has_none_of(*paths, clients, to)) {
        findings.problem(
            "config",
            format!(
                "{end}NACC_PATHS={paths} has no path of the client's end, NACC_PATHS={clients}"
            ),
            format!("NACC_PATHS=shm,rdma at both ends, and start them again; {as_it_is}"),
        );
    }
    // (Who connects to an address of this host has that one, too, unless it has chosen another.)
    rules::of_server(server, to.ip(), to, findings);
}

/// Whether a process that listens is stopped: it accepts nothing, and answers nobody.
fn stopped(pid: u32, to: SocketAddr, findings: &mut Findings) -> bool {
    let status = Status::of(&format!("/proc/{pid}")).ok();
    let is = status.and_then(|it| it.field("State:").map(|state| state.starts_with(['T', 't'])));
    if is == Some(true) {
        let name = one_line(&segment::name(pid).unwrap_or_default());
        let found = format!(
            "process {pid} ({name}), which listens on {to}, is stopped: it accepts nothing and \
             answers nobody"
        );
        findings.problem("state", found, format!("kill -CONT {pid}"));
    }
    is == Some(true)
}

/// Says so of listeners whose connections wait, and of which none is accepted.
fn hangs(listeners: &[Listener], pids: &[u32], to: SocketAddr, findings: &mut Findings) {
    let mut looks = vec![waiting(listeners)];
    let end = Instant::now() + ACCEPTS;
    while has_accepted_none(&looks) {
        if Instant::now() >= end {
            let waiting = looks.last().map_or(0, |all| all.iter().sum::<u32>());
            let found = format!(
                "{waiting} connections to {to} wait to be accepted, and none has been in {} s: the \
                 server hangs, or is busy with something else",
                ACCEPTS.as_secs()
            );
            let remedy = match pids {
                [] => format!("sudo netacc doctor {to}"),
                [pid, ..] => format!(
                    "where is it? cat /proc/{pid}/wchan; gdb -p {pid} -batch -ex 'thread apply all \
                     bt'; then start it again"
                ),
            };
            findings.problem("accept", found, remedy);
            return;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        let now = self::listeners("/proc/self", to);
        let of = |one: &Listener| now.iter().find(|it| it.inode == one.inode);
        looks.push(listeners.iter().map(|one| of(one).map_or(0, |it| it.waiting)).collect());
    }
}

fn waiting(listeners: &[Listener]) -> Vec<u32> {
    listeners.iter().map(|listener| listener.waiting).collect()
}

/// Whether, of looks at how many wait at each listener, some wait at one, and at none they became
/// fewer.
fn has_accepted_none(looks: &[Vec<u32>]) -> bool {
    let became_fewer =
        looks.windows(2).any(|two| two[0].iter().zip(&two[1]).any(|(was, is)| is < was));
    !became_fewer && looks.last().is_some_and(|all| all.iter().any(|waiting| *waiting > 0))
}

/// Whether one of these paths serves connections to an address of this host.
pub fn serve_within(paths: Paths, to: SocketAddr) -> bool {
    paths.contains(Way::Shm) || (paths.contains(Way::Rdma) && !to.ip().is_loopback())
}

/// Whether both ends have paths within the host, and none in common.
fn has_none_of(paths: Paths, others: Paths, to: SocketAddr) -> bool {
    let both = |way| paths.contains(way) && others.contains(way);
    let in_common = both(Way::Shm) || (both(Way::Rdma) && !to.ip().is_loopback());
    !in_common && serve_within(paths, to) && serve_within(others, to)
}

/// The path to a server of this host that has the library, by the paths of the client's end.
fn within_host(to: SocketAddr, client: Client, findings: &mut Findings) {
    let paths = client.paths;
    if paths.is_empty() {
        return stays_on_tcp(to, findings);
    }
    if !serve_within(paths, to) {
        let found = format!("to {to}: TCP: {} has no shared memory", client.says());
        findings.problem("path", found, client.remedy());
        return;
    }
    let path = match paths.contains(Way::Shm) {
        true => "shared memory",
        false => "RDMA, where a device has this address",
    };
    let found = format!("to {to}: {path}, if the client has the library, too (netacc_run)");
    findings.ok("path", found);
}

/// What keeps it there has been said.
fn stays_on_tcp(to: SocketAddr, findings: &mut Findings) {
    findings.ok("path", format!("to {to}: TCP, as it is"));
}

/// Whether a process with the library says that it accepts at a port.
fn has_advert(port: u16) -> bool {
    let table = look::file("/proc/self/net/unix").unwrap_or_default();
    let name = format!(" @netacc/1/{port}/");
    table.lines().any(|line| line.contains(&name))
}

/// Nobody listens there in this network namespace. Elsewhere?
fn nobody(to: SocketAddr, findings: &mut Findings) {
    let mut seen = vec![look::namespace("/proc/self", "net")];
    for pid in segment::pids().unwrap_or_default() {
        let directory = format!("/proc/{pid}");
        let namespace = look::namespace(&directory, "net");
        if seen.contains(&namespace) || namespace.is_none() {
            continue;
        }
        seen.push(namespace);
        let mut there = listeners(&directory, SocketAddr::new(IpAddr::from([0; 4]), to.port()));
        there.extend(listeners(&directory, to));
        if there.is_empty() {
            continue;
        }
        // (The one that listens may be in sight, or not; any process of its namespace leads to it.)
        let (holders, _) = holders(&there);
        let (pid, whose) = match holders.first() {
            Some(holder) => (*holder, ", which listens there"),
            None => (pid, ""),
        };
        let name = one_line(&segment::name(pid).unwrap_or_default());
        findings.problem(
            "listener",
            format!(
                "nobody listens on {to} here, but on port {} in the network namespace of process \
                 {pid} ({name}){whose}: a connection that is led there stays on TCP",
                to.port()
            ),
            format!(
                "put both ends into one network namespace: --network=host, --network=container:…, \
                 one pod; or give each an RDMA device; to look from there: nsenter -t {pid} -n \
                 netacc doctor {to}"
            ),
        );
        return;
    }
    let remedy =
        format!("start the server with netacc_run; who listens? ss -ltnp 'sport = :{}'", to.port());
    findings.problem("listener", format!("nobody listens on {to}"), remedy);
}

/// A connection to another host.
fn elsewhere(to: SocketAddr, own: &[Own], client: Client, findings: &mut Findings) {
    let route = match interfaces::route(to) {
        Ok(route) => route,
        Err(error) => {
            let remedy = format!("ip route get {}", to.ip());
            findings.problem("route", format!("to {}: {error}", to.ip()), remedy);
            return;
        }
    };
    let Route { source, interface, gateway } = &route;
    let over = gateway.map_or_else(String::new, |gateway| format!(" over {gateway}"));
    findings.ok("route", format!("from {source} by {interface}{over}"));
    let answers = match TcpStream::connect_timeout(&to, CONNECT) {
        Ok(_) => {
            findings.ok("server", format!("{to} takes connections"));
            true
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let remedy = "start the server there, with netacc_run";
            findings.problem("server", format!("nobody listens on {to}"), remedy);
            false
        }
        Err(error) => {
            let remedy = format!(
                "is the host up, and does a firewall let the port through? ping -c 1 {}",
                to.ip()
            );
            findings.problem("server", format!("{to} does not answer: {error}"), remedy);
            false
        }
    };
    let paths = client.paths;
    match device(&route, own).filter(|_| paths.contains(Way::Rdma)) {
        _ if paths.is_empty() => stays_on_tcp(to, findings),
        Some(port) => over_rdma(to, answers, &route, &port, findings),
        None if paths.contains(Way::Utcp) => {
            let found = "TCP in user space (utcp), whether the other end has the library or not";
            findings.ok("path", format!("to {to}: {found}, where nothing above is in the way"));
        }
        None if !paths.contains(Way::Rdma) => findings.problem(
            "path",
            format!("to {to}: TCP: {} has no RDMA", client.says()),
            client.remedy(),
        ),
        None => {
            let reason = Reason::NoRdmaDevice;
            findings.problem(
                "path",
                format!(
                    "to {to}: TCP ({}): {source} belongs to no RDMA device here",
                    reason.name()
                ),
                reason.remedy(),
            );
        }
    }
}

/// The port of a device that has the source's address.
fn device(route: &Route, own: &[Own]) -> Option<Port> {
    let of_source = own.iter().find(|own| own.ip == route.source);
    let interface = of_source.map(|own| own.interface.as_str());
    rdma::ports().into_iter().find(|port| port.has(route.source, interface))
}

fn over_rdma(to: SocketAddr, answers: bool, route: &Route, port: &Port, findings: &mut Findings) {
    let before = findings.problems();
    rdma::state(port, findings);
    rdma::access(findings);
    rdma::libraries(findings);
    host::limits("/proc/self", true, findings);
    let leaves_elsewhere = !route.interface.is_empty()
        && !port.interfaces.is_empty()
        && !port.interfaces.contains(&route.interface);
    if leaves_elsewhere {
        let reason = Reason::NotInReach;
        findings.problem(
            "reach",
            format!(
                "packets to {} leave by {}, and the device is on {} ({})",
                to.ip(),
                route.interface,
                port.interfaces.join(", "),
                reason.name()
            ),
            format!("ip route get {} from {}", to.ip(), route.source),
        );
    }
    if answers {
        link(to, findings);
        unknown_version(to, findings);
    }
    let device = &port.device;
    match findings.problems() == before {
        true => findings.ok(
            "path",
            format!("to {to}: RDMA ({device}), if both ends have the library (netacc_run)"),
        ),
        false => stays_on_tcp(to, findings),
    }
}

/// Ports at which the server's library may be, in the order in which they are tried: the first four
/// from port + 20000 on, 40000 less above 65535, without those of programs that run beside others
/// (`docs/manual/rdma.md`, "Ports and firewalls").
fn link_ports(port: u16) -> Vec<u16> {
    const OFFSET: u32 = 20_000;
    const TRIED: usize = 4;
    const NEIGHBOURS: [u16; 6] = [26379, 25672, 29092, 27017, 27018, 27019];
    let first = u32::from(port) + OFFSET;
    let wrapped = |at: u32| if at > 65_535 { at - 2 * OFFSET } else { at };
    let ports = (first..).filter_map(|at| u16::try_from(wrapped(at)).ok());
    ports.filter(|port| !NEIGHBOURS.contains(port)).take(TRIED).collect()
}

/// Whether the server's library can be reached. (One port after the other, and no more than needed:
/// siw takes it ill when connections to a port end at once.)
fn link(to: SocketAddr, findings: &mut Findings) {
    let ports = link_ports(to.port());
    let mut refused = 0;
    for port in ports.iter().copied() {
        match TcpStream::connect_timeout(&SocketAddr::new(to.ip(), port), NEAR) {
            Ok(_) => {
                findings.ok("link", format!("port {port}, for the libraries' agreement, is open"));
                return;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => refused += 1,
            Err(_) => {}
        }
    }
    let list: Vec<String> = ports.iter().map(u16::to_string).collect();
    let list = list.join(", ");
    if refused == ports.len() {
        findings.note(
            "link",
            format!(
                "no library is at ports {list}: the server has none, or no connection from another \
                 host has been used yet"
            ),
            "start the server with netacc_run, use a connection from here for a second, and look \
             again",
        );
    } else {
        findings.problem(
            "link",
            format!("ports {list}, for the libraries' agreement, do not answer: a firewall?"),
            format!("on the server: nft add rule inet filter input tcp dport {{ {list} }} accept"),
        );
    }
}

/// The library's version at the other end is said in the agreement alone, which is between two
/// libraries, over RDMA, and about a connection that both have: nobody is asked for it here.
fn unknown_version(to: SocketAddr, findings: &mut Findings) {
    findings.note(
        "library",
        format!(
            "which version of the library the other end has is not known; here it is {VERSION}"
        ),
        format!("ask there: netacc ps (on {})", to.ip()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ends_that_have_no_path_in_common() {
        let (here, loopback) = (at("10.0.0.1:80"), at("127.0.0.1:80"));
        for (one, other, to, is_none) in [
            ("shm", "rdma", here, true),
            ("shm,rdma", "rdma", here, false),
            ("shm,rdma", "shm,utcp", here, false),
            ("shm,utcp", "rdma,utcp", here, true),
            // What either end keeps on TCP is said of that end.
            ("shm", "rdma", loopback, false),
            ("utcp", "shm", here, false),
        ] {
            let of = |text| Paths::parse(text).unwrap();
            for (a, b) in [(one, other), (other, one)] {
                assert_eq!(has_none_of(of(a), of(b), to), is_none, "{a} and {b}, {to}");
            }
        }
    }

    #[test]
    fn listening_rows_are_read() {
        let row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000011 00:00000000 00000000  \
                   1000        0 4711 1 0000000000000000 100 0 0 10 0";
        let found = listener(row).unwrap();
        let local = at("127.0.0.1:8080");
        assert_eq!(found, Listener { local, uid: 1000, inode: 4711, waiting: 17 });
        assert_eq!(listener(&row.replace(" 0A ", " 01 ")), None, "a connection");
        assert_eq!(listener("  sl  local_address rem_address   st"), None);
        assert_eq!(listener("garbage"), None);
        assert!(found.serves(at("127.0.0.1:8080")) && !found.serves(at("127.0.0.2:8080")));
        let any = |local| Listener { local: at(local), uid: 0, inode: 1, waiting: 0 };
        assert!(any("0.0.0.0:80").serves(at("10.0.0.1:80")));
        assert!(!any("0.0.0.0:80").serves(at("[::1]:80")));
        assert!(any("[::]:80").serves(at("10.0.0.1:80")) && !any("[::]:80").serves(at("[::1]:81")));
    }

    #[test]
    fn a_server_that_accepts_does_not_hang() {
        for (looks, is) in [
            (&[][..], false),
            (&[[0, 0]], false),
            (&[[0, 1]], true),
            (&[[1, 0], [2, 0], [2, 1]], true),
            (&[[2, 5], [1, 5]], false),
            (&[[2, 5], [1, 5], [2, 5]], false),
            (&[[1, 0], [0, 0]], false),
        ] {
            let all: Vec<Vec<u32>> = looks.iter().map(|look| look.to_vec()).collect();
            assert_eq!(has_accepted_none(&all), is, "{looks:?}");
        }
    }

    #[test]
    fn link_ports_are_those_of_the_library() {
        assert_eq!(link_ports(6379), [26380, 26381, 26382, 26383]);
        assert_eq!(link_ports(45534), [65534, 65535, 25536, 25537]);
        assert_eq!(link_ports(65535).first(), Some(&45535));
    }

    #[test]
    fn the_holder_of_a_listener_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let found = listeners("/proc/self", socket.local_addr().unwrap());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(holders(&found).0.contains(&std::process::id()));
    }

    #[test]
    fn an_address_that_nobody_serves_beside_one_that_is_served_is_in_nobodys_way() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let served = socket.local_addr().unwrap();
        let not = SocketAddr::new("127.0.0.2".parse().unwrap(), served.port());
        let levels = |found: &[SocketAddr]| {
            let mut findings = Findings::default();
            let found: Vec<_> = found.iter().map(|to| (*to, Client::default())).collect();
            each(&found, &[], &mut findings);
            let told = findings.json("connection", "c");
            let all = told["findings"].as_array().unwrap().iter();
            let nobody = all.filter(|f| f["found"].as_str().unwrap().contains("nobody listens"));
            nobody.map(|f| f["level"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(levels(&[not, served]), ["note"]);
        assert_eq!(levels(&[not]), ["problem"]);
        assert!(levels(&[served]).is_empty());
    }
}
