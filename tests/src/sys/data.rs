//! Bytes: receives, sends, files.

use super::*;

pub fn read(fd: Fd, buf: &mut [u8]) -> R {
    call!(libc::read(fd, buf.as_mut_ptr().cast(), buf.len()))
}

pub fn write(fd: Fd, buf: &[u8]) -> R {
    call!(libc::write(fd, buf.as_ptr().cast(), buf.len()))
}

pub fn recv(fd: Fd, buf: &mut [u8], flags: c_int) -> R {
    call!(libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), flags))
}

pub fn send(fd: Fd, buf: &[u8], flags: c_int) -> R {
    call!(libc::send(fd, buf.as_ptr().cast(), buf.len(), flags))
}

/// `recvfrom` with an address buffer; returns the count and the address length that the kernel
/// wrote.
pub fn recvfrom(fd: Fd, buf: &mut [u8], flags: c_int) -> Result<(usize, u32), E> {
    let mut sa = storage();
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    let n = call!(libc::recvfrom(
        fd,
        buf.as_mut_ptr().cast(),
        buf.len(),
        flags,
        (&raw mut sa).cast(),
        &mut len
    ))?;
    Ok((n, len))
}

pub fn sendto(fd: Fd, buf: &[u8], flags: c_int, to: Option<Addr>) -> R {
    match to {
        Some(addr) => {
            let (sa, len) = addr.raw();
            call!(libc::sendto(
                fd,
                buf.as_ptr().cast(),
                buf.len(),
                flags,
                (&raw const sa).cast(),
                len
            ))
        }
        None => call!(libc::sendto(fd, buf.as_ptr().cast(), buf.len(), flags, null(), 0)),
    }
}

/// `recv` into an address that is not mapped.
pub fn recv_bad_pointer(fd: Fd, len: usize, flags: c_int) -> R {
    call!(libc::recv(fd, 16 as *mut c_void, len, flags))
}

/// `read` into an address that is not mapped.
pub fn read_bad_pointer(fd: Fd, len: usize) -> R {
    call!(libc::read(fd, 16 as *mut c_void, len))
}

/// `send` from an address that is not mapped.
pub fn send_bad_pointer(fd: Fd, len: usize, flags: c_int) -> R {
    call!(libc::send(fd, 16 as *const c_void, len, flags))
}

fn iov_out(parts: &[&[u8]]) -> Vec<libc::iovec> {
    parts
        .iter()
        .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
        .collect()
}

fn iov_in(parts: &mut [&mut [u8]]) -> Vec<libc::iovec> {
    parts
        .iter_mut()
        .map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() })
        .collect()
}

pub fn readv(fd: Fd, parts: &mut [&mut [u8]]) -> R {
    let iov = iov_in(parts);
    call!(libc::readv(fd, iov.as_ptr(), iov.len() as c_int))
}

pub fn writev(fd: Fd, parts: &[&[u8]]) -> R {
    let iov = iov_out(parts);
    call!(libc::writev(fd, iov.as_ptr(), iov.len() as c_int))
}

/// `readv`/`writev` with an impossible vector count.
pub fn readv_count(fd: Fd, count: c_int) -> R {
    let iov = libc::iovec { iov_base: null_mut(), iov_len: 0 };
    call!(libc::readv(fd, &iov, count))
}

pub fn writev_count(fd: Fd, count: c_int) -> R {
    let iov = libc::iovec { iov_base: null_mut(), iov_len: 0 };
    call!(libc::writev(fd, &iov, count))
}

pub fn preadv2(fd: Fd, parts: &mut [&mut [u8]], offset: i64, flags: c_int) -> R {
    let iov = iov_in(parts);
    call!(libc::preadv2(fd, iov.as_ptr(), iov.len() as c_int, offset, flags))
}

pub fn pwritev2(fd: Fd, parts: &[&[u8]], offset: i64, flags: c_int) -> R {
    let iov = iov_out(parts);
    call!(libc::pwritev2(fd, iov.as_ptr(), iov.len() as c_int, offset, flags))
}

pub fn pread(fd: Fd, buf: &mut [u8], offset: i64) -> R {
    call!(libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), offset))
}

pub fn pwrite(fd: Fd, buf: &[u8], offset: i64) -> R {
    call!(libc::pwrite(fd, buf.as_ptr().cast(), buf.len(), offset))
}

pub fn lseek(fd: Fd, offset: i64, whence: c_int) -> R {
    call!(libc::lseek(fd, offset, whence))
}

fn header(iov: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len() as _;
    msg
}

