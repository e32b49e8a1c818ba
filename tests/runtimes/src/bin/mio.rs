//! mio alone: edge-triggered epoll, by libc's calls.

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use runtimes::{Role, message, role};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};

const LISTENER: Token = Token(usize::MAX);

struct End {
    stream: TcpStream,
    out: Vec<u8>,
    came: Vec<u8>,
    round: usize,
    right: usize,
}

impl End {
    fn new(stream: TcpStream) -> End {
        End { stream, out: Vec::new(), came: Vec::new(), round: 0, right: 0 }
    }

    /// Writes what it can. False: it is over.
    fn write(&mut self) -> bool {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::NotConnected => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what there is. False: it is over.
    fn read(&mut self) -> bool {
        let mut buf = [0; 16384];
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) => return false,
                Ok(n) => self.came.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::NotConnected => return true,
                Err(_) => return false,
            }
        }
    }
}

fn main() {
    let mut poll = Poll::new().expect("poll");
    let mut events = Events::with_capacity(64);
    let mut ends = HashMap::new();
    let both = Interest::READABLE | Interest::WRITABLE;
    match role() {
        Role::Server { port } => {
            let mut listener = TcpListener::bind(([127, 0, 0, 1], port).into()).expect("bind");
            poll.registry().register(&mut listener, LISTENER, Interest::READABLE).expect("register");
            let mut next = 0;
            loop {
                poll.poll(&mut events, None).expect("poll");
                for event in &events {
                    if event.token() == LISTENER {
                        while let Ok((mut stream, _)) = listener.accept() {
                            poll.registry().register(&mut stream, Token(next), both).expect("register");
                            ends.insert(Token(next), End::new(stream));
                            next += 1;
                        }
                        continue;
                    }
                    let Some(end) = ends.get_mut(&event.token()) else { continue };
                    let mut open = end.read();
                    let came = std::mem::take(&mut end.came);
                    end.out.extend_from_slice(&came);
                    open &= end.write();
                    if !open {
                        ends.remove(&event.token());
                    }
                }
            }
        }
        Role::Client { port, connections, rounds } => {
            for c in 0..connections {
                let mut stream = TcpStream::connect(([127, 0, 0, 1], port).into()).expect("connect");
                poll.registry().register(&mut stream, Token(c), both).expect("register");
                let mut end = End::new(stream);
                end.out = message(c, 0);
                ends.insert(Token(c), end);
            }
            let mut busy = connections;
            while busy > 0 {
                poll.poll(&mut events, None).expect("poll");
                for event in &events {
                    let Token(c) = event.token();
                    let end = ends.get_mut(&event.token()).expect("a connection");
                    assert!(end.write() && end.read(), "connection {c} is over");
                    let sent = message(c, end.round);
                    if end.round < rounds && end.came.len() >= sent.len() {
                        end.right += usize::from(end.came == sent);
                        end.came.clear();
                        end.round += 1;
                        if end.round == rounds {
                            busy -= 1;
                        } else {
                            end.out = message(c, end.round);
                            assert!(end.write(), "connection {c} is over");
                        }
                    }
                }
            }
            println!("{}", ends.values().map(|end| end.right).sum::<usize>());
        }
    }
}
