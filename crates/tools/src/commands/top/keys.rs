//! What comes from the terminal: keys, another size, and the signals that end it.
//!
//! crossterm's own events are not used. It waits by edges (mio): where a key and SIGWINCH come
//! together it tells of the one that it finds first, and does not see the other until the next of
//! that kind comes. Here a byte that has not been read wakes the next wait as well.

use super::app::Key;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::{flag, low_level::pipe};
use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ESC: u8 = 0x1b;
/// So soon what belongs to a key has come behind its ESC, also from afar; the key Esc is one alone.
const SEQUENCE: Duration = Duration::from_millis(50);
/// No key is longer.
const LONGEST: usize = 32;

pub(super) enum News {
    Time,
    Key(Key),
    Size,
    Signal(c_int),
}

pub(super) struct Keys {
    /// The signal that ends it, when it has come.
    signal: Arc<AtomicUsize>,
    /// A byte for each signal: one that comes before a wait ends that, too. It is there until the
    /// process has ended, as signals come until then: without a reader they would end it (SIGPIPE).
    signals: &'static UnixStream,
    /// What has come, and has not been told.
    bytes: Vec<u8>,
}

impl Keys {
    pub(super) fn new() -> io::Result<Keys> {
        let (signals, told) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGTERM] {
            // (In this order, which is that of what a signal does.)
            flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            pipe::register(number, told.try_clone()?)?;
        }
        pipe::register(SIGWINCH, told)?;
        Ok(Keys { signal, signals: Box::leak(Box::new(signals)), bytes: Vec::new() })
    }

    /// The next news, until then at the latest.
    pub(super) fn wait(&mut self, until: Instant) -> io::Result<News> {
        let mut whole_at = Instant::now() + SEQUENCE;
        loop {
            if let Some(key) = self.next(Instant::now() >= whole_at) {
                return Ok(News::Key(key));
            }
            let until = if self.bytes.is_empty() { until } else { until.min(whole_at) };
            let left = until.saturating_duration_since(Instant::now());
            let stdin = io::stdin();
            let mut both =
                [PollFd::new(&stdin, PollFlags::IN), PollFd::new(self.signals, PollFlags::IN)];
            let time = Timespec::try_from(left).map_err(io::Error::other)?;
            let found = match poll(&mut both, Some(&time)) {
                Ok(found) => found,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let [keys, signals] = both.map(|fd| fd.revents());
            let has_signal = signals.contains(PollFlags::IN) && self.takes_signals()?;
            let signal = self.signal.load(Ordering::Relaxed);
            if signal != 0 {
                return Ok(News::Signal(c_int::try_from(signal).unwrap_or(SIGTERM)));
            }
            if keys.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                return Err(io::Error::other("the terminal is gone"));
            }
            if keys.contains(PollFlags::IN) {
                self.read(stdin)?;
                whole_at = Instant::now() + SEQUENCE;
            }
            if has_signal {
                return Ok(News::Size);
            }
            if found == 0 && self.bytes.is_empty() {
                return Ok(News::Time);
            }
        }
    }

    fn read(&mut self, stdin: impl AsFd) -> io::Result<()> {
        let mut block = [0; 1024];
        match read(stdin, &mut block) {
            Ok(0) => Err(io::Error::other("the terminal is gone")),
            Ok(length) => {
                self.bytes.extend_from_slice(block.get(..length).unwrap_or_default());
                Ok(())
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there were any.
    fn takes_signals(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            match read(self.signals, &mut [0; 64]) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(any),
                Ok(_) => any = true,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The first key of what has come; `whole`: nothing more belongs to it.
    fn next(&mut self, whole: bool) -> Option<Key> {
        let (key, length) = first(&self.bytes, whole)?;
        self.bytes.drain(..length);
        Some(key)
    }
}

/// A key, and how many bytes it is. `None`: there is none, or more may belong to it.
fn first(bytes: &[u8], whole: bool) -> Option<(Key, usize)> {
    match *bytes {
        [ESC, b'[', ref rest @ ..] => {
            let last = rest.iter().position(|byte| !(b' '..=b'?').contains(byte));
            match last.and_then(|at| Some((at, *rest.get(at)?))) {
                // (Whatever else is no part of it.)
                Some((at, ESC)) => Some((Key::Other, at + 2)),
                Some((at, end)) => {
                    Some((of_sequence(rest.get(..at).unwrap_or_default(), end), at + 3))
                }
                None if whole || bytes.len() > LONGEST => Some((Key::Other, bytes.len())),
                None => None,
            }
        }
        [ESC, b'O', end, ..] => Some((of_sequence(&[], end), 3)),
        [ESC] | [ESC, b'O'] if !whole => None,
        [ESC] | [ESC, ESC, ..] => Some((Key::Back, 1)),
        // (With Alt.)
        [ESC, byte, ..] => Some((of_byte(byte), 2)),
        [byte, ..] => Some((of_byte(byte), 1)),
        [] => None,
    }
}

fn of_byte(byte: u8) -> Key {
    const CTRL_C: u8 = 3;
    match byte {
        b'q' | CTRL_C => Key::Quit,
        b'\x7f' | b'\x08' => Key::Back,
        b'\r' => Key::Enter,
        b'k' => Key::Move(-1),
        b'j' | b'\n' => Key::Move(1),
        b's' => Key::Sort,
        b' ' => Key::Pause,
        _ => Key::Other,
    }
}

/// Of a key that says more: `ESC [ parameters end`, or `ESC O end`. (Shift, Alt and Control are a
/// second parameter, and do not matter.)
fn of_sequence(parameters: &[u8], end: u8) -> Key {
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    match (end, number) {
        (b'A', _) => Key::Move(-1),
        (b'B', _) => Key::Move(1),
        (b'C', _) => Key::Enter,
        (b'D', _) => Key::Back,
        (b'M', b"") => Key::Enter,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Move(i64::MIN),
        (b'F', _) | (b'~', b"4" | b"8") => Key::Move(i64::MAX),
        (b'~', b"5") => Key::Move(-20),
        (b'~', b"6") => Key::Move(20),
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of these bytes, and how many are left.
    fn keys(text: &str, whole: bool) -> (Vec<Key>, usize) {
        let (mut bytes, mut keys) = (text.as_bytes(), Vec::new());
        while let Some((key, length)) = first(bytes, whole) {
            keys.push(key);
            bytes = &bytes[length..];
        }
        (keys, bytes.len())
    }

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        use Key::*;
        let alone = [
            ("q\u{3}", vec![Quit, Quit]),
            ("\r \u{7f}\u{8}s", vec![Enter, Pause, Back, Back, Sort]),
            ("kj\u{1b}[A\u{1b}[B", vec![Move(-1), Move(1), Move(-1), Move(1)]),
            ("\u{1b}OA\u{1b}OB\u{1b}OC\u{1b}OD", vec![Move(-1), Move(1), Enter, Back]),
            ("\u{1b}[C\u{1b}[D\u{1b}OM", vec![Enter, Back, Enter]),
            ("\u{1b}[5~\u{1b}[6~", vec![Move(-20), Move(20)]),
            ("\u{1b}[H\u{1b}[1~\u{1b}[7~\u{1b}OH", vec![Move(i64::MIN); 4]),
            ("\u{1b}[F\u{1b}[4~\u{1b}[8~\u{1b}OF", vec![Move(i64::MAX); 4]),
            // With Control and Shift; with Alt.
            ("\u{1b}[1;5A\u{1b}[6;2~\u{1b}q", vec![Move(-1), Move(20), Quit]),
            // Insert, F1, F5, a letter that means nothing, two bytes of one.
            ("\u{1b}[2~\u{1b}OP\u{1b}[15~xé", vec![Other; 6]),
        ];
        for (text, expected) in alone {
            assert_eq!(keys(text, false), (expected, 0), "{text:?}");
        }
    }

    #[test]
    fn what_may_go_on_is_waited_for() {
        for part in ["\u{1b}", "\u{1b}[", "\u{1b}O", "\u{1b}[1;5"] {
            assert_eq!(keys(&format!("j{part}"), false), (vec![Key::Move(1)], part.len()));
        }
        assert_eq!(keys("\u{1b}", true), (vec![Key::Back], 0));
        assert_eq!(keys("\u{1b}\u{1b}q", false), (vec![Key::Back, Key::Quit], 0));
        assert_eq!(keys("\u{1b}[1;5", true), (vec![Key::Other], 0));
        assert_eq!(keys("\u{1b}[1\u{1b}[A", false), (vec![Key::Other, Key::Move(-1)], 0));
        let endless = format!("\u{1b}[{}", "1".repeat(LONGEST));
        assert_eq!(keys(&endless, false), (vec![Key::Other], 0));
    }
}
