//! Between hosts: can packets from one of this host's addresses get to a peer by the interface that
//! has the address, and so by its device? As the kernel's routing has it (rtnetlink(7)).
//!
//! Who is asked whether it takes links hears of it, by a packet that it has not asked for: a server
//! of the neighbourhood may, one in the Internet shall not.

use crate::host::address_of;
use crate::log::warn_log;
use crate::netlink::{attributes, talk};
use crate::{config, fd_words, numbers, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Where a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// On this host, or in a network that the interface is in; or nobody knows.
    Near,
    /// Behind a gateway.
    Routed,
    /// Its packets leave by another interface; or no device can go where they go.
    No,
}

/// How packets get from one of this host's addresses to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) reach: Reach,
    /// The interface that has the address; 0: none, or nobody knows.
    pub(crate) interface: u32,
    /// The interface by which packets leave that are bound to none; 0: nobody knows.
    pub(crate) out: u32,
    /// How long those packets may be, as the routes have it; 0: nobody knows.
    pub(crate) mtu: u32,
    /// An interface encrypts what goes by it (MACsec); the one of the address belongs to a VRF.
    pub(crate) encrypts: bool,
    pub(crate) in_vrf: bool,
    /// What the kernel does with packets cannot be learned: it may encrypt them.
    pub(crate) unseen: bool,
}

impl Way {
    /// Above this the kernel's versions differ in what they say (IP_MAX_MTU).
    const MTU_MAX: u32 = 0xfff0;

    /// Whether packets of a socket that may be so long are other than those of the route.
    pub(crate) fn differs(&self, mtu: u32) -> bool {
        let known = mtu != 0 && self.mtu != 0;
        known && mtu.min(Way::MTU_MAX) != self.mtu.min(Way::MTU_MAX)
    }

    pub(crate) const UNKNOWN: Way = Way {
        reach: Reach::Near,
        interface: 0,
        out: 0,
        mtu: 0,
        encrypts: false,
        in_vrf: false,
        unseen: false,
    };
    const UNSEEN: Way = Way { unseen: true, ..Way::UNKNOWN };
}

/// `ARPHRD_INFINIBAND`: a gateway between two fabrics routes IP, and no queue pairs.
const INFINIBAND: u16 = 32;
const RTM_GETLINK: u16 = 18;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
const RTN_LOCAL: u8 = 2;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_CONF: u16 = 2;

#[cfg(test)]
std::thread_local! {
    /// What a test's thread finds, wherever the peer is.
    pub(crate) static PRETENDED: core::cell::Cell<Option<Way>> =
        const { core::cell::Cell::new(None) };
}

/// Where `peer` is, as seen from the interface that has the address `local`.
pub(crate) fn of(local: IpAddr, peer: IpAddr) -> Way {
    #[cfg(test)]
    if let Some(way) = PRETENDED.with(core::cell::Cell::get) {
        return way;
    }
    let fd = netlink_socket();
    if fd < 0 {
        warn_of_refusal(-fd);
        return Way::UNSEEN;
    }
    let way = ask(fd, local, peer).unwrap_or(Way::UNSEEN);
    fd_words::close_internal(fd);
    way
}

fn netlink_socket() -> c_int {
    #[cfg(test)]
    if !crate::testing::may_ask() {
        return -libc::EAFNOSUPPORT;
    }
    numbers::make(|| {
        sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    })
}

/// That this process may not ask was said.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A filter keeps this process from asking, and so from heeding what the kernel does with packets.
#[cold]
fn warn_of_refusal(errno: c_int) {
    // (That passes.)
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS].contains(&errno);
    if !short && config::get().kernel_policy && !REFUSED.swap(true, Relaxed) {
        warn_log!(
            "no netlink socket (errno {errno}): whether the kernel encrypts packets (IPsec, MACsec) \
             is not known, so connections between hosts stay on TCP; allow AF_NETLINK, or set \
             NACC_KERNEL_POLICY=0"
        );
    }
}

