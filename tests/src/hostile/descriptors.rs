//! Peers that give nasty descriptors, and use those they are given in every nasty way.
//!
//! Between two processes cross: the memory that they share, and one doorbell for each place where a
//! thread of the other's may sleep. All of them are open files that both hold. An attacker has a
//! real connection, and what his own library has of descriptors; he uses them by system calls of
//! his own, past the library.

use super::parts::{dial, listener};
use super::{
    ATTACKER, Not, Place, Proc, ROOT, THIRD, Test, VICTIM, Verdict, expect, patience, skip,
};
use crate::ctx::{recv_exact, send_all};
use crate::sys::{self, E, Fd};
use std::io::BufRead;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    Test {
        name: "descriptors/full-doorbells-and-an-epoll-server",
        run: |place| doorbells_of_a_client(place, "serve-epoll", "fill"),
    },
    Test {
        name: "descriptors/empty-doorbells-and-an-epoll-server",
        run: |place| doorbells_of_a_client(place, "serve-epoll", "empty"),
    },
    Test {
        name: "descriptors/full-doorbells-and-redis",
        run: |place| doorbells_and_redis(place, "fill"),
    },
    Test {
        name: "descriptors/full-doorbells-and-a-client",
        run: |place| doorbells_of_a_server(place, "fill"),
    },
    Test { name: "descriptors/shared-memory-and-flags", run: memory_and_flags },
    Test { name: "descriptors/slow-files-for-an-advert", run: slow_files_for_an_advert },
    Test { name: "descriptors/slow-files-from-a-squatter", run: slow_files_from_a_squatter },
    Test {
        name: "descriptors/slow-files-from-a-client",
        run: |place| slow_files_from_a_peer(place, "linger"),
    },
    Test {
        name: "descriptors/many-files-from-a-client",
        run: |place| slow_files_from_a_peer(place, "many"),
    },
    Test {
        name: "descriptors/fuse-files-from-a-client",
        run: |place| slow_files_from_a_peer(place, "fuse"),
    },
    Test {
        name: "descriptors/odd-files-from-a-client",
        run: |place| slow_files_from_a_peer(place, "odd"),
    },
];

/// The programs of this file's tests; false: not one of them.
pub fn part(words: &[&str]) -> bool {
    let number = |text: &str| text.parse().expect("a port");
    match *words {
        ["ring-abuser", port, how] => abuse_as_client(number(port), how),
        ["ring-abuser-server", how] => abuse_as_server(how),
        ["two-servers", hostile, honest] => talk_to_two(number(hostile), number(honest)),
        ["pings", port] => pings(number(port)),
        ["serve-and-count"] => {
            counting();
            let _ = super::parts::part(&["serve-epoll"]);
        }
        ["talk-and-count", port] => {
            counting();
            talk(dial(number(port)));
        }
        ["pass-to-advert", port] => pass_to_advert(number(port)),
        ["squat", port] => squat(number(port)),
        ["pass-to-peer", port, what] => pass_to_peer(number(port), what),
        ["memory-abuser", port] => abuse_memory(number(port)),
        _ => return false,
    }
    true
}

// --------------------------------------------------------------------------------------- doorbells

/// A client sees to it that whoever rings one of its doorbells would have to wait, and sleeps.
fn doorbells_of_a_client(place: &Place, server: &str, how: &str) -> Verdict {
    let mut server = place.start(VICTIM, &[server]);
    let port = server.number("port")?;
    let third = place.stream(port)?;
    let mut attacker = abuser(place, port, how)?;
    attacker.await_line("abused")?;
    third.must_be_exact()?;
    server.must_live("the server")?;
    attacker.end_with(libc::SIGKILL);
    // Everything is as it was, for those who come later as well.
    place.stream(port)?.must_be_exact()?;
    server.must_rest("the server")
}

