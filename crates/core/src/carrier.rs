//! What the kernel says of a connection: its addresses, its state, how far each direction has come.

use crate::sys;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use netacc_proto::rendezvous::Tuple;

// ---- addresses ----------------------------------------------------------------------------------

/// Reads an address of the kernel's. `None`: not an Internet address.
pub(crate) fn address(raw: &[u8; 128], len: isize) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]) as c_int;
    let port = u16::from_be_bytes([*raw.get(2)?, *raw.get(3)?]);
    let ip: IpAddr = if family == libc::AF_INET && len >= 8 {
        <[u8; 4]>::try_from(raw.get(4..8)?).ok()?.into()
    } else if family == libc::AF_INET6 && len >= 24 {
        <[u8; 16]>::try_from(raw.get(8..24)?).ok()?.into()
    } else {
        return None;
    };
    Some(SocketAddr::new(ip, port))
}

/// `sockaddr_in` or `sockaddr_in6`, and its length.
pub(crate) fn sockaddr(of: SocketAddr) -> ([u8; 28], usize) {
    let mut raw = [0u8; 28];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(to) = raw.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    };
    put(2, &of.port().to_be_bytes());
    let (family, len) = match of.ip() {
        IpAddr::V4(ip) => {
            put(4, &ip.octets());
            (libc::AF_INET, 16)
        }
        IpAddr::V6(ip) => {
            put(8, &ip.octets());
            (libc::AF_INET6, 28)
        }
    };
    put(0, &(family as u16).to_ne_bytes());
    (raw, len)
}

/// Both addresses of a connected TCP socket. `None`: not connected, or not TCP.
pub(crate) fn tuple_of(fd: c_int) -> Option<Tuple> {
    let mut raw = [0u8; 128];
    let len = sys::socket_name(fd, false, &mut raw);
    let local = address(&raw, len)?;
    let len = sys::socket_name(fd, true, &mut raw);
    Tuple::new(local, address(&raw, len)?).ok()
}

/// The port that a socket is bound to; 0: none.
pub(crate) fn local_port(fd: c_int) -> u16 {
    let mut raw = [0u8; 128];
    let len = sys::socket_name(fd, false, &mut raw);
    address(&raw, len).map_or(0, |a| a.port())
}

// ---- state --------------------------------------------------------------------------------------

/// `TCP_CLOSE` of the kernel's states (include/net/tcp_states.h).
pub(crate) const TCP_CLOSE: u8 = 7;

/// The peer's FIN, or a reset, has come: TCP's states CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT and
/// CLOSE.
pub(crate) fn peer_ended(fd: c_int) -> bool {
    state_of(fd).is_none_or(|state| matches!(state, 6..=9 | 11))
}

/// As [`peer_ended`], where it is known: not of what is no TCP socket (any more).
pub(crate) fn has_ended(fd: c_int) -> bool {
    state_of(fd).is_some_and(|state| matches!(state, 6..=9 | 11))
}

/// The connection is over, at both ends or by a reset.
pub(crate) fn is_closed(fd: c_int) -> bool {
    state_of(fd) == Some(TCP_CLOSE)
}

/// Ends it by a reset, at once. (A FIN, as of shutdown(2), would be the end of a complete stream to
/// whoever has the other end without the library. And who has this one is told so again and again.)
/// What is unread in the kernel goes with it.
pub(crate) fn dissolve(fd: c_int) {
    let reset = || sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes()) >= 0;
    // Linux 6.4 to 6.6 refuse that while a thread sleeps in a receive there: this wakes it. Where
    // they still do the close is left, which resets it as well (`io::linger`).
    if !reset() {
        let _ = sys::shutdown(fd, libc::SHUT_RD);
        let _ = reset();
    }
}

/// Not a socket of another protocol, nor another file.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    state_of(fd).is_some()
}

