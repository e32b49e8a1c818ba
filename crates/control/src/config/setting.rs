//! The table of options. A new option is declared here: name, default, range, letter, text. The
//! parser of the file, the man pages and the sample file follow from that. By hand come its field
//! in `config.rs` and its place in `netacc_run --help` (`ORDER` in `crates/tools/src/options.rs`),
//! which tests compare with this table; CONTRIBUTING.md has the whole list.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Default path of the configuration file.
pub const DEFAULT_FILE: &str = "/etc/netacc.conf";
/// Environment variable with the path of the configuration file (`netacc_run -f`).
pub const ENV_FILE: &str = "NACC_CONF";
/// Environment variable in which `netacc_run` lists, separated by commas, the keys that were given
/// on its command line, so that the library can report their origin truthfully.
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
    /// At once, for what is open as well.
    Now,
    /// For connections that are made from then on.
    NextConnection,
    /// When the program is started the next time.
    Restart,
}

impl TakesEffect {
    /// The word for manuals.
    pub const fn as_str(self) -> &'static str {
        match self {
            TakesEffect::Now => "at once",
            TakesEffect::NextConnection => "for connections that are made from then on",
            TakesEffect::Restart => "at the next start of the program",
        }
    }

    /// The word in tables and in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            TakesEffect::Now => "now",
            TakesEffect::NextConnection => "next-connection",
            TakesEffect::Restart => "restart",
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
    /// Where it has an effect. It is parsed and checked in any case.
    pub effect: Effect,
}

/// The paths on which an option has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Shared memory and RDMA.
    Everywhere,
    /// RDMA alone.
    OnRdma,
}

impl Effect {
    /// The sentence for manuals; empty where nothing need be said.
    pub const fn note(self) -> &'static str {
        match self {
            Effect::Everywhere => "",
            Effect::OnRdma => "No effect on shared memory.",
        }
    }
}

macro_rules! settings {
    ($($key:ident $name:literal = $default:literal, $kind:expr, $cli:expr, $effect:expr, $when:expr, $brief:literal, $doc:literal;)*) => {
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
            takes_effect: $when,
            effect: $effect,
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
            /// When another value takes effect that is set while the program runs.
            pub const fn takes_effect(self) -> TakesEffect {
                match self { $(Key::$key => $when),* }
            }
        }
    };
}

const MIB: i64 = 1 << 20;
const EVERYWHERE: Effect = Effect::Everywhere;
const ON_RDMA: Effect = Effect::OnRdma;
const NOW: TakesEffect = TakesEffect::Now;
const NEXT: TakesEffect = TakesEffect::NextConnection;
const RESTART: TakesEffect = TakesEffect::Restart;

const fn letter(letter: char) -> Option<Cli> {
    Some(Cli::Letter(letter))
}

const fn number(min: i64, max: i64) -> Kind {
    Kind::Number { min, max, step: 1 }
}

