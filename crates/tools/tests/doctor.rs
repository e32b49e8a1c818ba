//! `netacc doctor` as an operator sees it; each obstacle is a real one.

mod support;

use netacc_control::stats::{CONNS_OFFSET, Header, MAGIC, MEMFD_NAME, VERSION};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::mem::offset_of;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{HELLO, Ran, Scratch, run};

fn doctor(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("NACC_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.env("NETACC_LIB", library).env("NACC_LOG_PATH", "").arg("doctor");
    command
}

/// What it says of a subject, and its exit status.
fn told<S: AsRef<OsStr>>(command: &mut Command, subject: &[S]) -> (Value, Option<i32>) {
    let Ran { status, out, err } = run(command.arg("--json").args(subject));
    assert_eq!(err, "");
    (serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}")), status)
}

/// The first finding of a check at a level.
fn finding<'a>(told: &'a Value, check: &str, level: &str) -> &'a Value {
    let all = told["findings"].as_array().unwrap();
    let found = all.iter().find(|f| f["check"] == check && f["level"] == level);
    found.unwrap_or_else(|| panic!("no {level} of {check}: {told:#}"))
}

fn says(finding: &Value, text: &str) {
    let found = finding["found"].as_str().unwrap();
    assert!(found.contains(text), "{text}: {finding}");
    assert!(!finding["remedy"].as_str().unwrap_or_default().is_empty(), "{finding}");
}

/// A child that is killed at the end.
struct Running(Child);

impl Running {
    fn new(command: &mut Command) -> Running {
        let child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        Running(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_dynamic_program_is_clear() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let hello = scratch.compile("hello", HELLO, &[]).unwrap();
    let (told, status) = told(&mut doctor(&library), &[&hello]);
    assert_eq!((status, &told["verdict"]), (Some(0), &"clear".into()), "{told:#}");
    finding(&told, "program", "ok");
    finding(&told, "config", "ok");
    assert_eq!(told["subject"]["kind"], "program");
}

#[test]
fn obstacles_of_programs_are_problems_with_a_remedy() {
    let scratch = Scratch::new();
    let library = scratch.library();
    if let Some(program) = scratch.compile("static", HELLO, &["-static"]) {
        let (told, status) = told(&mut doctor(&library), &[&program]);
        assert_eq!((status, &told["verdict"]), (Some(1), &"obstructed".into()));
        says(finding(&told, "program", "problem"), "statically linked");
        // A script is what runs it.
        let script = scratch.script("script", &format!("#!{}\n", program.display()));
        let (told, status) = self::told(&mut doctor(&library), &[&script]);
        assert_eq!(status, Some(1));
        says(finding(&told, "program", "problem"), "statically linked");
    }
    let script = scratch.script("shell", "#!/bin/sh\n");
    let (told, status) = told(&mut doctor(&library), &[&script]);
    assert_eq!(status, Some(0));
    let found = finding(&told, "program", "ok")["found"].as_str().unwrap();
    assert!(found.contains(", run by /bin/sh, "), "{found}");
    let other = scratch.compile("other", HELLO, &[]).unwrap();
    let mut bytes = std::fs::read(&other).unwrap();
    bytes[18] = 183; // AArch64
    std::fs::write(&other, bytes).unwrap();
    let (told, status) = self::told(&mut doctor(&library), &[&other]);
    assert_eq!(status, Some(1));
    says(finding(&told, "program", "problem"), "AArch64");
}

#[test]
fn what_cannot_be_preloaded_is_named_by_the_loader_itself() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let hello = scratch.compile("hello", HELLO, &[]).unwrap();
    let mut command = doctor(&library);
    command.env("LD_PRELOAD", "/nowhere/libmissing.so");
    // (What starts the doctor complains, too.)
    let Ran { status, out, .. } = run(command.arg("--json").arg(&hello));
    let told = serde_json::from_str(&out).unwrap();
    assert_eq!(status, Some(1));
    says(finding(&told, "preload", "problem"), "/nowhere/libmissing.so");
}

#[test]
fn system_calls_past_the_c_library_are_a_note() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let scratch = Scratch::new();
    let library = scratch.library();
    let text = "int main(void) { long r; __asm__ volatile(\"mov $232, %%eax\\n syscall\" \
                : \"=a\"(r) : \"D\"(-1), \"S\"(0), \"d\"(0) : \"rcx\", \"r11\", \"memory\"); \
                return (int)r; }\n";
    let raw = scratch.compile("raw", text, &[]).unwrap();
    let (told, status) = told(&mut doctor(&library), &[&raw]);
    assert_eq!(status, Some(0), "{told:#}");
    says(finding(&told, "system-calls", "note"), "epoll_wait");
}

