//! This host: the library, the kernel, the configuration, limits and devices.

use super::commands::{as_root, edit, export, look_closer, netacc, raise, raise_here};
use super::finding::Findings;
use super::look::{self, Status};
use super::rdma;
use super::remedy::{Command, Remedy, mend, no_command, show};
use crate::launch::{self, Environment};
use crate::library::{self, Library};
use crate::options::VERSION;
use crate::show::shell_word;
use crate::{addresses, hidden, log, trace};
use netacc_control::config::{Config, DEFAULT_FILE, ENV_FILE, Key, Origin, Origins};
use netacc_control::stats::Path as WayOn;
use netacc_control::trace::DIRECTORY;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// What an operator reads about a parameter.
const ABOUT_CONFIG: &str =
    "man 5 netacc.conf has every parameter, its default and its valid values";

/// Looks at all of it.
pub fn look(findings: &mut Findings) {
    let mut environment = Environment::inherited();
    library(&environment, findings);
    kernel(findings);
    if let Some(config) = config(&mut environment, findings) {
        effect(&config, "", findings);
    }
    limits("/proc/self", rdma::has_devices(), findings);
    confinement(findings);
    sysctls(Path::new("/proc/sys"), rdma::has_devices(), findings);
    rdma::devices(findings);
}

/// The library that `netacc_run` would preload.
pub fn library(environment: &Environment, findings: &mut Findings) -> Option<Library> {
    let this_program = std::env::current_exe().ok();
    let named = environment.get(library::ENV_LIBRARY);
    match library::find(named, this_program.as_deref()) {
        Err(missing) => {
            let remedy = match library::find(None, this_program.as_deref()) {
                Ok(other) if named.is_some() => {
                    let said = format!("take {}, which these tools would", other.path.display());
                    mend(said, format!("unset {}", library::ENV_LIBRARY))
                }
                _ => show(
                    "install it, as the package netacc-preload or with make install, or name its \
                     file in NETACC_LIB",
                    format!("find / -xdev -name {} 2>/dev/null", library::FILE_NAME),
                ),
            };
            findings.problem("library", missing.to_string(), remedy);
            None
        }
        Ok(library) => {
            let file = library.path.display();
            let named = named.filter(|named| !named.is_empty());
            match version(&library.path) {
                Some(version) if version == VERSION => {
                    findings.ok("library", format!("{file}, version {version}"));
                }
                Some(version) => findings.note(
                    "library",
                    format!("{file} has version {version}, these tools have {VERSION}"),
                    other_library(named.is_some(), &library.path, "install both from one release"),
                ),
                None => findings.note(
                    "library",
                    format!("{file}; its version is not known: it is none that was released"),
                    other_library(
                        named.is_some(),
                        &library.path,
                        "if this is not meant, take another",
                    ),
                ),
            }
            if let Some(why) = cannot_be_mapped(&library.path) {
                let word = shell_word(&library.path.to_string_lossy());
                let to = format!("/usr/local/lib/{}", library::FILE_NAME);
                let copy = as_root(&format!("install -D -m 644 -- {word} {to}"));
                let name = export(library::ENV_LIBRARY, &to);
                let said = "put it where programs may be run from";
                let remedy = mend(said, format!("test ! -e {to} && {copy} && {name}"));
                findings.problem("library", format!("{file}: {why}"), remedy);
            }
            Some(library)
        }
    }
}

/// What has these tools take another library than that file.
fn other_library(is_named: bool, file: &Path, said: &str) -> Remedy {
    match is_named {
        true => mend(said, format!("unset {}", library::ENV_LIBRARY)),
        false => show(said, format!("ls -l {}", shell_word(&file.to_string_lossy()))),
    }
}

