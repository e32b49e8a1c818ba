//! Forked children that change their rights: they have nothing of their parent's from then on, and
//! lose nothing of their own.

use crate::ctx::{Ctx, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, E, Fd};
use std::collections::BTreeSet;

/// Where a child has no fast path of its own.
const OF_ITS_OWN: &[(&str, &str)] =
    &[("rdma", "a child of a process that uses RDMA has no connections on it")];

// docs/manual/limits.md, "Another effective user over RDMA".
const OF_ANOTHER_USER: &[(&str, &str)] =
    &[("rdma", "the kernel refuses a device's file to who is not the user that opened it")];

fn ask(fd: Fd, n: u32) {
    for i in 0..n {
        send_all(fd, &i.to_ne_bytes());
        assert!(recv_exact(fd, 4) == i.to_ne_bytes(), "echo {i}");
    }
}

fn echo(fd: Fd, n: u32) {
    for _ in 0..n {
        send_all(fd, &recv_exact(fd, 4));
    }
}

/// Memory of the library's, or nameless, that this process can write to and shares with others: the
/// numbers of the files.
fn shared_memory() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(5)?;
        let ours = name.contains("netacc") || name.starts_with("/dev/zero");
        (ours && words[1].starts_with("rw") && words[1].ends_with('s')).then(|| words[4].into())
    };
    maps.lines().filter_map(of).collect()
}

/// The sockets that a process has.
fn sockets(process: &str) -> BTreeSet<String> {
    let names = std::fs::read_dir(format!("/proc/{process}/fd")).expect("fd");
    let targets = names.flatten().filter_map(|n| std::fs::read_link(n.path()).ok());
    targets.map(|t| t.to_string_lossy().into_owned()).filter(|t| t.starts_with("socket:")).collect()
}

/// A child changes its rights; what it shares with its parent then, and had before.
fn shares(t: &Ctx) -> String {
    let before = shared_memory();
    if t.waits_until_fast() {
        assert!(!before.is_empty(), "there is nothing to be given up");
    }
    sys::set_own_group().expect("setgid");
    let memory = shared_memory().intersection(&before).count();
    let parents = sockets(&sys::getppid().to_string());
    let sockets = sockets("self").intersection(&parents).count();
    format!("memory: {memory}, sockets: {sockets}")
}

