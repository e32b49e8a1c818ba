//! The addresses of connections that a process has not asked for itself: the library looks them up
//! when a connection has shown that it lives (most do not), the kernel always has them.
//!
//! From `/proc/PID/fd`, and from sock_diag(7), which leaves out what is over; where the process is
//! in another network namespace, or the kernel has no such answer, from `/proc/PID/net/tcp` and
//! `tcp6` (proc_pid_net(5)). A descriptor may be closed meanwhile, or its socket be of another
//! network namespace: then nothing is known.

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, sendto, socket_with};
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// This end, and the peer's.
pub type Pair = (SocketAddr, SocketAddr);
/// By their inodes.
type Sockets = HashMap<u64, Pair>;

/// Of descriptors of the process under `directory` both ends, of those that are connections.
pub fn of(descriptors: &[u32], directory: &Path) -> HashMap<u32, Pair> {
    let mut found = HashMap::new();
    if descriptors.is_empty() {
        return found;
    }
    let net = |directory: &Path| fs::read_link(directory.join("ns/net")).ok();
    let is_ours = net(directory).is_some_and(|it| Some(it) == net(Path::new("/proc/self")));
    let asked = is_ours.then(|| asked().ok()).flatten();
    let sockets = asked.unwrap_or_else(|| listed(directory));
    for descriptor in descriptors {
        let link = directory.join("fd").join(descriptor.to_string());
        let target = fs::read_link(link).unwrap_or_default();
        let inode = target.to_str().and_then(socket_inode);
        if let Some(pair) = inode.and_then(|inode| sockets.get(&inode)) {
            found.insert(*descriptor, *pair);
        }
    }
    found
}

/// All that there are where the process is, from `/proc`.
fn listed(directory: &Path) -> Sockets {
    let mut sockets = HashMap::new();
    for name in ["tcp", "tcp6"] {
        let table = fs::read_to_string(directory.join("net").join(name)).unwrap_or_default();
        sockets.extend(table.lines().filter_map(row));
    }
    sockets
}

/// Whether the kernel answers questions about sockets (sock_diag(7)).
pub fn kernel_answers() -> Result<(), Errno> {
    asked().map(|_| ())
}

/// Those of this process's network namespace, from sock_diag(7).
fn asked() -> Result<Sockets, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let with = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    let mut sockets = HashMap::new();
    for family in [AF_INET, AF_INET6] {
        sendto(&with, &question(family), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut answer = vec![0; 1 << 16];
        loop {
            let (got, _) = recv(&with, &mut answer[..], RecvFlags::empty())?;
            let mut rest = answer.get(..got).unwrap_or(&[]);
            if rest.is_empty() {
                return Err(Errno::IO);
            }
            let mut is_last = false;
            while let Some((kind, body, next)) = message(rest) {
                match kind {
                    NLMSG_DONE => is_last = true,
                    SOCK_DIAG_BY_FAMILY => sockets.extend(socket(body)),
                    _ => return Err(Errno::NOTSUP),
                }
                rest = next;
            }
            if is_last {
                break;
            }
        }
    }
    Ok(sockets)
}

