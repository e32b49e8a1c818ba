//! poll, ppoll, select and pselect.

use crate::ctx::{Ctx, await_bytes, blocked, recv_exact, send_all};
use crate::scenario::{Scenario, alone, pair};
use crate::sys::{self, E, Fd, Sets};
use libc::{EINTR, POLLIN, POLLOUT, POLLRDHUP, SIGALRM, SIGUSR1};
use std::sync::atomic::{AtomicI32, Ordering};

static SIGNALS: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Calls `wait` in this thread while another thread sends it a signal until the call has returned.
pub fn interrupted<T: Send>(signal: i32, wait: impl FnOnce() -> T) -> T {
    let target = sys::gettid();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::sleep_ms(30);
            while !done.load(Ordering::Acquire) {
                let _ = sys::tgkill(target, signal);
                sys::sleep_ms(20);
            }
        });
        let result = wait();
        done.store(true, Ordering::Release);
        result
    })
}

fn elapsed_ms(begin: u64) -> u64 {
    (sys::now_ns() - begin) / 1_000_000
}

type Polled = Result<(usize, Vec<i16>), E>;

fn names(result: Polled) -> Result<(usize, Vec<String>), E> {
    result.map(|(n, r)| (n, r.into_iter().map(sys::poll_names).collect()))
}

/// Puts a connection into more epoll sets than the library serves, which all stay: from then on it
/// is the kernel's, but for what is in the ring unread.
fn into_many_sets(fd: Fd) {
    for _ in 0..5 {
        let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, 0, 1).expect("EPOLL_CTL_ADD");
    }
}

/// A client that sends a byte for each `b`, puts its end into many sets at `l`, and ends with any
/// other word.
fn sender(t: &Ctx) {
    let fd = t.client();
    t.tell(&sys::getpid().to_string());
    loop {
        match t.hear().as_str() {
            "b" => send_all(fd, b"!"),
            "l" => into_many_sets(fd),
            _ => break,
        }
        t.tell("did");
    }
}

fn ask(t: &Ctx, what: &str) {
    t.tell(what);
    t.wait("did");
}

/// poll and select of a connection and of its duplicate.
fn both(t: &Ctx, label: &str, fds: [Fd; 2], timeout: i32) {
    let set = fds.map(|fd| (fd, POLLIN));
    t.log(label, names(sys::poll(&set, timeout)));
    let sets = Sets { read: fds.to_vec(), ..Sets::default() };
    let width = fds[0].max(fds[1]) + 1;
    t.log(label, sys::select(width, &sets, Some(timeout.into())).map(|r| (r.0, r.1.read.len())));
}

/// Waits for room, as long as it takes; true: there is some.
const ROOM: [(&str, fn(Fd) -> bool); 4] = [
    ("poll", |fd| sys::await_events(fd, POLLOUT, -1) == POLLOUT),
    ("select", |fd| {
        let sets = Sets { write: vec![fd], ..Sets::default() };
        sys::select(fd + 1, &sets, None).map(|r| r.0) == Ok(1)
    }),
    ("epoll, level", |fd| epoll_out(fd, 0)),
    ("epoll, edge", |fd| epoll_out(fd, libc::EPOLLET as u32)),
];

fn epoll_out(fd: Fd, more: u32) -> bool {
    let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).expect("epoll_create1");
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT as u32 | more, 1)
        .expect("EPOLL_CTL_ADD");
    sys::epoll_wait(set, 8, -1) == Ok(vec![(libc::EPOLLOUT as u32, 1)])
}

/// A client that says nothing.
fn silent_client(t: &Ctx) {
    let _fd = t.client();
    t.meet("end");
}

