extern crate std;
use super::*;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::vec::Vec;

/// A connection over `listen`, reached through `connect`: both ends.
fn pair(listen: &str, connect: &str) -> (TcpStream, TcpStream, TcpListener) {
    let listener = TcpListener::bind(listen).unwrap();
    let to = SocketAddr::new(connect.parse().unwrap(), listener.local_addr().unwrap().port());
    let client = TcpStream::connect(to).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server, listener)
}

fn view(s: &TcpStream) -> Tuple {
    Tuple::new(s.local_addr().unwrap(), s.peer_addr().unwrap()).unwrap()
}

const WAYS: [(&str, &str); 3] =
    [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")];

#[test]
fn a_process_that_ends_is_told_by_its_stat() {
    let says = |state: &str, flags: u32, threads: u32| {
        let text = std::format!(
            "17 (a) R (b) {state} 1 17 17 0 -1 {flags} 81 0 0 0 1 2 0 0 20 0 {threads} 0 5 6\n"
        );
        says_ending(text.as_bytes())
    };
    assert!(!says("S", 0x0040_0040, 3) && !says("R", 0x0040_0000, 1));
    assert!(says("R", 0x0040_0044, 1) && says("D", 4, 2));
    // All of it has ended; or the first thread alone.
    assert!(!says("Z", 0x0040_0044, 1) && !says("X", 4, 0) && says("Z", 4, 2));
    assert!(!says_ending(b"") && !says_ending(b"17 (a") && !says_ending(b"17 (a)"));
    // This one does not, and there is none with that number.
    assert!(!is_ending(crate::process::id()) && !is_ending(0));
}

#[test]
fn both_ends_see_the_same_connection() {
    for (listen, connect) in WAYS {
        let Ok(_) = TcpListener::bind(listen) else { continue };
        let (c, s, _l) = pair(listen, connect);
        assert_eq!(view(&c).mirrored(), view(&s), "{listen}");
    }
}

#[test]
fn the_kernel_names_the_owner_both_ways() {
    let me = sys::geteuid();
    for (listen, connect) in WAYS {
        let Ok(_) = TcpListener::bind(listen) else { continue };
        let (c, s, _l) = pair(listen, connect);
        for end in [view(&c), view(&s)] {
            let Answer::Is(told) = ask_netlink(&end) else { panic!("{listen} by netlink") };
            assert_eq!(told.owner, me);
            assert!(told.mark.is_some() && told.cookie != 0);
            assert_eq!(
                read_tables(&end),
                Some(End { cookie: 0, mark: None, ..told }),
                "{listen} by /proc"
            );
        }
    }
}

#[test]
fn a_connection_that_is_not_there_has_no_owner() {
    let (c, s, listener) = pair("127.0.0.1:0", "127.0.0.1");
    let mut far = c.local_addr().unwrap();
    far.set_port(1);
    // The listener would match this one.
    let never = Tuple::new(listener.local_addr().unwrap(), far).unwrap();
    assert_eq!(ask_netlink(&never), Answer::NoSuchSocket);
    assert_eq!(read_tables(&never), None);
    let (cv, sv) = (view(&c), view(&s));
    drop(c);
    drop(s);
    for end in [cv, sv] {
        assert_eq!(look(&end), None, "TIME_WAIT has none");
    }
}

/// From the address of a peer that is gone, to an end that is still there, anybody can try to
/// connect.
#[test]
fn who_only_tries_to_connect_owns_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: a listener of ours; its queue has room for one.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let to = listener.local_addr().unwrap();
    let SocketAddr::V4(v4) = to else { panic!("an IPv4 address") };
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_in = unsafe { core::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = v4.port().to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
    // Behind the first the queue is full, and a SYN gets no answer.
    let callers: Vec<TcpStream> = (0..3)
        .map(|_| {
            let fd =
                sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) as c_int;
            // SAFETY: a valid address; a new descriptor that nothing else owns.
            unsafe {
                libc::connect(fd, (&raw const address).cast(), size_of_val(&address) as u32);
                TcpStream::from_raw_fd(fd)
            }
        })
        .collect();
    let state = |s: &TcpStream| {
        let mut info = [0u8; 8];
        assert!(sys::getsockopt(s.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) >= 0);
        info[0]
    };
    let trying = callers.iter().find(|c| state(c) == 2).expect("one in SYN_SENT");
    let end = Tuple::new(trying.local_addr().unwrap(), to).unwrap();
    assert_eq!(ask_netlink(&end), Answer::NoSuchSocket);
    assert_eq!(read_tables(&end), None);
}

