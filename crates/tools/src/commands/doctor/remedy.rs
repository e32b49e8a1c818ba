//! What can be done about a finding: in words, and as a command that can be run as it stands.

/// The remedy of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    /// In words.
    pub text: String,
    /// By hand.
    pub command: Command,
}

/// A line for a shell, to be run as it stands, and what it does; or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// It mends what was found.
    Mends(String),
    /// It opens the file that has to be corrected.
    Opens(String),
    /// It changes nothing: it shows more of it.
    Shows(String),
    /// Nothing that is run here would do; why not.
    None(String),
}

impl Command {
    /// The line, if there is one.
    pub fn line(&self) -> Option<&str> {
        match self {
            Command::Mends(line) | Command::Opens(line) | Command::Shows(line) => Some(line),
            Command::None(_) => None,
        }
    }

    /// A word for scripts; part of the contract of `--json`.
    pub fn does(&self) -> Option<&'static str> {
        match self {
            Command::Mends(_) => Some("mends"),
            Command::Opens(_) => Some("opens"),
            Command::Shows(_) => Some("shows"),
            Command::None(_) => None,
        }
    }

    /// Why there is none.
    pub fn why_none(&self) -> Option<&str> {
        match self {
            Command::None(why) => Some(why),
            _ => None,
        }
    }

    /// With those words: the remedy.
    pub fn with(self, text: impl Into<String>) -> Remedy {
        Remedy { text: text.into(), command: self }
    }
}

/// A command mends it.
pub fn mend(text: impl Into<String>, line: impl Into<String>) -> Remedy {
    Command::Mends(line.into()).with(text)
}

/// A command only shows more of it.
pub fn show(text: impl Into<String>, line: impl Into<String>) -> Remedy {
    Command::Shows(line.into()).with(text)
}

/// No command does anything about it here.
pub fn no_command(text: impl Into<String>, why: impl Into<String>) -> Remedy {
    Command::None(why.into()).with(text)
}
