//! Over which device, and to whom on it, the packets of a flow go: what the kernel's tables say
//! now, by rtnetlink. [`Watch`] hears that something has changed; what, is asked again.

use crate::port::LinkAddress;
use crate::sys::{self, Errno, Fd};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::IpAddr;

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The index of the device.
    pub interface: u32,
    /// Its hardware address.
    pub own: LinkAddress,
    /// That of the next hop.
    pub next_hop: LinkAddress,
    /// The longest packet.
    pub mtu: u32,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The kernel knows none, or was not understood.
    Unknown,
    /// The peer is an address of this host.
    Local,
    /// The device is down.
    Down,
    /// It is no Ethernet.
    NotEthernet,
    /// The kernel does not know the hardware address of the next hop.
    NoNeighbour,
    /// The kernel was not asked.
    NotAsked(Errno),
}

const RTM_GETLINK: u16 = 18;
const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;

/// Finds the route from an address of this host to a peer.
///
/// # Errors
///
/// [`NoRoute`].
pub fn find(own: IpAddr, peer: IpAddr) -> Result<Route, NoRoute> {
    let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)
        .map_err(NoRoute::NotAsked)?;
    let (interface, gateway, route_mtu) = ask_route(&socket, own, peer)?;
    let (own, link_mtu) = ask_link(&socket, interface)?;
    let next_hop = ask_neighbour(&socket, interface, gateway.unwrap_or(peer))?;
    let mtu = route_mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu));
    Ok(Route { interface, own, next_hop, mtu })
}

/// Hears when the kernel's tables change.
#[derive(Debug)]
pub struct Watch {
    socket: Fd,
}

impl Watch {
    /// Of links, neighbours, addresses, routes and rules of this network namespace.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn new() -> Result<Self, Errno> {
        /// Multicast groups, counted from 1: links, neighbours; addresses, routes and rules of IPv4
        /// and of IPv6.
        const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        let groups = GROUPS.iter().fold(0, |bits, group| bits | 1_u32 << (group - 1));
        // struct sockaddr_nl: family, padding, a number that the kernel chooses, groups.
        let family = u16::try_from(libc::AF_NETLINK).unwrap_or(0);
        let mut address = family.to_ne_bytes().to_vec();
        address.extend([0; 6]);
        address.extend(groups.to_ne_bytes());
        sys::bind(socket.number(), &address)?;
        Ok(Self { socket })
    }

    /// The descriptor by which to wait for changes (`POLLIN`).
    #[must_use]
    pub const fn descriptor(&self) -> c_int {
        self.socket.number()
    }

    /// Whether something has changed since the last time.
    pub fn has_changed(&mut self) -> bool {
        const AT_ONCE: usize = 1000;
        let (mut changed, mut bytes) = (false, [0; 64]);
        for _ in 0..AT_ONCE {
            match sys::receive(self.socket.number(), &mut bytes, libc::MSG_DONTWAIT) {
                Ok(_) => changed = true,
                Err(Errno(libc::EAGAIN)) => break,
                // Some are lost (ENOBUFS): the same.
                Err(_) => return true,
            }
        }
        changed
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    u8::try_from(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).unwrap_or(0)
}

