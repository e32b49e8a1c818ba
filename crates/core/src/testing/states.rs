//! What can become of a connection, and what is ready at one end of it then, for each way to ask.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use super::pair::{Fd, LONG_NS, Pair, on_both};
use super::{Moment, just_before, was_there};
use crate::sys;
use core::ffi::c_int;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};
use libc::{SHUT_RD, SHUT_RDWR, SHUT_WR};
use std::format;
use std::string::String;
use std::time::Instant;

const DATA: i16 = POLLIN | POLLRDNORM;
const ROOM: i16 = POLLOUT | POLLWRNORM;
const END: i16 = DATA | POLLRDHUP;
/// All that a program can ask for of these, and what it is told without.
pub(crate) const ASKED: i16 = DATA | ROOM | POLLRDHUP;
pub(crate) const UNASKED: i16 = POLLHUP | POLLERR;

/// What an end of a connection does. It is asked what is ready at `a`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    ASends,
    AFills,
    AReceives,
    AShuts(c_int),
    CSends,
    CReceivesAll,
    CShuts(c_int),
    CCloses,
}
use Deed::*;

impl Deed {
    fn is_done(self, p: Pair) {
        match self {
            ASends => drop(p.a.send(b"bytes").unwrap()),
            AFills => assert!(p.a.fill() > 0),
            AReceives => assert_eq!(p.a.receive(9).unwrap(), b"bytes"),
            AShuts(how) => p.a.shutdown(how),
            CSends => drop(p.c.send(b"bytes").unwrap()),
            CReceivesAll => assert!(p.c.drain() > 0),
            CShuts(how) => p.c.shutdown(how),
            CCloses => p.c.close(),
        }
    }
}

/// What is left open behind these.
fn close_rest(p: Pair, deeds: &[Deed]) {
    if deeds.contains(&CCloses) { p.a.close() } else { p.close() }
}

/// Until it is so; `what` it is that is waited for.
#[track_caller]
fn come_to(is: impl Fn() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed().as_nanos() < LONG_NS as u128, "{}", what());
        std::thread::yield_now();
    }
}

// ---- states -------------------------------------------------------------------------------------

/// What has been done, and what is ready then.
type State = (&'static [Deed], i16);

const STATES: &[State] = &[
    (&[], ROOM),
    (&[CSends], DATA | ROOM),
    (&[CSends, AReceives], ROOM),
    (&[AFills], 0),
    (&[AFills, CSends], DATA),
    (&[AFills, CReceivesAll], ROOM),
    (&[CShuts(SHUT_WR)], END | ROOM),
    (&[CSends, CShuts(SHUT_WR)], END | ROOM),
    (&[CSends, CShuts(SHUT_WR), AReceives], END | ROOM),
    (&[AFills, CShuts(SHUT_WR)], END),
    (&[AShuts(SHUT_WR)], ROOM),
    (&[AShuts(SHUT_WR), CSends], DATA | ROOM),
    (&[AShuts(SHUT_RD)], END | ROOM),
    (&[AShuts(SHUT_RDWR)], END | ROOM | POLLHUP),
    (&[CShuts(SHUT_WR), AShuts(SHUT_WR)], END | ROOM | POLLHUP),
    (&[CCloses], END | ROOM),
    (&[CSends, CCloses], END | ROOM),
    (&[AShuts(SHUT_WR), CCloses], END | ROOM | POLLHUP),
    (&[ASends, CCloses], END | ROOM | UNASKED),
    (&[ASends, CSends, CCloses], END | ROOM | UNASKED),
];

/// The kernel at the other end has heard of `fd`'s shutdown, which is news once.
fn is_heard(fd: Fd) -> bool {
    const TCP_FIN_WAIT2: u8 = 5;
    const TCP_CLOSE: u8 = 7;
    let mut info = [0u8; 8];
    sys::getsockopt(fd.0, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    [TCP_FIN_WAIT2, TCP_CLOSE].contains(&info[0])
}

/// Each of these, of a connection in the kernel and of one in a ring, as soon as `ready` says so of
/// its end `a`.
pub(crate) fn in_each_state(ready: impl Fn(Fd) -> i16, mut test: impl FnMut(&str, Fd, i16)) {
    for (at, (deeds, expected)) in STATES.iter().enumerate() {
        on_both(|p| {
            let name = format!("state {at} ({:?})", p.on);
            deeds.iter().for_each(|deed| deed.is_done(p));
            let is = || ready(p.a);
            let what = || format!("{name}: {:#x} is ready, not {expected:#x}", is());
            come_to(|| is() == *expected, what);
            let shuts = |deed: &Deed| matches!(deed, AShuts(SHUT_WR | SHUT_RDWR));
            if deeds.iter().any(shuts) {
                come_to(|| is_heard(p.a), || format!("{name}: the other kernel has not heard"));
            }
            test(&name, p.a, *expected);
            close_rest(p, deeds);
        });
    }
}

// ---- news ---------------------------------------------------------------------------------------

/// What was done before, what happens while a thread goes to sleep in a call that waits for some
/// events, and what that says then.
type News = (&'static [Deed], i16, Deed, i16);

const NEWS: &[News] = &[
    (&[], POLLIN, CSends, POLLIN),
    (&[AFills], POLLIN | POLLOUT, CSends, POLLIN),
    (&[AFills], POLLOUT, CReceivesAll, POLLOUT),
    (&[], POLLIN, CShuts(SHUT_WR), POLLIN),
    (&[], POLLRDHUP, CShuts(SHUT_WR), POLLRDHUP),
    (&[AShuts(SHUT_WR)], 0, CShuts(SHUT_WR), POLLHUP),
    (&[ASends], 0, CCloses, UNASKED),
    (&[AFills], POLLOUT, CCloses, POLLOUT | UNASKED),
];

/// Each of these, at the last moment, when the thread has looked at everything for the last time;
/// `wait` waits for [`LONG_NS`].
pub(crate) fn with_news(wait: impl Fn(Fd, i16) -> i16) {
    for (at, (before, events, deed, expected)) in NEWS.iter().enumerate() {
        on_both(|p| {
            let name = format!("news {at} ({:?})", p.on);
            before.iter().for_each(|deed| deed.is_done(p));
            just_before(Moment::Sleep, move || deed.is_done(p));
            let began = Instant::now();
            assert_eq!(wait(p.a, *events), *expected, "{name}");
            assert!(was_there(), "{name}: it did not sleep");
            assert!(began.elapsed().as_nanos() < LONG_NS as u128 / 2, "{name}: nobody woke it");
            close_rest(p, &[*deed]);
        });
    }
}
