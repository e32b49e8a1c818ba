//! What may be taken over.

use super::{Address, Kept, SO_PROTOCOL, of_socket, tcp};
use core::ffi::c_int;
use netacc_packet::sys::{self, Errno, Fd};
use netacc_tcp::wire::Flow;
use netacc_tcp::wire::emit::Service;

/// Why a connection stays with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `CAP_NET_ADMIN` is missing.
    Privilege,
    /// It is no TCP connection over IP (MPTCP, unix).
    NotTcp,
    /// It is not established, or something has happened on it that the application has not seen:
    /// an end, an error, urgent data.
    State,
    /// Options of its SYN that cannot be kept: ECN, time stamps of microseconds; or no SACK.
    Negotiated,
    /// TLS of the kernel's, or another layer above it.
    Layered,
    /// The application wants its packets treated in a way that would not be kept: bound to a
    /// device, marked.
    Policy,
    /// Connections of this network namespace are tracked, and what bypasses that would make the
    /// kernel's next packets invalid.
    Tracked,
    /// Its numbers would not stand still.
    Restless,
    /// Its windows or sizes are not understood.
    DataPath(netacc_tcp::Refusal),
    /// No memory.
    NoMemory,
    /// Something else.
    Other(Errno),
}

impl Refusal {
    pub(super) fn of_privilege(errno: Errno) -> Self {
        if matches!(errno.0, libc::EPERM) { Self::Privilege } else { Self::Other(errno) }
    }
}

/// What is used of `struct tcp_info`.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the kernel's names")]
pub struct Info {
    pub state: u8,
    pub stamps: bool,
    pub sack: bool,
    pub scaled: bool,
    pub ecn: bool,
    pub microseconds: bool,
    pub send_scale: u8,
    pub receive_scale: u8,
    pub send_mss: u32,
    pub receive_mss: u32,
    pub rtt: u32,
    pub rtt_variance: u32,
    pub ssthresh: u32,
    pub cwnd: u32,
    pub advertised_mss: u32,
    pub segments_in: u32,
}

impl Info {
    /// Asks the kernel.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn of(fd: c_int) -> Result<Self, Errno> {
        let mut bytes = [0; 240];
        sys::get_bytes(fd, tcp(libc::TCP_INFO), &mut bytes)?;
        let [state, _, _, _, _, options, scales, ..] = bytes;
        let word = |at: usize| {
            let word = bytes.get(at..).and_then(|rest| rest.first_chunk().copied());
            word.map_or(0, u32::from_ne_bytes)
        };
        let has = |bit: u8| options & bit != 0;
        Ok(Self {
            state,
            stamps: has(1),
            sack: has(2),
            scaled: has(4),
            ecn: has(8),
            microseconds: has(64),
            send_scale: scales & 15,
            receive_scale: scales >> 4,
            send_mss: word(16),
            receive_mss: word(20),
            rtt: word(68),
            rtt_variance: word(72),
            ssthresh: word(76),
            cwnd: word(80),
            advertised_mss: word(84),
            segments_in: word(140),
        })
    }
}

impl Kept {
    /// Looks at a socket, whose descriptor is duplicated. Nothing is changed.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn examine(fd: c_int) -> Result<Self, Refusal> {
        let other = Refusal::Other;
        let protocol = sys::get(fd, of_socket(SO_PROTOCOL)).map_err(other)?;
        if protocol != libc::IPPROTO_TCP {
            return Err(Refusal::NotTcp);
        }
        let info = Info::of(fd).map_err(other)?;
        if is_in_trouble(fd).map_err(other)? {
            return Err(Refusal::State);
        }
        if info.ecn || info.microseconds || !info.sack {
            return Err(Refusal::Negotiated);
        }
        if is_layered(fd) {
            return Err(Refusal::Layered);
        }
        if has_policy(fd).map_err(other)? {
            return Err(Refusal::Policy);
        }
        let (local, peer) = (Address::local(fd).map_err(other)?, Address::peer(fd).map_err(other)?);
        if is_tracked() {
            return Err(Refusal::Tracked);
        }
        let ends = peer.endpoint().zip(local.endpoint());
        let (source, destination) = ends.ok_or(Refusal::NotTcp)?;
        let reuse = sys::get(fd, of_socket(libc::SO_REUSEADDR)).map_err(other)?;
        let keep_alive = sys::get(fd, of_socket(libc::SO_KEEPALIVE)).map_err(other)?;
        let flow = Flow { source, destination };
        let fd = Fd::duplicate_of(fd).map_err(other)?;
        Ok(Self { fd, local, peer, flow, info, mss: 0, reuse, keep_alive })
    }
}

/// It is not established, or there is an error, an end or an urgent byte.
pub(super) fn is_in_trouble(fd: c_int) -> Result<bool, Errno> {
    const ESTABLISHED: u8 = 1;
    const TROUBLE: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP | libc::POLLPRI;
    Ok(Info::of(fd)?.state != ESTABLISHED || sys::poll(fd, TROUBLE, 0)? != 0)
}

/// `TCP_ULP`: kernel TLS and its like. (Where none is set its name is empty.)
fn is_layered(fd: c_int) -> bool {
    let mut name = [0; 16];
    let named = sys::get_bytes(fd, tcp(libc::TCP_ULP), &mut name);
    named.is_ok_and(|length| length > 0 && name.first() != Some(&0))
}

fn has_policy(fd: c_int) -> Result<bool, Errno> {
    let mut device = [0; 16];
    let bound = sys::get_bytes(fd, of_socket(libc::SO_BINDTODEVICE), &mut device)? > 0;
    Ok(bound || sys::get(fd, of_socket(libc::SO_MARK))? != 0)
}

/// Whether netfilter tracks any connection of the network namespace.
fn is_tracked() -> bool {
    let mut count = [0; 16];
    let read = sys::read_file(c"/proc/sys/net/netfilter/nf_conntrack_count", &mut count);
    read.is_ok_and(|read| count.get(..read).unwrap_or(&[]).trim_ascii() != b"0")
}

/// What the IP headers of its packets say.
pub(crate) fn service_of(fd: c_int, flow: &Flow) -> Result<Service, Errno> {
    let (level, class, hops) = if flow.source.address.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
    };
    let byte = |name| sys::get(fd, (level, name)).map(|n| u8::try_from(n).unwrap_or(0));
    Ok(Service { hops: byte(hops)?, class: byte(class)?, ecn_capable: false, flow_label: 0 })
}
