//! A terminal of so many columns, and what a program writes to it.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitStatus, Stdio};

/// The terminal's own side; the other one can be opened any number of times.
pub struct Terminal {
    pub master: File,
    name: Vec<u8>,
}

impl Terminal {
    pub fn new(columns: u16) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_bytes();
        let terminal = Terminal { master: File::from(master), name };
        terminal.resize(columns);
        terminal
    }

    pub fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
    }

    /// As a standard descriptor of a program.
    pub fn slave(&self) -> Stdio {
        let path = OsStr::from_bytes(&self.name);
        Stdio::from(File::options().read(true).write(true).open(path).unwrap())
    }
}

/// What a program says on a terminal, and how it ends.
pub fn said(columns: u16, command: &mut Command) -> (String, ExitStatus) {
    let terminal = Terminal::new(columns);
    let mut reader = terminal.master.try_clone().unwrap();
    command.stdin(Stdio::null()).stdout(terminal.slave()).stderr(terminal.slave());
    let mut child = command.spawn().unwrap();
    // (The command holds the terminal open for as long as it lives.)
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut said = Vec::new();
    let mut block = [0; 4096];
    // At the end of the process reading fails (EIO).
    while let Ok(length) = reader.read(&mut block) {
        said.extend_from_slice(&block[..length]);
    }
    let status = child.wait().unwrap();
    (String::from_utf8_lossy(&said).replace("\r\n", "\n"), status)
}