/// `None`: the kernel does not say.
fn ask(fd: c_int, local: IpAddr, peer: IpAddr) -> Option<Way> {
    let Some((interface, bits)) = interface_of(fd, local)? else {
        // As 127.0.1.1 is one of 127.0.0.0/8, which is all this host's.
        return Some(Way::UNKNOWN);
    };
    let link = link(fd, interface)?;
    let free = route(fd, local, peer, None);
    let by_it = match free {
        Some(route) if route.out == interface => Some(route),
        // Another table may have a route by this interface (VRF).
        Some(_) => route(fd, local, peer, Some(interface)).filter(|r| r.out == interface),
        None => None,
    };
    let local_one = free.is_some_and(|r| r.kind == RTN_LOCAL);
    let reach = if same_network(local, peer, bits) || local_one {
        Reach::Near
    } else {
        reach_by(free?, by_it, interface, (local, peer), link.kind)
    };
    let mut way =
        Way { reach, interface, encrypts: link.encrypts, in_vrf: link.in_vrf, ..Way::UNKNOWN };
    if let Some(route) = free.filter(|_| !local_one && reach != Reach::No) {
        // With two interfaces in one network that may be the other one.
        let by = if route.out == interface { link } else { self::link(fd, route.out)? };
        (way.out, way.mtu) = (route.out, route.mtu_on(&by, peer));
        way.encrypts |= by.encrypts;
    }
    Some(way)
}

/// Of a peer outside of the interface's network.
fn reach_by(
    free: Route,
    by_it: Option<Route>,
    interface: u32,
    (local, peer): (IpAddr, IpAddr),
    kind: u16,
) -> Reach {
    let gateway = match by_it {
        Some(_) if free.out == interface => free.gateway,
        // Without a gateway the kernel takes the peer for a neighbour, which it is not.
        Some(route) if route.gateway => true,
        _ => return Reach::No,
    };
    if !gateway {
        return Reach::Near;
    }
    let translated = is_private(local) && !is_private(peer);
    if translated || kind == INFINIBAND { Reach::No } else { Reach::Routed }
}

fn same_network(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let (a, b, all) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let rest = u32::from(bits).min(all);
    // (A network of one address says nothing of any other.)
    rest < all && (a ^ b) >> (all - rest) == 0
}

/// An address that is not routed in the Internet: who talks from one to another that is, is
/// translated in between.
fn is_private(ip: IpAddr) -> bool {
    const SHARED: (u32, u32) = (Ipv4Addr::new(100, 64, 0, 0).to_bits(), 10);
    match ip {
        IpAddr::V4(ip) => {
            ip.is_private()
                || ip.is_link_local()
                || ip.is_loopback()
                || (ip.to_bits() ^ SHARED.0) >> (32 - SHARED.1) == 0
        }
        // fc00::/7 is not translated: hosts have both.
        IpAddr::V6(_) => true,
    }
}

// ---- questions ----------------------------------------------------------------------------------

/// The interface that has an address, and how many bits of it name its network. `Some(None)`: no
/// interface has it.
fn interface_of(fd: c_int, local: IpAddr) -> Option<Option<(u32, u8)>> {
    let body = [family(local), 0, 0, 0, 0, 0, 0, 0];
    let mut found = None;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    talk(fd, libc::RTM_GETADDR, flags, &body, |kind, body| {
        if kind == libc::RTM_NEWADDR && address_of(body) == Some(local) {
            let index = body.get(4..8)?.first_chunk().map(|b| u32::from_ne_bytes(*b))?;
            found = Some((index, *body.get(1)?));
        }
        Some(())
    })?;
    Some(found)
}

/// A route, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    kind: u8,
    /// The interface by which packets leave.
    out: u32,
    gateway: bool,
    /// How long packets may be; 0: as the interface has it.
    mtu: u32,
}

impl Route {
    /// As the kernel has it for a socket (`ipv4_mtu`, `ip6_mtu`), before anything wraps packets.
    fn mtu_on(self, link: &Interface, peer: IpAddr) -> u32 {
        let of_link = if peer.is_ipv4() { link.mtu } else { link.mtu6 };
        if self.mtu != 0 { self.mtu } else { of_link }
    }
}

