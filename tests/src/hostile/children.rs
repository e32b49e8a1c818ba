//! Children of a server that have dropped their rights, against their parent and their siblings.
//!
//! The server runs as root. It serves the third user's stream by threads of its own, and forks a
//! child for each connection to another port; the child becomes another user and writes random
//! words over every mapping that it shares with anybody, while the parent goes on, and takes and
//! closes more connections.

use super::parts::{dial, listener};
use super::{ATTACKER, Place, ROOT, Test, Verdict, expect};
use crate::ctx::{recv_exact, send_all};
use crate::pattern::Rng;
use crate::sys::{self, Fd};
use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

pub const TESTS: &[Test] = &[
    Test {
        name: "children/dropped-child-has-nothing-to-write-to",
        run: |place| dropped(place, "setuid"),
    },
    Test {
        name: "children/dropped-by-syscall-has-nothing-to-write-to",
        run: |place| dropped(place, "syscall"),
    },
    Test { name: "children/in-a-chroot", run: |place| dropped(place, "chroot") },
    Test {
        name: "children/confined-child-has-nothing-to-write-to",
        run: |place| dropped(place, "no_new_privs"),
    },
    Test {
        name: "children/a-dropped-child-goes-on-with-its-connection",
        run: |place| goes_on(place, "echo"),
    },
    Test {
        name: "children/a-dropped-child-goes-on-with-an-accelerated-connection",
        run: |place| goes_on(place, "echo-attached"),
    },
    Test {
        name: "children/a-child-in-a-pid-namespace-goes-on",
        run: |place| goes_on(place, "echo-namespace"),
    },
];

/// The programs of this file's tests; false: not one of them.
pub fn part(words: &[&str]) -> bool {
    match *words {
        ["serve-forks", how] => serve_forks(how),
        ["ask-children", port] => ask(port.parse().expect("a port")),
        ["talk", port] => talk(port.parse().expect("a port"), false),
        ["talk-first", port] => talk(port.parse().expect("a port"), true),
        _ => return false,
    }
    true
}

/// The third user's stream is on shared memory when the children attack, and exact to the end; the
/// parent lives, and serves others.
fn dropped(place: &Place, how: &str) -> Verdict {
    let mut server = place.start(ROOT, &["serve-forks", how]);
    let port: u16 = server.number("port")?;
    let forks: u16 = server.number("port")?;
    let third = place.stream(port)?;
    let mut asks = place.start(ATTACKER, &["ask-children", &forks.to_string()]);
    for _ in 0..8 {
        let line = asks.line()?;
        expect(line == "shared 0", || format!("a child that has dropped its rights: {line}"))?;
    }
    // The parent's own memory is used as before.
    let again = place.stream(port)?;
    server.must_live("the server")?;
    again.must_be_exact()?;
    third.must_be_exact()?;
    server.must_live("the server")
}

/// The connection that a child was made for is exact, before and after it drops its rights, and
/// fast again where nobody else has it.
fn goes_on(place: &Place, how: &str) -> Verdict {
    let mut server = place.start(ROOT, &["serve-forks", how]);
    let _: u16 = server.number("port")?;
    let forks: u16 = server.number("port")?;
    let part = if how == "echo" { "talk" } else { "talk-first" };
    let mut client = place.start(ATTACKER, &[part, &forks.to_string()]);
    for _ in 0..6 {
        if how != "echo" {
            // The parent serves it until it is accelerated.
            let local = client.number("local")?;
            place.await_fast(&client, local)?;
            client.order("fork");
        }
        client.await_line("echoed")?;
    }
    server.must_live("the server")
}

/// Echoes by threads at the first port; forks a child for each connection to the second one. Prints
/// both ports.
fn serve_forks(how: &str) {
    let (threads, forks) = (listener(), listener());
    std::thread::spawn(move || super::parts::serve_threads(threads));
    let mut parents: Vec<Fd> = Vec::new();
    loop {
        let Ok(fd) = sys::accept(forks) else { continue };
        if how != "echo" && how.starts_with("echo") {
            while echo_one(fd) {}
        }
        if how == "echo-namespace" {
            new_pid_namespace();
        }
        let child = sys::fork().expect("fork");
        if child == 0 {
            serve_one(fd, how);
            sys::exit_now(0);
        }
        // (While the parent has it, nobody but the child can take it to where the child goes on.)
        if how != "echo-attached" {
            let _ = sys::close(fd);
        }
        // Connections of the parent's own come and go beside them.
        if let Some(old) = parents.pop() {
            let _ = sys::close(old);
        }
        parents.push(sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket"));
        // SAFETY: takes no status.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
    }
}

/// A child with its connection.
fn serve_one(fd: Fd, how: &str) {
    if how == "echo" {
        echo(fd, 100);
    }
    if how == "echo-namespace" {
        assert!(std::process::id() == 1, "a namespace of its own");
    } else if how.starts_with("echo") {
        drop_rights("setuid");
    }
    if how.starts_with("echo") {
        echo(fd, 100);
        return;
    }
    // SAFETY: opens a file. (Where the child goes there is no /proc.)
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) };
    let inherited: Vec<u64> = shared_mappings(maps).iter().map(|m| m.2).collect();
    assert!(!inherited.is_empty(), "there is nothing to be given up");
    drop_rights(how);
    // (What has come to be since is the child's own.)
    let mut shared = shared_mappings(maps);
    shared.retain(|m| inherited.contains(&m.2));
    send_all(fd, &(shared.len() as u32).to_ne_bytes());
    scribble(&shared);
    let _ = sys::recv(fd, &mut [0; 1], 0);
}

