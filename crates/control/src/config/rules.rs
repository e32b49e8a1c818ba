//! Rules: which connections are accelerated, and over which paths; for how long waits for them
//! poll, and which are traced. A section of the file each, `[rule NAME]`; of those whose conditions
//! all hold the first one counts, and where none does, what `[netacc]` says.
//!
//! A rule that cannot be understood holds for every connection, and keeps it on TCP: whoever wrote
//! it may have wanted that, and TCP is never wrong. (`netacc_run` starts nothing with such a file.)

use super::paths::Paths;
use super::users::{PASSWD, Users};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;

/// Most rules of a file, and most alternatives of a condition.
pub const RULES_MAX: usize = 64;
const LIST_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 32;
/// What the kernel keeps of a program's name (TASK_COMM_LEN).
const COMM_BYTES: usize = 15;

/// The keys of a section.
pub const KEYS: &[&str] =
    &["program", "user", "port", "address", "direction", "accelerate", "paths", "poll", "trace"];

/// Most microseconds of `poll`: no poll lasts longer.
const POLL_US_MAX: u32 = 10_000;

/// What is wrong with a value, and what would be right.
pub(super) type Wrong = (&'static str, String);

/// Which end began the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This process connected.
    Out,
    /// It accepted.
    In,
}

impl Direction {
    const fn as_str(self) -> &'static str {
        match self {
            Direction::Out => "out",
            Direction::In => "in",
        }
    }
}

/// Addresses with the same first bits. An IPv4 address that is written as an IPv6 one is IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

impl Network {
    /// Parses `10.0.0.0/8`, `::1` and the like.
    fn parse(text: &str) -> Result<Network, Wrong> {
        let valid = || String::from("an address, or a network such as 10.0.0.0/8 or fd00::/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return Err(("not an address", valid()));
        };
        let width: u8 = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            Some(text) if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) => {
                return Err(("not a number of bits", valid()));
            }
            Some(text) => match text.parse::<u8>() {
                Ok(bits) if bits <= width => bits,
                _ => return Err(("has more bits than an address", format!("/0 to /{width}"))),
            },
        };
        let first = masked(address, bits);
        if first != address {
            return Err(("has bits behind its length", format!("{first}/{bits}")));
        }
        Ok(match (first.to_canonical(), bits.checked_sub(96)) {
            (IpAddr::V4(v4), Some(bits)) if address.is_ipv6() => {
                Network { first: IpAddr::V4(v4), bits }
            }
            _ => Network { first, bits },
        })
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.first.is_ipv4() && masked(address, self.bits) == self.first
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = if self.first.is_ipv4() { 32 } else { 128 };
        match self.bits == width {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}/{}", self.first, self.bits),
        }
    }
}

/// The first `bits` of an address; the others 0.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// What a rule is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// The port of the end that accepted.
    pub port: u16,
    /// The address of the other end.
    pub peer: IpAddr,
    /// Which end this is.
    pub direction: Direction,
    /// The process's effective user.
    pub user: u32,
}

/// A process's program, as a rule may name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Program<'a> {
    /// Its file: `/proc/PID/exe`.
    pub file: &'a str,
    /// The name of the file that was started (a link, or a script): the last part of AT_EXECFN.
    pub name: &'a str,
}

/// The name of the rule that stands for a file's.
const UNREADABLE_FILE: &str = "unreadable-file";

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Its name.
    pub name: String,
    programs: Vec<String>,
    users: Vec<RangeInclusive<u32>>,
    ports: Vec<RangeInclusive<u16>>,
    networks: Vec<Network>,
    direction: Option<Direction>,
    accelerates: Option<bool>,
    paths: Option<Paths>,
    poll_us: Option<u32>,
    trace: Option<bool>,
    is_unreadable: bool,
}

impl Rule {
    /// A rule of which nothing but its name is known.
    pub fn unreadable(name: &str) -> Rule {
        Rule { name: String::from(name), is_unreadable: true, ..Rule::default() }
    }

