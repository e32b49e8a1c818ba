//! The process has no address space left: what it is, it stays; what begins is on TCP; and when
//! there is memory again all is as before.

use crate::ctx::{Ctx, all_blocked, await_bytes, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Fd};
use libc::{EPOLLIN, POLLIN};

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "exhausted/calls",
            "no address space is left: calls on accelerated connections, of 5,000 descriptors and 300 buffers, new sets and connections",
            |t| {
                sys::provide_memory();
                let listener = t.listener();
                t.publish(listener);
                let fds = [t.accept(listener), t.accept(listener)];
                let all = crowd(&fds);
                let set: Vec<(Fd, i16)> = all.iter().map(|fd| (*fd, POLLIN)).collect();
                let ready = |timeout_ms| sys::poll(&set, timeout_ms).map(|(n, _)| n);
                sys::refuse_memory(true);
                for _ in 0..3 {
                    t.log("poll, nothing", ready(0));
                    t.tell("go");
                    await_bytes(fds[1], 1000);
                    t.log("poll", ready(1000));
                    t.log("select", sys::select_many(&all, 1000));
                    t.log("in many buffers", through_many(fds[1]));
                    t.log("poll, nothing for a while", ready(20));
                }
                let epoll = sys::epoll_create1(0).expect("epoll_create1");
                for fd in fds {
                    t.log("add", sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, EPOLLIN as u32, fd as u64));
                }
                t.tell("go");
                await_bytes(fds[1], 1000);
                t.log("epoll_wait", sys::epoll_wait(epoll, 8, 1000).map(|e| e.len()));
                t.log("again in many buffers", through_many(fds[1]));
                t.tell("connect");
                let fd = sys::accept(listener).expect("accept");
                for _ in 0..200 {
                    let ask = recv_exact(fd, 8);
                    send_all(fd, &ask);
                }
                t.log("close", (sys::close(fd), sys::close(epoll)));
                sys::refuse_memory(false);
                t.went_back(fds[1], "no-memory");
                t.tell("connect");
                let fd = t.accept(listener);
                send_all(fd, b"as before");
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fds = [t.connect(addr), t.connect(addr)];
                for turn in 0..4 {
                    t.wait("go");
                    t.pour(fds[1], turn, 1000);
                    t.drain(fds[1], turn, 1000);
                }
                t.wait("connect");
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                for i in 0..200u64 {
                    send_all(fd, &i.to_ne_bytes());
                    assert!(recv_exact(fd, 8) == i.to_ne_bytes(), "echo {i}");
                }
                t.log("end of it", sys::recv(fd, &mut [0; 8], 0));
                t.wait("connect");
                let fd = t.connect(addr);
                t.log_text("then", &recv_exact(fd, 9));
                t.meet("end");
            },
        ),
        pair(
            "exhausted/from-the-start",
            "no address space is left when the first socket is made, at both ends",
            |t| {
                without();
                let fd = t.server();
                t.drain(fd, 1, 300_000);
                t.pour(fd, 2, 300_000);
                t.log("child", t.child(|_| format!("{:?}", sys::send(fd, b"from the child", 0))).join());
                t.log("end", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                without();
                let fd = t.client();
                t.pour(fd, 1, 300_000);
                t.drain(fd, 2, 300_000);
                t.log_text("child", &recv_exact(fd, 14));
                t.log("close", sys::close(fd));
            },
        )
        .any_path(),
        pair(
            "exhausted/small-stack",
            "a thread with the smallest stack that there is makes each call, in small parts and large, and takes the connection back to TCP",
            |t| {
                let fds = t.servers(3);
                t.log("calls", sys::on_small_stack(small_calls, fds[0], fds[1]));
                t.log("large", sys::on_small_stack(large_calls, fds[2], -1));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(3);
                for fd in fds {
                    // To the end, which its server shuts down for sending.
                    let mut buffer = vec![0; 1 << 16];
                    let mut total = 0;
                    let end = loop {
                        match sys::recv(fd, &mut buffer, 0) {
                            Ok(0) => break "EOF",
                            Ok(n) => {
                                total += n;
                                if total == 1 {
                                    send_all(fd, b"?");
                                }
                            }
                            Err(_) => break "an error",
                        }
                    };
                    t.log("got", (total, end));
                }
                t.meet("end");
            },
        )
        .demoted(),
        pair(
            "exhausted/slots",
            "as many connections between two processes as a channel carries, and one more: it stays on TCP until there is room",
            |t| {
                sys::set_nofile_limit(5000).expect("setrlimit");
                let listener = t.listener();
                t.publish(listener);
                let accept = |_| {
                    let fd = sys::accept(listener).expect("accept");
                    let word = recv_exact(fd, 5);
                    send_all(fd, &word);
                    fd
                };
                let fds: Vec<Fd> = (0..SLOTS).map(accept).collect();
                let mut word = b"again".to_vec();
                while word == b"again" {
                    for fd in &fds {
                        word = recv_exact(*fd, 5);
                        send_all(*fd, &word);
                    }
                }
                let more = accept(0);
                for _ in 0..10 {
                    let ask = recv_exact(more, 8);
                    send_all(more, &ask);
                }
                t.expect_reason(more, &[("shm", "channel-full")]);
                t.still_fast(fds[SLOTS - 1]);
                t.tell("make room");
                t.log("end", (sys::recv(fds[0], &mut [0; 1], 0), sys::close(fds[0])));
                t.tell("closed");
                t.warm_server(more);
                t.still_fast(more);
                t.meet("end");
            },
            |t| {
                sys::set_nofile_limit(5000).expect("setrlimit");
                let addr = t.hear_addr();
                let connect = |_| {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    send_all(fd, b"hello");
                    recv_exact(fd, 5);
                    fd
                };
                let fds: Vec<Fd> = (0..SLOTS).map(connect).collect();
                let mut word = b"again";
                loop {
                    for fd in &fds {
                        send_all(*fd, word);
                        recv_exact(*fd, 5);
                    }
                    if word == b"moved" {
                        break;
                    }
                    if !t.waits_until_fast() || t.count_fast() == SLOTS {
                        word = b"moved";
                    }
                }
                let more = connect(0);
                for _ in 0..10 {
                    send_all(more, b"as it is");
                    recv_exact(more, 8);
                }
                t.wait("make room");
                t.log("close", sys::close(fds[0]));
                t.wait("closed");
                t.warm_client(more);
                t.meet("end");
            },
        )
        .skip(&[
            ("rdma", "each connection locks memory"),
            ("switch", "thousands of connections change their path all the time"),
        ])
        .long(),
        pair(
            "exhausted/sets",
            "more epoll sets than can have accelerated connections, each with one: each reports what comes",
            |t| {
                let fds = t.many_servers(SETS + 2);
                let sets: Vec<Fd> = fds.iter().map(|fd| {
                    let set = sys::epoll_create1(0).expect("epoll");
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, *fd, EPOLLIN as u32, 1).expect("ADD");
                    set
                }).collect();
                // (Which of them is one too many depends on who was accelerated first.)
                while t.count_fast() > SETS {
                    sys::sleep_ms(1);
                }
                t.tell("send");
                let told = |set: &&Fd| sys::epoll_wait(**set, 1, 10_000) == Ok(vec![(EPOLLIN as u32, 1)]);
                t.log("told", sets.iter().filter(told).count());
                t.meet("end");
            },
            |t| say_when_told(t, SETS + 2),
        )
        .any_path()
        .long(),
        pair(
            "exhausted/threads",
            "more threads that wait at once than have a place to sleep: each gets what it waits for",
            |t| {
                let fds = t.many_servers(THREADS + 2);
                let threads =
                    all_blocked(fds.into_iter().map(|fd| move || recv_exact(fd, 1)));
                t.tell("send");
                let got = threads.into_iter().map(|thread| thread.join().expect("thread"));
                t.log("got", got.filter(|byte| byte == b"!").count());
                t.meet("end");
            },
            |t| say_when_told(t, THREADS + 2),
        )
        .any_path()
        .long(),
        pair(
            "exhausted/peers",
            "more processes have connections to one than it has accelerated peers: all are served, and when one has gone another has its place",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let mut fds: Vec<Fd> =
                    (0..PEERS + 2).map(|_| sys::accept(listener).expect("accept")).collect();
                for left in [PEERS + 2, PEERS + 1] {
                    loop {
                        for fd in &fds {
                            send_all(*fd, b"ask");
                            assert!(recv_exact(*fd, 3) == b"ask");
                        }
                        if !t.waits_until_fast() || t.count_fast() == PEERS {
                            break;
                        }
                    }
                    t.log("served", fds.len() == left);
                    // One that is accelerated has the place that another is to get.
                    let at = fds.iter().position(|fd| t.sends_fast(*fd)).unwrap_or(0);
                    t.log("close", sys::close(fds.swap_remove(at)));
                }
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let echo = |_: &Ctx| {
                    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                    sys::connect(fd, addr).expect("connect");
                    let mut word = [0; 3];
                    while let Ok(n @ 1..) = sys::recv(fd, &mut word, 0) {
                        send_all(fd, &word[..n]);
                    }
                    String::new()
                };
                let _children: Vec<_> = (0..PEERS + 2).map(|_| t.child(echo)).collect();
                t.meet("end");
            },
        )
        .skip(&[("rdma", "within a host: between hosts the limit is of links")])
        .any_path()
        .long(),
    ]
}

