//! Two network namespaces that a test makes itself, with a pair of virtual Ethernet devices
//! between them. Each end is a thread of its own, which has its namespace to itself; both are gone
//! with their threads.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The addresses of an end, of both families.
pub fn address(own: bool, v6: bool) -> IpAddr {
    let text = match (own, v6) {
        (true, false) => "10.9.0.1",
        (false, false) => "10.9.0.2",
        (true, true) => "fd09::1",
        (false, true) => "fd09::2",
    };
    text.parse().expect("an address")
}

/// Runs `ip` in the namespace of the calling thread.
pub fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

fn set_up(own: bool) -> bool {
    let device = if own { "utcp0" } else { "utcp1" };
    ip("link set lo up")
        && ip(&format!("addr add {}/24 dev {device}", address(own, false)))
        && ip(&format!("addr add {}/64 dev {device} nodad", address(own, true)))
        && ip(&format!("link set {device} up"))
}

/// A namespace of the calling thread's own.
fn leave_for_a_new_namespace() -> bool {
    // SAFETY: integers only; it changes the calling thread alone.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// Runs `own` in one namespace, with the index of its device, and `peer` in the other. False: this
/// machine cannot do that; it has been said why.
pub fn run(own: impl FnOnce(u32) + Send + 'static, peer: impl FnOnce() + Send + 'static) -> bool {
    let ours = thread::spawn(move || {
        if !leave_for_a_new_namespace() {
            return Err("no namespaces: not root");
        }
        let (tell, told) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        let theirs = thread::spawn(move || {
            let there = leave_for_a_new_namespace();
            // SAFETY: it says the calling thread's number.
            let thread = unsafe { libc::gettid() };
            tell.send(if there { thread } else { 0 }).expect("the other thread waits");
            if begun.recv().is_ok() {
                peer();
                // The devices go away with either namespace: not before the other end is done.
                let _ = begun.recv();
            }
        });
        let number = told.recv().expect("the other thread says its number");
        // SAFETY: the name is a string that ends.
        let index = |name: &std::ffi::CStr| unsafe { libc::if_nametoindex(name.as_ptr()) };
        let (up, are_up) = mpsc::channel();
        if number == 0
            || !ip(&format!("link add utcp0 type veth peer name utcp1 netns {number}"))
            || !set_up(true)
            || !in_namespace_of(number, move || up.send(set_up(false)).expect("it is waited for"))
            || !are_up.recv().expect("it says whether")
        {
            drop(begin);
            theirs.join().expect("it does nothing");
            return Err("no virtual devices: iproute2 or veth is missing");
        }
        begin.send(()).expect("the other thread waits");
        own(index(c"utcp0"));
        drop(begin);
        theirs.join().map_err(|_| "the peer failed: see above")?;
        Ok(())
    });
    match ours.join() {
        Ok(Ok(())) => true,
        Ok(Err("the peer failed: see above")) => panic!("the peer failed"),
        Ok(Err(why)) => {
            eprintln!("skipped: {why}");
            false
        }
        Err(failure) => std::panic::resume_unwind(failure),
    }
}

fn in_namespace_of(thread: i32, what: impl FnOnce() + Send + 'static) -> bool {
    let file = std::fs::File::open(format!("/proc/self/task/{thread}/ns/net"));
    let Ok(file) = file else { return false };
    thread::spawn(move || {
        use std::os::fd::AsRawFd;
        // SAFETY: a live descriptor; it changes the calling thread alone.
        if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
            what();
        }
    })
    .join()
    .is_ok()
}

/// Connects, as soon as somebody listens there.
pub fn connect(to: IpAddr, port: u16) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect((to, port)) {
            Ok(stream) => return stream,
            Err(failure) => assert!(Instant::now() < end, "{to} {port}: {failure}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The one connection that comes to that port.
pub fn accept(on: IpAddr, port: u16) -> TcpStream {
    let listener = TcpListener::bind((on, port)).expect("the port is free in its own namespace");
    next(&listener)
}

/// The next connection that comes. Whoever should make it may have failed.
pub fn next(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("an option");
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(failure) => assert!(Instant::now() < end, "nobody connects: {failure}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}
