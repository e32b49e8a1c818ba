//! The table of options: each is declared once, here. Parser, `netacc_run --help`, the man pages and the sample file
//! are written from it or checked against it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Default path of the configuration file.
pub const DEFAULT_FILE: &str = "/etc/netacc.conf";
/// Environment variable with the path of the configuration file (`netacc_run -f`).
pub const ENV_FILE: &str = "NACC_CONF";
/// Environment variable in which `netacc_run` lists, separated by commas, the keys that were given on its command
/// line, so that the library can report their origin truthfully.
pub const ENV_FROM_COMMAND_LINE: &str = "NACC_CLI_KEYS";
/// Name of the only section of the configuration file.
pub const SECTION: &str = "netacc";

/// What values an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number in the range, a multiple of `step`.
    Number {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
        /// The value is a multiple of this.
        step: i64,
    },
    /// As `Number` with step 1, or nothing at all: not set.
    OptionalNumber {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// 0 or 1.
    Flag,
    /// A number of bytes that is `of` times a power of two (1, 2, 4, …).
    PowerOfTwoTimes {
        /// The option whose value is multiplied.
        of: Key,
        /// Largest value.
        max: i64,
    },
    /// A path, or nothing.
    Path,
    /// CPU numbers, `0`, `1-3` or `1,3,4`, or nothing: no restriction.
    CpuList,
    /// Names of paths in the order of preference.
    Paths,
}

/// An option of `netacc_run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cli {
    /// `-p`; all of NetACC's are such.
    Letter(char),
    /// `--paths`; all of netacc's own are such, so that they cannot clash with NetACC's.
    Word(&'static str),
}

impl fmt::Display for Cli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cli::Letter(letter) => write!(f, "-{letter}"),
            Cli::Word(word) => write!(f, "--{word}"),
        }
    }
}

/// When a changed value is honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakesEffect {
    /// When the program is started the next time.
    Restart,
}

impl TakesEffect {
    /// The word for manuals.
    pub const fn as_str(self) -> &'static str {
        match self {
            TakesEffect::Restart => "at the next start of the program",
        }
    }
}

/// One option.
#[derive(Debug)]
pub struct Setting {
    /// Which one.
    pub key: Key,
    /// Its name in the file and in the environment.
    pub name: &'static str,
    /// Its default, in the form it has in the file.
    pub default: &'static str,
    /// Its valid values.
    pub kind: Kind,
    /// Its option on the command line of `netacc_run`.
    pub cli: Option<Cli>,
    /// What it is, in a few words, for a list of options.
    pub brief: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// When a change takes effect.
    pub takes_effect: TakesEffect,
    /// Whether the shared-memory path honours it. If not, it is parsed and checked and kept for the RDMA path.
    pub in_effect: bool,
}

macro_rules! settings {
    ($($key:ident $name:literal = $default:literal, $kind:expr, $cli:expr, $effect:expr, $brief:literal, $doc:literal;)*) => {
        /// Names an option.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key { $(#[doc = $doc] $key),* }

        /// Every option, in the order of the manual.
        pub static SETTINGS: &[Setting] = &[$(Setting {
            key: Key::$key,
            name: $name,
            default: $default,
            kind: $kind,
            cli: $cli,
            brief: $brief,
            doc: $doc,
            takes_effect: TakesEffect::Restart,
            in_effect: $effect,
        }),*];

        impl Key {
            /// Every key, in the order of [`SETTINGS`].
            pub const ALL: &'static [Key] = &[$(Key::$key),*];
            /// The name in the file and in the environment.
            pub const fn name(self) -> &'static str {
                match self { $(Key::$key => $name),* }
            }
            /// The default, in the form it has in the file.
            pub const fn default_text(self) -> &'static str {
                match self { $(Key::$key => $default),* }
            }
            /// The valid values.
            pub const fn kind(self) -> Kind {
                match self { $(Key::$key => $kind),* }
            }
            /// The option on the command line of `netacc_run`.
            pub const fn cli(self) -> Option<Cli> {
                match self { $(Key::$key => $cli),* }
            }
        }
    };
}

