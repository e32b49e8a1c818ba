//! What was asked of the kernel for a connection's packets, by the program or by the host's
//! administrator, and what of it RDMA does: a traffic class goes with the queue pair; with anything
//! else the connection stays on its carrier. `docs/manual/rdma.md` has the table.

use crate::{config, sys};
use core::ffi::c_int;
use core::net::IpAddr;
use netacc_control::stats::Reason;

pub(crate) const SO_BINDTOIFINDEX: c_int = 62;
const IP_MTU: c_int = 14;
const IPV6_MTU: c_int = 24;
const IP_MINTTL: c_int = 21;
const IPV6_MINHOPCOUNT: c_int = 73;
/// What a program adds to the headers of its packets.
const HEADERS: [c_int; 4] =
    [libc::IPV6_HOPOPTS, libc::IPV6_RTHDRDSTOPTS, libc::IPV6_RTHDR, libc::IPV6_DSTOPTS];
/// Who allows its packets fewer hops than that wants them to stay near. (64 are usual, and 255
/// where the other end looks at how many are left, which it does by IP_MINTTL.)
const FEW_HOPS: u32 = 32;
/// The bits of a traffic class that are the network's (ECN).
pub(crate) const ECN: u8 = 3;

/// What its socket says of a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Their traffic class: IP_TOS or IPV6_TCLASS, without ECN; 0: none.
    pub(crate) class: u8,
    /// The interface that it is bound to; 0: none.
    pub(crate) interface: u32,
    /// How long they may be, headers of IP and all; 0: not known. What the kernel adds to each
    /// (IPsec, an encapsulation) is taken off.
    pub(crate) mtu: u32,
}

impl Asked {
    pub(crate) const NOTHING: Asked = Asked { class: 0, interface: 0, mtu: 0 };

    /// What must be as it was when a pair was chosen.
    pub(crate) fn key(self) -> u32 {
        self.interface << 8 | u32::from(self.class)
    }
}

/// Asks the kernel of a connected socket with that local address. `Err`: why it stays on TCP.
pub(crate) fn of(fd: c_int, local: IpAddr) -> Result<Asked, Reason> {
    let ip = local.to_canonical();
    let (level, class) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    let class = number(fd, level, class).unwrap_or(0) as u8 & !ECN;
    if !config::get().kernel_policy {
        return Ok(Asked { class, ..Asked::NOTHING });
    }
    let of_socket = |name| number(fd, libc::SOL_SOCKET, name).unwrap_or(0);
    let priority = of_socket(libc::SO_PRIORITY);
    // The kernel sets it with IP_TOS; on a socket of IPv6's, too, whose packets have another class.
    // (MySQL does that on every socket.)
    let goes_with_tos = || {
        let tos = if ip.is_ipv6() { number(fd, libc::IPPROTO_IP, libc::IP_TOS) } else { None };
        priority == priority_of(class) || tos.is_some_and(|tos| priority == priority_of(tos as u8))
    };
    let is_prioritized = priority != 0 && !goes_with_tos();
    if of_socket(libc::SO_MARK) != 0 || is_prioritized || is_paced(fd) || is_special(fd, ip) {
        return Err(Reason::KernelPolicy);
    }
    let interface = of_socket(SO_BINDTOIFINDEX);
    Ok(Asked { class, interface, mtu: mtu_of(fd, local) })
}

/// How long packets of a connected socket with that local address may be, as in [`Asked::mtu`].
pub(crate) fn mtu_of(fd: c_int, local: IpAddr) -> u32 {
    let (level, name) = match local.to_canonical() {
        IpAddr::V4(_) => (libc::IPPROTO_IP, IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MTU),
    };
    number(fd, level, name).unwrap_or(0)
}

fn number(fd: c_int, level: c_int, name: c_int) -> Option<u32> {
    let mut value: c_int = 0;
    (sys::getsockopt(fd, level, name, &mut value) >= 0).then_some(value as u32)
}

/// SO_MAX_PACING_RATE, of which all ones mean none.
fn is_paced(fd: c_int) -> bool {
    let mut rate = u64::MAX;
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut rate) >= 0
        && rate != u64::MAX
}

/// Its packets go few hops only, have to come with many left, or have headers of their own: a queue
/// pair's packets are the device's.
fn is_special(fd: c_int, ip: IpAddr) -> bool {
    let (level, hops, least) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL, IP_MINTTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, IPV6_MINHOPCOUNT),
    };
    let headers: &[c_int] = if ip.is_ipv4() { &[libc::IP_OPTIONS] } else { &HEADERS };
    let has = |name: &c_int| sys::getsockopt_bytes(fd, level, *name, &mut [0; 64]) > 0;
    number(fd, level, hops).is_some_and(|hops| hops < FEW_HOPS)
        || number(fd, level, least).is_some_and(|least| least != 0)
        || headers.iter().any(has)
}

/// The priority that goes with a traffic class, which the kernel sets with IP_TOS
/// (`rt_tos2priority`).
fn priority_of(class: u8) -> u32 {
    // ip_tos2prio, by the old four bits of service.
    const OF: [u32; 16] = [0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4];
    OF.get(usize::from(class >> 1 & 15)).copied().unwrap_or(0)
}

/// Whether setting that option of a socket can change what [`of`] says.
pub(crate) fn is_about(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_MARK
                | libc::SO_PRIORITY
                | libc::SO_BINDTODEVICE
                | SO_BINDTOIFINDEX
                | libc::SO_MAX_PACING_RATE
        ),
        libc::IPPROTO_IP => {
            matches!(name, libc::IP_TOS | libc::IP_TTL | IP_MINTTL | libc::IP_OPTIONS)
        }
        libc::IPPROTO_IPV6 => {
            matches!(name, libc::IPV6_TCLASS | libc::IPV6_UNICAST_HOPS | IPV6_MINHOPCOUNT)
                || HEADERS.contains(&name)
        }
        _ => false,
    }
}

/// The traffic class of a connection whose ends have asked for these. A pair's packets have one in
/// both directions: `None` if each end wants another one.
pub(crate) fn common_class(one: u8, other: u8) -> Option<u8> {
    match (one, other) {
        (0, class) | (class, 0) => Some(class),
        _ => (one == other).then_some(one),
    }
}
