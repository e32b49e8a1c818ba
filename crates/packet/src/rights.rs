//! Messages with descriptors, between a process and its keeper.

use crate::sys::{Errno, Fd, checked, syscall};
use core::ffi::c_int;

/// The most descriptors of a message.
pub const MOST: usize = 4;
/// struct cmsghdr, and an int for each.
const CONTROL: usize = 16 + 4 * MOST;

/// Two ends of a link that keeps messages apart, closed by exec.
///
/// # Errors
///
/// What the kernel said.
pub fn link() -> Result<[Fd; 2], Errno> {
    let mut ends = [-1; 2];
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    let arguments = [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel writes two ints into the live array.
    checked(unsafe { syscall(libc::SYS_socketpair, arguments) })?;
    let [a, b] = ends.map(|end| Fd::new(end as isize));
    Ok([a?, b?])
}

/// A descriptor of a process, which is readable when that has ended.
///
/// # Errors
///
/// What the kernel said.
pub fn process(number: c_int) -> Result<Fd, Errno> {
    // SAFETY: integers only.
    Fd::new(unsafe { syscall(libc::SYS_pidfd_open, [number as usize, 0, 0, 0, 0, 0]) })
}

/// Two ints, as they stand one behind the other.
const fn two(a: c_int, b: c_int) -> u64 {
    let [a0, a1, a2, a3] = a.to_ne_bytes();
    let [b0, b1, b2, b3] = b.to_ne_bytes();
    u64::from_ne_bytes([a0, a1, a2, a3, b0, b1, b2, b3])
}

/// Level and type of descriptors, in a struct cmsghdr.
const fn rights() -> u64 {
    two(libc::SOL_SOCKET, libc::SCM_RIGHTS)
}

/// Sends a message with copies of descriptors. It does not wait.
///
/// # Errors
///
/// What the kernel said.
pub fn send(link: &Fd, bytes: &[u8], descriptors: &[c_int]) -> Result<(), Errno> {
    let descriptors = descriptors.get(..MOST).unwrap_or(descriptors);
    let length = 16 + 4 * descriptors.len();
    let mut control = [0_u64; CONTROL / 8];
    let [size, kind, rest @ ..] = &mut control;
    (*size, *kind) = (length as u64, rights());
    let (pairs, last) = descriptors.as_chunks::<2>();
    let last = last.iter().map(|&fd| two(fd, 0));
    for (place, word) in rest.iter_mut().zip(pairs.iter().map(|&[a, b]| two(a, b)).chain(last)) {
        *place = word;
    }
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr is integers and pointers, for which all zeros are values.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    if !descriptors.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = length as _;
    }
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let arguments = [link.number() as usize, &raw const message as usize, flags, 0, 0, 0];
    // SAFETY: the kernel reads the message, and what it names: all of it is live.
    checked(unsafe { syscall(libc::SYS_sendmsg, arguments) }).map(|_| ())
}

/// Receives one, if there is one: how long it is (0: the other end is gone), and its descriptors,
/// closed by exec.
///
/// # Errors
///
/// What the kernel said.
pub fn receive(link: &Fd, bytes: &mut [u8]) -> Result<(usize, [Option<Fd>; MOST]), Errno> {
    let mut control = [0_u64; CONTROL / 8];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr is integers and pointers, for which all zeros are values.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    let arguments = [link.number() as usize, &raw mut message as usize, flags, 0, 0, 0];
    // SAFETY: the kernel writes the message, and what it names: all of it is live.
    let length = checked(unsafe { syscall(libc::SYS_recvmsg, arguments) })?;
    let mut descriptors = [const { None }; MOST];
    let [size, kind, rest @ ..] = &control;
    if message.msg_controllen > 0 && *kind == rights() {
        let count = usize::try_from(*size).unwrap_or(0).saturating_sub(16) / 4;
        let numbers = rest.iter().flat_map(|word| {
            let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
            [c_int::from_ne_bytes([a, b, c, d]), c_int::from_ne_bytes([e, f, g, h])]
        });
        for (place, number) in descriptors.iter_mut().zip(numbers.take(count)) {
            *place = Fd::new(number as isize).ok();
        }
    }
    Ok((length, descriptors))
}

/// Waits until one of these is readable, or has no other end any more.
///
/// # Errors
///
/// What the kernel said.
pub fn wait_for_either(one: &Fd, other: Option<&Fd>) -> Result<[bool; 2], Errno> {
    let of = |fd: Option<&Fd>| libc::pollfd {
        fd: fd.map_or(-1, Fd::number),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut two = [of(Some(one)), of(other)];
    // SAFETY: the kernel reads and writes the two live pollfds; no time, no mask.
    checked(unsafe { syscall(libc::SYS_ppoll, [two.as_mut_ptr() as usize, 2, 0, 0, 8, 0]) })?;
    Ok(two.map(|fd| fd.revents != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn descriptors_come_with_their_message() {
        let [a, b] = link().unwrap();
        let [c, d] = link().unwrap();
        let mut bytes = [0; 8];
        assert_eq!(receive(&b, &mut bytes).unwrap_err(), Errno(libc::EAGAIN));
        for count in 0..=MOST {
            let numbers = [c.number(), d.number(), c.number(), d.number()];
            send(&a, &[1, 2, 3], &numbers[..count]).unwrap();
            let (length, got) = receive(&b, &mut bytes).unwrap();
            assert_eq!((length, &bytes[..3]), (3, &[1, 2, 3][..]));
            assert_eq!(got.iter().flatten().count(), count);
            if let Some(copy) = &got[0] {
                assert_ne!(copy.number(), c.number());
                sys::send(copy.number(), b"x", 0).unwrap();
                assert_eq!(sys::receive(d.number(), &mut bytes, 0).unwrap(), 1);
            }
        }
        send(&a, b"last", &[]).unwrap();
        drop(a);
        assert_eq!(wait_for_either(&b, None).unwrap(), [true, false]);
        assert_eq!(receive(&b, &mut bytes).unwrap().0, 4);
        assert_eq!(receive(&b, &mut bytes).unwrap().0, 0, "the other end is gone");
        let own = process(sys::process()).unwrap();
        send(&c, b"x", &[]).unwrap();
        assert_eq!(wait_for_either(&d, Some(&own)).unwrap(), [true, false]);
    }
}