/// Neither end has said that it sends no more, and nobody here that it receives no more.
pub(crate) fn is_open(fd: c_int) -> bool {
    const TCP_ESTABLISHED: u8 = 1;
    state_of(fd) == Some(TCP_ESTABLISHED)
        && sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
            == 0
}

/// The kernel's state of a TCP socket.
pub(crate) fn state_of(fd: c_int) -> Option<u8> {
    tcp_info(fd).map(|info| info.bytes[0])
}

fn tcp_info(fd: c_int) -> Option<TcpInfo> {
    // SAFETY: all zero is a valid TcpInfo.
    let mut info: TcpInfo = unsafe { core::mem::zeroed() };
    (sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) >= 0).then_some(info)
}

// ---- counts -------------------------------------------------------------------------------------

pub(crate) fn settled_counts(fd: c_int, connector: bool) -> Option<(u64, u64)> {
    // Bounded: where bytes come in all the time, some other moment will do.
    (0..100).find_map(|_| {
        let c = counts(fd, connector)?;
        // Nothing came between the questions: they speak of one moment.
        (c.received == c.received_before).then_some((c.sent, c.read))
    })
}

/// Of the packets of a connection, so far.
pub(crate) struct Packets {
    pub(crate) sent_twice: u32,
    /// Both ends have time stamps in them.
    pub(crate) stamped: bool,
    /// These are in microseconds.
    pub(crate) microseconds: bool,
}

pub(crate) fn packets(fd: c_int) -> Option<Packets> {
    /// Of `tcpi_options`.
    const TCPI_OPT_TIMESTAMPS: u8 = 1;
    const TCPI_OPT_USEC_TS: u8 = 64;
    let info = tcp_info(fd)?;
    // tcpi_options and tcpi_total_retrans
    Some(Packets {
        sent_twice: info.words[23],
        stamped: info.bytes[5] & TCPI_OPT_TIMESTAMPS != 0,
        microseconds: info.bytes[5] & TCPI_OPT_USEC_TS != 0,
    })
}

/// The shortest time that a packet has taken there and back, in microseconds, lately. `None`: it is
/// not known.
pub(crate) fn round_trip_us(fd: c_int) -> Option<u32> {
    // (Before the first one is measured the kernel says that it is endless.)
    tcp_info(fd).map(|info| info.more[3]).filter(|us| ![0, u32::MAX].contains(us))
}

/// When the peer's kernel last acknowledged something, old or new: so many nanoseconds ago. 0:
/// there is nothing that it has not answered. (Where it has no room it is probed every two minutes,
/// at last.)
pub(crate) fn unanswered_ns(fd: c_int) -> u64 {
    let Some(info) = tcp_info(fd) else { return 0 };
    // tcpi_probes and tcpi_unacked; tcpi_last_ack_recv, in milliseconds
    let (probes, packets) = (info.bytes[3], info.words[4]);
    if (probes, packets) == (0, 0) { 0 } else { u64::from(info.words[12]) * 1_000_000 }
}

/// Bytes that the kernel has taken and the peer's has not acknowledged.
pub(crate) fn is_under_way(fd: c_int) -> bool {
    let mut queued: c_int = 0;
    let asked = sys::ioctl(fd, libc::TIOCOUTQ as usize, (&raw mut queued) as usize);
    asked >= 0 && queued > 0
}

/// How many bytes the kernel has taken to send on `fd`, give or take one for all of a connection's
/// life.
pub(crate) fn sent(fd: c_int) -> Option<u64> {
    counts(fd, false).map(|c| c.sent)
}

/// The kernel's position in both directions of a connection.
pub(crate) struct Counts {
    pub(crate) sent: u64,
    /// Read, at most: what came between the first and the last question counts as unread.
    pub(crate) read: u64,
    pub(crate) received_before: u64,
    pub(crate) received: u64,
    /// It is shut down for sending.
    pub(crate) shut: bool,
}

