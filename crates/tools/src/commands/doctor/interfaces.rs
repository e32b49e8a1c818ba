//! The addresses of this network namespace and their interfaces, from rtnetlink(7).

use super::look;
use crate::addresses::message;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, sendto, socket_with};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

/// An address of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// It.
    pub ip: IpAddr,
    /// The name of its interface.
    pub interface: String,
}

/// All addresses.
pub fn own() -> Result<Vec<Own>, Errno> {
    let names = named();
    let found = asked()?.into_iter().map(|(index, ip)| {
        let name = names.iter().find(|(of, _)| *of == index).map(|(_, name)| name.clone());
        Own { ip, interface: name.unwrap_or_else(|| format!("interface {index}")) }
    });
    Ok(found.collect())
}

/// The interfaces by their numbers.
fn named() -> Vec<(u32, String)> {
    let names = look::names("/sys/class/net").into_iter();
    names
        .filter_map(|name| {
            let index = look::number(format!("/sys/class/net/{name}/ifindex"))?;
            Some((u32::try_from(index).ok()?, name))
        })
        .collect()
}

/// Whether an address is this host's; all of 127.0.0.0/8 is.
pub fn is_own(ip: IpAddr, own: &[Own]) -> bool {
    ip.is_loopback() || own.iter().any(|other| other.ip == ip)
}

/// How packets to a peer leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The address here.
    pub source: IpAddr,
    /// The name of the interface; unknown: empty.
    pub interface: String,
    /// The gateway, if there is one.
    pub gateway: Option<IpAddr>,
}

/// The route to a peer. (No packet is sent.)
pub fn route(peer: SocketAddr) -> std::io::Result<Route> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    let source = socket.local_addr()?.ip().to_canonical();
    let (index, gateway) = asked_for_route(peer.ip()).unwrap_or_default();
    let interface = named().into_iter().find(|(of, _)| *of == index);
    let interface = interface.map(|(_, name)| name).unwrap_or_default();
    Ok(Route { source, interface, gateway })
}

/// Interface and gateway of a route.
fn asked_for_route(peer: IpAddr) -> Result<(u32, Option<IpAddr>), Errno> {
    const NEW_ROUTE: u16 = 24;
    const RTA_OIF: u16 = 4;
    const RTA_GATEWAY: u16 = 5;
    let with = asked_with(&route_question(peer))?;
    let mut answer = vec![0; 1 << 14];
    let (got, _) = recv(&with, &mut answer[..], RecvFlags::empty())?;
    let (kind, body, _) = message(answer.get(..got).unwrap_or(&[])).ok_or(Errno::IO)?;
    if kind != NEW_ROUTE {
        return Err(Errno::NETUNREACH);
    }
    let (mut index, mut gateway) = (0, None);
    for (kind, value) in attributes(body.get(12..).unwrap_or(&[])) {
        match kind {
            RTA_OIF => index = value.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)),
            RTA_GATEWAY => gateway = address(value),
            _ => {}
        }
    }
    Ok((index, gateway))
}

/// `struct nlmsghdr`, `struct rtmsg` and RTA_DST.
fn route_question(peer: IpAddr) -> Vec<u8> {
    const GET_ROUTE: u16 = 26;
    const REQUEST: u16 = 1;
    const RTA_DST: u16 = 1;
    let (family, octets) = match peer {
        IpAddr::V4(ip) => (2, ip.octets().to_vec()),
        IpAddr::V6(ip) => (10, ip.octets().to_vec()),
    };
    let len = 32 + octets.len();
    let mut bytes = Vec::new();
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(GET_ROUTE.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, octets.len() as u8 * 8]);
    bytes.extend([0; 10]);
    bytes.extend((4 + octets.len() as u16).to_ne_bytes());
    bytes.extend(RTA_DST.to_ne_bytes());
    bytes.extend(octets);
    bytes
}

fn asked_with(question: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    // (NETLINK_ROUTE is 0.)
    let with = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    sendto(&with, question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    Ok(with)
}

/// The kind and the value of each attribute.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        _ => value.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
    }
}

fn asked() -> Result<Vec<(u32, IpAddr)>, Errno> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    const NEW_ADDRESS: u16 = 20;
    let with = asked_with(&question())?;
    let mut found = Vec::new();
    let mut answer = vec![0; 1 << 16];
    loop {
        let (got, _) = recv(&with, &mut answer[..], RecvFlags::empty())?;
        let mut rest = answer.get(..got).unwrap_or(&[]);
        if rest.is_empty() {
            return Err(Errno::IO);
        }
        while let Some((kind, body, next)) = message(rest) {
            match kind {
                DONE => return Ok(found),
                ERROR => return Err(Errno::NOTSUP),
                NEW_ADDRESS => found.extend(address_of(body)),
                _ => {}
            }
            rest = next;
        }
    }
}

/// `struct nlmsghdr` and `struct ifaddrmsg`: the addresses of every family.
fn question() -> [u8; 24] {
    const GET_ADDRESS: u16 = 22;
    const REQUEST_DUMP: u16 = 0x301;
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&24u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&GET_ADDRESS.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    bytes
}

/// The index of the interface and the address that a `struct ifaddrmsg` with its attributes is
/// about: IFA_LOCAL, which a point-to-point link has besides its peer's, or IFA_ADDRESS.
fn address_of(body: &[u8]) -> Option<(u32, IpAddr)> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let mut found = None;
    for (kind, value) in attributes(body.get(8..)?) {
        if kind == IFA_LOCAL || (kind == IFA_ADDRESS && found.is_none()) {
            found = address(value).or(found);
        }
    }
    found.map(|ip| (index, ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_here() {
        let own = own().unwrap();
        let lo = Own { ip: IpAddr::from([127, 0, 0, 1]), interface: String::from("lo") };
        assert!(own.contains(&lo), "{own:?}");
        assert!(is_own("127.0.0.2".parse().unwrap(), &[]));
        assert!(!is_own("198.51.100.1".parse().unwrap(), &own));
        let route = route("127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(route, Route { source: lo.ip, interface: lo.interface, gateway: None });
    }

    #[test]
    fn what_is_no_address_is_none() {
        assert_eq!(address_of(&[]), None);
        assert_eq!(address_of(&[2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 2, 0, 10, 0]), None, "cut off");
        let point_to_point =
            [2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 2, 8, 0, 2, 0, 10, 0, 0, 1];
        let index = u32::from_ne_bytes([7, 0, 0, 0]);
        assert_eq!(address_of(&point_to_point), Some((index, IpAddr::from([10, 0, 0, 1]))));
    }
}
