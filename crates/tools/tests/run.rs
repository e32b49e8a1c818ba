//! `netacc_run` as an operator sees it.

mod support;

use rustix::process::{geteuid, getpid};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{HELLO, Ran, Scratch, netacc_run, run};

/// The value of a variable in the environment of the command.
fn variable(command: &mut Command, name: &str) -> Option<String> {
    let ran = run(command.arg("env"));
    assert_eq!(ran.err, "");
    let start = format!("{name}=");
    let line = ran.out.lines().find(|line| line.starts_with(&start))?;
    Some(line[start.len()..].to_owned())
}

#[test]
fn status_of_the_command_is_ours() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for status in [0, 1, 7, 126, 255] {
        let ran = run(netacc_run(&library).args(["sh", "-c", &format!("exit {status}")]));
        assert_eq!((ran.status, ran.err.as_str()), (Some(status), ""));
    }
    let killed = netacc_run(&library).args(["sh", "-c", "kill -TERM $$"]).status().unwrap();
    assert_eq!(killed.signal(), Some(15));
}

#[test]
fn command_has_our_pid() {
    let scratch = Scratch::new();
    let mut command = netacc_run(&scratch.library());
    let child = command.args(["sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    assert_ne!(pid, getpid().as_raw_nonzero().get() as u32);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), pid.to_string());
}

#[test]
fn options_of_the_command_are_its_own() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ran = run(netacc_run(&library).args([
        "-t",
        "2",
        "printf",
        "%s,",
        "-h",
        "-t",
        "9",
        "--version",
        "--",
    ]));
    assert_eq!(ran.out, "-h,-t,9,--version,--,");
    let ran = run(netacc_run(&library).args(["--", "printf", "%s,", "-v"]));
    assert_eq!(ran.out, "-v,");
}

#[test]
fn library_is_preloaded_before_what_is_there() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ours = library.to_str().unwrap();
    assert_eq!(variable(&mut netacc_run(&library), "LD_PRELOAD").unwrap(), ours);

    let other = scratch.compile("libother.so", "int other;\n", &["-shared", "-fPIC"]).unwrap();
    let other = other.to_str().unwrap();
    let with = variable(netacc_run(&library).env("LD_PRELOAD", other), "LD_PRELOAD");
    assert_eq!(with.unwrap(), format!("{ours}:{other}"));

    let both = format!("{other} {ours}");
    let with = variable(netacc_run(&library).env("LD_PRELOAD", &both), "LD_PRELOAD");
    assert_eq!(with.unwrap(), both);

    let ran =
        run(netacc_run(&library).args(["grep", "-c", "libnetacc-preload.so", "/proc/self/maps"]));
    assert_eq!(ran.status, Some(0));
}

#[test]
fn options_become_variables_and_nothing_else_does() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let variables = |arguments: &[&str]| -> Vec<String> {
        let ran = run(netacc_run(&library).args(arguments).arg("env"));
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
        let lines = ran.out.lines().filter(|line| line.starts_with("NACC_"));
        let mut lines: Vec<String> = lines.map(String::from).collect();
        lines.sort();
        lines
    };
    assert!(variables(&[]).is_empty());
    assert_eq!(
        variables(&["-t", "3", "-t", "2", "-T", "-P0", "-A", "1-3", "-d"]),
        [
            "NACC_CLI_KEYS=NACC_LOG_LEVEL,NACC_SOR_IO_THREADS,NACC_SOR_AFFINITY,NACC_CONN_TCP_FIRST,NACC_POLL_MS",
            "NACC_CONN_TCP_FIRST=1",
            "NACC_LOG_LEVEL=1",
            "NACC_POLL_MS=0",
            "NACC_SOR_AFFINITY=1-3",
            "NACC_SOR_IO_THREADS=2",
        ]
    );
    assert_eq!(
        variables(&["-p", "32", "-s", "65536", "-F", "1", "-i", "2"]),
        [
            "NACC_CLI_KEYS=NACC_SOR_MSG_SIZE,NACC_SOR_CONN_PER_QP,NACC_FAST_CONNECT,NACC_CQ_COMP_VECTOR",
            "NACC_CQ_COMP_VECTOR=2",
            "NACC_FAST_CONNECT=1",
            "NACC_SOR_CONN_PER_QP=32",
            "NACC_SOR_MSG_SIZE=65536",
        ]
    );
    let paths = ["NACC_CLI_KEYS=NACC_PATHS", "NACC_PATHS=rdma,shm"];
    assert_eq!(variables(&["--paths", "rdma,shm"]), paths);
    assert_eq!(variables(&["--paths=tcp", "--paths=rdma,shm"]), paths);
}