/// So many clients, each of which sends a byte when the server is ready.
fn say_when_told(t: &Ctx, count: usize) {
    let fds = t.many_clients(count);
    t.wait("send");
    fds.iter().for_each(|fd| send_all(*fd, b"!"));
    t.meet("end");
}

/// Of one process (docs/manual/limits.md): epoll sets with accelerated connections, threads that
/// sleep with a place of their own, peer processes.
const SETS: usize = 128;
const THREADS: usize = 128;
const PEERS: usize = 64;

/// Of one channel (docs/manual/limits.md).
const SLOTS: usize = 4095;

static LARGE: [u8; 1 << 20] = [7; 1 << 20];

/// Sends 1 byte, hears 1, and asks for readiness in each way.
extern "C" fn small_calls(fd: Fd, other: Fd) -> i32 {
    let mut byte = [1u8; 1];
    let at = byte.as_mut_ptr().cast();
    let mut p = libc::pollfd { fd, events: POLLIN, revents: 0 };
    let mut event = libc::epoll_event { events: EPOLLIN as u32, u64: 1 };
    let mut done = 0;
    // SAFETY: libc's calls with their arguments.
    unsafe {
        done += i32::from(libc::send(fd, at, 1, 0) == 1);
        done += i32::from(libc::poll(&mut p, 1, -1) == 1);
        let set = libc::epoll_create1(0);
        done += i32::from(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) == 0);
        done += i32::from(libc::epoll_wait(set, &mut event, 1, -1) == 1);
        let mut bits = [0u64; 16];
        bits[fd as usize / 64] = 1 << (fd % 64);
        let none = std::ptr::null_mut();
        done +=
            i32::from(libc::select(fd + 1, bits.as_mut_ptr().cast(), none, none, none.cast()) == 1);
        done += i32::from(libc::recv(fd, at, 1, 0) == 1);
        done += i32::from(libc::close(set) == 0);
        done += i32::from(libc::shutdown(fd, libc::SHUT_WR) == 0);
        done += i32::from(libc::shutdown(other, libc::SHUT_WR) == 0);
    }
    done
}

