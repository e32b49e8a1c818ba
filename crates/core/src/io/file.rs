//! `sendfile` and `splice`: bytes of a file, or of a pipe.

use super::buffers::MAX_RW_COUNT;
use super::ends::{NotHeld, demote_tx, hold_tx};
use super::promote::peer_is_going;
use super::receive::recv_one;
use super::reset::{is_reset, send_broken};
use super::send::{leave_to_send, send_one};
use super::send_again::send_again;
use super::under_way::UnderWay;
use super::waits::{Patience, block, interrupted, never_waits, renew};
use super::{EAGAIN, EFAULT, dispatch, send};
use crate::channel::Side;
use crate::heap::{PART_FEW, Part};
use crate::outcome::{ANEW, PASS, Ret};
use crate::socket::{Named, Socket, harmless};
use crate::wait::Woke;
use crate::{sleep, sys, user, wait};
use core::ffi::c_int;
use netacc_control::stats::{Path, Reason};
use netacc_proto::switchover::TxState;

/// What a pipe that `poll` calls writable takes without waiting.
const PAGE_BYTES: usize = 4096;

/// From a file that can be read at an offset: read here, sent as any other bytes. Everything else
/// is the kernel's.
pub(crate) unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Ret {
    // SAFETY: the caller's offset.
    let ring = |s, g| unsafe { sendfile_attached(Named { s, g, fd: out }, input, offset, count) };
    dispatch(out, Side::Send, 0, ring, |_| sleep::sendfile(out, input, offset, count))
}

unsafe fn sendfile_attached(on: Named, input: c_int, offset: *mut i64, count: usize) -> Ret {
    // The file's own position is used where the caller gives none, and stays where the sent bytes
    // end.
    let start = if offset.is_null() {
        sys::lseek(input, 0, libc::SEEK_CUR) as i64
    } else {
        // SAFETY: the caller's offset.
        match unsafe { user::read(offset) } {
            Some(start) => start,
            None => return EFAULT,
        }
    };
    let mut few = [0u8; PART_FEW];
    let mut part = Part::new(&mut few);
    let part = part.bytes();
    let count = count.min(MAX_RW_COUNT);
    let mut sent = 0usize;
    let mut result = 0;
    if start < 0 || sys::pread(input, part.get_mut(..count.min(1)).unwrap_or(&mut []), start) < 0 {
        // A pipe, a bad descriptor...
        return in_carrier(on, input, false, |out| sleep::sendfile(out, input, offset, count));
    }
    while sent < count {
        let want = part.len().min(count - sent);
        let n = sys::pread(input, part.get_mut(..want).unwrap_or(&mut []), start + sent as i64);
        if n <= 0 {
            result = n;
            break;
        }
        // SAFETY: `n` bytes of `part`.
        let mut r = unsafe { send_one(on.s, on.g, on.fd, sys::iov(part.as_ptr(), n as usize), 0) };
        if r == PASS || r == ANEW {
            // SAFETY: as above.
            r = unsafe { send(on.fd, part.as_ptr(), n as usize, 0) };
        }
        if r == PASS {
            // SAFETY: as above.
            r = unsafe { sleep::sendto(on.fd, part.as_ptr(), n as usize, 0) };
        }
        if r < 0 {
            result = r;
            break;
        }
        sent += r as usize;
        if r < n {
            break;
        }
    }
    let end = start + sent as i64;
    if offset.is_null() {
        let _ = sys::lseek(input, end, libc::SEEK_SET);
        return if sent > 0 { sent as Ret } else { result };
    }
    // SAFETY: the caller's offset.
    if !unsafe { user::write(offset, end) } {
        return EFAULT;
    }
    if sent > 0 { sent as Ret } else { result }
}