    /// A number for its name, by which a connection's record says that it holds (FNV-1a): the order
    /// of the rules may be another one by the time somebody reads that. Neither 0 nor 1.
    pub fn tag(&self) -> u32 {
        let mix = |tag: u32, byte: u8| (tag ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        self.name.bytes().fold(0x811c_9dc5, mix).max(2)
    }

    /// What stands for the rules of a file that cannot be read.
    pub fn of_unreadable_file() -> Rule {
        Rule::unreadable(UNREADABLE_FILE)
    }

    /// Whether it stands for those. (As it is shown it is a rule that keeps everything on TCP.)
    pub fn is_of_unreadable_file(&self) -> bool {
        let shown =
            || Rule { name: self.name.clone(), accelerates: Some(false), ..Rule::default() };
        self.name == UNREADABLE_FILE && (self.is_unreadable || *self == shown())
    }

    /// Whether it cannot be understood, and so holds for everything.
    pub fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// The programs that it names; none: it is for all.
    pub fn programs(&self) -> &[String] {
        &self.programs
    }

    /// The paths that it lets a connection take; `None`: those of `NACC_PATHS`.
    pub fn paths(&self) -> Option<Paths> {
        match self.is_unreadable || self.accelerates == Some(false) {
            true => Some(Paths::TCP),
            false => self.paths,
        }
    }

    /// For how many microseconds waits for a connection poll at most; `None`: as `[netacc]` says.
    pub fn poll_us(&self) -> Option<u32> {
        self.poll_us
    }

    /// Whether a connection is traced; `None`: as `NACC_TRACE` says.
    pub fn trace(&self) -> Option<bool> {
        self.trace
    }

    /// Whether it may hold in a process of that program.
    pub fn is_of(&self, program: Program<'_>) -> bool {
        let is_it = |wanted: &String| match wanted.contains('/') {
            true => wanted == program.file,
            false => {
                let file = program.file.rsplit('/').next().unwrap_or("");
                // (As ps shows it.)
                let kept = program.name.get(..COMM_BYTES);
                wanted == file || wanted == program.name || Some(wanted.as_str()) == kept
            }
        };
        self.is_unreadable || self.programs.is_empty() || self.programs.iter().any(is_it)
    }

    /// Whether it holds, for a process of its program.
    pub fn holds(&self, of: &Subject) -> bool {
        self.is_unreadable
            || (any(&self.users, |users| users.contains(&of.user))
                && any(&self.ports, |ports| ports.contains(&of.port))
                && any(&self.networks, |network| network.contains(of.peer))
                && self.direction.is_none_or(|direction| direction == of.direction))
    }

    /// Takes a value.
    pub(super) fn set(&mut self, key: &str, text: &str, known: Users<'_>) -> Result<(), Wrong> {
        match key {
            "program" => self.programs = list(text, program)?,
            "user" => self.users = list(text, |word| users(word, known))?,
            "port" => {
                self.ports = list(text, |word| match range(word, "ports")? {
                    range if *range.start() == 0 => Err(("not a port", valid_range("ports"))),
                    range => Ok(range),
                })?;
            }
            "address" => self.networks = list(text, Network::parse)?,
            "direction" => {
                self.direction = Some(match text {
                    "out" => Direction::Out,
                    "in" => Direction::In,
                    _ => {
                        let valid = "out (this end connects) or in (it accepts)";
                        return Err(("neither out nor in", String::from(valid)));
                    }
                });
            }
            "accelerate" => self.accelerates = Some(flag(text)?),
            "paths" => {
                let valid = || super::Key::Paths.valid();
                self.paths = Some(Paths::parse(text).map_err(|problem| (problem, valid()))?);
            }
            "poll" => self.poll_us = Some(microseconds(text)?),
            "trace" => {
                let valid = "0 or 1; each call: NACC_TRACE=2, of the whole process";
                self.trace = Some(flag(text).map_err(|(problem, _)| (problem, valid.into()))?);
            }
            _ => return Err(("unknown key of a rule", KEYS.join(", "))),
        }
        Ok(())
    }

    /// Something in it is wrong.
    pub(super) fn spoil(&mut self) {
        *self = Rule::unreadable(&self.name);
    }

    /// What is wrong with it as a whole.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        match (self.accelerates, self.paths) {
            _ if self.is_unreadable => Ok(()),
            (None, None) if self.poll_us.is_none() && self.trace.is_none() => {
                let valid = String::from("accelerate=, paths=, poll= or trace= as well");
                Err(("a rule that says nothing", valid))
            }
            (Some(accelerates), Some(paths)) if accelerates == paths.is_empty() => {
                Err(("accelerate and paths contradict each other", String::from("one of both")))
            }
            _ => Ok(()),
        }
    }
}

