//! Every tool about processes in every state: it ends by itself, says a word, and says no control
//! characters, whoever the process is and whatever it holds out as its statistics.

mod support;

use netacc_control::Config;
use netacc_control::config::NO_USERS;
use netacc_control::stats::{
    CHANNEL_SLOTS, CONNS_OFFSET, ConnRecord, Header, MAGIC, MEMFD_NAME, VERSION,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use support::Scratch;
use support::top::Top;

/// One test at a time: what one starts would inherit the others' statistics.
static ONE: Mutex<()> = Mutex::new(());

const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 64;
const BYTES: usize = CONNS_OFFSET + CONNECTIONS * size_of::<ConnRecord>();
/// More than any process has.
const NOBODY: u32 = 4_194_305;

/// A process that does nothing, and holds a file that looks like the library's statistics.
struct Process {
    child: Child,
    /// Its number here. (`child` may only be who has started it.)
    pid: u32,
    statistics: File,
    /// What it would hear requests by, if it did.
    _pipe: (OwnedFd, OwnedFd),
}

impl Process {
    /// Started by `command`, which runs what comes behind it; of which it has that number.
    fn new(command: &[&str], sees_itself_as: Option<u32>) -> Option<Process> {
        let statistics = File::from(memfd_create(MEMFD_NAME, MemfdFlags::empty()).unwrap());
        statistics.set_len(BYTES as u64).unwrap();
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK)
            .expect("a pipe for requests");
        let all = [command, &["sleep", "600"]].concat();
        let mut child = Command::new(all[0]).args(&all[1..]).spawn().ok()?;
        let end = Instant::now() + PATIENCE;
        let pid = loop {
            let asleep = |pid: u32| comm(pid).is_some_and(|comm| comm == "sleep");
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            let children = std::fs::read_to_string(children).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            if let Some(pid) = children.chain([child.id()]).find(|pid| asleep(*pid)) {
                break pid;
            }
            if child.try_wait().unwrap().is_some() || Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let process = Process { child, pid, statistics, _pipe: pipe };
        process.u64(0, MAGIC);
        process.u32(offset_of!(Header, version), VERSION);
        process.u32(offset_of!(Header, pid), sees_itself_as.unwrap_or(pid));
        process.u32(offset_of!(Header, conn_capacity), CONNECTIONS as u32);
        process.u32(offset_of!(Header, channel_capacity), CHANNEL_SLOTS as u32);
        let fd = process._pipe.1.as_raw_fd();
        let inode = std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino();
        process.u32(offset_of!(Header, requests_fd), fd as u32);
        process.u32(offset_of!(Header, requests_inode), inode as u32);
        // A connection of which nothing is known.
        process.u32(offset_of!(Header, conn_high_water), 1);
        process.u32(CONNS_OFFSET + offset_of!(ConnRecord, state), 1);
        Some(process)
    }

    fn plain() -> Process {
        Process::new(&[], None).expect("sleep")
    }

    fn u32(&self, at: usize, value: u32) {
        self.statistics.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    fn u64(&self, at: usize, value: u64) {
        self.statistics.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid as i32).unwrap();
        kill_process(pid, signal).unwrap();
        let state = if signal == Signal::STOP { 'T' } else { 'Z' };
        let status = format!("/proc/{}/status", self.pid);
        let is = || std::fs::read_to_string(&status).unwrap_or_default();
        let end = Instant::now() + PATIENCE;
        while !is().contains(&format!("State:\t{state}")) {
            assert!(Instant::now() < end, "{}", is());
            std::thread::yield_now();
        }
    }

    /// Words that mean nothing, from `from` on.
    fn spoil(&self, from: usize, seed: u64) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes = vec![0u8; BYTES];
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        self.statistics.write_all_at(&bytes[from..], from as u64).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.pid as i32).unwrap(), Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn comm(pid: u32) -> Option<String> {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(comm.trim_end().to_owned())
}

/// `netacc metrics` at a socket, which is asked about every process in turn.
struct Served {
    child: Child,
    place: PathBuf,
}

impl Served {
    fn new(scratch: &Scratch) -> Served {
        let place = scratch.path("metrics");
        let child = Command::new(env!("CARGO_BIN_EXE_netacc"))
            .args(["metrics", "--listen", &format!("unix:{}", place.display())])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Served { child, place }
    }

    /// The answer about all processes comes, and whole, whatever state they are in.
    fn answers(&mut self, state: &str) {
        let end = Instant::now() + PATIENCE;
        let mut connection = loop {
            match UnixStream::connect(&self.place) {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < end, "{state}: {error}"),
            }
            assert!(self.child.try_wait().unwrap().is_none(), "{state}: it has ended");
            std::thread::sleep(Duration::from_millis(10));
        };
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut said = Vec::new();
        connection.read_to_end(&mut said).unwrap_or_else(|error| panic!("{state}: {error}"));
        let said = String::from_utf8_lossy(&said);
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or_default();
        let whole = head.contains(&format!("\r\nContent-Length: {}", body.len()));
        assert!(head.starts_with("HTTP/1.1 200") && whole, "{state}: {said}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The tools, and who runs them.
struct Tools {
    served: Served,
    scratch: Scratch,
    netacc: PathBuf,
    ss: PathBuf,
    user: Option<u32>,
    runs: u32,
}

impl Tools {
    fn new() -> Tools {
        let [netacc, ss] = [env!("CARGO_BIN_EXE_netacc"), env!("CARGO_BIN_EXE_netacc_ss")];
        let [netacc, ss] = [netacc, ss].map(PathBuf::from);
        let scratch = Scratch::new();
        Tools { served: Served::new(&scratch), scratch, netacc, ss, user: None, runs: 0 }
    }

    /// What each of them is asked about a process.
    fn words(&mut self, pid: u32) -> Vec<(&'static str, Vec<String>)> {
        self.runs += 1;
        let file = |name: &str| self.scratch.path(&format!("{name}-{}", self.runs));
        let [capture, text] = [file("pcapng"), file("prom")].map(|path| path.display().to_string());
        let told = |words: &str| -> Vec<String> {
            let words = words.split(' ').map(|word| match word {
                "PID" => pid.to_string(),
                "CAPTURE" => capture.clone(),
                "TEXT" => text.clone(),
                word => word.to_owned(),
            });
            words.collect()
        };
        let all = [
            ("netacc_ss", "PID"),
            ("netacc_ss", "-s all --wide PID"),
            ("netacc_ss", "--json PID"),
            ("netacc_ss", "--port 1 --sort peer PID"),
            ("netacc_ss", "-w 0.1 -n 2 PID"),
            ("netacc", "ps"),
            ("netacc", "ps --json"),
            ("netacc", "ps -w 0.1 -n 2"),
            ("netacc", "cfg list -p PID"),
            ("netacc", "cfg get NACC_LOG_LEVEL -p PID"),
            ("netacc", "cfg set NACC_LOG_LEVEL 3 --wait 0.05 -p PID"),
            ("netacc", "cfg set NACC_ENABLE_RDMA_DEFAULT 0 --json --wait 0.05 -p PID"),
            ("netacc", "cfg reload --wait 0.05 -p PID"),
            ("netacc", "doctor PID"),
            ("netacc", "doctor --json PID"),
            ("netacc", "trace list"),
            ("netacc", "trace show -p PID"),
            ("netacc", "trace histogram -p PID --json"),
            ("netacc", "trace export -p PID"),
            ("netacc", "capture -p PID -w CAPTURE -d 0.1"),
            ("netacc", "metrics"),
            ("netacc", "metrics --textfile TEXT"),
        ];
        all.map(|(tool, words)| (tool, told(words))).to_vec()
    }

    fn run(&self, tool: &str, words: &[String]) -> Output {
        let program: &Path = if tool == "netacc" { &self.netacc } else { &self.ss };
        let mut command = Command::new(program);
        command.args(words);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let shown = format!("{tool} {}", words.join(" "));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        match told.recv_timeout(PATIENCE) {
            Ok(output) => output.unwrap(),
            Err(_) => {
                let _ = kill_process(pid, Signal::KILL);
                panic!("it hangs: {shown}");
            }
        }
    }

    /// Each of them about a process in that state; what each has said.
    fn about(&mut self, state: &str, pid: u32) -> Vec<(String, i32, String)> {
        let mut all = Vec::new();
        // (The first process of a container may have the library: nothing is changed in it.)
        let changes = |words: &[String]| ["set", "reload"].map(str::to_owned).contains(&words[1]);
        for (tool, words) in self.words(pid) {
            if pid == 1 && words[0] == "cfg" && changes(&words) {
                continue;
            }
            let Output { status, stdout, stderr } = self.run(tool, &words);
            let command = format!("{tool} {}", words.join(" "));
            let [out, err] =
                [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            let about = format!("{command}, about a process that is {state}: {status}\n{out}{err}");
            assert!(status.signal().is_none(), "{about}");
            // (2: the doctor could not tell.)
            let most = if words[0] == "doctor" { 2 } else { 1 };
            assert!(status.code().is_some_and(|code| code <= most), "{about}");
            assert!(!err.contains("panicked"), "{about}");
            // (Metrics have gone to their file.)
            let is_silent = words.contains(&"--textfile".to_owned());
            assert!(is_silent || !(out.is_empty() && err.is_empty()), "{about}");
            assert!(status.success() || !err.is_empty() || tool_says(&words), "{about}");
            let drives = |c: char| c.is_control() && c != '\n';
            assert!(!out.contains(drives) && !err.contains(drives), "{about}");
            all.push((command, status.code().unwrap(), out + &err));
        }
        self.served.answers(state);
        self.follows(state, pid);
        all
    }

    /// Who follows a trace ends with the process, or when it is interrupted.
    fn follows(&self, state: &str, pid: u32) {
        let words = ["trace", "show", "-p", &pid.to_string(), "--follow", "--last", "1"];
        let mut child = Command::new(&self.netacc)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut status = child.try_wait().unwrap();
        if status.is_none() {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        let end = Instant::now() + PATIENCE;
        while status.is_none() {
            assert!(Instant::now() < end, "{words:?} hangs, about a process that is {state}");
            std::thread::sleep(Duration::from_millis(2));
            status = child.try_wait().unwrap();
        }
        let status = status.unwrap();
        let by_us = status.signal() == Some(Signal::INT.as_raw());
        assert!(by_us || status.code().is_some_and(|code| code <= 1), "{state}: {status}");
    }
}

/// The doctor's status is what it has found, on standard output; JSON has the error in it.
fn tool_says(words: &[String]) -> bool {
    words[0] == "doctor" || words.iter().any(|word| word == "--json")
}

/// What the tools that read and the one that sets have to say.
fn says(all: &[(String, i32, String)], tool: &str, word: &str) {
    for (command, _, said) in all.iter().filter(|(command, ..)| command.starts_with(tool)) {
        assert!(said.contains(word), "{command} does not say {word:?}:\n{said}");
    }
}

/// As `about` it is shown by `netacc top`, in terminals of all widths.
fn on_a_terminal(state: &str, pid: u32, words: &str) {
    for columns in [40, 80, 200] {
        let mut top = Top::new(columns, &[&pid.to_string(), "-d", "0.1"]);
        top.shows(&[words, "qquits"]);
        top.press("jjs");
        top.press("q");
        let status = top.ended();
        assert_eq!(status.code(), Some(0), "{state}, {columns} columns: {}", top.text());
        assert!(top.has_restored(), "{state}, {columns} columns");
    }
}

#[test]
fn about_processes_that_are_gone_or_have_no_library() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tools = Tools::new();
    let all = tools.about("not there", NOBODY);
    says(&all, "netacc_ss ", "no such process");
    says(&all, "netacc cfg set", "no such process");
    says(&all, "netacc doctor", "no such process");
    on_a_terminal("not there", NOBODY, "noprocessthatmayberead");

    // (A kernel thread, or somebody's first process.)
    tools.about("the first", 1);
    let mut bare = Command::new("sleep").arg("600").spawn().unwrap();
    let all = tools.about("without the library", bare.id());
    says(&all, "netacc_ss", "is not loaded");
    says(&all, "netacc cfg", "is not loaded");
    bare.kill().unwrap();
    // Not waited for: its number is nobody else's.
    let end = Instant::now() + PATIENCE;
    while comm(bare.id()).is_some_and(|_| !is_over(bare.id())) && Instant::now() < end {
        std::thread::yield_now();
    }
    let all = tools.about("dead", bare.id());
    says(&all, "netacc_ss", "ended");
    says(&all, "netacc cfg", "ended");
    bare.wait().unwrap();
}

fn is_over(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:\tZ")
}

#[test]
fn about_processes_that_answer_nothing() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tools = Tools::new();
    let process = Process::plain();
    let all = tools.about("hung", process.pid);
    says(&all, "netacc_ss -s all", "(sleep)");
    says(&all, "netacc cfg set", "does not answer");
    says(&all, "netacc cfg reload", "does not answer");
    on_a_terminal("hung", process.pid, "sleep");
    process.signal(Signal::STOP);
    let all = tools.about("stopped", process.pid);
    says(&all, "netacc_ss -s all", "(sleep)");
    says(&all, "netacc cfg set", "because it is stopped");
    on_a_terminal("stopped", process.pid, "sleep");
    // Requests that nobody reads fill the pipe.
    let pipe = format!("/proc/{}/fd/{}", process.pid, process._pipe.1.as_raw_fd());
    let mut how = File::options();
    let how = how.write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let mut pipe = how.open(pipe).unwrap();
    while pipe.write(&[b'\n'; 4096]).is_ok_and(|n| n > 0) {}
    let all = tools.about("stopped, and asked too much", process.pid);
    says(&all, "netacc cfg set", "because it is stopped");
    process.signal(Signal::KILL);
    let all = tools.about("killed", process.pid);
    says(&all, "netacc_ss", "ended");
    on_a_terminal("killed", process.pid, "noprocessthatmayberead");
}

#[test]
fn about_a_number_that_is_another_process_by_now() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tools = Tools::new();
    let other = Process::plain();
    // A segment that has been inherited, or handed on, is that of its maker.
    let process = Process::new(&[], Some(other.pid)).unwrap();
    let all = tools.about("another by now", process.pid);
    says(&all, "netacc cfg set", "not loaded");
    // Its pipe is another one by now.
    let process = Process::plain();
    process.u32(offset_of!(Header, requests_inode), 1);
    let all = tools.about("another program by now", process.pid);
    says(&all, "netacc cfg set", "has ended, or has become another program");
    process.u32(offset_of!(Header, requests_fd), 0);
    tools.about("another program by now", process.pid);
}

#[test]
fn about_one_that_was_started_with_acceleration_off() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = Process::plain();
    process.u32(offset_of!(Header, requests_inode), 0);
    let set = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
        command.args(["cfg", "set", "NACC_ENABLE_RDMA_DEFAULT", "1", "-p"]);
        let Output { status, stdout, stderr } =
            command.arg(process.pid.to_string()).output().unwrap();
        assert_eq!(status.code(), Some(1));
        String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
    };
    assert!(set().contains("takes no requests: it is an older one"), "{}", set());
    let off = |name: &str| (name == "NACC_ENABLE_RDMA_DEFAULT").then(|| String::from("0"));
    let (config, origins) = Config::resolve(None, &off, &[], NO_USERS).unwrap();
    let text = config.render(&origins);
    let at = offset_of!(Header, config) as u64;
    process.statistics.write_all_at(text.as_bytes(), at).unwrap();
    process.u32(offset_of!(Header, config_len), text.len() as u32);
    for word in ["started with acceleration off", "at restart", "NACC_ENABLE_RDMA_DEFAULT=0"] {
        assert!(set().contains(word), "{word}: {}", set());
    }
}

