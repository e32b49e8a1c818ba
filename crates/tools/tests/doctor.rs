//! `netacc doctor` as an operator sees it; each obstacle is a real one.

mod support;

use netacc_control::stats::{Counter, Header, REASON_SLOTS, Reason, VERSION};
use serde_json::Value;
use std::mem::offset_of;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::doctor::{
    Running, Server, doctor, each_has_a_command, finding, line_of, mend, says, told, wait_for_maps,
    wait_for_program,
};
use support::{HELLO, Ran, Scratch, run};

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
    each_has_a_command(&told);
    assert_eq!(status, Some(1));
    let problem = finding(&told, "preload", "problem");
    says(problem, "/nowhere/libmissing.so");
    assert_eq!(line_of(problem), ("mends", "unset LD_PRELOAD"));
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
#[test]
fn processes_that_cannot_be_looked_at_are_unknown() {
    let scratch = Scratch::new();
    let library = scratch.library();
    // A number that is given back only when its parent asks.
    let mut ended = Running::new(Command::new("true").stdout(Stdio::piped()));
    let mut out = String::new();
    std::io::Read::read_to_string(ended.0.stdout.as_mut().unwrap(), &mut out).unwrap();
    wait_for_state(&ended, 'Z');
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
        .args(["-c", "ulimit -S -n 20; echo ready; exec cat"])
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
    wait_for_state(&limited, 'T');
    let (told, status) = told(&mut doctor(&library), &[limited.pid()]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "state", "note"), "stopped");
    let few = finding(&told, "nofile", "problem");
    says(few, "20 open files");
    // What mends it does.
    mend(few, &scratch.path(""));
    mend(finding(&told, "state", "note"), &scratch.path(""));
    let (told, status) = self::told(&mut doctor(&library), &[limited.pid()]);
    assert_eq!(status, Some(0), "{told:#}");
    finding(&told, "nofile", "ok");
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