/// The section that [`Rule::set`] reads.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[{RULE} {}]", self.name)?;
        if self.is_unreadable {
            return writeln!(f, "accelerate=0 # a mistake in the file");
        }
        row(f, "program", &self.programs, |word| word.clone())?;
        row(f, "user", &self.users, said)?;
        row(f, "port", &self.ports, said)?;
        row(f, "address", &self.networks, Network::to_string)?;
        if let Some(direction) = self.direction {
            writeln!(f, "direction={}", direction.as_str())?;
        }
        if let Some(accelerates) = self.accelerates {
            writeln!(f, "accelerate={}", u8::from(accelerates))?;
        }
        if let Some(paths) = self.paths {
            writeln!(f, "paths={paths}")?;
        }
        match self.poll_us {
            None => {}
            Some(0) => writeln!(f, "poll=0")?,
            Some(us) => writeln!(f, "poll={us}us")?,
        }
        self.trace.map_or(Ok(()), |traces| writeln!(f, "trace={}", u8::from(traces)))
    }
}

fn flag(text: &str) -> Result<bool, Wrong> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(("neither 0 nor 1", String::from("0 or 1"))),
    }
}

/// 0, or a time with its unit.
fn microseconds(text: &str) -> Result<u32, Wrong> {
    let wrong = |problem| Err((problem, String::from("0, or a time to 10ms, such as 60us or 2ms")));
    let (number, unit) = match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        _ if text == "0" => return Ok(0),
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, 1_000),
        _ => return wrong("not a time with its unit"),
    };
    let number = number.trim_end();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return wrong("not a time with its unit");
    }
    match number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(us) if us <= POLL_US_MAX => Ok(us),
        _ => wrong("too long"),
    }
}

fn row<T>(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    words: &[T],
    said: impl Fn(&T) -> String,
) -> fmt::Result {
    match words {
        [] => Ok(()),
        words => writeln!(f, "{key}={}", words.iter().map(said).collect::<Vec<_>>().join(",")),
    }
}

fn said<T: fmt::Display + PartialEq>(range: &RangeInclusive<T>) -> String {
    match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    }
}

/// How the name of a section begins.
pub const RULE: &str = "rule";

/// Whether a line that is no section's name may have been meant to begin a rule.
pub(super) fn may_begin_in(line: &str) -> bool {
    line.strip_prefix('[').is_some_and(|name| name.trim_start().starts_with(RULE))
}

/// The name of a rule, if that is the name of its section.
pub(super) fn name_of(section: &str) -> Option<Result<&str, Wrong>> {
    let name = section.strip_prefix(RULE)?;
    if !name.is_empty() && !name.starts_with(char::is_whitespace) {
        return None;
    }
    let name = name.trim();
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    Some(match !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_good) {
        true => Ok(name),
        false => {
            let valid = format!("[{RULE} NAME], of letters, digits, -, _ and ., at most 32");
            Err(("a rule without a proper name", valid))
        }
    })
}

fn any<T>(words: &[T], holds: impl FnMut(&T) -> bool) -> bool {
    words.is_empty() || words.iter().any(holds)
}

fn list<T>(text: &str, word: impl Fn(&str) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
    let mut words = Vec::new();
    for text in text.split(',').map(str::trim) {
        if text.is_empty() {
            return Err(("empty, or a comma too many", String::from("a list with commas between")));
        }
        if words.len() == LIST_MAX {
            return Err(("too long a list", format!("at most {LIST_MAX}; use several rules")));
        }
        words.push(word(text)?);
    }
    Ok(words)
}

fn program(word: &str) -> Result<String, Wrong> {
    let is_good = |c: char| !c.is_whitespace() && !c.is_control() && !"\"'#".contains(c);
    if word.len() > 255
        || !word.chars().all(is_good)
        || (word.contains('/') && !word.starts_with('/'))
    {
        let valid = "names such as redis-server, or whole paths";
        return Err(("not a program's name", String::from(valid)));
    }
    Ok(String::from(word))
}

/// Numbers of users, or the name of one.
fn users(word: &str, known: Users<'_>) -> Result<RangeInclusive<u32>, Wrong> {
    if word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-' || byte == b' ') {
        return range(word, "user numbers");
    }
    let user = known(word).map(|user| user..=user);
    user.ok_or_else(|| ("no such user", format!("names in {PASSWD}, or numbers, 1000-1999")))
}

fn valid_range(what: &str) -> String {
    format!("{what}, such as 1000 or 1000-1999")
}

fn range<T: core::str::FromStr + PartialOrd + Copy>(
    word: &str,
    what: &'static str,
) -> Result<RangeInclusive<T>, Wrong> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<T>().ok().filter(|_| is_number)
    };
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    match (number(first.trim()), number(last.trim())) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        (Some(_), Some(_)) => Err(("ends before it begins", valid_range(what))),
        _ => Err(("not a number that can be", valid_range(what))),
    }
}

#[cfg(test)]
mod tests;
