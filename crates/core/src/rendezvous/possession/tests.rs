extern crate std;
use super::*;
use crate::rendezvous::marks::*;
use std::collections::{HashSet, VecDeque};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::vec::Vec;

fn spelled(number: u16) -> Vec<u8> {
    (0..TURNS).map(|turn| mark(number, turn)).collect()
}

#[test]
fn each_number_is_spelled_in_its_own_way() {
    let all: HashSet<Vec<u8>> = (0..NUMBERS).map(spelled).collect();
    assert_eq!(all.len(), usize::from(NUMBERS));
    for marks in &all {
        assert_eq!(marks[0], SHOWN);
        assert!(marks.iter().all(|m| m & SHOWN != 0), "what is at rest is no mark");
        assert!(marks[1..].iter().all(|m| *m != marks[0]), "only the first begins a proof");
        assert!(marks[1..].windows(2).all(|w| (w[0] ^ w[1]) & ODD != 0));
    }
}

/// A connection over `listen`, reached through `connect`: both ends.
fn pair(listen: &str, connect: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(listen).unwrap();
    let client = TcpStream::connect((connect, listener.local_addr().unwrap().port())).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn everybody_sees_what_an_end_shows() {
    for (listen, connect) in
        [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
    {
        if TcpListener::bind(listen).is_err() {
            continue;
        }
        let (c, s) = pair(listen, connect);
        for end in [&c, &s] {
            let tuple = Tuple::new(end.local_addr().unwrap(), end.peer_addr().unwrap()).unwrap();
            let fd = end.as_raw_fd();
            let rest = shown_by(fd).unwrap();
            let seen = || auth::look(&tuple).unwrap().mark;
            assert_eq!(seen(), Some(rest));
            let mut shown = rest;
            for number in [0, 1, 4711, NUMBERS - 1] {
                for m in spelled(number) {
                    assert!(show(fd, shown, m));
                    shown = m;
                    assert_eq!(seen(), Some(m), "{listen}, number {number}");
                }
            }
            assert!(show(fd, shown, rest));
            assert_eq!((seen(), shown_by(fd)), (Some(rest), Some(rest)));
        }
    }
}

#[test]
fn what_cannot_show_is_said() {
    let not_ip = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    assert_eq!(shown_by(not_ip), None);
    assert!(!show(not_ip, 0, SHOWN));
    let _ = sys::close(not_ip);
}

#[test]
fn a_mark_that_was_left_behind_is_no_rest() {
    let (c, _s) = pair("127.0.0.1:0", "127.0.0.1");
    let rest = shown_by(c.as_raw_fd()).unwrap();
    assert_eq!(at_rest(rest), rest);
    assert_eq!(at_rest(SHOWN | 3), rest, "the kernel's own");
}

#[test]
fn both_ends_of_a_link_know_its_number_and_no_other_has_it() {
    crate::testing::init();
    let control =
        || sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
    let listener = control();
    let (name, len) = names::name_of(b"test-of-numbers", sys::getpid());
    assert!(sys::bind(listener, &name[..len]) >= 0 && sys::listen(listener, 5) >= 0);
    let call = |named: bool| {
        let c = control();
        assert!(!named || name_link(c));
        assert!(sys::connect(c, &name[..len]) >= 0);
        (c, sys::accept4(listener, libc::SOCK_CLOEXEC) as c_int)
    };
    let (c, a) = call(true);
    let number = number_of(c, Role::Connector).unwrap();
    assert_eq!(number_of(a, Role::Acceptor), Some(number));
    // As long as it lives nobody else is called so.
    let other = control();
    let (same, len_of_same) = link_name(number);
    assert_eq!(sys::bind(other, &same[..len_of_same]), -(libc::EADDRINUSE as isize));
    // Who is not called like a link has no number.
    let (c2, a2) = call(false);
    assert_eq!((number_of(c2, Role::Connector), number_of(a2, Role::Acceptor)), (None, None));
    for (text, is) in [(&b"link"[..], true), (b"80", false), (b"link/0", false)] {
        let fd = control();
        let (name, len) = names::name_of(text, u32::from(NUMBERS) - 1);
        if sys::bind(fd, &name[..len]) >= 0 {
            assert_eq!(number_of(fd, Role::Connector).is_some(), is);
        }
        let _ = sys::close(fd);
    }
    let too_large = control();
    let (name, len) = names::name_of(b"link", u32::from(NUMBERS));
    assert!(sys::bind(too_large, &name[..len]) >= 0);
    assert_eq!(number_of(too_large, Role::Connector), None);
    for fd in [listener, c, a, other, c2, a2, too_large] {
        let _ = sys::close(fd);
    }
}

// ---- the rules, explored ------------------------------------------------------------------------

/// One end: the proof that it is in (a number, and the last turn that it showed), if any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct End(Option<(u16, u8)>);

impl End {
    /// `left`: what it showed when it ended in the middle of a proof, and another program took its
    /// place.
    fn shows(self, at_rest: u8) -> u8 {
        self.0.map_or(at_rest, |(n, turn)| mark(n, turn))
    }
}

/// Somebody stands between a connector and an acceptor. He has links to both, with numbers that
/// differ from each other, calls for turns as he likes, has proofs given up and begun anew, also
/// over other links of his. No end comes to the last turn.
///
/// `blind`: one of them does not see the other. That one goes on as it is told, through one proof,
/// and is not asked whether it is fooled: the other one is.
fn in_between(
    connector: &[u16],
    acceptor: &[u16],
    at_rest: u8,
    blind: Option<Role>,
) -> Option<(End, End)> {
    let (c_sees, a_sees) = (blind != Some(Role::Connector), blind != Some(Role::Acceptor));
    // Both ends, and whether the blind one has begun.
    let start = (End(None), End(None), false);
    let mut seen = HashSet::from([start]);
    let mut todo = VecDeque::from([start]);
    while let Some((c, a, spent)) = todo.pop_front() {
        let mut next = Vec::new();
        // Given up.
        next.push((End(None), a, spent));
        next.push((c, End(None), spent));
        // An acceptor begins, when it is in no proof.
        if a.0.is_none() && (a_sees || !spent) {
            next.extend(acceptor.iter().map(|n| (c, End(Some((*n, 0))), spent || !a_sees)));
        }
        // It goes on when it sees its own mark at the other end.
        if let Some((n, turn)) = a.0
            && (!a_sees || c.shows(at_rest) == mark(n, turn))
        {
            if turn + 1 < TURNS {
                next.push((c, End(Some((n, turn + 1))), spent));
            } else if a_sees {
                return Some((c, a));
            }
        }
        // A connector begins whenever it is asked, and goes on, when it sees the mark of that turn
        // at the other end.
        for n in connector {
            for turn in 0..TURNS {
                let due = if turn == 0 { c_sees || !spent } else { c.0 == Some((*n, turn - 1)) };
                if due && (!c_sees || a.shows(at_rest) == mark(*n, turn)) {
                    if turn + 1 == TURNS && c_sees {
                        return Some((c, a));
                    }
                    next.push((End(Some((*n, turn))), a, spent || !c_sees));
                }
            }
        }
        for state in next {
            if seen.insert(state) {
                todo.push_back(state);
            }
        }
    }
    None
}

/// All numbers that agree with `number` in some of its digits.
fn similar(number: u16) -> Vec<u16> {
    let mut all = std::vec![0u16];
    let (mut rest, mut weight) = (number, 1u16);
    for turn in 1..TURNS {
        let digits = if turn & 1 == 1 { 8 } else { 7 };
        let (mine, other) = (rest % digits, (rest % digits + 1) % digits);
        all = all.iter().flat_map(|n| [n + mine * weight, n + other * weight]).collect();
        rest /= digits;
        weight = weight.saturating_mul(digits);
    }
    all
}

#[test]
fn nothing_can_be_put_together_from_several_proofs() {
    for number in [0, 1, 300, 4711, NUMBERS - 1] {
        // (The one that is shared would be the same link.)
        let others: Vec<u16> = similar(number).into_iter().filter(|n| *n != number).collect();
        assert_eq!(others.len(), 31);
        for at_rest in [ODD | 4, 0, 2, 15] {
            assert_eq!(in_between(&[number], &others, at_rest, None), None, "number {number}");
            assert_eq!(in_between(&others, &[number], at_rest, None), None, "number {number}");
        }
        assert!(
            in_between(&[number], &[number], 0, None).is_some(),
            "the exploration finds a proof where there is one"
        );
    }
    let (some, others) = ([5, 600, 7000], [6, 601, 7001]);
    assert_eq!(in_between(&some, &others, 0, None), None);
}

#[test]
fn who_sees_is_not_fooled_by_way_of_who_does_not() {
    for number in [0, 300, 4711] {
        let others: Vec<u16> = similar(number).into_iter().filter(|n| *n != number).collect();
        for (some, one) in
            [(&others[..], [number]), (&[number], [others[0]]), (&others[..], [others[7]])]
        {
            let some: Vec<u16> = some.iter().copied().filter(|n| *n != one[0]).collect();
            for blind in [Role::Connector, Role::Acceptor] {
                assert_eq!(in_between(&some, &one, 0, Some(blind)), None, "{one:?}");
                assert_eq!(in_between(&one, &some, 0, Some(blind)), None, "{one:?}");
            }
        }
    }
}