/// Until a process is in that state (proc_pid_stat(5)).
fn wait_for_state(process: &Running, state: char) {
    let end = Instant::now() + Duration::from_secs(60);
    let stat = format!("/proc/{}/stat", process.pid());
    while !std::fs::read_to_string(&stat).unwrap().contains(&format!(") {state} ")) {
        assert!(Instant::now() < end, "{stat} is not {state}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_that_is_stopped_or_accepts_nothing_is_in_the_way() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    let (told, status) = told(&mut doctor(&library), &[&server.place]);
    assert_eq!(status, Some(0), "{told:#}");
    // Somebody waits, and it accepts nobody.
    let _waits = std::net::TcpStream::connect(&server.place).unwrap();
    let (told, status) = self::told(&mut doctor(&library), &[&server.place]);
    assert_eq!((status, &told["verdict"]), (Some(1), &"obstructed".into()), "{told:#}");
    let found = finding(&told, "accept", "problem");
    says(found, "1 connections to 127.0.0.1:");
    let ("shows", line) = line_of(found) else { panic!("{found}") };
    assert!(line.contains(&server.process.pid()), "{found}");
    let pid = rustix::process::Pid::from_raw(server.process.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    wait_for_state(&server.process, 'T');
    let (told, status) = self::told(&mut doctor(&library), &[&server.place]);
    assert_eq!((status, &told["verdict"]), (Some(1), &"obstructed".into()), "{told:#}");
    let found = finding(&told, "state", "problem");
    says(found, "is stopped");
    assert_eq!(line_of(found), ("mends", &*format!("kill -CONT {}", server.process.pid())));
    finding(&told, "listener", "ok");
    mend(found, &scratch.path(""));
    wait_for_state(&server.process, 'S');
}

#[test]
fn what_may_not_be_looked_at_is_not_counted() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    let library = scratch.library();
    let running = Running::new(Command::new("sleep").arg("1000"));
    // (Where the build is, may be for its own user alone.)
    let tool = scratch.path("netacc");
    std::fs::copy(env!("CARGO_BIN_EXE_netacc"), &tool).unwrap();
    let mut command = Command::new(tool);
    command.env("NETACC_LIB", &library).env("NACC_LOG_PATH", "").arg("doctor");
    let (told, status) = told(command.uid(65534).gid(65534), &[running.pid()]);
    assert_eq!((status, &told["verdict"]), (Some(2), &"unknown".into()), "{told:#}");
    says(finding(&told, "process", "problem"), "not permitted");
    let files = finding(&told, "nofile", "note");
    says(files, "how many are open cannot be looked at: Permission denied");
    let line = format!("sudo {} doctor {}", scratch.path("netacc").display(), running.pid());
    assert_eq!(line_of(files), ("shows", &*line));
}

#[test]
fn what_a_process_counts_and_has_as_rules_is_said() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    let pid = server.process.pid();
    let counters = [
        Counter::AuthFailures,
        Counter::PeerCorrupt,
        Counter::ChannelsFailed,
        Counter::RecordsExhausted,
        Counter::LogLinesDropped,
        Counter::RdmaPairsLost,
    ];
    let all = |told: &Value, check: &str| -> Vec<String> {
        let all = told["findings"].as_array().unwrap().iter().filter(|f| f["check"] == check);
        all.map(|f| {
            says(f, "");
            assert_eq!(f["level"], "note");
            f["found"].as_str().unwrap().to_owned()
        })
        .collect()
    };
    let (told, status) = told(&mut doctor(&library), &[&pid]);
    assert_eq!((status, all(&told, "counter").len()), (Some(0), 0), "{told:#}");
    for (value, counter) in (7u64..).zip(counters) {
        server.put(offset_of!(Header, counters) + 8 * counter as usize, &value.to_ne_bytes());
    }
    let last = REASON_SLOTS - 1;
    server.put(offset_of!(Header, reasons) + 8 * last, &3u64.to_ne_bytes());
    let sampled = Reason::SampledOut as usize;
    server.put(offset_of!(Header, reasons) + 8 * sampled, &5u64.to_ne_bytes());
    // Rules without what stands behind them: there was no room.
    let text = "[netacc]\n[rule a]\naccelerate=0\n[rule b]\n";
    server.configure(text);
    let (told, status) = self::told(&mut doctor(&library), &[&pid]);
    assert_eq!(status, Some(0), "{told:#}");
    let said = all(&told, "counter");
    for (value, counter) in (7u64..).zip(counters) {
        let text = format!("{} is {value}. ", counter.name());
        assert!(said.iter().any(|found| found.starts_with(&text)), "{text}: {said:?}");
    }
    let said = all(&told, "reason");
    assert!(said.iter().any(|found| found.starts_with("3 connections: ")), "{said:?}");
    assert!(said.iter().any(|found| found.starts_with("sampled-out: 5 connections")), "{said:?}");
    says(finding(&told, "rule", "note"), "more rules than it can show");
}

#[test]
fn statistics_of_another_release_are_in_the_way() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    server.put(offset_of!(Header, version), &(VERSION + 1).to_ne_bytes());
    let (told, status) = told(&mut doctor(&library), &[server.process.pid()]);
    assert_eq!(status, Some(1), "{told:#}");
    assert!(finding(&told, "process", "problem")["remedy"].as_str().unwrap().contains("release"));
    let (told, status) = self::told(&mut doctor(&library), &[&server.place]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "listener", "problem"), &format!("process {} ", server.process.pid()));
}

#[test]
fn a_preload_that_was_in_vain_is_told_from_none() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let mut command = Command::new("sleep");
    command.arg("1000").env("LD_PRELOAD", "/nowhere/libnetacc-preload.so").stderr(Stdio::null());
    let process = Running::new(&mut command);
    wait_for_program(&process, "sleep");
    let (told, status) = told(&mut doctor(&library), &[process.pid()]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "process", "problem"), "was started with LD_PRELOAD, and has not loaded");
}

