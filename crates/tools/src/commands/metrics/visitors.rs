//! Who is answered. On loopback anybody of the host can connect; the kernel knows whose end it is.

use crate::addresses;
use rustix::net::sockopt::socket_peercred;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// The users that are answered.
#[derive(Debug)]
pub(super) struct Visitors(Vec<u32>);

impl Visitors {
    /// This user, root, and the named ones; otherwise the complaint.
    pub(super) fn new(names: &[String]) -> Result<Visitors, String> {
        let mut users = vec![0, rustix::process::geteuid().as_raw()];
        for name in names {
            let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
            let user = name.parse().ok().or_else(|| number_of(name, &passwd));
            users.push(user.ok_or_else(|| format!("{name}: no such user"))?);
        }
        Ok(Visitors(users))
    }

    /// Whether the other end of a unix socket is one of them.
    pub(super) fn has_unix(&self, socket: impl AsFd) -> bool {
        socket_peercred(socket).is_ok_and(|peer| self.0.contains(&peer.uid.as_raw()))
    }

    /// Whether the other end of a connection within this host is one of them. An end that the
    /// kernel does not show is nobody's.
    pub(super) fn has(&self, visitor: SocketAddr, own: SocketAddr) -> bool {
        let user = addresses::owner(visitor, own).or_else(|| listed(visitor, own));
        user.is_some_and(|user| self.0.contains(&user))
    }
}

/// The same from the kernel's tables, where it does not answer the question, or not that. (They are
/// long where there are many connections.)
fn listed(visitor: SocketAddr, own: SocketAddr) -> Option<u32> {
    let of = |table, visitor, own| owner(&fs::read_to_string(table).ok()?, visitor, own);
    match visitor {
        SocketAddr::V6(_) => of("/proc/net/tcp6", visitor, own),
        // A socket of IPv6 reaches IPv4 as well.
        SocketAddr::V4(_) => of("/proc/net/tcp", visitor, own)
            .or_else(|| of("/proc/net/tcp6", mapped(visitor), mapped(own))),
    }
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The number of a user in passwd(5).
fn number_of(name: &str, passwd: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Whose socket has these addresses, in proc_net_tcp's table. One without an inode has been closed:
/// it is shown as root's.
fn owner(table: &str, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let (local, peer) = (in_table(local), in_table(peer));
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_it = words.next() == Some(&local) && words.next() == Some(&peer);
        let user = is_it.then(|| words.nth(4)?.parse().ok())?;
        words.nth(1).filter(|inode| *inode != "0").and(user)
    })
}

/// An address as the table has it: words of 32 bits, each in the machine's order.
fn in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word =
        |four: &[u8]| format!("{:08X}", u32::from_ne_bytes(four.try_into().unwrap_or([0; 4])));
    let words: String = octets.chunks(4).map(word).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// The kernel's two answers.
    fn agree(visitor: SocketAddr, own: SocketAddr, is_somebodys: bool) {
        let user = is_somebodys.then(|| rustix::process::geteuid().as_raw());
        assert_eq!(listed(visitor, own), user);
        // (Nor does a kernel know one that has no such answer.)
        let owner = addresses::owner(visitor, own);
        assert!(owner == user || (owner.is_none() && addresses::kernel_answers().is_err()));
    }

    #[test]
    fn the_kernel_says_whose_end_it_is() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let own = listener.local_addr().unwrap();
            let visitor = TcpStream::connect(own).unwrap();
            let visitors = Visitors::new(&[]).unwrap();
            assert!(visitors.has(visitor.local_addr().unwrap(), own));
            assert!(!Visitors(vec![u32::MAX]).has(visitor.local_addr().unwrap(), own));
            agree(visitor.local_addr().unwrap(), own, true);
            let mut other = visitor.local_addr().unwrap();
            other.set_port(1);
            assert!(!visitors.has(other, own));
            agree(other, own, false);
            // (The kernel has a listening socket for that.)
            agree(own, other, false);
        }
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(Visitors::new(&[]).unwrap().has_unix(&one));
        assert!(!Visitors(vec![u32::MAX]).has_unix(&one));
    }

    #[test]
    fn an_end_that_was_closed_is_nobodys() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let visitor = TcpStream::connect(own).unwrap();
        let from = visitor.local_addr().unwrap();
        let root = Visitors(vec![0, rustix::process::geteuid().as_raw()]);
        assert!(root.has(from, own));
        drop(visitor);
        assert!(!root.has(from, own));
        agree(from, own, false);
    }

    #[test]
    fn a_socket_of_ipv6_reaches_ipv4() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let Ok(visitor) = TcpStream::connect(mapped(own)) else { return };
        let (_accepted, from) = listener.accept().unwrap();
        assert!(from.is_ipv4());
        agree(from, own, true);
        assert!(Visitors::new(&[]).unwrap().has(from, own));
        assert!(!Visitors(vec![u32::MAX]).has(from, own));
        drop(visitor);
    }

    #[test]
    fn users_have_names_and_numbers() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nprometheus:x:106:112::/var/lib:/bin/false\nbad:x\n";
        assert_eq!(number_of("prometheus", passwd), Some(106));
        assert_eq!(number_of("bad", passwd), None);
        assert_eq!(number_of("nobody", passwd), None);
        assert!(Visitors::new(&["no such user".to_owned()]).unwrap_err().contains("no such user"));
        assert!(Visitors::new(&["4711".to_owned()]).unwrap().0.contains(&4711));
    }
}