/// With control data that TCP does not look at.
pub fn sendmsg_with_control(fd: Fd, parts: &[&[u8]], flags: c_int) -> R {
    let iov = iov_out(parts);
    let mut msg = header(&iov);
    let mut control = [0u64; 3];
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    // SAFETY: room for a header and four bytes.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&msg);
        (*first).cmsg_len = libc::CMSG_LEN(4) as _;
        (*first).cmsg_level = libc::IPPROTO_IP;
        (*first).cmsg_type = libc::IP_TOS;
    }
    call!(libc::sendmsg(fd, &msg, flags))
}

pub fn sendmsg(fd: Fd, parts: &[&[u8]], flags: c_int) -> R {
    let iov = iov_out(parts);
    let msg = header(&iov);
    call!(libc::sendmsg(fd, &msg, flags))
}

/// What `recvmsg` left in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub bytes: usize,
    pub flags: c_int,
    pub name_len: u32,
    /// Ancillary messages: level, type, payload.
    pub control: Vec<(c_int, c_int, Vec<u8>)>,
}

pub fn recvmsg_full(fd: Fd, parts: &mut [&mut [u8]], flags: c_int) -> Result<Received, E> {
    let iov = iov_in(parts);
    let mut msg = header(&iov);
    let mut name = storage();
    msg.msg_name = (&raw mut name).cast();
    msg.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
    let mut space = [0u64; 64];
    msg.msg_control = space.as_mut_ptr().cast();
    msg.msg_controllen = size_of::<[u64; 64]>() as _;
    let bytes = call!(libc::recvmsg(fd, &mut msg, flags))?;
    let mut control = Vec::new();
    // SAFETY: the kernel filled `msg`; its control buffer is `space`, which outlives this walk.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR/NXTHDR return headers inside the control buffer.
        let head = unsafe { &*at };
        // SAFETY: as above; the payload lies inside the buffer, cmsg_len counts the header too.
        let data = unsafe { libc::CMSG_DATA(at) };
        // SAFETY: CMSG_LEN is arithmetic.
        let len = head.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: as above.
        let payload = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        control.push((head.cmsg_level, head.cmsg_type, payload));
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(&msg, at) };
    }
    Ok(Received { bytes, flags: msg.msg_flags, name_len: msg.msg_namelen, control })
}

pub fn recvmsg(fd: Fd, parts: &mut [&mut [u8]], flags: c_int) -> R {
    let iov = iov_in(parts);
    let mut msg = header(&iov);
    call!(libc::recvmsg(fd, &mut msg, flags))
}

/// One message per part; returns the lengths of the messages that were sent.
pub fn sendmmsg(fd: Fd, messages: &[&[u8]], flags: c_int) -> Result<Vec<usize>, E> {
    let iovs: Vec<[libc::iovec; 1]> = messages
        .iter()
        .map(|m| [libc::iovec { iov_base: m.as_ptr().cast_mut().cast(), iov_len: m.len() }])
        .collect();
    let mut list: Vec<libc::mmsghdr> =
        iovs.iter().map(|iov| libc::mmsghdr { msg_hdr: header(iov), msg_len: 0 }).collect();
    let n = call!(libc::sendmmsg(fd, list.as_mut_ptr(), list.len() as u32, flags as _))?;
    Ok(list.iter().take(n).map(|m| m.msg_len as usize).collect())
}

/// One message per part; returns the lengths of the messages that were filled.
pub fn recvmmsg(
    fd: Fd,
    messages: &mut [&mut [u8]],
    flags: c_int,
    timeout_ms: Option<i64>,
) -> Result<Vec<usize>, E> {
    let mut time = timeout_ms.map(timespec_ms);
    recvmmsg_within(fd, messages, flags, time.as_mut())
}

/// `time` is what is left of it afterwards.
pub fn recvmmsg_within(
    fd: Fd,
    messages: &mut [&mut [u8]],
    flags: c_int,
    time: Option<&mut libc::timespec>,
) -> Result<Vec<usize>, E> {
    let iovs: Vec<[libc::iovec; 1]> = messages
        .iter_mut()
        .map(|m| [libc::iovec { iov_base: m.as_mut_ptr().cast(), iov_len: m.len() }])
        .collect();
    let mut list: Vec<libc::mmsghdr> =
        iovs.iter().map(|iov| libc::mmsghdr { msg_hdr: header(iov), msg_len: 0 }).collect();
    let tsp = time.map_or(null_mut(), std::ptr::from_mut);
    let n = call!(libc::recvmmsg(fd, list.as_mut_ptr(), list.len() as u32, flags as _, tsp))?;
    Ok(list.iter().take(n).map(|m| m.msg_len as usize).collect())
}