/// By what it would say of itself, if it were run.
fn version(library: &Path) -> Option<String> {
    const BEFORE: &[u8] = b"libnetacc-preload.so (netacc) ";
    const BYTES_MAX: u64 = 256 << 20;
    if fs::metadata(library).ok()?.len() > BYTES_MAX {
        return None;
    }
    let bytes = fs::read(library).ok()?;
    let at = memchr::memmem::find(&bytes, BEFORE)? + BEFORE.len();
    let rest = bytes.get(at..)?;
    let version = rest.get(..rest.iter().take(32).position(|byte| *byte == b'\n')?)?;
    String::from_utf8(version.to_vec()).ok()
}

fn cannot_be_mapped(library: &Path) -> Option<String> {
    let system = rustix::fs::statvfs(library).ok()?;
    let is_noexec = system.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC);
    is_noexec
        .then(|| String::from("its file system is mounted noexec: nothing there can be loaded"))
}

/// The configuration that a program would be started with; every mistake is one finding.
pub fn config(environment: &mut Environment, findings: &mut Findings) -> Option<Config> {
    let this_program = std::env::current_exe().ok();
    let unknown = launch::unknown_variables(environment);
    let named =
        environment.get(ENV_FILE).map_or_else(|| PathBuf::from(DEFAULT_FILE), PathBuf::from);
    if fs::metadata(&named).is_ok_and(|status| !status.is_file()) {
        let found = format!("{} is not a file: it is not read here", named.display());
        let remedy = match environment.get(ENV_FILE) {
            Some(_) => mend("take the usual one", format!("unset {ENV_FILE}")),
            None => show("put a file there", format!("ls -ld {DEFAULT_FILE}")),
        };
        findings.problem("config", found, remedy);
        return None;
    }
    let resolved = launch::configure(None, this_program.as_deref(), &[], environment);
    for text in unknown {
        // (`environment: NAME: unknown, …`)
        let name = text.split(": ").nth(1).unwrap_or_default();
        let remedy = mend("unset it, or correct its name", format!("unset {}", shell_word(name)));
        findings.note("environment", text, remedy);
    }
    match resolved {
        Err(mistakes) => {
            for mistake in mistakes {
                let remedy = match mistake.strip_prefix("environment: ") {
                    Some(rest) => {
                        let name = shell_word(rest.split('=').next().unwrap_or_default());
                        mend(format!("unset it; {ABOUT_CONFIG}"), format!("unset {name}"))
                    }
                    None => {
                        let said = format!("correct the line, or delete it; {ABOUT_CONFIG}");
                        Command::Opens(edit(&named)).with(said)
                    }
                };
                findings.problem("config", mistake, remedy);
            }
            None
        }
        Ok((config, origins)) => {
            let path = config_file(environment);
            let file = path.display();
            findings.ok(
                "config",
                match path.exists() {
                    true => format!("{file} is valid"),
                    false => format!("there is no {file}: the defaults are in effect"),
                },
            );
            match log::obstacle(&config.log_path) {
                None if config.log_path.is_empty() => findings.ok("log", "none is wanted"),
                None => findings.ok("log", format!("{} can be written", config.log_path)),
                Some(why) => {
                    let elsewhere = export(Key::LogPath.name(), "/tmp/netacc-%u.log");
                    let said = format!("log elsewhere{}", for_good(&origins, Key::LogPath));
                    findings.note("log", why, mend(said, elsewhere));
                }
            }
            traces(&config, &origins, findings);
            Some(config)
        }
    }
}

/// Whether traces lie where the configuration says.
fn traces(config: &Config, origins: &Origins, findings: &mut Findings) {
    let wanted = &config.trace_dir;
    if wanted == DIRECTORY {
        return;
    }
    let Some(why) = trace::obstacle(wanted) else {
        return findings.ok("trace", format!("traces are in {wanted}"));
    };
    let name = Key::TraceDir.name();
    let said = format!("take the usual folder{}", for_good(origins, Key::TraceDir));
    let remedy = match origins.of(Key::TraceDir) {
        Origin::Environment => mend(said, format!("unset {name}")),
        _ => mend(said, export(name, DIRECTORY)),
    };
    findings.note("trace", format!("{name}={wanted}: {why}: traces are in {DIRECTORY}"), remedy);
}