/// An attacker on shared memory with `port`, who has begun.
fn abuser(place: &Place, port: u16, how: &str) -> Result<Proc, Not> {
    // It never polls, so that it has to be rung for each time.
    let never_polls = |c: &mut std::process::Command| {
        c.env("NACC_POLL_MS", "0");
    };
    let mut attacker =
        place.start_with(ATTACKER, &["ring-abuser", &port.to_string(), how], never_polls);
    let local = attacker.number("local")?;
    place.await_fast(&attacker, local)?;
    attacker.order("go");
    Ok(attacker)
}

fn doorbells_and_redis(place: &Place, how: &str) -> Verdict {
    let Some(redis) = ["/usr/bin/redis-server", "/usr/local/bin/redis-server"]
        .into_iter()
        .find(|p| std::path::Path::new(p).exists())
    else {
        return skip("no redis-server");
    };
    let port = super::words::free_port();
    let words: Vec<String> = [
        redis,
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--daemonize",
        "no",
    ]
    .map(String::from)
    .to_vec();
    let mut server = place.start_program(VICTIM, &words, |_| ());
    let end = Instant::now() + patience();
    while sys::process_listeners(port) == 0
        && std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    {
        expect(Instant::now() < end, || "redis-server does not listen".into())?;
        sys::sleep_ms(10);
    }
    let mut third = place.start(THIRD, &["pings", &port.to_string()]);
    let local = third.number("local")?;
    place.await_fast(&third, local)?;
    let mut attacker = abuser(place, port, how)?;
    attacker.await_line("abused")?;
    third.order("more");
    third.await_line("more")?;
    attacker.end_with(libc::SIGKILL);
    third.order("more");
    third.await_line("more")?;
    server.must_live("redis-server")
}

/// The same of a server, whose client has another one.
fn doorbells_of_a_server(place: &Place, how: &str) -> Verdict {
    let mut honest = place.start(THIRD, &["serve-epoll"]);
    let honest_port = honest.number::<u16>("port")?;
    let never_polls = |c: &mut std::process::Command| {
        c.env("NACC_POLL_MS", "0");
    };
    let mut attacker = place.start_with(ATTACKER, &["ring-abuser-server", how], never_polls);
    let port = attacker.number::<u16>("port")?;
    let mut client =
        place.start(VICTIM, &["two-servers", &port.to_string(), &honest_port.to_string()]);
    for _ in 0..2 {
        let local = client.number("local")?;
        place.await_fast(&client, local)?;
    }
    attacker.order("go");
    attacker.await_line("abused")?;
    client.order("more");
    client.await_line("more")?;
    attacker.end_with(libc::SIGKILL);
    client.order("more");
    client.await_line("more")?;
    client.must_live("the client")
}

/// One that both a server that echoes and Redis answer to with as many bytes.
const PING: &[u8] = b"PING\r\n";
const PONG: usize = 7;

/// The answer: as long as the question from one that echoes, Redis's `+PONG\r\n` otherwise.
fn answered(fd: Fd) {
    let mut first = [0];
    while sys::recv(fd, &mut first, 0) == Err(E(libc::EINTR)) {}
    recv_exact(fd, if &first == b"+" { PONG - 1 } else { PING.len() - 1 });
}

/// Questions and answers until there is a line to read, which is returned.
fn talk_until_told(fd: Fd) -> String {
    let told = sys::await_events;
    while told(0, libc::POLLIN | libc::POLLHUP, 0) == 0 {
        send_all(fd, PING);
        answered(fd);
        sys::sleep_ms(1);
    }
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    line.trim().into()
}

fn abuse_as_client(port: u16, how: &str) {
    let fd = dial(port);
    if talk_until_told(fd) != "go" {
        return;
    }
    // Once more in between: what is made when it is first needed is there.
    for _ in 0..2 {
        abuse_doorbells(how);
        for _ in 0..100 {
            send_all(fd, PING);
            // It is not read: if the victim cannot ring, it never answers, which is for its other
            // peers to find.
            let _ = sys::await_events(fd, libc::POLLIN, 20);
            drain(fd);
        }
    }
    println!("abused");
    sleep_in_recv(fd);
}

