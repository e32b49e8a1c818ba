//! What mends a reason or a counter of one process: what is said of all that have it, and the
//! command for this one, with its number, its peer's, and its files.

use super::look;
use super::rules;
use crate::segment::Process;
use crate::show::shell_word;
use netacc_control::config::{
    DEFAULT_FILE, Key, SYSLOG, TakesEffect, file_of, parse_rendered, write_log_path,
};
use netacc_control::stats::{Connection, Counter, Reason};
use std::net::SocketAddr;

/// What stands before the command.
pub const RUN: &str = "Run: ";

/// What of a process its commands need.
#[derive(Debug, Default)]
pub struct Of {
    pid: u32,
    /// What it has for a parameter; empty: the default is not known.
    config: String,
    /// It takes another value while it runs.
    hears: bool,
    /// Its log, which may be none.
    log: String,
    /// Where the limit of its memory is.
    memory: Option<String>,
    /// What mends a rule of it.
    rule: String,
}

impl Of {
    /// That of a process, whose effective user this is.
    pub fn new(process: &Process, user: u32) -> Of {
        let pid = process.pid;
        let config = process.header.config.clone();
        let path = value(&config, Key::LogPath).to_owned();
        let mut log = place_of_files(pid);
        log.truncate(if path.starts_with('/') { log.len() } else { 0 });
        // (Writing into a string does not fail.)
        let _ = write_log_path(&mut log, &path, process.header.pid, user);
        let hears = process.header.requests.is_some();
        let rule = rules::correct_of(process);
        Of { pid, config, hears, log, memory: memory(pid), rule }
    }

    /// What mends a reason; `one`: an open connection that has it.
    pub fn reason(&self, reason: Reason, one: Option<&Connection>) -> String {
        let said = match reason {
            // (What is said of all is to run this.)
            Reason::Rule => String::from("Change the rule, if that was not meant."),
            _ => reason.remedy().to_owned(),
        };
        format!("{said} {RUN}{}", self.command(reason, one))
    }

    /// What mends a counter that is not 0.
    pub fn counter(&self, counter: Counter) -> String {
        let pid = self.pid;
        let command = match counter {
            Counter::AuthFailures | Counter::PeerCorrupt => self.read_log(),
            Counter::ChannelsFailed | Counter::UtcpLost => self.read_log(),
            Counter::RdmaPairsLost => format!("rdma link; rdma statistic; {}", self.read_log()),
            Counter::LogLinesDropped => {
                let folder = self.log.rsplit_once('/').map_or("/tmp", |(folder, _)| folder);
                let folder = shell_word(&format!("{folder}/"));
                format!("df -h {folder}; ls -l {}", shell_word(&self.log))
            }
            _ => format!("netacc_ss -p {pid} -s cnt --wide"),
        };
        format!("{} {RUN}{command}", counter.remedy())
    }

    fn command(&self, reason: Reason, one: Option<&Connection>) -> String {
        let pid = self.pid;
        let (local, peer) = (one.and_then(|it| it.local), one.and_then(|it| it.peer));
        let config = file_of(&self.config).unwrap_or(DEFAULT_FILE);
        match reason {
            Reason::PeerRefused | Reason::PeerAskedForTcp => self.look_at_peer(one),
            Reason::ChannelFailed => match peer_of(one) {
                Some(peer) => {
                    format!("{}; netacc cfg get NACC_LOG_PATH -p {peer}", self.read_log())
                }
                None => self.read_log(),
            },
            Reason::PeerWithoutLibrary | Reason::NotClaimed => who_has(local, peer),
            Reason::ListenerWithoutLibrary => match peer {
                Some(peer) => format!("netacc doctor {peer}"),
                None => self.show(reason),
            },
            Reason::NotAuthenticated | Reason::RdmaRefused | Reason::Internal => self.read_log(),
            Reason::UtcpNoPrivilege | Reason::UtcpNoSupport => self.read_log(),
            Reason::RdmaLost => format!("rdma link; {}", self.read_log()),
            Reason::NoMemory => {
                let group = self.memory.as_deref().map(|file| format!(" {}", shell_word(file)));
                format!("cat /proc/{pid}/limits{}", group.unwrap_or_default())
            }
            Reason::NoDescriptor => format!("prlimit --pid {pid} --nofile=65536"),
            Reason::MemlockLimit => format!("prlimit --pid {pid} --memlock=unlimited"),
            Reason::ChannelFull => format!("netacc_ss -p {pid} -s qp"),
            Reason::VersionMismatch => String::from("netacc ps"),
            Reason::DisabledByConfig => self.set(Key::AccelerateByDefault, "1"),
            Reason::SampledOut => self.set(Key::AcceleratePercent, "100"),
            Reason::PathsExcludeIt => self.set(Key::Paths, "shm,rdma"),
            Reason::IoUring => self.set(Key::IoUring, "0"),
            Reason::Rule => format!("{}; {}", self.show(reason), self.rule),
            Reason::ConfigUnreadable => {
                format!("ls -l {}; {}", shell_word(config), self.read_log())
            }
            Reason::RdmaCoreMissing => String::from("apt install ibverbs-providers librdmacm1"),
            Reason::NoRdmaDevice => String::from("rdma link; ibv_devinfo"),
            Reason::NotInReach => route(local, peer).unwrap_or_else(|| self.show(reason)),
            Reason::UtcpNoRoute => match route(local, peer) {
                Some(route) => format!("{route}; ip neigh"),
                None => self.show(reason),
            },
            Reason::PeerCorrupt => self.read_log(),
            _ => self.show(reason),
        }
    }

