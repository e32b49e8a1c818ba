//! `netacc top`: the processes that have the library, again and again, the connections of one, and
//! the trace of one of them.
//!
//! The terminal's part is a loop here; what is shown is [`app`]'s, of a trace [`story`]'s, and how
//! it fits is [`screen`]'s.

mod app;
mod screen;
mod story;

use super::{STATUS_FAILED, STATUS_USAGE};
use crate::processes::{self, Unknown};
use crate::show::one_line;
use crate::terminal;
use app::{App, Key};
use clap::ArgMatches;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;
use std::ffi::c_int;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// `netacc top …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    let complain = |text: &str, status| {
        terminal::complain(&format!("netacc top: {text}"));
        status
    };
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let text = "this takes a terminal; for files and pipes there is netacc_ss -w 1";
        return complain(text, STATUS_USAGE);
    }
    let pause = matches.get_one::<f64>("delay").copied().unwrap_or(1.0);
    let pid = match matches.get_one::<String>("pid").map(|word| meant(word)).transpose() {
        Ok(pid) => pid,
        Err((text, status)) => return complain(&text, status),
    };
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGTERM] {
        // (These three can be handled.)
        let _ = flag::register_usize(number, Arc::clone(&signal), number as usize);
    }
    let done = ratatui::try_init().and_then(|mut terminal| {
        let keys = Keys { signal };
        let done = run(&mut terminal, App::new(pid), Duration::from_secs_f64(pause), &keys);
        let _ = terminal.show_cursor();
        let _ = ratatui::try_restore();
        // (Its drop complains to a terminal that is gone; a complaint that fails is a panic.)
        std::mem::forget(terminal);
        done
    });
    match done {
        Ok(0) => 0,
        Ok(signal) => {
            let _ = emulate_default_handler(signal);
            STATUS_FAILED
        }
        Err(error) => complain(&error.to_string(), STATUS_FAILED),
    }
}

/// The process that a word means, which may have no library where it is a number; otherwise what is
/// wrong with the word, and the exit status.
fn meant(word: &str) -> Result<u32, (String, c_int)> {
    let found = processes::named(&[word.to_owned()]).map_err(|unknown| {
        let status = match unknown {
            Unknown::Number(_) => STATUS_USAGE,
            Unknown::Name(_) => STATUS_FAILED,
        };
        (one_line(&unknown.to_string()), status)
    })?;
    let pids: Vec<u32> = found.into_iter().map(|found| found.pid).collect();
    only(word, &pids).map_err(|text| (text, STATUS_FAILED))
}

fn only(word: &str, pids: &[u32]) -> Result<u32, String> {
    match pids {
        [pid] => Ok(*pid),
        pids => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let (word, pids) = (one_line(word), pids.join(", "));
            Err(format!("{word}: {pids} have this name: say the number of one"))
        }
    }
}

/// Until the user has enough of it, or a signal comes: then its number.
fn run(
    terminal: &mut ratatui::DefaultTerminal,
    mut app: App,
    pause: Duration,
    keys: &Keys,
) -> io::Result<c_int> {
    let mut next = Instant::now();
    loop {
        match keys.wait(next)? {
            News::Time => {
                app.look();
                next = Instant::now() + pause;
            }
            News::Key(key) if app.press(meaning(key)) => return Ok(0),
            News::Key(_) | News::Size => {}
            News::Signal(number) => return Ok(number),
        }
        terminal.draw(|frame| screen::draw(frame, &mut app))?;
    }
}

enum News {
    Time,
    Key(KeyEvent),
    Size,
    Signal(c_int),
}

/// What comes from the terminal. crossterm would read for ever where the terminal is gone, and does
/// not tell of signals: it is asked when there is something.
struct Keys {
    signal: Arc<AtomicUsize>,
}

impl Keys {
    fn wait(&self, until: Instant) -> io::Result<News> {
        // (A signal that comes before the wait does not end it.)
        const LONGEST: Duration = Duration::from_millis(500);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let stdin = io::stdin();
            let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
            let time = Timespec::try_from(left.min(LONGEST)).map_err(io::Error::other)?;
            match poll(&mut terminal, Some(&time)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let signal = self.signal.load(Ordering::Relaxed);
            if signal != 0 {
                return Ok(News::Signal(c_int::try_from(signal).unwrap_or(SIGTERM)));
            }
            if terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                return Err(io::Error::other("the terminal is gone"));
            }
            if event::poll(Duration::ZERO)? {
                match event::read()? {
                    Event::Key(key) => return Ok(News::Key(key)),
                    Event::Resize(..) => return Ok(News::Size),
                    _ => {}
                }
            }
            if left.is_zero() {
                return Ok(News::Time);
            }
        }
    }
}

fn meaning(key: KeyEvent) -> Key {
    if key.kind == KeyEventKind::Release {
        return Key::Other;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q') => Key::Quit,
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => Key::Back,
        KeyCode::Enter | KeyCode::Right => Key::Enter,
        KeyCode::Up | KeyCode::Char('k') => Key::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Key::Move(1),
        KeyCode::PageUp => Key::Move(-20),
        KeyCode::PageDown => Key::Move(20),
        KeyCode::Home => Key::Move(i64::MIN),
        KeyCode::End => Key::Move(i64::MAX),
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char(' ') => Key::Pause,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::only;

    #[test]
    fn a_name_that_several_have_is_asked_about() {
        assert_eq!(only("redis-server", &[17]), Ok(17));
        let text = "redis-server: 17, 4711 have this name: say the number of one";
        assert_eq!(only("redis-server", &[17, 4711]), Err(text.to_owned()));
    }
}