#[test]
fn about_garbage_and_what_is_cut_short() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tools = Tools::new();
    let process = Process::plain();
    for seed in 1..6 {
        process.spoil(16, seed);
        process.u32(offset_of!(Header, pid), process.pid);
        tools.about("full of nonsense", process.pid);
    }
    on_a_terminal("full of nonsense", process.pid, "qquits");
    process.spoil(0, 7);
    let all = tools.about("nonsense from the first word on", process.pid);
    says(&all, "netacc_ss ", "not a statistics segment");

    let process = Process::plain();
    process.u32(offset_of!(Header, conn_high_water), u32::MAX);
    process.u32(offset_of!(Header, conn_capacity), u32::MAX);
    process.u32(offset_of!(Header, config_len), u32::MAX);
    process.u32(offset_of!(Header, channel_capacity), u32::MAX);
    tools.about("of lengths that cannot be", process.pid);
    for bytes in [BYTES - 1, CONNS_OFFSET + 1, CONNS_OFFSET - 1, 4096, 17, 16, 1, 0] {
        process.statistics.set_len(bytes as u64).unwrap();
        tools.about(&format!("cut to {bytes} bytes"), process.pid);
    }
    on_a_terminal("cut short", process.pid, "qquits");
    // It grows and shrinks while it is read.
    let file = process.statistics.try_clone().unwrap();
    let (tell, told) = mpsc::channel::<()>();
    let moves = std::thread::spawn(move || {
        let wait = || told.recv_timeout(Duration::from_micros(200));
        let goes_on = || wait() == Err(mpsc::RecvTimeoutError::Timeout);
        for n in 0u64.. {
            file.set_len([0, BYTES as u64][n as usize % 2]).unwrap();
            let _ = file.write_at(&MAGIC.to_ne_bytes(), 0);
            if !goes_on() {
                break;
            }
        }
    });
    tools.about("changing all the time", process.pid);
    drop(tell);
    moves.join().unwrap();
}

