//! What a send into a ring comes to is what one to the kernel comes to.

use crate::fd_table::{self, Entry};
use crate::testing::pair::{Fd, LONG_NS, On, Pair, WAITS, on_both, or_kernel};
use crate::testing::{Moment, just_before, pass_ns, was_there};
use crate::{api, sys};
use core::sync::atomic::Ordering::SeqCst;
use libc::{EAGAIN, ECONNRESET, EFAULT, EPIPE, MSG_MORE, MSG_OOB, POLLHUP, POLLIN, POLLRDHUP};
use libc::{SHUT_RDWR, SHUT_WR};
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

#[test]
fn several_buffers_are_one_stream() {
    on_both(|p| {
        assert_eq!(p.a.send_with(&[b"ab", b"", b"cde"], 0), Ok(5));
        assert_eq!(p.a.send_with(&[b"", b""], 0), Ok(0));
        assert_eq!(p.a.send(b""), Ok(0));
        assert_eq!(p.a.send(b"f"), Ok(1));
        assert_eq!(p.c.receive(9).unwrap(), b"abcdef");
        p.close();
    });
}

/// Bytes that say where they stand, but for a distance that no buffer has.
fn stream(n: usize) -> Vec<u8> {
    let part: Vec<u8> =
        (0..16_411_u32).flat_map(|at| at.wrapping_mul(0x9e37_79b1).to_ne_bytes()).collect();
    let mut all = part.repeat(n.div_ceil(part.len()));
    all.truncate(n);
    all
}

/// All that is there, once so much has come. (Within the kernel, too, bytes take a while.)
fn received(c: Fd, least: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        if all.len() < least {
            assert_ne!(c.await_ready(POLLIN, LONG_NS), 0, "{} of {least}", all.len());
        }
        match c.receive(1 << 20) {
            Ok(part) if !part.is_empty() => all.extend(part),
            _ => return all,
        }
    }
}

/// There is no room for one byte, nor for two of two buffers, once the kernel has found no more.
/// Returns how much it has found.
fn is_refused(p: Pair, flags: core::ffi::c_int) -> usize {
    let mut found = 0;
    loop {
        let [one, two] = [&[&b"x"[..]][..], &[b"x", b"y"]].map(|b| p.a.send_with(b, flags));
        match (one, two) {
            (Err(EAGAIN), Err(EAGAIN)) => return found,
            (one, two) => found += one.unwrap_or(0) + two.unwrap_or(0),
        }
        assert_eq!(p.on, On::Kernel, "{one:?}, {two:?}");
    }
}

/// Of two buffers, of which neither fits.
#[test]
fn what_has_no_room_is_not_sent() {
    on_both(|p| {
        let all = stream(16 << 20);
        let (first, second) = all.split_at(all.len() - 5);
        let n = p.a.send_with(&[first, second], 0).unwrap();
        assert!(n > 0 && n < all.len());
        let more = is_refused(p, 0);
        assert!(p.on == On::Kernel || more == 0);
        assert_eq!(p.a.send(b""), Ok(0));
        let got = received(p.c, n + more);
        assert!(got.len() == n + more && got[..n] == all[..n]);
        assert_eq!(p.a.send(b"behind"), Ok(6));
        assert_eq!(p.c.receive(9).unwrap(), b"behind");
        p.close();
    });
}

/// Whenever this thread goes to sleep from here on, `c` receives first.
fn receives_meanwhile(c: Fd, into: Rc<RefCell<Vec<u8>>>) {
    just_before(Moment::Sleep, move || {
        into.borrow_mut().extend(received(c, 0));
        receives_meanwhile(c, into);
    });
}

#[test]
fn who_waits_for_room_sends_all() {
    let p = Pair::new(On::Ring);
    let (all, got) = (stream(1 << 20), Rc::default());
    receives_meanwhile(p.c, Rc::clone(&got));
    let (first, rest) = all.split_at(7);
    let (second, third) = rest.split_at(300_000);
    assert_eq!(p.a.send_with(&[first, second, third], WAITS), Ok(all.len()));
    let missing = all.len() - got.borrow().len();
    got.borrow_mut().extend(received(p.c, missing));
    assert!(*got.borrow() == all);
    p.close();
}