const MIB: i64 = 1 << 20;
const YES: bool = true;
const NOT_ON_SHM: bool = false;

const fn letter(letter: char) -> Option<Cli> {
    Some(Cli::Letter(letter))
}

const fn number(min: i64, max: i64) -> Kind {
    Kind::Number { min, max, step: 1 }
}

settings! {
    BufferBytes "NACC_SOR_MSG_SIZE" = "16384", Kind::Number { min: 4096, max: MIB, step: 4096 }, letter('s'), YES,
        "size of a message buffer in bytes",
        "Size of a buffer in bytes. A connection's rings are made of such buffers.";
    ArenaFirstBytes "NACC_RDMA_MR_MIN_INC_SIZE" = "16384",
        Kind::PowerOfTwoTimes { of: Key::BufferBytes, max: 512 * MIB }, None, YES,
        "size of the first arena of a channel in bytes",
        "Size in bytes of the first arena of a channel, from which buffers are taken; each further arena is twice as large as the one before.";
    ArenaGrowthMaxBytes "NACC_RDMA_MR_MAX_INC_SIZE" = "8388608",
        Kind::PowerOfTwoTimes { of: Key::ArenaFirstBytes, max: 512 * MIB }, None, YES,
        "largest size of one arena in bytes",
        "Largest size in bytes of one arena, that is, of one growth step.";
    ConnectionsPerChannel "NACC_SOR_CONN_PER_QP" = "1", number(1, 4096), letter('p'), NOT_ON_SHM,
        "most connections per QP",
        "Most connections that share one QP. On shared memory all connections between two processes share one channel in any case.";
    IoThreads "NACC_SOR_IO_THREADS" = "1", number(1, 64), letter('t'), NOT_ON_SHM,
        "number of I/O threads",
        "Number of I/O threads of the library. The shared-memory path works in the application's own threads and has none.";
    EmptyChannelExpireMs "NACC_EMPTY_QP_EXPIRE_MS" = "60000", number(-1, i32::MAX as i64), None, YES,
        "how long an empty QP is kept, in ms",
        "Milliseconds for which the channel to a process with which no connection is left is kept for the next one; 0 ends it at once, -1 keeps it for ever.";
    EmptyChannelsMax "NACC_EMPTY_QP_MAX_ALL" = "100", number(0, 65536), None, NOT_ON_SHM,
        "most empty QPs that are kept",
        "Most QPs without connections that a process keeps.";
    EmptyChannelsMaxPerPeer "NACC_EMPTY_QP_MAX_PER" = "10", number(0, 65536), None, NOT_ON_SHM,
        "most empty QPs that are kept to one address",
        "Most QPs without connections that a process keeps to one address.";
    AcceleratePercent "NACC_CONNECT_RDMA_PERCENT" = "100", number(0, 100), None, YES,
        "share of new connections that are accelerated, in percent",
        "Share of the new connections that are accelerated, in percent; the others stay on TCP.";
    AccelerateByDefault "NACC_ENABLE_RDMA_DEFAULT" = "1", Kind::Flag, None, YES,
        "accelerate TCP connections",
        "1 accelerates every TCP connection that can be; 0 accelerates nothing, every connection stays on TCP.";
    LogLevel "NACC_LOG_LEVEL" = "3", number(0, 5), None, YES,
        "log level",
        "Least severe message that is logged: 0 TRACE, 1 DEBUG, 2 INFO, 3 WARN, 4 ERROR, 5 FATAL.";
    LogPath "NACC_LOG_PATH" = "/tmp/netacc.log", Kind::Path, None, YES,
        "log file",
        "File to which the library appends its messages; empty: no log.";
    Affinity "NACC_SOR_AFFINITY" = "", Kind::CpuList, letter('A'), NOT_ON_SHM,
        "CPUs for the I/O threads",
        "CPUs on which the library's I/O threads may run, such as 0, 1-3 or 1,3,4; empty: all.";
    TcpFirst "NACC_CONN_TCP_FIRST" = "0", Kind::Flag, letter('T'), YES,
        "use TCP first in connect",
        "1 starts the agreement with the peer only after its first answer, or some sends without one; 0 starts it at connect, beside the data. Neither delays connect, and the first bytes are on TCP in both cases.";
    FastConnect "NACC_FAST_CONNECT" = "0", number(0, 1), letter('F'), NOT_ON_SHM,
        "fast connect mode",
        "Fast connect mode: 1 lets a connection use a kept QP before the peer has confirmed it. A channel in shared memory is always used at once.";
    PollMs "NACC_POLL_MS" = "", Kind::OptionalNumber { min: 0, max: 60_000 }, letter('P'), YES,
        "longest time to poll before a thread sleeps, in ms",
        "Longest time in milliseconds for which a waiting thread polls before it sleeps, where polling has paid; more than 10 counts as 10; 0 never polls; empty: at most 60 microseconds.";
    CompVector "NACC_CQ_COMP_VECTOR" = "0", number(0, 1023), letter('i'), NOT_ON_SHM,
        "completion vector of the CQs",
        "Completion vector of the completion queues, which selects the interrupt and so the CPU that handles completions.";
    Paths "NACC_PATHS" = "shm,rdma", Kind::Paths, Some(Cli::Word("paths")), YES,
        "paths that connections may take, the preferred one first",
        "Paths that connections may take, the preferred one first: each takes the first one that both of its ends can use. shm (shared memory) serves connections within one host, rdma those whose addresses belong to RDMA devices, never 127.0.0.0/8 or ::1. rdma alone or rdma,shm lets connections within one host go over RDMA. tcp accelerates nothing.";
}

