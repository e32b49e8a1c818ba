//! What was found, and how it is said.

use super::remedy::{Command, Remedy};
use crate::table::columns_of;
use crate::terminal::{self, COLUMNS};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::mpsc::Sender;

/// Lines that are longer are hard to read.
const WIDTH_MAX: usize = 100;
/// Where the text begins, behind the level.
const INDENT: usize = 9;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing is in the way by it.
    Note,
    /// It is in the way.
    Problem,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone)]
pub struct Finding {
    level: Level,
    /// A word for scripts; part of the contract of `--json`.
    check: &'static str,
    /// What was found, with the value.
    found: String,
    /// What mends it. `None`: there is nothing to mend.
    remedy: Option<Remedy>,
    /// The subject could not be looked at.
    is_blind: bool,
}

/// All of them, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    told: Option<Sender<Finding>>,
    /// The subject, or a part of it, could not be looked at.
    pub is_blind: bool,
}

impl Findings {
    /// Those of a thread that tells another one each at once.
    pub fn telling(sender: Sender<Finding>) -> Findings {
        Findings { told: Some(sender), ..Findings::default() }
    }

    /// Adds one.
    pub fn take(&mut self, finding: Finding) {
        if let Some(told) = &self.told {
            // (Nobody listens any more: too late.)
            let _ = told.send(finding.clone());
        }
        self.is_blind |= finding.is_blind;
        self.list.push(finding);
    }

    fn add(&mut self, level: Level, check: &'static str, found: String, remedy: Option<Remedy>) {
        let is_blind = false;
        self.take(Finding { level, check, found, remedy, is_blind });
    }

    /// As it should be.
    pub fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, check, found.into(), None);
    }

    /// Worth knowing.
    pub fn note(&mut self, check: &'static str, found: impl Into<String>, remedy: Remedy) {
        self.add(Level::Note, check, found.into(), Some(remedy));
    }

    /// In the way.
    pub fn problem(&mut self, check: &'static str, found: impl Into<String>, remedy: Remedy) {
        self.add(Level::Problem, check, found.into(), Some(remedy));
    }

    /// It cannot be looked at.
    pub fn blind(&mut self, check: &'static str, found: impl Into<String>, remedy: Remedy) {
        let (found, remedy) = (found.into(), Some(remedy));
        self.take(Finding { level: Level::Problem, check, found, remedy, is_blind: true });
    }

    /// The worst level.
    pub fn worst(&self) -> Option<Level> {
        self.list.iter().map(|finding| finding.level).max()
    }

    /// How many things are in the way.
    pub fn problems(&self) -> usize {
        self.count(Level::Problem)
    }

    fn count(&self, level: Level) -> usize {
        self.list.iter().filter(|finding| finding.level == level).count()
    }

    fn verdict(&self) -> &'static str {
        match self.worst() {
            _ if self.is_blind => "unknown",
            Some(Level::Problem) => "obstructed",
            _ => "clear",
        }
    }

    /// For programs; a contract.
    pub fn json(&self, kind: &str, name: &str) -> Value {
        let finding = |finding: &Finding| {
            let command = finding.remedy.as_ref().map(|remedy| &remedy.command);
            json!({
                "level": finding.level.name(),
                "check": finding.check,
                "found": finding.found,
                "remedy": finding.remedy.as_ref().map(|remedy| &remedy.text),
                "command": command.and_then(Command::line),
                "command_does": command.and_then(Command::does),
                "no_command": command.and_then(Command::why_none),
            })
        };
        json!({
            "subject": { "kind": kind, "name": name },
            "verdict": self.verdict(),
            "problems": self.problems(),
            "notes": self.count(Level::Note),
            "findings": self.list.iter().map(finding).collect::<Vec<_>>(),
        })
    }

    /// For people, in so many columns, if that is known ([`terminal::columns`]).
    pub fn text(&self, kind: &str, name: &str, columns: Option<usize>) -> String {
        let width = columns.unwrap_or(COLUMNS).min(WIDTH_MAX);
        let words = |heading: &str, indent, text: &str| {
            terminal::fold(paragraph(width, heading, indent, text), columns)
        };
        let mut out = words("", 0, &format!("{} {name}", capital(kind)));
        for finding in &self.list {
            let text = format!("{}: {}", finding.check, finding.found);
            out += &words(finding.level.name(), INDENT, &text);
            let Some(Remedy { text, command }) = &finding.remedy else { continue };
            out += &words("", INDENT, &format!("-> {text}"));
            // (A word of a command that is longer than a line is not broken: it stands out.)
            out += &match command {
                Command::Mends(line) => command_lines(width, "mend:", line),
                Command::Opens(line) => command_lines(width, "edit:", line),
                Command::Shows(line) => command_lines(width, "look:", line),
                Command::None(why) => words("", INDENT, &format!("no command: {why}")),
            };
        }
        let (problems, notes) = (self.problems(), self.count(Level::Note));
        let said = match self.verdict() {
            "unknown" => String::from("It could not be told."),
            "clear" => String::from("Nothing is in the way."),
            _ if problems == 1 => String::from("One thing is in the way."),
            _ => format!("{problems} things are in the way."),
        };
        let notes = match notes {
            0 => String::new(),
            1 => String::from(" (1 note)"),
            notes => format!(" ({notes} notes)"),
        };
        out + &terminal::fold(format!("\n{said}{notes}\n"), columns)
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Words in lines; only a word that is longer than a line, such as a path, stands out. What comes
/// from others must not drive the terminal.
fn paragraph(width: usize, heading: &str, indent: usize, text: &str) -> String {
    let mut out = String::new();
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = format!("{heading:<indent$}");
    let mut is_first = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_first && columns_of(&line) + 1 + columns_of(word) > width {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(indent);
            is_first = true;
        }
        if !is_first {
            line.push(' ');
        }
        line.push_str(word);
        is_first = false;
    }
    let _ = writeln!(out, "{}", line.trim_end());
    out
}

