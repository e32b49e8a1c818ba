//! What the applications of a rig do: they listen, connect, send, receive, shut down and close.

use super::*;

impl Rig {
    /// Where connections to host `a` are accepted.
    pub(super) fn listen(&mut self, a: usize) -> SocketAddr {
        let address = self.hosts[a].address;
        if self.hosts[a].listener < 0 {
            // Not where somebody else (another test's connection) has one of its link ports.
            let fd = loop {
                let fd = tcp(SocketAddr::new(address, 0));
                if are_link_ports_free(name(fd, false)) {
                    break fd;
                }
                assert!(sys::close(fd) >= 0);
            };
            crate::syn::set(fd);
            assert!(sys::listen(fd, 64) >= 0);
            api::on_socket(fd, libc::AF_INET, libc::SOCK_STREAM, 0);
            api::on_listen(fd);
            self.hosts[a].listener = fd;
        }
        name(self.hosts[a].listener, false)
    }

    /// The same, and a socket that has the first port of the links for it.
    pub(super) fn listen_below_free(&mut self, a: usize) -> (SocketAddr, c_int) {
        loop {
            let to = self.listen(a);
            let first = destinations::link_port(to.port(), 0);
            if let Some(fd) = tcp_if_free(SocketAddr::new(to.ip(), first)) {
                return (to, fd);
            }
            // A connection of another test's has that port.
            self.close_listener(a);
        }
    }

    pub(super) fn close_listener(&mut self, a: usize) {
        let fd = core::mem::replace(&mut self.hosts[a].listener, -1);
        if api::close(fd) == api::PASS {
            let _ = sys::close(fd);
        }
    }

    /// A connection from host `c` to host `a`.
    pub(super) fn connect(&mut self, c: usize, a: usize) -> usize {
        self.connect_from(0, c, a)
    }

    /// As that, from that port, if it is not 0.
    pub(super) fn connect_from(&mut self, port: u16, c: usize, a: usize) -> usize {
        let to = self.listen(a);
        let listener = self.hosts[a].listener;
        let fd = tcp(SocketAddr::new(self.hosts[c].address, port));
        let (raw, len) = crate::carrier::sockaddr(to);
        let began = sys::kernel_ns();
        assert!(sys::connect(fd, &raw[..len]) >= 0);
        let ended = sys::kernel_ns();
        let other = sys::accept4(listener, libc::SOCK_CLOEXEC) as c_int;
        assert!(other >= 0);
        let stream = self.conns.len() as u64 * 2;
        let ends = [(c, fd, true, stream), (a, other, false, stream + 1)].map(
            |(host, fd, connector, stream)| {
                let socket = begin(fd, connector);
                End {
                    host,
                    fd,
                    socket,
                    stream,
                    sent: 0,
                    received: 0,
                    over: None,
                    honest: true,
                    shut: false,
                    open: true,
                }
            },
        );
        ends[C].socket.syn.sent(began, ended, true);
        self.conns.push(ends);
        self.conns.len() - 1
    }

    /// A send of up to `n` bytes that does not wait. What it took.
    #[track_caller]
    pub(super) fn send(&mut self, i: usize, side: usize, n: usize) -> usize {
        let e = &mut self.conns[i][side];
        if n == 0 || !e.open || e.shut || self.hosts[e.host].stopped {
            return 0;
        }
        let bytes = bytes(e.stream, e.sent, n);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a buffer of ours.
        let mut r = unsafe { io::send(e.fd, bytes.as_ptr(), n, flags) };
        if r == api::PASS {
            // SAFETY: as above.
            r = unsafe { sys::sendto(e.fd, bytes.as_ptr(), n, flags) };
        }
        match r {
            1.. => e.sent += r as u64,
            _ if r == -(libc::EAGAIN as isize) => {}
            _ => e.over = e.over.or(Some(r)),
        }
        r.max(0) as usize
    }

