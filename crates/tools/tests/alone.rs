//! What is done to all processes, and to what ended ones have left: in namespaces of its own, where
//! there are no others.

mod support;

use netacc_control::Config;
use netacc_control::config::{Answer, NO_USERS, Request};
use netacc_control::stats;
use netacc_control::trace::{DIRECTORY, Header, NAME};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Read;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::segment::Segment;
use support::{Ran, run, trace};

/// Has the test of that name run again among no other processes and no traces, and says whether
/// this is that run.
fn is_alone(test: &str) -> bool {
    const INSIDE: &str = "NETACC_TEST_IS_ALONE";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut command = Command::new("unshare");
    command.args(["-rmpf", "--mount-proc", "sh", "-c"]);
    command.arg("mount -t tmpfs none /dev/shm || exit 77; exec \"$@\"").arg("sh");
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let Ok(ran) = command.env(INSIDE, "1").output() else { return false };
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    if ran.status.code() == Some(77) || said.starts_with("unshare: ") {
        eprintln!("skipped: no namespaces: {said}");
    } else {
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
    false
}

fn netacc(words: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_netacc")).args(words))
}

/// A process that does nothing and has the library, as far as can be seen; and what it is asked.
struct Process {
    child: Child,
    segment: Segment,
    requests: File,
}

impl Process {
    fn new() -> Process {
        let segment = Segment::new(0);
        let (config, origins) = Config::resolve(None, &|_| None, &[], NO_USERS).unwrap();
        segment.config(&config.render(&origins));
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let inode = fs::metadata(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap().ino();
        let statistics = OwnedFd::from(segment.0.try_clone().unwrap());
        let mut sleep = Command::new("sleep");
        let child =
            sleep.arg("600").stdin(Stdio::from(statistics)).stdout(Stdio::from(writer)).spawn();
        let child = child.unwrap();
        segment.u32(offset_of!(stats::Header, requests_fd), 1);
        segment.u32(offset_of!(stats::Header, requests_inode), inode as u32);
        segment.u32(offset_of!(stats::Header, pid), child.id());
        Process { child, segment, requests: File::from(reader) }
    }

    /// The number of the next request.
    fn asked(&mut self) -> u64 {
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" {
            self.requests.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        let line = String::from_utf8(line).unwrap();
        Request::parse(line.trim_end()).unwrap().number
    }

    fn answer(&self, number: u64) {
        self.segment.u64(offset_of!(stats::Header, answer), Answer::Done.word(number));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn those_that_are_well_are_set_while_one_is_stopped() {
    if !is_alone("those_that_are_well_are_set_while_one_is_stopped") {
        return;
    }
    let mut all = [(); 3].map(|()| Process::new());
    kill_process(Pid::from_child(&all[0].child), Signal::STOP).unwrap();
    let set = ["cfg", "set", "--all", "--wait", "5", "NACC_LOG_LEVEL", "2"];
    let tool = std::thread::spawn(move || netacc(&set));
    // None of them is answered before each has been asked.
    let numbers: Vec<u64> = all.iter_mut().map(Process::asked).collect();
    for (process, number) in all.iter().zip(numbers).skip(1) {
        process.answer(number);
    }
    let ran = tool.join().unwrap();
    let [stopped, first, second] = all.each_ref().map(|process| process.child.id());
    let is = |pid| format!("sleep ({pid}): NACC_LOG_LEVEL 3 -> 2, at once\n");
    assert_eq!(ran.out, is(first) + &is(second), "{}", ran.err);
    let why = "it does not answer because it is stopped";
    assert!(ran.err.starts_with(&format!("netacc: {stopped}: {why}")), "{}", ran.err);
    assert_eq!(ran.status, Some(1));
}

/// A trace of a process that is gone, and has had that name.
fn left(pid: u32, program: &[u8]) -> PathBuf {
    let mut bytes = trace::bytes();
    let at = offset_of!(Header, program);
    bytes[at..at + 16].fill(0);
    bytes[at..at + program.len()].copy_from_slice(program);
    let at = offset_of!(Header, pid);
    bytes[at..at + 4].copy_from_slice(&pid.to_le_bytes());
    let path = Path::new(DIRECTORY).join(format!("{NAME}.{:016x}.{pid}", 1));
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_trace_is_found_by_a_name_that_the_kernel_has_cut() {
    if !is_alone("a_trace_is_found_by_a_name_that_the_kernel_has_cut") {
        return;
    }
    let name = "twenty-bytes-of-name";
    assert_eq!(name.len(), 20);
    left(4711, &name.as_bytes()[..15]);
    left(4712, b"twenty-bytes");
    for words in
        [["trace", "show", "-p", name, "--json"], ["trace", "histogram", "-p", name, "--json"]]
    {
        let ran = netacc(&words);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{words:?}");
    }
    let shown = netacc(&["trace", "show", "-p", name, "--json"]).out;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let pids: Vec<_> = shown.as_array().unwrap().iter().map(|one| one["pid"].clone()).collect();
    assert_eq!(pids, [4711]);
    // What is shorter than the kernel keeps was not cut.
    let ran = netacc(&["trace", "show", "-p", "twenty-bytes-of"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let ran = netacc(&["trace", "show", "-p", "twenty-bytes-or-more"]);
    assert!(ran.status == Some(1) && ran.err.contains("no trace of this process"), "{}", ran.err);
}

#[test]
fn what_ended_processes_have_left_is_cleared_and_nothing_else() {
    if !is_alone("what_ended_processes_have_left_is_cleared_and_nothing_else") {
        return;
    }
    let clear =
        |more: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_netacc_ss")).arg("-c").args(more));
    let ran = clear(&[]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("Nothing to clear"), "{}", ran.out);
    for columns in [40, 60, 80, 120, 200] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc_ss"));
        let (text, _) = support::terminal::said(columns, command.arg("-c").env_remove("COLUMNS"));
        assert!(text.lines().all(|line| line.chars().count() <= columns.into()), "{text}");
    }
    // A process holds the lock of its trace for as long as it lives, killed or not.
    let (killed, live) = (left(4711, b"killed"), left(4712, b"live"));
    let other = Path::new(DIRECTORY).join("netacc-other");
    fs::write(&other, "not ours").unwrap();
    let lock = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::from({
            let file = File::open(&live).unwrap();
            file.lock().unwrap();
            file
        }))
        .spawn();
    let mut lock = lock.unwrap();
    let ran = clear(&[]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.starts_with("Cleared 1 trace of an ended process"), "{}", ran.out);
    assert_eq!([&killed, &live, &other].map(|path| path.exists()), [false, true, true]);
    lock.kill().unwrap();
    lock.wait().unwrap();
    left(4711, b"killed");
    let ran = clear(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(said["traces"], 2, "{said}");
    assert_eq!([&killed, &live, &other].map(|path| path.exists()), [false, false, true]);
}

#[test]
fn a_trace_says_when_it_began_and_ended_and_what_went_badly() {
    if !is_alone("a_trace_says_when_it_began_and_ended_and_what_went_badly") {
        return;
    }
    // (The events of the file are of its first nanoseconds.)
    let (first, second) = (left(4711, b"redis-server"), left(4712, b"redis-server"));
    for (path, began, last, troubles) in
        [(&first, 1_764_486_331_500_000_000u64, 2_000_000u64, 2u32), (&second, 1, 0, 0)]
    {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&began.to_le_bytes(), offset_of!(Header, began_unix_ns) as u64).unwrap();
        file.write_all_at(&last.to_le_bytes(), offset_of!(Header, last_ns) as u64).unwrap();
        let at = offset_of!(Header, troubles) as u64;
        file.write_all_at(&troubles.to_le_bytes(), at).unwrap();
    }
    let list = netacc(&["trace", "list"]).out;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut lines = list.lines().map(words);
    let headings =
        "Pid Program Uid State Began Last-Event Connections Troubles Missed Memory Trace";
    assert_eq!(lines.next().unwrap(), words(headings), "{list}");
    let (old, new) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!((old[0].as_str(), old[4].as_str()), ("4712", "1970-01-01T00:00:00.000Z"), "{list}");
    assert_eq!((old[5].as_str(), old[7].as_str()), ("-", "0"), "{list}");
    let times = ["2025-11-30T07:05:31.500Z", "2025-11-30T07:05:31.502Z"];
    assert_eq!(
        (new[0].as_str(), &new[4..6], new[7].as_str()),
        ("4711", &times.map(str::to_owned)[..], "2"),
        "{list}"
    );
    let said: serde_json::Value =
        serde_json::from_str(&netacc(&["trace", "list", "--json"]).out).unwrap();
    assert_eq!(said[0]["last_unix_ns"], serde_json::Value::Null, "{said}");
    assert_eq!(said[1]["last_unix_ns"], 1_764_486_331_502_000_000u64, "{said}");
    let shown = netacc(&["trace", "show", "-p", "4711"]).out;
    let second = shown.lines().nth(1).unwrap();
    let says = "began 2025-11-30T07:05:31.500Z, last event 2025-11-30T07:05:31.500Z; \
                2 connections were in trouble";
    assert_eq!(second, says, "{shown}");
}