fn drain(fd: Fd) {
    let mut bytes = [0; 4096];
    while matches!(sys::recv(fd, &mut bytes, libc::MSG_DONTWAIT), Ok(1..)) {}
}

/// Sleeps as a blocking call does, and is woken for news, until it is killed.
fn sleep_in_recv(fd: Fd) -> ! {
    let mut bytes = [0; 4096];
    while matches!(sys::recv(fd, &mut bytes, 0), Ok(1..) | Err(E(libc::EINTR))) {}
    loop {
        sys::sleep_ms(1000);
    }
}

fn abuse_as_server(how: &str) {
    let listener = listener();
    let fd = sys::accept(listener).expect("accept");
    let mut bytes = [0; 4096];
    while sys::await_events(0, libc::POLLIN, 0) == 0 {
        let _ = sys::recv(fd, &mut bytes, 0);
        let _ = sys::send(fd, PING, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    for _ in 0..50 {
        abuse_doorbells(how);
        // (It cannot be rung for any more.)
        let _ = sys::await_events(fd, libc::POLLIN, 20);
        drain(fd);
    }
    println!("abused");
    sleep_in_recv(fd);
}

/// A client that never waits for its first server, and has a second one.
fn talk_to_two(hostile: u16, honest: u16) {
    let one = dial(hostile);
    let two = dial(honest);
    loop {
        for _ in 0..100 {
            let _ = sys::send(one, PING, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            if sys::await_events(one, libc::POLLIN, 0) != 0 {
                drain(one);
            }
            send_all(two, PING);
            answered(two);
            sys::sleep_ms(1);
        }
        if sys::await_events(0, libc::POLLIN, 0) != 0 {
            let mut line = String::new();
            let _ = std::io::stdin().lock().read_line(&mut line);
            println!("{}", line.trim());
        }
    }
}

/// Asks for ever; each `more` is answered after a hundred answers more.
fn pings(port: u16) {
    let fd = dial(port);
    loop {
        let line = talk_until_told(fd);
        for _ in 0..100 {
            send_all(fd, PING);
            answered(fd);
        }
        println!("{line}");
    }
}

// ------------------------------------------------------------------------ the attacker's own calls

/// A system call that no library sees.
#[cfg(target_arch = "x86_64")]
fn raw(number: i64, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    let result: isize;
    // SAFETY: the system call convention; what the arguments lead to is the callers'.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") 0, in("r9") 0, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
#[cfg(not(target_arch = "x86_64"))]
fn raw(_: i64, _: [usize; 4]) -> isize {
    -(libc::ENOSYS as isize)
}

/// All descriptors of this process, also those that the library hides, by what they are.
fn all_descriptors(is: impl Fn(&str) -> bool) -> Vec<Fd> {
    let dir = std::fs::read_dir("/proc/self/fd").expect("/proc");
    let of = |entry: std::fs::DirEntry| {
        let link = std::fs::read_link(entry.path()).ok()?;
        is(&link.to_string_lossy()).then_some(())?;
        entry.file_name().to_str()?.parse().ok()
    };
    dir.flatten().filter_map(of).collect()
}

/// Every doorbell that this process has: those that others ring, and those that it would ring.
fn abuse_doorbells(how: &str) {
    for fd in all_descriptors(|link| link == "anon_inode:[eventfd]") {
        let n = fd as usize;
        raw(libc::SYS_fcntl, [n, libc::F_SETFL as usize, 0, 0]);
        match how {
            "fill" => {
                let text =
                    std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
                let count = text.lines().find_map(|l| {
                    u64::from_str_radix(l.strip_prefix("eventfd-count:")?.trim(), 16).ok()
                });
                let rest = (u64::MAX - 1).saturating_sub(count.unwrap_or(u64::MAX));
                if rest > 0 {
                    raw(libc::SYS_write, [n, &raw const rest as usize, 8, 0]);
                }
                complete_on(fd);
            }
            _ => {
                // As far as it goes: one at a time, of a counter that takes them so.
                raw(libc::SYS_fcntl, [n, libc::F_SETFL as usize, libc::O_NONBLOCK as usize, 0]);
                let mut count = 0u64;
                for _ in 0..1000 {
                    if raw(libc::SYS_read, [n, &raw mut count as usize, 8, 0]) < 0 {
                        break;
                    }
                }
                raw(libc::SYS_fcntl, [n, libc::F_SETFL as usize, 0, 0]);
            }
        }
    }
    if how == "empty" {
        // In place of those that the peers know: one that has nothing, and makes readers wait.
        let empty = raw(libc::SYS_eventfd2, [0, 0, 0, 0]) as Fd;
        for control in control_sockets() {
            for place in 0..=255u16 {
                pass(control, &place_message(place), &[empty]);
            }
        }
        raw(libc::SYS_close, [empty as usize, 0, 0, 0]);
    }
}

/// Adds one to an eventfd as the end of an AIO request does, which asks nobody.
fn complete_on(eventfd: Fd) {
    /// `struct iocb`.
    #[repr(C)]
    #[derive(Default)]
    struct Request {
        data: u64,
        key: u32,
        rw_flags: u32,
        opcode: u16,
        priority: i16,
        fd: u32,
        buffer: u64,
        bytes: u64,
        offset: i64,
        reserved: u64,
        flags: u32,
        resfd: u32,
    }
    const PREAD: u16 = 0;
    const RESFD: u32 = 1;
    let Ok(file) = std::fs::File::open("/proc/self/exe") else {
        return;
    };
    let mut context = 0usize;
    if raw(libc::SYS_io_setup, [1, &raw mut context as usize, 0, 0]) < 0 {
        return;
    }
    let mut buffer = [0u8; 16];
    let request = Request {
        opcode: PREAD,
        fd: file.as_raw_fd() as u32,
        buffer: buffer.as_mut_ptr() as u64,
        bytes: 16,
        flags: RESFD,
        resfd: eventfd as u32,
        ..Request::default()
    };
    let mut list = &raw const request;
    raw(libc::SYS_io_submit, [context, 1, &raw mut list as usize, 0]);
    // Waits for what is under way.
    raw(libc::SYS_io_destroy, [context, 0, 0, 0]);
}

/// The library's connections to its peers.
fn control_sockets() -> Vec<Fd> {
    let option = |fd: Fd, name: i32| {
        let (mut value, mut len) = (-1i32, 4u32);
        // (Five arguments: the length is behind the value.)
        // SAFETY: getsockopt(2) into two live integers.
        let r = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len)
        };
        (r == 0).then_some(value)
    };
    let is = |fd: &Fd| {
        option(*fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
            && option(*fd, libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET)
            && option(*fd, libc::SO_ACCEPTCONN) == Some(0)
    };
    all_descriptors(|link| link.starts_with("socket:")).into_iter().filter(is).collect()
}

/// `Message::Place` as it is on the wire.
fn place_message(place: u16) -> Vec<u8> {
    super::confined::message(6, &place.to_le_bytes())
}

fn pass(control: Fd, bytes: &[u8], fds: &[Fd]) -> isize {
    sys::with_fds(bytes, fds, |msg| {
        raw(
            libc::SYS_sendmsg,
            [
                control as usize,
                &raw const *msg as usize,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize,
                0,
            ],
        )
    })
}

// ----------------------------------------------------------------------------------- shared memory

/// A peer does to the memory files whatever can be done to a file, and turns on whatever a file can
/// have turned on.
fn memory_and_flags(place: &Place) -> Verdict {
    let mut server = place.start(VICTIM, &["serve-epoll"]);
    let port = server.number("port")?;
    let third = place.stream(port)?;
    let mut attacker = place.start(ATTACKER, &["memory-abuser", &port.to_string()]);
    let local = attacker.number("local")?;
    place.await_fast(&attacker, local)?;
    attacker.order("go");
    attacker.await_line("abused")?;
    third.must_be_exact()?;
    attacker.end_with(libc::SIGKILL);
    place.stream(port)?.must_be_exact()?;
    server.must_live("the server")?;
    server.must_rest("the server")
}

fn abuse_memory(port: u16) {
    let fd = dial(port);
    if talk_until_told(fd) != "go" {
        return;
    }
    // The library keeps no descriptor of the memory; by its mappings the kernel opens the files
    // again.
    let mut files = Vec::new();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    for line in maps
        .lines()
        .filter(|l| l.contains("memfd:netacc-channel") || l.contains("memfd:netacc-arena"))
    {
        let (range, _) = line.split_once(' ').expect("a range");
        let (from, to) = range
            .split_once('-')
            .and_then(|(a, b)| {
                Some((usize::from_str_radix(a, 16).ok()?, usize::from_str_radix(b, 16).ok()?))
            })
            .expect("a range");
        if let Ok(file) = std::fs::File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/map_files/{range}"))
        {
            files.push(file);
        }
        // All pages away, again and again: they come back as zeros.
        if line.contains("netacc-arena") {
            for _ in 0..20 {
                raw(libc::SYS_madvise, [from, to - from, libc::MADV_REMOVE as usize, 0]);
            }
        }
    }
    let shared =
        all_descriptors(|link| link == "anon_inode:[eventfd]" || link.starts_with("/memfd:netacc"));
    for n in files.iter().map(|f| f.as_raw_fd()).chain(shared).map(|n| n as usize) {
        raw(libc::SYS_ftruncate, [n, 0, 0, 0]);
        raw(libc::SYS_ftruncate, [n, 1 << 40, 0, 0]);
        raw(libc::SYS_fcntl, [n, 1033 /* F_ADD_SEALS */, 0x1f, 0]);
        raw(libc::SYS_fcntl, [n, 1024 /* F_SETLEASE */, libc::F_WRLCK as usize, 0]);
        raw(libc::SYS_flock, [n, libc::LOCK_EX as usize | libc::LOCK_NB as usize, 0, 0]);
        raw(libc::SYS_fchmod, [n, 0, 0, 0]);
        // A signal for whoever is asked for: the victim's group, if that were allowed.
        raw(libc::SYS_fcntl, [n, 10 /* F_SETSIG */, libc::SIGKILL as usize, 0]);
        raw(libc::SYS_fcntl, [n, 8 /* F_SETOWN */, usize::MAX, 0]);
        raw(libc::SYS_fcntl, [n, libc::F_SETFL as usize, libc::O_ASYNC as usize, 0]);
    }
    for _ in 0..20 {
        let _ = sys::send(fd, PING, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let _ = sys::await_events(fd, libc::POLLIN, 10);
        drain(fd);
    }
    println!("abused");
    sleep_in_recv(fd);
}

// -------------------------------------------------------------------- files that are slow to close

/// Opens and closes descriptors in a thread of its own when it is asked to: `rate` is answered with
/// the pairs in half a second.
fn counting() {
    let pairs = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                return;
            }
            pairs.store(0, Relaxed);
            let end = Instant::now() + Duration::from_millis(500);
            while Instant::now() < end {
                let file = sys::open("/dev/null", libc::O_RDONLY).expect("open");
                let socket = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let _ = sys::close(file);
                let _ = sys::close(socket);
                pairs.fetch_add(1, Relaxed);
            }
            println!("rate {}", pairs.load(Relaxed));
        }
    });
}