#[test]
fn a_bad_list_of_paths_starts_nothing() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ran = run(netacc_run(&library).args(["--paths", "shm,shm", "true"]));
    assert_eq!(ran.status, Some(2));
    assert_eq!(
        ran.err,
        "netacc_run: command line: --paths: NACC_PATHS=shm,shm: names a path twice; \
         valid: shm, rdma and utcp, separated by a comma, each at most once, utcp last, or tcp alone\n"
    );
}

#[test]
fn nested_runs_keep_the_outer_options() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let inner = env!("CARGO_BIN_EXE_netacc_run");
    let mut command = netacc_run(&library);
    let keys = variable(command.args(["-t", "2", inner, "-p", "3"]), "NACC_CLI_KEYS");
    assert_eq!(keys.unwrap(), "NACC_SOR_IO_THREADS,NACC_SOR_CONN_PER_QP");
    let mut command = netacc_run(&library);
    let preload = variable(command.arg(inner), "LD_PRELOAD");
    assert_eq!(preload.unwrap(), library.to_str().unwrap());
}

#[test]
fn configuration_file_is_passed_on_by_its_absolute_path() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let file = scratch.write("my.conf", "[netacc]\nNACC_SOR_IO_THREADS=2\n");
    let mut command = netacc_run(&library);
    command.current_dir(file.parent().unwrap()).args(["-f", "my.conf"]);
    assert_eq!(variable(&mut command, "NACC_CONF").unwrap(), file.to_str().unwrap());
}

#[test]
fn a_private_prefix_has_a_file_of_its_own() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for directory in ["bin", "etc"] {
        std::fs::create_dir(scratch.path(directory)).unwrap();
    }
    let program = scratch.path("bin/netacc_run");
    std::fs::copy(env!("CARGO_BIN_EXE_netacc_run"), &program).unwrap();
    let named = |variable_is: Option<&str>| {
        let mut command = Command::new(&program);
        command.env("NETACC_LIB", &library).env_remove("NACC_CONF");
        if let Some(value) = variable_is {
            command.env("NACC_CONF", value);
        }
        variable(&mut command, "NACC_CONF")
    };
    assert_eq!(named(None), None);
    let file = scratch.write("etc/netacc.conf", "[netacc]\nNACC_SOR_IO_THREADS=2\n");
    assert_eq!(named(None).unwrap(), file.to_str().unwrap());
    let other = scratch.write("other.conf", "[netacc]\n");
    assert_eq!(named(other.to_str()).unwrap(), other.to_str().unwrap());
}

#[test]
fn a_log_where_there_is_no_room_is_named() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let mut command = Command::new("unshare");
    let full = "mount -t tmpfs -o size=4096 none /mnt && head -c 4096 /dev/zero >/mnt/x || exit 77
                exec \"$@\"";
    command.args(["-rm", "sh", "-c", full, "sh", env!("CARGO_BIN_EXE_netacc_run"), "true"]);
    command.env("NETACC_LIB", &library).env("NACC_LOG_PATH", "/mnt/log").env_remove("LD_PRELOAD");
    let ran = run(&mut command);
    if ran.status == Some(0) {
        let start =
            "netacc_run: warning: the log /mnt/log cannot be written: /mnt: its file system";
        assert!(ran.err.starts_with(start), "{}", ran.err);
    } else {
        support::skip(format_args!("no mounts of its own: {}", ran.err));
    }
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let said = |path: &Path| {
        let ran = run(netacc_run(&library).env("NACC_LOG_PATH", path).arg("true"));
        assert_eq!(ran.status, Some(0));
        ran.err
    };
    let file = scratch.path("log");
    assert_eq!(said(&file), "");
    assert!(!file.exists(), "the library makes it with its first line");
    assert_eq!(said(&scratch.path("100%%-%u-%p.log")), "");
    std::fs::write(&file, "old\n").unwrap();
    assert_eq!(said(&file), "");
    let is = |path: &Path, problem: &str| {
        let text = said(path);
        let path = path.display();
        let start = format!("netacc_run: warning: the log {path} cannot be written: ");
        assert!(text.starts_with(&start) && text.contains(problem), "{text}");
        assert!(text.contains("NACC_LOG_PATH names another file"), "{text}");
    };
    is(&scratch.path("none/log"), "none: No such file or directory");
    is(&scratch.path("."), "Is a directory");
    is(Path::new("/dev/null"), "it is not a regular file");
    // Where root may open, or seems to be let make, what takes no line.
    let is_root = rustix::process::geteuid().is_root();
    let kernels = if is_root { "its file system (proc) is the kernel's" } else { "Permission" };
    is(Path::new("/proc/version"), kernels);
    is(Path::new("/proc/netacc.log"), kernels);
    is(Path::new("/proc/self/netacc.log"), "/proc/self: ");
    let syslog = said(Path::new("syslog"));
    let is_there = std::os::unix::net::UnixDatagram::unbound().unwrap().connect("/dev/log").is_ok();
    let problem = "netacc_run: warning: nobody takes what goes to the system's log: /dev/log: ";
    assert_eq!((syslog.is_empty(), syslog.starts_with(problem)), (is_there, !is_there), "{syslog}");
    std::fs::hard_link(&file, scratch.path("second")).unwrap();
    is(&file, "it has several names");
    std::fs::remove_file(scratch.path("second")).unwrap();
    std::os::unix::fs::symlink(&file, scratch.path("link")).unwrap();
    is(&scratch.path("link"), "it is a symbolic link");
    if geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(61_002), None).unwrap();
        is(&file, "it belongs to another user (61002)");
        // The second user of the default file, who has not asked for a log, is left in peace.
        let ran = run(netacc_run(&library).arg("true"));
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    }
}

