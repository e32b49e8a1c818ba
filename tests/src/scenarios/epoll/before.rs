//! Registrations of what is not connected yet, or not accelerated.

use super::*;

pub(super) fn list() -> Vec<Scenario> {
    vec![
        pair(
            "epoll/registered-before-connected",
            "a socket registered before it is connected keeps its registration",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = t.accept(listener);
                t.wait("ready");
                send_all(fd, b"data");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0).is_ok());
            },
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
                    .expect("socket");
                let e = set();
                add(e, fd, IN | OUT | ET, 0x1234);
                show(t, "fresh", sys::epoll_wait(e, 8, 0));
                t.log("connect", sys::connect(fd, addr).is_err());
                show(t, "connected", sys::epoll_wait(e, 8, 5000));
                t.log("error", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR));
                sys::set_nonblocking(fd, false);
                t.warm_client(fd);
                // The warm-up left edges of its own behind.
                let _ = sys::epoll_wait(e, 8, 0);
                t.tell("ready");
                await_bytes(fd, 4);
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                show(t, "once", sys::epoll_wait(e, 8, 0));
                t.log_text("data", &recv_exact(fd, 4));
            },
        ),
        pair(
            "epoll/changed-before-connected",
            "what is added, changed, taken out and moved to another set before the connect is what counts after it",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let (one, other) = (set(), set());
                add(one, fd, IN | OUT | ET, 1);
                t.log("twice", sys::epoll_ctl(one, ADD, fd, IN, 2));
                t.log("not here", sys::epoll_ctl(other, MOD, fd, IN, 2));
                t.log("out", sys::epoll_ctl(one, DEL, fd, 0, 0));
                t.log("out twice", sys::epoll_ctl(one, DEL, fd, 0, 0));
                add(other, fd, OUT, 3);
                t.log("changed", sys::epoll_ctl(other, MOD, fd, IN | RDHUP, 4));
                t.log("connect", sys::connect(fd, addr));
                t.warm_client(fd);
                show(t, "quiet", sys::epoll_wait(other, 8, 0));
                t.tell("go");
                await_bytes(fd, 4);
                show(t, "data", sys::epoll_wait(other, 8, 5000));
                show(t, "data again", sys::epoll_wait(other, 8, 5000));
                t.log("kernel", sys::epoll_ctl(one, MOD, fd, IN, 5));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
                show(t, "eof", sys::epoll_wait(other, 8, 5000));
                show(t, "left", sys::epoll_wait(one, 8, 0));
            },
        ),
        pair(
            "epoll/oneshot-before-connected",
            "ONESHOT before the connect: fires once, and again when it is armed again",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let e = set();
                add(e, fd, OUT | ONESHOT, 1);
                show(t, "unconnected", sys::epoll_wait(e, 8, 0));
                show(t, "fired", sys::epoll_wait(e, 8, 0));
                t.log("connect", sys::connect(fd, addr));
                t.log("armed", sys::epoll_ctl(e, MOD, fd, IN, 2));
                t.warm_client(fd);
                t.log("armed", sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, 3));
                t.tell("go");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                show(t, "fired", sys::epoll_wait(e, 8, 0));
                t.log("armed", sys::epoll_ctl(e, MOD, fd, IN | ONESHOT, 4));
                show(t, "again", sys::epoll_wait(e, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        ),
        pair(
            "epoll/refused-and-connected",
            "a registered socket whose first connect is refused, and that is connected by the next",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let dead = t.listener();
                let nowhere = sys::getsockname(dead).expect("getsockname");
                sys::close(dead).expect("close");
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
                    .expect("socket");
                let e = set();
                add(e, fd, IN | OUT | RDHUP | ET, 7);
                show(t, "fresh", sys::epoll_wait(e, 8, 0));
                t.log("refused", sys::connect(fd, nowhere));
                show(t, "refused", sys::epoll_wait(e, 8, 5000));
                t.log(
                    "error",
                    sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR).map(E),
                );
                t.log("its end", sys::connect(fd, addr));
                t.log("connect", sys::connect(fd, addr).is_err());
                sys::await_events(fd, libc::POLLOUT, 5000);
                show(t, "connected", sys::epoll_wait(e, 8, 5000));
                t.log("error", sys::getopt(fd, libc::SOL_SOCKET, libc::SO_ERROR));
                sys::set_nonblocking(fd, false);
                t.warm_client(fd);
                let _ = sys::epoll_wait(e, 8, 0);
                t.tell("go");
                await_bytes(fd, 4);
                let seen = sys::epoll_wait(e, 8, 5000).map(|list| list.iter().any(|(e, data)| e & IN != 0 && *data == 7));
                t.log("data", seen);
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        ),
        pair(
            "epoll/duplicated-before-connected",
            "a duplicate of a registered socket connects it; the number that was registered goes first or last",
            |t| {
                four_bytes(t);
                four_bytes(t);
            },
            |t| {
                for first in [true, false] {
                    let addr = t.hear_addr();
                    let old = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    let e = set();
                    add(e, old, IN, 8);
                    let new = sys::dup(old).expect("dup");
                    let (goes, stays) = if first { (new, old) } else { (old, new) };
                    t.log("connect", sys::connect(new, addr));
                    t.log("connected", sys::connect(old, addr));
                    if first {
                        t.log("close", sys::close(goes));
                    }
                    t.warm_client(stays);
                    if !first {
                        // (The kernel goes on reporting it.)
                        t.log("close", sys::close(goes));
                    }
                    t.tell("go");
                    await_bytes(stays, 4);
                    show(t, "data", sys::epoll_wait(e, 8, 5000));
                    t.log_text("data", &recv_exact(stays, 4));
                    t.tell("seen");
                    t.log("eof", sys::recv(stays, &mut [0; 8], 0));
                    t.log("close", sys::close(stays));
                }
            },
        ),
        pair(
            "epoll/registered-before-listening",
            "a socket in two sets before it is bound and listens: its connections are as any listener's",
            |t| {
                let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let (one, other) = (set(), set());
                add(one, listener, IN | ET, 9);
                add(other, listener, IN, 10);
                show(t, "fresh", sys::epoll_wait(one, 8, 0));
                t.log("bind", sys::bind(listener, sys::home()));
                t.log("listen", sys::listen(listener, 8));
                t.publish(listener);
                show(t, "somebody", sys::epoll_wait(other, 8, 5000));
                show(t, "somebody", sys::epoll_wait(one, 8, 5000));
                let fd = t.accept(listener);
                t.log("out", sys::epoll_ctl(one, DEL, listener, 0, 0));
                show(t, "nobody", sys::epoll_wait(other, 8, 0));
                add(one, fd, IN, 11);
                t.tell("go");
                show(t, "data", sys::epoll_wait(one, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"data");
                t.log("eof", sys::recv(fd, &mut [0; 8], 0));
            },
        ),
        pair(
            "epoll/forked-before-connected",
            "a child connects the socket that its parent has registered: both hear of it",
            four_bytes,
            |t| {
                let addr = t.hear_addr();
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                let e = set();
                add(e, fd, IN, 1);
                let child = t.child(|_| format!("{:?}", sys::connect(fd, addr)));
                t.log("child", child.join());
                t.warm_client(fd);
                t.tell("go");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("seen");
            },
        )
        .any_path()
        .demoted(),
        pair(
            "epoll/forked-then-connected",
            "a registered socket, or one that has a duplicate, is connected when its process has forked",
            |t| {
                four_bytes(t);
                four_bytes(t);
            },
            |t| {
                for registered in [true, false] {
                    let addr = t.hear_addr();
                    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
                    let e = set();
                    let twin = if registered {
                        add(e, fd, IN, 1);
                        None
                    } else {
                        Some(sys::dup(fd).expect("dup"))
                    };
                    let child = t.child(|_| String::from("forked"));
                    t.log("child", child.join());
                    t.log("connect", sys::connect(fd, addr));
                    t.warm_client(fd);
                    t.went_back(fd, "inherited-by-fork");
                    t.tell("go");
                    t.log_text("data", &recv_exact(twin.unwrap_or(fd), 4));
                    t.tell("seen");
                    t.log("eof", sys::recv(fd, &mut [0; 8], 0));
                }
            },
        )
        .any_path()
        .demoted(),
        pair(
            "epoll/registered-before-promotion",
            "LT registrations made while the connection is on TCP hold after its promotion",
            |t| {
                let listener = t.listener();
                t.publish(listener);
                let fd = sys::accept(listener).expect("accept");
                let e = set();
                add(e, fd, IN, 0xABCD_0000_0001);
                t.warm_server(fd);
                show(t, "quiet", sys::epoll_wait(e, 8, 0));
                t.tell("go");
                show(t, "data", sys::epoll_wait(e, 8, 5000));
                t.log_text("data", &recv_exact(fd, 4));
                t.tell("go");
                show(t, "eof", sys::epoll_wait(e, 8, 5000));
                t.log("recv", sys::recv(fd, &mut [0; 8], 0));
            },
            |t| {
                let fd = t.client();
                t.wait("go");
                send_all(fd, b"data");
                t.wait("go");
                t.log("close", sys::close(fd));
            },
        ),
    ]
}