/// Out of a socket: what is received goes into the pipe. Into a socket: the kernel does it, on the
/// carrier. One of the two is a pipe, or the kernel refuses.
pub(crate) unsafe fn splice(
    input: c_int,
    input_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    len: usize,
    flags: u32,
) -> Ret {
    /// SPLICE_F_ALL
    const FLAGS: u32 =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let by_kernel = |out, flags| sleep::splice(input, input_offset, out, out_offset, len, flags);
    let is_pipe = |fd, other: c_int| {
        sys::fcntl(fd, libc::F_GETPIPE_SZ, 0) >= 0
            && sys::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_ACCMODE != other
    };
    let from_ring = |s, g| match len {
        // Nothing moves: the kernel says what is wrong.
        _ if len == 0
            || flags & !FLAGS != 0
            || !out_offset.is_null()
            || !is_pipe(out, libc::O_RDONLY) =>
        {
            by_kernel(out, flags)
        }
        // (Old kernels take a socket's position for one.)
        _ if !input_offset.is_null() => -(libc::EINVAL as Ret),
        _ => splice_from(Named { s, g, fd: input }, out, len, flags),
    };
    // (That it is no plain receive: it has no flag by which it would not wait.)
    let from_kernel = |_| by_kernel(out, flags);
    let r = dispatch(input, Side::Receive, libc::MSG_WAITALL, from_ring, from_kernel);
    if r != PASS {
        return r;
    }
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let into_carrier = |s, g| match len {
        _ if len == 0
            || flags & !FLAGS != 0
            || !input_offset.is_null()
            || !is_pipe(input, libc::O_WRONLY) =>
        {
            by_kernel(out, flags)
        }
        _ if !out_offset.is_null() => -(libc::EINVAL as Ret),
        _ => room_in_ring(Named { s, g, fd: out }, input).unwrap_or_else(|fd| {
            // (That flag is about the pipe.)
            in_carrier(Named { s, g, fd }, input, nonblocking, |out| {
                by_kernel(out, flags | libc::SPLICE_F_NONBLOCK)
            })
        }),
    };
    dispatch(out, Side::Send, 0, into_carrier, |_| by_kernel(out, flags))
}

/// As the kernel does it (splice_file_to_pipe): room in the pipe is waited for first, then bytes of
/// the socket, unless its own O_NONBLOCK says otherwise (tcp_splice_read). What this call takes is
/// its own: other threads may receive meanwhile.
fn splice_from(on: Named, out: c_int, len: usize, flags: u32) -> Ret {
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0
        || sys::fcntl(out, libc::F_GETFL, 0) as c_int & libc::O_NONBLOCK != 0;
    let mut few = [0u8; PART_FEW];
    let mut part = Part::new(&mut few);
    let part = part.bytes();
    let mut moved = 0;
    while moved < len {
        match room_in_pipe(out, nonblocking || moved > 0) {
            Ok(()) => {}
            Err(_) if moved > 0 => break,
            Err(r) => return r,
        }
        // (A pipe that has room has it for a page.)
        let want = (len - moved).min(part.len()).min(PAGE_BYTES);
        let how = if moved > 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: within `part`.
        let n = unsafe { recv_one(on.s, on.g, on.fd, sys::iov(part.as_mut_ptr(), want), how) };
        if n <= 0 {
            return if moved > 0 { moved as Ret } else { n };
        }
        let w = fill_pipe(out, part.get(..n as usize).unwrap_or(&[]));
        if w <= 0 && moved == 0 {
            return w;
        }
        moved += w.max(0) as usize;
        if w < n {
            break;
        }
    }
    moved as Ret
}