#[test]
fn bad_configuration_starts_nothing() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let file = scratch.write("bad.conf", "# x\n[netacc]\nNACC_SOR_MSG_SIZE=12x\nNACC_LOG_LEVL=3\n");
    let marker = scratch.path("started");
    let start = |command: &mut Command| -> Ran {
        let ran = run(command.arg("touch").arg(&marker));
        assert_eq!(ran.status, Some(2), "{}", ran.err);
        assert!(!marker.exists());
        assert!(
            ran.err.lines().all(|line| line.is_empty() || line.starts_with("netacc_run: ")),
            "{}",
            ran.err
        );
        ran
    };
    let name = file.to_str().unwrap();
    let expected = format!(
        "netacc_run: {name}:3: NACC_SOR_MSG_SIZE=12x: not a number; valid: a multiple of 4096 from 4096 to 1048576\n\
         netacc_run: {name}:4: NACC_LOG_LEVL=3: unknown key; did you mean NACC_LOG_LEVEL?\n"
    );
    assert_eq!(start(netacc_run(&library).arg("-f").arg(&file)).err, expected);
    assert_eq!(start(netacc_run(&library).env("NACC_CONF", &file)).err, expected);
    let missing = start(netacc_run(&library).args(["-f", "/nowhere/netacc.conf"]));
    assert_eq!(
        missing.err,
        "netacc_run: /nowhere/netacc.conf: No such file or directory (os error 2)\n"
    );
    let bytes = scratch.path("latin1.conf");
    std::fs::write(&bytes, b"[netacc]\n# caf\xe9\n").unwrap();
    assert!(
        start(netacc_run(&library).arg("-f").arg(&bytes))
            .err
            .ends_with("latin1.conf:2: not UTF-8\n")
    );
    start(netacc_run(&library).args(["-s", "5000"]));
    start(netacc_run(&library).args(["-P", "-1"]));
    start(netacc_run(&library).args(["-A", "3-1"]));
    start(netacc_run(&library).env("NACC_CONNECT_RDMA_PERCENT", "101"));
}

#[test]
fn bad_usage() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for arguments in [&[][..], &["-z", "true"], &["-s"], &["-t", "2"]] {
        let ran = run(netacc_run(&library).args(arguments));
        assert_eq!(ran.status, Some(2));
        assert!(ran.err.starts_with("netacc_run: "), "{}", ran.err);
    }
    for (option, start) in
        [("-h", "Usage: netacc_run [ OPTIONS ] COMMAND\n"), ("-v", "netacc_run 0.")]
    {
        let ran = run(netacc_run(&library).arg(option));
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
        assert!(ran.out.starts_with(start));
    }
}

