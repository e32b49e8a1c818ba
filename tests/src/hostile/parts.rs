//! The ordinary programs of the hostile suite: echo servers, and a client with a checked stream.
//! Nothing in them knows of the library, and nothing that a client does ends them.

use crate::ctx::{recv_exact, send_all};
use crate::pattern::{Pattern, Rng};
use crate::sys::{self, E, Fd};
use std::collections::HashMap;
use std::io::BufRead;
use std::sync::mpsc;

/// `serve-epoll`, `serve-threads`, `serve-pushes`: echo until killed. `stream PORT`: the third
/// user. `ask PORT QUESTION ANSWER COUNT`.
pub fn part(words: &[&str]) -> bool {
    match *words {
        ["serve-epoll"] => serve_epoll(listener()),
        ["serve-threads"] => serve_threads(listener()),
        ["serve-pushes"] => serve_pushes(listener()),
        ["stream", port] => stream(port.parse().expect("a port")),
        ["ask", port, question, answer, count] => {
            let port = port.parse().expect("a port");
            ask(port, question, answer, count.parse().expect("a count"));
        }
        _ => return false,
    }
    true
}

/// A listener of the loopback address; prints `port NUMBER`.
pub fn listener() -> Fd {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::bind(fd, sys::home()).expect("bind");
    sys::listen(fd, 100).expect("listen");
    println!("port {}", sys::getsockname(fd).expect("name").port());
    fd
}

/// A connection to `port`; prints `local NUMBER`.
pub fn dial(port: u16) -> Fd {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, sys::home().with_port(port)).expect("connect");
    println!("local {}", sys::getsockname(fd).expect("name").port());
    fd
}

/// One thread, all connections in an epoll set, level-triggered.
fn serve_epoll(listener: Fd) {
    let set = sys::epoll_create1(0).expect("epoll_create1");
    let watch = |op, fd: Fd, events| sys::epoll_ctl(set, op, fd, events as u32, fd as u64);
    watch(libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN).expect("add");
    let mut unsent: HashMap<Fd, Vec<u8>> = HashMap::new();
    let mut buffer = vec![0; 16384];
    loop {
        let ready = match sys::epoll_wait(set, 64, -1) {
            Ok(ready) => ready,
            Err(E(libc::EINTR)) => continue,
            Err(e) => panic!("epoll_wait: {e:?}"),
        };
        for (_, fd) in ready {
            let fd = fd as Fd;
            if fd == listener {
                if let Ok(new) = sys::accept4(listener, libc::SOCK_NONBLOCK) {
                    watch(libc::EPOLL_CTL_ADD, new, libc::EPOLLIN).expect("add");
                    unsent.insert(new, Vec::new());
                }
                continue;
            }
            let left = unsent.entry(fd).or_default();
            let mut events = libc::EPOLLIN;
            let goes_on = (!left.is_empty() || echo(fd, &mut buffer, left))
                && match sys::send(fd, left, libc::MSG_NOSIGNAL) {
                    Ok(n) => left.drain(..n).len() == n,
                    Err(e) => e == E(libc::EAGAIN) || e == E(libc::EINTR),
                };
            if goes_on {
                if !left.is_empty() {
                    events = libc::EPOLLOUT;
                }
                let _ = watch(libc::EPOLL_CTL_MOD, fd, events);
            } else {
                unsent.remove(&fd);
                let _ = sys::close(fd);
            }
        }
    }
}

/// Receives once; false at the end.
fn echo(fd: Fd, buffer: &mut [u8], unsent: &mut Vec<u8>) -> bool {
    match sys::recv(fd, buffer, 0) {
        Ok(0) => false,
        Ok(n) => {
            unsent.extend_from_slice(&buffer[..n]);
            true
        }
        Err(E(libc::EAGAIN | libc::EINTR)) => true,
        Err(_) => false,
    }
}

/// A thread per connection, blocking calls.
pub fn serve_threads(listener: Fd) {
    loop {
        let Ok(fd) = sys::accept(listener) else {
            continue;
        };
        std::thread::spawn(move || {
            let mut buffer = vec![0; 16384];
            while let Ok(n @ 1..) = sys::recv(fd, &mut buffer, 0) {
                if !send_to(fd, &buffer[..n]) {
                    break;
                }
            }
            let _ = sys::close(fd);
        });
    }
}

/// As [`serve_threads`]; a client that sends [`SUBSCRIBE`] gets news from then on, a few bytes each
/// millisecond, from another thread.
fn serve_pushes(listener: Fd) {
    loop {
        let Ok(fd) = sys::accept(listener) else {
            continue;
        };
        std::thread::spawn(move || {
            let mut buffer = vec![0; 16384];
            let mut news = None;
            while let Ok(n @ 1..) = sys::recv(fd, &mut buffer, 0) {
                if n >= 64 && buffer[..64] == SUBSCRIBE {
                    news.get_or_insert_with(|| std::thread::spawn(move || push(fd)));
                } else if !send_to(fd, &buffer[..n]) {
                    break;
                }
            }
            let _ = sys::shutdown(fd, libc::SHUT_RDWR);
            if let Some(thread) = news {
                let _ = thread.join();
            }
            let _ = sys::close(fd);
        });
    }
}

pub const SUBSCRIBE: [u8; 64] = [b'S'; 64];

fn push(fd: Fd) {
    while send_to(fd, b"what concerns this subscriber alone") {
        sys::sleep_ms(1);
    }
}

fn send_to(fd: Fd, bytes: &[u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        match sys::send(fd, &bytes[done..], libc::MSG_NOSIGNAL) {
            Ok(sent) => done += sent,
            Err(_) => return false,
        }
    }
    true
}

/// Sends pattern bytes and compares what comes back, until told `end`; then prints `exact N`, or
/// what was wrong, which it prints at once. `more` is answered when a hundred messages more have
/// come back.
fn stream(port: u16) {
    let fd = dial(port);
    let (tell, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let _ = tell.send(line.unwrap_or_default());
        }
    });
    let pattern = Pattern::new(u64::from(port) + 1);
    let mut rng = Rng::new(u64::from(port));
    let (mut offset, mut until_more) = (0, 0);
    loop {
        match orders.try_recv() {
            Ok(order) if order == "more" => until_more = 100,
            Ok(_) | Err(mpsc::TryRecvError::Disconnected) => break,
            Err(mpsc::TryRecvError::Empty) => {}
        }
        let size = rng.size(12_000);
        let bytes = pattern.bytes(offset, size);
        send_all(fd, &bytes);
        let got = recv_exact(fd, size);
        if let Some(at) = pattern.first_error(offset, &got) {
            println!("wrong at {at}, message of {size} at {offset}");
            return;
        }
        offset += size as u64;
        if until_more > 0 {
            until_more -= 1;
            if until_more == 0 {
                println!("more");
            }
        }
        // A stream, not a load: others have to run as well.
        sys::sleep_ms(1);
    }
    println!("exact {offset}");
}

/// Asks a server that often, and hears what it has to.
fn ask(port: u16, question: &str, answer: &str, count: usize) {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(fd, sys::home().with_port(port)).expect("connect");
    for _ in 0..count {
        send_all(fd, question.as_bytes());
        assert_eq!(recv_exact(fd, answer.len()), answer.as_bytes());
    }
    println!("answered");
}