#[test]
fn where_no_mark_is_shown_the_user_counts() {
    let (me, other) = (sys::geteuid(), sys::geteuid() + 7);
    let peer = |uid| Cred { pid: 1, uid };
    assert!(may_be(peer(me), other), "our own user");
    assert!(may_be(peer(other), other), "the owner");
    // A stranger is neither, root included.
    assert!(!may_be(peer(other), me));
    assert!(!may_be_for(other, peer(0), me + 9));
}

#[test]
fn what_passes_does_not_make_the_user_count() {
    for passes in
        [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::ENOENT]
    {
        assert_eq!(refused(-passes), Answer::NoSuchSocket);
    }
    assert_eq!(refused(-libc::EAFNOSUPPORT), Answer::CannotAsk);
    assert_eq!(refused(-libc::EPERM), Answer::CannotAsk);
}

/// What is left of an end that nobody has open any more is nobody's, as long as the kernel knows
/// it, and in whatever state it calls that.
#[test]
fn an_end_that_was_closed_is_nobodys() {
    let nobodys = |end: &Tuple| {
        assert_eq!(ask_netlink(end), Answer::NoSuchSocket);
        assert_eq!(read_tables(end), None);
    };
    // One end is closed, the other is not: FIN_WAIT2, of an orphan or, later, of a TIME_WAIT.
    let (c, s, _l) = pair("127.0.0.1:0", "127.0.0.1");
    let (cv, sv) = (view(&c), view(&s));
    drop(c);
    nobodys(&cv);
    assert!(look(&sv).is_some());
    drop(s);
    let (c, s, _l) = pair("127.0.0.1:0", "127.0.0.1");
    let (cv, sv) = (view(&c), view(&s));
    drop(s);
    nobodys(&sv);
    assert!(look(&cv).is_some());
}

/// A connection whose server has not accepted it is nobody's at that end; also one that the
/// server's kernel keeps as a request.
#[test]
fn an_end_that_was_not_accepted_is_nobodys() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for deferred in [0i32, 5] {
        assert!(
            sys::setsockopt(
                listener.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_DEFER_ACCEPT,
                &deferred
            ) >= 0
        );
        let c = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = view(&c).mirrored();
        assert_eq!(ask_netlink(&theirs), Answer::NoSuchSocket, "deferred: {deferred}");
        assert_eq!(read_tables(&theirs), None, "deferred: {deferred}");
        assert!(look(&view(&c)).is_some());
    }
}

#[test]
fn uid_maps() {
    assert!(maps_all(b"         0          0 4294967295\n"));
    assert!(!maps_all(b"         0       1000          1\n"));
    assert!(!maps_all(b"         0     100000      65536\n"));
    assert!(!maps_all(b""));
}

#[test]
fn lines_of_the_table() {
    let line = b"   3: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1";
    let end = |l: &str, p: &str| Tuple::new(l.parse().unwrap(), p.parse().unwrap()).unwrap();
    let right = end("127.0.0.1:8080", "127.0.0.2:50000");
    assert_eq!(parse_line(line, &right).map(|e| (e.owner, e.inode)), Some((1000, 12345)));
    assert_eq!(parse_line(line, &right.mirrored()), None);
    let listening = b"   3: 0100007F:1F90 0200007F:C350 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1";
    assert_eq!(parse_line(listening, &right), None);
    let mapped = b" 0: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000200007F:C350 01 0:0 0:0 0 33 0 1 1";
    assert_eq!(parse_line(mapped, &right).map(|e| e.owner), Some(33));
    let nobodys = b"   3: 0100007F:1F90 0200007F:C350 05 00000000:00000000 00:00000000 00000000  1000        0 0 1";
    assert_eq!(parse_line(nobodys, &right), None);
    for bad in [
        &b""[..],
        b"  sl  local_address rem_address   st",
        b"1: x:y z:w 01",
        b"1: 0100007F:1F90 0200007F:C350 FF 0 0 0 x",
    ] {
        assert_eq!(parse_line(bad, &right), None);
    }
}

#[test]
fn short_and_strange_replies_are_no_answer() {
    let end = Tuple::new("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()).unwrap();
    let mut bytes = [0u8; 128];
    for n in 0..128 {
        assert!(matches!(parse_reply(&bytes[..n], &end), Answer::CannotAsk | Answer::NoSuchSocket));
    }
    bytes[4] = SOCK_DIAG_BY_FAMILY as u8;
    for n in 0..128 {
        assert!(matches!(parse_reply(&bytes[..n], &end), Answer::CannotAsk | Answer::NoSuchSocket));
    }
}