/// Two messages: one of `count` bytes, and one whose buffer cannot be written.
pub fn recvmmsg_then_bad_pointer(fd: Fd, count: usize, flags: c_int) -> R {
    let mut bytes = vec![0u8; count];
    let part = |base, len| [libc::iovec { iov_base: base, iov_len: len }];
    let iovs = [part(bytes.as_mut_ptr().cast(), count), part(8 as _, 4)];
    let mut list = iovs.each_ref().map(|iov| libc::mmsghdr { msg_hdr: header(iov), msg_len: 0 });
    call!(libc::recvmmsg(fd, list.as_mut_ptr(), 2, flags as _, null_mut()))
}

/// Calls `send` with a message that passes `fds`.
pub fn with_fds<T>(payload: &[u8], fds: &[Fd], send: impl FnOnce(&libc::msghdr) -> T) -> T {
    let iov = iov_out(&[payload]);
    let mut msg = header(&iov);
    // (253 at most.)
    let mut space = [0u64; 136];
    let bytes = std::mem::size_of_val(fds) as u32;
    msg.msg_control = space.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE is arithmetic.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
    // SAFETY: the control buffer is large enough for one header.
    let head = unsafe { &mut *libc::CMSG_FIRSTHDR(&msg) };
    head.cmsg_level = libc::SOL_SOCKET;
    head.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: CMSG_LEN is arithmetic.
    head.cmsg_len = unsafe { libc::CMSG_LEN(bytes) } as _;
    // SAFETY: CMSG_DATA points into `space`, which has room for `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            fds.as_ptr().cast::<u8>(),
            libc::CMSG_DATA(head),
            bytes as usize,
        )
    };
    send(&msg)
}

pub fn send_fds(fd: Fd, payload: &[u8], fds: &[Fd]) -> R {
    with_fds(payload, fds, |msg| call!(libc::sendmsg(fd, msg, 0)))
}

/// As [`send_fds`], by `sendmmsg`.
pub fn send_fds_mmsg(fd: Fd, payload: &[u8], fds: &[Fd]) -> R {
    with_fds(payload, fds, |msg| {
        let mut list = [libc::mmsghdr { msg_hdr: *msg, msg_len: 0 }];
        call!(libc::sendmmsg(fd, list.as_mut_ptr(), 1, 0))
    })
}

/// Receives one message with its passed fds.
pub fn recv_fds(fd: Fd) -> Result<(Vec<u8>, Vec<Fd>), E> {
    let mut buf = [0u8; 64];
    let got = recvmsg_full(fd, &mut [&mut buf], 0)?;
    let mut fds = Vec::new();
    for (level, kind, payload) in got.control {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            fds.extend(
                payload.chunks_exact(4).map(|c| i32::from_ne_bytes([c[0], c[1], c[2], c[3]])),
            );
        }
    }
    Ok((buf[..got.bytes].to_vec(), fds))
}

pub fn sendfile(out: Fd, from: Fd, offset: Option<&mut i64>, count: usize) -> R {
    let at = offset.map_or(null_mut(), |o| &raw mut *o);
    call!(libc::sendfile(out, from, at, count))
}

pub fn sendfile64(out: Fd, from: Fd, offset: Option<&mut i64>, count: usize) -> R {
    let at = offset.map_or(null_mut(), |o| &raw mut *o);
    call!(libc::sendfile64(out, from, at, count))
}

pub fn splice(from: Fd, to: Fd, count: usize, flags: u32) -> R {
    call!(libc::splice(from, null_mut(), to, null_mut(), count, flags))
}

pub fn splice_at(
    from: Fd,
    from_at: Option<i64>,
    to: Fd,
    to_at: Option<i64>,
    count: usize,
    flags: u32,
) -> R {
    let (mut from_at, mut to_at) = (from_at, to_at);
    let at = |at: &mut Option<i64>| at.as_mut().map_or(null_mut(), std::ptr::from_mut);
    call!(libc::splice(from, at(&mut from_at), to, at(&mut to_at), count, flags))
}

pub fn tee(from: Fd, to: Fd, count: usize, flags: u32) -> R {
    call!(libc::tee(from, to, count, flags))
}

pub fn copy_file_range(from: Fd, to: Fd, count: usize) -> R {
    call!(libc::copy_file_range(from, null_mut(), to, null_mut(), count, 0))
}

unsafe extern "C" {
    fn dprintf(fd: Fd, format: *const libc::c_char, ...) -> c_int;
}

/// dprintf(3).
pub fn print(fd: Fd, text: &std::ffi::CStr) -> R {
    call!(dprintf(fd, c"%s".as_ptr(), text.as_ptr()))
}
