//! Processes of the victim's own user that are confined: no capabilities, a pid namespace of their
//! own, no_new_privs. They can neither trace nor read the victim, and must not get its connections
//! from the library either.

use super::descriptors::advert_name;
use super::{ATTACKER, Not, Place, ROOT, Test, VICTIM, Verdict, expect};
use crate::ctx::{recv_exact, send_all};
use crate::sys::{self, E, Fd};
use std::io::BufRead;

pub const TESTS: &[Test] = &[
    Test {
        name: "confined/cannot-take-a-connection",
        run: |place| takes(place, "serve-epoll", "always"),
    },
    Test {
        name: "confined/cannot-take-a-connection-of-a-thread",
        run: |place| takes(place, "serve-threads", "always"),
    },
    Test {
        name: "confined/cannot-take-by-silence",
        run: |place| takes(place, "serve-epoll", "never"),
    },
    Test { name: "confined/server-without-netlink", run: without_netlink },
];

/// The programs of this file's tests; false: not one of them.
pub fn part(words: &[&str]) -> bool {
    match *words {
        ["talk-plainly", port] => talk(port.parse().expect("a port")),
        ["claim", port, local, user, answers] => claim(
            port.parse().expect("a port"),
            local.parse().expect("a port"),
            user.parse().expect("a user"),
            answers == "always",
        ),
        ["serve-without-netlink"] => {
            forbid_netlink();
            return super::parts::part(&["serve-epoll"]);
        }
        _ => return false,
    }
    true
}

/// A server and a client without the library, both the victim's, and a claim to their connection by
/// a confined process of the same user.
fn takes(place: &Place, serve: &str, answers: &str) -> Verdict {
    let mut server = place.start(VICTIM, &[serve]);
    let port: u16 = server.number("port")?;
    let port_text = port.to_string();
    let mut client = place.start_with(VICTIM, &["talk-plainly", &port_text], |command| {
        command.env("NACC_ENABLE_RDMA_DEFAULT", "0");
    });
    let local: u16 = client.number("local")?;
    // (It is used, so its server waits for somebody to claim it.)
    client.await_line("answered")?;
    let (local_text, user) = (local.to_string(), VICTIM.to_string());
    let words = ["claim", &port_text, &local_text, &user, answers];
    let mut thief = place.start_with(ROOT, &words, |command| {
        command.env("NACC_ENABLE_RDMA_DEFAULT", "0");
    });
    let told = loop {
        client.order("more");
        client.await_line("answered")?;
        match thief.line()? {
            line if line.starts_with("told") => break line,
            line => expect(line == "asked", || format!("the thief: {line}"))?,
        }
    };
    expect(told == "told nothing", || format!("the thief was {told}"))?;
    for _ in 0..20 {
        client.order("more");
        client.await_line("answered")?;
    }
    let connection = place.connection_with(&server, local)?;
    expect(connection.as_ref().is_some_and(|c| !c.is_on(place.build.path)), || {
        format!("the server says {connection:?}")
    })?;
    place.stream(port)?.must_be_exact()?;
    server.must_live("the server")
}

/// A client that sends and waits for the answer: three times at first, then once for each line.
fn talk(port: u16) {
    let fd = super::parts::dial(port);
    let ask = |n: usize| {
        for _ in 0..n {
            send_all(fd, b"what is meant for this client alone");
            assert_eq!(recv_exact(fd, 35), b"what is meant for this client alone");
        }
        println!("answered");
    };
    ask(8);
    for _ in std::io::stdin().lock().lines() {
        ask(3);
    }
}