/// Asks and is answered for ever.
fn talk(fd: Fd) {
    loop {
        send_all(fd, PING);
        answered(fd);
        sys::sleep_ms(1);
    }
}

/// The victim opens descriptors as it does undisturbed. (One that waits for the library each time
/// makes some fifty pairs in half a second; on a busy machine the rate is anybody's, so that a few
/// looks are taken.)
fn must_open_as_before(victim: &mut Proc, before: u64) -> Verdict {
    let mut seen = Vec::new();
    for _ in 0..6 {
        victim.order("rate");
        let now: u64 = victim.number("rate")?;
        if now > 200 && now > before / 8 {
            return Ok(());
        }
        seen.push(now);
    }
    Err(format!(
        "pairs of open and socket in half a second: {before} undisturbed, {seen:?} under attack"
    )
    .into())
}

fn slow_files_for_an_advert(place: &Place) -> Verdict {
    let mut server = place.start(VICTIM, &["serve-and-count"]);
    let port = server.number("port")?;
    // From here on there is an advert.
    let third = place.stream(port)?;
    server.order("rate");
    let before = server.number("rate")?;
    let mut attacker = place.start(ATTACKER, &["pass-to-advert", &port.to_string()]);
    attacker.await_line("passed")?;
    must_open_as_before(&mut server, before)?;
    third.must_be_exact()?;
    attacker.end_with(libc::SIGKILL);
    place.stream(port)?.must_be_exact()?;
    server.must_live("the server")?;
    server.must_rest("the server")
}

