//! The configuration: where its values come from, whether they are right, and what results.
//!
//! Two steps, two types: raw text per [`Key`] with its [`Origin`], then the resolved, typed
//! [`Config`]. Precedence: command line, environment, file, default. Every value that is given is
//! checked, also one that a stronger source hides.
//!
//! `NACC_RDMA_MR_MIN_INC_SIZE` depends on `NACC_SOR_MSG_SIZE`, and `NACC_RDMA_MR_MAX_INC_SIZE` on
//! the former. Where a stronger source changes the base alone (`netacc_run -s 65536` over a file
//! that sets all three), the dependent value follows to the nearest valid one; the default in
//! a file does the same, as the installed one spells out all defaults, and one edited line has to
//! be enough. Where another value comes from the same source, or from a stronger one, a mismatch is
//! an error.

mod cpu_list;
mod error;
mod file;
mod ini;
mod live;
mod paths;
mod profile;
mod rules;
mod setting;
mod users;

pub use cpu_list::{CPU_MAX, CpuList};
pub use error::{ConfigError, Place};
pub use live::{Answer, REQUEST_BYTES_MAX, RULES, Request};
pub use paths::Paths;
pub use profile::{PROFILES, Profile};
pub use rules::{Direction, Network, Program, RULES_MAX, Rule, Subject};
pub use setting::{
    Cli, DEFAULT_FILE, ENV_FILE, ENV_FROM_COMMAND_LINE, Effect, Key, Kind, SECTION, SETTINGS,
    Setting, TakesEffect,
};
pub use users::{NO_USERS, PASSWD, Users, number_in};

use crate::stats::CONFIG_BYTES;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

/// Reads one environment variable.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Every option with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `NACC_SOR_MSG_SIZE`: a multiple of 4096.
    pub buffer_bytes: u32,
    /// `NACC_RDMA_MR_MIN_INC_SIZE`: `buffer_bytes` times a power of two, at most 512 MiB.
    pub arena_first_bytes: u32,
    /// `NACC_RDMA_MR_MAX_INC_SIZE`: `arena_first_bytes` times a power of two, at most 512 MiB.
    pub arena_growth_max_bytes: u32,
    /// `NACC_SOR_CONN_PER_QP`.
    pub connections_per_channel: u32,
    /// `NACC_SOR_IO_THREADS`.
    pub io_threads: u32,
    /// `NACC_EMPTY_QP_EXPIRE_MS`: `Some(0)` at once, `None` never.
    pub empty_channel_expire_ms: Option<u32>,
    /// `NACC_EMPTY_QP_MAX_ALL`.
    pub empty_channels_max: u32,
    /// `NACC_EMPTY_QP_MAX_PER`.
    pub empty_channels_max_per_peer: u32,
    /// `NACC_CONNECT_RDMA_PERCENT`: 0 to 100.
    pub accelerate_percent: u8,
    /// `NACC_ENABLE_RDMA_DEFAULT`: when false, every connection stays on TCP.
    pub accelerate_by_default: bool,
    /// `NACC_LOG_LEVEL`: least severe level that is logged.
    pub log_level: LogLevel,
    /// `NACC_LOG_PATH`; empty: no log.
    pub log_path: String,
    /// `NACC_SOR_AFFINITY`; empty: all CPUs.
    pub affinity: CpuList,
    /// `NACC_CONN_TCP_FIRST`.
    pub tcp_first: bool,
    /// `NACC_FAST_CONNECT`.
    pub fast_connect: bool,
    /// `NACC_POLL_MS`: `None` at most 60 µs, `Some(0)` never, `Some(n)` at most n ms (and no more
    /// than 10); in each case only while it pays.
    pub poll_ms: Option<u32>,
    /// `NACC_POLL_TCP_US`: `None` adaptive, `Some(0)` never, `Some(n)` at most n microseconds.
    pub poll_tcp_us: Option<u32>,
    /// `NACC_CQ_COMP_VECTOR`.
    pub comp_vector: u32,
    /// `NACC_RDMA_STALL_MS`: 0 never.
    pub rdma_stall_ms: u32,
    /// `NACC_KERNEL_POLICY`.
    pub kernel_policy: bool,
    /// `NACC_RDMA_KEEPER_S`: 0 none.
    pub keeper_s: u32,
    /// `NACC_IO_URING`
    pub io_uring: IoUring,
    /// `NACC_TRACE`: what becomes of connections is recorded.
    pub trace: bool,
    /// `NACC_TRACE_SLOW_MS`: from here on a wait is too long; 0: none is.
    pub trace_slow_ms: u32,
    /// Each of their calls is, too.
    pub trace_calls: bool,
    /// `NACC_TRACE_DIR`: where traces lie.
    pub trace_dir: String,
    /// `NACC_PATHS`: a connection takes the first of them that both of its ends can use.
    pub paths: Paths,
    /// Which connections are accelerated, and over which paths: the first that holds counts.
    pub rules: Vec<Rule>,
}