#[test]
fn who_waits_for_room_hears_of_the_end() {
    let p = Pair::new(On::Ring);
    let n = p.a.fill();
    just_before(Moment::Sleep, move || p.c.close());
    assert_eq!(p.a.send_with(&[b"x"], WAITS), Err(ECONNRESET));
    assert!(was_there() && n > 0);
    p.a.close();
}

#[test]
fn a_time_out_ends_a_wait_with_what_has_gone() {
    on_both(|p| {
        p.a.set(libc::SO_SNDTIMEO, libc::timeval { tv_sec: 0, tv_usec: 1000 });
        let all = stream(16 << 20);
        let n = p.a.send_with(&[&all], WAITS).unwrap();
        assert!(n > 0 && n < all.len());
        is_refused(p, WAITS);
        assert!(received(p.c, n)[..n] == all[..n]);
        assert_eq!(p.a.send_with(&[b"x"], WAITS), Ok(1));
        p.close();
    });
}

#[test]
fn behind_a_shutdown_there_is_no_sending() {
    for how in [SHUT_WR, SHUT_RDWR] {
        on_both(|p| {
            p.a.send(b"before").unwrap();
            p.a.shutdown(how);
            for part in [&b"x"[..], b""] {
                assert_eq!(p.a.send(part), Err(EPIPE), "{part:?} ({:?})", p.on);
            }
            assert_eq!(p.a.send_with(&[b"x", b"y"], WAITS), Err(EPIPE));
            assert_eq!(p.c.receive(9).unwrap(), b"before");
            assert_eq!(p.c.receive_with(&[9], WAITS).unwrap(), b"");
            p.close();
        });
    }
}

#[test]
fn to_a_peer_that_has_half_closed_is_sent_as_ever() {
    on_both(|p| {
        p.c.shutdown(SHUT_WR);
        assert_eq!(p.a.await_ready(POLLRDHUP, LONG_NS), POLLRDHUP);
        assert_eq!(p.a.send(b"abc"), Ok(3));
        assert_eq!(p.c.receive_with(&[9], WAITS).unwrap(), b"abc");
        assert!(p.a.fill() > 0);
        is_refused(p, 0);
        p.close();
    });
}

/// The first send asks the peer's kernel, which answers that nobody is there.
#[test]
fn to_a_peer_that_has_closed_one_send_goes() {
    on_both(|p| {
        p.c.close();
        assert_eq!(p.a.await_ready(POLLRDHUP, LONG_NS), POLLRDHUP);
        assert_eq!(p.a.send(b"x"), Ok(1));
        assert_ne!(p.a.await_ready(0, LONG_NS) & POLLHUP, 0);
        assert_eq!(p.a.send(b"x"), Err(EPIPE));
        assert_eq!(p.a.send(b"x"), Err(EPIPE));
        p.a.close();
    });
}

#[test]
fn to_a_peer_that_has_left_bytes_unread_is_sent_nothing() {
    on_both(|p| {
        p.a.send(b"unread").unwrap();
        p.c.close();
        assert_ne!(p.a.await_ready(0, LONG_NS) & POLLHUP, 0);
        assert_eq!(p.a.send(b"x"), Err(ECONNRESET));
        assert_eq!(p.a.send(b"x"), Err(EPIPE));
        p.a.close();
    });
}

#[test]
fn what_a_ring_cannot_say_goes_by_the_kernel_in_its_place() {
    on_both(|p| {
        p.a.send(b"ab").unwrap();
        assert_eq!(p.a.send_with(&[b"cd"], libc::MSG_DONTROUTE), Ok(2));
        assert_eq!(p.a.send(b"ef"), Ok(2));
        assert_eq!(p.c.receive(9).unwrap(), b"abcdef");
        assert_eq!(p.a.send_with(&[b"g!"], MSG_OOB), Ok(2));
        assert_eq!(p.a.send(b"h"), Ok(1));
        assert_eq!(p.c.receive_with(&[1], MSG_OOB).unwrap(), b"!");
        // (It is taken up to the urgent byte, and from there on.)
        assert_eq!(p.c.receive(9).unwrap(), b"g");
        assert_eq!(p.c.receive(9).unwrap(), b"h");
        p.close();
    });
}