/// Where else a parameter is changed than in this shell.
fn for_good(origins: &Origins, key: Key) -> &'static str {
    match origins.of(key) {
        Origin::Environment => "",
        _ => "; for good: in the configuration file",
    }
}

/// A value that is in effect for what is started from this shell.
pub fn put(key: Key, value: &str) -> Remedy {
    let name = key.name();
    mend(format!("start programs with {name}={value}"), export(name, value))
}

/// The file that its rules come from.
pub fn config_file(environment: &Environment) -> PathBuf {
    let path = environment.get(ENV_FILE).filter(|path| !path.is_empty());
    path.map_or_else(|| PathBuf::from(DEFAULT_FILE), PathBuf::from)
}

/// What the configuration itself keeps on TCP, and whether the path may be taken that needs
/// privileges. `end`: whose configuration it is, where a connection has two.
pub fn effect(config: &Config, end: &str, findings: &mut Findings) {
    if !config.accelerate_by_default {
        findings.problem(
            "config",
            format!("{end}NACC_ENABLE_RDMA_DEFAULT=0 turns acceleration off"),
            put(Key::AccelerateByDefault, "1"),
        );
    }
    let percent = config.accelerate_percent;
    match percent {
        100 => {}
        0 => findings.problem(
            "config",
            format!("{end}NACC_CONNECT_RDMA_PERCENT=0 leaves every new connection on TCP"),
            put(Key::AcceleratePercent, "100"),
        ),
        _ => findings.note(
            "config",
            format!("{end}NACC_CONNECT_RDMA_PERCENT={percent} leaves the others on TCP"),
            put(Key::AcceleratePercent, "100"),
        ),
    }
    let paths = config.paths;
    let [has_shm, has_rdma, has_utcp] =
        [WayOn::Shm, WayOn::Rdma, WayOn::Utcp].map(|path| paths.contains(path));
    match (has_shm, has_rdma) {
        (true, true) => {}
        (false, false) if !has_utcp => findings.problem(
            "config",
            format!("{end}NACC_PATHS={paths} leaves every connection on TCP"),
            put(Key::Paths, "shm,rdma"),
        ),
        _ => {
            let which = match (has_shm, has_utcp) {
                (true, false) => "connections between hosts on TCP",
                (true, true) => "connections between hosts to TCP in user space",
                (false, _) if has_rdma => "connections within the host without RDMA on TCP",
                (false, _) => "connections within the host on TCP",
            };
            findings.note(
                "config",
                format!("{end}NACC_PATHS={paths} leaves {which}"),
                put(Key::Paths, if has_utcp { "shm,rdma,utcp" } else { "shm,rdma" }),
            );
        }
    }
    if has_utcp {
        let release = look::file("/proc/sys/kernel/osrelease").unwrap_or_default();
        utcp("/proc/self", &release, findings);
    }
}

/// What the path utcp needs (`docs/manual/utcp.md`): the capabilities of what is started by the
/// process under that directory of `/proc`, and a kernel.
fn utcp(directory: &str, release: &str, findings: &mut Findings) {
    if number_of(release).is_some_and(|version| version < (6, 6)) {
        findings.problem(
            "utcp",
            format!("Linux {release} cannot steer packets past its TCP (tcx)"),
            mend("do without it until Linux 6.6 runs", export(Key::Paths.name(), "shm,rdma")),
        );
    }
    let Ok(status) = Status::of(directory) else { return };
    let has = |number| status.has_capability(number);
    // (Who may administer the system may use BPF.)
    let missing: Vec<&str> = [
        ("CAP_NET_ADMIN", has(look::CAP_NET_ADMIN)),
        ("CAP_NET_RAW", has(look::CAP_NET_RAW)),
        ("CAP_BPF", has(look::CAP_BPF) || has(look::CAP_SYS_ADMIN)),
    ]
    .iter()
    .filter_map(|(name, is_there)| (!is_there).then_some(*name))
    .collect();
    match missing.as_slice() {
        [] => findings.ok("utcp", "TCP in user space may be used (experimental)"),
        names => findings.problem(
            "utcp",
            format!(
                "TCP in user space needs {}, which what is started here has not",
                names.join(", ")
            ),
            with_capabilities(&status),
        ),
    }
}