    /// A receive of up to `n` bytes that does not wait. What came is what was sent.
    #[track_caller]
    pub(super) fn receive(&mut self, i: usize, side: usize, n: usize) -> usize {
        let e = &mut self.conns[i][side];
        if !e.open || self.hosts[e.host].stopped {
            return 0;
        }
        let mut part = vec![0u8; n];
        // SAFETY: a buffer of ours.
        let mut r = unsafe { io::recv(e.fd, part.as_mut_ptr(), n, libc::MSG_DONTWAIT) };
        if r == api::PASS {
            // SAFETY: as above.
            r = unsafe {
                sys::recvfrom(
                    e.fd,
                    part.as_mut_ptr(),
                    n,
                    libc::MSG_DONTWAIT,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            };
        }
        if r == 0 || (r < 0 && r != -(libc::EAGAIN as isize)) {
            e.over = e.over.or(Some(r));
        }
        self.came(i, side, &part[..r.max(0) as usize]);
        r.max(0) as usize
    }

    /// These bytes have come to an application: they are what was sent.
    #[track_caller]
    pub(super) fn came(&mut self, i: usize, side: usize, came: &[u8]) {
        let e = &mut self.conns[i][side];
        let sent = bytes(e.stream ^ 1, e.received, came.len());
        if let Some(at) = came.iter().zip(sent).position(|(a, b)| a != b).filter(|_| e.honest) {
            panic!(
                "connection {i}, side {side}, byte {} is not what was sent",
                e.received + at as u64
            );
        }
        e.received += came.len() as u64;
        let (received, honest) = (e.received, e.honest);
        let sent = self.conns[i][side ^ 1].sent;
        assert!(
            !honest || received <= sent,
            "connection {i}, side {side}: {received} bytes came, {sent} were sent"
        );
    }

    /// Both applications of a connection say something, and read what there is.
    pub(super) fn chat(&mut self, i: usize) {
        for side in [C, A] {
            self.send(i, side, 700);
        }
        for side in [C, A] {
            while self.receive(i, side, 5000) > 0 {}
        }
    }

    /// Everything that was sent on a connection has come.
    pub(super) fn has_come(&self, i: usize) -> bool {
        let [c, a] = &self.conns[i];
        c.sent == a.received && a.sent == c.received
    }

    /// Until both directions of a connection, used all the while, are on the ring.
    #[track_caller]
    pub(super) fn promoted(&mut self, i: usize) {
        self.until(&format!("connection {i} is promoted"), |r| {
            r.chat(i);
            r.is_fast(i)
        });
    }

    /// `bytes` each way, and all of them come.
    #[track_caller]
    pub(super) fn exchange(&mut self, i: usize, bytes: u64) {
        let goals = [C, A].map(|side| self.conns[i][side].sent + bytes);
        self.until(&format!("{bytes} bytes each way on connection {i}, to {goals:?}"), |r| {
            for side in [C, A] {
                let left = goals[side].saturating_sub(r.conns[i][side].sent);
                let n = left.min(1 + r.random.below(20_000) as u64);
                r.send(i, side, n as usize);
                while r.receive(i, side ^ 1, 30_000) > 0 {}
            }
            (0..2).all(|side| r.conns[i][side].sent >= goals[side]) && r.has_come(i)
        });
    }

    /// Nothing is lost: what was sent comes, without another byte being sent.
    #[track_caller]
    pub(super) fn drain(&mut self, i: usize) {
        self.until(&format!("all bytes of connection {i} come"), |r| {
            for side in [C, A] {
                while r.receive(i, side, 30_000) > 0 {}
            }
            r.has_come(i)
        });
    }

    pub(super) fn is_attached(&self, i: usize, side: usize) -> bool {
        self.conns[i][side].socket.is(State::Attached)
    }

    /// Both directions are on the ring at both ends.
    pub(super) fn is_fast(&self, i: usize) -> bool {
        self.conns[i].iter().all(|e| {
            e.socket.is(State::Attached)
                && e.socket.channel().is_some()
                && e.socket.published.sends_fast()
                && e.socket.published.receives_fast()
        })
    }

    pub(super) fn reason(&self, i: usize, side: usize) -> Reason {
        let why = self.conns[i][side].socket.record().map_or(0, |r| r.reason.load(Relaxed));
        Reason::ALL.get(why as usize).copied().unwrap_or(Reason::None)
    }

    /// Who accepts has shown itself on a link of that host's.
    pub(super) fn is_proven(&mut self, c: usize) -> bool {
        let proven = |l: &link::Link| l.phase == link::Phase::Up && l.is_proven();
        self.remote(c).links.iter().flatten().any(|l| proven(l))
    }

    pub(super) fn close(&mut self, i: usize, side: usize) {
        let e = &mut self.conns[i][side];
        if core::mem::take(&mut e.open) && api::close(e.fd) == api::PASS {
            let _ = sys::close(e.fd);
        }
    }

    /// So many small steps, drawn: a host's turn, the queues', a send, a receive. `at` is called
    /// before each with its number.
    #[track_caller]
    pub(super) fn play(&mut self, steps: usize, mut at: impl FnMut(&mut Rig, usize)) {
        for step in 0..steps {
            at(self, step);
            let i = self.random.below(self.conns.len());
            let side = self.random.below(2);
            match self.random.below(8) {
                0 | 1 => {
                    let n = 1 + self.random.below(6000);
                    self.send(i, side, n);
                }
                2 | 3 => {
                    let n = 1 + self.random.below(8000);
                    self.receive(i, side, n);
                }
                4 => self.serve_queues(),
                5 => {
                    testing::run_held();
                }
                _ => {
                    let h = self.random.below(self.hosts.len());
                    self.step(h);
                }
            }
        }
    }

    /// The application has nothing more to say.
    pub(super) fn shut(&mut self, i: usize, side: usize) {
        let e = &mut self.conns[i][side];
        e.shut = true;
        if api::shutdown(e.fd, libc::SHUT_WR) == api::PASS {
            let _ = sys::shutdown(e.fd, libc::SHUT_WR);
        }
    }
}
