//! Signal handlers that do what they like: leave by `siglongjmp` in the middle of a call, use the
//! connection that their thread is using, come ten thousand times a second.

use crate::ctx::{Ctx, recv_exact, send_all};
use crate::scenario::{Scenario, pair};
use crate::scenarios::epoll::quiet;
use crate::sys::{self, E, Fd};
use libc::{MSG_DONTWAIT, POLLIN, SIGUSR1, SIGUSR2, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

mod chosen;
mod jumps;
mod placed;
mod timer;

use jumps::*;
use placed::*;
use timer::*;

/// Jumps out of each call.
const JUMPS: usize = 40;

pub fn list() -> Vec<Scenario> {
    vec![
        pair(
            "signals/jump-out-of-receives",
            "siglongjmp out of every call that waits for bytes, many times (alarm's time-out); then each gets its bytes",
            |t| {
                let fd = t.server();
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).expect("ADD");
                let calls = [RECEIVES, WAITS].concat();
                for &name in &calls {
                    t.log(name, jumps(name, fd, set));
                    t.tell("send");
                    t.log_text("then", &recv_exact(fd, 5));
                    // Behind the wait it has what it waits for.
                    t.tell("send");
                    t.log("not jumped", raw(name, fd, set) > 0);
                    let _ = sys::recv(fd, &mut [0; 16], MSG_DONTWAIT);
                }
                t.meet("end");
            },
            |t| {
                let fd = t.client();
                for _ in 0..2 * (RECEIVES.len() + WAITS.len()) {
                    t.wait("send");
                    send_all(fd, b"bytes");
                }
                t.meet("end");
            },
        ),
        pair(
            "signals/jump-out-of-a-wait-then-nested",
            "siglongjmp out of a wait for a set without accelerated connections; it comes to have one, and is put into another set: neither has events",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                let (inner, outer) =
                    (sys::epoll_create1(0).expect("epoll"), sys::epoll_create1(0).expect("epoll"));
                let add = |set, fd, data| {
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, data)
                };
                t.log("add", add(inner, fd, 1));
                t.log("jumps", jumps("epoll_wait", fd, inner));
                t.tell("jumped");
                t.warm_server(fd);
                t.log("nested", add(outer, inner, 2));
                t.is_back(fd);
                quiet(t, "quiet", outer);
                for _ in 0..3 {
                    t.log("inner", sys::epoll_wait(inner, 8, 0));
                    t.log("outer", sys::epoll_wait(outer, 8, 0));
                }
                t.tell("send");
                t.log("outer", sys::epoll_wait(outer, 8, 5000));
                t.log("inner", sys::epoll_wait(inner, 8, 5000));
                t.log_text("then", &recv_exact(fd, 5));
                t.log("inner", sys::epoll_wait(inner, 8, 0));
                t.meet("end");
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
                sys::connect(fd, addr).expect("connect");
                t.wait("jumped");
                t.warm_client(fd);
                t.wait("send");
                send_all(fd, b"bytes");
                t.meet("end");
            },
        )
        .demoted(),
        pair(
            "signals/jump-out-of-sends",
            "siglongjmp out of every call that waits for room; then the connection goes on",
            |t| {
                let fd = t.server();
                for _ in SENDS {
                    t.wait("drain");
                    let mut buf = vec![0u8; 1 << 16];
                    loop {
                        let n = sys::recv(fd, &mut buf, 0).expect("recv");
                        let end = buf[..n].iter().position(|b| *b != b'x');
                        if n == 0 || end.is_some() {
                            t.log("the end of it", end.map(|at| (buf[at], at + 1 == n)));
                            break;
                        }
                    }
                    send_all(fd, b"more");
                }
            },
            |t| {
                let fd = t.client();
                let file = sys::anonymous_file(&[b'x'; 65536]).expect("file");
                for &name in SENDS {
                    while sys::send(fd, &[b'x'; 65536], MSG_DONTWAIT).is_ok() {}
                    t.log(name, jumps(name, fd, file));
                    t.tell("drain");
                    send_all(fd, b"!");
                    t.log_text("then", &recv_exact(fd, 4));
                }
            },
        ),
        pair(
            "signals/jump-out-of-copies",
            "siglongjmp out of sends and receives at any moment, bytes under way: none is torn, doubled or out of order",
            |t| {
                let fd = t.server();
                tick(SIGUSR1, jump, libc::SA_RESTART);
                let mut order = Order::default();
                let mut buf = [0u8; 8192];
                let mut out = 0;
                loop {
                    let mut n = 0;
                    if catch(&mut |_| n = sys::recv(fd, &mut buf, 0).unwrap_or(usize::MAX)) {
                        out += 1;
                        order.some_are_missing();
                        if out == 10 {
                            send_all(fd, b"j");
                        }
                        continue;
                    }
                    if n == 0 || n == usize::MAX {
                        t.log("end", n);
                        break;
                    }
                    order.take(&buf[..n]);
                }
                untick();
                t.log("wrong", order.wrong);
                t.log("jumped", out >= 10);
            },
            |t| {
                let fd = t.client();
                tick(SIGUSR1, jump, libc::SA_RESTART);
                let (mut call, mut out) = (0, 0);
                let mut theirs = false;
                let until = sys::now_ns() + 300_000_000;
                'calls: while out < 20 || !theirs || sys::now_ns() < until {
                    let bytes = words(call, out);
                    call += 1;
                    let mut at = 0;
                    while at < bytes.len() {
                        let mut n = 0;
                        // What went before a jump nobody knows: at most all of it.
                        if catch(&mut |_| n = sys::send(fd, &bytes[at..], 0).unwrap_or(usize::MAX))
                        {
                            out += 1;
                            break;
                        }
                        if n == usize::MAX {
                            t.say("a send failed");
                            break 'calls;
                        }
                        at += n;
                    }
                    theirs |= sys::recv(fd, &mut [0], MSG_DONTWAIT).is_ok();
                }
                untick();
                t.log("jumped", out >= 20 && theirs);
            },
        ),
        pair(
            "signals/jump-out-of-looks",
            "siglongjmp at any moment out of receives that find nothing, polls and waits, while another thread talks over another connection to the same peer: that one goes on, and so does this one",
            |t| {
                let fds = t.servers(2);
                let (fd, other) = (fds[0], fds[1]);
                let talk = std::thread::spawn(move || {
                    let mut part = [0u8; 64];
                    while let Ok(n @ 1..) = sys::recv(other, &mut part, 0) {
                        send_all(other, &part[..n]);
                    }
                });
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).expect("ADD");
                // (Libc's own: a jump out of an allocation would leave its lock behind.)
                let look = |n: u64| {
                    let mut part = [0u8; 16];
                    let mut one = libc::pollfd { fd, events: POLLIN, revents: 0 };
                    let mut some = [libc::epoll_event { events: 0, u64: 0 }; 8];
                    // SAFETY: live buffers.
                    unsafe {
                        match n % 3 {
                            0 => _ = libc::recv(fd, part.as_mut_ptr().cast(), 16, MSG_DONTWAIT),
                            1 => _ = libc::poll(&mut one, 1, 0),
                            _ => _ = libc::epoll_wait(set, some.as_mut_ptr(), 8, 0),
                        }
                    }
                };
                make_timer(SIGUSR1, jump, libc::SA_RESTART);
                let (mut out, mut looks, mut took) = (0, 0, 1000);
                let until = sys::now_ns() + 1_000_000_000;
                // One signal for a look, at any moment of it: a slow machine would do nothing but
                // run handlers if they came by themselves.
                let at_most = until + 10_000_000_000 * u64::from(sys::patience());
                while (out < 200 && sys::now_ns() < at_most) || sys::now_ns() < until {
                    looks += 1;
                    let began = sys::now_ns();
                    interrupt_in(1 + looks * 7919 % (took * 5 / 4 + 1));
                    if catch(&mut |_| look(looks)) {
                        out += 1;
                    } else {
                        took = (took * 7 + (sys::now_ns() - began)) / 8;
                    }
                }
                untick();
                t.log("jumped", out >= 20);
                t.tell("jumped");
                t.log_text("then", &recv_exact(fd, 5));
                talk.join().expect("talks");
                t.meet("end");
            },
            |t| {
                let fds = t.clients(2);
                let (fd, other) = (fds[0], fds[1]);
                let mut said = 0;
                while !t.heard() {
                    send_all(other, b"said");
                    assert!(recv_exact(other, 4) == b"said");
                    said += 1;
                }
                t.wait("jumped");
                t.log("was answered", said > 20);
                send_all(fd, b"bytes");
                sys::shutdown(other, libc::SHUT_WR).expect("shutdown");
                t.meet("end");
            },
        ),
        pair(
            "signals/handler-sends-too",
            "a handler sends on the blocking connection that its thread is sending on, ten thousand times a second: all arrives, whole",
            |t| {
                let fd = t.server();
                let (mut theirs, mut main) = (Vec::new(), 0u64);
                let mut fine = true;
                let mut buf = vec![0u8; 1 << 16];
                loop {
                    let n = sys::recv(fd, &mut buf, 0).expect("recv");
                    if n == 0 {
                        break;
                    }
                    for &b in &buf[..n] {
                        if b & 0x80 != 0 {
                            theirs.push(b);
                        } else {
                            fine &= theirs.len() % 8 == 0 && u64::from(b) == main % 127;
                            main += 1;
                        }
                    }
                }
                t.log("the thread's bytes in order, no message torn", fine);
                t.log(
                    "messages whole",
                    theirs.len() % 8 == 0
                        && theirs
                            .chunks(8)
                            .enumerate()
                            .all(|(i, m)| m.iter().all(|b| *b == 0x80 | (i % 128) as u8)),
                );
                t.tell(&format!("{main} {}", theirs.len() / 8));
            },
            |t| {
                static FD: AtomicI32 = AtomicI32::new(-1);
                static SENT: AtomicUsize = AtomicUsize::new(0);
                static ERROR: AtomicI32 = AtomicI32::new(0);
                extern "C" fn send_one(_: c_int) {
                    sys::keeping_errno(|| {
                        let fd = FD.load(Relaxed);
                        if fd < 0 || ERROR.load(Relaxed) != 0 {
                            return;
                        }
                        let message = [0x80 | (SENT.load(Relaxed) % 128) as u8; 8];
                        match sys::send(fd, &message, 0) {
                            Ok(8) => drop(SENT.fetch_add(1, Relaxed)),
                            Ok(_) => ERROR.store(-1, Relaxed),
                            Err(E(e)) => ERROR.store(e, Relaxed),
                        }
                    });
                }
                let fd = t.client();
                FD.store(fd, Relaxed);
                tick(SIGUSR1, send_one, libc::SA_RESTART);
                let mut at = 0u64;
                let mut error = None;
                let until = sys::now_ns() + 400_000_000;
                while error.is_none() && (sys::now_ns() < until || SENT.load(Relaxed) < 50) {
                    let bytes: Vec<u8> = (at..at + 40_000).map(|n| (n % 127) as u8).collect();
                    match sys::send(fd, &bytes, 0) {
                        Ok(n) => at += n as u64,
                        Err(e) => error = Some(e),
                    }
                }
                FD.store(-1, Relaxed);
                untick();
                t.log("error", error);
                t.log("error in the handler", ERROR.load(Relaxed));
                let _ = sys::shutdown(fd, libc::SHUT_WR);
                t.log("all of it", t.hear() == format!("{at} {}", SENT.load(Relaxed)));
            },
        ),
        pair(
            "signals/handler-receives-too",
            "a handler takes bytes of the connection that its thread waits for in recv and epoll_wait: each byte comes once",
            |t| {
                static FD: AtomicI32 = AtomicI32::new(-1);
                static SET: AtomicI32 = AtomicI32::new(-1);
                static TAKEN: AtomicUsize = AtomicUsize::new(0);
                static SUM: AtomicUsize = AtomicUsize::new(0);
                static BAD: AtomicI32 = AtomicI32::new(0);
                extern "C" fn take(_: c_int) {
                    sys::keeping_errno(|| {
                        let fd = FD.load(Relaxed);
                        if fd < 0 {
                            return;
                        }
                        let mut buf = [0u8; 64];
                        // SAFETY: one event, one descriptor.
                        unsafe {
                            let mut p = libc::pollfd { fd, events: POLLIN, revents: 0 };
                            let _ = libc::poll(&mut p, 1, 0);
                            let mut e: libc::epoll_event = std::mem::zeroed();
                            if libc::epoll_wait(SET.load(Relaxed), &mut e, 1, 0) < 0 {
                                BAD.store(sys::errno().0, Relaxed);
                            }
                        }
                        match sys::recv(fd, &mut buf, MSG_DONTWAIT) {
                            Ok(n) => {
                                TAKEN.fetch_add(n, Relaxed);
                                SUM.fetch_add(buf[..n].iter().map(|b| *b as usize).sum(), Relaxed);
                            }
                            Err(E(libc::EAGAIN)) => {}
                            Err(E(e)) => BAD.store(e, Relaxed),
                        }
                    });
                }
                let fd = t.server();
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).expect("ADD");
                SET.store(set, Relaxed);
                FD.store(fd, Relaxed);
                tick(SIGUSR1, take, libc::SA_RESTART);
                let (mut got, mut sum) = (0, 0);
                let mut buf = [0u8; 4096];
                let mut turn = 0;
                let error = loop {
                    turn += 1;
                    if turn % 2 == 0
                        && let Err(e) = sys::epoll_wait(set, 1, 10_000)
                        && e != E(libc::EINTR)
                    {
                        break format!("epoll_wait: {e:?}");
                    }
                    match sys::recv(fd, &mut buf, if turn % 2 == 0 { MSG_DONTWAIT } else { 0 }) {
                        Ok(0) => break String::new(),
                        Ok(n) => {
                            got += n;
                            sum += buf[..n].iter().map(|b| *b as usize).sum::<usize>();
                        }
                        Err(E(libc::EAGAIN)) if turn % 2 == 0 => {}
                        Err(e) => break format!("recv: {e:?}"),
                    }
                };
                FD.store(-1, Relaxed);
                untick();
                t.log("error", error);
                t.log("error in the handler", BAD.load(Relaxed));
                let all = (got + TAKEN.load(Relaxed), sum + SUM.load(Relaxed));
                t.log("all, once", t.hear() == format!("{all:?}"));
            },
            |t| {
                let fd = t.client();
                let (mut sent, mut sum) = (0, 0usize);
                for i in 0..3000usize {
                    let part = vec![(i % 251) as u8; 1 + i % 700];
                    send_all(fd, &part);
                    sent += part.len();
                    sum += part.iter().map(|b| *b as usize).sum::<usize>();
                    if i % 50 == 0 {
                        sys::sleep_ms(1);
                    }
                }
                let _ = sys::shutdown(fd, libc::SHUT_WR);
                t.tell(&format!("{:?}", (sent, sum)));
            },
        ),
        pair(
            "signals/streams-under-a-timer",
            "megabytes both ways while a timer interrupts ten thousand times a second, with SA_RESTART",
            |t| stream(t, 1, 2, libc::SA_RESTART),
            |t| stream(t, 2, 1, libc::SA_RESTART),
        ),
        pair(
            "signals/streams-with-eintr",
            "the same without SA_RESTART: calls end with EINTR or a part, and no byte is lost",
            |t| stream(t, 1, 2, 0),
            |t| stream(t, 2, 1, 0),
        ),
        pair(
            "signals/handler-closes-and-connects",
            "a handler that talks over another connection, and at last closes it, while its thread waits in recv, poll and epoll_wait",
            |t| {
                let fds = t.servers(2);
                for _ in 0..3 {
                    t.log_text("asked", &recv_exact(fds[1], 5));
                    send_all(fds[1], b"yes");
                    t.tell("on");
                    t.wait("off");
                    send_all(fds[0], b"go");
                }
                t.log("eof", sys::recv(fds[1], &mut [0; 1], 0));
                t.meet("end");
            },
            |t| {
                static FD: AtomicI32 = AtomicI32::new(-1);
                static GOT: AtomicUsize = AtomicUsize::new(0);
                static CLOSES: AtomicBool = AtomicBool::new(false);
                extern "C" fn ask(_: c_int) {
                    sys::keeping_errno(|| {
                        let fd = FD.swap(-1, Relaxed);
                        if fd < 0 {
                            return;
                        }
                        let mut answer = [0u8; 3];
                        let _ = sys::send(fd, b"hello", 0);
                        let mut n = 0;
                        while n < 3 {
                            match sys::recv(fd, &mut answer[n..], 0) {
                                Ok(more) if more > 0 => n += more,
                                _ => return,
                            }
                        }
                        GOT.fetch_add(n, Relaxed);
                        if CLOSES.load(Relaxed) {
                            let _ = sys::close(fd);
                        }
                    });
                }
                let fds = t.clients(2);
                let set = sys::epoll_create1(0).expect("epoll");
                for fd in &fds {
                    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, *fd, libc::EPOLLIN as u32, *fd as u64)
                        .expect("ADD");
                }
                tick(SIGUSR1, ask, libc::SA_RESTART);
                for name in ["recv", "poll", "epoll_wait"] {
                    CLOSES.store(name == "epoll_wait", Relaxed);
                    FD.store(fds[1], Relaxed);
                    t.wait("on");
                    t.tell("off");
                    let mut r = -1;
                    while r < 0 {
                        r = raw(name, fds[0], set);
                    }
                    if name != "recv" {
                        t.log_text("then", &recv_exact(fds[0], 2));
                    }
                    t.log(name, r);
                }
                untick();
                t.log("the handler got", GOT.load(Relaxed));
                t.meet("end");
            },
        ),
        pair(
            "signals/masks",
            "a signal that only a wait's own mask lets through: its handler has run when ppoll, pselect or epoll_pwait says EINTR, and runs at no other call",
            |t| {
                static RAN: AtomicUsize = AtomicUsize::new(0);
                extern "C" fn count(_: c_int) {
                    RAN.fetch_add(1, Relaxed);
                }
                let fd = t.server();
                let set = sys::epoll_create1(0).expect("epoll");
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).expect("ADD");
                sys::on_signal(SIGUSR2, count, 0).expect("sigaction");
                sys::block_signals(&[SIGUSR2]).expect("mask");
                for name in ["ppoll", "pselect", "epoll_pwait"] {
                    for early in [true, false] {
                        let target = sys::gettid();
                        if early {
                            sys::tgkill(target, SIGUSR2).expect("tgkill");
                        }
                        let _ = sys::recv(fd, &mut [0; 1], MSG_DONTWAIT);
                        let before = RAN.load(Relaxed);
                        let later = std::thread::spawn(move || {
                            sys::sleep_ms(20);
                            if !early {
                                sys::tgkill(target, SIGUSR2).expect("tgkill");
                            }
                        });
                        let r = raw(name, fd, set);
                        let e = if r < 0 { sys::errno().0 } else { 0 };
                        t.log(name, (r, e == libc::EINTR, RAN.load(Relaxed) - before));
                        later.join().expect("thread");
                        t.log("blocked as before", RAN.load(Relaxed) - before);
                    }
                }
                t.meet("end");
            },
            |t| {
                let _fd = t.client();
                t.meet("end");
            },
        ),
        chosen::scenario(),
        pair(
            "signals/dispositions",
            "what sigaction and signal show of handlers, flags and masks; SA_RESETHAND, SA_NODEFER, an ignored and a default signal",
            dispositions,
            |t| {
                let fd = t.client();
                for _ in 0..3 {
                    t.wait("send");
                    send_all(fd, b"bytes");
                }
                t.meet("end");
            },
        ),
        pair(
            "signals/queued",
            "queued signals that come during calls: each once, in order, with what was sent with it",
            |t| {
                static LAST: AtomicI32 = AtomicI32::new(0);
                static WRONG: AtomicI32 = AtomicI32::new(0);
                extern "C" fn next(_: c_int, info: *const libc::siginfo_t, _: *const c_void) {
                    // SAFETY: the kernel's siginfo of a signal that sigqueue sent.
                    let (code, value) =
                        unsafe { ((*info).si_code, (*info).si_value().sival_ptr as usize as i32) };
                    if code != libc::SI_QUEUE || value != LAST.fetch_add(1, Relaxed) + 1 {
                        WRONG.fetch_add(1, Relaxed);
                    }
                }
                let fd = t.server();
                let signal = libc::SIGRTMIN() + 3;
                // SAFETY: all zero is a valid sigaction; the handler has the signature of
                // SA_SIGINFO.
                unsafe {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = next as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                    assert!(libc::sigaction(signal, &action, null_mut()) == 0);
                }
                let sender = std::thread::spawn(move || {
                    // Or they would be this thread's, too.
                    sys::block_signals(&[signal]).expect("mask");
                    for i in 1..=2000 {
                        // SAFETY: a signal to this process.
                        while unsafe {
                            libc::sigqueue(
                                libc::getpid(),
                                signal,
                                libc::sigval { sival_ptr: i as usize as *mut c_void },
                            )
                        } != 0
                        {
                            std::thread::yield_now();
                        }
                    }
                });
                let mut receiver = t.receiver(fd, 4);
                while receiver.received < 4 << 20 {
                    receiver.step(65_536, 0).expect("recv");
                }
                sender.join().expect("thread");
                while LAST.load(Relaxed) < 2000 {
                    sys::sleep_ms(1);
                }
                t.log("exact", receiver.error);
                t.log("signals", LAST.load(Relaxed));
                t.log("wrong", WRONG.load(Relaxed));
            },
            |t| {
                let fd = t.client();
                t.pour(fd, 4, 4 << 20);
            },
        ),
    ]
}