#[test]
fn many_processes_that_listen_are_not_all_named() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let hold = || {
        let mut command = Command::new("sleep");
        Running(
            command
                .arg("1000")
                .stdin(listener.try_clone().map(OwnedFd::from).unwrap())
                .spawn()
                .unwrap(),
        )
    };
    // (This process is one more.)
    let _held: [_; 9] = std::array::from_fn(|_| hold());
    let (told, _) = told(&mut doctor(&library), &[place]);
    // (Children that other tests are about to start have it for a moment.)
    says(finding(&told, "listener", "note"), " more processes listen on ");
}

#[test]
fn a_name_that_nobody_knows_is_unknown() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let (told, status) = told(&mut doctor(&library), &["no-such-host.invalid:80"]);
    assert_eq!((status, &told["verdict"]), (Some(2), &"unknown".into()));
    says(finding(&told, "resolve", "problem"), "no-such-host.invalid: ");
}

/// Calls of a C program, before it becomes the one that its words name.
fn confined(scratch: &Scratch, name: &str, calls: &str) -> Option<std::path::PathBuf> {
    let text = format!(
        "#include <errno.h>\n#include <linux/filter.h>\n#include <linux/seccomp.h>\n\
         #include <stddef.h>\n#include <sys/prctl.h>\n#include <sys/socket.h>\n\
         #include <sys/syscall.h>\n#include <unistd.h>\n\
         int main(int argc, char **argv) {{ (void)argc; (void)argv;\n{calls}\n}}\n"
    );
    scratch.compile(name, &text, &[])
}

#[test]
fn what_a_filter_refuses_here_is_named() {
    let scratch = Scratch::new();
    let library = scratch.library();
    // Neither memfd_create, nor a socket of AF_NETLINK.
    let calls = "\
        struct sock_filter all[] = {\n\
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),\n\
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),\n\
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),\n\
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),\n\
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),\n\
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),\n\
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),\n\
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };\n\
        struct sock_fprog program = { sizeof all / sizeof *all, all };\n\
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;\n\
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;\n\
        execv(argv[1], argv + 1); return 4;";
    let filtered = confined(&scratch, "refusing", calls).unwrap();
    let here = || {
        let mut here = Command::new(&filtered);
        here.arg(env!("CARGO_BIN_EXE_netacc")).env("NETACC_LIB", &library);
        here.env("NACC_LOG_PATH", "").arg("doctor");
        here
    };
    let (told, status) = told::<&str>(&mut here(), &[]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "memfd", "problem"), "memfd_create: ");
    says(finding(&told, "sock_diag", "note"), "does not say who holds a connection");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let (told, _) = self::told(&mut here(), &[place]);
    says(finding(&told, "addresses", "note"), "rtnetlink: ");
}