/// A shell with the capabilities that the path utcp needs, of this user's.
fn with_capabilities(status: &Status) -> Remedy {
    let said = "give them to what is started; of a service: AmbientCapabilities=CAP_NET_ADMIN \
                CAP_NET_RAW CAP_BPF in its unit; docs/manual/utcp.md says what that means";
    let ids = (status.uid(), rustix::process::getegid().as_raw());
    let (Some(uid @ 1..), gid) = ids else {
        let why = "root has them, unless a container, or what else started this, takes them away";
        return no_command(said, why);
    };
    const CAPABILITIES: &str = "+net_admin,+net_raw,+bpf";
    mend(
        said,
        format!(
            "sudo setpriv --reuid={uid} --regid={gid} --init-groups --inh-caps={CAPABILITIES} \
             --ambient-caps={CAPABILITIES} \"${{SHELL:-/bin/sh}}\""
        ),
    )
}

/// What the kernel has of what the library uses.
fn kernel(findings: &mut Findings) {
    release(&look::file("/proc/sys/kernel/osrelease").unwrap_or_default(), findings);
    match memfd_create("netacc-doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => findings.ok("memfd", "memory can be shared"),
        Err(error) => findings.problem(
            "memfd",
            format!("memfd_create: {}", said(error)),
            match look::number("/proc/sys/vm/memfd_noexec") {
                Some(2..) => memfd_allowed(),
                _ => filtered("let the seccomp filter pass memfd_create"),
            },
        ),
    }
    match addresses::kernel_answers() {
        Ok(()) => findings.ok("sock_diag", "the kernel says who holds a connection"),
        Err(error) => findings.note(
            "sock_diag",
            format!(
                "the kernel does not say who holds a connection ({}): peers are believed by their \
                 user",
                said(error)
            ),
            match is_filtered() {
                true => filtered("let it pass AF_NETLINK (RestrictAddressFamilies= of a unit)"),
                false => mend("load the modules", as_root("modprobe -a tcp_diag inet_diag")),
            },
        ),
    }
}

/// What lets memory be shared again.
fn memfd_allowed() -> Remedy {
    mend("let memory be shared", as_root("sysctl -w vm.memfd_noexec=1"))
}

/// Whether a filter of system calls is in force here.
fn is_filtered() -> bool {
    let status = Status::of("/proc/self").ok();
    status.and_then(|status| status.seccomp()).is_some_and(|mode| mode != 0)
}

/// What only a filter can keep from working.
pub fn filtered(said: &str) -> Remedy {
    no_command(said, "the filter was set up by what has started this, and cannot be taken off")
}

/// What a kernel of that release can do.
fn release(release: &str, findings: &mut Findings) {
    let machine = std::env::consts::ARCH;
    match number_of(release) {
        Some(version) if version < (5, 9) => findings.problem(
            "kernel",
            format!("Linux {release} lacks calls that the library needs (close_range)"),
            no_command("start Linux 5.9 or later; 5.12 for RDMA", OF_BOOT),
        ),
        Some(version) if version < (5, 12) => findings.note(
            "kernel",
            format!("Linux {release} will do within a host; RDMA needs 5.12"),
            no_command("start Linux 5.12 or later", OF_BOOT),
        ),
        _ => findings.ok("kernel", format!("Linux {release} on {machine}")),
    }
}

