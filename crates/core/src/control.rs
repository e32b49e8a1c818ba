//! Messages to a peer process over its control link: a unix socket, one packet for each.
//!
//! Any thread sends; what comes is for the thread "netacc" (`rendezvous::packet`).

use crate::channel::Channel;
use crate::sys;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;
use libc::{cmsghdr, msghdr, ucred};
use netacc_proto::rendezvous::{Direction, MAX_MESSAGE, Message};

/// Descriptors that one packet can bring (SCM_MAX_FD); an honest one has at most one.
pub(crate) const FDS_MAX: usize = 253;

/// Control data of both directions: one `ucred` and up to [`FDS_MAX`] descriptors.
#[repr(C, align(8))]
pub(crate) struct Ancillary(pub(crate) [u8; CONTROL]);
pub(crate) const HEADER: usize = size_of::<cmsghdr>();
pub(crate) const fn space(bytes: usize) -> usize {
    HEADER + bytes.next_multiple_of(8)
}
const CONTROL: usize = space(size_of::<ucred>()) + space(FDS_MAX * 4);
const _: () = assert!(HEADER == 16 && size_of::<ucred>() == 12);

impl Ancillary {
    pub(crate) fn new() -> Ancillary {
        Ancillary([0; CONTROL])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
    /// Appends one control message and returns the new length.
    pub(crate) fn push(&mut self, at: usize, kind: c_int, data: &[u8]) -> usize {
        self.put(at, &(HEADER + data.len()).to_ne_bytes());
        self.put(at + 8, &libc::SOL_SOCKET.to_ne_bytes());
        self.put(at + 12, &kind.to_ne_bytes());
        self.put(at + HEADER, data);
        at + space(data.len())
    }
}

pub(crate) fn empty_header() -> msghdr {
    // SAFETY: all zero is a valid msghdr: no name, no data, no control data.
    unsafe { MaybeUninit::<msghdr>::zeroed().assume_init() }
}

/// Sends one message, with `fd` where it takes one (the caller keeps it). Never waits. Returns
/// `-errno` or 0.
///
/// Names the sending process, and the effective user that it had when the link was made, which the
/// kernel checks. Who may not become that one again (seteuid(2)) says who it is now: the peer gives
/// the link up.
pub(crate) fn send(control: c_int, user: u32, message: &Message, fd: c_int) -> isize {
    match send_as(control, user, message, fd) {
        // (Not mapped in a user namespace that it has gone to.)
        REFUSED | UNKNOWN if user != sys::geteuid() => {
            send_as(control, sys::geteuid(), message, fd)
        }
        sent => sent,
    }
}

const REFUSED: isize = -(libc::EPERM as isize);
const UNKNOWN: isize = -(libc::EINVAL as isize);

fn send_as(control: c_int, user: u32, message: &Message, fd: c_int) -> isize {
    let mut bytes = [0u8; MAX_MESSAGE];
    let len = message.encode(&mut bytes);
    let mut data = Ancillary::new();
    let mut creds = [0u8; 12];
    for (to, from) in creds.chunks_exact_mut(4).zip([sys::getpid(), user, sys::getegid()]) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    let mut control_len = data.push(0, libc::SCM_CREDENTIALS, &creds);
    if message.fds() != 0 {
        control_len = data.push(control_len, libc::SCM_RIGHTS, &fd.to_ne_bytes());
    }
    let mut iov = sys::iov(bytes.as_ptr(), len);
    let mut header = empty_header();
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = data.0.as_mut_ptr().cast();
    header.msg_controllen = control_len;
    // SAFETY: the header describes live buffers with their lengths.
    unsafe { sys::sendmsg(control, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }.min(0)
}

/// Passes the doorbell of one of our waiting places to the peer. One nonblocking system call, in
/// any thread.
pub(crate) fn send_place(channel: &Channel, place: usize, doorbell: c_int) -> bool {
    let Ok(place) = u16::try_from(place) else { return false };
    send_on(channel, &Message::Place { place }, doorbell)
}

/// Asks the peer to take back what it sent into the ring. One nonblocking system call, in any
/// thread.
pub(crate) fn send_pull_back(channel: &Channel, slot: usize) -> bool {
    let Ok(slot) = u16::try_from(slot) else { return false };
    // We are the receiver of the direction that the peer produces; side 0 is the acceptor.
    let dir = if channel.side == 0 {
        Direction::ConnectorToAcceptor
    } else {
        Direction::AcceptorToConnector
    };
    send_on(channel, &Message::PullBack { slot, dir }, -1)
}

/// Tells the peer that bytes of ours lie unread in a ring. One nonblocking system call.
pub(crate) fn send_unread(channel: &Channel, slot: usize) -> bool {
    let Ok(slot) = u16::try_from(slot) else { return false };
    send_on(channel, &Message::Unread { slot }, -1)
}

/// Tells the peer that this end has left the ring for good, with bytes unread. One nonblocking
/// system call, in any thread.
pub(crate) fn send_left(channel: &Channel, slot: usize) -> bool {
    let Ok(slot) = u16::try_from(slot) else { return false };
    send_on(channel, &Message::Left { slot }, -1)
}

fn send_on(channel: &Channel, message: &Message, fd: c_int) -> bool {
    let control = channel.control.load(Acquire);
    control >= 0 && send(control, channel.own_user, message, fd) == 0
}