#[test]
fn a_process_that_can_use_no_socket_or_waits_in_the_kernel_is_seen() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let strict = "char byte; if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 2;\n\
                  return (int)read(0, &byte, 1);";
    let strict = Running::new(&mut Command::new(confined(&scratch, "strict", strict).unwrap()));
    let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let until = |pid: &str, line: &str| {
        let end = Instant::now() + Duration::from_secs(60);
        while !status(pid).contains(line) {
            assert!(Instant::now() < end, "{line} of {pid}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(&strict.pid(), "\nSeccomp:\t1");
    let (told, code) = told(&mut doctor(&library), &[strict.pid()]);
    assert_eq!(code, Some(1), "{told:#}");
    says(finding(&told, "seccomp", "problem"), "it can use no socket");

    // A parent waits so for a child by vfork, which ends with its standard input.
    let waits = "char byte; if (vfork() == 0) _exit((int)read(0, &byte, 1)); return 0;";
    let waits = Running::new(&mut Command::new(confined(&scratch, "waits", waits).unwrap()));
    until(&waits.pid(), "\nState:\tD");
    let (told, _) = self::told(&mut doctor(&library), &[waits.pid()]);
    says(finding(&told, "state", "note"), "uninterruptible");
}

#[test]
fn a_loader_that_is_not_the_system_s_is_not_run() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let loader = scratch.write("loader", "not one");
    std::fs::set_permissions(&loader, std::fs::Permissions::from_mode(0o777)).unwrap();
    // (It looks like glibc's by its name.)
    let named = scratch.path("ld-linux-x86-64.so.2");
    std::fs::rename(&loader, &named).unwrap();
    let argument = format!("-Wl,--dynamic-linker={}", named.display());
    let hello = scratch.compile("hello", HELLO, &[&argument]).unwrap();
    let (told, status) = told(&mut doctor(&library), &[&hello]);
    assert_eq!(status, Some(0), "{told:#}");
    says(finding(&told, "loader", "note"), "is not the system's, and was not asked");
}

#[test]
fn which_library_a_server_has_is_said() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    let place = server.place.clone();
    let version = |packed: u64| server.put(offset_of!(Header, library), &packed.to_ne_bytes());

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

#[test]
fn what_the_servers_end_keeps_on_tcp_is_in_the_way() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    let port = server.place.rsplit_once(':').unwrap().1;
    let end = format!("the server's end, process {}: ", server.process.pid());
    let rule = |what: &str| format!("[netacc]\n[rule r]\n{what}\n# end of the rules\n");
    let of_file = |what: &str| format!("[netacc]\n{what}\n");
    for (text, check, found) in [
        (
            of_file("NACC_ENABLE_RDMA_DEFAULT=0 # live"),
            "config",
            "NACC_ENABLE_RDMA_DEFAULT=0 (live)",
        ),
        (of_file("NACC_PATHS=tcp # file:1"), "config", "NACC_PATHS=tcp (file) leaves it on TCP"),
        (of_file("NACC_PATHS=rdma # file:1"), "config", "NACC_PATHS=rdma leaves connections"),
        (of_file("NACC_PATHS=utcp # file:1"), "config", "NACC_PATHS=utcp leaves connections"),
        (rule(&format!("port={port}\naccelerate=0")), "rule", "r, for connections to"),
        (rule("direction=in\npeer=127.0.0.0/8\npaths=rdma"), "rule", "r, for connections to"),
    ] {
        server.configure(&text);
        let (told, status) = told(&mut doctor(&library), &[&server.place]);
        assert_eq!(status, Some(1), "{text}: {told:#}");
        says(finding(&told, check, "problem"), &format!("{end}{found}"));
        let path = finding(&told, "path", "ok")["found"].as_str().unwrap();
        assert!(path.ends_with("TCP, as it is"), "{text}: {path}");
    }
    let other = [rule("port=1\naccelerate=0"), rule("direction=out\naccelerate=0")];
    for text in other.into_iter().chain([rule("paths=shm")]) {
        server.configure(&text);
        let (told, status) = told(&mut doctor(&library), &[&server.place]);
        assert_eq!(status, Some(0), "{text}: {told:#}");
        let path = finding(&told, "path", "ok")["found"].as_str().unwrap();
        assert!(path.contains("shared memory"), "{text}: {path}");
    }
    // The client's own.
    let mut command = doctor(&library);
    let (told, status) = told(command.env("NACC_ENABLE_RDMA_DEFAULT", "0"), &[&server.place]);
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "config", "problem"), "the client's end: NACC_ENABLE_RDMA_DEFAULT=0");
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
    let mut command = Command::new(&filtered);
    command.args(["sleep", "1000"]);
    let server = Server::of(command, &library);
    let trace = |config: &str| {
        server.configure(&format!("[netacc]\n{config}\n"));
        let (told, status) = told(&mut doctor(&library), &[server.process.pid()]);
        assert_eq!(status, Some(0), "{told:#}");
        says(finding(&told, "seccomp", "note"), "a filter is in force");
        let all = told["findings"].as_array().unwrap();
        all.iter().find(|f| f["check"] == "trace").cloned()
    };
    let not = trace("NACC_TRACE=1 # default").unwrap();
    says(&not, "it is not traced: it filters its system calls");
    let line = format!("netacc cfg set NACC_TRACE 1 -p {}", server.process.pid());
    let ("mends", is) = line_of(&not) else { panic!("{not}") };
    assert!(is.ends_with(&line), "{not}");
    for text in ["NACC_TRACE=1 # environment", "NACC_TRACE=1 # live", "NACC_TRACE=0 # default"] {
        assert_eq!(trace(text), None, "{text}");
    }
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
    assert_eq!(ran.err, "");
    let is_long = |line: &&str| line.chars().count() > 80 && line.trim().contains(' ');
    let long: Vec<&str> = ran.out.lines().filter(is_long).collect();
    assert!(long.is_empty(), "{long:?}");
    let count = |level: &str| ran.out.lines().filter(|line| line.starts_with(level)).count();
    let has_devices = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|all| all.count() != 0);
    // (What a host has of devices may be in their way.)
    let (problems, notes) = (count("problem "), count("note "));
    assert_eq!(ran.status, Some(i32::from(problems != 0)), "{}", ran.out);
    assert!(problems == 0 || has_devices, "{}", ran.out);
    let verdict = ran.out.lines().last().unwrap();
    let (said, noted) = verdict.split_once("in the way.").unwrap();
    assert_eq!(said == "Nothing is ", problems == 0, "{}", ran.out);
    assert_eq!(noted.contains(" note"), notes != 0, "{}", ran.out);
}