/// What becomes of a program's io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoUring {
    /// The program finds a kernel without.
    Refuse = 0,
    /// What it does with sockets is followed.
    #[default]
    Follow = 1,
    /// All connections of the process stay on TCP.
    Leave = 2,
}

/// How severe a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// 0
    Trace,
    /// 1
    Debug,
    /// 2
    Info,
    /// 3
    Warn,
    /// 4
    Error,
    /// 5
    Fatal,
}

impl LogLevel {
    /// The word in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogLevel::Trace => "TRACE",
            LogLevel::Debug => "DEBUG",
            LogLevel::Info => "INFO",
            LogLevel::Warn => "WARN",
            LogLevel::Error => "ERROR",
            LogLevel::Fatal => "FATAL",
        }
    }
}

/// Where a value comes from; a later one is stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The configuration file, at that line.
    File(u32),
    /// The environment.
    Environment,
    /// The command line of `netacc_run`.
    CommandLine,
    /// `netacc cfg set`, while the program runs.
    Live,
}

impl Origin {
    /// `default`, `file`, `environment`, `command-line` or `live`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File(_) => "file",
            Origin::Environment => "environment",
            Origin::CommandLine => "command-line",
            Origin::Live => "live",
        }
    }

    /// Compares by source: two lines of one file are equally strong.
    fn strength(self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Environment => 2,
            Origin::CommandLine => 3,
            Origin::Live => 4,
        }
    }
}

/// Where each value of a [`Config`] comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origins {
    of: [Origin; KEYS],
    file: Option<String>,
}

impl Origins {
    /// The origin of one value.
    pub fn of(&self, key: Key) -> Origin {
        self.of.get(key as usize).copied().unwrap_or(Origin::Default)
    }

    /// The configuration file that was read.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl Default for Config {
    /// Every option at its default.
    fn default() -> Config {
        Config {
            buffer_bytes: 16384,
            arena_first_bytes: 16384,
            arena_growth_max_bytes: 8 << 20,
            connections_per_channel: 1,
            io_threads: 1,
            empty_channel_expire_ms: Some(60_000),
            empty_channels_max: 100,
            empty_channels_max_per_peer: 10,
            accelerate_percent: 100,
            accelerate_by_default: true,
            log_level: LogLevel::Warn,
            log_path: Key::LogPath.default_text().to_string(),
            affinity: CpuList::default(),
            tcp_first: false,
            fast_connect: false,
            poll_ms: None,
            poll_tcp_us: Some(0),
            comp_vector: 0,
            rdma_stall_ms: 200,
            kernel_policy: true,
            keeper_s: 600,
            io_uring: IoUring::default(),
            trace: true,
            trace_slow_ms: 5000,
            trace_calls: false,
            trace_dir: Key::TraceDir.default_text().to_string(),
            paths: Paths::default(),
            rules: Vec::new(),
        }
    }
}

impl Config {
    /// Resolves a configuration for `netacc_run`: any mistake anywhere is an error.
    ///
    /// `file` is path and content, `cli` what stands on the command line, `users` whom rules may
    /// name. A file that does not exist is `None`.
    pub fn resolve(
        file: Option<(&str, &str)>,
        env: Env<'_>,
        cli: &[(Key, &str)],
        users: Users<'_>,
    ) -> Result<(Config, Origins), Vec<ConfigError>> {
        let (config, origins, errors) = Config::resolve_lossy(file, env, cli, users);
        if errors.is_empty() { Ok((config, origins)) } else { Err(errors) }
    }