/// Asks until what is said of sending speaks of one moment. (Not `tcpi_bytes_sent`: a packet that
/// could not be handed to the device counts there without having been sent, and again when it is.)
///
/// A FIN counts as a byte, ours in `tcpi_bytes_acked` or in the queue, the peer's in
/// `tcpi_bytes_received` (tcp_rcv_nxt_update), but not in FIONREAD (tcp_inq). The state tells that
/// there was one.
pub(crate) fn counts(fd: c_int, connector: bool) -> Option<Counts> {
    let ask = || tcp_info(fd);
    let unacknowledged =
        |out: &mut c_int| sys::ioctl(fd, libc::TIOCOUTQ as usize, out as *mut c_int as usize) >= 0;
    let unread =
        |out: &mut c_int| sys::ioctl(fd, libc::FIONREAD as usize, out as *mut c_int as usize) >= 0;
    let mut before = ask()?;
    for _ in 0..100 {
        let (mut queued, mut waiting): (c_int, c_int) = (0, 0);
        if !unacknowledged(&mut queued) || !unread(&mut waiting) {
            return None;
        }
        let after = ask()?;
        // The state is looked at a moment before the counts (tcp_get_info): a FIN that came in
        // between shows in the next answer.
        let state = if after.bytes_received == before.bytes_received { after } else { ask()? };
        let fins = state.fins();
        if after.bytes_acked == before.bytes_acked && after.fins() == fins && before.fins() == fins
        {
            let (shut, ended) = fins;
            // The SYN of the end that connected is acknowledged as a byte is (tcp_ack in SYN-SENT);
            // the other end's is not counted.
            let flags = u64::from(connector) + u64::from(shut);
            let sent = after.bytes_acked.wrapping_add(queued.max(0) as u64).wrapping_sub(flags);
            let received = |info: &TcpInfo| info.bytes_received.saturating_sub(u64::from(ended));
            let read = received(&before).saturating_sub(waiting.max(0) as u64);
            return Some(Counts {
                sent,
                read,
                received_before: received(&before),
                received: received(&after),
                shut,
            });
        }
        before = state;
    }
    None
}

/// What a TCP connection has sent, of which the peer's kernel may lack some, and received: the ends
/// counted.
#[cfg(test)]
pub(crate) fn moved(fd: c_int, connector: bool) -> Option<(u64, u64)> {
    let c = counts(fd, connector)?;
    let info = tcp_info(fd)?;
    let unsent = u64::from(info.more[2]);
    Some((c.sent.saturating_sub(unsent), c.received))
}

/// The start of the kernel's `struct tcp_info` (linux/tcp.h) up to the last member that is needed
/// here (4.6; an older kernel leaves the rest as it is: 0).
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    bytes: [u8; 8],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    /// `tcpi_segs_out`, `tcpi_segs_in`, `tcpi_notsent_bytes`, `tcpi_min_rtt` (4.6).
    more: [u32; 4],
}
const _: () = assert!(core::mem::offset_of!(TcpInfo, pacing_rate) == 104);

impl TcpInfo {
    /// Whether our FIN has been sent or waits to be, and whether the peer's has come, by TCP's
    /// states. (Of a closed connection nobody knows.)
    fn fins(&self) -> (bool, bool) {
        let state = self.bytes[0];
        // FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING; TIME_WAIT, CLOSE_WAIT, LAST_ACK,
        // CLOSING
        (matches!(state, 4 | 5 | 6 | 9 | 11), matches!(state, 6 | 8 | 9 | 11))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["10.0.0.1:26379", "[fd00::1]:65535", "0.0.0.0:0", "[::1]:1"] {
            let of: SocketAddr = text.parse().unwrap();
            let (raw, len) = sockaddr(of);
            let mut wide = [0u8; 128];
            wide.get_mut(..len).unwrap().copy_from_slice(raw.get(..len).unwrap());
            assert_eq!(address(&wide, len as isize), Some(of));
        }
    }
}