const RECEIVES: &[&str] = &["recv", "read", "readv", "recvfrom", "recvmsg", "recvmmsg", "splice"];
const WAITS: &[&str] =
    &["poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2"];
const SENDS: &[&str] = &["send", "write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile"];

/// One such call, as C makes it. (A jump passes over this frame, which has nothing to drop.)
/// `other`: the epoll set, or a file.
fn raw(name: &str, fd: Fd, other: Fd) -> isize {
    const LEN: usize = 65536;
    static mut BUFFER: [u8; LEN] = [b'x'; LEN];
    static PIPE: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
    let buf = (&raw mut BUFFER).cast::<c_void>();
    let few = if SENDS.contains(&name) { LEN } else { 16 };
    let mut iov = libc::iovec { iov_base: buf, iov_len: few };
    // SAFETY: each call gets valid pointers of this frame's or of `BUFFER`, whose bytes nobody
    // looks at.
    unsafe {
        let mut msg: libc::mmsghdr = std::mem::zeroed();
        msg.msg_hdr.msg_iov = &mut iov;
        msg.msg_hdr.msg_iovlen = 1;
        let mut p = libc::pollfd { fd, events: POLLIN, revents: 0 };
        let mut ev: libc::epoll_event = std::mem::zeroed();
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &mut set);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut mask);
        match name {
            "recv" => libc::recv(fd, buf, few, 0),
            "read" => libc::read(fd, buf, few),
            "readv" => libc::readv(fd, &iov, 1),
            "recvfrom" => libc::recvfrom(fd, buf, few, 0, null_mut(), null_mut()),
            "recvmsg" => libc::recvmsg(fd, &mut msg.msg_hdr, 0),
            "recvmmsg" => libc::recvmmsg(fd, &mut msg, 1, 0, null_mut()) as isize,
            "splice" => {
                if PIPE[0].load(Relaxed) < 0 {
                    let ends = sys::pipe();
                    PIPE[1].store(ends[1], Relaxed);
                    PIPE[0].store(ends[0], Relaxed);
                }
                libc::splice(fd, null_mut(), PIPE[1].load(Relaxed), null_mut(), 16, 0)
            }
            "poll" => libc::poll(&mut p, 1, -1) as isize,
            "ppoll" => libc::ppoll(&mut p, 1, null_mut(), &mask) as isize,
            "select" => libc::select(fd + 1, &mut set, null_mut(), null_mut(), null_mut()) as isize,
            "pselect" => {
                libc::pselect(fd + 1, &mut set, null_mut(), null_mut(), null_mut(), &mask) as isize
            }
            "epoll_wait" => libc::epoll_wait(other, &mut ev, 1, -1) as isize,
            "epoll_pwait" => libc::epoll_pwait(other, &mut ev, 1, -1, &mask) as isize,
            "epoll_pwait2" => libc::syscall(
                libc::SYS_epoll_pwait2,
                other,
                &mut ev,
                1,
                null_mut::<c_void>(),
                null_mut::<c_void>(),
                8,
            ) as isize,
            "send" => libc::send(fd, buf, few, 0),
            "write" => libc::write(fd, buf, few),
            "writev" => libc::writev(fd, &iov, 1),
            "sendto" => libc::sendto(fd, buf, few, 0, null_mut(), 0),
            "sendmsg" => libc::sendmsg(fd, &msg.msg_hdr, 0),
            "sendmmsg" => libc::sendmmsg(fd, &mut msg, 1, 0) as isize,
            "sendfile" => {
                let mut at = 0;
                libc::sendfile(fd, other, &mut at, few)
            }
            _ => panic!("no call {name}"),
        }
    }
}