    /// Resolves a configuration for the library, which has to run in any case: a value that is not
    /// valid gives way to the default. The errors, at most [`ERRORS_MAX`], are for its log.
    pub fn resolve_lossy(
        file: Option<(&str, &str)>,
        env: Env<'_>,
        cli: &[(Key, &str)],
        users: Users<'_>,
    ) -> (Config, Origins, Vec<ConfigError>) {
        let mut raw = Raw::new(file.map(|(path, _)| path), users);
        if let Some((path, text)) = file {
            raw.read_file(path, text);
        }
        raw.read_env(env);
        for (key, text) in cli {
            raw.give(*key, text, Origin::CommandLine);
        }
        raw.finish()
    }

    /// The value of one option, in the form it has in the file, without quotes.
    pub fn value_text(&self, key: Key) -> String {
        match key {
            Key::BufferBytes => self.buffer_bytes.to_string(),
            Key::ArenaFirstBytes => self.arena_first_bytes.to_string(),
            Key::ArenaGrowthMaxBytes => self.arena_growth_max_bytes.to_string(),
            Key::ConnectionsPerChannel => self.connections_per_channel.to_string(),
            Key::IoThreads => self.io_threads.to_string(),
            Key::EmptyChannelExpireMs => match self.empty_channel_expire_ms {
                Some(ms) => ms.to_string(),
                None => "-1".to_string(),
            },
            Key::EmptyChannelsMax => self.empty_channels_max.to_string(),
            Key::EmptyChannelsMaxPerPeer => self.empty_channels_max_per_peer.to_string(),
            Key::AcceleratePercent => self.accelerate_percent.to_string(),
            Key::AccelerateByDefault => u8::from(self.accelerate_by_default).to_string(),
            Key::LogLevel => (self.log_level as u8).to_string(),
            Key::LogPath => self.log_path.clone(),
            Key::TraceDir => self.trace_dir.clone(),
            Key::Affinity => self.affinity.to_string(),
            Key::TcpFirst => u8::from(self.tcp_first).to_string(),
            Key::FastConnect => u8::from(self.fast_connect).to_string(),
            Key::PollMs => self.poll_ms.map(|ms| ms.to_string()).unwrap_or_default(),
            Key::PollTcpUs => self.poll_tcp_us.map(|us| us.to_string()).unwrap_or_default(),
            Key::CompVector => self.comp_vector.to_string(),
            Key::RdmaStallMs => self.rdma_stall_ms.to_string(),
            Key::KernelPolicy => u8::from(self.kernel_policy).to_string(),
            Key::KeeperS => self.keeper_s.to_string(),
            Key::Paths => self.paths.to_string(),
            Key::IoUring => (self.io_uring as u8).to_string(),
            Key::TraceSlowMs => self.trace_slow_ms.to_string(),
            Key::Trace => (u8::from(self.trace) + u8::from(self.trace_calls)).to_string(),
        }
    }

    /// The configuration as text: `KEY=VALUE # origin` lines that [`parse_rendered`] and the file
    /// parser read back. A comment line names the file. It ends with the rule at which it comes to
    /// be longer than a process shows.
    pub fn render(&self, origins: &Origins) -> String {
        let mut out = String::new();
        if let Some(file) = origins.file() {
            let file: String = file.chars().filter(|c| !c.is_control()).collect();
            let _ = writeln!(out, "# file: {file}");
        }
        let _ = writeln!(out, "[{SECTION}]");
        for key in Key::ALL.iter().copied() {
            let value = ini::quote(&self.value_text(key)).unwrap_or_default();
            let origin = origins.of(key);
            let _ = match origin {
                Origin::File(line) => writeln!(out, "{}={value} # file:{line}", key.name()),
                _ => writeln!(out, "{}={value} # {}", key.name(), origin.as_str()),
            };
        }
        for rule in &self.rules {
            // (Nobody shows more of it.)
            if out.len() >= CONFIG_BYTES {
                return out;
            }
            let _ = write!(out, "{rule}");
        }
        if !self.rules.is_empty() {
            out.push_str(RULES_END);
        }
        out
    }