#[test]
fn every_wrong_line_of_the_configuration_is_a_problem() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let text = "[netacc]\nNACC_SOR_IO_THREADS=zero\nNACC_POLL_MS=1\nNACC_PATHS=air\n";
    let file = scratch.write("wrong.conf", text);
    let mut command = doctor(&library);
    let (told, status) = told::<&str>(command.env("NACC_CONF", &file), &[]);
    assert_eq!(status, Some(1));
    let all = told["findings"].as_array().unwrap();
    let wrong: Vec<&str> = all
        .iter()
        .filter(|f| f["check"] == "config" && f["level"] == "problem")
        .map(|f| f["found"].as_str().unwrap())
        .collect();
    let at = |line: u32| format!("{}:{line}: ", file.display());
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with(&at(2)) && wrong[1].starts_with(&at(4)), "{wrong:?}");
}

#[test]
fn a_configuration_that_turns_it_off_is_a_problem() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for (name, value) in [
        ("NACC_ENABLE_RDMA_DEFAULT", "0"),
        ("NACC_PATHS", "tcp"),
        ("NACC_CONNECT_RDMA_PERCENT", "0"),
    ] {
        let (told, status) = told(doctor(&library).env(name, value), &["true"]);
        assert_eq!(status, Some(1));
        says(finding(&told, "config", "problem"), name);
    }
    let mut command = doctor(&library);
    command.env("NACC_LOG_PATH", "/nowhere/log").env("NACC_LOG_PAHT", "x");
    let (told, status) = told(&mut command, &["true"]);
    assert_eq!(status, Some(0));
    says(finding(&told, "log", "note"), "/nowhere/log");
    says(finding(&told, "environment", "note"), "NACC_LOG_PAHT");
}

#[test]
fn a_host_without_the_library_has_a_problem() {
    let scratch = Scratch::new();
    let (told, status) = told::<&str>(&mut doctor(&scratch.path("nothing.so")), &[]);
    assert_eq!(status, Some(1));
    says(finding(&told, "library", "problem"), "nothing.so");
    finding(&told, "kernel", "ok");
}

#[test]
fn a_process_without_the_library_is_told_from_one_that_has_it() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let plain = Running::new(Command::new("sleep").arg("1000"));
    let (told, status) = told(&mut doctor(&library), &[plain.pid()]);
    assert_eq!(status, Some(1));
    says(finding(&told, "process", "problem"), "without the library");
    finding(&told, "program", "ok");

    let loaded = Running::new(Command::new("cat").env("LD_PRELOAD", &library));
    wait_for_maps(&loaded, "libnetacc-preload.so");
    let (told, status) = self::told(&mut doctor(&library), &[loaded.pid()]);
    assert_eq!(status, Some(0), "{told:#}");
    says(finding(&told, "process", "note"), "no TCP connection yet");
}