/// Whose socket has these addresses in this process's network namespace, from sock_diag(7).
/// `None`: nobody's, or one that was closed, or is bound to a device; or the kernel has no answer.
pub fn owner(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let with =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()?;
    let to = SocketAddrNetlink::new(0, 0);
    sendto(&with, &question_of(local, peer), SendFlags::empty(), &to).ok()?;
    let mut answer = vec![0; 4096];
    let (got, _) = recv(&with, &mut answer[..], RecvFlags::empty()).ok()?;
    let (kind, body, _) = message(answer.get(..got)?)?;
    // (Where there is no such connection the kernel shows a listening socket.)
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let (inode, pair) = (kind == SOCK_DIAG_BY_FAMILY).then(|| socket(body))??;
    let is_it = inode != 0 && pair == (canonical(local), canonical(peer));
    is_it.then(|| Some(u32::from_ne_bytes(*body.get(64..)?.first_chunk()?)))?
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const REQUEST_DUMP: u16 = 0x301;

/// `struct nlmsghdr` and `struct inet_diag_req_v2`, which asks for any socket of TCP's.
fn question_about(family: u8, flags: u16) -> [u8; 72] {
    const IPPROTO_TCP: u8 = 6;
    let mut bytes = [0; 72];
    bytes[..4].copy_from_slice(&72u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    (bytes[16], bytes[17]) = (family, IPPROTO_TCP);
    bytes
}

/// All sockets of a family that are connected, or were until their peer's end.
fn question(family: u8) -> [u8; 72] {
    // ESTABLISHED, SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
    const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
    let mut bytes = question_about(family, REQUEST_DUMP);
    bytes[20..24].copy_from_slice(&STATES.to_ne_bytes());
    bytes
}

/// The socket with these addresses. (One of IPv6 that reaches IPv4 is found by the addresses of
/// IPv4.)
fn question_of(local: SocketAddr, peer: SocketAddr) -> [u8; 72] {
    let (from, to) = (local.ip().to_canonical(), peer.ip().to_canonical());
    let family = if from.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = question_about(family, REQUEST);
    bytes[24..26].copy_from_slice(&local.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&peer.port().to_be_bytes());
    for (at, ip) in [(28, from), (44, to)] {
        match ip {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    // INET_DIAG_NOCOOKIE
    bytes[64..].fill(0xff);
    bytes
}

/// The kind of a netlink message, what it says, and what follows it.
pub(crate) fn message(at: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(*at.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*at.get(4..)?.first_chunk()?);
    Some((kind, at.get(16..len)?, at.get(len.next_multiple_of(4)..).unwrap_or(&[])))
}

/// Of `struct inet_diag_msg`.
fn socket(body: &[u8]) -> Option<(u64, Pair)> {
    let port = |at: usize| Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?));
    let ip = |at: usize| {
        Some(match *body.first()? {
            AF_INET => IpAddr::from(*body.get(at..)?.first_chunk::<4>()?),
            _ => IpAddr::from(*body.get(at..)?.first_chunk::<16>()?).to_canonical(),
        })
    };
    let local = SocketAddr::new(ip(8)?, port(4)?);
    let peer = SocketAddr::new(ip(24)?, port(6)?);
    let inode = u32::from_ne_bytes(*body.get(68..)?.first_chunk()?);
    Some((inode.into(), (local, peer)))
}

/// Of `socket:[4711]`.
pub(crate) fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// A connection of the kernel's table, by its inode. (One without is none of a process's any more.)
fn row(line: &str) -> Option<(u64, Pair)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, peer) = (address(words.next()?)?, address(words.next()?)?);
    let inode = words.nth(6)?.parse().ok().filter(|inode| *inode != 0)?;
    Some((inode, (local, peer)))
}

/// Words of four octets, each as the machine stores it, and the port: an address of `/proc/net`.
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| -> Option<[u8; 4]> {
        Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (i, to) in octets.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&word(i * 8)?);
            }
            IpAddr::from(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
                        retrnsmt   uid  timeout inode";

    #[test]
    fn rows_are_read() {
        let v4 = "   0: 0100007F:1F90 0200000A:D431 01 00000000:00000000 00:00000000 00000000  \
                  1000        0 4711 1 0000000000000000 100 0 0 10 0";
        let (inode, (local, peer)) = row(v4).unwrap();
        assert_eq!(inode, 4711);
        assert_eq!(
            (local, peer),
            ("127.0.0.1:8080".parse().unwrap(), "10.0.0.2:54321".parse().unwrap())
        );
        let v6 = "  12: B80D0120000000000000000001000000:0050 0000000000000000FFFF00000200000A:D431 \
                  01 00000000:00000000 00:00000000 00000000     0        0 99 1";
        let (inode, (local, peer)) = row(v6).unwrap();
        assert_eq!(inode, 99);
        assert_eq!(local, "[2001:db8::1]:80".parse().unwrap());
        assert_eq!(peer, "10.0.0.2:54321".parse().unwrap(), "a mapped address is IPv4's");
    }

    #[test]
    fn what_is_no_connection_is_left_out() {
        assert!(row(HEAD).is_none());
        assert!(row("").is_none());
        let closed = "   0: 0100007F:1F90 0200000A:D431 06 00000000:00000000 00:00000000 00000000  \
                      0        0 0 3";
        assert!(row(closed).is_none(), "TIME-WAIT");
        assert_eq!(socket_inode("socket:[17]"), Some(17));
        assert_eq!(socket_inode("/dev/null"), None);
    }

    #[test]
    fn a_connection_of_this_process_is_found_either_way() {
        use std::os::fd::AsRawFd;
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = std::net::TcpListener::bind(host).unwrap();
            let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let link = fs::read_link(format!("/proc/self/fd/{}", one.as_raw_fd())).unwrap();
            let inode = socket_inode(link.to_str().unwrap()).unwrap();
            let pair = (one.local_addr().unwrap(), one.peer_addr().unwrap());
            assert_eq!(listed(Path::new("/proc/self")).get(&inode), Some(&pair));
            match asked() {
                Ok(sockets) => assert_eq!(sockets.get(&inode), Some(&pair)),
                // A kernel without it.
                Err(error) => assert_eq!(error, Errno::NOTSUP),
            }
            let asked_for = [one.as_raw_fd() as u32, u32::MAX];
            let found = of(&asked_for, Path::new("/proc/self"));
            assert_eq!(found, HashMap::from([(asked_for[0], pair)]));
        }
    }
}