#[test]
fn command_that_cannot_be_run() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ran = run(netacc_run(&library).arg("no-such-command"));
    assert_eq!(
        (ran.status, ran.err.as_str()),
        (Some(127), "netacc_run: no-such-command: command not found\n")
    );
    let plain = scratch.write("plain", "text\n");
    let ran = run(netacc_run(&library).arg(&plain));
    assert_eq!(ran.status, Some(126));
    assert!(ran.err.ends_with("permission denied\n"), "{}", ran.err);
    let orphan = scratch.script("orphan", "#!/nowhere/interpreter\n");
    let ran = run(netacc_run(&library).arg(&orphan));
    assert_eq!(ran.status, Some(127));
    assert!(ran.err.ends_with("orphan exists, but its interpreter does not\n"), "{}", ran.err);
    let ran = run(netacc_run(&library).arg(""));
    assert_eq!(ran.status, Some(127));
}

#[test]
fn without_the_library_the_command_runs_all_the_same() {
    let scratch = Scratch::new();
    let not_elf = scratch.write("text.so", "text\n");
    let spaced = scratch.write("with space.so", "text\n");
    for (library, reason) in [
        (Path::new("/nowhere/lib.so"), "No such file"),
        (&not_elf, "not a shared library"),
        (&spaced, "a path with a space or a colon"),
    ] {
        let ran = run(netacc_run(library).args(["sh", "-c", "echo $LD_PRELOAD; exit 5"]));
        assert_eq!((ran.status, ran.out.as_str()), (Some(5), "\n"));
        assert!(ran.err.starts_with("netacc_run: warning: "), "{}", ran.err);
        assert!(
            ran.err.contains("runs unaccelerated: ") && ran.err.contains(reason),
            "{}",
            ran.err
        );
    }
}

#[test]
fn library_is_found_beside_the_program() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for (directory, name) in [
        ("bin", "libnetacc-preload.so"),
        ("lib", "libnetacc-preload.so"),
        ("bin", "libnetacc_preload.so"),
    ] {
        let prefix = scratch.path(&format!("prefix-{directory}-{name}"));
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::fs::create_dir_all(prefix.join("lib")).unwrap();
        let program = prefix.join("bin/netacc_run");
        std::fs::copy(env!("CARGO_BIN_EXE_netacc_run"), &program).unwrap();
        let there = prefix.join(directory).join(name);
        std::fs::copy(&library, &there).unwrap();
        let ran = run(Command::new(&program)
            .env_remove("NETACC_LIB")
            .env_remove("LD_PRELOAD")
            .arg("env"));
        let line = format!("LD_PRELOAD={}\n", there.display());
        assert!(ran.out.contains(&line), "{}{}", ran.out, ran.err);
    }
}

/// Runs a program that the library cannot serve; it must run, and we must say why it is slow.
fn warned(library: &Path, program: &Path, reason: &str) -> String {
    let ran = run(netacc_run(library).arg(program));
    assert_eq!(ran.status, Some(42), "{}", ran.err);
    let start = format!("netacc_run: warning: {} runs unaccelerated: {reason}", program.display());
    assert!(ran.err.starts_with(&start), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1);
    ran.err
}

const PRINT_PRELOAD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) { puts(getenv("LD_PRELOAD") ? "preloaded" : "not preloaded"); return 42; }
"#;

#[test]
fn static_programs() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for flags in [&["-static"][..], &["-static-pie"]] {
        let Some(program) = scratch.compile("static", HELLO, flags) else {
            support::skip("no static libc");
            continue;
        };
        let warning = warned(&library, &program, "it is statically linked");
        assert!(warning.contains("programs that it starts can be accelerated"));
    }
    let dynamic = scratch.compile("dynamic", HELLO, &[]).unwrap();
    let ran = run(netacc_run(&library).arg(&dynamic));
    assert_eq!((ran.status, ran.err.as_str()), (Some(42), ""));
}

