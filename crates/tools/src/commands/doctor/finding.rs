//! What was found, and how it is said.

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
    /// What mends it; empty where there is nothing to mend.
    remedy: String,
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

    fn add(&mut self, level: Level, check: &'static str, found: String, remedy: String) {
        let is_blind = false;
        self.take(Finding { level, check, found, remedy, is_blind });
    }

    /// As it should be.
    pub fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, check, found.into(), String::new());
    }

    /// Worth knowing.
    pub fn note(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Level::Note, check, found.into(), remedy.into());
    }

    /// In the way.
    pub fn problem(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Level::Problem, check, found.into(), remedy.into());
    }

    /// It cannot be looked at.
    pub fn blind(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (found, remedy) = (found.into(), remedy.into());
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
            json!({
                "level": finding.level.name(),
                "check": finding.check,
                "found": finding.found,
                "remedy": Some(&finding.remedy).filter(|remedy| !remedy.is_empty()),
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
        let mut out = String::new();
        let width = columns.unwrap_or(COLUMNS).min(WIDTH_MAX);
        let mut paragraph = |heading: &str, indent, text: &str| {
            out += &paragraph(width, heading, indent, text);
        };
        paragraph("", 0, &format!("{} {name}", capital(kind)));
        for finding in &self.list {
            let text = format!("{}: {}", finding.check, finding.found);
            paragraph(finding.level.name(), INDENT, &text);
            if !finding.remedy.is_empty() {
                paragraph("", INDENT, &format!("-> {}", finding.remedy));
            }
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
        let _ = writeln!(out, "\n{said}{notes}");
        terminal::fold(out, columns)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_a_terminal_and_hold_no_control_characters() {
        let mut findings = Findings::default();
        findings.ok("kernel", "a ".repeat(200));
        findings.note("name", "evil\x1b[2J\nname", format!("rm {}", "x".repeat(90)));
        let text = findings.text("process", "17", None);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(matches!(long.as_slice(), [one] if one.trim() == "x".repeat(90)), "{text}");
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
            findings.note("a", "b", "");
        }
    }

    #[test]
    fn the_worst_decides() {
        let mut findings = Findings::default();
        assert_eq!((findings.worst(), findings.verdict()), (None, "clear"));
        findings.note("a", "b", "");
        assert_eq!(findings.verdict(), "clear");
        findings.problem("a", "b", "c");
        assert_eq!((findings.worst(), findings.verdict()), (Some(Level::Problem), "obstructed"));
        findings.blind("a", "b", "c");
        assert_eq!(findings.verdict(), "unknown");
        let json = findings.json("host", "h");
        assert_eq!(json["findings"][0]["remedy"], Value::Null);
        assert_eq!(json["findings"][1]["remedy"], "c");
        assert_eq!((&json["problems"], &json["notes"]), (&json!(2), &json!(1)));
    }
}
