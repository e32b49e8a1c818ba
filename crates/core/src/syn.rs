//! Between hosts: what both ends of a connection know of its SYN, and nobody else.
//!
//! The time stamp in a SYN (RFC 7323) is the sender's clock in milliseconds plus an offset that
//! Linux draws from a secret of its boot (`secure_tcp_ts_off`). The acceptor's kernel keeps the SYN
//! of a connection for who asks (`TCP_SAVE_SYN`); the connector's says what the clock with the
//! offset shows now (`TCP_TIMESTAMP`), and the library knows when `connect` was called. A claim to
//! a connection says the value, and the acceptor compares (`remote::agree`).
//!
//! `TCP_SAVE_SYN` is the library's own on listening sockets: an application that never uses it sees
//! no trace, and where one does, the library never sets it, nor reads a SYN (`USED`).
//! `docs/design/rdma.md` §4 tells the whole story.

use crate::{carrier, config, fd_words, host, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use libc::IPPROTO_TCP;
use netacc_control::stats::Path;
use netacc_proto::rendezvous::Proof;

pub(crate) const TCP_TIMESTAMP: c_int = 24;
pub(crate) const TCP_SAVE_SYN: c_int = 27;
pub(crate) const TCP_SAVED_SYN: c_int = 28;

/// The library has set `TCP_SAVE_SYN` somewhere.
static SET: AtomicBool = AtomicBool::new(false);
/// The application uses `TCP_SAVE_SYN` itself, or has inherited a socket on which somebody did.
static USED: AtomicBool = AtomicBool::new(false);

/// What is known of a connection's SYN; in the `Socket`, because a connection can be claimed more
/// than once.
pub(crate) struct Syn {
    state: AtomicU32,
    /// The time stamp, or the lowest that it can be.
    stamp: AtomicU32,
    /// Connector: of [`Proof`].
    span: AtomicU32,
    /// Connector: when no SYN had left (0: not seen), and when the first one had.
    began: AtomicU64,
    ended: AtomicU64,
    /// It was a connection then: no other SYN has left since.
    made: AtomicBool,
    /// Connector: the kernel says that the connection has no time stamps.
    bare: AtomicBool,
    /// Connector: it was said to who had shown nothing, and has not shown since that he knew it; or
    /// it was to be, and an earlier connection's from the same port was.
    told: AtomicBool,
}

/// Values of `Syn::state`: nobody has asked.
const NEW: u32 = 0;
const ASKING: u32 = 1;
/// It is not known.
const UNKNOWN: u32 = 2;
/// It had no time stamp.
const BARE: u32 = 3;
const KNOWN: u32 = 4;

/// What a SYN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It cannot be read.
    Unknown,
    /// It has no time stamp.
    Bare,
    Stamp(u32),
}

impl Syn {
    /// A new connection.
    pub(crate) fn reset(&self) {
        self.state.store(NEW, Relaxed);
        self.began.store(0, Relaxed);
        self.bare.store(false, Relaxed);
        self.told.store(false, Relaxed);
    }

    /// Acceptor: what the SYN said.
    pub(crate) fn said(&self) -> Said {
        match self.state.load(Acquire) {
            KNOWN => Said::Stamp(self.stamp.load(Relaxed)),
            BARE => Said::Bare,
            _ => Said::Unknown,
        }
    }

    /// Connector: what a claim says of it.
    pub(crate) fn proof(&self) -> Proof {
        match self.state.load(Acquire) {
            KNOWN => {
                Proof { lowest: self.stamp.load(Relaxed), span: self.span.load(Relaxed) as u16 }
            }
            _ => Proof::NONE,
        }
    }

    /// Connector: there is no time stamp that who accepts could know, as one of the two hosts has
    /// none. (Not that this end knows nothing of it.)
    pub(crate) fn is_bare(&self) -> bool {
        self.bare.load(Relaxed)
    }

    /// Connector: who accepts can show here that it knows the time stamp. (Where this host sends
    /// none, what is said of it here is of no SYN. What was told to a stranger anybody may know.)
    pub(crate) fn can_be_shown(&self) -> bool {
        self.proof().knows() && !self.is_bare() && !self.was_told()
    }

    /// Connector: nobody can show anything by it any more, as a stranger was told it, or one of the
    /// same port.
    pub(crate) fn was_told(&self) -> bool {
        self.told.load(Relaxed)
    }

    /// Connector: what a claim says of it, to a stranger: once, to one, who has committed himself.
    pub(crate) fn tell(&self) -> Option<Proof> {
        (self.can_be_shown() && !self.told.swap(true, Relaxed)).then(|| self.proof())
    }

    /// Connector: whoever was told it has shown that he had known it. (Nobody else was told.)
    pub(crate) fn was_known(&self) {
        self.told.store(false, Relaxed);
    }

