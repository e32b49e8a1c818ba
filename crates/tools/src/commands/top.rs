//! `netacc top`: the processes that have the library, again and again, the connections of one, and
//! the trace of one of them.
//!
//! The terminal's part is a loop here, and [`keys`]; what is shown is [`app`]'s, of a trace
//! [`story`]'s, and how it fits is [`screen`]'s.

mod app;
mod keys;
mod screen;
mod story;

use super::{STATUS_FAILED, STATUS_USAGE, sees_processes};
use crate::processes::{self, Unknown};
use crate::show::one_line;
use crate::terminal;
use app::App;
use clap::ArgMatches;
use keys::{Keys, News};
use signal_hook::low_level::emulate_default_handler;
use std::ffi::{OsStr, c_int};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// `netacc top …`, the command line read; the exit status.
pub fn main(matches: &ArgMatches) -> c_int {
    let complain = |text: &str, status| {
        terminal::complain(&format!("netacc top: {text}"));
        status
    };
    if let Err(status) = sees_processes("netacc top") {
        return status;
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let text = "this takes a terminal; for files and pipes there is netacc_ss -w 1";
        return complain(text, STATUS_USAGE);
    }
    if !can_be_drawn_on(std::env::var_os("TERM").as_deref()) {
        let text = "this terminal cannot be drawn on, as TERM says (dumb, or empty); there is \
                    netacc_ss -w 1, and TERM=xterm where that is not so";
        return complain(text, STATUS_USAGE);
    }
    let pause = matches.get_one::<f64>("delay").copied().unwrap_or(1.0);
    let pid = match matches.get_one::<String>("pid").map(|word| meant(word)).transpose() {
        Ok(pid) => pid,
        Err((text, status)) => return complain(&text, status),
    };
    let done = Keys::new().and_then(|mut keys| {
        let mut terminal = ratatui::try_init()?;
        let done = run(&mut terminal, App::new(pid), Duration::from_secs_f64(pause), &mut keys);
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

/// Whether a terminal of that name knows what moves its cursor. (Nearly all do, and agree on it.)
fn can_be_drawn_on(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
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
    keys: &mut Keys,
) -> io::Result<c_int> {
    let mut next = Instant::now();
    loop {
        match keys.wait(next)? {
            News::Time => {
                app.look();
                next = Instant::now() + pause;
            }
            News::Key(key) if app.press(key) => return Ok(0),
            News::Key(_) | News::Size => {}
            News::Signal(number) => return Ok(number),
        }
        terminal.draw(|frame| screen::draw(frame, &mut app))?;
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
