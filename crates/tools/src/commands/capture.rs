//! `netacc capture`: the bytes of accelerated connections as a file for Wireshark and tcpdump.

use super::{STATUS_FAILED, STATUS_USAGE, ignore_signals_of_writes, is_open, sees_processes};
use crate::capture::connection::Now;
use crate::capture::follow::{PAUSE_MAX, PAUSE_MIN, Pairs, Process};
use crate::capture::packet::PAYLOAD_MAX;
use crate::capture::story::Story;
use crate::options::VERSION;
use crate::processes::{self, Unknown};
use crate::segment::{SegmentError, may_trace};
use crate::selection::{Network, Selection};
use crate::show::one_line;
use crate::terminal;
use clap::ArgMatches;
use netacc_control::stats::Path as By;
use rustix::thread::set_current_timer_slack;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A packet has no more bytes.
const SNAP_MAX: u32 = PAYLOAD_MAX as u32 + 4096;
const BUFFER: usize = 1 << 20;
/// What stands for standard output.
const STDOUT: &str = "-";
/// What is buffered is handed on after so long, whatever comes.
const FLUSH: Duration = Duration::from_millis(100);
/// It is looked after so long whether a process has its first connection.
const AWAIT: Duration = Duration::from_millis(10);
/// A process whose statistics are still not to be read at so many looks is not making them.
const UNREADABLE_MAX: u32 = 300;
/// The same of a process that is there when the capture begins.
const UNREADABLE_FIRST: u32 = 50;

/// `netacc capture …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    ignore_signals_of_writes();
    if let Err(status) = sees_processes("netacc capture") {
        return status;
    }
    let words: Vec<String> = matches.get_many("pid").into_iter().flatten().cloned().collect();
    let began = unix_ns();
    let (processes, awaited, status) = match open(&words, began) {
        Ok(opened) => opened,
        Err(status) => return status,
    };
    let Some(file) = matches.get_one::<PathBuf>("write") else { return STATUS_USAGE };
    let name = match file.as_os_str() == STDOUT {
        true => "standard output".into(),
        false => file.to_string_lossy(),
    };
    let out = match create(file) {
        Ok(out) => out,
        Err(error) => return complain(format_args!("{name}: {error}")),
    };
    let number = |id| matches.get_one::<u32>(id).copied();
    let snap = number("snaplen").unwrap_or(SNAP_MAX).min(SNAP_MAX);
    let most = number("count").map_or(u64::MAX, u64::from);
    let application = format!("netacc capture {VERSION}");
    let story = Story::begin(BufWriter::with_capacity(BUFFER, out), snap, most, &application);
    let seconds = matches.get_one::<f64>("duration").copied();
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let begin = |story| Capture { processes, awaited, story, until, began };
    let done = story.and_then(|story| begin(story).run(&selection(matches)));
    match done {
        Ok(sums) => {
            terminal::complain(&format!("netacc capture: {}", sums.text()));
            status
        }
        // A reader that has seen enough is no error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => status,
        Err(error) => complain(format_args!("{name}: {error}")),
    }
}

fn complain(text: impl std::fmt::Display) -> c_int {
    terminal::complain(&format!("netacc capture: {}", one_line(&text.to_string())));
    STATUS_FAILED
}

/// Those that can be read, and those that have had no connection yet; of others it is said why not,
/// and the status is not 0.
fn open(words: &[String], began: u64) -> Result<(Vec<Process>, Vec<Awaited>, c_int), c_int> {
    let found = processes::named(words).map_err(|error| {
        complain(&error);
        match error {
            Unknown::Number(_) => STATUS_USAGE,
            Unknown::Name(_) => STATUS_FAILED,
        }
    })?;
    let (mut opened, mut awaited, mut status) = (Vec::new(), Vec::new(), 0);
    for found in found {
        let mut process = found.process.and_then(|_| Process::open(found.pid, began));
        for _ in 0..UNREADABLE_FIRST {
            if !matches!(process, Err(SegmentError::Unreadable(_))) {
                break;
            }
            // (It is making its segment at this very moment, perhaps.)
            std::thread::sleep(AWAIT);
            process = Process::open(found.pid, began);
        }
        match process {
            Ok(process) => opened.push(process),
            Err(SegmentError::NoSegment) => awaited.push(Awaited { pid: found.pid, unreadable: 0 }),
            Err(SegmentError::NotPermitted) if !may_trace() => {
                status = complain(format_args!(
                    "{}: not permitted: this takes the user of the process, and that such may look \
                     into each other's memory (kernel.yama.ptrace_scope is 0), or CAP_SYS_PTRACE",
                    found.pid
                ));
            }
            Err(error) => status = complain(format_args!("{}: {error}", found.pid)),
        }
    }
    let is_none = opened.is_empty() && awaited.is_empty();
    if is_none { Err(status) } else { Ok((opened, awaited, status)) }
}

