//! Marks of a proof (`possession.rs`): the values of five options, which spell the number of a
//! link.

use crate::sys;
use core::ffi::c_int;

/// Shows something at all; the turn is an odd one; three bits of the number.
pub(crate) const SHOWN: u8 = 16;
pub(super) const ODD: u8 = 8;

/// Not in `libc` for every target; linux/in.h.
const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
const IP_RECVERR_RFC4884: c_int = 26;
const IP_MULTICAST_ALL: c_int = 49;

/// The options, with their bits of a mark.
pub(crate) const OPTIONS: [(c_int, u8); 5] = [
    (IP_RECVERR_RFC4884, SHOWN),
    (libc::IP_MULTICAST_LOOP, ODD),
    (IP_MULTICAST_ALL, 4),
    (libc::IP_FREEBIND, 2),
    (IP_BIND_ADDRESS_NO_PORT, 1),
];

/// Marks of a proof. The first says that one begins, and is the same in all.
pub(crate) const TURNS: u8 = 6;

/// Numbers of links: as many as the later marks can spell. (An even one is never empty: that is the
/// first.)
pub(super) const NUMBERS: u16 = 8 * 7 * 8 * 7 * 8;

/// What the ends of link `number` show at `turn`.
pub(super) const fn mark(number: u16, turn: u8) -> u8 {
    if turn == 0 {
        return SHOWN;
    }
    let mut rest = number;
    let mut t = 1;
    loop {
        let odd = t & 1 == 1;
        let digits = if odd { 8 } else { 7 };
        if t == turn {
            let digit = (rest % digits) as u8;
            return SHOWN | if odd { ODD | digit } else { digit + 1 };
        }
        rest /= digits;
        t += 1;
    }
}

/// The mark in the kernel's `struct inet_diag_sockopt` (linux/inet_diag.h), as little-endian
/// machines lay its bits out.
pub(super) fn mark_of([low, high]: [u8; 2]) -> u8 {
    let bits = [(high >> 1, SHOWN), (low >> 4, ODD), (low >> 6, 4), (low >> 2, 2), (high, 1)];
    bits.into_iter().fold(0, |mark, (flag, bit)| mark | if flag & 1 != 0 { bit } else { 0 })
}

/// The options of `fd` as they are. `None`: it has none.
pub(super) fn shown_by(fd: c_int) -> Option<u8> {
    let mut mark = 0;
    for (name, bit) in OPTIONS {
        let mut value: c_int = 0;
        if sys::getsockopt(fd, libc::IPPROTO_IP, name, &mut value) < 0 {
            return None;
        }
        mark |= if value != 0 { bit } else { 0 };
    }
    Some(mark)
}

/// What a socket is to show when a proof is over that found it with these options. (A mark was left
/// behind by an earlier program of this process, which ended in the middle of a proof: then they
/// are the kernel's own again.)
pub(super) const fn at_rest(before: u8) -> u8 {
    if before & SHOWN != 0 { ODD | 4 } else { before }
}

/// From one mark to another. In between nothing is shown: never a third one.
pub(super) fn show(fd: c_int, from: u8, to: u8) -> bool {
    let set =
        |name: c_int, on: bool| sys::setsockopt(fd, libc::IPPROTO_IP, name, &c_int::from(on)) >= 0;
    let [(shown, _), others @ ..] = OPTIONS;
    let mut ok = from & SHOWN == 0 || set(shown, false);
    for (name, bit) in others {
        if (from ^ to) & bit != 0 {
            ok &= set(name, to & bit != 0);
        }
    }
    ok && (to & SHOWN == 0 || set(shown, true))
}
