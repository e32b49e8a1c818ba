//! `netacc top` in a terminal.

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// A terminal, and `netacc top` in it.
pub struct Top {
    pub child: Child,
    pub keys: File,
    pub said: Receiver<Vec<u8>>,
    all: Vec<u8>,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Top {
    pub fn new(columns: u16, arguments: &[&str]) -> Top {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = || {
            let path = std::ffi::OsStr::from_bytes(name.as_bytes());
            Stdio::from(File::options().read(true).write(true).open(path).unwrap())
        };
        // (Nobody's controlling terminal: its end sends no signal.)
        let mut command = Command::new("setsid");
        command.arg(env!("CARGO_BIN_EXE_netacc")).arg("top").args(arguments).env("TERM", "xterm");
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        drop(command);
        let keys = File::from(master);
        let mut reader = keys.try_clone().unwrap();
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            // At the end of the process reading fails (EIO).
            while let Ok(length) = reader.read(&mut block) {
                if tell.send(block[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Top { child, keys, said, all: Vec::new() }
    }

    /// All that it has written, without what moves the cursor, and without blanks: those that are
    /// on the screen anyway are not written.
    pub fn text(&self) -> String {
        let all = String::from_utf8_lossy(&self.all).into_owned();
        let mut parts = all.split("\u{1b}[");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text +=
                part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("");
        }
        text.retain(|c| !c.is_whitespace());
        text
    }

    /// Waits until it has written all of these, without blanks.
    pub fn shows(&mut self, words: &[&str]) {
        let end = Instant::now() + PATIENCE;
        while !words.iter().all(|word| self.text().contains(word)) {
            match self.said.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(more) => self.all.extend_from_slice(&more),
                Err(error) => panic!("{words:?}: {error}: {:?}", self.text()),
            }
        }
    }

    /// Waits until it has written this a second time.
    pub fn shows_again(&mut self, word: &str) {
        let end = Instant::now() + PATIENCE;
        while self.text().matches(word).count() < 2 {
            match self.said.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(more) => self.all.extend_from_slice(&more),
                Err(error) => panic!("{word}: {error}: {:?}", self.text()),
            }
        }
    }

    /// Has it draw all anew, in so many columns or one more, until it has written this. (Of a
    /// picture like the one before only what differs is written.)
    pub fn redraws(&mut self, columns: u16, word: &str) {
        self.redraws_behind("", columns, word);
    }

    /// The same behind these keys, which it may have had before there was anything to be shown.
    pub fn redraws_behind(&mut self, keys: &str, columns: u16, word: &str) {
        let end = Instant::now() + PATIENCE;
        for more in [0, 1].into_iter().cycle() {
            self.press(keys);
            self.resize(columns + more);
            let next = Instant::now() + Duration::from_millis(200);
            let left = || next.saturating_duration_since(Instant::now());
            while let Ok(more) = self.said.recv_timeout(left()) {
                self.all.extend_from_slice(&more);
            }
            if self.text().contains(word) {
                return;
            }
            assert!(Instant::now() < end, "{word}: {:?}", self.text());
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keys, size).unwrap();
        // (Who has it as his controlling terminal is told by the kernel.)
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::WINCH).unwrap();
    }

    /// Waits for its end; how it ended, and whether the terminal is as it was.
    pub fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > end => panic!("it does not end: {:?}", self.text()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        while let Ok(more) = self.said.recv_timeout(Duration::from_secs(1)) {
            self.all.extend_from_slice(&more);
        }
        status
    }

    /// Whether it has gone to the terminal's other screen, and back.
    pub fn has_restored(&self) -> bool {
        let all = String::from_utf8_lossy(&self.all);
        all.contains("\u{1b}[?1049h") && all.contains("\u{1b}[?1049l")
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
