//! The commands that remedies are made of: with the names, numbers and paths of this case, and with
//! the rights that they need.

use super::look::{self, Status};
use super::remedy::Command;
use crate::command;
use crate::launch::Environment;
use crate::segment;
use crate::show::shell_word;
use netacc_control::config::DEFAULT_FILE;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program of ours, as it can be started from here: by its name, if that leads to the one beside
/// this program, otherwise by its file.
pub fn tool(name: &str) -> String {
    let this_program = std::env::current_exe().ok();
    let beside = this_program.map(|file| file.with_file_name(name)).filter(|file| file.is_file());
    let by_name = by_path(name).and_then(|file| file.canonicalize().ok());
    match beside {
        Some(file) if file.canonicalize().ok() != by_name => shell_word(&file.to_string_lossy()),
        _ => name.to_owned(),
    }
}

/// `netacc` with these arguments.
pub fn netacc(arguments: &str) -> String {
    format!("{} {arguments}", tool("netacc")).trim_end().to_owned()
}

/// The file that a name leads to.
pub fn by_path(name: &str) -> Option<PathBuf> {
    let environment = Environment::inherited();
    command::find(OsStr::new(name), environment.get("PATH"))
}

/// Whether a program of that name is installed.
pub fn is_installed(name: &str) -> bool {
    by_path(name).is_some()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What only root may do. (sudo may look for a program in fewer places.)
pub fn as_root(line: &str) -> String {
    if is_root() {
        return line.to_owned();
    }
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let usual = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(Path::new);
    let file = by_path(name).filter(|file| !file.parent().is_some_and(|at| usual.contains(&at)));
    let name = file.map_or_else(|| name.to_owned(), |file| shell_word(&file.to_string_lossy()));
    format!("sudo {name} {rest}").trim_end().to_owned()
}

/// What only a process's own user may do, and root.
pub fn as_its_user(pid: u32, line: &str) -> String {
    if is_mine(pid) { line.to_owned() } else { as_root(line) }
}

/// What puts another file in the place of one, as `sed -i` does.
pub fn in_place(file: &Path, line: &str) -> String {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let may = is_writable(&file) && file.parent().is_none_or(is_writable);
    if may { line.to_owned() } else { as_root(line) }
}

/// What only the owner of a file may do with it.
pub fn as_owner(file: &Path, line: &str) -> String {
    let owner = std::fs::metadata(file).map(|status| status.uid()).ok();
    match owner == Some(rustix::process::geteuid().as_raw()) {
        true => line.to_owned(),
        false => as_root(line),
    }
}

fn is_writable(file: &Path) -> bool {
    accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// A file in an editor.
pub fn edit(file: &Path) -> String {
    let word = shell_word(&file.to_string_lossy());
    match is_root() || is_writable(file) {
        true => format!("${{EDITOR:-vi}} -- {word}"),
        false => format!("sudoedit -- {word}"),
    }
}

/// The same of the file from which a process says that it has its configuration. It may say
/// anything, and the file may be another one here: what is opened is the usual file, or that of a
/// process of one's own.
pub fn edit_of(pid: u32, file: &str) -> Command {
    let is_mine = is_mine(pid) && file.starts_with('/');
    match is_seen_from(pid) && (is_mine || file == DEFAULT_FILE) {
        true => Command::Opens(edit(Path::new(file))),
        false => Command::Shows(list_of(pid, file)),
    }
}

/// What is on the way to a file that a process names, where it sees it.
pub fn list_of(pid: u32, file: &str) -> String {
    let place = if is_seen_from(pid) { String::new() } else { format!("/proc/{pid}/root") };
    match file.starts_with('/') {
        true => as_its_user(pid, &format!("namei -l -- {}", shell_word(&format!("{place}{file}")))),
        // (By a name that is no whole path, in its own folder.)
        false => as_its_user(pid, &format!("ls -ld /proc/{pid}/cwd/")),
    }
}

/// A process sees the files that we see.
pub fn is_seen_from(pid: u32) -> bool {
    let of = |process: &str| look::namespace(process, "mnt");
    let root = |process: &str| std::fs::read_link(format!("{process}/root")).ok();
    let (its, ours) = (format!("/proc/{pid}"), "/proc/self");
    of(&its).is_some() && of(&its) == of(ours) && root(&its) == root(ours)
}

fn is_mine(pid: u32) -> bool {
    let its = Status::of(&format!("/proc/{pid}")).ok().and_then(|status| status.uid());
    its == Some(rustix::process::geteuid().as_raw())
}

/// Sets a variable of the shell's, and of what it starts.
pub fn export(name: &str, value: &str) -> String {
    let is_plain = value.chars().all(|c| c.is_ascii_alphanumeric() || "/.,-_%".contains(c));
    match is_plain {
        true => format!("export {name}={value}"),
        false => format!("export {name}={}", shell_word(value)),
    }
}

/// A limit of a process's. It may be raised to its hard limit by its user, beyond by root.
pub fn raise(pid: u32, name: &str, resource: &str, value: &str) -> Command {
    let limits = look::file(format!("/proc/{pid}/limits")).unwrap_or_default();
    let value = &wanted(&limits, name, value);
    match is_within(&limits, name, value) {
        _ if is_there(&limits, name, value) => Command::None(String::from(HIGHEST)),
        true => {
            let line = format!("prlimit --pid {pid} --{resource}={value}:");
            Command::Mends(as_its_user(pid, &line))
        }
        false => beyond(&format!("prlimit --pid {pid} --{resource}={value}")),
    }
}

/// The same of the shell that it is typed into.
pub fn raise_here(name: &str, (resource, letter): (&str, char), value: &str) -> Command {
    let limits = look::file("/proc/self/limits").unwrap_or_default();
    let value = &wanted(&limits, name, value);
    match is_within(&limits, name, value) {
        _ if is_there(&limits, name, value) => Command::None(String::from(HIGHEST)),
        true => Command::Mends(format!("ulimit -S -{letter} {value}")),
        false => beyond(&format!("prlimit --pid $$ --{resource}={value}")),
    }
}

/// Raises a hard limit, which root may not do everywhere.
fn beyond(line: &str) -> Command {
    let status = Status::of("/proc/self").ok();
    let may = status.is_some_and(|status| status.has_capability(look::CAP_SYS_RESOURCE));
    match may || !is_root() {
        true => Command::Mends(as_root(line)),
        false => Command::None(String::from(
            "the hard limit is in the way, which takes CAP_SYS_RESOURCE to raise: root has it not \
             here",
        )),
    }
}

/// What a limit is raised to: more than it is now, as it is full. A hard limit that leaves enough
/// will do.
fn wanted(limits: &str, name: &str, value: &str) -> String {
    const ENOUGH: u64 = 1024;
    /// As it is without anybody's doing.
    const FILES_MAX: u64 = 1 << 20;
    let highest = look::file("/proc/sys/fs/nr_open").and_then(|text| text.trim().parse().ok());
    let highest = highest.unwrap_or(FILES_MAX);
    let (Some(limit), Ok(value)) = (look::limit(limits, name), value.parse::<u64>()) else {
        return value.to_owned();
    };
    let Some(now) = limit.now else { return value.to_string() };
    let goal = if value > now { value } else { now.saturating_mul(4).min(highest.max(now)) };
    match limit.most {
        Some(most) if most >= ENOUGH && most >= now.saturating_add(ENOUGH / 2) => {
            goal.min(most).to_string()
        }
        _ => goal.to_string(),
    }
}

const HIGHEST: &str = "the limit is as high as the kernel lets any be (fs.nr_open)";

/// Whether a limit is that, or above.
fn is_there(limits: &str, name: &str, value: &str) -> bool {
    let now = look::limit(limits, name).and_then(|limit| limit.now);
    now.zip(value.parse::<u64>().ok()).is_some_and(|(now, value)| now >= value)
}

/// Whether a hard limit leaves that.
fn is_within(limits: &str, name: &str, value: &str) -> bool {
    look::limit(limits, name).is_some_and(|limit| match (limit.most, value.parse::<u64>()) {
        (None, _) => true,
        (Some(most), Ok(value)) => value <= most,
        (Some(_), Err(_)) => false,
    })
}

/// A process, looked at with the rights to.
pub fn look_closer(subject: &str) -> String {
    as_root(&netacc(&format!("doctor {subject}")))
}

/// Starts again what a process is a service of. How anything else was started does not show for
/// certain: that is shown.
pub fn restart(pid: u32) -> Command {
    match unit_of(pid) {
        Some(unit) => Command::Mends(unit.systemctl("restart")),
        None => Command::Shows(how_started(pid)),
    }
}

/// Gives a service the library.
pub fn enable(pid: u32) -> Command {
    match unit_of(pid) {
        Some(Unit { name, is_user_s: false }) => {
            let unit = shell_word(&name);
            Command::Mends(as_root(&format!("{} --now {unit}", tool("netacc-enable"))))
        }
        _ => Command::Shows(how_started(pid)),
    }
}

/// With which words, and where, a process was started. (Some write over their words; what they
/// hold is nothing for a terminal.)
pub fn how_started(pid: u32) -> String {
    let links = as_its_user(pid, &format!("ls -l /proc/{pid}/exe /proc/{pid}/cwd"));
    format!("tr '\\0' ' ' </proc/{pid}/cmdline | cat -v; echo; {links}")
}

/// What of the environment of a process begins so.
pub fn environment_of(pid: u32, begins: &str) -> String {
    let line = as_its_user(pid, &format!("grep -az ^{begins} /proc/{pid}/environ"));
    format!("{line} | cat -v")
}

/// A service of systemd's.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    name: String,
    is_user_s: bool,
}

impl Unit {
    fn systemctl(&self, verb: &str) -> String {
        let unit = shell_word(&self.name);
        match self.is_user_s {
            true => format!("systemctl --user {verb} -- {unit}"),
            false => as_root(&format!("systemctl {verb} -- {unit}")),
        }
    }

    /// The process that systemd has started for it.
    fn main_process(&self) -> Option<u32> {
        let mut command = std::process::Command::new("systemctl");
        command.args(if self.is_user_s { &["--user"][..] } else { &[] });
        command.args(["show", "--property=MainPID", "--value", "--", &self.name]);
        let said = look::answer(&mut command, Duration::from_secs(2))?;
        said.trim().parse().ok().filter(|pid| *pid != 0)
    }
}

/// Of which service a process is: the one that systemd has started for it, or a child of that of
/// the same file and user. (Who is logged in by a service, or has a cron job, or was left behind by
/// either, is in its group, too, and may call himself what he likes.)
fn unit_of(pid: u32) -> Option<Unit> {
    let found = unit(&look::file(format!("/proc/{pid}/cgroup"))?)?;
    // (Another user's manager is not ours to ask.)
    if found.is_user_s && !is_mine(pid) {
        return None;
    }
    let main = found.main_process()?;
    is_of(pid, main, Ancestor::of).then_some(found)
}

/// What tells a process's children from others.
#[derive(Debug, PartialEq, Eq)]
struct Ancestor {
    parent: u32,
    file: PathBuf,
    user: u32,
}

impl Ancestor {
    fn of(pid: u32) -> Option<Ancestor> {
        let status = Status::of(&format!("/proc/{pid}")).ok()?;
        let file = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        Some(Ancestor { parent: status.field("PPid:")?.parse().ok()?, file, user: status.uid()? })
    }
}

/// Whether a process is `main`, or comes from that, and all in between are the same program.
fn is_of(pid: u32, main: u32, look: impl Fn(u32) -> Option<Ancestor>) -> bool {
    const GENERATIONS_MAX: usize = 8;
    if pid == main {
        return true;
    }
    let Some(first) = look(main) else { return false };
    let mut it = pid;
    for _ in 0..GENERATIONS_MAX {
        if it == main {
            return true;
        }
        match look(it) {
            Some(next) if next.file == first.file && next.user == first.user => it = next.parent,
            _ => return false,
        }
    }
    false
}

/// The service that a control group is, outside of containers.
fn unit(groups: &str) -> Option<Unit> {
    if segment::container(groups).is_some() {
        return None;
    }
    let of_systemd = |line: &&str| line.starts_with("0::") || line.contains(":name=systemd:");
    groups.lines().filter(of_systemd).find_map(|line| {
        let group = line.splitn(3, ':').nth(2)?;
        // (Below its own group a service may make some of any name. A user's manager is none of
        // his services.)
        let mut services = group.split('/').filter(|part| part.ends_with(".service"));
        let first = services.next()?;
        let is_user_s = first.starts_with("user@");
        let name = if is_user_s { services.next()? } else { first };
        (!name.starts_with('-')).then(|| Unit { name: name.to_owned(), is_user_s })
    })
}

/// What installs the libraries of rdma-core here, by the name of its manager of packages.
pub fn install_rdma_core() -> Command {
    const MANAGERS: [(&str, &str); 3] = [
        ("apt-get", "apt-get install -y ibverbs-providers librdmacm1"),
        ("dnf", "dnf install -y libibverbs librdmacm"),
        ("zypper", "zypper --non-interactive install libibverbs1 librdmacm1"),
    ];
    match MANAGERS.iter().find(|(name, _)| is_installed(name)) {
        Some((_, line)) => Command::Mends(as_root(line)),
        None => Command::None(String::from("this system's manager of packages is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_known_by_their_groups() {
        let system = |name: &str| Some(Unit { name: name.to_owned(), is_user_s: false });
        let user = |name: &str| Some(Unit { name: name.to_owned(), is_user_s: true });
        for (groups, is) in [
            ("0::/system.slice/redis-server.service\n", system("redis-server.service")),
            ("3:cpu:/x.service\n1:name=systemd:/system.slice/a.service\n", system("a.service")),
            ("0::/system.slice/a@1.service/sub\n", system("a@1.service")),
            ("0::/system.slice/foo.service/ssh.service\n", system("foo.service")),
            ("0::/system.slice/-Hevil.service\n", None),
            ("0::/user.slice/user-7.slice/user@7.service/app.slice/b.service\n", user("b.service")),
            ("0::/user.slice/user-7.slice/user@7.service/init.scope\n", None),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(unit(groups), is, "{groups}");
        }
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(unit(&format!("0::/docker/{id}/system.slice/x.service\n")), None);
    }

    /// What a process says of its files may be meant for whoever runs the command.
    #[test]
    fn a_file_that_a_process_names_is_opened_where_it_is_ours() {
        let own = std::process::id();
        for file in ["/tmp/a b", DEFAULT_FILE] {
            assert!(matches!(edit_of(own, file), Command::Opens(_)), "{file}");
        }
        for file in ["+!sh", "-x", "a.conf", ""] {
            let Command::Shows(line) = edit_of(own, file) else { panic!("{file}") };
            assert_eq!(line, format!("ls -ld /proc/{own}/cwd/"));
        }
        // Nobody's, and the first process: another one's but for root.
        const NOBODYS: u32 = i32::MAX as u32;
        assert!(matches!(edit_of(NOBODYS, "/etc/shadow"), Command::Shows(_)));
        assert!(matches!(edit_of(NOBODYS, DEFAULT_FILE), Command::Shows(_)));
        assert!(!is_mine(NOBODYS) && is_seen_from(own));
    }

    #[test]
    fn a_hard_limit_says_who_may_raise() {
        let limits = "Max open files            1024                 4096                 files\n\
                      Max locked memory         8388608              unlimited            bytes\n";
        for (name, value, is) in [
            ("Max open files", "4096", true),
            ("Max open files", "65536", false),
            ("Max open files", "unlimited", false),
            ("Max locked memory", "unlimited", true),
            ("Max nothing", "1", false),
        ] {
            assert_eq!(is_within(limits, name, value), is, "{name} {value}");
        }
        assert_eq!(wanted(limits, "Max open files", "65536"), "4096");
        assert_eq!(wanted(limits, "Max open files", "2048"), "2048");
        let of = |now, most| format!("Max open files            {now}   {most}   files\n");
        for (now, most, is) in [
            ("4096", "4096", "65536"),
            ("65536", "1048576", "262144"),
            ("100000", "1048576", "400000"),
            ("100000", "200000", "200000"),
            ("524288", "524288", "1048576"),
        ] {
            assert_eq!(wanted(&of(now, most), "Max open files", "65536"), is, "{now} {most}");
        }
        assert_eq!(wanted(&limits.replace("4096", "1023"), "Max open files", "65536"), "65536");
        assert_eq!(wanted(limits, "Max locked memory", "unlimited"), "unlimited");
    }

    #[test]
    fn who_is_of_a_service_is_its_main_process_or_the_same_program() {
        // 10 is the main process, 11 its child, 12 that one's; 20 another program below it, 21 its
        // child, which is the first program again; 30 another user's; 40 was left behind.
        let table = [(10, 1, "d", 0), (11, 10, "d", 0), (12, 11, "d", 0), (20, 10, "sh", 0)];
        let more = [(21, 20, "d", 0), (30, 10, "d", 7), (40, 1, "d", 0)];
        let look = |pid: u32| {
            let all = table.iter().chain(&more);
            let (_, parent, file, user) = *all.clone().find(|(it, ..)| *it == pid)?;
            Some(Ancestor { parent, file: PathBuf::from(file), user })
        };
        let of = |pid| is_of(pid, 10, look);
        assert!(of(10) && of(11) && of(12));
        assert!(![20, 21, 30, 40, 50].into_iter().any(of));
        let own = std::process::id();
        assert_eq!(Ancestor::of(own).unwrap().parent, std::os::unix::process::parent_id());
    }
}