/// What it says of a place, in a network namespace of its own with what the words of a shell make
/// there; `None` where there can be none such.
fn told_in_a_network(library: &Path, made: &str, place: &str) -> Option<(Value, Option<i32>)> {
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &format!("{made} || exit 77; exec \"$@\"")]);
    command.args(["sh", env!("CARGO_BIN_EXE_netacc"), "doctor", "--json", place]);
    command.env("NETACC_LIB", library).env("NACC_LOG_PATH", "");
    let ran = command.output().ok()?;
    let told = serde_json::from_slice(&ran.stdout).ok()?;
    each_has_a_command(&told);
    Some((told, ran.status.code()))
}

#[test]
fn a_host_that_cannot_be_reached_is_told_from_one_that_does_not_answer() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let place = "192.0.2.9:80";
    let Some((told, status)) = told_in_a_network(&library, "true", place) else { return };
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "route", "problem"), "to 192.0.2.9: ");
    // All of that network is here, and nobody listens.
    let made = "ip address add 192.0.2.1/24 dev lo && ip link set lo up";
    let Some((told, status)) = told_in_a_network(&library, made, place) else { return };
    assert_eq!(status, Some(1), "{told:#}");
    finding(&told, "route", "ok");
    says(finding(&told, "server", "problem"), "nobody listens on 192.0.2.9:80");
    says(finding(&told, "path", "problem"), "belongs to no RDMA device here");
    // TCP in user space needs neither a device for RDMA nor a library there.
    let made = format!("export NACC_PATHS=utcp && {made}");
    let Some((told, _)) = told_in_a_network(&library, &made, place) else { return };
    // (Whether the kernel is new enough is another matter.)
    let all = told["findings"].as_array().unwrap().iter();
    let problems = all.filter(|f| f["level"] == "problem" && f["check"] != "utcp");
    assert_eq!(problems.map(|f| &f["check"]).collect::<Vec<_>>(), ["server"], "{told:#}");
    let path = finding(&told, "path", "ok")["found"].as_str().unwrap();
    assert!(path.contains("TCP in user space (utcp)"), "{path}");
    let made = "ip link add net type dummy && ip address add 192.0.2.1/24 dev net && \
                ip link set net up";
    let Some((told, status)) = told_in_a_network(&library, made, place) else { return };
    assert_eq!(status, Some(1), "{told:#}");
    says(finding(&told, "server", "problem"), "192.0.2.9:80 does not answer: ");
}