#[test]
fn go_programs() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let section = format!(
        "__attribute__((section(\".go.buildinfo\"), used)) static char info[] = \"x\";\n{PRINT_PRELOAD}"
    );
    let program = scratch.compile("go-section", &section, &[]).unwrap();
    warned(&library, &program, "it is a Go program");
    assert_eq!(run(netacc_run(&library).arg(&program)).out, "not preloaded\n");

    let note = format!(
        "__asm__(\".pushsection .note.go.buildid,\\\"a\\\",%note\\n.long 4\\n.long 4\\n.long 4\\n.asciz \\\"Go\\\"\\n.balign 4\\n.long 0\\n.popsection\");\n{PRINT_PRELOAD}"
    );
    let program = scratch.compile("go-note", &note, &[]).unwrap();
    warned(&library, &program, "it is a Go program");
    let stripped = Command::new("strip").args(["--remove-section=.comment"]).arg(&program).status();
    if stripped.is_ok_and(|status| status.success()) {
        warned(&library, &program, "it is a Go program");
    }
    for go in ["/usr/local/go/bin/go", "/usr/bin/go"] {
        if Path::new(go).exists() {
            let ran = run(netacc_run(&library).args([go, "version"]));
            assert!(ran.err.contains("it is a Go program"), "{}", ran.err);
            assert!(ran.out.starts_with("go version"));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn programs_with_system_calls_of_their_own() {
    const RAW: &str = r#"
        int raw(int set, void *events, int max) {
            register long none __asm__("r10") = 0;
            long r;
            __asm__ volatile("movl $232, %%eax\n\tsyscall" : "=a"(r) : "D"(set), "S"(events), "d"(max), "r"(none) : "rcx", "r11", "memory");
            return r;
        }"#;
    let scratch = Scratch::new();
    let library = scratch.library();
    let says = |program: &Path, file: &Path| {
        let ran = run(netacc_run(&library).arg(program));
        assert_eq!(ran.status, Some(42), "{}", ran.err);
        let start = format!(
            "netacc_run: warning: {} has system calls of its own (epoll_wait)",
            file.display()
        );
        assert!(ran.err.starts_with(&start), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    };
    let program = scratch.compile("raw", &format!("{RAW}{HELLO}"), &[]).unwrap();
    says(&program, &program);

    // In a library that the loader finds.
    let shared = scratch.compile("libraw.so", RAW, &["-shared", "-fPIC"]).unwrap();
    let at = format!("-Wl,-rpath,{}", shared.parent().unwrap().display());
    let needs = ["-Wl,--no-as-needed", shared.to_str().unwrap(), at.as_str()];
    let program = scratch.compile("needs-raw", HELLO, &needs).unwrap();
    says(&program, &shared);
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let Some(program) = scratch.compile("interpreter", HELLO, &["-static"]) else {
        support::skip("no static libc");
        return;
    };
    let direct = format!("#!{} -x\n", program.display());
    let inner = scratch.script("inner", &direct);
    let outer = scratch.script("outer", &format!("#! {}\n", inner.display()));
    let by_env = scratch.script("by-env", "#!/usr/bin/env interpreter\n");
    let by_split = scratch.script("by-split", "#!/usr/bin/env -S A=1 interpreter -x\n");
    let path = format!("{}:/bin:/usr/bin", program.parent().unwrap().display());
    for script in [inner, outer, by_env, by_split] {
        let ran = run(netacc_run(&library).env("PATH", &path).arg(&script));
        let start = format!("netacc_run: warning: {} runs unaccelerated: ", program.display());
        assert_eq!(ran.status, Some(42), "{}", ran.err);
        assert!(ran.err.starts_with(&start), "{}: {}", script.display(), ran.err);
    }
    let ordinary = scratch.script("ordinary", "#!/bin/sh\nexit 42\n");
    let none = scratch.script("none", "exit 42\n");
    for script in [ordinary, none] {
        let ran = run(netacc_run(&library).arg(&script));
        assert_eq!((ran.status, ran.err.as_str()), (Some(42), ""));
    }
}

#[test]
fn privileged_programs() {
    if !geteuid().is_root() {
        support::skip("needs root to make a set-uid program of another user");
        return;
    }
    let scratch = Scratch::new();
    let library = scratch.library();
    const NOBODY: u32 = 65534;
    for (owner, group, mode, reason) in
        [(NOBODY, 0, 0o4755, "it is set-user-ID"), (0, NOBODY, 0o2755, "it is set-group-ID")]
    {
        let program = scratch.compile("privileged", HELLO, &[]).unwrap();
        std::os::unix::fs::chown(&program, Some(owner), Some(group)).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        warned(&library, &program, reason);
    }
    // Root gains nothing from root's set-uid programs, so they are ordinary to it.
    let program = scratch.compile("ordinary", HELLO, &[]).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let ran = run(netacc_run(&library).arg(&program));
    assert_eq!((ran.status, ran.err.as_str()), (Some(42), ""));
}

#[test]
fn other_libc_and_other_machine() {
    use netacc_tools::command::{Obstacle, examine};
    use netacc_tools::elf::Elf;
    let scratch = Scratch::new();
    let library = scratch.library();
    let target = Elf::read(std::fs::File::open(&library).unwrap()).unwrap().unwrap().target;

    let musl =
        scratch.compile("musl", HELLO, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]).unwrap();
    let verdict = examine(&musl, None, target).unwrap();
    assert_eq!(verdict.obstacle, Obstacle::OtherLibc(String::from("/lib/ld-musl-x86_64.so.1")));
    assert!(!verdict.obstacle.passes_preload_on());

    let program = scratch.compile("other", HELLO, &[]).unwrap();
    let mut bytes = std::fs::read(&program).unwrap();
    bytes[18..20].copy_from_slice(&243u16.to_le_bytes());
    std::fs::write(&program, &bytes).unwrap();
    let verdict = examine(&program, None, target).unwrap();
    assert!(verdict.obstacle.to_string().starts_with("it is made for RISC-V, 64 bit"));
    assert!(!verdict.obstacle.passes_preload_on());
}

#[test]
fn damaged_programs_are_harmless() {
    use netacc_tools::elf::Elf;
    let scratch = Scratch::new();
    let program = scratch.compile("whole", HELLO, &[]).unwrap();
    let bytes = std::fs::read(&program).unwrap();
    let damaged = scratch.path("damaged");
    let read = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        let _ = Elf::read(std::fs::File::open(&damaged).unwrap());
    };
    for end in (0..bytes.len().min(2048)).step_by(7) {
        read(&bytes[..end]);
    }
    for at in 4..1024 {
        for value in [0, 0x7f, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            read(&bytes);
        }
    }
}

#[test]
fn the_dynamic_loader_itself_is_no_static_program() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let loader = "/lib64/ld-linux-x86-64.so.2";
    if !Path::new(loader).exists() {
        return;
    }
    let program = scratch.compile("dynamic", HELLO, &[]).unwrap();
    let ran = run(netacc_run(&library).arg(loader).arg(&program));
    assert_eq!((ran.status, ran.err.as_str()), (Some(42), ""));
}