impl Key {
    /// The key with that name.
    pub fn from_name(name: &str) -> Option<Key> {
        Key::ALL.iter().copied().find(|key| key.name() == name)
    }
    /// The key with that option on the command line.
    pub fn from_cli(option: Cli) -> Option<Key> {
        Key::ALL
            .iter()
            .copied()
            .find(|key| key.cli() == Some(option))
    }
    /// A hint for somebody who wrote an unknown name.
    pub fn suggest(name: &str) -> String {
        let distance = |key: &Key| edit_distance(name.as_bytes(), key.name().as_bytes());
        match Key::ALL.iter().min_by_key(|key| distance(key)) {
            Some(key) if distance(key) <= 4 => format!("did you mean {}?", key.name()),
            _ => String::from("see netacc.conf(5)"),
        }
    }
    /// Its declaration.
    pub fn setting(self) -> Option<&'static Setting> {
        SETTINGS.get(self as usize)
    }
    /// How a valid value is described to people.
    pub fn valid(self) -> String {
        self.kind().describe()
    }
}

impl Kind {
    /// How a valid value is described to people.
    pub fn describe(self) -> String {
        match self {
            Kind::Number { min: 0, max: 1, .. } => "0 or 1".to_string(),
            Kind::Number { min, max, step: 1 } => format!("a whole number from {min} to {max}"),
            Kind::Number { min, max, step } => format!("a multiple of {step} from {min} to {max}"),
            Kind::OptionalNumber { min, max } => {
                format!("a whole number from {min} to {max}, or empty")
            }
            Kind::Flag => "0 or 1".to_string(),
            Kind::PowerOfTwoTimes { of, max } => {
                format!("{} times a power of two, at most {max}", of.name())
            }
            Kind::Path => "a path of at most 1023 bytes, or empty".to_string(),
            Kind::CpuList => {
                "CPU numbers such as 0, 1-3 or 1,3,4, at most 8191, or empty".to_string()
            }
            Kind::Paths => {
                "shm and rdma, separated by a comma, each at most once, or tcp alone".to_string()
            }
        }
    }
}

/// Levenshtein's; names longer than 64 bytes are far from everything.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let replaced = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replaced.min(*cell + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}
