//! The measured server: an ordinary program in one thread. It is ended by a signal, with its
//! connections open, so that `netacc_ss` can look at it first.

use crate::framing::{self, Framer};
use crate::spec::{Spec, Traffic};
use crate::sys::{self, Epoll};
use serde_json::json;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// Tells the port on standard output, then serves until killed.
pub(crate) fn main(spec: &str) -> crate::Result<()> {
    let spec = Spec::from_argument(spec)?;
    sys::raise_descriptor_limit();
    let listeners = (0..spec.ports())
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<io::Result<Vec<_>>>()?;
    let ports = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect::<io::Result<Vec<_>>>()?;
    crate::say(&format!("{}\n", json!({ "event": "listening", "ports": ports })))?;
    match spec.traffic {
        Traffic::PingPong => serve_blocking(&listeners[0], |stream| echo(stream, spec.request)),
        Traffic::Bulk => serve_blocking(&listeners[0], |stream| count(stream, spec.request)),
        Traffic::PingPongEpoll | Traffic::ReqRep | Traffic::Rate | Traffic::Idle => {
            serve_epoll(&listeners, &spec)
        }
    }
}

/// One connection after the other; they stay open when served.
fn serve_blocking(
    listener: &TcpListener,
    serve: impl Fn(&mut TcpStream) -> io::Result<()>,
) -> crate::Result<()> {
    let mut served = Vec::new();
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        serve(&mut stream)?;
        served.push(stream);
    }
}

/// Sends every message back.
fn echo(stream: &mut TcpStream, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    loop {
        match stream.read_exact(&mut message) {
            Ok(()) => stream.write_all(&message)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Reads to the end, then answers how many bytes that were.
fn count(stream: &mut TcpStream, read_size: usize) -> io::Result<()> {
    let mut buffer = vec![0; read_size];
    let mut total = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.write_all(&total.to_le_bytes()),
            n => total += n as u64,
        }
    }
}

/// A connection of the epoll server.
struct Connection {
    stream: TcpStream,
    requests: Framer,
    /// Response bytes; those before `sent` have left.
    out: Vec<u8>,
    sent: usize,
    waits_for_room: bool,
}

impl Connection {
    /// Reads once, answers every complete request. `false` when the client has closed.
    fn on_readable(&mut self, buffer: &mut [u8], response: usize) -> io::Result<bool> {
        match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(n) => {
                let out = &mut self.out;
                self.requests
                    .push(&buffer[..n], |sequence| framing::append(out, response, sequence));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if is_close(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Sends what it can. `false` when the client has closed.
    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if is_close(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}

/// A client that ends with answers still on their way resets the connection.
fn is_close(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Set in the tokens of listeners; the other bits are the index. Other tokens are descriptor
/// numbers.
const LISTENER: u64 = 1 << 63;

fn serve_epoll(listeners: &[TcpListener], spec: &Spec) -> crate::Result<()> {
    let set = Epoll::new()?;
    for (index, listener) in listeners.iter().enumerate() {
        listener.set_nonblocking(true)?;
        set.add(listener, sys::READABLE, LISTENER | index as u64)?;
    }
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = vec![sys::NO_EVENT; 1024];
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = set.wait(&mut events)?;
        for &event in &events[..n] {
            let token = event.u64;
            if token & LISTENER != 0 {
                let listener = &listeners[(token & !LISTENER) as usize];
                accept_all(listener, &set, &mut connections, spec.request)?;
                continue;
            }
            let Some(connection) = connections.get_mut(token as usize).and_then(Option::as_mut)
            else {
                continue;
            };
            let readable = event.events & !sys::WRITABLE != 0;
            let open = !readable || connection.on_readable(&mut buffer, spec.response)?;
            if !open || !connection.flush()? {
                connections[token as usize] = None;
                continue;
            }
            let waits = !connection.out.is_empty();
            if waits != connection.waits_for_room {
                connection.waits_for_room = waits;
                let interest = if waits { sys::READABLE | sys::WRITABLE } else { sys::READABLE };
                set.modify(&connection.stream, interest, token)?;
            }
        }
    }
}

fn accept_all(
    listener: &TcpListener,
    set: &Epoll,
    connections: &mut Vec<Option<Connection>>,
    request: usize,
) -> crate::Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let token = stream.as_raw_fd() as usize;
        set.add(&stream, sys::READABLE, token as u64)?;
        if connections.len() <= token {
            connections.resize_with(token + 1, || None);
        }
        let requests = Framer::new(request);
        connections[token] =
            Some(Connection { stream, requests, out: Vec::new(), sent: 0, waits_for_room: false });
    }
}