fn ask_route(
    socket: &Fd,
    own: IpAddr,
    peer: IpAddr,
) -> Result<(u32, Option<IpAddr>, Option<u32>), NoRoute> {
    const RTA_DST: u16 = 1;
    const RTA_SRC: u16 = 2;
    const RTA_OIF: u16 = 4;
    const RTA_GATEWAY: u16 = 5;
    const RTA_METRICS: u16 = 8;
    const RTAX_MTU: u16 = 2;
    const RTN_UNICAST: u8 = 1;
    const RTN_LOCAL: u8 = 2;
    let (to, from) = (octets(peer), octets(own));
    let bits = u8::try_from(to.len() * 8).unwrap_or(0);
    // struct rtmsg: family, lengths of destination and source, and what the kernel fills in.
    let mut body = alloc::vec![family(peer), bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    append(&mut body, RTA_DST, &to);
    append(&mut body, RTA_SRC, &from);
    let answer = ask(socket, RTM_GETROUTE, &body)?;
    let head: [u8; 12] = first(&answer)?;
    match head {
        [.., RTN_LOCAL, _, _, _, _] => return Err(NoRoute::Local),
        [.., RTN_UNICAST, _, _, _, _] => {}
        _ => return Err(NoRoute::Unknown),
    }
    let (mut interface, mut gateway, mut mtu) = (None, None, None);
    each(answer.get(12..).unwrap_or(&[]), |kind, value| match kind {
        RTA_OIF => interface = number(value),
        RTA_GATEWAY => gateway = Some(address(value)),
        RTA_METRICS => each(value, |kind, value| {
            if kind == RTAX_MTU {
                mtu = number(value);
            }
        }),
        _ => {}
    });
    // (A gateway of the other family, RTA_VIA, is not read: then the neighbour is not known.)
    match gateway {
        Some(None) => Err(NoRoute::Unknown),
        gateway => Ok((interface.ok_or(NoRoute::Unknown)?, gateway.flatten(), mtu)),
    }
}

fn ask_link(socket: &Fd, interface: u32) -> Result<(LinkAddress, u32), NoRoute> {
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_MTU: u16 = 4;
    const ARPHRD_ETHER: u16 = 1;
    const IFF_UP: u32 = 1;
    // struct ifinfomsg: family, type, index, flags, change.
    let mut body = [0; 4].to_vec();
    body.extend(interface.to_ne_bytes());
    body.extend([0; 8]);
    let answer = ask(socket, RTM_GETLINK, &body)?;
    let [_, _, t0, t1, _, _, _, _, f0, f1, f2, f3, ..]: [u8; 16] = first(&answer)?;
    if u16::from_ne_bytes([t0, t1]) != ARPHRD_ETHER {
        return Err(NoRoute::NotEthernet);
    }
    if u32::from_ne_bytes([f0, f1, f2, f3]) & IFF_UP == 0 {
        return Err(NoRoute::Down);
    }
    let (mut own, mut mtu) = (None, None);
    each(answer.get(16..).unwrap_or(&[]), |kind, value| match kind {
        IFLA_ADDRESS => own = LinkAddress::try_from(value).ok(),
        IFLA_MTU => mtu = number(value),
        _ => {}
    });
    own.zip(mtu).ok_or(NoRoute::Unknown)
}

fn ask_neighbour(socket: &Fd, interface: u32, hop: IpAddr) -> Result<LinkAddress, NoRoute> {
    const NDA_DST: u16 = 1;
    const NDA_LLADDR: u16 = 2;
    /// Permanent, no ARP, reachable, or reachable a while ago.
    const VALID: u16 = 0x80 | 0x40 | 0x02 | 0x04 | 0x08 | 0x10;
    // struct ndmsg: family, index, state, flags, type.
    let mut body = [family(hop), 0, 0, 0].to_vec();
    body.extend(interface.to_ne_bytes());
    body.extend([0; 4]);
    append(&mut body, NDA_DST, &octets(hop));
    let answer = ask(socket, RTM_GETNEIGH, &body).map_err(|why| match why {
        NoRoute::Unknown => NoRoute::NoNeighbour,
        other => other,
    })?;
    let [_, _, _, _, _, _, _, _, s0, s1, _, _]: [u8; 12] = first(&answer)?;
    let mut found = None;
    each(answer.get(12..).unwrap_or(&[]), |kind, value| {
        if kind == NDA_LLADDR {
            found = LinkAddress::try_from(value).ok();
        }
    });
    let valid = u16::from_ne_bytes([s0, s1]) & VALID != 0;
    found.filter(|_| valid).ok_or(NoRoute::NoNeighbour)
}

/// Asks one question, and gives the body of its one answer.
fn ask(socket: &Fd, kind: u16, body: &[u8]) -> Result<Vec<u8>, NoRoute> {
    const NLM_F_REQUEST: u16 = 1;
    const HEADER: usize = 16;
    let length = u32::try_from(HEADER + body.len()).unwrap_or(0);
    let mut question = length.to_ne_bytes().to_vec();
    question.extend(kind.to_ne_bytes());
    question.extend(NLM_F_REQUEST.to_ne_bytes());
    question.extend([0; 8]);
    question.extend(body);
    sys::send(socket.number(), &question, 0).map_err(NoRoute::NotAsked)?;
    // (A link has some thousand bytes, with all its statistics. The answer is there already.)
    let mut answer = alloc::vec![0; 16 << 10];
    let got = sys::receive(socket.number(), &mut answer, libc::MSG_DONTWAIT);
    answer.truncate(got.map_err(NoRoute::NotAsked)?);
    let [l0, l1, l2, l3, k0, k1]: [u8; 6] = first(&answer)?;
    let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap_or(0);
    if i32::from(u16::from_ne_bytes([k0, k1])) == libc::NLMSG_ERROR {
        return Err(NoRoute::Unknown);
    }
    let body = answer.get(HEADER..length).ok_or(NoRoute::Unknown)?;
    Ok(body.to_vec())
}

fn first<const N: usize>(bytes: &[u8]) -> Result<[u8; N], NoRoute> {
    bytes.first_chunk().copied().ok_or(NoRoute::Unknown)
}

fn append(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(u16::try_from(4 + value.len()).unwrap_or(0).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Gives each attribute to `f`, up to one that is cut off.
fn each(mut rest: &[u8], mut f: impl FnMut(u16, &[u8])) {
    const KIND: u16 = 0x3fff;
    while let Some(&[l0, l1, k0, k1]) = rest.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = rest.get(4..length) else { return };
        f(u16::from_ne_bytes([k0, k1]) & KIND, value);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written_and_end_where_they_are_cut_off() {
        let mut bytes = Vec::new();
        append(&mut bytes, 4, &7_u32.to_ne_bytes());
        append(&mut bytes, 5 | 0x8000, b"odd");
        append(&mut bytes, 6, b"");
        for end in 0..=bytes.len() {
            let mut seen = Vec::new();
            each(&bytes[..end], |kind, value| seen.push((kind, value.to_vec())));
            let whole = [8, 15, 20].iter().filter(|&&size| end >= size).count();
            assert_eq!(seen.len(), whole, "{end}");
        }
        // Lengths that lie.
        for length in [0_u16, 3, 5, 600] {
            let bytes = [&length.to_ne_bytes()[..], &[1, 0]].concat();
            each(&bytes, |_, _| panic!("{length}"));
        }
    }

    #[test]
    fn a_watch_hears_of_changes_once() {
        let mut watch = Watch::new().unwrap();
        // (Something else may change on this machine: but not always.)
        assert!((0..1000).any(|_| !watch.has_changed()));
    }

    #[test]
    fn an_address_of_this_host_is_no_peer() {
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(find(here, here), Err(NoRoute::Local));
    }
}