/// What select is asked of one that waits for input.
fn reading(fd: Fd) -> Sets {
    Sets { read: vec![fd], ..Sets::default() }
}

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "poll/left-in-the-ring",
            "a connection and its duplicate, when unread bytes are where the kernel does not see them",
            |t| {
                let fd = t.server();
                let _peer = t.hear();
                let fds = [fd, sys::dup(fd).expect("dup")];
                both(t, "quiet", fds, 0);
                ask(t, "b");
                ask(t, "l");
                await_bytes(fd, 1);
                into_many_sets(fd);
                both(t, "left", fds, 5000);
                t.log("recv", sys::recv(fds[1], &mut [0; 8], 0));
                both(t, "read", fds, 20);
                let waiter = blocked(move || names(sys::poll(&fds.map(|fd| (fd, POLLIN)), 10_000)));
                ask(t, "b");
                t.log("woke", waiter.join().expect("thread"));
                both(t, "new", fds, 5000);
                t.log("close", sys::close(fds[0]));
                t.log("the other", names(sys::poll(&[(fds[1], POLLIN)], 0)));
                t.tell("x");
            },
            sender,
        ),
        pair(
            "poll/fetched-back",
            "bytes that the library gets back from the peer are reported once they are there, and not when they are read",
            |t| {
                let fd = t.server();
                let peer: i32 = t.hear().parse().expect("a pid");
                let fds = [fd, sys::dup(fd).expect("dup")];
                ask(t, "b");
                await_bytes(fd, 1);
                t.log("stop", sys::kill(peer, libc::SIGSTOP));
                into_many_sets(fd);
                let waiter = blocked(move || {
                    let ready = names(sys::poll(&fds.map(|fd| (fd, POLLIN)), 10_000));
                    (ready, sys::recv(fds[1], &mut [0; 8], libc::MSG_DONTWAIT))
                });
                t.log("continue", sys::kill(peer, libc::SIGCONT));
                t.log("came", waiter.join().expect("thread"));
                both(t, "read", fds, 20);
                ask(t, "b");
                both(t, "new", fds, 5000);
                t.tell("x");
            },
            sender,
        ),
        pair(
            "poll/fetched-back-while-a-thread-receives",
            "a receive that waits for what the library gets back from the peer sleeps",
            |t| {
                let fd = t.server();
                let peer: i32 = t.hear().parse().expect("a pid");
                ask(t, "b");
                await_bytes(fd, 1);
                t.log("first", sys::recv(fd, &mut [0; 8], libc::MSG_PEEK));
                t.log("stop", sys::kill(peer, libc::SIGSTOP));
                into_many_sets(fd);
                let begin = sys::now_ns();
                // Waits for the second byte too, which nobody has sent yet: plain TCP sleeps just
                // as well.
                let waiter = blocked(move || sys::recv(fd, &mut [0; 2], libc::MSG_WAITALL));
                t.log("sleeps", elapsed_ms(begin) < 4000);
                t.log("continue", sys::kill(peer, libc::SIGCONT));
                ask(t, "b");
                t.log("came", waiter.join().expect("thread"));
                t.tell("x");
            },
            sender,
        ),
        pair(
            "poll/left-in-the-ring-child",
            "a forked child polls and selects a connection with bytes left in the ring",
            |t| {
                let fd = t.server();
                let _peer = t.hear();
                ask(t, "b");
                ask(t, "l");
                await_bytes(fd, 1);
                let child = t.child(|_| {
                    let set = [(fd, POLLIN)];
                    let sets = reading(fd);
                    let first = names(sys::poll(&set, 5000));
                    let select = sys::select(fd + 1, &sets, Some(5000)).map(|r| r.0);
                    recv_exact(fd, 1);
                    format!("{first:?} {select:?} {:?}", names(sys::poll(&set, 20)))
                });
                t.log("child", child.join());
                t.log("quiet", names(sys::poll(&[(fd, POLLIN)], 20)));
                ask(t, "b");
                t.log("parent", names(sys::poll(&[(fd, POLLIN)], 5000)));
                t.tell("x");
            },
            sender,
        ),
        pair(
            "poll/while-another-thread-sends",
            "a thread polls a new connection for reading, another one sends on it many times, then the answer comes",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                for _ in 0..80 {
                    recv_exact(fd, 64);
                    t.tell("got");
                }
                send_all(fd, b"answer");
                t.log("end", sys::recv(fd, &mut [0; 1], 0));
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                let sets = reading(fd);
                let poller = blocked(move || names(sys::poll(&[(fd, POLLIN)], 20_000)));
                let selecter = blocked(move || sys::select(fd + 1, &sets, Some(20_000)).map(|r| r.0));
                for _ in 0..80 {
                    send_all(fd, &[7; 64]);
                    t.wait("got");
                }
                t.log("poll", poller.join().expect("thread"));
                t.log("select", selecter.join().expect("thread"));
                t.log_text("answer", &recv_exact(fd, 6));
            },
        )
        .any_path(),
        pair(
            "poll/mixed",
            "sockets, pipes, negative and closed fds in one poll: each with its own revents",
            |t| {
                let fds = t.servers(2);
                let [from, to] = sys::pipe();
                let event = sys::eventfd(0);
                // Not the lowest free number: on that a descriptor of the library's may stand for a
                // moment.
                let gone = sys::dup2(0, 200).expect("dup2");
                sys::close(gone).expect("close");
                let set = [
                    (fds[0], POLLIN | POLLOUT),
                    (-1, POLLIN),
                    (from, POLLIN),
                    (gone, POLLIN),
                    (fds[1], POLLIN),
                    (event, POLLIN),
                    (to, POLLOUT),
                ];
                t.log("quiet", names(sys::poll(&set, 0)));
                t.tell("data");
                await_bytes(fds[1], 4);
                t.log("one socket", names(sys::poll(&set, 0)));
                sys::write(to, b"x").expect("write");
                t.log("and the pipe", names(sys::poll(&set, 0)));
                t.log("with ppoll", names(sys::ppoll(&set, None, None)));
                t.log_text("data", &recv_exact(fds[1], 4));
                t.log("pipe only", names(sys::poll(&set[1..], -1)));
            },
            |t| {
                let fds = t.clients(2);
                t.wait("data");
                send_all(fds[1], b"data");
                t.log("eof", sys::recv(fds[1], &mut [0; 8], 0));
            },
        ),
        pair(
            "poll/wakes",
            "a poll that waits wakes when the peer sends, whatever else is in the set",
            |t| {
                let fds = t.servers(3);
                let [from, _to] = sys::pipe();
                for i in [2usize, 0, 1] {
                    t.tell(&i.to_string());
                    let set = [
                        (fds[0], POLLIN),
                        (from, POLLIN),
                        (fds[1], POLLIN),
                        (-5, POLLIN),
                        (fds[2], POLLIN),
                    ];
                    t.log("poll", names(sys::poll(&set, 10_000)));
                    t.log_text("data", &recv_exact(fds[i], 1));
                }
                t.tell("end");
            },
            |t| {
                let fds = t.clients(3);
                loop {
                    let word = t.hear();
                    let Ok(i) = word.parse::<usize>() else { break };
                    sys::sleep_ms(20);
                    send_all(fds[i], b"!");
                }
            },
        ),
        pair(
            "poll/a-pipe-wakes",
            "a poll over sockets and a pipe wakes for the pipe",
            |t| {
                let fds = t.servers(2);
                let [from, to] = sys::pipe();
                let writer = std::thread::spawn(move || {
                    sys::sleep_ms(30);
                    sys::write(to, b"x")
                });
                t.log(
                    "poll",
                    names(sys::poll(
                        &[(fds[0], POLLIN), (from, POLLIN), (fds[1], POLLIN)],
                        10_000,
                    )),
                );
                t.log("write", writer.join().expect("thread"));
                t.meet("end");
            },
            |t| {
                let _fds = t.clients(2);
                t.meet("end");
            },
        ),
        pair(
            "poll/timeouts",
            "0 returns at once, ms are kept, nfds 0 is a sleep",
            |t| {
                let fd = t.server();
                let set = [(fd, POLLIN)];
                let timed = |label: &str, low, high, wait: &dyn Fn() -> Polled| {
                    let (said, in_time) = sys::takes_ms(low..high, wait);
                    t.log(label, names(said));
                    t.log("in time", in_time);
                };
                timed("0", 0, 50, &|| sys::poll(&set, 0));
                timed("80", 80, 1000, &|| sys::poll(&set, 80));
                let ms = |ms| Some(sys::timespec_ms(ms));
                timed("ppoll 60", 60, 1000, &|| sys::ppoll(&set, ms(60), None));
                timed("nothing, 50", 50, 1000, &|| sys::poll(&[], 50));
                timed("only negative, 50", 50, 1000, &|| sys::poll(&[(-1, POLLIN)], 50));
                let bad = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 2_000_000_000,
                };
                t.log("bad timespec", names(sys::ppoll(&set, Some(bad), None)));
                let bad = libc::timespec {
                    tv_sec: -1,
                    tv_nsec: 0,
                };
                t.log(
                    "negative timespec",
                    names(sys::ppoll(&set, Some(bad), None)),
                );
                t.meet("end");
            },
            silent_client,
        ),
        pair(
            "poll/event-bits",
            "POLLRDNORM and POLLWRNORM, the same fd twice, events that nobody asked for",
            |t| {
                let fd = t.server();
                await_bytes(fd, 1);
                let set = [
                    (fd, libc::POLLRDNORM),
                    (fd, libc::POLLWRNORM),
                    (fd, libc::POLLRDBAND | libc::POLLWRBAND | libc::POLLPRI),
                    (fd, 0),
                    (
                        fd,
                        POLLIN | POLLOUT | POLLRDHUP | libc::POLLRDNORM | libc::POLLWRNORM,
                    ),
                ];
                t.log("poll", names(sys::poll(&set, 0)));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                send_all(fd, b"x");
                t.meet("end");
            },
        ),
        pair(
            "poll/interrupted",
            "EINTR by a signal in poll and ppoll, with SA_RESTART too; the mask of ppoll is atomic",
            |t| {
                let fd = t.server();
                let set = [(fd, POLLIN)];
                sys::on_signal(SIGUSR1, count, 0).expect("sigaction");
                t.log(
                    "poll",
                    interrupted(SIGUSR1, || names(sys::poll(&set, 10_000))),
                );
                t.log(
                    "ppoll",
                    interrupted(SIGUSR1, || names(sys::ppoll(&set, None, None))),
                );
                sys::on_signal(SIGUSR1, count, libc::SA_RESTART).expect("sigaction");
                t.log(
                    "poll, SA_RESTART",
                    interrupted(SIGUSR1, || names(sys::poll(&set, 10_000))),
                );
                sys::block_signals(&[SIGUSR1]).expect("block");
                SIGNALS.store(0, Ordering::Relaxed);
                sys::tgkill(sys::gettid(), SIGUSR1).expect("tgkill");
                t.log(
                    "blocked",
                    (names(sys::poll(&set, 20)), SIGNALS.load(Ordering::Relaxed)),
                );
                let open = sys::sigset(&[]);
                t.log("ppoll opens it", names(sys::ppoll(&set, None, Some(&open))));
                t.log("delivered", SIGNALS.load(Ordering::Relaxed));
                let closed = sys::sigset(&[SIGUSR1, SIGALRM]);
                sys::unblock_signals(&[SIGUSR1]).expect("unblock");
                t.log(
                    "ppoll keeps it out",
                    names(sys::ppoll(&set, Some(sys::timespec_ms(20)), Some(&closed))),
                );
                t.meet("end");
            },
            silent_client,
        ),
        pair(
            "poll/many-fds",
            "300 fds, three of them connections: the right ones are reported",
            |t| {
                let fds = t.servers(3);
                let pipes: Vec<[Fd; 2]> = (0..148).map(|_| sys::pipe()).collect();
                let mut set: Vec<(Fd, i16)> = Vec::new();
                set.push((fds[0], POLLIN));
                for p in &pipes {
                    set.push((p[0], POLLIN));
                    set.push((-1, POLLIN));
                }
                set.push((fds[1], POLLIN));
                set.push((fds[2], POLLIN));
                t.tell("go");
                await_bytes(fds[0], 1);
                await_bytes(fds[2], 1);
                sys::write(pipes[70][1], b"x").expect("write");
                let (n, r) = sys::poll(&set, 1000).expect("poll");
                let at: Vec<usize> = r
                    .iter()
                    .enumerate()
                    .filter(|(_, r)| **r != 0)
                    .map(|(i, _)| i)
                    .collect();
                t.log("ready", (n, at));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(3);
                t.wait("go");
                send_all(fds[0], b"a");
                send_all(fds[2], b"c");
                t.meet("end");
            },
        ),
        pair(
            "poll/thousands",
            "as many descriptors as the limit lets be, 5,000 at most, two of them connections, by poll and by select",
            |t| {
                let fds = t.servers(2);
                let all = crate::scenarios::exhausted::crowd(&fds);
                let set: Vec<(Fd, i16)> = all.iter().map(|fd| (*fd, POLLIN)).collect();
                let ready = |timeout_ms| {
                    let (n, r) = sys::poll(&set, timeout_ms).expect("poll");
                    let which: Vec<usize> = fds.iter().map(|fd| set.iter().position(|s| s.0 == *fd).expect("there")).collect();
                    (n, which.iter().map(|i| r[*i]).collect::<Vec<_>>())
                };
                t.log("none", ready(0));
                t.tell("go");
                await_bytes(fds[1], 1);
                t.log("one", ready(1000));
                t.tell("go");
                await_bytes(fds[0], 1);
                t.log("both", ready(1000));
                t.log("select", sys::select_many(&all, 1000));
                for fd in &fds {
                    recv_exact(*fd, 1);
                }
                t.log("none again", (ready(20), sys::select_many(&all, 20)));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                for fd in fds.iter().rev() {
                    t.wait("go");
                    send_all(*fd, b"a");
                }
                t.meet("end");
            },
        ),
        alone(
            "poll/errors",
            "EFAULT and EINVAL of poll and select; nothing is open",
            |t| {
                t.log("closed", names(sys::poll(&[(900, POLLIN), (901, 0)], 0)));
                // Not the lowest free number: on that a descriptor of the library's may stand for a
                // moment.
                let gone = sys::dup2(0, 200).expect("dup2");
                sys::close(gone).expect("close");
                let sets = reading(gone);
                t.log(
                    "select of a closed fd",
                    sys::select(gone + 1, &sets, Some(0)).map(|r| r.0),
                );
                t.log(
                    "pselect of a closed fd",
                    sys::pselect(gone + 1, &sets, Some(0), None).map(|r| r.0),
                );
                t.log("select of -1", sys::select(-1, &Sets::default(), Some(0)));
                t.log(
                    "select of nothing",
                    sys::select(0, &Sets::default(), Some(20)).map(|r| r.0),
                );
                t.log(
                    "negative time",
                    sys::select(0, &Sets::default(), Some(-1000)).map(|r| r.0),
                );
            },
        ),
        pair(
            "poll/several-threads",
            "two threads polling one socket both wake",
            |t| {
                let fd = t.server();
                let waiters: Vec<_> = (0..2)
                    .map(|_| std::thread::spawn(move || sys::await_events(fd, POLLIN, 10_000)))
                    .collect();
                sys::sleep_ms(20);
                t.tell("go");
                for w in waiters {
                    t.log("woke", sys::poll_names(w.join().expect("thread")));
                }
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"x");
                t.meet("end");
            },
        ),
        pair(
            "poll/request-response",
            "a thousand requests, each found by poll, ppoll, select or pselect in turn",
            |t| {
                let fd = t.server();
                for i in 0..1000u32 {
                    let ready = match i % 4 {
                        0 => sys::poll(&[(fd, POLLIN)], 10_000).map(|r| r.0),
                        1 => sys::ppoll(&[(fd, POLLIN)], Some(sys::timespec_ms(10_000)), None)
                            .map(|r| r.0),
                        2 => {
                            let sets = reading(fd);
                            sys::select(fd + 1, &sets, Some(10_000)).map(|r| r.0)
                        }
                        _ => {
                            let sets = reading(fd);
                            sys::pselect(fd + 1, &sets, None, None).map(|r| r.0)
                        }
                    };
                    assert!(ready == Ok(1), "{ready:?} at {i}");
                    let ask = recv_exact(fd, 4);
                    assert!(ask == i.to_ne_bytes());
                    send_all(fd, &ask);
                }
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                for i in 0..1000u32 {
                    send_all(fd, &i.to_ne_bytes());
                    assert!(sys::await_events(fd, POLLIN, 10_000) == POLLIN);
                    assert!(recv_exact(fd, 4) == i.to_ne_bytes());
                }
                t.say("1000 answers");
            },
        ),
        pair(
            "poll/room-after-a-large-write",
            "a large write goes without EAGAIN, then room is waited for by poll, select or epoll: it comes when the peer reads",
            |t| {
                for fd in t.servers(ROOM.len()) {
                    t.wait("read");
                    let mut receiver = t.receiver(fd, 5);
                    let mut buf = vec![0; 65536];
                    while let Ok(n @ 1..) = sys::recv(fd, &mut buf, 0) {
                        receiver.accept(&buf[..n]);
                    }
                    // How much it was depends on the path.
                    t.log("exact", receiver.verdict().ends_with("exact"));
                }
            },
            |t| {
                for ((name, wait), fd) in ROOM.iter().zip(t.clients(ROOM.len())) {
                    let mut sender = t.sender(fd, 5);
                    // Up to 4 MiB, or where there is no room for the moment: nothing was refused
                    // yet.
                    while sender.sent < 4 << 20 && sys::await_events(fd, POLLOUT, 0) == POLLOUT {
                        let _ = sender.step(16384, libc::MSG_DONTWAIT);
                    }
                    let wait = *wait;
                    let waiter = blocked(move || wait(fd));
                    t.tell("read");
                    t.log(name, waiter.join().expect("thread"));
                    sys::close(fd).expect("close");
                }
            },
        ),
        pair(
            "select/mixed",
            "select with sockets and pipes in all three sets; the sets are left as the kernel leaves them",
            |t| {
                let fds = t.servers(2);
                let [from, to] = sys::pipe();
                let sets = Sets {
                    read: vec![fds[0], fds[1], from],
                    write: vec![fds[0], to],
                    except: vec![fds[0], fds[1]],
                };
                let width = fds[1].max(to).max(from) + 1;
                let show = |s: &Sets| {
                    let name = |fd: &Fd| match *fd {
                        x if x == fds[0] => "first",
                        x if x == fds[1] => "second",
                        x if x == from => "pipe out",
                        _ => "pipe in",
                    };
                    [&s.read, &s.write, &s.except]
                        .map(|l| l.iter().map(name).collect::<Vec<_>>().join(" "))
                };
                let (n, left, _) = sys::select(width, &sets, Some(0)).expect("select");
                t.log("quiet", (n, show(&left)));
                t.tell("data");
                await_bytes(fds[1], 4);
                let (n, left, _) = sys::select(width, &sets, None).expect("select");
                t.log("data", (n, show(&left)));
                sys::write(to, b"x").expect("write");
                let (n, left) = sys::pselect(width, &sets, Some(1000), None).expect("pselect");
                t.log("and the pipe", (n, show(&left)));
                let only_read = Sets {
                    read: vec![fds[0]],
                    ..Sets::default()
                };
                let wait = || sys::select(width, &only_read, Some(70)).expect("select");
                let ((n, left, rest), in_time) = sys::takes_ms(70..1000, wait);
                t.log("nothing for 70 ms", (n, show(&left), rest));
                t.log("in time", in_time);
                let narrow = Sets {
                    read: vec![fds[1]],
                    ..Sets::default()
                };
                t.log(
                    "nfds too small",
                    sys::select(fds[1], &narrow, Some(0)).map(|r| r.0),
                );
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                t.wait("data");
                send_all(fds[1], b"data");
                t.meet("end");
            },
        ),
        pair(
            "select/wakes",
            "select wakes when the peer sends, the remaining time is left in the timeout; EOF is readable",
            |t| {
                let fd = t.server();
                let sets = reading(fd);
                t.tell("go");
                let (n, _, rest) = sys::select(fd + 1, &sets, Some(20_000)).expect("select");
                t.log("woke", (n, (5_000..20_000).contains(&rest)));
                t.log_text("data", &recv_exact(fd, 1));
                t.tell("close");
                t.log("eof", sys::pselect(fd + 1, &sets, None, None).map(|r| r.0));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                sys::sleep_ms(20);
                send_all(fd, b"x");
                t.wait("close");
                sys::sleep_ms(20);
                t.log("close", sys::close(fd));
            },
        ),
        pair(
            "select/interrupted",
            "EINTR in select and pselect; the mask of pselect is atomic",
            |t| {
                let fd = t.server();
                let sets = reading(fd);
                sys::on_signal(SIGUSR1, count, libc::SA_RESTART).expect("sigaction");
                t.log(
                    "select",
                    interrupted(SIGUSR1, || {
                        sys::select(fd + 1, &sets, Some(10_000)).map(|r| r.0)
                    }),
                );
                t.log(
                    "pselect",
                    interrupted(SIGUSR1, || {
                        sys::pselect(fd + 1, &sets, None, None).map(|r| r.0)
                    }),
                );
                sys::block_signals(&[SIGUSR1]).expect("block");
                SIGNALS.store(0, Ordering::Relaxed);
                sys::tgkill(sys::gettid(), SIGUSR1).expect("tgkill");
                t.log("blocked", sys::select(fd + 1, &sets, Some(20)).map(|r| r.0));
                let open = sys::sigset(&[]);
                t.log(
                    "pselect opens it",
                    sys::pselect(fd + 1, &sets, None, Some(&open)).map(|r| r.0),
                );
                t.log("delivered", SIGNALS.load(Ordering::Relaxed));
                t.log("eintr", E(EINTR));
                t.meet("end");
            },
            silent_client,
        ),
    ]
}