/// Clients of a server without the library, whose advert's name somebody else has.
fn slow_files_from_a_squatter(place: &Place) -> Verdict {
    let plain = |c: &mut std::process::Command| {
        c.env("NACC_ENABLE_RDMA_DEFAULT", "0");
    };
    let mut server = place.start_with(THIRD, &["serve-epoll"], plain);
    let port: u16 = server.number("port")?;
    let mut attacker = place.start(ATTACKER, &["squat", &port.to_string()]);
    attacker.await_line("squatted")?;
    let mut client = place.start(VICTIM, &["talk-and-count", &port.to_string()]);
    let _: u16 = client.number("local")?;
    client.order("rate");
    let before: u64 = client.number("rate")?;
    attacker.order("go");
    attacker.await_line("passed")?;
    must_open_as_before(&mut client, before.max(2000))?;
    client.must_live("the client")
}

/// A peer with a real connection, and an agreement, passes files of all kinds for doorbells.
fn slow_files_from_a_peer(place: &Place, what: &str) -> Verdict {
    let mut server = place.start(VICTIM, &["serve-and-count"]);
    let port = server.number("port")?;
    let third = place.stream(port)?;
    server.order("rate");
    let before = server.number("rate")?;
    // (A file system is mounted by root, and given up to the attacker.)
    let mut attackers = Vec::new();
    for _ in 0..if what == "linger" { 3 } else { 1 } {
        let mut attacker = place.start(
            if what == "fuse" { ROOT } else { ATTACKER },
            &["pass-to-peer", &port.to_string(), what],
        );
        let local = attacker.number("local")?;
        place.await_fast(&attacker, local)?;
        attacker.order("go");
        let line = attacker.line()?;
        if line == "no fuse" {
            return skip("no FUSE here");
        }
        expect(line == "passed", || format!("`{line}`"))?;
        attackers.push(attacker);
    }
    must_open_as_before(&mut server, before)?;
    third.must_be_exact()?;
    place.stream(port)?.must_be_exact()?;
    server.must_live("the server")?;
    server.must_rest("the server")?;
    // (Who waits for a file system of theirs ends with them.)
    drop(attackers);
    Ok(())
}