    /// Tests: as if one of the two hosts had no time stamps.
    #[cfg(test)]
    pub(crate) fn forget_stamps(&self) {
        self.bare.store(true, Relaxed);
    }

    /// Tests: nothing is known of it, or that it had no time stamp.
    #[cfg(test)]
    pub(crate) fn forget(&self, bare: bool) {
        self.state.store(if bare { BARE } else { UNKNOWN }, Release);
    }

    /// The application may begin to connect at that moment (0: has not, after all).
    pub(crate) fn set_began(&self, ns: u64) {
        self.began.store(ns, Relaxed);
    }
    pub(crate) fn began(&self) -> u64 {
        self.began.load(Relaxed)
    }

    /// Connector: the first SYN has left between `began` and `ended`. `made`: it was a connection
    /// at `ended`.
    pub(crate) fn sent(&self, began: u64, ended: u64, made: bool) {
        self.ended.store(ended, Relaxed);
        self.made.store(made, Relaxed);
        self.began.store(began, Relaxed);
    }
}

// ---- the application's calls --------------------------------------------------------------------

/// Has the kernel keep the SYNs of what this socket accepts, if they could be of use.
pub(crate) fn keep(fd: c_int) {
    if USED.load(Acquire) || !host::has_devices() || !config::get().paths.contains(Path::Rdma) {
        return;
    }
    let mut raw = [0u8; 128];
    let len = sys::socket_name(fd, false, &mut raw);
    if carrier::address(&raw, len).is_none_or(|a| a.ip().is_loopback()) {
        return;
    }
    let mut there: c_int = 0;
    if sys::getsockopt(fd, IPPROTO_TCP, TCP_SAVE_SYN, &mut there) < 0 {
        return;
    }
    if there != 0 {
        USED.store(true, Release);
    } else {
        set(fd);
    }
}

pub(crate) fn set(fd: c_int) {
    if sys::setsockopt(fd, IPPROTO_TCP, TCP_SAVE_SYN, &1i32) >= 0 {
        SET.store(true, Release);
    }
}

/// The application is about to set `TCP_SAVE_SYN`: from now on it is its own.
#[cold]
pub(crate) fn before_use() {
    if !USED.swap(true, AcqRel) && SET.load(Acquire) {
        fd_words::for_each_listener(|fd| {
            let _ = sys::setsockopt(fd, IPPROTO_TCP, TCP_SAVE_SYN, &0i32);
        });
    }
}

/// Whether every `TCP_SAVE_SYN` of this process, and every SYN kept, is the library's.
fn all_ours() -> bool {
    SET.load(Acquire) && !USED.load(Acquire)
}

/// The application is about to ask for a SYN: one that it has not had kept is not there.
#[cold]
pub(crate) fn before_asked(syn: Option<&Syn>, fd: c_int) {
    if !all_ours() {
        return;
    }
    match syn {
        Some(syn) => syn.learn_said(fd),
        None => drop(read(fd)),
    }
}

/// What the application sees of `TCP_SAVE_SYN` where the kernel says `value`.
pub(crate) fn shown(value: c_int) -> c_int {
    if all_ours() { 0 } else { value }
}

// ---- what the kernel knows ----------------------------------------------------------------------

impl Syn {
    /// Before a connection is noted. In an application thread. False: another one is at it.
    pub(crate) fn learn(&self, connector: bool, fd: c_int) -> bool {
        if connector {
            self.learn_sent(fd);
        } else if all_ours() {
            self.learn_said(fd);
        }
        self.state.load(Acquire) != ASKING
    }

    fn learn_said(&self, fd: c_int) {
        if self.state.compare_exchange(NEW, ASKING, AcqRel, Relaxed).is_err() {
            return;
        }
        let state = match read(fd) {
            Said::Unknown => UNKNOWN,
            Said::Bare => BARE,
            Said::Stamp(stamp) => {
                self.stamp.store(stamp, Relaxed);
                KNOWN
            }
        };
        self.state.store(state, Release);
    }

    fn learn_sent(&self, fd: c_int) {
        if self.state.compare_exchange(NEW, ASKING, AcqRel, Relaxed).is_err() {
            return;
        }
        let proof = self.prove(fd).unwrap_or(Proof::NONE);
        self.stamp.store(proof.lowest, Relaxed);
        self.span.store(u32::from(proof.span), Relaxed);
        self.state.store(if proof.knows() { KNOWN } else { UNKNOWN }, Release);
    }