    /// Which connections have it.
    fn show(&self, reason: Reason) -> String {
        format!("netacc_ss -p {} --reason {} --wide", self.pid, reason.name())
    }

    /// The end of its log.
    fn read_log(&self) -> String {
        match self.log.as_str() {
            "" => format!("netacc cfg get NACC_LOG_PATH -p {}", self.pid),
            SYSLOG => format!("journalctl _PID={}", self.pid),
            log => format!("tail -n 50 {}", shell_word(log)),
        }
    }

    fn set(&self, key: Key, better: &str) -> String {
        let name = key.name();
        match self.hears && key.takes_effect() != TakesEffect::Restart {
            true => format!("netacc cfg set {name} {better} -p {}", self.pid),
            false => format!("netacc cfg get {name} -p {}", self.pid),
        }
    }

    /// What the other end of a connection says.
    fn look_at_peer(&self, one: Option<&Connection>) -> String {
        let (local, peer) = (one.and_then(|it| it.local), one.and_then(|it| it.peer));
        match (peer_of(one), local) {
            (Some(pid), Some(local)) => format!("netacc_ss -p {pid} --port {}", local.port()),
            (Some(pid), None) => format!("netacc_ss -p {pid} -s sock"),
            (None, _) => who_has(local, peer),
        }
    }
}

/// The number of the process at its other end, if that is known.
fn peer_of(one: Option<&Connection>) -> Option<u32> {
    one.map(|it| it.peer_pid).filter(|pid| *pid != 0)
}

