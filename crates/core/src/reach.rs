//! Between hosts: can packets from one of this host's addresses get to a peer by the interface that
//! has the address, and so by its device? As the kernel's routing has it (rtnetlink(7)).
//!
//! Who is asked whether it takes links hears of it, by a packet that it has not asked for: a server
//! of the neighbourhood may, one in the Internet shall not.

use crate::heap::Scratch;
use crate::host::{address_of, message};
use crate::{fd_words, numbers, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr};

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

/// `ARPHRD_INFINIBAND`: a gateway between two fabrics routes IP, and no queue pairs.
const INFINIBAND: u16 = 32;
const RTM_GETLINK: u16 = 18;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_LOCAL: u8 = 2;

#[cfg(test)]
std::thread_local! {
    /// What a test's thread finds, wherever the peer is.
    pub(crate) static PRETENDED: core::cell::Cell<Option<Reach>> =
        const { core::cell::Cell::new(None) };
}

/// Where `peer` is, as seen from the interface that has the address `local`.
pub(crate) fn of(local: IpAddr, peer: IpAddr) -> Reach {
    #[cfg(test)]
    if let Some(reach) = PRETENDED.with(core::cell::Cell::get) {
        return reach;
    }
    let fd = numbers::make(|| {
        sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    });
    if fd < 0 {
        return Reach::Near;
    }
    let reach = ask(fd, local, peer).unwrap_or(Reach::Near);
    fd_words::close_internal(fd);
    reach
}

/// `None`: the kernel does not say.
fn ask(fd: c_int, local: IpAddr, peer: IpAddr) -> Option<Reach> {
    let Some((interface, bits)) = interface_of(fd, local)? else {
        // As 127.0.1.1 is one of 127.0.0.0/8, which is all this host's.
        return Some(Reach::Near);
    };
    if same_network(local, peer, bits) {
        return Some(Reach::Near);
    }
    let (kind, out, gateway) = route(fd, local, peer, None)?;
    if kind == RTN_LOCAL {
        return Some(Reach::Near);
    }
    let gateway = if out == interface {
        gateway
    } else {
        // Another table may have a route by this interface (VRF). Without one the kernel takes the
        // peer for a neighbour, which it is not.
        match route(fd, local, peer, Some(interface)) {
            Some((_, out, true)) if out == interface => true,
            _ => return Some(Reach::No),
        }
    };
    if !gateway {
        return Some(Reach::Near);
    }
    let translated = is_private(local) && !is_private(peer);
    if translated || link_type(fd, interface) == Some(INFINIBAND) {
        return Some(Reach::No);
    }
    Some(Reach::Routed)
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

/// The kind of the route to `peer`, the interface by which it leaves, and whether there is a
/// gateway. `None`: there is none, or the kernel does not say.
fn route(fd: c_int, local: IpAddr, peer: IpAddr, by: Option<u32>) -> Option<(u8, u32, bool)> {
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

fn read_route(body: &[u8]) -> Option<(u8, u32, bool)> {
    let kind = *body.get(7)?;
    let (mut out, mut gateway) = (0, false);
    let mut rest = body.get(12..)?;
    while let Some(len) =
        rest.first_chunk().map(|l| usize::from(u16::from_ne_bytes(*l))).filter(|len| *len >= 4)
    {
        let what = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..len)?;
        match what {
            RTA_OIF => out = value.first_chunk().map_or(0, |v| u32::from_ne_bytes(*v)),
            RTA_GATEWAY | RTA_VIA => gateway = true,
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some((kind, out, gateway))
}

/// What kind of hardware an interface is (`ARPHRD_…`).
fn link_type(fd: c_int, interface: u32) -> Option<u16> {
    // struct ifinfomsg
    let mut body = [0u8; 16];
    body.get_mut(4..8)?.copy_from_slice(&interface.to_ne_bytes());
    let mut found = None;
    talk(fd, RTM_GETLINK, libc::NLM_F_REQUEST, &body, |_, body| {
        found = body.get(2..4)?.first_chunk().map(|b| u16::from_ne_bytes(*b));
        Some(())
    })?;
    found
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// Asks, and gives each message of the answer to `each`. `None`: the kernel says that it cannot
/// tell, or `each` does not understand.
fn talk(
    fd: c_int,
    kind: u16,
    flags: c_int,
    body: &[u8],
    mut each: impl FnMut(u16, &[u8]) -> Option<()>,
) -> Option<()> {
    // struct nlmsghdr, and what is asked.
    let mut question = Vec::new();
    let len = 16 + body.len();
    question.try_reserve(len).ok()?;
    question.extend((len as u32).to_ne_bytes());
    question.extend(kind.to_ne_bytes());
    question.extend((flags as u16).to_ne_bytes());
    question.extend([0; 8]);
    question.extend(body);
    // SAFETY: a live buffer.
    if unsafe { sys::sendto(fd, question.as_ptr(), question.len(), libc::MSG_DONTWAIT) } < 0 {
        return None;
    }
    let all = flags & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
    let mut answer = Scratch::filled(8192, 0u8)?;
    // Each answer holds some tens of addresses.
    for _ in 0..1024 {
        // SAFETY: a live buffer; the kernel has answered already, or does so within the call.
        let got = unsafe {
            sys::recvfrom(
                fd,
                answer.as_mut_ptr(),
                answer.len(),
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        let mut rest = answer.get(..usize::try_from(got).ok()?)?;
        while let Some((kind, body, next)) = message(rest) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Some(()),
                libc::NLMSG_ERROR => return None,
                _ => each(kind, body)?,
            }
            rest = next;
        }
        if !all {
            return Some(());
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use std::process::Command;
    use std::string::String;

    fn reach(local: &str, peer: &str) -> Reach {
        of(local.parse().unwrap(), peer.parse().unwrap())
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

    #[test]
    fn what_is_no_answer_is_none() {
        assert_eq!(read_route(&[0; 11]), None);
        let mut body = [0u8; 20];
        body.get_mut(12..16).unwrap().copy_from_slice(&[9, 0, 4, 0]);
        assert_eq!(read_route(&body), None, "an attribute that is cut off");
        body.get_mut(12..16).unwrap().copy_from_slice(&[8, 0, 4, 0]);
        assert_eq!(read_route(&body), Some((0, 0, false)));
    }
}
