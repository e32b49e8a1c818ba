//! Which processes are meant: by number, by name, or all that are accelerated.

use crate::connections::Connections;
use crate::segment::{self, Depth, Known, Process, SegmentError, Stranger};
use std::collections::HashMap;
use std::fmt;

/// A process that was found, or what is in the way of reading it.
#[derive(Debug)]
pub struct Found {
    /// Its number.
    pub pid: u32,
    /// What it says.
    pub process: Result<Process, SegmentError>,
}

/// A word that names no process.
#[derive(Debug, PartialEq, Eq)]
pub enum Unknown {
    /// 0, no word at all, or more than any process can have.
    Number(String),
    /// No accelerated process has this name.
    Name(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Number(word) => {
                write!(f, "{word}: not the number of a process; valid: 1 to {}", i32::MAX)
            }
            Unknown::Name(word) => write!(
                f,
                "{word}: no process of this name that may be read has the library: \
                 `netacc ps` shows those that have"
            ),
        }
    }
}

/// The processes that `words` name, each once, in the order of the words.
pub fn named(words: &[String]) -> Result<Vec<Found>, Unknown> {
    named_again(words, &mut Looks::default())
}

/// The same, where they are looked at again and again.
pub fn named_again(words: &[String], looks: &mut Looks) -> Result<Vec<Found>, Unknown> {
    let mut all = None;
    let mut found: Vec<Found> = Vec::new();
    for word in words {
        let before = found.len();
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            let pid = word.parse().ok().filter(|pid| *pid != 0 && *pid <= i32::MAX as u32);
            let said = || if word.is_empty() { String::from("\"\"") } else { word.clone() };
            let pid = pid.ok_or_else(|| Unknown::Number(said()))?;
            if !found.iter().any(|other| other.pid == pid) {
                found.push(Found { pid, process: looks.read(pid) });
            }
            continue;
        }
        let all = all.get_or_insert_with(|| segment::pids().unwrap_or_default());
        for pid in all.iter().copied().filter(|pid| is_called(*pid, word)) {
            let process = looks.read(pid);
            let is_new = !found.iter().any(|other| other.pid == pid);
            if has_library(&process) && is_new {
                found.push(Found { pid, process });
            }
        }
        if found.len() == before {
            return Err(Unknown::Name(word.clone()));
        }
    }
    Ok(found)
}

/// Looks at all processes, again and again.
#[derive(Debug, Default)]
pub struct Looks {
    /// By the processes' numbers.
    known: HashMap<u32, Known>,
    /// The same of processes without the library: most of a host's.
    strangers: HashMap<u32, Stranger>,
    /// By the processes' numbers memory of earlier looks: to have some megabytes anew each second
    /// takes longer than to fill them.
    spare: HashMap<u32, Vec<Connections>>,
}

impl Looks {
    /// One process, whole.
    fn read(&mut self, pid: u32) -> Result<Process, SegmentError> {
        let depth = Depth::Each(self.spare.entry(pid).or_default());
        let mut process = segment::look(pid, self.known.get(&pid).copied(), depth)?;
        process.complete();
        self.known.insert(pid, process.known);
        Ok(process)
    }

    /// All processes that have the library, and how many could not be asked. Addresses of
    /// connections may be missing ([`Process::complete`]).
    pub fn all(&mut self) -> (Vec<Found>, usize) {
        self.at(|_| true)
    }

    /// The same, with each connection of that process alone, and of the others no more than what
    /// they say together.
    pub fn of(&mut self, pid: u32) -> (Vec<Found>, usize) {
        self.at(|other| other == pid)
    }

    /// The same, without any connection.
    pub fn sums(&mut self) -> (Vec<Found>, usize) {
        self.at(|_| false)
    }

    /// What an earlier look has found is not needed any more.
    pub fn give_back(&mut self, processes: impl Iterator<Item = Process>) {
        for process in processes.filter(|process| !process.connections.is_empty()) {
            self.spare.entry(process.pid).or_default().push(process.connections);
        }
    }

    fn at(&mut self, is_each: impl Fn(u32) -> bool) -> (Vec<Found>, usize) {
        let mut not_permitted = 0;
        let mut found = Vec::new();
        let mut strangers = HashMap::new();
        for pid in segment::pids().unwrap_or_default() {
            let before = match self.strangers.remove(&pid) {
                Some(stranger) if stranger.is_still(pid) => {
                    strangers.insert(pid, stranger);
                    continue;
                }
                before => before,
            };
            // (What it runs is asked first: by the time that its library is, it may run another.)
            let stranger = match self.known.contains_key(&pid) {
                true => None,
                false => Stranger::of(pid, before.as_ref()),
            };
            let depth = match is_each(pid) {
                true => Depth::Each(self.spare.entry(pid).or_default()),
                false => Depth::Sums,
            };
            let process = segment::look(pid, self.known.get(&pid).copied(), depth);
            if has_library(&process) {
                found.push(Found { pid, process });
            } else if matches!(process, Err(SegmentError::NotPermitted)) {
                not_permitted += 1;
            } else if let (Err(SegmentError::NotLoaded), Some(stranger)) = (&process, stranger) {
                strangers.insert(pid, stranger);
            }
        }
        self.strangers = strangers;
        let known = found.iter().filter_map(|it| Some((it.pid, it.process.as_ref().ok()?.known)));
        self.known = known.collect();
        self.spare.retain(|pid, _| self.known.contains_key(pid));
        (found, not_permitted)
    }
}

fn has_library(process: &Result<Process, SegmentError>) -> bool {
    matches!(process, Ok(_) | Err(SegmentError::NoSegment | SegmentError::Unreadable(_)))
}

fn is_called(pid: u32, word: &str) -> bool {
    segment::name(pid).is_ok_and(|name| is_name(&name, word))
}

/// Whether the program that `word` names has `name`, of which the kernel keeps 15 bytes.
pub fn is_name(name: &str, word: &str) -> bool {
    const KEPT: usize = 15;
    name == word || (name.len() == KEPT && word.as_bytes().starts_with(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_nothing() {
        let named = |words: &[&str]| {
            named(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(named(&["0"]).unwrap_err(), Unknown::Number("0".to_owned()));
        let large = "99999999999";
        assert_eq!(named(&[large]).unwrap_err(), Unknown::Number(large.to_owned()));
        let name = "no such program";
        assert_eq!(named(&["1", name]).unwrap_err(), Unknown::Name(name.to_owned()));
    }

    #[test]
    fn a_process_is_found_once() {
        let own = std::process::id().to_string();
        assert_eq!(named(&[own.clone(), own]).unwrap().len(), 1);
    }
}