/// What is asked for of the connections.
fn selection(matches: &ArgMatches) -> Selection {
    let paths = matches.get_many::<String>("path").into_iter().flatten();
    let path = |word: &String| By::ALL.into_iter().find(|path| path.name() == word);
    Selection {
        ports: matches.get_many::<u16>("port").into_iter().flatten().copied().collect(),
        peers: matches.get_many::<Network>("peer").into_iter().flatten().copied().collect(),
        paths: paths.filter_map(path).collect(),
        ..Selection::default()
    }
}

/// Standard output, or a new file that its user alone may read: what is there already, a link too,
/// is not written to.
fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    if path.as_os_str() == STDOUT {
        is_open()?;
        if io::stdout().is_terminal() {
            let text = "this is a terminal: write to a file or a pipe";
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        return Ok(Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)));
    }
    let mut how = OpenOptions::new();
    let how = how.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file: File = how.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            io::Error::new(ErrorKind::AlreadyExists, "there is such a file already")
        }
        _ => error,
    })?;
    Ok(Box::new(file))
}

/// A process that has had no connection yet.
struct Awaited {
    pid: u32,
    /// So many looks in a row have found statistics there that cannot be read.
    unreadable: u32,
}

/// A capture that is under way.
struct Capture<W> {
    processes: Vec<Process>,
    awaited: Vec<Awaited>,
    story: Story<W>,
    until: Option<Instant>,
    /// In nanoseconds of Unix.
    began: u64,
}

impl<W: Write> Capture<W> {
    /// Until somebody ends it, its time is over, it has as many packets as are wanted, or no
    /// process is left.
    fn run(mut self, selection: &Selection) -> io::Result<crate::capture::story::Sums> {
        let is_ended = Arc::new(AtomicBool::new(false));
        for number in [SIGHUP, SIGINT, SIGTERM] {
            // (These three can be handled.)
            let _ = flag::register(number, Arc::clone(&is_ended));
        }
        // A sleep of 20 µs is not to become one of 70.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        for process in &mut self.processes {
            let interface = self.story.interface(&process.title(), unix_ns())?;
            process.set_interface(interface);
        }
        self.story.flush();
        let (mut pairs, mut flush_at, mut await_at) = (Pairs::new(), None, Instant::now());
        while !is_ended.load(Ordering::Relaxed) && self.story.goes_on() {
            let now = now();
            let is_over = self.processes.is_empty() && self.awaited.is_empty();
            if self.until.is_some_and(|until| now.instant >= until) || is_over {
                break;
            }
            if now.instant >= await_at && !self.awaited.is_empty() {
                await_at = now.instant + AWAIT;
                self.look_for_awaited()?;
            }
            let (has_news, next) = self.look(selection, &mut pairs, now);
            if has_news {
                flush_at.get_or_insert(now.instant + FLUSH);
            }
            if flush_at.is_some_and(|at| !has_news || now.instant >= at) {
                self.story.flush();
                flush_at = None;
            }
            let pause = next.saturating_duration_since(now.instant);
            std::thread::sleep(pause.clamp(PAUSE_MIN, PAUSE_MAX));
        }
        for process in &mut self.processes {
            process.close(&mut self.story, now());
        }
        self.story.finish(unix_ns())
    }

    /// Whether those that had no connection have one now.
    fn look_for_awaited(&mut self) -> io::Result<()> {
        for Awaited { pid, unreadable } in std::mem::take(&mut self.awaited) {
            match Process::open(pid, self.began) {
                Ok(mut process) => {
                    let interface = self.story.interface(&process.title(), unix_ns())?;
                    process.set_interface(interface);
                    self.processes.push(process);
                }
                Err(SegmentError::NoSegment) => self.awaited.push(Awaited { pid, unreadable: 0 }),
                // (The process is making it at this very moment, perhaps.)
                Err(SegmentError::Unreadable(_)) if unreadable < UNREADABLE_MAX => {
                    self.awaited.push(Awaited { pid, unreadable: unreadable + 1 });
                }
                Err(error) => {
                    complain(format_args!("{pid}: {error}"));
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, selection: &Selection, pairs: &mut Pairs, now: Now) -> (bool, Instant) {
        let (mut has_news, mut next) = (false, now.instant + PAUSE_MAX);
        for process in &mut self.processes {
            let (is_new, due) = process.look(selection, pairs, &mut self.story, now);
            has_news |= is_new;
            next = next.min(due);
        }
        let story = &mut self.story;
        self.processes.retain_mut(|process| {
            if process.is_gone() {
                process.close(story, now);
                terminal::complain(&format!(
                    "netacc capture: {}: has ended, or has become another program",
                    process.pid
                ));
            }
            !process.is_gone()
        });
        (has_news, next)
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), unix_ns: unix_ns() }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
