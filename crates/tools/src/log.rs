//! Whether the library will be able to write its log. It counts lines that it can't write, but has
//! nobody to tell; `netacc_run` has.

use netacc_control::config::{SYSLOG, SYSLOG_SOCKET, write_log_path};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatFs};
use rustix::fs::{accessat, fstat, fstatfs, open, statfs};
use rustix::io::Errno;
use rustix::process::{geteuid, getpid};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// What is in the way of a log at `path`, as the configuration has it; for the operator.
pub fn obstacle(path: &str) -> Option<String> {
    if path.is_empty() {
        return None;
    }
    if path == SYSLOG {
        let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(SYSLOG_SOCKET));
        return connected.err().map(|error| {
            format!("nobody takes what goes to the system's log: {SYSLOG_SOCKET}: {error}")
        });
    }
    let mut name = String::new();
    // (This process becomes the command, and keeps its number.)
    let pid = getpid().as_raw_nonzero().get() as u32;
    write_log_path(&mut name, path, pid, geteuid().as_raw()).ok()?;
    let problem = problem(Path::new(&name))?;
    Some(format!(
        "the log {name} cannot be written: {problem}; NACC_LOG_PATH names another file \
         (%u in it is the user, %p the process)"
    ))
}

fn problem(path: &Path) -> Option<String> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => file,
        // The library makes it, if its directory lets it.
        Err(Errno::NOENT) => {
            let directory = path.parent().filter(|d| !d.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            let may =
                accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
            let place = || statfs(directory).ok().and_then(|system| takes_no_log(&system));
            let problem = may.err().map(said).or_else(place);
            return problem.map(|problem| format!("{}: {problem}", directory.display()));
        }
        Err(Errno::LOOP) => return Some(String::from("it is a symbolic link")),
        // A pipe that nobody reads.
        Err(Errno::NXIO) => return Some(String::from("it is not a regular file")),
        Err(error) => return Some(said(error)),
    };
    let status = fstat(&file).ok()?;
    let owner = status.st_uid;
    match () {
        () if status.st_mode & libc::S_IFMT != libc::S_IFREG => {
            Some(String::from("it is not a regular file"))
        }
        () if owner != geteuid().as_raw() => Some(format!("it belongs to another user ({owner})")),
        () if status.st_nlink != 1 => Some(String::from("it has several names (hard links)")),
        () => fstatfs(&file).ok().and_then(|system| takes_no_log(&system)),
    }
}

/// What keeps a file system from taking lines, although root may open files there, or make some.
fn takes_no_log(system: &StatFs) -> Option<String> {
    // (Their files are the kernel's words, most of which take none of ours.)
    const OF_THE_KERNEL: [(u32, &str); 11] = [
        (0x9fa0, "proc"),
        (0x6265_6572, "sysfs"),
        (0x6367_7270, "cgroup2"),
        (0x27_e0eb, "cgroup"),
        (0x6462_6720, "debugfs"),
        (0x7472_6163, "tracefs"),
        (0x7363_6673, "securityfs"),
        (0x6265_6570, "configfs"),
        (0xde5e_81e4, "efivarfs"),
        (0xcafe_4a11, "bpf"),
        (0xf97c_ff8c, "selinuxfs"),
    ];
    let is = system.f_type as u32;
    if let Some((_, name)) = OF_THE_KERNEL.iter().find(|(magic, _)| *magic == is) {
        return Some(format!("its file system ({name}) is the kernel's, and takes no log"));
    }
    (system.f_blocks > 0 && system.f_bavail == 0).then(|| String::from("its file system is full"))
}

fn said(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}
