//! What is wrong with a configuration, said so that an operator can put it right: where, what, why,
//! and what is valid.

use super::setting::Cli;
use alloc::string::String;
use core::fmt;

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File {
        /// Its path.
        path: String,
        /// Line, from 1; 0: the file as a whole.
        line: u32,
    },
    /// In the environment.
    Environment,
    /// On the command line, with that option.
    CommandLine(Cli),
    /// A default.
    Default,
}

/// One mistake in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it stands.
    pub place: Place,
    /// What stands there: `KEY=VALUE`, or the offending text.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
    /// What would be right; empty when the problem says it.
    pub valid: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File { path, line: 0 } => write!(f, "{path}: ")?,
            Place::File { path, line } => write!(f, "{path}:{line}: ")?,
            Place::Environment => f.write_str("environment: ")?,
            Place::CommandLine(option) => write!(f, "command line: {option}: ")?,
            Place::Default => f.write_str("default: ")?,
        }
        if !self.text.is_empty() {
            printable(f, &self.text)?;
            f.write_str(": ")?;
        }
        f.write_str(&self.problem)?;
        if !self.valid.is_empty() {
            write!(f, "; valid: {}", self.valid)?;
        }
        Ok(())
    }
}

impl core::error::Error for ConfigError {}

/// Writes foreign text without control characters and not longer than fits a line.
fn printable(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    const CHARS_MAX: usize = 160;
    for (count, character) in text.chars().enumerate() {
        if count == CHARS_MAX {
            return f.write_str("…");
        }
        if character.is_control() {
            write!(f, "{}", character.escape_default())?;
        } else {
            write!(f, "{character}")?;
        }
    }
    Ok(())
}