/// A socket whose last close waits for two minutes: it has bytes for somebody who does not read.
fn lingering() -> Fd {
    let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::bind(listener, sys::home()).expect("bind");
    sys::listen(listener, 1).expect("listen");
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    for (fd, buffer) in [(listener, libc::SO_RCVBUF), (fd, libc::SO_SNDBUF)] {
        sys::setopt(fd, libc::SOL_SOCKET, buffer, 4096).expect("a small buffer");
    }
    sys::connect(fd, sys::getsockname(listener).expect("name")).expect("connect");
    sys::set_nonblocking(fd, true);
    while sys::send(fd, &[0; 65536], libc::MSG_NOSIGNAL).is_ok() {}
    sys::set_linger(fd, true, 120).expect("linger");
    fd
}

/// Passes files, the last names of which are the victim's from then on. (If they are not, their
/// close takes as long as they like.)
fn give(to: Fd, bytes: Vec<u8>, files: Vec<Fd>) {
    let (tell, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        pass(to, &bytes, &files);
        for file in files {
            raw(libc::SYS_close, [file as usize, 0, 0, 0]);
        }
        let _ = tell.send(());
    });
    let _ = done.recv_timeout(Duration::from_millis(200));
}

/// The library's name for `k` of `what` (a port, or the control connections).
pub fn advert_name(what: &str, k: u16) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zero is a valid sockaddr_un.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as _;
    let text = format!("\0netacc/1/{what}/{k}");
    for (to, from) in name.sun_path.iter_mut().zip(text.bytes()) {
        *to = from as _;
    }
    (name, 2 + text.len() as u32)
}