    /// What the time stamp of the SYN can have been.
    fn prove(&self, fd: c_int) -> Option<Proof> {
        let packets = carrier::packets(fd)?;
        self.bare.store(!packets.stamped, Relaxed);
        let began = self.began.load(Relaxed);
        if began == 0 {
            return None;
        }
        let before = sys::kernel_ns();
        let mut shows: u32 = 0;
        if sys::getsockopt(fd, IPPROTO_TCP, TCP_TIMESTAMP, &mut shows) < 0 {
            return None;
        }
        let after = sys::kernel_ns();
        // If it is not known that the first one came through, it may be one that was sent later.
        let ended = if self.made.load(Relaxed) || packets.sent_twice == 0 {
            self.ended.load(Relaxed)
        } else {
            after
        };
        let tick = if packets.microseconds { 1_000 } else { 1_000_000 };
        Some(range(tick, (began, ended), (before, shows, after)))
    }
}

/// Takes the SYN of an accepted connection out of the kernel.
fn read(fd: c_int) -> Said {
    let mut bytes = [0u8; 512];
    let len = sys::getsockopt_bytes(fd, IPPROTO_TCP, TCP_SAVED_SYN, &mut bytes);
    usize::try_from(len).ok().and_then(|len| bytes.get(..len)).map_or(Said::Unknown, parse)
}

/// The kernel's clock stood at `shows` at some moment from `before` to `after`; the stamp was taken
/// at some moment from `began` to `ended`.
fn range(tick: u64, (began, ended): (u64, u64), (before, shows, after): (u64, u32, u64)) -> Proof {
    let ticks = |ns: u64| (ns / tick) as u32;
    // Since 6.7 the lowest bit says what the unit is. And the two clocks may be rounded
    // differently.
    let (low, high) = ((shows & !1).wrapping_sub(1), (shows | 1).wrapping_add(1));
    let lowest = low.wrapping_sub(ticks(after)).wrapping_add(ticks(began));
    let highest = high.wrapping_sub(ticks(before)).wrapping_add(ticks(ended));
    if (ended.saturating_sub(began) + after.saturating_sub(before)) / tick
        > u64::from(Proof::SPAN_MAX)
    {
        Proof::NONE
    } else {
        Proof::new(lowest, highest)
    }
}