/// A command. Where it goes on in the next line, that is as it would be typed: behind a backslash.
fn command_lines(width: usize, label: &str, command: &str) -> String {
    let mut out = String::new();
    let command: String = command.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = format!("{:INDENT$}{label}", "");
    let further = INDENT + label.len();
    let words = shell_words(&command);
    for (at, word) in words.iter().enumerate() {
        let backslash = if at + 1 == words.len() { 0 } else { 2 };
        let is_first = line.len() <= further;
        if !is_first && columns_of(&line) + 1 + columns_of(word) + backslash > width {
            let _ = writeln!(out, "{line} \\");
            line = " ".repeat(further);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
    out
}

/// The words of a command as they are written, with their quotes.
fn shell_words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quote, mut is_escaped) = (None, false);
    for c in command.chars() {
        let was_escaped = std::mem::take(&mut is_escaped);
        match (c, quote) {
            _ if was_escaped => {}
            ('\\', None | Some('"')) => is_escaped = true,
            (' ', None) => {
                words.push(String::new());
                continue;
            }
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(of)) if c == of => quote = None,
            _ => {}
        }
        if let Some(word) = words.last_mut() {
            word.push(c);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::super::remedy::{mend, no_command, show};
    use super::*;
    use crate::show::shell_word;

    #[test]
    fn lines_fit_a_terminal_and_hold_no_control_characters() {
        let mut findings = Findings::default();
        findings.ok("kernel", "a ".repeat(200));
        let file = "x".repeat(90);
        findings.note("name", "evil\x1b[2J\nname", show(&file, format!("rm {file}")));
        let text = findings.text("process", "17", None);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(matches!(long.as_slice(), [one, two] if one.trim() == two.trim()), "{text}");
        assert!(text.lines().all(|line| !line.chars().any(char::is_control)), "{text}");
        assert!(text.ends_with("\nNothing is in the way. (1 note)\n"), "{text}");
    }

    #[test]
    fn notes_are_counted_where_there_are_some() {
        let mut findings = Findings::default();
        findings.ok("a", "b");
        for end in ["", " (1 note)", " (2 notes)"] {
            let text = findings.text("host", "h", None);
            assert!(text.ends_with(&format!("\nNothing is in the way.{end}\n")), "{text}");
            findings.note("a", "b", show("c", "d"));
        }
    }

    /// What is copied from a terminal is the command, wherever its lines end.
    #[test]
    fn a_command_in_several_lines_is_the_same_command() {
        let long = format!("ls -l '/tmp/a  b' && cat {}", "c ".repeat(90));
        let name = "it's  \"long\" and \\ has  blanks ".repeat(6);
        let named = format!("rm -- {} b", shell_word(&name));
        let escaped = format!("rm {} \"a \\\" {}\" c", "a\\ ".repeat(60), "b  ".repeat(40));
        let short = ["kill -CONT 17", "a 'b c' \"d e\" f", "a '' \"\" b"];
        let long = [long, "netacc_ss ".repeat(30), named, escaped];
        for command in short.into_iter().chain(long.iter().map(String::as_str)) {
            let mut findings = Findings::default();
            findings.problem("a", "b", mend("c", command));
            for columns in [40, 60, 80, 100] {
                let text = findings.text("host", "h", Some(columns));
                let (_, typed) = text.split_once(" mend: ").unwrap();
                let (typed, _) = typed.split_once("\n\n").unwrap();
                // (Each line but the last goes on.)
                assert!(typed.lines().rev().skip(1).all(|line| line.ends_with(" \\")), "{text}");
                let typed = typed.replace("\\\n", "");
                assert!(shlex::split(command).is_some(), "{command}");
                assert_eq!(shlex::split(&typed), shlex::split(command), "{columns}: {text}");
            }
        }
    }

    #[test]
    fn the_worst_decides() {
        let mut findings = Findings::default();
        assert_eq!((findings.worst(), findings.verdict()), (None, "clear"));
        findings.note("a", "b", no_command("c", "d"));
        assert_eq!(findings.verdict(), "clear");
        findings.problem("a", "b", mend("c", "d"));
        assert_eq!((findings.worst(), findings.verdict()), (Some(Level::Problem), "obstructed"));
        findings.blind("a", "b", show("c", "e"));
        findings.ok("a", "b");
        assert_eq!(findings.verdict(), "unknown");
        let json = findings.json("host", "h");
        for (at, remedy) in [
            [json!("c"), Value::Null, Value::Null, json!("d")],
            [json!("c"), json!("d"), json!("mends"), Value::Null],
            [json!("c"), json!("e"), json!("shows"), Value::Null],
            [Value::Null, Value::Null, Value::Null, Value::Null],
        ]
        .iter()
        .enumerate()
        {
            let names = ["remedy", "command", "command_does", "no_command"];
            assert_eq!(names.map(|name| json["findings"][at][name].clone()), *remedy);
        }
        assert_eq!((&json["problems"], &json["notes"]), (&json!(2), &json!(1)));
    }
}
