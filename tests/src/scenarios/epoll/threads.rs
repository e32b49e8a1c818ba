//! Threads, signals, time-outs and forks.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        obeyed(
            "epoll/moved-between-sets",
            "deleted from one set and added to another, back and forth, and by a duplicate: it stays where it is fast",
            |t, fd| {
                let twin = sys::dup(fd).expect("dup");
                let (a, b) = (set(), set());
                for _ in 0..50 {
                    for (set, fd) in [(a, fd), (b, fd), (a, twin), (b, twin)] {
                        add(set, fd, IN, fd as u64);
                        t.tell("b0");
                        let events = sys::epoll_wait(set, 8, 5000);
                        assert!(events == Ok(vec![(IN, fd as u64)]), "{events:x?}");
                        recv_exact(fd, 1);
                        t.wait("did");
                        sys::epoll_ctl(set, DEL, fd, 0, 0).expect("DEL");
                    }
                }
                t.still_fast(fd);
                show(t, "a", sys::epoll_wait(a, 8, 20));
                show(t, "b", sys::epoll_wait(b, 8, 20));
            },
        ),
        pair(
            "epoll/close-without-del",
            "a closed connection leaves the set; a new one under its number is not registered",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let e = set();
                let first = t.accept(listener);
                add(e, first, IN | RDHUP, 1);
                t.tell("data");
                t.wait("sent");
                await_bytes(first, 4);
                show(t, "before", sys::epoll_wait(e, 8, 0));
                t.log("close", sys::close(first));
                show(t, "closed", sys::epoll_wait(e, 8, 0));
                t.log("mod", sys::of_closed(|| sys::epoll_ctl(e, MOD, first, IN, 1)));
                t.tell("next");
                let second = t.accept(listener);
                t.log("same number", first == second);
                t.tell("data");
                t.wait("sent");
                await_bytes(second, 4);
                show(t, "not registered", sys::epoll_wait(e, 8, 20));
                t.log("mod", sys::epoll_ctl(e, MOD, second, IN, 2));
                t.log("add", sys::epoll_ctl(e, ADD, second, IN, 2));
                show(t, "registered", sys::epoll_wait(e, 8, 0));
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let first = t.connect(addr);
                t.wait("data");
                send_all(first, b"data");
                t.tell("sent");
                t.wait("next");
                let second = t.connect(addr);
                t.wait("data");
                send_all(second, b"more");
                t.tell("sent");
                t.meet("end");
            },
        ),
        obeyed(
            "epoll/closed-with-a-dup-open",
            "close of a registered fd whose dup is open: the registration lives on with the old data, as in the kernel",
            |t, fd| {
                let twin = sys::dup(fd).expect("dup");
                let e = set();
                add(e, fd, IN, 1);
                t.log("close", sys::close(fd));
                ask(t, "b0");
                await_bytes(twin, 1);
                show(t, "still reported", sys::epoll_wait(e, 8, 1000));
                let del = || sys::epoll_ctl(e, DEL, fd, 0, 0);
                t.log("del by the old number", sys::of_closed(del));
                t.log("recv", sys::recv(twin, &mut [0; 8], 0));
                show(t, "read", sys::epoll_wait(e, 8, 0));
                t.log("close the dup", sys::close(twin));
                show(t, "gone", sys::epoll_wait(e, 8, 0));
            },
        ),
        pair(
            "epoll/threads-on-one-set",
            "four threads in epoll_wait on one set with ONESHOT: every request is answered once",
            |t| {
                let fds = Arc::new(t.servers(6));
                let e = set();
                for (i, fd) in fds.iter().enumerate() {
                    add(e, *fd, IN | ONESHOT, i as u64);
                }
                let answered = Arc::new(AtomicUsize::new(0));
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        let (fds, answered) = (fds.clone(), answered.clone());
                        std::thread::spawn(move || {
                            while answered.load(Ordering::Relaxed) < 1200 {
                                for (_, i) in sys::epoll_wait(e, 2, 50).expect("epoll_wait") {
                                    let fd = fds[i as usize];
                                    let ask = recv_exact(fd, 4);
                                    send_all(fd, &ask);
                                    answered.fetch_add(1, Ordering::Relaxed);
                                    sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, i).expect("MOD");
                                }
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.log("answered", answered.load(Ordering::Relaxed));
                t.meet("end");
            },
            |t| {
                let fds = t.clients(6);
                for round in 0..200u32 {
                    for fd in &fds {
                        send_all(*fd, &round.to_ne_bytes());
                    }
                    for fd in &fds {
                        assert!(recv_exact(*fd, 4) == round.to_ne_bytes());
                    }
                }
                t.meet("end");
            },
        ),
        pair(
            "epoll/threads-edge",
            "two threads in epoll_wait on one ET set: one arrival wakes at least one, and no byte is missed",
            |t| {
                let fd = t.server();
                sys::set_nonblocking(fd, true);
                let e = set();
                add(e, fd, IN | ET, 1);
                let got = Arc::new(AtomicUsize::new(0));
                let threads: Vec<_> = (0..2)
                    .map(|_| {
                        let got = got.clone();
                        std::thread::spawn(move || {
                            while got.load(Ordering::Acquire) < 500 {
                                if sys::epoll_wait(e, 4, 50).expect("epoll_wait").is_empty() {
                                    continue;
                                }
                                while let Ok(n) = sys::recv(fd, &mut [0; 64], 0) {
                                    got.fetch_add(n, Ordering::AcqRel);
                                    sys::send(fd, &vec![7; n], MSG_NOSIGNAL).expect("send");
                                }
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("thread");
                }
                t.log("bytes", got.load(Ordering::Relaxed));
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..500 {
                    send_all(fd, b"x");
                    recv_exact(fd, 1);
                }
                t.meet("end");
            },
        ),
        pair(
            "epoll/add-from-another-thread",
            "ADD and MOD by another thread wake a thread that already waits",
            |t| {
                let fds = t.servers(2);
                ask(t, "b0");
                ask(t, "b1");
                await_bytes(fds[0], 1);
                await_bytes(fds[1], 1);
                let e = set();
                add(e, fds[1], 0, 1);
                for step in 0..2 {
                    let waiter = blocked(move || sys::epoll_wait(e, 8, 10_000));
                    if step == 0 {
                        t.log("add", sys::epoll_ctl(e, ADD, fds[0], IN, 2));
                    } else {
                        t.log("mod", sys::epoll_ctl(e, MOD, fds[1], IN, 3));
                    }
                    show(t, "woke", waiter.join().expect("thread"));
                    t.log("del", sys::epoll_ctl(e, DEL, fds[0], 0, 0).is_ok());
                }
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
        pair(
            "epoll/interrupted",
            "EINTR in epoll_wait, also with SA_RESTART; epoll_pwait's mask is atomic",
            |t| {
                static SEEN: AtomicI32 = AtomicI32::new(0);
                extern "C" fn count(_: libc::c_int) {
                    SEEN.fetch_add(1, Ordering::Relaxed);
                }
                let fd = t.server();
                let e = set();
                add(e, fd, IN, 1);
                sys::on_signal(SIGUSR1, count, 0).expect("sigaction");
                show(
                    t,
                    "wait",
                    interrupted(SIGUSR1, || sys::epoll_wait(e, 8, 10_000)),
                );
                sys::on_signal(SIGUSR1, count, libc::SA_RESTART).expect("sigaction");
                show(
                    t,
                    "wait for ever, SA_RESTART",
                    interrupted(SIGUSR1, || sys::epoll_wait(e, 8, -1)),
                );
                sys::block_signals(&[SIGUSR1]).expect("block");
                SEEN.store(0, Ordering::Relaxed);
                sys::tgkill(sys::gettid(), SIGUSR1).expect("tgkill");
                show(t, "blocked", sys::epoll_wait(e, 8, 20));
                show(t, "pwait without a mask", sys::epoll_pwait(e, 8, 20, None));
                t.log("not delivered", SEEN.load(Ordering::Relaxed));
                let open = sys::sigset(&[]);
                show(t, "pwait opens it", sys::epoll_pwait(e, 8, -1, Some(&open)));
                t.log("delivered", SEEN.load(Ordering::Relaxed));
                show(t, "quiet", sys::epoll_pwait(e, 8, 20, Some(&open)));
                ask(t, "b0");
                show(t, "data", sys::epoll_pwait(e, 8, -1, Some(&open)));
                t.tell("x");
            },
            |t| obedient(t, 1),
        ),
        obeyed(
            "epoll/timeouts",
            "0 at once, ms kept, -1 for ever, epoll_pwait2 in ns",
            |t, fd| {
                let e = set();
                add(e, fd, IN, 1);
                let timed = |label: &str, low: u64, high: u64, wait: &dyn Fn() -> Events| {
                    let (events, in_time) = sys::takes_ms(low..high, wait);
                    show(t, label, events);
                    t.log("in time", in_time);
                };
                timed("0", 0, 50, &|| sys::epoll_wait(e, 8, 0));
                timed("90", 90, 1000, &|| sys::epoll_wait(e, 8, 90));
                timed("1", 1, 200, &|| sys::epoll_wait(e, 8, 1));
                timed("pwait 50", 50, 1000, &|| sys::epoll_pwait(e, 8, 50, None));
                timed("pwait2 30", 30, 1000, &|| {
                    sys::epoll_pwait2(e, 8, Some(sys::timespec_ms(30)))
                });
                timed("pwait2 0", 0, 50, &|| {
                    sys::epoll_pwait2(e, 8, Some(sys::timespec_ms(0)))
                });
                let bad = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: -1,
                };
                show(t, "pwait2 bad", sys::epoll_pwait2(e, 8, Some(bad)));
                t.tell("b0");
                show(t, "for ever", sys::epoll_wait(e, 8, -1));
                t.wait("did");
                recv_exact(fd, 1);
                t.tell("b0");
                show(t, "pwait2 for ever", sys::epoll_pwait2(e, 8, None));
                t.wait("did");
            },
        ),
        obeyed(
            "epoll/inherited-by-fork",
            "a set and its connection are used by a forked child; the parent uses them afterwards",
            |t, fd| {
                let e = set();
                add(e, fd, IN, 1);
                t.tell("b0");
                let child = t.child(|_| {
                    let events = sys::epoll_wait(e, 8, 5000);
                    let byte = recv_exact(fd, 1);
                    format!("{events:x?} {byte:?} {:?}", sys::epoll_wait(e, 8, 0))
                });
                t.log("child", child.join());
                t.wait("did");
                show(t, "parent, quiet", sys::epoll_wait(e, 8, 0));
                ask(t, "b0");
                show(t, "parent", sys::epoll_wait(e, 8, 5000));
                t.log_text("byte", &recv_exact(fd, 1));
                t.went_back(fd, "inherited-by-fork");
            },
        )
        .demoted(),
        obeyed(
            "epoll/sets-made-after-fork",
            "a forked child closes what its parent has put into a set since",
            |t, fd| {
                let [from, to] = sys::pipe();
                let child = t.child(|_| {
                    let _ = sys::read(from, &mut [0; 1]);
                    format!("{:?}", sys::close(fd))
                });
                // Their memory is the parent's alone.
                let sets: Vec<Fd> = (0..500).map(|_| set()).collect();
                add(sets[499], fd, IN, 1);
                sys::write(to, b"x").expect("write");
                t.log("child", child.join());
                ask(t, "b0");
                show(t, "data", sys::epoll_wait(sets[499], 8, 5000));
            },
        ),
        pair(
            "epoll/looked-at-beside-a-sleeper",
            "a thread sleeps in a set at which another looks without waiting, now and then: whoever is told, nothing is missed",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                let e = set();
                add(e, fd, IN | ET, 1);
                let (say, hear) = std::sync::mpsc::channel();
                let takes = move |timeout| {
                    let events = sys::epoll_wait(e, 8, timeout).expect("epoll_wait");
                    events.iter().any(|_| sys::recv(fd, &mut [0; 1], MSG_DONTWAIT).is_ok())
                };
                let sleeper = std::thread::spawn(move || while say.send(takes(-1)).is_ok() {});
                let long = std::time::Duration::from_secs(5) * sys::patience();
                let mut missed = 0;
                for round in 0..BESIDE {
                    t.tell("go");
                    // (At all moments of the other's wake-up.)
                    let look_at = sys::now_ns() + round * 997 % 300_000;
                    while sys::now_ns() < look_at {
                        std::hint::spin_loop();
                    }
                    // (The sleeper alone hears what comes behind a byte that the other one took.)
                    let mut taken = round % 2 == 0 && takes(0);
                    while !taken {
                        // (It may hear of a byte that has been taken already.)
                        taken = hear.recv_timeout(long).unwrap_or_else(|_| {
                            missed += 1;
                            takes(0)
                        });
                    }
                }
                t.log("missed", missed);
                drop(hear);
                t.tell("end");
                sleeper.join().expect("sleeper");
            },
            |t| {
                let fd = t.client();
                for _ in 0..BESIDE {
                    t.wait("go");
                    send_all(fd, b"x");
                }
                t.wait("end");
                send_all(fd, b"x");
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "epoll/asleep-before-promotion",
            "threads that went to sleep in a set before it had an accelerated connection: each is woken while the others are busy",
            |t| {
                let e = set();
                let (say, hear) = std::sync::mpsc::channel();
                let released = Arc::new(std::sync::RwLock::new(()));
                let busy = released.write().expect("lock");
                let takes = |fd: Arc<AtomicI32>| {
                    let (say, released) = (say.clone(), released.clone());
                    move || loop {
                        sys::epoll_wait(e, 1, -1).expect("epoll_wait");
                        let mut byte = [0];
                        if sys::recv(fd.load(Ordering::SeqCst), &mut byte, MSG_DONTWAIT) == Ok(1) {
                            let _ = say.send(byte[0]);
                            drop(released.read());
                            return;
                        }
                    }
                };
                let at = Arc::new(AtomicI32::new(-1));
                let threads: Vec<_> = (0..4).map(|_| blocked(takes(at.clone()))).collect();
                let fd = t.server();
                at.store(fd, Ordering::SeqCst);
                add(e, fd, IN | ET, 1);
                let long = std::time::Duration::from_secs(5) * sys::patience();
                for _ in 0..threads.len() {
                    t.tell("go");
                    t.log("taken", hear.recv_timeout(long));
                }
                // (Not by the watchdog, which takes back what nobody reads.)
                t.still_fast(fd);
                drop(busy);
                for thread in threads {
                    thread.join().expect("thread");
                }
            },
            |t| {
                let fd = t.client();
                for i in 0..4 {
                    t.wait("go");
                    send_all(fd, &[b'a' + i]);
                }
                t.log("eof", sys::recv(fd, &mut [0; 1], 0));
            },
        ),
        pair(
            "epoll/asleep-in-a-set-too-many",
            "a thread sleeps in a set that comes to have a connection when as many sets have one as the library serves",
            |t| {
                let fds = t.many_servers(SETS_SERVED + 1);
                let (last, others) = fds.split_last().expect("connections");
                for fd in others {
                    add(set(), *fd, IN, 1);
                }
                let (e, fd) = (set(), *last);
                let tid = Arc::new(AtomicI32::new(0));
                let own = tid.clone();
                let thread = blocked(move || {
                    own.store(sys::gettid(), Ordering::SeqCst);
                    sys::epoll_wait(e, 1, -1)
                });
                add(e, fd, IN, 2);
                t.log("sleeps", comes_to_sleep(tid.load(Ordering::SeqCst)));
                t.tell("go");
                show(t, "data", thread.join().expect("thread"));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("end");
            },
            |t| {
                let fds = t.many_clients(SETS_SERVED + 1);
                t.wait("go");
                send_all(fds[SETS_SERVED], b"data");
                t.wait("end");
            },
        )
        .any_path(),
        pair(
            "epoll/close-while-waiting",
            "another thread closes the connection that a waiter's set holds: the waiter just times out",
            |t| {
                let fds = t.servers(2);
                let e = set();
                add(e, fds[0], IN, 1);
                add(e, fds[1], IN, 2);
                let waiter = blocked(move || sys::epoll_wait(e, 8, 10_000));
                t.log("close", sys::close(fds[0]));
                ask(t, "b1");
                show(t, "the other wakes it", waiter.join().expect("thread"));
                t.tell("x");
            },
            |t| obedient(t, 2),
        ),
    ]
}