/// Until the dynamic loader has done its work.
fn wait_for_maps(process: &Running, name: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    let maps = format!("/proc/{}/maps", process.pid());
    while !std::fs::read_to_string(&maps).unwrap().contains(name) {
        assert!(Instant::now() < end, "{name} is not in {maps}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn processes_that_cannot_be_looked_at_are_unknown() {
    let scratch = Scratch::new();
    let library = scratch.library();
    // A number that is given back only when its parent asks.
    let mut ended = Running::new(Command::new("true").stdout(Stdio::piped()));
    let mut out = String::new();
    std::io::Read::read_to_string(ended.0.stdout.as_mut().unwrap(), &mut out).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", ended.pid())).unwrap();
    while !stat().contains(") Z ") {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (told, status) = told(&mut doctor(&library), &[ended.pid()]);
    assert_eq!((status, &told["verdict"]), (Some(2), &"unknown".into()));
    says(finding(&told, "process", "problem"), "has ended");
    let pid = ended.pid();
    drop(ended);
    let (told, status) = self::told(&mut doctor(&library), &[pid]);
    assert_eq!((status, &told["verdict"]), (Some(2), &"unknown".into()));
    says(finding(&told, "process", "problem"), "no such process");
}

#[test]
fn a_stopped_process_and_its_limits_are_seen() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let limited = Command::new("sh")
        .args(["-c", "ulimit -n 20; echo ready; exec cat"])
        .env("LD_PRELOAD", &library)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut limited = Running(limited);
    let mut ready = [0; 6];
    std::io::Read::read_exact(limited.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let pid = rustix::process::Pid::from_raw(limited.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", limited.pid())).unwrap();
    while !stat().contains(") T ") {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (told, status) = told(&mut doctor(&library), &[limited.pid()]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "state", "note"), "stopped");
    says(finding(&told, "nofile", "problem"), "20 open files");
}

#[test]
fn a_connection_within_the_host_depends_on_who_listens() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let (told, status) = told(&mut doctor(&library), &[&place]);
    assert_eq!(status, Some(1));
    let found = finding(&told, "listener", "problem");
    says(found, "without the library");
    says(found, &format!("process {} ", std::process::id()));
    // By its name, with which other addresses may come that nobody serves.
    let named = format!("localhost:{}", listener.local_addr().unwrap().port());
    let (told, status) = self::told(&mut doctor(&library), &[named]);
    assert_eq!(status, Some(1));
    says(finding(&told, "listener", "problem"), "without the library");
    drop(listener);
    let (told, status) = self::told(&mut doctor(&library), &[place]);
    assert_eq!(status, Some(1));
    says(finding(&told, "listener", "problem"), "nobody listens");
}

#[test]
fn which_library_a_server_has_is_said() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let statistics = File::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).unwrap());
    statistics.set_len(CONNS_OFFSET as u64).unwrap();
    // A program that holds both, and has the library.
    let mut command = Command::new("sleep");
    command.arg("1000").env("LD_PRELOAD", &library).stdin(OwnedFd::from(listener));
    let server = Running(command.stdout(statistics.try_clone().unwrap()).spawn().unwrap());
    drop(command);
    wait_for_maps(&server, "libnetacc-preload.so");
    let put = |at: usize, bytes: &[u8]| statistics.write_all_at(bytes, at as u64).unwrap();
    put(offset_of!(Header, magic), &MAGIC.to_ne_bytes());
    put(offset_of!(Header, version), &VERSION.to_ne_bytes());
    put(offset_of!(Header, pid), &server.0.id().to_ne_bytes());
    let version = |packed: u64| put(offset_of!(Header, library), &packed.to_ne_bytes());

    version(netacc_control::stats::LIBRARY);
    let (told, status) = told(&mut doctor(&library), &[&place]);
    assert_eq!(status, Some(0), "{told:#}");
    let found = finding(&told, "library", "ok")["found"].as_str().unwrap();
    assert!(found.contains(&format!("version is {}", env!("CARGO_PKG_VERSION"))), "{found}");
    version(0xb_0001_0002_0003);
    let (told, status) = self::told(&mut doctor(&library), &[&place]);
    assert_eq!(status, Some(0), "{told:#}");
    says(finding(&told, "library", "note"), "the server's version is 1.2.3, that of these tools");
    version(netacc_control::stats::LIBRARY);
    std::fs::rename(scratch.write("new", "another one"), &library).unwrap();
    let other = scratch.path("nothing.so");
    let (told, _) = self::told(&mut doctor(&other), &[&place]);
    says(finding(&told, "library", "note"), "the server's file has been replaced");
}