/// A capture may begin when the process makes its segment, with its first connection.
#[test]
fn a_capture_waits_for_a_segment_that_is_being_made() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tools = Tools::new();
    let process = Process::plain();
    let mut made = vec![0; BYTES];
    process.statistics.read_exact_at(&mut made, 0).unwrap();
    process.statistics.set_len(0).unwrap();
    let words = tools.words(process.pid);
    let (_, words) = words.iter().find(|(_, words)| words[0] == "capture").unwrap();
    let file = process.statistics.try_clone().unwrap();
    let makes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        file.set_len(BYTES as u64).unwrap();
        file.write_all_at(&made, 0).unwrap();
    });
    let Output { status, stderr, .. } = tools.run("netacc", words);
    makes.join().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains(" 0 packets"), "{status}: {said}");
}

#[test]
fn about_processes_of_other_users_and_namespaces() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !rustix::process::geteuid().is_root() {
        support::skip("needs root to become somebody else");
        return;
    }
    let mut tools = Tools::new();
    let command = ["unshare", "--pid", "--mount", "--net", "--ipc", "--uts", "--fork"];
    match Process::new(&command, Some(1)) {
        None => support::skip("no namespaces here"),
        Some(process) => {
            let all = tools.about("in namespaces of its own", process.pid);
            says(&all, "netacc_ss -s all", "(sleep)");
            says(&all, "netacc cfg set", "does not answer");
            on_a_terminal("in namespaces of its own", process.pid, "sleep");
        }
    }
    let process = Process::plain();
    let copy = |program: &Path, name: &str| {
        let to = tools.scratch.path(name);
        std::fs::copy(program, &to).unwrap();
        to
    };
    (tools.netacc, tools.ss) = (copy(&tools.netacc, "netacc"), copy(&tools.ss, "netacc_ss"));
    tools.user = Some(65534);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(tools.scratch.path("."), open).unwrap();
    let all = tools.about("another user's", process.pid);
    says(&all, "netacc_ss ", "not permitted");
    says(&all, "netacc cfg set", "not permitted");
    says(&all, "netacc capture", "permi");
}
