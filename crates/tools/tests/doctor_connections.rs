//! `netacc doctor HOST:PORT`: which path would a connection take, and what is in the way of a
//! faster one?

mod support;

use netacc_control::stats::Header;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::process::Command;
use support::Scratch;
use support::doctor::{Running, Server, doctor, finding, line_of, says, told};

#[test]
fn the_path_is_that_which_the_clients_end_leaves() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    let port = server.place.rsplit_once(':').unwrap().1;
    let file = scratch.path("some.conf");
    let told_with = |text: &str, is_off: bool| {
        std::fs::write(&file, format!("[netacc]\n{text}\n")).unwrap();
        let mut command = doctor(&library);
        command.env("NACC_CONF", &file);
        if is_off {
            command.env("NACC_ENABLE_RDMA_DEFAULT", "0");
        }
        told(&mut command, &[&server.place]).0
    };
    for (text, is_off) in [
        (format!("[rule r]\nport={port}\naccelerate=0"), false),
        (String::new(), true),
        (String::from("NACC_CONNECT_RDMA_PERCENT=0"), false),
        (String::from("NACC_PATHS=tcp"), false),
    ] {
        let told = told_with(&text, is_off);
        assert_eq!(told["verdict"], "obstructed", "{text}: {told:#}");
        let path = finding(&told, "path", "ok")["found"].as_str().unwrap();
        assert!(path.ends_with("TCP, as it is"), "{text}: {path}");
    }
    // The rule's file is named as it is.
    let told = told_with(&format!("[rule r]\nport={port}\naccelerate=0"), false);
    let opens = format!("${{EDITOR:-vi}} -- {}", file.display());
    assert_eq!(line_of(finding(&told, "rule", "problem")), ("opens", &*opens));
    // A rule that leaves it a path that is none here; and one that leaves it the one that is.
    let told = told_with(&format!("[rule r]\nport={port}\npaths=rdma"), false);
    says(finding(&told, "path", "problem"), "rdma alone, by the rule of the client's end, has no");
    let told = told_with("NACC_PATHS=rdma", false);
    says(finding(&told, "path", "problem"), "NACC_PATHS=rdma of the client's end has no shared");
    let told = told_with(&format!("[rule r]\nport={port}\npaths=shm"), false);
    let path = finding(&told, "path", "ok")["found"].as_str().unwrap();
    assert!(path.contains("shared memory"), "{path}");
}

#[test]
fn the_rule_of_a_process_is_mended_in_its_own_file_and_while_it_runs() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let server = Server::new(&library);
    let pid = server.process.pid();
    let port = server.place.rsplit_once(':').unwrap().1;
    let rule = format!("[rule r]\nport={port}\naccelerate=0\n# end of the rules\n");
    server.configure(&format!("# file: /opt/x/its.conf\n[netacc]\n{rule}"));
    let remedy = || {
        let told = told(&mut doctor(&library), &[&server.place]).0;
        let problem = finding(&told, "rule", "problem");
        let ("opens", line) = line_of(problem) else { panic!("{problem}") };
        // (Who may not write the file opens it with sudo.)
        let line = line.replace("sudoedit", "${EDITOR:-vi}");
        (line, problem["remedy"].as_str().unwrap().to_owned())
    };
    let (line, said) = remedy();
    assert_eq!(line, "${EDITOR:-vi} -- /opt/x/its.conf");
    assert!(said.ends_with("and start the program again"), "{said}");
    // (It hears requests from here on.)
    server.put(offset_of!(Header, requests_inode), &1u32.to_ne_bytes());
    let (line, said) = remedy();
    assert!(line.starts_with("${EDITOR:-vi} -- /opt/x/its.conf && "), "{line}");
    assert!(line.ends_with(&format!("netacc cfg reload -p {pid}")), "{line}");
    assert!(!said.contains("start"), "{said}");
    server.configure(&format!("[netacc]\n{rule}"));
    assert!(remedy().0.starts_with("${EDITOR:-vi} -- /etc/netacc.conf && "), "{}", remedy().0);
}

/// A child listens; its parent, whose number is smaller, is in the same network namespace.
const LISTENS: &str = r#"
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    if (fork() != 0) for (;;) pause();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listen(listener, 1) != 0 || getsockname(listener, (void *)&own, &length) != 0) return 1;
    printf("%d %d\n", (int)getpid(), (int)ntohs(own.sin_port));
    fflush(stdout);
    for (;;) pause();
}
"#;

#[test]
fn who_listens_in_another_network_namespace_is_named() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let program = scratch.compile("listens", LISTENS, &[]).unwrap();
    let mut process = Running::new(Command::new("unshare").arg("-rn").arg(&program));
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Some((pid, port)) = line.trim().split_once(' ') else {
        support::skip("no network namespace");
        return;
    };
    let (told, status) = told(&mut doctor(&library), &[format!("127.0.0.1:{port}")]);
    assert_eq!(status, Some(1), "{told:#}");
    let found = finding(&told, "listener", "problem");
    says(found, &format!("namespace of process {pid} (listens), which listens there: "));
}