/// Claims the connection from the port `local` to `port`, as often as its server listens, in the
/// words of the library. Says what it was told: `told nothing`, or `told KIND` of the first message
/// that is none of the questions.
fn claim(port: u16, local: u16, user: u32, answers: bool) {
    confine(user);
    let control = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).expect("socket");
    // (Libraries beside us take some of these names.)
    let is_bound = (4711..4811).any(|number| {
        let (name, len) = advert_name("link", number);
        // SAFETY: a name and its length.
        unsafe { libc::bind(control, (&raw const name).cast(), len) == 0 }
    });
    assert!(is_bound, "a name for a link");
    let (name, len) = advert_name(&port.to_string(), 0);
    // SAFETY: as above.
    let called = unsafe { libc::connect(control, (&raw const name).cast(), len) };
    assert_eq!(called, 0, "the server advertises");
    sys::send(control, &hello(), 0).expect("greet");
    let mut token = 0u64;
    // False: it was hung up on, which the server does with a process that has made no connection.
    let mut announce = || {
        token += 1;
        match sys::send(control, &candidate(port, local, token), libc::MSG_NOSIGNAL) {
            Ok(_) => true,
            Err(E(libc::EPIPE | libc::ECONNRESET)) => false,
            other => panic!("claim: {other:?}"),
        }
    };
    let mut hung_up = !announce();
    let mut refused = 0;
    while !hung_up {
        let mut bytes = [0; 128];
        let n = match sys::await_events(control, libc::POLLIN, 4000) {
            0 => 0,
            _ => match sys::recv(control, &mut bytes, 0) {
                Ok(0) | Err(E(libc::ECONNRESET)) => {
                    hung_up = true;
                    0
                }
                n => n.expect("a message"),
            },
        };
        match bytes[2] {
            // Silence; a greeting.
            0 if n == 0 => break,
            1 => {}
            // A turn: "so it is here".
            13 => {
                println!("asked");
                if answers {
                    hung_up = sys::send(control, &bytes[..n], libc::MSG_NOSIGNAL).is_err();
                }
            }
            // The link ends.
            12 => hung_up = true,
            // It is seen not to be.
            14 => {
                refused += 1;
                if refused == 3 {
                    break;
                }
                hung_up = !announce();
            }
            kind => {
                println!("told {kind}");
                return;
            }
        }
    }
    assert!(!answers || refused > 0 || hung_up, "the claim was looked at");
    println!("told nothing");
}

/// No capabilities, a pid namespace of its own, no_new_privs. The first process of the namespace
/// goes on.
fn confine(user: u32) {
    // SAFETY: system calls of the only thread.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWPID), 0);
        match libc::fork() {
            0 => {
                assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
                assert_eq!(libc::setresgid(user, user, user), 0);
                assert_eq!(libc::setresuid(user, user, user), 0);
                // After the change of user, which clears it.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                libc::waitpid(child, &mut status, 0);
                libc::_exit(libc::WEXITSTATUS(status));
            }
        }
    }
}

fn hello() -> Vec<u8> {
    let mut all = b"netacc\r\n".to_vec();
    all.extend(netacc_proto::rendezvous::VERSION.to_le_bytes());
    all.extend([0, 0, 1, 0, 0, 0]);
    all.extend(std::process::id().to_le_bytes());
    all.push(1);
    message(1, &all)
}

fn candidate(port: u16, local: u16, token: u64) -> Vec<u8> {
    let mut all = vec![4];
    for end in [local, port] {
        all.extend([127, 0, 0, 1]);
        all.extend([0; 12]);
        all.extend(end.to_le_bytes());
    }
    all.extend(token.to_le_bytes());
    // Nothing is known of its SYN; no traffic class, no wish for larger rings.
    all.extend([0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    message(2, &all)
}

/// A message as it is on the wire.
pub(super) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let [low, high] = (body.len() as u16 + 2).to_le_bytes();
    [&[low, high, kind, netacc_proto::rendezvous::FORMAT], body].concat()
}

/// A server whose sandbox has no netlink (systemd's RestrictAddressFamilies, as in the units of
/// Debian's Redis and memcached) goes by the user.
fn without_netlink(place: &Place) -> Verdict {
    let mut server = place.start(VICTIM, &["serve-without-netlink"]);
    let port: u16 = server.number("port")?;
    place.stream(port)?.must_be_exact()?;
    server.must_live("the server")?;
    // A connection of somebody else's is not got there either.
    let mut client = place.start_with(super::THIRD, &["talk-plainly", &port.to_string()], |c| {
        c.env("NACC_ENABLE_RDMA_DEFAULT", "0");
    });
    let local: u16 = client.number("local")?;
    client.await_line("answered")?;
    let [port, local, user] = [u32::from(port), u32::from(local), ATTACKER].map(|n| n.to_string());
    let mut thief = place.start_with(ROOT, &["claim", &port, &local, &user, "always"], |c| {
        c.env("NACC_ENABLE_RDMA_DEFAULT", "0");
    });
    loop {
        match thief.line()?.as_str() {
            "asked" => {}
            "told nothing" => break,
            other => return Err(Not::Failed(format!("the thief was {other}"))),
        }
    }
    client.order("more");
    client.await_line("answered")
}

/// `socket(AF_NETLINK)` is EAFNOSUPPORT from here on.
fn forbid_netlink() {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let filter = [
        op(load, 0, 0, 0),
        op(is, libc::SYS_socket as u32, 0, 3),
        op(load, 16, 0, 0),
        op(is, libc::AF_NETLINK as u32, 0, 1),
        op(answer, 0x0005_0000 | libc::EAFNOSUPPORT as u32, 0, 0),
        op(answer, 0x7fff_0000, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: a valid program, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
    let refused: Result<Fd, _> = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, 4);
    assert!(refused.is_err(), "netlink is refused");
}