/// A server leaves a connection to a child that has it still, and is changing its rights: it closes
/// it when the child sleeps in that call, and so waits for this. True: it did so in time, and the
/// child has served the connection. (Without a fast path nobody waits.)
fn leaves(t: &Ctx, listener: Fd) -> bool {
    let fd = sys::accept(listener).expect("accept");
    let ([from, to], [hear, say]) = (sys::pipe(), sys::pipe());
    let child = t.child(|t| {
        let _ = sys::write(say, b"b");
        let began = sys::now_ns();
        sys::set_own_group().expect("setgid");
        // (The library waits five milliseconds at most.)
        let is_early = sys::now_ns() - began < 4_000_000;
        let _ = sys::write(say, if is_early { b"e" } else { b"l" });
        let mut word = [0];
        let _ = sys::read(from, &mut word);
        if word != *b"s" {
            return "late".into();
        }
        t.warm_server(fd);
        echo(fd, 20);
        t.still_fast(fd);
        format!("{:?}", sys::recv(fd, &mut [0; 1], 0))
    });
    let mut word = [0];
    let _ = sys::read(hear, &mut word);
    let is_over = || sys::await_events(hear, libc::POLLIN, 0) != 0;
    let mut slept = false;
    while !slept && !is_over() {
        slept = sys::is_asleep(child.pid) && !is_over();
    }
    sys::close(fd).expect("close");
    let _ = sys::read(hear, &mut word);
    let served = (slept && word == *b"e") || !t.must_be_fast();
    t.tell(if served { "serves" } else { "again" });
    let _ = sys::write(to, if served { b"s" } else { b"a" });
    let said = child.join();
    if served {
        t.log("child", said);
    }
    for end in [from, to, hear, say] {
        sys::close(end).expect("close");
    }
    served
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "rights/nothing-is-shared",
            "a forked child that changes its rights shares no memory, and no socket but the program's, with its parent; both go on",
            |t| {
                let fd = t.server();
                let child = t.child(|t| {
                    let shared = shares(t);
                    echo(fd, 20);
                    shared
                });
                t.log("child", child.join());
                echo(fd, 20);
                t.went_back(fd, "inherited-by-fork");
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                ask(fd, 40);
                t.meet("end");
            },
        )
        .demoted(),
        pair(
            "rights/own-connections-stay",
            "a forked child changes its rights when it has a connection of its own: that one stays as it was, and so does the next",
            |t| {
                let _parents = t.server();
                let child = t.child(|t| {
                    let listener = t.listener();
                    t.publish(listener);
                    let fd = t.accept(listener);
                    let memory = shared_memory();
                    sys::set_own_group().expect("setgid");
                    echo(fd, 20);
                    t.still_fast(fd);
                    let left = shared_memory().intersection(&memory).count() > 0;
                    assert!(left || !t.waits_until_fast(), "the child's own");
                    echo(t.accept(listener), 20);
                    "served".into()
                });
                t.log("child", child.join());
                t.meet("end");
            },
            |t| {
                let _parents = t.client();
                let addr = t.hear_addr();
                let fd = t.connect(addr);
                ask(fd, 20);
                t.still_fast(fd);
                ask(t.connect(addr), 20);
                t.meet("end");
            },
        )
        .skip(OF_ITS_OWN),
        pair(
            "rights/left-to-a-child",
            "a server forks a child for a connection, and closes it; the child changes its rights, and then serves it",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let [from, to] = sys::pipe();
                let fd = sys::accept(listener).expect("accept");
                let child = t.child(|t| {
                    let _ = sys::read(from, &mut [0]);
                    sys::set_own_group().expect("setgid");
                    t.warm_server(fd);
                    echo(fd, 20);
                    t.still_fast(fd);
                    format!("{:?}", sys::recv(fd, &mut [0; 1], 0))
                });
                t.log("close", sys::close(fd));
                let _ = sys::write(to, b"x");
                t.log("child", child.join());
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                t.warm_client(fd);
                ask(fd, 20);
                t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
        )
        .skip(OF_ITS_OWN),
        pair(
            "rights/left-to-a-child-in-its-call",
            "as rights/left-to-a-child, where the server closes the connection while the child changes its rights",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                t.log("left", (0..20).any(|_| leaves(t, listener)));
            },
            |t| {
                let addr = t.hear_addr();
                loop {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    if t.hear() == "serves" {
                        t.warm_client(fd);
                        ask(fd, 20);
                        t.log("shutdown", sys::shutdown(fd, libc::SHUT_WR));
                        t.log("end", sys::recv(fd, &mut [0; 1], 0));
                        return;
                    }
                    sys::close(fd).expect("close");
                }
            },
        )
        .skip(OF_ITS_OWN),
        pair(
            "rights/namespaces-of-a-second-thread",
            "unshare and setns into a user or mount namespace are EINVAL beside the library's thread, and the connection stays as it was",
            |t| {
                let fd = t.server();
                if t.waits_until_fast() {
                    let refused = Err(E(libc::EINVAL));
                    assert!(sys::unshare(libc::CLONE_NEWUSER) == refused, "unshare");
                    for (path, kind) in
                        [("user", libc::CLONE_NEWUSER), ("mnt", libc::CLONE_NEWNS)]
                    {
                        let own = sys::open(&format!("/proc/self/ns/{path}"), libc::O_RDONLY);
                        assert!(sys::setns(own.expect("open"), kind) == refused, "setns, {path}");
                    }
                }
                echo(fd, 20);
                t.still_fast(fd);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                ask(fd, 20);
                t.meet("end");
            },
        ),
        pair(
            "rights/effective-user-for-a-while",
            "a client of root's connects as another effective user, and is root again: a connection of these goes back to TCP, another stays as it was",
            |t| {
                let fds = t.servers(2);
                fds.iter().for_each(|fd| echo(*fd, 20));
                t.meet("root");
                fds.iter().for_each(|fd| echo(*fd, 20));
                t.still_fast(fds[0]);
                t.meet("end");
            },
            |t| {
                let own = sys::geteuid();
                if own == 0 {
                    sys::set_effective_user(65534).expect("seteuid");
                }
                let fds = t.clients(2);
                fds.iter().for_each(|fd| ask(*fd, 20));
                if own == 0 {
                    sys::set_effective_user(own).expect("seteuid");
                }
                // (The peer is asked for what it puts into the ring.)
                let option = sys::setopt(fds[1], libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2);
                t.log("option", option);
                t.meet("root");
                fds.iter().for_each(|fd| ask(*fd, 20));
                t.went_back(fds[1], "socket-option");
                t.still_fast(fds[0]);
                t.meet("end");
            },
        )
        .skip(OF_ANOTHER_USER),
        pair(
            "rights/effective-user-of-a-server",
            "a server of root's listens, and is another effective user when a second process connects: its connection is as ever",
            |t| {
                let own = sys::geteuid();
                let listener = t.listener();
                t.publish(listener);
                t.accept(listener);
                if own == 0 {
                    sys::set_effective_user(65534).expect("seteuid");
                }
                t.meet("changed");
                let second = t.accept(listener);
                echo(second, 20);
                t.still_fast(second);
                t.meet("end");
                if own == 0 {
                    sys::set_effective_user(own).expect("seteuid");
                }
            },
            |t| {
                let addr = t.hear_addr();
                t.connect(addr);
                t.meet("changed");
                let child = t.child(|t| {
                    let second = t.connect(addr);
                    ask(second, 20);
                    t.meet("end");
                    String::from("asked")
                });
                t.log("child", child.join());
            },
        )
        .skip(OF_ITS_OWN),
        pair(
            "rights/another-user-for-good",
            "a client of root's connects, becomes another user, and gives a connection to cat: exact bytes, soon",
            |t| {
                let fds = t.servers(2);
                t.meet("changed");
                fds.iter().for_each(|fd| ask(*fd, 20));
                t.log("shutdown", sys::shutdown(fds[1], libc::SHUT_WR));
                t.log("end", sys::recv(fds[1], &mut [0; 1], 0));
                t.meet("end");
            },
            |t| {
                let child = t.child(|t| {
                    let fds = t.clients(2);
                    if sys::geteuid() == 0 {
                        sys::set_user(65534).expect("setuid");
                    }
                    let began = sys::now_ns();
                    let cat = t.exec_on(fds[1], "/bin/cat", &["cat"], true);
                    sys::close(fds[1]).expect("close");
                    t.meet("changed");
                    echo(fds[0], 20);
                    let cat = sys::wait_child(cat);
                    let soon = sys::now_ns() - began < 8_000_000_000;
                    t.meet("end");
                    format!("{cat:?}, soon: {soon}")
                });
                t.log("child", child.join());
            },
        ),
        pair(
            "rights/vfork",
            "a vfork child of a forked child changes its rights: what the process itself has stays as it was",
            |t| {
                let fd = t.server();
                let child = t.child(|_| format!("{:?}", sys::vfork_child_setting_group()));
                t.log("child", child.join());
                echo(fd, 20);
                t.still_fast(fd);
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                ask(fd, 20);
                t.meet("end");
            },
        ),
    ]
}
