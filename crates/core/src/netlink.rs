//! Questions to the kernel over a netlink socket, and what it answers.

use crate::heap::Scratch;
use crate::sys;
use alloc::vec::Vec;
use core::ffi::c_int;

/// Asks, and gives each message of the answer to `each`. `None`: the kernel says that it cannot
/// tell, or `each` does not understand.
pub(crate) fn talk(
    fd: c_int,
    kind: u16,
    flags: c_int,
    body: &[u8],
    mut each: impl FnMut(u16, &[u8]) -> Option<()>,
) -> Option<()> {
    // struct nlmsghdr, and what is asked.
    let mut question = Vec::new();
    let len = 16 + body.len();
    question.try_reserve(len).ok()?;
    question.extend((len as u32).to_ne_bytes());
    question.extend(kind.to_ne_bytes());
    question.extend((flags as u16).to_ne_bytes());
    question.extend([0; 8]);
    question.extend(body);
    // SAFETY: a live buffer.
    if unsafe { sys::sendto(fd, question.as_ptr(), question.len(), libc::MSG_DONTWAIT) } < 0 {
        return None;
    }
    let all = flags & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
    let mut answer = Scratch::filled(8192, 0u8)?;
    // Each answer holds some tens of addresses.
    for _ in 0..1024 {
        // SAFETY: a live buffer; the kernel has answered already, or does so within the call.
        let got = unsafe {
            sys::recvfrom(
                fd,
                answer.as_mut_ptr(),
                answer.len(),
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        let mut rest = answer.get(..usize::try_from(got).ok()?)?;
        while let Some((kind, body, next)) = message(rest) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Some(()),
                libc::NLMSG_ERROR => return None,
                _ => each(kind, body)?,
            }
            rest = next;
        }
        if !all {
            return Some(());
        }
    }
    None
}

/// The type of a netlink message, what it says, and what follows it.
fn message(at: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(*at.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*at.get(4..)?.first_chunk()?);
    let body = at.get(16..len)?;
    Some((kind, body, at.get(len.next_multiple_of(4)..).unwrap_or(&[])))
}

/// Without the bits that say how it is encoded.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Gives each attribute to `each`. `None`: one is cut off.
pub(crate) fn attributes(mut rest: &[u8], mut each: impl FnMut(u16, &[u8])) -> Option<()> {
    while let Some(len) =
        rest.first_chunk().map(|l| usize::from(u16::from_ne_bytes(*l))).filter(|len| *len >= 4)
    {
        let what = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        each(what & NLA_TYPE_MASK, rest.get(4..len)?);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_none() {
        assert_eq!(message(&[0; 15]), None);
        assert_eq!(message(&[255; 32]), None, "longer than what there is");
    }
}
