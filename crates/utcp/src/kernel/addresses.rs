//! Addresses as the kernel has them.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use netacc_packet::sys::{Errno, checked, syscall_of_address};
use netacc_tcp::wire::Endpoint;

/// `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    bytes: [u8; 28],
    length: usize,
}

impl Address {
    /// Of this end.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn local(fd: c_int) -> Result<Self, Errno> {
        Self::ask(libc::SYS_getsockname, fd)
    }

    /// Of the other one.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn peer(fd: c_int) -> Result<Self, Errno> {
        Self::ask(libc::SYS_getpeername, fd)
    }

    fn ask(call: i64, fd: c_int) -> Result<Self, Errno> {
        let mut bytes = [0; 28];
        let (ret, length) = syscall_of_address(call, fd, &mut bytes);
        checked(ret)?;
        Ok(Self { bytes, length })
    }

    /// From what [`Address::as_bytes`] has said.
    #[must_use]
    pub fn given(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; 28];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, length: from.len() })
    }

    /// As the kernel has it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }

    /// The same address, port and `sin6_scope_id`. (`sin6_flowinfo` is none of an end's.)
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let scope = |of: &Self| of.bytes.last_chunk::<4>().copied();
        let of = |end: &Self| (end.family(), end.endpoint(), scope(end));
        of(self) == of(other)
    }

    /// Its family.
    #[must_use]
    pub fn family(&self) -> c_int {
        let [f0, f1, ..] = self.bytes;
        c_int::from(u16::from_ne_bytes([f0, f1]))
    }

    /// The same address, with a port that the kernel chooses.
    #[must_use]
    pub const fn with_any_port(mut self) -> Self {
        let [_, _, p0, p1, ..] = &mut self.bytes;
        (*p0, *p1) = (0, 0);
        self
    }

    /// As packets have it: an IPv4 address is never an IPv6 one. Nothing if it is of another
    /// family.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        let [f0, f1, p0, p1, rest @ ..] = &self.bytes;
        let address = match c_int::from(u16::from_ne_bytes([*f0, *f1])) {
            libc::AF_INET => {
                let bytes: [u8; 4] = *rest.first_chunk()?;
                IpAddr::V4(Ipv4Addr::from(bytes))
            }
            libc::AF_INET6 => {
                let bytes: [u8; 16] = *rest.get(4..)?.first_chunk()?;
                IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
            }
            _ => return None,
        };
        Some(Endpoint { address, port: u16::from_be_bytes([*p0, *p1]) })
    }
}