    /// The first rule that holds for a connection.
    pub fn rule(&self, of: &Subject) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.holds(of))
    }

    fn set(&mut self, key: Key, value: Value) {
        let number = |value: &Value| match value {
            Value::Number(number) => u32::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        match key {
            Key::BufferBytes => self.buffer_bytes = number(&value),
            Key::ArenaFirstBytes => self.arena_first_bytes = number(&value),
            Key::ArenaGrowthMaxBytes => self.arena_growth_max_bytes = number(&value),
            Key::ConnectionsPerChannel => self.connections_per_channel = number(&value),
            Key::IoThreads => self.io_threads = number(&value),
            Key::EmptyChannelExpireMs => {
                self.empty_channel_expire_ms = match value {
                    Value::Number(ms) => u32::try_from(ms).ok(),
                    _ => None,
                }
            }
            Key::EmptyChannelsMax => self.empty_channels_max = number(&value),
            Key::EmptyChannelsMaxPerPeer => self.empty_channels_max_per_peer = number(&value),
            Key::AcceleratePercent => {
                self.accelerate_percent = u8::try_from(number(&value)).unwrap_or(0);
            }
            Key::AccelerateByDefault => self.accelerate_by_default = number(&value) != 0,
            Key::LogLevel => {
                self.log_level = match number(&value) {
                    0 => LogLevel::Trace,
                    1 => LogLevel::Debug,
                    2 => LogLevel::Info,
                    3 => LogLevel::Warn,
                    4 => LogLevel::Error,
                    _ => LogLevel::Fatal,
                }
            }
            Key::LogPath => {
                if let Value::Text(path) = value {
                    self.log_path = path;
                }
            }
            Key::TraceDir => {
                if let Value::Text(path) = value {
                    self.trace_dir = path;
                }
            }
            Key::Affinity => {
                if let Value::Cpus(cpus) = value {
                    self.affinity = cpus;
                }
            }
            Key::TcpFirst => self.tcp_first = number(&value) != 0,
            Key::FastConnect => self.fast_connect = number(&value) != 0,
            Key::PollMs => {
                self.poll_ms = match value {
                    Value::Number(ms) => u32::try_from(ms).ok(),
                    _ => None,
                }
            }
            Key::PollTcpUs => {
                self.poll_tcp_us = match value {
                    Value::Number(us) => u32::try_from(us).ok(),
                    _ => None,
                }
            }
            Key::CompVector => self.comp_vector = number(&value),
            Key::RdmaStallMs => self.rdma_stall_ms = number(&value),
            Key::KernelPolicy => self.kernel_policy = number(&value) != 0,
            Key::KeeperS => self.keeper_s = number(&value),
            Key::Paths => {
                if let Value::Paths(paths) = value {
                    self.paths = paths;
                }
            }
            Key::TraceSlowMs => self.trace_slow_ms = number(&value),
            Key::Trace => {
                self.trace = number(&value) != 0;
                self.trace_calls = number(&value) > 1;
            }
            Key::IoUring => {
                self.io_uring = match number(&value) {
                    0 => IoUring::Refuse,
                    1 => IoUring::Follow,
                    _ => IoUring::Leave,
                }
            }
        }
    }
}

/// The file that [`Config::render`] names; nothing where none was read.
pub fn file_of(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("# file: ")
}

/// Reads back what [`Config::render`] wrote: name, value and origin of each option. Unknown names
/// are kept, so that a tool can show the configuration of a newer library.
pub fn parse_rendered(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let is_rule = |line: &ini::Line<'_>| matches!(line, ini::Line::Section(n) if *n != SECTION);
    ini::lines(text).take_while(move |(_, _, line)| !is_rule(line)).filter_map(|(_, raw, line)| {
        match line {
            ini::Line::Pair(name, value) => {
                let origin = raw.rsplit_once('#').map_or("", |(_, origin)| origin.trim());
                let origin = origin.split(':').next().unwrap_or("");
                Some((name, value, origin))
            }
            _ => None,
        }
    })
}

/// What stands behind the rules: who reads a part of the text misses it.
const RULES_END: &str = "# end of the rules\n";
/// Room for a rule's header.
const HEADER_BYTES: usize = 64;

/// The rules that [`Config::render`] wrote, and whether these are all: where there was no room for
/// the whole text, the one that was cut is left out as well.
pub fn rendered_rules(text: &str) -> (Vec<Rule>, bool) {
    let mut rules = Config::resolve_lossy(Some(("", text)), &|_| None, &[], NO_USERS).0.rules;
    let has_room = text.len() + HEADER_BYTES <= CONFIG_BYTES;
    let is_whole = text.ends_with(RULES_END) || (rules.is_empty() && has_room);
    if !is_whole {
        rules.pop();
    }
    (rules, is_whole)
}