const OF_BOOT: &str = "a host gets its kernel when it is started";

fn said(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

/// `6.18.44-x` as (6, 18).
fn number_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// By which names a limit goes: in /proc, of prlimit(1), of a shell's ulimit, in a unit.
#[derive(Debug, Clone, Copy)]
struct LimitOf {
    name: &'static str,
    resource: &'static str,
    letter: char,
    unit: &'static str,
}

const FILES: LimitOf =
    LimitOf { name: "Max open files", resource: "nofile", letter: 'n', unit: "LimitNOFILE" };
const SPACE: LimitOf =
    LimitOf { name: "Max address space", resource: "as", letter: 'v', unit: "LimitAS" };
const LOCKED: LimitOf =
    LimitOf { name: "Max locked memory", resource: "memlock", letter: 'l', unit: "LimitMEMLOCK" };

/// The limits of a process under that directory of `/proc`.
pub fn limits(directory: &str, has_rdma: bool, findings: &mut Findings) {
    let (Some(limits), Ok(status)) =
        (look::file(format!("{directory}/limits")), Status::of(directory))
    else {
        return;
    };
    let pid = directory.trim_start_matches("/proc/");
    let raise = |of: LimitOf, value: &str| {
        let infinite = value.replace("unlimited", "infinity");
        let said = format!("raise the limit; for a service: {}={infinite} in its unit", of.unit);
        let to = (of.resource, of.letter);
        match pid.parse() {
            Ok(pid) => raise(pid, of.name, of.resource, value).with(said),
            Err(_) => raise_here(of.name, to, value).with(said),
        }
    };
    if let Some(files) = look::limit(&limits, FILES.name) {
        let used = fs::read_dir(format!("{directory}/fd")).map(|all| all.count() as u64);
        let now = files.now.map_or_else(|| String::from("unlimited"), |n| n.to_string());
        let are_open = match &used {
            Ok(used) => format!("{used} are open"),
            Err(error) => format!("how many are open cannot be looked at: {error}"),
        };
        let text = format!("{now} open files are allowed, {are_open}");
        // A peer process takes a few, each accelerated connection none.
        const ROOM: u64 = 32;
        let remedy = || raise(FILES, "65536");
        match files.now {
            _ if used.is_err() => {
                findings.note("nofile", text, show("look as root", look_closer(pid)));
            }
            Some(most) if most < used.as_ref().unwrap_or(&0).saturating_add(ROOM) => {
                findings.problem("nofile", text, remedy());
            }
            Some(most) if most < 256 => findings.note("nofile", text, remedy()),
            _ => findings.ok("nofile", text),
        }
    }
    if let Some(space) = look::limit(&limits, SPACE.name).and_then(|limit| limit.now) {
        const SMALL: u64 = 4 << 30;
        let text = format!("the address space is limited to {} MiB", space >> 20);
        match space < SMALL {
            true => {
                findings.note("as", text, raise(SPACE, "unlimited"));
            }
            false => findings.ok("as", text),
        }
    }
    if let Some(locked) = look::limit(&limits, LOCKED.name) {
        memlock(locked.now, &status, has_rdma, raise, findings);
    }
}

fn memlock(
    now: Option<u64>,
    status: &Status,
    has_rdma: bool,
    raise: impl Fn(LimitOf, &str) -> Remedy,
    findings: &mut Findings,
) {
    // With default sizes: two rings, and the first region of a peer.
    const LITTLE: u64 = 2 << 20;
    const ENOUGH: u64 = 64 << 20;
    let text = format!("{} may be locked", look::kib(now));
    let remedy = || raise(LOCKED, "unlimited");
    match now {
        _ if status.has_capability(look::CAP_IPC_LOCK) => {
            findings.ok("memlock", format!("{text}; CAP_IPC_LOCK overrides it"));
        }
        _ if !has_rdma => findings.ok("memlock", format!("{text}; only RDMA locks memory")),
        Some(bytes) if bytes < LITTLE => findings.problem("memlock", text, remedy()),
        Some(bytes) if bytes < ENOUGH => {
            let few = bytes / (256 << 10);
            let text = format!("{text}: enough for some {few} connections over RDMA");
            findings.note("memlock", text, remedy());
        }
        _ => findings.ok("memlock", text),
    }
}

/// What programs that are started from here inherit.
pub fn confinement(findings: &mut Findings) {
    let Ok(status) = Status::of("/proc/self") else { return };
    match status.seccomp() {
        Some(0) | None => findings.ok("seccomp", "no filter"),
        Some(_) => findings.note(
            "seccomp",
            "a filter is in force here, and what is started here inherits it; what it refuses does \
             not show from outside",
            filtered("let it pass what the manual (install.md, SystemCallFilter=) lists"),
        ),
    }
    if let Some(hides) = hidden::hides() {
        findings.note(
            "hidepid",
            format!("/proc is mounted with {hides}: processes of other users do not show"),
            show("look as root", as_root(&netacc("ps"))),
        );
    }
}

/// Settings of the kernel that matter, or are believed to, below that directory.
fn sysctls(directory: &Path, has_rdma: bool, findings: &mut Findings) {
    let number = |name: &str| look::file(directory.join(name))?.trim().parse::<u64>().ok();
    if let Some(scope) = number("kernel/yama/ptrace_scope") {
        findings.ok("yama", format!("ptrace_scope is {scope}, which keeps nothing from working"));
    }
    if let Some(value) = number("vm/memfd_noexec")
        && value >= 2
    {
        let found = format!("vm.memfd_noexec={value}: the library cannot make its statistics");
        findings.problem("sysctl", found, memfd_allowed());
    }
    if let Some(value) = number("net/ipv4/tcp_timestamps") {
        match value {
            1 => findings.ok("sysctl", "net.ipv4.tcp_timestamps is 1"),
            _ => findings.note(
                "sysctl",
                format!(
                    "net.ipv4.tcp_timestamps is {value}: between hosts nobody can prove that it \
                     has made a connection"
                ),
                mend("turn them on", as_root("sysctl -w net.ipv4.tcp_timestamps=1")),
            ),
        }
    }
    let reserved =
        look::file(directory.join("net/ipv4/ip_local_reserved_ports")).unwrap_or_default();
    if !reserved.is_empty() && has_rdma {
        findings.ok("sysctl", format!("ports that the library leaves alone: {reserved}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a check: its level, and what was found.
    fn said(findings: &Findings, check: &str) -> Option<(String, String)> {
        let told = findings.json("host", "h");
        let all = told["findings"].as_array().unwrap();
        let found = all.iter().find(|finding| finding["check"] == check)?;
        assert!(found["level"] == "ok" || found["remedy"].is_string(), "{found}");
        let text = |name: &str| found[name].as_str().unwrap().to_owned();
        Some((text("level"), text("found")))
    }

    #[test]
    fn limits_that_are_too_small_are_in_the_way() {
        let directory = std::env::temp_dir().join(format!("netacc-limits-{}", std::process::id()));
        fs::create_dir_all(directory.join("fd")).unwrap();
        let place = directory.to_str().unwrap();
        let none = 0;
        let lock = 1 << look::CAP_IPC_LOCK;
        for (space, locked, capabilities, has_rdma, is) in [
            ("4294967295", "2097151", none, true, ["note", "problem"]),
            ("4294967296", "2097152", none, true, ["ok", "note"]),
            ("unlimited", "67108864", none, true, ["", "ok"]),
            ("unlimited", "65536", none, false, ["", "ok"]),
            ("unlimited", "65536", lock, true, ["", "ok"]),
            ("unlimited", "unlimited", none, true, ["", "ok"]),
        ] {
            let limits = format!(
                "Max locked memory  {locked} {locked} bytes\nMax address space  {space} {space} bytes\n"
            );
            fs::write(directory.join("limits"), limits).unwrap();
            let status = format!("Name:\tx\nCapEff:\t{capabilities:016x}\n");
            fs::write(directory.join("status"), status).unwrap();
            let mut findings = Findings::default();
            super::limits(place, has_rdma, &mut findings);
            let levels = ["as", "memlock"]
                .map(|check| said(&findings, check).map_or_else(String::new, |(level, _)| level));
            assert_eq!(levels, is, "{space} {locked} {capabilities:x} {has_rdma}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn settings_of_the_kernel_that_matter_are_named() {
        let directory = std::env::temp_dir().join(format!("netacc-sysctl-{}", std::process::id()));
        let files = [
            "vm/memfd_noexec",
            "net/ipv4/tcp_timestamps",
            "net/ipv4/ip_local_reserved_ports",
            "kernel/yama/ptrace_scope",
        ];
        for (values, has_rdma, checks) in [
            (["2", "1", "", "3"], true, &["yama ok", "sysctl problem", "sysctl ok"][..]),
            (["1", "0", "26379", "0"], false, &["yama ok", "sysctl note"]),
            (["0", "2", "26379", "0"], true, &["yama ok", "sysctl note", "sysctl ok"]),
            (["", "", "", ""], true, &[]),
        ] {
            for (name, value) in files.iter().zip(values) {
                let file = directory.join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{value}\n")).unwrap();
            }
            let mut findings = Findings::default();
            sysctls(&directory, has_rdma, &mut findings);
            let told = findings.json("host", "h");
            let all = told["findings"].as_array().unwrap().iter();
            let is = |f: &serde_json::Value| {
                format!("{} {}", f["check"].as_str().unwrap(), f["level"].as_str().unwrap())
            };
            assert_eq!(all.map(is).collect::<Vec<_>>(), checks, "{values:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_kernel_that_is_too_old_is_in_the_way_of_what_it_lacks() {
        for (text, level) in [
            ("4.19.0-27", "problem"),
            ("5.8.18", "problem"),
            ("5.9.0", "note"),
            ("5.11.22", "note"),
            ("5.12.0", "ok"),
            ("6.18.44-x", "ok"),
            ("what?", "ok"),
        ] {
            let mut findings = Findings::default();
            release(text, &mut findings);
            let (is, found) = said(&findings, "kernel").unwrap();
            assert!(is == level && found.contains(text), "{text}: {is}, {found}");
        }
    }

    #[test]
    fn what_the_configuration_leaves_on_tcp_is_named() {
        let all = Config::default();
        let paths = |text: &str| {
            let paths = netacc_control::config::Paths::parse(text).unwrap();
            Config { paths, ..all.clone() }
        };
        for (config, level, text) in [
            (
                Config { accelerate_by_default: false, ..all.clone() },
                "problem",
                "turns acceleration",
            ),
            (Config { accelerate_percent: 0, ..all.clone() }, "problem", "every new connection"),
            (Config { accelerate_percent: 30, ..all.clone() }, "note", "=30 leaves the others"),
            (paths("tcp"), "problem", "leaves every connection on TCP"),
            (paths("shm"), "note", "=shm leaves connections between hosts on TCP"),
            (paths("rdma"), "note", "within the host without RDMA"),
            (paths("utcp"), "note", "=utcp leaves connections within the host on TCP"),
            (paths("shm,utcp"), "note", "connections between hosts to TCP in user space"),
            (paths("rdma,utcp"), "note", "within the host without RDMA"),
        ] {
            let mut findings = Findings::default();
            effect(&config, "", &mut findings);
            let (is, found) = said(&findings, "config").unwrap();
            assert!(is == level && found.contains(text), "{text}: {is}, {found}");
        }
        let mut findings = Findings::default();
        effect(&all, "", &mut findings);
        assert!(said(&findings, "config").is_none());
    }

    #[test]
    fn tcp_in_user_space_needs_a_kernel_and_capabilities() {
        let directory = std::env::temp_dir().join(format!("netacc-utcp-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let of = |numbers: &[u32]| numbers.iter().fold(0u64, |set, number| set | 1 << number);
        for (release, capabilities, level, text) in [
            ("6.6.1", of(&[12, 13, 39]), "ok", "may be used"),
            ("6.6.1", of(&[12, 13, 21]), "ok", "may be used"),
            ("6.5.13", of(&[12, 13, 39]), "problem", "Linux 6.5.13 cannot steer"),
            ("6.12.0", of(&[12, 39]), "problem", "needs CAP_NET_RAW, which"),
            ("6.12.0", 0, "problem", "needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, which"),
        ] {
            let status = format!("Name:\tx\nCapEff:\t{capabilities:016x}\n");
            fs::write(directory.join("status"), status).unwrap();
            let mut findings = Findings::default();
            utcp(directory.to_str().unwrap(), release, &mut findings);
            let (is, found) = said(&findings, "utcp").unwrap();
            assert!(is == level && found.contains(text), "{release}: {is}, {found}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn few_open_files_are_worth_a_note_and_too_few_are_in_the_way() {
        let directory = std::env::temp_dir().join(format!("netacc-files-{}", std::process::id()));
        for fd in 0..8 {
            fs::create_dir_all(directory.join("fd").join(fd.to_string())).unwrap();
        }
        fs::write(directory.join("status"), "Name:\tx\nCapEff:\t0\n").unwrap();
        for (files, level) in
            [("39", "problem"), ("40", "note"), ("255", "note"), ("256", "ok"), ("unlimited", "ok")]
        {
            let limits = format!("Max open files  {files} {files} files\n");
            fs::write(directory.join("limits"), limits).unwrap();
            let mut findings = Findings::default();
            super::limits(directory.to_str().unwrap(), false, &mut findings);
            assert_eq!(said(&findings, "nofile").unwrap().0, level, "{files}");
        }
        // Those of another user's process do not show: 0 would be a lie.
        fs::remove_dir_all(directory.join("fd")).unwrap();
        let mut findings = Findings::default();
        super::limits(directory.to_str().unwrap(), false, &mut findings);
        let (level, found) = said(&findings, "nofile").unwrap();
        assert!(level == "note" && found.contains("cannot be looked at"), "{level}: {found}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_library_where_nothing_may_be_loaded_from_is_named() {
        let mounts = look::file("/proc/self/mounts").unwrap();
        let proc = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/proc")).unwrap();
        let options = proc.split(' ').nth(3).unwrap();
        let is_noexec = options.split(',').any(|option| option == "noexec");
        let said = cannot_be_mapped(Path::new("/proc/self/status"));
        assert_eq!(said.is_some(), is_noexec, "{proc}: {said:?}");
        let this_program = std::env::current_exe().unwrap();
        assert_eq!(cannot_be_mapped(&this_program), None, "it was loaded from there");
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(number_of("6.18.44-fc"), Some((6, 18)));
        assert_eq!(number_of("5.9-rc1"), Some((5, 9)));
        assert_eq!(number_of("garbage"), None);
    }

    #[test]
    fn a_library_has_the_version_that_it_would_say() {
        let file = std::env::temp_dir().join(format!("netacc-doctor-{}.so", std::process::id()));
        fs::write(&file, b"\x7fELF\0libnetacc-preload.so (netacc) 1.2.3\n\0").unwrap();
        assert_eq!(version(&file).as_deref(), Some("1.2.3"));
        fs::write(&file, b"libnetacc-preload.so (netacc) 1.2.3").unwrap();
        assert_eq!(version(&file), None, "cut off");
        fs::remove_file(&file).unwrap();
        assert_eq!(version(&file), None);
    }
}