/// Waits until a process is that program.
fn wait_for_program(process: &Running, name: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    let comm = format!("/proc/{}/comm", process.pid());
    while std::fs::read_to_string(&comm).unwrap().trim_end() != name {
        assert!(Instant::now() < end, "{comm}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn limits_of_memory_are_seen() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let limits = ["--memlock=65536:65536", "--as=1073741824", "sleep", "1000"];
    let limited = Running::new(Command::new("prlimit").args(limits));
    wait_for_program(&limited, "sleep");
    let (told, _) = told(&mut doctor(&library), &[limited.pid()]);
    says(finding(&told, "as", "note"), "1024 MiB");
    // (What the limit means depends on devices and privileges: `host` has the tests of that.)
    let all = told["findings"].as_array().unwrap().iter();
    let found = all.filter(|f| f["check"] == "memlock").map(|f| f["found"].as_str().unwrap());
    assert!(found.clone().any(|found| found.contains("64 KiB")), "{told:#}");
}

#[test]
fn a_filter_of_system_calls_is_seen() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let text = "#include <linux/filter.h>\n#include <linux/seccomp.h>\n#include <sys/prctl.h>\n\
                #include <unistd.h>\n\
                int main(int argc, char **argv) {\n\
                struct sock_filter all[] = { { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW } };\n\
                struct sock_fprog program = { 1, all };\n\
                if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;\n\
                if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;\n\
                execvp(argv[1], argv + 1); return argc; }\n";
    let filtered = scratch.compile("filtered", text, &[]).unwrap();
    let process = Running::new(Command::new(&filtered).args(["sleep", "1000"]));
    wait_for_program(&process, "sleep");
    let (told, _) = told(&mut doctor(&library), &[process.pid()]);
    says(finding(&told, "seccomp", "note"), "a filter is in force");
    // What is started from such a place inherits it.
    let mut here = Command::new(&filtered);
    here.arg(env!("CARGO_BIN_EXE_netacc")).env("NETACC_LIB", &library).env("NACC_LOG_PATH", "");
    let (told, status) = self::told::<&str>(here.arg("doctor"), &[]);
    assert_eq!(status, Some(0), "{told:#}");
    says(finding(&told, "seccomp", "note"), "what is started here inherits it");
}

#[test]
fn mistakes_are_usage() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for wrong in [&["0"][..], &["127.0.0.1:0"], &["::1:80"], &["17", "18"], &["--what"]] {
        let ran = run(doctor(&library).args(wrong));
        assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(ran.err.starts_with("netacc"), "{}", ran.err);
    }
    let (told, status) = told(&mut doctor(&library), &["no such command"]);
    assert_eq!((status, &told["verdict"]), (Some(2), &"unknown".into()));
    says(finding(&told, "program", "problem"), "not found");
    let ran = run(doctor(&library).args(["true", "--json"]));
    assert!(ran.out.starts_with("Program true\n"), "{}", ran.out);
}

#[test]
fn a_pipe_in_the_place_of_a_program_or_a_library_is_not_waited_for() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let pipe = scratch.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    std::fs::set_permissions(&pipe, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (told, status) = told(&mut doctor(&library), &[&pipe]);
    assert_eq!(status, Some(2));
    says(finding(&told, "program", "problem"), "is not a file");
    let (told, status) = self::told::<&str>(&mut doctor(&pipe), &[]);
    assert_eq!(status, Some(1));
    says(finding(&told, "library", "problem"), "not a shared library");
    // It does not wait for a configuration file that nobody writes either.
    let (told, status) = self::told::<&str>(doctor(&library).env("NACC_CONF", &pipe), &[]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "config", "problem"), "is not a file");
}

#[test]
fn text_has_80_columns_and_a_verdict() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ran = run(&mut doctor(&library));
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    let is_long = |line: &&str| line.chars().count() > 80 && line.trim().contains(' ');
    let long: Vec<&str> = ran.out.lines().filter(is_long).collect();
    assert!(long.is_empty(), "{long:?}");
    assert!(ran.out.contains("\nNothing is in the way. ("), "{}", ran.out);
}
