//! A connection to another host: how it leaves, whether somebody answers, and what RDMA needs.

use super::connection::{Client, stays_on_tcp};
use super::finding::Findings;
use super::host;
use super::interfaces::{self, Own, Route};
use super::rdma::{self, Port};
use super::remedy::{no_command, show};
use crate::options::VERSION;
use crate::segment::{self, Process};
use crate::show::version;
use netacc_control::stats::{Connection, Path as Way, Reason};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A host answers a SYN within so long.
const CONNECT: Duration = Duration::from_secs(1);
/// A host of the neighbourhood answers within so long.
const NEAR: Duration = Duration::from_millis(500);

/// Looks at it.
pub fn look(to: SocketAddr, own: &[Own], client: Client, findings: &mut Findings) {
    let route = match interfaces::route(to) {
        Ok(route) => route,
        Err(error) => {
            let remedy = show("give this host a route", format!("ip route get {}", to.ip()));
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
            let remedy = no_command("start the server there, with netacc_run", there(to));
            findings.problem("server", format!("nobody listens on {to}"), remedy);
            false
        }
        Err(error) => {
            let remedy = show(
                "have the host up, and its firewall let the port through",
                format!("ping -c 1 {}", to.ip()),
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
                show(reason.remedy(), "rdma link; ip -brief address"),
            );
        }
    }
}

/// Why it is nothing for a command here.
fn there(to: SocketAddr) -> String {
    format!("that is done on {}", to.ip())
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
    rdma::gid(port, route.source, findings);
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
            show(reason.remedy(), format!("ip route get {} from {}", to.ip(), route.source)),
        );
    }
    if answers {
        link(to, findings);
        their_version(to, findings);
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
            no_command(
                "start the server with netacc_run, use a connection from here for a second, and \
                 look again",
                there(to),
            ),
        );
    } else {
        findings.problem(
            "link",
            format!("ports {list}, for the libraries' agreement, do not answer: a firewall?"),
            no_command(
                format!("let TCP to these ports through the firewall, as nftables' tcp dport {{ {list} }} accept"),
                there(to) + ", or between",
            ),
        );
    }
}

/// Which library the other end has, as a process of this host knows that has a connection there: it
/// is said in the agreement, which is about a connection that both ends have. Nobody is asked here.
fn their_version(to: SocketAddr, findings: &mut Findings) {
    let processes = segment::pids().unwrap_or_default();
    let processes = processes.into_iter().filter_map(|pid| segment::read(pid).ok());
    let mut known: Vec<[u16; 3]> = processes.flat_map(|it| versions_at(&it, to)).collect();
    known.sort_unstable();
    known.dedup();
    for is in known.iter().copied().map(version) {
        let found = format!("the version at {} is {is}, here it is {VERSION}", to.ip());
        match is == VERSION {
            true => findings.ok("library", found),
            false => {
                let remedy = no_command("install one release at both ends", there(to));
                findings.note("library", found, remedy);
            }
        }
    }
    if known.is_empty() {
        let found = format!(
            "which version of the library the other end has is not known: no connection from here \
             to there is on RDMA; here it is {VERSION}"
        );
        let said = "use one for a second, and look again; or ask netacc ps there";
        findings.note("library", found, no_command(said, there(to)));
    }
}

/// Those of the processes over there, of a process that has a connection to that place on RDMA.
fn versions_at(process: &Process, to: SocketAddr) -> Vec<[u16; 3]> {
    let rdma = Way::Rdma as u32;
    let is_there =
        |it: &Connection| it.peer == Some(to) && (it.tx_path == rdma || it.rx_path == rdma);
    if !process.connections.iter().any(|it| is_there(&it)) {
        return Vec::new();
    }
    let channels = process.header.channels.iter();
    channels.filter(|it| it.peer == Some(to.ip())).filter_map(|it| it.library).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_ports_are_those_of_the_library() {
        assert_eq!(link_ports(6379), [26380, 26381, 26382, 26383]);
        assert_eq!(link_ports(45534), [65534, 65535, 25536, 25537]);
        assert_eq!(link_ports(65535).first(), Some(&45535));
    }
}