/// Waits until the pipe has room for a page. `Err`: the call ends with that.
fn room_in_pipe(out: c_int, nonblocking: bool) -> Result<(), Ret> {
    loop {
        let mut p = libc::pollfd { fd: out, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid pollfd.
        let r = unsafe { sleep::ppoll(&mut p, 1, 0, core::ptr::null()) };
        if p.revents & libc::POLLERR != 0 {
            // Nobody reads it.
            sys::raise(libc::SIGPIPE);
            return Err(-(libc::EPIPE as Ret));
        }
        if r > 0 {
            return Ok(());
        }
        if nonblocking {
            return Err(EAGAIN);
        }
        if let Some(r) = Patience::endless().wait(out, libc::POLLOUT, -1) {
            return Err(r);
        }
    }
}

/// Puts bytes that nobody else has into a pipe that had room for them. (Another writer may have
/// taken it: that is waited for, past signals.) How many went: fewer, or an error, where nobody
/// reads it any more.
fn fill_pipe(out: c_int, bytes: &[u8]) -> Ret {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match sleep::write(out, rest) {
            n if n > 0 => done += n as usize,
            r if r == -(libc::EINTR as isize) => {}
            EAGAIN => {
                let mut p = libc::pollfd { fd: out, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one valid pollfd.
                let _ = unsafe { sleep::ppoll(&mut p, 1, -1, core::ptr::null()) };
            }
            r if done == 0 => return r,
            _ => break,
        }
    }
    done as Ret
}

/// Before bytes of a pipe go around a ring: it must have room, as the send buffer in which those
/// before them lie. (SPLICE_F_NONBLOCK is about the pipe.) `Ok`: the call ends with that. `Err`: it
/// goes on, on this descriptor.
fn room_in_ring(on: Named, source: c_int) -> Result<Ret, c_int> {
    let Named { s, g, mut fd } = on;
    let nonblocking = never_waits(s, Side::Send, 0);
    let mut patience = Patience::of(&s.send_timeout_ns);
    let mut under_way = None;
    loop {
        if s.is_inherited() || s.path().leaves_by_agent() {
            return Err(fd);
        }
        {
            let Ok(h) = hold_tx(s, g) else { return Err(fd) };
            let is_full = h.end.switch.state() == TxState::Fast
                && !peer_is_going(s, &h, fd)
                && sys::poll_now(source, libc::POLLIN) & libc::POLLIN != 0
                && matches!(h.end.ring.want_space(1), Ok(false));
            if !is_full {
                return Err(fd);
            }
            wait::on_full(s);
        }
        if nonblocking {
            return Ok(EAGAIN);
        }
        let deadline = patience.deadline();
        under_way.get_or_insert_with(|| UnderWay::new(s, s.generation16()));
        match block(s, &mut fd, Side::Send, false, deadline) {
            Woke::News => {}
            Woke::Timeout => return Ok(EAGAIN),
            Woke::Signal => {
                if let Some(r) = interrupted(patience.timeout_ns) {
                    return Ok(r);
                }
            }
        }
    }
}

/// Whether the kernel waits for room in the carrier, whoever is to read that: by the file's own
/// O_NONBLOCK alone it does not (splice_to_socket).
fn may_wait(s: &Socket, fd: c_int) -> bool {
    harmless::write_back(s, fd);
    sys::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_NONBLOCK == 0
}

/// A kernel call that sends: on the carrier, with its bytes counted; later sends may take the ring
/// again. One that may wait for room is made without our lock, which others need meanwhile: the
/// connection is the kernel's from then on.
fn in_carrier(on: Named, source: c_int, nonblocking: bool, call: impl Fn(c_int) -> isize) -> Ret {
    let Named { s, g, mut fd } = on;
    let nonblocking = nonblocking || never_waits(s, Side::Send, 0);
    let mut patience = Patience::of(&s.send_timeout_ns);
    loop {
        renew(s, &mut fd);
        let waits = may_wait(s, fd);
        if waits && nonblocking && sys::poll_now(source, libc::POLLIN) == 0 {
            return EAGAIN;
        }
        if s.is_inherited() || s.path().leaves_by_agent() {
            let why = if s.is_inherited() { Reason::InheritedByFork } else { Reason::Splice };
            let flags = if nonblocking && !waits { libc::MSG_DONTWAIT } else { 0 };
            return leave_to_send(s, g, fd, flags, why);
        }
        {
            let mut h = match hold_tx(s, g) {
                Ok(h) => h,
                Err(NotHeld::Reentrant) => return EAGAIN,
                Err(NotHeld::Changed) => return ANEW,
            };
            // (Under the lock a close gives it away no more.)
            let asked = fd;
            renew(s, &mut fd);
            if fd != asked {
                continue;
            }
            if is_reset(s, fd) {
                return send_broken(s, 0);
            }
            if waits {
                drop(h);
                return leave_to_send(s, g, fd, 0, Reason::Splice);
            }
            if h.end.switch.state() == TxState::Fast {
                demote_tx(s, &mut h, false);
            }
            if send_again(s, &mut h, fd) != EAGAIN {
                let r = call(fd);
                if r > 0 {
                    let _ = h.end.switch.on_accepted(r as u64);
                    if let Some(rec) = s.record() {
                        rec.add_tx(Path::Tcp, r as u64);
                    }
                }
                if r != EAGAIN || nonblocking {
                    return r;
                }
            } else if nonblocking {
                return EAGAIN;
            }
        }
        // The socket has no room, or the source has nothing yet: waits for the one, then for the
        // other. (The source, a pipe or a file, knows no time-out.)
        if let Some(r) = patience.wait(fd, libc::POLLOUT, -1) {
            return r;
        }
        if let Some(r) = Patience::endless().wait(source, libc::POLLIN, -1) {
            return r;
        }
    }
}
