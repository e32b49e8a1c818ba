//! Small programs that scenarios execute: with or without the library, unlike the process that
//! starts them.

use crate::ctx::{recv_exact, send_all};
use crate::pattern::Pattern;
use crate::sys::{self, Addr, Fd};
use std::process::ExitCode;

pub fn run(name: &str, args: &[&str]) -> ExitCode {
    sys::default_signal(libc::SIGPIPE);
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<usize>().ok()).unwrap_or(0);
    match name {
        "take-fd" => take_fd(),
        "pass-on" => pass_on(number(0) as Fd, number(1)),
        "echo" => echo(number(0) as Fd),
        "say-on" => say_on(number(0) as Fd),
        "is-closed" => println!("{:?}", sys::fcntl(number(0) as Fd, libc::F_GETFD, 0)),
        "serve" => serve(number(0) as Fd, number(1)),
        "serve-warm" => serve_warm(number(0) as Fd),
        "call" => call(args.first().and_then(|a| Addr::parse(a)), number(1)),
        "survivor" => crate::kill::survivor(args),
        "victim" => crate::kill::victim(args),
        "stress-end" => return crate::stress::end(args),
        "client" => client(args.first().and_then(|a| Addr::parse(a)), number(1)),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Receives a connection on standard input, reads 1000 pattern bytes from it, and waits for the end
/// of the giver.
fn take_fd() {
    let (_, fds) = sys::recv_fds(0).expect("recvmsg");
    let got = recv_exact(fds[0], 1000);
    let ok = Pattern::new(1).first_error(500, &got).is_none();
    println!("took 1000 bytes, exact: {ok}");
    let _ = sys::close(fds[0]);
    let end = sys::recv(0, &mut [0; 1], 0);
    println!("giver ended: {end:?}");
}

/// Receives a connection on standard input, passes it on over `to`, and keeps it: when told,
/// answers `count` messages on it.
fn pass_on(to: Fd, count: usize) {
    let (_, fds) = sys::recv_fds(0).expect("recvmsg");
    sys::send_fds(to, b"fd", &fds).expect("sendmsg");
    assert!(sys::recv(0, &mut [0; 1], 0) == Ok(1), "the giver ended");
    for _ in 0..count {
        let ask = recv_exact(fds[0], 4);
        send_all(fds[0], &ask);
    }
    println!("answered {count}");
}

/// Sends back what arrives, to EOF.
fn echo(fd: Fd) {
    let mut buf = [0; 4096];
    let mut total = 0;
    while let Ok(n) = sys::read(fd, &mut buf) {
        if n == 0 {
            break;
        }
        total += n;
        send_all(fd, &buf[..n]);
    }
    println!("echoed {total} bytes");
}

fn say_on(fd: Fd) {
    send_all(fd, b"from the helper");
    println!("said");
}

/// Connects, sends pattern bytes, and checks that they come back.
fn client(addr: Option<Addr>, count: usize) {
    let Some(addr) = addr else { return };
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    let bytes = Pattern::new(41).bytes(0, count);
    let mut same = true;
    for part in bytes.chunks(1000) {
        send_all(fd, part);
        same &= recv_exact(fd, part.len()) == part;
    }
    println!("{count} bytes came back, exact: {same}");
}

/// Accepts one connection and answers so many messages.
fn serve(listener: Fd, count: usize) {
    let fd = sys::accept(listener).expect("accept");
    for _ in 0..count {
        let message = recv_exact(fd, 64);
        send_all(fd, &message);
    }
    println!("served {count}");
}

/// Accepts one connection, is the server of its warm-up, and waits for its end.
fn serve_warm(listener: Fd) {
    let fd = sys::accept(listener).expect("accept");
    let mut message = [0u8; 64];
    let end = loop {
        match sys::recv(fd, &mut message, libc::MSG_WAITALL) {
            Ok(64) => {}
            end => break end,
        }
        let mut answer = [0u8; 64];
        answer[..4].copy_from_slice(&sys::getpid().to_ne_bytes());
        send_all(fd, &answer);
    };
    println!("end: {end:?}");
}

/// Connects, and sends so many messages that are answered.
fn call(addr: Option<Addr>, count: usize) {
    let Some(addr) = addr else { return };
    let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, addr).expect("connect");
    for _ in 0..count {
        send_all(fd, &[1; 64]);
        recv_exact(fd, 64);
    }
    println!("called {count}");
}
