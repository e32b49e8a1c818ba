//! One packet of a control connection: the message, at most one descriptor, and who sends it.
//!
//! A packet is looked at before it is taken: where it brings descriptors, which may be anybody's
//! files, only [`super::strangers`] takes it.

use super::auth::{self, Cred};
use super::doorbell::is_doorbell;
use crate::control::{Ancillary, FDS_MAX, HEADER, empty_header, space};
use crate::{arena, sys};
use core::ffi::c_int;
use libc::ucred;
use netacc_proto::rendezvous::{DecodeError, MAX_MESSAGE, Message, Peers};

/// What one call of [`receive`] brought.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// A message; its descriptor (one of the library's own now, the receiver's to close) or -1; its
    /// sender.
    Message(Message, c_int, Cred),
    /// A message that brings descriptors: it is still there.
    Files(Message),
    /// Nothing more for now.
    Nothing,
    /// The connection ended.
    End,
    /// Our table of descriptors is full: the message came without its own.
    NoDescriptor,
    /// Whoever took the message with its descriptor has not come back.
    Withheld,
    /// A message of another version.
    OtherVersion,
    /// Something that no honest peer sends. It may still be there.
    Malformed,
}

/// What a call of `recvmsg` brought: the length, the flags, the sender, and the descriptors with
/// their number.
struct Taken<const N: usize> {
    len: isize,
    flags: c_int,
    sender: Option<Cred>,
    fds: [c_int; N],
    count: usize,
}