/// Most errors that are kept of one configuration.
pub const ERRORS_MAX: usize = 64;

const KEYS: usize = Key::ALL.len();
const PATH_BYTES_MAX: usize = 1023;

#[derive(Debug, Clone)]
enum Value {
    Number(i64),
    Unset,
    Text(String),
    Cpus(CpuList),
    Paths(Paths),
}

/// What the sources say, before it is put together.
struct Raw<'a> {
    path: Option<String>,
    users: Users<'a>,
    /// By key, what its strongest source gives; `None` where nobody gives it, or that value is bad:
    /// the default.
    given: Vec<Option<(Value, Origin)>>,
    rules: Vec<Rule>,
    errors: Vec<ConfigError>,
}

impl<'a> Raw<'a> {
    fn new(path: Option<&str>, users: Users<'a>) -> Raw<'a> {
        Raw {
            path: path.map(String::from),
            users,
            given: Key::ALL.iter().map(|_| None).collect(),
            rules: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn place(&self, key: Option<Key>, origin: Origin) -> Place {
        match origin {
            Origin::Default => Place::Default,
            Origin::File(line) => Place::File { path: self.path.clone().unwrap_or_default(), line },
            Origin::Environment | Origin::Live => Place::Environment,
            Origin::CommandLine => match key.and_then(Key::cli) {
                Some(option) => Place::CommandLine(option),
                None => Place::Environment,
            },
        }
    }

    fn error(&mut self, place: Place, text: String, problem: &str, valid: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(ConfigError { place, text, problem: String::from(problem), valid });
        }
    }

    fn read_env(&mut self, env: Env<'_>) {
        let from_command_line = env(ENV_FROM_COMMAND_LINE).unwrap_or_default();
        for key in Key::ALL.iter().copied() {
            let Some(text) = env(key.name()) else {
                continue;
            };
            let listed = from_command_line.split(',').any(|name| name == key.name());
            let origin = if listed { Origin::CommandLine } else { Origin::Environment };
            self.give(key, text.trim(), origin);
        }
    }

    /// Takes one value from a source that is at least as strong as those before it.
    fn give(&mut self, key: Key, text: &str, origin: Origin) {
        let value = match parse(key.kind(), text) {
            Ok(value) => Some((value, origin)),
            Err(problem) => {
                let place = self.place(Some(key), origin);
                let text = format!("{}={text}", key.name());
                self.error(place, text, problem, key.valid());
                None
            }
        };
        if let Some(slot) = self.given.get_mut(key as usize) {
            *slot = value;
        }
    }

    fn origin(&self, key: Key) -> Origin {
        match self.given.get(key as usize) {
            Some(Some((_, origin))) => *origin,
            _ => Origin::Default,
        }
    }

    fn number(&self, key: Key) -> i64 {
        match self.given.get(key as usize) {
            Some(Some((Value::Number(number), _))) => *number,
            _ => key.default_text().parse().unwrap_or(0),
        }
    }

    fn finish(mut self) -> (Config, Origins, Vec<ConfigError>) {
        let buffer = self.number(Key::BufferBytes);
        let strength = self.origin(Key::BufferBytes).strength();
        let (first, strength) = self.multiple_of(Key::ArenaFirstBytes, buffer, strength);
        let (growth, _) = self.multiple_of(Key::ArenaGrowthMaxBytes, first, strength);

        let mut config = Config::default();
        let mut of = [Origin::Default; KEYS];
        for (key, given) in Key::ALL.iter().zip(self.given) {
            if let (Some((value, origin)), Some(slot)) = (given, of.get_mut(*key as usize)) {
                config.set(*key, value);
                *slot = origin;
            }
        }
        config.set(Key::ArenaFirstBytes, Value::Number(first));
        config.set(Key::ArenaGrowthMaxBytes, Value::Number(growth));
        config.rules = self.rules;
        let file = self.path;
        (config, Origins { of, file }, self.errors)
    }

    /// The value of `key`, which has to be `base` times a power of two, and how strong its base and
    /// itself are.
    fn multiple_of(&mut self, key: Key, base: i64, base_strength: u8) -> (i64, u8) {
        let value = self.number(key);
        let origin = self.origin(key);
        let strength = base_strength.max(origin.strength());
        if is_power_of_two_times(base, value) {
            return (value, strength);
        }
        let is_default = match origin {
            Origin::Default => true,
            Origin::File(_) => key.default_text().parse() == Ok(value),
            Origin::Environment | Origin::CommandLine | Origin::Live => false,
        };
        let follows = is_default || origin.strength() < base_strength;
        if follows {
            return (power_of_two_times(base, value), strength);
        }
        let place = self.place(Some(key), origin);
        let Kind::PowerOfTwoTimes { of, .. } = key.kind() else {
            return (value, strength);
        };
        let text = format!("{}={value}", key.name());
        let problem = format!("not {base} ({}) times a power of two", of.name());
        self.error(place, text, &problem, suggest(base, value));
        if let Some(slot) = self.given.get_mut(key as usize) {
            *slot = None;
        }
        (power_of_two_times(base, self.number(key)), base_strength)
    }
}

/// The path of the log that stands for the system's: syslog(3), or systemd's journal.
pub const SYSLOG: &str = "syslog";
/// Where that listens.
pub const SYSLOG_SOCKET: &str = "/dev/log";

/// Writes the path of the log of process `pid`, of user `uid`: `%p` in it is the former, `%u` the
/// latter, `%%` a `%`; others stay.
pub fn write_log_path(out: &mut impl fmt::Write, path: &str, pid: u32, uid: u32) -> fmt::Result {
    let mut rest = path;
    while let Some((before, from)) = rest.split_once('%') {
        out.write_str(before)?;
        let used = match from.bytes().next() {
            Some(b'p') => write!(out, "{pid}").map(|()| 1),
            Some(b'u') => write!(out, "{uid}").map(|()| 1),
            Some(b'%') => out.write_str("%").map(|()| 1),
            _ => out.write_str("%").map(|()| 0),
        }?;
        rest = from.get(used..).unwrap_or("");
    }
    out.write_str(rest)
}

const ARENA_BYTES_MAX: i64 = 512 << 20;

fn is_power_of_two_times(base: i64, value: i64) -> bool {
    base > 0
        && value > 0
        && value % base == 0
        && u64::try_from(value / base).is_ok_and(u64::is_power_of_two)
}

/// The smallest `base` times a power of two that is at least `wanted`, but at most 512 MiB.
fn power_of_two_times(base: i64, wanted: i64) -> i64 {
    let mut value = base.max(1);
    while value < wanted && value <= ARENA_BYTES_MAX / 2 {
        value *= 2;
    }
    value
}

fn suggest(base: i64, value: i64) -> String {
    let above = power_of_two_times(base, value);
    if above > base && above > value {
        format!("for example {} or {above}", above / 2)
    } else {
        format!("for example {above}")
    }
}

fn parse(kind: Kind, text: &str) -> Result<Value, &'static str> {
    match kind {
        Kind::Number { min, max, step } => {
            let number = number(text, min, max)?;
            if number % step != 0 {
                return Err("not a multiple");
            }
            Ok(Value::Number(number))
        }
        Kind::OptionalNumber { .. } if text.is_empty() => Ok(Value::Unset),
        Kind::OptionalNumber { min, max } => number(text, min, max).map(Value::Number),
        Kind::Flag => number(text, 0, 1).map(Value::Number),
        Kind::PowerOfTwoTimes { max, .. } => number(text, 4096, max).map(Value::Number),
        Kind::Path => {
            if text.len() > PATH_BYTES_MAX {
                Err("too long")
            } else if ini::quote(text).is_none() {
                Err("has control characters, or both kinds of quotes")
            } else {
                Ok(Value::Text(String::from(text)))
            }
        }
        Kind::CpuList => CpuList::parse(text).map(Value::Cpus),
        Kind::Paths => Paths::parse(text).map(Value::Paths),
    }
}

fn number(text: &str, min: i64, max: i64) -> Result<i64, &'static str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if text.is_empty() {
        return Err("empty");
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a number");
    }
    match text.parse::<i64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Ok(number) if number < min => Err("too small"),
        _ if text.starts_with('-') => Err("too small"),
        _ => Err("too large"),
    }
}

/// All of them the defaults'.
#[cfg(test)]
fn tests_origins() -> Origins {
    Origins { of: [Origin::Default; KEYS], file: None }
}

#[cfg(test)]
mod tests;
