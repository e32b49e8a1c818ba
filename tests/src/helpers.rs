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
        "serve-all" => serve_all(number(0) as Fd, number(1) != 0),
        "serve-all-inetd" => serve_all(off_stdin(), number(0) != 0),
        "echoes-serve-all" => {
            echoes(number(0) as Fd, 30);
            serve_all(number(0) as Fd, number(1) != 0);
        }
        "exec-on" => exec_on(args),
        "use-all" => use_all(number(0) as Fd),
        "exec-again" => exec_again(number(0) as Fd, args.get(1).copied().unwrap_or_default()),
        "echoes" => echoes(number(0) as Fd, number(1)),
        "echoes-first" => echoes_first(number(0) as Fd, number(1)),
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

/// Serves the warm-up, a stream each way, and the end of the client's, as scenarios of `adopt` do.
fn serve_all(fd: Fd, warms_up: bool) {
    if warms_up {
        crate::ctx::answer_warm_up(fd, || ());
    }
    let got = recv_exact(fd, 700_000);
    let error = Pattern::new(11).first_error(0, &got);
    send_all(fd, &Pattern::new(12).bytes(0, 700_000));
    let end = sys::recv(fd, &mut [0; 1], 0);
    println!("received: {error:?}\nthen {end:?}");
}

/// Takes the connection from standard input, as a program of inetd's does that goes on as a daemon.
fn off_stdin() -> Fd {
    let fd = sys::dup(0).expect("dup");
    let [from, to] = sys::pipe();
    sys::dup2(from, 0).expect("dup2");
    sys::close(from).expect("close");
    sys::close(to).expect("close");
    fd
}

/// The other end of [`serve_all`], without a warm-up.
fn use_all(fd: Fd) {
    send_all(fd, &Pattern::new(11).bytes(0, 700_000));
    let got = recv_exact(fd, 700_000);
    println!("received: {:?}", Pattern::new(12).first_error(0, &got));
    println!("shutdown: {:?}", sys::shutdown(fd, libc::SHUT_WR));
    println!("end: {:?}", sys::recv(fd, &mut [0; 1], 0));
}

/// Without the library: leaves the connection to a child, too, and becomes the same program again,
/// this time with the library. When told, the child answers on the connection.
fn exec_again(fd: Fd, library: &str) {
    let go_on = sys::fork().expect("fork") == 0;
    if go_on {
        assert!(sys::recv(0, &mut [0; 1], 0) == Ok(1), "the scenario ended");
        echoes(fd, 50);
        sys::exit_now(0);
    }
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("LD_PRELOAD", library) };
    let (program, number) = (crate::ctx::own_program(), fd.to_string());
    let args = [&program, "helper", "echoes-first", &number, "1000"];
    println!("exec: {:?}", sys::exec(&program, &args, true));
}

/// Becomes the program that serves.
fn exec_on(args: &[&str]) {
    let program = crate::ctx::own_program();
    let mut argv = vec![program.as_str(), "helper", "serve-all"];
    argv.extend_from_slice(args);
    println!("exec: {:?}", sys::exec(&program, &argv, true));
}

/// Answers so many messages of four bytes.
fn echoes(fd: Fd, count: usize) {
    for _ in 0..count {
        let ask = recv_exact(fd, 4);
        send_all(fd, &ask);
    }
}

/// Answers so many messages, and has the connection until its child has answered its own.
fn echoes_first(fd: Fd, count: usize) {
    echoes(fd, count);
    println!("child: {:?}", sys::wait_child(-1));
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