/// The next child is the first process of a namespace.
fn new_pid_namespace() {
    // SAFETY: system calls with plain arguments.
    unsafe {
        let own = libc::open(c"/proc/self/ns/pid".as_ptr(), libc::O_RDONLY);
        assert!(
            libc::setns(own, libc::CLONE_NEWPID) == 0 && libc::unshare(libc::CLONE_NEWPID) == 0,
            "unshare"
        );
        libc::close(own);
    }
}

fn echo(fd: Fd, n: u32) {
    for _ in 0..n {
        assert!(echo_one(fd), "a message");
    }
}

/// Echoes a message that its length goes before; false: it is empty, and not echoed.
fn echo_one(fd: Fd) -> bool {
    let size = u32::from_ne_bytes(recv_exact(fd, 4).try_into().expect("four bytes"));
    let bytes = recv_exact(fd, size as usize);
    if !bytes.is_empty() {
        send_all(fd, &bytes);
    }
    !bytes.is_empty()
}

/// Becomes another user for good.
fn drop_rights(how: &str) {
    let user = ATTACKER + 10;
    // SAFETY: system calls with plain arguments.
    let done = unsafe {
        match how {
            "syscall" => {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) == 0
                    && libc::syscall(libc::SYS_setresgid, user, user, user) == 0
                    && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
            }
            "no_new_privs" => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0,
            _ => {
                (how != "chroot"
                    || libc::chroot(c"/var/empty".as_ptr()) == 0
                    || libc::chroot(c"/tmp".as_ptr()) == 0)
                    && libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setgid(user) == 0
                    && libc::setuid(user) == 0
            }
        }
    };
    assert!(done, "to drop rights");
}

/// The mappings that this process could write to and shares with somebody, of the library's memory,
/// or nameless: where they begin and end, and the number of the file.
fn shared_mappings(maps: Fd) -> Vec<(usize, usize, u64)> {
    let mut text = String::new();
    let mut part = [0; 4096];
    sys::lseek(maps, 0, libc::SEEK_SET).expect("lseek");
    while let Ok(n @ 1..) = sys::read(maps, &mut part) {
        text.push_str(&String::from_utf8_lossy(&part[..n]));
    }
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let marks = words.next()?;
        let inode = words.nth(2)?.parse().ok()?;
        let name = words.next().unwrap_or("");
        let ours = name.contains("netacc-") || name.starts_with("/dev/zero");
        let wanted = ours && marks.starts_with("rw") && marks.ends_with('s');
        let at = |text| usize::from_str_radix(text, 16).ok();
        wanted.then_some((at(begin)?, at(end)?, inode))
    };
    text.lines().filter_map(of).collect()
}

/// Writes random words over all of it, again and again; now and then such as stand there already,
/// which are more to the point.
fn scribble(shared: &[(usize, usize, u64)]) {
    let mut rng = Rng::new(u64::from(std::process::id()));
    for _ in 0..if shared.is_empty() { 0 } else { 4 } {
        for &(begin, end, _) in shared {
            // (A ring's bytes are no words: of a large mapping the first part.)
            for at in (begin..end.min(begin + (4 << 20))).step_by(8) {
                // SAFETY: mapped for writing; whoever shares it has to live with it.
                let word = unsafe { &*(at as *const AtomicU64) };
                let value = match rng.range(0, 3) {
                    0 => rng.next(),
                    1 => rng.next() & 0xffff,
                    2 => word.load(Ordering::Relaxed) ^ 1 << rng.range(0, 63),
                    _ => 0x4141_4141_4140,
                };
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}

/// Connects eight times; prints what a child says of what it shares.
fn ask(port: u16) {
    for _ in 0..8 {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, sys::home().with_port(port)).expect("connect");
        let mut first = [0; 4];
        let n = sys::recv(fd, &mut first, libc::MSG_WAITALL);
        assert!(n == Ok(4), "a child's answer: {n:?}");
        println!("shared {}", u32::from_ne_bytes(first));
        let _ = sys::close(fd);
    }
    let _ = std::io::stdin().lock().lines().next();
}

/// Six conversations of messages that come back. `first`: with the parent, until it is told to say
/// that it is to fork.
fn talk(port: u16, first: bool) {
    let (tell, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let _ = tell.send(line.unwrap_or_default());
        }
    });
    let mut rng = Rng::new(u64::from(port));
    for _ in 0..6 {
        let fd = if first {
            dial(port)
        } else {
            let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
            sys::connect(fd, sys::home().with_port(port)).expect("connect");
            fd
        };
        let mut one = || {
            let bytes: Vec<u8> = (0..rng.size(5000)).map(|_| rng.next() as u8).collect();
            let size = (bytes.len() as u32).to_ne_bytes();
            send_all(fd, &[&size, &bytes[..]].concat());
            assert!(recv_exact(fd, bytes.len()) == bytes, "an echo");
        };
        if first {
            while orders.try_recv() == Err(mpsc::TryRecvError::Empty) {
                one();
            }
            send_all(fd, &[0; 4]);
        } else {
            (0..100).for_each(|_| one());
        }
        (0..100).for_each(|_| one());
        println!("echoed");
        let _ = sys::close(fd);
    }
    let _ = orders.recv();
}
