//! How wide the reader's terminal is, and text that fits it. What goes to a file or a program is
//! not touched.

use crate::table::{columns_of, wrapped};
use rustix::termios::tcgetwinsize;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;

/// Of a terminal that does not say how many it has.
pub const COLUMNS: usize = 80;
/// Narrower ones get lines that they break for themselves.
const COLUMNS_MIN: usize = 20;

/// Columns of the terminal that standard output is: what COLUMNS says, else what the terminal does.
/// `None`: it is no terminal.
pub fn columns() -> Option<usize> {
    width(io::stdout())
}

/// Says a line, or some, on standard error; folded where that is a terminal, as [`columns`] has it.
/// (Where nobody hears that there is nothing else to do.)
pub fn complain(text: &str) {
    let text = fold(format!("{text}\n"), width(io::stderr()));
    let _ = io::stderr().write_all(text.as_bytes());
}

fn width(out: impl AsFd + IsTerminal) -> Option<usize> {
    if !out.is_terminal() {
        return None;
    }
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse::<usize>().ok());
    let is = || tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
    let columns = asked.filter(|columns| *columns > 0).or_else(is).filter(|columns| *columns > 0);
    Some(columns.unwrap_or(COLUMNS).max(COLUMNS_MIN))
}

/// Lines that are wider go on in the next ones, a little further in than they began.
pub fn fold(text: String, columns: Option<usize>) -> String {
    let is_wide = |line: &str, columns| columns_of(line) > columns;
    let Some(columns) = columns.filter(|n| text.lines().any(|line| is_wide(line, *n))) else {
        return text;
    };
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if is_wide(line, columns) {
            out.push_str(&broken(line, columns).join("\n"));
        } else {
            out.push_str(line);
        }
        out.push_str(end);
    }
    out
}

fn broken(line: &str, columns: usize) -> Vec<String> {
    let words = line.trim_start_matches(' ');
    let indent = (line.len() - words.len()).min(columns / 4);
    let further = (indent + 2).min(columns / 2);
    // (All lines have the room of the further ones: the first is not filled up.)
    let lines = wrapped(words, columns - further).into_iter().enumerate();
    lines.map(|(at, line)| " ".repeat(if at == 0 { indent } else { further }) + &line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_go_on_further_in() {
        let text = "short\n  12.5  connect local 127.0.0.1:1\n\nend";
        let folded = "short\n  12.5 connect\n    local\n    127.0.0.1:1\n\nend";
        assert_eq!(fold(text.to_owned(), Some(18)), folded);
        assert_eq!(fold(text.to_owned(), Some(80)), text);
        assert_eq!(fold(text.to_owned(), None), text);
        assert_eq!(fold(String::from("日本語 日本語 ab"), Some(8)), "日本語\n  日本語\n  ab");
    }
}