/// The route to `peer`. `None`: there is none, or the kernel does not say.
fn route(fd: c_int, local: IpAddr, peer: IpAddr, by: Option<u32>) -> Option<Route> {
    // struct rtmsg, and attributes.
    let mut body = Vec::new();
    body.try_reserve(64).ok()?;
    let bits = if peer.is_ipv4() { 32 } else { 128 };
    body.extend([family(peer), bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut add = |kind: u16, value: &[u8]| {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    };
    for (kind, ip) in [(RTA_DST, peer), (RTA_SRC, local)] {
        match ip {
            IpAddr::V4(ip) => add(kind, &ip.octets()),
            IpAddr::V6(ip) => add(kind, &ip.octets()),
        }
    }
    if let Some(by) = by {
        add(RTA_OIF, &by.to_ne_bytes());
    }
    let mut found = None;
    talk(fd, libc::RTM_GETROUTE, libc::NLM_F_REQUEST, &body, |kind, body| {
        if kind == libc::RTM_NEWROUTE {
            found = Some(read_route(body)?);
        }
        Some(())
    })?;
    found
}

fn read_route(body: &[u8]) -> Option<Route> {
    let mut route = Route { kind: *body.get(7)?, out: 0, gateway: false, mtu: 0 };
    attributes(body.get(12..)?, |what, value| match what {
        RTA_OIF => route.out = first_u32(value),
        RTA_GATEWAY | RTA_VIA => route.gateway = true,
        RTA_METRICS => {
            let _ = attributes(value, |what, value| {
                if what == RTAX_MTU {
                    route.mtu = first_u32(value);
                }
            });
        }
        _ => {}
    })?;
    Some(route)
}

/// An interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Interface {
    /// `ARPHRD_…`
    kind: u16,
    mtu: u32,
    /// Of IPv6's packets.
    mtu6: u32,
    encrypts: bool,
    in_vrf: bool,
}

fn link(fd: c_int, interface: u32) -> Option<Interface> {
    // struct ifinfomsg
    let mut body = [0u8; 16];
    body.get_mut(4..8)?.copy_from_slice(&interface.to_ne_bytes());
    let mut found = None;
    talk(fd, RTM_GETLINK, libc::NLM_F_REQUEST, &body, |_, body| {
        found = read_interface(body);
        Some(())
    })?;
    found
}

fn read_interface(body: &[u8]) -> Option<Interface> {
    let kind = u16::from_ne_bytes(*body.get(2..4)?.first_chunk()?);
    let mut link = Interface { kind, ..Interface::default() };
    let is = |value: &[u8], name: &[u8]| value.strip_suffix(&[0]).unwrap_or(value) == name;
    attributes(body.get(16..)?, |what, value| match what {
        IFLA_MTU => link.mtu = first_u32(value),
        IFLA_LINKINFO => {
            let _ = attributes(value, |what, value| match what {
                IFLA_INFO_KIND => link.encrypts = is(value, b"macsec"),
                IFLA_INFO_SLAVE_KIND => link.in_vrf = is(value, b"vrf"),
                _ => {}
            });
        }
        IFLA_AF_SPEC => link.mtu6 = mtu6_of(value).unwrap_or(0),
        _ => {}
    })?;
    Some(link)
}

/// `conf/INTERFACE/mtu` of IPv6: the third number of its configuration.
fn mtu6_of(families: &[u8]) -> Option<u32> {
    let mut mtu = None;
    attributes(families, |family, value| {
        if family == libc::AF_INET6 as u16 {
            let _ = attributes(value, |what, value| {
                if what == IFLA_INET6_CONF {
                    mtu = value.get(8..12).map(first_u32);
                }
            });
        }
    })?;
    mtu
}

fn first_u32(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |v| u32::from_ne_bytes(*v))
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]
#[allow(clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;
    use std::string::String;

    fn reach(local: &str, peer: &str) -> Reach {
        of(local.parse().unwrap(), peer.parse().unwrap()).reach
    }

    #[test]
    fn this_host_is_near() {
        assert_eq!(reach("127.0.0.1", "127.0.1.2"), Reach::Near);
        assert_eq!(reach("127.0.1.1", "127.0.1.2"), Reach::Near);
        assert_eq!(reach("::1", "::1"), Reach::Near);
    }

    /// In a network namespace of this thread's own.
    #[test]
    fn peers_are_where_the_routes_lead() {
        // SAFETY: unshare(2) of this thread, which ends with the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            assert_ne!(sys::geteuid(), 0, "root may make a namespace");
            return;
        }
        let run = |line: &str| {
            let done = Command::new("ip").args(line.split(' ')).output().unwrap();
            assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        };
        for line in [
            "link set lo up",
            "link add rdma0 type veth peer name rdma1",
            "link add other0 type veth peer name other1",
            "link set rdma1 up",
            "link set other1 up",
            "addr add 10.0.0.1/24 dev rdma0",
            "addr add 192.0.2.1/24 dev rdma0",
            "addr add 10.9.0.1/24 dev other0",
            "addr add fd00::1/64 dev rdma0 nodad",
            "addr add fd09::1/64 dev other0 nodad",
            "link set rdma0 up",
            "link set other0 up",
            "route add 10.1.0.0/16 via 10.0.0.254",
            "route add 10.2.0.0/16 dev rdma0",
            "route add 10.3.0.0/16 via 10.9.0.254",
            "route add default via 10.0.0.254",
            "route add fd01::/64 via fd00::fe",
            "route add fd03::/64 via fd09::fe",
        ] {
            run(line);
        }
        use Reach::*;
        for (local, peer, expected) in [
            ("10.0.0.1", "10.0.0.2", Near),
            ("10.0.0.1", "10.9.0.1", Near),
            ("10.0.0.1", "10.1.0.1", Routed),
            ("10.0.0.1", "10.2.0.1", Near),
            ("10.0.0.1", "172.16.0.1", Routed),
            // By another interface: in its network, or behind its gateway.
            ("10.9.0.1", "10.0.0.2", No),
            ("10.9.0.1", "10.1.0.1", No),
            // In the Internet, from an address that is translated on the way, and from one that is
            // not.
            ("10.0.0.1", "198.51.100.7", No),
            ("192.0.2.1", "198.51.100.7", Routed),
            ("fd00::1", "fd00::2", Near),
            ("fd00::1", "fd01::2", Routed),
            ("fd00::1", "fd03::2", No),
        ] {
            assert_eq!(reach(local, peer), expected, "{local} to {peer}");
        }
    }

    /// What the kernel says of a socket that would send to `peer`.
    fn mtu_of_socket(local: &str, peer: &str) -> u32 {
        let any: IpAddr = local.parse().unwrap();
        let socket = std::net::UdpSocket::bind((any, 0)).unwrap();
        socket.connect((peer, 9)).unwrap();
        crate::packet_policy::of(socket.as_raw_fd(), any).unwrap().mtu
    }

    fn way(local: &str, peer: &str) -> Way {
        of(local.parse().unwrap(), peer.parse().unwrap())
    }

    /// In a network namespace of this thread's own: the length that packets may have is that of the
    /// route, until a policy has the kernel encrypt them.
    #[test]
    fn a_policy_of_ipsecs_shows_in_the_length_of_packets() {
        // SAFETY: unshare(2) of this thread, which ends with the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            assert_ne!(sys::geteuid(), 0, "root may make a namespace");
            return;
        }
        let run = |line: &str| {
            let done = Command::new("ip").args(line.split(' ')).output().unwrap();
            (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        for line in [
            "link add rdma0 type veth peer name rdma1",
            "link set rdma0 mtu 4200",
            "link set rdma1 up",
            "addr add 10.0.0.1/24 dev rdma0",
            "addr add fd00::1/64 dev rdma0 nodad",
            "link set rdma0 up",
            // A second one in the same network, by which no packets leave.
            "link add other0 type veth peer name other1",
            "link set other0 mtu 1500",
            "link set other1 up",
            "link set other0 up",
            "addr add 10.0.0.9/24 dev other0",
            "neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev rdma0",
            "neigh add fd00::2 lladdr 02:00:00:00:00:02 dev rdma0",
            "route add 10.1.0.0/16 via 10.0.0.2 mtu 1400",
        ] {
            assert_eq!(run(line), (true, String::new()), "{line}");
        }
        let all = [("10.0.0.1", "10.0.0.2", 4200), ("fd00::1", "fd00::2", 4200)];
        for (local, peer, mtu) in all.into_iter().chain([("10.0.0.1", "10.1.0.1", 1400)]) {
            let way = way(local, peer);
            assert_eq!((way.mtu, mtu_of_socket(local, peer)), (mtu, mtu), "{local} to {peer}");
            assert!(way.interface != 0 && way.out == way.interface);
            assert!(!way.encrypts && !way.in_vrf);
        }
        let second = way("10.0.0.9", "10.0.0.2");
        assert_eq!((second.mtu, mtu_of_socket("10.0.0.9", "10.0.0.2")), (4200, 4200));
        assert_ne!(second.interface, second.out);
        std::fs::write("/proc/sys/net/ipv6/conf/rdma0/mtu", "1300").unwrap();
        assert_eq!(
            (way("fd00::1", "fd00::2").mtu, mtu_of_socket("fd00::1", "fd00::2")),
            (1300, 1300)
        );
        for (local, peer, _) in all {
            let policy = std::format!(
                "xfrm policy add src {local} dst {peer} dir out tmpl src {local} dst {peer} proto esp \
                 mode transport"
            );
            if !run(&policy).0 {
                std::eprintln!("SKIPPED: this kernel has no IPsec");
                return;
            }
            // (Whether it has the transformation or not: without it packets have no way at all.)
            let _ = run(&std::format!(
                "xfrm state add src {local} dst {peer} proto esp spi 1 mode transport enc \
                 ecb(cipher_null)  auth hmac(sha1) 0x0123456789012345678901234567890123456789"
            ));
            assert!(way(local, peer).differs(mtu_of_socket(local, peer)), "{local} to {peer}");
        }
    }

    /// (That has the configuration resolved, by whichever test comes first.)
    #[test]
    fn who_may_not_ask_is_warned() {
        crate::testing::forbid_netlink();
        for errno in [libc::EMFILE, libc::ENFILE] {
            warn_of_refusal(errno);
        }
        assert!(!REFUSED.load(Relaxed), "that passes");
        assert_eq!(way("10.0.0.1", "10.0.0.2"), Way::UNSEEN);
        assert!(REFUSED.load(Relaxed));
        assert_eq!(config::get().connections_per_channel, 4, "is that of all tests");
    }

    /// A netlink attribute.
    fn attribute(kind: u16, value: &[u8]) -> std::vec::Vec<u8> {
        let mut all = std::vec![];
        all.extend((4 + value.len() as u16).to_ne_bytes());
        all.extend(kind.to_ne_bytes());
        all.extend(value);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    #[test]
    fn what_links_say_is_read() {
        let mut body = std::vec![0u8; 16];
        body[2] = 1;
        let plain = body.clone();
        assert_eq!(read_interface(&plain), Some(Interface { kind: 1, ..Interface::default() }));
        body.extend(attribute(IFLA_MTU, &9000u32.to_ne_bytes()));
        let info = attribute(IFLA_INFO_KIND, b"macsec\0");
        let slave = attribute(IFLA_INFO_SLAVE_KIND, b"vrf\0");
        body.extend(attribute(IFLA_LINKINFO, &[info, slave].concat()));
        let conf: std::vec::Vec<u8> =
            [0u32, 64, 8000].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let inet6 = attribute(libc::AF_INET6 as u16, &attribute(IFLA_INET6_CONF, &conf));
        // (Nested ones may say that they are.)
        body.extend(attribute(IFLA_AF_SPEC | 0x8000, &inet6));
        let all = Interface { kind: 1, mtu: 9000, mtu6: 8000, encrypts: true, in_vrf: true };
        assert_eq!(read_interface(&body), Some(all));
        for kind in [&b"vlan\0"[..], b"macsec2\0", b"\0", b""] {
            let mut other = plain.clone();
            other.extend(attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, kind)));
            assert_eq!(read_interface(&other), read_interface(&plain), "{kind:?}");
        }
        for cut in 0..body.len() {
            let _ = read_interface(&body[..cut]);
        }
        assert_eq!(read_interface(&body[..15]), None);
    }

    #[test]
    fn what_is_no_answer_is_none() {
        assert_eq!(read_route(&[0; 11]), None);
        let mut body = [0u8; 20];
        body.get_mut(12..16).unwrap().copy_from_slice(&[9, 0, 4, 0]);
        assert_eq!(read_route(&body), None, "an attribute that is cut off");
        body.get_mut(12..16).unwrap().copy_from_slice(&[8, 0, 4, 0]);
        let none = Route { kind: 0, out: 0, gateway: false, mtu: 0 };
        assert_eq!(read_route(&body), Some(none));
    }
}
