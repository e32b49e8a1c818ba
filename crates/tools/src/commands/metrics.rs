//! `netacc metrics`: what all processes of this host say, for Prometheus and for a browser.
//!
//! Printed once, kept in a file for node_exporter, or served on loopback or a unix socket. Only who
//! may read the processes himself is answered: this user, root, and those that `--user` names.

mod serve;
mod visitors;

use super::{STATUS_FAILED, STATUS_USAGE, print, sees_processes};
use crate::metrics::{Format, Past, render};
use crate::processes::Looks;
use crate::terminal;
use clap::ArgMatches;
pub use serve::Place;
use serve::serve;
use std::ffi::c_int;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use visitors::Visitors;

/// `netacc metrics …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    let users: Vec<String> = matches.get_many("user").into_iter().flatten().cloned().collect();
    let every = matches.get_one::<f64>("every").copied().map(Duration::from_secs_f64);
    if let Err(status) = sees_processes("netacc metrics") {
        return status;
    }
    let done = if let Some(place) = matches.get_one::<Place>("listen") {
        let visitors = match Visitors::new(&users) {
            Ok(visitors) => visitors,
            Err(unknown) => return complain(&unknown, STATUS_USAGE),
        };
        serve(place, visitors)
    } else if let Some(file) = matches.get_one::<PathBuf>("textfile") {
        keep(file, every)
    } else {
        return print("netacc", &now(&mut State::default(), Format::OpenMetrics));
    };
    match done {
        Ok(()) => 0,
        Err(error) => complain(&error.to_string(), STATUS_FAILED),
    }
}

fn complain(text: &str, status: c_int) -> c_int {
    terminal::complain(&format!("netacc metrics: {text}"));
    status
}

/// What is kept from one look to the next.
#[derive(Debug, Default)]
struct State {
    looks: Looks,
    past: Past,
}

/// What there is to say at this moment.
fn now(state: &mut State, format: Format) -> String {
    let (found, not_permitted) = state.looks.sums();
    render(&found, not_permitted, &mut state.past, format)
}

/// Writes a file that is not there yet: nobody else's link is followed. It tells of all users'
/// processes: only its owner and this group read it.
fn write(file: &Path, group: Option<u32>, text: &str) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(file)?;
    // (Who is not of that group may not give it the file, which stays with his own.)
    let _ = fchown(&file, None, group);
    file.write_all(text.as_bytes())
}

/// The group that reads the file: that of the one which is there, if it is ours, or its folder's.
fn group(file: &Path) -> Option<u32> {
    let me = rustix::process::geteuid().as_raw();
    let ours = fs::symlink_metadata(file).ok().filter(|is| is.is_file() && is.uid() == me);
    let folder = || {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        fs::metadata(folder.unwrap_or(Path::new("."))).ok()
    };
    ours.or_else(folder).map(|is| is.gid())
}

/// A file is replaced, and nothing else: as root, a device would be gone, or the link to one that
/// `/dev/stdout` is.
fn may_be_replaced(file: &Path) -> io::Result<()> {
    match fs::symlink_metadata(file) {
        Ok(is) if !is.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "is no file, and is left as it is"))
        }
        _ => Ok(()),
    }
}

/// Writes the file, once or again and again. A reader sees the old one or the new one, whole.
fn keep(file: &Path, every: Option<Duration>) -> io::Result<()> {
    let mut state = State::default();
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = file.with_file_name(name);
    loop {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        let text = now(&mut state, Format::Text);
        let written = may_be_replaced(file)
            .and_then(|()| write(&new, group(file), &text))
            .and_then(|()| fs::rename(&new, file));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written.map_err(named)?;
        match every {
            Some(pause) => std::thread::sleep(pause),
            None => return Ok(()),
        }
    }
}