/// Jumps out of so many calls that wait; how many have ended otherwise.
fn jumps(name: &'static str, fd: Fd, other: Fd) -> usize {
    // (The pipe of a splice is not made in a jump's way.)
    let mut others = 0;
    tick(SIGUSR1, jump, 0);
    let mut n = 0;
    while n < JUMPS {
        if catch(&mut |_| _ = raw(name, fd, other)) {
            n += 1;
        } else {
            others += 1;
            if others > 1000 {
                break;
            }
        }
    }
    untick();
    // A send may find room now and then.
    if SENDS.contains(&name) && n == JUMPS { 0 } else { others }
}

fn dispositions(t: &Ctx) {
    static RAN: AtomicUsize = AtomicUsize::new(0);
    static DEPTH: AtomicI32 = AtomicI32::new(0);
    extern "C" fn count(_: c_int) {
        RAN.fetch_add(1, Relaxed);
    }
    extern "C" fn once_more(signal: c_int) {
        if DEPTH.fetch_add(1, Relaxed) == 0 {
            let _ = sys::tgkill(sys::gettid(), signal);
        }
        RAN.fetch_add(1, Relaxed);
    }
    let show = |signal| {
        // SAFETY: all zero is valid, and filled.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            assert!(libc::sigaction(signal, std::ptr::null(), &mut now) == 0);
            let name = match now.sa_sigaction {
                libc::SIG_DFL => "default",
                libc::SIG_IGN => "ignored",
                at if at == count as *const () as usize => "count",
                at if at == once_more as *const () as usize => "once more",
                _ => "?",
            };
            let masked = libc::sigismember(&now.sa_mask, libc::SIGHUP);
            (name, now.sa_flags & !0x0400_0000, masked)
        }
    };
    // Before the first socket, and with one.
    sys::on_signal(libc::SIGHUP, count, libc::SA_RESTART | libc::SA_NODEFER).expect("sigaction");
    let fd = t.server();
    t.log("HUP", show(libc::SIGHUP));
    // SAFETY: a handler's address is a valid disposition.
    let before = unsafe { libc::signal(SIGUSR2, count as *const () as usize) };
    t.log("before", before == libc::SIG_DFL);
    t.log("USR2", show(SIGUSR2));
    // SAFETY: as above.
    let before = unsafe { libc::signal(SIGUSR2, libc::SIG_IGN) };
    t.log("before", before == count as *const () as usize);
    t.log("USR2", show(SIGUSR2));
    let _ = sys::tgkill(sys::gettid(), SIGUSR2);
    t.log("ran", RAN.load(Relaxed));
    // Reset when it is called, in a wait and elsewhere.
    for wait in [false, true] {
        sys::on_signal(SIGUSR2, count, libc::SA_RESETHAND).expect("sigaction");
        t.log("USR2", show(SIGUSR2));
        let target = sys::gettid();
        if wait {
            let other = std::thread::spawn(move || {
                sys::sleep_ms(30);
                let _ = sys::tgkill(target, SIGUSR2);
            });
            t.log("recv", sys::recv(fd, &mut [0; 5], 0));
            other.join().expect("thread");
        } else {
            let _ = sys::tgkill(target, SIGUSR2);
        }
        t.log("ran", RAN.load(Relaxed));
        t.log("USR2", show(SIGUSR2).0);
    }
    // Not blocked while it runs.
    sys::on_signal(libc::SIGHUP, once_more, libc::SA_NODEFER | libc::SA_RESTART)
        .expect("sigaction");
    let target = sys::gettid();
    let other = std::thread::spawn(move || {
        sys::sleep_ms(30);
        let _ = sys::tgkill(target, libc::SIGHUP);
    });
    let got = std::thread::spawn(move || other.join());
    let before = RAN.load(Relaxed);
    t.tell("send");
    t.log_text("recv", &recv_exact(fd, 5));
    let _ = got.join();
    while RAN.load(Relaxed) < before + 2 {
        sys::sleep_ms(1);
    }
    t.log("ran", RAN.load(Relaxed) - before);
    // Ignored and default: nothing interrupts.
    sys::default_signal(SIGUSR2);
    for signal in [libc::SIGWINCH, libc::SIGURG] {
        t.log("not set", show(signal).0);
        let other = std::thread::spawn(move || {
            sys::sleep_ms(10);
            let _ = sys::tgkill(target, signal);
        });
        t.tell("send");
        t.log_text("recv", &recv_exact(fd, 5));
        other.join().expect("thread");
    }
    // system() ignores two for a time, and puts back what was.
    sys::on_signal(libc::SIGINT, count, 0).expect("sigaction");
    t.log("system", sys::system("true"));
    t.log("INT", show(libc::SIGINT));
    let before = RAN.load(Relaxed);
    let _ = sys::tgkill(sys::gettid(), libc::SIGINT);
    t.log("ran", RAN.load(Relaxed) - before);
    t.meet("end");
}