/// The time stamp of a SYN, from its IP header on. Nothing is known of one that is not as most are.
fn parse(bytes: &[u8]) -> Said {
    let tcp = match bytes.first().map(|b| b >> 4) {
        Some(4) if bytes.get(9) == Some(&TCP) => {
            let words = bytes.first().map_or(0, |b| usize::from(b & 15));
            if words >= 5 { bytes.get(words * 4..) } else { None }
        }
        Some(6) if bytes.get(6) == Some(&TCP) => bytes.get(40..),
        _ => None,
    };
    let words = tcp.and_then(|tcp| tcp.get(12)).map_or(0, |b| usize::from(b >> 4));
    let Some(mut options) = tcp.and_then(|tcp| tcp.get(20..words * 4)) else {
        return Said::Unknown;
    };
    loop {
        match *options {
            [] | [0, ..] => return Said::Bare,
            [1, ref rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Said::Stamp(u32::from_be_bytes([a, b, c, d])),
            [kind, len, ..] if kind != 8 && len >= 2 => match options.get(usize::from(len)..) {
                Some(rest) => options = rest,
                None => return Said::Unknown,
            },
            _ => return Said::Unknown,
        }
    }
}

/// The protocol's number.
const TCP: u8 = 6;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// As Linux writes it: MSS, SACK permitted, time stamps, NOP, window scale.
    const OPTIONS: [u8; 20] =
        [2, 4, 5, 0xb4, 4, 2, 8, 10, 0xa1, 0xb2, 0xc3, 0xd4, 0, 0, 0, 0, 1, 3, 3, 7];

    fn syn(v6: bool, ip_options: usize, options: &[u8]) -> Vec<u8> {
        let mut bytes = if v6 { [0u8; 40].to_vec() } else { [0u8; 20].to_vec() };
        if v6 {
            (bytes[0], bytes[6]) = (0x60, 6);
        } else {
            bytes.extend((0..ip_options).map(|_| 8));
            (bytes[0], bytes[9]) = (0x45 + (ip_options / 4) as u8, 6);
        }
        let mut tcp = [0u8; 20];
        tcp[12] = ((20 + options.len()) / 4 * 16) as u8;
        bytes.extend(tcp);
        bytes.extend(options);
        bytes
    }

    #[test]
    fn the_time_stamp_is_found_wherever_it_stands() {
        for (v6, ip_options) in [(false, 0), (false, 4), (false, 40), (true, 0)] {
            let bytes = syn(v6, ip_options, &OPTIONS);
            assert_eq!(parse(&bytes), Said::Stamp(0xa1b2_c3d4), "{v6} {ip_options}");
            // A part of one is none, wherever it ends; and nothing beyond the header is looked at.
            for short in 0..bytes.len() {
                assert_eq!(parse(&bytes[..short]), Said::Unknown, "{short}");
            }
            let mut longer = bytes.clone();
            longer.extend(OPTIONS);
            assert_eq!(parse(&longer), Said::Stamp(0xa1b2_c3d4));
        }
        let other = |options: &[u8]| parse(&syn(false, 0, options));
        assert_eq!(other(&[]), Said::Bare);
        assert_eq!(other(&[2, 4, 5, 0xb4, 1, 1, 4, 2]), Said::Bare);
        // Behind the end of the options there are none.
        assert_eq!(other(&[2, 4, 5, 0xb4, 0, 0, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0]), Said::Bare);
    }

    #[test]
    fn what_is_odd_is_unknown() {
        let other = |options: &[u8]| parse(&syn(false, 0, options));
        assert_eq!(other(&[8, 6, 1, 2, 3, 4, 1, 1]), Said::Unknown);
        assert_eq!(other(&[1, 1, 8, 10]), Said::Unknown);
        assert_eq!(other(&[2, 0, 1, 1]), Said::Unknown);
        assert_eq!(other(&[2, 1, 1, 1]), Said::Unknown);
        assert_eq!(other(&[1, 1, 1, 2]), Said::Unknown);
        assert_eq!(other(&[2, 200, 1, 1]), Said::Unknown);
        let whole = syn(false, 0, &OPTIONS);
        // Other versions of IP, a header that is too short, another protocol, a TCP header that is
        // too short or goes too far.
        for (at, value) in [(0, 0x55), (0, 0x44), (0, 0), (9, 17), (32, 0x40), (32, 0xf0)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            assert_eq!(parse(&bytes), Said::Unknown, "{at} {value}");
        }
        // IPv6 with another header in between.
        let mut bytes = syn(true, 0, &OPTIONS);
        bytes[6] = 0;
        assert_eq!(parse(&bytes), Said::Unknown);
    }

    #[test]
    fn any_bytes_are_looked_at() {
        let mut seed = 1u64;
        let mut next = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize % below
        };
        for _ in 0..20_000 {
            let mut bytes = syn(next(2) == 0, next(4) * 4, &OPTIONS);
            for _ in 0..next(5) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            let _ = parse(&bytes[..next(bytes.len() + 1)]);
        }
    }

    #[test]
    fn a_stamp_is_told_once_and_a_new_connections_was_told_to_nobody() {
        let syn = Syn {
            state: AtomicU32::new(KNOWN),
            stamp: AtomicU32::new(70),
            span: AtomicU32::new(5),
            began: AtomicU64::new(1),
            ended: AtomicU64::new(2),
            made: AtomicBool::new(true),
            bare: AtomicBool::new(false),
            told: AtomicBool::new(false),
        };
        let proof = Proof::new(70, 75);
        assert_eq!((syn.tell(), syn.tell(), syn.was_told()), (Some(proof), None, true));
        assert!(!syn.can_be_shown() && syn.proof() == proof);
        syn.was_known();
        assert_eq!((syn.tell(), syn.tell()), (Some(proof), None));
        syn.reset();
        assert!(!syn.was_told());
        // Of one without time stamps, or of which nothing is known, there is nothing to tell.
        assert_eq!(syn.tell(), None);
        syn.state.store(KNOWN, Relaxed);
        syn.forget_stamps();
        assert_eq!((syn.tell(), syn.was_told()), (None, false));
    }

    /// Where the stamp stands in a range, for all moments at which the clocks can have been read.
    #[test]
    fn the_range_holds_the_stamp() {
        const MS: u64 = 1_000_000;
        for offset in [0u32, 0x8000_0000, u32::MAX - 3] {
            for tick in [MS, 1_000] {
                let clock = |ns: u64| ((ns / tick) as u32).wrapping_add(offset);
                for step in 0..50u64 {
                    let began = 90_000 * MS + step * tick / 10;
                    let (sent, ended) = (began + step * tick / 7, began + 8 * tick);
                    let before = ended + 1234 * tick + step * 3;
                    let (read, after) = (before + step * tick / 20, before + 3 * tick);
                    for shows in [clock(read) & !1, clock(read) | 1] {
                        let proof = range(tick, (began, ended), (before, shows, after));
                        assert!(proof.fits(clock(sent)), "{offset} {tick} {step}");
                        assert!(proof.span <= 16);
                    }
                }
                let wide = |took: u64| {
                    range(
                        tick,
                        (began_at(), began_at() + took * tick),
                        (began_at() + took * tick, 7, began_at() + took * tick),
                    )
                };
                assert!(wide(4_090).knows());
                assert!(!wide(4_096).knows());
                // So long that the difference wraps around.
                assert!(!wide(1 << 32).knows());
            }
        }
        const fn began_at() -> u64 {
            90_000_000_000
        }
    }
}