#[test]
fn signals_and_descriptors_are_inherited_as_they_are() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ours = env!("CARGO_BIN_EXE_netacc_run");
    let look = "grep -E 'Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd";
    for set_up in ["true", "trap '' PIPE", "trap '' HUP", "exec <&-"] {
        let plain =
            run(netacc_run(&library).args(["sh", "-c", &format!("{set_up}; sh -c \"{look}\"")]));
        let script = format!("{set_up}; {ours} sh -c \"{look}\"");
        let through = run(Command::new("sh").args(["-c", &script]).env("NETACC_LIB", &library));
        assert_eq!(through.out, plain.out, "{set_up}");
        assert!(plain.out.contains("SigIgn"));
    }
}

#[test]
fn unknown_variables_are_pointed_out() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let ran = run(netacc_run(&library).env("NACC_SOR_MSGSIZE", "8192").arg("true"));
    assert_eq!(ran.status, Some(0));
    assert_eq!(
        ran.err,
        "netacc_run: warning: environment: NACC_SOR_MSGSIZE: unknown, ignored; did you mean NACC_SOR_MSG_SIZE?\n"
    );
}

#[test]
fn a_profile_sets_what_nobody_else_does() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let with = |arguments: &[&str], name: &str| {
        variable(netacc_run(&library).env("NACC_POLL_MS", "7").args(arguments), name)
    };
    let polling = "NACC_POLL_MS";
    assert_eq!(with(&["--profile", "polite"], polling).as_deref(), Some("0"));
    assert_eq!(with(&["--profile=latency"], "NACC_POLL_TCP_US").as_deref(), Some("60"));
    assert_eq!(with(&["--profile", "throughput"], "NACC_SOR_MSG_SIZE").as_deref(), Some("65536"));
    assert_eq!(with(&["--profile", "throughput"], polling).as_deref(), Some("7"));
    for both in [["-P", "3", "--profile", "polite"], ["--profile", "polite", "-P", "3"]] {
        assert_eq!(with(&both, polling).as_deref(), Some("3"));
        assert_eq!(with(&both, "NACC_POLL_TCP_US").as_deref(), Some("0"));
        let keys = with(&both, "NACC_CLI_KEYS").unwrap();
        assert_eq!(keys, "NACC_POLL_MS,NACC_POLL_TCP_US");
    }
    let wrong = run(netacc_run(&library).args(["--profile", "fast", "true"]));
    assert_eq!(wrong.status, Some(2));
    assert!(wrong.err.contains("latency, throughput, polite"), "{}", wrong.err);
}