#[test]
fn a_bad_buffer_sends_no_byte() {
    on_both(|p| {
        let bad = core::ptr::without_provenance(8);
        // SAFETY: it is never read; that is an error.
        let r = unsafe { api::send(p.a.0, bad, 4, libc::MSG_DONTWAIT) };
        // SAFETY: as above.
        let kernels = || unsafe { sys::sendto(p.a.0, bad.cast(), 4, libc::MSG_DONTWAIT) };
        assert_eq!(or_kernel(r, kernels), -(EFAULT as isize));
        assert_eq!(p.c.receive(9), Err(EAGAIN));
        assert_eq!(p.a.send(b"x"), Ok(1));
        assert_eq!(p.c.receive(9).unwrap(), b"x");
        p.close();
    });
}

// ---- MSG_MORE -----------------------------------------------------------------------------------

/// What is to follow does not come in this test for as long as the library would wait for it.
fn holding() -> Pair {
    pass_ns(3_600_000_000_000);
    Pair::new(On::Ring)
}

#[test]
fn what_waits_for_more_is_seen_with_that() {
    let p = holding();
    assert_eq!(p.a.send_with(&[b"ab"], MSG_MORE), Ok(2));
    assert_eq!(p.a.send_with(&[b"c", b"d"], MSG_MORE), Ok(2));
    assert_eq!((p.c.ready(POLLIN), p.c.unread(), p.c.receive(9)), (0, 0, Err(EAGAIN)));
    // Nothing is no more.
    assert_eq!(p.a.send(b""), Ok(0));
    assert_eq!(p.c.receive(9), Err(EAGAIN));
    assert_eq!(p.a.send(b"e"), Ok(1));
    assert_eq!((p.c.ready(POLLIN), p.c.unread()), (POLLIN, 5));
    assert_eq!(p.c.receive(9).unwrap(), b"abcde");
    p.close();
}

#[test]
fn what_waits_for_more_is_not_waited_for_with() {
    // Who finds no room shows what it has; an end says that nothing follows.
    let p = holding();
    let part = [b'x'; 999];
    let sends = core::iter::repeat_with(|| p.a.send_with(&[&part], MSG_MORE));
    let n: usize = sends.map_while(Result::ok).sum();
    assert_eq!(p.c.drain(), n);
    p.close();
    let p = holding();
    p.a.send_with(&[b"ab"], MSG_MORE).unwrap();
    p.a.shutdown(SHUT_WR);
    assert_eq!(p.c.receive_with(&[9], WAITS).unwrap(), b"ab");
    assert_eq!(p.c.receive_with(&[9], WAITS).unwrap(), b"");
    p.close();
    let p = holding();
    p.a.send_with(&[b"ab"], MSG_MORE).unwrap();
    p.a.close();
    assert_eq!(p.c.receive_with(&[9], WAITS).unwrap(), b"ab");
    assert_eq!(p.c.receive_with(&[9], WAITS).unwrap(), b"");
    p.c.close();
}

/// A send that finds no room is a wait from then on, also where the trace has told of a full ring
/// before, and nothing since: a peer that stops in mid-stream.
#[test]
fn a_ring_that_is_full_again_is_a_wait_from_then_on() {
    use crate::{config, trace};
    use netacc_control::{Config, trace::Event};
    let (old, p) = (config::get().clone(), Pair::new(On::Ring));
    let on = Config { trace: true, trace_slow_ms: 2, ..old.clone() };
    config::with(on, || {
        let Entry::Socket(s, _) = fd_table::get(p.a.0) else { panic!() };
        let ring = loop {
            s.begin_trace(false);
            trace::keep_ready();
            match trace::ring(s.ring.load(SeqCst)) {
                Some(ring) if s.ring.load(SeqCst) != 0 => break ring,
                _ => std::thread::yield_now(),
            }
        };
        let told = |event: Event| {
            let words = ring.events.iter().map(|[first, _]| first.load(SeqCst));
            words.filter(|word| word & 63 == event as u64).count()
        };
        p.a.fill();
        assert_eq!(p.a.send(b"x"), Err(EAGAIN));
        assert!(p.c.receive(200_000).is_ok());
        p.a.fill();
        assert_eq!((p.a.send(b"x"), told(Event::Full)), (Err(EAGAIN), 1), "said once");
        sys::pause_ns(4_000_000);
        s.trace_full();
        assert_eq!(told(Event::Slow), 1);
    });
    p.close();
}