/// Packets with a file each for whoever advertises `port`: as a first message, in the place of a
/// greeting, and after one.
fn pass_to_advert(port: u16) {
    let mut kept = Vec::new();
    for round in 0..12 {
        for k in 0..2 {
            let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).expect("socket");
            let (name, len) = advert_name(&port.to_string(), k);
            // SAFETY: a name and its length.
            if unsafe { libc::connect(fd, (&raw const name).cast(), len) } != 0 {
                let _ = sys::close(fd);
                continue;
            }
            let bytes = match round % 3 {
                0 => b"?".to_vec(),
                1 => place_message(1).to_vec(),
                _ => vec![0; 600],
            };
            give(fd, bytes, vec![lingering()]);
            kept.push(fd);
        }
        sys::sleep_ms(20);
    }
    println!("passed");
    loop {
        sys::sleep_ms(1000);
    }
}

/// Holds the names of `port`, and gives everybody who calls a file.
fn squat(port: u16) {
    let mut all = Vec::new();
    for k in 0..8 {
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).expect("socket");
        let (name, len) = advert_name(&port.to_string(), k);
        // SAFETY: a name and its length.
        if unsafe { libc::bind(fd, (&raw const name).cast(), len) } == 0
            && sys::listen(fd, 100).is_ok()
        {
            all.push((fd, libc::POLLIN));
        }
    }
    println!("squatted");
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    let end = Instant::now() + Duration::from_secs(3);
    let (mut kept, mut said) = (Vec::new(), false);
    loop {
        let ready = sys::poll(&all, 100).map_or(Vec::new(), |(_, revents)| revents);
        for ((fd, _), _) in all.iter().zip(ready).filter(|(_, r)| *r != 0) {
            let Ok(caller) = sys::accept(*fd) else {
                continue;
            };
            // What nobody sends, or an acceptor that has agreed.
            let channel = [4, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0];
            let bytes = if kept.len() % 2 == 0 { b"?".to_vec() } else { channel.to_vec() };
            give(caller, bytes, vec![lingering()]);
            kept.push(caller);
        }
        if !said && (kept.len() >= 3 || Instant::now() > end) {
            said = true;
            println!("passed");
        }
    }
}

fn pass_to_peer(port: u16, what: &str) {
    let file = if what == "fuse" { fuse::mounted() } else { None };
    if what == "fuse" {
        // SAFETY: system calls of the only thread but those of the library, which stay what they
        // are.
        unsafe { libc::syscall(libc::SYS_setresuid, ATTACKER, ATTACKER, ATTACKER) };
    }
    let fd = dial(port);
    if talk_until_told(fd) != "go" {
        return;
    }
    let files: Vec<Fd> = match what {
        "linger" => vec![lingering()],
        "many" => (0..100).map(|_| lingering()).collect(),
        "fuse" => match file {
            Some(file) => vec![file],
            None => {
                println!("no fuse");
                return;
            }
        },
        _ => {
            let [pipe, _] = sys::pipe();
            let memory = sys::anonymous_file(b"not sealed").expect("a file");
            vec![
                pipe,
                memory,
                sys::epoll_create1(0).expect("a set"),
                sys::timerfd(1000),
                sys::signalfd(libc::SIGUSR1),
            ]
        }
    };
    let together = if what == "odd" { 1 } else { 200 };
    for control in control_sockets() {
        for part in files.chunks(together) {
            give(control, place_message(3).to_vec(), part.to_vec());
        }
    }
    sys::sleep_ms(300);
    println!("passed");
    loop {
        sys::sleep_ms(1000);
    }
}

