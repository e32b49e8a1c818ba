//! Another value for a parameter of a program that runs: what a tool asks, and what the library
//! answers (`docs/design/cfg.md`).

use super::{Config, Key, Origin, Origins, TakesEffect, ini, parse};
use alloc::format;
use alloc::string::String;

/// A request is one line, and no longer than a pipe takes at once.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// What every request begins with: of another version nothing is understood.
const HEAD: &str = "netacc-cfg 1";
/// In the place of a parameter's name: the rules of the process's file are read again. Its value is
/// empty.
pub const RULES: &str = "rules";

/// What a tool asks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Chosen by the tool, of 56 bits: the answer has it.
    pub number: u64,
    /// When the tool will not wait any longer: a process that reads it later does nothing.
    pub until_unix_ns: u64,
    /// The name of a parameter.
    pub name: &'a str,
    /// Its value, in the form it has in the file, without quotes.
    pub value: &'a str,
}

impl<'a> Request<'a> {
    /// The line, without its end.
    pub fn parse(line: &'a str) -> Option<Request<'a>> {
        let mut words = line.strip_prefix(HEAD)?.strip_prefix(' ')?.splitn(3, ' ');
        let number = words.next()?.parse().ok().filter(|n| *n <= Answer::NUMBER_MAX)?;
        let until_unix_ns = words.next()?.parse().ok()?;
        let (name, value) = words.next()?.split_once('=')?;
        Some(Request { number, until_unix_ns, name, value })
    }

    /// The line, with its end. `None`: such a value cannot be said.
    pub fn line(&self) -> Option<String> {
        let Request { number, until_unix_ns, name, value } = self;
        ini::quote(value)?;
        let line = format!("{HEAD} {number} {until_unix_ns} {name}={value}\n");
        (line.len() <= REQUEST_BYTES_MAX).then_some(line)
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// The value is set.
    Done = 1,
    /// There is no such parameter.
    UnknownName = 2,
    /// It is none of the valid values.
    BadValue = 3,
    /// It can be changed at the next start alone.
    AtRestart = 4,
    /// The process keeps each configuration that it has ever had, and has had too many.
    TooMany = 5,
    /// There is no memory for it.
    NoMemory = 6,
    /// The process cannot read its file, or has none.
    Unread = 7,
    /// There is a mistake in the file.
    Mistake = 8,
}

impl Answer {
    /// Every answer.
    pub const ALL: [Answer; 8] = [
        Answer::Done,
        Answer::UnknownName,
        Answer::BadValue,
        Answer::AtRestart,
        Answer::TooMany,
        Answer::NoMemory,
        Answer::Unread,
        Answer::Mistake,
    ];
    /// The largest number of a request.
    pub const NUMBER_MAX: u64 = u64::MAX >> 8;

    /// The word that stands in the segment: the answer to that request.
    pub const fn word(self, number: u64) -> u64 {
        number << 8 | self as u64
    }

    /// The answer to that request, if the word is one.
    pub fn of(word: u64, number: u64) -> Option<Answer> {
        Answer::ALL.into_iter().find(|answer| answer.word(number) == word)
    }
}

impl Config {
    /// The configuration with another value, which is set while the program runs.
    ///
    /// # Errors
    /// The [`Answer`] to who wants it.
    pub fn changed(
        &self,
        origins: &Origins,
        name: &str,
        text: &str,
    ) -> Result<(Config, Origins), Answer> {
        let key = Key::from_name(name).ok_or(Answer::UnknownName)?;
        // First: it may be just as wrong at the next start.
        let value = parse(key.kind(), text).map_err(|_| Answer::BadValue)?;
        if key.takes_effect() == TakesEffect::Restart {
            return Err(Answer::AtRestart);
        }
        let (mut config, mut origins) = (self.clone(), origins.clone());
        config.set(key, value);
        if let Some(of) = origins.of.get_mut(key as usize) {
            *of = Origin::Live;
        }
        Ok((config, origins))
    }

    /// Whether a value is valid by itself; otherwise what is wrong with it, and what is valid.
    ///
    /// # Errors
    /// As said.
    pub fn check(key: Key, text: &str) -> Result<(), String> {
        parse(key.kind(), text)
            .map(drop)
            .map_err(|problem| format!("{}={text}: {problem}; valid: {}", key.name(), key.valid()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::NO_USERS;
    use super::*;

    fn start() -> (Config, Origins) {
        Config::resolve(None, &|_| None, &[], NO_USERS).unwrap()
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let values = ["", "3", "a b=c", " x "];
        for value in values {
            let asked = Request { number: Answer::NUMBER_MAX, until_unix_ns: 7, name: "N", value };
            let line = asked.line().unwrap();
            assert_eq!(Request::parse(line.strip_suffix('\n').unwrap()), Some(asked));
        }
        let of = |value| Request { number: 1, until_unix_ns: 0, name: "N", value }.line();
        assert_eq!(of("two\nlines"), None);
        assert_eq!(of(&"x".repeat(REQUEST_BYTES_MAX)), None);
    }

    #[test]
    fn what_is_no_request_is_none() {
        for line in [
            "",
            "netacc-cfg",
            "netacc-cfg 1",
            "netacc-cfg 2 1 2 N=1",
            "netacc-cfg 1 1 2 N",
            "netacc-cfg 1 1 2",
            "netacc-cfg 1 -1 2 N=1",
            "netacc-cfg 1 1 x N=1",
            "netacc-cfg 1 72057594037927936 2 N=1",
            " netacc-cfg 1 1 2 N=1",
        ] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
    }

    #[test]
    fn an_answer_is_that_to_one_request() {
        for answer in Answer::ALL {
            let word = answer.word(Answer::NUMBER_MAX);
            assert_eq!(Answer::of(word, Answer::NUMBER_MAX), Some(answer));
            assert_eq!(Answer::of(word, 1), None);
        }
        assert_eq!(Answer::of(0, 0), None, "what stands there before any");
    }

    #[test]
    fn another_value_and_no_other() {
        let (config, origins) = start();
        let (new, of) = config.changed(&origins, "NACC_LOG_LEVEL", "1").unwrap();
        assert_eq!(new.value_text(Key::LogLevel), "1");
        assert_eq!(of.of(Key::LogLevel), Origin::Live);
        for key in Key::ALL.iter().copied().filter(|key| *key != Key::LogLevel) {
            assert_eq!(new.value_text(key), config.value_text(key));
            assert_eq!(of.of(key), Origin::Default);
        }
        assert!(new.render(&of).contains("\nNACC_LOG_LEVEL=1 # live\n"));
    }

    #[test]
    fn what_is_refused_says_why() {
        let (config, origins) = start();
        let asked = |name, value| config.changed(&origins, name, value).map(drop);
        assert_eq!(asked("NACC_LOG", "1"), Err(Answer::UnknownName));
        assert_eq!(asked("NACC_LOG_LEVEL", "6"), Err(Answer::BadValue));
        assert_eq!(asked("NACC_LOG_LEVEL", ""), Err(Answer::BadValue));
        assert_eq!(asked("NACC_SOR_MSG_SIZE", "65536"), Err(Answer::AtRestart));
        assert_eq!(asked("NACC_SOR_MSG_SIZE", "1"), Err(Answer::BadValue));
        for key in Key::ALL.iter().copied() {
            let may = asked(key.name(), key.default_text()).is_ok();
            assert_eq!(may, key.takes_effect() != TakesEffect::Restart, "{}", key.name());
        }
    }
}
