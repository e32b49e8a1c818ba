//! A connection that is not there yet: which path would it take, and what is in the way of a faster
//! one?

use super::commands::{as_its_user, as_root, enable, look_closer, netacc, restart};
use super::finding::Findings;
use super::interfaces::{self, Own};
use super::look::Status;
use super::remedy::{Command, Remedy, no_command, show};
use super::{elsewhere, host, look, process, rules};
use crate::addresses;
use crate::launch::Environment;
use crate::segment::{self, Process, SegmentError};
use crate::show::{one_line, shell_word};
use netacc_control::config::{Config, Key, Paths, parse_rendered};
use netacc_control::stats::Path as Way;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A name server answers within so long.
const RESOLVE: Duration = Duration::from_secs(5);
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
            let said = "let the filter of system calls pass AF_NETLINK";
            findings.note("addresses", found, host::filtered(said));
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
pub struct Client {
    /// They.
    pub paths: Paths,
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
    pub fn says(self) -> String {
        match self.by_rule {
            true => format!("{} alone, by the rule of the client's end,", self.paths),
            false => format!("NACC_PATHS={} of the client's end", self.paths),
        }
    }

    /// What leaves it more.
    pub fn remedy(self) -> Remedy {
        match self.by_rule {
            true => rules::correct(&host::config_file(&Environment::inherited())),
            false => host::put(Key::Paths, "shm,rdma"),
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
                let remedy = show("see who listens at that port", listen_at(address.port()));
                findings.note("listener", format!("nobody listens on {address}"), remedy);
            }
            true => here(address, client, findings),
            false => elsewhere::look(address, own, client, findings),
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
    let remedy = show(
        "put the name into /etc/hosts, or a name server that has it into /etc/resolv.conf",
        format!("getent ahosts {}", shell_word(host)),
    );
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
    listening(directory).iter().map(SocketAddr::port).collect()
}

/// Where they can be reached from there.
pub fn listening(directory: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for name in ["tcp", "tcp6"] {
        let table = look::file(format!("{directory}/net/{name}")).unwrap_or_default();
        found.extend(table.lines().filter_map(listener).map(|listener| within(listener.local)));
    }
    found
}

/// An address of a listener that leads to it: of one that has all, that of loopback.
fn within(local: SocketAddr) -> SocketAddr {
    let ip = match local.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, local.port())
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
            findings.note("config", found, as_root_at(to));
            within_host(to, client, findings);
        } else if is_partial {
            findings.blind("listener", found, as_root_at(to));
        } else {
            let found = format!("nobody in sight holds the socket that listens on {to}");
            let remedy = no_command(
                format!("run netacc doctor {to} where that process is in sight: on the host"),
                "it is of another PID namespace, to which nothing leads from here",
            );
            findings.blind("listener", found, remedy);
        }
        return;
    }
    if servers(&pids, to, client.paths, findings) {
        within_host(to, client, findings);
    } else {
        stays_on_tcp(to, findings);
    }
}

fn as_root_at(to: SocketAddr) -> Remedy {
    show("look as root", look_closer(&shell_word(&to.to_string())))
}

/// Who listens at a port, at whichever address.
fn listen_at(port: u16) -> String {
    as_root(&format!("ss -ltnp 'sport = :{port}'"))
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
                let remedy = restart(pid).with("start it again with this release's library");
                findings.problem("listener", format!("{who}; {error}"), remedy);
            }
            Err(SegmentError::NotLoaded) => findings.problem(
                "listener",
                format!("{who}, and runs without the library"),
                enabled(pid),
            ),
            Err(error) => {
                findings.blind("listener", format!("{who}; {error}"), as_root_at(to));
            }
        }
    }
    if pids.len() > NAMED {
        let found = format!("{} more processes listen on {to}", pids.len() - NAMED);
        let port = to.port();
        findings.note("listener", found, show("see them all", listen_at(port)));
    }
    accelerate > 0
}

/// What gives a process the library, or tells whether that would help.
fn enabled(pid: u32) -> Remedy {
    match enable(pid) {
        mends @ Command::Mends(_) => mends,
        _ => Command::Shows(netacc(&format!("doctor {pid}"))),
    }
    .with(process::WITH_LIBRARY)
}

/// What the configuration of a process that listens, and its rules, keep on TCP. `clients`: the
/// paths of the client's end.
fn servers_end(server: &Process, to: SocketAddr, clients: Paths, findings: &mut Findings) {
    let end = format!("the server's end, process {}: ", server.pid);
    process::configured(server, &end, findings);
    let other = |better| process::set_in(server, Key::Paths, better);
    let paths = parse_rendered(&server.header.config).find(|(key, ..)| *key == Key::Paths.name());
    let paths = paths.and_then(|(_, value, _)| Paths::parse(value).ok());
    if let Some(paths) = paths.filter(|paths| !paths.is_empty() && !serve_within(*paths, to)) {
        findings.problem(
            "config",
            format!("{end}NACC_PATHS={paths} leaves connections within the host on TCP"),
            other("shm,rdma,utcp"),
        );
    } else if let Some(paths) = paths.filter(|paths| has_none_of(*paths, clients, to)) {
        findings.problem(
            "config",
            format!(
                "{end}NACC_PATHS={paths} has no path of the client's end, NACC_PATHS={clients}"
            ),
            other("shm,rdma"),
        );
    }
    // (Who connects to an address of this host has that one, too, unless it has chosen another.)
    rules::of_server(server, to.ip(), to, findings);
}

/// Whether a process that listens is stopped: it accepts nothing, and answers nobody.
fn stopped(pid: u32, to: SocketAddr, findings: &mut Findings) -> bool {
    let status = Status::of(&format!("/proc/{pid}")).ok();
    let state = status.and_then(|it| it.field("State:")?.chars().next());
    let stopped = state.filter(|state| ['T', 't'].contains(state));
    if let Some(state) = stopped {
        let name = one_line(&segment::name(pid).unwrap_or_default());
        let found = format!(
            "process {pid} ({name}), which listens on {to}, is stopped: it accepts nothing and \
             answers nobody"
        );
        findings.problem("state", found, process::go_on(pid, state));
    }
    stopped.is_some()
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
                [] => as_root_at(to),
                [pid, ..] => show("see where it is, and start it again", place_of(*pid)),
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

/// Where the threads of a process are.
fn place_of(pid: u32) -> String {
    // (A debugger would stop it for as long as it looks.)
    as_its_user(pid, &format!("grep . /proc/{pid}/task/*/wchan"))
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
pub fn stays_on_tcp(to: SocketAddr, findings: &mut Findings) {
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
            show(
                "put both ends into one network namespace: one pod, --network=host, or \
                 --network=container: with the name of the other; or give each an RDMA device; it \
                 can be looked at from there",
                as_root(&format!(
                    "nsenter -t {pid} -n {}",
                    netacc(&format!("doctor {}", shell_word(&to.to_string())))
                )),
            ),
        );
        return;
    }
    let remedy = show("start the server with netacc_run", listen_at(to.port()));
    findings.problem("listener", format!("nobody listens on {to}"), remedy);
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
