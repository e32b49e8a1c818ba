//! Moves a pattern through a socket with every data call there is, chosen at random.

use crate::pattern::{Pattern, Rng};
use crate::sys::{self, E, Fd, R};

/// The names of the receiving calls, in the order of the random choice.
const READERS: [&str; 7] = ["read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "preadv2"];

/// One end's sending half.
pub struct Sender {
    fd: Fd,
    rng: Rng,
    pattern: Pattern,
    scratch: Vec<u8>,
    pub sent: u64,
}

impl Sender {
    pub fn new(fd: Fd, seed: u64, pattern: Pattern) -> Sender {
        Sender { fd, rng: Rng::new(seed), pattern, scratch: Vec::new(), sent: 0 }
    }

    /// One random call with at most `max` bytes.
    pub fn step(&mut self, max: usize, flags: i32) -> R {
        let len = self.rng.size(max.max(1));
        self.scratch.resize(len, 0);
        self.pattern.fill(self.sent, &mut self.scratch);
        let (a, b) = (self.rng.range(0, len), self.rng.range(0, len));
        let (a, b) = (a.min(b), a.max(b));
        let parts = [&self.scratch[..a], &self.scratch[a..b], &self.scratch[b..]];
        let whole = &self.scratch[..];
        let plain = flags & !libc::MSG_NOSIGNAL == 0;
        let n = match self.rng.range(0, 6) {
            0 if plain => sys::write(self.fd, whole),
            1 if plain => sys::writev(self.fd, &parts),
            6 if plain => sys::pwritev2(self.fd, &parts, -1, 0),
            3 => sys::sendto(self.fd, whole, flags, None),
            4 => sys::sendmsg(self.fd, &parts, flags),
            5 => self.many(&parts, flags),
            _ => sys::send(self.fd, whole, flags),
        }?;
        self.sent += n as u64;
        Ok(n)
    }

    /// `sendmmsg`: a partly sent message ends the call, so the sum of the lengths is a prefix.
    fn many(&self, parts: &[&[u8]], flags: i32) -> R {
        let parts: Vec<&[u8]> = parts.iter().copied().filter(|p| !p.is_empty()).collect();
        let lens = sys::sendmmsg(self.fd, &parts, flags)?;
        let mut total = 0;
        for (i, (n, part)) in lens.iter().zip(&parts).enumerate() {
            total += n;
            if *n < part.len() {
                // Linux ends the call at a message that was cut short; going on would tear the
                // stream.
                assert!(i + 1 == lens.len(), "sendmmsg went on after a message that was cut short");
            }
        }
        Ok(total)
    }

    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// The connection has another number now.
    pub fn set_fd(&mut self, fd: Fd) {
        self.fd = fd;
    }

    /// The next `len` bytes, for calls that this type does not know; `advance` afterwards.
    pub fn upcoming(&self, len: usize) -> Vec<u8> {
        self.pattern.bytes(self.sent, len)
    }

    pub fn advance(&mut self, n: usize) {
        self.sent += n as u64;
    }
}

/// One end's receiving half.
pub struct Receiver {
    fd: Fd,
    rng: Rng,
    pattern: Pattern,
    scratch: Vec<u8>,
    pub received: u64,
    /// The first stream offset at which a byte was wrong.
    pub error: Option<u64>,
    call: &'static str,
}

impl Receiver {
    pub fn new(fd: Fd, seed: u64, pattern: Pattern) -> Receiver {
        Receiver {
            fd,
            rng: Rng::new(seed),
            pattern,
            scratch: Vec::new(),
            received: 0,
            error: None,
            call: "",
        }
    }

    /// One random call for at most `max` bytes; checks them.
    pub fn step(&mut self, max: usize, flags: i32) -> R {
        let len = self.rng.size(max.max(1));
        self.scratch.resize(len, 0);
        let (a, b) = (self.rng.range(0, len), self.rng.range(0, len));
        let (a, b) = (a.min(b), a.max(b));
        let choice = self.rng.range(0, 6);
        let fd = self.fd;
        self.call = READERS[choice];
        let n = {
            let (first, rest) = self.scratch.split_at_mut(a);
            let (second, third) = rest.split_at_mut(b - a);
            match choice {
                0 if flags == 0 => sys::read(fd, &mut self.scratch),
                1 if flags == 0 => sys::readv(fd, &mut [first, second, third]),
                6 if flags == 0 => sys::preadv2(fd, &mut [first, second, third], -1, 0),
                3 => sys::recvfrom(fd, &mut self.scratch, flags).map(|(n, _)| n),
                4 => sys::recvmsg(fd, &mut [first, second, third], flags),
                5 => recv_one(fd, &mut self.scratch, flags),
                _ => sys::recv(fd, &mut self.scratch, flags),
            }
        }?;
        self.check(n);
        Ok(n)
    }

    fn check(&mut self, n: usize) {
        if self.error.is_none() {
            self.error = self.pattern.first_error(self.received, &self.scratch[..n]);
            if let Some(at) = self.error {
                let (call, from) = (self.call, self.received);
                eprintln!(
                    "wrong byte {at} in {n} bytes from {from} by {call}: {}",
                    self.explain(&self.scratch[..n])
                );
            }
        }
        self.received += n as u64;
    }

    /// Where in the stream the bytes that are wrong belong, as far as it can be told.
    fn explain(&self, got: &[u8]) -> String {
        let at = self.error.unwrap_or(0);
        let skip = (at - self.received) as usize;
        let rest = &got[skip..got.len().min(skip + 64)];
        if rest.len() < 12 {
            return format!("{} wrong bytes at the end", rest.len());
        }
        // Less than half a period to either side: further away the answer would be ambiguous.
        let near = at.saturating_sub(490_000);
        let window = self.pattern.bytes(near, (at - near) as usize + 490_000);
        match window.windows(rest.len()).position(|w| w == rest) {
            Some(found) => {
                let belongs = near + found as u64;
                format!("they belong to {belongs}, {} bytes away", belongs as i64 - at as i64)
            }
            None => format!("they belong nowhere near; {rest:02x?}"),
        }
    }

    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// The connection has another number now.
    pub fn set_fd(&mut self, fd: Fd) {
        self.fd = fd;
    }

    pub fn pattern(&self) -> Pattern {
        self.pattern.clone()
    }

    /// Checks bytes that arrived by another call.
    pub fn accept(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.pattern.first_error(self.received, bytes);
        }
        self.received += bytes.len() as u64;
    }

    pub fn verdict(&self) -> String {
        match self.error {
            None => format!("{} bytes exact", self.received),
            Some(at) => format!("{} bytes, WRONG at {at}", self.received),
        }
    }
}

/// `recvmmsg` of two messages: MSG_WAITFORONE, so that it never waits for the second.
fn recv_one(fd: Fd, buf: &mut [u8], flags: i32) -> R {
    let half = buf.len() / 2;
    let (first, second) = buf.split_at_mut(half);
    let first_len = first.len();
    let lens = if first_len == 0 {
        sys::recvmmsg(fd, &mut [second], flags, None)?
    } else {
        sys::recvmmsg(fd, &mut [first, second], flags | libc::MSG_WAITFORONE, None)?
    };
    match lens[..] {
        [only] => Ok(only),
        [a, b] if a == first_len => Ok(a + b),
        [a, b] => {
            // The first message was shorter than its buffer: close the gap.
            buf.copy_within(half..half + b, a);
            Ok(a + b)
        }
        _ => Err(E(libc::EIO)),
    }
}