/// Receives with room for `N` descriptors. Never waits.
fn take<const N: usize>(control: c_int, bytes: &mut [u8], flags: c_int) -> Taken<N> {
    let mut data = Ancillary::new();
    let mut iov = sys::iov(bytes.as_mut_ptr(), bytes.len());
    let mut header = empty_header();
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = data.0.as_mut_ptr().cast();
    // Room for the sender alone leaves none for a descriptor.
    header.msg_controllen = space(size_of::<ucred>()) + if N == 0 { 0 } else { space(N * 4) };
    // SAFETY: the header describes live buffers with their lengths.
    let len = unsafe {
        sys::recvmsg(control, &mut header, flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    let mut taken = Taken { len, flags: header.msg_flags, sender: None, fds: [-1; N], count: 0 };
    if len >= 0 {
        (taken.sender, taken.count) = read_control(&data, header.msg_controllen, &mut taken.fds);
    }
    taken
}

/// What there is to say without a message.
fn without_message(len: isize) -> Option<Received> {
    match -len as c_int {
        0 => Some(Received::End),
        libc::EAGAIN | libc::EINTR if len < 0 => Some(Received::Nothing),
        _ if len < 0 => Some(Received::End),
        _ => None,
    }
}

fn decode(bytes: &[u8], len: isize) -> Result<Message, Received> {
    match bytes
        .get(..len as usize)
        .ok_or(DecodeError::Length)
        .and_then(|bytes| Message::decode(bytes, Peers::OneHost))
    {
        Ok(m) => Ok(m),
        Err(DecodeError::Format) => Err(Received::OtherVersion),
        Err(_) => Err(Received::Malformed),
    }
}

/// Receives one message, if it brings no descriptor. Never waits.
pub(crate) fn receive(control: c_int) -> Received {
    // One byte more than any message: a longer one is seen to be.
    let mut bytes = [0u8; MAX_MESSAGE + 1];
    // Descriptors for which there is no room are not the last of their files while the packet is
    // there.
    let seen = take::<0>(control, &mut bytes, libc::MSG_PEEK);
    if let Some(nothing) = without_message(seen.len) {
        return nothing;
    }
    let message = match decode(&bytes, seen.len) {
        Ok(m) => m,
        Err(why) => return why,
    };
    let Some(sender) = seen.sender.filter(|_| seen.flags & libc::MSG_TRUNC == 0) else {
        return Received::Malformed;
    };
    let brings = seen.flags & libc::MSG_CTRUNC != 0;
    if brings != (message.fds() != 0) {
        return Received::Malformed;
    }
    if brings {
        return Received::Files(message);
    }
    // SAFETY: no buffer: takes the packet that was just seen. (Nobody else receives here.)
    let _ = unsafe {
        sys::recvfrom(
            control,
            core::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
        )
    };
    Received::Message(message, -1, sender)
}

/// Receives one message with all descriptors that it brings, into the calling thread's table;
/// returns one of them, if there is only one, and how many there are.
pub(super) fn receive_files(control: c_int) -> (Received, c_int, usize) {
    let mut bytes = [0u8; MAX_MESSAGE + 1];
    let taken = take::<FDS_MAX>(control, &mut bytes, 0);
    let [fd, ..] = taken.fds;
    let fd = if taken.count == 1 { fd } else { -1 };
    let got = without_message(taken.len).unwrap_or_else(|| match decode(&bytes, taken.len) {
        Err(why) => why,
        Ok(m) => match taken.sender.filter(|_| taken.flags & libc::MSG_TRUNC == 0) {
            Some(_)
                if taken.count < usize::from(m.fds()) && taken.flags & libc::MSG_CTRUNC != 0 =>
            {
                Received::NoDescriptor
            }
            Some(sender)
                if taken.count == usize::from(m.fds()) && taken.flags & libc::MSG_CTRUNC == 0 =>
            {
                Received::Message(m, -1, sender)
            }
            _ => Received::Malformed,
        },
    });
    (got, fd, taken.count)
}

/// Whether a file is what the message promises: memory whose size is fixed, or a doorbell. No
/// question is asked that a file system of somebody's own would have to answer.
pub(super) fn is_what_it_should_be(got: &Received, fd: c_int) -> bool {
    match got {
        Received::Message(Message::Channel(m), ..) => {
            usize::try_from(m.channel_bytes).is_ok_and(|bytes| arena::is_sealed(fd, bytes))
        }
        Received::Message(Message::Arena(m), ..) => {
            usize::try_from(m.bytes).is_ok_and(|bytes| arena::is_sealed(fd, bytes))
        }
        Received::Message(Message::Place { .. }, ..) => is_doorbell(fd),
        _ => false,
    }
}

// ---- within the process -------------------------------------------------------------------------

/// Whether this process is at the other end.
pub(super) fn is_self(fd: c_int) -> bool {
    auth::peer_of(fd).is_some_and(|peer| peer.pid == sys::getpid() && peer.uid == sys::geteuid())
}

/// Sends a byte and a descriptor (-1: none). Never waits.
pub(super) fn hand_over(to: c_int, fd: c_int) -> bool {
    let mut data = Ancillary::new();
    let mut iov = sys::iov(b"f".as_ptr(), 1);
    let mut header = empty_header();
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    if fd >= 0 {
        header.msg_control = data.0.as_mut_ptr().cast();
        header.msg_controllen = data.push(0, libc::SCM_RIGHTS, &fd.to_ne_bytes());
    }
    // SAFETY: the header describes live buffers with their lengths.
    unsafe { sys::sendmsg(to, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == 1 }
}

/// Receives what [`hand_over`] sent. `None`: nothing came.
pub(super) fn take_over(from: c_int) -> Option<c_int> {
    let mut byte = [0u8];
    let taken = take::<1>(from, &mut byte, 0);
    let [fd] = taken.fds;
    (taken.len == 1).then_some(fd)
}

/// The control data of the kernel's: the sender, the descriptors and their number.
fn read_control(data: &Ancillary, len: usize, fds: &mut [c_int]) -> (Option<Cred>, usize) {
    let word = |at: usize| data.0.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    let mut sender = None;
    let mut count = 0;
    let mut at = 0usize;
    // Two kinds of control messages are possible here.
    for _ in 0..4 {
        let Some(size) =
            data.0.get(at..).and_then(|d| d.first_chunk().copied()).map(usize::from_ne_bytes)
        else {
            break;
        };
        let end = at.saturating_add(size);
        if size < HEADER || end > len.min(size_of::<Ancillary>()) {
            break;
        }
        let kind = (word(at + 8).unwrap_or(0) as c_int, word(at + 12).unwrap_or(0) as c_int);
        if kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) && size == HEADER + 12 {
            if let (Some(pid), Some(uid)) = (word(at + HEADER), word(at + HEADER + 4)) {
                sender = Some(Cred { pid, uid });
            }
        } else if kind == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for i in 0..(size - HEADER) / 4 {
                if let (Some(fd), Some(to)) = (word(at + HEADER + i * 4), fds.get_mut(count)) {
                    *to = fd as c_int;
                    count += 1;
                }
            }
        }
        at = end.next_multiple_of(8);
    }
    (sender, count)
}