/// Which process of this host has the other end.
fn who_has(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> String {
    match (local, peer) {
        (Some(local), Some(peer)) => {
            format!("ss -tnp 'sport = :{} and dport = :{}'", peer.port(), local.port())
        }
        _ => String::from("netacc ps"),
    }
}

fn route(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> Option<String> {
    Some(format!("ip route get {} from {}", peer?.ip(), local?.ip()))
}

/// What stands before the names of a process's files: nothing, where it sees those that we do.
fn place_of_files(pid: u32) -> String {
    let mounts = |process: &str| look::namespace(process, "mnt");
    match mounts(&format!("/proc/{pid}")) {
        its if its == mounts("/proc/self") => String::new(),
        _ => format!("/proc/{pid}/root"),
    }
}

fn value(config: &str, key: Key) -> &str {
    let found = parse_rendered(config).find(|(name, ..)| *name == key.name());
    found.map_or(key.default_text(), |(_, value, _)| value)
}

/// The file with the limit of the memory of its control group, of the second version.
fn memory(pid: u32) -> Option<String> {
    let groups = look::file(format!("/proc/{pid}/cgroup"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let file = format!("/sys/fs/cgroup{}/memory.max", group.trim_end_matches('/'));
    std::path::Path::new(&file).exists().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::stats::RECORD_BYTES;

    fn of(hears: bool) -> Of {
        let log = String::from("/tmp/netacc-17.log");
        let memory = Some(String::from("/sys/fs/cgroup/a/memory.max"));
        let rule = String::from("if that was not meant: correct the rule in /etc/netacc.conf");
        Of { pid: 17, config: String::new(), hears, log, memory, rule }
    }

    fn connection(peer_pid: u32) -> Connection {
        let none = Connection::read_closed(&[0; RECORD_BYTES]);
        Connection {
            peer_pid,
            local: Some(SocketAddr::from(([10, 0, 0, 1], 5000))),
            peer: Some(SocketAddr::from(([10, 0, 0, 2], 80))),
            ..none
        }
    }

    /// Programs that are run for it.
    const PROGRAMS: [&str; 15] = [
        "netacc",
        "netacc_ss",
        "ss",
        "tail",
        "cat",
        "ls",
        "df",
        "ip",
        "rdma",
        "ibv_devinfo",
        "apt",
        "prlimit",
        "journalctl",
        "if",
        "netacc_run",
    ];

    fn has_a_command(remedy: &str) {
        let (said, commands) = remedy.split_once(RUN).unwrap_or_else(|| panic!("{remedy}"));
        assert!(said.ends_with(". "), "{remedy}");
        for command in commands.split("; ") {
            let program = command.split(' ').next().unwrap();
            assert!(PROGRAMS.contains(&program), "{remedy}");
        }
        // What is to be filled in would be left to the reader.
        assert!(!commands.contains("PID") && !commands.contains('…'), "{remedy}");
    }

    #[test]
    fn every_reason_has_a_command_with_what_it_is_run_for() {
        for reason in Reason::ALL.iter().copied() {
            for one in [None, Some(connection(0)), Some(connection(4711))] {
                for hears in [false, true] {
                    let remedy = of(hears).reason(reason, one.as_ref());
                    has_a_command(&remedy);
                    assert!(!remedy.contains("with the number of the process"), "{remedy}");
                }
            }
        }
    }

    #[test]
    fn every_counter_has_a_command() {
        Counter::ALL.iter().for_each(|counter| has_a_command(&of(true).counter(*counter)));
    }

    /// What a process says of itself may be meant for whoever runs the command.
    #[test]
    fn a_file_of_a_process_is_one_word_of_a_command() {
        let file = "/tmp/a b;$(rm -r c)'d";
        let of = Of { log: file.into(), memory: Some(file.into()), ..of(true) };
        for (remedy, words) in [
            (of.reason(Reason::Internal, None), &["tail", "-n", "50", file][..]),
            (of.reason(Reason::NoMemory, None), &["cat", "/proc/17/limits", file]),
            (of.counter(Counter::LogLinesDropped), &["df", "-h", "/tmp/;", "ls", "-l", file]),
        ] {
            let command = remedy.split(RUN).nth(1).unwrap();
            assert_eq!(shlex::split(command).unwrap(), words, "{command}");
        }
    }

    #[test]
    fn commands_name_the_process_its_peer_and_its_files() {
        let one = connection(4711);
        let away = connection(0);
        let of = of(true);
        for (reason, connection, command) in [
            (Reason::PeerRefused, Some(&one), "netacc_ss -p 4711 --port 5000"),
            (Reason::PeerAskedForTcp, Some(&away), "ss -tnp 'sport = :80 and dport = :5000'"),
            (Reason::NotClaimed, Some(&away), "ss -tnp 'sport = :80 and dport = :5000'"),
            (Reason::ListenerWithoutLibrary, Some(&one), "netacc doctor 10.0.0.2:80"),
            (
                Reason::ChannelFailed,
                Some(&one),
                "tail -n 50 /tmp/netacc-17.log; netacc cfg get NACC_LOG_PATH -p 4711",
            ),
            (Reason::NoMemory, None, "cat /proc/17/limits /sys/fs/cgroup/a/memory.max"),
            (Reason::ChannelFull, None, "netacc_ss -p 17 -s qp"),
            (Reason::DisabledByConfig, None, "netacc cfg set NACC_ENABLE_RDMA_DEFAULT 1 -p 17"),
            (Reason::NotInReach, Some(&one), "ip route get 10.0.0.2 from 10.0.0.1"),
            (Reason::Splice, None, "netacc_ss -p 17 --reason splice --wide"),
        ] {
            let remedy = of.reason(reason, connection);
            assert_eq!(remedy.split(RUN).nth(1), Some(command));
        }
        let rule = of.reason(Reason::Rule, None);
        assert!(rule.ends_with("correct the rule in /etc/netacc.conf"), "{rule}");
    }
}