/// A file system with one file, which says nothing any more when the file is closed.
mod fuse {
    use super::*;

    const INIT: u32 = 26;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;

    /// A file of it, opened.
    pub(super) fn mounted() -> Option<Fd> {
        let device = sys::open("/dev/fuse", libc::O_RDWR).ok()?;
        let path = std::env::current_dir().ok()?.join(format!("fuse-{}", std::process::id()));
        std::fs::write(&path, b"").ok()?;
        let at = std::ffi::CString::new(path.to_string_lossy().into_owned()).ok()?;
        let options = std::ffi::CString::new(format!(
            "fd={device},rootmode=100666,user_id=0,group_id=0,allow_other"
        ))
        .ok()?;
        // SAFETY: a mount namespace of this process's own; strings that end in NUL.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(
                    c"fuse".as_ptr(),
                    at.as_ptr(),
                    c"fuse".as_ptr(),
                    0,
                    options.as_ptr().cast(),
                ) == 0
        };
        if !mounted {
            return None;
        }
        // A process of its own: it ends with this one, and with it the file system, whatever still
        // waits for that.
        if sys::fork() == Ok(0) {
            // SAFETY: system calls.
            unsafe {
                libc::syscall(libc::SYS_setresuid, ATTACKER, ATTACKER, ATTACKER);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            serve(device);
            sys::exit_now(0);
        }
        let _ = sys::close(device);
        // Out of the way of this process's own couriers: the kernel copies the first 64 numbers for
        // them, and closes what it copied.
        let low: Vec<Fd> = (0..70).filter_map(|_| sys::dup(0).ok()).collect();
        let file = sys::open(&path.to_string_lossy(), libc::O_RDWR).ok();
        for fd in low {
            let _ = sys::close(fd);
        }
        file
    }

    /// Answers what opening the file needs, and nothing else.
    fn serve(device: Fd) {
        let mut request = vec![0u8; 1 << 17];
        while let Ok(n) = sys::read(device, &mut request) {
            if n < 40 {
                continue;
            }
            let word = |at: usize| {
                u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]])
            };
            let mut body: Vec<u8> = Vec::new();
            match word(4) {
                INIT => {
                    // Version 7.x as asked, no flags, 64 KiB at most.
                    body.extend(
                        [7u32, word(44).min(31), 65536, 0, 0x10_0010, 65536, 1, 0]
                            .map(u32::to_le_bytes)
                            .concat(),
                    );
                    body.resize(64, 0);
                }
                GETATTR => {
                    // Valid for an hour; inode 1, a regular file.
                    body.extend(3600u64.to_le_bytes());
                    body.resize(16, 0);
                    body.extend(1u64.to_le_bytes());
                    body.resize(16 + 60, 0);
                    body.extend((libc::S_IFREG | 0o666).to_le_bytes());
                    body.extend(1u32.to_le_bytes());
                    body.resize(16 + 88, 0);
                }
                OPEN => body.resize(16, 0),
                _ => continue,
            }
            let mut answer = Vec::new();
            answer.extend((16 + body.len() as u32).to_le_bytes());
            answer.extend(0u32.to_le_bytes());
            answer.extend(&request[8..16]);
            answer.extend(body);
            let _ = sys::write(device, &answer);
        }
    }
}
