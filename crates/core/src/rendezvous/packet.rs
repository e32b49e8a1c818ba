//! One packet of a control connection: the message, at most one descriptor, and who sends it.

use super::auth::Cred;
use crate::{numbers, sys};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use libc::{cmsghdr, msghdr, ucred};
use netacc_proto::rendezvous::{DecodeError, MAX_MESSAGE, Message};

/// Descriptors that one packet can bring in; an honest one has at most one.
const FDS_MAX: usize = 4;

/// Control data of both directions: one `ucred` and up to [`FDS_MAX`] descriptors.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);
const HEADER: usize = size_of::<cmsghdr>();
const fn space(bytes: usize) -> usize {
    HEADER + bytes.next_multiple_of(8)
}
const CONTROL: usize = space(size_of::<ucred>()) + space(FDS_MAX * 4);
const _: () = assert!(HEADER == 16 && size_of::<ucred>() == 12);

impl Control {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
    /// Appends one control message and returns the new length.
    fn push(&mut self, at: usize, kind: c_int, data: &[u8]) -> usize {
        self.put(at, &(HEADER + data.len()).to_ne_bytes());
        self.put(at + 8, &libc::SOL_SOCKET.to_ne_bytes());
        self.put(at + 12, &kind.to_ne_bytes());
        self.put(at + HEADER, data);
        at + space(data.len())
    }
}

fn empty_header() -> msghdr {
    // SAFETY: all zero is a valid msghdr: no name, no data, no control data.
    unsafe { MaybeUninit::<msghdr>::zeroed().assume_init() }
}

/// Sends one message, with `fd` where it takes one (the caller keeps it). Never waits. Returns `-errno` or 0.
///
/// Names the sending process and its effective user, which the kernel checks: who has given up a privilege cannot use it here.
pub(crate) fn send(control: c_int, message: &Message, fd: c_int) -> isize {
    let mut bytes = [0u8; MAX_MESSAGE];
    let len = message.encode(&mut bytes);
    let mut data = Control([0; CONTROL]);
    let mut creds = [0u8; 12];
    for (to, from) in creds.chunks_exact_mut(4).zip([sys::getpid(), sys::geteuid(), sys::getegid()]) {
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

/// What one call of [`receive`] brought.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message; its descriptor (one of the library's own now, the receiver's to close) or -1; its sender.
    Message(Message, c_int, Cred),
    /// Nothing more for now.
    Nothing,
    /// The connection ended.
    End,
    /// Our table of descriptors is full: the message came without its own.
    NoDescriptor,
    /// A message of another version.
    OtherVersion,
    /// Something that no honest peer sends.
    Malformed,
}

/// Receives one message. Never waits.
pub(crate) fn receive(control: c_int) -> Received {
    // It may bring descriptors.
    numbers::exclusively(|| receive_now(control))
}

fn receive_now(control: c_int) -> Received {
    // One byte more than any message: a longer one is seen to be.
    let mut bytes = [0u8; MAX_MESSAGE + 1];
    let mut data = Control([0; CONTROL]);
    let mut iov = sys::iov(bytes.as_mut_ptr(), bytes.len());
    let mut header = empty_header();
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = data.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL;
    // SAFETY: the header describes live buffers with their lengths.
    let n = unsafe { sys::recvmsg(control, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        let errno = -n as c_int;
        return if errno == libc::EAGAIN || errno == libc::EINTR { Received::Nothing } else { Received::End };
    }
    let mut fds = [-1 as c_int; FDS_MAX];
    let (sender, count) = read_control(&data, header.msg_controllen, &mut fds);
    let give_up = |why: Received| {
        for fd in fds {
            if fd >= 0 {
                let _ = sys::close(fd);
            }
        }
        why
    };
    if n == 0 {
        return give_up(Received::End);
    }
    let message = match bytes.get(..n as usize).ok_or(DecodeError::Length).and_then(Message::decode) {
        Ok(m) => m,
        Err(DecodeError::Format) => return give_up(Received::OtherVersion),
        Err(_) => return give_up(Received::Malformed),
    };
    let Some(sender) = sender else { return give_up(Received::Malformed) };
    if count < usize::from(message.fds()) && header.msg_flags & libc::MSG_CTRUNC != 0 {
        return give_up(Received::NoDescriptor);
    }
    if count != usize::from(message.fds()) || header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return give_up(Received::Malformed);
    }
    let [fd, ..] = fds;
    if fd < 0 {
        return Received::Message(message, -1, sender);
    }
    let high = numbers::adopt(fd);
    if high < 0 { Received::NoDescriptor } else { Received::Message(message, high, sender) }
}

/// The control data of the kernel's: the sender, the descriptors and their number.
fn read_control(data: &Control, len: usize, fds: &mut [c_int; FDS_MAX]) -> (Option<Cred>, usize) {
    let word = |at: usize| data.0.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    let mut sender = None;
    let mut count = 0;
    let mut at = 0usize;
    // Two kinds of control messages are possible here.
    for _ in 0..4 {
        let Some(size) = data.0.get(at..).and_then(|d| d.first_chunk().copied()).map(usize::from_ne_bytes) else { break };
        let end = at.saturating_add(size);
        if size < HEADER || end > len.min(CONTROL) {
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