/// Sends a megabyte, so that much of it is under way when an option takes the connection back to
/// TCP; then a file.
extern "C" fn large_calls(fd: Fd, _: Fd) -> i32 {
    let mut done = 0;
    // SAFETY: libc's calls with their arguments.
    unsafe {
        done += i32::from(
            libc::send(fd, LARGE.as_ptr().cast(), LARGE.len(), 0) == LARGE.len() as isize,
        );
        let file = libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY);
        let mut left = 100_000;
        while left > 0 {
            let n = libc::sendfile(fd, file, std::ptr::null_mut(), left);
            if n <= 0 {
                break;
            }
            left -= n as usize;
        }
        done += i32::from(left == 0);
        let on = 1i32;
        let (at, len) = ((&raw const on).cast(), size_of::<i32>() as u32);
        done += i32::from(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMP, at, len) == 0);
        done += i32::from(
            libc::send(fd, LARGE.as_ptr().cast(), LARGE.len(), 0) == LARGE.len() as isize,
        );
        done += i32::from(libc::shutdown(fd, libc::SHUT_WR) == 0);
        libc::close(file);
    }
    done
}

fn without() {
    sys::provide_memory();
    sys::refuse_memory(true);
}

/// As many descriptors as the limit lets be, at most 5,000: an empty pipe's, and these in their
/// midst and at their end.
pub fn crowd(fds: &[Fd]) -> Vec<Fd> {
    let most = (sys::nofile_limit().1 - 200).min(5000);
    sys::set_nofile_limit(most + 100).expect("setrlimit");
    let [from, _] = sys::pipe();
    let mut all: Vec<Fd> = (2..most - 50).map(|_| sys::dup(from).expect("dup")).collect();
    all.insert(all.len() / 2, fds[0]);
    all.extend(&fds[1..]);
    all
}

/// Receives 1000 bytes into 300 buffers and sends them back out of these.
fn through_many(fd: Fd) -> (bool, bool) {
    let mut buffers = [[0u8; 4]; 300];
    let mut parts: Vec<&mut [u8]> = buffers.iter_mut().map(|b| &mut b[..]).collect();
    let got = sys::readv(fd, &mut parts);
    let parts: Vec<&[u8]> = buffers[..250].iter().map(|b| &b[..]).collect();
    (got == Ok(1000), sys::writev(fd, &parts) == Ok(1000))
}
