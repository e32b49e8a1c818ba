//! Processes that `/proc` does not show to this one, for how it is mounted: `hidepid=` and `gid=`
//! (proc(5)). How many those are, or whether there are any, nobody can tell who does not see them.

use crate::segment::{lossy, may_trace};
use rustix::process::{Pid, test_kill_process};
use std::fmt;
use std::path::Path;

/// Shows no process that may not be looked into.
#[derive(Debug, PartialEq, Eq)]
pub struct Hides {
    /// The value of `hidepid=`.
    pub hidepid: String,
}

impl fmt::Display for Hides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hidepid={}", self.hidepid)
    }
}

/// Whether `/proc` hides processes from this one.
pub fn hides() -> Option<Hides> {
    let found = Mounted::of(&lossy(Path::new("/proc/self/mountinfo")).ok()?)?.hides(&groups())?;
    // (The first process is always there. Who has the capability, and does not see that one, is in
    // a user namespace below.)
    (!may_trace() || !Path::new("/proc/1").exists()).then_some(found)
}

/// Whether that process is there, and is not shown.
pub fn is_hidden(pid: u32) -> bool {
    let is_there = |pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH);
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    hides().is_some() && pid.is_some_and(is_there)
}

/// Who would see more than this process does; or why not even that would help.
pub fn who_sees() -> &'static str {
    match (may_trace(), rustix::process::geteuid().is_root()) {
        (true, _) => {
            "a security module guards what is missing, or it belongs to a user namespace above"
        }
        (false, true) => "with CAP_SYS_PTRACE root sees all",
        (false, false) => "root sees all",
    }
}

/// The groups by which this process may see files.
fn groups() -> Vec<u32> {
    let mut groups = rustix::process::getgroups().unwrap_or_default();
    groups.push(rustix::process::getegid());
    groups.into_iter().map(|group| group.as_raw()).collect()
}

/// How `/proc` is mounted.
#[derive(Debug, PartialEq, Eq)]
pub struct Mounted<'a> {
    /// As it is written; `None`: it is not, and that is 0.
    pub hidepid: Option<&'a str>,
    /// Whoever is in this group sees all.
    gid: u32,
}

impl<'a> Mounted<'a> {
    /// By proc_pid_mountinfo(5). Of several the last one lies on top.
    pub fn of(mounts: &'a str) -> Option<Mounted<'a>> {
        let is_proc = |line: &&str| {
            let (before, behind) = line.split_once(" - ").unwrap_or((line, ""));
            before.split(' ').nth(4) == Some("/proc") && behind.starts_with("proc ")
        };
        let options = mounts.lines().rfind(is_proc)?.rsplit(' ').next()?;
        let value = |name| options.split(',').find_map(|option| option.strip_prefix(name));
        let gid = value("gid=").and_then(|gid| gid.parse().ok()).unwrap_or(0);
        Some(Mounted { hidepid: value("hidepid="), gid })
    }

    /// Whether processes are missing for somebody of these groups, without CAP_SYS_PTRACE. (With
    /// `noaccess` they are there, and may not be looked into. No group helps with `ptraceable`.)
    fn hides(&self, groups: &[u32]) -> Option<Hides> {
        let hidepid = self.hidepid?;
        let is_hidden = match hidepid {
            "2" | "invisible" => !groups.contains(&self.gid),
            "4" | "ptraceable" => true,
            _ => false,
        };
        is_hidden.then(|| Hides { hidepid: hidepid.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_follows_from_mount_and_groups() {
        for (options, groups, hides) in [
            ("rw,gid=4,hidepid=invisible", &[1000][..], Some("invisible")),
            ("rw,gid=4,hidepid=invisible", &[1000, 4], None),
            ("rw,hidepid=2", &[1000], Some("2")),
            // The group of `/proc` is root's, if none is named.
            ("rw,hidepid=2", &[0], None),
            ("rw,gid=4,hidepid=ptraceable", &[4], Some("ptraceable")),
            ("rw,hidepid=4", &[0], Some("4")),
            ("rw,hidepid=noaccess", &[1000], None),
            ("rw,hidepid=1", &[1000], None),
            ("rw,hidepid=off", &[1000], None),
            ("rw", &[1000], None),
        ] {
            let mounts = format!(
                "20 1 0:19 / /sys rw - sysfs sysfs rw,hidepid=2\n\
                 21 1 0:20 / /proc rw,nosuid shared:5 - proc proc {options}\n\
                 22 1 0:21 / /x/proc rw - proc proc rw,hidepid=2\n\
                 23 21 0:22 / /proc/sys/fs rw - autofs none rw,hidepid=2\n"
            );
            let found = Mounted::of(&mounts).unwrap().hides(groups);
            assert_eq!(found.as_ref().map(|it| it.hidepid.as_str()), hides, "{options} {groups:?}");
        }
        let twice = "21 1 0:20 / /proc rw - proc proc rw,hidepid=2\n\
                     22 21 0:21 / /proc rw - proc proc rw\n";
        assert_eq!(Mounted::of(twice).unwrap().hidepid, None, "what lies on top counts");
        assert_eq!(Mounted::of("20 1 0:19 / /sys rw - sysfs sysfs rw\n"), None);
    }
}