settings! {
    BufferBytes "NACC_SOR_MSG_SIZE" = "16384", Kind::Number { min: 4096, max: MIB, step: 4096 }, letter('s'), EVERYWHERE, RESTART,
        "size of a message buffer in bytes",
        "Size of a message buffer in bytes. On shared memory each direction of a connection has a ring of 16. Over RDMA a ring is 8, rounded up to a power of two, and each end locks two of them, one to send from and one to receive into. Give both hosts the same value.";
    ArenaFirstBytes "NACC_RDMA_MR_MIN_INC_SIZE" = "16384",
        Kind::PowerOfTwoTimes { of: Key::BufferBytes, max: 512 * MIB }, None, EVERYWHERE, RESTART,
        "first piece of memory for rings in bytes",
        "Size in bytes of the first piece of memory for the rings of the connections with one process, at least what one connection needs; each further piece is twice as large as the one before. Over RDMA a piece is a memory region, which is registered and locked as a whole.";
    ArenaGrowthMaxBytes "NACC_RDMA_MR_MAX_INC_SIZE" = "8388608",
        Kind::PowerOfTwoTimes { of: Key::ArenaFirstBytes, max: 512 * MIB }, None, EVERYWHERE, RESTART,
        "largest piece of memory for rings in bytes",
        "Largest size in bytes of one such piece, that is, of one growth step.";
    ConnectionsPerChannel "NACC_SOR_CONN_PER_QP" = "1", number(1, 4096), letter('p'), ON_RDMA, RESTART,
        "most connections per QP",
        "Most connections that share one queue pair. More save queue pairs and the time to make them, but share one send queue, and are lost together. Give both hosts the same value. On shared memory all connections between two processes share one channel in any case.";
    IoThreads "NACC_SOR_IO_THREADS" = "1", number(1, 64), letter('t'), ON_RDMA, RESTART,
        "number of I/O threads",
        "Most I/O threads of the library. They serve the completion queues while no thread of the application polls them, and sleep otherwise; none is started before the first queue pair is needed. Shared memory works in the application's own threads.";
    EmptyChannelExpireMs "NACC_EMPTY_QP_EXPIRE_MS" = "60000", number(-1, i32::MAX as i64), None, EVERYWHERE, RESTART,
        "how long an empty QP is kept, in ms",
        "Milliseconds for which the channel to a process with which no connection is left, or a queue pair without connections, is kept for the next one; 0 ends it at once, -1 keeps it for ever.";
    EmptyChannelsMax "NACC_EMPTY_QP_MAX_ALL" = "100", number(0, 65536), None, EVERYWHERE, RESTART,
        "most empty QPs that are kept",
        "Most queue pairs without connections that a process keeps. On shared memory: most TCP connections, with NACC_FAST_CONNECT=1.";
    EmptyChannelsMaxPerPeer "NACC_EMPTY_QP_MAX_PER" = "10", number(0, 65536), None, ON_RDMA, RESTART,
        "most empty QPs that are kept to one address",
        "Most queue pairs without connections that a process keeps to one address.";
    AcceleratePercent "NACC_CONNECT_RDMA_PERCENT" = "100", number(0, 100), None, EVERYWHERE, NEXT,
        "share of new connections that are accelerated, in percent",
        "Share of the new connections that are accelerated, in percent; the others stay on TCP.";
    AccelerateByDefault "NACC_ENABLE_RDMA_DEFAULT" = "1", Kind::Flag, None, EVERYWHERE, NOW,
        "accelerate TCP connections",
        "1 accelerates every TCP connection that can be; 0 accelerates nothing, every connection stays on TCP. Set to 0 while a program runs it takes its connections back to TCP; set to 1 again it accelerates these, and those that were made meanwhile, while they are used. A program that was started with 0 takes no change.";
    LogLevel "NACC_LOG_LEVEL" = "3", number(0, 5), None, EVERYWHERE, NOW,
        "log level",
        "Least severe message that is logged: 0 TRACE, 1 DEBUG, 2 INFO, 3 WARN, 4 ERROR, 5 FATAL.";
    LogPath "NACC_LOG_PATH" = "/tmp/netacc.log", Kind::Path, None, EVERYWHERE, RESTART,
        "log file",
        "File to which the library appends its messages; empty: no log; syslog: the system's log (/dev/log: a daemon of syslog's, or systemd's journal). %p in a path is the number of the process, %u that of its effective user, %% a %. A file belongs to the user whose program wrote first: programs of several users need several files.";
    Affinity "NACC_SOR_AFFINITY" = "", Kind::CpuList, letter('A'), ON_RDMA, RESTART,
        "CPUs for the I/O threads",
        "CPUs on which the library's I/O threads may run, such as 0, 1-3 or 1,3,4; empty: all.";
    TcpFirst "NACC_CONN_TCP_FIRST" = "0", Kind::Flag, letter('T'), EVERYWHERE, NEXT,
        "use TCP first in connect",
        "The agreement with the peer starts when the connection has shown that it lives: by a third turn of sending and receiving, 8 calls, or 64 KiB. 1 waits besides for the peer's first answer, or some sends without one. Neither delays connect, and the first bytes are on TCP in both cases. Between hosts it has no effect.";
    FastConnect "NACC_FAST_CONNECT" = "0", number(0, 1), letter('F'), EVERYWHERE, RESTART,
        "fast connect mode",
        "Experimental. 1: a connection within this host that both programs have closed leaves its TCP connection to the next one of the same process to the same listener. That one needs no handshake and no end of the kernel's. At most NACC_EMPTY_QP_MAX_ALL are kept. Both programs need it. Now and then a connect and its accept wait for the agreement, 2 ms at most. Between hosts it has no effect.";
    PollMs "NACC_POLL_MS" = "", Kind::OptionalNumber { min: 0, max: 60_000 }, letter('P'), EVERYWHERE, NOW,
        "longest time to poll before a thread sleeps, in ms",
        "Longest time in milliseconds for which a waiting thread polls before it sleeps, where polling has paid; more than 10 counts as 10; 0 never polls; empty: at most 60 microseconds. Over RDMA it polls the completion queue, too.";
    PollTcpUs "NACC_POLL_TCP_US" = "0", Kind::OptionalNumber { min: 0, max: 1000 }, Some(Cli::Word("poll-tcp")), EVERYWHERE, NOW,
        "longest time to poll the kernel's sockets before a thread sleeps, in us",
        "Longest time in microseconds for which a thread that waits for connections on TCP asks the kernel again before it sleeps, where that has paid, such as 60. 0 never does, nor does NACC_POLL_MS=0. Empty: at most 60 microseconds, and not where more threads want a CPU than there are. limits.md says what it does not go with.";
    CompVector "NACC_CQ_COMP_VECTOR" = "0", number(0, 1023), letter('i'), ON_RDMA, RESTART,
        "completion vector of the CQs",
        "Completion vector of a device's first completion queue, which selects the interrupt and so the CPU that handles completions; further queues take the next ones. Counted modulo those that the device has.";
    RdmaStallMs "NACC_RDMA_STALL_MS" = "200", number(0, 60_000), Some(Cli::Word("rdma-stall")), ON_RDMA, RESTART,
        "time without progress until a QP is given up, in ms",
        "Milliseconds that bytes posted on a queue pair may take to arrive while the peer's process answers, and nothing else arrives for half as long, before its connections go on over TCP. 0: only the device says that a queue pair is lost, which may take half a minute, or for ever.";
    KernelPolicy "NACC_KERNEL_POLICY" = "1", number(0, 1), Some(Cli::Word("kernel-policy")), ON_RDMA, RESTART,
        "keep what the kernel treats specially on TCP",
        "1 keeps connections on TCP whose packets the kernel was asked to treat in a way that RDMA does not: IPsec and other wrappings of packets, marks, priorities, pacing rates, other interfaces. 0 lets them go over RDMA all the same, past all of that: for networks that are protected otherwise. The traffic class goes with them in both cases.";
    KeeperS "NACC_RDMA_KEEPER_S" = "600", number(0, 86_400), Some(Cli::Word("rdma-keeper")), ON_RDMA, RESTART,
        "how long what a process leaves under way may outlive it, in s",
        "Seconds for which a process netacc-keeper may outlive a program that has ended with bytes under way over RDMA to a peer that does not answer; then they are lost, and the connection is reset. It ends when all is handed over, mostly at once. 0: there is none, and a program that ends waits itself, 2 s at most.";
    Paths "NACC_PATHS" = "shm,rdma", Kind::Paths, Some(Cli::Word("paths")), EVERYWHERE, RESTART,
        "paths that connections may take, the preferred one first",
        "Paths that connections may take, the preferred one first: each takes the first one that both of its ends can use. shm (shared memory) serves connections within one host, rdma those whose addresses belong to RDMA devices, never 127.0.0.0/8 or ::1. rdma alone or rdma,shm lets connections within one host go over RDMA. utcp (TCP in user space: experimental, needs privileges, docs/manual/utcp.md) serves connections of which only this end has the library, and is last where others are named. tcp accelerates nothing.";
    IoUring "NACC_IO_URING" = "1", number(0, 2), Some(Cli::Word("io-uring")), EVERYWHERE, RESTART,
        "what becomes of a program's io_uring",
        "What becomes of an io_uring that a program makes through libc's syscall, as libuv (Node) does for its epoll sets, or by liburing, where that is a shared library. 1 follows it: the library carries out changes of epoll sets, and a connection that the ring itself reads, writes or polls goes back to TCP, alone. A ring that cannot be followed (SQPOLL, registered files; not liburing's) takes all connections of the process back to TCP. 0 refuses it: the program finds a kernel without io_uring, and most then do without. 2 takes all connections of the process back to TCP. Rings made by a liburing that is linked in are not seen.";
    TraceSlowMs "NACC_TRACE_SLOW_MS" = "5000", number(0, 86_400_000), None, EVERYWHERE, NOW,
        "how long a wait is too long, in ms",
        "Milliseconds from which on a wait is too long: netacc trace shows it, and the trace of such a connection stays when the process ends in order. These waits count: of a send for room, of an agreement while the connection is used, and for the arrival of bytes that were sent over RDMA. Waits for the next request, or for an answer, never count. 0: none is too long.";
    Trace "NACC_TRACE" = "1", number(0, 2), None, EVERYWHERE, NOW,
        "record what becomes of connections",
        "1 records what becomes of each connection that lives for more than one request and its reply, for netacc trace, also for when the process was killed. The record is a file netacc-trace.* in /dev/shm, of 2 KiB for each connection and at most 35 MiB. A process that filters its system calls is recorded only where the environment, or netacc cfg, sets this. 2 records each call that sends or receives, too, and how long answers take (netacc_ss, netacc metrics, netacc trace histogram): such a call takes longer then, and a connection 4 KiB. 0 records nothing.";
    TraceDir "NACC_TRACE_DIR" = "/dev/shm", Kind::Path, None, EVERYWHERE, RESTART,
        "folder of the traces",
        "Folder in which the traces lie, which has to be on a tmpfs and nobody else's to put files into or take them from: it is root's or the process's user's, and has the sticky bit if others may write to it. The folders above it have to be as safe, which is not looked at. A process that finds it otherwise has its trace in /dev/shm, and its log says so. netacc finds traces in /dev/shm, in the folders in /run/netacc, which netacc-enable(8) has made for services, and in the folder that its own configuration names here.";
}

impl Key {
    /// The key with that name.
    pub fn from_name(name: &str) -> Option<Key> {
        Key::ALL.iter().copied().find(|key| key.name() == name)
    }
    /// The key with that option on the command line.
    pub fn from_cli(option: Cli) -> Option<Key> {
        Key::ALL.iter().copied().find(|key| key.cli() == Some(option))
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
                "shm, rdma and utcp, separated by a comma, each at most once, utcp last, or tcp alone"
                    .to_string()
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
